"""GRPO in real launches: the shipped recipe as on GPUs under ZeRO-2, killed and resumed; the one for one GPU under ZeRO-3."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import run_command
from nextturn.probe.command.files import read_json
from nextturn.train.grpo import main
from support.grpo_parts import probe_section, teach_to_talk, write_prompts
from support.launches import AS_ON_GPUS, history, kill_after, launch, shipped


@pytest.fixture(scope="module")
def llama(tiny_chatml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama, taught to end its turns."""
    return teach_to_talk(tiny_chatml, tmp_path_factory.mktemp("models") / "llama")


def check_whole(run: Path, lora: bool, steps: int) -> None:
    rows = history(run / f"checkpoint-{steps}")
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 and "kl" in row for row in rows)
    results = {path.parent.name: read_json(path) for path in (run / "probe").glob("*/results.json")}
    assert sorted(results) == ["base", *(f"step-{step}" for step in range(1, steps + 1))]
    weights = {found["model"]["weights_sha256"] for found in results.values()}
    assert len(weights) == len(results), "each checkpoint has weights of its own"
    assert (run / f"checkpoint-{steps}" / "adapter_model.safetensors").is_file() == lora
    assert (run / "samples" / f"step-{steps}.jsonl").is_file() and (run / "finished.json").is_file()


def shipped_with_sizes(
    name: str, folder: Path, talker: Path, steps: int, mode: str, dtype: str = "bfloat16", **train: Any
) -> Path:
    """Groups of four over two processes. At the recipes' own rates a few steps would change no bfloat16 weight."""
    sizes = {
        "max_steps": steps, "save_steps": 1, "num_generations": 4, "per_device_train_batch_size": 2,
        "max_completion_length": 24, "use_vllm": False, "learning_rate": 1e-3, "warmup_steps": 0, "eval_steps": steps, "save_total_limit": 2,
        "generation_batch_size": None, "per_device_eval_batch_size": 2,
        **train,
    }  # fmt: skip
    return shipped(
        name, folder, model={"name": str(talker), "dtype": dtype}, data={"path": str(write_prompts(folder / "prompts.jsonl")), "held_out": 2},
        rollout={"max_turn_tokens": 8, "samples_per_step": 8, "mode": mode, "window": 1, "samples": 1}, train=sizes,
        probe={**probe_section(folder), "engine": "hf"},
    )  # fmt: skip


def test_the_shipped_recipe_as_on_gpus_under_zero_2_killed_and_resumed(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All weights in bfloat16 with a reference, gradient checkpointing, trl's own head, look-ahead."""
    recipe, run = shipped_with_sizes("qwen2b_grpo", tmp_path, llama, 2, "reply"), tmp_path / "run"
    # Killed as soon as the last checkpoint is complete. That one is torn, and the probe of the one before is removed: the
    # second launch makes both again, from the checkpoint before.
    kill_after("grpo.py", recipe, AS_ON_GPUS, run / "checkpoint-2" / "complete.json")
    (run / "checkpoint-2" / "complete.json").unlink()
    (run / "probe" / "step-1").rename(tmp_path / "before")
    assert run_command(main, [str(recipe)]) == 2, "one process cannot load ZeRO's optimizer"
    assert "2 processes under ZeRO-2" in capsys.readouterr().err
    output = launch("grpo.py", recipe, AS_ON_GPUS)
    assert f"resumes from {run / 'checkpoint-1'}; skips checkpoint-2" in output
    again, before = history(run / "checkpoint-2"), history(run / "set-aside-checkpoint-2")
    assert again == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in before]
    ours, theirs = (read_json(folder / "results.json") for folder in (run / "probe" / "step-1", tmp_path / "before"))
    for key in ("accuracy", "followup", "settings", "model"):
        assert ours[key] == theirs[key], key
    assert "ZeRO-2 on 2 processes, cpu, mixed precision bf16, weights in bfloat16 with float32 copies" in output
    check_whole(run, lora=False, steps=2)
    check_saved(run / "checkpoint-2")


def test_the_shipped_recipe_for_one_gpu_on_conversations_under_zero_3(llama: Path, tmp_path: Path) -> None:
    """An adapter, which the reference leaves out."""
    sizes: dict[str, Any] = {"dtype": "float32", "max_completion_length": 48, "bf16": False}
    recipe = shipped_with_sizes("qwen2b_grpo_1gpu", tmp_path, llama, 1, "conversation", **sizes)
    assert "ZeRO-3 on 2 processes" in launch("grpo.py", recipe, "cpu2_zero3.yaml")
    check_whole(tmp_path / "run", lora=True, steps=1)


def check_saved(checkpoint: Path) -> None:
    """Check that ZeRO's copies have more digits than bfloat16."""
    import torch

    states = sorted(checkpoint.rglob("*optim_states.pt"))
    assert len(states) == 2, "a part for each process"
    for path in states:
        state = torch.load(path, map_location="cpu", weights_only=False)["optimizer_state_dict"]
        for copy in state["single_partition_of_fp32_groups"]:
            assert copy.dtype == torch.float32 and not torch.equal(copy, copy.bfloat16().float())
