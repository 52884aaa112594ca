"""User models: what SFT with `loss_on: user` learns, token by token, and how the resulting model says what it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextturn.probe import watch
from nextturn.probe.command.errors import BadInput, DataError, RecipeError, run_command
from nextturn.probe.command.sections import load_probe_recipe
from nextturn.probe.models.checkpoints import why_incomplete
from nextturn.probe.models.layouts import NEXTTURN, Step, hold
from nextturn.probe.models.user_model import USER_MODEL, UserModelInfo, user_model_info
from nextturn.probe.run import open_model
from nextturn.probe.text.chat import Chat
from nextturn.train.encoding import IGNORED, make_rows, show_loss, user_view
from nextturn.train.export import export
from nextturn.train.plan import describe
from nextturn.train.sections import load_sft_recipe
from nextturn.train.sft import main
from support.conversations import spans as loss_spans
from support.sft_parts import write_data, write_recipe
from support.tiny_models import tiny_tokenizer

TURNS = ["Ann has 3 apples and buys some. How many?", "How many does she buy?", "4, sorry", r"\boxed{7}"]
TALK = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(TURNS)]
INTENT = "You want the result."
FIRST, AFTER_SYSTEM = {"intent": INTENT, "intent_first": True}, {"role": "system", "content": INTENT}
DOUBT = "You doubt the answer."


def chat_with(family: str) -> Chat:
    return Chat(tiny_tokenizer(family), {"enable_thinking": False})


def spans(row: dict[str, list[int]]) -> list[tuple[tuple[int, ...], list[int]]]:
    """Return each stretch with loss, with all tokens before it."""
    ids, labels = row["input_ids"], row["labels"]
    assert all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))
    learned = loss_spans([label != IGNORED for label in labels])
    return [(tuple(ids[:start]), ids[start:end]) for start, end in learned]


@pytest.mark.parametrize("family", ["chatml", "qwen3_5_nothink", "llama3", "gemma3"])
@pytest.mark.parametrize("fields", [{}, {"intent": INTENT}, FIRST], ids=["bare", "intent", "intent_first"])
def test_user_turns_carry_loss_right_after_the_prefix_of_inference(family: str, fields: dict[str, Any]) -> None:
    chat = chat_with(family)
    (row,), counts = make_rows([user_view({"messages": TALK, **fields})], chat, "user", None)
    seen = [AFTER_SYSTEM, *TALK] if fields else TALK
    expected = [
        (chat.user_prefix_ids(seen[: len(seen) - left]), [*chat.text_ids(text), *chat.turn_end_ids])
        for left, text in ((2, "4, sorry"), (0, ""))  # an empty turn ends the conversation
    ]
    if "intent_first" in fields:
        expected.insert(0, (chat.user_prefix_ids([AFTER_SYSTEM]), [*chat.text_ids(TURNS[0]), *chat.turn_end_ids]))
    assert spans(row) == expected
    assert counts.loss_tokens == sum(len(target) for _, target in expected) and counts.intents == bool(fields)


def test_a_template_that_changes_earlier_turns_gives_a_row_for_each_user_turn() -> None:
    tokenizer = tiny_tokenizer("chatml")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "turn.content", "(turn.content if loop.revindex < 3 else turn.content|upper)"
    )
    chat = Chat(tokenizer)
    rows, counts = make_rows([user_view({"messages": TALK})], chat, "user", None)
    assert counts.rows == 2
    assert [spans(row) for row in rows] == [
        [(chat.user_prefix_ids(TALK[:end]), [*chat.text_ids(text), *chat.turn_end_ids])]
        for end, text in ((2, "4, sorry"), (4, ""))
    ]


def test_a_conversation_without_a_second_user_turn_teaches_its_end_alone() -> None:
    chat = chat_with("chatml")
    unlearned = [*TALK[:1], {**TALK[1], "loss": False}]  # a mark for policies
    for fields in ({}, {"intent": DOUBT}):
        (row,), _ = make_rows([user_view({"messages": unlearned, **fields})], chat, "user", None)
        assert re.findall("⟦(.*?)⟧", show_loss(row, chat.tokenizer)) == ["<|im_end|>"]


def test_a_user_sees_the_intent_in_place_of_the_assistants_system_message() -> None:
    system = {"role": "system", "content": "You are a tutor."}
    assert user_view({"messages": [system, *TALK]}) == tuple(TALK)
    first, opening, *rest = user_view({"messages": [system, *TALK], "intent": INTENT})
    assert (first, opening["content"], rest) == (AFTER_SYSTEM, TURNS[0], TALK[1:])
    for intent in ("", 3, ["x"], "cut \ud83d"):
        with pytest.raises(DataError, match="`intent`"):
            user_view({"messages": TALK, "intent": intent})


# --- The model that comes of it.

NEVER = {"when": "never"}


@pytest.fixture(scope="module")
def trained(tiny_chatml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a recipe and its run, which has finished."""
    folder = tmp_path_factory.mktemp("user")
    data = write_data(folder)
    rows = [json.loads(line) | {"intent": INTENT} for line in data.read_text().splitlines()]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = {"path": str(data), "loss_on": "user"}
    recipe = write_recipe(folder, tiny_chatml, section, {"disable_tqdm": True}, NEVER, lora={"r": 2, "alpha": 4})
    assert run_command(main, [str(recipe)]) == 0
    return folder


def test_a_user_model_says_what_it_is_wherever_it_goes(trained: Path, tiny_chatml: Path, tmp_path: Path) -> None:
    run = trained / "run"
    info = user_model_info(run)
    assert info == UserModelInfo(str(tiny_chatml), Chat(tiny_tokenizer("chatml")).template_sha256, intents=True)
    for checkpoint in (run / "checkpoint-2", run / "checkpoint-4"):
        assert user_model_info(checkpoint) == info and why_incomplete(checkpoint) is None
        assert USER_MODEL in json.loads((checkpoint / "complete.json").read_text())["files"]
    hold(Step(4, run / "checkpoint-4", NEXTTURN), tmp_path / "kept")
    assert user_model_info(tmp_path / "kept") == user_model_info(export(str(run), tmp_path / "whole")) == info
    assert "This is a user model" in (run / "README.md").read_text()
    assert user_model_info(tiny_chatml) is None
    (tmp_path / "kept" / USER_MODEL).unlink()
    (tmp_path / "kept" / USER_MODEL).write_text('{"base": "x"}')
    with pytest.raises(DataError, match=USER_MODEL):
        user_model_info(tmp_path / "kept")


def test_the_probe_measures_a_user_model_only_if_it_is_told_to(trained: Path, tmp_path: Path) -> None:
    run, recipe = trained / "run", trained / "recipe.yaml"
    probe = load_probe_recipe(recipe).probe
    for model in (run, run / "checkpoint-2", export(str(run), tmp_path / "whole")):
        with pytest.raises(BadInput, match="user_model true"):
            open_model(str(model), probe)
        assert open_model(str(model), probe.model_copy(update={"user_model": True}))[0].name == str(model)
    with pytest.raises(BadInput, match="user_model true"):
        watch.run(watch_arguments(run, recipe), [])
    watch.run(watch_arguments(run, recipe), ["--probe.user_model", "true"])


def watch_arguments(run: Path, recipe: Path) -> Any:
    import argparse

    parser = argparse.ArgumentParser()
    watch.add_arguments(parser)
    return parser.parse_args([str(run), str(recipe), "--dry-run"])


def test_training_is_not_probed_unless_told_to_nor_from_a_user_model(
    trained: Path, tmp_path: Path, tiny_chatml: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trained / "recipe.yaml"
    for when in ("inline", "watch"):
        with pytest.raises(RecipeError, match="probe.when"):
            load_sft_recipe(path, ("--probe.when", when))
        load_sft_recipe(path, ("--probe.when", when, "--probe.user_model", "true"))
    policy = yaml.safe_load(path.read_text())
    policy["model"]["name"], policy["data"]["loss_on"], policy["probe"]["when"] = str(trained / "run"), "talk", "inline"
    policy["train"]["output_dir"] = str(tmp_path / "policy")
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
    assert run_command(main, [str(tmp_path / "policy.yaml")]) == 2
    assert "user model" in capsys.readouterr().err and not (tmp_path / "policy").exists()


def test_the_plan_counts_and_shows_user_turns(trained: Path) -> None:
    plan = describe(load_sft_recipe(trained / "recipe.yaml"))
    (data,) = [line for line in plan.splitlines() if line.startswith("data ")]
    assert "with loss on user turns, 12 conversations with an intent" in data
    example = plan.partition("an example")[2]
    assert re.findall("⟦(.*?)⟧", example.partition("\n")[2]) == ["Why add?<|im_end|>", "<|im_end|>"]
    assert INTENT in example
