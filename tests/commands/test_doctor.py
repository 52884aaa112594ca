"""The doctor names what is wrong and what to do, and its exit code says whether training can work."""

from __future__ import annotations

import importlib
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from nextturn.probe.errors import NextturnError
from nextturn.train import doctor
from nextturn.train.doctor import Finding, check_compilers, check_imports, main, start_imports


def distribution(folder: Path, name: str, version: str, *lines: str) -> None:
    """The metadata of an installed package, as pip leaves it."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(head + "".join(f"{line}\n" for line in lines))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which only what a test puts there is installed."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_a_package_out_of_range_or_missing_comes_with_its_pip_command(site: Path) -> None:
    needs = ("torch>=2.13", "trl<1.17,>=1.16", 'nextturn[wandb]; extra == "gpu"', 'wandb>=0.31; extra == "wandb"')
    distribution(site, "nextturn", "1", "Requires-Python: >=3.11", *(f"Requires-Dist: {need}" for need in needs))
    distribution(site, "torch", "2.13.0+cpu")
    distribution(site, "trl", "1.15.0")
    findings = {finding.about: finding for finding in doctor.check_packages(has_gpu=False)}
    assert findings["torch"].level == "ok" and findings["wandb"].level == "ok", "an extra need not be installed"
    assert (findings["trl"].level, findings["trl"].do) == ("problem", "pip install 'trl<1.17,>=1.16'")
    (site / "trl-1.15.0.dist-info" / "METADATA").unlink()
    (site / "trl-1.15.0.dist-info").rmdir()
    findings = {finding.about: finding for finding in doctor.check_packages(has_gpu=True)}
    assert "not installed" in findings["trl"].state and findings["wandb"].level == "note"


def test_what_vllm_says_of_transformers_is_read(site: Path) -> None:
    distribution(site, "vllm", "0.33.0", "Requires-Dist: transformers<5.21", "Requires-Dist: absent>=1")
    distribution(site, "transformers", "5.23.0")
    (finding,) = doctor.check_conflicts(("trl", "vllm", "transformers"))
    assert finding.level == "problem" and finding.do == "pip install 'transformers<5.21'"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the NVIDIA driver makes, of a machine on which torch, built for CUDA 13, finds no GPU."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(doctor, "DRIVER", tmp_path / "version")
    return tmp_path / "version"


LINE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\nGCC version: gcc version 12.3.0\n"


def test_a_driver_that_is_too_old_is_a_problem_of_its_host(driver: Path, site: Path) -> None:
    driver.write_text(LINE.format("570.86.15"))
    (finding,) = doctor.check_gpus()
    assert (finding.level, finding.about) == ("problem", "driver")
    assert "570.86.15" in finding.state and "580" in finding.do and "host" in finding.do
    (site / "fla.py").touch()
    importlib.invalidate_caches()
    assert not list(check_imports(False, start_imports())), "there is a GPU: flash-linear-attention is right here"
    driver.write_text(LINE.format("580.95.05"))
    (finding,) = doctor.check_gpus()
    assert (finding.level, finding.about) == ("problem", "GPU") and "finds no GPU" in finding.state
    driver.unlink()
    (finding,) = doctor.check_gpus()
    assert finding.level == "ok", "training runs on the CPU"


def test_packages_that_cannot_be_imported_are_a_problem(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers calls a package that it cannot import "not installed", and continues in plain torch."""
    monkeypatch.setenv("PYTHONPATH", str(site))
    assert not list(check_imports(False, start_imports()))
    assert [finding.level for finding in check_imports(True, start_imports())] == ["note"] * 3
    files = {
        "fla/ops/gated_delta_rule.py": "chunk_gated_delta_rule = fused_recurrent_gated_delta_rule = None\n",
        "causal_conv1d.py": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
        "vllm/__init__.py": "LLM = None\n",
        "vllm/platforms.py": "import vllm._C_stable_libtorch\n",
    }
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    importlib.invalidate_caches()
    good, crashes, broken = check_imports(True, start_imports())
    assert good.level == "ok" and crashes.level == "problem" and "it crashes: SIGSEGV" in crashes.state
    assert (
        broken.level == "problem" and "vllm._C_stable_libtorch" in broken.state and broken.do.startswith("pip install")
    )
    (finding,) = check_imports(False, start_imports())
    assert finding.level == "problem" and finding.do.startswith("pip uninstall"), "fla without a GPU"
    (site / "vllm" / "platforms.py").write_text("class current_platform:\n    is_cuda = lambda: True\n")
    assert [finding.level for finding in check_imports(True, start_imports())] == ["ok", "problem", "ok"]


def test_what_kernels_are_compiled_with_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("FLA_TILELANG", raising=False)
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if shutil.which("gcc") and shutil.which("g++") and headers.is_file():
        assert not list(check_compilers(hopper=True))
    for name in ("gcc", "g++"):
        broken = tmp_path / name
        broken.write_text("#!/bin/sh\necho 'tried:2:10: fatal error: dlfcn.h: No such file or directory' >&2; exit 1\n")
        broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    c, cpp = check_compilers(hopper=True)
    assert c.level == cpp.level == "problem" and "fatal error: dlfcn.h" in c.state and "-dev" in c.do
    assert cpp.about == "C++ compiler" and "FLA_TILELANG=0" in cpp.do
    (tmp_path / "g++").unlink()
    assert [finding.level for finding in check_compilers(hopper=False)] == ["problem", "note"]
    monkeypatch.setenv("FLA_TILELANG", "0")
    monkeypatch.setenv("CC", "ccache gcc")
    (finding,) = check_compilers(hopper=True)
    assert "ccache gcc: no such command" in finding.state


def test_the_report_ends_with_a_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    shown = capsys.readouterr().out
    assert shown.endswith("fit to train\n") and "torch" in shown
    wrong = Finding("problem", "trl", "1.15.0, wanted >=1.16", "pip install 'trl>=1.16'")
    monkeypatch.setattr(doctor, "examine", lambda: iter([Finding("ok", "torch", "2.13"), wrong]))
    with pytest.raises(NextturnError, match="trl"):
        main([])
    assert "-> pip install 'trl>=1.16'" in capsys.readouterr().out
