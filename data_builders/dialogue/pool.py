"""Plays many conversations at once: takes up what each of them asks, and hands the replies back.

Nothing here knows what is said. A conversation's course hangs on its own replies alone, so the order in which they
come in changes nothing. Servers are asked the moment a conversation is ready; a model in this process is asked when
nothing else can go on, so that its batches are as full as they can be, and the same in every run.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from data_builders.dialogue.settings import Role
from data_builders.dialogue.speaker import Flow, Results, Said, Speaker, Ticket

T = TypeVar("T")


@dataclass
class _Live(Generic[T]):
    """A conversation under way, and the replies that it waits for."""

    flow: Flow[T]
    asked: list[Role] = field(default_factory=list)
    said: dict[int, Said] = field(default_factory=dict)


class Pool(Generic[T]):
    """At most `at_once` conversations under way, each a flow.

    Args:
        heard: called with each reply, stored ones too; what it raises ends the run.
    """

    def __init__(
        self,
        speakers: Mapping[Role, Speaker],
        at_once: int,
        heard: Callable[[Role, Said], None] = lambda role, said: None,
    ) -> None:
        self.speakers = dict(speakers)
        self.at_once = at_once
        self.heard = heard

    def run(
        self, flows: Iterable[tuple[int, Flow[T]]], folder: Path | None = None
    ) -> Generator[tuple[int, T], None, None]:
        """Yields (number, result) of every flow once, as they end; replies are kept in `folder`.

        Raises:
            EngineError: a server cannot be reached, or answers nothing but failures.
        """
        self._results: Results = queue.SimpleQueue()
        self._live: dict[int, _Live[T]] = {}
        self._under_way = 0
        self._handed_in: Counter[Role] = Counter()
        waiting = iter(flows)
        for speaker in self.speakers.values():
            speaker.begin(folder, self._results)
        try:
            while True:
                yield from self._admit(waiting)
                if not self._live:
                    return
                yield from self._take_in()
        finally:
            for speaker in self.speakers.values():
                speaker.end()

    def _admit(self, waiting: Iterator[tuple[int, Flow[T]]]) -> Iterator[tuple[int, T]]:
        while len(self._live) < self.at_once and (arrived := next(waiting, None)) is not None:
            number, flow = arrived
            self._live[number] = _Live(flow)
            yield from self._advance(number)

    def _take_in(self) -> Iterator[tuple[int, T]]:
        """Waits for one reply, making what a model in this process is asked for where no server has one under way."""
        if not self._under_way:
            role = max(self._handed_in, key=lambda name: (self._handed_in[name], name))
            self._under_way += self._handed_in.pop(role)
            self.speakers[role].work()
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        (number, place), said = result
        self._under_way -= 1
        live = self._live[number]
        self.heard(live.asked[place], said)
        live.said[place] = said
        if len(live.said) == len(live.asked):
            yield from self._advance(number)

    def _advance(self, number: int) -> Iterator[tuple[int, T]]:
        live = self._live[number]
        said = [live.said[place] for place in range(len(live.asked))]
        try:
            asks = live.flow.send(said) if said else next(live.flow)
        except StopIteration as end:
            del self._live[number]
            yield number, end.value
            return
        live.said, live.asked = {}, [ask.role for ask in asks]
        for place, ask in enumerate(asks):
            speaker = self.speakers[ask.role]
            if speaker.batched:
                self._handed_in[ask.role] += 1
            else:
                self._under_way += 1
            ticket: Ticket = (number, place)
            speaker.submit(ticket, ask)
