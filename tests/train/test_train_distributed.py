"""SFT in real launches: two processes under ZeRO train and save, and a run resumes on another number of processes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from nextturn.probe.command.errors import run_command
from nextturn.probe.command.files import read_json
from nextturn.train.sft import main
from support.launches import AS_ON_GPUS, Launched, history, launch, shipped
from support.model_parts import lora_on
from support.problems import MIXED
from support.sft_parts import STEPS, take_back, write_data, write_recipe
from support.tiny_models import VOCABULARY


def test_the_shipped_recipe_as_on_gpus_under_zero_2(tiny_model: Path, tmp_path: Path) -> None:
    """LoRA, ZeRO-2, bfloat16, gradient checkpointing and trl's own head together, as `qwen2b_sft.yaml` has them; through
    `accelerate launch` itself. Probes as on GPUs: test_grpo_distributed.py."""
    train = {"max_steps": 2, "save_steps": 2, "logging_steps": 1, "per_device_train_batch_size": 2}
    train |= {"learning_rate": 1e-3, "warmup_steps": 0}
    data = {"path": str(write_data(tmp_path)), "rows_per_step": 8}
    model, probe = {"name": str(tiny_model)}, {"when": "never"}
    recipe = shipped("qwen2b_sft", tmp_path, model=model, data=data, train=train, probe=probe)
    said = launch("sft.py", recipe, AS_ON_GPUS, typed=True)
    assert "ZeRO-2 on 2 processes, cpu, mixed precision bf16" in said
    assert "8 a step (2 a process x 2 x 2 accumulated)" in said
    assert "gradients torch.float32 torch.float32" in said, "bfloat16 would lose most of what small gradients add up to"
    checkpoint = tmp_path / "run" / "checkpoint-2"
    for row in history(checkpoint):
        # What an untrained model expects of each token is next to nothing: the loss is near that of a blind guess.
        assert row["loss"] == pytest.approx(math.log(VOCABULARY), rel=0.1) and row["grad_norm"] > 0
        assert row["entropy"] > 0, "trl's head gives the entropy on the way"
    weights = load_file(checkpoint / "adapter_model.safetensors")
    assert all(tensor.any() for name, tensor in weights.items() if "lora_B" in name), "steps change the adapter"


def test_zero_3_starts_from_an_adapter_on_a_multimodal_base_and_answers_its_replay(
    tiny_multimodal: Path, own_cache: Path, tmp_path: Path
) -> None:
    """One process converts the base, merges the adapter and has a third model answer the replay, while the other waits and
    ZeRO-3 is configured. If one of the models were partitioned, both would wait for ever."""
    adapter = lora_on(tiny_multimodal, tmp_path / "adapter", str(tiny_multimodal))
    answering = {"engine": "hf", "model": str(tiny_multimodal), "max_tokens": 8, "dtype": "float32"}
    data = {
        "source": {"kind": "jsonl", "path": MIXED, "n": 12}, "output": {"path": str(tmp_path / "data")},
        "quality": {"max_same_wording": 1.0},
        "replay": {"fraction": 0.3, "answers": "model", "model": answering, "tries": 1},
    }  # fmt: skip
    (tmp_path / "data.yaml").write_text(yaml.safe_dump(data))
    recipe = write_recipe(tmp_path, adapter, {"recipe": str(tmp_path / "data.yaml")}, {"max_steps": 1, "save_steps": 1})
    said = launch("sft.py", recipe, "cpu2_zero3.yaml")
    assert "ZeRO-3 on 2 processes" in said and "4 a step (2 a process x 2 x 1 accumulated)" in said
    assert read_json(tmp_path / "data" / "manifest.json")["calls"]["replay.calls"] > 0
    assert len(list(own_cache.glob("text-only-*"))) == len(list(own_cache.glob("merged-*"))) == 1
    probes = tmp_path / "run" / "probe"
    base, trained = (read_json(probes / name / "results.json")["model"] for name in ("base", "step-1"))
    assert base["weights_sha256"] != trained["weights_sha256"]


# transformers' device of a process among several on CPUs is called cpu:0, to which torch does not know how to restore.
ON_TWO_CPUS = """
import sys, torch
from nextturn.probe.command.errors import run_command
from nextturn.train.sft import main
torch.serialization.register_package(1, lambda saved: None, lambda saved, where: saved if where == "cpu:0" else None)
sys.exit(run_command(main))
"""


def test_a_run_resumes_on_another_number_of_processes_with_the_same_steps(
    tiny_chatml: Path, tmp_path: Path, capsys: Any
) -> None:
    """One process trains, two of plain torch (DDP) resume from its second step, one resumes from theirs, and two under ZeRO
    take that one's weights. Each time the next step is the one that the first process made alone."""
    recipe = write_recipe(
        tmp_path, tiny_chatml, {"path": str(write_data(tmp_path)), "rows_per_step": 6},
        train={
            "save_steps": 1, "use_cpu": True, "warmup_steps": 3, "weight_decay": 0.1, "per_device_train_batch_size": 3,
            "train_sampling_strategy": "group_by_length",  # two steps an epoch: the last one is in the middle of the second
        },
        probe={"when": "never"},
    )  # fmt: skip
    run = tmp_path / "run"
    assert run_command(main, [str(recipe)]) == 0
    alone = history(run / f"checkpoint-{STEPS}")
    capsys.readouterr()

    take_back(run, 2)
    (tmp_path / "sft.py").write_text(ON_TWO_CPUS)
    said = Launched([tmp_path / "sft.py", recipe], None, tmp_path).finish()
    assert "MULTI_CPU on 2 processes" in said and "6 a step (3 a process x 2 x 1 accumulated)" in said
    assert "saved by 1 process without DeepSpeed, and this is 2 processes without DeepSpeed" in said
    assert history(run / f"checkpoint-{STEPS}") == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in alone]

    take_back(run, 3)
    assert run_command(main, [str(recipe)]) == 0
    assert "saved by 2 processes without DeepSpeed, and this is 1 process" in capsys.readouterr().out
    assert history(run / f"checkpoint-{STEPS}") == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in alone]
