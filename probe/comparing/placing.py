"""Places names beside markers in a plot so that they cover neither each other nor what is drawn.

Every name tries a ring of positions, near ones first, and takes the one that covers least. Good enough for a
dozen names; no dependency is worth it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
