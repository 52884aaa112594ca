r"""How a withheld thing looks in a question: left vague ("some pens") or a blank; and how its place is quoted."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from data_builders.derive.english import has_verb
from data_builders.derive.latex import DRAWING, Text


@dataclass(frozen=True)
class Name:
    """How a withheld thing is asked for. `said` states it again, with `{short}` in its place."""

    ask: str
    clause: str
    thing: str
    said: str = "It's {short}."


BLANKS = ("___", "___", "[?]", "(?)", "[unreadable]")
_VAGUE = ("some", "a few", "several")
# After these words "some" does not read: "these some pens", "exactly some pens".
NO_VAGUE_AFTER = re.compile(
    r"(?:\b(?:this|these|those|the|first|last|next|other|others|all|every|each|only|about|exactly|another|his|her|their|its|my|our"
    r"|your|of|than|or|least|most|to|over|nearly|around|almost|approximately|between|remaining|any|no|same|past|previous|within"
    r"|under|by|up|an?|total|just|additional|extra|both|some|many|top|per|order|for)|['’]s|-|,|[\d$%])\s*$",
    re.IGNORECASE,
)
NO_VAGUE_BEFORE = re.compile(
    r" (?:of them|per|as|more|less|fewer|older|younger|times|old|long|wide|tall|high|deep|away|apart|ago|later|earlier|from now"
    r"|left over|each of which|equals?|=|at a time|in a row)\b"
)
_JOINS = re.compile(r"\s(?:and|but|while|because|that|if|when)\s")
_OPENS = re.compile(r"(?:and|but|so|then|If|if|when|When|while|of|to|by|than|or|that|many|much) ")
_CLOSES = re.compile(r"[,;:]\s|\s(?:and|but|or|which|that|while|who|how|if|when|where|so)\b")
_ASKS = re.compile(r",\s*(?:then )?(?:how|what|which|find|calculate|determine)\b")
_DANGLING = re.compile(
    r"(?:\s(?:the|an?|of|to|in|on|at|for|with|from|by|per|each|his|her|their|its|is|are|was|were|be|than|as|he|she|it|such|and|or|but))+$"
)
_LONGEST_QUOTE = 110


def vague_words(rng: random.Random, capital: bool) -> str:
    chosen = rng.choice(_VAGUE)
    return chosen.capitalize() if capital else chosen


def quote(text: Text, start: int, end: int, instead: str, before: int = 6, after: int = 5) -> str:
    """The words around `text[start:end]` in its clause with `instead` in its place; "" where too few or too many.

    Formulas are kept whole. What belongs to another clause is cut off where enough is left.
    """
    first, last = text.sentence(start)
    left = start - _left(text.mask[first:start], before)
    right = end + _right(text.mask[end:last], after, short=len(text.mask[left:start].split()) < 3)
    behind = text.raw[end:right]
    space = " " if behind[:1].isalnum() else ""
    quoted = " ".join(f"{text.raw[left:start]}{instead}{space}{behind}".split()).rstrip("?!,;:. ")
    whole = quoted.count("(") == quoted.count(")") and len(quoted) <= _LONGEST_QUOTE and '"' not in quoted
    return quoted if whole and len(quoted.split()) >= len(instead.split()) + 2 else ""


def _left(mask: str, most: int) -> int:
    """How many characters to the left belong to the quote."""
    mask = re.split(rf"\"|\n\s*\n|{DRAWING}", mask)[-1]
    if mask.count("(") > mask.count(")"):
        mask = mask.rpartition("(")[2]
    mask = re.split(r"[;:]\s+", mask)[-1]
    clause = re.split(r",\s+", mask)[-1]
    if has_verb(clause) or len(clause.split()) >= 5:
        mask = clause
    earlier, _, later = mask.rpartition(_JOINS.findall(mask)[-1]) if _JOINS.search(mask) else ("", "", mask)
    if later[:1].isalpha() and has_verb(later) and has_verb(earlier):  # two clauses, not "Mark and James need"
        mask = later
    words = [match.start() for match in re.finditer(r"\S+", mask)]
    if len(words) > most + 3:
        mask = mask[words[-most] :]
    opening = _OPENS.match(mask.lstrip())
    if opening and len(mask.split()) > 2:
        mask = mask.lstrip()[opening.end() :]
    return len(mask.lstrip())


def _right(mask: str, most: int, short: bool) -> int:
    """How many characters to the right belong to the quote; more where there is little on the left (`short`)."""
    mask = re.split(rf"\"|\n\s*\n|{DRAWING}", mask)[0]
    # What is glued to the number ("-day") belongs to it.
    match = re.match(rf"\S*(?:\s+\S+){{0,{most}}}", mask)
    kept = match.group().rstrip() if match else ""
    if ")" in kept and "(" not in kept:
        kept = kept.partition(")")[0]
    kept = _ASKS.split(kept)[0] if short else _CLOSES.split(kept)[0]
    return len(_DANGLING.sub("", kept))
