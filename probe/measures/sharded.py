"""A problem over several turns: whole, as one message of its pieces (concat), and piece by piece (arXiv 2505.06120)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nextturn.probe.command.errors import DataError
from nextturn.probe.command.files import sha256_text
from nextturn.probe.data.messages import assistant, user
from nextturn.probe.engines.base import Completion
from nextturn.probe.engines.stored import Row
from nextturn.probe.measures.accuracy import grade_answer
from nextturn.probe.measures.base import Asking, Figure, Measure, QuestionSet, Reply, shown
from nextturn.probe.questions.pieces import Shards, read_shards, split
from nextturn.probe.questions.sets import Item, choose

CONDITIONS = ("full", "concat", "sharded")


@dataclass(frozen=True)
class CutProblem:
    """An item and its pieces."""

    item: Item
    pieces: Shards


def _in(condition: str, reading: str) -> Callable[[Row], bool | None]:
    return lambda row: row[reading] if row["condition"] == condition else None


def _event(name: str) -> Callable[[Row], bool | None]:
    return lambda row: on_the_way(row)[name] if row["condition"] == "sharded" else None


def _detail(name: str, value: Callable[[Row], bool | None], condition: str = "sharded", **looks: Any) -> Figure:
    return Figure(name, value, headline=False, shows=f"sharded {condition}", **looks)


class Sharded(Measure):
    """The same problems whole and in pieces. `full`, `concat` and `sharded` are the lenient reading."""

    takes = "answers"
    kinds = {
        "sharded full": "sharded, the problem whole",
        "sharded concat": "sharded, one message of its pieces",
        "sharded sharded": "sharded, piece by piece",
    }
    figures = (
        *(Figure(name, _in(name, "lenient"), shows=f"sharded {name}") for name in CONDITIONS),
        Figure("sharded_minus_full", _in("sharded", "lenient"), minus="full", shows="sharded sharded"),
        *(_detail(f"strict_{name}", _in(name, "strict"), name) for name in CONDITIONS),
        _detail("any_attempt", _event("any_attempt")),
        _detail("answered_early", _event("answered_early"), better="down"),
        _detail("asked", _event("asked"), better=""),
        _detail("right_lost", _event("right_lost"), better="down"),
    )

    @classmethod
    def choose(cls, of_set: QuestionSet) -> Sequence[CutProblem]:
        """Return the items that have pieces, their own or cut by rules, at most `n_turns` of them."""
        own = read_shards(of_set.path, of_set.section.columns)
        pieces = [_pieces(item, own, of_set) for item in of_set.items]
        cut = [CutProblem(item, found) for item, found in zip(of_set.items, pieces, strict=True) if found]
        if not cut:
            problem = f"none of the {len(of_set.items)} problems can be cut into a question and at least two facts"
            raise DataError(f"{of_set.path}: {problem}, and no row has `shards`; leave sharded out of `measures`")
        return [cut[index] for index in choose(range(len(cut)), of_set.section.n_turns, of_set.seed)]

    @classmethod
    def settings(cls, of_set: QuestionSet, chosen: Sequence[CutProblem]) -> dict[str, Any]:
        """Return a hash of the pieces."""
        pieces = {each.item.id: each.pieces for each in chosen}
        return {"shards": sha256_text(repr(tuple(pieces.get(item.id) for item in of_set.items)))}

    @classmethod
    def most_replies(cls, chosen: Sequence[CutProblem]) -> int:
        """Count one reply to the list of pieces, and one to each piece."""
        return sum(len(each.pieces.facts) + 2 for each in chosen)

    def ask(self, item: CutProblem) -> Asking:
        """Ask the problem whole, as a list, and in pieces: what the user wants, then one fact in each turn, whatever the model says."""
        problem, pieces = item.item, item.pieces
        ending = f"\n\n{self.set.instruction}" if self.set.instruction else ""
        asked = self.prompt(problem.messages)
        before = asked[:-1]  # a system message
        listed = [*before, user(pieces.concat() + ending)]
        chat = [*before, user(pieces.wish + ending)]
        whole, of_list, reply = yield [Reply(asked), Reply(listed), Reply(chat)]
        attempts = [reply]
        for fact in pieces.facts:
            chat = [*chat, assistant(shown(reply.text)), user(fact)]
            reply = yield Reply(chat)
            attempts.append(reply)
        told: dict[str, tuple[Sequence[dict[str, Any]], list[Completion]]]
        told = {"full": (asked, [whole]), "concat": (listed, [of_list]), "sharded": (chat, attempts)}
        rows = []
        for condition, (messages, made) in told.items():
            graded = [grade_answer(problem, each, self.set.grader) for each in made]
            row = self.row(
                problem.id, [*messages, assistant(shown(made[-1].text))], condition=condition,
                tokens=sum(each.tokens for each in made), **graded[-1],
            )  # fmt: skip
            if condition == "sharded":
                row["attempts"] = [{"outcome": each["outcome"], "lenient": each["lenient"]} for each in graded]
                row["ended"] = True
            rows.append(row)
        return rows

    @classmethod
    def count(cls, rows: Sequence[Row]) -> dict[str, Any]:
        """Return the figures, mean tokens of the replies, and how many conversations did not end."""
        by_condition = {name: [row for row in rows if row["condition"] == name] for name in CONDITIONS}
        sums = {name: sum(row["tokens"] for row in group) for name, group in by_condition.items()}
        tokens = {name: round(total / max(len(by_condition[name]), 1), 1) for name, total in sums.items()}
        not_ended = sum(not row["ended"] for row in by_condition["sharded"])
        return {**super().count(rows), "tokens": tokens, "not_ended": not_ended}


def _pieces(item: Item, own: Mapping[str, Shards], of_set: QuestionSet) -> Shards | None:
    """Return an item's pieces; None for a conversation, and where rules cannot cut."""
    return (own.get(item.id) or split(of_set.question(item))) if len(item.messages) == 1 else None


def on_the_way(row: Row) -> dict[str, bool]:
    """Return what happened in a sharded conversation.

    - any_attempt: some reply was right.
    - answered_early: a reply before the last fact gave an answer.
    - asked: a reply before the last fact asked.
    - right_lost: a reply was right, and the last one is not.
    """
    earlier, last = row["attempts"][:-1], row["attempts"][-1]
    was_right = any(attempt["lenient"] for attempt in earlier)
    outcomes = {attempt["outcome"] for attempt in earlier}
    events = {"any_attempt": was_right or last["lenient"], "right_lost": was_right and not last["lenient"]}
    return {**events, "answered_early": "answered" in outcomes, "asked": "asked" in outcomes}
