"""Measures a judge's bias on labelled turns and writes it into probe/judges/bias.yaml, which `probe compare` warns by.

    python -m tests.judge_bias LABELS.jsonl [MORE.jsonl ...] [--judge rules] [--url URL]

Give only turns that the judge was not fitted on: of ../shared/data/user_turns, models_dev.jsonl and sft_dev.jsonl for
rules/3. Rows want "source", the set of their question, and "temperature". A cell of fewer than 20 turns is left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from probe.errors import run_command
from probe.judges import get_judge
from probe.judges.agreement import agreement, read_labelled
from probe.settings import ServerSection

FILE = Path(__file__).resolve().parent.parent / "probe" / "judges" / "bias.yaml"
HEAD = (
    "# By how much a judge's rate of genuine follow-ups lies above a reader's, with its 95% interval: over all labelled turns\n"
    "# that the judge was not fitted on, by temperature, and by set and temperature; made by tests/judge_bias.py.\n"
)
SETS = {"mt": "mt_bench"}  # as the labelled files call it, and as recipes do
FEWEST = 20


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.judge_bias", description=__doc__)
    parser.add_argument("labels", nargs="+", type=Path)
    parser.add_argument("--judge", default="rules")
    parser.add_argument("--url")
    arguments = parser.parse_args(argv)
    judge = get_judge(arguments.judge, ServerSection(urls=(arguments.url,)) if arguments.url else None)
    rows = [row for path in arguments.labels for row in read_labelled(path)]
    found = agreement(rows, judge, progress=True, by=[("temperature",), ("source", "temperature")])
    known = yaml.safe_load(FILE.read_text(encoding="utf-8")) or {} if FILE.exists() else {}
    known[judge.version] = measured(found["groups"])
    FILE.write_text(HEAD + yaml.safe_dump(known, sort_keys=False, default_flow_style=None, width=110), encoding="utf-8")
    print(f"{FILE}: {judge.version} on {found['n_scored']} turns")


def measured(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    whole, *others = groups
    enough = [group for group in others if group["n_scored"] >= FEWEST]
    sets: dict[str, dict[str, Any]] = {}
    for group in enough:
        if "source" in group["by"]:
            name = str(group["by"]["source"])
            sets.setdefault(SETS.get(name, name), {})[f"T={group['by']['temperature']}"] = figures(group)
    temperatures = {
        f"T={group['by']['temperature']}": figures(group) for group in enough if "source" not in group["by"]
    }
    return {"all": figures(whole), "temperatures": temperatures, "sets": sets}


def figures(group: dict[str, Any]) -> dict[str, Any]:
    low, high = group["bias_ci95"]
    return {"n": group["n_scored"], "bias": round(group["bias"], 3), "low": round(low, 3), "high": round(high, 3)}


if __name__ == "__main__":
    sys.exit(run_command(main))
