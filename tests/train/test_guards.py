"""A non-finite loss or gradient stops the run before the step: weights and checkpoints stay as they were. Freed memory is
returned."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.checkpoints import is_complete, newest_complete
from nextturn.probe.errors import TrainingStopped
from nextturn.train.checkpoints import mark_checkpoints
from nextturn.train.guards import install_guard
from support.commands import start
from support.launches import Launched

POISONED = "model.layers.1.mlp.down_proj.weight"

# Trains a tiny Qwen3.5 on two processes and multiplies one gradient of rank 1 in step 3. Each process compares its own
# weights (under ZeRO-3: its part of them) with those at the end of step 2.
SCRIPT = """
import sys, torch, transformers
from nextturn.probe.errors import TrainingStopped, run_command
from nextturn.train.checkpoints import mark_checkpoints
from nextturn.train.guards import install_guard
from nextturn.train.setup import reduce_with_gloo

def weights(model):
    return [getattr(p, "ds_tensor", p).detach().clone() for p in model.parameters()]

class Snapshot(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.weights = weights(model)

def main(argv):
    model_folder, run_dir, factor = argv
    reduce_with_gloo()
    args = transformers.TrainingArguments(
        output_dir=run_dir, per_device_train_batch_size=1, max_steps=4, save_steps=1, learning_rate=1e-2,
        report_to="none", use_cpu=True, disable_tqdm=True, logging_steps=1)
    rows = [{"input_ids": torch.arange(12) + i, "labels": torch.arange(12) + i} for i in range(8)]
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder)
    trainer = transformers.Trainer(model, args, train_dataset=rows)
    rank, snapshot = trainer.accelerator.process_index, Snapshot()
    poisoned = dict(model.named_parameters())["model.layers.1.mlp.down_proj.weight"]
    poisoned.register_hook(lambda g: g * float(factor) if rank == 1 and trainer.state.global_step == 2 else g)
    mark_checkpoints(trainer)
    trainer.add_callback(snapshot)
    install_guard(trainer)
    try:
        trainer.train()
    except TrainingStopped:
        same = all(torch.equal(a, b) for a, b in zip(snapshot.weights, weights(model)))
        print(f"rank {rank}: type {trainer.accelerator.distributed_type}, weights {'same' if same else 'CHANGED'}")
        raise

sys.exit(run_command(main))
"""


ZERO = """
use_cpu: true
num_machines: 1
num_processes: 2
mixed_precision: 'no'
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: {stage}
  zero3_init_flag: true
  zero3_save_16bit_model: true
  offload_optimizer_device: none
  offload_param_device: none
  gradient_accumulation_steps: 1
"""


def launch(kind: str, script: list[str], tmp_path: Path) -> Launched:
    """On a CPU, accelerate's launcher starts several processes for DeepSpeed, for plain DDP only through MPI."""
    if kind == "ddp":
        return Launched(script, None, tmp_path)
    (tmp_path / "launch.yaml").write_text(ZERO.format(stage=kind[-1]))
    return Launched(script, tmp_path / "launch.yaml", tmp_path)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "kind, factor, found",
    [
        ("ddp", "nan", f"the gradient of {POISONED}"),
        ("zero3", "nan", f"the gradient of {POISONED}"),
        # Finite on every process, but too large to reduce: DeepSpeed skips such a step and goes on in silence.
        ("zero2", "1e30", "the norm of the gradient over all processes"),
    ],
)
def test_all_processes_stop_together_with_their_weights_unchanged(
    kind: str, factor: str, found: str, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "guarded.py").write_text(SCRIPT)
    script = [str(tmp_path / "guarded.py"), str(tiny_model), str(tmp_path / "run"), factor]
    launched = launch(kind, script, tmp_path)
    codes, output = launched.wait(), launched.output
    assert all(codes), output
    expected = "DistributedType.MULTI_CPU" if kind == "ddp" else "DistributedType.DEEPSPEED"
    for rank in (0, 1):
        assert f"rank {rank}: type {expected}, weights same" in output, output
    message = next(line for line in output.splitlines() if line.startswith("error: "))
    assert f"stopped before step 3: {found} is not finite" in message
    assert f"Last good checkpoint: {tmp_path}/run/checkpoint-2." in message
    assert newest_complete(tmp_path / "run") == (tmp_path / "run/checkpoint-2", [])


class Steps:
    """A trainer of a tiny Llama on one process, with the weights after every step."""

    def __init__(self, folder: Path, tmp_path: Path, lora: bool = False, **arguments: Any) -> None:
        import torch
        from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

        model: Any = AutoModelForCausalLM.from_pretrained(folder)
        if lora:
            from peft import LoraConfig, get_peft_model

            model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"]))
        settings: dict[str, Any] = {"max_steps": 4, "save_steps": 1, "learning_rate": 1e-2, **arguments}
        args = TrainingArguments(
            output_dir=str(tmp_path / "run"),
            per_device_train_batch_size=1,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            **settings,
        )
        rows = [{"input_ids": torch.arange(12) + i, "labels": torch.arange(12) + i} for i in range(16)]
        snapshots: list[Any] = []

        class Snapshot(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                snapshots.append({name: p.detach().clone() for name, p in model.named_parameters()})

        self.model, self.snapshots = model, snapshots
        self.trainer: Any = Trainer(model, args, train_dataset=rows, callbacks=[Snapshot()])
        mark_checkpoints(self.trainer)
        install_guard(self.trainer)

    def scale_gradient(self, name: str, factor: float, at_backward: int) -> None:
        """Multiplies one parameter's gradient in the backward pass of that number, counted from 1."""
        calls: list[int] = []

        def scale(gradient: Any) -> Any:
            calls.append(1)
            return gradient * factor if len(calls) == at_backward else gradient

        dict(self.model.named_parameters())[name].register_hook(scale)

    def stopped(self) -> str:
        """Trains until it is stopped; checks that no weight has moved since the last whole step."""
        import torch

        with pytest.raises(TrainingStopped) as error:
            self.trainer.train()
        for name, parameter in self.model.named_parameters():
            assert torch.equal(parameter, self.snapshots[-1][name]), name
        return str(error.value)


def test_nan_in_one_gradient_names_step_parameter_and_checkpoint(tiny_chatml: Path, tmp_path: Path) -> None:
    steps = Steps(tiny_chatml, tmp_path)
    steps.scale_gradient(POISONED, math.nan, at_backward=3)
    message = steps.stopped()
    assert "\n" not in message
    assert f"before step 3: the gradient of {POISONED} is not finite" in message
    assert f"Last good checkpoint: {tmp_path / 'run/checkpoint-2'}." in message and "learning_rate" in message
    assert is_complete(tmp_path / "run/checkpoint-2") is None and len(steps.snapshots) == 2


def test_nan_in_an_early_micro_batch_stops_its_step(tiny_chatml: Path, tmp_path: Path) -> None:
    steps = Steps(tiny_chatml, tmp_path, gradient_accumulation_steps=3)
    steps.scale_gradient(POISONED, math.inf, at_backward=4)
    assert "before step 2: the gradient of" in steps.stopped()


def test_lora_run_names_the_adapter_weight(tiny_chatml: Path, tmp_path: Path) -> None:
    steps = Steps(tiny_chatml, tmp_path, lora=True)
    name = next(name for name, p in steps.model.named_parameters() if p.requires_grad and "lora_B" in name)
    steps.scale_gradient(name, math.nan, at_backward=2)
    assert f"before step 2: the gradient of {name} is not finite" in steps.stopped()


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
def test_gradient_too_large_to_measure_stops_too(tiny_chatml: Path, tmp_path: Path, max_grad_norm: float) -> None:
    # Every entry is finite, its square is not: clipping would scale the whole gradient to nothing.
    steps = Steps(tiny_chatml, tmp_path, max_grad_norm=max_grad_norm)
    steps.scale_gradient(POISONED, 1e30, at_backward=2)
    assert "before step 2: the norm of the gradient is not finite" in steps.stopped()


def test_infinite_loss_with_finite_gradients_stops(tiny_chatml: Path, tmp_path: Path) -> None:
    # A ruled-out label: -log 0 is infinite, while softmax minus one-hot is an ordinary gradient.
    steps = Steps(tiny_chatml, tmp_path)
    usual = steps.trainer.compute_loss

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        loss = usual(*args, **kwargs)
        return loss + math.inf if steps.trainer.state.global_step == 1 else loss

    steps.trainer.compute_loss = compute_loss
    assert "before step 2: the loss is not finite" in steps.stopped()


def test_batch_without_a_trained_token_stops_before_the_first_step(tiny_chatml: Path, tmp_path: Path) -> None:
    import torch

    steps = Steps(tiny_chatml, tmp_path)
    steps.snapshots.append({name: p.detach().clone() for name, p in steps.model.named_parameters()})
    for row in steps.trainer.train_dataset:
        row["labels"] = torch.full_like(row["labels"], -100)
    message = steps.stopped()
    assert "before step 1: the loss is not finite. No checkpoint was saved yet" in message


def test_healthy_run_is_left_alone_and_the_guard_takes_its_hooks_back(tiny_chatml: Path, tmp_path: Path) -> None:
    steps = Steps(tiny_chatml, tmp_path)
    steps.trainer.train()
    assert len(steps.snapshots) == 4
    assert "backward" not in vars(steps.trainer.accelerator)
    assert not any(p._backward_hooks for p in steps.model.parameters())


# Freed memory goes back to the system, also where it lies between blocks that are still in use.
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
for block in blocks[:-1]:  # the last one stays, so the top of the heap does
    libc.free(block)
before = resident()
assert return_freed()
print(before - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's call")
def test_what_lies_free_below_a_block_in_use_is_returned(tmp_path: Path) -> None:
    (tmp_path / "holes.py").write_text(HOLES)
    assert int(start([str(tmp_path / "holes.py")]).finish()) > 150 * 2**20
