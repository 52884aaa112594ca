"""The trade-off as SVG: accuracy to the right, genuine follow-ups upwards, one panel per follow-up set.

The panels, paths and frontier of tradeoff.png. Filled markers are greedy decoding, hollow ones the highest
temperature. A marker shows its figures when it is pointed at or reached by keyboard, and leads to its conversations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from probe.comparing.page_parts.markup import Html, tag, view
from probe.comparing.page_parts.numbers import bounds, percent
from probe.comparing.page_parts.scale import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, Scale, axes, limits
from probe.comparing.placing import Box, Spot, candidates, cost, grains_of
from probe.comparing.results import Metric, printable
from probe.comparing.tables import sizes_of
from probe.comparing.tradeoff import MANY, Panel, Point, arrows, frontier, marker_name, panel_of, paths, short_name
from probe.stats import Estimate

if TYPE_CHECKING:
    from probe.compare import Comparison

LETTER, LINE = 6.4, 13  # width and height of a name's letters
COLOURS = 6  # classes path-0 to path-5 of the style sheet
# Corners of the markers, so that paths are told apart in grey print too: square, octagon, triangle, diamond, ...
BASELINE: tuple[Spot, ...] = ((-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5))
SHAPES: tuple[tuple[Spot, ...], ...] = (
    ((-2, -5), (2, -5), (5, -2), (5, 2), (2, 5), (-2, 5), (-5, 2), (-5, -2)),
    ((0, -6), (5.5, 4.5), (-5.5, 4.5)),
    ((0, -6), (6, 0), (0, 6), (-6, 0)),
    ((0, 6), (5.5, -4.5), (-5.5, -4.5)),
)


def planes(comparison: Comparison) -> Html | None:
    panels = [panel for name in comparison.sets("followup") for panel in [panel_of(comparison, name)] if panel]
    if not panels:
        return None
    rates = [point.y for panel in panels for points in panel.points.values() for point in points]
    up = limits([*rates, *(panel.real for panel in panels if panel.real is not None and panel.real.n)])
    drawn = []
    for panel in panels:
        same = [other for other in panels if other.accuracy == panel.accuracy]
        across = limits([point.x for other in same for points in other.points.values() for point in points])
        drawn.append(_panel(comparison, panel, Scale(across, up)))
    return tag("div", *drawn, tag("p", _legend(comparison, panels), class_="note"), class_="planes")


def _legend(comparison: Comparison, panels: Sequence[Panel]) -> str:
    first = next(iter(panels[0].points))
    told = f"Filled: {'greedy decoding' if first == 'T=0.0' else first}"
    highest = next((name for panel in panels for name in list(panel.points)[1:]), None)
    told += f"; hollow: {highest}. " if highest else ". "
    if len(comparison.runs) > 1:
        told += (
            "The square is the baseline; arrows follow a training run from its start along its checkpoints. Shaded: what some run "
            "reaches or beats in both directions; its edge is the frontier. "
        )
    return told + "Whiskers are 95% intervals. A marker leads to its conversations."


def _panel(comparison: Comparison, panel: Panel, scale: Scale) -> Html:
    looks = [("baseline", BASELINE)] * len(comparison.runs)
    for number, path in enumerate(paths(comparison)):
        for run in path:
            looks[run] = (f"path-{number % COLOURS}", SHAPES[number % len(SHAPES)])
    filled = next(iter(panel.points.values()))
    shade = _frontier(frontier([point.at for point in filled]), scale) if len(comparison.runs) > 1 else None
    frame = axes(scale, f"accuracy on {printable(panel.accuracy.set, 40)} (%)", "genuine follow-ups (%)")
    parts: list[Html | None] = [shade, frame, _real(panel, scale)]
    for order, (name, points) in enumerate(panel.points.items()):
        at = {point.run: scale.at(point.at) for point in points}
        joined = arrows(comparison, points)
        parts += [_arrow(at[start], at[end], looks[end][0], order > 0) for start, end in joined]
        parts += [_point(comparison, panel, name, point, scale, looks[point.run]) for point in points]
    parts += _names(comparison, panel, scale, [kind for kind, _ in looks])
    sizes = [f"{name} n = {sizes_of(comparison, Metric('followup', panel.set, name))}" for name in panel.points]
    caption = tag("figcaption", tag("strong", f"Follow-up on {panel.set}"), f" {', '.join(sizes)}")
    told = f"accuracy against follow-up on {panel.set}"
    return tag("figure", caption, tag("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="group", aria_label=told))


def _real(panel: Panel, scale: Scale) -> Html | None:
    """What the real users of a transcript set reach."""
    if panel.real is None or panel.real.value is None:
        return None
    y = scale.y(100 * panel.real.value)
    line = tag("line", x1=LEFT, x2=RIGHT, y1=y, y2=y)
    told = tag("text", f"real users {_words(panel.real)}", x=LEFT + 6, y=y - 4, class_="tick")
    return tag("g", line, told, class_="real")


def _frontier(points: Sequence[Spot], scale: Scale) -> Html:
    """The area under a staircase that leads down from the left."""
    steps = f"M{LEFT} {scale.y(points[0][1]):.2f}"
    for (x, _), following in zip(points, [*(y for _, y in points[1:]), None], strict=True):
        end = BOTTOM if following is None else scale.y(following)
        steps += f"H{scale.x(x):.2f}V{end:.2f}"
    return tag("path", d=f"{steps}H{LEFT}Z", class_="frontier")


def _arrow(start: Spot, end: Spot, kind: str, hollow: bool) -> Html | None:
    length = math.dist(start, end)
    if length < 16:  # no room between two markers
        return None
    across, up = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    (x1, y1), (x2, y2) = (start[0] + 6 * across, start[1] + 6 * up), (end[0] - 7 * across, end[1] - 7 * up)
    back = (x2 - 7 * across, y2 - 7 * up)
    head = _corners([(x2, y2), (back[0] - 3 * up, back[1] + 3 * across), (back[0] + 3 * up, back[1] - 3 * across)])
    line = tag("line", x1=x1, y1=y1, x2=back[0], y2=back[1])
    return tag("g", line, tag("polygon", points=head), class_=f"arrow {kind}{' hollow' * hollow}", aria_hidden="true")


def _point(
    comparison: Comparison, panel: Panel, decoding: str, point: Point, scale: Scale, looks: tuple[str, Sequence[Spot]]
) -> Html:
    x, y = scale.at(point.at)
    kind, corners = looks
    name = comparison.names[point.run]
    hollow = decoding != next(iter(panel.points))
    lines = [
        tag("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], class_="whisker")
        for start, end in scale.whiskers(point, hollow)
    ]
    marker = tag("polygon", points=_corners([(x + right, y + down) for right, down in corners]), class_="marker")
    figures = f"{decoding}: accuracy {_words(point.x)}, follow-up {_words(point.y)}"
    tip = tag("text", f"{short_name(name)}, {figures}", x=RIGHT, y=12, class_="tip end", aria_hidden="true")
    return tag(
        "a", tag("title", f"{name}, {figures}"), *lines, marker, tip,
        href=view(a=name, kind="followup", set=panel.set, perturbation="none", temperature=decoding),
        aria_label=f"{name}, {figures}", class_=f"point {kind}{' hollow' * hollow}",
    )  # fmt: skip


def _names(comparison: Comparison, panel: Panel, scale: Scale, kinds: Sequence[str]) -> list[Html]:
    """Each run is named beside its first marker, clear of markers, paths and whiskers where there is room."""
    groups = list(panel.points.values())
    ends = {0, *(path[0] for path in paths(comparison)), *(path[-1] for path in paths(comparison))}
    best = frontier([point.at for point in groups[0]])
    few = len(comparison.runs) <= MANY
    chosen = [point for point in groups[0] if few or point.run in ends or point.at in best]
    markers = [scale.at(point.at) for points in groups for point in points]
    crowd = [(x - 6, y - 6, x + 6, y + 6) for x, y in markers]
    grains = [grain for line in _lines(comparison, groups, scale) for grain in grains_of(*line, 1.5)]
    taken: list[Box] = []
    texts = []
    for point in chosen:
        name = marker_name(comparison, point.run)
        boxes = candidates(*scale.at(point.at), LETTER * len(name), LINE, 1.3)
        costs = {
            box: near + cost(box, (LEFT, TOP, RIGHT, BOTTOM), taken, crowd, grains, 1.3) for box, near in boxes.items()
        }
        left, _, right, bottom = best_box = min(costs, key=costs.__getitem__)
        taken.append(best_box)
        texts.append(tag("text", name, x=(left + right) / 2, y=bottom - 3, class_=f"name middle {kinds[point.run]}"))
    return texts


def _lines(comparison: Comparison, groups: Sequence[Sequence[Point]], scale: Scale) -> list[Line]:
    """Everything that a name should not stand on."""
    lines: list[Line] = []
    for order, points in enumerate(groups):
        at = {point.run: scale.at(point.at) for point in points}
        lines += [(at[start], at[end]) for start, end in arrows(comparison, points)]
        for point in points:
            lines += scale.whiskers(point, order > 0)
    return lines


def _corners(spots: Sequence[Spot]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in spots)


def _words(estimate: Estimate) -> str:
    return f"{percent(estimate)} {bounds(estimate)}".strip()
