"""A checkpoint's model files, kept until they are measured, whatever the trainer's rotation does meanwhile.

`save_total_limit` deletes old checkpoints while a probe may be reading them or before it comes to them. A hard link is
another name for the same file: it costs nothing while the checkpoint stands, and afterwards the size of the model for
each checkpoint that still waits. The state of the optimizer, the schedule and the random numbers, usually the larger
part, is not kept. Where links are impossible the files are copied.

Kept files are those that complete.json lists, checked against the sizes there. They appear under their final name all at
once, by renaming the folder, and note which saving of the checkpoint they belong to, as training that goes back to an
earlier step writes the same checkpoint again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from probe.checkpoints import MARKER, numbered
from probe.errors import DataError, ModelError, NextturnError
from probe.files import read_json, write_json
from probe.models import ModelFolder, resolve
from probe.models.weights import weight_files

SOURCE = "kept.json"
_TRAINING_STATE = ("optimizer", "scheduler", "scaler", "rng_state", "global_step")


class CheckpointGone(NextturnError):
    """A checkpoint was deleted before it could be kept."""


def kept_checkpoints(place: Path) -> list[tuple[int, Path]]:
    """(step, folder) of what is kept in `place`, in step order."""
    return numbered(place, "step")[::-1]


def keep(checkpoint: Path, kept: Path) -> None:
    """Links a complete checkpoint's model files into the folder `kept`; nothing to do where they are kept already.

    Several processes may do this at once.

    Raises:
        CheckpointGone: it was deleted before every file was linked.
        OSError: the file system takes neither links nor copies, for instance because it is full.
    """
    try:
        saved_at = (checkpoint / MARKER).stat().st_mtime_ns
        if _saved_at(kept) == saved_at:
            return
        sizes = read_json(checkpoint / MARKER)["files"]
    except (FileNotFoundError, DataError):
        raise CheckpointGone(f"{checkpoint} was deleted before its model could be kept") from None
    kept.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=kept.parent, prefix=f".{kept.name}."))
    try:
        for name, size in sizes.items():
            if not name.startswith(_TRAINING_STATE):
                _link(checkpoint / name, temporary / name, size)
        write_json(temporary / SOURCE, {"schema": 1, "checkpoint": str(checkpoint), "saved_at_ns": saved_at})
        if kept.exists() and _saved_at(kept) != saved_at:
            shutil.rmtree(kept, ignore_errors=True)
        try:
            temporary.rename(kept)
        except OSError:
            if _saved_at(kept) != saved_at:  # else another process was faster, with the same files
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def drop(kept: Path) -> None:
    """Removes what is kept of a checkpoint, and what an interrupted `keep` left behind."""
    for folder in (kept, *kept.parent.glob(f".{kept.name}.*")):
        shutil.rmtree(folder, ignore_errors=True)


def kept_model(kept: Path, checkpoint: str) -> ModelFolder:
    """The model in a kept folder, under the name of the checkpoint that it is."""
    return replace(resolve(str(kept)), name=checkpoint)


def refuse_non_finite(folder: ModelFolder) -> None:
    """Raises ModelError for weights that are NaN or infinite: greedy decoding would give some text all the same."""
    for name in _non_finite(weight_files(folder.path)):
        raise ModelError(f"{folder.name}: {name} holds NaN or infinite values; the training run went wrong before it")


def _non_finite(files: Iterable[Path]) -> Iterable[str]:
    from safetensors import safe_open

    for path in files:
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - safetensors has no other way
                tensor = tensors.get_tensor(name)
                if tensor.is_floating_point() and not tensor.float().isfinite().all():
                    yield name


def _saved_at(kept: Path) -> int | None:
    try:
        return int(read_json(kept / SOURCE)["saved_at_ns"])
    except DataError:
        return None


def _link(source: Path, target: Path, size: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        try:
            os.link(source, target)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without hard links
            shutil.copy2(source, target)
    except FileNotFoundError:
        raise CheckpointGone(f"{source.parent} was deleted before its model could be kept") from None
    if target.stat().st_size != size:
        raise CheckpointGone(f"{source} changed while it was being kept: {target.stat().st_size} bytes, saved {size}")
