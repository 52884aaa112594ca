"""How figures are written on the page: rates and differences in percent, intervals in a smaller hand."""

from __future__ import annotations

import json
from typing import Any

from probe.comparing.page_parts.markup import Html, tag
from probe.comparing.results import Metric
from probe.comparing.tables import title
from probe.stats import Estimate, PairedDifference

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
