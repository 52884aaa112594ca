"""Questions of the probe stay out of the data, in every form they come in and in every kind they would be used for."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nextturn.data_builders.duplicates import Checked
from nextturn.data_builders.quality import Gate, Quality, probe_files
from nextturn.data_builders.scripted import Conversation
from nextturn.data_builders.tasks import Task
from nextturn.probe.errors import DataError, SetOutOfReach
from nextturn.probe.files import write_jsonl
from nextturn.probe.sets import PACKAGED
from support.conversations import conversation

WORDS = re.findall(r"\w+", "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen")


def reason(made: Conversation, folder: Path, *sets: str) -> str | None:
    gate = Gate(Quality(decontaminate=[str(folder / one) for one in sets or ("probe.jsonl",)]), 10, folder / "index")
    found = gate.reason(made)
    gate.close()
    return found


def named(folder: Path, name: str = "probe.jsonl") -> str:
    return f"contaminated:{folder.name}/{name}"


def test_thirteen_words_in_a_row_are_too_many(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "probe.jsonl", [{"prompt": " ".join(WORDS[:14])}, {"turns": ["short one", "two"]}])
    assert reason(conversation("So: " + ", ".join(WORDS[:13]).upper() + "?", "\\boxed{7}"), tmp_path) == named(tmp_path)
    assert reason(conversation(" ".join(WORDS[:12]) + "?", "\\boxed{7}"), tmp_path) is None
    assert reason(conversation("What?", " ".join(WORDS[1:14]) + " \\boxed{7}"), tmp_path) == named(tmp_path)


def test_a_question_of_fewer_words_counts_as_a_whole(tmp_path: Path) -> None:
    """One in eight of MATH's has fewer than thirteen words."""
    write_jsonl(tmp_path / "probe.jsonl", [{"problem": "Find $\\cos 150^\\circ$."}, {"turns": ["Thank you!", "Yes"]}])
    task = Task("t", "Find $\\cos  150^\\circ$.", "7", "math", ())
    assert reason(conversation("Find $\\cos 150^\\circ$.", "\\boxed{7}"), tmp_path) == named(tmp_path)
    assert reason(conversation("hey. what is it?", "\\boxed{7}", task=task), tmp_path) == named(tmp_path)
    beside = replace(task, question="What is $1 + 1$?", whole_beside=task.question)
    assert reason(conversation("Two of them", "\\boxed{7}", task=beside), tmp_path) == named(tmp_path)
    assert reason(conversation("Find $-\\cos 150^\\circ$.", "\\boxed{7}"), tmp_path) is None
    thanks = conversation("What is $1 + 1$?", "\\boxed{7}", "Thank you!", "Gladly.")
    assert reason(thanks, tmp_path) is None, "as short a turn is everybody's"


def test_a_contaminated_problem_goes_out_in_all_its_kinds(tmp_path: Path) -> None:
    """Also where what is said of it in the conversation is too little to be found."""
    write_jsonl(tmp_path / "probe.jsonl", [{"question": " ".join(WORDS)}])
    task = Task("t", " ".join(WORDS) + "?", "7", "math", ())
    for kind in ("complete", "underspecified", "hint"):
        made = conversation("About numbers", "Which?", "seven", "\\boxed{7}", kind=kind, task=task)
        found = reason(made, tmp_path)
        assert found == (named(tmp_path) if kind != "complete" else "over_asking")
    assert reason(conversation("About numbers", "\\boxed{7}", task=task), tmp_path) == named(tmp_path)


def test_phrases_that_many_probe_questions_share_do_not_count(tmp_path: Path) -> None:
    phrase = "enter your answer in the form a over b where both are whole numbers"
    write_jsonl(tmp_path / "probe.jsonl", [{"question": f"Number {i}: {phrase}."} for i in range(11)])
    assert reason(conversation(f"Something else. {phrase}?", "\\boxed{7}"), tmp_path) is None
    assert reason(conversation(f"Number 3: {phrase}?", "\\boxed{7}"), tmp_path) == named(tmp_path)


def test_a_drawing_is_one_word(tmp_path: Path) -> None:
    figure = '[asy] draw((0,0)--(4,0)--(4,3)--cycle); label("$A$", (0,0), SW); label("$B$", (4,0), SE); [/asy]'
    write_jsonl(tmp_path / "probe.jsonl", [{"problem": f"Find the area. {figure}"}])
    assert reason(conversation(f"What is its perimeter? {figure}", "\\boxed{7}"), tmp_path) is None


@pytest.mark.parametrize(
    "row",
    [
        {"Question": "TEXT", "Correct Answer": "x"},
        {"prompt": {"messages": [{"role": "user", "content": "TEXT"}]}},
        {"prompt": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "TEXT"}]},
        {"conversations": [{"from": "human", "value": "TEXT"}]},
        {"history": [{"user": "Hello", "bot": "TEXT"}]},
        {"prompt": functools.reduce(lambda inner, _: [inner], range(700), "TEXT")},
    ],
)
def test_probe_questions_are_found_in_every_form_that_the_probe_reads(tmp_path: Path, row: dict[str, Any]) -> None:
    asked = "a kettle of four litres loses a fifth of its water each hour how much is left then"
    (tmp_path / "probe.jsonl").write_text(json.dumps(row).replace("TEXT", asked) + "\n")
    assert reason(conversation(asked.capitalize() + "?", "\\boxed{7}"), tmp_path) == named(tmp_path)


def test_what_was_checked_is_told_and_the_first_set_is_named(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    write_jsonl(tmp_path / "a/test.jsonl", [{"question": " ".join(WORDS[:13])}, {"question": "Short?"}])
    write_jsonl(tmp_path / "b/test.jsonl", [{"question": " ".join(WORDS)}])
    sets = [str(tmp_path / "a/test.jsonl"), str(tmp_path / "b/test.jsonl")]
    gate = Gate(Quality(decontaminate=sets), 10, tmp_path / "index")
    assert gate.checked == (Checked("a/test.jsonl", 2, 2), Checked("b/test.jsonl", 1, 2))
    assert gate.reason(conversation(" ".join(WORDS), "\\boxed{7}")) == "contaminated:a/test.jsonl"
    assert gate.reason(conversation(" ".join(WORDS[1:]), "\\boxed{7}")) == "contaminated:b/test.jsonl"
    gate.close()


def test_a_known_set_is_taken_from_the_cache_by_its_name(own_cache: Path, tmp_path: Path) -> None:
    write_jsonl(own_cache / "sets" / "gsm8k.jsonl", [{"question": " ".join(WORDS), "answer": "#### 7"}])
    gate = Gate(Quality(decontaminate=["gsm8k"]), 10, tmp_path / "index")
    assert gate.checked == (Checked("gsm8k", 1, 3),)
    assert gate.reason(conversation(" ".join(WORDS), "\\boxed{7}")) == "contaminated:gsm8k"
    gate.close()


def test_a_gated_set_out_of_reach_is_left_out_by_name_and_any_other_is_an_error(
    own_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe_files(Quality(decontaminate=["gpqa_diamond", "written_pairs"])) == PACKAGED
    assert "not checked against gpqa_diamond" in capsys.readouterr().out
    with pytest.raises(SetOutOfReach, match="quality.decontaminate: set 'gsm8k'"):
        probe_files(Quality(decontaminate=["gsm8k"]))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("nowhere.jsonl", "no such file, and no known set"),
        ("gsm9k", "known set .*gsm8k"),
        ("broken.jsonl", "broken.jsonl:2"),
        ("empty.jsonl", r"empty.jsonl:1: nothing to decontaminate against, wanted one of question"),
        ("list.jsonl", "one JSON array"),
    ],
)
def test_a_set_that_cannot_be_used_is_named(
    given: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.jsonl").write_text('{"question": "Fine?"}\n{"question\n')
    Path("empty.jsonl").write_text('{"number": 3}\n')
    Path("list.jsonl").write_text('[{"question": "Fine?"}]\n')
    with pytest.raises(DataError, match=told):
        Gate(Quality(decontaminate=[given]), 10, tmp_path / "index")
    assert not (tmp_path / "index").exists()
