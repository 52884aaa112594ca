"""Process 0 prepares a run before the process group exists: its result, its failure and its end reach all processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from support.launches import Launched
from support.sft_parts import write_data, write_recipe

PREPARE = """
import os, signal, sys
from nextturn.probe.errors import BadInput, run_command
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
    for _ in range(2):
        print(setup.on_main_process("build", lambda: work(argv[0])), "of", os.environ["RANK"])

sys.exit(run_command(main))
"""


@pytest.mark.parametrize(
    ("case", "codes", "line"),
    [
        ("works", [0, 0], "result of 1\nresult of 1"),
        ("refuses", [2, 2], "error on process 1: the source is missing"),
        ("breaks", [1, 1], "error on process 1: process 0 could not build: KeyError"),
        ("killed", [-9, 1], "error on process 1: a process ended"),
    ],
)
def test_all_processes_share_what_process_0_made(case: str, codes: list[int], line: str, tmp_path: Path) -> None:
    """The other processes get what process 0 made or end with it."""
    (tmp_path / "prepare.py").write_text(PREPARE)
    launched = Launched([tmp_path / "prepare.py", case], None, tmp_path)
    assert launched.wait() == codes, launched.output
    assert line in launched.output


SFT = """
import os, sys
from nextturn.probe.errors import run_command
from nextturn.train.sft import main
os.chdir(os.path.join(sys.argv[1], os.environ["RANK"]))  # as on two nodes, where a relative path is another folder
sys.exit(run_command(main, sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("data", "path"), [("built", "nothing.jsonl"), ("given", "run/.shared-")], ids=["build", "folder"]
)
def test_all_processes_end_if_the_build_fails(data: str, path: str, tiny_chatml: Path, tmp_path: Path) -> None:
    """All processes end if the build fails or the run directory is not shared."""
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
    (tmp_path / "sft.py").write_text(SFT)
    build = {"source": {"kind": "math", "path": "nothing.jsonl"}, "output": {"path": str(tmp_path / "data")}}
    (tmp_path / "data.yaml").write_text(yaml.safe_dump(build))
    section = {"built": {"recipe": str(tmp_path / "data.yaml")}, "given": {"path": str(write_data(tmp_path))}}[data]
    recipe = write_recipe(tmp_path, tiny_chatml, section, {"use_cpu": True, "output_dir": "run"}, {"when": "never"})
    launched = Launched([tmp_path / "sft.py", tmp_path, recipe], None, tmp_path)
    assert launched.wait() == [2, 2], launched.output
    assert all(path in process.output for process in launched.processes), "every process says why"
    assert not list(tmp_path.rglob(".shared-*"))
