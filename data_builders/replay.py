"""Replay: plain questions with their solutions, mixed in so that a model's single-turn answers are not forgotten.

The assistant turn is the reference solution, or the first right one of several replies of a model, which is to be the
model that will be trained: what it says already is what it should not forget. Replay rows are attached to problems by
number, so that a shard always holds the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from data_builders.dialogue.roles import Meter, RoleModel, ask_each
from data_builders.dialogue.score import Parsed, Reply, read_assistant
from data_builders.problems import Problems
from data_builders.recipe import Replay, Source
from data_builders.scripted import Conversation
from data_builders.tasks import Task
from probe.conversations import Message, user
from probe.engines.base import item_seed
from probe.files import read_jsonl, write_jsonl
from probe.grading import lenient_answer, same_answer


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
    """The replay rows that go with problem `i`; their count follows `fraction` on average.

    Args:
        per_problem: conversations that one problem gives on average.
        problems: how many problems there are.
        reserved_for: what `Replay.reserved` was asked with for the problems of the conversations.
    """

    def __init__(self, replay: Replay, per_problem: float, problems: int, seed: int, reserved_for: float = 0.0) -> None:
        self.section = replay
        self._per_problem = replay.per_row(per_problem)
        self._problems: Problems | None = None
        if replay.fraction:
            n = problems if replay.source == "starter" else None
            # Another seed, so that generated replay problems are others than those of the conversations.
            source = Source(kind=replay.source, path=replay.path, n=n)
            self._problems = Problems(source, seed + 1, "replay", replay.reserved(reserved_for), replay=True)

    def tasks(self, index: int) -> list[Task]:
        """The questions that go with this problem."""
        if self._problems is None:
            return []
        # No replay problem twice before all had their turn.
        first, last = (math.floor(place * self._per_problem) for place in (index, index + 1))
        return [self._problems[number] for number in range(first, last)]

    def rows(self, index: int, answers: Mapping[str, Answered]) -> Iterator[tuple[Conversation, Answered]]:
        """Its rows with the reference solutions, or where a model is asked with its `answers` by `replay_id`; one without a
        right reply shows the last."""
        for task in self.tasks(index):
            reference = task.boxed_solution or f"{task.solution}\nThe answer is \\boxed{{{task.answer}}}."
            came = answers[replay_id(task)] if self.section.asked else Answered(reference, "", [], {})
            text = came.text or (came.slips[-1]["text"] if came.slips else "")
            reply = ({"role": "assistant", "content": text},) if text else ()
            yield Conversation(replay_id(task), "replay", (*question(task), *reply), task.source, task.answer), came

    def inputs(self) -> dict[str, str]:
        return self._problems.inputs() if self._problems else {}


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


def answer_all(rows: ReplayRows, problems: int, folder: Path, seed: int) -> dict[str, Answered]:
    """What a model answers to the questions that go with `problems` problems, by `replay_id`; {} where none is asked.

    `folder` keeps each reply the moment it comes, and in the end what came of each question, failures too: shards that
    are written already stay true when a build that was killed goes on.

    Raises:
        EngineError: a server cannot be reached, or answers nothing but failures.
        NextturnError: `replay.max_cost` is used up.
    """
    section, asked, finished = rows.section, rows.section.asked, folder / "answers.jsonl"
    if asked is None:
        return {}
    if finished.is_file():
        return {row.pop("id"): Answered(**row) for _, row in read_jsonl(finished)}
    # A source may come round to a problem again; it is asked once.
    tasks = {replay_id(task): task for index in range(problems) for task in rows.tasks(index)}

    async def ask(name: str, model: RoleModel) -> Answered:
        return await answer(tasks[name], model, section.tries, seed)

    meter = Meter({"replay": asked.price}, section.max_cost, "replay.max_cost")
    answers = ask_each(tasks, ask, asked, seed, meter, folder, "replay questions")
    write_jsonl(finished, ({"id": name, **vars(one)} for name, one in answers.items()))
    return answers
