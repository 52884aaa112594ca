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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from data_builders.tasks import Gap, Given, Slip, Step, Task, WhatIf
from probe.errors import RecipeError

# --- The form of a starter template, and how numbers are drawn for one and carried through its steps.
#
# Everything that needs the arithmetic lives here, so that a what-if question and a wrong way are computed by
# the same code as the solution and cannot disagree with it.

MAX_RESULT = 1000  # larger numbers test long multiplication, not the reading of a problem
_OPERATION = re.compile(r"(\w+)([-+*/%])(\w+)")


@dataclass(frozen=True)
class Slot:
    """A given: the numbers it may take (`low` to `high` in steps of `by`) and the sentences around it."""

    key: str
    low: int
    high: int
    sentence: str
    clause: str
    ask: str
    vague: tuple[str, ...]
    by: int = 1

    def draw(self, rng: random.Random) -> int:
        return rng.randrange(self.low, self.high + 1, self.by)


@dataclass(frozen=True)
class Operation:
    """A step: `key` names its result; operands are keys or whole numbers."""

    key: str
    left: str
    op: str
    right: str
    text: str
    why: str


@dataclass(frozen=True)
class Template:
    """One kind of problem. `held_out` ones occur in the test split only."""

    key: str
    topic: str
    items: tuple[str, ...]
    slots: tuple[Slot, ...]
    question: str
    operations: tuple[Operation, ...]
    final: str
    held_out: bool = field(default=False, kw_only=True)


def G(key: str, low: int, high: int, sentence: str, clause: str, ask: str, *vague: str, by: int = 1) -> Slot:
    """A given; an empty `ask` means that the clause itself is the direct question."""
    return Slot(key, low, high, sentence, clause, ask or f"{clause[0].upper()}{clause[1:]}?", vague, by)


def S(key: str, operation: str, text: str, why: str) -> Operation:
    match = _OPERATION.fullmatch(operation)
    if match is None:
        raise ValueError(f"{operation!r}: wanted two operands around one of + - * / %")
    return Operation(key, match[1], match[2], match[3], text, why)


def T(
    key: str,
    topic: str,
    items: Sequence[str],
    slots: Sequence[Slot],
    question: str,
    operations: Sequence[Operation],
    final: str,
    held_out: bool = False,
) -> Template:
    return Template(key, topic, tuple(items), tuple(slots), question, tuple(operations), final, held_out=held_out)


def compute(op: str, left: int, right: int) -> int | None:
    """The result, or None where it is no whole number from 2 to MAX_RESULT."""
    if op == "/":
        result = left // right if right and left % right == 0 else 0
    elif op == "%":
        result = left * right // 100 if left * right % 100 == 0 else 0
    else:
        result = {"+": left + right, "-": left - right, "*": left * right}[op]
    return result if 2 <= result <= MAX_RESULT else None


def run(
    template: Template, values: Mapping[str, int], forced: Mapping[str, int] | None = None
) -> dict[str, int] | None:
    """All values with every step's result added; None where a step does not come out.

    `forced` fixes results of steps, which is how a mistake is carried on to its wrong answer.
    """
    known = dict(values)
    for operation in template.operations:
        left, right = (int(x) if x.isdigit() else known[x] for x in (operation.left, operation.right))
        result = (forced or {}).get(operation.key, compute(operation.op, left, right))
        if result is None:
            return None
        known[operation.key] = result
    return known


def draw_values(template: Template, rng: random.Random) -> dict[str, int]:
    """Numbers for which every step comes out, all givens different so that a number names one thing."""
    for _ in range(10_000):
        values = {slot.key: slot.draw(rng) for slot in template.slots}
        if len(set(values.values())) == len(values) and run(template, values) is not None:
            return values
    raise ValueError(f"template {template.key}: its ranges hold no numbers for which every step comes out")


def solve(template: Template, values: Mapping[str, int], words: Mapping[str, str]) -> tuple[Step, ...]:
    """The worked steps for numbers that `run` accepts. `words` fills names, pronouns and items."""
    known = run(template, values)
    if known is None:
        raise ValueError(f"template {template.key}: {dict(values)} gives a step that does not come out")
    filled = {**words, **{key: str(value) for key, value in known.items()}}
    steps = []
    for operation in template.operations:
        left, right = (filled.get(operand, operand) for operand in (operation.left, operation.right))
        bare = Step("", left, operation.op, right, filled[operation.key])
        text = operation.text.format(**filled, eq=bare.equation)
        why = operation.why.format(**filled)
        steps.append(Step(text[0].upper() + text[1:], left, operation.op, right, filled[operation.key], why))
    return tuple(steps)


# --- Starter templates about things that are counted: toys, food, books, people.
#
# Each template is data. A given has a range, the sentence that states it, the clause and the direct question
# that name it, and the vague sentences that may stand in its place ("" drops the sentence). A step names two
# operands (a given, an earlier step, or a number), its sentence with `{eq}`, and why the operation fits.
# All in the present tense, all numbers at least 2, so that plurals and what-if questions read right.

TOYS = ("marbles", "stickers", "beads", "buttons", "shells", "stamps", "toy cars", "trading cards", "coins")
FRUIT = ("apples", "pears", "oranges", "lemons", "plums", "bananas", "figs")
BAKED = ("cookies", "muffins", "rolls", "cupcakes", "scones", "bagels", "pretzels")
PLANTS = ("tulips", "roses", "bean plants", "pepper plants", "carrots", "onions", "sunflowers")
SCHOOL = ("pencils", "crayons", "markers", "erasers", "folders", "rulers")

# Without the formatter a template stays in one view and reads like a table.
# fmt: off
COUNTS = (
    T("bags", "hobby", TOYS,
      [G("a", 3, 12, "{name} buys {a} bags of {items}.", "how many bags of {items} {name} buys",
         "How many bags does {name} buy?", "{name} buys some bags of {items}.", "{name} buys a few bags of {items}."),
       G("b", 4, 25, "Each bag holds {b} {items}.", "how many {items} are in each bag", "", "",
         "Each bag holds the same number of {items}.")],
      "How many {items} does {name} buy in total?",
      [S("t", "a*b", "{a} bags of {b} {items} are {eq} {items}.", "each of the {a} bags holds {b} {items}")],
      "{name} buys {box} {items}."),
    T("bags_gift", "hobby", TOYS,
      [G("a", 3, 9, "{name} has {a} bags of {items}.", "how many bags of {items} {name} has",
         "How many bags does {name} have?", "{name} has several bags of {items}."),
       G("b", 5, 20, "There are {b} {items} in each bag.", "how many {items} are in each bag", "", "",
         "There are just as many {items} in every bag."),
       G("c", 3, 40, "{He} gives {c} of the {items} to {friend}.", "how many {items} {name} gives to {friend}",
         "How many {items} does {name} give to {friend}?", "{He} gives some of the {items} to {friend}.",
         "{He} gives a few of the {items} to {friend}.")],
      "How many {items} does {name} have left?",
      [S("t", "a*b", "{name} starts with {eq} {items}.", "each of the {a} bags holds {b} {items}"),
       S("r", "t-c", "After the gift there are {eq} {items}.", "the {c} {items} for {friend} leave the pile")],
      "{name} has {box} {items} left."),
    T("find_lose", "hobby", TOYS,
      [G("a", 12, 60, "{name} has {a} {items}.", "how many {items} {name} has at the start",
         "How many {items} does {name} have at the start?", "{name} has some {items}.",
         "{name} has a box full of {items}."),
       G("b", 4, 30, "{He} finds {b} more under the bed.", "how many {items} {name} finds under the bed",
         "How many does {name} find under the bed?", "{He} finds some more under the bed.",
         "{He} finds a few more under the bed."),
       G("c", 3, 25, "On the way to school {he} loses {c} of them.", "how many {items} {name} loses",
         "How many {items} does {name} lose?", "On the way to school {he} loses some of them.")],
      "How many {items} does {name} have now?",
      [S("t", "a+b", "With the ones from under the bed {name} has {eq} {items}.",
         "the {b} found ones come on top of the {a}"),
       S("r", "t-c", "After the loss {eq} {items} remain.", "the {c} lost ones are gone from the {t}")],
      "{name} has {box} {items} now."),
    T("album", "hobby", ("stickers", "stamps", "photos", "trading cards"),
      [G("a", 24, 120, "{name} has {a} {items} for a new album.", "how many {items} {name} has",
         "How many {items} does {name} have?", "{name} has a lot of {items} for a new album.",
         "{name} has some {items} for a new album."),
       G("b", 3, 12, "{He} puts {b} {items} on each page.", "how many {items} go on each page", "",
         "{He} puts the same number of {items} on each page.", "{He} puts a few {items} on each page.")],
      "How many pages does {name} fill?",
      [S("t", "a/b", "The {items} fill {eq} pages.", "every page takes {b} of the {a} {items}")],
      "{name} fills {box} pages."),
    T("times_as_many", "hobby", TOYS,
      [G("a", 4, 30, "{name} has {a} {items}.", "how many {items} {name} has", "How many {items} does {name} have?",
         "{name} has some {items}.", "{name} has a few {items}."),
       G("k", 2, 6, "{friend} has {k} times as many as {name}.", "how many times as many {items} {friend} has",
         "How many times as many {items} does {friend} have?", "{friend} has several times as many as {name}.")],
      "How many {items} do the two of them have together?",
      [S("t", "k*a", "{friend} has {eq} {items}.", "{friend} has {k} times the {a} {items} of {name}"),
       S("r", "a+t", "Together they have {eq} {items}.", "both piles count")],
      "Together they have {box} {items}."),
    T("how_many_more", "hobby", TOYS,
      [G("a", 20, 90, "{name} has {a} {items}.", "how many {items} {name} has", "How many {items} does {name} have?",
         "{name} has a big pile of {items}.", "{name} has many {items}."),
       G("b", 5, 60, "{friend} has {b} {items}.", "how many {items} {friend} has",
         "How many {items} does {friend} have?", "{friend} has fewer {items}.", "{friend} has some {items} too.")],
      "How many more {items} does {name} have than {friend}?",
      [S("t", "a-b", "The difference is {eq} {items}.", "we want to know how far {a} is above {b}")],
      "{name} has {box} more {items} than {friend}."),
    T("share_then_eat", "food", FRUIT,
      [G("a", 18, 96, "{name} shares {a} {items} equally.", "how many {items} {name} shares",
         "How many {items} does {name} share?", "{name} shares a basket of {items} equally.",
         "{name} shares some {items} equally."),
       G("b", 3, 8, "There are {b} children.", "how many children there are", "How many children are there?",
         "There are several children.", ""),
       G("c", 2, 9, "Each child eats {c} of them right away.", "how many {items} each child eats",
         "How many {items} does each child eat?", "Each child eats some of them right away.")],
      "How many {items} does each child have left?",
      [S("t", "a/b", "Each child gets {eq} {items}.", "the {a} {items} are split among {b} children"),
       S("r", "t-c", "After eating, each child has {eq} {items}.", "the {c} eaten ones are gone")],
      "Each child has {box} {items} left."),
    T("trays", "food", BAKED,
      [G("a", 3, 9, "{name} bakes {a} trays of {items}.", "how many trays {name} bakes",
         "How many trays does {name} bake?", "{name} bakes a few trays of {items}."),
       G("b", 6, 24, "Each tray has {b} {items} on it.", "how many {items} are on each tray", "", "",
         "Every tray has the same number of {items} on it."),
       G("c", 8, 60, "{He} sells {c} {items} at the fair.", "how many {items} {name} sells",
         "How many {items} does {name} sell?", "{He} sells a lot of them at the fair.",
         "{He} sells some {items} at the fair.")],
      "How many {items} are not sold?",
      [S("t", "a*b", "{name} bakes {eq} {items}.", "each of the {a} trays has {b} {items}"),
       S("r", "t-c", "Not sold are {eq} {items}.", "the {c} sold ones are taken away from the {t}")],
      "{box} {items} are not sold."),
    T("pizza", "food", ("pizzas",),
      [G("a", 3, 8, "{name} orders {a} pizzas for a party.", "how many pizzas {name} orders",
         "How many pizzas does {name} order?", "{name} orders some pizzas for a party."),
       G("b", 6, 12, "Each pizza is cut into {b} slices.", "how many slices each pizza has",
         "How many slices does each pizza have?", "", "Each pizza is cut into slices of the same size."),
       G("c", 3, 12, "The slices are shared equally by {c} children.", "how many children share the slices", "",
         "The slices are shared equally by all the children.")],
      "How many slices does each child get?",
      [S("t", "a*b", "There are {eq} slices.", "each of the {a} pizzas gives {b} slices"),
       S("r", "t/c", "Each child gets {eq} slices.", "the {t} slices are split among {c} children")],
      "Each child gets {box} slices.", held_out=True),
    T("two_fruits", "food", FRUIT,
      [G("a", 2, 8, "{name} packs {a} boxes of {items}.", "how many boxes of {items} {name} packs",
         "How many boxes of {items} does {name} pack?", "{name} packs some boxes of {items}."),
       G("b", 5, 15, "Each of these boxes holds {b} {items}.", "how many {items} each box holds",
         "How many {items} does each box hold?", "", "Each of these boxes is full."),
       G("c", 2, 8, "{He} also packs {c} boxes of peaches.", "how many boxes of peaches {name} packs",
         "How many boxes of peaches does {name} pack?", "{He} also packs a few boxes of peaches."),
       G("d", 4, 12, "A box of peaches holds {d} peaches.", "how many peaches are in one box", "", "",
         "The boxes of peaches are all alike.")],
      "How many pieces of fruit does {name} pack altogether?",
      [S("t", "a*b", "There are {eq} {items}.", "each of the {a} boxes holds {b} {items}"),
       S("u", "c*d", "There are {eq} peaches.", "each of the {c} boxes holds {d} peaches"),
       S("r", "t+u", "Altogether that is {eq} pieces of fruit.", "both kinds of fruit count")],
      "{name} packs {box} pieces of fruit."),
    T("cups_party", "food", ("paper cups", "napkins", "plates", "straws"),
      [G("a", 3, 8, "{name} buys {a} packs of {items}.", "how many packs of {items} {name} buys",
         "How many packs of {items} does {name} buy?", "{name} buys a few packs of {items}."),
       G("b", 10, 30, "Each pack has {b} {items} in it.", "how many {items} are in one pack", "", "",
         "Each pack has the same number of {items} in it."),
       G("c", 4, 20, "{c} guests come to the party.", "how many guests come to the party", "",
         "Some guests come to the party.", "A number of guests come to the party."),
       G("d", 2, 5, "Every guest uses {d} {items}.", "how many {items} every guest uses",
         "How many {items} does every guest use?", "Every guest uses a few {items}.")],
      "How many {items} are left after the party?",
      [S("t", "a*b", "{name} buys {eq} {items}.", "each of the {a} packs has {b} {items}"),
       S("u", "c*d", "The guests use {eq} {items}.", "each of the {c} guests uses {d} {items}"),
       S("r", "t-u", "Left over are {eq} {items}.", "the {u} used ones are taken away from the {t}")],
      "{box} {items} are left after the party."),
    T("garden_rows", "garden", PLANTS,
      [G("a", 4, 12, "{name} plants {a} rows of {items}.", "how many rows of {items} {name} plants",
         "How many rows of {items} does {name} plant?", "{name} plants several rows of {items}."),
       G("b", 5, 15, "There are {b} {items} in each row.", "how many {items} are in each row", "", "",
         "There are as many {items} in one row as in the next."),
       G("c", 3, 20, "{c} of the {items} dry out in the summer.", "how many {items} dry out",
         "How many {items} dry out?", "A few of the {items} dry out in the summer.",
         "Some of the {items} dry out in the summer.")],
      "How many {items} are still growing?",
      [S("t", "a*b", "{name} plants {eq} {items}.", "each of the {a} rows has {b} {items}"),
       S("r", "t-c", "Still growing are {eq} {items}.", "the {c} dry ones no longer count")],
      "{box} {items} are still growing.", held_out=True),
    T("harvest", "garden", ("tomatoes", "cucumbers", "peppers", "strawberries"),
      [G("a", 6, 20, "{name} picks {a} {items} every day.", "how many {items} {name} picks every day",
         "How many {items} does {name} pick every day?", "{name} picks some {items} every day.",
         "{name} picks the same number of {items} every day."),
       G("b", 3, 9, "{He} does this for {b} days.", "for how many days {name} picks {items}",
         "For how many days does {name} pick {items}?", "{He} does this for several days.",
         "{He} does this for a few days."),
       G("c", 10, 60, "{His} grandmother cooks {c} of them.", "how many {items} the grandmother cooks",
         "How many {items} does the grandmother cook?", "{His} grandmother cooks some of them.")],
      "How many {items} are not cooked?",
      [S("t", "a*b", "{name} picks {eq} {items}.", "{he} picks {a} {items} on each of the {b} days"),
       S("r", "t-c", "Not cooked are {eq} {items}.", "the {c} cooked ones are taken away from the {t}")],
      "{box} {items} are not cooked."),
    T("hens", "garden", ("eggs",),
      [G("a", 3, 12, "{name} keeps {a} hens.", "how many hens {name} keeps", "How many hens does {name} keep?",
         "{name} keeps some hens.", "{name} keeps a few hens."),
       G("b", 2, 6, "Each hen lays {b} eggs a week.", "how many eggs each hen lays a week",
         "How many eggs does each hen lay a week?", "", "Each hen lays the same number of eggs a week."),
       G("c", 2, 8, "{He} collects all the eggs for {c} weeks.", "for how many weeks {name} collects the eggs",
         "For how many weeks does {name} collect the eggs?", "{He} collects all the eggs for several weeks.")],
      "How many eggs does {name} collect?",
      [S("t", "a*b", "In one week there are {eq} eggs.", "each of the {a} hens lays {b} eggs a week"),
       S("r", "t*c", "In {c} weeks there are {eq} eggs.", "every one of the {c} weeks brings {t} eggs")],
      "{name} collects {box} eggs."),
    T("cartons", "food", ("eggs", "muffins", "tomatoes", "plums"),
      [G("a", 36, 180, "{name} has {a} {items} to pack.", "how many {items} {name} has to pack",
         "How many {items} does {name} have to pack?", "{name} has a lot of {items} to pack.",
         "{name} has some {items} to pack."),
       G("b", 4, 12, "A carton holds {b} {items}.", "how many {items} a carton holds",
         "How many {items} does a carton hold?", "", "All cartons are the same size.")],
      "How many cartons does {name} need?",
      [S("t", "a/b", "{name} needs {eq} cartons.", "every carton takes {b} of the {a} {items}")],
      "{name} needs {box} cartons."),
    T("shelves", "books", ("books", "magazines", "comics"),
      [G("a", 3, 9, "{name} fills {a} shelves with {items}.", "how many shelves {name} fills",
         "How many shelves does {name} fill?", "{name} fills a few shelves with {items}."),
       G("b", 8, 25, "Each shelf has {b} {items} on it.", "how many {items} are on each shelf", "", "",
         "Each shelf has the same number of {items} on it."),
       G("c", 4, 40, "Another {c} {items} stay in a box.", "how many {items} stay in the box", "",
         "Some more {items} stay in a box.", "A few more {items} stay in a box.")],
      "How many {items} does {name} have in all?",
      [S("t", "a*b", "The shelves hold {eq} {items}.", "each of the {a} shelves has {b} {items}"),
       S("r", "t+c", "With the box that is {eq} {items}.", "the {c} {items} in the box count too")],
      "{name} has {box} {items} in all."),
    T("pages_left", "books", ("pages",),
      [G("a", 120, 400, "{name} reads a book with {a} pages.", "how many pages the book has",
         "How many pages does the book have?", "{name} reads a long book.", "{name} reads a book.", by=5),
       G("b", 8, 30, "{He} reads {b} pages a day.", "how many pages {name} reads a day",
         "How many pages does {name} read a day?", "{He} reads the same number of pages every day.",
         "{He} reads some pages every day."),
       G("c", 3, 9, "{He} does so for {c} days.", "for how many days {name} reads",
         "For how many days does {name} read?", "{He} does so for a few days.", "{He} does so for some days.")],
      "How many pages of the book are left?",
      [S("t", "b*c", "{name} reads {eq} pages.", "{he} reads {b} pages on each of the {c} days"),
       S("r", "a-t", "Left to read are {eq} pages.", "the {t} pages already read come off the {a}")],
      "{box} pages are left."),
    T("days_to_read", "books", ("pages",),
      [G("a", 60, 240, "{name} borrows a book of {a} pages.", "how many pages the book has",
         "How many pages does the book have?", "{name} borrows a thick book.", "{name} borrows a book.", by=2),
       G("b", 5, 20, "{He} reads {b} pages every evening.", "how many pages {name} reads every evening",
         "How many pages does {name} read every evening?", "{He} reads a few pages every evening.",
         "{He} reads the same number of pages every evening.")],
      "How many evenings does {name} need for the whole book?",
      [S("t", "a/b", "{name} needs {eq} evenings.", "every evening takes {b} pages off the {a}")],
      "{name} needs {box} evenings."),
    T("teams", "school", ("children",),
      [G("a", 8, 30, "There are {a} boys in the sports club.", "how many boys are in the club", "",
         "There are some boys in the sports club.", "There are quite a few boys in the sports club."),
       G("b", 8, 30, "There are {b} girls in it.", "how many girls are in the club", "",
         "There are some girls in it.", "There are girls in it, too."),
       G("c", 3, 9, "{name} puts the children into teams of {c}.", "how many children are in one team", "",
         "{name} puts the children into teams of the same size.")],
      "How many teams are there?",
      [S("t", "a+b", "The club has {eq} children.", "boys and girls both count"),
       S("r", "t/c", "That makes {eq} teams.", "every team takes {c} of the {t} children")],
      "There are {box} teams."),
    T("chairs", "school", ("chairs",),
      [G("a", 5, 14, "{name} sets up {a} rows of chairs in the hall.", "how many rows of chairs {name} sets up",
         "How many rows does {name} set up?", "{name} sets up rows of chairs in the hall."),
       G("b", 6, 18, "Each row has {b} chairs.", "how many chairs are in each row", "", "",
         "Each row has the same number of chairs."),
       G("c", 20, 120, "{c} people come to the concert and sit down.", "how many people come to the concert", "",
         "Many people come to the concert and sit down.", "Some people come to the concert and sit down.")],
      "How many chairs stay empty?",
      [S("t", "a*b", "There are {eq} chairs.", "each of the {a} rows has {b} chairs"),
       S("r", "t-c", "Empty chairs: {eq}.", "each of the {c} people takes one of the {t} chairs")],
      "{box} chairs stay empty."),
    T("three_days", "school", ("cans", "bottles", "boxes of food", "old batteries"),
      [G("a", 8, 40, "The class of {name} collects {a} {items} on Monday.",
         "how many {items} the class collects on Monday", "How many {items} does the class collect on Monday?",
         "The class of {name} collects some {items} on Monday."),
       G("b", 8, 40, "On Tuesday it collects {b} {items}.", "how many {items} the class collects on Tuesday",
         "How many {items} does the class collect on Tuesday?", "On Tuesday it collects some more {items}.",
         "On Tuesday it collects {items} again."),
       G("c", 8, 40, "On Wednesday it collects {c} {items}.", "how many {items} the class collects on Wednesday",
         "How many {items} does the class collect on Wednesday?", "On Wednesday it collects a few {items}.",
         "On Wednesday it collects some {items} as well.")],
      "How many {items} does the class collect in the three days?",
      [S("t", "a+b", "Monday and Tuesday make {eq} {items}.", "both days count"),
       S("r", "t+c", "With Wednesday that is {eq} {items}.", "the {c} {items} from Wednesday come on top")],
      "The class collects {box} {items}."),
    T("collect_goal", "school", ("cans", "bottles", "books", "toys"),
      [G("a", 12, 30, "There are {a} students in the class of {name}.", "how many students are in the class", "",
         "There are a lot of students in the class of {name}.", "There are many students in the class of {name}."),
       G("b", 2, 8, "Each student brings {b} {items}.", "how many {items} each student brings",
         "How many {items} does each student bring?", "Each student brings a few {items}.",
         "Each student brings some {items}."),
       G("c", 80, 300, "The class wants to collect {c} {items}.", "how many {items} the class wants to collect",
         "How many {items} does the class want to collect?", "The class wants to reach its goal.", by=10)],
      "How many {items} are still missing?",
      [S("t", "a*b", "The students bring {eq} {items}.", "each of the {a} students brings {b} {items}"),
       S("r", "c-t", "Still missing are {eq} {items}.", "the {t} {items} already count towards the {c}")],
      "{box} {items} are still missing."),
    T("bus", "travel", ("passengers",),
      [G("a", 15, 50, "{name} drives a bus with {a} passengers.", "how many passengers are on the bus at first", "",
         "{name} drives a bus with some passengers.", "{name} drives a crowded bus."),
       G("b", 3, 14, "At the first stop {b} people get off.", "how many people get off at the first stop", "",
         "At the first stop some people get off.", "At the first stop a few people get off."),
       G("c", 3, 20, "At the next stop {c} people get on.", "how many people get on at the next stop", "",
         "At the next stop several people get on.", "At the next stop some people get on.")],
      "How many passengers are on the bus now?",
      [S("t", "a-b", "After the first stop there are {eq} passengers.", "{b} people leave the bus"),
       S("r", "t+c", "After the next stop there are {eq} passengers.", "{c} people come on top of the {t}")],
      "There are {box} passengers on the bus now."),
    T("percent_of", "school", ("students", "members", "players", "singers"),
      [G("a", 20, 200, "The school of {name} has {a} {items}.", "how many {items} there are",
         "How many {items} are there?", "The school of {name} has a lot of {items}.",
         "The school of {name} has many {items}.", by=20),
       G("p", 10, 75, "Today {p}% of them are absent.", "what percentage of the {items} is absent", "",
         "Today some of them are absent.", "Today a part of them is absent.", by=5)],
      "How many {items} are present today?",
      [S("t", "p%a", "Absent are {eq} {items}.", "{p}% of the {a} {items} are absent"),
       S("r", "a-t", "Present are {eq} {items}.", "the {t} absent ones come off the {a}")],
      "{box} {items} are present today."),
    T("supplies", "school", SCHOOL,
      [G("a", 2, 9, "{name} opens {a} boxes of {items}.", "how many boxes of {items} {name} opens",
         "How many boxes does {name} open?", "{name} opens some boxes of {items}."),
       G("b", 8, 24, "A box contains {b} {items}.", "how many {items} a box contains",
         "How many {items} does a box contain?", "", "All the boxes are the same."),
       G("c", 2, 12, "{He} hands them out equally to {c} classes.", "how many classes get {items}", "",
         "{He} hands them out equally to the classes.", "{He} hands them out equally to several classes.")],
      "How many {items} does each class get?",
      [S("t", "a*b", "{name} has {eq} {items}.", "each of the {a} boxes contains {b} {items}"),
       S("r", "t/c", "Each class gets {eq} {items}.", "the {t} {items} are split among {c} classes")],
      "Each class gets {box} {items}."),
)
# fmt: on


# --- Starter templates about things that are measured: money, time, distance, weight, age.
#
# The format is that of `templates_counts`.

GOODS = ("notebooks", "sandwiches", "T-shirts", "lamps", "mugs", "candles", "hats", "kites", "balls")
SMALL = ("pens", "postcards", "bracelets", "key rings", "badges", "soaps")
DEAR = ("bicycle", "guitar", "tent", "camera", "skateboard", "telescope")

# Without the formatter a template stays in one view and reads like a table.
# fmt: off
MEASURES = (
    T("tickets", "money", ("tickets",),
      [G("a", 3, 12, "{name} buys {a} tickets for the zoo.", "how many tickets {name} buys",
         "How many tickets does {name} buy?", "{name} buys some tickets for the zoo.",
         "{name} buys a few tickets for the zoo."),
       G("b", 4, 20, "A ticket costs ${b}.", "how much a ticket costs", "How much does a ticket cost?", "",
         "All the tickets cost the same.")],
      "How many dollars does {name} pay?",
      [S("t", "a*b", "{name} pays {eq} dollars.", "each of the {a} tickets costs ${b}")],
      "{name} pays {box} dollars."),
    T("change", "money", GOODS,
      [G("a", 2, 8, "{name} buys {a} {items}.", "how many {items} {name} buys", "How many {items} does {name} buy?",
         "{name} buys some {items}.", "{name} buys a few {items}."),
       G("b", 3, 12, "Each one costs ${b}.", "how much each one costs", "How much does each one cost?", "",
         "They all have the same price."),
       G("c", 20, 100, "{He} pays with ${c}.", "how much money {name} hands over",
         "How much money does {name} hand over?", "{He} pays with a large bill.", "{He} pays in cash.", by=10)],
      "How many dollars does {name} get back?",
      [S("t", "a*b", "The {items} cost {eq} dollars.", "each of the {a} {items} costs ${b}"),
       S("r", "c-t", "The change is {eq} dollars.", "the price of ${t} comes off the ${c}")],
      "{name} gets back {box} dollars."),
    T("two_purchases", "money", GOODS,
      [G("a", 2, 7, "{name} buys {a} {items}.", "how many {items} {name} buys", "How many {items} does {name} buy?",
         "{name} buys some {items}."),
       G("b", 4, 15, "They cost ${b} apiece.", "how much one of them costs", "How much does one of them cost?", "",
         "They are all the same price."),
       G("c", 2, 9, "{He} also buys {c} pens.", "how many pens {name} buys", "How many pens does {name} buy?",
         "{He} also buys some pens.", "{He} also buys a few pens."),
       G("d", 2, 6, "A pen costs ${d}.", "how much a pen costs", "How much does a pen cost?", "",
         "The pens all cost the same.")],
      "How much does {name} spend in total, in dollars?",
      [S("t", "a*b", "The {items} cost {eq} dollars.", "each of the {a} {items} costs ${b}"),
       S("u", "c*d", "The pens cost {eq} dollars.", "each of the {c} pens costs ${d}"),
       S("r", "t+u", "In total {name} spends {eq} dollars.", "{name} pays for both")],
      "{name} spends {box} dollars."),
    T("weekly_savings", "money", DEAR,
      [G("a", 5, 25, "{name} saves ${a} every week.", "how much {name} saves every week",
         "How much does {name} save every week?", "{name} saves some money every week.",
         "{name} saves the same amount every week."),
       G("b", 4, 14, "{He} does this for {b} weeks.", "for how many weeks {name} saves",
         "For how many weeks does {name} save?", "{He} does this for several weeks.",
         "{He} does this for a few weeks."),
       G("c", 10, 90, "Then {he} spends ${c} on a birthday present.", "how much {name} spends on the present",
         "How much does {name} spend on the present?", "Then {he} spends some of it on a birthday present.")],
      "How many dollars does {name} still have?",
      [S("t", "a*b", "{name} saves {eq} dollars.", "{he} puts ${a} aside in each of the {b} weeks"),
       S("r", "t-c", "After the present {he} has {eq} dollars.", "the ${c} are spent")],
      "{name} still has {box} dollars."),
    T("savings_goal", "money", DEAR,
      [G("a", 80, 300, "A {items} costs ${a}.", "how much the {items} costs", "How much does the {items} cost?",
         "A {items} is expensive.", "", by=10),
       G("b", 10, 70, "{name} already has ${b}.", "how much money {name} already has",
         "How much money does {name} already have?", "{name} already has some money.",
         "{name} already has a bit of money.", by=5),
       G("c", 5, 30, "{He} saves ${c} a week.", "how much {name} saves a week", "How much does {name} save a week?",
         "{He} saves a little every week.", "{He} saves the same amount every week.", by=5)],
      "How many weeks does {name} need until {he} can buy the {items}?",
      [S("t", "a-b", "{name} still needs {eq} dollars.", "{he} has ${b} of the ${a} already"),
       S("r", "t/c", "That takes {eq} weeks.", "every week brings ${c} of the missing ${t}")],
      "{name} needs {box} weeks."),
    T("wages", "money", ("hours",),
      [G("a", 8, 25, "{name} earns ${a} an hour.", "how much {name} earns an hour",
         "How much does {name} earn an hour?", "{name} is paid by the hour."),
       G("b", 3, 8, "{He} works {b} hours a day.", "how many hours a day {name} works",
         "How many hours a day does {name} work?", "{He} works a few hours a day.",
         "{He} works the same number of hours every day."),
       G("c", 2, 6, "{He} works {c} days a week.", "how many days a week {name} works",
         "How many days a week does {name} work?", "{He} works several days a week.",
         "{He} works on some days of the week.")],
      "How many dollars does {name} earn in a week?",
      [S("t", "a*b", "In a day {name} earns {eq} dollars.", "each of the {b} hours brings ${a}"),
       S("r", "t*c", "In a week {he} earns {eq} dollars.", "each of the {c} days brings ${t}")],
      "{name} earns {box} dollars in a week."),
    T("discount", "money", DEAR,
      [G("a", 40, 400, "{name} wants a {items} that costs ${a}.", "how much the {items} costs",
         "How much does the {items} cost?", "{name} wants an expensive {items}.", "{name} wants a new {items}.",
         by=20),
       G("p", 10, 50, "The shop takes {p}% off the price.", "by what percentage the shop lowers the price",
         "By what percentage does the shop lower the price?", "The shop lowers the price.", "The shop has a sale.",
         by=5)],
      "How many dollars does {name} pay in the end?",
      [S("t", "p%a", "The discount is {eq} dollars.", "the shop takes {p}% off the ${a}"),
       S("r", "a-t", "{name} pays {eq} dollars.", "the discount of ${t} comes off the price")],
      "{name} pays {box} dollars."),
    T("lemonade", "money", ("lemonade", "hot chocolate", "iced tea"),
      [G("a", 12, 60, "{name} sells {a} cups of {items}.", "how many cups {name} sells",
         "How many cups does {name} sell?", "{name} sells many cups of {items}.",
         "{name} sells some cups of {items}."),
       G("b", 2, 5, "{He} charges ${b} for a cup.", "how much {name} charges for a cup",
         "How much does {name} charge for a cup?", "{He} charges the same for every cup.", ""),
       G("c", 5, 30, "{He} pays ${c} for sugar and cups.", "how much {name} pays for sugar and cups",
         "How much does {name} pay for sugar and cups?", "{He} has to pay for sugar and cups.")],
      "What is the profit of {name} in dollars?",
      [S("t", "a*b", "{name} takes in {eq} dollars.", "each of the {a} cups brings ${b}"),
       S("r", "t-c", "The profit is {eq} dollars.", "the costs of ${c} come off the ${t}")],
      "The profit is {box} dollars.", held_out=True),
    T("market_stall", "money", SMALL,
      [G("a", 6, 40, "{name} sells {a} {items} at the market.", "how many {items} {name} sells",
         "How many {items} does {name} sell?", "{name} sells some {items} at the market.",
         "{name} sells a few {items} at the market."),
       G("b", 2, 8, "{He} gets ${b} for each of them.", "how much {name} gets for each of them",
         "How much does {name} get for each of them?", "{He} gets the same price for each of them.", ""),
       G("c", 5, 40, "{His} uncle gives {him} ${c} on top.", "how much the uncle gives",
         "How much does the uncle give?", "{His} uncle gives {him} some money on top.",
         "{His} uncle gives {him} a little extra.")],
      "How many dollars does {name} take home?",
      [S("t", "a*b", "From the {items} {name} gets {eq} dollars.", "each of the {a} {items} brings ${b}"),
       S("r", "t+c", "With the extra money that is {eq} dollars.", "the ${c} come on top")],
      "{name} takes home {box} dollars."),
    T("split_bill", "money", ("dinner", "lunch", "breakfast"),
      [G("a", 30, 150, "{name} and {his} friends have {items} for ${a}.", "how much the {items} costs",
         "How much does the {items} cost?", "{name} and {his} friends have {items} at a nice place.",
         "{name} and {his} friends have {items} in town."),
       G("b", 4, 30, "They add a tip of ${b}.", "how big the tip is", "How big is the tip?", "They add a tip.",
         "They add a small tip."),
       G("c", 3, 8, "There are {c} people at the table.", "how many people are at the table", "",
         "They all sit at one table.", "")],
      "How many dollars does each person pay if they split everything equally?",
      [S("t", "a+b", "Together they pay {eq} dollars.", "the tip of ${b} comes on top of the ${a}"),
       S("r", "t/c", "Each person pays {eq} dollars.", "the ${t} are split among {c} people")],
      "Each person pays {box} dollars."),
    T("party_tickets", "money", ("concert", "museum", "circus", "play"),
      [G("a", 2, 6, "{a} adults go to the {items} with {name}.", "how many adults go to the {items}", "",
         "Some adults go to the {items} with {name}.", "A few adults go to the {items} with {name}."),
       G("b", 8, 20, "An adult ticket costs ${b}.", "how much an adult ticket costs",
         "How much does an adult ticket cost?", "", "Adults pay the full price."),
       G("c", 2, 9, "{name} pays for {c} children as well.", "how many children {name} pays for",
         "How many children does {name} pay for?", "{name} pays for some children as well."),
       G("d", 3, 7, "A child ticket costs ${d}.", "how much a child ticket costs",
         "How much does a child ticket cost?", "", "Children pay less.")],
      "How many dollars do the tickets for these adults and children cost altogether?",
      [S("t", "a*b", "The adult tickets cost {eq} dollars.", "each of the {a} adults needs a ticket for ${b}"),
       S("u", "c*d", "The child tickets cost {eq} dollars.", "each of the {c} children needs a ticket for ${d}"),
       S("r", "t+u", "Altogether that is {eq} dollars.", "both kinds of ticket are paid for")],
      "The tickets cost {box} dollars."),
    T("drive", "travel", ("car", "truck", "van"),
      [G("a", 30, 70, "{name} drives a {items} at {a} miles per hour.", "how fast {name} drives",
         "How fast does {name} drive?", "{name} drives a {items} at a steady speed.", "{name} drives a {items}.",
         by=5),
       G("b", 2, 9, "{He} drives for {b} hours.", "for how many hours {name} drives",
         "For how many hours does {name} drive?", "{He} drives for a few hours.", "{He} drives for some hours.")],
      "How many miles does {name} drive?",
      [S("t", "a*b", "{name} drives {eq} miles.", "each of the {b} hours covers {a} miles")],
      "{name} drives {box} miles."),
    T("trip_left", "travel", ("train", "bus", "car"),
      [G("a", 200, 600, "{name} takes a {items} to a city {a} miles away.", "how far away the city is",
         "How far away is the city?", "{name} takes a {items} to a distant city.",
         "{name} takes a {items} to another city.", by=10),
       G("b", 30, 70, "The {items} covers {b} miles in an hour.", "how many miles the {items} covers in an hour",
         "How many miles does the {items} cover in an hour?", "The {items} keeps the same speed all the time.", "",
         by=5),
       G("c", 2, 6, "After {c} hours there is a break.", "after how many hours the break comes",
         "After how many hours does the break come?", "After some hours there is a break.",
         "After a while there is a break.")],
      "How many miles are left at the break?",
      [S("t", "b*c", "In {c} hours the {items} covers {eq} miles.", "every hour covers {b} miles"),
       S("r", "a-t", "Left are {eq} miles.", "{t} of the {a} miles are done")],
      "{box} miles are left at the break."),
    T("training", "sport", ("runs", "swims", "cycles"),
      [G("a", 2, 9, "{name} {items} {a} miles every day.", "how many miles a day {name} {items}",
         "How many miles a day is it for {name}?", "{name} {items} a few miles every day.",
         "{name} {items} the same distance every day."),
       G("b", 3, 14, "{He} trains for {b} days.", "for how many days {name} trains",
         "For how many days does {name} train?", "{He} trains for several days.", "{He} trains for some days."),
       G("c", 5, 60, "{friend} {items} {c} miles in the same time.", "how many miles {friend} {items}",
         "How many miles is it for {friend}?", "{friend} {items} a shorter distance in the same time.",
         "{friend} {items} fewer miles in the same time.")],
      "How many more miles is that for {name} than for {friend}?",
      [S("t", "a*b", "{name} {items} {eq} miles.", "each of the {b} days adds {a} miles"),
       S("r", "t-c", "The difference is {eq} miles.", "we want to know how far {t} is above {c}")],
      "It is {box} more miles for {name}."),
    T("practice", "sport", ("the piano", "the violin", "chess", "tennis", "the drums"),
      [G("a", 15, 60, "{name} practices {items} for {a} minutes a day.", "how many minutes a day {name} practices",
         "How many minutes a day does {name} practice?", "{name} practices {items} for some time every day.",
         "{name} practices {items} every day.", by=5),
       G("b", 3, 6, "{He} does so on {b} days a week.", "on how many days a week {name} practices",
         "On how many days a week does {name} practice?", "{He} does so on several days a week.",
         "{He} does so on some days of the week."),
       G("c", 20, 90, "On Sunday {he} adds an extra {c} minutes.",
         "how many extra minutes {name} practices on Sunday",
         "How many extra minutes does {name} practice on Sunday?", "On Sunday {he} adds some extra minutes.",
         "On Sunday {he} adds a little more.", by=5)],
      "How many minutes does {name} practice in the week?",
      [S("t", "a*b", "The daily practice takes {eq} minutes.", "each of the {b} days has {a} minutes"),
       S("r", "t+c", "With Sunday that is {eq} minutes.", "the extra {c} minutes come on top")],
      "{name} practices {box} minutes in the week."),
    T("tank", "home", ("tank", "barrel", "pool"),
      [G("a", 100, 500, "A {items} in the yard of {name} holds {a} liters of water.",
         "how much water is in the {items}", "How much water is in the {items} at first?",
         "A {items} in the yard of {name} is full of water.", by=10),
       G("b", 3, 15, "It loses {b} liters every hour.", "how many liters the {items} loses every hour",
         "How many liters does the {items} lose every hour?", "It loses some water every hour.",
         "It loses a few liters every hour."),
       G("c", 4, 24, "{name} notices the leak after {c} hours.", "after how many hours {name} notices the leak",
         "After how many hours does {name} notice the leak?", "{name} notices the leak after some hours.",
         "{name} notices the leak after a while.")],
      "How many liters are left in the {items} then?",
      [S("t", "b*c", "The leak takes {eq} liters.", "each of the {c} hours takes {b} liters"),
       S("r", "a-t", "Left are {eq} liters.", "the lost {t} liters come off the {a}")],
      "{box} liters are left."),
    T("fill", "home", ("tub", "tank", "barrel", "pond"),
      [G("a", 60, 400, "{name} fills a {items} of {a} liters.", "how many liters the {items} takes",
         "How many liters does the {items} take?", "{name} fills a big {items}.", "{name} fills a {items}.", by=5),
       G("b", 4, 20, "The hose gives {b} liters a minute.", "how many liters the hose gives a minute",
         "How many liters does the hose give a minute?", "The hose gives the same amount every minute.",
         "{He} uses a hose.")],
      "How many minutes does it take?",
      [S("t", "a/b", "It takes {eq} minutes.", "every minute brings {b} of the {a} liters")],
      "It takes {box} minutes."),
    T("rope", "home", ("rope", "ribbon", "wire"),
      [G("a", 24, 120, "{name} has a {items} of {a} meters.", "how long the {items} is", "How long is the {items}?",
         "{name} has a long {items}.", "{name} has a {items}."),
       G("b", 2, 8, "{He} cuts it into pieces of {b} meters.", "how long each piece is", "How long is each piece?",
         "{He} cuts it into equal pieces.", "{He} cuts it into pieces of the same length."),
       G("c", 2, 9, "{He} gives {c} pieces to {friend}.", "how many pieces {name} gives to {friend}",
         "How many pieces does {name} give to {friend}?", "{He} gives some of the pieces to {friend}.",
         "{He} gives a few pieces to {friend}.")],
      "How many pieces does {name} keep?",
      [S("t", "a/b", "The {items} gives {eq} pieces.", "every piece takes {b} of the {a} meters"),
       S("r", "t-c", "{name} keeps {eq} pieces.", "{c} of the pieces go to {friend}")],
      "{name} keeps {box} pieces.", held_out=True),
    T("ages", "family", ("brother", "cousin", "neighbor"),
      [G("a", 6, 20, "{name} is {a} years old.", "how old {name} is", "How old is {name}?",
         "{name} has a birthday today."),
       G("b", 2, 15, "{His} {items} is {b} years older.", "how many years older the {items} is",
         "How many years older is the {items}?", "{His} {items} is a few years older.", "{His} {items} is older.")],
      "How old are the two of them together?",
      [S("t", "a+b", "The {items} is {eq} years old.", "the {items} is {b} years older than {name}"),
       S("r", "a+t", "Together they are {eq} years old.", "both ages count")],
      "Together they are {box} years old.", held_out=True),
    T("future_age", "family", ("aunt", "uncle", "teacher", "coach"),
      [G("a", 6, 14, "{name} is {a} years old.", "how old {name} is", "How old is {name}?",
         "{name} is still in school.", "{name} is quite young."),
       G("k", 2, 5, "{His} {items} is {k} times as old.", "how many times as old the {items} is",
         "How many times as old is the {items}?", "{His} {items} is much older.",
         "{His} {items} is several times as old."),
       G("c", 3, 12, "We think of the day in {c} years.", "in how many years the question asks for the age",
         "In how many years is that?", "We think of a day some years from now.",
         "We think of a day a few years ahead.")],
      "How old is the {items} on that day?",
      [S("t", "k*a", "Today the {items} is {eq} years old.", "the {items} is {k} times as old as {name}, who is {a}"),
       S("r", "t+c", "On that day the {items} is {eq} years old.", "{c} years go by")],
      "The {items} is {box} years old on that day."),
    T("load", "work", ("boxes", "crates", "sacks", "bricks"),
      [G("a", 4, 20, "{name} loads {a} {items} onto a cart.", "how many {items} {name} loads",
         "How many {items} does {name} load?", "{name} loads some {items} onto a cart.",
         "{name} loads several {items} onto a cart."),
       G("b", 3, 15, "Each of them weighs {b} kilograms.", "how much each of them weighs",
         "How much does each of them weigh?", "Each of them weighs the same.", ""),
       G("c", 10, 60, "The empty cart weighs {c} kilograms.", "how much the empty cart weighs",
         "How much does the empty cart weigh?", "The cart itself is quite heavy.",
         "The empty cart has a weight, too.")],
      "How many kilograms is the loaded cart?",
      [S("t", "a*b", "The {items} weigh {eq} kilograms.", "each of the {a} {items} weighs {b} kilograms"),
       S("r", "t+c", "With the cart that is {eq} kilograms.", "the {c} kilograms of the cart come on top")],
      "The loaded cart is {box} kilograms."),
    T("flour", "food", ("cakes", "pies", "loaves"),
      [G("a", 2, 6, "{name} needs {a} cups of flour for each of the {items}.",
         "how many cups of flour each of the {items} needs", "How many cups of flour does each of the {items} need?",
         "{name} needs the same amount of flour for each of the {items}.",
         "{name} needs a few cups of flour for each of the {items}."),
       G("b", 3, 12, "{He} wants to bake {b} {items}.", "how many {items} {name} wants to bake",
         "How many {items} does {name} want to bake?", "{He} wants to bake several {items}.",
         "{He} wants to bake some {items}."),
       G("c", 3, 30, "There are {c} cups of flour in the kitchen.", "how many cups of flour are in the kitchen", "",
         "There is some flour in the kitchen.", "There is not enough flour in the kitchen.")],
      "How many more cups of flour does {name} need?",
      [S("t", "a*b", "The {items} take {eq} cups of flour.", "each of the {b} {items} takes {a} cups"),
       S("r", "t-c", "Missing are {eq} cups of flour.", "the {c} cups in the kitchen come off the {t}")],
      "{name} needs {box} more cups of flour."),
    T("rectangle", "home", ("garden", "carpet", "floor", "playground"),
      [G("a", 5, 25, "{name} measures a {items} that is {a} meters long.", "how long the {items} is",
         "How long is the {items}?", "{name} measures a long {items}.", "{name} measures a {items}."),
       G("b", 3, 15, "It is {b} meters wide.", "how wide the {items} is", "How wide is the {items}?", "",
         "It is not very wide.")],
      "How many square meters is the area of the {items}?",
      [S("t", "a*b", "The area is {eq} square meters.", "the area of a rectangle is its length times its width")],
      "The area is {box} square meters."),
    T("fence", "home", ("garden", "field", "yard"),
      [G("a", 8, 40, "{name} puts a fence around a {items} that is {a} meters long.", "how long the {items} is",
         "How long is the {items}?", "{name} puts a fence around a rectangular {items}."),
       G("b", 4, 30, "It is {b} meters wide.", "how wide the {items} is", "How wide is the {items}?", "",
         "It is not square.")],
      "How many meters of fence does {name} need for all four sides?",
      [S("t", "a+b", "One long and one short side make {eq} meters.", "the fence goes along both kinds of side"),
       S("r", "2*t", "All four sides make {eq} meters.", "each kind of side comes twice")],
      "{name} needs {box} meters of fence."),
    T("painting", "work", ("rooms", "doors", "fences", "benches"),
      [G("a", 3, 12, "{name} paints {a} {items}.", "how many {items} {name} paints",
         "How many {items} does {name} paint?", "{name} paints some {items}.", "{name} paints a few {items}."),
       G("b", 10, 50, "It takes {him} {b} minutes for each one.", "how many minutes each one takes",
         "How many minutes does each one take?", "", "It takes {him} the same time for each one.", by=5),
       G("c", 5, 40, "Cleaning up takes another {c} minutes.", "how many minutes the cleaning takes",
         "How many minutes does the cleaning take?", "Cleaning up takes a while as well.",
         "Cleaning up takes some more minutes.", by=5)],
      "How many minutes does the whole job take?",
      [S("t", "a*b", "The painting takes {eq} minutes.", "each of the {a} {items} takes {b} minutes"),
       S("r", "t+c", "With the cleaning that is {eq} minutes.", "the {c} minutes of cleaning come on top")],
      "The whole job takes {box} minutes."),
)
# fmt: on


# --- The names, pronouns and everyday sentences that starter problems are dressed in.

WOMEN = (
    "Ana", "Bea", "Carmen", "Daria", "Elif", "Fatima", "Grace", "Hana", "Ines", "Julia", "Keiko", "Lena", "Maya",
    "Nadia", "Olga", "Priya", "Rosa", "Sofia", "Tara", "Uma", "Vera", "Wendy", "Yara", "Zoe",
)  # fmt: skip
MEN = (
    "Adam", "Boris", "Carlos", "David", "Emre", "Felix", "George", "Hugo", "Ivan", "Jonas", "Kofi", "Liam", "Marco",
    "Nico", "Omar", "Pablo", "Ravi", "Sam", "Tomas", "Umar", "Victor", "Will", "Yusuf", "Zack",
)  # fmt: skip
NAMES = frozenset(WOMEN + MEN)

# Sentences without numbers that fit any problem, before its givens or right before its question. Some of them
# say "some" or "a few" of a thing that nothing depends on.
GENERAL = (
    "It is a sunny Saturday.",
    "The weather has been nice all week.",
    "{name} lives in a small town near the sea.",
    "{name} has been looking forward to this day for a long time.",
    "{name} likes to plan things carefully.",
    "Some neighbors stop by to say hello.",
    "{name} writes everything down in a little notebook.",
    "A few friends of {name} come along to watch.",
    "{name} wants to get everything right.",
    "{name} has some music on.",
    "{name} got up early today.",
)

CONTEXTS: dict[str, tuple[str, ...]] = {
    "hobby": (
        "{name} loves to collect things.",
        "{His} room is full of boxes and jars.",
        "Every evening {he} sorts {his} collection on the carpet.",
        "{His} cousin collects things, too.",
        "{name} keeps some old toys in the attic.",
    ),
    "food": (
        "There is a lot to do in the kitchen today.",
        "{name} is getting ready for a big family lunch.",
        "The whole house smells wonderful.",
        "{name} learned to cook from {his} grandmother.",
        "Several guests are allergic to nuts, so {name} uses none.",
    ),
    "garden": (
        "{name} spends most of {his} time outside.",
        "The soil is dark and rich.",
        "It rained a little in the morning.",
        "{name} waters everything before breakfast.",
        "A few birds watch from the fence.",
    ),
    "books": (
        "{name} spends a lot of time in the library.",
        "Reading is what {he} likes best.",
        "{His} favorite stories are about pirates.",
        "The librarian knows {him} well.",
        "Some of {his} friends like the same stories.",
    ),
    "school": (
        "The school year has just begun.",
        "Everybody at school is busy this week.",
        "The principal has asked for help.",
        "{name} stays after class to help.",
        "Some parents have offered to help as well.",
    ),
    "travel": (
        "The road runs along the coast.",
        "It is a quiet day with little traffic.",
        "{name} has packed some sandwiches and a bottle of water.",
        "{name} knows the way very well.",
        "The radio plays old songs.",
    ),
    "money": (
        "{name} keeps track of every dollar.",
        "There is a big market in town today.",
        "The shops are open late this week.",
        "{name} thinks a lot about prices.",
        "{His} sister is good with money as well.",
    ),
    "sport": (
        "{name} wants to get better at sports this year.",
        "{His} coach is strict but fair.",
        "There will be a big event at the end of the season.",
        "{name} drinks a lot of water and sleeps well.",
        "{name} meets a few teammates at the field.",
    ),
    "home": (
        "There is a lot to fix around the house.",
        "{name} has borrowed some tools from a neighbor.",
        "{name} measures everything before {he} begins.",
        "The yard behind the house gets a lot of sun.",
        "{His} dog follows {him} everywhere.",
    ),
    "family": (
        "The whole family is together today.",
        "They look at old photos and laugh.",
        "There are some candles on the table.",
        "Everyone is talking at the same time.",
        "{name} likes number puzzles.",
    ),
    "work": (
        "{name} starts early in the morning.",
        "The work is hard, but {he} likes it.",
        "{name} takes some short breaks and drinks a lot of water.",
        "The boss trusts {him}.",
        "{name} has had this job for a few years.",
    ),
}  # fmt: skip

_SHE = {"he": "she", "him": "her", "his": "her", "He": "She", "His": "Her"}
_HE = {"he": "he", "him": "him", "his": "his", "He": "He", "His": "His"}


def words_for(template: Template, rng: random.Random) -> dict[str, str]:
    """A name with its pronouns, a friend, and one of the template's items."""
    name = rng.choice(WOMEN + MEN)
    friend = rng.choice([other for other in WOMEN + MEN if other[0] != name[0]])
    pronouns = _SHE if name in WOMEN else _HE
    return {"name": name, "friend": friend, "items": rng.choice(template.items), **pronouns}


def lower_first(text: str) -> str:
    """The text for the middle of a sentence: its first letter small, unless it begins with a name."""
    first = re.split(r"\W", text, maxsplit=1)[0]
    return text if first in NAMES or first in {"Monday", "Tuesday", "Wednesday"} else text[:1].lower() + text[1:]


# --- Names for the givens of starter problems: the noun phrase beside each clause, and the number with what it counts.

# Clause -> noun phrase, tried in order; whatever is left is "the number that says ...".
_THINGS = tuple(
    (re.compile(pattern), phrase)
    for pattern, phrase in (
        (r"how many times .*|how many years older .*|in how many years .*", ""),
        (r"how many (.+) are (in|on|at) (.+)", r"the number of \1 \2 \3"),
        (r"how many (.+) there are", r"the number of \1"),
        (r"how many (.+?) (share|come|dry|stay|go|get) (.+)", r"the number of \1 that \2 \3"),
        (r"(?:for|on) how many (.+)", r"the number of \1"),
        (r"how many (.+)", r"the number of \1"),
        (r"after how many hours (.+)", r"the number of hours after which \1"),
        (r"how much water is (.+)", r"the amount of water \1"),
        (r"how much money (.+)", r"the amount of money \1"),
        (r"how much (.+) costs", r"the price of \1"),
        (r"how much (.+) weighs", r"the weight of \1"),
        (r"how much (.+)", r"the amount \1"),
        (r"how fast (.+)", r"the speed at which \1"),
        (r"how old (.+) is", r"the age of \1"),
        (r"how long (.+) is", r"the length of \1"),
        (r"how wide (.+) is", r"the width of \1"),
        (r"how far away (.+) is", r"the distance to \1"),
        (r"how big (.+) is", r"the size of \1"),
        (r"what percentage of (.+) is (.+)", r"the percentage of \1 that is \2"),
        (r"by what percentage (.+)", r"the percentage by which \1"),
    )
)
# There is no week of eight days.
_MOST = {"days a week": 7, "hours a day": 16, "percentage": 95}
_UNCOUNTED = (["times"], ["is"], ["has"], ["as"])


def thing_of(clause: str) -> str:
    """The noun phrase of a clause: "how many marbles are in each bag" -> "the number of marbles in each bag"."""
    for pattern, phrase in _THINGS:
        match = pattern.fullmatch(clause)
        if match and phrase:
            return match.expand(phrase)
        if match:
            break
    return f"the number that says {clause}"


def short_of(value: str, sentence: str) -> str:
    """The number as it stands in its sentence, with what it counts where that follows: "12 marbles", "$12", "20%"."""
    shown = re.search(rf"\$?\b{value}\b%?(?: ((?:[a-z]+ )?(?:[a-zT-]+s|people|children)(?: per hour)?)\b)?", sentence)
    if shown is None:
        return value
    counted = shown.group(1) or ""
    return shown.group().removesuffix(f" {counted}") if counted.split()[-1:] in _UNCOUNTED else shown.group()


def other_of(value: str, clause: str, taken: Collection[int]) -> str:
    """A near number that the given could be as well, and that is none of those `taken`."""
    number = int(value)
    most = next((most for words, most in _MOST.items() if words in clause), number + 9)
    far = 4 if number < 10 else 9
    near = [n for n in range(max(2, number - far), min(most, number + far) + 1) if n != number and n not in taken]
    return str(random.Random(f"other:{clause}:{value}").choice(near))


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
