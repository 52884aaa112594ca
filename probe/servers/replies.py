"""What a model server's answer means, and the connection that it comes over.

A key goes to the servers of the recipe only: redirects are not followed, and it is taken out of whatever a server
says before anybody sees it.
"""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from probe.errors import BadInput
from probe.servers.pacing import limit_wait_s

if TYPE_CHECKING:
    import ssl

    import httpx

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
