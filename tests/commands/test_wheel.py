"""The wheel holds everything that the commands need, and a user's own `train.py` and `probe.py` do not get in the way."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from support.commands import ROOT, start
from support.problems import MIXED
from support.sft_parts import write_recipe

# What the console script does, with the wheel's contents first on the path and the working folder second.
CONSOLE = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "nextturn"]:
    del sys.modules[name]  # of the repository
sys.path[:0] = [{site!r}, ""]
import nextturn.probe, nextturn.train, nextturn.data_builders
assert all(package.__file__.startswith({site!r}) for package in (nextturn.probe, nextturn.train, nextturn.data_builders))
from nextturn.train.cli import console
console()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the contents of the wheel, which is built from a copy so that nothing is written in the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("probe", "train", "data_builders"):
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source" / name)
    build = "import setuptools.build_meta as backend, sys; backend.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(folder)], cwd=folder / "source", check=True, capture_output=True, timeout=300
    )
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_every_file_of_the_packages_is_in_the_wheel(site: Path) -> None:
    wanted = {
        path.relative_to(ROOT)
        for name in ("probe", "train", "data_builders")
        for path in (ROOT / name).rglob("*.*")
        if "__pycache__" not in path.parts and (path.name != "README.md" or path.parent.name == "example")
    }
    held = {path.relative_to(site / "nextturn") for path in (site / "nextturn").rglob("*") if path.is_file()}
    environments = (path for folder in site.glob("nextturn_*") for path in folder.rglob("*") if path.is_file())
    held |= {Path("train/environments") / path.relative_to(site) for path in environments}
    assert wanted == held
    assert not {"probe", "train", "data_builders"} & {path.name for path in site.iterdir()}


def test_the_commands_run_beside_files_of_the_user(site: Path, tiny_chatml: Path, tmp_path: Path) -> None:
    """The user's files may have the names of our folders."""
    for name in ("train.py", "probe.py", "data_builders.py"):
        (tmp_path / name).write_text("raise SystemExit('a file of the user was imported')\n")
    (tmp_path / "console.py").write_text(CONSOLE.format(site=str(site)))
    data = {
        "source": {"kind": "jsonl", "path": MIXED, "n": 4},
        "output": {"path": "data"},
        "quality": {"max_same_wording": 1.0},
    }
    (tmp_path / "data.yaml").write_text(yaml.safe_dump(data))
    recipe = write_recipe(tmp_path, tiny_chatml, {"recipe": "data.yaml"}, {"max_steps": 1, "save_steps": 1})
    start([tmp_path / "console.py", "sft", recipe], cwd=tmp_path).finish()
    for name in ("data/manifest.json", "run/finished.json", "run/probe/step-1/results.json"):
        assert (tmp_path / name).is_file()
