"""Scripted conversations about problems that are only text: GSM8K-like lines, and LaTeX that goes through unchanged."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_builders.gaps import task_from
from data_builders.problems import Problems, Source
from data_builders.scripted import Conversation, Conversations, Kind, converse, plan, possible_kinds
from data_builders.tasks import Gap, Piece, Slip, Step, Task
from probe.grading import asks, boxed
from probe.sets import Problem

DEFAULT = Conversations()
TALKATIVE = Conversations(reactions=1.0, second_reaction=1.0, first_step=0.5, misunderstood=0.5)
ASKED_ABOUT = ("underspecified", "vague", "conflict", "unsolvable")
MATH = Path(__file__).parent.parent.parent / "shared" / "data" / "math" / "train.jsonl"
needs_math = pytest.mark.skipif(not MATH.is_file(), reason="needs ../shared/data/math/train.jsonl")

START = r"Let $M = \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$ with $x \neq 0$. "
REST = r"Then $3 \times 5 = 15$. So $\frac{15}{9} = \frac{5}{3}$, and the answer is $\boxed{\frac{5}{3}}$."
QUESTION = r"Let $f(2) = 5$ where $x \neq 0$. It's known that I is $\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$. Find $\frac{f(2)}{3}$."
WHOLE = Task(
    "p", QUESTION, r"\frac{5}{3}", "math",
    (Step(START.strip()), Step(r"Then $3 \times 5 = 15$."), Step(r"So $\frac{15}{9} = \frac{5}{3}$, and so on.")),
    gaps=(
        Gap(QUESTION.replace("f(2) = 5", "f(2) = ?"), "what $f(2)$ is", "What is $f(2)$?", "It's $f(2) = 5$.", "$f(2) = 5$",
            "$f(2) = 5$", "number", "the value of $f(2)$", "$f(2) = 7$"),
        Gap(QUESTION.replace(r"Find $\frac{f(2)}{3}$.", "").strip(), "what is to be found", "What is to be found?",
            r"Find $\frac{f(2)}{3}$.", r"Find $\frac{f(2)}{3}$.", r"Find $\frac{f(2)}{3}$.", "formula", "the last sentence"),
    ),
    slips=(Slip(1, "", "15", r"$3 \times 5 = 15$"),),
    boxed_solution=START + REST, topic="intermediate algebra", start=START, rest=REST,
    pieces=(Piece(r"$3 \times 5 = 15$", r"Then $3 \times 5 = 15$.", START.strip(), "15"),),
)  # fmt: skip


@given(st.sampled_from(get_args(Kind)), st.integers(0, 10**6))
@settings(max_examples=500, deadline=None)
def test_latex_goes_through_unchanged(kind: Kind, seed: int) -> None:
    """Every formula that stands in a message is one of the problem's own, also where the user types in a hurry."""
    conversation = converse(WHOLE, kind, seed, TALKATIVE)
    messages = json.loads(json.dumps(conversation.messages))
    theirs = QUESTION + START + REST + r"$f(2) = ?$ $f(2)$ $f(2) = 7$ $\frac{5}{3}$ $15$"
    for message in messages:
        for formula in re.findall(r"\$[^$]+\$", message["content"]):
            assert formula in theirs, formula
    said = "\n".join(message["content"] for message in messages)
    assert all(part.strip() in said for part in (START, REST))
    if kind in ("complete", "wrong_start", "hint", "guided", "conflict"):
        assert QUESTION in messages[0]["content"]
    solved = [inside[1] for message in messages if (inside := boxed(message["content"]))]
    assert solved == [WHOLE.answer]
    for slot in ("{", "}"):
        assert said.count(slot) == sum(formula.count(slot) for formula in re.findall(r"\$[^$]+\$", said))


@given(st.text(alphabet=r"\{}$%_^&x1 .", min_size=1, max_size=60), st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_any_solution_text_survives_the_phrasing(text: str, seed: int) -> None:
    """Slots are filled once: braces and percent signs of a solution are never read as slots."""
    solution = f"{text} so it is $\\boxed{{7}}$."
    task = task_from(Problem("p", f"What is {text}?", "7", solution, "math"))
    conversation = converse(task, "complete", seed, TALKATIVE)
    assert f"What is {text}?" in conversation.messages[0]["content"]
    assert solution.strip() in conversation.messages[1]["content"]


def test_lines_of_a_gsm8k_solution_are_split_hinted_and_guided() -> None:
    task = task_from(
        Problem(
            "p", "Kim has 12 pens. She buys 3 boxes with 8 pens each. How many pens does she have?", "36",
            "The boxes hold 3*8 = 24 pens.\nIn all there are 24 + 12 = 36 pens.", "gsm8k",
        )
    )  # fmt: skip
    assert {"hint", "guided"} <= set(possible_kinds(task))
    for seed in range(50):
        for kind in ("hint", "guided"):
            first, _, last = (message["content"] for message in converse(task, kind, seed, DEFAULT).messages[1:4])
            assert "3*8 = 24" in first and "36" not in first
            assert asks(first) == (kind == "guided")
            assert "24 + 12 = 36" in last and boxed(last)
        hinted = converse(task, "hint", seed, DEFAULT).messages[1]["content"]
        assert "the boxes" not in hinted, "a sentence of the problem keeps its capital"


# --- all of MATH's train problems, as the recipe builds them


@cache
def math_conversations() -> tuple[Conversation, ...]:
    problems = Problems(Source(kind="math", path=str(MATH)), 7)
    tasks = (problems[index] for index in range(0, len(problems), 4))
    return tuple(converse(task, kind, 7, DEFAULT) for task in tasks for kind in plan(task, 7, DEFAULT))


@needs_math
def test_math_conversations_ask_where_something_is_missing_and_keep_solutions_word_for_word() -> None:
    for conversation in math_conversations():
        task, messages = conversation.task, conversation.messages
        assert task is not None
        first = messages[1]["content"]
        assert asks(first) == (conversation.kind in (*ASKED_ABOUT, "guided")), (conversation.id, first)
        if conversation.hidden:
            before = messages[: conversation.reveal_at]
            assert not any(conversation.hidden in message["content"] for message in before if message["role"] != "user")
            assert conversation.hidden.lower() in messages[conversation.reveal_at]["content"].lower()
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        whole = any(task.boxed_solution.strip() in text for text in said)
        parts = all(any(part.strip() in text for text in said) for part in (task.start, task.rest))
        assert whole or (task.start and parts), conversation.id
        assert [inside[1] for text in said if (inside := boxed(text))] == [task.answer], conversation.id


@needs_math
def test_math_users_meet_every_kind_and_no_wording_dominates() -> None:
    kinds = Counter(conversation.kind for conversation in math_conversations())
    assert set(kinds) == set(get_args(Kind))
    assert 0.4 < kinds["complete"] / kinds.total() < 0.65, kinds
    used: dict[str, Counter[str]] = {}
    for conversation in math_conversations():
        for wording in conversation.wordings:
            name, _, parts = wording.partition(":")
            if parts != "bare":
                used.setdefault(name, Counter())[wording] += 1
    for name, counts in used.items():
        if counts.total() >= 100:
            assert counts.most_common(1)[0][1] / counts.total() <= 0.05, name
