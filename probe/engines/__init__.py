"""Engines make completions and scores: transformers or vLLM in this process, or a server."""

from __future__ import annotations

from typing import Any

from nextturn.probe.command.errors import BadInput
from nextturn.probe.command.sections import EngineSection
from nextturn.probe.engines.base import Engine
from nextturn.probe.models.folders import ModelFolder, load_model, used_dtype


def open_engine(
    folder: ModelFolder,
    tokenizer: Any,
    section: EngineSection,
    seed: int = 0,
    device: str | None = None,
    where: str = "probe",
) -> Engine:
    """Return the engine that the recipe names; a model in this process is loaded with the first request.

    Args:
        seed: Of the engine `vllm` on a CPU, which takes no seed for each request.
        device: For the engine `hf` only.
        where: The recipe section, for messages.

    Raises:
        BadInput: The recipe lacks the engine's section, or an option belongs to another engine.
    """
    if device is not None and section.engine != "hf":
        raise BadInput(f"--device {device}: only for the engine hf, and the recipe names {section.engine}")
    if section.engine == "openai":
        from nextturn.probe.engines.openai import OpenAIEngine

        if section.server is None:
            raise BadInput("probe.engine: openai needs `probe.server` with `urls`, such as http://localhost:8000/v1")
        return OpenAIEngine(section.server, tokenizer)
    dtype = used_dtype(folder, section.dtype, device, f"{where}.dtype")
    if section.engine == "vllm":
        from nextturn.probe.engines.vllm import VllmEngine

        return VllmEngine(folder, tokenizer, section.vllm, dtype, seed, where)
    from nextturn.probe.engines.hf import HfEngine

    return HfEngine(None, tokenizer, section.batch_tokens, load=lambda: load_model(folder, dtype, device))
