"""Opens the models of a recipe: one speaker for each role; roles share a loaded model, or the slots of their servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from data_builders.dialogue.engine_speaker import EngineSpeaker, LoadedModel, load
from data_builders.dialogue.open_stream import Line
from data_builders.dialogue.server_speaker import ServerSpeaker
from data_builders.dialogue.settings import Role, RoleSection, place_of
from data_builders.dialogue.speaker import Speaker
from probe.servers import Client


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
