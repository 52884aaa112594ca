"""A gate: what a run must keep of its baseline and gain on it, told by the intervals of its paired changes.

`--keep accuracy=-3` is passed if the whole interval lies above -3 points, and lost if the whole interval lies below. `--gain
followup=5` is passed if the whole interval lies above 0 and the value is at least 5, and lost if the whole interval lies below 5
or the gain is hollow. Between passed and lost the gate cannot tell, and says how many items would do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nextturn.probe.command.errors import BadInput, CannotTell, GateLost
from nextturn.probe.command.terminal import aligned, printable
from nextturn.probe.report.comparison import GATED, Comparison, RunFigure, points
from nextturn.probe.stats import Estimate, items_to_tell

PASSED, LOST, UNCLEAR = "passed", "lost", "cannot tell"


@dataclass(frozen=True)
class Check:
    """A bound on one figure of one set.

    Attributes:
        option: "keep" or "gain".
        bound: In the unit of the change: 0.05 for five points of a rate.
        change: The run minus the baseline; the baseline minus the run where less is better.
        unit: "percent" for rates, else "number".
        hollow: The figures that make a gain hollow.
        items: About how many items would do, where the gate cannot tell: for a run that is equal to the baseline ("keep") or
            gains the bound ("gain"), else for the measured change. None if no number would.
    """

    option: str
    set: str
    measure: str
    figure: str
    bound: float
    change: Estimate
    unit: str
    hollow: tuple[str, ...]
    verdict: str
    items: int | None


@dataclass(frozen=True)
class Gate:
    """The verdict on a run, which is that of its worst check."""

    baseline: str
    run: str
    verdict: str
    checks: tuple[Check, ...]


def gate_of(comparison: Comparison, keep: Sequence[str], gain: Sequence[str]) -> Gate:
    """Hold two runs, or the base of a training run and its last step, against the bounds of --keep and --gain.

    Args:
        keep, gain: Bounds such as "accuracy=-3" or "gsm8k.sharded=-5": points of a rate, or the figure's own unit.

    Raises:
        BadInput: There are other runs, a bound is none, its figure was not measured in both runs, or the judge `rules`, without
            strict labels, is all that stands behind a follow-up rate.
    """
    if len(comparison.paths) != 1:
        given = f"{len(comparison.runs)} runs of {len(comparison.paths)} trainings beside the baseline"
        raise BadInput(f"--keep, --gain: given {given}; expected two runs, or one training run (its base and its last step)")
    run = comparison.names[comparison.paths[0][-1]]
    checks = [
        _check(comparison, option, figure, bound)
        for option, bounds in (("keep", keep), ("gain", gain))
        for text in bounds
        for figure, bound in _bounded(comparison, run, option, text)
    ]
    verdicts = {check.verdict for check in checks}
    return Gate(comparison.names[0], run, next(each for each in (LOST, UNCLEAR, PASSED) if each in verdicts), tuple(checks))


def _bounded(comparison: Comparison, run: str, option: str, text: str) -> list[tuple[RunFigure, float]]:
    """Return the figures that a bound such as "accuracy=-3" names, one of each set, each with the bound."""
    name, _, number = text.rpartition("=")
    try:
        bound = float(number)
    except ValueError:
        bound = math.nan
    if not (math.isfinite(bound) and (bound <= 0 if option == "keep" else bound >= 0)):
        example = "0 or less, such as accuracy=-3" if option == "keep" else "0 or more, such as followup=5"
        raise BadInput(f"--{option} {text}: expected NAME=POINTS or SET.NAME=POINTS with points of {example}")
    short = {key: name for name, key in GATED.items()}
    named: dict[str, list[RunFigure]] = {}
    for figure in comparison.select(*comparison.declared, "followup"):
        metric = figure.metric
        key = (metric.measure, metric.name, metric.temperature)
        if figure.run == run and figure.changes.get("baseline") and (key in short or metric.measure != "followup"):
            for word in {metric.name, short.get(key, metric.name)}:
                for each in (word, f"{metric.set}.{word}"):
                    named.setdefault(each, []).append(figure)
    if name not in named:
        known = printable(", ".join(named), 300) or "none, because samples.jsonl is missing or no item was measured in both"
        raise BadInput(f"--{option} {text}: {name} was not measured in both runs; expected one of {known}")
    return [(figure, bound) for figure in named[name]]


def _check(comparison: Comparison, option: str, figure: RunFigure, bound: float) -> Check:
    metric, unit = figure.metric, figure.declared.unit
    change, hollow = comparison.change(figure), tuple[str, ...]()
    if metric.measure == "followup":
        by_labels = change is not figure.changes["baseline"]
        strict = comparison.correction is not None and all(made.startswith("strict") for made in comparison.correction.made_by)
        if not strict if by_labels else comparison.needs_labels(metric.set):
            given = "loose labels" if by_labels else "a judge without labels that cannot be relied on here"
            raise BadInput(
                f"--{option}: the follow-up of {printable(metric.set)} has {given}; expected strict labels of both runs "
                "(`nextturn probe label`) or the judge llm"
            )
        fell = comparison.hollow.get(metric.set, {}).get(figure.run, ()) if option == "gain" else ()
        hollow = tuple(each.metric.name for each in fell)
    if figure.declared.better == "down":
        ends = change.ci95 and (-change.ci95[1], -change.ci95[0])
        change = Estimate(change.value and -change.value, ends, change.n)
    change = Estimate(change.value, change.ci95, change.n)
    bound = bound / 100 if unit == "percent" else bound
    verdict = LOST if hollow else verdict_of(option, bound, change)
    value = change.value or 0.0
    distances = (bound, value - bound if option == "keep" or value < bound else value)
    items = items_to_tell(change, *distances) if verdict == UNCLEAR else None
    return Check(option, metric.set, metric.measure, metric.name, bound, change, unit, hollow, verdict, items)


def verdict_of(option: str, bound: float, change: Estimate) -> str:
    """Return PASSED, LOST or UNCLEAR; without an interval nothing can be told."""
    if change.ci95 is None or change.value is None:
        return UNCLEAR
    low, high = change.ci95
    if high < bound:
        return LOST
    passed = low > bound if option == "keep" else low > 0 and change.value >= bound
    return PASSED if passed else UNCLEAR


def gate_table(gate: Gate) -> str:
    """Return the checks for the terminal, in points of a rate or the figure's own unit."""
    rows = [["gate", "set", "figure", "bound", "change", "verdict", "items that would do"]]
    for check in gate.checks:
        bound = points(Estimate(check.bound, None), check.unit)
        verdict = check.verdict + (f" (hollow: {', '.join(check.hollow)} falls)" if check.hollow else "")
        needed = "-" if check.verdict != UNCLEAR else f"about {check.items:,} (now {check.change.n})" if check.items else "none"
        names = [printable(check.set, 20), printable(check.figure, 30)]
        rows.append([check.option, *names, bound, points(check.change, check.unit), verdict, needed])
    return "\n".join(aligned(rows))


def refuse(gate: Gate) -> None:
    """Raise what ends the command with the gate's exit code, if the run did not pass.

    Raises:
        GateLost: A check is lost.
        CannotTell: None is lost, and for one the interval is too wide.
    """
    if gate.verdict == PASSED:
        return
    found = [f"{check.option} {check.figure} of {check.set}" for check in gate.checks if check.verdict == gate.verdict]
    error = GateLost if gate.verdict == LOST else CannotTell
    raise error(f"gate: {gate.verdict}: {printable(', '.join(found), 400)} ({gate.run} against {gate.baseline})")
