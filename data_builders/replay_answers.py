"""Has a model answer the replay questions of a build, before anything else is made, and keeps what came of each.

The answers of a shard lie in a file of their own, written when all of them are there, until the build ends. Replies are
kept the moment they come, so that a build that was killed asks again only for what was under way.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_builders.dialogue.meter import Meter
from data_builders.dialogue.pool import Pool
from data_builders.dialogue.replies import read_assistant
from data_builders.dialogue.settings import RoleSection
from data_builders.dialogue.speaker import Ask, Flow
from data_builders.dialogue.speakers import open_speakers
from data_builders.replay import Answered, ReplayRows, question, replay_id
from data_builders.tasks import Task
from probe.answers import lenient_answer, same_answer
from probe.engines.base import item_seed
from probe.files import read_jsonl, write_jsonl

if TYPE_CHECKING:
    from tqdm import tqdm

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
