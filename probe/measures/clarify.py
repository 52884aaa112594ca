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


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """{"n": pairs, "ask_when_needed", "answer_when_complete"} with 95% Wilson intervals."""
    complete = [row for row in rows if row["condition"] == "complete"]
    less = [row for row in rows if row["condition"] == "underspecified"]
    answering = sum(row["outcome"] in ("answered", "truncated") for row in complete)
    return {
        "n": len(less),
        "ask_when_needed": wilson(sum(row["asked"] for row in less), len(less)).as_json(),
        "answer_when_complete": wilson(answering, len(complete)).as_json(),
    }
