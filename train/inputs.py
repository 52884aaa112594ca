"""What a run begins with besides its recipe: the checkpoint of its base, its data and its simulated user.

A recipe names folders and files, and these may hold something else when the run is resumed: a run directory has a newer
checkpoint, a file has other rows. The completion marker of each checkpoint records the inputs. A resumed run uses the
recorded base, and refuses other weights, data and users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from nextturn.data_builders.sections import SimulatorSection
from nextturn.data_builders.simulators import VERSION, check_own_class
from nextturn.probe.command.errors import DataError, ModelError, SettingsChanged
from nextturn.probe.command.files import read_json, write_json
from nextturn.probe.command.terminal import say
from nextturn.probe.data.tables import is_saved, sha256_of
from nextturn.probe.models.checkpoints import MARKER, finished, recorded_inputs
from nextturn.probe.models.folders import ModelFolder, fingerprint, resolve
from nextturn.probe.models.weights import sha256_of_seen
from nextturn.train.sections import DpoRecipe, GrpoRecipe, SftRecipe, TrainRecipe

Inputs = dict[str, dict[str, Any]]
"""By kind (model, data, validation, simulator): where the input is (`path`), and what identifies it."""
BASE_OF = "base_of.json"
_VIEWS: dict[type[TrainRecipe], str] = {SftRecipe: "sft", DpoRecipe: "preference", GrpoRecipe: "rl"}
_Rows = Sequence[Mapping[str, list[int]]]


def recorded(run_dir: Path) -> Inputs:
    """Return the inputs that a run was begun with; {} if it has no checkpoint, or one of an earlier version.

    The hashes of large files are taken from there, so that a file of the same size and time is not read again.
    """
    known = recorded_inputs(run_dir)
    sha256_of_seen.update({(path, size, time): sha256 for path, size, time, sha256 in known.pop("files", [])})
    return known


def to_record(inputs: Inputs) -> dict[str, Any]:
    """Return what a completion marker says: the inputs, and the hashes of the files that were read."""
    return {**inputs, "files": [[*key, sha256] for key, sha256 in sha256_of_seen.items()]}


def find_base(name: str, run_dir: Path, known: Inputs) -> tuple[ModelFolder, dict[str, Any]]:
    """Return the model that a run starts from (the recorded one, else what `name` stands for now), and its record.

    Raises:
        ModelError: There is no such model.
        SettingsChanged: The recorded model is gone, or has other weights.
    """
    folder = _recorded_model(known["model"], name) if known else resolve(name)
    if folder is None:
        raise _changed(run_dir, "model", known, "is gone or has other weights now")
    sha256 = fingerprint(folder)
    say(f"model     {base_line(folder)}")
    _keep_base(folder, run_dir)
    # A run directory stands for one of its checkpoints. Other names, such as a hub id, hold on other machines, too.
    place = str(folder.path) if folder.path.parent == Path(name).expanduser().absolute() else name
    return replace(folder, name=name), {"path": place, "sha256": sha256}


def _recorded_model(known: dict[str, Any], name: str) -> ModelFolder | None:
    """Return the model with the recorded weights, where it was or under its name; None if neither place has it."""
    for place in (known["path"], name):
        with suppress(ModelError):
            if fingerprint(folder := resolve(place)) == known["sha256"]:
                return folder
    return None


def base_line(folder: ModelFolder) -> str:
    """Return a model's folder, its hash and how far its run came, as text. Raises ModelError if its weights are not here."""
    line = f"{folder.path}, {fingerprint(folder)[:12]}"
    if not (folder.path / MARKER).is_file():
        return line
    done = finished(folder.path.parent)
    return f"{line}; its run finished at step {done['step']}" if done else f"{line}; its run has not finished"


def _changed(run_dir: Path, kind: str, known: Inputs, how: str) -> SettingsChanged:
    return SettingsChanged(
        f"{run_dir}: the {kind} that this run was begun with, {known[kind]['path']}, {how}; restore it, or begin another "
        "run with --train.output_dir ANOTHER"
    )


def inputs_of(recipe: TrainRecipe, data: Path, validation: Path | None) -> Inputs:
    """Return the data that a stage reads, which are its view of a build or a file, and the simulated user of GRPO."""
    found: Inputs = {}
    for kind, path in (("data", data), ("validation", validation)):
        if path is not None:
            rows = path / _VIEWS[type(recipe)] if path.is_dir() and not is_saved(path) else path
            found[kind] = {"path": str(path), "sha256": sha256_of(rows)}
    if isinstance(recipe, GrpoRecipe):
        found["simulator"] = _simulator(recipe.rollout.simulator)
    return found


def _simulator(section: SimulatorSection) -> dict[str, Any]:
    """Return the version of a simulated user, and the hash of its weights, or of the file of its class."""
    own_class = check_own_class(section, "rollout.simulator")
    here = section.model is not None and section.engine != "openai"
    weights = {"sha256": fingerprint(resolve(str(section.model)))} if here else {}
    return {"path": section.model or section.engine, "version": VERSION, **weights, **own_class}


def refuse_changed(run_dir: Path, known: Inputs, now: Inputs) -> None:
    """Raise SettingsChanged if an input is not the recorded one. Where it lies may change."""
    for kind in known:
        if known[kind] | {"path": ""} != now.get(kind, {}) | {"path": ""}:
            raise _changed(run_dir, kind, known, "has changed since")


def check_validation(rows: _Rows, validation: _Rows) -> None:
    """Warn of validation rows that are trained on, too. Raises DataError if all of them are."""
    trained = {tuple(row["input_ids"]) for row in rows}
    if shared := sum(tuple(row["input_ids"]) in trained for row in validation):
        line = f"{shared} of {len(validation)} rows of data.validation are trained on, too"
        if shared == len(validation):
            raise DataError(f"{line}; name other conversations, or leave it out")
        say(f"warning: {line}")


# --- A checkpoint that another run starts from outlives the rotation of its own run (`save_total_limit`).


def _keep_base(folder: ModelFolder, run_dir: Path) -> None:
    """Name a run in the checkpoints that it starts from: an adapter's, and that of its base."""
    for path in {folder.path, folder.whole}:
        if (path / MARKER).is_file() and str(run_dir.absolute()) not in (runs := _runs_on(path)):
            try:
                write_json(path / BASE_OF, [*runs, str(run_dir.absolute())])
            except OSError as error:
                say(f"note: {path} cannot be marked as a base ({error.strerror}), so its own run may delete it")


def is_base(checkpoint: Path) -> bool:
    """Return True if a run that starts from this checkpoint is on this machine."""
    return any((Path(run) / "recipe.json").is_file() for run in _runs_on(checkpoint))


def _runs_on(checkpoint: Path) -> list[str]:
    return read_json(checkpoint / BASE_OF) if (checkpoint / BASE_OF).is_file() else []
