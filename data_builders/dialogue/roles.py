"""Opens the models of a recipe: one speaker for each role; roles share a loaded model, or the slots of their servers."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from data_builders.dialogue.settings import Price, Role, RoleSection, place_of
from data_builders.text import estimated_tokens
from probe.client import (
    BAD_REPLY,
    Client,
    Reply,
    Sending,
    Server,
    Usable,
    content,
    cut_off,
    unusable,
    wants_other_names,
)
from probe.conversations import Message
from probe.engines.base import Engine, Request
from probe.engines.openai import PLAIN_EXTRAS, PLAIN_SAMPLING, Failures
from probe.errors import EngineError, NextturnError
from probe.files import append_rows, json_line, open_append, read_jsonl, sha256_text
from probe.judges.llm import storable
from probe.settings import ServerSection

if TYPE_CHECKING:
    from probe.chat import Chat
    from probe.store import StoredEngine


# --- What a conversation asks of a model and what comes back, whoever the model is and wherever it runs.
#
# A conversation is a *flow*: a generator that yields asks, is sent one reply for each, and returns its result. It knows
# no engine, no server and no thread; the pool brings asks and replies together.

T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """One reply to make: to whom it goes, the messages of the chat, and a seed of its own."""

    role: Role
    messages: tuple[Message, ...]
    seed: int
    temperature: float
    max_tokens: int


@dataclass(frozen=True)
class Said:
    """What came back. Either `failure` names why there is no reply, or `text` is one; tokens are as counted there.

    Attributes:
        cut: the reply reached its limit of tokens.
        failure: empty, or the reason of probe.servers.Reply: refused, server_error, timeout, bad_reply, ...
    """

    text: str
    prompt_tokens: int = 0
    tokens: int = 0
    cut: bool = False
    failure: str = ""
    detail: str = ""


Flow = Generator[list[Ask], list[Said], T]
"""Yields the asks that can be made now, all at once; is sent their replies in the same order."""


Ticket = tuple[int, int]
"""Which ask a reply belongs to: the conversation's number and the ask's place in what it yielded."""

Results = queue.SimpleQueue[tuple[Ticket, Said] | BaseException]
"""Where replies come in; an exception ends the build."""


class Speaker(Protocol):
    """A model in a role."""

    batched: bool
    """Whether replies are made by `work`, once nothing else can be asked, so that batches are full and always the same.
    Otherwise they come by themselves."""

    def begin(self, folder: Path | None, results: Results) -> None:
        """Keeps every reply in `folder` from here on, and takes those from it that are there; None keeps nothing."""
        ...

    def submit(self, ticket: Ticket, ask: Ask) -> None:
        """Hands in an ask and does not wait; its reply goes to `results`, once."""
        ...

    def work(self) -> None:
        """Makes the replies to all that was handed in; only for a batched speaker."""
        ...

    def end(self) -> None:
        """Stops what `begin` began; what is under way is broken off."""
        ...


def together(flows: Sequence[Flow[T]]) -> Flow[list[T]]:
    """Plays several flows side by side, step by step; returns their results in their order."""
    results: dict[int, T] = {}
    asks: dict[int, list[Ask]] = {}

    def advance(number: int, said: list[Said] | None) -> None:
        try:
            asks[number] = flows[number].send(said) if said is not None else next(flows[number])
        except StopIteration as end:
            asks.pop(number, None)
            results[number] = end.value

    for number in range(len(flows)):
        advance(number, None)
    while asks:
        waiting = list(asks.items())
        said = yield [ask for _, wanted in waiting for ask in wanted]
        start = 0
        for number, wanted in waiting:
            advance(number, said[start : start + len(wanted)])
            start += len(wanted)
    return [results[number] for number in range(len(flows))]


# --- Requests to model servers for as long as there are any: a conversation's next one is known only after a reply.
#
# `probe.servers.Client` sends a list that is known from the start. Sent as a row of such lists, conversations would wait
# for the slowest reply of each; here what is asked joins those under way, so that the servers are busy to the last.
# Retries, rate limits and the choice of a server are those of `probe.servers`.
#
# Roles that ask the same servers share a *line*, and with it their slots: whichever of them has something to ask uses
# them. What a reply takes is learned for each role by itself, since a verdict is shorter than an answer.

# As long a list as there may be: attempts get a time limit once a whole round of replies is known.
_MANY = 10**6


class Line:
    """A thread with an event loop, and `slots`: how many requests may be under way at once, over all its streams."""

    def __init__(self, slots: int) -> None:
        self.total = slots
        self.slots = asyncio.Semaphore(slots)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="dialogue", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Its streams are closed before."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


class OpenStream:
    """The requests of one role, until it is closed.

    Args:
        failed: takes what ended the stream before its time, such as an EngineError when no server answers.
    """

    def __init__(
        self, line: Line, section: ServerSection, path: str, usable: Usable, failed: Callable[[BaseException], None]
    ) -> None:
        self._line = line
        self._failed = failed
        self._waiting: dict[int, Callable[[Reply], None]] = {}
        self._numbers = itertools.count()
        self._sending = Sending(
            section,
            [Server(url.rstrip("/")) for url in section.urls],
            path,
            usable,
            received=lambda number, reply: self._waiting.pop(number)(reply),
            count=lambda sent: None,
            workers=line.total,
            expected=_MANY,
            slots=line.slots,
        )
        self._task: asyncio.Task[Any] | None = None
        asyncio.run_coroutine_threadsafe(self._serve(), line.loop)

    def send(self, body: dict[str, Any], received: Callable[[Reply], None]) -> None:
        """Hands in one request; `received` is called with its reply, in the line's thread."""
        number = next(self._numbers)
        self._waiting[number] = received
        self._line.loop.call_soon_threadsafe(self._sending.add, number, body)

    def close(self) -> None:
        """Breaks off what is under way, and waits until it is."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._line.loop).result()

    async def _serve(self) -> None:
        self._task = asyncio.current_task()
        try:
            await self._sending.serve()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that reads
            self._failed(error)

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


# --- A model in this process: asks are gathered and made together, through the probe's engines and its chat templates.


@dataclass(frozen=True)
class LoadedModel:
    """A model that several roles may share: its engine, its chat template and its identity."""

    engine: Engine
    chat: Chat
    info: Any


class EngineSpeaker:
    """One role's model. Its replies are the same however often a build is killed, since its batches are."""

    batched = True

    def __init__(self, role: Role, model: LoadedModel) -> None:
        self.role = role
        self.model = model
        self._stored: StoredEngine | None = None
        self._asks: list[tuple[Ticket, Ask]] = []

    def begin(self, folder: Path | None, results: Results) -> None:
        from probe.store import StoredEngine

        self._results = results
        self._asks = []
        if folder is not None:
            self._stored = StoredEngine(self.model.engine, folder / self.role, self.model.info)

    def submit(self, ticket: Ticket, ask: Ask) -> None:
        self._asks.append((ticket, ask))

    def work(self) -> None:
        asks, self._asks = sorted(self._asks, key=lambda one: one[0]), []
        requests = [self._request(ask) for _, ask in asks]
        engine = self._stored or self.model.engine
        for index, made in engine.stream(requests):
            said = Said(made.text, len(requests[index].prompt_ids), made.tokens, made.finish == "length")
            self._results.put((asks[index][0], said))

    def end(self) -> None:
        if self._stored is not None:
            self._stored.close()
            self._stored = None

    def _request(self, ask: Ask) -> Request:
        chat = self.model.chat
        return Request(chat.prompt_ids(ask.messages), ask.max_tokens, chat.stop_ids, ask.temperature, ask.seed)


def load(section: RoleSection, seed: int) -> LoadedModel:
    """The model of a section; its weights are loaded when the first reply is asked for.

    Raises:
        ModelError: there is no such model here, or it has no chat template.
    """
    from probe.chat import Chat
    from probe.engines import open_engine
    from probe.models import load_tokenizer, resolve
    from probe.run import model_info
    from probe.settings import ProbeSection

    assert section.model is not None and section.engine != "openai", "checked with the recipe"
    folder = resolve(section.model)
    tokenizer = load_tokenizer(folder)
    chat = Chat(tokenizer, section.enable_thinking)
    probe = ProbeSection(
        sets={},
        engine=section.engine,
        vllm=section.vllm,
        dtype=section.dtype,
        batch_tokens=section.batch_tokens,
        seed=seed,
    )
    return LoadedModel(open_engine(folder, tokenizer, probe), chat, model_info(folder, chat))


# --- Replies that are kept the moment they come, so that a build that was killed pays for none twice.
#
# One file for each role, a line for each reply, under a key of all that shapes it. What failed is not kept: the build
# that takes over asks again. Each ask has a seed of its own and is made once, so a stored reply is handed out once and
# then forgotten, and a long build holds in memory only what an earlier one left.


class StoredReplies:
    """The replies of one model in one role; `identity` is that of the model."""

    def __init__(self, path: Path, identity: str) -> None:
        self.hits = 0
        self._identity = identity
        self._file = open_append(path)
        self._rows = {row["key"]: row["said"] for _, row in read_jsonl(path)}

    def take(self, ask: Ask) -> Said | None:
        said = self._rows.pop(self._key(ask), None) if self._rows else None
        if said is None:
            return None
        self.hits += 1
        return Said(**said)

    def keep(self, ask: Ask, said: Said) -> None:
        append_rows(self._file, [{"key": self._key(ask), "said": vars(said)}])

    def close(self) -> None:
        self._file.close()

    def _key(self, ask: Ask) -> str:
        return sha256_text(
            self._identity + json_line([ask.role, ask.messages, ask.seed, ask.temperature, ask.max_tokens])
        )


# --- A model behind OpenAI-compatible servers, asked through /chat/completions: no tokenizer is needed here.

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


class Speakers:
    """The speakers by role; models in this process are given back by `close`."""

    def __init__(self, by_role: dict[Role, Speaker], models: list[LoadedModel], lines: list[Line]) -> None:
        self.by_role = by_role
        self._models = models
        self._lines = lines

    def close(self) -> None:
        for model in self._models:
            model.engine.close()
        for line in self._lines:
            line.close()


def open_speakers(roles: Mapping[Role, RoleSection], seed: int) -> Speakers:
    """Raises BadInput where a server's section or a model cannot be used. No request is sent, no weights are loaded."""
    models: dict[tuple[object, ...], LoadedModel] = {}
    slots: Counter[tuple[str, ...]] = Counter()
    for section in roles.values():
        if section.server is not None:
            Client(section.server)  # checks its addresses and numbers
            slots[place_of(section.server)] += section.server.concurrency
        elif _loading(section) not in models:
            models[_loading(section)] = load(section, seed)
    lines = {where: Line(total) for where, total in slots.items()}
    by_role: dict[Role, Speaker] = {
        role: EngineSpeaker(role, models[_loading(section)])
        if section.server is None
        else ServerSpeaker(role, section, lines[place_of(section.server)])
        for role, section in roles.items()
    }
    return Speakers(by_role, list(models.values()), list(lines.values()))


def _loading(section: RoleSection) -> tuple[object, ...]:
    """What decides how a model is loaded; roles that agree in it share one."""
    return section.engine, section.model, section.dtype, section.batch_tokens, section.vllm, section.enable_thinking


# --- Plays many conversations at once: takes up what each of them asks, and hands the replies back.
#
# Nothing here knows what is said. A conversation's course hangs on its own replies alone, so the order in which they
# come in changes nothing. Servers are asked the moment a conversation is ready; a model in this process is asked when
# nothing else can go on, so that its batches are as full as they can be, and the same in every run.


@dataclass
class _Live(Generic[T]):
    """A conversation under way, and the replies that it waits for."""

    flow: Flow[T]
    asked: list[Role] = field(default_factory=list)
    said: dict[int, Said] = field(default_factory=dict)


class Pool(Generic[T]):
    """At most `at_once` conversations under way, each a flow.

    Args:
        heard: called with each reply, stored ones too; what it raises ends the run.
    """

    def __init__(
        self,
        speakers: Mapping[Role, Speaker],
        at_once: int,
        heard: Callable[[Role, Said], None] = lambda role, said: None,
    ) -> None:
        self.speakers = dict(speakers)
        self.at_once = at_once
        self.heard = heard

    def run(
        self, flows: Iterable[tuple[int, Flow[T]]], folder: Path | None = None
    ) -> Generator[tuple[int, T], None, None]:
        """Yields (number, result) of every flow once, as they end; replies are kept in `folder`.

        Raises:
            EngineError: a server cannot be reached, or answers nothing but failures.
        """
        self._results: Results = queue.SimpleQueue()
        self._live: dict[int, _Live[T]] = {}
        self._under_way = 0
        self._handed_in: Counter[Role] = Counter()
        waiting = iter(flows)
        for speaker in self.speakers.values():
            speaker.begin(folder, self._results)
        try:
            while True:
                yield from self._admit(waiting)
                if not self._live:
                    return
                yield from self._take_in()
        finally:
            for speaker in self.speakers.values():
                speaker.end()

    def _admit(self, waiting: Iterator[tuple[int, Flow[T]]]) -> Iterator[tuple[int, T]]:
        while len(self._live) < self.at_once and (arrived := next(waiting, None)) is not None:
            number, flow = arrived
            self._live[number] = _Live(flow)
            yield from self._advance(number)

    def _take_in(self) -> Iterator[tuple[int, T]]:
        """Waits for one reply, making what a model in this process is asked for where no server has one under way."""
        if not self._under_way:
            role = max(self._handed_in, key=lambda name: (self._handed_in[name], name))
            self._under_way += self._handed_in.pop(role)
            self.speakers[role].work()
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        (number, place), said = result
        self._under_way -= 1
        live = self._live[number]
        self.heard(live.asked[place], said)
        live.said[place] = said
        if len(live.said) == len(live.asked):
            yield from self._advance(number)

    def _advance(self, number: int) -> Iterator[tuple[int, T]]:
        live = self._live[number]
        said = [live.said[place] for place in range(len(live.asked))]
        try:
            asks = live.flow.send(said) if said else next(live.flow)
        except StopIteration as end:
            del self._live[number]
            yield number, end.value
            return
        live.said, live.asked = {}, [ask.role for ask in asks]
        for place, ask in enumerate(asks):
            speaker = self.speakers[ask.role]
            if speaker.batched:
                self._handed_in[ask.role] += 1
            else:
                self._under_way += 1
            ticket: Ticket = (number, place)
            speaker.submit(ticket, ask)


# --- Counts replies, tokens and money while a build runs, and stops it where the money runs out.


class Meter:
    """All that was said so far, by role; `max_cost` None is no limit. `limit` is the recipe's key for it."""

    def __init__(self, prices: Mapping[Role, Price], max_cost: float | None, limit: str = "dialogue.max_cost") -> None:
        self.prices = prices
        self.max_cost = max_cost
        self.limit = limit
        self.counts: Counter[str] = Counter()

    def heard(self, role: Role, said: Said) -> None:
        """Raises NextturnError where what was said costs more than the limit."""
        self.add({f"{role}.calls": 1, f"{role}.input": said.prompt_tokens, f"{role}.output": said.tokens})
        if self.max_cost is not None and self.cost > self.max_cost:
            raise NextturnError(
                f"{self.limit}: {self.max_cost:g} is used up ({self.cost:.2f} so far); what came is stored, and "
                "the same command with a higher limit goes on from there"
            )

    def add(self, counts: Mapping[str, int]) -> None:
        self.counts.update(counts)

    @property
    def calls(self) -> int:
        return sum(self.counts[f"{role}.calls"] for role in self.prices)

    @property
    def tokens(self) -> int:
        return sum(self.counts[f"{role}.{kind}"] for role in self.prices for kind in ("input", "output"))

    @property
    def cost(self) -> float:
        million = 1_000_000
        return sum(
            (self.counts[f"{role}.input"] * price.input + self.counts[f"{role}.output"] * price.output) / million
            for role, price in self.prices.items()
        )

    def shown(self) -> dict[str, str]:
        """For a progress bar; the cost where there is one."""
        cost = {"cost": f"{self.cost:.2f}"} if self.cost else {}
        return {"calls": f"{self.calls:,}", "tokens": f"{self.tokens:,}", **cost}
