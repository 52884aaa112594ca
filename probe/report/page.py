"""comparison.md and report.html: the sections of a report, made once and written as Markdown and as a page.

A section is a list of tables, paragraphs and bullet points, and a cell of a table a list of `Part`s: text that may lead
to conversations on the page. Beyond the Markdown the page has links, marks and drawings. Titles and notes stand in
report.yaml.

The page is one file that works offline: figures first, readable without a script, then every conversation behind them
as JSON, which the page's script shows as text, never as markup. Names come from folders, recipes, data files and
models: everything is escaped, and the page's own policy forbids every request and every script and style but the two
that it carries, so that nothing a model wrote can become part of the page.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

import yaml

from nextturn.probe.files import read_jsonl
from nextturn.probe.judges.labels import GENUINE, LABELS, in_order
from nextturn.probe.report.comparison import (
    CLEAR,
    LOW,
    MANY,
    Comparison,
    Followup,
    Metric,
    Pattern,
    Run,
    blocks,
    estimate_of,
    grouped,
    printable,
    temperature,
)
from nextturn.probe.report.plot import Point, page_drawings, panels_of
from nextturn.probe.stats import NOTHING, Estimate, PairedDifference, holm, p_value_of

# --- What a report is made of.


@dataclass(frozen=True)
class Part:
    """A piece of a cell or paragraph.

    `most` is set for text from outside: Markdown shows so many characters of it, escaped, and the page all. `look` is
    a class of the page's style sheet; a badge is bold in Markdown too. `link` is an address within the page.
    `interval` draws an interval: zero, its two ends and the value, in percent of the cell's width. `page`: not in Markdown.
    """

    text: str
    most: int = 0
    look: str = ""
    link: str = ""
    interval: tuple[float, ...] = ()
    page: bool = False

    @property
    def shown(self) -> str:
        """As the page has it: with minus signs in figures."""
        return self.text if self.most else re.sub(r"(?<!\w)-(?=\d)", "\N{MINUS SIGN}", self.text)


Cell = list[Part]


@dataclass(frozen=True)
class Table:
    head: list[Cell]
    rows: list[list[Cell]]
    caption: Cell = field(default_factory=list)


@dataclass(frozen=True)
class Bullets:
    lines: list[Cell]


@dataclass(frozen=True)
class Drawings:
    """SVG elements, on the page alone."""

    svgs: list[str]


@dataclass(frozen=True)
class Bar:
    """User turns of one run by label: (label, count of `n`, address of their conversations), and the follow-up rate."""

    name: str
    n: int
    rate: Cell
    parts: list[tuple[str, int, str]]


@dataclass(frozen=True)
class Bars:
    """One set, perturbation and temperature, of which the page shows one at a time; `group` is theirs in the choice.

    `table` has the same in figures where no other table does.
    """

    caption: Cell
    group: str
    bars: list[Bar]
    table: Table | None


Content = list[Table | Bullets | Drawings | Bars | Cell]


@dataclass(frozen=True)
class Section:
    id: str
    title: Cell
    blocks: Content


@cache
def words() -> dict[str, Any]:
    """report.yaml"""
    found: dict[str, Any] = yaml.safe_load(packaged("report/report.yaml"))
    return found


MARKDOWN = "results correction changes patterns shortened outcomes labels perturbations grounding actual measured"
PAGE = "results correction tradeoff patterns changes shortened labels outcomes perturbations grounding actual measured"


def sections(comparison: Comparison, page: bool) -> Iterator[Section]:
    """The sections in the order of PAGE or MARKDOWN; one without anything to show is left out.

    Details are shown of `Comparison.ends` alone, and of the first and last temperature: comparison.json has the rest.
    """
    builders = {
        "results": _results, "correction": _correction, "tradeoff": _tradeoff, "changes": _changes,
        "patterns": _patterns, "shortened": _shortened, "outcomes": _outcomes, "labels": _labels,
        "perturbations": _perturbations, "grounding": _grounding, "actual": _actual, "measured": _measured,
    }  # fmt: skip
    for name in (PAGE if page else MARKDOWN).split():
        if content := builders[name](comparison):
            told = words()[name]
            title = [Part(told.get("page_title", told["title"]) if page else told["title"])]
            title += [outside(comparison.names[0])] if name == "changes" and not page else []
            yield Section(name, title if told["title"] else [], content)


def _results(comparison: Comparison) -> Content:
    content: Content = []
    columns = [column for block in blocks(comparison) for metric in block for column in (metric, _strict(metric))]
    changes = [change for column in columns for change in comparison.paired.get(column, ()) if change]
    significant = holm([p_value_of(change) for change in changes])
    for block in blocks(comparison):
        rows = []
        for index, name in enumerate(comparison.names):
            row = [[outside(name)]]
            for metric in block:
                cell = [*rate(comparison.figures[metric][index]), *_mark(comparison.paired[metric][index], significant)]
                strict = _strict(metric)
                if strict in comparison.figures and comparison.figures[strict][index].n:
                    cell += [Part(" (strict "), *rate(comparison.figures[strict][index])]
                    cell += [*_mark(comparison.paired[strict][index], significant), Part(")")]
                row.append(cell)
            rows.append(row)
        sizes: dict[tuple[str, str], list[str]] = {}
        for metric in block:
            sizes.setdefault((metric.set, comparison.sizes(metric)), []).append(comparison.title(metric))
        listed = [[outside(name), Part(f" {n} ({', '.join(titles)})")] for (name, n), titles in sizes.items()]
        content += [Table(_metric_head(comparison, block), rows), [Part("n: "), *_joined(listed, "; "), Part(".")]]
    told = words()["results"]
    content.append(
        [
            Part(told["note"].format(followup=comparison.followup.capitalize())),
            Part(f" {told['page'].format(tests=len(changes))}", page=True),
        ]
    )
    return content + _bullets("Unscored, in no rate: ", comparison.unscored)


def _correction(comparison: Comparison) -> Content:
    """A row per rate and run, judged beside corrected, and its difference to the baseline, both ways."""
    correction = comparison.correction
    if correction is None:
        return []
    shown = [run.name for run in _runs(comparison)]
    changes = {(change.run, change.set, change.temperature): change for change in correction.differences}
    rows = []
    for one in grouped(correction.rates):
        if one.run in shown:
            change = changes.get((one.run, one.set, one.temperature))
            named = outside(one.set) if one.set else Part("all")
            where = [[named], [Part(one.temperature or "all")], [outside(one.run)], [Part(str(one.labels))]]
            figures = [rate(one.judged), rate(one.corrected), difference(one.bias)]
            both = [difference(change.judged), difference(change.corrected)] if change else [[Part("-")]] * 2
            rows.append([*where, *figures, *both])
    head = "set, decoding, run, labels, judged, corrected, judge's bias, change judged, change corrected"
    note: Cell = [Part(f"{words()['correction']['note']} Behind them are "), outside(correction.behind, 400), Part(".")]
    without = [name for name, count in correction.labels.items() if not count]
    if without:
        note += [Part(" Without labels, and so not corrected: "), outside(", ".join(without), 400), Part(".")]
    return [Table(_head(*head.split(", ")), rows), note]


def _tradeoff(comparison: Comparison) -> Content:
    def link(name: str, point: Point, decoding: str) -> str:
        run = comparison.names[point.run]
        return view(a=run, kind="followup", set=name, perturbation="none", temperature=decoding)

    drawings = page_drawings(comparison, link)
    told = words()["tradeoff"]
    note = f"{told['note']} {told['corrected']}" if comparison.all_corrected else told["note"]
    return [Drawings(drawings), [Part(note)]] if drawings else []


def _changes(comparison: Comparison) -> Content:
    """One table per block of columns, as in the results, so that a reader finds a figure's change where it stood."""
    shown = [change for metric, found in comparison.paired.items() if metric.perturbation == "none" for change in found]
    bounds = [bound for change in shown if change for bound in change.ci95 or ()]
    scale = (min(0.0, *bounds), max(0.0, *bounds)) if bounds else (0.0, 0.0)
    content: Content = []
    tests = unmatched = 0
    for block in blocks(comparison):
        rows = []
        for index, name in enumerate(comparison.names[1:], start=1):
            row = [[outside(name)]]
            for metric in block:
                change = comparison.paired[metric][index]
                strict = comparison.paired.get(_strict(metric), {index: None})[index]
                cell = tested(change, _changed_links(comparison, metric, index))
                if strict:
                    links = _changed_links(comparison, _strict(metric), index)
                    cell += [Part("; strict "), *difference(strict), *_counts(strict, links, page=True)]
                row.append([*cell, *_drawn(change, scale)])
                tests += change is not None and change.p_value is not None
                unmatched = max(unmatched, change.unmatched if change else 0)
            rows.append(row)
        if any(change for metric in block for change in comparison.paired[metric]):
            content.append(Table(_metric_head(comparison, block), rows))
    if content:
        told = words()["changes"]
        notes = [told["note"].format(tests=tests)]
        notes += [told["unmatched"].format(unmatched=unmatched)] if unmatched else []
        drawn = told["page"].format(least=f"{100 * scale[0]:+.0f}", most=f"{100 * scale[1]:+.0f}")
        content.append([Part(" ".join(notes)), Part(f" {drawn}", page=True)])
        if comparison.as_judged:
            named = outside(", ".join(comparison.as_judged), 400)
            content.append([Part(f"{told['as_judged']} "), named, Part(".")])
    return content + _bullets("Labels: ", comparison.warnings)


def _patterns(comparison: Comparison) -> Content:
    if not comparison.patterns:
        return []

    def cell(pattern: Pattern) -> Cell:
        rates = [rate(found) for found in (pattern.greedy, pattern.sampled) if found.value is not None]
        rates = [[value, *(replace(interval, page=True) for interval in rest)] for value, *rest in rates]
        return [_badge(pattern.name), *([Part(" ("), *_joined(rates, " → "), Part(")")] if rates else [])]

    rows = []
    for index, name in enumerate(comparison.names):
        of_run = [found[index] for found in comparison.patterns.values()]
        clear = sum(pattern.name in CLEAR for pattern in of_run)
        overall = [_badge(comparison.overall[index]), Part(f" ({clear} of {len(of_run)} sets clear)")]
        rows.append([[outside(name)], *map(cell, of_run), overall])
    named = {pattern.name for found in comparison.patterns.values() for pattern in found} | {*comparison.overall}
    told = words()["patterns"]
    meaning = [[_badge(name), Part(f": {text}")] for name, text in told["meaning"].items() if name in named]
    head = [[Part("run")], *([outside(name)] for name in comparison.patterns), [Part("over all sets")]]
    return [
        Table(head, rows),
        Bullets(meaning),
        [Part(told["note"].format(low=f"{LOW:.0%}", followup=comparison.followup))],
        *([[Part(told["corrected"])]] if comparison.correction else []),
    ]


def _shortened(comparison: Comparison) -> Content:
    if len(comparison.ends) == len(comparison.runs):
        return []
    kept = _joined([[outside(run.name)] for run in _runs(comparison)], ", ")
    told = words()["shortened"]["note"].format(many=MANY)
    return [[Part(f"{told} "), *kept, Part(". comparison.json has all of them.")]]


def _outcomes(comparison: Comparison) -> Content:
    rows = []
    accuracies = [run.results.accuracy for run in comparison.runs]
    kinds = list(dict.fromkeys(kind for found in accuracies for part in found.values() for kind in part.outcomes))
    for name in comparison.sets("accuracy"):
        for run in _runs(comparison):
            if part := run.results.accuracy.get(name):
                where = {"a": run.name, "kind": "accuracy", "set": name}
                counts = [(kind, part.outcomes.get(kind, 0)) for kind in kinds]
                cells = [
                    [Part(str(count), link=view(**where, outcome=kind) if count else "")] for kind, count in counts
                ]
                rows.append([[outside(name)], [outside(run.name)], *cells, [Part(str(part.n))]])
    head = [*_head("set", "run"), *([outside(kind)] for kind in kinds), [Part("n")]]
    return [Table(head, rows)] if rows else []


def _labels(comparison: Comparison) -> Content:
    """How user turns fail: bars for each set, perturbation and temperature, and a table per set of the plain run."""
    bars: Content = []
    tables: Content = []
    for metric in (metric for metric in comparison.figures if metric.measure == "followup"):
        told = f", {metric.name}{' (greedy)' if metric.name == 'T=0.0' else ''}"
        caption = [outside(metric.set), Part(told)]
        caption += [Part(", "), outside(metric.perturbation)] if metric.perturbation != "none" else []
        found = _labelled(comparison, [metric])
        shown = [_bar(run, part, where) for run, _, part, where in found]
        bars.append(Bars(caption, metric.set, shown, _label_table(found) if metric.perturbation != "none" else None))
    for name in comparison.sets("followup"):
        found = _labelled(comparison, [Metric("followup", name, at) for at in _decodings(comparison, name)])
        tables.append(_label_table(found, [outside(name)]))
    told = words()["labels"]
    drawn = told["page"].format(followup=comparison.followup)
    note = [Part(f"{told['note']} {told['shortened']}"), Part(f" {drawn}", page=True)]
    return [*bars, *tables, note] if tables else []


LabelRow = tuple[str, str, Followup, dict[str, str]]
"""Run, decoding, figures and the filters of their conversations."""


def _label_table(found: Sequence[LabelRow], caption: Sequence[Part] = ()) -> Table:
    labels = in_order({label for _, _, part, _ in found for label, count in part.labels.items() if count})
    rows = [[[outside(run)], [Part(at)], *_label_cells(part, labels, where)] for run, at, part, where in found]
    head = [*_head("run", "decoding"), *map(_label_head, labels)]
    return Table([*head, *_head("unscored", "role-consistent", "specific", "grounding")], rows, [*caption])


def _labelled(comparison: Comparison, metrics: Sequence[Metric]) -> list[LabelRow]:
    """Some metrics of one set by run, and its real users' turns."""
    name, perturbation = metrics[0].set, metrics[0].perturbation
    found = []
    for run in _runs(comparison):
        for metric in metrics:
            if part := run.results.followup.get(name, {}).get(perturbation, {}).get(metric.name):
                where = {"a": run.name, "kind": "followup", "set": name, "perturbation": perturbation}
                found.append((run.name, metric.name, part, {**where, "temperature": metric.name}))
    # The real user turns of a transcript are the same whichever run was probed: those of the first that has them.
    real = next((run for run in comparison.runs if name in run.results.actual), None)
    if real and perturbation == "none":
        where = {"a": real.name, "kind": "actual", "set": name}
        found.append(("real users", "-", real.results.actual[name], where))
    return found


def _perturbations(comparison: Comparison) -> Content:
    """Per set a row per perturbation and run: rates without and with it, the paired difference, and what changed."""
    places = {(one.run, one.set, one.perturbation, one.temperature): one for one in comparison.perturbed}
    kinds = list(dict.fromkeys((one.set, one.perturbation) for one in comparison.perturbed))
    content: Content = []
    for name in dict.fromkeys(name for name, _ in kinds):
        decodings = _decodings(comparison, name)
        rows = []
        for perturbation in (kind for of_set, kind in kinds if of_set == name):
            for run in _runs(comparison):
                cells: list[Cell] = []
                for decoding in decodings:
                    if one := places.get((run.name, name, perturbation, decoding)):
                        both = [_followup_rate(run, name, decoding, kind) for kind in ("none", perturbation)]
                        changed = rate(estimate_of(one.changed_text))
                        cells += [[both[0], Part(" → "), both[1]], tested(one.difference), changed]
                    else:
                        cells += [[Part("-")]] * 3
                if any((run.name, name, perturbation, decoding) in places for decoding in decodings):
                    rows.append([[outside(perturbation)], [outside(run.name)], *cells])
        columns = ("without → with", "difference", "turns changed")
        head = ["perturbation", "run", *(f"{decoding}: {column}" for decoding in decodings for column in columns)]
        content.append(Table(_head(*head), rows, [outside(name), Part(f": {comparison.followup}")]))
    return [*content, [Part(words()["perturbations"]["note"])]] if content else []


def _grounding(comparison: Comparison) -> Content:
    shown = {run.name for run in _runs(comparison)}
    found = [one for one in comparison.grounding if one.run in shown]
    labels = in_order({label for one in found for label in one.labels})
    rows = []
    for name in dict.fromkeys(one.set for one in found):
        for one in (one for one in found if one.set == name):
            means = [number(one.labels.get(label, NOTHING)) for label in labels]
            rows.append([[outside(name)], [outside(one.run)], number(one.auc), [Part(str(one.auc.n))], *means])
    head = [*_head("set", "run", "AUC", "n"), *map(_label_head, labels)]
    return [Table(head, rows), [Part(words()["grounding"]["note"])]] if rows else []


def _actual(comparison: Comparison) -> Content:
    """Generated user turns against those that real users wrote at the same place, which are the ceiling."""
    places = {(one.run, one.set, one.temperature): one for one in comparison.against_actual}
    decodings = _ends(sorted({one.temperature for one in comparison.against_actual}, key=temperature))
    rows = []
    for name in dict.fromkeys(name for run in comparison.runs for name in run.results.actual):
        for run in _runs(comparison):
            if not (part := run.results.actual.get(name)):
                continue
            unscored = f", {sum(part.unscored.values())} unscored" if part.unscored else ""
            real = rate(part.genuine, view(a=run.name, kind="actual", set=name))
            cells = [[*real, Part(f" (n {part.n_judged}{unscored})")]]
            for decoding in decodings:
                one = places.get((run.name, name, decoding))
                cells += [[_followup_rate(run, name, decoding)], tested(one.difference)] if one else [[Part("-")]] * 2
            rows.append([[outside(name)], [outside(run.name)], *cells])
    head = ["set", "run", "real users", *(f"{one}{column}" for one in decodings for column in ("", ": minus real"))]
    caption = [Part(comparison.followup)]
    return [Table(_head(*head), rows, caption), [Part(words()["actual"]["note"])]] if rows else []


def _measured(comparison: Comparison) -> Content:
    results = comparison.runs[0].results
    rows: list[list[Cell]] = []
    for name, info in results.settings.sets.items():
        told = [Part(f"{info.n} items; "), outside(", ".join(info.measures)), Part("; sha256 ")]
        rows.append([[Part("set "), outside(name)], [*told, outside(info.sha256[:12])]])
    for key, value in results.settings.others.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        rows.append([[outside(key)], [outside(written, 400)]])
    template = (results.model.template_sha256 or "-")[:12]
    rows.append([[Part("chat template")], [Part("sha256 "), outside(template)]])
    models = []
    for run in comparison.runs:
        model = run.results.model
        step, weights = str(model.step or "-"), (model.weights_sha256 or "-")[:12]
        models.append([[outside(run.name)], [outside(model.path)], [Part(step)], [outside(weights)]])
    baseline = [Part("Settings of "), outside(comparison.names[0])]
    whose = baseline if comparison.differences else [Part("Settings of every run")]
    return [
        [Part(words()["measured"]["note"])],
        [*whose, Part(", but for what the list below says:" if comparison.remarks else ":")],
        Table(_head("setting", "value"), rows),
        Table(_head("run", "model", "step", "weights sha256"), models),
        *_bullets("", comparison.remarks),
    ]


# --- How figures are written: rates and differences in percent, intervals in a smaller hand on the page.


def outside(text: str, most: int = 80) -> Part:
    return Part(text, most=most)


def rate(estimate: Estimate, link: str = "") -> Cell:
    """57.0 [47.2, 66.3]"""
    return _figure(estimate, 100, ".1f", link=link)


def number(estimate: Estimate) -> Cell:
    """0.27 [0.22, 0.33]: a mean or an AUC."""
    return _figure(estimate, 1, ".2f")


def difference(change: PairedDifference | Estimate | None) -> Cell:
    """+12.0 [+3.1, +20.5], in points; on the page in bold where the interval excludes zero."""
    return _figure(change or NOTHING, 100, "+.1f", look="clear" if _direction(change) else "")


def tested(change: PairedDifference | None, links: tuple[str, str] = ("", "")) -> Cell:
    """+12.0 [+3.1, +20.5], p = 0.004 (14 up, 2 down)"""
    return [*difference(change), *_counts(change, links)]


def _counts(change: PairedDifference | None, links: tuple[str, str], page: bool = False) -> Cell:
    """, p = 0.004 (14 up, 2 down)"""
    if change is None or change.value is None:
        return []
    p = change.p_value
    told = "" if p is None else ", p < 0.001" if p < 0.001 else f", p = {p:.3f}"
    up, down = (
        Part(f"{n} {way}", link=link, page=page)
        for n, way, link in zip((change.gained, change.lost), ("up", "down"), links, strict=True)
    )
    return [Part(f"{told} (", page=page), up, Part(", ", page=page), down, Part(")", page=page)]


def _drawn(change: PairedDifference | None, scale: tuple[float, float]) -> Cell:
    """The interval of a change as a drawing: positions in percent of its width, with some room at either end."""
    if change is None or change.value is None or change.ci95 is None:
        return []
    width = scale[1] - scale[0] or 1
    spots = tuple(3 + 94 * (spot - scale[0]) / width for spot in (0.0, *change.ci95, change.value))
    return [Part("", look="clear" if _direction(change) else "", interval=spots)]


def _figure(of: Estimate | PairedDifference, scale: int, form: str, look: str = "", link: str = "") -> Cell:
    if of.value is None:
        return [Part("-")]
    low, high = (format(scale * bound, form) for bound in of.ci95 or (0, 0))
    interval = [Part(f" [{low}, {high}]", look="small")] if of.ci95 else []
    return [Part(format(scale * of.value, form), look=look, link=link), *interval]


def _direction(change: PairedDifference | Estimate | None) -> int:
    """1 or -1 where the interval lies above or below zero, else 0."""
    return int(change.ci95[0] > 0) - int(change.ci95[1] < 0) if change and change.ci95 else 0


def _mark(change: PairedDifference | None, significant: float) -> Cell:
    """Return ▲ or ▼ for a change whose p value is at most `significant`."""
    if change is None or not change.value or p_value_of(change) > significant:
        return []
    return [Part(" ▲" if change.value > 0 else " ▼", look="up" if change.value > 0 else "down", page=True)]


def _share(count: int, n: int, link: str = "") -> Part:
    """48.0 (72): percent and count; a bare 0 for none."""
    return Part(f"{100 * count / n:.1f} ({count})", link=link) if count else Part("0")


def _badge(pattern: str) -> Part:
    return Part(pattern, look=f"badge {pattern.replace(' ', '-')}")


def _bullets(told: str, lines: Sequence[str]) -> Content:
    end = [Part(".")] if told else []
    return [Bullets([[Part(told), outside(line, 400), *end] for line in lines])] if lines else []


def _head(*columns: str) -> list[Cell]:
    return [[Part(column)] for column in columns]


def _label_head(label: str) -> Cell:
    return [Part(label, most=80, look=f"chip {_label_class(label)}")]


def _label_class(label: str) -> str:
    """One colour per label, in bars and in the conversations alike."""
    return f"label-{label}" if label.isidentifier() else "label-other"


def _label_cells(part: Followup, labels: Sequence[str], where: dict[str, str]) -> list[Cell]:
    """Shares of the labels, of the unscored, and what else is known of a set's user turns."""
    cells = [[_share(part.labels.get(one, 0), part.n_judged, view(**where, label=one))] for one in labels]
    unscored = [_share(sum(part.unscored.values()), part.n_total, view(**where, label="unscored"))]
    others = [rate(estimate_of(part.role_consistency)), rate(estimate_of(part.specificity))]
    return [*cells, unscored, *others, number(estimate_of(part.grounding))]


def _bar(name: str, part: Followup, where: dict[str, str]) -> Bar:
    counts = [(label, part.labels.get(label, 0)) for label in in_order({*LABELS, *part.labels})]
    counts.append(("unscored", sum(part.unscored.values())))
    parts = [(label, count, view(**where, label=label)) for label, count in counts if count]
    return Bar(name, part.n_total, rate(part.genuine), parts)


def _followup_rate(run: Run, name: str, decoding: str, perturbation: str = "none") -> Part:
    part = run.results.followup.get(name, {}).get(perturbation, {}).get(decoding)
    where = {"a": run.name, "kind": "followup", "set": name, "temperature": decoding, "perturbation": perturbation}
    return Part("-") if part is None or part.rate is None else Part(f"{100 * part.rate:.1f}", link=view(**where))


def _metric_head(comparison: Comparison, block: Sequence[Metric]) -> list[Cell]:
    return [[Part("run")], *([outside(metric.set), Part(f": {comparison.title(metric)}")] for metric in block)]


def _strict(metric: Metric) -> Metric:
    """The strict figure beside a lenient one; a metric that is not there beside any other."""
    return Metric(metric.measure, metric.set, "strict" if metric.name == "lenient" else "")


def _runs(comparison: Comparison) -> list[Run]:
    return [comparison.runs[index] for index in comparison.ends]


def _decodings(comparison: Comparison, name: str) -> list[str]:
    return _ends(comparison.temperatures(name))


def _ends(found: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*found[:1], *found[-1:]]))


def _joined(cells: Iterable[Cell], between: str) -> Cell:
    joined: Cell = []
    for cell in cells:
        joined += [*([Part(between)] if joined else []), *cell]
    return joined


# --- Addresses within the page: the conversations that filters leave.

KINDS = {
    "lenient": "accuracy",
    "strict": "accuracy",
    "ask_when_needed": "clarify underspecified",
    "answer_when_complete": "clarify complete",
}


def view(**filters: str) -> str:
    return "#" + urlencode(filters, quote_via=quote)


def _changed_links(comparison: Comparison, metric: Metric, index: int) -> tuple[str, str]:
    """Where the items that went up and down against the baseline are shown, in both runs; nothing for none."""
    change = comparison.paired[metric][index]
    where = {"a": comparison.names[0], "b": comparison.names[index], "set": metric.set}
    where["kind"] = KINDS.get(metric.name, "followup")
    if metric.measure == "followup":
        where |= {"temperature": metric.name, "perturbation": "none"}
    strict = " strict" if metric.name == "strict" else ""
    up, down = (change.gained, change.lost) if change else (0, 0)
    return (
        view(**where, change=f"gained{strict}") if up else "",
        view(**where, change=f"lost{strict}") if down else "",
    )


# --- comparison.md: a page for a paper's reader, from the main figures to how they were measured.

# Everything that could open markup, a table cell, a link or a formula.
_MARKS = str.maketrans({mark: f"\\{mark}" for mark in "\\`*[]|~$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def markdown(comparison: Comparison) -> str:
    forced = [f"> **Measured differently, compared by force:** {_md(line, 400)}" for line in comparison.differences]
    parts = [
        f"# Probe runs compared\n\nBaseline: **{_md(comparison.names[0])}**.",
        "![Accuracy against follow-up](tradeoff.png)" if panels_of(comparison) else "",
        "\n>\n".join(forced),
    ]
    for section in sections(comparison, page=False):
        parts.append(f"## {_md_cell(section.title)}" if section.title else "")
        for block in section.blocks:
            if isinstance(block, Table):
                rows = [block.head, [[Part("---")]] * len(block.head), *block.rows]
                parts.append(f"### {_md_cell(block.caption)}" if block.caption else "")
                parts.append("\n".join(f"| {' | '.join(map(_md_cell, row))} |" for row in rows))
            elif isinstance(block, Bullets):
                parts.append("\n".join(f"- {_md_cell(line)}" for line in block.lines))
            elif isinstance(block, list):
                parts.append(_md_cell(block))
    return "\n\n".join(part for part in parts if part) + "\n"


def _md_cell(cell: Cell) -> str:
    told = [(part.look, _md(part.text, part.most) if part.most else part.text) for part in cell if not part.page]
    return "".join(f"**{text}**" if look[:5] == "badge" else text for look, text in told)


def _md(text: str, most: int = 80) -> str:
    """Text from outside as one harmless Markdown cell of at most `most` characters."""
    return printable(text, most).translate(_MARKS)


# --- report.html

ROWS = 20_000
CHARACTERS = 24_000_000
"""A larger comparison would make a page that no browser opens."""


def html(comparison: Comparison, rows: int = ROWS, characters: int = CHARACTERS) -> str:
    """The page; reads samples.jsonl beside each run's results.json.

    Of a comparison with more than `rows` rows or `characters` of text, the page holds the conversations of items
    chosen evenly, and says so. The same runs always give the same bytes.

    Raises:
        DataError: a samples.jsonl holds a line that is no JSON object.
    """
    from markupsafe import Markup

    told = conversations(comparison, rows, characters)
    style, script = packaged("report/report.css"), packaged("report/page.js") + packaged("report/report.js")
    settings = comparison.runs[0].results.settings
    judge = settings.others.get("judge")
    return page_template(packaged("report/report.html")).render(
        policy=policy(style, script),
        comparison=comparison,
        sets=settings.sets,
        judge=judge if isinstance(judge, str) else json.dumps(judge, ensure_ascii=False),
        sections=list(sections(comparison, page=True)),
        labels=sorted({*LABELS, "unscored"}, key=[*LABELS, "unscored"].index),
        told=told,
        style=Markup(style),
        script=Markup(script),
        data=Markup(as_script(told.data)),
    )


def page_template(source: str) -> Any:
    """A template that escapes every text that is put into it, and shows a sign for each character without one.

    `escape` alone would leave control, bidirectional and other invisible characters, which hide or reorder text.
    """
    from jinja2 import Environment, StrictUndefined

    def finalize(value: Any) -> Any:
        return printable(value, len(value)) if type(value) is str else value  # markup is a class of its own

    environment = Environment(
        autoescape=True, finalize=finalize, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source, globals={"label_class": _label_class})


def packaged(name: str) -> str:
    """Return the text of a file in the package, such as "report/report.css"."""
    return (files("nextturn.probe") / name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """A page's policy: exactly this inline style and script, and no request at all."""
    allowed = f"style-src {_source(style)}; script-src {_source(script)}; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def as_script(data: Any) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)
    return _SURROGATES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# --- The conversations that the page holds: rows of samples.jsonl, each message stored once.
#
# The runs of a comparison share their questions, and a run's temperatures and samples share their contexts, so messages
# and contexts are kept in lists that rows point into. Of a large comparison whole items are chosen, evenly over each
# set and the same ones in every run, so that what was gained or lost between two runs stays right for what is shown.

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


def conversations(comparison: Comparison, rows: int = ROWS, characters: int = CHARACTERS) -> Conversations:
    """The rows of all runs, at most about `rows` of them with `characters` of text."""
    items: dict[str, dict[str, None]] = {}
    messages: dict[int, int] = {}
    rows_found = length = 0
    for _, row in _rows(comparison):
        rows_found += 1
        items.setdefault(str(row["set"]), {})[str(row["item"])] = None
        length += len(row.get("user_turn") or "") + len(row.get("judge_raw") or "")
        messages |= {hash(text): len(text) for text in (str(one["content"]) for one in row.get("messages") or ())}
    length += sum(messages.values())
    share = min(1.0, rows / max(rows_found, 1), characters / max(length, 1))
    chosen = {name: _evenly(list(found), share) for name, found in items.items()}

    # What rows share, each kept once under its number.
    tables: dict[str, dict[Any, int]] = {"cells": {}, "items": {}, "messages": {}, "contexts": {}}

    def number(table: str, value: Any) -> int:
        return tables[table].setdefault(value, len(tables[table]))

    kept = []
    for run, row in _rows(comparison):
        if str(row["item"]) in chosen[str(row["set"])]:
            kind = f"{row['kind']} {row['condition']}" if row.get("condition") else row["kind"]
            temperature = f"T={float(row.get('temperature') or 0)}"
            cell = (run, kind, row["set"], row.get("perturbation") or "none", temperature)
            said = [(str(message["role"]), str(message["content"])) for message in row.get("messages") or ()]
            context = tuple(number("messages", message) for message in said)
            where = [number("cells", cell), number("items", str(row["item"])), row.get("sample") or 0]
            kept.append([*where, number("contexts", context), *(row.get(name) for name in FIELDS)])
    shared = {name: list(table) for name, table in tables.items()}
    data = {"runs": list(comparison.names), "labels": list(LABELS), "genuine": GENUINE, "fields": list(FIELDS)}
    counts = (sum(map(len, found.values())) for found in (chosen, items))
    return Conversations({**data, **shared, "rows": kept}, len(kept), rows_found, *counts)


def _rows(comparison: Comparison) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number of the run, row) of all runs whose rows are there."""
    for index, run in enumerate(comparison.runs):
        if run.samples:
            yield from ((index, row) for _, row in read_jsonl(run.folder / "samples.jsonl"))


def _evenly(items: list[str], share: float) -> set[str]:
    """That share of the items, at least one, at equal distances."""
    count = max(1, int(len(items) * share))
    return {items[index * len(items) // count] for index in range(count)}
