"""What an assistant's reply asks for, as the scripted user, the reward and the dialogue builder read it.

A question is read by its content words alone (`probe.text.words`). It is about the withheld fact if it names at least half of the
fact's words, or the same quantity, and no sentence of the conversation that states a number matches the question as well: "How
many bags are there?" is about the number of bags, and not about the marbles in each bag.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from nextturn.data_builders.sections import wordings
from nextturn.probe.text.grading import asks, lenient_answer, strict_answer
from nextturn.probe.text.words import content_stems, rough_sentences, stem

ABOUT = ("withheld", "anything", "given", "following", "other")
"""What a question can be about. Of several questions, the first in this order is answered."""
_LAST_SENTENCES = 4  # sentences of a reply that are read; earlier questions are ones that it has answered itself
LONGEST_ANSWER = 200  # no reference answer is as long, and a comparison could take forever
_AT_LEAST = 0.5

_STATED_ANSWER = re.compile(r"\banswer\s*(?:is|:|=)[\s:*$\\(]{0,6}-?\d", re.IGNORECASE)  # without a mark
# The sentence needs the one before it.
_REFERS_BACK = re.compile(r"\b(?:it|that|this|those|them|these|there|here)\b", re.IGNORECASE)
# Distinguishes a part from the whole.
_EACH = re.compile(r"\b(?:each|every|per|apiece)\b", re.IGNORECASE)
# The quantity that is asked for follows.
_HEAD = re.compile(
    r"\bhow (?:many|much)\b|\bhow (?=\w)|\b(?:number|amount) of\b|\bwhat(?:'s| is| are) the (?!number|amount)",
    re.IGNORECASE,
)
# A number; the noun that it counts follows.
_COUNTED = re.compile(r"(?<![\w.,$])\d[\d,.]*(?= )")
# Between the parts of a sentence.
_PARTS = re.compile(r"(?:,|;|\band\b|\bbut\b)\s+")
# The word that names the quantity.
_QUANTITY_WORD = re.compile(r"\s*(?:(?:the|more|of|other|new|different)\s+)*([^\s?.,]+)", re.IGNORECASE)
# Dollars around mathematics, not before two prices.
_FORMULA = re.compile(r"(?<!\\)\$(?=[^$]*[=\\^{}+<>]|\d*[A-Za-z]\b|[A-Z]{2,3}\b)[^$]{1,80}(?<!\\)\$")
_POINTING = frozenset(map(stem, wordings("words.yaml")["pointing"]))
_SAME = {stem(word): stem(as_word) for word, as_word in wordings("words.yaml")["same_quantity"].items()}
_MUCH = "much"


@cache
def _phrases(name: str) -> re.Pattern[str]:
    """Return the pattern of `request`, `general` or `following` in acts.yaml."""
    lines = wordings("acts.yaml")["questions"][name].splitlines()
    return re.compile(rf"\b(?:{'|'.join(lines)})\b", re.IGNORECASE)


def marked_answer(text: str) -> str | None:
    r"""Return the answer of a reply as a person would read it: `\boxed{...}`, `#### ...` or "the answer is ..."; else None."""
    answer = strict_answer(text)
    if answer is None and _STATED_ANSWER.search(text) and not text.rstrip().endswith("?"):
        answer = lenient_answer(text)
    return answer[:LONGEST_ANSWER] if answer else None


def questions(text: str) -> list[str]:
    """Return the questions and requests of a reply, each with the sentence before it if it refers back."""
    parts, asked = ["", *rough_sentences(text)], []
    for before, part in list(itertools.pairwise(parts))[-_LAST_SENTENCES:]:
        if part.endswith("?") or _phrases("request").search(part):
            refers_back = before and _REFERS_BACK.search(part) and not _phrases("following").search(part)
            asked.append(f"{before} {part}" if refers_back else part)
    return asked


def read_question(
    text: str, names: Sequence[str], user_texts: Sequence[str], sentences: Sequence[str] = (), ask: str = ""
) -> tuple[str, str]:
    """Return what a question is about (see ABOUT), and for a given fact the sentence that states it.

    Args:
        names: Names of the withheld fact.
        user_texts: The user's messages.
        sentences: Sentences that state the withheld fact, which are read if it has no name.
        ask: The reply of the data that asks for the fact. People use other words in questions than in lists ("how far is
            it?" for "the distance"): by the names alone, 43 of 110 written replies were not recognized.
    """
    asked = _quantity(text)
    stated = (_quantity(part, stated=True) for part in _stating(user_texts))
    given = max(stated, key=asked.shared, default=_NOTHING)
    if any(_is_about(asked, _quantity(withheld), given, bool(names)) for withheld in names or sentences):
        return "withheld", ""
    if any(_asks_alike(asked, _quantity(known), given) for known in questions(ask) if known.endswith("?")):
        return "withheld", ""
    if _phrases("general").search(text):
        return "anything", ""
    if asked.shared(given) >= max(1, _AT_LEAST * len(asked.stems)):
        return "given", given.text
    return ("following" if _phrases("following").search(text) else "other"), ""


def asked_about(
    reply: str, names: Sequence[str], user_texts: Sequence[str], sentences: Sequence[str], ask: str
) -> set[str]:
    """Return what the questions of a reply are about. Each is also read with the sentence before it: "I mean the price of a pen. Do
    you see it?" Arguments as in `read_question`."""
    pairs = itertools.pairwise(rough_sentences(reply))
    asked = [*questions(reply), *(f"{before} {after}" for before, after in pairs if after.endswith("?"))]
    return {read_question(each, names, user_texts, sentences, ask)[0] for each in asked}


def asks_instead(reply: str, user_texts: Sequence[str]) -> bool:
    """Return True if a reply to a complete problem asks instead of answering: it marks no answer, and requests something or asks
    what the scripted user would answer with more than a nod ("Does that help?")."""
    if asks(reply):
        return True
    return marked_answer(reply) is None and any(
        not question.endswith("?") or read_question(question, (), user_texts)[0] != "following"
        for question in questions(reply)
    )


def names_fact(question: str, name: str, said: str) -> bool:
    """Return True if a question asks for the fact of this name: the scripted user reads it so, or it contains a word of the name that
    is not in the user's message `said`, or most of the name's words."""
    wanted, asked = set(content_stems(name)), set(content_stems(question))
    about, _ = read_question(question, (name,), (said,))
    return (
        about == "withheld"
        or bool((wanted - set(content_stems(said))) & asked)
        or 2 * len(wanted & asked) > len(wanted)
    )


@dataclass(frozen=True)
class _Quantity:
    """A question, clause or sentence: its content stems, and the quantities that it asks for or states."""

    text: str
    stems: frozenset[str]
    heads: frozenset[str]

    @property
    def formulas(self) -> frozenset[str]:
        return frozenset(stem for stem in self.stems if stem.startswith("$"))

    def shared(self, other: _Quantity) -> int:
        """Return the number of common stems, plus one for a common quantity."""
        return len(self.stems & other.stems) + bool(self.heads & other.heads)


_NOTHING = _Quantity("", frozenset(), frozenset())


def _is_about(asked: _Quantity, withheld: _Quantity, given: _Quantity, named: bool) -> bool:
    """Return True if a question is about the withheld fact rather than about the given fact `given`."""
    shared = asked.stems & withheld.stems
    same = bool(asked.heads & withheld.heads)
    other = bool(asked.heads and withheld.heads) and not same
    # "How many bags" is not about "how many marbles are in each bag", where bags are not counted.
    if not shared or (named and other and (_MUCH in asked.heads | withheld.heads or asked.heads & withheld.stems)):
        return False
    if asked.formulas and withheld.formulas and not asked.formulas & withheld.formulas:
        return False
    if named and shared == withheld.stems:
        return True
    rest = asked.stems - withheld.stems
    if rest and rest <= given.stems:  # the words that set the question apart are those of the given fact
        return False
    enough = len(shared) >= _AT_LEAST * len(withheld.stems if named else asked.stems)
    return (enough or (named and same)) and len(shared) + same > asked.shared(given)


def _asks_alike(asked: _Quantity, known: _Quantity, given: _Quantity) -> bool:
    """Return True if two questions ask for the same: the same quantity and another common word, or mostly common words."""
    if asked.stems == known.stems and asked.heads == known.heads:
        return True
    shared, same = asked.stems & known.stems, bool(asked.heads & known.heads - {_MUCH})
    if bool(asked.heads and known.heads) and not same:
        return False
    alike = len(shared) >= 2 and (same or 2 * len(shared) > len(asked.stems | known.stems))
    return alike and len(shared) + same > asked.shared(given)


def _stating(user_texts: Sequence[str]) -> Iterator[str]:
    """Yield the parts of the user's messages that state a number or a formula."""
    for sentence in itertools.chain.from_iterable(map(rough_sentences, user_texts)):
        for part in [sentence] if _FORMULA.search(sentence) else _PARTS.split(sentence):
            has_value = "$" in part or any(stem[0].isdigit() for stem in content_stems(part))
            if has_value and not part.endswith("?"):
                yield part


def _quantity(text: str, stated: bool = False) -> _Quantity:
    """Return the quantity of a text. Words for one measure count as one word, and so do the words for "each"."""
    stems = {_SAME.get(stem, stem) for stem in content_stems(text)} - _POINTING
    if _EACH.search(text):
        stems.add("each")
    for formula in _FORMULA.findall(text):  # a variable may look like a small word
        stems |= {f"${''.join(side.split()).strip('.,;')}$" for side in formula.strip("$").split("=")}
    return _Quantity(text, frozenset(stems), frozenset(_after(text, _COUNTED if stated else _HEAD)))


def _after(text: str, mark: re.Pattern[str]) -> Iterator[str]:
    """Yield the quantities after a mark: "marbl" after "how many", "wide" after "how", and "much" for "how much"."""
    for match in mark.finditer(text):
        if match.group().lower().startswith("how much"):
            yield _MUCH
        elif (word := _QUANTITY_WORD.match(text, match.end())) and (stems := content_stems(word.group(1))):
            yield _SAME.get(stems[0], stems[0])
