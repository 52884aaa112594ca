"""A training run whose user turns are drawn, labelled and corrected, and files of rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nextturn.probe.command.files import read_json, sha256_text, write_json
from nextturn.probe.labels.turns import JudgedTurn, user_turns
from nextturn.probe.results import load_runs
from support.page_runs import three_runs


def three_models(folder: Path) -> Path:
    """Write a training run with three finished probes of different weights: 60 turns at T=0 and at 0.7 on maths, 30 on chat."""
    for run in three_runs(folder).runs:
        results = read_json(run.folder / "results.json")
        results["model"]["weights_sha256"] = sha256_text(run.name)
        write_json(run.folder / "results.json", results)
    return folder / "sft"


def turns_of(*folders: Path) -> list[JudgedTurn]:
    return [turn for run in load_runs(folders) for turn in user_turns(run)]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows as lines of JSON; a lone surrogate is escaped, as in the files of real runs."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
