"""The rl rows: what training reads as prompts, and that no prompt states the withheld fact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nextturn.data_builders.build import build
from nextturn.data_builders.recipe import load_data_recipe
from nextturn.data_builders.rows import RlRow, load_rl_rows, load_sft_rows, rl_rows
from nextturn.data_builders.tasks import Conversation, Gap, Task
from nextturn.data_builders.text import states
from nextturn.probe.errors import DataError
from nextturn.probe.files import read_json, write_jsonl
from nextturn.probe.grading import boxed

GAP = Gap(
    "How many pens?", "how many bags there are", "How many bags?", "There are 4 bags.", "4 bags", "4", thing="bags"
)
TASK = Task("t", "4 bags of 3 pens. How many pens?", "12", "own", (), boxed_solution="$4 \\times 3 = \\boxed{12}$")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rl") / "data"
    recipe = out.with_suffix(".yaml")
    settings = {"source": {"kind": "starter", "n": 150}, "replay": {"fraction": 0.2}, "seed": 7}
    recipe.write_text(yaml.safe_dump({**settings, "output": {"path": str(out), "shard_size": 60}}))
    return build(load_data_recipe(recipe), out)


def test_every_kept_conversation_gives_prompts_up_to_its_first_answer(built: Path) -> None:
    rows = list(load_rl_rows(built))
    expected: dict[tuple[str, int], Sequence[Any]] = {}
    for row in load_sft_rows(built):
        for index in range(1, len(row["messages"]), 2):
            if row["kind"] != "replay":
                expected[row["id"], index // 2] = row["messages"][:index]
            if boxed(row["messages"][index]["content"]):
                break
    assert {(row.id.rpartition("-")[0], row.turn): list(row.prompt) for row in rows} == expected
    assert all(row.prompt[-1]["role"] == "user" and row.answer and row.solution for row in rows)
    withheld = [row for row in rows if row.hidden]
    assert withheld and all(row.clause and row.reveal and row.short for row in withheld)
    for row in withheld:
        assert not any(states(message["content"], value) for message in row.prompt for value in row.hidden)
        assert all(states(row.reveal, value) and states(row.problem, value) for value in row.hidden)


def test_a_fact_is_withheld_until_it_is_revealed() -> None:
    def rows(*texts: str, gap: Gap | None = GAP, reveal_at: int = 2, task: Task | None = TASK) -> list[RlRow]:
        messages = tuple({"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts))
        conversation = Conversation("c", "underspecified", messages, "own", "12", reveal_at, task, gap)
        return list(rl_rows(conversation))

    made = rows("How many?", "How many bags?", "4 bags", "Each?", "Yes", "\\boxed{12}", "Why?", "So.")
    assert [(row.turn, row.hidden, row.short) for row in made] == [(0, ("4",), "4 bags"), (1, (), ""), (2, (), "")]
    assert [row.id for row in made] == ["c-0", "c-1", "c-2"], "turns after the answer give no prompt"
    never = rows("How many?", "How many bags?", "No idea", "Then nobody knows.", reveal_at=4)
    assert [row.hidden for row in never] == [("4",), ("4",)]
    assert not rows("How many?", "\\boxed{12}", task=None, gap=None)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    [r"\frac{1}{2}", r"$\boxed{7}$", r"\times \neq", "\\begin{pmatrix} 1 & 2 \\\\ 3 \\end{pmatrix}", "\u2028\x85\x00"]
)
NOT_BLANK = TEXT.filter(lambda text: text.strip())


@st.composite
def rl_row(draw: st.DrawFn) -> RlRow:
    turn = draw(st.integers(0, 3))
    roles = [("user", "assistant")[index % 2] for index in range(2 * turn + 1)]
    prompt = tuple({"role": role, "content": draw(NOT_BLANK)} for role in roles)
    texts = {name: draw(TEXT) for name in ("solution", "clause", "thing", "short")}
    hidden = tuple(draw(st.lists(NOT_BLANK, max_size=2)))
    texts["reveal"] = draw(NOT_BLANK if hidden or texts["clause"] or texts["thing"] else TEXT)
    return RlRow(
        draw(NOT_BLANK), draw(NOT_BLANK), turn, prompt, draw(NOT_BLANK), draw(NOT_BLANK), hidden=hidden, **texts
    )


@given(st.lists(rl_row(), max_size=4, unique_by=lambda row: row.id))
def test_rows_are_read_as_they_were_written(tmp_path: Path, rows: list[RlRow]) -> None:
    write_jsonl(tmp_path / "rows.jsonl", map(vars, rows))
    assert list(load_rl_rows(tmp_path / "rows.jsonl")) == rows


USER = {"role": "user", "content": "x"}
GOOD = {"id": "a", "kind": "k", "turn": 0, "prompt": [USER], "answer": "1", "problem": "p"}
STATED = {"clause": "how many bags there are", "hidden": ["4"], "problem": "There are 4 bags. Each holds 2. How many?"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": ""}, "`id`"),
        ({"id": "a"}, "the id 'a'"),
        ({"kind": 7}, "`kind`.* given 7"),
        ({"prompt": []}, "an empty conversation"),
        ({"prompt": [USER, {"role": "assistant", "content": "y"}]}, "ends with the assistant"),
        ({"turn": -1}, "`turn`.* given -1"),
        ({"turn": True}, "`turn`.* given True"),
        ({"hidden": "4"}, "`hidden`.* given '4'"),
        ({"hidden": [4]}, "`hidden.0`"),
        ({"reveal": None}, "`reveal`.* given None"),
        # A reward would expect a question, and a simulated user would have nothing to say.
        ({"clause": "how many bags there are"}, "expected `reveal`"),
        ({"thing": "the number of bags"}, "expected `reveal`"),
        ({"hidden": ["4"], "problem": "There are 14 bags."}, "expected `reveal`"),
        *(({key: "cut \ud83d"}, f"`{key}` holds half a character") for key in ("id", "answer", "kind", "own")),
        ({"answer": "1" * 1_000_001}, "`answer` holds 1,000,001 characters"),
    ],
)
def test_a_wrong_row_is_named_with_its_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    rows = map(json.dumps, [GOOD, {**GOOD, "id": "b", **change}])
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    with pytest.raises(DataError, match=f"rows.jsonl:2: .*{message}"):
        list(load_rl_rows(tmp_path / "rows.jsonl"))


def test_the_fact_is_revealed_by_the_row_or_by_the_problem(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [{**GOOD, **STATED}, {**GOOD, **STATED, "id": "b", "reveal": "Four bags."}])
    assert [row.intent.reveal for row in load_rl_rows(tmp_path / "rows.jsonl")] == ["There are 4 bags.", "Four bags."]


def test_a_directory_has_to_be_a_finished_build_with_rl_rows(built: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    with pytest.raises(DataError, match="no data build"):
        list(load_rl_rows(tmp_path))
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="no rl rows"):
        list(load_rl_rows(tmp_path))
    with pytest.raises(DataError, match="no such file"):
        list(load_rl_rows(tmp_path / "nowhere.jsonl"))
    files = read_json(built / "manifest.json")["files"]
    for view in ("sft", "rl"):  # `datasets` reads every view
        names = [name for name in files if name.startswith(f"{view}/")]
        loaded = load_dataset("json", data_files=[str(built / name) for name in names], cache_dir=str(tmp_path))[
            "train"
        ]
        assert len(loaded) == sum(files[name]["rows"] for name in names) > 0
