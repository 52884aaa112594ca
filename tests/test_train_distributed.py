"""SFT in real launches: two processes under ZeRO train, probe inline and save, are killed, and resume to the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from probe.errors import run_command
from tests.launches import ROOT, history, kill_after, launch
from train.sft import main

STEPS, SAVE = 4, 2


def write_recipe(folder: Path, model: Path, lora: bool = False) -> Path:
    """A recipe that trains a tiny model for a few steps and probes it at every checkpoint."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Ann has {n} apples and buys {n + 1}. How many?"},
                {"role": "assistant", "content": f"{n} + {n + 1} = {2 * n + 1}. The answer is \\boxed{{{2 * n + 1}}}."},
                {"role": "user", "content": "Why add?"},
                {"role": "assistant", "content": "Because buying makes more."},
            ]
        }
        for n in range(12)
    ]
    (folder / "conversations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = [
        {"id": str(n), "question": f"Ann has {n} apples and eats 1. How many?", "answer": str(n - 1)} for n in (3, 4, 5)
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    recipe = {
        "model": {"name": str(model), "dtype": "float32", **({"lora": {"r": 4, "alpha": 8}} if lora else {})},
        "data": {"path": str(folder / "conversations.jsonl")},
        "train": {
            "output_dir": str(folder / "run"), "max_steps": STEPS, "save_steps": SAVE, "logging_steps": 1,
            "per_device_train_batch_size": 2, "learning_rate": 1e-3, "bf16": False, "gradient_checkpointing": False,
            "save_strategy": "steps", "seed": 3,
        },
        "probe": {"sets": {"apples": {"path": str(folder / "questions.jsonl")}}, "max_answer_tokens": 8, "max_user_tokens": 6},
        "tracking": {"to": "none"},
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def probed(folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results


@pytest.mark.parametrize(("stage", "kind"), [(2, "tiny_model"), (3, "tiny_multimodal")])
def test_a_killed_zero_run_resumes_to_the_losses_and_probes_that_it_had(
    stage: int, kind: str, request: pytest.FixtureRequest, own_cache: Path, tmp_path: Path, capsys: Any
) -> None:
    """The first launch trains every step and is killed as soon as its last checkpoint is whole. That one is torn and the
    probe of the one before is taken away: the second launch makes both again, from the checkpoint before.

    Under ZeRO-3 the model is multimodal, so that one process converts it while the other waits.
    """
    config, recipe, run = (
        f"cpu2_zero{stage}.yaml",
        write_recipe(tmp_path, request.getfixturevalue(kind)),
        tmp_path / "run",
    )
    first, last = run / f"checkpoint-{SAVE}", run / f"checkpoint-{STEPS}"
    output = kill_after("sft.py", recipe, config, last / "complete.json")
    assert f"ZeRO-{stage} on 2 processes" in output
    (run / "probe" / f"step-{SAVE}").rename(tmp_path / "before")
    (last / "complete.json").unlink()

    output = launch("sft.py", recipe, config)
    assert f"resumes from {first}; skips checkpoint-{STEPS}" in output
    losses, again = history(run / f"set-aside-checkpoint-{STEPS}"), history(last)
    assert [row["step"] for row in again] == list(range(1, STEPS + 1))
    assert [row["loss"] for row in again] == [row["loss"] for row in losses]
    ours, theirs = probed(run / "probe" / f"step-{SAVE}"), probed(tmp_path / "before")
    for key in ("accuracy", "followup", "settings", "model"):
        assert ours[key] == theirs[key], key
    folders = sorted(path.parent.name for path in (run / "probe").glob("*/results.json"))
    assert folders == ["base", f"step-{SAVE}", f"step-{STEPS}"]
    assert (run / "probe" / "comparison" / "tradeoff.png").stat().st_size > 10_000

    capsys.readouterr()
    assert run_command(main, [str(recipe)]) == 0
    assert f"finished at step {STEPS}" in capsys.readouterr().out, "a third start finds nothing to do"


def test_lora_on_one_process_says_that_deepspeed_waits_for_more_and_a_changed_recipe_is_refused(
    tiny_model: Path, tmp_path: Path, capsys: Any
) -> None:
    recipe = write_recipe(tmp_path, tiny_model, lora=True)
    options = ("--train.deepspeed", str(ROOT / "recipes" / "deepspeed" / "zero2.json"), "--train.max_steps", "2")
    output = launch("sft.py", recipe, "cpu.yaml", *options)
    assert "one process runs without DeepSpeed" in output
    checkpoint = tmp_path / "run" / "checkpoint-2"
    assert (checkpoint / "adapter_model.safetensors").is_file()
    trained = json.loads((checkpoint / "adapter_config.json").read_text())["target_modules"]
    assert {"in_proj_qkv", "in_proj_z", "out_proj"} <= set(trained), "linear attention has adapters too"
    probes = tmp_path / "run" / "probe"
    assert probed(probes / "step-2")["model"]["weights_sha256"] != probed(probes / "base")["model"]["weights_sha256"]

    assert run_command(main, [str(recipe), *options, "--train.learning_rate", "1e-4"]) == 2
    assert "train.learning_rate: 0.001 then, 0.0001 now" in capsys.readouterr().err
