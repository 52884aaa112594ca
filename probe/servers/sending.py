"""The requests of one stream on their way: a fixed number of workers, a queue, and a wait for what failed.

A stream may be a list that is known from the start, or be added to for as long as it is served.

Each worker has a connection of its own: one shared pool looks through all its connections for every request, which
costs more than the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from probe.errors import EngineError
from probe.servers.pacing import Latencies, Server, backoff_s, choose
from probe.servers.replies import MOST_BYTES, Access, Outcome, Reply
from probe.settings import ServerSection

if TYPE_CHECKING:
    import httpx

_LOOK_AGAIN_S = 0.1

Usable = Callable[[dict[str, Any]], str | None]


@dataclass(order=True)
class _Job:
    """One request on its way. Earlier ones go first, so that one that failed is not left for the end."""

    index: int
    body: dict[str, Any] | None = field(compare=False)
    tries: int = field(default=0, compare=False)
    timeouts: int = field(default=0, compare=False)
    limits: int = field(default=0, compare=False)
    waited_s: float = field(default=0.0, compare=False)
    last: Server | None = field(default=None, compare=False)


class Sending:
    """Sends each body that is added (None for a GET) and hands out its reply once; all of it in the thread of its loop.

    Args:
        usable: why a reply with status 200 cannot be used, or None.
        received: takes (index, reply) of each, as they come.
        count: called with 1 for each request that is sent, with -1 for one that turns out not to have been.
        workers: the most requests under way at once.
        expected: about how many there will be.
        slots: held while a request is under way, for a bound that several streams share.
    """

    def __init__(
        self,
        section: ServerSection,
        servers: Sequence[Server],
        path: str,
        usable: Usable,
        received: Callable[[int, Reply], None],
        count: Callable[[int], None],
        workers: int,
        expected: int,
        slots: AbstractAsyncContextManager[Any] | None = None,
    ) -> None:
        self._section = section
        self._servers = servers
        self._path = path
        self._usable = usable
        self._received = received
        self._count = count
        self._workers = workers
        self._slots = slots or contextlib.nullcontext()
        self._access = Access.from_environment(section.api_key_env)
        self._latencies = Latencies(section.timeout_s, expected, workers)
        self._running: dict[asyncio.Timeout, tuple[float, _Job]] = {}
        self._jobs: asyncio.PriorityQueue[_Job] = asyncio.PriorityQueue()

    def add(self, index: int, body: dict[str, Any] | None) -> None:
        """Queues one request; those with a smaller index go first."""
        self._jobs.put_nowait(_Job(index, body))

    async def send_all(self, bodies: Sequence[dict[str, Any] | None]) -> None:
        """Ends when every body has its reply. Raises EngineError when no server can be reached."""
        left = len(bodies)
        whole = asyncio.Event()
        receive = self._received

        def received(index: int, reply: Reply) -> None:
            nonlocal left
            receive(index, reply)
            left -= 1
            if not left:
                whole.set()

        self._received = received
        for index, body in enumerate(bodies):
            self.add(index, body)
        serving = asyncio.create_task(self.serve())
        done = asyncio.create_task(whole.wait())
        try:
            await asyncio.wait((serving, done), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            for task in (serving, done):
                task.cancel()
            await asyncio.gather(serving, done, return_exceptions=True)

    async def serve(self) -> None:
        """Sends what is added until it is cancelled. Raises EngineError when no server can be reached."""
        import httpx

        self._context = httpx.create_ssl_context()
        workers = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            connections: dict[Server, httpx.AsyncClient] = {}
            while True:
                job = await self._jobs.get()
                server = await self._free_server(job)
                if server not in connections:
                    connection = self._access.connection(server.url, self._context, self._section.timeout_s)
                    connections[server] = await stack.enter_async_context(connection)
                server.under_way += 1
                try:
                    async with self._slots:
                        started = time.monotonic()
                        outcome = await self._attempt(job, server, connections[server], started)
                finally:
                    server.under_way -= 1
                self._settle(job, server, started, outcome)

    async def _free_server(self, job: _Job) -> Server:
        while (server := choose(self._servers, now := time.monotonic(), job.last)) is None:
            soonest = min(server.rests_until for server in self._servers)
            await asyncio.sleep(max(_LOOK_AGAIN_S, soonest - now))
        return server

    async def _attempt(self, job: _Job, server: Server, connection: httpx.AsyncClient, started: float) -> Outcome:
        import httpx

        sent = int(job.body is not None)
        self._count(sent)
        try:
            async with asyncio.timeout(self._limit_s(job)) as scope:
                self._running[scope] = (started, job)
                try:
                    response, content = await _send(connection, server.url + self._path, job.body)
                finally:
                    del self._running[scope]
        except TimeoutError:
            detail = f"{server.url}: no reply in {time.monotonic() - started:.1f} s"
            return Outcome(self._access.failure("timeout", detail), silent=True)
        except httpx.RequestError as error:
            outcome = self._access.lost(server.url, error)
            if not outcome.reached:
                self._count(-sent)
            return outcome
        outcome = self._access.read(response, content, job.limits)
        if outcome.reply.body is not None:
            self._learn(time.monotonic() - started)
            if reason := self._usable(outcome.reply.body):
                return Outcome(Reply(outcome.reply.body, reason, "the reply came, but cannot be used"))
        return outcome

    def _settle(self, job: _Job, server: Server, started: float, outcome: Outcome) -> None:
        """Ends the job, or lets it wait for its next attempt without a worker."""
        reply, section = outcome.reply, self._section
        job.last = server if reply.failure else None
        if reply.failure == "rate_limited":
            server.limited(started, outcome.wait_s, section.max_wait_s)
            job.limits += 1
            job.waited_s += outcome.wait_s
            if job.waited_s > section.max_wait_s:
                return self._received(job.index, reply)
            return self._again(job, outcome.wait_s)
        if reply.failure == "server_error" or outcome.silent:
            server.failed(started, outcome.silent, unreachable=not outcome.reached)
        else:
            server.served()
        if all(server.gone for server in self._servers):
            raise EngineError(self._nobody(reply))
        if not outcome.reached:
            return self._again(job, 0.0)  # nothing was sent, so it was no try; the server rests
        job.tries += 1
        job.timeouts += reply.failure == "timeout"
        final = reply.failure is None or reply.failure == "refused" or job.tries >= section.attempts
        if final:
            return self._received(job.index, reply)
        # Only a server in trouble gains from a pause: a time limit was one, and a reply of no use is still a reply.
        pause = reply.failure in ("server_error", "connection", "bad_reply")
        return self._again(job, backoff_s(min(job.tries, max(1, server.failures))) if pause else 0.0)

    def _limit_s(self, job: _Job) -> float:
        return self._latencies.limit_s(job.timeouts, last=job.tries + 1 >= self._section.attempts)

    def _learn(self, took_s: float) -> None:
        """Takes in what a reply took, and gives those under way the time limit that follows from it."""
        if not self._latencies.add(took_s):
            return
        for scope, (started, job) in self._running.items():
            if not scope.expired():
                scope.reschedule(started + self._limit_s(job))

    def _again(self, job: _Job, wait_s: float) -> None:
        asyncio.get_running_loop().call_later(wait_s, self._jobs.put_nowait, job)

    def _nobody(self, reply: Reply) -> str:
        urls = ", ".join(server.url for server in self._servers)
        return (
            f"no server answers ({urls}; last: {reply.detail}); check that it runs, its address with port and /v1, "
            "and the recipe's timeout_s; what came is stored, and the same command asks only for the rest"
        )


async def _send(
    connection: httpx.AsyncClient, url: str, body: dict[str, Any] | None
) -> tuple[httpx.Response, bytes | None]:
    """The response and its content; None for content that is too long."""
    method, data = ("GET", None) if body is None else ("POST", json.dumps(body).encode())
    content = bytearray()
    async with connection.stream(method, url, content=data) as response:
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > MOST_BYTES:
                return response, None
    return response, bytes(content)
