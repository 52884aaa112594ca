"""How figures and names are written into the tables of comparison.md.

Names come from folders, recipes and data files: `md` makes them harmless before they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe.comparing.results import printable
from probe.stats import Estimate, PairedDifference

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
