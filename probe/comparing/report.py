"""comparison.md: a comparison as a page for a paper's reader, from the main figures to how they were measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from probe.comparing.cells import difference, md, table, tested
from probe.comparing.report_turns import fingerprints, groundings, perturbations, transcripts
from probe.comparing.results import Metric
from probe.comparing.tables import blocks, percent, sizes_of, title, unscored
from probe.comparing.tradeoff import MANY, ends

if TYPE_CHECKING:
    from probe.compare import Comparison
    from probe.comparing.patterns import Pattern


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
    from probe.comparing.patterns import CLEAR, LOW, MEANING

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
