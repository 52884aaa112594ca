"""`nextturn probe agreement`: how far a judge agrees with human labels, as tables or as JSON.

Accuracy and Cohen's kappa, genuine or not and over all labels, and the bias of the rate, which kappa hides: a judge
that errs as often either way leaves a rate alone, and one that errs one way bends it. `--by` shows them for groups of
rows. Turns that the judge leaves unscored are counted by reason and left out of the rest. Intervals resample whole
conversations, because turns of one are judged alike.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nextturn.probe import stats
from nextturn.probe.errors import BadInput, DataError
from nextturn.probe.files import read_jsonl
from nextturn.probe.judges import get_judge
from nextturn.probe.judges.labels import GENUINE, LABELS, Case, Judge
from nextturn.probe.measure.store import StoredJudge
from nextturn.probe.settings import ServerSection
from nextturn.probe.terminal import aligned, collected, visible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `nextturn probe agreement`."""
    parser.add_argument("labels", type=Path, help='JSONL of {"messages", "user_turn", "label"}')
    parser.add_argument("--judge", default="rules", help="which judge: rules, llm (default rules)")
    parser.add_argument(
        "--by",
        action="append",
        default=[],
        metavar="FIELDS",
        help="a table with a row per group: fields of the rows, such as model,source,temperature; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    server = parser.add_argument_group("where the judge llm asks (any OpenAI-compatible server)")
    server.add_argument("--url", dest="urls", action="append", metavar="URL", help="such as http://localhost:8000/v1")
    server.add_argument("--model", metavar="NAME", help="as the server calls it (default: the one model it lists)")
    server.add_argument("--api-key-env", metavar="VARIABLE", help="which variable holds the key: OPENAI_API_KEY")
    server.add_argument("--concurrency", type=int, metavar="N", help="requests under way at once (default 16)")
    server.add_argument("--max-tokens", type=int, metavar="N", help="a reply's length, thinking too (default 1024)")
    server.add_argument(
        "--verdict", choices=("text", "probability"), help="a reason and a label (default), or one token"
    )
    server.add_argument(
        "--enable-thinking", action=argparse.BooleanOptionalAction, help="set this in the server's chat template"
    )
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
    if arguments.json:
        shown = {key: value for key, value in found.items() if key != "groups" or groupings}
        print(json.dumps(shown, indent=2))
        return
    print(format_agreement(found))
    if any("p" in row.fields for row in rows):
        print(f"\n{DRAWN}")


DRAWN = (
    "These rows were drawn by `probe label` with unequal chances, more of what the judge calls genuine: the rates and the "
    "bias are those of the rows, and `probe correct` gives those of the runs."
)


def _server(arguments: argparse.Namespace) -> ServerSection | None:
    names = ("urls", "model", "api_key_env", "concurrency", "max_tokens", "verdict", "enable_thinking")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if given and arguments.judge == "rules":
        raise BadInput("the judge rules asks no server: leave the server's options out, or add --judge llm")
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


Labelled = tuple[str, str | None, LabelledTurn]
"""The label that people gave, the judge's or None, and the turn."""


def agreement(
    rows: Sequence[LabelledTurn], judge: Judge, progress: bool = False, by: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """Judges every row and compares with its label; gives what `--json` prints, intervals as [low, high].

    "binary" (genuine or not) and "full" have kappa and accuracy over the scored turns; "labels", for each that people or
    the judge used, how many of the turns that the judge gave it people did, too (precision), and the reverse (recall);
    "groups" begins with all rows together, genuine or not. What cannot be known is None.

    Args:
        progress: shows a bar on stderr.
        by: groupings, each of one or more fields of the rows.
    """
    stream = judge.stream([row.case for row in rows])
    verdicts = collected(stream, len(rows), f"judge {judge.name}", delay=0, unit="turn", disable=not progress)
    judged: list[Labelled] = [(row.label, verdict.label, row) for row, verdict in zip(rows, verdicts, strict=True)]
    scored = [(human, machine, row.conversation) for human, machine, row in judged if machine is not None]
    labels = {}
    for label in LABELS:
        given = [(human == label, where) for human, machine, where in scored if machine == label]
        meant = [(machine == label, where) for human, machine, where in scored if human == label]
        if given or meant:
            labels[label] = {
                "human": len(meant),
                "judge": len(given),
                **_figure("precision", _rate(given)),
                **_figure("recall", _rate(meant)),
                "judged_as": dict(Counter(machine for human, machine, _ in scored if human == label)),
            }
    return {
        "judge": judge.version,
        "judge_calls": judge.calls,
        "n": len(rows),
        "n_scored": len(scored),
        "unscored": dict(
            Counter(verdict.unscored or "no reason given" for verdict in verdicts if verdict.label is None)
        ),
        "binary": _measure([(_binary(human), _binary(machine), where) for human, machine, where in scored]),
        "full": _measure(scored),
        "labels": labels,
        "groups": [group for names in ((), *by) for group in _groups(judged, names)],
    }


def _groups(judged: Sequence[Labelled], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Genuine or not among the rows that share the values of some fields (None where one lacks it), in their order: the
    rates by the reader and by the judge, and the bias, judged minus read."""
    found: dict[tuple[Any, ...], list[Labelled]] = defaultdict(list)
    for one in judged:
        found[tuple(one[2].fields.get(name) for name in names)].append(one)
    for values in sorted(found, key=lambda of: [(isinstance(value, str), value is None, value) for value in of]):
        scored = [(human, label, row.conversation) for human, label, row in found[values] if label is not None]
        human, machine = ([row[place] == GENUINE for row in scored] for place in (0, 1))
        where = [conversation for _, _, conversation in scored]
        yield {
            "by": dict(zip(names, values, strict=True)),
            "n": len(found[values]),
            "n_scored": len(scored),
            **_figure(
                "kappa", stats.kappa_ci([str(one) for one in human], [str(one) for one in machine], where), "ci95"
            ),
            **_figure("read", stats.clustered_rate(human, where)),
            **_figure("judged", stats.clustered_rate(machine, where)),
            **_figure("bias", stats.bias(machine, human, where)),
        }


def _measure(scored: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    human, machine, where = ([row[place] for row in scored] for place in range(3))
    right = _rate([(a == b, c) for a, b, c in scored])
    return {**_figure("kappa", stats.kappa_ci(human, machine, where), "ci95"), **_figure("accuracy", right)}


def _binary(label: str) -> str:
    return GENUINE if label == GENUINE else "other"


def _rate(right: Sequence[tuple[bool, str]]) -> stats.Estimate:
    return stats.clustered_rate([one for one, _ in right], [where for _, where in right])


def _figure(name: str, estimate: stats.Estimate, interval: str = "") -> dict[str, Any]:
    plain = estimate.as_json()
    return {name: plain["value"], interval or f"{name}_ci95": plain["ci95"]}


def format_agreement(found: Mapping[str, Any]) -> str:
    """The figures, precision and recall of each label, and the confusion table as plain text."""

    def shown(of: Mapping[str, Any], name: str, interval: str = "") -> str:
        return _told(of[name], of[interval or f"{name}_ci95"], ".3f", "not defined")

    lines = [f"judge {found['judge']}: {found['n']} turns, {found['n_scored']} scored, {found['judge_calls']} calls"]
    lines += [f"  unscored, {reason}: {count}" for reason, count in found["unscored"].items()]
    for name, measure in (("genuine or not", found["binary"]), ("all labels", found["full"])):
        lines.append(f"{name:15} kappa {shown(measure, 'kappa', 'ci95')}   accuracy {shown(measure, 'accuracy')}")
    whole, *groups = found["groups"]
    rates = f"{_points(whole, 'read')} read, {_points(whole, 'judged')} judged"
    points = f"{rates}, bias {_points(whole, 'bias', '+')} points"
    lines.append(f"{'genuine rate':15} {points if whole['n_scored'] else 'not defined'}")
    width = max(map(len, LABELS))
    lines += ["", f"{'':{width}}  {'human':>5}  {'judge':>5}  {'precision':22}  {'recall':22}"]
    for label, of in found["labels"].items():
        both = f"{shown(of, 'precision'):22}  {shown(of, 'recall'):22}"
        lines.append(f"{label:{width}}  {of['human']:>5}  {of['judge']:>5}  {both}".rstrip())
    columns = [label for label, of in found["labels"].items() if of["judge"]]
    lines += ["", "human label, by row, against the judge's:"]
    lines.append(" " * width + "".join(f"  {label[:12]:>12}" for label in columns))
    for label, of in found["labels"].items():
        if of["judged_as"]:
            lines.append(f"{label:{width}}" + "".join(f"  {of['judged_as'].get(column, 0):>12}" for column in columns))
    for fields in dict.fromkeys(tuple(group["by"]) for group in groups):
        lines += ["", *_group_table([group for group in groups if tuple(group["by"]) == fields])]
    return "\n".join(lines)


def _group_table(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """One grouping: a row per group, rates in percent, bias in points (judged minus read)."""
    rows = [[*groups[0]["by"], "n", "kappa", "read", "judged", "bias [95%]"]]
    for one in groups:
        of = ["-" if value is None else " ".join(visible(str(value)).split()) for value in one["by"].values()]
        shares = [_told(one[name] and 100 * one[name], None, ".1f") for name in ("read", "judged")]
        kappa = _told(one["kappa"], one["ci95"], "z.2f")
        rows.append([*of, str(one["n_scored"]), kappa, *shares, _points(one, "bias", "+")])
    return aligned(rows)


def _points(of: Mapping[str, Any], name: str, sign: str = "") -> str:
    value, ci95 = of[name], of[f"{name}_ci95"]
    return _told(value and 100 * value, ci95 and [100 * bound for bound in ci95], f"{sign}.1f")


def _told(value: float | None, ci95: Sequence[float] | None, form: str, nothing: str = "-") -> str:
    """57.0 [47.2, 66.3]"""
    bounds = f" [{', '.join(format(bound, form) for bound in ci95)}]" if ci95 else ""
    return nothing if value is None else f"{value:{form}}{bounds}"
