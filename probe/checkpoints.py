"""Which checkpoint may be trusted, and whether a training run has come to its end.

A checkpoint counts only once its marker, `complete.json`, stands in it: written last, by rename, with the size of every
file, after all processes have saved. Training resumes from such checkpoints only, and `probe watch` measures no others.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from nextturn.probe.errors import DataError
from nextturn.probe.files import read_json, write_json

SCHEMA = 1
MARKER = "complete.json"
STATE = "trainer_state.json"
FINISHED = "finished.json"
ASIDE = "set-aside-"
KEPT = ".kept"
"""The folder in RUN_DIR/probe with the models of checkpoints that `probe watch` is still to measure."""


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


def is_complete(folder: Path, left_out: tuple[str, ...] = ()) -> str | None:
    """Return None for a complete checkpoint, else the reason why it is none, in words.

    Args:
        left_out: Beginnings of file names that need not be there.
    """
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
        if left_out and name.startswith(left_out):
            continue
        try:
            found = (folder / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if found != size:
            return f"{name} has {found} bytes, {size} were saved"
    if STATE in sizes:
        try:
            read_json(folder / STATE)
        except DataError:
            return f"its {STATE} cannot be read"
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


# What `keep` leaves out: the beginnings of the names of the files that only training reads.
_TRAINING_STATE = ("optimizer", "scheduler", "scaler", "rng_state", "global_step")


def keep(checkpoint: Path, kept: Path) -> None:
    """Link a complete checkpoint's model files into the folder `kept`, which rotation (`save_total_limit`) leaves alone.

    A hard link needs no space while the checkpoint stands. Files are copied where links are impossible. A checkpoint that
    was saved again replaces what was kept before.

    Raises:
        OSError: The checkpoint was deleted meanwhile, or the file system takes neither links nor copies.
    """
    if saved_at(kept) == saved_at(checkpoint) is not None:
        return
    making = kept.with_name(f".{kept.name}")
    shutil.rmtree(making, ignore_errors=True)
    try:
        state = shutil.ignore_patterns(*(f"{name}*" for name in _TRAINING_STATE))
        shutil.copytree(checkpoint, making, ignore=state, copy_function=_link)
        if (reason := is_complete(making, _TRAINING_STATE)) is not None:
            raise FileNotFoundError(f"{checkpoint} was deleted meanwhile: {reason}")
        shutil.rmtree(kept, ignore_errors=True)
        making.rename(kept)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)


def saved_at(folder: Path) -> int | None:
    """Return when a checkpoint was saved, in nanoseconds; a kept one has the time of its original. None without a marker."""
    try:
        with (folder / MARKER).open("rb") as file:  # NFS answers `stat` from a cache, but asks the server for an `open`
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def finish_run(run_dir: Path, step: int, recipe_sha256: str, **facts: Any) -> None:
    """Writes `finished.json`, last of all: the run has trained all its steps with this recipe."""
    write_json(run_dir / FINISHED, {"schema": SCHEMA, "step": step, "recipe_sha256": recipe_sha256, **facts})


def finished(run_dir: Path) -> dict[str, Any] | None:
    """What `finish_run` wrote, or None for a run that has not come to its end."""
    path = run_dir / FINISHED
    found = read_json(path) if path.is_file() else None
    if found is not None and not (isinstance(found, dict) and "step" in found):
        raise DataError(f"{path}: holds no `step`, so the file is damaged; delete it to resume the run")
    return found


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
