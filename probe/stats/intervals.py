"""How intervals are made: Wilson's bounds and the bootstrap over items. `stats` puts them to use.

Rows are grouped and sorted before anything is drawn, so that no figure depends on their order and a resumed
run gives those of an uninterrupted one. Every draw is seeded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Z95 = 1.959964
Interval = tuple[float, float]

_CHUNK = 250_000
"""Numbers held at once while drawing: few enough for a processor's cache."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval. Both are None when nothing was measured; only the interval is None when
    it cannot be known (a mean of one item). `n` counts observations, not items."""

    value: float | None
    ci95: Interval | None
    n: int

    def as_json(self) -> dict[str, Any]:
        """{"value", "ci95"} rounded to six decimals; the caller says what `n` counts."""
        return {"value": _rounded(self.value), "ci95": None if self.ci95 is None else [_rounded(x) for x in self.ci95]}


NOTHING = Estimate(None, None, 0)


def wilson_bounds(rate: float, n: float, z: float = Z95) -> Interval:
    """Wilson's score bounds in [0, 1] around a rate; `n` may be an effective number that is not whole."""
    middle = rate + z * z / (2 * n)
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, min(rate, (middle - half) / scale)), min(1.0, max(rate, (middle + half) / scale))


def grouped(values: Sequence[Any], clusters: Sequence[str] | None) -> list[list[Any]]:
    """Values by cluster, each value its own cluster when None, in an order that is not that of the rows."""
    if clusters is None:
        return [[value] for value in sorted(values)]
    same_length(values, clusters)
    groups: dict[str, list[Any]] = defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        groups[cluster].append(value)
    return [sorted(groups[cluster]) for cluster in sorted(groups)]


def resampled(rows: Sequence[Sequence[float]], seed: int, draws: int) -> np.ndarray:
    """Draws as many rows as there are, with replacement, and sums them: [rows, k] -> [draws, k].

    Equal rows are drawn together by their count, which is the same bootstrap and much faster for 0s and 1s.
    """
    import numpy as np

    distinct, counts = np.unique(np.asarray(rows, dtype=float), axis=0, return_counts=True)
    if len(distinct) == len(rows):
        return np.concatenate([times @ distinct for times in times_drawn(len(rows), seed, draws)])
    rng = np.random.default_rng(seed)
    sums = np.empty((draws, distinct.shape[1]))
    chunk = max(1, _CHUNK // len(counts))
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        sums[start : start + size] = rng.multinomial(len(rows), counts / len(rows), size=size) @ distinct
    return sums


def times_drawn(n: int, seed: int, draws: int, held: int | None = None) -> Iterator[np.ndarray]:
    """How often each of `n` things is drawn when n are drawn with replacement: [draws, n] whole numbers, in chunks.

    A chunk is sized so that `held` numbers per draw (n when None) fit into memory; its size moves no draw.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    chunk = max(1, _CHUNK // max(n, held or n))
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        picks = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        yield np.bincount(picks.ravel(), minlength=size * n).reshape(size, n)


def percentiles(draws: np.ndarray) -> Interval:
    """The middle 95% of what was drawn."""
    import numpy as np

    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def same_length(first: Sequence[Any], second: Sequence[Any]) -> None:
    if len(first) != len(second):
        raise ValueError(f"{len(first)} values and {len(second)} beside them: wanted as many")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 6)
