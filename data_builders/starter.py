"""The embedded source: grade-school word problems from the templates of `starter.yaml`, any number of them, seeded.

Train and test cannot tell the same story: a hash of the template and its numbers decides the split (one combination in
five is test, whatever the names), and a few whole templates, of two steps, occur in test only. What-if numbers and the
story that nobody asks about come from the same split as the problem.
Problem `i` of a seed is a function of seed, split, difficulty and `i` alone, so any shard can be made by itself. The
templates take turns, and each one uses a combination of numbers once before any of them comes again.

Many problems tell two stories and ask about one of them. One story lacks a number: where it is the one that is asked
about, something is missing, else nothing is. So complete and incomplete problems are made of the same sentences, and
only who follows the question to its story can tell them apart. Others are short, or have further sentences about the day.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from nextturn.data_builders.recipe import wordings
from nextturn.data_builders.tasks import Gap, Slip, Step, Task, WhatIf
from nextturn.probe.errors import RecipeError

Split = Literal["train", "test"]

LEVELS = (1, 2, 3)  # numbers of steps
MAX_RESULT = 1000  # larger numbers test long multiplication, not the reading of a problem
TEST_SHARE = 5  # one combination in so many
LEAST_ROOM, MOST_ROOM = 25, 1500  # combinations of numbers of a template

_SHE = {"he": "she", "him": "her", "his": "her", "He": "She", "His": "Her"}
_HE = {word: word for word in _SHE}
_PRONOUN = re.compile(r"\{(he|him|his)\}", re.IGNORECASE)


@dataclass(frozen=True)
class Given:
    """A given of a template and the numbers it may take: `sentence` states it, `clause` and `ask` name it, `instead` stands
    in its place."""

    key: str
    numbers: range
    sentence: str
    clause: str
    instead: str = ""
    ask: str = ""


@dataclass(frozen=True)
class Operation:
    """A step of a template, what it says, and why its operation fits. `key` names its result; operands are keys or whole
    numbers."""

    key: str
    left: str
    op: str
    right: str
    text: str
    why: str

    def operands(self, known: Mapping[str, int]) -> tuple[int, int]:
        left, right = (int(one) if one.isdigit() else known[one] for one in (self.left, self.right))
        return left, right


@dataclass(frozen=True, eq=False)  # hashed by identity
class Template:
    """One kind of problem, as `starter.yaml` writes it. `held_out` ones occur in the test split only."""

    key: str
    topic: str
    items: list[str]
    givens: tuple[Given, ...]
    steps: tuple[Operation, ...]
    question: str
    final: str
    held_out: bool = False


@functools.cache
def templates(split: Split) -> tuple[Template, ...]:
    """The templates that occur in a split."""
    found = []
    for key, told in wordings("starter.yaml")["templates"].items():
        givens = []
        for heading, words in told["givens"].items():  # "a from 3 to 12", "a from 20 to 100 by 10"
            name, _, low, _, high, *by = heading.split()
            givens.append(Given(name, range(int(low), int(high) + 1, int((by or "11")[1])), **words))
        steps = []
        for heading, words in told["steps"].items():  # "t = a * b"
            name, _, left, op, right = heading.split()
            steps.append(Operation(name, left, op, right, **words))
        rest = {name: value for name, value in told.items() if name not in ("givens", "steps")}
        found.append(Template(key=key, givens=tuple(givens), steps=tuple(steps), **rest))
    return tuple(template for template in found if split == "test" or not template.held_out)


# --- The arithmetic. A what-if question and a wrong way are computed by the code that computes the solution, and so
# cannot disagree with it.


def compute(op: str, left: int, right: int) -> int | None:
    """The result, or None where it is no whole number from 2 to MAX_RESULT."""
    top, bottom = {"/": (left, right), "%": (left * right, 100)}.get(op, (0, 1))
    whole = top // bottom if bottom and top % bottom == 0 else 0
    result = {"+": left + right, "-": left - right, "*": left * right}.get(op, whole)
    return result if 2 <= result <= MAX_RESULT else None


def run(
    template: Template, values: Mapping[str, int], forced: Mapping[str, int] | None = None
) -> dict[str, int] | None:
    """All values with every step's result added; None where a step does not come out.

    `forced` fixes results of steps, which is how a mistake is carried on to its wrong answer.
    """
    known = dict(values)
    for operation in template.steps:
        result = (forced or {}).get(operation.key, compute(operation.op, *operation.operands(known)))
        if result is None:
            return None
        known[operation.key] = result
    return known


@functools.cache
def combinations(template: Template, split: Split, largest: int) -> tuple[dict[str, int], ...]:
    """Return numbers of a template in a split for which every step comes out and nothing exceeds `largest`.

    All givens of a combination differ, so that a number names one thing. Of a template with more than `MOST_ROOM`
    combinations a fixed random part is taken; one with fewer than `LEAST_ROOM` has no room for variety and returns none.
    """
    keys = [slot.key for slot in template.givens]
    every = list(itertools.product(*(slot.numbers for slot in template.givens)))
    found: list[dict[str, int]] = []
    for numbers in random.Random(template.key).sample(every, len(every)):
        if len(set(numbers)) < len(numbers) or max(numbers) > largest:
            continue
        known = run(template, dict(zip(keys, numbers, strict=True)))
        if known is not None and max(known.values()) <= largest:
            found.append({key: known[key] for key in keys})
            if len(found) == MOST_ROOM:
                break
    of_split = tuple(values for values in found if split_of(template, values) == split)
    return of_split if len(found) >= LEAST_ROOM else ()


def solve(template: Template, values: Mapping[str, int], names: Mapping[str, str]) -> tuple[Step, ...]:
    """The worked steps for numbers that `run` accepts. `names` fills names, pronouns and items."""
    filled = {**names, **{key: str(value) for key, value in (run(template, values) or {}).items()}}
    steps = []
    for one in template.steps:
        left, right = (filled.get(operand, operand) for operand in (one.left, one.right))
        bare = Step("", left, one.op, right, filled[one.key], one.why.format(**filled))
        text = one.text.format(**filled, eq=bare.equation)
        steps.append(replace(bare, text=text[0].upper() + text[1:]))
    return tuple(steps)


def split_of(template: Template, values: Mapping[str, int]) -> Split:
    """Which split a template with these numbers belongs to, whatever the names and the wording around it."""
    if template.held_out:
        return "test"
    text = f"{template.key}:{sorted(values.items())}"
    return "test" if int(hashlib.sha256(text.encode()).hexdigest(), 16) % TEST_SHARE == 0 else "train"


# --- A problem.


def stories(split: Split, levels: Sequence[int], largest: int) -> list[Template]:
    """Return the templates that have problems of these numbers of steps with no number above `largest`.

    Raises:
        RecipeError: No template has such problems.
    """
    wanted = [template for template in templates(split) if len(template.steps) in levels]
    found = [template for template in wanted if combinations(template, split, largest)]
    if not found:
        raise RecipeError(
            f"source: no starter problem has {' or '.join(map(str, levels))} steps and no number over "
            f"{largest}; levels go from 1 to 3, and largest wants 30 or more"
        )
    return found


@functools.lru_cache(maxsize=4)
def _in_turn(seed: int, split: Split, levels: tuple[int, ...], largest: int) -> list[tuple[Template, dict[str, int]]]:
    """Return every different problem, without its wording, in the order of a seed: templates in turn, numbers shuffled.

    When a template has no numbers left, the others go on.
    """
    rng = random.Random(f"order:{seed}:{split}")
    found = stories(split, levels, largest)
    rng.shuffle(found)
    numbers = [rng.sample(every, len(every)) for every in (combinations(one, split, largest) for one in found)]
    turns = itertools.zip_longest(*numbers)
    return [(one, values) for turn in turns for one, values in zip(found, turn, strict=True) if values]


def starter_problems(
    n: int, seed: int, split: Split, levels: Sequence[int] = LEVELS, largest: int = MAX_RESULT
) -> Iterator[Task]:
    """The first `n` problems of this seed and split."""
    return (starter_problem(index, seed, split, levels, largest) for index in range(n))


def starter_problem(
    index: int, seed: int, split: Split, levels: Sequence[int] = LEVELS, largest: int = MAX_RESULT
) -> Task:
    """Return problem `index` of this seed and split, with one of these numbers of steps and no number above `largest`.

    Raises:
        RecipeError: No template has problems as hard as wanted.
    """
    order = _in_turn(seed, split, tuple(levels), largest)
    template, values = order[index % len(order)]
    rng = random.Random(f"starter:{seed}:{split}:{index}")
    story = _Story(template, _draw_names(template, rng, None), values)
    other = _draw_beside(story, rng, split, levels, largest) if rng.random() < _TWO_STORIES else None
    wording = _Wording(story, other, rng)
    steps = solve(story.template, story.values, story.names)
    return Task(
        id=f"starter-{split}-{seed}-{index}",
        question=wording.question(),
        answer=steps[-1].result,
        source="starter",
        steps=steps,
        final=story.template.final.format(**story.names, box="{box}"),
        gaps=tuple(wording.gap(slot) for slot in story.template.givens),
        what_ifs=_what_ifs(story, split, largest, rng),
        slips=_slips(story.template, story.values),
        template=story.template.key,
    )


@dataclass(frozen=True)
class _Story:
    """A template with its people and numbers."""

    template: Template
    names: Mapping[str, str]
    values: Mapping[str, int]

    def filled(self, text: str, values: Mapping[str, int] | None = None) -> str:
        return text.format(**self.names, **(values or self.values))

    def told(self, withheld: str = "") -> list[str]:
        """Its sentences; that of the given `withheld` says nothing of the number, or is left out."""
        texts = [slot.instead if slot.key == withheld else slot.sentence for slot in self.template.givens]
        told, known = [], False
        for text in filter(None, texts):  # no pronoun stands before its name
            pronoun = _PRONOUN.search(text)
            first = pronoun and not known and not 0 <= text.find("{name}") < pronoun.start()
            if first and pronoun:
                own = "{name}'s" if pronoun[1].lower() == "his" else "{name}"
                text = text[: pronoun.start()] + own + text[pronoun.end() :]
            known = known or "{name}" in text
            told.append(self.filled(text))
        return told


def _draw_beside(story: _Story, rng: random.Random, split: Split, levels: Sequence[int], largest: int) -> _Story | None:
    """Return a story as hard as `story`, about something else and other people, that shares no number with it."""
    taken = set((run(story.template, story.values) or {}).values())
    left = [one for one in stories(split, levels, largest) if one.topic != story.template.topic]
    left = [one for one in left if story.names["items"] not in one.items]
    while left:
        template = left.pop(rng.randrange(len(left)))
        every = combinations(template, split, largest)
        for values in rng.sample(every, min(len(every), _TRIES)):
            if not taken & set((run(template, values) or {}).values()):
                return _Story(template, _draw_names(template, rng, story), values)
    return None


def _draw_names(template: Template, rng: random.Random, beside: _Story | None) -> dict[str, str]:
    """A name with its pronouns, a friend, and one of the template's items; no two names begin alike, nor as those `beside`."""
    women, men = wordings("starter.yaml")["names"].values()
    taken = beside.names["name"][0] + beside.names["friend"][0] if beside else ""
    name = rng.choice([one for one in women + men if one[0] not in taken])
    friend = rng.choice([one for one in women + men if one[0] not in taken + name[0]])
    return {"name": name, "friend": friend, "items": rng.choice(template.items), **(_SHE if name in women else _HE)}


# Of all problems: those that tell two stories, and of the others those with sentences about the day.
_TWO_STORIES, _EVERYDAY = 0.8, 0.5
_TRIES = 50  # combinations that are tried for the story beside, before another template is tried


class _Wording:
    """The text of one problem. What stands around its story is drawn once, so that its versions differ in one given only."""

    def __init__(self, story: _Story, other: _Story | None, rng: random.Random) -> None:
        self.story, self.other = story, other
        self.other_gap = rng.choice(self.other.template.givens).key if self.other else ""
        self.other_first = rng.random() < 0.5
        words = wordings("starter.yaml")
        everyday = [
            text for text in (*words["topics"][story.template.topic], *words["general"]) if not _PRONOUN.search(text)
        ]
        count = rng.choice((1, 1, 2, 3)) if self.other is None and rng.random() < _EVERYDAY else 0
        self.everyday = [text.format(**story.names) for text in rng.sample(everyday, count + 1)]

    def question(self, withheld: str = "") -> str:
        """The whole question, or without the given `withheld`: then the other story, if there is one, lacks nothing, and
        else a sentence about the day makes up for the one that is left out."""
        story = self.story.told(withheld)
        asked = self.story.template.question.format(**self.story.names)
        if self.other is None:
            day = self.everyday if withheld else self.everyday[:-1]
            return " ".join([*day, *story, asked])
        other = self.other.told("" if withheld else self.other_gap)
        return " ".join([*other, *story, asked] if self.other_first else [*story, *other, asked])

    def gap(self, slot: Given) -> Gap:
        """The problem with this given withheld."""
        filled, value = self.story.filled, str(self.story.values[slot.key])
        reveal, clause = filled(slot.sentence), filled(slot.clause)
        ask = filled(slot.ask) or f"{clause[0].upper()}{clause[1:]}?"
        return Gap(self.question(slot.key), clause, ask, reveal, _amount(value, reveal), value)


def lower_first(text: str) -> str:
    """The text for the middle of a sentence: its first letter small, unless it begins with a name."""
    first = re.split(r"\W", text, maxsplit=1)[0]
    named = *itertools.chain(*wordings("starter.yaml")["names"].values()), "Monday", "Tuesday", "Wednesday"
    return text if first in named else text[:1].lower() + text[1:]


# What follows a number and is not what it counts: "3 times as many", "12 years older".
_UNCOUNTED = ("times", "is", "has", "as")


def _amount(value: str, sentence: str) -> str:
    """The number as it stands in its sentence, with what it counts where that follows: "12 marbles", "$12", "20%"."""
    match = re.search(rf"\$?\b{value}\b%?(?: ((?:[a-z]+ )?(?:[a-zT-]+s|people|children)(?: per hour)?)\b)?", sentence)
    if match is None:
        return value
    counted = match.group(1) or ""
    return match.group().removesuffix(f" {counted}") if counted.rpartition(" ")[2] in _UNCOUNTED else match.group()


# --- What could be changed or go wrong.


def _what_ifs(story: _Story, split: Split, largest: int, rng: random.Random) -> tuple[WhatIf, ...]:
    """For each given, one other number for which everything still comes out and stays small, computed anew."""
    template, values = story.template, story.values
    before = solve(template, values, story.names)
    found = []
    for slot in template.givens:
        for _ in range(40):
            changed = {**values, slot.key: rng.choice(slot.numbers)}
            fits = len(set(changed.values())) == len(changed) and changed != values
            known = run(template, changed) if fits and split_of(template, changed) == split else None
            if known is None or max(known.values()) > largest:
                continue
            after = solve(template, changed, story.names)
            steps = tuple(new for old, new in zip(before, after, strict=True) if new != old)
            if steps and steps[-1].result != before[-1].result:
                condition = lower_first(story.filled(slot.sentence, changed).rstrip("."))
                found.append(WhatIf(re.sub(r"^then ", "", condition), steps, steps[-1].result))
                break
    return tuple(found)


def _slips(template: Template, values: Mapping[str, int]) -> tuple[Slip, ...]:
    """Return plausible wrong results, all whole numbers: stopping before the last step, plus in place of times, minus in
    place of division, and a ten that was not carried or borrowed."""
    known = run(template, values)
    assert known is not None
    last = template.steps[-1].key
    slips = []
    for at, operation in enumerate(template.steps):
        left, right = operation.operands(known)
        result = known[operation.key]
        if operation.key != last and result != known[last]:
            slips.append(Slip(at, "", str(result)))
        ways = {"*": [("+", left + right)], "/": [("-", left - right)]}.get(operation.op, [])
        if operation.op == "+" and left % 10 + right % 10 >= 10:
            ways.append(("+", result - 10))
        if operation.op == "-" and left % 10 < right % 10:
            ways.append(("-", result + 10))
        for op, wrong in ways:
            carried = run(template, values, {operation.key: wrong}) if wrong >= 2 and wrong != result else None
            if carried and carried[last] != known[last]:
                slips.append(Slip(at, f"{left} {op} {right} = {wrong}", str(carried[last])))
    return tuple(slips)
