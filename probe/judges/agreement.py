"""`python -m probe agreement`: how far a judge agrees with human labels, as tables or as JSON."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe import stats
from probe.errors import BadInput, DataError
from probe.files import read_jsonl
from probe.judges import KNOWN_JUDGES, get_judge
from probe.judges.labels import GENUINE, LABELS, Case, Judge, Verdict
from probe.settings import ServerSection
from probe.store import StoredJudge
from probe.terminal import collected

# --- Reads user turns that people have labelled.


@dataclass(frozen=True)
class LabelledTurn:
    """A case, the label that people gave it, and which conversation it belongs to."""

    case: Case
    label: str
    conversation: str


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


# --- How far a judge agrees with human labels: accuracy and Cohen's kappa, genuine or not and over all labels.
#
# Turns that the judge leaves unscored are counted by reason and left out of the rest. Intervals resample whole
# conversations, because turns of one conversation are judged alike.


@dataclass(frozen=True)
class Measure:
    """Cohen's kappa and accuracy over the scored turns; both None when no turn was scored."""

    kappa: stats.Estimate
    accuracy: stats.Estimate

    def as_json(self) -> dict[str, Any]:
        return {**_figure("kappa", self.kappa, "ci95"), **_figure("accuracy", self.accuracy)}


@dataclass(frozen=True)
class LabelFigures:
    """One label: of the turns that the judge gave it, how many people did, too (precision), and the reverse (recall).

    `n` of each counts those turns; a value is None where there are none.
    """

    precision: stats.Estimate
    recall: stats.Estimate
    judged_as: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        return {
            "human": self.recall.n,
            "judge": self.precision.n,
            **_figure("precision", self.precision),
            **_figure("recall", self.recall),
            "judged_as": self.judged_as,
        }


@dataclass(frozen=True)
class Agreement:
    """What `agreement` found. `labels` holds those that people or the judge used, unscored turns left out."""

    judge: str
    calls: int
    n: int
    unscored: dict[str, int]
    binary: Measure
    full: Measure
    labels: dict[str, LabelFigures]

    @property
    def n_scored(self) -> int:
        return self.n - sum(self.unscored.values())

    @property
    def confusion(self) -> dict[str, dict[str, int]]:
        """Human label -> judge's label -> turns."""
        return {label: figures.judged_as for label, figures in self.labels.items() if figures.judged_as}

    def as_json(self) -> dict[str, Any]:
        return {
            "judge": self.judge,
            "judge_calls": self.calls,
            "n": self.n,
            "n_scored": self.n_scored,
            "unscored": self.unscored,
            "binary": self.binary.as_json(),
            "full": self.full.as_json(),
            "labels": {label: figures.as_json() for label, figures in self.labels.items()},
        }


def agreement(rows: Sequence[LabelledTurn], judge: Judge, progress: bool = False) -> Agreement:
    """Judges every row and compares with its label; `progress` shows a bar on stderr."""
    verdicts = _judged(rows, judge, progress)
    scored = [(row, verdict.label) for row, verdict in zip(rows, verdicts, strict=True) if verdict.label is not None]
    human, machine = [row.label for row, _ in scored], [label for _, label in scored]
    conversations = [row.conversation for row, _ in scored]
    return Agreement(
        judge=judge.version,
        calls=judge.calls,
        n=len(rows),
        unscored=dict(Counter(verdict.unscored or "no reason given" for verdict in verdicts if verdict.label is None)),
        binary=_measure([_genuine(label) for label in human], [_genuine(label) for label in machine], conversations),
        full=_measure(human, machine, conversations),
        labels={label: _of_label(label, scored) for label in LABELS if label in human or label in machine},
    )


def _judged(rows: Sequence[LabelledTurn], judge: Judge, progress: bool) -> list[Verdict]:
    stream = judge.stream([row.case for row in rows])
    return collected(stream, len(rows), f"judge {judge.name}", delay=0, unit="turn", disable=not progress)


def _genuine(label: str) -> str:
    return GENUINE if label == GENUINE else "other"


def _measure(human: Sequence[str], machine: Sequence[str], conversations: Sequence[str]) -> Measure:
    right = [a == b for a, b in zip(human, machine, strict=True)]
    return Measure(stats.kappa_ci(human, machine, conversations), stats.clustered_rate(right, conversations))


def _of_label(label: str, scored: Sequence[tuple[LabelledTurn, str]]) -> LabelFigures:
    given = [(row.label == label, row.conversation) for row, judged in scored if judged == label]
    meant = [(judged == label, row.conversation) for row, judged in scored if row.label == label]
    return LabelFigures(
        precision=stats.clustered_rate([right for right, _ in given], [conversation for _, conversation in given]),
        recall=stats.clustered_rate([right for right, _ in meant], [conversation for _, conversation in meant]),
        judged_as=dict(Counter(judged for row, judged in scored if row.label == label)),
    )


def _figure(name: str, estimate: stats.Estimate, interval: str | None = None) -> dict[str, Any]:
    plain = estimate.as_json()
    return {name: plain["value"], interval or f"{name}_ci95": plain["ci95"]}


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


def format_agreement(found: Agreement) -> str:
    """The figures, precision and recall of each label, and the confusion table as plain text."""
    lines = [f"judge {found.judge}: {found.n} turns, {found.n_scored} scored, {found.calls} calls"]
    lines += [f"  unscored, {reason}: {count}" for reason, count in found.unscored.items()]
    for name, measure in (("genuine or not", found.binary), ("all labels", found.full)):
        lines.append(f"{name:15} kappa {_shown(measure.kappa)}   accuracy {_shown(measure.accuracy)}")
    width = max(map(len, LABELS))
    lines += ["", f"{'':{width}}  {'human':>5}  {'judge':>5}  {'precision':22}  {'recall':22}"]
    for label, of in found.labels.items():
        counts = f"{of.recall.n:>5}  {of.precision.n:>5}"
        lines.append(f"{label:{width}}  {counts}  {_shown(of.precision):22}  {_shown(of.recall):22}".rstrip())
    columns = [label for label, figures in found.labels.items() if figures.precision.n]
    lines += ["", "human label, by row, against the judge's:"]
    lines.append(" " * width + "".join(f"  {label[:12]:>12}" for label in columns))
    for label, row in found.confusion.items():
        lines.append(f"{label:{width}}" + "".join(f"  {row.get(column, 0):>12}" for column in columns))
    return "\n".join(lines)


def _server(arguments: argparse.Namespace) -> ServerSection | None:
    given = {
        name: getattr(arguments, name)
        for name in ("urls", "model", "api_key_env", "concurrency", "max_tokens")
        if getattr(arguments, name) is not None
    }
    if given and arguments.judge == "rules":
        raise BadInput("the judge rules asks no server: leave the server's options out, or add --judge llm or cascade")
    if "urls" not in given:
        return None
    return ServerSection(**{**given, "urls": tuple(given["urls"])})


def _shown(estimate: stats.Estimate) -> str:
    if estimate.value is None:
        return "not defined"
    bounds = f" [{estimate.ci95[0]:.3f}, {estimate.ci95[1]:.3f}]" if estimate.ci95 else ""
    return f"{estimate.value:.3f}{bounds}"
