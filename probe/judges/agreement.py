"""`python -m probe agreement`: how far a judge agrees with human labels, as tables or as JSON.

Accuracy and Cohen's kappa, genuine or not and over all labels. Turns that the judge leaves unscored are counted by
reason and left out of the rest. Intervals resample whole conversations, because turns of one are judged alike.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe import stats
from probe.errors import BadInput, DataError
from probe.files import read_jsonl
from probe.judges import KNOWN_JUDGES, get_judge
from probe.judges.labels import GENUINE, LABELS, Case, Judge
from probe.settings import ServerSection
from probe.store import StoredJudge
from probe.terminal import collected


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m probe agreement`."""
    parser.add_argument("labels", type=Path, help='JSONL of {"messages", "user_turn", "label"}')
    parser.add_argument("--judge", default="rules", help=f"which judge: {', '.join(KNOWN_JUDGES)} (default rules)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    server = parser.add_argument_group("where the judges llm and cascade ask (any OpenAI-compatible server)")
    server.add_argument("--url", dest="urls", action="append", metavar="URL", help="such as http://localhost:8000/v1")
    server.add_argument("--model", metavar="NAME", help="as the server calls it (default: the one model it lists)")
    server.add_argument("--api-key-env", metavar="VARIABLE", help="which variable holds the key: OPENAI_API_KEY")
    server.add_argument("--concurrency", type=int, metavar="N", help="requests under way at once (default 16)")
    server.add_argument("--max-tokens", type=int, metavar="N", help="a reply's length, thinking too (default 1024)")
    parser.add_argument("--verdicts", type=Path, metavar="FILE", help="keeps verdicts, so that a killed run goes on")


def run(arguments: argparse.Namespace) -> None:
    """Prints how far `arguments.judge` agrees with the labels in `arguments.labels`."""
    rows = read_labelled(arguments.labels)
    judge = get_judge(arguments.judge, _server(arguments))
    asks = judge.name != "rules"
    if arguments.verdicts is None:
        found = agreement(rows, judge, progress=asks)
    else:
        stored = StoredJudge(judge, arguments.verdicts)
        try:
            found = agreement(rows, stored, progress=asks)
        finally:
            stored.close()
    print(json.dumps(found.as_json(), indent=2) if arguments.json else format_agreement(found))


def _server(arguments: argparse.Namespace) -> ServerSection | None:
    names = ("urls", "model", "api_key_env", "concurrency", "max_tokens")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if given and arguments.judge == "rules":
        raise BadInput("the judge rules asks no server: leave the server's options out, or add --judge llm or cascade")
    return ServerSection(**{**given, "urls": tuple(given["urls"])}) if "urls" in given else None


@dataclass(frozen=True)
class LabelledTurn:
    """A case, the label that people gave it, and which conversation it belongs to."""

    case: Case
    label: str
    conversation: str


def read_labelled(path: Path) -> list[LabelledTurn]:
    """Rows of {"messages", "user_turn", "label"} and optionally "cut"; other keys are ignored.

    A conversation is known by its first user message, so that several turns after one question stay together.

    Raises:
        DataError: file and line of what is missing or is no label.
    """
    rows = []
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
        before = tuple({"role": message["role"], "content": message["content"]} for message in messages)
        first = next((message["content"] for message in before if message["role"] == "user"), "")
        rows.append(LabelledTurn(Case(before, turn, bool(row.get("cut", False))), label, " ".join(first.split())))
    if not rows:
        raise DataError(f"{path}: no labelled turns, wanted one JSON object a line")
    return rows


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


@dataclass(frozen=True)
class Measure:
    """Cohen's kappa and accuracy over the scored turns; both None when no turn was scored."""

    kappa: stats.Estimate
    accuracy: stats.Estimate


@dataclass(frozen=True)
class LabelFigures:
    """One label: of the turns that the judge gave it, how many people did, too (precision), and the reverse (recall).

    `n` of each counts those turns; a value is None where there are none. `judged_as` is what the judge made of the
    turns that people gave the label.
    """

    precision: stats.Estimate
    recall: stats.Estimate
    judged_as: dict[str, int]


@dataclass(frozen=True)
class Agreement:
    """What `agreement` found. `labels` holds those that people or the judge used, unscored turns left out."""

    judge: str
    calls: int
    n: int
    n_scored: int
    unscored: dict[str, int]
    binary: Measure
    full: Measure
    labels: dict[str, LabelFigures]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""

        def figure(name: str, estimate: stats.Estimate, interval: str) -> dict[str, Any]:
            plain = estimate.as_json()
            return {name: plain["value"], interval: plain["ci95"]}

        def measure(one: Measure) -> dict[str, Any]:
            return {**figure("kappa", one.kappa, "ci95"), **figure("accuracy", one.accuracy, "accuracy_ci95")}

        return {
            "judge": self.judge,
            "judge_calls": self.calls,
            "n": self.n,
            "n_scored": self.n_scored,
            "unscored": self.unscored,
            "binary": measure(self.binary),
            "full": measure(self.full),
            "labels": {
                label: {
                    "human": of.recall.n,
                    "judge": of.precision.n,
                    **figure("precision", of.precision, "precision_ci95"),
                    **figure("recall", of.recall, "recall_ci95"),
                    "judged_as": of.judged_as,
                }
                for label, of in self.labels.items()
            },
        }


def agreement(rows: Sequence[LabelledTurn], judge: Judge, progress: bool = False) -> Agreement:
    """Judges every row and compares with its label; `progress` shows a bar on stderr."""
    stream = judge.stream([row.case for row in rows])
    verdicts = collected(stream, len(rows), f"judge {judge.name}", delay=0, unit="turn", disable=not progress)
    # (human label, judge's label, conversation) of the turns that were scored
    scored = [
        (row.label, verdict.label, row.conversation)
        for row, verdict in zip(rows, verdicts, strict=True)
        if verdict.label is not None
    ]
    used = {label for human, machine, _ in scored for label in (human, machine)}
    return Agreement(
        judge=judge.version,
        calls=judge.calls,
        n=len(rows),
        n_scored=len(scored),
        unscored=dict(Counter(verdict.unscored or "no reason given" for verdict in verdicts if verdict.label is None)),
        binary=_measure([(_binary(human), _binary(machine), where) for human, machine, where in scored]),
        full=_measure(scored),
        labels={
            label: LabelFigures(
                precision=_rate([(human == label, where) for human, machine, where in scored if machine == label]),
                recall=_rate([(machine == label, where) for human, machine, where in scored if human == label]),
                judged_as=dict(Counter(machine for human, machine, _ in scored if human == label)),
            )
            for label in LABELS
            if label in used
        },
    )


def _binary(label: str) -> str:
    return GENUINE if label == GENUINE else "other"


def _measure(scored: Sequence[tuple[str, str, str]]) -> Measure:
    human, machine, where = ([row[place] for row in scored] for place in range(3))
    return Measure(stats.kappa_ci(human, machine, where), _rate([(a == b, c) for a, b, c in scored]))


def _rate(right: Sequence[tuple[bool, str]]) -> stats.Estimate:
    return stats.clustered_rate([one for one, _ in right], [where for _, where in right])


def format_agreement(found: Agreement) -> str:
    """The figures, precision and recall of each label, and the confusion table as plain text."""

    def shown(estimate: stats.Estimate) -> str:
        if estimate.value is None:
            return "not defined"
        bounds = f" [{estimate.ci95[0]:.3f}, {estimate.ci95[1]:.3f}]" if estimate.ci95 else ""
        return f"{estimate.value:.3f}{bounds}"

    lines = [f"judge {found.judge}: {found.n} turns, {found.n_scored} scored, {found.calls} calls"]
    lines += [f"  unscored, {reason}: {count}" for reason, count in found.unscored.items()]
    for name, measure in (("genuine or not", found.binary), ("all labels", found.full)):
        lines.append(f"{name:15} kappa {shown(measure.kappa)}   accuracy {shown(measure.accuracy)}")
    width = max(map(len, LABELS))
    lines += ["", f"{'':{width}}  {'human':>5}  {'judge':>5}  {'precision':22}  {'recall':22}"]
    for label, of in found.labels.items():
        counts = f"{of.recall.n:>5}  {of.precision.n:>5}"
        lines.append(f"{label:{width}}  {counts}  {shown(of.precision):22}  {shown(of.recall):22}".rstrip())
    columns = [label for label, of in found.labels.items() if of.precision.n]
    lines += ["", "human label, by row, against the judge's:"]
    lines.append(" " * width + "".join(f"  {label[:12]:>12}" for label in columns))
    for label, of in found.labels.items():
        if of.judged_as:
            lines.append(f"{label:{width}}" + "".join(f"  {of.judged_as.get(column, 0):>12}" for column in columns))
    return "\n".join(lines)
