"""Plans of conversations, and the prompts of each role (prompts.yaml), with tags around texts that others wrote.

Texts are inserted as tagged plain text, never inside JSON, which would break LaTeX. They are not changed, except for our own
tags in them, since a reply could otherwise end the chat that contains it.
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
"""All prompts, by name."""
EXAMPLES: dict[str, list[dict[str, str]]] = wordings(EXAMPLES_FILE)
"""Examples that can precede the prompt of that name: the words that fill the prompt, and the `reply`."""
REACTIONS = ("why", "doubt", "meaning", "proof", "simpler")
"""What a user may do after a solution."""


@dataclass(frozen=True)
class User:
    """What a simulated user knows and wants, in data building or reinforcement learning.

    Attributes:
        hidden: Texts of the question that the first user message did not state.
        clause: A description of the hidden texts, such as "how many marbles are in each bag"; "" if unknown.
    """

    question: str
    persona: str
    goal: str = "result"
    hidden: tuple[str, ...] = ()
    clause: str = ""


def still_hidden(hidden: Iterable[str], messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the hidden texts that no message has stated so far."""
    return tuple(value for value in hidden if not any(states(message["content"], value) for message in messages))


@dataclass(frozen=True)
class Plan:
    """The plan of a conversation, drawn before any model is asked.

    Attributes:
        withholds: Whether the first user message lacks a fact.
        reactions: What the user does after the solution, in order of preference.
        tries_right: Whether an attempt that the user shows is right.
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
    """Return the plans for a task: one with a complete first message, and often one that lacks a fact, by the same persona."""
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
# The most characters of one message, and of a whole conversation, that a judge sees.
_MESSAGE_LIMIT, _JUDGED_LIMIT = 6_000, 24_000
_TRY_LIMIT = 1_000  # of a reply that could not be used, repeated to its model

Prompt = tuple[Message, ...]


def prompt(named: str, /, shots: int = 0, **words: str) -> Prompt:
    """Return the prompt of that name, after `shots` examples.

    Args:
        words: Fill the prompt; tags in them are made harmless.
    """

    def fill(**words: str) -> str:
        return PROMPTS[named].format(**{word: quoted(text) for word, text in words.items()})

    return _after_examples(named, shots, fill, words)


def _after_examples(named: str, shots: int, fill: Callable[..., str], words: Mapping[str, str]) -> Prompt:
    shown: list[Message] = []
    for example in EXAMPLES[named][:shots]:
        asked = {word: text for word, text in example.items() if word != "reply"}
        shown.append({"role": "user", "content": fill(**asked)})
        shown.append({"role": "assistant", "content": example["reply"]})
    return (*shown, *_one(fill(**words)))


def _one(text: str) -> Prompt:
    return ({"role": "user", "content": text},)


def assistant_prompt(messages: Sequence[Message], note: str = "", **words: str) -> Prompt:
    """Return the chat for the assistant, with a note that only the assistant sees."""
    chat = [{"role": message["role"], "content": message["content"]} for message in messages]
    if note:
        text = PROMPTS["notes"][note].format(**words)
        chat[-1] = {**chat[-1], "content": PROMPTS["note"].format(said=chat[-1]["content"], note=text)}
    return ({"role": "system", "content": PROMPTS["assistant"]}, *chat)


def again(messages: Prompt, text: str, unusable: str) -> Prompt:
    """Return a prompt with the unusable reply to it and the reason added."""
    why = PROMPTS["unusable"].get(unusable, unusable)
    reason = PROMPTS["again"].format(text=quoted(shortened(text, _TRY_LIMIT)), why=why)
    *before, last = messages
    return (*before, {**last, "content": f"{last['content']}\n\n{reason}"})


def shown_replies(named: str, shots: int) -> list[str]:
    """What the examples before a prompt of that name reply, without the tags."""
    return [re.sub(r"</?\w+>", "", example["reply"]) for example in EXAMPLES[named][:shots]]


def opening_prompt(plan: Plan, text: str, shots: int = 0) -> Prompt:
    """Return the prompt for the first user message, which states what `text` states, complete or not."""

    def fill(text: str, persona: str, wish: str) -> str:
        who = {"persona": PERSONAS[persona], "wish": PROMPTS["wishes"][wish]}
        return PROMPTS["opening"].format(text=quoted(text), **who)

    return _after_examples("opening", shots, fill, {"text": text, "persona": plan.persona, "wish": plan.goal})


def act_prompt(persona: str, act: str, last: str, shots: int = 0, **words: str) -> Prompt:
    """Return the prompt for a user message that follows the assistant's `last` and does what the act says."""

    def fill(persona: str, last: str, **words: str) -> str:
        does = PROMPTS["acts"][act].format(**words)
        return PROMPTS["act"].format(persona=PERSONAS[persona], last=quoted(last), act=quoted(does))

    return _after_examples(act, shots, fill, {"persona": persona, "last": last, **words})


def simulator_prompt(user: User, messages: Sequence[Message]) -> Prompt:
    """Return the prompt for the user's next message, without a prescribed act."""
    hidden = still_hidden(user.hidden, messages)
    what = f"{user.clause} ({' and '.join(hidden)})" if user.clause else " and ".join(hidden)
    chat = "\n".join(f"<{message['role']}>\n{quoted(message['content'])}\n</{message['role']}>" for message in messages)
    who = {"persona": PERSONAS[user.persona], "goal": PROMPTS["goals"][user.goal], "question": quoted(user.question)}
    held = PROMPTS["held"].format(what=what) if hidden else ""
    return _one(PROMPTS["simulator"].format(**who, chat=chat, held=held))


def judge_prompt(messages: Sequence[Message]) -> Prompt:
    return _one(PROMPTS["judge"].format(conversation=_judged(messages)))


def review_prompt(plan: Plan, withheld: str, messages: Sequence[Message]) -> Prompt:
    """Return the prompt for a judge's verdict on a finished conversation.

    There are no examples, because a small model repeats the verdict of the last one.

    Args:
        withheld: Name of the withheld fact, or "".
    """
    words = {"question": quoted(plan.question), "withheld": withheld or "nothing", "goal": PROMPTS["goals"][plan.goal]}
    return _one(PROMPTS["review"].format(**words, conversation=_judged(messages)))


def _judged(messages: Sequence[Message]) -> str:
    blocks = (
        f'<message from="{message["role"]}"{"" if message.get("loss", True) else " planted"}>\n{shortened(harmless(message["content"]), _MESSAGE_LIMIT)}\n</message>'
        for message in messages
    )
    return shortened("\n".join(blocks), _JUDGED_LIMIT)


def quoted(text: str) -> str:
    """Return the text with our own tags shown as ‹tag>."""
    return _OWN_TAG.sub("\u2039", text)
