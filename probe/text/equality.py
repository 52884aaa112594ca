r"""Decide whether two answers are the same: by text, then as numbers, then by math-verify.

math-verify compares formulas. This module adds what it lacks: units, per cent, factors in words, bases, other ways to write a
number, and signs of Unicode. math-verify runs in another process with a time limit, because a model can write an answer that
keeps algebra busy for ever.
"""

from __future__ import annotations

import functools
import os
import re
import resource
import signal
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from nextturn.probe.command.errors import NextturnError
from nextturn.probe.command.timelimit import NOT_STARTED, TIMEOUT, Workers

_SECONDS, _MOST_MEMORY = 3.0, 4 * 2**30


def same_answer(given: str | None, reference: str) -> bool:
    """Return True if `given` equals `reference`; False for None, and if algebra reaches its time limit."""
    return given is not None and compare_answers(given, reference) is True


def same_at_sight(given: str, reference: str) -> bool | None:
    """Compare two answers by text and numbers; None if only algebra can decide."""
    return _any(_at_sight(*pair) for pair in _pairs(given, reference))


@functools.lru_cache(maxsize=4096)
def compare_answers(given: str, reference: str) -> bool | None:
    """Return whether two answers are the same; None if algebra needs more than _SECONDS of processor time."""
    seen = same_at_sight(given, reference)
    return _any(_algebra(*pair) for pair in _pairs(given, reference)) if seen is None else seen


def _any(verdicts: Iterable[bool | None]) -> bool | None:
    found = set(verdicts)
    return True if True in found else None if None in found else False


# --- What is written differently and means the same

_SIGNS = str.maketrans({"−": "-", "–": "-", "⁄": "/", "÷": "/", "。": ".", "、": ","} | {sign: f"\\{name} " for sign, name in zip(
    "×·⋅π∞∪∩≤≥≠", ["times", "cdot", "cdot", "pi", "infty", "cup", "cap", "le", "ge", "ne"], strict=True)})  # fmt: skip
_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_FACTORS = {name: rf"\cdot 10^{{{power}}}" for name, power in _POWERS.items()}
_FACTORS |= {"dozen": r"\cdot 12", "pi": r"\cdot \pi ", "squared": "^2", "cubed": "^3"}
FACTORS = "|".join(_FACTORS)
FUNCTIONS = r"(?:arc)?(?:sin|cos|tan|sec|csc|cot)h?|log|ln|exp|sqrt|max|min|gcd|lcm"
TEXT = r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|boldsymbol|mbox|hbox)\s*\{"
_REWRITTEN = [(re.compile(pattern), to) for pattern, to in (
    (rf"^{TEXT}([^{{}}]*)\}}$", r"\1"),
    (r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[A-Za-z])|)", r"\\sqrt{\1\2}"),
    (r"(?<!\\)\\[()\[\]]|\\?\$", ""),
    (r",\\!\s*(?=\d{3}(?!\d))|\\!|(?<=\d)(?:\\[, ]|\{,\}|~)(?=\d{3}(?!\d))", ""),
    (r"^([+-]?\d{1,3})((?: \d{3})+)(?=$|\.\d|\s*[^\d\s/.,;])", lambda found: found[1] + found[2].replace(" ", "")),
    (r"^([+-]? ?\d*)\\[dt]?frac ?(?:\{(\d+)\} ?\{(\d+)\}|(\d) ?(\d))(?=$|\s*\\?%|\s*\\text)", r"\1 \2\4/\3\5"),
    (r"^([+-]?)(\d+)\.(\d{0,9})\\overline ?\{(\d{1,9})\}$", lambda found: f"{found[1]}{int(found[2] + found[3] + found[4]) - int(found[2] + found[3])}"
     f"/{(10 ** len(found[4]) - 1) * 10 ** len(found[3])}"),
    (r"^\\begin\{([pbv]?matrix)\}([^&]*)\\end\{\1\}$", lambda found: f"({found[2].replace(chr(92) * 2, ',')})"),
    (r"(?<!\\)\\[,;: ]|~", " "),
    (r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)\s*([CF]?)$", r"\\text{degrees \1}"),
    (rf"\s*(?:{TEXT}\s*)?(?:\bper ?cent(?:age)?|\bpct|\\?%)\s*\}}?$", "%"),
    (rf"(?<=[\d}})])[\s-]*({TEXT}\s*)?\b({FACTORS})\b(\s*\}})?", lambda found: _FACTORS[found[2]] + (found[1] if found[1] and not found[3] else "")),
    (r"(?<=\d) ?(?:\\times|\\cdot|\*) ?10 ?\^ ?(?:\{([+-]?\d{1,3})\}|(\d)(?!\d))", r"e\1\2"))]  # fmt: skip
# The comma of a pair, an interval or a list stands between numbers and not in one.
_SEVERAL = re.compile(r"(?:[(\[]|\\\{)[^()\[\]]*,|,(?!\d{3}\b)|(?<!\d),|(?<!\d)\d{4,},")
# A unit is a word set apart: in "3x", "2i", "3 n" and "2abc" the letters are part of the answer.
_KNOWN = "(?:feet|foot|inch|mile|hour|week|year|yard|day|min|sec|hr|lb|gal|deg|mol|cup|ton)s?"
_WORD = rf"(?!(?:{FUNCTIONS}|mod|and|or)(?<!min|sec)\b)(?:(?<= )[A-Za-z]{{3,}}|[A-Za-z]{{5,}}|{_KNOWN}|[ck]?m/[a-z]+|[ckm]m|[km]g|[mc]l|lb|oz|ft|in|yd|mi|hr|sq|cu|[ap]\.?m\b|(?<= )[msghL]\b)\.?"
_UNIT = re.compile(rf"(?:(?<=\S)\s*{TEXT}([^{{}}]*)\}}|(?<=[\d}})]) ?({_WORD}(?: [A-Za-z./]+)*+))\s*(?:\^\s*\{{?(\d)\}}?)?$")  # fmt: skip
WRAPPED = re.compile(rf"{TEXT}([^{{}}]*)\}}")
# What abbreviations stand for, without the ending of a plural; other abbreviations have the consonants of their word.
_NAMES = {"m": "meter", "g": "gram", "l": "liter", "s": "second", "sec": "second", "min": "minut", "h": "hour", "in": "inch", "ft": "foot", "feet": "foot", "mi": "mil",
          "lb": "pound", "oz": "ounc", "mph": "mil per hour", "kph": "kilometer per hour", "deg": "degre", "gal": "gallon", "c": "celsiu", "f": "fahrenheit"}  # fmt: skip
_NAMES |= {short + unit: long + _NAMES[unit] for short, long in (("k", "kilo"), ("c", "centi"), ("m", "milli")) for unit in "mgl"}  # fmt: skip
_BASED = re.compile(rf"(\d[\dA-F]*) ?_\s*\{{?\s*(?:{TEXT})?\s*(\w+)[\s}}]*")
_NUMBER = re.compile(r"([+-]?) ?(?:(\d+) +(?=\d+/\d))?(\d+\.?\d*|\.\d+)(?:/(\d+))?(?:e([+-]?\d{1,3}))?")


def _plain(answer: str) -> str:
    """Return an answer without what stands around it, with one way to write signs, numbers, factors, per cent and degrees."""
    answer = re.sub("[⁰¹²³⁴-⁹⁻]+", lambda found: f"^{{{unicodedata.normalize('NFKC', found[0])}}}", answer)
    answer = unicodedata.normalize("NFKC", re.sub("([¼-¾⅐-⅞])", r" \1 ", answer)).translate(_SIGNS)
    for pattern, to in _REWRITTEN:
        answer = pattern.sub(to, answer.strip(" \n*`").rstrip(".,;"))
    answer = answer.strip().rstrip(".,; ")
    return answer if _SEVERAL.search(answer) else re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer)


def _apart(answer: str) -> tuple[str, str]:
    """Return an answer's value and its unit, "" if it has none."""
    plain = _plain(answer)
    unit = _UNIT.search(plain)
    if plain.endswith("%") or unit is None or not re.search(r"\d", plain[: unit.start()]):
        value, name = plain.removesuffix("%").strip(), "%" * plain.endswith("%")
    else:
        value, name = plain[: unit.start()].strip(), (unit[1] or unit[2]).casefold()
        power = unit[3] or {"sq": "2", "cu": "3"}.get(name.strip()[:2], "1")
        name = re.sub(r"tre(?=s?\b)", "ter", name.replace("/", " per "))
        name = re.sub(r"\b(?:squared?|squares|sq|cubic|cu)\b|[^\w ]", "", name)
        words = (re.sub(r"(?<=\w\w)(?:e?(?<!s)s|e)$", "", word) for word in name.split())
        name = f"{name}^{power}" if (name := " ".join(_NAMES.get(word, word) for word in words)) else ""
    return value if (number := _as_number(value)) is None else str(number), name


def _pairs(given: str, reference: str) -> list[tuple[str, str]]:
    """Return the pairs of values of which one has to be equal; none if one is empty or their units differ."""
    if given == reference or max(len(given), len(reference)) > 2000:
        return [("", "")] if given == reference and given.strip() else []
    (value, unit), (wanted, wanted_unit) = _apart(given), _apart(reference)
    both = unit and wanted_unit
    if not value or not wanted or (both and not _same_unit(unit, wanted_unit)):
        return []
    if "%" in (unit, wanted_unit) and not both:
        share = (f"({value})/100", wanted) if unit else (value, f"({wanted})/100")
        return [share, (value, wanted)] if re.fullmatch(r"[+-]?\d+", value if unit else wanted) else [share]
    return [(value, wanted)]


def _same_unit(unit: str, other: str) -> bool:
    """Return True if two units are equal, except for words behind one of them ("eggs a day"), or one abbreviates the other."""
    (short, _, power), (long, _, other_power) = (each.partition("^") for each in sorted((unit, other), key=len))
    letters = iter(long)
    abbreviated = short[0] == long[0] and (len(short) == 1 or not re.search("[aeiou]", short))
    same = short == long or long.startswith(short + " ") or (abbreviated and all(letter in letters for letter in short))
    return same and power == other_power


def _at_sight(given: str, reference: str) -> bool | None:
    if given == reference or (given.isalpha() and len(given) > 1 and given.casefold() == reference.casefold()):
        return True
    based, wanted = _BASED.fullmatch(given), _BASED.fullmatch(reference)
    if based and wanted:
        return based[1] == wanted[1] and not (based[2] != wanted[2] and (based[2] + wanted[2]).isdigit())
    if based or wanted:  # a base that is only left out is no other one
        return wanted is not None and given == wanted[1]
    number, right = _as_number(given), _as_number(reference)
    if number is None and right is not None and re.fullmatch(r"[+-]?\d+,\d+", given):
        number = _as_number(given.replace(",", "."))  # a comma for the point
    return number == right if None not in (number, right) else None


def is_number(answer: str) -> bool:
    """Return True for an answer that is one number, with or without a unit."""
    return _as_number(_apart(answer)[0]) is not None


def _as_number(value: str) -> Fraction | None:
    if not (match := _NUMBER.fullmatch(value)) or len(value) > 400 or (match[4] and not int(match[4])):
        return None
    size = Fraction(match[3]) / int(match[4] or 1) * Fraction(10) ** int(match[5] or 0) + int(match[2] or 0)
    return -size if match[1] == "-" else size


# --- Algebra in another process, which the system ends when a comparison takes too long: what a model wrote, such as
# 10^{10^{10}}, can keep algebra busy where no signal of Python's is heard. Threads take turns; a fork starts its own process.


def same_by_algebra(given: str, reference: str) -> bool:
    """Return what math-verify says, which may take for ever."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    # Units are compared already. math-verify takes the "t" of "5t" for one.
    config = replace(LatexExtractionConfig().normalization_config, units=False)
    kinds = (LatexExtractionConfig(normalization_config=config), ExprExtractionConfig())
    gold, target = (parse(f"\\boxed{{{each}}}", kinds, parsing_timeout=None) for each in (reference, given))
    return bool(gold and target and verify(gold, target, allow_set_relation_comp=True, timeout_seconds=None))


def _algebra(given: str, reference: str) -> bool | None:
    done = _workers(os.getpid()).start(_within, _SECONDS, given, reference).result()
    if done.failure.startswith(NOT_STARTED):
        why = "this machine is too busy" if done.failure.endswith(TIMEOUT) else "is it installed?"
        raise NextturnError(f"math-verify, which compares answers, cannot be loaded ({done.failure}); {why}")
    return None if done.failure else bool(done.value)


@functools.cache
def _workers(pid: int) -> Workers:
    return Workers(1, None, _prepare)


def _prepare() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # math-verify says each time that it has no time limit of its own
    same_by_algebra("\\sqrt{2}", "x")  # imports math-verify and builds its grammar, before any time limit
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))


def _within(seconds: float, given: str, reference: str) -> bool:
    """Compare within so many seconds of the processor, which a busy machine does not use up. The timer ends the process."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    return same_by_algebra(given, reference)
