"""Supervised fine-tuning on conversations, probed at every checkpoint.

    accelerate launch train/sft.py recipes/qwen2b_sft.yaml [--dry-run] [--resume auto|never|PATH]

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
    from train.checkpoints import choose_resume
    from train.rows import as_dataset, make_rows, read_conversations
    from train.setup import equip, find_inputs, load_policy, new_adapter, run, trainer_class, training_arguments

    # Everything that can be wrong with the input is found before the model is loaded.
    args = training_arguments(recipe, SFTConfig, dataset_kwargs={"skip_prepare_dataset": True})
    inputs = find_inputs(args, recipe)
    tokenizer = load_tokenizer(inputs.folder)
    chat = Chat(tokenizer, recipe.data.enable_thinking)
    rows, counts = make_rows(read_conversations(inputs.data), chat, recipe.data.loss_on, args.max_length)
    checkpoint = choose_resume(run_dir, resume)

    claim(run_dir, recipe)
    model = load_policy(inputs.folder, recipe.model)
    trainer = trainer_class(args)(
        model=model,
        args=args,
        train_dataset=as_dataset(rows, args.max_length if args.packing else None),
        processing_class=tokenizer,
        peft_config=new_adapter(recipe.model, model),
        callbacks=list(callbacks),
    )
    equip(trainer, recipe, inputs, chat, "sft")
    run(trainer, checkpoint)
    conclude(run_dir, trainer, recipe, ("fine-tuned", counts.told(recipe.data.loss_on)), rows=vars(counts))


if __name__ == "__main__":
    sys.exit(run_command(main))
