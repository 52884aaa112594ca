"""However a process ends, vLLM's engine ends with it: it would keep the GPU's memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCRIPT = """
import signal
import sys

import nextturn.probe.engines.vllm
from nextturn.probe.engines.base import Request
from nextturn.probe.engines.vllm import VllmEngine
from nextturn.probe.command.errors import run_command
from nextturn.probe.models.folders import load_tokenizer, resolve
from nextturn.probe.command.sections import VllmSection


def main(arguments):
    folder = resolve(arguments[0])
    nextturn.probe.engines.vllm._CHUNK = 1  # the second completion is under way when the first has come
    # Not closed: what is tested is what happens where nothing of ours gets to run.
    engine = VllmEngine(folder, load_tokenizer(folder), VllmSection(enforce_eager=True), "bfloat16")
    stream = engine.stream([Request((5, 6), 1, ()), Request((7, 8), 3000, ())])
    next(stream)
    print("running", flush=True)
    input()
    if arguments[1] == "raises":
        raise ValueError("stopped")
    list(stream)


if __name__ == "__main__":
    # In a shell's background job these tests run with SIGINT ignored, and so would this process.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run_command(main))
"""


@pytest.mark.parametrize(("how", "code"), [("raises", 1), ("is interrupted", 130)])
def test_no_engine_outlives_a_process_that_raises_or_is_interrupted(
    lively_qwen35: Path, tmp_path: Path, engine_process: None, how: str, code: int
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(lively_qwen35), how]
    with (tmp_path / "log").open("w") as log:
        process = psutil.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    # Before it there may be a note: a CPU without instructions for bfloat16.
    assert b"running\n" in iter(process.stdout.readline, b""), (tmp_path / "log").read_text()[-2000:]
    family = process.children(recursive=True)
    assert any("python" in child.name() for child in family), "the engine is a process of its own"
    process.stdin.write(b"go on\n")
    process.stdin.flush()
    if how == "is interrupted":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    assert process.wait(timeout=60) == code, (tmp_path / "log").read_text()[-2000:]
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
