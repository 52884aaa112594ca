r"""Wrong results that a solution itself offers: numbers on the way, where a user may have stopped.

In a text solution it is an equation that ends in a number ("$c-a = 6$"), in a GSM8K-like one the result of a line.
A number counts once, with the first formula that ends in it, and only where it differs from the answer in text and
in worth and is no part of it. Problems with lettered options, several boxes or an answer in another base are left
alone: there a "wrong" number may be the right one under another name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from data_builders.derive.latex import MATH, Text, squeezed
from data_builders.derive.solutions import value_of
from data_builders.derive.values import number, same_value, stands_in, worth
from data_builders.tasks import Slip
from probe.sets import Problem

_LETTERED = re.compile(r"\\text(?:bf)?\{\s*\(?[A-E][).]|\(A\)|^\\text|^[A-Z]$|_\{?\d", re.MULTILINE)
_ARITHMETIC = re.compile(
    r"(?:[\d.,+*/!^(){}|\[\]\s-]|\\(?:cdot|times|div|[dt]?frac|[dt]?binom|sqrt|pi|circ|left|right|[lr]floor|[lr]ceil|choose|gcd|lcm"
    r"|log|ln|sin|cos|tan|sec|csc|cot|overline|text|operatorname|[%$,!; ])(?![a-z]))+"
)
# What a value may be the value of: a letter with its indices, a function's value, a length, an angle, a sum of them.
_NAMED = re.compile(r"[^=<>]{1,40}")
# A plain name: "x", "a_{10}", "AB", "f(-2)", "f^{-1}(4)", "\\angle ABC", "\\cos A", "|z|", "[ABC]".
_NAME = re.compile(
    r"(?:m ?)?\\?(?:angle|overline|cos|sin|tan|sec|csc|cot|mathbf|text|deg|dim|log)? *(?:\{[A-Za-z ]{1,20}\}|\|?[A-Za-z]{1,4}\|?|\[[A-Z]+\])"
    r"(?:_\{?[\w+-]+\}?)?'?(?:\^\{?-?\d+\}?)?(?:\(-?[\d.]+\))?"
)
# A value that is only tried or assumed is nobody's result: "If $x = 3$", "setting $x = 1$ and $y = 2$".
_ASSUMED = re.compile(
    r"\b(?:(?:when(?:ever)?|where|let(?:ting)?|set(?:ting)?)[\s,:@]*(?:@|,|\s|and\b)*"
    r"|(?:if|for|suppose|assum\w+|plug\w*(?: in)?|case|substitut\w+|tak(?:e|ing)|try(?:ing)?|given(?: that)?|at|with|choos\w+|is not"
    r"|using|equation|function|line|check\w*|recall|know)(?:[\s:@]|and\b|that\b|both\b)*)$".replace("@", MATH),
    re.IGNORECASE,
)

# A point or another row of values: "(1, 1.5)".
_ROW = re.compile(r"(?:\\left)?\(([^()]+,[^()]+?)(?:\\right)?\)")
_SMALL = 13  # below, a number may stand in the question for another reason


def text_slips(
    problem: Problem, question: Text, solution: Text, equations: Mapping[str, tuple[int, int]]
) -> tuple[Slip, ...]:
    """Equations on the way whose right side a user may take for the answer."""
    if solution.raw.count(r"\boxed") > 1:  # the answer has parts, and the last box is only one of them
        return ()
    if _LETTERED.search(problem.answer) or ("(A)" in problem.question and worth(problem.answer) is None):
        return ()
    asked = squeezed(question.raw)
    found: list[Slip] = []
    for equation, (at, position) in equations.items():
        value = value_of(equation) or _point(equation)
        left = re.split(r"=|\\equiv", equation.strip("$"))[0].strip()
        before = solution.mask[solution.sentences[at][0] : position]
        if not value or squeezed(left) in (squeezed(value), "") or squeezed(left) + "=" in asked:
            continue
        if not _ARITHMETIC.fullmatch(left) and not _found(equation, left, value, before, question.raw):
            continue
        if _differs(value, problem) and not any(same_value(slip.answer, value) for slip in found):
            found.append(Slip(at, "", value, equation))
    return tuple(found)


def _point(equation: str) -> str:
    """The right side where it is a point or another row of plain values, "(1, 1.5)"; else ""."""
    side = equation.strip("$").rpartition("=")[2].strip()
    match = _ROW.fullmatch(side)
    return side if match and all(worth(part) is not None for part in match.group(1).split(",")) else ""


def _found(equation: str, left: str, value: str, before: str, question: str) -> bool:
    """Whether an equation says what a name or a term is worth, as a result; `before` is its sentence up to it.

    A term whose value is 0, 1 or a number of the question mostly states a condition, so only plain names may be.
    """
    if _ASSUMED.search(before):
        return False
    if _NAME.fullmatch(left):
        return True
    sides = equation.strip("$").split("=")
    if len(sides) > 2 and _ARITHMETIC.fullmatch(sides[-2].strip()):
        return True  # calculated on the way
    known = number(value)
    small = known is not None and abs(known) < _SMALL
    stated = abs(known) in (0, 1) if known is not None and small else stands_in(value, question)
    return _NAMED.fullmatch(left) is not None and not stated


def _differs(value: str, problem: Problem) -> bool:
    """Whether nobody would take the value for the answer, for a part of it, or for it in another form."""
    point, answer = _ROW.fullmatch(value), _ROW.fullmatch(problem.answer)
    if point:
        if answer is None:
            return worth(problem.answer) is not None
        pairs = zip(point.group(1).split(","), answer.group(1).split(","), strict=False)
        return not all(same_value(one, other) for one, other in pairs)
    mine, right = worth(value), worth(problem.answer)
    if same_value(value, problem.answer) or right is None and stands_in(value, problem.answer):
        return False
    if mine is None or right is None:
        return True
    if re.search(r"round|nearest|approximat|percent|\\%", problem.question):
        return abs(mine - right) >= 1 and abs(mine - 100 * right) > 1e-6 and abs(100 * mine - right) > 1e-6
    return abs(mine + right) > 1e-9  # a sign alone is too close to call it a number on the way
