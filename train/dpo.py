"""Preference optimization (DPO) on pairs of replies, probed at every checkpoint.

    accelerate launch train/dpo.py recipes/qwen2b_dpo.yaml [--dry-run] [--resume auto|never|weights|PATH]

A pair is one conversation so far and two replies: where something is missing, asking for it over a guess; where nothing is,
the answer over asking. Reads top to bottom: recipe, pairs, model, trainer, probe, train. The same command works on no GPU, one,
or many.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probe.errors import run_command

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from train.recipe import DpoRecipe


def main(argv: Sequence[str]) -> None:
    from train.setup import command_line

    arguments, overrides = command_line("dpo", "Trains a chat model to prefer one reply over another", argv)
    from train.recipe import load_dpo_recipe

    recipe = load_dpo_recipe(arguments.recipe, overrides)
    if arguments.dry_run:
        from train.plan import describe

        print(describe(recipe))
        return
    train(recipe, arguments.resume)


def train(recipe: DpoRecipe, resume: str = "auto", callbacks: Sequence[TrainerCallback] = ()) -> None:
    """`callbacks`: of your own, called before ours."""
    from train.setup import already_finished, claim, conclude

    run_dir = Path(recipe.train.output_dir)  # type: ignore[attr-defined]
    if already_finished(run_dir, recipe):
        return

    from trl import DPOConfig

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
    from train.probing import probe_checkpoints, sets_to_probe, watched_elsewhere
    from train.rows import as_dataset, data_path, load_pairs, make_pairs
    from train.setup import (
        dpo_trainer_class,
        held_in,
        launch_line,
        load_policy,
        main_process_first,
        new_adapter,
        policy_folder,
        training_arguments,
        zero_in_force,
    )

    # Everything that can be wrong with the input is found before the model is loaded: trl's arguments in this launch,
    # then what one process downloads, converts and builds while the others wait.
    args = training_arguments(recipe, DPOConfig)
    with main_process_first(args):
        folder = policy_folder(recipe.model)
        data = data_path(recipe.data.path, recipe.data.recipe)
        sets = sets_to_probe(recipe.probe)

    # Pairs as token ids: both replies after exactly what inference would show.
    tokenizer = load_tokenizer(folder)
    chat = Chat(tokenizer, recipe.data.enable_thinking)
    rows, counts = make_pairs(load_pairs(data, recipe.data.view), chat, args.max_length)
    checkpoint = choose_resume(run_dir, resume, this_launch(args))
    weights = checkpoint if resume == "weights" else None
    claim(run_dir, recipe)

    # The model, whole or with LoRA, and trl's trainer; what it is compared with is the base, frozen or under the adapter.
    model = load_policy(folder, recipe.model, held_in(recipe.model, zero_in_force(args)), weights)
    trainer = dpo_trainer_class()(
        model=model,
        args=args,
        train_dataset=as_dataset(rows),
        processing_class=tokenizer,
        peft_config=new_adapter(recipe.model, model),
        callbacks=list(callbacks),
    )
    say(launch_line(trainer))

    # At every step: nothing that is not finite reaches a weight. At every checkpoint: first the mark that it is whole,
    # then the probe, whose results the tracker shows.
    install_guard(trainer)
    mark_checkpoints(trainer)
    probe_checkpoints(trainer, recipe.probe, folder, chat, sets, recipe.model.dtype)
    if args.use_cpu:
        trainer.add_callback(ReturnsFreedMemory())
    start_tracking(recipe.tracking, run_dir, recipe_dict(recipe), "dpo", shared=watched_elsewhere(recipe.probe))

    # From the beginning or from a checkpoint, after setting aside what a killed run left past it.
    if trainer.accelerator.is_main_process:
        remove_incomplete(run_dir, checkpoint)
    trainer.accelerator.wait_for_everyone()
    if weights is not None:
        without_optimizer(trainer, weights)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    conclude(run_dir, trainer, recipe, ("trained by DPO", counts.summary()), pairs=vars(counts))


if __name__ == "__main__":
    sys.exit(run_command(main))
