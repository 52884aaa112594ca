r"""Finds the formulas, drawings and sentences of a text, so that nothing is ever cut inside of one of them.

A text in LaTeX keeps its formulas in `$..$`, `\(..\)`, `\[..\]`, `$$..$$` or a display environment, and its
drawings in `[asy]..[/asy]` or a table. `mask` is the text with all of these blanked out, of the same length, so
that a pattern over the mask sees the words alone and its positions hold for the text. One pass, no backtracking.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

MATH = "\ufffc"  # stands in the mask for each character of a formula
DRAWING = "\ufffd"  # and of a drawing or a table

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

# The end of a sentence in a mask: a stop, and what follows begins a new one. After a display the stop may be missing.
_END = re.compile(
    rf"[.?!][\"')\]]*(?:\s+(?=[\"'(\[]?[A-Z0-9$\\{MATH}{DRAWING}])|(?<={MATH}[.?!])(?=[A-Z]))|\n[ \t]*\n\s*"
)
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Jr|vs|No|no|[A-Z])|\.[a-zA-Z]|\be\.g|\bi\.e)\.\s*$")


@dataclass(frozen=True)
class Formula:
    """A formula or a drawing: `text[start:end]` with its delimiters, `text[left:right]` without."""

    start: int
    end: int
    left: int
    right: int
    display: bool = False
    drawing: bool = False


@dataclass(frozen=True)
class Text:
    """A text with its formulas found. `sentences` are (start, end) pairs without the space around them."""

    raw: str
    formulas: tuple[Formula, ...]
    mask: str
    whole: bool  # False: a delimiter does not close, and nothing should be cut

    @functools.cached_property
    def sentences(self) -> tuple[tuple[int, int], ...]:
        found, start = [], 0
        for match in _END.finditer(self.mask):
            if match.start() < start or _ABBREVIATION.search(self.mask, max(start, match.end() - 8), match.end()):
                continue
            found.append((start, match.end()))
            start = match.end()
        found.append((start, len(self.raw)))
        return tuple(_stripped(self.raw, *pair) for pair in found if self.raw[slice(*pair)].strip())

    def sentence(self, position: int) -> tuple[int, int]:
        """The sentence that `position` stands in."""
        return next((pair for pair in reversed(self.sentences) if pair[0] <= position), (0, len(self.raw)))

    def inner(self, formula: Formula) -> str:
        return self.raw[formula.left : formula.right]


def read(raw: str, latex: bool) -> Text:
    """The text with its formulas; without `latex` a dollar sign is money and there are none."""
    formulas, whole = _formulas(raw) if latex else ([], True)
    pieces, at = [], 0
    for formula in formulas:
        pieces += [raw[at : formula.start], _masked(raw, formula)]
        at = formula.end
    return Text(raw, tuple(formulas), "".join([*pieces, raw[at:]]), whole)


def balanced(text: str) -> bool:
    """Whether every formula of the text closes, and no brace is left open."""
    bare = text.replace(r"\{", "").replace(r"\}", "")
    if bare.count("{") != bare.count("}") or len(_LEFT.findall(text)) != len(_RIGHT.findall(text)):
        return False
    return not _OPENING.search(text) or read(text, latex=True).whole


def plain_inner(inner: str) -> str:
    """A formula's text without the punctuation and spacing that close it in its sentence; a "!" is a factorial."""
    return _CLOSING_STOPS.sub("", inner).strip()


@functools.lru_cache(maxsize=512)
def squeezed(text: str) -> str:
    """A text without spaces and spacing commands, to find a formula wherever it stands."""
    return _SPACING.sub("", text)


def _formulas(raw: str) -> tuple[list[Formula], bool]:
    found: list[Formula] = []
    at = 0
    while match := _OPENING.search(raw, at):
        opening, left = match.group(), match.end()
        if opening in (r"\\", r"\$"):
            at = left
            continue
        if opening == "$":
            closed = _DOLLAR.match(raw, left)
            right, at = (closed.end() - 1, closed.end()) if closed else (-1, left)
        else:
            closing = _CLOSING.get(opening) or rf"\end{{{match.group(1)}}}"
            right = raw.find(closing, left)
            at = right + len(closing)
        if right < 0:
            return found, False
        drawing = opening == "[asy]" or (match.group(1) or "").startswith(_DRAWN)
        found.append(Formula(match.start(), at, left, right, opening not in ("$", r"\("), drawing))
    return found, True


def _masked(raw: str, formula: Formula) -> str:
    """The formula's place in the mask. A stop at its end shows, and so does one that a new sentence implies."""
    length = formula.end - formula.start
    if formula.drawing:
        return DRAWING * length
    inner = raw[formula.left : formula.right].rstrip()
    stop = inner[-1:] if inner[-1:] in (".", "?") else ""
    if not stop and formula.display and re.match(r"\s*(?:[A-Z][a-z]|$)", raw[formula.end : formula.end + 20]):
        stop = "."
    return MATH * (length - len(stop)) + stop


def _stripped(raw: str, start: int, end: int) -> tuple[int, int]:
    text = raw[start:end]
    return start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())
