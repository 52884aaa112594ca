"""GRPO in real launches: two processes under ZeRO-2 and ZeRO-3, whole weights and LoRA, both modes, killed and resumed.

Two of the eight combinations run here, which hold every stage, mode and kind of weights once;
NEXTTURN_GRPO_MATRIX=1 runs all eight, each also killed and resumed.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from tests.grpo_parts import teach_to_talk, write_recipe
from tests.launches import history, kill_after, launch

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


def check_whole(run: Path, lora: bool) -> None:
    rows = history(run / f"checkpoint-{STEPS}")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in rows)
    results = {path.parent.name: json.loads(path.read_text()) for path in (run / "probe").glob("*/results.json")}
    assert sorted(results) == ["base", *(f"step-{step}" for step in range(SAVE, STEPS + 1, SAVE))]
    weights = {found["model"]["weights_sha256"] for found in results.values()}
    assert len(weights) == len(results), "each checkpoint has weights of its own"
    assert (run / f"checkpoint-{STEPS}" / "adapter_model.safetensors").is_file() == lora
    assert (run / "samples" / f"step-{STEPS}.parquet").is_file() and (run / "finished.json").is_file()


def killed_and_resumed(recipe: Path, config: str) -> None:
    """Killed as soon as the last checkpoint is whole, which is then torn: the run goes on from the one before, and comes
    by the same figures again."""
    run = recipe.parent / "run"
    kill_after("grpo.py", recipe, config, run / f"checkpoint-{STEPS}" / "complete.json")
    (run / f"checkpoint-{STEPS}" / "complete.json").unlink()
    output = launch("grpo.py", recipe, config)
    assert f"resumes from {run / f'checkpoint-{SAVE}'}; skips checkpoint-{STEPS}" in output
    again, before = history(run / f"checkpoint-{STEPS}"), history(run / f"set-aside-checkpoint-{STEPS}")
    assert len(again) == len(before) == STEPS
    for ours, theirs in zip(again, before, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_conversations_with_lora_under_zero_3(talker: Path, tmp_path: Path) -> None:
    recipe = prepared(tmp_path, talker, "conversation", lora=True)
    assert "ZeRO-3 on 2 processes" in launch("grpo.py", recipe, "cpu2_zero3.yaml")
    check_whole(tmp_path / "run", lora=True)


def test_replies_with_all_weights_and_a_reference_under_zero_2_killed_and_resumed(talker: Path, tmp_path: Path) -> None:
    killed_and_resumed(prepared(tmp_path, talker, "reply", lora=False, beta=0.05), "cpu2_zero2.yaml")
    check_whole(tmp_path / "run", lora=False)
    assert all("kl" in row for row in history(tmp_path / "run" / f"checkpoint-{STEPS}"))


@matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("mode", "stage", "lora"), MATRIX)
def test_every_combination_is_killed_and_resumed(
    mode: str, stage: int, lora: bool, talker: Path, tmp_path: Path
) -> None:
    killed_and_resumed(prepared(tmp_path, talker, mode, lora), f"cpu2_zero{stage}.yaml")
    check_whole(tmp_path / "run", lora)
