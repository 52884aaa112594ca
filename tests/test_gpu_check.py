"""The accelerator check runs its stages for real with a tiny model; one that crashes or hangs leaves the others; and one page
says what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from probe.errors import NextturnError
from tests.commands import ROOT, call
from train import gpu_check
from train.gpu_check import STAGES, main, verdict


def test_every_stage_with_a_tiny_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All in this process, which has imported what each would import anew."""

    def run_stage(name: str, out: Path, tiny: bool) -> dict[str, Any]:
        return {**STAGES[name](out, tiny), "seconds": 1.0}

    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("NEXTTURN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu_check, "run_stage", run_stage)
    monkeypatch.setattr(gpu_check, "run_script", lambda *words, out: call(words, ROOT))
    main(["--tiny", "--out", str(tmp_path)])
    assert "all is well" in capsys.readouterr().out
    stages = json.loads((tmp_path / "report.json").read_text())["stages"]
    assert list(stages) == list(STAGES)
    skipped = {name for name, found in stages.items() if "skipped" in found}
    assert skipped == {"kernels", "probe_vllm", "nccl", "zero2"}
    for name in ("sft", "grpo"):
        assert stages[name]["tokens_per_second"] > 0 and stages[name]["estimated_gib"] > 0
    assert stages["sft"]["loss"] > 0 and stages["probe"]["tokens"] > 0
    assert stages["circle"]["probed"] == [
        f"circle_{run}/{name}" for run in ("grpo", "sft") for name in ("base", "step-2")
    ]
    base = json.loads((tmp_path / "circle_grpo" / "probe" / "base" / "results.json").read_text())["model"]
    assert base["path"].endswith("circle_sft/checkpoint-2"), "GRPO goes on from what SFT has trained"
    page = (tmp_path / "verdict.txt").read_text()
    assert "6 ok, 0 failed, 4 skipped" in page and "skipped  nccl" in page and "versions   torch " in page


@pytest.fixture
def instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Gives the stages' processes a shell script to run in place of Python."""

    def put(lines: str) -> None:
        script = tmp_path / "script"
        script.write_text(f"#!/bin/sh\n{lines}\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    return put


def test_a_crashed_stage_is_told_by_the_first_line_of_its_error_and_leaves_the_rest(
    tmp_path: Path, instead: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    instead(
        "echo 'Traceback (most recent call last):'; echo 'torch.AcceleratorError: CUDA error: misaligned address'\n"
        "echo 'For debugging consider passing CUDA_LAUNCH_BLOCKING=1'; kill -SEGV $$"
    )
    gone = tmp_path / "model.json"
    gone.write_text("{}")  # of a run before this one
    with pytest.raises(NextturnError, match=r"machine, model failed; .*verdict.txt is one page"):
        main(["--out", str(tmp_path)])
    stages = json.loads((tmp_path / "report.json").read_text())["stages"]
    assert list(stages) == ["machine", "model"], "without a model there is nothing to go on with"
    error = f"exit code -11: torch.AcceleratorError: CUDA error: misaligned address ({tmp_path / 'machine.log'})"
    assert stages["machine"]["error"] == error
    assert f"failed   machine         0 s  {error}" in (tmp_path / "verdict.txt").read_text()
    assert error in capsys.readouterr().out


def test_a_stage_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, instead: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the workers of a launch, which are in sessions of their own; when the next stage begins, none holds memory."""
    instead(
        f"sleep 1000 &\necho $! > {tmp_path}/near\nsetsid sleep 1000 &\necho $! > {tmp_path}/far; echo it waits; wait"
    )
    monkeypatch.setattr(gpu_check, "SECONDS_TINY", 4)
    found = gpu_check.run_stage("nccl", tmp_path, True)
    assert found["error"].startswith("exit code none within 4 s: it waits")
    for child in ("near", "far"):
        assert not runs(int((tmp_path / child).read_text())), child


def test_what_a_crashed_stage_left_behind_is_ended_too(tmp_path: Path, instead: Callable[[str], None]) -> None:
    """Also a worker in a session of its own, whose launcher has ended or goes on without the stage."""
    instead(
        f"sleep 1000 &\necho $! > {tmp_path}/near\n"
        f"sh -c 'setsid sleep 1000 & echo $! > {tmp_path}/orphan'\n"
        f"sh -c 'setsid sleep 1000 & echo $! > {tmp_path}/far; wait' &\n"
        f"until [ -s {tmp_path}/far ]; do sleep 0.01; done; exit 3"
    )
    found = gpu_check.run_stage("nccl", tmp_path, True)
    assert found["error"].startswith("exit code 3: ") and "left_running" not in found
    for child in ("near", "orphan", "far"):
        assert not runs(int((tmp_path / child).read_text())), child


def test_what_a_stage_keeps_starting_is_ended_too(tmp_path: Path, instead: Callable[[str], None]) -> None:
    """A launcher that is killed while it starts its workers."""
    instead(f"while :; do setsid sleep 1000 & echo $! >> {tmp_path}/children; sleep 0.01; done")
    mark = "of this test"
    process = subprocess.Popen([sys.executable], env={**os.environ, gpu_check.MARK: mark}, start_new_session=True)
    while not (tmp_path / "children").is_file():
        time.sleep(0.01)
    assert gpu_check.end(process, mark) == []
    children = [int(line) for line in (tmp_path / "children").read_text().split()]
    assert children and not any(map(runs, children)) and process.returncode == -9


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_the_verdict_is_one_page_for_an_issue() -> None:
    machine = {"chip": "8 x NVIDIA H100", "system": "Linux, Python 3.11", "commit": "abc", "seconds": 4.2,
               "versions": {"torch": "2.13.0", "vllm": "0.31.0"}, "problems": ["compiler: Python.h is missing"]}  # fmt: skip
    stages = {"machine": machine, "sft": {"loss": 2.5, "share_of_peak": 0.31, "seconds": 99.0},
              "probe_vllm": {"skipped": "vllm is not installed", "seconds": 1.0},
              "grpo": {"error": "exit code 1: ValueError: no", "seconds": 12.0}}  # fmt: skip
    head, *lines = verdict({"tiny": False, "stages": stages}).splitlines()
    assert head.endswith("UTC on a random model of Qwen3.5-2B's shape: 2 ok, 1 failed, 1 skipped")
    assert lines == [
        "chip       8 x NVIDIA H100",
        "system     Linux, Python 3.11",
        "commit     abc",
        "versions   torch 2.13.0, vllm 0.31.0",
        "doctor     compiler: Python.h is missing",
        "",
        "ok       machine         4 s",
        "ok       sft            99 s  loss 2.5, share of peak 0.31",
        "skipped  probe_vllm      1 s  vllm is not installed",
        "failed   grpo           12 s  exit code 1: ValueError: no",
    ]


def test_a_sum_over_processes_is_checked_and_timed(tmp_path: Path) -> None:
    gpu_check._reduce(0, 1, "gloo", tmp_path / "store", tmp_path / "result.json", 2**16)
    assert json.loads((tmp_path / "result.json").read_text())["processes"] == 1


def test_wrong_kernels_are_found() -> None:
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule as rule

    from train.gpu_check import differences

    assert differences(rule, rule, "cpu")["largest_difference"] < 0.05

    def wrong(q: Any, k: Any, v: Any, g: Any, beta: Any, **more: Any) -> Any:
        return rule(q, k * 1.0, v, g=g * 1.5, beta=beta, **more)

    with pytest.raises(NextturnError, match="do not train with them"):
        differences(wrong, rule, "cpu")
