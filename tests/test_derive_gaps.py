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
    ("question", "value", "ask", "thing"),
    [
        ("Kim bought 12 pens in April. How much is that?", "12", "How many pens did Kim buy in April?",
         "the number of pens Kim bought in April"),
        ("On Monday, the teacher sells 12 cups of tea. What does she get?", "12",
         "How many cups of tea does the teacher sell on Monday?", "the number of cups of tea the teacher sells on Monday"),
        ("Ann wants to buy 12 books. What then?", "12", "How many books does Ann want to buy?",
         "the number of books Ann wants to buy"),
        ("There are 12 boats in the harbor. How many sails?", "12", "How many boats are there in the harbor?",
         "the number of boats in the harbor"),
        ("Each ticket costs $12. What is the bill?", "12", "How much does each ticket cost?", "the price of each ticket"),
        ("Joe is 12 years old. How old is Bo?", "12", "How old is Joe?", "the age of Joe"),
        ("The pole is 12 feet tall. How tall is its shadow?", "12", "How many feet tall is the pole?", "the height of the pole"),
        ("The perimeter of a rectangle is 12 inches. What now?", "12", "What is the perimeter of the rectangle?",
         "the perimeter of the rectangle"),
        ("A circle has radius 12. What is its area?", "12", "What is the radius of the circle?", "the radius of the circle"),
        ("How much is left when 900 is divided by 12?", "12", "Divided by which number?", "the number it is divided by"),
        ("The shop has 50 hats and 12% of the hats are red. How many?", "12", "What percentage of the hats is it?",
         "the percentage of the hats"),
    ],
)  # fmt: skip
def test_a_number_is_asked_for_by_its_own_name(question: str, value: str, ask: str, thing: str) -> None:
    found = gap(plain(question, "It is 12 * 90 = 1080."), value)
    assert (found.kind, found.ask, found.thing) == ("number", ask, thing)
    assert found.clause[0].islower() and "12" in found.reveal


def test_a_number_without_a_name_is_asked_for_in_its_place() -> None:
    question, solution = "A train drives 90 miles in 12 hours. What is its speed?", "It is 90 / 12 = 7.5."
    tasks = [task_from(Problem(str(i), question, "7.5", solution, "gsm8k")) for i in range(60)]
    asks = {gap(task, "12").ask for task in tasks}
    assert "A train drives 90 miles in how many hours?" in asks
    assert any('"A train drives 90 miles in ' in ask for ask in asks), "or quoted"


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


@pytest.mark.parametrize(
    ("question", "value", "ask", "kind"),
    [
        ("If $x = 5$, what is $x^2 + 3x$?", "5", "What is the value of $x$?", "number"),
        ("If $AB = 12$ and $BC = 5$, find $AC$.", "12", "How long is $AB$?", "number"),
        (r"In triangle $ABC$, $\angle A = 40^\circ$ and $AB = AC$. Find $\angle B$.", r"40^\circ", r"How large is $\angle A$?", "number"),
        ("Let $f(x) = 3x - 8$. What is $f(f(2))$?", "3x - 8", "How is $f(x)$ defined?", "formula"),
        ("If $a + b = 10$ and $ab = 21$, find $a^2 + b^2$.", "10", "What does $a + b$ equal?", "number"),
        ("The line $y = 2x + 7$ meets the axis where?", "2x + 7", "What is the equation of the line?", "formula"),
    ],
)  # fmt: skip
def test_the_right_side_of_a_condition_is_withheld(question: str, value: str, ask: str, kind: str) -> None:
    task = latex(
        question, f"We use $x = 5$, $AB = 12$, $40^\\circ$, $f(2) = 3x - 8$, $a + b = 10$, $2x + 7$ and $z = {value}$."
    )
    found = next(found for found in task.gaps if found.kind == kind and value in found.value)
    assert found.ask == ask
    assert value in found.short and value in found.reveal


def test_a_condition_is_blanked_or_left_out_so_that_the_sentence_reads() -> None:
    seen = {
        gap(task_from(Problem(f"p{i}", text, "7", f"Here ${inner}$, so $\\boxed{{7}}$.", "math")), value).question
        for i in range(12)
        for text, inner, value in (
            ("Let $f(x) = 3x - 8$. Find $f(5)$.", "3x - 8", "3x - 8"),
            ("If $x = 25$, what is $2x$?", "x = 25", "25"),
            ("If $a = 20$ and $b = 30$, what is $ab$?", "a = 20, b = 30", "30"),
        )
    }
    assert {"Find $f(5)$.", "What is $2x$?", "If $a = 20$, what is $ab$?"} <= seen
    blanks = [text for text in seen if len(text) > 28]
    assert all(
        re.search(r"\?\$|\\ldots\$|___|\(can't read this part\)|\[cut off\]|\[missing\]", text) for text in blanks
    )


def test_a_command_loses_its_object_and_a_noun_its_formula() -> None:
    simplify = latex("Simplify $(3x^2 + 2)^2 - 9x^4$.", "It is $12x^2 + 4$.", "12x^2 + 4").gaps[0]
    assert simplify.ask == "Which expression should I simplify?" and "$" not in simplify.question
    found = {
        task_from(Problem(str(i), "Find the vertex of the parabola $4y = x^2 - 6x$.", "3", "Use $x^2 - 6x = 4y$: $\\boxed{3}$.", "math"))
        .gaps[0].question: i
        for i in range(12)
    }  # fmt: skip
    assert "Find the vertex of the parabola." in found, "the whole equation is gone"
    assert any(text.startswith("Find the vertex of the parabola $4y =") for text in found), "or its right side"


def test_any_other_needed_formula_is_lost_and_asked_for_by_its_place() -> None:
    task = latex(
        "What is the remainder when $7^{20} + 3$ is divided by $8$?", "Since $7^{20} + 3 = 49^{10} + 3$, we are done."
    )
    found = gap(task, "7^{20} + 3")
    lost = re.fullmatch(r"What is the remainder when (.+) is divided by \$8\$\?", found.question)
    assert lost and "$" not in lost.group(1)
    assert lost.group(1) in found.ask and found.short == "$7^{20} + 3$"


def test_domains_and_the_form_of_the_answer_are_not_withheld() -> None:
    task = latex(
        r"For $x > 0$ it can be written as $\frac{m}{n}$, where $m$ and $n$ are relatively prime. Find $m + n$.",
        r"Here $x > 0$ and $\frac{m}{n} = \frac{2}{3}$.",
    )
    assert not [found for found in task.gaps if found.kind == "formula" and found.value != "m + n"]


# --- the goal and the figure


def test_the_question_is_left_off_where_the_rest_stands_alone() -> None:
    task = latex(
        "In triangle $ABC$, the sides are all equal. The area is $9$. What is the perimeter? Express your answer as a root.",
        "It is $9 \\cdot 4$.",
    )
    found = next(found for found in task.gaps if found.kind == "goal")
    assert found.question == "In triangle $ABC$, the sides are all equal. The area is $9$."
    assert found.value == found.reveal == "What is the perimeter? Express your answer as a root."
    assert "triangle $ABC$" in found.ask and found.thing == "the question about triangle $ABC$"


@pytest.mark.parametrize(
    "question",
    [
        "What is the sum of the first ten primes?",  # nothing is left
        "Each sum is odd. What is $a$? And what is $b$ if the triangle is small?",  # asks twice
        "A bag holds ten balls. Which is it? (A) one (B) two",  # options belong to the question
        "A triangle is such that: What is its area?",
    ],
)
def test_a_goal_is_kept_where_the_rest_would_not_stand(question: str) -> None:
    assert not [found for found in latex(question, "It is $5$.").gaps if found.kind == "goal"]


ASY = '[asy]\ndraw((0,0)--(1,0));\nlabel("$A$", (0,0), S);\n[/asy]'


def test_the_one_drawing_that_the_text_speaks_of_is_left_off() -> None:
    task = latex(f"In the diagram, the square has side $AB$. What is its area?\n\n{ASY}", "It is $AB^2$.")
    found = next(found for found in task.gaps if found.kind == "figure")
    assert found.question == "In the diagram, the square has side $AB$. What is its area?"
    assert found.value == ASY and ASY in found.reveal and "diagram" in found.ask
    beside = latex(f"A square has side $AB$. What is its area?\n\n{ASY}", "It is $AB^2$.")
    assert not [found for found in beside.gaps if found.kind == "figure"], "nothing says that the drawing is needed"


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


@pytest.mark.parametrize(("name", "gaps", "slips"), [("math", 0.75, 0.45), ("gsm8k", 0.85, 0.8)])
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
