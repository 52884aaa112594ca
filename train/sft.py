"""Supervised fine-tuning on conversations, probed at every checkpoint.

    accelerate launch train/sft.py recipes/qwen2b_sft.yaml [--dry-run] [--resume auto|never|weights|PATH]

Reads top to bottom: recipe, data, model, trainer, probe, train. The same command works on no GPU, one, or many.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probe.errors import run_command

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from train.recipe import SftRecipe


def main(argv: Sequence[str]) -> None:
    from train.setup import command_line

    arguments, overrides = command_line("sft", "Fine-tunes a chat model on conversations", argv)
    from train.recipe import load_sft_recipe

    recipe = load_sft_recipe(arguments.recipe, overrides)
    if arguments.dry_run:
        from train.plan import describe

        print(describe(recipe))
        return
    train(recipe, arguments.resume)


def train(recipe: SftRecipe, resume: str = "auto", callbacks: Sequence[TrainerCallback] = ()) -> None:
    """`callbacks`: of your own, called before ours."""
    from train.setup import already_finished, claim, conclude

    run_dir = Path(recipe.train.output_dir)  # type: ignore[attr-defined]
    if already_finished(run_dir, recipe):
        return

    from trl import SFTConfig

    from probe.chat import Chat
    from probe.models import load_tokenizer
    from probe.recipe import recipe_dict
    from probe.terminal import say
    from probe.tracking import start_tracking
    from train.checkpoints import (
        choose_resume,
        mark_checkpoints,
        remove_incomplete,
        this_launch,
        without_optimizer,
    )
    from train.guards import ReturnsFreedMemory, install_guard
    from train.kl import answer_rows, check_base, hold_to_base
    from train.probing import probe_checkpoints, sets_to_probe, watched_elsewhere
    from train.rows import as_dataset, data_path, make_rows, read_conversations
    from train.setup import (
        held_in,
        launch_line,
        load_policy,
        main_process_first,
        new_adapter,
        policy_folder,
        trainer_class,
        training_arguments,
        zero_in_force,
    )

    # Everything that can be wrong with the input is found before the model is loaded: trl's arguments in this launch,
    # then what one process downloads, converts and builds while the others wait.
    args = training_arguments(recipe, SFTConfig, dataset_kwargs={"skip_prepare_dataset": True})
    with main_process_first(args):
        folder = policy_folder(recipe.model)
        data = data_path(recipe.data.path, recipe.data.recipe)
        sets = sets_to_probe(recipe.probe)
    if recipe.kl is not None:
        check_base(folder, zero_in_force(args))

    # Rows of token ids and labels: loss falls on what the assistant says, after exactly what inference would show.
    tokenizer = load_tokenizer(folder)
    chat = Chat(tokenizer, recipe.data.enable_thinking)
    rows, counts = make_rows(read_conversations(data), chat, recipe.data.loss_on, args.max_length)
    checkpoint = choose_resume(run_dir, resume, this_launch(args))
    weights = checkpoint if resume == "weights" else None
    claim(run_dir, recipe)

    # Where the recipe holds the model to its base: what the base says of its own accord, before anything is trained.
    held_to = answer_rows(recipe.kl, folder, chat, args, run_dir, recipe.model.dtype) if recipe.kl is not None else []

    # The model, whole or with LoRA, and trl's trainer.
    model = load_policy(folder, recipe.model, held_in(recipe.model, zero_in_force(args)), weights)
    trainer = trainer_class(args)(
        model=model,
        args=args,
        train_dataset=as_dataset(rows, args.max_length if args.packing else None),
        processing_class=tokenizer,
        peft_config=new_adapter(recipe.model, model),
        callbacks=list(callbacks),
    )
    if recipe.kl is not None:
        hold_to_base(trainer, recipe.kl, held_to, folder)
    say(launch_line(trainer))

    # At every step: nothing that is not finite reaches a weight. At every checkpoint: first the mark that it is whole,
    # then the probe, whose results the tracker shows.
    install_guard(trainer)
    mark_checkpoints(trainer)
    probe_checkpoints(trainer, recipe.probe, folder, chat, sets, recipe.model.dtype)
    if args.use_cpu:
        trainer.add_callback(ReturnsFreedMemory())
    start_tracking(recipe.tracking, run_dir, recipe_dict(recipe), "sft", shared=watched_elsewhere(recipe.probe))

    # From the beginning or from a checkpoint, after setting aside what a killed run left past it.
    if trainer.accelerator.is_main_process:
        remove_incomplete(run_dir, checkpoint)
    trainer.accelerator.wait_for_everyone()
    if weights is not None:
        without_optimizer(trainer, weights)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    conclude(run_dir, trainer, recipe, ("fine-tuned", counts.summary(recipe.data.loss_on)), rows=vars(counts))


if __name__ == "__main__":
    sys.exit(run_command(main))
