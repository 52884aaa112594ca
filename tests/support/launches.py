"""Launches of a training script as a user types them: on CPUs, one or two processes, with DeepSpeed, killed where wanted.

`accelerate launch` starts Python anew for itself and for every process, which here takes longer than the training. So one
launch is typed out (`typed=True`); the others are forked (tests/support/commands.py) into the environment that
accelerate's launcher makes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.commands import ENVIRONMENT, ROOT, start

AS_ON_GPUS = "many_gpus.yaml"
"""Two processes on CPUs as on GPUs (tests/support/as_on_gpus.py): under the recipe's own DeepSpeed file, with trl's trainers."""
PATIENCE_S = 120
"""Seconds for which processes wait for each other, so that a test whose process waits in vain fails within minutes."""


def shipped(name: str, folder: Path, **changes: dict[str, Any]) -> Path:
    """`recipes/NAME.yaml` in `folder` but for its model, its data and its sizes, which `changes` has, by section."""
    recipe = yaml.safe_load((ROOT / "recipes" / f"{name}.yaml").read_text())
    del recipe["data"]["recipe"]
    changes = {**changes, "train": {"output_dir": str(folder / "run"), "ddp_timeout": PATIENCE_S, **changes["train"]}}
    for section, values in {**changes, "tracking": {"to": "none"}}.items():
        recipe[section] = recipe.get(section, {}) | values
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def launch(script: str, recipe: Path, config: str | Path, *options: str, typed: bool = False) -> str:
    """Run `train/SCRIPT` under `recipes/accelerate/CONFIG` to the end, which has to be a good one, and return all output."""
    words = [*_script(script, config), recipe, *options]
    if typed:
        several = ["--main_process_port", "0", "--num_processes", "2"] if config != "cpu.yaml" else []
        # Without `--log_dir`, torch's launcher leaves a folder of its own among the temporary files.
        options_of_ours = ["--config_file", ROOT / "recipes/accelerate" / config, "--log_dir", recipe.parent / "log"]
        launcher = ["accelerate.commands.launch", *options_of_ours, *several]
        done = subprocess.run(
            [sys.executable, "-m", *map(str, [*launcher, *words])],
            cwd=ROOT, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=560,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout
    return Launched(words, ROOT / "recipes" / "accelerate" / config, recipe.parent).finish()


def kill_after(script: str, recipe: Path, config: str | Path, sign: Path) -> None:
    """Launch, and kill all processes with SIGKILL as soon as the file `sign` exists."""
    words = [*_script(script, config), recipe]
    launched = Launched(words, ROOT / "recipes" / "accelerate" / config, recipe.parent)
    try:
        launched.wait_for(sign)
    finally:
        launched.kill()
    assert not (recipe.parent / "run" / "finished.json").exists(), "training was over before it could be killed"


def _script(script: str, config: str | Path) -> list[Path | str]:
    return (
        [ROOT / "tests" / "support" / "as_on_gpus.py", Path(script).stem]
        if config == AS_ON_GPUS
        else [ROOT / "train" / script]
    )


def history(checkpoint: Path) -> list[dict[str, Any]]:
    """Return what each step logged, without its time."""
    rows = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    return [{name: value for name, value in row.items() if name != "step_time"} for row in rows if "loss" in row]


class Launched:
    """A launch under way.

    Args:
        words: the script and its arguments.
        config: accelerate's; None for two processes of plain torch.
        folder: for a log of each process.
    """

    def __init__(self, words: Sequence[Path | str], config: Path | None, folder: Path, cwd: Path = ROOT) -> None:
        environment, ranks = _launcher_environment(config)
        self.processes = [
            start(
                [str(word) for word in words],
                cwd=cwd,
                environment={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else environment,
                log=folder / f"launch-{rank}.log",
            )
            for rank in range(ranks)
        ]

    @property
    def output(self) -> str:
        return "".join(process.output for process in self.processes)

    def wait(self) -> list[int]:
        """Return the exit codes. As under a launcher, if one process fails the others are ended soon after."""
        grace = 100
        while grace and any(process.poll() is None for process in self.processes):
            grace -= any(process.poll() for process in self.processes)
            time.sleep(0.1)
        codes = [process.poll() for process in self.processes]
        self.kill()
        return [-9 if code is None else code for code in codes]

    def finish(self) -> str:
        codes = self.wait()
        assert not any(codes), self.output[-4000:]
        return self.output

    def wait_for(self, sign: Path, seconds: float = 560) -> None:
        deadline = time.monotonic() + seconds
        while not sign.exists() and time.monotonic() < deadline:
            if any(process.poll() is not None for process in self.processes):
                break
            time.sleep(0.02)
        assert sign.exists(), self.output[-4000:]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()


def _launcher_environment(config: Path | None) -> tuple[Mapping[str, str], int]:
    """What accelerate's launcher adds for all processes under this config, and torch's for several; and their number."""
    from accelerate.utils.other import get_free_port

    environment, ranks = {}, 2
    if config is not None and config.name != AS_ON_GPUS:  # which brings no more than torch's own variables
        from accelerate.commands import launch as accelerate
        from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_simple_launcher_cmd_env

        made: list[Any] = []
        arguments = accelerate.launch_command_parser().parse_args(
            ["--config_file", str(config), "--main_process_port", "0", "script.py"]
        )
        with pytest.MonkeyPatch.context() as patch:
            for kind, prepare in (
                ("deepspeed", prepare_deepspeed_cmd_env),
                ("simple", prepare_simple_launcher_cmd_env),
            ):
                patch.setattr(
                    accelerate, f"{kind}_launcher", lambda args, make=prepare: made.append((make(args), args))
                )
            accelerate.launch_command(arguments)
        ((_, environment), args) = made[0]
        ranks = args.num_processes
        environment = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    if ranks > 1:
        several = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
        environment |= {**several, "MASTER_PORT": str(get_free_port())}
    return environment, ranks
