"""What a run begins with besides its recipe: the checkpoint of its base, its data and its simulated user, in RUN_DIR/inputs.json.

A recipe names folders and files, and these may hold something else when the run is resumed: a run directory has a newer
checkpoint, a file has other rows. A resumed run uses the recorded checkpoints and refuses other weights, data and users.
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
from nextturn.probe.models.checkpoints import INPUTS, MARKER, finished, list_checkpoints
from nextturn.probe.models.folders import ModelFolder, fingerprint, resolve
from nextturn.probe.models.weights import sha256_of_seen
from nextturn.train.sections import DpoRecipe, GrpoRecipe, RolloutSection, SftRecipe, TrainRecipe

Inputs = dict[str, dict[str, Any]]
"""By kind (model, data, validation, simulator): where the input is (`path`), and the hashes and versions that identify it."""
BASE_OF = "base_of.json"
_VIEWS: dict[type[TrainRecipe], str] = {SftRecipe: "sft", DpoRecipe: "preference", GrpoRecipe: "rl"}


def has_begun(run_dir: Path) -> bool:
    """Return True if a run has saved or measured something that other settings and inputs could mix with."""
    return bool(list_checkpoints(run_dir) or finished(run_dir) or (run_dir / "probe").exists())


def recorded(run_dir: Path) -> Inputs:
    """Return what inputs.json says; {} for a run that did nothing yet or was begun by a version without this file.

    The hashes of large files are taken from it, so that a file of the same size and time is not read again.
    """
    if not ((run_dir / INPUTS).is_file() and has_begun(run_dir)):
        return {}
    known: dict[str, Any] = read_json(run_dir / INPUTS)
    sha256_of_seen.update({(path, size, time): sha256 for path, size, time, sha256 in known.pop("files")})
    return known


def find_model(name: str, kind: str, run_dir: Path, known: Inputs, inputs: Inputs) -> ModelFolder:
    """Return the model that a run uses, and add it to `inputs`: the recorded checkpoint, else the one that `name` stands for now.

    Raises:
        ModelError: There is no such model.
        SettingsChanged: The recorded checkpoint is gone, or has other weights.
    """
    folder = _recorded_model(known[kind], name) if kind in known else resolve(name)
    if folder is None:
        raise _changed(run_dir, kind, known[kind]["path"], "is gone or has other weights now")
    inputs[kind] = {"path": str(folder.path), "sha256": fingerprint(folder)}
    say(f"{kind:<9} {folder.path}, {inputs[kind]['sha256'][:12]}{_state(folder.path)}")
    return replace(folder, name=name)


def _recorded_model(known: dict[str, Any], name: str) -> ModelFolder | None:
    """Return the model with the recorded weights, where it was or under its name; None if neither place has it."""
    for place in (known["path"], name):
        with suppress(ModelError):
            if fingerprint(folder := resolve(place)) == known["sha256"]:
                return folder
    return None


def _state(folder: Path) -> str:
    """Return what a line about a run's checkpoint says of that run; "" for other folders."""
    if not (folder / MARKER).is_file():
        return ""
    done, step = finished(folder.parent), read_json(folder / MARKER)["step"]
    if done is None:
        return "; its run has not finished"
    return (
        "; the last checkpoint of a finished run" if done["step"] == step else f"; its run ended at step {done['step']}"
    )


def _changed(run_dir: Path, kind: str, path: object, how: str) -> SettingsChanged:
    return SettingsChanged(
        f"{run_dir}: the {kind} that this run was begun with, {path}, {how}; restore it, or begin another run with "
        "--train.output_dir ANOTHER"
    )


def add_simulator(section: SimulatorSection, run_dir: Path, known: Inputs, inputs: Inputs) -> None:
    """Add the simulated user to `inputs`: its name and version, and the weights of its model or the file of its class.

    Raises:
        BadInput: It cannot be used, see also `find_model`.
    """
    about = {"path": section.engine, "version": VERSION, **check_own_class(section, "rollout.simulator")}
    if section.model is not None:
        find_model(section.model, "simulator", run_dir, known, inputs)
    inputs["simulator"] = about | inputs.get("simulator", {})


def recorded_simulator(rollout: RolloutSection, inputs: Inputs) -> RolloutSection:
    """Return the section with the checkpoint that `simulator.model` stands for in this run, if that is a run directory."""
    name, place = rollout.simulator.model, Path(inputs["simulator"]["path"])
    if name is None or not place.is_dir() or place.parent != Path(name).absolute():
        return rollout
    return rollout.model_copy(update={"simulator": rollout.simulator.model_copy(update={"model": str(place)})})


def add_data(inputs: Inputs, recipe: TrainRecipe, data: Path, validation: Path | None) -> None:
    """Add the hashes of the data that a stage reads: its view of a build, or the whole file or folder."""
    for kind, path in (("data", data), ("validation", validation)):
        if path is not None:
            rows = path / _VIEWS[type(recipe)] if path.is_dir() and not is_saved(path) else path
            inputs[kind] = {"path": str(path), "sha256": sha256_of(rows)}


def refuse_changed(run_dir: Path, known: Inputs, now: Inputs) -> None:
    """Raise SettingsChanged if an input is not the recorded one. Where it lies may change."""
    for kind, before in known.items():
        if before | {"path": ""} != now.get(kind, {}) | {"path": ""}:
            raise _changed(run_dir, kind, before["path"], "has changed since")


def write_inputs(run_dir: Path, inputs: Inputs) -> None:
    """Write inputs.json, with the hashes of the files that were read."""
    write_json(run_dir / INPUTS, {**inputs, "files": [[*key, sha256] for key, sha256 in sha256_of_seen.items()]})


# --- A checkpoint that another run starts from outlives the rotation of its own run (`save_total_limit`).


def keep_base(folder: ModelFolder, run_dir: Path) -> None:
    """Name a run in the checkpoints that it starts from: an adapter's, and that of its base."""
    for path in {folder.path, folder.whole}:
        if (path / MARKER).is_file() and str(run_dir.absolute()) not in (runs := _runs_on(path)):
            try:
                write_json(path / BASE_OF, [*runs, str(run_dir.absolute())])
            except OSError as error:
                say(f"note: {path} cannot be marked as a base ({error.strerror}), so its own run may delete it")


def is_base(checkpoint: Path) -> bool:
    """Return True if a run that starts from this checkpoint is on this machine."""
    return any((Path(run) / INPUTS).is_file() for run in _runs_on(checkpoint))


def _runs_on(checkpoint: Path) -> list[str]:
    return read_json(checkpoint / BASE_OF) if (checkpoint / BASE_OF).is_file() else []


def check_validation(rows: Sequence[Mapping[str, list[int]]], validation: Sequence[Mapping[str, list[int]]]) -> None:
    """Check that the validation rows are not those that are trained.

    Raises:
        DataError: All of them are.
    """
    trained = {tuple(row["input_ids"]) for row in rows}
    shared = sum(tuple(row["input_ids"]) in trained for row in validation)
    if shared and shared == len(validation):
        raise DataError(
            f"data.validation: all {shared} rows are trained on, too; name other conversations, or leave it out"
        )
    if shared:
        say(f"warning: {shared} of {len(validation)} rows of data.validation are trained on, too")
