"""Training works without the packages that only some recipes need."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextturn.probe.command.errors import BadInput, run_command
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.command.sections import TrackingSection
from nextturn.probe.engines.hf import live_model
from nextturn.probe.models.folders import load_model, resolve
from nextturn.probe.report.tracking import check_tracker
from nextturn.train.setup import check_devices
from nextturn.train.sft import main
from support.commands import without
from support.model_parts import lora_on
from support.sft_parts import write_data, write_recipe


def test_training_and_its_probe_need_neither_wandb_nor_deepspeed(
    tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nextturn.train.overrides  # noqa: F401 - brings trl, which for other tests has to know of deepspeed

    recipe = write_recipe(tmp_path, tiny_chatml, {"path": str(write_data(tmp_path))}, {"max_steps": 1})
    without(monkeypatch, "wandb", "deepspeed")
    assert run_command(main, [str(recipe)]) == 0
    assert (tmp_path / "run" / "finished.json").is_file()
    assert (tmp_path / "run" / "probe" / "step-1" / "results.json").is_file()


def test_a_recipe_that_needs_one_of_them_names_the_extra(
    tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "wandb", "deepspeed")
    rows = tmp_path / "rows.jsonl"
    write_jsonl(rows, [{"prompt": "What is 2 + 2?", "completion": "4"}])
    recipe = write_recipe(tmp_path, tiny_chatml, {"path": str(rows)})
    assert run_command(main, [str(recipe), "--tracking.to", "wandb"]) == 2
    assert "nextturn[wandb]" in capsys.readouterr().err
    check_devices({"deepspeed": "zero2.json"}, on_gpu=True, for_cpus=False, gpus=1)  # one process runs without it
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadInput, match=r"nextturn\[deepspeed\]"):
        check_devices({"deepspeed": "zero2.json"}, on_gpu=True, for_cpus=False, gpus=2)


def test_the_probe_works_in_an_environment_without_extras_and_names_the_extra_where_one_is_needed(
    tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import Trainer, TrainingArguments

    adapter = lora_on(tiny_chatml, tmp_path / "lora")
    folder = resolve(str(tiny_chatml))
    model = load_model(folder, "float32", "cpu")
    trainer = Trainer(model, TrainingArguments(str(tmp_path / "trainer"), use_cpu=True, report_to=[]))
    without(monkeypatch, "deepspeed", "peft", "trl", "vllm", "wandb")
    with live_model(trainer, "bfloat16") as live:
        assert live is not model
    with pytest.raises(BadInput, match=r"nextturn\[lora\]"):
        load_model(resolve(str(adapter)))
    rows = tmp_path / "rows.jsonl"
    write_jsonl(rows, [{"prompt": "What is 2 + 2?", "completion": "4"}])
    recipe = write_recipe(tmp_path, tiny_chatml, {"path": str(rows)})
    assert run_command(main, [str(recipe)]) == 2
    error = capsys.readouterr().err
    assert "nextturn[train]" in error and error.count("\n") == 1


def test_trackers_are_those_that_transformers_finds() -> None:
    for name in ("none", "wandb"):
        check_tracker(TrackingSection(to=name))
    with pytest.raises(BadInput, match=r"tracking\.to: given floppy"):
        check_tracker(TrackingSection(to="floppy"))
