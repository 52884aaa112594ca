"""A loss or gradient that is not finite stops the run before the step: weights and checkpoints stay as they were."""

from __future__ import annotations

import ctypes
import math
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import TrainingStopped
from nextturn.probe.models.checkpoints import why_incomplete
from nextturn.train.resume import mark_checkpoints

POISONED = "model.layers.1.mlp.down_proj.weight"


class Steps:
    """A trainer of a tiny Llama on one process, with the weights after every step."""

    def __init__(self, folder: Path, run_dir: Path, **arguments: Any) -> None:
        import torch
        from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

        from nextturn.train.guards import FiniteGuard

        model: Any = AutoModelForCausalLM.from_pretrained(folder)
        settings: dict[str, Any] = {"max_steps": 2, "save_steps": 1, "learning_rate": 1e-2, **arguments}
        args = TrainingArguments(
            output_dir=str(run_dir), per_device_train_batch_size=1, report_to="none", use_cpu=True, disable_tqdm=True,
            **settings,
        )  # fmt: skip
        rows = [{"input_ids": torch.arange(12) + i, "labels": torch.arange(12) + i} for i in range(16)]
        self.model, self.parameters = model, dict(model.named_parameters())
        self.snapshots = [{name: p.detach().clone() for name, p in self.parameters.items()}]

        class Snapshot(TrainerCallback):
            def on_step_end(callback, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: N805
                self.snapshots.append({name: p.detach().clone() for name, p in self.parameters.items()})

        self.trainer: Any = Trainer(model, args, train_dataset=rows, callbacks=[Snapshot()])
        mark_checkpoints(self.trainer)
        self.trainer.add_callback(FiniteGuard(self.trainer))

    def scale_gradient(self, factor: float, at_backward: int) -> None:
        """Multiply a gradient in the backward pass of that number, counted from 1."""
        calls = count(1)
        self.parameters[POISONED].register_hook(lambda g: g * factor if next(calls) == at_backward else g)

    def stopped(self) -> str:
        """Train until it is stopped; check that no weight has changed since the last whole step."""
        import torch

        with pytest.raises(TrainingStopped) as error:
            self.trainer.train()
        for name, parameter in self.parameters.items():
            assert torch.equal(parameter, self.snapshots[-1][name]), name
        return str(error.value)


@pytest.mark.parametrize(
    ("factor", "backward", "arguments"),
    [
        (math.inf, 4, {"gradient_accumulation_steps": 3}),  # in an early micro-batch
        # Every entry is finite, the norm is not: clipping would scale the whole gradient to nothing.
        (1e30, 2, {"max_grad_norm": 1.0}),
    ],
)
def test_a_gradient_that_is_not_finite_stops_its_step_and_is_named(
    factor: float, backward: int, arguments: Any, tiny_chatml: Path, tmp_path: Path
) -> None:
    steps = Steps(tiny_chatml, tmp_path / "run", **arguments)
    steps.scale_gradient(factor, backward)
    message = steps.stopped()
    assert "before step 2: " in message and POISONED in message and "\n" not in message
    checkpoint = tmp_path / "run" / "checkpoint-1"
    assert str(checkpoint) in message and why_incomplete(checkpoint) is None and len(steps.snapshots) == 2


def test_a_loss_that_is_not_finite_stops_though_the_gradients_are(tiny_chatml: Path, tmp_path: Path) -> None:
    """A label that is ruled out: -log 0 is infinite, while softmax minus one-hot is an ordinary gradient."""
    steps = Steps(tiny_chatml, tmp_path / "run")
    usual = steps.trainer.compute_loss
    steps.trainer.compute_loss = lambda *args, **kwargs: usual(*args, **kwargs) + math.inf
    assert "before step 1: the loss is not finite" in steps.stopped()


def test_a_healthy_run_is_left_alone_and_the_guard_removes_its_hooks(tiny_chatml: Path, tmp_path: Path) -> None:
    steps = Steps(tiny_chatml, tmp_path / "run")
    steps.trainer.train()
    assert len(steps.snapshots) == 3
    assert "backward" not in vars(steps.trainer.accelerator)
    assert not any(p._backward_hooks for p in steps.model.parameters())


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's call")
def test_freed_memory_below_a_block_in_use_is_returned() -> None:
    from nextturn.train.guards import return_freed

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    size = 100_000  # below the size from which glibc maps a block by itself
    blocks = [libc.malloc(size) for _ in range(2000)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[:-1]:  # the last block stays, so the top of the heap does
        libc.free(block)
    before = resident()
    assert return_freed()
    returned = before - resident()
    libc.free(blocks[-1])
    assert returned > 150 * 2**20
