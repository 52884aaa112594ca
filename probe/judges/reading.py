"""A user turn and its context, cut into the pieces that every signal is counted on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from probe.judges import voices
from probe.judges.labels import Case
from probe.judges.words import FUNCTION_WORDS, content_stems, sentences, word_set, words

# How far from its end an answer may ask something and still wait for a reply.
_ASKING_TAIL = 160

_PRONOUNS = word_set("it they them this these those he she him ones")
# "that" stands for something where one of these follows; before other words it mostly joins two clauses.
_AFTER_THAT = word_set("is was would means mean in into as for to be work works happen with again and or")
_INTRODUCING = word_set("a an my our")
# "it" that stands for nothing: "is it true that".
_EMPTY_IT = re.compile(
    r"\bis it (?:true|possible|safe|okay|ok|better|necessary|important|worth|legal|normal|hard|easy|bad|good|the case)\b"
    r"|\bit(?:'s| is) (?:true|possible|important)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[A-Za-z]+(?:['’][a-z]+)?|\d+")


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

    @cached_property
    def mentions_answer(self) -> bool:
        return self.speaks(voices.ABOUT_ANSWER)

    @cached_property
    def leans(self) -> bool:
        """Rests on what was just said, or asks about the answer by name or for a change of it."""
        asks_on = self.mentions_answer and (self.asks or self.speaks(voices.IMPERATIVE))
        return asks_on or self.speaks(voices.LEANING)


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
    def points_back(self) -> bool:
        """A pronoun stands before anything in the turn that it could stand for, so it stands for something earlier."""
        return _points_back(self.turn)

    @cached_property
    def asked_back(self) -> bool:
        """The assistant's message ends by asking, so that a plain statement can be a reply."""
        return "?" in self.answer[-_ASKING_TAIL:]

    @cached_property
    def unfinished(self) -> bool:
        """The assistant's message stops in mid-sentence."""
        return bool(self.answer) and not ENDED.search(self.answer)


ENDED = re.compile(r"[.!?:。!?\"'”’)*`}\]$]\s*$")


def _points_back(text: str) -> bool:
    tokens = _WORD.findall(_EMPTY_IT.sub(" ", text))
    lower = [token.lower().replace("’", "'").split("'")[0] for token in tokens]
    for index, word in enumerate(lower):
        following = lower[index + 1] if index + 1 < len(lower) else ""
        if word in _PRONOUNS or (word == "that" and (not following or following in _AFTER_THAT)):
            return True
        if word in _INTRODUCING or word[0].isdigit():
            return False
        # A name, unless the capital may only be that of the first word.
        plain_opening = not index and (voices.IMPERATIVE.search(text) or voices.REACTION.search(text))
        if tokens[index][0].isupper() and word not in FUNCTION_WORDS and not plain_opening:
            return False
    return False
