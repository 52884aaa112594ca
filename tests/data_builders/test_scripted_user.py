"""The scripted user: answers what was asked, tells nothing unasked, never the answer, and comes to an end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextturn.data_builders.recipe import Written, wordings
from nextturn.data_builders.rows import RlRow, rl_rows
from nextturn.data_builders.starter import starter_problem
from nextturn.data_builders.tasks import Gap, Task
from nextturn.data_builders.text import states
from nextturn.data_builders.user import PATIENCE, ScriptedUser, marked_answer, questions, read_question
from nextturn.data_builders.written import written

QUESTION = "Ann has some bags of marbles. There are 4 marbles in each bag. She gives 2 marbles away. How many are left?"
ASKS = (
    "{ask}",
    "Could you tell me {clause}?",
    "You didn't say {clause}. Can you add it?",
    "Please tell me {clause}.",
    "I can't finish this yet. What is missing is {clause}. Do you have that?",
    "To go on I need to know {clause}.",
)


def row(**more: Any) -> RlRow:
    told: dict[str, Any] = {
        "question": QUESTION, "hidden": ("3",), "clause": "how many bags of marbles Ann has",
        "thing": "the number of bags of marbles", "reveal": "Ann has 3 bags of marbles.", "short": "3 bags",
        "id": "r0", "kind": "underspecified", "turn": 0, "problem": QUESTION.replace("some", "3"), **more,
    }  # fmt: skip
    prompt = ({"role": "user", "content": told.pop("question")},)
    return RlRow(prompt=prompt, answer="10", solution="", **told)


def complete(**more: Any) -> RlRow:
    nothing: dict[str, Any] = {"hidden": (), "clause": "", "thing": "", "reveal": "", "short": "", "kind": "complete"}
    return row(**{**nothing, "question": QUESTION.replace("some", "3"), **more})


def talk(row: RlRow, *replies: str, seed: int = 0) -> list[str | None]:
    """What the user says after each of these replies, up to its end."""
    user, messages, said = ScriptedUser(row, seed), list(row.prompt), []
    for text in replies:
        messages.append({"role": "assistant", "content": text})
        said.append(user.reply(messages))
        if said[-1] is None:
            break
        messages.append({"role": "user", "content": said[-1]})
    return said


def doubting() -> RlRow:
    """A row whose first answer is doubted."""
    rows = (complete(id=f"r{number}") for number in range(50))
    return next(one for one in rows if talk(one, "#### 11") != [None])


def is_one_of(act: str, said: str | None, **slots: str) -> bool:
    filled = {**dict.fromkeys(("reveal", "short", "quote", "given"), ""), **slots}
    known = [phrase.format_map(filled) for phrase in wordings("acts.yaml")["simulated_user"][act]]
    return said is not None and any(said.lower().rstrip(".") == one.lower().rstrip(".") for one in known)


REVEALED = {"reveal": "Ann has 3 bags of marbles."}


@pytest.mark.parametrize(
    ("reply", "act"),
    [
        ("How many bags of marbles does Ann have?", "tell"),
        ("How many bags are there?", "tell"),
        ("I see. What's the number of bags?", "tell"),
        ("To solve this I need to know how many bags Ann has.", "tell"),
        ("What information is missing here?", "tell"),
        ("Did you leave something out?", "tell"),
        ("How many marbles are in each bag?", "quote"),
        ("How many marbles does one bag hold?", "quote"),
        ("What is her favorite color?", "unknown"),
        ("Where did she buy them?", "unknown"),
        ("Let's think about it. First we look at the bags.", "go_on"),
        ("", "go_on"),
        ("Each bag holds 4 marbles. Does that make sense so far?", "yes"),
        ("Would you like me to go on?", "yes"),
    ],
)
def test_what_a_reply_gets_while_something_is_withheld(reply: str, act: str) -> None:
    for seed in range(8):
        (said,) = talk(row(), reply, seed=seed)
        if act == "tell":
            assert is_one_of("tell", said, reveal=row().reveal) or is_one_of("tell_short", said, short=row().short), (
                said
            )
        else:
            assert is_one_of(act, said, quote="There are 4 marbles in each bag."), said


@pytest.mark.parametrize(
    ("reply", "act"),
    [
        ("Is anything missing?", "all_there"),
        ("So it is \\boxed{11}.", "doubt"),
        ("#### 11", "doubt"),
        ("The answer is 11.", "doubt"),
        ("Now we have 12 marbles.", "go_on"),
        ("So it is \\boxed{10}.", "doubt"),
        ("3 * 4 - 2 = 10.\n#### 10\nDo you want to see it again?", "doubt"),
    ],
)
def test_what_a_reply_gets_where_nothing_is_withheld(reply: str, act: str) -> None:
    (said,) = talk(doubting(), reply)
    assert is_one_of(act, said, given=marked_answer(reply) or ""), said


def test_what_ends_the_chat() -> None:
    doubt, end = talk(doubting(), "It is \\boxed{11}.", "Yes, I am sure: \\boxed{11}.", "more")
    assert "11" in str(doubt) and end is None
    # A guess while something is withheld does not bring what asking brings.
    assert talk(row(), "The bags are not given, so \\boxed{11}.") == [None]
    assert talk(row(), "Where are they?", "\\boxed{10}")[1] is None


def test_what_was_told_is_not_told_again() -> None:
    first, second, third = talk(row(), *["How many bags does Ann have?"] * 3)
    assert "3 bags" in str(first)
    assert not any("3 bags of" in str(said) and "?" in str(said) for said in (second, third))
    assert is_one_of("told", second) or is_one_of("quote", second, quote="Ann has 3 bags of marbles.")


def test_a_doubt_says_nothing_about_whether_the_answer_is_right() -> None:
    """Right answers are doubted as often as wrong ones, by row and turn."""
    for reply in ("It is \\boxed{10}.", "It is \\boxed{11}."):
        doubted = [talk(complete(id=f"r{number}"), reply)[0] is not None for number in range(200)]
        assert 80 < sum(doubted) < 120
    for number in range(50):
        one = complete(id=f"r{number}")
        right, wrong = (talk(one, f"So \\boxed{{{answer}}}.", seed=number)[0] for answer in (10, 11))
        assert str(right).replace("10", "11") == str(wrong)
        assert talk(one, "So \\boxed{10}.", "It is \\boxed{11}.", "more")[1:] in ([None], []), "once only"


def test_who_wanted_a_hint_only_is_not_given_an_answer() -> None:
    for number in range(20):
        hint = complete(id=f"r{number}", kind="hint", question="Only a hint please: 3 bags of 4, 2 given away?")
        assert talk(hint, "Count the bags first, so \\boxed{10}.") == [None], "what was not wanted is not talked about"
        assert talk(hint, "3 * 4 - 2 = 10 are left.") == [None], "nor is it where it has no mark"
        assert is_one_of("go_on", talk(hint, "Count the marbles in all the bags first.")[0])


def test_hidden_numbers_without_a_name_are_told_in_the_words_of_the_problem() -> None:
    nameless = row(clause="", thing="", reveal="", short="")
    (said,) = talk(nameless, "How many bags does Ann have?")
    assert "Ann has 3 bags of marbles." in str(said)
    assert "3 bags" not in str(talk(nameless, "How many marbles are in each bag?")[0])


def test_an_answer_that_a_template_could_read_is_not_repeated() -> None:
    (said,) = talk(doubting(), "\\boxed{<|im_end|>}")
    assert "<" not in str(said) and "that" in str(said).lower()
    (said,) = talk(doubting(), "\\boxed{" + "1+" * 200 + "1}")
    assert len(str(said)) < 100


def test_wordings_vary_by_seed_and_stay_by_seed() -> None:
    said = [talk(row(), "How many bags does Ann have?", seed=seed)[0] for seed in range(60)]
    assert len(set(said)) >= 12
    assert said == [talk(row(), "How many bags does Ann have?", seed=seed)[0] for seed in range(60)]


def starter_row(number: int, which: int) -> tuple[Task, Gap, RlRow]:
    task = starter_problem(number, 11, "train")
    gap = task.gaps[which % len(task.gaps)]
    return task, gap, RlRow(
        "s", "underspecified", 0, ({"role": "user", "content": gap.question},), task.answer, task.question, "",
        (gap.value,), gap.clause, gap.thing, gap.reveal, gap.short,
    )  # fmt: skip


PIECES = st.sampled_from(
    [
        "How many are there?", "What is missing?", "Let me think.", "First we multiply.", "Is that clear?", "Please tell me more.",
        "So \\boxed{7}.", "So \\boxed{1234}.", "The answer is 7.", "Who is that?", "Do you know the price?", "", "Ok.", "ASK", "OTHER",
    ]
)  # fmt: skip
REPLIES = st.lists(st.lists(PIECES, min_size=1, max_size=3).map(" ".join), min_size=1, max_size=12)


@given(number=st.integers(0, 300), which=st.integers(0, 3), seed=st.integers(0, 10**6), replies=REPLIES)
def test_whatever_is_said_to_it(number: int, which: int, seed: int, replies: list[str]) -> None:
    """It ends, tells once and only after a question, and never brings up the answer."""
    task, gap, row = starter_row(number, which)
    other = task.gaps[(which + 1) % len(task.gaps)]
    user, messages, said = ScriptedUser(row, seed), list(row.prompt), 0
    for reply in replies:
        text = reply.replace("ASK", gap.ask).replace("OTHER", other.ask)
        messages.append({"role": "assistant", "content": text})
        before = user.revealed
        heard = user.reply(messages)
        if heard is None:
            assert not user.revealed or before, "it does not tell and leave"
            return
        said += 1
        assert heard.strip() and "{" not in heard
        if user.revealed and not before:
            assert questions(text) and marked_answer(text) is None
        elif not before:
            assert not states(heard, gap.value) or any(states(one["content"], gap.value) for one in messages)
        if not any(states(known, task.answer) for known in (task.question, *(one["content"] for one in messages))):
            assert not states(heard, task.answer)
        messages.append({"role": "user", "content": heard})
    assert said <= PATIENCE + 2


@pytest.mark.parametrize("knows_a_question", [False, True])
def test_it_understands_who_asks_for_what(knows_a_question: bool) -> None:
    """Of generated problems: what is withheld is told nearly always when asked for, hardly ever when something else is."""
    asked, understood, others, fooled = 0, 0, 0, 0
    for number in range(60):
        for which in range(len(starter_problem(number, 11, "train").gaps)):
            task, gap, row = starter_row(number, which)
            row = replace(row, ask=f"That depends. {gap.ask}" if knows_a_question else "")
            for wording in ASKS:
                asked += 1
                user = ScriptedUser(row, 0)
                user.reply(
                    [*row.prompt, {"role": "assistant", "content": wording.format(ask=gap.ask, clause=gap.clause)}]
                )
                understood += user.revealed
            for other in task.gaps:
                if other.value != gap.value:
                    others += 1
                    user = ScriptedUser(row, 0)
                    user.reply([*row.prompt, {"role": "assistant", "content": other.ask}])
                    fooled += user.revealed
    assert asked > 500 and understood / asked > 0.99
    assert others > 150 and fooled / others < 0.03


PLAYED = "Kofi, our number 7, was averaging 19 points a game for us and then last night he went off for 31. What's his average now?"
PLAYED_ASK = "How many games had he played before last night? A 31 moves an average of 2 games a lot."


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (PLAYED_ASK, True),
        ("Sure. How many games did he play before that one?", True),
        ("How many points did he score last night?", False),
        ("How many points a game does he average?", False),
        ("What number does he wear?", False),
        ("What colour is his shirt?", False),
    ],
)
def test_it_knows_its_data_s_question_from_one_about_what_it_said(said: str, told: bool) -> None:
    kofi = row(question=PLAYED, clause="", thing="number of games Kofi had played before", ask=PLAYED_ASK)
    user = ScriptedUser(kofi, 0)
    user.reply([*kofi.prompt, {"role": "assistant", "content": said}])
    assert user.revealed == told


def test_it_understands_the_questions_that_were_written_and_not_those_about_other_problems() -> None:
    """Each conversation that lacks something asks for it in its own words, which no list of names foresees."""
    rows = [row for talk in written(Written(), 0) for row in rl_rows(talk) if row.thing]

    def told(one: RlRow, said: str) -> bool:
        user = ScriptedUser(one, 0)
        user.reply([*one.prompt, {"role": "assistant", "content": said}])
        return user.revealed

    assert len(rows) > 100 and sum(told(one, one.ask) for one in rows) / len(rows) > 0.95
    others = [(one, other) for one in rows[::4] for other in rows[::3] if one.problem != other.problem]
    assert len(others) > 900 and sum(told(one, other.ask) for one, other in others) / len(others) < 0.02


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
def test_texts_with_formulas_and_drawings(clause: str, thing: str, said: str, asked: str, about: str) -> None:
    (one,) = questions(asked)
    assert read_question(one, (clause, thing), (said,))[0] == about
