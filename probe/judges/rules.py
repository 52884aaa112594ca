"""The offline judge: clear cases by rule, all others by a transparent score. Deterministic, no model, no network.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from probe.judges import voices
from probe.judges.cleaning import Cleaned, clean
from probe.judges.labels import Case, Verdict
from probe.judges.signals import repetition, signals
from probe.judges.words import FUNCTION_WORDS, content_stems, sentences, words

_FOREIGN = frozenset(
    """der die das und ist nicht ich wie aber ein eine mit auf für wird oder auch le la les des est et une dans pour que qui
    pas sur avec je il elle nous vous el los las una por con para es son cómo qué del al se en de du au il che di non per
    sono come gli della het een van niet dat zijn wat en os um uma não com para como é""".split()
)
_RUN = re.compile(r"(.)\1{19,}|\d{25,}", re.DOTALL)
_WORD_RUN = re.compile(r"[^\W_]{30,}")
_MEANT = frozenset("why how what when where who which really no yes ok okay so because again more him her them him us me you same both either neither each none all now then here there never always".split())


def language(turn: str, context: str) -> str:
    """"english" or "not_english"."""
    letters = [character for character in turn if character.isalpha()]
    if not letters:
        return "english"
    latin = sum(1 for character in letters if character < "\u0250")
    if latin * 2 < len(letters):
        return "not_english"
    tokens = words(turn)
    english = sum(token in FUNCTION_WORDS for token in tokens)
    foreign = sum(token in _FOREIGN for token in tokens)
    if foreign > english and foreign * 5 >= len(tokens):
        return "not_english"
    if english == 0 and not any(t in voices.FILLER_WORDS for t in tokens):
        ct = words(context)
        if ct and sum(t in FUNCTION_WORDS for t in ct) * 5 < len(ct) and sum(t in _FOREIGN for t in ct) > 2:
            return "not_english"
    return "english"


def clear(case: Case, cleaned: Cleaned) -> tuple[str, str] | None:
    text = cleaned.text
    answer = case.messages[-1]["content"]
    tokens = words(text)
    tail = sentences(answer)[-1:] or [""]
    asked_back = "?" in answer[-160:]
    unfinished = bool(answer) and answer.rstrip()[-1:] not in ".!?:。!?\"'”’)*`}]$"
    if cleaned.markup > 0.5 or (not text and (cleaned.aimed or cleaned.markup)):
        return "malformed", "markup"
    if not tokens:
        return "degenerate", "no words"
    if len(tokens) <= 2 and all(token in FUNCTION_WORDS and token not in _MEANT for token in tokens) and not asked_back:
        return "degenerate", "one or two function words"
    runs = sum(len(match.group()) for match in _RUN.finditer(text))
    if runs * 3 > len(text):
        return "malformed", "runs"
    if len(tokens) >= 10 and repetition(text) > 0.45:
        return "malformed", "loop"
    symbols = sum(not character.isalnum() and not character.isspace() for character in text)
    solid = len("".join(text.split()))
    if solid >= 20 and symbols > 0.42 * solid:
        return "malformed", "symbols"
    planning = {m.group().lower() for m in voices.PLANNING.finditer(text)}
    if len(planning) >= 2 or (planning and len(sentences(text)) <= 1):
        return "meta_planning", "planning"
    content = [t for t in tokens if t not in FUNCTION_WORDS]
    if all(t in voices.FILLER_WORDS for t in content):
        if unfinished and voices.CONTINUING.search(text):
            return "genuine_followup", "asks for the rest"
        if asked_back and voices.ANSWERING.search(text):
            return "genuine_followup", "answers"
        if not (voices.LEANING.search(text) and content):
            return "generic_filler", "worn words"
    return None
