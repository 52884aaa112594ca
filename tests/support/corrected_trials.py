"""Simulate probes with a known follow-up rate, judged by a judge of known kappa and labelled in part.

All trials run at once in arrays [trials, turns]. The turns of a trial are 100 items at three temperatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from nextturn.probe import stats
from nextturn.probe.labels.label import SPREAD

ITEMS = 100


class Cell(NamedTuple):
    """One temperature: the true rate, the judge's rate, and the share of turns that both call genuine."""

    rate: float
    judged: float
    both: float


class Trials(NamedTuple):
    """`truth` and `judged` [trials, turns]; `cells` and `items` [turns]; `rates` the true ones by cell."""

    truth: np.ndarray
    judged: np.ndarray
    cells: np.ndarray
    items: np.ndarray
    rates: tuple[float, ...]


def cell(rate: float, kappa: float, tilt: float = 1.0) -> Cell:
    """Return a judge that calls `tilt` times the true rate genuine and agrees at `kappa`; without tilt if that is impossible."""
    for judged in (rate * tilt, rate):
        chance = rate * (1 - judged) + judged * (1 - rate)
        both = rate * judged + kappa * chance / 2
        if both <= min(rate, judged) + 1e-9 and judged < 1:
            return Cell(rate, judged, both)
    raise ValueError(f"no judge of kappa {kappa} at rate {rate}")


def trials(
    count: int, cells: Sequence[Cell], rng: np.random.Generator, alike: float = 0.3, shared: np.ndarray | None = None
) -> Trials:
    """Draw trials.

    Args:
        count: Number of trials.
        cells: One cell per temperature.
        rng: Random generator.
        alike: Share of the latent variance that the turns of an item have in common.
        shared: The items' part of the latent variable [count, ITEMS], to simulate another run on the same items.
    """
    of_item = rng.normal(size=(count, ITEMS)) if shared is None else shared
    truths, verdicts = [], []
    for rate, judged, both in cells:
        own = rng.normal(size=(count, ITEMS))
        truth = np.sqrt(alike) * of_item + np.sqrt(1 - alike) * own < ndtri(rate)
        calls = np.where(truth, both / rate, (judged - both) / (1 - rate))
        truths.append(truth)
        verdicts.append(rng.random((count, ITEMS)) < calls)
    where = np.repeat(np.arange(len(cells)), ITEMS)
    items = np.tile(np.arange(ITEMS), len(cells))
    return Trials(
        np.concatenate(truths, 1), np.concatenate(verdicts, 1), where, items, tuple(one.rate for one in cells)
    )


def draw(made: Trials, labels: int, rng: np.random.Generator) -> np.ndarray:
    """Return weights [trials, turns] of `labels` turns per trial, drawn as `probe label` draws them; 0 elsewhere."""
    weights = np.zeros(made.judged.shape)
    each = labels // len(made.rates)
    for place in range(len(made.rates)):
        turns = np.flatnonzero(made.cells == place)
        judged = made.judged[:, turns]
        genuine = judged.sum(1)
        others = len(turns) - genuine
        pull = genuine * SPREAD[True]
        first = np.rint(each * pull / (pull + others * SPREAD[False])).astype(int)
        first = np.clip(first, np.minimum(1, genuine), genuine)
        first = np.where((others > 0) & (first == each) & (each > 1), each - 1, first)
        for verdict, size, taken in ((True, genuine, first), (False, others, np.minimum(each - first, others))):
            key = np.where(judged == verdict, rng.random(judged.shape), 2.0)
            chosen = (key.argsort(1).argsort(1) < taken[:, None]) & (judged == verdict)
            weights[:, turns] += np.where(chosen, (size / np.maximum(taken, 1))[:, None], 0.0)
    return weights


def corrected(made: Trials, weights: np.ndarray, place: int | None = None) -> stats.Corrected:
    """Return the corrected rates of one temperature, or of all together."""
    turns = made.cells >= 0 if place is None else made.cells == place
    return stats.corrected(
        made.judged[:, turns], made.truth[:, turns].astype(float), weights[:, turns], made.items[turns], ITEMS
    )


def covered(bounds: stats.Bounds, truth: float) -> float:
    return float(((bounds[1] <= truth + 1e-12) & (truth - 1e-12 <= bounds[2])).mean())
