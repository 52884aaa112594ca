"""A real launch: two processes under ZeRO train, probe inline and save, are killed, and resume to the same loss."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
STEPS, SAVE = 6, 2


def write_recipe(folder: Path, model: Path, lora: bool = False) -> Path:
    """A recipe that trains a tiny model for a few steps and probes it at every checkpoint."""
    talk = [
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
    (folder / "talk.jsonl").write_text("".join(json.dumps(row) + "\n" for row in talk))
    asked = [
        {"id": str(n), "question": f"Ann has {n} apples and eats 1. How many?", "answer": str(n - 1)} for n in (3, 4, 5)
    ]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    recipe = {
        "model": {"name": str(model), "dtype": "float32", **({"lora": {"r": 4, "alpha": 8}} if lora else {})},
        "data": {"path": str(folder / "talk.jsonl")},
        "train": {
            "output_dir": str(folder / "run"), "max_steps": STEPS, "save_steps": SAVE, "logging_steps": 1,
            "per_device_train_batch_size": 2, "learning_rate": 1e-3, "bf16": False, "gradient_checkpointing": False,
            "save_strategy": "steps", "seed": 3,
        },
        "probe": {"sets": {"apples": {"path": str(folder / "asked.jsonl")}}, "max_answer_tokens": 8, "max_user_tokens": 6},
        "tracking": {"to": "none"},
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def command(recipe: Path, config: str | None, *options: str) -> list[str]:
    launch = [sys.executable, "-m", "accelerate.commands.launch"]
    config_file = ["--config_file", str(ROOT / "recipes" / "accelerate" / config)] if config else []
    port = ["--main_process_port", "0"] if config and "zero" in config else []
    return [*launch, *config_file, *port, str(ROOT / "train" / "sft.py"), str(recipe), *options]


ENVIRONMENT = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(recipe: Path, config: str | None, *options: str) -> str:
    done = subprocess.run(
        command(recipe, config, *options), env=ENVIRONMENT, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def kill_after(recipe: Path, config: str, sign: Path) -> None:
    """Starts training and kills the launcher and every process it started as soon as `sign` is there."""
    log = (recipe.parent / "killed.log").open("w")
    process = subprocess.Popen(command(recipe, config), env=ENVIRONMENT, stdout=log, stderr=log)
    deadline = time.monotonic() + 300
    while not sign.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    # The workers are in sessions of their own, so that killing the launcher's group would let them train on.
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for member in family:
        member.send_signal(signal.SIGKILL)
    psutil.wait_procs(family, timeout=30)
    assert sign.exists(), "training ended, or hung, before it could be killed"
    assert not (sign.parent.parent / "finished.json").exists(), "training was over before it could be killed"


def losses(run_dir: Path) -> list[float]:
    state = json.loads((run_dir / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    return [row["loss"] for row in state["log_history"] if "loss" in row]


def probed(run_dir: Path) -> dict[str, Any]:
    folders = sorted((run_dir / "probe").glob("*/results.json"))
    return {path.parent.name: {**json.loads(path.read_text()), "timing": None} for path in folders}


@pytest.mark.parametrize("stage", [2, 3])
def test_a_killed_zero_run_resumes_to_the_loss_and_probes_of_one_that_was_not(
    stage: int, tiny_model: Path, tmp_path: Path
) -> None:
    config = f"cpu2_zero{stage}.yaml"
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole, killed = write_recipe(tmp_path / "whole", tiny_model), write_recipe(tmp_path / "killed", tiny_model)
    output = run(whole, config)
    assert f"ZeRO-{stage} on 2 processes" in output

    kill_after(killed, config, tmp_path / "killed" / "run" / f"checkpoint-{2 * SAVE}" / "complete.json")
    output = run(killed, config)
    assert f"resumes from {tmp_path / 'killed' / 'run' / f'checkpoint-{2 * SAVE}'}" in output

    assert losses(tmp_path / "killed" / "run") == losses(tmp_path / "whole" / "run")
    assert len(losses(tmp_path / "whole" / "run")) == STEPS
    ours, theirs = probed(tmp_path / "killed" / "run"), probed(tmp_path / "whole" / "run")
    assert list(ours) == ["base", "step-2", "step-4", "step-6"] == list(theirs)
    for name in ours:
        for key in ("accuracy", "followup", "settings"):
            assert ours[name][key] == theirs[name][key], (name, key)
    assert (tmp_path / "killed" / "run" / "probe" / "comparison" / "tradeoff.png").stat().st_size > 10_000
    assert "finished at step 6" in run(killed, config), "a third start finds nothing to do"


def test_lora_on_one_process_says_that_deepspeed_waits_for_more(tiny_model: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_model, lora=True)
    zero2 = str(ROOT / "recipes" / "deepspeed" / "zero2.json")
    output = run(recipe, "cpu.yaml", "--train.deepspeed", zero2, "--train.max_steps", "2")
    assert "one process runs without DeepSpeed" in output
    checkpoint = tmp_path / "run" / "checkpoint-2"
    assert (checkpoint / "adapter_model.safetensors").is_file()
    trained = json.loads((checkpoint / "adapter_config.json").read_text())["target_modules"]
    assert {"in_proj_qkv", "in_proj_z", "out_proj"} <= set(trained), "linear attention has adapters too"
    results = json.loads((tmp_path / "run" / "probe" / "step-2" / "results.json").read_text())
    base = json.loads((tmp_path / "run" / "probe" / "base" / "results.json").read_text())
    assert results["model"]["weights_sha256"] != base["model"]["weights_sha256"]


def test_a_changed_recipe_is_refused_and_the_key_named(tiny_model: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_model)
    options = ("--train.max_steps", "1", "--probe.when", "never")
    run(recipe, "cpu.yaml", *options)
    changed = subprocess.run(
        [sys.executable, str(ROOT / "train" / "sft.py"), str(recipe), *options, "--train.learning_rate", "1e-4"],
        env=ENVIRONMENT, capture_output=True, text=True,
    )  # fmt: skip
    assert changed.returncode == 2
    assert "train.learning_rate: 0.001 then, 0.0001 now" in changed.stderr
