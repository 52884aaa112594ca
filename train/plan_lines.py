"""Lines that every training plan has: the model, memory per GPU, the probe."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.chat import Chat
from probe.errors import ModelError
from probe.models import load_tokenizer, resolve
from probe.processes import processes
from probe.questions import sets_within_reach, work_of
from train.launch import watch_line
from train.memory import GIB, KNOWN_SHAPES, Size, memory_parts, size_of, zero_stage

if TYPE_CHECKING:
    from train.grpo_recipe import GrpoRecipe
    from train.recipe import SftRecipe

# A checkpoint that another run has yet to make.
_LATER = re.compile(r"[/\\]checkpoint-\d+/?$")


@dataclass(frozen=True)
class Planned:
    """What a plan is made from; without a chat the model's tokenizer is out of reach, without a size the model too."""

    given: dict[str, Any]
    size: Size | None
    chat: Chat | None
    unchecked: list[str]


def planned(recipe: SftRecipe | GrpoRecipe) -> Planned:
    """Raises ModelError for a model that is neither here, nor known, nor a checkpoint that is still to be made."""
    unchecked: list[str] = []
    given = recipe.train.model_dump(exclude_unset=True)  # type: ignore[attr-defined]
    name = recipe.model.name
    try:
        folder = resolve(name)
        chat = Chat(load_tokenizer(folder), recipe.data.enable_thinking)
        return Planned(given, size_of(recipe.model, folder.path), chat, unchecked)
    except ModelError as error:
        if Path(name).exists() or not (name in KNOWN_SHAPES or _LATER.search(name)):
            raise
        known = name in KNOWN_SHAPES
        unchecked.append(f"the model: {error}{f'; sizes are those known for {name}' if known else ''}")
        return Planned(given, size_of(recipe.model, None) if known else None, None, unchecked)


def model_line(recipe: SftRecipe | GrpoRecipe, size: Size | None) -> str:
    lora = recipe.model.lora
    kind = "all weights" if lora is None else "its own LoRA" if lora.adapter == "continue" else f"LoRA r={lora.r}"
    if size is None:
        return f"model     {recipe.model.name}: not there yet ({kind}), {recipe.model.dtype}"
    return (
        f"model     {recipe.model.name}: {size.parameters / 1e6:,.1f}M parameters, "
        f"{size.trained / 1e6:,.1f}M trained ({kind}), {recipe.model.dtype}"
    )


def memory_lines(
    plan: Planned, dtype: str, more: Callable[[int, int], dict[str, float]] = lambda stage, ranks: {}
) -> list[str]:
    """For this launch, one process and eight.

    Args:
        more: bytes of further parts by (ZeRO stage, processes).
    """
    stage = zero_stage(plan.given)
    lines: list[str] = []
    if plan.size is None:
        return lines
    for ranks in sorted({processes(), 1, 8}):
        used = stage if ranks > 1 else 0
        parts = {**memory_parts(plan.size, dtype, plan.given, used, ranks), **more(used, ranks)}
        listed = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts.items())
        zero = f" under ZeRO-{stage}" if ranks > 1 and stage else ""
        lines.append(f"memory    {sum(parts.values()) / GIB:.1f} GiB a GPU with {ranks}{zero} ({listed}), estimated")
    return lines


def probe_lines(recipe: SftRecipe | GrpoRecipe, unchecked: list[str]) -> list[str]:
    if recipe.probe is None or recipe.probe.when == "never":
        return ["probe     none during training"]
    probe, lines = recipe.probe, []
    if probe.when == "watch":
        lines.append(watch_line(Path(recipe.train.output_dir)))  # type: ignore[attr-defined]
    for name, loaded in sets_within_reach(probe, unchecked, _data_folder(recipe.data.recipe)).items():
        if loaded is None:
            lines.append(f"probe     {name}: {probe.sets[name].n or 'all'} items")
            continue
        work = work_of(loaded, probe)
        lines.append(
            f"probe     {name}: {work.answers} answers, {work.user_turns} user turns, "
            f"{work.tokens:,} tokens at most per checkpoint"
        )
    return lines


def unbuilt(recipe: str | None) -> Any:
    """The `Build` of a data recipe that is not built yet; None where the data lies ready."""
    if recipe is None:
        return None
    from data_builders.build import Build
    from data_builders.recipe import load_data_recipe

    data = load_data_recipe(Path(recipe))
    return None if (Path(data.output.path) / "manifest.json").is_file() else Build(data)


def _data_folder(recipe: str | None) -> Path | None:
    """Where the recipe's data will be built, or None where it lies ready."""
    if recipe is None:
        return None
    from data_builders.recipe import load_data_recipe

    return Path(load_data_recipe(Path(recipe)).output.path)
