"""The clear cases, settled by rule before anything is weighed.

In this order: broken or looping text and no words at all, text that is no English, planning about the user, the
question or the answer word for word, a given asked back, worn words that fit any exchange.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from probe.judges import voices
from probe.judges.cleaning import Cleaned
from probe.judges.reading import Reading
from probe.judges.signals import repetition, share_inside
from probe.judges.words import FILLER_WORDS, FUNCTION_WORDS, content_stems, ngrams, sentences, stems, word_set, words

# Function words of German, French, Spanish, Italian, Dutch and Portuguese that are no English words.
_FOREIGN_WORDS = word_set(
    """
    aber auch avec che como comme con dans das dat degli del della der des di dos een eine el elle em en est esta et für
    gli ich il ist je jij jouw las le les lo los mais mit nach nicht niet nous não och oder para pas pero por pour que
    qui qué se sehr sich sind sono sont sur são uma un una und une vous wie wird zijn zu zum è é ça où
    """
)
# Function words that say something alone: "why?", "no", "the same".
_TELLING_WORDS = word_set(
    """
    again all always because both each either here how me more neither never no none nope not now ok okay once one
    really same so still them then there us what when where which who whom whose why yes yet you
    """
)
_QUANTITY = re.compile(
    r"\bhow (?:many|much|old|long|far|often|tall|heavy)\b|\bwhat (?:is|are|was|were)\b", re.IGNORECASE
)
# How an assistant asks for what it was not told.
_CLARIFYING = re.compile(
    r"\bis it (?:known|given|stated)\b|\bdo you know\b|\b(?:can|could) you (?:tell me|look up|find out|say)\b"
    r"|\b(?:text|problem|question) does(?:n.t| not) (?:say|tell|state)\b|\bi (?:need|miss|can.t|cannot) "
    r"|\byou did(?:n.t| not) (?:say|tell|mention)\b",
    re.IGNORECASE,
)
_THANKS = re.compile(r"\b(?:thanks|thank you|thx|appreciate)\b", re.IGNORECASE)
# Stems of asking itself, which are no part of what is asked for.
_ASKING = frozenset(stems("known know given tell look problem text say need detail question number finish"))
_RUN = re.compile(r"(.)\1{19,}|\d{25,}|[A-Za-z]{23,}", re.DOTALL)


@dataclass(frozen=True)
class Settled:
    """What a rule made of a turn: a label, or None where the turn cannot be scored; and which rule."""

    label: str | None
    rule: str


def settle(reading: Reading, cleaned: Cleaned) -> Settled | None:
    """The first rule that applies, or None where the turn has to be weighed."""
    return (
        _broken(reading, cleaned)
        or _unreadable(reading, cleaned)
        or _planning(reading)
        or _copied(reading)
        or _asks_back(reading)
        or _worn(reading)
    )


def _unreadable(reading: Reading, cleaned: Cleaned) -> Settled | None:
    """Text in a language that the rules cannot read; not text that merely switches script in the middle."""
    letters = [character for character in reading.turn if character.isalpha()]
    latin = sum(character <= "\u024f" for character in letters)
    if letters and latin * 2 < len(letters) and cleaned.markup < 0.1:
        return Settled(None, "not_english")
    return None if not letters or _english(reading) else Settled(None, "not_english")


def _english(reading: Reading) -> bool:
    tokens = reading.words
    english, foreign = _function_words(tokens)
    if foreign > english:
        return foreign * 6 < len(tokens)
    if english or any(token in FILLER_WORDS for token in tokens):
        return True
    # Nobody writes a long English sentence without one function word, unless the words stand in the conversation.
    if len(tokens) >= (4 if not reading.turn.isascii() else 8):
        return 3 * share_inside(reading.content, reading.known) >= 1
    # A word or two: in the language of the conversation.
    english, foreign = _function_words(words(reading.context))
    return english >= foreign


def _function_words(tokens: list[str]) -> tuple[int, int]:
    return sum(token in FUNCTION_WORDS for token in tokens), sum(token in _FOREIGN_WORDS for token in tokens)


def _broken(reading: Reading, cleaned: Cleaned) -> Settled | None:
    tokens, text = reading.words, reading.turn
    if cleaned.markup > 0.5 or (not tokens and (cleaned.aimed or cleaned.markup)):
        return Settled("malformed", "markup")
    solid = [character for character in text if not character.isspace()]
    if not tokens:
        return Settled("malformed", "symbols only") if len(solid) > 8 else Settled("degenerate", "no words")
    if len(tokens) <= 2 and all(token in FUNCTION_WORDS and token not in _TELLING_WORDS for token in tokens):
        return Settled("degenerate", "function words only")
    if 3 * sum(len(match.group()) for match in _RUN.finditer(text)) > len(text):
        return Settled("malformed", "run without a break")
    if len(tokens) >= 10 and repetition(tokens) > 0.38:
        return Settled("malformed", "loop")
    if len(solid) >= 20 and sum(not character.isalnum() for character in solid) > 0.42 * len(solid):
        return Settled("malformed", "mostly symbols")
    if text[0] in "{[" and not any(token in FUNCTION_WORDS for token in tokens):
        return Settled("malformed", "data without speech")
    return None


def _planning(reading: Reading) -> Settled | None:
    found = {match.group().lower() for match in voices.PLANNING.finditer(reading.turn)}
    # "The user" can be somebody in the subject: where the conversation speaks of users, one phrase shows nothing.
    about_roles = "user" not in reading.context.lower() and any("user" in each or "assistant" in each for each in found)
    needed = 1 if about_roles or len(reading.sentences) == 1 else 2
    return Settled("meta_planning", f"planning: {', '.join(sorted(found)[:3])}") if len(found) >= needed else None


def _copied(reading: Reading) -> Settled | None:
    """The question or part of the answer again, almost word for word and hardly anything else."""
    turn = stems(reading.turn)
    # A statement lifted from the question can answer the assistant; a question lifted from it only asks again.
    if reading.asks and len(turn) >= 4 and any(turn in ngrams(stems(text), len(turn)) for text in reading.asked):
        return Settled("user_restatement", "part of the question word for word")
    sequences = ngrams(turn, 3)
    if len(sequences) < 3:
        return None
    answer = ngrams(stems(reading.answer), 3)
    if share_inside(sequences, set(answer)) >= 0.8 and share_inside(answer, set(sequences)) >= 0.8:
        return Settled("assistant_restatement", "the answer word for word")
    for text in reading.asked:
        whole = ngrams(stems(text), 3)
        if share_inside(sequences, set(whole)) >= 0.8 and share_inside(whole, set(sequences)) >= 0.8:
            return Settled("user_restatement", "the question word for word")
    if not reading.asks and share_inside(sequences, set(answer)) >= 0.9:
        return Settled("assistant_restatement", "part of the answer word for word")
    return None


def _asks_back(reading: Reading) -> Settled | None:
    """Asks for what the user stated, as an assistant does to whom it was not told.

    A model that was trained to ask for missing givens says such questions under the user's header too. The user
    knows the given and reacts to no part of the answer: it is the assistant's act, in the assistant's place or not.
    """
    asking = [part for part in sentences(reading.turn) if _QUANTITY.search(part)] if reading.turn.endswith("?") else []
    question = asking[-1] if asking else ""
    if not question or any(character.isdigit() for character in question):
        return None
    wanted = set(content_stems(question)) - _ASKING
    if not wanted:
        return None
    said = [part for text in reading.asked for part in sentences(text) if not part.endswith("?")]
    if any(wanted <= set(content_stems(part)) for part in said if any(character.isdigit() for character in part)):
        return Settled("role_drift", "asks for a given that the user stated")
    if _CLARIFYING.search(reading.turn) and wanted <= {stem for text in reading.asked for stem in content_stems(text)}:
        return Settled("role_drift", "asks back about the user's own words")
    return None


def _worn(reading: Reading) -> Settled | None:
    content = [token for token in reading.words if token not in FUNCTION_WORDS]
    if not all(token in FILLER_WORDS for token in content):
        return None
    if reading.unfinished and voices.CONTINUING.search(reading.turn):
        return Settled("genuine_followup", "asks for the rest of an unfinished answer")
    if reading.asked_back and voices.ANSWERING.search(reading.turn):
        return Settled("genuine_followup", "answers the assistant's question")
    if voices.ASSISTANT.search(reading.turn):
        return None
    thanks = not reading.asks and _THANKS.search(reading.turn)
    if content and voices.LEANING.search(reading.turn) and not thanks:
        return None
    return Settled("generic_filler", "worn words only")
