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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from data_builders.dialogue.roles import Ask, Flow, Meter, Pool, open_speakers
from data_builders.dialogue.score import read_assistant
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

if TYPE_CHECKING:
    from tqdm import tqdm


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

# A reply that was wrong at temperature 0 would be wrong again.
_AGAIN_AT_LEAST = 0.5
# Questions that a model in this process gets together, at least: full batches without holding a whole build.
_TOGETHER = 256

Shards = Mapping[int, range]


def answered(task: Task, section: RoleSection, tries: int, seed: int) -> Flow[Answered]:
    """The flow of one question: asked until a reply is right, `tries` times at most.

    Right is what `probe.answers` takes for the reference's answer: a marked answer, else the last one stated, since a
    model that was not told to mark it may not. What stands there is kept as it is.
    """
    calls: Counter[str] = Counter()
    slips: list[dict[str, str]] = []
    for attempt in range(tries):
        temperature = max(section.temperature, _AGAIN_AT_LEAST) if attempt else section.temperature
        own = item_seed(seed, replay_id(task), "replay", attempt)
        (said,) = yield [Ask("replay", question(task), own, temperature, section.max_tokens)]
        calls.update({"replay.calls": 1, "replay.input": said.prompt_tokens, "replay.output": said.tokens})
        if said.failure:  # its engine has tried already
            return Answered("", f"replay_{said.failure}", tuple(slips), calls)
        heard = read_assistant(said)
        if not heard.slip and same_answer(lenient_answer(heard.text), task.answer):
            return Answered(heard.text, "", tuple(slips), calls)
        slips.append({"reason": heard.slip or "wrong", "text": heard.text})
    finished = any(slip["reason"] == "wrong" for slip in slips)
    return Answered("", "replay_wrong" if finished else f"replay_{slips[-1]['reason']}", tuple(slips), calls)


def load_answers(folder: Path, number: int) -> dict[str, Answered]:
    """What came of a shard's questions, by `replay_id`."""
    rows = (row for _, row in read_jsonl(_part(folder, number)))
    return {row.pop("id"): Answered(**{**row, "slips": tuple(row["slips"])}) for row in rows}


def count_answers(folder: Path, shards: Iterable[int]) -> Counter[str]:
    """Replies and tokens of all questions: {"replay.calls", "replay.input", "replay.output"}."""
    total: Counter[str] = Counter()
    for number in shards:
        for answer in load_answers(folder, number).values():
            total.update(answer.calls)
    return total


class Answering:
    """Asks the model of a `replay:` section; `folder` gets a file for each shard."""

    def __init__(self, rows: ReplayRows, folder: Path, seed: int) -> None:
        asked = rows.section.asked
        assert asked is not None
        self.rows = rows
        self.asked = asked
        self.folder = folder
        self.seed = seed
        self.meter = Meter({"replay": asked.price}, rows.section.max_cost, "replay.max_cost")
        self._wrong = 0

    def run(self, shards: Shards) -> None:
        """Answers what is not answered yet.

        Raises:
            EngineError: a server cannot be reached, or answers nothing but failures.
            NextturnError: `replay.max_cost` is used up.
        """
        from tqdm import tqdm

        total = sum(self._questions(shard) for shard in shards.values())
        with tqdm(total=total, desc="replay", unit=" questions", disable=None) as bar:
            missing = [left for stretch in self._stretches(shards) if (left := self._take_over(stretch, bar))]
            if missing:
                with closing(open_speakers({"replay": self.asked}, self.seed)) as speakers:
                    for stretch in missing:
                        at_once = _TOGETHER if self.asked.server is None else 3 * self.asked.server.concurrency
                        self._play(stretch, Pool(speakers.by_role, at_once, self.meter.heard), bar)

    def _stretches(self, shards: Shards) -> list[Shards]:
        """Shards whose questions are asked together, the same ones in every run: what a model in this process replies
        may hang on what is asked beside it. What a server replies does not."""
        if self.asked.server is not None:
            return [shards]
        stretches: list[dict[int, range]] = []
        questions = _TOGETHER
        for number, shard in sorted(shards.items()):
            if questions >= _TOGETHER:
                stretches.append({})
                questions = 0
            stretches[-1][number] = shard
            questions += self._questions(shard)
        return list(stretches)

    def _take_over(self, stretch: Shards, bar: tqdm[Any]) -> Shards:
        """Counts what an earlier run answered, and returns what is still to be asked."""
        done = [number for number in stretch if _part(self.folder, number).is_file()]
        if self.asked.server is None and len(done) < len(stretch):
            return stretch
        for number in done:
            for answer in load_answers(self.folder, number).values():
                self.meter.add(answer.calls)
                self._show(bar, answer)
        return {number: shard for number, shard in stretch.items() if number not in done}

    def _play(self, shards: Shards, pool: Pool[Answered], bar: tqdm[Any]) -> None:
        waiting = {number: self._questions(shard) for number, shard in shards.items()}
        came: dict[int, dict[str, Answered]] = {number: {} for number in shards}
        where: dict[int, tuple[int, str]] = {}

        def flows() -> Iterator[tuple[int, Flow[Answered]]]:
            tasks = (
                (number, task) for number, shard in shards.items() for index in shard for task in self.rows.tasks(index)
            )
            for ticket, (number, task) in enumerate(tasks):
                where[ticket] = number, replay_id(task)
                yield ticket, answered(task, self.asked, self.rows.section.tries, self.seed)

        for number in [number for number, questions in waiting.items() if not questions]:
            self._write(number, {})
        replies = self.folder / "replies" / ("" if self.asked.server is not None else f"part-{min(shards):05}")
        with closing(pool.run(flows(), replies)) as played:
            for ticket, answer in played:
                number, name = where.pop(ticket)
                came[number][name] = answer
                self._show(bar, answer)
                if len(came[number]) == waiting[number]:
                    self._write(number, came.pop(number))
        if self.asked.server is None:
            shutil.rmtree(replies)

    def _questions(self, shard: range) -> int:
        return sum(self.rows.count(index) for index in shard)

    def _write(self, number: int, came: Mapping[str, Answered]) -> None:
        write_jsonl(_part(self.folder, number), ({"id": name, **vars(answer)} for name, answer in came.items()))

    def _show(self, bar: tqdm[Any], answer: Answered) -> None:
        self._wrong += bool(answer.reason)
        bar.update()
        bar.set_postfix({"rejected": self._wrong, **self.meter.shown()}, refresh=False)


def _part(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05}.jsonl"
