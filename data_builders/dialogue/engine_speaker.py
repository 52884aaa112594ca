"""A model in this process: asks are gathered and made together, through the probe's engines and its chat templates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_builders.dialogue.settings import Role, RoleSection
from data_builders.dialogue.speaker import Ask, Results, Said, Ticket
from probe.engines.base import Request

if TYPE_CHECKING:
    from probe.chat import Chat
    from probe.engines import OpenedEngine
    from probe.stored import StoredEngine


@dataclass(frozen=True)
class LoadedModel:
    """A model that several roles may share: its engine, its chat template and its identity."""

    engine: OpenedEngine
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
        from probe.stored import StoredEngine

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
    from probe.local import model_info
    from probe.models import load_tokenizer, resolve
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
