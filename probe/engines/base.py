"""The one interface of every engine: prompts as token ids in, completions out, seeded per request.

Completions come as a stream, each with the index of its request, so that whoever asked can store each one at
once and loses nothing to a kill; `collect` puts them in order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class Request:
    """One completion to make: prompt and stop tokens as ids, temperature (0 = greedy), a seed of its own."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Completion:
    """What came back: text and number of tokens without the stop token; "length" where the limit cut it.

    Attributes:
        ids: every token that was generated, the stop token included. Engines that know of no ids leave it empty, and
            stored completions do not keep it.
        log_probs: log p of each of `ids` under the sampling distribution, None where it could not be had; empty unless
            training asked for it.
    """

    text: str
    tokens: int
    finish: Literal["stop", "length"]
    ids: tuple[int, ...] = ()
    log_probs: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class ScoreRequest:
    """How likely is `target_ids` after `prefix_ids`? Both as ids, the target not empty."""

    prefix_ids: tuple[int, ...]
    target_ids: tuple[int, ...]


class Engine(Protocol):
    """What every engine offers. The model is loaded with the first request, and serves completions and scores alike."""

    name: str

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Indices of requests that have to be made together, in order, so that a rerun rounds as the first run did.

        An engine whose completions hang on no neighbour, or that cannot choose the neighbours, gives each request a
        batch of its own; such requests are then streamed together, those alone that are still missing.
        """
        ...

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        """Yields (index of the request, completion) for every request once, in any order."""
        ...

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """Yields (index, log p(target | prefix) in nats, summed over the target's tokens at temperature 1).

        Raises:
            CannotScore: this engine gives no log-probabilities; the message says why.
        """
        ...

    def close(self) -> None:
        """Gives memory and processes back, so that another model can be loaded after this one."""
        ...


def collect(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """One completion per request, in the order of the requests."""
    done = dict(engine.stream(requests))
    return [done[index] for index in range(len(requests))]


def item_seed(seed: int, *parts: object) -> int:
    """A 63-bit seed for one sample of one item, the same whatever else is in the batch."""
    text = "\x1f".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
