"""Questions with lettered options: GPQA's columns, or `choices` (or `options`) with an `answer`.

GPQA puts the right answer first, so its options are shuffled; so are all others, lest a set's own habit of where
the right one stands be measured. The order follows from the row's id alone and is the same in every run.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase as LETTERS
from typing import Any

from probe.errors import DataError

INSTRUCTION = "Exactly one of these options is right. End your reply with its letter alone in \\boxed{}."
_GPQA_RIGHT = "Correct Answer"
_GPQA_WRONG = re.compile(r"Incorrect Answer \d+")
# An option that the question itself shows, on a line of its own: "(A) Line", "B. 8", "$\bullet$ C) 12".
_SHOWN = re.compile(r"^(?:.*\\\])?(?:\$\\bullet\$)?[ \t]*\(?([A-J])(?:\)\.?|[.:])[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_LONE = re.compile(r"(?:\\(?:text|textbf|mathrm|mathbf)\{)?\(?([A-J])\)?\.?\}?")


@dataclass(frozen=True)
class Lettered:
    """A question as it is asked, the texts of (A), (B), ... and the letter of the right one, where it is known."""

    text: str
    options: tuple[str, ...]
    letter: str | None


def lettered(row: dict[str, Any], question: str, identity: str, where: str) -> Lettered | None:
    """The row as a question with lettered options; None where it has none.

    Raises:
        DataError: options that are no texts, or an answer that names none of them.
    """
    if _GPQA_RIGHT in row:
        options = [row[_GPQA_RIGHT], *(row[key] for key in row if _GPQA_WRONG.fullmatch(key))]
        right: int | None = 0
    else:
        given = next((row[key] for key in ("choices", "options") if row.get(key)), None)
        if given is None:
            return None
        labels, options = _options(given, where)
        right = _place(row.get("answer"), labels, options, where)
    texts = _texts(options, where)
    order = list(range(len(texts)))
    random.Random(f"options of {identity}").shuffle(order)
    shown = tuple(texts[place] for place in order)
    lines = "\n".join(f"({letter}) {text}" for letter, text in zip(LETTERS, shown, strict=False))
    letter = None if right is None else LETTERS[order.index(right)]
    return Lettered(f"{question.strip()}\n\n{lines}\n\n{INSTRUCTION}", shown, letter)


def shown_in(question: str, answer: str) -> Lettered | None:
    """A question that shows its options itself and whose answer is one of their letters; None for any other."""
    lone = _LONE.fullmatch(answer.strip())
    if lone is None:
        return None
    found = _SHOWN.findall(question)
    letters = "".join(letter for letter, _ in found)
    if len(found) < 2 or not LETTERS.startswith(letters) or lone.group(1) not in letters:
        return None
    return Lettered(question, tuple(text for _, text in found), lone.group(1))


def _options(given: Any, where: str) -> tuple[list[str], list[Any]]:
    """Labels and texts: of a list, of {"A": text}, or of {"label": [...], "text": [...]}."""
    if isinstance(given, dict) and isinstance(given.get("text"), list):
        options = given["text"]
        labels = given.get("label", [])
    elif isinstance(given, dict):
        labels, options = list(given), list(given.values())
    else:
        labels, options = [], given
    if not isinstance(options, list) or not 2 <= len(options) <= len(LETTERS):
        raise DataError(f"{where}: wanted 2 to {len(LETTERS)} options in a list, given {given!r:.80}")
    whole = isinstance(labels, list) and len(labels) == len(options)
    return [str(label) for label in labels] if whole else list(LETTERS[: len(options)]), options


def _texts(options: Sequence[Any], where: str) -> list[str]:
    for option in options:
        if isinstance(option, bool) or not isinstance(option, str | int | float) or not str(option).strip():
            raise DataError(f"{where}: an option is {option!r:.40}, wanted text or a number")
    return [" ".join(str(option).split()) for option in options]


def _place(answer: Any, labels: Sequence[str], options: Sequence[Any], where: str) -> int | None:
    """Which option is right: `answer` is its text, its label, or its number counted from 0."""
    if answer is None or answer == "":
        return None
    if isinstance(answer, int) and not isinstance(answer, bool) and answer not in options:
        places = {answer} if 0 <= answer < len(options) else set()
    else:
        written = str(answer).strip()
        label = written.strip("().").upper()
        same = {place for place, option in enumerate(options) if str(option).strip() == written}
        places = same or {place for place, known in enumerate(labels) if known.strip("().").upper() == label}
    if len(places) != 1:
        raise DataError(
            f"{where}: the answer {answer!r:.60} names {'several' if places else 'none'} of the {len(options)} "
            "options, wanted a letter, a number counted from 0, or an option's own text"
        )
    return places.pop()
