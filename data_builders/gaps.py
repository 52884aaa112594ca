"""What a problem read as plain text supports: steps, things that can be withheld, wrong ways, formulas to point at.

Nothing here understands the text. Everything is cut from the problem and its reference solution, or is a number
changed in place; whatever cannot be told apart with certainty is left out. `latex` finds formulas and sentences,
`evidence` says what may be withheld, `numbers`, `conditions`, `objects` and `goals` make the gaps, `steps`,
`slips` and `solutions` read the solution.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from data_builders.tasks import Gap, Piece, Slip, Step, Task
from data_builders.text import (
    DRAWING,
    MATH,
    Formula,
    Text,
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

# --- The numbers a problem states: counts, money, percentages, degrees and number words, each with its place.
#
# A number alone in a formula ("$12$ inches", "$60^\circ$", "$\$5$") is a number of the text like any other.

AmountKind = Literal["count", "money", "percent", "degrees", "word"]

_WORDS = ("three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_TENS = {"fifteen": 15, "sixteen": 16, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60}
NUMBER_WORDS = {word: value for value, word in enumerate(_WORDS, start=3)} | _TENS

_PLAIN = re.compile(r"(?<![\w.,/\\$:^)}-])(\\?\$)?(\d[\d,]*(?:\.\d+)?)( ?\\?%)?(?![\w/:^%]|[.,]\d|-\d)")
_INNER = re.compile(
    r"\s*(\\\$)?\s*(\d+(?:,\d{3})*(?:\.\d+)?)\s*(\\%|\^\s*\{?\\circ\}?|\\(?:text|mathrm|mbox)\{[^{}$]*\})?\s*([.,;:?]?)\s*"
)
_WORD = re.compile(rf"\b({'|'.join(NUMBER_WORDS)})\b(?= [a-z])", re.IGNORECASE)
_YEAR = re.compile(r"(?:\b(?:in|since|until|by|year|of|January|February|March|April|May|June|July|August|September|October"
                   r"|November|December)|\d,)\s*$")  # fmt: skip


@dataclass(frozen=True)
class Amount:
    """A stated number: `shown` is the text from `start` to `end`, `value` the bare number or number word in it."""

    start: int
    end: int
    shown: str
    value: str
    kind: AmountKind

    def with_value(self, value: str) -> str:
        return self.shown.replace(self.value, value, 1)


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
        inside = None if formula.drawing or formula.display else _INNER.fullmatch(text.inner(formula))
        if inside is None:
            continue
        money, value, unit, stop = inside.groups()
        kind = "money" if money else "percent" if unit == r"\%" else "degrees" if unit and "circ" in unit else "count"
        shown = text.raw[formula.start : formula.end]
        end = formula.end
        if stop:  # the stop belongs to the sentence
            shown = re.sub(rf"\s*{re.escape(stop)}\s*\$$", "$", shown)
        yield Amount(formula.start, end, shown, value, kind)
    for match in _WORD.finditer(text.mask):
        yield Amount(match.start(), match.end(), match.group(), match.group(), "word")


def closing(text: Text, amount: Amount) -> str:
    """The stop that the amount's formula holds for its sentence: the "." of "$12.$"."""
    raw = text.raw[amount.start : amount.end]
    return raw.rstrip("$").rstrip()[-1] if raw != amount.shown else ""


def worth_of(value: str) -> Fraction | None:
    """What a number or number word says."""
    word = NUMBER_WORDS.get(value.lower())
    return Fraction(word) if word is not None else number(value)


def another(value: str, kind: AmountKind) -> str:
    """A near, different number of the same form: the same for the same value, at most a third away."""
    rng = random.Random(f"another:{value}")
    if value.lower() in NUMBER_WORDS:
        words = list(NUMBER_WORDS)
        at = words.index(value.lower())
        other = words[at + rng.choice((-1, 1)) if 0 < at < len(words) - 1 else abs(at - 1)]
        return other.capitalize() if value[0].isupper() else other
    whole, _, cents = value.partition(".")
    before = int(whole.replace(",", ""))
    by = 10 if before >= 40 and before % 10 == 0 else 5 if before >= 20 and before % 5 == 0 else 1
    if before >= 1000 and before % 100 == 0:
        by = 100
    far = max(1, before // (3 * by))
    changed = before + by * rng.choice((-1, 1)) * rng.randint(1, far)
    if changed < 2 or (kind == "percent" and changed > 100):
        changed = before + by if kind != "percent" or before + by <= 100 else before - by
    return (f"{changed:,}" if "," in whole else str(changed)) + (f".{cents}" if cents else "")


# --- What may be withheld from a question: only what its solution needs, never the answer, never what is said twice.

# Sentences about the form of the answer, examples, and what is said in other words hold nothing that is needed.
_ASIDE = re.compile(
    r"your (?:final )?answers?|\b[Rr]ound|nearest|[Ff]or example|for instance|\bNote\b|[Rr]ecall|such as|decimal place|in the form"
    r"|[Ee]xpress(?:ing)? (?:your|the (?:answer|result|probability|sum)|all|any|each|it|them|in)\b|relatively prime|lowest terms"
    r"|[Ee]nter|can be (?:written|expressed)|[Ii]n other words|[Tt]hat is,|i\.e\.|\bAssume\b|mixed number|common fraction"
)
_CHOICES = re.compile(r"\(A\)|\\text(?:bf)?\{\s*\(?A[).]|(?:^|\n|\s)A[.)]")
_TERMS = re.compile(r"\\ldots|\\dots|\\cdots|\.\.\.")  # one term of a row follows from the others
_SMALL = 13
_EVIDENCE_COUNTED = re.compile(rf"\b(\d{{1,3}}|{'|'.join(NUMBER_WORDS)})\$? ([a-z]+(?: [a-z]+)?)", re.IGNORECASE)
_EXPONENT = re.compile(r"\^\{?$")
_OPERATED_BEFORE = re.compile(r"(?:[-+*/x×({]|\\times|\\cdot|\\div|\\sqrt)\s*\\?\$?$")
_OPERATED_AFTER = re.compile(r"(?:\s*[a-z]+)?\s*(?:[-+*/x×^)}%!]|\\times|\\cdot|\\div|\\pi|\\choose|[a-z]\b)")


class Evidence:
    """One problem as read: its question, its solution, and the numbers that the solution works with."""

    def __init__(self, problem: Problem, question: Text, solution: Text, latex: bool) -> None:
        self.question, self.solution, self.answer, self.latex = question, solution, problem.answer, latex
        self._asides: dict[int, bool] = {}  # by the start of the sentence
        choices = _CHOICES.search(question.raw) if latex else None
        self.end = choices.start() if choices else len(question.raw)  # lettered options begin here

    @functools.cached_property
    def worked(self) -> str:
        """The part of the solution where it calculates: its formulas, or all of it in plain text."""
        if not self.latex:
            return self.solution.raw
        return " ; ".join(self.solution.inner(formula) for formula in self.solution.formulas if not formula.drawing)

    @functools.cached_property
    def squeezed_solution(self) -> str:
        return squeezed(self.solution.raw)

    def aside(self, position: int) -> bool:
        """Whether the place is in a sentence about the answer's form, in an example, or among lettered options."""
        start, end = self.question.sentence(position)
        if start not in self._asides:
            self._asides[start] = _ASIDE.search(self.question.raw, start, end) is not None
        return position >= self.end or self._asides[start]

    def may_withhold(self, amount: Amount) -> bool:
        """A number that stands once in the question, is computed with, and is not the answer."""
        worth = worth_of(amount.value)
        if worth is None or worth < 2 and worth == int(worth) or self.aside(amount.start):
            return False
        if same_value(str(worth), self.answer) or not self._stands_once(amount):
            return False
        if _TERMS.search(self.question.raw, *self.question.sentence(amount.start)):
            return False
        return any(self._used(form, worth) for form in _evidence_forms(amount, worth))

    def said_again(self, amount: Amount, counted: str) -> bool:
        """Whether the number stands again before the same noun, in digits or as a word: "3 cards ... all three cards"."""
        noun = counted.partition(" of ")[0].rpartition(" ")[2][:4]
        worth = worth_of(amount.value)
        return bool(noun) and any(
            match.start() != amount.start and f" {noun}" in f" {match.group(2)}" and worth_of(match.group(1)) == worth
            for match in _EVIDENCE_COUNTED.finditer(self.question.raw)
        )

    def _stands_once(self, amount: Amount) -> bool:
        if amount.kind == "word":
            return len(re.findall(rf"\b{amount.value}\b", self.question.raw, re.IGNORECASE)) == 1
        return len(list(itertools.islice(places(amount.value, self.question.raw), 2))) == 1

    def _used(self, form: str, worth: Fraction) -> bool:
        """Whether the solution calculates with the number; exponents do not count.

        A small number may stand in a solution by chance, so it must be seen next to an operator.
        """
        small = worth < _SMALL and worth.denominator == 1
        for at in places(form, self.worked):
            before, after = self.worked[max(0, at - 12) : at], self.worked[at + len(form) : at + len(form) + 20]
            if _EXPONENT.search(before):
                continue
            if not small or _OPERATED_BEFORE.search(before) or _OPERATED_AFTER.match(after):
                return True
        return False


def _evidence_forms(amount: Amount, worth: Fraction) -> list[str]:
    """How a solution may write the number: 1,200 as 1200, 2.50 as 2.5, 25% as .25."""
    bare = amount.value.replace(",", "")
    forms = [amount.value, bare] if amount.kind != "word" else [str(worth)]
    if "." in bare:
        forms.append(bare.rstrip("0").rstrip("."))
    if amount.kind == "percent":
        share = f"{float(worth / 100):.4f}".rstrip("0")
        forms += [share, share.removeprefix("0"), str(worth / 100)]
    return list(dict.fromkeys(forms))


# --- The little English that a question about a number needs: verbs, units, plural nouns, and who a clause is about.
#
# Tables, not grammar. What they do not cover is asked about by quoting its place instead.

_REGULAR = """add answer ask bake borrow brush burn call charge clean climb collect color complete contain cook count cover
crochet deliver deposit donate earn fill finish fold gain gather grade harvest hike include invite juggle jump knit lift
line live load manage mix need offer order pack paint park peel pick place plant play pour practice prepare produce
purchase raise receive record recycle remove rent replace require return roll save score serve share ship sign slice
solve stack start stay store teach trade train travel use visit wait walk want wash waste watch water work"""
_IRREGULAR = """have has had; buy buys bought; sell sells sold; eat eats ate; drink drinks drank; give gives gave;
get gets got; take takes took; make makes made; find finds found; lose loses lost; spend spends spent; pay pays paid;
run runs ran; drive drives drove; ride rides rode; write writes wrote; see sees saw; bring brings brought;
catch catches caught; grow grows grew; build builds built; keep keeps kept; lend lends lent; send sends sent;
win wins won; hold holds held; sleep sleeps slept; swim swims swam; draw draws drew; break breaks broke;
throw throws threw; feed feeds fed; shoot shoots shot; drop drops dropped; plan plans planned; stop stops stopped;
wrap wraps wrapped; jog jogs jogged; carry carries carried; study studies studied; fry fries fried; mow mows mowed;
sew sews sewed; wear wears wore; own owns owned; owe owes owed; weigh weighs weighed; choose chooses chose;
fly flies flew; steal steals stole; lay lays laid; put puts put; hit hits hit; cost costs cost"""


def _forms() -> dict[str, tuple[str, str]]:
    """Verb form -> its base and the auxiliary that asks with it: "bought" -> ("buy", "did")."""
    forms: dict[str, tuple[str, str]] = {}
    for base in _REGULAR.split():
        third = base + ("es" if base.endswith(("s", "sh", "ch", "x")) else "s")
        past = base + ("d" if base.endswith("e") else "ed")
        forms |= {base: (base, "do"), third: (base, "does"), past: (base, "did")}
    for line in _IRREGULAR.split(";"):
        base, third, past = line.split()
        forms |= {past: (base, "did"), base: (base, "do"), third: (base, "does")}
    return {**forms, "taught": ("teach", "did")}


VERBS = _forms()


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# "6 inches" measures: nobody says "some inches".
UNITS = _set("""inch inches foot feet yard yards mile miles meter meters metre metres centimeter centimeters millimeter millimeters
    kilometer kilometers cm mm km m ft lb lbs oz g kg mg ml mL liter liters litre litres gallon gallons quart quarts pint
    pints cup cups tablespoon tablespoons teaspoon teaspoons ounce ounces pound pounds gram grams kilogram kilograms kgs
    ton tons degree degrees percent dollars cents pence euros units unit square cubic mph kph MB GB gigabytes megabytes
    milliliters calories acres points""")
_PLURALS = _set("people children men women feet teeth geese mice fish deer sheep dice cattle")
_NO_PLURAL = _set("""times less plus minus yes ones others digits does goes always has was gas thus across various previous consecutive
    class glass grass dress unless business perhaps besides towards sometimes is its this us various perhaps versus
    positive cubes squares means equals gets lets makes takes comes gives costs weighs sells""")
# Words that end a noun phrase. A few of them may begin one: "12 more pens".
STOPS = _set("""of in on at to for with from and or that which who whose each per a an the every by than into when while if because
    but after before during as are is was were be has have had will would can could he she they it we you i his her their
    its my our this these those there then so until since through over under around between about only left fewer altogether
    together ago away long wide tall high deep old apart how what does do did not also all both either where using out up
    down off without within across along against among plus minus times cost costs gets get got makes make takes take give
    gives gave went goes go come comes came consist having being containing called named such percent equally evenly
    exactly currently inclusive respectively what now today yesterday tomorrow last next""")
_CLAUSE = re.compile(
    r"(?:^|[,;:](?: and| but| so| then)?|\b(?:[Ii]f|[Ww]hen|that|but|so|then|[Ww]hile|[Ss]ince|[Bb]ecause|where|[Aa]fter|[Bb]efore|[Ss]uppose|[Aa]ssume|[Gg]iven))\s+$"
)
_ADVERBS = re.compile(
    r"\s+(?:about|exactly|only|at least|at most|up to|a total of|around|another|over|just|approximately|nearly|almost)$"
)
_LEAD = re.compile(
    r"((?:On|In|At|During|After|Before|Last|This|For|By|Every|Each|Yesterday|Today|From|Over|Within|Next|To)\b[^.]*?),(?= (?:he|she|they|it|the|an?|his|her|[A-Z][a-z]+)\b)"
)
_MODALS = _set("can could will would must should may might")
FIRST_PERSON = re.compile(r"\b(?:I|we|We|my|My|our|Our|me|us|you|You|your)\b")
_PRONOUNS = ("He", "She", "They", "It")
_DETERMINERS = "The|Each|Every|A|An|His|Her|Their|Its|One|This|Another|Both|All"
_NAME = r"(?:(?:Mr|Mrs|Ms|Dr)\. )?[A-Z][a-z]+(?:['’]s [a-z]+(?: [a-z]+)?)?"
_PLURAL = r"[A-Za-z][a-z-]+s"
_NOUN = rf"(?:{_DETERMINERS}|{_DETERMINERS.lower()})(?: of (?:the|his|her|their))?(?: [a-z][a-z-]*){{1,3}}"
_SUBJECT = re.compile(rf"(?:{_NAME}|{_NOUN}|{_PLURAL}|[Hh]e|[Ss]he|[Tt]hey|[Ii]t)(?: and (?:{_NAME}|{_NOUN}))?")


@dataclass(frozen=True)
class Doing:
    """Who does what, taken from the words before a number: "Kim wants to buy" (12 pens)."""

    subject: str
    said: str  # as it stands: "wants to buy"
    lead: str  # what the sentence begins with: " on Monday"
    asked: tuple[str, str]  # around the subject: ("does", "want to buy")


def noun_phrase(after: str) -> str:
    """The plural noun a number counts, with the words before it: "double meat sandwiches"; "" without one."""
    words = leading_words(after, 4)
    for at, word in enumerate(words):
        if is_plural(word):
            noun = " ".join(words[: at + 1])
            return noun + _of_what(after[len(noun) + 1 :])
        if word.lower() in STOPS or word[0].isupper():
            return ""
    return ""


def _of_what(rest: str) -> str:
    """What a container or a group is of: " of ice cream" after "cups"."""
    match = re.match(r" of(?: (?:the|his|her|their|these|those))?((?: [a-z][a-z-]*){1,3})", rest)
    if match is None:
        return ""
    kept: list[str] = []
    for word in match.group(1).split():
        if word in STOPS:
            break
        kept.append(word)
        if is_plural(word):
            break
    # Without a plural it cannot be told where the noun ends, unless the clause ends there, too.
    whole = match.group()[: match.start(1) - match.start()] + " " + " ".join(kept)
    ended = len(kept) < 3 or not re.match(r"[ ][a-z]", rest[match.end() :])
    return whole if kept and (is_plural(kept[-1]) or ended) else ""


def leading_words(text: str, most: int) -> list[str]:
    """The words a text begins with, after one space each, up to anything else."""
    match = re.match(rf"(?: [A-Za-z][A-Za-z'’-]*){{1,{most}}}", text)
    return match.group().split() if match else []


def is_plural(word: str) -> bool:
    bare = word.lower()
    if bare in _PLURALS:
        return True
    return (
        len(bare) > 3
        and bare.endswith("s")
        and not bare.endswith(("ss", "us", "is", "'s", "’s"))
        and bare not in _NO_PLURAL
    )


def tail(after: str, most: int = 6) -> str | None:
    """What follows in the clause: " in April"; None where it is too long or not plain enough to be said again."""
    rest = re.split(r"[,.](?!\d)|[;:?!()\n]|\s(?:and|but|which|that|who|if|when|while|so|because|where)\b", after)[
        0
    ].rstrip()
    plain = re.fullmatch(r"(?: [A-Za-z][A-Za-z'’-]*)*", rest) and len(rest.split()) <= most
    return rest if plain and not FIRST_PERSON.search(rest) and not re.search(r"\b(?:he|she|they|it)\b", rest) else None


def definite(subject: str) -> str:
    """Somebody named before is known: "a prism" -> "the prism"."""
    return re.sub(r"^an? ", "the ", subject)


def doing(before: str) -> Doing | None:
    """The subject and verb that a sentence's beginning ends with, or None where they are not plain."""
    text = _ADVERBS.sub("", before.rstrip())
    head, _, verb = text.rpartition(" ")
    if verb not in VERBS or FIRST_PERSON.search(text):
        return None
    base, aux = VERBS[verb]
    said = verb
    *front, last = head.split(" ") if head else [""]
    if last == "to" and front and front[-1] in VERBS and aux == "do":  # "wants to buy"
        wanted, aux = VERBS[front[-1]]
        base, said = f"{wanted} to {base}", f"{front[-1]} to {verb}"
        head = " ".join(front[:-1])
    elif last in _MODALS and aux == "do":
        aux, said = last, f"{last} {verb}"
        head = " ".join(front)
    head = re.sub(r" (?:also|then|only|now|currently|already|usually|always|still|first|later)$", "", head)
    subject, lead = _subject(head), _lead(head)
    if subject is None or lead is None or not _agrees(subject, aux):
        return None
    return Doing(subject, said, lead, (aux, base))


def _subject(head: str) -> str | None:
    """The last words of `head`, where they are a name, a pronoun or a noun with its article at a clause's start."""
    for match in _SUBJECT.finditer(head):
        if match.end() == len(head) and _is_one_subject(match.group()) and _CLAUSE.search(head[: match.start()] or " "):
            return lower_first(match.group())
    both = head.rpartition(" and ")[2]
    if both != head and _SUBJECT.fullmatch(both) and _is_one_subject(both):
        return lower_first(both)
    return None


def _is_one_subject(words: str) -> bool:
    """Whether no second subject follows the first: "the following day he" has two."""
    return " " not in words or re.search(r" (?:he|she|they|it|who|that|which)$", words) is None


def _lead(head: str) -> str | None:
    """A time or place that the sentence begins with, as it follows a question; None where it is too long for that."""
    match = _LEAD.match(head)
    if match is None:
        return ""
    said = match.group(1)
    return f" {said[0].lower()}{said[1:]}" if len(said.split()) <= 7 and not re.search(r"\d", said) else None


def lower_first(text: str) -> str:
    """An article or pronoun small, a name as it is."""
    return text[0].lower() + text[1:] if re.match(rf"(?:{_DETERMINERS}|{'|'.join(_PRONOUNS)})\b", text) else text


def upper_first(text: str) -> str:
    return text[0].upper() + text[1:]


def _agrees(subject: str, aux: str) -> bool:
    plural = (
        " and " in subject
        or subject in ("they",)
        or subject.startswith(("both", "all"))
        or is_plural(subject.split()[-1])
    )
    plural = plural and not subject.startswith(("each", "every", "one", "a ", "an "))
    return {"does": not plural, "do": plural}.get(aux, True)


def has_verb(clause: str) -> bool:
    """Whether a verb stands behind the first word."""
    words = clause.split()
    return len(words) > 1 and any(word in VERBS or word in ("is", "are", "was", "were") for word in words[1:])


# --- How a withheld thing looks in a question: left vague ("some pens") or a blank; and how its place is quoted.


@dataclass(frozen=True)
class Name:
    """How a withheld thing is asked for. `said` states it again, with `{short}` in its place."""

    ask: str
    clause: str
    thing: str
    said: str = "It's {short}."


BLANKS = ("___", "___", "[?]", "(?)", "[unreadable]")
_VAGUE = ("some", "a few", "several")
# After these words "some" does not read: "these some pens", "exactly some pens".
NO_VAGUE_AFTER = re.compile(
    r"(?:\b(?:this|these|those|the|first|last|next|other|others|all|every|each|only|about|exactly|another|his|her|their|its|my|our"
    r"|your|of|than|or|least|most|to|over|nearly|around|almost|approximately|between|remaining|any|no|same|past|previous|within"
    r"|under|by|up|an?|total|just|additional|extra|both|some|many|top|per|order|for)|['’]s|-|,|[\d$%])\s*$",
    re.IGNORECASE,
)
NO_VAGUE_BEFORE = re.compile(
    r" (?:of them|per|as|more|less|fewer|older|younger|times|old|long|wide|tall|high|deep|away|apart|ago|later|earlier|from now"
    r"|left over|each of which|equals?|=|at a time|in a row)\b"
)
_JOINS = re.compile(r"\s(?:and|but|while|because|that|if|when)\s")
_OPENS = re.compile(r"(?:and|but|so|then|If|if|when|When|while|of|to|by|than|or|that|many|much) ")
_CLOSES = re.compile(r"[,;:]\s|\s(?:and|but|or|which|that|while|who|how|if|when|where|so)\b")
_WORDING_ASKS = re.compile(r",\s*(?:then )?(?:how|what|which|find|calculate|determine)\b")
_DANGLING = re.compile(
    r"(?:\s(?:the|an?|of|to|in|on|at|for|with|from|by|per|each|his|her|their|its|is|are|was|were|be|than|as|he|she|it|such|and|or|but))+$"
)
_LONGEST_QUOTE = 110


def vague_words(rng: random.Random, capital: bool) -> str:
    chosen = rng.choice(_VAGUE)
    return chosen.capitalize() if capital else chosen


def quote(text: Text, start: int, end: int, instead: str, before: int = 6, after: int = 5) -> str:
    """The words around `text[start:end]` in its clause with `instead` in its place; "" where too few or too many.

    Formulas are kept whole. What belongs to another clause is cut off where enough is left.
    """
    first, last = text.sentence(start)
    left = start - _left(text.mask[first:start], before)
    right = end + _right(text.mask[end:last], after, short=len(text.mask[left:start].split()) < 3)
    behind = text.raw[end:right]
    space = " " if behind[:1].isalnum() else ""
    quoted = " ".join(f"{text.raw[left:start]}{instead}{space}{behind}".split()).rstrip("?!,;:. ")
    whole = quoted.count("(") == quoted.count(")") and len(quoted) <= _LONGEST_QUOTE and '"' not in quoted
    return quoted if whole and len(quoted.split()) >= len(instead.split()) + 2 else ""


def _left(mask: str, most: int) -> int:
    """How many characters to the left belong to the quote."""
    mask = re.split(rf"\"|\n\s*\n|{DRAWING}", mask)[-1]
    if mask.count("(") > mask.count(")"):
        mask = mask.rpartition("(")[2]
    mask = re.split(r"[;:]\s+", mask)[-1]
    clause = re.split(r",\s+", mask)[-1]
    if has_verb(clause) or len(clause.split()) >= 5:
        mask = clause
    earlier, _, later = mask.rpartition(_JOINS.findall(mask)[-1]) if _JOINS.search(mask) else ("", "", mask)
    if later[:1].isalpha() and has_verb(later) and has_verb(earlier):  # two clauses, not "Mark and James need"
        mask = later
    words = [match.start() for match in re.finditer(r"\S+", mask)]
    if len(words) > most + 3:
        mask = mask[words[-most] :]
    opening = _OPENS.match(mask.lstrip())
    if opening and len(mask.split()) > 2:
        mask = mask.lstrip()[opening.end() :]
    return len(mask.lstrip())


def _right(mask: str, most: int, short: bool) -> int:
    """How many characters to the right belong to the quote; more where there is little on the left (`short`)."""
    mask = re.split(rf"\"|\n\s*\n|{DRAWING}", mask)[0]
    # What is glued to the number ("-day") belongs to it.
    match = re.match(rf"\S*(?:\s+\S+){{0,{most}}}", mask)
    kept = match.group().rstrip() if match else ""
    if ")" in kept and "(" not in kept:
        kept = kept.partition(")")[0]
    kept = _WORDING_ASKS.split(kept)[0] if short else _CLOSES.split(kept)[0]
    return len(_DANGLING.sub("", kept))


# --- Nouns that a formula stands behind, and how the formula is asked for by them: "Which matrix is it?".

_EQUATION_OF = ("line", "parabola", "circle", "ellipse", "hyperbola", "curve", "plane")
_WHAT = ("expression", "equation", "inequality", "congruence", "quadratic equation", "infinite sum")
_HOW = (
    "sequence", "arithmetic sequence", "geometric sequence", "series", "infinite series", "arithmetic series",
    "geometric series", "infinite geometric series", "arithmetic progression", "geometric progression",
)  # fmt: skip
_IN = ("set", "list", "data set", "system", "system of equations")
_WHICH = (
    "polynomial", "function", "quadratic", "cubic", "matrix", "vector", "sum", "product", "complex number", "fraction",
    "number", "integer", "repeating decimal", "interval", "quadratic function", "quadratic polynomial", "determinant",
    "rational function", "binomial", "decimal", "inverse function", "linear function", "cubic polynomial",
)  # fmt: skip
_NOUNS = sorted((*_EQUATION_OF, *_WHAT, *_HOW, *_IN, *_WHICH, "point"), key=len, reverse=True)
NOUN = re.compile(
    rf"\b(?:[Tt]he|[Aa]n?|[Tt]his)(?: following| entire| real| given)? (?P<noun>{'|'.join(_NOUNS)})"
    r"(?: with equation| given by| defined by| described by)?[,:]?\s*$"
)


def name_of_noun(noun: str) -> Name:
    """How the formula behind a noun is asked for."""
    if noun == "point":
        asked = "the coordinates of the point"
        return Name(f"What are {asked}?", f"what {asked} are", asked)
    if noun in _EQUATION_OF:
        return Name(
            f"What is the equation of the {noun}?", f"what the equation of the {noun} is", f"the equation of the {noun}"
        )
    if noun in _WHAT:
        return Name(f"What is the {noun}?", f"what the {noun} is", f"the {noun}")
    if noun in _HOW:
        return Name(f"How does the {noun} go?", f"how the {noun} goes", f"the {noun}")
    if noun in _IN:
        return Name(f"What is in the {noun}?", f"what is in the {noun}", f"the {noun}")
    return Name(f"Which {noun} is it?", f"which {noun} it is", f"the {noun}")


def noun_before(text: Text, position: int) -> re.Match[str] | None:
    """The noun right before a position in its sentence, where the text speaks of one such thing only."""
    match = NOUN.search(text.raw, text.sentence(position)[0], position)
    if match is None or len(re.findall(rf"\b{match.group('noun')}s?\b", text.mask)) != 1:
        return None
    return match


# --- Takes an equation's right side out of a question: blank, or the whole condition left out where the sentence reads.
#
# Left out are "Let $f(x) = 3x - 8$." as a sentence, "If $x = 5$," before the question, and "and $b = 3$" after
# another condition.

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


# --- Gaps in the equations a problem states: "$x = 5$" without its 5, "$f(x) = 3x - 8$" without its right side.
#
# A number on the right makes a gap of kind "number", anything else one of kind "formula". How the right side is
# taken out is told in `removal`.

_RELATION = r"\\(?:[lg]eq?(?:slant)?|neq?|approx|equiv|to|in|mid|sim|cong|pmod|Rightarrow|implies|quad|qquad|text|pm|rightarrow|mapsto)(?![a-z])"
_SIDE = rf"(?:(?!{_RELATION}|(?<!\\)[=<>&;]|\\\\).)+?"
# Several conditions in one formula are parted by commas: "$AB = 5, BC = 6$".
_EQUATION = re.compile(
    rf"(?:^|(?<=,)|(?<=,\\ ))\s*(?P<left>{_SIDE})\s*=\s*(?P<right>{_SIDE})\s*"
    r"(?=[.,;?]?\s*(?:\\[ ,;!]\s*)*$|,\s*(?:\\\s)?\s*[^,=]+=)"
)
_FUNCTION = re.compile(r"[A-Za-z](?:_\{?\w\}?|'|\^\{-1\})?\((?P<of>[^()=]{1,12})\)|\([a-z] \\circ [a-z]\)\([a-z]\)")
_VARIABLE = re.compile(
    r"(?:[A-Za-z]|\\(?:alpha|beta|gamma|theta|phi|omega|mathbf\{[A-Za-z]\}|vec\{[a-z]\}|overrightarrow\{[A-Z]+\}))"
    r"(?:_\{?[\w+-]+\}?)?'?"
)
_SEGMENT = re.compile(r"[A-Z]{2}|\\overline\s*\{[A-Z]{2}\}|\\overline\s*[A-Z]{2}")
_ANGLE = re.compile(r"(?:m\s*)?\\angle\s*\{?[A-Z]{1,3}\}?")
_FORM = re.compile(r"\bforms?\b|\bgraph of")
_LONGEST, _LONGEST_LEFT = 200, 40


def conditions(evidence: Evidence) -> Iterator[Condition]:
    """The equations of the question with one equals sign each, up to its lettered options."""
    text = evidence.question
    for formula in text.formulas:
        inner = text.inner(formula)
        if formula.drawing or len(inner) > _LONGEST or "=" not in inner or "{array" in inner or "{cases" in inner:
            continue
        if evidence.aside(formula.start):
            continue
        found = list(_EQUATION.finditer(inner))
        for match in found:
            left, right = match.group("left").strip(), match.group("right").strip()
            alone = len(found) == 1 and not inner[: match.start("left")].strip()
            begins = formula.left + match.start("right")
            yield Condition(formula, begins, begins + len(match.group("right")), left, right, alone)


def condition_gaps(evidence: Evidence, rng: random.Random) -> Iterator[Gap]:
    """A gap for each equation whose right side is needed and stands nowhere else."""
    for condition in conditions(evidence):
        if _worth_withholding(evidence, condition) and not _for_its_noun(evidence, condition, rng):
            question = left_out(evidence.question, condition) if rng.random() < 0.6 else None
            question = question or blanked(evidence.question, condition, rng)
            if not stands_in(condition.right, question) and balanced(question):
                yield _gap(evidence, condition, question, rng)


def _for_its_noun(evidence: Evidence, condition: Condition, rng: random.Random) -> bool:
    """Half of the equations behind a noun ("the parabola $y = x^2$") are left to `objects`, which takes them whole."""
    noun = noun_before(evidence.question, condition.formula.start) if condition.alone else None
    return noun is not None and not _FUNCTION.fullmatch(condition.left) and rng.random() < 0.5


def _worth_withholding(evidence: Evidence, condition: Condition) -> bool:
    left, right = condition.left, condition.right
    if not balanced(left) or not balanced(right) or len(left) > _LONGEST_LEFT:
        return False
    if squeezed(left) in ("", squeezed(right), "i^2") or stands_in(right, left):
        return False  # known to everybody, or told by the name: "$q(2) = 2$"
    value = number(right)
    if value is not None:
        wanted = value != 0 and (abs(value) != 1 or not _VARIABLE.fullmatch(left))
        return wanted and not same_value(right, evidence.answer) and _calculated(evidence, left, right)
    if _FUNCTION.fullmatch(left) and re.search(rf"\b{re.escape(left[0])}\s*(?:\(|\^)", right):
        return False  # a functional equation defines nothing
    if _FORM.search(evidence.question.raw[slice(*evidence.question.sentence(condition.formula.start))]):
        return False
    plain = len(right) >= 3 and re.search(r"[\d+*/^{-]|\\", right) is not None
    return plain and _mentioned(evidence, left, right) and squeezed(right) != squeezed(evidence.answer)


def _calculated(evidence: Evidence, left: str, right: str) -> bool:
    """Whether the solution writes the equation, or calculates with its number."""
    bare = re.sub(r"\^.*|\\(?:text|%).*", "", right).strip()
    written = f"{squeezed(left)}={squeezed(right)}" in evidence.squeezed_solution
    return written or (len(bare) > 1 and stands_in(bare, evidence.worked))


def _mentioned(evidence: Evidence, left: str, right: str) -> bool:
    """Whether the solution writes the right side, or the function that it defines."""
    name = left.partition("(")[0] + "(" if _FUNCTION.fullmatch(left) else ""
    return squeezed(right) in evidence.squeezed_solution or bool(name and name in evidence.solution.raw)


def _name(evidence: Evidence, condition: Condition) -> Name:
    """How the withheld side is asked for."""
    left = f"${condition.left}$"
    numeric = number(condition.right) is not None
    function = _FUNCTION.fullmatch(condition.left)
    letters = function is not None and re.fullmatch(r"[a-z](?:, ?[a-z])*", function.group("of") or "x") is not None
    noun = noun_before(evidence.question, condition.formula.start)
    if noun is not None and not function and condition.alone and re.search(r"[xyr]", condition.left):
        return name_of_noun(noun.group("noun"))
    if letters and not numeric:
        return Name(f"How is {left} defined?", f"how {left} is defined", f"the definition of {left}")
    sized = re.search(r"\d", condition.right) and not re.search(r"[A-Z]", condition.right)
    if sized and _SEGMENT.fullmatch(condition.left):
        return Name(f"How long is {left}?", f"how long {left} is", f"the length of {left}")
    if sized and _ANGLE.fullmatch(condition.left):
        return Name(f"How large is {left}?", f"how large {left} is", f"the size of {left}")
    if _VARIABLE.fullmatch(condition.left) and not numeric:
        if re.fullmatch(r"[A-Z]|\\(?:mathbf|vec|overrightarrow).*", condition.left):
            return Name(f"What is {left}?", f"what {left} is", f"what {left} stands for")
        return Name(f"What is the formula for {left}?", f"what the formula for {left} is", f"the formula for {left}")
    if numeric and not letters and (function or _VARIABLE.fullmatch(condition.left)):
        return Name(f"What is the value of {left}?", f"what the value of {left} is", f"the value of {left}")
    return Name(f"What does {left} equal?", f"what {left} equals", f"the value of {left}")


def _gap(evidence: Evidence, condition: Condition, question: str, rng: random.Random) -> Gap:
    name = _name(evidence, condition)
    numeric = number(condition.right) is not None
    whole = f"${condition.left} = {condition.right}$"
    return Gap(
        question=question,
        clause=name.clause,
        ask=name.ask,
        reveal=f"It's {whole}." if rng.random() < 0.5 else f"{whole}.",
        short=whole,
        value=condition.right,
        kind="number" if numeric else "formula",
        thing=name.thing,
        other=_other(evidence, condition) if numeric else "",
    )


def _other(evidence: Evidence, condition: Condition) -> str:
    """The same equation with a near, different number; "" for a fraction."""
    digits = re.search(r"\d+(?:,\d{3})*(?:\.\d+)?", condition.right)
    if digits is None or "frac" in condition.right or "/" in condition.right:
        return ""
    value = another(digits.group(), "count")
    other = condition.right[: digits.start()] + value + condition.right[digits.end() :]
    if stands_in(value, evidence.question.raw) or same_value(other, evidence.answer):
        return ""
    return f"${condition.left} = {other}$"


# --- Gaps of kind "goal" and "figure": a question without its question, and a problem without its drawing.

_GOAL = re.compile(
    r"(?:Find|What(?:'s| is| are| was| will| would| must| does| fraction| percent| number| value| integer)?|How|Compute|Determine|Evaluate"
    r"|Calculate|In how many|For how many|For what|For which|At what|Which|Express|Enter|Simplify|Solve|By how|To what|On what|With what"
    r"|After how many|Who|Where|When did|When will|In what|Write|Give)\b"
)
# What may follow the question and goes with it: how the answer is to be written.
_GOALS_FORM = re.compile(
    r"Express|Enter|Round|Give|Write|Note|Your answer|Assume|\(|If your|Leave|Do not|State|Use|Include|Simplify|Answer"
)
# A beginning that only works with what follows, or asks already.
_HANGS = re.compile(r"(?::|,|\bsuch that|\bfollowing|\bbelow)\s*$")
_GOALS_LONGEST = 300

_SHAPES = "triangle|rectangle|square|circle|trapezoid|parallelogram|rhombus|quadrilateral|pentagon|hexagon|cube|pyramid|line|segment|parabola|ellipse"
_NAMED = re.compile(rf"\b(?P<shape>{_SHAPES})s? (?P<name>\$[A-Z]{{2,8}}(?:[.,]?\$))", re.IGNORECASE)
_GOALS_FUNCTION = re.compile(r"\b([a-zA-Z]\([xyznt]\)) ?=")
_ADJECTIVES = (
    "right|rectangular|square|circular|regular|equilateral|isosceles|arithmetic|geometric|quadratic|cubic|fair|large|small|convex|linear"
    "|infinite|complex|random|circular|standard|school|football|basketball"
)
_THINGS = (
    "triangle|rectangle|square|circle|trapezoid|parallelogram|rhombus|quadrilateral|pentagon|hexagon|octagon|polygon|cube|cylinder|cone"
    "|sphere|prism|pyramid|tetrahedron|sequence|series|polynomial|parabola|ellipse|hyperbola|matrix|bag|box|jar|deck|coin|die|team|class"
    "|school|club|committee|store|car|train|bus|garden|field|room|wall|floor|pool|tank|ladder|clock|fraction|list|rope|wire|board|game"
    "|tournament|lottery|password|license plate|code|book|tree|wheel|pizza|cake|farmer|company|restaurant|shop|factory|trip|race|bakery"
    "|library|concert|party|recipe|movie|painting|map|ball|spinner|urn|drawer|grid|tower|building|teacher|student|family|baker|tailor"
    "|bookstore|zoo|park|farm|house|apartment|truck|boat|ship"
)
_GOALS_NOUN = re.compile(
    rf"\b(?:A|An|The|a|an|the) (?P<noun>(?:(?:{_ADJECTIVES}) )*(?:{_THINGS}))\b(?! (?:roots?|feet|inch|unit|mile|meter|yard|centimeter|numbers?)\b)"
)
_WEAK_NOUN = re.compile(
    r"\b(?:A|An|The|a|an|the) (?P<noun>function|equation|graph|line|plane|set|operation|equations|roots)\b"
)
_SEVERAL = re.compile(
    r"\b(?P<many>[Tt]wo|[Tt]hree|[Ff]our|[Ff]ive|[Ss]ix) (?P<noun>(?:[a-z]+ )?(?:numbers|integers|dice|cards|points|lines|circles|people|students|friends|boys|girls|teams))\b"
)
_LETTERS = re.compile(r"\$([a-zA-Z])[,.]?\$")
_DOES = (
    "has|had|have|is|was|buys|bought|wants|needs|goes|went|makes|made|can|sells|sold|works|worked|spends|spent|gets|got|eats|ate|runs|ran"
    "|does|did|gives|gave|takes|took|starts|started|decides|decided|plans|earns|earned|collects|owns|drives|drove|bakes|likes|reads|saves"
)
_PERSON = re.compile(rf"\b(?P<name>(?:(?:Mr|Mrs|Ms|Dr)\. )?[A-Z][a-z]+)(?= (?:{_DOES})\b)")
_NOBODY = STOPS | frozenset(
    [
        "today",
        "tomorrow",
        "three",
        "four",
        "five",
        "six",
        "half",
        "one",
        "two",
        "such",
        "many",
        "most",
        "some",
        "it",
        "any",
        "there",
    ]
)

_REFERS = re.compile(
    r"\b(?:figure|diagram|shown|picture(?! frame)|pictured|drawing|graph|below|illustrat\w+|drawn|grid|histogram|chart|table|plot|spinner|shaded)\b",
    re.IGNORECASE,
)
_KINDS = ("figure", "diagram", "graph", "table", "histogram", "chart", "picture", "drawing", "plot")


def goal_gap(evidence: Evidence, rng: random.Random) -> Iterator[Gap]:
    """The problem without its question, where what comes before it stands alone and names something."""
    text = evidence.question
    at = _goal(text)
    if at is None or evidence.end < len(text.raw):
        return
    start, end = text.sentences[at][0], text.sentences[-1][1]
    given, goal = text.raw[:start].rstrip(), text.raw[start:end]
    drawn = next((formula for formula in text.formulas if formula.drawing and formula.start >= start), None)
    if drawn is not None:
        goal = text.raw[start : text.sentences[at][1]]
        given = f"{given}\n\n{text.raw[drawn.start : drawn.end]}" if drawn.start > start + len(goal) - 1 else ""
    about = _about(text, start)
    if (
        not about
        or len(given) < 30
        or len(goal) > _GOALS_LONGEST
        or not balanced(given)
        or not balanced(goal)
        or _HANGS.search(text.raw[:start].rstrip())
    ):
        return
    asks = (
        f"What do you want to know about {about}?",
        f"What should I find out about {about}?",
        f"What is the question about {about}?",
    )
    if stands_in(goal, given) or len(goal.split()) < 4 and "$" not in goal:
        return
    yield Gap(
        given,
        f"what you want to know about {about}",
        rng.choice(asks),
        goal,
        goal,
        goal,
        "goal",
        f"the question about {about}",
    )


def _goal(text: Text) -> int | None:
    """The number of the sentence that asks, if only sentences about the answer's form follow and none before asks."""
    raws = [text.raw[slice(*pair)] for pair in text.sentences]
    for at in range(len(raws) - 1, 0, -1):
        if _GOAL.match(raws[at]) and not _GOALS_FORM.match(raws[at]):
            quiet = not any("?" in raw for raw in raws[:at]) and not any(_GOAL.match(raw) for raw in raws[:at])
            return at if quiet else None
        if not _GOALS_FORM.match(raws[at]) and DRAWING not in text.mask[slice(*text.sentences[at])][:1]:
            return None
    return None


def _about(text: Text, end: int) -> str:
    """Something that the text before its question names: a shape, a function, a thing, a variable, a person."""
    raw = text.raw[:end]
    named = _NAMED.search(raw)
    if named:
        return f"{named.group('shape').lower()} {re.sub(r'[.,]?[$]$', '$', named.group('name'))}"
    function = _GOALS_FUNCTION.search(raw)
    if function:
        return f"${function.group(1)}$"
    noun = _GOALS_NOUN.search(text.mask, 0, end)
    person = next((found for found in _PERSON.findall(raw) if found.lower() not in _NOBODY), "")
    if person:
        return person
    if noun:
        return f"the {noun.group('noun')}"
    letters = [f"${letter}$" for letter in dict.fromkeys(_LETTERS.findall(raw))][:3]
    if letters:
        return letters[0] if len(letters) == 1 else f"{', '.join(letters[:-1])} and {letters[-1]}"
    several = _SEVERAL.search(text.mask, 0, end)
    if several:
        return f"the {several.group('many').lower()} {several.group('noun')}"
    weak = _WEAK_NOUN.search(text.mask, 0, end)
    return f"the {weak.group('noun')}" if weak else ""


def figure_gaps(evidence: Evidence) -> Iterator[Gap]:
    """The problem without the one drawing or table that its text speaks of."""
    text = evidence.question
    drawings = [formula for formula in text.formulas if formula.drawing]
    words = _REFERS.findall(text.mask)
    if len(drawings) != 1 or not words or evidence.end < len(text.raw) or _plotted(text):
        return
    drawing = drawings[0]
    code = text.raw[drawing.start : drawing.end]
    question = _without(text, drawing)
    table = code.startswith("\\begin{tabular")
    kind = (
        "table"
        if table
        else next((kind for kind in _KINDS if kind in " ".join(words).lower() and kind != "table"), "figure")
    )
    if len(question) < 20 or not balanced(question):
        return
    how = "copy it here" if table else "describe it or paste its code"
    yield Gap(
        question=question,
        clause=f"what the {kind} looks like" if not table else "what the table says",
        ask=f"I can't see the {kind}. Can you {how}?",
        reveal=f"Here is the {kind}:\n{code}",
        short=code,
        value=code,
        kind="figure",
        thing=f"the {kind}",
    )


def _plotted(text: Text) -> bool:
    """Whether the drawing only plots a formula that the text gives: "the graph of $|x| + |2y| = 10$ shown here"."""
    graph = re.search(rf"\bgraph of (?:the )?(?:function |equation |parabola )?(?={MATH})", text.mask)
    formula = next((formula for formula in text.formulas if graph and formula.start == graph.end()), None)
    return formula is not None and re.search(r"\d", text.inner(formula)) is not None


def _without(text: Text, drawing: Formula) -> str:
    before, after = text.raw[: drawing.start].rstrip(), text.raw[drawing.end :].lstrip()
    gap = (
        "\n\n"
        if "\n" in text.raw[len(before) : drawing.start] + text.raw[drawing.end : len(text.raw) - len(after)]
        else " "
    )
    return f"{before}{gap}{after}".strip()


# --- A clause said again with its number asked for in place: "A train travels 270 miles in how many hours?".
#
# The way people ask back, and it needs no grammar beyond where the clause begins and ends.

_LONGEST_BEFORE, _LONGEST_AFTER = 12, 8
_ASKING = re.compile(r"\b(?:how|what|which|who|why|find|calculate|determine|compute)\b", re.IGNORECASE)
# "another how many daisies", "size how much" and lists ("8, 15 and how many") do not read.
_NO_ASKING_AFTER = re.compile(
    r"(?:\b(?:an?|the|another|these|those|size|grade|number|age|aged|at)|,|\d\$?,? and)$", re.IGNORECASE
)
_COUNTED = re.compile(r" (?:times|fewer|more|less|of|cm|mm|km|m|g|kg|ml|mL|lbs?|oz|mph|kph|degrees|percent)\b")
_REST = re.compile(r"[,.](?!\d)|[;:?!()\n\"]|\s(?:and|but|which|that|who|if|when|while|so|because|where)\b")
_CONNECTOR = re.compile(
    r"^(?:If|Since|Suppose(?: that)?|Assume(?: that)?|Then|So|Also|However|And|But|Finally|Meanwhile),? "
)
# The clause after one of these only stands with its main clause.
_SUBORDINATE = re.compile(r"(?:When|While|After|Before|As|Once|Whenever|Until|Although|Because|Out|Of)\b")
_LAST_CLAUSE = re.compile(r"[,;:] (?:and |but |so |then |while |if )?((?:(?!, |; |: ).)*)$")


def echo(before: str, amount: Amount, after: str, counted: str) -> str:
    """The question, or "" where the clause is too long, asks itself, or cannot take "how many" in this place."""
    clause = _clause(before)
    asked = {"money": "how much", "percent": "what percent"}.get(amount.kind, "how many")
    if not clause or _ASKING.search(clause) or _NO_ASKING_AFTER.search(clause) or before.rstrip().endswith(","):
        return ""
    if asked == "how many" and not counted and not _COUNTED.match(after) or after.startswith("-"):
        return ""
    behind = after[len(counted) + 1 :] if counted else after
    if clause.endswith(" and") and re.match(r" [a-z]", behind) or re.match(r" \d", behind):
        return ""
    rest = _REST.split(after)[0].rstrip()
    if len(rest.split()) > _LONGEST_AFTER:
        if not counted:
            return ""
        rest = f" {counted}"
    # A formula may be cut in two here, so none is said again; in plain text a dollar sign is money.
    if "\\" in before + after or ("$" in clause + rest and re.search(r"[A-Za-z]\$|\$[A-Za-z]", before + after)):
        return ""
    if (
        "both" in rest
        or "  " in rest
        or " - " in rest
        or (amount.kind == "money" and not rest and re.match(r" [a-z]", after))
    ):
        return ""
    return upper_first(f"{lower_first(clause)} {asked}{rest}?")


def _clause(before: str) -> str:
    """The clause that leads up to the number, if it has a verb: "a train travels 270 miles in"."""
    text = _CONNECTOR.sub("", before.lstrip())
    if _SUBORDINATE.match(text) and "," not in text:
        return ""
    last = _LAST_CLAUSE.search(text)
    clause = last.group(1) if last and has_verb(last.group(1)) else text
    plain = has_verb(clause) and not re.search(r"[\"“”()?\n]|  | - ", clause) and not FIRST_PERSON.search(clause)
    return clause.strip() if plain and 1 < len(clause.split()) <= _LONGEST_BEFORE else ""


# --- Names for numbers that measure: a radius, an age, a length, a share, a divisor.

# The start of the clause that a number stands in.
CLAUSE = r"^(?:.*[,;:] |.*\b(?:and|if|If|that|while|but|when) )?"

# A shape has one of each, so "the radius" is enough; of the others it must be said of what.
_MEASURES_SHAPES = (
    "side length|edge length|surface area|slant height|common ratio|common difference|first term|radius|diameter|circumference"
    "|height|length|width|area|perimeter|volume|hypotenuse|slope"
)
_OTHERS = (
    "average speed|total number|original price|regular price|total cost|sales tax|number|base|altitude|median|depth|speed|rate"
    "|weight|mass|price|cost|sum|product|difference|average|mean|ratio|remainder|age|distance|temperature|population|probability"
    "|angle|capacity|thickness|tax|discount|budget|salary|income"
)
_OF = (
    r" (?:of|between) (?:(?:the|an?|each|every|one|this|his|her|its|their|two|three|four|five|six|ten|all|these) [a-z]+(?: [a-z]+){0,2}"
    r"|(?:[a-z]+ )?\$[^$]{1,20}\$)"
)
_MEASURED = re.compile(
    r"(?P<owner>\b(?:[Ii]ts|[Hh]is|[Hh]er|[Tt]heir|(?:[A-Z][a-z]+|[Tt]he [a-z]+)['’]s) (?:[a-z]+ )?)?"
    rf"(?:\b[Tt]he (?P<which>[a-z]+ ))?\b(?P<measure>{_MEASURES_SHAPES}|{_OTHERS})(?:(?P<of>{_OF})?"
    r" (?:is|was|equals|equal to|measures|are)| (?:of|at))(?: (?:exactly|about))? $"
)
_BARE = re.compile(
    r"\b(?:with|has|of|having|whose|have) (?P<measure>radius|diameter|side length|height|length|width|area|perimeter|volume"
    r"|circumference|edge length|slope) $"
)
_HOLDER = re.compile(
    r"\b(?:[Aa]n?|[Tt]he|[Oo]ne|[Ee]ach) (?P<holder>(?:[a-z-]+ )?(?:circle|sphere|cylinder|cone|square|cube|triangle|rectangle|hexagon"
    r"|octagon|pentagon|trapezoid|rhombus|parallelogram|polygon|prism|pyramid|wheel|tank|pool|garden|box|field|line|semicircle"
    r"|hemisphere|disk|pizza|pole|ladder|tree|room|ball|pipe|can|coin|table|park|yard|playground))"
    r" (?:with|of|has|having|whose|that has)(?: an?)?(?: [a-z]+){0,2} $"
)
_LONG = re.compile(r" (?P<unit>[a-z]+) (?P<how>long|wide|tall|high|deep|thick)\b")
_SIZES = {"long": "length", "wide": "width", "tall": "height", "high": "height", "deep": "depth", "thick": "thickness"}
_IS = re.compile(
    rf"{CLAUSE}(?P<subject>(?:[Tt]he|[Aa]n?|[Ee]ach|[Hh]is|[Hh]er|[Oo]ne) [a-z]+(?: [a-z]+)?|[A-Z][a-z]+|[Hh]e|[Ss]he)"
    r" (?P<be>is|was)(?: (?:currently|now|only|exactly))? $"
)
_OWN = {"he": "his", "she": "her"}
_DIVIDED = re.compile(r"\b(divided|divisible|multiplied) by (?:the number )?$")
_SHARE = re.compile(r" of((?: (?:the|all|his|her|their|its|these|those))*)((?: [a-z]+){1,3})")


def measure(before: str) -> Name | None:
    """ "The perimeter of a rectangle is", "a circle with radius", "its height is"."""
    match = _MEASURED.search(before)
    owner, of = (match.group("owner") or "", match.group("of") or "") if match else ("", "")
    match = match or _BARE.search(before)
    if match is None:
        return None
    which = match.groupdict().get("which") or ""
    what = which + match.group("measure")
    holder = _HOLDER.search(before, 0, match.start("measure"))
    if owner:
        named = f"{lower_first(owner)}{what}"
    elif of:
        named = f"the {what}" + re.sub(r"^ of (?:an?|one) ", " of the ", of)
    elif holder:
        named = f"the {what} of the {holder.group('holder')}"
    elif which or re.fullmatch(_MEASURES_SHAPES, what):
        named = f"the {what}"
    else:
        return None
    return Name(f"What is {named}?", f"what {named} is", named, upper_first(f"{named} is {{short}}."))


def divisor(before: str) -> Name | None:
    """ "When 987 is divided by"."""
    match = _DIVIDED.search(before)
    if match is None:
        return None
    how = match.group(1)
    return Name(f"{how.capitalize()} by which number?", f"which number it is {how} by", f"the number it is {how} by")


def percentage(after: str) -> Name | None:
    """ "of the students are girls"."""
    match = _SHARE.match(after)
    if match is None:
        return None
    words: list[str] = []
    for word in match.group(2).split():
        if word in STOPS or word.endswith("ed"):
            break
        words.append(word)
    if not words or not is_plural(words[-1]):
        return None
    share = f" of{match.group(1)} {' '.join(words)}"
    return Name(
        f"What percentage{share} is it?",
        f"what percentage{share} it is",
        f"the percentage{share}",
        f"It's {{short}}{share}.",
    )


def age(before: str, after: str) -> Name | None:
    """ "Diana is" 14 " years old"."""
    match = _IS.match(before)
    if match is None or not re.match(r" years old(?! than)", after):
        return None
    subject, be = definite(lower_first(match.group("subject"))), match.group("be")
    thing = f"{_OWN[subject]} age" if subject in _OWN else f"the age of {subject}"
    return Name(
        f"How old {be} {subject}?", f"how old {subject} {be}", thing, upper_first(f"{subject} {be} {{short}} old.")
    )


def size(before: str, after: str) -> Name | None:
    """ "A pole is" 12 " feet tall"."""
    match, long = _IS.match(before), _LONG.match(after)
    if match is None or long is None:
        return None
    subject, be = definite(lower_first(match.group("subject"))), match.group("be")
    unit, how = long.group("unit"), long.group("how")
    thing = f"{_OWN[subject]} {_SIZES[how]}" if subject in _OWN else f"the {_SIZES[how]} of {subject}"
    return Name(
        f"How many {unit} {how} {be} {subject}?", f"how many {unit} {how} {subject} {be}", thing,
        upper_first(f"{subject} {be} {{short}} {how}."),
    )  # fmt: skip


# --- What a withheld number is called, so that a question about it names the problem's own things.
#
# Tried in order: what it divides, an age, a size, a measure ("What is the radius of the circle?"), what there is,
# and what somebody does ("How many clips did Natalia sell in April?"). None where the sentence is built in another
# way; then its place is said again or quoted.

_COSTS = re.compile(
    rf"{CLAUSE}(?P<subject>(?:[Tt]he|[Aa]n?|[Ee]ach|[Ee]very|[Oo]ne|[Hh]is|[Hh]er) [a-z]+(?: [a-z]+){{0,2}})"
    r" (?P<verb>costs?|sells for|is priced at|is worth)(?: (?:only|exactly))? $"
)
_THERE = re.compile(r"\b[Tt]here (?P<be>are|were|will be)(?: (?:only|exactly|a total of|currently|also|about))? $")
# "$5 more than" is no amount that somebody has.
_COMPARED = re.compile(
    r" ?(?:less|more|fewer|older|younger|off|times|each|per|apiece|an?|every|as|shorter|taller|cheaper|higher|lower|faster"
    r"|longer|extra|additional)\b|/|-"
)


def name_of(before: str, amount: Amount, after: str, counted: str) -> Name | None:
    """The number's name from its sentence: what stands before and after it, and the noun it counts ("" for none)."""
    if amount.kind == "money":
        return _price(before) or _money(before, after)
    if amount.kind == "percent":
        return percentage(after)
    if amount.kind == "degrees":
        return measure(before)
    named = divisor(before) or age(before, after) or size(before, after)
    if named is None and amount.kind == "count":
        named = measure(before)
    if named is None and counted:
        named = _there(before, after, counted) or _done(before, after, counted)
    return named


def _done(before: str, after: str, counted: str) -> Name | None:
    who, rest = doing(before), tail(after[len(counted) + 1 :])
    if who is None or rest is None:
        return None
    return _asked(who, f"many {counted}", f"the number of {re.sub('^more ', 'additional ', counted)}", rest)


def _money(before: str, after: str) -> Name | None:
    who, rest = doing(before), tail(after)
    if who is None or rest is None or _COMPARED.match(after) or who.asked[1] in ("cost", "weigh"):
        return None
    return _asked(who, "much money", "the amount of money", rest)


def _asked(who: Doing, what: str, noun: str, rest: str) -> Name:
    """The name of what somebody does so many or so much of."""
    aux, base = who.asked
    subject, end = definite(who.subject), f"{rest}{who.lead}"
    return Name(
        f"How {what} {aux} {subject} {base}{end}?",
        f"how {what} {subject} {who.said}{end}",
        f"{noun} {subject} {who.said}{end}",
        upper_first(f"{who.subject} {who.said} {{short}}{end}."),
    )


def _there(before: str, after: str, counted: str) -> Name | None:
    match, rest = _THERE.search(before), tail(after[len(counted) + 1 :])
    if match is None or rest is None:
        return None
    be = match.group("be")
    asked = f"will there be{rest}" if be == "will be" else f"{be} there{rest}"
    return Name(
        f"How many {counted} {asked}?", f"how many {counted} there {be}{rest}", f"the number of {counted}{rest}",
        f"There {be} {{short}}{rest}.",
    )  # fmt: skip


def _price(before: str) -> Name | None:
    match = _COSTS.match(before)
    if match is None:
        return None
    subject = definite(lower_first(match.group("subject")))
    past = match.group("verb") == "cost"
    said = "cost" if past else "costs"
    return Name(
        f"How much {'did' if past else 'does'} {subject} cost?", f"how much {subject} {said}", f"the price of {subject}",
        upper_first(f"{subject} {said} {{short}}."),
    )  # fmt: skip


# --- Gaps of kind "number": a stated number left vague ("some pens") or blank ("a radius of ___ inches").
#
# A number may be withheld where it stands once in the question, the solution computes with it, and it is not the
# answer. What is asked for is named by `naming`, or by quoting the place.

_LARGE = ("dozen", "hundred", "thousand", "million", "billion", "percent", "more", "other", "different")
# What everybody knows is not asked for: a deck of 52 cards, a foot of 12 inches.
_STANDARD = re.compile(
    r"\b(?:standard|regular|normal|ordinary)(?: [a-z]+)* of $|\bstandard $|\b(?:1|one|a|an) (?:foot|mile|yard|hour|minute|day|week|year|gallon|quart|pint"
    r"|cup|pound|kilogram|kilometer|meter|dollar|dozen)s? (?:is|equals|=|has|contains|is equal to|being) $"
)
_LONGEST_REVEAL = 140


def number_gaps(evidence: Evidence, rng: random.Random) -> Iterator[Gap]:
    """One gap for each number that may be withheld, in the order in which they are found."""
    for amount in amounts(evidence.question):
        if evidence.may_withhold(amount):
            gap = _numbers_gap(evidence, amount, rng)
            if gap is not None:
                yield gap


def _numbers_gap(evidence: Evidence, amount: Amount, rng: random.Random) -> Gap | None:
    text = evidence.question
    start, end = text.sentence(amount.start)
    before, after = text.raw[start : amount.start], text.raw[amount.end : end]
    counted = noun_phrase(after) if amount.kind in ("count", "word") else ""
    name = name_of(before, amount, after, counted)
    vague = _may_be_vague(amount, before, after, counted)
    if (amount.kind == "word" and not vague) or evidence.said_again(amount, counted) or _STANDARD.search(before):
        return None
    if re.search(r",\s*\$,? (?:and |or )?$", before) and "=" in before:
        return None  # the last of a row: "for $n = 1, 2, 3,$ and $4$"
    if vague and (amount.kind == "word" or rng.random() < 0.6):
        hidden = vague_words(rng, capital=not before.strip())
    else:
        vague, hidden = False, _blank(amount, rng)
    question = text.raw[: amount.start] + hidden + closing(text, amount) + text.raw[amount.end :]
    if name is not None and (_is_the_goal(name, counted, text.raw) or _of_several(name, text.raw)):
        name = None
    name = name or _placed(evidence, amount, hidden, counted, vague, rng)
    if name is None or stands_in(amount.value, question):
        return None
    unit = counted or _unit(after)
    shown = amount.shown.lower() if amount.kind == "word" else amount.shown
    short = f"{shown} {unit}" if unit else shown
    return Gap(
        question=question,
        clause=name.clause,
        ask=name.ask,
        reveal=_reveal(text.raw[start:end], name, short, rng),
        short=short,
        value=amount.value,
        kind="number",
        thing=name.thing,
        other=_numbers_other(evidence, amount, short),
    )


def _may_be_vague(amount: Amount, before: str, after: str, counted: str) -> bool:
    """Whether "some" reads in the number's place."""
    if not counted or amount.kind not in ("count", "word") or after.startswith("-"):
        return False
    words = counted.lower().split()
    if words[0] in _LARGE or UNITS & set(words[:2]) or (worth_of(amount.value) or 0) < 2 or "." in amount.value:
        return False
    rest = after[len(counted) + 1 :]
    return not NO_VAGUE_AFTER.search(before) and not NO_VAGUE_BEFORE.match(rest)


def _blank(amount: Amount, rng: random.Random) -> str:
    """A visible blank that keeps the sign of money, of a percentage and of degrees."""
    if amount.kind in ("money", "percent"):
        blank = rng.choice(("___", "[?]"))
        money, percent = (r"\$", r"\%") if "\\" in amount.shown else ("$", "%")
        return money + blank if amount.kind == "money" else blank + percent
    if amount.kind == "degrees":
        return r"$?^\circ$"
    return rng.choice(BLANKS)


def _unit(after: str) -> str:
    words = leading_words(after, 1)
    return words[0] if words and (words[0] in UNITS or words[0] in _LARGE[:5]) else ""


def _is_the_goal(name: Name, counted: str, question: str) -> bool:
    """Whether the name would read like the problem's own question."""
    asked = question.lower()
    return f"how many {counted}".lower() in asked if counted else name.ask.lower().rstrip("?") in asked


def _of_several(name: Name, question: str) -> bool:
    """Whether the question speaks of this measure more than once, and the name does not say of what by a formula."""
    measure = name.thing.partition(" of ")[0].removeprefix("the ")
    return not name.thing.startswith("the number") and "$" not in name.thing and question.lower().count(measure) > 1


def _placed(
    evidence: Evidence, amount: Amount, hidden: str, counted: str, vague: bool, rng: random.Random
) -> Name | None:
    """The number named by its place: its clause said again as a question, or quoted."""
    text = evidence.question
    place = quote(text, amount.start, amount.end, hidden)
    if not place:
        return None
    what = {"money": "amount", "percent": "percentage", "degrees": "angle"}.get(amount.kind, "number")
    bare = counted.partition(" of ")[0]
    if vague:
        asks = [f'It says "{place}", but how many {bare} exactly?', f'How many {bare} are meant in "{place}"?']
        name = Name(rng.choice(asks), f'how many {bare} are meant by "{place}"', f'the number of {bare} in "{place}"')
    else:
        asks = [
            f'What is the {what} in "{place}"?', f'Which {what} belongs in "{place}"?',
            f'It says "{place}". What is the {what} there?',
        ]  # fmt: skip
        name = Name(rng.choice(asks), f'which {what} belongs in "{place}"', f'the {what} in "{place}"')
    start, end = text.sentence(amount.start)
    asked = text.raw[start:end].endswith("?") and not text.raw[start:].startswith("If ")
    echoed = "" if asked else echo(text.raw[start : amount.start], amount, text.raw[amount.end : end], counted)
    return dataclasses.replace(name, ask=echoed) if echoed and rng.random() < 0.8 else name


def _reveal(sentence: str, name: Name, short: str, rng: random.Random) -> str:
    """The sentence that states the number, the name's own, or the bare thing."""
    plain = not sentence.endswith("?") and len(sentence) <= _LONGEST_REVEAL and "\n" not in sentence
    said = (
        name.said.format(short=short)
        if "{" not in name.said.replace("{short}", "")
        else name.said.replace("{short}", short)
    )
    return sentence if plain and rng.random() < 0.5 else said


def _numbers_other(evidence: Evidence, amount: Amount, short: str) -> str:
    value = another(amount.value, amount.kind)
    if not value or stands_in(value, evidence.question.raw) or same_value(value, evidence.answer):
        return ""
    return short.replace(amount.value.lower(), value.lower(), 1)


# --- Commands without their object: "Simplify $..$." as somebody sends it who forgot to paste the formula.

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


# --- Gaps of kind "formula" where a whole formula is gone: what a command is about, what a noun stands for, or any other.
#
# Three ways, the most natural first. "Simplify $..$." becomes "Simplify this expression." with nothing there;
# "the parabola $y = x^2 + 2$" becomes "the parabola"; any other formula that the solution works with is lost as a
# pasted text loses it ("the remainder when [formula] is divided by 8").

_LOST = ("[formula]", "[formula missing]", "[image]", "___", "(formula didn't paste)")
_OBJECTS_LONGEST = 300
# What a bare name looks like, and what says something.
_OBJECTS_NAME = re.compile(r"[A-Za-z\\{}_',\s]+|-?[\d.,]+|\(?[A-Za-z](?:,[A-Za-z])+\)?|[A-Za-z]\([a-z]\)")
_SAYS = re.compile(r"[\d+*/^<>=(-]|\\(?:frac|sqrt|begin|cdot|times|log|sin|cos|tan|overline)")
# Where a variable lives is no formula to ask for ("$0 < x < 1$"), and neither is a row of names.
_DOMAIN = re.compile(r"\\(?:neq?|in)(?![a-z])|^[^=]*[<>]|\\[lg]eq?(?![a-z])|\\to|^(?!.*\d.*\d.*\d).*\\(?:ldots|dots)")
_OBJECTS_FORM = re.compile(
    r"\b(?:forms?:?|(?:written|expressed|represented|simplified|rewritten|put|factored)(?: as| in| to| uniquely as)+) $"
)
_SIDES = re.compile(r"(?<![<>!])=|<|>|\\[lg]eq?(?![a-z])|\\equiv")
_QUESTION = re.compile(r"(?:What|How|Which|For (?:what|which|how)|In how|At what|Is|Does)\b")
_OBJECTS_GOAL = re.compile(
    r"\b(?:[Ww]hat is|[Ff]ind|[Cc]ompute|[Ee]valuate|[Dd]etermine|[Cc]alculate|value of|[Ee]nter)(?: the)? $"
)


def object_gaps(evidence: Evidence, rng: random.Random, known: Sequence[Gap] = ()) -> Iterator[Gap]:
    """At most one gap for each formula that the solution works with, and none where `known` has one already."""
    text = evidence.question
    asked = [squeezed(gap.short).strip("$") for gap in known if len(gap.short) > 4]
    for formula in text.formulas:
        bare = squeezed(text.inner(formula))
        if formula.drawing or evidence.aside(formula.start) or any(short in bare for short in asked):
            continue
        if _needed(evidence, formula):
            gap = _commanded(text, formula, rng) or _tied(text, formula) or _lost(text, formula, rng)
            if gap is not None and balanced(gap.question) and not stands_in(gap.value, gap.question):
                yield gap


def _needed(evidence: Evidence, formula: Formula) -> bool:
    """A formula that says something, and that the solution writes, whole or one side of it."""
    inner = plain_inner(evidence.question.inner(formula))
    bare = squeezed(inner)
    if (
        len(bare) < 4
        or len(inner) > _OBJECTS_LONGEST
        or _OBJECTS_NAME.fullmatch(bare)
        or not _SAYS.search(bare)
        or not balanced(inner)
    ):
        return False
    if bare == squeezed(evidence.answer) or _DOMAIN.search(inner) or _in_a_row(evidence.question, formula):
        return False
    if _OBJECTS_FORM.search(evidence.question.raw, max(0, formula.start - 40), formula.start):
        return False
    sides = [side for side in _SIDES.split(bare) if len(side) > 3]
    written = any(side in evidence.squeezed_solution for side in (bare, *sides))
    return (
        written
        or formula.display
        or _alone(evidence.question, formula)
        or bool(noun_before(evidence.question, formula.start))
    )


def _alone(text: Text, formula: Formula) -> bool:
    """Whether the question holds no other formula that says something."""
    others = (plain_inner(text.inner(other)) for other in text.formulas if other is not formula and not other.drawing)
    return not any(len(inner) >= 4 and _SAYS.search(inner) for inner in others)


def _in_a_row(text: Text, formula: Formula) -> bool:
    """Whether the formula is one of several: "$(0,1),$ $(1,1),$ and $(1,0)$"."""
    before, after = text.mask[max(0, formula.start - 6) : formula.start], text.mask[formula.end : formula.end + 6]
    return (
        re.search(rf"{MATH},? (?:and )?$", before) is not None and re.match(rf",? (?:and )?{MATH}", after) is not None
    )


def _commanded(text: Text, formula: Formula, rng: random.Random) -> Gap | None:
    """The object of a command that is the whole problem: "Simplify $..$."."""
    start, end = text.sentence(formula.start)
    match = command(text, formula)
    if match is None or start > 0:
        return None
    said, verb = bare_command(match.group("verb"), rng)
    what = "equation" if verb == "solve" else "expression"
    name = Name(f"Which {what} should I {verb}?", f"which {what} to {verb}", f"the {what} to {verb}")
    rest = text.raw[end:]
    return _objects_gap(text, formula, said + ("" if not rest or rest[0].isspace() else " ") + rest, name)


def _tied(text: Text, formula: Formula) -> Gap | None:
    """A formula behind its noun: "the parabola $y = x^2$" is still "the parabola"."""
    match = noun_before(text, formula.start)
    after = text.raw[formula.end : formula.end + 30]
    ends = text.mask[formula.end - 1] in ".?" or not text.mask[formula.end :].strip(f"{DRAWING} \n")
    if match is None or re.match(r"\s*(?:and|or|,|that|which|when|-)\s*\$?", after):
        return None
    if formula.display and not ends and not re.match(r" ?[a-z]", after):
        return None
    stop = _stop(text, formula) or ("." if ends and after[:1] not in (".", "?") else "")
    if stop == "." and _QUESTION.match(text.raw, text.sentence(formula.start)[0]):
        stop = "?"
    head, tail = text.raw[: match.end("noun")], text.raw[formula.end :]
    gap = " " if tail and not tail[0].isspace() and (stop or tail[0].isalnum()) else ""
    return _objects_gap(text, formula, f"{head}{stop}{gap}{tail}", name_of_noun(match.group("noun")))


def _lost(text: Text, formula: Formula, rng: random.Random) -> Gap | None:
    """A formula gone as in a pasted text, asked for by its noun or by the words around it."""
    lost = rng.choice(_LOST)
    name = _objects_name(text, formula, lost, rng)
    if name is None:
        return None
    head, tail = text.raw[: formula.start], text.raw[formula.end :]
    before = "" if not head or head[-1].isspace() or head[-1] == "(" else " "
    behind = " " if tail[:1].isalnum() else ""
    return _objects_gap(text, formula, f"{head}{before}{lost}{_stop(text, formula)}{behind}{tail}", name)


def _objects_name(text: Text, formula: Formula, lost: str, rng: random.Random) -> Name | None:
    noun = noun_before(text, formula.start)
    if noun is not None:
        return name_of_noun(noun.group("noun"))
    inner = plain_inner(text.inner(formula))
    equation = "=" in re.sub(r"\{[^{}]*\}", "", inner)
    what = "number" if number(inner) is not None else "equation" if equation else "expression"
    if _OBJECTS_GOAL.search(text.raw, text.sentence(formula.start)[0], formula.start):
        return Name(
            f"Which {what} are you asking about?",
            f"which {what} you are asking about",
            f"the {what} you are asking about",
        )
    comma = "," if _stop(text, formula) == "," else ""
    place = quote(text, formula.start, formula.end, lost + comma)
    asks = (
        f'It says "{place}". What is the {what} there?', f'Which {what} belongs in "{place}"?',
        f'The {what} is missing in "{place}". What is it?',
    )  # fmt: skip
    return Name(rng.choice(asks), f'which {what} belongs in "{place}"', f'the {what} in "{place}"') if place else None


def _objects_gap(text: Text, formula: Formula, question: str, name: Name) -> Gap:
    inner = plain_inner(text.inner(formula))
    shown = _shown(text, formula)
    return Gap(
        question=question.rstrip(),
        clause=name.clause,
        ask=name.ask,
        reveal=f"It's {shown}." if not shown.startswith("\\begin") else shown,
        short=shown,
        value=inner,
        kind="number" if number(inner) is not None else "formula",
        thing=name.thing,
    )


def _shown(text: Text, formula: Formula) -> str:
    """The formula as a user types it: in one line, or as it stands where it has several."""
    inner = plain_inner(text.inner(formula))
    if text.raw.startswith("\\begin", formula.start) or ("\\\\" in inner and "\n" in inner):
        return text.raw[formula.start : formula.end]
    return f"${inner}$"


def _stop(text: Text, formula: Formula) -> str:
    """The stop that the formula holds for its sentence, or that the next sentence implies."""
    last = text.inner(formula).rstrip()[-1:]
    if last in (".", ",", "?", ";", ":"):
        return last
    return "." if text.mask[formula.end - 1] == "." else ""


# --- What a text solution offers to a conversation: a beginning to stop after, and formulas to point at.
#
# Everything here is cut from the reference solution and never written anew, so it is as right as that is.

# A formula to point at is short enough to be typed; a line and the one before it, to be said again.
_SHORTEST, _LONGEST_PIECE, _SOLUTIONS_LONGEST, _LONGEST_LINE = 5, 60, 80, 400
# A formula holds several equations where rows, arrows or wide spaces part them.
_ARROW = r"\\(?:(?:[Ll]ong)?[Rr]ightarrow|implies|iff|quad|qquad|therefore)(?![a-z])"
_SPLIT = re.compile(
    rf"\\\\(?:\[[^\]]*\])?|{_ARROW}|\\text\{{\s*(?:and|or|so)\s*\}}|(?<!\\),\s*(?:\\[,;: ]\s*)?(?=[a-zA-Z]\s*=)"
)
_OTHER_RELATION = r"\\(?:[lg]eq?(?:slant)?|neq?|approx|equiv|to|in|mid|sim|cong|pmod|hspace|pm|fbox|label|tag|leftrightarrow|begin)(?![a-z])"
_SOLUTIONS_SIDE = rf"(?:(?!{_OTHER_RELATION}|(?<!\\)[=<>&~;:]|\n).)+"
_SOLUTIONS_EQUATION = re.compile(rf"{_SOLUTIONS_SIDE}(?:=(?=.*\S){_SOLUTIONS_SIDE})+")

_GROUP = re.compile(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]")
_MARK = re.compile(r"(?<!\\)&")
_ALIGNED = re.compile(r"\\(?:begin|end)\{(?:aligned|split|gathered)\}")
_CONGRUENCE = re.compile(rf"{_SOLUTIONS_SIDE}\\equiv\s*(-?\d+)\s*\\p?mod\s*(?:\{{\d+\}}|\d+)")


def start_and_rest(solution: Text, answer: str) -> tuple[str, str]:
    """The solution cut after one of its first sentences, about a third in; ("", "") where no cut is good.

    The first part says something (a formula or a number), and holds neither the answer nor the box.
    """
    raw = solution.raw
    ends = [start for start, _ in solution.sentences[1:]]
    good = [end for end in ends if _says_something(solution, end) and not _tells(raw[:end], answer)]
    if not good or not solution.whole:
        return "", ""
    end = max((end for end in good if end <= max(0.4 * len(raw), good[0])), default=good[0])
    return raw[:end], raw[end:]


def _says_something(solution: Text, end: int) -> bool:
    drawn = solution.mask.count(DRAWING, 0, end)
    text = solution.raw[:end].rstrip()
    return len(text) - drawn >= 30 and not text.endswith(":") and re.search(r"\d|=", text) is not None


def _tells(text: str, answer: str) -> bool:
    return "\\boxed" in text or "\\fbox" in text or stands_in(answer, text)


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


def _typed(solution: Text, formula: Formula) -> Iterator[str]:
    """The equations of a formula as somebody types them: one, those of its rows or parts, or what leads to the box."""
    if formula.drawing:
        return
    inner = solution.inner(formula)
    aligned = solution.raw.startswith(r"\begin", formula.start) or _ALIGNED.search(inner)
    head = ""
    for part in _SPLIT.split(_MARK.sub("", _ALIGNED.sub("", inner)) if aligned else inner):
        row = plain_inner(part.partition(r"\boxed")[0]).removesuffix("=").strip()
        if row.startswith("="):  # a row that goes on with the left side of the one before
            row = f"{head} {row}"
        head = row.partition("=")[0].strip()
        sides = row.split("=")
        row = "=".join(sides if len(row) <= _SOLUTIONS_LONGEST - 2 else sides[-2:]).strip()
        text = f"${row}$"
        listed = ", " in _GROUP.sub("", row)
        fits = (
            _SHORTEST <= len(text) <= _SOLUTIONS_LONGEST
            and not listed
            and (_SOLUTIONS_EQUATION.fullmatch(row) or _CONGRUENCE.fullmatch(row))
        )
        if fits and balanced(row):
            yield text


# --- Wrong results that a solution itself offers: numbers on the way, where a user may have stopped.
#
# In a text solution it is an equation that ends in a number ("$c-a = 6$"), in a GSM8K-like one the result of a line.
# A number counts once, with the first formula that ends in it, and only where it differs from the answer in text and
# in worth and is no part of it. Problems with lettered options, several boxes or an answer in another base are left
# alone: there a "wrong" number may be the right one under another name.

_LETTERED = re.compile(r"\\text(?:bf)?\{\s*\(?[A-E][).]|\(A\)|^\\text|^[A-Z]$|_\{?\d", re.MULTILINE)
_ARITHMETIC = re.compile(
    r"(?:[\d.,+*/!^(){}|\[\]\s-]|\\(?:cdot|times|div|[dt]?frac|[dt]?binom|sqrt|pi|circ|left|right|[lr]floor|[lr]ceil|choose|gcd|lcm"
    r"|log|ln|sin|cos|tan|sec|csc|cot|overline|text|operatorname|[%$,!; ])(?![a-z]))+"
)
# What a value may be the value of: a letter with its indices, a function's value, a length, an angle, a sum of them.
_SLIPS_NAMED = re.compile(r"[^=<>]{1,40}")
# A plain name: "x", "a_{10}", "AB", "f(-2)", "f^{-1}(4)", "\\angle ABC", "\\cos A", "|z|", "[ABC]".
_SLIPS_NAME = re.compile(
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

# A point or another row of values: "(1, 1.5)".
_ROW = re.compile(r"(?:\\left)?\(([^()]+,[^()]+?)(?:\\right)?\)")
_SLIPS_SMALL = 13  # below, a number may stand in the question for another reason


def text_slips(
    problem: Problem, question: Text, solution: Text, equations: Mapping[str, tuple[int, int]]
) -> tuple[Slip, ...]:
    """Equations on the way whose right side a user may take for the answer."""
    if solution.raw.count(r"\boxed") > 1:  # the answer has parts, and the last box is only one of them
        return ()
    if _LETTERED.search(problem.answer) or ("(A)" in problem.question and worth(problem.answer) is None):
        return ()
    asked = squeezed(question.raw)
    found: list[Slip] = []
    for equation, (at, position) in equations.items():
        value = value_of(equation) or _point(equation)
        left = re.split(r"=|\\equiv", equation.strip("$"))[0].strip()
        before = solution.mask[solution.sentences[at][0] : position]
        if not value or squeezed(left) in (squeezed(value), "") or squeezed(left) + "=" in asked:
            continue
        if not _ARITHMETIC.fullmatch(left) and not _found(equation, left, value, before, question.raw):
            continue
        if _differs(value, problem) and not any(same_value(slip.answer, value) for slip in found):
            found.append(Slip(at, "", value, equation))
    return tuple(found)


def _point(equation: str) -> str:
    """The right side where it is a point or another row of plain values, "(1, 1.5)"; else ""."""
    side = equation.strip("$").rpartition("=")[2].strip()
    match = _ROW.fullmatch(side)
    return side if match and all(worth(part) is not None for part in match.group(1).split(",")) else ""


def _found(equation: str, left: str, value: str, before: str, question: str) -> bool:
    """Whether an equation says what a name or a term is worth, as a result; `before` is its sentence up to it.

    A term whose value is 0, 1 or a number of the question mostly states a condition, so only plain names may be.
    """
    if _ASSUMED.search(before):
        return False
    if _SLIPS_NAME.fullmatch(left):
        return True
    sides = equation.strip("$").split("=")
    if len(sides) > 2 and _ARITHMETIC.fullmatch(sides[-2].strip()):
        return True  # calculated on the way
    known = number(value)
    small = known is not None and abs(known) < _SLIPS_SMALL
    stated = abs(known) in (0, 1) if known is not None and small else stands_in(value, question)
    return _SLIPS_NAMED.fullmatch(left) is not None and not stated


def _differs(value: str, problem: Problem) -> bool:
    """Whether nobody would take the value for the answer, for a part of it, or for it in another form."""
    point, answer = _ROW.fullmatch(value), _ROW.fullmatch(problem.answer)
    if point:
        if answer is None:
            return worth(problem.answer) is not None
        pairs = zip(point.group(1).split(","), answer.group(1).split(","), strict=False)
        return not all(same_value(one, other) for one, other in pairs)
    mine, right = worth(value), worth(problem.answer)
    if same_value(value, problem.answer) or right is None and stands_in(value, problem.answer):
        return False
    if mine is None or right is None:
        return True
    if re.search(r"round|nearest|approximat|percent|\\%", problem.question):
        return abs(mine - right) >= 1 and abs(mine - 100 * right) > 1e-6 and abs(100 * mine - right) > 1e-6
    return abs(mine + right) > 1e-9  # a sign alone is too close to call it a number on the way


# --- The steps of a reference solution: its lines or sentences, with the equation where the arithmetic comes out.

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_STEPS_EQUATION = re.compile(
    rf"(?<![\d.)*/+%-])\s*\$?({_NUMBER})\s*([-+*/x×])\s*\$?({_NUMBER})\s*=\s*\$?({_NUMBER})(?!\s*[*/+×-]\s*\d)(?![\d%])"
)
# A longer sum or product, as GSM8K writes it: "3 x 4 + $2.50 = $14.50".
_STEPS_LONG = re.compile(
    r"(?<![\w.%)])([($]*\d[\d,.$()+*/x×% -]{0,80}[\d)%])\s*=\s*\$?(\d[\d,]*(?:\.\d+)?)(?![\d%/*+-]|\s*[*/+×x-]\s*[\d$(])"
)
_UNITS = re.compile(r"(?<=[\d)])(?: ?(?:[a-z]{2,}|km|cm|£|€)(?:/[a-z]+)*| ?/ ?[a-z]+){1,4}(?=\s*[-+*/=)–])")
_MOST_OPERATIONS = 12


def steps_of(solution: Text, prose: bool) -> tuple[Step, ...]:
    """The sentences of prose, or the lines of a solution that is written one step a line."""
    if prose:
        return tuple(_step(solution.raw[start:end]) for start, end in solution.sentences)
    return tuple(_step(line.strip()) for line in solution.raw.split("\n") if line.strip())


def _step(line: str) -> Step:
    for left, op, right, result in _STEPS_EQUATION.findall(_UNITS.sub("", line)):
        op = {"x": "*", "×": "*"}.get(op, op)
        a, b, c = (Fraction(number.replace(",", "")) for number in (left, right, result))
        if op == "/" and b == 0:
            continue
        if c == {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[op]:
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
    """The result and the whole of the last equation of a line whose arithmetic comes out; two empty texts without.

    Units between the numbers ("15 gallons * 0.2 = 3 gallons") are left out of the equation.
    """
    for match in reversed(list(_STEPS_LONG.finditer(_UNITS.sub("", line.replace("–", "-"))))):
        value = computed(match.group(1))
        if value is not None and value == Fraction(match.group(2).replace(",", "")):
            return match.group(2), match.group().strip()
    return "", ""


def computed(expression: str) -> Fraction | None:
    """What a sum, product or fraction of plain numbers comes to; None for anything else."""
    bare = re.sub(r"[$,\s]", "", expression).replace("x", "*").replace("×", "*")
    bare = re.sub(r"(\d+(?:\.\d+)?|\.\d+)%", r"(\1/100)", bare)
    if not re.fullmatch(r"[\d.()+*/-]+", bare) or len(re.findall(r"[+*/-]", bare)) > _MOST_OPERATIONS or "**" in bare:
        return None
    try:
        return _value(ast.parse(bare, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left / right
    raise ValueError("no plain arithmetic")


def task_from(problem: Problem) -> Task:
    r"""The problem as a task. A solution that boxes its answer (MATH) is kept word for word.

    The same problem always gives the same task: choices of wording are seeded from its id.
    """
    latex = boxed(problem.solution) is not None
    question, solution = read(problem.question, latex), read(problem.solution, latex)
    steps = steps_of(solution, latex)
    task = Task(
        id=problem.id,
        question=problem.question,
        answer=problem.answer,
        source=problem.source,
        steps=steps,
        gaps=_gaps(Evidence(problem, question, solution, latex), problem.id) if question.whole else (),
        slips=step_slips(steps, problem.answer) if not latex else (),
        topic=_topic(problem),
    )
    return task if not latex else _with_solution(task, problem, question, solution)


def _with_solution(task: Task, problem: Problem, question: Text, solution: Text) -> Task:
    """What only a solution in prose gives: its text, where it can be cut, and the formulas in it."""
    found = equations(solution) if solution.whole else {}
    start, rest = start_and_rest(solution, problem.answer)
    slips: tuple[Slip, ...] = text_slips(problem, question, solution, found)
    return dataclasses.replace(
        task, boxed_solution=problem.solution, slips=slips, start=start, rest=rest, pieces=pieces(solution, found)
    )


def _gaps(evidence: Evidence, seed: str) -> tuple[Gap, ...]:
    rng = random.Random(f"gaps:{seed}")
    stated = (
        [*number_gaps(evidence, rng), *condition_gaps(evidence, rng)]
        if evidence.latex
        else [*number_gaps(evidence, rng)]
    )
    formulas = object_gaps(evidence, rng, stated) if evidence.latex else ()
    return (*stated, *formulas, *goal_gap(evidence, rng), *figure_gaps(evidence))


def _topic(problem: Problem) -> str:
    """The subject in words that fit into a sentence: "Counting & Probability" -> "counting and probability"."""
    return (problem.subject or "a word problem").lower().replace(" & ", " and ")
