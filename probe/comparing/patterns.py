"""What a set shows for a run, in the words of arXiv 2604.02315: latent, absent or present, and over sets, context-bound.

Read from intervals rather than values, so that a small set says "unclear":

- present: greedy decoding gives genuine follow-ups (interval at or above LOW)
- latent:  greedy does not (interval below LOW), sampling at the highest temperature does
- absent:  neither does

A run whose clear sets do not all show one pattern is context-bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probe.comparing.results import Metric, temperature
from probe.stats import NOTHING, Estimate

LOW = 0.10
"""Follow-up rate that divides low from high. The paper calls 1-5% collapsed and 15-47% surfacing under sampling."""

CLEAR = ("present", "latent", "absent")

MEANING = {
    "present": "Greedy decoding gives genuine follow-ups: the model says by itself what a person could say next.",
    "latent": "Greedy decoding hides what sampling brings out: the model can say what a person could say next, and "
    "as a rule does not.",
    "absent": "Neither greedy decoding nor sampling gives genuine follow-ups.",
    "context-bound": "The clear sets show different patterns: what the model can do depends on the kind of "
    "conversation.",
    "unclear": "An interval crosses the line between low and high, so more items are needed to tell.",
    "not measured": "Greedy decoding or sampling was not measured.",
}


@dataclass(frozen=True)
class Pattern:
    """What one set shows for one run; `sampled_at` is the highest temperature, such as "T=1.0"."""

    name: str
    greedy: Estimate
    sampled: Estimate
    sampled_at: str | None


def pattern_of(name: str, figures: Mapping[Metric, Estimate]) -> Pattern:
    """The pattern of set `name` in one run's figures."""
    of_set = {
        metric.name: estimate for metric, estimate in figures.items() if metric == Metric("followup", name, metric.name)
    }
    greedy = of_set.get("T=0.0", NOTHING)
    sampled_at = max((one for one in of_set if temperature(one) > 0), key=temperature, default=None)
    sampled = of_set[sampled_at] if sampled_at else NOTHING
    if _level(greedy) == "high":
        found = "present"
    elif _level(greedy) == "low" and _level(sampled) == "high":
        found = "latent"
    elif _level(greedy) == _level(sampled) == "low":
        found = "absent"
    else:
        found = "unclear" if greedy.n and sampled.n else "not measured"
    return Pattern(found, greedy, sampled, sampled_at)


def overall(patterns: Sequence[str]) -> str:
    """The one pattern of all clear sets, "context-bound" where they differ, "unclear" where none is clear."""
    clear = {name for name in patterns if name in CLEAR}
    return "context-bound" if len(clear) > 1 else next(iter(clear), "unclear")


def _level(estimate: Estimate) -> str:
    if estimate.ci95 is None:
        return "unknown"
    return "low" if estimate.ci95[1] < LOW else "high" if estimate.ci95[0] >= LOW else "unclear"
