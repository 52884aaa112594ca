"""The rl rows: what training reads as prompts, and that no prompt states the withheld fact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nextturn.data_builders.rows import load_rl_rows, rl_columns, rl_rows
from nextturn.data_builders.tasks import Conversation, Task
from nextturn.probe.command.errors import DataError
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.questions.simulation import Fact, PromptRow
from support.conversations import prompt_row

GAP = Fact(
    "How many pens?", "how many bags there are", "How many bags?", "There are 4 bags.", "4 bags", "4", thing="bags"
)
TASK = Task("t", "4 bags of 3 pens. How many pens?", "12", "own", (), boxed_solution="$4 \\times 3 = \\boxed{12}$")


def test_a_fact_is_withheld_until_it_is_revealed() -> None:
    def rows(*texts: str, gap: Fact = GAP, reveal_at: int = 2, task: Task | None = TASK) -> list[PromptRow]:
        messages = tuple({"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts))
        conversation = Conversation("c", "underspecified", messages, "own", "12", reveal_at, task, gap)
        return list(rl_rows(conversation))

    made = rows("How many?", "How many bags?", "4 bags", "Each?", "Yes", "\\boxed{12}", "Why?", "So.")
    assert [(row.turn, row.hidden, row.fact.short) for row in made] == [(0, ("4",), "4 bags"), (1, (), ""), (2, (), "")]
    assert [row.id for row in made] == ["c-0", "c-1", "c-2"], "turns after the answer give no prompt"
    never = rows("How many?", "How many bags?", "No idea", "Then nobody knows.", reveal_at=4)
    assert [row.hidden for row in never] == [("4",), ("4",)]
    assert not rows("How many?", "\\boxed{12}", task=None, gap=Fact())


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    odd = "\u2028\x85\x00 \\begin{pmatrix} 1 & 2 \\\\ 3 \\end{pmatrix} $\\boxed{7}$ \\times \\neq é"
    prompt = tuple({"role": ("user", "assistant")[index % 2], "content": f"{index} {odd}"} for index in range(3))
    names = ("answer", "problem", "solution", "clause", "thing", "reveal", "short", "ask")
    texts = {name: f"{name} {odd}" for name in names}
    rows = [
        prompt_row(id="a", kind=odd, turn=1, prompt=prompt, **texts, hidden=(odd, "4"), shards=(odd,)),
        PromptRow("b", "p", "1", prompt[:1]),
    ]
    write_jsonl(tmp_path / "rows.jsonl", map(rl_columns, rows))
    assert list(load_rl_rows(tmp_path / "rows.jsonl")) == rows


USER = {"role": "user", "content": "x"}
GOOD = {"id": "a", "kind": "k", "turn": 0, "prompt": [USER], "answer": "1", "problem": "p"}
STATED = {"clause": "how many bags there are", "hidden": ["4"], "problem": "There are 4 bags. Each holds 2. How many?"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
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
        *(({key: "cut \ud83d"}, f"`{key}`") for key in ("id", "answer", "kind", "own")),
    ],
)
def test_a_wrong_row_is_named_with_its_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    rows = map(json.dumps, [GOOD, {**GOOD, "id": "b", **change}])
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    with pytest.raises(DataError, match=f"rows.jsonl:2: .*{message}"):
        list(load_rl_rows(tmp_path / "rows.jsonl"))


def test_the_fact_is_revealed_by_the_row_or_by_the_problem(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [{**GOOD, **STATED}, {**GOOD, **STATED, "id": "b", "reveal": "Four bags."}])
    assert [row.fact.reveal for row in load_rl_rows(tmp_path / "rows.jsonl")] == ["There are 4 bags.", "Four bags."]


def test_a_directory_has_to_be_a_finished_build_with_rl_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="manifest.json"):
        list(load_rl_rows(tmp_path))
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match=str(tmp_path)):
        list(load_rl_rows(tmp_path))
    with pytest.raises(DataError, match="nowhere.jsonl"):
        list(load_rl_rows(tmp_path / "nowhere.jsonl"))
