"""How long to wait and where to send: rules without a network, on a clock that the test sets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from probe.client import Latencies, Server, backoff_s, choose, limit_wait_s, retry_after_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("probe.client.time", clock)
    return clock


@given(st.integers(1, 10_000))
def test_backoff_doubles_with_jitter_and_has_an_end(times: int) -> None:
    whole = min(30.0, 0.25 * 2 ** min(times - 1, 100))
    assert whole / 2 <= backoff_s(times) <= whole


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after_s({"retry-after": "7"}) == 7
    assert retry_after_s({"retry-after": " 0.5 "}) == 0.5
    later = datetime(2030, 1, 1, tzinfo=UTC)
    headers = {"retry-after": format_datetime(later), "date": format_datetime(later - timedelta(seconds=90))}
    assert retry_after_s(headers) == 90, "counted on the server's clock"
    assert retry_after_s({"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}) == 0
    soon = retry_after_s({"retry-after": format_datetime(datetime.now(UTC) + timedelta(seconds=60))})
    assert soon is not None
    assert 30 < soon <= 60


@given(st.text() | st.sampled_from(["", "-1", "inf", "nan", "1e9", "9" * 400, "soon", "²", "1.2.3", "Fri, 99 Foo"]))
def test_any_other_retry_after_is_as_good_as_none(value: str) -> None:
    asked = retry_after_s({"retry-after": value})
    assert asked is None or 0 <= asked < float("inf")


@given(st.integers(1, 50), st.sampled_from(["0", "3", "600", "later", ""]))
def test_a_rate_limit_is_waited_for_at_least_as_long_as_asked(times: int, asked: str) -> None:
    wait = limit_wait_s({"retry-after": asked}, times)
    assert wait >= (float(asked) if asked.isdigit() else 0)
    assert wait >= 0.05, "a server that asks for no wait is not flooded"


def test_the_time_limit_follows_what_replies_took_and_the_last_try_gets_all() -> None:
    seen = Latencies(timeout_s=120, requests=1000, concurrency=16)
    for _ in range(19):
        seen.add(2.0)
    assert seen.limit_s(0, last=False) == 120, "too few replies to judge by"
    seen.add(2.0)
    assert seen.limit_s(0, last=False) == 6
    assert [seen.limit_s(timeouts, last=False) for timeouts in range(8)] == [6, 6, 12, 24, 48, 96, 120, 120]
    assert seen.limit_s(0, last=True) == 120
    for _ in range(200):
        seen.add(0.001)
    assert seen.limit_s(0, last=False) == 0.5, "the newest count, down to a floor"


def test_the_time_limit_moves_in_steps_worth_telling_those_under_way() -> None:
    seen = Latencies(timeout_s=120, requests=1000, concurrency=16)
    assert [seen.add(2.0) for _ in range(20)] == [False] * 19 + [True]
    assert not any(seen.add(2.1) for _ in range(200)) and seen.limit_s(0, last=False) == 6
    assert sum(seen.add(4.0) for _ in range(200)) == 1 and seen.limit_s(0, last=False) == 12
    assert sum(seen.add(2.0) for _ in range(200)) == 1 and seen.limit_s(0, last=False) == 6


def test_a_whole_round_of_replies_is_wanted_before_any_is_called_slow() -> None:
    seen = Latencies(timeout_s=120, requests=1000, concurrency=64)
    for _ in range(63):
        seen.add(0.2)
    assert seen.limit_s(0, last=False) == 120
    seen.add(0.2)
    assert seen.limit_s(0, last=False) < 1


def test_the_free_server_with_the_fewest_under_way_is_chosen_and_the_last_one_avoided(clock: Clock) -> None:
    one, two = Server("one"), Server("two")
    one.under_way = 3
    assert choose([one, two], clock.now, None) is two
    assert choose([one, two], clock.now, two) is one
    assert choose([two], clock.now, two) is two
    two.failed(clock.now, silent=True, unreachable=True)
    assert choose([one, two], clock.now, None) is one
    assert choose([two], clock.now, None) is None


def test_a_few_failures_send_no_server_to_rest_but_many_in_a_row_do(clock: Clock) -> None:
    server = Server("one")
    for _ in range(100):
        for _ in range(7):
            server.failed(clock.now, silent=False)
        server.served()
    assert server.free(clock.now)
    for _ in range(8):
        server.failed(clock.now, silent=False)
    assert not server.free(clock.now)


def test_after_a_rest_one_request_tests_the_server_before_the_others_follow(clock: Clock) -> None:
    server = Server("one")
    server.served()
    server.failed(clock.now, silent=True, unreachable=True)
    clock.now = server.rests_until
    assert server.free(clock.now)
    server.under_way = 1
    assert not server.free(clock.now), "one is enough to find out"
    server.served()
    assert server.free(clock.now)


def test_what_was_under_way_before_a_rest_makes_it_no_longer(clock: Clock) -> None:
    server = Server("one")
    started = clock.now
    server.failed(started, silent=True, unreachable=True)
    until = server.rests_until
    clock.now += 0.1
    for _ in range(50):
        server.failed(started, silent=True, unreachable=True)
    assert server.rests_until == until
    assert not server.gone


@pytest.mark.parametrize(("served_before", "least_s", "most_s"), [(False, 0.5, 2), (True, 30, 100)])
def test_a_silent_server_is_gone_in_seconds_from_the_start_and_after_a_minute_later(
    clock: Clock, served_before: bool, least_s: float, most_s: float
) -> None:
    server, begun = Server("one"), clock.now
    if served_before:
        server.served()
    while not server.gone:
        server.failed(clock.now, silent=True, unreachable=True)
        clock.now = server.rests_until if not server.gone else clock.now
    assert least_s <= clock.now - begun <= most_s


def test_a_server_that_answers_only_errors_is_never_gone_and_rests_no_more_in_the_end(clock: Clock) -> None:
    server = Server("one")
    for _ in range(200):
        server.failed(clock.now, silent=False)
        clock.now = max(clock.now, server.rests_until)
    assert not server.gone
    server.under_way = 5
    server.failed(clock.now, silent=False)
    assert server.free(clock.now), "each request is left to its own tries"


def test_when_everything_meets_a_rate_limit_the_server_rests_for_as_long_as_it_asked(clock: Clock) -> None:
    server = Server("one")
    for _ in range(8):
        server.limited(clock.now, 20.0, most_s=600)
    assert not server.free(clock.now + 19.9)
    assert server.free(clock.now + 20.0)


def test_a_rate_limit_that_lasts_longer_than_allowed_makes_no_server_rest(clock: Clock) -> None:
    server = Server("one")
    for _ in range(20):
        server.limited(clock.now, 3600.0, most_s=600)
    assert server.free(clock.now), "each request has waited too long by itself"
    server = Server("two")
    begun = clock.now
    for _ in range(100):
        server.limited(clock.now, 200.0, most_s=600)
        clock.now = max(clock.now, server.rests_until)
    assert clock.now - begun <= 600
