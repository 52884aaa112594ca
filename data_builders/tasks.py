"""What a conversation is built from: one problem with its steps, and what can be withheld, changed or mistaken.

Both sources end here: the starter generator, whose templates know every number's role, and problems read as
plain text, from which as much is derived as the text supports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nextturn.probe.conversations import Message

_INVERSE = {"+": "-", "-": "+", "*": "/", "/": "*"}


@dataclass(frozen=True)
class Step:
    """One line of a worked solution. `op` is empty where the line holds no equation of two operands."""

    text: str
    left: str = ""
    op: str = ""
    right: str = ""
    result: str = ""
    why: str = ""  # a clause: "each of the 3 bags holds 4 marbles"

    @property
    def expression(self) -> str:
        return f"{self.left}% of {self.right}" if self.op == "%" else f"{self.left} {self.op} {self.right}"

    @property
    def equation(self) -> str:
        return f"{self.expression} = {self.result}"

    @property
    def undone(self) -> str:
        """What must give back the first number: "12 / 4"; empty for a percentage."""
        return f"{self.result} {_INVERSE[self.op]} {self.right}" if self.op in _INVERSE else ""


@dataclass(frozen=True)
class Gap:
    """The same question with one needed thing left out, so that what remains reads as if nothing were missing.

    A *number* is a stated amount, a *formula* one that the solution works with.
    """

    question: str
    clause: str  # follows "tell me": "how many marbles are in each bag"
    ask: str  # a whole question that names it: "How many marbles are in each bag?"
    reveal: str  # a sentence of the user that supplies it
    short: str  # the bare thing: "12 marbles", "$12", "20%", "$x^2+1$"
    value: str  # the text that no turn may hold before the reveal
    thing: str = ""  # a noun phrase, where there is one: "the radius of the circle"


@dataclass(frozen=True)
class WhatIf:
    """One given changed and everything computed again. `condition` follows "what if"."""

    condition: str
    steps: tuple[Step, ...]  # only those whose numbers change
    answer: str


@dataclass(frozen=True)
class Slip:
    """A plausible wrong result, and how it comes about.

    Attributes:
        at: the step that went wrong, or after which somebody stopped, from 0.
        did: "3 + 4 = 7", what was computed there; empty where somebody only stopped there.
        answer: what it led to, written as `Task.answer` is: LaTeX without dollars.
        quote: of a text solution what the number is there: "c - a" where it says "$c - a = 6$".
    """

    at: int
    did: str
    answer: str
    quote: str = ""


@dataclass(frozen=True)
class Task:
    """A problem prepared for conversation. `final` holds `{box}` where the boxed answer goes."""

    id: str
    question: str
    answer: str
    source: str
    steps: tuple[Step, ...]
    final: str = "The answer is {box}."
    gaps: tuple[Gap, ...] = ()
    what_ifs: tuple[WhatIf, ...] = ()
    slips: tuple[Slip, ...] = ()
    template: str = ""
    boxed_solution: str = ""  # a reference solution that boxes its answer itself, kept word for word
    asked: str = ""  # of a text problem: the sentence that says what is wanted
    # Of a text problem: another one that may stand beside it on a sheet, a whole one and one that lacks something.
    whole_beside: str = ""
    lacking_beside: str = ""

    @property
    def solution(self) -> str:
        """The worked solution, one step a line."""
        return "\n".join(step.text for step in self.steps)

    @property
    def reference(self) -> str:
        """A worked solution that boxes its answer."""
        return self.boxed_solution or f"{self.solution}\nThe answer is \\boxed{{{self.answer}}}."


@dataclass(frozen=True)
class Conversation:
    """A finished conversation. `hidden` may not stand in a turn before message `reveal_at`.

    Attributes:
        gap: what was withheld.
        doubts: of each doubt of the user about an answer, in their order, whether it was right.
        persona: of the user, where a model plays one.
        prompts: whether its turns are prompts for reinforcement learning.
        reason: why it cannot be used, where that is known before the gate.
        row: what else its row holds.
        slips: replies of models that could not be used; None where nothing is told of them.
    """

    id: str
    kind: str
    messages: tuple[Message, ...]
    source: str
    answer: str
    hidden: str = ""
    reveal_at: int = 0
    task: Task | None = None
    gap: Gap | None = None
    doubts: tuple[bool, ...] = ()
    persona: str = ""
    prompts: bool = True
    reason: str = ""
    row: Mapping[str, Any] = field(default_factory=dict)
    slips: Sequence[Mapping[str, Any]] | None = None
