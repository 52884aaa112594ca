"""What a measure is: the rows of a set that it takes, what it asks the model, and its figures.

A measure asks in a generator for one item: it yields what it wants and gets the reply, so a measure over several turns is a
loop. A list of wishes gets a list of replies. The runner (`nextturn.probe.run`) moves the generators of all measures, sets and
items forward together. What they want at one moment is one round, equal wishes are made once, and a run that was killed gives
the generators the stored replies again.

Everything behind the rows reads the figures that a measure declares: results.json, paired differences, tables, the page's filter,
the plot and wandb.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

from nextturn.probe.command.errors import DataError
from nextturn.probe.command.sections import ProbeSection, SetSection
from nextturn.probe.data.messages import Message, after_thinking, with_system
from nextturn.probe.engines.stored import Row
from nextturn.probe.judges.verdicts import Case
from nextturn.probe.measures.perturb import NONE
from nextturn.probe.questions.sets import Item, Pair
from nextturn.probe.stats import Estimate, clustered_rate, mean_ci, paired_difference
from nextturn.probe.text.chat import Chat

# --- What a measure may want.


@dataclass(frozen=True)
class Reply:
    """The model's greedy reply to a conversation. It is answered with a `Completion`."""

    messages: Sequence[Message]


@dataclass(frozen=True)
class UserTurn:
    """The model's own turn as the user after the last reply of a conversation.

    It is answered with a `Completion`, whose `finish` is "length" only if the limit cut the turn itself.
    """

    messages: Sequence[Message]
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class LogP:
    """log p in nats of a text as the user's turn after a conversation; None if the engine cannot say it. The text is not empty."""

    messages: Sequence[Message]
    text: str


@dataclass(frozen=True)
class Label:
    """A judge's `Verdict` of a user turn."""

    case: Case


@dataclass(frozen=True)
class Grade:
    """The `Verdict` of the model behind `judge_server` on an answer (`judges.answers.answer_case`)."""

    case: Case


Wish = Reply | UserTurn | LogP | Label | Grade
Asking = Generator["Wish | list[Wish]", Any, list[Row]]
"""What `Measure.ask` returns: it yields wishes, gets their replies, and returns the item's rows."""

# --- What a measure declares.


@dataclass(frozen=True)
class Figure:
    """A number of a measure.

    Attributes:
        value: Of a row, None if the row is no part of this figure (missing is never 0). Without a function, a row has it under
            `values`.
        title: Its name in tables; default: `name`.
        better: Whether more is better ("up"), worse ("down") or neither ("").
        headline: It stands in the main tables.
        unit: "percent" for shares from 0 to 1, "number" for a mean of anything.
        minus: The name of a figure that is subtracted, paired by item. Then `value` is that of what it is subtracted from.
        less: A value of other rows, whose mean is subtracted from the mean of `value`; no item need have both.
        n: The key of results.json that says over how many rows; rows without a value do not count.
        shows: The kind of conversations that the page shows for it; default: the measure's name; "-": none.
        any_of: An item counts once, with the largest of its values.
        hollow: A rise of the measure's rate is hollow if this figure falls under this perturbation; "": it says nothing about that.
    """

    name: str
    value: Callable[[Row], float | None] | None = None
    title: str = ""
    better: Literal["up", "down", ""] = "up"
    headline: bool = True
    unit: Literal["percent", "number"] = "percent"
    minus: str = ""
    less: Callable[[Row], float | None] | None = None
    n: str = "n"
    shows: str = ""
    any_of: bool = False
    hollow: str = ""

    def of(self, row: Row) -> float | None:
        """Return the value of a row."""
        found = self.value(row) if self.value else row["values"].get(self.name)
        return None if found is None else float(found)

    def declared(self) -> dict[str, Any]:
        """Return what results.json holds of it, by which it is read without the measure's own code."""
        return {key: value for key, value in asdict(self).items() if key not in ("value", "less", "shows")}


Values = dict[str, list[float]]
"""The values of a figure by cluster: all that an interval or a paired difference needs."""


ByItem = dict[tuple[str, str, str], list[float]]
"""The values of a figure by (training, cluster, item)."""


def values_of(figure: Figure, rows: Iterable[Row]) -> Values:
    """Return a figure's values by cluster, before anything is subtracted."""
    found, other = ByItem(), ByItem()
    for row in rows:
        key = str(row.get("training", "")), cluster_of(row), str(row["item"])
        if (value := figure.of(row)) is not None:
            found.setdefault(key, []).append(value)
        if figure.less and (value := figure.less(row)) is not None:
            other.setdefault(key, []).append(float(value))
    return by_cluster(figure, found, other)


def by_cluster(figure: Figure, found: ByItem, other: ByItem) -> Values:
    """Return values by cluster alone; `other` is what a figure with `less` subtracts."""
    values: Values = defaultdict(list)
    for (_, cluster, _), of_item in (less(found, other) if figure.less else found).items():
        values[cluster] += [max(of_item)] if figure.any_of else of_item
    return dict(values)


def less(values: ByItem, other: ByItem) -> ByItem:
    """Return values whose mean is the difference of two means; each says what its row adds to it (linearization).

    So a difference between two groups of rows has an interval, and a paired change between runs, like a mean.
    """
    if not values or not other:
        return {}
    means = [fmean(value for of in side.values() for value in of) for side in (values, other)]
    sizes = [sum(map(len, side.values())) for side in (values, other)]
    found: ByItem = defaultdict(list)
    for sign, side, mean, size in zip((1, -1), (values, other), means, sizes, strict=True):
        for item, of in side.items():
            found[item] += [means[0] - means[1] + sign * (value - mean) * sum(sizes) / size for value in of]
    return found


def cluster_of(row: Row) -> str:
    """Return what is drawn together with other rows: the item, or what the row names as `cluster`."""
    return str(row.get("cluster") or row["item"])


def subtracted(values: Values, minus: Values) -> Values:
    """Return the difference of the means of each cluster that both have."""
    both = [cluster for cluster in values if cluster in minus]
    return {cluster: [fmean(values[cluster]) - fmean(minus[cluster])] for cluster in both}


def count(figures: Sequence[Figure], rows: Sequence[Row]) -> dict[str, Any]:
    """Return {"n", NAME: {"value", "ci95"}, ...} of rows; a figure has an "n" of its own where it counts other rows."""
    counted: dict[str, Any] = {}
    values = {figure.name: values_of(figure, rows) for figure in figures}
    for figure in figures:
        if figure.minus:
            counted[figure.name] = paired_difference(values[figure.minus], values[figure.name]).as_json()
            continue
        estimate = mean_of(values[figure.name], "number" if figure.less else figure.unit)
        n = counted.setdefault(figure.n, estimate.n)
        counted[figure.name] = {**estimate.as_json(), **({"n": estimate.n} if estimate.n != n else {})}
    return counted


def mean_of(values: Values, unit: str = "percent") -> Estimate:
    """Return the mean of values with its 95% interval; those of one cluster are not independent."""
    flat = [(value, cluster) for cluster, of_cluster in values.items() for value in of_cluster]
    return (clustered_rate if unit == "percent" else mean_ci)([value for value, _ in flat], [of for _, of in flat])


def checked(counted: dict[str, Any]) -> dict[str, Any]:
    """Return what `count` made, as results.json holds it.

    Raises:
        ValueError: A figure is no {"value", "ci95"}, or a value is no number.
    """
    for name, value in counted.items():
        if isinstance(value, dict) and "value" in value:
            numbers = [value["value"], *(value.get("ci95") or ())]
            if not all(number is None or (isinstance(number, int | float) and isfinite(number)) for number in numbers):
                raise ValueError(f"{name} is {value!r:.80}, expected numbers")
    return counted


def read(figures: Sequence[Figure], counted: Mapping[str, Any]) -> dict[str, Estimate]:
    """Return the estimates of what `count` made; what was not measured is left out."""
    found = {}
    for figure in figures:
        if given := counted.get(figure.name):
            ci95 = given["ci95"] and (float(given["ci95"][0]), float(given["ci95"][1]))
            found[figure.name] = Estimate(given["value"], ci95, given["n"] if "n" in given else counted[figure.n])
    return found


# --- A measure.


@dataclass(frozen=True)
class QuestionSet:
    """A question set as a measure gets it.

    Attributes:
        items: Its items, or none for a set of pairs.
        transcript: The items have their own replies, and the user turns that really followed.
        grader: Decides whether a reply gives an answer, in place of the readings.
        by_judge: The model behind `judge_server` decides that.
        seed: Of the recipe; choices of items and draws depend on it.
    """

    name: str
    path: Path
    section: SetSection
    items: tuple[Item, ...]
    pairs: tuple[Pair, ...]
    seed: int
    transcript: bool = False
    grader: Callable[[str, str], bool] | None = None
    by_judge: bool = False

    @property
    def instruction(self) -> str:
        """What is added to each question."""
        return self.section.instruction

    def question(self, item: Item) -> str:
        """Return an item's last user message without the set's instruction."""
        return item.messages[-1]["content"].removesuffix(f"\n\n{self.instruction}")


class Measure:
    """A measure of a set. A subclass declares figures and asks; one of your own is named in a recipe as MODULE:CLASS.

    Args:
        of_set: The set that is measured.
        probe: The recipe's section.
        chat: Renders conversations with the model's template.

    Attributes:
        name: Its name in recipes, rows and results; default: the name of the class in small letters.
        takes: "questions", "answers" (questions with a right answer), "pairs" or "any" (also finished conversations).
        replies: The most replies that it asks for each item beside the one to the question itself, for the plan.
        kinds: What the page calls its conversations, by the kind that `Figure.shows` names; default: by the measure's name.
        figures: Its figures.
    """

    name: ClassVar[str] = ""
    takes: ClassVar[Literal["questions", "answers", "pairs", "any"]] = "questions"
    replies: ClassVar[int] = 1
    kinds: ClassVar[Mapping[str, str]] = {}
    figures: ClassVar[Sequence[Figure]] = ()

    def __init_subclass__(cls) -> None:
        cls.name = cls.name or cls.__name__.lower()

    def __init__(self, of_set: QuestionSet, probe: ProbeSection, chat: Chat) -> None:
        self.set, self.probe, self.chat = of_set, probe, chat

    @classmethod
    def choose(cls, of_set: QuestionSet) -> Sequence[Any]:
        """Return what `ask` gets of a set, one by one; by default its items, or its pairs.

        Raises:
            DataError: The set has nothing for this measure.
        """
        return of_set.pairs if cls.takes == "pairs" else of_set.items

    @classmethod
    def settings(cls, of_set: QuestionSet, chosen: Sequence[Any]) -> dict[str, Any]:
        """Return what identifies the choice of items beside the set itself."""
        return {}

    @classmethod
    def most_replies(cls, chosen: Sequence[Any]) -> int:
        """Return the most replies that it asks for, beside those to the questions themselves."""
        return cls.replies * len(chosen)

    def prompt(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return messages with the recipe's system message in place of their own, if it has one."""
        return with_system(tuple(messages), self.probe.system_prompt)

    def ask(self, item: Any) -> Asking:
        """Yield what is wanted for one item, and return its rows, each made with `row`."""
        raise NotImplementedError

    def row(self, item_id: str, messages: Sequence[Message], kind: str = "", **values: Any) -> Row:
        """Return one line of samples.jsonl.

        Args:
            messages: The conversation, whose last message is what the row is about.
            values: For a measure of your own: the values of its figures by name, and `cluster` if rows of several items are not
                independent.
        """
        if self.figures[0].value:
            return make_row(kind or self.name, self.set.name, item_id, messages, **values)
        cluster = {"cluster": str(values.pop("cluster"))} if "cluster" in values else {}
        names = {figure.name for figure in self.figures}
        if unknown := values.keys() - names:
            raise DataError(f"measure {self.name}: {min(unknown)} is none of {', '.join(sorted(names))}")
        wrong = [name for name, value in values.items() if not isinstance(value, int | float | None)]
        if wrong:
            raise DataError(f"measure {self.name}: {wrong[0]} is {values[wrong[0]]!r:.60}, expected a number or None")
        return make_row(self.name, self.set.name, item_id, messages, values=values, **cluster)

    @classmethod
    def count(cls, rows: Sequence[Row]) -> dict[str, Any]:
        """Return what results.json holds of a set's rows."""
        return count(cls.figures, rows)


def make_row(kind: str, set_name: str, item: str, messages: Sequence[Message], **values: Any) -> Row:
    """Return one line of samples.jsonl. Every row has every field; a field is None if the measure does not use it."""
    return {
        "kind": kind, "set": set_name, "item": item, "perturbation": NONE,
        "temperature": 0.0, "sample": 0, "messages": list(messages),
        "user_turn": None, "user_cut": None, "label": None, "unscored": None, "judge_raw": None,
        "specific": None, "grounding": None, "log_p": None, "changed": None,
        "reference": None, "extracted": None, "graded_as": None, "strict": None, "lenient": None,
        "outcome": None, "condition": None, "first_outcome": None, "decision": None, "asked": None,
        "attempts": None, "ended": None, "tokens": None,
        **values,
    }  # fmt: skip


def answer_in(reply: str) -> str | None:
    """Return what a reply says after its thinking, which a user never sees; None if it says nothing after it."""
    answer = (after_thinking(reply) or "").strip()
    return answer if answer or not reply.strip() else None


def shown(reply: str) -> str:
    """Return the part of a reply that the user sees."""
    return answer_in(reply) or ""
