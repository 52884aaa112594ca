"""Asks OpenAI-compatible servers many things at once, and loses none of them.

One thread runs an asyncio loop for as long as a stream of replies is read. A rate limit (429) is waited out; a
server's failure (5xx, a time limit, a broken connection, a reply that is no JSON) is tried again; any other refusal
is final. How that goes is in probe/servers/sending.py, when and where in probe/servers/pacing.py, what a reply means in
probe/servers/replies.py.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any
from urllib.parse import urlsplit

from probe.errors import BadInput, EngineError
from probe.servers.pacing import Server
from probe.servers.replies import Reply
from probe.servers.sending import Sending, Usable
from probe.settings import ServerSection

__all__ = ["Client", "Reply"]


class Client:
    """Sends JSON to one or several servers that offer the same model.

    Attributes:
        calls: requests sent so far, retries included; asking for the model's name does not count.

    Raises:
        BadInput: a url, a number, or the key's environment variable cannot be used.
    """

    def __init__(self, section: ServerSection) -> None:
        _check(section)
        self.section = section
        self.calls = 0
        self._servers = [Server(url.rstrip("/")) for url in section.urls]
        self._model = section.model

    @property
    def model(self) -> str:
        """The section's model, or the one that the server lists.

        Raises:
            EngineError: the server lists none or several, or cannot be asked.
        """
        if self._model is None:
            self._model = self._listed()
        return self._model

    def stream(
        self, path: str, bodies: Sequence[dict[str, Any]], usable: Usable = lambda body: None
    ) -> Generator[tuple[int, Reply], None, None]:
        """POSTs each body to URL + `path`; yields (index, reply) for each once, as they come.

        `usable` says why a 200 reply cannot be used, or None; such a reply is asked for again. It runs in the
        loop's thread. The bound on concurrency is each stream's own, so read one at a time. Closing the generator
        breaks off what is under way.

        Raises:
            EngineError: no server can be reached, for seconds from the start or for about a minute later on.
        """
        return self._stream(path, bodies, usable)

    def _stream(
        self, path: str, bodies: Sequence[dict[str, Any] | None], usable: Usable
    ) -> Generator[tuple[int, Reply], None, None]:
        if not bodies:
            return
        results: queue.SimpleQueue[tuple[int, Reply] | BaseException | None] = queue.SimpleQueue()
        sending = Sending(
            self.section,
            self._servers,
            path,
            usable,
            received=lambda index, reply: results.put((index, reply)),
            count=self._count,
            workers=min(self.section.concurrency, len(bodies)),
            expected=len(bodies),
        )
        loop = asyncio.new_event_loop()
        task = loop.create_task(sending.send_all(bodies))
        thread = threading.Thread(target=_run, args=(loop, task, results.put), name="servers", daemon=True)
        thread.start()
        try:
            while (result := results.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                yield result
        finally:
            loop.call_soon_threadsafe(task.cancel)
            thread.join()
            loop.close()

    def _count(self, sent: int) -> None:
        self.calls += sent

    def _listed(self) -> str:
        ((_, reply),) = self._stream("/models", [None], lambda body: None)
        where = ", ".join(server.url for server in self._servers)
        if reply.body is None:
            raise EngineError(f"{where}: /models gave {reply.failure} ({reply.detail}); set the server's `model`")
        rows = reply.body.get("data")
        names = (
            [str(row["id"]) for row in rows if isinstance(row, dict) and "id" in row] if isinstance(rows, list) else []
        )
        if len(names) != 1:
            listed = f"lists {', '.join(names)}" if names else "lists no model"
            raise EngineError(f"{where} {listed}; set the server's `model` in the recipe to the one that is meant")
        return names[0]


def _run(
    loop: asyncio.AbstractEventLoop, task: asyncio.Task[None], put: Callable[[BaseException | None], None]
) -> None:
    """The thread: runs the task to its end, then says how it ended."""
    error: BaseException | None = None
    try:
        loop.run_until_complete(task)
    except asyncio.CancelledError:
        pass  # nobody reads any more
    except BaseException as raised:  # noqa: BLE001 - raised again in the thread that reads
        error = raised
    loop.run_until_complete(loop.shutdown_asyncgens())
    put(error)


def _check(section: ServerSection) -> None:
    if not section.urls:
        raise BadInput("server: `urls` is empty; give at least one address, such as http://localhost:8000/v1")
    for url in section.urls:
        try:
            parts = urlsplit(url)
            whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            whole = False
        if whole and "@" in parts.netloc:
            raise BadInput("server: a url holds a user name or password; a key comes from the environment only")
        if not whole or parts.query or parts.fragment:
            raise BadInput(f"server: {url!r} is no address such as http://localhost:8000/v1")
    for name in ("concurrency", "timeout_s", "attempts"):
        if getattr(section, name) <= 0:
            raise BadInput(f"server: `{name}` is {getattr(section, name)}, wanted more than 0")
