"""What `--dry-run` and `--preview` show of conversations between two models."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from data_builders.dialogue.build import DialogueBuild
from data_builders.dialogue.conversation import Finished
from data_builders.dialogue.estimate import Estimate, duration, estimate
from data_builders.dialogue.plan import Plan, plan_of
from data_builders.dialogue.pool import Pool
from data_builders.dialogue.prompts import assistant_prompt, simulator_prompt
from data_builders.dialogue.rows import conversation_of
from data_builders.dialogue.settings import Dialogue
from data_builders.dialogue.speakers import open_speakers
from data_builders.recipe import DataRecipe
from data_builders.shown import chat_lines, replay_lines
from data_builders.starter import starter_problems
from data_builders.tokens import estimated_tokens

# Enough problems for a mean; a rehearsal plays some hundred replies for each.
_REHEARSED = 12


def dry_run(build: DialogueBuild, out: Path) -> list[str]:
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


def preview(build: DialogueBuild, n: int) -> Iterator[str]:
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
