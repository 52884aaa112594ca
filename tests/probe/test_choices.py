"""Questions with lettered options: the order, the right letter, and which letter a reply chose."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from string import ascii_uppercase as LETTERS
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextturn.probe.command.errors import DataError
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.engines.base import Completion
from nextturn.probe.measures.accuracy import grade_answer
from nextturn.probe.questions.sets import INSTRUCTION, Item, lettered, read_items, shown_in
from nextturn.probe.text.grading import lenient_letter, outcome, strict_letter

GPQA = {"Question": "How fast is it?\n", "Correct Answer": "8 m/s\n", "Record ID": "rec7"}
GPQA |= {f"Incorrect Answer {number}": text for number, text in enumerate(("4 m/s", " 2 m/s", "1 m/s"), start=1)}


def test_gpqa_columns_become_a_lettered_question(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "gpqa.jsonl", [GPQA])
    (item,) = read_items(tmp_path / "gpqa.jsonl")
    assert item.id == "rec7"
    assert sorted(item.options) == ["1 m/s", "2 m/s", "4 m/s", "8 m/s"]
    assert item.answer == LETTERS[item.options.index("8 m/s")]
    shown = "\n".join(f"({letter}) {text}" for letter, text in zip("ABCD", item.options, strict=True))
    assert item.messages == ({"role": "user", "content": f"How fast is it?\n\n{shown}\n\n{INSTRUCTION}"},)
    assert read_items(tmp_path / "gpqa.jsonl", "Be brief.")[0].messages[0]["content"].endswith("{}.\n\nBe brief.")


@pytest.mark.parametrize(
    "row",
    [
        {"choices": ["x", "y", "z"], "answer": 1},
        {"choices": ["x", "y", "z"], "answer": "y"},
        {"options": {"A": "x", "B": "y", "C": "z"}, "answer": "B"},
        {"choices": {"label": ["1", "2", "3"], "text": ["x", "y", "z"]}, "answer": "2"},
        {"A": "x", "B": "y", "C": "z", "D": None, "answer": "B"},
        {"option_a": "x", "option_b": "y", "option_c": "z", "answer": "y"},
        {"opa": "x", "opb": "y", "opc": "z", "opd": float("nan"), "answer": 1},
        {"choices": ["a. x", "b. y", "c. z"], "answer": "B"},
        {"choices": ["(A) x", "(B) y", "(C) z"], "answer": "(B) y"},
        {"choices": ["x", "y", "z"], "answer": ["y"]},
    ],
)
def test_the_answer_may_be_letter_number_label_or_text(row: dict[str, Any]) -> None:
    found = lettered(row, "Q?", "id", "f:1")
    assert found is not None and found.letter is not None
    assert found.options[LETTERS.index(found.letter)] == "y"


@pytest.mark.parametrize(
    ("options", "answer", "shown"),
    [
        (["4 m", "6 m", "8 m", "None of the above"], "D", None),
        (["iron", "zinc", "both (A) and (B)", "tin"], "C", None),
        (["red", "blue", "A or B", "neither A nor B"], "A", None),
        (["A: 4", "B: 6", "C: 8", "D: 9"], "C", ["4", "6", "8", "9"]),
        (["K", "B", "E", "D"], "B", None),
    ],
)
def test_letters_that_mean_something_stay_where_they_are(options: list[str], answer: str, shown: Any) -> None:
    for identity in "abcdef":
        found = lettered({"choices": options, "answer": answer}, "Q?", identity, "f:1")
        assert found is not None and (list(found.options), found.letter) == (shown or options, answer)


def test_a_question_without_an_answer_is_asked_nevertheless(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "s.jsonl", [{"question": "Q?", "choices": ["x", "y"]}, {"question": "R?", "choices": None, "answer": "5"}])  # fmt: skip
    first, second = read_items(tmp_path / "s.jsonl")
    assert (first.answer, sorted(first.options)) == (None, ["x", "y"])
    assert (second.answer, second.options) == ("5", ())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"choices": ["x", "y"], "answer": 2}, "2 names none"),
        ({"choices": ["x", "y"], "answer": True}, "True names none"),
        ({"choices": ["x", "x"], "answer": "x"}, "'x' names several"),
        ({"choices": ["x"], "answer": "A"}, r"expected 2 to 26 options in a list, given \['x'\]"),
        ({"choices": ["x", ""], "answer": "A"}, "an option is ''"),
        ({"choices": ["E", "B", "A"], "answer": "A"}, "'A' names several"),
        ({"choices": ["3", "2", "1"], "answer": 1}, "1 names several"),
        ({"choices": ["x", "y", "z"], "answer": 3}, "3 names none"),
        ({"A": "x", "B": "y", "D": "z", "answer": "A"}, "options A, B, D"),
        ({"option_a": "x", "option_b": ["y"], "answer": "A"}, r"an option is \['y'\]"),
    ],
)
def test_options_that_cannot_be_asked_are_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    """Options that cannot be asked are named by file and line."""
    write_jsonl(tmp_path / "s.jsonl", [{"question": "Q?", **row}])
    with pytest.raises(DataError, match=rf"s\.jsonl:1: .*{message}"):
        read_items(tmp_path / "s.jsonl")


OPTIONS = st.lists(st.text(alphabet="abcxyz 019", min_size=1, max_size=8).filter(str.strip), min_size=2, max_size=10)


@given(OPTIONS, st.data(), st.text(max_size=6))
def test_shuffling_keeps_every_option_and_the_right_one(options: list[str], data: Any, identity: str) -> None:
    right = data.draw(st.integers(0, len(options) - 1))
    row = {"Correct Answer": options[right]}
    wrong = [option for place, option in enumerate(options) if place != right]
    row |= {f"Incorrect Answer {number}": option for number, option in enumerate(wrong, start=1)}
    found = lettered(row, "Q?", identity, "f:1")
    assert found is not None and found.letter is not None
    assert Counter(found.options) == Counter(" ".join(option.split()) for option in options)
    assert found.options[LETTERS.index(found.letter)] == " ".join(options[right].split())
    assert found == lettered(row, "Q?", identity, "f:1"), "the same order in every run"


@pytest.mark.parametrize(
    ("question", "answer", "options"),
    [
        ("Which?\n(A) Line\n(B) Circle\n(C) Plane", r"\text{(C)}", ("Line", "Circle", "Plane")),
        ("Find\n\\[z = c.\\](A) Line\n(B) Circle\n\nEnter the letter.", "B", ("Line", "Circle")),
        ("Which?\n\nA. 10\nB. 8\nC. 5", "A", ("10", "8", "5")),
        ("Which?\n\n$\\bullet$ A) 10\n\n$\\bullet$ B) 8", "(B)", ("10", "8")),
        ("Which?\n(A) Line\n(B) Circle", "D", None),
        ("Which?\n(A) Line\n(C) Circle", "C", None),
    ],
)
def test_options_in_the_question_are_read(question: str, answer: str, options: Any) -> None:
    found = shown_in(question, answer)
    assert (found.options if found else None) == options
    if found:
        assert found.text == question
        assert found.letter == re.sub(r"\\text|\W", "", answer)


TEXTS = ("4 m/s", "8 m/s", "The proton moves left", "vitamin C")
MARKED = [
    (r"\boxed{(B)}", "B"), (r"\boxed{b}", "B"), (r"\boxed{8 m/s}", "B"), (r"\boxed{B. 8 m/s}", "B"),
    (r"\boxed{\text{Option B}}", "B"), (r"\boxed{D: vitamin C}", "D"), (r"\boxed{\textbf{(C)}\ The proton moves left}", "C"),
    ("**Answer:** B", "B"), ("answer: b", "B"), ("Answer: B) 8 m/s", "B"), ("ANSWER: $B$", "B"), ("Answer:\n\n**B**", "B"),
    ("Answer: A is right", "A"), ("Answer: option C", "C"), (r"Answer: \text{(B)}", "B"), ("So it is **(B) 8 m/s**", "B"),
    (r"It is $\textbf{B}$.", "B"), ("#### (B) The proton moves left", "B"), ("Answer: B\n\n#### Explanation\nA is wrong.", "B"),
    ("Answer: A\nNo, wait.\nAnswer: C", "C"), (r"Answer: A. Then \boxed{D}", "D"),
    ("Best option: B\nWhy not D? D is slow.", "B"), ("**Right choice: B**\n\nD is slow.", "B"), ("Choice: B. D would be slow.", "B"),
    (r"\boxed{A} was my first thought. Answer: C", "C"), (r"<think>\boxed{A}?</think> \boxed{B}", "B"),
]  # fmt: skip
UNMARKED = [
    ("the answer is: (d)", "D"), ("The correct option is A because it is slow.", "A"), ("So A.", "A"), ("(A)", "A"),
    ("The answer is A. No: the answer is C.", "C"), ("Option A is wrong, so it must be option B.", "B"), (r"The answer is \textbf{B} since it is fast.", "B"),
    (r"$\textbf{C}$ is correct, A is not.", "C"), ("<think>A?</think>I say B", "B"), ("The answer is not A but B", "B"),
    ("We rule out A and B, so C is correct.", "C"), ("The answer is B. Shall I explain why A is wrong?", "B"),
    ("I would say C. Is it A?", "C"), ("the proton **moves left**, I think: THE  PROTON moves left", "C"),
    ("Not 4 m/s but 8 m/s.", "B"), ("Vitamin C", "D"),
    ("I take B over D.", "B"), ("Take B rather than option D.", "B"), ("Look at each option:\n\nA. It is slow.\n\nSo I say C.", "C"),
    ("答案是A。D不对", "A"), ("所以选择C选项", "C"), ("答えはAです。", "A"), ("정답은 D입니다.", "D"), ("应该是(B)。", "B"),
    # Prose, variables, functions, names, and two letters at once are no choice.
    ("A proton moves. A 5 kg mass falls.", None), ("I think I know.", None), ("The field is B = 3 T", None), ("P(A) is large", None),
    ("f(B) = 2, so C^2 = 4", None), ("A's mass", None), ("The answer is A or B.", None), ("C and D are wrong.", None),
    ("The U.S.A. is a country", None), ("18 m/s", None), ("Answer: A, B", None), ("Answer: (A) and (C)", None),
    (r"\boxed{A, C}", None), (r"\boxed{E}", None), ("Answer: a proton is there", None), (r"The field $\mathbf{B}$ is strong", None),
    (r"<think>\boxed{A}, or B", None),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "letter", "marked"), [(*m, True) for m in MARKED] + [(*u, False) for u in UNMARKED])
def test_both_readings_of_a_letter(reply: str, letter: str | None, marked: bool) -> None:
    """A marked letter is read by both readings and another leniently."""
    assert strict_letter(reply, TEXTS) == (letter if marked else None)
    assert lenient_letter(reply, TEXTS) == letter


WORDS = st.lists(st.sampled_from(["proton", "car", "falls", "red", "slowly", "of", "to"]), min_size=1, max_size=6)


@given(st.lists(WORDS, min_size=1, max_size=4))
def test_the_article_is_never_the_letter_a(phrases: list[list[str]]) -> None:
    prose = " ".join(f"A {' '.join(words)}." for words in phrases)
    for reply in (prose, f"Answer: {prose}", f"The answer is {prose}"):
        assert lenient_letter(reply, ("x1", "x2", "x3", "x4")) is None


FORMS = [r"\boxed{{{}}}", r"\boxed{{({})}}", r"\(\boxed{{\text{{{}}}}}\)", "Answer: {}", "**Answer:** ({})", "#### {}"]


@given(st.sampled_from("ABCD"), st.sampled_from(FORMS), st.text(alphabet="abc ABD.?!\n(){}*", max_size=40))
def test_a_mark_at_the_end_beats_whatever_stands_before(letter: str, form: str, before: str) -> None:
    reply = f"{before}\n{form.format(letter)}"
    assert strict_letter(reply, TEXTS) == letter
    assert lenient_letter(reply, TEXTS) == letter
    assert outcome(reply, True, TEXTS) == "answered"


@pytest.mark.parametrize(
    ("reply", "truncated", "kind"),
    [
        (r"\boxed{B}", True, "answered"),
        ("Which pressure is meant? Then I can choose between A and B.", False, "asked"),
        ("So which is it? It is B.", False, "answered"),
        ("I do not know.", False, "no_answer"),
        ("<think>It is B, or", True, "truncated"),
        ("<think>It is B.</think>Which unit do you mean?", False, "asked"),
    ],
)
def test_the_class_of_a_reply(reply: str, truncated: bool, kind: str) -> None:
    assert outcome(reply, truncated, TEXTS) == kind


def test_accuracy_grades_an_item_with_options_by_letter() -> None:
    item = Item("1", ({"role": "user", "content": "Q?"},), "B", options=TEXTS)

    def graded(text: str, finish: Any = "stop") -> tuple[Any, ...]:
        row = grade_answer(item, Completion(text, 5, finish))
        return row["reference"], row["extracted"], row["strict"], row["lenient"], row["outcome"]

    assert graded(r"\boxed{B}") == ("B", "B", True, True, "answered")
    assert graded("It goes at 8 m/s.") == ("B", "B", False, True, "answered")
    assert graded("There are 3 of them: A") == ("B", "A", False, False, "answered")
    assert graded("Hm, 42", "length") == ("B", None, False, False, "truncated")
    assert graded("There are 3 of them: B", "length") == ("B", None, False, False, "truncated")
