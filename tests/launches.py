"""Launches of a training script as a user types them: on CPUs, one or two processes, with DeepSpeed, killed where wanted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
FOR_CPUS = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def launch(script: str, recipe: Path, config: str, *options: str, seconds: float = 560) -> str:
    """Runs `train/SCRIPT` under `recipes/accelerate/CONFIG` to the end, which has to be a good one; gives all output."""
    launched = Launched(script, recipe, config, *options)
    try:
        code = launched.process.wait(timeout=seconds)
    finally:
        launched.kill()
    assert code == 0, launched.output[-4000:]
    return launched.output


def kill_after(script: str, recipe: Path, config: str, sign: Path) -> str:
    """Launches, and kills the launcher and all that it started with SIGKILL as soon as `sign` is there."""
    launched = Launched(script, recipe, config)
    try:
        launched.wait_for(sign)
    finally:
        launched.kill()
    assert not (recipe.parent / "run" / "finished.json").exists(), "training was over before it could be killed"
    return launched.output


def history(checkpoint: Path) -> list[dict[str, Any]]:
    """What each step logged, without what a clock says."""
    rows = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    return [{name: value for name, value in row.items() if name != "step_time"} for row in rows if "loss" in row]


class Launched:
    """A launch under way; its output goes to a file beside the recipe."""

    def __init__(self, script: str, recipe: Path, config: str, *options: str) -> None:
        configured = ["--config_file", str(ROOT / "recipes" / "accelerate" / config)]
        port = ["--main_process_port", "0"] if "zero" in config else []
        launcher = [sys.executable, "-m", "accelerate.commands.launch", *configured, *port]
        self._log = recipe.parent / "launch.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*launcher, str(ROOT / "train" / script), str(recipe), *options],
                env={**os.environ, **FOR_CPUS}, cwd=ROOT, stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait_for(self, sign: Path, seconds: float = 560) -> None:
        deadline = time.monotonic() + seconds
        while not sign.exists() and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert sign.exists(), self.output[-4000:]

    def kill(self) -> None:
        """SIGKILL to all: the workers are in sessions of their own, so the launcher's group would not do."""
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            launcher = psutil.Process(self.process.pid)
            family = [*launcher.children(recursive=True), launcher]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)
        psutil.wait_procs(family, timeout=30)
        self.process.wait(timeout=30)
