"""The frame of one trade-off panel: from percent to the units of its drawing, and the axes."""

from __future__ import annotations

from collections.abc import Sequence

from probe.comparing.page_parts.markup import Html, tag
from probe.comparing.placing import Spot
from probe.comparing.tradeoff import Point
from probe.stats import Estimate

WIDTH, HEIGHT = 460, 350
LEFT, RIGHT, TOP, BOTTOM = 44, WIDTH - 12, 22, HEIGHT - 42  # the edges of what the axes enclose
Line = tuple[Spot, Spot]


class Scale:
    """`across` and `up` are the ends of the axes in percent."""

    def __init__(self, across: tuple[float, float], up: tuple[float, float]) -> None:
        self.across, self.up = across, up

    def x(self, value: float) -> float:
        low, high = self.across
        return LEFT + (RIGHT - LEFT) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.up
        return BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low)

    def at(self, spot: Spot) -> Spot:
        return self.x(spot[0]), self.y(spot[1])

    def whiskers(self, point: Point, hollow: bool) -> list[Line]:
        """A run's accuracy is one number at every temperature: its interval is drawn with the filled marker alone."""
        x, y = self.at(point.at)
        lines: list[Line] = []
        if point.x.ci95 and not hollow:
            low, high = (self.x(100 * bound) for bound in point.x.ci95)
            lines.append(((low, y), (high, y)))
        if point.y.ci95:
            low, high = (self.y(100 * bound) for bound in point.y.ci95)
            lines.append(((x, low), (x, high)))
        return lines


def limits(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Ends of an axis in percent: every interval with some room, never much beyond 0 and 100."""
    ends = [100 * end for one in estimates for end in (one.ci95 or (one.value or 0.0,) * 2)]
    room = max(3.0, 0.08 * (max(ends) - min(ends)))
    return max(-3.0, min(ends) - room), min(103.0, max(ends) + room)


def axes(scale: Scale, across: str, up: str) -> Html:
    parts = []
    for value in _ticks(*scale.across):
        x = scale.x(value)
        parts.append(tag("line", x1=x, x2=x, y1=TOP, y2=BOTTOM, class_="grid"))
        parts.append(tag("text", str(value), x=x, y=BOTTOM + 15, class_="tick middle"))
    for value in _ticks(*scale.up):
        y = scale.y(value)
        parts.append(tag("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", str(value), x=LEFT - 6, y=y + 4, class_="tick end"))
    middle = (TOP + BOTTOM) / 2
    parts.append(tag("path", d=f"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}", class_="axis"))
    parts.append(tag("text", across, x=(LEFT + RIGHT) / 2, y=HEIGHT - 8, class_="middle"))
    parts.append(tag("text", up, x=12, y=middle, class_="middle", transform=f"rotate(-90 12 {middle:g})"))
    return tag("g", *parts, aria_hidden="true")


def _ticks(low: float, high: float) -> list[int]:
    step = next((step for step in (1, 2, 5, 10, 20) if (high - low) / step <= 7), 20)
    return [value for value in range(0, 101, step) if low <= value <= high]
