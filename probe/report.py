"""comparison.md: a comparison as a page for a paper's reader, from the main figures to how they were measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from probe.comparison import (
    Followup,
    Metric,
    blocks,
    estimate_of,
    percent,
    printable,
    rate_of,
    sizes_of,
    temperature,
    title,
    unscored,
)
from probe.judges.labels import in_order
from probe.plot import MANY, ends
from probe.stats import Estimate, PairedDifference

if TYPE_CHECKING:
    from probe.compare import Comparison
    from probe.comparison import Pattern


# --- How figures and names are written into the tables of comparison.md.
#
# Names come from folders, recipes and data files: `md` makes them harmless before they are shown.

# Everything that could open markup, a table cell, a link or a formula.
_MARKS = str.maketrans({mark: f"\\{mark}" for mark in "\\`*[]|~$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def md(text: str, most: int = 80) -> str:
    """Text from outside as one harmless Markdown cell of at most `most` characters."""
    return printable(text, most).translate(_MARKS)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def difference(change: PairedDifference | None) -> str:
    """+12.0 [+3.1, +20.5], in points."""
    if change is None or change.value is None:
        return "-"
    interval = "" if change.ci95 is None else " [{:+.1f}, {:+.1f}]".format(*(100 * bound for bound in change.ci95))
    return f"{100 * change.value:+.1f}{interval}"


def p_value(change: PairedDifference) -> str:
    """p = 0.004; nothing where there is no test."""
    p = change.p_value
    return "" if p is None else "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def tested(change: PairedDifference | None) -> str:
    """+12.0 [+3.1, +20.5], p = 0.004 (14 up, 2 down)"""
    if change is None or change.value is None:
        return "-"
    figures = [difference(change), p_value(change)]
    return f"{', '.join(part for part in figures if part)} ({change.gained} up, {change.lost} down)"


def number(estimate: Estimate) -> str:
    """0.27 [0.22, 0.33]"""
    interval = "" if estimate.ci95 is None else " [{:.2f}, {:.2f}]".format(*estimate.ci95)
    return "-" if estimate.value is None else f"{estimate.value:.2f}{interval}"


def share(count: int, n: int) -> str:
    """48.0 (72): percent and count; a bare 0 for none."""
    return f"{100 * count / n:.1f} ({count})" if count else "0"


# --- The parts of comparison.md about user turns: labels, perturbations, grounding, and real users' turns.
#
# Of several temperatures the first and the last are shown, greedy decoding and the highest as a rule: the page is to be
# read, and comparison.json has the rest.


def fingerprints(comparison: Comparison) -> str:
    """How user turns fail: per set a table of labels, a row per run and temperature."""
    tables = []
    for name in comparison.sets("followup"):
        found = []
        for index in ends(comparison):
            cells = comparison.runs[index].results.followup.get(name, {}).get("none", {})
            shown = [one for one in _first_and_last(comparison, name) if one in cells]
            found += [(md(comparison.names[index]), decoding, cells[decoding]) for decoding in shown]
        real = [one.results.actual[name] for one in comparison.runs if name in one.results.actual]
        found += [("real users", "-", part) for part in real[:1]]  # the same turns, whichever run was probed
        labels = _given([part for _, _, part in found])
        head = ["run", "decoding", *map(md, labels), "unscored", "role-consistent", "specific", "grounding"]
        rows = [[run, decoding, *_fingerprint(part, labels)] for run, decoding, part in found]
        tables.append(f"### {md(name)}\n\n{table(head, rows)}")
    told = (
        "Percent of the judged user turns with the count in brackets; unscored is a share of all. Role-consistent: "
        "could have been written from the user's side. Specific: genuine follow-ups that name something from the "
        "answer. Grounding: nats per token, see below; that of real users' turns is under the first run's model. Here and "
        "below, of several temperatures the first and the last are shown; comparison.json has all of them."
    )
    return "\n\n".join(["## User turns by label", *tables, told]) if tables else ""


def perturbations(comparison: Comparison) -> str:
    """Per set a row per perturbation and run: rates without and with it, the paired difference, and what changed."""
    places = {(one.run, one.set, one.perturbation, one.temperature): one for one in comparison.perturbed}
    kinds = list(dict.fromkeys((one.set, one.perturbation) for one in comparison.perturbed))
    tables = []
    for name in dict.fromkeys(name for name, _ in kinds):
        decodings = _first_and_last(comparison, name)
        rows = []
        for perturbation in (kind for of_set, kind in kinds if of_set == name):
            for index in ends(comparison):
                run = comparison.names[index]
                cells: list[str] = []
                for decoding in decodings:
                    one = places.get((run, name, perturbation, decoding))
                    rates = [_rate(comparison, name, kind, decoding, index) for kind in ("none", perturbation)]
                    cells += (
                        [" → ".join(rates), tested(one.difference), percent(one.changed_text)] if one else ["-"] * 3
                    )
                if set(cells) != {"-"}:
                    rows.append([md(perturbation), md(run), *cells])
        columns = ("without → with", "difference", "turns changed")
        head = ["perturbation", "run", *(f"{decoding}: {column}" for decoding in decodings for column in columns)]
        tables.append(f"### {md(name)}\n\n{table(head, rows)}")
    told = (
        "Controls: the answer was cut short, or given another ending, before the user turn was generated. Difference: "
        "points, perturbed minus plain, within one run, paired by item as above. Turns changed: percent of the user "
        "turns whose text is not that of the plain run. Where turns change and the rate does not, the model reads the "
        "answer and still says nothing that a user would."
    )
    return "\n\n".join(["## Perturbations", *tables, told]) if tables else ""


def groundings(comparison: Comparison) -> str:
    shown = {comparison.names[index] for index in ends(comparison)}
    found = [one for one in comparison.grounding if one.run in shown]
    given = {label for one in found for label in one.labels}
    labels = in_order(given)
    rows = []
    for name in dict.fromkeys(one.set for one in found):
        for one in (one for one in found if one.set == name):
            means = (number(one.labels[label]) if label in one.labels else "-" for label in labels)
            rows.append([md(name), md(one.run), number(one.auc), str(one.auc.n), *means])
    told = (
        "Grounding is (log p(user turn | question, answer) - log p(user turn | question)) per token under the probed "
        "model itself, in nats: how much the answer explains the user turn. AUC is the chance that a genuine "
        "follow-up is grounded better than another user turn (ties half); 0.5 tells nothing. Then its mean per label. "
        "All temperatures together, 95% intervals from a bootstrap over items."
    )
    return f"## Grounding\n\n{table(['set', 'run', 'AUC', 'n', *map(md, labels)], rows)}\n\n{told}" if rows else ""


def transcripts(comparison: Comparison) -> str:
    """Generated user turns against those that real users wrote at the same place, which are the ceiling."""
    places = {(one.run, one.set, one.temperature): one for one in comparison.against_actual}
    found = sorted({one.temperature for one in comparison.against_actual}, key=temperature)
    decodings = list(dict.fromkeys([found[0], found[-1]])) if found else []
    rows = []
    for name in dict.fromkeys(name for one in comparison.runs for name in one.results.actual):
        for index in ends(comparison):
            run = comparison.runs[index]
            part = run.results.actual.get(name)
            if part is None:
                continue
            unscored = f", {sum(part.unscored.values())} unscored" if part.unscored else ""
            cells = [f"{percent(rate_of(part))} (n {part.n_judged}{unscored})"]
            for decoding in decodings:
                change = places.get((run.name, name, decoding))
                cells += [
                    _rate(comparison, name, "none", decoding, index) if change else "-",
                    tested(change.difference) if change else "-",
                ]
            rows.append([md(name), md(run.name), *cells])
    head = ["set", "run", "real users"]
    head += [f"{decoding}{column}" for decoding in decodings for column in ("", ": minus real")]
    told = (
        "Real conversations with the last user message removed: what the person did write there, labelled by the same "
        "judge, is the ceiling for what a model can reach. Differences in points, paired by item as above."
    )
    return f"## Real users' turns\n\n{table(head, rows)}\n\n{told}" if rows else ""


def _fingerprint(part: Followup, labels: Sequence[str]) -> list[str]:
    return [
        *(share(part.labels.get(label, 0), part.n_judged) for label in labels),
        share(sum(part.unscored.values()), part.n_total),
        percent(estimate_of(part.role_consistency)),
        percent(estimate_of(part.specificity)),
        number(estimate_of(part.grounding)),
    ]


def _given(parts: Sequence[Followup]) -> list[str]:
    given = {label for part in parts for label, count in part.labels.items() if count}
    return in_order(given)


def _rate(comparison: Comparison, name: str, perturbation: str, decoding: str, index: int) -> str:
    estimates = comparison.figures.get(Metric("followup", name, decoding, perturbation))
    value = estimates[index].value if estimates else None
    return "-" if value is None else f"{100 * value:.1f}"


def _first_and_last(comparison: Comparison, name: str) -> list[str]:
    found = [metric.name for metric in comparison.figures if metric == Metric("followup", name, metric.name)]
    return list(dict.fromkeys([found[0], found[-1]])) if found else []


def markdown(comparison: Comparison) -> str:
    """The whole page; a section without anything to show is left out."""
    names = comparison.names
    forced = [f"> **Measured differently, compared by force:** {md(line, 400)}" for line in comparison.differences]
    parts = [
        f"# Probe runs compared\n\nBaseline: **{md(names[0])}**.\n\n![Accuracy against follow-up](tradeoff.png)",
        "\n>\n".join(forced),
        _results(comparison),
        _changes(comparison),
        _patterns(comparison),
        _shortened(comparison),
        _outcomes(comparison),
        fingerprints(comparison),
        perturbations(comparison),
        groundings(comparison),
        transcripts(comparison),
        _measured(comparison),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _results(comparison: Comparison) -> str:
    tables = []
    for block in blocks(comparison):
        head = ["run", *(f"{md(metric.set)}: {title(metric)}" for metric in block)]
        rows = []
        for index, name in enumerate(comparison.names):
            cells = [percent(comparison.figures[metric][index]) for metric in block]
            for position, metric in enumerate(block):
                strict = comparison.figures.get(_strict(metric))
                if metric.name == "lenient" and strict and strict[index].n:
                    cells[position] += f" (strict {percent(strict[index])})"
            rows.append([md(name), *cells])
        sizes: dict[str, list[str]] = {}
        for metric in block:
            sizes.setdefault(f"{md(metric.set)} {sizes_of(comparison, metric)}", []).append(title(metric))
        told = "; ".join(f"{size} ({', '.join(titles)})" for size, titles in sizes.items())
        tables.append(table(head, rows) + f"\n\nn: {told}.")
    missing = "".join(f"\n- Unscored, in no rate: {md(line, 400)}." for line in unscored(comparison))
    legend = (
        "Percent with 95% intervals: Wilson's, on the effective number of observations where an item has several "
        "samples. Accuracy is lenient, strict in brackets. Follow-up is the share of genuine follow-ups among the "
        "user turns that were judged."
    )
    return "## Results\n\n" + "\n\n".join([*tables, legend]) + ("\n" + missing if missing else "")


def _changes(comparison: Comparison) -> str:
    """One table per block of columns, as in the results, so that a reader finds a figure's change where it stood."""
    tables, tests, unmatched = [], 0, 0
    for block in blocks(comparison):
        rows = []
        for index, name in enumerate(comparison.names[1:], start=1):
            cells = []
            for metric in block:
                change = comparison.paired[metric][index]
                strict = comparison.paired.get(_strict(metric), ())
                also = strict[index] if metric.name == "lenient" and strict else None
                cells.append(tested(change) + (f"; strict {difference(also)}" if also else ""))
                tests += change is not None and change.p_value is not None
                unmatched = max(unmatched, change.unmatched if change else 0)
            rows.append([md(name), *cells])
        if any(comparison.paired[metric][index] for metric in block for index in range(len(comparison.runs))):
            tables.append(table(["run", *(f"{md(metric.set)}: {title(metric)}" for metric in block)], rows))
    if not tables:
        return ""
    told = (
        "Points, run minus baseline, paired by item. Where every item has one value: Bonett and Price's interval "
        "and McNemar's exact test; else a bootstrap over items. In brackets the items that went up "
        f"and down, which comparison.json names. {tests} tests stand here, and p is not corrected for their number."
    )
    alone = (
        f" What only one of two runs has is left out (at most {unmatched} of a metric's items)." if unmatched else ""
    )
    return "\n\n".join([f"## Change against {md(comparison.names[0])}", *tables, told + alone])


def _patterns(comparison: Comparison) -> str:
    if not comparison.patterns:
        return ""
    from probe.comparison import CLEAR, LOW, MEANING

    def cell(pattern: Pattern) -> str:
        rates = [found for found in (pattern.greedy, pattern.sampled) if found.value is not None]
        told = " → ".join(f"{100 * (found.value or 0):.1f}" for found in rates)
        return f"**{pattern.name}** ({told})" if told else f"**{pattern.name}**"

    rows = []
    for index, name in enumerate(comparison.names):
        of_run = [found[index] for found in comparison.patterns.values()]
        clear = sum(pattern.name in CLEAR for pattern in of_run)
        overall = f"**{comparison.overall[index]}** ({clear} of {len(of_run)} sets clear)"
        rows.append([md(name), *map(cell, of_run), overall])
    named = {pattern.name for found in comparison.patterns.values() for pattern in found} | {*comparison.overall}
    meaning = "\n".join(f"- **{name}**: {told}" for name, told in MEANING.items() if name in named)
    return (
        f"## Patterns\n\n{table(['run', *map(md, comparison.patterns), 'over all sets'], rows)}\n\n{meaning}\n\n"
        "In brackets: the follow-up rate, greedy → at the highest temperature. High: the whole 95% interval is at or "
        f"above {LOW:.0%}; low: the whole interval is below it."
    )


def _shortened(comparison: Comparison) -> str:
    """A page of every checkpoint's labels would not be read."""
    kept = ends(comparison)
    if len(kept) == len(comparison.runs):
        return ""
    names = ", ".join(md(comparison.names[index]) for index in kept)
    return (
        f"There are more than {MANY} runs, so the sections below show the baseline and the last checkpoint of each "
        f"training run: {names}. comparison.json has all of them."
    )


def _outcomes(comparison: Comparison) -> str:
    rows = []
    parts = [one.results.accuracy for one in comparison.runs]
    kinds = list(dict.fromkeys(kind for part in parts for one in part.values() for kind in one.outcomes))
    for name in comparison.sets("accuracy"):
        for index in ends(comparison):
            part = parts[index].get(name)
            if part:
                counts = (str(part.outcomes.get(kind, 0)) for kind in kinds)
                rows.append([md(name), md(comparison.names[index]), *counts, str(part.n)])
    return f"## How the answers ended\n\n{table(['set', 'run', *map(md, kinds), 'n'], rows)}" if rows else ""


def _measured(comparison: Comparison) -> str:
    settings = comparison.runs[0].results.settings
    rows = [
        [f"set {md(name)}", f"{info.n} items; {md(', '.join(info.measures))}; sha256 {md(info.sha256[:12])}"]
        for name, info in settings.sets.items()
    ]
    rows += [[md(key), md(_setting(value), 400)] for key, value in settings.others().items()]
    rows.append(["chat template", f"sha256 {md((comparison.runs[0].results.model.template_sha256 or '-')[:12])}"])
    models = [
        [md(one.name), md(model.path), str(model.step or "-"), md((model.weights_sha256 or "-")[:12])]
        for one in comparison.runs
        for model in [one.results.model]
    ]
    remarks = "".join(f"\n- {md(line, 400)}" for line in comparison.remarks)
    whose = f"Settings of {md(comparison.names[0])}" if comparison.differences else "Settings of every run"
    whose += ", but for what the list below says:" if remarks else ":"
    return (
        f"## How it was measured\n\nThe user-turn probe of arXiv 2604.02315: after a question and an answer, the same "
        "model opens the user's turn, without instruction or persona, and a judge labels what it says. Rates compare "
        f"within one judge only.\n\n{whose}\n\n{table(['setting', 'value'], rows)}"
        f"\n\n{table(['run', 'model', 'step', 'weights sha256'], models)}" + (f"\n{remarks}" if remarks else "")
    )


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _strict(metric: Metric) -> Metric:
    return Metric("accuracy", metric.set, "strict")
