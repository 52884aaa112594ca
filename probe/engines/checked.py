"""An engine that asks before it hands anything out, for work that another process may take over at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from probe.engines.base import Completion, Engine, Request, ScoreRequest


class CheckedEngine:
    """Wraps `engine`; `check` raises to stop it. What is handed out is written at once, so nothing is written then."""

    def __init__(self, engine: Engine, check: Callable[[], None]) -> None:
        self.engine, self.check = engine, check
        self.name = engine.name

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        return self.engine.batches(requests)

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        for made in self.engine.stream(requests):
            self.check()
            yield made

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        for made in self.engine.score(requests):
            self.check()
            yield made
