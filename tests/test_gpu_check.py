"""The accelerator check runs its stages for real with a tiny model, and one that crashes leaves the others."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe.errors import NextturnError
from train.gpu_check import check, main, peak_tflops, training_flops

ROOT = Path(__file__).resolve().parent.parent


def test_a_tiny_run_trains_and_a_crashed_stage_leaves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "questions.jsonl").mkdir()  # in the way of the probe
    report = check(tmp_path, tiny=True, stages=["probe", "kernels", "sft"])
    stages: dict[str, dict[str, Any]] = report["stages"]
    assert "exit code" in stages["probe"]["error"] and "probe    FAILED" in capsys.readouterr().out
    assert "skipped" in stages["kernels"]
    assert "error" not in stages["sft"], stages["sft"]
    assert stages["sft"]["loss"] > 0 and stages["sft"]["tokens_per_second"] > 0 and stages["sft"]["estimated_gib"] > 0
    assert json.loads((tmp_path / "report.json").read_text()) == report


def test_a_failed_stage_is_told_by_the_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("train.gpu_check.check", lambda *_: {"stages": {"sft": {"error": "e"}, "probe": {}}})
    with pytest.raises(NextturnError, match="sft failed"):
        main(["--out", str(tmp_path)])


def test_wrong_kernels_are_found() -> None:
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule as rule

    from train.gpu_check import differences

    assert differences(rule, rule, "cpu")["largest_difference"] < 0.05

    def wrong(q: Any, k: Any, v: Any, g: Any, beta: Any, **more: Any) -> Any:
        return rule(q, k * 1.0, v, g=g * 1.5, beta=beta, **more)

    with pytest.raises(NextturnError, match="do not train with them"):
        differences(wrong, rule, "cpu")


def test_flops_and_peaks() -> None:
    shape = SimpleNamespace(num_hidden_layers=4, num_attention_heads=8, hidden_size=64, head_dim=16,
                            layer_types=["linear_attention"] * 3 + ["full_attention"])  # fmt: skip
    assert training_flops(shape, 1000, length=10, lora=False) == 6000 + 6 * 10 * 128
    assert training_flops(shape, 1000, length=10, lora=True) == 4000 + 6 * 10 * 128
    assert peak_tflops("NVIDIA H100 80GB HBM3") == 989.4 and peak_tflops("NVIDIA H100 PCIe") == 756.0
    assert peak_tflops("NVIDIA L40S") == 362.0 and peak_tflops("NVIDIA A100-SXM4-80GB") == 312.0
    assert peak_tflops("NVIDIA A10G") is None and peak_tflops("Some new chip") is None
