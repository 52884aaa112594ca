"""The embedded source: grade-school word problems from our own templates, any number of them, seeded.

Train and test cannot share a problem: a hash of the template and its numbers decides the split (one
combination in five is test, whatever the names), and a few whole templates occur in test only. What-if
numbers come from the same split as the problem. Problem `i` of a seed is a function of seed, split and `i`
alone, so any shard can be made by itself.

Lengths are mixed on purpose: one or two sentences for some, four to seven for others, whose further
sentences tell of the day and the place and at times say "some" of something that does not matter. A model
that sees only short complete problems begins to ask about what is there as soon as a question is longer.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from data_builders.starter_things import other_of, short_of, thing_of
from data_builders.starter_words import CONTEXTS, GENERAL, lower_first, words_for
from data_builders.tasks import Gap, Given, Slip, Task, WhatIf
from data_builders.template import MAX_RESULT, Template, compute, draw_values, run, solve
from data_builders.templates_counts import COUNTS
from data_builders.templates_measures import MEASURES
from probe.errors import RecipeError

Split = Literal["train", "test"]
Layout = Literal["joined", "if", "plain", "long"]

TEMPLATES: tuple[Template, ...] = COUNTS + MEASURES
_TRAIN = tuple(template for template in TEMPLATES if not template.held_out)
_PRONOUN = re.compile(r"\{(he|him|his)\}", re.IGNORECASE)
TEST_SHARE = 5  # one combination in so many


def split_of(template: Template, values: Mapping[str, int]) -> Split:
    """Which split a template with these numbers belongs to, whatever the names and the wording around it."""
    if template.held_out:
        return "test"
    text = f"{template.key}:{sorted(values.items())}"
    return "test" if int(hashlib.sha256(text.encode()).hexdigest(), 16) % TEST_SHARE == 0 else "train"


@dataclass(frozen=True)
class Difficulty:
    """How hard problems may be: their numbers of steps, and the largest number in them, results included."""

    levels: tuple[int, ...] = (1, 2, 3)
    largest: int = MAX_RESULT

    def allows(self, template: Template, values: Mapping[str, int]) -> bool:
        known = run(template, values)
        return known is not None and max(known.values()) <= self.largest


ANY = Difficulty()
# Draws before a template is given up: some have no numbers as small as wanted.
_DRAWS = 200


def starter_problems(n: int, seed: int, split: Split, start: int = 0, difficulty: Difficulty = ANY) -> Iterator[Task]:
    """Problems `start` to `start + n` of this seed and split."""
    return (starter_problem(index, seed, split, difficulty) for index in range(start, start + n))


def _draw(rng: random.Random, split: Split, difficulty: Difficulty) -> tuple[Template, dict[str, int]]:
    """A template and its numbers, from the split and as hard as wanted.

    Raises:
        RecipeError: no template has such problems.
    """
    all_templates = _TRAIN if split == "train" else TEMPLATES
    templates = [template for template in all_templates if len(template.operations) in difficulty.levels]
    while templates:
        template = rng.choice(templates)
        for _ in range(_DRAWS):
            values = draw_values(template, rng)
            if split_of(template, values) == split and difficulty.allows(template, values):
                return template, values
        templates.remove(template)
    raise RecipeError(
        f"source: no starter problem has {' or '.join(map(str, difficulty.levels))} steps and no number over "
        f"{difficulty.largest}; levels go from 1 to 3, and largest wants 30 or more"
    )


def starter_problem(index: int, seed: int, split: Split, difficulty: Difficulty = ANY) -> Task:
    rng = random.Random(f"starter:{seed}:{split}:{index}")
    template, values = _draw(rng, split, difficulty)
    words = words_for(template, rng)
    wording = _Wording(template, words, values, rng)
    steps = solve(template, values, words)
    return Task(
        id=f"starter-{split}-{seed}-{index}",
        question=wording.question({}),
        answer=steps[-1].result,
        source="starter",
        steps=steps,
        final=template.final.format(**words, box="{box}"),
        givens=tuple(
            Given(wording.sentence(slot.key, values), str(values[slot.key]), slot.clause.format(**words))
            for slot in template.slots
        ),
        gaps=tuple(wording.gap(slot.key, rng) for slot in template.slots),
        what_ifs=_what_ifs(template, values, words, split, rng),
        slips=_slips(template, values),
        template=template.key,
    )


class _Wording:
    """The text of one problem. Layout and context are drawn once, so that its versions differ in one given only."""

    def __init__(self, template: Template, words: Mapping[str, str], values: Mapping[str, int], rng: random.Random):
        self.template, self.words, self.values = template, words, values
        layouts: list[Layout] = ["plain", "plain", "plain", "long", "long", "long"]
        layouts += ["joined", "joined"] if len(template.slots) <= 3 else []
        layouts += ["if"] if len(template.slots) <= 2 else []
        self.layout = rng.choice(layouts)
        pool = [*CONTEXTS[template.topic], *GENERAL]
        chosen = rng.sample(pool, rng.choice((1, 1, 2, 2, 4))) if self.layout == "long" else []
        last = 1 if len(chosen) > 2 and rng.random() < 0.5 else 0
        # Sentences with the name come first, so that no pronoun stands before its name.
        ordered = sorted(chosen[last:], key=lambda text: not text.startswith("{name}"))
        named = bool(ordered) and "{name}" in ordered[0]
        self.before = [text.format(**words) for text in ordered if named or not _PRONOUN.search(text)]
        self.after = [
            text.format(**words) for text in [*ordered, *chosen[:last]] if text.format(**words) not in self.before
        ]

    def sentence(self, key: str, values: Mapping[str, int]) -> str:
        slot = next(slot for slot in self.template.slots if slot.key == key)
        return slot.sentence.format(**self.words, **{name: str(value) for name, value in values.items()})

    def question(self, instead: Mapping[str, str]) -> str:
        """The whole question; `instead` gives a given another sentence, or none where it is empty."""
        sentences = [instead.get(slot.key, self.sentence(slot.key, self.values)) for slot in self.template.slots]
        sentences = [text for text in sentences if text]
        asked = self.template.question.format(**self.words)
        if self.layout == "if":
            return f"If {_listed(sentences)}, {lower_first(asked)}"
        if self.layout == "joined":
            joined = _listed(sentences)
            return f"{joined[0].upper()}{joined[1:]}. {asked}"
        return " ".join([*self.before, *sentences, *self.after, asked])

    def gap(self, key: str, rng: random.Random) -> Gap:
        slot = next(slot for slot in self.template.slots if slot.key == key)
        reveal = self.sentence(key, self.values)
        value = str(self.values[key])
        clause, short = slot.clause.format(**self.words), short_of(value, reveal)
        other = other_of(value, clause, self.values.values())
        return Gap(
            question=self.question({key: rng.choice(slot.vague).format(**self.words)}),
            clause=clause,
            ask=slot.ask.format(**self.words),
            reveal=reveal,
            short=short,
            value=value,
            thing=thing_of(clause),
            other=short.replace(value, other),
        )


def _what_ifs(
    template: Template, values: Mapping[str, int], words: Mapping[str, str], split: Split, rng: random.Random
) -> tuple[WhatIf, ...]:
    """For each given, one other number for which everything still comes out, computed anew."""
    before = solve(template, values, words)
    found = []
    for slot in template.slots:
        for _ in range(40):
            changed = {**values, slot.key: slot.draw(rng)}
            fits = len(set(changed.values())) == len(changed) and changed != values
            if not fits or split_of(template, changed) != split or run(template, changed) is None:
                continue
            sentence = slot.sentence.format(**words, **{key: str(value) for key, value in changed.items()})
            steps = tuple(new for old, new in zip(before, solve(template, changed, words), strict=True) if new != old)
            if steps and steps[-1].result != before[-1].result:
                condition = lower_first(sentence.rstrip("."))
                found.append(WhatIf(re.sub(r"^then ", "", condition), steps, steps[-1].result))
                break
    return tuple(found)


def _slips(template: Template, values: Mapping[str, int]) -> tuple[Slip, ...]:
    """Wrong ways that come out as whole numbers: another operation at one step, or stopping before the last."""
    known = run(template, values)
    assert known is not None
    answer = known[template.operations[-1].key]
    slips = []
    for at, operation in enumerate(template.operations):
        left, right = (int(x) if x.isdigit() else known[x] for x in (operation.left, operation.right))
        if at < len(template.operations) - 1 and known[operation.key] != answer:
            slips.append(Slip(at, "", str(known[operation.key])))
        for other in {"*": "+", "+": "*", "-": "+", "/": "-", "%": "-"}[operation.op]:
            first, second = (right, left) if operation.op == "%" else (left, right)
            wrong = compute(other, first, second)
            carried = run(template, values, {operation.key: wrong}) if wrong and wrong != known[operation.key] else None
            if carried and carried[template.operations[-1].key] != answer:
                did = f"{first} {other} {second} = {wrong}"
                slips.append(Slip(at, did, str(carried[template.operations[-1].key])))
    return tuple(slips)


def _listed(sentences: Sequence[str]) -> str:
    """Sentences as one list of clauses, without the final dot: "a, b, and c"."""
    parts = [sentences[0].rstrip("."), *(lower_first(text.rstrip(".")) for text in sentences[1:])]
    parts[0] = lower_first(parts[0])
    if len(parts) <= 2:
        return " and ".join(parts)
    return ", ".join(parts[:-1]) + f", and {parts[-1]}"
