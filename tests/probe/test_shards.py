"""Problems in pieces: what is cut, that nothing is lost or added, and the pieces that rows bring themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nextturn.probe.command.errors import DataError
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.questions.pieces import Shards, read_shards, split


@pytest.mark.parametrize(
    ("problem", "pieces"),
    [
        (
            "Mr. Ivo has 4 pens. He buys 3 more, and then he loses 2. How many has he now?",
            ("How many has he now?", "Mr. Ivo has 4 pens.", "He buys 3 more.", "He loses 2."),
        ),
        (
            "Ana has 6 cups. If each cup holds 5 beans, how many beans does she have?",
            ("How many beans does she have?", "Ana has 6 cups.", "Each cup holds 5 beans."),
        ),
        (
            "Ana has 6 cups. How many beans has she if each cup holds 5 beans?",
            ("How many beans has she?", "Ana has 6 cups.", "Each cup holds 5 beans."),
        ),
        (
            "He pays 20 a month. There are 6 months. How much more is it than if he paid 100 at once?",
            ("How much more is it than if he paid 100 at once?", "He pays 20 a month.", "There are 6 months."),
        ),
        (
            "Two lines meet. (Neither is vertical.) Find $a$. Express it as $p/q$.",
            ("Find $a$. Express it as $p/q$.", "Two lines meet.", "(Neither is vertical.)"),
        ),
    ],
)
def test_a_problem_is_cut_between_sentences_and_clauses(problem: str, pieces: tuple[str, ...]) -> None:
    assert split(problem) == Shards(pieces[0], pieces[1:])


@pytest.mark.parametrize(
    "problem",
    [
        "What is half of 12?",  # nothing to tell
        "Ivo has 4 pens. How many pairs are that?",  # a single fact
        "Ivo likes pens. He keeps them at home. How many has he?",  # no amount
        "Ivo has 4 pens. How many pairs are that? He buys 3 more. How many has he?",  # two questions
        "Ivo has 4 pens. He buys 3 more. He has them all. [asy] draw(A); [/asy] How many has he?",
        "Ivo has 4 pens. He buys 3 more.",  # no question
        "Ivo has 4 pens. He buys 3 more. How many has he? $\\text A.\\ 5 \\qquad \\text B.\\ 7$",  # choices
    ],
)
def test_what_cannot_be_cut_is_left_alone(problem: str) -> None:
    assert split(problem) is None


def test_rows_bring_their_own_pieces(tmp_path: Path) -> None:
    path = tmp_path / "lost.jsonl"
    row = {"task_id": "sharded-GSM8K/1", "task": "math", "question": "q", "answer": "a #### 4"}
    shards = [{"shard_id": 1, "shard": "how many pens"}, {"shard_id": 2, "shard": "Ivo has 4"}]
    write_jsonl(path, [{**row, "shards": shards}, {"id": "plain", "question": "q", "answer": "4"}])
    assert read_shards(path) == {"sharded-GSM8K/1": Shards("how many pens", ("Ivo has 4",))}
    for broken in ("text", shards[:1], [{"shard": ""}, {"shard": "x"}], [1, 2]):
        path.write_text(json.dumps({**row, "shards": broken}))
        with pytest.raises(DataError, match="lost.jsonl:1"):
            read_shards(path)
