"""Rollouts in `reply` mode: what is trained, how the look-ahead goes on, seeds, failures, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nextturn.data_builders.sections import SimulatorSection
from nextturn.data_builders.simulators import CheckedSimulator
from nextturn.probe.command.errors import RecipeError
from nextturn.probe.command.sections import VllmSection
from nextturn.probe.engines.base import Completion
from nextturn.probe.questions.simulation import UserRequest, UserTurn
from nextturn.train.rewards import Sample, Scored
from nextturn.train.rollouts import Rollout, check_launch, open_policy
from nextturn.train.samples import reward_figures
from nextturn.train.scoring import check_failures
from nextturn.train.sections import RewardSection
from support.rollout_parts import ROWS, Calls, ToldUsers, chat_of, redrawn, rolled, rollout_of, trainer_of

TALKATIVE = ["Why?", "And then?", "Ok.", "What now?"]
REPLY = {"mode": "reply", "max_turn_tokens": 12}


@pytest.fixture(scope="module")
def trainer(tiny_chatml: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """About every fourth turn reaches its limit of 12 tokens."""
    return trainer_of(tiny_chatml, lambda *_: {}, tmp_path_factory.mktemp("run"), stops_early=5.5)


def played(trainer: Any, folder: Path, users: Any, *names: str, **section: Any) -> Any:
    rollout = rollout_of(chat_of(folder), users, **{**REPLY, **section})
    return rolled(rollout, trainer, *(names or ("a",) * 8 + ("b",) * 8))


def test_only_the_first_reply_is_trained_and_all_look_ahead_together(
    trainer: Any, tiny_chatml: Path, monkeypatch: Any
) -> None:
    calls, users = Calls(monkeypatch), ToldUsers(lambda number: TALKATIVE)
    out = played(trainer, tiny_chatml, users, window=2)
    assert len(calls.made) == 1 + 2, "one engine call for the replies, one for each exchange"
    assert out["completion_ids"] == [list(made.ids) for _, made in calls.made[0]]
    assert out["logprobs"] is None and "env_mask" not in out
    whole = [one for one in out["samples"] if not one.truncated]
    assert users.asked[0] == len(calls.made[1]) == len(whole), "every whole reply is answered in one step"
    chat = chat_of(tiny_chatml)
    assert [tuple(ids) for ids in out["prompt_ids"]] == [chat.prompt_ids(one.row.prompt) for one in out["samples"]]
    shown = [chat.prompt_ids(one.conversations[0][: one.start + 2]) for one in whole]
    assert [request.prompt_ids for request, _ in calls.made[1]] == shown, "as at inference, also in the look-ahead"
    for one in whole:
        (messages,), (ended,) = one.conversations, one.ended
        exchanges = (len(messages) - one.start - 1) // 2
        assert ended in ("limit", "truncated") and (exchanges == 2 or ended == "truncated")
        assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2)
        assert one.simulated_tokens[0] > one.tokens


def test_users_and_rewards_see_no_thoughts() -> None:
    conversation = Rollout(ROWS["a"], 0, ())
    for text, seen in (("<think>\nHow many?\n</think>\n\nIt is 7.", "It is 7."), ("<think>\nIt is 7.", ""), ("7", "7")):
        conversation.add_turn(Completion(text, 3, "stop", (1, 2, 3)), True)
        assert conversation.messages[-1]["content"] == seen
    assert conversation.tokens == 9


def test_the_same_seed_makes_the_same_samples_whatever_is_beside_them(trainer: Any, tiny_chatml: Path) -> None:
    def samples(*names: str, seed: int = 3, step: int = 0) -> list[Any]:
        rollout = rollout_of(chat_of(tiny_chatml), ToldUsers(lambda number: TALKATIVE), seed=seed, **REPLY)
        trainer.state.global_step = step
        return rolled(rollout, trainer, *names)["samples"]

    whole = samples("a", "a", "a", "b")
    assert samples("a", "a", "a", "b") == whole
    assert samples("a", "a") == whole[:2]
    assert len({str(one.conversations) for one in whole[:3]}) == 3, "the samples of a group differ"
    assert samples("a", "a", seed=4) != whole[:2]
    assert samples("a", "a", step=1) != whole[:2]
    rollout = rollout_of(chat_of(tiny_chatml), ToldUsers(lambda number: TALKATIVE), **REPLY)
    first, again = (rolled(rollout, trainer, "a", "a")["samples"] for _ in range(2))
    assert first != again, "two rollouts of one step differ"
    trainer.state.global_step = 0


def test_a_failed_simulator_leaves_its_conversation_out_with_the_reason(trainer: Any, tiny_chatml: Path) -> None:
    def course(number: int) -> list[str]:
        return ["FAIL"] if number % 2 else ["Why?", "END"]

    out = played(trainer, tiny_chatml, ToldUsers(course), window=2, samples=2)
    for one in out["samples"]:
        if one.truncated:
            assert (len(one.conversations), one.ended, one.failures) == (1, ("truncated",), ())
            continue
        assert one.failures == ("simulator_timeout",)
        (messages,), (ended,) = one.conversations, one.ended
        assert ended in ("user", "truncated") and messages[-1]["role"] == "assistant"
        assert all(message["content"] for message in messages if message["role"] == "user")


class Slips:
    """A user who leaves the role in one of ten turns."""

    def turns(self, requests: Sequence[UserRequest]) -> list[UserTurn]:
        drawn = [random.Random(f"{request.seed}:{request.attempt}:{len(request.messages)}") for request in requests]
        return [UserTurn("ok ###DONE###" if rng.random() < 0.1 else f"Why {rng.random()}?") for rng in drawn]


def test_a_user_who_slips_in_one_of_ten_turns_does_not_stop_a_run_of_conversations(
    trainer: Any, tiny_chatml: Path
) -> None:
    """With one attempt for each turn more conversations fail than `reward.max_failed` allows."""
    lost = {}
    for tries in (1, 3):
        users = CheckedSimulator(Slips(), tries)
        rollout = rollout_of(chat_of(tiny_chatml), users, mode="conversation", max_turns=6, max_turn_tokens=64)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer.args, "max_completion_length", 2000)
            samples = rolled(rollout, trainer, *("a", "b") * 16)["samples"]
        failures = [reason for one in samples for reason in one.failures]
        lost[tries] = check_failures(scored(samples), RewardSection().max_failed)
        figures = reward_figures(samples, scored(samples))
        assert set(failures) <= {"user_end_mark"} and figures["simulator/failed"] == len(failures) / len(samples)
    assert lost[1] and not lost[3]


def scored(samples: Sequence[Sample]) -> list[Scored]:
    values = [None if one.failures else 0.0 for one in samples]
    return [Scored(value, {"accuracy": value}, {}) for value in values]


def test_each_look_ahead_has_a_user_and_draws_of_its_own(trainer: Any, tiny_chatml: Path) -> None:
    users = ToldUsers(lambda number: TALKATIVE)
    out = played(trainer, tiny_chatml, users, window=2, samples=3)
    whole = [one for one in out["samples"] if not one.truncated]
    assert {len(one.conversations) for one in whole} == {3}
    assert all(len({str(conversation[: one.start + 1]) for conversation in one.conversations}) == 1 for one in whole)
    assert any(len(set(map(str, one.conversations))) == 3 for one in whole)


@pytest.mark.parametrize("window", [0, 3])
def test_a_step_asks_once_for_each_exchange(window: int, trainer: Any, tiny_chatml: Path, monkeypatch: Any) -> None:
    calls = Calls(monkeypatch)
    out = played(trainer, tiny_chatml, ToldUsers(lambda number: ["END"]), window=window, samples=2)
    assert len(calls.made) == 1 + window, "also where no conversation is left: processes keep in step"
    if not window:
        assert {(len(one.conversations), one.ended[0]) for one in out["samples"]} == {(1, "limit"), (1, "truncated")}


def test_a_turn_that_runs_into_a_header_counts_as_cut(tiny_chatml: Path, tmp_path: Path, monkeypatch: Any) -> None:
    trainer = trainer_of(tiny_chatml, lambda *_: {}, tmp_path)
    chat = chat_of(tiny_chatml)
    header = chat.tokenizer.convert_tokens_to_ids("<|im_start|>")

    def favour(module: Any, inputs: Any, output: Any) -> None:
        output.logits[..., header] += 50

    trainer.model.register_forward_hook(favour)
    for section in ({"window": 2}, {"mode": "conversation"}):
        users = ToldUsers(lambda number: TALKATIVE)
        out = rolled(rollout_of(chat, users, **{**REPLY, **section}), trainer, "a")
        assert out["completion_ids"] == [[header]]
        assert out["samples"][0].truncated and out["samples"][0].ended == ("truncated",)
        assert not any(users.asked)


def test_what_ends_an_answer_is_an_end_to_trl(tiny_chatml: Path, tmp_path: Path) -> None:
    trainer, chat = trainer_of(tiny_chatml, lambda *_: {}, tmp_path), chat_of(tiny_chatml)
    trainer.eos_token_ids = [0]
    rolled(rollout_of(chat, ToldUsers(lambda number: ["END"]), **REPLY), trainer, "a")
    assert trainer.eos_token_ids == [0, *sorted(chat.answer_end_ids)]


def test_the_policy_draws_from_the_forward_pass_of_training(tiny_model: Path, tmp_path: Path) -> None:
    """Same weights, same autocast, dropout off; then training goes on as it was."""
    from nextturn.probe.engines.base import Request

    trainer = trainer_of(tiny_model, lambda *_: {}, tmp_path, bf16=True)
    trainer.model = trainer.model_wrapped = trainer.accelerator.prepare_model(trainer.model).train()
    trainer.model.gradient_checkpointing_enable()
    chat = chat_of(tiny_model)
    request = Request(chat.prompt_ids(ROWS["a"].prompt), 8, chat.stop_ids, 1.0, seed=5)
    with open_policy(trainer, chat.tokenizer, 4096) as policy:
        (made,) = policy([request])
        assert not trainer.model.training
    assert trainer.model.training and trainer.model.is_gradient_checkpointing
    trainer.model.eval()
    with trainer.accelerator.autocast():
        assert redrawn(trainer.model, request, made) == made.ids


def test_a_probe_in_training_computes_in_the_dtype_that_it_records(tiny_model: Path, tmp_path: Path) -> None:
    """With `bf16: true` the forward pass of float32 weights computes in bfloat16, and that of a checkpoint in float32."""
    import torch

    from nextturn.probe.engines.hf import live_model, plain_forward

    trainer = trainer_of(tiny_model, lambda *_: {}, tmp_path, bf16=True)
    ids = torch.tensor([[5, 6, 7, 8]])
    plain = trainer.model.eval()(input_ids=ids).logits
    trainer.model = trainer.model_wrapped = trainer.accelerator.prepare_model(trainer.model)
    trained = trainer.model(input_ids=ids).logits
    with live_model(trainer) as model, plain_forward(model) as dtype:
        assert dtype == "float32"
        assert torch.equal(model(input_ids=ids).logits, plain)
    assert not torch.equal(trained, plain)
    assert torch.equal(trainer.model(input_ids=ids).logits, trained), "training goes on as it was"


@pytest.mark.parametrize(
    ("engine", "processes", "stage", "said"),
    [
        ("hf", 2, 3, "rollout.simulator.engine: given hf, expected openai with ZeRO-3"),
        ("vllm", 2, None, "rollout.simulator.engine: given vllm, expected openai in a launch"),
        ("vllm", 1, None, None),
        ("scripted", 2, 3, None),
    ],
)
def test_a_simulator_that_the_launch_would_tear_apart_is_refused(
    engine: Any, processes: int, stage: int | None, said: str | None
) -> None:
    plugin = None if stage is None else SimpleNamespace(zero_stage=stage)
    accelerator = SimpleNamespace(num_processes=processes, state=SimpleNamespace(deepspeed_plugin=plugin))
    vllm = VllmSection(gpu_memory_utilization=0.2)
    simulator = SimulatorSection(engine=engine, model=None if engine == "scripted" else "m", vllm=vllm)
    if said is None:
        check_launch(simulator, accelerator)
        return
    with pytest.raises(RecipeError, match=said):
        check_launch(simulator, accelerator)


def test_the_trainers_own_arguments_are_checked_before_the_first_sample(tiny_chatml: Path, tmp_path: Path) -> None:
    trainer = trainer_of(tiny_chatml, lambda *_: {}, tmp_path, top_p=0.9)
    rollout = rollout_of(chat_of(tiny_chatml), ToldUsers(lambda number: ["END"]), max_turn_tokens=12)
    with pytest.raises(RecipeError, match="train.top_p"):
        rolled(rollout, trainer, "a")
