"""One sample of a rollout as the rewards see it: what the policy said, and what came after."""

from __future__ import annotations

from dataclasses import dataclass

from data_builders.rl import RlRow
from probe.sets import Message


@dataclass(frozen=True)
class Played:
    """One sample: in `reply` mode a reply with what was simulated after it, in `conversation` mode a conversation.

    Attributes:
        conversations: whole transcripts from the first message; reply mode: one for each look-ahead, conversation mode:
            one. A conversation whose simulator failed is not here, but in `failures`.
        start: messages of the prompt; message `start` is the first trained turn.
        tokens: trained tokens, turn ends included.
        simulated_tokens: for each conversation, the tokens of all assistant turns from `start` on, turn ends included.
        truncated: a trained turn was cut by its limit, or did not end as a turn ends.
        ended: for each conversation "user", "limit" or "truncated".
        failures: for each failed conversation why the simulator gave no user turn.
        user_turns: the policy's own user turn after the last trained turn; empty unless a reward wants it.
    """

    row: RlRow
    conversations: tuple[tuple[Message, ...], ...]
    start: int
    tokens: int
    simulated_tokens: tuple[int, ...]
    truncated: bool
    ended: tuple[str, ...]
    failures: tuple[str, ...] = ()
    user_turns: tuple[str, ...] = ()
