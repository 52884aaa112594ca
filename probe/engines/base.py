"""The interface of every engine: prompts as token ids in, completions out, with a seed for each request.

Completions come as a stream, each with the index of its request, so a caller can store each at once; `collect` puts them in
order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class Request:
    """A completion to make: prompt and stop tokens as ids, temperature (0 is greedy), and a seed."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Completion:
    """A completion: text and number of tokens without the stop token; `finish` is "length" if the limit cut it.

    Attributes:
        ids: All generated tokens, the stop token included; empty for servers and stored completions.
        log_probs: log p of each of `ids` under the sampling distribution, None if unknown; empty unless training needs it.
    """

    text: str
    tokens: int
    finish: Literal["stop", "length"]
    ids: tuple[int, ...] = ()
    log_probs: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class ScoreRequest:
    """The log-probability of `target_ids` (not empty) after `prefix_ids` is requested."""

    prefix_ids: tuple[int, ...]
    target_ids: tuple[int, ...]


class Engine(Protocol):
    """A model that completes and scores; it is loaded with the first request."""

    name: str

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Return the indices of requests that have to be made together, so that a rerun gets the same floating-point results.

        An engine whose completions do not depend on their neighbours, or that cannot choose the neighbours, returns each
        request by itself; those of them that are still missing are then streamed together.
        """
        ...

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        """Yield (index of the request, completion) once for every request, in any order."""
        ...

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """Yield (index, log p(target | prefix)) in nats, summed over the target's tokens at temperature 1.

        Raises:
            CannotScore: The engine gives no log-probabilities; the message says why.
        """
        ...

    def close(self) -> None:
        """Release memory and processes, so that another model can be loaded."""
        ...


def collect(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """Return one completion per request, in the order of the requests."""
    done = dict(engine.stream(requests))
    return [done[index] for index in range(len(requests))]


def item_seed(seed: int, *parts: object) -> int:
    """Return a 63-bit seed for one sample of one item."""
    text = "\x1f".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
