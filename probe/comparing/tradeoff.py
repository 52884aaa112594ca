"""What the trade-off plot shows, before anything is drawn: panels, points, paths of checkpoints, the frontier."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from probe.comparing.results import Metric, printable, rate_of
from probe.stats import Estimate

if TYPE_CHECKING:
    from probe.compare import Comparison

MANY = 8
"""Up to so many runs are named and shown one by one; beyond, where paths end."""


@dataclass(frozen=True)
class Point:
    """One run in one panel: accuracy and follow-up in [0, 1], each measured."""

    run: int
    x: Estimate
    y: Estimate

    @property
    def at(self) -> tuple[float, float]:
        """Where its marker stands, in percent."""
        return 100 * (self.x.value or 0.0), 100 * (self.y.value or 0.0)


@dataclass(frozen=True)
class Panel:
    """What one panel shows: points by temperature, greedy (or the lowest) first, the highest last.

    `real` is the rate of the real users' turns of a transcript set.
    """

    set: str
    accuracy: Metric
    points: dict[str, list[Point]]
    real: Estimate | None = None


def panel_of(comparison: Comparison, name: str) -> Panel | None:
    """None where no run has both numbers. A set's own accuracy where all runs have it, else the first set's."""
    own = Metric("accuracy", name, "lenient")
    if own not in comparison.figures or not all(estimate.n for estimate in comparison.figures[own]):
        others = [metric for metric in comparison.figures if metric.name == "lenient"]
        if not others:
            return None
        own = others[0]
    points = {}
    for metric, ys in comparison.figures.items():
        if metric == Metric("followup", name, metric.name):
            pairs = zip(comparison.figures[own], ys, strict=True)
            points[metric.name] = [Point(run, x, y) for run, (x, y) in enumerate(pairs) if x.n and y.n]
    measured = [temperature for temperature, found in points.items() if found]
    if not measured:
        return None
    real = next((rate_of(one.results.actual[name]) for one in comparison.runs if name in one.results.actual), None)
    return Panel(name, own, {temperature: points[temperature] for temperature in (measured[0], measured[-1])}, real)


def paths(comparison: Comparison) -> list[list[int]]:
    """Runs by training run: checkpoints of one folder in step order; a run without a step is a path of its own.

    What a training run started from (its step 0) is the first of its path. The baseline is in none of them.
    """
    grouped: dict[tuple[str, ...], list[int]] = {}
    for index, one in enumerate(comparison.runs[1:], start=1):
        model = one.results.model
        stem = re.sub(r"[\W_]*(step|checkpoint)?[\W_]*\d+$", "", model.label)
        key = (str(one.folder.absolute().parent), stem) if model.step else (one.name,)
        grouped.setdefault(key, []).append(index)
    for one in comparison.runs[1:]:
        stepped = [key for key in grouped if len(key) > 1 and key[0] == str(one.folder.absolute().parent)]
        if one.results.model.step == 0 and len(stepped) == 1:
            grouped[stepped[0]] += grouped.pop((one.name,))
    steps = [one.results.model.step or 0 for one in comparison.runs]
    return [sorted(group, key=steps.__getitem__) for group in grouped.values()]


def arrows(comparison: Comparison, points: Sequence[Point]) -> list[tuple[int, int]]:
    """The pairs of runs among these points that arrows join: along each path, from what its training run started from,
    or from the baseline where that was not measured."""
    shown = {point.run for point in points}
    joined: list[tuple[int, int]] = []
    for path in paths(comparison):
        started = len(path) > 1 and comparison.runs[path[0]].results.model.step == 0
        joined += pairwise(run for run in (path if started else [0, *path]) if run in shown)
    return joined


def ends(comparison: Comparison) -> list[int]:
    """The runs that detailed tables show: all of up to MANY, else the baseline and the last of each path."""
    if len(comparison.runs) <= MANY:
        return list(range(len(comparison.runs)))
    return sorted({0, *(path[-1] for path in paths(comparison))})


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats in one direction without losing in the other, from left to right."""
    kept: list[tuple[float, float]] = []
    for x, y in sorted(points, reverse=True):
        if not kept or y > kept[-1][1]:
            kept.append((x, y))
    return kept[::-1]


def path_name(comparison: Comparison, path: Sequence[int]) -> str:
    """The training run that a path's checkpoints come from: what their names share, else their folder."""
    checkpoints = [run for run in path if comparison.runs[run].results.model.step] or path
    shared = os.path.commonprefix([comparison.names[run] for run in checkpoints])
    folder = comparison.runs[path[0]].folder.absolute().parent
    stem = re.sub(r"[\W_]*(step|checkpoint)?[\W_]*\d*$", "", shared)
    return stem or printable(folder.parent.name if folder.name == "probe" else folder.name)


def marker_name(comparison: Comparison, run: int) -> str:
    """A path's last checkpoint by its step, those before by the bare number; everything else by its name."""
    step = comparison.runs[run].results.model.step
    path = next((path for path in paths(comparison) if run in path), [])
    if not step or len(path) < 2:
        return short_name(comparison.names[run])
    return f"step {step}" if run == path[-1] else str(step)


def short_name(name: str) -> str:
    """At most 22 characters: the end tells checkpoints apart."""
    return name if len(name) <= 22 else "…" + name[-21:]
