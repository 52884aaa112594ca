"""Preference optimization (DPO) on pairs of replies, probed at every checkpoint.

    accelerate launch train/dpo.py recipes/qwen2b_dpo.yaml [--dry-run] [--resume auto|never|PATH]

A pair is one conversation so far and two replies. If information is missing, the preferred reply asks for it and the other
guesses; if nothing is missing, the preferred reply answers and the other asks. The same command works on no GPU, one, or many.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nextturn.probe.command.errors import run_command

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from nextturn.train.sections import DpoRecipe


def main(argv: Sequence[str]) -> None:
    from nextturn.train.training import command

    command("dpo", "Train a chat model to prefer one reply over another", argv, train)


def train(recipe: DpoRecipe, resume: str = "auto", callbacks: Sequence[TrainerCallback] = ()) -> None:
    """Train by the recipe, unless its run directory holds the finished run.

    Args:
        recipe: The recipe.
        resume: What `--resume` says.
        callbacks: Additional trainer callbacks, called before the built-in ones.
    """
    from nextturn.train.training import Run, already_finished

    if already_finished(recipe):
        return

    from trl import DPOConfig

    from nextturn.train.encoding import as_dataset, check_too_long, load_pairs, make_pairs
    from nextturn.train.overrides import PairTrainer
    from nextturn.train.policy import new_adapter

    # All input is checked before the model is loaded.
    run = Run(recipe, resume)
    args = run.arguments(DPOConfig)

    # Pairs as token ids: both replies after exactly the prompt that inference would show.
    pairs = list(load_pairs(run.data))
    run.warn_of_probed(pair.prompt for pair in pairs)
    rows, counts = make_pairs(pairs, run.chat, args.max_length)
    check_too_long("pairs", counts.too_long, counts.pairs, f"train.max_length {args.max_length}", recipe.data)
    run.begin()

    # The model, all weights or LoRA, and trl's trainer. The reference is a frozen copy, or the model without its adapter.
    model = run.load_policy()
    trainer = PairTrainer(
        model=model,
        args=args,
        train_dataset=as_dataset(rows),
        processing_class=run.tokenizer,
        peft_config=new_adapter(recipe.model, model),
        callbacks=list(callbacks),
    )
    run.train(trainer, "dpo")
    run.conclude(trainer, "trained by DPO", counts.summary(), pairs=vars(counts))


if __name__ == "__main__":
    sys.exit(run_command(main))
