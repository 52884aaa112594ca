"""Rollouts for trl's GRPOTrainer: `rollout_func(prompts, trainer)` with a simulated user in the loop.

trl 1.16 hands over prompts that are already repeated for each generation of a group, and wants prompt ids, completion
ids and log-probabilities back; further keys reach the reward functions, one value for each sample. Here that is
`played`, what was said and what came after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from data_builders.rl import RlRow
from probe.chat import Chat
from probe.engines.base import item_seed
from probe.errors import DataError
from probe.sets import Message
from train.rollouts.conversation import play_conversations
from train.rollouts.policy import open_policy
from train.rollouts.reply import play_replies
from train.rollouts.settings import RolloutSection, SimulatorSection, check_launch, check_rollout
from train.rollouts.simulators import Simulator, open_simulator
from train.rollouts.talks import Sample, Speaking, Start

__all__ = ["Rollout", "RolloutSection", "SimulatorSection", "check_rollout", "make_rollout"]


def make_rollout(
    section: RolloutSection, chat: Chat, rows: Mapping[str, RlRow], wants_user_turns: bool, seed: int
) -> Rollout:
    """The `rollout_func` for a trainer.

    Args:
        rows: by id; the last message of each prompt carries its row's id under "row".
        wants_user_turns: also let the policy write the user turn after what was trained, for a reward on it.

    Raises:
        BadInput: the settings cannot be used, or the simulator's model or server cannot.
    """
    check_rollout(section, {})
    return Rollout(section, chat, rows, open_simulator(section.simulator, seed), wants_user_turns, seed)


class Rollout:
    """Everything in a sample is drawn from the seed, the step and the sample's place in the step's batch over all
    processes, so that the same run makes the same samples, whatever else is made beside them."""

    def __init__(
        self,
        section: RolloutSection,
        chat: Chat,
        rows: Mapping[str, RlRow],
        simulator: Simulator,
        wants_user_turns: bool,
        seed: int,
    ) -> None:
        self.section, self.chat, self.rows, self.simulator = section, chat, rows, simulator
        self.wants_user_turns, self.seed = wants_user_turns, seed
        self._round: tuple[str, int, int] = ("", -1, 0)
        self._end_ids: frozenset[int] = frozenset()

    def __call__(self, prompts: Sequence[Sequence[Mapping[str, Any]]], trainer: Any) -> dict[str, Any]:
        """Samples for these prompts, one each.

        Raises:
            RecipeError: the trainer's sampling cannot be followed.
            DataError: a prompt names no row.
            EngineError: the model's logits are no numbers, or the simulator's server is gone.
        """
        if not self._end_ids:
            self._settle(trainer)
        starts = self._starts(prompts, trainer)
        play = play_replies if self.section.mode == "reply" else play_conversations
        limit = trainer.args.max_completion_length
        with open_policy(trainer, self.chat.tokenizer, self.section.batch_tokens) as policy:
            stop_ids = tuple(sorted({*self.chat.stop_ids, *self._end_ids}))
            speaking = Speaking(policy, self.chat, trainer.args.temperature, stop_ids, self._end_ids)
            samples = play(starts, speaking, self.simulator, self.section, limit, self.wants_user_turns)
        return self._for_trl(samples, scored=trainer.use_vllm)

    def close(self) -> None:
        self.simulator.close()

    def _settle(self, trainer: Any) -> None:
        """What is known only with the trainer: whether its sampling can be followed, and what ends a turn."""
        check_rollout(self.section, vars(trainer.args))
        check_launch(self.section.simulator, trainer.accelerator)
        # trl takes a completion for cut where it does not end with one of these; a turn ends as the template says.
        turn_end = self.chat.turn_end_ids[-1]
        if turn_end not in trainer.eos_token_ids:
            trainer.eos_token_ids = [*trainer.eos_token_ids, turn_end]
        self._end_ids = frozenset(trainer.eos_token_ids)

    def _starts(self, prompts: Sequence[Sequence[Mapping[str, Any]]], trainer: Any) -> list[Start]:
        mode, step = "train" if trainer.model.training else "eval", trainer.state.global_step
        again = self._round[2] + 1 if self._round[:2] == (mode, step) else 0
        self._round = (mode, step, again)
        first = trainer.accelerator.process_index * len(prompts)
        rendered: dict[str, tuple[tuple[Message, ...], tuple[int, ...]]] = {}
        starts = []
        for place, prompt in enumerate(prompts, start=first):
            name = str(prompt[-1].get("row"))
            if name not in self.rows:
                raise DataError(f"a prompt's last message names the row {name!r}, which is not there")
            if name not in rendered:
                messages = tuple({"role": one["role"], "content": one["content"]} for one in prompt)
                rendered[name] = messages, self.chat.prompt_ids(messages)
            seed = item_seed(self.seed, mode, step, again, place, name)
            starts.append(Start(self.rows[name], *rendered[name], seed))
        return starts

    def _for_trl(self, samples: Sequence[Sample], scored: bool) -> dict[str, Any]:
        out: dict[str, Any] = {
            "prompt_ids": [list(sample.prompt_ids) for sample in samples],
            "completion_ids": [list(sample.completion_ids) for sample in samples],
            "logprobs": [list(sample.log_probs) for sample in samples] if scored else None,
            "played": [sample.played for sample in samples],
        }
        if self.section.mode == "conversation":
            out["env_mask"] = [list(sample.env_mask) for sample in samples]
        return out
