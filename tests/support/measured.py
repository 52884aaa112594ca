"""Rows of a measure with a model whose replies are fixed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nextturn.probe.command.sections import ProbeSection, SetSection
from nextturn.probe.engines.base import Completion
from nextturn.probe.engines.stored import Row
from nextturn.probe.judges.verdicts import Verdict
from nextturn.probe.measures.base import Label, LogP, Measure, QuestionSet
from nextturn.probe.run import ask_all


def reply(text: str) -> Completion:
    return Completion(text, len(text.split()), "stop")


class Said:
    """A model with fixed replies, given one by one or by a function of the conversation, which remembers what it was shown.

    Turns get the label genuine_followup, and every text is as likely as every other.
    """

    def __init__(self, *texts: str, by: Any = None) -> None:
        left = iter(texts)
        self.by, self.shown = by or (lambda messages: next(left)), list[list[dict[str, Any]]]()

    def __call__(self, wishes: Sequence[Any]) -> list[Any]:
        return [self._reply(wish) for wish in wishes]

    def _reply(self, wish: Any) -> Any:
        if isinstance(wish, Label):
            return Verdict("genuine_followup", None, "")
        if isinstance(wish, LogP):
            return -1.0
        self.shown.append(list(wish.messages))
        return reply(self.by(wish.messages))


def question_set(name: str, items: Sequence[Any] = (), **keys: Any) -> QuestionSet:
    return QuestionSet(name, Path("unread.jsonl"), SetSection(**keys), tuple(items), (), 0)


def rows_of(
    measure: type[Measure],
    of_set: QuestionSet,
    said: Said,
    chosen: Sequence[Any] | None = None,
    chat: Any = None,
    **keys: Any,
) -> list[Row]:
    """Return the rows of one measure of a set."""
    section = ProbeSection(**{"sets": {}, "temperatures": (0.0,), "grounding": False, **keys})
    asked = measure(of_set, section, chat)
    return ask_all([(asked, measure.choose(of_set) if chosen is None else chosen)], said)[0]


def failing(engine: Any, completions: int | None) -> Any:
    """Return the engine, which after so many completions fails as a killed process does; None: never."""
    stream, left = engine.stream, [completions]

    def dying(requests: Any) -> Any:
        for made in stream(requests):
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    raise MemoryError
            yield made

    engine.stream = dying
    return engine
