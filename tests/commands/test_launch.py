"""Process 0 prepares a run before the process group exists: its result, its failure and its end reach all processes."""

from __future__ import annotations

from pathlib import Path

import yaml

from support.launches import Launched
from support.sft_parts import write_data, write_recipe

PREPARE = """
import os, signal, sys
from nextturn.probe.command.errors import BadInput, run_command
from nextturn.train import setup

def work(case):
    if case == "refuses":
        raise BadInput("the source is missing")
    if case == "breaks":
        raise KeyError("a bug")
    if case == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return "result"

def main(argv):
    for case in ("works", "refuses", "breaks"):
        try:
            outcome = setup.on_main_process("build", lambda: work(case))
        except Exception as error:
            outcome = f"{type(error).__name__} {error}"
        print(f"{case} on {os.environ['RANK']}: {outcome}", flush=True)
    setup.on_main_process("build", lambda: work("killed"))

sys.exit(run_command(main))
"""


def test_all_processes_share_what_process_0_made(tmp_path: Path) -> None:
    """The other processes get what process 0 made or end with it."""
    (tmp_path / "prepare.py").write_text(PREPARE)
    launched = Launched([tmp_path / "prepare.py"], None, tmp_path)
    assert launched.wait() == [-9, 1], launched.output
    shared = ("works on {}: result", "refuses on {}: BadInput the source is missing")
    for line in (
        *(line.format(rank) for line in shared for rank in (0, 1)),
        "breaks on 0: KeyError",
        "breaks on 1: NextturnError process 0 could not build: KeyError",
        "error on process 1: a process ended",
    ):
        assert line in launched.output


SFT = """
import os, sys
from nextturn.probe.command.errors import run_command
from nextturn.train.sft import main
os.chdir(os.path.join(sys.argv[1], os.environ["RANK"]))  # as on two nodes, where a relative path is another folder
for recipe in sys.argv[2:]:
    assert run_command(main, [recipe]) == 2
"""


def test_all_processes_end_if_the_build_fails_or_the_run_directory_is_not_shared(
    tiny_chatml: Path, tmp_path: Path
) -> None:
    for name in ("0", "1", "built", "given"):
        (tmp_path / name).mkdir()
    (tmp_path / "sft.py").write_text(SFT)
    build = {"source": {"kind": "math", "path": "nothing.jsonl"}, "output": {"path": str(tmp_path / "data")}}
    (tmp_path / "data.yaml").write_text(yaml.safe_dump(build))
    data = {"built": {"recipe": str(tmp_path / "data.yaml")}, "given": {"path": str(write_data(tmp_path))}}
    train = {"use_cpu": True, "output_dir": "run"}
    recipes = [
        write_recipe(tmp_path / name, tiny_chatml, section, train, {"when": "never"}) for name, section in data.items()
    ]
    launched = Launched([tmp_path / "sft.py", tmp_path, *recipes], None, tmp_path)
    launched.finish()
    for process in launched.processes:
        assert "nothing.jsonl" in process.output and "run/.shared-" in process.output, "every process says why"
    assert not list(tmp_path.rglob(".shared-*"))
