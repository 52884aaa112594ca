"""`train/sft.py --dry-run`: checks what can be checked, says what could not, estimates steps, tokens and memory."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_builders.dialogue.settings import RoleSection
from data_builders.rows import RlRow, load_rl_rows, rl_rows
from probe.chat import Chat, Message
from probe.errors import DataError, ModelError, SetOutOfReach
from probe.models import load_tokenizer, resolve
from probe.run import Work, sets_within_reach, work, work_of
from probe.settings import ProbeSection
from probe.terminal import processes
from train.recipe import MAX_COMPLETION, Batch, GrpoRecipe, ModelSection, RewardSection, SftRecipe, batch_of
from train.rows import PromptCounts, RowCounts, choose_prompts, data_path, make_rows, read_conversations, show_loss
from train.setup import cpu_wanted, watch_line

if TYPE_CHECKING:
    from train.step_memory import StepMemory


# --- Memory per process, estimated by part before anything is loaded.
#
# Activations come from a step on tensors without storage (train/step_memory.py). The rest is bookkeeping: AdamW's two
# moments are of the weights' type; under ZeRO a trained weight costs 2 + 2 + 16 bytes (DeepSpeed's own count, in
# `estimate_zero2_model_states_mem_needs` and its ZeRO-3 twin: half-precision weights and gradients; float32 weights, two
# moments and, at the optimizer's step, gradients), shared among processes from the right on: optimizer under ZeRO-1,
# gradients under ZeRO-2, weights under ZeRO-3 (arXiv 1910.02054, section 3.1).

GIB = 2**30

# Shapes of models that recipes name, for an estimate where the hub is out of reach. Text part only.
KNOWN_SHAPES: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.5-2B": {
        "model_type": "qwen3_5_text", "num_hidden_layers": 24, "hidden_size": 2048, "intermediate_size": 6144,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16, "tie_word_embeddings": True,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Parameters of the policy and of its trained part.

    Attributes:
        cached: numbers that a token leaves in the cache while text is generated: keys and values of the layers with
            full attention.
        make: builds the policy, adapter included; inside `torch.device("meta")` it takes no memory.
    """

    parameters: int
    trained: int
    vocabulary: int
    cached: int
    make: Callable[[], Any]


def memory_parts(size: Size, step: StepMemory, given: dict[str, Any], stage: int, ranks: int) -> dict[str, float]:
    """Bytes per process by part, for `ranks` processes under ZeRO `stage` (0: without DeepSpeed).

    The parts add up to the most that is needed at once. Without DeepSpeed and without accumulation, gradients come as
    activations go, so that `activations` is only what they take beyond the gradients.
    """
    accumulated = given.get("gradient_accumulation_steps", 1) > 1
    if stage:
        width = 2 if given.get("fp16") or given.get("bf16", True) else 4
        adapter = size.trained if step.frozen else 0
        return {
            "weights": (size.parameters + adapter) * width / (ranks if stage == 3 else 1),
            "gradients": size.trained * width / (ranks if stage >= 2 else 1),
            "optimizer": size.trained * 16 / ranks,
            "activations": step.activations,
        }
    return {
        "weights": step.frozen + step.trained,
        # DDP reduces gradients in buckets that hold them a second time.
        "gradients": step.trained * (2 if ranks > 1 else 1),
        "optimizer": 2 * step.trained,
        "activations": step.activations if accumulated else max(0, step.together - step.trained),
    }


def reference_bytes(size: Size, dtype: str, stage: int, ranks: int) -> float:
    """The frozen copy that a KL term needs where no adapter can be switched off."""
    return size.parameters * _width(dtype) / (ranks if stage == 3 else 1)


def generation_bytes(size: Size, dtype: str, tokens: int, rows: int) -> float:
    """What transformers needs to generate `rows` texts of `tokens` in all: the cache, and a step's probabilities,
    which are held as they come, in float32 and summed in float64."""
    return size.cached * tokens * _width(dtype) + rows * size.vocabulary * (_width(dtype) + 4 + 8)


def zero_stage(given: dict[str, Any]) -> int:
    """The stage in the recipe's DeepSpeed file, 0 without one. Raises DataError where it cannot be read."""
    config = given.get("deepspeed")
    if isinstance(config, str):
        try:
            config = json.loads(Path(config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"train.deepspeed: {config}: cannot be read ({error})") from None
    return int((config or {}).get("zero_optimization", {}).get("stage", 0))


def size_of(section: ModelSection, folder: Path | None) -> Size:
    """Counted on a model without storage, built from the configuration alone; the known shape where no folder is."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if folder is None:
        shape = dict(KNOWN_SHAPES[section.name])
        config: Any = AutoConfig.for_model(shape.pop("model_type"), **shape)
    else:
        base = resolve(section.name).base
        config = AutoConfig.from_pretrained(base or folder, trust_remote_code=False)

    adapters: list[Any] = []

    def make() -> Any:
        dtype = getattr(torch, section.dtype)
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
        if not adapters:  # once, since it says which targets the model lacks
            adapters.append(_adapter(section, folder, model))
        if adapters[0] is None:
            return model
        from peft import get_peft_model

        return get_peft_model(model, adapters[0])

    with torch.device("meta"):
        model = make()
    counts = {on: sum(p.numel() for p in model.parameters() if p.requires_grad is on) for on in (True, False)}
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cached = 2 * kinds.count("full_attention") * config.num_key_value_heads * head
    return Size(counts[False] or counts[True], counts[True], config.vocab_size, cached, make)


def _adapter(section: ModelSection, folder: Path | None, model: Any) -> Any:
    from train.setup import new_adapter

    if section.lora is not None and section.lora.adapter == "continue" and folder is not None:
        from peft import PeftConfig

        adapter = PeftConfig.from_pretrained(str(folder))
        adapter.inference_mode = False
        return adapter
    return new_adapter(section, model)


def _width(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else 4


# --- Lines that every training plan has: the model, memory per GPU, the probe.

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


# --- `train/grpo.py --dry-run`: checks what can be checked, says what could not, estimates what a step takes.
#
# Upper bounds of tokens and calls are for one generation, which is one optimizer step unless the recipe says otherwise.

# What ASSUMED_SOURCE gave, in prompts (2026-11-21): the estimate where neither data nor source is within reach.
ASSUMED_PROMPTS = PromptCounts(13_778, {}, 13_778 * 119, 0, 0)
PROMPT_SAMPLE = 300
# A simulated user's or a judge's instruction, and a usual reply of theirs, in tokens.
INSTRUCTION, REPLY = 400, 60


@dataclass(frozen=True)
class GrpoWork:
    """One generation at most: policy tokens that carry loss and that only look ahead, and calls to other models."""

    trained: int
    ahead: int
    simulator: int
    judge: int


def describe_grpo(recipe: GrpoRecipe) -> str:
    """The plan as text. Raises BadInput for what is wrong; what is out of reach is listed at the end."""
    plan = planned(recipe)
    batch = batch_of(plan.given)
    counts, example = _prompts(recipe, plan, batch)
    work = grpo_work_of(recipe, plan, batch)
    lines = [model_line(recipe, plan.size), _prompt_line(recipe, counts, example is None)]
    lines += _grpo_plan_step_lines(plan, batch, counts)
    lines += _rollout_lines(recipe, plan, batch, work)
    lines += _call_lines(recipe, work, counts)
    trained = _trained_tokens(recipe, plan)
    length = recipe.data.max_prompt_tokens + trained
    lines += memory_lines(plan, batch.per_device, length, trained, _more_memory(recipe, plan, batch))
    lines += _vllm_lines(plan)
    lines += probe_lines(recipe, plan.unchecked)
    lines += [f"could not check {line}" for line in plan.unchecked]
    return "\n".join([*lines, *_example_lines(plan, example), "nothing was written"])


def grpo_work_of(recipe: GrpoRecipe, plan: Planned, batch: Batch) -> GrpoWork:
    """The most that one generation can take."""
    rollout, limit = recipe.rollout, plan.given.get("max_completion_length", MAX_COMPLETION)
    judged = recipe.reward.judge is not None
    if rollout.mode == "conversation":
        trained = min(limit, rollout.max_turns * rollout.max_turn_tokens)
        return GrpoWork(
            batch.samples * trained, 0, batch.samples * (rollout.max_turns - 1), batch.samples if judged else 0
        )
    played = batch.samples * (rollout.samples if rollout.window else 1)
    exchanges = played * rollout.window
    return GrpoWork(
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
        return ASSUMED_PROMPTS, None
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
    sample = range(0, n, max(1, n // PROMPT_SAMPLE))
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


def _grpo_plan_step_lines(plan: Planned, batch: Batch, counts: PromptCounts) -> list[str]:
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


def _rollout_lines(recipe: GrpoRecipe, plan: Planned, batch: Batch, work: GrpoWork) -> list[str]:
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


def _call_lines(recipe: GrpoRecipe, work: GrpoWork, counts: PromptCounts) -> list[str]:
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
