"""Makes the weights of the rules judge, and says what they are worth on conversations they were not made from.

    python -m tests.fit_rules LABELS.jsonl [MORE.jsonl ...]

A multinomial logistic regression over the turns that no rule settles; it ends with `bias` and `weights` as
`probe/judges/rules.yaml` wants them. Which signal may speak for or against which label is chosen by reason, and is
read off the signs of the weights there; a weight that comes out on the other side wants a reason, or no place. The
penalty pulls each weight not to zero but to half a point for one standard deviation of the signal in that direction:
a few hundred labelled turns say too little about a rare signal to start it from nothing, and weights made so agree
better with people on turns of other origin. Folds hold whole conversations, so no question is both learned from and
judged.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nextturn.probe import stats
from nextturn.probe.errors import DataError, run_command
from nextturn.probe.judges.labels import GENUINE
from nextturn.probe.judges.rules import Settled, Turn, best_label, label_scores, settle, signals
from nextturn.probe.labels.agreement import LabelledTurn, read_labelled
from nextturn.probe.text import rule_data

PENALTY = 3.0
# Points for a standard deviation that a weight starts from, and the least deviation counted: a signal that hardly
# ever shows would get boundless points for showing once.
PRIOR, LEAST_DEVIATION = 0.5, 0.05
FOLDS = 10

Weights = Mapping[str, Mapping[str, float]]
Decision = str | None
"""A label; None where unscored."""


@dataclass(frozen=True)
class Example:
    """A labelled turn of one file (`source`), what the rules make of it, and its signals."""

    source: str
    turn: LabelledTurn
    settled: Settled | None
    signals: dict[str, float]


def read_examples(paths: Sequence[Path]) -> list[Example]:
    examples = []
    for path in paths:
        for labelled in read_labelled(path):
            turn = Turn(labelled.case)
            examples.append(Example(path.name, labelled, settle(turn), signals(turn)))
    return examples


def fit(examples: Sequence[Example], allowed: Weights) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Fits the weights in `allowed`, whose signs say which way reason points; gives weights and bias.

    Deterministic; float64; full-batch L-BFGS until it converges.
    """
    import torch

    labels, names = list(rule_data().bias), list(allowed)
    used = [example for example in examples if example.settled is None and example.turn.label in labels]
    if not used:
        raise DataError("no labelled turn is left that the score decides; wanted some hundreds")
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
        value = torch.nn.functional.cross_entropy(standard @ fitted + bias, targets, reduction="sum")
        value = value + PENALTY * ((fitted - prior) ** 2).sum()
        value.backward()
        return value

    optimizer.step(loss)
    # Back to the signals' own units, so that the table reads without means and deviations.
    raw = (weights * free / deviation[:, None]).detach()
    start = (bias - mean @ raw).detach()
    return (
        {name: {label: float(raw[i, labels.index(label)]) for label in allowed[name]} for i, name in enumerate(names)},
        {label: float(start[i]) for i, label in enumerate(labels)},
    )


def decide(example: Example, weights: Weights, bias: Mapping[str, float]) -> Decision:
    if example.settled is not None:
        return example.settled[0]
    return best_label(label_scores(example.signals, weights, bias))


def cross_validated(examples: Sequence[Example], allowed: Weights, seed: int = 0) -> list[Decision]:
    """What is decided of each example under weights made without its conversation."""
    conversations = sorted({example.turn.conversation for example in examples})
    random.Random(seed).shuffle(conversations)
    fold = {conversation: index % FOLDS for index, conversation in enumerate(conversations)}
    fits = [fit([one for one in examples if fold[one.turn.conversation] != number], allowed) for number in range(FOLDS)]
    return [decide(example, *fits[fold[example.turn.conversation]]) for example in examples]


def kappas(examples: Sequence[Example], found: Sequence[Decision]) -> tuple[float, float]:
    """Cohen's kappa genuine or not, and over all labels, of the scored ones."""
    pairs = [(one.turn.label, label) for one, label in zip(examples, found, strict=True) if label is not None]
    binary = stats.kappa_ci([str(a == GENUINE) for a, _ in pairs], [str(b == GENUINE) for _, b in pairs], draws=1)
    full = stats.kappa_ci([a for a, _ in pairs], [b for _, b in pairs], draws=1)
    return binary.value or 0.0, full.value or 0.0


def by_source(examples: Sequence[Example]) -> dict[str, list[int]]:
    sources = dict.fromkeys(example.source for example in examples)
    return {source: [i for i, example in enumerate(examples) if example.source == source] for source in sources}


def mean_kappas(examples: Sequence[Example], runs: Sequence[Sequence[Decision]]) -> dict[str, list[float]]:
    """Source -> binary and full kappa, each the mean over several ways to cut the folds."""
    result = {}
    for source, places in by_source(examples).items():
        pairs = [kappas([examples[i] for i in places], [run[i] for i in places]) for run in runs]
        result[source] = [sum(column) / len(pairs) for column in zip(*pairs, strict=True)]
    return result


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fit_rules", description="Makes the rules judge's weights.")
    parser.add_argument("labels", nargs="+", type=Path, help="labelled user turns, JSONL")
    parser.add_argument("--seeds", type=int, default=10, help="how many ways to cut the folds (default 10)")
    arguments = parser.parse_args(argv)
    examples, allowed, seeds = read_examples(arguments.labels), rule_data().weights, range(arguments.seeds)
    runs = [cross_validated(examples, allowed, seed) for seed in seeds]
    for source, (binary, full) in mean_kappas(examples, runs).items():
        print(f"{source}: cross-validated kappa, genuine or not {binary:.3f}, all labels {full:.3f}")
    weights, bias = fit(examples, allowed)
    print("bias:", *(f"  {label}: {value:.2f}" for label, value in bias.items()), sep="\n")
    print("weights:")
    for name, row in weights.items():
        print(f"  {name}: {{{', '.join(f'{label}: {value:.2f}' for label, value in row.items())}}}")


if __name__ == "__main__":
    sys.exit(run_command(main))
