"""What is said after an answer: it cites the exchange, says nothing twice, and is right."""

from __future__ import annotations

import random
import re

from data_builders.scripted import Conversations, Script, react
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


ALL = {"why", "doubt", "own_wrong", "what_if", "check", "source", "where", "trace", "shorter", "restate", "thanks"}


def script(task: Task, seed: int | str = 0, only: set[str] = ALL) -> Script:
    """A conversation about the task with nothing in it yet, after which only these reactions are possible."""
    return Script(task, Conversations(), random.Random(seed), random.Random(seed), False, ruled_out=ALL - only)


def reaction(script: Script) -> tuple[str, str, str]:
    """The act of the user's turn, this turn, and the reply; empty where there is no reaction."""
    before, wordings = len(script.messages), len(script.wordings)
    react(script)
    if len(script.messages) == before:
        return "", "", ""
    user, reply = (message["content"] for message in script.messages[before:])
    assert [message["role"] for message in script.messages[before:]] == ["user", "assistant"]
    return script.wordings[wordings].partition(":")[0], user, reply


def test_reactions_cite_the_exchange_and_do_not_repeat() -> None:
    for task in starter_problems(200, 11, "train"):
        talk, seen = script(task, task.id), []
        for _ in range(4):
            act, user, reply = reaction(talk)
            if not act:
                break
            assert "?" not in reply
            seen.append(act)
            things = set(re.findall(r"\d+", task.question + task.solution))
            things |= {number for slip in task.slips for number in re.findall(r"\d+", f"{slip.answer} {slip.did}")}
            grounded = set(re.findall(r"\d+", user)) & things or any(
                change.condition in user for change in task.what_ifs
            )
            named = re.search(r"add|subtract|multiply|divide|percentage", user)
            assert grounded or named or act in ABOUT_THE_WHOLE, user
        assert len(set(seen)) == len(seen)
        assert "thanks" not in seen[:-1], "nobody goes on after a goodbye"


def test_a_text_solution_carries_reactions_to_its_formulas() -> None:
    found = set()
    for seed in range(200):
        talk = script(TEXT, seed)
        react(talk)
        found |= {wording.partition(":")[0] for wording in talk.wordings}
    assert found == {
        "trace", "traced", "traced_line", "own_wrong", "correct", "shorter", "short", "restate", "yes", "thanks", "welcome",
        "way_formula", "diagnose_formula",
    }  # fmt: skip


def test_a_formula_is_traced_to_its_line_and_the_one_before() -> None:
    for seed in range(300):
        _, user, reply = reaction(script(TEXT, seed, only={"trace"}))
        piece = next(piece for piece in TEXT.pieces if piece.formula in user)
        assert piece.line in reply and piece.before in reply


def test_the_short_version_holds_the_equations_in_their_order() -> None:
    for seed in range(50):
        _, _, reply = reaction(script(TEXT, seed, only={"shorter"}))
        assert "$2x = 6$, then $x = 3$" in reply and " 6" in reply


def test_a_slip_is_named_by_what_the_user_did_or_where_the_number_stands() -> None:
    slip = TEXT.slips[0]
    texts = {script(TEXT, seed).diagnosis(slip, explained=False).text for seed in range(100)}
    assert len(texts) > 10 and all("$x = 3$" in text for text in texts)
    ways = {str(script(TEXT, seed).way(slip)) for seed in range(100)}
    assert any(not way for way in ways) and any("$x = 3$" in way for way in ways)
    for task in starter_problems(100, 5, "train"):
        for slip in task.slips:
            named = script(task, task.id).diagnosis(slip, explained=True).text
            assert task.steps[slip.at].expression in named or slip.did.partition(" =")[0] in named


def test_where_a_number_is_used_names_the_step_that_has_it() -> None:
    asked = 0
    for task in starter_problems(150, 12, "train"):
        act, user, reply = reaction(script(task, task.id, only={"where"}))
        if not act:
            continue
        asked += 1
        number = re.findall(r"\d+", user)[0]
        holding = [step for step in task.steps if number in (step.left, step.right)]
        assert len(holding) == 1
        assert any(text in reply for text in (holding[0].equation, holding[0].expression, holding[0].action))
    assert asked > 50
