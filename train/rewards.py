"""One sample of a rollout as the rewards see it: what the policy said, and what came after."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from data_builders.dialogue import score
from data_builders.dialogue.prompts import judge_prompt
from data_builders.dialogue.roles import open_roles
from data_builders.dialogue.score import (
    EMPTY,
    LONGEST_ANSWER,
    ROLE_LABEL,
    Reply,
    final_answer,
    from_verdict,
    read_assistant,
    read_judge,
    turn_marks,
)
from data_builders.dialogue.settings import RoleSection
from data_builders.rows import RlRow
from data_builders.text import states
from data_builders.user import Question, marked_answer, questions, read_question
from probe.conversations import Message
from probe.engines.base import item_seed
from probe.errors import EngineError, RecipeError
from probe.grading import asks, load_algebra, same_at_sight, same_by_algebra, sentences, strict_answer
from probe.judges.labels import GENUINE, Case, judge_all
from probe.judges.rules import RulesJudge, repetition
from probe.judges.text import words
from probe.timelimit import TIMEOUT, Pending, Workers
from train.recipe import CustomPart


@dataclass(frozen=True)
class Played:
    """One sample: in `reply` mode a reply with what was simulated after it, in `conversation` mode a conversation.

    Attributes:
        conversations: whole transcripts from the first message; reply mode: one for each look-ahead, conversation mode:
            one. A conversation whose simulator failed is not here, but in `failures`.
        start: messages of the prompt; message `start` is the first trained turn.
        tokens: trained tokens, turn ends included.
        simulated_tokens: for each conversation, the tokens of all assistant turns from `start` on, turn ends included.
        truncated: a trained turn was cut by its limit, or did not end as a turn ends.
        ended: for each conversation "user", "limit" or "truncated".
        failures: for each failed conversation why the simulator gave no user turn.
        user_turns: the policy's own user turn after the last trained turn; empty unless a reward wants it.
    """

    row: RlRow
    conversations: tuple[tuple[Message, ...], ...]
    start: int
    tokens: int
    simulated_tokens: tuple[int, ...]
    truncated: bool
    ended: tuple[str, ...]
    failures: tuple[str, ...] = ()
    user_turns: tuple[str, ...] = ()


# --- A part of a reward: a number, or why there is none. A part that failed is never 0.

NOTHING_PLAYED = "nothing_played"


@dataclass(frozen=True)
class Part:
    """`value` is None where the part could not be had; `reason` then says why: KIND, or "KIND: what was said"."""

    value: float | None
    reason: str = ""


def mean_part(parts: Sequence[Part]) -> Part:
    """The mean of those that have a value; None, with the first reason, where none has."""
    values = [part.value for part in parts if part.value is not None]
    return Part(fmean(values)) if values else Part(None, parts[0].reason if parts else NOTHING_PLAYED)


def nothing_played(played: Played) -> Part:
    """For a sample without any conversation, since its simulator failed each time."""
    return Part(None, ": ".join((NOTHING_PLAYED, *played.failures[:1])))


def kind(reason: str) -> str:
    """A reason without what was said, such as "judge_refused": one of a few, fit to be counted."""
    return reason.partition(":")[0]


# --- Rewards on the assistant's turns: parts, each in a file of its own, and one number put together from them.


# --- Efficiency: fewer assistant tokens for the same result, without a floor to lie on.
#
# `e / (e + tokens)` over all assistant tokens from the first trained turn on: 1 for none, a half at `e`, strictly
# falling for ever. CollabLLM (arXiv 2502.00640, section 4) subtracts min(5e-4 * tokens, 1), which is flat from 2,000 tokens
# on, while its MATH chats average 2,400 to 3,400: most replies were told apart by nothing.


def efficiency(played: Played, efficient_tokens: int) -> Part:
    """The mean over the sample's conversations."""
    if not played.conversations:
        return nothing_played(played)
    return mean_part([Part(score.efficiency(tokens, efficient_tokens)) for tokens in played.simulated_tokens])


# --- Accuracy: is the conversation's final answer right?
#
# 1 or 0 by math-verify, as in CollabLLM (arXiv 2502.00640, section 4: task success on MATH) and in most RL on mathematics.
# The final answer is the last marked one of the policy's own turns (`\boxed{}` or `####`), else what its last reply
# answers, read leniently; a reply that was cut answers nothing by a number on its way. No answer is 0, not None.
#
# Text and numbers are compared at once. What only algebra can tell goes to workers with a time limit, since a policy can
# write expressions that take for ever.

PARTIAL = 0.2
"""The most that steps without the right answer are worth: never more than one sample in five that is right."""
NO_REFERENCE = "no_reference"
_RESULT = re.compile(r"=\s*\\?\$?\s*(-?\d[\d,]*(?:\.\d+)?)(?![\d.]*\s*[-+*/×^])")


class Accuracy:
    """Comparisons of one step; equal pairs of answers are compared once."""

    def __init__(self, workers: Workers, partial_credit: bool) -> None:
        self._workers = workers
        self._partial_credit = partial_credit
        self._pending: dict[tuple[str, str], Pending] = {}

    def begin(self, played: Played) -> Callable[[], Part]:
        """Hands the sample's comparisons in; what is returned waits for them."""
        if not played.row.answer:
            return lambda: Part(None, NO_REFERENCE)
        begun = [
            self._conversation(played, conversation[played.start :], ended == "truncated")
            for conversation, ended in zip(played.conversations, played.ended, strict=True)
        ]
        return lambda: mean_part([wait() for wait in begun]) if begun else nothing_played(played)

    def _conversation(self, played: Played, said: tuple[Message, ...], cut: bool) -> Callable[[], Part]:
        compared = self._compare(final_answer(said, cut), played.row.answer)
        if not self._partial_credit:
            return compared
        credit = PARTIAL * shared_results(played, said)
        return lambda: Part(credit) if (part := compared()).value == 0 else part

    def _compare(self, given: str | None, reference: str) -> Callable[[], Part]:
        if given is None or len(given) > LONGEST_ANSWER:
            right = given == reference
            return lambda: Part(float(right))
        at_sight = same_at_sight(given, reference)
        if at_sight is not None:
            return lambda: Part(float(at_sight))
        pair = (given, reference)
        if pair not in self._pending:
            self._pending[pair] = self._workers.start(same_by_algebra, given, reference)
        pending = self._pending[pair]

        def finish() -> Part:
            done = pending.wait()
            return Part(None, done.failure) if done.failure else Part(float(done.value))

        return finish


def shared_results(played: Played, said: tuple[Message, ...]) -> float:
    """How far the policy's results agree with those of the reference solution on its way, from 0 to 1.

    A result is a number behind "="; the answer itself does not count. Over the larger of both numbers of results, so
    that writing down many is worth nothing.
    """
    wanted = _results(played.row.solution) - {played.row.answer.replace(",", "")}
    written = set[str]().union(*(_results(message["content"]) for message in said if message["role"] == "assistant"))
    return len(wanted & written) / max(len(wanted), len(written), 1)


def _results(text: str) -> set[str]:
    return {number.replace(",", "") for number in _RESULT.findall(text)}


# --- Interactivity by rule: does the policy ask about what is missing, and only then, and does it listen?
#
# Four marks, each from 0 to 1. *Need* counts as much as the three others together: as one of four, it left a guess where
# something is withheld at 0.75, and there SmolLM2 stayed at that in 13 steps of GRPO:
#
# - *need*, of the first trained reply. Where something is withheld: it asks, and its question names that; a question for
#   whatever may be missing is worth a half, any other question, a guess and a reply without a question nothing. Where
#   everything is given: it answers; asking instead is worth nothing, an answer that closes with a question a half, and so
#   is a step with its result and a check whether the user follows. This is what tells interactivity from asking about
#   everything, which is learned quickly where it pays (CollabLLM's own over-asking: 90.4 -> 72.3 direct answers on clear
#   questions, arXiv 2502.00640).
# - *takes up*, *one question*, *fresh*, of every turn from the first trained one on: it takes up a word or number of the
#   user's message, asks one question at the most, and repeats no earlier turn. As in the dialogue builder.
#
# Questions are read as the scripted user reads them, so what it would answer is what is rewarded. The rules know what is
# withheld only where the row says so, as rows of scripted conversations do. Where nobody can know (a model plays the user
# and words the problem anew), or where a question is the help that was asked for (a hint), *need* does not count.

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


# --- Format: does every turn look like a turn of an assistant, and is the answer marked once?
#
# The mean of three marks over the policy's turns, and 0 for an empty turn:
#
# - *one answer*, of the conversation: its answering turn marks an answer (`\boxed{}` or `####`) exactly once. A
#   conversation that marks none gets 0, but where its last turn asks, or its row wants none yet (a hint, something
#   withheld), the mark does not count.
# - *own voice*: no role label, no control token, no problem or message of the user written by the assistant.
# - *no loop*: the last hundred words do not say the same over and over.

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
    return mean_part([Part(_form_marked(played, conversation)) for conversation in played.conversations])


def _form_marked(played: Played, conversation: tuple[Message, ...]) -> float:
    turns = [message["content"] for message in conversation[played.start :] if message["role"] == "assistant"]
    marks = [fmean(marks) for marks in zip(*(_turn(text) for text in turns), strict=True)]
    answered = _one_answer(played, turns)
    return fmean(marks if answered is None else [answered, *marks])


def _turn(text: str) -> tuple[bool, bool]:
    slip = read_assistant(Reply(text)).unusable
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


# --- Follow-up, exploratory and off by default: does the policy's own next user turn read like a person's?
#
# After the trained turn the policy writes a user turn itself (the probe of arXiv 2604.02315); the part is the share of those
# that the rules judge labels genuine. The user turn carries no loss: what is rewarded is an answer after which a genuine
# one comes. It is what the probe reports, so a run that uses it is no longer measured by it, and it is easily earned
# without being deserved: one network writes the answer and its follow-up, the judge knows words and not sense, and answers
# that leave something out or ask about everything draw genuine turns. Watch accuracy and asking beside it.

NO_USER_TURN = "no_user_turn"


def followup(played: Played) -> Part:
    """The share of genuine turns among those that the judge could label."""
    if not played.conversations:
        return nothing_played(played)
    if not played.user_turns:
        return Part(None, NO_USER_TURN)
    before = _before(played)
    verdicts = judge_all(RulesJudge(), [Case(before, turn) for turn in played.user_turns])
    labels = [verdict.label for verdict in verdicts if verdict.label is not None]
    if not labels:
        return Part(None, f"unscored: {verdicts[0].unscored}")
    return Part(sum(label == GENUINE for label in labels) / len(labels))


def _before(played: Played) -> tuple[Message, ...]:
    """The chat up to the last trained turn, after which the user turns were written."""
    conversation = played.conversations[0]
    replies = [place for place, message in enumerate(conversation) if message["role"] == "assistant"]
    # Where all its turns were trained this is a whole conversation, else one reply and what was simulated after it.
    whole = played.tokens == played.simulated_tokens[0]
    return conversation[: (replies[-1] if whole else played.start) + 1]


# --- Interactivity by judge: a model reads whole conversations and gives each a verdict from 1 to 5, taken as 0 to 1.
#
# Prompt and reading are those of the dialogue builder, so that data and reward mean the same by it. All verdicts of a step
# are asked for at once; a rate limit is waited out and a failing request tried again as everywhere (probe.servers). Equal
# conversations are judged once: the judge's own noise would otherwise tell them apart.

TRIES = 3
"""A verdict that cannot be read is asked for again, each time with another seed."""
UNREACHABLE = "judge_unreachable"
Conversation = tuple[Message, ...]


class InteractivityJudge:
    """Asks servers; nothing is sent before the first verdict is wanted.

    Raises:
        BadInput: the server's section cannot be used.
    """

    def __init__(self, section: RoleSection, seed: int, limit_s: float) -> None:
        self._seed, self._limit_s = seed, limit_s
        self._roles = open_roles({"judge": section}, seed)

    def score(self, played: Sequence[Played]) -> list[Part]:
        """One part for each sample: the mean over its conversations that have a verdict."""
        verdicts = self._verdicts([conversation for one in played for conversation in one.conversations])
        return [
            mean_part([verdicts[_key(conversation)] for conversation in one.conversations])
            if one.conversations
            else nothing_played(one)
            for one in played
        ]

    def close(self) -> None:
        self._roles.close()

    def _verdicts(self, conversations: Sequence[Conversation]) -> dict[tuple[str, ...], Part]:
        """By text; whatever breaks the asking off, those that came are kept."""
        asked = {_key(conversation): conversation for conversation in conversations}
        verdicts: dict[tuple[str, ...], Part] = {}

        async def judge(key: tuple[str, ...], conversation: Conversation) -> None:
            try:
                async with asyncio.timeout(self._limit_s):
                    answer = await self._roles["judge"].ask(
                        judge_prompt(conversation),
                        read_judge,
                        lambda attempt: item_seed(self._seed, "judge", attempt, *key),
                        TRIES,
                    )
            except TimeoutError:
                verdicts[key] = Part(None, f"judge_{TIMEOUT}")
                return
            if answer.parsed is None or answer.parsed.verdict is None:
                verdicts[key] = Part(None, answer.missing + (f": {answer.detail}" if answer.detail else ""))
            else:
                verdicts[key] = Part(from_verdict(answer.parsed.verdict))

        missing = ""
        try:
            self._roles.run((judge(*one) for one in asked.items()), at_once=max(1, len(asked)))
        except EngineError as error:  # not raised: the other processes would wait for this one for ever
            missing = f"{UNREACHABLE}: {error}"
        return {key: verdicts.get(key) or Part(None, missing) for key in asked}


def _key(conversation: Conversation) -> tuple[str, ...]:
    return tuple(text for message in conversation for text in (message["role"], message["content"]))


# --- Parts of one's own: functions of the user's, called in the workers, so that a slow or broken one holds up nobody.

NOT_APPLICABLE = "not_applicable"
"""The function itself said None."""


def begin_custom(part: CustomPart, played: Played, workers: Workers) -> Callable[[], Part]:
    """Hands the call in; what is returned waits for it."""
    pending = workers.start(_call, part.function, played)

    def finish() -> Part:
        done = pending.wait()
        if done.failure:
            return Part(None, done.failure)
        return Part(None, NOT_APPLICABLE) if done.value is None else Part(done.value)

    return finish


def check_custom(parts: dict[str, CustomPart], workers: Workers) -> None:
    """Raises RecipeError where a function cannot be loaded in a worker."""
    for name, part in parts.items():
        done = workers.start(_loads, part.function).wait()
        if done.failure:
            raise RecipeError(f"reward.custom.{name}.function: {part.function} cannot be loaded ({done.failure})")


def prepare_worker(functions: Sequence[str]) -> None:
    """Loads what calls will need, so that no call's time goes into it."""
    load_algebra()
    for function in functions:
        with contextlib.suppress(Exception):  # a call, and before any the check, says what is wrong with it
            _resolve(function)


def _resolve(name: str) -> Callable[[Played], float | None]:
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    found = getattr(importlib.import_module(module), function)
    if not callable(found):
        raise TypeError(f"{name} is no function")
    return found


def _loads(name: str) -> None:
    _resolve(name)


def _call(name: str, played: Played) -> float | None:
    given = _resolve(name)(played)
    if given is None:
        return None
    if not isinstance(given, (int, float)) or not math.isfinite(given):
        raise ValueError(f"gave {given!r}, wanted a finite number or None")
    return float(given)
