"""Training on conversations as people have them: the form of the file changes nothing, and faults are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import DataError
from nextturn.probe.command.files import read_json, read_jsonl, write_jsonl
from nextturn.probe.data.messages import training_messages
from nextturn.probe.text.chat import Chat
from nextturn.train.encoding import probed_in_training
from nextturn.train.plan import describe
from nextturn.train.sections import load_sft_recipe
from nextturn.train.sft import train
from support.conversations import messages
from support.sft_parts import write_data, write_recipe
from support.tiny_models import tiny_tokenizer


def test_bad_rows_stop_a_run_or_are_left_out_and_counted(tiny_chatml: Path, tmp_path: Path) -> None:
    rows = [row for _, row in read_jsonl(write_data(tmp_path))]
    mixed = tmp_path / "mixed.jsonl"
    write_jsonl(mixed, [rows[0], {"text": "no conversation"}, *rows[1:], {"messages": []}])
    recipe = write_recipe(tmp_path, tiny_chatml, {"path": str(mixed)}, probe={"when": "never"})
    with pytest.raises(DataError, match="2 of 14"):
        train(load_sft_recipe(recipe))
    assert not (tmp_path / "run").exists(), "nothing is written before the rows are read"
    skipping = load_sft_recipe(recipe, ["--data.on_bad_row", "skip"])
    assert "2 left out because they are no conversations" in describe(skipping)
    train(skipping)
    assert read_json(tmp_path / "run" / "finished.json")["rows"]["skipped"] == 2
    assert "and 2 because they are no conversations" in (tmp_path / "run" / "README.md").read_text()


def test_validation_is_logged_at_every_save_and_the_command_line_replaces_the_recipe(
    tiny_chatml: Path, tmp_path: Path
) -> None:
    data, run = write_data(tmp_path), tmp_path / "run"
    rows = [row for _, row in read_jsonl(data)]
    write_jsonl(tmp_path / "others.jsonl", [{"messages": row["messages"][:2]} for row in rows])
    built = {"recipe": "recipes/written.yaml", "validation": str(tmp_path / "others.jsonl")}
    recipe = write_recipe(tmp_path, tiny_chatml, built, probe={"when": "never"})
    train(load_sft_recipe(recipe, ["--data.path", str(data)]))
    section = read_json(run / "recipe.json")["data"]
    assert (section["path"], section["recipe"]) == (str(data), None)
    history = read_json(run / "checkpoint-4" / "trainer_state.json")["log_history"]
    evaluated = {row["step"]: row["eval_loss"] for row in history if "eval_loss" in row}
    assert set(evaluated) == {2, 4} and all(0 < loss < 20 for loss in evaluated.values())


WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
WITH_TOOLS: dict[str, Any] = {
    "tools": [WEATHER],
    "messages": [
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "And tomorrow?"},
        {"role": "assistant", "content": "I cannot say."},
    ],
}


def test_calls_of_tools_carry_loss_and_what_tools_return_does_not() -> None:
    tokenizer = tiny_tokenizer("qwen3_5_nothink")
    messages = training_messages(WITH_TOOLS, "row 1")
    rows = Chat(tokenizer).training_rows(messages)
    learned = [
        tokenizer.decode([token for token, loss in zip(row.input_ids, row.loss_mask, strict=True) if loss])
        for row in rows
    ]
    whole = "".join(learned)
    assert "<function=get_weather>" in whole and "Oslo" in whole and "It rains." in whole and "I cannot say." in whole
    assert "rain\n" not in whole and "Weather in" not in whole and whole.count("<|im_end|>") == 3
    shown = tokenizer.decode(rows[0].input_ids)
    assert shown.count('"name": "get_weather"') == 1 and "rain\n</tool_response>" in shown


def test_calls_as_json_text_are_calls() -> None:
    text = json.dumps(WITH_TOOLS["messages"][1]["tool_calls"])
    called = {"role": "assistant", "content": None, "tool_calls": text}
    row = {"tools": json.dumps(WITH_TOOLS["tools"]), "messages": [*WITH_TOOLS["messages"]]}
    row["messages"][1] = called
    assert training_messages(row, "row 1") == training_messages(WITH_TOOLS, "row 1")
    words = {"tools": "calculator, search", "messages": WITH_TOOLS["messages"][-2:]}
    assert "tools" not in training_messages(words, "row 1")[0], "a column of that name may be anything"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (WITH_TOOLS["messages"][:2] + WITH_TOOLS["messages"][3:], "message 3 is 'assistant'"),
        (WITH_TOOLS["messages"][:3], "ends with the tool"),
        ([WITH_TOOLS["messages"][0], {"role": "assistant", "tool_calls": ["get_weather"]}], "message 2: `tool_calls`"),
    ],
)
def test_calls_of_tools_and_what_they_return_come_together(messages: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        training_messages({"messages": messages}, "row 1")


def test_questions_that_the_probe_shares_with_the_training_data_are_told(
    tiny_chatml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a figure shows what was learned by heart. Told in the plan and in the run; other sets are not named."""
    data = write_data(tmp_path)
    asked = [
        {"question": f"Ann has {n}  apples and buys {n + 1}. How many?", "answer": str(2 * n + 1)} for n in (3, 90)
    ]
    write_jsonl(tmp_path / "own.jsonl", asked)
    write_jsonl(tmp_path / "other.jsonl", [{"question": "What is 2 + 2?", "answer": "4"}])
    sets = {name: {"path": str(tmp_path / f"{name}.jsonl"), "instruction": "Be brief."} for name in ("own", "other")}
    recipe = load_sft_recipe(write_recipe(tmp_path, tiny_chatml, {"path": str(data)}, {"max_steps": 1}, {"sets": sets}))
    for told in (describe(recipe), capsys.readouterr().out if train(recipe) is None else ""):
        (warning,) = (line for line in told.splitlines() if "warning" in line)
        assert "1 of 2" in warning and "'own'" in warning


QUESTION = "If $n = 4$ and Tom pays 1,250 dollars for n - 1 chairs, what does one cost?"
OTHER = "If $n = 4$ and Tom pays 1,250 dollars for n + 1 chairs, what does one cost?"


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ([QUESTION.upper()], 1),
        ([f"Solve this step by step, and box the result.\n\n{QUESTION}"], 1),
        ([f"Question: “{QUESTION}” Answer with a number."], 1),
        ([QUESTION.replace("$", "").replace("1,250", "1250")], 1),
        ([QUESTION.replace("$n = 4$", "\\(n=4\\)").replace("1,250", "1{,}250")], 1),
        (["> **" + QUESTION.replace(", ", ",\n> ") + "**"], 1),
        ([QUESTION.replace("- 1", "− 1")], 1),
        (["Well?", "A riddle: " + QUESTION], 1),  # what the assistant says is learned, too
        (["If n = 4 and Tom pays 1,250 dollars", "For what?", "for n - 1 chairs, what does one cost?"], 1),
        (["WHY NOT"], 1),
        ([OTHER], 0),
        ([QUESTION.replace("1,250", "1,350")], 0),
        ([QUESTION.replace("what does one cost?", "who sells them?")], 0),
        (["Tell me why not."], 0),  # so short a question stands in many messages
    ],
)
def test_a_question_of_the_probe_is_known_in_any_dress(said: list[str], known: int) -> None:
    talks = [messages("Hello.", "Hi."), messages(*said, *(["Yes."] * (len(said) % 2)))]
    asked = {"own": [QUESTION, "Why not?"], "none": ["What is the capital of the country that Tom likes?"]}
    warnings = list(probed_in_training(talks, asked))
    assert len(warnings) == known
    assert all("1 of 2" in warning and "'own'" in warning for warning in warnings)
