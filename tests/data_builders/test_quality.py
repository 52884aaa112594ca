"""The gate: each rule by its name, the same reasons for the same rows, also after a kill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nextturn.data_builders.quality import Gate, Quality, all_boxed
from nextturn.data_builders.scripted import Conversation, Conversations, converse, plan
from nextturn.data_builders.starter import starter_problems
from nextturn.probe.grading import closes_asking
from support.conversations import conversation


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(Quality(), 100, tmp_path / "gate.sqlite")
    yield made
    made.close()


def reasons(rows: Sequence[Conversation], index: Path, quality: Quality | None = None) -> list[str | None]:
    gate = Gate(quality or Quality(), len(rows), index)
    found = [gate.reason(row) for row in rows]
    gate.close()
    return found


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (conversation("What is 3 + 4?", "It is \\boxed{7}."), None),
        (conversation("What is 3 + 4?", "It is \\boxed{8}."), "answer_wrong"),
        (conversation("What is 3 + 4?", "Not \\boxed{8}, it is \\boxed{7}."), "answer_wrong"),
        (conversation("What is 3 + 4?", "It is 7."), "answer_missing"),
        (conversation("What is 3 + 4?", "\\boxed{7}", answer=""), "answer_missing"),
        (conversation("What is 3 + 4?", "\\boxed{7}", "Sure?", "It is \\boxed{8}."), "answer_wrong"),
        (conversation("What is half?", "\\boxed{0.5}", answer="\\frac{1}{2}"), None),
        (conversation("x?", "\\boxed{\\{2,1\\}}", answer="\\{1,2\\}"), None),
        (conversation("What is 3 + 4?"), "roles"),
        (conversation("What is 3 + 4?", "\\boxed{7}", " ", "\\boxed{7}"), "empty_turn"),
    ],
)
def test_the_gate_names_what_is_wrong_with_a_form_or_an_answer(
    gate: Gate, made: Conversation, reason: str | None
) -> None:
    assert gate.reason(made) == reason


ASK, WAY = "What is x?", "Then it is \\boxed{7}."


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (conversation("What is 3 + 4?", "Which base do you mean?", "10", WAY), "over_asking"),
        (conversation("What is 3 + 4?", "Shall we begin? I can.", "Yes", WAY), "over_asking"),
        (conversation("What is 3 + 4?", "Which base do you mean?", "10", WAY, kind="replay"), "over_asking"),
        (conversation("What is 3 + 4?", "Which base do you mean?", "10", WAY, kind="complete"), "over_asking"),
        (conversation("What is 3 + 4?", "Why ask? It is \\boxed{7}."), None),
        (conversation("What is 3 + 4?", "\\boxed{7}. Clear?"), "closes_asking"),
        (conversation("What is 3 + 4?", "\\boxed{7}. Clear? I hope so."), "closes_asking"),
        (conversation("What is 3 + 4?", "\\boxed{7}", "Why?", "3 + 4 = \\boxed{7}. Clear?"), "closes_asking"),
        (conversation("What is 3 + 4?", "\\boxed{7}", "Why?", "3 and 4 more. Clear?"), None),
        (conversation("3 + x?", "It is 3 + x.", "4", WAY, kind="underspecified", hidden="4"), "no_question"),
        (conversation("3 + x?", ASK, "4", WAY, kind="underspecified", hidden="4"), None),
        (conversation("3 + x?", "Is it \\boxed{7}?", "4", WAY, kind="underspecified"), "no_question"),
        (
            conversation("3 + x?", ASK, "Why?", WAY, "4", WAY, kind="underspecified", hidden="4", reveal_at=4),
            "answered_early",
        ),
    ],
)
def test_a_reply_asks_where_something_is_missing_and_only_there(
    gate: Gate, made: Conversation, reason: str | None
) -> None:
    assert gate.reason(made) == reason


def test_what_closes_with_a_question() -> None:
    assert closes_asking("Here. Is it clear?") and closes_asking("Do you have it?\n\nI need it.")
    assert not closes_asking("How many are there? There are \\boxed{3}.")
    assert not closes_asking("Why? Since so. And so.") and not closes_asking("Is it? " + "No. " * 300)


def test_all_boxes_of_a_text_are_found() -> None:
    assert list(all_boxed("\\boxed{1} and \\fbox{2}, so \\boxed{\\frac{3}{4}}")) == ["\\frac{3}{4}", "2", "1"]
    assert not list(all_boxed("a box of 3"))


def test_roles_that_do_not_alternate_are_rejected(gate: Gate) -> None:
    twice = ({"role": "user", "content": "a"}, {"role": "user", "content": "b"})
    assert gate.reason(Conversation("c", "complete", twice, "s", "7")) == "roles"


def test_duplicates_and_too_many_alike_are_rejected(tmp_path: Path) -> None:
    gate = Gate(Quality(max_same_wording=0.01), 100, tmp_path / "index")
    found = [gate.reason(conversation(f"Ann has {n} and 7?", "\\boxed{7}")) for n in (1, 2, 3, 4, 5)]
    assert found == [None, None, None, "same_wording", "same_wording"]
    assert gate.reason(conversation("Ann  has 1\nand 7?", "\\boxed{7}")) == "duplicate"
    assert gate.reason(conversation("Ann has 1 and 7?", "\\boxed{7}", kind="replay")) == "duplicate"
    assert gate.reason(conversation("Nobody has 1 and 7?", "It is \\boxed{7}")) is None
    gate.close()


def scripted(n: int) -> list[Conversation]:
    """Conversations of every kind, every fifth one twice."""
    settings = Conversations()
    made = [
        converse(task, kind, 3, settings)
        for task in starter_problems(n, 3, "train")
        for kind in plan(task, 3, settings)
    ]
    return [row for place, row in enumerate(made) for _ in range(1 + (place % 5 == 0))]


def nearly(row: Conversation) -> Conversation:
    last = {"role": "assistant", "content": row.messages[-1]["content"] + " Done."}
    return replace(row, messages=(*row.messages[:-1], last))


def test_scripted_conversations_pass_and_their_repetitions_do_not(tmp_path: Path) -> None:
    rows = scripted(150)
    found = reasons(rows, tmp_path / "index", Quality(max_same_wording=1.0))
    repeated = {place for place in range(1, len(rows)) if rows[place] is rows[place - 1]}
    assert {place for place, reason in enumerate(found) if reason == "duplicate"} == repeated
    assert sum(reason is None for reason in found) > 0.95 * (len(rows) - len(repeated))
    kept = {row.kind for row, reason in zip(rows, found, strict=True) if reason is None}
    assert kept == {"complete", "underspecified", "wrong_start", "right_start"}


def test_the_same_rows_get_the_same_reasons_also_when_taken_up_again(tmp_path: Path) -> None:
    rows = [one for row in scripted(60) for one in (row, nearly(row))]
    whole = reasons(rows, tmp_path / "whole", Quality(max_same_wording=0.01, near_duplicates=0.6))
    assert {"duplicate", "near_duplicate", None} <= set(whole)
    for cut in (1, len(rows) // 3, len(rows) - 1):
        gate = Gate(Quality(max_same_wording=0.01, near_duplicates=0.6), len(rows), tmp_path / "again")
        for row, reason in zip(rows[:cut], whole[:cut], strict=True):
            if reason is None:
                gate.remember(row.messages, row.kind)
        assert [gate.reason(row) for row in rows[cut:]] == whole[cut:]
        gate.close()


def test_the_index_is_made_anew_at_the_first_row_and_deleted_at_the_end(tmp_path: Path) -> None:
    index = tmp_path / "work" / "gate.sqlite"
    gate = Gate(Quality(), 10, index)
    assert not index.parent.exists()  # a folder that turns out to be somebody else's is left as it is
    gate.close()
    row = conversation("What is 3 + 4?", "It is \\boxed{7}.")
    index.parent.mkdir()
    index.write_bytes(b"what a killed build left")
    assert reasons([row, row], index) == [None, "duplicate"]
    assert not index.exists() and reasons([row], index) == [None]
