"""Replay: plain questions with their solutions, mixed in so that a model's single-turn answers are not forgotten.

The assistant turn is the reference solution, or the first right one of several replies of a model, which is to be the
model that will be trained: what it says already is what it should not forget. Replay rows are attached to problems by
number, so that a shard always holds the same ones.
"""

from __future__ import annotations

import math
import random
import shutil
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from data_builders.dialogue.roles import Meter, RoleModel, open_roles
from data_builders.dialogue.score import Parsed, Reply, read_assistant
from data_builders.dialogue.settings import RoleSection, check_role, role_shaping
from data_builders.problems import Kind, Problems, Source
from data_builders.scripted import Conversation
from data_builders.tasks import Task
from probe.conversations import Message
from probe.engines.base import item_seed
from probe.errors import RecipeError
from probe.files import read_jsonl, write_jsonl
from probe.grading import lenient_answer, same_answer
from probe.recipe import recipe_dict, section


@section
class Replay:
    """`fraction` of all rows is replay, from `source` (the file at `path`, else generated or from the hub)."""

    fraction: float = 0.0
    source: Kind = "starter"
    path: str | None = None
    answers: Literal["reference", "model"] = "reference"
    """Where the assistant turn comes from; `model` and what follows count only for `model`."""
    model: RoleSection | None = None
    """Asked the bare question; the base model itself is meant, so that what it can do already stays."""
    tries: int = 4
    """How often a question is asked at most; the first right reply is kept, a question without one is rejected."""
    max_cost: float | None = None
    """The build stops before the replies cost more; the same command with a higher limit goes on."""

    def check(self) -> None:
        """Raises RecipeError where the settings cannot be used."""
        if not 0 <= self.fraction < 1:
            raise RecipeError(f"replay.fraction: given {self.fraction}, wanted 0 or more and less than 1")
        if self.tries < 1:
            raise RecipeError(f"replay.tries: given {self.tries}, wanted 1 or more")
        if self.answers == "model":
            if self.model is None:
                raise RecipeError("replay.model: missing, wanted a section such as {engine: hf, model: smollm2-135m}")
            check_role("replay.model", self.model)

    @property
    def asked(self) -> RoleSection | None:
        """The model that is asked; None where no reply is needed."""
        return self.model if self.answers == "model" and self.fraction else None

    def shaping(self) -> dict[str, Any]:
        """The settings that shape what is written; those of a model only where one is asked."""
        kept = recipe_dict(self)
        for name in ("max_cost", *(() if self.asked else ("answers", "model", "tries"))):
            del kept[name]
        return {**kept, "model": role_shaping(self.asked)} if self.asked else kept


@dataclass(frozen=True)
class Answered:
    """What came of one question: the right reply, or the `reason` why there is none.

    Attributes:
        slips: the replies that could not be used, each as {reason, text}.
        calls: {"replay.calls", "replay.input", "replay.output"}: replies and their tokens.
    """

    text: str
    reason: str
    slips: tuple[dict[str, str], ...]
    calls: Mapping[str, int]


@dataclass(frozen=True)
class Replayed:
    """A replay row to be: its conversation, and why it cannot be used where no right reply came."""

    conversation: Conversation
    reason: str = ""
    slips: tuple[dict[str, str], ...] = ()


class ReplayRows:
    """The replay rows that go with problem `i`; their count follows `fraction` on average.

    Args:
        per_problem: conversations that one problem gives on average.
        problems: how many problems there are.
    """

    def __init__(self, replay: Replay, per_problem: float, problems: int, seed: int) -> None:
        self.section = replay
        self._per_problem = per_problem * replay.fraction / (1 - replay.fraction)
        self._seed = seed
        self._problems: Problems | None = None
        if replay.fraction:
            n = problems if replay.source == "starter" else None
            # Another seed, so that generated replay problems are others than those of the conversations.
            self._problems = Problems(Source(kind=replay.source, path=replay.path, n=n), seed + 1, where="replay")

    def count(self, index: int) -> int:
        """How many rows go with this problem."""
        return int(self._per_problem + random.Random(f"replay:{self._seed}:{index}").random())

    def tasks(self, index: int) -> list[Task]:
        if self._problems is None:
            return []
        first = index * math.ceil(self._per_problem)  # no replay problem twice before all had their turn
        return [self._problems[first + number] for number in range(self.count(index))]

    def for_problem(self, index: int, answers: Mapping[str, Answered]) -> list[Replayed]:
        """Its rows, with the reference solutions, or with the `answers` of a model by `replay_id`."""
        if self.section.asked is None:
            return [Replayed(_plain(task, _reference(task))) for task in self.tasks(index)]
        return [_answered(task, answers[replay_id(task)]) for task in self.tasks(index)]

    def inputs(self) -> dict[str, str]:
        return self._problems.inputs() if self._problems else {}


def replay_id(task: Task) -> str:
    return f"{task.id}-replay"


def question(task: Task) -> tuple[Message, ...]:
    return ({"role": "user", "content": task.question},)


def _reference(task: Task) -> str:
    return task.boxed_solution or f"{task.solution}\nThe answer is \\boxed{{{task.answer}}}."


def _answered(task: Task, answered: Answered) -> Replayed:
    """A rejected one shows its last reply."""
    text = answered.text or (answered.slips[-1]["text"] if answered.slips else "")
    return Replayed(_plain(task, text), answered.reason, answered.slips if answered.reason else ())


def _plain(task: Task, answer: str) -> Conversation:
    reply = ({"role": "assistant", "content": answer},) if answer else ()
    return Conversation(
        id=replay_id(task), kind="replay", messages=(*question(task), *reply), source=task.source, answer=task.answer
    )


# --- Has a model answer the replay questions of a build, before anything else is made, and keeps what came of each.
#
# The answers of a shard lie in a file of their own, written when all of them are there, until the build ends. Replies are
# kept the moment they come, so that a build that was killed asks again only for what was under way.

# Questions that a model in this process gets together, at least: full batches without holding a whole build.
_TOGETHER = 256

Shards = Mapping[int, range]


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
    slips = tuple({"reason": one.unusable, "text": one.text} for one in came.unusable)
    if came.parsed is not None:
        return Answered(came.parsed.text, "", slips, came.calls)
    # A question that was answered wrongly once is a wrong one, whatever was cut or empty besides.
    wrong = len(slips) == tries and any(slip["reason"] == "wrong" for slip in slips)
    return Answered("", "replay_wrong" if wrong else came.missing, slips, came.calls)


def answer_all(rows: ReplayRows, shards: Shards, folder: Path, seed: int) -> None:
    """Asks the model of a `replay:` section what is not answered yet; `folder` gets a file for each shard.

    Raises:
        EngineError: a server cannot be reached, or answers nothing but failures.
        NextturnError: `replay.max_cost` is used up.
    """
    from tqdm import tqdm

    section, asked = rows.section, rows.section.asked
    assert asked is not None
    meter = Meter({"replay": asked.price}, section.max_cost, "replay.max_cost")
    counts = {number: sum(rows.count(index) for index in shard) for number, shard in shards.items()}
    rejected = 0
    with tqdm(total=sum(counts.values()), desc="replay", unit=" questions", disable=None) as bar:

        def count(answered: Answered) -> None:
            nonlocal rejected
            rejected += bool(answered.reason)
            bar.update()
            bar.set_postfix({"rejected": rejected, **meter.shown()}, refresh=False)

        # What an earlier run answered counts, and is not asked again. A model in this process is asked for a whole stretch
        # or nothing: the replies that are stored make up the same batches.
        missing: list[Shards] = []
        for stretch in [shards] if asked.server is not None else _stretches(shards, counts):
            done = [number for number in stretch if _part(folder, number).is_file()]
            if asked.server is None and len(done) < len(stretch):
                done = []
            for number in done:
                for answered in load_answers(folder, number).values():
                    meter.add(answered.calls)
                    count(answered)
            if left := {number: shard for number, shard in stretch.items() if number not in done}:
                missing.append(left)
        if not missing:
            return

        with closing(open_roles({"replay": asked}, seed, meter.heard)) as roles:

            async def named(task: Task) -> tuple[str, Answered]:
                answered = await answer(task, roles["replay"], section.tries, seed)
                count(answered)
                return replay_id(task), answered

            def questions(stretch: Shards) -> Iterator[Coroutine[Any, Any, tuple[str, Answered]]]:
                return (named(task) for shard in stretch.values() for index in shard for task in rows.tasks(index))

            for stretch in missing:
                waiting = list(stretch)
                came: list[tuple[str, Answered]] = []

                def take(
                    one: tuple[str, Answered] | None, waiting: list[int] = waiting, came: list[Any] = came
                ) -> None:
                    """Writes each shard as soon as its answers are there; at once where it has no questions."""
                    came += [one] if one is not None else []
                    while waiting and len(came) == counts[waiting[0]]:
                        lines = ({"id": name, **vars(answered)} for name, answered in came)
                        write_jsonl(_part(folder, waiting.pop(0)), lines)
                        came.clear()

                take(None)
                if asked.server is not None:
                    roles.run(questions(stretch), 3 * asked.server.concurrency, take, folder / "replies")
                else:
                    replies = folder / "replies" / f"part-{min(stretch):05}"
                    roles.run(questions(stretch), _TOGETHER, take, replies)
                    shutil.rmtree(replies)


def _stretches(shards: Shards, counts: Mapping[int, int]) -> list[Shards]:
    """Shards whose questions a model in this process is asked together, the same ones in every run: what it replies may
    hang on what is asked beside it."""
    stretches: list[dict[int, range]] = []
    questions = _TOGETHER
    for number, shard in sorted(shards.items()):
        if questions >= _TOGETHER:
            stretches.append({})
            questions = 0
        stretches[-1][number] = shard
        questions += counts[number]
    return list(stretches)


def load_answers(folder: Path, number: int) -> dict[str, Answered]:
    """What came of a shard's questions, by `replay_id`."""
    rows = (row for _, row in read_jsonl(_part(folder, number)))
    return {row.pop("id"): Answered(**{**row, "slips": tuple(row["slips"])}) for row in rows}


def count_answers(folder: Path, shards: Iterable[int]) -> Counter[str]:
    """Replies and tokens of all questions: {"replay.calls", "replay.input", "replay.output"}."""
    total: Counter[str] = Counter()
    for number in shards:
        for answered in load_answers(folder, number).values():
            total.update(answered.calls)
    return total


def _part(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05}.jsonl"
