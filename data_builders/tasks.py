"""What a conversation is built from: a problem with its steps, the facts that can be withheld, and the mistakes users can make.

Every source of problems ends here: problems whose rows bring their steps and facts, and problems read as plain text, from
which rules derive as much as the text supports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nextturn.probe.data.messages import Message
from nextturn.probe.questions.simulation import Fact

_INVERSE = {"+": "-", "-": "+", "*": "/", "/": "*"}


@dataclass(frozen=True)
class Step:
    """A line of a worked solution.

    Attributes:
        text: The line itself.
        left, op, right, result: The equation of the line; empty if the line has no equation of two operands.
        why: A clause that explains the operation: "each of the 3 bags holds 4 marbles".
    """

    text: str
    left: str = ""
    op: str = ""
    right: str = ""
    result: str = ""
    why: str = ""

    @property
    def expression(self) -> str:
        return f"{self.left}% of {self.right}" if self.op == "%" else f"{self.left} {self.op} {self.right}"

    @property
    def equation(self) -> str:
        return f"{self.expression} = {self.result}"

    @property
    def undone(self) -> str:
        """The inverse operation, whose result is `left`: "12 / 4". Empty for a percentage."""
        return f"{self.result} {_INVERSE[self.op]} {self.right}" if self.op in _INVERSE else ""


@dataclass(frozen=True)
class WhatIf:
    """A changed number, with everything computed again.

    Attributes:
        condition: The change; it follows "what if".
        steps: Only the steps whose numbers change.
        answer: The new answer.
    """

    condition: str
    steps: tuple[Step, ...]
    answer: str


@dataclass(frozen=True)
class Mistake:
    """A plausible wrong result.

    Attributes:
        at: Index of the step that went wrong, or after which somebody stopped.
        did: The wrong equation, "3 + 4 = 7"; empty if somebody only stopped too early.
        answer: The wrong result, in the format of `Task.answer`: LaTeX without dollars.
        quote: What the number is in a text solution: "c - a" where the solution says "$c - a = 6$".
    """

    at: int
    did: str
    answer: str
    quote: str = ""


@dataclass(frozen=True)
class Task:
    """A problem prepared for conversations.

    Attributes:
        gaps: The facts that can be left out.
        final: The sentence with the answer; `{box}` stands for the boxed answer.
        template: The kind of story, where the row of the problem names it.
        boxed_solution: A reference solution that boxes its answer itself; it is used word for word.
        asked: The sentence of a text problem that asks for the answer.
        whole_beside, lacking_beside: Other text problems that may stand on the same sheet: one that is complete, and one
            that lacks a fact.
    """

    id: str
    question: str
    answer: str
    source: str
    steps: tuple[Step, ...]
    final: str = "The answer is {box}."
    gaps: tuple[Fact, ...] = ()
    what_ifs: tuple[WhatIf, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    template: str = ""
    boxed_solution: str = ""
    asked: str = ""
    whole_beside: str = ""
    lacking_beside: str = ""

    @property
    def solution(self) -> str:
        """The worked solution, one step per line."""
        return "\n".join(step.text for step in self.steps)

    @property
    def reference(self) -> str:
        """A worked solution that boxes its answer."""
        return self.boxed_solution or f"{self.solution}\nThe answer is \\boxed{{{self.answer}}}."


@dataclass(frozen=True)
class Conversation:
    """A finished conversation.

    Attributes:
        reveal_at: Index of the message that reveals the withheld fact; 0 if nothing is withheld.
        fact: What the first user message leaves out.
        doubts: For each doubt of the user about an answer, in order, whether the doubt is right.
        shards: The pieces of the problem that the user tells one by one, where it does.
        whole: The problem that the pieces come from.
        reason: Why the conversation cannot be used, if that is known before the quality filter.
        row: Further fields of its row.
        unusable: Unusable replies of models, stored with a rejected row; None if none are stored.
    """

    id: str
    kind: str
    messages: tuple[Message, ...]
    source: str
    answer: str
    reveal_at: int = 0
    task: Task | None = None
    fact: Fact = Fact()
    doubts: tuple[bool, ...] = ()
    shards: tuple[str, ...] = ()
    whole: str = ""
    reason: str = ""
    row: Mapping[str, Any] = field(default_factory=dict)
    unusable: Sequence[Mapping[str, Any]] | None = None
