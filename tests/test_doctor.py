"""The doctor names what is wrong and what to do, never hangs, shows no key, and says by its exit code whether all is well."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from train import doctor
from train.doctor import Finding, as_text, check_compiler, check_kernels, import_kernels, main

ROOT = Path(__file__).resolve().parent.parent


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
    needs = ("torch>=2.13", "trl<1.17,>=1.16", 'vllm<=0.31,>=0.27; extra == "gpu"')
    distribution(site, "nextturn", "1", "Requires-Python: >=3.11", *(f"Requires-Dist: {need}" for need in needs))
    distribution(site, "torch", "2.13.0+cpu")
    distribution(site, "trl", "1.15.0")
    found = {finding.about: finding for finding in doctor.check_packages(has_gpu=False)}
    assert found["torch"].level == "ok" and found["vllm"].level == "ok", "vLLM is of no use without a GPU"
    assert (found["trl"].level, found["trl"].do) == ("problem", "pip install 'trl<1.17,>=1.16'")
    (site / "trl-1.15.0.dist-info" / "METADATA").unlink()
    (site / "trl-1.15.0.dist-info").rmdir()
    found = {finding.about: finding for finding in doctor.check_packages(has_gpu=True)}
    assert "not installed" in found["trl"].found and found["vllm"].level == "note"


def test_what_trl_says_of_vllm_and_vllm_of_transformers_is_read(site: Path) -> None:
    distribution(site, "trl", "1.16.0", "Provides-Extra: vllm", 'Requires-Dist: vllm<=0.31,>=0.22; extra == "vllm"')
    distribution(site, "vllm", "0.33.0", "Requires-Dist: transformers<5.21")
    distribution(site, "transformers", "5.23.0")
    found = [finding.found for finding in doctor.check_conflicts(("trl", "vllm", "transformers"))]
    assert found == [
        "trl 1.16.0 works with vllm <=0.31,>=0.22, 0.33.0 is installed",
        "vllm 0.33.0 works with transformers <5.21, 5.23.0 is installed",
    ]


def test_kernels_on_a_machine_without_a_gpu_are_a_problem(site: Path) -> None:
    assert [finding.level for finding in check_kernels(False, import_kernels())] == ["ok"]
    assert [finding.level for finding in check_kernels(True, import_kernels())] == ["note", "note"]
    (site / "fla.py").touch()
    importlib.invalidate_caches()
    (finding,) = check_kernels(False, import_kernels())
    assert finding.level == "problem" and finding.do.startswith("pip uninstall")


def test_kernels_that_are_there_and_cannot_be_imported_are_a_problem(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found and not importable is what transformers takes for "not installed", and trains on in plain torch."""
    monkeypatch.setenv("PYTHONPATH", str(site))
    rule = site / "fla" / "ops" / "gated_delta_rule.py"
    rule.parent.mkdir(parents=True)
    rule.write_text("chunk_gated_delta_rule = fused_recurrent_gated_delta_rule = None\n")
    (site / "causal_conv1d.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    importlib.invalidate_caches()
    good, crashes = check_kernels(True, import_kernels())
    assert good.level == "ok" and crashes.level == "problem" and "it crashes: SIGSEGV" in crashes.found
    rule.write_text("raise ImportError('needs triton 3.9')\n")
    bad, _ = check_kernels(True, import_kernels())
    assert bad.level == "problem" and "ImportError: needs triton 3.9" in bad.found and bad.do.startswith("pip install")


def test_what_triton_compiles_with_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    (here,) = check_compiler()
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    assert here.level == ("ok" if shutil.which("gcc") and headers.is_file() else "problem"), here
    broken = tmp_path / "gcc"
    broken.write_text("#!/bin/sh\necho 'tried.c:2:10: fatal error: dlfcn.h: No such file or directory' >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = check_compiler()
    assert finding.level == "problem" and "fatal error: dlfcn.h" in finding.found
    monkeypatch.setattr(doctor.sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    (finding,) = check_compiler()
    assert "Python.h is missing" in finding.found and "-dev" in finding.do
    broken.unlink()
    (finding,) = check_compiler()
    assert "neither gcc nor clang" in finding.found and finding.do.startswith("apt-get install gcc")
    monkeypatch.setenv("CC", "ccache gcc")
    (finding,) = check_compiler()
    assert "CC=ccache gcc is no command" in finding.found


def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    import probe.hub

    never = threading.Event()
    monkeypatch.setattr(probe.hub, "unreachable", never.wait)
    assert "no answer within" in doctor.check_hub(seconds=0.05).found
    never.set()


def test_a_default_config_in_force_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert doctor.check_default_config(has_gpu=False).level == "ok"
    path = tmp_path / "accelerate" / "default_config.yaml"
    path.parent.mkdir()
    path.write_text("distributed_type: DEEPSPEED\nnum_processes: 4\nuse_cpu: true\n")
    finding = doctor.check_default_config(has_gpu=False)
    assert finding.level == "note" and "DEEPSPEED on 4 processes" in finding.found and "replaces" in finding.do
    assert doctor.check_default_config(has_gpu=True).level == "problem", "GPUs would stand idle"
    path.write_text("[]")
    assert "cannot be read" in doctor.check_default_config(has_gpu=True).found


def test_a_report_reads_as_level_name_found_and_what_to_do() -> None:
    first, second = as_text(Finding("problem", "trl", "1.15.0, wanted >=1.16", "pip install 'trl>=1.16'")).splitlines()
    assert first == "PROBLEM trl                    1.15.0, wanted >=1.16"
    assert second.strip() == "-> pip install 'trl>=1.16'"


def test_the_report_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    main(["--json", str(tmp_path / "doctor.json")])
    out = capsys.readouterr().out
    assert "fit to train on" in out and "a key is there" in out and "k" * 40 not in out
    report = json.loads((tmp_path / "doctor.json").read_text())
    assert report["fit"] and {"torch", "combination", "hub", "disk"} <= {row["about"] for row in report["findings"]}
