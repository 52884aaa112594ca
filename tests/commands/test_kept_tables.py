"""The tables of README.md and docs/results.md come from the samples and labels that the repository keeps."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.files import read_jsonl, write_jsonl
from nextturn.probe.report.comparison import compare_runs, terminal_table
from nextturn.probe.results import load_runs
from support.commands import ROOT


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "recipes/results")
    monkeypatch.delitem(sys.modules, "tables", raising=False)
    import tables

    return tables


def test_pages_show_what_the_samples_give(tables: Any) -> None:
    assert tables.sums() == tables.SUMS.read_text(), "a kept file changed; `python recipes/results/tables.py --write`"
    for name in tables.PAGES:
        page = (ROOT / name).read_text(encoding="utf-8")
        assert "<!-- end of table -->" in page
        assert tables.with_tables(page) == page


def test_the_readme_shows_lines_that_compare_prints_of_the_demo() -> None:
    printed = [
        line.split() for line in terminal_table(compare_runs(load_runs([ROOT / "recipes/gallery/demo"]))).splitlines()
    ]
    block = re.findall(r"```text\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    assert len(block.splitlines()) == 5
    assert [line for line in block.splitlines() if line.split() not in printed] == []


def test_a_changed_byte_is_found(tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in {folder for runs, _ in tables.TABLES.values() for folder in tables.folders_of(runs)}:
        shutil.copytree(folder, tmp_path / folder.relative_to(ROOT))
    for _, labels in tables.TABLES.values():
        if labels:
            shutil.copy(ROOT / labels, tmp_path / labels)
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert tables.sums() == tables.SUMS.read_text()
    samples = tmp_path / "recipes/gallery/demo/probe/base/samples.jsonl"
    content = bytearray(samples.read_bytes())
    content[len(content) // 2] ^= 1
    samples.write_bytes(content)
    assert tables.sums() != tables.SUMS.read_text()


def test_samples_that_give_other_figures_are_refused(tables: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(ROOT / "recipes/gallery/demo/probe/base", run)
    tables.check_counts(run)
    rows = [row for _, row in read_jsonl(run / "samples.jsonl")]
    next(row for row in rows if row["kind"] == "accuracy")["lenient"] ^= True
    write_jsonl(run / "samples.jsonl", rows)
    with pytest.raises(ValueError, match="lenient"):
        tables.check_counts(run)
