"""Chat models that builders and rewards ask in batches: behind OpenAI-compatible servers, or in this process.

A batch is asked again, with another seed, for the replies that could not be used. Each reply is stored as soon as it comes,
so a build that was killed sends no request twice, and a model in this process makes the same batches.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nextturn.data_builders.dialogue.replies import Parsed, Reply
from nextturn.data_builders.sections import Role, RoleSection
from nextturn.probe.command.errors import EngineError
from nextturn.probe.command.files import json_line, sha256_text
from nextturn.probe.data.messages import Message
from nextturn.probe.engines import client
from nextturn.probe.engines.base import Engine, Request
from nextturn.probe.engines.stored import Cache

COUNTS = ("calls", "input", "output")
UNREACHABLE = "unreachable"
"""Failure of requests after a server was given up."""
# A reply that could not be used at temperature 0 would come again.
_RETRY_TEMPERATURE = 0.5
# After so many failed requests with no reply between them, the cause concerns every request.
_MAX_FAILURES = 32


Prompted = tuple[tuple[Message, ...], int, float]
"""A chat that is sent: its messages, the seed and the temperature."""


def again_at(temperature: float, attempt: int) -> float:
    """Return the temperature of an attempt, counted from 0: above 0 after the first."""
    return max(temperature, _RETRY_TEMPERATURE if attempt else 0.0)


@dataclass(frozen=True)
class Ask:
    """A reply that is wanted.

    Attributes:
        messages: The chat; the last message is the user's.
        read: Parses a reply and decides whether it can be used.
        seed: Returns the seed of an attempt, counted from 0.
        tried: Attempts before this one.
    """

    messages: tuple[Message, ...]
    read: Callable[[Reply], Parsed]
    seed: Callable[[int], int]
    tried: int = 0

    def prompted(self, attempt: int, temperature: float) -> Prompted:
        """Return what is sent in an attempt; a further one has another seed and a temperature above 0."""
        attempt += self.tried
        return self.messages, self.seed(attempt), again_at(temperature, attempt)


@dataclass
class Answer:
    """The outcome of an `Ask`: a usable reply in `parsed`, or None and the reason in `missing`, as ROLE_REASON.

    Attributes:
        detail: The message of a server that failed.
        unusable: The replies before it that could not be used.
        calls: {"ROLE.calls", "ROLE.input", "ROLE.output"}: the number of replies and their tokens.
    """

    parsed: Parsed | None = None
    missing: str = ""
    detail: str = ""
    unusable: list[Parsed] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)


class ChatModel:
    """A model in a role."""

    def __init__(self, role: Role, section: RoleSection) -> None:
        self.role = role
        self.section = section

    def ask(self, asks: Sequence[Ask], tries: int, limit_s: float | None = None) -> list[Answer]:
        """Ask for usable replies; each further attempt has another seed and a temperature above 0.

        Args:
            tries: The most attempts for each.
            limit_s: Seconds for all attempts together; replies that are missing then fail. A server that cannot be
                reached is no error then, but the failure of what is missing.

        Raises:
            EngineError: A server cannot be reached, or all requests fail (without `limit_s`).
        """
        answers = [Answer() for _ in asks]
        wanted, ends = list(range(len(asks))), None if limit_s is None else time.monotonic() + limit_s
        for attempt in range(tries if asks else 0):
            chats = [asks[index].prompted(attempt, self.section.temperature) for index in wanted]
            again = []
            for index, reply in zip(wanted, self.replies(chats, ends), strict=True):
                answer = answers[index]
                answer.calls.update(reply.counts(self.role))
                if reply.failure:  # its engine has tried it several times already
                    answer.missing, answer.detail = f"{self.role}_{reply.failure}", reply.detail
                    continue
                parsed = asks[index].read(reply)
                if not parsed.unusable:
                    answer.parsed = parsed
                    continue
                answer.unusable.append(parsed)
                answer.missing = f"{self.role}_{parsed.unusable}"
                again.append(index)
            if not (wanted := again):
                break
        return answers

    def replies(self, chats: Sequence[Prompted], ends: float | None = None) -> list[Reply]:
        """Return what the model replies to each chat.

        Args:
            ends: When to stop waiting for servers, in seconds of the monotonic clock.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Give back memory, processes, files and connections."""


class ServerModel(ChatModel):
    """A model behind servers, asked through /chat/completions, which needs no tokenizer here."""

    def __init__(self, role: Role, section: RoleSection, folder: Path | None = None) -> None:
        super().__init__(role, section)
        assert section.server is not None, "checked with the recipe"
        self.server = section.server
        self._client = client.Client(self.server, max_failures=_MAX_FAILURES)
        self._cache = None if folder is None else Cache(folder / f"{role}.jsonl")

    def close(self) -> None:
        self._client.close()
        if self._cache is not None:
            self._cache.close()

    def replies(self, chats: Sequence[Prompted], ends: float | None = None) -> list[Reply]:
        asking = asyncio.run_coroutine_threadsafe(self._fetch_all(chats, ends), client.event_loop())
        try:
            replies, error = asking.result()
        except BaseException:
            asking.cancel()
            raise
        if error is not None and ends is None:
            raise error
        return replies

    async def _fetch_all(self, chats: Sequence[Prompted], ends: float | None) -> tuple[list[Reply], EngineError | None]:
        """Return the replies, and the error that ended the asking."""
        tasks = [asyncio.ensure_future(self._fetch(*chat)) for chat in chats]
        try:
            with progress(len(tasks), self.role) as advance:
                for task in tasks:
                    task.add_done_callback(lambda _: advance())
                left = None if ends is None else max(0.0, ends - time.monotonic())
                await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raised = [None if task.cancelled() else task.exception() for task in tasks]
        error = next((each for each in raised if isinstance(each, EngineError)), None)
        # A request that was cut off ran into the time limit, unless an error ended the asking.
        cut_off = Reply("", failure="timeout") if error is None else Reply("", failure=UNREACHABLE, detail=str(error))
        lost = [task.cancelled() or isinstance(each, EngineError) for task, each in zip(tasks, raised, strict=True)]
        return [cut_off if is_lost else task.result() for task, is_lost in zip(tasks, lost, strict=True)], error

    async def _fetch(self, messages: tuple[Message, ...], seed: int, temperature: float) -> Reply:
        """Return the server's reply, which is stored first."""
        switches = self.section.switches
        body = {
            "model": self.server.model,
            "messages": list(messages),
            "seed": seed & 0x7FFFFFFF,
            "max_tokens": self.section.max_tokens,
            "temperature": temperature,
            **client.PLAIN_SAMPLING,
            **(client.PLAIN_EXTRAS if self.server.extras else {}),
            **({"chat_template_kwargs": switches} if switches else {}),
        }
        key = sha256_text(json_line(body))
        if self._cache is not None and (stored := self._cache.get(key)) is not None:
            return Reply(**{name: value for name, value in stored.items() if name != "key"})
        sent = await self._client.request(client.CHAT, body, client.unusable)
        if sent.failure is not None or sent.body is None:
            return Reply("", failure=sent.failure or client.BAD_REPLY, detail=sent.detail)
        reply = Reply(
            text=client.content(sent.body) or "",
            prompt_tokens=client.counted_tokens(sent.body, "prompt") or 0,
            tokens=client.counted_tokens(sent.body, "completion") or 0,
            cut=client.cut_off(sent.body),
        )
        if self._cache is not None:
            self._cache.keep({key: vars(reply)})
        return reply


class LocalWeights:
    """The weights of a model in this process, loaded for the first reply.

    Attributes:
        chat: Its chat template.
        engine: Its engine; completions are stored if there is a folder.

    Raises:
        BadInput: The model, or the package that runs it, cannot be found.
    """

    def __init__(self, section: RoleSection, seed: int, where: str, folder: Path | None = None) -> None:
        from nextturn.probe.command.sections import ProbeSection
        from nextturn.probe.engines import open_engine
        from nextturn.probe.engines.stored import StoredEngine
        from nextturn.probe.models.folders import load_chat, model_info, resolve

        assert section.model is not None, "checked with the recipe"
        model = resolve(section.model)
        shared = {name: getattr(section, name) for name in ("engine", "server", "vllm", "dtype", "batch_tokens")}
        self.chat = load_chat(model, section.switches)
        self._open = ExitStack()
        self.engine: Engine = open_engine(
            model, self.chat.tokenizer, ProbeSection(sets={}, seed=seed, **shared), where=where
        )
        self._open.callback(self.engine.close)
        made: Engine | StoredEngine = self.engine
        if folder is not None:
            made = StoredEngine(self.engine, folder, model_info(model, self.chat))
            self._open.callback(made.close)
        self.stream, self.score = made.stream, made.score

    def close(self) -> None:
        self._open.close()


class LocalModel(ChatModel):
    """A model in this process, asked with whole batches."""

    def __init__(self, role: Role, section: RoleSection, weights: LocalWeights) -> None:
        super().__init__(role, section)
        self.weights = weights

    def replies(self, chats: Sequence[Prompted], ends: float | None = None) -> list[Reply]:
        chat, most = self.weights.chat, self.section.max_tokens
        requests = [
            Request(chat.prompt_ids(messages), most, chat.answer_stop_ids, temperature, seed)
            for messages, seed, temperature in chats
        ]
        replies: list[Reply] = [Reply("")] * len(requests)
        with progress(len(requests), self.role) as advance:
            for index, made in self.weights.stream(requests):
                length = len(requests[index].prompt_ids)
                replies[index] = Reply(chat.whole_reply(made.text), length, made.tokens, made.finish == "length")
                advance()
        return replies

    def close(self) -> None:
        self.weights.close()


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[], object]]:
    """Show a progress bar with rate and remaining time on a terminal; call what this yields after each step."""
    from tqdm import tqdm

    with tqdm(total=total, desc=what, unit=" replies", leave=False) as bar:
        yield bar.update


def open_model(
    role: Role, section: RoleSection, seed: int, where: str, folder: Path | None = None
) -> AbstractContextManager[ChatModel]:
    """Open a model until the end of a `with` block.

    Args:
        where: The recipe section, for messages.
        folder: Stores the replies; those of an earlier run are reused.

    Raises:
        BadInput: The server's section or the model cannot be used. No request is sent, no weights are loaded.
    """
    if section.server is not None:
        return closing(ServerModel(role, section, folder))
    return closing(LocalModel(role, section, LocalWeights(section, seed, where, folder and folder / role)))
