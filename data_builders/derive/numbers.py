r"""Gaps of kind "number": a stated number left vague ("some pens") or blank ("a radius of ___ inches").

A number may be withheld where it stands once in the question, the solution computes with it, and it is not the
answer. What is asked for is named by `naming`, or by quoting the place.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterator

from data_builders.derive.amounts import Amount, amounts, another, closing, worth_of
from data_builders.derive.echoes import echo
from data_builders.derive.english import UNITS, leading_words, noun_phrase
from data_builders.derive.evidence import Evidence
from data_builders.derive.naming import name_of
from data_builders.derive.values import same_value, stands_in
from data_builders.derive.wording import BLANKS, NO_VAGUE_AFTER, NO_VAGUE_BEFORE, Name, quote, vague_words
from data_builders.tasks import Gap

_LARGE = ("dozen", "hundred", "thousand", "million", "billion", "percent", "more", "other", "different")
# What everybody knows is not asked for: a deck of 52 cards, a foot of 12 inches.
_STANDARD = re.compile(
    r"\b(?:standard|regular|normal|ordinary)(?: [a-z]+)* of $|\bstandard $|\b(?:1|one|a|an) (?:foot|mile|yard|hour|minute|day|week|year|gallon|quart|pint"
    r"|cup|pound|kilogram|kilometer|meter|dollar|dozen)s? (?:is|equals|=|has|contains|is equal to|being) $"
)
_LONGEST_REVEAL = 140


def number_gaps(evidence: Evidence, rng: random.Random) -> Iterator[Gap]:
    """One gap for each number that may be withheld, in the order in which they are found."""
    for amount in amounts(evidence.question):
        if evidence.may_withhold(amount):
            gap = _gap(evidence, amount, rng)
            if gap is not None:
                yield gap


def _gap(evidence: Evidence, amount: Amount, rng: random.Random) -> Gap | None:
    text = evidence.question
    start, end = text.sentence(amount.start)
    before, after = text.raw[start : amount.start], text.raw[amount.end : end]
    counted = noun_phrase(after) if amount.kind in ("count", "word") else ""
    name = name_of(before, amount, after, counted)
    vague = _may_be_vague(amount, before, after, counted)
    if (amount.kind == "word" and not vague) or evidence.said_again(amount, counted) or _STANDARD.search(before):
        return None
    if re.search(r",\s*\$,? (?:and |or )?$", before) and "=" in before:
        return None  # the last of a row: "for $n = 1, 2, 3,$ and $4$"
    if vague and (amount.kind == "word" or rng.random() < 0.6):
        hidden = vague_words(rng, capital=not before.strip())
    else:
        vague, hidden = False, _blank(amount, rng)
    question = text.raw[: amount.start] + hidden + closing(text, amount) + text.raw[amount.end :]
    if name is not None and (_is_the_goal(name, counted, text.raw) or _of_several(name, text.raw)):
        name = None
    name = name or _placed(evidence, amount, hidden, counted, vague, rng)
    if name is None or stands_in(amount.value, question):
        return None
    unit = counted or _unit(after)
    shown = amount.shown.lower() if amount.kind == "word" else amount.shown
    short = f"{shown} {unit}" if unit else shown
    return Gap(
        question=question,
        clause=name.clause,
        ask=name.ask,
        reveal=_reveal(text.raw[start:end], name, short, rng),
        short=short,
        value=amount.value,
        kind="number",
        thing=name.thing,
        other=_other(evidence, amount, short),
    )


def _may_be_vague(amount: Amount, before: str, after: str, counted: str) -> bool:
    """Whether "some" reads in the number's place."""
    if not counted or amount.kind not in ("count", "word") or after.startswith("-"):
        return False
    words = counted.lower().split()
    if words[0] in _LARGE or UNITS & set(words[:2]) or (worth_of(amount.value) or 0) < 2 or "." in amount.value:
        return False
    rest = after[len(counted) + 1 :]
    return not NO_VAGUE_AFTER.search(before) and not NO_VAGUE_BEFORE.match(rest)


def _blank(amount: Amount, rng: random.Random) -> str:
    """A visible blank that keeps the sign of money, of a percentage and of degrees."""
    if amount.kind in ("money", "percent"):
        blank = rng.choice(("___", "[?]"))
        money, percent = (r"\$", r"\%") if "\\" in amount.shown else ("$", "%")
        return money + blank if amount.kind == "money" else blank + percent
    if amount.kind == "degrees":
        return r"$?^\circ$"
    return rng.choice(BLANKS)


def _unit(after: str) -> str:
    words = leading_words(after, 1)
    return words[0] if words and (words[0] in UNITS or words[0] in _LARGE[:5]) else ""


def _is_the_goal(name: Name, counted: str, question: str) -> bool:
    """Whether the name would read like the problem's own question."""
    asked = question.lower()
    return f"how many {counted}".lower() in asked if counted else name.ask.lower().rstrip("?") in asked


def _of_several(name: Name, question: str) -> bool:
    """Whether the question speaks of this measure more than once, and the name does not say of what by a formula."""
    measure = name.thing.partition(" of ")[0].removeprefix("the ")
    return not name.thing.startswith("the number") and "$" not in name.thing and question.lower().count(measure) > 1


def _placed(
    evidence: Evidence, amount: Amount, hidden: str, counted: str, vague: bool, rng: random.Random
) -> Name | None:
    """The number named by its place: its clause said again as a question, or quoted."""
    text = evidence.question
    place = quote(text, amount.start, amount.end, hidden)
    if not place:
        return None
    what = {"money": "amount", "percent": "percentage", "degrees": "angle"}.get(amount.kind, "number")
    bare = counted.partition(" of ")[0]
    if vague:
        asks = [f'It says "{place}", but how many {bare} exactly?', f'How many {bare} are meant in "{place}"?']
        name = Name(rng.choice(asks), f'how many {bare} are meant by "{place}"', f'the number of {bare} in "{place}"')
    else:
        asks = [
            f'What is the {what} in "{place}"?', f'Which {what} belongs in "{place}"?',
            f'It says "{place}". What is the {what} there?',
        ]  # fmt: skip
        name = Name(rng.choice(asks), f'which {what} belongs in "{place}"', f'the {what} in "{place}"')
    start, end = text.sentence(amount.start)
    asked = text.raw[start:end].endswith("?") and not text.raw[start:].startswith("If ")
    echoed = "" if asked else echo(text.raw[start : amount.start], amount, text.raw[amount.end : end], counted)
    return dataclasses.replace(name, ask=echoed) if echoed and rng.random() < 0.8 else name


def _reveal(sentence: str, name: Name, short: str, rng: random.Random) -> str:
    """The sentence that states the number, the name's own, or the bare thing."""
    plain = not sentence.endswith("?") and len(sentence) <= _LONGEST_REVEAL and "\n" not in sentence
    said = (
        name.said.format(short=short)
        if "{" not in name.said.replace("{short}", "")
        else name.said.replace("{short}", short)
    )
    return sentence if plain and rng.random() < 0.5 else said


def _other(evidence: Evidence, amount: Amount, short: str) -> str:
    value = another(amount.value, amount.kind)
    if not value or stands_in(value, evidence.question.raw) or same_value(value, evidence.answer):
        return ""
    return short.replace(amount.value.lower(), value.lower(), 1)
