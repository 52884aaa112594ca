"""Makes the weights of the score, and says what they are worth on conversations they were not made from.

    python -m probe.judges.fitting LABELS.jsonl [MORE.jsonl ...]

A multinomial logistic regression with a quadratic penalty on standardised signals, over the turns that no rule
settles. Only the weights that `scores.WEIGHTS` names are free: which signal may speak for which label is chosen by
reason and kept short, because a few hundred labelled turns cannot choose among hundreds of weights. Folds hold
whole conversations, so no question is both learned from and judged.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from probe import stats
from probe.errors import DataError, run_command
from probe.judges.agreement import LabelledTurn, read_labelled
from probe.judges.cleaning import clean
from probe.judges.clear import Settled, settle
from probe.judges.labels import GENUINE
from probe.judges.reading import Reading
from probe.judges.scores import BIAS, WEIGHTS, best_label
from probe.judges.signals import signals

if TYPE_CHECKING:
    import torch

PENALTY = 2.0
FOLDS = 10
Weights = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class _Example:
    source: str
    turn: LabelledTurn
    settled: Settled | None
    signals: dict[str, float]


@dataclass(frozen=True)
class Scores:
    """One set of weights: points per unit of a signal for a label, and what each label starts from."""

    weights: dict[str, dict[str, float]]
    bias: dict[str, float]


def fit(examples: Sequence[_Example], allowed: Weights, penalty: float = PENALTY) -> Scores:
    """Fits the allowed weights. Deterministic; float64; full-batch L-BFGS until it converges."""
    import torch

    used = [example for example in examples if example.settled is None and example.turn.label in BIAS]
    if not used:
        raise DataError("no labelled turn is left that the score decides; wanted some hundreds")
    names, labels = list(allowed), list(BIAS)
    inputs = torch.tensor([[example.signals[name] for name in names] for example in used], dtype=torch.float64)
    targets = torch.tensor([labels.index(example.turn.label) for example in used])
    free = torch.tensor([[float(label in allowed[name]) for label in labels] for name in names], dtype=torch.float64)
    mean, deviation = inputs.mean(0), inputs.std(0, correction=0) + 1e-9
    standard = (inputs - mean) / deviation
    weights = torch.zeros(len(names), len(labels), dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(len(labels), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        fitted = weights * free
        scores = standard @ fitted + bias
        value = torch.nn.functional.cross_entropy(scores, targets, reduction="sum") + penalty * (fitted**2).sum()
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


def cross_validated(examples: Sequence[_Example], allowed: Weights, seed: int = 0) -> list[str | None]:
    """The label of each example under weights made without its conversation; None where unscored."""
    conversations = sorted({example.turn.conversation for example in examples})
    random.Random(seed).shuffle(conversations)
    fold = {conversation: index % FOLDS for index, conversation in enumerate(conversations)}
    found: list[str | None] = [None] * len(examples)
    for number in range(FOLDS):
        scores = fit([example for example in examples if fold[example.turn.conversation] != number], allowed)
        for index, example in enumerate(examples):
            if fold[example.turn.conversation] == number:
                found[index] = _decide(example, scores)
    return found


def _decide(example: _Example, scores: Scores) -> str | None:
    if example.settled is not None:
        return example.settled.label
    return best_label(example.signals, scores.weights, scores.bias)


def kappas(examples: Sequence[_Example], found: Sequence[str | None]) -> tuple[float, float]:
    """Cohen's kappa genuine or not, and over all labels, of the scored ones."""
    pairs = [(e.turn.label, label) for e, label in zip(examples, found, strict=True) if label is not None]
    binary = stats.cohens_kappa([str(a == GENUINE) for a, _ in pairs], [str(b == GENUINE) for _, b in pairs])
    full = stats.cohens_kappa([a for a, _ in pairs], [b for _, b in pairs])
    return binary or 0.0, full or 0.0


def _measure(examples: Sequence[_Example], allowed: Weights, seeds: Collection[int]) -> dict[str, tuple[float, float]]:
    """Source -> mean binary and full kappa over several ways to cut the folds."""
    runs = [cross_validated(examples, allowed, seed) for seed in seeds]
    result = {}
    for source in dict.fromkeys(example.source for example in examples):
        of_source = [index for index, example in enumerate(examples) if example.source == source]
        pairs = [kappas([examples[i] for i in of_source], [run[i] for i in of_source]) for run in runs]
        result[source] = (sum(a for a, _ in pairs) / len(pairs), sum(b for _, b in pairs) / len(pairs))
    return result


def read_examples(paths: Sequence[Path]) -> list[_Example]:
    examples = []
    for path in paths:
        for turn in read_labelled(path):
            cleaned = clean(turn.case.user_turn)
            reading = Reading.of(turn.case, cleaned.text, cleaned.leads_on)
            examples.append(_Example(path.name, turn, settle(reading, cleaned), signals(reading)))
    return examples


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m probe.judges.fitting", description="Makes the rules judge's weights."
    )
    parser.add_argument("labels", nargs="+", type=Path, help="labelled user turns, JSONL")
    parser.add_argument("--leave-out", action="store_true", help="also say what each signal is worth by leaving it out")
    parser.add_argument("--seeds", type=int, default=5, help="how many ways to cut the folds (default 5)")
    arguments = parser.parse_args(argv)
    examples = read_examples(arguments.labels)
    seeds = range(arguments.seeds)
    whole = _measure(examples, WEIGHTS, seeds)
    for source, (binary, full) in whole.items():
        print(f"{source}: cross-validated kappa, genuine or not {binary:.3f}, all labels {full:.3f}")
    if arguments.leave_out:
        for name in WEIGHTS:
            rest = _measure(examples, {key: value for key, value in WEIGHTS.items() if key != name}, seeds)
            changes = [f"{source} {rest[source][0] - whole[source][0]:+.3f}" for source in whole]
            print(f"without {name}: {', '.join(changes)}", flush=True)
    scores = fit(examples, WEIGHTS)
    print("BIAS =", {label: round(value, 2) for label, value in scores.bias.items()})
    print("WEIGHTS =", {n: {label: round(v, 2) for label, v in row.items()} for n, row in scores.weights.items()})


if __name__ == "__main__":
    sys.exit(run_command(main))
