"""Group relative policy optimization (GRPO) with simulated users in the loop, probed at every checkpoint.

    accelerate launch train/grpo.py recipes/qwen2b_grpo.yaml [--dry-run] [--resume auto|never|weights|PATH]

Reads top to bottom: input, prompts, rewards, rollout, trainer, train. Only the model's own turns are trained; what a
simulated user says carries no loss. The same command works on no GPU, one, or many.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nextturn.probe.errors import run_command

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from nextturn.train.recipe import GrpoRecipe


def main(argv: Sequence[str]) -> None:
    from nextturn.train.run import command

    command("grpo", "Trains a chat model on what its turns lead to", argv, train)


def train(recipe: GrpoRecipe, resume: str = "auto", callbacks: Sequence[TrainerCallback] = ()) -> None:
    """`callbacks`: of your own, called before ours."""
    from nextturn.train.run import Run, already_finished, reward_line

    if already_finished(recipe):
        return

    from contextlib import closing

    from trl import GRPOConfig

    from nextturn.data_builders.rows import load_rl_rows
    from nextturn.train.colocated import colocated_vllm, keep_base_weights
    from nextturn.train.probing import asks_vllm
    from nextturn.train.rewards import Rewards
    from nextturn.train.rollouts import make_rollout
    from nextturn.train.rows import choose_prompts, prompt_dataset
    from nextturn.train.samples import keep_samples, print_step_lines, warn_of_memorising
    from nextturn.train.scoring import ComposedReward
    from nextturn.train.setup import check_engine, grpo_trainer_class, new_adapter, quiet_trl

    # Everything that can be wrong with the input is found before the model is loaded.
    quiet_trl()
    run = Run(recipe, resume)
    args = run.arguments(GRPOConfig)
    check_engine(args)

    # Prompts: conversations so far, with what is still withheld; at least as many as one generation batch takes.
    least = args.generation_batch_size // args.num_generations
    prompts = choose_prompts(load_rl_rows(run.data), recipe.data, run.chat, args.seed, least, str(run.data))

    # The rollout makes each group's samples with the policy and the simulated user. The reward scores a sample by its
    # parts, or leaves it out where a required part fails; trl makes advantages within each group.
    with (
        closing(Rewards(recipe.reward, args.seed)) as rewards,
        closing(make_rollout(recipe.rollout, run.chat, prompts.every, args.seed)) as rollout,
    ):
        reward = ComposedReward(rewards, args.num_generations, recipe.reward.max_failed, prompts.held_out)
        run.begin()
        model = run.load_policy()
        with colocated_vllm(args, run.folder, recipe.rollout, asks_vllm(recipe.probe)):
            trainer = grpo_trainer_class(args)(
                model=model,
                reward_funcs=reward,
                args=args,
                train_dataset=prompt_dataset(prompts.trained.values()),
                eval_dataset=prompt_dataset(prompts.held_out.values()) if prompts.held_out else None,
                processing_class=run.tokenizer,
                peft_config=new_adapter(recipe.model, model),
                callbacks=list(callbacks),
                rollout_func=rollout,
            )
        keep_base_weights(trainer)

        # At every step a line, and samples of it.
        print_step_lines(trainer)
        keep_samples(trainer, reward)
        warn_of_memorising(trainer)
        run.train(trainer, "grpo")

    data = f"on {prompts.counts.summary()}, {args.num_generations} samples each, mode {recipe.rollout.mode}."
    summary = f"{data}\n{reward_line(trainer.state.log_history)}"
    run.conclude(trainer, "trained by GRPO", summary, prompts=vars(prompts.counts))


if __name__ == "__main__":
    sys.exit(run_command(main))
