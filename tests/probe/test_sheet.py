"""The sheet: values of kept runs, groups in place of refusals, and the paper's figures with their sources."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.__main__ import main
from nextturn.probe.command.files import read_json, write_json
from nextturn.probe.judges.verdicts import LABELS
from nextturn.probe.models.folders import load_chat, load_model, model_info, resolve
from nextturn.probe.report.sheet import SIX, models_in_paper, models_of, read_paper, tables_of
from nextturn.probe.results import Metric, load_runs
from nextturn.probe.store import RunStore
from support.commands import ROOT
from support.page_runs import QUESTION, probe_run

PAGE = (ROOT / "docs/paper.md").read_text()
GALLERY = ROOT / "recipes/gallery/smollm2"


def rows_in(text: str) -> list[list[str]]:
    """The cells of every row of the tables of a page."""
    lines = re.findall(r"^\| (.+) \|$", text.replace("\\", ""), re.M)
    return [line.split(" | ") for line in lines]


def test_the_command_of_the_page_shows_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(re.findall(r"^nextturn (probe sheet recipes.*)$", PAGE, re.M)[0])[1:]
    words[words.index("--out") + 1] = str(tmp_path)
    main(words)
    shown, written = PAGE.partition("A part of what it prints:")[2].partition("\n\nThe ")[0], tmp_path / "sheet.md"
    assert len(rows_in(shown)) == 4
    assert all(row in rows_in(written.read_text()) for row in rows_in(shown))
    titles = [row[0] for row in rows_in(PAGE.partition("| table |")[2].partition("\n\n")[0])]
    assert set(re.findall(r"^## (.+)$", written.read_text(), re.M)) <= set(titles)
    sheet = read_json(tmp_path / "sheet.json")
    assert {model["group"] for model in sheet["models"]} == {1, 2, "paper"}
    assert {line.partition(":")[0] for line in sheet["differences"]} >= {"dtype", "max_answer_tokens"}


def test_kept_runs_have_their_figures_and_paired_changes() -> None:
    runs = load_runs([GALLERY / name for name in ("base", "sft", "grpo")])
    models = models_of(runs)
    for model, run in zip(models, runs, strict=True):
        counted = read_json(run.folder / "results.json")
        assert (
            model.figures[Metric("accuracy", "starter", "lenient")].value
            == counted["accuracy"]["starter"]["lenient"]["value"]
        )
        assert (model.facts["base"], model.facts["parameters"]) == ("base", None)
    tables = tables_of(models, {})
    main_rows = {row[1]: row for row in tables["Accuracy and follow-up at T=0"][1:]}
    assert main_rows["sft step-78"][3:] == ["33.3 [22.7, 45.9]", "46.7 [34.6, 59.1]", "60"]
    changed = {row[1]: row[3] for row in tables["Base, SFT and RL"][1:]}
    assert changed["sft step-78"] == "33.3 [22.7, 45.9] (+30.0 [+15.3, +42.7])"
    assert changed["base"] == "3.3 [0.9, 11.4]"
    assert {row[2] for row in tables["By number of parameters"][1:]} == {"-"}
    assert len(tables["Controls"]) == 1


def test_models_of_other_templates_and_thinking_form_groups(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "a": {},
        "b": {"template": "c" * 64},
        "c": {"enable_thinking": False},
        "d": {"judge": "llm-2"},
    }
    folders = [probe_run(tmp_path / name, name, None, 0.4, **settings) for name, settings in given.items()]
    sizes = {"a": 2_000, "b": None, "c": 1_000, "d": 3_000}
    for folder in folders:
        results = read_json(folder / "results.json")
        write_json(
            folder / "results.json", {**results, "model": {**results["model"], "parameters": sizes[folder.name]}}
        )
    main(["sheet", *map(str, folders), "--out", str(tmp_path / "out")])
    sheet = read_json(tmp_path / "out/sheet.json")
    assert {model["name"]: model["group"] for model in sheet["models"]} == {"a": 1, "d": 1, "b": 2, "c": 3}
    assert [line.partition(":")[0] for line in sheet["differences"]] == ["judge"]
    tables = tables_of(models_of(load_runs(folders)), {})
    assert [row[1] for row in tables["By number of parameters"][1:] if row[0] == "maths"] == ["c", "a", "d", "b"]
    assert {row[1] for row in tables["Controls"][1:]} == {QUESTION}
    assert all(row[-2] != "-" for row in tables["Controls"][1:]), "the share of changed turns"


def test_the_papers_figures_have_a_source_and_stand_in_the_tables() -> None:
    paper = read_paper()
    assert all(each["source"] and each["read"] in ("first hand", "second hand", "not recorded") for each in paper)
    models = models_in_paper(paper)
    assert sum(len(model.figures) for model in models) == len(paper), "no figure stands twice"
    tables = tables_of(models, {})
    trained = {row[1]: row[3:5] for row in tables["Base, SFT and RL"][1:] if row[0] == "gsm8k"}
    assert trained == {f"paper: Qwen3.5-2B {name}": [percent, "-"] for name, percent in
                       (("base", "62.9"), ("SFT", "40.3"), ("RL", "67.4"))}  # fmt: skip
    assert [row[4:] for row in tables["Controls"] if row[:2] == ["gpqa_diamond", "truncate"]] == [
        ["paper", "2.0", "39.4", "-", "-"]
    ]
    assert set(LABELS) > SIX and len(SIX) == 6


def test_the_number_of_parameters_is_recorded_and_a_run_begun_before_goes_on(tiny_chatml: Path, tmp_path: Path) -> None:
    from nextturn.probe.callback import info_of

    folder = resolve(str(tiny_chatml))
    chat, model = load_chat(folder), load_model(folder, device="cpu")
    info = model_info(folder, chat)
    assert info.parameters == model.num_parameters() == info_of(model, chat, "tiny").parameters
    RunStore(tmp_path, info, {})
    manifest = read_json(tmp_path / "manifest.json")
    del manifest["model"]["parameters"]
    write_json(tmp_path / "manifest.json", manifest)
    assert RunStore(tmp_path, info, {}).finish({})["model"]["parameters"] == info.parameters
