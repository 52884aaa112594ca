"""What stands beside the main figures: perturbed answers, grounding, real user turns, and how it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from probe.comparing.page_parts.markup import (
    BREAK,
    Child,
    Html,
    beside,
    grouped_table,
    join,
    label_class,
    link,
    table,
    tag,
)
from probe.comparing.page_parts.numbers import decoding, difference, mean, percent, rate, setting, short_hash
from probe.comparing.results import Metric, rate_of
from probe.judges.labels import in_order
from probe.stats import NOTHING, Estimate

if TYPE_CHECKING:
    from probe.compare import Comparison

Groups = dict[str, list[list[Child]]]


def perturbations(comparison: Comparison) -> Html | None:
    tables: dict[str, Groups] = {}
    for one in comparison.perturbed:
        where = {"a": one.run, "kind": "followup", "set": one.set, "temperature": one.temperature}
        plain = _rate(comparison, one.run, Metric("followup", one.set, one.temperature))
        after = _rate(comparison, one.run, Metric("followup", one.set, one.temperature, one.perturbation))
        groups = tables.setdefault(f"{one.set}: {one.perturbation}", {})
        groups.setdefault(decoding(one.temperature), []).append([
            one.run, link(percent(plain), **where, perturbation="none"),
            link(percent(after), **where, perturbation=one.perturbation),
            difference(one.difference), rate(one.changed_text),
        ])  # fmt: skip
    note = (
        "Positive controls: the answer was cut short or given another ending before the user turn was generated. A model that "
        "reads the answer then writes other user turns; one that does not, writes the same. Difference: perturbed "
        "minus plain, paired by item; text changed: share of user turns that are not the plain run's."
    )
    head = ["Run", "Plain", "Perturbed", "Difference [95%]", "Text changed [95%]"]
    shown = [grouped_table(f"{name}; follow-up in percent", head, groups) for name, groups in tables.items()]
    return join([beside(shown), tag("p", note, class_="note")]) if shown else None


def grounding(comparison: Comparison) -> Html | None:
    given = {label for one in comparison.grounding for label in one.labels}
    labels = in_order(given)
    groups: Groups = {}
    for one in comparison.grounding:
        means = [_counted(one.labels.get(label, NOTHING)) for label in labels]
        groups.setdefault(one.set, []).append([one.run, _counted(one.auc), *means])
    note = (
        "Grounding is (log p(user turn | question, answer) − log p(user turn | question)) per token, by the probed "
        "model itself, in nats: how much the answer explains the user turn. AUC is the chance that a genuine "
        "follow-up is grounded better than another user turn; 0.5 tells nothing. All temperatures together."
    )
    chips = [tag("span", label.replace("_", " "), class_=f"chip {label_class(label)}") for label in labels]
    return _section(
        "AUC and mean grounding by label, with 95% intervals", ["Run", "AUC, genuine", *chips], groups, note
    )


def actual(comparison: Comparison) -> Html | None:
    against = {(one.run, one.set, one.temperature): one.difference for one in comparison.against_actual}
    groups: Groups = {}
    for run in comparison.runs:
        for name, part in run.results.actual.items():
            real = rate_of(part)
            shown = join([link(percent(real), a=run.name, kind="actual", set=name), " ", tag("small", f"n = {real.n}")])
            made = [metric for metric in comparison.figures if metric == Metric("followup", name, metric.name)]
            lines = [
                [f"{metric.name} ", rate(_rate(comparison, run.name, metric)), "; difference ",
                 difference(against.get((run.name, name, metric.name))), BREAK]
                for metric in made
            ]  # fmt: skip
            groups.setdefault(name, []).append([run.name, shown, join(part for line in lines for part in line)])
    note = (
        "Real conversations without their last user message: what the person did write there, judged like a generated "
        "turn. No model needs to reach 100: this is what people reach with this judge. Difference: generated minus "
        "real, paired by item."
    )
    return _section(
        "Genuine follow-ups, in percent", ["Run", "Real user turns", "Generated instead [95%]"], groups, note
    )


def measured(comparison: Comparison) -> Html | None:
    settings = comparison.runs[0].results.settings
    rows: list[list[Child]] = [
        [f"set {name}", join([f"{info.n} items; {', '.join(info.measures)}; ", short_hash(info.sha256)])]
        for name, info in settings.sets.items()
    ]
    rows += [[key, setting(value)] for key, value in settings.others().items()]
    rows.append(["chat template", short_hash(comparison.runs[0].results.model.template_sha256)])
    models: list[list[Child]] = []
    for one in comparison.runs:
        model = one.results.model
        models.append([one.name, model.path, str(model.step or "–"), short_hash(model.weights_sha256), str(one.folder)])
    described = f"Settings of {comparison.names[0]}" if comparison.differences else "Settings"
    return beside([
        table(described, ["Setting", "Value"], rows),
        table("Models", ["Run", "Model", "Step", "Weights, SHA-256", "Folder"], models),
    ])  # fmt: skip


def _section(caption: str, head: Sequence[Child], groups: Groups, note: str) -> Html | None:
    return join([grouped_table(caption, head, groups), tag("p", note, class_="note")]) if groups else None


def _rate(comparison: Comparison, run: str, metric: Metric) -> Estimate:
    found = comparison.figures.get(metric)
    return found[comparison.names.index(run)] if found else NOTHING


def _counted(estimate: Estimate) -> Html:
    return tag("span", mean(estimate), tag("small", f" n = {estimate.n}" if estimate.n else ""), class_="figure")
