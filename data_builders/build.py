"""Builds a data folder from a recipe: problems in, conversations out, shard by shard.

settings.json is written first, manifest.json last. A shard is a run of problems and is a function of the
settings and of the shards before it, so a build that was killed skips the finished shards and ends with the
same bytes. Sources are read and checked in full before the folder is made.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from data_builders.folder import WORK, claim, concatenate, finish
from data_builders.problems import Problems, Source, difficulty_of
from data_builders.quality import Gate
from data_builders.recipe import DataRecipe
from data_builders.replay import Answered, ReplayRows, answer_all
from data_builders.rows import rl_rows, sft_row
from data_builders.scripted import Conversation, converse, plan
from data_builders.starter import starter_problems
from data_builders.tasks import Task
from probe.errors import RecipeError
from probe.files import read_jsonl, sha256_file, write_jsonl
from probe.recipe import recipe_dict

# --- The held-out sets that are written beside the data: problems for accuracy, and pairs for clarify.


def evaluation(recipe: DataRecipe) -> dict[str, list[dict[str, Any]]]:
    """Held-out problems for accuracy, and others in complete and underspecified form for clarify.

    Raises:
        RecipeError: a source that is a file, and no file of held-out problems.
    """
    wanted, seed = recipe.eval, recipe.seed
    if not wanted.accuracy_n and not wanted.clarify_n:
        return {}
    if recipe.source.kind == "starter":
        hard = difficulty_of(recipe.source)
        accuracy = list(starter_problems(wanted.accuracy_n, seed, "test", difficulty=hard))
        clarify = list(starter_problems(wanted.clarify_n, seed, "test", start=wanted.accuracy_n, difficulty=hard))
    else:
        if wanted.path is None:
            raise RecipeError(
                "eval.path: missing, wanted a JSONL file of held-out problems (or accuracy_n and clarify_n 0)"
            )
        kind = recipe.source.kind
        held_out = Problems(Source(kind=kind, path=wanted.path), seed, where="eval")
        tasks = (held_out[index] for index in range(len(held_out)))  # made one by one: the rest is not needed
        accuracy = list(itertools.islice(tasks, wanted.accuracy_n))
        clarify = list(itertools.islice((task for task in tasks if task.gaps), wanted.clarify_n))
    return {"accuracy": [_accuracy_row(task) for task in accuracy], "clarify": [_pair(task, seed) for task in clarify]}


def _accuracy_row(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "question": task.question,
        "answer": task.answer,
        "solution": task.boxed_solution or task.solution,
    }


def _pair(task: Task, seed: int) -> dict[str, Any]:
    gap = random.Random(f"pair:{seed}:{task.id}").choice(task.gaps)
    return {
        "id": task.id, "complete": task.question, "underspecified": gap.question, "missing": gap.clause, "answer": task.answer,
    }  # fmt: skip


Row = dict[str, Any]
ANSWERS = f"{WORK}/replay"


class Build:
    """A recipe with everything it names read and checked; nothing is written yet.

    Raises:
        BadInput: anything in the recipe or in the files it names cannot be used.
    """

    def __init__(self, recipe: DataRecipe) -> None:
        recipe.check()
        if recipe.output.shard_size < 1:
            raise RecipeError(f"output.shard_size: given {recipe.output.shard_size}, wanted 1 or more")
        self.recipe = recipe
        self.problems = Problems(recipe.source, recipe.seed)
        replay = recipe.replay
        if replay.path is None and replay.source == recipe.source.kind:  # the same problems, asked plainly
            replay = dataclasses.replace(replay, path=recipe.source.path)
        self._answers: dict[str, Answered] = {}
        self.replay = ReplayRows(replay, recipe.per_problem, len(self.problems), recipe.seed)
        self.eval_rows = {f"eval/{name}.jsonl": rows for name, rows in evaluation(recipe).items() if rows}
        checked = [*recipe.quality.decontaminate, *([recipe.eval.path] if recipe.eval.path else [])]
        self.quality = dataclasses.replace(recipe.quality, decontaminate=checked)
        files = {given: sha256_file(path) for given, path in self.quality.files().items()}
        settings = recipe_dict(recipe)
        del settings["output"]["path"]  # the folder may be moved
        settings["replay"] = recipe.replay.shaping()
        if recipe.dialogue is None:
            del settings["dialogue"]
        self.settings: dict[str, Any] = {
            **settings,
            "inputs": {**self.problems.inputs(), **self.replay.inputs(), **files},
        }

    def conversations(self, index: int) -> Iterator[Conversation]:
        """What problem `index` gives, without replay."""
        task, settings, seed = self.problems[index], self.recipe.conversations, self.recipe.seed
        for kind in plan(task, seed, settings):
            yield converse(task, kind, seed, settings)

    def shards(self) -> list[range]:
        size = self.recipe.output.shard_size
        return [range(start, min(start + size, len(self.problems))) for start in range(0, len(self.problems), size)]

    def expected_rows(self) -> int:
        """About how many conversations there will be, from the shares."""
        fraction = self.recipe.replay.fraction
        return round(len(self.problems) * self.recipe.per_problem / (1 - fraction))

    def gate(self, folder: Path) -> Gate:
        """The gate of this build, with what grows in `folder`. Raises DataError for a file that it cannot use."""
        return Gate(self.quality, self.expected_rows(), folder / "gate.sqlite")

    def run(self, out: Path) -> dict[str, Any]:
        """Builds into `out`, or takes up an interrupted build there, and returns the manifest."""
        with closing(self.gate(out / WORK)) as gate:  # reads files, so before anything is written
            claim(out, self.settings)
            self._answers = answer_all(self.replay, len(self.problems), out / ANSWERS, self.recipe.seed)
            self._build_shards(out, gate)
        concatenate(sorted((out / "rejected").glob("part-*.jsonl")), out / "rejected.jsonl")
        for name, rows in self.eval_rows.items():
            write_jsonl(out / name, rows)
        return finish(out, self.settings, self.totals(out), gate.checked)

    def totals(self, out: Path) -> dict[str, Any]:
        """What the manifest says beside counts and files; of a build whose shards are all written."""
        if self.replay.section.asked is None:
            return {}
        calls = Counter[str]()
        for answered in self._answers.values():
            calls.update(answered.calls)
        return {"calls": dict(sorted(calls.items()))}

    def _build_shards(self, out: Path, gate: Gate) -> None:
        from tqdm import tqdm

        kept = rejected = 0
        with tqdm(total=len(self.problems), unit=" problems", disable=None) as bar:
            for number, shard in enumerate(self.shards()):
                files = {view: out / f"{view}/part-{number:05}.jsonl" for view in ("rejected", "rl", "sft")}
                if files["sft"].is_file():  # written last of its shard
                    for _, row in read_jsonl(files["sft"]):
                        gate.remember(row["messages"], row["kind"])
                        kept += 1
                    rejected += sum(1 for _ in read_jsonl(files["rejected"]))
                else:
                    views = self._judge(shard, gate)
                    for view, path in files.items():
                        write_jsonl(path, views[view])
                    kept, rejected = kept + len(views["sft"]), rejected + len(views["rejected"])
                bar.update(len(shard))
                bar.set_postfix({"kept": f"{kept:,}", "rejected": f"{rejected:,}"})

    def _judge(self, shard: range, gate: Gate) -> dict[str, list[Row]]:
        """The rows of a shard: those kept, their prompts for reinforcement learning, and those rejected."""
        views: dict[str, list[Row]] = {"rejected": [], "rl": [], "sft": []}
        for index in shard:
            for conversation in self.conversations(index):
                if reason := gate.reason(conversation):
                    views["rejected"].append({**sft_row(conversation), "reason": reason})
                else:
                    views["sft"].append(sft_row(conversation))
                    views["rl"] += map(vars, rl_rows(conversation))
            for row in self.replay_rows(index, gate):
                views["rejected" if "reason" in row else "sft"].append(row)
        return views

    def replay_rows(self, index: int, gate: Gate) -> Iterator[Row]:
        """The replay rows that go with a problem; a rejected one has a `reason`."""
        for plain in self.replay.for_problem(index, self._answers):
            row, reason = sft_row(plain.conversation), plain.reason or gate.reason(plain.conversation)
            told = {"reason": reason} | ({"slips": list(plain.slips)} if plain.slips else {})
            yield {**row, **told} if reason else row
