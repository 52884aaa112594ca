"""The client of model servers: no reply lost or counted twice, whatever the servers do, and no needless waiting.

Long waits run on a clock that jumps, exact on any machine; what goes over the wire runs on a real server in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import selectors
import socket
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextturn.probe.command.errors import BadInput, EngineError
from nextturn.probe.command.sections import ServerSection
from nextturn.probe.engines.client import Client, Server, ServerReply, retry_after_s
from support.clock import Clock
from support.loopback import Answer, Faults, Loopback, Seen, chat_reply, models_reply

PATH = "/chat/completions"
KEY = "sk-test-0123456789"


def echo(seen: Seen) -> dict[str, Any]:
    return chat_reply(f"reply to {seen.body['n']}")


def section(*urls: str, **options: Any) -> ServerSection:
    return ServerSection(urls=urls, **{"model": "tiny", "api_key_env": "NEXTTURN_TEST_KEY", **options})


def ask(client: Client, count: int, **options: Any) -> list[ServerReply]:
    """Send `count` bodies, check that each gets one reply, and return the replies in order."""
    replies = dict(client.stream(PATH, [{"n": n} for n in range(count)], **options))
    assert sorted(replies) == list(range(count))
    return [replies[n] for n in range(count)]


def texts(replies: list[ServerReply]) -> list[str]:
    assert all(reply.body for reply in replies), replies
    return [reply.body["choices"][0]["message"]["content"] for reply in replies if reply.body]


def numbered(count: int) -> list[str]:
    return [f"reply to {n}" for n in range(count)]


def first(*answers: Answer) -> Callable[[Seen], Any]:
    """Return a handler that gives these answers first and good ones after."""
    left = list(answers)
    return lambda seen: left.pop(0) if left else echo(seen)


@pytest.fixture
def dead_url() -> str:
    """A port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("nextturn.probe.engines.client.time", clock)
    return clock


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses after a failed attempt, not after a rate limit."""
    monkeypatch.setattr("nextturn.probe.engines.client._RETRY_S", 0.01)


# --- On a clock that jumps.


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop that waits for nothing: its clock jumps to the end of each wait."""

    now = 0.0

    def __init__(self) -> None:
        super().__init__()
        self._selector: selectors.BaseSelector
        self._selector.select = self._jump  # type: ignore[method-assign]

    def _jump(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everything waits for something that never comes"
        self.now += timeout
        return []

    def time(self) -> float:
        return self.now

    monotonic = time


class Simulated:
    """A server that answers after `faults.latency_s`, with the faults of `script` first and drawn ones after it, and with
    errors during its `outage`."""

    def __init__(
        self, faults: Faults, script: tuple[str | None, ...] = (), outage: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        self.faults, self.script, self.outage = faults, script, outage
        self.order: list[int] = []
        self.under_way = self.most_under_way = 0

    async def send(self, connection: Any, url: str, body: Any) -> tuple[httpx2.Response, bytes]:
        number = len(self.order)
        fault = self.script[number] if number < len(self.script) else self.faults.draw(number)
        self.order.append(body["n"])
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(1e6 if fault == "hang" else self.faults.latency_s)
        finally:
            self.under_way -= 1
        if fault == "rate_limited":
            return httpx2.Response(429, headers={"Retry-After": self.faults.retry_after or ""}), b"{}"
        if fault == "server_error" or self.outage[0] <= asyncio.get_running_loop().time() < self.outage[1]:
            return httpx2.Response(500), b"{}"
        return httpx2.Response(200), json.dumps(chat_reply(f"reply to {body['n']}")).encode()

    def run(self, monkeypatch: pytest.MonkeyPatch, count: int, **options: Any) -> tuple[float, list[ServerReply]]:
        """Return the seconds on the jumping clock and the replies."""
        client = Client(section("http://127.0.0.1:1/v1", **options))

        async def everything() -> list[ServerReply]:
            requests = (client.request(PATH, {"n": n}, lambda body: None) for n in range(count))
            try:
                return await asyncio.gather(*requests)
            finally:
                await client._close()

        with monkeypatch.context() as patch, contextlib.closing(JumpingLoop()) as loop:
            patch.setattr("nextturn.probe.engines.client._send", self.send)
            patch.setattr("nextturn.probe.engines.client.time", loop)
            patch.setattr("nextturn.probe.engines.client.random", random.Random(0))
            replies = loop.run_until_complete(everything())
            return loop.now, replies


def test_a_thousand_calls_with_faults_wait_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand calls with faults take little longer than their latencies."""
    faults = Faults(rate_limited=0.1, server_error=0.1, latency_s=0.2, seed=4)
    server = Simulated(faults)
    seconds, replies = server.run(monkeypatch, 1000, concurrency=32, timeout_s=2)
    assert texts(replies) == numbered(1000)
    assert server.most_under_way == 32
    assert seconds <= 1.5 * len(server.order) * faults.latency_s / 32


def test_a_request_that_waits_for_a_rate_limit_holds_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten requests meet a rate limit of ten seconds each; they wait together, while the only slot serves others."""
    script = ("rate_limited",) * 5 + (None,) * 2 + ("rate_limited",) * 5
    server = Simulated(Faults(latency_s=0.1, retry_after="10"), script)
    seconds, replies = server.run(monkeypatch, 20, concurrency=1, attempts=1)
    assert texts(replies) == numbered(20)
    assert 10 <= seconds <= 15
    assert server.order[:12] == list(range(12))


def test_an_outage_of_half_a_minute_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Simulated(Faults(latency_s=0.1), outage=(5.0, 35.0))
    seconds, replies = server.run(monkeypatch, 600, concurrency=8)
    assert texts(replies) == numbered(600)
    assert len(server.order) <= 600 + 8 + 8 + 10, "those under way, and a few that test the server"
    assert seconds <= 600 * 0.1 / 8 + 60


# --- The rules by themselves.


@given(st.text() | st.sampled_from(["", "-1", "inf", "nan", "1e9", "9" * 400, "soon", "²", "1.2.3", "Fri, 99 Foo"]))
def test_any_retry_after_is_harmless(value: str) -> None:
    assert (retry_after_s({"retry-after": "7"}), retry_after_s({"retry-after": " 0.5 "})) == (7, 0.5)
    asked = retry_after_s({"retry-after": value})
    assert asked is None or 0 <= asked < float("inf")


@pytest.mark.parametrize(("served_before", "least_s", "most_s"), [(False, 0.5, 2), (True, 30, 100)])
def test_a_silent_server_is_gone_in_time(clock: Clock, served_before: bool, least_s: float, most_s: float) -> None:
    """A silent server is gone in seconds from the start and after a minute later."""
    server, begun = Server("one"), clock.now
    if served_before:
        server.served()
    while not server.gone:
        server.failed("unreachable", clock.now)
        clock.now = server.rests_until if not server.gone else clock.now
    assert least_s <= clock.now - begun <= most_s


# --- Over the wire.


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("short_pauses")
def test_under_every_kind_of_fault_each_request_gets_its_own_reply_once() -> None:
    shares = {"rate_limited": 0.1, "server_error": 0.1, "hang": 0.02, "disconnect": 0.05, "empty_body": 0.05}
    with Loopback({PATH: echo}, Faults(**shares, invalid_json=0.05, retry_after="0.1", seed=4)) as server:  # type: ignore[arg-type]
        client = Client(section(server.url, attempts=40, timeout_s=10))
        assert texts(ask(client, 100)) == numbered(100)
    assert set(server.faults_sent) == {*shares, "invalid_json"}
    # On a busy machine a call can reach its time limit before the server has read it.
    assert client.calls >= len(server.requests) >= 100 + server.faults_sent.total()


def test_the_bound_on_requests_under_way_holds_over_all_servers() -> None:
    with Loopback({PATH: echo}, Faults(latency_s=0.01)) as one, Loopback({PATH: echo}, Faults(latency_s=0.01)) as two:
        ask(Client(section(one.url, two.url, concurrency=6)), 60)
    assert one.most_under_way <= 4
    assert two.most_under_way <= 4
    assert min(len(one.requests), len(two.requests)) >= 20, "the work is shared"


def test_a_rate_limit_beyond_the_longest_wait_fails_at_once() -> None:
    limited = Answer(429, {"error": {"message": "come back tomorrow"}}, {"Retry-After": "86400"})
    with Loopback({PATH: lambda seen: limited}) as server:
        replies = ask(Client(section(server.url, max_wait_s=60)), 20)
    assert {(reply.failure, reply.detail) for reply in replies} == {("rate_limited", "429: come back tomorrow")}
    assert len(server.requests) == 20


def _verdict(body: dict[str, Any]) -> str | None:
    return None if body["choices"][0]["message"]["content"] == "reply to 0" else "no_verdict"


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(
    ("answer", "failure", "attempts"),
    [
        (Answer(500, {"error": {"message": "out of order"}}), "server_error", 3),
        (None, "timeout", 2),
        (Answer(200, b'{"choices": ['), "bad_reply", 2),
        (Answer(200, b"[1]"), "bad_reply", 2),
        (Answer(200, b'"' + b"x" * 10_000_001), "bad_reply", 2),
        (Answer(200, chat_reply("hm")), "no_verdict", 2),
    ],
)
def test_a_failure_of_the_server_is_tried_again(answer: Answer | None, failure: str, attempts: int) -> None:
    """A failure of the server is tried again as often as the recipe says."""
    with Loopback({PATH: lambda seen: answer}) as server:
        timeout_s = 0.3 if answer is None else 60  # a busy machine needs longer than 0.3 s for the long answer
        (reply,) = ask(Client(section(server.url, attempts=attempts, timeout_s=timeout_s)), 1, usable=_verdict)
    assert (reply.failure, len(server.requests)) == (failure, attempts)
    assert reply.detail
    assert reply.body == (chat_reply("hm") if failure == "no_verdict" else None), "an unusable reply is kept"
    if answer is not None:
        with Loopback({PATH: first(answer)}) as server:
            assert texts(ask(Client(section(server.url, attempts=2)), 1, usable=_verdict)) == numbered(1)


def test_a_refusal_is_final_and_holds_the_server_s_message() -> None:
    quota = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    cases: list[tuple[Answer, str]] = [
        (Answer(400, {"error": {"message": "prompt too long", "code": 400}}), "400: prompt too long"),
        (Answer(400, {"detail": [{"loc": ["top_k"]}]}), '400: [{"loc": ["top_k"]}]'),
        (Answer(400, b"plain\n words"), "400: plain words"),
        (Answer(429, quota), "429: You exceeded your quota"),  # no rate limit: waiting does not help
    ]
    with Loopback({PATH: lambda seen: cases[seen.body["n"]][0]}) as server:
        replies = ask(Client(section(server.url)), len(cases))
    assert [(reply.failure, reply.detail) for reply in replies] == [("refused", detail) for _, detail in cases]
    assert len(server.requests) == len(cases)


def test_a_model_that_refuses_sampling_settings_is_asked_without_them() -> None:
    """As OpenAI's reasoning models do. A limit that is too large for the model is refused, and nothing else is tried."""

    def reasoner(seen: Seen) -> Any:
        if seen.number >= 20 and {"max_tokens", "temperature"} & set(seen.body):
            return Answer(400, {"error": {"message": "Unsupported parameter: 'max_tokens' is not supported"}})
        return echo(seen)

    bodies = [{"n": n, "max_tokens": 7, "temperature": 0, "seed": 1} for n in range(60)]
    with Loopback({PATH: reasoner}) as server:
        client = Client(section(server.url, attempts=1, concurrency=4))
        assert texts([reply for _, reply in sorted(client.stream(PATH, bodies))]) == numbered(60)
        assert set(server.requests[-1].body) == {"n", "max_completion_tokens", "seed"}
        assert 1 <= sum(sent.status == 400 for sent in server.replies) <= 8, "found out with the first refusals"
    small = Answer(400, {"error": {"message": "'max_tokens' or 'max_completion_tokens' is too large: 1024"}})
    with Loopback({PATH: lambda seen: small}) as server:
        replies = list(Client(section(server.url)).stream(PATH, bodies[:5]))
    assert {reply.failure for _, reply in replies} == {"refused"} and len(server.requests) == 5


@pytest.mark.parametrize(
    ("body", "counted", "warned"),
    [
        ({"messages": [{"role": "user", "content": "the gate is open and nobody came " * 300}]}, 1100, True),
        ({"messages": [{"role": "user", "content": "the gate is open and nobody came " * 300}]}, 2200, False),
        ({"messages": [{"role": "user", "content": "the gate is open"}] * 40}, 0, False),
        ({"prompt": list(range(500))}, 120, True),
        ({"prompt": list(range(500))}, 499, False),
    ],
)
def test_a_server_that_counts_far_fewer_prompt_tokens_is_named_once(
    body: dict[str, Any], counted: int, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = chat_reply("yes") | {"usage": {"prompt_tokens": counted}}
    with Loopback({PATH: lambda seen: reply}) as server:
        assert len(list(Client(section(server.url)).stream(PATH, [body] * 3))) == 3
    assert capsys.readouterr().out.count(f"{counted:,} prompt tokens") == warned


def test_too_many_failures_in_a_row_end_the_stream() -> None:
    with Loopback({PATH: lambda seen: Answer(404, {"error": {"message": "no such model"}})}) as server:
        with pytest.raises(EngineError, match="last 5 requests.*no such model.*/v1"):
            ask(Client(section(server.url, concurrency=1), max_failures=5), 100)
        assert len(server.requests) < 10


def test_a_dead_server_is_left_out_and_the_others_take_over(dead_url: str) -> None:
    with Loopback({PATH: echo}) as server:
        client = Client(section(dead_url, server.url, attempts=1))
        replies = ask(client, 50)
    assert texts(replies) == numbered(50), "no request spends its only attempt on the dead server"
    assert client.calls == len(server.requests) >= 50


@pytest.mark.usefixtures("short_pauses")
def test_the_second_attempt_goes_to_another_server() -> None:
    with Loopback({PATH: echo}, Faults(server_error=0.5)) as shaky, Loopback({PATH: echo}) as server:
        replies = ask(Client(section(shaky.url, server.url, attempts=2)), 50)
    assert texts(replies) == numbered(50)
    assert shaky.faults_sent["server_error"] > 5


@pytest.mark.timeout(30)
def test_with_all_servers_dead_it_ends_in_seconds_and_names_them(dead_url: str) -> None:
    client = Client(section(dead_url, dead_url.replace("127.0.0.1", "localhost"), attempts=50))
    with pytest.raises(EngineError, match="no server answers") as caught:
        ask(client, 200)
    assert dead_url in str(caught.value)
    assert client.calls == 0


def test_the_key_goes_to_the_server_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The key goes to the server and nowhere else."""
    with Loopback({PATH: echo}) as server:
        monkeypatch.delenv("NEXTTURN_TEST_KEY", raising=False)
        ask(Client(section(server.url)), 1)
        assert "authorization" not in server.requests[0].headers

    monkeypatch.setenv("NEXTTURN_TEST_KEY", KEY + "\n")
    caplog.set_level(logging.DEBUG)
    repeats = Answer(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
    with Loopback({PATH: echo}) as other:
        away = Answer(307, {}, {"Location": other.url + PATH})
        with Loopback({PATH: lambda seen: (repeats, away)[seen.body["n"]]}) as server:
            client = Client(section(server.url))
            refused, redirected = ask(client, 2)
            assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        assert other.requests == [], "it does not follow a redirect"
    assert (refused.failure, refused.detail) == ("refused", "401: Incorrect API key provided: [key]")
    assert redirected.failure == "refused"
    assert other.url in redirected.detail
    assert KEY not in f"{refused!r} {client!r} {caplog.text}"

    # A good reply may repeat the key, in any spelling that JSON has, and may hold half a character.
    nested = json.dumps({"choices": [{"text": [f"{KEY}\ud83d"]}], "key": KEY}).replace("sk-", "\\u0073k-")
    with Loopback({PATH: lambda seen: Answer(200, nested.encode())}) as server:
        (reply,) = ask(Client(section(server.url)), 1)
    assert reply.body == {"choices": [{"text": ["[key]?"]}], "key": "[key]"}

    monkeypatch.setenv("NEXTTURN_TEST_KEY", "sk-\u00e9\u00e8")
    with pytest.raises(BadInput, match="NEXTTURN_TEST_KEY") as caught:
        Client(section("http://127.0.0.1:1/v1"))
    assert "sk-" not in str(caught.value)


def test_proxies_are_for_other_machines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with Loopback({PATH: echo}) as proxy, Loopback({PATH: echo}) as server:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        ask(Client(section(server.url)), 1)
        assert (len(proxy.requests), len(server.requests)) == (0, 1)
        ask(Client(section("http://models.invalid/v1")), 1)
        assert proxy.requests[0].path == "http://models.invalid/v1" + PATH


@pytest.mark.timeout(30)
def test_closing_the_stream_or_an_error_in_the_callers_code_cancels_what_is_under_way(dead_url: str) -> None:
    assert ask(Client(section(dead_url)), 0) == []
    with Loopback({PATH: echo}, Faults(hang=0.5, seed=1)) as server:
        client = Client(section(server.url, timeout_s=300))
        replies = client.stream(PATH, [{"n": n} for n in range(500)])
        next(replies)
        replies.close()
        assert not client._tasks
        assert len(server.requests) < 500

    def broken(body: dict[str, Any]) -> str | None:
        raise KeyError("a mistake in the test")

    with Loopback({PATH: echo}) as server, pytest.raises(KeyError, match="a mistake"):
        ask(Client(section(server.url)), 50, usable=broken)


def test_the_model_is_the_one_that_the_server_lists(dead_url: str) -> None:
    with Loopback({"/models": lambda seen: models_reply("tiny-7b")}) as server:
        client = Client(section(server.url, model=None))
        assert client.model == client.model == "tiny-7b"
        assert len(server.requests) == 1
        assert client.calls == 0
        assert Client(section(dead_url, model="given")).model == "given"
    handlers: list[dict[str, Any]] = [{"/models": lambda seen: models_reply("base", "adapter")}, {}]
    for handler, message in zip(handlers, ("lists base, adapter; set", "no such path: /models"), strict=True):
        with Loopback(handler) as server, pytest.raises(EngineError, match=message):
            _ = Client(section(server.url, model=None)).model


BAD_URLS = ("localhost:8000", "ftp://host/v1", "http://", "http://host:123456/v1", "http://host/v1?key=1")


@pytest.mark.parametrize("urls", [*([url] for url in BAD_URLS), ["http://me:secret@host/v1"], []])
def test_urls_that_cannot_work_are_refused_and_show_no_password(urls: list[str]) -> None:
    with pytest.raises(BadInput, match="http://localhost:8000/v1") as caught:
        Client(section(*urls))
    assert "secret" not in str(caught.value)
