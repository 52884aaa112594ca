"""A probe's run folder: manifest.json first, samples.jsonl as they come, results.json last and atomically.

What is generated and scored on the way is kept beside them (`probe.stored`), verdicts of a judge that costs calls too.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probe.errors import SettingsChanged
from probe.files import read_json, write_json, write_jsonl

SCHEMA = 1


@dataclass(frozen=True)
class ModelInfo:
    """Which weights were measured: where they lie, how they are called in tables, and their hashes.

    The weights behind a server cannot be hashed; then `path` names the served model, which has to identify it.
    """

    path: str
    label: str
    step: int | None
    weights_sha256: str | None
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

    def write_samples(self, rows: Sequence[dict[str, Any]]) -> None:
        """All rows at once, atomically: each can be made again from what is stored."""
        write_jsonl(self.folder / "samples.jsonl", rows)

    def finish(self, results: dict[str, Any]) -> dict[str, Any]:
        whole = {"schema": SCHEMA, "model": asdict(self.model), "settings": self.settings, **results}
        write_json(self.folder / "results.json", whole)
        return whole


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
