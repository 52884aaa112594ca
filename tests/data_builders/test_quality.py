"""The quality filter: each rule by its reason, leaks in any notation, near-duplicates and questions of the probe."""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nextturn.data_builders.duplicates import Checked
from nextturn.data_builders.quality import QualityFilter, all_boxed, holds, leak_fault, probe_files, states_part
from nextturn.data_builders.scripted import converse, plan
from nextturn.data_builders.sections import Conversations, Quality
from nextturn.data_builders.tasks import Conversation, Task
from nextturn.probe.command.errors import DataError, SetOutOfReach
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.questions.sets import PACKAGED
from nextturn.probe.text.grading import closes_asking
from support.conversations import conversation
from support.problems import tasks


def reasons(rows: Sequence[Conversation], **quality: Any) -> list[str | None]:
    quality_filter = QualityFilter(Quality(**quality), max(10, len(rows)))
    return [quality_filter.reason(each) for each in rows]


SUM, WAY, ASK = "What is 3 + 4?", "Then it is \\boxed{7}.", "What is x?"
LACKING = {"kind": "underspecified", "hidden": "4"}


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (conversation(SUM, "It is \\boxed{7}."), None),
        (conversation(SUM, "It is \\boxed{8}."), "answer_wrong"),
        (conversation(SUM, "Not \\boxed{8}, it is \\boxed{7}."), "answer_wrong"),
        (conversation(SUM, "It is 7."), "answer_missing"),
        (conversation(SUM, "\\boxed{7}", answer=""), "answer_missing"),
        (conversation(SUM, "\\boxed{7}", "Sure?", "It is \\boxed{8}."), "answer_wrong"),
        (conversation("What is half?", "\\boxed{0.5}", answer="\\frac{1}{2}"), None),
        (conversation("x?", "\\boxed{\\{2,1\\}}", answer="\\{1,2\\}"), None),
        (conversation(SUM), "roles"),
        (replace(conversation(SUM), messages=({"role": "user", "content": "a"},) * 2), "roles"),
        (conversation(SUM, "\\boxed{7}", " ", "\\boxed{7}"), "empty_turn"),
        (conversation(SUM, "Which base do you mean?", "10", WAY), "over_asking"),
        (conversation(SUM, "Which base do you mean?", "10", WAY, kind="replay"), "over_asking"),
        (conversation(SUM, "Why ask? It is \\boxed{7}."), None),
        (conversation(SUM, "\\boxed{7}. Clear?"), "closes_asking"),
        (conversation(SUM, "\\boxed{7}", "Why?", "3 + 4 = \\boxed{7}. Clear?"), "closes_asking"),
        (conversation(SUM, "\\boxed{7}", "Why?", "3 and 4 more. Clear?"), None),
        (conversation("3 + x?", "It is 3 + x.", "4", WAY, **LACKING), "no_question"),
        (conversation("3 + x?", ASK, "4", WAY, **LACKING), None),
        (conversation("3 + x?", "Is it \\boxed{7}?", "4", WAY, kind="underspecified"), "no_question"),
        (conversation("3 + x?", ASK, "Why?", WAY, "4", WAY, **LACKING, reveal_at=4), "answered_early"),
    ],
)
def test_each_rule_has_its_reason(made: Conversation, reason: str | None) -> None:
    assert reasons([made]) == [reason]


def test_questions_at_the_end_and_boxes_of_a_text() -> None:
    assert closes_asking("Here. Is it clear?") and closes_asking("Do you have it?\n\nI need it.")
    assert not closes_asking("How many are there? There are \\boxed{3}.")
    assert not closes_asking("Why? Since so. And so.") and not closes_asking("Is it? " + "No. " * 300)
    assert list(all_boxed("\\boxed{1} and \\fbox{2}, so \\boxed{\\frac{3}{4}}")) == ["\\frac{3}{4}", "1, 2"]
    assert not list(all_boxed("a box of 3"))


# --- Repeated rows.


def scripted(n: int) -> list[Conversation]:
    """Return conversations of every kind, every fifth one twice."""
    settings = Conversations()
    made = [converse(task, kind, 3, settings) for task in tasks()[:n] for kind in plan(task, 3, settings)]
    return [row for index, row in enumerate(made) for _ in range(1 + (index % 5 == 0))]


def test_too_many_rows_with_the_same_wording_are_rejected() -> None:
    rows = [conversation(f"Ann has {n} and 7?", "\\boxed{7}") for n in range(1, 6)]
    rows.append(conversation("Ann  has 1\nand 7?", "\\boxed{7}"))
    rows.append(conversation("Ann has 1 and 7?", "\\boxed{7}", kind="replay"))
    rows.append(conversation("Nobody has 1 and 7?", "It is \\boxed{7}"))
    found = reasons(rows, max_same_wording=0.01)
    assert found == [None] * 3 + ["same_wording"] * 2 + ["duplicate"] * 2 + [None]


def test_a_resumed_build_gives_the_same_reasons() -> None:
    def nearly(row: Conversation) -> Conversation:
        last = {"role": "assistant", "content": row.messages[-1]["content"] + " Done."}
        return replace(row, messages=(*row.messages[:-1], last))

    rows = [version for row in scripted(40) for version in (row, nearly(row))]
    quality = {"max_same_wording": 0.01, "near_duplicates": 0.6}
    whole = reasons(rows, **quality)
    assert {"duplicate", "near_duplicate", None} <= set(whole)
    for cut in (1, len(rows) // 3, len(rows) - 1):
        resumed = QualityFilter(Quality(**quality), len(rows))
        for row, reason in zip(rows[:cut], whole[:cut], strict=True):
            if reason is None:
                resumed.remember(row.messages, row.kind)
        assert [resumed.reason(row) for row in rows[cut:]] == whole[cut:]


# --- Leaks of the withheld fact.

GOAL = "How many of the marbles in the second bag are red or have a white stripe around them?"
DRAWING = '[asy]\ndraw((0,0)--(4,0)--(4,3)--cycle);\nlabel("$A$", (0,0), SW);\n[/asy]'


@pytest.mark.parametrize(
    ("text", "hidden", "found"),
    [
        ("It is 12.", "12", True),
        ("It is 112, 12.5, 0.12 or 1,128.", "12", False),
        ("$12$ of them, $x=12$", "12", True),
        ("It is 1,200.", "1200", True),
        ("It is $1{,}200$", "1,200", True),
        ("It is 1,200.", "200", False),
        ("take -3 here", "-3", True),
        ("so $f(x) = x^2+1$ it is", "$x^2 + 1$", True),
        ("so $f(x) = 2x^2+1$ it is", "$x^2 + 1$", False),
        ("so $f(x) = x^2+10$ it is", "$x^2 + 1$", False),
        ("\\[ \\dfrac{1}{2}\\left( x \\right) \\]", "\\frac12(x)", False),  # other braces are another text
        ("\\[ \\dfrac{1}{2}\\left( x\\, \\right) \\]", "$\\frac{1}{2} (x)$", True),
        (f"You want this: {GOAL.lower()}".replace("second ", "second\n"), GOAL, True),
        ("maximum", "max", False),
        ("anything", "$$", False),
    ],
)
def test_the_withheld_text_is_found_in_any_notation(text: str, hidden: str, found: bool) -> None:
    assert holds(text, hidden) is found


def test_a_part_of_a_long_text_counts_unless_the_user_said_it() -> None:
    assert states_part("Of the marbles in the second bag are red ones enough?", GOAL, "")
    assert states_part("Is it drawn as draw((0,0)--(4,0)--(4,3)--cycle)?", DRAWING, "")
    assert not states_part("So we look for marbles in the second bag that are red or have a white stripe?", GOAL, "")
    part = "marbles in the second bag are red or have a white stripe"
    assert states_part(f"You say {part}?", GOAL, "") and not states_part(f"You say {part}?", GOAL, f"I see {part}, yes")


@pytest.mark.parametrize(
    ("turns", "more", "reason"),
    [
        (("Some marbles?", "How many?", "It is 12.", WAY), {}, None),
        (("Some marbles?", "Are there 12?", "It is 12.", WAY), {}, "leak"),
        (("The 12 marbles?", "How many?", "It is 12.", WAY), {}, "not_withheld"),
        (("The 12 marbles?", 'You say "the 12 marbles".', "It is 12.", WAY), {}, "not_withheld"),
        (("Some?", "How many?", "Which?", "Is it 12?", "It is 12.", WAY), {"reveal_at": 4}, "leak"),
        (("12?", "12?", "12", WAY), {"hidden": ""}, None),
    ],
)
def test_the_first_who_states_it_is_named(turns: tuple[str, ...], more: dict[str, int], reason: str | None) -> None:
    assert leak_fault(conversation(*turns, **{"hidden": "12", **more})) == reason  # type: ignore[arg-type]


# --- Near-duplicates.

VOCABULARY = [f"{a}{b}" for a in "bcdfgklmnprst" for b in ("ab", "el", "im", "on", "ur")]


def text(seed: str, words: int = 120) -> str:
    rng = random.Random(f"near:{seed}")
    return " ".join(rng.choice(VOCABULARY) for _ in range(words))


def row(question: str, reply: str = "", kind: str = "complete") -> Conversation:
    return conversation(question, f"{reply} It is \\boxed{{7}}.", kind=kind)


def changed(words: str, every: int) -> str:
    """Return the text with each `every`-th word changed."""
    return " ".join(f"{word}x" if index % every == 0 else word for index, word in enumerate(words.split()))


TEXT, NEAR = text("told"), "near_duplicate"
FIGURE = "[asy]\n" + text("figure", 400) + "\n[/asy]"


@pytest.mark.parametrize(
    ("rows", "quality", "expected"),
    [
        ([row(TEXT), row(f"Hi! {TEXT}"), row(f"{TEXT} thanks a lot")], {}, [None, NEAR, NEAR]),
        ([row(TEXT), row(changed(TEXT, 10))], {}, [None, None]),
        ([row(TEXT), row(changed(TEXT, 10))], {"near_duplicates": 0.5}, [None, NEAR]),
        ([row(TEXT), row(f"Hi! {TEXT}")], {"near_duplicates": None}, [None, None]),
        # Another kind, as in contrast pairs; other numbers; other drawings; other operators.
        ([row(TEXT), row(f"Hi! {TEXT}", kind="wrong_start")], {}, [None, None]),
        ([row(TEXT), conversation(TEXT, "Which?", "7", "\\boxed{7}", kind="underspecified", hidden="7")], {}, [None, None]),
        ([row(TEXT), row(TEXT, kind="wrong_start"), row(TEXT.replace(" ", " \n\t"))], {}, [None, "duplicate", "duplicate"]),
        ([row(f"Ann has {n} bags of {n + 3} and gives {n - 1} away. How many?", f"{n} * {n + 3} = 7.") for n in (5, 8, 12)],
         {}, [None, None, None]),
        ([row(f"The graph of f(x) is shown. {FIGURE} Which is the graph of f(x {shift})?") for shift in ("+2", "-5")], {},
         [None, None]),
        ([row(f"$x {sign} y {sign} z {sign} w$ is to be found, and $y {sign} z$") for sign in "+-"], {}, [None, None]),
    ],
)  # fmt: skip
def test_near_duplicates(rows: list[Conversation], quality: dict[str, Any], expected: list[str | None]) -> None:
    assert reasons(rows, **quality) == expected


# --- Questions of the probe.

WORDS = re.findall(r"\w+", "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen")
WHOLE = Task("t", " ".join(WORDS) + "?", "7", "math", ())
SHORT = Task("t", "Find $\\cos  150^\\circ$.", "7", "math", ())
PHRASE = "enter your answer in the form a over b where both are whole numbers"


@pytest.mark.parametrize(
    ("probe", "made", "found"),
    [
        # Thirteen words in a row, of the problem or of a turn.
        ([" ".join(WORDS[:14])], conversation("So: " + ", ".join(WORDS[:13]).upper() + "?", "\\boxed{7}"), True),
        ([" ".join(WORDS[:14])], conversation(" ".join(WORDS[:12]) + "?", "\\boxed{7}"), False),
        ([" ".join(WORDS[:14])], conversation("What?", " ".join(WORDS[1:14]) + " \\boxed{7}"), True),
        # A question of fewer words as a whole: one in eight of MATH.
        (["Find $\\cos 150^\\circ$."], conversation("Find $\\cos 150^\\circ$.", "\\boxed{7}"), True),
        (["Find $\\cos 150^\\circ$."], conversation("hey. what is it?", "\\boxed{7}", task=SHORT), True),
        (["Find $\\cos 150^\\circ$."],
         conversation("Two", "\\boxed{7}", task=replace(SHORT, question="What is $1 + 1$?", whole_beside=SHORT.question)), True),
        (["Find $\\cos 150^\\circ$."], conversation("Find $-\\cos 150^\\circ$.", "\\boxed{7}"), False),
        (["Thank you!"], conversation("What is $1 + 1$?", "\\boxed{7}", "Thank you!", "Gladly."), False),
        # The problem, in all kinds, even if the messages say little of it.
        ([" ".join(WORDS)], conversation("Numbers", "\\boxed{7}", task=WHOLE), True),
        ([" ".join(WORDS)], conversation("Numbers", "Which?", "7", "\\boxed{7}", kind="underspecified", task=WHOLE), True),
        # A phrase that many questions share does not count; a drawing is one word.
        ([f"Number {i}: {PHRASE}." for i in range(11)], conversation(f"Something else. {PHRASE}?", "\\boxed{7}"), False),
        ([f"Number {i}: {PHRASE}." for i in range(11)], conversation(f"Number 3: {PHRASE}?", "\\boxed{7}"), True),
        (["Find $\\cos 150^\\circ$."] * 11, conversation("Find $\\cos 150^\\circ$.", "\\boxed{7}"), True),
        ([f"Find the area. {FIGURE}"], conversation(f"What is its perimeter? {FIGURE}", "\\boxed{7}"), False),
    ],
)  # fmt: skip
def test_contaminated_conversations(probe: list[str], made: Conversation, found: bool, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "probe.jsonl", [{"problem": question} for question in probe])
    expected = f"contaminated:{tmp_path.name}/probe.jsonl" if found else None
    assert reasons([made], decontaminate=[str(tmp_path / "probe.jsonl")]) == [expected]


@pytest.mark.parametrize(
    "fields",
    [
        {"Question": "TEXT", "Correct Answer": "x"},
        {"prompt": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "TEXT"}]},
        {"conversations": [{"from": "human", "value": "TEXT"}]},
        {"history": [{"user": "Hello", "bot": "TEXT"}]},
        {"prompt": functools.reduce(lambda inner, _: [inner], range(700), "TEXT")},
    ],
)
def test_probe_questions_are_read_in_every_form(tmp_path: Path, fields: dict[str, Any]) -> None:
    (tmp_path / "probe.jsonl").write_text(json.dumps(fields).replace("TEXT", WHOLE.question) + "\n")
    (reason,) = reasons([row(WHOLE.question.capitalize())], decontaminate=[str(tmp_path / "probe.jsonl")])
    assert reason is not None and reason.startswith("contaminated:")


def test_sets_are_counted_and_the_first_one_is_named(own_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write_jsonl(tmp_path / "a/test.jsonl", [{"question": " ".join(WORDS[:13])}, {"question": "Short?"}])
    write_jsonl(own_cache / "sets" / "gsm8k.jsonl", [{"question": " ".join(WORDS), "answer": "#### 7"}])
    sets = [str(tmp_path / "a/test.jsonl"), "gsm8k"]
    quality_filter = QualityFilter(Quality(decontaminate=sets), 10)
    assert quality_filter.checked == (Checked("a/test.jsonl", 2, 2), Checked("gsm8k", 1, 2))
    assert quality_filter.reason(row(" ".join(WORDS))) == "contaminated:a/test.jsonl"
    assert quality_filter.reason(row(" ".join(WORDS[1:]))) == "contaminated:gsm8k"


def test_a_gated_set_out_of_reach_is_left_out_and_any_other_an_error(own_cache: Path, capsys: Any) -> None:
    assert probe_files(["gpqa_diamond", "written_pairs"]) == PACKAGED
    assert "gpqa_diamond" in capsys.readouterr().out
    with pytest.raises(SetOutOfReach, match="quality.decontaminate: set 'gsm8k'"):
        probe_files(["gsm8k"])


def test_a_set_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").write_text('{"number": 3}\n')
    for name, message in (("gsm9k", "gsm9k: .*gsm8k"), ("empty.jsonl", "empty.jsonl:1: .*question")):
        with pytest.raises(DataError, match=message):
            QualityFilter(Quality(decontaminate=[name]), 10)
