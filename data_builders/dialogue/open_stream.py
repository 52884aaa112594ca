"""Requests to model servers for as long as there are any: a conversation's next one is known only after a reply.

`probe.servers.Client` sends a list that is known from the start. Sent as a row of such lists, conversations would wait
for the slowest reply of each; here what is asked joins those under way, so that the servers are busy to the last.
Retries, rate limits and the choice of a server are those of `probe.servers`.

Roles that ask the same servers share a *line*, and with it their slots: whichever of them has something to ask uses
them. What a reply takes is learned for each role by itself, since a verdict is shorter than an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from probe.servers.pacing import Latencies, Server
from probe.servers.replies import Outcome, Reply
from probe.servers.sending import Sending, Usable, _Job
from probe.settings import ServerSection

if TYPE_CHECKING:
    import httpx

# As long a list as there may be: attempts get a time limit once a whole round of replies is known.
_MANY = 10**6
# With hundreds of requests under way, moving all their time limits at each reply takes longer than the reply does.
_LEARN_EVERY = 16


class Line:
    """A thread with an event loop, and `slots`: how many requests may be under way at once, over all its streams."""

    def __init__(self, slots: int) -> None:
        self.total = slots
        self.slots = asyncio.Semaphore(slots)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="dialogue", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Its streams are closed before."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


class OpenStream(Sending):
    """The requests of one role, until it is closed.

    Args:
        failed: takes what ended the stream before its time, such as an EngineError when no server answers.
    """

    def __init__(
        self, line: Line, section: ServerSection, path: str, usable: Usable, failed: Callable[[BaseException], None]
    ) -> None:
        self._asked: list[dict[str, Any] | None] = []
        self._received: list[Callable[[Reply], None] | None] = []
        self._lock = threading.Lock()
        self._line = line
        self._failed = failed
        servers = [Server(url.rstrip("/")) for url in section.urls]
        super().__init__(section, servers, path, self._asked, usable, self._hand_out, lambda sent: None)
        self._workers = line.total
        self._learned = 0
        self._latencies = Latencies(section.timeout_s, _MANY, section.concurrency)
        # What is handed in before the run has begun would be taken for a part of a list known from the start.
        begun = threading.Event()
        self._task = asyncio.run_coroutine_threadsafe(self._begin(begun), line.loop).result()
        begun.wait()

    def send(self, body: dict[str, Any], received: Callable[[Reply], None]) -> None:
        """Hands in one request; `received` is called with its reply, in the line's thread."""
        with self._lock:
            number = len(self._asked)
            self._received.append(received)
            self._asked.append(body)
        self._line.loop.call_soon_threadsafe(self._take_in, number)

    def close(self) -> None:
        """Breaks off what is under way."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._line.loop).result()

    async def _begin(self, begun: threading.Event) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._serve())
        asyncio.get_running_loop().call_soon(begun.set)  # after the task's first step
        return task

    async def _serve(self) -> None:
        try:
            await self.run()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that reads
            self._failed(error)

    async def _stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def _take_in(self, number: int) -> None:
        self._jobs.put_nowait(_Job(number))

    async def _attempt(self, job: _Job, server: Server, connection: httpx.AsyncClient, started: float) -> Outcome:
        async with self._line.slots:
            return await super()._attempt(job, server, connection, time.monotonic())

    def _learn(self, took_s: float) -> None:
        self._learned += 1
        if self._learned % _LEARN_EVERY:
            self._latencies.add(took_s)
        else:
            super()._learn(took_s)

    def _finish(self, job: _Job, reply: Reply) -> None:
        self._put((job.index, reply))

    def _hand_out(self, numbered: tuple[int, Reply]) -> None:
        number, reply = numbered
        received = self._received[number]
        # A long build would otherwise hold all that it ever asked.
        self._asked[number] = self._received[number] = None
        if received is not None:
            received(reply)
