"""How far a judge agrees with human labels: accuracy and Cohen's kappa, genuine or not and over all labels.

Turns that the judge leaves unscored are counted by reason and left out of the rest. Intervals resample whole
conversations, because turns of one conversation are judged alike.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe import stats
from probe.errors import DataError
from probe.files import read_jsonl
from probe.judges import KNOWN_JUDGES, get_judge
from probe.judges.labels import GENUINE, LABELS, Case, Judge, judge_all


@dataclass(frozen=True)
class LabelledTurn:
    """A case, the label that people gave it, and which conversation it belongs to."""

    case: Case
    label: str
    conversation: str


@dataclass(frozen=True)
class Measure:
    """Cohen's kappa and accuracy over the scored turns; both None when no turn was scored."""

    kappa: stats.Estimate
    accuracy: stats.Estimate

    def as_json(self) -> dict[str, Any]:
        kappa, accuracy = self.kappa.as_json(), self.accuracy.as_json()
        return {
            "kappa": kappa["value"],
            "ci95": kappa["ci95"],
            "accuracy": accuracy["value"],
            "accuracy_ci95": accuracy["ci95"],
        }


@dataclass(frozen=True)
class Agreement:
    """What `agreement` found. `confusion` is human label -> judge's label -> turns, unscored ones left out."""

    judge: str
    n: int
    unscored: dict[str, int]
    binary: Measure
    full: Measure
    confusion: dict[str, dict[str, int]]

    def as_json(self) -> dict[str, Any]:
        return {
            "judge": self.judge,
            "n": self.n,
            "n_scored": self.n - sum(self.unscored.values()),
            "unscored": self.unscored,
            "binary": self.binary.as_json(),
            "full": self.full.as_json(),
            "labels": {label: {**_per_label(self.confusion, label)} for label in LABELS if self._occurs(label)},
        }

    def _occurs(self, label: str) -> bool:
        return label in self.confusion or any(label in row for row in self.confusion.values())


def agreement(rows: Sequence[LabelledTurn], judge: Judge) -> Agreement:
    """Judges every row and compares with its label."""
    verdicts = judge_all(judge, [row.case for row in rows])
    scored = [(row, verdict.label) for row, verdict in zip(rows, verdicts, strict=True) if verdict.label is not None]
    confusion: dict[str, Counter[str]] = {}
    for row, label in scored:
        confusion.setdefault(row.label, Counter())[label] += 1
    human, machine = [row.label for row, _ in scored], [label for _, label in scored]
    conversations = [row.conversation for row, _ in scored]
    return Agreement(
        judge=judge.version,
        n=len(rows),
        unscored=dict(Counter(verdict.unscored or "no reason given" for verdict in verdicts if verdict.label is None)),
        binary=_measure([_genuine(label) for label in human], [_genuine(label) for label in machine], conversations),
        full=_measure(human, machine, conversations),
        confusion={label: dict(confusion[label]) for label in LABELS if label in confusion},
    )


def read_labelled(path: Path) -> list[LabelledTurn]:
    """Rows of {"messages", "user_turn", "label"} and optionally "cut"; others are ignored.

    A conversation is known by its first user message, so that several turns after one question stay together.

    Raises:
        DataError: file and line of what is missing or is no label.
    """
    rows = list(_labelled(path))
    if not rows:
        raise DataError(f"{path}: no labelled turns, wanted one JSON object a line")
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m probe agreement`."""
    parser.add_argument("labels", type=Path, help='JSONL of {"messages", "user_turn", "label"}')
    parser.add_argument("--judge", default="rules", help=f"which judge: {', '.join(KNOWN_JUDGES)} (default rules)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def run(arguments: argparse.Namespace) -> None:
    """Prints how far `arguments.judge` agrees with the labels in `arguments.labels`."""
    found = agreement(read_labelled(arguments.labels), get_judge(arguments.judge))
    print(json.dumps(found.as_json(), indent=2) if arguments.json else format_agreement(found))


def format_agreement(found: Agreement) -> str:
    """The figures and the confusion table as plain text."""
    lines = [f"judge {found.judge}: {found.n} turns, {found.n - sum(found.unscored.values())} scored"]
    lines += [f"  unscored, {reason}: {count}" for reason, count in found.unscored.items()]
    for name, measure in (("genuine or not", found.binary), ("all labels", found.full)):
        lines.append(f"{name:15} kappa {_shown(measure.kappa)}   accuracy {_shown(measure.accuracy)}")
    columns = [label for label in LABELS if any(label in row for row in found.confusion.values())]
    width = max(map(len, LABELS))
    lines += ["", "human label, by row, against the judge's:"]
    lines.append(" " * width + "".join(f"  {label[:12]:>12}" for label in columns))
    for label, row in found.confusion.items():
        lines.append(f"{label:{width}}" + "".join(f"  {row.get(column, 0):>12}" for column in columns))
    return "\n".join(lines)


def _labelled(path: Path) -> Iterator[LabelledTurn]:
    for number, row in read_jsonl(path):
        where = f"{path}:{number}"
        messages, turn, label = row.get("messages"), row.get("user_turn"), row.get("label")
        if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
            raise DataError(f'{where}: "messages" wants a list of {{"role", "content"}}')
        if messages[-1]["role"] != "assistant":
            raise DataError(f'{where}: "messages" ends with {messages[-1]["role"]!r}, wanted the assistant')
        if not isinstance(turn, str):
            raise DataError(f'{where}: "user_turn" is {type(turn).__name__}, wanted text')
        if label not in LABELS:
            raise DataError(f"{where}: label {label!r}, wanted one of {', '.join(LABELS)}")
        spoken = tuple({"role": message["role"], "content": message["content"]} for message in messages)
        first = next((message["content"] for message in spoken if message["role"] == "user"), "")
        yield LabelledTurn(Case(spoken, turn, bool(row.get("cut", False))), label, " ".join(first.split()))


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _genuine(label: str) -> str:
    return GENUINE if label == GENUINE else "other"


def _measure(human: Sequence[str], machine: Sequence[str], conversations: Sequence[str]) -> Measure:
    right = [a == b for a, b in zip(human, machine, strict=True)]
    return Measure(stats.kappa_ci(human, machine, conversations), stats.clustered_rate(right, conversations))


def _per_label(confusion: dict[str, dict[str, int]], label: str) -> dict[str, Any]:
    row = confusion.get(label, {})
    judged = sum(other.get(label, 0) for other in confusion.values())
    right, human = row.get(label, 0), sum(row.values())
    return {
        "human": human,
        "judge": judged,
        "both": right,
        "precision": right / judged if judged else None,
        "recall": right / human if human else None,
        "judged_as": row,
    }


def _shown(estimate: stats.Estimate) -> str:
    if estimate.value is None:
        return "not defined"
    bounds = f" [{estimate.ci95[0]:.3f}, {estimate.ci95[1]:.3f}]" if estimate.ci95 else ""
    return f"{estimate.value:.3f}{bounds}"
