"""`--dry-run`: checks what can be checked, says what could not, and estimates steps, tokens and memory per GPU.

Memory is counted by part. Weights, gradients and AdamW's states follow the mixed-precision bookkeeping of ZeRO
(arXiv 1910.02054, section 3.1: 2 + 2 + 12 bytes a parameter, the last two shared among processes under ZeRO-2, all
under ZeRO-3); activations follow arXiv 2205.05198, equation 2 without its attention term, which fused attention
does not store: 34 bytes per token, hidden unit and layer, or 2 with gradient checkpointing plus one layer in full.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.chat import Chat, Message
from probe.errors import DataError, ModelError, SetOutOfReach
from probe.models import load_tokenizer, resolve
from probe.processes import processes
from probe.questions import sets_within_reach, work_of
from train.launch import watch_line
from train.recipe import SftRecipe
from train.rows import RowCounts, conversations_path, make_rows, read_conversations, show_loss

GIB = 2**30

# Shapes of models that recipes name, for an estimate where the hub is out of reach. Text part only.
KNOWN_SHAPES: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.5-2B": {
        "model_type": "qwen3_5_text", "num_hidden_layers": 24, "hidden_size": 2048, "intermediate_size": 6144,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16, "tie_word_embeddings": True,
    },
}  # fmt: skip


# What recipes/math_collab.yaml made of MATH's training split, in Qwen's one row per assistant turn (2026-11-21):
# the estimate where neither the data nor its source is within reach.
ASSUMED_SOURCE = "recipes/math_collab.yaml on MATH's training split"
ASSUMED_COUNTS = RowCounts(6290, 8743, 3_815_000, 0, 0, 0)
SAMPLE = 300


@dataclass(frozen=True)
class Size:
    """Parameters of the policy and of its trained part, and the shape that activations depend on."""

    parameters: int
    trained: int
    layers: int
    hidden: int


def describe(recipe: SftRecipe) -> str:
    """The plan as text. Raises BadInput for what is wrong; what is out of reach is listed at the end."""
    unchecked: list[str] = []
    given = recipe.train.model_dump(exclude_unset=True)  # type: ignore[attr-defined]
    folder = chat = None
    try:
        folder = resolve(recipe.model.name)
        chat = Chat(load_tokenizer(folder), recipe.data.enable_thinking)
    except ModelError as error:
        if Path(recipe.model.name).exists() or recipe.model.name not in KNOWN_SHAPES:
            raise
        unchecked.append(f"the model: {error}; sizes are those known for {recipe.model.name}")
    size = _size(recipe, folder.path if folder else None)
    lines = [_model_line(recipe, size)]
    lines += _data_lines(recipe, given, chat, unchecked)
    lines += _memory_lines(recipe, given, size)
    lines += _probe_lines(recipe, unchecked)
    lines += [f"could not check {line}" for line in unchecked]
    return "\n".join([*lines, "nothing was written"])


def _model_line(recipe: SftRecipe, size: Size) -> str:
    kind = f"LoRA r={recipe.model.lora.r}" if recipe.model.lora else "all weights"
    return (
        f"model     {recipe.model.name}: {size.parameters / 1e6:,.1f}M parameters, "
        f"{size.trained / 1e6:,.1f}M trained ({kind}), {recipe.model.dtype}"
    )


def _data_lines(recipe: SftRecipe, given: dict[str, Any], chat: Chat | None, unchecked: list[str]) -> list[str]:
    source = recipe.data.path or recipe.data.recipe
    share = 1.0
    try:
        conversations, share = _conversations(recipe)
    except SetOutOfReach as error:
        unchecked.append(f"the data: {error}; rows and tokens are those of {ASSUMED_SOURCE}")
        return [_counts_line(source, ASSUMED_COUNTS, estimated=True), *_step_lines(given, ASSUMED_COUNTS)]
    if chat is None:
        words = sum(len(message["content"].split()) for messages in conversations for message in messages)
        counts = RowCounts(len(conversations), len(conversations), round(words * 1.4), 0, 0, 0)
        unchecked.append("the loss mask: it needs the model's tokenizer; tokens are 1.4 per word, a row a conversation")
        counts = _scaled(counts, share)
        return [_counts_line(source, counts, estimated=True), *_step_lines(given, counts)]
    rows, counts = make_rows(conversations, chat, recipe.data.loss_on, given.get("max_length", 1024))
    counts = _scaled(counts, share)
    return [
        _counts_line(source, counts, estimated=share < 1),
        *_step_lines(given, counts),
        "an example, with loss on what stands between ⟦ and ⟧:",
        *("  | " + line for line in show_loss(rows[0], chat.tokenizer).splitlines()),
    ]


def _conversations(recipe: SftRecipe) -> tuple[list[Sequence[Message]], float]:
    """The conversations, or a sample of those that a data recipe would build, with the sample's share."""
    if recipe.data.recipe is not None:
        from data_builders.build import Build
        from data_builders.recipe import load_data_recipe

        data = load_data_recipe(Path(recipe.data.recipe))
        if not (Path(data.output.path) / "manifest.json").is_file():
            build = Build(data)
            n = len(build.problems)
            sample = range(0, n, max(1, n // SAMPLE))
            return [made.messages for index in sample for made in build.conversations(index)], len(sample) / n
    return list(read_conversations(conversations_path(recipe.data))), 1.0


def _scaled(counts: RowCounts, share: float) -> RowCounts:
    """The counts of all, from those of a sample; the longest row is the sample's."""
    if share == 1:
        return counts
    whole = {name: round(value / share) for name, value in vars(counts).items()}
    return RowCounts(**{**whole, "longest": counts.longest})


def _counts_line(source: Any, counts: RowCounts, estimated: bool = False) -> str:
    share = f", {counts.loss_tokens / counts.tokens:.0%} with loss" if counts.loss_tokens else ""
    longest = f", longest row {counts.longest}" if counts.longest else ""
    return (
        f"data      {source}: {counts.conversations:,} conversations, {counts.rows:,} rows, "
        f"{counts.tokens:,} tokens{share}{longest}, {counts.too_long} rows too long and left out"
        f"{', estimated' if estimated else ''}"
    )


def _step_lines(given: dict[str, Any], counts: RowCounts) -> list[str]:
    ranks = processes()
    per_device = given.get("per_device_train_batch_size", 8)
    accumulation = given.get("gradient_accumulation_steps", 1)
    batch = per_device * accumulation * ranks
    per_epoch = math.ceil(math.ceil(counts.rows / (per_device * ranks)) / accumulation)
    steps = given.get("max_steps", -1)
    if steps <= 0:
        steps = math.ceil(per_epoch * given.get("num_train_epochs", 3.0))
    tokens = round(counts.tokens * steps / per_epoch)
    return [
        f"steps     {steps:,} at {batch} rows ({per_device} a process x {ranks} x {accumulation} accumulated), "
        f"{per_epoch:,} an epoch, {tokens:,} tokens in all"
    ]


def _memory_lines(recipe: SftRecipe, given: dict[str, Any], size: Size) -> list[str]:
    stage = _zero_stage(given)
    lines = []
    for ranks in sorted({processes(), 1, 8}):
        parts = memory_parts(size, recipe.model.dtype, given, stage if ranks > 1 else 0, ranks)
        listed = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts.items())
        zero = f" under ZeRO-{stage}" if ranks > 1 and stage else ""
        lines.append(f"memory    {sum(parts.values()) / GIB:.1f} GiB a GPU with {ranks}{zero} ({listed}), estimated")
    return lines


def memory_parts(size: Size, dtype: str, given: dict[str, Any], stage: int, ranks: int) -> dict[str, float]:
    """Bytes per process by part, for `ranks` processes under ZeRO `stage` (0: none)."""
    width = 2 if dtype == "bfloat16" else 4
    # DeepSpeed keeps a float32 master copy beside the two moments; plain AdamW keeps moments in the weights' type.
    states = size.trained * (12 if stage else 2 * width)
    tokens = given.get("per_device_train_batch_size", 8) * (given.get("max_length") or 1024)
    checkpointing = given.get("gradient_checkpointing", True)
    activations = tokens * size.hidden * (2 * size.layers + 34 if checkpointing else 34 * size.layers)
    return {
        "weights": size.parameters * width / (ranks if stage == 3 else 1),
        "gradients": size.trained * width / (ranks if stage >= 2 else 1),
        "optimizer": states / (ranks if stage else 1),
        "activations": activations,
    }


def _zero_stage(given: dict[str, Any]) -> int:
    config = given.get("deepspeed")
    if isinstance(config, str):
        try:
            config = json.loads(Path(config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"train.deepspeed: {config}: cannot be read ({error})") from None
    return int((config or {}).get("zero_optimization", {}).get("stage", 0))


def _probe_lines(recipe: SftRecipe, unchecked: list[str]) -> list[str]:
    if recipe.probe is None or recipe.probe.when == "never":
        return ["probe     none during training"]
    probe, lines = recipe.probe, []
    if probe.when == "watch":
        lines.append(watch_line(Path(recipe.train.output_dir)))  # type: ignore[attr-defined]
    for name, loaded in sets_within_reach(probe, unchecked, _data_folder(recipe)).items():
        if loaded is None:
            lines.append(f"probe     {name}: {probe.sets[name].n or 'all'} items")
            continue
        work = work_of(loaded, probe)
        lines.append(
            f"probe     {name}: {work.answers} answers, {work.user_turns} user turns, "
            f"{work.tokens:,} tokens at most per checkpoint"
        )
    return lines


def _data_folder(recipe: SftRecipe) -> Path | None:
    """Where the recipe's data will be built, or None where it lies ready."""
    if recipe.data.recipe is None:
        return None
    from data_builders.recipe import load_data_recipe

    return Path(load_data_recipe(Path(recipe.data.recipe)).output.path)


def _size(recipe: SftRecipe, folder: Path | None) -> Size:
    """Counted on a model without storage, built from the configuration alone."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from train.policy import lora_config

    if folder is None:
        shape = dict(KNOWN_SHAPES[recipe.model.name])
        config: Any = AutoConfig.for_model(shape.pop("model_type"), **shape)
    else:
        base = resolve(recipe.model.name).base
        config = AutoConfig.from_pretrained(base or folder, trust_remote_code=False)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        total = sum(parameter.numel() for parameter in model.parameters())
        trained = total
        if recipe.model.lora:
            from peft import get_peft_model

            trained = get_peft_model(model, lora_config(recipe.model.lora, model)).get_nb_trainable_parameters()[0]
    return Size(total, trained, config.num_hidden_layers, config.hidden_size)
