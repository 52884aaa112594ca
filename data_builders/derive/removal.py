r"""Takes an equation's right side out of a question: blank, or the whole condition left out where the sentence reads.

Left out are "Let $f(x) = 3x - 8$." as a sentence, "If $x = 5$," before the question, and "and $b = 3$" after
another condition.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from data_builders.derive.latex import Formula, Text

_INNER_BLANKS = ("?", "?", r"\ldots")
_OUTER_BLANKS = (" ___", " (can't read this part)", " [cut off]", " [missing]")
_LETS = re.compile(
    r"(?:Let|Suppose(?: that)?|Given(?: that)?|Define|Consider|Assume(?: that)?|We have|It is given that)\s*$"
)
_IFS = re.compile(r"(?:If|Given(?: that)?|For|When|Suppose(?: that)?|Since)\s*$")
_ASKS = re.compile(r"(?:then )?(what|find|how|compute|determine|evaluate|for|which)\b")


@dataclass(frozen=True)
class Condition:
    """An equation of the question: its formula, the place of its right side, and the two sides."""

    formula: Formula
    start: int
    end: int
    left: str
    right: str
    alone: bool  # nothing else stands in its formula


def blanked(text: Text, condition: Condition, rng: random.Random) -> str:
    """The question with a blank for the right side: inside the formula, or in words behind it."""
    raw, formula = text.raw, condition.formula
    rest = raw[condition.end : formula.right].strip()
    if raw[formula.start] == "$" and not formula.display and condition.alone and rng.random() < 0.5:
        stop = rest if rest in (".", ",", "?", ";") else ""
        return f"{raw[: condition.start].rstrip()}${rng.choice(_OUTER_BLANKS)}{stop}{raw[formula.end :]}"
    return raw[: condition.start] + rng.choice(_INNER_BLANKS) + raw[condition.end :]


def left_out(text: Text, condition: Condition) -> str | None:
    """The question without the whole condition, where its sentence still reads; None where it does not."""
    formula = condition.formula
    if not condition.alone:
        return None
    start, end = text.sentence(formula.start)
    before, after, rest = text.raw[start : formula.start], text.raw[formula.end : end], text.raw[end:].lstrip()
    if _LETS.fullmatch(before):
        return text.raw[:start] + rest if after.strip() in ("", ".") and rest else None
    if _IFS.fullmatch(before):
        return _without_if(text, formula, start, end)
    joined = re.search(r"\$,? and $", before)
    stop = text.inner(formula).rstrip()[-1:]
    head = text.raw[: start + joined.start() + 1] if joined else ""
    if joined and stop in (".", ",", "?") and not after.strip():
        return head + stop + text.raw[formula.end :]
    return head + text.raw[formula.end :] if joined and "=" in before and re.match(r"\s*(?:$|[.,])", after) else None


def _without_if(text: Text, formula: Formula, start: int, end: int) -> str | None:
    """ "If $x = 3$, what is $2x$?" without its first half."""
    after = text.raw[formula.end : end]
    comma = re.match(r"\s+" if text.inner(formula).rstrip().endswith(",") else r"\s*,\s*", after)
    if comma is None or not _ASKS.match(after, comma.end()):
        return None
    kept = after[comma.end() :].removeprefix("then ")
    return text.raw[:start] + kept[0].upper() + kept[1:] + text.raw[end:]
