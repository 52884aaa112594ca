"""Conversations for tests, from their turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nextturn.data_builders.scripted import Conversation
from nextturn.data_builders.tasks import Task


def conversation(
    *turns: str,
    kind: str = "complete",
    answer: str = "7",
    hidden: str = "",
    reveal_at: int | None = None,
    task: Task | None = None,
) -> Conversation:
    """Turns in order, the user's first; what is hidden is revealed in the second message of the user."""
    messages = tuple({"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(turns))
    revealed = (2 if hidden else 0) if reveal_at is None else reveal_at
    return Conversation("c", kind, messages, "starter", answer, hidden, revealed, task=task)


def spans(loss_mask: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The runs of loss-carrying tokens as (start, end)."""
    start = None
    for position, value in enumerate([*loss_mask, 0]):
        if value and start is None:
            start = position
        elif not value and start is not None:
            yield start, position
            start = None
