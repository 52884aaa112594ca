"""`make bench`: what the look-ahead of GRPO's reply mode costs beyond the text that it has the policy write.

    python -m bench.grpo [MODEL] [--samples N] [--tokens T] [--window W] [--threads T]

Two trainers with the same model, prompts and limits train in turn: trl's own single-turn GRPO, and reply mode with a
look-ahead, scripted users and all rewards. Every turn is exactly `tokens` long on both sides (nothing stops it), so that
both train the same number of policy tokens. Of a look-ahead step, the time that the policy spends on looked-ahead turns
is the extra generation; what is left, over a plain step, is the overhead. On CPUs both sides use the same output head.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from nextturn.data_builders.simulators import open_simulator
from nextturn.probe.models.folders import load_tokenizer, resolve
from nextturn.probe.text.chat import Chat
from nextturn.train import rollouts
from nextturn.train.encoding import prompt_dataset
from nextturn.train.overrides import RolloutTrainer
from nextturn.train.policy import load_policy
from nextturn.train.rollouts import RolloutFunction, Sampler
from nextturn.train.scoring import Rewards
from nextturn.train.sections import ModelSection, RewardSection, RolloutSection
from support.grpo_parts import rl_row

ROUNDS, STEPS, WARM = 2, 4, 1


class Clock:
    """Seconds spent in a function, one number a call."""

    def __init__(self, owner: Any, name: str) -> None:
        self.calls: list[float] = []
        original = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.calls.append(time.perf_counter() - started)

        setattr(owner, name, timed)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--samples", type=int, default=8, help="of one prompt, a step")
    parser.add_argument("--tokens", type=int, default=48, help="of every turn")
    parser.add_argument("--window", type=int, default=2, help="exchanges looked ahead")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args(argv)
    import torch

    torch.set_num_threads(arguments.threads)
    Sampler.stop_ids = ()  # type: ignore[assignment]  # nothing stops a turn before its limit
    Sampler.is_complete = lambda self, turn: True  # type: ignore[method-assign]
    plain: list[float] = []
    ahead: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        plain += [step["step"] for step in _train(arguments, look_ahead=False)]
        ahead += _train(arguments, look_ahead=True)
    _report(plain, ahead)


def _train(arguments: argparse.Namespace, look_ahead: bool) -> list[dict[str, float]]:
    """Seconds of each step after the first, by what they were spent on."""
    from transformers import TrainerCallback
    from trl import GRPOConfig

    folder = resolve(arguments.model)
    tokenizer = load_tokenizer(folder)
    chat = Chat(tokenizer)
    rows = {row.id: row for row in (rl_row(number, withheld=number % 2 == 0) for number in range(3, 3 + STEPS))}
    section = RolloutSection(window=arguments.window, max_turn_tokens=arguments.tokens)
    generated, scored = Clock(rollouts, "collect"), Clock(Rewards, "score")
    steps: list[dict[str, float]] = []

    class Steps(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            generated.calls.clear(), scored.calls.clear()
            self.started = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            spent = {"step": time.perf_counter() - self.started, "rewards": sum(scored.calls)}
            steps.append(spent | {"reply": sum(generated.calls[:1]), "look-ahead": sum(generated.calls[1:])})

    with (
        tempfile.TemporaryDirectory() as out,
        closing(Rewards(RewardSection(max_failed=1.0), 0, num_generations=arguments.samples)) as rewards,
        open_simulator(section.simulator, 0, "rollout.simulator") as simulator,
    ):
        rollout = RolloutFunction(section, chat, rows, simulator, 0)
        args = GRPOConfig(
            output_dir=out, use_cpu=True, bf16=True, report_to=[], num_generations=arguments.samples, seed=0,
            per_device_train_batch_size=arguments.samples, max_steps=STEPS, max_completion_length=arguments.tokens,
            gradient_checkpointing=False, disable_tqdm=True, save_strategy="no", logging_steps=STEPS + 1,
            generation_kwargs=None if look_ahead else {"min_new_tokens": arguments.tokens},
        )  # fmt: skip
        reward = rewards if look_ahead else _length
        trainer = RolloutTrainer(
            model=load_policy(folder, ModelSection(name=arguments.model, dtype="float32")), reward_funcs=reward,
            args=args, train_dataset=prompt_dataset(rows.values()), processing_class=tokenizer,
            rollout_func=rollout if look_ahead else None, callbacks=[Steps()],
        )  # fmt: skip
        trainer.train()
    assert trainer.state.num_input_tokens_seen >= arguments.samples * arguments.tokens * STEPS, "every turn is whole"
    return steps[WARM:]


def _length(completions: Sequence[Any], **_: Any) -> list[float]:
    return [float(len(str(one)) % 7) for one in completions]


def _report(plain: Sequence[float], ahead: Sequence[dict[str, float]]) -> None:
    middle = {name: statistics.median(step[name] for step in ahead) for name in ahead[0]}
    alone = statistics.median(plain)
    rest = statistics.median(step["step"] - step["look-ahead"] for step in ahead)
    print(
        f"plain step {alone:.2f} s ({min(plain):.2f} to {max(plain):.2f}); with look-ahead {middle['step']:.2f} s "
        f"({middle['step'] / alone:.2f} times), of which looked-ahead turns {middle['look-ahead']:.2f} s, "
        f"replies {middle['reply']:.2f} s, rewards {middle['rewards']:.2f} s"
    )
    print(f"overhead beyond the extra generation: {rest / alone - 1:+.1%}", flush=True)


if __name__ == "__main__":
    main()
