"""Ask chat models for replies, read each reply, and ask again with another seed for those that cannot be used.

Data builders, judges, simulated users and rewards all ask here. A model is behind servers (`ChatServer`) or has an
engine that takes token ids (`EngineModel`). Each reply is stored as soon as it comes, so a build that was killed sends no
request twice, and a model in this process makes the same batches.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from nextturn.probe.command.errors import EngineError
from nextturn.probe.command.files import json_line, sha256_text
from nextturn.probe.command.sections import RoleSection, ServerSection
from nextturn.probe.command.terminal import collected
from nextturn.probe.data.messages import Message
from nextturn.probe.engines import client, open_engine
from nextturn.probe.engines.base import Completion, Engine, Request
from nextturn.probe.engines.stored import Cache, Row, StoredEngine
from nextturn.probe.models.folders import load_chat, model_info, resolve

COUNTS = ("calls", "input", "output")
UNREACHABLE, TIMEOUT = "unreachable", "timeout"
"""Failures of requests: a server was given up, or the time limit of all attempts was reached."""
# A reply that could not be used at temperature 0 would come again.
_RETRY_TEMPERATURE = 0.5
# After so many failed requests with no reply between them, the cause concerns every request.
_MAX_FAILURES = 32


@dataclass(frozen=True)
class Reply:
    """A model's reply in `text`, or the reason in `failure` why there is none.

    Attributes:
        prompt_tokens: Tokens of the prompt, as counted where the model runs; 0 if a server does not tell.
        tokens: Tokens of the reply, likewise.
        cut: Whether the reply reached its token limit.
        failure: Empty, or a reason of `client.ServerReply`: refused, server_error, timeout, bad_reply, ...
        detail: The message of a server that failed.
    """

    text: str
    prompt_tokens: int = 0
    tokens: int = 0
    cut: bool = False
    failure: str = ""
    detail: str = ""


class Reading(Protocol):
    """What a reply says. `unusable` is the reason why it cannot be used, or ""."""

    @property
    def unusable(self) -> str: ...


R = TypeVar("R", bound=Reading)

Prompted = tuple[tuple[Message, ...], int | None, float]
"""A chat that is sent: its messages, the seed (None lets a server choose) and the temperature."""


@dataclass(frozen=True)
class Ask(Generic[R]):
    """A reply that is wanted.

    Attributes:
        messages: The chat; the last message is the user's.
        read: Reads a reply and decides whether it can be used.
        seed: Returns the seed of an attempt, counted from 0.
        tried: Attempts before this one.
    """

    messages: tuple[Message, ...]
    read: Callable[[Reply], R]
    seed: Callable[[int], int | None]
    tried: int = 0

    def prompted(self, attempt: int, temperature: float) -> Prompted:
        """Return what is sent in an attempt; a further one has another seed and a temperature above 0."""
        attempt += self.tried
        return self.messages, self.seed(attempt), again_at(temperature, attempt)


def again_at(temperature: float, attempt: int) -> float:
    """Return the temperature of an attempt, counted from 0: above 0 after the first."""
    return max(temperature, _RETRY_TEMPERATURE if attempt else 0.0)


@dataclass
class Answer(Generic[R]):
    """The outcome of an `Ask`: a usable reply in `parsed`, or None and the reason in `missing`.

    Attributes:
        detail: The message of a server that failed.
        unusable: The replies before it that could not be used.
        calls: {"ROLE.calls", "ROLE.input", "ROLE.output"}: the number of replies and their tokens.
    """

    parsed: R | None = None
    missing: str = ""
    detail: str = ""
    unusable: list[R] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)


class ChatModel(Protocol):
    """A model in a role, such as "assistant".

    Attributes:
        temperature: The temperature of a first attempt.
    """

    role: str
    temperature: float

    def replies(self, chats: Sequence[Prompted], ends: float | None = None) -> Iterator[tuple[int, Reply]]:
        """Yield (index of the chat, reply) once for every chat, in any order.

        Args:
            ends: When to stop waiting for servers, in seconds of the monotonic clock.

        Raises:
            EngineError: A server cannot be reached, or all requests fail (without `ends`).
        """
        ...

    def close(self) -> None:
        """Give back memory, processes, files and connections."""


def ask(model: ChatModel, asks: Sequence[Ask[R]], tries: int, limit_s: float | None = None) -> list[Answer[R]]:
    """Return the answers in the order of the asks, see `answers`."""
    return collected(answers(model, asks, tries, limit_s), len(asks), model.role, unit=" replies", leave=False)


def answers(
    model: ChatModel, asks: Sequence[Ask[R]], tries: int, limit_s: float | None = None
) -> Iterator[tuple[int, Answer[R]]]:
    """Yield (index, answer) as soon as a reply can be used, fails, or was the last attempt.

    Args:
        tries: The most attempts for each; a further one has another seed and a temperature above 0.
        limit_s: Seconds for all attempts together; replies that are missing then fail. A server that cannot be reached
            is no error then, but the failure of what is missing.

    Raises:
        EngineError: A server cannot be reached, or all requests fail (without `limit_s`).
    """
    ends = None if limit_s is None else time.monotonic() + limit_s
    made: list[Answer[R]] = [Answer() for _ in asks]
    wanted = list(range(len(asks)))
    for attempt in range(tries):
        again = []
        chats = [asks[index].prompted(attempt, model.temperature) for index in wanted]
        for position, reply in model.replies(chats, ends) if chats else ():
            index, answer = wanted[position], made[wanted[position]]
            counts = zip(COUNTS, (1, reply.prompt_tokens, reply.tokens), strict=True)
            answer.calls.update({f"{model.role}.{name}": count for name, count in counts})
            if reply.failure:  # its engine has tried it several times already
                answer.missing, answer.detail = reply.failure, reply.detail
            elif not (read := asks[index].read(reply)).unusable:
                answer.parsed = read
            else:
                answer.unusable.append(read)
                answer.missing = read.unusable
                if attempt + 1 < tries:
                    again.append(index)
                    continue
            yield index, answer
        wanted = sorted(again)


class ChatServer:
    """A model behind servers, asked through /chat/completions, which needs no tokenizer here.

    Args:
        settings: What every request holds besides messages, seed and temperature.
        folder: Stores the replies; those of an earlier run are reused.
    """

    def __init__(
        self, role: str, server: ServerSection, temperature: float, settings: Row, folder: Path | None = None,
        max_failures: int | None = None,
    ) -> None:  # fmt: skip
        self.role, self.temperature, self._settings = role, temperature, settings
        self.client = client.Client(server, max_failures)
        self._cache = None if folder is None else Cache(folder / f"{role}.jsonl")

    def close(self) -> None:
        self.client.close()
        if self._cache is not None:
            self._cache.close()

    def replies(self, chats: Sequence[Prompted], ends: float | None = None) -> Iterator[tuple[int, Reply]]:
        """Yield the replies: stored ones first, then those of the servers as they come, and failures last."""
        bodies = [self._body(*chat) for chat in chats]
        keys = [sha256_text(json_line(body)) for body in bodies]
        failed: dict[str, Reply] = {}
        lost = Reply("", failure=TIMEOUT)  # what is missing at the end

        def make(indices: list[int]) -> Iterator[tuple[int, Row]]:
            wanted = [bodies[index] for index in indices]
            for position, sent in self.client.stream(client.CHAT, wanted, client.unusable, ends):
                reply = _reply(sent)
                if reply.failure:
                    failed[keys[indices[position]]] = reply
                else:
                    yield position, vars(reply)

        rows = make(list(range(len(chats)))) if self._cache is None else self._cache.fill(keys, make)
        missing = dict.fromkeys(range(len(chats)))
        try:
            for index, row in rows:
                del missing[index]
                yield index, Reply(**{name: value for name, value in row.items() if name != "key"})
        except (TimeoutError, EngineError) as error:
            if ends is None:
                raise
            if isinstance(error, EngineError):
                lost = Reply("", failure=UNREACHABLE, detail=str(error))
        yield from ((index, failed.get(keys[index], lost)) for index in missing)

    def _body(self, messages: tuple[Message, ...], seed: int | None, temperature: float) -> Row:
        seeded = {} if seed is None else {"seed": seed & 0x7FFFFFFF}
        limit = {"max_tokens": self._settings["max_tokens"], "temperature": temperature}
        return {"model": self.client.model, "messages": list(messages), **seeded, **limit, **self._settings}


def _reply(sent: client.ServerReply) -> Reply:
    if sent.failure is not None or sent.body is None:
        return Reply("", failure=sent.failure or client.BAD_REPLY, detail=sent.detail)
    prompt, made = (client.counted_tokens(sent.body, of) or 0 for of in ("prompt", "completion"))
    choice = sent.body["choices"][0]
    return Reply(choice["message"].get("content") or "", prompt, made, choice.get("finish_reason") == "length")


class EngineModel:
    """A model that an engine runs, asked with whole batches. Its weights are loaded for the first reply.

    Attributes:
        chat: Its chat template.
        engine: Its engine; completions are stored if there is a folder.

    Raises:
        BadInput: The model, or the package that runs it, cannot be found.
    """

    def __init__(self, role: str, section: RoleSection, seed: int, where: str, folder: Path | None = None) -> None:
        assert section.model is not None, "checked with the recipe"
        self.role, self.temperature, self.max_tokens = role, section.temperature, section.max_tokens
        model = resolve(section.model)
        self.chat = load_chat(model, section.switches)
        self._open = ExitStack()
        self.engine: Engine | StoredEngine = self._open.enter_context(
            closing(open_engine(model, self.chat.tokenizer, section, seed, where=where))
        )
        if folder is not None:
            stored = StoredEngine(self.engine, folder, model_info(model, self.chat))
            self.engine = self._open.enter_context(closing(stored))

    def replies(self, chats: Sequence[Prompted], ends: float | None = None) -> Iterator[tuple[int, Reply]]:
        chat = self.chat
        limits = self.max_tokens, chat.answer_stop_ids
        requests = [Request(chat.prompt_ids(of), *limits, temperature, seed or 0) for of, seed, temperature in chats]
        for index, made in self.engine.stream(requests):
            length = len(requests[index].prompt_ids)
            yield index, Reply(chat.whole_reply(made.text), length, made.tokens, made.finish == "length")

    def complete(self, requests: Sequence[Request], what: str) -> list[Completion]:
        """Return one completion per request, under a progress bar."""
        return collected(self.engine.stream(requests), len(requests), what, leave=False)

    def close(self) -> None:
        self._open.close()


def open_model(
    role: str, section: RoleSection, seed: int, where: str, folder: Path | None = None
) -> AbstractContextManager[ChatModel]:
    """Open a model until the end of a `with` block.

    Args:
        where: The recipe section, for messages.
        folder: Stores the replies; those of an earlier run are reused.

    Raises:
        BadInput: The server's section or the model cannot be used. No request is sent, no weights are loaded.
    """
    server = section.server
    if server is None:
        return closing(EngineModel(role, section, seed, where, folder and folder / role))
    settings: dict[str, Any] = {"max_tokens": section.max_tokens, **client.PLAIN_SAMPLING}
    settings |= client.PLAIN_EXTRAS if server.extras else {}
    settings |= {"chat_template_kwargs": section.switches} if section.switches else {}
    return closing(ChatServer(role, server, section.temperature, settings, folder, _MAX_FAILURES))
