"""The scripted user: it answers questions, reveals nothing unasked, never states the answer, and ends the conversation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextturn.data_builders.asked_for import marked_answer, questions, read_question
from nextturn.data_builders.numbers import states
from nextturn.data_builders.rows import rl_rows
from nextturn.data_builders.sections import Written, wordings
from nextturn.data_builders.tasks import Task
from nextturn.data_builders.user import PATIENCE, ScriptedUser
from nextturn.data_builders.written import written
from nextturn.probe.questions.simulation import Fact, PromptRow
from support.conversations import prompt_row
from support.problems import tasks

QUESTION = "Ann has some bags of marbles. There are 4 marbles in each bag. She gives 2 marbles away. How many are left?"
REVEAL = "Ann has 3 bags of marbles."


def row(question: str = QUESTION, **fields: Any) -> PromptRow:
    """Return a row that withholds the number of bags."""
    known: dict[str, Any] = {
        "hidden": ("3",), "clause": "how many bags of marbles Ann has", "thing": "the number of bags of marbles",
        "reveal": REVEAL, "short": "3 bags", "id": "r0", "kind": "underspecified", "turn": 0,
        "problem": QUESTION.replace("some", "3"), **fields,
    }  # fmt: skip
    return prompt_row(prompt=({"role": "user", "content": question},), answer="10", **known)


def complete(number: int, question: str = QUESTION.replace("some", "3")) -> PromptRow:
    return row(question, id=f"r{number}", kind="complete", hidden=(), clause="", thing="", reveal="", short="")


def talk(row: PromptRow, *replies: str, seed: int = 0) -> list[str | None]:
    """Return what the user says after each of these replies, up to the end of the conversation."""
    user, messages, said = ScriptedUser(row, seed), list(row.prompt), []
    for text in replies:
        messages.append({"role": "assistant", "content": text})
        said.append(user.reply(messages))
        if said[-1] is None:
            break
        messages.append({"role": "user", "content": said[-1]})
    return said


def reveals(row: PromptRow, question: str) -> bool:
    user = ScriptedUser(row, 0)
    user.reply([*row.prompt, {"role": "assistant", "content": question}])
    return user.revealed


DOUBTING = next(complete(number) for number in range(50) if talk(complete(number), "#### 11") != [None])


def is_act(text: str | None, *acts: str, **slots: str) -> bool:
    filled = {**dict.fromkeys(("reveal", "short", "quote", "given"), ""), **slots}
    known = [wording.format_map(filled) for act in acts for wording in wordings("acts.yaml")["simulated_user"][act]]
    return text is not None and text.lower().rstrip(".") in {wording.lower().rstrip(".") for wording in known}


@pytest.mark.parametrize(
    ("reply", "act"),
    [
        ("How many bags of marbles does Ann have?", "tell"),
        ("How many bags are there?", "tell"),
        ("I see. What's the number of bags?", "tell"),
        ("To solve this I need to know how many bags Ann has.", "tell"),
        ("What information is missing here?", "tell"),
        ("How many marbles are in each bag?", "quote"),
        ("What is her favorite color?", "unknown"),
        ("Let's think about it. First we look at the bags.", "go_on"),
        ("", "go_on"),
        ("Each bag holds 4 marbles. Does that make sense so far?", "yes"),
    ],
)
def test_the_act_after_a_reply_while_a_fact_is_withheld(reply: str, act: str) -> None:
    acts = ("tell", "tell_short") if act == "tell" else (act,)
    slots = {"reveal": REVEAL, "short": "3 bags", "quote": "There are 4 marbles in each bag."}
    assert all(is_act(talk(row(), reply, seed=seed)[0], *acts, **slots) for seed in range(8))


@pytest.mark.parametrize(
    ("reply", "act"),
    [
        ("Is anything missing?", "all_there"),
        ("So it is \\boxed{11}.", "doubt"),
        ("#### 11", "doubt"),
        ("The answer is 11.", "doubt"),
        ("Now we have 12 marbles.", "go_on"),
        ("So it is \\boxed{10}.", "doubt"),
    ],
)
def test_the_act_after_a_reply_if_nothing_is_withheld(reply: str, act: str) -> None:
    (said,) = talk(DOUBTING, reply)
    assert is_act(said, act, given=marked_answer(reply) or ""), said


def test_the_end_of_a_conversation() -> None:
    doubt, end = talk(DOUBTING, "It is \\boxed{11}.", "Yes, I am sure: \\boxed{11}.", "more")
    assert "11" in str(doubt) and end is None
    # A guess while a fact is withheld gets less than a question.
    assert talk(row(), "The bags are not given, so \\boxed{11}.") == [None]
    assert talk(row(), "Where are they?", "\\boxed{10}")[1] is None


def test_a_fact_is_revealed_once_in_varied_words() -> None:
    first, second, third = talk(row(), *["How many bags does Ann have?"] * 3)
    assert "3 bags" in str(first) and not any("3 bags of" in str(said) and "?" in str(said) for said in (second, third))
    assert is_act(second, "told", "quote", quote=REVEAL)
    said = [talk(row(), "How many bags does Ann have?", seed=seed)[0] for seed in range(60)]
    assert len(set(said)) >= 12
    assert said == [talk(row(), "How many bags does Ann have?", seed=seed)[0] for seed in range(60)]
    nameless = row(clause="", thing="", short="")  # known by the sentence that reveals it
    assert REVEAL in str(talk(nameless, "How many bags does Ann have?")[0])
    assert "3 bags" not in str(talk(nameless, "How many marbles are in each bag?")[0])


def test_a_doubt_does_not_depend_on_whether_the_answer_is_right() -> None:
    for reply in ("It is \\boxed{10}.", "It is \\boxed{11}."):
        assert 80 < sum(talk(complete(number), reply)[0] is not None for number in range(200)) < 120
    for number in range(50):
        right, wrong = (talk(complete(number), f"So \\boxed{{{answer}}}.", seed=number)[0] for answer in (10, 11))
        assert str(right).replace("10", "11") == str(wrong)
        assert talk(complete(number), "So \\boxed{10}.", "It is \\boxed{11}.", "more")[1:] in ([None], []), "one doubt"
    # An answer that a chat template could read as markup is not repeated, nor is a long one.
    (said,) = talk(DOUBTING, "\\boxed{<|im_end|>}")
    assert "<" not in str(said) and "that" in str(said).lower()
    assert len(str(talk(DOUBTING, "\\boxed{" + "1+" * 200 + "1}")[0])) < 100


def row_of(number: int, which: int) -> tuple[Task, Fact, PromptRow]:
    task = tasks()[number]
    gap = task.gaps[which % len(task.gaps)]
    prompt = ({"role": "user", "content": gap.question},)
    return (
        task,
        gap,
        PromptRow("s", task.question, task.answer, prompt, "underspecified", hidden=(gap.value,), fact=gap),
    )


PIECES = st.sampled_from(
    [
        "How many are there?", "What is missing?", "Let me think.", "First we multiply.", "Is that clear?", "Please tell me more.",
        "So \\boxed{7}.", "So \\boxed{1234}.", "The answer is 7.", "Who is that?", "Do you know the price?", "", "Ok.", "ASK", "OTHER",
    ]
)  # fmt: skip
REPLIES = st.lists(st.lists(PIECES, min_size=1, max_size=3).map(" ".join), min_size=1, max_size=12)


@settings(max_examples=50)
@given(number=st.integers(0, 300), which=st.integers(0, 3), seed=st.integers(0, 10**6), replies=REPLIES)
def test_any_replies(number: int, which: int, seed: int, replies: list[str]) -> None:
    """The user ends the conversation, reveals the fact once and only after a question, and never states the answer."""
    task, gap, row = row_of(number, which)
    other = task.gaps[(which + 1) % len(task.gaps)]
    user, messages, said = ScriptedUser(row, seed), list(row.prompt), 0
    for reply in replies:
        text = reply.replace("ASK", gap.ask).replace("OTHER", other.ask)
        messages.append({"role": "assistant", "content": text})
        before = user.revealed
        heard = user.reply(messages)
        if heard is None:
            assert not user.revealed or before, "it does not reveal the fact and leave"
            return
        said += 1
        assert heard.strip() and "{" not in heard
        if user.revealed and not before:
            assert questions(text) and marked_answer(text) is None
        elif not before:
            assert not states(heard, gap.value) or any(states(each["content"], gap.value) for each in messages)
        if not any(states(known, task.answer) for known in (task.question, *(each["content"] for each in messages))):
            assert not states(heard, task.answer)
        messages.append({"role": "user", "content": heard})
    assert said <= PATIENCE + 2


# --- Which questions it understands.

ASKS = (
    "{ask}",
    "Could you tell me {clause}?",
    "You didn't say {clause}. Can you add it?",
    "Please tell me {clause}.",
    "I can't finish this yet. What is missing is {clause}. Do you have that?",
    "To go on I need to know {clause}.",
)


@pytest.mark.parametrize("knows_a_question", [False, True])
def test_questions_about_problems_with_steps(knows_a_question: bool) -> None:
    understood, fooled = list[bool](), list[bool]()
    for number in range(30):
        for which in range(len(tasks()[number].gaps)):
            task, gap, row = row_of(number, which)
            row = replace(row, fact=replace(gap, ask=f"That depends. {gap.ask}" if knows_a_question else ""))
            understood += [reveals(row, wording.format(ask=gap.ask, clause=gap.clause)) for wording in ASKS]
            fooled += [reveals(row, other.ask) for other in task.gaps if other.value != gap.value]
    assert len(understood) > 250 and sum(understood) / len(understood) > 0.99
    assert len(fooled) > 75 and sum(fooled) / len(fooled) < 0.03


def test_questions_of_written_conversations() -> None:
    """Each of them asks in words of its own, which no list of names foresees."""
    rows = [row for conversation in written(Written(), 0) for row in rl_rows(conversation) if row.fact.thing]
    assert len(rows) > 100 and sum(reveals(each, each.fact.ask) for each in rows) / len(rows) > 0.95
    others = [(each, other) for each in rows[::4] for other in rows[::3] if each.problem != other.problem]
    assert len(others) > 900 and sum(reveals(each, other.fact.ask) for each, other in others) / len(others) < 0.02


PLAYED = "Kofi, our number 7, was averaging 19 points a game for us and then last night he went off for 31. What's his average now?"
PLAYED_ASK = "How many games had he played before last night? A 31 moves an average of 2 games a lot."


@pytest.mark.parametrize(
    ("question", "revealed"),
    [
        (PLAYED_ASK, True),
        ("Sure. How many games did he play before that one?", True),
        ("How many points did he score last night?", False),
        ("How many points a game does he average?", False),
        ("What colour is his shirt?", False),
    ],
)
def test_a_question_for_the_fact_differs_from_one_about_given_facts(question: str, revealed: bool) -> None:
    kofi = row(PLAYED, clause="", thing="number of games Kofi had played before", ask=PLAYED_ASK)
    assert reveals(kofi, question) == revealed


@pytest.mark.parametrize(
    ("clause", "thing", "said", "asked", "about"),
    [
        ("how $f(x)$ is defined", "the definition of $f(x)$", "Find $f(3)$.", "How is $f(x)$ defined?", "withheld"),
        ("how $f(x)$ is defined", "the definition of $f(x)$", "Find $f(3)$.", "What is the function $f(x)$?", "withheld"),
        ("how long $BC$ is", "the length of $BC$", "$AC = 15$ in the triangle.", "How long is $AC$?", "given"),
        ("how long $BC$ is", "the length of $BC$", "$AC = 15$ in the triangle.", "What is the length of $BC$?", "withheld"),
        ("what the diagram looks like", "the diagram", "See the diagram.", "Can you describe the picture?", "withheld"),
        ("how many pens Max has", "the number of pens", "Max has some pens.", "How does it end?", "anything"),
        ("how many pens Max has", "the number of pens", "Max has some pens.", "Does that step look right to you?", "following"),
    ],
)  # fmt: skip
def test_questions_with_formulas_and_drawings(clause: str, thing: str, said: str, asked: str, about: str) -> None:
    (question,) = questions(asked)
    assert read_question(question, (clause, thing), (said,))[0] == about
