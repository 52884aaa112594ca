"""The doctor names what is wrong and what to do, and its exit code says whether training can work."""

from __future__ import annotations

import importlib
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from nextturn.probe.command.errors import NextturnError
from nextturn.train import doctor
from nextturn.train.doctor import Finding, check_compilers, check_imports, check_packages, main


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which only what a test puts there is installed."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_a_package_out_of_range_or_missing_comes_with_its_pip_command(site: Path) -> None:
    needs = (
        "torch>=2.13",
        "trl<1.17,>=1.16",
        "peft",
        'nextturn[wandb]; extra == "gpu"',
        'wandb>=0.31; extra == "wandb"',
    )
    installed = {
        ("nextturn", "1"): needs, ("torch", "2.13.0+cpu"): (), ("trl", "1.15.0"): ("transformers<5.21", "absent"),
        ("transformers", "5.23.0"): (),
    }  # fmt: skip
    for (name, version), requirements in installed.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        lines = "".join(f"Requires-Dist: {need}\n" for need in requirements)
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{lines}")
    findings = {finding.about: finding for finding in check_packages(has_gpu=False)}
    assert findings["torch"].level == findings["wandb"].level == "ok", "an extra need not be installed"
    assert (findings["trl"].level, findings["trl"].do) == ("problem", "pip install 'trl<1.17,>=1.16'")
    assert (findings["peft"].level, findings["peft"].do) == ("problem", "pip install 'peft'")
    combination = findings["combination"]
    assert (combination.level, combination.do) == ("problem", "pip install 'transformers<5.21'")
    assert {finding.about: finding for finding in check_packages(has_gpu=True)}["wandb"].level == "note"


@pytest.mark.parametrize(
    ("driver", "built", "level", "words"),
    [
        (False, "13.0", "ok", "CPU"),
        (True, None, "problem", "without CUDA"),
        (True, "13.0", "problem", "driver on your system is too old"),
    ],
)
def test_a_gpu_that_torch_does_not_see_is_a_problem(
    driver: bool, built: str | None, level: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def too_old() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12080).")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", too_old)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(doctor, "DRIVER", tmp_path / "version")
    if driver:
        doctor.DRIVER.touch()
    (finding,) = doctor.check_gpus()
    assert finding.level == level and words in finding.state and finding.do


def test_packages_that_cannot_be_imported_are_a_problem(site: Path) -> None:
    """transformers calls a package that it cannot import "not installed", and continues in plain torch."""
    assert [finding.level for finding in check_imports()] == ["note"] * 3
    files = {
        "fla/ops/gated_delta_rule.py": "chunk_gated_delta_rule = fused_recurrent_gated_delta_rule = None\n",
        "causal_conv1d.py": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
        "vllm/platforms.py": "import vllm._C_stable_libtorch\n",
    }
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    importlib.invalidate_caches()
    good, crashes, broken = check_imports()
    assert [good.level, crashes.level, broken.level] == ["ok", "problem", "problem"]
    assert "vllm._C_stable_libtorch" in broken.state and broken.do.startswith("pip install")


def test_what_kernels_are_compiled_with_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("FLA_TILELANG", raising=False)
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if shutil.which("gcc") and shutil.which("g++") and headers.is_file():
        assert not list(check_compilers())
    (tmp_path / "gcc").write_text("#!/bin/sh\necho 'fatal error: dlfcn.h: No such file or directory' >&2; exit 1\n")
    (tmp_path / "gcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    c, cpp = check_compilers()
    assert c.level == cpp.level == "problem" and "dlfcn.h" in c.state and "no such command" in cpp.state
    monkeypatch.setenv("FLA_TILELANG", "0")
    assert [finding.about for finding in check_compilers()] == ["C compiler"]


def test_the_report_ends_with_a_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    shown = capsys.readouterr().out
    assert shown.endswith("fit to train\n") and "torch" in shown
    wrong = Finding("problem", "trl", "1.15.0, expected >=1.16", "pip install 'trl>=1.16'")
    monkeypatch.setattr(doctor, "examine", lambda: iter([Finding("ok", "torch", "2.13"), wrong]))
    with pytest.raises(NextturnError, match="trl"):
        main([])
    assert "-> pip install 'trl>=1.16'" in capsys.readouterr().out
