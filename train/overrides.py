"""Everything that nextturn overrides in trl, transformers, accelerate and DeepSpeed.

Each override has comments that say what it relies on: library and version, digests of a source that are known to work, the
source's name, and the line that matters. With another source of trl this module refuses to be imported, and
tests/train/test_overrides.py fails with another source of any of the libraries. Then read the new source, change the override if
needed, and record the digest that the message has, behind a comma.

The module imports trl's trainers, which takes seconds, so it is itself imported only when a stage is about to train.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from torch.utils.data import RandomSampler, Sampler
from transformers import Trainer
from transformers.integrations import WandbCallback
from transformers.trainer_pt_utils import LengthGroupedSampler
from trl import DPOTrainer, GRPOTrainer, SFTTrainer
from trl.generation import vllm_generation

from nextturn.probe.command.errors import BadInput, TrainingStopped, one_line
from nextturn.probe.command.files import sha256_text
from nextturn.probe.models.weights import adapted_weight
from nextturn.probe.report.tracking import leave_run
from nextturn.train.policy import ADAPTER, load_adapter, zero_in_force
from nextturn.train.resume import this_launch

# --- The sources that are relied on.

_RELIED_ON = re.compile(r"# Relies on (\w+) (\S+) \(([\w, ]+)\) (\S+)\n *#   (.+)\n")


def changed_sources(*libraries: str) -> Iterator[str]:
    """Yield the functions of installed libraries whose source is not known, each with its digest."""
    for library, read_in, digests, name, line in _RELIED_ON.findall(Path(__file__).read_text(encoding="utf-8")):
        if library in libraries:
            found = pkgutil.resolve_name(name)
            source = inspect.getsource(inspect.unwrap(getattr(found, "func", found)))  # `func`: of a cached property
            digest = sha256_text(source)[:12]
            if line not in source or digest not in digests.split(", "):
                yield f"{name} of {library} {version(library)} ({digest}), known from {read_in}"


if _changed := list(changed_sources("trl")):
    raise BadInput(f"this version of trl is not known to nextturn: {'; '.join(_changed)}; pip install 'trl==1.16.0'")

# --- Resuming: transformers' Trainer.


class ResumableTrainer(Trainer):
    """A Trainer that resumes in the middle of an epoch and after its last step.

    It comes before trl's trainer in the bases of the trainers below, so that `super()` is trl's method.
    """

    # Relies on transformers 5.17.0 (ebe374933064) transformers.trainer:Trainer._run_epoch
    #   train_dataloader = skip_first_batches(train_dataloader, steps_trained_in_current_epoch)
    # Relies on transformers 5.17.0 (59b69168df65) transformers.trainer:Trainer._inner_training_loop
    #   if self.control.should_training_stop:
    def _run_epoch(self, **arguments: Any) -> None:
        """Train one epoch, unless the run has made its last step, which transformers checks only after a step."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(**arguments)
        else:
            self.control.should_training_stop = True

    # Relies on transformers 5.17.0 (1580d7493244) transformers.trainer:Trainer._get_train_sampler
    #   return LengthGroupedSampler(
    # Relies on trl 1.16.0 (36497afb4d31) trl.trainer.grpo_trainer:GRPOTrainer._get_train_sampler
    #   seed=self.args.seed,
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Return a sampler whose order depends on the seed and the epoch only.

        A resumed run skips the rows of the epoch that it has trained on, so the order has to be the same again.
        transformers draws that of `group_by_length` from the random numbers of the process before it restores them, and
        trl's sampler of prompts begins with the order of the first epoch at every start. accelerate seeds a RandomSampler
        itself.
        """
        sampler = super()._get_train_sampler(train_dataset)
        if isinstance(sampler, LengthGroupedSampler):
            # transformers groups the rows of one process. Those of a step are as many on any number of processes.
            sampler.batch_size = this_launch(self.args).per_step
        if isinstance(sampler, RandomSampler) or not hasattr(sampler, "generator"):
            return sampler
        return EpochSampler(sampler, self)

    # Relies on transformers 5.17.0 (a9111e30faa9) transformers.trainer:Trainer._save_checkpoint
    #   self._save_optimizer_and_scheduler(output_dir)
    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save a checkpoint.

        Raises:
            TrainingStopped: It cannot be written. Only some of the errors of a full disk are an OSError: safetensors has its
                own, and torch raises a RuntimeError of its writer.
        """
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, SafetensorError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not re.search("inline_container|iostream", str(error)):
                raise
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            raise TrainingStopped(
                f"{folder}: cannot be written ({one_line(error)}); check the disk's free space and the folder's permissions. "
                "The same command resumes from the checkpoint before"
            ) from error

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Write no card: trl's, written at each checkpoint, names no base. A finished run gets the project's own."""


class EpochSampler(Sampler[int]):
    """A sampler that seeds another one by the trainer's epoch at the start of each iteration.

    It reads the epoch from the trainer, because transformers' `set_epoch` does not reach it through accelerate's samplers.
    """

    def __init__(self, sampler: Any, trainer: Any) -> None:
        self.sampler, self.trainer = sampler, trainer

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        args, epoch = self.trainer.args, int(self.trainer.state.epoch)
        seed = args.seed if args.data_seed is None else args.data_seed
        self.sampler.generator = torch.Generator().manual_seed(seed + epoch)
        return iter(self.sampler)


# --- The stages' trainers.


class ConversationTrainer(ResumableTrainer, SFTTrainer):
    """trl's SFTTrainer; on CPUs with the model's own head in place of trl's fused head.

    The fused head never holds all logits, which saves a GPU's memory, but computes them twice and accumulates in float32. On
    a CPU training is faster without it. The loss is the same.
    """

    # Relies on trl 1.16.0 (ca448211ff65) trl.trainer.sft_trainer:SFTTrainer.compute_loss
    #   outputs = model(**inputs, fused_lm_head=True)
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if self.args.use_cpu and self.args.loss_type == "nll":
            return Trainer.compute_loss(self, model, {**inputs, "use_cache": False}, return_outputs, num_items_in_batch)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    # Relies on transformers 5.17.0 (35a11f83d269) transformers.trainer:Trainer.evaluation_loop
    #   losses, logits, labels = self.prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)
    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate with the mean loss over all tokens. transformers takes the mean of each batch, and then of the batches, so that
        its figure depends on the batch size. Rows that accelerate repeats to fill the last batches of several processes count."""
        self._evaluated = torch.zeros(
            2, dtype=torch.float64 if self.args.use_cpu else torch.float32, device=self.args.device
        )
        output = super().evaluation_loop(*args, **kwargs)
        loss, tokens = self.accelerator.reduce(self._evaluated, "sum").tolist()
        (name,) = (name for name in output.metrics if name.endswith("_loss"))
        output.metrics[name] = loss / tokens
        return output

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = (inputs["labels"][..., 1:] != -100).sum()
        loss, *others = super().prediction_step(model, inputs, *args, **kwargs)
        self._evaluated += torch.stack([loss * tokens, tokens]).to(self._evaluated)
        return loss, *others


class PairTrainer(ResumableTrainer, DPOTrainer):
    """trl's DPOTrainer on rows that are token ids already."""

    # Relies on trl 1.16.0 (35e349e8e826) trl.trainer.dpo_trainer:DPOTrainer._prepare_dataset
    #   def tokenize_fn(example, processing_class):
    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


class RolloutTrainer(ResumableTrainer, GRPOTrainer):
    """trl's GRPOTrainer with the rollouts of this package.

    Attributes:
        row_ids: The rows of the current prompts, which trl does not pass to a rollout function.
    """

    _buffered_inputs: Any  # trl's: the micro-batches of the current generation

    # Relies on trl 1.16.0 (18f01b7a46c9) trl.trainer.grpo_trainer:GRPOTrainer.__init__
    #   model.add_adapter("ref", default_config)
    # Relies on trl 1.16.0 (baab615d5c7b) trl.generation.vllm_generation:VLLMGeneration._iter_named_params
    #   model.merge_adapter()
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # rollout_func is known to be experimental.
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
        logging.getLogger("trl.trainer.grpo_trainer").addFilter(_has_no_transcript)
        super().__init__(*args, **kwargs)
        if isinstance(self.model, PeftModel):
            # If a model comes with its adapter, trl adds a copy, "ref", for the KL reference. Every launch makes the copy
            # again, and a resumed run would load it from a checkpoint in place of the trained adapter.
            self.model.save_pretrained = partial(self.model.save_pretrained, selected_adapters=[ADAPTER])
            if self.use_vllm and zero_in_force(self.args) != 3:
                sync_weights = self.vllm_generation.sync_weights
                self.vllm_generation.sync_weights = partial(_keep_base_weights, self.model, sync_weights)

    # Relies on transformers 5.17.0 (4711d0506786) transformers.trainer:Trainer._load_from_checkpoint
    #   model.load_adapter(
    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load only the trained adapter. transformers would also load a `ref` adapter if the checkpoint has one."""
        if isinstance(self.model, PeftModel):
            load_adapter(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    # Relies on trl 1.16.0 (1fa48922792d) trl.trainer.grpo_trainer:GRPOTrainer._generate_and_score_completions
    #   prompts = [x["prompt"] for x in inputs]
    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.row_ids = [row["row"] for row in inputs]
        return super()._generate_and_score_completions(inputs)

    # Relies on trl 1.16.0 (f824e7fb0714) trl.trainer.grpo_trainer:GRPOTrainer._prepare_inputs
    #   inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
    # Relies on trl 1.16.0 (80295546bbdb) trl.trainer.grpo_trainer:GRPOTrainer._compute_loss
    #   loss = (per_token_loss * mask).sum() / mask.sum().clamp(min=1.0)
    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Return the next micro-batch. The samples of each optimizer step are sorted by length over its micro-batches.

        Samples change neither their process nor their optimizer step, and their advantages are there already. The loss of a
        step is then the same sum over its samples. Some losses also have a mean or a quantile over the tokens of each
        micro-batch; with these, trl's order is kept.
        """
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        by_token = self.loss_type == "bnpo" or self._entropy_bonus_enabled or self.top_entropy_quantile < 1.0
        if self._buffered_inputs is before or by_token or self.aux_loss_enabled:
            return inputs
        # This many micro-batches never belong to two optimizer steps, however steps and generations overlap.
        together = math.gcd(self.args.gradient_accumulation_steps, self.args.steps_per_generation)
        self._buffered_inputs = _sorted_by_length(self._buffered_inputs, together)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    # Relies on trl 1.16.0 (ea73c3909275) trl.trainer.grpo_trainer:GRPOTrainer._get_per_token_logps_and_entropies
    #   outputs = model(**model_inputs, labels=labels, fused_lm_head=True)
    # Relies on trl 1.16.0 (422d009f04b6) trl.trainer.utils:add_fused_lm_head
    #   labels = labels[:, 1:]
    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **images: None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Return what trl's method returns, with less padding.

        trl pads prompts on the left and completions on the right, each to the longest of the generation. Here the model gets
        the tokens of each sequence without a gap, padded on the right to the longest sequence in the forward pass. So a token
        has the same position as at inference. Sequences of similar length are passed together, `per_device_train_batch_size`
        at once, also in evaluation.

        Args:
            input_ids, attention_mask: [B, P + C].
            logits_to_keep: C.

        Returns:
            Log-probabilities and entropies [B, C], 0 where the mask is 0, and the auxiliary loss of experts.
        """
        width, columns = input_ids.shape[1], torch.arange(input_ids.shape[1], device=input_ids.device)
        scored = attention_mask.bool() & (columns >= width - logits_to_keep)
        lengths = attention_mask.sum(1)
        order = lengths.argsort(descending=True)
        multiple, experts = self.pad_to_multiple_of or 1, {"output_router_logits": True} if compute_aux_loss else {}
        log_probs: list[torch.Tensor] = []
        entropies: list[torch.Tensor] = []
        aux_losses: list[torch.Tensor] = []
        for rows in order.split(self.args.per_device_train_batch_size):
            longest = math.ceil(int(lengths[rows].max()) / multiple) * multiple
            # Where the tokens of each sequence are, then where its padding is.
            places = attention_mask[rows].argsort(dim=1, descending=True, stable=True)[:, :longest]
            ids, mask, own = (tensor[rows].gather(1, places) for tensor in (input_ids, attention_mask, scored))
            labels = ids.masked_fill(~own, -100)
            with self.accelerator.autocast():
                out = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True, **experts)
            for values, made in ((log_probs, out.log_probs), (entropies, out.entropy if compute_entropy else None)):
                if made is not None:
                    back = made.new_zeros(len(rows), width).scatter(1, places[:, 1:], made)
                    values.append(back[:, -logits_to_keep:])
            aux_losses += [out.aux_loss] if compute_aux_loss else []
        order = order.argsort()
        return (
            torch.cat(log_probs)[order],
            torch.cat(entropies)[order] if compute_entropy else None,
            torch.stack(aux_losses).mean() if compute_aux_loss else None,
        )


def _sorted_by_length(batches: Sequence[Mapping[str, torch.Tensor]], together: int) -> list[dict[str, torch.Tensor]]:
    """Return the micro-batches of a generation, with samples sorted by length, the longest first, within each `together`."""
    made: list[dict[str, torch.Tensor]] = []
    for first in range(0, len(batches), together):
        group = batches[first : first + together]
        samples = {name: torch.cat([batch[name] for batch in group]) for name, value in group[0].items() if value.ndim}
        lengths = samples["prompt_mask"].sum(1) + samples["completion_mask"].sum(1)
        for rows in lengths.argsort(descending=True).split(len(group[0]["advantages"])):
            made.append({**group[0], **{name: value[rows] for name, value in samples.items()}})
    return made


# Relies on trl 1.16.0 (736ae29b0838) trl.trainer.grpo_trainer:GRPOTrainer._calculate_rewards
#   f"All reward functions returned None for the following kwargs:\n{row_reward_kwargs}\n"
def _has_no_transcript(record: logging.LogRecord) -> bool:
    """Filter out a warning that prints the whole transcript of a sample without a reward. Those are counted by reason."""
    return not record.getMessage().startswith("All reward functions returned None")


# --- trl's vLLM in the training processes.


def _keep_base_weights(model: Any, sync_weights: Callable[[], None]) -> None:
    """Send a LoRA policy to vLLM and leave the base weights as they are.

    trl merges the adapter into the base in place, sends the weights, and subtracts the adapter again. In bfloat16 that is
    no inverse: the base drifts at every transfer, and with it the KL reference (trl issue 6688). So the merged weights are
    copies, as large as the adapted layers, during the transfer. Under ZeRO-3 the gathered weights are copies already.
    """
    weights = [adapted_weight(layer)[1] for layer in model.modules() if isinstance(layer, LoraLayer)]
    originals = [weight.data for weight in weights]
    for weight in weights:
        weight.data = weight.data.clone()
    try:
        sync_weights()
    finally:
        for weight, data in zip(weights, originals, strict=True):
            weight.data = data


@contextmanager
# Relies on trl 1.16.0 (0e584002e0f6) trl.generation.vllm_generation:VLLMGeneration._init_vllm
#   self.llm = LLM(
def vllm_settings(settings: Mapping[str, Any]) -> Iterator[None]:
    """Start the vLLM of a trainer that is made in this block with more arguments of `vllm.LLM`.

    trl's config has no field for them. So the name by which trl's module calls `vllm.LLM` is replaced until the trainer is
    made.

    Under ZeRO-3, vLLM starts and compiles in a process whose `torch.nn.functional.linear` is DeepSpeed's: `zero.Init`
    replaces it and leaves it there (deepspeed/runtime/zero/partition_parameters.py). That does no harm, since vLLM runs and
    compiles in inference mode, in which DeepSpeed's function is traced through to the same matrix product. Training needs
    it, or each layer's gathered weights stay in memory.
    """
    original: Any = getattr(vllm_generation, "LLM", None)  # not there without vLLM
    vllm_generation.LLM = lambda **arguments: original(**{**arguments, **settings})
    try:
        yield
    finally:
        vllm_generation.LLM = original


@contextmanager
# Relies on trl 1.16.0 (63d669fb3230) trl.generation.vllm_generation:VLLMGeneration.sync_weights
#   self.llm.wake_up(tags=["weights"])
# Relies on trl 1.16.0 (2d2ac2be5b13) trl.generation.vllm_generation:VLLMGeneration.generate
#   self._llm_weights_sleeping = True
def awake(generation: Any) -> Iterator[Any]:
    """Context manager: trl's vLLM (`vllm.LLM`) with the live weights, ready to generate.

    Afterwards it sleeps again if the recipe has it sleep. Enter and leave on all processes together: under ZeRO-3 the
    weights are gathered.
    """
    generation.sync_weights()  # wakes what holds the weights
    if generation.enable_sleep_mode:
        generation.llm.wake_up(tags=["kv_cache"])
    try:
        yield generation.llm
    finally:
        if generation.enable_sleep_mode:
            generation.llm.sleep(level=2)
            generation._llm_weights_sleeping = True  # so that trl sends the weights again


# --- Launch, gradients, tracker.


# Relies on transformers 5.17.0 (4a6325d187d5) transformers.training_args:TrainingArguments._setup_devices
#   self._n_gpu = torch.cuda.device_count()
def use_one_gpu(args: Any) -> None:
    """Train on one GPU if one process sees several. transformers would spread the process by nn.DataParallel."""
    args._n_gpu = 1


# Relies on deepspeed 0.19.8 (2bf3cff9e3d1) deepspeed.comm.torch:build_shm_op
#   if builder is None or not deepspeed.ops.__compatible_ops__.get(builder.NAME, False):
def reduce_with_gloo() -> None:
    """Keep DeepSpeed on CPUs from compiling a helper for sums among the processes of one machine.

    That takes a compiler and two minutes at the first start, under a lock that torch never breaks: after a start that was
    killed meanwhile, every later one would wait for ever. torch's gloo does the same.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


# Relies on accelerate 1.15.0 (fb25ccb046ca) accelerate.accelerator:Accelerator.backward
#   self.deepspeed_engine_wrapped.backward(
# Relies on accelerate 1.15.0 (0185cad8f450) accelerate.utils.deepspeed:DeepSpeedEngineWrapper.backward
#   self.engine.step()
def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> Callable[[], None]:
    """Replace the method `name` of one object by `wrapper(method, ...)`, and return a function that undoes it.

    The guard against steps that are not finite (train/guards.py) wraps `Accelerator.backward`, and DeepSpeed's `step`,
    which accelerate calls inside `backward`, before any callback.
    """
    setattr(owner, name, partial(wrapper, getattr(owner, name)))
    return partial(delattr, owner, name)


# Relies on transformers 5.17.0 (7b3a3b87c6ec) transformers.integrations.integration_utils:WandbCallback.on_log
#   if self._wandb is None:
def guard_tracking(trainer: Any) -> None:
    """Have transformers' wandb callback warn once and stop if it raises. Call it before `train()`.

    A SIGTERM to all processes also ends wandb's process, and the next log, which comes before the checkpoint, would raise.
    """

    def guarded(callback: Any, event: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if callback._wandb is not None:
            try:
                event(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - no failure of a tracker may stop training
                callback._wandb = None  # as if wandb were not installed
                leave_run(error)

    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, WandbCallback):
            for name in (name for name in vars(WandbCallback) if name.startswith("on_")):
                setattr(callback, name, partial(guarded, callback, getattr(callback, name)))
