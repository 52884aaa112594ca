"""The format part of both.sh's reward: the last reply marks one answer. A reply that asks earns nothing, since with a format part that
questions earn a run ended with questions only."""

from __future__ import annotations

from nextturn.probe.text.grading import count_marks
from nextturn.train.rewards import Sample


def marked(sample: Sample) -> float:
    """Return 1 if the last assistant turn has exactly one marked answer, else 0."""
    last = next(message for message in reversed(sample.conversations[0]) if message["role"] == "assistant")
    return float(count_marks(last["content"]) == 1)
