"""`nextturn init` writes an example whose every stage runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nextturn.probe.command.errors import BadInput
from nextturn.train.init import EXAMPLE, main
from support.commands import call


def test_every_stage_of_the_example_runs(tmp_path: Path, tiny_chatml: Path) -> None:
    main([str(tmp_path / "mine")])
    folder = tmp_path / "mine"
    assert {path.name for path in folder.iterdir()} == {path.name for path in EXAMPLE.iterdir() if path.is_file()}

    short = ["--train.use_cpu", "true", "--train.bf16", "false", "--model.dtype", "float32", "--train.max_steps", "1"]
    shorter = ["--probe.max_answer_tokens", "8", "--probe.max_user_tokens", "8"]
    call(["nextturn", "sft", "sft.yaml", "--model.name", str(tiny_chatml), *short, *shorter], folder)
    sft = json.loads((folder / "runs/sft/finished.json").read_text())
    assert sft["rows"]["conversations"] == len((folder / "conversations.jsonl").read_text().splitlines())

    call(["nextturn", "data", "data.yaml"], folder)
    assert json.loads((folder / "runs/data/manifest.json").read_text())["kept"] >= 3

    for stage, pairs in (("dpo", "pairs.jsonl"), ("grpo", "prompts.jsonl")):
        assert (folder / pairs).is_file()
        call(["nextturn", stage, f"{stage}.yaml", *short, *(shorter if stage == "grpo" else [])], folder)
        assert (folder / f"runs/{stage}/finished.json").is_file()
    call(["nextturn", "probe", "compare", "runs/sft", "runs/grpo", "--out", "runs/comparison"], folder)
    assert (folder / "runs/comparison/report.html").is_file()

    last = json.loads((folder / "runs/sft/finished.json").read_text())["step"]
    generated = [folder / f"runs/{run}/generations.jsonl" for run in (f"sft/probe/step-{last}", "grpo/probe/base")]
    assert generated[0].read_bytes() == generated[1].read_bytes(), "GRPO's base is SFT's last checkpoint"
    compared = json.loads((folder / "runs/comparison/comparison.json").read_text())
    assert len({figure["run"] for figure in compared["figures"]}) == 2 + 2 - 1, "the model that both have counts once"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text("mine")
    with pytest.raises(BadInput, match=r"sft\.yaml"):
        main([str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["sft.yaml"]
