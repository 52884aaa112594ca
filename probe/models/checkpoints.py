"""Completion markers of checkpoints and of training runs.

A checkpoint counts only with its marker, `complete.json`, which is written last, by rename, with the size of every file, after
all processes have saved. Training resumes from such checkpoints only, and `probe watch` measures no others.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import DataError
from nextturn.probe.command.files import read_json, write_json

SCHEMA = 1
MARKER = "complete.json"
STATE = "trainer_state.json"
FINISHED = "finished.json"
ASIDE = "set-aside-"
KEPT = ".kept"
"""The folder in RUN_DIR/probe with models of checkpoints that `probe watch` has not measured yet."""


def mark_complete(
    folder: Path, step: int, launch: dict[str, int] | None = None, inputs: dict[str, Any] | None = None
) -> None:
    """Write the marker. Call it on one process, after all of them have written their files.

    The files are synced to disk first, so that after a power cut no marker stands for files that are lost.

    Args:
        launch: The launch that saved the checkpoint (train/resume.py). Markers of older runs have none.
        inputs: What the run was begun with (train/inputs.py). Markers of older runs have none.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not _is_marker(path, folder)]
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    saved_by = {name: value for name, value in (("launch", launch), ("inputs", inputs)) if value is not None}
    write_json(folder / MARKER, {"schema": SCHEMA, "step": step, **saved_by, "files": sizes})


def why_incomplete(folder: Path) -> str | None:
    """Return None for a complete checkpoint, else the reason why it is not complete."""
    if not folder.is_dir():
        return "no such folder"
    if not (folder / MARKER).is_file():
        return f"no {MARKER}, so saving it was interrupted"
    try:
        marker = read_json(folder / MARKER)
        int(marker["step"])
        sizes = {str(name): int(size) for name, size in marker["files"].items()}
    except (DataError, KeyError, TypeError, ValueError, AttributeError):
        return f"its {MARKER} cannot be read"
    for name, size in sizes.items():
        try:
            actual = (folder / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if actual != size:
            return f"{name} has {actual} bytes, {size} were saved"
    if STATE in sizes:
        try:
            read_json(folder / STATE)
        except DataError:
            return f"its {STATE} cannot be read"
    return None


def list_checkpoints(run_dir: Path) -> list[tuple[int, Path]]:
    """Return every folder `checkpoint-N` of a run as (N, folder), newest first, complete or not."""
    return numbered(run_dir, "checkpoint")


def newest_complete(run_dir: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """Return the newest complete checkpoint of a run, or None, and the newer checkpoints, each with its reason."""
    skipped: list[tuple[Path, str]] = []
    for _, folder in list_checkpoints(run_dir):
        reason = why_incomplete(folder)
        if reason is None:
            return folder, skipped
        skipped.append((folder, reason))
    return None, skipped


def recorded_inputs(run_dir: Path) -> dict[str, Any]:
    """Return the `inputs` of the newest complete checkpoint; {} if there is none, or an earlier version saved it."""
    checkpoint, _ = newest_complete(run_dir)
    inputs: dict[str, Any] = read_json(checkpoint / MARKER).get("inputs", {}) if checkpoint else {}
    return inputs


def none_complete(skipped: list[tuple[Path, str]]) -> str:
    """Return a message for a folder in which `newest_complete` found none."""
    return "no complete checkpoint in it" + (f" ({skipped[0][0].name}: {skipped[0][1]})" if skipped else "")


def finish_run(run_dir: Path, step: int, recipe_sha256: str, **facts: Any) -> None:
    """Write `finished.json`, the last file of a run: it has trained all its steps with this recipe."""
    write_json(run_dir / FINISHED, {"schema": SCHEMA, "step": step, "recipe_sha256": recipe_sha256, **facts})


def finished(run_dir: Path) -> dict[str, Any] | None:
    """Return what `finish_run` wrote, or None for a run that has not finished. Raises DataError for a damaged file."""
    path = run_dir / FINISHED
    facts = read_json(path) if path.is_file() else None
    if facts is not None and not (isinstance(facts, dict) and "step" in facts):
        raise DataError(f"{path}: has no `step`, so the file is damaged; delete it to resume the run")
    return facts


def set_aside(folder: Path) -> Path:
    """Rename a folder to `set-aside-NAME`, so that nothing uses it any more, and return its new path."""
    names = [f"{ASIDE}{folder.name}", *(f"{ASIDE}{folder.name}.{number}" for number in range(2, 1000))]
    target = next(folder.with_name(name) for name in names if not folder.with_name(name).exists())
    return folder.rename(target)


def _is_marker(path: Path, folder: Path) -> bool:
    return path.parent == folder and (path.name == MARKER or path.name.startswith(f".{MARKER}."))


def numbered(parent: Path, prefix: str) -> list[tuple[int, Path]]:
    """Return (N, folder) of the folders `PREFIX-N` in `parent`, highest first."""
    if not parent.is_dir():
        return []
    named = [(re.fullmatch(rf"{prefix}-(\d+)", path.name), path) for path in parent.iterdir() if path.is_dir()]
    return sorted(((int(match[1]), path) for match, path in named if match), reverse=True)
