"""Conversations for tests, from their turns."""

from __future__ import annotations

from data_builders.scripted import Conversation
from data_builders.tasks import Task


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
