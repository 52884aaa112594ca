"""What sft.py and grpo.py share: the command line, the launch, the policy that is trained, the folder of the run."""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from probe.checkpoints import finish_run, finished
from probe.errors import BadInput, ModelError
from probe.files import read_json, sha256_text, write_atomic, write_json
from probe.models import ModelFolder, merged_folder, resolve
from probe.recipe import recipe_dict
from probe.scaling import write_base
from probe.store import refuse_changes
from probe.terminal import is_main_process, processes, say
from probe.weights import sha256_of_seen
from train.recipe import LoraSection, ModelSection, fitted, stated_batch

if TYPE_CHECKING:
    from train.recipe import TrainRecipe


def command_line(stage: str, does: str, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """(recipe, dry_run, resume), and the overrides in the recipe's own words; `stage` names the script."""
    parser = argparse.ArgumentParser(
        prog=f"accelerate launch train/{stage}.py",
        description=f"{does} and probes it before training and at every checkpoint.",
        epilog="Options in the recipe's own words override it: --train.learning_rate 2e-5",
    )
    parser.add_argument("recipe", type=Path, help=f"a recipe such as recipes/qwen2b_{stage}.yaml")
    parser.add_argument("--dry-run", action="store_true", help="check everything, show the plan, change nothing")
    parser.add_argument(
        "--resume",
        default="auto",
        metavar="auto|never|weights|PATH",
        help="default: the newest whole checkpoint; weights: that, with a new optimizer, on another number of GPUs",
    )
    return parser.parse_known_args(argv)


# --- The launch: no GPU, one, or many; with DeepSpeed where it takes effect, saying where it does not.


def training_arguments(recipe: TrainRecipe, config_class: type, **ours: Any) -> Any:
    """trl's config from the recipe's `train:` section, fitted to this launch; says what it changed.

    It has to exist before the policy is loaded: with ZeRO-3 it makes transformers load the weights in parts. Every other
    model is loaded whole all the same (`probe.weights.loaded_whole`).

    Args:
        ours: fields of the config that no recipe sets.

    Raises:
        BadInput: the config refuses a value, or a file is missing.
    """
    import torch

    from probe.tracking import report_to

    given = fitted(recipe)
    on_gpu = torch.cuda.is_available() and not cpu_wanted(given)
    check_devices(given, on_gpu, cpu_wanted(given), torch.cuda.device_count())
    deepspeed = given.pop("deepspeed", None)
    if deepspeed is not None and _deepspeed_takes_effect(deepspeed, on_gpu):
        if isinstance(deepspeed, str) and not Path(deepspeed).is_file():
            raise BadInput(f"train.deepspeed: {deepspeed}: no such file; it is looked up from where the command runs")
        given["deepspeed"] = deepspeed
    if not on_gpu:
        given["use_cpu"] = True
        if launcher_deepspeed():
            reduce_with_gloo()
        elif given.get("bf16") and emulates_bfloat16():
            say("train.bf16: not used, this CPU has no bfloat16 instructions and is several times faster in float32")
            given["bf16"] = False
    try:
        args = config_class(**given, **ours, report_to=report_to(recipe.tracking))
    except ValueError as error:
        raise BadInput(f"train: {' '.join(str(error).split())}") from error
    if args.n_gpu > 1:
        # Left alone, transformers would spread this one process over all GPUs with nn.DataParallel.
        say(f"one process was started and trains on one of {args.n_gpu} GPUs; `accelerate launch` starts one for each")
        args._n_gpu = 1
    return args


def emulates_bfloat16() -> bool:
    """Whether this CPU has no instructions for bfloat16: on one with AVX2 alone products took 8 times as long as in float32."""
    import torch

    # torch tells of x86 alone; others are taken at the recipe's word.
    return platform.machine() in ("x86_64", "AMD64") and not (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def launcher_deepspeed() -> bool:
    """Whether `accelerate launch --config_file` has set DeepSpeed up already."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def cpu_wanted(given: dict[str, Any]) -> bool:
    """Whether the recipe's `train:` section, the launcher or DeepSpeed's own variable asks for CPUs."""
    return (
        bool(given.get("use_cpu"))
        or os.environ.get("ACCELERATE_USE_CPU", "false").lower() == "true"
        or os.environ.get("DS_ACCELERATOR") == "cpu"
    )


def check_devices(given: dict[str, Any], on_gpu: bool, for_cpus: bool, gpus: int) -> None:
    """What would otherwise fail late, or train on CPUs where GPUs were meant.

    Args:
        given: the recipe's `train:` section.
        gpus: that torch sees on this machine.

    Raises:
        BadInput: more processes on this machine than GPUs, or packing without one.
    """
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # accelerate does not pass `use_cpu` on to processes under DeepSpeed.
    on_cpus = for_cpus or (not gpus and launcher_deepspeed())
    if here > max(1, gpus) and not on_cpus:
        what = f"{gpus} GPUs are usable here" if gpus else "no GPU is usable here (python -m train.doctor says why)"
        raise BadInput(
            f"{here} processes were launched on this machine and {what}: give `accelerate launch` another "
            "--num_processes, or recipes/accelerate/cpu2_zero2.yaml for processes on CPUs"
        )
    if not on_gpu and (given.get("packing") or given.get("padding_free")):
        raise BadInput("train.packing and train.padding_free need a GPU: without, documents leak into each other")


def _deepspeed_takes_effect(config: Any, on_gpu: bool) -> bool:
    """Whether the recipe's DeepSpeed file holds in this launch; says why where it does not."""
    if launcher_deepspeed():
        reason = "the accelerate config in force brings its own"
    elif processes() == 1:
        reason = "one process runs without DeepSpeed"
    elif not on_gpu:
        reason = "on CPUs ZeRO comes from `accelerate launch --config_file recipes/accelerate/cpu2_zero2.yaml`"
    else:
        return True
    say(f"train.deepspeed {config}: not used, {reason}")
    return False


def reduce_with_gloo() -> None:
    """Keeps DeepSpeed on CPUs from compiling a helper of its own for sums among the processes of one machine.

    It takes a compiler and two minutes at the first start, under a lock that torch never breaks: a start that was killed
    meanwhile would leave every later one waiting for ever. torch's gloo does the same.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # where deepspeed/comm/torch.py, build_shm_op, looks


@contextmanager
def main_process_first(args: Any) -> Iterator[None]:
    """What stands in this block is done by the main process while the others wait, and then by them, who find it done.

    What they wait for is the hashes of all files that it has read.
    """
    from accelerate.utils import broadcast_object_list

    if args.process_index:
        sha256_of_seen.update(broadcast_object_list([None])[0])
    try:
        yield
    finally:  # also where it failed: they come to the same error
        if not args.process_index:
            broadcast_object_list([sha256_of_seen])


def launch_line(trainer: Any) -> str:
    """What this launch turned out to be, as the libraries see it: a wrong one trains without a word."""
    accelerator = trainer.accelerator
    plugin = accelerator.state.deepspeed_plugin
    kind = f"ZeRO-{plugin.zero_stage}" if plugin else accelerator.distributed_type.value.replace("NO", "no sharding")
    number = f"{accelerator.num_processes} process{'es' if accelerator.num_processes > 1 else ''}"
    # Of a PEFT model those that are frozen.
    weights = f"weights in {str(trainer.model.dtype).removeprefix('torch.')}"
    if plugin and plugin.zero_stage:
        weights += " with float32 copies of what is trained"
    per_device, accumulated = trainer.args.per_device_train_batch_size, trainer.args.gradient_accumulation_steps
    batch = per_device * accelerator.num_processes * accumulated
    return (
        f"launch    {kind} on {number}, {accelerator.device.type}, mixed precision {accelerator.mixed_precision}, "
        f"{weights}, {batch} a step ({per_device} a process x {accelerator.num_processes} x {accumulated} accumulated)"
    )


# --- The policy: the text-only folder, whole or with LoRA, as the launcher wants it.


def policy_folder(section: ModelSection) -> ModelFolder:
    """The folder that training starts from, where everything else finds the same weights: KL reference, vLLM, probe.

    A LoRA checkpoint is merged into a folder of its own, once, unless its adapter is to be trained on.

    Raises:
        ModelError: nothing is there under this name, or no adapter where one is to be continued.
    """
    folder = resolve(section.name)
    if section.lora is not None and section.lora.adapter == "continue":
        if folder.base is None:
            raise ModelError(f"model.lora.adapter: continue, but {section.name} is no LoRA checkpoint")
        return folder
    return merged_folder(folder)


def zero_in_force(args: Any) -> int:
    """The stage of ZeRO that this launch trains under, 0 without DeepSpeed; `args` is trl's config."""
    return int(args.deepspeed_plugin.zero_stage) if args.deepspeed_plugin is not None else 0


def held_in(section: ModelSection, zero: int) -> str:
    """The type that the weights are held in while they are trained: `section.dtype`, or float32 where all of them are
    trained and nothing keeps a float32 copy beside them.

    A bfloat16 has 8 significant bits, so that adding less than 1/512 of a number leaves it as it was: at 1e-6 AdamW's steps
    vanish in nearly all weights. ZeRO keeps such a copy at every stage (`single_partition_of_fp32_groups` of DeepSpeed's
    optimizers), and PEFT makes adapters float32; plain AdamW, alone or under DDP, has the weights themselves and no more.
    With float32 weights autocast still computes in bfloat16, as `train.bf16` says.

    Args:
        zero: the stage in force, 0 without DeepSpeed.
    """
    return section.dtype if section.lora is not None or zero else "float32"


def load_policy(
    folder: ModelFolder, section: ModelSection, dtype: str | None = None, checkpoint: Path | None = None
) -> Any:
    """The causal language model to train, on no device yet.

    Args:
        folder: from `policy_folder`; a LoRA checkpoint gives a PeftModel whose adapter is trained on.
        dtype: from `held_in`; left out, `section.dtype`.
        checkpoint: of this run, to take the weights from, or the adapter; the base stays the folder's.

    Raises:
        ModelError: the adapter does not fit its base.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    from transformers.integrations import is_deepspeed_zero3_enabled

    whole = folder.base or folder.path
    adapter = folder.path if folder.base is not None else None
    source = whole
    if checkpoint is not None:
        source, adapter = (checkpoint, None) if section.lora is None else (whole, checkpoint)
    model: Any = AutoModelForCausalLM.from_pretrained(
        source, dtype=getattr(torch, dtype or section.dtype), use_safetensors=True, trust_remote_code=False
    )
    # trl and PEFT look the base up by this name; it must be the text-only folder, not the multimodal original.
    model.config._name_or_path = str(whole)
    if adapter is not None:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="(?s).*missing adapter keys")
            try:
                # ZeRO-3 gathers small parameters in one buffer of one type, so that none may stay in float32.
                cast = not is_deepspeed_zero3_enabled()
                model = PeftModel.from_pretrained(model, adapter, is_trainable=True, autocast_adapter_dtype=cast)
            except (UserWarning, ValueError, RuntimeError) as error:
                reason = " ".join(str(error).split())
                raise ModelError(f"{adapter}: its adapter does not fit its base ({reason})") from error
    return model.train()


def new_adapter(section: ModelSection, model: Any) -> Any:
    """PEFT's config of the adapter that trl is to put on the model; None where it puts none, or the model has its own."""
    from peft import PeftModel

    if section.lora is None or section.lora.adapter == "continue" or isinstance(model, PeftModel):
        return None
    return lora_config(section.lora, model)


def lora_config(section: LoraSection, model: Any) -> Any:
    """PEFT's config with the target modules that `model` has.

    Raises:
        ModelError: the model has none of them.
    """
    from peft import LoraConfig

    there = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    targets = [name for name in section.target_modules if name in there]
    if not targets:
        raise ModelError(f"model.lora.target_modules: the model has none of {', '.join(section.target_modules)}")
    left_out = [name for name in section.target_modules if name not in there]
    if left_out:
        say(f"LoRA: this model has no {', '.join(left_out)}")
    return LoraConfig(
        r=section.r,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )


# --- The trainers: trl's own, and on CPUs without its fused head.
#
# The fused head never holds all logits, which a GPU needs, but computes them twice and accumulates in float32. On two cores
# SmolLM2 trained 1.5 times as fast without it (5.3 against 8.3 s a step); on one core GRPO took 1.4 times as long with it
# (10.8 against 7.6 s for 2 samples of 260 tokens). Losses and log probabilities are the same.


def trainer_class(args: Any) -> type:
    """trl's SFTTrainer; on CPUs with the model's own loss, where `loss_type` asks for no other."""
    from transformers import Trainer
    from trl import SFTTrainer

    if not args.use_cpu or args.loss_type != "nll":
        return SFTTrainer

    class CpuSFTTrainer(SFTTrainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            return Trainer.compute_loss(self, model, {**inputs, "use_cache": False}, return_outputs, num_items_in_batch)

    return CpuSFTTrainer


def dpo_trainer_class() -> type:
    """trl's DPOTrainer on rows that are token ids already, compared with the base in every launch.

    Of a model that comes with an adapter, as with `--resume weights`, trl would take a copy for the reference.
    """
    from trl import DPOTrainer

    class PairDPOTrainer(DPOTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if "ref" in getattr(self.model, "peft_config", {}):
                self.model.delete_adapter("ref")

        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

    return PairDPOTrainer


def grpo_trainer_class(args: Any) -> type:
    """trl's GRPOTrainer, which knows the rows of its prompts (`row_ids`); on CPUs with the model's own head.

    Nor does the one for CPUs compute the columns that are padding in all rows of a batch: trl pads all samples of a step to the
    longest one.
    """
    from trl import GRPOTrainer

    class RowGRPOTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.row_ids = [one["row"] for one in inputs]  # a rollout function is given the prompts alone
            return super()._generate_and_score_completions(inputs)

    if not args.use_cpu:
        return RowGRPOTrainer

    class CpuGRPOTrainer(RowGRPOTrainer):
        def _get_per_token_logps_and_entropies(
            self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, batch_size: int | None = None,
            compute_entropy: bool = False, **_: Any,
        ) -> tuple[Any, Any, None]:  # fmt: skip
            """Of `input_ids` [B, T]: log probabilities of the last `logits_to_keep` tokens [B, K], and entropies [B, K]."""
            import torch

            log_probs, entropies = [], []
            for rows in torch.arange(len(input_ids)).split(batch_size or len(input_ids)):
                # Prompts are padded on the left, completions on the right: [first, end) is what any of these rows uses.
                used = attention_mask[rows].any(dim=0).nonzero()[:, 0]
                first, end = int(used[0]), max(int(used[-1]), input_ids.shape[1] - logits_to_keep) + 1
                ids = input_ids[rows, first:end]
                after = input_ids.shape[1] - end
                kept = logits_to_keep - after
                with self.accelerator.autocast():
                    # One more than is kept: a token's probability stands at the position before it.
                    output = model(
                        input_ids=ids, attention_mask=attention_mask[rows, first:end], logits_to_keep=kept + 1,
                        use_cache=False,
                    )  # fmt: skip
                log_p = (output.logits[:, :-1].float() / self.temperature).log_softmax(dim=-1)
                picked = log_p.gather(-1, ids[:, -kept:, None])[..., 0]
                log_probs.append(torch.nn.functional.pad(picked, (0, after)))
                if compute_entropy:
                    with torch.set_grad_enabled(torch.is_grad_enabled() and self._entropy_bonus_enabled):
                        spread = -(log_p.exp() * log_p).sum(dim=-1)
                    entropies.append(torch.nn.functional.pad(spread, (0, after)))
            return torch.cat(log_probs), torch.cat(entropies) if compute_entropy else None, None

    return CpuGRPOTrainer


def quiet_trl() -> None:
    """Keeps two of trl's warnings out of the log: rollout_func is known to be experimental, and a sample without a
    reward, whose whole transcript trl would print, is counted by reason."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    logger = logging.getLogger("trl.trainer.grpo_trainer")
    if _scored not in logger.filters:
        logger.addFilter(_scored)


def _scored(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("All reward functions returned None")


def check_engine(args: Any) -> None:
    """Raises BadInput where `train.use_vllm` asks for what this machine has not got, before a model is loaded."""
    if not args.use_vllm:
        return
    if importlib.util.find_spec("vllm") is None:
        raise BadInput("train.use_vllm: vllm is not installed; pip install 'nextturn[gpu]', or give false")
    if args.use_cpu:
        raise BadInput("train.use_vllm: given true, wanted false without a GPU: trl's weight transfer needs one")


# --- The run's folder: recipe.json first, checkpoints and probes as they come, finished.json and the card last.

# What may differ when a run is taken up again: it changes what is kept or shown, or where and how patiently servers are
# asked, not what is computed.
_SERVED = ("price", "latency_s", "server.urls", "server.concurrency", "server.timeout_s", "server.max_wait_s")
_FREE = (
    *("tracking.", "train.logging_", "train.save_total_limit", "train.disable_tqdm", "probe.batch_tokens"),
    *("reward.max_failed", "reward.timeout_s", "reward.judge_timeout_s", "reward.workers", "train.vllm_server_"),
    *(f"{role}.{key}" for role in ("rollout.simulator", "reward.judge") for key in _SERVED),
)


def already_finished(run_dir: Path, recipe: TrainRecipe) -> bool:
    """Whether the folder holds a finished run of this recipe. Writes nothing: the input may still prove wrong.

    Raises:
        SettingsChanged: the folder holds a run of another recipe; the differing keys are named.
    """
    if (run_dir / "recipe.json").is_file():
        # Where a step's rows are stated, how many of them a process takes at once changes memory alone.
        free = (*_FREE, "train.per_device_train_batch_size") if stated_batch(recipe)[1] else _FREE
        refuse_changes(run_dir, "this run was begun", read_json(run_dir / "recipe.json"), recipe_dict(recipe), free)
    done = finished(run_dir)
    if done:
        say(f"{run_dir}: finished at step {done['step']}; nothing to do (delete the folder to train again)")
    return done is not None


def claim(run_dir: Path, recipe: TrainRecipe) -> None:
    """Writes recipe.json, once all input has been found good, and before it what the run starts from; on the main process."""
    if is_main_process() and not (run_dir / "recipe.json").is_file():
        write_base(run_dir, policy_folder(recipe.model))
        write_json(run_dir / "recipe.json", recipe_dict(recipe))


def conclude(
    run_dir: Path, trainer: Any, recipe: TrainRecipe, summary: tuple[str, str], **facts: dict[str, Any]
) -> None:
    """Writes the model card and the mark of a finished run; on the main process.

    Args:
        summary: what the card says was done to the model and on what, such as ("fine-tuned", "on 12 conversations: ...").
        facts: counts for finished.json.
    """
    if not trainer.accelerator.is_main_process:
        return
    step = trainer.state.global_step
    comparison = run_dir / "probe" / "comparison" / "comparison.md"
    table = comparison.read_text(encoding="utf-8") if comparison.is_file() else "# Not probed during training\n"
    table = table.replace("\n#", "\n##").replace("(tradeoff.png)", "(probe/comparison/tradeoff.png)")
    anew = [row["step"] for row in trainer.state.log_history if "optimizer_anew" in row]
    since = f"The optimizer began anew at step {', '.join(map(str, anew))} (`--resume weights`). " if anew else ""
    card = f"""# {run_dir.name}

{recipe.model.name}, {summary[0]} for {step} steps ({"LoRA" if recipe.model.lora else "all weights"}) {summary[1]}
{since}Data: {recipe.data.path or recipe.data.recipe}. Weights: `checkpoint-{step}/`.

#{table}
## Recipe

```json
{json.dumps(recipe_dict(recipe), indent=2)}
```
"""
    write_atomic(run_dir / "README.md", card)
    finish_run(run_dir, step, sha256_text(json.dumps(recipe_dict(recipe), sort_keys=True)), **facts)
    print(f"finished: {run_dir / f'checkpoint-{step}'}; model card {run_dir / 'README.md'}")


def reward_line(history: Sequence[Mapping[str, Any]]) -> str:
    """For the model card: the mean reward at the beginning and at the end of the run, from the trainer's log.

    The interval is Welch's for the means of two samples, each step's mean counting once.
    """
    rewards = [row["reward"] for row in history if row.get("reward") is not None]
    if not rewards:
        return "No reward was logged."
    fifth = max(1, len(rewards) // 5)
    first, last = rewards[:fifth], rewards[-fifth:]
    said = f"Mean reward: {fmean(first):.3f} in the first fifth of the logged steps, {fmean(last):.3f} in the last"
    if len(set(first)) < 2 and len(set(last)) < 2:  # nothing to take an interval from
        return f"{said}."
    from scipy.stats import ttest_ind

    low, high = ttest_ind(last, first, equal_var=False).confidence_interval(0.95)
    return f"{said}: {fmean(last) - fmean(first):+.3f} [{low:+.3f}, {high:+.3f}]."
