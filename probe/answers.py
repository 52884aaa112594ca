"""Finds the final answer in a reply, and tells whether two answers are the same.

Extraction alone moves GSM8K scores by ten points and more, so there are two readings and both are always
reported. *Strict* takes only a marked answer: the last `\\boxed{...}` or `#### ...`. *Lenient* falls back to
"the answer is ..." and then to the last number, leaving out questions that close the reply ("72. Shall I
explain the 5 apples?"). Equality is decided by text, then as numbers, then by math-verify, which gets a time limit:
what a model wrote as its answer can take algebra for ever.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
from fractions import Fraction
from typing import Literal

from probe.timelimit import Workers

Outcome = Literal["answered", "asked", "truncated", "no_answer"]

_BOXED = re.compile(r"\\(?:boxed|fbox)\s*(\{|[^\s{$]+)")
_BRACE = re.compile(r"[{}]")
_HASHED = re.compile(r"####\s*([^\n]+)")
_DIGITS = r"-?\d+(?:,\d+)*(?:\.\d+)?(?:/\d+)?"
_NUMBER = re.compile(_DIGITS)
# A number that goes on as a calculation ("Answer: 4 * 6 = 24") is not the answer yet.
_GOES_ON = r"(?!\s*(?:[+*/=^×÷]|[-x]\s*\d|\\(?:times|cdot|div)))"
_STATED = re.compile(rf"answer\s*(?:is|:|=)\s*:?\s*\**\s*\$?((?>{_DIGITS})){_GOES_ON}", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.?!])[\"')\]*]*\s+|\n+")
_SECONDS = 5


def boxed(text: str) -> tuple[int, str] | None:
    r"""The last `\boxed{...}` with balanced braces (or `\boxed 7`), as (position, inside); None without one."""
    if "box" not in text:  # most texts; builders ask this about millions
        return None
    closing: dict[int, int] = {}
    opened: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace.group() == "{":
            opened.append(brace.start())
        elif opened:
            closing[opened.pop()] = brace.start()
    for match in reversed(list(_BOXED.finditer(text))):
        if match.group(1) != "{":
            return match.start(), match.group(1).rstrip(".,")
        if match.end() - 1 in closing:
            return match.start(), text[match.end() : closing[match.end() - 1]].strip()
    return None


def strict_answer(text: str) -> str | None:
    r"""The marked answer that stands last: `\boxed{...}` or `#### ...`."""
    hashed = [(match.start(), match.group(1).strip()) for match in _HASHED.finditer(text)]
    marked = [found for found in (boxed(text), hashed[-1] if hashed else None) if found and found[1]]
    return max(marked)[1] if marked else None


def lenient_answer(text: str) -> str | None:
    """The marked answer, else the last "answer is N", else the last number outside closing questions."""
    marked = strict_answer(text)
    if marked is not None:
        return marked
    stated = _STATED.findall(text)
    if stated:
        return stated[-1]
    parts = sentences(text)
    while parts and parts[-1].endswith("?"):
        parts.pop()
    numbers = _NUMBER.findall(" ".join(parts))
    return numbers[-1] if numbers else None


def reference_answer(text: str) -> str | None:
    """The final answer of a reference: marked, or the whole text where it is one short line."""
    marked = strict_answer(text)
    if marked is not None:
        return marked
    text = text.strip()
    return text if text and "\n" not in text and len(text) <= 80 else None


def sentences(text: str) -> list[str]:
    return [part.strip(" *\"')]") for part in _SENTENCE_END.split(text.strip()) if part.strip(" *\"')]")]


def asks(text: str) -> bool:
    """Whether a reply asks back instead of answering: it has no marked answer, and its last sentence is a question,
    or the one before, followed by words alone ("Once I know, I can go on."): a number there is the answer."""
    if strict_answer(text) is not None:
        return False
    last = sentences(text)[-2:]
    return any(part.endswith("?") for part in last[-1:]) or (
        len(last) == 2 and last[0].endswith("?") and not _NUMBER.search(last[1])
    )


def outcome(text: str, truncated: bool) -> Outcome:
    """The class of a reply: a marked answer beats a cut, a cut beats a question, a number beats nothing."""
    if strict_answer(text) is not None:
        return "answered"
    if truncated:
        return "truncated"
    if asks(text):
        return "asked"
    return "answered" if lenient_answer(text) is not None else "no_answer"


def same_answer(given: str | None, reference: str) -> bool:
    """Whether `given` equals `reference`; False for None, and where that cannot be told within seconds."""
    if given is None:
        return False
    at_sight = same_at_sight(given, reference)
    return _verified(given, reference) if at_sight is None else at_sight


def same_at_sight(given: str, reference: str) -> bool | None:
    """What text and numbers tell about two answers at once; None where only algebra can."""
    given, reference = _normal(given), _normal(reference)
    if given == reference:
        return True
    numbers = _as_number(given), _as_number(reference)
    return numbers[0] == numbers[1] if None not in numbers else None


def same_by_algebra(given: str, reference: str, seconds: int | None = None) -> bool:
    """What math-verify says; without `seconds` it may take for ever, and with them it wants the main thread."""
    from math_verify import parse, verify

    if seconds is None:
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that nobody keeps the time
    gold = parse(f"\\boxed{{{_normal(reference)}}}", parsing_timeout=seconds)
    target = parse(f"\\boxed{{{_normal(given)}}}", parsing_timeout=seconds)
    return bool(gold and target and verify(gold, target, timeout_seconds=seconds))


def load_algebra() -> None:
    """What the first comparison would wait for: imports, and a grammar that is built."""
    same_by_algebra("\\sqrt{2}", "x")


# math-verify's own time limit is an alarm signal, which only the main thread may set.
_worker = Workers(1, _SECONDS, prepare=load_algebra)


def _normal(answer: str) -> str:
    answer = answer.strip().strip("$").replace("\\!", "").replace("\\$", "").replace("\\%", "").replace("dfrac", "frac")
    answer = answer.replace("tfrac", "frac").replace("$", "").rstrip(".").strip()
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer)


def _as_number(answer: str) -> Fraction | None:
    # A unit is a word set apart: in "3x" and "2i" the letter is part of the answer.
    match = re.fullmatch(r"(-?[\d.]+(?:/\d+)?)(?:\s*%|\s*\\text\{[^}]*\}|\s+[A-Za-z ]{2,})?", answer)
    try:
        return Fraction(match.group(1)) if match else None
    except (ValueError, ZeroDivisionError):
        return None


@functools.lru_cache(maxsize=4096)
def _verified(given: str, reference: str) -> bool:
    """In the main thread at once; in any other by a worker, which is killed when it takes too long."""
    if threading.current_thread() is threading.main_thread():
        return same_by_algebra(given, reference, _SECONDS)
    return _worker.start(same_by_algebra, given, reference).wait().value is True
