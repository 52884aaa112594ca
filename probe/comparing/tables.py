"""The main figures of a comparison in columns, and the table that is printed to the terminal.

Sets share a block of columns as long as no measure stands in it twice, so that a small probe gives one table
with everything in it, and a large one a table per set instead of one that nobody can read.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from probe.comparing.results import Followup, Metric, printable, rate_of
from probe.stats import Estimate

if TYPE_CHECKING:
    from probe.compare import Comparison

WIDTH = 140
COLUMNS = 6


def terminal_table(comparison: Comparison) -> str:
    """The main figures for the terminal: percent with 95% intervals, 140 columns wide, or as wide as six columns are.

    Below the tables: what pattern each set shows, what real users reach, how many user turns got no label, and what
    differs.
    """
    notes = ["percent [95% interval]"]
    for name, patterns in comparison.patterns.items():
        shown: dict[str, list[str]] = {}
        for run, pattern in zip(comparison.names, patterns, strict=True):
            shown.setdefault(pattern.name, []).append(run)
        told = "; ".join(f"{pattern} ({', '.join(runs)})" for pattern, runs in shown.items())
        notes.append(f"follow-up on {printable(name)}: {told}")
    real = {name: part for run in comparison.runs for name, part in run.results.actual.items()}
    notes += [f"real users on {printable(name)}: {percent(rate_of(part))}" for name, part in real.items()]
    notes += [f"unscored: {line}" for line in unscored(comparison)]
    notes += [f"MEASURED DIFFERENTLY: {line}" for line in comparison.differences]
    notes += [f"note: {line}" for line in comparison.remarks]
    wrapped = [textwrap.fill(note, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for note in notes]
    return "\n\n".join([*(_block(comparison, block) for block in blocks(comparison)), "\n".join(wrapped)])


def blocks(comparison: Comparison) -> list[list[Metric]]:
    """Columns of the main tables: every metric but strict accuracy and perturbed follow-ups, in blocks."""
    columns = [one for one in comparison.figures if one.name != "strict" and one.perturbation == "none"]
    packed: list[list[Metric]] = []
    for name in dict.fromkeys(one.set for one in columns):
        of_set = [one for one in columns if one.set == name]
        measures = {one.measure for one in of_set}
        room = (block for block in packed if measures.isdisjoint(one.measure for one in block))
        block = next(room, None)
        if block is None:
            packed.append(block := [])
        block += of_set
    chosen = [[one for one in columns if one in block] for block in packed]
    return [block[start : start + COLUMNS] for block in chosen for start in range(0, len(block), COLUMNS)]


def percent(estimate: Estimate) -> str:
    """57.0 [47.2, 66.3]"""
    if estimate.value is None:
        return "-"
    interval = "" if estimate.ci95 is None else " [{:.1f}, {:.1f}]".format(*(100 * bound for bound in estimate.ci95))
    return f"{100 * estimate.value:.1f}{interval}"


def title(metric: Metric) -> str:
    if metric.measure == "followup":
        return f"follow-up {metric.name}"
    return "accuracy" if metric.name == "lenient" else "accuracy (strict)" if metric.name == "strict" else metric.name


def followups(comparison: Comparison, metric: Metric) -> list[Followup | None]:
    return [
        one.results.followup.get(metric.set, {}).get(metric.perturbation, {}).get(metric.name)
        for one in comparison.runs
    ]


def unscored(comparison: Comparison) -> list[str]:
    """One line for each run in which some user turns got no label, over all its sets and temperatures."""
    lines = []
    for run in comparison.runs:
        parts = [
            part
            for perturbations in run.results.followup.values()
            for temperatures in perturbations.values()
            for part in temperatures.values()
        ]
        reasons = sum((Counter(part.unscored) for part in parts), Counter[str]())
        total = sum(part.n_total for part in parts)
        if reasons and total:
            why = ", ".join(f"{printable(reason)} {count}" for reason, count in sorted(reasons.items()))
            lines.append(f"{run.name} {100 * reasons.total() / total:.1f}% of {total} user turns ({why})")
    return lines


def _block(comparison: Comparison, block: Sequence[Metric]) -> str:
    """Three header lines (set and n, metric, rule), then one line per run."""
    cells = [[percent(estimate) for estimate in comparison.figures[metric]] for metric in block]
    widths = [max(map(len, [title(metric), *column])) for metric, column in zip(block, cells, strict=True)]
    names = [_shortened(name, max(12, WIDTH - sum(widths) - 2 * len(widths))) for name in comparison.names]
    first = max(map(len, names))
    sets = " " * first
    for _, group in groupby(range(len(block)), key=lambda index: (block[index].set, block[index].measure)):
        columns = list(group)
        sizes = list(dict.fromkeys(sizes_of(comparison, block[index]) for index in columns))
        span = sum(widths[index] for index in columns) + 2 * (len(columns) - 1)
        sets += "  " + _shortened(f"{printable(block[columns[0]].set)}, n = {', '.join(sizes)}", span).ljust(span)
    rows = [["", *map(title, block)], *([name, *row] for name, *row in zip(names, *cells, strict=True))]
    padded = [
        [row[0].ljust(first), *(cell.ljust(width) for cell, width in zip(row[1:], widths, strict=True))] for row in rows
    ]
    head, *lines = ["  ".join(row).rstrip() for row in padded]
    return "\n".join([sets.rstrip(), head, "-" * max(map(len, [head, *lines])), *lines])


def sizes_of(comparison: Comparison, metric: Metric) -> str:
    """100, or 98/100 where runs have different numbers of observations."""
    return "/".join(map(str, sorted({estimate.n for estimate in comparison.figures[metric] if estimate.n})))


def _shortened(text: str, room: int) -> str:
    """Cut in the middle: what tells names apart stands at their ends."""
    return text if len(text) <= room else f"{text[: (room - 1) // 2]}…{text[-(room // 2) :]}"
