"""The commands from outside: help and bad input answer before anything heavy is imported, in one line, exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from probe.errors import run_command
from train.sft import main as sft

ROOT = Path(__file__).resolve().parent.parent
SFT = str(ROOT / "train" / "sft.py")
HEAVY = {"accelerate", "datasets", "deepspeed", "matplotlib", "peft", "torch", "transformers", "trl", "vllm", "wandb"}


def python(*arguments: str, cwd: Path) -> tuple[int, str, list[str], set[str]]:
    """Runs a command; gives its exit code, stdout, lines on stderr, and the packages that it imported."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    lines = done.stderr.splitlines()
    timed = [line for line in lines if line.startswith("import time:")]
    packages = {line.rpartition("|")[2].strip().partition(".")[0] for line in timed}
    assert "probe" in packages, "the list of imports was read"
    return done.returncode, done.stdout, [line for line in lines if line not in timed], packages


def one_error(lines: Sequence[str]) -> str:
    assert len(lines) == 1, "\n".join(lines)
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    (tmp_path / "questions.jsonl").write_text('{"question": "What is 2 + 3?", "answer": "5"}\n')
    (tmp_path / "probe.yaml").write_text("probe:\n  sets: {own: {path: questions.jsonl}}\n")
    (tmp_path / "typo.yaml").write_text("probe:\n  sets: {own: {path: questions.jsonl}}\n  temperaturs: [0.0]\n")
    (tmp_path / "data_typo.yaml").write_text("sauce: {kind: starter}\n")
    train = "model: {name: smollm2-135m}\ndata: {path: talks.jsonl}\ntrain: {output_dir: run, learning_rat: 1e-5}\n"
    (tmp_path / "sft_typo.yaml").write_text(train)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("-m", "probe", "--help"), "compare"),
        (("-m", "probe", "run", "--help"), "--dry-run"),
        (("-m", "probe", "compare", "--help"), "--out"),
        (("-m", "probe", "agreement", "--help"), "--judge"),
        (("-m", "data_builders", "--help"), "--preview"),
        ((SFT, "--help"), "--resume"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_help_imports_nothing_heavy(command: tuple[str, ...], shown: str, tmp_path: Path) -> None:
    code, out, lines, packages = python(*command, cwd=tmp_path)
    assert (code, lines) == (0, [])
    assert shown in out
    assert not packages & HEAVY


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("-m", "probe", "run", "m", "typo.yaml", "--out", "out"), "typo.yaml: probe.temperaturs: unknown key; did you mean probe.temperatures?"),
        (("-m", "probe", "run", "m", "nowhere.yaml", "--out", "out"), "nowhere.yaml: no such recipe"),
        (("-m", "probe", "run", "m", "probe.yaml"), "--out DIR is missing"),
        (("-m", "probe", "run", "m", "probe.yaml", "--out", "out", "--probe.sed", "1"), "probe.sed: unknown key; did you mean probe.seed?"),
        (("-m", "probe", "compare", "nowhere", "--out", "out"), "nowhere"),
        (("-m", "data_builders", "data_typo.yaml", "--out", "out"), "data_typo.yaml: sauce: unknown key; did you mean source?"),
        ((SFT, "sft_typo.yaml"), "sft_typo.yaml: train.learning_rat: unknown key; did you mean train.learning_rate?"),
        ((SFT, "sft_typo.yaml", "--dry-run", "--trian.seed", "1"), "--trian.seed: unknown option"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value[1:4]).replace("/", "."),
)  # fmt: skip
def test_a_bad_recipe_is_told_before_anything_heavy_is_imported(
    command: tuple[str, ...], message: str, recipes: Path
) -> None:
    before = sorted(recipes.rglob("*"))
    code, _, lines, packages = python(*command, cwd=recipes)
    assert code == 2
    assert message in one_error(lines)
    assert not packages & HEAVY
    assert sorted(recipes.rglob("*")) == before, "nothing was written"


USER, ASSISTANT = {"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}
FINE = json.dumps({"messages": [USER, ASSISTANT, USER], "answer": "5"})
BAD_SETS = [
    (FINE[:30], "questions.jsonl:2: not JSON"),
    (json.dumps({"messages": [USER, USER]}), "questions.jsonl:2: roles do not alternate, message 2 is 'user'"),
    (json.dumps({"messages": []}), "questions.jsonl:2: an empty conversation"),
    (json.dumps({"question": "What is 2 + 3?"}), "questions.jsonl:2: no final answer"),
]


@pytest.mark.parametrize(("line", "message"), BAD_SETS, ids=["json", "roles", "empty", "answer"])
def test_probe_run_tells_which_line_of_a_set_is_bad(line: str, message: str, recipes: Path, tiny_chatml: Path) -> None:
    (recipes / "questions.jsonl").write_text(f"{FINE}\n{line}\n{FINE}\n")
    code, out, lines, packages = python(
        "-m", "probe", "run", str(tiny_chatml), "probe.yaml", "--out", "out", cwd=recipes
    )
    assert (code, out) == (2, "")
    assert message in one_error(lines)
    assert not (recipes / "out").exists()
    assert "torch" not in packages, "sets are read before the model"


def bad_models(folder: Path) -> dict[str, str]:
    (folder / "empty").mkdir()
    (folder / "other").mkdir()
    (folder / "other" / "README.md").write_text("no model here")
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{")
    (folder / "no_weights").mkdir()
    (folder / "no_weights" / "config.json").write_text('{"model_type": "llama"}')
    (folder / "a_file").write_text("")
    return {
        "nowhere/model_x": "nowhere/model_x: no local folder of this name",
        "./nowhere": "./nowhere: no such model folder",
        "empty": "empty: this folder holds no model, wanted config.json",
        "other": "other: this folder holds no model, wanted config.json",
        "broken": "broken",
        "no_weights": "no_weights",
        "a_file": "a_file: a file, wanted a model folder",
    }


def test_probe_run_tells_that_a_model_is_none(recipes: Path, monkeypatch: Any, capfd: Any) -> None:
    from probe.__main__ import main

    monkeypatch.chdir(recipes)
    for name, message in bad_models(recipes).items():
        for options in (["--out", "out"], ["--dry-run"]):
            assert run_command(main, ["run", name, "probe.yaml", *options]) == 2
            captured = capfd.readouterr()
            assert message in one_error(captured.err.splitlines())
            assert captured.out == ""
            assert not (recipes / "out").exists()


def test_probe_run_on_a_missing_model_says_so_from_outside(recipes: Path) -> None:
    code, _, lines, packages = python("-m", "probe", "run", "./nowhere", "probe.yaml", "--out", "out", cwd=recipes)
    assert code == 2
    assert "./nowhere: no such model folder" in one_error(lines)
    assert not packages & HEAVY
    assert not (recipes / "out").exists()


@pytest.fixture
def training(recipes: Path, tiny_chatml: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(recipes)
    (recipes / "talks.jsonl").write_text(json.dumps({"messages": [USER, ASSISTANT]}) + "\n")
    (recipes / "sft.yaml").write_text(
        f"model: {{name: {tiny_chatml}, dtype: float32}}\ndata: {{path: talks.jsonl}}\n"
        "train: {output_dir: run, max_length: 64}\nprobe: {sets: {own: {path: questions.jsonl}}}\n"
    )
    return recipes


BAD_TALKS = [
    ('{"messages": [{"ro', "talks.jsonl:2: not JSON"),
    (json.dumps({"messages": [USER, USER, ASSISTANT]}), "talks.jsonl:2: roles do not alternate, message 2 is 'user'"),
    (json.dumps({"messages": []}), "talks.jsonl:2: an empty conversation"),
    (json.dumps({"text": "Hi."}), "talks.jsonl:2: an empty conversation"),
    (json.dumps({"messages": [USER, {**ASSISTANT, "content": " "}]}), "talks.jsonl:2: message 2 (assistant) is empty"),
    (json.dumps({"messages": [USER]}), "talks.jsonl:2: the conversation ends with the user"),
]


def refused(capfd: Any, *overrides: str) -> str:
    assert run_command(sft, ["sft.yaml", "--dry-run", *overrides]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert not Path("run").exists()
    return one_error(captured.err.splitlines())


def test_a_dry_run_of_training_accepts_what_is_fine(training: Path, capfd: Any) -> None:
    assert run_command(sft, ["sft.yaml", "--dry-run"]) == 0
    assert "1 conversations, 1 rows" in capfd.readouterr().out
    assert not Path("run").exists()


@pytest.mark.parametrize(("line", "message"), BAD_TALKS, ids=["json", "roles", "empty", "none", "silent", "user"])
def test_a_dry_run_of_training_tells_which_line_of_the_data_is_bad(
    line: str, message: str, training: Path, capfd: Any
) -> None:
    path = training / "talks.jsonl"
    path.write_text(path.read_text() + line + "\n")
    assert message in refused(capfd)


@pytest.mark.parametrize(("line", "message"), BAD_SETS, ids=["json", "roles", "empty", "answer"])
def test_a_dry_run_of_training_reads_the_probe_sets_too(line: str, message: str, training: Path, capfd: Any) -> None:
    (training / "questions.jsonl").write_text(f"{FINE}\n{line}\n{FINE}\n")
    assert message in refused(capfd)


def test_a_dry_run_of_training_names_what_is_not_there(training: Path, capfd: Any) -> None:
    (training / "unfinished").mkdir()
    assert "nowhere.jsonl: no such file or folder (data.path)" in refused(capfd, "--data.path", "nowhere.jsonl")
    assert "unfinished: is no data build (no manifest.json)" in refused(capfd, "--data.path", "unfinished")
    for name, message in bad_models(training).items():
        assert message in refused(capfd, "--model.name", name)


def test_a_broken_line_of_training_data_is_told_from_outside(training: Path) -> None:
    (training / "talks.jsonl").write_text("{\n")
    code, out, lines, packages = python(SFT, "sft.yaml", "--dry-run", cwd=training)
    assert (code, out) == (2, "")
    assert "talks.jsonl:1: not JSON" in one_error(lines)
    assert not (training / "run").exists()
    assert not packages & {"trl", "deepspeed", "wandb", "vllm"}, "a dry run needs the tokenizer alone"
