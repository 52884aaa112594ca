"""Asks OpenAI-compatible servers many things at once, and loses none of them.

One thread runs an asyncio loop for as long as a stream of replies is read. A rate limit (429) is waited out; a
server's failure (5xx, a time limit, a broken connection, a reply that is no JSON) is tried again; any other refusal
is final. How that goes is in probe/servers/sending.py, when and where in probe/servers/pacing.py, what a reply means in
probe/servers/replies.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import queue
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from probe.errors import BadInput, EngineError
from probe.settings import ServerSection

if TYPE_CHECKING:
    import ssl

    import httpx


# --- When a request to a model server is sent, where to, and how long it may take: the rules, without any network.
#
# A request that failed waits by itself, so the others go on. A server rests only when it fails many requests in a
# row or cannot be reached; after a rest one request tests it before the others follow, so that an outage costs few
# tries and a rate limit is not met by everything that waits.

_RETRY_S, _REST_S, _LIMIT_S, _MOST_S = 0.25, 0.5, 0.1, 30.0
_LONGEST_S = 1e9
# One in a million where a tenth of all replies are failures: chance alone sends no server to rest.
_FAILURES_IN_A_ROW = 8
_RESTS_FROM_START, _RESTS = 3, 8

# An attempt is given up at this many times the 95th percentile of what replies took.
_LIMIT_FACTOR, _LIMIT_LEAST_S, _ENOUGH_REPLIES = 3.0, 0.5, 20
_LIMIT_MOVES = 0.1


def backoff_s(times: int, first_s: float = _RETRY_S) -> float:
    """Seconds to wait after `times` failures in a row: doubling up to 30, less up to a half by chance."""
    return min(_MOST_S, first_s * 2 ** min(times - 1, 16)) * random.uniform(0.5, 1.0)


def limit_wait_s(headers: Mapping[str, str], times: int) -> float:
    """Seconds to wait after the `times`-th 429: what Retry-After asks, and a little more so that not all return at once.

    Without the header the wait doubles each time; with one that asks for next to nothing it does so too, from less.
    """
    asked = retry_after_s(headers)
    if asked is None:
        return backoff_s(times, _REST_S)
    return max(asked * random.uniform(1.0, 1.1), backoff_s(times, _LIMIT_S))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """What a Retry-After header asks for in seconds: a number, or a date (RFC 9110, 10.2.3); None without one."""
    value = headers.get("retry-after", "").strip()
    if value.replace(".", "", 1).isdecimal() and value.isascii():
        return min(float(value), _LONGEST_S)
    if (until := _date(value)) is None:
        return None
    # Counted from the server's own clock, where it tells the time.
    return max(0.0, (until - (_date(headers.get("date", "")) or datetime.now(UTC))).total_seconds())


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


class Latencies:
    """What the replies of one kind of request took, and the time limit for an attempt that follows from it.

    A call that hangs would otherwise hold its slot for the whole `timeout_s`; a few of those and they are all that
    a run waits for. The limit doubles for a request that runs into it repeatedly, and the last try gets
    `timeout_s` in full, so a reply that is really slow still comes.
    """

    def __init__(self, timeout_s: float, requests: int, concurrency: int) -> None:
        self.timeout_s = timeout_s
        # The first replies are the fastest ones of those sent together, so a whole round is wanted where there is one.
        self._enough = max(_ENOUGH_REPLIES, min(concurrency, requests // 2))
        self._seen: deque[float] = deque(maxlen=200)
        self._limit_s = timeout_s

    def add(self, seconds: float) -> bool:
        """Takes in what a reply took. True where the time limit has moved by it, which small changes do not do: to
        move those of hundreds of requests under way takes longer than a reply does."""
        self._seen.append(seconds)
        if len(self._seen) < self._enough:
            return False
        limit_s = max(_LIMIT_LEAST_S, _LIMIT_FACTOR * sorted(self._seen)[int(0.95 * len(self._seen))])
        if abs(limit_s - self._limit_s) < _LIMIT_MOVES * self._limit_s:
            return False
        self._limit_s = limit_s
        return True

    def limit_s(self, timeouts: int, last: bool) -> float:
        """Seconds for an attempt at a request that ran into its limit `timeouts` times."""
        return self.timeout_s if last else min(self.timeout_s, self._limit_s * 2 ** max(0, timeouts - 1))


class Server:
    """How one server is doing; times are those of time.monotonic(), `failures` those in a row."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.under_way = 0
        self.rests_until = 0.0
        self.failures = 0
        self._rests = 0
        self._testing = False
        self._silent = False
        self._has_served = False
        self._limited_since: float | None = None

    @property
    def gone(self) -> bool:
        """It has not answered at all for as long as is worth waiting: seconds from the start, a minute later on."""
        return self._silent and self._rests >= self._patience

    @property
    def _patience(self) -> int:
        return _RESTS if self._has_served else _RESTS_FROM_START

    def free(self, now: float) -> bool:
        return now >= self.rests_until and not (self._testing and self.under_way)

    def served(self) -> None:
        """It answered, and not with a failure of its own."""
        self._has_served = True
        self.failures = self._rests = 0
        self._testing = self._silent = False
        self._limited_since = None

    def failed(self, started: float, silent: bool, unreachable: bool = False) -> None:
        """A request sent at `started` met a server error or, where `silent`, no answer at all."""
        self._silent = silent
        self.failures += 1
        now = time.monotonic()
        if started < self.rests_until:
            return  # it was under way before the rest, and says nothing about the server after it
        if unreachable or self._testing or self.failures >= _FAILURES_IN_A_ROW:
            self._rests += 1
            # A server that answers, with errors only, is left to each request's own tries in the end.
            self._testing = silent or self._rests < self._patience
            if self._testing:
                self.rests_until = now + backoff_s(self._rests, _REST_S)

    def limited(self, started: float, wait_s: float, most_s: float) -> None:
        """A request sent at `started` met a rate limit; nothing rests when that would take more than `most_s` in all."""
        self._silent = False
        self.failures += 1
        now = time.monotonic()
        self._limited_since = now if self._limited_since is None else self._limited_since
        if started < self.rests_until or not (self._testing or self.failures >= _FAILURES_IN_A_ROW):
            return
        self._testing = now + wait_s - self._limited_since <= most_s
        if self._testing:
            self.rests_until = now + wait_s


def choose(servers: Sequence[Server], now: float, avoid: Server | None) -> Server | None:
    """The free server with the fewest requests under way, `avoid` only if it is the only one; None if none is free."""
    free = [server for server in servers if server.free(now)]
    return min(free, key=lambda server: (server is avoid, server.under_way), default=None)


# --- What a model server's answer means, and the connection that it comes over.
#
# A key goes to the servers of the recipe only: redirects are not followed, and it is taken out of whatever a server
# says before anybody sees it.

MOST_BYTES = 10_000_000
_CONNECT_S = 5.0
_DETAIL_CHARACTERS = 300


@dataclass(frozen=True)
class Reply:
    """What became of one request.

    Attributes:
        body: the JSON object of a 200 reply; also of the last one, where `usable` turned it down.
        failure: None, or rate_limited, server_error, timeout, connection, refused, bad_reply, or a reason from `usable`.
        detail: what the server said or what happened, on one line of at most 300 characters.
    """

    body: dict[str, Any] | None
    failure: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class Outcome:
    """One attempt: its reply, how long a 429 asks to wait, whether the server was reached and said anything."""

    reply: Reply
    wait_s: float = 0.0
    reached: bool = True
    silent: bool = False


@dataclass(frozen=True, repr=False)
class Access:
    """The key for the servers, None where its environment variable is not set. Not even its repr shows it."""

    key: str | None

    @classmethod
    def from_environment(cls, variable: str) -> Access:
        key = os.environ.get(variable, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise BadInput(f"the key in ${variable} holds characters that no HTTP header can carry")
        return cls(key or None)

    def failure(self, failure: str, detail: str) -> Reply:
        """A failed reply whose detail does not hold the key."""
        line = " ".join((detail.replace(self.key, "[key]") if self.key else detail).split())
        return Reply(None, failure, line if len(line) <= _DETAIL_CHARACTERS else line[: _DETAIL_CHARACTERS - 3] + "...")

    def connection(self, url: str, context: ssl.SSLContext, timeout_s: float) -> httpx.AsyncClient:
        """An HTTP client for requests to one server, one after the other; by a proxy only to other machines."""
        import httpx

        return httpx.AsyncClient(
            headers={
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {self.key}"} if self.key else {}),
            },
            timeout=httpx.Timeout(None, connect=min(_CONNECT_S, timeout_s)),
            follow_redirects=False,
            trust_env=not is_loopback(url),
            verify=context,
        )

    def read(self, response: httpx.Response, content: bytes | None, limits: int) -> Outcome:
        """What a response means; `content` is None where it was too long, `limits` counts the 429s met before."""
        status = response.status_code
        said = f"{status}: {_message(content or b'')}"
        if status == 429 and "insufficient_quota" not in said:  # no wait brings back a quota that is used up
            return Outcome(self.failure("rate_limited", said), limit_wait_s(response.headers, limits + 1))
        if status >= 500 or status == 408:
            return Outcome(self.failure("server_error", said))
        if 300 <= status < 400:
            said = f"{status}: sent on to {response.headers.get('location', 'nowhere')}, which is not followed"
        if status != 200:
            return Outcome(self.failure("refused", said))
        if content is None:
            return Outcome(self.failure("bad_reply", f"longer than {MOST_BYTES} bytes"))
        try:
            body = json.loads(content)
        except (ValueError, RecursionError) as error:
            return Outcome(self.failure("bad_reply", f"not JSON: {error}"))
        if not isinstance(body, dict):
            return Outcome(self.failure("bad_reply", f"wanted a JSON object, got {type(body).__name__}"))
        return Outcome(Reply(body))

    def lost(self, url: str, error: httpx.RequestError) -> Outcome:
        """An attempt that ended without a response."""
        import httpx

        reached = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError)
        failure = "bad_reply" if isinstance(error, httpx.DecodingError) else "connection"
        reply = self.failure(failure, f"{url}: {error or type(error).__name__}")
        return Outcome(reply, reached=reached, silent=failure == "connection")


def is_loopback(url: str) -> bool:
    """Whether a url's host is this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _message(content: bytes) -> str:
    """What a server's error says, whichever of the usual forms it has."""
    text = content[:20_000].decode("utf-8", "replace")
    try:
        said: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for name in ("error", "detail"):
        if isinstance(said, dict) and said.get(name):
            said = said[name]
    if isinstance(said, dict) and said.get("message"):
        said = " ".join(str(said[name]) for name in ("message", "code") if said.get(name))
    return said if isinstance(said, str) else json.dumps(said)


# --- The requests of one stream on their way: a fixed number of workers, a queue, and a wait for what failed.
#
# A stream may be a list that is known from the start, or be added to for as long as it is served.
#
# Each worker has a connection of its own: one shared pool looks through all its connections for every request, which
# costs more than the request.

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


# --- Reads what /chat/completions answers, for everyone who asks a chat model: judges, simulators, assistants.

BAD_REPLY, EMPTY_REPLY = "bad_reply", "empty_reply"
# Not merely a limit that is too large for the model, which names the same parameters.
_UNSUPPORTED = re.compile(
    r"^(?=.*(?:max_tokens|temperature|top_p|penalty)).*(?:unsupported|not support)", re.IGNORECASE | re.DOTALL
)


def content(body: dict[str, Any]) -> str | None:
    """The text of the first choice, "" where a model only thought; None where there is no message."""
    try:
        text = body["choices"][0]["message"].get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    return text if isinstance(text, str) else "" if text is None else None


def cut_off(body: dict[str, Any]) -> bool:
    """Whether the reply reached its limit of tokens."""
    return bool(body["choices"][0].get("finish_reason") == "length")


def unusable(body: dict[str, Any]) -> str | None:
    """Why a reply with status 200 holds nothing to read; None also where asking again would end the same way."""
    text = content(body)
    if text is None:
        return BAD_REPLY
    return None if text.strip() or cut_off(body) else EMPTY_REPLY


def wants_other_names(reply: Reply) -> bool:
    """Whether a server refused the usual names: OpenAI's reasoning models count thinking and reply together, as
    `max_completion_tokens`, and take no temperature."""
    return reply.failure == "refused" and _UNSUPPORTED.search(reply.detail) is not None
