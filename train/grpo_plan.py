"""`train/grpo.py --dry-run`: checks what can be checked, says what could not, estimates what a step takes.

Upper bounds of tokens and calls are for one generation, which is one optimizer step unless the recipe says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from data_builders.dialogue.settings import RoleSection
from data_builders.rl import RlRow, load_rl_rows, rl_rows
from probe.errors import SetOutOfReach
from train.grpo_recipe import MAX_COMPLETION, Batch, GrpoRecipe, batch_of
from train.memory import generation_bytes, reference_bytes
from train.plan_lines import ASSUMED_SOURCE, Planned, memory_lines, model_line, planned, probe_lines, unbuilt
from train.prompts import PromptCounts, choose_prompts
from train.rewards.settings import RewardSection
from train.rows import data_path

# What ASSUMED_SOURCE gave, in prompts (2026-11-21): the estimate where neither data nor source is within reach.
ASSUMED_COUNTS = PromptCounts(13_778, {}, 13_778 * 119, 0, 0)
SAMPLE = 300
# A simulated user's or a judge's instruction, and a usual reply of theirs, in tokens.
INSTRUCTION, REPLY = 400, 60


@dataclass(frozen=True)
class Work:
    """One generation at most: policy tokens that carry loss and that only look ahead, and calls to other models."""

    trained: int
    ahead: int
    simulator: int
    judge: int


def describe(recipe: GrpoRecipe) -> str:
    """The plan as text. Raises BadInput for what is wrong; what is out of reach is listed at the end."""
    plan = planned(recipe)
    batch = batch_of(plan.given)
    counts, example = _prompts(recipe, plan, batch)
    work = work_of(recipe, plan, batch)
    lines = [model_line(recipe, plan.size), _prompt_line(recipe, counts, example is None)]
    lines += _step_lines(plan, batch, counts)
    lines += _rollout_lines(recipe, plan, batch, work)
    lines += _call_lines(recipe, work, counts)
    trained = _trained_tokens(recipe, plan)
    length = recipe.data.max_prompt_tokens + trained
    lines += memory_lines(plan, batch.per_device, length, trained, _more_memory(recipe, plan, batch))
    lines += _vllm_lines(plan)
    lines += probe_lines(recipe, plan.unchecked)
    lines += [f"could not check {line}" for line in plan.unchecked]
    return "\n".join([*lines, *_example_lines(plan, example), "nothing was written"])


def work_of(recipe: GrpoRecipe, plan: Planned, batch: Batch) -> Work:
    """The most that one generation can take."""
    rollout, limit = recipe.rollout, plan.given.get("max_completion_length", MAX_COMPLETION)
    judged = recipe.reward.judge is not None
    if rollout.mode == "conversation":
        trained = min(limit, rollout.max_turns * rollout.max_turn_tokens)
        return Work(batch.samples * trained, 0, batch.samples * (rollout.max_turns - 1), batch.samples if judged else 0)
    played = batch.samples * (rollout.samples if rollout.window else 1)
    exchanges = played * rollout.window
    return Work(
        batch.samples * rollout.max_turn_tokens,
        exchanges * rollout.max_turn_tokens,
        exchanges,
        played if judged else 0,
    )


def _prompts(recipe: GrpoRecipe, plan: Planned, batch: Batch) -> tuple[PromptCounts, RlRow | None]:
    """Counts and the first prompt; of a sample where the data is not built yet, assumed where it cannot be."""
    try:
        rows, share, where = _rows(recipe)
    except SetOutOfReach as error:
        plan.unchecked.append(f"the prompts: {error}; their number is that of {ASSUMED_SOURCE}")
        return ASSUMED_COUNTS, None
    if plan.chat is None:
        words = sum(len(message["content"].split()) for row in rows for message in row.prompt)
        plan.unchecked.append("the length of prompts: it needs the model's tokenizer; tokens are 1.4 per word")
        return PromptCounts(round(len(rows) / share), {}, round(words * 1.4 / share), 0, 0), rows[0]
    least = batch.prompts if share == 1 else 1
    seed = plan.given.get("seed", 42)
    chosen, counts = choose_prompts(rows, recipe.data, plan.chat, seed, least, where)
    scaled = {name: round(getattr(counts, name) / share) for name in ("prompts", "tokens", "too_long")}
    most = recipe.data.max_prompts or scaled["prompts"]
    kinds = {kind: round(count / share) for kind, count in counts.kinds.items()}
    if most < scaled["prompts"]:
        scaled = {**scaled, "tokens": round(scaled["tokens"] * most / scaled["prompts"]), "prompts": most}
    return PromptCounts(kinds=kinds, longest=counts.longest, **scaled), next(iter(chosen.values()))


def _rows(recipe: GrpoRecipe) -> tuple[list[RlRow], float, str]:
    """The rows, or those of a sample of the problems that a data recipe would take, with the sample's share."""
    build = unbuilt(recipe.data.recipe)
    if build is None:
        path = data_path(recipe.data.path, recipe.data.recipe)
        return list(load_rl_rows(path)), 1.0, str(path)
    n = len(build.problems)
    sample = range(0, n, max(1, n // SAMPLE))
    made = [row for index in sample for talk in build.conversations(index) for row in rl_rows(talk)]
    return made, len(sample) / n, str(recipe.data.recipe)


def _prompt_line(recipe: GrpoRecipe, counts: PromptCounts, assumed: bool) -> str:
    kinds = (
        f" ({', '.join(f'{count:,} {kind}' for kind, count in sorted(counts.kinds.items()))})" if counts.kinds else ""
    )
    longest = f", longest {counts.longest}" if counts.longest else ""
    estimated = ", estimated" if assumed or unbuilt(recipe.data.recipe) is not None else ""
    return (
        f"prompts   {recipe.data.path or recipe.data.recipe}: {counts.prompts:,}{kinds}, "
        f"{counts.tokens / max(1, counts.prompts):,.0f} tokens on average{longest}, {counts.too_long} too long and left "
        f"out{estimated}"
    )


def _step_lines(plan: Planned, batch: Batch, counts: PromptCounts) -> list[str]:
    iterations = plan.given.get("num_iterations", 1)
    epoch = batch.steps(counts.prompts, iterations)
    steps = plan.given.get("max_steps", -1)
    if steps <= 0:
        steps = math.ceil(epoch * plan.given.get("num_train_epochs", 3.0))
    each = batch.steps_per_generation * iterations / batch.accumulation
    every = "" if each == 1 else f", a generation every {each:g} steps"
    return [
        f"steps     {steps:,}, {epoch:,.0f} an epoch{every}",
        f"group     {batch.num_generations} samples of each of {batch.prompts} prompts: {batch.samples} at a time "
        f"({batch.per_device} a process x {batch.processes} x {batch.steps_per_generation})",
    ]


def _rollout_lines(recipe: GrpoRecipe, plan: Planned, batch: Batch, work: Work) -> list[str]:
    rollout = recipe.rollout
    if rollout.mode == "reply":
        exchanges = f"{rollout.window} exchange{'s' if rollout.window > 1 else ''}"
        often = f", {rollout.samples} times" if rollout.samples > 1 else ""
        ahead = f"then {exchanges} looked ahead{often}" if rollout.window else "no look-ahead"
        mode = f"reply: one turn of at most {rollout.max_turn_tokens} tokens is trained, {ahead}"
    else:
        mode = f"conversation: at most {rollout.max_turns} turns of {rollout.max_turn_tokens} tokens, all trained"
    engine = "vLLM" if plan.given.get("use_vllm") else "transformers"
    tokens = f"{work.trained + work.ahead:,} tokens at most a generation"
    each = f"{(work.trained + work.ahead) // batch.samples:,} a sample"
    return [
        f"rollout   {mode}",
        f"generate  {tokens} ({work.trained:,} trained, {work.ahead:,} ahead; {each}), {engine}",
    ]


def _call_lines(recipe: GrpoRecipe, work: Work, counts: PromptCounts) -> list[str]:
    simulator = recipe.rollout.simulator
    chat = 2 * counts.tokens // max(1, counts.prompts) + recipe.rollout.max_turn_tokens
    calls = f"scripted: {work.simulator:,} user turns at most a generation, no model"
    lines = [f"simulator {calls if simulator.engine == 'scripted' else _calls(simulator, work.simulator, chat)}"]
    lines.append(f"reward    {_reward(recipe.reward)}")
    if recipe.reward.judge is not None:
        lines.append(f"judge     {_calls(recipe.reward.judge, work.judge, chat)}")
    return lines


def _reward(section: RewardSection) -> str:
    parts = [f"{name} {weight:g}" for name, weight in section.weight_of.items() if weight]
    needed = ", ".join(sorted(section.required_parts)) or "none"
    return f"mean of {', '.join(parts)}; without {needed} a sample is left out"


def _calls(role: RoleSection, calls: int, chat: int) -> str:
    read, written = calls * (INSTRUCTION + chat), calls * REPLY
    cost = (read * role.price.input + written * role.price.output) / 1e6
    money = f", {cost:.4g} a generation" if cost else ", no price given"
    who = role.server.model if role.server is not None else role.model
    return f"{role.engine} {who}: {calls:,} calls at most a generation, about {read:,} tokens in and {written:,} out{money}"


def _trained_tokens(recipe: GrpoRecipe, plan: Planned) -> int:
    """The longest completion of a forward pass."""
    if recipe.rollout.mode == "reply":
        return recipe.rollout.max_turn_tokens
    return int(plan.given.get("max_completion_length", MAX_COMPLETION))


def _more_memory(recipe: GrpoRecipe, plan: Planned, batch: Batch) -> Callable[[int, int], dict[str, float]]:
    def more(stage: int, ranks: int) -> dict[str, float]:
        parts: dict[str, float] = {}
        if plan.size is None:
            return parts
        if plan.given.get("beta") and recipe.model.lora is None:
            parts["reference"] = reference_bytes(plan.size, recipe.model.dtype, stage, ranks)
        if not plan.given.get("use_vllm"):
            rows = batch.per_device * batch.steps_per_generation
            parts["generation"] = generation_bytes(plan.size, recipe.model.dtype, recipe.rollout.batch_tokens, rows)
        return parts

    return more


def _vllm_lines(plan: Planned) -> list[str]:
    if not plan.given.get("use_vllm"):
        return []
    if plan.given.get("vllm_mode", "colocate") == "server":
        return ["vllm      on a server of its own"]
    share = plan.given.get("vllm_gpu_memory_utilization", 0.3)
    return [f"vllm      takes {share:.0%} of each GPU's memory beside these parts"]


def _example_lines(plan: Planned, example: RlRow | None) -> Sequence[str]:
    if example is None:
        return []
    text = plan.chat.prompt_text(example.prompt) if plan.chat else "\n".join(m["content"] for m in example.prompt)
    withheld = f"; withheld: {'; '.join(example.hidden)}" if example.hidden else ""
    head = f"an example ({example.kind}; the answer is {example.answer}{withheld}):"
    return [head, *("  | " + line for line in text.splitlines())]
