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
from probe.questions import Work, sets_within_reach, work, work_of
from probe.settings import ProbeSection
from train.launch import cpu_wanted, watch_line
from train.memory import GIB, KNOWN_SHAPES, Size, memory_parts, size_of, zero_stage

if TYPE_CHECKING:
    from train.grpo_recipe import GrpoRecipe
    from train.recipe import SftRecipe

# From so many parameters on nobody trains on a CPU.
LARGE = 1e9

# Items of the hub's sets (arXiv 2604.02315; healthbench: arXiv 2505.08775), for a plan made offline.
KNOWN_ITEMS = {"gsm8k": 1319, "gpqa_diamond": 198, "ifbench": 300, "healthbench": 5000}

# The data that a plan counts on where a recipe's own cannot be had.
ASSUMED_SOURCE = "recipes/math_collab.yaml on MATH's training split"

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
    plan: Planned,
    rows: int,
    length: int,
    completion: int | None = None,
    more: Callable[[int, int], dict[str, float]] = lambda stage, ranks: {},
) -> list[str]:
    """For this launch, one process and eight; for the CPU alone where the launch would train on it.

    Args:
        rows, length: sequences of a process's forward pass, and the longest in tokens.
        completion: tokens at their end that GRPO trains; None for SFT.
        more: bytes of further parts by (ZeRO stage, processes).
    """
    if plan.size is None:
        return []
    from train.step_memory import Step, step_memory

    stage, on_cpu = zero_stage(plan.given), trains_on_cpu(plan)
    step = step_memory(plan.size.make, Step(rows, length, completion, on_cpu, plan.given))
    lines: list[str] = []
    for ranks in [processes()] if on_cpu else sorted({processes(), 1, 8}):
        used = stage if ranks > 1 else 0
        parts = {**memory_parts(plan.size, step, plan.given, used, ranks), **more(used, ranks)}
        listed = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts.items())
        zero = f" under ZeRO-{stage}" if used else ""
        where = f"a process on the CPU with {ranks}" if on_cpu else f"a GPU with {ranks}"
        lines.append(f"memory    {sum(parts.values()) / GIB:.1f} GiB {where}{zero} ({listed}), estimated")
    if not on_cpu:
        lines.append(f"          at {rows} x {length:,} tokens, beside CUDA's own 0.5 to 1 GiB and what fragments")
    return lines


def trains_on_cpu(plan: Planned) -> bool:
    """As asked for, or for want of a GPU; a plan for a large model made on a laptop is one for GPUs."""
    import torch

    small = plan.size is not None and plan.size.parameters < LARGE
    return cpu_wanted(plan.given) or (small and not torch.cuda.is_available())


def probe_lines(recipe: SftRecipe | GrpoRecipe, unchecked: list[str]) -> list[str]:
    if recipe.probe is None or recipe.probe.when == "never":
        return ["probe     none during training"]
    probe, lines, tokens = recipe.probe, [], 0
    if probe.when == "watch":
        lines.append(watch_line(Path(recipe.train.output_dir)))  # type: ignore[attr-defined]
    for name, loaded in sets_within_reach(probe, unchecked, _built_later(recipe)).items():
        needed = _unread(name, probe) if loaded is None else work_of(loaded, probe)
        if needed is None:
            lines.append(f"probe     {name}: {probe.sets[name].n or 'all'} items")
            continue
        tokens += needed.tokens
        lines.append(
            f"probe     {name}: {needed.answers:,} answers, {needed.user_turns:,} user turns, "
            f"{needed.tokens:,} tokens at most per checkpoint"
        )
    if len(probe.sets) > 1 and tokens:
        lines.append(
            f"probe     in all {tokens:,} tokens at most per checkpoint, shared by the processes of an inline probe"
        )
    return lines


def _unread(name: str, probe: ProbeSection) -> Work | None:
    """The work of a set that cannot be had now, from the number of items asked for or that it is known to have."""
    given = probe.sets[name]
    known = KNOWN_ITEMS.get(name)
    if given.path or known is None:
        return None
    items = min(given.n or known, known)
    return work(items, items if not given.measures or "followup" in given.measures else 0, probe)


def unbuilt(recipe: str | None) -> Any:
    """The `Build` of a data recipe that is not built yet; None where the data lies ready."""
    if recipe is None:
        return None
    from data_builders.build import Build
    from data_builders.recipe import load_data_recipe

    data = load_data_recipe(Path(recipe))
    return None if (Path(data.output.path) / "manifest.json").is_file() else Build(data)


def _built_later(recipe: SftRecipe | GrpoRecipe) -> list[Path]:
    """Folders that commands before this one fill: the data's, and that of the run which makes the model to start from,
    with what lies beside it."""
    folders = []
    if recipe.data.recipe is not None:
        from data_builders.recipe import load_data_recipe

        folders.append(Path(load_data_recipe(Path(recipe.data.recipe)).output.path))
    model = Path(recipe.model.name)
    if _LATER.search(recipe.model.name) and not model.exists():
        folders.append(model.parents[1])
    return folders
