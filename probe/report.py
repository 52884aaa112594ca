"""comparison.md: a comparison as a page for a paper's reader.

Names come from folders and data files: `md` makes them harmless before they are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from probe.judges.labels import LABELS
from probe.results import Cell, Followup, Metric, printable
from probe.stats import Estimate, PairedDifference
from probe.tables import blocks, followups, percent, sizes_of, title, unscored

if TYPE_CHECKING:
    from probe.compare import Comparison, Pattern

_MARKS = str.maketrans({mark: f"\\{mark}" for mark in "\\`*[]|"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def markdown(comparison: Comparison) -> str:
    """comparison.md: figures, paired tests, patterns, outcomes, labels, perturbations, and how it was measured."""
    names = comparison.names
    forced = [f"> **Measured differently, compared by force:** {md(line)}" for line in comparison.differences]
    sections = [
        f"# Probe runs compared\n\nBaseline: **{md(names[0])}**.\n\n![Accuracy against follow-up](tradeoff.png)",
        "\n>\n".join(forced),
        _results(comparison),
        _against_baseline(comparison),
        _patterns(comparison),
        _outcomes(comparison),
        _labels(comparison),
        _perturbations(comparison),
        _measured(comparison),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def md(text: str) -> str:
    """Text from outside as one harmless Markdown cell."""
    return printable(text).translate(_MARKS)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def _results(comparison: Comparison) -> str:
    tables = []
    for block in blocks(comparison):
        head = ["run", *(f"{md(metric.set)}: {title(metric)}" for metric in block)]
        rows = []
        for index, name in enumerate(comparison.names):
            cells = [percent(comparison.figures[metric][index]) for metric in block]
            for position, metric in enumerate(block):
                strict = comparison.figures.get(Metric("accuracy", metric.set, "strict"))
                if metric.name == "lenient" and strict and strict[index].n:
                    cells[position] += f" (strict {percent(strict[index])})"
            rows.append([md(name), *cells])
        sizes = "; ".join(f"{md(metric.set)} {title(metric)} {sizes_of(comparison, metric)}" for metric in block)
        tables.append(_table(head, rows) + f"\n\nn: {sizes}.")
    missing = "".join(f"\n- Unscored, in no rate: {md(line)}." for line in unscored(comparison))
    legend = (
        "Percent with 95% intervals: Wilson's, on the effective number of observations where an item has several "
        "samples. Accuracy is lenient, strict in brackets. Follow-up is the share of genuine follow-ups among the "
        "user turns that were judged."
    )
    return "## Results\n\n" + "\n\n".join([*tables, legend]) + ("\n" + missing if missing else "")


def _against_baseline(comparison: Comparison) -> str:
    rows = []
    for metric, changes in comparison.paired.items():
        for name, change in zip(comparison.names, changes, strict=True):
            if change is not None and change.value is not None:
                plain = "" if metric.perturbation == "none" else f" {md(metric.perturbation)}"
                rows.append([f"{md(metric.set)}: {title(metric)}{plain}", md(name), *_change(change)])
    if not rows:
        return ""
    head = ["metric", "run", "difference in points", "p (McNemar)", "items gained", "items lost", "items in both"]
    return (
        f"## Change against {md(comparison.names[0])}\n\n{_table(head, rows)}\n\n"
        "Paired by item: the mean over the items that both runs have, with a bootstrap over items. McNemar's exact "
        "test where every item has one value; p is not corrected for the number of tests."
    )


def _change(change: PairedDifference) -> list[str]:
    low, high = change.ci95 or (0.0, 0.0)
    p = change.p_value
    shown = "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
    other = f" ({change.unmatched} in one only)" if change.unmatched else ""
    difference = f"{100 * (change.value or 0):+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
    return [difference, shown, str(change.gained), str(change.lost), f"{change.n}{other}"]


def _patterns(comparison: Comparison) -> str:
    if not comparison.patterns:
        return ""
    from probe.compare import CLEAR, LOW

    def cell(pattern: Pattern) -> str:
        return f"**{pattern.name}**: greedy {percent(pattern.greedy)}, {pattern.sampled_at or 'sampled'} {percent(pattern.sampled)}"

    head = ["run", *map(md, comparison.patterns), "over all sets"]
    rows = []
    for index, name in enumerate(comparison.names):
        of_run = [found[index] for found in comparison.patterns.values()]
        clear = sum(pattern.name in CLEAR for pattern in of_run)
        overall = f"**{comparison.overall[index]}** ({clear} of {len(of_run)} sets clear)"
        rows.append([md(name), *map(cell, of_run), overall])
    return (
        f"## Patterns\n\n{_table(head, rows)}\n\n"
        f"High: the whole interval is at or above {LOW:.0%}; low: the whole interval is below it. Present: greedy "
        "high. Latent: greedy low, sampled high (at the highest temperature). Absent: both low. Unclear: an interval "
        "crosses the line, so more items are needed. Context-bound: the clear sets show different patterns."
    )


def _outcomes(comparison: Comparison) -> str:
    tables = []
    for name in comparison.sets("accuracy"):
        parts = [one.results.accuracy.get(name) for one in comparison.runs]
        kinds = list(dict.fromkeys(kind for part in parts if part for kind in part.outcomes))
        rows = [
            [md(run), *(str(part.outcomes.get(kind, 0)) for kind in kinds), str(part.n)]
            for run, part in zip(comparison.names, parts, strict=True)
            if part
        ]
        tables.append(f"### {md(name)}\n\n" + _table(["run", *(md(kind) for kind in kinds), "n"], rows))
    return "\n\n".join(["## How the answers ended", *tables]) if tables else ""


def _labels(comparison: Comparison) -> str:
    tables = []
    for metric in comparison.figures:
        if metric.measure != "followup":
            continue
        parts = followups(comparison, metric)
        given = {label for part in parts if part for label, count in part.labels.items() if count}
        labels = [label for label in LABELS if label in given] + sorted(given - set(LABELS))
        extra: dict[str, Callable[[Followup], str]] = {
            "unscored": _unscored,
            "role-consistent": lambda part: _share(part.role_consistency),
            "specific": lambda part: _share(part.specificity),
            "grounding": lambda part: _number(part.grounding),
        }
        rows = [
            [md(run), *(str(part.labels.get(label, 0)) for label in labels), *(show(part) for show in extra.values())]
            for run, part in zip(comparison.names, parts, strict=True)
            if part
        ]
        plain = "" if metric.perturbation == "none" else f", {md(metric.perturbation)}"
        tables.append(
            f"### {md(metric.set)}, {metric.name}{plain}\n\n" + _table(["run", *map(md, labels), *extra], rows)
        )
    return "\n\n".join(["## User turns by label", *tables]) if tables else ""


def _perturbations(comparison: Comparison) -> str:
    rows = []
    for metric, estimates in comparison.figures.items():
        if metric.measure != "followup" or metric.perturbation == "none":
            continue
        plain = comparison.figures.get(Metric("followup", metric.set, metric.name), ())
        parts = followups(comparison, metric)
        for index, (name, part) in enumerate(zip(comparison.names, parts, strict=True)):
            if part:
                before = percent(plain[index]) if plain else "-"
                changed = _share(part.changed_text)
                where = [md(metric.set), md(metric.perturbation), metric.name, md(name)]
                rows.append([*where, before, percent(estimates[index]), changed])
    head = ["set", "perturbation", "temperature", "run", "follow-up without", "follow-up with", "user turns changed"]
    return f"## Perturbations\n\n{_table(head, rows)}" if rows else ""


def _measured(comparison: Comparison) -> str:
    settings = comparison.runs[0].results.settings
    told = {name: f"{info.n} items, sha256 {info.sha256[:12]}" for name, info in settings.sets.items()}
    rows = [[f"set {md(name)}", md(text)] for name, text in told.items()]
    rows += [[md(key), md(str(value))] for key, value in settings.others().items()]
    models = [
        [md(one.name), md(model.path), str(model.step or "-"), md((model.weights_sha256 or "-")[:12])]
        for one in comparison.runs
        for model in [one.results.model]
    ]
    remarks = "".join(f"\n- {md(line)}" for line in comparison.remarks)
    return (
        f"## How it was measured\n\n{_table(['setting', 'value'], rows)}\n\n"
        f"{_table(['run', 'model', 'step', 'weights sha256'], models)}" + (f"\n{remarks}" if remarks else "")
    )


def _unscored(part: Followup) -> str:
    count = sum(part.unscored.values())
    return f"{count} ({100 * count / part.n_total:.1f}%)" if count else "0"


def _share(value: Cell | float | None) -> str:
    return percent(_estimate(value))


def _number(value: Cell | float | None) -> str:
    estimate = _estimate(value)
    interval = "" if estimate.ci95 is None else " [{:.2f}, {:.2f}]".format(*estimate.ci95)
    return "-" if estimate.value is None else f"{estimate.value:.2f}{interval}"


def _estimate(value: Cell | float | None) -> Estimate:
    if isinstance(value, Cell):
        return Estimate(value.value, value.ci95, 0)
    return Estimate(value, None, 0)
