"""What the reward means: its parts, their default weights, and how they become one number for each sample.

A part is a function that scores a sample from 0 to 1 (`asking` from -1), or None with a reason; a part that failed is never 0. The
comment above a part says what the part rewards, why, and how it can be gamed. `PARTS` lists the parts; the keys of `reward.weights`
are made from it. `train/scoring.py` scores the samples of a step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import yaml

from nextturn.data_builders import asked_for
from nextturn.data_builders.asked_for import LONGEST_ANSWER, marked_answer, questions
from nextturn.data_builders.dialogue import replies
from nextturn.data_builders.dialogue.replies import Parsed
from nextturn.probe.command.errors import DataError
from nextturn.probe.command.timelimit import TIMEOUT
from nextturn.probe.data.messages import Message, said_by, user
from nextturn.probe.engines.ask import Answer, Reply
from nextturn.probe.judges.llm import after_verdict
from nextturn.probe.judges.llm import conversation as shown_conversation
from nextturn.probe.judges.rules import repetition
from nextturn.probe.questions.simulation import PromptRow
from nextturn.probe.text.equality import compare_answers
from nextturn.probe.text.grading import asks, count_marks, lenient_answer, outcome, strict_answer
from nextturn.probe.text.words import content_stems, rough_sentences, words

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


def mean_score(sample: Sample, scores: Sequence[Score]) -> Score:
    """Return the mean over the conversations of a sample that have a value; None, with the first reason, if none has."""
    values = [score.value for score in scores if score.value is not None]
    if values:
        return Score(fmean(values))
    return Score(None, scores[0].reason if scores else ": ".join((NOTHING_PLAYED, *sample.failures[:1])))


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
    for messages, ended in zip(sample.conversations, sample.ended, strict=True):
        answer = final_answer(messages[sample.start :], cut=ended == "truncated")
        if answer is None or len(answer) > LONGEST_ANSWER:
            right: bool | None = answer == reference
        else:
            right = compare_answers(answer, reference)
        scores.append(Score(None, TIMEOUT) if right is None else Score(float(right)))
    return mean_score(sample, scores)


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
# From -1 to 1. Questions are read in the last four sentences; a reply has answered earlier ones itself. If a fact is withheld: 1
# for asking for it by name, 0.5 for asking whether anything is missing, 0 for any other question, and -1 for a guess, a
# question followed by a marked guess, and giving up. If all facts are given: 1 for an answer, 0.5
# for an answer that ends with a question, 0 for a first reply that has neither a question nor a number, such as "That's it.",
# and -1 for asking instead. So a needless question costs as much as a guess, as in GRIL (arXiv 2604.19656: a false alarm is
# -1, detection is rewarded, and less the later it comes). Only the first reply counts: a correct answer later does not cancel
# either penalty.
#
# If a fact is withheld, a right answer that was guessed earns nothing: `accuracy` scores it 0. Otherwise a memorized guess would
# earn more than asking and then solving.
#
# Questions are read as the scripted user reads them, so the reward asks for what the user would answer, and the same
# question is penalized if nothing is missing: with a narrower reading there, a request in every reply would be rewarded on
# both kinds of rows.
#
# A problem that the user reveals in pieces is not answered before its last piece: an answer is -1, a question 1, anything else 0.
# `accuracy` counts the last answer, also if it was given too early.

HALF = 0.5


def asking(sample: Sample) -> Score:
    """Score the first trained reply, which all look-aheads share."""
    if not sample.conversations:
        return mean_score(sample, ())
    return Score(asked_rightly(sample.row, sample.conversations[0][sample.start]["content"]))


def guessed(sample: Sample) -> bool:
    """Return True if a right answer must not be rewarded: the sample did not ask for the withheld fact."""
    value = asking(sample).value
    return value is not None and value <= 0 and sample.row.withholds


def asked_rightly(row: PromptRow, reply: str) -> float:
    """Return the value of `asking` for a first reply."""
    said, marked = said_by(row.prompt, "user"), marked_answer(reply) is not None
    if row.shards:
        return -1.0 if marked else 1.0 if asks(reply) else 0.0
    if row.withholds:
        if marked:
            return -1.0
        # What is withheld has a name, or is read off the sentences that state it.
        about = asked_for.asked_about(reply, row.fact.names, said, (row.fact.reveal,), row.fact.ask)
        if about & {"withheld", "anything"}:
            return 1.0 if "withheld" in about else HALF
        return 0.0 if any(question.endswith("?") for question in questions(reply)) else -1.0
    if asked_for.asks_instead(reply, said):
        return -1.0
    if not reply.strip() or (not row.turn and not re.search(r"\d|\\boxed", reply)):
        return 0.0
    last = rough_sentences(reply)[-1:]
    follows_up = (not marked and questions(reply)) or (last and last[0].endswith("?"))
    return HALF if follows_up else 1.0


# --- Interactivity by rule: does the policy listen?
#
# Three marks from 0 to 1 of every turn from the first trained one on: it *takes up* a word or number of the user's message,
# asks at most *one question*, and is *fresh*, repeating no earlier turn.


def interactivity(sample: Sample) -> Score:
    scores = []
    for messages in sample.conversations:
        places = [place for place in range(sample.start, len(messages)) if messages[place]["role"] == "assistant"]
        marks = zip(*(turn_marks(messages, place) for place in places), strict=True)
        scores.append(Score(fmean(map(fmean, marks))))
    return mean_score(sample, scores)


def turn_marks(messages: Messages, place: int) -> tuple[bool, bool, bool]:
    """Return the three marks of the assistant's message at index `place`."""
    text = messages[place]["content"]
    earlier = said_by(messages[:place], "assistant")
    asked = set(content_stems(messages[place - 1]["content"]))
    takes_up = not asked or bool(asked & set(content_stems(text)))
    return takes_up, text.count("?") <= 1, not any(replies.same_words(text, other) for other in earlier)


# --- Interactivity by judge: a model gives each whole conversation a verdict from 1 to 5, scaled to 0 to 1.
#
# It is known to be gamed by replies that end in a polite question, which `watch/generic_ending` shows.
#
# Equal conversations are judged once: the judge's own noise would otherwise separate them.

_JUDGE_PROMPT: str = yaml.safe_load(Path(__file__).with_name("judge.yaml").read_text(encoding="utf-8"))["prompt"]
_FROM_1_TO_5 = re.compile(r"[\W_]{0,20}([1-5])(?![\d]|[.,]\d)")


def judge_prompt(messages: Messages) -> Messages:
    """Return the prompt that asks a judge for its verdict on a conversation, which it sees as data."""
    return (user(_JUDGE_PROMPT.format(conversation=shown_conversation(messages))),)


def read_judge(reply: Reply) -> Parsed:
    """Return the last verdict of a judge's reply; unusable if the reply was cut, or has no number from 1 to 5."""
    text, unusable = replies.read_reply(reply)
    if unusable == replies.CUT:  # a verdict in it is a draft
        return Parsed(text, replies.CUT)
    found = _FROM_1_TO_5.match(after_verdict(reply.text))
    return Parsed(found.group(1)) if found else Parsed(text, "no_verdict")


def judge_score(answer: Answer[Parsed]) -> Score:
    """Return the value of what a judge said about a conversation: 0 for the verdict 1, 1 for the verdict 5."""
    if answer.parsed is None:
        return Score(None, f"judge_{answer.missing}" + (f": {answer.detail}" if answer.detail else ""))
    return Score((int(answer.parsed.text) - 1) / 4)


# --- Efficiency: fewer assistant tokens for the same result, without a lower limit that stops it.
#
# `e / (e + tokens)` over all assistant tokens from the first trained turn on: 1 for none, 0.5 at `e`, strictly decreasing.
# CollabLLM (arXiv 2502.00640, section 4) subtracts min(5e-4 * tokens, 1), which is constant from 2,000 tokens on, while its
# MATH chats average 2,400 to 3,400: most replies would get the same value.


def efficiency(sample: Sample, efficient_tokens: int) -> Score:
    return mean_score(
        sample, [Score(efficient_tokens / (efficient_tokens + tokens)) for tokens in sample.simulated_tokens]
    )


# --- Format: does every turn look like a turn of an assistant, and is the answer marked once?
#
# The mean of three marks over the policy's turns, and 0 for an empty turn:
#
# - *one answer*, of the conversation: its answering turn marks an answer (`\boxed{}` or `####`) exactly once. A
#   conversation without a mark gets 0; the mark does not count if its last turn asks or its row withholds a fact.
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
            unusable = replies.read_assistant(Reply(text)).unusable
            own_voice.append(unusable not in (replies.EMPTY, replies.ROLE_LABEL) and not _NEXT_PROBLEM.search(text))
            no_loop.append(unusable != replies.EMPTY and not loops(text))
        marks = [fmean(own_voice), fmean(no_loop)]

        answering = next((text for text in reversed(turns) if strict_answer(text) is not None), None)
        if answering is not None:
            marks.append(float(count_marks(answering) == 1))
        elif not (asks(turns[-1]) or sample.row.withholds):
            marks.append(0.0)
        scores.append(Score(fmean(marks)))
    return mean_score(sample, scores)


def loops(text: str) -> bool:
    """Return True if a reply ends in runaway repetition."""
    return repetition(words(text)[-_TAIL_WORDS:]) > _LOOP


# --- The parts.


@dataclass(frozen=True)
class Part:
    """A part of the reward.

    Attributes:
        score: Scores a sample.
        weight: Default weight; a part with weight 0 is logged only.
        about: Description of the key `reward.weights.NAME`.
        needs: Column that all prompts must have if the part has a weight.
        style: Whether the part says how a reply is written, not what it achieves.
    """

    score: Callable[..., Score]
    weight: float
    about: str
    needs: str = ""
    style: bool = False


PARTS = {
    "accuracy": Part(accuracy, 1.0, "The final answer is right.", needs="answer"),
    "asking": Part(asking, 1.0, "The first reply asks if a fact is missing, and answers if none is.", needs="kind"),
    "interactivity": Part(
        interactivity,
        0.25,
        "The replies take up what the user says, ask at most one question and do not repeat.",
        style=True,
    ),
    "efficiency": Part(efficiency, 0.1, "The conversation takes few assistant tokens.", style=True),
    "format": Part(form, 0.0, "One marked answer, no foreign role labels, no loops.", style=True),
}


def check_columns(rows: Collection[PromptRow], weights: Mapping[str, float], where: str) -> None:
    """Check that the prompts have what the parts with a weight need.

    Raises:
        DataError: It names every part whose column is missing.
    """
    missing = [
        f"reward.weights.{name} needs the column `{part.needs}` ({lacking} of {len(rows)} rows have none)"
        for name, part in PARTS.items()
        if part.needs and weights[name] and (lacking := sum(not getattr(row, part.needs) for row in rows))
    ]
    # Without the name, `asking` would give a correct question the value of a guess.
    unnamed = sum(row.kind == "underspecified" and not (row.turn or row.withholds or row.shards) for row in rows)
    if weights["asking"] and unnamed:
        missing.append(
            "reward.weights.asking needs `thing`, the name of what is missing, and `reveal`, the sentence that states it, in rows "
            f"of the kind underspecified ({unnamed} of {len(rows)} rows have none)"
        )
    if missing:
        raise DataError(f"{where}: {', '.join(missing)}; add what is missing, or give these parts the weight 0")


# --- All parts combined to one number for each sample.
#
# trl sums several reward functions and counts one that is None as 0 as long as another has a value, so that a right answer
# whose judge timed out would be penalized. Here a sample without a part that it needs has no reward at all, and its group's
# mean is taken without it.
#
# A sample that reached its limit before it gave an answer earns nothing. Its text alone would earn more than a complete
# wrong reply: if nothing is withheld, a solution that never ends counts as an answer for `asking`. Custom parts alone decide
# for themselves (`sample.truncated`), since their task may have no answer.


def capped(sample: Sample, parts: Mapping[str, Score]) -> Mapping[str, Score]:
    """Return the parts, at most 0 each if a trained turn reached its limit and no conversation has a final answer."""
    if not sample.truncated or any(final_answer(each[sample.start :], cut=True) for each in sample.conversations):
        return parts
    return {name: replace(part, value=part.value and min(part.value, 0.0)) for name, part in parts.items()}


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


def compose(parts: Mapping[str, Score], weights: Mapping[str, float], required: Collection[str]) -> Scored:
    """Return the weighted mean of the parts that have a weight and a value; no value if a required part has none."""
    values = {name: part.value for name, part in parts.items()}
    reasons = {name: part.reason for name, part in parts.items() if part.value is None}
    counted = {name: value for name, value in values.items() if weights[name] and value is not None}
    if not counted or not counted.keys() >= set(required):
        return Scored(None, values, reasons)
    total = sum(weights[name] for name in counted)
    return Scored(sum(weights[name] * value for name, value in counted.items()) / total, values, reasons)
