"""The distribution declares what it imports, and works without the packages that only some recipes need."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nextturn.probe.errors import BadInput, run_command
from nextturn.probe.report.tracking import check_tracker
from nextturn.probe.settings import TrackingSection
from nextturn.train.setup import check_devices
from nextturn.train.sft import main
from support.commands import ROOT, start
from support.sft_parts import write_data, write_recipe

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Modules of packages that tests do without and that have another name.
DISTRIBUTIONS = {"fla": "flash-linear-attention"}


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def test_every_imported_package_is_declared() -> None:
    files = [path for package in ("probe", "data_builders", "train") for path in (ROOT / package).rglob("*.py")]
    modules = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add((node.module or "").partition(".")[0])
    found = importlib.metadata.packages_distributions()
    imported = {
        canonicalize_name(DISTRIBUTIONS.get(module, found.get(module, [module])[0]))
        for module in modules - set(sys.stdlib_module_names) - {"nextturn"}
    }
    extras = PROJECT["optional-dependencies"]
    assert imported - names(PROJECT["dependencies"]) - set.union(*map(names, extras.values())) == set()
    assert {"wandb", "deepspeed"} & names(PROJECT["dependencies"]) == set()
    assert Requirement(extras["gpu"][0]).extras == {"wandb", "deepspeed"}


WITHOUT = """
import sys
from nextturn.probe.errors import run_command
from nextturn.train.sft import main

for name in list(sys.modules):
    if name.partition(".")[0] in ("wandb", "deepspeed"):
        del sys.modules[name]
sys.modules["wandb"] = sys.modules["deepspeed"] = None
sys.exit(run_command(main))
"""


def test_training_and_its_probe_need_neither_wandb_nor_deepspeed(tiny_chatml: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_chatml, {"path": str(write_data(tmp_path))}, {"max_steps": 1})
    (tmp_path / "sft.py").write_text(WITHOUT)
    start([str(tmp_path / "sft.py"), str(recipe)]).finish()
    assert (tmp_path / "run" / "finished.json").is_file()
    assert (tmp_path / "run" / "probe" / "step-1" / "results.json").is_file()


def test_a_recipe_that_needs_one_of_them_names_the_extra(
    tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("wandb", "deepspeed"):
        monkeypatch.setitem(sys.modules, name, None)
    recipe = write_recipe(tmp_path, tiny_chatml, {"path": str(tmp_path / "nowhere")})
    assert run_command(main, [str(recipe), "--tracking.to", "wandb"]) == 2
    assert "nextturn[wandb]" in capsys.readouterr().err
    check_devices({"deepspeed": "zero2.json"}, on_gpu=True, for_cpus=False, gpus=1)  # one process runs without it
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadInput, match=r"nextturn\[deepspeed\]"):
        check_devices({"deepspeed": "zero2.json"}, on_gpu=True, for_cpus=False, gpus=2)


def test_trackers_are_those_that_transformers_finds() -> None:
    for name in ("none", "wandb"):
        check_tracker(TrackingSection(to=name))
    with pytest.raises(BadInput, match=r"tracking\.to: given floppy, .* wandb"):
        check_tracker(TrackingSection(to="floppy"))
