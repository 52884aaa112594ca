"""What a conversation is to be, and what each role is told in it: plain text, with tags around what others wrote.

The problem and the chat stand in the prompts as they are, so that the formulas a simulator repeats are those that it
was shown. The words are in prompts.yaml. Only what looks like one of our own tags is changed, since a reply could otherwise end the chat it stands in.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from data_builders.dialogue.settings import PROMPTS, Dialogue, Persona, draw_persona
from data_builders.tasks import Gap, Task
from data_builders.text import ASY, by_itself, states
from probe.conversations import Message
from probe.judges.llm import harmless, shortened

# Of a list, or of a drawing's code, nobody leaves out one number: it could not be asked for.
_LIST = re.compile(r"\d+(?:[\s$]*,[\s$]*\d+){2,}")
_NUMBER = re.compile(r"(?<![\w.,\\])\d+(?:\.\d+)?(?![\w]|[.,]\d)")


class UserKnowledge(Protocol):
    """What a simulated user knows and is, whether of a conversation to build or of a prompt of reinforcement learning."""

    @property
    def question(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def persona(self) -> Persona: ...
    @property
    def hidden(self) -> tuple[str, ...]:
        """Texts of the question that the opening did not state."""
        ...

    @property
    def clause(self) -> str:
        """What is hidden, such as "how many marbles are in each bag"; "" where nobody knows."""
        ...


def still_hidden(hidden: Iterable[str], messages: Sequence[Message]) -> tuple[str, ...]:
    """Those that no message has stated so far."""
    return tuple(value for value in hidden if not any(states(one["content"], value) for one in messages))


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
    def question(self) -> str:
        return self.task.question

    @property
    def answer(self) -> str:
        return self.task.answer

    @property
    def clause(self) -> str:
        """Such as "how many marbles are in each bag"; "" where the task does not know."""
        return self.gap.clause if self.gap else ""

    @property
    def kind(self) -> str:
        return "stated" if self.stated else "withheld"

    def still_hidden(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """The hidden numbers that no message has stated so far."""
        return still_hidden(self.hidden, messages)


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


PROMPT_VERSION = 2
"""Changes with every word in prompts.yaml and with every rule that reads a reply; a part of a build's settings."""

_OWN_TAG = re.compile(r"<(?=[\s/]{0,4}(?:problem|answer|chat|user|assistant|message|end)[\s/]{0,4}>)", re.IGNORECASE)
# Characters of one message, and of a whole conversation, that a judge is shown.
_MESSAGE_LIMIT, _JUDGED_LIMIT = 6_000, 24_000


def assistant_prompt(messages: Sequence[Message]) -> tuple[Message, ...]:
    return ({"role": "system", "content": PROMPTS["assistant"]}, *messages)


def simulator_prompt(user: UserKnowledge, messages: Sequence[Message], last: bool) -> tuple[Message, ...]:
    """Asks for the user's message after `messages` (none: the opening); `last`: no other one follows."""
    whole = PROMPTS["simulator"].format(question=user.question, answer=user.answer, persona=user.persona.text)
    held = _held(user, messages)
    if messages:
        chat = "\n".join(f"<{one['role']}>\n{quoted(one['content'])}\n</{one['role']}>" for one in messages)
        course = PROMPTS["last" if last else "course"]
        turn = PROMPTS["going_on"].format(chat=chat, held=held, course=course) + f"\n{PROMPTS['form_or_end']}"
    else:
        turn = PROMPTS["opening"].format(held=f" {held}" if held else "") + f"\n{PROMPTS['form']}"
    return ({"role": "user", "content": f"{whole}\n\n{turn}"},)


def judge_prompt(messages: Sequence[Message]) -> tuple[Message, ...]:
    blocks = (
        f'<message from="{one["role"]}">\n{shortened(harmless(one["content"]), _MESSAGE_LIMIT)}\n</message>'
        for one in messages
    )
    conversation = shortened("\n".join(blocks), _JUDGED_LIMIT)
    return ({"role": "user", "content": PROMPTS["judge"].format(conversation=conversation)},)


def quoted(text: str) -> str:
    """The text as it is, but for our own tags, which are shown as ‹tag>."""
    return _OWN_TAG.sub("\u2039", text)


def _held(user: UserKnowledge, messages: Sequence[Message]) -> str:
    hidden = still_hidden(user.hidden, messages)
    if not hidden:
        return ""
    if user.clause:
        what = f"{user.clause} ({' and '.join(hidden)})"
    else:
        what = " and ".join(f"the {value} of {place_of(user.question, value)}" for value in hidden)
    if not messages:
        return f"In it they do not mention {what}."
    return f"What the person has not told yet, and tells when asked for it: {what}."


def place_of(question: str, value: str) -> str:
    """Where the problem states a value, in its words: a bare number has lost its sign and what it counts."""
    text = " ".join(ASY.sub(" ", question).split())
    found = re.search(rf"(?:\S+ ){{0,4}}\S*{by_itself(value)}\S*(?: \S+){{0,2}}", text)
    return f'"{found.group()}"' if found else "the problem"
