"""The protocol of simulated users, which data builders, GRPO's rollouts and measures share.

A simulator is a class with one method. It gets a batch of conversations that each end with an assistant turn, with what the
user of each knows and wants, and returns the next user turn of each, or the end of the conversation. It keeps no state: what
it returns depends on the request alone, so a run that resumes gets the same turns. Implementations are in
`data_builders.simulators`; a measure that needs a user gets a simulator as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, StringConstraints

from nextturn.probe.data.messages import Message

Wish = Literal["result", "hint", "check", "doubt", "correct", "help"]
"""What a user wants: the result; a hint only; a check of an attempt; to be convinced of a result; to have a mistake of the
assistant corrected; help that is not mathematics."""


@dataclass(frozen=True)
class Fact:
    """A needed fact of a problem that the user has not said. All texts are empty if nothing is withheld.

    Attributes:
        question: The problem without the fact, so that the rest reads as if nothing were missing.
        clause: Names the fact and follows "tell me": "how many marbles are in each bag".
        ask: A question for the fact: "How many marbles are in each bag?" In a row, the reply of the data that asks for it.
        reveal: A sentence of the user that states the fact.
        short: The bare fact: "12 marbles", "$12", "20%", "$x^2+1$"; a builder leaves it empty only if nothing is withheld.
        value: The text that no message may contain before the reveal: a number, or a formula of the solution.
        thing: A noun phrase for the fact, if there is one: "the radius of the circle".
    """

    question: str = ""
    clause: str = ""
    ask: str = ""
    reveal: str = ""
    short: str = ""
    value: str = ""
    thing: str = ""

    @property
    def name(self) -> str:
        return self.thing or self.clause

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in (self.clause, self.thing) if name)


_Text = Annotated[str, StringConstraints(pattern=r"\S")]


@dataclass(frozen=True)
class PromptRow:
    """A conversation so far, and all that a simulated user and a reward know about it.

    Both read the same row, so a reward asks for what the user would answer. A policy sees nothing but `prompt`.

    Attributes:
        id: Name of the row; draws that must be equal for all its samples depend on it.
        problem: The whole problem.
        answer: The reference answer. Rules read it, to end a conversation; no model is shown it.
        prompt: Messages; the last one is the user's.
        kind: The kind of conversation, such as "underspecified"; "" if that is not known.
        turn: Number of assistant turns in the prompt.
        hidden: Texts of the problem that nobody has said yet, and that no message may state before the user reveals them.
        fact: The withheld fact.
        shards: Pieces of the problem that the user reveals, one in each turn.
        wish: What the user wants.
        columns: The further columns of prompts of one's own, in GRPO.
    """

    id: _Text
    problem: _Text
    answer: str = ""
    prompt: tuple[Message, ...] = ()
    kind: str = ""
    turn: Annotated[int, Field(ge=0, strict=True)] = 0
    solution: str = ""
    hidden: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    fact: Fact = Fact()
    shards: tuple[_Text, ...] = ()
    wish: Wish = "result"
    columns: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def withholds(self) -> bool:
        """Whether a needed fact is still missing at this point of the conversation."""
        return bool(self.hidden or self.fact.names)


@dataclass(frozen=True)
class UserRequest:
    """A request for a user turn.

    Attributes:
        row: What the user knows and wants.
        messages: The conversation so far; the last message is the assistant's.
        seed: Seed of this conversation; equal requests with equal seeds get equal turns.
        start: Number of messages before the first reply that the user reacts to.
        attempt: How often this turn was sampled before and could not be used. Each attempt draws anew.
    """

    row: PromptRow
    messages: tuple[Message, ...]
    seed: int
    start: int = 1
    attempt: int = 0

    @property
    def untold(self) -> tuple[str, ...]:
        """The pieces of the problem that the user has not revealed yet."""
        return self.row.shards[sum(message["role"] == "user" for message in self.messages[self.start :]) :]


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
    """Tells problems in pieces, without a model: the `shards` of a row, one in each turn. It ends the conversation after the last.

    Args:
        others: Plays the users whose rows have no pieces. A model would tell all pieces at once, or forget one.
    """

    def __init__(self, others: Simulator | None = None) -> None:
        self.others = others

    def turns(self, requests: Sequence[UserRequest]) -> list[UserTurn]:
        """Return the next turn of each user."""
        rest = [request for request in requests if not request.row.shards]
        played = iter(self.others.turns(rest) if self.others and rest else ())
        return [
            UserTurn("".join(request.untold[:1]), not request.untold) if request.row.shards else next(played)
            for request in requests
        ]
