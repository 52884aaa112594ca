"""A finished self-play conversation, and the record that the quality filter and the training views read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from nextturn.data_builders.dialogue.checks import Proposal
from nextturn.data_builders.dialogue.prompts import Plan
from nextturn.data_builders.dialogue.roles import COUNTS
from nextturn.data_builders.recipe import ROLES
from nextturn.data_builders.tasks import Conversation, Gap
from nextturn.probe.conversations import Message

Row = dict[str, Any]
# With these goals the user wants to find the result, and a reward for the result would reward revealing it.
_NO_PROMPTS = ("hint", "steps", "slip")


@dataclass
class Finished:
    """A conversation at its end.

    Attributes:
        withheld: The withheld fact.
        rest: The problem without the withheld fact.
        reveal_at: The index of the message that reveals it.
        measured: {"solved", "without", "with"}: [right, attempts] of the problem alone, of the first user message without
            the withheld fact, and of the conversation.
        doubts: Whether each doubt of the user is right.
        unusable: {role, where, reason, text} of each reply that could not be used.
        calls: {"assistant.calls", "assistant.input", "assistant.output", ...}: replies and their tokens, by role.
        verdict: The judge's, 0 without a judge.
        judged: The judge's reply.
        reason: Why the conversation cannot be used, or "".
    """

    plan: Plan
    messages: list[Message] = field(default_factory=list)
    withheld: Proposal | None = None
    rest: str = ""
    reveal_at: int = 0
    measured: dict[str, list[int]] = field(default_factory=dict)
    doubts: list[bool] = field(default_factory=list)
    unusable: list[Row] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    verdict: int = 0
    judged: str = ""
    reason: str = ""

    def conversation(self) -> Conversation:
        """Return the record for the quality filter and the training views."""
        plan, fact, gap = self.plan, self.withheld, None
        if fact is not None and len(self.messages) > self.reveal_at > 0:
            question, reveal = self.messages[1]["content"], self.messages[self.reveal_at]["content"]
            gap = Gap(self.rest, fact.name, question, reveal, fact.fact, fact.fact, thing=fact.name)
        row = {
            "persona": plan.persona,
            "goal": plan.goal,
            "withheld": fact.name if fact else "",
            "fact": fact.fact if fact else "",
            "measured": self.measured,
            "verdict": self.verdict,
            "judged": self.judged,
            "slips": " ".join(f"{reply['role']}.{reply['reason']}" for reply in self.unusable),
            "calls": {f"{role}.{count}": self.calls[f"{role}.{count}"] for role in ROLES for count in COUNTS},
        }
        return Conversation(
            id=plan.id,
            kind=plan.kind,
            messages=tuple(self.messages),
            source=plan.task.source,
            answer=plan.task.answer,
            reveal_at=self.reveal_at,
            task=plan.task,
            gap=gap,
            doubts=tuple(self.doubts),
            persona=plan.persona,
            prompts=plan.goal not in _NO_PROMPTS,
            reason=self.reason,
            row={"dialogue": row},
            unusable=self.unusable,
        )
