"""The GPU check runs its stages with a tiny model, one that crashes or hangs stops no other, and one page shows the results."""

from __future__ import annotations

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


def test_every_stage_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(("last", "seconds"), [("exit 3", 60), ("wait", 4)], ids=["crashes", "hangs"])
def test_all_that_a_stage_started_ends(last: str, seconds: int, tmp_path: Path, instead: Callable[..., Stage]) -> None:
    """Also a worker in a session of its own, whose launcher has ended or continues without the stage."""
    stage = instead(
        f"sleep 1000 &\necho $! > {tmp_path}/near\n"
        f"sh -c 'setsid sleep 1000 & echo $! > {tmp_path}/orphan'\n"
        f"sh -c 'setsid sleep 1000 & echo $! > {tmp_path}/far; wait' &\n"
        f"until [ -s {tmp_path}/far ]; do sleep 0.01; done; echo the last line; {last}",
        seconds,
    )
    state, found = run_stage("sft", stage, tmp_path)
    assert state == "failed" and found.startswith("exit code ") and "the last line" in found
    assert "cannot be killed" not in found
    for child in ("near", "orphan", "far"):
        assert not runs(int((tmp_path / child).read_text())), child


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
