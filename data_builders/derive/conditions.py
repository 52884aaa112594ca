r"""Gaps in the equations a problem states: "$x = 5$" without its 5, "$f(x) = 3x - 8$" without its right side.

A number on the right makes a gap of kind "number", anything else one of kind "formula". How the right side is
taken out is told in `removal`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from data_builders.derive.amounts import another
from data_builders.derive.evidence import Evidence
from data_builders.derive.latex import balanced, squeezed
from data_builders.derive.nouns import name_of_noun, noun_before
from data_builders.derive.removal import Condition, blanked, left_out
from data_builders.derive.values import number, same_value, stands_in
from data_builders.derive.wording import Name
from data_builders.tasks import Gap

_RELATION = r"\\(?:[lg]eq?(?:slant)?|neq?|approx|equiv|to|in|mid|sim|cong|pmod|Rightarrow|implies|quad|qquad|text|pm|rightarrow|mapsto)(?![a-z])"
_SIDE = rf"(?:(?!{_RELATION}|(?<!\\)[=<>&;]|\\\\).)+?"
# Several conditions in one formula are parted by commas: "$AB = 5, BC = 6$".
_EQUATION = re.compile(
    rf"(?:^|(?<=,)|(?<=,\\ ))\s*(?P<left>{_SIDE})\s*=\s*(?P<right>{_SIDE})\s*"
    r"(?=[.,;?]?\s*(?:\\[ ,;!]\s*)*$|,\s*(?:\\\s)?\s*[^,=]+=)"
)
_FUNCTION = re.compile(r"[A-Za-z](?:_\{?\w\}?|'|\^\{-1\})?\((?P<of>[^()=]{1,12})\)|\([a-z] \\circ [a-z]\)\([a-z]\)")
_VARIABLE = re.compile(
    r"(?:[A-Za-z]|\\(?:alpha|beta|gamma|theta|phi|omega|mathbf\{[A-Za-z]\}|vec\{[a-z]\}|overrightarrow\{[A-Z]+\}))"
    r"(?:_\{?[\w+-]+\}?)?'?"
)
_SEGMENT = re.compile(r"[A-Z]{2}|\\overline\s*\{[A-Z]{2}\}|\\overline\s*[A-Z]{2}")
_ANGLE = re.compile(r"(?:m\s*)?\\angle\s*\{?[A-Z]{1,3}\}?")
_FORM = re.compile(r"\bforms?\b|\bgraph of")
_LONGEST, _LONGEST_LEFT = 200, 40


def conditions(evidence: Evidence) -> Iterator[Condition]:
    """The equations of the question with one equals sign each, up to its lettered options."""
    text = evidence.question
    for formula in text.formulas:
        inner = text.inner(formula)
        if formula.drawing or len(inner) > _LONGEST or "=" not in inner or "{array" in inner or "{cases" in inner:
            continue
        if evidence.aside(formula.start):
            continue
        found = list(_EQUATION.finditer(inner))
        for match in found:
            left, right = match.group("left").strip(), match.group("right").strip()
            alone = len(found) == 1 and not inner[: match.start("left")].strip()
            begins = formula.left + match.start("right")
            yield Condition(formula, begins, begins + len(match.group("right")), left, right, alone)


def condition_gaps(evidence: Evidence, rng: random.Random) -> Iterator[Gap]:
    """A gap for each equation whose right side is needed and stands nowhere else."""
    for condition in conditions(evidence):
        if _worth_withholding(evidence, condition) and not _for_its_noun(evidence, condition, rng):
            question = left_out(evidence.question, condition) if rng.random() < 0.6 else None
            question = question or blanked(evidence.question, condition, rng)
            if not stands_in(condition.right, question) and balanced(question):
                yield _gap(evidence, condition, question, rng)


def _for_its_noun(evidence: Evidence, condition: Condition, rng: random.Random) -> bool:
    """Half of the equations behind a noun ("the parabola $y = x^2$") are left to `objects`, which takes them whole."""
    noun = noun_before(evidence.question, condition.formula.start) if condition.alone else None
    return noun is not None and not _FUNCTION.fullmatch(condition.left) and rng.random() < 0.5


def _worth_withholding(evidence: Evidence, condition: Condition) -> bool:
    left, right = condition.left, condition.right
    if not balanced(left) or not balanced(right) or len(left) > _LONGEST_LEFT:
        return False
    if squeezed(left) in ("", squeezed(right), "i^2") or stands_in(right, left):
        return False  # known to everybody, or told by the name: "$q(2) = 2$"
    value = number(right)
    if value is not None:
        wanted = value != 0 and (abs(value) != 1 or not _VARIABLE.fullmatch(left))
        return wanted and not same_value(right, evidence.answer) and _calculated(evidence, left, right)
    if _FUNCTION.fullmatch(left) and re.search(rf"\b{re.escape(left[0])}\s*(?:\(|\^)", right):
        return False  # a functional equation defines nothing
    if _FORM.search(evidence.question.raw[slice(*evidence.question.sentence(condition.formula.start))]):
        return False
    plain = len(right) >= 3 and re.search(r"[\d+*/^{-]|\\", right) is not None
    return plain and _mentioned(evidence, left, right) and squeezed(right) != squeezed(evidence.answer)


def _calculated(evidence: Evidence, left: str, right: str) -> bool:
    """Whether the solution writes the equation, or calculates with its number."""
    bare = re.sub(r"\^.*|\\(?:text|%).*", "", right).strip()
    written = f"{squeezed(left)}={squeezed(right)}" in evidence.squeezed_solution
    return written or (len(bare) > 1 and stands_in(bare, evidence.worked))


def _mentioned(evidence: Evidence, left: str, right: str) -> bool:
    """Whether the solution writes the right side, or the function that it defines."""
    name = left.partition("(")[0] + "(" if _FUNCTION.fullmatch(left) else ""
    return squeezed(right) in evidence.squeezed_solution or bool(name and name in evidence.solution.raw)


def _name(evidence: Evidence, condition: Condition) -> Name:
    """How the withheld side is asked for."""
    left = f"${condition.left}$"
    numeric = number(condition.right) is not None
    function = _FUNCTION.fullmatch(condition.left)
    letters = function is not None and re.fullmatch(r"[a-z](?:, ?[a-z])*", function.group("of") or "x") is not None
    noun = noun_before(evidence.question, condition.formula.start)
    if noun is not None and not function and condition.alone and re.search(r"[xyr]", condition.left):
        return name_of_noun(noun.group("noun"))
    if letters and not numeric:
        return Name(f"How is {left} defined?", f"how {left} is defined", f"the definition of {left}")
    sized = re.search(r"\d", condition.right) and not re.search(r"[A-Z]", condition.right)
    if sized and _SEGMENT.fullmatch(condition.left):
        return Name(f"How long is {left}?", f"how long {left} is", f"the length of {left}")
    if sized and _ANGLE.fullmatch(condition.left):
        return Name(f"How large is {left}?", f"how large {left} is", f"the size of {left}")
    if _VARIABLE.fullmatch(condition.left) and not numeric:
        if re.fullmatch(r"[A-Z]|\\(?:mathbf|vec|overrightarrow).*", condition.left):
            return Name(f"What is {left}?", f"what {left} is", f"what {left} stands for")
        return Name(f"What is the formula for {left}?", f"what the formula for {left} is", f"the formula for {left}")
    if numeric and not letters and (function or _VARIABLE.fullmatch(condition.left)):
        return Name(f"What is the value of {left}?", f"what the value of {left} is", f"the value of {left}")
    return Name(f"What does {left} equal?", f"what {left} equals", f"the value of {left}")


def _gap(evidence: Evidence, condition: Condition, question: str, rng: random.Random) -> Gap:
    name = _name(evidence, condition)
    numeric = number(condition.right) is not None
    whole = f"${condition.left} = {condition.right}$"
    return Gap(
        question=question,
        clause=name.clause,
        ask=name.ask,
        reveal=f"It's {whole}." if rng.random() < 0.5 else f"{whole}.",
        short=whole,
        value=condition.right,
        kind="number" if numeric else "formula",
        thing=name.thing,
        other=_other(evidence, condition) if numeric else "",
    )


def _other(evidence: Evidence, condition: Condition) -> str:
    """The same equation with a near, different number; "" for a fraction."""
    digits = re.search(r"\d+(?:,\d{3})*(?:\.\d+)?", condition.right)
    if digits is None or "frac" in condition.right or "/" in condition.right:
        return ""
    value = another(digits.group(), "count")
    other = condition.right[: digits.start()] + value + condition.right[digits.end() :]
    if stands_in(value, evidence.question.raw) or same_value(other, evidence.answer):
        return ""
    return f"${condition.left} = {other}$"
