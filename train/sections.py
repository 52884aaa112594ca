"""The recipes of train/sft.py, train/dpo.py and train/grpo.py, and how one optimizer step is spread over a launch."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union

from pydantic import AliasChoices, Field, create_model, model_serializer, model_validator

from nextturn.data_builders.sections import DataRecipe, SimulatorSection
from nextturn.probe.command.errors import RecipeError
from nextturn.probe.command.files import read_json
from nextturn.probe.command.recipe import Count, Mark, Named, RecipeSection, Seconds, Share, Weight, load_recipe
from nextturn.probe.command.sections import ProbeSection, RoleSection, TemplateSection, TrackingSection, VllmSection
from nextturn.probe.command.terminal import processes, say, say_once
from nextturn.probe.models.checkpoints import newest_complete
from nextturn.probe.models.weights import ADAPTER_CONFIG, CONFIG
from nextturn.probe.text.chat import LossOn
from nextturn.train.rewards import PARTS

# --- The `train:` section: trl's own names, checked without importing trl, which takes many seconds.
#
# trl_fields.json holds the names and types; `make schema` writes it, and a test compares it with the installed trl.

TRL_FIELDS: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("trl_fields.json").read_text())
_TYPES: dict[str, Any] = {
    "bool": bool, "int": int, "float": float, "str": str, "dict": dict, "list": list, "list[str]": list[str],
    "list[float]": list[float], "null": None, "any": Any,
}  # fmt: skip
# transformers reads a number below 1 as a share of all steps, and 1.0, which may be meant as all of them, as every step.
_Steps = Count | Annotated[float, Field(gt=0, lt=1)]
_NARROWER: dict[str, Any] = {
    **dict.fromkeys(("save_steps", "eval_steps", "logging_steps"), _Steps),
    **dict.fromkeys(("per_device_train_batch_size", "gradient_accumulation_steps"), Count),
    **dict.fromkeys(("steps_per_generation", "generation_batch_size"), Count | None),
    "num_generations": Annotated[int, Field(ge=2)],  # an advantage compares the samples of a group
    "temperature": Annotated[float, Field(gt=0)],  # and these have to differ
    **dict.fromkeys(("learning_rate", "weight_decay", "max_grad_norm"), Weight),
    "num_train_epochs": Annotated[float, Field(gt=0)],
    "output_dir": str,
    "save_strategy": Literal["steps", "epoch"],  # `no` would lose the run, and `best` may leave out its last step
}

# trl's names that another part of a recipe decides, by config, with the reason.
_EVERYWHERE = {
    "model_init_kwargs": "the model section says how the model is loaded",
    "trust_remote_code": "custom model code is never run",
    "report_to": "tracking.to decides it",
    "resume_from_checkpoint": "use --resume auto, never or PATH",
    "load_best_model_at_end": "the last checkpoint is the run's result; name another one where you use it",
    "auto_find_batch_size": "a step would have other rows than the recipe says",
}
_PACKING = ("packing", "packing_strategy", "eval_packing", "padding_free")
_SYNC = "no checkpoint has the reference, so a resumed run would begin with the first one again; leave it out, or raise beta"
REFUSED = {
    "SFTConfig": {
        **_EVERYWHERE,
        **dict.fromkeys(("assistant_only_loss", "completion_only_loss"), "data.loss_on decides what carries loss"),
        "chat_template_path": "the model's own template is used, as at inference",
        **dict.fromkeys(("dataset_text_field", "dataset_kwargs"), "rows are made from `messages`"),
        **dict.fromkeys(
            _PACKING, "each row is trained by itself; train_sampling_strategy: group_by_length saves padding"
        ),
    },
    "DPOConfig": {
        **_EVERYWHERE,
        "padding_free": "trl pads pairs",
        "truncation_mode": "a pair that is too long is left out whole",
        "sync_ref_model": _SYNC,
    },
    "GRPOConfig": {
        **_EVERYWHERE,
        "remove_unused_columns": "prompts carry what the reward needs",
        "reward_weights": "reward.weights decides it",
        "multi_objective_aggregation": "the parts become one reward, see reward.weights",
        "chat_template_kwargs": "data.enable_thinking decides it",
        "do_eval": "eval_strategy decides it",
        "max_tool_calling_iterations": "the rollout section says how a conversation continues",
        "sync_ref_model": _SYNC,
    },
}
# How the names begin whose values change what is kept, shown or waited for.
_FREE = (
    *("logging_", "save_total_limit", "disable_tqdm", "ddp_timeout", "dataloader_num_workers", "push_to_hub", "hub_"),
    "vllm_server_",
)


class TrlArguments(RecipeSection):
    """Arguments of the trl config that a subclass is named after. Only what a recipe sets is kept; all defaults stay trl's."""

    @model_validator(mode="before")
    @classmethod
    def _without_refused(cls, given: Any) -> Any:
        for key in given if isinstance(given, dict) else ():
            if reason := REFUSED[cls.__name__].get(key):
                raise RecipeError(f"{key}: not for a recipe ({reason})")
        return given

    @model_serializer
    def _set_fields(self) -> dict[str, Any]:
        return {name: value for name, value in self if name in self.model_fields_set}


def trl_section(config: str) -> type[TrlArguments]:
    """Return a section class with the fields of a trl config, such as "SFTConfig"."""
    fields: dict[str, Any] = {}
    for name, types in TRL_FIELDS[config].items():
        if name not in REFUSED[config]:
            kind = _NARROWER.get(name) or Union[tuple(_TYPES[part] for part in types.split(" | "))]  # noqa: UP007
            marked = Annotated[kind, Mark.FREE] if name.startswith(_FREE) else kind
            fields[name] = (marked, ... if name == "output_dir" else None)
    return create_model(config, __base__=TrlArguments, __doc__=f"Arguments of trl's {config}.", **fields)


SftArguments = trl_section("SFTConfig")
DpoArguments = trl_section("DPOConfig")
GrpoArguments = trl_section("GRPOConfig")


# --- `model:`

# PEFT has no default for Qwen3.5. Three of its four layers are linear attention, whose projections have names
# of their own; without them those layers would get no attention adapter.
LORA_TARGETS = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj_qkv", "in_proj_z", "out_proj",
)  # fmt: skip

LATER = re.compile(r"^runs[/\\]|[/\\]checkpoint-\d+/?$")
"""Matches the name of a model that another run may still have to make: its run directory, or a checkpoint in one."""


class LoraSection(RecipeSection):
    """A LoRA adapter. PEFT's names `lora_alpha` and `lora_dropout` are accepted too."""

    r: Count = 32
    """Rank of the adapter."""
    alpha: Annotated[int, Field(validation_alias=AliasChoices("alpha", "lora_alpha"))] = 16
    """Scale of the adapter: its output is multiplied by alpha / r."""
    dropout: Annotated[float, Field(ge=0, lt=1, validation_alias=AliasChoices("dropout", "lora_dropout"))] = 0.0
    """Dropout probability of the adapter's input."""
    target_modules: tuple[str, ...] | Literal["all-linear"] = LORA_TARGETS
    """Modules that get an adapter; names that the model lacks are left out. Without this key, half of the linear weights must get one."""
    target_parameters: tuple[str, ...] = ()
    """Weights that are no module and get an adapter, too: those of experts, such as experts.gate_up_proj and experts.down_proj."""
    adapter: Literal["new", "continue"] = "new"
    """If `model.name` is a LoRA checkpoint: merge it and train a new adapter, or train its own adapter with its own settings."""

    def check_keys(self) -> None:
        if self.adapter == "continue" and self.model_copy(update={"adapter": "new"}) != LoraSection():
            raise RecipeError("adapter: `continue` keeps the checkpoint's own settings; expected no other key")
        if self.target_parameters and self.dropout:
            raise RecipeError("dropout: given with target_parameters, expected 0: PEFT has no dropout for them")


class ModelSection(RecipeSection):
    """The model to train."""

    name: Annotated[str, Field(validation_alias=AliasChoices("name", "model_name_or_path"))]
    """Hub id, local folder (also a checkpoint, also a LoRA checkpoint), or `smollm2-135m`."""
    fallback: Annotated[str | None, Mark.FREE] = None
    """The model to start from if `name` is a run directory that has no complete checkpoint yet."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Data type of the weights; trained without LoRA and DeepSpeed they are stored in float32."""
    lora: LoraSection | None = None
    """LoRA; default: all weights are trained."""

    @property
    def continues_adapter(self) -> bool:
        return self.lora is not None and self.lora.adapter == "continue"


# --- `data:`


class TrainingData(TemplateSection):
    """Where the training data are."""

    path: str | None = None
    """A data build, a file (JSONL, JSON array, Parquet, CSV), a folder of save_to_disk, or ORG/NAME@CONFIG:SPLIT; this or `recipe`."""
    recipe: str | None = None
    """A data recipe, which is built if its data are not there yet; give this or `path`."""
    max_too_long: Annotated[float, Field(ge=0, le=1), Mark.FREE] = 0.5
    """Share of rows that may be left out because they are too long; more is an error."""

    def check_keys(self) -> None:
        if (self.path is None) == (self.recipe is None):
            raise RecipeError("path: give `path` or `recipe`, not both")


class PairSection(TrainingData):
    """Pairs for DPO: `prompt`, `chosen` and `rejected` messages in every row."""

    rows_per_step: Count | None = None
    """Effective batch size: rows of one optimizer step on all GPUs together; default: trl's batch keys, which grow with GPUs."""


class DataSection(PairSection):
    """Conversations for SFT: `messages`, `conversations`, or `prompt` and `completion` in every row."""

    columns: dict[str, str] = {}
    """The file's own names of `messages`, `prompt`, `completion` or `system`, such as {prompt: question_text, completion: reply}."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """What to do with rows that are not valid conversations: stop and report all of them, or skip them and report how many."""
    validation: str | None = None
    """Other conversations, as in `path`, whose loss is logged (by `train.eval_strategy`; default: at every save)."""
    loss_on: LossOn = "assistant"
    """Turns with loss: assistant; talk: without those that box a result, if there are others; user: a user model; all: an ablation."""

    def check_keys(self) -> None:
        super().check_keys()
        if unknown := sorted(self.columns.keys() - {"messages", "prompt", "completion", "system"}):
            raise RecipeError(f"columns.{unknown[0]}: expected messages, or prompt and completion, or system")


class PromptSection(TrainingData):
    """Prompts for GRPO: the rl rows of a data build."""

    kinds: tuple[str, ...] | None = None
    """Kinds of conversation to use, such as [complete, underspecified]; default: all."""
    held_out: Annotated[int, Field(ge=0)] = 0
    """Problems that are never trained on and are evaluated by `train.eval_strategy`; their reward shows memorized prompts."""
    max_prompt_tokens: Count = 1024
    """Tokens of a prompt at most; longer prompts are left out and counted."""


# --- `reward:`

Weights = create_model(
    "Weights",
    __base__=RecipeSection,
    __doc__="Relative weights of the parts of a reward; a part with weight 0 is logged only.",
    **{name: (Annotated[Weight, Field(description=part.about)], part.weight) for name, part in PARTS.items()},  # type: ignore[call-overload]
)


class CustomPart(RecipeSection):
    """A reward part of your own: `function(sample) -> float | None`, or trl's `function(prompts, completions, **columns)`."""

    function: Named
    """module:function, importable from the directory in which the command runs."""
    weight: Weight = 1.0
    """Weight of the part."""


class JudgeSection(RoleSection):
    """A language model that judges."""

    engine: Literal["openai"] = "openai"
    """Servers: a judge does not run in the training process."""


def _default_weights(section: dict[str, Any]) -> RecipeSection:
    if not section.get("custom"):
        return Weights()
    say_once("reward    custom parts alone: the built-in parts have the weight 0 unless `reward.weights` names them")
    return Weights(**dict.fromkeys(Weights.model_fields, 0.0))


class RewardSection(RecipeSection):
    """One reward for each sample: the weighted mean of its parts."""

    custom: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], CustomPart] = {}
    """Parts of your own, by name."""
    weights: Weights = Field(default_factory=_default_weights)  # type: ignore[valid-type]
    """Weights of the built-in parts; default: 0 for all of them if there are custom parts."""
    required: tuple[str, ...] | None = None
    """Parts without which a sample has no reward; default: all with a weight. Other parts that fail are left out of the mean."""
    judge: JudgeSection | None = None
    """A model that judges interactivity; default: rules."""
    judge_timeout_s: Annotated[Seconds, Mark.FREE] = 300.0
    """Time limit in seconds for all verdicts of a step; `judge.server` limits each request."""
    efficient_tokens: Count = 500
    """Assistant tokens at which efficiency is 0.5."""
    timeout_s: Annotated[Seconds, Mark.FREE] = 10.0
    """Time limit in seconds for one call of a custom function."""
    workers: Annotated[Count, Mark.FREE] = 2
    """Processes for custom functions, next to each training process."""
    max_failed: Annotated[Share, Mark.FREE] = 0.2
    """Share of a step's samples without a reward above which the run stops."""

    @property
    def weight_of(self) -> dict[str, float]:
        """Every part's weight, custom parts included."""
        return {**vars(self.weights), **{name: part.weight for name, part in self.custom.items()}}

    @property
    def required_parts(self) -> frozenset[str]:
        weighted = (name for name, weight in self.weight_of.items() if weight)
        return frozenset(weighted if self.required is None else self.required)

    def check_keys(self) -> None:
        weighted = [name for name, weight in self.weight_of.items() if weight]
        if not weighted:
            raise RecipeError("weights: all are 0, expected at least one part with a weight")
        for name in self.custom:
            if name in PARTS:
                raise RecipeError(f"custom.{name}: the name of a built-in part, expected another one")
        for name in self.required or ():
            if name not in weighted:
                raise RecipeError(f"required: given {name!r}, expected parts that have a weight: {', '.join(weighted)}")


# --- `rollout:`


class RolloutSection(RecipeSection):
    """How the samples of a group are made."""

    samples_per_step: Count | None = None
    """Effective batch size: samples of one optimizer step on all GPUs together; default: trl's batch keys, which grow with GPUs."""
    mode: Literal["reply", "conversation"] = "reply"
    """`reply` trains one assistant turn, rewarded for what follows it; `conversation` trains all assistant turns."""
    simulator: SimulatorSection = SimulatorSection()
    """The simulated user."""
    window: Annotated[int, Field(ge=0)] = 2
    """In mode reply: exchanges (user, assistant) of the look-ahead after the reply; 0: none."""
    samples: Count = 1
    """In mode reply: look-aheads of each reply."""
    max_turns: Count = 4
    """In mode conversation: assistant turns at most."""
    max_turn_tokens: Count = 256
    """Tokens of a turn at most, look-ahead included; `train.max_completion_length` limits all trained tokens of a sample."""
    batch_tokens: Annotated[Count, Mark.FREE] = 32768
    """Tokens in one batch if transformers generates; more is faster and needs more memory."""
    stop_on_collapse: Annotated[bool, Mark.FREE] = False
    """End the run, with a checkpoint, if half of the distinct replies or of the accuracy on held-out prompts is lost; default: warn."""

    def check_keys(self) -> None:
        if self.simulator.running.engine == "vllm" and self.simulator.vllm.gpu_memory_utilization is None:
            raise RecipeError(
                "simulator.vllm.gpu_memory_utilization: missing, expected the share of the GPU's memory for the simulator, "
                "such as 0.25; without it vLLM takes 90% of what is free before training needs it"
            )


# Values that leave sampling as it is, by trl's name. Rollouts with transformers sample from the whole distribution at one
# temperature, which is also what the loss scores; anything narrower would be trained on as if it were that.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "generation_kwargs": (None, {}),
    "cache_implementation": (None,),
    "use_transformers_continuous_batching": (None, False),
    "ds3_gather_for_generation": (None, True),
}
MAX_COMPLETION = 512  # trl's default of max_completion_length


def check_sampling(rollout: RolloutSection, train: Mapping[str, Any]) -> None:
    """Raise RecipeError if rollouts cannot follow trl's arguments, of which `train` has those that are known."""
    most = train.get("max_completion_length", MAX_COMPLETION)
    if most < rollout.max_turn_tokens:
        raise RecipeError(
            f"rollout.max_turn_tokens: given {rollout.max_turn_tokens}, expected at most {most}, which is "
            "train.max_completion_length, the limit for all trained tokens of a sample"
        )
    for name, neutral in {} if train.get("use_vllm") else NEUTRAL.items():
        if train.get(name) not in neutral:
            raise RecipeError(
                f"train.{name}: given {train[name]!r}; rollouts with transformers sample at train.temperature alone: "
                "leave it out, or set train.use_vllm"
            )


# --- The recipes.


class TrainRecipe(RecipeSection):
    """The keys that recipes of all stages have."""

    rows_key: ClassVar[str] = "data.rows_per_step"

    model: ModelSection
    """The model to train."""
    data: TrainingData
    """The training data."""
    train: TrlArguments
    """Arguments of trl's config."""
    probe: ProbeSection | None = None
    """What the probe measures at checkpoints; default: nothing."""
    tracking: Annotated[TrackingSection, Mark.FREE] = TrackingSection(to="none")
    """Where figures are shown; without this section nowhere."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The `train:` section as the recipe gives it."""
        return self.train.model_dump()

    @property
    def rows_per_step(self) -> int | None:
        """The effective batch size, if the recipe states it."""
        section, _, key = self.rows_key.partition(".")
        return getattr(getattr(self, section), key)

    def check_keys(self) -> None:
        if self.probe and self.probe.when == "inline":
            _check_inline(self.probe, self.arguments)
        given = self.arguments
        if given.get("hub_token"):
            raise RecipeError(
                "train.hub_token: expected no token in a recipe, since recipes are copied into run folders and cards; set HF_TOKEN or "
                "run `hf auth login`"
            )
        if given.get("push_to_hub") and (strategy := given.get("hub_strategy", "end")) != "end":
            raise RecipeError(
                f"train.hub_strategy: given {strategy}, expected end: the last checkpoint is pushed with its card, once, when "
                "training has ended"
            )


class SftRecipe(TrainRecipe):
    """The recipe of train/sft.py."""

    data: DataSection
    """The conversations."""
    train: SftArguments  # type: ignore[valid-type]
    """Arguments of trl's SFTConfig."""

    def check_keys(self) -> None:
        super().check_keys()
        probe = self.probe
        if self.data.loss_on == "user" and probe and probe.when != "never" and not probe.user_model:
            raise RecipeError(
                f"probe.when: given {probe.when}, expected never: `data.loss_on: user` trains a user model, which writes the user's "
                "turns, and the probe measures policies; `probe.user_model: true` measures it anyway"
            )


class DpoRecipe(TrainRecipe):
    """The recipe of train/dpo.py."""

    data: PairSection
    """The pairs."""
    train: DpoArguments  # type: ignore[valid-type]
    """Arguments of trl's DPOConfig."""

    def check_keys(self) -> None:
        super().check_keys()
        if self.model.continues_adapter:
            raise RecipeError(
                "model.lora.adapter: given continue, expected new, which merges the adapter first: DPO compares with the "
                "model without its adapter, which has to be the model that training starts from"
            )


class GrpoRecipe(TrainRecipe):
    """The recipe of train/grpo.py."""

    rows_key: ClassVar[str] = "rollout.samples_per_step"

    data: PromptSection
    """The prompts."""
    train: GrpoArguments  # type: ignore[valid-type]
    """Arguments of trl's GRPOConfig."""
    rollout: RolloutSection = RolloutSection()
    """How samples are made."""
    reward: RewardSection = RewardSection()
    """How samples are rewarded."""

    def check_keys(self) -> None:
        super().check_keys()
        check_sampling(self.rollout, self.arguments)
        held_out, when = self.data.held_out, self.arguments.get("eval_strategy", "no")
        if (held_out > 0) != (when != "no"):
            raise RecipeError(
                f"data.held_out: given {held_out} with train.eval_strategy {when!r}; set both, or neither "
                "(train: `eval_strategy: steps`, `eval_steps: N`)"
            )


def _check_inline(probe: ProbeSection, given: Mapping[str, Any]) -> None:
    """Check the engine of an inline probe. Transformers measures the live weights in the training processes, or GRPO's vLLM does."""
    colocated = (
        given.get("use_vllm")
        and given.get("vllm_mode", "colocate") == "colocate"
        and given.get("vllm_tensor_parallel_size", 1) == 1
    )
    if probe.engine == "openai" or (probe.engine == "vllm" and not colocated):
        raise RecipeError(
            f"probe.engine: given {probe.engine}, expected hf: with `when: inline` vllm needs GRPO's use_vllm, vllm_mode colocate "
            "and vllm_tensor_parallel_size 1. `when: watch` allows all engines"
        )
    if probe.engine == "vllm" and (probe.dtype != "auto" or probe.vllm != VllmSection()):
        key, why = ("dtype", "the live weights as they are") if probe.dtype != "auto" else ("vllm", "train.vllm_*")
        raise RecipeError(f"probe.{key}: not with `engine: vllm` and `when: inline`, where trl's vLLM has {why}")


T = TypeVar("T", bound=TrainRecipe)


def _load(kind: type[T], path: Path, overrides: Sequence[str] = ()) -> T:
    """Load a recipe of a stage, checked for this launch, with the model that training starts from.

    Raises:
        RecipeError: In one line, which begins with the file.
    """
    # On the command line either place of the data takes the place of the other.
    given = {name for name in ("path", "recipe") for word in overrides if word.partition("=")[0] == f"--data.{name}"}
    if len(given) == 1:
        other = "recipe" if "path" in given else "path"
        overrides = [f"--data.{other}", "null", *overrides]
    try:
        recipe = load_recipe(kind, path, overrides)
    except RecipeError as error:
        stages: dict[str, type[RecipeSection]] = {**RECIPES, "data": DataRecipe}
        if not _fits(kind, path) and (stage := next((name for name, cls in stages.items() if _fits(cls, path)), None)):
            raise RecipeError(
                f"{path}: a recipe for another stage; run `nextturn {stage} {path}` (here: {error})"
            ) from None
        raise
    try:
        batch_of(recipe)
    except RecipeError as error:
        bare = kind is GrpoRecipe and not recipe.model_fields_set & {"rollout", "reward"}
        hint = "; without `rollout:` and `reward:`, is this a recipe for `nextturn sft`?" if bare else ""
        raise RecipeError(f"{path}: {error}{hint}") from None
    model = start_from(recipe.model, Path(recipe.arguments["output_dir"]), path.parent)
    return recipe.model_copy(update={"model": model})


def _fits(kind: type[RecipeSection], path: Path) -> bool:
    try:
        load_recipe(kind, path)
    except RecipeError:
        return False
    return True


load_sft_recipe = partial(_load, SftRecipe)
load_dpo_recipe = partial(_load, DpoRecipe)
load_grpo_recipe = partial(_load, GrpoRecipe)
RECIPES: dict[str, type[TrainRecipe]] = {"sft": SftRecipe, "dpo": DpoRecipe, "grpo": GrpoRecipe}
LOADERS: dict[str, Callable[..., TrainRecipe]] = {stage: partial(_load, kind) for stage, kind in RECIPES.items()}


def start_from(model: ModelSection, run_dir: Path, recipes: Path) -> ModelSection:
    """Return the section with the model that training starts from as `name`: `fallback` if there is no checkpoint yet.

    A run that has begun keeps the model that its recipe.json names.

    Args:
        recipes: The folder of the recipe, and of the recipe whose run `model.name` is.
    """
    if model.fallback is None or not LATER.search(model.name):
        return model
    from_fallback = model.model_copy(update={"name": model.fallback})
    if (run_dir / "recipe.json").is_file():
        return from_fallback if read_json(run_dir / "recipe.json")["model"]["name"] == model.fallback else model
    folder = Path(model.name)
    if any((folder / name).is_file() for name in (CONFIG, ADAPTER_CONFIG)) or newest_complete(folder)[0]:
        return model
    sft = recipes / f"{folder.name}.yaml"
    first = f"; to start from SFT, run this first: nextturn sft {sft}" if sft.is_file() else ""
    say(f"model.name: {model.name} has no complete checkpoint, so training starts from {model.fallback}{first}")
    return from_fallback


# --- The effective batch size, and how it is spread over the processes of a launch.


@dataclass(frozen=True)
class Batch:
    """The rows of one optimizer step: `per_device` x `processes` x `accumulation`; the samples of one generation:
    `per_device` x `processes` x `steps_per_generation`.

    Attributes:
        steps_per_generation, num_generations: of GRPO; without it `accumulation` and 1.
    """

    processes: int
    per_device: int
    accumulation: int
    steps_per_generation: int
    num_generations: int

    @property
    def rows_per_step(self) -> int:
        return self.per_device * self.processes * self.accumulation

    @property
    def samples(self) -> int:
        """Samples of one generation over all processes."""
        return self.per_device * self.processes * self.steps_per_generation

    @property
    def prompts(self) -> int:
        """Prompts of one generation over all processes."""
        return self.samples // self.num_generations

    def steps(self, rows: int, num_iterations: int = 1) -> float:
        """Return the optimizer steps of one epoch over so many rows; GRPO drops an incomplete last generation."""
        if self.num_generations == 1:
            return math.ceil(math.ceil(rows / (self.per_device * self.processes)) / self.accumulation)
        return rows // self.prompts * num_iterations * self.steps_per_generation / self.accumulation


def batch_of(recipe: TrainRecipe, ranks: int | None = None) -> Batch:
    """Return how a step is spread over this launch, or over `ranks` processes. This is trl's arithmetic, without trl.

    If the recipe states the effective batch size, each process gets an equal share of it, in the fewest equal parts that
    `per_device_train_batch_size` allows.

    Raises:
        RecipeError: The processes cannot share the rows equally, or groups would not be whole.
    """
    given = recipe.arguments
    ranks = ranks or processes()
    per_device, accumulation = given.get("per_device_train_batch_size", 8), given.get("gradient_accumulation_steps", 1)
    group = given.get("num_generations", 8) if isinstance(recipe, GrpoRecipe) else 1
    steps, generated = given.get("steps_per_generation"), given.get("generation_batch_size")
    if recipe.rows_per_step is not None:
        for other in ("gradient_accumulation_steps", "steps_per_generation"):
            if given.get(other) is not None:
                raise RecipeError(
                    f"train.{other}: {recipe.rows_key} {recipe.rows_per_step} decides it; leave it out, or set "
                    f"{recipe.rows_key} to null"
                )
        # What is generated together are whole groups.
        per_device, accumulation = _shares(recipe, ranks, per_device, 1 if generated else group)
    if group == 1:
        return Batch(ranks, per_device, accumulation, accumulation, 1)
    if steps and generated:
        raise RecipeError("train.generation_batch_size: means the same as steps_per_generation; give one of them")
    at_once = per_device * ranks
    if generated and generated % at_once:
        raise RecipeError(
            f"train.generation_batch_size: given {generated}, expected a multiple of {at_once} ({per_device} a process x {ranks})"
        )
    batch = Batch(ranks, per_device, accumulation, steps or (generated or at_once * accumulation) // at_once, group)
    if batch.samples % group:
        least = group // math.gcd(group, at_once)
        raise RecipeError(
            f"train.num_generations: given {group}, expected a divisor of {per_device} a process x {ranks} x {batch.steps_per_generation} "
            f"steps = {batch.samples} samples: set gradient_accumulation_steps to {least} or a multiple"
        )
    return batch


def _shares(recipe: TrainRecipe, ranks: int, most: int, group: int) -> tuple[int, int]:
    """Return (rows that a process takes at a time, number of times) for the stated effective batch size.

    Raises:
        RecipeError: It is no multiple of processes and groups; the nearest multiples are named.
    """
    rows, key = recipe.rows_per_step or 1, recipe.rows_key
    shared = math.lcm(ranks, group)
    if rows % shared:
        why = f"{ranks} process{'es' if ranks > 1 else ''}" + (f", groups of {group}" if group > 1 else "")
        below = rows // shared * shared
        nearest = f"{below} or {below + shared}" if below else f"{shared}"
        raise RecipeError(f"{key}: given {rows}, expected a multiple of {shared} ({why}), such as {nearest}")
    share = rows // ranks
    parts = next(parts for parts in range(-(-share // most), share + 1) if share % parts == 0)
    return share // parts, parts


def fitted(recipe: TrainRecipe, ranks: int | None = None) -> dict[str, Any]:
    """Return the `train:` section as it was given, with the batch keys of this launch, or of `ranks` processes, if the recipe
    states its effective batch size. Raises RecipeError, see `batch_of`."""
    batch = batch_of(recipe, ranks)
    shares = {"per_device_train_batch_size": batch.per_device, "gradient_accumulation_steps": batch.accumulation}
    return recipe.arguments | (shares if recipe.rows_per_step is not None else {})
