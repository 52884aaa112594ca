"""Runs train/sft.py or train/grpo.py with the trainers that a GPU gets, trl's own head included, on CPUs.

accelerate launch --config_file tests/as_on_gpus.yaml tests/as_on_gpus.py sft|grpo RECIPE
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from probe.errors import run_command
from train import setup


def of_gpus(choose: Callable[[Any], type]) -> Callable[[Any], type]:
    """The class that `choose` gives where there is a GPU, told by its name."""

    def chosen(args: Any) -> type:
        kind = choose(SimpleNamespace(use_cpu=False))
        print(f"trainer   {kind.__name__}")
        tell_types()
        return kind

    return chosen


def tell_types() -> None:
    """Have ZeRO-2's optimizer print the types in which it reduces and sums gradients."""
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    step = DeepSpeedZeroOptimizer.step

    def told(self: Any, *args: Any) -> Any:
        print(f"gradients {self.communication_data_type} {self.averaged_gradients[0][0].dtype}")
        return step(self, *args)

    DeepSpeedZeroOptimizer.step = told


if __name__ == "__main__":
    setup.trainer_class, setup.grpo_trainer_class = of_gpus(setup.trainer_class), of_gpus(setup.grpo_trainer_class)
    sys.exit(run_command(import_module(f"train.{sys.argv[1]}").main, sys.argv[2:]))
