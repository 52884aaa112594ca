"""What a conversation is to be, and what each role is told in it (prompts.yaml), with tags around what others wrote.

Texts travel as tagged plain text, never inside JSON, which would break LaTeX, and stand there as they are. Only what looks
like one of our own tags is changed, since a reply could otherwise end the chat it stands in.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nextturn.data_builders.recipe import EXAMPLES_FILE, PERSONAS, PROMPTS_FILE, Dialogue, wordings
from nextturn.data_builders.tasks import Task
from nextturn.data_builders.text import states
from nextturn.probe.conversations import Message
from nextturn.probe.judges.llm import harmless, shortened

PROMPTS: dict[str, Any] = wordings(PROMPTS_FILE)
"""All that the roles are told, by name."""
EXAMPLES: dict[str, list[dict[str, str]]] = wordings(EXAMPLES_FILE)
"""What can be shown before a prompt of that name: its words, and the `reply`."""
REACTIONS = ("why", "doubt", "meaning", "proof", "simpler")
"""What a user may do after a solution. A doubt is as likely after a right one as after a slip: always."""


@dataclass(frozen=True)
class User:
    """What a simulated user knows and wants, of a conversation to build or of a prompt of reinforcement learning.

    Attributes:
        hidden: texts of the question that the opening did not state.
        clause: what is hidden, such as "how many marbles are in each bag"; "" where nobody knows.
    """

    question: str
    persona: str
    goal: str = "result"
    hidden: tuple[str, ...] = ()
    clause: str = ""


def still_hidden(hidden: Iterable[str], messages: Sequence[Message]) -> tuple[str, ...]:
    """Those that no message has stated so far."""
    return tuple(value for value in hidden if not any(states(one["content"], value) for one in messages))


@dataclass(frozen=True)
class Plan:
    """One conversation to make, drawn before anybody is asked.

    Attributes:
        withholds: it opens with something left out.
        reactions: what the user does after the solution, in order, as far as it goes.
        tries_right: whether an attempt that the user shows is right.
    """

    id: str
    task: Task
    persona: str
    goal: str
    withholds: bool
    reactions: tuple[str, ...] = ()
    tries_right: bool = False

    @property
    def question(self) -> str:
        return self.task.question

    @property
    def kind(self) -> str:
        if self.withholds:
            return "underspecified"
        return {"hint": "hint", "steps": "guided", "check": "wrong_start", "slip": "slip"}.get(self.goal, "complete")


def plans_of(task: Task, seed: int, settings: Dialogue) -> list[Plan]:
    """The conversations about a task: one that opens complete and often one that does not, by the same person."""
    rng = random.Random(f"dialogue:{seed}:{task.id}")
    persona, withholds = rng.choice(list(PERSONAS)), rng.random() < settings.withheld
    made = []
    for left_out in (False, True)[: 1 + withholds]:
        weights = {**vars(settings.goals), "check": 0.0} if left_out else vars(settings.goals)
        goal = rng.choices(list(weights), list(weights.values()))[0]
        reactions = tuple(rng.sample(REACTIONS, len(REACTIONS)))
        name = f"{task.id}-{'withheld' if left_out else 'whole'}"
        made.append(Plan(name, task, persona, goal, left_out, reactions, rng.random() < 0.4))
    return made


# --- The prompts.

_OWN_TAG = re.compile(
    r"<(?=[\s/]{0,4}(?:problem|text|reply|chat|user|assistant|message|end)[\s/]{0,4}>)", re.IGNORECASE
)
# Characters of one message, and of a whole conversation, that a judge is shown.
_MESSAGE_LIMIT, _JUDGED_LIMIT = 6_000, 24_000
_TRY_LIMIT = 1_000  # of a reply that could not be used, shown to who wrote it

Prompt = tuple[Message, ...]


def prompt(named: str, /, shots: int = 0, **words: str) -> Prompt:
    """The text of that name, filled with words that may hold what others wrote, after `shots` examples of it."""

    def told(**words: str) -> str:
        return PROMPTS[named].format(**{word: quoted(text) for word, text in words.items()})

    return _after_examples(named, shots, told, words)


def _after_examples(named: str, shots: int, told: Callable[..., str], words: Mapping[str, str]) -> Prompt:
    shown: list[Message] = []
    for example in EXAMPLES[named][:shots]:
        asked = {word: text for word, text in example.items() if word != "reply"}
        shown.append({"role": "user", "content": told(**asked)})
        shown.append({"role": "assistant", "content": example["reply"]})
    return (*shown, *_one(told(**words)))


def _one(text: str) -> Prompt:
    return ({"role": "user", "content": text},)


def assistant_prompt(messages: Sequence[Message], note: str = "", **words: str) -> Prompt:
    """The chat, with the note of that name for the assistant alone."""
    chat = [{"role": one["role"], "content": one["content"]} for one in messages]
    if note:
        told = PROMPTS["notes"][note].format(**words)
        chat[-1] = {**chat[-1], "content": PROMPTS["note"].format(said=chat[-1]["content"], note=told)}
    return ({"role": "system", "content": PROMPTS["assistant"]}, *chat)


def again(messages: Prompt, text: str, unusable: str) -> Prompt:
    """The prompt once more, with the reply to it that could not be used, and why."""
    why = PROMPTS["unusable"][unusable]
    told = PROMPTS["again"].format(text=quoted(shortened(text, _TRY_LIMIT)), why=why)
    *before, last = messages
    return (*before, {**last, "content": f"{last['content']}\n\n{told}"})


def shown_replies(named: str, shots: int) -> list[str]:
    """What the examples before a prompt of that name reply, without the tags."""
    return [re.sub(r"</?\w+>", "", example["reply"]) for example in EXAMPLES[named][:shots]]


def opening_prompt(plan: Plan, text: str, shots: int = 0) -> Prompt:
    """Asks for the first message, which tells what `text` tells; the same prompt for every opening."""

    def told(text: str, persona: str, wish: str) -> str:
        who = {"persona": PERSONAS[persona], "wish": PROMPTS["wishes"][wish]}
        return PROMPTS["opening"].format(text=quoted(text), **who)

    return _after_examples("opening", shots, told, {"text": text, "persona": plan.persona, "wish": plan.goal})


def act_prompt(persona: str, act: str, last: str, shots: int = 0, **words: str) -> Prompt:
    """Asks for the user's message after the assistant's `last`, which does what the act of that name says."""

    def told(persona: str, last: str, **words: str) -> str:
        does = PROMPTS["acts"][act].format(**words)
        return PROMPTS["act"].format(persona=PERSONAS[persona], last=quoted(last), act=quoted(does))

    return _after_examples(act, shots, told, {"persona": persona, "last": last, **words})


def simulator_prompt(user: User, messages: Sequence[Message]) -> Prompt:
    """Asks for the user's message after `messages`, with no part to play."""
    hidden = still_hidden(user.hidden, messages)
    what = f"{user.clause} ({' and '.join(hidden)})" if user.clause else " and ".join(hidden)
    chat = "\n".join(f"<{one['role']}>\n{quoted(one['content'])}\n</{one['role']}>" for one in messages)
    who = {"persona": PERSONAS[user.persona], "goal": PROMPTS["goals"][user.goal], "question": quoted(user.question)}
    held = PROMPTS["held"].format(what=what) if hidden else ""
    return _one(PROMPTS["simulator"].format(**who, chat=chat, held=held))


def judge_prompt(messages: Sequence[Message]) -> Prompt:
    return _one(PROMPTS["judge"].format(conversation=_judged(messages)))


def review_prompt(plan: Plan, withheld: str, messages: Sequence[Message]) -> Prompt:
    """Asks whether a finished conversation is good; shows the problem, what was withheld ("" nothing) and the goal. Without
    examples: a small model gives the verdict of the last one."""
    told = {"question": quoted(plan.question), "withheld": withheld or "nothing", "goal": PROMPTS["goals"][plan.goal]}
    return _one(PROMPTS["review"].format(**told, conversation=_judged(messages)))


def _judged(messages: Sequence[Message]) -> str:
    blocks = (
        f'<message from="{one["role"]}"{"" if one.get("loss", True) else " planted"}>\n{shortened(harmless(one["content"]), _MESSAGE_LIMIT)}\n</message>'
        for one in messages
    )
    return shortened("\n".join(blocks), _JUDGED_LIMIT)


def quoted(text: str) -> str:
    """The text as it is, but for our own tags, which are shown as ‹tag>."""
    return _OWN_TAG.sub("\u2039", text)
