"""When a request to a model server is sent, where to, and how long it may take: the rules, without any network.

A request that failed waits by itself, so the others go on. A server rests only when it fails many requests in a
row or cannot be reached; after a rest one request tests it before the others follow, so that an outage costs few
tries and a rate limit is not met by everything that waits.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

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
