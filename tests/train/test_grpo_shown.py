"""What a person sees of a GRPO run: the line a step, the sample conversations, the reward line of the model card."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

from nextturn.train.rewards import Scored
from nextturn.train.run import reward_line
from nextturn.train.samples import memorizing, samples_table, step_line, write_samples
from support.grpo_parts import rl_row
from support.sample_parts import sample


def test_a_step_is_one_line_with_the_parts_and_what_is_wrong() -> None:
    logs = {
        "loss": 0.01234, "reward": 0.4125, "reward/accuracy": 0.31, "reward/efficiency": 0.52, "reward/none": 0.125,
        "reward/none/accuracy": 0.125, "groups/flat": 0.25, "watch/tokens": 124.4, "watch/truncated": 0.0, "kl": 0.0004,
        "step_time": 17.31,
    }  # fmt: skip
    assert step_line(3, 30, logs) == (
        "step 3/30  reward 0.412 (accuracy 0.31, efficiency 0.52)  12% of samples without a reward  "
        "equal accuracy and asking in 25% of groups  124 tokens  KL 0.0004  loss 0.0123  17.3 s"
    )
    assert step_line(1, 2, {"loss": 0.0, "reward": None, "reward/none": 1.0}) == (
        "step 1/2  no sample has a reward  100% of samples without a reward  loss 0.0000"
    )


def test_sample_files_have_one_schema_also_where_all_rewards_failed(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    good = sample("How many?", "7 apples.", "So 13.", row=rl_row(6, withheld=True))
    lost = sample(row=rl_row(5), conversations=(), ended=(), simulated_tokens=(), failures=("simulator_timeout",))
    scores = [
        Scored(0.5, {"accuracy": 1.0, "interactivity": 0.0}, {}),
        Scored(None, {"accuracy": None, "interactivity": None}, {"accuracy": "nothing_played"}),
    ]
    for name, pair in {"both": (0, 1), "lost": (1, 1)}.items():
        samples = [(good, lost)[which] for which in pair]
        table = samples_table(samples, [scores[which] for which in pair], [0.7, 0.0], step=7)
        write_samples(tmp_path / f"{name}.parquet", table)
    both, none = (parquet.read_table(tmp_path / f"{name}.parquet") for name in ("both", "lost"))
    assert both.schema == none.schema
    first, second = both.to_pylist()
    assert first["conversation"] == (
        "user: Ann has 6 apples and buys some more. How many apples does she have?\n\n--- end of the prompt ---\n\n"
        "assistant: How many?\n\nuser: 7 apples.\n\nassistant: So 13."
    )
    assert (first["reward"], first["advantage"], first["part_accuracy"], first["withheld"]) == (0.5, 0.7, 1.0, True)
    assert (second["reward"], second["conversation"]) == (None, "")
    assert second["reasons"] == "accuracy: nothing_played; simulator: simulator_timeout"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.parquet", "lost.parquet"], "nothing half-written"


def test_the_card_compares_the_ends_of_the_reward_curve() -> None:
    history = [{"reward": number / 10, "step": number} for number in range(10)] + [{"train_runtime": 1.0}]
    # Two steps each: standard error 0.0707, two degrees of freedom, so 4.303 of it to either side.
    wanted = "0.050 in the first fifth of the logged steps, 0.850 in the last: +0.800 [+0.496, +1.104]."
    assert reward_line(history) == f"Mean reward: {wanted}"
    assert reward_line(history[:3]) == "Mean reward: 0.000 in the first fifth of the logged steps, 0.200 in the last."
    assert reward_line([{"reward": None}]) == "No reward was logged."


def rewards_of_a_run(rng: Random, by_heart: float) -> list[dict[str, float]]:
    """Ten evaluations, 20 steps apart, of a reward that rises steeply at first; trained prompts gain `by_heart` more."""
    rows = []
    for step in range(1, 201):
        true = 0.6 - 0.3 * math.exp(-step / 20)
        rows.append({"reward": true + by_heart * step / 200 + rng.gauss(0, 0.08)})
        rows += [{"eval_reward": true + rng.gauss(0, 0.04)}] if step % 20 == 0 else []
    return rows


def test_prompts_are_said_to_be_learnt_by_heart_where_the_curves_part_and_hardly_ever_else() -> None:
    rng = Random(1)

    def alarms(by_heart: float) -> int:
        """Of 60 runs, those with a warning after any evaluation."""
        runs = [rewards_of_a_run(rng, by_heart) for _ in range(60)]
        return sum(any(memorizing(run[:end]) for end in range(21, 211, 21)) for run in runs)

    assert alarms(0.0) <= 3
    assert alarms(0.4) >= 55
    assert memorizing([*rewards_of_a_run(rng, 2.0), {"reward": 0.6}]) is None, "only after an evaluation"
    assert memorizing([{"reward": 0.1}, {"eval_reward": 0.1}]) is None
