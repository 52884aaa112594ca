"""Fits a recipe to its launch: no GPU, one, or many; with DeepSpeed where it takes effect, saying where it does not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.errors import BadInput
from probe.processes import processes, say
from probe.watch import command

if TYPE_CHECKING:
    from train.grpo_recipe import GrpoRecipe
    from train.recipe import SftRecipe


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


def training_arguments(recipe: SftRecipe | GrpoRecipe, config_class: type, **ours: Any) -> Any:
    """trl's config from the recipe's `train:` section, fitted to this launch; says what it changed.

    It has to exist before the model is loaded: with ZeRO-3 it makes transformers load the weights in parts.

    Args:
        ours: fields of the config that no recipe sets.

    Raises:
        BadInput: the config refuses a value, or a file is missing.
    """
    import torch

    from probe.tracking import report_to

    given = recipe.train.model_dump(exclude_unset=True)  # type: ignore[attr-defined]
    on_gpu = torch.cuda.is_available() and not cpu_wanted(given)
    check_launch(given, on_gpu, cpu_wanted(given), torch.cuda.device_count())
    deepspeed = given.pop("deepspeed", None)
    if deepspeed is not None:
        refusal = _deepspeed_refusal(on_gpu)
        if refusal is None:
            given["deepspeed"] = _existing(deepspeed)
        else:
            say(f"train.deepspeed {deepspeed}: {refusal}")
    if not on_gpu:
        given["use_cpu"] = True
        if launcher_deepspeed() and (waiting := helper_lock()):
            say(waiting)
    try:
        args = config_class(**given, **ours, report_to=report_to(recipe.tracking))
    except ValueError as error:
        raise BadInput(f"train: {' '.join(str(error).split())}") from error
    if args.n_gpu > 1:
        # Left alone, transformers would spread this one process over all GPUs with nn.DataParallel.
        say(f"one process was started and trains on one of {args.n_gpu} GPUs; `accelerate launch` starts one for each")
        args._n_gpu = 1
    return args


def check_launch(given: dict[str, Any], on_gpu: bool, for_cpus: bool, gpus: int) -> None:
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


def _deepspeed_refusal(on_gpu: bool) -> str | None:
    """Why the recipe's DeepSpeed file does not take effect in this launch, or None."""
    if launcher_deepspeed():
        return "not used, the accelerate config in force brings its own"
    if processes() == 1:
        return "not used, one process runs without DeepSpeed"
    if not on_gpu:
        return "not used, on CPUs ZeRO comes from `accelerate launch --config_file recipes/accelerate/cpu2_zero2.yaml`"
    return None


def _existing(path: Any) -> Any:
    if isinstance(path, str) and not Path(path).is_file():
        raise BadInput(f"train.deepspeed: {path}: no such file; it is looked up from where the command runs")
    return path


def helper_lock() -> str | None:
    """What to say where a start under ZeRO on CPUs will wait for a lock, silently and perhaps for ever.

    The first such start compiles a helper of DeepSpeed, for a minute or more, under a lock that torch never breaks; a
    start that is killed meanwhile leaves it behind.
    """
    locks = helper_locks()
    if not locks:
        return None
    return (
        f"DeepSpeed's helper is being compiled by another start, or one was killed meanwhile: {locks[0]} is there. "
        "If no compiler is running, delete that file, or this start waits for ever"
    )


def helper_locks() -> list[Path]:
    """The locks under which DeepSpeed's helper for CPUs is compiled."""
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or "~/.cache/torch_extensions").expanduser()
    return sorted(folder.glob("**/deepspeed_shm_comm/lock"))


def trainer_class(args: Any) -> type:
    """trl's SFTTrainer; on CPUs with the model's own loss in place of trl's fused head.

    The fused head never holds all logits, which a GPU needs, but computes them twice and accumulates in float32:
    on two cores SmolLM2 trained 1.5 times as fast without it (5.3 against 8.3 s a step). The loss is the same.
    """
    from transformers import Trainer
    from trl import SFTTrainer

    if not args.use_cpu:
        return SFTTrainer

    class CpuSFTTrainer(SFTTrainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            return Trainer.compute_loss(self, model, {**inputs, "use_cache": False}, return_outputs, num_items_in_batch)

    return CpuSFTTrainer


def watch_line(run_dir: Path) -> str:
    """How to measure a run with `probe.when: watch`, which starts no probe of its own."""
    return f"probe     not here; start it in this directory, on another GPU or machine: {command(run_dir)}"


def launch_line(trainer: Any) -> str:
    """What this launch turned out to be, as the libraries see it: a wrong one trains without a word."""
    accelerator = trainer.accelerator
    plugin = accelerator.state.deepspeed_plugin
    kind = f"ZeRO-{plugin.zero_stage}" if plugin else accelerator.distributed_type.value.replace("NO", "no sharding")
    number = f"{accelerator.num_processes} process{'es' if accelerator.num_processes > 1 else ''}"
    return f"launch    {kind} on {number}, {accelerator.device.type}, mixed precision {accelerator.mixed_precision}"
