"""Problems that are told piece by piece: the rows of a build, their prompts for RL, and the user who tells the pieces."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nextturn.data_builders.build import Build
from nextturn.data_builders.duplicates import masked
from nextturn.data_builders.forms import fact_slots, filled, forms, question_slots, step_slots
from nextturn.data_builders.quality import QualityFilter
from nextturn.data_builders.rows import load_rl_rows, load_sft_rows, sft_row
from nextturn.data_builders.sections import DataRecipe, Quality, load_data_recipe, wordings
from nextturn.data_builders.sharded import MOST, Teller
from nextturn.data_builders.simulators import ScriptedSimulator
from nextturn.data_builders.tasks import Conversation, Task
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.data.messages import assistant, user
from nextturn.probe.questions.pieces import Shards, split
from nextturn.probe.questions.simulation import ShardedUser, UserRequest, UserTurn
from nextturn.probe.text.grading import asks, boxed
from nextturn.train.rewards import asked_rightly
from support.commands import ROOT

QUESTION = "Ivo has 4 pens. He buys 3 more pens. How many has he?"
SOLUTION = r"4 + 3 = 7, so \boxed{7}."


def whole(kind: str = "complete", question: str = QUESTION, id: str = "a", **fields: Any) -> Conversation:
    return Conversation(id, kind, (user(question), assistant(SOLUTION)), "test", "7", **fields)


def recipe(**keys: Any) -> DataRecipe:
    return DataRecipe.model_validate({"source": {"kind": "jsonl"}, "output": {"path": "out"}, "sharded": 1.0, **keys})


def sharded(conversation: Conversation, share: float = 1.0, **keys: Any) -> Conversation | None:
    return Teller(recipe(sharded=share, **keys)).sharded(conversation)


def build(out: Path, *overrides: str) -> list[dict[str, Any]]:
    small = ["--written", "null", "--source.n", "40", "--replay.fraction", "0.2"]
    Build(load_data_recipe(ROOT / "tests/demo.yaml", [*small, "--output.path", str(out), *overrides])).run(out)
    return list(load_sft_rows(out))


@pytest.fixture(scope="module")
def all_told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build with a sharded row for every row that can be told in pieces."""
    out = tmp_path_factory.mktemp("sharded") / "data"
    build(out, "--sharded", "1.0")
    return out


def test_the_last_reply_is_the_solution_and_those_before_it_ask() -> None:
    made = sharded(whole())
    assert made is not None and made.kind == "sharded" and made.shards == ("Ivo has 4 pens.", "He buys 3 more pens.")
    users, replies = made.messages[::2], [message["content"] for message in made.messages[1::2]]
    assert [message["content"] for message in users] == ["How many has he?", *made.shards]
    assert replies[-1] == SOLUTION and made.reveal_at == 4
    assert all(asks(reply) and boxed(reply) is None and "7" not in reply for reply in replies[:-1])
    assert sharded(whole()) == made, "the seed decides the words"


@pytest.mark.parametrize(
    "conversation", [whole("underspecified"), whole(question="What is 4 + 3?"), whole(reason="unsolved")]
)
def test_other_conversations_give_none(conversation: Conversation) -> None:
    assert sharded(conversation) is None


@pytest.mark.parametrize("kind", ["replay", "complete"])
def test_a_held_out_problem_is_found_in_its_pieces_and_they_name_the_same_problem(kind: str, tmp_path: Path) -> None:
    held_out = tmp_path / "held.jsonl"
    write_jsonl(held_out, [{"question": QUESTION}])
    task = None if kind == "replay" else Task("a", QUESTION, "7", "test", ())
    plain = whole(kind, task=task)
    told = sharded(plain)
    assert told is not None and sft_row(told)["problem"] == sft_row(plain)["problem"] == "a"
    for others, found in ([str(held_out)], True), ([], False):
        reason = QualityFilter(Quality(decontaminate=others), 10).reason(told)
        assert (reason is not None and reason.startswith("contaminated:")) is found


def test_a_build_keeps_its_other_rows_and_adds_sharded_ones(all_told: Path, tmp_path: Path) -> None:
    before, after = build(tmp_path / "before"), list(load_sft_rows(all_told))
    added = [row for row in after if row["kind"] == "sharded"]
    assert [row for row in after if row["kind"] != "sharded"] == before
    by_id = {f"{row['id']}-sharded": row for row in before}
    assert len(added) > 7 and {by_id[row["id"]]["kind"] for row in added} <= {"complete", "replay"}
    assert all(row["messages"][-1] == by_id[row["id"]]["messages"][1] for row in added)
    some = [sharded(replace(whole(), id=str(number)), 0.5) for number in range(40)]
    assert 8 < sum(map(bool, some)) < 32


def test_a_prompt_knows_what_is_still_to_be_told_and_the_scripted_user_tells_it(all_told: Path) -> None:
    rows = [row for row in load_rl_rows(all_told) if row.kind == "sharded"]
    assert {len(row.shards) for row in rows} >= {0, 1, 2}
    for row in rows:
        pieces = split(row.problem)
        assert pieces is not None and pieces.facts[row.turn :] == row.shards
        messages, told = [*row.prompt, assistant("Ok.")], []
        while True:
            (turn,) = ShardedUser(ScriptedSimulator()).turns([UserRequest(row, tuple(messages), 0, len(row.prompt))])
            if turn.ended or not row.shards:
                break
            told.append(turn)
            messages += [user(turn.text), assistant("Ok.")]
        assert told == [UserTurn(fact) for fact in row.shards]
        if row.shards:
            ask, early, other = (asked_rightly(row, text) for text in ("What else is given?", r"\boxed{7}", "Noted."))
            assert (ask, early, other) == (1.0, -1.0, 0.0)
        else:
            assert asked_rightly(row, SOLUTION) == 1.0


# --- Which replies carry loss, and the written forms.


@pytest.mark.parametrize("replies", ["plain", "varied"])
@pytest.mark.parametrize(("loss", "learned"), [("all", 2), ("one", 1), ("none", 0)])
def test_the_recipe_says_which_replies_before_the_last_piece_carry_loss(loss: str, learned: int, replies: str) -> None:
    places = set()
    for talk in (replace(whole(), id=str(number)) for number in range(8)):
        every, row = (sharded(talk, sharded_replies=replies, sharded_loss=each) for each in ("all", loss))
        assert every is not None and row is not None
        assert [message["content"] for message in row.messages] == [message["content"] for message in every.messages]
        carries = [message.get("loss", True) for message in row.messages[1::2]]
        assert carries[-1] is True and sum(carries[:-1]) == learned
        places.add(carries[0])
    assert len(places) == (2 if loss == "one" else 1)


KINDS = ("first", "rest", "reaction", "reply")


def test_the_forms_are_many_and_take_something_from_the_problem() -> None:
    every = [form for kind in KINDS for form in forms(kind)]
    assert len(set(every)) == len(every) and len(forms("first")) + len(forms("rest")) >= 200
    for form in every:
        used = re.findall(r"\{(\w+)\}", form)
        assert used and set(used) <= set(wordings("pieces.yaml")["slots"]), form
        assert not re.search(r"\d|  |[{}]", re.sub(r"\{\w+\}", "x", form)), form
    for wish in ("How many?", "Find $x$."):
        slots = {"thing": "pens", "goal": "the number of pens", "who": "Ivo", "wish": wish}
        assert all(asks(filled(form, slots)) for form in forms("first"))
    assert not any("?" in form for form in forms("reply"))
    sentences = (re.split(r"(?<=[.?!]) ", form) for form in (*forms("reaction"), *forms("reply")))
    fixed = Counter(part for parts in sentences for part in parts if "{" not in part)
    assert max(fixed.values()) == 1, "else a sentence comes more often than its forms may"


OF_FACT = ("amounts", "noun", "figure", "so", "name", "other", "before")


@pytest.mark.parametrize(
    ("facts", "slots"),
    [
        (["Ann has 12 red cards and 4 boxes."], {"amounts": "12 red cards and 4 boxes", "noun": "red cards", "name": "Ann", "so": "Ann has 12 red cards and 4 boxes"}),
        (["Three boxes cost 5 dollars a day."], {"amounts": "three boxes and 5 dollars a day", "noun": "boxes", "so": "three boxes cost 5 dollars a day"}),
        (["She has 4 boxes.", "Each holds 9 packs of paper."], {"amounts": "9 packs of paper", "before": "4 boxes", "noun": "packs of paper", "so": "each holds 9 packs of paper"}),
        (["The rent is $1,250."], {"figure": "$1,250", "so": "the rent is $1,250"}),
        (["Ann has half as many as Bob."], {"other": "Bob", "name": "Ann", "so": "Ann has half as many as Bob"}),
        (["Ann is 9 years old."], {"name": "Ann", "so": "Ann is 9 years old"}),
        (["My 8-year-old has 3/4 of them at 7:30."], {}),
        (['They say "no" to 3 players.'], {"amounts": "3 players", "noun": "players"}),
    ],
)  # fmt: skip
def test_the_words_of_a_fact_fill_the_slots(facts: list[str], slots: dict[str, str]) -> None:
    found = fact_slots(Shards("How many cards are there?", (*facts, "The end.")), len(facts) - 1)
    assert {name: text for name, text in found.items() if name in OF_FACT} == slots
    assert ("thing" in found) == ("cards" not in " ".join(facts)), "what is asked about is no news after it was told"


@pytest.mark.parametrize(
    ("wish", "slots"),
    [
        ("How many pairs of socks does he own?", {"thing": "pairs of socks", "goal": "the number of pairs of socks"}),
        ("How many more cups did Ann sell than Bo?", {"thing": "cups", "who": "Ann"}),
        ("How much money will they have?", {"goal": "the amount of money"}),
        ("How much did the two coats cost?", {"goal": "the cost"}),
        ("What is the total weight of the bags?", {"goal": "the total weight of the bags"}),
        ("How many times did it ring?", {}),
    ],
)
def test_the_words_of_a_question_fill_the_slots(wish: str, slots: dict[str, str]) -> None:
    assert question_slots(Shards(wish, ())) == {"wish": wish, **slots}


TOLD = ["How many pens are left?", "Ivo has 6 boxes of 15 pens.", "He sells 20 pens and buys 5 caps."]


@pytest.mark.parametrize(
    "solution",
    [
        "Ivo has 6*15 = 90 pens.\nAfter the sale he has 90-20 = 70 pens left.\nThe answer is \\boxed{70}.",
        "To find it, we need to follow these steps:\n\n1. Calculate the number of pens:\n   \\[\n   \\text{Number of pens} = 6 \\times"
        " 15 = 90\n   \\]\n\n2. Subtract the pens that he sold:\n   \\[ 90 - 20 = 70 \\]\n\n```python\nprint(6 * 15)\n```\n\\(\\boxed{70}\\)",
        "He has \\(6 \\times 15 = 90\\) pens. He sells some. He has 7 * 3 = 22 boxes and more. He drives 60 miles/hour * 9 hours = 540 miles. Now \\(90 - 20 = 70\\) pens are left with Ivo.",
    ],
)  # fmt: skip
def test_steps_are_found_in_each_kind_of_solution(solution: str) -> None:
    first, last = step_slots(solution, TOLD)
    assert [step["value"] for step in (first, last)] == ["90", "70"] and last["left"] == "90 - 20"
    assert "\\" not in first["line"] + last["line"] and "90" in first["line"]
    assert (first["number"], first["fact"]) == ("15", TOLD[1]) and (last["number"], last["fact"]) == ("20", TOLD[2])
    assert first.get("label") in (None, "number of pens") and first.get("counted") in (None, "90 pens")


def test_a_number_that_a_step_gave_is_not_said_to_be_told() -> None:
    (step,) = step_slots("Ivo keeps 10 + 10 = 20 pens at home.\nSo all in all there are 20 + 7 = 27 pens.", TOLD)
    assert step["value"] == "27" and "fact" not in step


def test_no_form_after_the_solution_comes_more_often_than_the_limit() -> None:
    teller, used = Teller(recipe(sharded_after=1.0)), Counter[str]()
    for number in range(300):
        noun = f"{chr(97 + number % 26)}{chr(97 + number // 26)}pens"
        task = whole(question=QUESTION.replace("pens", noun), id=str(number))
        solution = assistant(f"Altogether Ivo has 4 + 3 = 7 {noun}.\n\\boxed{{7}}")
        made = teller.sharded(replace(task, messages=(task.messages[0], solution)))
        assert made is not None
        teller.remember({"messages": list(made.messages), **made.row})
        used.update(form for form in made.row.get("forms", ()) if form)
    assert max(used.values()) == MOST and 2 * MOST * 20 < used.total() < 600


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of about 80 rows in the written forms, half of which continue after the solution."""
    out = tmp_path_factory.mktemp("varied") / "data"
    sizes = ["--source.n", "90", "--output.shard_size", "30"]
    build(out, *sizes, "--sharded", "1", "--sharded_replies", "varied", "--sharded_after", "0.5")
    return out


def test_no_form_comes_often_in_a_build_and_no_reply_fits_all_problems(varied: Path) -> None:
    rows = [row for row in load_sft_rows(varied) if row["kind"] == "sharded"]
    pairs = (
        (form, text["content"], row) for row in rows for form, text in zip(row["forms"], row["messages"], strict=True)
    )
    said = [each for each in pairs if each[0]]
    replies = [each for each in said if each[0] in (*forms("first"), *forms("rest"))]
    assert len(rows) > 50 and len(replies) > 200
    assert max(Counter(form for form, _, _ in said).values()) <= MOST
    assert max(Counter(masked(text) for _, text, _ in said).values()) <= MOST
    openings = Counter(" ".join(text.lower().split()[:2]) for _, text, _ in replies)
    assert max(openings.values()) <= 0.05 * len(replies)
    for form, text, row in replies:
        before = row["messages"][: row["messages"].index(assistant(text))]
        told = set(re.findall(r"\w+", " ".join(message["content"] for message in before[::2]).lower()))
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+)", re.escape(form))
        for slot, words in re.fullmatch(pattern, text).groupdict().items():  # type: ignore[union-attr]
            assert slot == "goal" or set(re.findall(r"\w+", words.lower())) <= told | {"and"}
        assert set(re.findall(r"\d+", text)) <= told and boxed(text) is None


def test_a_question_after_the_solution_depends_on_the_solution(varied: Path) -> None:
    rows = [row for row in load_sft_rows(varied) if row["kind"] == "sharded"]
    longer = [row for row in rows if row["forms"][-1]]
    assert 0.2 * len(rows) < len(longer) < 0.7 * len(rows)
    for row in longer:
        *told, question = (message["content"] for message in row["messages"][::2])
        solution, explained = (message["content"] for message in row["messages"][-3::2])
        new = set(re.findall(r"[\d.]*\d", question)) & set(re.findall(r"[\d.]*\d", solution))
        assert new, question
        assert boxed(solution) and boxed(explained) is None and "?" not in explained
    sentences = Counter(
        masked(part)
        for row in longer
        for message in row["messages"][-2:]
        for part in re.split(r"(?<=[.?!]) ", message["content"])
        if part not in " ".join(each["content"] for each in row["messages"][:-2])  # quotes of the problem
    )
    assert max(sentences.values()) <= MOST
