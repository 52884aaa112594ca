"""What `--dry-run` and `--preview` show of a build; lines of text, with what others wrote still in it as it is."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import get_args

from data_builders.build import Build
from data_builders.dialogue.build import (
    DialogueBuild,
    Estimate,
    conversation_of,
    cost_of,
    duration,
    estimate,
    words_of_reply,
)
from data_builders.dialogue.conversation import Finished
from data_builders.dialogue.prompts import Plan, assistant_prompt, plan_of, simulator_prompt
from data_builders.dialogue.roles import Pool, open_speakers
from data_builders.dialogue.settings import Dialogue, Price
from data_builders.recipe import DataRecipe
from data_builders.replay import question
from data_builders.scripted import Conversation, Kind
from data_builders.starter import starter_problems
from data_builders.text import estimated_tokens
from probe.conversations import Message

_SAMPLE = 500


def dry_run(build: Build, out: Path) -> Iterator[str]:
    """What would be written, estimated from a sample of the problems. Writes nothing and asks nobody."""
    count = len(build.problems)
    sampled = range(0, count, max(1, count // _SAMPLE))
    made = [one for index in sampled for one in build.conversations(index)]
    plain = sum(build.replay.count(index) for index in sampled)
    many = count / len(sampled)
    mean = sum(estimated_tokens(one.messages) for one in made) / len(made)
    yield f"would write {out}: {count:,} problems in {len(build.shards()):,} shards"
    yield f"about {many * len(made):,.0f} conversations of {mean:.0f} tokens, {many * len(made) * mean:,.0f} in all (an estimate)"
    if plain:
        yield f"and about {many * plain:,.0f} replay rows"
    yield from _kinds(build, made, len(sampled))
    yield from _gated(build, made)
    yield from replay_lines(build)
    for name, rows in build.eval_rows.items():
        yield f"{name}: {len(rows)} held-out rows"
    yield from described(made[0])
    yield "dry run: nothing was written"


def preview(build: Build, n: int) -> Iterator[str]:
    """The first `n` conversations."""
    every = (made for index in range(len(build.problems)) for made in build.conversations(index))
    for made in itertools.islice(every, n):
        yield from described(made)
    if build.replay.section.fraction:
        asked = build.replay.section.asked
        yield f"\nreplay rows, {build.replay.section.fraction:.0%} of all, are not shown: " + (
            "a model answers them when the data is built" if asked else "questions with their reference solutions"
        )


def described(made: Conversation) -> Iterator[str]:
    """A conversation, with what is withheld in it, until when, and the wordings of its turns."""
    yield from chat_lines(f"{made.id} ({made.kind})", made.messages)
    if made.gap is not None:
        until = f"until message {made.reveal_at + 1}" if made.reveal_at < len(made.messages) else "to the end"
        what = "withheld" if made.hidden else "said with two values"
        yield f"  {what} {until}: {made.gap.thing or made.gap.clause} ({made.gap.short})"
    if made.wordings:
        yield f"  wordings: {', '.join(made.wordings)}"


def chat_lines(heading: str, messages: Sequence[Message]) -> Iterator[str]:
    yield f"\n--- {heading}; turns marked > carry loss"
    for message in messages:
        mark = ">" if message["role"] == "assistant" else " "
        for line in message["content"].split("\n"):
            yield f"{mark} {message['role']:9} | {line}"


def replay_lines(build: Build) -> Iterator[str]:
    """What the model that answers the replay questions will be asked at least and at most."""
    section = build.replay.section
    if (asked := section.asked) is None:
        return
    count = len(build.problems)
    sampled = range(0, count, max(1, count // _SAMPLE))
    tasks = [task for index in sampled for task in build.replay.tasks(index)]
    questions = sum(build.replay.count(index) for index in range(count))
    if not tasks:
        yield f"replay: about {questions} questions"
        return
    given = sum(estimated_tokens(question(task)) for task in tasks) / len(tasks)
    lengths = [estimated_tokens([{"content": "word " * words_of_reply(task)}]) for task in tasks]
    made = sum(min(asked.max_tokens, length) for length in lengths) / len(tasks)
    slots = asked.server.concurrency if asked.server is not None else 1
    yield f"replay: {questions:,} questions to {asked.model or (asked.server and asked.server.model)}, estimated"
    for least, tries in (
        ("if every first reply is right", 1),
        (f"if all are asked {section.tries} times", section.tries),
    ):
        calls = questions * tries
        cost = cost_of(asked.price, calls * given, calls * made)
        yield (
            f"  {least}: {calls:,} calls, {calls * given:,.0f} tokens in, {calls * made:,.0f} out, "
            f"{duration(calls * asked.latency_s / slots)}" + (f", cost {cost:,.2f}" if asked.price != Price() else "")
        )
    yield f"  where a reply takes {asked.latency_s:g} s (`latency_s`) and {slots} are made at once"


def _kinds(build: Build, made: Sequence[Conversation], problems: int) -> Iterator[str]:
    """The shares that the recipe wants beside those of the sample: not every problem carries every kind."""
    found = Counter(one.kind for one in made)
    yield f"kinds, wanted and in a sample of {problems} problems:"
    for kind in get_args(Kind):
        yield f"  {kind:15} {getattr(build.recipe.conversations, kind):6.1%} {found[kind] / len(made):6.1%}"


def _gated(build: Build, made: Sequence[Conversation]) -> Iterator[str]:
    """What the gate says to the sample; how many are alike shows only over all rows."""
    with tempfile.TemporaryDirectory() as folder, closing(build.gate(Path(folder))) as gate:
        reasons = Counter(gate.reason(one) for one in made)
    kept = reasons.pop(None, 0)
    told = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=str))
    yield f"of the sample's {len(made)} conversations the gate keeps {kept / len(made):.1%}" + (
        f" ({told})" if told else ""
    )


# --- What `--dry-run` and `--preview` show of conversations between two models.

# Enough problems for a mean; a rehearsal plays some hundred replies for each.
_REHEARSED = 12


def dialogue_dry_run(build: DialogueBuild, out: Path) -> list[str]:
    """Lines: what would be asked, what it would take, and how a conversation opens. No server is asked."""
    step = max(1, len(build.problems) // _REHEARSED)
    plans = [plan for index in range(0, len(build.problems), step) for plan in build.plans(index)]
    asked = len(build.problems) * build.dialogue.per_problem
    lines = [
        f"would write {out}: {len(build.problems)} problems in {len(build.shards())} shards, {asked} conversations"
    ]
    lines += _estimated(estimate(plans, asked, build.dialogue, build.recipe.seed), build.dialogue)
    lines += replay_lines(build)
    lines += [f"{name}: {len(rows)} held-out rows" for name, rows in build.eval_rows.items()]
    return [*lines, "", *_opening(plans), "dry run: no model was asked, nothing was written"]


def dry_run_without_problems(recipe: DataRecipe) -> list[str]:
    """The estimate for a source that cannot be read now, by generated problems, which are shorter than MATH's."""
    assert recipe.dialogue is not None and recipe.source.n is not None
    plans = [
        plan_of(task, 0, recipe.seed, recipe.dialogue) for task in starter_problems(_REHEARSED, recipe.seed, "train")
    ]
    asked = recipe.source.n * recipe.dialogue.per_problem
    lines = _estimated(estimate(plans, asked, recipe.dialogue, recipe.seed), recipe.dialogue)
    return [f"{asked} conversations, estimated with generated problems in their place:", *lines]


def dialogue_preview(build: DialogueBuild, n: int) -> Iterator[str]:
    """The first `n` conversations, made now and kept nowhere."""
    asked = min(n, len(build.problems) * build.dialogue.per_problem)
    needed = -(-asked // build.dialogue.per_problem)
    flows = ((number, flow) for number, flow in build.flows(range(needed)) if number < asked)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(build.gate(Path(folder))) as gate,
        closing(open_speakers(build.dialogue.roles(), build.recipe.seed)) as speakers,
    ):
        pool: Pool[Finished] = Pool(speakers.by_role, build.dialogue.together, build.meter().heard)
        for _, done in sorted(pool.run(flows), key=lambda one: one[0]):
            reason = done.reason or gate.reason(conversation_of(done))
            told = f"{done.plan.persona.name}, {done.plan.kind}" + (f"; rejected: {reason}" if reason else "")
            yield from chat_lines(f"{done.plan.id} ({told})", done.messages)
            if done.plan.hidden:
                yield f"  withheld at first: {done.plan.clause or 'numbers'} ({', '.join(done.plan.hidden)})"


def _estimated(found: Estimate, dialogue: Dialogue) -> list[str]:
    lines = ["at most, if every conversation takes all its turns:"]
    for role, load in found.loads.items():
        lines.append(f"  {role:9} {load.calls:>10,} calls {load.input:>14,} tokens in {load.output:>12,} out")
    assumed = ", ".join(f"{role} {section.latency_s:g} s" for role, section in dialogue.roles().items())
    priced = any(section.price.input or section.price.output for section in dialogue.roles().values())
    cost = f"{found.cost:,.2f} at the recipe's prices" if priced else "none, no prices are given (`price`)"
    return [
        *lines,
        f"  time      {duration(found.seconds)}, where a reply takes: {assumed} (`latency_s`)",
        f"  cost      {cost}",
    ]


def _opening(plans: list[Plan]) -> list[str]:
    """How the first conversation that withholds something begins."""
    plan = next((plan for plan in plans if not plan.stated), plans[0])
    prompt = simulator_prompt(plan, (), last=False)
    size = estimated_tokens(assistant_prompt(()))
    return [
        f"--- {plan.id} ({plan.persona.name}, {plan.kind}): what the simulator is told first",
        *prompt[0]["content"].split("\n"),
        f"--- the assistant's instructions take about {size} tokens; its turns, and nothing else, carry loss",
    ]
