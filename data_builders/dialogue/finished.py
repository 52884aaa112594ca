"""A finished conversation of self-play, and the record that the quality filter and the training views read."""

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
# A reward for the result would pay for telling it where the user wants to find it.
_NO_PROMPTS = ("hint", "steps", "slip")


@dataclass
class Finished:
    """A conversation at its end; `reason` says why it cannot be used.

    Attributes:
        withheld: what the opening leaves out, `rest` the problem without it, `reveal_at` the message that tells it.
        measured: {"solved", "without", "with"}: [right, tries] of the problem alone, of the opening that lacks what is
            withheld, and of the chat in which the solution stands.
        doubts: whether each of the user's is right.
        unusable: {role, where, reason, text} of each reply that could not be used.
        verdict: the judge's, 0 where none was asked.
        calls: {"assistant.calls", "assistant.input", "assistant.output", ...}: replies and their tokens, by role.
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
        """As the gate and the views of training take it, with who talked and why, what was measured and what it took."""
        plan, given, gap = self.plan, self.withheld, None
        if given is not None and len(self.messages) > self.reveal_at > 0:
            told = self.messages[self.reveal_at]["content"]
            ask = self.messages[1]["content"]
            gap = Gap(self.rest, given.name, ask, told, given.fact, given.fact, thing=given.name)
        row = {
            "persona": plan.persona,
            "goal": plan.goal,
            "withheld": given.name if given else "",
            "fact": given.fact if given else "",
            "measured": self.measured,
            "verdict": self.verdict,
            "judged": self.judged,
            "slips": " ".join(f"{one['role']}.{one['reason']}" for one in self.unusable),
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
