"""Builds a data folder from a recipe: problems in, conversations out, shard by shard.

settings.json is written first, manifest.json last. A shard is a run of problems and is a function of the
settings and of the shards before it, so a build that was killed skips the finished shards and ends with the
same bytes. Sources are read and checked in full before the folder is made.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from data_builders.folder import WORK, claim, finish
from data_builders.preferences import write_pairs
from data_builders.problems import Problems, difficulty_of
from data_builders.quality import Gate, probe_files
from data_builders.recipe import DataRecipe, ProblemKind, Source, shaping
from data_builders.replay import Answered, ReplayRows, answer_all
from data_builders.rows import rl_rows, sft_row
from data_builders.scripted import Conversation, converse, plan
from data_builders.starter import starter_problems
from data_builders.written import FILE, written
from probe.errors import RecipeError
from probe.files import atomic, read_jsonl, sha256_file, write_jsonl
from probe.sets import PACKAGED


def held_out(recipe: DataRecipe) -> list[dict[str, Any]]:
    """Problems for the probe's accuracy that are in no conversation.

    Raises:
        RecipeError: a source that is a file or written, and no file of held-out problems.
    """
    wanted, source = recipe.eval, recipe.source
    if not wanted.accuracy_n:
        return []
    if source.kind == "starter":
        tasks = starter_problems(wanted.accuracy_n, recipe.seed, "test", difficulty=difficulty_of(source))
    elif wanted.path is None:
        raise RecipeError("eval.path: missing, wanted a JSONL file of held-out problems (or accuracy_n 0)")
    else:
        kind: ProblemKind = "jsonl" if source.kind == "written" else source.kind
        problems = Problems(Source(kind=kind, path=wanted.path), recipe.seed, where="eval")
        tasks = (problems[index] for index in range(min(wanted.accuracy_n, len(problems))))
    return [
        {"id": one.id, "question": one.question, "answer": one.answer, "solution": one.boxed_solution or one.solution}
        for one in tasks
    ]


Row = dict[str, Any]
Views = dict[str, list[Row]]
"""Rows by the folder that they go to, "sft" last: its file is the last of a shard to be written."""


class Build:
    """A recipe with everything it names read and checked; nothing is written yet.

    Raises:
        BadInput: anything in the recipe or in the files it names cannot be used.
    """

    def __init__(self, recipe: DataRecipe) -> None:
        recipe.check()
        self.recipe = recipe
        self.problems = Problems(recipe.source, recipe.seed, reserved=recipe.replay.reserved(recipe.per_problem))
        chosen = recipe.chosen
        self.written = written(chosen, recipe.seed) if chosen else []
        replay = recipe.replay
        if replay.path is None and replay.source == recipe.source.kind:  # the same problems, asked plainly
            replay = dataclasses.replace(replay, path=recipe.source.path)
        self._answers: dict[str, Answered] = {}
        problems = max(1, len(self.problems))
        per_problem = recipe.per_problem + len(self.written) / problems  # of all rows a share is replay
        self.replay = ReplayRows(replay, per_problem, len(self.problems), recipe.seed, recipe.per_problem)
        rows = held_out(recipe)
        self.eval_rows = {"eval/accuracy.jsonl": rows} if rows else {}
        checked = [*recipe.quality.decontaminate, *([recipe.eval.path] if recipe.eval.path else []), *PACKAGED]
        self.quality = dataclasses.replace(recipe.quality, decontaminate=list(dict.fromkeys(checked)))
        files = {given: sha256_file(path) for given, path in probe_files(self.quality).items()}
        if self.written:
            files[FILE.name] = sha256_file(FILE)
        inputs = {**self.problems.inputs(), **self.replay.inputs(), **files}
        self.settings: dict[str, Any] = {**shaping(recipe), "inputs": inputs}

    def conversations(self, index: int) -> Iterator[Conversation]:
        """What problem `index` gives, without replay and what is written."""
        task, settings, seed = self.problems[index], self.recipe.conversations, self.recipe.seed
        for kind in plan(task, seed, settings):
            yield converse(task, kind, seed, settings)

    def sample(self, most: int) -> tuple[list[Conversation], float]:
        """The conversations of about `most` problems and written ones, evenly drawn, and which share of all that is."""
        step = max(1, (len(self.problems) + len(self.written)) // most)
        made = [one for index in range(0, len(self.problems), step) for one in self.conversations(index)]
        return [*self.written[::step], *made], 1 / step

    def shards(self) -> list[range]:
        size, every = self.recipe.output.shard_size, range(len(self.problems))
        return [every[start : start + size] for start in every[::size]]

    def expected_rows(self) -> int:
        """About how many conversations there will be, from the shares."""
        fraction = self.recipe.replay.fraction
        return round((len(self.problems) * self.recipe.per_problem + len(self.written)) / (1 - fraction))

    def gate(self, folder: Path) -> Gate:
        """The gate of this build, with what grows in `folder`. Raises DataError for a file that it cannot use."""
        return Gate(self.quality, self.expected_rows(), folder / "gate.sqlite")

    def run(self, out: Path) -> dict[str, Any]:
        """Builds into `out`, or takes up an interrupted build there, and returns the manifest."""
        with closing(self.gate(out / WORK)) as gate:  # reads files, so before anything is written
            claim(out, self.settings)
            if self.written and not self.taken_up(out, "written", gate):
                views: Views = {"rejected": [], "rl": [], "sft": []}
                for conversation in self.written:
                    self.judge(conversation, gate, views)
                write_shard(out, "written", views)
            self._answers = answer_all(self.replay, len(self.problems), out / WORK / "replay", self.recipe.seed)
            self.build_shards(out, gate)
        with atomic(out / "rejected.jsonl") as file:
            for part in sorted((out / "rejected").glob("part-*.jsonl")):
                with part.open("rb") as source:
                    shutil.copyfileobj(source, file)
        for name, rows in self.eval_rows.items():
            write_jsonl(out / name, rows)
        totals = self.totals(out)
        if self.recipe.preferences is not None:
            totals["pairs"] = write_pairs(self.recipe.preferences, out, out / WORK / "preferences", self.recipe.seed)
        return finish(out, self.settings, totals, gate.checked, self.quality.max_giveaway)

    def totals(self, out: Path) -> dict[str, Any]:
        """What the manifest says beside counts and files; of a build whose shards are all written."""
        if self.replay.section.asked is None:
            return {}
        calls = Counter[str]()
        for answered in self._answers.values():
            calls.update(answered.calls)
        return {"calls": dict(sorted(calls.items()))}

    def build_shards(self, out: Path, gate: Gate) -> None:
        from tqdm import tqdm

        with tqdm(total=len(self.problems), unit=" problems", disable=not self.problems or None) as bar:
            for number, shard in enumerate(self.shards()):
                if not self.taken_up(out, f"{number:05}", gate):
                    views: Views = {"rejected": [], "rl": [], "sft": []}
                    self.judge_shard(shard, map(self.conversations, shard), gate, views)
                    write_shard(out, f"{number:05}", views)
                bar.update(len(shard))

    def taken_up(self, out: Path, name: str, gate: Gate, saw: Callable[[str, Row], None] | None = None) -> bool:
        """Whether an earlier run wrote this shard; if so the gate learns what was kept, and `saw` each view and row."""
        if not (out / f"sft/part-{name}.jsonl").is_file():
            return False
        for view in ("rejected", "sft"):
            for _, row in read_jsonl(out / f"{view}/part-{name}.jsonl"):
                if view == "sft":
                    gate.remember(row["messages"], row["kind"])
                if saw is not None:
                    saw(view, row)
        return True

    def judge_shard(self, shard: range, made: Iterable[Iterable[Any]], gate: Gate, views: Views) -> None:
        """The rows of some problems, of what was `made` of each, and of the replay that goes with it."""
        for index, conversations in zip(shard, made, strict=True):
            for conversation in conversations:
                self.judge(conversation, gate, views)
            for plain, came in self.replay.rows(index, self._answers):
                if reason := came.reason or gate.reason(plain):
                    slips = {"slips": came.slips} if came.reason and came.slips else {}
                    views["rejected"].append({**sft_row(plain), "reason": reason, **slips})
                else:
                    views["sft"].append(sft_row(plain))

    def judge(self, made: Any, gate: Gate, views: Views) -> None:
        """The rows of one conversation: kept, with its prompts for reinforcement learning, or rejected."""
        if reason := gate.reason(made):
            views["rejected"].append({**sft_row(made), "reason": reason})
        else:
            views["sft"].append(sft_row(made))
            views["rl"] += map(vars, rl_rows(made))


def write_shard(out: Path, name: str, views: Views) -> None:
    for view, rows in views.items():
        write_jsonl(out / f"{view}/part-{name}.jsonl", rows)
