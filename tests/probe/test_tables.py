"""Rows in the forms in which people keep them, and conversations in the forms in which rows hold them."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from nextturn.data_builders.rows import load_sft_rows
from nextturn.probe.command.errors import DataError
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.data.messages import training_messages
from nextturn.probe.data.tables import located, read_rows
from nextturn.probe.questions.sets import locate, read_items, read_problems
from support.conversations import messages

TALK = messages("The charger was missing.", "Sorry! Which order is it?", "48213.", "Thank you, one is on its way.")
ROWS = [{"messages": TALK}, {"messages": messages("Hi.", "Hello, how can I help?")}]
SHAREGPT = [
    {"conversations": [{"from": {"user": "human", "assistant": "gpt"}[m["role"]], "value": m["content"]} for m in row["messages"]]}
    for row in ROWS
]  # fmt: skip


def write(folder: Path, form: str, rows: list[dict[str, Any]] = ROWS) -> Path:
    from datasets import Dataset

    path = folder / f"rows.{form}"
    if form == "jsonl":
        write_jsonl(path, rows)
    elif form == "jsonl.gz":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    elif form == "json":
        path.write_text("\n " + json.dumps(SHAREGPT if rows is ROWS else rows, indent=1))
    elif form == "parquet":
        Dataset.from_list(rows).to_parquet(str(path))
    elif form == "saved":
        Dataset.from_list(rows).save_to_disk(str(path))
    else:
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            table = csv.writer(file)
            table.writerow(rows[0])
            cells = ([cell if isinstance(cell, str) else json.dumps(cell) for cell in row.values()] for row in rows)
            table.writerows(cells)
    return path


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "json", "parquet", "csv", "saved"])
def test_the_same_rows_come_from_every_form(form: str, tmp_path: Path) -> None:
    path = write(tmp_path, form)
    assert [row["messages"] for row in load_sft_rows(path)] == [row["messages"] for row in ROWS]
    assert [number for number, _ in read_rows(path)] == [1, 2]
    (tmp_path / "questions").mkdir()
    rows = [{"question": "What is 2 + 3?", "answer": "2 + 3 = 5\n#### 5"}, {"question": "1 + 1?", "answer": "2"}]
    path = write(tmp_path / "questions", form, rows)
    assert [item.answer for item in read_items(locate("own", path))] == ["5", "2"]
    assert [problem.answer for problem in read_problems(path)] == ["5", "2"]


@pytest.mark.parametrize(
    ("row", "right", "aliases"),
    [
        ({"answer": "[2,5]"}, "[2,5]", ()),
        ({"answer": "[[1, 2], [3, 4]]"}, "[[1, 2], [3, 4]]", ()),
        ({"answer": ["eight", 8]}, "eight", ("8",)),
        ({"answer": {"value": "8", "aliases": ["eight"]}}, "8", ("eight",)),
        ({"answer": "B", "choices": [30, 31]}, "31", ()),
        ({"answer": "B", "choices": ["a", "b"]}, "b", ()),
    ],
)
def test_a_cell_of_a_table_holds_json_or_the_numbers_of_an_answer(
    row: dict[str, Any], right: str, aliases: tuple[str, ...], tmp_path: Path
) -> None:
    (item,) = read_items(write(tmp_path, "csv", [{"question": "Which?", **row}]))
    answer = item.options["AB".index(str(item.answer))] if item.options else item.answer
    assert (answer, item.aliases) == (right, aliases)


def test_a_data_set_of_the_hub_is_fetched_once(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def rows(hub_id: str, config: str | None, split: str, file: str | None = None) -> Any:
        asked.append((hub_id, config, split))
        return iter(ROWS)

    monkeypatch.setattr("nextturn.probe.data.hub.hub_rows", rows)
    for _ in range(2):
        path = located("someone/talks@small:train", "data.path")
        assert [row["messages"] for row in load_sft_rows(path)] == [row["messages"] for row in ROWS]
    located("someone/talks", "data.path")
    assert asked == [("someone/talks", "small", "train"), ("someone/talks", None, "train")]
    for name in ("nowhere.jsonl", "some/folder/nowhere", "data/nowhere.parquet"):
        with pytest.raises(DataError, match=name):
            located(name, "data.path")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b'{\n "messages": []\n}', "several lines"),
        ("a.json", b'[{"messages": 1}, 2]', "a.json: row 2: int"),
        ("a.json", b"[1,", "JSON array"),
        ("a.parquet", b"PAR1\x15\x04", "Parquet"),
        ("a.csv.gz", b"\x1f\x8b\x08", "compressed"),
        ("a.jsonl.gz", b"\x1f\x8b\x08", "gzip"),
        ("a.jsonl", '{"a": 1}'.encode("utf-16"), "UTF-16"),
        ("a.csv", b"prompt,completion\na,b,c\n", "number of cells"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said) as error:
        list(read_rows(tmp_path / name))
    assert str(tmp_path / name) in str(error.value) and "\n" not in str(error.value)


def test_a_folder_of_several_splits_names_them(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    parts = {name: Dataset.from_list(ROWS) for name in ("train", "test")}
    DatasetDict(parts).save_to_disk(str(tmp_path / "both"))
    with pytest.raises(DataError, match=r"both/train, .*both/test"):
        list(read_rows(tmp_path / "both"))
    assert len(list(read_rows(tmp_path / "both" / "test"))) == 2
    with pytest.raises(DataError, match=str(tmp_path)):
        list(read_rows(tmp_path))


ONE = messages("Hi.", "Hello!")


@pytest.mark.parametrize(
    ("row", "columns", "expected"),
    [
        ({"prompt": "Hi.", "completion": "Hello!"}, {}, ONE),
        ({"prompt": ONE[:1], "completion": ONE[1:]}, {}, ONE),
        ({"question": "Hi.", "answer": "Hello!"}, {}, ONE),
        ({"instruction": "Say", "input": "hi", "output": "Hi."}, {}, messages("Say\n\nhi", "Hi.")),
        ({"conversation": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello!"}]}, {}, ONE),
        ({"ask": "Hi.", "say": "Hello!"}, {"prompt": "ask", "completion": "say"}, ONE),
        ({"chat": ONE, "answer": "x", "question": "y"}, {"messages": "chat"}, ONE),
        ({"messages": ONE, "question": "y", "answer": "x"}, {}, ONE),
        ({"system": "Be kind.", "messages": ONE}, {}, [{"role": "system", "content": "Be kind."}, *ONE]),
        ({"messages": [ONE[0], {**ONE[1], "weight": 1}]}, {}, ONE),
        ({"prompt": [ONE[0], {**ONE[1], "weight": 0}, *ONE]}, {}, [ONE[0], {**ONE[1], "loss": False}, *ONE]),
        ({"messages": ONE, "tools": "[" * 100_000}, {}, ONE),
        ({"messages": ONE, "ask": "a", "say": "b"}, {"prompt": "ask", "completion": "say"}, messages("a", "b")),
        (
            {"about": "Be kind.", "messages": [ONE[0], {**ONE[1], "weight": 0}, *ONE]},
            {"system": "about"},
            [{"role": "system", "content": "Be kind."}, ONE[0], {**ONE[1], "loss": False}, *ONE],
        ),
    ],
)
def test_a_row_holds_a_conversation_in_many_forms(row: dict[str, Any], columns: dict[str, str], expected: Any) -> None:
    assert list(training_messages(row, "x:1", columns)) == expected


@pytest.mark.parametrize(
    ("row", "columns", "said"),
    [
        ({"text": "Hi."}, {}, "data.columns"),
        ({"text": "Hi."}, {"messages": "chat"}, "'chat'"),
        ({"messages": ONE[:1]}, {}, "ends with the user"),
        ({"messages": [*ONE, {"role": "tool", "content": "3"}]}, {}, "tools"),
        ({"messages": [ONE[0], {**ONE[1], "loss": False}]}, {}, "nothing to learn"),
        ({"messages": []}, {}, "empty conversation"),
    ],
)
def test_a_row_without_one_is_named_with_what_it_has(row: dict[str, Any], columns: dict[str, str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        training_messages(row, "x:1", columns)


def test_all_faults_of_a_file_are_counted_and_the_first_ones_shown(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path, [ROWS[0], *[{"text": "x"}] * 7, ROWS[1]])
    with pytest.raises(DataError, match="7 of 9 .* 2, 3, 4, 5, 6 and 2 more") as error:
        list(load_sft_rows(path))
    assert "\n" not in str(error.value)
    skipped: list[str] = []
    assert len(list(load_sft_rows(path, skipped=skipped))) == 2 and len(skipped) == 7
    write_jsonl(path, [{"text": "x"}] * 2)
    with pytest.raises(DataError, match="2 of 2"):
        list(load_sft_rows(path, skipped=[]))
