"""Prompts and rewards of one's own for GRPO: few columns are needed, and a reward has either of two signatures."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from nextturn.data_builders.rows import load_rl_rows
from nextturn.probe.command.errors import DataError
from nextturn.probe.command.files import write_jsonl
from nextturn.train.encoding import tellable
from nextturn.train.rewards import check_columns
from nextturn.train.scoring import call_custom
from nextturn.train.sections import RewardSection, RolloutSection, Weights
from support.conversations import messages
from support.sample_parts import sample

PROMPT = messages("The charger was missing.")


def rows(folder: Path, *given: dict[str, Any]) -> list[Any]:
    write_jsonl(folder / "prompts.jsonl", list(given))
    return list(load_rl_rows(folder / "prompts.jsonl"))


def test_a_prompt_is_a_conversation_or_a_question_and_keeps_its_columns(tmp_path: Path) -> None:
    first, second, third = rows(
        tmp_path,
        {"messages": PROMPT, "product": "charger"},
        {"id": "q", "question": "What is 2 + 3?", "answer": "2 + 3 = 5\n#### 5", "kind": "complete"},
        {"prompt": "Say hello.", "answer": 3},
    )
    assert (first.id, first.prompt, first.columns) == ("1", tuple(PROMPT), {"product": "charger"})
    assert (first.problem, first.answer, first.kind) == (PROMPT[0]["content"], "", "")
    assert (second.id, second.answer, second.prompt[0]["content"]) == ("q", "5", "What is 2 + 3?")
    assert (third.id, third.answer) == ("3", "3")
    (tmp_path / "prompts.json").write_text(json.dumps([{"messages": PROMPT}]))
    assert [row.prompt for row in load_rl_rows(tmp_path / "prompts.json")] == [tuple(PROMPT)]
    talks = ({"messages": messages(*"abcde"[:turns])} for turns in (1, 3, 5))
    assert [row.turn for row in rows(tmp_path, *talks)] == [0, 1, 2]
    with pytest.raises(DataError):
        rows(tmp_path, {"messages": messages("a", "b")})


LACKING = {"question": "2?", "answer": "2", "kind": "underspecified"}


@pytest.mark.parametrize(
    ("row", "weights", "lacks"),
    [
        ({"messages": PROMPT}, {}, ["accuracy", "asking"]),
        ({"question": "What is 2 + 3?", "answer": "5"}, {}, ["asking"]),
        ({"messages": PROMPT}, {"accuracy": 0.0, "asking": 0.0}, []),
        ({"question": "2?", "answer": "2", "kind": "complete"}, {}, []),
        (LACKING, {}, ["asking"]),
        ({**LACKING, "thing": "the order number", "reveal": "It is 48213."}, {}, []),
    ],
)
def test_what_the_weighted_parts_need_is_named_at_once(
    row: dict[str, Any], weights: dict[str, float], lacks: list[str], tmp_path: Path
) -> None:
    with pytest.raises(DataError) if lacks else nullcontext() as caught:
        check_columns(rows(tmp_path, row), RewardSection(weights=Weights(**weights)).weight_of, "prompts.jsonl")
    assert not caught or re.findall(r"reward\.weights\.(\w+)", str(caught.value)) == lacks


def test_problems_that_are_told_in_more_turns_than_a_rollout_has_are_left_out(tmp_path: Path) -> None:
    shards = [[f"fact {k}" for k in range(n)] for n in range(4)]
    told = rows(tmp_path, *({"id": f"{len(each)}", "question": "How many?", "shards": each} for each in shards))
    conversation = RolloutSection(mode="conversation", max_turns=3)
    assert [row.id for row in tellable(told, conversation)] == ["0", "1", "2"]
    assert [row.id for row in tellable(told, RolloutSection(window=1))] == ["0", "1"]


def test_a_reward_of_trl_gets_lists_of_one_and_every_column(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, {"messages": PROMPT, "product": "charger", "answer": "yes"})
    assert call_custom("support.custom_rewards:names_product", sample("Sorry!", row=row)) == 0.0
    assert call_custom("support.custom_rewards:says_sorry", sample("Sorry!", row=row)) == 1.0
