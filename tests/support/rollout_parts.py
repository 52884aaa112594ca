"""What the tests of rollouts share: rows, users that do as they are told, a real trainer with a tiny model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nextturn.train.rollouts
from nextturn.probe.engines.base import Completion, Request
from nextturn.probe.models.folders import load_model, load_tokenizer, resolve
from nextturn.probe.questions.simulation import PromptRow, UserRequest, UserTurn
from nextturn.probe.text.chat import Chat
from nextturn.train.rollouts import RolloutFunction
from nextturn.train.sections import RolloutSection
from support.conversations import prompt_row

QUESTION = "Ann has some bags with 4 apples each. How many apples are there?"


def row(name: str = "a", question: str = QUESTION, **more: Any) -> PromptRow:
    told: dict[str, Any] = {
        "hidden": ("3",), "clause": "how many bags Ann has", "thing": "the number of bags",
        "reveal": "Ann has 3 bags.", "short": "3 bags", "answer": "12", "solution": "3 * 4 = 12",
        "problem": "Ann has 3 bags with 4 apples each. How many apples are there?",
    }  # fmt: skip
    prompt = ({"role": "user", "content": question},)
    return prompt_row(id=name, kind="underspecified", turn=0, prompt=prompt, **{**told, **more})


ROWS = {
    "a": row("a"),
    "b": row("b", "How many legs do 5 dogs have?", hidden=(), clause="", thing="", reveal="", short=""),
}


def rolled(rollout: RolloutFunction, trainer: Any, *names: str) -> dict[str, Any]:
    """What the rollout gives trl for prompts of these rows."""
    trainer.row_ids = list(names)
    return rollout([list(rollout.rows[name].prompt) for name in names], trainer)


class ToldUsers:
    """A simulator whose users do in turn what `course` says for the conversation: a text, "END" or "FAIL"."""

    def __init__(self, course: Callable[[int], Sequence[str]]) -> None:
        self.course = course
        self.users: dict[int, list[str]] = {}
        self.asked: list[int] = []

    def turns(self, requests: Sequence[UserRequest]) -> list[UserTurn]:
        assert all(request.messages[-1]["role"] == "assistant" for request in requests)
        self.asked.append(len(requests))
        for request in requests:  # each conversation has a seed of its own
            self.users.setdefault(request.seed, list(self.course(len(self.users))))
        return [self._turn(self.users[request.seed].pop(0)) for request in requests]

    @staticmethod
    def _turn(told: str) -> UserTurn:
        return {"END": UserTurn(ended=True), "FAIL": UserTurn(failure="simulator_timeout")}.get(told, UserTurn(told))


class Calls:
    """Records what the policy was asked and what it said."""

    def __init__(self, monkeypatch: Any) -> None:

        self.made: list[list[tuple[Request, Completion]]] = []
        original = nextturn.train.rollouts.collect

        def collect(engine: Any, requests: Sequence[Request]) -> list[Completion]:
            done = original(engine, requests)
            self.made.append(list(zip(requests, done, strict=True)))
            return done

        monkeypatch.setattr(nextturn.train.rollouts, "collect", collect)


def redrawn(model: Any, request: Request, made: Completion) -> tuple[int, ...]:
    """The ids that the request's seed draws from the forward pass of training over the whole sequence at once."""
    import torch

    ids = torch.tensor([[*request.prompt_ids, *made.ids]])
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, len(request.prompt_ids) - 1 : -1]
    generator = torch.Generator().manual_seed(request.seed)
    uniform = torch.rand(request.max_tokens, generator=generator, dtype=torch.float64)[: len(made.ids), None]
    cumulative = (logits.float() / request.temperature).softmax(-1).cumsum(-1, dtype=torch.float64)
    return tuple(torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0].tolist())


def chat_of(folder: Path) -> Chat:
    return Chat(load_tokenizer(resolve(str(folder))))


def rollout_of(chat: Chat, simulator: Any, seed: int = 3, **section: Any) -> RolloutFunction:
    return RolloutFunction(RolloutSection(**section), chat, ROWS, simulator, seed, lambda: None)


def trainer_of(folder: Path, rollout: Any, out: Path, stops_early: float = 0.0, **args: Any) -> Any:
    """trl's own trainer on the CPU. `stops_early` is added to the logit of the turn end: random weights hardly stop."""
    from trl import GRPOConfig

    from nextturn.train.encoding import prompt_dataset
    from nextturn.train.overrides import RolloutTrainer

    model = load_model(resolve(str(folder)), "float32", "cpu")
    if stops_early:
        turn_end = chat_of(folder).turn_end_ids[-1]

        def favour(module: Any, inputs: Any, output: Any) -> None:
            if getattr(output, "logits", None) is not None:  # the loss of training has none
                output.logits[..., turn_end] += stops_early

        model.register_forward_hook(favour)
    given: dict[str, Any] = {
        "max_completion_length": 64, "num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 1, "bf16": False,
        "gradient_checkpointing": False, "use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no",
        "learning_rate": 1e-3, "shuffle_dataset": False, **args,
    }  # fmt: skip
    config = GRPOConfig(output_dir=str(out), **given)
    return RolloutTrainer(
        model=model,
        reward_funcs=lambda samples, **kwargs: [float(one.tokens) for one in samples],
        args=config,
        train_dataset=prompt_dataset(list(ROWS.values())),
        processing_class=load_tokenizer(resolve(str(folder))),
        rollout_func=rollout,
    )
