"""Scripted conversations: right mathematics, targeted questions, no over-asking, reasons in every reply."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextturn.data_builders.scripted import Conversation, Conversations, Kind, Script, converse, plan, possible_kinds
from nextturn.data_builders.starter import starter_problem, starter_problems
from nextturn.data_builders.tasks import Slip, Step, Task
from nextturn.probe.conversations import check_messages
from nextturn.probe.grading import asks, boxed, sentences

DEFAULT = Conversations()
TALKATIVE = Conversations(reactions=1.0)
KINDS = get_args(Kind)
EQUATION = re.compile(r"(?<![\d.*/+-])(?<![*/+-] )(\d+) ?([-+*/]|% of) ?(\d+) = (\d+)")


@st.composite
def conversations(draw: st.DrawFn, *kinds: Kind, how: Conversations = TALKATIVE) -> Conversation:
    task = starter_problem(draw(st.integers(0, 10**6)), draw(st.integers(0, 1000)), "train")
    possible = [kind for kind in possible_kinds(task) if kind in (kinds or KINDS)]
    if not possible:
        return draw(conversations(*kinds, how=how))
    return converse(task, draw(st.sampled_from(possible)), draw(st.integers(0, 1000)), how)


def said(conversation: Conversation, role: str) -> list[str]:
    return [message["content"] for message in conversation.messages if message["role"] == role]


def states(text: str, value: str) -> bool:
    return re.search(rf"(?<![\d.,]){re.escape(value)}(?!\d|[.,]\d)", text) is not None


@given(conversations())
def test_a_conversation_is_whole_right_and_asks_only_where_something_is_missing(conversation: Conversation) -> None:
    messages = check_messages(list(conversation.messages), "here")
    assert messages[-1]["role"] == "assistant" and conversation.task is not None
    slips = {slip.did for slip in conversation.task.slips}
    for text in (message["content"] for message in messages):
        assert not re.search(r"(?<!\\boxed)\{|\{[a-z_]+\}", text), text
        assert text == text.strip() and "  " not in text
        assert not re.search(r" [.,?!]|\.\.|___|\[unreadable\]|\[formula", text), text
        for left, op, right, result in EQUATION.findall(text):
            a, b = Fraction(left), Fraction(right)
            value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b, "% of": a * b / 100}[op]
            assert value == Fraction(result) or f"{left} {op} {right} = {result}" in slips, (left, op, right, result)

    replies = said(conversation, "assistant")
    assert [inside[1] for text in replies if (inside := boxed(text))] == [conversation.answer]
    missing = conversation.kind == "underspecified"
    assert asks(replies[0]) == replies[0].endswith("?") == missing
    # A question of the problem may be quoted in what is wrong with a result; the assistant itself asks once at the most.
    assert sum(text.endswith("?") for text in replies) == missing


@given(conversations("underspecified", how=DEFAULT))
def test_what_is_withheld_is_asked_for_by_name_and_never_leaks(conversation: Conversation) -> None:
    gap = conversation.gap
    assert gap is not None and conversation.hidden == gap.value and conversation.reveal_at == 2
    opening, asked, reveal = (message["content"] for message in conversation.messages[:3])
    assert not states(opening, gap.value) and not re.search(r"\d", asked), "the question invents no number"
    assert states(reveal, gap.value)
    assert asked.endswith("?") and len(sentences(asked)) <= 3 and len(asked.split()) <= 35
    assert gap.ask in asked or gap.clause in asked, "it names what is missing"


@given(conversations("wrong_start", "right_start", how=DEFAULT))
def test_a_result_is_confirmed_where_it_is_right_and_only_there(conversation: Conversation) -> None:
    opening, reply = (message["content"] for message in conversation.messages[:2])
    assert conversation.task is not None
    brought = opening.split("\n\n")[-1]
    wrong = [slip.answer for slip in conversation.task.slips]
    told = [conversation.answer] if conversation.kind == "right_start" else wrong
    assert any(states(brought, value) for value in told), opening
    head = reply.partition("\n")[0]
    denied = re.search(r"Not quite|Almost|Close, but|It isn't|something else|not it yet", head)
    assert bool(denied) == (conversation.kind == "wrong_start"), head
    assert conversation.task.solution in reply


@given(st.integers(0, 10**6), st.integers(0, 100))
def test_a_pair_differs_only_in_what_is_withheld(index: int, seed: int) -> None:
    task = starter_problem(index, 1, "train")
    whole, less = (converse(task, kind, seed, DEFAULT) for kind in ("complete", "underspecified"))
    assert less.gap is not None
    assert less.messages[0]["content"] == whole.messages[0]["content"].replace(task.question, less.gap.question)


def test_the_same_arguments_give_the_same_text_and_another_seed_another() -> None:
    task = next(task for task in starter_problems(50, 4, "train") if len(possible_kinds(task)) == len(KINDS))
    for kind in KINDS:
        assert converse(task, kind, 1, TALKATIVE) == converse(task, kind, 1, TALKATIVE)
        texts = {json.dumps(converse(task, kind, seed, TALKATIVE).messages) for seed in range(20)}
        assert len(texts) > 15, kind


# --- which conversations a problem gives


def test_shares_are_met_and_results_are_right_as_often_as_wrong() -> None:
    shares = Conversations(contrast_pairs=0.8)
    tasks = [task for task in starter_problems(2500, 0, "train") if len(possible_kinds(task)) == len(KINDS)]
    plans = [plan(task, 0, shares) for task in tasks]
    kinds = Counter(kind for planned in plans for kind in planned)
    total = kinds.total()
    assert total > 2000
    for kind, wanted in shares.shares.items():
        assert abs(kinds[kind] / total - wanted) < 0.03, kinds
    pairs = sum(set(planned) == {"complete", "underspecified"} for planned in plans)
    assert abs(pairs / kinds["underspecified"] - 0.8) < 0.05
    assert abs(total / len(plans) - shares.per_problem) < 0.04


def test_a_problem_without_a_known_slip_brings_no_result_at_all() -> None:
    """Else the problem would tell whether the result is right."""
    plain = Task("p", "What is 1 + 1 + 1?", "3", "jsonl", starter_problem(0, 0, "train").steps[:1])
    assert possible_kinds(plain) == ["complete"]
    assert all(plan(plain, seed, DEFAULT) == ["complete"] for seed in range(20))


def test_a_problem_of_which_the_recipe_wants_nothing_is_complete() -> None:
    only = Conversations(complete=0.0, underspecified=1.0, wrong_start=0.0, right_start=0.0, contrast_pairs=0.0)
    plain = Task("p", "What is 1 + 1?", "2", "jsonl", starter_problem(0, 0, "train").steps[:1])
    assert all(plan(plain, seed, only) == ["complete"] for seed in range(20))


@pytest.mark.parametrize(
    "shares",
    [{"complete": 0.9}, {"complete": 0.28, "underspecified": 0.52, "contrast_pairs": 1.0}],
)
def test_shares_that_cannot_be_met_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="complete: "):
        Conversations(**shares)


# --- reactions to an answer

TEXT = Task(
    "p", "Solve $2x + 4 = 10$ for $x$, then double it. What do you get?", "6", "math",
    (Step("We have $2x = 6$."), Step("So $x = 3$."), Step("Doubled, it is $\\boxed{6}$.")),
    slips=(Slip(1, "", "3", "$x$"),),
    boxed_solution="We have $2x = 6$. So $x = 3$. Doubled, it is $\\boxed{6}$.", asked="What do you get?",
)  # fmt: skip


def reaction(task: Task, seed: int | str) -> tuple[str, str, str]:
    """The act of the user's turn, this turn, and the reply; empty where there is no reaction."""
    talk = Script(task, random.Random(seed), random.Random(seed), False)
    talk.react()
    if not talk.messages:
        return "", "", ""
    assert [message["role"] for message in talk.messages] == ["user", "assistant"]
    user, reply = (message["content"] for message in talk.messages)
    return talk.acts[0], user, reply


def test_a_reply_to_a_reaction_gives_a_reason_with_the_numbers_of_the_problem() -> None:
    seen = Counter[str]()
    for task in starter_problems(400, 11, "train"):
        act, _, reply = reaction(task, task.id)
        seen[act] += 1
        assert not reply.endswith("?")
        if act == "why":
            assert any(step.why[1:] in reply for step in task.steps)
        elif act == "check":
            assert any(step.undone in reply and step.left in reply for step in task.steps if step.undone)
        elif act == "what_if":
            assert any(change.steps[-1].text in reply for change in task.what_ifs)
        else:
            steps = [task.steps[slip.at] for slip in task.slips]
            assert act == "doubt" and any(step.expression in reply for step in steps), reply
    assert set(seen) == {"why", "check", "what_if", "doubt"} and min(seen.values()) > 40


def test_a_doubt_about_a_text_solution_is_told_what_its_number_is_and_what_was_asked() -> None:
    for seed in range(100):
        act, user, reply = reaction(TEXT, seed)
        assert act == "doubt" and "3" in user and "$x$" in reply and '"What do you get?"' in reply


def test_a_problem_with_nothing_to_say_about_has_no_reaction() -> None:
    assert reaction(Task("p", "What?", "3", "math", (Step("It is $\\boxed{3}$."),), boxed_solution="..."), 0)[0] == ""
