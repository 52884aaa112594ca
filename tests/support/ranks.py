"""The processes of a launch as threads that exchange values at a barrier. If one does not arrive, the others fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Ranks:
    def __init__(self, number: int) -> None:
        self.number, self.barrier = number, threading.Barrier(number, timeout=20)
        self.here = threading.local()
        self.shared: dict[int, Any] = {}

    def exchange(self, own: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""
        self.shared[getattr(self.here, "rank", 0)] = own
        self.barrier.wait()
        everyone = [self.shared[rank] for rank in range(self.number)]
        self.barrier.wait()
        return everyone

    def gather(self, own: list[Any]) -> list[Any]:
        return [value for part in self.exchange(own) for value in part]

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Return the result of each rank's work, or raise the first error."""
        results: dict[int, Any] = {}

        def run_rank(rank: int) -> None:
            self.here.rank = rank
            try:
                results[rank] = work(rank)
            except BaseException as error:  # noqa: BLE001 - raised again below
                self.barrier.abort()
                results[rank] = error

        threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(self.number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors = [result for result in results.values() if isinstance(result, BaseException)]
        if errors:
            raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
        return [results[rank] for rank in range(self.number)]
