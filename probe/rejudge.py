"""`python -m probe judge`: judges a finished run anew from its samples.jsonl; nothing is generated, no model loaded.

With another judge the verdicts go to a folder of their own, so that both can be compared. With the run's own judge and
no --out, only turns that have no label are asked about again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from probe.errors import BadInput, DataError
from probe.files import read_json, read_jsonl
from probe.judges.labels import Case, Judge
from probe.measures.followup import labelled
from probe.run import Row, figures
from probe.store import ModelInfo, RunStore
from probe.terminal import collected

JUDGED = ("followup", "actual")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="DIR", help="a finished probe run")
    parser.add_argument("recipe", type=Path, help="a recipe whose probe.judge and probe.judge_server are used")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the run with the new verdicts")


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> None:
    from probe.comparison import format_table
    from probe.judges import get_judge
    from probe.settings import load_probe_recipe

    probe = load_probe_recipe(arguments.recipe, overrides).probe
    results = rejudge(arguments.run, get_judge(probe.judge, probe.judge_server), arguments.out)
    print(format_table([results]))
    print((arguments.out or arguments.run) / "results.json")


def rejudge(folder: Path, judge: Judge, out: Path | None = None) -> dict[str, Any]:
    """Judges the user turns of a finished run and returns the new results, which `out` then holds.

    Args:
        folder: a finished run.
        out: where the new run goes; None stays in `folder`, which its own judge alone may do.

    Raises:
        BadInput: `folder` holds no finished run, or another judge was given without `out`.
        JudgeError: too many verdicts failed; what was judged is stored, and the same call goes on from there.
    """
    from probe.judges.stored import StoredJudge

    started = time.monotonic()
    before, rows = _finished(folder)
    same = before["settings"]["judge"] == judge.version
    if out is None and not same:
        raise BadInput(
            f"{folder}: judged by {before['settings']['judge']}, given {judge.version}; name a folder for the new "
            "verdicts with --out"
        )
    model = ModelInfo(**{field.name: before["model"].get(field.name) for field in fields(ModelInfo)})
    store = RunStore(out or folder, model, {**before["settings"], "judge": judge.version})
    places = [place for place, row in enumerate(rows) if row["kind"] in JUDGED and not (same and row["label"])]
    cases = [_case(rows[place]) for place in places]
    stored = StoredJudge(judge, store.folder / "verdicts.jsonl", again=same)
    try:
        what = f"probe {model.label}: judged by {judge.name}"
        verdicts = collected(stored.stream(cases), len(cases), what)
    finally:
        stored.close()
    for place, case, verdict in zip(places, cases, verdicts, strict=True):
        rows[place] = {**rows[place], **labelled(case, verdict)}
    store.write_samples(rows)
    timing = {**before["timing"], "wall_s": round(time.monotonic() - started, 1), "judge_calls": stored.calls}
    return store.finish({**figures(rows), "timing": timing})


def _finished(folder: Path) -> tuple[dict[str, Any], list[Row]]:
    if not (folder / "results.json").is_file() or not (folder / "samples.jsonl").is_file():
        raise BadInput(f"{folder}: no finished run, wanted a folder with results.json and samples.jsonl")
    rows = [row for _, row in read_jsonl(folder / "samples.jsonl")]
    if not any(row.get("kind") in JUDGED for row in rows):
        raise DataError(f"{folder}: its samples.jsonl holds no user turn to judge")
    return read_json(folder / "results.json"), rows


def _case(row: Row) -> Case:
    return Case(tuple(row["messages"]), row["user_turn"], bool(row["user_cut"]))
