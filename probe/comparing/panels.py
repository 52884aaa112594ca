"""One panel of the trade-off plot: accuracy to the right, genuine follow-ups upwards.

Filled markers are greedy decoding, hollow ones the highest temperature. An arrow leads from the baseline along
the checkpoints of each training run, which has its own colour (Okabe and Ito's, told apart by colour-blind
readers) and its own marker, so that it is told apart in grey print too. The shaded area is what some run reaches
or beats in both directions at greedy decoding; its edge is the frontier. Up to a number of runs each is named
beside its marker, beyond it the baseline and the ends of paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.comparing.placing import Spot, place_names
from probe.comparing.results import Metric, printable
from probe.comparing.tables import sizes_of
from probe.comparing.tradeoff import Panel, Point, arrows, ends, frontier, marker_name
from probe.stats import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probe.compare import Comparison


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
