"""Replay: plain questions with their solutions, mixed in so that a model keeps its single-turn answers.

The assistant turn is the reference solution, or the first right reply of a model. That model should be the one that will be
trained, since its own answers are what it should not forget. Replay rows belong to problems by number, so a part always
holds the same ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from nextturn.data_builders.dialogue.replies import Parsed, read_assistant
from nextturn.data_builders.problems import Problems
from nextturn.data_builders.sections import DataRecipe, Source
from nextturn.data_builders.tasks import Conversation, Task
from nextturn.probe.command.files import read_jsonl, write_jsonl
from nextturn.probe.data.messages import user
from nextturn.probe.engines.ask import Answer, Ask, Reply, ask, open_model
from nextturn.probe.engines.base import item_seed
from nextturn.probe.text.equality import same_answer
from nextturn.probe.text.grading import lenient_answer


@dataclass(frozen=True)
class Answered:
    """The outcome of one question.

    Attributes:
        text: The right reply; "" if there is none.
        reason: Why there is no right reply.
        slips: The unusable replies, each as {reason, text}.
        calls: {"replay.calls", "replay.input", "replay.output"}: replies and their tokens.
    """

    text: str
    reason: str
    slips: list[dict[str, str]]
    calls: Mapping[str, int]


class ReplayRows:
    """The replay rows of a build, spread evenly over its problems, or over its written conversations if it has no problems.

    Args:
        problems: Number of problems of the build.
        written: Number of written conversations of the build.
    """

    def __init__(self, recipe: DataRecipe, problems: int, written: int) -> None:
        self.section, self.seed = recipe.replay, recipe.seed
        self._count = problems or written
        # `fraction` of all rows is replay; the written ones are among all rows.
        self._per_problem = self.section.per_row(recipe.per_problem + written / problems if problems else 1.0)
        self._answers: dict[str, Answered] = {}
        self._problems: Problems | None = None
        if self.section.fraction:
            kind, path = self.section.source or recipe.source.kind, self.section.path
            same_kind = {}
            if kind == recipe.source.kind:  # problems of the same levels and subjects, asked plainly
                path = recipe.source.path if path is None else path
                same_kind = {name: getattr(recipe.source, name) for name in ("levels", "subjects")}
            source = Source(kind=kind, path=path, **same_kind)
            reserved = recipe.reserved if problems else 0.0
            self._problems = Problems(source, self.seed + 1, "replay", reserved, replay=True)

    def __len__(self) -> int:
        return math.floor(self._count * self._per_problem) if self._problems else 0

    def tasks(self, index: int) -> list[Task]:
        """Return the replay tasks of a problem. No task comes twice before all others came."""
        if self._problems is None:
            return []
        first, last = (math.floor(count * self._per_problem) for count in (index, index + 1))
        return [self._problems[number] for number in range(first, last)]

    def questions(self) -> dict[str, Task]:
        """Return all tasks by id. A task that comes twice is asked once."""
        return {replay_id(task): task for index in range(self._count) for task in self.tasks(index)}

    def rows(self, index: int) -> Iterator[Conversation]:
        """Yield the replay rows of a problem. A row without a right reply shows the last reply. Call `ask` first."""
        for task in self.tasks(index):
            if self.section.asked:
                outcome = self._answers[replay_id(task)]
            else:  # an answer alone does not show how to solve anything
                outcome = Answered(
                    task.reference if task.solution else "", "" if task.solution else "no_solution", [], {}
                )
            text = outcome.text or (outcome.slips[-1]["text"] if outcome.slips else "")
            reply = [{"role": "assistant", "content": text}] if text else []
            yield Conversation(
                replay_id(task), "replay", (user(task.question), *reply), task.source, task.answer,
                reason=outcome.reason, unusable=outcome.slips if outcome.reason and outcome.slips else None,
            )  # fmt: skip

    def inputs(self) -> dict[str, str]:
        return self._problems.inputs() if self._problems else {}

    def calls(self) -> Counter[str]:
        """Return the number of replies of the model, and of their tokens. A request that is sent again counts once."""
        calls = Counter[str]()
        for outcome in self._answers.values():
            calls.update(outcome.calls)
        return calls

    def ask(self, folder: Path) -> None:
        """Have the model answer all questions, if the recipe names one.

        Args:
            folder: Stores each reply at once, and in the end the outcome of each question, failures too. So parts that
                are already written stay valid when a build resumes.

        Raises:
            EngineError: A server cannot be reached, or returns nothing but failures.
        """
        section, asked, finished = self.section, self.section.asked, folder / "answers.jsonl"
        if asked is None:
            return
        if finished.is_file():
            self._answers = {row.pop("id"): Answered(**row) for _, row in read_jsonl(finished)}
            return
        tasks = self.questions()
        with open_model("replay", asked, self.seed, "replay.model", folder) as model:
            answers = ask(model, [question(task, self.seed) for task in tasks.values()], section.tries)
        self._answers = {name: answered(answer, section.tries) for name, answer in zip(tasks, answers, strict=True)}
        write_jsonl(finished, ({"id": name, **vars(answer)} for name, answer in self._answers.items()))


def replay_id(task: Task) -> str:
    return f"{task.id}-replay"


def question(task: Task, seed: int) -> Ask[Parsed]:
    """Return a plain question whose reply has to be right.

    A reply is right if its marked answer, or else its last stated answer, is the reference answer: a model that was not told
    to mark its answer may not do so.
    """

    def read(reply: Reply) -> Parsed:
        parsed = read_assistant(reply)
        right = not parsed.unusable and same_answer(lenient_answer(parsed.text), task.answer)
        return parsed if right else replace(parsed, unusable=parsed.unusable or "wrong")

    return Ask((user(task.question),), read, partial(item_seed, seed, replay_id(task), "replay"))


def answered(answer: Answer[Parsed], attempts: int) -> Answered:
    """Return the outcome of a question that was asked at most `attempts` times."""
    slips = [{"reason": parsed.unusable, "text": parsed.text} for parsed in answer.unusable]
    if answer.parsed is not None:
        return Answered(answer.parsed.text, "", slips, answer.calls)
    # A question with one wrong reply counts as wrong, even if the other replies were cut or empty.
    wrong = len(slips) == attempts and any(slip["reason"] == "wrong" for slip in slips)
    return Answered("", "replay_wrong" if wrong else f"replay_{answer.missing}", slips, answer.calls)
