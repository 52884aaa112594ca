"""The trade-off plot: task accuracy on the x axis, follow-up rate on the y axis, one panel per follow-up set. A set without
accuracy of its own, such as transcripts, has its follow-up drawn over the user turn in the conversation, else over temperature.

The y axis can also show another measure (`--y`).

Filled markers show greedy decoding, hollow ones the highest temperature. Arrows lead from the baseline along the
checkpoints of each training run. A training run has its own colour (Okabe and Ito's, which colour-blind readers can tell
apart) and its own marker, which can be told apart in grey print.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any

from nextturn.probe.command.terminal import printable
from nextturn.probe.report.comparison import Comparison, ending, temperature, without_step
from nextturn.probe.results import Metric
from nextturn.probe.stats import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Point:
    """A run in a panel, by its index: accuracy `x` and, on the y axis, another rate, both in [0, 1] and measured.

    Where a set has no accuracy, `x` is the number of the user turn, or a temperature.
    """

    run: int
    x: Estimate | float
    y: Estimate

    @property
    def at(self) -> tuple[float, float]:
        """The place of the marker, rates in percent."""
        x = 100 * (self.x.value or 0.0) if isinstance(self.x, Estimate) else self.x
        return x, 100 * (self.y.value or 0.0)


@dataclass(frozen=True)
class Panel:
    """The points of a set by temperature, the lowest (greedy) and the highest, or by figure. `real` is the rate of real users.

    Without `accuracy`, `x_label` says what the x axis is, and the points of each run are joined.
    """

    set: str
    accuracy: Metric | None
    points: dict[str, list[Point]]
    real: Estimate | None
    x_label: str = ""


def panels_of(comparison: Comparison, y: str = "followup") -> list[Panel]:
    """Return a panel for each set with figures for it.

    The x axis is the set's own accuracy if some run has it, and never that of another set; for sharded, it is the accuracy on the
    same problems whole.
    """
    panels = []
    if y != "followup":
        for name in dict.fromkeys(figure.metric.set for figure in comparison.select(y)):
            x = Metric(y, name, "full") if y == "sharded" else Metric("accuracy", name, "lenient")
            figures = [each for each in comparison.declared[y].values() if each.unit == "percent" and each.headline]
            figures = [each for each in figures if each.name == "sharded"] if y == "sharded" else figures
            by_figure = {each.name: _points(comparison, x, Metric(y, name, each.name)) for each in figures}
            if any(by_figure.values()):
                panels.append(Panel(name, x, by_figure, None))
        return panels
    for name, decodings in comparison.decodings.items():
        accuracy = Metric("accuracy", name, "lenient")
        rates = {at: Metric("followup", name, "rate", at) for at in decodings}
        points = {at: _points(comparison, accuracy, rate) for at, rate in rates.items()}
        measured = [decoding for decoding, of_decoding in points.items() if of_decoding]
        real = comparison.select("actual", set=name, name="rate")
        ceiling = real[0].estimate if real else None
        if measured:
            ends = {decoding: points[decoding] for decoding in (measured[0], measured[-1])}
            panels.append(Panel(name, accuracy, ends, ceiling))
            continue
        lowest = decodings[0]
        parts = {each.metric.part for each in comparison.figures if each.metric[:3] == rates[lowest][:3]}
        depths = sorted(int(part.removeprefix("depth ")) for part in parts if part.startswith("depth "))
        if len(depths) > 1:
            over = {float(depth): rates[lowest]._replace(part=f"depth {depth}") for depth in depths}
            label = f"user turn in the conversation, {lowest}"
        else:
            over, label = {temperature(at): rate for at, rate in rates.items()}, "temperature"
        drawn = [point for x, rate in over.items() for point in _points(comparison, x, rate)]
        panels += [Panel(name, None, {"": drawn}, ceiling, label)] * bool(drawn)
    return panels


def _points(comparison: Comparison, x: Metric | float, y: Metric) -> list[Point]:
    by_labels = comparison.all_corrected and y.measure == "followup" and not y.part
    rate = comparison.corrected if by_labels else comparison.estimate
    pairs = [(comparison.estimate(run, x) if isinstance(x, Metric) else x, rate(run, y)) for run in comparison.names]
    return [Point(run, x, y) for run, (x, y) in enumerate(pairs) if y.n and (not isinstance(x, Estimate) or x.n)]


def arrows(comparison: Comparison, points: Sequence[Point]) -> list[tuple[int, int]]:
    """Return the pairs of runs that arrows join: along each training run, from the model that it started from."""
    measured = {point.run for point in points}
    joined: list[tuple[int, int]] = []
    for path in comparison.paths:
        first = comparison.runs[path[0]]
        has_start = len(path) > 1 and first.results.model.step == 0
        start = comparison.names.index(first.start) if first.start else 0
        joined += pairwise(run for run in (path if has_start else [start, *path]) if run in measured)
    return joined


def path_name(comparison: Comparison, path: Sequence[int]) -> str:
    """Return the name of a run, and of several checkpoints what their names share, else the first and the last name."""
    first, last = (printable(comparison.names[path[end]]) for end in (0, -1))
    return last if len(path) == 1 else without_step(last) or f"{first} to {last}"


BASELINE = ("#222222", "s")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "^", "D", "v", "P", "X", "p")  # six and seven have no common factor, so all 42 pairs are used
SOFT = "#555555"
STYLE: dict[str, Any] = {
    "text.parse_math": False,  # names may hold dollar signs
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7,
}  # fmt: skip
REAL: dict[str, Any] = {"color": BASELINE[0], "linestyle": (0, (1, 2)), "linewidth": 1.0}


def draw_tradeoff(comparison: Comparison, y: str = "followup") -> bytes | None:
    """Draw the trade-off as a PNG; return None if no run has what the y axis shows: "followup", or a measure and its accuracy."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = panels_of(comparison, y)
    if not panels:
        return None
    looks = [(colour, marker) for marker, colour in zip(MARKERS * len(COLOURS), COLOURS * len(MARKERS), strict=True)]
    styles = {run: look for path, look in zip(comparison.paths, cycle(looks), strict=False) for run in path}
    styles[0] = BASELINE
    columns, rows = min(len(panels), 2), math.ceil(len(panels) / 2)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.4 * columns, 3.0 * rows + 0.6), dpi=300, layout="constrained")
        judge = comparison.runs[0].results.settings.others.get("judge")
        source = "corrected by labels" if comparison.all_corrected else f"by {judge}"
        forced = ", MEASURED DIFFERENTLY" if comparison.differences else ""
        shown = f"follow-up {source}" if y == "followup" else y
        heading = printable(f"{shown}, 95% intervals{forced}", 200)
        figure.suptitle(textwrap.fill(heading, 58 * columns), fontsize=7, color=SOFT)
        axes = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flatten())
        for axis, panel in zip(axes, panels, strict=False):
            _draw_panel(axis, comparison, panel, styles)
            if y == "followup":
                axis.set_ylabel(f"{'follow-up' if comparison.all_corrected else comparison.followup} (%)")
            else:
                axis.set_ylabel(f"{' and '.join(panel.points)} (%)")
        for axis in axes[len(panels) :]:
            axis.set_visible(False)

        def entry(label: str, **style: Any) -> Line2D:
            return Line2D([], [], label=label, **{"color": SOFT, "linewidth": 0.9, "markersize": 4.5, **style})

        baseline = {"color": BASELINE[0], "marker": BASELINE[1], "linestyle": ""}
        handles: list[Any] = [entry(ending(comparison.names[0], 24), **baseline)]
        for path in comparison.paths:
            colour, marker = styles[path[0]]
            line = "-" if len(path) > 1 else ""
            handles.append(entry(ending(path_name(comparison, path), 24), color=colour, marker=marker, linestyle=line))
        runs = len(handles)
        for order, name in enumerate(dict.fromkeys(name for panel in panels for name in panel.points if name)):
            filling = {"linestyle": "--", "markerfacecolor": "white"} if order else {}
            handles.append(entry(f"{name} (greedy)" if name == "T=0.0" else name, marker="o", **filling))
        if any(panel.accuracy for panel in panels) and any(comparison.runs[run].results.model.step for run in styles):
            handles.append(entry("a number at a marker: the training step", linestyle=""))
        if any(panel.real for panel in panels):
            handles.append(entry("real users, as judged", **REAL))
        # A column holds either runs or the rest: handles fill the columns one after another.
        others, most = len(handles) - runs, 2 * columns
        lines = next(n for n in range(1, len(handles) + 1) if math.ceil(runs / n) + math.ceil(others / n) <= most)
        handles[runs:runs] = [entry("", linestyle="")] * (-runs % lines)
        handles += [entry("", linestyle="")] * (-others % lines)
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles) // lines, frameon=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _draw_panel(axis: Axes, comparison: Comparison, panel: Panel, styles: Mapping[int, tuple[str, str]]) -> None:
    greedy = next(iter(panel.points.values()))
    for hollow, points in enumerate(panel.points.values()):
        at = {point.run: point.at for point in points}
        for start, end in arrows(comparison, points) if panel.accuracy else ():
            arrow = {"arrowstyle": "-|>", "color": styles[end][0], "linewidth": 0.9, "mutation_scale": 6}
            arrow |= {"shrinkA": 3.5, "shrinkB": 3.5, "linestyle": (0, (3, 2)) if hollow else "-"}
            axis.annotate("", xy=at[end], xytext=at[start], arrowprops=arrow, zorder=3)
        for point in points:
            colour, marker = styles[point.run]
            (x, y), bar = point.at, dict[str, Any](color=colour, linewidth=0.7, alpha=0.4, zorder=2)
            axis.plot([x, x], [100 * bound for bound in point.y.ci95 or ()] or [y, y], **bar)
            if not hollow and isinstance(point.x, Estimate):  # the accuracy of a run is one number at every temperature
                axis.plot([100 * bound for bound in point.x.ci95 or ()] or [x, x], [y, y], **bar)
            looks: dict[str, Any] = {"color": colour, "markerfacecolor": "white" if hollow else colour, "zorder": 4}
            axis.plot(*point.at, marker, markersize=4.5, markeredgewidth=0.9, **looks)
        for run in dict.fromkeys(point.run for point in points) if not panel.accuracy else ():
            axis.plot(
                *zip(*(point.at for point in points if point.run == run), strict=True),
                color=styles[run][0],
                linewidth=0.9,
            )
    for point in greedy:
        model = comparison.runs[point.run].results.model
        if panel.accuracy and model.step and comparison.names[point.run] in comparison.shown:
            offset: dict[str, Any] = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": 6, "zorder": 5}
            axis.annotate(str(model.step), point.at, color=styles[point.run][0], **offset)
    if not panel.accuracy and len(places := {point.at[0] for point in greedy}) == 1:
        [x] = places
        axis.set(xlim=(x - 0.5, x + 0.5), xticks=[x])
    if panel.real and panel.real.value is not None:
        axis.axhline(100 * panel.real.value, zorder=1, **REAL)
    sizes = [f"accuracy n = {comparison.sizes(panel.accuracy)}"] if panel.accuracy else []
    ys = {at: sorted({point.y.n for point in points}) for at, points in panel.points.items()}
    sizes += [f"{at and f'{at} '}n = {'–'.join(map(str, dict.fromkeys((n[0], n[-1]))))}" for at, n in ys.items() if n]
    axis.set_title(f"{printable(panel.set, 30)} ({', '.join(sizes)})", fontsize=7, fontweight="bold")
    whole = " whole" if panel.accuracy and panel.accuracy.measure == "sharded" else ""
    axis.set_xlabel(f"accuracy on {printable(panel.set, 40)}{whole} (%)" if panel.accuracy else panel.x_label)
    axis.grid(True, color="#e4e4e4", linewidth=0.5)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
