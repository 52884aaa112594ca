"""The folder of a build: settings.json first, manifest.json last, and nothing that a kill leaves half-written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_builders.card import card
from probe.errors import BadInput
from probe.files import atomic, read_json, read_jsonl, sha256_file, write_atomic, write_json
from probe.store import refuse_changes

VIEWS = ("candidates", "rl", "pairs")
"""Folders that only conversations between models fill: what there was to choose from, and two more ways to train."""


def finished(out: Path, settings: dict[str, Any]) -> bool:
    """Whether `out` holds a finished build with these settings. Raises SettingsChanged for other settings."""
    if not (out / "manifest.json").is_file():
        return False
    _refuse_changes(out, settings)
    return True


def claim(out: Path, settings: dict[str, Any]) -> None:
    """Writes settings.json first, or checks the one that is there."""
    if out.exists() and not out.is_dir():
        raise BadInput(f"{out}: is a file, wanted a folder for the data")
    if (out / "settings.json").is_file():
        _refuse_changes(out, settings)
    elif out.is_dir() and any(out.iterdir()):
        raise BadInput(f"{out}: holds other files and is no data build; give an empty or new folder with --out")
    else:
        write_json(out / "settings.json", settings)


def _refuse_changes(out: Path, settings: dict[str, Any]) -> None:
    refuse_changes(out, "built", read_json(out / "settings.json"), settings)


def concatenate(parts: Sequence[Path], target: Path) -> None:
    """Joins files into one, atomically and without holding them in memory."""
    with atomic(target) as file:
        for part in parts:
            file.write(part.read_bytes())


def finish(out: Path, settings: dict[str, Any], totals: dict[str, Any]) -> dict[str, Any]:
    """Writes the card and, last, the manifest, both counted from the files themselves; `totals` joins the manifest."""
    rejected: Counter[str] = Counter(row["reason"] for _, row in read_jsonl(out / "rejected.jsonl"))
    parts = sorted((out / "sft").glob("part-*.jsonl"))
    write_atomic(out / "card.md", card((row for part in parts for _, row in read_jsonl(part)), rejected, settings))
    files = [
        *parts,
        *sorted((out / "rejected").glob("*.jsonl")),
        out / "rejected.jsonl",
        *(path for view in VIEWS for path in sorted((out / view).glob("part-*.jsonl"))),
        *sorted((out / "eval").glob("*.jsonl")),
    ]
    rows = {path: sum(1 for _ in read_jsonl(path)) for path in files}
    kept = sum(rows[part] for part in parts)
    manifest = {
        "schema": 1,
        "asked": kept + sum(rejected.values()),
        "kept": kept,
        "rejected": dict(sorted(rejected.items())),
        "seed": settings["seed"],
        "settings": settings,
        **totals,
        "files": {str(path.relative_to(out)): {"rows": rows[path], "sha256": sha256_file(path)} for path in files},
    }
    write_json(out / "manifest.json", manifest)
    return manifest
