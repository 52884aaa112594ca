"""Problems that are told piece by piece: the rows of a build, their prompts for RL, and the user who tells the pieces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nextturn.data_builders.build import Build
from nextturn.data_builders.recipe import load_data_recipe
from nextturn.data_builders.rows import load_rl_rows, load_sft_rows
from nextturn.data_builders.sharded import sharded
from nextturn.data_builders.simulators import PieceTeller, ScriptedSimulator
from nextturn.data_builders.tasks import Conversation
from nextturn.probe.conversations import assistant, user
from nextturn.probe.grading import asks, boxed
from nextturn.probe.shards import split
from nextturn.probe.simulation import UserRequest, UserTurn
from nextturn.train.rewards import asked_rightly
from support.commands import ROOT

QUESTION = "Ivo has 4 pens. He buys 3 more pens. How many has he?"
SOLUTION = r"4 + 3 = 7, so \boxed{7}."


def whole(kind: str = "complete", question: str = QUESTION, **fields: Any) -> Conversation:
    return Conversation("a", kind, (user(question), assistant(SOLUTION)), "test", "7", **fields)


def build(out: Path, *overrides: str) -> list[dict[str, Any]]:
    small = ["--written", "null", "--source.n", "40", "--eval.accuracy_n", "0", "--replay.fraction", "0.2"]
    Build(load_data_recipe(ROOT / "tests/demo.yaml", [*small, "--output.path", str(out), *overrides])).run(out)
    return list(load_sft_rows(out))


@pytest.fixture(scope="module")
def all_told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build with a sharded row for every row that can be told in pieces."""
    out = tmp_path_factory.mktemp("sharded") / "data"
    build(out, "--sharded", "1.0")
    return out


def test_the_last_reply_is_the_solution_and_those_before_it_ask() -> None:
    made = sharded(whole(), 1.0, 0)
    assert made is not None and made.kind == "sharded" and made.shards == ("Ivo has 4 pens.", "He buys 3 more pens.")
    users, replies = made.messages[::2], [message["content"] for message in made.messages[1::2]]
    assert [message["content"] for message in users] == ["How many has he?", *made.shards]
    assert replies[-1] == SOLUTION and made.reveal_at == 4
    assert all(asks(reply) and boxed(reply) is None and "7" not in reply for reply in replies[:-1])
    assert sharded(whole(), 1.0, 0) == made, "the seed decides the words"


@pytest.mark.parametrize(
    "conversation", [whole("underspecified"), whole(question="What is 4 + 3?"), whole(reason="unsolved")]
)
def test_other_conversations_give_none(conversation: Conversation) -> None:
    assert sharded(conversation, 1.0, 0) is None


def test_a_build_keeps_its_other_rows_and_adds_sharded_ones(all_told: Path, tmp_path: Path) -> None:
    before, after = build(tmp_path / "before"), list(load_sft_rows(all_told))
    added = [row for row in after if row["kind"] == "sharded"]
    assert [row for row in after if row["kind"] != "sharded"] == before
    by_id = {f"{row['id']}-sharded": row for row in before}
    assert len(added) > 7 and {by_id[row["id"]]["kind"] for row in added} <= {"complete", "replay"}
    assert all(row["messages"][-1] == by_id[row["id"]]["messages"][1] for row in added)
    some = [sharded(replace(whole(), id=str(number)), 0.5, 0) for number in range(40)]
    assert 8 < sum(map(bool, some)) < 32


def test_a_prompt_knows_what_is_still_to_be_told_and_the_scripted_user_tells_it(all_told: Path) -> None:
    rows = [row for row in load_rl_rows(all_told) if row.kind == "sharded"]
    assert {len(row.shards) for row in rows} >= {0, 1, 2}
    for row in rows:
        pieces = split(row.problem)
        assert pieces is not None and pieces.facts[row.turn :] == row.shards
        messages, told = [*row.prompt, assistant("Ok.")], []
        while True:
            (turn,) = PieceTeller(ScriptedSimulator()).turns(
                [UserRequest(row.intent, tuple(messages), 0, len(row.prompt))]
            )
            if turn.ended or not row.shards:
                break
            told.append(turn)
            messages += [user(turn.text), assistant("Ok.")]
        assert told == [UserTurn(fact) for fact in row.shards]
        if row.shards:
            ask, early, other = (asked_rightly(row, text) for text in ("What else is given?", r"\boxed{7}", "Noted."))
            assert (ask, early, other) == (1.0, -1.0, 0.0)
        else:
            assert asked_rightly(row, SOLUTION) == 1.0
