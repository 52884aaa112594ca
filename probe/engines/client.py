"""Send many requests to OpenAI-compatible servers at once and get exactly one reply for each.

`Client.stream` is for code without an event loop, `Client.request` for coroutines in `event_loop()`. Both treat failures
alike:

- A rate limit (HTTP 429) is waited out and does not count as an attempt.
- A failure of the server (5xx, a time limit, a broken connection, a malformed reply) is tried again, on another server if
  there is one.
- Any other refusal is final.

While a request waits to be tried again, its slot serves other requests.

`openai.AsyncOpenAI` is not used: a request that it tries again keeps its slot and goes to the same server, and it follows
redirects.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import json
import os
import random
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nextturn.probe.command.errors import BadInput, EngineError
from nextturn.probe.command.sections import ServerSection
from nextturn.probe.command.terminal import say

if TYPE_CHECKING:
    import ssl

    import httpx2

Usable = Callable[[dict[str, Any]], str | None]
"""Return why the body of a 200 reply cannot be used, or None."""

Body = dict[str, Any] | None
"""What to POST; None sends a GET."""

CHAT = "/chat/completions"
MAX_BYTES = 10_000_000
_CONNECT_S = 5.0
# Servers count the first token of a prompt differently.
_FAR_FEWER = 0.9
_DETAIL_CHARACTERS = 300
# A shorter key is a placeholder such as "EMPTY": replacing it would change the text of a model.
_SHORTEST_KEY = 8


@dataclass(frozen=True)
class ServerReply:
    """The outcome of one request.

    Attributes:
        body: The JSON object of a 200 reply, also of one that `usable` rejected.
        failure: None, or rate_limited, server_error, timeout, connection, refused, bad_reply, or a reason of `usable`.
        detail: The server's message, or what happened, on one line of at most 300 characters.
        retry_after_s: Seconds that the server asked to wait.
    """

    body: dict[str, Any] | None
    failure: str | None = None
    detail: str = ""
    retry_after_s: float | None = None


@functools.cache
def event_loop() -> asyncio.AbstractEventLoop:
    """Return the loop in which all servers are asked. Its own thread keeps time limits correct while other code computes."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="servers", daemon=True).start()
    return loop


class Client:
    """Sends JSON to one or several servers that offer the same model.

    Args:
        max_failures: Raise an error after so many requests in a row that failed for good.

    Raises:
        BadInput: A URL or the key cannot be used.
    """

    def __init__(self, section: ServerSection, max_failures: int | None = None) -> None:
        self.section = section
        self._urls = ", ".join(section.urls)
        self.calls = 0
        """The number of POST requests that reached a server, including further attempts."""
        self._servers = [Server(check_url(url)) for url in section.urls]
        if not self._servers:
            raise BadInput("server: `urls` is empty; give at least one address, such as http://localhost:8000/v1")
        self._slots = asyncio.Semaphore(section.concurrency)
        self._max_failures = max_failures
        self._failures = 0
        self._model = section.model
        self._reasoner = self._warned = False
        # The key goes to the servers of the recipe only; `_clean` removes it from everything that they send.
        self._key = os.environ.get(section.api_key_env, "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise BadInput(f"the key in ${section.api_key_env} holds characters that no HTTP header can carry")
        self._tasks: set[asyncio.Task[Any]] = set()
        # One httpx2 client for each request under way: its shared pool looks through all connections for every request,
        # which takes three times as long at 256 requests.
        self._idle: defaultdict[Server, list[httpx2.AsyncClient]] = defaultdict(list)

    def check(self) -> None:
        """Raise EngineError if no server is reachable, or the key is refused. Any other HTTP reply counts as reachable."""
        ((_, reply),) = self.stream("/models", [None])
        if reply.failure == "refused" and reply.detail.startswith(("401", "403")):
            raise EngineError(f"{self._urls}: {reply.detail}; is the key in ${self.section.api_key_env} right?")

    @property
    def model(self) -> str:
        """The section's model, or the only model that the server lists.

        Raises:
            EngineError: The server lists no model or several, or cannot be asked.
        """
        if self._model is None:
            ((_, reply),) = self.stream("/models", [None])
            try:
                names = [str(row["id"]) for row in (reply.body or {})["data"]]
            except (KeyError, TypeError):
                names = []
            if len(names) != 1:
                failed = f"gave {reply.failure} ({reply.detail})" if reply.failure else ""
                listed = failed or f"lists {', '.join(names) or 'no model'}"
                raise EngineError(f"{self._urls}: /models {listed}; set the server's `model` in the recipe")
            self._model = names[0]
        return self._model

    def stream(
        self, path: str, bodies: Sequence[Body], usable: Usable = lambda body: None, ends: float | None = None
    ) -> Generator[tuple[int, ServerReply], None, None]:
        """Send each body to URL + `path` and yield (index, reply) for each, as replies come.

        Closing the generator cancels the requests under way. Read one stream of a client at a time.

        Args:
            usable: Return why a 200 reply cannot be used; the request is tried again then. Called in the loop's thread.
            ends: When to stop waiting, in seconds of the monotonic clock.

        Raises:
            EngineError: See `request`.
            TimeoutError: Replies are missing at `ends`.
        """
        try:
            requests = (self.request(path, body, usable) for body in bodies)
            sent = (asyncio.run_coroutine_threadsafe(request, event_loop()) for request in requests)
            futures = {future: index for index, future in enumerate(sent)}
            left_s = None if ends is None else ends - time.monotonic()
            for future in concurrent.futures.as_completed(futures, left_s):
                yield futures[future], future.result()
        finally:
            self.close()

    async def request(self, path: str, body: Body, usable: Usable) -> ServerReply:
        """Send a body until there is a usable reply, a final refusal, or no attempt left. Runs in `event_loop()`.

        Args: See `stream`.

        Raises:
            EngineError: No server can be reached, for seconds from the start or for about a minute later on; or
                `max_failures` requests in a row failed.
        """
        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        attempts = rate_limits = 0
        waited_s = 0.0
        failed_at: Server | None = None
        while True:
            # Send it. The slot is free again during the pauses below.
            async with self._slots:
                server = await self._choose(avoid=failed_at)
                started, reasoner = time.monotonic(), self._reasoner and path == CHAT
                reply = await self._attempt(server, path, as_reasoner(body) if reasoner and body else body)
            if reply.body is not None:
                self._compare_prompt(body or {}, reply.body)
                if reason := usable(reply.body):
                    reply = ServerReply(reply.body, reason, "the reply cannot be used")
            failed_at = server if reply.failure else None

            # A rate limit: wait as long as the server asks; this is no attempt.
            if reply.failure == "rate_limited":
                rate_limits += 1
                asked_s = (reply.retry_after_s or 0.0) * random.uniform(1.0, 1.1)  # so that not all return at once
                wait_s = max(asked_s, backoff_s(rate_limits, _LIMIT_S))
                waited_s += wait_s
                if waited_s > self.section.max_wait_s:
                    return self._final(reply)
                server.failed(reply.failure, started, wait_s)
                await asyncio.sleep(wait_s)
                continue

            # What the reply shows about the server.
            if reply.failure in _SERVER_FAILURES:
                server.failed(reply.failure, started)
            else:
                server.served()
            if all(server.gone for server in self._servers):
                advice = "check that it runs, its address with port and /v1, and timeout_s; the same command resumes"
                raise EngineError(f"no server answers ({self._urls}; last: {reply.detail}); {advice}")

            # Return the reply, or try again. A request that reached no server was no attempt.
            if reply.failure == "unreachable":
                continue
            if reply.failure == "refused" and path == CHAT and not reasoner and _UNSUPPORTED.search(reply.detail):
                self._reasoner = True
                continue
            attempts += 1
            if reply.failure is None or reply.failure == "refused" or attempts == self.section.attempts:
                return self._final(reply)
            if reply.failure in ("server_error", "connection", "bad_reply"):
                await asyncio.sleep(backoff_s(min(attempts, max(1, server.failures)), _RETRY_S))

    def close(self) -> None:
        """Cancel the requests under way and close the connections."""
        asyncio.run_coroutine_threadsafe(self._close(), event_loop()).result()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        connections = [connection for idle in self._idle.values() for connection in idle]
        self._idle.clear()
        # An error while a broken connection is closed does not concern any reply.
        await asyncio.gather(*(connection.aclose() for connection in connections), return_exceptions=True)

    async def _choose(self, avoid: Server | None) -> Server:
        """Return the free server with the fewest requests under way, and `avoid` only if no other server is free."""
        while not (free := [server for server in self._servers if server.free(time.monotonic())]):
            rest_s = min(server.rests_until for server in self._servers) - time.monotonic()
            await asyncio.sleep(max(_CHECK_AGAIN_S, rest_s))
        return min(free, key=lambda server: (server is avoid, server.under_way))

    def _compare_prompt(self, sent: dict[str, Any], received: dict[str, Any]) -> None:
        """Warn once if a server counted far fewer prompt tokens than were sent: it has cut the prompt."""
        prompt, counted = sent.get("prompt"), counted_tokens(received, "prompt")
        text = "\n".join(str(message["content"]) for message in sent.get("messages", ()))
        # Tokens that were sent, or words, of which each has a token at least.
        least = len(prompt) if isinstance(prompt, list | tuple) else len(text.split())
        if self._warned or not isinstance(counted, int) or not 0 < counted < _FAR_FEWER * least:
            return
        self._warned = True
        size = f"{least:,} tokens" if prompt else f"{least:,} words"
        advice = "so it may have cut the conversation; serve the model with a longer context"
        say(f"warning: {self._urls} counted {counted:,} prompt tokens for {size}, {advice}")

    def _final(self, reply: ServerReply) -> ServerReply:
        """Return the reply, unless too many requests in a row have failed."""
        self._failures = self._failures + 1 if reply.failure else 0
        if self._max_failures and self._failures >= self._max_failures:
            self._failures = 0  # the next run counts anew
            why = f"{reply.failure}: {reply.detail}{self.hint(reply)}"
            last = f"the last {self._max_failures} requests to {self._urls} failed"
            raise EngineError(f"{last} ({why}); replies so far are stored, and the same command asks for the rest")
        return reply

    def _connect(self, server: Server) -> httpx2.AsyncClient:
        """Return an HTTP client for one request at a time to a server; proxies are for other machines only."""
        import httpx2

        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        timeout = httpx2.Timeout(None, connect=min(_CONNECT_S, self.section.timeout_s))
        is_far = urlsplit(server.url).hostname not in ("localhost", "127.0.0.1", "::1")
        return httpx2.AsyncClient(headers=headers, timeout=timeout, trust_env=is_far, verify=_ssl_context())

    async def _attempt(self, server: Server, path: str, body: Body) -> ServerReply:
        """Send a request once, within the time limit."""
        import httpx2

        connection = self._idle[server].pop() if self._idle[server] else self._connect(server)
        server.under_way += 1
        started = time.monotonic()
        try:
            async with asyncio.timeout(self.section.timeout_s):
                reply = self._read(*await _send(connection, server.url + path, body))
        except TimeoutError:
            reply = self._failed("timeout", f"{server.url}: no reply in {time.monotonic() - started:.1f} s")
        except httpx2.RequestError as error:
            failure = "bad_reply" if isinstance(error, httpx2.DecodingError) else "connection"
            if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
                failure = "unreachable"
            reply = self._failed(failure, f"{server.url}: {error or type(error).__name__}")
        finally:
            server.under_way -= 1
            self._idle[server].append(connection)
        self.calls += body is not None and reply.failure != "unreachable"
        return reply

    def _read(self, response: httpx2.Response, content: bytes) -> ServerReply:
        """Return what a response means."""
        status = response.status_code
        if status == 200:
            if len(content) > MAX_BYTES:
                return self._failed("bad_reply", f"longer than {MAX_BYTES} bytes")
            try:
                body = json.loads(self._clean(json.dumps(json.loads(content), ensure_ascii=False)))
            except (ValueError, RecursionError) as error:
                return self._failed("bad_reply", f"not JSON: {error}")
            if not isinstance(body, dict):
                return self._failed("bad_reply", f"expected a JSON object, got {type(body).__name__}")
            return ServerReply(body)
        message = response.headers.get("location") or _message(content)
        failure = "server_error" if status >= 500 or status == 408 else "refused"
        if status == 429 and b"insufficient_quota" not in content:  # no wait brings back a used-up quota
            failure = "rate_limited"
        return self._failed(failure, f"{status}: {message}", retry_after_s(response.headers))

    def _failed(self, failure: str, detail: str, after_s: float | None = None) -> ServerReply:
        """Return a failed reply whose detail is one line of limited length."""
        line = " ".join(self._clean(detail).split())
        line = line if len(line) <= _DETAIL_CHARACTERS else line[: _DETAIL_CHARACTERS - 3] + "..."
        return ServerReply(None, failure, line, after_s)

    def _clean(self, text: str) -> str:
        """Remove the API key, and halves of surrogate pairs, which no file can hold, from what a server sent."""
        hidden = text.replace(self._key, "[key]") if len(self._key) >= _SHORTEST_KEY else text
        return hidden.encode(errors="replace").decode()

    def hint(self, reply: ServerReply) -> str:
        """Return what to do about a refusal, if its words show the cause."""
        if reply.failure != "refused":
            return ""
        names = [name for name in EXTRAS if name in reply.detail]
        if self.section.extras and names:
            return f"; it does not know {', '.join(names)}: set the server's `extras: false`"
        if reply.detail.startswith(("401", "403")):
            return f"; the key is read from the environment variable {self.section.api_key_env}"
        return "; is `model` what the server calls it, and does the url end in /v1?" * reply.detail.startswith("404")


async def _send(connection: httpx2.AsyncClient, url: str, body: dict[str, Any] | None) -> tuple[httpx2.Response, bytes]:
    """Return the response and its content, which ends early if it is too long."""
    content = bytearray()
    async with connection.stream("POST" if body is not None else "GET", url, json=body) as response:
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > MAX_BYTES:
                break
    return response, bytes(content)


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


def _message(content: bytes) -> str:
    """Return the message of a server's error, whichever of the usual forms it has."""
    text = content[:20_000].decode("utf-8", "replace")
    try:
        error: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for name in ("error", "detail", "message"):
        if isinstance(error, dict) and error.get(name):
            error = error[name]
    return error if isinstance(error, str) else json.dumps(error)


# --- When a request is sent, to which server, and how long it may take.
#
# A failed request waits by itself, so the others go on. A server rests only when it fails many requests in a row or cannot
# be reached. After a rest one request tests the server before others follow, so an outage costs few attempts, and a rate
# limit is not met by every request that waits.

_SILENT = ("timeout", "connection", "unreachable")
_SERVER_FAILURES = (*_SILENT, "server_error")
# First pauses, which double: after a failed attempt, between a server's rests or rate limits without Retry-After, and
# after a rate limit that asks for next to nothing.
_RETRY_S, _REST_S, _LIMIT_S = 0.25, 0.5, 0.1
_MAX_PAUSE_S, _MAX_RETRY_AFTER_S = 30.0, 1e9
# If a tenth of all replies are failures, eight in a row happen once in a hundred million requests.
_FAILURES_IN_A_ROW = 8
_RESTS_FROM_START, _RESTS = 3, 8
_CHECK_AGAIN_S = 0.1
_URL = re.compile(r"https?://([\w.-]+|\[[\da-f:.]+\])(:\d{1,5})?(/[^\s?#@]*)?", re.IGNORECASE)


def check_url(url: str) -> str:
    """Return a server's URL without a slash at its end.

    Raises:
        BadInput: The URL is no http(s) address, or holds a password, a query or a fragment.
    """
    if not _URL.fullmatch(url):
        shown = re.sub("//.*@", "//[...]@", url)
        raise BadInput(f"server: {shown!r}: give an address as http://localhost:8000/v1, without a key")
    return url.rstrip("/")


@dataclass(eq=False)
class Server:
    """The state of one server; times are those of time.monotonic(), `failures` counts failures in a row."""

    url: str
    under_way: int = 0
    failures: int = 0
    rests_until: float = 0.0
    _rests: int = 0
    _testing: bool = False
    _silent: bool = False
    _has_answered: bool = False

    @property
    def _spent(self) -> bool:
        """Whether the server has rested often enough: for seconds if it never answered, for a minute otherwise."""
        return self._rests >= (_RESTS if self._has_answered else _RESTS_FROM_START)

    @property
    def gone(self) -> bool:
        return self._silent and self._spent

    def free(self, now: float) -> bool:
        return now >= self.rests_until and not (self._testing and self.under_way)

    def served(self) -> None:
        """Note a reply that was no failure of the server."""
        self._has_answered = True
        self.failures = self._rests = 0
        self._testing = self._silent = False

    def failed(self, failure: str, started: float, rest_s: float | None = None) -> None:
        """Note a failure of the server.

        Args:
            failure: As in `ServerReply`, or "unreachable".
            started: When the request was sent.
            rest_s: The length of a rest that follows, for a rate limit.
        """
        self._silent = failure in _SILENT
        self._has_answered |= not self._silent
        self.failures += 1
        if started < self.rests_until:
            return  # sent before the rest, so it shows nothing about the server after the rest
        if failure == "unreachable" or self._testing or self.failures >= _FAILURES_IN_A_ROW:
            self._rests += 1
            # A server that keeps answering with errors does not rest for ever: each request spends its own attempts.
            self._testing = self._silent or not self._spent
            if self._testing:
                self.rests_until = time.monotonic() + (backoff_s(self._rests, _REST_S) if rest_s is None else rest_s)


def backoff_s(times: int, first_s: float) -> float:
    """Return the seconds to wait after `times` failures in a row: doubling up to 30, less up to a half at random."""
    return min(_MAX_PAUSE_S, first_s * 2 ** min(times - 1, 16)) * random.uniform(0.5, 1.0)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a Retry-After header asks for; None without one, and for a date, which no model server sends."""
    value = headers.get("retry-after", "").strip()
    is_number = value.replace(".", "", 1).isdecimal() and value.isascii()
    return min(float(value), _MAX_RETRY_AFTER_S) if is_number else None


# --- Requests and replies of /chat/completions, for judges, simulators and assistants.

BAD_REPLY, EMPTY_REPLY = "bad_reply", "empty_reply"
PLAIN_SAMPLING = {"top_p": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""Sampling by temperature alone; servers may take other values from the model's generation_config.json."""
PLAIN_EXTRAS = {"top_k": -1, "min_p": 0, "repetition_penalty": 1}
"""The same in fields that only vLLM and SGLang know."""
EXTRAS = ("stop_token_ids", "skip_special_tokens", "add_special_tokens", *PLAIN_EXTRAS)
"""All fields that only vLLM and SGLang know."""
# A limit that is too large for the model names the same parameters, and is not meant.
_UNSUPPORTED = re.compile(
    r"^(?=.*(?:max_tokens|temperature|top_p|penalty)).*(?:unsupported|not support)", re.IGNORECASE | re.DOTALL
)


def counted_tokens(body: dict[str, Any], of: str) -> Any:
    """Return the tokens that a server counted of the "prompt" or the "completion"; None if it does not tell."""
    usage = body.get("usage")
    return usage.get(f"{of}_tokens") if isinstance(usage, dict) else None


def unusable(body: dict[str, Any]) -> str | None:
    """Return why a 200 reply holds no text, or None, also for a reply that only thought until its token limit."""
    try:
        choice = body["choices"][0]
        text, cut = choice["message"].get("content"), choice.get("finish_reason") == "length"
    except (KeyError, IndexError, TypeError, AttributeError):
        return BAD_REPLY
    if not isinstance(text, str | None):
        return BAD_REPLY
    return None if cut or (text or "").strip() else EMPTY_REPLY


def as_reasoner(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request for OpenAI's reasoning models: one limit for thinking and reply together, no sampling settings."""
    names = {"temperature", *PLAIN_SAMPLING, *PLAIN_EXTRAS}
    return {("max_completion_tokens" if key == "max_tokens" else key): body[key] for key in body if key not in names}
