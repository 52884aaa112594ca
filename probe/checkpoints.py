"""Which checkpoint may be trusted, and whether a training run has come to its end.

A checkpoint counts only once its marker, `complete.json`, stands in it: written last, by rename, with the size of every
file, after all processes have saved. Training resumes from such checkpoints only, and `probe watch` measures no others.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from probe.errors import DataError
from probe.files import read_json, write_json

SCHEMA = 1
MARKER = "complete.json"
FINISHED = "finished.json"
ASIDE = "set-aside-"


def mark_complete(folder: Path, step: int, launch: dict[str, int] | None = None) -> None:
    """Writes the marker; call it on one process, after all of them have written their part.

    The files are synced to disk first, so that after a power cut a marker never outlives what it vouches for.

    Args:
        launch: what saved it, as train/checkpoints.py has it; not in the markers of older runs.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not _is_marker(path, folder)]
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    told = {} if launch is None else {"launch": launch}
    write_json(folder / MARKER, {"schema": SCHEMA, "step": step, **told, "files": sizes})


def is_complete(folder: Path) -> str | None:
    """None for a complete checkpoint, else the reason why it is none, in words."""
    if not folder.is_dir():
        return "no such folder"
    if not (folder / MARKER).is_file():
        return f"no {MARKER}, so saving it was interrupted"
    try:
        files = read_json(folder / MARKER)["files"]
        sizes = {str(name): int(size) for name, size in files.items()}
    except (DataError, KeyError, TypeError, ValueError, AttributeError):
        return f"its {MARKER} cannot be read"
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes, {size} were saved"
    return None


def list_checkpoints(run_dir: Path) -> list[tuple[int, Path]]:
    """Every folder `checkpoint-N` of a run as (N, folder), newest first, complete or not."""
    return numbered(run_dir, "checkpoint")


def newest_complete(run_dir: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest complete checkpoint of a run, and the newer ones that were skipped, each with the reason."""
    skipped: list[tuple[Path, str]] = []
    for _, folder in list_checkpoints(run_dir):
        reason = is_complete(folder)
        if reason is None:
            return folder, skipped
        skipped.append((folder, reason))
    return None, skipped


def none_complete(skipped: list[tuple[Path, str]]) -> str:
    """What to say where `newest_complete` found none, after a folder's name."""
    return "no complete checkpoint in it" + (f" ({skipped[0][0].name}: {skipped[0][1]})" if skipped else "")


def finish_run(run_dir: Path, step: int, recipe_sha256: str, **facts: Any) -> None:
    """Writes `finished.json`, last of all: the run has trained all its steps with this recipe."""
    write_json(run_dir / FINISHED, {"schema": SCHEMA, "step": step, "recipe_sha256": recipe_sha256, **facts})


def finished(run_dir: Path) -> dict[str, Any] | None:
    """What `finish_run` wrote, or None for a run that has not come to its end."""
    return read_json(run_dir / FINISHED) if (run_dir / FINISHED).is_file() else None


def set_aside(folder: Path) -> Path:
    """Renames a folder beside itself, so that nothing takes it for what its name said; returns where it went."""
    names = [f"{ASIDE}{folder.name}", *(f"{ASIDE}{folder.name}.{number}" for number in range(2, 1000))]
    target = next(folder.with_name(name) for name in names if not folder.with_name(name).exists())
    return folder.rename(target)


def _is_marker(path: Path, folder: Path) -> bool:
    return path.parent == folder and (path.name == MARKER or path.name.startswith(f".{MARKER}."))


def numbered(parent: Path, prefix: str) -> list[tuple[int, Path]]:
    """(N, folder) of the folders `PREFIX-N` in `parent`, highest first."""
    if not parent.is_dir():
        return []
    named = [(re.fullmatch(rf"{prefix}-(\d+)", path.name), path) for path in parent.iterdir() if path.is_dir()]
    return sorted(((int(match[1]), path) for match, path in named if match), reverse=True)
