"""The parts of a reward, one after another: what each rewards, why, and how it can be gamed.

Each part scores a sample from 0 to 1 (`asking` from -1), or None with the reason; a part that failed is never 0. The last
section combines the parts to one number for each sample, or None.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from nextturn.data_builders.dialogue.replies import (
    CUT,
    EMPTY,
    ROLE_LABEL,
    Parsed,
    read_assistant,
    read_reply,
    same_words,
)
from nextturn.data_builders.user import LONGEST_ANSWER, marked_answer, questions, read_question, states_result
from nextturn.probe.command.errors import RecipeError
from nextturn.probe.command.recipe import load_named
from nextturn.probe.command.sections import RoleSection
from nextturn.probe.command.timelimit import TIMEOUT, Done, Workers
from nextturn.probe.data.messages import Message, said_by, user
from nextturn.probe.engines.ask import Answer, Ask, ChatModel, Reply, ask, open_model
from nextturn.probe.engines.base import item_seed
from nextturn.probe.judges.llm import after_verdict
from nextturn.probe.judges.llm import conversation as shown_conversation
from nextturn.probe.judges.rules import repetition
from nextturn.probe.questions.simulation import PromptRow
from nextturn.probe.text.equality import compare_answers
from nextturn.probe.text.grading import asks, count_marks, lenient_answer, outcome, strict_answer
from nextturn.probe.text.words import content_stems, rough_sentences, words
from nextturn.train.sections import RewardSection

Messages = tuple[Message, ...]


@dataclass(frozen=True)
class Sample:
    """A sample of a rollout as the rewards see it, custom functions included.

    In `reply` mode it is one reply with its look-aheads, in `conversation` mode a whole conversation.

    Attributes:
        conversations: Transcripts from the first message on: one for each look-ahead in reply mode, else one. A conversation
            whose simulator failed is not here but in `failures`.
        start: Number of messages of the prompt; message `start` is the first trained turn.
        tokens: Trained tokens, turn ends included.
        simulated_tokens: For each conversation, the tokens of all assistant turns from `start` on, turn ends included.
        truncated: True if a trained turn reached its limit or did not end as a turn ends.
        ended: For each conversation "user", "limit" or "truncated".
        failures: For each failed conversation, why the simulator gave no user turn.
    """

    row: PromptRow
    conversations: tuple[Messages, ...]
    start: int
    tokens: int
    simulated_tokens: tuple[int, ...]
    truncated: bool
    ended: tuple[str, ...]
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """The value of a part; None if it could not be measured, with a `reason`: KIND, or "KIND: details"."""

    value: float | None
    reason: str = ""


NOTHING_PLAYED = "nothing_played"


def mean_score(scores: Sequence[Score], failures: Sequence[str] = ()) -> Score:
    """Return the mean over a sample's conversations that have a value; None, with the first reason, if none has.

    Args:
        failures: Why conversations are missing, for a sample that has none.
    """
    values = [score.value for score in scores if score.value is not None]
    if values:
        return Score(fmean(values))
    return Score(None, scores[0].reason if scores else ": ".join((NOTHING_PLAYED, *failures[:1])))


def reason_kind(reason: str) -> str:
    """Return the kind of a reason without its details, such as "judge_refused", to be counted."""
    return reason.partition(":")[0]


# --- Accuracy: is the conversation's final answer right?
#
# 1 or 0 by math-verify, as in CollabLLM (arXiv 2502.00640, section 4: task success on MATH) and in most RL on mathematics.
# The final answer is the last marked one of the policy's own turns (`\boxed{}` or `####`), else what its last reply
# answers, read leniently; the last number of a truncated reply is no answer. No answer is 0, not None, and so is an answer
# that was guessed (`guessed`, below). A policy can write expressions that take for ever: probe/text/grading.py compares answers
# in a process with a time limit, once for equal pairs, and a comparison that reaches the limit is None.

NO_REFERENCE = "no_reference"


def accuracy(sample: Sample) -> Score:
    reference = sample.row.answer
    if not reference:
        return Score(None, NO_REFERENCE)
    if guessed(sample):
        return Score(0.0)
    scores = []
    for conversation, ended in zip(sample.conversations, sample.ended, strict=True):
        answer = final_answer(conversation[sample.start :], cut=ended == "truncated")
        if answer is None or len(answer) > LONGEST_ANSWER:
            right: bool | None = answer == reference
        else:
            right = compare_answers(answer, reference)
        scores.append(Score(None, TIMEOUT) if right is None else Score(float(right)))
    return mean_score(scores, sample.failures)


def final_answer(messages: Sequence[Message], cut: bool = False) -> str | None:
    """Return the assistant's last marked answer, else the answer of its last reply.

    Args:
        cut: Whether the last reply reached its token limit.
    """
    replies = said_by(messages, "assistant")
    answer = next((marked for text in reversed(replies) if (marked := strict_answer(text)) is not None), None)
    if answer is None and replies and outcome(replies[-1], truncated=cut) == "answered":
        answer = lenient_answer(replies[-1])
    return answer


# --- Asking: does the first trained reply ask for what is missing, and only then?
#
# From -1 to 1. If a fact is withheld: 1 for asking for it by name, 0.5 for asking whether anything is missing, 0 for any other
# question, and -1 for a guess, a question followed by a guess, and giving up. If all facts are given: 1 for an answer, 0.5
# for an answer that ends with a question, 0 for a first reply that has neither a question nor a number, such as "That's it.",
# and -1 for asking instead. If the user asks only for a hint, the result gets -1, marked or not. So a needless question costs
# as much as a guess, as in GRIL (arXiv 2604.19656: a false alarm is -1, detection is rewarded, and less the later it comes).
# Only the first reply counts: a correct answer later does not cancel either penalty.
#
# A right answer that was guessed earns nothing: `accuracy` scores it 0. Otherwise a memorized guess would earn more than
# asking and then solving.
#
# Questions are read as the scripted user reads them, so the reward asks for what the user would answer, and the same
# question is penalized if nothing is missing: with a narrower reading there, a request in every reply would be rewarded on
# both kinds of rows.
#
# A problem that the user reveals in pieces is not answered before its last piece: an answer is -1, a question 1, anything else 0.
#
# `asking` is None for rows that do not say whether a question is right, such as the later turns of rows that ask for
# a hint.

HALF = 0.5
HINT = "hint"
UNDECIDED = "undecided"
"""The row does not say whether to ask. This is no failure: all samples of its group are rewarded without this part."""


def asking(sample: Sample) -> Score:
    """Score the first trained reply, which all look-aheads share."""
    if not sample.conversations:
        return mean_score((), sample.failures)
    value = asked_rightly(sample.row, sample.conversations[0][sample.start]["content"])
    return Score(value, UNDECIDED if value is None else "")


def guessed(sample: Sample) -> bool:
    """Return True if a right answer must not be rewarded: the sample did not ask for the withheld fact, or gave the result
    instead of a hint."""
    if not sample.conversations:
        return False
    value = asked_rightly(sample.row, sample.conversations[0][sample.start]["content"])
    return value is not None and value <= 0 and (sample.row.withholds or _wants_hint(sample.row))


def _wants_hint(row: PromptRow) -> bool:
    return row.kind == HINT and row.turn == 0  # in later turns the user tries, and the reply says whether that is right


def asks_instead(row: PromptRow, reply: str) -> bool:
    """Return True if a reply to a complete row asks instead of answering: it marks no answer, and requests something or asks
    what the scripted user would answer with more than a nod ("Does that help?")."""
    if asks(reply):
        return True
    if marked_answer(reply) is not None:
        return False
    messages = said_by(row.prompt, "user")
    return any(
        not question.endswith("?") or read_question(question, (), messages)[0] != "following"
        for question in questions(reply)
    )


def asked_rightly(row: PromptRow, reply: str) -> float | None:
    """Return the value of `asking` for a first reply; None if the row does not say whether to ask."""
    if row.shards:
        return -1.0 if marked_answer(reply) is not None else 1.0 if asks(reply) else 0.0
    if not row.withholds:
        if _wants_hint(row):
            return -1.0 if states_result(row.answer, row.prompt, reply) else 1.0
        if row.kind == HINT:
            return None
        if asks_instead(row, reply):
            return -1.0
        if not row.turn and not re.search(r"\d|\\boxed", reply):
            return 0.0
        follows_up = marked_answer(reply) is None and questions(reply)
        last = rough_sentences(reply)[-1:]
        return HALF if follows_up or (last and last[0].endswith("?")) else 1.0

    if marked_answer(reply) is not None:
        return -1.0
    asked = questions(reply)
    gives_up = not any(question.endswith("?") for question in asked)
    named = row.fact.names
    # "I mean the price of a pen. Do you see it?"
    asked += [f"{before} {after}" for before, after in pairwise(rough_sentences(reply)) if after.endswith("?")]
    # What is withheld has a name, or is read off the sentences of the problem that state it.
    withheld, messages = named or (row.fact.reveal,), said_by(row.prompt, "user")
    about = {read_question(question, withheld, messages, named=bool(named), ask=row.fact.ask)[0] for question in asked}
    if "withheld" in about or "anything" in about:
        return 1.0 if "withheld" in about else HALF
    return -1.0 if gives_up else 0.0


# --- Interactivity by rule: does the policy listen?
#
# Three marks from 0 to 1 of every turn from the first trained one on: it *takes up* a word or number of the user's message,
# asks at most *one question*, and is *fresh*, repeating no earlier turn.


def interactivity(sample: Sample) -> Score:
    scores = []
    for conversation in sample.conversations:
        turns = [
            turn_marks(conversation, place)
            for place in range(sample.start, len(conversation))
            if conversation[place]["role"] == "assistant"
        ]
        scores.append(Score(fmean(fmean(marks) for marks in zip(*turns, strict=True))))
    return mean_score(scores, sample.failures)


def turn_marks(messages: Messages, place: int) -> tuple[bool, bool, bool]:
    """Return the three marks of the assistant's message at index `place`."""
    text = messages[place]["content"]
    earlier = said_by(messages[:place], "assistant")
    asked = set(content_stems(messages[place - 1]["content"]))
    takes_up = not asked or bool(asked & set(content_stems(text)))
    return takes_up, text.count("?") <= 1, not any(same_words(text, other) for other in earlier)


# --- Interactivity by judge: a model gives each whole conversation a verdict from 1 to 5, scaled to 0 to 1.
#
# It is known to be gamed by replies that end in a polite question, which `watch/generic_ending` shows.
#
# All verdicts of a step are requested at once, with the retries of probe.client. Equal conversations are judged once: the
# judge's own noise would otherwise separate them.

TRIES = 3
"""Attempts for a verdict that cannot be read, each with another seed."""
_JUDGE_PROMPT: str = yaml.safe_load(Path(__file__).with_name("judge.yaml").read_text(encoding="utf-8"))["prompt"]
_FROM_1_TO_5 = re.compile(r"[\W_]{0,20}([1-5])(?![\d]|[.,]\d)")


def judge_prompt(messages: Messages) -> Messages:
    """Return the prompt that asks a judge for its verdict on a conversation, which it sees as data."""
    return (user(_JUDGE_PROMPT.format(conversation=shown_conversation(messages))),)


def read_judge(reply: Reply) -> Parsed:
    """Return the last verdict of a judge's reply; unusable if the reply was cut, or has no number from 1 to 5."""
    text, unusable = read_reply(reply)
    if unusable == CUT:  # a verdict in it is a draft
        return Parsed(text, CUT)
    found = _FROM_1_TO_5.match(after_verdict(reply.text))
    return Parsed(found.group(1)) if found else Parsed(text, "no_verdict")


class InteractivityJudge:
    """Asks servers; nothing is sent before the first verdict is wanted.

    Raises:
        BadInput: the server's section cannot be used.
    """

    def __init__(self, section: RoleSection, seed: int, limit_s: float) -> None:
        self._seed, self._limit_s = seed, limit_s
        self._opened = ExitStack()
        self._model: ChatModel = self._opened.enter_context(open_model("judge", section, seed, "reward.judge"))

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """Return one score for each sample: the mean over its conversations that have a verdict. If asking breaks off, the
        verdicts so far are kept."""
        asked = {_texts(messages): messages for sample in samples for messages in sample.conversations}
        wanted = [
            Ask(judge_prompt(messages), read_judge, functools.partial(self._attempt_seed, texts))
            for texts, messages in asked.items()
        ]
        verdicts = dict(zip(asked, map(_verdict, ask(self._model, wanted, TRIES, self._limit_s)), strict=True))
        return [
            mean_score([verdicts[_texts(messages)] for messages in sample.conversations], sample.failures)
            for sample in samples
        ]

    def close(self) -> None:
        self._opened.close()

    def _attempt_seed(self, texts: tuple[str, ...], attempt: int) -> int:
        return item_seed(self._seed, "judge", attempt, *texts)


def _verdict(answer: Answer[Parsed]) -> Score:
    if answer.parsed is None:
        return Score(None, f"judge_{answer.missing}" + (f": {answer.detail}" if answer.detail else ""))
    return Score((int(answer.parsed.text) - 1) / 4)


def _texts(conversation: Messages) -> tuple[str, ...]:
    return tuple(text for message in conversation for text in (message["role"], message["content"]))


# --- Efficiency: fewer assistant tokens for the same result, without a lower limit that stops it.
#
# `e / (e + tokens)` over all assistant tokens from the first trained turn on: 1 for none, 0.5 at `e`, strictly decreasing.
# CollabLLM (arXiv 2502.00640, section 4) subtracts min(5e-4 * tokens, 1), which is constant from 2,000 tokens on, while its
# MATH chats average 2,400 to 3,400: most replies would get the same value.


def efficiency(sample: Sample, efficient_tokens: int) -> Score:
    scores = [Score(efficient_tokens / (efficient_tokens + tokens)) for tokens in sample.simulated_tokens]
    return mean_score(scores, sample.failures)


# --- Format: does every turn look like a turn of an assistant, and is the answer marked once?
#
# The mean of three marks over the policy's turns, and 0 for an empty turn:
#
# - *one answer*, of the conversation: its answering turn marks an answer (`\boxed{}` or `####`) exactly once. A
#   conversation without a mark gets 0; the mark does not count if its last turn asks or its row wants no answer yet (a
#   hint, a withheld fact).
# - *own voice*: no role label, no control token, no problem or user message written by the assistant.
# - *no loop*: the last hundred words do not repeat the same text.

# A base model that has answered continues with the next exercise of the book.
_NEXT_PROBLEM = re.compile(
    r"^\W{0,4}(?:question|problem|exercise|q)\s{0,2}\d{0,3}\s{0,2}[:.]", re.IGNORECASE | re.MULTILINE
)
# Of 19,973 reference solutions of MATH and GSM8K none repeats more than 0.65 of its last hundred words.
_LOOP, _TAIL_WORDS = 0.65, 100


def form(sample: Sample) -> Score:
    scores = []
    for conversation in sample.conversations:
        turns = said_by(conversation[sample.start :], "assistant")
        own_voice, no_loop = [], []
        for text in turns:
            unusable = read_assistant(Reply(text)).unusable
            own_voice.append(unusable not in (EMPTY, ROLE_LABEL) and not _NEXT_PROBLEM.search(text))
            no_loop.append(unusable != EMPTY and not loops(text))
        marks = [fmean(own_voice), fmean(no_loop)]

        answering = next((text for text in reversed(turns) if strict_answer(text) is not None), None)
        if answering is not None:
            marks.append(float(count_marks(answering) == 1))
        elif not (asks(turns[-1]) or sample.row.withholds or sample.row.kind == HINT):
            marks.append(0.0)
        scores.append(Score(fmean(marks)))
    return mean_score(scores, sample.failures)


def loops(text: str) -> bool:
    """Return True if a reply ends in runaway repetition."""
    return repetition(words(text)[-_TAIL_WORDS:]) > _LOOP


# --- Custom: functions of the user's, called in workers, so that a slow or broken function delays nothing else.

NOT_APPLICABLE = "not_applicable"
"""The function returned None."""


def open_workers(section: RewardSection, columns: Collection[str] | None = None) -> Workers:
    """Start the workers that call custom functions, and check that every function can be loaded there.

    Args:
        columns: What every prompt has, for functions in trl's form; None if that is not known yet.

    Raises:
        RecipeError: A function cannot be loaded, or wants a column that prompts lack.
    """
    functions = [part.function for part in section.custom.values()]
    workers = Workers(section.workers, section.timeout_s, functools.partial(load_functions, functions))
    for name, part in section.custom.items():
        if failure := workers.start(_can_load, part.function).result().failure:
            workers.close()
            raise RecipeError(f"reward.custom.{name}.function: {part.function} cannot be loaded ({failure})")
        wanted = workers.start(_columns_of, part.function).result().value or []
        if columns is not None and (missing := [column for column in wanted if column not in columns]):
            workers.close()
            raise RecipeError(
                f"reward.custom.{name}.function: {part.function} wants {', '.join(missing)}, and not every prompt has it; columns "
                f"of all prompts: {', '.join(columns)}"
            )
    return workers


def _finished(call: Future[Done]) -> Score:
    """Wait for a call in a worker."""
    done = call.result()
    if done.failure:
        return Score(None, done.failure)
    return Score(None, NOT_APPLICABLE) if done.value is None else Score(float(done.value))


# The following functions run in the workers.


def call_custom(name: str, sample: Sample) -> float | None:
    """Call a function with the sample, or in trl's way with `prompts`, `completions` and every column, each a list of one."""
    function = load_named(name)
    if "completions" in inspect.signature(function).parameters:
        (value,) = function(**trl_arguments(sample))
    else:
        value = function(sample)
    if value is None:
        return None
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"gave {value!r}, expected a finite number or None")
    return float(value)


OF_ROW = ("id", "kind", "answer", "problem", "solution")
"""Columns that every prompt has, empty where its file has none."""


def shared_columns(rows: Iterable[PromptRow]) -> list[str]:
    """Return the names of the columns that all prompts have for a reward function."""
    every = list(rows)
    own = [name for name in every[0].columns if all(name in row.columns for row in every)]
    return [*own, *(name for name in OF_ROW if all(getattr(row, name) for row in every))]


def trl_arguments(sample: Sample) -> dict[str, list[Any]]:
    """Return a sample as the arguments of a reward function of trl. The completion is what was said from the first trained turn
    on, as messages."""
    row = sample.row
    said = list(sample.conversations[0][sample.start :]) if sample.conversations else []
    columns = {**{name: getattr(row, name) for name in OF_ROW}, **row.columns}
    return {"prompts": [list(row.prompt)], "completions": [said], **{name: [value] for name, value in columns.items()}}


def load_functions(names: Sequence[str]) -> None:
    """Load functions in a new worker, so that no call's time is spent on imports; errors are those of a later call."""
    for name in names:
        with contextlib.suppress(Exception):
            load_named(name)


def _can_load(name: str) -> bool:
    """Load a function, which itself need not survive the way between processes."""
    return callable(load_named(name))


def _columns_of(name: str) -> list[str]:
    """Return the columns that a function of trl's form cannot do without."""
    parameters = inspect.signature(load_named(name)).parameters
    if "completions" not in parameters:
        return []
    given = ("prompts", "completions")
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        key
        for key, parameter in parameters.items()
        if key not in given and parameter.kind in named and parameter.default is inspect.Parameter.empty
    ]


# --- All parts combined to one number for each sample.
#
# trl sums several reward functions and counts one that is None as 0 as long as another has a value, so that a right answer
# whose judge timed out would be penalized. Here a sample without a part that it needs has no reward at all, and its group's
# mean is taken without it.
#
# A sample that reached its limit before it gave an answer earns nothing. Its text alone would earn more than a complete
# wrong reply: if nothing is withheld, a solution that never ends counts as an answer for `asking`. Custom parts alone decide
# for themselves (`sample.truncated`), since their task may have no answer.


def cut_off(sample: Sample) -> bool:
    """Return True if a trained turn reached its limit and no conversation of the sample has a final answer."""
    answers = (final_answer(messages[sample.start :], cut=True) for messages in sample.conversations)
    return sample.truncated and not any(answers)


@dataclass(frozen=True)
class Scored:
    """The reward of a sample.

    Attributes:
        value: None if the sample is to be left out.
        parts: Every part that was measured, also those without weight.
        reasons: Why a part is None, KIND or "KIND: details".
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

    def __init__(self, section: RewardSection, seed: int, columns: Collection[str] | None = None) -> None:
        self._section = section
        self._workers = open_workers(section, columns)
        self._custom_alone = bool(section.custom) and not any(vars(section.weights).values())
        self._judge: InteractivityJudge | None = None
        if section.judge is not None and section.weights.interactivity > 0:
            self._judge = InteractivityJudge(section.judge, seed, section.judge_timeout_s)

    def score(self, samples: Sequence[Sample]) -> list[Scored]:
        """Return one reward for each sample, in order. No call is waited for longer than its time limit."""
        section = self._section
        custom = [  # begun first: the workers run while the judge's servers do
            {name: self._workers.start(call_custom, part.function, sample) for name, part in section.custom.items()}
            for sample in samples
        ]
        judged = iter(self._judge.score(samples)) if self._judge else map(interactivity, samples)
        scored = []
        for sample, calls in zip(samples, custom, strict=True):
            parts = {name: _finished(call) for name, call in calls.items()}
            if not self._custom_alone:
                parts = {
                    "accuracy": accuracy(sample),
                    "asking": asking(sample),
                    "interactivity": next(judged),  # rules count it here, so custom parts alone cost nothing for it
                    "efficiency": efficiency(sample, section.efficient_tokens),
                    "format": form(sample),
                    **parts,
                }
                if cut_off(sample):
                    parts = {
                        name: replace(part, value=part.value and min(part.value, 0.0)) for name, part in parts.items()
                    }
            scored.append(compose(parts, section))
        return scored

    def close(self) -> None:
        """End the workers and the judge's requests."""
        self._workers.close()
        if self._judge is not None:
            self._judge.close()


def compose(parts: Mapping[str, Score], section: RewardSection) -> Scored:
    """Return the weighted mean of the parts that have a weight and a value; no value if a required part has none."""
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
