r"""Find the final answer in a reply.

Extraction alone moves GSM8K scores by ten points and more, so there are two readings and both are always
reported. *Strict* takes only a marked answer: the last `\boxed{...}` or `#### ...`. *Lenient* falls back to
"the answer is ..." and then to the last expression, leaving out questions that close the reply ("72. Shall I
explain the 5 apples?"). An expression is taken whole: the 5 of "$\sqrt{5}$" is no answer. Where a question has lettered
options the same two readings look for a letter. What a model thinks before `</think>` is no part of its reply, nor is what
follows when it goes on to write another question. `probe/text/equality.py` decides whether two answers are the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from string import ascii_uppercase as LETTERS
from typing import Literal

from nextturn.probe.data.messages import after_thinking
from nextturn.probe.text.equality import FACTORS, FUNCTIONS, TEXT, WRAPPED, same_answer, same_at_sight
from nextturn.probe.text.words import rough_sentences, without_closing_questions

VERSION = 6
"""How answers are read; raised when the same reply would get another figure. 2: a truncated text's last number is no answer.
3: a formula without a mark is read, too. 4: also at the end of a sentence without signs of mathematics around it. 5: whole
expressions, several boxes, units, per cent and factors are compared, words of all scripts, no invented question. 6: no number
after "not", numbers after short words of other languages, letters and questions in scripts without spaces, names of units."""

Outcome = Literal["answered", "asked", "truncated", "no_answer"]

# --- Marked answers

_INSIDE = r"(?:[^{}]++|\{" * 9 + r"[^{}]*+" + r"\})*+" * 9  # braces in braces, nine deep
_BOXED = re.compile(rf"\\(?:boxed|fbox)(?=\s*(?:\{{({_INSIDE})\}}|([^\s{{$]+)))")
# Between boxes that are one answer stands "and", "or", a comma or "x =", but no other word and no end of a sentence.
_JOINT = re.compile(r"(?s)(?=.*(?:[,;]|\b(?:and|or)\b))(?:\\[a-z]+|\b(?:and|or)\b|(?<![A-Za-z])[A-Za-z](?![A-Za-z])|[^A-Za-z.!?:]){1,80}")  # fmt: skip
_DIGITS = r"-?\d+(?:,\d+)*(?:\.\d+)?(?:/\d+)?"
_NUMBER = re.compile(_DIGITS)
# Markdown's headings of the fourth level look like a marked answer. A number, alone or with its unit, is an answer; so is a
# last line that is a formula, a letter with its option, or one word with no number behind it ("Step 3").
_HASHES = re.compile(r"(?<!#)####(?!#)\s*([^\n]+)")
_LABEL = re.compile(r"^(?:the\s+)?(?:final\s+|correct\s+)?answer\s*(?:is|:|=|$)\s*:?\s*", re.IGNORECASE)
_HASHED_NUMBER = re.compile(rf"(?:\\?\$)?\s?{_DIGITS}\s?(?:\\?[$%])?(?:\s[a-z]+){{0,3}}\.?")
_HASHED_FORMULA = re.compile(r"[-$\\{\[]|\((?![a-z]\))|\d++(?![.)]\s)|[A-Z][).:]\s")
_HASHED_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(\s+\d)?")


def boxed(text: str) -> tuple[int, str] | None:
    r"""Return the last `\boxed{...}` with content and balanced braces (or `\boxed 7`) as (position, content), or None.

    Neighbouring boxes, such as `\boxed{1}$ and $\boxed{2}`, are one answer: the position is that of the first one.
    """
    begin, found = 0, list[str]()
    marks = _BOXED.finditer(text) if "box" in text else ()  # most texts have none; builders ask this about millions
    for match in reversed([mark for mark in marks if (mark[1] or mark[2] or "").strip(" \n.…?_~-")]):
        content, end = (match[1], match.end(1) + 1) if match[2] is None else (match[2].rstrip(".,"), match.end(2))
        if found and (len(found) == 20 or not _JOINT.fullmatch(text, end, begin)):
            break
        same = any(same_answer(content, other) for other in found)
        begin, found = match.start(), found if same else [content.strip(), *found]
    return (begin, ", ".join(found)) if found else None


def hashed(text: str, reference: bool = False) -> list[tuple[int, int, str]]:
    """Return every final answer after `####` as (start, end, answer). Headings are not answers.

    Nobody closes a `reference` with a heading: there the last line is an answer whatever it says.
    """
    found, last = [], len(text.rstrip())
    for match in _HASHES.finditer(text) if "####" in text else ():
        content = _LABEL.sub("", match.group(1).strip("* \t\r")).strip("* \t")
        short = _HASHED_FORMULA.match(content) or _HASHED_WORD.findall(content) in ([], [""])
        closes = match.end() >= last and content != "" and (reference or (short and content[-1] not in "?:"))
        if closes or _HASHED_NUMBER.fullmatch(content):
            found.append((match.start(), match.end(), content))
    return found


def count_marks(text: str) -> int:
    r"""Return the number of answers that a reply marks: `\boxed{...}`, and `#### ...` that is not a heading."""
    return len(_BOXED.findall(_said(text))) + len(hashed(_said(text)))


def strict_answer(text: str, reference: bool = False) -> str | None:
    r"""Return the last marked answer: `\boxed{...}` or `#### ...`; see `hashed` for a `reference`."""
    said = (after_thinking(text) or "") if reference else _said(text)
    marked = [boxed(said) or (-1, ""), *((start, content) for start, _, content in hashed(said, reference)[-1:])]
    return max(marked)[1] or None


def reference_answer(text: str) -> str | None:
    """Return the final answer of a reference: a marked answer, or the whole text if it is one short line."""
    marked, said = strict_answer(text, reference=True), _said(text).strip()
    return marked or (said if said and "\n" not in said and len(said) <= 80 else None)


# --- The reply without what is no part of it

_END = 600  # characters of a text's end, in which a last question stands
# What begins another question or another turn of a conversation in a reply.
_RUN_ON = re.compile(r"(?im)^[ \t#*>_]*+(?:(?:next |new )?(?:question|problem|exercise|q)( \d+)?|user|human|assistant|instruction)[*_ ]*+:")  # fmt: skip
# Numbers that are no answer before it, and marks that show one there.
_STEPS = re.compile(
    r"(?im)(?<![#* ])[#* ]*+\b(?:step|part)s? ?\d+|\b\d+ (?:\w+ )?(?:step|part|way)s\b|^[ \t*>]*+\d+[.)] "
)
_MARK = re.compile(r"(?i)####|\\f?box|\banswers?\W{0,4}(?:is|are|:|=)|\bis the answer\b")
_QUESTION_MARKS = str.maketrans({"？": "? ", "؟": "? "})


def _said(text: str) -> str:
    """Return what a reply says after its thinking, and before it goes on with a question of its own; "" if it thinks only.

    The question is not cut off where the part before has no answer, as in a reply that repeats its question first, and not if
    nothing follows it: then the reply asks. Before a question with a box behind it only a marked answer counts.
    """
    said = (after_thinking(text) or "").translate(_QUESTION_MARKS)
    start, marked, counted = 0, False, False
    for label in _RUN_ON.finditer(said):
        before, after = said[: label.start()], said[label.end() :].strip()
        asked = after.endswith("?") and len(rough_sentences(after[:_END])) == 1
        bare, start = _STEPS.sub("", said[start : label.start()]), label.end()
        marked, counted = marked or bool(_MARK.search(bare)), counted or bool(re.search(r"\d", bare))
        # "Question 2:" may be a part of this reply.
        answered = marked or (counted and not label[1] and "\\box" not in after)
        if before.strip() and not asked and (answered or not re.search(r"(?i)\d|box|answer", after)):
            return before
    return said


# --- Numbers and formulas without a mark

# Formulas between signs of mathematics; a dollar sign before a space, or after one, is money.
_SPAN = re.compile(r"(?s)\$\$([^$]+)\$\$|\\\[((?:(?!\\\[).)+?)\\\]|\\\(((?:(?!\\\().)+?)\\\)|(?<!\\)\$(?! )([^$\n]*[^$\s\\])\$(?!\d)"
                   r"|(\\begin\{(\w+)\}(?:(?!\\begin).)*?\\end\{\6\}|\\(?:text|textbf|mathrm|mbox)\{[^{}]*\})")  # fmt: skip
_LETTER = r"[^\W\d_Α-ω²³¹¼-¾⁰-₟⅐-ⅿ]"
# The dash of "Total - 12", where no verb asks for a minus; and a word of two letters in any language, but no unit and no function.
_DASH = r"(?<!are|was|get)(?<!gives|quals)[*`]* [-–](?= \$?\d)"
_NO_WORD = rf"(?:{FUNCTIONS}|lg|tg|pi|or|ft|lb|oz|hr|yd|mi|[ckm]m|[km]g|ml)\b"
_SHORT = rf"(?<![\\\w])(?!{_NO_WORD})[a-zß-ÿ]{{2}}(?= [-*$\\(]*[\d\0])"
_BETWEEN = re.compile(rf"(?<![\\A-Za-z])(?!(?:{FUNCTIONS}|{FACTORS}|and|or)\b){_LETTER}{{3,}}(?:['’](?:s\b)?)?(?:{_DASH})?|\n[ \t]*(?:[-–*•][ \t]+)?|[.!?;:](?=[\s*\"')]|$)|—"
                      rf"|\b(?i:so|is|it|to|we|by|of|an|as|be|at|on|in|if|my|us|do|no)\b(?:['’](?:s|re)\b)?|\b[aAI]\b(?= [\w\0\\])|{_SHORT}|(?![A-Za-z]){_LETTER}+")  # fmt: skip
_LOOSE = " ,:;.!?*`^+=/×-"
_STATED = re.compile(r"\banswers?\W{0,4}(?:is|are|:|=)[\s:*]*+", re.IGNORECASE)
_DENIED = re.compile(r"(?i)(?:\b(?:not|never|rather than|instead of)|n['’ ]t)(?:\s(?:be|equal|to|the|an?|simply|really|actually)\b){0,2}"
                     r"[\s(*]*(?=[-–−\d.\\$\0])")  # fmt: skip
# What is said again, or computed, in brackets behind a number with its unit: "150 minutes (2.5 hours)".
_ASIDE = re.compile(r"(\d[$%]?(?: [A-Za-z]+){1,3}) \((?=[^()\n]*[A-Za-z=+*/×])[^()\n]*\)")
_FURNITURE = re.compile(r"\\(?:begin|end)\{(?:align|gather|split|eqn|equation|multline)\w*\*?\}|&(?= *=)|\\?\$")
_NAME = re.compile(r"\s*[A-Za-z]\w?'*(?:_\{?\w+\}?)?(?:\([^()=]*\))?\s*|[^A-Za-z]*")


def lenient_answer(text: str, truncated: bool = False, formula: bool = False) -> str | None:
    """Return the marked answer, else the last "answer is ...", else the last expression outside closing questions.

    The last expression of a `truncated` text is a step on the way and no answer.

    Args:
        formula: The answer may have no digit. The last formula between signs of mathematics precedes a later number.
    """
    if (marked := strict_answer(text)) is not None:
        return marked
    said = re.sub(r"\b(?:minus|negative) (?=[\d$\\])", "-", re.sub("[\0\1]", " ", _said(text)))
    for stated in reversed(list(_STATED.finditer(said))):
        content = said[stated.end() : stated.end() + _END]
        content = re.sub(r"^[-–•] ", "", content) if "\n" in stated[0] else content
        if found := next(_expressions(content, formula)):
            return found
    told = [] if truncated else list(_expressions("\n" + _ASIDE.sub(r"\1", without_closing_questions(said)), formula))
    return next(filter(None, reversed(told)), None)


def _expressions(text: str, formula: bool) -> Iterator[str | None]:
    """Yield what stands between the words of a text: an expression, or None for what is none."""
    spans = [next(filter(None, found.groups())) for found in _SPAN.finditer(text)]
    for part in _BETWEEN.split(_DENIED.sub("\\g<0>\1", _SPAN.sub("\0", text))):
        own, spans = spans[: part.count("\0")], spans[part.count("\0") :]
        for piece in [part] if formula or own else part.split(", "):
            bare = re.split(r"(?<=[\d%\0]) \(", " ".join(piece.split()))[0].lstrip(" ,:*`").rstrip(_LOOSE)
            bare = re.sub(r"^(?:and|or)\b|\b(?:and|or)$", "", bare).rstrip(_LOOSE)
            held = "".join(map(str.__add__, bare.split("\0"), [*own[: bare.count("\0")], ""]))
            whole = _FURNITURE.sub("", held).strip()
            digits = any(map(str.isnumeric, whole)) and (not formula or not spans)
            maths = formula and ("\0" in bare or re.search(r"[\\=+*/^(√π∞].*\w|\w.*[=+*/^)-]", whole[:_END]))
            told = (digits or maths) and "\1" not in piece
            yield _right_side(whole if formula else re.split(r"\\approx|≈", whole)[-1]) if told else None


def _right_side(whole: str) -> str | None:
    """Return what an expression is said to be equal to, unless it is an equation or a list; and no bracket without its pair."""
    sides = re.split(r"(?<![<>!=\\])=(?!=)", whole)
    left = re.sub(r"\\[A-Za-z]+(?:\{[A-Za-z .]*\})?", "", sides[-2]) if len(sides) > 1 else ""
    if (len(sides) > 2 or _NAME.fullmatch(left)) and not re.search(r",(?!\d{3})", whole):
        whole = sides[-1]
    whole = whole.removesuffix(")") if not re.search(r"[(\[]", whole) else whole
    return (whole.removeprefix("(") if not re.search(r"[)\]]", whole) else whole).strip() or None


# --- Answers in words

_ARTICLE = re.compile(r"\b(?:[Aa]n|[Tt]he|THE|a|A(?= [a-z])) +(?=\w)")
_DECIDED = {"yes": "yes", "true": "yes", "correct": "yes", "no": "no", "false": "no", "incorrect": "no"}
_NEGATED = re.compile(r"(?:\bnot|\bnever|n['’ ]t)(?:\s(?!but\b)\w+){0,2}[\s(*]*$", re.IGNORECASE)
_UNDECIDED = re.compile(r"\b(?:not sure|unsure|don['’]?t know|could be|might be|either)\b", re.IGNORECASE)
# Scripts that put no space between words (Thai, Lao, Burmese, Khmer, kana, Han): there an answer is contained anywhere.
# In Korean a particle follows its word without a space.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_A_WORD = re.compile(rf"(?<![^\W\d_])(?!(?:{FUNCTIONS})\b)[^\W\d_]{{3,}}")


def is_words(answer: str) -> bool:
    """Return True for an answer in words, such as "Paris" or "Apollo 11": no number and no formula, so that only a mark shows it."""
    answer = WRAPPED.sub(r"\1", answer).strip()
    worded = re.search(r"[\d()|!-]", answer) is None or ("_" not in answer and _A_WORD.search(answer) is not None)
    return worded and re.fullmatch(r"[^\W\d_][^\\=+*/^<>$]*", answer) is not None


def words_right(text: str, answer: str, truncated: bool = False) -> tuple[bool, bool]:
    """Grade a reply to a question whose answer is words, after articles, case and punctuation are taken away.

    A `truncated` reply contains the answer only in what it calls its answer.

    Returns:
        Whether the marked answer, or else the whole reply, *is* the answer, and whether the reply *contains* it: in what it calls
        its answer, else anywhere but after "not", and not if it is undecided. Yes and no (also true and false) are contained if
        what the reply calls its answer, or else a sentence of it, begins with them; the last such sentence counts.
    """
    marked, stated, wanted = strict_answer(text), stated_words(text), _plain_words(answer) or answer.strip()
    whole = _LABEL.sub("", _said(text).strip("* \n")) if marked is None else marked
    exact = _plain_words(whole) == wanted and not (len(wanted) < 3 and re.search(r"[-+*/^=<>]", whole))
    if exact or marked is not None or (truncated and stated is None):
        return exact, exact
    said = _said(text) if stated is None else stated
    parts = [_plain_words(part, "-") for part in rough_sentences(said)]
    if wanted in _DECIDED:
        decided = [_DECIDED[word] for part in parts if (word := part.partition(" ")[0]) in _DECIDED]
        return False, decided[-1:] == [_DECIDED[wanted]]
    places = [(part, _contains(part, wanted)) for part in [*parts, _plain_words(said, "-")]]
    decided_on = any(place is not None and not _NEGATED.search(part[:place]) for part, place in places)
    return False, decided_on and (stated is not None or not _UNDECIDED.search(said))


def _contains(plain: str, wanted: str) -> int | None:
    """Return where the words of an answer stand in a plain text: whole words, or what the answer's script has for them."""
    begin = "" if _UNSPACED.search(wanted) else "(?<![^ ])"
    end = "" if _UNSPACED.search(wanted) or re.search("[\uac00-\ud7a3]", wanted) else "(?![^ ])"
    found = re.search(begin + "[ -]".join(map(re.escape, wanted.split())) + end, plain)
    # A vowel sign that follows belongs to the last letter.
    cut = found and unicodedata.category((plain[found.end() :] or " ")[0]).startswith("M")
    return found.start() if found and not cut else None


def stated_words(text: str) -> str | None:
    """Return the marked answer in words, else what a reply calls its answer; None if there is neither, and the whole reply counts."""
    said = _said(text)
    stated = (re.split(r"[\n.。]", said[found.end() :], maxsplit=1)[0] for found in _STATED.finditer(said))
    return strict_answer(text) or next((words for words in reversed(list(stated)) if words.strip()), None)


def _plain_words(text: str, hyphen: str = " ") -> str:
    """Return the letters with their vowel signs, and the numbers, of a text without articles; a `hyphen` between them stays."""
    text = _ARTICLE.sub("", WRAPPED.sub(r" \1 ", unicodedata.normalize("NFKC", text))).casefold()
    text = "".join(char if char == "-" or unicodedata.category(char)[0] in "LMN" else " " for char in text)
    return " ".join(text.replace("-", f" {hyphen} ").split()).replace(" - ", "-")


# --- How a reply ends


def says(text: str, answer: str) -> bool:
    """Whether an answer stands in a text, marked or not: as one of its numbers, or word by word. A single letter is too common
    a word to tell."""
    return affirms(text, answer) is not None


_REPLACED = re.compile(r"\b(?:rather than|instead of)[\s(*$\\]*$", re.IGNORECASE)


def affirms(text: str, answer: str) -> bool | None:
    """Whether an answer stands somewhere in a text without "not" or "instead of" before it; None if it does not stand there."""
    if _NUMBER.fullmatch(answer):
        found = [number for number in _NUMBER.finditer(text) if same_at_sight(number[0], answer)]
    else:
        found = list(re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", text)) if len(answer) > 1 else []
    before = (text[max(0, each.start() - 60) : each.start()].rstrip("$\\") for each in found)
    return any(not (_NEGATED.search(part) or _REPLACED.search(part)) for part in before) if found else None


def asks(text: str) -> bool:
    """Whether a reply asks back instead of answering: it closes with a question, and neither marks an answer nor begins its
    last sentence with one ("How many are left? 24 are left.").

    Other numbers may stand there ("How many were sold? Each one brings 7."): in 36 of 113 written replies that ask they do,
    and in none of 1,059 answers of small models did one after the last question give the answer.
    """
    text = _said(text)
    return strict_answer(text) is None and closes_asking(text) and not _NUMBER.match(rough_sentences(text[-_END:])[-1])


def closes_asking(text: str) -> bool:
    """Return True if the last sentence is a question, or the one before it and the last has no boxed answer."""
    text = text[-_END:].translate(_QUESTION_MARKS)
    last = rough_sentences(text)[-2:] if "?" in text else [""]
    return last[-1].endswith("?") or (last[0].endswith("?") and not boxed(last[1]))


def outcome(text: str, truncated: bool, options: Sequence[str] = ()) -> Outcome:
    """Return the outcome of a reply: a marked answer, else a cut, else a question, else an answer, else no answer.

    With `options` answers are letters, and a reply that closes with a sentence after its question may give one.
    """
    strict = strict_letter(text, options) if options else strict_answer(text)
    if strict is not None or truncated:
        return "truncated" if strict is None else "answered"
    found = lenient_letter(text, options) if options else lenient_answer(text)
    asked = asks(text) if not options or found is None else "".join(rough_sentences(_said(text))[-1:]).endswith("?")
    return "asked" if asked else "no_answer" if found is None else "answered"


# --- The chosen letter of a question with lettered options (see `probe.sets`)
#
# *Strict* takes the last marked letter: `\boxed{B}`, `Answer: B`, `#### B`, or `**B**` at the end. *Lenient* falls back to
# "the answer is B" or "B is correct", then to the last letter that stands alone, then to the last option whose full text
# is there, leaving out questions that close the reply. The article "A" and the pronoun "I" are never letters, nor are
# variables ("B = 2 T") and what follows "not", and two letters at once ("A or B") are no choice.

_SIGNED = re.compile(rf"(?<!\$)(?:{TEXT}|\$)++(\(?[A-Za-z]\)?)[}}$]++")
_BOLD_AT_END = re.compile(r"(?:\*\*([^*\n]+)\*\*|\$?\\textbf\s*\{([^{}\n]+)\}\$?)[.!]?\s*$")
# A second letter right after the first, as in "A or B", "(A), (B)", or right before it.
_SECOND = re.compile(r"\)?[\s*_$}]*(?:,|/|&|\b(?:or|and|nor)\b)[\s*_$\1]*\(?[A-Z]\b(?!\)?\s+is\b)")
_BEFORE = re.compile(r"\b[A-Z]\)?[\s*_$]*(?:,|/|&|\b(?:or|and|nor)\b)+[\s*_$]*(?:(?:or|and)\s+)?$")
_LABELLED = re.compile(rf"\(?([A-Za-z])(?:\)[.:]?|[.:])(?!{_SECOND.pattern})\s*(.+)", re.DOTALL)
_BARE = re.compile(r"\(?([A-Za-z])\)?[.:]?")
# "(B)" with no name before it, as in P(B); or a letter that is no part of a word, a formula or an abbreviation. After "a" comes
# an end, a stop, or a reason, so that "A proton" is no A.
# Chinese, Japanese and Korean, which put letters between their words without a space
_EAST = r"\u3000-\u9fff\uac00-\ud7a3\uff01-\uff20"
_WORDS = rf"[^\W{_EAST}]"
_ALONE = re.compile(rf"(?m)(?<!{_WORDS})(?<!\\)\(([A-Za-z])\)(?!{_WORDS})|(?<!{_WORDS})" r"(?<![.\\^{($'’=+/<>-])(?<![=+/<>] )(?:"
                    rf"([B-HJ-Zb-hj-z])(?!{_WORDS}|" r"['’^{}$=+/<>(-]|\.\w|\s*[=+/<>^×·])"
                    rf"|([Aa])(?!{_WORDS}|['’])(?=[*_$}}]*(?:[{_EAST}]|" r"[ \t]*$|[.,;:)\]!](?!\w)|\s+[-–—]\s|\s+(?:is|because|since|as)\b)))")  # fmt: skip
_MARKS = re.compile(r"(?im)(?:answer|(?:correct|right|best|final|chosen|my)\W+(?:option|choice)|^\W*(?:option|choice))\W*:\W*"
                    r"(?:(?:option|choice)\W+)?$")  # fmt: skip
_CALLS = re.compile(r"(?i)(?:answer|option|choice) +(?:is|(?:must|would|should|has to) be)\b\W*(?:(?:option|choice) )?$|(?:答案|選擇|选择|選|(?<!不)选|答えは|정답은)[是为為]?\W*$")  # fmt: skip
_PASSED = re.compile(r"\b(?:rather than|instead of|over)\s+(?:option |choice )?[\s(*$]*$", re.IGNORECASE)
_RIGHT = re.compile(r"[*_]*\s+is\s+(?:therefore |thus |clearly )?(?:the )?(?:only )?(?:correct|right|best|answer)\b")


def _letters(text: str, options: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield (rank, position, letter) of every letter in a text: 3 if marked, 2 if called right, 1 if it stands alone."""
    text = re.sub(r"\*\*|__", "  ", text).replace("`", " ")
    text = _SIGNED.sub(lambda signed: signed[1].rjust(len(signed[0]), "\1"), text)
    for match in _ALONE.finditer(text):
        letter = match[1] or match[2] or match[3]
        before, after = text[max(0, match.start() - 60) : match.start()], text[match.end() : match.end() + 60]
        rank = 3 if _MARKS.search(before) else 2 if _CALLS.search(before) or _RIGHT.match(after) else 1
        known = _known(letter, options) if rank > 2 or match[1] or letter.isupper() else None
        refused = _NEGATED.search(before) or _PASSED.search(before)
        plain = not (refused or _SECOND.match(after) or _BEFORE.search(before))
        if known and plain and not (rank == 1 and (before.endswith("\1") or letter.islower())):
            yield rank, match.start(), known


def strict_letter(text: str, options: Sequence[str]) -> str | None:
    """Return the letter of the last mark; None without a mark, or if the mark names no single option."""
    text = _said(text)
    marks: list[tuple[int, str | None]] = [(at, letter) for rank, at, letter in _letters(text, options) if rank == 3]
    contents = [(at, content) for at, _, content in hashed(text)] + ([box] if (box := boxed(text)) else [])
    marks += [(at, letter_in(content, options)) for at, content in contents]
    if (bold := _BOLD_AT_END.search(text)) and (letter := letter_in(bold[1] or bold[2], options)):
        marks.append((bold.start(), letter))
    return max(marks, key=lambda mark: mark[0])[1] if marks else None


def lenient_letter(text: str, options: Sequence[str], truncated: bool = False) -> str | None:
    """Return the marked letter, else the last that is called the answer, else (unless `truncated`) the last alone or text."""
    if (marked := strict_letter(text, options)) is not None:
        return marked
    reply = re.sub(r"\*\*|`", "", without_closing_questions(_said(text)))
    reply = reply.upper() if _BARE.fullmatch(reply.strip("$_ \n")) else reply
    # A letter inside an option's own text ("vitamin C") is part of that text; where no letter stands, the text is the choice.
    plain = [_plain(option) for option in options]
    once = sorted({text for text in plain if plain.count(text) == 1}, key=len, reverse=True)
    texts = "|".join(re.escape(text).replace(r"\ ", r"\s+") for text in once if text)
    spelled = re.compile(rf"(?<!\w)(?:{texts or '(?!)'})(?!\w)", re.IGNORECASE)
    hidden = spelled.sub(lambda found: "-" * len(found[0]) if len(found[0]) > 2 else found[0], reply)
    shown = spelled.sub(lambda found: f"({LETTERS[plain.index(_plain(found[0]))]})", reply)
    rank, _, letter = max([*_letters(hidden, options)] or _letters(shown, options), default=(0, 0, None))
    return letter if rank > 1 or not truncated else None


def letter_in(content: str, options: Sequence[str]) -> str | None:
    """Return the one option that the content of a mark names by letter, by letter and text, or by text."""
    content = WRAPPED.sub(r"\1", content).replace("\\ ", " ").strip("$*_ \n")
    same = [place for place, option in enumerate(options) if _plain(option) == _plain(content)]
    bare = _BARE.fullmatch(re.sub(r"^(?i:option|choice|answer:?)\s+", "", content))
    named = bare or (_LABELLED.fullmatch(content) if len(same) != 1 else None)
    return _known(named[1], options) if named else LETTERS[same[0]] if len(same) == 1 else None


def _known(letter: str, options: Sequence[str]) -> str | None:
    return letter.upper() if letter.upper() in LETTERS[: len(options)] else None


def _plain(text: str) -> str:
    return " ".join(re.sub(r"\*\*|__|`", "", text).casefold().split()).strip(" .$")
