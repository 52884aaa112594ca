"""The commands from outside: help and bad input answer before anything heavy is imported, in one line, exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.__main__ import main as probe
from nextturn.probe.errors import run_command
from nextturn.train.sft import main as sft

ROOT = Path(__file__).resolve().parents[2]
SFT, GRPO = (str(ROOT / "train" / f"{stage}.py") for stage in ("sft", "grpo"))
HEAVY = {
    "accelerate", "datasets", "deepspeed", "matplotlib", "numpy", "peft", "torch", "transformers", "trl", "vllm", "wandb",
}  # fmt: skip


def python(*arguments: str, cwd: Path) -> tuple[int, str, list[str], set[str]]:
    """Runs a command; gives its exit code, stdout, lines on stderr, and the packages that it imported."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    lines = done.stderr.splitlines()
    timed = [line for line in lines if line.startswith("import time:")]
    packages = {line.rpartition("|")[2].strip().partition(".")[0] for line in timed}
    assert "nextturn" in packages, "the list of imports was read"
    return done.returncode, done.stdout, [line for line in lines if line not in timed], packages


def one_error(lines: Sequence[str]) -> str:
    assert len(lines) == 1, "\n".join(lines)
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


@pytest.fixture
def recipes(tmp_path: Path, tiny_chatml: Path) -> Path:
    (tmp_path / "questions.jsonl").write_text('{"question": "What is 2 + 3?", "answer": "5"}\n')
    (tmp_path / "conversations.jsonl").write_text(json.dumps({"messages": [USER, ASSISTANT]}) + "\n")
    (tmp_path / "probe.yaml").write_text("probe:\n  sets: {own: {path: questions.jsonl}}\n")
    (tmp_path / "typo.yaml").write_text("probe:\n  sets: {own: {path: questions.jsonl}}\n  temperaturs: [0.0]\n")
    (tmp_path / "data_typo.yaml").write_text("sauce: {kind: starter}\n")
    train = f"model: {{name: {tiny_chatml}, dtype: float32}}\ndata: {{path: conversations.jsonl}}\n"
    train += "train: {output_dir: run, max_length: 64%s}\nprobe: {sets: {own: {path: questions.jsonl}}}\n"
    (tmp_path / "sft.yaml").write_text(train % "")
    (tmp_path / "sft_typo.yaml").write_text(train % ", learning_rat: 1e-5")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("-m", "nextturn.probe", "--help"), "compare"),
        (("-m", "nextturn.probe", "run", "--help"), "--dry-run"),
        (("-m", "nextturn.probe", "compare", "--help"), "--out"),
        (("-m", "nextturn.probe", "agreement", "--help"), "--judge"),
        (("-m", "nextturn.probe", "label", "--help"), "--page"),
        (("-m", "nextturn.probe", "correct", "--help"), "--labels"),
        (("-m", "nextturn.data_builders", "--help"), "--dry-run"),
        ((SFT, "--help"), "--resume"),
        (("-m", "nextturn.train.cli", "users", "--help"), "perplexity"),
        (("-m", "nextturn.train.cli", "--version"), "nextturn 0."),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_help_imports_nothing_heavy(command: tuple[str, ...], told: str, tmp_path: Path) -> None:
    code, out, lines, packages = python(*command, cwd=tmp_path)
    assert (code, lines) == (0, [])
    assert told in out
    assert not packages & HEAVY


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("-m", "nextturn.probe", "run", "m", "typo.yaml", "--out", "out"), "typo.yaml: probe.temperaturs: unknown key; did you mean probe.temperatures?"),
        (("-m", "nextturn.probe", "run", "m", "nowhere.yaml", "--out", "out"), "nowhere.yaml: no such recipe"),
        (("-m", "nextturn.probe", "run", "m", "probe.yaml"), "--out DIR is missing"),
        (("-m", "nextturn.probe", "run", "m", "probe.yaml", "--out", "out", "--probe.sed", "1"), "probe.sed: unknown key; did you mean probe.seed?"),
        (("-m", "nextturn.probe", "run", "./nowhere", "probe.yaml", "--out", "out"), "./nowhere: no such model folder"),
        (("-m", "nextturn.probe", "compare", "nowhere", "--out", "out"), "nowhere"),
        (("-m", "nextturn.probe", "correct", "nowhere", "--labels", "labels.jsonl"), "nowhere: no results.json here"),
        (("-m", "nextturn.data_builders", "data_typo.yaml", "--out", "out"), "data_typo.yaml: sauce: unknown key; did you mean source?"),
        ((SFT, "sft_typo.yaml"), "sft_typo.yaml: train.learning_rat: unknown key; did you mean train.learning_rate?"),
        ((SFT, "sft_typo.yaml", "--dry-run", "--trian.seed", "1"), "--trian.seed: unknown option"),
        ((GRPO, "sft.yaml"), "sft.yaml: train.max_length: unknown key"),
        ((SFT, "data_typo.yaml"), "data_typo.yaml: sauce: unknown key"),
        (("-m", "nextturn.data_builders", "sft.yaml"), "sft.yaml: a recipe for training; run `nextturn sft sft.yaml`"),
        ((SFT, "sft.yaml", "--train.learning_rate", "-1"), "train.learning_rate: given -1"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value[1:4]).replace("/", "."),
)  # fmt: skip
def test_a_bad_recipe_imports_nothing_heavy(command: tuple[str, ...], message: str, recipes: Path) -> None:
    """A bad recipe is told before anything heavy is imported."""
    before = sorted(recipes.rglob("*"))
    code, _, lines, packages = python(*command, cwd=recipes)
    assert code == 2
    assert message in one_error(lines)
    assert not packages & HEAVY
    assert sorted(recipes.rglob("*")) == before, "nothing was written"


def test_sets_are_read_before_the_model(recipes: Path, tiny_chatml: Path) -> None:
    """Sets are read before the model and a dry run of training needs the tokenizer alone."""
    (recipes / "questions.jsonl").write_text(FINE[:30] + "\n")
    command = ("-m", "nextturn.probe", "run", str(tiny_chatml), "probe.yaml", "--out", "out")
    code, out, lines, packages = python(*command, cwd=recipes)
    assert (code, out) == (2, "") and "questions.jsonl:1: not JSON" in one_error(lines)
    assert "torch" not in packages and not (recipes / "out").exists()

    (recipes / "questions.jsonl").write_text(FINE + "\n")
    (recipes / "conversations.jsonl").write_text("{\n")
    code, out, lines, packages = python(SFT, "sft.yaml", "--dry-run", cwd=recipes)
    assert (code, out) == (2, "") and "conversations.jsonl:1: not JSON" in one_error(lines)
    assert not packages & {"trl", "deepspeed", "wandb", "vllm"} and not (recipes / "run").exists()


@pytest.fixture
def refused(recipes: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Callable[..., str]:
    """Runs a command in the folder of the recipes; gives its one line of error and checks that it wrote nothing."""
    monkeypatch.chdir(recipes)

    def run(main: Callable[[Sequence[str]], None], *arguments: str) -> str:
        capfd.readouterr()
        assert run_command(main, arguments) == 2
        captured = capfd.readouterr()
        assert captured.out == ""
        assert not Path("run").exists() and not Path("out").exists()
        return one_error(captured.err.splitlines())

    return run


USER, ASSISTANT = {"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}
FINE = json.dumps({"messages": [USER, ASSISTANT, USER], "answer": "5"})
BAD_SETS = {
    FINE[:30]: "questions.jsonl:2: not JSON",
    json.dumps({"messages": [USER, USER]}): "questions.jsonl:2: roles do not alternate, message 2 is 'user'",
}
BAD_DATA = {
    '{"messages": [{"ro': "conversations.jsonl:2: not JSON",
    json.dumps({"messages": [USER, USER, ASSISTANT]}): "conversations.jsonl:2: roles do not alternate, message 2 is 'user'",
    json.dumps({"text": "Hi."}): "conversations.jsonl:2: no conversation in it (has text)",
    json.dumps({"messages": [USER, {**ASSISTANT, "content": " "}]}): "conversations.jsonl:2: message 2 (assistant) is empty",
    json.dumps({"messages": [USER]}): "conversations.jsonl:2: the conversation ends with the user",
}  # fmt: skip


def test_which_line_of_a_set_is_bad(refused: Callable[..., str], recipes: Path, tiny_chatml: Path) -> None:
    for line, message in BAD_SETS.items():
        (recipes / "questions.jsonl").write_text(f"{FINE}\n{line}\n{FINE}\n")
        assert message in refused(probe, "run", str(tiny_chatml), "probe.yaml", "--out", "out")
        assert message in refused(sft, "sft.yaml", "--dry-run")


def test_which_line_of_the_data_is_bad(
    refused: Callable[..., str], recipes: Path, capfd: Any, monkeypatch: Any
) -> None:
    fine = (recipes / "conversations.jsonl").read_text()
    for line, message in BAD_DATA.items():
        (recipes / "conversations.jsonl").write_text(f"{fine}{line}\n")
        assert message in refused(sft, "sft.yaml", "--dry-run")
    (recipes / "conversations.jsonl").write_text(fine)
    assert run_command(sft, ["sft.yaml", "--dry-run"]) == 0
    assert "1 conversations, 1 rows" in capfd.readouterr().out and not Path("run").exists()
    monkeypatch.setenv("RANK", "1")
    assert run_command(sft, ["sft.yaml", "--dry-run"]) == 0
    assert capfd.readouterr().out == "", "one process prints the plan"


def test_what_is_not_there_is_named(refused: Callable[..., str], recipes: Path) -> None:
    (recipes / "empty").mkdir()
    models = {
        "nowhere/model_x": "nowhere/model_x: no local folder of this name",
        "empty": "empty: this folder holds no model, expected config.json",
    }
    for name, message in models.items():
        assert message in refused(probe, "run", name, "probe.yaml", "--out", "out")
        assert message in refused(probe, "run", name, "probe.yaml", "--dry-run")
        assert message in refused(sft, "sft.yaml", "--dry-run", "--model.name", name)
    data = {"nowhere.jsonl": "no such file or folder (data.path)", "empty": "is no data build (no manifest.json)"}
    for name, message in data.items():
        assert f"{name}: {message}" in refused(sft, "sft.yaml", "--dry-run", "--data.path", name)
