"""Measures a model folder on this machine: loads it once, or only tells what that would take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probe.chat import Chat
from probe.models import ModelFolder, fingerprint, load_model, load_tokenizer, parameter_count
from probe.run import LoadedSet, run_probe, work_of
from probe.settings import ProbeSection
from probe.store import ModelInfo


def model_info(folder: ModelFolder, chat: Chat, label: str | None = None, step: int | None = None) -> ModelInfo:
    """What results.json says of a model; the step is read off a `checkpoint-N` folder's name."""
    found = re.fullmatch(r"checkpoint-(\d+)", folder.path.name)
    step = int(found.group(1)) if found and step is None else step
    name = label or (f"step-{step}" if step is not None else Path(folder.name).name)
    return ModelInfo(folder.name, name, step, fingerprint(folder), chat.template_sha256)


def measure_folder(
    folder: ModelFolder,
    probe: ProbeSection,
    sets: Sequence[LoadedSet],
    out: Path,
    label: str | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Runs the probe on a folder; a finished run in `out` is returned without loading the model."""
    from probe.engines.hf import HfEngine

    tokenizer = load_tokenizer(folder)
    chat = Chat(tokenizer, probe.enable_thinking)
    info = model_info(folder, chat, label)
    engine = _Lazy(lambda: HfEngine(load_model(folder, probe.dtype, device), tokenizer, probe.batch_tokens))
    return run_probe(engine, chat, info, probe, out, sets)


class _Lazy:
    """An engine that loads its model when the first completion is asked for."""

    name = "hf"

    def __init__(self, make: Any) -> None:
        self._make = make
        self._engine: Any = None

    def stream(self, requests: Any) -> Any:
        if requests and self._engine is None:
            self._engine = self._make()
        return self._engine.stream(requests) if requests else iter(())


def describe(folder: ModelFolder, probe: ProbeSection, sets: Sequence[LoadedSet], unchecked: Sequence[str]) -> str:
    """The plan of a run: sets, completions, tokens at most, memory, and one example with its user-turn prefix."""
    chat = Chat(load_tokenizer(folder), probe.enable_thinking)
    parameters = parameter_count(folder)["total"]
    lines = [
        f"model     {folder.name}: {parameters / 1e6:,.1f}M parameters, {parameters * 2 / 2**30:.2f} GiB in bfloat16"
    ]
    works = [work_of(loaded, probe) for loaded in sets]
    for loaded, work in zip(sets, works, strict=True):
        lines.append(f"set       {loaded.name}: {work.answers} prompts for {', '.join(loaded.measures)}")
    lines.append(
        f"generate  {sum(work.answers for work in works)} answers, {sum(work.user_turns for work in works)} user turns: "
        f"{sum(work.tokens for work in works):,} tokens at most"
    )
    example = next((loaded for loaded in sets if "followup" in loaded.measures and loaded.items), None)
    if example is not None:
        messages = [*example.items[0].messages, {"role": "assistant", "content": "(its answer)"}]
        lines += [f"a user turn of {example.name} begins after ({probe.prefix_form} form):"]
        lines += ["  | " + line for line in chat.user_prefix_text(messages, probe.prefix_form).splitlines()]
        lines += [f"and ends at one of: {', '.join(repr(chat.tokenizer.decode([token])) for token in chat.stop_ids)}"]
    return "\n".join([*lines, *(f"could not check {line}" for line in unchecked), "nothing was written"])
