"""`--dry-run` of all stages: checks what can be checked, says what could not, estimates steps, tokens, memory and time."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from data_builders.recipe import RoleSection, load_data_recipe
from data_builders.rows import RlRow, load_rl_rows, rl_rows
from probe.chat import Chat
from probe.conversions import cache_root, is_multimodal
from probe.engines.hf import CHOICE_BYTES, LOGITS_BYTES, cache_bytes
from probe.errors import DataError, ModelError, RecipeError, SetOutOfReach
from probe.models import ModelFolder, load_tokenizer, resolve, tokenizer_folder
from probe.run import Work, sets_within_reach, work, work_of
from probe.settings import ProbeSection
from probe.terminal import processes
from probe.weights import ADAPTER_CONFIG, CONFIG, weight_files
from train import speed
from train.checkpoints import GIB, checkpoint_bytes, free_bytes, held_at_once, saves, watch_line
from train.recipe import (
    LATER,
    MAX_COMPLETION,
    DpoRecipe,
    GrpoRecipe,
    ModelSection,
    SftRecipe,
    TrainRecipe,
    batch_of,
    fitted,
)
from train.rows import (
    IGNORED,
    Pair,
    PairCounts,
    PromptCounts,
    RowCounts,
    choose_prompts,
    data_path,
    load_pairs,
    make_pairs,
    make_rows,
    read_conversations,
    show_loss,
)
from train.setup import cpu_wanted, held_in, new_adapter

if TYPE_CHECKING:
    from train.step_memory import StepMemory

T = TypeVar("T")

# Shapes of models that recipes name, for an estimate where the hub is out of reach. Text part only.
KNOWN_SHAPES: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.5-2B": {
        "model_type": "qwen3_5_text", "num_hidden_layers": 24, "hidden_size": 2048, "intermediate_size": 6144,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16, "tie_word_embeddings": True,
    },
}  # fmt: skip
# Items of the hub's sets (arXiv 2604.02315; healthbench: arXiv 2505.08775), for a plan made offline.
KNOWN_ITEMS = {"gsm8k": 1319, "gpqa_diamond": 198, "ifbench": 300, "healthbench": 5000}
# What `Build.sample` and `Build.sample_replay` outline of the 2B recipes' data on MATH's training split, in Qwen3.5's one row
# per assistant turn and in prompts, by Qwen2.5's tokenizer (2026-11-23): the estimate where neither data nor source is within
# reach.
ASSUMED_SOURCE = "recipes/math_collab.yaml on MATH's training split, as if a large model had made them"
ASSUMED_ROWS = RowCounts(2427, 4657, 1_445_000, 0, 0, 1)
ASSUMED_PROMPTS = PromptCounts(2231, {}, 2231 * 69, 0, 0)
SAMPLE = 300  # problems that are looked at, of a data recipe that is not built yet
WORD = 1.4  # tokens, where the tokenizer is out of reach
UNLIMITED = 4096  # tokens of a row, for the estimate of memory alone, where the recipe says `max_length: null`
# A simulated user's or a judge's instruction, and a usual reply of theirs, in tokens.
INSTRUCTION, REPLY = 400, 60
LARGE = 1e9  # from so many parameters on nobody trains on a CPU


@dataclass(frozen=True)
class _Model:
    """What a plan knows of the model; without a chat its tokenizer is out of reach, without a size the model too.

    Attributes:
        given: the recipe's `train:` section as it was given.
        unchecked: reasons, to which every part of a plan adds its own.
    """

    given: dict[str, Any]
    size: Size | None
    chat: Chat | None
    unchecked: list[str]
    folder: ModelFolder | None = None

    @property
    def on_cpu(self) -> bool:
        """As asked for, or for want of a GPU; a plan for a large model made on a laptop is one for GPUs."""
        import torch

        small = self.size is not None and self.size.parameters < LARGE
        return cpu_wanted(self.given) or (small and not torch.cuda.is_available())


@dataclass(frozen=True)
class _Stage:
    """What SFT, DPO and GRPO each say of themselves.

    Attributes:
        lines: of data, steps and what they are made of.
        example: one row or prompt, as text.
        steps: optimizer steps of the run, by number of processes.
        step_s: seconds of one of them, by number of processes.
        length: of the longest sequence in tokens, of which GRPO trains the last `completion`.
    """

    lines: list[str]
    example: list[str]
    steps: Callable[[int], int]
    step_s: Callable[[int], float]
    length: int
    completion: int | None = None


def describe(recipe: TrainRecipe) -> str:
    """The plan as text. Raises BadInput for what is wrong; what is out of reach is listed at the end."""
    there = _caches()
    model = _model(recipe)
    lora = recipe.model.lora
    kind = "all weights" if lora is None else "its own LoRA" if lora.adapter == "continue" else f"LoRA r={lora.r}"
    if model.size is None:
        size = f"not there yet ({kind})"
    else:
        size = f"{model.size.parameters / 1e6:,.1f}M parameters, {model.size.trained / 1e6:,.1f}M trained ({kind})"
    if isinstance(recipe, GrpoRecipe):
        stage = _grpo(recipe, model)
    else:
        stage = _dpo(recipe, model) if isinstance(recipe, DpoRecipe) else _sft(recipe, model)
    lines = [f"model     {recipe.model.name}: {size}, {recipe.model.dtype}", *stage.lines]
    lines += [*_memory_lines(recipe, model, stage.length, stage.completion), *_disk_lines(recipe, model, stage.steps)]
    lines += _probe_lines(recipe, model, stage)
    lines += [f"could not check {line}" for line in model.unchecked]
    new = sorted(_caches() - there)
    made = f" but what a run needs as well, fetched or converted once: {', '.join(map(str, new))}" if new else ""
    return "\n".join([*lines, *stage.example, f"nothing was written{made}"])


def _caches() -> set[Path]:
    """What lies in the caches of converted models and of the hub's models and sets."""
    from huggingface_hub.constants import HF_HOME, HF_HUB_CACHE

    sets = (
        os.environ.get("HF_DATASETS_CACHE") or Path(HF_HOME) / "datasets"
    )  # importing datasets to ask it takes seconds
    roots = [cache_root(), Path(HF_HUB_CACHE), Path(sets)]
    return {path for root in roots if root.is_dir() for path in root.iterdir() if not path.name.startswith((".", "_"))}


def _read_only(name: str) -> ModelFolder:
    """The model's folder, as far as a plan reads it: of the hub's without the weights, of a multimodal one as it is.

    An adapter of the hub and the embedded model are made ready as for a run.
    """
    local = Path(name).expanduser()
    folder = tokenizer_folder(name) if not local.exists() else None
    if folder is not None and not (folder.path / ADAPTER_CONFIG).is_file():
        return folder
    if (local / CONFIG).is_file() and is_multimodal(local):
        weight_files(local)
        return ModelFolder(name, local.absolute())
    return resolve(name)


def _model(recipe: TrainRecipe) -> _Model:
    """Raises ModelError for a model that is neither here, nor known, nor a checkpoint that is still to be made."""
    given = recipe.train.model_dump(exclude_unset=True)  # type: ignore[attr-defined]
    name = recipe.model.name
    try:
        folder = _read_only(name)
        chat = Chat(load_tokenizer(folder), recipe.data.enable_thinking)
        return _Model(given, size_of(recipe.model, folder.path, folder.base), chat, [], folder)
    except ModelError as error:
        known = name in KNOWN_SHAPES
        if Path(name).exists() or not (known or LATER.search(name)):
            raise
        unchecked = [f"the model: {error}{f'; sizes are those known for {name}' if known else ''}"]
        return _Model(given, size_of(recipe.model, None) if known else None, None, unchecked)


@dataclass(frozen=True)
class _Data(Generic[T]):
    """What a plan counts.

    Attributes:
        rows: all of them, or those of a sample of what a data recipe would build.
        share: of all rows.
        built: whether these are the rows that are trained on.
        outlined: whether they only stand for conversations that models have yet to make.
    """

    rows: list[T]
    share: float = 1.0
    built: bool = True
    outlined: bool = False


def _data(
    recipe: TrainRecipe, model: _Model, read: Callable[[Path], Iterable[T]], take: Callable[[Any], Iterable[T]]
) -> _Data[T]:
    """The data, or what `take` makes of a sample of the conversations that a data recipe would build."""
    build = _unbuilt(recipe.data.recipe)
    if build is None:
        return _Data(list(read(data_path(recipe.data.path, recipe.data.recipe))))
    made, share = build.sample(SAMPLE)
    made += build.sample_replay(SAMPLE)
    outlined = build.recipe.dialogue is not None
    if outlined:
        model.unchecked.append(
            f"the conversations of {recipe.data.recipe}: models have yet to make them; counts are as if a large model did, "
            "of which a smaller one reaches fewer"
        )
    return _Data([one for conversation in made for one in take(conversation)], share, False, outlined)


def _unbuilt(recipe: str | None) -> Any:
    """The `Build` of a data recipe that is not built yet; None where the data lies ready."""
    if recipe is None:
        return None
    from data_builders.build import Build

    data = load_data_recipe(Path(recipe))
    return None if (Path(data.output.path) / "manifest.json").is_file() else Build(data)


def _tokens(texts: Iterable[str]) -> int:
    """About how many, where the tokenizer is out of reach."""
    return round(sum(len(text.split()) for text in texts) * WORD)


# --- SFT and DPO: rows.


def _sft(recipe: SftRecipe, model: _Model) -> _Stage:
    given, chat = model.given, model.chat
    counts, estimated, example = ASSUMED_ROWS, True, []
    try:
        data = _data(recipe, model, read_conversations, lambda made: [made.messages])
    except SetOutOfReach as error:
        model.unchecked.append(f"the data: {error}; rows and tokens are those of {ASSUMED_SOURCE}")
    else:
        if chat is None:
            tokens = _tokens(message["content"] for messages in data.rows for message in messages)
            counts = RowCounts(len(data.rows), len(data.rows), tokens, 0, 0, 0)
            model.unchecked.append(
                f"the loss mask: it needs the model's tokenizer; tokens are {WORD} per word, a row a conversation"
            )
        else:
            rows, counts = make_rows(data.rows, chat, recipe.data.loss_on, given.get("max_length", 1024))
            estimated = not data.built
            if not data.outlined:
                text = show_loss(rows[0], chat.tokenizer).splitlines()
                example = ["an example, with loss on what stands between ⟦ and ⟧:", *(f"  | {line}" for line in text)]
        if data.share < 1:  # all counts but the longest row, which is the sample's
            scaled = {name: round(value / data.share) for name, value in vars(counts).items()}
            counts = replace(RowCounts(**scaled), longest=counts.longest)
    with_loss = f", {counts.loss_tokens / counts.tokens:.0%} with loss" if counts.loss_tokens else ""
    longest = f", longest row {counts.longest}" if counts.longest else ""
    lines = [
        f"data      {recipe.data.path or recipe.data.recipe}: {counts.conversations:,} conversations, {counts.rows:,} rows, "
        f"{counts.tokens:,} tokens{with_loss}{longest}, {counts.too_long} rows too long and left out"
        f"{', estimated' if estimated else ''}"
    ]

    rows_of_steps = counts.rows
    if given.get("packing"):
        rows_of_steps = math.ceil(counts.tokens / _length(given))
        lines.append(
            f"packing   into at least {rows_of_steps:,} sequences of {_length(given):,} tokens, which are the rows of a step"
        )

    return _rows_stage(recipe, model, lines, example, rows_of_steps, counts.tokens)


def _dpo(recipe: DpoRecipe, model: _Model) -> _Stage:
    given, chat = model.given, model.chat
    pairs, share = _pairs(recipe)
    example: list[str] = []
    if chat is None:
        sides = ([*(message["content"] for message in pair.prompt), side]
                 for pair in pairs for side in (pair.chosen, pair.rejected))  # fmt: skip
        tokens = _tokens(text for side in sides for text in side)
        counts = PairCounts(len(pairs), dict(Counter(pair.kind for pair in pairs)), tokens, 0, 0)
        model.unchecked.append(f"the tokens of the pairs: they need the model's tokenizer; {WORD} are counted per word")
    else:
        rows, counts = make_pairs(pairs, chat, given.get("max_length", 1024))
        example = _shown_pair(pairs[0], rows[0], chat) if share is None else []
    if share is not None:
        counts = PairCounts(
            round(counts.pairs / share), {kind: round(n / share) for kind, n in counts.kinds.items()},
            round(counts.tokens / share), counts.longest, round(counts.too_long / share),
        )  # fmt: skip
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.kinds.items()))
    longest = f", longest {counts.longest}" if counts.longest else ""
    most = "" if share is None else ", at most: a pair needs a reply of the other kind"
    loss = " + ".join(given.get("loss_type") or ["sigmoid"])
    reference = "a frozen copy" if recipe.model.lora is None else "the adapter switched off"
    lines = [
        f"data      {recipe.data.path or recipe.data.recipe}: {counts.pairs:,} pairs ({kinds}), {counts.tokens:,} tokens of "
        f"both sides{longest}, {counts.too_long} too long and left out{most}",
        f"loss      {loss}, beta {given.get('beta', 0.1):g}; the reference is {reference}",
    ]
    # The reference reads both sides, too.
    return _rows_stage(
        recipe, model, lines, example, counts.pairs, counts.tokens,
        lambda at_once, tokens: speed.forward_s(_shape(model), _chip(), tokens),
    )  # fmt: skip


def _rows_stage(
    recipe: SftRecipe | DpoRecipe, model: _Model, lines: list[str], example: list[str], rows: int, tokens: int,
    beside_s: Callable[[int, float], float] = lambda at_once, tokens: 0.0,
) -> _Stage:  # fmt: skip
    """Steps over `rows` rows of `tokens` in all; `beside_s` are seconds beside a pass of (rows, tokens)."""

    def sizes(ranks: int) -> tuple[int, int, int]:
        """Rows that a process takes at once, parts of a step, steps of an epoch."""
        here = fitted(recipe, ranks)
        at_once, parts = here.get("per_device_train_batch_size", 8), here.get("gradient_accumulation_steps") or 1
        return at_once, parts, math.ceil(math.ceil(rows / (at_once * ranks)) / parts)

    def steps(ranks: int) -> int:
        return _max_steps(model.given, sizes(ranks)[2])

    def step_s(ranks: int) -> float:
        at_once, parts, _ = sizes(ranks)
        passed = at_once * tokens / max(1, rows)
        return parts * (_pass_s(recipe, model, passed) + beside_s(at_once, passed))

    def line(ranks: int) -> str:
        (at_once, parts, epoch), total = sizes(ranks), steps(ranks)
        return (
            f"{total:,} at {at_once * parts * ranks} rows ({at_once} a process x {ranks} x {parts} accumulated), "
            f"{epoch:,} an epoch, {round(tokens * total / epoch):,} tokens in all"
        )

    return _Stage([*lines, *_on_each("steps", model, line)], example, steps, step_s, _length(model.given))


def _length(given: Mapping[str, Any]) -> int:
    return given.get("max_length", 1024) or UNLIMITED


def _pairs(recipe: DpoRecipe) -> tuple[list[Pair], float | None]:
    """The pairs; of a data recipe that is not built yet those that its openings could give, and of which share of all."""
    build = _unbuilt(recipe.data.recipe)
    if build is None:
        return list(load_pairs(data_path(recipe.data.path, recipe.data.recipe), recipe.data.view)), None
    if recipe.data.view == "preference" and build.recipe.preferences is None:
        raise DataError(f"{recipe.data.recipe}: makes no pairs, wanted a `preferences:` section in it")
    made, share = build.sample(SAMPLE)
    found = []
    for one in made:
        if one.task is not None:  # the other side is taken to be as long
            kind, reply = "ask" if one.kind == "underspecified" else "answer", one.messages[1]["content"]
            found.append(Pair("", kind, one.messages[:1], reply, reply))
    return found, share


def _shown_pair(pair: Pair, row: dict[str, list[int]], chat: Chat) -> list[str]:
    lines = [f"an example ({pair.kind}), both sides with what is compared between ⟦ and ⟧:"]
    for side in ("chosen", "rejected"):
        reply = row[f"{side}_ids"]
        ids = row["prompt_ids"] + reply
        shown = show_loss({"input_ids": ids, "labels": [IGNORED] * len(row["prompt_ids"]) + reply}, chat.tokenizer)
        lines += [f"  {side}:", *(f"  | {line}" for line in shown.splitlines())]
    return lines


# What people launch on: one GPU, a node of eight, two of them.
LAUNCHES = (1, 8, 16)


def _launches(model: _Model) -> list[int]:
    """Processes for which a plan speaks: this launch's, and the usual ones where it is for GPUs."""
    return [processes()] if model.on_cpu else sorted({processes(), *LAUNCHES})


def _on_each(name: str, model: _Model, line: Callable[[int], str]) -> list[str]:
    """A line for each launch, the first with its name; where a batch does not fit a launch, why."""
    lines: list[str] = []
    for ranks in _launches(model):
        try:
            found = line(ranks)
        except RecipeError as error:
            found = f"not as the recipe is: {error}"
        gpus = {1: "1 GPU", 16: "2 x 8 GPUs"}.get(ranks, f"{ranks} GPUs")
        lines.append(f"{'' if lines else name:<9} {'' if model.on_cpu else f'on {gpus}: '}{found}")
    return lines


def _max_steps(given: dict[str, Any], per_epoch: float) -> int:
    steps: int = given.get("max_steps", -1)
    return steps if steps > 0 else math.ceil(per_epoch * given.get("num_train_epochs", 3.0))


# --- GRPO: prompts and what is generated from them. A generation is one optimizer step unless the recipe says otherwise.


def _grpo(recipe: GrpoRecipe, model: _Model) -> _Stage:
    given, rollout, reward = model.given, recipe.rollout, recipe.reward
    batch = batch_of(fitted(recipe))
    counts, example = _prompts(recipe, model, batch.prompts)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.kinds.items()))
    longest = f", longest {counts.longest}" if counts.longest else ""
    estimated = ", estimated" if example is None or _unbuilt(recipe.data.recipe) is not None else ""
    iterations = given.get("num_iterations", 1)
    prompt = counts.tokens / max(1, counts.prompts)
    epoch = batch.steps(counts.prompts, iterations)
    each = batch.steps_per_generation * iterations / batch.accumulation

    def group(ranks: int) -> str:
        here = batch_of(fitted(recipe, ranks), ranks)
        return (
            f"{here.num_generations} samples of each of {here.prompts} prompts: {here.samples} at a time "
            f"({here.per_device} a process x {here.processes} x {here.steps_per_generation})"
        )

    lines = [
        f"prompts   {recipe.data.path or recipe.data.recipe}: {counts.prompts:,}{f' ({kinds})' if kinds else ''}, "
        f"{prompt:,.0f} tokens on average{longest}, {counts.too_long} too long and left "
        f"out{f', {counts.held_out} held out' if counts.held_out else ''}{estimated}",
        f"steps     {_max_steps(given, epoch):,}, {epoch:,.0f} an epoch"
        f"{'' if each == 1 else f', a generation every {each:g} steps'}",
        *_on_each("group", model, group),
    ]

    # Policy tokens that carry loss and that only look ahead, user turns and verdicts, at most.
    turn = rollout.max_turn_tokens
    completion = given.get("max_completion_length", MAX_COMPLETION)
    if rollout.mode == "reply":
        conversations = batch.samples * (rollout.samples if rollout.window else 1)
        users, verdicts = conversations * rollout.window, conversations
        trained, ahead = batch.samples * turn, users * turn
        completion = turn
        exchanges = f"{rollout.window} exchange{'s' if rollout.window > 1 else ''}"
        often = f", {rollout.samples} times" if rollout.samples > 1 else ""
        then = f"then {exchanges} looked ahead{often}" if rollout.window else "no look-ahead"
        mode = f"reply: one turn of at most {turn} tokens is trained, {then}"
    else:
        users, verdicts = batch.samples * (rollout.max_turns - 1), batch.samples
        trained, ahead = batch.samples * min(completion, rollout.max_turns * turn), 0
        mode = f"conversation: at most {rollout.max_turns} turns of {turn} tokens, all trained"
    chat_tokens = 2 * counts.tokens // max(1, counts.prompts) + turn
    calls = f"scripted: {users:,} user turns at most a generation, no model"
    if rollout.simulator.engine != "scripted":
        calls = _calls(rollout.simulator, users, chat_tokens)
    parts = ", ".join(f"{name} {weight:g}" for name, weight in reward.weight_of.items() if weight)
    needed = ", ".join(sorted(reward.required_parts)) or "none"
    lines += [
        f"rollout   {mode}",
        f"generate  {trained + ahead:,} tokens at most a generation ({trained:,} trained, {ahead:,} ahead; "
        f"{(trained + ahead) // batch.samples:,} a sample), {'vLLM' if given.get('use_vllm') else 'transformers'}",
        f"simulator {calls}",
        f"reward    mean of {parts}; without {needed} a sample is left out",
    ]
    if reward.judge is not None:
        lines.append(f"judge     {_calls(reward.judge, verdicts, chat_tokens)}")

    def steps(ranks: int) -> int:
        return _max_steps(given, batch_of(fitted(recipe, ranks), ranks).steps(counts.prompts, iterations))

    def step_s(ranks: int) -> float:
        split = batch_of(fitted(recipe, ranks), ranks)
        generation = _generation_s(recipe, model, split.per_device * split.steps_per_generation, prompt)
        tokens = split.per_device * (prompt + speed.MEAN * completion)
        # Forward passes beside training's own: of the KL reference, and of the policy as vLLM sampled from it.
        beside = bool(given.get("beta")) + bool(given.get("use_vllm"))
        forward = speed.forward_s(_shape(model), _chip(), tokens)
        seconds = generation + split.steps_per_generation * (
            _pass_s(recipe, model, tokens) * iterations + beside * forward
        )
        return seconds * split.accumulation / (split.steps_per_generation * iterations)

    shown: list[str] = []
    if example is not None:
        text = model.chat.prompt_text(example.prompt) if model.chat else "\n".join(m["content"] for m in example.prompt)
        withheld = f"; withheld: {'; '.join(example.hidden)}" if example.hidden else ""
        shown = [f"an example ({example.kind}; the answer is {example.answer}{withheld}):"]
        shown += [f"  | {line}" for line in text.splitlines()]
    return _Stage(lines, shown, steps, step_s, recipe.data.max_prompt_tokens + completion, completion)


def _prompts(recipe: GrpoRecipe, model: _Model, least: int) -> tuple[PromptCounts, RlRow | None]:
    """Counts and the first prompt; of a sample where the data is not built yet, assumed where it cannot be.

    Args:
        least: prompts of one generation batch.
    """
    try:
        data = _data(recipe, model, load_rl_rows, rl_rows)
    except SetOutOfReach as error:
        model.unchecked.append(f"the prompts: {error}; their number is that of {ASSUMED_SOURCE}")
        return ASSUMED_PROMPTS, None
    if model.chat is None:
        tokens = _tokens(message["content"] for row in data.rows for message in row.prompt)
        first = None if data.outlined else data.rows[0]
        model.unchecked.append(f"the length of prompts: it needs the model's tokenizer; tokens are {WORD} per word")
        return PromptCounts(round(len(data.rows) / data.share), {}, round(tokens / data.share), 0, 0), first
    where = str(recipe.data.path or recipe.data.recipe)
    least, seed, share = least if data.built else 1, model.given.get("seed", 42), data.share
    held_out = recipe.data.held_out if data.built else round(recipe.data.held_out * share)
    chosen = choose_prompts(data.rows, replace(recipe.data, held_out=held_out), model.chat, seed, least, where)
    counts = chosen.counts
    prompts, tokens = round(counts.prompts / share), round(counts.tokens / share)
    most = min(prompts, recipe.data.max_prompts or prompts)
    counts = PromptCounts(
        prompts=most,
        kinds={kind: round(count / share) for kind, count in counts.kinds.items()},
        tokens=tokens if most == prompts else round(tokens * most / prompts),
        longest=counts.longest,
        too_long=round(counts.too_long / share),
        held_out=counts.held_out if data.built else recipe.data.held_out,
    )
    return counts, None if data.outlined else next(iter(chosen.trained.values()))


def _calls(role: RoleSection, calls: int, chat: int) -> str:
    """Calls to a model with conversations of `chat` tokens, and what they cost."""
    read, written = calls * (INSTRUCTION + chat), calls * REPLY
    cost = role.price.of(read, written)
    money = f", {cost:.4g} a generation" if cost else ", no price given"
    who = role.server.model if role.server is not None else role.model
    return f"{role.engine} {who}: {calls:,} calls at most a generation, about {read:,} tokens in and {written:,} out{money}"


# --- The probe, and the time of inline probes beside that of training, by train/speed.py's assumptions.

MUCH = 0.1  # share of training's time from which on a plan says how to probe less


def _probe_lines(recipe: TrainRecipe, model: _Model, stage: _Stage) -> list[str]:
    if recipe.probe is None or recipe.probe.when == "never":
        return ["probe     none during training"]
    probe, lines, whole = recipe.probe, [], Work(0, 0, 0)
    if probe.when == "watch":
        lines.append(watch_line(Path(recipe.train.output_dir)))  # type: ignore[attr-defined]
    # Files are no error yet in folders that commands before this one fill: the data's, and that of the run which makes the
    # model to start from, with what lies beside it.
    later = []
    if recipe.data.recipe is not None:
        later.append(Path(load_data_recipe(Path(recipe.data.recipe)).output.path))
    if LATER.search(recipe.model.name) and not Path(recipe.model.name).exists():
        run = Path(recipe.model.name)
        later.append(run.parents[1] if run.name.startswith("checkpoint-") else run.parent)
    for name, loaded in sets_within_reach(probe, model.unchecked, later).items():
        section = probe.sets[name]
        items = KNOWN_ITEMS.get(name) if section.n is None else min(section.n, KNOWN_ITEMS.get(name, section.n))
        if loaded is not None:
            needed = work_of(loaded, probe)
        elif items is not None and not section.path:
            followed = not section.measures or "followup" in section.measures
            needed = work(items, items if followed else 0, probe)
        else:
            lines.append(f"probe     {name}: {section.n or 'all'} items")
            continue
        whole = Work(*(before + more for before, more in zip(astuple(whole), astuple(needed), strict=True)))
        lines.append(
            f"probe     {name}: {needed.answers:,} answers, {needed.user_turns:,} user turns, "
            f"{needed.tokens:,} tokens at most per checkpoint"
        )
    if len(probe.sets) > 1 and whole.tokens:
        lines.append(
            f"probe     in all {whole.tokens:,} tokens at most per checkpoint, shared by the processes of an inline probe"
        )
    if probe.when == "inline" and whole.tokens and model.size is not None and not model.on_cpu:
        lines += _probe_share(probe, model, whole, stage)
    return lines


def _probe_share(probe: ProbeSection, model: _Model, whole: Work, stage: _Stage) -> list[str]:
    per_item = max(1, work(0, 1, probe).user_turns)

    def share(ranks: int) -> str:
        steps = stage.steps(ranks)
        each = speed.probe_s(
            _shape(model), _chip(), whole.answers, whole.user_turns // per_item, whole.user_turns,
            probe.max_answer_tokens, probe.max_user_tokens, probe.grounding, probe.engine == "vllm", ranks,
        )  # fmt: skip
        probes, seconds = 1 + _saves(model.given, steps), steps * stage.step_s(ranks)
        trained = f"{seconds / 60:,.0f} minutes" if seconds < 2 * 3600 else f"{seconds / 3600:,.1f} hours"
        trained = f"{seconds:,.0f} seconds" if seconds < 120 else trained
        part, advice = probes * each / seconds, ""
        if part > MUCH:
            advice = "; save and so probe less often (train.save_steps), or elsewhere (probe.when: watch)"
        return f"{probes} times {each:,.0f} s beside {trained} of training, {part:.0%}{advice}"

    return [
        *_on_each("probe", model, share),
        f"          as on an {_chip().name}, within a factor of two: train/speed.py says what that rests on",
    ]


def _shape(model: _Model) -> speed.Shape:
    assert model.size is not None, "asked only where the model is known"
    size = model.size
    return speed.Shape(size.layers, size.parameters, size.cached * 2, size.state)


def _chip() -> speed.Chip:
    """This machine's GPU, or the one that is assumed."""
    import torch

    return speed.chip(torch.cuda.get_device_name() if torch.cuda.is_available() else None)


def _pass_s(recipe: TrainRecipe, model: _Model, tokens: float) -> float:
    """A forward and a backward pass over so many tokens."""
    checkpointing = bool(model.given.get("gradient_checkpointing", True))
    return speed.training_s(_shape(model), _chip(), tokens, recipe.model.lora is not None, checkpointing)


def _generation_s(recipe: GrpoRecipe, model: _Model, rows: int, prompt: float) -> float:
    """The policy's part of one rollout of `rows` samples on a process; what a simulator or a judge takes is not known."""
    rollout, vllm = recipe.rollout, bool(model.given.get("use_vllm"))
    turn = rollout.max_turn_tokens
    turns = [(rows, rollout.max_turns)]
    if rollout.mode == "reply":
        turns = [(rows, 1), (rows * rollout.samples, rollout.window)]
    seconds, before = 0.0, prompt
    for texts, exchanges in turns:
        for _ in range(exchanges):
            fitting = None if vllm else max(1, int(rollout.batch_tokens / (before + turn)))
            seconds += speed.generation_s(_shape(model), _chip(), texts, before, turn, vllm, fitting)
            before += speed.MEAN * turn + REPLY
    return seconds


# --- Memory per process, estimated by part before anything is loaded.
#
# Activations come from a step on tensors without storage (train/step_memory.py). The rest is bookkeeping: AdamW's two
# moments are of the weights' type; under ZeRO a trained weight costs 2 + 2 + 16 bytes (DeepSpeed's own count, in
# `estimate_zero2_model_states_mem_needs` and its ZeRO-3 twin: half-precision weights and gradients; float32 weights, two
# moments and, at the optimizer's step, gradients), shared among processes from the right on: optimizer under ZeRO-1,
# gradients under ZeRO-2, weights under ZeRO-3 (arXiv 1910.02054, section 3.1).


@dataclass(frozen=True)
class Size:
    """Parameters of the policy and of its trained part.

    Attributes:
        cached: numbers that a token leaves in the cache while text is generated: keys and values of the layers with
            attention.
        tied: numbers of the head that are the embedding's.
        make: builds the policy in a type, adapter included; inside `torch.device("meta")` it takes no memory.
        state: bytes that a text leaves there however long it is: the states of layers with linear attention.
    """

    parameters: int
    trained: int
    vocabulary: int
    cached: int
    tied: int
    make: Callable[[str], Any]
    state: int = 0
    layers: int = 1


def size_of(section: ModelSection, folder: Path | None, base: Path | None = None) -> Size:
    """Counted on a model without storage, built from the configuration alone; the known shape where no folder is.

    Args:
        base: the base model's, where `folder` holds a LoRA adapter.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if folder is None:
        shape = dict(KNOWN_SHAPES[section.name])
        config: Any = AutoConfig.for_model(shape.pop("model_type"), **shape)
    else:
        config = AutoConfig.from_pretrained(base or folder, trust_remote_code=False).get_text_config()
    adapters: list[Any] = []

    def make(dtype: str) -> Any:
        model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), trust_remote_code=False)
        if not adapters:  # once, since it says which targets the model lacks
            adapters.append(_adapter(section, folder, model))
        if adapters[0] is None:
            return model
        from peft import get_peft_model

        return get_peft_model(model, adapters[0])

    with torch.device("meta"):
        model = make(section.dtype)
    counts = {on: sum(p.numel() for p in model.parameters() if p.requires_grad is on) for on in (True, False)}
    token, state = cache_bytes(config, 2) or (0, 0)
    tied = config.vocab_size * config.hidden_size if getattr(config, "tie_word_embeddings", False) else 0
    parameters, layers = counts[False] or counts[True], config.num_hidden_layers
    return Size(parameters, counts[True], config.vocab_size, token // 2, tied, make, state, layers)


def _adapter(section: ModelSection, folder: Path | None, model: Any) -> Any:
    if section.lora is None or section.lora.adapter == "new" or folder is None:
        return new_adapter(section, model)
    from peft import PeftConfig

    adapter = PeftConfig.from_pretrained(str(folder))
    adapter.inference_mode = False
    return adapter


def memory_parts(size: Size, step: StepMemory, given: dict[str, Any], stage: int, ranks: int) -> dict[str, float]:
    """Bytes per process by part, for `ranks` processes under ZeRO `stage` (0: without DeepSpeed).

    The parts add up to the most that is needed at once. Without DeepSpeed and without accumulation, gradients come as
    activations go, so that `activations` is only what they take beyond the gradients.
    """
    if stage:
        width = 2 if given.get("fp16") or given.get("bf16", True) else 4
        adapter = size.trained if step.frozen else 0
        return {
            "weights": (size.parameters + adapter) * width / (ranks if stage == 3 else 1),
            "gradients": size.trained * width / (ranks if stage >= 2 else 1),
            "optimizer": size.trained * 16 / ranks,
            "activations": step.activations,
        }
    accumulated = (given.get("gradient_accumulation_steps") or 1) > 1
    return {
        "weights": step.frozen + step.trained,
        # DDP reduces gradients in buckets that hold them a second time.
        "gradients": step.trained * (2 if ranks > 1 else 1),
        "optimizer": 2 * step.trained,
        "activations": step.activations if accumulated else max(0, step.together - step.trained),
    }


def generation_bytes(size: Size, dtype: str, tokens: int, rows: int) -> float:
    """What transformers needs to generate `rows` texts of `tokens` in all: the cache, and one choice of the next tokens."""
    return size.cached * tokens * _width(dtype) + rows * (size.state + size.vocabulary * CHOICE_BYTES)


def _width(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else 4


def zero_stage(given: dict[str, Any]) -> int:
    """The stage in the recipe's DeepSpeed file, 0 without one. Raises DataError where it cannot be read."""
    config = given.get("deepspeed")
    if isinstance(config, str):
        try:
            config = json.loads(Path(config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"train.deepspeed: {config}: cannot be read ({error})") from None
    return int((config or {}).get("zero_optimization", {}).get("stage", 0))


def _memory_lines(recipe: TrainRecipe, model: _Model, length: int, completion: int | None = None) -> list[str]:
    """For this launch and the usual ones; for the CPU alone where the launch would train on it.

    Args:
        length: the longest sequence in tokens; a process's forward pass holds as many as a process takes at once.
        completion: tokens at their end that GRPO trains; None for SFT.
    """
    if model.size is None:
        return []
    from train.step_memory import Step, step_memory

    size, stage, on_cpu, dpo = model.size, zero_stage(model.given), model.on_cpu, isinstance(recipe, DpoRecipe)
    steps: dict[tuple[int, str], StepMemory] = {}  # by rows and the type that weights are held in
    lines: list[str] = []
    for ranks in _launches(model):
        try:
            given = fitted(recipe, ranks)
        except RecipeError:
            continue  # said where the steps are
        rows = given.get("per_device_train_batch_size", 8) * (2 if dpo else 1)  # both sides
        used = stage if ranks > 1 else 0
        dtype = held_in(recipe.model, used)
        if (rows, dtype) not in steps:
            step = Step(rows, length, completion, on_cpu, given, fused=dpo)
            steps[rows, dtype] = step_memory(partial(size.make, dtype), step)
        parts = memory_parts(size, steps[rows, dtype], given, used, ranks)
        if recipe.model.lora is None and _reads_base(recipe, given):
            # A frozen copy, where no adapter can be switched off, held as the policy is.
            parts["reference"] = size.parameters * _width(dtype) / (ranks if used == 3 else 1)
        if isinstance(recipe, GrpoRecipe) and not given.get("use_vllm"):
            split = batch_of(given, ranks)
            texts = split.per_device * split.steps_per_generation
            parts["generation"] = generation_bytes(size, recipe.model.dtype, recipe.rollout.batch_tokens, texts)
        # An inline probe comes between two steps, in the place of activations.
        if recipe.probe is not None and recipe.probe.when == "inline":
            scores = LOGITS_BYTES if recipe.probe.grounding and not on_cpu else 0
            if scores > parts["activations"]:
                parts["probe"] = scores - parts["activations"]
        listed = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts.items())
        if dtype != recipe.model.dtype:
            listed = listed.replace(",", f" in {dtype},", 1)
        zero = f" under ZeRO-{stage}" if used else ""
        where = f"a process on the CPU with {ranks}" if on_cpu else f"a GPU with {ranks}"
        at = "" if on_cpu else f", at {rows} x {length:,} tokens"
        lines.append(f"memory    {sum(parts.values()) / GIB:.1f} GiB {where}{zero} ({listed}{at}), estimated")
    if any(dtype != recipe.model.dtype for _, dtype in steps):
        lines.append(
            "          without DeepSpeed all weights are held in float32, or bfloat16 would lose small updates"
        )
    if not on_cpu:
        lines.append("          beside CUDA's own 0.5 to 1 GiB and what fragments")
    if model.given.get("use_vllm"):
        share = (
            f"takes {model.given.get('vllm_gpu_memory_utilization', 0.3):.0%} of each GPU's memory beside these parts"
        )
        on_server = model.given.get("vllm_mode", "colocate") == "server"
        lines.append(f"vllm      {'on a server of its own' if on_server else share}")
    return lines


def _reads_base(recipe: TrainRecipe, given: Mapping[str, Any]) -> bool:
    """Whether the loss compares with what the model was before training."""
    return isinstance(recipe, DpoRecipe) or (isinstance(recipe, GrpoRecipe) and bool(given.get("beta")))


# --- Room on the disk for checkpoints, as a real run asks for it before its first step (train/checkpoints.py).


def _saves(given: Mapping[str, Any], steps: int) -> int:
    """Checkpoints of a run of so many steps."""
    strategy, every = given.get("save_strategy", "steps"), given.get("save_steps", 500)
    return saves(strategy, every, steps, given.get("num_train_epochs", 3.0))


def _disk_lines(recipe: TrainRecipe, model: _Model, steps: Callable[[int], int]) -> list[str]:
    """For this launch and the usual ones, and what is free here. `steps`: of the whole run, by processes."""
    given, size = model.given, model.size
    if size is None:
        return []
    half, stage = given.get("fp16") or given.get("bf16", True), zero_stage(given)

    def needed(ranks: int) -> tuple[dict[str, float], int]:
        """Bytes of a checkpoint by part, and how many there are at once."""
        zero = stage if ranks > 1 else 0
        # Without ZeRO all that is trained is float32.
        width = (2 if half else _width(recipe.model.dtype)) if zero else 4
        whole, adapter = not given.get("save_only_model", False), recipe.model.lora is not None
        parts = checkpoint_bytes(size.parameters, size.trained, size.tied, adapter, width, zero, whole)
        return parts, held_at_once(given.get("save_total_limit"), 0, _saves(given, steps(ranks)))

    def line(ranks: int) -> str:
        parts, at_once = needed(ranks)
        listed, one = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts.items()), sum(parts.values()) / GIB
        return f"{one:.2f} GiB a checkpoint ({listed}), {at_once} at once: {at_once * one:.1f} GiB, estimated"

    run_dir = Path(given["output_dir"])
    free, (parts, at_once) = free_bytes(run_dir), needed(processes())
    verdict = "" if at_once * sum(parts.values()) <= free else ", too little for this launch"
    return [*_on_each("disk", model, line), f"          {free / GIB:,.1f} GiB are free for {run_dir}{verdict}"]
