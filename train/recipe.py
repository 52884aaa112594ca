"""The recipe of `accelerate launch train/sft.py`: model, data, train (trl's own names), probe, tracking.

The sections and checks that train/grpo_recipe.py has in common with it stand here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

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

# Keys of trl that another part of a recipe decides.
OURS = {
    "model_init_kwargs": "the model section says how the model is loaded",
    "trust_remote_code": "custom model code is never run",
    "report_to": "tracking.to decides it",
    "resume_from_checkpoint": "use --resume auto, never or PATH",
}
# What the rows are made of decides these; trl would do it again, differently, or drop turns in silence.
_SFT_OURS = {
    "assistant_only_loss": "data.loss_on decides what carries loss",
    "completion_only_loss": "data.loss_on decides what carries loss",
    "chat_template_path": "the model's own template is used, as at inference",
    "dataset_text_field": "rows are made from `messages`",
    "dataset_kwargs": "rows are made from `messages`",
}


@section
class LoraSection:
    r: int = 32
    alpha: int = 16
    dropout: float = 0.0
    target_modules: tuple[str, ...] = LORA_TARGETS
    """Those that the model does not have are left out; none of them there is an error."""
    adapter: Literal["new", "continue"] = "new"
    """Where `model.name` is a LoRA checkpoint: merge it and train a new adapter on top, or go on training its own,
    whose r, alpha, dropout and targets then hold."""


@section
class ModelSection:
    name: str
    """Hub id, local folder (a checkpoint too, also a LoRA one), or `smollm2-135m`."""
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
    given = check_sections(path, recipe, _SFT_OURS)
    if given.get("packing") or given.get("padding_free"):
        _check_packing(path)
    if given.get("packing") and (given.get("packing_strategy", "bfd") != "bfd" or not given.get("max_length", 1024)):
        raise RecipeError(f"{path}: train.packing: wanted packing_strategy bfd, which cuts no row, and a max_length")
    return recipe


def check_sections(path: Path, recipe: Any, ours: dict[str, str]) -> dict[str, Any]:
    """What every training recipe is checked for; gives the `train:` section as it was given.

    Args:
        recipe: with `model`, `data` (of which `path` and `recipe`), `train`, `probe` and `tracking`.
        ours: {key of `train:` that is not for a recipe: why}, beside OURS.

    Raises:
        RecipeError: in one line.
    """
    given: dict[str, Any] = recipe.train.model_dump(exclude_unset=True)
    for key, reason in {**OURS, **ours}.items():
        if key in given:
            raise RecipeError(f"{path}: train.{key}: not for a recipe ({reason})")
    if "output_dir" not in given:
        raise RecipeError(f"{path}: train.output_dir: missing, wanted the run folder such as runs/{path.stem}")
    if (recipe.data.path is None) == (recipe.data.recipe is None):
        raise RecipeError(f"{path}: data: give either `path` or `recipe`")
    lora = recipe.model.lora
    if lora is not None and lora.adapter == "continue" and lora != LoraSection(adapter="continue"):
        raise RecipeError(f"{path}: model.lora: `adapter: continue` keeps the checkpoint's own settings; give it alone")
    if recipe.probe and recipe.probe.when == "inline" and recipe.probe.engine != "hf":
        raise RecipeError(
            f"{path}: probe.engine: {recipe.probe.engine}, wanted hf: with `when: inline` the live weights are measured "
            "in the training processes; give `when: watch` to measure checkpoints with another engine"
        )
    check_tracking(recipe.tracking)
    return given


def _check_packing(path: Path) -> None:
    """Qwen3.5's linear attention leaks across documents unless both kernel packages are there."""
    import importlib.util

    missing = [name for name in ("fla", "causal_conv1d") if importlib.util.find_spec(name) is None]
    if missing:
        raise RecipeError(
            f"{path}: train.packing and train.padding_free need {' and '.join(missing)} to keep documents apart "
            f"in linear attention; install nextturn[gpu] and causal-conv1d, or leave them out"
        )
