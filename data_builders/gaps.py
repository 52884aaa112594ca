"""What a problem read as plain text supports: numbers and formulas to withhold, steps, wrong results, formulas to quote.

Nothing here understands the text. Everything is cut from the problem and its reference solution, or is a number
changed in place; whatever cannot be told apart with certainty is left out. `text` finds formulas and sentences.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from data_builders.tasks import Gap, Piece, Slip, Step, Task
from data_builders.text import (
    DRAWING,
    MATH,
    Formula,
    Text,
    arithmetic,
    balanced,
    number,
    places,
    plain_inner,
    read,
    same_value,
    squeezed,
    stands_in,
    worth,
)
from probe.grading import boxed
from probe.sets import Problem


def task_from(problem: Problem) -> Task:
    r"""The problem as a task. A solution that boxes its answer (MATH) is kept word for word.

    The same problem always gives the same task: choices of wording are seeded from its id.
    """
    latex = boxed(problem.solution) is not None
    question, solution = read(problem.question, latex), read(problem.solution, latex)
    steps = steps_of(solution, prose=latex)
    gaps: tuple[Gap, ...] = ()
    if question.whole:
        stated, rng = Stated(problem, question, solution, latex), random.Random(f"gaps:{problem.id}")
        gaps = (*number_gaps(stated, rng), *formula_gaps(stated, rng))
    task = Task(
        id=problem.id,
        question=problem.question,
        answer=problem.answer,
        source=problem.source,
        steps=steps,
        gaps=gaps,
        topic=(problem.subject or "a word problem").lower().replace(" & ", " and "),
    )
    if not latex:
        return dataclasses.replace(task, slips=step_slips(steps, problem.answer))
    found = equations(solution) if solution.whole else {}
    start, rest = start_and_rest(solution, problem.answer)
    return dataclasses.replace(
        task,
        boxed_solution=problem.solution,
        slips=text_slips(problem, question, solution, found),
        start=start,
        rest=rest,
        pieces=pieces(solution, found),
    )


# --- The numbers a problem states: counts, money, percentages, degrees and number words, each with its place.
#
# A number alone in a formula ("$12$ inches", "$60^\circ$", "$\$5$") is a number of the text like any other.

AmountKind = Literal["count", "money", "percent", "degrees", "word"]

_WORDS = ("three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_TENS = {"fifteen": 15, "sixteen": 16, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60}
NUMBER_WORDS = {word: value for value, word in enumerate(_WORDS, start=3)} | _TENS

_PLAIN = re.compile(r"(?<![\w.,/\\$:^)}-])(\\?\$)?(\d[\d,]*(?:\.\d+)?)( ?\\?%)?(?![\w/:^%]|[.,]\d|-\d)")
_ALONE = re.compile(
    r"\s*(\\\$)?\s*(\d+(?:,\d{3})*(?:\.\d+)?)\s*(\\%|\^\s*\{?\\circ\}?|\\(?:text|mathrm|mbox)\{[^{}$]*\})?\s*([.,;:?]?)\s*"
)
_WORD = re.compile(rf"\b({'|'.join(NUMBER_WORDS)})\b(?= [a-z])", re.IGNORECASE)
_YEAR = re.compile(r"(?:\b(?:in|since|until|by|year|of|January|February|March|April|May|June|July|August|September|October"
                   r"|November|December)|\d,)\s*$")  # fmt: skip


@dataclass(frozen=True)
class Amount:
    """A stated number: `shown` is the text from `start` to `end`, `value` the bare number or number word in it.

    `stop` is what the amount's formula holds for its sentence: the "." of "$12.$", which `shown` leaves out.
    """

    start: int
    end: int
    shown: str
    value: str
    kind: AmountKind
    stop: str = ""

    @property
    def worth(self) -> Fraction | None:
        word = NUMBER_WORDS.get(self.value.lower())
        return Fraction(word) if word is not None else number(self.value)


def amounts(text: Text) -> Iterator[Amount]:
    """All numbers of a text that stand by themselves, in the order of their kinds and places."""
    for match in _PLAIN.finditer(text.mask):
        money, value, percent = match.groups()
        value = value.rstrip(",")
        end = match.end() if percent else match.start(2) + len(value)
        if len(value) == 4 and value[:2] in ("19", "20") and _YEAR.search(text.mask, 0, match.start()):
            continue
        kind: AmountKind = "money" if money else "percent" if percent else "count"
        yield Amount(match.start(), end, text.raw[match.start() : end], value, kind)
    for formula in text.formulas:
        inside = None if formula.drawing or formula.display else _ALONE.fullmatch(text.inner(formula))
        if inside is None:
            continue
        money, value, unit, stop = inside.groups()
        kind = "money" if money else "percent" if unit == r"\%" else "degrees" if unit and "circ" in unit else "count"
        shown = text.raw[formula.start : formula.end]
        if stop:
            shown = re.sub(rf"\s*{re.escape(stop)}\s*\$$", "$", shown)
        yield Amount(formula.start, formula.end, shown, value, kind, stop)
    for match in _WORD.finditer(text.mask):
        yield Amount(match.start(), match.end(), match.group(), match.group(), "word")


def another(amount: Amount) -> str:
    """A near, different number of the same form: the same for the same value, at most a third away."""
    value = amount.value
    rng = random.Random(f"another:{value}")
    if amount.kind == "word":
        words = list(NUMBER_WORDS)
        at = words.index(value.lower())
        return words[at + rng.choice((-1, 1)) if 0 < at < len(words) - 1 else abs(at - 1)]
    whole, _, cents = value.partition(".")
    before = int(whole.replace(",", ""))
    by = 10 if before >= 40 and before % 10 == 0 else 5 if before >= 20 and before % 5 == 0 else 1
    if before >= 1000 and before % 100 == 0:
        by = 100
    changed = before + by * rng.choice((-1, 1)) * rng.randint(1, max(1, before // (3 * by)))
    if changed < 2 or (amount.kind == "percent" and changed > 100):
        changed = before + by if amount.kind != "percent" or before + by <= 100 else before - by
    return (f"{changed:,}" if "," in whole else str(changed)) + (f".{cents}" if cents else "")


# --- What may be withheld: only what the solution needs, never the answer, never what is said twice.

# Sentences about the form of the answer, examples, and what is said in other words hold nothing that is needed.
_ASIDE = re.compile(
    r"your (?:final )?answers?|\b[Rr]ound|nearest|[Ff]or example|for instance|\bNote\b|[Rr]ecall|such as|decimal place|in the form"
    r"|[Ee]xpress(?:ing)? (?:your|the (?:answer|result|probability|sum)|all|any|each|it|them|in)\b|relatively prime|lowest terms"
    r"|[Ee]nter|can be (?:written|expressed)|[Ii]n other words|[Tt]hat is,|i\.e\.|\bAssume\b|mixed number|common fraction"
)
_CHOICES = re.compile(r"\(A\)|\\text(?:bf)?\{\s*\(?A[).]|(?:^|\n|\s)A[.)]")
_TERMS = re.compile(r"\\ldots|\\dots|\\cdots|\.\.\.")  # one term of a row follows from the others
# What everybody knows is not asked for: a deck of 52 cards, a foot of 12 inches.
_STANDARD = re.compile(
    r"\b(?:standard|regular|normal|ordinary)(?: [a-z]+)* of $|\bstandard $|\b(?:1|one|a|an) (?:foot|mile|yard|hour|minute|day|week|year|gallon|quart|pint"
    r"|cup|pound|kilogram|kilometer|meter|dollar|dozen)s? (?:is|equals|=|has|contains|is equal to|being) $"
)
_LAST_OF_A_ROW = re.compile(r"=.*,\s*\$,? (?:and |or )?$", re.DOTALL)  # "for $n = 1, 2, 3,$ and $4$"
_COUNTED = re.compile(rf"\b(\d{{1,3}}|{'|'.join(NUMBER_WORDS)})\$? ([a-z]+(?: [a-z]+)?)", re.IGNORECASE)
_SMALL = 13  # below, a number may stand in a text for another reason
_EXPONENT = re.compile(r"\^\{?$")
_OPERATED_BEFORE = re.compile(r"(?:[-+*/x×({]|\\times|\\cdot|\\div|\\sqrt)\s*\\?\$?$")
_OPERATED_AFTER = re.compile(r"(?:\s*[a-z]+)?\s*(?:[-+*/x×^)}%!]|\\times|\\cdot|\\div|\\pi|\\choose|[a-z]\b)")


@dataclass(frozen=True)
class Stated:
    """A problem as read: its question, its solution, and what that one works with."""

    problem: Problem
    question: Text
    solution: Text
    latex: bool

    @functools.cached_property
    def calculated(self) -> str:
        """The part of the solution where it calculates: its formulas, or all of it in plain text."""
        if not self.latex:
            return self.solution.raw
        return " ; ".join(self.solution.inner(formula) for formula in self.solution.formulas if not formula.drawing)

    @functools.cached_property
    def options(self) -> int:
        """Where lettered options begin: the end of the question, where there are none."""
        choices = _CHOICES.search(self.question.raw) if self.latex else None
        return choices.start() if choices else len(self.question.raw)

    def aside(self, position: int) -> bool:
        """Whether the place is in a sentence about the answer's form, in an example, or among lettered options."""
        return position >= self.options or bool(_ASIDE.search(self.question.raw, *self.question.sentence(position)))

    def needs(self, amount: Amount) -> bool:
        """A number that stands once in the question, is computed with, and is not the answer."""
        value, raw = amount.worth, self.question.raw
        if value is None or (value < 2 and value == int(value)) or self.aside(amount.start):
            return False
        if same_value(str(value), self.problem.answer) or _TERMS.search(raw, *self.question.sentence(amount.start)):
            return False
        if amount.kind == "word":
            stands = re.findall(rf"\b{amount.value}\b", raw, re.IGNORECASE)
        else:
            stands = list(map(str, itertools.islice(places(amount.value, raw), 2)))
        return len(stands) == 1 and any(self._calculates_with(form, value) for form in _written(amount, value))

    def says_again(self, amount: Amount, noun: str) -> bool:
        """Whether the number stands again before the same noun, in digits or as a word: "3 cards ... all three cards"."""
        stem = noun.rpartition(" ")[2][:4]
        return bool(stem) and any(
            match.start() != amount.start
            and f" {stem}" in f" {match.group(2)}"
            and (NUMBER_WORDS.get(match.group(1).lower()) or number(match.group(1))) == amount.worth
            for match in _COUNTED.finditer(self.question.raw)
        )

    def _calculates_with(self, form: str, value: Fraction) -> bool:
        """Exponents do not count. A small number may stand in a solution by chance, so it wants an operator beside it."""
        small = value < _SMALL and value.denominator == 1
        for at in places(form, self.calculated):
            before, after = self.calculated[max(0, at - 12) : at], self.calculated[at + len(form) : at + len(form) + 20]
            operated = _OPERATED_BEFORE.search(before) or _OPERATED_AFTER.match(after)
            if not _EXPONENT.search(before) and (operated or not small):
                return True
        return False


def _written(amount: Amount, value: Fraction) -> list[str]:
    """How a solution may write the number: 1,200 as 1200, 2.50 as 2.5, 25% as .25."""
    bare = amount.value.replace(",", "")
    forms = [amount.value, bare] if amount.kind != "word" else [str(value)]
    if "." in bare:
        forms.append(bare.rstrip("0").rstrip("."))
    if amount.kind == "percent":
        share = f"{float(value / 100):.4f}".rstrip("0")
        forms += [share, share.removeprefix("0"), str(value / 100)]
    return list(dict.fromkeys(forms))


# --- Gaps of kind "number": a stated number left vague ("some pens") or blank ("a radius of ___ inches").
#
# It is asked for by name where the sentence has one of a few simple forms, else by quoting the place where it stood.

BLANKS = ("___", "___", "[?]", "(?)", "[unreadable]")
_VAGUE = ("some", "a few", "several")
# After these words "some" does not read: "these some pens", "exactly some pens".
_NO_VAGUE_AFTER = re.compile(
    r"(?:\b(?:this|these|those|the|first|last|next|other|others|all|every|each|only|about|exactly|another|his|her|their|its|my|our"
    r"|your|of|than|or|least|most|to|over|nearly|around|almost|approximately|between|remaining|any|no|same|past|previous|within"
    r"|under|by|up|an?|total|just|additional|extra|both|some|many|top|per|order|for)|['’]s|-|,|[\d$%])\s*$",
    re.IGNORECASE,
)
_NO_VAGUE_BEFORE = re.compile(
    r" (?:of them|per|as|more|less|fewer|older|younger|times|old|long|wide|tall|high|deep|away|apart|ago|later|earlier|from now"
    r"|left over|each of which|equals?|=|at a time|in a row)\b"
)
_LARGE = frozenset(("dozen", "hundred", "thousand", "million", "billion", "percent", "more", "other", "different"))


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# "6 inches" measures: nobody says "some inches".
_UNITS = _set("""inch inches foot feet yard yards mile miles meter meters metre metres centimeter centimeters millimeter millimeters
    kilometer kilometers cm mm km m ft lb lbs oz g kg mg ml mL liter liters litre litres gallon gallons quart quarts pint
    pints cup cups tablespoon tablespoons teaspoon teaspoons ounce ounces pound pounds gram grams kilogram kilograms kgs
    ton tons degree degrees percent dollars cents pence euros units unit square cubic mph kph MB GB gigabytes megabytes
    milliliters calories acres points""")
_PLURALS = _set("people children men women feet teeth geese mice fish deer sheep dice cattle")
_NO_NOUN = _set("""of in on at to for with from and or that which who whose each per a an the every by than into when while if because
    but after before during as are is was were be has have had will would can could he she they it we you i his her their
    its my our this these those there then so until since through over under around between about only left fewer also
    together ago away long wide tall high deep old apart how what does do did not all both either where using out up down
    off without within across along against among plus minus times cost costs gets get got makes make takes take gives
    give goes go comes come consists such percent equally evenly exactly less thus always across various previous yes
    consecutive class glass grass dress unless perhaps sometimes equals weighs sells means lets positive squares""")
_SHAPE = (
    "radius|diameter|side length|edge length|height|length|width|area|perimeter|volume|surface area|circumference|hypotenuse|slope"
    "|common ratio|common difference|first term"
)
_WHO = r"(?:[Tt]he|[Aa]n?|[Ee]ach|[Oo]ne) [a-z]+|[A-Z][a-z]+"
# What stands before and after a number, and how it is then asked for: the question, the clause, the thing.
_NAMED = (
    (re.compile(r"\b(?P<how>divided|divisible|multiplied) by (?:the number )?$"), re.compile(r""),
     ("By which number is it {how}?", "which number it is {how} by", "the number it is {how} by")),
    (re.compile(rf"(?:^|, |and )(?P<who>{_WHO}) is (?:now )?$"), re.compile(r" years old(?! than)"),
     ("How old is {who}?", "how old {who} is", "the age of {who}")),
    (re.compile(rf"(?:^|, |and )(?P<who>{_WHO}) costs $"), re.compile(r"[.,]| and"),
     ("How much does {who} cost?", "how much {who} costs", "the price of {who}")),
    (re.compile(r"\b[Tt]here are (?:only |exactly |a total of )?$"), re.compile(r"(?: [a-z-]+){1,3}(?: (?:in|on) (?:the|an?|his|her) [a-z]+)?[.,]"),
     ("How many {noun} are there?", "how many {noun} there are", "the number of {noun}")),
    (re.compile(rf"\b(?:[Tt]he|[Aa]n?|with|has|having|whose) (?P<what>(?:{_SHAPE})(?: of (?:the|an?|each|one) [a-z]+)?)(?: of| is| equals| measures)? $"), re.compile(r""),
     ("What is the {what}?", "what the {what} is", "the {what}")),
)  # fmt: skip
_LONGEST_REVEAL = 140


def number_gaps(stated: Stated, rng: random.Random) -> Iterator[Gap]:
    """One gap for each number that may be withheld, in the order in which they are found."""
    text = stated.question
    for amount in amounts(text):
        if not stated.needs(amount):
            continue
        start, end = text.sentence(amount.start)
        sentence, before, after = text.raw[start:end], text.raw[start : amount.start], text.raw[amount.end : end]
        noun = _noun(after) if amount.kind in ("count", "word") else ""
        vague = _may_be_vague(amount, before, after, noun)
        if amount.kind == "word" and not vague:  # "in ___ ways" asks for digits
            continue
        if stated.says_again(amount, noun) or _STANDARD.search(before) or _LAST_OF_A_ROW.search(before):
            continue
        vague = vague and (amount.kind == "word" or rng.random() < 0.6)
        hidden = (_VAGUE[rng.randrange(3)] if before.strip() else "Some") if vague else _blank(amount, rng)
        question = text.raw[: amount.start] + hidden + amount.stop + text.raw[amount.end :]
        place = quote(text, amount.start, amount.end, hidden)
        asked = _name(stated, before, after, noun) or (_by_place(amount, place, noun, vague, rng) if place else None)
        if asked is None or stands_in(amount.value, question):
            continue
        words = _leading_words(after)
        unit = noun or (words[0] if words and words[0] in _UNITS | _LARGE - {"more", "other", "different"} else "")
        shown = amount.shown.lower() if amount.kind == "word" else amount.shown
        short = f"{shown} {unit}" if unit else shown
        plain = not sentence.endswith("?") and len(sentence) <= _LONGEST_REVEAL and "\n" not in sentence
        other = another(amount)
        known = stands_in(other, text.raw) or same_value(other, stated.problem.answer)
        yield Gap(
            question=question,
            clause=asked[1],
            ask=asked[0],
            reveal=sentence if plain and rng.random() < 0.5 else f"It's {short}.",
            short=short,
            value=amount.value,
            kind="number",
            thing=asked[2],
            other="" if known else short.replace(amount.value.lower(), other.lower(), 1),
        )


def _leading_words(text: str) -> list[str]:
    """Up to three words that a text begins with, after one space each."""
    match = re.match(r"(?: [A-Za-z][A-Za-z'’-]*){1,3}", text)
    return match.group().split() if match else []


def _noun(after: str) -> str:
    """The plural noun a number counts, with the words before it: "double meat sandwiches"; "" without one."""
    words = _leading_words(after)
    for at, word in enumerate(words):
        if word.lower() in _NO_NOUN or word[0].isupper():
            return ""
        if word in _PLURALS or (
            len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is", "'s", "’s"))
        ):
            return " ".join(words[: at + 1])
    return ""


def _may_be_vague(amount: Amount, before: str, after: str, noun: str) -> bool:
    """Whether "some" reads in the number's place."""
    words = noun.lower().split()
    if not words or words[0] in _LARGE or _UNITS & set(words[:2]) or "." in amount.value or after.startswith("-"):
        return False
    return not _NO_VAGUE_AFTER.search(before) and not _NO_VAGUE_BEFORE.match(after[len(noun) + 1 :])


def _blank(amount: Amount, rng: random.Random) -> str:
    """A visible blank that keeps the sign of money, of a percentage and of degrees."""
    if amount.kind == "degrees":
        return r"$?^\circ$"
    if amount.kind in ("money", "percent"):
        blank, escape = rng.choice(("___", "[?]")), "\\" if "\\" in amount.shown else ""
        return f"{escape}${blank}" if amount.kind == "money" else f"{blank}{escape}%"
    return rng.choice(BLANKS)


def _name(stated: Stated, before: str, after: str, noun: str) -> tuple[str, str, str] | None:
    """How the number is asked for by name: (question, clause, thing); None where its sentence has no simple form."""
    question = stated.question.raw.lower()
    for left, right, forms in _NAMED:
        match = left.search(before)
        if match is None or not right.match(after) or ("{noun}" in forms[0] and not noun):
            continue
        # What the question names again may be another one's, or what is asked.
        named = next(iter(match.groups()), f"how many {noun}").lower()
        if question.count(named) <= len(match.groups()):
            known = {key: _definite(value) for key, value in match.groupdict().items()}
            ask, clause, thing = (form.format(noun=noun, **known) for form in forms)
            return ask, clause, thing
    return None


def _definite(words: str) -> str:
    """Somebody named before is known: "A prism" -> "the prism"; a name stays as it is."""
    words = re.sub(r"\b[Aa]n? ", "the ", words)
    return words[0].lower() + words[1:] if " " in words else words


def _by_place(amount: Amount, place: str, noun: str, vague: bool, rng: random.Random) -> tuple[str, str, str]:
    """How the number is asked for by quoting where it stood."""
    if vague:
        asks = (f'It says "{place}", but how many {noun} exactly?', f'How many {noun} are meant in "{place}"?')
        return rng.choice(asks), f'how many {noun} are meant by "{place}"', f'the number of {noun} in "{place}"'
    what = {"money": "amount", "percent": "percentage", "degrees": "angle"}.get(amount.kind, "number")
    asks = (f'What is the {what} in "{place}"?', f'It says "{place}". What is the {what} there?')
    return rng.choice(asks), f'which {what} belongs in "{place}"', f'the {what} in "{place}"'


# --- The place of a withheld thing, quoted: the words around it in its clause.

_OPENS = re.compile(r"(?:and|but|so|then|If|if|when|When|while|of|to|by|than|or|that|many|much) ")
_CLOSES = re.compile(r"[,;:]\s|\s(?:and|but|or|which|that|while|who|how|if|when|where|so)\b")
_ASKS = re.compile(rf"(?:,|(?<={MATH}))\s+(?:then )?(?:how|what|which|who|find|compute|calculate|determine|evaluate)\b")
_DANGLING = re.compile(
    r"(?:\s(?:the|an?|of|to|in|on|at|for|with|from|by|per|each|his|her|their|its|is|are|was|were|be|than|as|he|she|it|such|and|or|but))+$"
)
_OTHER_PARAGRAPH = re.compile(rf"\"|\n\s*\n|{DRAWING}")
_LONGEST_QUOTE = 110


def quote(text: Text, start: int, end: int, instead: str, before: int = 6, after: int = 5) -> str:
    """The words around `text[start:end]` in its sentence with `instead` in its place; "" where too few or too many.

    Formulas are kept whole. What belongs to another clause is cut off where enough is left.
    """
    first, last = text.sentence(start)
    # The mask shows a formula as one word, so no cut goes through it, and all lengths hold for the text.
    left = _OTHER_PARAGRAPH.split(text.mask[first:start])[-1]
    if left.count("(") > left.count(")"):
        left = left.rpartition("(")[2]
    clause = re.split(r"[,;:]\s+", left)[-1]
    left = clause if len(clause.split()) >= 4 else re.split(r"[;:]\s+", left)[-1]
    words = [match.start() for match in re.finditer(r"\S+", left)]
    left = left[words[-before] :] if len(words) > before + 3 else left.lstrip()
    opening = _OPENS.match(left)
    if opening and len(left.split()) > 2:
        left = left[opening.end() :]
    right = _OTHER_PARAGRAPH.split(text.mask[end:last])[0]
    match = re.match(rf"\S*(?:\s+\S+){{0,{after}}}", right)  # what is glued to the number ("-day") belongs to it
    right = match.group().rstrip() if match else ""
    if ")" in right and "(" not in right:
        right = right.partition(")")[0]
    right = _ASKS.split(right)[0]
    if len(left.split()) >= 3:
        right = _CLOSES.split(right)[0]
    right = _DANGLING.sub("", right)
    behind = text.raw[end : end + len(right)]
    space = " " if behind[:1].isalnum() else ""
    quoted = " ".join(f"{text.raw[start - len(left) : start]}{instead}{space}{behind}".split()).rstrip("?!,;:. ")
    whole = quoted.count("(") == quoted.count(")") and len(quoted) <= _LONGEST_QUOTE and '"' not in quoted
    return quoted if whole and len(quoted.split()) > len(instead.split()) else ""


# --- Gaps of kind "formula": a whole formula lost as a pasted text loses it, "the remainder when [formula] is divided by 8".

_LOST = ("[formula]", "[formula missing]", "[image]", "___", "(formula didn't paste)")
_LONGEST_FORMULA = 300
# What a bare name looks like, and what says something.
_BARE_NAME = re.compile(r"[A-Za-z\\{}_',\s]+|-?[\d.,]+|\(?[A-Za-z](?:,[A-Za-z])+\)?|[A-Za-z]\([a-z]\)")
_SAYS = re.compile(r"[\d+*/^<>=(-]|\\(?:frac|sqrt|begin|cdot|times|log|sin|cos|tan|overline)")
# Where a variable lives is no formula to ask for ("$0 < x < 1$"), and neither is a row of names.
_DOMAIN = re.compile(r"\\(?:neq?|in)(?![a-z])|^[^=]*[<>]|\\[lg]eq?(?![a-z])|\\to|^(?!.*\d.*\d.*\d).*\\(?:ldots|dots)")
_FORM = re.compile(
    r"\b(?:forms?:?|(?:written|expressed|represented|simplified|rewritten|put|factored)(?: as| in| to| uniquely as)+) $"
)
_SIDES = re.compile(r"(?<![<>!])=|<|>|\\[lg]eq?(?![a-z])|\\equiv")


def formula_gaps(stated: Stated, rng: random.Random) -> Iterator[Gap]:
    """One gap for each formula that the solution works with, asked for by the words around it."""
    text = stated.question
    for formula in text.formulas:
        inner = plain_inner(text.inner(formula))
        if formula.drawing or stated.aside(formula.start) or not _needs_formula(stated, formula, inner):
            continue
        lost, stop = rng.choice(_LOST), _stop(text, formula)
        head, tail = text.raw[: formula.start], text.raw[formula.end :]
        before = "" if not head or head[-1].isspace() or head[-1] == "(" else " "
        question = f"{head}{before}{lost}{stop}{' ' if tail[:1].isalnum() else ''}{tail}".rstrip()
        place = quote(text, formula.start, formula.end, lost + ("," if stop == "," else ""))
        if not place or not balanced(question) or stands_in(inner, question):
            continue
        what = "equation" if "=" in re.sub(r"\{[^{}]*\}", "", inner) else "expression"
        lines = text.raw.startswith("\\begin", formula.start) or ("\\\\" in inner and "\n" in inner)
        short = text.raw[formula.start : formula.end] if lines else f"${inner}$"
        asks = (f'It says "{place}". What is the {what} there?', f'The {what} is missing in "{place}". What is it?')
        yield Gap(
            question=question,
            clause=f'which {what} belongs in "{place}"',
            ask=rng.choice(asks),
            reveal=short if lines else f"It's {short}.",
            short=short,
            value=inner,
            kind="formula",
            thing=f'the {what} in "{place}"',
        )


def _needs_formula(stated: Stated, formula: Formula, inner: str) -> bool:
    """A formula that says something, and that the solution writes, whole or one side of it."""
    text, bare = stated.question, squeezed(inner)
    if len(bare) < 4 or len(inner) > _LONGEST_FORMULA or _BARE_NAME.fullmatch(bare) or not _SAYS.search(bare):
        return False
    if not balanced(inner) or _DOMAIN.search(inner) or bare == squeezed(stated.problem.answer):
        return False
    if number(inner) is not None or _FORM.search(text.raw, max(0, formula.start - 40), formula.start):
        return False
    before, after = text.mask[max(0, formula.start - 6) : formula.start], text.mask[formula.end : formula.end + 6]
    if re.search(rf"{MATH},? (?:and )?$", before) and re.match(rf",? (?:and )?{MATH}", after):
        return False  # one of several: "$(0,1),$ $(1,1),$ and $(1,0)$"
    others = (plain_inner(text.inner(one)) for one in text.formulas if one is not formula and not one.drawing)
    alone = not any(len(one) >= 4 and _SAYS.search(one) for one in others)
    sides = [side for side in _SIDES.split(bare) if len(side) > 3]
    return formula.display or alone or any(side in squeezed(stated.solution.raw) for side in (bare, *sides))


def _stop(text: Text, formula: Formula) -> str:
    """The stop that the formula holds for its sentence, or that the next sentence implies."""
    last = text.inner(formula).rstrip()[-1:]
    if last in (".", ",", "?", ";", ":"):
        return last
    return "." if text.mask[formula.end - 1] == "." else ""


# --- The steps of a reference solution: its lines or sentences, with the equation where the arithmetic comes out.

_PLAIN_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_TWO_OPERANDS = re.compile(
    rf"(?<![\d.)*/+%-])\s*\$?({_PLAIN_NUMBER})\s*([-+*/x×])\s*\$?({_PLAIN_NUMBER})\s*=\s*\$?({_PLAIN_NUMBER})(?!\s*[*/+×-]\s*\d)(?![\d%])"
)
# A longer sum or product, as GSM8K writes it: "3 x 4 + $2.50 = $14.50".
_MANY_OPERANDS = re.compile(
    r"(?<![\w.%)])([($]*\d[\d,.$()+*/x×% -]{0,80}[\d)%])\s*=\s*\$?(\d[\d,]*(?:\.\d+)?)(?![\d%/*+-]|\s*[*/+×x-]\s*[\d$(])"
)
# Units between the numbers ("15 gallons * 0.2 = 3 gallons") are left out of an equation.
_UNITS_BETWEEN = re.compile(r"(?<=[\d)])(?: ?(?:[a-z]{2,}|km|cm|£|€)(?:/[a-z]+)*| ?/ ?[a-z]+){1,4}(?=\s*[-+*/=)–])")
_MOST_OPERATIONS = 12


def steps_of(solution: Text, prose: bool) -> tuple[Step, ...]:
    """The sentences of prose, or the lines of a solution that is written one step a line."""
    if prose:
        return tuple(_step(solution.raw[start:end]) for start, end in solution.sentences)
    return tuple(_step(line.strip()) for line in solution.raw.split("\n") if line.strip())


def _step(line: str) -> Step:
    for left, op, right, result in _TWO_OPERANDS.findall(_UNITS_BETWEEN.sub("", line)):
        op = {"x": "*", "×": "*"}.get(op, op)
        if computed(f"({left}){op}({right})") == Fraction(result.replace(",", "")):
            return Step(line, left, op, right, result)
    return Step(line)


def step_slips(steps: tuple[Step, ...], answer: str) -> tuple[Slip, ...]:
    """Results of lines on the way, where a user may have stopped; each number must name one line."""
    results = [(step.result, step.equation) if step.op else _long_result(step.text) for step in steps]
    values = [result for result, _ in results]
    return tuple(
        Slip(at, "", result, "" if steps[at].op else equation)
        for at, (result, equation) in enumerate(results[:-1])
        if result and sum(same_value(result, value) for value in values) == 1 and not same_value(result, answer)
    )


def _long_result(line: str) -> tuple[str, str]:
    """The result and the whole of the last equation of a line whose arithmetic comes out; two empty texts without."""
    for match in reversed(list(_MANY_OPERANDS.finditer(_UNITS_BETWEEN.sub("", line.replace("–", "-"))))):
        if computed(match.group(1)) == Fraction(match.group(2).replace(",", "")):
            return match.group(2), match.group().strip()
    return "", ""


def computed(expression: str) -> Fraction | float | None:
    """What a sum, product or fraction of plain numbers comes to, as people type it; None for anything else."""
    bare = re.sub(r"[$,\s]", "", expression).replace("x", "*").replace("×", "*")
    bare = re.sub(r"(\d+(?:\.\d+)?|\.\d+)%", r"(\1/100)", bare)
    return None if "**" in bare or len(re.findall(r"[+*/-]", bare)) > _MOST_OPERATIONS else arithmetic(bare)


# --- What a solution in prose offers: a beginning to stop after, and formulas to point at.
#
# Everything here is cut from the reference solution and never written anew, so it is as right as that is.

# A formula to point at is short enough to be typed; a line and the one before it, to be said again.
_SHORTEST, _LONGEST_PIECE, _LONGEST_EQUATION, _LONGEST_LINE = 5, 60, 80, 400
# A formula holds several equations where rows, arrows or wide spaces part them.
_ARROW = r"\\(?:(?:[Ll]ong)?[Rr]ightarrow|implies|iff|quad|qquad|therefore)(?![a-z])"
_SPLIT = re.compile(
    rf"\\\\(?:\[[^\]]*\])?|{_ARROW}|\\text\{{\s*(?:and|or|so)\s*\}}|(?<!\\),\s*(?:\\[,;: ]\s*)?(?=[a-zA-Z]\s*=)"
)
_RELATION = r"\\(?:[lg]eq?(?:slant)?|neq?|approx|equiv|to|in|mid|sim|cong|pmod|hspace|pm|fbox|label|tag|leftrightarrow|begin)(?![a-z])"
_SIDE = rf"(?:(?!{_RELATION}|(?<!\\)[=<>&~;:]|\n).)+"
_EQUATION = re.compile(rf"{_SIDE}(?:=(?=.*\S){_SIDE})+")
_CONGRUENCE = re.compile(rf"{_SIDE}\\equiv\s*(-?\d+)\s*\\p?mod\s*(?:\{{\d+\}}|\d+)")
_GROUP = re.compile(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]")
_ALIGNED = re.compile(r"\\(?:begin|end)\{(?:aligned|split|gathered)\}")


def start_and_rest(solution: Text, answer: str) -> tuple[str, str]:
    """The solution cut after one of its first sentences, about a third in; ("", "") where no cut is good.

    The first part says something (a formula or a number), and holds neither the answer nor the box.
    """
    raw, good = solution.raw, []
    for end in [start for start, _ in solution.sentences[1:]] if solution.whole else []:
        head = raw[:end].rstrip()
        says = len(head) - solution.mask.count(DRAWING, 0, end) >= 30 and re.search(r"\d|=", head)
        tells = "\\boxed" in head or "\\fbox" in head or stands_in(answer, head)
        if says and not tells and not head.endswith(":"):
            good.append(end)
    if not good:
        return "", ""
    end = max((end for end in good if end <= 0.4 * len(raw)), default=good[0])
    return raw[:end], raw[end:]


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


def _typed(solution: Text, formula: Formula) -> Iterator[str]:
    """The equations of a formula as somebody types them: one, those of its rows or parts, or what leads to the box."""
    if formula.drawing:
        return
    inner = solution.inner(formula)
    aligned = solution.raw.startswith(r"\begin", formula.start) or _ALIGNED.search(inner)
    left = ""
    for part in _SPLIT.split(re.sub(r"(?<!\\)&", "", _ALIGNED.sub("", inner)) if aligned else inner):
        row = plain_inner(part.partition(r"\boxed")[0]).removesuffix("=").strip()
        if row.startswith("="):  # a row that goes on with the left side of the one before
            row = f"{left} {row}"
        left = row.partition("=")[0].strip()
        if len(row) > _LONGEST_EQUATION - 2:
            row = "=".join(row.split("=")[-2:]).strip()
        listed = ", " in _GROUP.sub("", row)
        fits = _SHORTEST <= len(row) + 2 <= _LONGEST_EQUATION and not listed and balanced(row)
        if fits and (_EQUATION.fullmatch(row) or _CONGRUENCE.fullmatch(row)):
            yield f"${row}$"


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


# --- Wrong results that a solution in prose itself offers: numbers on the way, where a user may have stopped.
#
# It is an equation that ends in a number ("$c-a = 6$"). A number counts once, with the first formula that ends in it,
# and only where it differs from the answer in text and in worth and is no part of it. Problems with lettered options,
# several boxes or an answer in another base are left alone: there a "wrong" number may be right under another name.

_LETTERED = re.compile(r"\\text(?:bf)?\{\s*\(?[A-E][).]|\(A\)|^\\text|^[A-Z]$|_\{?\d", re.MULTILINE)
_ARITHMETIC = re.compile(
    r"(?:[\d.,+*/!^(){}|\[\]\s-]|\\(?:cdot|times|div|[dt]?frac|[dt]?binom|sqrt|pi|circ|left|right|[lr]floor|[lr]ceil|choose|gcd|lcm"
    r"|log|ln|sin|cos|tan|sec|csc|cot|overline|text|operatorname|[%$,!; ])(?![a-z]))+"
)
# A plain name: "x", "a_{10}", "AB", "f(-2)", "f^{-1}(4)", "\\angle ABC", "\\cos A", "|z|", "[ABC]".
_NAME = re.compile(
    r"(?:m ?)?\\?(?:angle|overline|cos|sin|tan|sec|csc|cot|mathbf|text|deg|dim|log)? *(?:\{[A-Za-z ]{1,20}\}|\|?[A-Za-z]{1,4}\|?|\[[A-Z]+\])"
    r"(?:_\{?[\w+-]+\}?)?'?(?:\^\{?-?\d+\}?)?(?:\(-?[\d.]+\))?"
)
# A value that is only tried or assumed is nobody's result: "If $x = 3$", "setting $x = 1$ and $y = 2$".
_ASSUMED = re.compile(
    r"\b(?:(?:when(?:ever)?|where|let(?:ting)?|set(?:ting)?)[\s,:@]*(?:@|,|\s|and\b)*"
    r"|(?:if|for|suppose|assum\w+|plug\w*(?: in)?|case|substitut\w+|tak(?:e|ing)|try(?:ing)?|given(?: that)?|at|with|choos\w+|is not"
    r"|using|equation|function|line|check\w*|recall|know)(?:[\s:@]|and\b|that\b|both\b)*)$".replace("@", MATH),
    re.IGNORECASE,
)
_POINT = re.compile(r"(?:\\left)?\(([^()]+,[^()]+?)(?:\\right)?\)")  # or another row of values: "(1, 1.5)"


def text_slips(
    problem: Problem, question: Text, solution: Text, found: Mapping[str, tuple[int, int]]
) -> tuple[Slip, ...]:
    """Equations on the way whose right side a user may take for the answer."""
    if solution.raw.count(r"\boxed") > 1:  # the answer has parts, and the last box is only one of them
        return ()
    if _LETTERED.search(problem.answer) or ("(A)" in problem.question and worth(problem.answer) is None):
        return ()
    asked = squeezed(question.raw)
    slips: list[Slip] = []
    for equation, (at, position) in found.items():
        value = value_of(equation) or _point(equation)
        left = re.split(r"=|\\equiv", equation.strip("$"))[0].strip()
        before = solution.mask[solution.sentences[at][0] : position]
        if not value or squeezed(left) in (squeezed(value), "") or squeezed(left) + "=" in asked:
            continue
        if not _ARITHMETIC.fullmatch(left) and not _is_result(equation, left, value, before, question.raw):
            continue
        if _differs(value, problem) and not any(same_value(slip.answer, value) for slip in slips):
            slips.append(Slip(at, "", value, equation))
    return tuple(slips)


def _point(equation: str) -> str:
    """The right side where it is a point or another row of plain values, "(1, 1.5)"; else ""."""
    side = equation.strip("$").rpartition("=")[2].strip()
    match = _POINT.fullmatch(side)
    return side if match and all(worth(part) is not None for part in match.group(1).split(",")) else ""


def _is_result(equation: str, left: str, value: str, before: str, question: str) -> bool:
    """Whether an equation says what a name or a term is worth, as a result; `before` is its sentence up to it.

    A term whose value is 0, 1 or a number of the question mostly states a condition, so only plain names may be.
    """
    if _ASSUMED.search(before):
        return False
    sides = equation.strip("$").split("=")
    if _NAME.fullmatch(left) or (len(sides) > 2 and _ARITHMETIC.fullmatch(sides[-2].strip())):
        return True
    known = number(value)
    small = known is not None and abs(known) < _SMALL
    condition = known in (0, 1, -1) if small else stands_in(value, question)
    return re.fullmatch(r"[^=<>]{1,40}", left) is not None and not condition


def _differs(value: str, problem: Problem) -> bool:
    """Whether nobody would take the value for the answer, for a part of it, or for it in another form."""
    point, answer = _POINT.fullmatch(value), _POINT.fullmatch(problem.answer)
    if point:
        if answer is None:
            return worth(problem.answer) is not None
        pairs = zip(point.group(1).split(","), answer.group(1).split(","), strict=False)
        return not all(same_value(one, other) for one, other in pairs)
    mine, right = worth(value), worth(problem.answer)
    if same_value(value, problem.answer) or (right is None and stands_in(value, problem.answer)):
        return False
    if mine is None or right is None:
        return True
    if re.search(r"round|nearest|approximat|percent|\\%", problem.question):
        return abs(mine - right) >= 1 and abs(mine - 100 * right) > 1e-6 and abs(100 * mine - right) > 1e-6
    return abs(mine + right) > 1e-9  # a sign alone is too close to call it a number on the way
