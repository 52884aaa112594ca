r"""Find the final answer in a reply.

Extraction alone moves GSM8K scores by ten points and more, so there are two readings and both are always
reported. *Strict* takes only a marked answer: the last `\boxed{...}` or `#### ...`. *Lenient* falls back to
"the answer is ..." and then to the last expression, leaving out questions that close the reply ("72. Shall I
explain the 5 apples?"). An expression is taken whole: the 5 of "$\sqrt{5}$" is no answer. Where a question has lettered
options the same two readings look for a letter. What a model thinks before `</think>` is no part of its reply, nor is what
follows when it goes on to write another question. `probe/equality.py` decides whether two answers are the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from string import ascii_uppercase as LETTERS
from typing import Any, Literal

from nextturn.probe.conversations import after_thinking
from nextturn.probe.equality import (
    FUNCTIONS,
    IN_WORDS,
    Answer,
    compare_answers,
    is_number,
    same_answer,
    same_at_sight,
    several,
)

__all__ = ["compare_answers", "is_number", "same_answer"]

VERSION = 5
"""How answers are read; raised when the same reply would get another figure. 2: a truncated text's last number is no answer.
3: a formula without a mark is read, too. 4: also at the end of a sentence without signs of mathematics around it. 5: whole
expressions, several boxes, units, per cent and factors are compared, words of all scripts."""

Outcome = Literal["answered", "asked", "truncated", "no_answer"]

_BOXED = re.compile(r"\\(?:boxed|fbox)\s*(\{|[^\s{$]+)")
_BOX = re.compile(r"\\(?:boxed|fbox)\b")
_BRACE = re.compile(r"[{}]")
_SAYS_NOTHING = re.compile(r"[\s.…?_~-]*")
# Between boxes that are one answer stands "and", "or", a comma or "x =", but no other word and no end of a sentence.
_JOINT = re.compile(r"[,;]|\b(?:and|or)\b")
_NO_JOINT = re.compile(r"(?<![\\A-Za-z])(?!(?:and|or)\b)[A-Za-z]{2,}|[.!?:][\s$]")
_MOST_JOINED = 20
_HASHES = re.compile(r"(?<!#)####(?!#)\s*([^\n]+)")
_DIGITS = r"-?\d+(?:,\d+)*(?:\.\d+)?(?:/\d+)?"
_NUMBER = re.compile(_DIGITS)
# Markdown's headings of the fourth level look like a marked answer. A number, alone or with its unit, is an answer; so is a
# last line that is a formula, a letter with its option, or one word with no number behind it ("Step 3").
_HASHED_LABEL = re.compile(r"^(?:the\s+)?(?:final\s+|correct\s+)?answer\s*(?:is|:|=|$)\s*:?\s*", re.IGNORECASE)
_HASHED_NUMBER = re.compile(rf"(?:\\?\$)?\s?{_DIGITS}\s?(?:\\?[$%])?(?:\s[a-z]+){{0,3}}\.?")
_HASHED_FORMULA = re.compile(r"[-$\\{\[]|\((?![a-z]\))|\d++(?![.)]\s)|[A-Z][).:]\s")
_HASHED_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(\s+\d)?")
_END = 600  # characters of a text's end, in which a last question stands
_SENTENCE_END = re.compile(r"(?<=[.?!])[\"')\]*]*\s+|\n+")


def boxed(text: str) -> tuple[int, str] | None:
    r"""Return the last `\boxed{...}` with content and balanced braces (or `\boxed 7`) as (position, content), or None.

    Neighbouring boxes, such as `\boxed{1}$ and $\boxed{2}`, are one answer: the position is that of the first one.
    """
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
    begin, joined = 0, list[str]()
    for match in reversed(list(_BOXED.finditer(text))):
        end = closing.get(match.end() - 1, 0) if match.group(1) == "{" else match.end()
        content = text[match.end() : end].strip() if match.group(1) == "{" else match.group(1).rstrip(".,")
        if _SAYS_NOTHING.fullmatch(content):
            continue
        if joined and (len(joined) == _MOST_JOINED or not _joint(text[end:begin])):
            break
        begin = match.start()
        if not any(same_answer(content, other) for other in joined):
            joined.insert(0, content)
    return (begin, ", ".join(joined)) if joined else None


def _joint(between: str) -> bool:
    return len(between) <= 80 and _JOINT.search(between) is not None and not _NO_JOINT.search(between)


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


# --- Answers in words

_ARTICLE = re.compile(r"\b(?:[Aa]n|[Tt]he|THE|a|A(?= [a-z])) +(?=\w)")
_COMMAND = re.compile(r"\\(?:text|mathrm|textbf)(?![A-Za-z])")
_DECIDED = {"yes": "yes", "true": "yes", "correct": "yes", "no": "no", "false": "no", "incorrect": "no"}
_STATED = re.compile(r"\banswers?\W{0,4}(?:is|are|:|=)[\s:*]*+", re.IGNORECASE)
_NEGATED = re.compile(r"(?:\bnot|\bnever|n['’ ]t)(?:\s(?!but\b)\w+){0,2}[\s(*]*$", re.IGNORECASE)
_UNDECIDED = re.compile(r"\b(?:not sure|unsure|don['’]?t know|could be|might be|either)\b", re.IGNORECASE)
# Scripts that put no space between words (Thai, Lao, Burmese, Khmer, kana, Han): there an answer is contained anywhere.
# In Korean a particle follows its word without a space.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_HANGUL = re.compile("[\uac00-\ud7a3]")
_A_WORD = re.compile(rf"(?<![^\W\d_])(?!(?:{FUNCTIONS})\b)[^\W\d_]{{3,}}")


def is_words(answer: str) -> bool:
    """Return True for an answer in words, such as "Paris" or "Apollo 11": no number and no formula, so that only a mark shows it."""
    answer = re.sub(r"\\text\{([^{}]*)\}", r"\1", answer).strip()
    if not re.fullmatch(r"[^\W\d_][^\\=+*/^<>$]*", answer):
        return False
    return re.search(r"[\d()|!-]", answer) is None or ("_" not in answer and _A_WORD.search(answer) is not None)


def words_right(text: str, answer: str, truncated: bool = False) -> tuple[bool, bool]:
    """Grade a reply to a question whose answer is words, after articles, case and punctuation are taken away.

    A `truncated` reply contains the answer only in what it calls its answer. A single capital is read as a choice is.

    Returns:
        Whether the marked answer, or else the whole reply, *is* the answer, and whether the reply *contains* it: in what it calls
        its answer, else anywhere but after "not", and not if it is undecided. Yes and no (also true and false) are contained if
        what the reply calls its answer, or else a sentence of it, begins with them; the last such sentence counts.
    """
    said, wanted = _said(text), _plain_words(answer) or answer.strip()
    marked, stated = strict_answer(text), stated_words(text)
    whole = _HASHED_LABEL.sub("", said.strip("* \n")) if marked is None else marked
    exact = _plain_words(whole) == wanted and not (len(wanted) < 3 and re.search(r"[-+*/^=<>]", whole))
    if len(answer) == 1 and answer in LETTERS:
        blank = [""] * len(LETTERS)
        letters = strict_letter(text, blank), lenient_letter(text, blank, truncated)
        return exact or letters[0] == answer, exact or letters[1] == answer
    if exact or marked is not None:
        return exact, exact
    if truncated and stated is None:
        return False, False
    said = said if stated is None else stated
    parts = sentences(said)
    if wanted in _DECIDED:
        begins = [_plain_words(part).partition(" ")[0] for part in parts]
        decided = [_DECIDED[word] for word in begins if word in _DECIDED]
        return False, decided[-1:] == [_DECIDED[wanted]]
    plain = [_plain_words(part, "-") for part in parts]
    places = [(part, found) for part in plain if (found := _contains(part, wanted))]
    decided_on = any(not _NEGATED.search(part[: found.start()]) for part, found in places)
    decided_on = decided_on or not (places or _contains(_plain_words(said, "-"), wanted) is None)
    return False, decided_on and (stated is not None or not _UNDECIDED.search(said))


def _contains(plain: str, wanted: str) -> re.Match[str] | None:
    """Find the words of an answer in a plain text: whole words, or what the answer's script has for them."""
    begin = "" if _UNSPACED.search(wanted) else "(?<![^ ])"
    end = "" if _UNSPACED.search(wanted) or _HANGUL.search(wanted) else "(?![^ ])"
    found = re.search(begin + "[ -]".join(map(re.escape, wanted.split())) + end, plain)
    cuts = found is not None and unicodedata.category((plain[found.end() :] or " ")[0]).startswith("M")
    return None if cuts else found  # a vowel sign that follows belongs to the last letter


def stated_words(text: str) -> str | None:
    """Return the marked answer in words, else what a reply calls its answer; None if there is neither, and the whole reply counts."""
    said = _said(text)
    stated = [re.match(r"[^\n.。]*", said[match.end() :]) for match in _STATED.finditer(said)]
    return strict_answer(text) or next((found[0] for found in reversed(stated) if found and found[0].strip()), None)


def _plain_words(text: str, hyphen: str = " ") -> str:
    """Return the letters with their vowel signs, and the numbers, of a text without articles; a `hyphen` between them stays."""
    text = _ARTICLE.sub("", _COMMAND.sub(" ", unicodedata.normalize("NFKC", text)))
    letters = (char if char.isalnum() or unicodedata.category(char)[0] == "M" else " " for char in text.casefold())
    kept = "".join(hyphen if char in "-‐" else letter for char, letter in zip(text.casefold(), letters, strict=True))
    return " ".join(kept.split())


# --- Answers without a mark

# Formulas between signs of mathematics; a dollar sign before a space, or after one, is money.
_SPAN = re.compile(
    r"\$\$([^$]+)\$\$|\\\[((?:(?!\\\[).)+?)\\\]|\\\(((?:(?!\\\().)+?)\\\)|(?<!\\)\$(?! )([^$\n]*[^$\s\\])\$(?!\d)"
    r"|(\\begin\{(\w+)\}(?:(?!\\begin).)*?\\end\{\6\}|\\(?:text|textbf|mathrm|mbox)\{[^{}]*\})",
    re.DOTALL,
)
_LETTER = r"[^\W\d_Α-ω²³¹¼-¾⁰-₟⅐-ⅿ]"
_BETWEEN = re.compile(
    rf"(?<![\\A-Za-z])(?!(?:{FUNCTIONS}|{IN_WORDS}|and|or)\b){_LETTER}{{3,}}['’]?"
    rf"|\b(?i:so|is|it|to|we|by|of|an|as|be|at|on|in|if|my|us|do|no)\b|\b[aAI]\b(?= [\w\0\\])|(?![A-Za-z]){_LETTER}+"
    r"|\n[ \t]*(?:[-*•][ \t]+)?|[.!?;:](?=[\s*\"')]|$)|—"
)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{(?:align|gather|split|eqn|equation|multline)\w*\*?\}|&")
_EQUALS = re.compile(r"(?<![<>!=\\])=(?!=)")
_NAME = re.compile(r"\s*[A-Za-z]\w?'*(?:_\{?\w+\}?)?(?:\([^()=]*\))?\s*")
_MATHS = re.compile(r"[\d\\^=+*/()√π∞-]")
_LONGEST = 400  # characters after "the answer is"


def lenient_answer(text: str, truncated: bool = False, formula: bool = False) -> str | None:
    """Return the marked answer, else the last "answer is ...", else the last expression outside closing questions.

    The last expression of a `truncated` text is a step on the way and no answer.

    Args:
        formula: The answer may have no digit. The last formula between signs of mathematics precedes a later number.
    """
    marked = strict_answer(text)
    if marked is not None:
        return marked
    said = re.sub(r"\b(?:minus|negative) (?=[\d$\\])", "-", _said(text).replace("\0", " "))
    for stated in reversed(list(_STATED.finditer(said))):
        content = said[stated.end() : stated.end() + _LONGEST]
        held, spans = _held(content)
        found = _expression(_BETWEEN.split(held)[0], spans, formula)
        if found is None and formula:
            found = re.split(r"[.!?](?:\s|$)|\n", content)[0].strip("*$ ") or None
        if found is not None:
            return found
    if truncated:
        return None
    held, spans = _held("\n" + _without_closing_questions(said))
    parts = [part for part in _BETWEEN.split(held) if not part.isspace()]
    if formula:
        parts.sort(key=lambda part: "\0" in part)  # stable: those with a formula come last, in their order
    elif parts:
        parts = [piece for part in parts for piece in ([part] if "\0" in part else part.split(", "))]
    return next((found for part in reversed(parts) if (found := _expression(part, spans, formula)) is not None), None)


def _held(text: str) -> tuple[str, list[str]]:
    """Return a text with a number between zeros for each formula, and the formulas."""
    spans: list[str] = []

    def hold(match: re.Match[str]) -> str:
        spans.append(next(group for group in match.groups() if group))
        return f"\0{len(spans) - 1}\0"

    return _SPAN.sub(hold, text), spans


def _expression(part: str, spans: Sequence[str], formula: bool) -> str | None:
    """Return what a part of a text between words gives as an answer, or None if it is no expression."""
    part = re.split(r"(?<=[\d%\0]) \(", " ".join(part.split()))[0]
    part = re.sub(r"^(?:[\s,:*`]|(?:and|or)\b)+|(?:[\s,:;.!?*`^+=/×-]|\b(?:and|or))+$", "", part)
    whole = re.sub("\0(\\d+)\0", lambda held: spans[int(held[1])], part).replace("\\$", "").replace("$", "").strip()
    if not any(char.isnumeric() for char in whole) and not (
        formula and ("\0" in part or (_MATHS.search(whole) and re.search(r"\w", whole)))
    ):
        return None
    if not re.search("matrix|cases|array", whole):
        whole = _ENVIRONMENT.sub("", whole)
    exact, *rounded = re.split(r"\\approx|≈", whole)
    whole = exact if formula or not rounded else rounded[-1]
    sides = _EQUALS.split(whole)
    left = re.sub(r"\\[A-Za-z]+(?:\{[A-Za-z .]*\})?", "", sides[-2]) if len(sides) > 1 else "x"
    if (len(sides) > 2 or not re.search("[A-Za-z]", left) or _NAME.fullmatch(left)) and not re.search(
        r",(?!\d{3})", whole
    ):
        whole = sides[-1]
    if whole.count(")") > whole.count("("):
        whole = whole.removesuffix(")")
    return whole.removeprefix("(" if whole.count("(") > whole.count(")") else "").strip() or None


def reference_answer(text: str) -> str | None:
    """Return the final answer of a reference: a marked answer, or the whole text if it is one short line."""
    marked = strict_answer(text, reference=True)
    if marked is not None:
        return marked
    text = _said(text).strip()
    return text if text and "\n" not in text and len(text) <= 80 else None


# What begins another question or another turn of a conversation in a reply.
_RUN_ON = re.compile(
    r"^[ \t#*>_]*+(?:(?:next |new )?(?:question|problem|exercise|q)(?: \d+)?|user|human|assistant|instruction)[*_ ]*+:",
    re.IGNORECASE | re.MULTILINE,
)
_ANSWERS = re.compile(r"\d|box|answer", re.IGNORECASE)


def _said(text: str) -> str:
    """Return what a reply says after its thinking, and before it goes on with a question of its own; "" if it thinks only.

    The question is not cut off where the part before has no answer, as in a reply that repeats its question first, and not if
    nothing follows it: then the reply asks.
    """
    said = after_thinking(text) or ""
    for label in _RUN_ON.finditer(said):
        before, after = said[: label.start()], said[label.end() :].strip()
        asked = after.endswith("?") and len(sentences(after[:_END])) == 1
        if before.strip() and not asked and (_ANSWERS.search(before) or not _ANSWERS.search(after)):
            return before
    return said


def sentences(text: str) -> list[str]:
    """Return sentences and lines without the markup and brackets around them; coarser than `judges.text.sentences`."""
    return [part.strip(" *\"')]") for part in _SENTENCE_END.split(text.strip()) if part.strip(" *\"')]")]


def says(text: str, answer: Answer) -> bool:
    """Whether an answer, or one of several, stands in a text, marked or not: as one of its numbers, or word by word. A single
    letter is too common a word to tell."""
    return any(_says(text, each) for each in several(answer))


def _says(text: str, answer: str) -> bool:
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
_BARE = re.compile(r"\(?([A-Za-z])\)?[.:]?")
_RULED_OUT = re.compile(r"\)?\s+(?:is|are|was)(?:n['’]t|\s+(?:not|wrong|incorrect|false|out))\b")
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
    if bare := _BARE.fullmatch(plain.strip("$ \n")):
        return _known(bare.group(1), options)
    alone = [
        match
        for match in _ALONE.finditer(plain)
        if _one(match, options)
        and not (_NEGATED.search(plain[: match.start()]) or _RULED_OUT.match(plain, match.end()))
    ]
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
    bare = _BARE.fullmatch(re.sub(r"^(?i:option|choice|answer:?)\s+", "", content))
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
