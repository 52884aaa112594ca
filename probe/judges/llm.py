"""A language model as judge, behind any OpenAI-compatible server.

The share of verdicts that could not be had is part of the result: a turn whose judge failed is unscored with the
server's reason, and too many of them end the run instead of shrinking what the rate stands on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from probe.errors import JudgeError
from probe.judges.labels import Case, Verdict
from probe.judges.prompt import NO_VERDICT, PROMPT_VERSION, prompt, read_verdict, storable
from probe.servers import Client, Reply
from probe.servers.chat_replies import BAD_REPLY, content, cut_off, unusable, wants_other_names
from probe.settings import ServerSection

FAILED_AT_MOST = 0.2
"""The largest share of verdicts that may fail for reasons of the server or its settings: with more, those that failed
could turn most findings around, and the cause is one to mend."""
FEWEST_FOR_A_SHARE = 20
"""Below this many verdicts a share says nothing, and all are kept as they are."""

CUT_OFF = "cut_off"
"""The reply reached max_tokens before its verdict, as those of models that think at length do."""


class LlmJudge:
    """Asks for one verdict per case, at temperature 0. What a server returns is not the same on every machine.

    Raises:
        EngineError: no server can be reached, or it does not say which model it serves (on construction where the
            section names no model).
    """

    name = "llm"

    def __init__(self, server: ServerSection) -> None:
        self._client = Client(server)
        self._urls = ", ".join(server.urls)
        self._limits: dict[str, Any] = {"temperature": 0, "max_tokens": server.max_tokens}
        self._limits_of_reasoners: dict[str, Any] = {"max_completion_tokens": server.max_tokens}
        self.version = f"llm/{PROMPT_VERSION} {self._client.model}"
        self.calls = 0

    def stream(self, cases: Sequence[Case]) -> Iterator[tuple[int, Verdict]]:
        """(index, verdict) as replies come; `raw` is the whole reply, or what the server said when it failed.

        Raises:
            JudgeError: after the last verdict, when more than FAILED_AT_MOST of them failed.
        """
        failures: Counter[str] = Counter()
        said: dict[str, str] = {}
        for index, reply in self._replies(cases):
            verdict = self._verdict(reply)
            if verdict.unscored not in (None, NO_VERDICT):
                failures[str(verdict.unscored)] += 1
                said.setdefault(str(verdict.unscored), verdict.raw)
            yield index, verdict
        if len(cases) >= FEWEST_FOR_A_SHARE and failures.total() > FAILED_AT_MOST * len(cases):
            reasons = ", ".join(f"{reason} {count}" for reason, count in failures.most_common())
            example = " ".join(said[failures.most_common(1)[0][0]].split())[:200] or "no text"
            raise JudgeError(
                f"judge {self.version} at {self._urls}: {failures.total()} of {len(cases)} verdicts failed, more than "
                f"{FAILED_AT_MOST:.0%} ({reasons}; such as: {example}); mend the server or its settings ({CUT_OFF} wants "
                "a larger max_tokens), then run this again"
            )

    def _verdict(self, reply: Reply) -> Verdict:
        if reply.failure is not None or reply.body is None:
            return Verdict(None, reply.failure or BAD_REPLY, storable(reply.detail))
        verdict = read_verdict(content(reply.body) or "")
        return replace(verdict, unscored=CUT_OFF) if verdict.label is None and cut_off(reply.body) else verdict

    def _replies(self, cases: Sequence[Case]) -> Iterator[tuple[int, Reply]]:
        """Every case's reply once; starts over with what is missing if the server wants other names for its limits."""
        missing = set(range(len(cases)))
        while missing:
            asked = sorted(missing)
            bodies = [self._body(cases[index]) for index in asked]
            with closing(self._client.stream("/chat/completions", bodies, usable=unusable)) as replies:
                for position, reply in replies:
                    self.calls = self._client.calls
                    if self._limits is not self._limits_of_reasoners and wants_other_names(reply):
                        self._limits = self._limits_of_reasoners
                        break
                    missing.remove(asked[position])
                    yield asked[position], reply

    def _body(self, case: Case) -> dict[str, Any]:
        message = {"role": "user", "content": prompt(case)}
        return {"model": self._client.model, "messages": [message], **self._limits}
