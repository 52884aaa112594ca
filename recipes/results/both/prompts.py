"""Write the prompts of both.sh's GRPO: GSM8K training problems, each whole and told in pieces.

    python recipes/results/both/prompts.py TRAIN.jsonl OUT.jsonl [--problems 800]

The order is fixed by a hash of the ids. Problems with an own solution in `own.jsonl.gz` are left out, since SFT has seen them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from nextturn.probe.command.errors import run_command
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.data.messages import user
from nextturn.probe.questions.pieces import split
from nextturn.probe.questions.sets import read_problems

OWN = Path(__file__).with_name("own.jsonl.gz")
MOST_FACTS = 5  # a conversation has one turn more


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path, help="GSM8K's training split")
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", type=int, default=800)
    args = parser.parse_args(argv)

    with gzip.open(OWN, "rt", encoding="utf-8") as lines:
        seen = {json.loads(line)["id"] for line in lines}
    problems = [problem for problem in read_problems(args.train, "gsm8k") if problem.id not in seen]
    problems.sort(key=lambda problem: hashlib.sha256(problem.id.encode()).hexdigest())
    rows = []
    for problem in problems:
        pieces = split(problem.question)
        if pieces is not None and len(pieces.facts) <= MOST_FACTS and len(rows) < 2 * args.problems:
            shared = {"answer": problem.answer, "problem": problem.question}
            whole = {"id": f"{problem.id}-whole", "prompt": [user(problem.question)], "kind": "complete"}
            told = {"id": f"{problem.id}-pieces", "prompt": [user(pieces.wish)], "kind": "sharded"}
            rows += [{**whole, **shared}, {**told, **shared, "shards": list(pieces.facts)}]
    write_jsonl(args.out, rows)
    print(f"{args.out}: {len(rows)} prompts of {len(rows) // 2} problems")


if __name__ == "__main__":
    sys.exit(run_command(main))
