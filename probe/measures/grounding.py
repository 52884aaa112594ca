"""Grounding: how much the answer explains the user turn, by the measured model's own probabilities; no judge.

    grounding = (log p(u | q, a) - log p(u | q)) / tokens of u        in nats per token

A turn that repeats the question or opens a new task is as likely without the answer, so it sits near 0; a turn that
reacts to the answer lies above. So does one that repeats the *answer*, which is why grounding stands beside the labels
and does not replace them.

A chat template cannot open a user turn right after a user turn, so "without the answer" is after a neutral one,
NEUTRAL. It is the same for every model and item.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from probe.chat import Chat, Message, PrefixForm
from probe.engines.base import ScoreRequest

NEUTRAL = "Ok."


@dataclass(frozen=True)
class Grounding:
    """Nats per token: `value` as above, `log_p` = log p(u | q, a) alone. Both None for an empty turn."""

    value: float | None
    log_p: float | None

    def as_row(self) -> dict[str, Any]:
        return {"grounding": _rounded(self.value), "log_p": _rounded(self.log_p)}


UNMEASURED = Grounding(None, None)


def score_requests(messages: Sequence[Message], user_turn: str, chat: Chat, form: PrefixForm) -> list[ScoreRequest]:
    """Two requests, with the answer and with the neutral one; none for an empty turn.

    `messages` end with the assistant.
    """
    target = chat.text_ids(user_turn)
    if not target:
        return []
    without = [*messages[:-1], {"role": "assistant", "content": NEUTRAL}]
    return [ScoreRequest(chat.user_prefix_ids(context, form), target) for context in (messages, without)]


def groundings(requests: Sequence[Sequence[ScoreRequest]], log_p: Iterator[float]) -> list[Grounding]:
    """One per turn, from the requests of all turns and their scores in order."""
    found = []
    for pair in requests:
        if not pair:
            found.append(UNMEASURED)
            continue
        with_answer, without = next(log_p), next(log_p)
        tokens = len(pair[0].target_ids)
        found.append(Grounding((with_answer - without) / tokens, with_answer / tokens))
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
