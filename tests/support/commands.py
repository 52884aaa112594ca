"""Runs the project's commands without waiting each time until torch is imported, which takes longer than most of them.

`call` runs one in the test's own process; `start` in a process of its own, which can be killed, forked from one that has
imported what commands lean on. Tests of start-up itself start Python anew (tests/commands/test_cli.py).
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["pytest", "psutil", "pydantic", "yaml", "httpx2", "math_verify", "scipy.stats", "matplotlib.pyplot", "transformers.trainer", "peft",
     "datasets", "trl.trainer.sft_trainer", "trl.trainer.grpo_trainer", "deepspeed",
     # Else each command compiles them, where Python writes no bytecode.
     "nextturn.train.overrides", "nextturn.train.training", "nextturn.train.probing", "nextturn.data_builders.build"]
)  # fmt: skip


def call(words: Sequence[str], cwd: Path, codes: Sequence[int] = (0,), **environment: str) -> None:
    """Runs `nextturn ...`, `-m MODULE ...` or `train/SCRIPT.py ...` in `cwd`; it fails unless the command ends with one of `codes`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        for name, value in {"HF_HUB_OFFLINE": "1", **environment}.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            _run(words, patch)
        assert (ended.value.code or 0) in codes, shlex.join(words)


def _run(words: Sequence[str], patch: pytest.MonkeyPatch) -> None:
    if words[0] == "nextturn":
        words = ["-m", "nextturn.train.cli", *words[1:]]
    patch.setattr(sys, "argv", list(words[1:] if words[0] == "-m" else words))
    if words[0] == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=False)
    else:
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")  # wherever it is called from


def without(patch: pytest.MonkeyPatch, *packages: str) -> None:
    """Let imports of these packages fail, as where they are not installed."""
    for name in [*packages, *(name for name in sys.modules if name.partition(".")[0] in packages)]:
        patch.setitem(sys.modules, name, None)


class start:
    """A command under way: `-m MODULE ...` or `SCRIPT.py ...`, in a process of its own.

    Args:
        environment: on top of the test's own.
        log: a file for all that it writes; a temporary one where left out.
    """

    def __init__(
        self,
        words: Sequence[str],
        cwd: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        self._own = None if log else tempfile.TemporaryDirectory()  # removed with this object
        self.log = log or Path(self._own.name) / "log"
        self.log.write_text("")
        told = {**os.environ, **ENVIRONMENT, **(environment or {})}
        self.process = _FORKS.Process(
            target=_command, args=([str(word) for word in words], str(cwd), told, str(self.log))
        )
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def poll(self) -> int | None:
        """The exit code, negative where a signal ended it; None while it runs."""
        return self.process.exitcode

    def wait(self, seconds: float = 300) -> int:
        """The exit code, once it has ended."""
        self.process.join(seconds)
        code = self.process.exitcode
        assert code is not None, f"still running after {seconds:.0f} s: {self.output[-4000:]}"
        return code

    def finish(self) -> str:
        """All that it wrote, once it has ended well."""
        try:
            assert self.wait() == 0, self.output[-4000:]
        finally:
            self.kill()
        return self.output

    def kill(self) -> None:
        """SIGKILL to it and to all that it started."""
        try:
            family = [*psutil.Process(self.pid).children(recursive=True), psutil.Process(self.pid)]
        except psutil.NoSuchProcess:
            family = []
        for member in family:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.join(30)


def _command(words: list[str], cwd: str, environment: dict[str, str], log: str) -> None:
    """In the forked process."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    written = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(written, 1)
    os.dup2(written, 2)
    _run(words, pytest.MonkeyPatch())
