"""The parts of comparison.md about user turns: labels, perturbations, grounding, and real users' turns.

Of several temperatures the first and the last are shown, greedy decoding and the highest as a rule: the page is to be
read, and comparison.json has the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from probe.comparing.cells import md, number, share, table, tested
from probe.comparing.results import Followup, Metric, estimate_of, rate_of, temperature
from probe.comparing.tables import percent
from probe.comparing.tradeoff import ends
from probe.judges.labels import in_order

if TYPE_CHECKING:
    from probe.compare import Comparison


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
