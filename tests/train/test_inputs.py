"""A resumed run uses the base, the data and the simulated user that it was begun with, or is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from nextturn.data_builders.sections import SimulatorSection
from nextturn.probe.command.errors import DataError, SettingsChanged
from nextturn.probe.command.files import read_json, write_json, write_jsonl
from nextturn.probe.models.checkpoints import finish_run, list_checkpoints, mark_complete, recorded_inputs
from nextturn.probe.watch import Watcher
from nextturn.train import inputs
from nextturn.train.resume import rotate
from nextturn.train.sections import (
    DpoRecipe,
    GrpoRecipe,
    RolloutSection,
    SftRecipe,
    load_sft_recipe,
)
from nextturn.train.sft import train
from support.model_parts import copy_of
from support.sft_parts import take_back, write_data, write_recipe

STEPS = {"max_steps": 2, "save_steps": 1, "eval_strategy": "no"}
UNPROBED = {"when": "never"}


def other_weights(folder: Path) -> None:
    weights = {name: tensor + 1 for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def run_at(model: Path, run: Path, *steps: int, done: int | None = None) -> Path:
    """Make a run directory with a checkpoint at each step."""
    for step in steps:
        mark_complete(copy_of(model, run / f"checkpoint-{step}"), step)
    if done:
        finish_run(run, done, "0" * 64)
    return run


def test_a_resumed_run_refuses_inputs_that_changed(
    tiny_chatml: Path, tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, data, held_out = copy_of(tiny_chatml, tmp_path / "base"), write_data(tmp_path), tmp_path / "held_out.jsonl"
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    write_jsonl(data, rows[:8])
    write_jsonl(held_out, rows[8:])
    recipe = write_recipe(tmp_path, base, {"path": str(data), "validation": str(held_out)}, STEPS, UNPROBED)
    run = tmp_path / "run"
    train(load_sft_recipe(recipe))
    take_back(run, 1)
    whole = {path: path.read_bytes() for path in (data, held_out, base / "model.safetensors")}
    changes: dict[str, Callable[[], object]] = {
        "data": lambda: write_jsonl(data, [rows[9], *rows[:8]]),
        "validation": lambda: write_jsonl(held_out, rows[9:]),
        "model": lambda: other_weights(base),
    }
    for kind, change in changes.items():
        change()
        with pytest.raises(SettingsChanged, match=f"the {kind} .*--train.output_dir"):
            train(load_sft_recipe(recipe))
        for path, content in whole.items():
            path.write_bytes(content)
    marker = read_json(run / "checkpoint-1" / "complete.json")
    before = marker.pop("inputs")
    write_json(run / "checkpoint-1" / "complete.json", marker)  # as a run of an earlier version
    other_weights(base)
    train(load_sft_recipe(recipe))
    assert "earlier version" in capsys.readouterr().out
    assert recorded_inputs(run)["model"]["sha256"] != before["model"]["sha256"]


def test_a_run_on_a_run_directory_keeps_the_checkpoint_that_it_began_with(
    tiny_chatml: Path, tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run_at(tiny_chatml, tmp_path / "first", 2)
    data = {"path": str(write_data(tmp_path))}
    recipe = write_recipe(tmp_path, first, data, STEPS, UNPROBED, lora={"r": 2})
    run = tmp_path / "run"
    train(load_sft_recipe(recipe))
    assert "has not finished" in capsys.readouterr().out
    take_back(run, 1)
    other_weights(run_at(tiny_chatml, first, 3, 4, done=4) / "checkpoint-4")
    rotate(first, 1)
    assert [step for step, _ in list_checkpoints(first)] == [4, 2], "the base of a run on this machine is kept"
    train(load_sft_recipe(recipe))
    used = read_json(run / "checkpoint-2" / "adapter_config.json")["base_model_name_or_path"]
    assert used == str(first / "checkpoint-2")
    watcher = Watcher(run, load_sft_recipe(recipe).probe, [], None, 1.0)  # type: ignore[arg-type]
    assert watcher.started_from() == str(first / "checkpoint-2")
    take_back(run, 1)
    (first / "checkpoint-2").rename(tmp_path / "elsewhere")
    with pytest.raises(SettingsChanged, match=f"model .*{first}/checkpoint-2"):
        train(load_sft_recipe(recipe))
    shutil.rmtree(run)
    (tmp_path / "elsewhere").rename(first / "checkpoint-2")
    rotate(first, 1)
    assert [step for step, _ in list_checkpoints(first)] == [4], "that run is gone"
    train(load_sft_recipe(recipe))
    assert "finished at step 4" in capsys.readouterr().out


@pytest.mark.parametrize(("stage", "view"), [(SftRecipe, "sft"), (DpoRecipe, "preference"), (GrpoRecipe, "rl")])
@pytest.mark.parametrize("build", [True, False])
def test_the_rows_of_a_stage_are_an_input(stage: Any, view: str, build: bool, tmp_path: Path) -> None:
    def seen() -> inputs.Inputs:
        return inputs.inputs_of(stage.model_construct(rollout=RolloutSection()), path, None)

    for name in ("sft", "preference", "rl"):
        write_jsonl(tmp_path / name / "part-00000.jsonl", [{"n": 1}])
    path = tmp_path if build else tmp_path / view / "part-00000.jsonl"
    before = seen()
    for name in {"sft", "preference", "rl"} - {view}:
        write_jsonl(tmp_path / name / "part-00000.jsonl", [{"n": 2}])
    inputs.refuse_changed(tmp_path, before, seen())
    write_jsonl(tmp_path / view / "part-00000.jsonl", [{"n": 1}, {"n": 3}])
    with pytest.raises(SettingsChanged, match="the data"):
        inputs.refuse_changed(tmp_path, before, seen())


def test_the_simulated_user_is_an_input(
    tiny_chatml: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(section: SimulatorSection) -> inputs.Inputs:
        recipe = GrpoRecipe.model_construct(rollout=RolloutSection(simulator=section))
        return inputs.inputs_of(recipe, write_data(tmp_path), None)

    users = run_at(tiny_chatml, tmp_path / "users", 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = tmp_path / "user_of_one_line.py"
    own.write_text("class Mine:\n    def turns(self, requests):\n        return []\n")
    changes: list[tuple[SimulatorSection, Callable[[], object]]] = [
        (
            SimulatorSection(engine="adapter", model=str(users)),
            lambda: other_weights(run_at(tiny_chatml, users, 4) / "checkpoint-4"),
        ),
        (SimulatorSection(engine="user_of_one_line:Mine"), lambda: own.write_text(own.read_text() + "\n")),
        (SimulatorSection(), lambda: monkeypatch.setattr(inputs, "VERSION", inputs.VERSION + 1)),
    ]
    for section, change in changes:
        known = seen(section)
        inputs.refuse_changed(tmp_path, known, seen(section))
        change()
        with pytest.raises(SettingsChanged, match="the simulator"):
            inputs.refuse_changed(tmp_path, known, seen(section))


def test_validation_rows_are_not_those_that_are_trained(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"input_ids": [n, 5]} for n in range(4)]
    inputs.check_validation(rows, [{"input_ids": [9]}])
    assert capsys.readouterr().out == ""
    inputs.check_validation(rows, [{"input_ids": [9]}, rows[3]])
    assert "1 of 2" in capsys.readouterr().out
    with pytest.raises(DataError):
        inputs.check_validation(rows, rows[1:3])


def test_a_mark_that_cannot_be_written_is_said(
    tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_at(tiny_chatml, tmp_path / "first", 2)

    def refused(path: Path, value: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(inputs, "write_json", refused)
    inputs.find_base(str(run), tmp_path / "run", {})
    assert "Permission denied" in capsys.readouterr().out and not inputs.is_base(run / "checkpoint-2")
