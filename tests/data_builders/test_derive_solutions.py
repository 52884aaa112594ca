"""What a reference solution offers: wrong results on the way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextturn.data_builders.gaps import computed, task_from
from nextturn.data_builders.tasks import Task
from nextturn.data_builders.text import number, read, same_value, stands_in
from nextturn.probe.sets import Problem, read_problems

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
EVERY = 12


def latex(question: str, solution: str, answer: str) -> Task:
    return task_from(Problem("p", question, answer, solution, "math", None, "Counting & Probability"))


def plain(question: str, solution: str, answer: str) -> Task:
    return task_from(Problem("p", question, answer, solution, "gsm8k"))


WORKED = (
    "Let $n$ be the number of ways. There are $4 \\cdot 5 = 20$ ways for the first two, and if $m = 21$ none.  Then\n"
    "\\[n = 20 + 5 = 25.\\]So $2n - 16 = \\boxed{34}$."
)


def test_a_slip_is_a_value_on_the_way_and_says_what_it_is() -> None:
    task = latex("Some people stand in line. How many ways are there?", WORKED, "34")
    assert [(slip.answer, slip.quote, slip.did, slip.at) for slip in task.mistakes] == [
        ("20", "$4 \\cdot 5$", "", 1), ("25", "$20 + 5$", "", 2),
    ]  # fmt: skip
    assert task.asked == "How many ways are there?"


@pytest.mark.parametrize(
    ("question", "solution", "answer"),
    [
        ("Find $y$.", "If $6 + 7 = 13$, we fail. So $\\boxed{10}$.", "10"),  # assumed
        ("If $x = 13$, find $y$.", "Since $6 + 7 = 13$, fine. It is $\\boxed{10}$.", "10"),  # given
        ("Find it.", "We have $2 \\cdot 5 = 10$. So $\\boxed{10}$.", "10"),  # the answer
        ("Find it.", "We have $\\frac{20}{2} = 10.0$. So $\\boxed{10}$.", "10"),  # the answer in another form
        ("Find both.", "We have $x = 4 + 0 = 4$. So $\\boxed{(4, 5)}$.", "(4, 5)"),  # a part of the answer
        ("Which? (A) 4 (B) 5", "We have $2 + 2 = 4$. So $\\boxed{5}$.", "5"),  # an option's value
        ("Find it.", "First $6 + 6 = 12$ or $13$. So $\\boxed{15}$.", "15"),  # one of several
        ("Find it.", "First $12 \\cdot 2 = 23$. So $\\boxed{15}$.", "15"),  # false
        (
            "What is the probability?",
            "There are $4 \\cdot 310 = 1240$ ways. So $\\boxed{\\frac{1}{2}}$.",
            "\\frac{1}{2}",
        ),
        (
            "What is the probability?",
            "The ratio is $\\frac{3}{2} = \\frac{3}{2}$. So $\\boxed{\\frac{3}{4}}$.",
            "\\frac{3}{4}",
        ),
        ("How many?", "We have $8 - 20 = -12$. So $\\boxed{12}$.", "12"),  # of another sign
        ("How many?", "We have $10 + 2.5 = 12.5$. So $\\boxed{12}$.", "12"),  # nobody counts 12.5
        ("How many?", "We have $100 + 20 = 120$. So $\\boxed{12}$.", "12"),  # of another size
    ],
)
def test_what_may_be_right_or_that_nobody_would_believe_is_no_slip(question: str, solution: str, answer: str) -> None:
    assert latex(question, solution, answer).mistakes == ()


def test_lines_of_a_plain_solution_with_units_or_many_numbers_are_slips_too() -> None:
    task = plain(
        "How many?",
        "He used 15 gallons * 2 = 30 gallons.\nIn all 3 + 4 + 5 = 12 were sold.\nIt costs $20 x 15% = $3.50 then.\nSo 12 * 2 = 24.",
        "24",
    )
    assert [(slip.answer, slip.quote) for slip in task.mistakes] == [("30", "15 × 2"), ("12", "3 + 4 + 5")], (
        "3.50 is false"
    )
    assert task.steps[0].equation == "15 * 2 = 30"
    assert task.steps[3].equation == "12 * 2 = 24"


@given(st.integers(0, 500), st.integers(1, 40), st.integers(1, 9))
def test_plain_sums_are_computed_exactly(a: int, b: int, c: int) -> None:
    assert computed(f"{a} + {b} * {c}") == a + b * c
    assert computed(f"(${a} - {b}) / {c}") == (a - b) / c or number(f"{a - b}/{c}") == computed(f"({a} - {b})/{c}")
    assert computed(f"\\frac{{{a}}}{{{b}}} \\cdot {c}") == computed(f"{a}/{b}*{c}")
    assert computed(f"{a} / 0") is None and computed("__import__('os')") is None


def test_the_same_value_is_known_in_another_form() -> None:
    assert same_value(r"\frac{1}{2}", "0.5") and same_value("1,000", "1000")
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
def test_any_text_is_read_whole_and_any_problem_becomes_a_task(text: str) -> None:
    found = read(text, latex=True)
    assert len(found.mask) == len(text)
    at = 0
    for formula in found.formulas:
        assert at <= formula.start <= formula.left <= formula.right <= formula.end
        at = formula.end
    joined = "".join(text[slice(*pair)] for pair in found.sentences)
    assert re.sub(r"\s+", "", joined) == re.sub(r"\s+", "", text)
    task_from(Problem("p", f"What is {text}?", "7", f"{text} so it is $\\boxed{{7}}$.", "math"))
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


def test_slips_of_real_solutions_are_wrong_and_stand_there() -> None:
    path = SHARED / "math" / "train.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    found = 0
    for problem in list(read_problems(path, "math"))[::EVERY]:
        task = task_from(problem)
        for slip in task.mistakes:
            found += 1
            assert not same_value(slip.answer, problem.answer) and slip.answer in task.steps[slip.at].text
            assert slip.quote.strip("$") in task.steps[slip.at].text and task.asked in problem.question
            mine, right = number(slip.answer), number(problem.answer)
            assert mine is not None and right is not None and 0.4 <= mine / right <= 2.5
    assert found > 5
