"""Written forms of the messages around a problem in pieces, and the words of the problem and its solution that fill their slots.

Nothing here understands the text. A slot is filled only where a pattern finds words that read well in every form, and a form is
used only if all its slots are filled. `pieces.yaml` has the forms and describes the slots.
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set

from nextturn.data_builders.duplicates import masked
from nextturn.data_builders.recipe import wordings
from nextturn.data_builders.text import equations, states
from nextturn.probe.shards import Shards

MOST = 3
"""Messages of a build that may be equal except for numbers and names."""
Slots = dict[str, str]
_SLOT = re.compile(r"\{(\w+)\}")


@functools.cache
def forms(kind: str) -> tuple[str, ...]:
    """Return the forms of a kind: first, rest, reaction or reply."""
    return tuple(wordings("pieces.yaml")[kind].splitlines())


@functools.cache
def _words(name: str) -> frozenset[str]:
    return frozenset(wordings("pieces.yaml")["words"][name].split())


class Wordings:
    """Draws forms so that a build uses all of them about equally often.

    Attributes:
        used: How often the rows kept so far have each form, and each text without its numbers and names.
    """

    def __init__(self) -> None:
        self.used: Counter[str] = Counter()

    def draw(
        self, kind: str, rng: random.Random, slots: Slots, taken: Iterable[str] = (), most: float = float("inf")
    ) -> tuple[str, str] | None:
        """Return one of the forms that were used least, and its text; None if no form is left that these slots fill.

        Args:
            taken: Forms that the same row already has.
            most: Uses of a form at most.
        """
        left = [form for form in forms(kind) if form not in taken and slots.keys() >= set(_SLOT.findall(form))]
        rng.shuffle(left)
        texts = (
            (form, filled(form, slots)) for form in sorted(left, key=self.used.__getitem__) if self.used[form] < most
        )
        return next(((form, text) for form, text in texts if self.used[masked(text)] < MOST), None)

    def remember(self, used: Sequence[str], texts: Iterable[str]) -> None:
        """Count the forms of a kept row and their texts. A message that has no form has "" in place of it."""
        self.used.update(key for form, text in zip(used, texts, strict=True) if form for key in (form, masked(text)))


def filled(form: str, slots: Slots) -> str:
    """Return a form with its slots filled. A slot that begins a sentence gets a capital letter."""

    def fill(match: re.Match[str]) -> str:
        text, begins = slots[match[1]], re.search(r"(?:^|[.?!] )\Z", form[: match.start()])
        return text[:1].upper() + text[1:] if begins else text

    return _SLOT.sub(fill, form)


# --- Slots of the question and of the facts.

_AUX = r"(?:do|does|did|is|are|was|were|will|would|can|could|should|has|have|had|must|may|need)\b"
_MANY = re.compile(rf"\b[Hh]ow many ((?:more|fewer|less|total|additional|extra|other) )*([a-z][a-z' -]*?) {_AUX}")
_MUCH = re.compile(rf"\b[Hh]ow much ([a-z]+(?: [a-z]+)?) {_AUX}")
_WHAT = re.compile(
    r"\b[Ww]hat(?:'s| is| was| will be| would be) ((?:the|his|her|their) [a-z][\w'-]*(?: [\w'-]+){0,6}?)"
    r"(?=\?|,| (?:after|if|when|in|at|on|per|for|that|from|by|this|over|during|who|with|before|to)\b)"
)
_VERBS = {
    "cost": "the cost", "weigh": "the weight", "spend": "the amount spent", "pay": "the amount paid", "owe": "the amount owed",
    "earn": "the amount earned", "save": "the amount saved", "old": "the age", "far": "the distance", "tall": "the height", "fast": "the speed",
}  # fmt: skip
_VERB = re.compile(
    rf"\b[Hh]ow (?:much {_AUX}.*? ({'|'.join(list(_VERBS)[:7])})\b|({'|'.join(list(_VERBS)[7:])}) {_AUX})"
)
_FIGURE = re.compile(
    r"(?<![\w/.:,-])(?:\$\d[\d,]*(?:\.\d+)?|\d[\d,]*(?:\.\d+)?%|(?<!by )\d\d+)(?![\w/:%-]|[.,]\d| percent| by | \w+/)"
)
_NAMES = re.compile(r"([a-z]+,?) ([A-Z][\w.'’-]*(?: [A-Z][\w.'’-]*)*)(?= ?([a-z]*))")
_SPEAKERS = re.compile(r"\b(?:I|I'\w+|[Mm]y|[Mm]e|[Ww]e|[Oo]ur|[Uu]s|[Yy]ou|[Yy]our)\b")
_LONGEST = 14  # words of a clause


def question_slots(wish: str) -> Slots:
    """Return the slots that a question fills."""
    slots = {} if '"' in wish else {"wish": wish}
    many, much, what, verb = (pattern.search(wish) for pattern in (_MANY, _MUCH, _WHAT, _VERB))
    words = many[2].split() if many else []
    head, *rest = " ".join(words).split(" of ")
    if _plural(head.split(" ")[-1]) and len(rest) < 2 and not _words("stopped") & {*words} - {"of"}:
        slots["thing"] = " ".join(words)
    if "thing" in slots and many and not many[1]:
        slots["goal"] = f"the number of {slots['thing']}"
    elif (
        much
        and not _words("stopped") & {*much[1].split()}
        and not much[1].startswith(("more", "less", "older", "time"))
    ):
        slots["goal"] = f"the amount of {much[1]}"
    elif what and not _SPEAKERS.search(what[1]):
        slots["goal"] = what[1]
    elif verb and " more " not in wish:
        slots["goal"] = _VERBS[verb[1] or verb[2]]
    if names := list(_names(wish)):
        slots["who"] = names[0]
    return slots


def fact_slots(pieces: Shards, told: int) -> Slots:
    """Return the slots after the fact number `told`, counted from 0."""
    fact, facts = pieces.facts[told], pieces.facts[: told + 1]
    slots, known = question_slots(pieces.wish), " ".join([pieces.wish, *facts])
    slots.pop("who", None)
    if _head(slots.get("thing", "-")) in " ".join(facts):
        slots.pop("thing", None)
    amounts = list(_amounts(fact))
    if amounts and len(amounts) < 4:
        slots["amounts"] = _listed([phrase for phrase, _ in amounts])
        noun = amounts[-1][1]
        if _head(noun) in slots.get("goal", ""):
            del slots["goal"]
        elif _head(noun) not in _words("units"):
            slots["noun"] = noun
        if before := [phrase for phrase, _ in _amounts(pieces.facts[told - 1])] if told else []:
            slots |= (
                {"before": _listed(before)} if len(before) < 3 and before != [phrase for phrase, _ in amounts] else {}
            )
    elif not amounts and len(figures := _FIGURE.findall(fact)) == 1:
        slots["figure"] = figures[0]
    short = len(fact.split()) <= _LONGEST and fact.endswith(".") and '"' not in fact
    first, _, rest = fact.partition(" ")
    known_name = first in _names(known) or rest.split(" ")[0] in _words("verbs")
    if known_name and re.fullmatch("[A-Z][a-z]+", first) and first.lower() not in _words("clause") | _words("unnamed"):
        slots["name"] = first
    if short:
        slots["quote"] = fact
    if short and not _SPEAKERS.search(fact) and ("name" in slots or first.lower() in _words("clause")):
        clause = fact.removesuffix(".")
        slots["so"] = clause if "name" in slots else clause[:1].lower() + clause[1:]
    if others := [name for name in _names(known) if not any(name in " ".join(each.split()[:4]) for each in facts)]:
        slots["other"] = others[-1]
    return slots


def _head(phrase: str) -> str:
    """Return the word that a phrase is about: "pairs" of "new pairs of jeans"."""
    return phrase.partition(" of ")[0].split()[-1]


def _plural(word: str) -> bool:
    if word in _words("irregular"):
        return True
    return re.fullmatch(r"[a-z-]{3,}(?<![sui])s", word) is not None and word not in _words("uncounted")


def _amounts(fact: str) -> Iterator[tuple[str, str]]:
    """Yield each amount of a fact with what it counts: ("9 more truck stamps", "truck stamps")."""
    words = fact.split()
    for start, number in enumerate(words):
        if not re.fullmatch(r"\d[\d,]*(?:\.\d+)?", number) and number.lower() not in _words("numbers"):
            continue
        for end in range(start + 1, min(start + 4, len(words))):
            word, (joins, thing, after) = words[end].rstrip(",.;:?!"), [*words[end + 1 : end + 4], "", "", ""][:3]
            if _plural(word):
                more = joins if word == words[end] else ""
                ends = thing[-1:] in (".", ",") or after.lower() in _words("stopped")
                of = more == "of" and re.fullmatch("[a-z]+[.,]?", thing) and thing not in _words("stopped") and ends
                rate = more in ("per", "a", "an", "each", "every") and re.fullmatch(
                    "(?:hour|day|week|month|year|minute|person)[.,]?", thing
                )
                phrase = [
                    number.lower(),
                    *words[start + 1 : end],
                    word,
                    *([joins, thing.rstrip(".,")] if of or rate else []),
                ]
                counted = phrase[1 : -2 if rate else None]
                if more not in _words("older"):
                    yield " ".join(phrase), " ".join(each for each in counted if each not in _words("dropped"))
                break
            if word != words[end] or word in _words("stopped") or not re.fullmatch("[a-z-]+", word):
                break


def _names(text: str) -> dict[str, None]:
    """Return the names inside the sentences of a text, in order: single words with a capital where a name can stand."""
    found = ((match[1], re.sub(r"['’]s?\Z", "", match[2].rstrip(".")), match[3]) for match in _NAMES.finditer(text))
    return {
        name: None
        for before, name, after in found
        if re.fullmatch("[A-Z][a-z]{2,}", name) and name.lower() not in _words("unnamed")
        if (before in _words("introduces") or before.endswith(",")) and not (_plural(after) and before in ("and", "with", "for"))
    }  # fmt: skip


def _listed(phrases: Sequence[str]) -> str:
    *most, last = dict.fromkeys(phrases)
    return f"{', '.join(most)} and {last}" if most else last


# --- Slots of a solution.

_AS_TEXT = (
    (r"```.*?(?:```|\Z)", "\n"), (r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", r"\1 / \2"), (r"\\(?:text\w*|math\w+)\{([^{}]*)\}", r"\1"),
    (r"\\times|\\cdot", "×"), (r"\\div", "÷"), (r"\\([$%])", r"\1"), (r"\\[][()\\,;! ]|\*\*|\$\$", " "), (r":\s+(?![-*•#]|\d+\.)", ": "),
)  # fmt: skip
"""LaTeX as a user would read it, and an introduction in one line with what it introduces."""
_SENTENCES = re.compile(r"\s*\n+\s*(?:[-*•#]+ |\d+\. )?\s*|(?<=[.?!])(?<!\b[A-Z]r\.)(?<!\bMrs\.) +(?=[A-Z])")
_LABEL = re.compile(
    r"(?:^|[,:.] |\b[Tt]he )((?:[Tt]otal |[Aa]verage )?(?:[Nn]umber|[Aa]mount|[Cc]ost|[Pp]rice|[Dd]istance|[Tt]ime|[Ww]eight|[Aa]ge|[Pp]rofit)"
    r" [^-+=:.,\d$?]{3,60}?)\s*(?:=|\bis:?|\bwas:?)\s*\$?\Z"
)
_OPENS = re.compile(r"(?:So|Therefore|Thus|Hence|Now|Next|Then|First|Finally|However|Also),? (?!calculate|find|we)")
_FEWEST, _MOST = 4, 35  # words of a line with a step


def step_slots(solution: str, told: Sequence[str]) -> list[Slots]:
    """Return the slots of each step that can be asked about: an equation that holds, with a result that the user has not said.

    Args:
        told: The messages of the user.
    """
    for pattern, text in _AS_TEXT:
        solution = re.sub(pattern, text, solution, flags=re.DOTALL)
    steps: list[Slots] = []
    for sentence in map(str.strip, _SENTENCES.split(solution)):
        line = _OPENS.sub("", " ".join(sentence.split()).rstrip(".:; "))
        line = line[:1].upper() + line[1:]
        if re.search(r"[\\?\"{_]", line) or not _FEWEST <= len(re.findall("[A-Za-z]{2,}", line)) <= _MOST:
            continue
        for step in list(equations(line))[-1:]:
            said = any(states(text, step.result) for text in told)
            if said or not step.is_true or "%" in line[step.start : step.end] or not step.left[-1].isdigit():
                continue
            value = ("$" if line[step.at - 1] == "$" else "") + step.result
            slots = {"value": value, "left": step.left_shown, "line": line}
            if (noun := re.match(r" ([a-z]+)\b", line[step.end :])) and _plural(noun[1]) and step.result != "1":
                slots["counted"] = f"{value} {noun[1]}"
            if label := _LABEL.search(line[: step.start]):
                slots["label"] = label[1][:1].lower() + label[1][1:]
            steps.append(slots | _source(step.left, line, told, {earlier["value"].strip("$") for earlier in steps}))
    return steps


def _source(left: str, line: str, told: Sequence[str], results: Set[str]) -> Slots:
    """Return a number of a step and the fact that it comes from: the only one with this number, and about the same thing."""
    for number in re.findall(r"\d+(?:\.\d+)?", left):
        facts = [text for text in told if states(text.replace(",", ""), number)]
        only = facts[0] if len(facts) == 1 and number not in results else told[0]
        same = set(re.findall("[a-z]{4,}", line.lower())) & set(re.findall("[a-z]{4,}", only.lower()))
        if same and only != told[0] and '"' not in only:
            return {"number": number, "fact": only}
    return {}
