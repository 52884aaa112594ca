"""What the stages train with: the launch and trl's arguments in it, the policy, trl's trainers as a CPU and rollouts need them."""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nextturn.probe.errors import BadInput, ModelError, NextturnError, one_line
from nextturn.probe.models import ModelFolder, emulates_bfloat16, merged_folder, resolve
from nextturn.probe.terminal import is_main_process, processes, say
from nextturn.train.recipe import ModelSection, fitted

if TYPE_CHECKING:
    from nextturn.train.recipe import TrainRecipe

T = TypeVar("T")


# --- The launch: no GPU, one, or many; with DeepSpeed where it takes effect, saying where it does not.


def training_arguments(recipe: TrainRecipe, config_class: type, **ours: Any) -> Any:
    """Return trl's config from the recipe's `train:` section, fitted to this launch, and print what was changed.

    This creates the process group. It must run before the policy is loaded and after every other model: with ZeRO-3 it makes
    transformers load weights in parts, on all processes together.

    Args:
        ours: fields of the config that no recipe sets.

    Raises:
        BadInput: the config refuses a value, or a file is missing.
    """
    given = fitted(recipe)
    on_gpu = trains_on_gpus(given)
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
        args = config_class(**given, **ours, report_to=recipe.tracking.to)
    except ValueError as error:
        raise BadInput(f"train: {' '.join(str(error).split())}") from error
    if args.n_gpu > 1:
        # Left alone, transformers would spread this one process over all GPUs with nn.DataParallel.
        say(f"one process was started and trains on one of {args.n_gpu} GPUs; `accelerate launch` starts one for each")
        args._n_gpu = 1
    return args


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


def trains_on_gpus(given: dict[str, Any]) -> bool:
    """Return True if this launch trains on GPUs. Raises BadInput, see `check_devices`."""
    import torch

    on_gpu = torch.cuda.is_available() and not cpu_wanted(given)
    check_devices(given, on_gpu, cpu_wanted(given), torch.cuda.device_count())
    return on_gpu


def check_devices(given: dict[str, Any], on_gpu: bool, for_cpus: bool, gpus: int) -> None:
    """What would otherwise fail late, or train on CPUs where GPUs were meant.

    Args:
        given: the recipe's `train:` section.
        gpus: that torch sees on this machine.

    Raises:
        BadInput: more processes on this machine than GPUs, packing without a GPU, or DeepSpeed is not installed.
    """
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # accelerate does not pass `use_cpu` on to processes under DeepSpeed.
    on_cpus = for_cpus or (not gpus and launcher_deepspeed())
    if here > max(1, gpus) and not on_cpus:
        what = f"{gpus} GPUs are usable here" if gpus else "no GPU is usable here (nextturn doctor says why)"
        raise BadInput(
            f"{here} processes were launched on this machine and {what}: give `accelerate launch` another "
            "--num_processes, or recipes/accelerate/cpu2_zero2.yaml for processes on CPUs"
        )
    takes_effect = launcher_deepspeed() or (given.get("deepspeed") and on_gpu and processes() > 1)
    if takes_effect and importlib.util.find_spec("deepspeed") is None:
        raise BadInput(
            "train.deepspeed: deepspeed is not installed; pip install 'nextturn[deepspeed]', or launch without DeepSpeed"
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


# How often process 0 reports to the waiting processes, how often these look, and after what silence they give up.
_BEAT_S, _LOOK_S, _SILENCE_S = 2.0, 0.2, 300.0
_stores: list[Any] = []  # torch's store, for as long as the process lives: process 0 may be the one that serves it
_turns = count()


def on_main_process(to_do: str, work: Callable[[], T]) -> T:
    """Run `work` on process 0 and return its result on every process. All processes make these calls in the same order.

    The other processes wait at the key-value store of torch's rendezvous (MASTER_ADDR:MASTER_PORT), not in a collective.
    So there is no time limit and no process group is needed yet. The store belongs to this launch alone: nothing that an
    earlier launch left behind can be mistaken for a result, and the nodes need no shared folder for it.

    Args:
        to_do: What `work` does, such as "build the data", for messages.
        work: Its result must be small (8 MB) and is pickled.

    Raises:
        NextturnError: On every process: the error of `work`, or process 0 ended or was silent for five minutes.
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
            with _reporting(store):
                try:
                    result = work()
                except Exception as raised:  # noqa: BLE001 - raised again below, and told to the others
                    error = raised
            told = error
            if error is not None and not isinstance(error, NextturnError):  # which might not survive pickling
                told = NextturnError(f"process 0 could not {to_do}: {type(error).__name__}: {one_line(error)}")
            store.set("outcome", pickle.dumps((result, told)))
        else:
            _wait_for_main_process(store, to_do)
            result, error = pickle.loads(store.get("outcome"))
        store.add("read", 1)
        while is_main_process() and store.add("read", 0) < processes():  # it may serve the store, which ends with it
            time.sleep(_LOOK_S)
    except DistError as lost:
        raise NextturnError(f"a process ended while process 0 was to {to_do}; its own message says why") from lost
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


@contextmanager
def _reporting(store: Any) -> Iterator[None]:
    """Count up "alive" in the store while the block runs."""
    done = threading.Event()

    def report() -> None:
        while not done.wait(_BEAT_S):
            store.add("alive", 1)

    threading.Thread(target=report, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _wait_for_main_process(store: Any, to_do: str) -> None:
    """Return once process 0 has stored its outcome; on the other nodes one process prints a line every minute."""
    begun = changed = time.monotonic()
    alive = minutes = 0
    while not store.check(["outcome"]):
        time.sleep(_LOOK_S)
        before, alive, now = alive, store.add("alive", 0), time.monotonic()
        changed = now if alive != before else changed
        if now - changed > _SILENCE_S:
            raise NextturnError(f"process 0, which was to {to_do}, has not reported for {_SILENCE_S:.0f} s")
        if now - begun > 60 * (minutes + 1) and os.environ.get("LOCAL_RANK") == "0":
            minutes += 1
            print(f"waiting for process 0 to {to_do}: {minutes} min", flush=True)


def check_shared(path: Path) -> None:
    """Raise BadInput on every process unless all of them see `path`. Needs the process group."""
    from accelerate.utils import gather_object

    blind = [] if path.exists() else [f"process {os.environ.get('RANK', 0)} on {socket.gethostname()}"]
    if processes() > 1 and (blind := gather_object(blind)):
        raise BadInput(
            f"{path}: not seen by {', '.join(blind)}; all nodes must see this folder, such as on a shared disk"
        )


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
    if section.continues_adapter:
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


ADAPTER = "default"
"""PEFT's name of the adapter that is trained, whose files stand in the folder itself and not in one of its own."""


def load_policy(
    folder: ModelFolder, section: ModelSection, dtype: str | None = None, checkpoint: Path | None = None
) -> Any:
    """The causal language model to train, on no device yet.

    Args:
        folder: from `policy_folder`; a LoRA checkpoint gives a PeftModel whose adapter is trained on.
        dtype: from `held_in`; left out, `section.dtype`.
        checkpoint: of this run, to take all weights from; an adapter comes later, by `take_adapter`.

    Raises:
        ModelError: the adapter does not fit its base.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    whole = folder.base or folder.path
    model: Any = AutoModelForCausalLM.from_pretrained(
        checkpoint or whole, dtype=getattr(torch, dtype or section.dtype), use_safetensors=True, trust_remote_code=False
    )
    # trl and PEFT look the base up by this name; it must be the text-only folder, not the multimodal original.
    model.config._name_or_path = str(whole)
    if folder.base is not None:
        with _fitting(folder.path), warnings.catch_warnings():
            warnings.filterwarnings("error", message="(?s).*missing adapter keys")
            model = PeftModel.from_pretrained(
                model, folder.path, is_trainable=True, autocast_adapter_dtype=_adapter_in_float32()
            )
    return model.train()


def take_adapter(model: Any, checkpoint: Path) -> None:
    """Puts a checkpoint's adapter in place of the one that is trained.

    Call it once the trainer is made: it takes what it is made with for its reference, which is to be what the run began
    from.

    Raises:
        ModelError: the adapter does not fit the model.
    """
    with _fitting(checkpoint):
        loaded = model.load_adapter(
            checkpoint, ADAPTER, is_trainable=True, autocast_adapter_dtype=_adapter_in_float32()
        )
        if loaded.missing_keys:
            raise ValueError(f"it lacks {', '.join(loaded.missing_keys[:3])}")


@contextmanager
def _fitting(adapter: Path) -> Iterator[None]:
    try:
        yield
    except (UserWarning, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{adapter}: its adapter does not fit its base ({reason})") from error


def _adapter_in_float32() -> bool:
    """ZeRO-3 gathers small parameters in one buffer of one type, so that none may stay in float32."""
    from transformers.integrations import is_deepspeed_zero3_enabled

    return not is_deepspeed_zero3_enabled()


def new_adapter(section: ModelSection, model: Any) -> Any:
    """PEFT's config of the adapter that trl is to put on the model, with the target modules that it has; None where it puts
    none, or the model has its own.

    Raises:
        ModelError: the model has none of the target modules.
    """
    from peft import LoraConfig

    lora = section.lora
    if lora is None or section.continues_adapter:
        return None
    there = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    targets = [name for name in lora.target_modules if name in there]
    if not targets:
        raise ModelError(f"model.lora.target_modules: the model has none of {', '.join(lora.target_modules)}")
    if left_out := [name for name in lora.target_modules if name not in there]:
        say(f"LoRA: this model has no {', '.join(left_out)}")
    return LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets, task_type="CAUSAL_LM"
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
    """trl's DPOTrainer on rows that are token ids already."""
    from trl import DPOTrainer

    class PairDPOTrainer(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

    return PairDPOTrainer


def grpo_trainer_class(args: Any) -> type:
    """trl's GRPOTrainer, which knows the rows of its prompts (`row_ids`), and the advantages of all processes' samples in the
    last generation that was trained on (`trained_advantages`); on CPUs with the model's own head.

    Nor does the one for CPUs compute the columns that are padding in all rows of a batch: trl pads all samples of a step to the
    longest one.

    Of a model that comes with its adapter trl keeps a second one, `ref`, a copy for the KL reference. Checkpoints are without
    it, since every launch makes it again from where the run began; transformers, which finds it in older ones, would load it
    and leave the trained one out.
    """
    from peft import PeftModel
    from trl import GRPOTrainer

    class RowGRPOTrainer(GRPOTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if isinstance(self.model, PeftModel):
                self.model.save_pretrained = partial(self.model.save_pretrained, selected_adapters=[ADAPTER])

        def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
            if isinstance(self.model, PeftModel):
                take_adapter(self.model, Path(resume_from_checkpoint))
            else:
                super()._load_from_checkpoint(resume_from_checkpoint, model)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.row_ids = [one["row"] for one in inputs]  # a rollout function is given the prompts alone
            scored = super()._generate_and_score_completions(inputs)
            if self.model.training:  # trl keeps the last ones of all processes, those of an evaluation as well
                self.trained_advantages = list(self._logs["advantages"])
            return scored

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
