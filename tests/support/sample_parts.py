"""Samples as a rollout makes them, written by hand."""

from __future__ import annotations

from typing import Any

from nextturn.probe.questions.simulation import PromptRow
from nextturn.train.rewards import Sample
from support.conversations import messages, prompt_row

PROBLEM = "Ann has 5 red bags with 12 marbles in each bag. She loses 7 marbles. How many marbles are left?"
ANSWERED = "She has 5 * 12 = 60 marbles, and 60 - 7 = 53 are left. The answer is \\boxed{53}."


def chat(*turns: str) -> tuple[dict[str, str], ...]:
    return tuple(messages(*turns))


def given(**fields: Any) -> PromptRow:
    """A row whose problem is all there."""
    known = {"id": "t-0", "kind": "complete", "turn": 0, "prompt": chat(PROBLEM), "answer": "53", "problem": PROBLEM}
    return prompt_row(**{**known, "solution": "5 * 12 = 60\n60 - 7 = 53", **fields})


def withheld(**fields: Any) -> PromptRow:
    """A row of the same problem that does not say how many marbles are in each bag."""
    return given(**{
        "kind": "underspecified",
        "prompt": chat("Ann has 5 red bags with some marbles in each bag. She loses 7 marbles. How many marbles are left?"),
        "hidden": ("12",),
        "clause": "how many marbles are in each bag",
        "thing": "the number of marbles in each bag",
        "reveal": "There are 12 marbles in each bag.",
        "short": "12 marbles",
        **fields,
    })  # fmt: skip


def sample(*turns: str, row: PromptRow | None = None, tokens: int = 40, **fields: Any) -> Sample:
    """One sample with one conversation: the row's prompt, then `turns` from the assistant on."""
    row = row or given()
    texts = [message["content"] for message in row.prompt]
    known = {"conversations": (chat(*texts, *turns),), "start": len(texts), "tokens": tokens}
    return Sample(
        **{"row": row, **known, "simulated_tokens": (tokens,), "truncated": False, "ended": ("user",), **fields}
    )
