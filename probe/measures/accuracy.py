"""How often the final answer is right, read strictly and leniently, with the outcome of every reply.

Items with lettered options are graded by the letter, other items by the value of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

from nextturn.probe.data.messages import after_thinking, assistant
from nextturn.probe.engines.base import Completion
from nextturn.probe.engines.stored import Row
from nextturn.probe.judges.answers import RIGHT, answer_case
from nextturn.probe.judges.verdicts import Verdict
from nextturn.probe.measures.base import Asking, Figure, Grade, Measure, Reply, answer_in
from nextturn.probe.questions.sets import Item
from nextturn.probe.text import grading
from nextturn.probe.text.equality import is_number, same_answer

Grader = Callable[[str, str], bool]
"""A grader of one's own: whether a reply (first argument) gives the answer (second)."""


class Accuracy(Measure):
    """Whether the reply to a question gives the right answer."""

    takes = "answers"
    kinds = {"accuracy": "accuracy"}
    replies = 0
    figures = (
        Figure("lenient", lambda row: row["lenient"], "lenient accuracy"),
        Figure("strict", lambda row: row["strict"], "strict accuracy"),
    )

    def ask(self, item: Item) -> Asking:
        """Ask the question; of a set with `grader: judge` a model then says whether the answer is right."""
        messages = self.prompt(item.messages)
        reply = yield Reply(messages)
        verdict = None
        if self.set.by_judge:
            verdict = yield Grade(answer_case(replace(item, messages=messages), reply.text, reply.finish == "length"))
        graded = by_verdict(item, reply, verdict) if verdict else grade_answer(item, reply, self.set.grader)
        return [self.row(item.id, [*messages, assistant(reply.text.strip())], **graded)]

    @classmethod
    def count(cls, rows: Sequence[Row]) -> dict[str, Any]:
        """Return both rates, and how many replies had each outcome."""
        outcomes = {kind: sum(row["outcome"] == kind for row in rows) for kind in get_args(grading.Outcome)}
        return {**super().count(rows), "outcomes": outcomes}


def answer_kind(item: Item) -> str:
    """Return how an item's answer is graded where no grader is named: "choice", "words", "number" or "formula".

    Of several answers the first one says it.
    """
    return "choice" if item.options else _kind(item.answer or "")


def _kind(answer: str) -> str:
    if grading.is_words(answer):
        return "words"
    return "number" if is_number(answer) else "formula"


def grade_answer(item: Item, reply: Completion, grader: Grader | None = None) -> Row:
    """Grade one reply by both readings.

    A reply that the token limit cut is right only if it had stated its answer before. An answer in words is right strictly if
    the reply (or its mark) is the answer, and leniently if the reply contains it. Of several answers any is right.

    Args:
        grader: Decides in place of both readings.

    Returns:
        "reference", "extracted", "graded_as", "strict", "lenient" and "outcome" of a row.
    """
    if not item.answer:
        raise ValueError(f"item {item.id} has no answer to grade against")
    text, truncated = reply.text, reply.finish == "length"
    graded_as = answer_kind(item) if grader is None else "grader"
    outcome = grading.outcome(text, truncated, item.options)
    answers = (item.answer, *item.aliases)
    if item.options:
        strict, read = grading.strict_letter(text, item.options), grading.lenient_letter(text, item.options, truncated)
        graded = [(strict == answer, read == answer, read) for answer in answers]
    elif grader is None:
        graded = [_graded(text, answer, truncated) for answer in answers]
    else:
        graded = [(False, False, grading.lenient_answer(text, truncated))]
    if grader is not None:
        rights = (bool(grader(after_thinking(text) or "", answer)) for answer in answers)
        graded = [(right, right, graded[0][2]) for right in rights]
    # The answer by which the reply is right, if there is one
    strict_right, right, extracted = max(graded, key=lambda each: each[:2])
    # The outcome is read from marks and numbers. A formula, words, and what a grader takes for right are answers, too.
    if outcome == "no_answer" and (extracted is not None or right or (graded_as == "words" and answer_in(text))):
        outcome = "answered"
    reference = list(answers) if item.aliases else item.answer
    values = {"reference": reference, "extracted": extracted, "graded_as": graded_as, "outcome": outcome}
    return {**values, "strict": strict_right, "lenient": right}


def _graded(text: str, answer: str, truncated: bool) -> tuple[bool, bool, str | None]:
    """Return whether a reply is right by both readings, and what it gives as its answer."""
    kind = _kind(answer)
    if kind == "words":
        return *grading.words_right(text, answer, truncated), grading.stated_words(text)
    extracted = grading.lenient_answer(text, truncated, formula=kind == "formula")
    return same_answer(grading.strict_answer(text), answer), same_answer(extracted, answer), extracted


def by_verdict(item: Item, reply: Completion, verdict: Verdict) -> Row:
    """Grade one reply by a judge's verdict on it."""
    graded = grade_answer(item, reply, lambda text, answer: verdict.label == RIGHT)
    return {**graded, "judge_raw": verdict.raw, "unscored": verdict.unscored, "graded_as": "judge"}
