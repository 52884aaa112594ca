"""The steps that sft.py and grpo.py have in common: command line, inputs, what is hung onto a trainer, the run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from probe.chat import Chat
    from probe.models import ModelFolder
    from probe.questions import LoadedSet
    from train.grpo_recipe import GrpoRecipe
    from train.recipe import SftRecipe

Stage = Literal["sft", "grpo"]


@dataclass(frozen=True)
class Inputs:
    """What a run reads: the model to start from, the data, and the probe's sets where it is made inline."""

    folder: ModelFolder
    data: Path
    sets: list[LoadedSet] | None


def command_line(stage: Stage, does: str, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """(recipe, dry_run, resume), and the overrides in the recipe's own words."""
    parser = argparse.ArgumentParser(
        prog=f"accelerate launch train/{stage}.py",
        description=f"{does} and probes it before training and at every checkpoint.",
        epilog="Options in the recipe's own words override it: --train.learning_rate 2e-5",
    )
    parser.add_argument("recipe", type=Path, help=f"a recipe such as recipes/qwen2b_{stage}.yaml")
    parser.add_argument("--dry-run", action="store_true", help="check everything, show the plan, change nothing")
    parser.add_argument(
        "--resume", default="auto", metavar="auto|never|PATH", help="default: the newest whole checkpoint"
    )
    return parser.parse_known_args(argv)


def find_inputs(args: Any, recipe: SftRecipe | GrpoRecipe) -> Inputs:
    """Finds everything that can be wrong with the input before a model is loaded.

    One process downloads, converts and builds, the others wait; the args are those of the trainer.
    """
    from probe.questions import load_sets
    from train.policy import policy_folder
    from train.rows import data_path

    with args.main_process_first(local=False, desc="inputs"):
        folder = policy_folder(recipe.model)
        data = data_path(recipe.data.path, recipe.data.recipe)
        sets = load_sets(recipe.probe) if recipe.probe and recipe.probe.when == "inline" else None
    return Inputs(folder, data, sets)


def equip(trainer: Any, recipe: SftRecipe | GrpoRecipe, inputs: Inputs, chat: Chat, stage: Stage) -> None:
    """Guard, checkpoint markers, probe, tracking, freed memory; says what this launch turned out to be."""
    from probe.processes import say
    from probe.recipe import recipe_dict
    from probe.tracking import start_tracking
    from train.checkpoints import mark_checkpoints
    from train.guards import install_guard
    from train.host_memory import ReturnsFreedMemory
    from train.launch import launch_line, watch_line
    from train.probing import ProbeCallback, WatchedCallback

    run_dir = Path(trainer.args.output_dir)
    say(launch_line(trainer))
    install_guard(trainer)
    mark_checkpoints(trainer)
    if recipe.probe and inputs.sets is not None:
        trainer.add_callback(ProbeCallback(trainer, inputs.folder, chat, recipe.probe, inputs.sets))
    watched = recipe.probe is not None and recipe.probe.when == "watch"
    if watched:
        say(watch_line(run_dir))
        trainer.add_callback(WatchedCallback())
    if trainer.args.use_cpu:
        trainer.add_callback(ReturnsFreedMemory())
    start_tracking(recipe.tracking, run_dir, recipe_dict(recipe), stage, shared=watched)


def run(trainer: Any, checkpoint: Path | None) -> None:
    """Trains from the beginning or from a checkpoint, after setting aside what a killed run left past it."""
    from train.checkpoints import remove_incomplete

    if trainer.accelerator.is_main_process:
        remove_incomplete(Path(trainer.args.output_dir), checkpoint)
    trainer.accelerator.wait_for_everyone()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
