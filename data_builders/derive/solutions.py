r"""What a text solution offers to a conversation: a beginning to stop after, and formulas to point at.

Everything here is cut from the reference solution and never written anew, so it is as right as that is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from data_builders.derive.latex import DRAWING, Formula, Text, balanced, plain_inner
from data_builders.derive.values import stands_in, worth
from data_builders.tasks import Piece

# A formula to point at is short enough to be typed; a line and the one before it, to be said again.
_SHORTEST, _LONGEST_PIECE, _LONGEST, _LONGEST_LINE = 5, 60, 80, 400
# A formula holds several equations where rows, arrows or wide spaces part them.
_ARROW = r"\\(?:(?:[Ll]ong)?[Rr]ightarrow|implies|iff|quad|qquad|therefore)(?![a-z])"
_SPLIT = re.compile(
    rf"\\\\(?:\[[^\]]*\])?|{_ARROW}|\\text\{{\s*(?:and|or|so)\s*\}}|(?<!\\),\s*(?:\\[,;: ]\s*)?(?=[a-zA-Z]\s*=)"
)
_OTHER_RELATION = r"\\(?:[lg]eq?(?:slant)?|neq?|approx|equiv|to|in|mid|sim|cong|pmod|hspace|pm|fbox|label|tag|leftrightarrow|begin)(?![a-z])"
_SIDE = rf"(?:(?!{_OTHER_RELATION}|(?<!\\)[=<>&~;:]|\n).)+"
_EQUATION = re.compile(rf"{_SIDE}(?:=(?=.*\S){_SIDE})+")

_GROUP = re.compile(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]")
_MARK = re.compile(r"(?<!\\)&")
_ALIGNED = re.compile(r"\\(?:begin|end)\{(?:aligned|split|gathered)\}")
_CONGRUENCE = re.compile(rf"{_SIDE}\\equiv\s*(-?\d+)\s*\\p?mod\s*(?:\{{\d+\}}|\d+)")


def start_and_rest(solution: Text, answer: str) -> tuple[str, str]:
    """The solution cut after one of its first sentences, about a third in; ("", "") where no cut is good.

    The first part says something (a formula or a number), and holds neither the answer nor the box.
    """
    raw = solution.raw
    ends = [start for start, _ in solution.sentences[1:]]
    good = [end for end in ends if _says_something(solution, end) and not _tells(raw[:end], answer)]
    if not good or not solution.whole:
        return "", ""
    end = max((end for end in good if end <= max(0.4 * len(raw), good[0])), default=good[0])
    return raw[:end], raw[end:]


def _says_something(solution: Text, end: int) -> bool:
    drawn = solution.mask.count(DRAWING, 0, end)
    text = solution.raw[:end].rstrip()
    return len(text) - drawn >= 30 and not text.endswith(":") and re.search(r"\d|=", text) is not None


def _tells(text: str, answer: str) -> bool:
    return "\\boxed" in text or "\\fbox" in text or stands_in(answer, text)


def equations(solution: Text) -> dict[str, tuple[int, int]]:
    """The equations of the solution that fit into a line, with the sentence and the position of each one's formula."""
    found: dict[str, tuple[int, int]] = {}
    formulas = iter(solution.formulas)
    formula = next(formulas, None)
    for at, (_, end) in enumerate(solution.sentences):
        while formula and formula.start < end:
            for text in _typed(solution, formula):
                found.setdefault(text, (at, formula.start))
            formula = next(formulas, None)
    return found


def pieces(solution: Text, found: Mapping[str, tuple[int, int]]) -> tuple[Piece, ...]:
    """The equations whose sentence, and the one before, are short enough to be said again."""
    lines = [
        solution.raw[start:end] if end - start <= _LONGEST_LINE and DRAWING not in solution.mask[start:end] else ""
        for start, end in solution.sentences
    ]
    return tuple(
        Piece(text, lines[at], lines[at - 1] if at else "", value_of(text))
        for text, (at, _) in found.items()
        if lines[at] and "=" in text and len(text) <= _LONGEST_PIECE
    )


def value_of(equation: str) -> str:
    """What stands right of the last `=`, where it is a number or a short closed form; else ""."""
    congruence = _CONGRUENCE.fullmatch(equation.strip("$"))
    side = congruence.group(1) if congruence else equation.strip("$").rpartition("=")[2].strip()
    return side if worth(side) is not None else ""


def _typed(solution: Text, formula: Formula) -> Iterator[str]:
    """The equations of a formula as somebody types them: one, those of its rows or parts, or what leads to the box."""
    if formula.drawing:
        return
    inner = solution.inner(formula)
    aligned = solution.raw.startswith(r"\begin", formula.start) or _ALIGNED.search(inner)
    head = ""
    for part in _SPLIT.split(_MARK.sub("", _ALIGNED.sub("", inner)) if aligned else inner):
        row = plain_inner(part.partition(r"\boxed")[0]).removesuffix("=").strip()
        if row.startswith("="):  # a row that goes on with the left side of the one before
            row = f"{head} {row}"
        head = row.partition("=")[0].strip()
        sides = row.split("=")
        row = "=".join(sides if len(row) <= _LONGEST - 2 else sides[-2:]).strip()
        text = f"${row}$"
        listed = ", " in _GROUP.sub("", row)
        fits = (
            _SHORTEST <= len(text) <= _LONGEST
            and not listed
            and (_EQUATION.fullmatch(row) or _CONGRUENCE.fullmatch(row))
        )
        if fits and balanced(row):
            yield text
