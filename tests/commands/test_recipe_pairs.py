"""The recipes of the 0.5B model, which two CPU cores run, are those of the 2B model in another size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2] / "recipes"
# Names, sizes, engines and folders may differ; how a model is trained may not.
MAY_DIFFER = (
    *("model.name", "model.dtype", "model.lora.target_modules", "data.recipe", "data.rows_per_step", "tracking."),
    *("data.enable_thinking", "probe.enable_thinking", "probe.sets.", "probe.max_answer_tokens"),
    *("train.output_dir", "train.deepspeed", "train.per_device_train_batch_size", "train.max_length", "train.bf16"),
    *(
        f"train.{key}"
        for key in ("gradient_checkpointing", "optim", "ddp_timeout", "save_total_limit", "logging_steps")
    ),
    *(
        "model.fallback",
        "data.max_prompt_tokens",
        "rollout.samples_per_step",
        "rollout.max_turn_tokens",
        "probe.engine",
    ),
    *("train.max_completion_length", "train.use_vllm", "train.vllm_", "train.save_steps"),
    *("source.levels", "source.n", "output.", "quality.decontaminate"),
    *(f"dialogue.policy.{key}" for key in ("engine", "model", "enable_thinking", "max_tokens", "dtype", "vllm")),
    *(f"dialogue.simulator.{key}" for key in ("model", "runs_on", "dtype", "vllm")),
)


def leaves(section: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{before}{key}.")
        else:
            yield before + key, value


PAIRS = [
    "qwen2b_sft qwen05b_sft",
    "qwen2b_grpo_1gpu qwen05b_grpo",
    "user_qwen2b user_qwen05b",
    "math_collab qwen05b_collab",
]


@pytest.mark.parametrize("pair", PAIRS)
def test_two_sizes_have_one_text(pair: str) -> None:
    large, small = (dict(leaves(yaml.safe_load((ROOT / f"{name}.yaml").read_text()))) for name in pair.split())
    differing = {key for key in large.keys() | small.keys() if large.get(key) != small.get(key)}
    assert {key for key in differing if not key.startswith(MAY_DIFFER)} == set()
