"""Rollouts in `reply` mode: what is trained, how the look-ahead goes on, seeds, failures, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nextturn.data_builders.sections import SimulatorSection
from nextturn.probe.command.errors import RecipeError
from nextturn.probe.command.sections import VllmSection
from nextturn.probe.engines.base import Completion, Request
from nextturn.train.rollouts import Rollout, VllmPolicy, check_launch, open_policy
from support.conversations import spans
from support.ranks import Ranks
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
    conversation = Rollout(ROWS["a"], 0, (), [])
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
    ("engine", "processes", "stage", "refused"),
    [("hf", 2, 3, True), ("vllm", 2, None, True), ("vllm", 1, None, False), ("scripted", 2, 3, False)],
)
def test_a_simulator_that_the_launch_would_tear_apart_is_refused(
    engine: Any, processes: int, stage: int | None, refused: bool
) -> None:
    plugin = None if stage is None else SimpleNamespace(zero_stage=stage)
    accelerator = SimpleNamespace(num_processes=processes, state=SimpleNamespace(deepspeed_plugin=plugin))
    vllm = VllmSection(gpu_memory_utilization=0.2)
    simulator = SimulatorSection(engine=engine, model=None if engine == "scripted" else "m", vllm=vllm)
    with pytest.raises(RecipeError) if refused else nullcontext():
        check_launch(simulator, accelerator)


def test_the_trainers_own_arguments_are_checked_before_the_first_sample(tiny_chatml: Path, tmp_path: Path) -> None:
    trainer = trainer_of(tiny_chatml, lambda *_: {}, tmp_path, top_p=0.9)
    rollout = rollout_of(chat_of(tiny_chatml), ToldUsers(lambda number: ["END"]), max_turn_tokens=12)
    with pytest.raises(RecipeError):
        rolled(rollout, trainer, "a")


# --- Over trl's vLLM, with a stand-in that has its contract: who is asked what, how often, with which limits.


class ServedGeneration:
    """trl's `VLLMGeneration` in server mode: it gathers, and slices by this process's number of prompts."""

    def __init__(self, processes: Ranks, rank: int, turn_end: int) -> None:
        self.processes, self.rank, self.turn_end = processes, rank, turn_end
        self.max_completion_length, self.temperature = 500, 0.9
        self.generation_kwargs: dict[str, Any] = {"seed": 1}
        self.calls: list[dict[str, Any]] = []

    def generate(self, prompts: list[list[int]], images: None, num_generations: int) -> tuple[Any, ...]:
        assert prompts and num_generations == 1 and all(isinstance(ids, list) for ids in prompts)
        self.calls.append(
            {
                "prompts": len(prompts), "limit": self.max_completion_length, "temperature": self.temperature,
                "options": self.generation_kwargs,
            }
        )  # fmt: skip
        everyone = self.processes.gather(prompts)
        made = [self.complete(ids) for ids in everyone]
        mine = made[self.rank * len(prompts) : (self.rank + 1) * len(prompts)]
        log_probs = [[[-0.5 - place] for place in range(len(ids))] for ids in mine]
        return prompts, mine, log_probs, None

    def complete(self, prompt: Sequence[int]) -> list[int]:
        """Says which prompt it saw: its length and its sum, then ends; or goes on to the limit after a long one."""
        text = [300 + len(prompt) % 50, 400 + sum(prompt) % 50]
        limit = self.max_completion_length
        return [*text, self.turn_end] if sum(prompt) % 3 else (text * limit)[:limit]


def vllm_trainer(processes: Ranks, rank: int, turn_end: int) -> Any:
    state = SimpleNamespace(deepspeed_plugin=None)
    accelerator = SimpleNamespace(num_processes=processes.number, process_index=rank, state=state)
    args = SimpleNamespace(max_completion_length=120, temperature=0.7, use_vllm=True, top_p=0.9)
    return SimpleNamespace(
        use_vllm=True, vllm_generation=ServedGeneration(processes, rank, turn_end), accelerator=accelerator, args=args,
        model=SimpleNamespace(training=True), state=SimpleNamespace(global_step=0), eos_token_ids=[turn_end],
    )  # fmt: skip


def launched(monkeypatch: Any, number: int) -> Ranks:
    processes = Ranks(number)
    monkeypatch.setattr(VllmPolicy, "_gathered", lambda _, own: processes.gather(own))
    return processes


def play(processes: Ranks, folder: Path, courses: Sequence[Sequence[str]], **section: Any) -> list[Any]:
    """One rollout of four prompts on every process; `courses[rank]` is what the users of that process do."""
    turn_end = chat_of(folder).turn_end_ids[-1]

    def one(rank: int) -> Any:
        trainer = vllm_trainer(processes, rank, turn_end)
        rollout = rollout_of(
            chat_of(folder), ToldUsers(lambda number: courses[rank]), True, max_turn_tokens=12, **section
        )
        return rolled(rollout, trainer, *"aabb"), trainer.vllm_generation.calls

    return processes.run(one)


@pytest.mark.parametrize("mode", ["reply", "conversation"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_all_processes_ask_equally_often_with_equally_many_prompts(
    mode: str, number: int, tiny_chatml: Path, monkeypatch: Any
) -> None:
    """Also where one process's conversations end at once and another's go on: trl slices by the number of prompts."""
    processes = launched(monkeypatch, number)
    courses = [["END"], TALKATIVE, ["Why?", "END"]][:number] if number > 1 else [TALKATIVE]
    done = play(processes, tiny_chatml, courses, mode=mode, window=3, max_turns=3)
    calls = [[(call["prompts"], call["limit"], call["temperature"]) for call in own] for _, own in done]
    assert all(own == calls[0] for own in calls)
    for rank, (out, _) in enumerate(done):
        for one in out["samples"]:
            expected = "user" if courses[rank][-1] == "END" else "limit"
            assert one.ended[0] in (expected, "truncated")


def test_each_process_gets_the_completions_of_its_own_prompts(tiny_chatml: Path, monkeypatch: Any) -> None:
    processes = launched(monkeypatch, 2)
    chat = chat_of(tiny_chatml)
    turn_end = chat.turn_end_ids[-1]
    own = [[Request((5,) * 4, 12, (turn_end,), 0.7)], [Request((7,) * n, 12, (turn_end,), 0.7) for n in (2, 5, 8)]]

    def one(rank: int) -> Any:
        trainer = vllm_trainer(processes, rank, turn_end)
        policy = VllmPolicy(trainer.vllm_generation, trainer.accelerator, chat.tokenizer)
        return policy(own[rank]), policy([])

    generation = ServedGeneration(processes, 0, turn_end)
    generation.max_completion_length = 12
    for rank, (made, nothing) in enumerate(processes.run(one)):
        assert [list(one.ids) for one in made] == [generation.complete(request.prompt_ids) for request in own[rank]]
        assert nothing == []


def test_a_call_has_the_limits_of_its_round_and_leaves_the_trainers_as_they_were(
    tiny_chatml: Path, monkeypatch: Any
) -> None:
    processes = launched(monkeypatch, 1)
    trainer = vllm_trainer(processes, 0, turn_end=9)
    generation = trainer.vllm_generation
    before = {name: value for name, value in vars(generation).items() if name != "calls"}
    policy = VllmPolicy(generation, trainer.accelerator, chat_of(tiny_chatml).tokenizer)
    made = policy([Request((3, number), 8, (9,), 0.7) for number in (3, 7)])
    (call,) = generation.calls
    assert (call["limit"], call["temperature"]) == (8, 0.7)
    assert call["options"] == {"seed": 1, "stop_token_ids": [9]}
    assert {name: value for name, value in vars(generation).items() if name != "calls"} == before
    assert [(one.tokens, len(one.ids), one.finish) for one in made] == [(8, 8, "length"), (2, 3, "stop")]


def test_log_probs_stand_by_the_sampled_tokens_and_nothing_by_the_others(tiny_chatml: Path, monkeypatch: Any) -> None:
    processes = launched(monkeypatch, 1)
    ((out, _),) = play(processes, tiny_chatml, [TALKATIVE], mode="conversation", max_turns=3)
    assert any(0 in mask for mask in out["env_mask"])
    for ids, mask, log_probs in zip(out["completion_ids"], out["env_mask"], out["logprobs"], strict=True):
        assert len(ids) == len(mask) == len(log_probs)
        assert all((one == 0.0) == (not own) for own, one in zip(mask, log_probs, strict=True))
        for start, end in spans(mask):
            assert log_probs[start:end] == [-0.5 - place for place in range(end - start)]
