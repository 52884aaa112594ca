"""A measure of somebody's own, in a file outside of the package: figures, reports, a run that is killed, and a training run."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.__main__ import main
from nextturn.probe.command.errors import BadInput, DataError, IncomparableRuns, SettingsChanged
from nextturn.probe.command.files import read_json, read_jsonl, write_json, write_jsonl
from nextturn.probe.command.sections import ProbeSection, SetSection
from nextturn.probe.compare import compare
from nextturn.probe.engines.hf import HfEngine
from nextturn.probe.measures import measure_named
from nextturn.probe.measures.base import Figure, make_row
from nextturn.probe.models.folders import load_model, load_tokenizer, model_info, resolve
from nextturn.probe.report.comparison import compare_runs
from nextturn.probe.report.gate import gate_of
from nextturn.probe.report.page import Table, sections
from nextturn.probe.report.sheet import models_of, tables_of
from nextturn.probe.report.tracking import flatten
from nextturn.probe.results import Metric, OwnMeasure, Results, count_figures, load_runs
from nextturn.probe.run import run_probe
from nextturn.probe.text.chat import Chat
from support.measured import failing
from support.page_runs import write_run

CODE = """
from nextturn.probe.data.messages import assistant, user
from nextturn.probe.measures.base import Figure, Measure, Reply

class Wavers(Measure):
    figures = [Figure("changed", title="changes its text", better="down"), Figure("letters", unit="number", better="")]

    def ask(self, item):
        first = yield Reply(self.prompt(item.messages))
        chat = [*self.prompt(item.messages), assistant(first.text), user("Are you sure?")]
        second = yield Reply(chat)
        changed = None if item.id == "4" else float(hash_of(first.text) % 2 != hash_of(second.text) % 2)
        pair = int(item.id) // 2
        return [self.row(item.id, [*chat, assistant(second.text)], changed=changed, letters=len(second.text), cluster=pair)]

def hash_of(text):
    return sum(map(ord, text))
"""
NAME = "my_measures:Wavers"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_measures.py").write_text(CODE)
    write_jsonl(
        tmp_path / "sums.jsonl",
        [{"id": str(n), "question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(12)],
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "my_measures", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def measure(tiny_model: Path) -> Callable[..., dict[str, Any]]:
    model = resolve(str(tiny_model))
    tokenizer = load_tokenizer(model)
    chat, net = Chat(tokenizer), load_model(model, "float32", "cpu")

    def run(out: Path, dies_after: int | None = None, label: str = "base", tokens: int = 12) -> dict[str, Any]:
        engine = failing(HfEngine(net, tokenizer, batch_tokens=200), dies_after)
        sets = {"sums": SetSection(path="sums.jsonl", measures=("accuracy", NAME))}
        probe = ProbeSection(sets=sets, temperatures=(0.0,), max_answer_tokens=tokens)
        info = model_info(model, chat, label)
        return run_probe(engine, chat, info, probe, out)

    return run


def test_its_figures_stand_in_results_comparison_page_plot_and_tracker(folder: Path, measure: Any) -> None:
    results = measure(folder / "a")
    counted = results["own"]["wavers"]["sets"]["sums"]
    assert (counted["n"], counted["letters"]["n"]) == (11, 12), "one row has no value"
    rows = [row for _, row in read_jsonl(folder / "a" / "samples.jsonl") if row["kind"] == "wavers"]
    values = [row["values"]["changed"] for row in rows]
    assert values[4] is None and counted["changed"]["value"] == pytest.approx(sum(filter(None, values)) / 11, abs=1e-6)
    (folder / "my_measures.py").unlink()  # nothing of its code is needed from here on
    other = json.loads((folder / "a" / "results.json").read_text())
    other["model"] |= {"label": "later", "path": "later"}
    (folder / "b").mkdir()
    (folder / "b" / "results.json").write_text(json.dumps(other))
    changed = [
        {**row, "values": {**row["values"], "changed": 1.0}} if row["kind"] == "wavers" else row
        for _, row in read_jsonl(folder / "a" / "samples.jsonl")
    ]
    write_jsonl(folder / "b" / "samples.jsonl", changed)
    comparison = compare([folder / "a", folder / "b"], folder / "out", y="wavers")
    metric = Metric("wavers", "sums", "changed")
    assert metric in {figure.metric for figure in comparison.main}
    figure = next(each for each in comparison.figures if (each.run, each.metric) == ("later", metric))
    change = figure.changes["baseline"]
    assert change.value and change.value > 0 and change.n == 6, "six clusters of two items"
    assert figure.declared.better == "down" and comparison.title(metric) == "changes its text"
    page = (folder / "out" / "report.html").read_text()
    assert "changes its text" in page and (folder / "out" / "tradeoff.png").stat().st_size > 0
    assert "probe/wavers/sums/changed" in flatten(Results.model_validate(results))


@pytest.mark.parametrize(
    ("figures", "values", "expected", "paired"),
    [
        (("plain", "gain"), {"plain": 0.0, "gain": 1.0}, {"plain": 6, "gain": 6}, {"plain", "gain"}),
        (("plain", "gain"), {"plain": None, "gain": 1.0}, {"plain": None, "gain": None}, set()),
        (("plain", "gain"), {"plain": 0.0, "gain": None}, {"plain": 6, "gain": None}, {"plain"}),
        (("kept",), {"kept": 1.0}, {"kept": 6}, {"kept"}),
        (("kept", "plain"), {"kept": None, "plain": 1.0}, {"kept": None, "plain": 6}, {"plain"}),
    ],
)
def test_figures_without_a_value_and_with_a_number_of_their_own_are_read_back(
    tmp_path: Path,
    figures: tuple[str, ...],
    values: dict[str, float | None],
    expected: dict[str, int | None],
    paired: set[str],
) -> None:
    every = {each.name: each for each in (Figure("plain"), Figure("gain", minus="plain"), Figure("kept", n="n_kept"))}
    own = {"wavers": OwnMeasure(title="wavers", figures=tuple(every[name] for name in figures))}
    rows = [make_row("wavers", "sums", str(item), [], values={**values}) for item in range(6)]
    run = write_run(tmp_path / "a", "a", None, rows[:0], {"sums": ("wavers", 6)})
    write_jsonl(run / "samples.jsonl", rows)
    write_json(run / "results.json", {**read_json(run / "results.json"), **count_figures(rows, own)})
    (loaded,) = compare_runs(load_runs([run])).runs
    found = {metric.name: estimate.n for metric, estimate in loaded.results.figures().items()}
    assert found == {name: n for name, n in expected.items() if n is not None}
    assert loaded.samples and {metric.name for metric in loaded.samples.values} == paired


def test_another_version_of_its_code_makes_another_run(folder: Path, measure: Any) -> None:
    measure(folder / "a")
    (folder / "my_measures.py").write_text(CODE.replace("Are you sure?", "Really?"))
    del sys.modules["my_measures"]
    with pytest.raises(SettingsChanged):
        measure(folder / "a")
    measure(folder / "b")
    with pytest.raises(IncomparableRuns):
        compare([folder / "a", folder / "b"], folder / "out")


def test_a_number_is_shown_as_a_number(folder: Path, measure: Any) -> None:
    measure(folder / "a")
    shutil.copytree(folder / "a", folder / "b")
    for name, change in (("results.json", '"label": "later"'),):
        text = (folder / "b" / name).read_text()
        (folder / "b" / name).write_text(text.replace('"label": "base"', change))
    rows = [row for _, row in read_jsonl(folder / "b" / "samples.jsonl")]
    for number, row in enumerate(row for row in rows if row["kind"] == "wavers"):
        row["values"]["letters"] += 7 + number % 2
    write_jsonl(folder / "b" / "samples.jsonl", rows)
    compare([folder / "a", folder / "b"], folder / "out", y="wavers")
    page = (folder / "out" / "comparison.md").read_text()
    assert "+7.50 [" in page and "+750" not in page


@pytest.mark.parametrize("figures", [
    {"wavers": [Figure("share")], "hedges": [Figure("share")]},
    {"wavers": [Figure("a", title="share")], "hedges": [Figure("share")]},
    {"wavers": [Figure("a", title="share"), Figure("b", title="share")]},
])  # fmt: skip
def test_figures_that_are_named_alike_are_told_apart(figures: dict[str, list[Figure]], tmp_path: Path) -> None:
    own = {name: OwnMeasure(title=name, figures=tuple(declared)) for name, declared in figures.items()}
    folders, sizes = [], {"base": 10, "after": 30}
    for label, size in sizes.items():
        rows = [
            make_row(name, "sums", str(n), [], values={each.name: float(n < size + place) for place, each in enumerate(of)})
            for name, of in figures.items() for n in range(40)
        ]  # fmt: skip
        folders.append(write_run(tmp_path / label, label, None, rows, {"sums": ("own", 40)}, own=own))
    comparison = compare_runs(load_runs(folders))
    metrics = {figure.metric for figure in comparison.main}
    assert len(metrics) == len({comparison.title(metric) for metric in metrics}) == 2
    results = next(section for section in sections(comparison) if section.id == "results").blocks[0]
    assert isinstance(results, Table) and len(results.head) == 1 + 2
    head, *rows = tables_of(models_of(comparison.runs), comparison.declared)["Other measures"]
    assert len(rows) == len({tuple(row[: head.index("value")]) for row in rows}) == 4
    for metric in metrics:
        (check,) = gate_of(comparison, [f"sums.{comparison.word(metric)}=-3"], []).checks
        assert check.figure == comparison.word(metric)


@pytest.mark.parametrize("made", [5, 14])  # in the first round and in the second
def test_a_run_that_died_in_a_round_ends_with_equal_bytes(folder: Path, measure: Any, made: int) -> None:
    whole = measure(folder / "whole")
    with pytest.raises(MemoryError):
        measure(folder / "died", dies_after=made)
    assert {**measure(folder / "died"), "timing": 0} == {**whole, "timing": 0}
    assert (folder / "died" / "samples.jsonl").read_bytes() == (folder / "whole" / "samples.jsonl").read_bytes()


def test_it_is_measured_at_the_checkpoints_of_a_training_run(folder: Path, tiny_model: Path) -> None:
    from nextturn.train.sft import main as sft

    write_jsonl(
        folder / "talks.jsonl",
        [
            {"messages": [{"role": "user", "content": f"Say {n}."}, {"role": "assistant", "content": f"{n}."}]}
            for n in range(4)
        ],
    )
    (folder / "sft.yaml").write_text(json.dumps({
        "model": {"name": str(tiny_model)}, "data": {"path": "talks.jsonl"},
        "train": {"output_dir": "run", "max_steps": 1, "save_steps": 1, "per_device_train_batch_size": 1, "use_cpu": True},
        "probe": {"sets": {"sums": {"path": "sums.jsonl", "measures": [NAME]}}, "max_answer_tokens": 4, "temperatures": [0.0]},
        "tracking": {"to": "none"},
    }))  # fmt: skip
    sft(["sft.yaml"])
    for step in ("base", "step-1"):
        assert read_json(folder / "run" / "probe" / step / "results.json")["own"]["wavers"]["sets"]["sums"]["n"] == 11


@pytest.mark.parametrize("name", ["my_measures:Nothing", "no_such_file:Wavers", "json:dumps"])
def test_a_name_that_is_no_measure_is_an_error(folder: Path, name: str) -> None:
    with pytest.raises(DataError):
        measure_named(name)


@pytest.mark.parametrize(("values", "named"), [("chnaged=1.0", "chnaged"), ("changed='no'", "changed")])
def test_a_value_that_is_no_figures_is_an_error_that_names_it(
    folder: Path, measure: Any, values: str, named: str
) -> None:
    (folder / "my_measures.py").write_text(CODE.replace("changed=changed", values))
    with pytest.raises(DataError, match=f"{named}\\b"):
        measure(folder / "a")


@pytest.mark.parametrize(
    ("correct", "fails"),
    [
        ("changed=changed", 'changed=1 / (item.id != "7")'),
        ('Figure("letters", unit', 'Figure("letters", lambda row: 1 / (row["item"] != "7"), unit'),
    ],
)
def test_an_exception_of_its_code_names_measure_item_and_line(
    folder: Path, measure: Any, correct: str, fails: str
) -> None:
    (folder / "my_measures.py").write_text(code := CODE.replace(correct, fails))
    line = 1 + code[: code.index("1 / ")].count("\n")
    with pytest.raises(BadInput) as raised:
        measure(folder / "a")
    assert all(part in str(raised.value) for part in (NAME, "sums:7", "ZeroDivisionError", f"my_measures.py:{line}"))


def test_the_example_of_init_is_measured(folder: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Path(__file__).resolve().parents[2] / "train" / "example" / "my_measure.py"
    (folder / "my_measure.py").write_text(example.read_text())
    sets = "{sums: {path: sums.jsonl, n: 2, measures: ['my_measure:Wavers']}}"
    main(
        [
            "run",
            str(tiny_model),
            "--set",
            "sums.jsonl",
            "--probe.sets",
            sets,
            "--probe.max_answer_tokens",
            "4",
            "--out",
            "run",
        ]
    )
    assert "wavers" in read_json(folder / "run" / "results.json")["own"]
