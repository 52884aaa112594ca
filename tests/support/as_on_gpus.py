"""Run train/sft.py or train/grpo.py on CPU processes as on GPUs: under the recipe's own `deepspeed:` file, with trl's trainers.

    accelerate launch --config_file recipes/accelerate/many_gpus.yaml --num_processes 2 tests/support/as_on_gpus.py sft RECIPE

A CPU takes the place of a GPU and gloo that of NCCL.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import transformers.training_args
from accelerate.state import DistributedType, PartialState

from nextturn.probe.command.errors import run_command
from nextturn.train import setup
from nextturn.train import training as run
from nextturn.train.overrides import reduce_with_gloo


def tell_types() -> None:
    """Have ZeRO-2's optimizer print the types in which it reduces and sums gradients."""
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    step = DeepSpeedZeroOptimizer.step

    def told(self: Any, *args: Any) -> Any:
        print(f"gradients {self.communication_data_type} {self.averaged_gradients[0][0].dtype}")
        return step(self, *args)

    DeepSpeedZeroOptimizer.step = told


if __name__ == "__main__":
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
    transformers.training_args.is_torch_bf16_gpu_available = lambda: True
    setup.trains_on_gpus = run.trains_on_gpus = lambda given: True
    reduce_with_gloo()
    tell_types()
    sys.exit(run_command(import_module(f"nextturn.train.{sys.argv[1]}").main, sys.argv[2:]))
