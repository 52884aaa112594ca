"""The prompts of each role (prompts.yaml), with tags around texts that others wrote.

Texts are inserted as tagged plain text, never inside JSON, which would break LaTeX. They are not changed, except for our own
tags in them, since a reply could otherwise end the chat that contains it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nextturn.data_builders.dialogue.checks import copies
from nextturn.data_builders.numbers import states
from nextturn.data_builders.sections import EXAMPLES_FILE, PERSONAS, PROMPTS_FILE, wordings
from nextturn.probe.data.messages import Message, assistant, user
from nextturn.probe.questions.simulation import PromptRow

PROMPTS: dict[str, Any] = wordings(PROMPTS_FILE)
"""All prompts, by name."""
EXAMPLES: dict[str, list[dict[str, str]]] = wordings(EXAMPLES_FILE)
"""Examples that can precede the prompt of that name: the words that fill the prompt, and the `reply`."""


def still_hidden(hidden: Iterable[str], messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the hidden texts that no message has stated so far."""
    return tuple(value for value in hidden if not any(states(message["content"], value) for message in messages))


# --- The prompts.

_OWN_TAG = re.compile(
    r"<(?=[\s/]{0,4}(?:problem|text|reply|chat|user|assistant|message|end)[\s/]{0,4}>)", re.IGNORECASE
)

Prompt = tuple[Message, ...]


def role_prompt(named: str, /, shots: int = 0, **words: str) -> Prompt:
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
        shown += [user(fill(**asked)), assistant(example["reply"])]
    return (*shown, user(fill(**words)))


def assistant_prompt(messages: Sequence[Message], note: str, **words: str) -> Prompt:
    """Return the chat for the assistant, with a note after the last message that only the assistant sees."""
    *before, last = ({"role": message["role"], "content": message["content"]} for message in messages)
    text = f"{last['content']}\n\n{PROMPTS['notes'][note].format(**words)}"
    return (*before, {**last, "content": text})


def copies_example(named: str, shots: int, text: str, known: str) -> str:
    """Return "copies_example" if a text copies a reply of the examples before a prompt, as small models do now and then, or "".

    Args:
        known: The texts whose numbers may occur.
    """
    shown = (re.sub(r"</?\w+>", "", example["reply"]) for example in EXAMPLES[named][:shots])
    return "copies_example" if any(copies(text, example, known) for example in shown) else ""


def act_prompt(persona: str, act: str, last: str, shots: int = 0, **words: str) -> Prompt:
    """Return the prompt for a user message that follows the assistant's `last` and does what the act says."""

    def fill(persona: str, last: str, **words: str) -> str:
        does = PROMPTS["acts"][act].format(**words)
        return PROMPTS["act"].format(persona=PERSONAS[persona], last=quoted(last), act=quoted(does))

    return _after_examples(act, shots, fill, {"persona": persona, "last": last, **words})


def simulator_prompt(row: PromptRow, persona: str, messages: Sequence[Message]) -> Prompt:
    """Return the prompt for the user's next message, without a prescribed act."""
    hidden = still_hidden(row.hidden, messages)
    clause = row.fact.clause
    what = f"{clause} ({' and '.join(hidden)})" if clause else " and ".join(hidden)
    chat = "\n".join(f"<{message['role']}>\n{quoted(message['content'])}\n</{message['role']}>" for message in messages)
    who = {"persona": PERSONAS[persona], "goal": PROMPTS["goals"][row.wish], "question": quoted(row.problem)}
    held = PROMPTS["held"].format(what=what) if hidden else ""
    return (user(PROMPTS["simulator"].format(**who, chat=chat, held=held)),)


def quoted(text: str) -> str:
    """Return the text with our own tags shown as ‹tag>."""
    return _OWN_TAG.sub("\u2039", text)
