"""Words, stems, numbers and sentences of a text, for comparing texts with each other.

Plain on purpose: a light suffix stemmer and closed lists of English function words, so that two texts are cut
alike and every verdict can be retraced by hand. All of it runs in time linear in the text.
"""

from __future__ import annotations

import re
from functools import lru_cache

_SEPARATE = """
a about above after again all also am an and any are aren as at be because been before being below between both
but by can cannot could couldn did didn do does doesn doing don done down during each either else even ever
every for from further get gets getting go goes going got had hadn has hasn have haven having he her here hers him
his how however i if in into is isn it its itself just ll may maybe me might more most much must my myself no nor
not now of off on once one only or other others our ours out over own per perhaps quite rather re really same say
says shall she should shouldn so some still such than that the their theirs them then there these they this those
though through thus to too toward under until up upon us ve very was wasn we well were weren what when where whether
which while who whom whose why will with within without won would wouldn yet you your yours yourself
"""
_CASUAL = """
aint arent cant cause couldnt couldve cuz didnt doesnt dont em gonna gotta hadnt hasnt havent hes hows ima im isnt
itll ive kinda lemme lets n ok okay pls plz r shes shouldnt tho thats theres theyre theyll theyve thx til u ur wanna
wasnt werent weve whats wheres whos wont wouldnt wouldve ya yall youd youll youre youve
"""


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTION_WORDS = word_set(_SEPARATE + _CASUAL)

# Words of asking and answering. They stand in half of all questions and answers, so sharing them shows nothing.
TASK_WORDS = word_set(
    """
    answer answers best consider correct correctly describe different example explain find following give given gives
    good kind know let like made main make makes many much name need needs new number numbers problem problems question
    questions result results show take takes tell thing things total type use used using value values want wants way
    ways work working works write wrong
    """
)

# Worn words that fit any exchange whatever: praise, thanks, and requests for more of the same.
FILLER_WORDS = word_set(
    """
    advice agree alright amazing answer anything appreciate appreciated appreciating awesome beautiful best bit bye
    brilliant clarification clarify continue cool correct day detail details done elaborate everything example
    examples excellent explain explanation fantastic fascinating fine further glad go good goodbye great hello help
    helpful hey hi idea ideas impressive info information insightful interesting job keep know learn learned learning
    little look looks lot love loved make makes more much nice noted ok okay opinion perfect please point problem
    question questions reply response right see sense share solution something sound sounds sure tell thank thanks
    think thought thoughts thx tip tips today topic true understand understood useful way welcome well wonderful
    work works wow yes
    """
)

_NUMBER_NAMES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)
NUMBER_WORDS = {name: str(value) for value, name in enumerate(_NUMBER_NAMES.split())} | {
    "thirty": "30", "forty": "40", "fifty": "50", "sixty": "60", "seventy": "70", "eighty": "80", "ninety": "90",
    "hundred": "100", "thousand": "1000", "million": "1000000",
    "first": "1", "second": "2", "third": "3", "fourth": "4", "fifth": "5",
}  # fmt: skip

_TOKEN = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|[^\W\d_]+(?:['’][^\W\d_]+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?。?!])[\"'”’)\]*]*\s+|\n+")


def words(text: str) -> list[str]:
    """Lower-case words and numbers in order; "1,000.50" is one number, "Janet's" one word."""
    return [token.lower().replace("’", "'") for token in _TOKEN.findall(text)]


def stem(word: str) -> str:
    """A word without possessive and common endings; a number in one form, "three" and "3.0" as "3"."""
    if word[0].isdigit():
        digits = word.replace(",", "")
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    word = word.split("'")[0]
    if word in NUMBER_WORDS:
        return NUMBER_WORDS[word]
    for ending in (
        "ations",
        "ation",
        "ings",
        "ing",
        "ies",
        "ied",
        "edly",
        "ed",
        "ers",
        "er",
        "es",
        "ly",
        "s",
        "y",
        "e",
    ):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            return word[: -len(ending)]
    return word


@lru_cache(maxsize=256)
def stems(text: str) -> tuple[str, ...]:
    """The stem of every word and number, function words included, in order."""
    return tuple(stem(word) for word in words(text))


@lru_cache(maxsize=256)
def content_stems(text: str) -> tuple[str, ...]:
    """The stems of numbers and content words in order, without function words and words of asking and answering."""
    return tuple(stem(word) for word in words(text) if is_content(word))


def is_content(word: str) -> bool:
    return word not in FUNCTION_WORDS and word not in TASK_WORDS and word.split("'")[0] not in FUNCTION_WORDS


def is_number(stemmed: str) -> bool:
    return stemmed[0].isdigit()


def sentences(text: str) -> list[str]:
    """Sentences and lines, in order, without empty ones."""
    return [part.strip() for part in _SENTENCE_END.split(text) if part and part.strip()]


def ngrams(items: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    return [items[start : start + size] for start in range(len(items) - size + 1)]
