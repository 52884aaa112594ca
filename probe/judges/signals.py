"""What can be counted about a user turn and its context, as numbers that mean the same in every conversation.

Four families: what the turn repeats of the question and of the answer (content words and word sequences they share),
what it brings along, in whose voice it speaks, and how it is built. A "share" is of the turn's words or content
words, so that a long turn and a short one compare.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence

from probe.judges import voices
from probe.judges.reading import Reading
from probe.judges.words import (
    FUNCTION_WORDS,
    content_stems,
    is_number,
    ngrams,
    stem,
    stems,
    words,
)

_EQUATION = re.compile(r"[\d)}%] ?=|= ?[-$\d\\({]")
_DEFINITE = re.compile(
    r"\b(?:the|this|that|these|those|his|her|their|its|your|my|our)\s+(?:[a-z]+\s+)?([a-z]+)", re.IGNORECASE
)
_INDEFINITE = re.compile(r"(?:^|[^a-z])an?\s+(?:[a-z]+[- ])?([a-z]+)", re.IGNORECASE)
_GLUED = re.compile(r"\d[a-z]{3,}|[{}#∆^]|[a-z]\.[a-z]{2,}")
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
    content, sequences = reading.content, ngrams(stems(reading.turn), 3)
    echo = 0.0 if reading.asks else share_inside(content, reading.in_answer)
    return {
        # of the turn's content words, the share that stands in the user's own messages
        "in_question": share_inside(content, reading.in_question),
        # of one question's content words, the share that comes back in the turn
        "question_covered": max(
            (share_inside(set(content_stems(text)), set(content)) for text in reading.asked), default=0
        ),
        "question_likeness": max((_likeness(content_stems(text), content) for text in reading.asked), default=0),
        "lone_question_asked": reading.lone_question * share_inside(content, reading.in_question),
        "question_sequences": share_inside(
            sequences, {gram for text in reading.asked for gram in ngrams(stems(text), 3)}
        ),
        "in_answer": share_inside(content, reading.in_answer),
        "answer_sequences": share_inside(sequences, set(ngrams(stems(reading.answer), 3))),
        # says what the answer says, and asks nothing
        "echo": echo,
        "answer_numbers": float(any(map(is_number, set(content) & (reading.in_answer - reading.in_question)))),
    }


def _brought(reading: Reading) -> dict[str, float]:
    content, known = reading.content, reading.known
    new = [item for item in content if item not in known]
    new_numbers = [item for item in new if is_number(item)]
    definite = [stem(word.lower()) for word in _DEFINITE.findall(reading.turn)]
    indefinite = [stem(word.lower()) for word in _INDEFINITE.findall(reading.turn)]
    # A fresh problem lays down its own facts before it asks; talk about the answer leans on it instead.
    premise = any(
        sentence.size >= 4
        and not sentence.asks
        and not sentence.speaks(voices.FIRST_PERSON, voices.REACTION, voices.LEANING)
        for sentence in reading.sentences
    )
    fresh_problem = premise and bool(new_numbers) and reading.sentences[-1].asks and not reading.asked_back
    return {
        "new_words": _share(len(new), len(content)),
        "new_numbers": math.log1p(len(new_numbers)),
        # "a ladder" brings a ladder along; "the ladder" leans on one that is there
        "indefinite_new": min(2, sum(item not in known for item in indefinite)) / 2,
        "definite_known": 5 * _share(sum(item in known for item in definite), len(reading.words)),
        "fresh_problem": float(fresh_problem),
    }


def _voice(reading: Reading) -> dict[str, float]:
    total = sum(sentence.size for sentence in reading.sentences)

    def spoken(*patterns: re.Pattern[str]) -> float:
        return _share(sum(sentence.size for sentence in reading.sentences if sentence.speaks(*patterns)), total)

    first_person = spoken(voices.FIRST_PERSON)
    return {
        "assistant_voice": spoken(voices.ASSISTANT, voices.ASSISTANT_OPENING),
        "solving_voice": spoken(voices.SOLVING, _EQUATION),
        "asking": _share(sum(sentence.size for sentence in reading.sentences if sentence.asks), total),
        "first_person": first_person,
        "person_reply": float(reading.asked_back and first_person > 0),
        "second_person": spoken(voices.SECOND_PERSON),
        "imperative": spoken(voices.IMPERATIVE),
        "leaning": spoken(voices.LEANING),
        "reaction": float(bool(voices.REACTION.search(reading.turn))),
        "fresh_question": float(bool(voices.FRESH_QUESTION.search(reading.turn))),
    }


def _build(reading: Reading) -> dict[str, float]:
    tokens, turn = reading.words, reading.turn
    content = [token for token in tokens if token not in FUNCTION_WORDS]
    known_words = set(words(reading.context))
    return {
        "length": math.log1p(len(tokens)) / 4,
        "sentences": math.log1p(len(reading.sentences)) / 2,
        "ends_asking": float(turn.endswith("?")),
        "filler": _share(sum(token in voices.FILLER_WORDS for token in content), len(content)),
        "equations": min(4, len(_EQUATION.findall(turn))) / 4,
        "function_words": _share(len(tokens) - len(content), len(tokens)),
        "repetition": repetition(tokens),
        "odd_words": float(any(_odd(word) for word in _LETTERS.findall(turn) if word.lower() not in known_words)),
        "glued": float(bool(_GLUED.search(turn))),
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
