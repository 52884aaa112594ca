"""Asks OpenAI-compatible servers many things at once, and loses none of them.

`Client.stream` reads replies as they come, while one thread runs an asyncio loop; `Session.request` is the way of one
request to its reply, for whoever has a loop already. A rate limit (429) is waited out and is no try; a server's failure
(5xx, a time limit, a broken connection, a reply that is no JSON) is tried again; any other refusal is final.

Why not openai.AsyncOpenAI: what it retries holds on to its place among the requests under way and goes to the same
server again, each try has the same fixed time limit, and it follows redirects.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import heapq
import ipaddress
import itertools
import json
import os
import queue
import random
import re
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nextturn.probe.errors import BadInput, EngineError
from nextturn.probe.settings import ServerSection

if TYPE_CHECKING:
    import ssl

    import httpx2

Usable = Callable[[dict[str, Any]], str | None]
"""Why the body of a 200 reply cannot be used, or None."""

MOST_BYTES = 10_000_000
_CONNECT_S = 5.0
_DETAIL_CHARACTERS = 300
# A shorter key is a placeholder such as "EMPTY": replacing it would change what a model really said.
_SHORTEST_KEY = 8
_LOOK_AGAIN_S = 0.1


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
            ((_, reply),) = self.stream("/models", [None])
            where = ", ".join(server.url for server in self._servers)
            if reply.body is None:
                raise EngineError(f"{where}: /models gave {reply.failure} ({reply.detail}); set the server's `model`")
            rows = reply.body.get("data")
            rows = rows if isinstance(rows, list) else []
            names = [str(row["id"]) for row in rows if isinstance(row, dict) and "id" in row]
            if len(names) != 1:
                listed = f"lists {', '.join(names)}" if names else "lists no model"
                raise EngineError(f"{where} {listed}; set the server's `model` in the recipe to the one that is meant")
            self._model = names[0]
        return self._model

    def stream(
        self, path: str, bodies: Sequence[dict[str, Any] | None], usable: Usable = lambda body: None
    ) -> Generator[tuple[int, Reply], None, None]:
        """POSTs each body (None for a GET) to URL + `path`; yields (index, reply) for each once, as they come.

        A 200 reply that `usable` turns down is asked for again; it runs in the loop's thread. The bound on concurrency
        is each stream's own, so read one at a time. Closing the generator breaks off what is under way.

        Raises:
            EngineError: no server can be reached, for seconds from the start or for about a minute later on.
        """
        if not bodies:
            return
        results: queue.SimpleQueue[tuple[int, Reply] | None] = queue.SimpleQueue()
        slots = Slots(self.section.concurrency)
        session = Session(self.section, self._servers, slots, path, usable, len(bodies), self._count)

        async def one(index: int, body: dict[str, Any] | None) -> None:
            results.put((index, await session.request(lambda: body)))

        async def serve() -> None:
            try:
                await asyncio.gather(*(one(index, body) for index, body in enumerate(bodies)))
            finally:
                try:
                    await session.close()
                finally:  # whatever closing a connection raises, the reader is not left waiting
                    results.put(None)

        loop = asyncio.new_event_loop()
        serving = loop.create_task(serve())
        wait = asyncio.wait([serving])  # which does not raise what `serve` does
        thread = threading.Thread(target=loop.run_until_complete, args=[wait], name="servers", daemon=True)
        thread.start()
        try:
            while (result := results.get()) is not None:
                yield result
        finally:
            loop.call_soon_threadsafe(serving.cancel)
            thread.join()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
        serving.result()  # raises what ended it

    def _count(self, sent: int) -> None:
        self.calls += sent


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


class Session:
    """Requests of one kind, all of them in one event loop, to which connections and slots belong: each stream makes its
    own. `close` breaks off what is under way.

    Args:
        servers: those of the section; sessions of one loop may share them, and `slots` too.
        usable: why a reply with status 200 cannot be used, or None.
        expected: about how many requests there will be.
        count: called with 1 for each request that is sent, with -1 for one that turns out not to have been.

    Raises:
        BadInput: the key holds characters that no HTTP header can carry.
    """

    def __init__(
        self,
        section: ServerSection,
        servers: Sequence[Server],
        slots: Slots,
        path: str,
        usable: Usable,
        expected: int,
        count: Callable[[int], None] = lambda sent: None,
    ) -> None:
        self._section = section
        self._servers = servers
        self._slots = slots
        self._path = path
        self._usable = usable
        self._count = count
        # The key goes to the servers of the recipe only, and `_clean` removes it from all that they say.
        self._key = os.environ.get(section.api_key_env, "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise BadInput(f"the key in ${section.api_key_env} holds characters that no HTTP header can carry")
        self._limits = TimeLimits(section.timeout_s, expected, slots.most)
        self._tasks: set[asyncio.Task[Any]] = set()
        # One connection for each request under way: a shared pool of httpx2 looks through all of its connections for
        # every request, which costs more than the request.
        self._idle: defaultdict[Server, list[httpx2.AsyncClient]] = defaultdict(list)

    async def request(self, make_body: Callable[[], dict[str, Any] | None]) -> Reply:
        """POSTs a body (None for a GET) as often as it takes; it is made anew for each try, once there is a slot for it.

        Raises:
            EngineError: no server can be reached, for seconds from the start or for about a minute later on.
        """
        import httpx2

        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        section = self._section
        number = self._slots.next_number()
        tries = timeouts = rate_limits = 0
        waited_s = 0.0
        failed_at: Server | None = None
        while True:
            # Send it, with a slot that whatever waits below does not hold.
            reached, headers = True, httpx2.Headers()
            async with self._slots.one(number):
                while (server := choose(self._servers, now := time.monotonic(), avoid=failed_at)) is None:
                    await asyncio.sleep(max(_LOOK_AGAIN_S, min(each.rests_until for each in self._servers) - now))
                body = make_body()
                sent = int(body is not None)
                connection = self._idle[server].pop() if self._idle[server] else self._connect(server)
                server.under_way += 1
                self._count(sent)
                started = time.monotonic()
                try:
                    async with self._limits.attempt(timeouts, last=tries + 1 >= section.attempts):
                        response, content = await _send(connection, server.url + self._path, body)
                    headers = response.headers
                    reply = self._read(response, content)
                except TimeoutError:
                    reply = self._failed("timeout", f"{server.url}: no reply in {time.monotonic() - started:.1f} s")
                except httpx2.RequestError as error:
                    failure = "bad_reply" if isinstance(error, httpx2.DecodingError) else "connection"
                    reply = self._failed(failure, f"{server.url}: {error or type(error).__name__}")
                    reached = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError)
                    self._count(0 if reached else -sent)
                finally:
                    server.under_way -= 1
                    self._idle[server].append(connection)

            # What the reply says about this kind of request, and whether its body can be used.
            if reply.body is not None:
                self._limits.add(time.monotonic() - started)
                if reason := self._usable(reply.body):
                    reply = Reply(reply.body, reason, "the reply came, but cannot be used")
            failed_at = server if reply.failure else None

            # A rate limit: wait as long as the server asks, which is no try.
            if reply.failure == "rate_limited":
                rate_limits += 1
                wait_s = limit_wait_s(headers, rate_limits)
                server.limited(started, wait_s, section.max_wait_s)
                waited_s += wait_s
                if waited_s > section.max_wait_s:
                    return reply
                await asyncio.sleep(wait_s)
                continue

            # What it says about the server.
            silent = reply.failure in ("timeout", "connection")
            if silent or reply.failure == "server_error":
                server.failed(started, silent, unreachable=not reached)
            else:
                server.served()
            if all(server.gone for server in self._servers):
                urls = ", ".join(server.url for server in self._servers)
                raise EngineError(
                    f"no server answers ({urls}; last: {reply.detail}); check that it runs, its address with port and "
                    "/v1, and the recipe's timeout_s; what came is stored, and the same command asks only for the rest"
                )

            # Done, or another try. Only a server in trouble gains from a pause: a time limit was one, a reply of no use
            # is still a reply, and where nothing was sent it was no try and the server rests.
            if not reached:
                continue
            tries += 1
            timeouts += reply.failure == "timeout"
            if reply.failure is None or reply.failure == "refused" or tries >= section.attempts:
                return reply
            pause = reply.failure in ("server_error", "connection", "bad_reply")
            await asyncio.sleep(backoff_s(min(tries, max(1, server.failures)), _RETRY_S) if pause else 0.0)

    async def close(self) -> None:
        """Gives the connections back, after the requests under way have ended with CancelledError."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # What closing a broken connection raises says nothing about the replies, which have all been handed over.
        connections = itertools.chain(*self._idle.values())
        await asyncio.gather(*(connection.aclose() for connection in connections), return_exceptions=True)

    def _connect(self, server: Server) -> httpx2.AsyncClient:
        """For requests to one server, one after the other; by a proxy only to other machines."""
        import httpx2

        return httpx2.AsyncClient(
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
            timeout=httpx2.Timeout(None, connect=min(_CONNECT_S, self._section.timeout_s)),
            follow_redirects=False,
            trust_env=not is_loopback(server.url),
            verify=_ssl_context(),
        )

    def _read(self, response: httpx2.Response, content: bytes | None) -> Reply:
        """What a response means; `content` is None where it was too long."""
        status = response.status_code
        if status == 200:
            if content is None:
                return self._failed("bad_reply", f"longer than {MOST_BYTES} bytes")
            try:
                body = self._clean(json.loads(content))
            except (ValueError, RecursionError) as error:
                return self._failed("bad_reply", f"not JSON: {error}")
            if not isinstance(body, dict):
                return self._failed("bad_reply", f"wanted a JSON object, got {type(body).__name__}")
            return Reply(body)
        said = f"{status}: {_message(content or b'')}"
        if 300 <= status < 400:
            said = f"{status}: sent on to {response.headers.get('location', 'nowhere')}, which is not followed"
        if status == 429 and "insufficient_quota" not in said:  # no wait brings back a quota that is used up
            return self._failed("rate_limited", said)
        return self._failed("server_error" if status >= 500 or status == 408 else "refused", said)

    def _failed(self, failure: str, detail: str) -> Reply:
        """Return a failed reply whose detail is one line that is not too long."""
        line = " ".join(self._clean(detail).split())
        return Reply(None, failure, line if len(line) <= _DETAIL_CHARACTERS else line[: _DETAIL_CHARACTERS - 3] + "...")

    def _clean(self, value: Any) -> Any:
        """Return what a server said without the API key and without halves of surrogate pairs, which no file can hold."""
        if isinstance(value, str):
            hidden = value.replace(self._key, "[key]") if len(self._key) >= _SHORTEST_KEY else value
            return hidden.encode(errors="replace").decode()
        if isinstance(value, list):
            return [self._clean(part) for part in value]
        return {name: self._clean(part) for name, part in value.items()} if isinstance(value, dict) else value


async def _send(
    connection: httpx2.AsyncClient, url: str, body: dict[str, Any] | None
) -> tuple[httpx2.Response, bytes | None]:
    """The response and its content; None for content that is too long."""
    method, data = ("GET", None) if body is None else ("POST", json.dumps(body).encode())
    content = bytearray()
    async with connection.stream(method, url, content=data) as response:
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > MOST_BYTES:
                return response, None
    return response, bytes(content)


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


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


# --- When a request is sent, where to, and how long it may take.
#
# A request that failed waits by itself, so the others go on. A server rests only when it fails many requests in a
# row or cannot be reached; after a rest one request tests it before the others follow, so that an outage costs few
# tries and a rate limit is not met by everything that waits.

# First waits, which double: after a failed try, between a server's rests or rate limits, and after a rate limit that
# asked for next to nothing.
_RETRY_S, _REST_S, _LIMIT_S = 0.25, 0.5, 0.1
_MOST_S, _LONGEST_S = 30.0, 1e9
# One in a million where a tenth of all replies are failures: chance alone sends no server to rest.
_FAILURES_IN_A_ROW = 8
_RESTS_FROM_START, _RESTS = 3, 8
# An attempt is given up at this many times the 95th percentile of what replies took.
_LIMIT_FACTOR, _LIMIT_LEAST_S, _ENOUGH_REPLIES, _LIMIT_MOVES = 3.0, 0.5, 20, 0.1


class Slots:
    """Bounds the requests under way to `most`; a slot that comes free goes to the earliest request that waits for one,
    so that one that failed is not left for the end."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._free = most
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def next_number(self) -> int:
        """The place of a new request among those that wait: smaller numbers go first."""
        return next(self._numbers)

    @contextlib.asynccontextmanager
    async def one(self, number: int) -> AsyncIterator[None]:
        """A slot, as soon as one is free."""
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (number, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give_back()  # it came at the same moment
                raise
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        while self._waiting:
            _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class TimeLimits:
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
        self._under_way: dict[asyncio.Timeout, tuple[float, int, bool]] = {}

    def limit_s(self, timeouts: int, last: bool) -> float:
        """Seconds for an attempt at a request that ran into its limit `timeouts` times."""
        return self.timeout_s if last else min(self.timeout_s, self._limit_s * 2 ** max(0, timeouts - 1))

    @contextlib.asynccontextmanager
    async def attempt(self, timeouts: int, last: bool) -> AsyncIterator[None]:
        """Raises TimeoutError when what is done within takes too long."""
        async with asyncio.timeout(self.limit_s(timeouts, last)) as scope:
            self._under_way[scope] = (time.monotonic(), timeouts, last)
            try:
                yield
            finally:
                del self._under_way[scope]

    def add(self, seconds: float) -> bool:
        """Takes in what a reply took, and gives those under way the limit that follows; True where it has moved. Small
        changes do not move it: to tell hundreds of requests takes longer than a reply does."""
        self._seen.append(seconds)
        if len(self._seen) < self._enough:
            return False
        limit_s = max(_LIMIT_LEAST_S, _LIMIT_FACTOR * sorted(self._seen)[int(0.95 * len(self._seen))])
        if abs(limit_s - self._limit_s) < _LIMIT_MOVES * self._limit_s:
            return False
        self._limit_s = limit_s
        for scope, (started, timeouts, last) in self._under_way.items():
            if not scope.expired():
                scope.reschedule(started + self.limit_s(timeouts, last))
        return True


@dataclass(eq=False)
class Server:
    """How one server is doing; times are those of time.monotonic(), `failures` those in a row."""

    url: str
    under_way: int = 0
    failures: int = 0
    rests_until: float = 0.0
    _rests: int = 0
    _testing: bool = False
    _silent: bool = False
    _has_served: bool = False
    _limited_since: float | None = None

    @property
    def _patience(self) -> int:
        return _RESTS if self._has_served else _RESTS_FROM_START

    @property
    def gone(self) -> bool:
        """It has not answered at all for as long as is worth waiting: seconds from the start, a minute later on."""
        return self._silent and self._rests >= self._patience

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


def backoff_s(times: int, first_s: float) -> float:
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


# --- What /chat/completions answers, for everyone who asks a chat model: judges, simulators, assistants.

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
