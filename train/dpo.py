"""Preference optimization (DPO) on pairs of replies, probed at every checkpoint.

    accelerate launch train/dpo.py recipes/qwen2b_dpo.yaml [--dry-run] [--resume auto|never|weights|PATH]

A pair is one conversation so far and two replies: where something is missing, asking for it over a guess; where nothing is,
the answer over asking. Reads top to bottom: input, pairs, trainer, train. The same command works on no GPU, one, or many.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nextturn.probe.errors import run_command

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from nextturn.train.recipe import DpoRecipe


def main(argv: Sequence[str]) -> None:
    from nextturn.train.run import command

    command("dpo", "Trains a chat model to prefer one reply over another", argv, train)


def train(recipe: DpoRecipe, resume: str = "auto", callbacks: Sequence[TrainerCallback] = ()) -> None:
    """`callbacks`: of your own, called before ours."""
    from nextturn.train.run import Run, already_finished

    if already_finished(recipe):
        return

    from trl import DPOConfig

    from nextturn.train.rows import as_dataset, load_pairs, make_pairs
    from nextturn.train.setup import dpo_trainer_class, new_adapter

    # Everything that can be wrong with the input is found before the model is loaded.
    run = Run(recipe, resume)
    args = run.arguments(DPOConfig)

    # Pairs as token ids: both replies after exactly what inference would show.
    rows, counts = make_pairs(load_pairs(run.data), run.chat, args.max_length)
    run.begin()

    # The model, whole or with LoRA, and trl's trainer; what it is compared with is the base, frozen or under the adapter.
    model = run.load_policy()
    trainer = dpo_trainer_class()(
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
