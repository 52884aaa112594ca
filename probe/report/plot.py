"""The trade-off plot: what a run solves (to the right) against how often it knows what a person would say next (up).

One drawing routine serves tradeoff.png and the page. A panel per follow-up set is as wide as a column of a paper.

Filled markers are greedy decoding, hollow ones the highest temperature. An arrow leads from the baseline along the
checkpoints of each training run, which has its own colour (Okabe and Ito's, told apart by colour-blind readers) and its
own marker, so that it is told apart in grey print too. The shaded area is what some run reaches or beats in both
directions at greedy decoding; its edge is the frontier. Up to `MANY` runs are named beside their markers, beyond that
the baseline and the ends of paths.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from nextturn.probe.files import write_atomic
from nextturn.probe.report.comparison import Comparison, Metric, percent, printable
from nextturn.probe.stats import Estimate

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# --- What is shown, before anything is drawn: panels, points, arrows, the frontier, names.

Spot = tuple[float, float]
Box = tuple[float, float, float, float]
"""left, bottom, right, top, in pixels"""


@dataclass(frozen=True)
class Point:
    """One run in one panel: accuracy and follow-up in [0, 1], each measured."""

    run: int
    x: Estimate
    y: Estimate

    @property
    def at(self) -> Spot:
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


def panels_of(comparison: Comparison) -> list[Panel]:
    """One panel per follow-up set for which some run has both numbers.

    Follow-up stands against the set's own accuracy where all runs have it, else against that of the first set.
    """
    panels = []
    lenient = [metric for metric in comparison.figures if metric.name == "lenient"]
    for name in comparison.sets("followup") if lenient else ():
        accuracy = Metric("accuracy", name, "lenient")
        if accuracy not in lenient or not all(estimate.n for estimate in comparison.figures[accuracy]):
            accuracy = lenient[0]
        points: dict[str, list[Point]] = {}
        for decoding in comparison.temperatures(name):
            pairs = zip(comparison.figures[accuracy], comparison.drawn(Metric("followup", name, decoding)), strict=True)
            if measured := [Point(run, x, y) for run, (x, y) in enumerate(pairs) if x.n and y.n]:
                points[decoding] = measured
        if points:
            shown = {decoding: points[decoding] for decoding in (next(iter(points)), list(points)[-1])}
            real = [run.results.actual[name].genuine for run in comparison.runs if name in run.results.actual]
            panels.append(Panel(name, accuracy, shown, real[0] if real else None))
    return panels


def arrows(comparison: Comparison, points: Sequence[Point]) -> list[tuple[int, int]]:
    """The pairs of runs among these points that arrows join: along each path, from what its training run started from,
    or from the baseline where that was not measured."""
    shown = {point.run for point in points}
    joined: list[tuple[int, int]] = []
    for path in comparison.paths:
        started = len(path) > 1 and comparison.runs[path[0]].results.model.step == 0
        joined += pairwise(run for run in (path if started else [0, *path]) if run in shown)
    return joined


def frontier(points: Sequence[Spot]) -> list[Spot]:
    """The points that no other one beats in one direction without losing in the other, from left to right."""
    kept: list[Spot] = []
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
    """A path's last checkpoint by its step, those before by the bare number; all else by name."""
    step = comparison.runs[run].results.model.step
    path = next((path for path in comparison.paths if run in path), [])
    if not step or len(path) < 2:
        return _short_name(comparison.names[run])
    return f"step {step}" if run == path[-1] else str(step)


def _short_name(name: str) -> str:
    """At most 22 characters: the end tells checkpoints apart."""
    return name if len(name) <= 22 else "…" + name[-21:]


# --- The drawing, as a PNG for print and as SVG for the page.

BASELINE = ("#222222", "s")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = ("o", "^", "D", "v", "P", "X", "p")
STYLES = [
    (_COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)])
    for number in range(len(_COLOURS) * len(_MARKERS))
]
"""Colour and marker of each path, in order; six and seven have no common factor, so all 42 pairs are used."""
SOFT, GRID, SHADE = "#555555", "#e4e4e4", "#f0f0f0"
REAL: dict[str, Any] = {"color": "#222222", "linestyle": (0, (1, 2)), "linewidth": 1.0}
LOOKS: dict[Any, Any] = {
    "text.parse_math": False,  # names may hold dollar signs
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7,
}  # fmt: skip
_XLINK_HREF = "{http://www.w3.org/1999/xlink}href"
DPI = 300
PANEL_WIDTH, PANEL_HEIGHT, PANELS_PER_ROW = 3.4, 3.0, 2  # inches

# What each colour is on the page: names of the style sheet, so that the drawing follows light and dark.
PAGE_COLOURS = {
    "#000000": "--soft", "#ffffff": "--ground", "#222222": "--text", SOFT: "--soft", GRID: "--faint", SHADE: "--raised",
    **{colour: f"--path-{number}" for number, colour in enumerate(_COLOURS)},
}  # fmt: skip


def draw_tradeoff(comparison: Comparison, path: Path) -> None:
    """Write the trade-off of a comparison as a PNG; delete `path` where accuracy or follow-up was not measured."""
    import matplotlib

    panels = panels_of(comparison)
    if not panels:
        path.unlink(missing_ok=True)
        return
    settings = comparison.runs[0].results.settings.others
    judge = settings.get("judge")
    sizes = "; ".join(
        f"accuracy on {printable(metric.set)} n = {_sizes(comparison, metric)}"
        for metric in comparison.figures
        if metric.name == "lenient"
    )
    forced = "MEASURED DIFFERENTLY" if comparison.differences else ""
    judged_by = f"judge {printable(judge if isinstance(judge, str) else json.dumps(judge))}"
    judged_by += f", {_corrected_by(comparison)}" if comparison.all_corrected else ""
    heading = "; ".join(part for part in (judged_by, sizes, "95% intervals", forced) if part)
    with matplotlib.rc_context(LOOKS):
        figure = _draw(comparison, panels, panels, heading)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    write_atomic(path, buffer.getvalue())


def page_drawings(comparison: Comparison, link: Callable[[str, Point, str], str]) -> list[str]:
    """One SVG element per panel, without styles of its own: colours are variables of the page's style sheet.

    Every marker is an `<a class="point">` to `link(set, point, decoding)`, with its figures as title and as `.tip`.
    """
    import matplotlib

    drawings = []
    panels = panels_of(comparison)
    for number, panel in enumerate(panels):
        tips = {}
        for decoding, points in panel.points.items():
            for point in points:
                figures = f"accuracy {percent(point.x)}, {_followup(comparison)} {percent(point.y)}"
                figures += " corrected" if comparison.all_corrected else ""
                tips[link(panel.set, point, decoding)] = (f"{comparison.names[point.run]}, {decoding}", figures)
        # The salt makes the ids of markers and clips differ between panels, and the same every time.
        with matplotlib.rc_context({**LOOKS, "svg.fonttype": "none", "svg.hashsalt": f"panel {number}"}):
            figure = _draw(comparison, [panel], panels, link=link)
            for text in figure.axes[0].texts:
                text.set_path_effects([])  # the style sheet draws the rim, so that names stay text
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        drawings.append(
            _for_page(buffer.getvalue(), f"accuracy against {_followup(comparison)} on {printable(panel.set)}", tips)
        )
    return drawings


def _for_page(svg: str, label: str, tips: Mapping[str, tuple[str, str]]) -> str:
    """An SVG of matplotlib as an element of the page, whose policy allows no style but the page's own sheet."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        if (href := element.attrib.pop(_XLINK_HREF, None)) is not None:
            element.set("href", href)
        for declaration in element.attrib.pop("style", "").split("; "):
            name, _, value = declaration.partition(": ")
            if name and name != "font-family":
                element.set(name, f"var({PAGE_COLOURS[value]})" if value in PAGE_COLOURS else value)
        if element.tag == "g" and (given := element.attrib.pop("id", "")) in ("name", "sizes", "heading"):
            element.set("class", given)
        for child in [child for child in element if child.tag.rpartition("}")[2] in ("metadata", "style")]:
            element.remove(child)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "group", "aria-label": label}
    [sizes] = root.findall(".//g[@class='sizes']/text")  # a tip stands in its place
    for marker in root.iter("a"):
        who, figures = tips[marker.attrib["href"]]
        marker.attrib = {"href": marker.attrib["href"], "class": "point", "aria-label": f"{who}: {figures}"}
        title = ElementTree.Element("title")
        title.text = f"{who}: {figures}"
        marker.insert(0, title)
        tip = ElementTree.SubElement(marker, "text", {"class": "tip", "aria-hidden": "true"})
        for text, above in ((who, 9.0), (figures, 0.0)):
            at = {"x": sizes.attrib["x"], "y": f"{float(sizes.attrib['y']) - above:.2f}"}
            ElementTree.SubElement(tip, "tspan", at).text = text
    return ElementTree.tostring(root, encoding="unicode")


def _draw(
    comparison: Comparison,
    panels: Sequence[Panel],
    all_panels: Sequence[Panel],
    heading: str = "",
    link: Callable[[str, Point, str], str] | None = None,
) -> Figure:
    """The panels with a legend below. Panels against the same accuracy share its axis, all share the other one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(panels), PANELS_PER_ROW)
    rows = math.ceil(len(panels) / PANELS_PER_ROW)
    figure = Figure(figsize=(PANEL_WIDTH * columns, PANEL_HEIGHT * rows + 0.6), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    if heading:
        wrapped = textwrap.fill(heading, int(17 * PANEL_WIDTH * columns))  # 17 letters of 7 points to the inch
        figure.suptitle(wrapped, fontsize=7, color=SOFT)
    axes = list(figure.subplots(rows, columns, squeeze=False).flatten())
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    styles = [BASELINE] * len(comparison.runs)
    for number, path in enumerate(comparison.paths):
        for run in path:
            styles[run] = STYLES[number % len(STYLES)]
    up = [point.y for panel in all_panels for points in panel.points.values() for point in points]
    up += [panel.real for panel in all_panels if panel.real]
    for axis, panel in zip(axes, panels, strict=False):
        same = [other for other in all_panels if other.accuracy == panel.accuracy]
        axis.set_xlim(*_limits([point.x for other in same for points in other.points.values() for point in points]))
        axis.set_ylim(*_limits(up))
        _draw_panel(axis, comparison, panel, styles, link)
    for axis in axes[::columns]:
        axis.set_ylabel(f"{_followup(comparison)} (%)")
    # The heading of a picture that stands alone says it already.
    also = _corrected_by(comparison) if comparison.all_corrected and not heading else ""
    _draw_legend(figure, comparison, panels, styles, columns, also)
    figure.draw_without_rendering()  # settles the layout, so that names can be placed in pixels
    figure.set_layout_engine("none")
    for axis, panel in zip(axes, panels, strict=False):
        _name_markers(axis, comparison, panel, styles)
    return figure


def _draw_panel(
    axis: Axes,
    comparison: Comparison,
    panel: Panel,
    styles: Sequence[tuple[str, str]],
    link: Callable[[str, Point, str], str] | None,
) -> None:
    """Everything but the names, which need the final layout; the axis limits must be set."""
    if len(comparison.runs) > 1:
        # The area under the frontier, a staircase down from the left.
        best = frontier([point.at for point in next(iter(panel.points.values()))])
        xs, ys = [axis.get_xlim()[0], *(x for x, _ in best)], [best[0][1], *(y for _, y in best)]
        axis.fill_between(xs, ys, axis.get_ylim()[0], step="pre", color=SHADE, linewidth=0, zorder=0)
    if panel.real and panel.real.value is not None:
        axis.axhline(100 * panel.real.value, zorder=1, **REAL)
    for hollow, (decoding, points) in enumerate(panel.points.items()):
        at = {point.run: point.at for point in points}
        for start, end in arrows(comparison, points):
            arrow = {"arrowstyle": "-|>", "color": styles[end][0], "linewidth": 0.9, "mutation_scale": 6}
            arrow |= {"shrinkA": 3.5, "shrinkB": 3.5, "linestyle": (0, (3, 2)) if hollow else "-"}
            axis.annotate("", xy=at[end], xytext=at[start], arrowprops=arrow, zorder=3)
        for point in points:
            colour, marker = styles[point.run]
            bars: dict[str, Any] = {"fmt": "none", "ecolor": colour, "elinewidth": 0.7, "alpha": 0.4, "zorder": 2}
            # A run's accuracy is one number at every temperature: its interval is drawn once, with the filled marker.
            across = None if hollow else _error_bars(point.x)
            for bar in axis.errorbar(*point.at, xerr=across, yerr=_error_bars(point.y), **bars).lines[2]:
                bar.set_linestyle((0, (2, 1.5)) if hollow else "-")
            looks: dict[str, Any] = {"color": colour, "markersize": 4.5, "markeredgewidth": 0.9}
            looks["markerfacecolor"] = "white" if hollow else colour
            looks["url"] = link(panel.set, point, decoding) if link else None
            axis.plot(*point.at, marker, zorder=4, **looks)
    sizes = ", ".join(f"{name} n = {_sizes(comparison, Metric('followup', panel.set, name))}" for name in panel.points)
    heading = f"{_followup(comparison)} on {printable(panel.set, 30)}"
    axis.set_title(heading, fontweight="bold", pad=15, gid="heading")
    under: dict[str, Any] = {"transform": axis.transAxes, "ha": "center", "va": "bottom", "fontsize": 7, "color": SOFT}
    axis.text(0.5, 1.02, sizes, gid="sizes", **under)
    axis.set_xlabel(f"accuracy on {printable(panel.accuracy.set, 40)} (%)")
    axis.grid(True, color=GRID, linewidth=0.5)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_legend(
    figure: Figure,
    comparison: Comparison,
    panels: Sequence[Panel],
    styles: Sequence[tuple[str, str]],
    columns: int,
    also: str,
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def entry(label: str, **style: Any) -> Line2D:
        return Line2D([], [], label=label, **{"color": SOFT, "linewidth": 0.9, "markersize": 4.5, **style})

    handles: list[Any] = []
    for path in (path for path in comparison.paths if len(path) > 1):
        colour, marker = styles[path[0]]
        handles.append(entry(_short_name(path_name(comparison, path)), color=colour, marker=marker))
    for order, name in enumerate(dict.fromkeys(name for panel in panels for name in panel.points)):
        filling = {"linestyle": "--", "markerfacecolor": "white"} if order else {}
        handles.append(entry(f"{name} (greedy)" if name == "T=0.0" else name, marker="o", **filling))
    if len(comparison.runs) > 1:
        handles.append(entry("baseline", color=BASELINE[0], marker=BASELINE[1], linestyle=""))
        handles.append(Patch(color=SHADE, label="some run is as good or better"))
    if any(panel.real for panel in panels):
        handles.append(entry("real users, as judged" if comparison.all_corrected else "real users", **REAL))
    if also:
        handles.append(entry(also, linestyle=""))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(2 * columns, len(handles)), frameon=False)


def _followup(comparison: Comparison) -> str:
    """What the drawn follow-up rates are called."""
    return "follow-up" if comparison.all_corrected else comparison.followup


def _corrected_by(comparison: Comparison) -> str:
    assert comparison.correction is not None
    return f"follow-up corrected by {sum(comparison.correction.labels.values())} labels"


def _error_bars(estimate: Estimate) -> list[list[float]] | None:
    """Lengths of the error bar below and above the value, in percent, as matplotlib wants them."""
    if estimate.ci95 is None or estimate.value is None:
        return None
    low, high = estimate.ci95
    return [[max(0.0, 100 * (estimate.value - low))], [max(0.0, 100 * (high - estimate.value))]]


def _limits(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Axis limits in percent: every interval with some room, never much beyond 0 and 100."""
    reached = [100 * end for one in estimates for end in (one.ci95 or (one.value or 0.0,) * 2)]
    room = max(3.0, 0.12 * (max(reached) - min(reached)))
    return max(-5.0, min(reached) - room), min(105.0, max(reached) + room)


def _sizes(comparison: Comparison, metric: Metric) -> str:
    """100, or 98–100 where runs have different numbers of observations: all of them would not fit."""
    sizes = [estimate.n for estimate in comparison.figures[metric] if estimate.n]
    return str(min(sizes)) if min(sizes) == max(sizes) else f"{min(sizes)}–{max(sizes)}"


# --- Names beside markers, placed so that they cover neither each other nor what is drawn: every name tries rings of
# positions, near ones first, and takes the one that covers least. Good enough for a dozen names.

DISTANCES = (5.0, 9.0, 15.0, 23.0, 33.0)  # points from the marker
DIRECTIONS = 16


def _name_markers(axis: Axes, comparison: Comparison, panel: Panel, styles: Sequence[tuple[str, str]]) -> None:
    """Names each run beside its first marker, with a thin leader where the name stands away from it."""
    import numpy as np
    from matplotlib.patheffects import withStroke

    figure = axis.get_figure(root=True)
    assert figure is not None
    unit = figure.dpi / 72  # pixels to the point
    frame = axis.get_window_extent()
    room = (frame.x0, frame.y0, frame.x1, frame.y1)
    to_data = axis.transData.inverted()

    def pixels(spot: Spot) -> Spot:
        x, y = axis.transData.transform(spot)
        return float(x), float(y)

    markers = [pixels(point.at) for points in panel.points.values() for point in points]
    crowd = [(x - 4 * unit, y - 4 * unit, x + 4 * unit, y + 4 * unit) for x, y in markers]
    # Covering a line is counted by points along it.
    lines = [(pixels(start), pixels(end)) for start, end in _lines(comparison, panel)]
    along = [np.linspace(*ends, max(2, int(math.dist(*ends) / (2 * unit)))) for ends in lines]
    grains = np.concatenate([np.empty((0, 2)), *along])
    taken: list[Box] = []
    for point in next(iter(panel.points.values())):
        if point.run not in comparison.ends:
            continue
        colour = styles[point.run][0]
        name = marker_name(comparison, point.run)
        text = axis.text(*point.at, name, fontsize=7, color=colour, zorder=6, gid="name")
        text.set_path_effects([withStroke(linewidth=1.5, foreground="white")])
        extent = text.get_window_extent()
        x, y = pixels(point.at)
        boxes = {}
        for distance in DISTANCES:
            for step in range(DIRECTIONS):
                across, up = math.cos(2 * math.pi * step / DIRECTIONS), math.sin(2 * math.pi * step / DIRECTIONS)
                middle_x = x + across * (distance * unit + extent.width / 2)
                middle_y = y + up * (distance * unit + extent.height / 2)
                left, bottom = middle_x - extent.width / 2, middle_y - extent.height / 2
                box = (left, bottom, left + extent.width, bottom + extent.height)
                # Near and to the right is best.
                boxes[box] = distance + 2 * (1 - across) + _cost(box, room, taken, crowd, grains, unit)
        box = min(boxes, key=boxes.__getitem__)
        taken.append(box)
        at_x, at_y = to_data.transform(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2))
        text.set_position((float(at_x), float(at_y)))
        text.set(horizontalalignment="center", verticalalignment="center_baseline")
        nearest = (min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3]))
        if math.dist(nearest, (x, y)) > 11 * unit:
            ends = to_data.transform([(x, y), nearest])
            axis.plot(*zip(*ends, strict=True), color=colour, linewidth=0.5, alpha=0.7, zorder=5)


def _cost(box: Box, room: Box, taken: Sequence[Box], crowd: Sequence[Box], grains: np.ndarray, unit: float) -> float:
    """What a box covers: other names cost most, then markers and the edge of the panel, then lines."""
    area = (box[2] - box[0]) * (box[3] - box[1])
    padded = (box[0] - unit, box[1] - unit, box[2] + unit, box[3] + unit)
    names = sum(_overlap(padded, other) for other in taken) / area
    markers = sum(_overlap(padded, other) for other in crowd) / (8 * unit) ** 2
    outside = 1 - _overlap(box, room) / area
    covered = ((grains >= box[:2]) & (grains <= box[2:])).all(axis=1).sum()
    return float(500 * names + 200 * markers + 1500 * outside + 1.5 * covered)


def _overlap(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _lines(comparison: Comparison, panel: Panel) -> list[tuple[Spot, Spot]]:
    """Every arrow and interval of a panel, in percent."""
    lines: list[tuple[Spot, Spot]] = []
    for hollow, points in enumerate(panel.points.values()):
        at = {point.run: point.at for point in points}
        lines += [(at[start], at[end]) for start, end in arrows(comparison, points)]
        for point in points:
            (x, y), across, up = point.at, point.x.ci95, point.y.ci95
            lines += [((100 * across[0], y), (100 * across[1], y))] if across and not hollow else []
            lines += [((x, 100 * up[0]), (x, 100 * up[1]))] if up else []
    return lines
