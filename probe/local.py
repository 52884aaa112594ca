"""Measures a model by its name: opens what serves it, then runs the probe; or only tells what that would take."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from probe.chat import Chat
from probe.engines import open_engine
from probe.engines.base import Engine
from probe.models import ModelFolder, fingerprint, load_tokenizer, parameter_count, resolve, tokenizer_folder
from probe.perturb import parse_perturbations
from probe.questions import LoadedSet, Work, work_of
from probe.run import run_probe
from probe.settings import ProbeSection, ServerSection
from probe.store import ModelInfo


def model_info(folder: ModelFolder, chat: Chat, label: str | None = None, step: int | None = None) -> ModelInfo:
    """What results.json says of a model; the step is read off a `checkpoint-N` folder's name."""
    found = re.fullmatch(r"checkpoint-(\d+)", folder.path.name)
    step = int(found.group(1)) if found and step is None else step
    name = label or (f"step-{step}" if step is not None else Path(folder.name).name)
    return ModelInfo(folder.name, name, step, fingerprint(folder), chat.template_sha256)


def open_model(name: str, probe: ProbeSection) -> tuple[ModelFolder, ProbeSection]:
    """The folder of a model, and the recipe with its server where the name is a server's address.

    With the engine `openai` the weights are the server's, and only the tokenizer has to be here. A bare address,
    http://HOST:PORT/v1, stands for the model that the server lists, whose tokenizer is looked for under that name.
    """
    if name.startswith(("http://", "https://")):
        section = replace(probe.server, urls=(name,)) if probe.server else ServerSection(urls=(name,))
        probe = replace(probe, engine="openai", server=section)
        from probe.servers import Client

        name = Client(section).model
    return (tokenizer_folder(name) if probe.engine == "openai" else resolve(name)), probe


def measure_folder(
    folder: ModelFolder,
    probe: ProbeSection,
    sets: Sequence[LoadedSet],
    out: Path,
    label: str | None = None,
    device: str | None = None,
    step: int | None = None,
    wrap: Callable[[Engine], Engine] = lambda engine: engine,
) -> dict[str, Any]:
    """Runs the probe on a folder from `open_model`; a finished run in `out` is returned without loading the model.

    Args:
        step: left out, it is read off a `checkpoint-N` folder's name.
        wrap: goes around the engine, to look at or stop what it makes.
    """
    tokenizer = load_tokenizer(folder)
    chat = Chat(tokenizer, probe.enable_thinking)
    with closing(open_engine(folder, tokenizer, probe, device)) as engine:
        if probe.server and probe.engine == "openai":
            info = _served_info(probe.server, chat, label)
        else:
            info = model_info(folder, chat, label, step)
        return run_probe(wrap(engine), chat, info, probe, out, sets)


def describe(folder: ModelFolder, probe: ProbeSection, sets: Sequence[LoadedSet], unchecked: Sequence[str]) -> str:
    """The plan of a run: sets, completions, tokens at most, memory, and one example with its user-turn prefix."""
    chat = Chat(load_tokenizer(folder), probe.enable_thinking)
    works = [work_of(loaded, probe) for loaded in sets]
    lines = [_model_line(folder, probe)]
    for loaded, work in zip(sets, works, strict=True):
        replies = "replies of its own" if loaded.transcript else f"{work.answers} prompts"
        lines.append(f"set       {loaded.name}: {replies} for {', '.join(loaded.measures)}")
    perturbations = [one.name for one in parse_perturbations(probe.perturbations)]
    if len(perturbations) > 1:
        lines.append(f"user turns after {', '.join(perturbations)}")
    lines += [_work_line(works), f"judge     {probe.judge}{', grounding' if probe.grounding else ''}"]
    example = next((loaded for loaded in sets if "followup" in loaded.measures and loaded.items), None)
    if example is not None:
        answer = example.items[0].reply or "(its answer)"
        messages = [*example.items[0].messages, {"role": "assistant", "content": answer}]
        lines += [f"a user turn of {example.name} begins after ({probe.prefix_form} form):"]
        lines += ["  | " + line for line in chat.user_prefix_text(messages, probe.prefix_form).splitlines()]
        lines += [f"and ends at one of: {', '.join(repr(chat.tokenizer.decode([token])) for token in chat.stop_ids)}"]
    return "\n".join([*lines, *(f"could not check {line}" for line in unchecked), "nothing was written"])


def _served_info(server: ServerSection, chat: Chat, label: str | None) -> ModelInfo:
    """A server's weights cannot be hashed; its own name for the model is all that identifies them."""
    from probe.servers import Client

    served = Client(server).model
    return ModelInfo(f"served:{served}", label or Path(served).name, None, None, chat.template_sha256)


def _model_line(folder: ModelFolder, probe: ProbeSection) -> str:
    if probe.engine == "openai":
        return f"model     {folder.name}: served by {', '.join(probe.server.urls) if probe.server else 'nobody yet'}"
    total = parameter_count(folder)["total"]
    return (
        f"model     {folder.name}: {total / 1e6:,.1f}M parameters, {total * 2 / 2**30:.2f} GiB in bfloat16, "
        f"engine {probe.engine}"
    )


def _work_line(works: Sequence[Work]) -> str:
    answers, turns = sum(work.answers for work in works), sum(work.user_turns for work in works)
    return f"generate  {answers} answers, {turns} user turns: {sum(work.tokens for work in works):,} tokens at most"
