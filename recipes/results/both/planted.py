"""Does the next user turn object to a planted error? The pilot of a measure that is not built unless this shows something.

    python recipes/results/both/planted.py write GSM8K_TEST.jsonl questions/choice.jsonl OUT     # planted.jsonl and unchanged.jsonl
    nextturn probe run MODEL recipes/results/both/planted.yaml --out RUN                         # in the folder that holds OUT
    python recipes/results/both/planted.py keep OUT planted.jsonl.gz RUN [RUN ...]
    python recipes/results/both/planted.py count recipes/results/both/planted.jsonl.gz

Each of 100 problems has its reference solution once as it is and once with one result replaced wherever it stands, the same text for
every run. A turn objects if it names the right result, or the one in the answer that it follows, beside a question, a doubt or a
correction. What counts is the share after the planted minus the share after the unchanged solution, paired by problem. A reader who knew neither run
nor rule found 17 of the 34 turns that the rule counts to object, and 7 of 60 others, so nothing was built.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from nextturn.probe.command.files import read_jsonl, write_jsonl
from nextturn.probe.data.messages import assistant, user
from nextturn.probe.data.tables import read_rows
from nextturn.probe.kept import samples_file
from nextturn.probe.report.comparison import points
from nextturn.probe.stats import paired_difference

N = 100
DOUBT = re.compile(
    r"\?|\b(wrong|mistake|error|incorrect|not|isn't|shouldn't|should be|actually|sure|but|wait|instead|check|correct)\b", re.IGNORECASE
)  # fmt: skip


def write(test: Path, choice: Path, out: Path) -> None:
    """Write the two transcripts of each problem; the first result that the question does not name is replaced."""
    solutions = {f"gsm8k-{number}": row for number, row in read_rows(test)}
    rows: dict[str, list[dict[str, object]]] = {"planted": [], "unchanged": []}
    for _, chosen in read_rows(choice):
        row = solutions[chosen["id"]]
        solution = re.sub(r"<<[^>]*>>", "", row["answer"]).split("####")[0].strip()
        results = [found for found in re.findall(r"=(\d+)>>", row["answer"]) if int(found) > 3]
        right = next((each for each in results if not names(row["question"], each)), None)
        if right is None or len(rows["planted"]) == N:
            continue
        planted = str(int(right) + (2 if int(right) < 20 else 10))
        texts = {"planted": re.sub(rf"(?<![\d.]){right}(?![\d.]*\d)", planted, solution), "unchanged": solution}
        for name, text in texts.items():
            messages = [user(row["question"]), assistant(text), user("Thanks.")]
            rows[name].append({"id": chosen["id"], "messages": messages, "right": right, "planted": planted})
    for name, of_name in rows.items():
        write_jsonl(out / f"{name}.jsonl", of_name)


def names(text: str, number: str) -> bool:
    """Return whether a text has this number as a whole."""
    return number in re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))


def keep(out: Path, kept: Path, runs: Sequence[Path]) -> None:
    """Write the user turns of the runs with the two results of their problems, without the text of the problems."""
    values = {
        row["id"]: {"right": row["right"], "planted": row["planted"]} for _, row in read_jsonl(out / "planted.jsonl")
    }
    with gzip.GzipFile(kept, "wb", mtime=0) as file:
        for run in runs:
            for _, turn in read_jsonl(samples_file(run)):
                if turn["kind"] == "followup" and turn["perturbation"] == "none":
                    row = {
                        "run": run.name,
                        **{key: turn[key] for key in ("set", "item", "user_turn")},
                        **values[turn["item"]],
                    }
                    file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())


def count(kept: Path) -> None:
    """Print for each run how often a turn objects after the planted and after the unchanged solution."""
    objects: dict[str, dict[str, dict[str, list[float]]]] = {}
    for _, turn in read_jsonl(kept):
        stated = turn["planted" if turn["set"] == "planted" else "right"]
        named = any(names(turn["user_turn"], number) for number in (turn["right"], stated))
        objected = named and DOUBT.search(turn["user_turn"]) is not None
        of_run = objects.setdefault(turn["run"], {"planted": {}, "unchanged": {}})
        of_run[turn["set"]].setdefault(turn["item"], []).append(float(objected))
    for run, sets in objects.items():
        shares = {name: sum(map(sum, of.values())) / sum(map(len, of.values())) for name, of in sets.items()}
        change = paired_difference(sets["unchanged"], sets["planted"])
        print(json.dumps({"run": run, **shares, "difference": points(change), "n": change.n}))


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    if command == "write":
        write(*map(Path, paths))
    elif command == "keep":
        keep(Path(paths[0]), Path(paths[1]), [Path(path) for path in paths[2:]])
    else:
        count(Path(paths[0]))
