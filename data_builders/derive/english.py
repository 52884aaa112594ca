"""The little English that a question about a number needs: verbs, units, plural nouns, and who a clause is about.

Tables, not grammar. What they do not cover is asked about by quoting its place instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
