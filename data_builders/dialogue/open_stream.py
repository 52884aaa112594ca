"""Requests to model servers for as long as there are any: a conversation's next one is known only after a reply.

`probe.servers.Client` sends a list that is known from the start. Sent as a row of such lists, conversations would wait
for the slowest reply of each; here what is asked joins those under way, so that the servers are busy to the last.
Retries, rate limits and the choice of a server are those of `probe.servers`.

Roles that ask the same servers share a *line*, and with it their slots: whichever of them has something to ask uses
them. What a reply takes is learned for each role by itself, since a verdict is shorter than an answer.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import Any

from probe.servers.pacing import Server
from probe.servers.replies import Reply
from probe.servers.sending import Sending, Usable
from probe.settings import ServerSection

# As long a list as there may be: attempts get a time limit once a whole round of replies is known.
_MANY = 10**6


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


class OpenStream:
    """The requests of one role, until it is closed.

    Args:
        failed: takes what ended the stream before its time, such as an EngineError when no server answers.
    """

    def __init__(
        self, line: Line, section: ServerSection, path: str, usable: Usable, failed: Callable[[BaseException], None]
    ) -> None:
        self._line = line
        self._failed = failed
        self._waiting: dict[int, Callable[[Reply], None]] = {}
        self._numbers = itertools.count()
        self._sending = Sending(
            section,
            [Server(url.rstrip("/")) for url in section.urls],
            path,
            usable,
            received=lambda number, reply: self._waiting.pop(number)(reply),
            count=lambda sent: None,
            workers=line.total,
            expected=_MANY,
            slots=line.slots,
        )
        self._task: asyncio.Task[Any] | None = None
        asyncio.run_coroutine_threadsafe(self._serve(), line.loop)

    def send(self, body: dict[str, Any], received: Callable[[Reply], None]) -> None:
        """Hands in one request; `received` is called with its reply, in the line's thread."""
        number = next(self._numbers)
        self._waiting[number] = received
        self._line.loop.call_soon_threadsafe(self._sending.add, number, body)

    def close(self) -> None:
        """Breaks off what is under way, and waits until it is."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._line.loop).result()

    async def _serve(self) -> None:
        self._task = asyncio.current_task()
        try:
            await self._sending.serve()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that reads
            self._failed(error)

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
