"""The candidates of an assistant turn with what was simulated after them, and which of them goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from data_builders.dialogue.scoring import Parts, mean_score
from probe.sets import Message


@dataclass(frozen=True)
class Sample:
    """One simulated continuation; `failure` says why a part, or all of it, is missing, `verdict` is the judge's reply."""

    messages: tuple[Message, ...]
    parts: Parts = Parts()
    score: float | None = None
    failure: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Candidate:
    """One reply that could be the assistant's turn; without samples where there was nothing to choose from."""

    text: str
    samples: tuple[Sample, ...] = ()
    failure: str = ""

    @property
    def score(self) -> float | None:
        return mean_score([sample.score for sample in self.samples])

    @property
    def parts(self) -> dict[str, float | None]:
        """The mean of each part over the samples that have it."""
        return {
            name: mean_score([getattr(sample.parts, name) for sample in self.samples])
            for name in ("accuracy", "interactivity", "efficiency")
        }


def best(candidates: Sequence[Candidate]) -> int | None:
    """The place of the candidate to go on with: the first of those with the highest score.

    Where no candidate was looked ahead the first usable one is taken; where all look-aheads failed there is none.
    """
    usable = [place for place, candidate in enumerate(candidates) if not candidate.failure]
    if not any(candidates[place].samples for place in usable):
        return usable[0] if usable else None
    scored = [(score, -place) for place in usable if (score := candidates[place].score) is not None]
    return -max(scored)[1] if scored else None
