"""`train/sft.py --dry-run`: checks what can be checked, says what could not, estimates steps, tokens and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from probe.chat import Message
from probe.errors import SetOutOfReach
from probe.processes import processes
from train.plan_lines import (
    ASSUMED_SOURCE,
    Planned,
    memory_lines,
    model_line,
    planned,
    probe_lines,
    trains_on_cpu,
    unbuilt,
)
from train.recipe import SftRecipe
from train.rows import RowCounts, data_path, make_rows, read_conversations, show_loss

# What ASSUMED_SOURCE gave, in Qwen's one row per assistant turn (2026-11-21): the estimate where neither the data nor
# its source is within reach.
ASSUMED_COUNTS = RowCounts(9534, 21_654, 7_192_000, 0, 0, 34)
SAMPLE = 300
# Tokens of a row, for the estimate of memory alone, where the recipe says `max_length: null`.
UNLIMITED = 4096


def describe(recipe: SftRecipe) -> str:
    """The plan as text. Raises BadInput for what is wrong; what is out of reach is listed at the end."""
    plan = planned(recipe)
    lines = [model_line(recipe, plan.size)]
    lines += _data_lines(recipe, plan)
    rows, length = plan.given.get("per_device_train_batch_size", 8), plan.given.get("max_length", 1024)
    lines += memory_lines(plan, rows, length or UNLIMITED)
    lines += probe_lines(recipe, plan.unchecked)
    lines += [f"could not check {line}" for line in plan.unchecked]
    return "\n".join([*lines, "nothing was written"])


def _data_lines(recipe: SftRecipe, plan: Planned) -> list[str]:
    source = recipe.data.path or recipe.data.recipe
    given, chat, unchecked = plan.given, plan.chat, plan.unchecked
    share = 1.0
    try:
        conversations, share = _conversations(recipe)
    except SetOutOfReach as error:
        unchecked.append(f"the data: {error}; rows and tokens are those of {ASSUMED_SOURCE}")
        return [_counts_line(source, ASSUMED_COUNTS, estimated=True), *_step_lines(plan, ASSUMED_COUNTS)]
    if chat is None:
        words = sum(len(message["content"].split()) for messages in conversations for message in messages)
        counts = RowCounts(len(conversations), len(conversations), round(words * 1.4), 0, 0, 0)
        unchecked.append("the loss mask: it needs the model's tokenizer; tokens are 1.4 per word, a row a conversation")
        counts = _scaled(counts, share)
        return [_counts_line(source, counts, estimated=True), *_step_lines(plan, counts)]
    rows, counts = make_rows(conversations, chat, recipe.data.loss_on, given.get("max_length", 1024))
    counts = _scaled(counts, share)
    return [
        _counts_line(source, counts, estimated=share < 1),
        *_step_lines(plan, counts),
        "an example, with loss on what stands between ⟦ and ⟧:",
        *("  | " + line for line in show_loss(rows[0], chat.tokenizer).splitlines()),
    ]


def _conversations(recipe: SftRecipe) -> tuple[list[Sequence[Message]], float]:
    """The conversations, or a sample of those that a data recipe would build, with the sample's share."""
    build = unbuilt(recipe.data.recipe)
    if build is None:
        return list(read_conversations(data_path(recipe.data.path, recipe.data.recipe))), 1.0
    n = len(build.problems)
    sample = range(0, n, max(1, n // SAMPLE))
    return [made.messages for index in sample for made in build.conversations(index)], len(sample) / n


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


def _step_lines(plan: Planned, counts: RowCounts) -> list[str]:
    """For this launch; where that is one process of a recipe for GPUs, for eight as well."""
    lines = [f"steps     {_steps(plan.given, counts, processes())}"]
    if processes() == 1 and not trains_on_cpu(plan):
        lines.append(f"          on 8 GPUs {_steps(plan.given, counts, 8)}")
    return lines


def _steps(given: dict[str, Any], counts: RowCounts, ranks: int) -> str:
    per_device = given.get("per_device_train_batch_size", 8)
    accumulation = given.get("gradient_accumulation_steps", 1)
    batch = per_device * accumulation * ranks
    per_epoch = math.ceil(math.ceil(counts.rows / (per_device * ranks)) / accumulation)
    steps = given.get("max_steps", -1)
    if steps <= 0:
        steps = math.ceil(per_epoch * given.get("num_train_epochs", 3.0))
    tokens = round(counts.tokens * steps / per_epoch)
    return (
        f"{steps:,} at {batch} rows ({per_device} a process x {ranks} x {accumulation} accumulated), "
        f"{per_epoch:,} an epoch, {tokens:,} tokens in all"
    )
