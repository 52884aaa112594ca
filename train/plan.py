"""`--dry-run` of all stages: what a run would do, counted from the recipe and the data, and what is not known yet."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nextturn.data_builders.sections import load_data_recipe
from nextturn.data_builders.simulators import check_own_class
from nextturn.probe.command.errors import ModelError
from nextturn.probe.command.sections import RoleSection
from nextturn.probe.data.messages import user
from nextturn.probe.data.tables import located
from nextturn.probe.models.conversions import is_multimodal
from nextturn.probe.models.folders import ModelFolder, load_chat, resolve, tokenizer_folder
from nextturn.probe.models.weights import ADAPTER_CONFIG, CONFIG, weight_files
from nextturn.probe.plan import plan_power, sets_within_reach, work_of
from nextturn.probe.text.chat import Chat, Message
from nextturn.train import encoding, memory
from nextturn.train.inputs import base_line, check_validation
from nextturn.train.policy import held_in
from nextturn.train.resume import checkpoint_bytes, disk_line, watch_line
from nextturn.train.scoring import open_workers, shared_columns
from nextturn.train.sections import (
    LATER,
    MAX_COMPLETION,
    NEUTRAL,
    DpoRecipe,
    GrpoRecipe,
    SftRecipe,
    TrainRecipe,
    batch_of,
)
from nextturn.train.setup import cpu_wanted

LARGE = 1e9  # parameters from which on nobody trains on a CPU
UNLIMITED = 4096  # tokens of a row for the estimate of memory if the recipe says `max_length: null`


def describe(recipe: TrainRecipe) -> str:
    """Return the plan as text. What cannot be checked now is listed after the counts.

    Raises:
        BadInput: The recipe, the model or the data cannot be used.
    """
    plan = RunPlan(recipe, *_model(recipe))
    path = _built(recipe)
    stage = {SftRecipe: plan.sft, DpoRecipe: plan.dpo, GrpoRecipe: plan.grpo}[type(recipe)]
    lines = [
        plan.model_line(),
        *stage(path),
        plan.saves_line(),
        *plan.disk_lines(),
        *plan.push_lines(),
        *plan.memory_lines(),
        *plan.probe_lines(),
        *(f"could not check {reason}" for reason in plan.unchecked),
        *plan.example,
        "dry run: no run was started and nothing was written, except what the hub's cache keeps",
    ]
    return "\n".join(lines)


def _model(recipe: TrainRecipe) -> tuple[memory.Size | None, Chat | None, list[str]]:
    """Return (size, chat, what could not be checked), read without the weights.

    Raises:
        ModelError: The model is neither here, nor known, nor a checkpoint that is still to be made.
    """
    name = recipe.model.name
    try:
        folder = _read_only(name)
        chat = load_chat(folder, recipe.data.switches)
        size = memory.size_of(recipe.model, folder.path, folder.base)
        with suppress(
            ModelError
        ):  # the hub's folder has no weights yet, and a multimodal model is converted at the start
            if folder.base is None and is_multimodal(folder.path):
                return size, chat, []
            size = replace(size, base=f"\nbase      {base_line(folder)}")
        return size, chat, []
    except ModelError as error:
        known = name in memory.KNOWN_SHAPES
        if Path(name).exists() or not (known or LATER.search(name)):
            raise
        sizes = f"; sizes are those known for {name}" if known else ""
        return memory.size_of(recipe.model, None) if known else None, None, [f"the model: {error}{sizes}"]


def _read_only(name: str) -> ModelFolder:
    """Return the model's folder as a plan reads it: the hub's without weights, a multimodal one as it is."""
    local = Path(name).expanduser()
    folder = tokenizer_folder(name) if not local.exists() else None
    if folder is not None and not (folder.path / ADAPTER_CONFIG).is_file():
        return folder
    if (local / CONFIG).is_file() and is_multimodal(local):
        weight_files(local)
        return ModelFolder(name, local.absolute())
    return resolve(name)


def _built(recipe: TrainRecipe) -> Path | None:
    """Return the data; None if those of a data recipe are not built yet."""
    if recipe.data.recipe is not None:
        output = Path(load_data_recipe(Path(recipe.data.recipe)).output.path)
        if not (output / "manifest.json").is_file():
            return None
    return encoding.data_path(recipe.data.path, recipe.data.recipe)


@dataclass
class RunPlan:
    """The facts of a run. `chat` is None without a tokenizer, and `size` is None without a model.

    Attributes:
        unchecked: What could not be checked, with the reason; every part of a plan adds its own.
        example: One row or prompt as text.
        rows: Rows, packed sequences or prompts of an epoch; None if the data are not there.
        length: Tokens of the longest sequence, of which GRPO trains the last `completion`.
    """

    recipe: TrainRecipe
    size: memory.Size | None
    chat: Chat | None
    unchecked: list[str]
    example: list[str] = field(default_factory=list)
    rows: int | None = None
    conversations: list[tuple[Message, ...]] = field(default_factory=list)
    length: int = 0
    completion: int | None = None

    def __post_init__(self) -> None:
        self.arguments, self.batch = self.recipe.arguments, batch_of(self.recipe)
        self.length = self.length or self.arguments.get("max_length", 1024) or UNLIMITED

    def model_line(self) -> str:
        model, size = self.recipe.model, self.size
        lora = model.lora
        kind = "all weights" if lora is None else "its own LoRA" if lora.adapter == "continue" else f"LoRA r={lora.r}"
        sizes, more = "parameters: unknown", ""
        if size is not None:
            sizes = f"{size.parameters / 1e6:,.1f}M parameters, {size.trained / 1e6:,.1f}M trained"
            more = size.base + (f"\nadapter   {size.adapted}" if size.adapted else "")
        return f"model     {model.name}: {sizes} ({kind}), {model.dtype}{more}"

    def unknown(self, what: str, path: Path | None) -> str:
        if path is None:
            return f"{what}: unknown until `nextturn data {self.recipe.data.recipe}` has run"
        return f"{what}: unknown without the model's tokenizer"

    # --- Data, batches and steps of each stage.

    def sft(self, path: Path | None) -> Iterator[str]:
        if path is None or self.chat is None:
            yield f"data      {self.unknown('rows and tokens', path)}"
        else:
            section: Any = self.recipe.data
            longest = self.arguments.get("max_length", 1024)
            self.conversations, rows, counts = encoding.load_rows(path, section, self.chat, longest)
            of_user = (
                f" on user turns, {counts.intents:,} conversations with an intent" if section.loss_on == "user" else ""
            )
            yield (
                f"data      {path}: {counts.conversations:,} conversations, {counts.rows:,} rows, {counts.tokens:,} tokens, "
                f"{counts.loss_tokens / counts.tokens:.0%} with loss{of_user}, longest row {counts.longest}, "
                f"{counts.too_long} rows too long and left out"
                + (f", {counts.skipped} left out because they are no conversations" if counts.skipped else "")
            )
            if section.validation:
                held_out = located(section.validation, "data.validation")
                _, validation, known = encoding.load_rows(held_out, section, self.chat, longest)
                check_validation(rows, validation)
                yield f"validate  {section.validation}: {known.conversations:,} conversations, {known.skipped + known.too_long} left out"
            self.example = ["an example, tokens with loss are between ⟦ and ⟧:", *_shown(rows[0], self.chat)]
            self.rows = counts.rows
        yield self.steps_line()

    def dpo(self, path: Path | None) -> Iterator[str]:
        if path is None or self.chat is None:
            yield f"data      {self.unknown('pairs and tokens', path)}"
        else:
            pairs = list(encoding.load_pairs(path))
            self.conversations = [pair.prompt for pair in pairs]
            limit = self.arguments.get("max_length", 1024)
            rows, counts = encoding.make_pairs(pairs, self.chat, limit)
            encoding.check_too_long(
                "pairs", counts.too_long, counts.pairs, f"train.max_length {limit}", self.recipe.data
            )
            yield (
                f"data      {path}: {counts.pairs:,} pairs{encoding.listed_kinds(counts.kinds)}, {counts.tokens:,} tokens of both sides, "
                f"longest {counts.longest}, {counts.too_long} too long and left out"
            )
            self.example = [f"an example ({pairs[0].kind}), the compared tokens of both sides are between ⟦ and ⟧:"]
            for side in ("chosen", "rejected"):
                prompt, reply = rows[0]["prompt_ids"], rows[0][f"{side}_ids"]
                row = {"input_ids": prompt + reply, "labels": [encoding.IGNORED] * len(prompt) + reply}
                self.example += [f"  {side}:", *_shown(row, self.chat)]
            self.rows = counts.pairs
        loss = " + ".join(self.arguments.get("loss_type") or ["sigmoid"])
        reference = "a frozen copy" if self.recipe.model.lora is None else "the model without its adapter"
        yield f"loss      {loss}, beta {self.arguments.get('beta', 0.1):g}; the reference is {reference}"
        yield self.steps_line()

    def steps_line(self) -> str:
        batch = self.batch
        of_epoch = "" if self.rows is None else f", {batch.steps(self.rows):,} an epoch"
        return (
            f"steps     {self.steps()} at {batch.rows_per_step} rows "
            f"({batch.per_device} a process x {batch.processes} x {batch.accumulation} accumulated){of_epoch}"
        )

    def grpo(self, path: Path | None) -> Iterator[str]:
        recipe, given = self.recipe, self.arguments
        assert isinstance(recipe, GrpoRecipe)
        rollout, reward = recipe.rollout, recipe.reward
        batch, turn = self.batch, rollout.max_turn_tokens
        columns = None
        if path is None or self.chat is None:
            yield f"prompts   {self.unknown('number and tokens', path)}"
        else:
            chosen = encoding.choose_prompts(recipe, path, self.chat, given.get("seed", 42), batch.prompts)
            self.conversations = [(*row.prompt, user(row.problem)) for row in chosen.every.values()]
            columns = shared_columns(chosen.every.values())
            counts, first = chosen.counts, next(iter(chosen.trained.values()))
            self.rows = counts.prompts
            yield (
                f"prompts   {path}: {counts.prompts:,}{encoding.listed_kinds(counts.kinds)}, {counts.tokens / counts.prompts:,.0f} tokens "
                f"on average, longest {counts.longest}, {counts.too_long} too long and left out, {counts.held_out} held out"
            )
            facts = [first.kind, first.answer and f"the answer is {first.answer}"]
            facts += [f"withheld: {'; '.join(first.hidden)}"] if first.hidden else []
            self.example = [f"an example ({'; '.join(filter(None, facts))}):".replace(" ()", "")]
            self.example += [f"  | {line}" for line in self.chat.prompt_text(first.prompt).splitlines()]

        if reward.custom:
            open_workers(reward, columns).close()
        check_own_class(rollout.simulator, "rollout.simulator")

        each = batch.steps_per_generation * given.get("num_iterations", 1) / batch.accumulation
        every = "" if each == 1 else f", a generation every {each:g} steps"
        yield f"steps     {self.steps()}{every}"
        yield (
            f"group     {batch.num_generations} samples of each of {batch.prompts} prompts: {batch.samples} at a time "
            f"({batch.per_device} a process x {batch.processes} x {batch.steps_per_generation})"
        )

        # At most: policy tokens with and without loss, user turns, verdicts.
        self.completion = given.get("max_completion_length", MAX_COMPLETION)
        verdicts, users, ahead = batch.samples, batch.samples * (rollout.max_turns - 1), 0
        trained = batch.samples * min(self.completion, rollout.max_turns * turn)
        mode = f"conversation: at most {rollout.max_turns} turns of {turn} tokens, all trained"
        if rollout.mode == "reply":
            verdicts *= rollout.samples if rollout.window else 1
            users, self.completion = verdicts * rollout.window, turn
            trained, ahead = batch.samples * turn, users * turn
            then = f"then {rollout.window} exchanges looked ahead, {rollout.samples} times"
            mode = f"reply: one turn of at most {turn} tokens is trained, {then if rollout.window else 'no look-ahead'}"
        self.length = recipe.data.max_prompt_tokens + self.completion
        parts = ", ".join(f"{name} {weight:g}" for name, weight in reward.weight_of.items() if weight)
        needed = ", ".join(sorted(reward.required_parts)) or "none"
        yield f"rollout   {mode}"
        yield (
            f"generate  {trained + ahead:,} tokens at most a generation ({trained:,} trained, {ahead:,} ahead), "
            f"{'vLLM' if given.get('use_vllm') else 'transformers'}"
        )
        if narrow := [name for name in ("top_p", "top_k", "min_p") if given.get(name) not in NEUTRAL[name]]:
            yield (
                f"note      train.{', train.'.join(narrow)}: vLLM samples from a part of the distribution, and the loss scores "
                "all of it; train.vllm_importance_sampling_mode: token_truncate keeps long samples"
            )
        yield f"simulator {_calls(rollout.simulator, users)}"
        yield f"reward    mean of {parts}; without {needed} a sample is left out"
        if reward.judge is not None:
            yield f"judge     {_calls(reward.judge, verdicts)}"

    def steps(self) -> str:
        """Return the number of optimizer steps of the run, as text."""
        total = self.total_steps()
        return "an unknown number" if total is None else f"{total:,}"

    def total_steps(self) -> int | None:
        given = self.arguments
        if given.get("max_steps", -1) > 0:
            return int(given["max_steps"])
        if self.rows is None:
            return None
        epoch = self.batch.steps(self.rows, given.get("num_iterations", 1))
        return math.ceil(epoch * given.get("num_train_epochs", 3.0))

    # --- Memory and checkpoints.

    def memory_lines(self) -> Iterator[str]:
        """Yield the memory that a process needs at its longest batch."""
        import torch

        recipe, given, size, batch = self.recipe, self.arguments, self.size, self.batch
        if size is None:
            yield "memory    unknown without the model"
            return
        of_dpo, of_grpo = isinstance(recipe, DpoRecipe), isinstance(recipe, GrpoRecipe)
        rows = batch.per_device * (2 if of_dpo else 1)  # both sides
        zero = memory.zero_stage(given) if batch.processes > 1 else 0
        dtype, checkpointing = held_in(recipe.model, zero), given.get("gradient_checkpointing", True)
        # The plan for a large model that is made on a laptop is one for GPUs.
        small_here = size.parameters < LARGE and not torch.cuda.is_available()
        fused = of_dpo or not (cpu_wanted(given) or small_here)
        activations = memory.activation_bytes(size, dtype, rows, self.length, self.completion, checkpointing, fused)
        parts = memory.memory_parts(size, dtype, activations, given, zero, batch.processes)
        if recipe.model.lora is None and (of_dpo or (of_grpo and given.get("beta"))):  # no adapter can be switched off
            parts["reference"] = size.parameters * memory.width_of(dtype) / (batch.processes if zero == 3 else 1)
        if isinstance(recipe, GrpoRecipe) and not given.get("use_vllm"):
            texts = batch.per_device * batch.steps_per_generation
            parts["generation"] = memory.generation_bytes(size, recipe.model.dtype, recipe.rollout.batch_tokens, texts)
        listed = ", ".join(f"{name} {value / memory.GIB:.2f}" for name, value in parts.items())
        stored = f"weights stored in {dtype}{f' under ZeRO-{zero}' if zero else ''}"
        needed, on_gpu = sum(parts.values()), torch.cuda.is_available() and not cpu_wanted(given)
        here = memory.memory_here(on_gpu)
        yield f"memory    {needed / memory.GIB:.1f} GiB a process: {listed}, at {rows} x {self.length:,} tokens, {stored}"
        yield f"          within {memory.ERROR:.0%}, and without CUDA's own 0.5 to 1 GiB; {'a GPU' if on_gpu else 'this machine'} has {here / memory.GIB:.1f} GiB"
        if needed * (1 if on_gpu else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))) > here:
            yield f"warning: more memory than there is here: {memory.advice(recipe)}"
        if given.get("use_vllm"):
            share = f"{given.get('vllm_gpu_memory_utilization', 0.3):.0%} of each GPU, in addition to these parts"
            yield f"vllm      {'on a server of its own' if given.get('vllm_mode') == 'server' else share}"

    def push_lines(self) -> Iterator[str]:
        given = self.arguments
        if given.get("push_to_hub"):
            private = given.get("hub_private_repo")
            kind = "the hub's default visibility" if private is None else "private" if private else "public"
            name = given.get("hub_model_id") or Path(given["output_dir"]).name
            yield f"push      {name} ({kind}), when training has ended: model, card, recipe and figures"

    def saves_line(self) -> str:
        strategy, every = self.arguments.get("save_strategy", "steps"), self.arguments.get("save_steps", 500)
        if strategy != "steps":
            return "saves     at the end of every epoch"
        if every < 1:
            return f"saves     {math.ceil(1 / every)} times, save_steps {every:g}"
        return f"saves     every {every} steps and at the end"

    def disk_lines(self) -> Iterator[str]:
        """Yield what the checkpoints need at once. The run itself refuses a disk that has too little room."""
        given, size, total, every = self.arguments, self.size, self.total_steps(), self.arguments.get("save_steps", 500)
        if size is None:
            return
        saves = math.ceil(1 / every) if every < 1 else total and math.ceil(total / every)
        if given.get("save_strategy", "steps") != "steps":
            saves = math.ceil(given.get("num_train_epochs", 3.0))
        stage = memory.zero_stage(given) if self.batch.processes > 1 else 0
        width = 4 if self.recipe.model.lora else memory.width_of(held_in(self.recipe.model, stage))
        optim, model_only = given.get("optim", "adamw_torch_fused"), given.get("save_only_model", False)
        one = checkpoint_bytes(size.trained, width, stage, optim, model_only)
        yield disk_line(one, saves, given.get("save_total_limit"), Path(given["output_dir"]))

    # --- The probe.

    def probe_lines(self) -> Iterator[str]:
        """Yield the largest number of requests of each set at a checkpoint."""
        probe, data, name = self.recipe.probe, self.recipe.data.recipe, self.recipe.model.name
        if probe is None or probe.when == "never":
            yield "probe     none during training"
            return
        if probe.when == "watch":
            yield watch_line(Path(self.arguments["output_dir"]))
        # Files may be missing in folders that earlier commands fill: the data's, and that of the run which makes the model to
        # start from, with its siblings.
        later = [Path(load_data_recipe(Path(data)).output.path)] if data is not None else []
        if LATER.search(name) and not Path(name).exists():
            later.append(Path(name).parents[1 if Path(name).name.startswith("checkpoint-") else 0])
        within_reach = sets_within_reach(probe, self.unchecked, later)
        yield from encoding.probed_in_training(
            self.conversations, {name: loaded.questions for name, loaded in within_reach.items() if loaded}
        )
        for set_name, loaded in within_reach.items():
            if loaded is None:
                yield f"probe     {set_name}: {probe.sets[set_name].n or 'all'} items"
                continue
            work = work_of(loaded, probe)
            yield (
                f"probe     {set_name}: {work.answers:,} answers, {work.user_turns:,} user turns, "
                f"{work.tokens:,} tokens at most per checkpoint"
            )
        yield from plan_power(list(within_reach.values()), probe)


def _calls(role: RoleSection, calls: int) -> str:
    model = role.server.model if role.server is not None else role.model
    return f"{role.engine}{f' {model}' if model else ''}: {calls:,} calls at most a generation"


def _shown(row: dict[str, list[int]], chat: Chat) -> list[str]:
    return [f"  | {line}" for line in encoding.show_loss(row, chat.tokenizer).splitlines()]
