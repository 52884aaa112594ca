"""The client of model servers: nothing lost or counted twice, whatever the servers do, and no waiting for nothing."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from loopback import Answer, Faults, Loopback, Seen, chat_reply, models_reply

from probe.client import Client, Reply
from probe.errors import BadInput, EngineError
from probe.settings import ServerSection

PATH = "/chat/completions"
KEY = "sk-test-0123456789"


def echo(seen: Seen) -> dict[str, Any]:
    return chat_reply(f"reply to {seen.body['n']}")


def section(*urls: str, **options: Any) -> ServerSection:
    return ServerSection(urls=urls, **{"model": "tiny", "api_key_env": "NEXTTURN_TEST_KEY", **options})


def ask(client: Client, count: int, **options: Any) -> list[Reply]:
    """Sends `count` bodies; the replies in order, after checking that each came once."""
    got = list(client.stream(PATH, [{"n": n} for n in range(count)], **options))
    assert sorted(index for index, _ in got) == list(range(count))
    return [reply for _, reply in sorted(got, key=lambda pair: pair[0])]


def text(reply: Reply) -> str:
    assert reply.body is not None, reply
    return str(reply.body["choices"][0]["message"]["content"])


def one_after_another(*answers: Answer) -> Callable[[Seen], Any]:
    """A handler that gives these answers first and good ones after."""
    left = list(answers)
    return lambda seen: left.pop(0) if left else echo(seen)


@pytest.fixture
def dead_url() -> str:
    """A port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a request waits after a server's failure is tested by itself, in test_pacing.py."""
    monkeypatch.setattr("probe.client.backoff_s", lambda times: 0.01)


@pytest.mark.timeout(60)
def test_under_every_kind_of_fault_each_request_gets_its_own_reply_once() -> None:
    shares = {"rate_limited": 0.1, "server_error": 0.1, "hang": 0.01, "disconnect": 0.05, "empty_body": 0.05}
    with Loopback({PATH: echo}, Faults(**shares, invalid_json=0.05, retry_after="0.1", seed=5)) as server:  # type: ignore[arg-type]
        client = Client(section(server.url, attempts=40))
        replies = ask(client, 200)
    assert [text(reply) for reply in replies] == [f"reply to {n}" for n in range(200)]
    assert set(server.faults_sent) == {*shares, "invalid_json"}
    assert client.calls == len(server.requests) >= 200 + server.faults_sent.total(), "one more call for each fault"


@pytest.mark.timeout(60)
def test_a_few_hanging_calls_do_not_hold_up_the_rest_for_their_time_limit() -> None:
    hung: set[int] = set()

    def first_call_of_every_tenth_hangs(seen: Seen) -> dict[str, Any] | None:
        if seen.body["n"] % 10 == 0 and seen.body["n"] not in hung:
            hung.add(seen.body["n"])
            return None
        return echo(seen)

    with Loopback({PATH: first_call_of_every_tenth_hangs}) as server:
        replies = ask(Client(section(server.url, timeout_s=300)), 100)
    assert [text(reply) for reply in replies] == [f"reply to {n}" for n in range(100)]
    assert len(hung) == 10
    assert len(server.requests) >= 110, "each of the ten that hung was asked once more"


def test_a_call_that_always_hangs_fails_by_the_time_limit() -> None:
    with Loopback({PATH: echo}, Faults(hang=1.0)) as server:
        (reply,) = ask(Client(section(server.url, timeout_s=0.2, attempts=2)), 1)
    assert reply.failure == "timeout"
    assert len(server.requests) == 2


def test_no_more_requests_are_under_way_than_allowed_over_all_servers() -> None:
    with Loopback({PATH: echo}, Faults(latency_s=0.01)) as one, Loopback({PATH: echo}, Faults(latency_s=0.01)) as two:
        ask(Client(section(one.url, two.url, concurrency=6)), 60)
    assert one.most_under_way <= 4
    assert two.most_under_way <= 4
    assert min(len(one.requests), len(two.requests)) >= 20, "the work is shared"


def test_retry_after_is_kept_to() -> None:
    with Loopback({PATH: one_after_another(Answer(429, {}, {"Retry-After": "1"}))}) as server:
        (reply,) = ask(Client(section(server.url)), 1)
    assert text(reply) == "reply to 0"
    first, second = server.requests
    assert second.at - first.at >= 0.99


def test_waiting_for_a_rate_limit_holds_no_slot_and_is_no_try() -> None:
    limited = one_after_another(Answer(429, {}, {"Retry-After": "0.3"}), Answer(429, {}))
    with Loopback({PATH: limited}) as server:
        replies = ask(Client(section(server.url, concurrency=1, attempts=1)), 10)
    assert all(reply.failure is None for reply in replies)
    assert [seen.body["n"] for seen in server.requests][:10] == list(range(10)), "the others did not wait"
    assert len(server.requests) == 12


def test_a_rate_limit_is_not_waited_for_beyond_what_is_allowed() -> None:
    limited = Answer(429, {"error": {"message": "come back tomorrow"}}, {"Retry-After": "86400"})
    with Loopback({PATH: lambda seen: limited}) as server:
        replies = ask(Client(section(server.url, max_wait_s=60)), 20)
    assert {reply.failure for reply in replies} == {"rate_limited"}
    assert replies[0].detail == "429: come back tomorrow"
    assert len(server.requests) == 20


def test_a_used_up_quota_is_a_refusal_not_a_rate_limit() -> None:
    used_up = Answer(429, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}})
    with Loopback({PATH: lambda seen: used_up}) as server:
        (reply,) = ask(Client(section(server.url)), 1)
    assert reply.failure == "refused"
    assert len(server.requests) == 1


def test_a_server_error_is_tried_as_often_as_asked_and_then_told() -> None:
    with Loopback({PATH: echo}, Faults(server_error=1.0)) as server:
        (reply,) = ask(Client(section(server.url, attempts=3)), 1)
    assert (reply.failure, reply.detail, reply.body) == ("server_error", "500: out of order", None)
    assert len(server.requests) == 3


def test_a_refusal_is_final_and_says_what_the_server_said() -> None:
    cases: list[tuple[Any, str]] = [
        ({"error": {"message": "prompt too long", "code": 400}}, "400: prompt too long 400"),
        ({"detail": [{"loc": ["body", "top_k"], "msg": "extra"}]}, '400: [{"loc": ["body", "top_k"], "msg": "extra"}]'),
        ({"message": "no"}, "400: no"),
        (b"plain\n words", "400: plain words"),
    ]
    answers = [Answer(400, body) for body, _ in cases]
    with Loopback({PATH: lambda seen: answers[seen.body["n"]]}) as server:
        replies = ask(Client(section(server.url)), len(cases))
    assert [(reply.failure, reply.detail) for reply in replies] == [("refused", said) for _, said in cases]
    assert len(server.requests) == len(cases)


def test_replies_that_are_no_json_object_or_too_long_are_asked_for_again() -> None:
    broken = [b"", b"{", b"[1]", chat_reply("x" * 10_000_001)]
    with Loopback({PATH: one_after_another(*(Answer(200, body) for body in broken))}) as server:
        (reply,) = ask(Client(section(server.url, attempts=5)), 1)
    assert text(reply) == "reply to 0"
    with Loopback({PATH: lambda seen: Answer(200, b"{")}) as server:
        (reply,) = ask(Client(section(server.url, attempts=2)), 1)
    assert reply.failure == "bad_reply"
    assert "not JSON" in reply.detail


def test_a_reply_that_the_caller_cannot_use_is_asked_for_again_and_kept() -> None:
    def usable(body: dict[str, Any]) -> str | None:
        return None if body["choices"][0]["message"]["content"] == "reply to 0" else "no_verdict"

    with Loopback({PATH: one_after_another(Answer(200, chat_reply("hm")))}) as server:
        (reply,) = ask(Client(section(server.url, attempts=2)), 1, usable=usable)
    assert reply.failure is None
    with Loopback({PATH: lambda seen: chat_reply("hm")}) as server:
        (reply,) = ask(Client(section(server.url, attempts=2)), 1, usable=usable)
    assert reply.failure == "no_verdict"
    assert text(reply) == "hm"
    assert len(server.requests) == 2


def test_a_dead_server_is_left_out_and_the_others_take_over(dead_url: str) -> None:
    with Loopback({PATH: echo}) as server:
        client = Client(section(dead_url, server.url, attempts=1))
        replies = ask(client, 50)
    assert all(reply.failure is None for reply in replies), "no request spends its only try on the dead one"
    assert client.calls == len(server.requests) >= 50


def test_the_second_try_goes_to_another_server() -> None:
    with Loopback({PATH: echo}, Faults(server_error=0.5)) as shaky, Loopback({PATH: echo}) as server:
        replies = ask(Client(section(shaky.url, server.url, attempts=2)), 100)
    assert all(reply.failure is None for reply in replies)
    assert shaky.faults_sent["server_error"] > 10


@pytest.mark.timeout(30)
def test_with_all_servers_dead_it_ends_in_seconds_and_says_what_to_check(dead_url: str) -> None:
    client = Client(section(dead_url, dead_url.replace("127.0.0.1", "localhost"), attempts=50))
    with pytest.raises(EngineError, match="no server answers.*check that it runs, its address") as caught:
        ask(client, 200)
    assert dead_url in str(caught.value)
    assert client.calls == 0
    assert not threads()


def test_the_key_goes_to_the_server_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NEXTTURN_TEST_KEY", KEY + "\n")
    caplog.set_level(logging.DEBUG)
    told = Answer(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
    with Loopback({PATH: lambda seen: told}) as server:
        client = Client(section(server.url))
        (reply,) = ask(client, 1)
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert reply.detail == "401: Incorrect API key provided: [key]"
    assert KEY not in f"{reply!r} {client!r} {vars(client)} {caplog.text}"

    monkeypatch.delenv("NEXTTURN_TEST_KEY")
    with Loopback({PATH: echo}) as server:
        ask(Client(section(server.url)), 1)
    assert "authorization" not in server.requests[0].headers

    monkeypatch.setenv("NEXTTURN_TEST_KEY", "sk-\u00e9\u00e8")
    with pytest.raises(BadInput, match="NEXTTURN_TEST_KEY") as caught:
        ask(Client(section("http://127.0.0.1:1/v1")), 1)
    assert "sk-" not in str(caught.value)


def test_the_key_does_not_follow_a_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEXTTURN_TEST_KEY", KEY)
    with Loopback({PATH: echo}) as other:
        away = Answer(307, {}, {"Location": other.url + PATH})
        with Loopback({PATH: lambda seen: away}) as server:
            (reply,) = ask(Client(section(server.url)), 1)
        assert other.requests == []
    assert reply.failure == "refused"
    assert other.url in reply.detail


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
def test_closing_the_stream_stops_at_once_and_leaves_no_thread() -> None:
    hang_later = Faults(hang=0.5, seed=1)
    with Loopback({PATH: echo}, hang_later) as server:
        replies = Client(section(server.url, timeout_s=300)).stream(PATH, [{"n": n} for n in range(500)])
        next(replies)
        assert threads()
        replies.close()
        assert not threads()
        assert len(server.requests) < 500


@pytest.mark.timeout(30)
def test_what_the_callers_own_code_raises_comes_out() -> None:
    def broken(body: dict[str, Any]) -> str | None:
        raise KeyError("a mistake in the test")

    with Loopback({PATH: echo}) as server, pytest.raises(KeyError, match="a mistake"):
        ask(Client(section(server.url)), 50, usable=broken)
    assert not threads()


def test_no_bodies_ask_nobody(dead_url: str) -> None:
    assert ask(Client(section(dead_url)), 0) == []


def test_the_model_is_the_one_that_the_server_lists(dead_url: str) -> None:
    with Loopback({"/models": lambda seen: models_reply("tiny-7b")}) as server:
        client = Client(section(server.url, model=None))
        assert client.model == client.model == "tiny-7b"
        assert len(server.requests) == 1
        assert client.calls == 0
        assert Client(section(dead_url, model="given")).model == "given"
    with (
        Loopback({"/models": lambda seen: models_reply("base", "adapter")}) as server,
        pytest.raises(EngineError, match="lists base, adapter; set the server's `model`"),
    ):
        _ = Client(section(server.url, model=None)).model
    with Loopback({}) as server, pytest.raises(EngineError, match="no such path: /models"):
        _ = Client(section(server.url, model=None)).model


def test_sections_that_cannot_work_are_refused() -> None:
    for url in ("localhost:8000", "ftp://host/v1", "http://", "http://host:99999/v1", "http://host/v1?key=1"):
        with pytest.raises(BadInput, match="no address such as"):
            Client(section(url))
    with pytest.raises(BadInput, match="environment only") as caught:
        Client(section("http://me:secret@host/v1"))
    assert "secret" not in str(caught.value)
    with pytest.raises(BadInput, match="`urls` is empty"):
        Client(section())
    with pytest.raises(BadInput, match="`attempts` is 0"):
        Client(section("http://host/v1", attempts=0))


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "servers"]
