"""Replay: plain questions with their solutions, mixed in so that a model's single-turn answers are not forgotten.

The assistant turn is the reference solution, or the first right one of several replies of a model, which is to be the
model that will be trained: what it says already is what it should not forget. Replay rows are attached to problems by
number, so that a shard always holds the same ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nextturn.data_builders.dialogue.replies import Parsed, Reply, read_assistant
from nextturn.data_builders.dialogue.roles import RoleModel, ask_each
from nextturn.data_builders.problems import Problems
from nextturn.data_builders.recipe import DataRecipe, Source
from nextturn.data_builders.tasks import Conversation, Task
from nextturn.probe.conversations import Message, user
from nextturn.probe.engines.base import item_seed
from nextturn.probe.files import read_jsonl, write_jsonl
from nextturn.probe.grading import lenient_answer, same_answer


@dataclass(frozen=True)
class Answered:
    """What came of one question: the right reply, or the `reason` why there is none.

    Attributes:
        slips: the replies that could not be used, each as {reason, text}.
        calls: {"replay.calls", "replay.input", "replay.output"}: replies and their tokens.
    """

    text: str
    reason: str
    slips: list[dict[str, str]]
    calls: Mapping[str, int]


class ReplayRows:
    """The replay rows that go with each of a build's `problems`, or with each written conversation where there are none;
    their count follows the recipe's `fraction` on average."""

    def __init__(self, recipe: DataRecipe, problems: int, written: int) -> None:
        self.section, self.seed = recipe.replay, recipe.seed
        self._count = count = problems or written
        # Of all rows a share is replay, the written ones among them.
        self._per_problem = self.section.per_row(recipe.per_problem + written / problems if problems else 1.0)
        self._answers: dict[str, Answered] = {}
        self._problems: Problems | None = None
        if self.section.fraction:
            kind, path = self.section.source, self.section.path
            alike = {}
            if kind == recipe.source.kind:  # the same problems, or others as hard and about the same, asked plainly
                path = recipe.source.path if path is None else path
                alike = {name: getattr(recipe.source, name) for name in ("levels", "subjects", "largest")}
            # Another seed, so that generated replay problems are others than those of the conversations.
            source = Source(kind=kind, path=path, n=count if kind == "starter" else None, **alike)
            reserved = recipe.reserved if problems else 0.0
            self._problems = Problems(source, self.seed + 1, "replay", reserved, replay=True)

    def __len__(self) -> int:
        return math.floor(self._count * self._per_problem) if self._problems else 0

    def tasks(self, index: int) -> list[Task]:
        if self._problems is None:
            return []
        # No replay problem twice before all had their turn.
        first, last = (math.floor(place * self._per_problem) for place in (index, index + 1))
        return [self._problems[number] for number in range(first, last)]

    def questions(self) -> dict[str, Task]:
        """All of them by id. A source may come round to a problem again; it is asked once."""
        return {replay_id(task): task for index in range(self._count) for task in self.tasks(index)}

    def rows(self, index: int) -> Iterator[Conversation]:
        """Those that go with this problem: reference solutions, or where a model is asked its replies (`ask` comes first);
        one without a right reply shows the last."""
        for task in self.tasks(index):
            if self.section.asked:
                came = self._answers[replay_id(task)]
            else:  # an answer alone is no way to solve anything
                came = Answered(task.reference, "", [], {}) if task.solution else Answered("", "no_solution", [], {})
            text = came.text or (came.slips[-1]["text"] if came.slips else "")
            messages = (*question(task), *([{"role": "assistant", "content": text}] if text else []))
            slips = came.slips if came.reason and came.slips else None
            yield Conversation(
                replay_id(task), "replay", messages, task.source, task.answer, reason=came.reason, slips=slips
            )

    def inputs(self) -> dict[str, str]:
        return self._problems.inputs() if self._problems else {}

    def calls(self) -> Counter[str]:
        """Replies and tokens of the model that was asked."""
        calls = Counter[str]()
        for answered in self._answers.values():
            calls.update(answered.calls)
        return calls

    def ask(self, folder: Path) -> None:
        """Has a model answer all questions, where one is asked.

        `folder` keeps each reply the moment it comes, and in the end what came of each question, failures too: shards
        that are written already stay true when a build that was killed goes on.

        Raises:
            EngineError: a server cannot be reached, or answers nothing but failures.
        """
        section, asked, finished = self.section, self.section.asked, folder / "answers.jsonl"
        if asked is None:
            return
        if finished.is_file():
            self._answers = {row.pop("id"): Answered(**row) for _, row in read_jsonl(finished)}
            return
        tasks = self.questions()

        async def ask(name: str, model: RoleModel) -> Answered:
            return await answer(tasks[name], model, section.tries, self.seed)

        self._answers = ask_each(tasks, ask, asked, self.seed, "replay", folder, "replay questions")
        write_jsonl(finished, ({"id": name, **vars(one)} for name, one in self._answers.items()))


def replay_id(task: Task) -> str:
    return f"{task.id}-replay"


def question(task: Task) -> tuple[Message, ...]:
    return (user(task.question),)


async def answer(task: Task, model: RoleModel, tries: int, seed: int) -> Answered:
    """Asks one question until a reply is right, `tries` times at most.

    Right is what `probe.grading` takes for the reference's answer: a marked answer, else the last one stated, since a
    model that was not told to mark it may not. What stands there is kept as it is.
    """

    def read(reply: Reply) -> Parsed:
        parsed = read_assistant(reply)
        right = not parsed.unusable and same_answer(lenient_answer(parsed.text), task.answer)
        return parsed if right else replace(parsed, unusable=parsed.unusable or "wrong")

    name = replay_id(task)
    came = await model.ask(question(task), read, lambda attempt: item_seed(seed, name, "replay", attempt), tries)
    slips = [{"reason": one.unusable, "text": one.text} for one in came.unusable]
    if came.parsed is not None:
        return Answered(came.parsed.text, "", slips, came.calls)
    # A question that was answered wrongly once is a wrong one, whatever was cut or empty besides.
    wrong = len(slips) == tries and any(slip["reason"] == "wrong" for slip in slips)
    return Answered("", "replay_wrong" if wrong else came.missing, slips, came.calls)
