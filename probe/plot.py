"""tradeoff.png: what a run solves (to the right) against how often it knows what a person would say next (upwards).

One panel per follow-up set, two to a row, made for print without scaling: a panel is as wide as a column of a
paper, a row as wide as its page. Where accuracy or follow-up was not measured, the figures that there are stand
one below the other. What a panel shows is said in `panels`.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.comparison import Metric, printable, rate_of, sizes_of, title
from probe.files import write_atomic
from probe.stats import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from probe.compare import Comparison


# --- What the trade-off plot shows, before anything is drawn: panels, points, paths of checkpoints, the frontier.

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


# --- Places names beside markers in a plot so that they cover neither each other nor what is drawn.
#
# Every name tries a ring of positions, near ones first, and takes the one that covers least. Good enough for a
# dozen names; no dependency is worth it.

Spot = tuple[float, float]
Box = tuple[float, float, float, float]
"""left, bottom, right, top, in pixels"""

DISTANCES = (5.0, 9.0, 15.0, 23.0, 33.0)  # points from the marker
DIRECTIONS = 16


def place_names(
    axis: Axes, names: Sequence[tuple[str, Spot, str]], markers: Sequence[Spot], lines: Sequence[tuple[Spot, Spot]]
) -> None:
    """Writes each (name, position, colour) into the axis, with a thin leader where it stands away from its marker.

    Positions are in data coordinates; the layout of the figure must be final.
    """
    from matplotlib.patheffects import withStroke

    figure = axis.get_figure(root=True)
    assert figure is not None
    point = figure.dpi / 72
    frame = axis.get_window_extent()
    room = (frame.x0, frame.y0, frame.x1, frame.y1)
    to_data = axis.transData.inverted()

    def to_pixels(spot: Spot) -> Spot:
        x, y = axis.transData.transform(spot)
        return float(x), float(y)

    crowd = [(x - 4 * point, y - 4 * point, x + 4 * point, y + 4 * point) for x, y in map(to_pixels, markers)]
    grains = [grain for start, end in lines for grain in grains_of(to_pixels(start), to_pixels(end), 2 * point)]
    taken: list[Box] = []
    for name, spot, colour in names:
        text = axis.text(*spot, name, fontsize=7, color=colour, parse_math=False, zorder=6)
        text.set_path_effects([withStroke(linewidth=1.5, foreground="white")])
        extent = text.get_window_extent()
        x, y = to_pixels(spot)
        boxes = candidates(x, y, extent.width, extent.height, point)
        box = min(boxes, key=lambda box: boxes[box] + cost(box, room, taken, crowd, grains, point))
        taken.append(box)
        middle_x, middle_y = to_data.transform(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2))
        text.set_position((float(middle_x), float(middle_y)))
        text.set(horizontalalignment="center", verticalalignment="center_baseline")
        nearest = (min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3]))
        if math.dist(nearest, (x, y)) > 11 * point:
            ends = to_data.transform([(x, y), nearest])
            axis.plot(*zip(*ends, strict=True), color=colour, linewidth=0.5, alpha=0.7, zorder=5)


def candidates(x: float, y: float, width: float, height: float, point: float) -> dict[Box, float]:
    """Boxes around a marker, each with the price of its distance: near and to the right is best."""
    boxes = {}
    for distance in DISTANCES:
        for step in range(DIRECTIONS):
            angle = 2 * math.pi * step / DIRECTIONS
            across, up = math.cos(angle), math.sin(angle)
            middle_x = x + across * (distance * point + width / 2)
            middle_y = y + up * (distance * point + height / 2)
            box = (middle_x - width / 2, middle_y - height / 2, middle_x + width / 2, middle_y + height / 2)
            boxes[box] = distance + 2 * (1 - across)
    return boxes


def cost(
    box: Box, room: Box, taken: Sequence[Box], crowd: Sequence[Box], grains: Sequence[Spot], point: float
) -> float:
    """What a box covers: other names cost most, then markers and the edge of the panel, then lines."""
    area = (box[2] - box[0]) * (box[3] - box[1])
    padded = (box[0] - point, box[1] - point, box[2] + point, box[3] + point)
    names = sum(_overlap(padded, other) for other in taken) / area
    markers = sum(_overlap(padded, other) for other in crowd) / (8 * point) ** 2
    outside = 1 - _overlap(box, room) / area
    covered = sum(box[0] <= x <= box[2] and box[1] <= y <= box[3] for x, y in grains)
    return 500 * names + 200 * markers + 1500 * outside + 1.5 * covered


def _overlap(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def grains_of(start: Spot, end: Spot, spacing: float) -> list[Spot]:
    """Points along a line, `spacing` apart: covering a line is counted by them."""
    count = max(1, math.ceil(math.dist(start, end) / spacing))
    return [
        (start[0] + (end[0] - start[0]) * step / count, start[1] + (end[1] - start[1]) * step / count)
        for step in range(count + 1)
    ]


# --- One panel of the trade-off plot: accuracy to the right, genuine follow-ups upwards.
#
# Filled markers are greedy decoding, hollow ones the highest temperature. An arrow leads from the baseline along
# the checkpoints of each training run, which has its own colour (Okabe and Ito's, told apart by colour-blind
# readers) and its own marker, so that it is told apart in grey print too. The shaded area is what some run reaches
# or beats in both directions at greedy decoding; its edge is the frontier. Up to a number of runs each is named
# beside its marker, beyond it the baseline and the ends of paths.


class Style(NamedTuple):
    """How the runs of one path look."""

    colour: str
    marker: str


BASELINE = Style("#222222", "s")
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "^", "D", "v", "P", "X", "p")
STYLES = [
    Style(_COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)])
    for number in range(len(_COLOURS) * len(_MARKERS))
]
FRONTIER = "#F0F0F0"
REAL: dict[str, Any] = {"color": "#222222", "linestyle": (0, (1, 2)), "linewidth": 1.0}


def draw_panel(axis: Axes, comparison: Comparison, panel: Panel, styles: Sequence[Style]) -> None:
    """Everything but the names, which need the final layout; the axis limits must be set."""
    groups = list(panel.points.values())
    if len(comparison.runs) > 1:
        _shade(axis, frontier([point.at for point in groups[0]]))
    if panel.real and panel.real.value is not None:
        axis.axhline(100 * panel.real.value, zorder=1, **REAL)
    for order, points in enumerate(groups):
        _draw_paths(axis, comparison, points, styles, hollow=order > 0)
        for point in points:
            _draw_point(axis, point, styles[point.run], hollow=order > 0)
    sizes = ", ".join(
        f"{name} n = {sizes_of(comparison, Metric('followup', panel.set, name))}" for name in panel.points
    )
    axis.set_title(f"follow-up on {printable(panel.set, 40)}\n", fontweight="bold", parse_math=False)
    axis.text(0.5, 1.02, sizes, transform=axis.transAxes, ha="center", va="bottom", fontsize=7, color="#555555")
    axis.set_xlabel(f"accuracy on {printable(panel.accuracy.set, 40)} (%)", parse_math=False)
    axis.grid(True, color="#E4E4E4", linewidth=0.5)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def name_markers(axis: Axes, comparison: Comparison, panel: Panel, styles: Sequence[Style]) -> None:
    """Names each run beside its first marker, clear of markers, paths and error bars where there is room."""
    groups = list(panel.points.values())
    chosen = [point for point in groups[0] if point.run in ends(comparison)]
    lines: list[tuple[Spot, Spot]] = []
    for order, points in enumerate(groups):
        at = {point.run: point.at for point in points}
        lines += [(at[start], at[end]) for start, end in arrows(comparison, points)]
        for point in points:
            (x, y), xs, ys = point.at, point.x.ci95, point.y.ci95
            lines += [((100 * xs[0], y), (100 * xs[1], y))] if xs and not order else []
            lines += [((x, 100 * ys[0]), (x, 100 * ys[1]))] if ys else []
    names = [(marker_name(comparison, point.run), point.at, styles[point.run].colour) for point in chosen]
    place_names(axis, names, [point.at for points in groups for point in points], lines)


def error_bars(estimate: Estimate) -> list[list[float]] | None:
    """Lengths of the error bar below and above the value, in percent, as matplotlib wants them."""
    if estimate.ci95 is None or estimate.value is None:
        return None
    low, high = estimate.ci95
    return [[max(0.0, 100 * (estimate.value - low))], [max(0.0, 100 * (high - estimate.value))]]


def axis_limits(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Axis limits in percent: every interval with some room, never much beyond 0 and 100."""
    reached = [100 * end for one in estimates for end in (one.ci95 or (one.value or 0.0,) * 2)]
    low, high = min(reached), max(reached)
    room = max(3.0, 0.12 * (high - low))
    return max(-5.0, low - room), min(105.0, high + room)


def _shade(axis: Axes, best: Sequence[Spot]) -> None:
    """The area under the frontier, a staircase down from the left."""
    (left, _), (bottom, _) = axis.get_xlim(), axis.get_ylim()
    xs, ys = [left, *(x for x, _ in best)], [best[0][1], *(y for _, y in best)]
    axis.fill_between(xs, ys, bottom, step="pre", color=FRONTIER, linewidth=0, zorder=0)


def _draw_paths(
    axis: Axes, comparison: Comparison, points: Sequence[Point], styles: Sequence[Style], hollow: bool
) -> None:
    at = {point.run: point.at for point in points}
    for start, end in arrows(comparison, points):
        arrow = {"arrowstyle": "-|>", "color": styles[end].colour, "linewidth": 0.9, "mutation_scale": 6}
        arrow |= {"shrinkA": 3.5, "shrinkB": 3.5, "linestyle": (0, (3, 2)) if hollow else "-"}
        axis.annotate("", xy=at[end], xytext=at[start], arrowprops=arrow, zorder=3)


def _draw_point(axis: Axes, point: Point, style: Style, hollow: bool) -> None:
    """A run's accuracy is one number at every temperature: its interval is drawn once, with the filled marker."""
    x, y = point.at
    bars: dict[str, Any] = {"fmt": "none", "ecolor": style.colour, "elinewidth": 0.7, "alpha": 0.4, "zorder": 2}
    drawn = axis.errorbar(x, y, xerr=None if hollow else error_bars(point.x), yerr=error_bars(point.y), **bars)
    for bar in drawn.lines[2] if hollow else ():
        bar.set_linestyle((0, (2, 1.5)))
    filling = "white" if hollow else style.colour
    looks: dict[str, Any] = {
        "color": style.colour,
        "markerfacecolor": filling,
        "markersize": 4.5,
        "markeredgewidth": 0.9,
    }
    axis.plot(x, y, style.marker, zorder=4, **looks)


SIZES: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
}
DPI = 300
PANEL_WIDTH, PANEL_HEIGHT, PANELS_PER_ROW = 3.4, 3.0, 2  # inches


def draw_tradeoff(comparison: Comparison, path: Path) -> None:
    """Draws the trade-off of a comparison and writes it as a PNG, atomically."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [panel for name in comparison.sets("followup") for panel in [panel_of(comparison, name)] if panel]
    metrics = [one for one in comparison.figures if one.name != "strict" and one.perturbation == "none"]
    columns = min(len(panels), PANELS_PER_ROW)
    rows = math.ceil(len(panels) / PANELS_PER_ROW)
    size = (PANEL_WIDTH * columns, PANEL_HEIGHT * rows + 0.6)
    if not panels:
        size = (2 * PANEL_WIDTH, 1.2 + len(metrics) * max(0.25, 0.1 * len(comparison.runs)))
    with matplotlib.rc_context(SIZES):
        figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        heading = textwrap.fill(_heading(comparison), int(17 * size[0]))  # 17 letters of 7 points to the inch
        figure.suptitle(heading, fontsize=7, color="#555555", parse_math=False)
        if panels:
            _tradeoff(figure, comparison, panels, rows, columns)
        else:
            _listed(figure, comparison, metrics)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    write_atomic(path, buffer.getvalue())


def _tradeoff(figure: Figure, comparison: Comparison, panels: Sequence[Panel], rows: int, columns: int) -> None:
    axes = list(figure.subplots(rows, columns, squeeze=False).flatten())
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    styles = [BASELINE] * len(comparison.runs)
    for number, path in enumerate(paths(comparison)):
        for run in path:
            styles[run] = STYLES[number % len(STYLES)]
    top = [point.y for panel in panels for points in panel.points.values() for point in points]
    top += [panel.real for panel in panels if panel.real]
    for axis, panel in zip(axes, panels, strict=False):
        same = [other for other in panels if other.accuracy == panel.accuracy]
        across = [point.x for other in same for points in other.points.values() for point in points]
        axis.set_xlim(*axis_limits(across))
        axis.set_ylim(*axis_limits(top))
        draw_panel(axis, comparison, panel, styles)
    for axis in axes[::columns]:
        axis.set_ylabel("genuine follow-ups (%)")
    _legend(figure, comparison, panels, styles, columns)
    figure.draw_without_rendering()  # settles the layout, so that names can be placed in pixels
    figure.set_layout_engine("none")
    for axis, panel in zip(axes, panels, strict=False):
        name_markers(axis, comparison, panel, styles)


def _legend(
    figure: Figure, comparison: Comparison, panels: Sequence[Panel], styles: Sequence[Style], columns: int
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def entry(label: str, **style: Any) -> Line2D:
        return Line2D([], [], label=label, **{"color": "#555555", "linewidth": 0.9, "markersize": 4.5, **style})

    handles: list[Any] = []
    for path in (path for path in paths(comparison) if len(path) > 1):
        style = styles[path[0]]
        handles.append(entry(short_name(path_name(comparison, path)), color=style.colour, marker=style.marker))
    for order, name in enumerate(dict.fromkeys(name for panel in panels for name in panel.points)):
        filling = {"linestyle": "--", "markerfacecolor": "white"} if order else {}
        handles.append(entry(f"{name} (greedy)" if name == "T=0.0" else name, marker="o", **filling))
    if len(comparison.runs) > 1:
        handles.append(entry("baseline", marker=BASELINE.marker, color=BASELINE.colour, linestyle=""))
        handles.append(Patch(color=FRONTIER, label="some run is as good or better"))
    if any(panel.real for panel in panels):
        handles.append(entry("real users", **REAL))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(2 * columns, len(handles)), frameon=False)


def _listed(figure: Figure, comparison: Comparison, metrics: Sequence[Metric]) -> None:
    """The figures that there are, one below the other, where accuracy and follow-up do not make a plane."""
    axis = figure.subplots()
    for index, name in enumerate(comparison.names):
        style = BASELINE if index == 0 else STYLES[(index - 1) % len(STYLES)]
        shift = 0.6 * ((index + 0.5) / len(comparison.names) - 0.5)
        for position, metric in enumerate(metrics):
            estimate = comparison.figures[metric][index]
            if estimate.value is not None:
                at = (100 * estimate.value, position + shift)
                looks: dict[str, Any] = {"color": style.colour, "markersize": 3.5, "elinewidth": 0.8}
                axis.errorbar(*at, xerr=error_bars(estimate), fmt=style.marker, **looks)
        axis.plot([], [], style.marker, color=style.colour, markersize=4, label=short_name(name))
    axis.set_yticks(range(len(metrics)), [f"{printable(one.set, 20)}: {title(one)}" for one in metrics])
    for label in axis.get_yticklabels():
        label.set_parse_math(False)
    axis.set_ylim(max(len(metrics), 1) - 0.5, -0.5)  # the first one on top
    axis.set_xlim(-2, 102)
    axis.set_xlabel("percent")
    axis.grid(True, axis="x", color="#E4E4E4", linewidth=0.5)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=min(3, len(comparison.names)), frameon=False)


def _heading(comparison: Comparison) -> str:
    settings = comparison.runs[0].results.settings.others()
    judge = settings.get("judge")
    judge = judge if isinstance(judge, str) else json.dumps(judge)
    sizes = "; ".join(
        f"accuracy on {printable(metric.set)} n = {sizes_of(comparison, metric)}"
        for metric in comparison.figures
        if metric.name == "lenient"
    )
    forced = "MEASURED DIFFERENTLY" if comparison.differences else ""
    return "; ".join(part for part in (f"judge {printable(judge)}", sizes, "95% intervals", forced) if part)
