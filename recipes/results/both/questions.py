"""Write the questions that both.sh measures: GSM8K's test split in two halves, and MT-Bench's first turns.

    python recipes/results/both/questions.py GSM8K_TEST.jsonl MT_BENCH.jsonl OUT

The halves are fixed by a hash of the ids, before anything is measured. OUT/choice.jsonl holds 200 questions of half A that can be
told in pieces: recipes are chosen on them. OUT/final.jsonl holds all questions of half B that can be told in pieces, and
OUT/gsm8k.jsonl all 1,319. The id of a question is `gsm8k-` and its line.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from nextturn.probe.command.errors import run_command
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.data.tables import read_rows
from nextturn.probe.questions.pieces import split

CHOICE = 200


def digest(name: str) -> str:
    """Return the hash that orders the questions and puts one into half A (first digit below 8) or B."""
    return hashlib.sha256(name.encode()).hexdigest()


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gsm8k", type=Path)
    parser.add_argument("mt_bench", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args(argv)

    rows = [{"id": f"gsm8k-{number}", **row} for number, row in read_rows(args.gsm8k)]
    told = sorted((row for row in rows if split(row["question"])), key=lambda row: digest(row["id"]))
    half_a = [row for row in told if digest(row["id"])[0] < "8"]
    half_b = [row for row in told if digest(row["id"])[0] >= "8"]
    turns = [{"id": f"mt_bench-{row['question_id']}", "prompt": row["turns"][0]} for _, row in read_rows(args.mt_bench)]
    args.out.mkdir(parents=True, exist_ok=True)
    for name, chosen in (
        ("gsm8k", rows), ("choice", half_a[:CHOICE]), ("final", half_b), ("mt_bench", turns),
    ):  # fmt: skip
        write_jsonl(args.out / f"{name}.jsonl", chosen)
        print(f"{name}: {len(chosen)} questions")


if __name__ == "__main__":
    sys.exit(run_command(main))
