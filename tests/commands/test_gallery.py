"""The gallery's runs can be compared, and the README's tables of the demos have their figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.files import read_json
from support.commands import ROOT, call

GALLERY = "recipes/gallery"
SMOLLM2 = [f"{GALLERY}/smollm2/{name}" for name in ("base", "sft", "grpo", "labels.jsonl")]
SMOLLM2.insert(3, "--labels")
WANTED = [
    ("accuracy", "lenient", ""),
    ("clarify", "ask_when_needed", ""),
    ("clarify", "answer_when_complete", ""),
]


def cell(estimate: dict[str, Any]) -> str:
    low, high = (100 * bound for bound in estimate["ci95"])
    return f"{100 * estimate['value']:.0f} [{low:.0f}, {high:.0f}]"


@pytest.mark.parametrize("runs", [[f"{GALLERY}/demo"], SMOLLM2], ids=["demo", "demo-rl"])
def test_the_readmes_table_of_a_demo_has_the_figures_of_the_gallery(runs: list[str], tmp_path: Path) -> None:
    call(["nextturn", "probe", "compare", *runs, "--out", str(tmp_path)], ROOT)
    comparison = read_json(tmp_path / "comparison.json")
    assert (tmp_path / "report.html").is_file()
    figures = {(row["run"], row["measure"], row["name"], row["temperature"]): row for row in comparison["figures"]}
    corrected = {row["run"]: row["corrected"] for row in comparison["correction"]["rates"] if row["set"] is None}
    readme = (ROOT / "README.md").read_text()
    for run in comparison["runs"]:
        cells = [*(cell(figures[run["name"], *key]) for key in WANTED), cell(corrected[run["name"]])]
        assert f"| {run['name']} | {' | '.join(cells)} |" in readme
