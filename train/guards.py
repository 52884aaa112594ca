"""End a run early, on all processes at once: on a loss or gradient that is not finite, on SIGTERM, or on Ctrl-C.

Without the guard, training continues: plain torch applies NaN to the weights, DeepSpeed skips the step without a message,
and the logs show the last good loss. The guard leaves a trace on the device, for which nothing waits: the loss of every
backward pass and the norm of each parameter's gradient, which turns NaN or infinite when any entry does or when the
gradient is too large for float32. The traces are read once per step and compared over the processes before the optimizer
changes a weight:

- under DeepSpeed around the engine's `step`, because accelerate calls it inside `backward`, before any callback;
- else in the trainer's `on_pre_optimizer_step`.

Under float16 the loss scaler makes infinite gradients on purpose and skips their steps, so only the loss is watched.
FSDP is not covered.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from nextturn.probe.command.errors import Interrupted, ToldToEnd, TrainingStopped
from nextturn.probe.command.terminal import is_main_process, processes
from nextturn.probe.models.checkpoints import newest_complete
from nextturn.train.overrides import wrap

LOSS, TOTAL, FIRST_PARAMETER = 0, 1, 2
NAMES_SHOWN = 3
CAUSES = (
    "Usual causes: train.learning_rate too high or without warm-up, a batch in which no token is trained, "
    "float16 instead of bfloat16, damaged weights in the model folder"
)


class FiniteGuard(TrainerCallback):  # type: ignore[misc]
    """Raises TrainingStopped on every process before a step that is not finite. Add it before `train()`."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._undo = ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        import torch

        accelerator = self.trainer.accelerator
        trained = [(name, p) for name, p in self.trainer.model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in trained]
        # [2 + parameters] on the device: sums that stay finite as long as everything added to them is.
        self._trace = torch.zeros(FIRST_PARAMETER + len(trained), device=accelerator.device)
        self._slots = self._trace.unbind()
        self._undo.callback(wrap(accelerator, "backward", self._backward))
        self._engine = getattr(getattr(accelerator, "deepspeed_engine_wrapped", None), "engine", None)
        if self._engine is not None:
            self._undo.callback(wrap(self._engine, "step", self._engine_step))
        if accelerator.mixed_precision != "fp16":
            for slot, (_, parameter) in enumerate(trained, start=FIRST_PARAMETER):
                # DeepSpeed may free a gradient once it is reduced, so each is looked at as soon as it is made.
                self._undo.callback(parameter.register_hook(partial(self._note_gradient, slot)).remove)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._engine is None:
            self._check()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._undo.close()

    def _backward(self, original: Callable[..., Any], loss: Any, **kwargs: Any) -> Any:
        self._slots[LOSS].add_(loss.detach().abs().float())
        return original(loss, **kwargs)

    def _note_gradient(self, slot: int, gradient: Any) -> None:
        import torch

        if gradient.numel():
            norm = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32)
            self._slots[slot].add_(norm)
            self._slots[TOTAL].add_(norm * norm)

    def _engine_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._check()
        return original(*args, **kwargs)

    def _check(self) -> None:
        """Read the traces of all processes, for which the step waits for the device.

        Raises:
            TrainingStopped: On every process alike, since each sees the same sums.
        """
        # How many processes have each slot not finite: the same numbers on all of them, so that none continues alone.
        accelerator = self.trainer.accelerator
        counts = accelerator.reduce((~self._trace.isfinite()).int(), reduction="sum").tolist()
        self._trace.zero_()
        if not any(counts):
            return
        causes = []
        if counts[LOSS]:
            where = f" (on {counts[LOSS]} of {accelerator.num_processes} processes)"
            causes.append("the loss" + (where if accelerator.num_processes > 1 else ""))
        if names := [name for name, count in zip(self._names, counts[FIRST_PARAMETER:], strict=True) if count]:
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            causes.append(f"the gradient norm of {', '.join(names[:NAMES_SHOWN])}{more}")
        step, run_dir = self.trainer.state.global_step + 1, Path(self.trainer.args.output_dir)
        checkpoint, _ = newest_complete(run_dir)
        kept = f"Last good checkpoint: {checkpoint}" if checkpoint else "No checkpoint was saved yet"
        what = " and ".join(causes or ["the norm of the whole gradient"])
        raise TrainingStopped(f"stopped before step {step}: {what} is not finite. {kept}. {CAUSES}")


# --- SIGTERM, the end of a Slurm job or a machine that is taken away, and Ctrl-C.
#
# Without this, a run loses the steps since its last checkpoint: half of them with `save_steps: 0.5`. transformers' own
# `enable_jit_checkpoint` does not share the signal between processes. They get it in different steps and would wait for each
# other for ever. Its checkpoints also have no completion marker.
#
# If one process fails, the launcher sends SIGTERM to the others. They cannot finish the step without the failed process, so
# the launcher kills them after 30 seconds. An inline probe stops after the current batch or verdict, and is resumed at the next start.

_ENDING = (signal.SIGTERM, signal.SIGINT)
SAME_CTRL_C_S = 2.0
"""Seconds in which further SIGINTs are the same Ctrl-C: the terminal sends one, and torch's launcher sends another."""


def ending_line(number: signal.Signals) -> str:
    """Return what is printed at a signal. torch's launcher, which several processes have, kills them after a time limit."""
    line = f"{'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}: training ends after this step or batch of a probe, with a checkpoint"
    if processes() > 1:
        limit = os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30")
        line += f"; the launcher waits {limit} s for it (TORCH_ELASTIC_SHUTDOWN_TIMEOUT, set before the launch)"
    return line + ("; another Ctrl-C ends it at once" if number == signal.SIGINT else "")


class StopsOnSignal(TrainerCallback):  # type: ignore[misc]
    """Saves a checkpoint and ends on all processes, after the step in which any process got SIGTERM or Ctrl-C.

    Add it after the callback that marks checkpoints and before callbacks that take long at a checkpoint: the probe is made
    when the run is resumed.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._got: signal.Signals | None = None  # by this process
        self._first_ctrl_c = 0.0
        self._ends = False  # all of them

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Context manager: catch SIGTERM and SIGINT. A second SIGTERM changes nothing: Slurm and the launcher may both send one.
        A second Ctrl-C ends at once."""
        if threading.current_thread() is not threading.main_thread():  # Python lets no other thread listen
            yield
            return
        # A process that was started to ignore Ctrl-C, such as a script's background job, goes on ignoring it.
        heard = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._note) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT:
            now = time.monotonic()
            if self._first_ctrl_c and now - self._first_ctrl_c > SAME_CTRL_C_S:
                raise KeyboardInterrupt
            self._first_ctrl_c = self._first_ctrl_c or now
        if self._got is None and is_main_process():
            with suppress(OSError):  # `print` could be interrupted within itself
                os.write(2, f"\n{ending_line(signal.Signals(number))}\n".encode())
        self._got = self._got or signal.Signals(number)

    def _ended(self, what: str) -> ToldToEnd:
        if self._got is signal.SIGINT:
            return Interrupted(f"Ctrl-C: {what}")
        return ToldToEnd(f"SIGTERM: {what}")

    def check(self) -> None:
        """Raise ToldToEnd if this process got a signal. For a probe, between two batches."""
        if self._got:
            raise self._ended(
                f"ended in the probe at step {self.trainer.state.global_step}; the same command resumes the probe"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        import torch

        accelerator = self.trainer.accelerator
        got = torch.tensor([int(self._got is each) for each in _ENDING], device=accelerator.device)
        counts = accelerator.reduce(got, reduction="sum").tolist()
        # A signal that comes meanwhile is for the next step: all processes have to agree.
        agreed = next((each for each, count in zip(_ENDING, counts, strict=True) if count), None)
        self._got, self._ends = agreed or self._got, agreed is not None
        if self._ends and state.global_step < state.max_steps:
            control.should_save, control.should_evaluate = True, False  # an evaluation could take minutes

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raise ToldToEnd on every process, except after the last step, after which the run ends by itself."""
        if self._ends and state.global_step < state.max_steps:
            step = state.global_step
            then = (
                "without the optimizer, so it cannot be resumed"
                if args.save_only_model
                else "the same command resumes from it"
            )
            raise self._ended(f"ended after step {step}, saved as checkpoint-{step}; {then}")


class SavesAfterGenerations(TrainerCallback):  # type: ignore[misc]
    """Puts saves off to the end of GRPO's generation, if its samples serve several steps. Add it after StopsOnSignal.

    Samples are in no checkpoint. A run that resumes inside a generation would train its prompts another time, or never.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._due = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._due = self._due or control.should_save
        # trl counts micro-batches, and has counted this step's.
        inside = self.trainer._step % (args.steps_per_generation * args.num_iterations)
        control.should_save = self._due and (not inside or state.global_step >= state.max_steps)
        self._due = self._due and not control.should_save


# --- Freed memory, while a model trains on a CPU.
#
# Batches differ in length, so glibc's heap fills up with holes between blocks that are still in use, and keeps them:
# SmolLM2 (2 GiB with its optimizer) used 3.9 GiB after 14 steps, of which `malloc_trim` returned 1.9 GiB; a run with probes
# used 11 GiB after 150. `malloc_trim` returns whole free pages wherever they lie. The next step has to fetch them again, so
# it is not called at each step.

TRIM_STEPS = 10


def return_freed() -> bool:
    """Return free pages of the C heap to the system. False if the C library has no `malloc_trim` (not glibc)."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    trim(0)
    return True


class ReturnsFreedMemory(TrainerCallback):  # type: ignore[misc]
    """Returns freed memory every tenth step, and after the earlier callbacks at a checkpoint, such as a probe."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % TRIM_STEPS == 0:
            return_freed()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        return_freed()

    on_train_begin = on_save
