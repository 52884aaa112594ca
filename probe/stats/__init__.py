"""Every number with an interval, and every test, comes from this module.

- A rate gets a Wilson interval, because follow-up rates near 1% are common and a Wald interval breaks down
  there. Several samples of one item are not independent: they count as the *effective* number of samples
  (Korn and Graubard 1998, Kish 1965), which lies between "as many as items" and "as many as samples". In
  simulation at 3% this covers the true rate 95% of the time where a bootstrap over items covers it 85%, and
  unlike a bootstrap it does not shrink to nothing when no sample succeeded.
- A mean, a difference between runs, an AUC and a kappa get a percentile bootstrap that resamples items, never samples.
- Two runs on the same items at one binary value each are tested with McNemar's exact test, and their difference
  has the interval of Bonett and Price (2012).

No result depends on the order of the rows, so a resumed run gives the figures of an uninterrupted one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from probe.stats.intervals import (
    NOTHING,
    Z95,
    Estimate,
    Interval,
    grouped,
    percentiles,
    resampled,
    same_length,
    times_drawn,
    wilson_bounds,
)
from probe.stats.paired import PairedDifference, mcnemar, paired_difference

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "NOTHING", "Estimate", "Interval", "PairedDifference", "auc", "clustered_rate", "cohens_kappa", "kappa_ci",
    "mcnemar", "mean_ci", "paired_difference", "wilson",
]  # fmt: skip

FEW = 10
"""Clusters in a class below which its spread cannot be learnt from them."""


def wilson(successes: int, n: int, z: float = Z95) -> Estimate:
    """The rate `successes / n` with its Wilson score interval (Wilson 1927)."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}: wanted 0 <= successes <= n")
    return NOTHING if n == 0 else Estimate(successes / n, wilson_bounds(successes / n, n, z), n)


def clustered_rate(values: Sequence[bool | float], clusters: Sequence[str]) -> Estimate:
    """The mean of values in [0, 1], several of which may belong to one cluster (item).

    The interval is Wilson's on the effective number of observations: p(1-p) over the variance of p between
    clusters, held between Kish's number for clusters that agree wholly within themselves (their count, when all
    are of one size) and the number of values. That is plain Wilson with one binary value per cluster, and Wilson
    on the clusters when all values are 0 or all are 1, or when there is one cluster.
    """
    if any(not 0 <= value <= 1 for value in values):
        raise ValueError("a rate is made of values in [0, 1]")
    groups = grouped(values, clusters)
    n = len(values)
    if n == 0:
        return NOTHING
    rate = math.fsum(values) / n
    fewest = n * n / sum(len(group) ** 2 for group in groups)
    effective = fewest
    if 0 < rate < 1 and len(groups) > 1:
        residuals = math.fsum((math.fsum(group) - rate * len(group)) ** 2 for group in groups)
        variance = residuals * len(groups) / (len(groups) - 1) / n**2
        effective = n if variance == 0 else min(max(rate * (1 - rate) / variance, fewest), n)
    return Estimate(rate, wilson_bounds(rate, effective), n)


def mean_ci(
    values: Sequence[float], clusters: Sequence[str] | None = None, seed: int = 0, draws: int = 2000
) -> Estimate:
    """A mean of any finite values with a percentile bootstrap over clusters (each value its own when None).

    With one cluster there is no interval. Values that are all equal have an interval of no width.
    """
    if not all(math.isfinite(value) for value in values):
        raise ValueError("a mean of values that are not finite")
    groups = grouped(values, clusters)
    if not groups:
        return NOTHING
    mean = math.fsum(values) / len(values)
    if len(groups) == 1:
        return Estimate(mean, None, len(values))
    sums = resampled([[math.fsum(group), len(group)] for group in groups], seed, draws)
    return Estimate(mean, percentiles(sums[:, 0] / sums[:, 1]), len(values))


def auc(
    values: Sequence[float],
    positives: Sequence[bool],
    clusters: Sequence[str] | None = None,
    seed: int = 0,
    draws: int = 2000,
) -> Estimate:
    """How well a signal tells two classes apart: the probability that a positive one has the higher value, ties half.

    That is the area under the ROC curve (Hanley and McNeil 1982); 0.5 says nothing, below it the signal points
    the other way. The interval is a percentile bootstrap over clusters. Where the rarer class has fewer than FEW
    of them, or the bootstrap no width (full separation, say), it is Wilson's with the clusters of the rarer class
    as n: the variance is at most A(1 - A) over that number (Birnbaum and Klose 1957), and with 3 positive ones a
    bootstrap covers 81%. Draws without one class are left out. No interval with one cluster, no value with one class.
    """
    import numpy as np

    same_length(values, positives)
    if not all(math.isfinite(value) for value in values):
        raise ValueError("an AUC of values that are not finite")
    pairs = [(float(value), bool(positive)) for value, positive in zip(values, positives, strict=True)]
    groups = grouped(pairs, clusters)
    rarer = min(sum(any(positive is kind for _, positive in group) for group in groups) for kind in (True, False))
    if rarer == 0:
        return Estimate(None, None, len(values))
    rows = sorted((value, positive, index) for index, group in enumerate(groups) for value, positive in group)
    level, positive, owner = (np.array(column) for column in zip(*rows, strict=True))
    starts = np.unique(level, return_index=True)[1]
    value = float(_areas(np.ones((1, len(rows))), positive, starts)[0])
    if len(groups) == 1:
        return Estimate(value, None, len(rows))
    if rarer < FEW:
        return Estimate(value, wilson_bounds(value, rarer), len(rows))
    chunks = times_drawn(len(groups), seed, draws, len(rows))
    found = np.concatenate([_areas(times[:, owner], positive, starts) for times in chunks])
    found = found[~np.isnan(found)]
    ci95 = wilson_bounds(value, rarer) if np.ptp(found) < 1e-12 else percentiles(found)
    return Estimate(value, ci95, len(rows))


def _areas(times: np.ndarray, positive: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The AUC of each draw, NaN where one lacks a class.

    `times` [draws, rows] is how often each row was drawn, with rows from the lowest value up; `starts` is where
    each run of equal values begins.
    """
    import numpy as np

    positives = np.add.reduceat(times * positive, starts, axis=1)
    others = np.add.reduceat(times * ~positive, starts, axis=1)
    won = (positives * (np.cumsum(others, axis=1) - others / 2)).sum(axis=1)
    possible = positives.sum(axis=1) * others.sum(axis=1)
    return np.divide(won, possible, out=np.full(len(times), np.nan), where=possible > 0)


def cohens_kappa(a: Sequence[str], b: Sequence[str]) -> float | None:
    """Agreement of two raters beyond chance (Cohen 1960); None where chance alone makes them agree fully."""
    observed, chance = _agreement(a, b)
    return None if chance == 1 else (observed - chance) / (1 - chance)


def kappa_ci(
    a: Sequence[str], b: Sequence[str], clusters: Sequence[str] | None = None, seed: int = 0, draws: int = 2000
) -> Estimate:
    """Cohen's kappa with a percentile bootstrap over clusters (conversations, say).

    Raters who agree on everything, or a single cluster, leave a bootstrap without width: then Wilson's interval
    of the agreement, with the number of clusters as n, is carried over to kappa. Draws in which kappa is
    undefined are left out.
    """
    observed, chance = _agreement(a, b)
    if chance == 1:
        return Estimate(None, None, len(a))
    value = (observed - chance) / (1 - chance)
    pairs = grouped(list(zip(a, b, strict=True)), clusters)
    if observed == 1 or len(pairs) == 1:
        low, high = ((bound - chance) / (1 - chance) for bound in wilson_bounds(observed, len(pairs)))
        return Estimate(value, (max(-1.0, low), min(1.0, high)), len(a))
    labels = {label: index for index, label in enumerate(sorted({*a, *b}))}
    size = len(labels)
    tables = [[0.0] * size**2 for _ in pairs]
    for table, group in zip(tables, pairs, strict=True):
        for x, y in group:
            table[labels[x] * size + labels[y]] += 1
    drawn = resampled(tables, seed, draws).reshape(-1, size, size)
    total = drawn.sum(axis=(1, 2))
    agreed = drawn.trace(axis1=1, axis2=2) / total
    by_chance = (drawn.sum(axis=1) * drawn.sum(axis=2)).sum(axis=1) / total**2
    defined = by_chance < 1
    return Estimate(value, percentiles((agreed - by_chance)[defined] / (1 - by_chance)[defined]), len(a))


def _agreement(a: Sequence[str], b: Sequence[str]) -> tuple[float, float]:
    """The share on which two raters agree, and the share on which they would by chance; (1, 1) for nothing."""
    same_length(a, b)
    if not a:
        return 1.0, 1.0
    first, second = Counter(a), Counter(b)
    observed = sum(x == y for x, y in zip(a, b, strict=True)) / len(a)
    return observed, sum(first[label] * second[label] for label in first) / len(a) ** 2
