"""Generated word problems from the templates of `starter.yaml`: any number of them, reproducible by seed.

Train and test never contain the same story. A hash of the template and its numbers decides the split (one combination in
five is test, whatever the names), and a few whole templates, of two steps, occur only in test. The numbers of what-if
questions and the second story of a problem come from the same split as the problem.

Problem `i` is a function of seed, split, difficulty and `i`, so each shard can be generated alone. The templates take
turns, and a template uses each combination of numbers once before one is repeated.

Many problems tell two stories and ask about one of them. One of the two stories lacks a number. If it is the story of the
question, the problem is incomplete; otherwise it is complete. So complete and incomplete problems consist of the same
sentences, and only the question tells which of the two stories matters. Other problems are short, or have additional
everyday sentences.
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
from nextturn.data_builders.tasks import Gap, Mistake, Step, Task, WhatIf
from nextturn.probe.errors import RecipeError

Split = Literal["train", "test"]

LEVELS = (1, 2, 3)  # numbers of steps
MAX_RESULT = 1000  # larger numbers would test long multiplication instead of reading
TEST_SHARE = 5  # one combination of numbers in five is test
LEAST_ROOM, MOST_ROOM = 25, 1500  # combinations of numbers per template

_SHE = {"he": "she", "him": "her", "his": "her", "He": "She", "His": "Her"}
_HE = {word: word for word in _SHE}
_PRONOUN = re.compile(r"\{(he|him|his)\}", re.IGNORECASE)


@dataclass(frozen=True)
class Given:
    """A number that a template states, and its texts; `starter.yaml` describes them."""

    key: str
    numbers: range
    sentence: str
    clause: str
    instead: str = ""
    ask: str = ""


@dataclass(frozen=True)
class Operation:
    """A step of a template. `key` names its result; operands are keys of earlier values, or whole numbers."""

    key: str
    left: str
    op: str
    right: str
    text: str
    why: str

    def operands(self, known: Mapping[str, int]) -> tuple[int, int]:
        left, right = (int(name) if name.isdigit() else known[name] for name in (self.left, self.right))
        return left, right


@dataclass(frozen=True, eq=False)  # hashed by identity
class Template:
    """A kind of problem from `starter.yaml`. A `held_out` template occurs only in the test split."""

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
    """Return the templates that occur in a split."""
    parsed = []
    for key, fields in wordings("starter.yaml")["templates"].items():
        givens, steps = [], []
        for heading, texts in fields["givens"].items():  # "a from 3 to 12", "a from 20 to 100 by 10"
            name, _, low, _, high, *by = heading.split()
            givens.append(Given(name, range(int(low), int(high) + 1, int((by or "11")[1])), **texts))
        for heading, texts in fields["steps"].items():  # "t = a * b"
            name, _, left, op, right = heading.split()
            steps.append(Operation(name, left, op, right, **texts))
        parsed.append(Template(key=key, **fields | {"givens": tuple(givens), "steps": tuple(steps)}))
    return tuple(template for template in parsed if split == "test" or not template.held_out)


# --- Arithmetic. What-if questions and mistakes are computed by the code that computes the solution.


def compute(op: str, left: int, right: int) -> int | None:
    """Return the result of an operation, or None unless it is a whole number from 2 to MAX_RESULT."""
    top, bottom = {"/": (left, right), "%": (left * right, 100)}.get(op, (0, 1))
    whole = top // bottom if bottom and top % bottom == 0 else 0
    result = {"+": left + right, "-": left - right, "*": left * right}.get(op, whole)
    return result if 2 <= result <= MAX_RESULT else None


def run(
    template: Template, values: Mapping[str, int], forced: Mapping[str, int] | None = None
) -> dict[str, int] | None:
    """Return `values` with the result of every step added, or None if a step has no valid result.

    Args:
        forced: Results of steps that replace the computed ones: a mistake, whose wrong answer is then computed.
    """
    known = dict(values)
    for step in template.steps:
        result = (forced or {}).get(step.key, compute(step.op, *step.operands(known)))
        if result is None:
            return None
        known[step.key] = result
    return known


@functools.cache
def combinations(template: Template, split: Split, largest: int) -> tuple[dict[str, int], ...]:
    """Return the numbers of a template in a split with which every step has a valid result and nothing exceeds `largest`.

    The numbers of a combination all differ, so that each number means one thing. At most `MOST_ROOM` combinations of both
    splits are used, drawn at random; a template with fewer than `LEAST_ROOM` has too little variety and gives none.
    """
    keys = [given.key for given in template.givens]
    every = list(itertools.product(*(given.numbers for given in template.givens)))
    valid: list[dict[str, int]] = []
    for numbers in random.Random(template.key).sample(every, len(every)):
        if len(set(numbers)) < len(numbers) or max(numbers) > largest:
            continue
        values = dict(zip(keys, numbers, strict=True))
        known = run(template, values)
        if known is not None and max(known.values()) <= largest:
            valid.append(values)
            if len(valid) == MOST_ROOM:
                break
    of_split = tuple(values for values in valid if split_of(template, values) == split)
    return of_split if len(valid) >= LEAST_ROOM else ()


def solve(template: Template, values: Mapping[str, int], names: Mapping[str, str]) -> tuple[Step, ...]:
    """Return the worked steps for numbers that `run` accepts. `names` fills in names, pronouns and items."""
    filled = {**names, **{key: str(value) for key, value in (run(template, values) or {}).items()}}
    steps = []
    for step in template.steps:
        left, right = (filled.get(operand, operand) for operand in (step.left, step.right))
        bare = Step("", left, step.op, right, filled[step.key], step.why.format(**filled))
        text = step.text.format(**filled, eq=bare.equation)
        steps.append(replace(bare, text=text[0].upper() + text[1:]))
    return tuple(steps)


def split_of(template: Template, values: Mapping[str, int]) -> Split:
    """Return the split of a template with these numbers, whatever the names and the wording around it."""
    if template.held_out:
        return "test"
    text = f"{template.key}:{sorted(values.items())}"
    return "test" if int(hashlib.sha256(text.encode()).hexdigest(), 16) % TEST_SHARE == 0 else "train"


# --- A problem.


def usable_templates(split: Split, levels: Sequence[int], largest: int) -> list[Template]:
    """Return the templates that have problems with these numbers of steps and no number above `largest`.

    Raises:
        RecipeError: No template has such problems.
    """
    of_level = [template for template in templates(split) if len(template.steps) in levels]
    usable = [template for template in of_level if combinations(template, split, largest)]
    if not usable:
        raise RecipeError(
            f"source: no generated problem has {' or '.join(map(str, levels))} steps and no number over {largest}; "
            "expected `levels` from 1 to 3 and `largest` of 30 or more"
        )
    return usable


@functools.lru_cache(maxsize=4)
def _in_turn(seed: int, split: Split, levels: tuple[int, ...], largest: int) -> list[tuple[Template, dict[str, int]]]:
    """Return every problem, without its wording, in the order of a seed: templates in turn, numbers shuffled."""
    rng = random.Random(f"order:{seed}:{split}")
    usable = usable_templates(split, levels, largest)
    rng.shuffle(usable)
    numbers = [rng.sample(every, len(every)) for every in (combinations(each, split, largest) for each in usable)]
    turns = itertools.zip_longest(*numbers)  # a template that has no numbers left is skipped
    return [(template, values) for turn in turns for template, values in zip(usable, turn, strict=True) if values]


def starter_problems(
    n: int, seed: int, split: Split, levels: Sequence[int] = LEVELS, largest: int = MAX_RESULT
) -> Iterator[Task]:
    """Yield the first `n` problems of a seed and split."""
    return (starter_problem(index, seed, split, levels, largest) for index in range(n))


def starter_problem(
    index: int, seed: int, split: Split, levels: Sequence[int] = LEVELS, largest: int = MAX_RESULT
) -> Task:
    """Return problem `index` of a seed and split.

    Args:
        levels: Allowed numbers of steps.
        largest: No number is larger, results included.

    Raises:
        RecipeError: No template has such problems.
    """
    order = _in_turn(seed, split, tuple(levels), largest)
    template, values = order[index % len(order)]
    rng = random.Random(f"starter:{seed}:{split}:{index}")
    story = _Story(template, _draw_names(template, rng, None), values)
    other = _draw_other(story, rng, split, levels, largest) if rng.random() < _TWO_STORIES else None
    wording = _Wording(story, other, rng)
    steps = solve(template, values, story.names)
    return Task(
        id=f"starter-{split}-{seed}-{index}",
        question=wording.question(),
        answer=steps[-1].result,
        source="starter",
        steps=steps,
        final=template.final.format(**story.names, box="{box}"),
        gaps=tuple(wording.gap(given) for given in template.givens),
        what_ifs=_what_ifs(story, split, largest, rng),
        mistakes=_mistakes(template, values),
        template=template.key,
    )


@dataclass(frozen=True)
class _Story:
    """A template with its people and numbers."""

    template: Template
    names: Mapping[str, str]
    values: Mapping[str, int]

    def filled(self, text: str, values: Mapping[str, int] | None = None) -> str:
        return text.format(**self.names, **(values or self.values))

    def sentences(self, withheld: str = "") -> list[str]:
        """Return its sentences; the sentence of the given `withheld` is replaced or left out."""
        texts = [given.instead if given.key == withheld else given.sentence for given in self.template.givens]
        sentences, named = [], False
        for text in filter(None, texts):
            pronoun = _PRONOUN.search(text)
            # A pronoun before the first name becomes the name.
            if pronoun and not named and not 0 <= text.find("{name}") < pronoun.start():
                name = "{name}'s" if pronoun[1].lower() == "his" else "{name}"
                text = text[: pronoun.start()] + name + text[pronoun.end() :]
            named = named or "{name}" in text
            sentences.append(self.filled(text))
        return sentences


def _draw_other(story: _Story, rng: random.Random, split: Split, levels: Sequence[int], largest: int) -> _Story | None:
    """Return a story as hard as `story`, about another topic and other people, that shares no number with it."""
    taken = set((run(story.template, story.values) or {}).values())
    topic, items = story.template.topic, story.names["items"]
    usable = usable_templates(split, levels, largest)
    others = [template for template in usable if template.topic != topic and items not in template.items]
    while others:
        template = others.pop(rng.randrange(len(others)))
        every = combinations(template, split, largest)
        for values in rng.sample(every, min(len(every), _ATTEMPTS)):
            if not taken & set((run(template, values) or {}).values()):
                return _Story(template, _draw_names(template, rng, story), values)
    return None


def _draw_names(template: Template, rng: random.Random, other: _Story | None) -> dict[str, str]:
    """Return a name with its pronouns, a friend, and an item. All names, those of `other` too, have different initials."""
    women, men = wordings("starter.yaml")["names"].values()
    taken = other.names["name"][0] + other.names["friend"][0] if other else ""
    name = rng.choice([name for name in women + men if name[0] not in taken])
    friend = rng.choice([friend for friend in women + men if friend[0] not in taken + name[0]])
    return {"name": name, "friend": friend, "items": rng.choice(template.items), **(_SHE if name in women else _HE)}


# Share of the problems with two stories, and share of the others with everyday sentences.
_TWO_STORIES, _EVERYDAY = 0.8, 0.5
_ATTEMPTS = 50  # combinations that are tried for the other story, before the next template is tried


class _Wording:
    """The text of a problem. Everything around its story is drawn once, so its versions differ in one given only."""

    def __init__(self, story: _Story, other: _Story | None, rng: random.Random) -> None:
        self.story, self.other = story, other
        self.other_gap = rng.choice(other.template.givens).key if other else ""
        self.other_first = rng.random() < 0.5
        words = wordings("starter.yaml")
        texts = [
            text for text in (*words["topics"][story.template.topic], *words["general"]) if not _PRONOUN.search(text)
        ]
        count = rng.choice((1, 1, 2, 3)) if other is None and rng.random() < _EVERYDAY else 0
        self.everyday = [text.format(**story.names) for text in rng.sample(texts, count + 1)]

    def question(self, withheld: str = "") -> str:
        """Return the whole question, or the question without the given `withheld`.

        Without it the other story, if there is one, is complete; otherwise one more everyday sentence makes up the length.
        """
        story = self.story.sentences(withheld)
        asked = self.story.template.question.format(**self.story.names)
        if self.other is None:
            return " ".join([*(self.everyday if withheld else self.everyday[:-1]), *story, asked])
        other = self.other.sentences("" if withheld else self.other_gap)
        return " ".join([*other, *story, asked] if self.other_first else [*story, *other, asked])

    def gap(self, given: Given) -> Gap:
        """Return the problem with this given withheld."""
        filled, value = self.story.filled, str(self.story.values[given.key])
        reveal, clause = filled(given.sentence), filled(given.clause)
        ask = filled(given.ask) or f"{clause[0].upper()}{clause[1:]}?"
        return Gap(self.question(given.key), clause, ask, reveal, _amount(value, reveal), value)


def lower_first(text: str) -> str:
    """Return the text with its first letter in lower case, unless it starts with a name."""
    first = re.split(r"\W", text, maxsplit=1)[0]
    names = *itertools.chain(*wordings("starter.yaml")["names"].values()), "Monday", "Tuesday", "Wednesday"
    return text if first in names else text[:1].lower() + text[1:]


# Words that follow a number and are not what it counts: "3 times as many", "12 years older".
_UNCOUNTED = ("times", "is", "has", "as")


def _amount(value: str, sentence: str) -> str:
    """Return a number as its sentence has it, with the noun that it counts: "12 marbles", "$12", "20%"."""
    match = re.search(rf"\$?\b{value}\b%?(?: ((?:[a-z]+ )?(?:[a-zT-]+s|people|children)(?: per hour)?)\b)?", sentence)
    if match is None:
        return value
    noun = match.group(1) or ""
    return match.group().removesuffix(f" {noun}") if noun.rpartition(" ")[2] in _UNCOUNTED else match.group()


# --- What could be changed, and what could go wrong.


def _what_ifs(story: _Story, split: Split, largest: int, rng: random.Random) -> tuple[WhatIf, ...]:
    """Return for each given, if possible, another number with which every step has a valid result."""
    template, values = story.template, story.values
    before = solve(template, values, story.names)
    what_ifs = []
    for given in template.givens:
        for _ in range(40):
            changed = {**values, given.key: rng.choice(given.numbers)}
            fits = len(set(changed.values())) == len(changed) and changed != values
            known = run(template, changed) if fits and split_of(template, changed) == split else None
            if known is None or max(known.values()) > largest:
                continue
            after = solve(template, changed, story.names)
            steps = tuple(new for old, new in zip(before, after, strict=True) if new != old)
            if steps and steps[-1].result != before[-1].result:
                condition = lower_first(story.filled(given.sentence, changed).rstrip("."))
                what_ifs.append(WhatIf(re.sub(r"^then ", "", condition), steps, steps[-1].result))
                break
    return tuple(what_ifs)


def _mistakes(template: Template, values: Mapping[str, int]) -> tuple[Mistake, ...]:
    """Return plausible wrong results, all whole numbers.

    Somebody stops before the last step, adds instead of multiplying, subtracts instead of dividing, or forgets to carry or
    borrow a ten.
    """
    known = run(template, values)
    assert known is not None
    last = template.steps[-1].key
    mistakes = []
    for at, step in enumerate(template.steps):
        left, right = step.operands(known)
        result = known[step.key]
        if step.key != last and result != known[last]:
            mistakes.append(Mistake(at, "", str(result)))
        wrong_steps = {"*": [("+", left + right)], "/": [("-", left - right)]}.get(step.op, [])
        if step.op == "+" and left % 10 + right % 10 >= 10:
            wrong_steps.append(("+", result - 10))
        if step.op == "-" and left % 10 < right % 10:
            wrong_steps.append(("-", result + 10))
        for op, wrong in wrong_steps:
            carried = run(template, values, {step.key: wrong}) if wrong >= 2 and wrong != result else None
            if carried and carried[last] != known[last]:
                mistakes.append(Mistake(at, f"{left} {op} {right} = {wrong}", str(carried[last])))
    return tuple(mistakes)
