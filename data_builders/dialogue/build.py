"""Builds a data folder by self-play: what `data_builders.build` does, with models to ask.

A shard is written when all its conversations have ended and all shards before it are written, so the gate sees the rows
in the same order in every run. Until then replies are kept in OUT/calls, from where a killed build takes them.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_builders import rows as rl
from data_builders.build import Build, Row, Views, write_shard
from data_builders.dialogue.conversation import Finished, play
from data_builders.dialogue.prompts import Plan, plans_of
from data_builders.dialogue.roles import COUNTS, Meter, Roles, open_roles
from data_builders.quality import Gate
from data_builders.recipe import ROLES, DataRecipe
from data_builders.rows import sft_row
from data_builders.scripted import Conversation
from data_builders.tasks import Gap
from probe.errors import BadInput, NextturnError, SetOutOfReach
from probe.files import read_jsonl

# --- What a finished conversation becomes: training rows of three kinds, and a record of what there was to choose from.
#
# sft: the conversation as it went. rl: assistant turns as prompts, with what is withheld. pairs: of a turn, a right reply
# against one that was tried and is wrong (a guess where something is missing), or the best against the worst candidate,
# in the form that trl's preference trainers read. candidates: every candidate of a turn with its look-aheads.


def conversation_of(done: Finished) -> Conversation:
    """As the gate and the views of training take it."""
    plan, given, gap = done.plan, done.withheld, None
    if given is not None and len(done.messages) > done.reveal_at > 0:
        told = done.messages[done.reveal_at]["content"]
        ask = done.messages[1]["content"]
        gap = Gap(done.rest, given.name, ask, told, given.fact, given.fact, thing=given.name)
    return Conversation(
        id=plan.id,
        kind=plan.kind,
        messages=tuple(done.messages),
        source=plan.task.source,
        answer=plan.task.answer,
        hidden=given.fact if given is not None else "",
        reveal_at=done.reveal_at,
        task=plan.task,
        gap=gap,
        doubts=tuple(done.doubts),
    )


def kept_row(done: Finished) -> Row:
    """The sft row, with who talked and why, what was measured, and what the conversation took."""
    plan, given = done.plan, done.withheld
    dialogue = {
        "persona": plan.persona,
        "goal": plan.goal,
        "withheld": given.name if given else "",
        "fact": given.fact if given else "",
        "measured": done.measured,
        "verdict": done.verdict,
        "judged": done.judged,
        "slips": " ".join(f"{one['role']}.{one['reason']}" for one in done.unusable),
        "calls": {f"{role}.{count}": done.calls[f"{role}.{count}"] for role in ROLES for count in COUNTS},
    }
    return {**sft_row(conversation_of(done)), "dialogue": dialogue}


# A reward for the result would pay for telling it where the user wants to find it.
_NO_PROMPTS = ("hint", "steps", "slip")


def rl_rows(done: Finished) -> Iterator[rl.RlRow]:
    """As of a scripted conversation, with who the user was; none of a goal that a right answer at once would miss."""
    if done.plan.goal not in _NO_PROMPTS:
        for row in rl.rl_rows(conversation_of(done)):
            yield replace(row, persona=done.plan.persona)


def pair_rows(done: Finished, min_gap: float) -> Iterator[Row]:
    """One row for each wrong turn beside a right one, and for each turn whose best and worst candidate are at least
    `min_gap` apart, and apart at all."""
    found = [(before, right, wrong, 1.0, 0.0) for before, right, wrong in done.wrong]
    for turn in done.turns:
        scored = [(one["score"], one["text"]) for one in turn["candidates"] if one["score"] is not None]
        (worst, rejected), best = min(scored), turn["candidates"][turn["chosen"]]
        if best["score"] - worst >= min_gap and best["score"] > worst:
            found.append((turn["before"], best["text"], rejected, best["score"], worst))
    for before, right, wrong, high, low in found:
        sides = {"chosen": right, "rejected": wrong}
        said = {side: [{"role": "assistant", "content": text}] for side, text in sides.items()}
        told = {"id": f"{done.plan.id}-{before // 2}", "prompt": done.messages[:before]}
        yield {**told, **said, "score_chosen": high, "score_rejected": low}


NEEDS = (
    "self-play needs problems (`source.path`) and a model: a folder or hub id with a GPU (`dialogue.policy.model`), or a "
    "server (`dialogue.policy: {engine: openai, server: {urls, model}}`); recipes/written.yaml needs nothing"
)


class DialogueBuild(Build):
    """A recipe with a `dialogue:` section, read and checked; no server has been asked and no model loaded.

    Raises:
        BadInput: anything in the recipe or in the files it names cannot be used.
    """

    def __init__(self, recipe: DataRecipe) -> None:
        assert recipe.dialogue is not None
        try:
            super().__init__(recipe)
        except SetOutOfReach as error:
            raise SetOutOfReach(f"{error}; {NEEDS}") from None
        self.dialogue = recipe.dialogue

    def plans(self, index: int) -> list[Plan]:
        """The conversations about problem `index`."""
        return plans_of(self.problems[index], self.recipe.seed, self.dialogue)

    def games(self, roles: Roles, shard: range) -> Iterator[Coroutine[Any, Any, list[Finished]]]:
        """The conversations about some problems, to be run, a problem's together."""
        for index in shard:
            yield play(self.plans(index), self.dialogue, roles, self.recipe.seed)

    def meter(self) -> Meter:
        prices = {role: section.price for role, section in self.dialogue.roles().items()}
        return Meter(prices, self.dialogue.max_cost)

    def totals(self, out: Path) -> dict[str, Any]:
        """Replies and tokens by role, counted from the rows. Raises NextturnError where a conversation is missing."""
        calls, found = Counter(super().totals(out).get("calls", {})), 0
        for path in (*(out / "sft").glob("part-*.jsonl"), *(out / "rejected").glob("part-*.jsonl")):
            for row in (row for _, row in read_jsonl(path) if "dialogue" in row):
                found += 1
                calls.update(row["dialogue"]["calls"])
        asked = sum(len(self.plans(index)) for index in range(len(self.problems)))
        if found != asked:
            raise NextturnError(f"{out}: holds {found} conversations between models, wanted {asked}; build it anew")
        shutil.rmtree(out / "calls", ignore_errors=True)
        return {"conversations": asked, "calls": dict(sorted(calls.items()))}

    def run(self, out: Path) -> dict[str, Any]:
        """As of every build; before anything is written, models in this process are looked for."""
        from probe.engines.vllm import import_vllm
        from probe.models import resolve

        for section in self.dialogue.roles().values():
            try:
                if section.model is not None:
                    resolve(section.model)
                if section.engine == "vllm":
                    import_vllm()
            except BadInput as error:
                raise type(error)(f"{error}; {NEEDS}") from None
        return super().run(out)

    def build_shards(self, out: Path, gate: Gate) -> None:
        from tqdm import tqdm

        meter, shards = self.meter(), dict(enumerate(self.shards()))
        with tqdm(total=len(self.problems), unit=" problems", disable=None) as bar:

            def saw(view: str, row: Row) -> None:
                meter.counts.update(row.get("dialogue", {}).get("calls", {}))

            async def played(game: Coroutine[Any, Any, list[Finished]]) -> list[Finished]:
                done = await game
                bar.update()
                bar.set_postfix(meter.shown(), refresh=False)
                return done

            while shards and self.taken_up(out, f"{min(shards):05}", gate, saw):
                bar.update(len(shards.pop(min(shards))))
            with closing(open_roles(self.dialogue.roles(), self.recipe.seed, meter.heard)) as roles:

                def run(stretch: dict[int, range], folder: Path) -> None:
                    """Plays some shards side by side and writes each as soon as those before it are written."""
                    left, finished = list(stretch), list[list[Finished]]()

                    def take(done: list[Finished]) -> None:
                        finished.append(done)
                        if len(finished) == len(stretch[left[0]]):
                            views: Views = {name: [] for name in ("rejected", "candidates", "rl", "pairs", "sft")}
                            self.judge_shard(stretch[left[0]], finished, gate, views)
                            write_shard(out, f"{left.pop(0):05}", views)
                            finished.clear()

                    games = (one for shard in stretch.values() for one in self.games(roles, shard))
                    roles.run(map(played, games), self.dialogue.most_at_once, take, folder)

                if not self.dialogue.in_process:
                    run(shards, out / "calls")
                    return
                # In this process a reply may hang on what is asked beside it, so each shard is played by itself.
                for number, shard in shards.items():
                    folder = out / "calls" / f"part-{number:05}"
                    run({number: shard}, folder)
                    shutil.rmtree(folder, ignore_errors=True)

    def judge(self, made: Any, gate: Gate, views: Views) -> None:
        if not isinstance(made, Finished):  # a written conversation
            super().judge(made, gate, views)
            return
        views["candidates"] += ({"id": made.plan.id, **turn} for turn in made.turns)
        conversation = conversation_of(made)
        if reason := made.reason or gate.reason(conversation):
            views["rejected"].append({**kept_row(made), "reason": reason, "slips": made.unusable})
        else:
            views["sft"].append(kept_row(made))
            views["rl"] += map(vars, rl_rows(made))
            views["pairs"] += pair_rows(made, self.dialogue.min_gap)
