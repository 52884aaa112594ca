"""Every number with an interval, and every test, comes from this module.

- A rate gets a Wilson interval, because follow-up rates near 1% are common and a Wald interval breaks down
  there. Several samples of one item are not independent: they count as the *effective* number of samples
  (Korn and Graubard 1998, Kish 1965), which lies between "as many as items" and "as many as samples". In
  simulation at 3% this covers the true rate 95 to 99% of the time where a bootstrap over items covers it 85%, and
  unlike a bootstrap it does not shrink to nothing when no sample succeeded.
- A mean, a difference between runs and an AUC get a percentile bootstrap that resamples items, never samples.
- A kappa gets the middle 95% of its posterior, because a bootstrap has no width where a judge never gives a label.
- Two runs on the same items at one binary value each are tested with McNemar's exact test, and their difference
  has the interval of Bonett and Price (2012).
- A judge's rate that a reader's labels put right has the estimate of prediction-powered inference, and Wilson's bounds.

Rows are grouped and sorted before anything is drawn and every draw is seeded, so that no figure depends on their order
and a resumed run gives those of an uninterrupted one. Wilson's bounds and McNemar's p stand here and not in scipy's
words, which take a second to import and know no effective number.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Z95 = 1.959964
"""The normal quantile of a two-sided 95% interval."""
FEW = 10
"""Clusters in a class below which its spread cannot be learnt from them."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval. Both are None when nothing was measured; only the interval is None when
    it cannot be known (a mean of one item). `n` counts observations, not items."""

    value: float | None
    ci95: Interval | None
    n: int

    def as_json(self) -> dict[str, Any]:
        """{"value", "ci95"} rounded to six decimals; the caller says what `n` counts."""
        value = None if self.value is None else round(float(self.value), 6)
        return {"value": value, "ci95": None if self.ci95 is None else [round(float(x), 6) for x in self.ci95]}


NOTHING = Estimate(None, None, 0)


def wilson(successes: int, n: int) -> Estimate:
    """The rate `successes / n` with its Wilson score interval (Wilson 1927)."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}: wanted 0 <= successes <= n")
    return NOTHING if n == 0 else Estimate(successes / n, _wilson_bounds(successes / n, n), n)


def _wilson_bounds(rate: float, n: float) -> Interval:
    """Wilson's score bounds in [0, 1] around a rate; `n` may be an effective number that is not whole."""
    low, high = _wilson_arrays(rate, n, Z95)
    return float(low), float(high)


def _wilson_arrays(rate: Any, n: Any, quantile: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of many rates at once, with quantiles of one's own."""
    import numpy as np

    squared = quantile**2
    middle = rate + squared / (2 * n)
    half = quantile * np.sqrt(rate * (1 - rate) / n + squared / (4 * n * n))
    low, high = (middle - half) / (1 + squared / n), (middle + half) / (1 + squared / n)
    return np.clip(np.minimum(rate, low), 0, 1), np.clip(np.maximum(rate, high), 0, 1)


def clustered_rate(values: Sequence[bool | float], clusters: Sequence[str]) -> Estimate:
    """The mean of values in [0, 1], several of which may belong to one cluster (item).

    The interval is Wilson's on the effective number of observations: p(1-p) over the variance of p between
    clusters, held between Kish's number for clusters that agree wholly within themselves (their count, when all
    are of one size) and the number of values. That is plain Wilson with one value per cluster, and Wilson on the
    clusters when all values are 0 or all are 1, or when there is one cluster.

    How alike the values of a cluster are is learnt from the few clusters that hold the rarer value, and where by chance
    these hold one each, as if values were independent: at 3% the interval then covered 87 to 90%. So for the variance
    alone one cluster of the mean size is added that agrees wholly on the rarer value, as Agresti and Coull (1998) add
    successes and failures before they take a variance; n real clusters of n + 1 then scale the effective number. It
    leaves the rate alone and weighs less the more clusters there are. In simulation (1 to 97%, 7 to 200 clusters of 2 to
    16) the interval then covers 94% and more (tests/test_stats.py); one of fewer values would be narrower where clusters
    are few and hardly alike, and cover 88 to 91% where many are large and much alike.
    """
    if any(not 0 <= value <= 1 for value in values):
        raise ValueError("a rate is made of values in [0, 1]")
    groups = _grouped(values, clusters)
    n = len(values)
    if n == 0:
        return NOTHING
    rate = math.fsum(values) / n
    fewest = n * n / sum(len(group) ** 2 for group in groups)
    effective = fewest
    if 0 < rate < 1 and len(groups) > 1:
        clusters_and_one, mean_size = len(groups) + 1, n / len(groups)
        totals = [(math.fsum(group), float(len(group))) for group in groups]
        totals.append((mean_size if rate <= 0.5 else 0.0, mean_size))
        size = n + mean_size
        p = math.fsum(total for total, _ in totals) / size
        # The variance of a ratio of cluster totals, by linearization (Korn and Graubard 1998).
        residuals = math.fsum((total - p * of) ** 2 for total, of in totals)
        variance = residuals * clusters_and_one / len(groups) / size**2
        effective = min(max(p * (1 - p) / variance * len(groups) / clusters_and_one, fewest), n)
    return Estimate(rate, _wilson_bounds(rate, effective), n)


def mean_ci(
    values: Sequence[float], clusters: Sequence[str] | None = None, seed: int = 0, draws: int = 2000
) -> Estimate:
    """A mean of any finite values with a percentile bootstrap over clusters (each value its own when None).

    With one cluster there is no interval. Values that are all equal have an interval of no width.
    """
    if not all(math.isfinite(value) for value in values):
        raise ValueError("a mean of values that are not finite")
    groups = _grouped(values, clusters)
    if not groups:
        return NOTHING
    mean = math.fsum(values) / len(values)
    if len(groups) == 1:
        return Estimate(mean, None, len(values))
    sums = _resampled([[math.fsum(group), len(group)] for group in groups], seed, draws)
    return Estimate(mean, _percentiles(sums[:, 0] / sums[:, 1]), len(values))


@dataclass(frozen=True)
class PairedDifference:
    """`b - a` over the items that both have; `gained` and `lost` count items whose mean went up or down.

    `p_value` is McNemar's, and None unless every item has one value of 0 or 1 on both sides. `n` counts common
    items, `unmatched` those that only one side has. Which items went up or down stands in `gained_items` and
    `lost_items`, sorted.
    """

    value: float | None
    ci95: Interval | None
    p_value: float | None
    gained: int
    lost: int
    n: int
    unmatched: int
    gained_items: tuple[str, ...] = ()
    lost_items: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Without the items."""
        return {
            **Estimate(self.value, self.ci95, self.n).as_json(),
            "p_value": None if self.p_value is None else float(f"{self.p_value:.6g}"),
            "gained": self.gained,
            "lost": self.lost,
            "n": self.n,
            "unmatched": self.unmatched,
        }


def paired_difference(
    a: Mapping[str, Sequence[float]],
    b: Mapping[str, Sequence[float]],
    seed: int = 0,
    draws: int = 2000,
) -> PairedDifference:
    """Mean over common items of (mean of b's values - mean of a's), with a 95% interval.

    `a` and `b` hold values in [0, 1] per item; an item without values counts as not there. With one binary value per
    item and side the interval is Bonett and Price's (2012), which agrees with McNemar's test where few items changed;
    a bootstrap would leave out 0 after four gains of 200. Else it is a bootstrap over items and two pseudo-items, which
    differ by plus and minus the largest difference: without them the interval leaves out 0 too often where few items
    changed. Where all items differ by the same amount (none changed, say) the interval is that amount plus and minus the
    largest share of other items that n items could have missed (Wilson's bound for 0 of n).
    """
    if any(not 0 <= value <= 1 for side in (a, b) for values in side.values() for value in values):
        raise ValueError("a paired difference of rates is made of values in [0, 1]")
    in_a, in_b = ({item for item, values in side.items() if values} for side in (a, b))
    common = sorted(in_a & in_b)
    unmatched = len(in_a ^ in_b)
    n = len(common)
    if n == 0:
        return PairedDifference(None, None, None, 0, 0, 0, unmatched)
    differences = [math.fsum(b[item]) / len(b[item]) - math.fsum(a[item]) / len(a[item]) for item in common]
    value = math.fsum(differences) / n
    gained = tuple(item for item, difference in zip(common, differences, strict=True) if difference > 1e-12)
    lost = tuple(item for item, difference in zip(common, differences, strict=True) if difference < -1e-12)
    p_value = None
    if all(len(side[item]) == 1 and side[item][0] in (0, 1) for side in (a, b) for item in common):
        p_value = mcnemar(len(gained), len(lost))
        ci95 = _bonett_price(len(gained), len(lost), n)
    elif max(differences) - min(differences) < 1e-12:
        missed = _wilson_bounds(0.0, n)[1]
        ci95 = (max(-1.0, value - missed), min(1.0, value + missed))
    else:
        largest = max(map(abs, differences))
        rows = [[difference] for difference in (*differences, largest, -largest)]
        low, high = _percentiles(_resampled(rows, seed, draws)[:, 0] / len(rows))
        ci95 = (min(low, value), max(high, value))
    return PairedDifference(value, ci95, p_value, len(gained), len(lost), n, unmatched, gained, lost)


def p_value_of(change: PairedDifference) -> float:
    """Return the p value of a difference to 0: McNemar's where there is one, else what its 95% interval implies.

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


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided p of McNemar's test: of the items that changed, as many up as down (1.0 if none did)."""
    changed = gained + lost
    tail = sum(math.comb(changed, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**changed)


def _bonett_price(gained: float, lost: float, n: float) -> Interval:
    """Bounds of a difference of two paired proportions (Bonett and Price 2012, adjusted Wald); numbers may be effective
    ones."""
    up, down = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = Z95 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    value = (gained - lost) / n
    return max(-1.0, min(value, up - down - half)), min(1.0, max(value, up - down + half))


def bias(judged: Sequence[bool], read: Sequence[bool], clusters: Sequence[str]) -> Estimate:
    """By how much a judge's rate lies above a reader's on the same turns, in [-1, 1].

    Bonett and Price's interval on the effective number of turns: turns of one cluster (conversation) may err alike, and
    where no verdict differs they count as one.
    """
    _same_length(judged, read)
    n = len(read)
    if n == 0:
        return NOTHING
    errors = [int(one) - int(other) for one, other in zip(judged, read, strict=True)]
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

    _same_length(values, positives)
    if not all(math.isfinite(value) for value in values):
        raise ValueError("an AUC of values that are not finite")
    pairs = [(float(value), bool(positive)) for value, positive in zip(values, positives, strict=True)]
    groups = _grouped(pairs, clusters)
    rarer = min(sum(any(positive is kind for _, positive in group) for group in groups) for kind in (True, False))
    if rarer == 0:
        return Estimate(None, None, len(values))
    # From the lowest value up: whether it is positive, whose it is, and where each run of equal values begins.
    rows = sorted((value, positive, index) for index, group in enumerate(groups) for value, positive in group)
    level, positive, owner = (np.array(column) for column in zip(*rows, strict=True))
    starts = np.unique(level, return_index=True)[1]

    def areas(times: np.ndarray) -> np.ndarray:
        """The AUC of each draw [draws], NaN where one lacks a class; `times` [draws, rows]: how often a row is drawn."""
        ups = np.add.reduceat(times * positive, starts, axis=1)
        others = np.add.reduceat(times * ~positive, starts, axis=1)
        won = (ups * (np.cumsum(others, axis=1) - others / 2)).sum(axis=1)
        possible = ups.sum(axis=1) * others.sum(axis=1)
        return np.divide(won, possible, out=np.full(len(times), np.nan), where=possible > 0)

    value = float(areas(np.ones((1, len(rows))))[0])
    if len(groups) == 1:
        return Estimate(value, None, len(rows))
    if rarer < FEW:
        return Estimate(value, _wilson_bounds(value, rarer), len(rows))
    found = np.concatenate([areas(times[:, owner]) for times in _times_drawn(len(groups), seed, draws, len(rows))])
    found = found[~np.isnan(found)]
    ci95 = _wilson_bounds(value, rarer) if np.ptp(found) < 1e-12 else _percentiles(found)
    return Estimate(value, ci95, len(rows))


def kappa_ci(
    a: Sequence[str], b: Sequence[str], clusters: Sequence[str] | None = None, seed: int = 0, draws: int = 2000
) -> Estimate:
    """Return Cohen's kappa, the agreement of two raters beyond chance (Cohen 1960), with a 95% interval.

    The interval is the middle 95% of kappa under the posterior of the shares in the K x K confusion table. The prior is
    Dirichlet with 2 / K^2 in each cell, which is Jeffreys' 1/2 with two labels. A bootstrap has no width where a judge
    never gives one of the labels, and covers 13 to 46% there with 20 values; this interval covers 97 to 99%. With nine
    labels 1/2 in each cell would outweigh the data. Values of one cluster (a conversation, say) count for fewer.

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
    # What each pair adds to kappa (Fleiss, Cohen and Everitt 1969) says how alike the pairs of a cluster are.
    of_a, of_b = table.sum(1) / n, table.sum(0) / n
    disagreed, beyond = 1 - table.trace() / n, 1 - float(of_a @ of_b)
    effect = _design_effect([(x == y) * beyond - disagreed * (of_b[x] + of_a[y]) for x, y in pairs], clusters)
    drawn = np.random.default_rng(seed).dirichlet(table.ravel() / effect + 2 / size**2, draws)
    low, high = _percentiles(_kappa(drawn.reshape(-1, size, size)))
    return Estimate(value, (min(low, value), max(high, value)), n)


def _kappa(shares: np.ndarray) -> np.ndarray:
    """Return kappa of confusion tables [..., K, K] whose cells sum to 1."""
    chance = (shares.sum(-1) * shares.sum(-2)).sum(-1)
    return (shares.trace(axis1=-2, axis2=-1) - chance) / (1 - chance)  # type: ignore[no-any-return]


# A judge's rate put right by labels: prediction-powered inference (PPI++; Angelopoulos, Duchi and Zrnic 2023).
#
#     mean over all turns of  tuning * judged   +   weighted mean over labelled turns of  (read - tuning * judged)
#
# is right on average whatever the judge does, and narrowest at the tuning that regression of what was read on what was
# judged gives. Of a judge that says yes or no that is p_yes - p_no, where p_v is the share that a reader calls genuine
# among the labelled turns with verdict v. Put in, the formula becomes
#
#     share judged yes * p_yes   +   share judged no * p_no
#
# with a variance of two parts: which items happened to be asked, (variance of p_verdict over items) / items, and which
# turns happened to be labelled, share_yes^2 Var(p_yes) + share_no^2 Var(p_no). Turns that the judge left unscored are a third
# kind, of which it says nothing and the labels alone say what share is genuine. The method's own normal interval is too
# narrow where labels are few or rates low: of 20 labels none may be a yes. So each p has Wilson's bounds, with Student's
# quantile, and the bounds are carried over to the sum by their distances to the value (MOVER; Zou and Donner 2008).
# Unequal chances of being labelled and several labels of one item enter as the effective number of labels. In
# simulation this covers the true rate in 94 to 100% of trials where the normal interval covers 33 to 90%
# (tests/test_correct.py).


@dataclass(frozen=True)
class Corrected:
    """A judged rate and what labels make of it.

    Every array may have leading axes [...] of many such rates; simulations use that.

    Attributes:
        value: the corrected rate [...].
        judged: the judge's own rate [...].
        below, above: squared distances from the value to the bounds that the labels leave [...].
        moved: what each item adds to the corrected rate, about its mean [..., items]; the sum of squares is the variance
            that comes from which items were asked.
        moved_judged: the same of the judge's own rate.
        quantile: Student's, for so many items with a label [...].
    """

    value: np.ndarray
    judged: np.ndarray
    below: np.ndarray
    above: np.ndarray
    moved: np.ndarray
    moved_judged: np.ndarray
    quantile: np.ndarray


def corrected(
    judged: np.ndarray,
    read: np.ndarray,
    weights: np.ndarray,
    items: np.ndarray,
    n_items: int,
    scored: np.ndarray | None = None,
) -> Corrected:
    """Corrects the rate of `judged` by what was `read` of some of the turns.

    Args:
        judged: the judge's verdict on each turn [..., turns], bool.
        read: the reader's [..., turns], 0 or 1; anything where there is no label.
        weights: how many turns each labelled one stands for, 1 / its chance of being labelled [..., turns]; 0 where
            there is no label.
        items: the item of each turn, numbered from 0 [turns]. Rates whose items are numbered alike can be subtracted.
        n_items: how many numbers there are.
        scored: which turns the judge gave a verdict on [..., turns]; all where left out. The others are in the corrected rate
            by their labels alone, as a third kind of turn beside yes and no, and not in the judge's own.
    """
    import numpy as np
    from scipy.special import stdtrit

    turns = judged.shape[-1]
    order = np.argsort(items, kind="stable")
    asked, starts = np.unique(items[order], return_index=True)

    def by_item(values: np.ndarray) -> np.ndarray:
        """Sums over the turns of each item: [..., turns] -> [..., items that were asked]."""
        return np.add.reduceat(values[..., order], starts, axis=-1)

    with_label = (by_item((weights > 0).astype(float)) > 0).sum(-1)
    quantile = stdtrit(np.maximum(with_label - 1, 1), 0.975)

    has_verdict = np.ones(judged.shape, dtype=bool) if scored is None else scored
    judged = judged & has_verdict
    n_scored = np.maximum(has_verdict.sum(-1), 1)
    rate = judged.sum(-1) / n_scored
    value = np.zeros(rate.shape)
    imputed = np.zeros(judged.shape)  # p of each turn's verdict
    pull = np.zeros(judged.shape)  # what a labelled turn counts in the value
    verdicts = []
    # Without any label the judge is taken at its word, and where it said nothing at the middle; the bounds below are 0 and 1.
    kinds = [(judged, 1.0), (has_verdict & ~judged, 0.0), *([] if has_verdict.all() else [(~has_verdict, 0.5)])]
    for of_verdict, unread in kinds:
        share = of_verdict.mean(-1)
        weight = np.where(of_verdict, weights, 0.0)
        total = weight.sum(-1)
        known = np.where(total > 0, total, 1.0)
        p = np.where(total > 0, (weight * read).sum(-1) / known, unread)
        number = total**2 / np.where(total > 0, (weight**2).sum(-1), 1.0)  # effective, by Kish
        value += share * p
        imputed += np.where(of_verdict, p[..., None], 0.0)
        pull += weight * (share / known)[..., None]
        verdicts.append((share, p, number))

    # Several labels of one item count for fewer: at most for all of the item's labels together, at least for one.
    residual = pull * (read - imputed)
    apart, together = (residual**2).sum(-1), (by_item(residual) ** 2).sum(-1)
    alike = (by_item(pull) ** 2).sum(-1) / np.maximum((pull**2).sum(-1), 1e-300)
    effect = np.where(apart > 1e-12, together / np.maximum(apart, 1e-300), alike)
    effect = np.clip(effect, 1.0, np.maximum(alike, 1.0))
    below, above = np.zeros(rate.shape), np.zeros(rate.shape)
    for share, p, number in verdicts:
        low, high = _wilson_arrays(p, np.maximum(number / effect, 1e-9), quantile)
        below += (share * (p - low)) ** 2
        above += (share * (high - p)) ** 2

    scale = math.sqrt(len(asked) / max(len(asked) - 1, 1))
    moved, moved_judged = np.zeros((*rate.shape, n_items)), np.zeros((*rate.shape, n_items))
    of_item = by_item(imputed - value[..., None]) / turns
    moved[..., asked] = scale * of_item
    # Where many turns of an item are labelled, what its verdicts add and what the labels add to that go together.
    together = 2 * np.maximum((of_item * by_item(residual)).sum(-1), 0.0)
    below += quantile**2 * together
    above += quantile**2 * together
    own = np.where(has_verdict, judged - rate[..., None], 0.0)
    moved_judged[..., asked] = scale * by_item(own) / n_scored[..., None]
    return Corrected(value, rate, below, above, moved, moved_judged, quantile)


Bounds = tuple["np.ndarray", "np.ndarray", "np.ndarray"]
"""A value and the bounds of its 95% interval, [...] each."""


def corrected_bounds(one: Corrected) -> Bounds:
    """The corrected rate with its interval."""
    import numpy as np

    spread = one.quantile**2 * (one.moved**2).sum(-1)
    low, high = one.value - np.sqrt(one.below + spread), one.value + np.sqrt(one.above + spread)
    return one.value, np.maximum(low, 0.0), np.minimum(high, 1.0)


def bias_bounds(one: Corrected) -> Bounds:
    """By how much the judge's rate lies above the corrected one; both stand on the same items."""
    import numpy as np

    value = one.judged - one.value
    spread = one.quantile**2 * ((one.moved_judged - one.moved) ** 2).sum(-1)
    low, high = value - np.sqrt(one.above + spread), value + np.sqrt(one.below + spread)
    return value, np.maximum(low, -1.0), np.minimum(high, 1.0)


def corrected_difference(before: Corrected, after: Corrected) -> Bounds:
    """`after` minus `before`, paired by item; their labels were drawn independently."""
    import numpy as np

    value = after.value - before.value
    spread = np.maximum(before.quantile, after.quantile) ** 2 * ((after.moved - before.moved) ** 2).sum(-1)
    low = value - np.sqrt(after.below + before.above + spread)
    high = value + np.sqrt(after.above + before.below + spread)
    return value, np.maximum(low, -1.0), np.minimum(high, 1.0)


# Drawing: the bootstrap over clusters that all of the above share.

_CHUNK = 250_000
"""Numbers held at once while drawing: few enough for a processor's cache."""


def _grouped(values: Sequence[Any], clusters: Sequence[str] | None) -> list[list[Any]]:
    """Values by cluster, each value its own cluster when None, in an order that is not that of the rows."""
    if clusters is None:
        return [[value] for value in sorted(values)]
    _same_length(values, clusters)
    groups: dict[str, list[Any]] = defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        groups[cluster].append(value)
    return [sorted(groups[cluster]) for cluster in sorted(groups)]


def _resampled(rows: Sequence[Sequence[float]], seed: int, draws: int) -> np.ndarray:
    """Draws as many rows as there are, with replacement, and sums them: [rows, k] -> [draws, k].

    Equal rows are drawn together by their count, which is the same bootstrap and much faster for 0s and 1s.
    """
    import numpy as np

    distinct, counts = np.unique(np.asarray(rows, dtype=float), axis=0, return_counts=True)
    if len(distinct) == len(rows):
        return np.concatenate([times @ distinct for times in _times_drawn(len(rows), seed, draws, len(rows))])
    rng = np.random.default_rng(seed)
    shares, chunk = counts / len(rows), max(1, _CHUNK // len(counts))
    sizes = [min(chunk, draws - start) for start in range(0, draws, chunk)]
    return np.concatenate([rng.multinomial(len(rows), shares, size=size) @ distinct for size in sizes])


def _times_drawn(n: int, seed: int, draws: int, held: int) -> Iterator[np.ndarray]:
    """How often each of `n` things is drawn when n are drawn with replacement: [draws, n] whole numbers, in chunks.

    A chunk is sized so that `held` numbers per draw fit into the cache; its size moves no draw.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    chunk = max(1, _CHUNK // max(n, held))
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        picks = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        yield np.bincount(picks.ravel(), minlength=size * n).reshape(size, n)


def _percentiles(draws: np.ndarray) -> Interval:
    """Return the middle 95% of what was drawn."""
    import numpy as np

    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def _same_length(first: Sequence[Any], second: Sequence[Any]) -> None:
    if len(first) != len(second):
        raise ValueError(f"{len(first)} values and {len(second)} beside them: wanted as many")
