"""What is withheld from a problem read as text: one needed thing, named in the problem's own words, and no more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from data_builders.gaps import task_from
from data_builders.tasks import Gap, Task
from data_builders.text import balanced, stands_in
from probe.sets import Problem, read_problems

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
EVERY = 12  # one problem in so many of the real files: enough to meet every form, quick enough for each run
COMMAND = re.compile(r"\\[a-zA-Z]+|\\.")


def plain(question: str, solution: str, answer: str = "99999") -> Task:
    """A problem as GSM8K writes it, where a dollar sign is money."""
    return task_from(Problem("p", question, answer, solution, "gsm8k"))


def latex(question: str, solution: str, answer: str = "99999") -> Task:
    return task_from(
        Problem("p", question, answer, f"{solution} So it is $\\boxed{{{answer}}}$.", "math", None, "Algebra")
    )


def gap(task: Task, value: str) -> Gap:
    return next(gap for gap in task.gaps if gap.value == value)


# --- numbers


@pytest.mark.parametrize(
    ("question", "ask", "thing"),
    [
        ("There are 12 boats in the harbor. How many sails?", "How many boats are there?", "the number of boats"),
        ("Each ticket costs $12. What is the bill?", "How much does each ticket cost?", "the price of each ticket"),
        ("Joe is 12 years old. How old is Bo?", "How old is Joe?", "the age of Joe"),
        ("The perimeter of a rectangle is 12 inches. What now?", "What is the perimeter of the rectangle?",
         "the perimeter of the rectangle"),
        ("A circle has radius 12. What is its area?", "What is the radius?", "the radius"),
        ("How much is left when 900 is divided by 12?", "By which number is it divided?", "the number it is divided by"),
    ],
)  # fmt: skip
def test_a_number_is_asked_for_by_its_own_name(question: str, ask: str, thing: str) -> None:
    found = gap(plain(question, "It is 12 * 90 = 1080."), "12")
    assert (found.kind, found.ask, found.thing) == ("number", ask, thing)
    assert found.clause[0].islower() and "12" in found.reveal


def test_a_number_without_a_name_is_asked_for_in_its_place() -> None:
    question, solution = "If a train drives 90 miles in 12 hours, what is its speed?", "It is 90 / 12 = 7.5."
    asks = {gap(task_from(Problem(str(i), question, "7.5", solution, "gsm8k")), "12").ask for i in range(40)}
    for ask in asks:
        assert re.search(
            r'"a train drives 90 miles in (some|a few|several|___|\[\?\]|\(\?\)|\[unreadable\]) hours"', ask
        ), ask
    assert len(asks) > 4


def test_a_number_is_left_vague_or_blank_and_can_be_another_one() -> None:
    task = plain("Kim has 12 pens and 5 boxes. How many in all?", "That is 12 + 5 = 17.")
    pens = gap(task, "12")
    assert re.fullmatch(
        r"Kim has (some|a few|several|___|\[\?\]|\(\?\)|\[unreadable\]) pens and 5 boxes\. How many in all\?",
        pens.question,
    )
    assert pens.short == "12 pens" and "12" in pens.reveal
    assert re.fullmatch(r"\d+ pens", pens.other) and pens.other != pens.short


def test_money_percentages_and_degrees_keep_their_signs() -> None:
    task = latex(
        r"A hat costs $\$15$, taxed at $20\%$, and the angle is $60^\circ$. What is it?",
        r"We get $15 \cdot \frac{20}{100} = 3$ and $60^\circ - 15^\circ = 45^\circ$.",
    )
    assert re.search(r"costs \\\$(___|\[\?\]),", gap(task, "15").question)
    assert re.search(r"at (___|\[\?\])\\%,", gap(task, "20").question)
    assert r"is $?^\circ$." in gap(task, "60").question
    assert [gap(task, value).short for value in ("15", "20", "60")] == [r"$\$15$", r"$20\%$", r"$60^\circ$"]


def test_a_number_word_is_withheld_where_some_reads() -> None:
    task = latex("How many ways can eight friends stand in a row?", "There are $8! = 40320$ ways.", "40320")
    found = gap(task, "eight")
    assert re.search(r"can (some|a few|several) friends stand", found.question)
    assert found.short == "eight friends" and found.other in ("seven friends", "nine friends")


@pytest.mark.parametrize(
    ("question", "solution"),
    [
        (
            "With 40 seconds left, Bo has 3 coins and Al has 3 coins. How many?",
            "They have 3 + 3 = 6.",
        ),  # 40 is not used
        ("Bo has 12 coins, and Al has 12 coins.", "They have 12 + 12 = 24."),  # stands twice
        ("Bo picks 3 cards, and all three cards are red.", "That is 3 * 4 = 12."),  # said again as a word
        ("Bo draws from a standard deck of 52 cards.", "There are 52 * 51 = 2652 ways."),  # everybody knows
        ("Bo walks a mile. Round to the nearest 15 feet.", "It is 15 * 4 = 60."),  # about the form of the answer
    ],
)
def test_numbers_that_are_not_needed_or_known_anyway_stay(question: str, solution: str) -> None:
    assert not [found for found in plain(question, solution).gaps if found.kind == "number"]


def test_the_answer_itself_is_never_withheld() -> None:
    task = plain("Bo has 12 coins and finds 30.", "He has 12 + 30 = 42, and 12 are old.", "12")
    assert [found.value for found in task.gaps if found.kind == "number"] == ["30"]


# --- formulas


def test_a_needed_formula_is_lost_as_a_whole_and_asked_for_by_its_place() -> None:
    task = latex(
        "What is the remainder when $7^{20} + 3$ is divided by $8$?", "Since $7^{20} + 3 = 49^{10} + 3$, we are done."
    )
    found = gap(task, "7^{20} + 3")
    lost = re.fullmatch(r"What is the remainder when (.+) is divided by \$8\$\?", found.question)
    assert lost and "$" not in lost.group(1)
    assert lost.group(1) in found.ask and found.short == "$7^{20} + 3$" and found.kind == "formula"
    task = latex("If $x + 2y = 40$, what is $3x + 6y$?", "Since $x + 2y = 40$, we have $3x + 6y = 120$.")
    assert re.search(r'"If [^$,]+"', gap(task, "x + 2y = 40").ask), "the quote ends where the question begins"


def test_domains_and_the_form_of_the_answer_are_not_withheld() -> None:
    task = latex(
        r"For $x > 0$ it can be written as $\frac{m}{n}$, where $m$ and $n$ are relatively prime. Find $m + n$.",
        r"Here $x > 0$ and $\frac{m}{n} = \frac{2}{3}$.",
    )
    assert not [found for found in task.gaps if found.kind == "formula" and found.value != "m + n"]


# --- all of it, over the real files


def real(name: str) -> list[Problem]:
    path = SHARED / name / "train.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return list(read_problems(path, name))[::EVERY]


@pytest.mark.parametrize("name", ["math", "gsm8k"])
def test_gaps_of_real_problems_withhold_one_thing_and_keep_latex_whole(name: str) -> None:
    for problem in real(name):
        for found in task_from(problem).gaps:
            said = (found.question, found.ask, found.clause, found.thing)
            assert not any(stands_in(found.value, text) for text in said), (problem.id, found)
            assert stands_in(found.value, found.reveal) and stands_in(found.value, found.short), (problem.id, found)
            assert found.question != problem.question and all(text.strip() for text in said)
            assert found.ask.endswith("?") and found.ask[0] == found.ask[0].upper()
            assert not any("\n" in text for text in said[1:])
            assert not found.other or not stands_in(found.value, found.other)
            if name == "math":
                written = (*said, found.reveal, found.short, found.other)
                known = {*COMMAND.findall(problem.question), r"\ldots"}
                assert all(balanced(text) and set(COMMAND.findall(text)) <= known for text in written), (
                    problem.id,
                    found,
                )


@pytest.mark.parametrize(("name", "gaps", "slips"), [("math", 0.6, 0.45), ("gsm8k", 0.85, 0.8)])
def test_most_real_problems_can_carry_most_kinds(name: str, gaps: float, slips: float) -> None:
    tasks = [task_from(problem) for problem in real(name)]
    assert sum(bool(task.gaps) for task in tasks) >= gaps * len(tasks)
    assert sum(bool(task.slips) for task in tasks) >= slips * len(tasks)


def test_the_same_problem_gives_the_same_task() -> None:
    problem = Problem("x", "Kim has 12 pens and 30 boxes. How many?", "42", "There are 12 + 30 = 42.", "gsm8k")
    assert task_from(problem) == task_from(problem)
    blanks = {
        task_from(Problem(str(i), problem.question, "42", problem.solution, "gsm8k")).gaps[0].question
        for i in range(20)
    }
    assert len(blanks) > 3, "the id decides the wording"
