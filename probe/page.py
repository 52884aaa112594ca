"""report.html: a comparison as one file that works offline, figures first, then every conversation behind them.

The figures are plain HTML and SVG, made here and readable without a script. The conversations travel as JSON, and
the page's script shows them as text, never as markup: what a model wrote cannot become part of the page. The
page's own policy forbids every request and every script and style but the two that it carries.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from probe.comparison import (
    LOW,
    MEANING,
    Followup,
    Metric,
    Run,
    blocks,
    estimate_of,
    followups,
    printable,
    rate_of,
    sizes_of,
    title,
    unscored,
)
from probe.files import read_jsonl
from probe.judges.labels import GENUINE, LABELS, in_order
from probe.plot import (
    MANY,
    Box,
    Panel,
    Point,
    Spot,
    arrows,
    candidates,
    cost,
    frontier,
    grains_of,
    marker_name,
    panel_of,
    paths,
    short_name,
)
from probe.stats import NOTHING, Estimate, PairedDifference

if TYPE_CHECKING:
    from probe.compare import Comparison


# --- Markup that cannot be broken by what stands in it: every text is escaped unless it is already `Html`.
#
# Names of runs, sets, labels and settings come from folders, data files and models. Characters that would hide or
# reorder what is read are replaced, so that nothing on the page passes for something else.


class Html(str):
    """Text that is markup already; made by `tag` and `join` only."""


BREAK = Html("<br>")
LONG = 30
"""The name of a row breaks into lines beyond so many letters."""

Child = str | None
Attribute = str | int | float | None


def tag(name: str, *children: Child, **attributes: Attribute) -> Html:
    """<name attributes>children</name>. `class_` stands for class, `aria_label` for aria-label; None is left out."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{shown}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Html:
    return Html("".join(child if isinstance(child, Html) else _text(child) for child in children if child))


def table(caption: str, head: Sequence[Child], rows: Iterable[Sequence[Child]]) -> Html:
    """A table in a box that scrolls by itself; the first column names the row."""
    return _table(caption, head, tag("tbody", *map(_row, rows)))


def grouped_table(caption: str, head: Sequence[Child], groups: Mapping[str, Iterable[Sequence[Child]]]) -> Html:
    """A table whose rows stand in groups, each under a line with its name."""
    bodies = [
        tag("tbody", tag("tr", tag("th", name, colspan=len(head), scope="rowgroup"), class_="group"), *map(_row, rows))
        for name, rows in groups.items()
    ]
    return _table(caption, head, *bodies)


def beside(tables: Iterable[Child]) -> Html:
    """Tables side by side where there is room."""
    return tag("div", *tables, class_="beside")


def view(**filters: str | None) -> str:
    """The address, within the page, of the conversations that these filters leave."""
    return "#" + urlencode({key: value for key, value in filters.items() if value is not None}, quote_via=quote)


def link(text: str, **filters: str | None) -> Html:
    return tag("a", text, href=view(**filters))


def label_class(label: str) -> str:
    """One colour per label, in bars and in the conversations alike."""
    return f"label-{label}" if label.isidentifier() else "label-other"


def _table(caption: str, head: Sequence[Child], *bodies: Html) -> Html:
    top = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head)))
    made = tag("table", tag("caption", caption), top, *bodies)
    return tag("div", made, class_="scroll", role="region", aria_label=caption, tabindex=0)


def _row(cells: Sequence[Child]) -> Html:
    first, *others = cells
    long = len(re.sub(r"<[^>]*>", "", first or "")) > LONG
    return tag(
        "tr", tag("th", first, scope="row", class_="long" if long else None), *(tag("td", cell) for cell in others)
    )


def _text(text: str) -> str:
    """`escape` leaves control, bidirectional and other invisible characters as they are."""
    return escape("".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text))


def _number(value: Attribute) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


# --- How figures are written on the page: rates and differences in percent, intervals in a smaller hand.

NOTHING_TOLD = tag("span", "–")


def percent(estimate: Estimate) -> str:
    return "–" if estimate.value is None else f"{100 * estimate.value:.1f}"


def bounds(estimate: Estimate, scale: int = 100, digits: int = 1) -> str:
    """[47.2, 66.3], or nothing where there is no interval."""
    if estimate.ci95 is None:
        return ""
    return f"[{', '.join(_fixed(scale * bound, digits) for bound in estimate.ci95)}]"


def rate(estimate: Estimate) -> Html:
    """57.0 [47.2, 66.3]"""
    return tag("span", percent(estimate), " ", tag("small", bounds(estimate)), class_="figure")


def mean(estimate: Estimate) -> Html:
    """0.57 [0.47, 0.66]: a mean or an AUC."""
    if estimate.value is None:
        return NOTHING_TOLD
    return tag("span", _fixed(estimate.value, 2), " ", tag("small", bounds(estimate, 1, 2)), class_="figure")


def difference(change: PairedDifference | None) -> Html:
    """+3.1 [−0.8, +7.0], in bold where the interval excludes zero."""
    if change is None or change.value is None:
        return NOTHING_TOLD
    shown = tag("strong" if direction(change) else "span", signed(change.value))
    interval = "" if change.ci95 is None else f"[{', '.join(map(signed, change.ci95))}]"
    return tag("span", shown, " ", tag("small", interval), class_="figure")


def direction(change: PairedDifference | None) -> int:
    """1 or -1 where the interval lies above or below zero, else 0."""
    if change is None or change.ci95 is None:
        return 0
    return int(change.ci95[0] > 0) - int(change.ci95[1] < 0)


def signed(value: float, digits: int = 1) -> str:
    """In points, with its sign, and without one before zero."""
    shown = _fixed(100 * value, digits)
    return f"+{shown}" if value > 0 and float(shown) else shown


def p_value(value: float | None) -> str:
    return "–" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def short_hash(sha256: str | None) -> Html:
    return tag("code", sha256[:12], title=sha256) if sha256 else NOTHING_TOLD


def setting(value: Any) -> str:
    """Text as it is, everything else as JSON, and nothing as "none"."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def short_title(metric: Metric) -> str:
    """Without the name of the set: "accuracy, lenient", "ask when needed", "follow-up T=0.0 (greedy)"."""
    if metric.measure == "accuracy":
        return f"accuracy, {metric.name}"
    return f"follow-up {decoding(metric.name)}" if metric.measure == "followup" else title(metric).replace("_", " ")


def decoding(temperature: str) -> str:
    return f"{temperature} (greedy)" if temperature == "T=0.0" else temperature


def _fixed(value: float, digits: int) -> str:
    """A minus sign rather than a hyphen, and none before zero."""
    shown = f"{value:.{digits}f}"
    return shown.replace("-", "\N{MINUS SIGN}") if float(shown) else shown.removeprefix("-")


# --- The frame of one trade-off panel: from percent to the units of its drawing, and the axes.

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


# --- The trade-off as SVG: accuracy to the right, genuine follow-ups upwards, one panel per follow-up set.
#
# The panels, paths and frontier of tradeoff.png. Filled markers are greedy decoding, hollow ones the highest
# temperature. A marker shows its figures when it is pointed at or reached by keyboard, and leads to its conversations.

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


# --- Failure fingerprints: per set and decoding, one stacked bar of labels for each run, and how answers ended.
#
# The bars are drawn for every set, perturbation and temperature; the page's script shows the one that is chosen.
# Without the script, all are shown.

NUMBERED = 0.06
"""A narrower part of a bar has no room for its number."""

Bar = tuple[str, Followup, dict[str, str | None]]
"""Name of the row, its counts, and the filters that lead to its conversations."""


def labels(comparison: Comparison) -> Html | None:
    """One figure per set and decoding, and a list to choose from. Real user turns, where known, stand below."""
    metrics = [metric for metric in comparison.figures if metric.measure == "followup"]
    if not metrics:
        return None
    shown = []
    groups: dict[str, list[Html]] = {}
    for number, metric in enumerate(metrics):
        found = [*_bars(comparison, metric), *_bars_real(comparison, metric)]
        caption = tag("figcaption", _name(metric))
        shown.append(tag("figure", caption, *map(_drawn, found), _counts(metric, found), id=f"bars-{number}"))
        groups.setdefault(metric.set, []).append(tag("option", _name(metric), value=f"bars-{number}"))
    options = [tag("optgroup", *options, label=name) for name, options in groups.items()]
    choice = tag("label", "Set and decoding ", tag("select", *options, id="bars-choice"))
    return join(
        [tag("p", choice, class_="script choice"), _bars_legend(comparison, metrics), tag("div", *shown, id="bars")]
    )


def outcomes(comparison: Comparison) -> Html | None:
    tables = []
    for name in comparison.sets("accuracy"):
        parts = [one.results.accuracy.get(name) for one in comparison.runs]
        kinds = list(dict.fromkeys(kind for part in parts if part for kind in part.outcomes))
        rows = []
        for run, part in zip(comparison.names, parts, strict=True):
            if part:
                counts = [(kind, part.outcomes.get(kind, 0)) for kind in kinds]
                where = {"a": run, "kind": "accuracy", "set": name}
                cells = [link(str(count), **where, outcome=kind) if count else "0" for kind, count in counts]
                rows.append([run, *cells, str(part.n)])
        tables.append(
            table(f"How the answers to {name} ended", ["Run", *(kind.replace("_", " ") for kind in kinds), "n"], rows)
        )
    return beside(tables) if tables else None


def _drawn(bar: Bar) -> Html:
    name, part, where = bar
    total = part.n_total or 1
    parts = []
    start = 0.0
    for label, count in _ordered(part):
        if count:
            share = count / total
            number = None
            if share >= NUMBERED:
                number = tag("text", f"{100 * share:.0f}", x=f"{100 * (start + share / 2):.2f}%", y="50%")
            told = f"{name}: {label.replace('_', ' ')}, {count} of {part.n_total} ({100 * share:.1f}%)"
            area = tag(
                "rect", x=f"{100 * start:.3f}%", width=f"{100 * share:.3f}%", height="100%", class_=label_class(label)
            )
            filters = {**where, "label": label}
            parts.append(tag("a", tag("title", told), area, number, href=view(**filters), aria_label=told))
            start += share
    drawn = tag("svg", *parts, role="group", aria_label=f"labels of {name}")
    genuine = tag("span", percent(rate_of(part)), class_="rate")
    return tag("div", tag("span", name, class_="name"), drawn, genuine, class_="bar")


def _counts(metric: Metric, found: Sequence[Bar]) -> Html:
    given = in_order({label for _, part, _ in found for label, count in part.labels.items() if count})
    parts = [part for _, part, _ in found]
    columns: dict[str, list[Child]] = {
        label.replace("_", " "): [str(part.labels.get(label, 0)) for part in parts] for label in given
    }
    if any(part.unscored for part in parts):
        columns["unscored"] = [_reasons(part) for part in parts]
    columns["role-consistent"] = [rate(estimate_of(part.role_consistency)) for part in parts]
    columns["specific"] = [rate(estimate_of(part.specificity)) for part in parts]
    if any(part.grounding is not None for part in parts):
        columns["grounding"] = [mean(estimate_of(part.grounding)) for part in parts]
    rows = [[name, *(column[index] for column in columns.values())] for index, (name, _, _) in enumerate(found)]
    told = f"{_name(metric)}: counts; of the judged, percent role-consistent; of the genuine, percent specific"
    return table(told, ["Run", *columns], rows)


def _bars_legend(comparison: Comparison, metrics: Sequence[Metric]) -> Html:
    parts = [part for metric in metrics for part in followups(comparison, metric) if part]
    given = {label for part in parts for label, count in _ordered(part) if count}
    chips = [
        tag("span", label.replace("_", " "), class_=f"chip {label_class(label)}")
        for label in (*LABELS, "unscored")
        if label in given
    ]
    told = "Bars: percent of the user turns; on the right, the follow-up rate among those judged. Each part leads to its conversations."
    return tag("p", *chips, tag("span", told, class_="note"), class_="legend")


def _bars(comparison: Comparison, metric: Metric) -> list[Bar]:
    where = {
        "kind": "followup", "set": metric.set, "perturbation": metric.perturbation, "temperature": metric.name,
    }  # fmt: skip
    parts = zip(comparison.names, followups(comparison, metric), strict=True)
    return [(run, part, {"a": run, **where}) for run, part in parts if part]


def _bars_real(comparison: Comparison, metric: Metric) -> list[Bar]:
    """The real user turns of a transcript are the same whichever run was probed: those of the first that has them."""
    for run in comparison.runs if metric.perturbation == "none" else ():
        if metric.set in run.results.actual:
            where: dict[str, str | None] = {"a": run.name, "kind": "actual", "set": metric.set}
            return [("real users", run.results.actual[metric.set], where)]
    return []


def _ordered(part: Followup) -> list[tuple[str, int]]:
    """Labels in one order everywhere, those of no list after them, the unscored last."""
    others = [label for label in sorted(part.labels) if label not in LABELS]
    return [(label, part.labels.get(label, 0)) for label in (*LABELS, *others)] + [
        ("unscored", sum(part.unscored.values()))
    ]


def _name(metric: Metric) -> str:
    perturbed = "" if metric.perturbation == "none" else f", {metric.perturbation}"
    return f"{metric.set}, {decoding(metric.name)}{perturbed}"


def _reasons(part: Followup) -> Html:
    why = ", ".join(f"{reason} {count}" for reason, count in sorted(part.unscored.items()))
    return tag("span", str(sum(part.unscored.values())), " ", tag("small", why), class_="figure")


# --- What stands beside the main figures: perturbed answers, grounding, real user turns, and how it was measured.

Groups = dict[str, list[list[Child]]]


def perturbations(comparison: Comparison) -> Html | None:
    tables: dict[str, Groups] = {}
    for one in comparison.perturbed:
        where = {"a": one.run, "kind": "followup", "set": one.set, "temperature": one.temperature}
        plain = _rate(comparison, one.run, Metric("followup", one.set, one.temperature))
        after = _rate(comparison, one.run, Metric("followup", one.set, one.temperature, one.perturbation))
        groups = tables.setdefault(f"{one.set}: {one.perturbation}", {})
        groups.setdefault(decoding(one.temperature), []).append([
            one.run, link(percent(plain), **where, perturbation="none"),
            link(percent(after), **where, perturbation=one.perturbation),
            difference(one.difference), rate(one.changed_text),
        ])  # fmt: skip
    note = (
        "Positive controls: the answer was cut short or given another ending before the user turn was generated. A model that "
        "reads the answer then writes other user turns; one that does not, writes the same. Difference: perturbed "
        "minus plain, paired by item; text changed: share of user turns that are not the plain run's."
    )
    head = ["Run", "Plain", "Perturbed", "Difference [95%]", "Text changed [95%]"]
    shown = [grouped_table(f"{name}; follow-up in percent", head, groups) for name, groups in tables.items()]
    return join([beside(shown), tag("p", note, class_="note")]) if shown else None


def grounding(comparison: Comparison) -> Html | None:
    given = {label for one in comparison.grounding for label in one.labels}
    labels = in_order(given)
    groups: Groups = {}
    for one in comparison.grounding:
        means = [_counted(one.labels.get(label, NOTHING)) for label in labels]
        groups.setdefault(one.set, []).append([one.run, _counted(one.auc), *means])
    note = (
        "Grounding is (log p(user turn | question, answer) − log p(user turn | question)) per token, by the probed "
        "model itself, in nats: how much the answer explains the user turn. AUC is the chance that a genuine "
        "follow-up is grounded better than another user turn; 0.5 tells nothing. All temperatures together."
    )
    chips = [tag("span", label.replace("_", " "), class_=f"chip {label_class(label)}") for label in labels]
    return _section(
        "AUC and mean grounding by label, with 95% intervals", ["Run", "AUC, genuine", *chips], groups, note
    )


def actual(comparison: Comparison) -> Html | None:
    against = {(one.run, one.set, one.temperature): one.difference for one in comparison.against_actual}
    groups: Groups = {}
    for run in comparison.runs:
        for name, part in run.results.actual.items():
            real = rate_of(part)
            shown = join([link(percent(real), a=run.name, kind="actual", set=name), " ", tag("small", f"n = {real.n}")])
            made = [metric for metric in comparison.figures if metric == Metric("followup", name, metric.name)]
            lines = [
                [f"{metric.name} ", rate(_rate(comparison, run.name, metric)), "; difference ",
                 difference(against.get((run.name, name, metric.name))), BREAK]
                for metric in made
            ]  # fmt: skip
            groups.setdefault(name, []).append([run.name, shown, join(part for line in lines for part in line)])
    note = (
        "Real conversations without their last user message: what the person did write there, judged like a generated "
        "turn. No model needs to reach 100: this is what people reach with this judge. Difference: generated minus "
        "real, paired by item."
    )
    return _section(
        "Genuine follow-ups, in percent", ["Run", "Real user turns", "Generated instead [95%]"], groups, note
    )


def measured(comparison: Comparison) -> Html | None:
    settings = comparison.runs[0].results.settings
    rows: list[list[Child]] = [
        [f"set {name}", join([f"{info.n} items; {', '.join(info.measures)}; ", short_hash(info.sha256)])]
        for name, info in settings.sets.items()
    ]
    rows += [[key, setting(value)] for key, value in settings.others().items()]
    rows.append(["chat template", short_hash(comparison.runs[0].results.model.template_sha256)])
    models: list[list[Child]] = []
    for one in comparison.runs:
        model = one.results.model
        models.append([one.name, model.path, str(model.step or "–"), short_hash(model.weights_sha256), str(one.folder)])
    described = f"Settings of {comparison.names[0]}" if comparison.differences else "Settings"
    return beside([
        table(described, ["Setting", "Value"], rows),
        table("Models", ["Run", "Model", "Step", "Weights, SHA-256", "Folder"], models),
    ])  # fmt: skip


def _section(caption: str, head: Sequence[Child], groups: Groups, note: str) -> Html | None:
    return join([grouped_table(caption, head, groups), tag("p", note, class_="note")]) if groups else None


def _rate(comparison: Comparison, run: str, metric: Metric) -> Estimate:
    found = comparison.figures.get(metric)
    return found[comparison.names.index(run)] if found else NOTHING


def _counted(estimate: Estimate) -> Html:
    return tag("span", mean(estimate), tag("small", f" n = {estimate.n}" if estimate.n else ""), class_="figure")


# --- The conversations that the page holds: rows of samples.jsonl, each message stored once.
#
# The runs of a comparison share their questions, and a run's temperatures and samples share their contexts, so
# messages and contexts are kept in lists that rows point into. A large comparison would make a page that no
# browser opens: then whole items are chosen, evenly over each set and the same ones in every run, so that what
# was gained or lost between two runs stays right for the items that are shown.

ROWS = 20_000
CHARACTERS = 24_000_000

# What a row says, in this order, after where it belongs: [cell, item, sample, context, ...].
FIELDS = (
    "user_turn", "user_cut", "label", "unscored", "judge_raw", "specific", "grounding", "log_p", "changed",
    "reference", "extracted", "strict", "lenient", "outcome", "asked",
)  # fmt: skip

# "<" could end the script element that holds the data; the two separators end a line in older JavaScript.
_ESCAPES = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"})
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Conversations:
    """`data` is what the page's script reads; `rows` of `rows_found` rows are in it."""

    data: dict[str, Any]
    rows: int
    rows_found: int
    items: int
    items_found: int

    def as_script(self) -> str:
        """JSON that is safe inside a script element."""
        text = json.dumps(self.data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)
        return _SURROGATES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def conversations(comparison: Comparison, rows: int = ROWS, characters: int = CHARACTERS) -> Conversations:
    """The rows of all runs, at most about `rows` of them with `characters` of text.

    Raises:
        DataError: a samples.jsonl holds a line that is no JSON object.
    """
    items, rows_found, length = _weigh(comparison)
    share = min(1.0, rows / max(rows_found, 1), characters / max(length, 1))
    chosen = {name: _evenly(list(found), share) for name, found in items.items()}
    tables = _Tables()
    kept = []
    for number, run in enumerate(comparison.runs):
        for row in _rows_of(run):
            if str(row["item"]) in chosen[str(row["set"])]:
                kept.append(tables.encode(number, row))
    data = {
        "runs": list(comparison.names),
        "labels": list(LABELS),
        "genuine": GENUINE,
        "fields": list(FIELDS),
        "cells": list(tables.cells),
        "items": list(tables.items),
        "messages": list(tables.messages),
        "contexts": list(tables.contexts),
        "rows": kept,
    }
    found = sum(map(len, items.values()))
    return Conversations(data, len(kept), rows_found, sum(map(len, chosen.values())), found)


class _Tables:
    """What rows share, each kept once under its number."""

    def __init__(self) -> None:
        self.cells: dict[tuple[Any, ...], int] = {}
        self.items: dict[str, int] = {}
        self.messages: dict[tuple[str, str], int] = {}
        self.contexts: dict[tuple[int, ...], int] = {}

    def encode(self, run: int, row: dict[str, Any]) -> list[Any]:
        kind = f"{row['kind']} {row['condition']}" if row.get("condition") else row["kind"]
        temperature = f"T={float(row.get('temperature') or 0)}"
        cell = (run, kind, row["set"], row.get("perturbation") or "none", temperature)
        context = tuple(
            _number_of(self.messages, (str(message["role"]), str(message["content"])))
            for message in row.get("messages") or ()
        )
        numbers = [_number_of(self.cells, cell), _number_of(self.items, str(row["item"]))]
        return [
            *numbers, row.get("sample") or 0, _number_of(self.contexts, context), *(row.get(name) for name in FIELDS),
        ]  # fmt: skip


def _number_of(table: dict[Any, int], value: Any) -> int:
    return table.setdefault(value, len(table))


def _rows_of(run: Run) -> Iterator[dict[str, Any]]:
    path = run.folder / "samples.jsonl"
    if path.is_file():
        for _, row in read_jsonl(path):
            yield row


def _weigh(comparison: Comparison) -> tuple[dict[str, dict[str, None]], int, int]:
    """Items by set in the order in which they come up, the number of rows, and how long their texts are."""
    items: dict[str, dict[str, None]] = defaultdict(dict)
    seen: set[int] = set()
    rows = length = 0
    for run in comparison.runs:
        for row in _rows_of(run):
            rows += 1
            items[str(row["set"])][str(row["item"])] = None
            length += len(row.get("user_turn") or "") + len(row.get("judge_raw") or "")
            for message in row.get("messages") or ():
                text = str(message["content"])
                if hash(text) not in seen:
                    seen.add(hash(text))
                    length += len(text)
    return items, rows, length


def _evenly(items: list[str], share: float) -> set[str]:
    """That share of the items, at least one, at equal distances."""
    count = max(1, int(len(items) * share))
    return {items[index * len(items) // count] for index in range(count)}


# --- The main tables of the page: rates, what each set shows, and every change against the baseline.
#
# Here and in `controls`, `bars` and `plane`, a section gives None where there is nothing to show.

KINDS = {
    "lenient": "accuracy",
    "strict": "accuracy",
    "ask_when_needed": "clarify underspecified",
    "answer_when_complete": "clarify complete",
}


def warnings(comparison: Comparison) -> Html | None:
    """What a reader must know before believing a figure."""
    forced = [
        tag("li", tag("strong", "Measured differently, compared by force: "), one) for one in comparison.differences
    ]
    missing = [tag("li", tag("strong", "Unscored, in no rate: "), line) for line in unscored(comparison)]
    lines = [*forced, *missing, *(tag("li", line) for line in comparison.remarks)]
    return tag("ul", *lines, class_="warnings forced" if forced else "warnings") if lines else None


def results(comparison: Comparison) -> Html | None:
    tables = []
    several = len(comparison.runs) > 1
    for block in blocks(comparison):
        columns = [one for metric in block for one in (metric, _strict(metric)) if one in comparison.figures]
        sets = list(dict.fromkeys(metric.set for metric in columns))
        titles = [join([*([metric.set, BREAK] if len(sets) > 1 else []), short_title(metric)]) for metric in columns]
        rows: list[list[Child]] = [["", *(f"n = {sizes_of(comparison, metric)}" for metric in columns)]]
        for index, name in enumerate(comparison.names):
            shown = join([name, tag("small", " baseline")]) if index == 0 and several else name
            rows.append([shown, *(_figure(comparison, metric, index) for metric in columns)])
        tables.append(table(f"{', '.join(sets)}: percent with 95% intervals", ["Run", *titles], rows))
    note = (
        "Intervals are Wilson's, on the effective number of observations where an item has several samples. "
        "Follow-up is the share of genuine follow-ups among the user turns that were judged. "
    )
    marks = "▲ and ▼: the paired difference to the baseline excludes zero." if several else ""
    return join([beside(tables), tag("p", note, marks, class_="note")]) if tables else None


def patterns(comparison: Comparison) -> Html | None:
    if not comparison.patterns:
        return None
    several = len(comparison.patterns) > 1
    rows = []
    for index, name in enumerate(comparison.names):
        cells: list[Child] = [name]
        for found in comparison.patterns.values():
            pattern = found[index]
            sampled = [f"{pattern.sampled_at or 'sampled'} ", rate(pattern.sampled)]
            cells.append(join([_badge(pattern.name), BREAK, "greedy ", rate(pattern.greedy), BREAK, *sampled]))
        rows.append([*cells, _badge(comparison.overall[index])] if several else cells)
    named = {pattern.name for found in comparison.patterns.values() for pattern in found}
    named |= set(comparison.overall) if several else set()
    told = [tag("div", tag("dt", _badge(name)), tag("dd", text)) for name, text in MEANING.items() if name in named]
    note = (
        f"High: the whole interval is at or above {LOW:.0%}; low: the whole interval is below it. Sampling is read at "
        "the highest temperature."
    )
    head = ["Run", *comparison.patterns, *(["All sets"] if several else [])]
    shown = table("What each set shows; follow-up rates in percent", head, rows)
    return join([shown, tag("dl", *told, class_="meaning"), tag("p", note, class_="note")])


def changes(comparison: Comparison) -> Html | None:
    """Perturbed runs are left out: `controls` holds them against the same run without the perturbation."""
    found = [
        (metric, run, change)
        for metric, changed in comparison.paired.items()
        for run, change in zip(comparison.names, changed, strict=True)
        if change is not None and change.ci95 is not None and metric.perturbation == "none"
    ]
    if not found:
        return None
    ends = [bound for _, _, change in found for bound in change.ci95 or ()]
    least, most = min(0.0, *ends), max(0.0, *ends)
    sets: dict[str, dict[str, list[list[Child]]]] = {}
    for metric, run, change in found:
        sets.setdefault(metric.set, {}).setdefault(short_title(metric), []).append([
            run, difference(change), _forest(change, least, most), tag("span", p_value(change.p_value), class_="figure"),
            _items(comparison, metric, run, "gained", change.gained),
            _items(comparison, metric, run, "lost", change.lost),
            join([str(change.n), tag("small", f" +{change.unmatched}" if change.unmatched else "")]),
        ])  # fmt: skip
    scale = tag("span", tag("span", signed(least, 0)), tag("span", signed(most, 0)), class_="scale")
    note = (
        "Run minus baseline, paired by item over those that both have. Where every item has one value: Bonett and Price's "
        "interval and McNemar's exact test; else a bootstrap over items. p is not corrected for the number of tests. Gained and lost count items, and lead "
        "to their conversations. Items: those in both runs, + those in one only, which no difference counts. The grey "
        "line in the drawings is zero."
    )
    head = ["Run", "Points [95%]", scale, "p", "Gained", "Lost", "Items"]
    tables = [
        grouped_table(f"{name}: difference to {comparison.names[0]}", head, groups) for name, groups in sets.items()
    ]
    return join([beside(tables), tag("p", note, class_="note")])


def _figure(comparison: Comparison, metric: Metric, index: int) -> Html:
    way = direction(comparison.paired[metric][index])
    mark = None
    if way:
        told = "above the baseline" if way > 0 else "below the baseline"
        mark = tag("span", "▲" if way > 0 else "▼", class_="up" if way > 0 else "down", role="img", aria_label=told)
    return tag("span", rate(comparison.figures[metric][index]), " ", mark, class_="figure")


def _strict(metric: Metric) -> Metric | None:
    return Metric("accuracy", metric.set, "strict") if metric.name == "lenient" else None


def _items(comparison: Comparison, metric: Metric, run: str, way: str, count: int) -> str:
    """The number of items gained or lost, as a link to their conversations in both runs."""
    if not count:
        return "0"
    followup = metric.measure == "followup"
    return link(
        str(count), a=comparison.names[0], b=run, set=metric.set, kind=KINDS.get(metric.name, "followup"),
        temperature=metric.name if followup else None, perturbation="none" if followup else None,
        change=f"{way} strict" if metric.name == "strict" else way,
    )  # fmt: skip


def _forest(change: PairedDifference, least: float, most: float) -> Html:
    """The interval as a line on a scale from `least` to `most`, in percent of the cell's width."""
    width = most - least or 1
    at = [f"{3 + 94 * (bound - least) / width:.2f}%" for bound in (0, *(change.ci95 or (0, 0)), change.value or 0)]
    return tag(
        "svg",
        tag("line", x1=at[0], x2=at[0], y1=0, y2=16, class_="zero"),
        tag("line", x1=at[1], x2=at[2], y1=8, y2=8, class_="whisker"),
        tag("circle", cx=at[3], cy=8, r=3),
        class_="forest clear" if direction(change) else "forest", width=110, height=16, aria_hidden="true",
    )  # fmt: skip


def _badge(pattern: str) -> Html:
    return tag("span", pattern, class_=f"badge {pattern.replace(' ', '-')}")


Section = Callable[["Comparison"], Html | None]
SECTIONS: dict[str, tuple[str, Section]] = {
    "results": ("Results", results),
    "tradeoff": ("Accuracy against follow-up", planes),
    "patterns": ("Latent, absent or present", patterns),
    "changes": ("Change against the baseline", changes),
    "labels": ("User turns by label", labels),
    "outcomes": ("How the answers ended", outcomes),
    "perturbations": ("Perturbed answers", perturbations),
    "grounding": ("Grounding", grounding),
    "actual": ("Real user turns", actual),
    "measured": ("How it was measured", measured),
}


def html(comparison: Comparison, rows: int = ROWS, characters: int = CHARACTERS) -> str:
    """The page; reads samples.jsonl beside each run's results.json.

    Of a comparison with more than `rows` rows or `characters` of text, the page holds the conversations of items
    chosen evenly, and says so. The same runs always give the same bytes.

    Raises:
        DataError: a samples.jsonl holds a line that is no JSON object.
    """
    told = conversations(comparison, rows, characters)
    made = {name: (title, section(comparison)) for name, (title, section) in SECTIONS.items()}
    shown = {name: (title, part) for name, (title, part) in made.items() if part is not None}
    style, script = _part("page.css"), _part("page.js")
    allowed = f"style-src {_hash(style)}; script-src {_hash(script)}; img-src data:"
    return _fill(
        _part("page.html"),
        policy=f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'",
        title=_title(comparison),
        summary=_summary(comparison),
        warnings=warnings(comparison) or "",
        contents=join(tag("a", title, href=f"#{name}") for name, (title, _) in shown.items()),
        sections=join(tag("section", tag("h2", title), part, id=name) for name, (title, part) in shown.items()),
        left_out=_left_out(told),
        style=style,
        script=script,
        data=told.as_script(),
    )


def _title(comparison: Comparison) -> Html:
    baseline, *others = comparison.names
    named = f"{', '.join(others)} against {baseline}" if others else f"{baseline}, probed"
    return join([named if len(named) <= 80 else f"{len(comparison.names)} probe runs compared"])


def _summary(comparison: Comparison) -> Html:
    """What was compared, in a sentence or two."""
    baseline, *others = comparison.names
    settings = comparison.runs[0].results.settings
    sets = ", ".join(f"{name} ({info.n} items: {', '.join(info.measures)})" for name, info in settings.sets.items())
    held = join([tag("strong", ", ".join(others)), " held against the baseline ", tag("strong", baseline)])
    return tag(
        "p",
        held if others else join(["One run: ", tag("strong", baseline)]),
        f". Sets: {sets or 'none'}. Judge: {setting(settings.others().get('judge'))}.",
    )


def _left_out(told: Conversations) -> Html | None:
    if told.rows == told.rows_found:
        return None
    return tag(
        "p",
        f"This page holds the conversations of {told.items:,} of {told.items_found:,} items ({told.rows:,} of "
        f"{told.rows_found:,} rows), chosen evenly over each set and the same ones for every run. All figures above "
        "are over all items; samples.jsonl in each run's folder holds every row.",
        class_="note left-out",
    )


def _fill(template: str, **parts: str | None) -> str:
    """Puts each part in its place in one pass, so that a part which looks like a place stays as it is."""
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]] or "", template)


def _part(name: str) -> str:
    return (files("probe") / name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    """The source of a policy that allows exactly this inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
