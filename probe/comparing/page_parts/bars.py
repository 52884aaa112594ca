"""Failure fingerprints: per set and decoding, one stacked bar of labels for each run, and how answers ended.

The bars are drawn for every set, perturbation and temperature; the page's script shows the one that is chosen.
Without the script, all are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from probe.comparing.page_parts.markup import Child, Html, beside, join, label_class, link, table, tag, view
from probe.comparing.page_parts.numbers import decoding, mean, percent, rate
from probe.comparing.results import Followup, Metric, estimate_of, rate_of
from probe.comparing.tables import followups
from probe.judges.labels import LABELS, in_order

if TYPE_CHECKING:
    from probe.compare import Comparison

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
        found = [*_bars(comparison, metric), *_real(comparison, metric)]
        caption = tag("figcaption", _name(metric))
        shown.append(tag("figure", caption, *map(_drawn, found), _counts(metric, found), id=f"bars-{number}"))
        groups.setdefault(metric.set, []).append(tag("option", _name(metric), value=f"bars-{number}"))
    options = [tag("optgroup", *options, label=name) for name, options in groups.items()]
    choice = tag("label", "Set and decoding ", tag("select", *options, id="bars-choice"))
    return join([tag("p", choice, class_="script choice"), _legend(comparison, metrics), tag("div", *shown, id="bars")])


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


def _legend(comparison: Comparison, metrics: Sequence[Metric]) -> Html:
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


def _real(comparison: Comparison, metric: Metric) -> list[Bar]:
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
