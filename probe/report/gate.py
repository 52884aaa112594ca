"""A gate: what a run must keep of its baseline and gain on it, told by the intervals of its paired changes.

`--keep accuracy=-3` is passed if the whole interval lies above -3 points, and lost if the whole interval lies below. `--gain
followup=5` is passed if the whole interval lies above 0 and the value is at least 5, and lost if the whole interval lies below 5
or the gain is hollow. Between passed and lost the gate cannot tell, and says how many items would do.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nextturn.probe.command.errors import BadInput, CannotTell, GateLost
from nextturn.probe.command.terminal import aligned, printable
from nextturn.probe.report.comparison import Comparison, RunFigure, points, short_name
from nextturn.probe.stats import Estimate, items_to_tell

PASSED, LOST, UNCLEAR = "passed", "lost", "cannot tell"
ENDS = {LOST: GateLost, UNCLEAR: CannotTell}
"""What ends the command, with its exit code."""


@dataclass(frozen=True)
class Check:
    """A bound on one figure of one set.

    Attributes:
        option: "keep" or "gain".
        unit: "percent" (bound and change are shares) or "number".
        change: The run minus the baseline; the baseline minus the run where less is better.
        hollow: The figures that make a gain hollow.
        items: About how many items would do where the gate cannot tell: for a run that equals the baseline or gains the bound, or,
            if there are as many already, for the measured change. None if no number would.
    """

    option: str
    set: str
    figure: str
    unit: str
    bound: float
    change: Estimate
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
    """Return the verdict on the second of two runs, or on the last step of a training run.

    Args:
        keep, gain: Bounds such as "accuracy=-3" or "gsm8k.sharded=-5", in points of a rate or the figure's own unit.

    Raises:
        BadInput: There are other runs, a bound is none, its figure was not measured in both runs, or the follow-up rate is that of
            the judge `rules` or of loose labels.
    """
    if len(comparison.paths) != 1:
        raise BadInput(f"--keep, --gain: given {', '.join(comparison.names)}; expected two runs or one training run")
    run = comparison.names[comparison.paths[0][-1]]
    bounds = [("keep", text) for text in keep] + [("gain", text) for text in gain]
    checks = tuple(check for option, text in bounds for check in _checks(comparison, run, option, text))
    worst = next(each for each in (LOST, UNCLEAR, PASSED) if any(check.verdict == each for check in checks))
    return Gate(comparison.names[0], run, worst, checks)


def _checks(comparison: Comparison, run: str, option: str, text: str) -> Iterator[Check]:
    """Yield a check for each figure that a bound such as "accuracy=-3" names."""
    name, _, number = text.rpartition("=")
    bound = float(number) if re.fullmatch(r"-?\d+(\.\d+)?", number) else math.nan
    if not (bound <= 0 if option == "keep" else bound >= 0):
        expected = "FIGURE=POINTS or SET.FIGURE=POINTS, such as --keep accuracy=-3 (0 or less) or --gain followup=5"
        raise BadInput(f"--{option} {text}: expected {expected}")
    named: dict[str, list[RunFigure]] = defaultdict(list)
    for figure in comparison.select(*comparison.declared, "followup"):
        metric = figure.metric
        word = short_name(metric) or ("" if metric.measure == "followup" else comparison.word(metric))
        if word and figure.run == run and "baseline" in figure.changes:
            named[word].append(figure)
            named[f"{metric.set}.{word}"].append(figure)
    if name not in named:
        known = printable(", ".join(named), 300) or "figures with a paired change (samples.jsonl of both runs)"
        raise BadInput(f"--{option} {text}: {name} was not measured in both runs; expected one of {known}")
    for figure in named[name]:
        if short_name(figure.metric) == "followup" and (rough := _rough(comparison, figure)):
            expected = "strict labels of both runs at T=0 (probe label) or the judge llm"
            raise BadInput(f"--{option}: follow-up of {figure.metric.set} is by {rough}; expected {expected}")
        yield _check(comparison, figure, option, bound)


def _rough(comparison: Comparison, figure: RunFigure) -> str:
    """Return what makes a follow-up rate too rough for a gate, or ""."""
    if comparison.change(figure) is figure.changes["baseline"]:
        return "the judge alone, which needs labels here" if comparison.needs_labels(figure.metric.set) else ""
    made_by = comparison.correction.made_by if comparison.correction else ()
    return "" if all(made.startswith("strict") for made in made_by) else "loose labels"


def _check(comparison: Comparison, figure: RunFigure, option: str, bound: float) -> Check:
    metric, unit, found = figure.metric, figure.declared.unit, comparison.change(figure)
    bound, value = bound / 100 if unit == "percent" else bound, found.value or 0.0
    ends = found.ci95
    if figure.declared.better == "down":
        value, ends = -value, ends and (-ends[1], -ends[0])
    change = Estimate(value, ends, found.n)
    gained = metric.measure == "followup" and option == "gain"
    hollow = tuple(each.metric.name for each in comparison.hollow.get((figure.run, metric.set), ()) if gained)
    low, high = ends or (-math.inf, math.inf)
    passed = low > bound if option == "keep" else low > 0 and value >= bound
    verdict = LOST if hollow or high < bound else PASSED if passed else UNCLEAR
    to_bound = value if option == "gain" and value >= bound else value - bound
    items = items_to_tell(change, bound, to_bound) if verdict == UNCLEAR else None
    return Check(option, metric.set, comparison.word(metric), unit, bound, change, hollow, verdict, items)


def gate_table(gate: Gate) -> str:
    """Return the checks for the terminal, in points of a rate or the figure's own unit."""
    rows = [["gate", "set", "figure", "bound", "change", "verdict", "items that would do"]]
    for check in gate.checks:
        names = [check.option, printable(check.set, 20), printable(check.figure, 30)]
        bound, change = points(Estimate(check.bound, None), check.unit), points(check.change, check.unit)
        verdict = f"{check.verdict} (hollow: {', '.join(check.hollow)})" if check.hollow else check.verdict
        needed = f"about {check.items:,} (now {check.change.n})" if check.items else "-"
        rows.append([*names, bound, change, verdict, needed])
    return "\n".join(aligned(rows))
