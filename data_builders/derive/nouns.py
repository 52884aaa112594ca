r"""Nouns that a formula stands behind, and how the formula is asked for by them: "Which matrix is it?"."""

from __future__ import annotations

import re

from data_builders.derive.latex import Text
from data_builders.derive.wording import Name

_EQUATION_OF = ("line", "parabola", "circle", "ellipse", "hyperbola", "curve", "plane")
_WHAT = ("expression", "equation", "inequality", "congruence", "quadratic equation", "infinite sum")
_HOW = (
    "sequence", "arithmetic sequence", "geometric sequence", "series", "infinite series", "arithmetic series",
    "geometric series", "infinite geometric series", "arithmetic progression", "geometric progression",
)  # fmt: skip
_IN = ("set", "list", "data set", "system", "system of equations")
_WHICH = (
    "polynomial", "function", "quadratic", "cubic", "matrix", "vector", "sum", "product", "complex number", "fraction",
    "number", "integer", "repeating decimal", "interval", "quadratic function", "quadratic polynomial", "determinant",
    "rational function", "binomial", "decimal", "inverse function", "linear function", "cubic polynomial",
)  # fmt: skip
_NOUNS = sorted((*_EQUATION_OF, *_WHAT, *_HOW, *_IN, *_WHICH, "point"), key=len, reverse=True)
NOUN = re.compile(
    rf"\b(?:[Tt]he|[Aa]n?|[Tt]his)(?: following| entire| real| given)? (?P<noun>{'|'.join(_NOUNS)})"
    r"(?: with equation| given by| defined by| described by)?[,:]?\s*$"
)


def name_of_noun(noun: str) -> Name:
    """How the formula behind a noun is asked for."""
    if noun == "point":
        asked = "the coordinates of the point"
        return Name(f"What are {asked}?", f"what {asked} are", asked)
    if noun in _EQUATION_OF:
        return Name(
            f"What is the equation of the {noun}?", f"what the equation of the {noun} is", f"the equation of the {noun}"
        )
    if noun in _WHAT:
        return Name(f"What is the {noun}?", f"what the {noun} is", f"the {noun}")
    if noun in _HOW:
        return Name(f"How does the {noun} go?", f"how the {noun} goes", f"the {noun}")
    if noun in _IN:
        return Name(f"What is in the {noun}?", f"what is in the {noun}", f"the {noun}")
    return Name(f"Which {noun} is it?", f"which {noun} it is", f"the {noun}")


def noun_before(text: Text, position: int) -> re.Match[str] | None:
    """The noun right before a position in its sentence, where the text speaks of one such thing only."""
    match = NOUN.search(text.raw, text.sentence(position)[0], position)
    if match is None or len(re.findall(rf"\b{match.group('noun')}s?\b", text.mask)) != 1:
        return None
    return match
