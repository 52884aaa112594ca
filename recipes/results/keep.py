"""Write a finished probe run as a repository keeps it: without the text of questions that must not be published.

    python recipes/results/keep.py runs/sft/probe/step-80 --out kept/sft --questions test.jsonl --labels labels.jsonl

The directory gets manifest.json, samples.jsonl.gz, labels.jsonl.gz (the labels of this run) and results.json; `probe/kept.py`
describes the rows. All user messages have to be found in the question sets, or nothing is written. Sets of this package keep their
text. What the model wrote is kept as it is, also where it repeats a question.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import BadInput, run_command
from nextturn.probe.command.files import read_json, read_jsonl, sha256_text, write_atomic
from nextturn.probe.command.terminal import say
from nextturn.probe.kept import ANSWER, Piece, pieces_in, turn_hash
from nextturn.probe.questions.sets import PACKAGED

Row = dict[str, Any]
Known = Mapping[str, Sequence[Piece]]
"""The pieces of each id, the longest first."""


def keep(
    run: Path, out: Path, questions: Sequence[str], labels: Sequence[Path] = (), others: Sequence[Path] = ()
) -> list[Path]:
    """Write the finished run to `out` and return the files, results.json last.

    Args:
        questions: The question sets whose text is left out: files, or names of known sets.
        labels: Files of labels, of which those of this run's model are kept together as labels.jsonl.gz; else labels.jsonl in
            `run`, if there is one.
        others: Files of further labels, such as a second annotator's, which keep their names. No command reads them unasked.

    Raises:
        BadInput: A user message is in none of the question sets, a turn has two labels, or the run has a transcript set, whose
            answers are the set's.
        DataError: There is no finished run, or a file is broken.
    """
    model = read_json(run / "results.json")["model"]
    known: dict[str, list[Piece]] = defaultdict(list)
    for piece in sorted((piece for name in questions for piece in pieces_in(name)), key=lambda piece: -len(piece.text)):
        known[piece.id].append(piece)
    samples = list[Row]()
    for number, row in read_jsonl(run / "samples.jsonl"):
        if row["kind"] == "followup":
            row["turn_sha256"] = turn_hash(row["messages"], row["user_turn"] or "")
        samples.append(hidden(row, known, f"{run / 'samples.jsonl'}:{number}"))
    whole = [piece.text for of_id in known.values() for piece in of_id if piece.name == ""]
    made = [
        f"{row['messages'][-1]['content']}\n{row['user_turn'] or ''}" for row in samples if row["set"] not in PACKAGED
    ]
    repeats = sum(any(question in text for question in whole) for text in made)
    say(f"{repeats} of {len(made)} rows hold a text of the model that repeats a whole question; such text is kept")
    written = {"samples.jsonl.gz": samples}
    own = [path for path in (run / "labels.jsonl",) if path.is_file()]
    for path in (*(labels or own), *others):
        labelled = written.setdefault(f"{path.name if path in others else 'labels.jsonl'}.gz", [])
        for number, row in read_jsonl(path):
            if (row["weights_sha256"] or row["model"]) == (model["weights_sha256"] or model["path"]):
                if any(turn_of(row) == turn_of(other) for other in labelled):
                    raise BadInput(
                        f"{path}:{number}: a second label of a turn; give a second annotator's file with --other-labels"
                    )
                labelled.append(hidden(row, known, f"{path}:{number}"))
    written = {name: rows for name, rows in written.items() if rows}
    contents = {
        name: gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode(), mtime=0)
        for name, rows in written.items()
    }
    unchanged = [name for name in ("manifest.json", "results.json") if (run / name).is_file()]
    for name, content in [*contents.items(), *((name, (run / name).read_bytes()) for name in unchanged)]:
        write_atomic(out / name, content)
    return [out / name for name in (*contents, *unchanged)]


def hidden(row: Row, known: Known, where: str) -> Row:
    """Return a row of samples or labels with references in place of all that is the question's."""
    if row["set"] in PACKAGED:
        return row
    if row.get("kind") == "actual":
        raise BadInput(f"{where}: {row['set']} is a transcript set, whose answers and user turns are the set's own")
    pieces = known.get(str(row["item"]), ())
    *before, reply = row["messages"]
    doubt = len(before) - 1 if row.get("kind") == "doubted" else None  # "I got 12. Are you sure?"
    messages = []
    for place, message in enumerate(before):
        role, content = message["role"], message["content"]
        if place == doubt:
            found = next((piece for piece in pieces if piece.name == ANSWER and piece.text in content), None)
        else:  # nothing but an instruction of the recipe may stand around the question
            found = next((piece for piece in pieces if f"{content}\n\n".startswith(f"{piece.text}\n\n")), None)
        if found:
            first, _, last = content.partition(found.text)
            message = {"role": role, **reference(found, first, last)}
        elif role == "user" and place != doubt:
            raise BadInput(
                f"{where}: the text of {row['set']}/{row['item']} is in none of the question sets; give its set with --questions"
            )
        messages.append(message)
    answer = next((piece for piece in pieces if (piece.name, piece.text) == (ANSWER, row.get("reference"))), None)
    cluster = row.get("cluster") or ""  # a measure of one's own may have named it by the question's text
    if any(piece.name != ANSWER and piece.text in cluster for piece in pieces):
        row = {**row, "cluster": sha256_text(cluster)}
    return {**row, "messages": [*messages, reply], **({"reference": reference(answer)} if answer else {})}


def turn_of(label: Row) -> tuple[Any, ...]:
    """Return which turn of the run a label is for; a turn that was shown again has a second label."""
    return tuple(label.get(key) for key in ("set", "item", "temperature", "sample", "turn_sha256", "repeat"))


def reference(piece: Piece, before: str = "", after: str = "") -> dict[str, str]:
    """Return what stands for a piece in a kept row."""
    return {"question": piece.id, "piece": piece.name, "before": before, "after": after, "sha256": piece.sha256}


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="DIR", help="a finished probe run")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the kept run is written")
    parser.add_argument(
        "--questions",
        action="append",
        default=[],
        metavar="FILE",
        help="a question set, a file or a known name; can be repeated",
    )
    parser.add_argument(
        "--labels", action="append", default=[], type=Path, metavar="FILE", help="a file of labels; can be repeated"
    )
    more = "labels that are kept under their own name, such as a second annotator's; can be repeated"
    parser.add_argument("--other-labels", action="append", default=[], type=Path, metavar="FILE", help=more)
    arguments = parser.parse_args(argv)
    for path in keep(arguments.run, arguments.out, arguments.questions, arguments.labels, arguments.other_labels):
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    raise SystemExit(run_command(main))
