"""What an assistant's question is about: what a user has withheld, what stands in the chat, or something else.

By content words alone (`probe.judges.words`). A question is about what is withheld where it names at least half of it,
or the same quantity, and no sentence of the chat that states a number explains the question as well: "How many bags
are there?" is about the number of bags, and not about the marbles in each bag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from probe.answers import lenient_answer, sentences, strict_answer
from probe.judges.words import content_stems, stem

# Where a reply asks; a question before that is one that it has answered itself.
_LAST = 4
# Beyond this no reference is as long, and comparing could take for ever.
_LONGEST_ANSWER = 200
_AT_LEAST = 0.5

_STATED = re.compile(r"\banswer\s*(?:is|:|=)[\s:*$\\(]{0,6}-?\d", re.IGNORECASE)
_REQUEST = re.compile(
    r"\b(?:please (?:tell|give|share|provide|say|send|specify|clarify|state|add)|(?:tell|give) me|let me know"
    r"|(?:i|we)(?:'d| would)? (?:still |also |first )?need (?:the|a|one|to know|more)|(?:is|are) (?:still )?missing"
    r"|you (?:did(?: not|n't)|have(?: not|n't)|never|forgot to) (?:say|said|tell|told|give|given|mention|state)\w*"
    r"|(?:is|are)(?: not|n't) (?:given|stated|specified|clear)"
    r"|can(?:not|'t| not) (?:be )?(?:solve|finish|answer|compute|calculate|determine|go on|continue)\w*)\b",
    re.IGNORECASE,
)
_GENERAL = re.compile(
    r"\b(?:what(?:'s| is| else is)? (?:still )?missing|(?:anything|something) (?:else|missing|is missing|you left)"
    r"|(?:more|missing|additional|further) (?:information|details?|context|data)|is (?:that|this) (?:all|everything)"
    r"|(?:full|whole|complete|entire|exact) (?:problem|question|text|statement|exercise|task)"
    r"|(?:did|have) you (?:leave|left|forget|forgot)|(?:number|value|detail|information|given|part|piece)s? (?:is|are) missing"
    r"|(?:another|one more) (?:number|value|detail|piece)|how does (?:it|the (?:text|problem|sentence)) (?:end|go on|continue)"
    r"|which (?:one|of (?:the|these|those|them|both)|value|number)\b.{0,40}\b(?:right|correct|holds?|counts?|true|valid|meant?|use))\b",
    re.IGNORECASE,
)
_GOAL = re.compile(
    r"\b(?:what|which)\b[^?]{0,60}\b(?:find|found|question|asked|ask|want|wanted|looking for|know|compute|calculate"
    r"|determine|solve|goal|task|problem|help|work out|figure out)\b",
    re.IGNORECASE,
)
_IS_GOAL = re.compile(
    r"\b(?:question (?:itself|about)|the (?:question|problem|exercise|task)$|whole (?:question|problem)|to be found|you want to know"
    r"|wanted|is asked|find out about|what (?:is|'s) the (?:question|problem|task))\b",
    re.IGNORECASE,
)
_FOLLOWING = re.compile(
    r"\b(?:sense|clear|follow|understand|with me|so far|got (?:it|that)|see (?:why|how|that)|looks? right|(?:shall|should) (?:i|we)"
    r"|(?:would|do) you (?:like|want)|want me to|ready|help|any questions|try|next)\b",
    re.IGNORECASE,
)
_LEANING = re.compile(r"\b(?:it|that|this|those|them|these|there|here)\b", re.IGNORECASE)
_EACH = re.compile(r"\b(?:each|every|per|apiece)\b", re.IGNORECASE)
_HEAD = re.compile(
    r"\bhow (?:many|much)\b|\bhow (?=\w)|\b(?:number|amount) of\b|\bwhat(?:'s| is| are) the (?!number|amount)",
    re.IGNORECASE,
)
_COUNTED = re.compile(r"(?<![\w.,$])\d[\d,.]*(?= )")
_PARTS = re.compile(r"(?:,|;|\band\b|\bbut\b)\s+")
_NAMED = re.compile(r"\s*(?:(?:the|more|of|other|new|different)\s+)*([^\s?.,]+)", re.IGNORECASE)
# Dollars around mathematics, not before two prices.
_FORMULA = re.compile(r"(?<!\\)\$(?=[^$]*[=\\^{}+<>]|\d*[A-Za-z]\b|[A-Z]{2,3}\b)[^$]{1,80}(?<!\\)\$")
_BLANK = re.compile(
    r"_{3,}|\[(?:\?|unreadable|formula(?: missing)?|image|cut off)\]|\((?:\?|formula didn't paste|can't read this part)\)"
)
# Words that point at a place instead of naming a quantity.
_POINTING = frozenset(map(stem, ("mean", "means", "meant", "belongs", "exactly", "there", "stand", "stands", "amount")))
_MUCH = "much"
_SAME = {
    stem(word): stem(as_word)
    for as_word, others in {
        "long": "length", "wide": "width breadth", "tall": "height high", "old": "age", "cost": "price",
        "weigh": "weight heavy", "big": "size large", "figure": "diagram drawing picture image graph sketch",
    }.items()
    for word in others.split()
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    """What a question can be about. `named`: `withheld` names the thing itself, not the sentence that states it."""

    withheld: tuple[str, ...]
    said: tuple[str, ...]
    named: bool = True


@dataclass(frozen=True)
class Asked:
    """What one question is about; `place` is the sentence of the chat that a question about a given is answered by."""

    about: Literal["withheld", "anything", "given", "following", "other"]
    place: str = ""

    @property
    def rank(self) -> int:
        return ("withheld", "anything", "given", "following", "other").index(self.about)


def marked_answer(text: str) -> str | None:
    r"""The answer of a reply as a person would take it: `\boxed{...}`, `#### ...` or "the answer is ..."; else None."""
    given = strict_answer(text)
    if given is None and _STATED.search(text) and not text.rstrip().endswith("?"):
        given = lenient_answer(text)
    return given[:_LONGEST_ANSWER] if given else None


def questions(text: str) -> list[str]:
    """The questions and requests of a reply, each with the sentence before it where it leans on that."""
    parts = sentences(_BLANK.sub("___", text))
    found = []
    for place in range(max(0, len(parts) - _LAST), len(parts)):
        if parts[place].endswith("?") or _REQUEST.search(parts[place]):
            leans = place > 0 and _LEANING.search(parts[place]) and not _FOLLOWING.search(parts[place])
            found.append(f"{parts[place - 1]} {parts[place]}" if leans else parts[place])
    return found


def read_question(text: str, question: Question) -> Asked:
    asked = _quantity(text)
    given = max((_quantity(part, stated=True) for part in _stated(question.said)), key=asked.shared, default=_NOTHING)
    if question.withheld and _BLANK.search(text):  # it points at the place where something was left out
        return Asked("withheld")
    for withheld in question.withheld:
        if question.named and _IS_GOAL.search(withheld):
            if _GOAL.search(text) or _IS_GOAL.search(text):
                return Asked("withheld")
        elif not _IS_GOAL.search(text) and _is_about(asked, _quantity(withheld), given, question.named):
            return Asked("withheld")
    if _GENERAL.search(text):
        return Asked("anything")
    if asked.shared(given) >= max(1, _AT_LEAST * len(asked.stems)):
        return Asked("given", given.text)
    return Asked("following" if _FOLLOWING.search(text) else "other")


@dataclass(frozen=True)
class _Quantity:
    """A question, clause or sentence: its content stems, and the quantities that it is after, or states."""

    text: str
    stems: frozenset[str]
    heads: frozenset[str]

    @property
    def formulas(self) -> frozenset[str]:
        return frozenset(one for one in self.stems if one.startswith("$"))

    def shared(self, other: _Quantity) -> int:
        """How much two have in common; the same quantity counts beside its word."""
        return len(self.stems & other.stems) + bool(self.heads & other.heads)


_NOTHING = _Quantity("", frozenset(), frozenset())


def _is_about(asked: _Quantity, withheld: _Quantity, given: _Quantity, named: bool) -> bool:
    shared = asked.stems & withheld.stems
    same = bool(asked.heads & withheld.heads)
    other = bool(asked.heads and withheld.heads) and not same
    # "How many bags" is not about "how many marbles are in each bag", where bags play another part.
    if not shared or (named and other and (_MUCH in asked.heads | withheld.heads or asked.heads & withheld.stems)):
        return False
    if asked.formulas and withheld.formulas and not asked.formulas & withheld.formulas:
        return False
    if named and shared == withheld.stems:
        return True
    rest = asked.stems - withheld.stems
    if rest and rest <= given.stems:  # what sets the question apart stands in the chat
        return False
    enough = len(shared) >= _AT_LEAST * len(withheld.stems if named else asked.stems)
    return (enough or (named and same)) and len(shared) + same > asked.shared(given)


def _stated(said: tuple[str, ...]) -> Iterator[str]:
    """The parts of the user's messages that state a number or a formula."""
    for message in said:
        for sentence in sentences(_BLANK.sub("___", message)):
            for part in [sentence] if _FORMULA.search(sentence) else _PARTS.split(sentence):
                states = "$" in part or any(one[0].isdigit() for one in content_stems(part))
                if states and not part.endswith("?") and not _BLANK.search(part):
                    yield part


def _quantity(text: str, stated: bool = False) -> _Quantity:
    """Words for one measure count as one; so does "each", since it tells a whole from a part."""
    stems = {_SAME.get(one, one) for one in content_stems(text)} - _POINTING | (
        {"each"} if _EACH.search(text) else set()
    )
    for formula in _FORMULA.findall(text):  # a variable may look like a small word
        stems |= {f"${''.join(side.split()).strip('.,;')}$" for side in formula.strip("$").split("=")}
    if stated:
        return _Quantity(text, frozenset(stems), frozenset(_after(text, _COUNTED)))
    return _Quantity(text, frozenset(stems), frozenset(_after(text, _HEAD)))


def _after(text: str, mark: re.Pattern[str]) -> Iterator[str]:
    """The quantities named after a mark: "marbl" after "how many", "wide" after "how"; "how much" names none itself."""
    for found in mark.finditer(text):
        if found.group().lower().startswith("how much"):
            yield _MUCH
        elif (named := _NAMED.match(text, found.end())) and (stems := content_stems(named.group(1))):
            yield _SAME.get(stems[0], stems[0])
