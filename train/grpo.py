"""Group relative policy optimization (GRPO) with simulated users in the loop, probed at every checkpoint.

    accelerate launch train/grpo.py recipes/qwen2b_grpo.yaml [--dry-run] [--resume auto|never|weights|PATH]

Reads top to bottom: recipe, prompts, rewards, rollout, model, trainer, probe, train. Only the model's own turns are
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
        from train.plan import describe

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
    from train.colocated import colocated_vllm, keep_base_weights
    from train.guards import ReturnsFreedMemory, install_guard
    from train.probing import asks_vllm, probe_checkpoints, sets_to_probe, watched_elsewhere
    from train.rewards import Rewards
    from train.rollouts import make_rollout
    from train.rows import data_path, load_prompts, prompt_dataset
    from train.samples import keep_samples, print_step_lines, warn_of_memorising
    from train.scoring import ComposedReward
    from train.setup import (
        check_engine,
        held_in,
        launch_line,
        load_policy,
        main_process_first,
        new_adapter,
        policy_folder,
        quiet_trl,
        reward_line,
        training_arguments,
        zero_in_force,
    )
    from train.setup import grpo_trainer_class as trainer_class

    # Everything that can be wrong with the input is found before the model is loaded: trl's arguments in this launch,
    # then what one process downloads, converts and builds while the others wait.
    quiet_trl()
    args = training_arguments(recipe, GRPOConfig)
    check_engine(args)
    with main_process_first(args):
        folder = policy_folder(recipe.model)
        data = data_path(recipe.data.path, recipe.data.recipe)
        sets = sets_to_probe(recipe.probe)

    # Prompts: conversations so far, with what is still withheld; at least as many as one generation batch takes.
    tokenizer = load_tokenizer(folder)
    chat = Chat(tokenizer, recipe.data.enable_thinking)
    least = args.generation_batch_size // args.num_generations
    prompts = load_prompts(data, recipe.data, chat, args.seed, least)
    checkpoint = choose_resume(run_dir, resume, this_launch(args))
    weights = checkpoint if resume == "weights" else None

    # The rollout makes each group's samples with the policy and the simulated user. The reward scores a sample by its
    # parts, or leaves it out where a required part fails; trl makes advantages within each group.
    with (
        closing(Rewards(recipe.reward, args.seed)) as rewards,
        closing(
            make_rollout(recipe.rollout, chat, prompts.every, recipe.reward.wants_user_turns, args.seed)
        ) as rollout,
    ):
        reward = ComposedReward(rewards, args.num_generations, recipe.reward.max_failed, prompts.held_out)
        claim(run_dir, recipe)
        model = load_policy(folder, recipe.model, held_in(recipe.model, zero_in_force(args)), weights)
        with colocated_vllm(args, folder, recipe.rollout, asks_vllm(recipe.probe)):
            trainer = trainer_class(args)(
                model=model,
                reward_funcs=reward,
                args=args,
                train_dataset=prompt_dataset(prompts.trained.values()),
                eval_dataset=prompt_dataset(prompts.held_out.values()) if prompts.held_out else None,
                processing_class=tokenizer,
                peft_config=new_adapter(recipe.model, model),
                callbacks=list(callbacks),
                rollout_func=rollout,
            )
        keep_base_weights(trainer)
        say(launch_line(trainer))

        # At every step: a line and its samples, and nothing that is not finite reaches a weight. At every checkpoint:
        # first the mark that it is whole, then the probe, whose results the tracker shows.
        print_step_lines(trainer)
        keep_samples(trainer, reward)
        warn_of_memorising(trainer)
        install_guard(trainer)
        mark_checkpoints(trainer)
        probe_checkpoints(trainer, recipe.probe, folder, chat, sets, recipe.model.dtype)
        if args.use_cpu:
            trainer.add_callback(ReturnsFreedMemory())
        start_tracking(recipe.tracking, run_dir, recipe_dict(recipe), "grpo", shared=watched_elsewhere(recipe.probe))

        # From the beginning or from a checkpoint, after setting aside what a killed run left past it.
        if trainer.accelerator.is_main_process:
            remove_incomplete(run_dir, checkpoint)
        trainer.accelerator.wait_for_everyone()
        if weights is not None:
            without_optimizer(trainer, weights)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    data_line = f"on {prompts.counts.summary()}, {args.num_generations} samples each, mode {recipe.rollout.mode}."
    summary = f"{data_line}\n{reward_line(trainer.state.log_history)}"
    conclude(run_dir, trainer, recipe, ("trained by GRPO", summary), prompts=vars(prompts.counts))


if __name__ == "__main__":
    sys.exit(run_command(main))
