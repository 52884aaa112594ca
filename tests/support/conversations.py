"""Conversations for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nextturn.data_builders.tasks import Conversation, Task
from nextturn.probe.questions.simulation import Fact, PromptRow


def messages(*texts: str) -> list[dict[str, str]]:
    """Return messages of user and assistant in turn, the user's first."""
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


def conversation(
    *turns: str,
    kind: str = "complete",
    answer: str = "7",
    hidden: str = "",
    reveal_at: int | None = None,
    task: Task | None = None,
) -> Conversation:
    """Return a conversation with these messages, the user's first. The second user message reveals what is `hidden`."""
    revealed = (2 if hidden else 0) if reveal_at is None else reveal_at
    fact = Fact(short=hidden, value=hidden)
    return Conversation("c", kind, tuple(messages(*turns)), "test", answer, revealed, task, fact)


def prompt_row(**columns: Any) -> PromptRow:
    """Return the row with these columns of an rl file."""
    fact = {name: columns.pop(name) for name in ("clause", "thing", "reveal", "short", "ask") if name in columns}
    return PromptRow(**columns, fact=Fact(**fact))


def spans(loss_mask: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) of each run of tokens that carry loss."""
    start = None
    for position, value in enumerate([*loss_mask, 0]):
        if value and start is None:
            start = position
        elif not value and start is not None:
            yield start, position
            start = None
