"""Compute every reported interval and test.

- A rate has Wilson's score interval: follow-up rates near 1% are common, and a Wald interval fails there. Several samples
  of one item are not independent, so they count as the *effective* number of samples (Korn and Graubard 1998, Kish 1965),
  which lies between the number of items and the number of samples. A bootstrap over items has too little coverage at low
  rates, and no width where no sample succeeded.
- A mean, a difference between runs and an AUC have a percentile bootstrap that resamples items, never samples.
- Cohen's kappa has the middle 95% of its posterior: a bootstrap has no width where a judge never gives a label.
- Two runs with one binary value per item are compared with McNemar's exact test, and their difference has the interval of
  Bonett and Price (2012).
- A judge's rate corrected by labels has the estimate of prediction-powered inference with Wilson's bounds.

Rows are grouped and sorted before anything is drawn, and every draw is seeded. So no figure depends on the order of the
rows, and a resumed run gives the figures of an uninterrupted one. Wilson's bounds and McNemar's p value are not taken from
scipy, which takes a second to import and does not accept an effective number of samples.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Z95 = 1.959964
"""The normal quantile of a two-sided 95% interval."""
Z80 = 0.841621
"""The normal quantile that a difference of 95% significance needs to be found in 4 of 5 tries."""
FEWEST = 5
"""Number of items below which a mean, a difference or an AUC has no interval: so few say nothing about others."""
FEW = 10
"""Number of clusters in a class below which their spread cannot be estimated from them."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval.

    Attributes:
        value: None where nothing was measured.
        ci95: None where nothing was measured, or where the interval cannot be known (a mean of one item).
        n: Number of observations, not of items.
    """

    value: float | None
    ci95: Interval | None
    n: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return {"value", "ci95"}, rounded to six decimals. The caller says what `n` counts."""
        value = None if self.value is None else round(float(self.value), 6)
        return {"value": value, "ci95": None if self.ci95 is None else [round(float(x), 6) for x in self.ci95]}


NOTHING = Estimate(None, None, 0)


def wilson(successes: int, n: int) -> Estimate:
    """Return the rate `successes / n` with its Wilson score interval (Wilson 1927)."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}: expected 0 <= successes <= n")
    return NOTHING if n == 0 else Estimate(successes / n, _wilson_bounds(successes / n, n), n)


def _wilson_bounds(rate: float, n: float) -> Interval:
    """Return Wilson's bounds, in [0, 1]. `n` may be an effective number."""
    low, high = _wilson_arrays(rate, n, Z95)
    return float(low), float(high)


def _wilson_arrays(rate: Any, n: Any, quantile: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return Wilson's bounds of arrays of rates, each with its own number and quantile."""
    import numpy as np

    squared = quantile**2
    middle = rate + squared / (2 * n)
    half = quantile * np.sqrt(rate * (1 - rate) / n + squared / (4 * n * n))
    low, high = (middle - half) / (1 + squared / n), (middle + half) / (1 + squared / n)
    return np.clip(np.minimum(rate, low), 0, 1), np.clip(np.maximum(rate, high), 0, 1)


def clustered_rate(values: Sequence[bool | float], clusters: Sequence[str]) -> Estimate:
    """Return the mean of values in [0, 1], of which several may belong to one cluster (item), with a 95% interval.

    The interval is Wilson's on the effective number of observations: p(1-p) over the variance of p between clusters. That
    number is kept between Kish's number for clusters that agree wholly within themselves (the number of clusters, when all
    have one size) and the number of values. With one value per cluster this is plain Wilson. When all values are equal, or
    there is one cluster, it is Wilson on the clusters.

    If each cluster has at most one rare value, the estimated correlation is too small and the interval too narrow. For the
    variance, one cluster of mean size with only rare values is added, as Agresti and Coull (1998) add successes and failures.
    The factor n / (n + 1) then scales the effective number back to the n real clusters. The added cluster does not change
    the rate. tests/probe/test_stats.py simulates the coverage.

    Args:
        values: Values in [0, 1].
        clusters: The cluster of each value.
    """
    if any(not 0 <= value <= 1 for value in values):
        raise ValueError("rate: values must be in [0, 1]")
    groups = _grouped(values, clusters)
    n = len(values)
    if n == 0:
        return NOTHING
    rate = math.fsum(values) / n
    fewest = n * n / sum(len(group) ** 2 for group in groups)
    effective = fewest
    if 0 < rate < 1 and len(groups) > 1:
        mean_size = n / len(groups)
        totals = [(math.fsum(group), float(len(group))) for group in groups]
        totals.append((mean_size if rate <= 0.5 else 0.0, mean_size))
        size = n + mean_size
        p = math.fsum(total for total, _ in totals) / size
        # The variance of a ratio of cluster totals, by linearization (Korn and Graubard 1998).
        residuals = math.fsum((total - p * members) ** 2 for total, members in totals)
        variance = residuals * len(totals) / len(groups) / size**2
        effective = min(max(p * (1 - p) / variance * len(groups) / len(totals), fewest), n)
    return Estimate(rate, _wilson_bounds(rate, effective), n)


def mean_ci(values: Sequence[float], clusters: Sequence[str] | None = None, draws: int = 2000) -> Estimate:
    """Return the mean of finite values with a percentile bootstrap over clusters.

    With fewer than FEWEST clusters there is no interval. Values that are all equal have an interval of no width.

    Args:
        values: Any finite numbers.
        clusters: The cluster of each value; None makes each value its own cluster.
        draws: Number of bootstrap draws.
    """
    if not all(math.isfinite(value) for value in values):
        raise ValueError("a mean of values that are not finite")
    groups = _grouped(values, clusters)
    if not groups:
        return NOTHING
    mean = math.fsum(values) / len(values)
    if len(groups) < FEWEST:
        return Estimate(mean, None, len(values))
    sums = _resampled([[math.fsum(group), len(group)] for group in groups], 0, draws)
    return Estimate(mean, _percentiles(sums[:, 0] / sums[:, 1]), len(values))


@dataclass(frozen=True)
class PairedDifference(Estimate):
    """The difference `b - a` over the items that both runs have. `n` counts these items.

    Attributes:
        p_value: McNemar's; None unless every item has one value of 0 or 1 on both sides.
        unmatched: Number of items that only one run has.
        gained_items, lost_items: The items whose mean went up or down, sorted.
    """

    p_value: float | None = None
    unmatched: int = 0
    gained_items: tuple[str, ...] = ()
    lost_items: tuple[str, ...] = ()

    @property
    def gained(self) -> int:
        return len(self.gained_items)

    @property
    def lost(self) -> int:
        return len(self.lost_items)

    def as_json(self) -> dict[str, Any]:
        """Return all figures, without the items."""
        p_value = None if self.p_value is None else float(f"{self.p_value:.6g}")
        counts = {name: getattr(self, name) for name in ("gained", "lost", "n", "unmatched")}
        return {**super().as_json(), "p_value": p_value, **counts}


def paired_difference(
    a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]], seed: int = 0, draws: int = 2000
) -> PairedDifference:
    """Return the mean over common items of (mean of b's values - mean of a's), with a 95% interval.

    With one binary value per item and run the interval is Bonett and Price's (2012), which agrees with McNemar's test
    where few items changed; a bootstrap would leave out 0 after four gains of 200. Otherwise it is a bootstrap over the
    items and two pseudo-items, which differ by plus and minus the largest difference: without them the interval leaves out
    0 too often where few items changed. Where all items differ by the same amount (none changed, say), the interval is that
    amount plus and minus the largest share of other items that n items could have missed (Wilson's bound for 0 of n), times the
    range of the values.

    Args:
        a: Values by item, such as rates in [0, 1]; an item without values counts as missing.
        b: The same of the other run.
        seed: Seed of the bootstrap.
        draws: Number of bootstrap draws.
    """
    every = [value for side in (a, b) for values in side.values() for value in values]
    if not all(map(math.isfinite, every)):
        raise ValueError("paired difference: all values must be finite")
    span = max([1.0, *every]) - min([0.0, *every])  # 1 for rates
    in_a, in_b = ({item for item, values in side.items() if values} for side in (a, b))
    common = sorted(in_a & in_b)
    unmatched = len(in_a ^ in_b)
    n = len(common)
    if n == 0:
        return PairedDifference(None, None, 0, unmatched=unmatched)
    differences = [math.fsum(b[item]) / len(b[item]) - math.fsum(a[item]) / len(a[item]) for item in common]
    value = math.fsum(differences) / n
    gained = tuple(item for item, difference in zip(common, differences, strict=True) if difference > 1e-12)
    lost = tuple(item for item, difference in zip(common, differences, strict=True) if difference < -1e-12)
    p_value = None
    if all(len(side[item]) == 1 and side[item][0] in (0, 1) for side in (a, b) for item in common):
        p_value = mcnemar(len(gained), len(lost))
        ci95 = _bonett_price(len(gained), len(lost), n)
    elif max(differences) - min(differences) < 1e-12:
        missed = span * _wilson_bounds(0.0, n)[1]
        ci95 = (max(-span, value - missed), min(span, value + missed))
    else:
        largest = max(map(abs, differences))
        rows = [[difference] for difference in (*differences, largest, -largest)]
        low, high = _percentiles(_resampled(rows, seed, draws)[:, 0] / len(rows))
        ci95 = (min(low, value), max(high, value))
    return PairedDifference(value, ci95 if n >= FEWEST else None, n, p_value, unmatched, gained, lost)


def p_value_of(change: PairedDifference) -> float:
    """Return the p value of a difference from 0: McNemar's where there is one, else what its 95% interval implies.

    The interval is read as a normal distribution's (Altman and Bland 2011).
    """
    if change.p_value is not None:
        return change.p_value
    if not change.value or change.ci95 is None:
        return 1.0
    to_bound = abs(change.value - change.ci95[0 if change.value > 0 else 1])
    return 2 * NormalDist().cdf(-Z95 * abs(change.value) / to_bound) if to_bound else 0.0


def holm(p_values: Sequence[float], level: float = 0.05) -> float:
    """Return the largest p value that is significant among all of these tests (Holm 1979); 0.0 if none is."""
    largest = 0.0
    for rank, p_value in enumerate(sorted(p_values)):
        if p_value > level / (len(p_values) - rank):
            break
        largest = p_value
    return largest


# What a number of items can show, and what chance alone shows.


def detectable(n: int, changed: float) -> float:
    """Return the difference of two rates that is told from 0 in 4 of 5 tries.

    Args:
        n: Number of pairs.
        changed: Share of pairs whose value changes in one direction or the other; 2 p (1 - p) where two rates p are not paired.
    """
    return (Z95 + Z80) * math.sqrt(changed / n)


def items_to_tell(change: Estimate, *distances: float) -> int | None:
    """Return about how many items tell a change from a bound in 4 of 5 tries, by the width of its interval.

    Args:
        change: A change over `n` items.
        distances: How far the change may lie from the bound; the first one that needs more than the `n` items counts.

    Returns:
        Two significant digits; None without an interval, or if no number of items would do.
    """
    half = (change.ci95[1] - change.ci95[0]) / 2 if change.ci95 else 0.0
    sizes = (change.n * (half * (1 + Z80 / Z95) / each) ** 2 for each in distances if abs(each) > 1e-9)
    needed = next((size for size in sizes if size > change.n), None)
    return int(round(needed, 1 - math.floor(math.log10(needed)))) if needed else None


def best_by_chance(changes: Sequence[Estimate]) -> float:
    """Return how far the best of several runs lies above the baseline on average if all of them are equal.

    Half of the variance of a change is the baseline's, which all runs share. The largest of k normal values is Blom's (1958).
    """
    k = len(changes)
    error = math.fsum((change.ci95[1] - change.ci95[0]) / (2 * Z95) for change in changes if change.ci95) / k
    return error / math.sqrt(2) * NormalDist().inv_cdf((k - 0.375) / (k + 0.25))


def mcnemar(gained: int, lost: int) -> float:
    """Return the exact two-sided p value of McNemar's test for `gained` and `lost` items; 1.0 if none changed."""
    changed = gained + lost
    tail = sum(math.comb(changed, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**changed)


def _bonett_price(gained: float, lost: float, n: float) -> Interval:
    """Return the adjusted Wald bounds of a difference of two paired proportions (Bonett and Price 2012).

    The numbers may be effective numbers.
    """
    up, down = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = Z95 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    value = (gained - lost) / n
    return max(-1.0, min(value, up - down - half)), min(1.0, max(value, up - down + half))


def bias(judged: Sequence[bool], read: Sequence[bool], clusters: Sequence[str]) -> Estimate:
    """Return a judge's rate minus the annotators' rate on the same turns, in [-1, 1].

    The interval is Bonett and Price's on the effective number of turns, because turns of one cluster (conversation) may
    be misjudged alike. Where no verdict differs, the turns of a cluster count as one.
    """
    _same_length(judged, read)
    n = len(read)
    if n == 0:
        return NOTHING
    errors = [int(verdict) - int(label) for verdict, label in zip(judged, read, strict=True)]
    effect = _design_effect(errors, clusters)
    bounds = _bonett_price(errors.count(1) / effect, errors.count(-1) / effect, n / effect)
    return Estimate(sum(errors) / n, bounds, n)


def _design_effect(values: Sequence[float], clusters: Sequence[str] | None) -> float:
    """Return how many values count as one because values of a cluster are alike.

    The result lies between 1 and Kish's effect for clusters that agree wholly within themselves. Values that are all
    equal have Kish's effect, since they do not show how alike a cluster is.
    """
    groups = _grouped(values, clusters)
    n, mean = len(values), math.fsum(values) / len(values)
    apart = math.fsum((value - mean) ** 2 for value in values)
    together = math.fsum((math.fsum(group) - mean * len(group)) ** 2 for group in groups)
    alike = sum(len(group) ** 2 for group in groups) / n
    return min(max(together / apart, 1.0), alike) if apart > 1e-12 else alike


def auc(
    values: Sequence[float], positives: Sequence[bool], clusters: Sequence[str] | None = None, draws: int = 2000
) -> Estimate:
    """Return the probability that a positive row has a higher value than a negative one; ties count half.

    This is the area under the ROC curve (Hanley and McNeil 1982): 0.5 says nothing, and below it the signal points the
    other way. The interval is a percentile bootstrap over clusters; draws without one class are left out. Where the rarer
    class has fewer than FEW clusters, or the bootstrap has no width (full separation, say), the interval is Wilson's with
    the number of clusters of the rarer class: the variance is at most A(1 - A) over that number (Birnbaum and Klose 1957).
    There is no interval with one cluster, and no value with one class.

    Args:
        values: Any finite numbers.
        positives: The class of each value.
        clusters: The cluster of each value; None makes each value its own cluster.
        draws: Number of bootstrap draws.
    """
    import numpy as np

    _same_length(values, positives)
    if not all(math.isfinite(value) for value in values):
        raise ValueError("AUC: all values must be finite")
    pairs = [(float(value), bool(positive)) for value, positive in zip(values, positives, strict=True)]
    groups = _grouped(pairs, clusters)
    rarer = min(sum(any(positive is kind for _, positive in group) for group in groups) for kind in (True, False))
    if rarer == 0:
        return Estimate(None, None, len(values))
    # Rows by rising value: value, class and cluster of each, and where each run of equal values begins.
    rows = sorted((value, positive, index) for index, group in enumerate(groups) for value, positive in group)
    level, positive, owner = (np.array(column) for column in zip(*rows, strict=True))
    starts = np.unique(level, return_index=True)[1]

    def areas(times: np.ndarray) -> np.ndarray:
        """Return the AUC of each draw [draws], NaN where a class is missing. `times` [draws, rows] counts each row."""
        ups = np.add.reduceat(times * positive, starts, axis=1)
        others = np.add.reduceat(times * ~positive, starts, axis=1)
        won = (ups * (np.cumsum(others, axis=1) - others / 2)).sum(axis=1)
        possible = ups.sum(axis=1) * others.sum(axis=1)
        return np.divide(won, possible, out=np.full(len(times), np.nan), where=possible > 0)

    value = float(areas(np.ones((1, len(rows))))[0])
    if len(groups) == 1:
        return Estimate(value, None, len(rows))
    if rarer >= FEW:
        drawn = np.concatenate([areas(times[:, owner]) for times in _times_drawn(len(groups), 0, draws, len(rows))])
        drawn = drawn[~np.isnan(drawn)]
        if np.ptp(drawn) >= 1e-12:
            return Estimate(value, _percentiles(drawn), len(rows))
    return Estimate(value, _wilson_bounds(value, rarer), len(rows))


def kappa_ci(
    a: Sequence[str], b: Sequence[str], clusters: Sequence[str] | None = None, seed: int = 0, draws: int = 2000
) -> Estimate:
    """Return Cohen's kappa, the agreement of two raters beyond chance (Cohen 1960), with a 95% interval.

    The interval is the middle 95% of kappa under the posterior of the shares in the K x K confusion table. The prior is
    Dirichlet with 2 / K^2 in each cell, which is Jeffreys' 1/2 with two labels. A bootstrap has no width where a judge
    never gives one of the labels. With nine labels 1/2 in each cell would outweigh the data. Values of one cluster (a conversation, say) count for fewer.

    The value is None where both raters give one and the same label throughout: kappa is not defined then.
    """
    import numpy as np

    _same_length(a, b)
    labels = {label: index for index, label in enumerate(sorted({*a, *b}))}
    n, size = len(a), len(labels)
    if size < 2:
        return Estimate(None, None, n)
    pairs = [(labels[x], labels[y]) for x, y in zip(a, b, strict=True)]
    table = np.zeros((size, size))
    np.add.at(table, tuple(np.transpose(pairs)), 1)
    value = float(_kappa(table / n))
    # What each pair adds to kappa (Fleiss, Cohen and Everitt 1969) shows how alike the pairs of a cluster are.
    of_a, of_b = table.sum(1) / n, table.sum(0) / n
    disagreed, beyond = 1 - table.trace() / n, 1 - float(of_a @ of_b)
    effect = _design_effect([(x == y) * beyond - disagreed * (of_b[x] + of_a[y]) for x, y in pairs], clusters)
    drawn = np.random.default_rng(seed).dirichlet(table.ravel() / effect + 2 / size**2, draws)
    low, high = _percentiles(_kappa(drawn.reshape(-1, size, size)))
    return Estimate(value, (min(low, value), max(high, value)), n)


def _kappa(shares: np.ndarray) -> np.ndarray:
    """Return kappa of confusion tables [..., K, K] whose cells sum to 1."""
    chance = (shares.sum(-1) * shares.sum(-2)).sum(-1)
    return (shares.trace(axis1=-2, axis2=-1) - chance) / (1 - chance)


# A judge's rate corrected by labels: prediction-powered inference (PPI++; Angelopoulos, Duchi and Zrnic 2023).
#
#     mean over all turns of  tuning * judged   +   weighted mean over labelled turns of  (read - tuning * judged)
#
# This is unbiased whatever the judge does, and narrowest at the tuning that a regression of `read` on `judged` gives. For
# a judge that says yes or no that is p_yes - p_no, where p_v is the share that an annotator calls genuine among the
# labelled turns with verdict v. The formula then becomes
#
#     share judged yes * p_yes   +   share judged no * p_no
#
# Its variance has two parts: which items happened to be asked, (variance of p_verdict over items) / items, and which
# turns happened to be labelled, share_yes^2 Var(p_yes) + share_no^2 Var(p_no). Turns that the judge left unscored are a
# third kind, of which the labels alone say what share is genuine. The normal interval of the paper is too narrow where
# labels are few or rates are low: of 20 labels none may be a yes. So each p has Wilson's bounds with Student's quantile,
# and the bounds are carried over to the sum by their distances from the value (MOVER; Zou and Donner 2008). Unequal
# chances of being labelled and several labels of one item enter as the effective number of labels.
# tests/probe/test_correct.py simulates the coverage.


@dataclass(frozen=True)
class Corrected:
    """A judged rate and its correction by labels. Arrays may have leading axes [...] of many rates, for simulations.

    Attributes:
        value: The corrected rate [...].
        judged: The judge's own rate [...].
        below, above: Squared distances from the value to its bounds, due to which turns are labelled [...].
        by_item: What each item adds to the corrected rate, minus the mean [..., items]. The sum of squares is the variance
            due to which items were asked.
        judged_by_item: The same of the judge's own rate.
        quantile: Student's, for the number of items with a label [...].
    """

    value: np.ndarray
    judged: np.ndarray
    below: np.ndarray
    above: np.ndarray
    by_item: np.ndarray
    judged_by_item: np.ndarray
    quantile: np.ndarray


def corrected(
    judged: np.ndarray,
    read: np.ndarray,
    weights: np.ndarray,
    items: np.ndarray,
    n_items: int,
    scored: np.ndarray | None = None,
    texts: np.ndarray | None = None,
) -> Corrected:
    """Return the rate of `judged`, corrected by the labels that some of the turns have.

    Args:
        judged: The judge's verdict on each turn [..., turns], bool.
        read: The label of each turn [..., turns], 0 or 1; any value where there is no label.
        weights: How many turns each labelled turn stands for, 1 / its chance of being labelled [..., turns]; 0 where there
            is no label.
        items: The item of each turn, numbered from 0 [turns]. Rates can be subtracted if their items have the same numbers.
        n_items: The number of items.
        scored: Which turns the judge gave a verdict on [..., turns]; None means all. Unscored turns count in the corrected
            rate, by their labels alone, and not in the judge's own rate.
        texts: The text of each turn, numbered from 0 [turns]. The labels of one text are one reading. None: all differ.
    """
    import numpy as np
    from scipy.special import stdtrit

    turns = judged.shape[-1]
    asked = np.unique(items)

    def sum_by(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Sum over the turns of each group: [..., turns] -> [..., groups]."""
        order = np.argsort(groups, kind="stable")
        _, starts = np.unique(groups[order], return_index=True)
        return np.add.reduceat(values[..., order], starts, axis=-1)

    def sum_by_item(values: np.ndarray) -> np.ndarray:
        return sum_by(items, values)

    def spread_by_item(values: np.ndarray) -> np.ndarray:
        """Return `values` [..., items that were asked] as [..., items], scaled to an unbiased variance."""
        spread = np.zeros((*values.shape[:-1], n_items))
        spread[..., asked] = values * math.sqrt(len(asked) / max(len(asked) - 1, 1))
        return spread

    alike_by = [items] if texts is None else [items, texts]
    readings = np.min([(sum_by(groups, weights > 0) > 0).sum(-1) for groups in alike_by], axis=0)
    quantile = stdtrit(np.maximum(readings - 1, 1), 0.975)
    scored = np.ones(judged.shape, dtype=bool) if scored is None else scored
    judged = judged & scored
    n_scored = np.maximum(scored.sum(-1), 1)
    rate = judged.sum(-1) / n_scored
    value = np.zeros(rate.shape)
    imputed = np.zeros(judged.shape)  # the p of each turn's verdict
    pull = np.zeros(judged.shape)  # how much each labelled turn counts in the value
    parts = []
    # Without any label p is the judge's verdict, or 0.5 where the judge gave none; the bounds below are then 0 and 1.
    for of_verdict, without_label in ((judged, 1.0), (scored & ~judged, 0.0), (~scored, 0.5)):
        share = of_verdict.mean(-1)
        weight = np.where(of_verdict, weights, 0.0)
        total = weight.sum(-1)
        divisor = np.where(total > 0, total, 1.0)
        p = np.where(total > 0, (weight * read).sum(-1) / divisor, without_label)
        number = total**2 / np.where(total > 0, (weight**2).sum(-1), 1.0)  # effective, by Kish
        value += share * p
        imputed += np.where(of_verdict, p[..., None], 0.0)
        pull += weight * (share / divisor)[..., None]
        parts.append((share, p, number))

    # Several labels of one item, or of one text, count for fewer: at most for all of its labels together, at least for one.
    residual = pull * (read - imputed)
    apart, effect = (residual**2).sum(-1), np.ones(rate.shape)
    for groups in alike_by:
        together = (sum_by(groups, residual) ** 2).sum(-1)
        alike = (sum_by(groups, pull) ** 2).sum(-1) / np.maximum((pull**2).sum(-1), 1e-300)
        found = np.where(apart > 1e-12, together / np.maximum(apart, 1e-300), alike)
        effect = np.maximum(effect, np.minimum(found, np.maximum(alike, 1.0)))
    # Where many turns of an item are labelled, what its verdicts add and what its labels add to that are correlated.
    of_item = sum_by_item(imputed - value[..., None]) / turns
    below = quantile**2 * 2 * np.maximum((of_item * sum_by_item(residual)).sum(-1), 0.0)
    above = below.copy()
    for share, p, number in parts:
        low, high = _wilson_arrays(p, np.maximum(number / effect, 1e-9), quantile)
        below += (share * (p - low)) ** 2
        above += (share * (high - p)) ** 2
    own = sum_by_item(np.where(scored, judged - rate[..., None], 0.0)) / n_scored[..., None]
    return Corrected(value, rate, below, above, spread_by_item(of_item), spread_by_item(own), quantile)


Bounds: TypeAlias = "tuple[np.ndarray, np.ndarray, np.ndarray]"
"""A value and the bounds of its 95% interval, [...] each."""


def corrected_bounds(rate: Corrected) -> Bounds:
    """Return the corrected rate with its interval."""
    return _bounds(rate.value, rate.below, rate.above, rate.quantile, rate.by_item, lowest=0.0)


def bias_bounds(rate: Corrected) -> Bounds:
    """Return the judge's rate minus the corrected rate, with its interval; both rest on the same items."""
    by_item = rate.judged_by_item - rate.by_item
    return _bounds(rate.judged - rate.value, rate.above, rate.below, rate.quantile, by_item)


def corrected_difference(before: Corrected, after: Corrected) -> Bounds:
    """Return `after` minus `before` with its interval, paired by item; their labels were drawn independently."""
    import numpy as np

    below, above = after.below + before.above, after.above + before.below
    quantile, by_item = np.maximum(before.quantile, after.quantile), after.by_item - before.by_item
    return _bounds(after.value - before.value, below, above, quantile, by_item)


def _bounds(
    value: np.ndarray,
    below: np.ndarray,
    above: np.ndarray,
    quantile: np.ndarray,
    by_item: np.ndarray,
    lowest: float = -1.0,
) -> Bounds:
    """Return `value` with bounds that add the variance between items to the squared distances `below` and `above`."""
    import numpy as np

    spread = quantile**2 * (by_item**2).sum(-1)
    low, high = value - np.sqrt(below + spread), value + np.sqrt(above + spread)
    return value, np.maximum(low, lowest), np.minimum(high, 1.0)


# The bootstrap over clusters.

_CHUNK = 250_000
"""How many numbers are held at once while drawing: few enough for a processor's cache."""


def _grouped(values: Sequence[Any], clusters: Sequence[str] | None) -> list[list[Any]]:
    """Return the values of each cluster, in an order that does not depend on the order of the rows.

    Each value is its own cluster where `clusters` is None.
    """
    if clusters is None:
        return [[value] for value in sorted(values)]
    _same_length(values, clusters)
    groups: dict[str, list[Any]] = defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        groups[cluster].append(value)
    return [sorted(groups[cluster]) for cluster in sorted(groups)]


def _resampled(rows: Sequence[Sequence[float]], seed: int, draws: int) -> np.ndarray:
    """Draw as many rows as there are, with replacement, and sum them: [rows, k] -> [draws, k].

    Equal rows are drawn together by their number, which is the same bootstrap and much faster for 0s and 1s.
    """
    import numpy as np

    distinct, counts = np.unique(np.asarray(rows, dtype=float), axis=0, return_counts=True)
    if len(distinct) == len(rows):
        return np.concatenate([times @ distinct for times in _times_drawn(len(rows), seed, draws, len(rows))])
    times = np.random.default_rng(seed).multinomial(len(rows), counts / len(rows), size=draws)
    return times @ distinct


def _times_drawn(n: int, seed: int, draws: int, held: int) -> Iterator[np.ndarray]:
    """Yield how often each of `n` things is drawn when n are drawn with replacement: [draws, n] integers, in chunks.

    A chunk is sized so that `held` numbers per draw fit into the cache. Its size changes no draw.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    chunk = max(1, _CHUNK // max(n, held))
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        picks = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        yield np.bincount(picks.ravel(), minlength=size * n).reshape(size, n)


def _percentiles(draws: np.ndarray) -> Interval:
    """Return the middle 95% of the draws."""
    import numpy as np

    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def _same_length(first: Sequence[Any], second: Sequence[Any]) -> None:
    if len(first) != len(second):
        raise ValueError(f"{len(first)} values and {len(second)} labels or clusters: expected one per value")
