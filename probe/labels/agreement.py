"""`nextturn probe agreement`: how far a judge agrees with human labels.

Shown are accuracy and Cohen's kappa, genuine or not and over all labels, and the bias of the judge's rate. Kappa hides the
bias: a judge that errs equally often both ways leaves a rate unchanged, and a judge that errs one way shifts it. `--by`
shows the figures for groups of rows. Turns that the judge leaves unscored are counted by reason and left out otherwise.
Intervals treat the turns of one conversation as a cluster, because they are judged alike.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from nextturn.probe import stats
from nextturn.probe.command.errors import BadInput, DataError
from nextturn.probe.command.sections import load_probe_recipe
from nextturn.probe.command.terminal import aligned, collected, visible
from nextturn.probe.judges import get_judge
from nextturn.probe.judges.verdicts import GENUINE, LABELS, Case, Judge
from nextturn.probe.kept import Texts, add_questions_argument, texts_in
from nextturn.probe.labels.turns import KnownLabel, read_rows

DRAWN = """These rows were drawn by `probe label`, more of what the judge calls genuine: rates and bias are those of the rows.
`probe correct` gives those of the runs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("labels", type=Path, help='JSONL of {"messages", "user_turn", "label"}')
    recipe = "a recipe with probe.judge and probe.judge_server, which the judge llm asks"
    parser.add_argument("recipe", type=Path, nargs="?", help=recipe)
    parser.add_argument("--judge", help="which judge: rules, llm, MODULE:CLASS (default: the recipe's, or rules)")
    fields = "a table with a row per group: fields of the rows, such as model,source,temperature"
    parser.add_argument("--by", default="", metavar="FIELDS", help=fields)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    add_questions_argument(parser)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> None:
    if overrides and arguments.recipe is None:
        raise BadInput(f"{overrides[0]}: no such option; keys of a recipe need the recipe: LABELS RECIPE OPTIONS")
    rows = read_labelled(arguments.labels, texts_in(arguments.questions))
    names = [name.strip() for name in arguments.by.split(",") if name.strip()]
    known = sorted({name for row in rows for name in row.fields})
    for name in (name for name in names if name not in known):
        raise BadInput(f"--by {name}: no row of {arguments.labels} has this field, expected one of {', '.join(known)}")
    with redirect_stdout(sys.stderr):  # with --json, stdout holds nothing else
        probe = load_probe_recipe(arguments.recipe, overrides).probe if arguments.recipe else None
    name = arguments.judge or (probe.judge if probe else "rules")
    judge = get_judge(name, probe.judge_server if probe else None)
    report = agreement(rows, judge, progress=name != "rules", by=names)
    print(json.dumps(report, indent=2) if arguments.json else format_agreement(report))
    if "p" in known and not arguments.json:
        print(f"\n{DRAWN}")


class LabelledTurn(NamedTuple):
    """A case with its human label.

    Attributes:
        conversation: The first user message, so that several turns after one question form a cluster.
        fields: Other plain values of the row (model, source, temperature), to group by.
    """

    case: Case
    label: str
    conversation: str
    fields: Mapping[str, str | float | bool] = {}


class _Message(BaseModel):
    role: str
    content: str


class _LabelledRow(BaseModel):
    model_config = ConfigDict(extra="allow")

    messages: tuple[_Message, ...] = Field(min_length=1)
    user_turn: str
    label: KnownLabel
    cut: bool = False


def read_labelled(path: Path, texts: Texts | None = None) -> list[LabelledTurn]:
    """Return the rows of {"messages", "user_turn", "label"} and optionally "cut".

    Raises:
        DataError: The file is missing or empty, or a row has another form; with file, line and key.
    """
    turns = []
    for number, row in read_rows(path, _LabelledRow, texts or {}):  # a judge needs the text
        messages = tuple(message.model_dump() for message in row.messages)
        if messages[-1]["role"] != "assistant":
            last = messages[-1]["role"]
            raise DataError(f"{path}:{number}: messages: the last is of {last!r}, expected the assistant")
        question = next((message["content"] for message in messages if message["role"] == "user"), "")
        values = {"label": row.label, **(row.model_extra or {})}
        plain = {name: value for name, value in values.items() if isinstance(value, str | int | float) and name != "id"}
        turns.append(LabelledTurn(Case(messages, row.user_turn, row.cut), row.label, " ".join(question.split()), plain))
    if not turns:
        raise DataError(f"{path}: no labelled turns, expected one JSON object per line")
    return turns


Scored = tuple[str, str, str]
"""The human label of a turn, the judge's label, and the conversation."""


def agreement(
    rows: Sequence[LabelledTurn], judge: Judge, progress: bool = False, by: Sequence[str] = ()
) -> dict[str, Any]:
    """Judge every row, compare the verdict with its label, and return the figures.

    Args:
        rows: Turns with labels.
        judge: The judge to check.
        progress: Show a progress bar on stderr.
        by: Fields of the rows to group by.

    Returns:
        "binary" (genuine or not) and "full" hold kappa and accuracy over the scored turns. "groups" begins with all rows
        together, genuine or not. Intervals are [low, high]. What cannot be known is None.
    """
    stream = judge.stream([row.case for row in rows])
    verdicts = collected(stream, len(rows), f"judge {judge.name}", delay=0, unit="turn", disable=not progress)
    judged = list(zip(rows, [verdict.label for verdict in verdicts], strict=True))
    scored = _scored(judged)
    return {
        "judge": judge.version,
        "judge_calls": judge.calls,
        "n": len(rows),
        "n_scored": len(scored),
        "unscored": dict(Counter(verdict.unscored or "no reason" for verdict in verdicts if verdict.label is None)),
        "binary": kappa_and_accuracy(genuine_or_other(scored)),
        "full": kappa_and_accuracy(scored),
        "groups": [*_groups(judged, ()), *(_groups(judged, by) if by else ())],
    }


def _scored(judged: Sequence[tuple[LabelledTurn, str | None]]) -> list[Scored]:
    return [(row.label, label, row.conversation) for row, label in judged if label is not None]


def genuine_or_other(scored: Sequence[Scored]) -> list[Scored]:
    """Return the rows with "other" in place of every label that is not genuine."""
    name = {label: label if label == GENUINE else "other" for label in LABELS}
    return [(name[human], name[machine], where) for human, machine, where in scored]


def _kappa(scored: Sequence[Scored]) -> dict[str, Any]:
    human, machine, where = ([row[column] for row in scored] for column in range(3))
    return _figure("kappa", stats.kappa_ci(human, machine, where), "ci95")


def kappa_and_accuracy(scored: Sequence[Scored]) -> dict[str, Any]:
    """Return Cohen's kappa and the share of equal labels, with intervals."""
    return {**_kappa(scored), **_rate("accuracy", [(human == machine, where) for human, machine, where in scored])}


def _groups(judged: Sequence[tuple[LabelledTurn, str | None]], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield kappa, the rates of people and of the judge, and the bias, by the values of some fields (None if missing)."""
    groups = defaultdict(list)
    for row, label in judged:
        groups[tuple(row.fields.get(name) for name in names)].append((row, label))
    for values in sorted(groups, key=lambda key: [(isinstance(value, str), value is None, value) for value in key]):
        scored = _scored(groups[values])
        human, machine = ([row[column] == GENUINE for row in scored] for column in (0, 1))
        where = [conversation for _, _, conversation in scored]
        yield {
            "by": dict(zip(names, values, strict=True)),
            "n": len(groups[values]),
            "n_scored": len(scored),
            **_kappa(genuine_or_other(scored)),
            **_rate("read", list(zip(human, where, strict=True))),
            **_rate("judged", list(zip(machine, where, strict=True))),
            **_figure("bias", stats.bias(machine, human, where)),
        }


def _rate(name: str, rows: Sequence[tuple[bool, str]]) -> dict[str, Any]:
    return _figure(name, stats.clustered_rate([value for value, _ in rows], [where for _, where in rows]))


def _figure(name: str, estimate: stats.Estimate, interval: str = "") -> dict[str, Any]:
    rounded = estimate.as_json()
    return {name: rounded["value"], interval or f"{name}_ci95": rounded["ci95"]}


def format_agreement(report: Mapping[str, Any]) -> str:
    """Return the figures, and a table of the groups, as plain text."""
    whole, *groups = report["groups"]
    fitted = " (fitted on loose labels)" if report["judge"].startswith("rules") else ""
    counts = f"{report['n']} turns, {report['n_scored']} scored, {report['judge_calls']} calls"
    lines = [f"judge {report['judge']}{fitted}: {counts}"]
    lines += [f"  unscored, {reason}: {count}" for reason, count in report["unscored"].items()]
    for name, figures in (("genuine or not", report["binary"]), ("all labels", report["full"])):
        lines.append(f"{name:15} kappa {shown(figures, 'kappa')}   accuracy {shown(figures, 'accuracy')}%")
    rates = [f"{shown(whole, name)}% {name}" for name in ("read", "judged")]
    lines += [f"{'genuine':15} {', '.join(rates)}, bias {shown(whole, 'bias')} points"]
    if groups:
        table = [[*groups[0]["by"], "n", "kappa", "read %", "judged %", "bias"]]
        for group in groups:
            values = ["-" if value is None else " ".join(visible(str(value)).split()) for value in group["by"].values()]
            figures = [shown(group, name) for name in ("kappa", "read", "judged", "bias")]
            table.append([*values, str(group["n_scored"]), *figures])
        lines += ["", *aligned(table)]
    return "\n".join(lines)


def shown(figures: Mapping[str, Any], name: str) -> str:
    """Return a figure with its interval, such as 57.0 [47.2, 66.3], or "-" where it is not defined."""
    scale, form = {"kappa": (1, "z.2f"), "bias": (100, "+.1f")}.get(name, (100, ".1f"))
    value, ci95 = figures[name], figures["ci95" if name == "kappa" else f"{name}_ci95"]
    bounds = f" [{', '.join(format(scale * bound, form) for bound in ci95)}]" if ci95 else ""
    return "-" if value is None else f"{scale * value:{form}}{bounds}"
