"""The rl view: what training reads as prompts, and that no prompt tells what is withheld."""

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
from nextturn.probe.files import write_jsonl
from nextturn.probe.grading import boxed

GAP = Gap(
    "How many pens?", "how many bags there are", "How many bags?", "There are 4 bags.", "4 bags", "4", thing="bags"
)
TASK = Task("t", "4 bags of 3 pens. How many pens?", "12", "own", (), boxed_solution="$4 \\times 3 = \\boxed{12}$")


def talk(*turns: str, gap: Gap | None = GAP, reveal_at: int = 2, task: Task | None = TASK) -> Conversation:
    messages = tuple({"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(turns))
    return Conversation("c", "underspecified", messages, "own", "12", reveal_at=reveal_at, task=task, gap=gap)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rl") / "data"
    recipe = out.with_suffix(".yaml")
    settings = {"source": {"kind": "starter", "n": 150}, "replay": {"fraction": 0.2}, "seed": 7}
    recipe.write_text(yaml.safe_dump({**settings, "output": {"path": str(out), "shard_size": 60}}))
    return build(load_data_recipe(recipe), out)


def test_every_kept_conversation_gives_prompts_up_to_its_first_answer(built: Path) -> None:
    prompts: dict[tuple[str, int], RlRow] = {(row.id.rpartition("-")[0], row.turn): row for row in load_rl_rows(built)}
    wanted: dict[tuple[str, int], Sequence[Any]] = {}
    for row in load_sft_rows(built):
        for place in range(1, len(row["messages"]), 2):
            if row["kind"] != "replay":
                wanted[row["id"], place // 2] = row["messages"][:place]
            if boxed(row["messages"][place]["content"]):
                break
    assert {key: list(row.prompt) for key, row in prompts.items()} == wanted


def test_prompts_end_with_the_user_and_tell_nothing_that_is_hidden(built: Path) -> None:
    rows = list(load_rl_rows(built))
    assert all(row.prompt[-1]["role"] == "user" and row.answer and row.solution for row in rows)
    withheld = [row for row in rows if row.hidden]
    assert withheld and all(row.clause and row.reveal and row.short for row in withheld)
    for row in withheld:
        assert not any(states(message["content"], value) for message in row.prompt for value in row.hidden)
        assert all(states(row.reveal, value) and states(row.problem, value) for value in row.hidden)


def test_what_is_withheld_is_told_until_it_is_revealed() -> None:
    rows = list(rl_rows(talk("How many?", "How many bags?", "4 bags", "Each?", "Yes", "\\boxed{12}", "Why?", "So.")))
    assert [(row.turn, row.hidden, row.short) for row in rows] == [(0, ("4",), "4 bags"), (1, (), ""), (2, (), "")]
    assert [row.id for row in rows] == ["c-0", "c-1", "c-2"], "the talk after the answer gives no prompt"


def test_what_is_never_revealed_stays_hidden() -> None:
    rows = list(rl_rows(talk("How many?", "How many bags?", "No idea", "Then nobody can tell.", reveal_at=4)))
    assert [row.hidden for row in rows] == [("4",), ("4",)]


def test_a_conversation_whose_problem_is_not_known_gives_none() -> None:
    assert not list(rl_rows(talk("How many?", "\\boxed{12}", task=None, gap=None)))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    [r"\frac{1}{2}", r"$\boxed{7}$", r"\times \neq", "\\begin{pmatrix} 1 & 2 \\\\ 3 \\end{pmatrix}", "\u2028\x85\x00"]
)
SAID = TEXT.filter(lambda text: text.strip())


@st.composite
def rl_row(draw: st.DrawFn) -> RlRow:
    turn = draw(st.integers(0, 3))
    prompt = tuple({"role": ("user", "assistant")[place % 2], "content": draw(SAID)} for place in range(2 * turn + 1))
    texts = {name: draw(TEXT) for name in ("solution", "clause", "thing", "short", "persona")}
    hidden = tuple(draw(st.lists(SAID, max_size=2)))
    texts["reveal"] = draw(SAID if hidden or texts["clause"] or texts["thing"] else TEXT)
    return RlRow(draw(SAID), draw(SAID), turn, prompt, draw(SAID), draw(SAID), hidden=hidden, **texts)


@given(st.lists(rl_row(), max_size=4, unique_by=lambda row: row.id))
def test_rows_come_back_as_they_went(tmp_path: Path, rows: list[RlRow]) -> None:
    write_jsonl(tmp_path / "rows.jsonl", map(vars, rows))
    assert list(load_rl_rows(tmp_path / "rows.jsonl")) == rows


GOOD = {"id": "a", "kind": "k", "turn": 0, "prompt": [{"role": "user", "content": "x"}], "answer": "1", "problem": "p"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"id": ""}, "`id`"),
        ({"answer": 7}, "`answer`.* given 7"),
        ({"prompt": []}, "an empty conversation"),
        ({"prompt": [*GOOD["prompt"], {"role": "assistant", "content": "y"}]}, "ends with the assistant"),  # type: ignore[misc]
        ({"turn": -1}, "`turn`.* given -1"),
        ({"turn": True}, "`turn`.* given True"),
        ({"hidden": "4"}, "`hidden`.* given '4'"),
        ({"hidden": [4]}, "`hidden.0`"),
        ({"reveal": None}, "`reveal`.* given None"),
        # a reward would want to be asked, and a user would have nothing to say
        ({"clause": "how many bags there are"}, "nothing states it; expected `reveal`"),
        ({"thing": "the number of bags"}, "nothing states it; expected `reveal`"),
        ({"hidden": ["4"], "problem": "There are 14 bags."}, "nothing states it; expected `reveal`"),
    ],
)
def test_a_row_that_is_none_is_named_with_its_line(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [GOOD, {**GOOD, "id": "b", **change}])
    with pytest.raises(DataError, match=f"rows.jsonl:2: .*{told}"):
        list(load_rl_rows(path))


def test_what_is_withheld_is_told_by_its_own_sentence_or_by_the_problem_s(tmp_path: Path) -> None:
    withheld = {
        "clause": "how many bags there are",
        "hidden": ["4"],
        "problem": "There are 4 bags. Each holds 2. How many?",
    }
    rows = [{**GOOD, **withheld}, {**GOOD, **withheld, "id": "b", "reveal": "Four bags."}]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    assert [row.revelation for row in load_rl_rows(tmp_path / "rows.jsonl")] == ["There are 4 bags.", "Four bags."]


def test_ids_stand_once_and_a_folder_has_to_be_a_finished_build(built: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [GOOD, GOOD])
    with pytest.raises(DataError, match=r":2: the id 'a' is used twice"):
        list(load_rl_rows(tmp_path / "rows.jsonl"))
    with pytest.raises(DataError, match="is no data build"):
        list(load_rl_rows(tmp_path))
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="has no rl rows"):
        list(load_rl_rows(tmp_path))
    with pytest.raises(DataError, match="no such file"):
        list(load_rl_rows(tmp_path / "nowhere.jsonl"))


def test_datasets_reads_every_view_of_a_scripted_build(built: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    manifest = json.loads((built / "manifest.json").read_text())
    for view in ("sft", "rl"):
        files = [name for name in manifest["files"] if name.startswith(f"{view}/")]
        found = load_dataset("json", data_files=[str(built / name) for name in files], cache_dir=str(tmp_path))["train"]
        assert len(found) == sum(manifest["files"][name]["rows"] for name in files) > 0
