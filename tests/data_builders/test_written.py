"""Written conversations and pairs: what ships with the packages, and how they come into a build."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nextturn.data_builders.build import build
from nextturn.data_builders.quality import Quality, QualityFilter, all_boxed
from nextturn.data_builders.recipe import Written, load_data_recipe
from nextturn.data_builders.rows import load_rl_rows, load_sft_rows, read_sft_rows
from nextturn.data_builders.user import ScriptedUser
from nextturn.data_builders.written import FILE, written
from nextturn.probe.chat import Chat
from nextturn.probe.conversations import check_messages
from nextturn.probe.errors import DataError, RecipeError
from nextturn.probe.files import read_jsonl, write_jsonl
from nextturn.probe.grading import same_answer
from nextturn.probe.sets import PACKAGED, locate, read_pairs
from nextturn.train.rows import make_rows, show_loss
from support.conversations import spans
from support.tiny_models import tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
ROWS = {row["id"]: row for _, row in read_jsonl(FILE)}


def recipe(folder: Path, **sections: Any) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"output": {"path": str(folder / "out")}, **sections}))
    return path


# --- The files themselves.


def test_every_written_conversation_passes_the_gate(tmp_path: Path) -> None:
    made = written(Written(), 7)
    gate = QualityFilter(Quality(decontaminate=list(PACKAGED)), len(made), tmp_path / "index")
    assert [gate.reason(one) for one in made] == [None] * 398
    gate.close()
    assert all(not one.answer or same_answer(one.answer, boxes(one.messages)[-1]) for one in made)


def boxes(messages: Any) -> list[str]:
    """The results that the assistant stands by, in their order."""
    kept = (one["content"] for one in messages if one["role"] == "assistant" and one.get("loss", True))
    return [box for text in kept for box in reversed(list(all_boxed(text)))]


def test_a_twin_has_the_problem_of_the_one_that_lacks_something() -> None:
    twins = [row for row in ROWS.values() if row["kind"] == "twin"]
    assert len(twins) == 44 and all(ROWS[row["twin_of"]]["kind"] == "underspecified" for row in twins)
    for row in twins:
        assert same_answer(boxes(row["messages"])[0], boxes(ROWS[row["twin_of"]]["messages"])[0])


def test_a_slip_is_marked_and_mended() -> None:
    for row in ROWS.values():
        marked = [place for place, message in enumerate(row["messages"]) if message.get("loss") is False]
        assert marked == ([1] if row["kind"] == "slip" else [])
        if marked:
            (slip,) = all_boxed(row["messages"][1]["content"])
            assert not same_answer(slip, boxes(row["messages"])[0])


@pytest.mark.parametrize("source", ["gsm8k/test", "math/test", "gsm8k/train", "math/train"])
def test_no_run_of_thirteen_words_is_another_s(source: str, tmp_path: Path) -> None:
    path = SHARED / f"{source}.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    gate = QualityFilter(Quality(decontaminate=[str(path)]), 398, tmp_path / "index")
    assert not [one.id for one in written(Written(), 0) if gate.reason(one)]
    gate.close()


def test_the_pairs_are_a_known_set() -> None:
    pairs = read_pairs(locate("written_pairs"))
    assert len(pairs) == 54 and all(pair.missing and pair.complete != pair.underspecified for pair in pairs)


def test_an_installed_wheel_has_both_files(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    for package in ("probe", "data_builders", "train"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    code = "from setuptools import setup; setup()"
    subprocess.run([sys.executable, "-c", code, "-q", "build_py", "-d", "lib"], cwd=tmp_path, check=True)
    for path in (FILE, PACKAGED["written_pairs"]):
        assert (tmp_path / "lib" / path.relative_to(ROOT)).read_bytes() == path.read_bytes()


# --- In a build.


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(load_data_recipe(ROOT / "recipes/written.yaml"), tmp_path_factory.mktemp("written") / "out")


def test_the_build_that_needs_nothing(built: Path) -> None:
    kept = list(load_sft_rows(built))
    kinds = Counter(row["kind"] for row in kept)
    assert len(kept) == 398 and kinds["underspecified"] == 98 and kinds["slip"] == 18
    assert sum(row["messages"][1].get("loss") is False for row in kept) == 18
    manifest = json.loads((built / "manifest.json").read_text())
    assert {"written.jsonl", "written_pairs"} <= set(manifest["settings"]["inputs"]), (
        "a changed file is a changed setting"
    )


def test_rl_prompts_hold_back_what_the_twin_tells(built: Path) -> None:
    rows = list(load_rl_rows(built))
    assert not {"hint", "chat"} & {row.kind for row in rows}, "a hint is not to be paid with the answer"
    assert all(set(message) == {"role", "content"} for row in rows for message in row.prompt)
    first = {row.id: row for row in rows if row.turn == 0}
    row, twin = first["written-a-19-0"], ROWS["a-29"]
    assert row.problem == twin["messages"][0]["content"] and row.reveal == "It's the 18 month one."
    assert row.clause == "the term of the certificate" and first["written-a-29-0"].clause == ""
    parts = first["written-a-22-0"]  # told in two messages
    assert parts.reveal == "96 on cards and 44 cash" and parts.problem.endswith(parts.reveal)
    missing = [one for one in first.values() if one.kind == "underspecified"]
    assert len(missing) == 98 and all(one.reveal and one.answer for one in missing)
    asked = ({"role": "assistant", "content": "What is the term of the certificate?"},)
    assert row.reveal in (ScriptedUser(row, 1).reply([*row.prompt, *asked]) or "")
    # The result that a prompt asks for, not that of a later what-if, and not the slip.
    assert first["written-a-03-0"].answer == "69" and first["written-f-41-0"].answer == "1008"


def test_a_mix_holds_both_and_a_killed_one_ends_with_the_same_bytes(tmp_path: Path) -> None:
    sections = {"source": {"kind": "starter", "n": 30}, "written": {"n": 20, "kinds": ["complete", "twin"]}}
    made = load_data_recipe(recipe(tmp_path, **sections, replay={"fraction": 0.2}))
    whole = build(made, tmp_path / "whole")
    sources = Counter(row["source"] for row in load_sft_rows(whole))
    assert sources["written"] == 20 and sources["starter"] > 30
    shutil.copytree(whole, tmp_path / "killed")
    for name in ("manifest.json", "sft/part-00000.jsonl", "card.md"):  # after the written shard
        (tmp_path / "killed" / name).unlink()
    again = build(made, tmp_path / "killed")
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    assert all((whole / name).read_bytes() == (again / name).read_bytes() for name in files)


def test_written_conversations_may_stand_beside_replay_alone(tmp_path: Path) -> None:
    """Long answers of a model's own, among turns that were written for it."""
    sections = {"source": {"kind": "written", "n": 30}, "replay": {"fraction": 0.25, "source": "starter"}}
    rows = list(load_sft_rows(build(load_data_recipe(recipe(tmp_path, **sections)))))
    assert Counter(row["kind"] == "replay" for row in rows) == {False: 30, True: 10}
    assert len({row["id"] for row in rows}) == 40


def test_what_is_chosen_follows_from_seed_and_wishes() -> None:
    chosen = written(Written(n=30, kinds=["underspecified", "twin"], subjects=["money", "algebra"]), 3)
    assert chosen == written(Written(n=30, kinds=["underspecified", "twin"], subjects=["money", "algebra"]), 3)
    assert {one.id[8] for one in chosen} == {"a", "d"} and {one.kind for one in chosen} == {"underspecified", "twin"}
    assert [one.id for one in chosen] != [one.id for one in written(Written(n=30), 4)]
    shared = [one.task.id for one in chosen if one.task]
    assert [name for name, n in Counter(shared).items() if n == 2], "a twin stays beside its problem"


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"source": {"kind": "written", "path": "x.jsonl"}}, "take no path"),
        ({"source": {"kind": "written", "n": 500}}, "398 conversations of these kinds and subjects, .*given 500"),
        ({"source": {"kind": "written", "subjects": ["poetry"]}}, "the subjects: algebra, "),
        ({"source": {"kind": "written", "kinds": ["vague"]}}, "kinds"),
        ({"source": {"kind": "written"}, "written": {"n": 3}}, "`written` has no problems"),
        ({"source": {"kind": "written"}, "eval": {"accuracy_n": 3}}, r"eval\.accuracy_n: given 3"),
        ({"source": {"kind": "starter", "n": 3, "kinds": ["complete"]}}, "only the written"),
        ({"source": {"kind": "starter", "n": 3}, "written": {"n": 0}}, "given 0"),
    ],
)
def test_wishes_that_cannot_be_met_are_told(sections: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=told):
        build(load_data_recipe(recipe(tmp_path, **sections)))
    assert not (tmp_path / "out").exists()


def test_no_build_holds_a_pair_of_the_evaluation(tmp_path: Path) -> None:
    pair = next(row for _, row in read_jsonl(PACKAGED["written_pairs"]) if row["id"] == "p1-48")
    solved = {"answer": "It is 2 + 7 = 9.\n#### 9"}
    asked = [{"question": pair[form], **solved} for form in ("complete", "underspecified")]
    write_jsonl(tmp_path / "problems.jsonl", [*asked, {"question": "What is 2 + 7, and why?", **solved}])
    source = {"kind": "jsonl", "path": str(tmp_path / "problems.jsonl")}
    out = build(load_data_recipe(recipe(tmp_path, source=source)))
    rejected = json.loads((out / "manifest.json").read_text())["rejected"]
    assert rejected["contaminated:written_pairs"] >= 2
    assert all("castle" not in row["messages"][0]["content"] for row in load_sft_rows(out))


# --- `loss: false` on a message.

TALK = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "It is 5.", "loss": False},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "No, it is 4."},
]


@given(st.lists(st.booleans(), min_size=1, max_size=4))
def test_a_turn_without_loss_is_context_and_nothing_more(marks: list[bool]) -> None:
    talk = [
        message
        for place, mark in enumerate(marks)
        for message in (
            {"role": "user", "content": f"Question {place}?"},
            {"role": "assistant", "content": f"Answer {place}.", **({} if mark else {"loss": False})},
        )
    ]
    bare = [{"role": message["role"], "content": message["content"]} for message in talk]
    for template in ("chatml", "qwen3_5_nothink"):  # a row a conversation, and a row a turn
        chat = Chat(tiny_tokenizer(template))
        rows = chat.training_rows(talk)
        learned = [chat.tokenizer.decode(row.input_ids[a:b]) for row in rows for a, b in spans(row.loss_mask)]
        assert learned == [f"Answer {place}.<|im_end|>" for place, mark in enumerate(marks) if mark]
        whole = {tuple(row.input_ids) for row in chat.training_rows(bare)}
        assert {tuple(row.input_ids) for row in rows} <= whole, "the mark changes no token"


def test_the_mark_goes_from_a_file_to_the_mask_that_is_shown(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "own.jsonl", [{"messages": TALK}])
    (row,) = read_sft_rows(tmp_path / "own.jsonl")
    assert row["messages"] == TALK
    chat = Chat(tiny_tokenizer("chatml"))
    (made,), counts = make_rows([row["messages"]], chat, "assistant", None)
    shown = show_loss(made, chat.tokenizer)
    assert "⟦No, it is 4.<|im_end|>⟧" in shown and "⟦It is 5." not in shown and "It is 5." in shown
    assert counts.loss_tokens < sum(label != 0 for label in made["labels"])


@pytest.mark.parametrize("marks", [{"weight": 0}, {"train": False}, {"weight": 0.0, "train": False, "loss": False}])
def test_the_marks_of_openai_and_axolotl_are_read_as_ours(marks: dict[str, Any]) -> None:
    unmarked = [{key: value for key, value in message.items() if key != "loss"} for message in TALK]
    talk = [
        unmarked[0] | {"train": False},
        unmarked[1] | marks,
        unmarked[2],
        unmarked[3] | {"train": True, "weight": 1},
    ]
    assert list(check_messages(talk, "f:1")) == TALK


@pytest.mark.parametrize(
    ("place", "marks", "told"),
    [
        (1, {"loss": "no"}, "message 2 .* `loss: 'no'`"),
        (1, {"loss": 0}, "`loss: 0`"),
        (0, {"loss": False}, r"message 1 \(user\)"),
        (2, {"loss": True}, "message 3"),
        (0, {"train": True}, r"message 1 \(user\)"),
        (1, {"weight": 0.5}, "`weight: 0.5`"),
        (3, {"weight": 0, "train": True}, "`train: True`, `weight: 0`"),
        (3, {"loss": True, "weight": 0}, "`loss: True`, `weight: 0`"),
    ],
)
def test_a_mark_that_means_nothing_is_refused(place: int, marks: dict[str, Any], told: str) -> None:
    talk = [dict(message) for message in TALK]
    talk[place] |= marks
    with pytest.raises(DataError, match=told):
        check_messages(talk, "f:1")


def test_null_is_no_mark_and_a_conversation_wants_something_to_learn(tmp_path: Path) -> None:
    """`datasets` writes null where other messages of a file have the field."""
    every = [{"loss": None, **message} for message in TALK]
    assert list(check_messages(every, "f:1")) == TALK
    write_jsonl(tmp_path / "own.jsonl", [{"messages": TALK[:2]}])
    with pytest.raises(DataError, match=r"own\.jsonl:1: every assistant turn has `loss: false`"):
        list(read_sft_rows(tmp_path / "own.jsonl"))
