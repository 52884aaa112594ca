"""How long a stream of requests takes, on a clock that jumps: exact on any machine, with no second waited."""

from __future__ import annotations

import asyncio
import contextlib
import random
import selectors
from typing import Any

import httpx
import pytest
from loopback import Faults, chat_reply

from probe.client import Reply, Sending, Server
from probe.errors import EngineError
from probe.settings import ServerSection


class JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: moves the clock on by the time that it was to wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everything waits for something that never comes"
        self.now += timeout
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = JumpingSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now

    monotonic = time


class Scripted(Faults):
    """Faults in a given order, none after that."""

    def __init__(self, script: list[str | None], **options: Any) -> None:
        super().__init__(**options)
        object.__setattr__(self, "script", script)

    def draw(self, number: int) -> str | None:
        script: list[str | None] = vars(self)["script"]
        return script[number] if number < len(script) else None


class Simulated:
    """A server that answers after `latency_s`, with the faults that are drawn, and errors only during its `outage`."""

    def __init__(self, faults: Faults, outage: tuple[float, float] = (0.0, 0.0)) -> None:
        self.faults = faults
        self.outage = outage
        self.sent = 0
        self.under_way = 0
        self.most_under_way = 0

    async def send(self, connection: Any, url: str, body: Any) -> tuple[httpx.Response, bytes]:
        fault = self.faults.draw(self.sent)
        self.sent += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(1e6 if fault == "hang" else self.faults.latency_s)
        finally:
            self.under_way -= 1
        if fault == "rate_limited":
            return httpx.Response(429, headers={"Retry-After": self.faults.retry_after or ""}), b"{}"
        first, last = self.outage
        if fault == "server_error" or first <= asyncio.get_running_loop().time() < last:
            return httpx.Response(500), b"{}"
        return httpx.Response(200), str(chat_reply("hi")).replace("'", '"').encode()


def simulate(
    monkeypatch: pytest.MonkeyPatch, server: Simulated, count: int, **options: Any
) -> tuple[float, list[Reply]]:
    """Seconds on the jumping clock and the replies."""
    loop = JumpingLoop()
    section = ServerSection(urls=("http://127.0.0.1:1/v1",), **options)
    replies: dict[int, Reply] = {}

    def received(index: int, reply: Reply) -> None:
        assert index not in replies, "each request once"
        replies[index] = reply

    with monkeypatch.context() as patch:
        patch.setattr("probe.client._send", server.send)
        patch.setattr("probe.client.time", loop)
        patch.setattr("probe.client.time", loop)
        patch.setattr("probe.client.random", random.Random(0))
        bodies: list[dict[str, Any]] = [{"n": n} for n in range(count)]
        sending = Sending(
            section,
            [Server(section.urls[0])],
            "/x",
            usable=lambda body: None,
            received=received,
            count=lambda sent: None,
            workers=min(section.concurrency, count),
            expected=count,
        )
        with contextlib.closing(loop):
            loop.run_until_complete(sending.send_all(bodies))
    return loop.time(), [replies[index] for index in range(count)]


@pytest.mark.parametrize("seed", [0, 4, 8])
def test_under_faults_a_thousand_calls_take_little_longer_than_their_latencies(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    faults = Faults(rate_limited=0.1, server_error=0.1, hang=0.05, latency_s=0.2, seed=seed)
    server = Simulated(faults)
    seconds, replies = simulate(monkeypatch, server, 1000, concurrency=32)
    assert all(reply.failure is None for reply in replies)
    assert server.most_under_way == 32
    assert seconds <= 1.5 * server.sent * faults.latency_s / 32


def test_what_waits_out_a_rate_limit_holds_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten calls meet a rate limit of ten seconds each; they wait side by side, while the only slot serves others."""
    script = ["rate_limited"] * 5 + [None] * 2 + ["rate_limited"] * 5
    server = Simulated(Scripted(script, latency_s=0.1, retry_after="10"))
    seconds, replies = simulate(monkeypatch, server, 20, concurrency=1, attempts=1)
    assert all(reply.failure is None for reply in replies)
    assert 10 <= seconds <= 15
    assert server.most_under_way == 1


def test_an_outage_of_half_a_minute_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Simulated(Faults(latency_s=0.1), outage=(5.0, 35.0))
    seconds, replies = simulate(monkeypatch, server, 1000, concurrency=8)
    assert all(reply.failure is None for reply in replies)
    assert server.sent <= 1000 + 8 + 8 + 10, "those under way, and a few that test the server"
    assert seconds <= 1000 * 0.1 / 8 + 60


def test_when_nothing_is_ever_answered_it_gives_up_after_a_few_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Simulated(Faults(hang=1.0))
    with pytest.raises(EngineError, match="no server answers.*timeout_s"):
        simulate(monkeypatch, server, 1000, concurrency=32, timeout_s=120)
    assert server.sent < 2 * 32, "not one time limit after the other for each of a thousand"
