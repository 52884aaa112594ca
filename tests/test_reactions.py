"""What is said after an answer: it cites the exchange, says nothing twice, and is right."""

from __future__ import annotations

import random
import re

from data_builders.acts import Said
from data_builders.scripted import diagnose, react, way_of
from data_builders.starter import starter_problems
from data_builders.tasks import Piece, Slip, Step, Task

ABOUT_THE_WHOLE = {"thanks", "shorter"}
TEXT = Task(
    "p", "Solve $2x + 4 = 10$ for $x$, then double it.", "6", "math",
    (Step("We have $2x = 6$."), Step("So $x = 3$."), Step("Doubled, it is $\\boxed{6}$.")),
    slips=(Slip(1, "", "3", "$x = 3$"),),
    boxed_solution="We have $2x = 6$. So $x = 3$. Doubled, it is $\\boxed{6}$.",
    pieces=(Piece("$2x = 6$", "We have $2x = 6$.", ""), Piece("$x = 3$", "So $x = 3$.", "We have $2x = 6$.", "3")),
)  # fmt: skip


def act(said: Said) -> str:
    return said.wording.partition(":")[0]


def test_reactions_cite_the_exchange_and_do_not_repeat() -> None:
    for task in starter_problems(200, 11, "train"):
        rng, used, seen = random.Random(task.id), set[str](), []
        for _ in range(4):
            exchange = react(task, rng, False, used)
            if not exchange:
                break
            user, reply = exchange
            assert "?" not in reply.text
            seen.append(act(user))
            things = set(re.findall(r"\d+", task.question + task.solution))
            things |= {number for slip in task.slips for number in re.findall(r"\d+", f"{slip.answer} {slip.did}")}
            grounded = set(re.findall(r"\d+", user.text)) & things or any(
                change.condition in user.text for change in task.what_ifs
            )
            named = re.search(r"add|subtract|multiply|divide|percentage", user.text)
            assert grounded or named or act(user) in ABOUT_THE_WHOLE, user.text
        assert len(set(seen)) == len(seen)
        assert "thanks" not in seen[:-1], "nobody goes on after a goodbye"


def test_a_text_solution_carries_reactions_to_its_formulas() -> None:
    found = {act(said) for seed in range(200) for said in react(TEXT, random.Random(seed), False, set())}
    assert found == {
        "trace", "traced", "traced_line", "own_wrong", "correct", "shorter", "short", "restate", "yes", "thanks", "welcome",
    }  # fmt: skip


def test_a_formula_is_traced_to_its_line_and_the_one_before() -> None:
    for seed in range(300):
        exchange = react(TEXT, random.Random(seed), False, {"own_wrong", "shorter", "restate", "thanks"})
        piece = next(piece for piece in TEXT.pieces if piece.formula in exchange[0].text)
        assert piece.line in exchange[1].text and piece.before in exchange[1].text


def test_the_short_version_holds_the_equations_in_their_order() -> None:
    for seed in range(50):
        exchange = react(TEXT, random.Random(seed), False, {"own_wrong", "trace", "restate", "thanks"})
        assert "$2x = 6$, then $x = 3$" in exchange[1].text and " 6" in exchange[1].text


def test_a_slip_is_named_by_what_the_user_did_or_where_the_number_stands() -> None:
    slip = TEXT.slips[0]
    texts = {diagnose(TEXT, slip, random.Random(seed), told=False).text for seed in range(100)}
    assert len(texts) > 10 and all("$x = 3$" in text for text in texts)
    ways = {str(way_of(TEXT, slip, random.Random(seed), False)) for seed in range(100)}
    assert any(not way for way in ways) and any("$x = 3$" in way for way in ways)
    for task in starter_problems(100, 5, "train"):
        for slip in task.slips:
            told = diagnose(task, slip, random.Random(task.id), told=True).text
            assert task.steps[slip.at].expression in told or slip.did.partition(" =")[0] in told


def test_where_a_number_is_used_names_the_step_that_has_it() -> None:
    asked = 0
    for task in starter_problems(150, 12, "train"):
        others = {"why", "doubt", "own_wrong", "what_if", "check", "source", "trace", "shorter", "restate", "thanks"}
        exchange = react(task, random.Random(task.id), False, set(others))
        if not exchange:
            continue
        asked += 1
        number = re.findall(r"\d+", exchange[0].text)[0]
        holding = [step for step in task.steps if number in (step.left, step.right)]
        assert len(holding) == 1
        assert any(text in exchange[1].text for text in (holding[0].equation, holding[0].expression, holding[0].action))
    assert asked > 50
