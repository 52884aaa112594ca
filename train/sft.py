"""Supervised fine-tuning on conversations, probed at every checkpoint.

    accelerate launch train/sft.py recipes/qwen2b_sft.yaml [--dry-run] [--resume auto|never|PATH]

The same command works on no GPU, one, or many.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nextturn.probe.command.errors import run_command

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from nextturn.train.sections import SftRecipe


def main(argv: Sequence[str]) -> None:
    from nextturn.train.training import command

    command("sft", "Fine-tune a chat model on conversations", argv, train)


def train(recipe: SftRecipe, resume: str = "auto", callbacks: Sequence[TrainerCallback] = ()) -> None:
    """Train by the recipe, unless its run directory holds the finished run.

    Args:
        recipe: The recipe.
        resume: What `--resume` says.
        callbacks: Additional trainer callbacks, called before the built-in ones.
    """
    from nextturn.train.training import Run, already_finished

    if already_finished(recipe):
        return

    from trl import SFTConfig

    from nextturn.probe.data.tables import located
    from nextturn.probe.models.user_model import UserModelInfo
    from nextturn.train.encoding import as_dataset, load_rows
    from nextturn.train.inputs import check_validation
    from nextturn.train.overrides import ConversationTrainer
    from nextturn.train.policy import new_adapter

    # All input is checked before the model is loaded.
    run = Run(recipe, resume)
    args = run.arguments(SFTConfig, dataset_kwargs={"skip_prepare_dataset": True}, **evaluation(recipe))

    # Rows of token ids and labels: the loss is on assistant turns, or with `loss_on: user` on user turns, each after exactly the
    # tokens that inference would show.
    conversations, rows, counts = load_rows(run.data, recipe.data, run.chat, args.max_length)
    run.warn_of_probed(conversations)
    del conversations
    validation: list[dict[str, list[int]]] = []
    if recipe.data.validation:
        path = located(recipe.data.validation, "data.validation")
        _, validation, _ = load_rows(path, recipe.data, run.chat, args.max_length)
        check_validation(rows, validation)
    info = UserModelInfo(recipe.model.name, run.chat.template_sha256, counts.intents > 0)
    run.begin(info if recipe.data.loss_on == "user" else None)

    # The model, all weights or LoRA, and trl's trainer.
    model = run.load_policy()
    trainer = ConversationTrainer(
        model=model,
        args=args,
        train_dataset=as_dataset(rows),
        eval_dataset=as_dataset(validation) if validation else None,
        processing_class=run.tokenizer,
        peft_config=new_adapter(recipe.model, model),
        callbacks=list(callbacks),
    )

    run.train(trainer, "sft")
    losses = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    first = f"{losses[0]:.3f} at first, " if len(losses) > 1 else ""
    validated = f" Validation loss: {first}{losses[-1]:.3f} at the end." if losses else ""
    run.conclude(trainer, "fine-tuned", counts.summary(recipe.data.loss_on) + validated, rows=vars(counts))


def evaluation(recipe: SftRecipe) -> dict[str, object]:
    """Return trl's arguments for the loss on `data.validation`: at every save, if the recipe does not say when."""
    given = recipe.arguments
    if recipe.data.validation is None or "eval_strategy" in given:
        return {}
    when: dict[str, object] = {"eval_strategy": given.get("save_strategy", "steps")}
    if "eval_steps" not in given:  # transformers would take `logging_steps`
        when["eval_steps"] = given.get("save_steps", 500)
    return when


if __name__ == "__main__":
    sys.exit(run_command(main))
