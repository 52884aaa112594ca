"""Accuracy: how often the final answer is right, read strictly and leniently, with the class of every reply.

An item with lettered options is graded by the letter, any other by the value of its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from probe.engines.base import Completion
from probe.grading import (
    Outcome,
    lenient_answer,
    lenient_letter,
    letter_outcome,
    outcome,
    same_answer,
    strict_answer,
    strict_letter,
)
from probe.sets import Item
from probe.stats import wilson


def grade(item: Item, reply: Completion) -> dict[str, Any]:
    """One reply graded: what was extracted and whether it is right, both readings. A cut reply can be right."""
    if item.answer is None:
        raise ValueError(f"item {item.id} has no answer to grade against")
    truncated = reply.finish == "length"
    if item.options:
        strict, lenient = strict_letter(reply.text, item.options), lenient_letter(reply.text, item.options)
        right = (strict == item.answer, lenient == item.answer)
        kind = letter_outcome(reply.text, truncated, item.options)
    else:
        strict, lenient = strict_answer(reply.text), lenient_answer(reply.text)
        right = (same_answer(strict, item.answer), same_answer(lenient, item.answer))
        kind = outcome(reply.text, truncated)
    return {
        "reference": item.answer,
        "extracted": lenient,
        "strict": right[0],
        "lenient": right[1],
        "outcome": kind,
    }


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """{"n", "strict", "lenient", "outcomes"} with 95% Wilson intervals, over rows of `grade`."""
    return {
        "n": len(rows),
        "strict": wilson(sum(row["strict"] for row in rows), len(rows)).as_json(),
        "lenient": wilson(sum(row["lenient"] for row in rows), len(rows)).as_json(),
        "outcomes": {kind: sum(row["outcome"] == kind for row in rows) for kind in get_args(Outcome)},
    }
