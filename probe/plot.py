"""tradeoff.png: what a run solves (x) against how often it knows what a person would say next (y).

One panel per follow-up set. Filled markers are greedy decoding, hollow ones the highest temperature. An arrow
leads from the baseline along the checkpoints of each training run; the grey line is the frontier: no run is
better than those on it in both directions. Colours are those of Okabe and Ito, told apart by colour-blind
readers, and every run is named beside its marker. Where accuracy or follow-up was not measured, the figures
that there are stand side by side.
"""

from __future__ import annotations

import io
import json
import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.files import write_atomic
from probe.placing import Spot, place_names
from probe.results import Metric, printable
from probe.stats import Estimate
from probe.tables import sizes_of, title
from probe.tradeoff import Panel, Point, frontier, marker_name, panel_of, path_name, paths, short_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from probe.compare import Comparison

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
BASELINE, FRONTIER = "#333333", "#C8C8C8"
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
}
DPI = 200
PANEL_WIDTH, PANEL_HEIGHT, PANELS_PER_ROW = 3.4, 2.9, 3  # inches; one panel is a column of a paper
NAMED = 8  # up to so many runs every marker is named; beyond, the ends of each path and the frontier


def draw_tradeoff(comparison: Comparison, path: Path) -> None:
    """Draws the trade-off of a comparison and writes it as a PNG of 200 dpi, atomically."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [panel for name in comparison.sets("followup") for panel in [panel_of(comparison, name)] if panel]
    columns = min(len(panels), PANELS_PER_ROW) or 1
    rows = math.ceil(len(panels) / columns) or 1
    size = (PANEL_WIDTH * columns + 0.6 * (columns == 1), PANEL_HEIGHT * rows + 0.6)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        heading = textwrap.fill(_heading(comparison), int(17 * size[0]))  # 17 letters of 7 points to the inch
        figure.suptitle(heading, fontsize=7, color="#555555", parse_math=False)
        if panels:
            _tradeoff(figure, comparison, panels, rows, columns)
        else:
            _side_by_side(figure, comparison)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    write_atomic(path, buffer.getvalue())


def _tradeoff(figure: Figure, comparison: Comparison, panels: Sequence[Panel], rows: int, columns: int) -> None:
    axes = list(figure.subplots(rows, columns, squeeze=False).flatten())
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    colours = [BASELINE] * len(comparison.runs)
    for number, path in enumerate(paths(comparison)):
        for run in path:
            colours[run] = COLOURS[number % len(COLOURS)]
    top = [point.y for panel in panels for points in panel.points.values() for point in points]
    for axis, panel in zip(axes, panels, strict=False):
        same = [other for other in panels if other.accuracy == panel.accuracy]
        across = [point.x for other in same for points in other.points.values() for point in points]
        axis.set_xlim(*_limits(across))
        axis.set_ylim(*_limits(top))
        _draw_panel(axis, comparison, panel, colours)
    for axis in axes[::columns]:
        axis.set_ylabel("genuine follow-ups (%)")
    _legend(figure, comparison, panels, colours)
    figure.draw_without_rendering()  # settles the layout, so that names can be placed in pixels
    figure.set_layout_engine("none")
    for axis, panel in zip(axes, panels, strict=False):
        _place(axis, comparison, panel, colours)


def _draw_panel(axis: Axes, comparison: Comparison, panel: Panel, colours: Sequence[str]) -> None:
    for order, points in enumerate(panel.points.values()):
        if len(comparison.runs) > 1:
            _draw_frontier(axis, frontier([point.at for point in points]), hollow=order > 0)
        _draw_paths(axis, comparison, points, colours, hollow=order > 0)
        for point in points:
            _draw_point(axis, point, colours[point.run], hollow=order > 0)
    sizes = ", ".join(
        f"{name} n = {sizes_of(comparison, Metric('followup', panel.set, name))}" for name in panel.points
    )
    axis.set_title(f"follow-up on {printable(panel.set)}\n", fontweight="bold", parse_math=False)
    axis.text(0.5, 1.02, sizes, transform=axis.transAxes, ha="center", va="bottom", fontsize=7, color="#555555")
    axis.set_xlabel(f"accuracy on {printable(panel.accuracy.set)} (%)", parse_math=False)
    axis.grid(True, color="#EEEEEE", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_frontier(axis: Axes, points: list[tuple[float, float]], hollow: bool) -> None:
    """A step line down from the left: what lies under it, some run reaches or beats in both directions."""
    (left, _), (bottom, _) = axis.get_xlim(), axis.get_ylim()
    corners = [(left, points[0][1]), *points, (points[-1][0], bottom)]
    xs, ys = zip(*corners, strict=True)
    axis.step(xs, ys, where="pre", color=FRONTIER, linewidth=1.0, linestyle=":" if hollow else "-", zorder=1)


def _draw_paths(
    axis: Axes, comparison: Comparison, points: Sequence[Point], colours: Sequence[str], hollow: bool
) -> None:
    at = {point.run: point.at for point in points}
    for path in paths(comparison):
        stops = [run for run in (0, *path) if run in at]
        for start, end in pairwise(stops):
            arrow = {"arrowstyle": "-|>", "color": colours[end], "linewidth": 1.0, "shrinkA": 3.5, "shrinkB": 3.5}
            arrow |= {"mutation_scale": 7, "linestyle": (0, (3, 2)) if hollow else "-", "alpha": 0.8}
            axis.annotate("", xy=at[end], xytext=at[start], arrowprops=arrow, zorder=3)


def _draw_point(axis: Axes, point: Point, colour: str, hollow: bool) -> None:
    x, y = point.at
    bars = axis.errorbar(
        x, y, xerr=_bars(point.x), yerr=_bars(point.y), fmt="none", ecolor=colour, elinewidth=0.8, alpha=0.45, zorder=2
    )
    for bar in bars.lines[2] if hollow else ():
        bar.set_linestyle((0, (2, 1.5)))
    axis.plot(
        x, y, "s" if point.run == 0 else "o", markersize=5, color=colour, markerfacecolor="white" if hollow else colour,
        zorder=4,
    )  # fmt: skip


def _bars(estimate: Estimate) -> list[list[float]] | None:
    """Lengths of the error bar below and above the value, in percent, as matplotlib wants them."""
    if estimate.ci95 is None or estimate.value is None:
        return None
    low, high = estimate.ci95
    return [[max(0.0, 100 * (estimate.value - low))], [max(0.0, 100 * (high - estimate.value))]]


def _limits(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Axis limits in percent: every interval with some room, never much beyond 0 and 100."""
    ends = [100 * end for one in estimates for end in (one.ci95 or (one.value or 0.0,) * 2)]
    low, high = min(ends), max(ends)
    room = max(3.0, 0.12 * (high - low))
    return max(-2.0, low - room), min(102.0, high + room)


def _legend(figure: Figure, comparison: Comparison, panels: Sequence[Panel], colours: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    def entry(label: str, **style: Any) -> Line2D:
        return Line2D([], [], label=label, **{"color": "#555555", "linewidth": 0.9, "markersize": 4.5, **style})

    handles = []
    for order, name in enumerate(dict.fromkeys(name for panel in panels for name in panel.points)):
        style = {"marker": "o", "linestyle": "--", "markerfacecolor": "white"} if order else {"marker": "o"}
        handles.append(entry(f"{name} (greedy)" if name == "T=0.0" else name, **style))
    if len(comparison.runs) > 1:
        handles += [entry("baseline", marker="s", linestyle=""), entry("frontier", color=FRONTIER)]
    several = [path for path in paths(comparison) if len(path) > 1]
    if len(several) > 1:
        handles += [entry(short_name(path_name(comparison, path)), color=colours[path[0]]) for path in several]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=7)


def _place(axis: Axes, comparison: Comparison, panel: Panel, colours: Sequence[str]) -> None:
    """Names each run beside its first marker, clear of markers, paths and error bars where there is room."""
    groups = list(panel.points.values())
    ends = {0, *(path[-1] for path in paths(comparison)), *(path[0] for path in paths(comparison))}
    best = frontier([point.at for point in groups[0]])
    few = len(comparison.runs) <= NAMED
    chosen = [point for point in groups[0] if few or point.run in ends or point.at in best]
    lines: list[tuple[Spot, Spot]] = []
    for points in groups:
        at = {point.run: point.at for point in points}
        for path in paths(comparison):
            stops = [at[run] for run in (0, *path) if run in at]
            lines += pairwise(stops)
        for point in points:
            (x, y), xs, ys = point.at, point.x.ci95, point.y.ci95
            lines += [((100 * xs[0], y), (100 * xs[1], y))] if xs else []
            lines += [((x, 100 * ys[0]), (x, 100 * ys[1]))] if ys else []
    names = [(marker_name(comparison, point.run), point.at, colours[point.run]) for point in chosen]
    place_names(axis, names, [point.at for points in groups for point in points], lines)


def _side_by_side(figure: Figure, comparison: Comparison) -> None:
    """The figures that there are, run beside run, where accuracy and follow-up do not make a plane."""
    axis = figure.subplots()
    metrics = [one for one in comparison.figures if one.name != "strict" and one.perturbation == "none"]
    for index, name in enumerate(comparison.names):
        colour = BASELINE if index == 0 else COLOURS[(index - 1) % len(COLOURS)]
        shift = 0.6 * ((index + 0.5) / len(comparison.names) - 0.5)
        for position, metric in enumerate(metrics):
            estimate = comparison.figures[metric][index]
            if estimate.value is not None:
                at = (position + shift, 100 * estimate.value)
                axis.errorbar(
                    *at, yerr=_bars(estimate), fmt="so"[index > 0], color=colour, markersize=4, elinewidth=0.9
                )
        axis.plot([], [], "so"[index > 0], color=colour, markersize=4, label=short_name(name))
    axis.set_xticks(range(len(metrics)), [f"{printable(one.set)}\n{title(one)}" for one in metrics])
    axis.set_ylabel("percent")
    axis.set_ylim(-2, 102)
    axis.grid(True, axis="y", color="#EEEEEE", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    columns = min(4, len(comparison.names))
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=7)


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
