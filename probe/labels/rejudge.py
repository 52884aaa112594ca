"""`nextturn probe judge`: judge a finished run again from its samples.jsonl, without generating or loading a model.

With another judge the verdicts go to a directory of their own, so that both can be compared. With the run's own judge and
no --out, only turns without a label are judged again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

from nextturn.probe.errors import BadInput, DataError
from nextturn.probe.files import read_json, read_jsonl
from nextturn.probe.judges import get_judge
from nextturn.probe.judges.labels import Judge, Verdict
from nextturn.probe.measure.figures import figures
from nextturn.probe.measure.measures import NO_ANSWER, case_of, judged
from nextturn.probe.measure.store import RunStore, StoredJudge
from nextturn.probe.models import ModelInfo
from nextturn.probe.report.comparison import format_table
from nextturn.probe.settings import load_probe_recipe
from nextturn.probe.terminal import collected


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="DIR", help="a finished probe run")
    parser.add_argument("recipe", type=Path, help="a recipe whose probe.judge and probe.judge_server are used")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory for the new verdicts")


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> None:
    probe = load_probe_recipe(arguments.recipe, overrides).probe
    print(format_table([rejudge(arguments.run, get_judge(probe.judge, probe.judge_server), arguments.out)]))
    print((arguments.out or arguments.run) / "results.json")


def rejudge(folder: Path, judge: Judge, out: Path | None = None) -> dict[str, Any]:
    """Judge the user turns of a finished run and return the new results, which `out` then holds.

    Args:
        folder: A finished run.
        judge: The judge.
        out: Directory of the new run. None keeps the results in `folder`, which only the run's own judge may do.

    Raises:
        BadInput: `folder` holds no finished run, or another judge was given without `out`.
        JudgeError: Too many verdicts failed. Finished verdicts are stored, and the same call resumes.
    """
    started = time.monotonic()
    if not (folder / "results.json").is_file() or not (folder / "samples.jsonl").is_file():
        raise BadInput(f"{folder}: no finished run, expected a directory with results.json and samples.jsonl")
    before, rows = read_json(folder / "results.json"), [row for _, row in read_jsonl(folder / "samples.jsonl")]
    turns = [row for row in rows if row.get("kind") in ("followup", "actual") and row.get("unscored") != NO_ANSWER]
    if not turns:
        raise DataError(f"{folder}: its samples.jsonl holds no user turn to judge")
    same = before["settings"]["judge"] == judge.version
    if out is None and not same:
        raise BadInput(
            f"{folder}: judged by {before['settings']['judge']}, given {judge.version}; use --out to name a directory for "
            "the new verdicts"
        )
    model = ModelInfo(**{field.name: before["model"].get(field.name) for field in fields(ModelInfo)})
    store = RunStore(out or folder, model, {**before["settings"], "judge": judge.version})
    # The run's own labels are kept; turns that could not be labelled are judged again.
    kept = [row for row in turns if same and row["label"]]
    known = [Verdict(row["label"], None, row["judge_raw"], row.get("p_genuine")) for row in kept]
    turns = [row for row in turns if not (same and row["label"])]
    cases = [case_of(row) for row in turns]
    with closing(StoredJudge(judge, store.folder / "verdicts.jsonl", again=same)) as stored:
        verdicts = collected(stored.stream(cases, known), len(cases), f"probe {model.label}: judged by {judge.name}")
    for row, case, verdict in zip(turns, cases, verdicts, strict=True):
        row.update(judged(case, verdict))
    store.write_samples(rows)
    timing = {**before["timing"], "wall_s": round(time.monotonic() - started, 1), "judge_calls": stored.calls}
    return store.finish({**figures(rows), "timing": timing})
