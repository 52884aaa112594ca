"""What a conversation asks of a model and what comes back, whoever the model is and wherever it runs.

A conversation is a *flow*: a generator that yields asks, is sent one reply for each, and returns its result. It knows
no engine, no server and no thread; the pool brings asks and replies together.
"""

from __future__ import annotations

import queue
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from data_builders.dialogue.settings import Role
from probe.sets import Message

T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """One reply to make: to whom it goes, the messages of the chat, and a seed of its own."""

    role: Role
    messages: tuple[Message, ...]
    seed: int
    temperature: float
    max_tokens: int


@dataclass(frozen=True)
class Said:
    """What came back. Either `failure` names why there is no reply, or `text` is one; tokens are as counted there.

    Attributes:
        cut: the reply reached its limit of tokens.
        failure: empty, or the reason of probe.servers.Reply: refused, server_error, timeout, bad_reply, ...
    """

    text: str
    prompt_tokens: int = 0
    tokens: int = 0
    cut: bool = False
    failure: str = ""
    detail: str = ""


Flow = Generator[list[Ask], list[Said], T]
"""Yields the asks that can be made now, all at once; is sent their replies in the same order."""


Ticket = tuple[int, int]
"""Which ask a reply belongs to: the conversation's number and the ask's place in what it yielded."""

Results = queue.SimpleQueue[tuple[Ticket, Said] | BaseException]
"""Where replies come in; an exception ends the build."""


class Speaker(Protocol):
    """A model in a role."""

    batched: bool
    """Whether replies are made by `work`, once nothing else can be asked, so that batches are full and always the same.
    Otherwise they come by themselves."""

    def begin(self, folder: Path | None, results: Results) -> None:
        """Keeps every reply in `folder` from here on, and takes those from it that are there; None keeps nothing."""
        ...

    def submit(self, ticket: Ticket, ask: Ask) -> None:
        """Hands in an ask and does not wait; its reply goes to `results`, once."""
        ...

    def work(self) -> None:
        """Makes the replies to all that was handed in; only for a batched speaker."""
        ...

    def end(self) -> None:
        """Stops what `begin` began; what is under way is broken off."""
        ...


def together(flows: Sequence[Flow[T]]) -> Flow[list[T]]:
    """Plays several flows side by side, step by step; returns their results in their order."""
    results: dict[int, T] = {}
    asks: dict[int, list[Ask]] = {}

    def advance(number: int, said: list[Said] | None) -> None:
        try:
            asks[number] = flows[number].send(said) if said is not None else next(flows[number])
        except StopIteration as end:
            asks.pop(number, None)
            results[number] = end.value

    for number in range(len(flows)):
        advance(number, None)
    while asks:
        waiting = list(asks.items())
        said = yield [ask for _, wanted in waiting for ask in wanted]
        start = 0
        for number, wanted in waiting:
            advance(number, said[start : start + len(wanted)])
            start += len(wanted)
    return [results[number] for number in range(len(flows))]
