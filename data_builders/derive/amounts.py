r"""The numbers a problem states: counts, money, percentages, degrees and number words, each with its place.

A number alone in a formula ("$12$ inches", "$60^\circ$", "$\$5$") is a number of the text like any other.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from data_builders.derive.latex import Text
from data_builders.derive.values import number

AmountKind = Literal["count", "money", "percent", "degrees", "word"]

_WORDS = ("three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_TENS = {"fifteen": 15, "sixteen": 16, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60}
NUMBER_WORDS = {word: value for value, word in enumerate(_WORDS, start=3)} | _TENS

_PLAIN = re.compile(r"(?<![\w.,/\\$:^)}-])(\\?\$)?(\d[\d,]*(?:\.\d+)?)( ?\\?%)?(?![\w/:^%]|[.,]\d|-\d)")
_INNER = re.compile(
    r"\s*(\\\$)?\s*(\d+(?:,\d{3})*(?:\.\d+)?)\s*(\\%|\^\s*\{?\\circ\}?|\\(?:text|mathrm|mbox)\{[^{}$]*\})?\s*([.,;:?]?)\s*"
)
_WORD = re.compile(rf"\b({'|'.join(NUMBER_WORDS)})\b(?= [a-z])", re.IGNORECASE)
_YEAR = re.compile(r"(?:\b(?:in|since|until|by|year|of|January|February|March|April|May|June|July|August|September|October"
                   r"|November|December)|\d,)\s*$")  # fmt: skip


@dataclass(frozen=True)
class Amount:
    """A stated number: `shown` is the text from `start` to `end`, `value` the bare number or number word in it."""

    start: int
    end: int
    shown: str
    value: str
    kind: AmountKind

    def with_value(self, value: str) -> str:
        return self.shown.replace(self.value, value, 1)


def amounts(text: Text) -> Iterator[Amount]:
    """All numbers of a text that stand by themselves, in the order of their kinds and places."""
    for match in _PLAIN.finditer(text.mask):
        money, value, percent = match.groups()
        value = value.rstrip(",")
        end = match.end() if percent else match.start(2) + len(value)
        if len(value) == 4 and value[:2] in ("19", "20") and _YEAR.search(text.mask, 0, match.start()):
            continue
        kind: AmountKind = "money" if money else "percent" if percent else "count"
        yield Amount(match.start(), end, text.raw[match.start() : end], value, kind)
    for formula in text.formulas:
        inside = None if formula.drawing or formula.display else _INNER.fullmatch(text.inner(formula))
        if inside is None:
            continue
        money, value, unit, stop = inside.groups()
        kind = "money" if money else "percent" if unit == r"\%" else "degrees" if unit and "circ" in unit else "count"
        shown = text.raw[formula.start : formula.end]
        end = formula.end
        if stop:  # the stop belongs to the sentence
            shown = re.sub(rf"\s*{re.escape(stop)}\s*\$$", "$", shown)
        yield Amount(formula.start, end, shown, value, kind)
    for match in _WORD.finditer(text.mask):
        yield Amount(match.start(), match.end(), match.group(), match.group(), "word")


def closing(text: Text, amount: Amount) -> str:
    """The stop that the amount's formula holds for its sentence: the "." of "$12.$"."""
    raw = text.raw[amount.start : amount.end]
    return raw.rstrip("$").rstrip()[-1] if raw != amount.shown else ""


def worth_of(value: str) -> Fraction | None:
    """What a number or number word says."""
    word = NUMBER_WORDS.get(value.lower())
    return Fraction(word) if word is not None else number(value)


def another(value: str, kind: AmountKind) -> str:
    """A near, different number of the same form: the same for the same value, at most a third away."""
    rng = random.Random(f"another:{value}")
    if value.lower() in NUMBER_WORDS:
        words = list(NUMBER_WORDS)
        at = words.index(value.lower())
        other = words[at + rng.choice((-1, 1)) if 0 < at < len(words) - 1 else abs(at - 1)]
        return other.capitalize() if value[0].isupper() else other
    whole, _, cents = value.partition(".")
    before = int(whole.replace(",", ""))
    by = 10 if before >= 40 and before % 10 == 0 else 5 if before >= 20 and before % 5 == 0 else 1
    if before >= 1000 and before % 100 == 0:
        by = 100
    far = max(1, before // (3 * by))
    changed = before + by * rng.choice((-1, 1)) * rng.randint(1, far)
    if changed < 2 or (kind == "percent" and changed > 100):
        changed = before + by if kind != "percent" or before + by <= 100 else before - by
    return (f"{changed:,}" if "," in whole else str(changed)) + (f".{cents}" if cents else "")
