"""What one run says by itself, without a baseline: its perturbations, its grounding, and the real users' turns.

- A perturbation is a positive control: the run with it, held against the run without, paired by item.
- Grounding is worth what it tells apart: genuine turns from others (AUC), and its mean per label.
- On transcripts the real users' turns, judged by the same judge, are the ceiling: generated turns minus real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from probe.comparing.results import Metric, Run, estimate_of
from probe.comparing.samples import Grounded, actual
from probe.judges.labels import GENUINE, in_order
from probe.stats import Estimate, PairedDifference, auc, mean_ci, paired_difference


@dataclass(frozen=True)
class Perturbed:
    """One perturbation of one run; `difference` is perturbed minus plain, None where rows are missing.

    `changed_text` is the share of user turns whose text changed, without a value where it was not measured.
    """

    run: str
    set: str
    perturbation: str
    temperature: str
    changed_text: Estimate
    difference: PairedDifference | None

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "set": self.set,
            "perturbation": self.perturbation,
            "temperature": self.temperature,
            "changed_text": None if self.changed_text.value is None else self.changed_text.as_json(),
            "difference": self.difference and self.difference.as_json(),
        }


@dataclass(frozen=True)
class Grounding:
    """What grounding is worth in one run and set: unperturbed user turns, all temperatures together.

    `auc` is the chance that a genuine turn is grounded better than another one; `labels` has the mean in nats per
    token for each label that was given.
    """

    run: str
    set: str
    auc: Estimate
    labels: dict[str, Estimate]

    def as_json(self) -> dict[str, Any]:
        labels = {label: _counted(found) for label, found in self.labels.items()}
        return {"run": self.run, "set": self.set, "auc": _counted(self.auc), "labels": labels}


@dataclass(frozen=True)
class AgainstActual:
    """Generated user turns minus the real ones of the same transcripts; `difference` is None without rows."""

    run: str
    set: str
    temperature: str
    difference: PairedDifference | None

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "set": self.set,
            "temperature": self.temperature,
            "difference": self.difference and self.difference.as_json(),
        }


def perturbed(run: Run) -> Iterator[Perturbed]:
    """Every set, perturbation and temperature that was measured with and without the perturbation."""
    for name, perturbations in run.results.followup.items():
        for perturbation, temperatures in perturbations.items():
            if perturbation == "none":
                continue
            for temperature, part in temperatures.items():
                plain = Metric("followup", name, temperature)
                difference = _difference(run, plain, Metric("followup", name, temperature, perturbation))
                yield Perturbed(run.name, name, perturbation, temperature, estimate_of(part.changed_text), difference)


def grounding(run: Run) -> Iterator[Grounding]:
    """Every set in which labelled user turns have a grounding."""
    for name, turns in (run.samples.grounded if run.samples else {}).items():
        given = {turn.label for turn in turns}
        labels = in_order(given)
        separation = auc(
            [turn.grounding for turn in turns],
            [turn.label == GENUINE for turn in turns],
            [turn.item for turn in turns],
        )
        yield Grounding(run.name, name, separation, {label: _mean(turns, label) for label in labels})


def against_actual(run: Run) -> Iterator[AgainstActual]:
    """Every temperature of the transcript sets, without perturbation."""
    for name in run.results.actual:
        for temperature in run.results.followup.get(name, {}).get("none", {}):
            difference = _difference(run, actual(name), Metric("followup", name, temperature))
            yield AgainstActual(run.name, name, temperature, difference)


def _difference(run: Run, before: Metric, after: Metric) -> PairedDifference | None:
    values = run.samples.values if run.samples else {}
    return paired_difference(values[before], values[after]) if before in values and after in values else None


def _mean(turns: Sequence[Grounded], label: str) -> Estimate:
    of_label = [turn for turn in turns if turn.label == label]
    return mean_ci([turn.grounding for turn in of_label], [turn.item for turn in of_label])


def _counted(estimate: Estimate) -> dict[str, Any]:
    return {**estimate.as_json(), "n": estimate.n}
