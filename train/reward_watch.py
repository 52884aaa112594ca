"""What a policy does to earn its reward without earning it, watched next to the reward curve.

A judge likes replies that end in a polite question, and asking about everything fakes interest; both cost accuracy
later. So for the first trained reply of every sample: does it end in a question that fits any conversation, does it
ask although nothing is withheld, does it ask where something is; and how long is it, against the first steps of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_builders.rl import RlRow
from probe.answers import outcome
from probe.judges.words import FILLER_WORDS, FUNCTION_WORDS, sentences, word_set, words
from train.played import Played
from train.rewards.interactivity import OPEN_KINDS, withholds

FIRST_ROWS = 5
"""Logged rows that lengths are compared with."""

# Words of an assistant's closing questions ("Would you like me to provide the next step?"), beside the worn ones.
_OFFERS = word_set(
    """
    another anyone assist assistance clear comfortable confirm different discuss else explore feel final follow happy
    hear hope interested let like light mind move need needed next okay prefer proceed provide question ready request share
    specific specify start started step steps stuck suit support want wish
    """
)


@dataclass(frozen=True)
class Seen:
    """One sample as the watch counts it.

    Attributes:
        withheld: whether something is still to be asked for; None where asking is neither right nor wrong (a hint).
        asks, generic: None where there is no reply to look at, since its simulator failed.
    """

    tokens: int
    truncated: bool
    withheld: bool | None
    asks: bool | None
    generic: bool | None
    ended: tuple[str, ...]
    simulated_tokens: int


def see(played: Played) -> Seen:
    """The first trained reply of a sample; whether it asks is judged as the probe's clarify does it."""
    reply = played.conversations[0][played.start]["content"] if played.conversations else None
    cut = played.truncated and bool(played.conversations) and len(played.conversations[0]) == played.start + 1
    return Seen(
        tokens=played.tokens,
        truncated=played.truncated,
        withheld=withheld(played.row),
        asks=None if reply is None else outcome(reply, cut) == "asked",
        generic=None if reply is None else ends_generic(reply),
        ended=played.ended,
        simulated_tokens=sum(played.simulated_tokens),
    )


def withheld(row: RlRow) -> bool | None:
    return True if withholds(row) else None if row.kind in OPEN_KINDS else False


def ends_generic(reply: str) -> bool:
    """Whether the last sentence is a question of worn words only, such as "Does that make sense?"."""
    last = sentences(reply)[-1:]
    if not last or not last[0].rstrip("*_\"')]").endswith("?"):
        return False
    worn = FUNCTION_WORDS | FILLER_WORDS | _OFFERS
    return all(word in worn or word.split("'")[0] in worn for word in words(last[0]))


def watch_figures(every: Sequence[Seen]) -> dict[str, float]:
    """Shares and lengths of one generation, each over the samples that it can be said of."""
    figures = {
        "watch/tokens": _mean([one.tokens for one in every]),
        "watch/simulated_tokens": _mean([one.simulated_tokens for one in every]),
        "watch/truncated": _mean([one.truncated for one in every]),
        "watch/generic_ending": _mean([one.generic for one in every if one.generic is not None]),
        "watch/over_asking": _mean([one.asks for one in every if one.asks is not None and one.withheld is False]),
        "watch/ask_when_needed": _mean([one.asks for one in every if one.asks is not None and one.withheld]),
    }
    ends = Counter(end for one in every for end in one.ended)
    figures |= {f"watch/ended/{end}": count / sum(ends.values()) for end, count in sorted(ends.items())}
    return {name: value for name, value in figures.items() if value is not None}


def length_drift(figures: Mapping[str, float], history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """{"watch/length_drift": trained tokens a sample now, over those of the first rows that the run logged}.

    The history is the trainer's, which a checkpoint brings back, so that a resumed run compares with the same rows.
    """
    first = [row["watch/tokens"] for row in history if row.get("watch/tokens") is not None][:FIRST_ROWS]
    if not first or not sum(first):
        return {}
    return {"watch/length_drift": figures["watch/tokens"] / (sum(first) / len(first))}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
