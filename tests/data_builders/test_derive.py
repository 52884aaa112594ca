"""What rules derive from a problem's text: facts that can be withheld, steps, wrong results, and how the text is parsed."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextturn.data_builders.gaps import computed, task_from
from nextturn.data_builders.numbers import read, same_value, stands_in
from nextturn.data_builders.tasks import Task
from nextturn.probe.questions.sets import Problem
from nextturn.probe.questions.simulation import Fact


def plain(question: str, solution: str, answer: str = "99999") -> Task:
    """Return a problem in GSM8K's format, where a dollar sign is money."""
    return task_from(Problem("p", question, answer, solution, "gsm8k"))


def latex(question: str, solution: str, answer: str = "99999") -> Task:
    """Return a problem in MATH's format."""
    boxed = solution if "boxed" in solution else f"{solution} So it is $\\boxed{{{answer}}}$."
    return task_from(Problem("p", question, answer, boxed, "math", None, "Algebra"))


def gap(task: Task, value: str) -> Fact:
    return next(gap for gap in task.gaps if gap.value == value)


# --- Facts that can be withheld.


@pytest.mark.parametrize(
    ("question", "left", "ask"),
    [
        ("Bo has a bag of 12 marbles. Half are red. How many are red?",
         "Bo has a bag of marbles. Half are red. How many are red?", "How many marbles are in the bag?"),
        ("Ann shares it with her 12 friends. How much does each get?",
         "Ann shares it with her friends. How much does each get?", "How many friends are there?"),
        ("The 12 boats in the harbor have sails. How many sails?",
         "The boats in the harbor have sails. How many sails?", "How many boats are there?"),
        ("A group of 12 people goes to the zoo. How much do they pay?",
         "A group of people goes to the zoo. How much do they pay?", "How many people are in the group?"),
    ],
)  # fmt: skip
def test_a_number_is_cut_from_its_sentence(question: str, left: str, ask: str) -> None:
    found = gap(plain(question, "It is 12 * 90 = 1080."), "12")
    assert (found.question, found.ask) == (left, ask)
    assert found.clause[0].islower() and "12" in found.reveal and "12" in found.short


@pytest.mark.parametrize(
    ("question", "solution"),
    [
        ("Bo has a bag of 40 marbles. How long is 3 * 4?", "It is 3 * 4 = 12."),  # not used
        ("Bo asks his 12 friends. Al asks 12 others. How many?", "They are 12 + 12 = 24."),  # stated twice
        ("Bo asks his 6 friends. All six friends come. How many?", "That is 6 * 4 = 24."),  # stated again as a word
        ("There are 25 roses. There are 35 tulips. How many flowers?", "It is 25 + 35 = 60."),  # nobody would miss it
        ("He sells 12 muffins today. He sells another 4. How many?", "It is 12 + 4 = 16."),  # nor this number
        ("Bo rolls a die with 12 sides. How many?", "It is 12 * 3 = 36."),  # no known form
        ("Each of 30 kids brings their 2 parents. How many come?", "It is 30 * 2 = 60."),  # everybody has two
        ("A jar of 12 olives costs a coin. How many?", "It is 12 * 4 = 48."),  # a verb, not "olives costs"
        # The number follows from the others.
        (
            "A bag of 9 chips holds 3 tan, 2 pink and 4 violet ones. What is the chance of a tan chip?",
            "It is 9 * 1 = 9.",
        ),
        ("All 25 people are 10 women and fifteen men. How many pairs are there?", "It is 25 * 24 = 600."),
        ("The 7 children are four girls and 3 boys. How many rows can they form?", "It is 7 * 6 = 42."),
    ],
)
def test_a_number_that_is_not_needed_or_not_missed_stays(question: str, solution: str) -> None:
    assert plain(question, solution).gaps == ()


@pytest.mark.parametrize(
    ("question", "value", "left", "ask"),
    [
        ("If $x + 2y = 40$ and $y = 17$, what is $4x + 6y$?", "17", "If $x + 2y = 40$, what is $4x + 6y$?", "What is $y$?"),
        ("If $x + 2y = 40$ and $y = 17$, what is $4x + 6y$?", "x + 2y = 40", "If $y = 17$, what is $4x + 6y$?",
         "Which other equation holds for $x$ and $y$?"),
        ("Let $f(x) = x^2 + 1$. Find $f(3)$.", "x^2 + 1", "Find $f(3)$.", "What is $f(x)$?"),
        ("Find $x$ such that $2^x = x + 4.$", "2^x = x + 4", "Find $x$.", "Which equation holds for $x$?"),
        ("What is $3a$ when $a=17?$", "17", "What is $3a$?", "What is $a$?"),
        ("Let $a$ be a number such that\n\\[a^2 = 17.\\]Find $a^4.$", "a^2 = 17", "Let $a$ be a number. Find $a^4.$",
         "Which equation holds for $a$?"),
    ],
)  # fmt: skip
def test_a_formula_is_cut_with_its_clause(question: str, value: str, left: str, ask: str) -> None:
    found = gap(
        latex(question, r"As $2^x = x + 4$, $a^2 = 17$, $x + 2y = 40$ and $x^2 + 1 = 10 \cdot 3$, with $17 \cdot 2$."),
        value,
    )
    assert (found.question, found.ask) == (left, ask)


@pytest.mark.parametrize(
    ("question", "gives", "solution"),
    [
        # Would ask for what is asked for.
        ("Suppose $x = 2^3 + 1$. What is the value of $x$?", "Suppose $x = 2^3 + 1$. What is $x^2$?", "With $2^3 + 1$ it comes."),
        # "There was a positive integer." has lost its name.
        ("There was a positive integer such that $n^3 = 8$. Find $n^2$.", "Let $n$ be a number such that $n^3 = 8$. Find $n^2$.",
         "We use $n^3 = 8$."),
        # What is left has an answer of its own.
        ("Let $a$ and $b$ be positive numbers such that $a + b = 1$. Find the set of all possible values of $ab$.",
         "Let $a$ and $b$ be positive numbers such that $a + b = 1$. Find $a^2 + ab + b^2 + ab$.", "We use $a + b = 1$."),
        ("Let $x$ and $y$ be positive such that $x + y = 1$. Find the minimum value of\n\\[\\frac{1}{x} + \\frac{1}{y}.\\]",
         "Let $x$ and $y$ be positive such that $x + y = 1$. Find\n\\[\\frac{1}{x} + \\frac{1}{y}.\\]", "We use $x + y = 1$."),
        ("If $x + 2y = 6$, find the maximum value of $xy$.", "If $x + 2y = 6$, find $xy$.", "We use $x + 2y = 6$."),
        ("If $x + 2y = 6$, find all possible values of $x+y$.", "If $x + 2y = 6$, find $x+y$.", "We use $x + 2y = 6$."),
        ("If $x + 2y = 6$, find the maximum value of $xy + 1$.", "If $x + 2y = 6$, find $4y + 2x + 1$.", "We use $x + 2y = 6$."),
    ],
)  # fmt: skip
def test_a_cut_that_would_show_is_not_made(question: str, gives: str, solution: str) -> None:
    assert latex(gives, solution).gaps and not latex(question, solution).gaps


def test_neither_the_answer_nor_a_numbered_equation_is_withheld() -> None:
    assert plain("Bo asks his 12 friends. How many?", "It is 12 * 1 = 12.", "12").gaps == ()
    question, solution = (r"If $x + y = 25$ and $x - y = 3$, what is $xy$?", r"Take $x - y = 3$ and $x + y = 25$.")
    assert latex(question, solution).gaps
    assert not latex(question, f"From the second equation $x = 14$. {solution}").gaps


@pytest.mark.parametrize(
    "condition", ["$x > 3$", "$x \\neq 3$", "$(x, y) = (1, 2)$", "$x = 1, 2$", "$f(x + 1) = f(x)$", "$z = 17$"]
)
def test_a_condition_that_nobody_could_ask_for_stays(condition: str) -> None:
    assert latex(f"If {condition}, find $x^2 + y$.", f"As {condition}, it is $17 \\cdot 3$.").gaps == ()


# --- Steps and wrong results.

WORKED = (
    "Let $n$ be the number of ways. There are $4 \\cdot 5 = 20$ ways for the first two, and if $m = 21$ none.  Then\n"
    "\\[n = 20 + 5 = 25.\\]So $2n - 16 = \\boxed{34}$."
)


def test_a_mistake_is_an_intermediate_value_and_says_what_it_is() -> None:
    task = latex("Some people stand in line. How many ways are there?", WORKED, "34")
    assert [(wrong.answer, wrong.quote, wrong.did, wrong.at) for wrong in task.mistakes] == [
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
        ("What is the probability?", "There are $4 \\cdot 310 = 1240$ ways. So $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
        ("What is the probability?", "The ratio is $\\frac{3}{2} = \\frac{3}{2}$. So $\\boxed{\\frac{3}{4}}$.", "\\frac{3}{4}"),
        ("How many?", "We have $8 - 20 = -12$. So $\\boxed{12}$.", "12"),  # of another sign
        ("How many?", "We have $10 + 2.5 = 12.5$. So $\\boxed{12}$.", "12"),  # nobody counts 12.5
        ("How many?", "We have $100 + 20 = 120$. So $\\boxed{12}$.", "12"),  # of another size
    ],
)  # fmt: skip
def test_a_value_that_may_be_right_or_is_implausible_is_no_mistake(question: str, solution: str, answer: str) -> None:
    assert latex(question, solution, answer).mistakes == ()


def test_lines_of_a_plain_solution_give_steps_and_mistakes() -> None:
    task = plain(
        "How many?",
        "He used 15 gallons * 2 = 30 gallons.\nIn all 3 + 4 + 5 = 12 were sold.\nIt costs $20 x 15% = $3.50 then.\nSo 12 * 2 = 24.",
        "24",
    )
    assert [(wrong.answer, wrong.quote) for wrong in task.mistakes] == [("30", "15 × 2"), ("12", "3 + 4 + 5")]
    assert task.steps[0].equation == "15 * 2 = 30" and task.steps[3].equation == "12 * 2 = 24"
    rounded = plain(
        "Bo cuts 10 m into 3 pieces. How long is one?", "10 / 3 = 3.33 m.\nThen 25 / 2 = 13.\nAnd 3 * 4 = 12."
    )
    assert [step.undone for step in rounded.steps] == ["", "", "12 / 4"], "a rounded step is not undone"


def test_arithmetic_is_exact() -> None:
    assert computed("7 + 12 * 3") == 43 and computed("($7 - 12) / 3") == Fraction(-5, 3)
    assert computed(r"\frac{7}{12} \cdot 3") == computed("7/12*3") == Fraction(7, 4)
    assert computed("7 / 0") is None and computed("__import__('os')") is None


def test_values_are_compared_in_any_form() -> None:
    assert same_value(r"\frac{1}{2}", "0.5") and same_value("1,000", "1000")
    assert not same_value("12", "21") and not same_value("x", "y")
    assert stands_in("12", "has 12 pens") and not stands_in("12", "has 112 pens, 12.5 or 1,200")
    assert stands_in("eight", "Eight pens") and not stands_in("eight", "eighteen pens")
    assert stands_in("3x - 8", "$f(x)=3x-8$")


# --- Parsing.


def test_sentences_end_outside_formulas_and_after_displays() -> None:
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
def test_any_text_is_parsed_and_any_problem_becomes_a_task(text: str) -> None:
    found = read(text, latex=True)
    assert len(found.mask) == len(text)
    at = 0
    for formula in found.formulas:
        assert at <= formula.start and formula.inner in text[formula.start : formula.end]
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
def test_long_texts_are_parsed_without_backtracking(long: str) -> None:
    task_from(Problem("p", f"If {long} what is $y$?", "7", f"Since $x = 2$ {long} it is $\\boxed{{7}}$.", "math"))
    task_from(Problem("p", f"If {long} how much?", "7", f"It is {long} = 7.", "gsm8k"))
