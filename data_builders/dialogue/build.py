"""Builds a data folder from conversations between two models: what `data_builders.build` does, with models to ask.

A shard is written when all its conversations have ended and all shards before it are written, so the gate sees the rows
in the same order in every run. Until then replies are kept in OUT/calls, from where a killed build takes them.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Coroutine, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from data_builders import rows as rl
from data_builders.build import Build, Row
from data_builders.dialogue.conversation import Finished, converse
from data_builders.dialogue.prompts import PROMPT_VERSION, Plan, plan_of
from data_builders.dialogue.roles import COUNTS, Meter, Roles, open_roles
from data_builders.dialogue.settings import Role
from data_builders.quality import Gate
from data_builders.recipe import DataRecipe
from data_builders.rows import sft_row
from data_builders.scripted import Conversation
from probe.errors import NextturnError
from probe.files import read_jsonl, write_jsonl

# --- What a finished conversation becomes: training rows of three kinds, and a record of what there was to choose from.
#
# sft: the conversation as it went, best candidates all the way. rl: assistant turns as prompts, with the hidden problem
# for a simulator. pairs: of a turn, the best against the worst candidate, in the form that trl's preference
# trainers read. candidates: every candidate of every turn with its simulated continuations and the parts of their scores.


def conversation_of(done: Finished) -> Conversation:
    """As the gate and the views of training take it."""
    plan, messages = done.plan, done.messages
    revealed = (place for place in range(len(messages)) if not plan.still_hidden(messages[: place + 1]))
    return Conversation(
        id=plan.id,
        kind=plan.kind,
        messages=tuple(messages),
        source=plan.task.source,
        answer=plan.task.answer,
        reveal_at=next(revealed, len(messages)),
        task=plan.task,
        gap=plan.gap,
    )


def kept_row(done: Finished, roles: tuple[Role, ...]) -> Row:
    """The sft row, with who talked, how the candidates scored, and what the conversation took."""
    plan = done.plan
    dialogue = {
        "persona": plan.persona.name,
        "knowledge": plan.persona.knowledge,
        "effort": plan.persona.effort,
        "hidden": list(plan.hidden),
        "ended": done.ended,
        "scores": [turn.candidates[turn.chosen].score for turn in done.turns],
        "slips": " ".join(f"{one.role}.{one.reason}" for one in done.unusable),
        "calls": {f"{role}.{count}": done.calls[f"{role}.{count}"] for role in roles for count in COUNTS},
    }
    return {**sft_row(conversation_of(done)), "dialogue": dialogue}


def rejected_row(done: Finished, roles: tuple[Role, ...], reason: str) -> Row:
    """The same with the reason, and with every reply that could not be used."""
    return {**kept_row(done, roles), "reason": reason, "slips": [asdict(one) for one in done.unusable]}


def candidate_rows(done: Finished) -> Iterator[Row]:
    """One row for each assistant turn that was made."""
    for number, turn in enumerate(done.turns):
        yield {
            "id": done.plan.id,
            "turn": number,
            "before": turn.before,
            "chosen": turn.chosen,
            "candidates": [
                {
                    "text": candidate.text,
                    "failure": candidate.failure,
                    "score": candidate.score,
                    "parts": candidate.parts,
                    "samples": [{**asdict(sample), "messages": list(sample.messages)} for sample in candidate.samples],
                }
                for candidate in turn.candidates
            ],
        }


def rl_rows(done: Finished) -> Iterator[rl.RlRow]:
    """As of a scripted conversation, with who the user was; hidden is what nobody had stated at that turn."""
    plan, who = done.plan, done.plan.persona
    for row in rl.rl_rows(conversation_of(done)):
        hidden = plan.still_hidden(row.prompt)
        yield replace(row, hidden=hidden, persona=who.name, knowledge=who.knowledge, effort=who.effort)


def pair_rows(done: Finished, min_gap: float) -> Iterator[Row]:
    """One row for each assistant turn whose best and worst candidate are at least `min_gap` apart, and apart at all."""
    for number, turn in enumerate(done.turns):
        scored = [
            (candidate.score, place == turn.chosen, candidate.text)
            for place, candidate in enumerate(turn.candidates)
            if candidate.score is not None
        ]
        if len(scored) < 2:
            continue
        # From worst to best; the chosen one is last among equals.
        scored.sort(key=lambda one: one[:2])
        (worst, _, rejected), (best, _, chosen) = scored[0], scored[-1]
        if best - worst >= min_gap and best > worst:
            yield {
                "id": f"{done.plan.id}-{number}",
                "prompt": done.messages[: turn.before],
                "chosen": [{"role": "assistant", "content": chosen}],
                "rejected": [{"role": "assistant", "content": rejected}],
                "score_chosen": best,
                "score_rejected": worst,
            }


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

    def conversations_with(self, roles: Roles, shard: range) -> Iterator[Coroutine[Any, Any, Finished]]:
        """The conversations about some problems, to be run."""
        for index in shard:
            for plan in self.plans(index):
                yield converse(plan, self.dialogue, roles, self.recipe.seed)

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

        meter, shards, per_problem = self.meter(), dict(enumerate(self.shards())), self.dialogue.per_problem
        rejected = 0
        with tqdm(total=len(self.problems) * per_problem, unit=" conversations", disable=None) as bar:

            def ended() -> None:
                bar.update()
                bar.set_postfix({"rejected": rejected, **meter.shown()}, refresh=False)

            # Shards that an earlier run wrote: the gate learns what it kept, the meter what it took.
            while shards and (out / f"sft/part-{min(shards):05}.jsonl").is_file():  # written last of its shard
                number = min(shards)
                for view in ("rejected", "sft"):
                    for _, row in read_jsonl(out / f"{view}/part-{number:05}.jsonl"):
                        if view == "sft":
                            gate.remember(row["messages"], row["kind"])
                        if "dialogue" in row:
                            meter.add(row["dialogue"]["calls"])
                            rejected += view == "rejected"
                            ended()
                del shards[number]

            with closing(open_roles(self.dialogue.roles(), self.recipe.seed, meter.heard)) as roles:

                async def played(conversation: Coroutine[Any, Any, Finished]) -> Finished:
                    done = await conversation
                    ended()
                    return done

                def play(stretch: dict[int, range], folder: Path) -> None:
                    """Plays some shards side by side and writes each as soon as those before it are written."""
                    left, finished = list(stretch), list[Finished]()

                    def take(done: Finished) -> None:
                        nonlocal rejected
                        finished.append(done)
                        if len(finished) == len(stretch[left[0]]) * per_problem:
                            number = left.pop(0)
                            rejected += self._write_shard(out, number, stretch[number], finished, gate)
                            finished.clear()

                    conversations = (one for shard in stretch.values() for one in self.conversations_with(roles, shard))
                    roles.run(map(played, conversations), self.dialogue.most_at_once, take, folder)

                if not self.dialogue.in_process:
                    play(shards, out / "calls")
                    return
                # In this process a reply may hang on what is asked beside it, so each shard is played by itself.
                for number, shard in shards.items():
                    folder = out / "calls" / f"part-{number:05}"
                    play({number: shard}, folder)
                    shutil.rmtree(folder, ignore_errors=True)

    def _write_shard(self, out: Path, number: int, shard: range, finished: list[Finished], gate: Gate) -> int:
        """Judges the conversations of a shard and writes its files, the kept rows last; returns how many it rejected."""
        views: dict[str, list[Row]] = {name: [] for name in ("rejected", "candidates", "rl", "pairs", "sft")}
        conversations = iter(finished)
        for index in shard:
            for done in itertools.islice(conversations, self.dialogue.per_problem):
                views["candidates"] += candidate_rows(done)
                if reason := done.reason or gate.reason(conversation_of(done)):
                    views["rejected"].append(rejected_row(done, self.roles, reason))
                else:
                    views["sft"].append(kept_row(done, self.roles))
                    views["rl"] += map(vars, rl_rows(done))
                    views["pairs"] += pair_rows(done, self.dialogue.min_gap)
            for row in self.replay_rows(index, gate):
                views["rejected" if "reason" in row else "sft"].append(row)
        for name, rows in views.items():
            write_jsonl(out / f"{name}/part-{number:05}.jsonl", rows)
        return sum("dialogue" in row for row in views["rejected"])
