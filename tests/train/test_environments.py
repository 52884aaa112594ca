"""The tasks of the environments, their users and rewards, without verifiers; `make test-reach` runs them in verifiers."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nextturn.probe.command.errors import DataError
from nextturn.probe.data.messages import assistant, user
from nextturn.probe.questions.simulation import PromptRow
from nextturn.train.environments import tasks
from support.commands import ROOT

ROWS = [
    {"id": "lack", "kind": "underspecified", "question": "A farmer packs 48 eggs into boxes. How many boxes?", "answer": "8",
     "problem": "A farmer packs 48 eggs into boxes. Each box holds 6 eggs. How many boxes?", "clause": "how many eggs each box holds",
     "reveal": "Each box holds 6 eggs.", "ask": "How many eggs does each box hold?", "short": "6 eggs"},
    {"id": "whole", "kind": "complete", "question": "Mia buys 3 pens for $2 each. She pays with $10. How much is left?", "answer": "4"},
    {"id": "words", "question": "Which town lies on the Seine?", "answer": "Rouen"},
]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(file)


def play(row: PromptRow, *replies: str, cut: bool = False) -> tuple[list[str], float, dict[str, float]]:
    """Return the user's messages, the reward and its parts. The last reply is given again until the user ends."""
    messages, left = list(row.prompt), list(replies)
    while True:
        messages.append(assistant(left.pop(0) if left[1:] else left[0]))
        said = None if cut else tasks.user_turn(row, messages)
        if said is None:
            return [each["content"] for each in messages[::2]], *tasks.reward(row, messages, 40, cut)
        messages.append(user(said))


def test_the_packaged_problems_give_tasks_of_every_kind() -> None:
    made = {kind: tasks.prompts(kind) for kind in ("pieces", "ask", "doubt")}
    assert all(len(rows) > 100 and len({row.id for row in rows}) == len(rows) for rows in made.values())
    for row in made["pieces"]:
        assert len(row.shards) > 1 and not row.withholds and row.prompt[0]["content"] not in row.shards
    assert {row.withholds for row in made["ask"]} == {True, False}
    assert all(row.columns["nextturn_claim"] != row.answer and row.answer for row in made["doubt"])


def test_a_problem_in_pieces_is_told_in_order_and_an_early_answer_costs(path: str) -> None:
    (row,) = (row for row in tasks.prompts("pieces", path) if row.id == "whole")
    users, right, _ = play(row, "What do you know?", "Go on.", "It is \\boxed{4}.")
    assert users == ["How much is left?", "Mia buys 3 pens for $2 each.", "She pays with $10."]
    _, early, parts = play(row, "It is \\boxed{4}.", "Go on.", "It is \\boxed{4}.")
    assert parts["accuracy"] == 1 and parts["asking"] == -1 and early < right - 0.5


def test_a_question_pays_where_a_fact_is_missing_and_costs_elsewhere(path: str) -> None:
    lacks, whole, _ = tasks.prompts("ask", path)
    users, asked, _ = play(lacks, "How many eggs does each box hold?", "It is \\boxed{8}.")
    assert "6" in users[1]
    _, guessed, parts = play(lacks, "It is \\boxed{8}.")
    assert asked > guessed + 0.5 and parts["accuracy"] == 0
    _, answered, _ = play(whole, "It is \\boxed{4}.")
    _, needless, _ = play(whole, "Which shop is it?", "It is \\boxed{4}.")
    assert answered > needless + 0.5


@pytest.mark.parametrize(
    ("first", "then", "reward"),
    [("4", "4", 1.0), ("4", "claim", 0.5), ("9", "4", 0.5), ("9", "9", 0.0), ("9", "12", 0.0)],
)
def test_a_doubt_claims_the_other_result(first: str, then: str, reward: float, path: str) -> None:
    (row,) = (row for row in tasks.prompts("doubt", path) if row.id == "whole")
    claim = row.columns["nextturn_claim"]
    users, value, parts = play(
        row, f"It is \\boxed{{{first}}}.", f"So it is \\boxed{{{claim if then == 'claim' else then}}}."
    )
    assert (claim if first == "4" else "4") in users[1] and value == reward
    assert parts["first_right"] == (first == "4")


def test_a_cut_reply_ends_without_a_reward_for_the_end(path: str) -> None:
    (row,) = (row for row in tasks.prompts("doubt", path) if row.id == "whole")
    assert play(row, "It is \\boxed{4}. And because", cut=True)[1] == 0.5
    assert play(row, "First 3 times 2 is 6, and 10 - 6 = 4", cut=True)[1] == 0


def test_neither_torch_nor_a_trainer_is_imported() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['accelerate', 'datasets', 'torch', 'transformers', 'trl', 'verifiers'])); "
        "from nextturn.train.environments import tasks; row = tasks.prompts('ask')[0]; "
        "tasks.reward(row, [*row.prompt, {'role': 'assistant', 'content': 'x^2 = \\\\boxed{x+1}'}], 4, False)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_rows_that_give_no_task_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(ROWS[2]) + "\n")
    for kind in ("pieces", "ask"):
        with pytest.raises(DataError, match=str(file)):
            tasks.prompts(kind, str(file))  # type: ignore[arg-type]


def test_each_environment_is_a_module_that_exports_one_class_of_each_kind() -> None:
    """verifiers takes the classes by `__all__`."""
    folders = sorted((ROOT / "train" / "environments").glob("nextturn_*"))
    assert [folder.name for folder in folders] == ["nextturn_ask", "nextturn_doubt", "nextturn_pieces"]
    for folder in folders:
        body = ast.parse((folder / "__init__.py").read_text()).body
        assert ast.literal_eval(body[-1].value) == ["Chat", "Conversation", "Tasks"]  # type: ignore[attr-defined]
        assert f'kind = "{folder.name.removeprefix("nextturn_")}"' in (folder / "__init__.py").read_text()
