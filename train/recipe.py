"""The recipe of `accelerate launch train/sft.py`: model, data, train (trl's own names), probe, tracking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Literal

from probe.errors import RecipeError
from probe.recipe import load_recipe, section
from probe.settings import ProbeSection
from probe.tracking import TrackingSection, check_tracking
from train.arguments import trl_section

SftArguments = trl_section("sft_config", "SFTConfig")

# PEFT has no default for Qwen3.5. Three of its four layers are linear attention, whose projections have names
# of their own; without them those layers would get no attention adapter.
LORA_TARGETS = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj_qkv", "in_proj_z", "out_proj",
)  # fmt: skip

# What the rows are made of decides these; trl would do it again, differently, or drop turns in silence.
_OURS = {
    "assistant_only_loss": "data.loss_on decides what carries loss",
    "completion_only_loss": "data.loss_on decides what carries loss",
    "chat_template_path": "the model's own template is used, as at inference",
    "dataset_text_field": "rows are made from `messages`",
    "dataset_kwargs": "rows are made from `messages`",
    "model_init_kwargs": "the model section says how the model is loaded",
    "trust_remote_code": "custom model code is never run",
    "report_to": "tracking.to decides it",
    "resume_from_checkpoint": "use --resume auto, never or PATH",
}


@section
class LoraSection:
    r: int = 32
    alpha: int = 16
    dropout: float = 0.0
    target_modules: tuple[str, ...] = LORA_TARGETS
    """Those that the model does not have are left out; none of them there is an error."""


@section
class ModelSection:
    name: str
    """Hub id, local folder, or `smollm2-135m`."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    lora: LoraSection | None = None
    """Left out: all weights are trained."""


@section
class DataSection:
    path: str | None = None
    """A builder's output folder, or a JSONL file with `messages` in every row."""
    recipe: str | None = None
    """A data recipe to build where it is not built yet; give this or `path`."""
    loss_on: Literal["assistant", "all"] = "assistant"
    enable_thinking: bool | None = None


@section
class SftRecipe:
    model: ModelSection
    data: DataSection
    train: SftArguments  # type: ignore[valid-type]
    probe: ProbeSection | None = None
    tracking: TrackingSection = field(default_factory=TrackingSection)


def load_sft_recipe(path: Path, overrides: Sequence[str] = ()) -> SftRecipe:
    """Raises RecipeError, in one line, for anything that the run would trip over later."""
    recipe = load_recipe(SftRecipe, path, overrides)
    given = recipe.train.model_dump(exclude_unset=True)  # type: ignore[attr-defined]
    for key, reason in _OURS.items():
        if key in given:
            raise RecipeError(f"{path}: train.{key}: not for a recipe ({reason})")
    if "output_dir" not in given:
        raise RecipeError(f"{path}: train.output_dir: missing, wanted the run folder such as runs/qwen2b_sft")
    if (recipe.data.path is None) == (recipe.data.recipe is None):
        raise RecipeError(f"{path}: data: give either `path` or `recipe`")
    if recipe.probe and recipe.probe.when == "inline" and recipe.probe.engine != "hf":
        raise RecipeError(
            f"{path}: probe.engine: {recipe.probe.engine}, wanted hf: with `when: inline` the live weights are measured "
            "in the training processes; give `when: watch` to measure checkpoints with another engine"
        )
    check_tracking(recipe.tracking)
    if given.get("packing") or given.get("padding_free"):
        _check_packing(path)
    return recipe


def _check_packing(path: Path) -> None:
    """Qwen3.5's linear attention leaks across documents unless both kernel packages are there."""
    import importlib.util

    missing = [name for name in ("fla", "causal_conv1d") if importlib.util.find_spec(name) is None]
    if missing:
        raise RecipeError(
            f"{path}: train.packing and train.padding_free need {' and '.join(missing)} to keep documents apart "
            f"in linear attention; install nextturn[gpu] and causal-conv1d, or leave them out"
        )
