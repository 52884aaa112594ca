"""A user turn and its context, cut into the pieces that every signal is counted on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from probe.judges import voices
from probe.judges.labels import Case
from probe.judges.words import content_stems, sentences, words

# How far from its end an answer may ask something and still wait for a reply.
_ASKING_TAIL = 160


@dataclass(frozen=True)
class Sentence:
    """One sentence or line of a turn, and its number of words."""

    text: str
    size: int

    def speaks(self, *patterns: re.Pattern[str]) -> bool:
        return any(pattern.search(self.text) for pattern in patterns)

    @cached_property
    def asks(self) -> bool:
        """Ends with a question mark, or opens like a question, which casual writers leave unmarked."""
        return self.text.endswith("?") or self.speaks(voices.QUESTION_OPENING)


@dataclass(frozen=True)
class Reading:
    """What stands in a turn and in the conversation before it.

    Attributes:
        turn: the user turn after cleaning.
        leads_on: it began with white space, as a sentence does that goes on with an earlier one.
        asked: the user's own messages so far.
        answer: the last assistant message.
        answers: all assistant messages, in one text.
    """

    turn: str
    leads_on: bool
    asked: tuple[str, ...]
    answer: str
    answers: str

    @staticmethod
    def of(case: Case, turn: str, leads_on: bool) -> Reading:
        answers = [message["content"] for message in case.messages if message["role"] == "assistant"]
        return Reading(
            turn=turn,
            leads_on=leads_on,
            asked=tuple(message["content"] for message in case.messages if message["role"] == "user"),
            answer=answers[-1] if answers else "",
            answers="\n".join(answers),
        )

    @cached_property
    def words(self) -> list[str]:
        return words(self.turn)

    @cached_property
    def content(self) -> tuple[str, ...]:
        return content_stems(self.turn)

    @cached_property
    def sentences(self) -> list[Sentence]:
        return [Sentence(text, len(words(text))) for text in sentences(self.turn)]

    @cached_property
    def context(self) -> str:
        return "\n".join([*self.asked, self.answers])

    @cached_property
    def in_question(self) -> frozenset[str]:
        return frozenset(content_stems("\n".join(self.asked)))

    @cached_property
    def in_answer(self) -> frozenset[str]:
        return frozenset(content_stems(self.answer))

    @cached_property
    def known(self) -> frozenset[str]:
        return self.in_question | frozenset(content_stems(self.answers))

    @cached_property
    def asks(self) -> bool:
        return any(sentence.asks for sentence in self.sentences)

    @cached_property
    def lone_question(self) -> bool:
        return len(self.sentences) == 1 and self.asks

    @cached_property
    def asked_back(self) -> bool:
        """The assistant's message ends by asking, so that a plain statement can be a reply."""
        return "?" in self.answer[-_ASKING_TAIL:]

    @cached_property
    def unfinished(self) -> bool:
        """The assistant's message stops in mid-sentence."""
        return bool(self.answer) and not ENDED.search(self.answer)


ENDED = re.compile(r"[.!?:。!?\"'”’)*`}\]$]\s*$")
