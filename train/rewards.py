"""The parts of a reward, one after another: what each pays, why, and how it can be had without being earned.

Each part gives a number from 0 to 1 for a sample (`asking` from -1), or None with the reason why there is none; a part that
failed is never 0.
The last section puts them together into one number for each sample, or None. README.md shows them side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from nextturn.data_builders.dialogue.prompts import judge_prompt
from nextturn.data_builders.dialogue.replies import (
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
from nextturn.data_builders.dialogue.replies import efficiency as token_efficiency
from nextturn.data_builders.dialogue.roles import Roles
from nextturn.data_builders.recipe import RoleSection
from nextturn.data_builders.rows import RlRow
from nextturn.data_builders.user import marked_answer, names_of_withheld, questions, read_question, tells_result
from nextturn.probe.conversations import Message
from nextturn.probe.engines.base import item_seed
from nextturn.probe.errors import EngineError, RecipeError
from nextturn.probe.grading import (
    asks,
    count_marks,
    load_algebra,
    same_at_sight,
    same_by_algebra,
    sentences,
    strict_answer,
)
from nextturn.probe.judges.rules import repetition
from nextturn.probe.text import words
from nextturn.probe.timelimit import TIMEOUT, Pending, Workers
from nextturn.train.recipe import CustomPart, RewardSection

Conversation = tuple[Message, ...]


@dataclass(frozen=True)
class Sample:
    """One sample of a rollout as the rewards see it, custom functions included.

    In `reply` mode it is one reply with what was simulated after it, in `conversation` mode a whole conversation.

    Attributes:
        conversations: whole transcripts from the first message; reply mode: one for each look-ahead, conversation mode:
            one. A conversation whose simulator failed is not here, but in `failures`.
        start: messages of the prompt; message `start` is the first trained turn.
        tokens: trained tokens, turn ends included.
        simulated_tokens: for each conversation, the tokens of all assistant turns from `start` on, turn ends included.
        truncated: a trained turn was cut by its limit, or did not end as a turn ends.
        ended: for each conversation "user", "limit" or "truncated".
        failures: for each failed conversation why the simulator gave no user turn.
    """

    row: RlRow
    conversations: tuple[Conversation, ...]
    start: int
    tokens: int
    simulated_tokens: tuple[int, ...]
    truncated: bool
    ended: tuple[str, ...]
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """`value` is None where the part could not be had; `reason` then says why: KIND, or "KIND: what was said"."""

    value: float | None
    reason: str = ""


NOTHING_PLAYED = "nothing_played"


def mean_part(parts: Sequence[Part], failures: Sequence[str] = ()) -> Part:
    """The mean over a sample's conversations that have a value; None, with the first reason, where none has.

    Args:
        failures: why conversations are missing, for a sample that has none.
    """
    values = [part.value for part in parts if part.value is not None]
    if values:
        return Part(fmean(values))
    return Part(None, parts[0].reason if parts else ": ".join((NOTHING_PLAYED, *failures[:1])))


def reason_kind(reason: str) -> str:
    """A reason without what was said, such as "judge_refused": one of a few, fit to be counted."""
    return reason.partition(":")[0]


def _finished(call: Pending) -> Part:
    """Waits for a call in a worker."""
    done = call.wait()
    if done.failure:
        return Part(None, done.failure)
    return Part(None, NOT_APPLICABLE) if done.value is None else Part(float(done.value))


# --- Accuracy: is the conversation's final answer right?
#
# 1 or 0 by math-verify, as in CollabLLM (arXiv 2502.00640, section 4: task success on MATH) and in most RL on mathematics.
# The final answer is the last marked one of the policy's own turns (`\boxed{}` or `####`), else what its last reply
# answers, read leniently; a reply that was cut answers nothing by a number on its way. No answer is 0, not None, and so is
# one that was guessed (`guessed`, below).
#
# Text and numbers are compared at once. What only algebra can tell goes to workers with a time limit, since a policy can
# write expressions that take for ever.

NO_REFERENCE = "no_reference"


class Accuracy:
    """The comparisons of one step: `begin` hands them all in, `finish` waits. Equal pairs are compared once."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._calls: dict[tuple[str, str], Pending] = {}

    def begin(self, sample: Sample) -> list[Pending | Part]:
        """One comparison for each of the sample's conversations."""
        reference = sample.row.answer
        if not reference:
            return [Part(None, NO_REFERENCE)]
        begun: list[Pending | Part] = []
        for conversation, ended in zip(sample.conversations, sample.ended, strict=True):
            given = final_answer(conversation[sample.start :], cut=ended == "truncated")
            if given is None or len(given) > LONGEST_ANSWER:
                begun.append(Part(float(given == reference)))
            elif (same := same_at_sight(given, reference)) is not None:
                begun.append(Part(float(same)))
            else:
                pair = (given, reference)
                if pair not in self._calls:
                    self._calls[pair] = self._workers.start(same_by_algebra, *pair)
                begun.append(self._calls[pair])
        return begun

    def finish(self, sample: Sample, begun: Sequence[Pending | Part]) -> Part:
        parts = [one if isinstance(one, Part) else _finished(one) for one in begun]
        if guessed(sample) and sample.row.answer:
            return Part(0.0)
        return mean_part(parts, sample.failures)


# --- Asking: does the first trained reply ask for what is missing, and only then?
#
# From -1 to 1. Where something is withheld: 1 for asking for it by name, a half for asking whether anything is missing, 0 for
# any other question, and -1 for a guess, a question with a guess behind it, and giving up. Where everything is given: 1 for an
# answer, a half for one that closes with a question, 0 for a first reply with neither a question nor a number ("That's it.", which
# a run that was paid for asking alone came to), and -1 for asking instead. Where a hint is wanted and nothing more, the
# result gets -1, marked or not. So asking where nothing is missing costs what guessing costs where something is, as in GRIL (arXiv
# 2604.19656: a false alarm is -1, detection pays and pays less the later it comes), and neither can be made good by the other.
#
# A right answer that was guessed pays nothing either: `Accuracy` counts it as wrong. While it paid in full and asking was a
# part of interactivity, a guess learnt by heart earned more than asking and then solving (1.25 against about 0.99 of 1.6), and
# SmolLM2 learnt twenty prompts by heart.
#
# Questions are read as the scripted user reads them, so what it would answer is what is rewarded, and costs the same where
# nothing is missing: read more narrowly there, a request in every reply would be paid on both kinds of rows.
#
# The rules know what is withheld only where the row says so. Where nobody can know (a model plays the user and words the
# problem anew), or where a question may be the help that was asked for, the part is not counted: it has no value, and needs
# none.

HALF = 0.5
HINT = "hint"
OPEN_KINDS = frozenset({HINT, "withheld"})
UNDECIDED = "undecided"
"""The row cannot tell whether to ask. No failure: all samples of its group are rewarded without this part."""


def asking(sample: Sample) -> Part:
    """One value for the sample, since its look-aheads share the first trained reply."""
    if not sample.conversations:
        return mean_part((), sample.failures)
    value = asked_rightly(sample.row, sample.conversations[0][sample.start]["content"])
    return Part(value, UNDECIDED if value is None else "")


def guessed(sample: Sample) -> bool:
    """Whether the sample went past what it had to do first, so that a right answer is no merit: it did not ask for what is
    withheld, or told the result where a hint was wanted."""
    if not sample.conversations:
        return False
    value = asked_rightly(sample.row, sample.conversations[0][sample.start]["content"])
    return value is not None and value <= 0 and (sample.row.withholds or _wants_hint(sample.row))


def _wants_hint(row: RlRow) -> bool:
    return row.kind == HINT and row.turn == 0  # later on the user tries, and is told whether that is right


def asks_instead(row: RlRow, reply: str) -> bool:
    """Whether a reply to a row that lacks nothing asks instead of answering: it marks no answer, and requests something, or
    asks what the scripted user would answer and not only nod at ("Does that help?")."""
    if asks(reply):
        return True
    if marked_answer(reply) is not None:
        return False
    said = _user_messages(row)
    return any(not one.endswith("?") or read_question(one, (), said)[0] != "following" for one in questions(reply))


def _user_messages(row: RlRow) -> tuple[str, ...]:
    return tuple(message["content"] for message in row.prompt if message["role"] == "user")


def asked_rightly(row: RlRow, reply: str) -> float | None:
    """The value of `asking` for one first reply; None where the row cannot tell whether to ask."""
    if not row.withholds:
        if _wants_hint(row):
            return -1.0 if tells_result(row, reply) else 1.0
        if row.kind in OPEN_KINDS:
            return None
        if asks_instead(row, reply):
            return -1.0
        if not row.turn and not re.search(r"\d|\\boxed", reply):
            return 0.0
        follows_up = marked_answer(reply) is None and questions(reply)
        last = sentences(reply)[-1:]
        return HALF if follows_up or (last and last[0].endswith("?")) else 1.0

    if marked_answer(reply) is not None:
        return -1.0
    asked = questions(reply)
    gives_up = not any(one.endswith("?") for one in asked)
    named = names_of_withheld(row)
    # "I mean the price of a pen. Do you see it?"
    asked += [f"{before} {one}" for before, one in pairwise(sentences(reply)) if one.endswith("?")]
    # What is withheld has a name, or is read off the sentences of the problem that state it.
    withheld = named or row.telling
    said = _user_messages(row)
    about = {read_question(one, withheld, said, named=bool(named), ask=row.ask)[0] for one in asked}
    if "withheld" in about or "anything" in about:
        return 1.0 if "withheld" in about else HALF
    return -1.0 if gives_up else 0.0


# --- Interactivity by rule: does the policy listen?
#
# Three marks, each from 0 to 1, of every turn from the first trained one on, as in the dialogue builder: it *takes up* a word
# or number of the user's message, asks *one question* at the most, and is *fresh*, repeating no earlier turn.


def interactivity(sample: Sample) -> Part:
    parts = []
    for conversation in sample.conversations:
        turns = [
            turn_marks(conversation, place)
            for place in range(sample.start, len(conversation))
            if conversation[place]["role"] == "assistant"
        ]
        parts.append(Part(fmean(fmean(marks) for marks in zip(*turns, strict=True))))
    return mean_part(parts, sample.failures)


# --- Interactivity by judge: a model reads whole conversations and gives each a verdict from 1 to 5, taken as 0 to 1.
#
# Its known hack is to please the judge: replies that end in a polite question. `watch/generic_ending` shows it.
#
# Prompt and reading are those of the dialogue builder, so that data and reward mean the same by it. All verdicts of a step
# are asked for at once; a rate limit is waited out and a failing request tried again as everywhere (probe.client). Equal
# conversations are judged once: the judge's own noise would otherwise tell them apart.

TRIES = 3
"""A verdict that cannot be read is asked for again, each time with another seed."""
UNREACHABLE = "judge_unreachable"


class InteractivityJudge:
    """Asks servers; nothing is sent before the first verdict is wanted.

    Raises:
        BadInput: the server's section cannot be used.
    """

    def __init__(self, section: RoleSection, seed: int, limit_s: float) -> None:
        self._seed, self._limit_s = seed, limit_s
        self._roles = Roles({"judge": section}, seed, "reward")

    def score(self, samples: Sequence[Sample]) -> list[Part]:
        """One part for each sample: the mean over its conversations that have a verdict. Whatever breaks the asking off,
        those that came are kept."""
        asked = {_texts(conversation): conversation for one in samples for conversation in one.conversations}
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

        missing = Part(None)
        try:
            self._roles.run((judge(*one) for one in asked.items()), at_once=max(1, len(asked)))
        except EngineError as error:  # not raised: the other processes would wait for this one for ever
            missing = Part(None, f"{UNREACHABLE}: {error}")
        return [
            mean_part([verdicts.get(_texts(each), missing) for each in one.conversations], one.failures)
            for one in samples
        ]

    def close(self) -> None:
        self._roles.close()


def _texts(conversation: Conversation) -> tuple[str, ...]:
    return tuple(text for message in conversation for text in (message["role"], message["content"]))


# --- Efficiency: fewer assistant tokens for the same result, without a floor to lie on.
#
# `e / (e + tokens)` over all assistant tokens from the first trained turn on: 1 for none, a half at `e`, strictly
# falling for ever. CollabLLM (arXiv 2502.00640, section 4) subtracts min(5e-4 * tokens, 1), which is flat from 2,000 tokens
# on, while its MATH chats average 2,400 to 3,400: most replies were told apart by nothing.


def efficiency(sample: Sample, efficient_tokens: int) -> Part:
    parts = [Part(token_efficiency(tokens, efficient_tokens)) for tokens in sample.simulated_tokens]
    return mean_part(parts, sample.failures)


# --- Format: does every turn look like a turn of an assistant, and is the answer marked once?
#
# The mean of three marks over the policy's turns, and 0 for an empty turn:
#
# - *one answer*, of the conversation: its answering turn marks an answer (`\boxed{}` or `####`) exactly once. A
#   conversation that marks none gets 0, but where its last turn asks, or its row wants none yet (a hint, something
#   withheld), the mark does not count.
# - *own voice*: no role label, no control token, no problem or message of the user written by the assistant.
# - *no loop*: the last hundred words do not say the same over and over.

# A base model that has answered goes on with the next exercise of the book.
_NEXT_PROBLEM = re.compile(
    r"^\W{0,4}(?:question|problem|exercise|q)\s{0,2}\d{0,3}\s{0,2}[:.]", re.IGNORECASE | re.MULTILINE
)
# Of 19,973 reference solutions of MATH and GSM8K none repeats more than 0.65 of its last hundred words.
_LOOP, _TAIL_WORDS = 0.65, 100


def form(sample: Sample) -> Part:
    parts = []
    for conversation in sample.conversations:
        turns = [message["content"] for message in conversation[sample.start :] if message["role"] == "assistant"]
        own_voice, no_loop = [], []
        for text in turns:
            unusable = read_assistant(Reply(text)).unusable
            own_voice.append(unusable not in (EMPTY, ROLE_LABEL) and not _NEXT_PROBLEM.search(text))
            no_loop.append(unusable != EMPTY and not loops(text))
        marks = [fmean(own_voice), fmean(no_loop)]

        answering = next((text for text in reversed(turns) if strict_answer(text) is not None), None)
        if answering is not None:
            marks.append(float(count_marks(answering) == 1))
        elif not (asks(turns[-1]) or sample.row.withholds or sample.row.kind in OPEN_KINDS):
            marks.append(0.0)
        parts.append(Part(fmean(marks)))
    return mean_part(parts, sample.failures)


def loops(text: str) -> bool:
    """Whether a reply ends in runaway repetition."""
    return repetition(words(text)[-_TAIL_WORDS:]) > _LOOP


# --- Custom: functions of the user's, called in the workers, so that a slow or broken one holds up nobody.

NOT_APPLICABLE = "not_applicable"
"""The function itself said None."""


def check_custom(parts: Mapping[str, CustomPart], workers: Workers) -> None:
    """Raises RecipeError where a function cannot be loaded in a worker."""
    for name, part in parts.items():
        done = workers.start(_try_loading, part.function).wait()
        if done.failure:
            raise RecipeError(f"reward.custom.{name}.function: {part.function} cannot be loaded ({done.failure})")


# What follows runs in the workers.


def call_custom(name: str, sample: Sample) -> float | None:
    given = _load(name)(sample)
    if given is None:
        return None
    if not isinstance(given, (int, float)) or not math.isfinite(given):
        raise ValueError(f"gave {given!r}, wanted a finite number or None")
    return float(given)


def prepare_worker(functions: Sequence[str]) -> None:
    """Loads what calls will need, so that no call's time goes into it."""
    load_algebra()
    for function in functions:
        with contextlib.suppress(Exception):  # a call, and before any the check, says what is wrong with it
            _load(function)


def _try_loading(name: str) -> None:
    """Gives nothing back: a function of the user's need not survive the way between processes."""
    _load(name)


def _load(name: str) -> Callable[[Sample], float | None]:
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    found = getattr(importlib.import_module(module), function)
    if not callable(found):
        raise TypeError(f"{name} is no function")
    return found


# --- All parts put together into one number for each sample.
#
# One number, since trl sums several reward functions and counts one that is None as 0 as long as another is there, so
# that a right answer whose judge timed out would be punished. A sample without a part that it needs has no reward at
# all, and its group's mean is taken without it.
#
# A sample that was cut at its limit before it gave an answer earns nothing. Its text alone would earn more than a complete
# wrong reply: where nothing is withheld, a solution that never ends counts as an answer for `asking`.


def cut_off(sample: Sample) -> bool:
    """Return True if a trained turn was cut at its limit and no conversation of the sample has a final answer."""
    answers = (final_answer(one[sample.start :], cut=True) for one in sample.conversations)
    return sample.truncated and not any(answers)


@dataclass(frozen=True)
class Scored:
    """The reward of one sample.

    Attributes:
        value: None: the sample is to be left out.
        parts: every part that was measured, also those without weight.
        reasons: why a part is None, KIND or "KIND: what was said".
    """

    value: float | None
    parts: dict[str, float | None]
    reasons: dict[str, str]


class Rewards:
    """Scores samples until it is closed.

    Raises:
        RecipeError: a custom function cannot be loaded.
        BadInput: the judge's server cannot be used.
    """

    def __init__(self, section: RewardSection, seed: int) -> None:
        self._section = section
        functions = [part.function for part in section.custom.values()]
        self._workers = Workers(section.workers, section.timeout_s, functools.partial(prepare_worker, functions))
        try:
            check_custom(section.custom, self._workers)
        except RecipeError:
            self._workers.close()
            raise
        self._judge: InteractivityJudge | None = None
        if section.judge is not None and section.weights.interactivity > 0:
            self._judge = InteractivityJudge(section.judge, seed, section.judge_timeout_s)

    def score(self, samples: Sequence[Sample]) -> list[Scored]:
        """One for each sample, in order. Waits for the slowest call, and for none longer than its limit."""
        section = self._section
        # All that takes time is begun first: the workers are busy while the judge's servers are.
        accuracy = Accuracy(self._workers)
        compared = [accuracy.begin(sample) for sample in samples]
        custom = [
            {name: self._workers.start(call_custom, part.function, sample) for name, part in section.custom.items()}
            for sample in samples
        ]
        interacting = self._judge.score(samples) if self._judge else [interactivity(sample) for sample in samples]
        scored = []
        for place, sample in enumerate(samples):
            parts = {
                "accuracy": accuracy.finish(sample, compared[place]),
                "asking": asking(sample),
                "interactivity": interacting[place],
                "efficiency": efficiency(sample, section.efficient_tokens),
                "format": form(sample),
            }
            parts |= {name: _finished(call) for name, call in custom[place].items()}
            if cut_off(sample):
                parts = {name: replace(part, value=part.value and min(part.value, 0.0)) for name, part in parts.items()}
            scored.append(compose(parts, section))
        return scored

    def close(self) -> None:
        """Ends the workers, and what is asked of the judge."""
        self._workers.close()
        if self._judge is not None:
            self._judge.close()


def compose(parts: Mapping[str, Part], section: RewardSection) -> Scored:
    """The weighted mean of the parts that have a weight and a value; no value where a required part has none."""
    values = {name: part.value for name, part in parts.items()}
    reasons = {name: part.reason for name, part in parts.items() if part.value is None}
    counted = {
        name: (weight, value)
        for name, weight in section.weight_of.items()
        if weight and (value := values.get(name)) is not None
    }
    missing = (name for name in section.required_parts if name not in counted)
    if not counted or any(reasons.get(name) != UNDECIDED for name in missing):
        return Scored(None, values, reasons)
    total = sum(weight for weight, _ in counted.values())
    return Scored(sum(weight * value for weight, value in counted.values()) / total, values, reasons)
