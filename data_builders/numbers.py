r"""Parse a problem or a solution: formulas, drawings, sentences, numbers and equations.

A LaTeX text has formulas in `$..$`, `\(..\)`, `\[..\]`, `$$..$$` or a display environment, and drawings in
`[asy]..[/asy]` or a table. `Text.mask` is the text with all of them replaced by placeholders of the same length: a pattern
on the mask matches words only, and its positions are valid in the text. So nothing is ever cut inside a formula. Parsing
takes one pass without backtracking.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from nextturn.probe.data.messages import Message

MATH = "\ufffc"  # replaces each character of a formula in the mask
DRAWING = "\ufffd"  # replaces each character of a drawing or a table

_OPENING = re.compile(
    r"\\\\|\\\$|\[asy\]|\\\[|\\\(|\$\$|\$|\\begin\{((?:align|eqnarray|gather|equation|multline|tabular|array|center)\*?)\}"
)
_DOLLAR = re.compile(r"(?:[^\\$]|\\.)*\$", re.DOTALL)
ASY = re.compile(r"\[asy\].*?(?:\[/asy\]|$)", re.DOTALL)
_CLOSING = {"[asy]": "[/asy]", r"\[": r"\]", r"\(": r"\)", "$$": "$$"}
_LEFT, _RIGHT = re.compile(r"\\left(?![a-z])"), re.compile(r"\\right(?![a-z])")
_CLOSING_STOPS = re.compile(r"(?:[.,;:?\s]|\\[,;:!. ]|~)+$")
_SPACING = re.compile(r"\s+|\\[,;:! ]|\\left(?![a-z])|\\right(?![a-z])|(?<=\\)[dt](?=frac)")
_DRAWN = ("tabular", "center")

# The end of a sentence in a mask: a stop, and then the start of a new sentence. After a display the stop may be missing.
_END = re.compile(
    rf"[.?!][\"')\]]*(?:\s+(?=[\"'(\[]?[A-Z0-9$\\{MATH}{DRAWING}])|(?<={MATH}[.?!])(?=[A-Z]))|\n[ \t]*\n\s*"
)
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Jr|vs|No|no|[A-Z])|\.[a-zA-Z]|\be\.g|\bi\.e)\.\s*$")


@dataclass(frozen=True)
class Formula:
    """A formula or a drawing at `text[start:end]`, delimiters included. `inner` is its text without them."""

    start: int
    end: int
    inner: str
    display: bool = False
    drawing: bool = False


@dataclass(frozen=True)
class Text:
    """A parsed text.

    Attributes:
        whole: False if a delimiter is not closed; then nothing may be cut out.
    """

    raw: str
    formulas: tuple[Formula, ...]
    mask: str
    whole: bool

    @functools.cached_property
    def sentences(self) -> tuple[tuple[int, int], ...]:
        """The (start, end) of each sentence, without the white space around it."""
        ends, start = [], 0
        for match in _END.finditer(self.mask):
            if match.start() >= start and not _ABBREVIATION.search(self.mask, max(start, match.end() - 8), match.end()):
                start = match.end()
                ends.append(start)
        spans = zip([0, *ends], [*ends, len(self.raw)], strict=True)
        return tuple(_stripped(self.raw, *span) for span in spans if self.raw[slice(*span)].strip())

    def sentence(self, position: int) -> tuple[int, int]:
        """Return the (start, end) of the sentence at a position."""
        return next((span for span in reversed(self.sentences) if span[0] <= position), (0, len(self.raw)))


def read(raw: str, latex: bool) -> Text:
    """Parse a text. Without `latex` a dollar sign is money, and there are no formulas."""
    formulas, whole = _formulas(raw) if latex else ([], True)
    pieces, end = [], 0
    for formula in formulas:
        pieces += [raw[end : formula.start], _masked(raw, formula)]
        end = formula.end
    return Text(raw, tuple(formulas), "".join([*pieces, raw[end:]]), whole)


def balanced(text: str) -> bool:
    """Return True if every formula and every brace of the text is closed."""
    bare = text.replace(r"\{", "").replace(r"\}", "")
    if bare.count("{") != bare.count("}") or len(_LEFT.findall(text)) != len(_RIGHT.findall(text)):
        return False
    return not _OPENING.search(text) or read(text, latex=True).whole


def plain_inner(inner: str) -> str:
    """Return a formula without the punctuation and spacing at its end. A "!" is a factorial and stays."""
    return _CLOSING_STOPS.sub("", inner).strip()


@functools.lru_cache(maxsize=512)
def squeezed(text: str) -> str:
    """Return a text without spaces and spacing commands, so that a formula is found however it is spaced."""
    return _SPACING.sub("", text)


def _formulas(raw: str) -> tuple[list[Formula], bool]:
    """Return the formulas of a LaTeX text in order, and False if a delimiter is not closed."""
    formulas: list[Formula] = []
    end = 0
    while match := _OPENING.search(raw, end):
        opening, left = match.group(), match.end()
        if opening in (r"\\", r"\$"):
            end = left
            continue
        if opening == "$":
            closing = _DOLLAR.match(raw, left)
            right, end = (closing.end() - 1, closing.end()) if closing else (-1, left)
        else:
            delimiter = _CLOSING.get(opening) or rf"\end{{{match.group(1)}}}"
            right = raw.find(delimiter, left)
            end = right + len(delimiter)
        if right < 0:
            return formulas, False
        drawing = opening == "[asy]" or (match.group(1) or "").startswith(_DRAWN)
        formulas.append(Formula(match.start(), end, raw[left:right], opening not in ("$", r"\("), drawing))
    return formulas, True


def _masked(raw: str, formula: Formula) -> str:
    """Return the placeholder of a formula. It keeps a stop at the end, or adds the one that a new sentence implies."""
    length = formula.end - formula.start
    if formula.drawing:
        return DRAWING * length
    stop = formula.inner.rstrip()[-1:]
    if stop not in (".", "?"):
        new_sentence = re.match(r"\s*(?:[A-Z][a-z]|$)", raw[formula.end : formula.end + 20])
        stop = "." if formula.display and new_sentence else ""
    return MATH * (length - len(stop)) + stop


def _stripped(raw: str, start: int, end: int) -> tuple[int, int]:
    text = raw[start:end]
    return start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())


# --- Numbers: their values, and whether two texts are the same answer.

_UNIT = re.compile(
    r"\^\s*\{?\\circ\}?|\\(?:text|mathrm|textrm|mbox)\{\s*[a-zA-Z. ]*\}(?:\^\d)?|\\%|%|\\\$|\\[!,; ]|~|\s+|\\(?:left|right)(?![a-z])"
)
_NUMBER = re.compile(r"(-?)(\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:/(\d+))?|(-?)\\[dt]?frac\{?(-?\d+)\}?\{?(\d+)\}?")
_LARGEST_POWER = 64


@functools.lru_cache(maxsize=4096)
def number(text: str) -> Fraction | None:
    r"""Return the value of a number such as `12`, `0.5`, `3/4` or `\frac{3}{4}`, with or without unit; else None."""
    match = _NUMBER.fullmatch(_UNIT.sub("", text))
    if match is None:
        return None
    top, bottom = match.group(2) or match.group(5), int(match.group(3) or match.group(6) or 1)
    sign = -1 if match.group(1) or match.group(4) else 1
    return sign * Fraction(top.replace(",", "")) / bottom if bottom else None


def arithmetic(expression: str) -> Fraction | float | None:
    """Return the value of an expression of plain numbers, + - * / ** and brackets, exact except for roots; else None."""
    if not re.fullmatch(r"[\d.()+*/-]+", expression):
        return None
    try:
        return _evaluated(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError):  # a model may write a sum without end
        return None


_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def _evaluated(node: ast.expr) -> Fraction | float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand)
    if not isinstance(node, ast.BinOp) or type(node.op) not in (*_OPERATIONS, ast.Pow):
        raise ValueError("no plain arithmetic")
    left, right = _evaluated(node.left), _evaluated(node.right)
    if not isinstance(node.op, ast.Pow):
        value: Fraction | float = _OPERATIONS[type(node.op)](left, right)
        return value
    base, power = float(left), float(right)
    if abs(power) > _LARGEST_POWER or (base < 0 and power != int(power)):
        raise ValueError("a power too large, or a root of a negative number")
    return float(base**power)


def same_value(one: str, other: str) -> bool:
    """Return True if two answers have the same text or the same value."""
    same_text = _UNIT.sub("", one) == _UNIT.sub("", other)
    return same_text or (number(one) is not None and number(one) == number(other))


def stands_in(value: str, text: str) -> bool:
    """Return True if a text contains a value by itself: "12" in "12 pens", but not in "112", "12.5" or "1,200".

    A formula is found however it is spaced.
    """
    if value.isalpha():
        return re.search(rf"\b{value}\b", text, re.IGNORECASE) is not None
    return states(text, value) if re.fullmatch(r"[\d.,]+", value) else squeezed(value) in squeezed(text)


def states(text: str, value: str) -> bool:
    """Return True if a text contains a value that is not a part of another number."""
    return value in text and re.search(by_itself(value), text) is not None


def by_itself(value: str) -> str:
    """Return a pattern for a value that is not a part of another number."""
    return rf"(?<![\d.,]){re.escape(value)}(?!\d|[.,]\d)"


# --- Equations of plain numbers in a solution.

# fmt: off
_PLAIN = r"(?:\\?\$\s?)?(\d[\d,]*(?:\.\d+)?)(\s?\\?%)?"
_UNITS = r"(?:\s*\\(?:text|mathrm)\{[^{}]*\}|(?:\s+[a-z]+(?:/[a-z]+)?){1,2})?"
_SIGN = r"\s*(\+|-|−|–|\*|×|·|÷|/|\\times|\\cdot|\\div)\s*"
_LEFT_SIDE = re.compile(rf"{_PLAIN}{_UNITS}(?:{_SIGN}{_PLAIN}{_UNITS})+\s*=\s*")
_RESULT = re.compile(_PLAIN)
_GOES_ON = re.compile(rf"{_UNITS}(?:{_SIGN}|\s*[\^(])")
_PART = re.compile(rf"{_SIGN}|{_PLAIN}")
_BEFORE = re.compile(
    r"[-+−–*×·÷/^_({.\\\d]\s*$|(?<![A-Za-z])[a-zA-Z]\s*$|\\(?:[dt]?frac|sqrt|log|ln|sin|cos|tan|cdot|times|div|pm|mp)\s*$"
)
_AS_PYTHON = {"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", r"\times": "*", r"\cdot": "*", r"\div": "/"}
# fmt: on


@dataclass(frozen=True)
class Equation:
    """An equation at `text[start:end]`.

    Attributes:
        at: Where the digits of the result start.
        left: The left side with the operators of Python.
    """

    start: int
    end: int
    at: int
    left: str
    result: str

    @property
    def left_shown(self) -> str:
        return self.left.replace("*", " × ").replace("/", " ÷ ").replace("+", " + ").replace("-", " - ")  # noqa: RUF001

    @property
    def is_exact(self) -> bool:
        return self._off_by(1e-9)

    @property
    def is_true(self) -> bool:
        """Whether it is exact, or rounded to the decimals it shows: "10 / 3 = 3.33" is true, "25 / 2 = 13" is not."""
        places = len(self.result.partition(".")[2])
        return self._off_by(0.51 * 10**-places if places else 1e-9)

    def _off_by(self, most: float) -> bool:
        value = arithmetic(self.left)
        return value is None or abs(float(value) - float(self.result.replace(",", ""))) <= most


def equations(text: str) -> Iterator[Equation]:
    """Yield every equation such as "12 * 5 = 60", unless it is a part of a longer expression."""
    position = 0
    while match := _LEFT_SIDE.search(text, position):
        result = _RESULT.match(text, match.end())
        position = match.end() if result else match.start() + 1
        if result is None or _GOES_ON.match(text, result.end()) or _BEFORE.search(text[: match.start()]):
            continue
        left = ""
        for part in _PART.finditer(match.group()):
            sign, digits, percent = part.groups()
            left += _AS_PYTHON.get(sign, sign) if sign else digits.replace(",", "")
            left += "/100" if percent and not result.group(2) else ""
        yield Equation(match.start(), result.end(), result.start(1), left, result.group(1).rstrip(","))


# --- The approximate number of tokens, without a tokenizer.

_PIECE = re.compile(r"[^\W\d_]+|\d|[^\w\s]")


def estimated_tokens(messages: Sequence[Message]) -> int:
    """Return about how many tokens a conversation has: words, digits and signs, plus 5 per message for its header.

    On starter, GSM8K and MATH conversations the estimate is within 10% of SmolLM2's tokenizer, not counting the system
    prompt of 20 tokens that its template adds.
    """
    return sum(round(1.1 * len(_PIECE.findall(message["content"]))) + 5 for message in messages)
