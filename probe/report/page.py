"""comparison.md and report.html: the sections of a report, built once and written as Markdown and as a page.

A section is a list of tables and paragraphs. Every table is a pivot of the comparison's figures. A cell is a list of
`Part`s: text that may link to conversations on the page. Titles and notes are in report.yaml.

The page is one file that works offline. The figures come first and need no script. Then comes every conversation behind
them, as JSON that the page's script shows as text, never as markup. Names come from folders, recipes, data files and
models, so everything is escaped, and the page's content security policy forbids every request and every script and style
but the two that the page carries. Nothing that a model wrote can become part of the page.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

import yaml

from nextturn.probe.command.files import sha256_text
from nextturn.probe.command.terminal import printable
from nextturn.probe.judges.verdicts import LABELS
from nextturn.probe.kept import samples_file, turn_hash
from nextturn.probe.measures import MEASURES
from nextturn.probe.measures.base import Figure
from nextturn.probe.measures.followup import Followup
from nextturn.probe.measures.perturb import NONE
from nextturn.probe.report.comparison import LOW, TURNS, Comparison, RunFigure, measured, percent, points
from nextturn.probe.stats import Estimate, holm, p_value_of


@dataclass(frozen=True)
class Part:
    """A piece of a cell or paragraph.

    Attributes:
        most: For text from outside: the most characters of it that Markdown shows, escaped. 0 for text of our own.
        look: A class of the page's style sheet.
        link: An address within the page.
        bar: A drawn bar of (label, percent), on the page only.
    """

    text: str
    most: int = 0
    look: str = ""
    link: str = ""
    bar: tuple[tuple[str, float], ...] = ()


Cell = list[Part]
CellOf = Callable[[RunFigure], Cell]


@dataclass(frozen=True)
class Table:
    caption: str
    head: list[Cell]
    rows: list[list[Cell]]


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    blocks: Sequence[Table | Cell]


def outside(text: str, most: int = 80) -> Part:
    """Mark text as from outside the project: names of runs, sets, labels and settings."""
    return Part(text, most=most)


def pivot(caption: str, keys: str, entries: Iterable[tuple[Sequence[str], str, Cell]]) -> list[Table]:
    """Make a table of (values of the key columns, column, cell), in the order of first appearance; [] without entries."""
    rows: dict[tuple[str, ...], dict[str, Cell]] = defaultdict(dict)
    columns: dict[str, None] = {}
    for key, column, cell in entries:
        rows[tuple(key)][column] = cell
        columns[column] = None
    head, nothing = [[_head(column)] for column in (*keys.split(), *columns)], [Part("-")]
    filled = [
        [*([outside(part)] for part in key), *(cells.get(column, nothing) for column in columns)]
        for key, cells in rows.items()
    ]
    return [Table(caption, head, filled)] if rows else []


def _head(column: str) -> Part:
    """The head of a column: of a label its name, in its colour."""
    kind, _, name = column.partition(":")
    return Part(name, most=80, look=f"chip {label_class(name.split()[0])}") if kind == "label" else outside(column)


# --- The sections of a report.


def sections(comparison: Comparison) -> Iterator[Section]:
    """Yield the sections that have something to show. Details are those of `Comparison.shown`; comparison.json has all."""

    def details(figures: Sequence[RunFigure], keys: str, cell: CellOf) -> list[Table]:
        ends = {"", *(end for at in comparison.decodings.values() for end in (at[0], at[-1]))}
        shown = [each for each in figures if each.run in comparison.shown and each.metric.temperature in ends]
        return _tables(comparison, shown, keys, cell)

    words: dict[str, dict[str, str]] = yaml.safe_load(packaged("report/report.yaml"))
    main, select = comparison.main, comparison.select
    changed = [figure for figure in main if "baseline" in figure.changes]
    tests = [figure.changes["baseline"] for figure in changed]
    significant = holm([p_value_of(change) for change in tests])
    real = [*select("actual", name="rate")]
    real += [each for each in select("followup", name="rate") if "actual" in each.changes]
    controls = [*select("perturbed", name="rate"), *select("perturbed", name="changed_text")]
    turns = [figure for figure in select("followup", "perturbed", "actual") if figure.metric.name != "changed_text"]
    to_plain, to_real = (partial(difference, against=name) for name in ("plain", "actual"))
    to_baseline_of_part = partial(difference, against="baseline")

    def to_baseline(figure: RunFigure) -> Cell:
        return difference(figure, "baseline", comparison.names[0], linked=is_filtered(comparison, figure))

    blocks: dict[str, Sequence[Table | Cell]] = {
        "results": _tables(
            comparison, main, "run", lambda figure: [*value(figure), *mark(comparison, figure, significant)]
        ),
        "correction": _correction(comparison),
        "changes": _tables(comparison, changed, "run", to_baseline),
        "turns": details(select("sharded", "doubted"), "run", value),
        "patterns": [*_patterns(comparison), *_advice(comparison, words["patterns"])],
        "outcomes": details(select("outcome"), "run", value),
        "labels": details(turns, "run turns temperature perturbation", partial(_with_bar, turns)),
        "perturbations": details(controls, "run perturbation temperature", to_plain),
        "grounding": details(select("grounding"), "run", value),
        "actual": [*details(real, "run turns temperature", to_real), *_unexpected(comparison)],
        "parts": details(comparison.parts, "run part turns", to_baseline_of_part),
        "measured": _measured(comparison),
    }
    unmatched = max((change.unmatched for change in tests), default=0)
    facts = {"followup": comparison.followup, "low": f"{LOW:.0%}", "tests": len(tests), "unmatched": unmatched}
    facts["columns"] = words["results"]["columns"].format(**facts) if select("followup") else ""
    judge = comparison.judge_note()
    notes = {  # with text from outside
        "results": "; ".join([*comparison.on_gains, *comparison.graders, *([f"Judge: {judge}"] if judge else [])]),
        "outcomes": f"The tables from here on show these runs: {', '.join(comparison.shown)}",
        "measured": "; ".join(comparison.remarks),
    }
    for name, content in blocks.items():
        if content:
            note = [Part(words[name]["note"].format(**facts) + " "), outside(notes.get(name, ""), 1000)]
            yield Section(name, words[name]["title"], [*content, note])


def _tables(comparison: Comparison, figures: Sequence[RunFigure], keys: str, cell: CellOf) -> list[Table]:
    """Make a table per set: rows by run or other keys, columns by metric."""

    def entry(figure: RunFigure) -> tuple[Sequence[str], str, Cell]:
        metric = figure.metric
        fields = {**metric._asdict(), "run": figure.run, "turns": "real" if metric.measure == "actual" else "generated"}
        column = comparison.title(metric) + (f" (n {comparison.sizes(metric)})" if keys == "run" else "")
        if metric.part:
            column = comparison.title(metric._replace(part=""))
        if metric.name == "rate" and "run " in keys:
            column = comparison.followup
        return [fields[key] or "-" for key in keys.split()], column, cell(figure)

    if all(figure.metric.perturbation in ("", NONE) for figure in figures):
        keys = keys.removesuffix(" perturbation")
    tables = []
    for name in dict.fromkeys(figure.metric.set for figure in figures):
        tables += pivot(name, keys, [entry(figure) for figure in figures if figure.metric.set == name])
    return tables


LEAST = 10
"""Real user turns that the list of the least expected shows for each set."""


def _unexpected(comparison: Comparison) -> list[Table]:
    """Return the real user turns of each set that the last run's answers explain least, by grounding."""
    run = comparison.runs[-1]
    rows: dict[str, list[Any]] = defaultdict(list)
    for place, row in run.rows() if run.samples else ():
        if row["kind"] == "actual" and row["grounding"] is not None and not place:
            texts = [outside(str(row["item"])), *(Part(f"{row[name]:.2f}") for name in ("grounding", "log_p"))]
            rows[row["set"]].append((row["grounding"], [[part] for part in (*texts, outside(row["user_turn"], 160))]))
    head = [[Part(name)] for name in ("item", "grounding", "log_p", "what the user said")]
    least = {name: sorted(found, key=lambda each: each[0])[:LEAST] for name, found in rows.items()}
    return [Table(f"{name}: expected least by {run.name}", head, [row for _, row in of]) for name, of in least.items()]


def _correction(comparison: Comparison) -> Sequence[Table | Cell]:
    correction = comparison.correction
    if correction is None:
        return []
    entries = []
    for rate in correction.rates:
        if rate.run in comparison.shown:
            key = (rate.run, rate.set or "all", rate.temperature or "all")
            cells = {column: with_interval(text) for column, text in correction.columns(rate).items()}
            change = correction.change(rate.run, rate.set, rate.temperature)
            if change and is_clear(change.corrected):
                cells["change corrected"].append(arrow(change.corrected))
            entries += [(key, *of_column) for of_column in cells.items()]
    without = ", ".join(name for name, count in correction.labels.items() if not count)
    note = f"Based on {correction.behind}." + (f" Not corrected, without labels: {without}." if without else "")
    return [*pivot("", "run set temperature", entries), [outside(note, 1000)]]


def _patterns(comparison: Comparison) -> list[Table]:
    entries: list[tuple[Sequence[str], str, Cell]] = []
    for run in comparison.names if comparison.patterns else ():
        for name, patterns in comparison.patterns.items():
            rates = " → ".join(percent(rate) for rate in (patterns[run].greedy, patterns[run].sampled) if rate.n)
            entries.append(((run,), name, [Part(patterns[run].name, look="badge"), Part(f" {rates}", look="small")]))
        entries.append(((run,), "all sets", [Part(comparison.overall[run], look="badge")]))
    return pivot("", "run", entries)


def _advice(comparison: Comparison, words: dict[str, str]) -> list[Cell]:
    """What is known to help, for each pattern that some set or run shows."""
    shown = {pattern.name for runs in comparison.patterns.values() for pattern in runs.values()}
    shown |= {*comparison.overall.values()} if shown else set()
    advice = [[Part(name, look="badge"), Part(f": {text}")] for name, text in words.items() if name in shown]
    return [*advice, [Part(words["all"])]] if shown else []


def _with_bar(turns: Sequence[RunFigure], figure: RunFigure) -> Cell:
    """The cell of a figure of user turns; next to the rate a bar of the labels of these turns."""
    if figure.metric.name != "rate":
        return value(figure)
    same = [turn for turn in turns if turn.run == figure.run and turn.metric._replace(name="rate") == figure.metric]
    labels = [(turn.metric.name.partition(":"), 100 * (turn.estimate.value or 0.0)) for turn in same]
    return [*value(figure), Part("", bar=tuple((name, width) for (kind, _, name), width in labels if kind == "label"))]


def _measured(comparison: Comparison) -> list[Table]:
    given = {key: text for key, text in measured(comparison.runs[0]).items() if text not in ("null", "[]", "{}")}
    settings = [((key,), "value", [outside(text, 400)]) for key, text in given.items()]
    models = []
    for run in comparison.runs:
        model = run.results.model
        weights = (model.weights_sha256 or "-")[:12]
        facts = {"model": model.path, "step": str(model.step or "-"), "weights sha256": weights}
        models += [((run.name,), column, [outside(text)]) for column, text in facts.items()]
    return [*pivot(f"Settings of {comparison.names[0]}", "setting", settings), *pivot("", "run", models)]


# --- Cells.


def with_interval(text: str, link: str = "", look: str = "") -> Cell:
    """A figure with its interval, which the page shows in small type."""
    value, bracket, interval = text.partition(" [")
    return [Part(value, link=link, look=look), *([Part(bracket + interval, look="small")] if bracket else [])]


def value(figure: RunFigure) -> Cell:
    """A figure: a count of labels or outcomes as 48.0 (72), a rate as 57.0 [47.2, 66.3], grounding as 0.27 [0.22, 0.33]."""
    metric, estimate, bounds = figure.metric, figure.estimate, figure.estimate.ci95 or ()
    if "grounding" in (metric.measure, metric.name) or figure.declared.unit == "number":
        return with_interval(f"{estimate.value:.2f}" + (" [{:.2f}, {:.2f}]".format(*bounds) if bounds else ""))
    counted = metric.measure == "outcome" or metric.name == "unscored" or metric.name.startswith("label:")
    count = f" ({round((estimate.value or 0.0) * estimate.n)})" if counted else ""
    linked = estimate.value and figure.declared.shows != "-" and not metric.part  # the page has no filter for parts
    cell = with_interval(percent(estimate) + count, address(figure) if linked else "")
    return [*cell, Part(" "), outside(figure.note)] if figure.note else cell


def mark(comparison: Comparison, figure: RunFigure, significant: float) -> Cell:
    """▲ or ▼ for a change to the baseline whose p value is at most `significant`; none if labels correct the change."""
    change = figure.changes.get("baseline")
    if change is None or not change.value or p_value_of(change) > significant or comparison.change_by_labels(figure):
        return []
    return [arrow(change, figure.declared.better)]


def arrow(change: Estimate, better: str = "up") -> Part:
    """▲ or ▼ by the sign of a change, in the colour of better or worse."""
    up = (change.value or 0.0) > 0
    return Part(" ▲" if up else " ▼", look={"": "", "up": "up" if up else "down"}.get(better, "down" if up else "up"))


def is_clear(change: Estimate) -> bool:
    """Return True if the interval of a change leaves out 0."""
    return change.ci95 is not None and (change.ci95[0] > 0 or change.ci95[1] < 0)


def is_filtered(comparison: Comparison, figure: RunFigure) -> bool:
    """Return True if the page's filter of gained and lost items goes by this figure: the first one of its conversations, or "strict"."""
    figures = comparison.declared.get(figure.metric.measure, TURNS).values()
    first = next((each.name for each in figures if each.shows == figure.declared.shows), "")
    return figure.metric.name in (first, "strict")


def difference(figure: RunFigure, against: str, baseline: str = "", linked: bool = False) -> Cell:
    """+12.0 [+3.1, +20.5], p = 0.004 (14 up, 2 down), in bold where the interval excludes 0.

    The figure itself comes first, unless it is compared with the baseline, whose table of results has it. With `linked` the counts
    lead to their conversations.
    """
    change = figure.changes.get(against)
    if change is None or change.value is None:
        return value(figure)
    parts = [] if baseline else [*value(figure), Part("; ")]
    parts += with_interval(points(change, figure.declared.unit), look="clear" if is_clear(change) else "")
    p = change.p_value
    parts.append(Part(("" if p is None else ", p < 0.001" if p < 0.001 else f", p = {p:.3f}") + " ("))
    strict = " strict" if figure.metric.name == "strict" else ""
    for count, way, name in ((change.gained, "up", "gained"), (change.lost, "down", "lost")):
        link = address(figure, a=baseline, b=figure.run, change=name + strict) if linked and count else ""
        parts += [Part(f"{count} {way}", link=link), Part(", " if way == "up" else ")")]
    return parts


def label_class(label: str) -> str:
    """Return the class of the style sheet that colours a label, in bars and conversations alike."""
    return f"label-{label}" if label.isidentifier() else "label-other"


def address(figure: RunFigure, **others: str) -> str:
    """Return the address of the conversations behind a figure: the page's filters."""
    metric = figure.metric
    kind = figure.declared.shows or {"outcome": "accuracy", "perturbed": "followup"}.get(metric.measure, metric.measure)
    filters = {"a": figure.run, "kind": kind, "set": metric.set}
    if kind == "followup":
        filters |= {"temperature": metric.temperature, "perturbation": metric.perturbation}
    if metric.measure == "outcome":
        filters["outcome"] = metric.name
    if metric.name == "unscored" or metric.name.startswith("label:"):
        filters["label"] = metric.name.removeprefix("label:")
    return "#" + urlencode({**filters, **others}, quote_via=quote)


# --- comparison.md

# Everything that could open markup, a table cell, a link or a formula.
_MARKS = str.maketrans({mark: f"\\{mark}" for mark in "\\`*[]|~$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def markdown(comparison: Comparison, has_plot: bool) -> str:
    """Return comparison.md. `has_plot`: tradeoff.png lies next to it."""
    parts = ["# Probe runs compared", f"Baseline: **{escaped(comparison.names[0])}**."]
    parts += [escaped(sentence, 2000) for sentence in comparison.summary]
    parts += [f"{escaped(comparison.trainings, 1000)}."] if len(comparison.runs) > 1 else []
    parts += ["![The trade-off](tradeoff.png)"] if has_plot else []
    forced = "> **Measured differently, compared by force:**"
    parts += [f"{forced} {escaped(line, 400)}" for line in comparison.differences]
    for section in sections(comparison):
        parts.append(f"## {section.title}")
        for block in section.blocks:
            if isinstance(block, Table):
                rows = [block.head, [[Part("---")]] * len(block.head), *block.rows]
                parts += [f"### {escaped(block.caption)}"] if block.caption else []
                parts.append("\n".join(f"| {' | '.join(map(_markdown_cell, row))} |" for row in rows))
            else:
                parts.append(_markdown_cell(block))
    return "\n\n".join(parts) + "\n"


def _markdown_cell(cell: Cell) -> str:
    texts = [(part.look, escaped(part.text, part.most) if part.most else part.text) for part in cell]
    return "".join(f"**{text}**" if look == "badge" else text for look, text in texts)


def escaped(text: str, most: int = 80) -> str:
    """Return text from outside as one line of Markdown without markup, of at most `most` characters."""
    return printable(text, most).translate(_MARKS)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text from outside, the head first, as a table of Markdown."""
    lines = [f"| {' | '.join(escaped(cell, 300) for cell in row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


# --- report.html

LIMIT = 60_000_000
"""Bytes of samples.jsonl of all runs beyond which the page holds a part of the items: browsers open no larger page."""


def html(comparison: Comparison, plot: bytes | None = None, limit: int = LIMIT, made: str = "") -> str:
    """Return the page; reads samples.jsonl of each run. The same runs always give the same bytes.

    Args:
        plot: The trade-off plot as PNG.
        limit: Bytes of samples.jsonl that fit on the page.
        made: When and by which command the page was made.

    Raises:
        DataError: A samples.jsonl holds a line that is not a JSON object.
    """
    data, rows_found = conversations(comparison, limit)
    style, script = packaged("report/report.css"), packaged("report/page.js") + packaged("report/report.js")
    counts = {"rows": len(data["rows"]), "rows_found": rows_found}
    image = base64.b64encode(plot).decode() if plot else ""
    of_page = {"comparison": comparison, "made": made, "sections": list(sections(comparison)), "plot": image, **counts}
    return rendered("report/report.html", style, script, data, **of_page)


def rendered(template: str, style: str, script: str, data: Any, **values: Any) -> str:
    """Return a page of a packaged template, which holds style, script and data as they are.

    Every other text is escaped, with `?` for each invisible character: escaping alone would leave control and bidirectional
    characters, which hide or reorder text.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        return printable(value, len(value)) if type(value) is str else value  # markup is a class of its own

    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(finalize=finalize, undefined=StrictUndefined, **options)
    own = {"style": Markup(style), "script": Markup(script), "data": Markup(as_script(data))}
    page = environment.from_string(packaged(template), globals={"label_class": label_class})
    return page.render(policy=policy(style, script), **own, **values)


def packaged(name: str) -> str:
    """Return the text of a file in the package, such as "report/report.css"."""
    return (files("nextturn.probe") / name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """Return a content security policy that allows this inline style and script and no request."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    allowed = "style-src 'sha256-{}'; script-src 'sha256-{}'; img-src data:".format(*hashes)
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


# "<" could end the script element that holds the data; the two separators end a line in older JavaScript.
_ESCAPES = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"})


def as_script(data: Any) -> str:
    """Return JSON that is safe inside a script element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


# --- The conversations on the page: rows of samples.jsonl. The rows of one conversation share its messages, which are kept
# once. Of a large comparison items are chosen by a hash, the same ones in every run, so that what was gained or lost
# between two runs stays right for what is shown.

FIELDS = (
    "run", "kind", "set", "perturbation", "temperature", "item", "sample", "context", "user_turn", "user_cut", "label",
    "annotated", "unscored", "judge_raw", "specific", "grounding", "log_p", "changed", "reference", "extracted", "strict", "lenient",
    "outcome", "asked", "score", "strict_score", "values",
)  # fmt: skip


def conversations(comparison: Comparison, limit: int) -> tuple[dict[str, Any], int]:
    """Return what the page's script reads, and how many rows all runs have."""
    runs = {run: found for run, found in enumerate(comparison.runs) if found.samples}
    paths = [samples_file(part.folder) for found in runs.values() for part in found.parts]
    # The last four bytes of a .gz say how long its text is.
    sizes = (int.from_bytes(path.read_bytes()[-4:], "little") for path in paths if path.suffix == ".gz")
    portion = limit / max(1, sum(sizes) + sum(path.stat().st_size for path in paths if path.suffix != ".gz"))
    declared: dict[str, Sequence[Figure]] = {name: tuple(of.values()) for name, of in comparison.declared.items()}
    declared |= {"followup": Followup.figures[:1], "actual": Followup.figures[:1]}
    contexts: dict[str, int] = {}
    rows: list[list[Any]] = []
    rows_found = 0
    for run, training, row in ((run, *row) for run, found in runs.items() for row in found.rows()):
        rows_found += 1
        if portion >= 1 or int(sha256_text(f"{row['set']} {row['item']}")[:8], 16) / 16**8 < portion:
            context = json.dumps([[message["role"], message["content"]] for message in row["messages"]])
            kind = f"{row['kind']} {row['condition']}" if row["condition"] else row["kind"]
            figures = [figure for figure in declared[row["kind"]] if (figure.shows or row["kind"]) == kind]
            strict = [figure for figure in figures if figure.name.startswith("strict")] or figures
            shown = {
                "run": run,
                "kind": kind,
                "temperature": f"T={float(row['temperature'])}",
                "sample": f"{row['sample']} of training {training + 1}" if training else row["sample"],
                "context": contexts.setdefault(context, len(contexts)),
                "score": figures[0].of(row) if figures else None,
                "strict_score": strict[0].of(row) if strict else None,
            }
            if row["kind"] == "followup" and row["perturbation"] == NONE:
                turn = row.get("turn_sha256") or turn_hash(row["messages"], row["user_turn"] or "")
                shown["annotated"] = comparison.labels.get((comparison.names[run], turn))
            rows.append([{**row, **shown}.get(field) for field in FIELDS])
    kinds = {kind: title for measure in MEASURES.values() for kind, title in measure.kinds.items()}
    kinds |= {name: own.title for run in comparison.runs for name, own in run.results.own.items()}
    data = {"runs": comparison.names, "labels": LABELS, "kinds": kinds, "fields": FIELDS}
    return {**data, "contexts": [json.loads(context) for context in contexts], "rows": rows}, rows_found
