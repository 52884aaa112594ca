"""Small data and recipes of SFT runs that train a tiny model for a few steps."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import yaml

from nextturn.probe.command.files import write_jsonl
from nextturn.probe.models.checkpoints import list_checkpoints
from support.conversations import messages
from support.grpo_parts import probe_section
from support.launches import PATIENCE_S

STEPS, SAVE = 4, 2


def write_data(folder: Path) -> Path:
    talks = [
        messages(f"Ann has {n} apples and buys {n + 1}. How many?",
                 f"{n} + {n + 1} = {2 * n + 1}. The answer is \\boxed{{{2 * n + 1}}}.",
                 "Why add?", "Because buying makes more.")
        for n in range(12)
    ]  # fmt: skip
    write_jsonl(folder / "conversations.jsonl", [{"messages": talk} for talk in talks])
    return folder / "conversations.jsonl"


def write_recipe(
    folder: Path, model: Path, data: dict[str, Any], train: Any = None, probe: Any = None, **section: Any
) -> Path:
    """Write a recipe that trains a tiny model for a few steps and probes it at every checkpoint.

    Args:
        train, probe: Keys of these sections that are added or changed.
        section: Keys of `model` that are added or changed.
    """
    recipe = {
        "model": {"name": str(model), "dtype": "float32", **section},
        "data": data,
        "train": {
            "output_dir": str(folder / "run"), "max_steps": STEPS, "save_steps": SAVE, "logging_steps": 1,
            "per_device_train_batch_size": 2, "learning_rate": 1e-3, "bf16": False, "gradient_checkpointing": False,
            "save_strategy": "steps", "seed": 3, "ddp_timeout": PATIENCE_S,
            **(train or {}),
        },
        "probe": probe_section(folder) | (probe or {}),
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def take_back(run: Path, steps: int) -> None:
    """Leave the run directory as if the run had been killed after so many steps."""
    (run / "finished.json").unlink()
    for _, folder in list_checkpoints(run):
        if int(folder.name.rpartition("-")[2]) > steps:
            shutil.rmtree(folder)


def sigterm_in(step: int, rank: int = 0, number: int = signal.SIGTERM) -> Any:
    """Return a callback by which one process gets SIGTERM, or another signal, in a step."""
    from transformers import TrainerCallback

    class Sigterm(TrainerCallback):  # type: ignore[misc]
        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == step - 1 and args.process_index == rank:
                for _ in range(2):  # from Slurm, and from the launcher
                    os.kill(os.getpid(), number)

        on_step_begin = on_substep_end

    return Sigterm()
