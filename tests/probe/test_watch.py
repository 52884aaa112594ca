"""Every complete checkpoint is measured once, despite kills, rotation and failures, by one watcher at a time."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextturn.probe import run as probe_run
from nextturn.probe.__main__ import main
from nextturn.probe.command.errors import NextturnError, SettingsChanged
from nextturn.probe.command.recipe import load_recipe, recipe_dict
from nextturn.probe.command.sections import ProbeRecipe, ProbeSection, load_probe_recipe
from nextturn.probe.engines.hf import HfEngine
from nextturn.probe.models import layouts
from nextturn.probe.models.checkpoints import finish_run, mark_complete
from nextturn.probe.models.folders import fingerprint, resolve
from nextturn.probe.plan import load_sets
from nextturn.probe.run import measure_folder
from nextturn.probe.watch import Watcher, command
from nextturn.train.resume import remove_incomplete
from support.commands import start
from support.model_parts import lora_on


@pytest.fixture(autouse=True)
def no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watchers of this process write none: plots cost more than probes. The watcher with a process of its own does."""
    monkeypatch.setattr("nextturn.probe.compare.compare", lambda runs, out: None)
    monkeypatch.setattr("nextturn.probe.report.comparison.terminal_table", lambda comparison: "")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path / "probe.yaml")


@pytest.fixture
def run_dir(tmp_path: Path, tiny_chatml: Path) -> Path:
    begin(tmp_path / "run", tiny_chatml)
    return tmp_path / "run"


def write_recipe(path: Path, **changed: Any) -> Path:
    asked = [{"id": str(n), "question": f"Ann has {n} apples and eats 1. How many?", "answer": str(n)} for n in (3, 4)]
    (path.parent / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    probe = {"sets": {"apples": {"path": str(path.parent / "asked.jsonl")}}, "temperatures": [0.0], "grounding": False}
    path.write_text(yaml.safe_dump({"probe": {**probe, "max_answer_tokens": 4, "max_user_tokens": 3, **changed}}))
    return path


def begin(run_dir: Path, model: Path) -> None:
    """Write what training writes first."""
    run_dir.mkdir()
    (run_dir / "recipe.json").write_text(
        json.dumps({"model": {"name": str(model), "dtype": "float32"}, "train": {"output_dir": str(run_dir)}})
    )


def save(run_dir: Path, step: int, model: Path, complete: bool = True) -> Path:
    """Write a checkpoint as training does: weights of its own, the optimizer's state, the marker last."""
    import torch
    from safetensors.torch import load_file, save_file

    checkpoint = run_dir / f"checkpoint-{step}"
    shutil.copytree(model, checkpoint)
    weights = load_file(checkpoint / "model.safetensors")
    name = sorted(weights)[0]
    weights[name] = weights[name] + step / 1000 if step >= 0 else torch.full_like(weights[name], torch.nan)
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    (checkpoint / "optimizer.pt").write_bytes(b"moments")
    (checkpoint / "global_step1").mkdir()
    (checkpoint / "global_step1" / "shard.pt").write_bytes(b"shard")
    if complete:
        mark_complete(checkpoint, step)
    return checkpoint


def watcher(run_dir: Path, recipe: Path) -> Watcher:
    probe = section(recipe)
    return Watcher(run_dir, probe, load_sets(probe), "cpu", 0.0)


def section(recipe: Path) -> ProbeSection:
    return load_recipe(ProbeRecipe, recipe).probe


def begin_watching(run_dir: Path, recipe: Path, log: Path) -> start:
    return start(["-m", "nextturn.probe", "watch", str(run_dir), str(recipe), "--poll", "0.1"], log=log)


def wait_until(true: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def finished(run_dir: Path) -> list[str]:
    return sorted(
        (path.parent.name for path in (run_dir / "probe").glob("*/results.json")),
        key=lambda name: int(name.partition("-")[2] or 0),
    )


def result(run_dir: Path, name: str) -> dict[str, Any]:
    return {**json.loads((run_dir / "probe" / name / "results.json").read_text()), "timing": None}


def alone(model: Path, recipe: Path, out: Path, name: str, **step: int) -> dict[str, Any]:
    """Return the results of a probe of this model without a watcher."""
    probe = section(recipe)
    return {**measure_folder(resolve(str(model)), probe, load_sets(probe), out, name, "cpu", **step), "timing": None}


def test_checkpoints_are_measured_once_and_in_order_despite_a_kill_and_by_one_watcher_at_a_time(
    tmp_path: Path, recipe: Path, tiny_chatml: Path
) -> None:
    run_dir, log = tmp_path / "run", tmp_path / "last.log"
    first = begin_watching(run_dir, recipe, tmp_path / "first.log")  # before the run begins
    begin(run_dir, tiny_chatml)
    wait_until(lambda: (run_dir / "probe" / "base").is_dir())
    with pytest.raises(NextturnError, match=f"process {first.pid} on {socket.gethostname()}") as refused:
        watcher(run_dir, recipe).follow(once=True)
    assert refused.value.exit_code == 2
    first.kill()
    last = begin_watching(run_dir, recipe, log)
    save(run_dir, 99, tiny_chatml, complete=False)
    for step in (1, 2):
        checkpoint = save(run_dir, step, tiny_chatml)
        if step == 1:  # rotated away as soon as it is kept, or measured
            wait_until(lambda: (run_dir / "probe" / ".kept" / "step-1").is_dir() or "step-1" in finished(run_dir))
            shutil.rmtree(checkpoint)
    finish_run(run_dir, 2, "sha")
    assert last.wait() == 0, log.read_text()

    names = ["base", "step-1", "step-2"]
    assert finished(run_dir) == names, "all that were complete, and no other"
    measured = re.findall(r"^measures (\S+)$", log.read_text(), flags=re.MULTILINE)
    assert measured[-2:] == names[1:] and measured[:-2] in ([], ["base"])
    for name in names:
        rows = [json.loads(line)["key"] for line in (run_dir / "probe" / name / "generations.jsonl").open()]
        assert len(rows) == len(set(rows)) == 4, "2 answers and 2 user turns, none made twice"
    assert len({result(run_dir, name)["model"]["weights_sha256"] for name in names}) == 3
    compared = json.loads((run_dir / "probe" / "comparison" / "comparison.json").read_text())
    assert [run["name"] for run in compared["runs"]] == names
    assert log.read_text().rstrip().endswith(str(run_dir / "probe" / "comparison" / "report.html"))
    assert not list((run_dir / "probe" / ".kept").iterdir())


def test_a_probe_that_was_interrupted_is_resumed_where_it_stopped(
    run_dir: Path, recipe: Path, tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations, stream = run_dir / "probe" / "base" / "generations.jsonl", HfEngine.stream

    def interrupted(engine: HfEngine, requests: Any) -> Any:
        yield from list(stream(engine, requests))
        raise KeyboardInterrupt  # after the answers, before the user turns

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(HfEngine, "stream", interrupted)
        watcher(run_dir, recipe).follow(once=True)
    before = generations.read_text()
    assert finished(run_dir) == [] and before.count("\n") == 2
    watcher(run_dir, recipe).follow(once=True)
    after = generations.read_text()
    assert after.startswith(before) and after.count("\n") == 4
    assert result(run_dir, "base") == alone(tiny_chatml, recipe, tmp_path / "whole", "base", step=0)


def test_a_rotated_checkpoint_is_measured_from_its_kept_model_under_its_own_name(
    run_dir: Path, recipe: Path, tiny_chatml: Path, tmp_path: Path
) -> None:
    checkpoints = {"step-4": save(run_dir, 4, tiny_chatml), "step-5": lora_on(tiny_chatml, run_dir / "checkpoint-5")}
    mark_complete(checkpoints["step-5"], 5)
    expected = {name: alone(path, recipe, tmp_path / name, name) for name, path in checkpoints.items()}
    watching = watcher(run_dir, recipe)
    watching.keep_new()
    for name, checkpoint in checkpoints.items():
        kept = run_dir / "probe" / ".kept" / name
        assert not {"optimizer.pt", "global_step1"} & {path.name for path in kept.iterdir()}
        for weights in kept.glob("*.safetensors"):
            assert weights.samefile(checkpoint / weights.name), "a link needs no space while the checkpoint exists"
        shutil.rmtree(checkpoint)
    watching.follow(once=True)
    assert {name: result(run_dir, name) for name in checkpoints} == expected, "as a probe of the checkpoint itself"
    base = result(run_dir, "base")["model"]
    assert (base["path"], base["label"], base["step"]) == (str(tiny_chatml), "base", 0)
    assert not list((run_dir / "probe" / ".kept").iterdir())


def test_a_checkpoint_that_fails_stops_no_other_and_is_named_at_the_end(
    run_dir: Path, recipe: Path, tiny_chatml: Path
) -> None:
    save(run_dir, -1, tiny_chatml).rename(run_dir / "checkpoint-2")
    (save(run_dir, 4, tiny_chatml, complete=False) / "model.safetensors").write_bytes(b"\x00" * 4)
    mark_complete(run_dir / "checkpoint-4", 4)
    save(run_dir, 6, tiny_chatml)
    finish_run(run_dir, 4, "sha")
    with pytest.raises(
        NextturnError, match=r"not measured: step-2 \(.*not numbers.*; step-4 \(.*safetensors"
    ) as caught:
        watcher(run_dir, recipe).follow()
    assert caught.value.exit_code == 1 and finished(run_dir) == ["base", "step-6"]
    shutil.rmtree(run_dir / "checkpoint-4")
    with pytest.raises(NextturnError, match="step-2"):  # another start tries again what failed
        watcher(run_dir, recipe).follow()


def test_a_checkpoint_gone_before_it_was_kept_is_reported(
    run_dir: Path, recipe: Path, tiny_chatml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (2, 4):
        save(run_dir, step, tiny_chatml)
    link = layouts.link

    def rotated_meanwhile(source: Path, target: Path) -> None:
        if source.parent.name == "checkpoint-2":
            shutil.rmtree(source.parent, ignore_errors=True)
        link(source, target)

    monkeypatch.setattr(layouts, "link", rotated_meanwhile)
    watching = watcher(run_dir, recipe)
    watching.keep_new()
    assert f"{run_dir}/checkpoint-2 could not be kept" in capsys.readouterr().out
    assert watching.steps() == [0, 4]
    assert [path.name for path in (run_dir / "probe" / ".kept").iterdir()] == ["step-4"]


def test_files_are_copied_where_links_are_impossible_and_a_new_saving_replaces_the_old(
    run_dir: Path, recipe: Path, tiny_chatml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*paths: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refused)
    checkpoint = save(run_dir, 2, tiny_chatml)
    mine, place = watcher(run_dir, recipe), run_dir / "probe" / ".kept" / "step-2"
    mine.keep_new()
    first = fingerprint(resolve(str(place)))
    assert first == fingerprint(resolve(str(checkpoint)))
    mine.keep_new()
    shutil.rmtree(checkpoint)
    again = save(run_dir, 3, tiny_chatml).rename(checkpoint)
    mine.keep_new()
    assert fingerprint(resolve(str(place))) == fingerprint(resolve(str(again))) != first
    assert [path.name for path in place.parent.iterdir()] == ["step-2"], "nothing half done is left behind"


def test_a_probe_whose_checkpoint_goes_away_writes_no_figures_for_the_next_one(
    run_dir: Path, recipe: Path, tiny_chatml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training resumes from step 2 while step-4 is measured: its folder is gone, and the new step-4 is measured."""
    for step in (2, 4):
        save(run_dir, step, tiny_chatml)
    graded = probe_run.count_figures

    def training_goes_back(*rows: Any) -> dict[str, Any]:
        if (run_dir / "probe" / "step-4").exists():
            monkeypatch.setattr(probe_run, "count_figures", graded)
            remove_incomplete(run_dir, run_dir / "checkpoint-2")
        return graded(*rows)

    monkeypatch.setattr(probe_run, "count_figures", training_goes_back)
    watcher(run_dir, recipe).follow(once=True)
    assert not (run_dir / "probe" / ".kept" / "step-4").exists(), "the model is gone, too"
    assert "leaves step-4" in capsys.readouterr().out
    assert finished(run_dir) == ["base", "step-2"]
    save(run_dir, 5, tiny_chatml).rename(run_dir / "checkpoint-4")
    watcher(run_dir, recipe).follow(once=True)
    measured = result(run_dir, "step-4")["model"]["weights_sha256"]
    assert measured == fingerprint(resolve(str(run_dir / "checkpoint-4")))


def test_other_settings_than_those_of_finished_probes_are_refused_before_anything_is_measured(
    run_dir: Path, recipe: Path, tiny_chatml: Path
) -> None:
    watcher(run_dir, recipe).follow(once=True)
    save(run_dir, 2, tiny_chatml)
    with pytest.raises(SettingsChanged, match="max_user_tokens: 3 then, 5 now"):
        watcher(run_dir, write_recipe(recipe, max_user_tokens=5)).follow(once=True)
    assert finished(run_dir) == ["base"]


def test_the_printed_command_watches_with_the_runs_own_recipe(run_dir: Path, recipe: Path) -> None:
    whole = json.loads((run_dir / "recipe.json").read_text())
    (run_dir / "recipe.json").write_text(json.dumps({**whole, "probe": recipe_dict(section(recipe))}))
    words = command(run_dir).split()
    assert words[:3] == ["nextturn", "probe", "watch"]
    loaded = load_probe_recipe(words[-1], ["--probe.seed", "1"]).probe
    assert loaded.seed == 1 and loaded.sets == section(recipe).sets


@pytest.mark.parametrize(("first", "own"), [("train.log", True), ("checkpoint-5/config.json", False)])
def test_a_folder_is_another_trainers_only_if_it_holds_a_step(
    first: str, own: bool, recipe: Path, tmp_path: Path, tiny_chatml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, found = tmp_path / "run", list[bool]()
    (run_dir / first).parent.mkdir(parents=True)
    (run_dir / first).touch()

    def training_begins(seconds: float) -> None:
        begin(tmp_path / "begun", tiny_chatml)
        (tmp_path / "begun" / "recipe.json").rename(run_dir / "recipe.json")

    monkeypatch.setattr("time.sleep", training_begins)
    monkeypatch.setattr(Watcher, "follow", lambda self, once: found.append(self.own))
    main(["watch", str(run_dir), str(recipe), "--device", "cpu"])
    assert found == [own]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("run", "probe.yaml", "--once"), "recipe.json"),
        (("run", "nowhere.yaml"), "nowhere.yaml"),
        (("run", "probe.yaml", "--poll", "0"), "--poll: given 0"),
        (("run", "probe.yaml", "--probe.sed", "1"), "probe.seed"),
    ],
)
def test_bad_input_is_refused_at_once(
    options: tuple[str, ...], message: str, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe.parent)
    with pytest.raises(NextturnError, match=message) as refused:
        main(["watch", *options])
    assert refused.value.exit_code == 2 and "\n" not in str(refused.value)
