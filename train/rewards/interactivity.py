"""Interactivity by rule: does the policy ask about what is missing, and only then, and does it listen?

Four marks, each from 0 to 1. *Need* counts as much as the three others together: as one of four, it left a guess where
something is withheld at 0.75, and there SmolLM2 stayed at that in 13 steps of GRPO:

- *need*, of the first trained reply. Where something is withheld: it asks, and its question names that; a question for
  whatever may be missing is worth a half, any other question, a guess and a reply without a question nothing. Where
  everything is given: it answers; asking instead is worth nothing, an answer that closes with a question a half, and so
  is a step with its result and a check whether the user follows. This is what tells interactivity from asking about
  everything, which is learned quickly where it pays (CollabLLM's own over-asking: 90.4 -> 72.3 direct answers on clear
  questions, arXiv 2502.00640).
- *takes up*, *one question*, *fresh*, of every turn from the first trained one on: it takes up a word or number of the
  user's message, asks one question at the most, and repeats no earlier turn. As in the dialogue builder.

Questions are read as the scripted user reads them, so what it would answer is what is rewarded. The rules know what is
withheld only where the row says so, as rows of scripted conversations do. Where nobody can know (a model plays the user
and words the problem anew), or where a question is the help that was asked for (a hint), *need* does not count.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

from data_builders.asked import Question, marked_answer, questions, read_question
from data_builders.derive.values import states
from data_builders.dialogue.scoring import turn_marks
from data_builders.rl import RlRow
from probe.answers import asks, sentences
from probe.sets import Message
from train.played import Played
from train.rewards.part import Part, mean_part, nothing_played

HALF = 0.5
OPEN_KINDS = frozenset({"hint", "guided", "withheld"})


def interactivity(played: Played) -> Part:
    """The mean over the sample's conversations."""
    if not played.conversations:
        return nothing_played(played)
    return mean_part([Part(_marked(played, conversation)) for conversation in played.conversations])


def withholds(row: RlRow) -> bool:
    """Whether something that the problem needs is still to be said, or settled, at this point of the chat."""
    return bool(row.hidden or row.clause or row.thing) or opens_unclear(row)


def opens_unclear(row: RlRow) -> bool:
    """Whether the chat opens with no more than a topic, or with two values for one given."""
    return row.kind in ("vague", "conflict") and row.turn == 0


def need(row: RlRow, reply: str) -> float | None:
    """The first mark; None where the row cannot tell whether to ask."""
    if withholds(row):
        return _asked_for(row, reply)
    if row.kind in OPEN_KINDS:
        return None
    question = Question((), _said(row))
    if asks(reply):
        checks = any(read_question(one, question).about == "following" for one in questions(reply))
        return HALF if checks and "=" in reply else 0.0
    last = sentences(reply)[-1:]
    return HALF if last and last[0].endswith("?") else 1.0


def _asked_for(row: RlRow, reply: str) -> float:
    if marked_answer(reply) is not None:
        return 0.0
    asked = questions(reply)
    if opens_unclear(row) and (row.kind == "vague" or not _missing(row)):  # any question gets the chat further
        return float(bool(asked))
    parts = sentences(reply)
    # "I mean the price of a pen. Do you see it?"
    asked += [f"{before} {one}" for before, one in pairwise(parts) if one.endswith("?")]
    if row.kind == "unsolvable" and row.turn > 0:  # the user has said not to know: what is wanted now is to say why not
        asked.append(reply)
    if row.kind == "conflict" and asked:  # both values stand there; the question is which of them
        asked.append(reply)
    question = Question(_missing(row) or _holding(row), _said(row), named=bool(_missing(row)))
    about = {read_question(one, question).about for one in asked}
    return 1.0 if "withheld" in about else HALF if "anything" in about else 0.0


def _missing(row: RlRow) -> tuple[str, ...]:
    """What is withheld, by name."""
    return tuple(text for text in (row.clause, row.thing) if text)


def _holding(row: RlRow) -> tuple[str, ...]:
    """The sentences of the problem that state what is withheld, where it has no name."""
    return tuple(one for one in sentences(row.problem) if any(states(one, value) for value in row.hidden))


def _said(row: RlRow) -> tuple[str, ...]:
    return tuple(message["content"] for message in row.prompt if message["role"] == "user")


def _marked(played: Played, conversation: tuple[Message, ...]) -> float:
    turns = [
        turn_marks(conversation, place)
        for place in range(played.start, len(conversation))
        if conversation[place]["role"] == "assistant"
    ]
    marks = [fmean(marks) for marks in zip(*turns, strict=True)]
    first = need(played.row, conversation[played.start]["content"])
    listens = fmean(marks)
    return listens if first is None else (first + listens) / 2
