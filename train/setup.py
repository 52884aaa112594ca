"""The launch: its devices and processes, DeepSpeed, trl's arguments in it, and work that process 0 does first."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from nextturn.probe.command.errors import BadInput, NextturnError, one_line, require
from nextturn.probe.command.terminal import is_main_process, processes, say
from nextturn.probe.models.folders import emulates_bfloat16, usable_dtype
from nextturn.train.sections import TrainRecipe, fitted

T = TypeVar("T")


# --- Devices and trl's arguments.


def training_arguments(recipe: TrainRecipe, config_class: type, **fixed: Any) -> Any:
    """Return trl's config from the recipe's `train:` section, fitted to this launch, and print what was changed.

    This creates the process group. Call it before the policy is loaded and after every other model: with ZeRO-3 it makes
    transformers load weights in parts, on all processes together.

    Args:
        fixed: Fields of the config that no recipe sets.

    Raises:
        BadInput: The config refuses a value, or a file is missing.
    """
    from nextturn.train.overrides import reduce_with_gloo, use_one_gpu

    given = fitted(recipe)
    given.pop("push_to_hub", None)  # train/push.py pushes
    on_gpu = trains_on_gpus(given)
    if (deepspeed := given.get("deepspeed")) is not None:
        if reason := _no_deepspeed(on_gpu):
            say(f"train.deepspeed {deepspeed}: not used, {reason}")
            del given["deepspeed"]
        elif isinstance(deepspeed, str) and not Path(deepspeed).is_file():
            raise BadInput(f"train.deepspeed: {deepspeed}: no such file; paths start where the command runs")
    if not on_gpu:
        given["use_cpu"] = True
        share_cores()
        # DeepSpeed, where it is installed, warns in every run that it found no GPU.
        logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator" not in record.getMessage())
        if launcher_deepspeed():
            reduce_with_gloo()
        elif given.get("bf16", not given.get("fp16")) and emulates_bfloat16():  # trl's default is bfloat16
            if "bf16" in given:
                say(
                    "train.bf16: not used, since this CPU has no bfloat16 instructions; float32 is several times faster"
                )
            given["bf16"] = False
    try:
        args = config_class(**given, **fixed, report_to=recipe.tracking.to)
    except ValueError as error:
        raise BadInput(f"train: {' '.join(str(error).split())}") from error
    if args.n_gpu > 1:
        say(f"one process was started and trains on one of {args.n_gpu} GPUs; `accelerate launch` starts one for each")
        use_one_gpu(args)
    return args


def share_cores() -> None:
    """Share the machine's cores among its processes, unless the user set a number of threads: a launcher sets one thread."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if os.environ.get("OMP_NUM_THREADS") == "1" and launcher_set_threads(Path(f"/proc/{os.getppid()}")):
        torch.set_num_threads(max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    say(f"threads   {torch.get_num_threads()} a process, {cores} cores; OMP_NUM_THREADS changes it")


def launcher_set_threads(parent: Path) -> bool:
    """Return True if this process's parent (its folder in /proc) is a launcher that got no number of threads from the user."""
    try:
        command, variables = ((parent / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
    except OSError:  # no /proc, or another user's process
        return False
    launches = any(b"accelerate" in word or b"torch" in word for word in command[:3])
    given = [*variables, *(b"OMP_NUM_THREADS=" for word in command if word.startswith(b"--num_cpu_threads"))]
    return launches and not any(each.startswith(b"OMP_NUM_THREADS=") for each in given)


def dtype_here(dtype: str, args: Any, key: str = "model.dtype") -> str:
    """Return `dtype`, or float32 for a CPU without bfloat16 instructions.

    Args:
        args: trl's config.
        key: The recipe key that says `dtype`, for the message.
    """
    return usable_dtype(dtype, "cpu", key) if args.use_cpu and not launcher_deepspeed() else dtype


def launcher_deepspeed() -> bool:
    """Return True if the config of `accelerate launch` has set DeepSpeed up."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def cpu_wanted(given: dict[str, Any]) -> bool:
    """Return True if the recipe's `train:` section, the launcher or `DS_ACCELERATOR` selects CPU training."""
    return (
        bool(given.get("use_cpu"))
        or os.environ.get("ACCELERATE_USE_CPU", "false").lower() == "true"
        or os.environ.get("DS_ACCELERATOR") == "cpu"
    )


def trains_on_gpus(given: dict[str, Any]) -> bool:
    """Return True if this launch trains on GPUs. Raises BadInput, see `check_devices`."""
    import torch

    on_gpu = torch.cuda.is_available() and not cpu_wanted(given)
    check_devices(given, on_gpu, cpu_wanted(given), torch.cuda.device_count())
    return on_gpu


def check_devices(given: dict[str, Any], on_gpu: bool, for_cpus: bool, gpus: int) -> None:
    """Raise an error for settings that would fail after startup, or would train on CPUs although GPUs are present.

    Args:
        given: The recipe's `train:` section.
        on_gpu: Whether this launch trains on GPUs.
        for_cpus: Whether CPUs were asked for.
        gpus: The number of GPUs that torch sees on this machine.

    Raises:
        BadInput: More processes than GPUs on this machine, a setting that needs a GPU, or a library that is not installed.
    """
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # accelerate does not pass `use_cpu` on to processes under DeepSpeed.
    on_cpus = for_cpus or (not gpus and launcher_deepspeed())
    if here > max(1, gpus) and not on_cpus:
        usable = f"{gpus} GPUs are usable here" if gpus else "no GPU is usable here (`nextturn doctor` says why)"
        raise BadInput(
            f"{here} processes were launched on this machine and {usable}: give `accelerate launch` another "
            "--num_processes, or recipes/accelerate/cpu2_zero2.yaml for processes on CPUs"
        )
    uses_deepspeed = launcher_deepspeed() or (given.get("deepspeed") and not _no_deepspeed(on_gpu))
    for key, used, package, extra in (
        ("train.deepspeed", uses_deepspeed, "deepspeed", "deepspeed"),
        ("train.use_vllm", given.get("use_vllm"), "vllm", "vllm"),
    ):
        if used:
            require(package, extra, f"{key}: given")
    if given.get("use_vllm") and not on_gpu:
        raise BadInput("train.use_vllm: given true, expected false without a GPU: trl's weight transfer needs one")


def _no_deepspeed(on_gpu: bool) -> str:
    """Return why the recipe's DeepSpeed file has no effect in this launch; empty if it has."""
    if launcher_deepspeed():
        return "the accelerate config in force brings its own"
    if processes() == 1:
        return "one process runs without DeepSpeed"
    if not on_gpu:
        return "on CPUs ZeRO comes from `accelerate launch --config_file recipes/accelerate/cpu2_zero2.yaml`"
    return ""


def launch_line(trainer: Any) -> str:
    """Describe this launch in the libraries' own terms, since a wrong launch trains without any message."""
    accelerator = trainer.accelerator
    plugin = accelerator.state.deepspeed_plugin
    kind = f"ZeRO-{plugin.zero_stage}" if plugin else accelerator.distributed_type.value.replace("NO", "no sharding")
    number = f"{accelerator.num_processes} process{'es' if accelerator.num_processes > 1 else ''}"
    # Of a PEFT model, the dtype of the frozen weights.
    weights = f"weights in {str(trainer.model.dtype).removeprefix('torch.')}"
    if plugin and plugin.zero_stage:
        weights += " with float32 copies of what is trained"
    per_device, accumulated = trainer.args.per_device_train_batch_size, trainer.args.gradient_accumulation_steps
    batch = per_device * accelerator.num_processes * accumulated
    return (
        f"launch    {kind} on {number}, {accelerator.device.type}, mixed precision {accelerator.mixed_precision}, "
        f"{weights}, {batch} a step ({per_device} a process x {accelerator.num_processes} x {accumulated} accumulated)"
    )


# --- Work on process 0, for which the others wait.

_stores: list[Any] = []  # torch's store, kept while the process lives: process 0 may be the one that serves it
_turns = count()


def on_main_process(task: str, work: Callable[[], T]) -> T:
    """Run `work` on process 0 and return its result on every process. All processes make these calls in the same order.

    The other processes wait at the key-value store of torch's rendezvous (MASTER_ADDR:MASTER_PORT), not in a collective.
    So no process group is needed yet, and no time limit but a week. The store belongs to this launch alone: nothing from an
    earlier launch can be mistaken for a result, and the nodes need no shared folder for it.

    Args:
        task: What `work` does, such as "build the data", for messages.
        work: Returns something small (8 MB) that can be pickled.

    Raises:
        NextturnError: On every process: the error of `work`, or process 0 has ended.
    """
    if processes() == 1:
        return work()
    from torch.distributed import DistError, PrefixStore, rendezvous

    _stores[:] = _stores or [next(rendezvous("env://"))[0]]
    store: Any = PrefixStore(f"nextturn/{next(_turns)}", _stores[0])
    result: Any = None
    error: Exception | None = None
    try:
        if is_main_process():
            try:
                result = work()
            except Exception as raised:  # noqa: BLE001 - raised again below, on every process
                error = raised
            shared = error
            if error is not None and not isinstance(error, NextturnError):  # which might not survive pickling
                shared = NextturnError(f"process 0 could not {task}: {type(error).__name__}: {one_line(error)}")
            store.set("outcome", pickle.dumps((result, shared)))
        else:
            if os.environ.get("LOCAL_RANK") == "0":  # one process of each other node
                print(f"waiting for process 0 to {task}", flush=True)
            store.wait(["outcome"], timedelta(weeks=1))
            result, error = pickle.loads(store.get("outcome"))
        store.add("read", 1)
        while is_main_process() and store.add("read", 0) < processes():  # the store may end with this process
            time.sleep(0.1)
    except DistError as lost:
        raise NextturnError(f"a process ended while process 0 was to {task}; its own message says why") from lost
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


def check_shared(path: Path) -> None:
    """Check that all processes see `path`. Needs the process group.

    Raises:
        BadInput: On every process, if one of them does not see it.
    """
    from accelerate.utils import gather_object

    blind = [] if path.exists() else [f"process {os.environ.get('RANK', 0)} on {socket.gethostname()}"]
    if processes() > 1 and (blind := gather_object(blind)):
        raise BadInput(
            f"{path}: not seen by {', '.join(blind)}; all nodes must see this folder, such as on a shared disk"
        )
