"""How wide corrected intervals are, and how often they hold the true rate; probe/README.md shows the table.

    python -m tests.bench_correct [--trials 4000]

Each trial is a run of 300 user turns (100 items at three temperatures). Widths in points of the run's pooled rate. Beside
them: the labels alone, the judge alone, and the published normal interval on labels that are all equally likely.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from probe import stats
from tests.corrected_trials import (
    cell,
    corrected,
    covered,
    draw,
    labels_alone,
    plain_bounds,
    simple_draw,
    trials,
    width,
)

LABELS = (20, 60, 120, 300)
JUDGES = ((0.3, 1.5), (0.5, 1.5), (0.7, 1.3), (0.9, 1.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=4000)
    count = parser.parse_args().trials
    rng = np.random.default_rng(0)
    print(f"| true rate | judge | {' | '.join(f'{labels} labels' for labels in LABELS)} | judge alone |")
    print("|---" * (len(LABELS) + 3) + "|")
    for rate in (0.05, 0.3, 0.6):
        cells = [cell(rate, 0.0)] * 3
        made = trials(count, cells, rng)
        shown = []
        for labels in LABELS:
            weights = simple_draw(made, labels, rng)
            shown.append(stats.corrected_bounds(labels_alone(made, weights)))
        print(f"| {rate:.0%} | none | {' | '.join(told(bounds, rate) for bounds in shown)} | |")
        for kappa, tilt in JUDGES:
            made = trials(count, [cell(rate, kappa, tilt if rate < 0.5 else 1 / tilt)] * 3, rng)
            ours = [stats.corrected_bounds(corrected(made, draw(made, labels, rng))) for labels in LABELS]
            alone = judged_bounds(made.judged)
            cells_told = " | ".join(told(bounds, rate) for bounds in ours)
            print(f"| {rate:.0%} | kappa {kappa} | {cells_told} | {covered(alone, rate):.0%} |")
    print("\nThe normal interval of PPI++, labels equally likely, covers:\n")
    for rate in (0.02, 0.05, 0.3):
        made = trials(count, [cell(rate, 0.7)] * 3, rng)
        found = [
            f"{labels}: {covered(plain_bounds(made, simple_draw(made, labels, rng)), rate):.0%}" for labels in LABELS
        ]
        print(f"rate {rate:.0%}, kappa 0.7: {', '.join(found)}")


def judged_bounds(judged: np.ndarray) -> stats.Bounds:
    """Wilson's interval of the judge's own rate, each turn counted by itself."""
    rate = judged.mean(1)
    found = np.array([stats.wilson(int(one), judged.shape[1]).ci95 for one in judged.sum(1)])
    return rate, found[:, 0], found[:, 1]


def told(bounds: stats.Bounds, rate: float) -> str:
    return f"{100 * width(bounds):.0f} ({covered(bounds, rate):.0%})"


if __name__ == "__main__":
    sys.exit(main())
