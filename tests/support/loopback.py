"""A small HTTP server on 127.0.0.1 for tests of everything that talks to a model server. It is a real server: one
thread, one asyncio loop, keep-alive, hundreds of connections at once; only what it says is made up.

    def judge(request: Seen) -> dict[str, Any]:
        return chat_reply("LABEL: genuine_followup")

    with Loopback({"/chat/completions": judge}, Faults(rate_limited=0.1, hang=0.05, latency_s=0.05, seed=1)) as server:
        section = ServerSection(urls=(server.url,), model="tiny")
        ...
    assert len(server.requests) == 1000           # each as a Seen, in the order of arrival
    assert server.faults_sent["rate_limited"] == 103

A handler gets the request and returns the JSON object of a 200 reply, an `Answer` for anything else, or None to let
the client wait until it goes away. Handlers run in the server's thread, one at a time, so they may keep state without
locks and must be quick (a tiny model is).
Paths are those after `server.url` (which ends in /v1), without the query. An unknown path is answered with 404; what
a handler raises is answered with 500 and raised again when the `with` block ends.

Faults are drawn for each POST from the seed and the number of its arrival, so the same seed gives the same sequence
of faults, whatever the handlers do. GET requests meet no faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Seen:
    """One request: `number` counts arrivals from 0, `at` is its time.monotonic(), `body` its JSON or None."""

    number: int
    at: float
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: Any


@dataclass(frozen=True)
class Answer:
    """A reply other than plain 200: `body` is sent as JSON unless it is bytes."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Faults:
    """Shares (0 to 1, at most 1 together) of POST requests that go wrong, and how long every reply takes."""

    rate_limited: float = 0.0
    """429, with `retry_after` as its header where that is set."""
    server_error: float = 0.0
    """500 with a JSON error."""
    hang: float = 0.0
    """No reply at all until the client goes away."""
    disconnect: float = 0.0
    """The connection is closed without a reply."""
    empty_body: float = 0.0
    """200 with no body."""
    empty_text: float = 0.0
    """The handler's reply, with the text of every choice (chat or raw) made empty."""
    invalid_json: float = 0.0
    """200 with JSON that breaks off in the middle."""
    retry_after: str | None = "1"
    latency_s: float = 0.0
    """Before every reply, good or bad."""
    seed: int = 0

    _SHARES = ("rate_limited", "server_error", "hang", "disconnect", "empty_body", "empty_text", "invalid_json")

    def draw(self, number: int) -> str | None:
        """The fault of the request that arrived as `number`, or None."""
        point = random.Random(f"{self.seed} {number}").random()
        for name in self._SHARES:
            point -= getattr(self, name)
            if point < 0:
                return name
        return None


Handler = Callable[[Seen], dict[str, Any] | Answer | None]


class Loopback:
    """Context manager; see the module docstring.

    Attributes:
        url: http://127.0.0.1:PORT/v1
        requests, replies: what came and what went out, in order.
        faults_sent: how often each fault was met, hangs and disconnects included.
        under_way, most_under_way: requests that have come and not been answered, now and at most.
        faults, handlers: may be changed between requests.
    """

    def __init__(self, handlers: Mapping[str, Handler], faults: Faults | None = None) -> None:
        self.handlers = dict(handlers)
        self.faults = faults or Faults()
        self.requests: list[Seen] = []
        self.replies: list[Answer] = []
        self.faults_sent: Counter[str] = Counter()
        self.under_way = 0
        self.most_under_way = 0
        self.url = ""
        self._posts = 0
        self._broken: list[Exception] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loopback", daemon=True)

    def __enter__(self) -> Loopback:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        if self._broken and error is None:
            raise self._broken[0]

    async def _start(self) -> asyncio.Server:
        return await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=512, limit=2**26)

    async def _stop(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await self._exchange(reader, writer):
                pass
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its reply; False when the connection is to be closed."""
        head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        path = target.partition("?")[0].removeprefix("/v1")
        body = json.loads(data) if data.strip() else None
        seen = Seen(len(self.requests), time.monotonic(), method, path, headers, body)
        self.requests.append(seen)
        fault = None
        if method == "POST":
            fault = self.faults.draw(self._posts)
            self._posts += 1
            self.faults_sent.update([fault] if fault else [])
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            answer = None
            if fault != "hang":
                await asyncio.sleep(self.faults.latency_s)
                if fault == "disconnect":
                    return False
                answer = self._answer(seen, fault)
            if answer is None:
                await reader.read()  # until the client closes the connection
                return False
            content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            headers = {"Content-Type": "application/json", "Content-Length": str(len(content)), **answer.headers}
            lines = [f"HTTP/1.1 {answer.status} Status", *(f"{name}: {value}" for name, value in headers.items())]
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + content)
            self.replies.append(answer)
            await writer.drain()
            return True
        finally:
            self.under_way -= 1

    def _answer(self, seen: Seen, fault: str | None) -> Answer | None:
        """None where the handler lets the client wait."""
        if fault == "rate_limited":
            asked = {} if self.faults.retry_after is None else {"Retry-After": self.faults.retry_after}
            return Answer(429, {"error": {"message": "slow down"}}, asked)
        if fault == "server_error":
            return Answer(500, {"error": {"message": "out of order"}})
        if fault in ("empty_body", "invalid_json"):
            return Answer(200, b"" if fault == "empty_body" else b'{"choices": [{"message": {"content": "genu')
        if (handler := self.handlers.get(seen.path)) is None:
            return Answer(404, {"error": {"message": f"no such path: {seen.path}"}})
        try:
            made = handler(seen)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where the test can see it
            self._broken.append(error)
            return Answer(500, {"error": {"message": f"the test's handler failed: {error!r}"}})
        answer = made if made is None or isinstance(made, Answer) else Answer(200, made)
        return replace(answer, body=_without_text(answer.body)) if answer and fault == "empty_text" else answer


def chat_reply(text: str, finish: str = "stop") -> dict[str, Any]:
    """What /chat/completions says."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"object": "chat.completion", "model": "tiny", "choices": [choice], "usage": {"completion_tokens": 1}}


def completion_reply(text: str, finish: str = "stop", tokens: int = 1) -> dict[str, Any]:
    """What /completions says."""
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}
    return {"object": "text_completion", "model": "tiny", "choices": [choice], "usage": {"completion_tokens": tokens}}


def models_reply(*names: str) -> dict[str, Any]:
    """What GET /models says."""
    return {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}


def _without_text(body: Any) -> Any:
    emptied = json.loads(json.dumps(body))
    for choice in emptied["choices"]:
        choice.get("message", {})["content"] = choice["text"] = ""
    return emptied
