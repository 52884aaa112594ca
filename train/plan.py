"""`--dry-run` of all stages: what a run would do, counted from the recipe and the data, and what is not known yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextturn.data_builders.recipe import RoleSection, load_data_recipe
from nextturn.data_builders.rows import load_rl_rows
from nextturn.probe.chat import Chat
from nextturn.probe.conversions import is_multimodal
from nextturn.probe.engines.hf import LOGITS_BYTES
from nextturn.probe.errors import ModelError, RecipeError
from nextturn.probe.measure.run import sets_within_reach, work_of
from nextturn.probe.models import ModelFolder, load_tokenizer, resolve, tokenizer_folder
from nextturn.probe.terminal import processes
from nextturn.probe.weights import ADAPTER_CONFIG, CONFIG, weight_files
from nextturn.train.checkpoints import checkpoint_bytes, free_bytes, held_at_once, saves, watch_line
from nextturn.train.memory import (
    ERROR,
    GIB,
    KNOWN_SHAPES,
    Size,
    activation_bytes,
    generation_bytes,
    memory_parts,
    size_of,
    width_of,
    zero_stage,
)
from nextturn.train.recipe import LATER, MAX_COMPLETION, DpoRecipe, GrpoRecipe, SftRecipe, TrainRecipe, batch_of, fitted
from nextturn.train.rows import (
    IGNORED,
    as_dataset,
    choose_prompts,
    data_path,
    load_pairs,
    make_pairs,
    make_rows,
    read_conversations,
    show_loss,
)
from nextturn.train.setup import cpu_wanted, held_in

# Numbers of processes that a plan for GPUs speaks of, beside this launch's: one GPU, a node of eight, two of them.
LAUNCHES = (1, 8, 16)
LARGE = 1e9  # from so many parameters on nobody trains on a CPU
UNLIMITED = 4096  # tokens of a row, for the estimate of memory alone, where the recipe says `max_length: null`


def describe(recipe: TrainRecipe) -> str:
    """Return the plan as text. What is out of reach is listed after the counts.

    Raises:
        BadInput: the recipe, the model or the data cannot be used.
    """
    model = _model(recipe)
    if isinstance(recipe, GrpoRecipe):
        stage = _grpo(recipe, model)
    else:
        stage = _dpo(recipe, model) if isinstance(recipe, DpoRecipe) else _sft(recipe, model)
    lines = [
        _model_line(recipe, model.size),
        *stage.lines,
        _saves_line(model.given, stage.steps(processes())),
        *_memory_lines(recipe, model, stage),
        *_disk_lines(recipe, model, stage),
        *_probe_lines(recipe, model),
        *(f"could not check {reason}" for reason in model.unchecked),
        *stage.example,
        "dry run: no run was started and nothing was written, but what the hub sent stays in its cache",
    ]
    return "\n".join(lines)


# --- The model, read without its weights.


@dataclass(frozen=True)
class _Model:
    """What a plan knows of the model. Without `chat` its tokenizer is out of reach, without `size` the model too.

    Attributes:
        given: the recipe's `train:` section as it was given.
        unchecked: what is out of reach, with the reason; every part of a plan adds its own.
    """

    given: dict[str, Any]
    size: Size | None
    chat: Chat | None
    unchecked: list[str]

    @property
    def on_cpu(self) -> bool:
        """CPUs are asked for, or there is no GPU; a plan for a large model made on a laptop is one for GPUs."""
        import torch

        small = self.size is not None and self.size.parameters < LARGE
        return cpu_wanted(self.given) or (small and not torch.cuda.is_available())


def _model(recipe: TrainRecipe) -> _Model:
    """Raises ModelError for a model that is neither here, nor known, nor a checkpoint that is still to be made."""
    given = recipe.train.model_dump(exclude_unset=True)  # type: ignore[attr-defined]
    name = recipe.model.name
    try:
        folder = _read_only(name)
        chat = Chat(load_tokenizer(folder), recipe.data.enable_thinking)
        return _Model(given, size_of(recipe.model, folder.path, folder.base), chat, [])
    except ModelError as error:
        known = name in KNOWN_SHAPES
        if Path(name).exists() or not (known or LATER.search(name)):
            raise
        unchecked = [f"the model: {error}{f'; sizes are those known for {name}' if known else ''}"]
        return _Model(given, size_of(recipe.model, None) if known else None, None, unchecked)


def _read_only(name: str) -> ModelFolder:
    """The model's folder, as far as a plan reads it: of the hub's without the weights, of a multimodal one as it is."""
    local = Path(name).expanduser()
    folder = tokenizer_folder(name) if not local.exists() else None
    if folder is not None and not (folder.path / ADAPTER_CONFIG).is_file():
        return folder
    if (local / CONFIG).is_file() and is_multimodal(local):
        weight_files(local)
        return ModelFolder(name, local.absolute())
    return resolve(name)


def _model_line(recipe: TrainRecipe, size: Size | None) -> str:
    lora = recipe.model.lora
    kind = "all weights" if lora is None else "its own LoRA" if lora.adapter == "continue" else f"LoRA r={lora.r}"
    sizes = "parameters: unknown"
    if size is not None:
        sizes = f"{size.parameters / 1e6:,.1f}M parameters, {size.trained / 1e6:,.1f}M trained"
    return f"model     {recipe.model.name}: {sizes} ({kind}), {recipe.model.dtype}"


# --- Data, batches and steps of each stage.


@dataclass(frozen=True)
class _Stage:
    """What SFT, DPO and GRPO each say of themselves.

    Attributes:
        lines: about data, steps and what a step is made of.
        example: one row or prompt, as text.
        steps: optimizer steps of the run on so many processes; None where the data are not there.
        length: of the longest sequence in tokens, of which GRPO trains the last `completion`.
    """

    lines: list[str]
    example: list[str]
    steps: Callable[[int], int | None]
    length: int
    completion: int | None = None


def _built(recipe: TrainRecipe) -> Path | None:
    """The data; None for those of a data recipe that is not built yet."""
    if recipe.data.recipe is not None:
        output = Path(load_data_recipe(Path(recipe.data.recipe)).output.path)
        if not (output / "manifest.json").is_file():
            return None
    return data_path(recipe.data.path, recipe.data.recipe)


def _unknown(recipe: TrainRecipe, what: str, path: Path | None) -> str:
    if path is None:
        return f"{what}: unknown until `nextturn data {recipe.data.recipe}` has run"
    return f"{what}: unknown without the model's tokenizer"


def _sft(recipe: SftRecipe, model: _Model) -> _Stage:
    path, given = _built(recipe), model.given
    lines, example, rows_of_steps = [f"data      {_unknown(recipe, 'rows and tokens', path)}"], [], None
    if path is not None and model.chat is not None:
        rows, counts = make_rows(
            read_conversations(path), model.chat, recipe.data.loss_on, given.get("max_length", 1024)
        )
        lines = [
            f"data      {path}: {counts.conversations:,} conversations, {counts.rows:,} rows, {counts.tokens:,} tokens, "
            f"{counts.loss_tokens / counts.tokens:.0%} with loss, longest row {counts.longest}, "
            f"{counts.too_long} rows too long and left out"
        ]
        example = ["an example, with loss on what stands between ⟦ and ⟧:", *_shown(rows[0], model.chat)]
        rows_of_steps = counts.rows
        if given.get("packing"):
            rows_of_steps = len(as_dataset(rows, _length(given)))
            lines.append(f"packing   into {rows_of_steps:,} sequences of at most {_length(given):,} tokens")
    return _rows_stage(recipe, model, lines, example, rows_of_steps)


def _dpo(recipe: DpoRecipe, model: _Model) -> _Stage:
    path, given = _built(recipe), model.given
    lines, example, pairs_of_steps = [f"data      {_unknown(recipe, 'pairs and tokens', path)}"], [], None
    if path is not None and model.chat is not None:
        pairs = list(load_pairs(path))
        rows, counts = make_pairs(pairs, model.chat, given.get("max_length", 1024))
        lines = [
            f"data      {path}: {counts.pairs:,} pairs ({_kinds(counts.kinds)}), {counts.tokens:,} tokens of both sides, "
            f"longest {counts.longest}, {counts.too_long} too long and left out"
        ]
        example = [f"an example ({pairs[0].kind}), both sides with what is compared between ⟦ and ⟧:"]
        for side in ("chosen", "rejected"):
            prompt, reply = rows[0]["prompt_ids"], rows[0][f"{side}_ids"]
            row = {"input_ids": prompt + reply, "labels": [IGNORED] * len(prompt) + reply}
            example += [f"  {side}:", *_shown(row, model.chat)]
        pairs_of_steps = counts.pairs
    loss = " + ".join(given.get("loss_type") or ["sigmoid"])
    reference = "a frozen copy" if recipe.model.lora is None else "the adapter switched off"
    lines.append(f"loss      {loss}, beta {given.get('beta', 0.1):g}; the reference is {reference}")
    return _rows_stage(recipe, model, lines, example, pairs_of_steps)


def _rows_stage(
    recipe: SftRecipe | DpoRecipe, model: _Model, lines: list[str], example: list[str], rows: int | None
) -> _Stage:
    """Steps over `rows` rows; None where their number is not known."""

    def split(ranks: int) -> tuple[int, int, int | None]:
        """Rows that a process takes at once, parts of a step, steps of an epoch."""
        here = fitted(recipe, ranks)
        at_once, parts = here.get("per_device_train_batch_size", 8), here.get("gradient_accumulation_steps") or 1
        return at_once, parts, None if rows is None else math.ceil(math.ceil(rows / (at_once * ranks)) / parts)

    def steps(ranks: int) -> int | None:
        return _all_steps(model.given, split(ranks)[2])

    def line(ranks: int) -> str:
        at_once, parts, epoch = split(ranks)
        of_epoch = "" if epoch is None else f", {epoch:,} an epoch"
        return (
            f"{_number(steps(ranks))} at {at_once * parts * ranks} rows "
            f"({at_once} a process x {ranks} x {parts} accumulated){of_epoch}"
        )

    return _Stage([*lines, *_on_each("steps", model, line)], example, steps, _length(model.given))


def _grpo(recipe: GrpoRecipe, model: _Model) -> _Stage:
    given, rollout, reward = model.given, recipe.rollout, recipe.reward
    batch, iterations = batch_of(fitted(recipe)), given.get("num_iterations", 1)
    path, example, prompts = _built(recipe), [], None
    lines = [f"prompts   {_unknown(recipe, 'number and tokens', path)}"]
    if path is not None and model.chat is not None:
        chosen = choose_prompts(
            load_rl_rows(path), recipe.data, model.chat, given.get("seed", 42), batch.prompts, str(path)
        )
        counts, first = chosen.counts, next(iter(chosen.trained.values()))
        prompts = counts.prompts
        lines = [
            f"prompts   {path}: {prompts:,} ({_kinds(counts.kinds)}), {counts.tokens / prompts:,.0f} tokens on average, "
            f"longest {counts.longest}, {counts.too_long} too long and left out, {counts.held_out} held out"
        ]
        withheld = f"; withheld: {'; '.join(first.hidden)}" if first.hidden else ""
        example = [f"an example ({first.kind}; the answer is {first.answer}{withheld}):"]
        example += [f"  | {line}" for line in model.chat.prompt_text(first.prompt).splitlines()]

    def steps(ranks: int) -> int | None:
        each = batch_of(fitted(recipe, ranks), ranks)
        return _all_steps(given, None if prompts is None else each.steps(prompts, iterations))

    def group(ranks: int) -> str:
        here = batch_of(fitted(recipe, ranks), ranks)
        return (
            f"{here.num_generations} samples of each of {here.prompts} prompts: {here.samples} at a time "
            f"({here.per_device} a process x {here.processes} x {here.steps_per_generation})"
        )

    each = batch.steps_per_generation * iterations / batch.accumulation
    lines += [
        f"steps     {_number(steps(processes()))}{'' if each == 1 else f', a generation every {each:g} steps'}",
        *_on_each("group", model, group),
    ]

    # At most: policy tokens that carry loss and that only look ahead, user turns, verdicts.
    turn, completion = rollout.max_turn_tokens, given.get("max_completion_length", MAX_COMPLETION)
    if rollout.mode == "reply":
        verdicts = batch.samples * (rollout.samples if rollout.window else 1)
        users = verdicts * rollout.window
        trained, ahead, completion = batch.samples * turn, users * turn, turn
        then = f"then {rollout.window} exchanges looked ahead, {rollout.samples} times"
        mode = f"reply: one turn of at most {turn} tokens is trained, {then if rollout.window else 'no look-ahead'}"
    else:
        users, verdicts = batch.samples * (rollout.max_turns - 1), batch.samples
        trained, ahead = batch.samples * min(completion, rollout.max_turns * turn), 0
        mode = f"conversation: at most {rollout.max_turns} turns of {turn} tokens, all trained"
    parts = ", ".join(f"{name} {weight:g}" for name, weight in reward.weight_of.items() if weight)
    needed = ", ".join(sorted(reward.required_parts)) or "none"
    lines += [
        f"rollout   {mode}",
        f"generate  {trained + ahead:,} tokens at most a generation ({trained:,} trained, {ahead:,} ahead), "
        f"{'vLLM' if given.get('use_vllm') else 'transformers'}",
        f"simulator {_calls(rollout.simulator, users)}",
        f"reward    mean of {parts}; without {needed} a sample is left out",
    ]
    if reward.judge is not None:
        lines.append(f"judge     {_calls(reward.judge, verdicts)}")
    return _Stage(lines, example, steps, recipe.data.max_prompt_tokens + completion, completion)


def _calls(role: RoleSection, calls: int) -> str:
    who = role.server.model if role.server is not None else role.model
    return f"{role.engine}{f' {who}' if who else ''}: {calls:,} calls at most a generation"


def _kinds(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))


def _shown(row: dict[str, list[int]], chat: Chat) -> list[str]:
    return [f"  | {line}" for line in show_loss(row, chat.tokenizer).splitlines()]


def _length(given: Mapping[str, Any]) -> int:
    return given.get("max_length", 1024) or UNLIMITED


def _all_steps(given: Mapping[str, Any], of_epoch: float | None) -> int | None:
    steps: int = given.get("max_steps", -1)
    if steps > 0 or of_epoch is None:
        return steps if steps > 0 else None
    return math.ceil(of_epoch * given.get("num_train_epochs", 3.0))


def _number(steps: int | None) -> str:
    return "an unknown number" if steps is None else f"{steps:,}"


# --- Lines for each launch.


def _launches(model: _Model) -> list[int]:
    """Processes for which a plan speaks: this launch's, and the usual ones where it is for GPUs."""
    return [processes()] if model.on_cpu else sorted({processes(), *LAUNCHES})


def _on_each(name: str, model: _Model, line: Callable[[int], str]) -> Iterator[str]:
    """Yield a line for each launch, the first with its name; where a batch does not fit a launch, why."""
    for ranks in _launches(model):
        try:
            found = line(ranks)
        except RecipeError as error:
            found = f"not as the recipe is: {error}"
        gpus = {1: "1 GPU", 16: "2 x 8 GPUs"}.get(ranks, f"{ranks} GPUs")
        yield f"{name:<9} {'' if model.on_cpu else f'on {gpus}: '}{found}"
        name = ""


def _memory_lines(recipe: TrainRecipe, model: _Model, stage: _Stage) -> list[str]:
    """What a process needs at its longest batch."""
    size = model.size
    if size is None:
        return ["memory    unknown without the model"]
    of_file = zero_stage(model.given)

    def line(ranks: int) -> str:
        given, zero = fitted(recipe, ranks), of_file if ranks > 1 else 0
        rows = given.get("per_device_train_batch_size", 8) * (2 if isinstance(recipe, DpoRecipe) else 1)  # both sides
        dtype, checkpointing = held_in(recipe.model, zero), given.get("gradient_checkpointing", True)
        fused = isinstance(recipe, DpoRecipe) or not model.on_cpu
        activations = activation_bytes(size, dtype, rows, stage.length, stage.completion, checkpointing, fused)
        parts = memory_parts(size, dtype, activations, given, zero, ranks)
        reads_base = isinstance(recipe, DpoRecipe) or (isinstance(recipe, GrpoRecipe) and bool(given.get("beta")))
        if recipe.model.lora is None and reads_base:  # a frozen copy, where no adapter can be switched off
            parts["reference"] = size.parameters * width_of(dtype) / (ranks if zero == 3 else 1)
        if isinstance(recipe, GrpoRecipe) and not given.get("use_vllm"):
            split = batch_of(given, ranks)
            texts = split.per_device * split.steps_per_generation
            parts["generation"] = generation_bytes(size, recipe.model.dtype, recipe.rollout.batch_tokens, texts)
        # An inline probe comes between two steps, in the place of activations.
        inline = recipe.probe is not None and recipe.probe.when == "inline" and recipe.probe.grounding
        if inline and not model.on_cpu and activations < LOGITS_BYTES:
            parts["probe"] = LOGITS_BYTES - activations
        listed = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts.items())
        if dtype != recipe.model.dtype:
            listed = listed.replace(",", f" in {dtype} so that small updates are not lost,", 1)
        zero_line = f" under ZeRO-{zero}" if zero else ""
        return (
            f"{sum(parts.values()) / GIB:.1f} GiB a process{zero_line} ({listed}, at {rows} x {stage.length:,} tokens)"
        )

    lines = [*_on_each("memory", model, line), f"          within {ERROR:.0%}, and without CUDA's own 0.5 to 1 GiB"]
    if model.given.get("use_vllm"):
        share = model.given.get("vllm_gpu_memory_utilization", 0.3)
        served = model.given.get("vllm_mode", "colocate") == "server"
        lines.append(
            f"vllm      {'on a server of its own' if served else f'{share:.0%} of each GPU, beside these parts'}"
        )
    return lines


def _saves(given: Mapping[str, Any], steps: int | None) -> int | None:
    """Checkpoints of a run; of unknown length where `save_steps` is a share of it."""
    strategy, every = given.get("save_strategy", "steps"), given.get("save_steps", 500)
    if steps is None:
        return math.ceil(1 / every) if strategy == "steps" and every < 1 else None
    return saves(strategy, every, steps, given.get("num_train_epochs", 3.0))


def _saves_line(given: Mapping[str, Any], steps: int | None) -> str:
    """What `save_steps` means, of which a fraction is a share of all steps."""
    strategy, every, count = given.get("save_strategy", "steps"), given.get("save_steps", 500), _saves(given, steps)
    if strategy != "steps":
        return f"saves     save_strategy {strategy}"
    if every >= 1:
        return f"saves     every {every} steps and after the last{'' if count is None else f', {count} checkpoints'}"
    often = "" if steps is None else f", every {math.ceil(steps * every):,} of {steps:,} steps"
    return f"saves     save_steps {every:g}: {count} times per run{often}"


def _disk_lines(recipe: TrainRecipe, model: _Model, stage: _Stage) -> list[str]:
    """Room for checkpoints, as a real run asks for it before its first step (train/checkpoints.py)."""
    given, size = model.given, model.size
    if size is None:
        return []
    half, of_file = given.get("fp16") or given.get("bf16", True), zero_stage(given)

    def line(ranks: int) -> str:
        zero, limit, count = (
            of_file if ranks > 1 else 0,
            given.get("save_total_limit"),
            _saves(given, stage.steps(ranks)),
        )
        # Without ZeRO all that is trained is float32.
        width = (2 if half else width_of(recipe.model.dtype)) if zero else 4
        whole, adapter = not given.get("save_only_model", False), recipe.model.lora is not None
        parts = checkpoint_bytes(size.parameters, size.trained, size.tied, adapter, width, zero, whole)
        listed, one = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts.items()), sum(parts.values()) / GIB
        each = f"{one:.2f} GiB a checkpoint ({listed})"
        if count is None and limit is None:
            return f"{each}, an unknown number at once"
        at_once = held_at_once(limit, 0, UNLIMITED if count is None else count)
        return f"{each}, {at_once} at once: {at_once * one:.1f} GiB"

    run_dir = Path(given["output_dir"])
    return [*_on_each("disk", model, line), f"          {free_bytes(run_dir) / GIB:,.1f} GiB are free for {run_dir}"]


# --- The probe.


def _probe_lines(recipe: TrainRecipe, model: _Model) -> list[str]:
    """What each set asks of a checkpoint, at most."""
    probe = recipe.probe
    if probe is None or probe.when == "never":
        return ["probe     none during training"]
    lines = [watch_line(Path(model.given["output_dir"]))] if probe.when == "watch" else []
    # Files are no error yet in folders that commands before this one fill: the data's, and that of the run which makes the
    # model to start from, with what lies beside it.
    later = []
    if recipe.data.recipe is not None:
        later.append(Path(load_data_recipe(Path(recipe.data.recipe)).output.path))
    if LATER.search(recipe.model.name) and not Path(recipe.model.name).exists():
        run = Path(recipe.model.name)
        later.append(run.parents[1] if run.name.startswith("checkpoint-") else run.parent)
    for name, loaded in sets_within_reach(probe, model.unchecked, later).items():
        if loaded is None:
            lines.append(f"probe     {name}: {probe.sets[name].n or 'all'} items")
            continue
        needed = work_of(loaded, probe)
        lines.append(
            f"probe     {name}: {needed.answers:,} answers, {needed.user_turns:,} user turns, "
            f"{needed.tokens:,} tokens at most per checkpoint"
        )
    return lines
