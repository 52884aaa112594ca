"""The form of a starter template, and how numbers are drawn for one and carried through its steps.

Everything that needs the arithmetic lives here, so that a what-if question and a wrong way are computed by
the same code as the solution and cannot disagree with it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from data_builders.tasks import Step

MAX_RESULT = 1000  # larger numbers test long multiplication, not the reading of a problem
_OPERATION = re.compile(r"(\w+)([-+*/%])(\w+)")


@dataclass(frozen=True)
class Slot:
    """A given: the numbers it may take (`low` to `high` in steps of `by`) and the sentences around it."""

    key: str
    low: int
    high: int
    sentence: str
    clause: str
    ask: str
    vague: tuple[str, ...]
    by: int = 1

    def draw(self, rng: random.Random) -> int:
        return rng.randrange(self.low, self.high + 1, self.by)


@dataclass(frozen=True)
class Operation:
    """A step: `key` names its result; operands are keys or whole numbers."""

    key: str
    left: str
    op: str
    right: str
    text: str
    why: str


@dataclass(frozen=True)
class Template:
    """One kind of problem. `held_out` ones occur in the test split only."""

    key: str
    topic: str
    items: tuple[str, ...]
    slots: tuple[Slot, ...]
    question: str
    operations: tuple[Operation, ...]
    final: str
    held_out: bool = field(default=False, kw_only=True)


def G(key: str, low: int, high: int, sentence: str, clause: str, ask: str, *vague: str, by: int = 1) -> Slot:
    """A given; an empty `ask` means that the clause itself is the direct question."""
    return Slot(key, low, high, sentence, clause, ask or f"{clause[0].upper()}{clause[1:]}?", vague, by)


def S(key: str, operation: str, text: str, why: str) -> Operation:
    match = _OPERATION.fullmatch(operation)
    if match is None:
        raise ValueError(f"{operation!r}: wanted two operands around one of + - * / %")
    return Operation(key, match[1], match[2], match[3], text, why)


def T(
    key: str,
    topic: str,
    items: Sequence[str],
    slots: Sequence[Slot],
    question: str,
    operations: Sequence[Operation],
    final: str,
    held_out: bool = False,
) -> Template:
    return Template(key, topic, tuple(items), tuple(slots), question, tuple(operations), final, held_out=held_out)


def compute(op: str, left: int, right: int) -> int | None:
    """The result, or None where it is no whole number from 2 to MAX_RESULT."""
    if op == "/":
        result = left // right if right and left % right == 0 else 0
    elif op == "%":
        result = left * right // 100 if left * right % 100 == 0 else 0
    else:
        result = {"+": left + right, "-": left - right, "*": left * right}[op]
    return result if 2 <= result <= MAX_RESULT else None


def run(
    template: Template, values: Mapping[str, int], forced: Mapping[str, int] | None = None
) -> dict[str, int] | None:
    """All values with every step's result added; None where a step does not come out.

    `forced` fixes results of steps, which is how a mistake is carried on to its wrong answer.
    """
    known = dict(values)
    for operation in template.operations:
        left, right = (int(x) if x.isdigit() else known[x] for x in (operation.left, operation.right))
        result = (forced or {}).get(operation.key, compute(operation.op, left, right))
        if result is None:
            return None
        known[operation.key] = result
    return known


def draw_values(template: Template, rng: random.Random) -> dict[str, int]:
    """Numbers for which every step comes out, all givens different so that a number names one thing."""
    for _ in range(10_000):
        values = {slot.key: slot.draw(rng) for slot in template.slots}
        if len(set(values.values())) == len(values) and run(template, values) is not None:
            return values
    raise ValueError(f"template {template.key}: its ranges hold no numbers for which every step comes out")


def solve(template: Template, values: Mapping[str, int], words: Mapping[str, str]) -> tuple[Step, ...]:
    """The worked steps for numbers that `run` accepts. `words` fills names, pronouns and items."""
    known = run(template, values)
    if known is None:
        raise ValueError(f"template {template.key}: {dict(values)} gives a step that does not come out")
    filled = {**words, **{key: str(value) for key, value in known.items()}}
    steps = []
    for operation in template.operations:
        left, right = (filled.get(operand, operand) for operand in (operation.left, operation.right))
        bare = Step("", left, operation.op, right, filled[operation.key])
        text = operation.text.format(**filled, eq=bare.equation)
        why = operation.why.format(**filled)
        steps.append(Step(text[0].upper() + text[1:], left, operation.op, right, filled[operation.key], why))
    return tuple(steps)
