"""A loss or gradient that is not finite stops the run before the step: weights and checkpoints stay as they were."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.checkpoints import is_complete, newest_complete
from nextturn.probe.errors import TrainingStopped
from nextturn.train.checkpoints import mark_checkpoints
from support.commands import start
from support.launches import Launched

POISONED = "model.layers.1.mlp.down_proj.weight"
LORA = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight"

# Trains a tiny Qwen3.5 on two processes and multiplies one gradient of rank 1 by NaN in step 3. Each process compares its
# own weights (under ZeRO-3: its part of them) with those at the end of step 2.
SCRIPT = """
import sys, torch, transformers
from nextturn.probe.errors import TrainingStopped, run_command
from nextturn.train.checkpoints import mark_checkpoints
from nextturn.train.guards import FiniteGuard
from nextturn.train.overrides import reduce_with_gloo

def weights(model):
    return [getattr(p, "ds_tensor", p).detach().clone() for p in model.parameters()]

class Snapshot(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.weights = weights(model)

def main(argv):
    model_folder, run_dir = argv
    reduce_with_gloo()
    args = transformers.TrainingArguments(
        output_dir=run_dir, per_device_train_batch_size=1, max_steps=4, save_steps=1, learning_rate=1e-2,
        report_to="none", use_cpu=True, disable_tqdm=True, logging_steps=1)
    rows = [{"input_ids": torch.arange(12) + i, "labels": torch.arange(12) + i} for i in range(8)]
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder)
    trainer = transformers.Trainer(model, args, train_dataset=rows)
    rank, snapshot = trainer.accelerator.process_index, Snapshot()
    poisoned = dict(model.named_parameters())["model.layers.1.mlp.down_proj.weight"]
    poisoned.register_hook(lambda g: g * float("nan") if rank == 1 and trainer.state.global_step == 2 else g)
    mark_checkpoints(trainer)
    trainer.add_callback(snapshot)
    trainer.add_callback(FiniteGuard(trainer))
    try:
        trainer.train()
    except TrainingStopped:
        same = all(torch.equal(a, b) for a, b in zip(snapshot.weights, weights(model)))
        print(f"rank {rank}: type {trainer.accelerator.distributed_type}, weights {'same' if same else 'CHANGED'}")
        raise

sys.exit(run_command(main))
"""
ZERO_3 = """
use_cpu: true
num_machines: 1
num_processes: 2
mixed_precision: 'no'
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, zero3_init_flag: true, zero3_save_16bit_model: true, gradient_accumulation_steps: 1}
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["MULTI_CPU", "DEEPSPEED"])
def test_all_processes_stop_together_with_their_weights_unchanged(kind: str, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "guarded.py").write_text(SCRIPT)
    (tmp_path / "zero3.yaml").write_text(ZERO_3)
    words = [str(tmp_path / "guarded.py"), str(tiny_model), str(tmp_path / "run")]
    launched = Launched(words, tmp_path / "zero3.yaml" if kind == "DEEPSPEED" else None, tmp_path)
    codes, output = launched.wait(), launched.output
    assert all(codes), output
    for rank in (0, 1):
        assert f"rank {rank}: type DistributedType.{kind}, weights same" in output, output
    message = next(line for line in output.splitlines() if line.startswith("error: "))
    assert "before step 3" in message and POISONED in message and f"{tmp_path}/run/checkpoint-2" in message
    assert newest_complete(tmp_path / "run") == (tmp_path / "run/checkpoint-2", [])


class Steps:
    """A trainer of a tiny Llama on one process, with the weights after every step."""

    def __init__(self, folder: Path, run_dir: Path, lora: bool = False, **arguments: Any) -> None:
        import torch
        from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

        from nextturn.train.guards import FiniteGuard

        model: Any = AutoModelForCausalLM.from_pretrained(folder)
        if lora:
            from peft import LoraConfig, get_peft_model

            model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"]))
        settings: dict[str, Any] = {"max_steps": 4, "save_steps": 1, "learning_rate": 1e-2, **arguments}
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

    def scale_gradient(self, name: str, factor: float, at_backward: int) -> None:
        """Multiply one parameter's gradient in the backward pass of that number, counted from 1."""
        calls: list[int] = []

        def scale(gradient: Any) -> Any:
            calls.append(1)
            return gradient * factor if len(calls) == at_backward else gradient

        self.parameters[name].register_hook(scale)

    def stopped(self) -> str:
        """Train until it is stopped; check that no weight has changed since the last whole step."""
        import torch

        with pytest.raises(TrainingStopped) as error:
            self.trainer.train()
        for name, parameter in self.parameters.items():
            assert torch.equal(parameter, self.snapshots[-1][name]), name
        return str(error.value)


@pytest.mark.parametrize(
    ("name", "factor", "backward", "step", "arguments"),
    [
        (POISONED, math.nan, 3, 3, {}),
        (POISONED, math.inf, 4, 2, {"gradient_accumulation_steps": 3}),  # in an early micro-batch
        (LORA, math.nan, 2, 2, {"lora": True}),
        # Every entry is finite, the norm is not: clipping would scale the whole gradient to nothing.
        (POISONED, 1e30, 2, 2, {"max_grad_norm": 1.0}),
        (POISONED, 1e30, 2, 2, {"max_grad_norm": 0.0}),
    ],
)
def test_a_gradient_that_is_not_finite_stops_its_step_and_is_named(
    name: str, factor: float, backward: int, step: int, arguments: Any, tiny_chatml: Path, tmp_path: Path
) -> None:
    steps = Steps(tiny_chatml, tmp_path / "run", **arguments)
    steps.scale_gradient(name, factor, backward)
    message = steps.stopped()
    assert f"before step {step}: " in message and name in message and "\n" not in message
    checkpoint = tmp_path / f"run/checkpoint-{step - 1}"
    assert str(checkpoint) in message and is_complete(checkpoint) is None and len(steps.snapshots) == step


def test_a_loss_that_is_not_finite_stops_though_the_gradients_are(tiny_chatml: Path, tmp_path: Path) -> None:
    """A label that is ruled out: -log 0 is infinite, while softmax minus one-hot is an ordinary gradient."""
    steps = Steps(tiny_chatml, tmp_path / "run")
    usual = steps.trainer.compute_loss

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        loss = usual(*args, **kwargs)
        return loss + math.inf if steps.trainer.state.global_step == 1 else loss

    steps.trainer.compute_loss = compute_loss
    assert "before step 2: the loss is not finite" in steps.stopped()


def test_a_batch_without_a_trained_token_stops_before_the_first_step(tiny_chatml: Path, tmp_path: Path) -> None:
    import torch

    steps = Steps(tiny_chatml, tmp_path / "run")
    for row in steps.trainer.train_dataset:
        row["labels"] = torch.full_like(row["labels"], -100)
    assert "before step 1: the loss is not finite" in steps.stopped()


def test_a_healthy_run_is_left_alone_and_the_guard_removes_its_hooks(tiny_chatml: Path, tmp_path: Path) -> None:
    steps = Steps(tiny_chatml, tmp_path / "run")
    steps.trainer.train()
    assert len(steps.snapshots) == 5
    assert "backward" not in vars(steps.trainer.accelerator)
    assert not any(p._backward_hooks for p in steps.model.parameters())


# Frees memory that lies below a block in use.
HOLES = """
import ctypes
from pathlib import Path
from nextturn.train.guards import return_freed

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
size = 100_000  # below the size from which glibc maps a block by itself
blocks = [libc.malloc(size) for _ in range(2000)]
for block in blocks:
    ctypes.memset(block, 1, size)
for block in blocks[:-1]:  # the last block stays, so the top of the heap does
    libc.free(block)
before = resident()
assert return_freed()
print(before - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's call")
def test_freed_memory_below_a_block_in_use_is_returned(tmp_path: Path) -> None:
    (tmp_path / "holes.py").write_text(HOLES)
    assert int(start([str(tmp_path / "holes.py")]).finish()) > 150 * 2**20
