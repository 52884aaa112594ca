"""Accuracy: how often the final answer is right, read strictly and leniently, with the class of every reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from probe.answers import Outcome, lenient_answer, outcome, same_answer, strict_answer
from probe.engines.base import Completion
from probe.sets import Item
from probe.stats import wilson


def grade(item: Item, reply: Completion) -> dict[str, Any]:
    """One reply graded: what was extracted and whether it is right, both readings. A cut reply can be right."""
    if item.answer is None:
        raise ValueError(f"item {item.id} has no answer to grade against")
    strict, lenient = strict_answer(reply.text), lenient_answer(reply.text)
    return {
        "reference": item.answer,
        "extracted": lenient,
        "strict": same_answer(strict, item.answer),
        "lenient": same_answer(lenient, item.answer),
        "outcome": outcome(reply.text, truncated=reply.finish == "length"),
    }


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """{"n", "strict", "lenient", "outcomes"} with 95% Wilson intervals, over rows of `grade`."""
    return {
        "n": len(rows),
        "strict": wilson(sum(row["strict"] for row in rows), len(rows)).as_json(),
        "lenient": wilson(sum(row["lenient"] for row in rows), len(rows)).as_json(),
        "outcomes": {kind: sum(row["outcome"] == kind for row in rows) for kind in get_args(Outcome)},
    }
