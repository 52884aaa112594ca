"""A finished run judged again: by which judge, into which directory, and failures counted over all of its turns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nextturn.probe.errors import BadInput
from nextturn.probe.files import read_json, read_jsonl, write_json
from nextturn.probe.judges.labels import GENUINE, Case, Verdict
from nextturn.probe.labels.rejudge import rejudge
from support.page_runs import probe_run


class Agreeing:
    """A judge that calls every turn genuine and records how many cases and known verdicts it was given."""

    name, calls = "agreeing", 0

    def __init__(self, version: str) -> None:
        self.version = version
        self.asked = self.known = 0

    def stream(self, cases: Sequence[Case], known: Sequence[Verdict] = ()) -> Iterator[tuple[int, Verdict]]:
        self.asked, self.known = len(cases), len(known)
        for index in range(len(cases)):
            yield index, Verdict(GENUINE, None, "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run of an older version, which still wrote a KL. Ten of its turns have no label."""
    run = probe_run(tmp_path / "run", "step-4", 4, 0.5, n=20)
    rows = [row for _, row in read_jsonl(run / "samples.jsonl")]
    for number, row in enumerate(rows):  # no two cases are equal
        row["messages"], row["user_turn"] = row["messages"][1:], row["user_turn"] and f"And then {number}?"
    for row in [row for row in rows if row["kind"] == "followup"][:10]:
        row.update(label=None, unscored="cut_off")
    (run / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(run / "results.json", {**read_json(run / "results.json"), "kl_to_base": {"value": 0.9}})
    return run


def test_another_judge_needs_a_directory_of_its_own(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--out"):
        rejudge(folder, Agreeing("another/1"))
    results = rejudge(folder, Agreeing("another/1"), tmp_path / "again")
    assert "kl_to_base" not in results and results["settings"]["judge"] == "another/1"
    assert results["followup"]["maths"]["none"]["T=0.0"]["rate"] == 1


def test_the_runs_own_judge_is_asked_about_unlabelled_turns_and_given_the_other_verdicts(folder: Path) -> None:
    """A share of failures among the unlabelled turns alone would end any rerun."""
    turns = [row for _, row in read_jsonl(folder / "samples.jsonl") if row["kind"] in ("followup", "actual")]
    unlabelled = sum(row["label"] is None for row in turns)
    judge = Agreeing(read_json(folder / "results.json")["settings"]["judge"])
    assert "kl_to_base" not in rejudge(folder, judge)
    assert unlabelled >= 10 and (judge.asked, judge.known) == (unlabelled, len(turns) - unlabelled)
