"""A probe's run folder: manifest.json first, samples.jsonl as they come, results.json last and atomically.

Completions are kept in generations.jsonl the moment they are made, under a key of everything that shapes them
(weights, template, prompt, sampling, seed), so that a killed run goes on where it stopped and another
checkpoint's completions can never be taken for this one's.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probe.engines.base import Completion, Engine, Request
from probe.errors import SettingsChanged
from probe.files import append_rows, json_line, open_append, read_json, read_jsonl, sha256_text, write_json

SCHEMA = 1


@dataclass(frozen=True)
class ModelInfo:
    """Which weights were measured: where they lie, how they are called in tables, and their hashes."""

    path: str
    label: str
    step: int | None
    weights_sha256: str
    template_sha256: str


class RunStore:
    """One run folder, opened for a model and settings.

    Raises:
        SettingsChanged: the folder was begun with another model or other settings; the differing keys are named.
    """

    def __init__(self, folder: Path, model: ModelInfo, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.model = model
        self.settings = settings
        manifest = {"schema": SCHEMA, "model": asdict(model), "settings": settings}
        if (folder / "manifest.json").is_file():
            before = read_json(folder / "manifest.json")
            refuse_changes(folder, "this probe was begun", before, {**manifest, "versions": before.get("versions")})
        else:
            write_json(folder / "manifest.json", {**manifest, "versions": _versions()})

    def results(self) -> dict[str, Any] | None:
        """The finished results, or None while the run is unfinished."""
        path = self.folder / "results.json"
        return read_json(path) if path.is_file() else None

    def write_samples(self, rows: Sequence[dict[str, Any]], first: bool) -> None:
        """Appends rows; `first` starts the file anew, since every row can be made again from stored completions."""
        path = self.folder / "samples.jsonl"
        if first:
            path.unlink(missing_ok=True)
        with open_append(path) as file:
            append_rows(file, rows)

    def finish(self, results: dict[str, Any]) -> dict[str, Any]:
        whole = {"schema": SCHEMA, "model": asdict(self.model), "settings": self.settings, **results}
        write_json(self.folder / "results.json", whole)
        return whole


class StoredEngine:
    """An engine whose completions are kept in a file; what is there already is not made again."""

    def __init__(self, engine: Engine, path: Path, model: ModelInfo) -> None:
        self.engine = engine
        self.name = engine.name
        self.hits = 0
        self._file = open_append(path)
        self._identity = f"{model.weights_sha256} {model.template_sha256} {engine.name}"
        self._stored = {
            row["key"]: Completion(row["text"], row["tokens"], row["finish"]) for _, row in read_jsonl(path)
        }

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        waiting: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            key = self._key(request)
            if key in self._stored:
                self.hits += 1
                yield index, self._stored[key]
            else:
                waiting.setdefault(key, []).append(index)
        keys = list(waiting)
        for position, completion in self.engine.stream([requests[waiting[key][0]] for key in keys]):
            key = keys[position]
            self._stored[key] = completion
            append_rows(self._file, [{"key": key, **asdict(completion)}])
            for index in waiting[key]:
                yield index, completion

    def close(self) -> None:
        self._file.close()

    def _key(self, request: Request) -> str:
        # A greedy completion does not depend on the seed.
        seed = request.seed if request.temperature > 0 else 0
        return sha256_text(self._identity + json_line({**asdict(request), "seed": seed}))


def refuse_changes(
    folder: Path, made: str, before: dict[str, Any], now: dict[str, Any], free: tuple[str, ...] = ()
) -> None:
    """Raises SettingsChanged where `now` differs from `before` in a key that does not start with one of `free`."""
    changed = [line for line in differences(before, now) if not line.startswith(free)]
    if changed:
        raise SettingsChanged(
            f"{folder}: {made} with other settings ({'; '.join(changed)}); "
            "go on with those, choose another folder, or delete this one"
        )


def differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    """The keys in which two settings differ, each as "key: old then, new now"."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            yield from differences(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif before != now:
        yield f"{key}: {before!r} then, {now!r} now"


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("nextturn", "torch", "transformers")}
