"""Two runs on the same items, held against each other: the difference with its interval, who changed, and a test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.stats.intervals import Z95, Estimate, Interval, percentiles, resampled, wilson_bounds


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


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided p of McNemar's test: of the items that changed, as many up as down (1.0 if none did)."""
    if gained < 0 or lost < 0:
        raise ValueError(f"gained {gained}, lost {lost}: wanted counts")
    changed = gained + lost
    tail = sum(math.comb(changed, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**changed)


def paired_difference(
    a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]], seed: int = 0, draws: int = 2000
) -> PairedDifference:
    """Mean over common items of (mean of b's values - mean of a's), with a 95% interval.

    `a` and `b` hold values in [0, 1] per item; an item without values counts as not there. With one binary value per
    item and side the interval is Bonett and Price's (2012), which agrees with McNemar's test where few items changed;
    a bootstrap would leave out 0 after four gains of 200. Else it is a bootstrap over items; where all items differ by the same amount (none changed, say) a bootstrap has no width; then the interval is that amount
    plus and minus the largest share of other items that n items could have missed (Wilson's bound for 0 of n).
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
    if all(len(side[item]) == 1 and side[item][0] in (0, 1) for side in (a, b) for item in common):
        p_value, ci95 = mcnemar(len(gained), len(lost)), _bonett_price(len(gained), len(lost), n)
        return PairedDifference(value, ci95, p_value, len(gained), len(lost), n, unmatched, gained, lost)
    if max(differences) - min(differences) < 1e-12:
        missed = wilson_bounds(0.0, n)[1]
        ci95 = (max(-1.0, value - missed), min(1.0, value + missed))
    else:
        ci95 = percentiles(resampled([[difference] for difference in differences], seed, draws)[:, 0] / n)
    return PairedDifference(value, ci95, None, len(gained), len(lost), n, unmatched, gained, lost)


def _bonett_price(gained: int, lost: int, n: int) -> Interval:
    """Bounds of a difference of two paired proportions (Bonett and Price 2012, adjusted Wald)."""
    up, down = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = Z95 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    value = (gained - lost) / n
    return max(-1.0, min(value, up - down - half)), min(1.0, max(value, up - down + half))
