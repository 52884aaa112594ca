"""tradeoff.png: what a run solves (to the right) against how often it knows what a person would say next (upwards).

One panel per follow-up set, two to a row, made for print without scaling: a panel is as wide as a column of a
paper, a row as wide as its page. Where accuracy or follow-up was not measured, the figures that there are stand
one below the other. What a panel shows is said in `panels`.
"""

from __future__ import annotations

import io
import json
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.comparing.panels import (
    BASELINE,
    FRONTIER,
    REAL,
    STYLES,
    Style,
    axis_limits,
    draw_panel,
    error_bars,
    name_markers,
)
from probe.comparing.results import Metric, printable
from probe.comparing.tables import sizes_of, title
from probe.comparing.tradeoff import Panel, panel_of, path_name, paths, short_name
from probe.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from probe.compare import Comparison

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
