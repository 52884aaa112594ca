"""One engine on all ranks of a launch: rank 0 asks, and each rank makes its share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nextturn.probe.command.errors import NextturnError, one_line
from nextturn.probe.engines.base import Completion, Engine, Request, ScoreRequest


def on_all_ranks(engine: Engine, accelerator: Any, run: Callable[[Engine], object]) -> None:
    """Call `run` with an engine on rank 0, whose requests all ranks make together. Call it on all ranks."""
    if accelerator.num_processes == 1:
        run(engine)
        return
    shared = SharedEngine(engine, accelerator)
    if not accelerator.is_main_process:
        shared.serve()
        return
    with shared:
        run(shared)


# Requests per rank and round of an engine that makes each by itself: enough that slow requests weigh little, few enough that
# a kill loses a minute at most.
_ROUND = 1024


class SharedEngine:
    """An engine over several ranks. Rank 0 asks it within a `with` block; the others `serve` until that block ends.

    If the engine makes requests in batches, each rank gets one batch at a time.
    """

    def __init__(self, engine: Engine, accelerator: Any) -> None:
        self.engine, self.name = engine, engine.name
        self._ranks: int = accelerator.num_processes
        self._rank: int = accelerator.process_index
        self._failed = False

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Return what all ranks make in a round, for each round; single requests if the engine makes those."""
        batches = self.engine.batches(requests)
        if _are_single(batches):
            return batches
        return [[index for batch in shares for index in batch] for shares in self._rounds(batches)]

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        batches = self.engine.batches(requests)
        if _are_single(batches):
            batches = list(_parts([index for batch in batches for index in batch], -(-len(batches) // _ROUND)))
        for shares in self._rounds(batches):
            yield from self._share("stream", requests, shares)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """Yield scores. Equal prefixes stay together, so that a rank computes a context once for all its user turns."""
        if requests:
            order = sorted(range(len(requests)), key=lambda index: requests[index].prefix_ids)
            yield from self._share("score", requests, list(_parts(order, self._ranks)))

    def serve(self) -> None:
        """Make this rank's shares until rank 0 is done. Raises NextturnError if rank 0 fails."""
        while self._round() is not None:
            pass

    def close(self) -> None:
        """Do nothing: the `with` block ends the other ranks."""

    def __enter__(self) -> SharedEngine:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, *_: Any) -> None:
        """Let the other ranks continue, or end them with the error of rank 0."""
        from accelerate.utils import broadcast_object_list

        if error is not None and not isinstance(error, NextturnError):
            error = NextturnError(f"the probe failed; rank 0: {type(error).__name__}: {one_line(error)}")
        # After a failed round every rank has left. An interrupt may come within a round, where a broadcast would not match.
        if not self._failed and (error is None or isinstance(error, Exception)):
            broadcast_object_list([error])

    def _rounds(self, batches: list[list[int]]) -> Iterator[list[list[int]]]:
        """Yield one share for each rank, round after round: a batch each, and even parts of the rest at the end."""
        whole = len(batches) // self._ranks * self._ranks
        for start in range(0, whole, self._ranks):
            yield batches[start : start + self._ranks]
        if rest := [index for batch in batches[whole:] for index in batch]:
            yield list(_parts(rest, self._ranks))

    def _share(self, method: str, requests: Sequence[Any], shares: list[list[int]]) -> Iterator[Any]:
        """Do a round of `method` on all ranks, each with the requests at its indices."""
        order = [index for share in shares for index in share]
        for position, result in self._round(method, [[requests[index] for index in share] for share in shares]):
            yield order[position], result

    def _round(self, method: str | None = None, shares: list[list[Any]] | None = None) -> Any:
        """Do one round on this rank.

        Args:
            method: The engine's method, on rank 0. The other ranks receive it.
            shares: The requests of each rank, on rank 0.

        Returns:
            Pairs (position in all shares, completion or score), or None if rank 0 is done.
        """
        from accelerate.utils import broadcast_object_list, gather_object

        work = broadcast_object_list([(method, shares) if method else None])[0]
        if work is None:
            return None
        if isinstance(work, NextturnError):
            raise work
        method, shares = work
        first = sum(len(share) for share in shares[: self._rank])
        try:
            own: Any = [(first + index, result) for index, result in getattr(self.engine, method)(shares[self._rank])]
        except Exception as error:  # noqa: BLE001 - raised on every rank below, so that none waits for this one
            own = [(None, f"rank {self._rank}: {type(error).__name__}: {error}")]
        gathered = gather_object(own)
        if errors := [result for position, result in gathered if position is None]:
            self._failed = True
            raise NextturnError(f"the probe failed; {errors[0]}")
        return gathered


def _are_single(batches: list[list[int]]) -> bool:
    return all(len(batch) == 1 for batch in batches)


def _parts(indices: Sequence[int], number: int) -> Iterator[list[int]]:
    """Yield `number` even parts, in order."""
    for part in range(number):
        yield list(indices[len(indices) * part // number : len(indices) * (part + 1) // number])
