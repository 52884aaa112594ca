"""A model behind OpenAI-compatible servers, asked through /chat/completions: no tokenizer is needed here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_builders.dialogue.open_stream import Line, OpenStream
from data_builders.dialogue.settings import Role, RoleSection
from data_builders.dialogue.speaker import Ask, Results, Said, Ticket
from data_builders.dialogue.stored import StoredReplies
from data_builders.tokens import estimated_tokens
from probe.engines.failures import PLAIN_EXTRAS, PLAIN_SAMPLING, Failures
from probe.errors import EngineError
from probe.judges.prompt import storable
from probe.servers.chat_replies import BAD_REPLY, content, cut_off, unusable, wants_other_names
from probe.servers.replies import Reply
from probe.sets import Message

# So many failures with no reply between them: what is wrong is wrong for every request.
_FAILURES_IN_A_ROW = 32


class ServerSpeaker:
    """One role's model. The same section always gives the same bodies, whatever else is asked."""

    batched = False

    def __init__(self, role: Role, section: RoleSection, line: Line) -> None:
        assert section.server is not None and section.server.model is not None, "checked with the recipe"
        self.role = role
        self.section = section
        self.line = line
        self.server = section.server
        self._reasoner = False
        self._failures = 0
        self._stored: StoredReplies | None = None
        self._stream: OpenStream | None = None

    def begin(self, folder: Path | None, results: Results) -> None:
        self._results = results
        if folder is not None:
            identity = f"{self.server.model} {self.section.enable_thinking}"
            self._stored = StoredReplies(folder / f"{self.role}.jsonl", identity)

    def submit(self, ticket: Ticket, ask: Ask) -> None:
        if self._stored is not None and (said := self._stored.take(ask)) is not None:
            self._results.put((ticket, said))
            return
        if self._stream is None:  # not before something has to be asked
            self._stream = OpenStream(self.line, self.server, "/chat/completions", unusable, self._results.put)
        self._send(self._stream, ticket, ask)

    def work(self) -> None:
        raise NotImplementedError("the replies of a server come by themselves")

    def end(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._stored is not None:
            self._stored.close()
            self._stored = None

    def _send(self, stream: OpenStream, ticket: Ticket, ask: Ask) -> None:
        as_reasoner = self._reasoner

        def received(reply: Reply) -> None:
            """In the stream's thread."""
            if not as_reasoner and wants_other_names(reply):
                self._reasoner = True
                self._send(stream, ticket, ask)
                return
            said = self._said(ask, reply)
            self._count_failures(said, reply)
            if self._stored is not None and not said.failure:
                self._stored.keep(ask, said)
            self._results.put((ticket, said))

        stream.send(self._body(ask, as_reasoner), received)

    def _body(self, ask: Ask, as_reasoner: bool) -> dict[str, Any]:
        limits: dict[str, Any] = {"max_completion_tokens": ask.max_tokens}
        if not as_reasoner:
            limits = {"max_tokens": ask.max_tokens, "temperature": ask.temperature, **PLAIN_SAMPLING}
            limits |= PLAIN_EXTRAS if self.server.extras else {}
        thinking = self.section.enable_thinking
        template = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}
        seed = ask.seed & 0x7FFFFFFF
        return {"model": self.server.model, "messages": list(ask.messages), "seed": seed, **limits, **template}

    def _said(self, ask: Ask, reply: Reply) -> Said:
        if reply.failure is not None or reply.body is None:
            return Said("", failure=reply.failure or BAD_REPLY, detail=storable(reply.detail))
        usage = reply.body.get("usage")
        counts = usage if isinstance(usage, dict) else {}
        text = storable(content(reply.body) or "")
        return Said(
            text=text,
            prompt_tokens=_counted(counts.get("prompt_tokens"), ask.messages),
            tokens=_counted(counts.get("completion_tokens"), [{"content": text}]),
            cut=cut_off(reply.body),
        )

    def _count_failures(self, said: Said, reply: Reply) -> None:
        """Raises EngineError where nothing but failures has come for a while."""
        self._failures = self._failures + 1 if said.failure else 0
        if self._failures >= _FAILURES_IN_A_ROW:
            hint = Failures(self.server).hint(reply)
            raise EngineError(
                f"{self.role}: the last {self._failures} requests to {', '.join(self.server.urls)} all failed (last: "
                f"{said.failure}, {said.detail}{hint}); what came is stored, and the same command goes on from there"
            )


def _counted(given: Any, messages: Sequence[Message]) -> int:
    return given if isinstance(given, int) and given >= 0 else estimated_tokens(messages)
