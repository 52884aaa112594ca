"""Finds the chosen letter in a reply to a question with lettered options (see `probe.sets.choices`).

As with values there are two readings, and both are always reported. *Strict* takes the last marked letter:
`\\boxed{B}`, `Answer: B`, `#### B`, or `**B**` at the end. *Lenient* falls back to "the answer is B" or "B is
correct", then to the last letter that stands alone, then to the last option whose full text is there, leaving out
questions that close the reply. The article "A" and the pronoun "I" are never letters, nor are variables ("B = 2 T"),
and two letters at once ("A or B") are no choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase as LETTERS

from probe.answers import Outcome, asks, boxed, sentences

_WRAPPED = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|boldsymbol)\s*\{([^{}]*)\}")
_LABELLED = re.compile(r"\(?([A-Za-z])(?:\)[.:]?|[.:])\s*(.+)", re.DOTALL)
_HASHED = re.compile(r"####\s*([^\n]+)")
_BOLD_AT_END = re.compile(r"\*\*([^*\n]+)\*\*[.!]?\s*$")
_QUESTION_ENDS = re.compile(r"(?<=[.?!])(?=[\"')\]*]*\s)|(?<=\n)")

# A second letter right after the first, as in "A or B", "(A), (B)".
_SECOND = r"(?!\)?[\s*_$]*(?:,|/|&|\b(?:or|and)\b)[\s*_$]*\(?[A-Z]\b(?!\)?\s+(?:is|are)\b))"
# What may follow a letter outside parentheses, so that "A proton" is no A: an end, a stop, or a reason.
_ENDS = r"(?=[*_$]*(?:[ \t]*$|[.,;:)\]!](?!\w)|\s+[-–—]\s|\s+(?:is|because|since|as)\b))"
# In parentheses a letter needs no more; outside, a capital with an end after it.
_LETTER = rf"(?:\(([A-Za-z])\)|([A-Z])(?![\w'’]){_ENDS}){_SECOND}"
# What may stand between "answer is" and the letter; possessive, since models fall into runs of spaces.
_LEAD = r"[\s*_$]*+(?:(?:option|choice)\s++)?[*_$]*+"
_ANSWER = re.compile(
    rf"(?i:answer[*_]*+\s*+:{_LEAD})(?:\(([A-Za-z])\)|([A-Za-z])(?![\w'’]){_ENDS}){_SECOND}", re.MULTILINE
)
_STATED = re.compile(
    rf"(?i:\b(?:answer|option|choice)\s++(?:is|must be|would be|should be|has to be)\s*+:?+{_LEAD}){_LETTER}",
    re.MULTILINE,
)
_CALLED_RIGHT = re.compile(
    r"(?<![\w'’])\(?([A-Z])\)?[*_$]*\s+is\s+(?:(?:therefore|thus|clearly)\s+)?(?:the\s+)?(?:only\s+)?"
    r"(?i:(?:correct|right|best|answer)\b)"
)
# "(B)" with no name before it, as in P(B); or a capital that is no part of a word, a formula or an abbreviation.
_ALONE = re.compile(
    rf"(?<![\w\\])\(([A-Z])\)(?!\w)"
    rf"|(?<![\w.\\^{{($'’=+/<>-])(?<![=+/<>] )(?:([B-HJ-Z])(?![\w'’^{{}}$=+/<>(-]|\.\w|\s*[=+/<>^×·])|(A)(?![\w'’]){_ENDS})",
    re.MULTILINE,
)
# A first letter right before the last, as in "A and B" or "C or ".
_BEFORE = re.compile(r"\b([A-Z])\)?[\s*_$]*(?:,|/|&|\b(?:or|and|nor)\b)+[\s*_$]*(?:(?:or|and)\s+)?\(?$")


def strict_letter(text: str, options: Sequence[str]) -> str | None:
    """The letter of the mark that stands last; None without a mark, or where it names no single option."""
    marks = [(match.start(), _one(match, options)) for match in _ANSWER.finditer(text)]
    marks += [(match.start(), letter_in(match.group(1), options)) for match in _HASHED.finditer(text)]
    box, bold = boxed(text), _BOLD_AT_END.search(text)
    if box is not None:
        marks.append((box[0], letter_in(box[1], options)))
    if bold is not None and (letter := letter_in(bold.group(1), options)):
        marks.append((bold.start(), letter))
    return max(marks, key=lambda mark: mark[0])[1] if marks else None


def lenient_letter(text: str, options: Sequence[str]) -> str | None:
    """The marked letter, else the last that is called the answer, else the last alone, else the last text."""
    marked = strict_letter(text, options)
    if marked is not None:
        return marked
    stated = [
        (match.start(), letter)
        for pattern in (_ANSWER, _STATED, _CALLED_RIGHT)
        for match in pattern.finditer(text)
        if (letter := _one(match, options))
    ]
    if stated:
        return max(stated)[1]
    told = re.sub(r"\*\*|__|`", "", _without_closing_questions(text))
    # A letter inside an option's own text ("vitamin C") is part of that text.
    plain = _spelled_out(options).sub(lambda found: "-" * len(found.group()), told)
    alone = [match for match in _ALONE.finditer(plain) if _one(match, options)]
    if alone:
        together = _BEFORE.search(plain[: alone[-1].start() + plain[alone[-1].start()].count("(")])
        return None if together and together.group(1) in LETTERS[: len(options)] else _one(alone[-1], options)
    return _by_text(told, options)


def letter_outcome(text: str, truncated: bool, options: Sequence[str]) -> Outcome:
    """The class of a reply: a marked letter beats a cut, a cut beats a closing question, a letter beats nothing."""
    if strict_letter(text, options) is not None:
        return "answered"
    if truncated:
        return "truncated"
    closing = sentences(text)[-1:]
    if closing and closing[0].endswith("?"):
        return "asked"
    if lenient_letter(text, options) is not None:
        return "answered"
    return "asked" if asks(text) else "no_answer"


def letter_in(content: str, options: Sequence[str]) -> str | None:
    """The one option that the content of a mark names: by letter, by letter and text, or by its text alone."""
    content = _WRAPPED.sub(r"\1", content).replace("\\ ", " ").strip("$*_ \n")
    bare = re.fullmatch(r"\(?([A-Za-z])\)?[.:]?", re.sub(r"^(?i:option|choice|answer:?)\s+", "", content))
    if bare:
        return _known(bare.group(1), options)
    same = [place for place, option in enumerate(options) if _plain(option) == _plain(content)]
    if len(same) == 1:
        return LETTERS[same[0]]
    labelled = _LABELLED.fullmatch(content)
    if labelled and (letter := _known(labelled.group(1), options)):
        others = [match for match in _ALONE.finditer(labelled.group(2)) if _one(match, options)]
        if not others or _plain(labelled.group(2)) == _plain(options[LETTERS.index(letter)]):
            return letter
    return None


def _one(match: re.Match[str], options: Sequence[str]) -> str | None:
    return _known(next(group for group in match.groups() if group), options)


def _known(letter: str, options: Sequence[str]) -> str | None:
    letter = letter.upper()
    return letter if letter in LETTERS[: len(options)] else None


def _without_closing_questions(text: str) -> str:
    parts = _QUESTION_ENDS.split(text.rstrip() + " ")
    while parts and (not parts[-1].strip(" \n*\"')]") or parts[-1].rstrip(" \n*\"')]").endswith("?")):
        parts.pop()
    return "".join(parts).rstrip()


def _spelled_out(options: Sequence[str]) -> re.Pattern[str]:
    texts = sorted((re.escape(text) for text in map(_plain, options) if len(text) > 2), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(texts) or '(?!)'})(?!\w)", re.IGNORECASE)


def _by_text(text: str, options: Sequence[str]) -> str | None:
    """The option whose text ends last in the reply; of two that end together, the longer."""
    reply, plain = _plain(text), [_plain(option) for option in options]
    found = []
    for place, option in enumerate(plain):
        if option and plain.count(option) == 1:
            ends = [match.end() for match in re.finditer(rf"(?<!\w){re.escape(option)}(?!\w)", reply)]
            found += [(end, len(option), LETTERS[place]) for end in ends[-1:]]
    return max(found)[2] if found else None


def _plain(text: str) -> str:
    return " ".join(re.sub(r"\*\*|__|`", "", text).casefold().split()).strip(" .$")
