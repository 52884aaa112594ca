"""What stops a run early, on all processes at once: a loss or gradient that is not finite, or SIGTERM.

Left alone, training goes on: plain torch applies NaN to the weights, DeepSpeed skips the step without a word, and
the logs show the last good loss. Here a trace is left on the device without waiting for it: the loss of every backward
pass and, per parameter, the largest gradient entry, which turns NaN or infinite when any entry does. The traces are
read once per step, summed over the processes, before the optimizer moves a weight:

- plain, LoRA and DDP: in the trainer's `on_pre_optimizer_step`, where the norm of the final gradient is known too. The
  sum of a step's micro-batches keeps what is not finite in any of them, so gradients are looked at once, before clipping;
- DeepSpeed: around the engine's `step`, because accelerate calls it inside `backward`, before any callback. It may free
  a gradient once it is reduced, so each is looked at as it is made; the norm of the reduced gradient is known only
  afterwards, and an infinite one stops the run there.

Under float16 the loss scaler makes infinite gradients on purpose and skips their steps, so only the loss is watched.
FSDP is not covered.
"""

from __future__ import annotations

import ctypes
import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from nextturn.probe.checkpoints import newest_complete
from nextturn.probe.errors import ToldToEnd, TrainingStopped
from nextturn.probe.report.tracking import leave_run

LOSS, NORM, FIRST_PARAMETER = 0, 1, 2
NAMES_SHOWN = 3
CAUSES = (
    "Usual causes: train.learning_rate too high or without warm-up, a batch in which no token is trained, "
    "float16 instead of bfloat16, damaged weights in the model folder"
)


def install_guard(trainer: Any) -> None:
    """Makes `trainer` raise TrainingStopped on every process before a non-finite step; call it before `train()`."""
    trainer.add_callback(FiniteGuard(trainer))


class FiniteGuard(TrainerCallback):
    """One slot on the device for the loss, one for the gradient norm, one per trained parameter."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._undo: list[Callable[[], Any]] = []
        self._engine: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        import torch

        self._disarm()
        accelerator = self.trainer.accelerator
        self._scaled = accelerator.mixed_precision == "fp16"
        trained = [(name, p) for name, p in self.trainer.model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in trained]
        self._parameters = [parameter for _, parameter in trained]
        self._looked = False
        # [2 + parameters] on the device: sums that stay finite as long as everything added to them is.
        self._trace = torch.zeros(FIRST_PARAMETER + len(trained), device=accelerator.device)
        self._slots = self._trace.unbind()
        self._wrap(accelerator, "backward", self._backward)
        self._engine = getattr(getattr(accelerator, "deepspeed_engine_wrapped", None), "engine", None)
        if self._engine is not None:  # DeepSpeed: gradients are looked at as they are made, its step is where to stop
            self._wrap(self._engine, "step", self._engine_step)
            for slot, parameter in enumerate([] if self._scaled else self._parameters, start=FIRST_PARAMETER):
                self._undo.append(parameter.register_hook(partial(self._note_gradient, slot)).remove)
        elif not self._scaled:
            self._wrap(accelerator, "clip_grad_norm_", self._clip_grad_norm)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._engine is None:
            if not self._looked and not self._scaled:  # nothing was clipped
                self._note_gradients()
            self._looked = False
            self._check()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._disarm()

    def _wrap(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        setattr(owner, name, partial(replacement, getattr(owner, name)))
        self._undo.append(partial(delattr, owner, name))

    def _disarm(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _backward(self, original: Callable[..., Any], loss: Any, **kwargs: Any) -> Any:
        self._slots[LOSS].add_(loss.detach().abs().float())
        return original(loss, **kwargs)

    def _clip_grad_norm(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._note_gradients()
        self._looked = True
        norm = original(*args, **kwargs)
        if norm is not None:
            self._slots[NORM].add_(norm)
        return norm

    def _note_gradients(self) -> None:
        for slot, parameter in enumerate(self._parameters, start=FIRST_PARAMETER):
            if parameter.grad is not None:
                self._note_gradient(slot, parameter.grad)

    def _note_gradient(self, slot: int, gradient: Any) -> None:
        import torch

        # The infinity norm reads the gradient once, makes no copy of it, and cannot overflow.
        if gradient.numel():
            self._slots[slot].add_(torch.linalg.vector_norm(gradient.detach(), math.inf, dtype=torch.float32))

    def _engine_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._check()
        result = original(*args, **kwargs)
        if not self._scaled:
            norm = self._engine.get_global_grad_norm()
            # DeepSpeed writes -1 for a norm that is no number.
            broken = norm is not None and not 0 <= float(norm) < math.inf
            if broken or getattr(self._engine.optimizer, "overflow", False):
                raise TrainingStopped(self._message(["the norm of the gradient over all processes"]))
        return result

    def _check(self) -> None:
        """Reads the traces of all processes, for which the step waits for the device.

        Raises:
            TrainingStopped: on every process alike, since each sees the same sums.
        """
        # How many processes have each slot not finite: the same on all of them, so that none goes on alone.
        bad = self.trainer.accelerator.reduce((~self._trace.isfinite()).int(), reduction="sum")
        self._trace.zero_()
        if not bad.any():
            return
        counts = bad.tolist()
        processes = self.trainer.accelerator.num_processes
        found = []
        if counts[LOSS]:
            found.append(f"the loss (on {counts[LOSS]} of {processes} processes)" if processes > 1 else "the loss")
        names = [name for name, count in zip(self._names, counts[FIRST_PARAMETER:], strict=True) if count]
        if names:
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            found.append(f"the gradient of {', '.join(names[:NAMES_SHOWN])}{more}")
        elif counts[NORM]:
            found.append("the norm of the gradient")
        raise TrainingStopped(self._message(found))

    def _message(self, found: list[str]) -> str:
        step = self.trainer.state.global_step + 1
        checkpoint, _ = newest_complete(Path(self.trainer.args.output_dir))
        kept = f"Last good checkpoint: {checkpoint}" if checkpoint else "No checkpoint was saved yet"
        return f"stopped before step {step}: {' and '.join(found)} is not finite. {kept}. {CAUSES}"


# --- Stops a run that is told to end (SIGTERM: the end of a Slurm job, a machine that is taken away), with a checkpoint.
#
# What was trained since the last checkpoint would be lost, with `save_steps: 0.5` half of a run. transformers' own
# `enable_jit_checkpoint` does not tell the processes of one another, which get the signal in different steps and would wait for
# each other for ever, and its checkpoints have no mark that they are whole.
#
# A launcher that ends the others because one process failed sends SIGTERM, too: they wait for the failed one in vain, and are
# killed 30 seconds later. An inline probe stops after the batch or verdict that is under way, and is resumed at the next start.


class StopsWhenTold(TrainerCallback):  # type: ignore[misc]
    """After the step in which any process was told to end, all save a checkpoint and end. Add it after the callback that marks
    checkpoints whole and before those that take long with one: a probe is made when the run is taken up again."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._told = False  # on this process
        self._ends = False  # on all of them

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While a run trains. More than one SIGTERM is one: under Slurm the processes may get it from there and from their
        launcher, or, where they are tracked by cgroup, from their launcher alone, which with one process passes none on."""
        if threading.current_thread() is not threading.main_thread():  # Python lets no other thread listen
            yield
            return
        before = signal.signal(signal.SIGTERM, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _note(self, *_: Any) -> None:
        self._told = True  # and nothing that could fail, such as printing where nobody reads any more

    def check(self) -> None:
        """Raise ToldToEnd if this process was told to end, for a probe between two batches."""
        if self._told:
            step = self.trainer.state.global_step
            raise ToldToEnd(f"SIGTERM: ended in the probe at step {step}; the same command resumes the probe")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        import torch

        accelerator, self._ends = self.trainer.accelerator, self._told
        if accelerator.num_processes > 1:
            told = torch.tensor(int(self._told), device=accelerator.device)
            self._ends = bool(accelerator.reduce(told, reduction="sum"))
        if self._ends and state.global_step < state.max_steps:
            control.should_save, control.should_evaluate = True, False  # an evaluation could take minutes

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raises ToldToEnd on every process; not after the last step, after which the run ends anyway."""
        if self._ends and state.global_step < state.max_steps:
            step = state.global_step
            raise ToldToEnd(
                f"SIGTERM: ended after step {step}, saved as checkpoint-{step}; the same command goes on from it"
            )


# --- Lets training go on without wandb where its process is gone: a SIGTERM to all processes ends wandb's as well, and the next
# log, which comes before the checkpoint, would raise.


def guard_tracking(trainer: Any) -> None:
    """Have transformers' wandb callback warn once and do nothing more where it raises. Call it before `train()`."""
    from transformers.integrations import WandbCallback

    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, WandbCallback):
            for name in (name for name in vars(WandbCallback) if name.startswith("on_")):
                setattr(callback, name, partial(_unless_wandb_fails, callback, getattr(callback, name)))


def _unless_wandb_fails(callback: Any, event: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    if callback._wandb is not None:  # what transformers has it be where wandb is not installed
        try:
            event(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises must not stop training
            callback._wandb = None
            leave_run(error)


# --- Gives freed memory back to the system while a model trains on a CPU.
#
# Batches differ in length, so glibc's heap fills up with holes between blocks that are still in use, and keeps them: SmolLM2
# (2 GiB with its optimizer) stood at 3.9 GiB after 14 steps, of which `malloc_trim` gave back 1.9; a run with probes stood at
# 11 GiB after 150. It returns whole free pages wherever they lie; the next step has to fetch them anew, so it is not called
# at each.

EVERY_STEPS = 10


def return_freed() -> bool:
    """Returns free pages of the C heap; False where the C library has no such call (not glibc)."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    trim(0)
    return True


class ReturnsFreedMemory(TrainerCallback):  # type: ignore[misc]
    """After every tenth step, and after whatever the callbacks before it did at a checkpoint, such as a probe."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        return_freed()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        return_freed()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % EVERY_STEPS == 0:
            return_freed()
