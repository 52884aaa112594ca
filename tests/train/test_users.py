"""`nextturn users`: each figure against a computation of its own, and the command on small models."""

from __future__ import annotations

import math
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nextturn.data_builders.sections import Written
from nextturn.data_builders.written import written
from nextturn.probe.command.errors import BadInput, run_command
from nextturn.probe.command.files import read_json, read_jsonl, write_jsonl
from nextturn.probe.command.sections import RoleSection
from nextturn.probe.engines.ask import EngineModel
from nextturn.probe.models.folders import load_model, load_tokenizer, resolve
from nextturn.probe.models.user_model import UserModelInfo, mark_user_model
from nextturn.probe.questions.simulation import UserTurn
from nextturn.probe.text.chat import Chat
from nextturn.train.cli import main
from nextturn.train.encoding import IGNORED, make_rows, user_view
from nextturn.train.users import NOT_ASKING, Point, figures, perplexity, points_of, read_data
from support.conversations import messages

WITHHELD = {
    "id": "a", "kind": "underspecified", "answer": 12, "thing": "the number of bags", "reveal": "Ann has 3 bags.",
    "intent": "You want the result.",
    "messages": [
        {"role": "system", "content": "Be kind."},
        *messages(
            "Ann has some bags with 4 apples each. How many apples are there?", "How many bags does Ann have?",
            "three, sorry", r"3 * 4 = 12. The answer is \boxed{12}.",
        ),
    ],
}  # fmt: skip
PLAIN = {"id": "b", "messages": messages("What is 2 + 5?", r"\boxed{7}", "Why is it 7?", "Because 5 + 2 is 7.")}
OWN = """
from nextturn.probe.questions.simulation import UserTurn

class Silent:
    def turns(self, requests):
        return [UserTurn(ended=True) for _ in requests]
"""


def both() -> list[Point]:
    return [point for row in (WITHHELD, PLAIN) for point in points_of(row, 0)]


def test_the_points_of_a_conversation_and_what_its_user_did() -> None:
    points = list(points_of(WITHHELD, 0))
    talk = tuple(WITHHELD["messages"][1:])  # type: ignore[index]
    assert [point.request.messages for point in points] == [talk[:2], talk, (talk[0], NOT_ASKING)]
    assert [point.real for point in points] == [UserTurn("three, sorry"), UserTurn(ended=True), None]
    assert [point.fact for point in points] == [{3.0}, set(), {3.0}]
    assert points[0].request.row.fact.ask == "How many bags does Ann have?"
    assert not any(point.fact for point in points_of({**WITHHELD, "reveal": "Ann has blue bags."}, 0)), "no number"
    assert [len(list(points_of({**WITHHELD, "reveal": text}, 0))) for text in ("", "9 bags")] == [2, 2], "never said"


def test_figures_of_turns_that_are_counted_by_hand() -> None:
    said = [UserTurn(text) for text in ("3 bags", "Why 3 bags?", "why")]
    said += [UserTurn(failure="user_cut"), UserTurn(ended=True)]
    measured = figures(both(), said)
    # Spoken: "3 bags", "why 3 bags" and the turn that was cut; "why" came after a reply that is in no conversation.
    values = {"distinct_1": 3 / 5, "distinct_2": 2 / 3, "words": 2.5, "ends_over": 1 / 2, "ends_open": 0}
    values |= {"reveals_asked": 1, "reveals_unasked": 0}
    assert {name: measured[name].value for name in values} == values
    assert [measured[name].n for name in ("distinct_1", "distinct_2", "voice")] == [5, 3, 3]
    blurted = figures(both(), [UserTurn("sorry, I do not know"), *said[1:2], UserTurn("It is 3."), *said[3:]])
    assert (blurted["reveals_asked"].value, blurted["reveals_unasked"].value) == (0, 1)


@pytest.mark.parametrize(
    ("turn", "share"),
    [
        (UserTurn("Why do you add 5 and 2?"), 1),
        (UserTurn("Assistant: 7 is right."), 0),
        (UserTurn(failure="simulator_empty"), 0),
        (UserTurn("Почему?"), 0),
        (UserTurn("Warum ist das so und nicht anders, wenn man die Zahlen addiert?"), None),
    ],
)
def test_whose_voice_it_is(turn: UserTurn, share: float | None) -> None:
    assert figures([next(points_of(PLAIN, 0))], [turn])["voice"].value == share


@pytest.mark.parametrize(("model", "intents"), [("tiny_chatml", True), ("tiny_model", False)])
def test_perplexity_is_that_of_the_tokens_that_training_learns(
    model: str, intents: bool, request: pytest.FixtureRequest
) -> None:
    import torch

    folder = request.getfixturevalue(model)
    section = RoleSection(engine="hf", model=str(folder), dtype="float32", enable_thinking=False)
    rows: list[dict[str, Any]] = [WITHHELD, PLAIN]
    with closing(EngineModel("user", section, 0, "test")) as user_model:
        measured = perplexity(user_model, rows, intents)
    views = [user_view(row if intents else {**row, "intent": None}) for row in rows]
    trained, counts = make_rows(
        views, Chat(load_tokenizer(resolve(str(folder))), {"enable_thinking": False}), "user", None
    )
    weights_alone, loss = load_model(resolve(str(folder)), "float32", "cpu"), 0.0
    for row in trained:
        labels = torch.tensor([row["labels"]])
        with torch.no_grad():
            mean = weights_alone(input_ids=torch.tensor([row["input_ids"]]), labels=labels).loss
        loss += float(mean) * int((labels != IGNORED).sum())
    assert measured.value == pytest.approx(math.exp(loss / counts.loss_tokens), rel=1e-4)
    assert measured.n == counts.loss_tokens


def test_written_conversations_are_those_that_a_smaller_build_leaves_out() -> None:
    rows, trained = read_data(None), written(Written(n=298), seed=7)
    assert [row["id"] for row in rows[:-100]] == [talk.id for talk in trained]
    assert not {row["problem"] for row in rows[-100:]} & {row["problem"] for row in rows[:-100]}
    assert sum(any(point.fact for point in points_of(row, 0)) for row in rows) == 85


# --- The command.


@pytest.fixture
def folder(tmp_path: Path, tiny_chatml: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with conversations, a chat model, a user model and a class."""
    write_jsonl(tmp_path / "talks.jsonl", [PLAIN, WITHHELD, PLAIN])
    (tmp_path / "silent_user.py").write_text(OWN)
    for name in ("chat", "user"):
        shutil.copytree(tiny_chatml, tmp_path / name)
    sha256 = Chat(load_tokenizer(resolve(str(tiny_chatml)))).template_sha256
    mark_user_model(tmp_path / "user", UserModelInfo("tiny", sha256, intents=True))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_users_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["users", "user", "chat", "silent_user:Silent", "--data", "talks.jsonl", "--n", "2", "--out", "out"]
    main(command)
    names = ["user", "chat", "silent_user:Silent", "scripted", "real"]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:7]] == names
    result, stored = read_json(folder / "out" / "users.json"), folder / "out" / "stored" / "generations.jsonl"
    users = result["users"]
    assert list(users) == names and (result["data"], result["conversations"]) == ("talks.jsonl", 2)
    assert [user["perplexity"]["n"] > 0 for user in users.values()] == [True, True, False, False, False]
    assert users["user"]["perplexity"] == users["chat"]["perplexity"], "equal weights see the same intents"
    silent = users["silent_user:Silent"]
    assert (silent["ends_over"]["value"], silent["ends_open"]["value"], silent["voice"]["n"]) == (1, 1, 0)
    assert all(user["ends_over"]["n"] == user["ends_open"]["n"] == 2 for user in users.values())
    turns = [row["user"] for _, row in read_jsonl(folder / "out" / "turns.jsonl")]
    assert [turns.count(name) for name in names] == [5, 5, 5, 5, 4]
    before = stored.read_bytes()
    main(command)
    assert read_json(folder / "out" / "users.json") == result, "seeded"
    assert stored.read_bytes() == before, "nothing is made again"


def test_a_dry_run_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["users", "user", "--data", "talks.jsonl", "--out", "out", "--dry-run"])
    assert capsys.readouterr().out.startswith("3 talks.jsonl conversations, 7 ") and not (folder / "out").exists()
    main(["users", "--dry-run"])
    assert "--data" in capsys.readouterr().out, "user models may have been trained on the written conversations"


@pytest.mark.parametrize(
    "words",
    [
        ["user", "runs/nowhere"],
        ["no_such_module:User"],
        ["user", "--data", "nowhere.jsonl"],
        ["--data", "empty.jsonl"],
        ["other"],
    ],
)
def test_what_cannot_be_used_is_named_before_a_model_runs(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty.jsonl").write_text("")
    shutil.copytree(folder / "user", folder / "other")
    mark_user_model(folder / "other", UserModelInfo("tiny", "0" * 64, intents=True))  # of another chat template
    assert run_command(main, ["users", *words, "--out", "out"]) == BadInput.exit_code
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert words[-1] in captured.err and not (folder / "out").exists()
