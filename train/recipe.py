"""The recipes of train/sft.py, train/dpo.py and train/grpo.py: model, data, train (trl's own names), probe, tracking; for GRPO also
rollout and reward."""

from __future__ import annotations

import ast
import importlib.util
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, create_model

from nextturn.data_builders.recipe import RoleSection, check_role
from nextturn.probe.chat import LossOn
from nextturn.probe.checkpoints import newest_complete
from nextturn.probe.errors import NextturnError, RecipeError
from nextturn.probe.files import read_json
from nextturn.probe.recipe import STRICT, Count, load_recipe, section
from nextturn.probe.settings import ProbeSection, TrackingSection, VllmSection
from nextturn.probe.terminal import processes, say
from nextturn.probe.weights import ADAPTER_CONFIG, CONFIG

R = TypeVar("R")

# --- The `train:` section: trl's own field names, checked without importing trl or torch.
#
# The names and types are read from the source files of the installed trl and transformers, so that a recipe is
# checked against what is installed and answers at once; importing them takes many seconds.

_BASES = (
    ("transformers", "training_args.py", "TrainingArguments"),
    ("trl", "trainer/base_config.py", "_BaseConfig"),
)
# What annotations in those files are made of; transformers' own enums are given as text in a recipe.
_NAMES: dict[str, Any] = {
    **{
        "str": str,
        "int": int,
        "float": float,
        "bool": bool,
        "dict": dict,
        "list": list,
        "Any": Any,
        "Literal": Literal,
    },
    **dict.fromkeys(("IntervalStrategy", "SaveStrategy", "SchedulerType", "OptimizerNames", "HubStrategy"), str),
}

# transformers reads a number below 1 as a share of all steps, and 1.0, which may be meant as all of them, as every step.
_STEPS = Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)]


def trl_section(module: str, config: str) -> type[BaseModel]:
    """A section class with the fields of a trl config, such as `trl_section("sft_config", "SFTConfig")`.

    Only the fields that a recipe sets are kept (`model_dump(exclude_unset=True)`); all defaults stay trl's.
    """
    fields: dict[str, Any] = {}
    for package, file, name in (*_BASES, ("trl", f"trainer/{module}.py", config)):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise NextturnError(f"{package} is not installed; `pip install nextturn` brings it")
        fields |= _annotations(Path(spec.origin).parent / file, name)
    fields |= dict.fromkeys(("save_steps", "eval_steps", "logging_steps"), _STEPS)
    return create_model(config, __config__=STRICT, **{name: (kind, None) for name, kind in fields.items()})  # type: ignore[call-overload]


def _annotations(path: Path, name: str) -> dict[str, Any]:
    """{field: type} of the dataclass `name` in a source file; types that _NAMES cannot spell become Any."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if found is None:
        raise NextturnError(f"{path} has no class {name}; nextturn needs trl 1.16 and transformers 5.16 or newer")
    fields: dict[str, Any] = {}
    for node in found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            try:  # the installed libraries' own source, and no other
                fields[node.target.id] = eval(ast.unparse(node.annotation), {"__builtins__": {}}, _NAMES)
            except (NameError, TypeError):
                fields[node.target.id] = Any
    return fields


# --- The recipe of train/sft.py, and what both have in common.

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


LATER = re.compile(r"^runs[/\\]|[/\\]checkpoint-\d+/?$")
"""Matches the name of a model that another run may still have to make: its run directory, or a checkpoint in one."""


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
    fallback: str | None = None
    """The model to start from if `name` is a run directory that has no complete checkpoint yet. `name` in the run's
    recipe.json is the model that was used, also after a resume."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the weights, as they are measured and served. All of them trained without DeepSpeed, they are held in float32."""
    lora: LoraSection | None = None
    """Left out: all weights are trained."""

    @property
    def continues_adapter(self) -> bool:
        return self.lora is not None and self.lora.adapter == "continue"


@section
class DataSection:
    path: str | None = None
    """A builder's output folder, or a JSONL file with `messages` in every row."""
    recipe: str | None = None
    """A data recipe to build where it is not built yet; give this or `path`."""
    rows_per_step: int | None = None
    """Rows of one optimizer step over all processes, on however many GPUs: how often each process accumulates follows, and
    `train.per_device_train_batch_size` is the most that it takes at once. Left out, a step grows with the launch."""
    loss_on: LossOn = "assistant"
    """`talk`: turns that box a result carry none where there are others; `all`: an ablation."""
    enable_thinking: bool | None = None


@section
class SftRecipe:
    model: ModelSection
    data: DataSection
    train: SftArguments  # type: ignore[valid-type]
    probe: ProbeSection | None = None
    tracking: TrackingSection = field(default_factory=lambda: TrackingSection(to="none"))


def load_sft_recipe(path: Path, overrides: Sequence[str] = ()) -> SftRecipe:
    """Raises RecipeError, in one line, for anything that the run would trip over later."""

    def check(recipe: SftRecipe, given: dict[str, Any]) -> None:
        fitted(recipe)
        # Qwen3.5's linear attention leaks across documents unless both kernel packages are there.
        missing = [name for name in ("fla", "causal_conv1d") if importlib.util.find_spec(name) is None]
        if missing and (given.get("packing") or given.get("padding_free")):
            raise RecipeError(
                f"train.packing and train.padding_free need {' and '.join(missing)} to keep documents apart "
                "in linear attention; install nextturn[gpu] and causal-conv1d, or leave them out"
            )
        bfd = given.get("packing_strategy", "bfd") == "bfd"
        if given.get("packing") and not (bfd and given.get("max_length", 1024)):
            raise RecipeError("train.packing: wanted packing_strategy bfd, which cuts no row, and a max_length")

    return _load(SftRecipe, path, overrides, _SFT_OURS, check)


def _load(
    kind: type[R],
    path: Path,
    overrides: Sequence[str],
    ours: dict[str, str],
    check: Callable[[R, dict[str, Any]], None],
) -> R:
    """A recipe of a stage, checked for what all of them are, and by `check`, which gets the `train:` section as given.

    Args:
        ours: {key of `train:` that is not for a recipe: why}, beside OURS.

    Raises:
        RecipeError: in one line, which begins with the file.
    """
    recipe: Any = load_recipe(kind, path, overrides)
    try:
        given: dict[str, Any] = recipe.train.model_dump(exclude_unset=True)
        for key, reason in {**OURS, **ours}.items():
            if key in given:
                raise RecipeError(f"train.{key}: not for a recipe ({reason})")
        if "output_dir" not in given:
            raise RecipeError(f"train.output_dir: missing, wanted the run folder such as runs/{path.stem}")
        if (recipe.data.path is None) == (recipe.data.recipe is None):
            raise RecipeError("data: give either `path` or `recipe`")
        if recipe.model.continues_adapter and recipe.model.lora != LoraSection(adapter="continue"):
            raise RecipeError("model.lora: `adapter: continue` keeps the checkpoint's own settings; give it alone")
        if recipe.probe and recipe.probe.when == "inline":
            _check_inline(recipe.probe, given)
        check(recipe, given)
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None
    return replace(recipe, model=start_from(recipe.model, Path(given["output_dir"]), path.parent))


def start_from(model: ModelSection, run_dir: Path, recipes: Path) -> ModelSection:
    """Return the section with the model that training starts from as `name`: `fallback` if there is no checkpoint yet.

    A run that has begun keeps the model that its recipe.json names.

    Args:
        recipes: where the recipe lies, and the one whose run `model.name` is.
    """
    if model.fallback is None or not LATER.search(model.name):
        return model
    if (run_dir / "recipe.json").is_file():
        begun_with = read_json(run_dir / "recipe.json")["model"]["name"]
        return replace(model, name=model.fallback) if begun_with == model.fallback else model
    folder = Path(model.name)
    if any((folder / name).is_file() for name in (CONFIG, ADAPTER_CONFIG)) or newest_complete(folder)[0]:
        return model
    sft = recipes / f"{folder.name}.yaml"
    first = f"; to start from SFT, run this first: accelerate launch train/sft.py {sft}" if sft.is_file() else ""
    say(f"model.name: {model.name} has no complete checkpoint, so training starts from {model.fallback}{first}")
    return replace(model, name=model.fallback)


def _check_inline(probe: ProbeSection, given: Mapping[str, Any]) -> None:
    """The live weights are measured in the training processes: by transformers, or by the vLLM that GRPO has there."""
    colocated = (
        given.get("use_vllm")
        and given.get("vllm_mode", "colocate") == "colocate"
        and given.get("vllm_tensor_parallel_size", 1) == 1
    )
    if probe.engine == "openai" or (probe.engine == "vllm" and not colocated):
        raise RecipeError(
            f"probe.engine: {probe.engine}, wanted hf: with `when: inline` the live weights are measured in the "
            "training processes, where vllm is only with GRPO's use_vllm, vllm_mode colocate and vllm_tensor_parallel_size "
            "1; give `when: watch` to measure checkpoints with another engine"
        )
    if probe.engine == "vllm" and (probe.dtype != "auto" or probe.vllm != VllmSection()):
        key, why = ("dtype", "the live weights as they are") if probe.dtype != "auto" else ("vllm", "train.vllm_*")
        raise RecipeError(f"probe.{key}: not with `engine: vllm` and `when: inline`, where trl's vLLM has {why}")


# --- The recipe of train/dpo.py.

DpoArguments = trl_section("dpo_config", "DPOConfig")

_DPO_OURS = {
    "padding_free": "trl pads pairs",
    "truncation_mode": "a pair that is too long is left out whole",
}


@section
class PairSection:
    path: str | None = None
    """A builder's output folder, or a JSONL file with `prompt`, `chosen` and `rejected` messages in every row."""
    recipe: str | None = None
    """A data recipe to build where it is not built yet; give this or `path`."""
    rows_per_step: int | None = None
    """Pairs of one optimizer step over all processes, as of SFT."""
    enable_thinking: bool | None = None


@section
class DpoRecipe:
    model: ModelSection
    data: PairSection
    train: DpoArguments  # type: ignore[valid-type]
    probe: ProbeSection | None = None
    tracking: TrackingSection = field(default_factory=lambda: TrackingSection(to="none"))


def load_dpo_recipe(path: Path, overrides: Sequence[str] = ()) -> DpoRecipe:
    """Raises RecipeError, in one line, for anything that the run would trip over later."""

    def check(recipe: DpoRecipe, given: dict[str, Any]) -> None:
        fitted(recipe)
        if recipe.model.continues_adapter:
            raise RecipeError(
                "model.lora.adapter: continue, wanted new, which merges the adapter first: DPO compares with the model "
                "without its adapter, and so with what training starts from"
            )

    return _load(DpoRecipe, path, overrides, _DPO_OURS, check)


# --- `reward:`, which parts a reward has, what they are worth, and what happens where one fails.

PARTS = ("accuracy", "asking", "interactivity", "efficiency", "format")
_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@section
class Weights:
    """What the parts are worth, relative to each other; a part without weight is logged but not rewarded."""

    accuracy: float = 1.0
    asking: float = 1.0
    interactivity: float = 0.25
    efficiency: float = 0.1
    format: float = 0.0


@section
class CustomPart:
    """A part of one's own: `function(sample: train.rewards.Sample) -> float | None`, best from 0 to 1."""

    function: str
    """module:function, where the module can be imported from the directory that the command runs in."""
    weight: float = 1.0


@section
class RewardSection:
    """One reward for each sample: the weighted mean of its parts."""

    weights: Weights = field(default_factory=Weights)
    required: tuple[str, ...] | None = None
    """Parts without which a sample has no reward, and is left out; left out: every part with a weight. Any other part
    that fails is left out of that sample's mean, which then compares unlike things within a group."""
    judge: RoleSection | None = None
    """A model behind servers (engine openai) that judges interactivity; left out, rules do."""
    judge_timeout_s: float = 300.0
    """The longest that a step waits for all its verdicts together; `judge.server` bounds each request."""
    efficient_tokens: int = 500
    """Assistant tokens at which efficiency is down to a half; it falls for ever, and is never flat."""
    timeout_s: float = 10.0
    """The longest that comparing one answer, or one call of a custom function, may take."""
    workers: int = 2
    """Processes for that, beside each training process; none is started before it is needed."""
    max_failed: float = 0.2
    """Share of a step's samples without a reward, over all processes, above which the run stops."""
    custom: dict[str, CustomPart] = field(default_factory=dict)

    @property
    def weight_of(self) -> dict[str, float]:
        """Every part's weight, custom ones included."""
        return {**vars(self.weights), **{name: part.weight for name, part in self.custom.items()}}

    @property
    def required_parts(self) -> frozenset[str]:
        weighed = (name for name, weight in self.weight_of.items() if weight)
        return frozenset(weighed if self.required is None else self.required)

    def check(self) -> None:
        """Raises RecipeError, with the key, where the settings cannot be used."""
        for name, weight in self.weight_of.items():
            if not 0 <= weight < math.inf:
                where = f"custom.{name}.weight" if name in self.custom else f"weights.{name}"
                raise RecipeError(f"reward.{where}: given {weight}, wanted 0 or more")
        if not sum(self.weight_of.values()):
            raise RecipeError("reward.weights: all are 0, wanted at least one part that counts")
        for name, part in self.custom.items():
            if not _NAME.fullmatch(name) or name in PARTS:
                raise RecipeError(
                    f"reward.custom.{name}: wanted a name of letters and digits other than {', '.join(PARTS)}"
                )
            if not _FUNCTION.fullmatch(part.function):
                raise RecipeError(f"reward.custom.{name}.function: given {part.function!r}, wanted module:function")
        for name in self.required or ():
            if not self.weight_of.get(name):
                known = ", ".join(part for part, weight in self.weight_of.items() if weight)
                raise RecipeError(f"reward.required: given {name!r}, wanted parts that have a weight: {known}")
        for name in ("judge_timeout_s", "timeout_s", "workers", "efficient_tokens"):
            if not 0 < getattr(self, name) < math.inf:
                raise RecipeError(f"reward.{name}: given {getattr(self, name)}, wanted more than 0")
        if not 0 <= self.max_failed <= 1:
            raise RecipeError(f"reward.max_failed: given {self.max_failed:g}, wanted a share from 0 to 1")
        if self.judge is not None:
            if self.judge.engine != "openai":
                raise RecipeError(
                    f"reward.judge.engine: given {self.judge.engine}, wanted openai: a judge runs elsewhere"
                )
            check_role("reward.judge", self.judge)


# --- `rollout:`, what a sample is and who plays the user.


@section
class SimulatorSection(RoleSection):
    """The simulated user: `scripted` needs no model; the other engines take the fields of a data builder's role."""

    engine: Literal["scripted", "openai", "hf", "vllm"] = "scripted"  # type: ignore[assignment]
    tries: int = 3
    """How often a message is asked for that is empty, cut off, or out of role, each time with another seed."""


@section
class RolloutSection:
    """How a group's samples are made."""

    samples_per_step: int | None = None
    """Samples of one optimizer step over all processes, on however many GPUs: how often each process accumulates follows,
    and `train.per_device_train_batch_size` is the most that it takes at once. Left out, a step grows with the launch."""
    mode: Literal["reply", "conversation"] = "reply"
    """`reply` trains one assistant turn, rewarded for what comes after it; `conversation` trains all of them."""
    simulator: SimulatorSection = field(default_factory=SimulatorSection)
    window: int = 2
    """reply: how many exchanges (user, assistant) are looked ahead after the reply; 0 for none."""
    samples: int = 1
    """reply: how often each look-ahead is played."""
    max_turns: int = 4
    """conversation: the policy's turns at most."""
    max_turn_tokens: int = 256
    """Tokens of one turn at most, look-ahead included. `train.max_completion_length` bounds the trained whole: a
    conversation takes another turn only while a whole one fits."""
    batch_tokens: int = 32768
    """The most tokens in one batch where transformers generates; more is faster and takes more memory."""


# What leaves sampling as it is, by trl's name. Rollouts with transformers draw from the whole distribution at a
# temperature, which is also what the loss scores; anything narrower would be trained on as if it were that.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "generation_kwargs": (None, {}),
    "cache_implementation": (None,),
    "use_transformers_continuous_batching": (None, False),
    "ds3_gather_for_generation": (None, True),
}


def check_rollout(rollout: RolloutSection, train: Mapping[str, Any]) -> None:
    """Refuses what could only go wrong, or be ignored, later; `train` holds trl's arguments as far as they are known.

    Raises:
        RecipeError: one line, with the key.
    """
    for name, least in {"window": 0, "samples": 1, "max_turns": 1, "max_turn_tokens": 1, "batch_tokens": 1}.items():
        if getattr(rollout, name) < least:
            raise RecipeError(f"rollout.{name}: given {getattr(rollout, name)}, wanted {least} or more")
    simulator, where = rollout.simulator, "rollout.simulator"
    if simulator.engine == "scripted" and (simulator.model is not None or simulator.server is not None):
        raise RecipeError(f"{where}: the engine scripted takes no `model` and no `server`")
    if simulator.max_tokens < 1 or simulator.tries < 1 or simulator.temperature < 0:
        raise RecipeError(f"{where}: max_tokens and tries are to be 1 or more, temperature 0 or more")
    if simulator.engine != "scripted":
        check_role(where, simulator)
    if simulator.engine == "vllm" and simulator.vllm.gpu_memory_utilization is None:
        raise RecipeError(
            f"{where}.vllm.gpu_memory_utilization: missing, wanted the share of the GPU's memory that the simulator may take, "
            "such as 0.25; without it vLLM takes 90% of what is free before training needs it"
        )
    most = train.get("max_completion_length")
    if most is not None and most < rollout.max_turn_tokens:
        raise RecipeError(
            f"rollout.max_turn_tokens: given {rollout.max_turn_tokens}, and train.max_completion_length, which bounds "
            f"all that is trained of a sample, is {most}; wanted no more than that"
        )
    if train.get("use_vllm"):
        return
    for name, neutral in _NEUTRAL.items():
        if train.get(name) not in neutral:
            raise RecipeError(
                f"train.{name}: given {train[name]!r}; rollouts with transformers sample at train.temperature alone, so "
                "leave it out, or set train.use_vllm"
            )
    temperature = train.get("temperature")
    if temperature is not None and temperature <= 0:
        raise RecipeError(f"train.temperature: given {temperature:g}, wanted more than 0: a group must differ")


def check_launch(simulator: SimulatorSection, accelerator: Any) -> None:
    """Refuses a simulator in this process where the launch would take its model for a part of the training.

    Raises:
        RecipeError: ZeRO-3 spreads every model that is loaded over the processes; vLLM wants a process of its own.
    """
    plugin = accelerator.state.deepspeed_plugin
    spread = plugin is not None and plugin.zero_stage == 3
    if (simulator.engine == "hf" and spread) or (simulator.engine == "vllm" and accelerator.num_processes > 1):
        why = "with ZeRO-3" if spread else "in a launch of several processes"
        raise RecipeError(
            f"rollout.simulator.engine: {simulator.engine}, wanted openai {why}: serve the model by itself, such as with "
            f"`vllm serve {simulator.model}`, and name it under rollout.simulator.server"
        )


# --- The recipe of train/grpo.py.

GrpoArguments = trl_section("grpo_config", "GRPOConfig")
MAX_COMPLETION = 512  # trl's own default

# What a rollout, the composed reward or another section decides; set here, trl would do it again or never read it.
_OURS = {
    "remove_unused_columns": "prompts carry what the reward needs",
    "reward_weights": "reward.weights decides it",
    "multi_objective_aggregation": "the parts become one reward, see reward.weights",
    "chat_template_kwargs": "data.enable_thinking decides it",
    "do_eval": "eval_strategy decides it",
    "max_tool_calling_iterations": "the rollout section says how a conversation goes on",
    "auto_find_batch_size": "a smaller batch would tear groups apart",
}


@section
class PromptSection:
    path: str | None = None
    """A builder's output folder, or a JSONL file of rl rows."""
    recipe: str | None = None
    """A data recipe to build where it is not built yet; give this or `path`."""
    kinds: tuple[str, ...] | None = None
    """Kinds of conversation to take, such as [complete, underspecified]; all where left out."""
    held_out: int = 0
    """Problems whose prompts are never trained on, and are played at every evaluation of trl's (`train.eval_strategy`,
    `train.eval_steps`): `eval_reward/*` and `eval_watch/*` show what is learnt beside what is learnt by heart."""
    max_prompt_tokens: Count = 1024
    """A longer prompt is left out whole and counted."""
    enable_thinking: bool | None = None


@section
class GrpoRecipe:
    model: ModelSection
    data: PromptSection
    train: GrpoArguments  # type: ignore[valid-type]
    rollout: RolloutSection = field(default_factory=RolloutSection)
    reward: RewardSection = field(default_factory=RewardSection)
    probe: ProbeSection | None = None
    tracking: TrackingSection = field(default_factory=lambda: TrackingSection(to="none"))


TrainRecipe = SftRecipe | DpoRecipe | GrpoRecipe


def stated_batch(recipe: TrainRecipe) -> tuple[str, int | None]:
    """The key under which a recipe may say what one optimizer step holds, and what it says."""
    if isinstance(recipe, GrpoRecipe):
        return "rollout.samples_per_step", recipe.rollout.samples_per_step
    return "data.rows_per_step", recipe.data.rows_per_step


def fitted(recipe: TrainRecipe, ranks: int | None = None) -> dict[str, Any]:
    """The `train:` section as it was given, its batch fitted to this launch, or to `ranks` processes.

    Where the recipe says how many rows or samples a step has, each process gets an equal share of them, in the fewest equal
    parts that `per_device_train_batch_size` allows: trl's `gradient_accumulation_steps`.

    Raises:
        RecipeError: the processes cannot share them equally; the nearest numbers that they can are named.
    """
    given: dict[str, Any] = recipe.train.model_dump(exclude_unset=True)  # type: ignore[attr-defined]
    key, wanted = stated_batch(recipe)
    if wanted is None:
        return given
    ranks = ranks or processes()
    shared, why = ranks, f"{ranks} process{'es' if ranks > 1 else ''}"
    group = given.get("num_generations", 8)
    if isinstance(recipe, GrpoRecipe) and group > 1 and given.get("generation_batch_size") is None:
        shared, why = math.lcm(ranks, group), f"{why}, groups of {group}"  # what is generated together are whole groups
    for other in ("gradient_accumulation_steps", "steps_per_generation"):
        if given.get(other) is not None:
            raise RecipeError(f"train.{other}: {key} {wanted} decides it; leave it out, or give {key} null")
    most = given.get("per_device_train_batch_size", 8)
    if min(most, wanted) < 1:
        raise RecipeError(f"{key}: given {wanted}, {most} a process at once; wanted 1 or more of both")
    if wanted % shared:
        below = wanted // shared * shared
        nearest = f"{below} or {below + shared}" if below else f"{shared}"
        raise RecipeError(f"{key}: given {wanted}, wanted a multiple of {shared} ({why}), such as {nearest}")
    share = wanted // ranks
    parts = next(parts for parts in range(-(-share // most), share + 1) if share % parts == 0)
    return {**given, "per_device_train_batch_size": share // parts, "gradient_accumulation_steps": parts}


@dataclass(frozen=True)
class Batch:
    """How samples are spread: `per_device` x `processes` x `steps_per_generation` are generated at a time."""

    processes: int
    per_device: int
    accumulation: int
    steps_per_generation: int
    num_generations: int

    @property
    def samples(self) -> int:
        """Generated at a time, over all processes."""
        return self.per_device * self.processes * self.steps_per_generation

    @property
    def prompts(self) -> int:
        return self.samples // self.num_generations

    def steps(self, prompts: int, num_iterations: int) -> float:
        """Optimizer steps of one epoch over so many prompts; an incomplete last batch is not used."""
        generations = prompts // self.prompts
        return generations * num_iterations * self.steps_per_generation / self.accumulation


def batch_of(given: dict[str, Any], ranks: int | None = None) -> Batch:
    """The batch of a `train:` section from `fitted`, in this launch or on `ranks` processes; trl's arithmetic, without trl.

    Raises:
        RecipeError: groups would not come out whole.
    """
    ranks = ranks or processes()
    per_device = given.get("per_device_train_batch_size", 8)
    accumulation = given.get("gradient_accumulation_steps", 1)
    group = given.get("num_generations", 8)
    steps = given.get("steps_per_generation")
    wanted = given.get("generation_batch_size")
    if group < 2:
        raise RecipeError(f"train.num_generations: given {group}, wanted 2 or more: an advantage compares samples")
    if min(per_device, accumulation, steps or 1, wanted or 1) < 1:
        raise RecipeError("train: batch sizes, accumulation and steps_per_generation are to be 1 or more")
    if steps is not None and wanted is not None:
        raise RecipeError("train: generation_batch_size and steps_per_generation say the same; give one of them")
    at_once = per_device * ranks
    if wanted is not None and wanted % at_once:
        raise RecipeError(
            f"train.generation_batch_size: given {wanted}, wanted a multiple of {at_once} ({per_device} a process x {ranks})"
        )
    batch = Batch(ranks, per_device, accumulation, steps or (wanted or at_once * accumulation) // at_once, group)
    if batch.samples % group:
        least = group // math.gcd(group, at_once)
        raise RecipeError(
            f"train: {per_device} a process x {ranks} x {batch.steps_per_generation} steps are {batch.samples} samples at "
            f"a time, wanted a multiple of num_generations {group}: gradient_accumulation_steps {least}, or a multiple"
        )
    return batch


def load_grpo_recipe(path: Path, overrides: Sequence[str] = ()) -> GrpoRecipe:
    """Raises RecipeError, in one line, for anything that the run would trip over later."""

    def check(recipe: GrpoRecipe, given: dict[str, Any]) -> None:
        batch_of(fitted(recipe))
        check_rollout(recipe.rollout, {"max_completion_length": MAX_COMPLETION, **given})
        recipe.reward.check()
        held_out, when = recipe.data.held_out, given.get("eval_strategy", "no")
        if held_out < 0 or (held_out > 0) != (when != "no"):
            raise RecipeError(
                f"data.held_out: given {held_out} with train.eval_strategy {when!r}; wanted held-out problems and "
                "`eval_strategy: steps`, `eval_steps: N`, or neither"
            )

    return _load(GrpoRecipe, path, overrides, _OURS, check)


LOADERS: dict[str, Callable[..., TrainRecipe]] = {
    "sft": load_sft_recipe,
    "dpo": load_dpo_recipe,
    "grpo": load_grpo_recipe,
}
