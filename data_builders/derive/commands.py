r"""Commands without their object: "Simplify $..$." as somebody sends it who forgot to paste the formula."""

from __future__ import annotations

import random
import re

from data_builders.derive.latex import MATH, Formula, Text

_DO = {  # verb: what to say instead, in a sentence of its own
    "Simplify": ("Simplify this expression.", "Please simplify the following.", "Can you simplify this?"),
    "Compute": ("Compute this.", "Compute the following expression.", "Can you compute this for me?"),
    "Evaluate": ("Evaluate this expression.", "Evaluate the following.", "Can you evaluate this?"),
    "Calculate": ("Calculate this.", "Calculate the following expression.", "Can you calculate this?"),
    "Expand": ("Expand this.", "Expand the following expression.", "Can you expand this product?"),
    "Factor": ("Factor this.", "Factor the following expression.", "Can you factor this completely?"),
    "Solve": ("Solve this equation.", "Solve the following equation.", "Can you solve this equation?"),
    "Rationalize the denominator of": (
        "Rationalize the denominator of this.",
        "How do I rationalize this denominator?",
    ),
}
_VALUE = ("What is the value of this expression?", "What does this come to?", "What is this equal to?")
_VERBS = {
    "Find": "Evaluate",
    "What is": "Evaluate",
    "What is the value of": "Evaluate",
    "Find the value of": "Evaluate",
}
_COMMAND = re.compile(
    rf"(?P<verb>{'|'.join(sorted((*_DO, *_VERBS), key=len, reverse=True))})(?: completely| fully| exactly)?"
    r"(?: the| this)?(?: following)?(?: expression| product| sum| quotient| difference| equation)?:?\s*"
)


def command(text: Text, formula: Formula) -> re.Match[str] | None:
    """The command that the formula is the whole object of, if the sentence is that and no more."""
    start, end = text.sentence(formula.start)
    if text.mask[formula.end : end].strip(MATH + " .?\n"):
        return None
    return _COMMAND.fullmatch(text.mask, start, formula.start)


def bare_command(verb: str, rng: random.Random) -> tuple[str, str]:
    """The command with nothing to do it to, and its verb in small letters."""
    if verb in _VERBS:
        return rng.choice(_VALUE), "evaluate"
    return rng.choice(_DO[verb]), verb.partition(" ")[0].lower()
