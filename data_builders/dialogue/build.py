"""Builds a data folder from conversations between two models: what `data_builders.build` does, with a pool of talks.

A shard is written when all its conversations have ended and all shards before it are written, so the gate sees the rows
in the same order in every run. Until then replies are kept in OUT/calls, from where a killed build takes them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_builders.build import Build, Row
from data_builders.dialogue.conversation import Finished, converse
from data_builders.dialogue.meter import Meter
from data_builders.dialogue.plan import Plan, plan_of
from data_builders.dialogue.pool import Pool
from data_builders.dialogue.prompts import PROMPT_VERSION
from data_builders.dialogue.rows import (
    candidate_rows,
    conversation_of,
    pair_rows,
    rejected_row,
    rl_rows,
    told_row,
)
from data_builders.dialogue.speaker import Flow
from data_builders.dialogue.speakers import open_speakers
from data_builders.quality import Gate
from data_builders.recipe import DataRecipe
from probe.errors import NextturnError
from probe.files import read_jsonl, write_jsonl

if TYPE_CHECKING:
    from tqdm import tqdm


class DialogueBuild(Build):
    """A recipe with a `dialogue:` section, read and checked; no server has been asked and no model loaded.

    Raises:
        BadInput: anything in the recipe or in the files it names cannot be used.
    """

    def __init__(self, recipe: DataRecipe) -> None:
        super().__init__(recipe)
        assert recipe.dialogue is not None
        self.dialogue = recipe.dialogue
        self.roles = tuple(self.dialogue.roles())
        del self.settings["conversations"]
        self.settings["dialogue"] = {**self.dialogue.shaping(), "prompts": PROMPT_VERSION}

    def plans(self, index: int) -> list[Plan]:
        """The conversations about problem `index`."""
        task = self.problems[index]
        return [plan_of(task, again, self.recipe.seed, self.dialogue) for again in range(self.dialogue.per_problem)]

    def flows(self, shard: range) -> Iterator[tuple[int, Flow[Finished]]]:
        """The conversations about some problems, each with its number in the whole build."""
        for index in shard:
            for again, plan in enumerate(self.plans(index)):
                yield index * self.dialogue.per_problem + again, converse(plan, self.dialogue, self.recipe.seed)

    def meter(self) -> Meter:
        prices = {role: section.price for role, section in self.dialogue.roles().items()}
        return Meter(prices, self.dialogue.max_cost)

    def totals(self, out: Path) -> dict[str, Any]:
        """Replies and tokens by role, counted from the rows. Raises NextturnError where a conversation is missing."""
        meter, found = self.meter(), 0
        for view in ("sft", "rejected"):
            for path in sorted((out / view).glob("part-*.jsonl")):
                for _, row in read_jsonl(path):
                    if "dialogue" in row:
                        found += 1
                        meter.add(row["dialogue"]["calls"])
        asked = len(self.problems) * self.dialogue.per_problem
        if found != asked:
            raise NextturnError(f"{out}: holds {found} conversations between models, wanted {asked}; build it anew")
        shutil.rmtree(out / "calls", ignore_errors=True)
        calls = {**meter.counts, **super().totals(out).get("calls", {})}
        return {"conversations": asked, "calls": dict(sorted(calls.items()))}

    def _build_shards(self, out: Path, gate: Gate) -> None:
        from tqdm import tqdm

        meter, shards = self.meter(), dict(enumerate(self.shards()))
        with tqdm(total=len(self.problems) * self.dialogue.per_problem, unit=" talks", disable=None) as bar:
            progress = _Progress(bar, meter)
            while shards and (out / f"sft/part-{min(shards):05}.jsonl").is_file():  # written last of its shard
                number = min(shards)
                self._take_over(out, number, gate, progress)
                del shards[number]
            # In this process a shard's replies hang on what is asked beside them, so each shard is played by itself.
            stretches = [{number: shard} for number, shard in shards.items()] if self.dialogue.in_process else [shards]
            speakers = open_speakers(self.dialogue.roles(), self.recipe.seed)
            try:
                for stretch in stretches:
                    if stretch:
                        self._play(
                            out, stretch, Pool(speakers.by_role, self.dialogue.together, meter.heard), gate, progress
                        )
            finally:
                speakers.close()

    def _play(self, out: Path, shards: dict[int, range], pool: Pool[Finished], gate: Gate, progress: _Progress) -> None:
        """Plays and writes some shards, in their order."""
        folder = out / "calls" / (f"part-{min(shards):05}" if self.dialogue.in_process else "")
        per_problem, waiting = self.dialogue.per_problem, list(shards)
        missing = {number: len(shard) * per_problem for number, shard in shards.items()}
        ended: dict[int, Finished] = {}
        flows = (flow for shard in shards.values() for flow in self.flows(shard))
        with closing(pool.run(flows, folder)) as played:
            for number, done in played:
                ended[number] = done
                missing[number // per_problem // self.recipe.output.shard_size] -= 1
                progress.ended(bool(done.reason))
                while waiting and not missing[waiting[0]]:
                    self._write_shard(out, waiting[0], shards[waiting[0]], ended, gate, progress)
                    del waiting[0]
        if self.dialogue.in_process:
            shutil.rmtree(folder, ignore_errors=True)

    def _write_shard(
        self, out: Path, number: int, shard: range, ended: dict[int, Finished], gate: Gate, progress: _Progress
    ) -> None:
        """Judges the conversations of a shard and writes its files, the kept rows last."""
        views: dict[str, list[Row]] = {name: [] for name in ("rejected", "candidates", "rl", "pairs", "sft")}
        per_problem, answers = self.dialogue.per_problem, self.answers(out, number)
        for index in shard:
            for place in range(index * per_problem, (index + 1) * per_problem):
                done = ended.pop(place)
                reason = done.reason or gate.reason(conversation_of(done))
                views["candidates"] += candidate_rows(done)
                if reason:
                    views["rejected"].append(rejected_row(done, self.roles, reason))
                    progress.rejected(0 if done.reason else 1)
                else:
                    views["sft"].append(told_row(done, self.roles))
                    views["rl"] += map(vars, rl_rows(done))
                    views["pairs"] += pair_rows(done, self.dialogue.min_gap)
            for row in self.replay_rows(index, gate, answers):
                views["rejected" if "reason" in row else "sft"].append(row)
        for name, rows in views.items():
            write_jsonl(out / f"{name}/part-{number:05}.jsonl", rows)

    def _take_over(self, out: Path, number: int, gate: Gate, progress: _Progress) -> None:
        """A shard that an earlier run wrote: the gate learns what it kept, the meter what it took."""
        for view in ("rejected", "sft"):
            for _, row in read_jsonl(out / f"{view}/part-{number:05}.jsonl"):
                if view == "sft":
                    gate.remember(row["messages"], row["kind"])
                if "dialogue" in row:
                    progress.meter.add(row["dialogue"]["calls"])
                    progress.ended(view == "rejected")


class _Progress:
    """The bar: conversations that ended, rejects, tokens, and the cost where prices are given."""

    def __init__(self, bar: tqdm[Any], meter: Meter) -> None:
        self.meter = meter
        self._bar = bar
        self._rejected = 0

    def ended(self, rejected: bool) -> None:
        self._bar.update(1)
        self.rejected(int(rejected))

    def rejected(self, more: int) -> None:
        self._rejected += more
        self._bar.set_postfix({"rejected": self._rejected, **self.meter.shown()}, refresh=False)
