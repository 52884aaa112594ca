"""Scripted conversations: right mathematics, targeted questions, no over-asking, wording that varies."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_builders.acts import ACTS
from data_builders.derive import task_from
from data_builders.reactions import react
from data_builders.scripted import Conversation, Conversations, Kind, converse, plan
from data_builders.starter import starter_problem, starter_problems
from data_builders.tasks import Task
from probe.answers import boxed, sentences
from probe.errors import RecipeError
from probe.sets import Problem, check_messages

DEFAULT = Conversations()
TALKATIVE = Conversations(reactions=1.0, second_reaction=1.0, first_step=0.5)
EQUATION = re.compile(r"(?<![\d.*/+-])(?<![*/+-] )(\d+) ?([-+*/]|% of) ?(\d+) = (\d+)")


@st.composite
def conversations(draw: st.DrawFn, kind: Kind | None = None, how: Conversations = TALKATIVE) -> Conversation:
    task = starter_problem(draw(st.integers(0, 10**6)), draw(st.integers(0, 1000)), "train")
    chosen: Kind = kind if kind is not None else draw(st.sampled_from(get_args(Kind)))
    return converse(task, chosen, draw(st.integers(0, 1000)), how)


def said(conversation: Conversation, role: str) -> list[str]:
    return [message["content"] for message in conversation.messages if message["role"] == role]


@given(conversations())
@settings(max_examples=300, deadline=None)
def test_roles_alternate_and_no_slot_is_left_open(conversation: Conversation) -> None:
    messages = check_messages(list(conversation.messages), "here")
    assert messages[-1]["role"] == "assistant"
    for text in (message["content"] for message in messages):
        assert not re.search(r"(?<!\\boxed)\{|\{[a-z_]+\}", text), text
        assert text == text.strip() and "  " not in text


@given(conversations())
@settings(max_examples=400, deadline=None)
def test_every_equation_is_true_and_every_boxed_answer_right(conversation: Conversation) -> None:
    found = [equation for message in conversation.messages for equation in EQUATION.findall(message["content"])]
    for left, op, right, result in found:
        a, b = Fraction(left), Fraction(right)
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b, "% of": a * b / 100}[op]
        assert value == Fraction(result), (left, op, right, result)
    answers = [inside[1] for text in said(conversation, "assistant") if (inside := boxed(text))]
    assert answers == [conversation.answer], "one boxed answer in a conversation, and the right one"


@given(conversations("complete"))
@settings(max_examples=200, deadline=None)
def test_complete_problems_are_answered_at_once_without_a_question(conversation: Conversation) -> None:
    first = conversation.messages[1]["content"]
    assert boxed(first) == (first.rindex("\\boxed"), conversation.answer)
    assert "?" not in first


@given(conversations())
@settings(max_examples=300, deadline=None)
def test_only_a_missing_given_or_a_first_step_is_asked_about(conversation: Conversation) -> None:
    asked = [text for text in said(conversation, "assistant") if "?" in text]
    allowed = 0 if conversation.kind != "underspecified" else 2
    assert len(asked) <= allowed
    assert not any(boxed(text) for text in asked)


@given(conversations("underspecified"))
@settings(max_examples=300, deadline=None)
def test_the_clarifying_question_is_short_and_invents_nothing(conversation: Conversation) -> None:
    question, reply, reveal = (message["content"] for message in conversation.messages[:3])
    # At most an opening, what is missing, and the question.
    assert reply.endswith("?") and len(sentences(reply)) <= 3 and len(reply.split()) <= 30
    assert not re.search(r"\d", reply)
    hidden = re.compile(rf"(?<!\d){conversation.hidden}(?!\d)")
    assert not hidden.search(question) and hidden.search(reveal)
    assert conversation.reveal_at == 2


@given(conversations("hint"))
@settings(max_examples=200, deadline=None)
def test_a_hint_does_not_give_the_answer(conversation: Conversation) -> None:
    hint = conversation.messages[1]["content"]
    assert boxed(hint) is None and "=" not in hint


def test_the_same_arguments_give_the_same_text() -> None:
    task = starter_problem(3, 4, "train")
    assert converse(task, "complete", 1, TALKATIVE) == converse(task, "complete", 1, TALKATIVE)
    texts = {json.dumps(converse(task, "complete", seed, TALKATIVE).messages) for seed in range(20)}
    assert len(texts) > 15


def test_shares_are_met() -> None:
    shares = Conversations(complete=0.5, underspecified=0.3, wrong_start=0.1, hint=0.1, contrast_pairs=0.8)
    plans = [plan(task, 0, shares) for task in starter_problems(4000, 0, "train")]
    kinds = Counter(kind for planned in plans for kind in planned)
    total = sum(kinds.values())
    wanted_shares: dict[Kind, float] = {"complete": 0.5, "underspecified": 0.3, "wrong_start": 0.1, "hint": 0.1}
    for kind, wanted in wanted_shares.items():
        assert abs(kinds[kind] / total - wanted) < 0.02, kinds
    pairs = sum(set(planned) == {"complete", "underspecified"} for planned in plans)
    assert abs(pairs / kinds["underspecified"] - 0.8) < 0.03
    assert abs(total / len(plans) - shares.per_problem) < 0.02


@pytest.mark.parametrize(
    "shares",
    [{"complete": 0.9}, {"reactions": 1.5}, {"complete": 0.2, "underspecified": 0.64, "contrast_pairs": 1.0}],
)
def test_shares_that_cannot_be_met_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(RecipeError):
        Conversations(**shares).check()


def test_every_act_has_many_wordings_and_none_dominates() -> None:
    for name, act in ACTS.items():
        assert act.combinations >= 8, name
    used: dict[str, Counter[str]] = {}
    for task in starter_problems(1500, 9, "train"):
        for kind in get_args(Kind):
            for wording in converse(task, kind, 0, DEFAULT).wordings:
                used.setdefault(wording.partition(":")[0], Counter())[wording] += 1
    for name, counts in used.items():
        assert len(counts) >= 8, name
        assert counts.most_common(1)[0][1] / counts.total() < 0.3, name


def test_reactions_cite_the_exchange_and_do_not_repeat() -> None:
    for task in starter_problems(200, 11, "train"):
        rng, used = random.Random(task.id), set[str]()
        for _ in range(3):
            exchange = react(task, rng, False, used)
            if not exchange:
                break
            user = exchange[0].text
            things = set(re.findall(r"\d+", task.question + task.solution))
            things |= {number for slip in task.slips for number in re.findall(r"\d+", f"{slip.answer} {slip.did}")}
            grounded = set(re.findall(r"\d+", user)) & things or any(
                change.condition in user for change in task.what_ifs
            )
            assert grounded or re.search(r"add|subtract|multiply|divide|percentage", user), user


# --- problems that are only text


def gsm8k(question: str, solution: str, answer: str) -> Task:
    return task_from(Problem("p", question, answer, solution, "gsm8k"))


def test_a_text_problem_gives_checked_steps_and_a_named_gap() -> None:
    task = gsm8k(
        "Kim has 12 pens. She buys 3 boxes with 8 pens each. How many pens does she have?",
        "The boxes hold 3*8 = 24 pens.\nIn all there are 24 + 12 = 36 pens.",
        "36",
    )
    assert [step.equation for step in task.steps] == ["3 * 8 = 24", "24 + 12 = 36"]
    assert [slip.answer for slip in task.slips] == ["24"]
    gap = next(gap for gap in task.gaps if gap.value == "12")
    assert gap.question.startswith("Kim has some pens.")
    assert gap.ask == 'It says "Kim has some pens", but how many pens exactly?'


def test_a_false_or_chained_equation_is_no_step() -> None:
    task = gsm8k("Q has 2 pens?", "That is 3 * 8 = 25.\nAnd 60 / 3/4 = 80 here.\nThen 2 * 3 + 4 = 10.", "10")
    assert [step.op for step in task.steps] == ["", "", ""]


def test_numbers_that_do_not_matter_are_not_withheld() -> None:
    task = gsm8k("With 40 seconds left, Bo has 3 coins and Al has 3 coins. How many?", "They have 3 + 3 = 6.", "6")
    assert task.gaps == ()  # 40 is not computed with, and 3 stands twice


FRACTION = (
    r"Let $f(2) = 5$ and $g = \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$. Find $\frac{f(2)}{3}$ if $x \neq 0$."
)
WORKED = r"We have $f(2) = 5$, so $3 \times 5 = 15$. Then $\frac{5}{3} = \frac{5}{3}$ and the answer is $\boxed{\frac{5}{3}}$."


@pytest.mark.parametrize("kind", get_args(Kind))
def test_latex_goes_through_unchanged(kind: Kind) -> None:
    task = task_from(Problem("p", FRACTION, r"\frac{5}{3}", WORKED, "math"))
    planned = [k for seed in range(20) for k in plan(task, seed, DEFAULT)]
    if kind not in planned:
        pytest.skip(f"a text problem does not carry {kind}")
    conversation = converse(task, kind, 0, TALKATIVE)
    restored = json.loads(json.dumps(conversation.messages))
    assert any(WORKED in message["content"] for message in restored)
    if kind == "complete":
        assert restored[0]["content"] == FRACTION
    else:
        assert restored[0]["content"] == FRACTION.replace("$f(2) = 5$", "$f(2) = ?$")
        assert any("$5$" in message["content"] or "$f(2) = 5$" in message["content"] for message in restored[2:3])


@given(st.text(alphabet=r"\{}$%_^&x1 .", min_size=1, max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_solution_text_survives_the_phrasing(text: str) -> None:
    """Slots are filled once: braces and percent signs of a solution are never read as slots."""
    solution = f"{text} so it is $\\boxed{{7}}$."
    task = task_from(Problem("p", f"What is {text}?", "7", solution, "math"))
    conversation = converse(task, "complete", 0, TALKATIVE)
    assert conversation.messages[0]["content"] == f"What is {text}?"
    assert solution.strip() in conversation.messages[1]["content"]


def test_a_kind_that_the_problem_does_not_carry_becomes_complete() -> None:
    task = task_from(Problem("p", "What is $1+1$?", "2", r"It is $\boxed{2}$.", "math"))
    assert all(plan(task, seed, DEFAULT) == ["complete"] for seed in range(50))
