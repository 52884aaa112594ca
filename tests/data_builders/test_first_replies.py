"""recipes/results/first_replies.py: written questions if a fact is missing, and otherwise the answers of the model itself."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from nextturn.data_builders.written import FILE
from support.grpo_parts import teach_to_talk

SCRIPT = Path(__file__).resolve().parents[2] / "recipes" / "results" / "first_replies.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_questions_are_the_written_ones_and_twins_come_first(script: dict[str, Any]) -> None:
    written = {f"written-{row['id']}": row for row in map(json.loads, FILE.read_text().splitlines())}
    questions, complete = script["openings"](7)
    wanted = {name for name, row in written.items() if row["kind"] == "underspecified"}
    assert {name for name, _ in questions} == wanted
    for name, messages in questions:
        shown = [(one["role"], one["content"]) for one in messages]
        assert shown == [(one["role"], one["content"]) for one in written[name]["messages"][:2]]
    kinds = [written[name]["kind"] for name, _ in complete]
    assert kinds == sorted(kinds, reverse=True) and set(kinds) == {"twin", "complete"}, "all twins, then others"
    assert all(len(messages) == 1 for _, messages in complete)
    assert script["openings"](8)[1] != complete, "which others, the seed says"


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("It is $\\boxed{4}$.", True),
        ("How many are there?", False),
        ("It is $\\boxed{4}$. Shall I show how?", False),
        (" ", False),
    ],
)
def test_a_reply_that_asks_is_left_out(script: dict[str, Any], reply: str, wanted: bool) -> None:
    assert script["answers_at_once"](reply) == wanted


def test_answers_come_from_the_model(
    script: dict[str, Any], tiny_chatml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talker = teach_to_talk(tiny_chatml, tmp_path / "talker", steps=120)  # greedy replies have to end as well
    script["main"]([str(talker), str(tmp_path / "first.jsonl"), "--dtype", "float32"])
    rows = [json.loads(line) for line in (tmp_path / "first.jsonl").read_text().splitlines()]
    questions, complete = script["openings"](7)
    asked = {name for name, _ in questions}
    own = [row for row in rows if row["id"] not in asked]
    assert len(rows) - len(own) == len(questions) and f"{len(own)} own answers" in capsys.readouterr().out
    assert 0 < len(own) <= len(complete), "a model that ends its turns keeps some of its answers"
    written = {
        f"written-{row['id']}": row["messages"][1]["content"] for row in map(json.loads, FILE.read_text().splitlines())
    }
    for row in own:
        assert row["messages"][1]["role"] == "assistant" and row["messages"][1]["content"]
        assert row["messages"][1]["content"] != written[row["id"]]
