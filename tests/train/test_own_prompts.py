"""Prompts and rewards of one's own for GRPO: few columns are needed, and a reward has either of two signatures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nextturn.data_builders.rows import load_rl_rows
from nextturn.probe.command.errors import DataError
from nextturn.probe.command.files import write_jsonl
from nextturn.train.encoding import tellable
from nextturn.train.rewards import Sample, check_columns
from nextturn.train.scoring import call_custom
from nextturn.train.sections import CustomPart, RewardSection, RolloutSection, Weights
from support.conversations import messages

PROMPT = messages("The charger was missing.")


def rows(folder: Path, *given: dict[str, Any]) -> list[Any]:
    write_jsonl(folder / "prompts.jsonl", list(given))
    return list(load_rl_rows(folder / "prompts.jsonl"))


def sample(row: Any) -> Sample:
    said = (*row.prompt, {"role": "assistant", "content": "Sorry! Which order is it?"})
    return Sample(row, (said,), len(row.prompt), 7, (7,), False, ("limit",))


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


def test_what_the_weighted_parts_need_is_named_at_once(tmp_path: Path) -> None:
    few = rows(tmp_path, {"messages": PROMPT}, {"question": "What is 2 + 3?", "answer": "5"})
    with pytest.raises(DataError, match="accuracy .*`answer`.*1 of 2 .*asking .*`kind`.*2 of 2"):
        check_columns(few, RewardSection().weight_of, "prompts.jsonl")
    check_columns(few, RewardSection(weights=Weights(accuracy=0.0, asking=0.0)).weight_of, "prompts.jsonl")
    check_columns(rows(tmp_path, {"question": "2?", "answer": "2", "kind": "complete"}), RewardSection().weight_of, "x")
    lacking = {"question": "2?", "answer": "2", "kind": "underspecified"}
    with pytest.raises(DataError, match="asking .*`thing`.*1 of 1"):
        check_columns(rows(tmp_path, lacking), RewardSection().weight_of, "x")
    told = {"thing": "the order number", "reveal": "It is 48213."}
    check_columns(rows(tmp_path, {**lacking, **told}), RewardSection().weight_of, "x")


def test_problems_that_are_told_in_more_turns_than_a_rollout_has_are_left_out(tmp_path: Path) -> None:
    shards = [[f"fact {k}" for k in range(n)] for n in range(4)]
    told = rows(tmp_path, *({"id": f"{len(each)}", "question": "How many?", "shards": each} for each in shards))
    conversation = RolloutSection(mode="conversation", max_turns=3)
    assert [row.id for row in tellable(told, conversation)] == ["0", "1", "2"]
    assert [row.id for row in tellable(told, RolloutSection(window=1))] == ["0", "1"]


def test_a_custom_reward_alone_turns_the_built_in_parts_off(capsys: pytest.CaptureFixture[str]) -> None:
    own = {"own": CustomPart(function="support.custom_rewards:length")}
    alone = RewardSection.model_validate({"custom": own})
    assert alone.weight_of == {**dict.fromkeys(Weights.model_fields, 0.0), "own": 1.0}
    named = RewardSection(custom=own, weights=Weights(accuracy=1.0))
    assert named.weight_of["accuracy"] == 1.0


def test_a_reward_of_trl_gets_lists_of_one_and_every_column(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, {"messages": PROMPT, "product": "charger", "answer": "yes"})
    assert call_custom("support.custom_rewards:names_product", sample(row)) == 0.0
    assert call_custom("support.custom_rewards:says_sorry", sample(row)) == 1.0
