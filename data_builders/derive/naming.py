"""What a withheld number is called, so that a question about it names the problem's own things.

Tried in order: what it divides, an age, a size, a measure ("What is the radius of the circle?"), what there is,
and what somebody does ("How many clips did Natalia sell in April?"). None where the sentence is built in another
way; then its place is said again or quoted.
"""

from __future__ import annotations

import re

from data_builders.derive.amounts import Amount
from data_builders.derive.english import Doing, definite, doing, lower_first, tail, upper_first
from data_builders.derive.measures import CLAUSE, age, divisor, measure, percentage, size
from data_builders.derive.wording import Name

_COSTS = re.compile(
    rf"{CLAUSE}(?P<subject>(?:[Tt]he|[Aa]n?|[Ee]ach|[Ee]very|[Oo]ne|[Hh]is|[Hh]er) [a-z]+(?: [a-z]+){{0,2}})"
    r" (?P<verb>costs?|sells for|is priced at|is worth)(?: (?:only|exactly))? $"
)
_THERE = re.compile(r"\b[Tt]here (?P<be>are|were|will be)(?: (?:only|exactly|a total of|currently|also|about))? $")
# "$5 more than" is no amount that somebody has.
_COMPARED = re.compile(
    r" ?(?:less|more|fewer|older|younger|off|times|each|per|apiece|an?|every|as|shorter|taller|cheaper|higher|lower|faster"
    r"|longer|extra|additional)\b|/|-"
)


def name_of(before: str, amount: Amount, after: str, counted: str) -> Name | None:
    """The number's name from its sentence: what stands before and after it, and the noun it counts ("" for none)."""
    if amount.kind == "money":
        return _price(before) or _money(before, after)
    if amount.kind == "percent":
        return percentage(after)
    if amount.kind == "degrees":
        return measure(before)
    named = divisor(before) or age(before, after) or size(before, after)
    if named is None and amount.kind == "count":
        named = measure(before)
    if named is None and counted:
        named = _there(before, after, counted) or _done(before, after, counted)
    return named


def _done(before: str, after: str, counted: str) -> Name | None:
    who, rest = doing(before), tail(after[len(counted) + 1 :])
    if who is None or rest is None:
        return None
    return _asked(who, f"many {counted}", f"the number of {re.sub('^more ', 'additional ', counted)}", rest)


def _money(before: str, after: str) -> Name | None:
    who, rest = doing(before), tail(after)
    if who is None or rest is None or _COMPARED.match(after) or who.asked[1] in ("cost", "weigh"):
        return None
    return _asked(who, "much money", "the amount of money", rest)


def _asked(who: Doing, what: str, noun: str, rest: str) -> Name:
    """The name of what somebody does so many or so much of."""
    aux, base = who.asked
    subject, end = definite(who.subject), f"{rest}{who.lead}"
    return Name(
        f"How {what} {aux} {subject} {base}{end}?",
        f"how {what} {subject} {who.said}{end}",
        f"{noun} {subject} {who.said}{end}",
        upper_first(f"{who.subject} {who.said} {{short}}{end}."),
    )


def _there(before: str, after: str, counted: str) -> Name | None:
    match, rest = _THERE.search(before), tail(after[len(counted) + 1 :])
    if match is None or rest is None:
        return None
    be = match.group("be")
    asked = f"will there be{rest}" if be == "will be" else f"{be} there{rest}"
    return Name(
        f"How many {counted} {asked}?", f"how many {counted} there {be}{rest}", f"the number of {counted}{rest}",
        f"There {be} {{short}}{rest}.",
    )  # fmt: skip


def _price(before: str) -> Name | None:
    match = _COSTS.match(before)
    if match is None:
        return None
    subject = definite(lower_first(match.group("subject")))
    past = match.group("verb") == "cost"
    said = "cost" if past else "costs"
    return Name(
        f"How much {'did' if past else 'does'} {subject} cost?", f"how much {subject} {said}", f"the price of {subject}",
        upper_first(f"{subject} {said} {{short}}."),
    )  # fmt: skip
