"""Makes the weights of the score from labelled turns.

A multinomial logistic regression over the turns that no rule settles. Which signal may speak for or against which
label is chosen by reason (`scores.DIRECTIONS`), and the penalty pulls each weight not to zero but to half a point
for one standard deviation of the signal in that direction: a few hundred labelled turns say too little about a rare
signal to start it from nothing, and weights made so agree better with people on turns of other origin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probe.errors import DataError
from probe.judges.clear import Settled
from probe.judges.labelled import LabelledTurn
from probe.judges.scores import BIAS

if TYPE_CHECKING:
    import torch

PENALTY = 3.0
# Points for a standard deviation that a weight starts from, and the least deviation counted: a signal that hardly
# ever shows would get boundless points for showing once.
PRIOR, LEAST_DEVIATION = 0.5, 0.05
Directions = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Example:
    """A labelled turn of one file (`source`), what the rules make of it, and its signals."""

    source: str
    turn: LabelledTurn
    settled: Settled | None
    signals: dict[str, float]


@dataclass(frozen=True)
class Scores:
    """One set of weights: points per unit of a signal for a label, and what each label starts from."""

    weights: dict[str, dict[str, float]]
    bias: dict[str, float]


def fit(examples: Sequence[Example], allowed: Directions, penalty: float = PENALTY) -> Scores:
    """Fits the weights in `allowed`, whose signs say which way reason points.

    Deterministic; float64; full-batch L-BFGS until it converges.
    """
    import torch

    used = [example for example in examples if example.settled is None and example.turn.label in BIAS]
    if not used:
        raise DataError("no labelled turn is left that the score decides; wanted some hundreds")
    names, labels = list(allowed), list(BIAS)
    inputs = torch.tensor([[example.signals[name] for name in names] for example in used], dtype=torch.float64)
    targets = torch.tensor([labels.index(example.turn.label) for example in used])
    free = torch.tensor([[float(label in allowed[name]) for label in labels] for name in names], dtype=torch.float64)
    signs = [[math.copysign(1.0, allowed[name].get(label, 1.0)) for label in labels] for name in names]
    prior = PRIOR * free * torch.tensor(signs, dtype=torch.float64)
    mean, deviation = inputs.mean(0), inputs.std(0, correction=0).clamp(min=LEAST_DEVIATION)
    standard = (inputs - mean) / deviation
    weights = prior.clone().requires_grad_()
    bias = torch.zeros(len(labels), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        fitted = weights * free
        scores = standard @ fitted + bias
        value = torch.nn.functional.cross_entropy(scores, targets, reduction="sum")
        value = value + penalty * ((fitted - prior) ** 2).sum()
        value.backward()
        return value

    optimizer.step(loss)
    # Back to the signals' own units, so that the table reads without means and deviations.
    raw = (weights * free / deviation[:, None]).detach()
    start = (bias - mean @ raw).detach()
    return Scores(
        {name: {label: float(raw[i, labels.index(label)]) for label in allowed[name]} for i, name in enumerate(names)},
        {label: float(start[i]) for i, label in enumerate(labels)},
    )
