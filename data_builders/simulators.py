"""Simulated users (`probe.questions.simulation`): scripted, a prompted model, a model trained on user turns, or a class of one's own.

A *user model* is trained with `data.loss_on: user` and continues the chat's own user turn, as the probe's model does. What
the user knows and wants stands before the conversation as a system message, the *intent* (`intent_text`), as in UserLM
(arXiv 2510.06552). An empty turn ends the conversation.

Whatever writes a turn, `CheckedSimulator` checks it: role, end marks, repetition.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nextturn.data_builders.dialogue.prompts import act_prompt, copies_example, simulator_prompt
from nextturn.data_builders.dialogue.replies import Parsed, read_message, read_user, unfit_user_turn
from nextturn.data_builders.sections import PERSONAS, SimulatorSection
from nextturn.data_builders.user import ScriptedUser
from nextturn.probe.command.errors import RecipeError
from nextturn.probe.command.own import Own, file_of
from nextturn.probe.data.messages import Message
from nextturn.probe.engines.ask import Answer, Ask, ChatModel, EngineModel, Reply, again_at, ask, open_model
from nextturn.probe.engines.base import Request, item_seed
from nextturn.probe.models.user_model import UserModelInfo, user_model_info
from nextturn.probe.questions.simulation import PromptRow, ShardedUser, Simulator, UserRequest, UserTurn, Wish

_WISHES: Mapping[Wish, str] = {
    "result": "You want the result and to understand it.",
    "hint": "You want a hint and not the solution.",
    "check": "You want to know whether your own attempt is right.",
    "doubt": "You doubt the assistant's result.",
    "correct": "You have seen a mistake of the assistant.",
    "help": "You want help.",
}
_CASUAL = {True: "You type in lower case.", False: "You write whole sentences."}


def intent_text(row: PromptRow, casual: bool) -> str:
    """Return the system message of a user's view: the wish, the manner, and a withheld fact with the sentence that reveals it.

    It stays the same for the whole conversation, as in training.

    Args:
        casual: Whether the user types in lower case.
    """
    parts = ["You are a user who talks with an assistant.", _WISHES[row.wish], _CASUAL[casual]]
    if row.fact.reveal:
        parts.append(f"You have not mentioned {row.fact.name}. If the assistant asks: {row.fact.reveal}")
    return " ".join(parts)


def is_casual(text: str) -> bool:
    """Return True if a message begins in lower case."""
    return text[:1].islower()


VERSION = 1
"""Raised when a simulator of the package answers the same request with another turn. A run is not resumed with it."""


class ScriptedSimulator:
    """Users that follow rules (`data_builders.user`), without a model."""

    def turns(self, requests: Sequence[UserRequest]) -> list[UserTurn]:
        """Return the next user turns; earlier turns of each user are computed again, since they decide what it has done."""
        turns = []
        for request in requests:
            user = ScriptedUser(request.row, request.seed)
            for length in range(request.start + 1, len(request.messages) + 1, 2):
                text = user.reply(request.messages[:length], request.attempt)
            turns.append(UserTurn(ended=True) if text is None else UserTurn(text))
        return turns


class PromptedSimulator:
    """A chat model that is told whom to play. It knows the problem and what is withheld, not the answer."""

    def __init__(self, model: ChatModel, section: SimulatorSection) -> None:
        self.model = model
        self.section = section

    def turns(self, requests: Sequence[UserRequest]) -> list[UserTurn]:
        """Return the next user turns."""
        return [_turn(answer) for answer in ask(self.model, [self._ask(request) for request in requests], 1)]

    def _ask(self, request: UserRequest) -> Ask[Parsed]:
        row, messages = request.row, request.messages
        rng = random.Random(f"simulator:{request.seed}")
        persona = rng.choice(list(PERSONAS))
        read: Callable[[Reply], Parsed]
        if self.section.few_shot:
            act = "doubt" if row.wish == "doubt" else rng.choice(("why", "meaning", "proof", "simpler"))
            words = {"answer": row.answer} if act in ("doubt", "proof") else {}
            prompt = act_prompt(persona, act, messages[-1]["content"], self.section.few_shot, **words)
            read = partial(_read_act, act, self.section.few_shot, messages)
        else:
            prompt = simulator_prompt(row, persona, messages)
            # Only numbers may not be copied: a withheld sentence is revealed by copying it.
            numbers = tuple(value for value in row.hidden if re.fullmatch(r"\d[\d.,/]*", value))
            read = partial(read_user, hidden=numbers, question=row.problem, messages=messages)
        return Ask(prompt, read, lambda attempt: item_seed(request.seed, len(messages), attempt), tried=request.attempt)


def _turn(answer: Answer[Parsed]) -> UserTurn:
    if answer.parsed:
        return UserTurn(answer.parsed.text, answer.parsed.ended)
    if answer.unusable:
        return UserTurn(answer.unusable[-1].text, failure=f"{OF_TEXT}{answer.unusable[-1].unusable}")
    return UserTurn(failure=f"simulator_{answer.missing}")


def _read_act(act: str, shots: int, messages: Sequence[Message], reply: Reply) -> Parsed:
    parsed = read_message(reply)
    known = "\n".join(message["content"] for message in messages)
    return Parsed(parsed.text, parsed.unusable or copies_example(act, shots, parsed.text, known))


class TrainedSimulator:
    """A user model, in this process or behind a server that serves completions."""

    def __init__(self, model: EngineModel, intents: bool) -> None:
        self.model = model
        self.intents = intents

    def turns(self, requests: Sequence[UserRequest]) -> list[UserTurn]:
        """Return the next user turns; an empty one ends the conversation."""
        chat, most = self.model.chat, self.model.max_tokens
        asked = [
            Request(
                chat.user_prefix_ids(self._view(request)), most, chat.stop_ids,
                again_at(self.model.temperature, request.attempt),
                item_seed(request.seed, len(request.messages), request.attempt),
            )
            for request in requests
        ]  # fmt: skip
        turns = []
        for made in self.model.complete(asked, "user turns"):
            text = chat.user_turn(made.text)
            cut = made.finish == "length" and text == made.text.strip()
            turns.append(UserTurn(failure="user_cut") if cut else UserTurn(text, ended=not text))
        return turns

    def _view(self, request: UserRequest) -> tuple[Message, ...]:
        if not self.intents:
            return request.messages
        casual = random.Random(f"casual:{request.seed}").random() < 0.5
        text = intent_text(request.row, casual)
        return ({"role": "system", "content": text}, *request.messages)


class OwnSimulator:
    """A class of one's own, whose mistakes are named with its key.

    Raises:
        BadInput: The class cannot be loaded, or has no method `turns(requests)`.
    """

    def __init__(self, section: SimulatorSection, where: str) -> None:
        self.own = Own(section.engine, f"{where}.engine", "turns", section.options)
        self.close = self.own.close

    def turns(self, requests: Sequence[UserRequest]) -> list[UserTurn]:
        """Return the next user turns. The class knows no attempts: a further one has another seed.

        Raises:
            BadInput: The class fails, or returns something other than one `UserTurn` for each request.
            EngineError: The class raises it.
        """
        seeds = [item_seed(each.seed, each.attempt) if each.attempt else each.seed for each in requests]
        asked = [replace(request, seed=seed) for request, seed in zip(requests, seeds, strict=True)]
        return self.own.call(asked, "UserTurn, one for each request", _is_turn)


def _is_turn(turn: Any) -> bool:
    return isinstance(turn, UserTurn) and type(turn.text) is type(turn.failure) is str


OF_TEXT = "user_"
"""Begins the reasons of failures that concern the text of a turn."""


class CheckedSimulator:
    """Checks every turn of a simulator (`unfit_user_turn`). A turn that cannot be used is sampled again, with another seed.

    Args:
        own: The simulator.
        tries: The most attempts for a turn. A turn that is still unusable after them fails, with the reason.
    """

    def __init__(self, own: Simulator, tries: int) -> None:
        self.own, self.tries = own, tries

    def turns(self, requests: Sequence[UserRequest]) -> list[UserTurn]:
        """Return the next user turns; failed ones keep their text."""
        turns = [UserTurn()] * len(requests)
        wanted = list(range(len(requests)))
        for attempt in range(self.tries if wanted else 0):
            asked = [replace(requests[index], attempt=attempt) for index in wanted]
            for index, turn in zip(wanted, self.own.turns(asked), strict=True):
                turns[index] = _checked(turn, requests[index])
            if not (wanted := [index for index in wanted if turns[index].failure.startswith(OF_TEXT)]):
                break
        return turns


def _checked(turn: UserTurn, request: UserRequest) -> UserTurn:
    """Return the turn, as a failure if no user would write it, or end the conversation there."""
    if turn.failure:
        return turn
    unfit = "ended_early" * bool(request.untold) if turn.ended else unfit_user_turn(turn.text, request.messages)
    return replace(turn, failure=f"{OF_TEXT}{unfit}") if unfit else turn


@contextmanager
def open_simulator(
    section: SimulatorSection, seed: int, where: str, folder: Path | None = None
) -> Iterator[CheckedSimulator]:
    """Open a simulator; no request is sent and no weights are loaded.

    Args:
        where: The recipe section, for messages.
        folder: Stores what models reply; what an earlier run stored is reused.

    Raises:
        BadInput: The model, the user model, the server's section or the class cannot be used.
    """
    with ExitStack() as opened:
        own: Simulator
        if ":" in section.engine:
            own = opened.enter_context(closing(OwnSimulator(section, where)))
        else:
            own = ShardedUser(_open_player(section, seed, where, folder, opened))
        yield CheckedSimulator(own, section.tries)


def _open_player(section: SimulatorSection, seed: int, where: str, folder: Path | None, opened: ExitStack) -> Simulator:
    """Return a simulator of the package, which `opened` closes."""
    if section.engine == "scripted":
        return ScriptedSimulator()
    if section.engine != "adapter":
        model = opened.enter_context(open_model("simulator", section.running, seed, where, folder))
        return PromptedSimulator(model, section)
    info = check_user_model(section, where)
    model = opened.enter_context(closing(EngineModel("user", section.running, seed, where, folder)))
    if model.chat.template_sha256 != info.template_sha256:
        raise RecipeError(
            f"{where}.model: {section.model} was trained with another chat template than it has now; train it again, "
            "or restore its template"
        )
    return TrainedSimulator(model, info.intents)


def check_user_model(section: SimulatorSection, where: str) -> UserModelInfo:
    """Return what the marker of a user model says.

    Raises:
        BadInput: There is no such folder, or it holds no user model.
    """
    info = user_model_info(Path(str(section.model)))
    if info is None:
        raise RecipeError(
            f"{where}.model: {section.model} holds no user model; train one with a recipe such as "
            f"recipes/user_qwen2b.yaml, or use {where}: {{engine: scripted}}"
        )
    return info


def check_own_class(section: SimulatorSection, where: str) -> dict[str, str]:
    """Open a class of one's own once, and return the hash of its file by the file's name; {} for other engines.

    Raises:
        BadInput: The class cannot be used.
    """
    if ":" not in section.engine:
        return {}
    with open_simulator(section, 0, where):
        return file_of(section.engine)
