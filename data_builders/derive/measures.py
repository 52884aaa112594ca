"""Names for numbers that measure: a radius, an age, a length, a share, a divisor."""

from __future__ import annotations

import re

from data_builders.derive.english import STOPS, definite, is_plural, lower_first, upper_first
from data_builders.derive.wording import Name

# The start of the clause that a number stands in.
CLAUSE = r"^(?:.*[,;:] |.*\b(?:and|if|If|that|while|but|when) )?"

# A shape has one of each, so "the radius" is enough; of the others it must be said of what.
_SHAPES = (
    "side length|edge length|surface area|slant height|common ratio|common difference|first term|radius|diameter|circumference"
    "|height|length|width|area|perimeter|volume|hypotenuse|slope"
)
_OTHERS = (
    "average speed|total number|original price|regular price|total cost|sales tax|number|base|altitude|median|depth|speed|rate"
    "|weight|mass|price|cost|sum|product|difference|average|mean|ratio|remainder|age|distance|temperature|population|probability"
    "|angle|capacity|thickness|tax|discount|budget|salary|income"
)
_OF = (
    r" (?:of|between) (?:(?:the|an?|each|every|one|this|his|her|its|their|two|three|four|five|six|ten|all|these) [a-z]+(?: [a-z]+){0,2}"
    r"|(?:[a-z]+ )?\$[^$]{1,20}\$)"
)
_MEASURED = re.compile(
    r"(?P<owner>\b(?:[Ii]ts|[Hh]is|[Hh]er|[Tt]heir|(?:[A-Z][a-z]+|[Tt]he [a-z]+)['’]s) (?:[a-z]+ )?)?"
    rf"(?:\b[Tt]he (?P<which>[a-z]+ ))?\b(?P<measure>{_SHAPES}|{_OTHERS})(?:(?P<of>{_OF})?"
    r" (?:is|was|equals|equal to|measures|are)| (?:of|at))(?: (?:exactly|about))? $"
)
_BARE = re.compile(
    r"\b(?:with|has|of|having|whose|have) (?P<measure>radius|diameter|side length|height|length|width|area|perimeter|volume"
    r"|circumference|edge length|slope) $"
)
_HOLDER = re.compile(
    r"\b(?:[Aa]n?|[Tt]he|[Oo]ne|[Ee]ach) (?P<holder>(?:[a-z-]+ )?(?:circle|sphere|cylinder|cone|square|cube|triangle|rectangle|hexagon"
    r"|octagon|pentagon|trapezoid|rhombus|parallelogram|polygon|prism|pyramid|wheel|tank|pool|garden|box|field|line|semicircle"
    r"|hemisphere|disk|pizza|pole|ladder|tree|room|ball|pipe|can|coin|table|park|yard|playground))"
    r" (?:with|of|has|having|whose|that has)(?: an?)?(?: [a-z]+){0,2} $"
)
_LONG = re.compile(r" (?P<unit>[a-z]+) (?P<how>long|wide|tall|high|deep|thick)\b")
_SIZES = {"long": "length", "wide": "width", "tall": "height", "high": "height", "deep": "depth", "thick": "thickness"}
_IS = re.compile(
    rf"{CLAUSE}(?P<subject>(?:[Tt]he|[Aa]n?|[Ee]ach|[Hh]is|[Hh]er|[Oo]ne) [a-z]+(?: [a-z]+)?|[A-Z][a-z]+|[Hh]e|[Ss]he)"
    r" (?P<be>is|was)(?: (?:currently|now|only|exactly))? $"
)
_OWN = {"he": "his", "she": "her"}
_DIVIDED = re.compile(r"\b(divided|divisible|multiplied) by (?:the number )?$")
_SHARE = re.compile(r" of((?: (?:the|all|his|her|their|its|these|those))*)((?: [a-z]+){1,3})")


def measure(before: str) -> Name | None:
    """ "The perimeter of a rectangle is", "a circle with radius", "its height is"."""
    match = _MEASURED.search(before)
    owner, of = (match.group("owner") or "", match.group("of") or "") if match else ("", "")
    match = match or _BARE.search(before)
    if match is None:
        return None
    which = match.groupdict().get("which") or ""
    what = which + match.group("measure")
    holder = _HOLDER.search(before, 0, match.start("measure"))
    if owner:
        named = f"{lower_first(owner)}{what}"
    elif of:
        named = f"the {what}" + re.sub(r"^ of (?:an?|one) ", " of the ", of)
    elif holder:
        named = f"the {what} of the {holder.group('holder')}"
    elif which or re.fullmatch(_SHAPES, what):
        named = f"the {what}"
    else:
        return None
    return Name(f"What is {named}?", f"what {named} is", named, upper_first(f"{named} is {{short}}."))


def divisor(before: str) -> Name | None:
    """ "When 987 is divided by"."""
    match = _DIVIDED.search(before)
    if match is None:
        return None
    how = match.group(1)
    return Name(f"{how.capitalize()} by which number?", f"which number it is {how} by", f"the number it is {how} by")


def percentage(after: str) -> Name | None:
    """ "of the students are girls"."""
    match = _SHARE.match(after)
    if match is None:
        return None
    words: list[str] = []
    for word in match.group(2).split():
        if word in STOPS or word.endswith("ed"):
            break
        words.append(word)
    if not words or not is_plural(words[-1]):
        return None
    share = f" of{match.group(1)} {' '.join(words)}"
    return Name(
        f"What percentage{share} is it?",
        f"what percentage{share} it is",
        f"the percentage{share}",
        f"It's {{short}}{share}.",
    )


def age(before: str, after: str) -> Name | None:
    """ "Diana is" 14 " years old"."""
    match = _IS.match(before)
    if match is None or not re.match(r" years old(?! than)", after):
        return None
    subject, be = definite(lower_first(match.group("subject"))), match.group("be")
    thing = f"{_OWN[subject]} age" if subject in _OWN else f"the age of {subject}"
    return Name(
        f"How old {be} {subject}?", f"how old {subject} {be}", thing, upper_first(f"{subject} {be} {{short}} old.")
    )


def size(before: str, after: str) -> Name | None:
    """ "A pole is" 12 " feet tall"."""
    match, long = _IS.match(before), _LONG.match(after)
    if match is None or long is None:
        return None
    subject, be = definite(lower_first(match.group("subject"))), match.group("be")
    unit, how = long.group("unit"), long.group("how")
    thing = f"{_OWN[subject]} {_SIZES[how]}" if subject in _OWN else f"the {_SIZES[how]} of {subject}"
    return Name(
        f"How many {unit} {how} {be} {subject}?", f"how many {unit} {how} {subject} {be}", thing,
        upper_first(f"{subject} {be} {{short}} {how}."),
    )  # fmt: skip
