r"""Gaps of kind "formula" where a whole formula is gone: what a command is about, what a noun stands for, or any other.

Three ways, the most natural first. "Simplify $..$." becomes "Simplify this expression." with nothing there;
"the parabola $y = x^2 + 2$" becomes "the parabola"; any other formula that the solution works with is lost as a
pasted text loses it ("the remainder when [formula] is divided by 8").
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from data_builders.derive.commands import bare_command, command
from data_builders.derive.evidence import Evidence
from data_builders.derive.latex import DRAWING, MATH, Formula, Text, balanced, plain_inner, squeezed
from data_builders.derive.nouns import name_of_noun, noun_before
from data_builders.derive.values import number, stands_in
from data_builders.derive.wording import Name, quote
from data_builders.tasks import Gap

_LOST = ("[formula]", "[formula missing]", "[image]", "___", "(formula didn't paste)")
_LONGEST = 300
# What a bare name looks like, and what says something.
_NAME = re.compile(r"[A-Za-z\\{}_',\s]+|-?[\d.,]+|\(?[A-Za-z](?:,[A-Za-z])+\)?|[A-Za-z]\([a-z]\)")
_SAYS = re.compile(r"[\d+*/^<>=(-]|\\(?:frac|sqrt|begin|cdot|times|log|sin|cos|tan|overline)")
# Where a variable lives is no formula to ask for ("$0 < x < 1$"), and neither is a row of names.
_DOMAIN = re.compile(r"\\(?:neq?|in)(?![a-z])|^[^=]*[<>]|\\[lg]eq?(?![a-z])|\\to|^(?!.*\d.*\d.*\d).*\\(?:ldots|dots)")
_FORM = re.compile(
    r"\b(?:forms?:?|(?:written|expressed|represented|simplified|rewritten|put|factored)(?: as| in| to| uniquely as)+) $"
)
_SIDES = re.compile(r"(?<![<>!])=|<|>|\\[lg]eq?(?![a-z])|\\equiv")
_QUESTION = re.compile(r"(?:What|How|Which|For (?:what|which|how)|In how|At what|Is|Does)\b")
_GOAL = re.compile(
    r"\b(?:[Ww]hat is|[Ff]ind|[Cc]ompute|[Ee]valuate|[Dd]etermine|[Cc]alculate|value of|[Ee]nter)(?: the)? $"
)


def object_gaps(evidence: Evidence, rng: random.Random, known: Sequence[Gap] = ()) -> Iterator[Gap]:
    """At most one gap for each formula that the solution works with, and none where `known` has one already."""
    text = evidence.question
    asked = [squeezed(gap.short).strip("$") for gap in known if len(gap.short) > 4]
    for formula in text.formulas:
        bare = squeezed(text.inner(formula))
        if formula.drawing or evidence.aside(formula.start) or any(short in bare for short in asked):
            continue
        if _needed(evidence, formula):
            gap = _commanded(text, formula, rng) or _tied(text, formula) or _lost(text, formula, rng)
            if gap is not None and balanced(gap.question) and not stands_in(gap.value, gap.question):
                yield gap


def _needed(evidence: Evidence, formula: Formula) -> bool:
    """A formula that says something, and that the solution writes, whole or one side of it."""
    inner = plain_inner(evidence.question.inner(formula))
    bare = squeezed(inner)
    if len(bare) < 4 or len(inner) > _LONGEST or _NAME.fullmatch(bare) or not _SAYS.search(bare) or not balanced(inner):
        return False
    if bare == squeezed(evidence.answer) or _DOMAIN.search(inner) or _in_a_row(evidence.question, formula):
        return False
    if _FORM.search(evidence.question.raw, max(0, formula.start - 40), formula.start):
        return False
    sides = [side for side in _SIDES.split(bare) if len(side) > 3]
    written = any(side in evidence.squeezed_solution for side in (bare, *sides))
    return (
        written
        or formula.display
        or _alone(evidence.question, formula)
        or bool(noun_before(evidence.question, formula.start))
    )


def _alone(text: Text, formula: Formula) -> bool:
    """Whether the question holds no other formula that says something."""
    others = (plain_inner(text.inner(other)) for other in text.formulas if other is not formula and not other.drawing)
    return not any(len(inner) >= 4 and _SAYS.search(inner) for inner in others)


def _in_a_row(text: Text, formula: Formula) -> bool:
    """Whether the formula is one of several: "$(0,1),$ $(1,1),$ and $(1,0)$"."""
    before, after = text.mask[max(0, formula.start - 6) : formula.start], text.mask[formula.end : formula.end + 6]
    return (
        re.search(rf"{MATH},? (?:and )?$", before) is not None and re.match(rf",? (?:and )?{MATH}", after) is not None
    )


def _commanded(text: Text, formula: Formula, rng: random.Random) -> Gap | None:
    """The object of a command that is the whole problem: "Simplify $..$."."""
    start, end = text.sentence(formula.start)
    match = command(text, formula)
    if match is None or start > 0:
        return None
    said, verb = bare_command(match.group("verb"), rng)
    what = "equation" if verb == "solve" else "expression"
    name = Name(f"Which {what} should I {verb}?", f"which {what} to {verb}", f"the {what} to {verb}")
    rest = text.raw[end:]
    return _gap(text, formula, said + ("" if not rest or rest[0].isspace() else " ") + rest, name)


def _tied(text: Text, formula: Formula) -> Gap | None:
    """A formula behind its noun: "the parabola $y = x^2$" is still "the parabola"."""
    match = noun_before(text, formula.start)
    after = text.raw[formula.end : formula.end + 30]
    ends = text.mask[formula.end - 1] in ".?" or not text.mask[formula.end :].strip(f"{DRAWING} \n")
    if match is None or re.match(r"\s*(?:and|or|,|that|which|when|-)\s*\$?", after):
        return None
    if formula.display and not ends and not re.match(r" ?[a-z]", after):
        return None
    stop = _stop(text, formula) or ("." if ends and after[:1] not in (".", "?") else "")
    if stop == "." and _QUESTION.match(text.raw, text.sentence(formula.start)[0]):
        stop = "?"
    head, tail = text.raw[: match.end("noun")], text.raw[formula.end :]
    gap = " " if tail and not tail[0].isspace() and (stop or tail[0].isalnum()) else ""
    return _gap(text, formula, f"{head}{stop}{gap}{tail}", name_of_noun(match.group("noun")))


def _lost(text: Text, formula: Formula, rng: random.Random) -> Gap | None:
    """A formula gone as in a pasted text, asked for by its noun or by the words around it."""
    lost = rng.choice(_LOST)
    name = _name(text, formula, lost, rng)
    if name is None:
        return None
    head, tail = text.raw[: formula.start], text.raw[formula.end :]
    before = "" if not head or head[-1].isspace() or head[-1] == "(" else " "
    behind = " " if tail[:1].isalnum() else ""
    return _gap(text, formula, f"{head}{before}{lost}{_stop(text, formula)}{behind}{tail}", name)


def _name(text: Text, formula: Formula, lost: str, rng: random.Random) -> Name | None:
    noun = noun_before(text, formula.start)
    if noun is not None:
        return name_of_noun(noun.group("noun"))
    inner = plain_inner(text.inner(formula))
    equation = "=" in re.sub(r"\{[^{}]*\}", "", inner)
    what = "number" if number(inner) is not None else "equation" if equation else "expression"
    if _GOAL.search(text.raw, text.sentence(formula.start)[0], formula.start):
        return Name(
            f"Which {what} are you asking about?",
            f"which {what} you are asking about",
            f"the {what} you are asking about",
        )
    comma = "," if _stop(text, formula) == "," else ""
    place = quote(text, formula.start, formula.end, lost + comma)
    asks = (
        f'It says "{place}". What is the {what} there?', f'Which {what} belongs in "{place}"?',
        f'The {what} is missing in "{place}". What is it?',
    )  # fmt: skip
    return Name(rng.choice(asks), f'which {what} belongs in "{place}"', f'the {what} in "{place}"') if place else None


def _gap(text: Text, formula: Formula, question: str, name: Name) -> Gap:
    inner = plain_inner(text.inner(formula))
    shown = _shown(text, formula)
    return Gap(
        question=question.rstrip(),
        clause=name.clause,
        ask=name.ask,
        reveal=f"It's {shown}." if not shown.startswith("\\begin") else shown,
        short=shown,
        value=inner,
        kind="number" if number(inner) is not None else "formula",
        thing=name.thing,
    )


def _shown(text: Text, formula: Formula) -> str:
    """The formula as a user types it: in one line, or as it stands where it has several."""
    inner = plain_inner(text.inner(formula))
    if text.raw.startswith("\\begin", formula.start) or ("\\\\" in inner and "\n" in inner):
        return text.raw[formula.start : formula.end]
    return f"${inner}$"


def _stop(text: Text, formula: Formula) -> str:
    """The stop that the formula holds for its sentence, or that the next sentence implies."""
    last = text.inner(formula).rstrip()[-1:]
    if last in (".", ",", "?", ";", ":"):
        return last
    return "." if text.mask[formula.end - 1] == "." else ""
