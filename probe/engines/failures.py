"""Counts the requests that a server did not answer, and says at the end what to do about them."""

from __future__ import annotations

from collections import Counter

from probe.errors import EngineError
from probe.servers.replies import Reply
from probe.settings import ServerSection

PLAIN_SAMPLING = {"top_p": 1, "presence_penalty": 0, "frequency_penalty": 0}
PLAIN_EXTRAS = {"top_k": -1, "min_p": 0, "repetition_penalty": 1}
EXTRAS = {"skip_special_tokens": False, "add_special_tokens": False, **PLAIN_EXTRAS}
"""What vLLM and SGLang know beside `stop_token_ids`: special tokens stay as they are, and nothing shapes the
distribution but the temperature."""

# So many refusals and nothing else: what is wrong is wrong for every request.
_REFUSALS = 8


class Failures:
    """The failed requests of one stream."""

    def __init__(self, section: ServerSection) -> None:
        self.done = 0
        self._section = section
        self._counts: Counter[str] = Counter()
        self._first: dict[str, Reply] = {}

    def add(self, reply: Reply) -> None:
        """Raises EngineError where the server has refused everything so far."""
        reason = reply.failure or "bad_reply"
        self._counts[reason] += 1
        self._first.setdefault(reason, reply)
        if not self.done and self._counts["refused"] >= _REFUSALS:
            raise EngineError(f"the server refuses every request: {reply.detail}{self.hint(reply)}")

    def raise_any(self, requests: int) -> None:
        """Raises EngineError where any of the stream's `requests` failed."""
        if not self._counts:
            return
        reasons = "; ".join(
            f"{count} {reason}, such as: {self._first[reason].detail}{self.hint(self._first[reason])}"
            for reason, count in self._counts.most_common()
        )
        raise EngineError(
            f"{self._counts.total()} of {requests} requests failed ({reasons}); what came is stored, "
            "and the same command asks only for those"
        )

    def hint(self, reply: Reply) -> str:
        """What to do about a refusal, where its words tell."""
        if reply.failure != "refused":
            return ""
        names = [name for name in ("stop_token_ids", *EXTRAS) if name in reply.detail]
        if self._section.extras and names:
            return f"; it does not know {', '.join(names)}: set the server's `extras: false`"
        if reply.detail.startswith("404"):
            return "; is `model` what the server calls it, and does the url end in /v1?"
        if reply.detail.startswith(("401", "403")):
            return f"; the key is read from the environment variable {self._section.api_key_env}"
        return ""
