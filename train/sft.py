"""Supervised fine-tuning on conversations, probed at every checkpoint.

    accelerate launch train/sft.py recipes/qwen2b_sft.yaml [--dry-run] [--resume auto|never|PATH]

Reads top to bottom: recipe, data, model, trainer, probe, train. The same command works on no GPU, one, or many.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probe.errors import run_command

if TYPE_CHECKING:
    from train.recipe import SftRecipe


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="accelerate launch train/sft.py",
        description="Fine-tunes a chat model on conversations and probes it before training and at every checkpoint.",
        epilog="Options in the recipe's own words override it: --train.learning_rate 2e-5",
    )
    parser.add_argument("recipe", type=Path, help="a recipe such as recipes/qwen2b_sft.yaml")
    parser.add_argument("--dry-run", action="store_true", help="check everything, show the plan, change nothing")
    parser.add_argument(
        "--resume", default="auto", metavar="auto|never|PATH", help="default: the newest whole checkpoint"
    )
    arguments, overrides = parser.parse_known_args(argv)

    from train.recipe import load_sft_recipe

    recipe = load_sft_recipe(arguments.recipe, overrides)
    if arguments.dry_run:
        from train.plan import describe

        print(describe(recipe))
        return
    train(recipe, arguments.resume)


def train(recipe: SftRecipe, resume: str) -> None:
    from train.runfolder import already_finished, claim, conclude

    run_dir = Path(recipe.train.output_dir)  # type: ignore[attr-defined]
    if already_finished(run_dir, recipe):
        return

    from trl import SFTConfig

    from probe.chat import Chat
    from probe.models import load_tokenizer, resolve
    from probe.processes import say
    from probe.questions import load_sets
    from probe.recipe import recipe_dict
    from probe.tracking import start_tracking
    from train.checkpoints import choose_resume, mark_checkpoints, remove_incomplete
    from train.guards import install_guard
    from train.launch import launch_line, trainer_class, training_arguments, watch_line
    from train.policy import load_policy, lora_config
    from train.probing import ProbeCallback, WatchedCallback
    from train.rows import as_dataset, conversations_path, make_rows, read_conversations

    # Everything that can be wrong with the input is found before the model is loaded.
    args = training_arguments(recipe, SFTConfig)
    with args.main_process_first(local=False, desc="inputs"):  # one process downloads, converts and builds
        folder = resolve(recipe.model.name)
        data = conversations_path(recipe.data)
        sets = load_sets(recipe.probe) if recipe.probe and recipe.probe.when == "inline" else None
    tokenizer = load_tokenizer(folder)
    chat = Chat(tokenizer, recipe.data.enable_thinking)
    rows, counts = make_rows(read_conversations(data), chat, recipe.data.loss_on, args.max_length)
    checkpoint = choose_resume(run_dir, resume)

    claim(run_dir, recipe)
    model = load_policy(folder, recipe.model)
    trainer = trainer_class(args)(
        model=model,
        args=args,
        train_dataset=as_dataset(rows),
        processing_class=tokenizer,
        peft_config=lora_config(recipe.model.lora, model) if recipe.model.lora else None,
    )
    say(launch_line(trainer))
    install_guard(trainer)
    mark_checkpoints(trainer)
    if recipe.probe and sets is not None:
        trainer.add_callback(ProbeCallback(trainer, folder, chat, recipe.probe, sets))
    watched = recipe.probe is not None and recipe.probe.when == "watch"
    if watched:
        say(watch_line(run_dir))
        trainer.add_callback(WatchedCallback())
    start_tracking(recipe.tracking, run_dir, recipe_dict(recipe), "sft", shared=watched)

    if trainer.accelerator.is_main_process:
        remove_incomplete(run_dir, checkpoint)
    trainer.accelerator.wait_for_everyone()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    conclude(run_dir, trainer, recipe, counts)


if __name__ == "__main__":
    sys.exit(run_command(main))
