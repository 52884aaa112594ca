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
from nextturn.probe.command.errors import run_command
from nextturn.train.sft import main as sft
from support.commands import ROOT, without
from support.conversations import messages

SFT, GRPO = (str(ROOT / "train" / f"{stage}.py") for stage in ("sft", "grpo"))
PROBE, BUILD, CLI = (("-m", f"nextturn.{name}") for name in ("probe", "data_builders", "train.cli"))
HEAVY = {
    "accelerate", "datasets", "deepspeed", "matplotlib", "numpy", "peft", "torch", "transformers", "trl", "vllm", "wandb",
}  # fmt: skip
HELP = {
    (*PROBE, "--help"): "compare",
    (*PROBE, "run", "--help"): "--dry-run",
    (*PROBE, "compare", "--help"): "--out",
    (*PROBE, "agreement", "--help"): "--judge",
    (*PROBE, "label", "--help"): "--import",
    (*PROBE, "correct", "--help"): "--labels",
    (*BUILD, "--help"): "--dry-run",
    (SFT, "--help"): "--resume",
    (*CLI, "users", "--help"): "perplexity",
    (*CLI, "keys", "probe.judge"): "probe.judge: ",
    (*CLI, "keys", "rollout.mode"): "rollout.mode: ",
    (*CLI, "--version"): "nextturn 0.",
}
REFUSED = {
    (*PROBE, "run", "m", "typo.yaml", "--out", "out"): "typo.yaml: probe.temperaturs: unknown key; did you mean probe.temperatures?",
    (*PROBE, "run", "m", "nowhere.yaml", "--out", "out"): "nowhere.yaml: no such recipe",
    (*PROBE, "run", "m", "probe.yaml"): "--out DIR is missing",
    (*PROBE, "run", "m", "probe.yaml", "--out", "out", "--probe.sed", "1"): "probe.sed: unknown key; did you mean probe.seed?",
    (*PROBE, "run", "./nowhere", "probe.yaml", "--out", "out"): "./nowhere: no such model folder",
    (*PROBE, "run", "./tiny_chatml", "bad_set.yaml", "--out", "out"): "bad.jsonl:1: not JSON",
    (*PROBE, "compare", "nowhere", "--out", "out"): "nowhere",
    (*PROBE, "correct", "nowhere", "--labels", "labels.jsonl"): "nowhere: no such folder",
    (*BUILD, "data_typo.yaml", "--out", "out"): "data_typo.yaml: sauce: unknown key; did you mean source?",
    (SFT, "sft_typo.yaml"): "sft_typo.yaml: train.learning_rat: unknown key; did you mean train.learning_rate?",
    (SFT, "sft_typo.yaml", "--dry-run", "--trian.seed", "1"): "--trian.seed: unknown option",
    (GRPO, "sft.yaml"): "sft.yaml: train.max_length: unknown key",
    (SFT, "data_typo.yaml"): "data_typo.yaml: sauce: unknown key",
    (*BUILD, "sft.yaml"): "sft.yaml: a recipe for training; run `nextturn sft sft.yaml`",
    (SFT, "sft.yaml", "--train.learning_rate", "-1"): "train.learning_rate: given -1",
    (SFT, "sft.yaml", "--dryrun"): "did you mean --dry-run?",
    (SFT, "sft.yaml", "--data.path", "nowhere.jsonl"): "nowhere.jsonl: no such file",
    (SFT, "sft.yaml", "--data.path", "none.jsonl"): "none.jsonl: the file is empty",
    (SFT, "sft.yaml", "--data.validation", "none.jsonl", "--dry-run"): "none.jsonl: the file is empty",
    (SFT, "sft.yaml", "--model.name", "smolm2-135m"): "did you mean smollm2-135m?",
    (*CLI, "keys", "probe.judgee"): "did you mean probe.judge?",
    (*CLI, "keys", "nowhere"): "expected one of sft",
}  # fmt: skip
# One interpreter for all, which tells after each command what it has imported so far.
RUN_ALL = """
import contextlib, io, json, runpy, sys
for words in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    module, code = words[0] == "-m", None
    sys.argv = words[module:]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module(words[1], run_name="__main__") if module else runpy.run_path(words[0], run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
    packages = sorted({name.partition(".")[0] for name in sys.modules})
    print(json.dumps([code, out.getvalue(), err.getvalue().splitlines(), packages]))
"""


def one_error(lines: Sequence[str]) -> str:
    assert len(lines) == 1, "\n".join(lines)
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


@pytest.fixture
def recipes(tmp_path: Path, tiny_chatml: Path) -> Path:
    (tmp_path / "questions.jsonl").write_text('{"question": "What is 2 + 3?", "answer": "5"}\n')
    (tmp_path / "none.jsonl").touch()
    (tmp_path / "conversations.jsonl").write_text(json.dumps({"messages": messages("Hi.", "Hello.")}) + "\n")
    (tmp_path / "probe.yaml").write_text("probe:\n  sets: {own: {path: questions.jsonl}}\n")
    (tmp_path / "typo.yaml").write_text("probe:\n  sets: {own: {path: questions.jsonl}}\n  temperaturs: [0.0]\n")
    (tmp_path / "data_typo.yaml").write_text("sauce: {kind: math}\n")
    train = f"model: {{name: {tiny_chatml}, dtype: float32}}\ndata: {{path: conversations.jsonl}}\n"
    train += "train: {output_dir: run, max_length: 64%s}\nprobe: {sets: {own: {path: questions.jsonl}}}\n"
    (tmp_path / "sft.yaml").write_text(train % "")
    (tmp_path / "sft_typo.yaml").write_text(train % ", learning_rat: 1e-5")
    return tmp_path


def test_help_and_bad_recipes_import_nothing_heavy(recipes: Path, tiny_chatml: Path) -> None:
    """Help and errors come before anything heavy is imported, and a set is read before the model."""
    (recipes / "tiny_chatml").symlink_to(tiny_chatml)
    (recipes / "bad.jsonl").write_text('{"messages": [{"ro\n')
    (recipes / "bad_set.yaml").write_text("probe:\n  sets: {own: {path: bad.jsonl}}\n")
    before = sorted(recipes.rglob("*"))
    words = [*HELP, *REFUSED]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN_ALL],
        cwd=recipes, env=os.environ, input=json.dumps(words), capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    answers = dict(zip(words, map(json.loads, done.stdout.splitlines()), strict=True))
    for command, told in HELP.items():
        code, out, lines, packages = answers[command]
        assert (code, lines) == (0, []) and told in out, command
        assert "nextturn" in packages and not HEAVY & {*packages}, command
    for command, told in REFUSED.items():
        code, out, lines, packages = answers[command]
        assert (code, out) == (2, "") and told in one_error(lines), command
        assert not HEAVY & {*packages}, command
    assert sorted(recipes.rglob("*")) == before, "nothing was written"


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


def test_data_are_read_before_the_model_and_a_plan_needs_the_tokenizer_alone(
    refused: Callable[..., str], recipes: Path, capfd: Any, monkeypatch: Any
) -> None:
    data = recipes / "conversations.jsonl"
    fine = data.read_text()
    bad = {'{"messages": [{"ro': "not JSON", '{"text": "Hi."}': "no conversation in it"}
    for line, message in bad.items():
        data.write_text(f"{fine}{line}\n")
        assert f"conversations.jsonl:2: {message}" in refused(sft, "sft.yaml", "--dry-run")
    data.write_text(fine)
    without(monkeypatch, "trl", "deepspeed", "wandb", "vllm")
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
