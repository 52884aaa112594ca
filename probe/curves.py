"""What a dial does: the models between a base and a checkpoint, and which of them to take.

The rule. Of the scales tried above 0, each against the base on the same items: a scale *loses accuracy* where the 95% interval
of the paired difference of accuracy lies wholly below zero. Of those that do not, the one with the most follow-up is named, if it
has more than the base. The interval of its follow-up is widened for the number of scales tried (Bonferroni), because the best of
many looks better than it is; that of the accuracy is not, because this could only hide a loss. All sets and temperatures that
the base and every scale have count together, an item once: by its mean. Where the base and all scales have labels, follow-up is
what these make of it (probe.correct) and no longer what the judge says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probe.comparison import Comparison, Metric, Samples, plain, points, printable
from probe.stats import Estimate, PairedDifference, paired_difference


@dataclass(frozen=True)
class ScalePoint:
    """One scale of a checkpoint against its base; None where it was not measured on both sides, and at the base itself.

    `followup` is as judged, `corrected` by labels; None where there are not enough.
    """

    run: int
    scale: float
    accuracy: PairedDifference | None
    followup: PairedDifference | None
    corrected: Estimate | None

    @property
    def gain(self) -> PairedDifference | Estimate | None:
        """What the rule reads of follow-up."""
        return self.corrected or self.followup

    @property
    def loses(self) -> bool:
        """Significantly less accurate than the base."""
        return bool(self.accuracy and self.accuracy.ci95 and self.accuracy.ci95[1] < 0)


@dataclass(frozen=True)
class Curve:
    """The scales of one checkpoint upwards; `best` is the run that the rule names, None where it names none.

    `labels` counts those that correct its follow-up, and is 0 where the judge alone has read it.
    """

    checkpoint: str
    points: tuple[ScalePoint, ...]
    best: int | None
    labels: int

    @property
    def tried(self) -> list[ScalePoint]:
        return [point for point in self.points if point.scale > 0]


def curves_of(comparison: Comparison) -> list[Curve]:
    judged: tuple[dict[int, Estimate], ...] = ({},) * len(comparison.curves)
    corrected = comparison.corrected_scales or judged
    return [_curve(comparison, *one) for one in zip(comparison.curves, corrected, strict=True)]


def _curve(comparison: Comparison, runs: dict[float, int], corrected: dict[int, Estimate]) -> Curve:
    base = comparison.runs[runs[0.0]].samples if 0.0 in runs else None
    tried = sum(scale > 0 for scale in runs)
    shared = _shared([one for run in runs.values() if (one := comparison.runs[run].samples) is not None])
    found = []
    for scale, run in runs.items():
        samples = comparison.runs[run].samples
        differences: list[PairedDifference | None] = [None, None]
        if scale > 0 and base is not None and samples is not None:
            for index, (measure, name, together) in enumerate((("accuracy", "lenient", 1), ("followup", None, tried))):
                before, after = (_by_item(side, shared, measure, name) for side in (base, samples))
                change = paired_difference(before, after, together=together)
                differences[index] = change if change.n else None
        accuracy, followup = differences
        found.append(ScalePoint(run, scale, accuracy, followup, corrected.get(run)))
    kept = [one for one in found if one.accuracy and not one.loses and _value(one.gain) > 0]
    # Of equals the one that solves more, and then the smaller change.
    best = max(kept, key=lambda one: (_value(one.gain), _value(one.accuracy), -one.scale), default=None)
    scaled = next(run for run in runs.values() if comparison.scale(run) is not None)
    named = comparison.names[runs[1.0]] if 1.0 in runs else f"step-{comparison.runs[scaled].results.model.step}"
    counts = comparison.correction.labels if comparison.correction and corrected else {}
    labels = sum(counts.get(comparison.names[run], 0) for run in runs.values())
    return Curve(named, tuple(found), best.run if best else None, labels)


def _value(difference: PairedDifference | Estimate | None) -> float:
    return (difference.value or 0.0) if difference else 0.0


def _shared(sides: Sequence[Samples]) -> set[Metric]:
    """The metrics that all of these have with as many samples an item: pooled with another one that only some have, a
    temperature above all, a difference would say what was measured and not what changed."""
    each = [{(metric, max(map(len, by_item.values()))) for metric, by_item in one.values.items()} for one in sides]
    return {metric for metric, _ in set.intersection(*each)} if each else set()


def _by_item(samples: Samples, shared: set[Metric], measure: str, name: str | None) -> dict[str, list[float]]:
    """What an item is worth, over temperatures and samples, of all sets together; unperturbed."""
    found: dict[str, list[float]] = defaultdict(list)
    for metric, by_item in samples.values.items():
        if (
            metric in shared
            and metric.measure == measure
            and metric.perturbation == "none"
            and name in (None, metric.name)
        ):
            for item, values in by_item.items():
                found[f"{metric.set}\n{item}"] += values
    return dict(found)


def verdict(curve: Curve, comparison: Comparison) -> str:
    """What the rule says, in one line; names are cut and made printable."""
    checkpoint, tried = printable(curve.checkpoint), curve.tried
    many = f"{len(tried)} scale{'s' if len(tried) > 1 else ''} tried"
    if not any(point.accuracy and point.gain for point in tried):
        return f"{checkpoint}: no scale can be named, since accuracy and follow-up were not measured beside its base"
    losing = [f"{point.scale:g}" for point in tried if point.loses]
    lost = f"; significantly less accurate: {', '.join(losing)}" if losing else ""
    lost += f"; follow-up {read_by(curve, comparison)}" if comparison.correction else ""
    if curve.best is None:
        return f"{checkpoint}: of {many} none has more follow-up than the base without a significant loss of accuracy{lost}"
    best = next(point for point in tried if point.run == curve.best)
    assert best.accuracy and best.gain
    gain = best.gain.ci95 and best.gain.ci95[0] > 0
    p_value = "" if best.accuracy.p_value is None else f", p = {best.accuracy.p_value:.2g}"
    return (
        f"{checkpoint}: scale {best.scale:g} has the most follow-up of {many} without a significant loss of accuracy: follow-up "
        f"{change(best.gain)} (95% over all scales tried{'' if gain else ', so not significant'}; n = {best.gain.n}), "
        f"accuracy {change(best.accuracy)} (95%{p_value}; n = {best.accuracy.n}){lost}"
    )


def read_by(curve: Curve, comparison: Comparison) -> str:
    """Whose word follow-up is, where some run has labels."""
    assert comparison.correction
    without = [point.run for point in curve.points if not comparison.correction.labels.get(comparison.names[point.run])]
    if curve.labels or not without:
        return f"corrected by {curve.labels} labels" if curve.labels else "as judged"
    return f"as judged, without labels of {', '.join(printable(comparison.names[run]) for run in without)}"


def change(difference: PairedDifference | Estimate | None) -> str:
    """+12.0 [+3.1, +20.5] points"""
    return "-" if difference is None else f"{points(Estimate(difference.value, difference.ci95, difference.n))} points"


def curves_json(comparison: Comparison) -> dict[str, Any]:
    """For comparison.json: {"curves": [...]} where there are any."""
    found = [
        {
            "checkpoint": curve.checkpoint,
            "best": None if curve.best is None else comparison.names[curve.best],
            "verdict": verdict(curve, comparison),
            **({"labels": curve.labels} if curve.labels else {}),
            "points": [
                {"run": comparison.names[one.run], "scale": one.scale, "loses_accuracy": one.loses, **_differences(one)}
                for one in curve.points
            ],
        }
        for curve in curves_of(comparison)
    ]
    return {"curves": found} if found else {}


def _differences(point: ScalePoint) -> dict[str, Any]:
    names = ("accuracy", "followup", *(["corrected"] if point.corrected else []))
    return {name: plain(found) if (found := getattr(point, name)) else None for name in names}
