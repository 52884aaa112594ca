"""The doctor names what is wrong and what to do, never hangs, shows no key, and says by its exit code whether all is well."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path

import pytest

from train import doctor
from train.doctor import Finding, as_text, check_kernels, main

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
    assert [finding.level for finding in check_kernels(has_gpu=False)] == ["ok"]
    assert [finding.level for finding in check_kernels(has_gpu=True)] == ["note", "note"]
    (site / "fla.py").touch()
    importlib.invalidate_caches()
    (finding,) = check_kernels(has_gpu=False)
    assert finding.level == "problem" and finding.do.startswith("pip uninstall")


def test_a_lock_is_a_problem_once_it_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    lock = tmp_path / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir()
    lock.touch()
    assert list(doctor.check_compiler())[-1].level == "note", "another start is compiling"
    hour_ago = time.time() - 3600
    os.utime(lock, (hour_ago, hour_ago))
    finding = list(doctor.check_compiler())[-1]
    assert (finding.level, finding.do) == ("problem", f"rm {lock}")


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
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    main(["--json", str(tmp_path / "doctor.json")])
    out = capsys.readouterr().out
    assert "fit to train on" in out and "a key is there" in out and "k" * 40 not in out
    report = json.loads((tmp_path / "doctor.json").read_text())
    assert report["fit"] and {"torch", "combination", "hub", "disk"} <= {row["about"] for row in report["findings"]}
