"""A part of a reward: a number, or why there is none. A part that failed is never 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from train.played import Played

NOTHING_PLAYED = "nothing_played"


@dataclass(frozen=True)
class Part:
    """`value` is None where the part could not be had; `reason` then says why: KIND, or "KIND: what was said"."""

    value: float | None
    reason: str = ""


def mean_part(parts: Sequence[Part]) -> Part:
    """The mean of those that have a value; None, with the first reason, where none has."""
    values = [part.value for part in parts if part.value is not None]
    return Part(fmean(values)) if values else Part(None, parts[0].reason if parts else NOTHING_PLAYED)


def nothing_played(played: Played) -> Part:
    """For a sample without any conversation, since its simulator failed each time."""
    return Part(None, ": ".join((NOTHING_PLAYED, *played.failures[:1])))


def kind(reason: str) -> str:
    """A reason without what was said, such as "judge_refused": one of a few, fit to be counted."""
    return reason.partition(":")[0]
