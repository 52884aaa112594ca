"""Who plays the user: a script that knows the problem, or any engine of the data builders.

A simulator that gives no usable message ends the conversation as failed, with the reason; never as one that the user
ended, and never with an empty message. The user turns of a step are all asked at once.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from data_builders.dialogue.personas import EFFORTS, KNOWLEDGES, PERSONAS, Persona, draw_persona
from data_builders.dialogue.plan import Plan
from data_builders.dialogue.pool import Pool
from data_builders.dialogue.prompts import simulator_prompt
from data_builders.dialogue.replies import read_user
from data_builders.dialogue.speaker import Ask, Flow
from data_builders.dialogue.speakers import open_speakers
from data_builders.rl import RlRow
from data_builders.scripted_user import ScriptedUser
from data_builders.tasks import Gap, Task
from probe.engines.base import item_seed
from probe.sets import Message
from train.rollouts.settings import SimulatorSection

# A message that slipped at temperature 0 would slip again.
_AGAIN_AT_LEAST = 0.5
_NUMBER = re.compile(r"\d[\d.,/]*")


@dataclass(frozen=True)
class UserTurn:
    """A user's message; or the user has ended the conversation; or `failure` says why there is none."""

    text: str = ""
    ended: bool = False
    failure: str = ""


class Simulator(Protocol):
    def user(self, row: RlRow, seed: int) -> Any:
        """The user of one conversation."""
        ...

    def reply(self, asked: Sequence[tuple[Any, Sequence[Message]]]) -> list[UserTurn]:
        """The next turn of every (user, messages so far, which end with the assistant), in order."""
        ...

    def close(self) -> None: ...


class ScriptedSimulator:
    """Offline: `data_builders.scripted_user`."""

    def user(self, row: RlRow, seed: int) -> ScriptedUser:
        return ScriptedUser(row, seed)

    def reply(self, asked: Sequence[tuple[ScriptedUser, Sequence[Message]]]) -> list[UserTurn]:
        texts = [user.reply(messages) for user, messages in asked]
        return [UserTurn(ended=True) if text is None else UserTurn(text) for text in texts]

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class _ModelUser:
    plan: Plan
    seed: int

    @property
    def read_as(self) -> Plan:
        """What is withheld as far as its telling can be seen in any wording: a sentence is told by copying it."""
        return replace(self.plan, hidden=tuple(value for value in self.plan.hidden if _NUMBER.fullmatch(value)))


class ModelSimulator:
    """A language model as the user, with the prompts and the reading of the dialogue builder.

    It is never told that a message is its last: told so, it would tell all that is missing without being asked.
    """

    def __init__(self, section: SimulatorSection, seed: int) -> None:
        self.section = section
        self._speakers = open_speakers({"simulator": section}, seed)

    def user(self, row: RlRow, seed: int) -> _ModelUser:
        return _ModelUser(plan_of_row(row, seed), seed)

    def reply(self, asked: Sequence[tuple[_ModelUser, Sequence[Message]]]) -> list[UserTurn]:
        """Raises EngineError where a server cannot be reached, or answers nothing but failures."""
        flows = [self._turn(user, tuple(messages)) for user, messages in asked]
        pool: Pool[UserTurn] = Pool(self._speakers.by_role, at_once=max(1, len(flows)))
        turns = dict(pool.run(enumerate(flows)))
        return [turns[number] for number in range(len(flows))]

    def close(self) -> None:
        self._speakers.close()

    def _turn(self, user: _ModelUser, messages: tuple[Message, ...]) -> Flow[UserTurn]:
        """One user turn; asked for again a few times where the reply cannot be used."""
        section, prompt, slip = self.section, simulator_prompt(user.plan, messages, last=False), ""
        for attempt in range(section.tries):
            temperature = max(section.temperature, _AGAIN_AT_LEAST) if attempt else section.temperature
            seed = item_seed(user.seed, len(messages), attempt)
            (said,) = yield [Ask("simulator", prompt, seed, temperature, section.max_tokens)]
            if said.failure:  # its engine has tried already
                return UserTurn(failure=f"simulator_{said.failure}")
            heard = read_user(said, user.read_as, messages)
            if not heard.slip:
                return UserTurn(heard.text, heard.ended)
            slip = heard.slip
        return UserTurn(failure=f"simulator_{slip}")


def plan_of_row(row: RlRow, seed: int) -> Plan:
    """A row in the words of the dialogue builder; where nobody has played its user yet, a persona is drawn."""
    rng = random.Random(f"rollout-persona:{seed}")
    drawn = draw_persona(rng, tuple(PERSONAS), tuple(KNOWLEDGES), tuple(EFFORTS))
    persona = Persona(row.persona or drawn.name, row.knowledge or drawn.knowledge, row.effort or drawn.effort)
    task = Task(row.id, row.problem, row.answer, source="rl", steps=())
    gap = None
    if row.clause:
        gap = Gap(row.prompt[0]["content"], row.clause, "", row.reveal, row.short, "".join(row.hidden[:1]))
    return Plan(row.id, task, persona, stated=not row.hidden, hidden=row.hidden, gap=gap)


def open_simulator(section: SimulatorSection, seed: int) -> Simulator:
    """Raises BadInput where a server's section or a model cannot be used. No request is sent, no weights are loaded."""
    return ScriptedSimulator() if section.engine == "scripted" else ModelSimulator(section, seed)
