"""Engines make completions and scores: transformers or vLLM in this process, or a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from probe.engines.base import Completion, Engine, Request, ScoreRequest
from probe.errors import BadInput

if TYPE_CHECKING:
    from probe.models import ModelFolder
    from probe.settings import ProbeSection


def open_engine(folder: ModelFolder, tokenizer: Any, probe: ProbeSection, device: str | None = None) -> OpenedEngine:
    """The engine that the recipe names; a model in this process is loaded when the first completion is asked for.

    Raises:
        BadInput: the engine needs a section that the recipe lacks, or an option that only another engine takes.
    """
    if device is not None and probe.engine != "hf":
        raise BadInput(f"--device {device}: only for the engine hf, and the recipe names {probe.engine}")
    server = probe.server
    if probe.engine == "openai" and server is None:
        raise BadInput("probe.engine: openai needs `probe.server` with `urls`, such as http://localhost:8000/v1")

    def load() -> Engine:
        if server is not None and probe.engine == "openai":
            from probe.engines.openai import OpenAIEngine

            return OpenAIEngine(server, tokenizer)
        if probe.engine == "vllm":
            from probe.engines.vllm import VllmEngine

            return VllmEngine(folder, tokenizer, probe.vllm, probe.dtype, probe.seed)
        from probe.engines.hf import HfEngine
        from probe.models import load_model

        return HfEngine(load_model(folder, probe.dtype, device), tokenizer, probe.batch_tokens)

    return OpenedEngine(probe.engine, load)


class OpenedEngine:
    """An engine that loads its model when it is first needed: a run whose completions are all stored never does."""

    def __init__(self, name: str, load: Callable[[], Engine]) -> None:
        self.name = name
        self._load = load
        self._engine: Engine | None = None

    def _loaded(self) -> Engine:
        if self._engine is None:
            self._engine = self._load()
        return self._engine

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        return self._loaded().batches(requests)

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        return self._loaded().stream(requests) if requests else iter(())

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        return self._loaded().score(requests) if requests else iter(())

    def close(self) -> None:
        """Gives memory and processes back, so that another model can be loaded after this one."""
        engine, self._engine = self._engine, None
        if engine is not None and hasattr(engine, "close"):
            engine.close()
