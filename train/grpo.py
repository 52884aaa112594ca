"""Group relative policy optimization (GRPO) with simulated users in the loop, probed at every checkpoint.

    accelerate launch train/grpo.py recipes/qwen2b_grpo.yaml [--dry-run] [--resume auto|never|PATH]

Reads top to bottom: recipe, prompts, model, rewards, rollout, trainer, probe, train. Only the model's own turns are
trained; what a simulated user says carries no loss. The same command works on no GPU, one, or many.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probe.errors import run_command

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from train.recipe import GrpoRecipe


def main(argv: Sequence[str]) -> None:
    from train.setup import command_line

    arguments, overrides = command_line("grpo", "Trains a chat model on what its turns lead to", argv)
    from train.recipe import load_grpo_recipe

    recipe = load_grpo_recipe(arguments.recipe, overrides)
    if arguments.dry_run:
        from train.plan import describe_grpo as describe

        print(describe(recipe))
        return
    train(recipe, arguments.resume)


def train(recipe: GrpoRecipe, resume: str = "auto", callbacks: Sequence[TrainerCallback] = ()) -> None:
    """`callbacks`: of your own, called before ours."""
    from train.setup import already_finished, claim, conclude

    run_dir = Path(recipe.train.output_dir)  # type: ignore[attr-defined]
    if already_finished(run_dir, recipe):
        return

    from contextlib import closing

    from trl import GRPOConfig

    from probe.chat import Chat
    from probe.models import load_tokenizer
    from train.checkpoints import choose_resume
    from train.rewards import Rewards
    from train.rollouts import make_rollout
    from train.rows import load_prompts, prompt_dataset
    from train.samples import keep_samples, print_step_lines
    from train.scoring import ComposedReward
    from train.setup import (
        check_engine,
        equip,
        find_inputs,
        load_policy,
        new_adapter,
        quiet_trl,
        reward_line,
        run,
        training_arguments,
    )
    from train.setup import grpo_trainer_class as trainer_class

    # Everything that can be wrong with the input is found before the model is loaded.
    quiet_trl()
    args = training_arguments(recipe, GRPOConfig)
    check_engine(args)
    inputs = find_inputs(args, recipe)
    tokenizer = load_tokenizer(inputs.folder)
    chat = Chat(tokenizer, recipe.data.enable_thinking)
    least = args.generation_batch_size // args.num_generations
    rows, counts = load_prompts(inputs.data, recipe.data, chat, args.seed, least)
    checkpoint = choose_resume(run_dir, resume)

    with (
        closing(Rewards(recipe.reward, args.seed)) as rewards,
        closing(make_rollout(recipe.rollout, chat, rows, recipe.reward.wants_user_turns, args.seed)) as rollout,
    ):
        reward = ComposedReward(rewards, args.num_generations, recipe.reward.max_failed)
        claim(run_dir, recipe)
        model = load_policy(inputs.folder, recipe.model)
        trainer = trainer_class(args)(
            model=model,
            reward_funcs=reward,
            args=args,
            train_dataset=prompt_dataset(list(rows.values())),
            processing_class=tokenizer,
            peft_config=new_adapter(recipe.model, model),
            callbacks=list(callbacks),
            rollout_func=rollout,
        )
        print_step_lines(trainer)
        keep_samples(trainer, reward)
        equip(trainer, recipe, inputs, chat, "grpo")
        run(trainer, checkpoint)
    told = f"on {counts.told()}, {args.num_generations} samples each, mode {recipe.rollout.mode}."
    learned = reward_line(trainer.state.log_history)
    conclude(run_dir, trainer, recipe, ("trained by GRPO", f"{told}\n{learned}"), prompts=vars(counts))


if __name__ == "__main__":
    sys.exit(run_command(main))
