"""Rollouts over trl's vLLM, with a stand-in that has its contract: who is asked what, how often, with which limits.

vLLM itself is not run: its CPU build cannot take trl's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nextturn.probe.engines.base import Request
from nextturn.train.rollouts import VllmPolicy
from support.conversations import spans
from support.ranks import Ranks
from support.rollout_parts import ToldUsers, chat_of, rolled, rollout_of

TALKATIVE = ["Why?", "And then?", "Ok.", "What now?"]


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


def trainer_of(processes: Ranks, rank: int, turn_end: int) -> Any:
    state = SimpleNamespace(deepspeed_plugin=None)
    accelerator = SimpleNamespace(num_processes=processes.number, process_index=rank, state=state)
    args = SimpleNamespace(max_completion_length=120, temperature=0.7, use_vllm=True, top_p=0.9)
    return SimpleNamespace(
        use_vllm=True, vllm_generation=ServedGeneration(processes, rank, turn_end), accelerator=accelerator, args=args,
        model=SimpleNamespace(training=True), state=SimpleNamespace(global_step=0), eos_token_ids=[turn_end],
    )  # fmt: skip


@pytest.fixture
def gathering(monkeypatch: Any) -> Callable[[Ranks], None]:
    def install(processes: Ranks) -> None:
        def gathered(policy: VllmPolicy, own: list[Any]) -> list[Any]:
            return processes.gather(own)

        monkeypatch.setattr(VllmPolicy, "_gathered", gathered)

    return install


def play(processes: Ranks, folder: Path, courses: Sequence[Sequence[str]], **section: Any) -> list[Any]:
    """One rollout of four prompts on every process; `courses[rank]` is what the users of that process do."""
    turn_end = chat_of(folder).turn_end_ids[-1]

    def one(rank: int) -> Any:
        trainer = trainer_of(processes, rank, turn_end)
        rollout = rollout_of(
            chat_of(folder), ToldUsers(lambda number: courses[rank]), True, max_turn_tokens=12, **section
        )
        return rolled(rollout, trainer, *"aabb"), trainer.vllm_generation.calls

    return processes.run(one)


@pytest.mark.parametrize("mode", ["reply", "conversation"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_all_processes_ask_equally_often_with_equally_many_prompts(
    mode: str, number: int, tiny_chatml: Path, gathering: Any
) -> None:
    """Also where one process's conversations end at once and another's go on: trl slices by the number of prompts."""
    processes = Ranks(number)
    gathering(processes)
    courses = [["END"], TALKATIVE, ["Why?", "END"]][:number] if number > 1 else [TALKATIVE]
    done = play(processes, tiny_chatml, courses, mode=mode, window=3, max_turns=3)
    calls = [[(call["prompts"], call["limit"], call["temperature"]) for call in own] for _, own in done]
    assert all(own == calls[0] for own in calls)
    for rank, (out, _) in enumerate(done):
        for one in out["samples"]:
            expected = "user" if courses[rank][-1] == "END" else "limit"
            assert one.ended[0] in (expected, "truncated")


def test_each_process_gets_the_completions_of_its_own_prompts(tiny_chatml: Path, gathering: Any) -> None:
    processes = Ranks(2)
    gathering(processes)
    chat = chat_of(tiny_chatml)
    turn_end = chat.turn_end_ids[-1]
    own = [[Request((5,) * 4, 12, (turn_end,), 0.7)], [Request((7,) * n, 12, (turn_end,), 0.7) for n in (2, 5, 8)]]

    def one(rank: int) -> Any:
        trainer = trainer_of(processes, rank, turn_end)
        policy = VllmPolicy(trainer.vllm_generation, trainer.accelerator, chat.tokenizer)
        return policy(own[rank]), policy([])

    generation = ServedGeneration(processes, 0, turn_end)
    generation.max_completion_length = 12
    for rank, (made, nothing) in enumerate(processes.run(one)):
        assert [list(one.ids) for one in made] == [generation.complete(request.prompt_ids) for request in own[rank]]
        assert nothing == []


def test_a_call_has_the_limits_of_its_round_and_leaves_the_trainers_as_they_were(
    tiny_chatml: Path, gathering: Any
) -> None:
    processes = Ranks(1)
    gathering(processes)
    trainer = trainer_of(processes, 0, turn_end=9)
    policy = VllmPolicy(trainer.vllm_generation, trainer.accelerator, chat_of(tiny_chatml).tokenizer)
    made = policy([Request((3, 3), 4, (9,), 0.7), Request((3, 6), 8, (9,), 0.7)])
    (call,) = trainer.vllm_generation.calls
    assert (call["limit"], call["temperature"]) == (8, 0.7)
    assert call["options"] == {"seed": 1, "stop_token_ids": [9]}
    generation = trainer.vllm_generation
    assert (generation.max_completion_length, generation.temperature) == (500, 0.9)
    assert generation.generation_kwargs == {"seed": 1}
    assert [(len(one.ids), one.finish, len(one.log_probs)) for one in made] == [(4, "length", 4), (8, "length", 8)]


def test_log_probs_stand_by_the_sampled_tokens_and_nothing_by_the_others(tiny_chatml: Path, gathering: Any) -> None:
    processes = Ranks(1)
    gathering(processes)
    ((out, _),) = play(processes, tiny_chatml, [TALKATIVE], mode="conversation", max_turns=3)
    assert any(0 in mask for mask in out["env_mask"])
    for ids, mask, log_probs in zip(out["completion_ids"], out["env_mask"], out["logprobs"], strict=True):
        assert len(ids) == len(mask) == len(log_probs)
        assert all((one == 0.0) == (not own) for own, one in zip(mask, log_probs, strict=True))
        for start, end in spans(mask):
            assert log_probs[start:end] == [-0.5 - place for place in range(end - start)]
