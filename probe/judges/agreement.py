"""`python -m probe agreement`: how far a judge agrees with human labels, as tables or as JSON.

Accuracy and Cohen's kappa, genuine or not and over all labels, and the bias of the rate, which kappa hides: a judge
that errs as often either way leaves a rate alone, and one that errs one way bends it. `--by` shows them for groups of
rows. Turns that the judge leaves unscored are counted by reason and left out of the rest. Intervals resample whole
conversations, because turns of one are judged alike.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe import stats
from probe.errors import BadInput, DataError
from probe.files import read_jsonl
from probe.judges import KNOWN_JUDGES, get_judge
from probe.judges.labels import GENUINE, LABELS, Case, Judge
from probe.settings import ServerSection
from probe.store import StoredJudge
from probe.terminal import collected, visible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m probe agreement`."""
    parser.add_argument("labels", type=Path, help='JSONL of {"messages", "user_turn", "label"}')
    parser.add_argument("--judge", default="rules", help=f"which judge: {', '.join(KNOWN_JUDGES)} (default rules)")
    parser.add_argument(
        "--by",
        action="append",
        default=[],
        metavar="FIELDS",
        help="a table with a row per group: fields of the rows, such as model,source,temperature; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    server = parser.add_argument_group("where the judges llm and cascade ask (any OpenAI-compatible server)")
    server.add_argument("--url", dest="urls", action="append", metavar="URL", help="such as http://localhost:8000/v1")
    server.add_argument("--model", metavar="NAME", help="as the server calls it (default: the one model it lists)")
    server.add_argument("--api-key-env", metavar="VARIABLE", help="which variable holds the key: OPENAI_API_KEY")
    server.add_argument("--concurrency", type=int, metavar="N", help="requests under way at once (default 16)")
    server.add_argument("--max-tokens", type=int, metavar="N", help="a reply's length, thinking too (default 1024)")
    server.add_argument(
        "--verdict", choices=("text", "probability"), help="a reason and a label (default), or one token"
    )
    server.add_argument("--confidence", type=float, metavar="P", help="less sure verdicts by probability are unscored")
    parser.add_argument("--verdicts", type=Path, metavar="FILE", help="keeps verdicts, so that a killed run goes on")


def run(arguments: argparse.Namespace) -> None:
    """Prints how far `arguments.judge` agrees with the labels in `arguments.labels`."""
    rows = read_labelled(arguments.labels)
    groupings = [tuple(name.strip() for name in fields.split(",")) for fields in arguments.by]
    for name in dict.fromkeys(name for fields in groupings for name in fields):
        if not any(name in row.fields for row in rows):
            known = ", ".join(sorted({field for row in rows for field in row.fields})) or "none"
            raise BadInput(f"--by {name}: no row of {arguments.labels} has that field; fields to group by: {known}")
    judge = get_judge(arguments.judge, _server(arguments))
    asks = judge.name != "rules"
    if arguments.verdicts is None:
        found = agreement(rows, judge, progress=asks, by=groupings)
    else:
        stored = StoredJudge(judge, arguments.verdicts)
        try:
            found = agreement(rows, stored, progress=asks, by=groupings)
        finally:
            stored.close()
    print(json.dumps(found.as_json(), indent=2) if arguments.json else format_agreement(found))
    if not arguments.json and any("p" in row.fields for row in rows):
        print(f"\n{DRAWN}")


DRAWN = (
    "These rows were drawn by `probe label` with unequal chances, more of what the judge calls genuine: the rates and the "
    "bias are those of the rows, and `probe correct` gives those of the runs."
)


def _server(arguments: argparse.Namespace) -> ServerSection | None:
    names = ("urls", "model", "api_key_env", "concurrency", "max_tokens", "verdict", "confidence")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if given and arguments.judge == "rules":
        raise BadInput("the judge rules asks no server: leave the server's options out, or add --judge llm or cascade")
    return ServerSection(**{**given, "urls": tuple(given["urls"])}) if "urls" in given else None


@dataclass(frozen=True)
class LabelledTurn:
    """A case, the label that people gave it, and which conversation it belongs to.

    `fields` is what else its row says in plain values (model, source, temperature), to be grouped by.
    """

    case: Case
    label: str
    conversation: str
    fields: Mapping[str, str | float | bool] = field(default_factory=dict)


def read_labelled(path: Path) -> list[LabelledTurn]:
    """Rows of {"messages", "user_turn", "label"} and optionally "cut"; other keys with plain values can be grouped by.

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
        others = {name: value for name, value in row.items() if name not in ("id", "user_turn")}
        plain = {name: value for name, value in others.items() if isinstance(value, str | int | float)}
        case = Case(before, turn, bool(row.get("cut", False)))
        rows.append(LabelledTurn(case, label, " ".join(first.split()), plain))
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
class Group:
    """The rows that share the values `of` some fields: genuine or not, over the scored ones.

    `read` and `judged` are the rates by the reader and by the judge, `bias` is judged minus read.
    """

    of: dict[str, str | float | bool | None]
    n: int
    kappa: stats.Estimate
    read: stats.Estimate
    judged: stats.Estimate
    bias: stats.Estimate


@dataclass(frozen=True)
class Agreement:
    """What `agreement` found. `labels` holds those that people or the judge used, unscored turns left out.

    `groups` begins with all rows together; then those of each grouping that was asked for.
    """

    judge: str
    calls: int
    n: int
    n_scored: int
    unscored: dict[str, int]
    binary: Measure
    full: Measure
    labels: dict[str, LabelFigures]
    groups: list[Group]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints; "groups" only where some were asked for."""

        def figure(name: str, estimate: stats.Estimate, interval: str) -> dict[str, Any]:
            plain = estimate.as_json()
            return {name: plain["value"], interval: plain["ci95"]}

        def group(one: Group) -> dict[str, Any]:
            found = {"by": one.of, "n": one.n, "n_scored": one.read.n, **figure("kappa", one.kappa, "ci95")}
            for name in ("read", "judged", "bias"):
                found |= figure(name, getattr(one, name), f"{name}_ci95")
            return found

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
            **({"groups": [group(one) for one in self.groups]} if len(self.groups) > 1 else {}),
        }


def agreement(
    rows: Sequence[LabelledTurn], judge: Judge, progress: bool = False, by: Sequence[Sequence[str]] = ()
) -> Agreement:
    """Judges every row and compares with its label.

    Args:
        progress: shows a bar on stderr.
        by: groupings, each of one or more fields of the rows.
    """
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
        groups=[
            _group(dict(zip(names, values, strict=True)), members)
            for names in ((), *by)
            for values, members in _grouped(rows, [verdict.label for verdict in verdicts], names)
        ],
    )


def _grouped(
    rows: Sequence[LabelledTurn], machine: Sequence[str | None], names: Sequence[str]
) -> list[tuple[tuple[Any, ...], list[tuple[LabelledTurn, str | None]]]]:
    """Rows beside the judge's labels by the values of the named fields, in the order of these; None where one lacks it."""
    found: dict[tuple[Any, ...], list[tuple[LabelledTurn, str | None]]] = defaultdict(list)
    for row, label in zip(rows, machine, strict=True):
        found[tuple(row.fields.get(name) for name in names)].append((row, label))
    return sorted(found.items(), key=lambda one: [(isinstance(value, str), value is None, value) for value in one[0]])


def _group(of: dict[str, Any], members: Sequence[tuple[LabelledTurn, str | None]]) -> Group:
    scored = [(row.label, label, row.conversation) for row, label in members if label is not None]
    human, machine = ([row[place] == GENUINE for row in scored] for place in (0, 1))
    where = [conversation for _, _, conversation in scored]
    return Group(
        of=of,
        n=len(members),
        kappa=stats.kappa_ci([str(one) for one in human], [str(one) for one in machine], where),
        read=stats.clustered_rate(human, where),
        judged=stats.clustered_rate(machine, where),
        bias=stats.bias(machine, human, where),
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
    whole, *groups = found.groups
    points = f"{_percent(whole.read)} read, {_percent(whole.judged)} judged, bias {_percent(whole.bias, '+')} points"
    lines.append(f"{'genuine rate':15} {points}" if whole.read.n else "genuine rate    not defined")
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
    for fields in dict.fromkeys(tuple(group.of) for group in groups):
        lines += ["", *_group_table([group for group in groups if tuple(group.of) == fields])]
    return "\n".join(lines)


def _group_table(groups: Sequence[Group]) -> list[str]:
    """One grouping: a row per group, rates in percent, bias in points (judged minus read)."""
    rows = [[*groups[0].of, "n", "kappa", "read", "judged", "bias [95%]"]]
    for one in groups:
        kappa = "-" if one.kappa.value is None else f"{one.kappa.value:z.2f}"
        if one.kappa.value is not None and one.kappa.ci95:
            kappa += " [{:z.2f}, {:z.2f}]".format(*one.kappa.ci95)
        shares = [_percent(stats.Estimate(rate.value, None, rate.n)) for rate in (one.read, one.judged)]
        of = ["-" if value is None else " ".join(visible(str(value)).split()) for value in one.of.values()]
        rows.append([*of, str(one.read.n), kappa, *shares, _percent(one.bias, "+")])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _percent(estimate: stats.Estimate, sign: str = "") -> str:
    """57.0 [47.2, 66.3]"""
    if estimate.value is None:
        return "-"
    interval = (
        "" if estimate.ci95 is None else " [{:{s}.1f}, {:{s}.1f}]".format(*(100 * b for b in estimate.ci95), s=sign)
    )
    return f"{100 * estimate.value:{sign}.1f}{interval}"
