r"""Accuracy: is the conversation's final answer right?

1 or 0 by math-verify, as in CollabLLM (arXiv 2502.00640, section 4: task success on MATH) and in most RL on mathematics.
The final answer is the last marked one of the policy's own turns (`\boxed{}` or `####`), else what its last reply
answers, read leniently; a reply that was cut answers nothing by a number on its way. No answer is 0, not None.

Text and numbers are compared at once. What only algebra can tell goes to workers with a time limit, since a policy can
write expressions that take for ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from data_builders.dialogue.scoring import LONGEST_ANSWER, final_answer
from probe.answers import same_at_sight, same_by_algebra
from probe.sets import Message
from probe.timelimit import Pending, Workers
from train.played import Played
from train.rewards.part import Part, mean_part, nothing_played

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
