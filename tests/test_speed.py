"""The plan's model of time: what bounds a step of generation, how engines differ, and what a probe adds up to."""

from __future__ import annotations

import pytest

from probe.engines.hf import MOST_ROWS
from probe.engines.vllm import RUNNING
from train.speed import (
    ASSUMED_CHIP,
    EFFICIENCY,
    LAYER_S,
    MEAN,
    PROBE_S,
    PROMPT,
    VLLM_STEP_S,
    Shape,
    chip,
    forward_s,
    generation_s,
    probe_s,
    training_s,
)

A100 = chip(None)
QWEN = Shape(layers=24, parameters=1_881_800_000, token=12 * 2**10, row=19.8e6)


def test_a_chip_is_found_by_torchs_name_for_it_or_assumed() -> None:
    assert (A100.name, A100.flops, A100.bandwidth) == (ASSUMED_CHIP, 312e12, pytest.approx(2.039e12))
    assert chip("NVIDIA H100 80GB HBM3").flops == pytest.approx(989.4e12)
    assert chip("Some new chip") == A100


def test_transformers_takes_at_least_what_its_launches_take_and_a_batch_as_long_as_its_longest() -> None:
    few = generation_s(QWEN, A100, 1, PROMPT, 1024, vllm=False)
    assert few == pytest.approx(1024 * 24 * LAYER_S + forward_s(QWEN, A100, PROMPT))
    prefill = forward_s(QWEN, A100, 2 * MOST_ROWS * PROMPT)
    full = generation_s(QWEN, A100, MOST_ROWS, PROMPT, 1024, vllm=False)
    two = generation_s(QWEN, A100, 2 * MOST_ROWS, PROMPT, 1024, vllm=False)
    assert two - prefill == pytest.approx(2 * (full - prefill / 2)), "one after the other"
    # 164 batches of a dozen rows each, as 16,384 tokens gave: 168,000 steps, hours.
    before = generation_s(QWEN, A100, 164 * 12, PROMPT, 1024, vllm=False, at_once=12)
    assert before > 3600 and full < 60


def test_vllm_reads_memory_and_lets_the_next_text_in() -> None:
    read = 2 * QWEN.parameters + 64 * (2 * QWEN.row + (PROMPT + MEAN * 1024) * QWEN.token)
    expected = 1024 * (VLLM_STEP_S + read / A100.bandwidth) + forward_s(QWEN, A100, 64 * PROMPT)
    assert generation_s(QWEN, A100, 64, PROMPT, 1024, vllm=True) == pytest.approx(expected)
    once, twice = (generation_s(QWEN, A100, n * RUNNING, 0, 1000, vllm=True) for n in (2, 4))
    assert twice - once == pytest.approx(once - forward_s(QWEN, A100, 0), rel=0.01), "no faster than it runs"
    assert generation_s(QWEN, A100, 0, PROMPT, 1024, vllm=True) == 0


def test_training_is_arithmetic_or_launches_and_frozen_weights_have_no_gradients() -> None:
    tokens = 8 * 2048
    flops = EFFICIENCY * A100.flops
    expected = pytest.approx(6 * QWEN.parameters * tokens / flops)
    assert training_s(QWEN, A100, tokens, lora=False, checkpointing=False) == expected
    assert training_s(QWEN, A100, tokens, lora=True, checkpointing=True) == expected
    assert training_s(QWEN, A100, 1, lora=True, checkpointing=True) == pytest.approx(4 * 24 * LAYER_S)


def test_a_probe_is_shared_by_gpus_down_to_its_longest_text() -> None:
    def seconds(ranks: int, vllm: bool, grounding: bool = True) -> float:
        return probe_s(QWEN, A100, 340, 340, 1020, 1024, 96, grounding, vllm, ranks)

    assert seconds(1, False) > seconds(8, False) > 1024 * 24 * LAYER_S + PROBE_S
    assert seconds(8, True) < seconds(8, False) / 2
    assert 0 < seconds(1, False) - seconds(1, False, grounding=False) < 20
