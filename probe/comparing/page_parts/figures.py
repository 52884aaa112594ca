"""The main tables of the page: rates, what each set shows, and every change against the baseline.

Here and in `controls`, `bars` and `plane`, a section gives None where there is nothing to show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe.comparing.page_parts.markup import BREAK, Child, Html, beside, grouped_table, join, link, table, tag
from probe.comparing.page_parts.numbers import difference, direction, p_value, rate, short_title, signed
from probe.comparing.patterns import LOW, MEANING
from probe.comparing.results import Metric
from probe.comparing.tables import blocks, sizes_of, unscored
from probe.stats import PairedDifference

if TYPE_CHECKING:
    from probe.compare import Comparison

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
