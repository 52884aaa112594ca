"""GRPO in real launches: two processes under ZeRO-2 and ZeRO-3, whole weights and LoRA, both modes, killed and resumed.

Two of the eight combinations run here, which hold every stage, mode and kind of weights once;
NEXTTURN_GRPO_MATRIX=1 runs all eight, each also killed and resumed.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.grpo_parts import teach_to_talk, write_recipe
from tests.launches import Launched, launch

STEPS, SAVE = 4, 2
MATRIX = [(mode, stage, lora) for mode in ("reply", "conversation") for stage in (2, 3) for lora in (False, True)]
matrix = pytest.mark.skipif("NEXTTURN_GRPO_MATRIX" not in os.environ, reason="NEXTTURN_GRPO_MATRIX=1 runs all of them")


@pytest.fixture(scope="module")
def talker(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return teach_to_talk(tiny_model, tmp_path_factory.mktemp("models") / "talker")


def prepared(folder: Path, talker: Path, mode: str, lora: bool, beta: float = 0.0) -> Path:
    """Groups of four over two processes with two samples each, so that each group lies on both."""
    model = {"lora": {"r": 2}} if lora else {}
    batch = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_completion_length": 48}
    return write_recipe(
        folder, talker, model=model, rollout={"mode": mode, "max_turns": 3}, train={**batch, "beta": beta}
    )


def history(checkpoint: Path) -> list[dict[str, Any]]:
    """What each step logged, without what a clock says."""
    rows = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    return [{name: value for name, value in row.items() if name != "step_time"} for row in rows if "loss" in row]


def killed_after(recipe: Path, config: str, sign: Path) -> None:
    """Launches, and kills the launcher and all that it started with SIGKILL as soon as `sign` is there."""
    launched = Launched(recipe, config)
    try:
        launched.wait_for(sign)
    finally:
        launched.kill()
    assert not (recipe.parent / "run" / "finished.json").exists(), "training was over before it could be killed"


def check_whole(run: Path, lora: bool) -> None:
    rows = history(run / f"checkpoint-{STEPS}")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in rows)
    probed = sorted(path.parent.name for path in (run / "probe").glob("*/results.json"))
    assert probed == ["base", *(f"step-{step}" for step in range(SAVE, STEPS + 1, SAVE))]
    weights = {
        json.loads((run / "probe" / name / "results.json").read_text())["model"]["weights_sha256"] for name in probed
    }
    assert len(weights) == len(probed), "each checkpoint has weights of its own"
    assert (run / f"checkpoint-{STEPS}" / "adapter_model.safetensors").is_file() == lora
    assert (run / "samples" / f"step-{STEPS}.parquet").is_file() and (run / "finished.json").is_file()


def resume_from_an_older_one(recipe: Path, config: str) -> None:
    """Tears the newest checkpoint: the run goes on from the one before, and comes by the same figures again."""
    run = recipe.parent / "run"
    shutil.rmtree(run / "probe" / f"step-{STEPS}", ignore_errors=True)
    (run / f"checkpoint-{STEPS}" / "complete.json").unlink()
    output = launch(recipe, config)
    assert f"resumes from {run / f'checkpoint-{SAVE}'}; skips checkpoint-{STEPS}" in output
    again, before = history(run / f"checkpoint-{STEPS}"), history(run / f"set-aside-checkpoint-{STEPS}")
    assert len(again) == len(before) == STEPS
    for ours, theirs in zip(again, before, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_conversations_with_lora_under_zero_3(talker: Path, tmp_path: Path) -> None:
    recipe = prepared(tmp_path, talker, "conversation", lora=True)
    output = launch(recipe, "cpu2_zero3.yaml")
    assert "ZeRO-3 on 2 processes" in output
    check_whole(tmp_path / "run", lora=True)


def test_replies_with_all_weights_and_a_reference_under_zero_2_killed_and_resumed(talker: Path, tmp_path: Path) -> None:
    recipe = prepared(tmp_path, talker, "reply", lora=False, beta=0.05)
    run = tmp_path / "run"
    # Killed after the last checkpoint was saved whole, before the run came to its end: its probe is still to come.
    killed_after(recipe, "cpu2_zero2.yaml", run / f"checkpoint-{STEPS}" / "complete.json")
    resume_from_an_older_one(recipe, "cpu2_zero2.yaml")
    check_whole(run, lora=False)
    assert all("kl" in row for row in history(run / f"checkpoint-{STEPS}"))


@matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("mode", "stage", "lora"), MATRIX)
def test_every_combination_is_killed_and_resumed(
    mode: str, stage: int, lora: bool, talker: Path, tmp_path: Path
) -> None:
    config = f"cpu2_zero{stage}.yaml"
    whole = prepared(tmp_path / "whole", talker, mode, lora)
    assert f"ZeRO-{stage} on 2 processes" in launch(whole, config)
    check_whole(tmp_path / "whole" / "run", lora)
    killed = prepared(tmp_path / "killed", talker, mode, lora)
    killed_after(killed, config, tmp_path / "killed" / "run" / f"checkpoint-{SAVE}" / "complete.json")
    assert f"resumes from {tmp_path / 'killed' / 'run' / f'checkpoint-{SAVE}'}" in launch(killed, config)
    check_whole(tmp_path / "killed" / "run", lora)
    ours, theirs = (history(tmp_path / name / "run" / f"checkpoint-{STEPS}") for name in ("killed", "whole"))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, rel=1e-4, abs=1e-6)
