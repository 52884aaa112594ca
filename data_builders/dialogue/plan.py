"""What a conversation is to be, drawn before anybody speaks: the problem, the user, and what is held back at first."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from data_builders.derive.latex import ASY
from data_builders.dialogue.personas import Persona, draw_persona
from data_builders.dialogue.settings import Dialogue
from data_builders.tasks import Gap, Task
from data_builders.derive.values import states
from probe.sets import Message

# Of a list, or of a drawing's code, nobody leaves out one number: it could not be asked for.
_LIST = re.compile(r"\d+(?:[\s$]*,[\s$]*\d+){2,}")
_NUMBER = re.compile(r"(?<![\w.,\\])\d+(?:\.\d+)?(?![\w]|[.,]\d)")


@dataclass(frozen=True)
class Plan:
    """One conversation to make.

    Attributes:
        stated: the user opens with the whole problem, word for word.
        hidden: numbers of the problem that the opening must not state.
        gap: what the hidden number is, where the task knows.
    """

    id: str
    task: Task
    persona: Persona
    stated: bool
    hidden: tuple[str, ...] = ()
    gap: Gap | None = None

    @property
    def clause(self) -> str:
        """Such as "how many marbles are in each bag"; "" where the task does not know."""
        return self.gap.clause if self.gap else ""

    @property
    def kind(self) -> str:
        return "stated" if self.stated else "withheld"

    def still_hidden(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """The hidden numbers that no message has stated so far."""
        return tuple(value for value in self.hidden if not any(states(one["content"], value) for one in messages))



def plan_of(task: Task, again: int, seed: int, settings: Dialogue) -> Plan:
    """Conversation number `again` about a task; the same arguments always give the same plan."""
    rng = random.Random(f"dialogue:{seed}:{again}:{task.id}")
    persona = draw_persona(rng, settings.personas, settings.knowledge, settings.effort)
    name = f"{task.id}-dialogue" + (f"-{again}" if again else "")
    if rng.random() < settings.stated:
        return Plan(name, task, persona, stated=True)
    gaps = [gap for gap in task.gaps if gap.kind == "number"]  # whether one was told can be seen in any wording
    if gaps:
        gap = rng.choice(gaps)
        return Plan(name, task, persona, False, (gap.value,), gap)
    return Plan(name, task, persona, False, _numbers(task.question, rng))


def _numbers(question: str, rng: random.Random) -> tuple[str, ...]:
    """One or two numbers that the question states once; rather large ones, since 1 and 2 stand in many formulas."""
    found = _NUMBER.findall(question)
    outside = _NUMBER.findall(_LIST.sub(" ", ASY.sub(" ", question)))
    once = [number for number in dict.fromkeys(outside) if found.count(number) == 1]
    telling = [number for number in once if float(number) > 2] or once
    return tuple(rng.sample(telling, min(len(telling), rng.choice((1, 2)))))
