"""What can be counted about a user turn and its context, as numbers that mean the same in every conversation.

Four families: what the turn repeats of the question and of the answer (content words and word sequences they share),
what it brings along, in whose voice it speaks, and how it is built. A "share" is of the turn's words or content
words, so that a long turn and a short one compare.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from probe.judges import voices
from probe.judges.reading import Reading, Sentence
from probe.judges.words import (
    FILLER_WORDS,
    FUNCTION_WORDS,
    content_stems,
    is_number,
    ngrams,
    stem,
    words,
)

_EQUATION = re.compile(r"[\d)}%] ?=|= ?[-$\d\\({]")
_DEFINITE = re.compile(
    r"\b(?:the|this|that|these|those|his|her|their|its|your|my|our)\s+(?:[a-z]+\s+)?([a-z]+)", re.IGNORECASE
)
_INDEFINITE = re.compile(r"(?:^|[^a-z])an?\s+(?:[a-z]+[- ])?([a-z]+)", re.IGNORECASE)
_CAMEL = re.compile(r"[a-z][A-Z]")
_CONSONANTS = re.compile(r"[bcdfghjklmnpqrstvwxz]{5}")
_LETTERS = re.compile(r"[A-Za-z]+")


def signals(reading: Reading) -> dict[str, float]:
    """Every signal by name."""
    return {**_repeated(reading), **_brought(reading), **_voice(reading), **_build(reading)}


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def share_inside(items: Collection[object], pool: Collection[object]) -> float:
    """Share of `items` that are in `pool`; 0 when there are none."""
    return _share(sum(item in pool for item in items), len(items))


def _likeness(one: Collection[str], other: Collection[str]) -> float:
    """Dice coefficient of two sets of stems: 1 for the same words, 0 for none in common."""
    one, other = set(one), set(other)
    return _share(2 * len(one & other), len(one) + len(other))


def _repeated(reading: Reading) -> dict[str, float]:
    content = reading.content
    return {
        "question_likeness": max((_likeness(content_stems(text), content) for text in reading.asked), default=0),
        "in_answer": share_inside(content, reading.in_answer),
        # says what the answer says, and asks nothing
        "echo": 0.0 if reading.asks else share_inside(content, reading.in_answer),
        "answer_numbers": float(any(map(is_number, set(content) & (reading.in_answer - reading.in_question)))),
    }


def _brought(reading: Reading) -> dict[str, float]:
    content, known = reading.content, reading.known
    new = [item for item in content if item not in known]
    new_numbers = [item for item in new if is_number(item)]
    definite = [stem(word.lower()) for word in _DEFINITE.findall(reading.turn)]
    indefinite = [stem(word.lower()) for word in _INDEFINITE.findall(reading.turn)]
    return {
        "new_words": _share(len(new), len(content)),
        "new_numbers": math.log1p(len(new_numbers)),
        # "a ladder" brings a ladder along; "the ladder" leans on one that is there
        "indefinite_new": min(2, sum(item not in known for item in indefinite)) / 2,
        "definite_known": 5 * _share(sum(item in known for item in definite), len(reading.words)),
        "unanchored": float(_unanchored(reading)),
    }


def _unanchored(reading: Reading) -> bool:
    """Names several things, none of them named before, and neither leans on nor points at what was said.

    A statement after the assistant's question is no such turn: what it was asked for may well be new.
    """
    content = set(reading.content)
    if len(content) < 2 or not content.isdisjoint(reading.known) or (reading.asked_back and not reading.asks):
        return False
    return not reading.points_back and not any(each.leans or each.mentions_answer for each in reading.sentences)


def _voice(reading: Reading) -> dict[str, float]:
    spoken = reading.sentences
    total = sum(sentence.size for sentence in spoken)

    def share(chosen: Iterable[Sentence]) -> float:
        return _share(sum(sentence.size for sentence in chosen), total)

    def voice(*patterns: re.Pattern[str]) -> float:
        return share(sentence for sentence in spoken if sentence.speaks(*patterns))

    first_person = voice(voices.FIRST_PERSON)
    # What is asked of the answer, or with a pronoun for something in it, is asked on: no task of its own.
    alone = [
        sentence
        for index, sentence in enumerate(spoken)
        if not sentence.mentions_answer and (index or not reading.points_back)
    ]
    opens_alone = bool(alone) and alone[0] is spoken[0]
    return {
        "assistant_voice": voice(voices.ASSISTANT, voices.ASSISTANT_OPENING),
        "solving_voice": voice(voices.SOLVING, _EQUATION),
        "asking": share(sentence for sentence in spoken if sentence.asks),
        "first_person": first_person,
        "person_reply": float(reading.asked_back and first_person > 0),
        "imperative": share(sentence for sentence in alone if sentence.speaks(voices.IMPERATIVE)),
        "leaning": share(sentence for sentence in spoken if sentence.leans),
        "reaction": float(bool(voices.REACTION.search(reading.turn))),
        "fresh_question": float(opens_alone and bool(voices.FRESH_QUESTION.search(reading.turn))),
    }


def _build(reading: Reading) -> dict[str, float]:
    tokens, turn = reading.words, reading.turn
    content = [token for token in tokens if token not in FUNCTION_WORDS]
    known_words = set(words(reading.context))
    return {
        "length": math.log1p(len(tokens)) / 4,
        "sentences": math.log1p(len(reading.sentences)) / 2,
        "ends_asking": float(turn.endswith("?")),
        "filler": _share(sum(token in FILLER_WORDS for token in content), len(content)),
        "equations": min(4, len(_EQUATION.findall(turn))) / 4,
        "function_words": _share(len(tokens) - len(content), len(tokens)),
        "odd_words": float(any(_odd(word) for word in _LETTERS.findall(turn) if word.lower() not in known_words)),
        "foreign_letters": float(any(character.isalpha() and character > "\u024f" for character in turn)),
        "asked_back": float(reading.asked_back),
        "leads_on": float(reading.leads_on),
    }


def _odd(word: str) -> bool:
    """Spelt like no everyday English word: capitals inside, five consonants in a row, no vowel, or very long."""
    lower = word.lower()
    return bool(
        len(word) >= 16
        or _CAMEL.search(word)
        or _CONSONANTS.search(lower)
        or (len(word) >= 4 and not any(vowel in lower for vowel in "aeiouy"))
    )


def repetition(tokens: Sequence[str]) -> float:
    """Share of the four-word sequences that occurred before in the same text."""
    grams = ngrams(tuple(tokens), 4)
    return _share(len(grams) - len(Counter(grams)), len(grams))
