"""What a reference solution offers: where it can be cut, formulas to point at, wrong results on the way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_builders.gaps import computed, task_from
from data_builders.tasks import Task
from data_builders.text import balanced, number, read, same_value, squeezed, stands_in, worth
from probe.sets import Problem, read_problems

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
EVERY = 12


def latex(question: str, solution: str, answer: str) -> Task:
    return task_from(Problem("p", question, answer, solution, "math", None, "Counting & Probability"))


def plain(question: str, solution: str, answer: str) -> Task:
    return task_from(Problem("p", question, answer, solution, "gsm8k"))


WORKED = (
    "Let $n$ be the number of ways. There are $4 \\cdot 3 = 12$ ways for the first two.  Then\n"
    "\\[n = 12 + 5 = 17.\\]So $2n = \\boxed{34}$."
)


def test_a_solution_is_cut_after_a_sentence_that_does_not_tell_the_answer() -> None:
    task = latex("How many?", WORKED, "34")
    assert task.start + task.rest == task.boxed_solution == WORKED
    assert task.start.startswith("Let $n$ be") and task.start.rstrip().endswith("first two.")
    assert task.topic == "counting and probability"
    assert plain("How many?", "It is 3 + 4 = 7.", "7").topic == "a word problem"


@pytest.mark.parametrize(
    "solution",
    [
        "It is $3 + 4 = \\boxed{7}$.",  # one sentence
        "The answer is clearly 7, since three and four make it. So $\\boxed{7}$.",  # tells the answer first
        "First: $\\boxed{7}$. Then we check that it is right indeed, which it is.",
    ],
)
def test_a_solution_that_cannot_be_cut_well_is_not(solution: str) -> None:
    task = latex("What is it?", solution, "7")
    assert (task.start, task.rest) == ("", "")


def test_pieces_are_equations_with_the_sentence_they_stand_in_and_the_one_before() -> None:
    pieces = latex("How many?", WORKED, "34").pieces
    assert [(piece.formula, piece.value) for piece in pieces] == [
        ("$4 \\cdot 3 = 12$", "12"),
        ("$n = 12 + 5 = 17$", "17"),
    ]
    assert pieces[0].before == "Let $n$ be the number of ways."
    assert pieces[0].line == "There are $4 \\cdot 3 = 12$ ways for the first two."


def test_rows_and_arrows_hold_several_pieces() -> None:
    solution = "\\begin{align*}\nx + 2y &= 8 \\\\\nx - y &= 2.\n\\end{align*}Hence $3y = 6 \\Rightarrow y = 2$, and the sum is $\\boxed{6}$."
    assert [piece.formula for piece in latex("Find it.", solution, "6").pieces] == [
        "$x + 2y = 8$", "$x - y = 2$", "$3y = 6$", "$y = 2$",
    ]  # fmt: skip


def test_a_slip_is_a_number_on_the_way_and_names_its_formula() -> None:
    slips = latex("How many?", WORKED, "34").slips
    assert [(slip.answer, slip.quote, slip.did) for slip in slips] == [
        ("12", "$4 \\cdot 3 = 12$", ""), ("17", "$n = 12 + 5 = 17$", ""),
    ]  # fmt: skip
    assert slips[0].at == 1


@pytest.mark.parametrize(
    ("question", "solution", "answer"),
    [
        ("Find $x$.", "We get $2x = 6$ if $x = 3$, so $\\boxed{10}$.", "10"),  # assumed
        ("If $x = 3$, find $y$.", "Since $x = 3$, it is $\\boxed{10}$.", "10"),  # given
        ("Find it.", "We have $2 \\cdot 5 = 10$, so $\\boxed{10}$.", "10"),  # the answer
        ("Find it.", "We have $\\frac{20}{2} = 10.0$, so $\\boxed{10}$.", "10"),  # the answer in another form
        ("Find both.", "We have $x = 4 + 0 = 4$, so $\\boxed{(4, 5)}$.", "(4, 5)"),  # a part of the answer
        (
            "Which? (A) 4 (B) 5",
            "We have $2 + 2 = 4$, so $\\boxed{\\text{(A)}}$.",
            "\\text{(A)}",
        ),  # the right option's value
        ("Write it in base 3.", "It is $4 + 1 = 5$, so $\\boxed{12_3}$.", "12_3"),
        ("Find it.", "It is $x^2 - 4 = 0$ with roots, so $\\boxed{2}$.", "2"),  # a condition, no result
    ],
)
def test_what_may_be_right_or_nobodys_result_is_no_slip(question: str, solution: str, answer: str) -> None:
    assert [slip for slip in latex(question, solution, answer).slips if slip.answer not in ("6",)] == []


def test_lines_of_a_plain_solution_with_units_or_many_numbers_are_slips_too() -> None:
    task = plain(
        "How many?",
        "He used 15 gallons * 0.2 = 3 gallons.\nIn all 3 + 4 + 5 = 12 were sold.\nIt costs $20 x 15% = $3.50 then.\nSo 12 * 2 = 24.",
        "24",
    )
    assert [(slip.answer, slip.quote) for slip in task.slips] == [("3", ""), ("12", "3 + 4 + 5 = 12")], "3.50 is false"
    assert task.steps[0].equation == "15 * 0.2 = 3"
    assert task.steps[3].equation == "12 * 2 = 24"


@given(st.integers(0, 500), st.integers(1, 40), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_plain_sums_are_computed_exactly(a: int, b: int, c: int) -> None:
    assert computed(f"{a} + {b} * {c}") == a + b * c
    assert computed(f"(${a} - {b}) / {c}") == (a - b) / c or number(f"{a - b}/{c}") == computed(f"({a} - {b})/{c}")
    assert computed(f"{b}% x {a}") == computed(f"{b}/100*{a}")
    assert computed(f"{a} / 0") is None and computed("__import__('os')") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,200", 1200), (r"\frac{3}{4}", 0.75), (r"-\dfrac12", -0.5), (r"45^\circ", 45), (r"12\text{ inches}", 12),
     (r"3\sqrt{2}", 18**0.5), (r"\frac{3 \pi}{4}", 2.356194490192345), ("2^{10}", 1024), (r"2 + \sqrt{3}", 3.732050807568877),
     ("x + 1", None), (r"5\frac{1}{2}", None), (r"3 \cdot 4", None), ("9^{9^{9}}", None)],
)  # fmt: skip
def test_short_closed_forms_are_worth_what_they_say(text: str, value: float | None) -> None:
    found = worth(text)
    assert found is None if value is None else found is not None and abs(found - value) < 1e-9


def test_the_same_value_is_known_in_another_form() -> None:
    assert same_value(r"\frac{1}{2}", "0.5") and same_value(r"\sqrt{8}", r"2\sqrt{2}") and same_value("1,000", "1000")
    assert not same_value("12", "21") and not same_value("x", "y")
    assert stands_in("12", "has 12 pens") and not stands_in("12", "has 112 pens, 12.5 or 1,200")
    assert stands_in("eight", "Eight pens") and not stands_in("eight", "eighteen pens")
    assert stands_in("3x - 8", "$f(x)=3x-8$")


# --- reading text


def test_sentences_end_outside_of_formulas_and_behind_displays() -> None:
    raw = (
        "Mr. Lee has $x = 3.$  He thinks of $[-1.5, 2.]$ e.g. often. Is it so? Then\n\\[y = 2.\\]Find $y.$\n\n"
        "[asy]\nlabel(\"A. B\");\n[/asy]\n\nIt costs \\$5. Done"
    )  # fmt: skip
    text = read(raw, latex=True)
    assert [raw[slice(*pair)] for pair in text.sentences] == [
        "Mr. Lee has $x = 3.$", "He thinks of $[-1.5, 2.]$ e.g. often.", "Is it so?", "Then\n\\[y = 2.\\]", "Find $y.$",
        '[asy]\nlabel("A. B");\n[/asy]', "It costs \\$5.", "Done",
    ]  # fmt: skip


@given(st.text(alphabet="\\{}[]()$%&=<>^_,.?! \nxA1abegindsy*/+-", max_size=200))
@settings(max_examples=400, deadline=None)
def test_any_text_is_read_whole_and_any_problem_becomes_a_task(text: str) -> None:
    found = read(text, latex=True)
    assert len(found.mask) == len(text)
    at = 0
    for formula in found.formulas:
        assert at <= formula.start <= formula.left <= formula.right <= formula.end
        at = formula.end
    joined = "".join(text[slice(*pair)] for pair in found.sentences)
    assert re.sub(r"\s+", "", joined) == re.sub(r"\s+", "", text)
    task = task_from(Problem("p", f"What is {text}?", "7", f"{text} so it is $\\boxed{{7}}$.", "math"))
    assert task.start + task.rest in ("", task.boxed_solution)
    task_from(Problem("p", f"Bo has 12 {text}?", "7", f"It is 12 + 3 = 15 {text}", "gsm8k"))


@pytest.mark.parametrize(
    "long",
    ["a = " * 1000, "(" * 2000, "1, " * 1500, "$x=1$ and " * 500, "12 pens and " * 500, "Kim and " * 1000, "{\\frac" * 750,
     "3 + " * 1200, "the the " * 1000, "\\\\ " * 1500, "x" * 5000, ". " * 2000],
)  # fmt: skip
def test_long_texts_without_an_end_are_read_in_reasonable_time(long: str) -> None:
    """Patterns that go back and forth over such a text would not come to an end."""
    task_from(Problem("p", f"If {long} what is $y$?", "7", f"Since $x = 2$ {long} it is $\\boxed{{7}}$.", "math"))
    task_from(Problem("p", f"If {long} how much?", "7", f"It is {long} = 7.", "gsm8k"))


# --- over the real files


def test_real_solutions_are_cut_and_quoted_word_for_word() -> None:
    path = SHARED / "math" / "train.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    tasks = [(problem, task_from(problem)) for problem in list(read_problems(path, "math"))[::EVERY]]
    for problem, task in tasks:
        assert task.start + task.rest == (problem.solution if task.start else "")
        assert "boxed" not in task.start and not (task.start and stands_in(problem.answer, task.start))
        written = squeezed(re.sub(r"(?<!\\)&", "", problem.solution))
        for piece in task.pieces:
            assert 5 <= len(piece.formula) <= 60 and balanced(piece.formula)
            assert "\n" not in piece.formula and "boxed" not in piece.formula
            assert all(squeezed(side) in written for side in piece.formula.strip("$").split("="))
            assert piece.line in problem.solution and piece.before in problem.solution
        for slip in task.slips:
            assert not same_value(slip.answer, problem.answer) and slip.answer in slip.quote
            assert 0 <= slip.at < len(task.steps)
    assert sum(bool(task.start) for _, task in tasks) >= 0.55 * len(tasks)
    assert sum(bool(task.pieces) for _, task in tasks) >= 0.6 * len(tasks)
