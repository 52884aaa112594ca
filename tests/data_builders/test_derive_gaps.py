"""What is withheld from a problem read as text: a sentence or clause with one needed given, asked for by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nextturn.data_builders.gaps import task_from
from nextturn.data_builders.tasks import Gap, Task
from nextturn.data_builders.text import balanced, stands_in
from nextturn.probe.sets import Problem, read_problems

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
EVERY = 8  # one problem in so many of the real files
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


@pytest.mark.parametrize(
    ("question", "left", "ask"),
    [
        ("Bo has a bag of 12 marbles. Half are red. How many are red?",
         "Bo has a bag of marbles. Half are red. How many are red?", "How many marbles are in the bag?"),
        ("Ann shares it with her 12 friends. How much does each get?",
         "Ann shares it with her friends. How much does each get?", "How many friends are there?"),
        ("The 12 boats in the harbor have sails. How many sails?",
         "The boats in the harbor have sails. How many sails?", "How many boats are there?"),
    ],
)  # fmt: skip
def test_a_number_goes_with_the_words_that_state_it(question: str, left: str, ask: str) -> None:
    found = gap(plain(question, "It is 12 * 90 = 1080."), "12")
    assert (found.question, found.ask) == (left, ask)
    assert found.clause[0].islower() and "12" in found.reveal and "12" in found.short


@pytest.mark.parametrize(
    "question",
    [
        "A bag of 9 chips holds 3 tan, 2 pink and 4 violet ones. What is the chance of a tan chip?",
        "All 25 people are 10 women and fifteen men. How many pairs are there?",
        "The 7 children are four girls and 3 boys. How many rows can they form?",
    ],
)
def test_a_number_that_follows_from_the_others_is_not_missing(question: str) -> None:
    assert not plain(question, "It is 9 * 1 = 9, 25 * 24 = 600 and 7 * 6 = 42.").gaps


def test_a_rounded_step_is_not_undone() -> None:
    task = plain(
        "Bo cuts 10 m into 3 pieces. How long is one?", "So 10 / 3 = 3.33 m.\nThen 25 / 2 = 13.\nAnd 3 * 4 = 12."
    )
    assert [step.undone for step in task.steps] == ["", "", "12 / 4"]


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
def test_a_formula_goes_with_its_clause(question: str, value: str, left: str, ask: str) -> None:
    found = gap(
        latex(question, r"As $2^x = x + 4$, $a^2 = 17$, $x + 2y = 40$ and $x^2 + 1 = 10 \cdot 3$, with $17 \cdot 2$."),
        value,
    )
    assert (found.question, found.ask) == (left, ask)


@pytest.mark.parametrize(
    ("question", "solution"),
    [
        ("Bo has a bag of 40 marbles. How long is 3 * 4?", "It is 3 * 4 = 12."),  # not used
        ("Bo asks his 12 friends. Al asks 12 others. How many?", "They are 12 + 12 = 24."),  # stands twice
        ("Bo asks his 6 friends. All six friends come. How many?", "That is 6 * 4 = 24."),  # said again as a word
        ("There are 25 roses. There are 35 tulips. How many flowers?", "It is 25 + 35 = 60."),  # nobody would miss it
        ("He sells 12 muffins today. He sells another 4. How many?", "It is 12 + 4 = 16."),  # nor this
        ("Bo rolls a die with 12 sides. How many?", "It is 12 * 3 = 36."),  # no form that is known
    ],
)
def test_what_is_not_needed_or_would_not_be_missed_stays(question: str, solution: str) -> None:
    assert plain(question, solution).gaps == ()


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
def test_a_hole_that_would_show_is_not_made(question: str, gives: str, solution: str) -> None:
    assert latex(gives, solution).gaps and not latex(question, solution).gaps


def test_a_solution_that_counts_the_equations_withholds_none() -> None:
    question, solution = r"If $x + y = 25$ and $x - y = 3$, what is $xy$?", r"Take $x - y = 3$ and $x + y = 25$."
    assert latex(question, solution).gaps
    assert not latex(question, f"From the second equation $x = 14$. {solution}").gaps


def test_the_answer_itself_is_never_withheld() -> None:
    assert plain("Bo asks his 12 friends. How many?", "It is 12 * 1 = 12.", "12").gaps == ()


@pytest.mark.parametrize(
    "condition", ["$x > 3$", "$x \\neq 3$", "$(x, y) = (1, 2)$", "$x = 1, 2$", "$f(x + 1) = f(x)$", "$z = 17$"]
)
def test_domains_rows_and_names_of_which_nothing_is_left_are_not_withheld(condition: str) -> None:
    """Without "z = 17" nothing speaks of z, and nobody could ask for it."""
    assert latex(f"If {condition}, find $x^2 + y$.", f"As {condition}, it is $17 \\cdot 3$.").gaps == ()


# --- all of it, over the real files


@pytest.mark.parametrize("name", ["math", "gsm8k"])
def test_gaps_of_real_problems_withhold_one_thing_and_leave_a_text_that_reads(name: str) -> None:
    path = SHARED / name / "train.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    found_any = 0
    for problem in list(read_problems(path, name))[::EVERY]:
        for found in task_from(problem).gaps:
            found_any += 1
            said = (found.question, found.ask, found.clause)
            where = (problem.id, found)
            assert not any(stands_in(found.value, text) for text in (*said, found.thing)), where
            assert stands_in(found.value, found.reveal) and stands_in(found.value, found.short), where
            assert len(found.question) < len(problem.question) and all(text.strip() for text in said)
            assert not re.search(r"___|\[\?\]|\[formula|\[unreadable|\[image", found.question), "no placeholder"
            added = re.findall(r"\w+", found.question.lower())
            assert set(added) <= set(re.findall(r"\w+", problem.question.lower())), "nothing is put in its place"
            assert found.question[0].isupper() or not found.question[0].isalpha()
            assert not re.search(r",\s*[.?]|\s[.?,]\s*$|[a-z] [A-Z][a-z]+ [a-z]+ \$[^$]*\$\]", found.question), where
            assert found.ask.endswith("?") and found.ask[0].isupper() and "\n" not in found.ask
            named = re.findall(r"[A-Za-z]{4,}|\$[^$]+\$", found.ask)
            assert named and not re.search(r"\bnumber in\b|\"", found.ask), "by its name, not by its place"
            if name == "math":
                written = (*said, found.reveal, found.short)
                known = set(COMMAND.findall(problem.question))
                assert all(balanced(text) and set(COMMAND.findall(text)) <= known for text in written), where
    assert found_any > 5
