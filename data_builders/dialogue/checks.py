"""Rules for texts: their numbers, their equations, and a fact that is withheld.

Each reason why a text cannot be used has a name, so a person can check it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from nextturn.data_builders.numbers import arithmetic, equations, read, squeezed
from nextturn.data_builders.sections import wordings
from nextturn.probe.questions.simulation import Fact
from nextturn.probe.text.words import content_stems, ngrams

# --- The numbers of a text, in digits or words, compared by value.

_DIGITS = re.compile(r"\d+(?:(?:,|\{,\})\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?")
_WORDS: dict[str, int] = wordings("words.yaml")["numbers"]
_TENS = "|".join(word for word, value in _WORDS.items() if value in range(20, 100, 10))
_WORD = re.compile(rf"\b(?:({_TENS})[- ])?({'|'.join(_WORDS)})\b", re.IGNORECASE)
# Numbers that may occur in any text.
_ANYWHERE = frozenset((1.0, 2.0))


def values(text: str) -> set[float]:
    """Return all numbers of a text, in digits or in words."""
    words = {
        float(_WORDS[match.group(2).lower()] + (_WORDS[match.group(1).lower()] if match.group(1) else 0))
        for match in _WORD.finditer(text)
    }
    return {float(found.replace("{,}", "").replace(",", "")) for found in _DIGITS.findall(text)} | words


# The text between two dollar signs that do not mean money, without words of a sentence, or between \\[ and \\].
_PROSE = r"(?:(?<![A-Za-z\\{])[A-Za-z]{2,} (?=[A-Za-z]{2,}))"
_FORMULA = re.compile(rf"(?<!\\)\$((?:(?!{_PROSE})(?:\\.|[^$\\]))+)\$|\\\[(.+?)\\\]", re.DOTALL)


def _formulas(text: str) -> set[str]:
    """Return the formulas with a letter; numbers are compared by value elsewhere."""
    found = {squeezed(inline or displayed).rstrip(".,;:") for inline, displayed in _FORMULA.findall(text)}
    return {formula for formula in found if re.search("[A-Za-z]", formula)}


_RUN, _SMALL = 7, 20


def copies(text: str, example: str, known: str) -> bool:
    """Return True if a text copies an example: seven words in a row, all words, or a number above 20 that is not in `known`."""
    said, shown = (tuple(re.findall(r"\w+", words.lower())) for words in (text, example))
    run_of_both = set(ngrams(said, _RUN)) & set(ngrams(shown, _RUN))
    numbers = {value for value in values(example) - values(known) if value > _SMALL}
    return said == shown or bool(run_of_both) or bool(values(text) & numbers)


# --- Facts to withhold, proposed by a model or a rule.

_HOLE = re.compile(
    r"_{2,}|\[[^\]]*\]|\?\s*\?|…|\.{3}|\b(?:unknown|unspecified|not (?:specified|given|known|mentioned)|missing|a certain|"
    r"undisclosed|without (?:specifying|knowing|mentioning)|of (?:the|a certain|some) (?:kind|sort|type)|(?:some|another|an?)"
    r"(?: (?:other|constant|fixed|larger|smaller|whole|positive|multiple|different))*"
    r" (?:constant|value|number|integer|multiple|amount|quantity|expression))\b",
    re.IGNORECASE,
)


def fact_values(text: str) -> frozenset[float]:
    """Return the numbers of a fact's text, without 1 and 2 if it has others."""
    return frozenset(values(text)) - _ANYWHERE or frozenset(values(text))


_LINKS = (
    "and|or|of|as|was|were|is|are|in|at|on|per|to|for|from|with|than|that|each|every|by|if|he|she|it|they|the|a|an"
    "|less|more|fewer|times|who|whose|which|will|being|there|through|total"
)
_NAMED = "|".join(word for word, value in _WORDS.items() if value > 2 and word not in wordings("words.yaml")["places"])
# With its noun: one word where that is a plural, after which a verb often stands, else two ("hot dogs", "tennis balls").
_FACT = re.compile(
    rf"(?:\$\s?(?:\\\$)?(?:{_DIGITS.pattern})(?:\s?\\?%)?\s?\$|\\?\$?(?:{_DIGITS.pattern}|\b(?:{_NAMED})\b(?!-))(?:\s?\\?%)?)"
    rf"(?: (?!(?:{_LINKS})\b)(?:[a-z]+(?<![siu])s|children|people|women|men|[a-z]+(?: (?!(?:{_LINKS})\b)[a-z]+)?)\b)?",
    re.IGNORECASE,
)


# A number that nobody leaves out: a part of a word, a fraction, a formula or a table, or of a relation ("7 less than"); by
# itself, one of a list or a range, or what a colon or factorial hangs on. Its sign is a part too: it would stay behind.
_PART = re.compile(r"(?:[\w:/^.\u2212\u2013-]|&\s*)\0|\0(?:[\w/^\\\u2013-]|\s*&| (?:less|more|fewer|times)\b)")
_NUMBER = rf"(?:\$?(?:\\\$)?[-\u2212]?\d|(?:{_NAMED})\b)"
_BETWEEN = r"(?:,|,? (?:and|or|to|through))"
_LISTED = re.compile(
    rf"(?:\d(?:\s?\\?%)?\$?|\b(?:{_NAMED})){_BETWEEN}\s*\0|\0{_BETWEEN}\s*{_NUMBER}|\0[:!]", re.IGNORECASE
)


def facts(question: str) -> list[str]:
    """Return the numbers that a problem states once, each with the words after it, such as "12 marbles".

    Numbers inside a formula, and numbers that their sentence needs, are left out.
    """
    spans = [match.span() for match in _FORMULA.finditer(question)]
    found = []
    for match in _FACT.finditer(question):
        fact, (start, end) = match.group(), match.span()
        marked = question.replace(fact, "\0")
        within = any(first < start < last or (first == start and end < last) for first, last in spans)
        listed = _LISTED.search(marked) and not re.search(r"[A-Za-z]", fact)
        again = question.count(fact) > 1 or values(fact) & values(question.replace(fact, " "))
        if not (within or listed or again or _PART.search(marked)):
            found.append(fact)
    return found


_GIVEN = re.compile(r"\d|\$[^$]*[=<>+^\\][^$]*\$|\\\[")


def little_left(fact: str, question: str) -> bool:
    """Return True if a problem without the fact ("" for the whole problem) has no digit or formula left.

    Such a first user message can be recognized by its wording: without 17 of them among 183 of a large model, the AUC
    dropped from 0.72 to 0.62.
    """
    return not _GIVEN.search(question.replace(fact, " ") if fact else question)


_FEW_WORDS = 12  # such as "what is the sum of all possible values of x if"


def one_formula(question: str) -> bool:
    """Return True if a problem states nothing but one formula, so that no part of it can be withheld."""
    formulas = [inline or displayed for inline, displayed in _FORMULA.findall(question)]
    stated = sum(bool(re.search(r"\d|[=+^*/\\<>-]", formula)) for formula in formulas)
    around = len(re.findall("[A-Za-z]{2,}", _FORMULA.sub(" ", question)))
    return stated == 1 and around <= _FEW_WORDS and not facts(question)


def sentence_with(fact: str, question: str) -> str:
    text = read(question, latex="$" in question)
    return question[slice(*text.sentence(question.index(fact)))]


def unfit_fact(fact: Fact, question: str) -> str:
    """Return why the fact cannot be withheld, or ""."""
    bare, words, numbers = squeezed(fact.short).lower(), fact.short.split(), fact_values(fact.short)
    if (
        squeezed(question).lower().count(bare) != 1
        or not 1 <= len(words) <= 14
        or (len(words) == 1 and not values(bare))
    ):
        return "no_fact"
    if not content_stems(fact.name) or len(fact.name.split()) > 16 or values(fact.name) & numbers:
        return "no_name"
    # A number that occurs twice is not withheld by removing one occurrence.
    rest = question.replace(fact.short, " ")
    if rest == question or numbers & values(rest):
        return "stated_twice"
    return "little_left" if little_left(fact.short, question) else ""


def unfit_rest(text: str, fact: Fact, question: str) -> str:
    """Return why the text is not the problem without the fact, or "".

    People who forget a fact put no placeholder in its position: two annotators refused 8 and 10 of 22 first user messages,
    all for a described gap.
    """
    if _HOLE.search(text) and not _HOLE.search(question):
        return "placeholder"
    if len(text.split()) < 7:
        return "too_little"
    if set(content_stems(text)) - set(content_stems(question)) - set(content_stems(fact.name)):
        return "adds_words"
    if not _formulas(text) <= _formulas(question):
        return "changes_formula"
    numbers, here = fact_values(fact.short), values(text)
    wanted = values(question) - numbers
    if here & numbers or squeezed(fact.short).lower() in squeezed(text).lower():
        return "still_stated"
    if not wanted - _ANYWHERE <= here:
        return "loses_number"
    if here - wanted - _ANYWHERE:
        return "invents_number"
    kept = set(content_stems(question)) - set(content_stems(fact.short))
    return "" if len(kept & set(content_stems(text))) >= 0.75 * len(kept) else "loses_words"


# --- The equations of a solution.


def has_false_equation(text: str) -> bool:
    """Return True if some equation of numbers is false, written plainly or in LaTeX; a decimal may be rounded to 1%."""
    return any(not equation.is_true for equation in equations(text)) or any(map(_is_false, _chains(text)))


_PLAIN = [
    (re.compile(r"\d\s*\\[dt]?frac"), " mixed "),  # 2 1/3 or 2 times 1/3
    (re.compile(r"\\(?:times|cdot)(?![A-Za-z])|[×·]|(?<=\d) [xX] (?=\d)"), "*"),
    (re.compile(r"\\div(?![A-Za-z])|÷"), "/"),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}"), r"((\1)/(\2))"),
    (re.compile(r"\\(?:left|right|,|!)|\{,\}|(?<=\d),(?=\d{3}\b)"), ""),
    (re.compile(r"\\[()\[\]]|\$|\*\*"), "|"),
    (re.compile(r"\^\{?(\d)\}?(?!\d)"), r"**\1"),
    (re.compile(r"(?<=[\d)])\s*(?=\()"), "*"),
]
# What a chain of numbers alone cannot follow: an operation, a variable, a command such as \\star.
_CONTINUES = re.compile(
    r"(?:[-+*/^=({_,:%!@&~]|\\[A-Za-z]+|(?<![A-Za-z])[A-Za-z]|\b(?:of|mod|by|and|or|to)|[^\x00-\x7f])\s*$"
)
_SIDE = r"[-(\d][-\d\s.+*/()]*"
_CHAIN = re.compile(rf"(?<![\w.)]){_SIDE}(?:=\s*{_SIDE})+(?![\w%^\\{{])")


def _chains(text: str) -> Iterator[list[str]]:
    """Yield the sides of every chain of equations that holds nothing but numbers: "2 * 7 - 15 = 14 - 15 = -1"."""
    for pattern, plain in _PLAIN:
        text = pattern.sub(plain, text)
    for match in _CHAIN.finditer(text):
        if not _CONTINUES.search(text[: match.start()]):
            yield [side.strip().rstrip(".") for side in match.group().split("=")]


def _is_false(sides: Sequence[str]) -> bool:
    numbers = [_value(side) for side in sides]
    for (text, number), (next_text, next_number) in pairwise(zip(sides, numbers, strict=True)):
        computes = re.search(r"\d\s*\)*\s*[-+*/]", f"{text} | {next_text}")
        if computes and number is not None and next_number is not None:
            rounded = 0.01 if "." in text + next_text else 1e-9  # the second for powers, which are no exact fractions
            if abs(number - next_number) > rounded * max(1.0, abs(number)):
                return True
    return False


def _value(side: str) -> float | None:
    if re.search(r"\d\s+\d", side):  # "1 1/2", which without its space would be another number
        return None
    value = arithmetic("".join(side.split()))
    try:
        return None if value is None else float(value)
    except OverflowError:
        return None
