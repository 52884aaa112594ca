"""Scripted conversations about problems that are only text: GSM8K-like lines, and LaTeX that goes through unchanged."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextturn.data_builders.gaps import task_from
from nextturn.data_builders.problems import Problems, Source
from nextturn.data_builders.quality import holds
from nextturn.data_builders.scripted import Conversation, Conversations, Kind, converse, plan
from nextturn.data_builders.tasks import Gap, Slip, Step, Task
from nextturn.probe.grading import asks, boxed
from nextturn.probe.sets import Problem

TALKATIVE = Conversations(reactions=1.0)
MATH = Path(__file__).resolve().parents[3] / "shared" / "data" / "math" / "train.jsonl"
needs_math = pytest.mark.skipif(not MATH.is_file(), reason="needs ../shared/data/math/train.jsonl")

START = r"Let $M = \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$ with $x \neq 0$. "
REST = r"Then $3 \times 5 = 15$. So $\frac{15}{9} = \frac{5}{3}$, and the answer is $\boxed{\frac{5}{3}}$."
QUESTION = r"Let $f(2) = 5$ where $x \neq 0$. It's known that I is $\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$. Find $\frac{f(2)}{3}$."
WHOLE = Task(
    "p", QUESTION, r"\frac{5}{3}", "math",
    (Step(START.strip()), Step(r"Then $3 \times 5 = 15$."), Step(r"So $\frac{15}{9} = \frac{5}{3}$, and so on.")),
    gaps=(
        Gap(QUESTION.replace("$f(2) = 5$ where ", ""), "what $f(2)$ is", "What is $f(2)$?", "It's $f(2) = 5$.", "$f(2) = 5$",
            "$f(2) = 5$", "the value of $f(2)$"),
    ),
    slips=(Slip(1, "", "15", r"$3 \times 5$"),),
    boxed_solution=START + REST, asked=r"Find $\frac{f(2)}{3}$.",
)  # fmt: skip


@given(st.sampled_from(get_args(Kind)), st.integers(0, 10**6))
def test_latex_goes_through_unchanged(kind: Kind, seed: int) -> None:
    """Every formula that stands in a message is one of the problem's own, also where the user types in a hurry."""
    conversation = converse(WHOLE, kind, seed, TALKATIVE)
    messages = json.loads(json.dumps(conversation.messages))
    theirs = QUESTION + START + REST + r"$f(2)$ $\frac{5}{3}$ $15$ $3 \times 5$"
    for message in messages:
        for formula in re.findall(r"\$[^$]+\$", message["content"]):
            assert formula in theirs, formula
    said = "\n".join(message["content"] for message in messages)
    assert START + REST in said
    if kind != "underspecified":
        assert QUESTION in messages[0]["content"]
    assert [inside[1] for message in messages if (inside := boxed(message["content"]))] == [WHOLE.answer]
    for slot in ("{", "}"):
        assert said.count(slot) == sum(formula.count(slot) for formula in re.findall(r"\$[^$]+\$", said))


@given(st.text(alphabet=r"\{}$%_^&x1 .", min_size=1, max_size=60), st.integers(0, 1000))
def test_any_solution_text_survives_the_phrasing(text: str, seed: int) -> None:
    """Slots are filled once: braces and percent signs of a solution are never read as slots."""
    solution = f"{text} so it is $\\boxed{{7}}$."
    task = task_from(Problem("p", f"What is {text}?", "7", solution, "math"))
    conversation = converse(task, "complete", seed, TALKATIVE)
    assert f"What is {text}?" in conversation.messages[0]["content"]
    assert solution.strip() in conversation.messages[1]["content"]


# --- all of MATH's train problems, as the recipe builds them


@cache
def math_conversations() -> tuple[Conversation, ...]:
    problems = Problems(Source(kind="math", path=str(MATH)), 7)
    tasks = (problems[index] for index in range(0, len(problems), 10))
    how = Conversations(complete=0.3, underspecified=0.3, wrong_start=0.2, right_start=0.2)
    return tuple(converse(task, kind, 7, how) for task in tasks for kind in plan(task, 7, how))


@needs_math
def test_math_conversations_ask_where_something_is_missing_and_keep_solutions_word_for_word() -> None:
    for conversation in math_conversations():
        task, messages = conversation.task, conversation.messages
        assert task is not None
        assert not any("[asy]" in message["content"] for message in messages), "no code of a drawing in a turn"
        assert asks(messages[1]["content"]) == (conversation.kind == "underspecified"), conversation.id
        if conversation.gap:
            assert holds(messages[2]["content"], conversation.hidden)
            assert not any(holds(message["content"], conversation.hidden) for message in messages[:2])
            assert not re.search(r"___|\[\w+\]|\bsome\b.*\?", messages[1]["content"])
        replies = [message["content"] for message in messages if message["role"] == "assistant"]
        assert any(task.boxed_solution.strip() in text for text in replies)
        assert [inside[1] for text in replies if (inside := boxed(text))] == [task.answer], conversation.id


@needs_math
def test_math_users_meet_every_kind_and_their_results_are_right_as_often_as_wrong() -> None:
    kinds = Counter(conversation.kind for conversation in math_conversations())
    assert set(kinds) == set(get_args(Kind))
    assert 0.5 < kinds["right_start"] / kinds["wrong_start"] < 2
