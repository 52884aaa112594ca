"""The composed reward: what trl makes of it on a recorded batch, what is logged, when the run stops, what is watched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nextturn.probe.command.errors import TrainingStopped
from nextturn.probe.models.folders import load_tokenizer, resolve
from nextturn.probe.text.chat import Chat
from nextturn.train.rewards import Sample, Scored
from nextturn.train.samples import ends_generic, watch_figures
from nextturn.train.scoring import Rewards
from nextturn.train.sections import ModelSection, RewardSection
from support.grpo_parts import rl_row
from support.sample_parts import sample

# A group of four as FACTS.md, section 4 has it: (accuracy, judge) = (1, .8) (1, failed) (1, .8) (0, .2).
JUDGED = ((1.0, 0.8), (1.0, None), (1.0, 0.8), (0.0, 0.2))


class Given(Rewards):
    """A reward in groups of four whose scores are given, in the order of the samples."""

    def __init__(self, *parts: tuple[float | None, float | None], max_failed: float = 0.2, **given: Any) -> None:
        super().__init__(RewardSection(max_failed=max_failed), 0, num_generations=4, **given)
        self.parts = parts

    def score(self, samples: Sequence[Sample]) -> list[Scored]:
        assert len(samples) == len(self.parts)
        scored = []
        for accuracy, judge in self.parts:
            whole = accuracy is not None and judge is not None
            value = (accuracy + judge) / 2 if accuracy is not None and judge is not None else None
            reasons = {} if whole else {"interactivity": "judge_timeout: no verdict in 300 s"}
            scored.append(Scored(value, {"accuracy": accuracy, "interactivity": judge}, reasons))
        return scored


def call(reward: Rewards, samples: Sequence[Sample], step: int = 0) -> Any:
    """Calls the reward as trl does; gives the rewards and what was logged."""
    figures: dict[str, float] = {}
    columns: dict[str, list[Any]] = {}
    state = SimpleNamespace(global_step=step)
    log = {"log_metric": figures.__setitem__, "log_extra": columns.__setitem__}
    rewards = reward(prompts=[], completions=[], completion_ids=[], samples=samples, trainer_state=state, **log)
    return rewards, figures, columns


def group(n: int = 4) -> list[Sample]:
    return [sample(f"5 + 6 = {place}.", row=rl_row(5)) for place in range(n)]


def independent(values: Sequence[float | None], size: int) -> list[float]:
    """Advantages as DeepSeekMath (arXiv 2402.03300, 4.1.2) has them, with trl's 1e-4; 0 without a reward."""
    found: list[float] = []
    for start in range(0, len(values), size):
        part = values[start : start + size]
        there = [value for value in part if value is not None]
        mean, std = np.mean(there), np.std(there, ddof=1)
        found += [0.0 if value is None else float((value - mean) / (std + 1e-4)) for value in part]
    return found


@pytest.fixture(scope="module")
def recorded(tiny_chatml: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two groups through trl's own trainer, one with a failed judge: the batch that it would train on."""
    from trl import GRPOConfig

    from nextturn.train.encoding import prompt_dataset
    from nextturn.train.overrides import RolloutTrainer
    from nextturn.train.policy import load_policy

    folder = resolve(str(tiny_chatml))
    tokenizer = load_tokenizer(folder)
    chat = Chat(tokenizer)
    rows = [rl_row(5), rl_row(6, withheld=True)]
    scores = [*JUDGED, (0.0, 0.5), (1.0, 0.5), (0.0, 0.5), (0.0, 0.25)]
    samples = [sample(f"It is {place}.", row=rows[place // 4]) for place in range(8)]

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        assert trainer.row_ids == [one.row.id for one in samples]
        return {
            "prompt_ids": [list(chat.prompt_ids(one.row.prompt)) for one in samples],
            "completion_ids": [[*chat.text_ids(one.conversations[0][1]["content"]), *chat.turn_end_ids] for one in samples],
            "logprobs": None, "samples": samples,
        }  # fmt: skip

    reward = Given(*scores)
    args = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("run")), use_cpu=True, bf16=False, report_to=[], num_generations=4, shuffle_dataset=False,
        per_device_train_batch_size=8, max_steps=1, logging_steps=1, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    trainer = RolloutTrainer(
        model=load_policy(folder, ModelSection(name="m", dtype="float32")), reward_funcs=reward, args=args,
        train_dataset=prompt_dataset(rows), eval_dataset=prompt_dataset(rows),
        processing_class=tokenizer, rollout_func=rollout,
    )  # fmt: skip
    found: dict[str, Any] = {}
    made = trainer._generate_and_score_completions

    def record(inputs: Any) -> Any:
        found["batch"] = made(inputs)
        return found["batch"]

    trainer._generate_and_score_completions = record
    trainer.train()
    values = [None if judge is None else (accuracy + judge) / 2 for accuracy, judge in scores]
    return SimpleNamespace(trainer=trainer, batch=found["batch"], values=values)


def test_advantages_of_a_recorded_batch_are_those_of_an_independent_computation(recorded: Any) -> None:
    advantages = recorded.batch["advantages"].tolist()
    assert advantages == pytest.approx(independent(recorded.values, 4), abs=1e-5)


def test_the_log_of_a_recorded_batch_has_every_part_by_itself(recorded: Any) -> None:
    logged = recorded.trainer.state.log_history[0]
    assert logged["reward"] == pytest.approx(np.mean([value for value in recorded.values if value is not None]))
    assert logged["reward/accuracy"] == pytest.approx(4 / 8)
    assert logged["reward/interactivity"] == pytest.approx((0.8 + 0.8 + 0.2 + 0.5 * 3 + 0.25) / 7)
    assert logged["reward/none"] == logged["reward/none/interactivity"] == pytest.approx(1 / 8)
    assert logged["reward/none/interactivity/judge_timeout"] == pytest.approx(1 / 8), "by kind, not by what was said"
    assert "reward/none/accuracy" not in logged, "nothing is logged of what has never failed"
    assert logged["groups/flat"] == logged["frac_reward_zero_std"] == 0
    assert list(recorded.trainer._logs["extra"]["accuracy"]) == [1, 1, 1, 0, 0, 1, 0, 0]


def test_failures_on_held_out_prompts_are_said_and_end_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A batch of an evaluation may be a single sample, and no step is taken by it."""
    unseen = rl_row(50)
    reward = Given((1.0, None), held_out={unseen.id})
    rewards, figures, _ = call(reward, [sample("101", row=unseen)], step=20)
    assert rewards == [None] and figures["reward/none"] == 1
    said = capsys.readouterr().out
    assert "step 20" in said and "1 of 1" in said
    assert "interactivity judge_timeout" in said
    with pytest.raises(TrainingStopped, match=r"before step 3: 1 of 1 samples have no reward.*judge_timeout"):
        call(reward, [sample("11", row=rl_row(5))], step=2)


def test_a_few_failures_leave_the_sample_out_and_are_counted_as_0_later() -> None:
    reward = Given(*JUDGED, max_failed=0.25)
    rewards, figures, columns = call(reward, group())
    assert rewards == [0.9, None, 0.9, 0.1]
    assert figures["reward/none/interactivity/judge_timeout"] == 0.25
    assert columns["interactivity"] == [0.8, None, 0.8, 0.2]
    reward.parts = [(1.0, 0.5)] * 4
    _, figures, _ = call(reward, group())
    assert figures["reward/none/interactivity/judge_timeout"] == 0, "else a mean over log lines would overstate it"


def test_groups_that_teach_nothing_are_counted() -> None:
    lost, good = [(1.0, None)] * 3 + [(1.0, 1.0)], [(0.0, 0.5), (1.0, 0.5)] * 2
    flat = [(0.0, 0.5), (0.0, 0.25)] * 2  # rewards that differ in style alone
    reward = Given(*lost, *flat, *good, *flat, max_failed=1.0)
    _, figures, _ = call(reward, group(16))
    assert (figures["groups/lost"], figures["groups/flat"]) == (0.25, 0.5)


def test_what_hacks_a_reward_is_watched() -> None:
    asked, answered = "How many does she buy?", "So it is \\boxed{11}. Does that make sense?"
    gap, failed = rl_row(6, withheld=True), {"conversations": (), "ended": (), "simulated_tokens": ()}
    samples = [
        sample(asked, row=rl_row(5)),
        sample(answered, row=rl_row(5)),
        sample(asked, row=gap),
        sample(answered, row=gap, truncated=True, ended=("truncated",)),
        sample(row=gap, failures=("simulator_gone",), **failed),
    ]
    hint = sample(asked, row=rl_row(5, kind="hint"))  # a question is the help that was asked for
    figures = watch_figures([*samples, hint])
    pieces = sample(asked, row=rl_row(5, kind="sharded", shards=("She buys 6 more.",)))  # to be asked for
    assert watch_figures([*samples, pieces])["watch/over_asking"] == 0.5
    assert figures["watch/over_asking"] == 0.5
    assert figures["watch/ask_when_needed"] == 0.5, "of the two whose reply can be looked at"
    assert figures["watch/generic_ending"] == 0.4
    assert figures["watch/truncated"] == pytest.approx(1 / 6)
    assert figures["watch/ended/truncated"] == 0.2


@pytest.mark.parametrize(
    ("reply", "generic"),
    [
        ("That is 12. Does that make sense?", True),
        ("Great job! What do you think?", True),
        ("Would you like me to provide the next step?", True),
        ("How many apples does she buy?", False),
        ("Which price do you mean, the old one?", False),
        ("What is 3 + 4? It is 7.", False),
        ("", False),
    ],
)
def test_a_generic_question_is_one_that_fits_any_conversation(reply: str, generic: bool) -> None:
    assert ends_generic(reply) == generic
