"""The models of a recipe in their roles: `await roles["assistant"].ask(messages, ...)`, wherever the model runs.

Whoever asks is a coroutine, many of which `Roles.run` lets go on side by side. What one asks hangs on its own replies
alone, so the order in which replies come changes nothing. Servers are asked in a thread of its own, where no time limit
runs out while a shard is written or answers are compared. A model in this process is asked when nobody can go on without
it, so that its batches are full, and the same in every run. Each reply is stored the moment it comes: a build that was
killed asks for none twice.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from nextturn.data_builders.dialogue.replies import Parsed, Reply
from nextturn.data_builders.recipe import Dialogue, Role, RoleSection, servers
from nextturn.data_builders.text import estimated_tokens
from nextturn.probe import client
from nextturn.probe.conversations import Message
from nextturn.probe.engines.base import Request
from nextturn.probe.engines.openai import PLAIN_EXTRAS, PLAIN_SAMPLING, Failures
from nextturn.probe.errors import EngineError
from nextturn.probe.files import append_rows, json_line, open_append, read_jsonl, sha256_text
from nextturn.probe.settings import ServerSection

T = TypeVar("T")
Item = TypeVar("Item")
COUNTS = ("calls", "input", "output")
# A reply that could not be used at temperature 0 would come again.
_AGAIN_AT_LEAST = 0.5


@dataclass(frozen=True)
class Ask:
    """One reply to make: to whom it goes, the messages of the chat, and a seed of its own."""

    role: Role
    messages: tuple[Message, ...]
    seed: int
    temperature: float
    max_tokens: int


@dataclass
class Answer:
    """What came of asking: `parsed` is a reply that can be used, or None and `missing` says why, as ROLE_REASON.

    Attributes:
        detail: what a server said that failed.
        unusable: the replies that came before and could not be used.
        calls: {"ROLE.calls", "ROLE.input", "ROLE.output"}: replies and their tokens.
    """

    parsed: Parsed | None = None
    missing: str = ""
    detail: str = ""
    unusable: list[Parsed] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)


class RoleModel:
    """A model in a role. `heard` is called with each reply, stored ones too."""

    def __init__(self, role: Role, section: RoleSection) -> None:
        self.role = role
        self.section = section
        self.heard: Callable[[Reply], None] = lambda reply: None

    async def ask(
        self,
        messages: tuple[Message, ...],
        read: Callable[[Reply], Parsed],
        seed: Callable[[int], int],
        tries: int,
        again: Callable[[tuple[Message, ...], str, str], tuple[Message, ...]] = lambda messages, text, why: messages,
    ) -> Answer:
        """A reply that can be used, asked for `tries` times at most, again with another seed and never at temperature 0.

        Args:
            read: what a reply says, and whether it can be used.
            seed: of each attempt, counted from 0.
            again: the messages of the attempt after one that could not be used: what it said, and why not.
        """
        asked = messages
        answer = Answer()
        for attempt in range(tries):
            temperature = max(self.section.temperature, _AGAIN_AT_LEAST) if attempt else self.section.temperature
            reply = await self.reply(Ask(self.role, asked, seed(attempt), temperature, self.section.max_tokens))
            self.heard(reply)
            answer.calls.update(reply.counts(self.role))
            if reply.failure:  # its engine has tried already
                answer.missing, answer.detail = f"{self.role}_{reply.failure}", reply.detail
                return answer
            parsed = read(reply)
            if not parsed.unusable:
                answer.parsed = parsed
                return answer
            answer.unusable.append(parsed)
            answer.missing = f"{self.role}_{parsed.unusable}"
            asked = again(messages, parsed.text, parsed.unusable)
        return answer

    async def reply(self, ask: Ask) -> Reply:
        raise NotImplementedError

    def begin(self, folder: Path | None, changed: asyncio.Event) -> None:
        """Before each run. Replies are kept in `folder` and taken from there; `changed` is set with each step."""

    def end(self) -> None:
        """After each run; what is under way is broken off."""


# --- Behind OpenAI-compatible servers, asked through /chat/completions: no tokenizer is needed here.

# So many failures with no reply between them: what is wrong is wrong for every request.
_FAILURES_IN_A_ROW = 32
# Attempts get a time limit once a whole round of replies is known; how many there will be is not.
_MANY = 10**6


def place_of(server: ServerSection) -> tuple[str, ...]:
    """What roles have in common that ask the same servers."""
    return tuple(sorted(url.rstrip("/") for url in server.urls))


class Network:
    """The thread in which servers are asked, how they are doing, and the slots of each, which its roles share."""

    def __init__(self, sections: Iterable[RoleSection]) -> None:
        most: Counter[tuple[str, ...]] = Counter()
        for server in servers(sections):
            most[place_of(server)] += server.concurrency
        self.slots = {place: client.Slots(number) for place, number in most.items()}
        self.begin()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Each run finds out anew how the servers are doing: one that was away may be back."""
        self.servers = {place: [client.Server(url) for url in place] for place in self.slots}

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


class ServerRole(RoleModel):
    """Asks through `probe.client`, whose retries, rate limits and time limits hold."""

    def __init__(self, role: Role, section: RoleSection, network: Network) -> None:
        super().__init__(role, section)
        assert section.server is not None, "checked with the recipe"
        self.server = section.server
        self.under_way = 0
        self._network = network
        self._reasoner = False
        self._failures = 0

    def begin(self, folder: Path | None, changed: asyncio.Event) -> None:
        self._changed = changed
        network, place = self._network, place_of(self.server)
        self._session = client.Session(
            self.server, network.servers[place], network.slots[place], "/chat/completions", client.unusable, _MANY
        )
        self._file: FileIO | None = None
        self._stored: dict[str, dict[str, Any]] = {}
        if folder is not None:
            path = folder / f"{self.role}.jsonl"
            self._file = open_append(path)
            self._stored = {row["key"]: row["said"] for _, row in read_jsonl(path)}

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(self._session.close(), self._network.loop).result()
        if self._file is not None:
            self._file.close()

    async def reply(self, ask: Ask) -> Reply:
        if (stored := self._stored.pop(self._key(ask), None)) is not None:  # each ask is made once
            return Reply(**stored)
        self.under_way += 1
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._fetch(ask), self._network.loop))
        finally:
            self.under_way -= 1
            self._changed.set()

    def _key(self, ask: Ask) -> str:
        identity = f"{self.server.model} {self.section.enable_thinking}"
        return sha256_text(identity + json_line([ask.role, ask.messages, ask.seed, ask.temperature, ask.max_tokens]))

    # What follows runs in the network's thread.

    async def _fetch(self, ask: Ask) -> Reply:
        """The server's reply; one that came is stored before anybody reads it.

        Raises:
            EngineError: no server can be reached, or nothing but failures has come for a while.
        """
        ways: list[bool] = []

        def body() -> dict[str, Any]:  # what waited for a slot while another was refused goes the new way at once
            ways.append(self._reasoner)
            return self._body(ask, self._reasoner)

        came = await self._session.request(body)
        if not ways[-1] and client.wants_other_names(came):
            self._reasoner = True
            came = await self._session.request(body)
        if came.failure is not None or came.body is None:
            reply = Reply("", failure=came.failure or client.BAD_REPLY, detail=came.detail)
            self._failures += 1
            if self._failures >= _FAILURES_IN_A_ROW:
                hint = Failures(self.server).hint(came)
                raise EngineError(
                    f"{self.role}: the last {self._failures} requests to {', '.join(self.server.urls)} all failed (last: "
                    f"{reply.failure}, {reply.detail}{hint}); what came is stored, and the same command goes on from there"
                )
            return reply
        self._failures = 0
        usage = came.body.get("usage")
        counts = usage if isinstance(usage, dict) else {}
        text = client.content(came.body) or ""
        reply = Reply(
            text=text,
            prompt_tokens=_counted(counts.get("prompt_tokens"), ask.messages),
            tokens=_counted(counts.get("completion_tokens"), [{"content": text}]),
            cut=client.cut_off(came.body),
        )
        if self._file is not None:
            append_rows(self._file, [{"key": self._key(ask), "said": vars(reply)}])
        return reply

    def _body(self, ask: Ask, as_reasoner: bool) -> dict[str, Any]:
        limits: dict[str, Any] = {"max_completion_tokens": ask.max_tokens}
        if not as_reasoner:
            limits = {"max_tokens": ask.max_tokens, "temperature": ask.temperature, **PLAIN_SAMPLING}
            limits |= PLAIN_EXTRAS if self.server.extras else {}
        thinking = self.section.enable_thinking
        template = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}
        seed = ask.seed & 0x7FFFFFFF
        return {"model": self.server.model, "messages": list(ask.messages), "seed": seed, **limits, **template}


def _counted(given: Any, messages: Sequence[Message]) -> int:
    return given if isinstance(given, int) and given >= 0 else estimated_tokens(messages)


# --- In this process: replies are made in batches, through the probe's engines and its chat templates.


class LocalModel:
    """A model that several roles may share; its weights are loaded when the first reply is asked for. Raises ModelError."""

    def __init__(self, section: RoleSection, seed: int, where: str) -> None:
        from nextturn.probe.chat import Chat
        from nextturn.probe.engines import open_engine
        from nextturn.probe.measure.run import model_info
        from nextturn.probe.models import load_tokenizer, resolve
        from nextturn.probe.settings import ProbeSection

        assert section.model is not None and section.engine != "openai", "checked with the recipe"
        folder = resolve(section.model)
        tokenizer = load_tokenizer(folder)
        shared = {name: getattr(section, name) for name in ("engine", "vllm", "dtype", "batch_tokens")}
        probe = ProbeSection(sets={}, seed=seed, **shared)
        self.chat = Chat(tokenizer, section.enable_thinking)
        self.engine = open_engine(folder, tokenizer, probe, where=where)
        self.info = model_info(folder, self.chat)


class EngineRole(RoleModel):
    """Its replies are the same however often a build is killed, since its batches are."""

    def __init__(self, role: Role, section: RoleSection, model: LocalModel) -> None:
        super().__init__(role, section)
        self.model = model

    def begin(self, folder: Path | None, changed: asyncio.Event) -> None:
        from nextturn.probe.measure.store import StoredEngine

        self.waiting: list[tuple[Request, asyncio.Future[Reply]]] = []
        self._changed, model = changed, self.model
        self._stored = StoredEngine(model.engine, folder / self.role, model.info) if folder is not None else None

    def end(self) -> None:
        if self._stored is not None:
            self._stored.close()

    async def reply(self, ask: Ask) -> Reply:
        chat = self.model.chat
        request = Request(chat.prompt_ids(ask.messages), ask.max_tokens, chat.stop_ids, ask.temperature, ask.seed)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        self._changed.set()
        return await future

    def make_replies(self) -> None:
        """To everything that waits, in an order that does not hang on who asked first."""
        waiting, self.waiting = sorted(self.waiting, key=lambda one: (one[0].prompt_ids, one[0].seed)), []
        requests = [request for request, _ in waiting]
        for index, made in (self._stored or self.model.engine).stream(requests):
            reply = Reply(made.text, len(requests[index].prompt_ids), made.tokens, made.finish == "length")
            waiting[index][1].set_result(reply)
        self._changed.set()


# A reply wakes a chain of some eight callbacks (a task, what gathers it, the conversation, its next ask) before the loop
# is quiet again. More turns than that with no new ask: nobody can go on without a model in this process.
_QUIET_TURNS = 20


_KEYS = {"assistant": "policy", "replay": "model"}  # keys of recipes that are called otherwise than their roles
_OF_A_MODEL = ("engine", "model", "dtype", "batch_tokens", "vllm", "enable_thinking")


class Roles(dict[Role, RoleModel]):
    """The models by role. Those with the same server share its slots, those that load the same model share it, which
    `close` gives back. `where` is the section of the recipe that holds theirs.

    Raises:
        BadInput: a server's section or a model cannot be used. No request is sent, no weights are loaded.
    """

    def __init__(
        self, sections: Mapping[Role, RoleSection], seed: int, where: str,
        heard: Callable[[Reply], None] | None = None,
    ) -> None:  # fmt: skip
        self._network = Network(sections.values()) if any(one.server for one in sections.values()) else None
        self._models: dict[tuple[object, ...], LocalModel] = {}
        for role, section in sections.items():
            if self._network is not None and section.server is not None:
                client.Client(section.server)  # checks its addresses and numbers
                self[role] = ServerRole(role, section, self._network)
            else:
                same = tuple(getattr(section, name) for name in _OF_A_MODEL)
                if same not in self._models:
                    self._models[same] = LocalModel(section, seed, f"{where}.{_KEYS.get(role, role)}")
                self[role] = EngineRole(role, section, self._models[same])
            if heard is not None:
                self[role].heard = heard

    def run(
        self,
        jobs: Iterable[Coroutine[Any, Any, T]],
        at_once: int,
        take: Callable[[T], object] = lambda result: None,
        folder: Path | None = None,
    ) -> None:
        """Runs `jobs`, at most `at_once` side by side; `take` gets their results in the order of the jobs.

        Replies are kept in `folder`, and those that an earlier run left there are taken. The first error ends the run.

        Raises:
            EngineError: a server cannot be reached, or answers nothing but failures.
        """
        changed = asyncio.Event()
        if self._network is not None:
            self._network.begin()
        with ExitStack() as stack:
            for model in self.values():
                model.begin(folder, changed)
                stack.callback(model.end)
            # With a factory, since without one the caller's thread would be left with no event loop at all.
            runner = stack.enter_context(asyncio.Runner(loop_factory=asyncio.new_event_loop))
            running = runner.get_loop().create_task(self._run(iter(jobs), at_once, take))
            running.add_done_callback(lambda _: changed.set())
            # Batches are made between the turns of the loop and not in one: an engine may run a loop of its own.
            while (engine := runner.run(self._waited_for(running, changed))) is not None:
                engine.make_replies()
            error = running.exception()
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if error is not None:
                raise error from None

    async def _run(self, jobs: Iterator[Coroutine[Any, Any, T]], at_once: int, take: Callable[[T], object]) -> None:
        free = asyncio.Semaphore(at_once)
        results: dict[int, T] = {}
        taken = 0

        async def one(number: int, job: Coroutine[Any, Any, T]) -> None:
            nonlocal taken
            results[number] = await job
            free.release()
            while taken in results:
                take(results.pop(taken))
                taken += 1

        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                await free.acquire()
                if (job := next(jobs, None)) is None:
                    break
                task = group.create_task(one(number, job))
                task.add_done_callback(partial(_close, job))

    async def _waited_for(self, running: asyncio.Task[None], changed: asyncio.Event) -> EngineRole | None:
        """The model in this process without which nothing can go on, the one with most to do; None when all is done."""
        engines = [model for model in self.values() if isinstance(model, EngineRole)]
        servers = [model for model in self.values() if isinstance(model, ServerRole)]
        while engines and not running.done():
            await changed.wait()
            changed.clear()
            for _ in range(_QUIET_TURNS):
                await asyncio.sleep(0)
            fullest = max(engines, key=lambda model: (len(model.waiting), model.role))
            if fullest.waiting and not changed.is_set() and not any(server.under_way for server in servers):
                return fullest
        await asyncio.wait([running])
        return None

    def close(self) -> None:
        for model in self._models.values():
            model.engine.close()
        if self._network is not None:
            self._network.close()


def _close(job: Coroutine[Any, Any, Any], task: asyncio.Task[None]) -> None:
    """A task that is ended before it has begun leaves its job as it was, of which Python would complain."""
    job.close()


def look_for_models(dialogue: Dialogue) -> None:
    """Raises BadInput where a model in this process, or what runs it, is not there."""
    from nextturn.probe.engines.vllm import import_vllm
    from nextturn.probe.models import resolve

    for section in dialogue.roles().values():
        if section.model is not None:
            resolve(section.model)
        if section.engine == "vllm":
            import_vllm()


def ask_all(
    together: Mapping[str, Sequence[Item]],
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
    """Asks about every item with a progress bar, `done` of which are done; `take` gets what came of each, in order.

    Args:
        where: the recipe's section that holds those of the models.
        together: items by the folder in `folder` that keeps their replies, one lot after the other. What a model in this
            process replies may hang on what is asked beside it: it has to get the same lots in every run.

    Raises:
        EngineError: a server cannot be reached, or answers nothing but failures.
    """
    from tqdm import tqdm

    total, counts = done + sum(map(len, together.values())), Counter[str]()

    def heard(reply: Reply) -> None:
        counts.update(calls=1, tokens=reply.prompt_tokens + reply.tokens)

    with (
        tqdm(total=total, initial=done, unit=f" {unit}", disable=None) as bar,
        closing(Roles(sections, seed, where, heard)) as roles,
    ):

        async def one(item: Item) -> tuple[Item, T]:
            came = await ask(item, roles)
            bar.update()
            bar.set_postfix({name: f"{n:,}" for name, n in counts.items()}, refresh=False)
            return item, came

        for name, items in together.items():
            roles.run(map(one, items), at_once, lambda came: take(*came), folder / name)


def ask_each(
    names: Collection[str],
    ask: Callable[[str, RoleModel], Coroutine[Any, Any, T]],
    section: RoleSection,
    seed: int,
    where: str,
    folder: Path,
    unit: str,
) -> dict[str, T]:
    """Return what came of asking one model about each name. `where` is the recipe's section that holds the model's."""
    found: dict[str, T] = {}
    every, size, at_once = list(names), _TOGETHER, _TOGETHER
    if section.server is not None:
        size, at_once = max(1, len(names)), 3 * section.server.concurrency
    lots = {f"part-{start // size:05}": every[start : start + size] for start in range(0, len(every), size)}
    sections: dict[Role, RoleSection] = {"replay": section}

    async def one(name: str, roles: Roles) -> T:
        return await ask(name, roles["replay"])

    ask_all(lots, one, sections, seed, where, folder, at_once, unit, found.__setitem__)
    return found


# Questions that a model in this process gets together: full batches without holding a whole build.
_TOGETHER = 256
