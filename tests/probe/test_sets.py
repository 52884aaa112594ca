"""Question sets: every row form, the choice by seed, and a line that names file and line for what is no question."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextturn.probe.command.errors import DataError, SetOutOfReach
from nextturn.probe.command.files import read_jsonl, write_json, write_jsonl
from nextturn.probe.command.sections import ProbeSection, SetSection
from nextturn.probe.data import hub as hub_room
from nextturn.probe.data.messages import assistant, user
from nextturn.probe.plan import load_sets, plan_power
from nextturn.probe.questions.sets import (
    HUB,
    Item,
    Pair,
    Problem,
    choose,
    locate,
    read_items,
    read_pairs,
    read_problems,
    remarks,
    sets_hash,
)
from nextturn.train.probing import sets_to_probe

SYSTEM = {"role": "system", "content": "Be brief."}
TALK = [user("Hi."), assistant("Hello."), user("What is 2 + 3?")]


@pytest.fixture
def items(tmp_path: Path) -> Callable[..., list[Item]]:
    def read(*rows: Any, instruction: str = "") -> list[Item]:
        (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_items(tmp_path / "set.jsonl", instruction)

    return read


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"question": "Q?", "answer": "2 + 3 = 5\n#### 5"}, Item("1", (user("Q?"),), "5")),
        ({"question": "Q?", "answer": 0}, Item("1", (user("Q?"),), "0")),
        ({"problem": "P", "solution": r"So \boxed{\frac{1}{2}}."}, Item("1", (user("P"),), r"\frac{1}{2}")),
        ({"prompt": "Write a poem."}, Item("1", (user("Write a poem."),), None)),
        ({"Question": "Which one?"}, Item("1", (user("Which one?"),), None)),
        ({"messages": TALK}, Item("1", tuple(TALK), None)),
        ({"messages": [SYSTEM, user("Q?")], "answer": "#### 4"}, Item("1", (SYSTEM, user("Q?")), "4")),
        ({"prompt": TALK, "prompt_id": "h1", "rubrics": []}, Item("h1", tuple(TALK), None)),
        ({"prompt": {"messages": [{"role": "developer", "content": "Be brief."}, *TALK]}}, Item("1", (SYSTEM, *TALK))),
        ({"prompt": {"messages": [user("a"), SYSTEM, user("b"), SYSTEM]}},
         Item("1", ({"role": "system", "content": "Be brief.\n\nBe brief."}, user("a\n\nb")))),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]},
         Item("1", (user("a"), assistant("b"), user("c")))),
        ({"turns": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "c"}]}, Item("1", (SYSTEM, user("c")))),
        ({"conversation": TALK, "conversation_id": "w"}, Item("w", tuple(TALK))),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
         Item("1", (user("a\n\nb"),))),
        ({"question_id": 81, "turns": ["First."]}, Item("81", (user("First."),), None)),
        ({"id": "first", "key": "second", "prompt": "P"}, Item("first", (user("P"),), None)),
        ({"id": None, "key": "second", "prompt": "P"}, Item("second", (user("P"),), None)),
        ({"id": 0, "prompt": "P"}, Item("0", (user("P"),), None)),
        # What a question is about, and several right answers.
        ({"context": "It rains. ", "question": "Why?", "answer": "rain"}, Item("1", (user("It rains.\n\nWhy?"),), "rain")),
        ({"support": ["One.", "Two."], "passage": None, "question": "Why?", "answer": True},
         Item("1", (user("One.\n\nTwo.\n\nWhy?"),), "True")),
        ({"article": "Why?", "question": "Why?", "answer": 5}, Item("1", (user("Why?"),), "5")),
        ({"question": "Q?", "answer": ["7", "seven", "7"]}, Item("1", (user("Q?"),), "7", aliases=("seven",))),
        ({"messages": TALK, "answer": {"value": "5", "aliases": ["five", "V"]}}, Item("1", tuple(TALK), "5", aliases=("five", "V"))),
    ],
)  # fmt: skip
def test_each_form_of_row_is_read(items: Any, row: dict[str, Any], expected: Item) -> None:
    assert items(row) == [expected]


BAD_ROWS = [
    ({"messages": "Hello"}, "an empty conversation"),
    ({"messages": [SYSTEM]}, "a system message alone"),
    ({"messages": [user("a"), user("b")]}, "message 2 is 'user'"),
    ({"messages": [user("a"), SYSTEM, user("b")]}, "roles do not alternate, message 2 is 'system'"),
    ({"messages": [{"role": "customer", "content": "a"}]}, "message 1 is 'customer'"),
    ({"messages": [{"role": "user", "text": "a"}]}, "message 1 is no {role, content}"),
    ({"messages": [user("cut \ud83d")]}, r"message 1 holds half a character \(\\ud83d\)"),
    ({"problem": "Q?", "solution": rb"\boxed{\ud83d}".decode("unicode_escape")}, "`solution` holds half a character"),
    ({"question": "Q" * 1_000_001, "answer": "1"}, "`question` holds 1,000,001 characters"),
    ({"messages": [user("a"), assistant(" \n"), user("b")]}, r"message 2 \(assistant\) is empty"),
    ({"messages": [{"role": "user", "content": ["a"]}]}, "message 1 has no text"),
    ({"messages": ["a", user("b")]}, "message 1 is no {role, content}"),
    ({"prompt": [" "]}, "empty"),
    ({"answer": "5"}, r"no `question` or .* \(has answer\)"),
    ({"question": "Q?", "answer": ""}, "no final answer"),
    ({"question": "Q?", "answer": float("nan")}, "no final answer"),
    ({"problem": "P", "solution": "a long way\nwithout an end"}, "no final answer"),
    ({"question": "Q?", "answer": []}, "no final answer"),
    ({"question": "Q?", "answer": "5", "context": {"title": ["t"]}}, "the column `context`"),
]


@pytest.mark.parametrize(("row", "message"), BAD_ROWS)
def test_a_row_that_is_no_question_is_named_by_file_and_line(items: Any, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"set\.jsonl:2: .*{message}"):
        items({"prompt": "fine"}, row)


def test_an_id_that_stands_twice_is_refused(items: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the id 'x' occurs twice"):
        items({"id": "x", "prompt": "a"}, {"id": "x", "prompt": "b"})
    with pytest.raises(DataError, match="the id '2' occurs twice"):
        items({"id": 2, "prompt": "a"}, {"prompt": "b"})
    with pytest.raises(DataError, match=r"the id 'x\\ud83d' holds half a character"):
        items({"id": "x\ud83d", "prompt": "a"})


@pytest.mark.parametrize("none", [None, float("nan"), ""])
def test_a_row_whose_id_is_empty_has_none(none: Any, tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    texts = {"question": "Q?", "answer": "4", "complete": "A", "underspecified": "a"}
    path.write_text("".join(json.dumps({"id": none, **more, **texts}) + "\n" for more in ({}, {}, {"unique_id": "u"})))
    assert [item.id for item in read_items(path)] == [pair.id for pair in read_pairs(path)] == ["1", "2", "3"]
    assert [problem.id for problem in read_problems(path)] == ["set-1", "set-2", "u"]


@pytest.mark.parametrize("read", [read_items, read_pairs])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "a", "complete": "a", "underspecified": "b"}\n{"prompt": "b\n', ":2: not JSON"),
        ("\n\n", ": no rows"),
    ],
)
def test_a_broken_line_and_an_empty_file_are_refused(tmp_path: Path, read: Any, content: str, message: str) -> None:
    (tmp_path / "set.jsonl").write_text(content)
    with pytest.raises(DataError, match=rf"set\.jsonl{message}"):
        read(tmp_path / "set.jsonl")


def test_pairs_are_read_with_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    write_jsonl(path, [{"complete": "A", "underspecified": "a", "missing": "price"}, {"id": "p", "complete": "B", "underspecified": "b"}])  # fmt: skip
    assert read_pairs(path) == [Pair("1", "A", "a", "price"), Pair("p", "B", "b", "")]
    for half in ({"complete": "A"}, {"underspecified": "a"}, {"complete": "A", "underspecified": " "}):
        write_jsonl(path, [half])
        with pytest.raises(DataError, match=r"pairs\.jsonl:1: no `(complete|underspecified)` with text"):
            read_pairs(path)


def test_problems_keep_solution_level_and_subject(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    rows = [
        {"problem": "P", "solution": r"Then \boxed{4}.", "level": "Level 15", "type": "Algebra"},
        {"question": "Q", "answer": "He has 2*3=<<2*3=6>>6.\n#### 6"},
        {"id": "z", "question": "Q", "answer": 0},
        {"question": "Q", "answer": "#### Step 1\nHe goes west.\n#### New York City"},
        {"question": "Q", "answer": ["8", "eight"]},
    ]
    write_jsonl(path, rows)
    assert list(read_problems(path, "own")) == [
        Problem("own-1", "P", "4", r"Then \boxed{4}.", "own", 15, "Algebra"),
        Problem("own-2", "Q", "6", "He has 2*3=6.", "own"),
        Problem("z", "Q", "0", "", "own"),
        Problem("own-4", "Q", "New York City", "#### Step 1\nHe goes west.", "own"),  # a heading is no answer
        Problem("own-5", "Q", "8", "", "own"),
    ]
    assert {problem.source for problem in read_problems(path)} == {"train"}
    for row in ({"question": "Q"}, {"problem": "P", "solution": "no\nend"}, {"question": "Q", "answer": ""}):
        write_jsonl(path, [rows[0], row])
        with pytest.raises(DataError, match=r"train\.jsonl:2: "):
            list(read_problems(path))


@given(st.integers(0, 40), st.none() | st.integers(0, 50), st.integers(0, 5))
def test_a_choice_keeps_the_order_and_depends_on_the_seed_alone(size: int, n: int | None, seed: int) -> None:
    items = list(range(size))
    chosen = choose(items, n, seed)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == (size if n is None else min(n, size))
    assert chosen == choose(items, n, seed)


def test_the_hash_tells_what_was_asked_apart() -> None:
    item = Item("1", (user("Q?"),), "5")
    changes: list[dict[str, Any]] = [{"id": "2"}, {"messages": (user("R?"),)}, {"answer": None}, {"reply": "a"}]
    changes += [{"actual": "a"}, {"options": ("4", "5")}, {"options": ("5", "4")}, {"aliases": ("five",)}]
    others = [replace(item, **change) for change in changes]
    assert sets_hash([item]) == sets_hash([Item("1", (user("Q?"),), "5")])
    assert len({sets_hash(asked) for asked in ([item], *([other] for other in others), [item, others[0]], [])}) == 11


def test_the_plan_says_what_is_not_read_and_from_where_answers_count() -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "Frage": "Q?", "question": "Q?", "answer": 1, "opa": "x", "opb": "y", "exp": "z"}
    ]
    unread, counted = remarks(rows, {"question": "Frage"})
    assert unread.endswith(": exp") and counted == "answers counted from 0"
    assert remarks(rows)[0].endswith(": Frage, exp")
    assert remarks([{"question": "Q?", "choices": ["x", "y"], "answer": 1}]) == ["answers counted from 0"]
    assert remarks([{"question": "Q?", "choices": ["x", "y"], "answer": "A"}]) == []


@pytest.mark.parametrize(("n", "labels"), [(9, None), (12, 24), (40, 60)])
def test_the_plan_counts_no_more_labels_than_a_run_has_user_turns(tmp_path: Path, n: int, labels: int | None) -> None:
    path = tmp_path / "own.jsonl"
    write_jsonl(
        path, [{"id": str(number), "question": f"How many are {number}?", "answer": "1"} for number in range(n)]
    )
    temperatures = (0.0,) if n == 9 else (0.0, 0.7)
    own = SetSection(path=str(path), measures=("followup",))
    probe = ProbeSection(sets={"own": own}, temperatures=temperatures)
    lines = list(plan_power(load_sets(probe), probe))
    assert [f" {labels} labels" in line for line in lines] == [True] * (labels is not None)


def test_a_path_is_taken_before_any_name(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}")
    assert locate("gsm8k", str(tmp_path / "x.jsonl")) == tmp_path / "x.jsonl"
    for path in (tmp_path / "nowhere.jsonl", tmp_path):
        with pytest.raises(DataError, match=r"no such file.* \(set 'gsm8k'\)") as caught:
            locate("gsm8k", path)
        assert not isinstance(caught.value, SetOutOfReach), "a wrong path is wrong, however the hub is"
    with pytest.raises(DataError, match="set 'gsm9k': unknown name, and no path given; known: gsm8k, "):
        locate("gsm9k")


BOTH = ("gsm8k", "gpqa_diamond")


def test_a_run_leaves_out_a_gated_set_and_all_its_probes_ask_the_same(
    hub: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, closed = hub_room.hub_rows, HUB["gpqa_diamond"].hub_id

    def gated(hub_id: str, *more: Any) -> Iterator[dict[str, Any]]:
        if hub_id == closed:
            raise DataError(f"{hub_id} cannot be fetched (it is a gated dataset)")
        return rows(hub_id, *more)

    def names(loaded: Sequence[Any]) -> list[str]:
        return [each.name for each in loaded]

    run, base = tmp_path / "run", tmp_path / "run" / "probe" / "base"
    probe, alone = (ProbeSection(sets={name: SetSection() for name in sets}) for sets in (BOTH, BOTH[1:]))
    later = ProbeSection(sets={**probe.sets, "built": SetSection(path=str(tmp_path / "built.jsonl"))})
    with monkeypatch.context() as patch:
        patch.setattr("nextturn.probe.data.hub.hub_rows", gated)
        with pytest.raises(SetOutOfReach, match="gpqa_diamond"):  # named in `probe run`
            load_sets(probe)
        assert names(sets_to_probe(later, run, before_build=True)) == ["gsm8k"]
        told = capsys.readouterr().out
        assert f"https://huggingface.co/datasets/{closed}" in told and "hf auth login" in told
        with pytest.raises(DataError, match="built.jsonl: no such file"):
            sets_to_probe(later, run)
        with pytest.raises(DataError):  # before the build
            sets_to_probe(alone, run, before_build=True)
        left = load_sets(probe, base)
    write_json(base / "manifest.json", {"settings": {"sets": {name: {} for name in names(left)}}})
    assert names(load_sets(probe, base)) == ["gsm8k"], "terms accepted meanwhile change no run"
    assert names(load_sets(probe, tmp_path / "other")) == list(BOTH)


@pytest.mark.parametrize("name", HUB)
def test_a_set_that_is_out_of_reach_gives_one_line_with_the_way_out(own_cache: Path, name: str) -> None:
    with pytest.raises(SetOutOfReach, match=rf"^set {name!r}: .*HF_HUB_OFFLINE is set.*`path`[^\n]*$") as caught:
        locate(name)
    assert ("HF_TOKEN" in str(caught.value)) == HUB[name].gated
    assert not list(own_cache.rglob("*.jsonl")), "nothing half-written is left to be taken for the set"


def test_a_file_from_windows_is_read_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    rows = '{"question": "Größe?", "answer": 5}\r\n\r\n  \r\n{"question": "b", "answer": "6"}'
    path.write_bytes(b"\xef\xbb\xbf" + rows.encode())
    assert [(item.id, item.answer) for item in read_items(locate("own", path))] == [("1", "5"), ("4", "6")]
    assert read_items(path)[0].messages == (user("Größe?"),)


HUB_ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "Q?", "answer": "#### 5"},
    "gsm8k_train": {"question": "Q?", "answer": "#### 5"},
    "gpqa_diamond": {"Question": "Q?", "Correct Answer": "5", "Incorrect Answer 1": "6", "Incorrect Answer 2": "7",
                     "Incorrect Answer 3": "8", "Record ID": "rec1", "Subdomain": "Optics"},
    "ifbench": {"key": "0", "prompt": "P", "instruction_id_list": ["x"], "kwargs": [{"n": 1}]},
    "healthbench": {"prompt": TALK, "prompt_id": "p", "rubrics": [{"criterion": "c", "points": 1}]},
    "coval": {"prompt_id": "c", "prompt": {"id": "c", "messages": TALK}, "responses": []},
    "mt_bench": {"prompt": ["First.", "Second."], "prompt_id": 7, "category": "math", "reference": []},
    "math": {"problem": "P", "solution": r"\boxed{4}", "answer": "4", "level": 5, "subject": "Algebra"},
    "math_train": {"problem": "P", "solution": r"\boxed{4}", "answer": "4", "level": 5, "subject": "Algebra"},
}  # fmt: skip


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> list[tuple[Any, ...]]:
    """A hub that holds HUB_ROWS; the list is what was asked of it."""
    asked: list[tuple[Any, ...]] = []

    def rows(hub_id: str, config: str | None, split: str, file: str | None = None) -> Iterator[dict[str, Any]]:
        asked.append((hub_id, config, split, file))
        (name,) = [name for name, one in HUB.items() if (one.hub_id, one.config, one.split, one.file) == asked[-1]]
        return iter([HUB_ROWS[name]])

    monkeypatch.setattr("nextturn.probe.data.hub.hub_rows", rows)
    return asked


@pytest.mark.parametrize("name", HUB)
def test_a_named_set_is_fetched_once_and_read(hub: list[Any], name: str) -> None:
    ids = {"gpqa_diamond": "rec1", "healthbench": "p", "coval": "c", "ifbench": "0", "mt_bench": "7"}
    (item,) = read_items(locate(name))
    assert (item.messages[-1]["role"], item.id) == ("user", ids.get(name, "1"))
    assert (item.answer is not None) == (name.startswith(("gsm8k", "math", "gpqa")))
    assert bool(item.options) == (name == "gpqa_diamond")
    stored = next(row for _, row in read_jsonl(locate(name)))
    assert set(stored) <= {*HUB[name].fields, *HUB[name].more}, "rubrics and the like stay on the hub"
    assert len(hub) == 1


def test_columns_that_changed_are_named_with_the_way_out(hub: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HUB_ROWS, "coval", {"conversation": 1, "rubric": 2})
    with pytest.raises(SetOutOfReach, match="openai/coval has no column prompt, only conversation, rubric.*`path`"):
        locate("coval")
    monkeypatch.delitem(HUB_ROWS["gpqa_diamond"], "Incorrect Answer 3")
    with pytest.raises(SetOutOfReach, match="no column Incorrect Answer 3.*accept its terms on .* set HF_"):
        locate("gpqa_diamond")


def test_one_file_of_a_dataset_is_read_where_its_files_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As HealthBench's do: its files lie side by side, with other columns each."""
    monkeypatch.setattr(hub_room, "unreachable", lambda: None)
    write_jsonl(tmp_path / "one.jsonl", [{"prompt": TALK, "prompt_id": "p"}])
    write_jsonl(tmp_path / "two.jsonl", [{"completion": {"text": "x"}, "labels": [1]}])
    (row,) = hub_room.hub_rows(str(tmp_path), None, "train", "one.jsonl")
    assert row == {"prompt": TALK, "prompt_id": "p"}
    for file in (None, "three.jsonl"):
        with pytest.raises(DataError, match="cannot be fetched"):
            list(hub_room.hub_rows(str(tmp_path), None, "train", file))


def test_own_names_of_columns_are_read_and_missing_ones_named(tmp_path: Path) -> None:
    (tmp_path / "quiz.csv").write_text("Frage,Antwort\nWas ist 2 + 3?,5\n")
    (item,) = read_items(tmp_path / "quiz.csv", columns={"question": "Frage", "answer": "Antwort"})
    assert item.messages == (user("Was ist 2 + 3?"),) and item.answer == "5"
    with pytest.raises(DataError, match="'Fragen'.*columns.question.*Frage, Antwort"):
        read_items(tmp_path / "quiz.csv", columns={"question": "Fragen"})
    talk = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}, {"from": "human", "value": "And?"}]
    write_jsonl(tmp_path / "talks.jsonl", [{"dialog": talk}])
    (told,) = read_items(tmp_path / "talks.jsonl", transcript=True, columns={"messages": "dialog"})
    assert (told.reply, told.actual) == ("Hello", "And?")
    with pytest.raises(DataError, match="columns: {messages"):
        read_items(tmp_path / "talks.jsonl", transcript=True)
