"""Supervised fine-tuning on conversations, probed at every checkpoint.

    accelerate launch train/sft.py recipes/qwen2b_sft.yaml [--dry-run] [--resume auto|never|weights|PATH]

Reads top to bottom: input, rows, what holds the model to its base, trainer, train. The same command works on no GPU, one, or many.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from probe.errors import run_command

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from train.recipe import SftRecipe


def main(argv: Sequence[str]) -> None:
    from train.run import command

    command("sft", "Fine-tunes a chat model on conversations", argv, train)


def train(recipe: SftRecipe, resume: str = "auto", callbacks: Sequence[TrainerCallback] = ()) -> None:
    """`callbacks`: of your own, called before ours."""
    from train.run import Run, already_finished

    if already_finished(recipe):
        return

    from trl import SFTConfig

    from train.kl import answer_rows, check_base, hold_to_base
    from train.rows import as_dataset, make_rows, read_conversations
    from train.setup import new_adapter, trainer_class, training_arguments, zero_in_force

    # Everything that can be wrong with the input is found before the model is loaded.
    args = training_arguments(recipe, SFTConfig, dataset_kwargs={"skip_prepare_dataset": True})
    run = Run(recipe, args, resume)
    if recipe.kl is not None:
        check_base(run.folder, zero_in_force(args))

    # Rows of token ids and labels: loss falls on what the assistant says, after exactly what inference would show.
    rows, counts = make_rows(read_conversations(run.data), run.chat, recipe.data.loss_on, args.max_length)
    run.begin()

    # Where the recipe holds the model to its base: what the base says of its own accord, before anything is trained.
    held_to = []
    if recipe.kl is not None:
        held_to = answer_rows(recipe.kl, run.folder, run.chat, args, run.run_dir, recipe.model.dtype)

    # The model, whole or with LoRA, and trl's trainer.
    model = run.load_policy()
    trainer = trainer_class(args)(
        model=model,
        args=args,
        train_dataset=as_dataset(rows, args.max_length if args.packing else None),
        processing_class=run.tokenizer,
        peft_config=new_adapter(recipe.model, model),
        callbacks=list(callbacks),
    )
    if recipe.kl is not None:
        hold_to_base(trainer, recipe.kl, held_to, run.folder)

    run.train(trainer, "sft")
    run.conclude(trainer, "fine-tuned", counts.summary(recipe.data.loss_on), rows=vars(counts))


if __name__ == "__main__":
    sys.exit(run_command(main))
