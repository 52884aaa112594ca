"""The protocol of simulated users, which data builders, GRPO's rollouts and measures share.

A simulator is a class with one method. It gets a batch of conversations that each end with an assistant turn, with what the
user of each knows and wants, and returns the next user turn of each, or the end of the conversation. It keeps no state: what
it returns depends on the request alone, so a run that resumes gets the same turns. Implementations are in
`data_builders.simulators`; a measure that needs a user gets a simulator as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from nextturn.probe.data.messages import Message

Wish = Literal["result", "hint", "check", "doubt", "correct", "help"]
"""What a user wants: the result; a hint only; a check of an attempt; to be convinced of a result; to have a mistake of the
assistant corrected; help that is not mathematics."""


@dataclass(frozen=True)
class Intent:
    """What the user of a conversation knows and wants.

    Attributes:
        id: Name of the problem or row; draws that must be equal for all samples of a row depend on it.
        problem: The whole problem.
        wish: What the user wants.
        answer: The reference answer. Only rules read it, to end a conversation; no model is shown it.
        clause: Names the withheld fact and follows "tell me": "how many marbles are in each bag"; "" if there is none.
        thing: A noun phrase for the withheld fact, if there is one.
        reveal: A sentence of the user that states the withheld fact; "" if nothing is withheld.
        short: The bare fact, such as "12 marbles".
        ask: A reply that asks for the withheld fact.
        hidden: Texts of the problem that no message may state before the user reveals them.
        shards: Facts that the user reveals, one in each turn.
        columns: The prompt's further columns, in GRPO on prompts of one's own.
    """

    id: str
    problem: str
    wish: Wish = "result"
    answer: str = ""
    clause: str = ""
    thing: str = ""
    reveal: str = ""
    short: str = ""
    ask: str = ""
    hidden: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the withheld fact."""
        return tuple(name for name in (self.clause, self.thing) if name)


@dataclass(frozen=True)
class UserRequest:
    """A request for a user turn.

    Attributes:
        messages: The conversation so far; the last message is the assistant's.
        seed: Seed of this conversation; equal requests with equal seeds get equal turns.
        start: Number of messages before the first reply that the user reacts to.
        attempt: How often this turn was sampled before and could not be used. Each attempt draws anew.
    """

    intent: Intent
    messages: tuple[Message, ...]
    seed: int
    start: int = 1
    attempt: int = 0

    @property
    def untold(self) -> tuple[str, ...]:
        """The pieces of the problem that the user has not revealed yet."""
        return self.intent.shards[sum(message["role"] == "user" for message in self.messages[self.start :]) :]


@dataclass(frozen=True)
class UserTurn:
    """A user's message, or the end of the conversation, or the reason (`failure`) why there is neither.

    A failure whose reason begins with "user_" concerns the text, and the turn is sampled again.
    """

    text: str = ""
    ended: bool = False
    failure: str = ""


class Simulator(Protocol):
    """A source of user turns.

    A class of one's own may also have `close()`, which is called once at the end, and an `__init__` with keyword arguments,
    which the recipe gives in `simulator.options`.
    """

    def turns(self, requests: Sequence[UserRequest]) -> list[UserTurn]:
        """Return the next user turn for each request, in order.

        Raises:
            EngineError: A model or server that writes the turns is gone.
        """
        ...


class ShardedUser:
    """A user without a model who reveals the `shards` of its intent, one in each turn, and ends the conversation after the last."""

    def turns(self, requests: Sequence[UserRequest]) -> list[UserTurn]:
        """Return the next shard of each conversation."""
        return [UserTurn(request.untold[0]) if request.untold else UserTurn(ended=True) for request in requests]
