r"""Numbers and short closed forms: what they are worth, and whether two of them are the same answer.

Cheap on purpose: text first, then the value. math-verify, which takes milliseconds a pair, sees every
conversation once at the end; here thousands of candidate values are looked at.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Iterator
from fractions import Fraction

from data_builders.derive.latex import squeezed

_UNIT = re.compile(
    r"\^\s*\{?\\circ\}?|\\(?:text|mathrm|textrm|mbox)\{\s*[a-zA-Z. ]*\}(?:\^\d)?|\\%|%|\\\$|\\[!,; ]|~|\s+|\\(?:left|right)(?![a-z])"
)
_INTEGER = r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+"
_FRACTION = re.compile(rf"(-?)\\?[dt]?frac\{{?(-?\d+)\}}?\{{?(\d+)\}}?|(-?)({_INTEGER})/(\d+)|(-?)({_INTEGER})")
# A closed form holds a root, pi, a power or a fraction; a product of plain numbers is still to be calculated, and a
# mixed number ("5\frac{1}{2}") would be read as a product.
_CLOSED = re.compile(r"\\(?:sqrt|pi|[dt]?frac)|\d\^")
_OPEN = re.compile(r"\\(?:cdot|times|div)|\d\\[dt]?frac|\d\(|\)\(|\d!|[=<>]")
_REWRITES = (
    (re.compile(r"\\[dt]?frac(\d)(\d)"), r"((\1)/(\2))"),
    (re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}"), r"((\1)/(\2))"),
    (re.compile(r"\\sqrt\[(\d)\]\{([^{}]*)\}"), r"((\2)**(1/\1))"),
    (re.compile(r"\\sqrt\{([^{}]*)\}"), r"((\1)**0.5)"),
    (re.compile(r"\\sqrt ?(\d)"), r"((\1)**0.5)"),
    (re.compile(r"\^\{([^{}]*)\}"), r"**(\1)"),
    (re.compile(r"\^(\d)"), r"**\1"),
    (re.compile(r"\\pi(?![a-z])"), f"({math.pi!r})"),
)
_LONGEST, _LARGEST_POWER = 40, 64


@functools.lru_cache(maxsize=4096)
def number(text: str) -> Fraction | None:
    r"""The number that a text is, written as a whole, a decimal, `3/4` or `\frac{3}{4}`, with or without unit."""
    match = _FRACTION.fullmatch(_UNIT.sub("", text))
    if match is None:
        return None
    sign = -1 if match.group(1) or match.group(4) or match.group(7) else 1
    if match.group(8):
        return sign * Fraction(match.group(8).replace(",", ""))
    top, bottom = match.group(2) or match.group(5), match.group(3) or match.group(6)
    return sign * Fraction(top.replace(",", "")) / int(bottom) if int(bottom) else None


@functools.lru_cache(maxsize=4096)
def worth(text: str) -> float | None:
    r"""What a number or a short closed form ("3\sqrt{2}", "\frac{\pi}{4}", "2^{10}") is worth; None for others."""
    plain = number(text)
    if plain is not None:
        return float(plain)
    bare = _UNIT.sub("", text)
    if len(bare) > _LONGEST or not _CLOSED.search(bare) or _OPEN.search(bare):
        return None
    for _ in range(3):  # braces go from the inside out
        for pattern, instead in _REWRITES:
            bare = pattern.sub(instead, bare)
    bare = re.sub(r"(?<=[\d)])(?=\()", "*", bare)
    if not re.fullmatch(r"[\d.()+*/-]+", bare):
        return None
    try:
        return _evaluated(ast.parse(bare, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError):
        return None


def _evaluated(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand)
    if not isinstance(node, ast.BinOp):
        raise ValueError("no plain arithmetic")
    left, right = _evaluated(node.left), _evaluated(node.right)
    if isinstance(node.op, ast.Pow):
        if abs(right) > _LARGEST_POWER or left < 0 and right != int(right):
            raise ValueError("a power too large, or of a negative number")
        return float(left**right)
    if isinstance(node.op, ast.Div):
        return left / right
    if isinstance(node.op, ast.Mult):
        return left * right
    return left + right if isinstance(node.op, ast.Add) else left - right


def same_value(one: str, other: str) -> bool:
    """Whether two answers are the same by text or by worth."""
    if _UNIT.sub("", one) == _UNIT.sub("", other):
        return True
    values = worth(one), worth(other)
    return values[0] is not None and values[1] is not None and math.isclose(values[0], values[1], rel_tol=1e-9)


def stands_in(value: str, text: str) -> bool:
    """Whether a value stands in a text by itself: "12" in "12 pens", not in "112", "12.5" or "1,200".

    A formula counts wherever its characters stand, however they are spaced.
    """
    if value.isalpha():
        return re.search(rf"\b{value}\b", text, re.IGNORECASE) is not None
    if re.fullmatch(r"[\d.,]+", value):
        return next(places(value, text), None) is not None
    return squeezed(value) in squeezed(text)


def places(digits: str, text: str) -> Iterator[int]:
    """Where a number stands by itself. Searched by hand: a pattern for each number would cost more than the search."""
    at = text.find(digits)
    while at >= 0:
        before, after = text[max(0, at - 2) : at], text[at + len(digits) : at + len(digits) + 2]
        inside = before[-1:].isdigit() or before[-1:] == "." or (before[-1:] == "," and before[:1].isdigit())
        longer = after[:1].isdigit() or (after[:1] in (".", ",") and after[1:].isdigit())
        if not inside and not longer:
            yield at
        at = text.find(digits, at + 1)



def states(text: str, value: str) -> bool:
    """Whether a value stands in the text by itself, not as a part of another number."""
    return re.search(by_itself(value), text) is not None


def by_itself(value: str) -> str:
    """A pattern for the value where it is no part of another number."""
    return rf"(?<![\d.,]){re.escape(value)}(?!\d|[.,]\d)"
