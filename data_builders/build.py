"""Builds a data folder from a recipe: problems in, conversations out, shard by shard.

settings.json is written first, manifest.json last. A shard is a run of problems and is a function of the
settings and of the shards before it, so a build that was killed skips the finished shards and ends with the
same bytes. Sources are read and checked in full before the folder is made.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from data_builders.folder import WORK, claim, concatenate, finish
from data_builders.preferences import write_pairs
from data_builders.problems import Kind, Problems, Source, difficulty_of
from data_builders.quality import Gate
from data_builders.recipe import DataRecipe
from data_builders.replay import Answered, ReplayRows, answer_all
from data_builders.rows import rl_rows, sft_row
from data_builders.scripted import Conversation, converse, plan
from data_builders.starter import starter_problems
from data_builders.written import FILE, written
from probe.errors import RecipeError
from probe.files import read_jsonl, sha256_file, write_jsonl
from probe.recipe import recipe_dict
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
        kind: Kind = "jsonl" if source.kind == "written" else source.kind
        problems = Problems(Source(kind=kind, path=wanted.path), recipe.seed, where="eval")
        tasks = (problems[index] for index in range(min(wanted.accuracy_n, len(problems))))
    return [
        {
            "id": task.id,
            "question": task.question,
            "answer": task.answer,
            "solution": task.boxed_solution or task.solution,
        }
        for task in tasks
    ]


Row = dict[str, Any]
Views = dict[str, list[Row]]
"""Rows by the folder that they go to."""
ANSWERS, PAIRS = f"{WORK}/replay", f"{WORK}/preferences"


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
        files = {given: sha256_file(path) for given, path in self.quality.files().items()}
        if self.written:
            files[FILE.name] = sha256_file(FILE)
        settings = recipe_dict(recipe)
        del settings["output"]["path"]  # the folder may be moved
        del settings["quality"]["max_giveaway"]  # it shapes no row
        settings["replay"] = recipe.replay.shaping()
        if recipe.preferences is None:
            del settings["preferences"]
        else:
            settings["preferences"] = recipe.preferences.shaping()
        if recipe.dialogue is None:
            del settings["dialogue"]
        self.settings: dict[str, Any] = {
            **settings,
            "inputs": {**self.problems.inputs(), **self.replay.inputs(), **files},
        }

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
        size = self.recipe.output.shard_size
        return [range(start, min(start + size, len(self.problems))) for start in range(0, len(self.problems), size)]

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
            if self.written:
                self._shard(out, "written", gate, partial(self._judge, self.written, gate))
            self._answers = answer_all(self.replay, len(self.problems), out / ANSWERS, self.recipe.seed)
            self._build_shards(out, gate)
        concatenate(sorted((out / "rejected").glob("part-*.jsonl")), out / "rejected.jsonl")
        for name, rows in self.eval_rows.items():
            write_jsonl(out / name, rows)
        totals = self.totals(out)
        if self.recipe.preferences is not None:
            totals["pairs"] = write_pairs(self.recipe.preferences, out, out / PAIRS, self.recipe.seed)
        return finish(out, self.settings, totals, gate.checked, self.quality.max_giveaway)

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
        with tqdm(total=len(self.problems), unit=" problems", disable=not self.problems or None) as bar:
            for number, shard in enumerate(self.shards()):
                counts = self._shard(out, f"{number:05}", gate, partial(self._judge_problems, shard, gate))
                kept, rejected = kept + counts[0], rejected + counts[1]
                bar.update(len(shard))
                bar.set_postfix({"kept": f"{kept:,}", "rejected": f"{rejected:,}"})

    def _shard(self, out: Path, name: str, gate: Gate, judge: Callable[[], Views]) -> tuple[int, int]:
        """Writes a shard, or reminds the gate of one that is there; how many rows it keeps and rejects."""
        files = {view: out / f"{view}/part-{name}.jsonl" for view in ("rejected", "rl", "sft")}
        if files["sft"].is_file():  # written last of its shard
            kept = 0
            for _, row in read_jsonl(files["sft"]):
                gate.remember(row["messages"], row["kind"])
                kept += 1
            return kept, sum(1 for _ in read_jsonl(files["rejected"]))
        views = judge()
        for view, path in files.items():
            write_jsonl(path, views[view])
        return len(views["sft"]), len(views["rejected"])

    def _judge(self, conversations: Iterable[Conversation], gate: Gate) -> Views:
        """The rows of conversations: those kept, their prompts for reinforcement learning, and those rejected."""
        views: Views = {"rejected": [], "rl": [], "sft": []}
        for conversation in conversations:
            if reason := gate.reason(conversation):
                views["rejected"].append({**sft_row(conversation), "reason": reason})
            else:
                views["sft"].append(sft_row(conversation))
                views["rl"] += map(vars, rl_rows(conversation))
        return views

    def _judge_problems(self, shard: range, gate: Gate) -> Views:
        """The same of some problems, each with the replay rows that go with it."""
        views: Views = {"rejected": [], "rl": [], "sft": []}
        for index in shard:
            for view, rows in self._judge(self.conversations(index), gate).items():
                views[view] += rows
            for row in self.replay_rows(index, gate):
                views["rejected" if "reason" in row else "sft"].append(row)
        return views

    def replay_rows(self, index: int, gate: Gate) -> Iterator[Row]:
        """The replay rows that go with a problem; a rejected one has a `reason`."""
        for plain in self.replay.for_problem(index, self._answers):
            row, reason = sft_row(plain.conversation), plain.reason or gate.reason(plain.conversation)
            told = {"reason": reason} | ({"slips": list(plain.slips)} if plain.slips else {})
            yield {**row, **told} if reason else row
