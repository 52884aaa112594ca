"""The written conversations of the package, how they enter a build, and messages marked as not learned."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextturn.data_builders.build import build
from nextturn.data_builders.quality import QualityFilter, all_boxed
from nextturn.data_builders.rows import load_rl_rows, load_sft_rows
from nextturn.data_builders.sections import Quality, Written, load_data_recipe
from nextturn.data_builders.user import ScriptedUser
from nextturn.data_builders.written import FILE, written
from nextturn.probe.command.errors import DataError
from nextturn.probe.command.files import read_json, read_jsonl, write_jsonl
from nextturn.probe.data.messages import check_messages
from nextturn.probe.questions.sets import PACKAGED, locate, read_pairs
from nextturn.probe.text.chat import Chat
from nextturn.probe.text.equality import same_answer
from support.commands import ROOT
from support.conversations import messages, spans
from support.problems import MIXED
from support.tiny_models import tiny_tokenizer

SHARED = ROOT.parent / "shared" / "data"
ROWS = {row["id"]: row for _, row in read_jsonl(FILE)}


def recipe(folder: Path, **sections: Any) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"output": {"path": str(folder / "out")}, **sections}))
    return path


def boxes(conversation: Any) -> list[str]:
    """Return the results in the learned assistant turns, in order."""
    learned = (turn["content"] for turn in conversation if turn["role"] == "assistant" and turn.get("loss", True))
    return [box for text in learned for box in reversed(list(all_boxed(text)))]


# --- The files.


def test_every_conversation_passes_the_quality_filter_and_none_is_in_other_data() -> None:
    files = [str(path) for path in (SHARED / "gsm8k/test.jsonl", SHARED / "math/test.jsonl") if path.is_file()]
    conversations = written(Written(), 7)
    quality_filter = QualityFilter(Quality(decontaminate=[*PACKAGED, *files]), len(conversations))
    assert [quality_filter.reason(each) for each in conversations] == [None] * 398
    assert all(not each.answer or same_answer(each.answer, boxes(each.messages)[-1]) for each in conversations)


def test_twins_and_slips_of_the_files() -> None:
    twins = [row for row in ROWS.values() if row["kind"] == "twin"]
    assert len(twins) == 44 and all(ROWS[row["twin_of"]]["kind"] == "underspecified" for row in twins)
    assert all(same_answer(boxes(row["messages"])[0], boxes(ROWS[row["twin_of"]]["messages"])[0]) for row in twins)
    for row in ROWS.values():
        marked = [index for index, message in enumerate(row["messages"]) if message.get("loss") is False]
        assert marked == ([1] if row["kind"] == "slip" else [])
        if marked:
            (slip,) = all_boxed(row["messages"][1]["content"])
            assert not same_answer(slip, boxes(row["messages"])[0]), "the slip is corrected later"
    pairs = read_pairs(locate("written_pairs"))
    assert len(pairs) == 54 and all(pair.missing and pair.complete != pair.underspecified for pair in pairs)


# --- In a build.


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(load_data_recipe(ROOT / "recipes/written.yaml"), tmp_path_factory.mktemp("written") / "out")


def test_the_build_that_needs_nothing(built: Path) -> None:
    kept = list(load_sft_rows(built))
    kinds = Counter(row["kind"] for row in kept)
    assert len(kept) == 398 and kinds["underspecified"] == 98 and kinds["slip"] == 18
    assert sum(row["messages"][1].get("loss") is False for row in kept) == 18
    assert {"written.jsonl", "written_pairs"} <= set(read_json(built / "manifest.json")["settings"]["inputs"])


def test_rl_prompts_withhold_what_the_twin_states(built: Path) -> None:
    rows = list(load_rl_rows(built))
    assert not {"hint", "chat"} & {row.kind for row in rows}, "the answer of a hint is not rewarded"
    assert all(set(message) == {"role", "content"} for row in rows for message in row.prompt)
    first = {row.id: row for row in rows if row.turn == 0}
    row, twin = first["written-a-19-0"], ROWS["a-29"]
    assert row.problem == twin["messages"][0]["content"] and row.fact.reveal == "It's the 18 month one."
    assert row.fact.clause == "the term of the certificate" and first["written-a-29-0"].fact.clause == ""
    in_parts = first["written-a-22-0"]  # revealed in two messages
    assert in_parts.fact.reveal == "96 on cards and 44 cash" and in_parts.problem.endswith(in_parts.fact.reveal)
    missing = [each for each in first.values() if each.kind == "underspecified"]
    assert len(missing) == 98 and all(each.fact.reveal and each.answer for each in missing)
    question = {"role": "assistant", "content": "What is the term of the certificate?"}
    assert row.fact.reveal in (ScriptedUser(row, 1).reply([*row.prompt, question]) or "")
    # The result that the prompt asks for: not that of a later what-if, and not the slip.
    assert first["written-a-03-0"].answer == "69" and first["written-f-41-0"].answer == "1008"


def test_replay_without_problems_is_spread_over_the_written_conversations(tmp_path: Path) -> None:
    sections = {"source": {"kind": "written", "n": 30}, "replay": {"fraction": 0.25, "source": "jsonl", "path": MIXED}}
    rows = list(load_sft_rows(build(load_data_recipe(recipe(tmp_path, **sections)))))
    assert Counter(row["kind"] == "replay" for row in rows) == {False: 30, True: 10}
    assert len({row["id"] for row in rows}) == 40


def test_seed_and_selection_determine_the_conversations() -> None:
    selection = Written(n=30, kinds=["underspecified", "twin"], subjects=["money", "algebra"])
    chosen = written(selection, 3)
    assert chosen == written(selection, 3)
    assert {each.id[8] for each in chosen} == {"a", "d"}
    assert {each.kind for each in chosen} == {"underspecified", "twin"}
    assert [each.id for each in chosen] != [each.id for each in written(Written(n=30), 4)]
    assert 2 in Counter(each.task.id for each in chosen if each.task).values(), "a twin is next to its problem"


def test_no_build_holds_a_pair_of_the_evaluation(tmp_path: Path) -> None:
    pair = next(row for _, row in read_jsonl(PACKAGED["written_pairs"]) if row["id"] == "p1-48")
    questions = [pair["complete"], pair["underspecified"], "What is 2 + 7, and why?"]
    write_jsonl(tmp_path / "p.jsonl", [{"question": text, "answer": "It is 2 + 7 = 9.\n#### 9"} for text in questions])
    out = build(load_data_recipe(recipe(tmp_path, source={"kind": "jsonl", "path": str(tmp_path / "p.jsonl")})))
    assert read_json(out / "manifest.json")["rejected"]["contaminated:written_pairs"] >= 2
    assert all("castle" not in row["messages"][0]["content"] for row in load_sft_rows(out))


# --- `loss: false` on a message.

TALK = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "It is 5.", "loss": False},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "No, it is 4."},
]


@pytest.mark.parametrize("template", ["chatml", "qwen3_5_nothink"])  # one row per conversation, and one row per turn
def test_a_turn_without_loss_is_only_context(template: str) -> None:
    chat = Chat(tiny_tokenizer(template))
    bare = messages("Question 0.", "Answer 0.", "Question 1.", "Answer 1.", "Question 2.", "Answer 2.")
    whole = {tuple(row.input_ids) for row in chat.training_rows(bare)}
    for marks in itertools.product((True, False), repeat=3):
        talk = [
            turn if index % 2 == 0 or marks[index // 2] else {**turn, "loss": False} for index, turn in enumerate(bare)
        ]
        rows = chat.training_rows(talk)
        learned = [chat.tokenizer.decode(row.input_ids[a:b]) for row in rows for a, b in spans(row.loss_mask)]
        assert learned == [f"Answer {number}.<|im_end|>" for number, mark in enumerate(marks) if mark]
        assert {tuple(row.input_ids) for row in rows} <= whole, "the mark changes no token"


@pytest.mark.parametrize(
    "marks", [{"loss": False}, {"weight": 0}, {"train": False}, {"weight": 0.0, "train": False, "loss": False}]
)
def test_the_marks_of_openai_and_axolotl_are_read_too(marks: dict[str, Any]) -> None:
    bare = [{**message, "loss": None} for message in TALK]  # `datasets` writes null where other messages have the field
    talk = [bare[0] | {"train": False}, bare[1] | marks, bare[2], bare[3] | {"train": True, "weight": 1}]
    assert list(check_messages(talk, "f:1")) == TALK


@pytest.mark.parametrize(
    ("index", "marks", "message"),
    [
        (1, {"loss": 0}, "message 2 .* `loss: 0`"),
        (0, {"loss": False}, r"message 1 \(user\)"),
        (2, {"train": True}, r"message 3 \(user\)"),
        (1, {"weight": 0.5}, "`weight: 0.5`"),
        (3, {"weight": 0, "train": True}, "`train: True`, `weight: 0`"),
        (3, {"loss": True, "weight": 0}, "`loss: True`, `weight: 0`"),
    ],
)
def test_a_contradictory_or_unknown_mark_is_refused(index: int, marks: dict[str, Any], message: str) -> None:
    talk = [dict(turn) for turn in TALK]
    talk[index] |= marks
    with pytest.raises(DataError, match=message):
        check_messages(talk, "f:1")
