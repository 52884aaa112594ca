"""Group relative policy optimization (GRPO) with simulated users in the loop, probed at every checkpoint.

    accelerate launch train/grpo.py recipes/qwen2b_grpo.yaml [--dry-run] [--resume auto|never|PATH]

Only the model's own turns are trained: tokens of the simulated user have no loss. The same command works on no GPU, one, or
many.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nextturn.probe.command.errors import run_command
from nextturn.probe.command.terminal import say

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from nextturn.train.sections import GrpoRecipe


def main(argv: Sequence[str]) -> None:
    from nextturn.train.training import command

    command("grpo", "Train a chat model on what its turns lead to", argv, train)


def train(recipe: GrpoRecipe, resume: str = "auto", callbacks: Sequence[TrainerCallback] = ()) -> None:
    """Train by the recipe, unless its run directory holds the finished run.

    Args:
        recipe: The recipe.
        resume: What `--resume` says.
        callbacks: Additional trainer callbacks, called before the built-in ones.
    """
    from nextturn.train.training import Run, already_finished, flat_warning, reward_line

    if already_finished(recipe):
        return

    from contextlib import closing, nullcontext

    from trl import GRPOConfig

    from nextturn.data_builders.simulators import open_simulator
    from nextturn.probe.data.messages import user
    from nextturn.train.colocated import colocated_settings
    from nextturn.train.encoding import choose_prompts, prompt_dataset
    from nextturn.train.overrides import RolloutTrainer, vllm_settings
    from nextturn.train.policy import new_adapter
    from nextturn.train.probing import asks_vllm
    from nextturn.train.rollouts import RolloutFunction
    from nextturn.train.samples import print_step_lines
    from nextturn.train.scoring import Rewards, shared_columns

    # All input is checked before the model is loaded.
    run = Run(recipe, resume)
    args = run.arguments(GRPOConfig)

    # Prompts: conversations so far, with the withheld information; at least as many as one generation batch takes.
    least = args.generation_batch_size // args.num_generations
    prompts = choose_prompts(recipe, run.data, run.chat, args.seed, least)
    run.warn_of_probed((*row.prompt, user(row.problem)) for row in prompts.every.values())

    # The rollout makes each group's samples with the policy and the simulated user. The reward scores a sample by its
    # parts, or leaves the sample out if a required part fails. trl computes advantages within each group.
    columns = shared_columns(prompts.every.values())
    group, held_out, folder = args.num_generations, prompts.held_out, run.run_dir / "samples"
    with (
        closing(Rewards(recipe.reward, args.seed, columns, group, held_out, folder)) as reward,
        open_simulator(recipe.rollout.simulator, args.seed, "rollout.simulator") as simulator,
    ):
        rollout = RolloutFunction(recipe.rollout, run.chat, prompts.every, simulator, args.seed)
        run.begin()
        model = run.load_policy()
        colocated = args.use_vllm and args.vllm_mode == "colocate"
        settings = colocated_settings(args, run.folder, recipe.rollout, asks_vllm(recipe.probe))
        with vllm_settings(settings) if colocated else nullcontext():
            trainer = RolloutTrainer(
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

        print_step_lines(trainer)
        run.train(trainer, "grpo")

    if warning := flat_warning(trainer.state.log_history, recipe.reward.weight_of):
        say(warning)
    data = f"on {prompts.counts.summary()}, {args.num_generations} samples each, mode {recipe.rollout.mode}."
    summary = f"{data}\n{reward_line(trainer.state.log_history)}"
    run.conclude(trainer, "trained by GRPO", summary, prompts=vars(prompts.counts))


if __name__ == "__main__":
    sys.exit(run_command(main))
