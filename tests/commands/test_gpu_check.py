"""The accelerator check runs its stages for real with a tiny model; one that crashes or hangs leaves the others; and one page
says what came of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from nextturn.probe.errors import NextturnError
from nextturn.probe.files import read_json
from nextturn.train import gpu_check
from nextturn.train.gpu_check import Stage, main, run_stage
from support.commands import ROOT, call


def test_every_stage_runs_its_command_and_reads_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """All in this process, which has imported what each would import anew."""

    def run_here(name: str, stage: Stage, out: Path) -> tuple[str, str]:
        if stage.skip:
            return "skipped", stage.skip
        words = stage.command
        if "accelerate.commands.launch" in words:
            words = words[next(place for place, word in enumerate(words) if word.startswith("train/")) :]
        capfd.readouterr()
        call(words, ROOT)
        log = out / f"{name}.log"
        log.write_text(capfd.readouterr().out)
        return "ok", stage.read(log)

    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("NEXTTURN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu_check, "run_stage", run_here)
    main(["--out", str(tmp_path)])
    page = (tmp_path / "verdict.txt").read_text()
    states = dict(line.split()[1::-1] for line in page.splitlines()[1:9])
    assert {name for name, state in states.items() if state == "skipped"} == {"kernels", "vllm", "zero2"}
    assert {name for name, state in states.items() if state == "ok"} == {"doctor", "data", "sft", "grpo", "probe"}
    assert "fit to train" in page and "torch" in page, "versions for an issue"
    base = read_json(tmp_path / "grpo" / "probe" / "base" / "results.json")["model"]
    assert base["path"].endswith("sft/checkpoint-2"), "GRPO goes on from what SFT has trained"


@pytest.fixture
def instead(tmp_path: Path) -> Callable[..., Stage]:
    """A stage that runs a shell script in place of a command."""

    def made(lines: str, seconds: float = 60) -> Stage:
        code = f"import os; os.execvp('sh', ['sh', '-c', {lines!r}])"
        return Stage(["-c", code], lambda log: "read", seconds)

    return made


def test_a_crashed_stage_gives_the_first_line_of_its_error_and_leaves_the_rest(
    tmp_path: Path, instead: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash = instead(
        "echo 'Traceback (most recent call last):'; echo 'torch.AcceleratorError: CUDA error: misaligned address'\n"
        "echo 'For debugging consider passing CUDA_LAUNCH_BLOCKING=1'; kill -SEGV $$"
    )
    unread = instead("echo done")._replace(read=lambda log: read_json(tmp_path / "results.json")["loss"])
    stages = {"sft": crash, "grpo": unread, "probe": instead("echo done"), "vllm": crash._replace(skip="no GPU")}
    monkeypatch.setattr(gpu_check, "stages_in", lambda out: stages)
    monkeypatch.setattr(gpu_check, "make_model", lambda folder: None)
    with pytest.raises(NextturnError, match=r"^sft, grpo failed; .*verdict.txt"):
        main(["--out", str(tmp_path)])
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["failed", "failed", "ok", "skipped"]
    assert "exit code -11: torch.AcceleratorError: CUDA error: misaligned address" in said[0]
    assert (tmp_path / "verdict.txt").read_text().splitlines()[1:5] == said


def test_a_stage_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path, instead: Callable[..., Stage]) -> None:
    """Also the workers of a launch, which are in sessions of their own; when the next stage begins, none holds memory."""
    hangs = instead(
        f"sleep 1000 &\necho $! > {tmp_path}/near\nsetsid sleep 1000 &\necho $! > {tmp_path}/far; echo it waits; wait",
        4,
    )
    state, found = run_stage("sft", hangs, tmp_path)
    assert state == "failed" and found.startswith("exit code none within 4 s: it waits")
    for child in ("near", "far"):
        assert not runs(int((tmp_path / child).read_text())), child


def test_what_a_crashed_stage_left_behind_is_ended_too(tmp_path: Path, instead: Callable[..., Stage]) -> None:
    """Also a worker in a session of its own, whose launcher has ended or goes on without the stage."""
    crashes = instead(
        f"sleep 1000 &\necho $! > {tmp_path}/near\n"
        f"sh -c 'setsid sleep 1000 & echo $! > {tmp_path}/orphan'\n"
        f"sh -c 'setsid sleep 1000 & echo $! > {tmp_path}/far; wait' &\n"
        f"until [ -s {tmp_path}/far ]; do sleep 0.01; done; exit 3"
    )
    state, found = run_stage("sft", crashes, tmp_path)
    assert state == "failed" and found.startswith("exit code 3: ") and "cannot be killed" not in found
    for child in ("near", "orphan", "far"):
        assert not runs(int((tmp_path / child).read_text())), child


def test_what_a_stage_keeps_starting_is_ended_too(tmp_path: Path, instead: Callable[..., Stage]) -> None:
    """A launcher that is killed while it starts its workers."""
    stage = instead(f"while :; do setsid sleep 1000 & echo $! >> {tmp_path}/children; sleep 0.01; done")
    mark, command = "of this test", [sys.executable, *stage.command]
    process = subprocess.Popen(command, env={**os.environ, gpu_check.MARK: mark}, start_new_session=True)
    while not (tmp_path / "children").is_file():
        time.sleep(0.01)
    assert gpu_check.end(process, mark) == []
    children = [int(line) for line in (tmp_path / "children").read_text().split()]
    assert children and not any(map(runs, children)) and process.returncode == -9


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_wrong_kernels_are_found() -> None:
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule as rule

    from nextturn.train.gpu_check import differences

    assert differences(rule, rule, "cpu").startswith("largest difference")

    def wrong(q: Any, k: Any, v: Any, g: Any, beta: Any, **more: Any) -> Any:
        return rule(q, k * 1.0, v, g=g * 1.5, beta=beta, **more)

    with pytest.raises(NextturnError, match="do not train with them"):
        differences(wrong, rule, "cpu")
