"""Clarify: does the model ask when a given is missing, and answer when nothing is?

The two are reported apart, because a high follow-up rate can be bought by asking about everything: a small
model trained on scripted clarifying questions alone asked back on 98 of 100 complete problems.

- ask_when_needed: share of underspecified problems whose reply asks back.
- answer_when_complete: share of complete problems whose reply sets out to answer. A reply that the token limit
  cut counts as one; a question and an empty reply do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probe.engines.base import Completion
from probe.grading import outcome
from probe.stats import wilson


def grade(condition: str, reply: Completion) -> dict[str, Any]:
    """One reply to a problem in `condition` "complete" or "underspecified"."""
    kind = outcome(reply.text, truncated=reply.finish == "length")
    return {"condition": condition, "outcome": kind, "asked": kind == "asked"}


METRICS = {"underspecified": "ask_when_needed", "complete": "answer_when_complete"}
"""The figure that a row of each condition counts in."""


def right(row: dict[str, Any]) -> bool:
    """Whether one row of `grade` did what its condition wants."""
    return row["asked"] if row["condition"] == "underspecified" else row["outcome"] in ("answered", "truncated")


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """{"n": pairs, "ask_when_needed", "answer_when_complete"} with 95% Wilson intervals."""
    complete = [right(row) for row in rows if row["condition"] == "complete"]
    less = [right(row) for row in rows if row["condition"] == "underspecified"]
    return {
        "n": len(less),
        "ask_when_needed": wilson(sum(less), len(less)).as_json(),
        "answer_when_complete": wilson(sum(complete), len(complete)).as_json(),
    }
