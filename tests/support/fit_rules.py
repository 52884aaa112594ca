"""Fit the weights of the rules judge, and report their cross-validated agreement.

    PYTHONPATH=tests python -m support.fit_rules LABELS.jsonl [MORE.jsonl ...]

A multinomial logistic regression over the turns that no rule settles. It prints `bias` and `weights` as
`probe/judges/rules.yaml` holds them. The signs of the weights there say which signal may speak for or against which label,
and were chosen by reason; a fitted weight of the other sign needs a reason, or should go. The penalty pulls each weight
not to zero but to half a point for one standard deviation of the signal in that direction: a few hundred labelled turns say
too little about a rare signal to start it from nothing, and such weights agree better with people on turns of other origin.
Folds hold whole conversations, so no question is both fitted on and judged.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

from nextturn.probe import stats
from nextturn.probe.command.errors import run_command
from nextturn.probe.judges.rules import Turn, label_scores, settle, signals
from nextturn.probe.judges.verdicts import GENUINE
from nextturn.probe.labels.agreement import LabelledTurn, read_labelled
from nextturn.probe.text.words import rule_data

PENALTY = 3.0
# Points for a standard deviation that a weight starts from, and the smallest deviation that is counted: a signal that
# hardly ever shows would get boundless points for showing once.
PRIOR, LEAST_DEVIATION = 0.5, 0.05
FOLDS = 10

Weights = Mapping[str, Mapping[str, float]]


def fit(turns: Sequence[LabelledTurn], allowed: Weights) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Return weights and bias, fitted by full-batch L-BFGS. Only the weights in `allowed` are free.

    Args:
        turns: Labelled turns; those that a rule settles are left out.
        allowed: Weights whose signs say which way each signal may speak.
    """
    labels, names = list(rule_data().bias), list(allowed)
    used = [turn for turn in turns if settle(Turn(turn.case)) is None and turn.label in labels]
    rows = [signals(Turn(turn.case)) for turn in used]
    inputs = np.array([[row[name] for name in names] for row in rows])
    targets = np.array([labels.index(turn.label) for turn in used])
    free = np.array([[label in allowed[name] for label in labels] for name in names], dtype=float)
    prior = PRIOR * free * np.sign([[allowed[name].get(label, 1.0) for label in labels] for name in names])
    mean, deviation = inputs.mean(0), inputs.std(0).clip(min=LEAST_DEVIATION)
    standard = (inputs - mean) / deviation

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights, bias = flat[: free.size].reshape(free.shape) * free, flat[free.size :]
        logits = standard @ weights + bias
        entropy = (logsumexp(logits, axis=1) - logits[np.arange(len(targets)), targets]).sum()
        residual = softmax(logits, axis=1) - np.eye(len(labels))[targets]
        slope = (standard.T @ residual + 2 * PENALTY * (weights - prior)) * free
        return entropy + PENALTY * ((weights - prior) ** 2).sum(), np.concatenate([slope.ravel(), residual.sum(0)])

    start = np.concatenate([prior.ravel(), np.zeros(len(labels))])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000}).x
    # Back to the units of the signals, so that the table needs no means and deviations.
    weights = found[: free.size].reshape(free.shape) * free / deviation[:, None]
    bias = found[free.size :] - mean @ weights
    table = {
        name: {label: float(weights[i, labels.index(label)]) for label in allowed[name]} for i, name in enumerate(names)
    }
    return table, dict(zip(labels, map(float, bias), strict=True))


def decide(turn: LabelledTurn, weights: Weights, bias: Mapping[str, float]) -> str | None:
    pieces = Turn(turn.case)
    settled = settle(pieces)
    if settled:
        return settled[0]
    scores = label_scores(signals(pieces), weights, bias)
    return max(scores, key=lambda label: scores[label])


def cross_validated(turns: Sequence[LabelledTurn], allowed: Weights) -> list[str | None]:
    """Return the decision on each turn under weights that were fitted without its conversation."""
    conversations = sorted({turn.conversation for turn in turns})
    random.Random(0).shuffle(conversations)
    fold = {conversation: index % FOLDS for index, conversation in enumerate(conversations)}
    fits = [fit([turn for turn in turns if fold[turn.conversation] != number], allowed) for number in range(FOLDS)]
    return [decide(turn, *fits[fold[turn.conversation]]) for turn in turns]


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m support.fit_rules", description="Fit the rules judge's weights.")
    parser.add_argument("labels", nargs="+", type=Path, help="labelled user turns, JSONL")
    turns = [turn for path in parser.parse_args(argv).labels for turn in read_labelled(path)]
    allowed = rule_data().weights
    pairs = zip(turns, cross_validated(turns, allowed), strict=True)
    scored = [(str(turn.label == GENUINE), str(label == GENUINE)) for turn, label in pairs if label is not None]
    kappa = stats.kappa_ci(*zip(*scored, strict=True))
    print(f"cross-validated kappa, genuine or not: {kappa.value} {kappa.ci95}")
    weights, bias = fit(turns, allowed)
    print("bias:", *(f"  {label}: {value:.2f}" for label, value in bias.items()), sep="\n")
    print("weights:")
    for name, row in weights.items():
        print(f"  {name}: {{{', '.join(f'{label}: {value:.2f}' for label, value in row.items())}}}")


if __name__ == "__main__":
    sys.exit(run_command(main))
