"""Builds a data folder from conversations between two models: what `data_builders.build` does, with a pool of talks.

A shard is written when all its conversations have ended and all shards before it are written, so the gate sees the rows
in the same order in every run. Until then replies are kept in OUT/calls, from where a killed build takes them.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_builders import rows as rl
from data_builders.build import Build, Row
from data_builders.dialogue.conversation import Finished, Turn, converse
from data_builders.dialogue.prompts import PROMPT_VERSION, Plan, plan_of
from data_builders.dialogue.roles import Ask, Flow, Meter, Pool, Results, Said, Ticket, open_speakers
from data_builders.dialogue.settings import Dialogue, Price, Role, place_of
from data_builders.quality import Gate
from data_builders.recipe import DataRecipe
from data_builders.rows import sft_row
from data_builders.scripted import Conversation
from data_builders.tasks import Task
from data_builders.text import estimated_tokens
from probe.errors import NextturnError
from probe.files import read_jsonl, write_jsonl

if TYPE_CHECKING:
    from tqdm import tqdm


# --- What a finished conversation becomes: training rows of three kinds, and a record of what there was to choose from.
#
# sft: the conversation as it went, best candidates all the way. rl: assistant turns as prompts, with the hidden problem
# for a simulator. pairs: of a turn, the best against the worst candidate, in the form that trl's preference
# trainers read. candidates: every candidate of every turn with its simulated continuations and the parts of their scores.

RowsRow = dict[str, Any]
COUNTS = ("calls", "input", "output")


def conversation_of(done: Finished) -> Conversation:
    """As the gate and the views of training take it."""
    plan, messages = done.plan, done.messages
    told = (place for place in range(len(messages)) if not plan.still_hidden(messages[: place + 1]))
    return Conversation(
        id=plan.id,
        kind=plan.kind,
        messages=tuple(messages),
        source=plan.task.source,
        answer=plan.task.answer,
        reveal_at=next(told, len(messages)),
        task=plan.task,
        gap=plan.gap,
    )


def told_row(done: Finished, roles: tuple[Role, ...]) -> RowsRow:
    """The sft row, with who talked, how the candidates scored, and what the conversation took."""
    plan = done.plan
    told = {
        "persona": plan.persona.name,
        "knowledge": plan.persona.knowledge,
        "effort": plan.persona.effort,
        "hidden": list(plan.hidden),
        "ended": done.ended,
        "scores": [turn.candidates[turn.chosen].score for turn in done.turns],
        "slips": " ".join(f"{slip.role}.{slip.reason}" for slip in done.slips),
        "calls": {f"{role}.{count}": done.calls[f"{role}.{count}"] for role in roles for count in COUNTS},
    }
    return {**sft_row(conversation_of(done)), "dialogue": told}


def rejected_row(done: Finished, roles: tuple[Role, ...], reason: str) -> RowsRow:
    """The same with the reason, and with every reply that could not be used."""
    return {**told_row(done, roles), "reason": reason, "slips": [asdict(slip) for slip in done.slips]}


def candidate_rows(done: Finished) -> Iterator[RowsRow]:
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


def pair_rows(done: Finished, min_gap: float) -> Iterator[RowsRow]:
    """One row for each assistant turn whose best and worst candidate are at least `min_gap` apart, and apart at all."""
    for number, turn in enumerate(done.turns):
        ordered = _ordered(turn)
        if len(ordered) < 2:
            continue
        (worst, rejected), (best, chosen) = ordered[0], ordered[-1]
        if best - worst >= min_gap and best > worst:
            yield {
                "id": f"{done.plan.id}-{number}",
                "prompt": done.messages[: turn.before],
                "chosen": [{"role": "assistant", "content": chosen}],
                "rejected": [{"role": "assistant", "content": rejected}],
                "score_chosen": best,
                "score_rejected": worst,
            }


def _ordered(turn: Turn) -> list[tuple[float, str]]:
    """The scored candidates from worst to best; the chosen one is last among equals."""
    scored = [
        (candidate.score, place == turn.chosen, candidate.text)
        for place, candidate in enumerate(turn.candidates)
        if candidate.score is not None
    ]
    return [(score, text) for score, _, text in sorted(scored, key=lambda one: one[:2])]


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


# --- What a build will take, found by rehearsal: conversations are played with canned replies of a usual length.
#
# The flow is the real one, so calls and prompts are counted, not guessed; only how long replies are is assumed. In the
# rehearsal nobody ends a conversation and every candidate differs, so the figures are an upper bound.

# A chat reply explains more than a terse reference solution does.
_LONGER, _LEAST_WORDS = 1.3, 60
_USER = "hm ok, i do not see how you get from the second line to the next one. can you show me that part?"
_VERDICT = "The assistant takes up what the user says and asks for what it needs.\nVERDICT: 4"


@dataclass(frozen=True)
class Load:
    """What one role takes: replies, and tokens in and out."""

    calls: int
    input: int
    output: int


@dataclass(frozen=True)
class Estimate:
    """At most: replies and tokens by role, money, and seconds that the busiest server needs for its replies alone."""

    conversations: int
    loads: dict[Role, Load]
    cost: float
    seconds: float


def estimate(plans: Sequence[Plan], conversations: int, settings: Dialogue, seed: int) -> Estimate:
    """Of `conversations` conversations that are like `plans`, a sample of them."""
    counts: Counter[str] = Counter()
    for done in rehearse(plans, settings, seed):
        counts.update(done.calls)
    many = conversations / len(plans)
    loads = {
        role: Load(*(round(many * counts[f"{role}.{kind}"]) for kind in ("calls", "input", "output")))
        for role in settings.roles()
    }
    cost = sum(cost_of(given.price, loads[role].input, loads[role].output) for role, given in settings.roles().items())
    return Estimate(conversations, loads, cost, _seconds(loads, conversations, settings))


def rehearse(plans: Sequence[Plan], settings: Dialogue, seed: int) -> list[Finished]:
    """The conversations of `plans` with canned replies, in order."""
    speakers = {role: _Canned(plan_lengths(plans)) for role in settings.roles()}
    flows = ((number, converse(plan, settings, seed)) for number, plan in enumerate(plans))
    return [done for _, done in sorted(Pool[Finished](speakers, len(plans)).run(flows), key=lambda one: one[0])]


def plan_lengths(plans: Sequence[Plan]) -> dict[int, int]:
    """Words of a usual reply in each conversation."""
    return {number: words_of_reply(plan.task) for number, plan in enumerate(plans)}


def words_of_reply(task: Task) -> int:
    """Of a usual reply about this problem."""
    return max(_LEAST_WORDS, round(_LONGER * len((task.boxed_solution or task.solution).split())))


def cost_of(price: Price, given: float, made: float) -> float:
    """Money for so many tokens in and out."""
    return (given * price.input + made * price.output) / 1e6


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes"


def _seconds(loads: dict[Role, Load], conversations: int, settings: Dialogue) -> float:
    """Servers work at the same time, so the busiest one counts; but in each conversation its roles wait for another."""
    work: Counter[tuple[str, ...]] = Counter()
    slots: Counter[tuple[str, ...]] = Counter()
    chain = 0.0
    exchanges = settings.max_turns * (1 + min(settings.window, settings.max_turns - 1) * (settings.candidates > 1))
    for role, section in settings.roles().items():
        where = place_of(section.server) if section.server is not None else (section.model or "",)
        work[where] += math.ceil(loads[role].calls * section.latency_s)
        slots[where] += section.server.concurrency if section.server is not None else settings.together
        chain += section.latency_s * (settings.max_turns if role == "judge" else exchanges)
    busiest = max(work[where] / slots[where] for where in work)
    return max(busiest, chain * -(-conversations // settings.together))


class _Canned:
    """Speaks at once, with replies of the wanted length that are all different."""

    batched = False

    def __init__(self, words: dict[int, int]) -> None:
        self._words = words
        self._said = 0

    def begin(self, folder: Path | None, results: Results) -> None:
        self._results = results

    def submit(self, ticket: Ticket, ask: Ask) -> None:
        text = {"simulator": f"<message>{_USER}</message>", "judge": _VERDICT}.get(ask.role)
        if text is None:
            self._said += 1
            text = f"(a reply of usual length, number {self._said}) " + "word " * self._words[ticket[0]]
        tokens = min(estimated_tokens([{"content": text}]), ask.max_tokens)
        self._results.put((ticket, Said(text, estimated_tokens(ask.messages), tokens)))

    def work(self) -> None:
        raise NotImplementedError("replies come by themselves")

    def end(self) -> None:
        pass
