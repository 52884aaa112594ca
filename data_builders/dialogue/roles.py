"""The models of a recipe in their roles: `await roles["assistant"].ask(messages, ...)`, wherever a model runs.

Callers are coroutines, many of which `Roles.run` runs at once. What a coroutine asks depends on its own replies only, so the
order in which replies come changes nothing. Servers are asked in a thread of their own (`probe.client`). A model in this
process is asked when no coroutine can go on without it, so its batches are full, and the same in every run. Each reply is
stored as soon as it comes, so a build that was killed sends no request twice.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from nextturn.data_builders.dialogue.replies import Parsed, Reply
from nextturn.data_builders.recipe import Dialogue, Role, RoleSection, servers
from nextturn.probe import client
from nextturn.probe.conversations import Message
from nextturn.probe.engines.base import Request
from nextturn.probe.files import append_rows, json_line, open_append, read_jsonl, sha256_text

T = TypeVar("T")
Item = TypeVar("Item")
COUNTS = ("calls", "input", "output")
# A reply that could not be used at temperature 0 would come again.
_RETRY_TEMPERATURE = 0.5
# After so many failed requests with no reply between them, the cause concerns every request.
_MAX_FAILURES = 32


@dataclass
class Answer:
    """The outcome of `RoleModel.ask`: a usable reply in `parsed`, or None and the reason in `missing`, as ROLE_REASON.

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


class RoleModel:
    """A model in a role. `on_reply` is called with each reply, also with stored ones."""

    def __init__(self, role: Role, section: RoleSection) -> None:
        self.role = role
        self.section = section
        self.on_reply: Callable[[Reply], None] = lambda reply: None

    async def ask(
        self,
        messages: tuple[Message, ...],
        read: Callable[[Reply], Parsed],
        seed: Callable[[int], int],
        tries: int,
        again: Callable[[tuple[Message, ...], str, str], tuple[Message, ...]] = lambda messages, text, reason: messages,
    ) -> Answer:
        """Ask for a usable reply; each further attempt has another seed and a temperature above 0.

        Args:
            read: Parse a reply and decide whether it can be used.
            seed: Return the seed of an attempt, counted from 0.
            tries: The most attempts.
            again: Return the messages of the next attempt from the first messages, the unusable text and the reason.
        """
        attempt_messages = messages
        answer = Answer()
        for attempt in range(tries):
            temperature = max(self.section.temperature, _RETRY_TEMPERATURE if attempt else 0.0)
            reply = await self.reply(attempt_messages, seed(attempt), temperature)
            self.on_reply(reply)
            answer.calls.update(reply.counts(self.role))
            if reply.failure:  # its engine has tried it several times already
                answer.missing, answer.detail = f"{self.role}_{reply.failure}", reply.detail
                return answer
            parsed = read(reply)
            if not parsed.unusable:
                answer.parsed = parsed
                return answer
            answer.unusable.append(parsed)
            answer.missing = f"{self.role}_{parsed.unusable}"
            attempt_messages = again(messages, parsed.text, parsed.unusable)
        return answer

    async def reply(self, messages: tuple[Message, ...], seed: int, temperature: float) -> Reply:
        """Return what the model replies to a chat."""
        raise NotImplementedError

    def open(self, folder: Path | None) -> None:
        """Begin a run: store replies in `folder` and reuse those stored there."""

    def close(self) -> None:
        """End a run."""

    def release(self) -> None:
        """Give back memory, processes and connections."""


class ServerRole(RoleModel):
    """A model behind OpenAI-compatible servers, asked through /chat/completions, which needs no tokenizer here."""

    def __init__(self, role: Role, section: RoleSection, pool: client.ServerPool) -> None:
        super().__init__(role, section)
        assert section.server is not None, "checked with the recipe"
        self.server = section.server
        self.under_way = 0
        self._client = client.Client(self.server, pool, _MAX_FAILURES)
        self._file: FileIO | None = None
        self._stored: dict[str, dict[str, Any]] = {}

    def open(self, folder: Path | None) -> None:
        if folder is not None:
            path = folder / f"{self.role}.jsonl"
            self._file = open_append(path)
            self._stored = {row["key"]: row["reply"] for _, row in read_jsonl(path)}

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def release(self) -> None:
        self._client.close()

    async def reply(self, messages: tuple[Message, ...], seed: int, temperature: float) -> Reply:
        thinking = self.section.enable_thinking
        body = {
            "model": self.server.model,
            "messages": list(messages),
            "seed": seed & 0x7FFFFFFF,
            "max_tokens": self.section.max_tokens,
            "temperature": temperature,
            **client.PLAIN_SAMPLING,
            **(client.PLAIN_EXTRAS if self.server.extras else {}),
            **({} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}),
        }
        key = sha256_text(json_line(body))
        if (stored := self._stored.pop(key, None)) is not None:  # each request is made once
            return Reply(**stored)
        self.under_way += 1
        try:
            fetching = asyncio.run_coroutine_threadsafe(self._fetch(key, body), client.event_loop())
            return await asyncio.wrap_future(fetching)
        finally:
            self.under_way -= 1

    async def _fetch(self, key: str, body: dict[str, Any]) -> Reply:
        """Return the server's reply, which is stored first. Runs in the thread of the client."""
        sent = await self._client.request(client.CHAT, body, client.unusable)
        if sent.failure is not None or sent.body is None:
            return Reply("", failure=sent.failure or client.BAD_REPLY, detail=sent.detail)
        usage = sent.body.get("usage")
        tokens = usage if isinstance(usage, dict) else {}
        reply = Reply(
            text=client.content(sent.body) or "",
            prompt_tokens=tokens.get("prompt_tokens") or 0,
            tokens=tokens.get("completion_tokens") or 0,
            cut=client.cut_off(sent.body),
        )
        if self._file is not None:
            append_rows(self._file, [{"key": key, "reply": vars(reply)}])
        return reply


class LocalModel:
    """A model in this process that several roles may share; its weights are loaded for the first reply.

    Raises:
        ModelError: The model cannot be found.
    """

    def __init__(self, section: RoleSection, seed: int, where: str) -> None:
        from nextturn.probe.chat import Chat
        from nextturn.probe.engines import open_engine
        from nextturn.probe.models import load_tokenizer, model_info, resolve
        from nextturn.probe.settings import ProbeSection

        assert section.model is not None and section.engine != "openai", "checked with the recipe"
        folder = resolve(section.model)
        tokenizer = load_tokenizer(folder)
        shared = {name: getattr(section, name) for name in ("engine", "vllm", "dtype", "batch_tokens")}
        self.chat = Chat(tokenizer, section.enable_thinking)
        self.engine = open_engine(folder, tokenizer, ProbeSection(sets={}, seed=seed, **shared), where=where)
        self.info = model_info(folder, self.chat)


class EngineRole(RoleModel):
    """A model in this process. Its batches, and so its replies, are the same however often a build is killed."""

    def __init__(self, role: Role, section: RoleSection, model: LocalModel) -> None:
        super().__init__(role, section)
        self.model = model
        self.waiting: list[tuple[Request, asyncio.Future[Reply]]] = []

    def open(self, folder: Path | None) -> None:
        from nextturn.probe.engines.stored import StoredEngine

        model = self.model
        self.waiting.clear()
        self._stored = StoredEngine(model.engine, folder / self.role, model.info) if folder is not None else None

    def close(self) -> None:
        if self._stored is not None:
            self._stored.close()

    def release(self) -> None:
        self.model.engine.close()

    async def reply(self, messages: tuple[Message, ...], seed: int, temperature: float) -> Reply:
        chat = self.model.chat
        request = Request(chat.prompt_ids(messages), self.section.max_tokens, chat.stop_ids, temperature, seed)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        return await future

    def make_replies(self) -> None:
        """Make all replies that are waited for, in an order that does not depend on who asked first."""
        waiting, self.waiting = sorted(self.waiting, key=lambda pair: (pair[0].prompt_ids, pair[0].seed)), []
        requests = [request for request, _ in waiting]
        for index, made in (self._stored or self.model.engine).stream(requests):
            if not (future := waiting[index][1]).done():
                length = len(requests[index].prompt_ids)
                future.set_result(Reply(made.text, length, made.tokens, made.finish == "length"))


class _IdleSelector(selectors.DefaultSelector):
    """A selector that calls `when_idle` before its event loop waits, which means that no coroutine can go on by itself.

    `when_idle` returns True if it gave the loop something to do.
    """

    when_idle: Callable[[], bool] = staticmethod(lambda: False)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # A loop with callbacks to run asks for events without waiting: with a timeout of 0.
        return super().select(0 if timeout != 0 and self.when_idle() else timeout)


_KEYS = {"assistant": "policy", "replay": "model"}  # recipe keys that differ from their roles
_MODEL_KEYS = ("engine", "model", "dtype", "batch_tokens", "vllm", "enable_thinking")


class Roles(dict[Role, RoleModel]):
    """The models by role. Roles with the same servers share their slots, roles with the same local model share it.

    Args:
        where: The recipe section that holds those of the roles.
        on_reply: Called with each reply.

    Raises:
        BadInput: A server's section or a model cannot be used. No request is sent, no weights are loaded.
    """

    def __init__(
        self,
        sections: Mapping[Role, RoleSection],
        seed: int,
        where: str,
        on_reply: Callable[[Reply], None] = lambda reply: None,
    ) -> None:
        slots: Counter[tuple[str, ...]] = Counter()
        for server in servers(sections.values()):
            slots[tuple(sorted(server.urls))] += server.concurrency
        pools = {urls: client.ServerPool(urls, count) for urls, count in slots.items()}
        models: dict[tuple[object, ...], LocalModel] = {}
        for role, section in sections.items():
            if section.server is not None:
                self[role] = ServerRole(role, section, pools[tuple(sorted(section.server.urls))])
            else:
                key = tuple(getattr(section, name) for name in _MODEL_KEYS)
                if key not in models:
                    models[key] = LocalModel(section, seed, f"{where}.{_KEYS.get(role, role)}")
                self[role] = EngineRole(role, section, models[key])
            self[role].on_reply = on_reply

    def run(
        self,
        jobs: Iterable[Coroutine[Any, Any, T]],
        at_once: int,
        take: Callable[[T], object] = lambda result: None,
        folder: Path | None = None,
    ) -> None:
        """Run `jobs`, at most `at_once` at a time; `take` gets their results in the order of the jobs.

        Args:
            folder: Stores the replies; those of an earlier run are reused.

        Raises:
            EngineError: A server cannot be reached, or all requests fail. The first error of a job ends the run.
        """
        selector = _IdleSelector()
        with ExitStack() as stack:
            for model in self.values():
                model.open(folder)
                stack.callback(model.close)
            runner = stack.enter_context(asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)))
            running = runner.get_loop().create_task(_run(jobs, at_once, take))
            # An engine may run a loop of its own, so replies are made while this loop stands still.
            while (engine := runner.run(self._next_engine(running, selector))) is not None:
                engine.make_replies()
            error = running.exception()
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if error is not None:
                raise error from None

    async def _next_engine(self, running: asyncio.Task[None], selector: _IdleSelector) -> EngineRole | None:
        """Return the local model with most to do once nothing goes on without it, or None when `running` is done."""
        engines = [model for model in self.values() if isinstance(model, EngineRole)]
        servers = [model for model in self.values() if isinstance(model, ServerRole)]
        idle = asyncio.get_running_loop().create_future()

        def when_idle() -> bool:
            if idle.done() or not any(engine.waiting for engine in engines) or any(one.under_way for one in servers):
                return False
            idle.set_result(None)
            return True

        selector.when_idle = when_idle
        await asyncio.wait([running, idle], return_when=asyncio.FIRST_COMPLETED)
        return None if running.done() else max(engines, key=lambda model: (len(model.waiting), model.role))

    def close(self) -> None:
        for model in self.values():
            model.release()


async def _run(jobs: Iterable[Coroutine[Any, Any, T]], at_once: int, take: Callable[[T], object]) -> None:
    free = asyncio.Semaphore(at_once - 1)
    tasks: deque[asyncio.Task[T]] = deque()
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            tasks.append(group.create_task(job))
            tasks[-1].add_done_callback(lambda _: free.release())
            await free.acquire()
            while tasks and tasks[0].done():
                take(tasks.popleft().result())
        while tasks:
            take(await tasks.popleft())


def look_for_models(dialogue: Dialogue) -> None:
    """Check that the local models and vLLM are installed where the recipe needs them.

    Raises:
        BadInput: A model, or the package that runs it, is missing.
    """
    from nextturn.probe.engines.vllm import import_vllm
    from nextturn.probe.models import resolve

    for section in dialogue.roles().values():
        if section.model is not None:
            resolve(section.model)
        if section.engine == "vllm":
            import_vllm()


def ask_all(
    lots: Mapping[str, Sequence[Item]],
    ask: Callable[[Item, Roles], Coroutine[Any, Any, T]],
    sections: Mapping[Role, RoleSection],
    seed: int,
    where: str,
    folder: Path,
    at_once: int,
    unit: str,
    take: Callable[[Item, T], object],
    done: int = 0,
) -> None:
    """Ask about every item, with a progress bar; `take` gets each item and its result, in order.

    Args:
        lots: Items by the subfolder of `folder` that stores their replies, one lot after the other. The replies of a local
            model may depend on what else is in its batch, so its lots have to be the same in every run.
        where: The recipe section that holds those of the models.
        at_once: The most items at a time.
        done: Items of the progress bar that are finished already.

    Raises:
        EngineError: A server cannot be reached, or all requests fail.
    """
    from tqdm import tqdm

    total, counts = done + sum(map(len, lots.values())), Counter[str]()

    def count(reply: Reply) -> None:
        counts.update(calls=1, tokens=reply.prompt_tokens + reply.tokens)

    with (
        tqdm(total=total, initial=done, unit=f" {unit}", disable=None) as bar,
        closing(Roles(sections, seed, where, count)) as roles,
    ):

        async def work(item: Item) -> tuple[Item, T]:
            result = await ask(item, roles)
            bar.update()
            bar.set_postfix({name: f"{n:,}" for name, n in counts.items()}, refresh=False)
            return item, result

        for name, items in lots.items():
            roles.run(map(work, items), at_once, lambda pair: take(*pair), folder / name)


# Questions that a local model gets together: full batches without holding a whole build.
_LOT = 256


def ask_each(
    names: Collection[str],
    ask: Callable[[str, RoleModel], Coroutine[Any, Any, T]],
    section: RoleSection,
    seed: int,
    where: str,
    folder: Path,
    unit: str,
) -> dict[str, T]:
    """Ask one model about each name and return the results by name. See `ask_all`."""
    results: dict[str, T] = {}
    size, at_once = _LOT, _LOT
    if section.server is not None:
        size, at_once = max(1, len(names)), 3 * section.server.concurrency
    lots = {f"part-{start // size:05}": list(names)[start : start + size] for start in range(0, len(names), size)}

    async def work(name: str, roles: Roles) -> T:
        return await ask(name, roles["replay"])

    ask_all(lots, work, {"replay": section}, seed, where, folder, at_once, unit, results.__setitem__)
    return results
