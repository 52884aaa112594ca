"""Find the final answer in a reply, and decide whether two answers are the same.

Extraction alone moves GSM8K scores by ten points and more, so there are two readings and both are always
reported. *Strict* takes only a marked answer: the last `\boxed{...}` or `#### ...`. *Lenient* falls back to
"the answer is ..." and then to the last number, leaving out questions that close the reply ("72. Shall I
explain the 5 apples?"). Where a question has lettered options the same two readings look for a letter. What a model
thinks before `</think>` is no part of its reply. Equality is decided by text, then as numbers, then by math-verify,
which gets a time limit: what a model wrote as its answer can take algebra for ever.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from fractions import Fraction
from string import ascii_uppercase as LETTERS
from typing import Any, Literal

from nextturn.probe.conversations import after_thinking
from nextturn.probe.errors import NextturnError

Outcome = Literal["answered", "asked", "truncated", "no_answer"]

_BOXED = re.compile(r"\\(?:boxed|fbox)\s*(\{|[^\s{$]+)")
_BOX = re.compile(r"\\(?:boxed|fbox)\b")
_BRACE = re.compile(r"[{}]")
_HASHES = re.compile(r"(?<!#)####(?!#)\s*([^\n]+)")
_DIGITS = r"-?\d+(?:,\d+)*(?:\.\d+)?(?:/\d+)?"
_NUMBER = re.compile(_DIGITS)
# Markdown's headings of the fourth level look like a marked answer. A number, alone or with its unit, is an answer; so is a
# last line that is a formula, a letter with its option, or one word with no number behind it ("Step 3").
_HASHED_LABEL = re.compile(r"^(?:the\s+)?(?:final\s+|correct\s+)?answer\s*(?:is|:|=|$)\s*:?\s*", re.IGNORECASE)
_HASHED_NUMBER = re.compile(rf"(?:\\?\$)?\s?{_DIGITS}\s?(?:\\?[$%])?(?:\s[a-z]+){{0,3}}\.?")
_HASHED_FORMULA = re.compile(r"[-$\\{\[]|\((?![a-z]\))|\d++(?![.)]\s)|[A-Z][).:]\s")
_HASHED_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(\s+\d)?")
# A number that goes on as a calculation ("Answer: 4 * 6 = 24") is not the answer yet; two stars that end it are bold type.
_GOES_ON = r"(?!\s*(?:[+/=^×÷]|\*(?!\*(?!\d))|[-x]\s*\d|\\(?:times|cdot|div)))"
# Possessive, since models fall into runs of spaces.
_STATED = re.compile(
    rf"answer\s*+(?:is|:|=)\s*+:?+\s*+\**+\s*+(?:\\?\$|\\\()?+((?>{_DIGITS})){_GOES_ON}", re.IGNORECASE
)
_END = 600  # characters of a text's end, in which a last question stands
_SENTENCE_END = re.compile(r"(?<=[.?!])[\"')\]*]*\s+|\n+")


def boxed(text: str) -> tuple[int, str] | None:
    r"""Return the last `\boxed{...}` with balanced braces (or `\boxed 7`) as (position, content), or None."""
    if "box" not in text:  # most texts; builders ask this about millions
        return None
    # Where each brace closes, in one pass over the text: a scan from every mark would take quadratic time.
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


def hashed(text: str, reference: bool = False) -> list[tuple[int, int, str]]:
    """Return every final answer after `####` as (start, end, answer). Headings are not answers.

    Nobody closes a `reference` with a heading: there the last line is an answer whatever it says.
    """
    if "####" not in text:  # most texts; builders ask this about millions
        return []
    found, end = [], len(text.rstrip())
    for match in _HASHES.finditer(text):
        content = _HASHED_LABEL.sub("", match.group(1).strip("* \t\r")).strip("* \t")
        closes = match.end() >= end
        if _HASHED_NUMBER.fullmatch(content) or (closes and (_is_short_answer(content) or (reference and content))):
            found.append((match.start(), match.end(), content))
    return found


def _is_short_answer(content: str) -> bool:
    """Return True if a last line after `####` is an answer. A sentence, a question, or "Step 3" is a heading."""
    if not content or content[-1] in "?:":
        return False
    words = list(_HASHED_WORD.finditer(content))
    return bool(_HASHED_FORMULA.match(content)) or not words or (len(words) == 1 and not words[0].group(1))


def count_marks(text: str) -> int:
    r"""Return the number of answers that a reply marks: `\boxed{...}`, and `#### ...` that is not a heading."""
    said = _said(text)
    return len(_BOX.findall(said)) + len(hashed(said))


def strict_answer(text: str, reference: bool = False) -> str | None:
    r"""Return the last marked answer: `\boxed{...}` or `#### ...`; see `hashed` for a `reference`."""
    said = _said(text)
    places = [boxed(said), *((start, content) for start, _, content in hashed(said, reference)[-1:])]
    marked = [found for found in places if found and found[1]]
    return max(marked)[1] if marked else None


def is_number(answer: str) -> bool:
    """Return True for an answer that is one number, with or without a unit: its last number is read where there is no mark."""
    return _as_number(_normal(answer)) is not None


def is_words(answer: str) -> bool:
    """Return True for an answer in words, such as "Paris" or "Apollo 11": no number and no formula, so that only a mark shows it."""
    plain = re.fullmatch(r"[^\W\d_][^\\=+*/^<>$]*", answer) is not None
    return plain and (re.search(r"\d", answer) is None or ("_" not in answer and _WORD.search(answer) is not None))


_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NOT_A_WORD = re.compile(r"\\(?:text|mathrm|textbf)(?![A-Za-z])|[^\w]+")
_DECIDED = {"yes": "yes", "true": "yes", "correct": "yes", "no": "no", "false": "no", "incorrect": "no"}
_STATED_WORDS = re.compile(r"\banswer\W{0,4}(?:is|:|=)\W{0,4}([^\n.]+)", re.IGNORECASE)
_NEGATED = re.compile(r"(?:\bnot|\bnever|n['’]t)(?:\s(?!but\b)\w+){0,2}\s*$", re.IGNORECASE)
_UNDECIDED = re.compile(r"\b(?:not sure|unsure|don['’]?t know|could be|might be|either)\b", re.IGNORECASE)


def words_right(text: str, answer: str, truncated: bool = False) -> tuple[bool, bool]:
    """Grade a reply to a question whose answer is words, after articles, case and punctuation are taken away.

    A `truncated` reply contains the answer only in what it calls its answer.

    Returns:
        Whether the marked answer, or else the whole reply, *is* the answer, and whether the reply *contains* it: in what it calls
        its answer, else anywhere but after "not", and not if it is undecided. Yes and no (also true and false) are contained if
        what the reply calls its answer, or else a sentence of it, begins with them; the last such sentence counts.
    """
    said = _said(text)
    marked, wanted = strict_answer(text), _plain_words(answer)
    exact = _plain_words(said if marked is None else marked) == wanted
    if exact or marked is not None:
        return exact, exact
    stated = stated_words(text)
    if truncated and stated is None:
        return False, False
    said = said if stated is None else stated
    if wanted in _DECIDED:
        begins = [_plain_words(part).partition(" ")[0] for part in sentences(said)]
        decided = [_DECIDED[word] for word in begins if word in _DECIDED]
        return False, decided[-1:] == [_DECIDED[wanted]]
    words = r"\W+(?:(?:a|an|the)\W+)?".join(map(re.escape, wanted.split()))
    found = list(re.finditer(rf"(?<!\w){words}(?!\w)", said, re.IGNORECASE)) if words else []
    decided_on = any(not _NEGATED.search(said[: match.start()]) for match in found)
    return False, decided_on and (stated is not None or not _UNDECIDED.search(said))


def stated_words(text: str) -> str | None:
    """Return the marked answer in words, else what a reply calls its answer; None if there is neither, and the whole reply counts."""
    stated = _STATED_WORDS.findall(_said(text))
    return strict_answer(text) or (stated[-1] if stated else None)


def _plain_words(text: str) -> str:
    return " ".join(_NOT_A_WORD.sub(" ", _ARTICLES.sub(" ", text.casefold())).split())


VERSION = 4
"""How answers are read; raised when the same reply would get another figure. 2: a truncated text's last number is no answer.
3: a formula without a mark is read, too. 4: also at the end of a sentence without signs of mathematics around it."""


def lenient_answer(text: str, truncated: bool = False) -> str | None:
    """Return the marked answer, else the last "answer is N", else the last number outside closing questions.

    The last number of a `truncated` text is a step on the way and no answer.
    """
    marked = strict_answer(text)
    if marked is not None:
        return marked
    text = _said(text)
    stated = _STATED.findall(text)
    if stated:
        return stated[-1]
    if truncated:
        return None
    parts = sentences(text)
    while parts and parts[-1].endswith("?"):
        parts.pop()
    numbers = _NUMBER.findall(" ".join(parts))
    return numbers[-1] if numbers else None


_STATED_FORMULA = re.compile(r"\banswer\W{0,4}(?:is|:|=)[\s:*]*+([^\n]+)", re.IGNORECASE)
_FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_NAMED = re.compile(
    r"^\s*[A-Za-z]\w?'?(?:\([^()=]*\))?\s*=(?!=)(?=[^=]*$)"
)  # "x =", "f(x) =" before a formula without another =
_BARE = 60  # characters of a formula without signs of mathematics around it
# A word, but not the name of a function; a formula at the end of a sentence begins after the last one.
_FUNCTIONS = r"(?:arc)?(?:sin|cos|tan)h?|log|exp|sqrt|max|min|gcd|lcm"
_WORD = re.compile(
    rf"(?<![\\A-Za-z])(?:(?!(?:{_FUNCTIONS})\b)[A-Za-z]{{3,}}|(?:[Ss]o|[Ii]s|[Ii]t|to|[Ww]e|by|of|or|an|as|be)\b)['’:,]*|\n"
)
_MATHS = re.compile(r"[\d\\^=+*/()-]")


def lenient_formula(text: str, truncated: bool = False) -> str | None:
    """Return what a reply to a question with a formula as its answer gives: the mark, else what it calls its answer, else the
    right side of its last formula, else the formula that its last sentence ends with, else what `lenient_answer` finds."""
    said = _said(text).strip()
    if (marked := strict_answer(text)) is not None or not said:
        return marked
    if stated := _STATED_FORMULA.findall(said):
        span = _FORMULA.search(stated[-1])
        return _without_signs(span.group() if span else stated[-1])
    if not truncated:
        told = _without_closing_questions(said)
        spans = [next(filter(None, found)) for found in _FORMULA.findall(told)]
        ending = _WORD.split(re.split(r"(?<=[.!])\s+|\n", told)[-1])[-1].strip()
        if spans or (len(ending) <= _BARE and _MATHS.search(ending)):
            return _without_signs(_NAMED.sub("", spans[-1] if spans else ending))
    return lenient_answer(text, truncated)


def _without_signs(text: str) -> str:
    """Return a formula without the signs of mathematics around it and the stop after it."""
    text = text.strip().rstrip(".").strip("*").strip()
    return re.sub(r"^(?:\$\$?|\\\(|\\\[)|(?:\$\$?|\\\)|\\\])$", "", text).strip().rstrip(".").replace("π", "\\pi ")


def reference_answer(text: str) -> str | None:
    """Return the final answer of a reference: a marked answer, or the whole text if it is one short line."""
    marked = strict_answer(text, reference=True)
    if marked is not None:
        return marked
    text = _said(text).strip()
    return text if text and "\n" not in text and len(text) <= 80 else None


def _said(text: str) -> str:
    """Return what a reply says after its thinking; nothing if the thinking never ends."""
    return after_thinking(text) or ""


def sentences(text: str) -> list[str]:
    """Return sentences and lines without the markup and brackets around them; coarser than `judges.text.sentences`."""
    return [part.strip(" *\"')]") for part in _SENTENCE_END.split(text.strip()) if part.strip(" *\"')]")]


def says(text: str, answer: str) -> bool:
    """Whether an answer stands in a text, marked or not: as one of its numbers, or word by word. A single letter is too common
    a word to tell."""
    if _NUMBER.fullmatch(answer):
        return any(same_at_sight(number, answer) for number in _NUMBER.findall(text))
    return len(answer) > 1 and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None


def asks(text: str) -> bool:
    """Whether a reply asks back instead of answering: it closes with a question, and neither marks an answer nor begins its
    last sentence with one ("How many are left? 24 are left.").

    Other numbers may stand there ("How many were sold? Each one brings 7."): in 36 of 113 written replies that ask they do,
    and in none of 1,059 answers of small models did one after the last question give the answer.
    """
    text = _said(text)
    return strict_answer(text) is None and closes_asking(text) and not _NUMBER.match(sentences(text[-_END:])[-1])


def closes_asking(text: str) -> bool:
    """Return True if the last sentence is a question, or the one before it and the last has no boxed answer."""
    if "?" not in text[-_END:]:
        return False
    last = sentences(text[-_END:])[-2:]
    return last[-1].endswith("?") or (len(last) == 2 and last[0].endswith("?") and not boxed(last[1]))


def outcome(text: str, truncated: bool) -> Outcome:
    """Return the outcome of a reply: a marked answer, else a cut, else a question, else a number, else no answer."""
    if strict_answer(text) is not None:
        return "answered"
    if truncated:
        return "truncated"
    if asks(text):
        return "asked"
    return "answered" if lenient_answer(text) is not None else "no_answer"


CLARIFY = {"underspecified": "ask_when_needed", "complete": "answer_when_complete"}
"""The figure of clarify that a row of each condition counts in."""


def clarify_right(row: Mapping[str, Any]) -> bool:
    """Return True if the reply did what its condition asks for: ask if a fact is missing, answer if none is."""
    return bool(row["asked"]) if row["condition"] == "underspecified" else row["outcome"] in ("answered", "truncated")


# The chosen letter of a question with lettered options (see `probe.sets`).
#
# *Strict* takes the last marked letter: `\boxed{B}`, `Answer: B`, `#### B`, or `**B**` at the end. *Lenient* falls back to
# "the answer is B" or "B is correct", then to the last letter that stands alone, then to the last option whose full text
# is there, leaving out questions that close the reply. The article "A" and the pronoun "I" are never letters, nor are
# variables ("B = 2 T"), and two letters at once ("A or B") are no choice.

_WRAPPING = r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|boldsymbol)\s*\{"
_WRAPPED = re.compile(rf"{_WRAPPING}([^{{}}]*)\}}")
_LABELLED = re.compile(r"\(?([A-Za-z])(?:\)[.:]?|[.:])\s*(.+)", re.DOTALL)
_BOLD_AT_END = re.compile(r"(?:\*\*([^*\n]+)\*\*|\$?\\textbf\s*\{([^{}\n]+)\}\$?)[.!]?\s*$")
_QUESTION_ENDS = re.compile(r"(?<=[.?!])(?=[\"')\]*]*\s)|(?<=\n)")

# A second letter right after the first, as in "A or B", "(A), (B)".
_SECOND = rf"(?!\)?[\s*_$}}]*(?:,|/|&|\b(?:or|and)\b)[\s*_$]*(?:{_WRAPPING})?\(?[A-Z]\b(?!\)?\s+(?:is|are)\b))"
# What may follow a letter outside parentheses, so that "A proton" is no A: an end, a stop, or a reason.
_ENDS = r"(?=[*_$}]*(?:[ \t]*$|[.,;:)\]!](?!\w)|\s+[-–—]\s|\s+(?:is|because|since|as)\b))"
# In parentheses a letter needs no more; outside, a capital with an end after it.
_LETTER = rf"(?:\(([A-Za-z])\)|([A-Z])(?![\w'’]){_ENDS}){_SECOND}"
# What may stand between "answer is" and the letter; possessive, since models fall into runs of spaces.
_LEAD = rf"[\s*_$]*+(?:(?:option|choice)\s++)?[*_$]*+(?:{_WRAPPING})?+"
_ANSWER = re.compile(
    rf"(?i:answer[*_]*+\s*+:{_LEAD})(?:\(([A-Za-z])\)|([A-Za-z])(?![\w'’]){_ENDS}){_SECOND}", re.MULTILINE
)
_CALLED_ANSWER = re.compile(
    rf"(?i:\b(?:answer|option|choice)\s++(?:is|must be|would be|should be|has to be)\s*+:?+{_LEAD}){_LETTER}",
    re.MULTILINE,
)
_CALLED_RIGHT = re.compile(
    r"(?<![\w'’])\(?([A-Z])\)?[*_$}]*\s+is\s+(?:(?:therefore|thus|clearly)\s+)?(?:the\s+)?(?:only\s+)?"
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
    """Return the letter of the last mark; None without a mark, or if the mark names no single option."""
    text = _said(text)
    marks = [(match.start(), _one(match, options)) for match in _ANSWER.finditer(text)]
    marks += [(position, letter_in(content, options)) for position, _, content in hashed(text)]
    box, bold = boxed(text), _BOLD_AT_END.search(text)
    if box is not None:
        marks.append((box[0], letter_in(box[1], options)))
    if bold is not None and (letter := letter_in(bold.group(1) or bold.group(2), options)):
        marks.append((bold.start(), letter))
    return max(marks, key=lambda mark: mark[0])[1] if marks else None


def lenient_letter(text: str, options: Sequence[str], truncated: bool = False) -> str | None:
    """Return the marked letter, else the last that is called the answer, else (unless `truncated`) the last alone or text."""
    marked = strict_letter(text, options)
    if marked is not None:
        return marked
    text = _said(text)
    stated = [
        (match.start(), letter)
        for pattern in (_ANSWER, _CALLED_ANSWER, _CALLED_RIGHT)
        for match in pattern.finditer(text)
        if (letter := _one(match, options))
    ]
    if stated:
        return max(stated)[1]
    if truncated:
        return None
    reply = re.sub(r"\*\*|__|`", "", _without_closing_questions(text))
    # A letter inside an option's own text ("vitamin C") is part of that text.
    plain = _spelled_out(options).sub(lambda found: "-" * len(found.group()), reply)
    alone = [match for match in _ALONE.finditer(plain) if _one(match, options)]
    if alone:
        together = _BEFORE.search(plain[: alone[-1].start() + plain[alone[-1].start()].count("(")])
        return None if together and together.group(1) in LETTERS[: len(options)] else _one(alone[-1], options)
    return _by_text(reply, options)


def letter_outcome(text: str, truncated: bool, options: Sequence[str]) -> Outcome:
    """Return the outcome of a reply: a marked letter, else a cut, else a closing question, else a letter, else no answer."""
    if strict_letter(text, options) is not None:
        return "answered"
    if truncated:
        return "truncated"
    closing = sentences(_said(text))[-1:]
    if closing and closing[0].endswith("?"):
        return "asked"
    if lenient_letter(text, options) is not None:
        return "answered"
    return "asked" if asks(text) else "no_answer"


def letter_in(content: str, options: Sequence[str]) -> str | None:
    """Return the one option that the content of a mark names by letter, by letter and text, or by text."""
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
    """Return the option whose text ends last in the reply; of two that end together, the longer one."""
    reply, plain = _plain(text), [_plain(option) for option in options]
    found = []
    for place, option in enumerate(plain):
        if option and plain.count(option) == 1:
            ends = [match.end() for match in re.finditer(rf"(?<!\w){re.escape(option)}(?!\w)", reply)]
            found += [(end, len(option), LETTERS[place]) for end in ends[-1:]]
    return max(found)[2] if found else None


def _plain(text: str) -> str:
    return " ".join(re.sub(r"\*\*|__|`", "", text).casefold().split()).strip(" .$")


# Whether two answers are the same.

_SECONDS, _MOST_MEMORY = 3.0, 4 * 2**30


def same_answer(given: str | None, reference: str) -> bool:
    """Return True if `given` equals `reference`; False for None, and if algebra reaches its time limit."""
    return given is not None and compare_answers(given, reference) is True


@functools.lru_cache(maxsize=4096)
def compare_answers(given: str, reference: str) -> bool | None:
    """Return whether two answers are the same; None if algebra needs more than _SECONDS of processor time."""
    at_sight = same_at_sight(given, reference)
    return at_sight if at_sight is not None else _algebra.same(given, reference)


def same_at_sight(given: str, reference: str) -> bool | None:
    """Compare two answers by text and numbers; None if only algebra can decide."""
    given, reference = _normal(given), _normal(reference)
    if given == reference:
        return True
    numbers = _as_number(given), _as_number(reference)
    return numbers[0] == numbers[1] if None not in numbers else None


def same_by_algebra(given: str, reference: str) -> bool:
    """Return what math-verify says, which may take for ever."""
    from math_verify import parse, verify

    # It warns that nobody keeps the time, and of each that is over
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    gold = parse(f"\\boxed{{{_normal(reference)}}}", parsing_timeout=None)
    target = parse(f"\\boxed{{{_normal(given)}}}", parsing_timeout=None)
    return bool(gold and target and verify(gold, target, timeout_seconds=None))


_SEVERAL = re.compile(r"(?:[(\[]|\\\{)[^()\[\]]*,|,(?!\d{3}\b)|(?<!\d),|(?<!\d)\d{4,},")


def _normal(answer: str) -> str:
    """Return an answer without dollars, thousands commas and a final stop, and with one kind of fraction."""
    answer = answer.strip().strip("$").replace("\\!", "").replace("\\$", "").replace("\\%", "").replace("dfrac", "frac")
    answer = answer.replace("tfrac", "frac").replace("$", "").rstrip(".").strip()
    # The comma of a pair, an interval or a list stands between numbers and not in one.
    return answer if _SEVERAL.search(answer) else re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer)


def _as_number(answer: str) -> Fraction | None:
    # A unit is a word set apart: in "3x" and "2i" the letter is part of the answer.
    match = re.fullmatch(r"(-?[\d.]+(?:/\d+)?)(?:\s*%|\s*\\text\{[^}]*\}|\s+[A-Za-z ]{2,})?", answer)
    try:
        return Fraction(match.group(1)) if match else None
    except (ValueError, ZeroDivisionError):
        return None


class _Algebra:
    """Compares answers in another process, which the system ends when a comparison takes too long: what a model wrote, such as
    10^{10^{10}}, can keep algebra busy where no signal of Python's is heard. Threads take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Any = None
        self._owner = 0

    def same(self, given: str, reference: str) -> bool | None:
        with self._lock:
            if self._process is None or self._owner != os.getpid():  # a fork starts its own
                self._process, self._owner = self._started(), os.getpid()
            self._process.stdin.write(json.dumps([given, reference]) + "\n")
            self._process.stdin.flush()
            said: str = self._process.stdout.readline()
            if not said:
                self._process.wait()
                self._process = None
            return said == "True\n" if said else None

    def _started(self) -> subprocess.Popen[str]:
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({_SECONDS})"
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([sys.executable, "-c", code], text=True, start_new_session=True, **pipes)
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise NextturnError("math-verify cannot be loaded, so answers cannot be compared; is it installed?")
        return process


def serve(seconds: float) -> None:
    """Compare the pairs that come as lines of JSON on stdin, each within so many seconds of the processor, until it ends."""
    same_by_algebra("\\sqrt{2}", "x")  # imports math-verify and builds its grammar, before any time limit
    print("ready", flush=True)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process; a busy machine does not use it up
        print(same_by_algebra(*json.loads(line)), flush=True)


_algebra = _Algebra()
