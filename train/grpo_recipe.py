"""The recipe of `accelerate launch train/grpo.py`: model, data, rollout, reward, train (trl's own names), probe, tracking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.errors import RecipeError
from probe.processes import processes
from probe.recipe import load_recipe, section
from probe.settings import ProbeSection
from probe.tracking import TrackingSection
from train.arguments import trl_section
from train.recipe import ModelSection, check_sections
from train.rewards.settings import RewardSection
from train.rollouts.settings import RolloutSection, check_rollout

GrpoArguments = trl_section("grpo_config", "GRPOConfig")
MAX_COMPLETION = 512  # trl's own default

# What a rollout, the composed reward or another section decides; set here, trl would do it again or never read it.
_OURS = {
    "remove_unused_columns": "prompts carry what the reward needs",
    "reward_weights": "reward.weights decides it",
    "multi_objective_aggregation": "the parts become one reward, see reward.weights",
    "chat_template_kwargs": "data.enable_thinking decides it",
    "do_eval": "the probe measures held-out questions",
    "eval_strategy": "the probe measures held-out questions",
    "num_generations_eval": "the probe measures held-out questions",
    "max_tool_calling_iterations": "the rollout section says how a conversation goes on",
    "auto_find_batch_size": "a smaller batch would tear groups apart",
}


@section
class PromptSection:
    path: str | None = None
    """A builder's output folder, or a JSONL file of rl rows."""
    recipe: str | None = None
    """A data recipe to build where it is not built yet; give this or `path`."""
    kinds: tuple[str, ...] | None = None
    """Kinds of conversation to take, such as [complete, underspecified]; all where left out."""
    max_prompts: int | None = None
    """So many, picked by train.seed; all where left out."""
    max_prompt_tokens: int = 1024
    """A longer prompt is left out whole and counted."""
    enable_thinking: bool | None = None


@section
class GrpoRecipe:
    model: ModelSection
    data: PromptSection
    train: GrpoArguments  # type: ignore[valid-type]
    rollout: RolloutSection = field(default_factory=RolloutSection)
    reward: RewardSection = field(default_factory=RewardSection)
    probe: ProbeSection | None = None
    tracking: TrackingSection = field(default_factory=TrackingSection)


@dataclass(frozen=True)
class Batch:
    """How samples are spread: `per_device` x `processes` x `steps_per_generation` are generated at a time."""

    processes: int
    per_device: int
    accumulation: int
    steps_per_generation: int
    num_generations: int

    @property
    def samples(self) -> int:
        """Generated at a time, over all processes."""
        return self.per_device * self.processes * self.steps_per_generation

    @property
    def prompts(self) -> int:
        return self.samples // self.num_generations

    def steps(self, prompts: int, num_iterations: int) -> float:
        """Optimizer steps of one epoch over so many prompts; an incomplete last batch is not used."""
        generations = prompts // self.prompts
        return generations * num_iterations * self.steps_per_generation / self.accumulation


def batch_of(given: dict[str, Any], ranks: int | None = None) -> Batch:
    """The batch of a `train:` section in this launch, or on `ranks` processes; trl's arithmetic, without trl.

    Raises:
        RecipeError: groups would not come out whole.
    """
    ranks = ranks or processes()
    per_device = given.get("per_device_train_batch_size", 8)
    accumulation = given.get("gradient_accumulation_steps", 1)
    group = given.get("num_generations", 8)
    steps = given.get("steps_per_generation")
    wanted = given.get("generation_batch_size")
    if group < 2:
        raise RecipeError(f"train.num_generations: given {group}, wanted 2 or more: an advantage compares samples")
    if min(per_device, accumulation, steps or 1, wanted or 1) < 1:
        raise RecipeError("train: batch sizes, accumulation and steps_per_generation are to be 1 or more")
    if steps is not None and wanted is not None:
        raise RecipeError("train: generation_batch_size and steps_per_generation say the same; give one of them")
    at_once = per_device * ranks
    if wanted is not None and wanted % at_once:
        raise RecipeError(
            f"train.generation_batch_size: given {wanted}, wanted a multiple of {at_once} ({per_device} a process x {ranks})"
        )
    batch = Batch(ranks, per_device, accumulation, steps or (wanted or at_once * accumulation) // at_once, group)
    if batch.samples % group:
        least = group // math.gcd(group, at_once)
        raise RecipeError(
            f"train: {per_device} a process x {ranks} x {batch.steps_per_generation} steps are {batch.samples} samples at "
            f"a time, wanted a multiple of num_generations {group}: gradient_accumulation_steps {least}, or a multiple"
        )
    return batch


def load_grpo_recipe(path: Path, overrides: Sequence[str] = ()) -> GrpoRecipe:
    """Raises RecipeError, in one line, for anything that the run would trip over later."""
    recipe = load_recipe(GrpoRecipe, path, overrides)
    given = check_sections(path, recipe, _OURS)
    try:
        batch_of(given)
        check_rollout(recipe.rollout, {"max_completion_length": MAX_COMPLETION, **given})
        recipe.reward.check()
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None
    for name in ("max_prompts", "max_prompt_tokens"):
        value = getattr(recipe.data, name)
        if value is not None and value < 1:
            raise RecipeError(f"{path}: data.{name}: given {value}, wanted 1 or more")
    return recipe
