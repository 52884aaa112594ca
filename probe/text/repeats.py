"""Find user turns that repeat or rephrase an earlier one, or that say so ("as I said"), by rules on words. English only.

A repeat shares content words with an earlier turn of the user and brings few of its own. The rules do not find a repeat in other
words, one of a single word, and most repeats inside a long turn with something new. `docs/logs.md` says how often they are right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from nextturn.probe.text.words import content_stems, stem, word_list, words

_SAYING = r"(?:said|say|wrote|written|mentioned|stated|explained|described|specified)"
_BEFORE = (
    r"(?:before|earlier|above|already|twice|(?:two|three|four|five|several|many|2|3|4|5) times|the first time|again and again"
    r"|(?:at|in|from) (?:the|my) (?:very )?(?:beginning|start|top|first|last|previous|original|earlier|opening)\b)"
)
_TO_OTHERS = r"(?! (?:yes|no|ok|hello|hi|bye|goodbye|thanks|down|(?:it |that |so )?to (?:my|him|her|them|the|a|our))\b)"
_DONE = r"(?: have|'ve|ve| had| did| do)?(?: already| just| now| also| clearly| explicitly| repeatedly| even| only)*"
_AS_I_SAID = re.compile(
    r"\b(?:"
    rf"(?:as|like|what) (?:i|we){_DONE} (?:{_SAYING}|told|noted|asked)"
    r"|as (?:already |previously )?(?:stated|said|mentioned|explained|written|described|noted|above)"
    r"|(?:i|we) asked (?:you|u) (?:not )?to"
    rf"|(?:i|we){_DONE} told (?:you|u|your)"
    rf"|(?:i|we){_DONE} {_SAYING}{_TO_OTHERS}"
    rf"|(?:i|we){_DONE} (?:{_SAYING}|told|asked|put|attached|sent|gave|given|listed|answered|provided)\b{_TO_OTHERS}[^.?!]{{0,40}}\b{_BEFORE}"
    r"|(?:i|we)(?: have|'ve|ve)? (?:already|just) (?:gave|given|sent|shown|provided|answered) (?:you|u|that|this|it)"
    r"|(?:i|we)(?: have|'ve|ve)? already (?:answered|provided|listed|attached|asked)(?! (?:my|him|her|them))"
    r"|(?:second|third|fourth|fifth|2nd|3rd|4th|5th|last) time (?:that )?(?:i|i'm|im|we|now)\b"
    r"|for the (?:second|third|fourth|fifth|2nd|3rd|4th|5th|last|umpteenth) time"
    r"|how (?:many times|often) (?:do|must|should) i|(?:i|we) (?:repeat|ask again)|asking (?:you )?again|repeating myself|once again:"
    r"|(?:in|see|read|check) (?:the |what )?(?:my|i|our|we) (?:very )?(?:first|last|previous|original|earlier|opening) (?:message|mail|email|post|question|note|text)"
    r"|in my message|(?:i|we) (?:already )?gave (?:you|u) (?:that|this|my|the|it)|in what i (?:wrote|said|sent)|(?:asked|put|raised) (?:this|that|it) (?:before|already|twice|\w+ times)"
    r")(?!\w)"
)
_CORRECTS = re.compile(r"\b(?:correct (?:this|that|myself|it)|correction|i meant|my (?:mistake|bad)|typo|mistyped)\b")
_QUOTED = re.compile(r"[\"“][^\"”]*[\"”]")
_TAKES_UP = re.compile(
    r"\W*(?:yes|yeah|yep|ok|okay|thanks|thank you|thx|got it|great|perfect|cool|good|oh|so|then|alright|fine|and|now|works|done)\b"
    r"|\W*(?:\w+ ){1,4}again[.,!]"
)
"""Openings of turns that confirm, thank, say that it works again, or ask something new in old words."""


def says_so(turn: str) -> str | None:
    """Return the words by which a user turn says that it was said before ("as I said"), None if there are none."""
    text = _plain(turn)
    found = None if _CORRECTS.search(text) else _AS_I_SAID.search(text)
    return found.group() if found else None


def repeats(turn: str, earlier: Sequence[str], reply: str) -> int | None:
    """Return the number, from 1, of the earlier user turn that a turn repeats or rephrases, None if it repeats none.

    Args:
        earlier: The user's turns before it.
        reply: The assistant's message that it answers. A turn that takes all its words from there confirms or quotes.
    """
    text = _plain(turn)
    said, heard = _content(text), _content(_plain(reply))
    shared, place = max(((said & _content(_plain(each)), place) for place, each in enumerate(earlier, 1)), key=_size)
    same = any(words(text) == words(_plain(each)) for each in earlier)
    if not said or _CORRECTS.search(text) or (_TAKES_UP.match(text) and not same):
        return None
    share, of_user = len(shared) / len(said), len(shared - heard)
    close = (of_user >= 2 and share >= 0.6) or (of_user >= 1 and len(shared) >= 4 and share >= 0.42)
    return place if same or (len(shared) >= 3 and (close or says_so(turn))) else None


def is_english(turn: str) -> bool:
    """Return False if a turn has more function words of other languages than of English, or mostly other letters."""
    said = words(turn)
    letters = [character for character in turn if character.isalpha()]
    foreign, english = (sum(word in word_list(name) for word in said) for name in ("foreign", "function"))
    return foreign <= english and 2 * sum(character < "\u0250" for character in letters) >= len(letters)


def _size(found: tuple[frozenset[str], int]) -> int:
    return len(found[0])


def _plain(text: str) -> str:
    return _QUOTED.sub(" ", text).lower().replace("’", "'")


@lru_cache(maxsize=256)
def _content(text: str) -> frozenset[str]:
    """Return the stems of content words and numbers, without words that fit any exchange."""
    return frozenset(content_stems(text)) - {stem(word) for word in word_list("filler")}
