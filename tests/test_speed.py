"""The plan's model of time: chips by name, FLOPs, how engines differ, and what a probe adds up to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from probe.engines.hf import MOST_ROWS
from train.speed import (
    ASSUMED_CHIP,
    LAYER_S,
    PROBE_S,
    PROMPT,
    Shape,
    chip,
    forward_s,
    generation_s,
    peak_tflops,
    probe_s,
    training_flops,
    training_s,
)

A100 = chip(None)
QWEN = Shape(layers=24, parameters=1_881_800_000, token=12 * 2**10, row=19.8e6)


def test_a_chip_is_found_by_torchs_name_for_it_or_assumed() -> None:
    assert (A100.name, A100.flops, A100.bandwidth) == (ASSUMED_CHIP, 312e12, pytest.approx(2.039e12))
    assert chip("NVIDIA H100 80GB HBM3").flops == pytest.approx(989.4e12)
    assert chip("Some new chip") == A100
    assert peak_tflops("NVIDIA H100 80GB HBM3") == 989.4 and peak_tflops("NVIDIA H100 PCIe") == 756.0
    assert peak_tflops("NVIDIA L40S") == 362.0 and peak_tflops("NVIDIA A100-SXM4-80GB") == 312.0
    assert peak_tflops("NVIDIA A10G") is None and peak_tflops("Some new chip") is None


def test_frozen_weights_have_no_gradients() -> None:
    shape = SimpleNamespace(num_hidden_layers=4, num_attention_heads=8, hidden_size=64, head_dim=16,
                            layer_types=["linear_attention"] * 3 + ["full_attention"])  # fmt: skip
    assert training_flops(shape, 1000, length=10, lora=False) == 6000 + 6 * 10 * 128
    assert training_flops(shape, 1000, length=10, lora=True) == 4000 + 6 * 10 * 128
    whole = training_s(QWEN, A100, 8 * 2048, lora=False, checkpointing=False)
    assert training_s(QWEN, A100, 8 * 2048, lora=True, checkpointing=True) == pytest.approx(whole)


def test_transformers_makes_one_batch_after_the_other_and_vllm_lets_the_next_text_in() -> None:
    few = generation_s(QWEN, A100, 1, PROMPT, 1024, vllm=False)
    assert few == pytest.approx(1024 * 24 * LAYER_S + forward_s(QWEN, A100, PROMPT))
    prefill = forward_s(QWEN, A100, 2 * MOST_ROWS * PROMPT)
    full, two = (generation_s(QWEN, A100, n * MOST_ROWS, PROMPT, 1024, vllm=False) for n in (1, 2))
    assert two - prefill == pytest.approx(2 * (full - prefill / 2))
    assert generation_s(QWEN, A100, 2 * MOST_ROWS, PROMPT, 1024, vllm=True) < two / 2


def test_a_probe_is_shared_by_gpus_down_to_its_longest_text() -> None:
    def seconds(ranks: int, vllm: bool, grounding: bool = True) -> float:
        return probe_s(QWEN, A100, 340, 340, 1020, 1024, 96, grounding, vllm, ranks)

    assert seconds(1, False) > seconds(8, False) > 1024 * 24 * LAYER_S + PROBE_S
    assert seconds(8, True) < seconds(8, False) / 2
    assert 0 < seconds(1, False) - seconds(1, False, grounding=False) < 20
