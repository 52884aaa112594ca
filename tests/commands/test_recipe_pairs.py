"""The recipes of the 0.5B model, which two CPU cores run, are those of the 2B model in another size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2] / "recipes"
# How a model is trained; names, sizes, engines and folders differ.
EQUAL = (
    *("model.lora.r", "model.lora.alpha", "data.loss_on", "data.held_out", "probe.temperatures", "reward.", "written."),
    *("rollout.mode", "rollout.samples", "rollout.window", "rollout.simulator.engine", "source.kind", "seed"),
    *(f"dialogue.{key}" for key in ("withheld", "reactions", "candidates", "tries", "few_shot", "policy.temperature")),
    *(
        f"train.{key}"
        for key in ("learning_rate", "lr_", "warmup_", "num_", "max_steps", "beta", "temperature", "scale_")
    ),
    *(f"train.{key}" for key in ("seed", "train_sampling", "save_strategy", "eval_")),
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
    assert {key for key in differing if key.startswith(EQUAL) and key != "rollout.samples_per_step"} == set()
