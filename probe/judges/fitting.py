"""Makes the weights of the score, and says what they are worth on conversations they were not made from.

    python -m probe.judges.fitting LABELS.jsonl [MORE.jsonl ...] [--leave-out]

`weights` holds how they are made. Folds hold whole conversations, so no question is both learned from and judged.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from probe import stats
from probe.errors import DataError, run_command
from probe.judges.agreement import LabelledTurn, read_labelled
from probe.judges.labels import GENUINE
from probe.judges.rules import BIAS, DIRECTIONS, Reading, Settled, best_label, label_scores, settle, signals
from probe.judges.text import clean

if TYPE_CHECKING:
    import torch


# --- Makes the weights of the score from labelled turns.
#
# A multinomial logistic regression over the turns that no rule settles. Which signal may speak for or against which
# label is chosen by reason (`scores.DIRECTIONS`), and the penalty pulls each weight not to zero but to half a point
# for one standard deviation of the signal in that direction: a few hundred labelled turns say too little about a rare
# signal to start it from nothing, and weights made so agree better with people on turns of other origin.

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


FOLDS = 10
MARGINS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)


def cross_validated(examples: Sequence[Example], allowed: Directions, seed: int = 0) -> list[str | None]:
    """The label of each example under weights made without its conversation; None where unscored."""
    return [label for label, _ in considered(examples, allowed, seed)]


def considered(examples: Sequence[Example], allowed: Directions, seed: int) -> list[tuple[str | None, float]]:
    """The same with the lead by which genuine or not was decided; infinite where a rule settled it."""
    conversations = sorted({example.turn.conversation for example in examples})
    random.Random(seed).shuffle(conversations)
    fold = {conversation: index % FOLDS for index, conversation in enumerate(conversations)}
    found: dict[int, tuple[str | None, float]] = {}
    for number in range(FOLDS):
        scores = fit([example for example in examples if fold[example.turn.conversation] != number], allowed)
        for index, example in enumerate(examples):
            if fold[example.turn.conversation] == number:
                found[index] = _decide(example, scores)
    return [found[index] for index in range(len(examples))]


def _decide(example: Example, scores: Scores) -> tuple[str | None, float]:
    if example.settled is not None:
        return example.settled.label, math.inf
    return best_label(label_scores(example.signals, scores.weights, scores.bias))


def kappas(examples: Sequence[Example], found: Sequence[str | None]) -> tuple[float, float]:
    """Cohen's kappa genuine or not, and over all labels, of the scored ones."""
    pairs = [(e.turn.label, label) for e, label in zip(examples, found, strict=True) if label is not None]
    binary = stats.cohens_kappa([str(a == GENUINE) for a, _ in pairs], [str(b == GENUINE) for _, b in pairs])
    full = stats.cohens_kappa([a for a, _ in pairs], [b for _, b in pairs])
    return binary or 0.0, full or 0.0


def _measure(examples: Sequence[Example], allowed: Directions, seeds: Collection[int]) -> dict[str, list[float]]:
    """Source -> binary and full kappa, each the mean over several ways to cut the folds."""
    runs = [cross_validated(examples, allowed, seed) for seed in seeds]
    result = {}
    for source, indices in _by_source(examples).items():
        pairs = [kappas([examples[i] for i in indices], [run[i] for i in indices]) for run in runs]
        result[source] = [sum(column) / len(pairs) for column in zip(*pairs, strict=True)]
    return result


def _by_source(examples: Sequence[Example]) -> dict[str, list[int]]:
    sources = dict.fromkeys(example.source for example in examples)
    return {source: [i for i, example in enumerate(examples) if example.source == source] for source in sources}


def read_examples(paths: Sequence[Path]) -> list[Example]:
    examples = []
    for path in paths:
        for turn in read_labelled(path):
            cleaned = clean(turn.case.user_turn)
            reading = Reading.of(turn.case, cleaned.text, cleaned.leads_on)
            examples.append(Example(path.name, turn, settle(reading, cleaned), signals(reading)))
    return examples


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m probe.judges.fitting", description="Makes the rules judge's weights."
    )
    parser.add_argument("labels", nargs="+", type=Path, help="labelled user turns, JSONL")
    parser.add_argument("--leave-out", action="store_true", help="also say what each signal is worth by leaving it out")
    parser.add_argument("--seeds", type=int, default=10, help="how many ways to cut the folds (default 10)")
    arguments = parser.parse_args(argv)
    examples = read_examples(arguments.labels)
    seeds = range(arguments.seeds)
    whole = _measure(examples, DIRECTIONS, seeds)
    for source, (binary, full) in whole.items():
        print(f"{source}: cross-validated kappa, genuine or not {binary:.3f}, all labels {full:.3f}")
    _print_across(examples)
    _print_margins(examples, seeds)
    if arguments.leave_out:
        _print_leave_out(examples, whole, seeds)
    scores = fit(examples, DIRECTIONS)
    print("BIAS =", {label: round(value, 2) for label, value in scores.bias.items()})
    print("WEIGHTS =", {n: {label: round(v, 2) for label, v in row.items()} for n, row in scores.weights.items()})


def _print_across(examples: Sequence[Example]) -> None:
    """For each file, weights made from the other files only, without any conversation that stands in both."""
    for source, indices in _by_source(examples).items():
        judged = [examples[i] for i in indices]
        known = {example.turn.conversation for example in judged}
        others = [e for e in examples if e.source != source and e.turn.conversation not in known]
        if others:
            scores = fit(others, DIRECTIONS)
            binary, _ = kappas(judged, [_decide(example, scores)[0] for example in judged])
            print(f"{source}: weights of the other files only, kappa genuine or not {binary:.3f}")


def _print_margins(examples: Sequence[Example], seeds: Collection[int]) -> None:
    """How many verdicts reach a margin, and how many of those agree with people on genuine or not."""
    runs = [considered(examples, DIRECTIONS, seed) for seed in seeds]
    for source, indices in _by_source(examples).items():
        scored = [(examples[i].turn.label, *run[i]) for run in runs for i in indices if run[i][0] is not None]
        print(f"{source}: margin, share of turns that reach it, share of those that agree with people")
        for margin in MARGINS:
            clear = [(human == GENUINE) == (label == GENUINE) for human, label, lead in scored if lead >= margin]
            share = len(clear) / (len(indices) * len(runs))
            print(f"  {margin:.1f}  {share:.3f}  {sum(clear) / max(1, len(clear)):.3f}")


def _print_leave_out(examples: Sequence[Example], whole: dict[str, list[float]], seeds: Collection[int]) -> None:
    print("signal left out: change of the cross-validated kappa genuine or not")
    for name in DIRECTIONS:
        rest = _measure(examples, {key: value for key, value in DIRECTIONS.items() if key != name}, seeds)
        changes = [f"{source} {rest[source][0] - whole[source][0]:+.3f}" for source in whole]
        print(f"  {name}: {', '.join(changes)}", flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main))
