r"""Format: does every turn look like a turn of an assistant, and is the answer marked once?

The mean of three marks over the policy's turns, and 0 for an empty turn:

- *one answer*, of the conversation: its answering turn marks an answer (`\boxed{}` or `####`) exactly once. A
  conversation that marks none gets 0, but where its last turn asks, or its row wants none yet (a hint, something
  withheld), the mark does not count.
- *own voice*: no role label, no control token, no problem or message of the user written by the assistant.
- *no loop*: the last hundred words do not say the same over and over.
"""

from __future__ import annotations

import re
from statistics import fmean

from data_builders.dialogue.replies import EMPTY, ROLE_LABEL, read_assistant
from data_builders.dialogue.speaker import Said
from probe.answers import asks, strict_answer
from probe.judges.signals import repetition
from probe.judges.words import words
from probe.sets import Message
from train.played import Played
from train.rewards.interactivity import OPEN_KINDS, withholds
from train.rewards.part import Part, mean_part, nothing_played

_MARK = re.compile(r"\\(?:boxed|fbox)\b|####")
# A base model that has answered goes on with the next exercise of the book.
_NEXT_PROBLEM = re.compile(
    r"^\W{0,4}(?:question|problem|exercise|q)\s{0,2}\d{0,3}\s{0,2}[:.]", re.IGNORECASE | re.MULTILINE
)
# Of 19,973 reference solutions of MATH and GSM8K none repeats more than 0.65 of its last hundred words.
_LOOP, _TAIL_WORDS = 0.65, 100


def form(played: Played) -> Part:
    """The mean over the sample's conversations."""
    if not played.conversations:
        return nothing_played(played)
    return mean_part([Part(_marked(played, conversation)) for conversation in played.conversations])


def _marked(played: Played, conversation: tuple[Message, ...]) -> float:
    turns = [message["content"] for message in conversation[played.start :] if message["role"] == "assistant"]
    marks = [fmean(marks) for marks in zip(*(_turn(text) for text in turns), strict=True)]
    answered = _one_answer(played, turns)
    return fmean(marks if answered is None else [answered, *marks])


def _turn(text: str) -> tuple[bool, bool]:
    slip = read_assistant(Said(text)).slip
    if slip == EMPTY:
        return False, False
    return slip != ROLE_LABEL and not _NEXT_PROBLEM.search(text), not loops(text)


def _one_answer(played: Played, turns: list[str]) -> float | None:
    answering = next((text for text in reversed(turns) if strict_answer(text) is not None), None)
    if answering is not None:
        return float(len(_MARK.findall(answering)) == 1)
    none_wanted = asks(turns[-1]) or withholds(played.row) or played.row.kind in OPEN_KINDS
    return None if none_wanted else 0.0


def loops(text: str) -> bool:
    """Whether a reply ends in runaway repetition."""
    return repetition(words(text)[-_TAIL_WORDS:]) > _LOOP
