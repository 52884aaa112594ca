"""What a conversation is built from: one problem with its steps, and what can be withheld, changed or mistaken.

Both sources end here: the starter generator, whose templates know every number's role, and problems read as
plain text, from which as much is derived as the text supports. The dialogue builder sees no difference; it
offers an act only where the task holds what the act needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GapKind = Literal["number", "formula"]

# Verb, past tense, and the words around two operands, for each operation of a step.
VERBS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "take a percentage"}
PASTS = {"+": "added", "-": "subtracted", "*": "multiplied", "/": "divided", "%": "took the percentage"}
_ACTIONS = {
    "+": "{verb} {left} and {right}",
    "-": "{verb} {right} from {left}",
    "*": "{verb} {left} by {right}",
    "/": "{verb} {left} by {right}",
    "%": "{verb} {left}% of {right}",
}
_CHECKS = {"+": "-", "-": "+", "*": "/", "/": "*"}


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
    def action(self) -> str:
        """What the step does: "multiply 3 by 4"."""
        verb = "take" if self.op == "%" else VERBS[self.op]
        return _ACTIONS[self.op].format(verb=verb, left=self.left, right=self.right)

    @property
    def check(self) -> str:
        """The step undone, which must give back its first number: "12 / 4 = 3"; empty for a percentage."""
        if self.op not in _CHECKS:
            return ""
        return f"{self.result} {_CHECKS[self.op]} {self.right} = {self.left}"


@dataclass(frozen=True)
class Given:
    """A number the problem states: the sentence that states it, its value, and what it is called."""

    phrase: str
    value: str
    name: str


@dataclass(frozen=True)
class Gap:
    """The same question with one needed thing withheld.

    A *number* is a stated amount, a *formula* one that the solution works with. Where nothing simple names the thing,
    it is named by quoting the words around its place: 'the number in "a train drives 90 miles in ___ hours"'.
    """

    question: str
    clause: str  # follows "tell me": "how many marbles are in each bag"
    ask: str  # a whole question that names it: "How many marbles are in each bag?"
    reveal: str  # a sentence of the user that supplies it
    short: str  # the bare thing: "12 marbles", "$12", "20%", "$x^2+1$"
    value: str  # the text that no assistant turn may hold before the reveal
    kind: GapKind = "number"
    thing: str = ""  # a noun phrase: "the number of marbles in each bag"
    other: str = ""  # of a number: the same thing with a near, different value ("15 marbles"); "" where none


@dataclass(frozen=True)
class WhatIf:
    """One given changed and everything computed again. `condition` follows "what if"."""

    condition: str
    steps: tuple[Step, ...]  # only those whose numbers change
    answer: str


@dataclass(frozen=True)
class Slip:
    """A plausible wrong way: at step `at` (from 0) `did` was computed, which led to `answer`."""

    at: int
    did: str  # "3 + 4 = 7"; empty when the slip is that the user stopped after step `at`
    answer: str  # written as `Task.answer` is: LaTeX without dollars
    quote: str = ""  # the formula where the number stands on the way, "$c-a = 6$"; a displayed one in dollars, too


@dataclass(frozen=True)
class Piece:
    """A formula of a text solution that a user can point at."""

    formula: str  # in dollars, "$2a+4e = 40$", also where the solution displays it; never the boxed answer
    line: str  # the sentence it stands in, word for word
    before: str  # the sentence before it, "" for the first or where it is too long or a drawing
    value: str = ""  # the number on its right side, where it is one


@dataclass(frozen=True)
class Task:
    """A problem prepared for conversation. `final` holds `{box}` where the boxed answer goes."""

    id: str
    question: str
    answer: str
    source: str
    steps: tuple[Step, ...]
    final: str = "The answer is {box}."
    givens: tuple[Given, ...] = ()
    gaps: tuple[Gap, ...] = ()
    what_ifs: tuple[WhatIf, ...] = ()
    slips: tuple[Slip, ...] = ()
    template: str = ""
    boxed_solution: str = ""  # a reference solution that boxes its answer itself, kept word for word
    topic: str = ""  # "algebra", "counting and probability", "a word problem"
    # Of a `boxed_solution`: its first sentences, which say something and hold neither the answer nor the box, and
    # what follows. `start + rest == boxed_solution`; both "" where it cannot be cut so.
    start: str = ""
    rest: str = ""
    pieces: tuple[Piece, ...] = ()

    @property
    def solution(self) -> str:
        """The worked solution, one step a line."""
        return "\n".join(step.text for step in self.steps)
