"""The GPU check runs its stages with a tiny model, one that crashes or hangs stops no other, and one page shows the results."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import NextturnError
from nextturn.probe.command.files import read_json
from support.commands import ROOT, call

SCRIPT = ROOT / "recipes" / "gpu_check.sh"


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., tuple[int, str, list[list[str]]]]:
    """Runs the script with stubs in place of its commands. Returns exit code, verdict and the words of the commands."""
    commands, out = tmp_path / "commands", tmp_path / "out"

    def run(gpus: int, then: str = "", *options: str) -> tuple[int, str, list[list[str]]]:
        python = f'if [ "$1" = -c ]; then case "$2" in *device_count*) echo {gpus};; esac; exit; fi'
        for name, first in {"python": python, "accelerate": ""}.items():
            lines = ["#!/bin/bash", first, f"printf '%s\\t' {name} \"$@\" >> {commands}; echo >> {commands}", then]
            (tmp_path / name).write_text("\n".join(lines) + "\n")
            (tmp_path / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(out)}
        done = subprocess.run(["bash", SCRIPT, *options], env=environment, capture_output=True, text=True)
        verdict = (out / "verdict.txt").read_text()
        assert done.stdout.endswith(verdict)
        return done.returncode, verdict, [line.split("\t")[:-1] for line in commands.read_text().splitlines()]

    return run


def test_every_stage_runs_its_command_and_writes_its_result(
    check: Callable[..., tuple[int, str, list[list[str]]]], tmp_path: Path
) -> None:
    """All in this process, which has imported what each would import anew, and in float32, which CPUs need not emulate."""
    code, verdict, commands = check(8, "", "--tiny")  # the same without a GPU
    missing = [Path(word) for line in verdict.splitlines() for word in line.split() if line.count(" is missing")]
    results = [path for path in missing if path.suffix == ".json"]
    assert code == 1 and len(results) == 6, "the stubs wrote nothing"
    untried = [line.split()[2] for line in verdict.splitlines() if line.startswith("not tried")]
    assert untried == ["kernels:", "vllm:"]
    assert sum("recipes/accelerate/cpu2_zero2.yaml" in words for words in commands) == 2
    for words in commands:
        script = [index for index, word in enumerate(words) if word.startswith("train/")]
        more = ["--dry-run"] if "recipes/accelerate/cpu2_zero2.yaml" in words else []  # one process trains as before
        words = words[script[0] if script else 1 :]
        if script or "nextturn.probe" in words:
            more += ["--model.dtype" if script else "--probe.dtype", "float32", "--probe.temperatures", "[0.0]"]
        call([*words, *more], ROOT, NEXTTURN_CACHE=str(tmp_path / "cache"))
    dry = [tmp_path / f"out/{stage}/probe/step-2/results.json" for stage in ("zero2", "full")]
    assert [path for path in results if not path.is_file()] == dry
    base = read_json(tmp_path / "out" / "grpo" / "probe" / "base" / "results.json")["model"]
    assert base["path"].endswith("sft/checkpoint-2"), "GRPO goes on from what SFT has trained"


def test_a_crashed_stage_shows_the_end_of_its_log_and_leaves_the_rest(
    check: Callable[..., tuple[int, str, list[list[str]]]],
) -> None:
    code, verdict, commands = check(2, 'echo "CUDA error: $1"; [ "$1" = -m ] || kill -SEGV $$')
    states = {
        line[14:].partition(":")[0]: line for line in verdict.splitlines() if line.startswith(("held", "did not hold"))
    }
    assert code == 1 and states["sft"].startswith("did not hold") and "exit code 139" in states["sft"]
    assert states["kernels"].startswith("held") and "    CUDA error: launch" in verdict.splitlines()
    zero2, full = commands[-2:]
    assert zero2[zero2.index("--num_processes") + 1] == "2" and zero2[zero2.index("--data.rows_per_step") + 1] == "4"
    assert full[full.index("--num_processes") + 1] == "2" and full[full.index("--rollout.samples_per_step") + 1] == "8"
    one = next(words for words in commands if "train/grpo.py" in words)
    assert one[one.index("--train.use_vllm") + 1] == "true" and "recipes/accelerate/one_gpu.yaml" in one


def test_wrong_kernels_are_found() -> None:
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule as rule

    from nextturn.train.gpu_check import differences

    assert differences(rule, rule, "cpu").startswith("largest difference")

    def wrong(q: Any, k: Any, v: Any, g: Any, beta: Any, **more: Any) -> Any:
        return rule(q, k * 1.0, v, g=g * 1.5, beta=beta, **more)

    with pytest.raises(NextturnError):
        differences(wrong, rule, "cpu")
