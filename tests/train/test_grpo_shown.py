"""What a person sees of a GRPO run: the line a step, the sample conversations, the reward line of the model card."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextturn.probe.command.files import read_jsonl
from nextturn.train.rewards import Scored
from nextturn.train.samples import KEPT, step_line, write_samples
from nextturn.train.training import flat_warning, reward_line
from support.grpo_parts import rl_row
from support.sample_parts import sample


def test_a_step_is_one_line_with_the_parts_and_what_is_wrong() -> None:
    logs = {"loss": 0.01234, "reward": 0.4125, "reward/accuracy": 0.31, "reward/none": 0.125, "watch/truncated": 0.0}
    assert step_line(3, 30, logs) == (
        "step 3/30  reward 0.412 (accuracy 0.31)  12% of samples without a reward  loss 0.0123"
    )
    assert "no sample has a reward" in step_line(1, 2, {"loss": 0.0, "reward": None, "reward/none": 1.0})


def test_samples_are_kept_with_their_conversation_and_the_parts_of_their_reward(tmp_path: Path) -> None:
    good = sample("How many?", "7 apples.", "So 13.", row=rl_row(6, withheld=True))
    failed = sample(row=rl_row(5), conversations=(), ended=(), simulated_tokens=(), failures=("simulator_timeout",))
    scored = [Scored(0.5, {"accuracy": 1.0}, {}), Scored(None, {"accuracy": None}, {"accuracy": "nothing_played"})]
    write_samples(tmp_path / "step-7.jsonl", [good, *[failed] * 31], [scored[0], *[scored[1]] * 31])
    first, second, *others = [row for _, row in read_jsonl(tmp_path / "step-7.jsonl")]
    assert len(others) == KEPT - 2
    turns = [message["content"] for message in first["conversations"][0][first["start"] :]]
    assert turns == ["How many?", "7 apples.", "So 13."]
    assert (first["reward"], first["parts"], first["withheld"]) == (0.5, {"accuracy": 1.0}, True)
    assert (second["reward"], second["conversations"]) == (None, [])
    assert (second["reasons"], second["failures"]) == ({"accuracy": "nothing_played"}, ["simulator_timeout"])


def test_the_card_compares_the_ends_of_the_reward_curve() -> None:
    history = [{"reward": number / 10, "step": number} for number in range(10)] + [{"train_runtime": 1.0}]
    assert reward_line(history) == "Mean reward: 0.050 in the first fifth of the logged steps, 0.850 in the last."
    assert reward_line(history[:3]) == "Mean reward: 0.000 in the first fifth of the logged steps, 0.200 in the last."
    assert reward_line([{"reward": None}]) == "No reward was logged."


@pytest.mark.parametrize(("flat", "warns"), [([1.0, 0.9], True), ([1.0, 0.5], False), ([], False)])
def test_a_run_whose_groups_had_equal_rewards_ends_with_a_warning(flat: list[float], warns: bool) -> None:
    history: list[dict[str, float]] = [{"groups/flat": share, "loss": 0.0} for share in flat]
    assert ("95%" in flat_warning([*history, {"train_runtime": 3.0}])) is warns
