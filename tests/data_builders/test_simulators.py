"""Simulated users: scripted, a prompted model, a user model, and a class of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextturn.data_builders.build import with_simulator
from nextturn.data_builders.dialogue.prompts import EXAMPLES
from nextturn.data_builders.dialogue.replies import unfit_user_turn
from nextturn.data_builders.sections import DataRecipe, Dialogue, Output, SimulatorSection, Source, Written
from nextturn.data_builders.simulators import (
    CheckedSimulator,
    PromptedSimulator,
    ScriptedSimulator,
    intent_text,
    open_simulator,
)
from nextturn.data_builders.user import ScriptedUser
from nextturn.data_builders.written import written
from nextturn.probe.command.errors import BadInput, EngineError, RecipeError
from nextturn.probe.command.sections import RoleSection, ServerSection
from nextturn.probe.data.messages import assistant, user
from nextturn.probe.engines.ask import Reply
from nextturn.probe.engines.base import Completion, Request
from nextturn.probe.models.folders import load_tokenizer, resolve
from nextturn.probe.models.user_model import UserModelInfo, mark_user_model
from nextturn.probe.questions.simulation import Fact, PromptRow, ShardedUser, UserRequest, UserTurn
from nextturn.probe.text.chat import Chat
from support.commands import ROOT

ROW = PromptRow(
    "a", "Ann has 3 bags with 4 apples each. How many apples are there?", "12", hidden=("3",),
    fact=Fact(clause="how many bags Ann has", thing="the number of bags", reveal="Ann has 3 bags.", short="3 bags"),
)  # fmt: skip
OPENING = user("Ann has some bags with 4 apples each. How many apples are there?")
CHAT = (OPENING, assistant("How many bags does Ann have?"))
ASKED = UserRequest(ROW, CHAT, seed=5)
SOLVED = UserRequest(PromptRow("b", "How many is 3 * 4?", answer="12"), (user("3 * 4?"), assistant("\\boxed{12}")), 5)
SERVER = ServerSection(urls=("http://127.0.0.1:9/v1",), model="m", attempts=2, timeout_s=20)

# --- Scripted.

PIECES = [
    "How many bags are there?",
    "Let me think.",
    "So \\boxed{12}.",
    "The answer is 7.",
    "Is that clear?",
    "Who?",
    "",
]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8), st.integers(0, 999), st.sampled_from([1, 3]))
def test_scripted_turns_are_those_of_a_user_that_was_always_there(replies: list[str], seed: int, start: int) -> None:
    messages = [OPENING, assistant("Ok."), user("go on")][:start]
    there, requests, said = ScriptedUser(ROW, seed), list[UserRequest](), list[str | None]()
    for reply in replies:
        messages.append(assistant(reply))
        requests.append(UserRequest(ROW, tuple(messages), seed, start))
        said.append(there.reply(messages))
        if said[-1] is None:
            break
        messages.append(user(said[-1]))
    turns = ScriptedSimulator().turns(requests[::-1])[::-1]
    assert turns == [UserTurn(ended=True) if text is None else UserTurn(text) for text in said]


# --- Problems in pieces.


def test_whoever_plays_the_others_problems_in_pieces_are_told_piece_by_piece() -> None:
    asked: list[int] = []

    class Other:
        def turns(self, requests: Sequence[UserRequest]) -> list[UserTurn]:
            asked.append(len(requests))
            return [UserTurn(f"other {request.seed}") for request in requests]

    pieces = replace(ROW, shards=("It has 3 bags.", "Each bag has 4."))
    ask = (OPENING, assistant("What is given?"))
    told = (*ask, user("It has 3 bags."), assistant("What else?"))
    requests = [UserRequest(pieces, told, 0, 1), UserRequest(ROW, ask, 5, 1), UserRequest(pieces, ask, 0, 1)]
    teller = ShardedUser(Other())
    assert teller.turns(requests) == [UserTurn("Each bag has 4."), UserTurn("other 5"), UserTurn("It has 3 bags.")]
    assert teller.turns(requests[:1]) == [UserTurn("Each bag has 4.")] and asked == [1]


# --- A prompted model.


class Says:
    """A model that gives these replies one after the other, the last one again and again."""

    def __init__(self, *says: str | Reply) -> None:
        self.role, self.temperature = "simulator", 0.8
        self.says = list(says)
        self.chats: list[Any] = []

    def replies(self, chats: Sequence[Any], ends: float | None = None) -> Iterator[tuple[int, Reply]]:
        self.chats += chats
        for index in range(len(chats)):
            said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
            yield index, Reply(said) if isinstance(said, str) else said

    def close(self) -> None:
        """Nothing is open."""


def prompted(*says: str | Reply, request: UserRequest = ASKED, **section: Any) -> tuple[UserTurn, list[Any]]:
    model = Says(*says)
    given = SimulatorSection(engine="openai", server=SERVER, **section)
    (turn,) = CheckedSimulator(PromptedSimulator(model, given), given.tries).turns([request])
    return turn, model.chats


GOAL = "Find the greatest whole number that is smaller than the sum of all of these numbers in the list."
SENTENCE = PromptRow(
    "a", f"There is a list. {GOAL}", hidden=(GOAL,), fact=Fact(clause="what is to be found", reveal=GOAL)
)


@pytest.mark.parametrize(
    ("says", "request_", "turn", "asked"),
    [
        (["<message>3 of them</message>"], ASKED, UserTurn("3 of them"), 1),
        (["Assistant: sure.", "", "<message>3 bags</message>"], ASKED, UserTurn("3 bags"), 3),
        (["User: no"], ASKED, UserTurn("User: no", failure="user_role_label"), 3),
        ([ROW.problem], ASKED, UserTurn(ROW.problem, failure="user_copies_problem"), 3),
        ([GOAL], replace(ASKED, row=SENTENCE), UserTurn(GOAL), 1),  # a sentence is revealed by copying it
        (["Thanks! <end>"], ASKED, UserTurn(ended=True), 1),
        ([Reply("", failure="timeout")], ASKED, UserTurn(failure="simulator_timeout"), 1),
    ],
)
def test_replies_of_a_prompted_model(says: list[Any], request_: UserRequest, turn: UserTurn, asked: int) -> None:
    made, chats = prompted(*says, request=request_)
    assert made == turn and len({seed for _, seed, _ in chats}) == len(chats) == asked


def test_a_prompted_model_knows_the_problem_and_what_is_withheld_and_no_answer() -> None:
    (((message,), _, _),) = prompted("<message>3</message>")[1]
    text = message["content"]
    assert ROW.problem in text and "how many bags Ann has (3)" in text
    assert "12" not in text.replace(ROW.problem, "")
    (((message,), _, _),) = prompted("ok", request=replace(ASKED, messages=(user("3 bags"), assistant("Ok"))))[1]
    assert "how many bags Ann has (3)" not in message["content"], "it is said already"
    chats = [prompted("ok", request=replace(ASKED, seed=seed))[1][0][0][0]["content"] for seed in range(20)]
    assert len(set(chats)) > 4, "the seed decides who it is"


def test_examples_precede_the_prompt_for_one_reaction_and_are_not_copied() -> None:
    doubt = replace(SOLVED, row=replace(SOLVED.row, wish="doubt"))
    copied = EXAMPLES["doubt"][0]["reply"]
    turn, chats = prompted(copied, "is 12 really right?", request=doubt, few_shot=2)
    assert turn == UserTurn("is 12 really right?") and [len(chat) for chat, _, _ in chats] == [5, 5]
    assert copied in [message["content"] for message in chats[0][0]]


# --- A user model.


@pytest.fixture
def user_model(tiny_chatml: Path, tmp_path: Path) -> Callable[..., SimulatorSection]:
    """Return a function that marks a tiny model as a user model and returns its section."""
    folder = tmp_path / "user"
    folder.mkdir()
    for file in tiny_chatml.iterdir():
        (folder / file.name).symlink_to(file)

    def make(template: str = "", intents: bool = True) -> SimulatorSection:
        sha256 = template or Chat(load_tokenizer(resolve(str(folder)))).template_sha256
        mark_user_model(folder, UserModelInfo("tiny", sha256, intents))
        return SimulatorSection(engine="adapter", model=str(folder), max_tokens=6, dtype="float32")

    return make


@pytest.mark.parametrize("intents", [True, False])
def test_a_user_model_continues_the_users_turn_after_the_intent(user_model: Any, intents: bool) -> None:
    asked: list[Request] = []

    def stream(requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        again = len(asked) >= 3
        asked.extend(requests)
        made = [Completion(" it is 3\n", 3, "stop"), Completion("", 1, "stop"), Completion("it is", 6, "length")]
        yield from [(0, made[2])] if again else reversed(list(enumerate(made)))

    requests = [ASKED, replace(SOLVED, seed=7), replace(ASKED, seed=6)]
    with open_simulator(user_model(intents=intents), 1, "simulator") as simulator:
        model: Any = simulator.own.others.model  # type: ignore[attr-defined]
        chat, model.engine.stream = model.chat, stream
        turns = simulator.turns(requests)
    assert turns == [UserTurn("it is 3"), UserTurn(ended=True), UserTurn(failure="user_cut")]
    for request, sent in zip([*requests, *requests[2:] * 2], asked, strict=True):
        views = [
            [{"role": "system", "content": intent_text(request.row, casual)}] * intents for casual in (True, False)
        ]
        assert sent.prompt_ids in [chat.user_prefix_ids([*view, *request.messages]) for view in views]
        assert sent.max_tokens == 6
    assert len({sent.seed for sent in asked}) == 5, "a turn that was cut is drawn again with other seeds"


def test_an_intent_states_the_wish_and_what_is_still_withheld() -> None:
    text = intent_text(ROW, casual=True)
    assert "the number of bags" in text and ROW.fact.reveal in text and "12" not in text
    assert len({intent_text(replace(ROW, wish=wish), False) for wish in ("result", "hint", "doubt")}) == 3


# --- A class of one's own.

OWN = """
from nextturn.probe.questions.simulation import UserTurn

class User:
    closed = 0
    def __init__(self, text="why?"):
        self.text = text
    def turns(self, requests):
        return [UserTurn(f"{self.text} ({len(request.messages)})") for request in requests]
    def close(self):
        User.closed += 1

class Silent:
    pass

class NoArgument:
    def turns(self): ...
"""


def test_a_class_of_ones_own_is_opened_with_its_options_and_closed(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "own_user.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    section = SimulatorSection(engine="own_user:User", options={"text": "how?"})
    with open_simulator(section, 1, "simulator") as simulator:
        assert simulator.turns([ASKED]) == [UserTurn("how? (2)")]
    assert simulator.own.own.made.closed == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "section",
    [
        {"engine": "no_such_module:User"},
        {"engine": "own_user:Silent"},
        {"engine": "own_user:User", "options": {"txt": "?"}},
        {"engine": "own_user:NoArgument"},
        {"engine": "adapter", "model": "nowhere"},
    ],
)
def test_a_simulator_that_cannot_be_opened_is_named(section: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "own_user.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    opened = open_simulator(SimulatorSection(**section), 1, "rollout.simulator")
    with pytest.raises(BadInput, match=r"rollout\.simulator\."), opened:
        pass


class Returns:
    """A class of one's own that returns a value, or raises it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def turns(self, requests: Sequence[UserRequest]) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def turns_of(value: Any, *requests: UserRequest) -> list[UserTurn]:
    section = SimulatorSection(engine=f"{__name__}:Returns", options={"value": value})
    with open_simulator(section, 1, "rollout.simulator") as simulator:
        return simulator.turns(requests)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "??",
        [UserTurn("why?")],
        [UserTurn("why?"), "why?"],
        [UserTurn(5), UserTurn("why?")],  # type: ignore[arg-type]
        [UserTurn("why?"), UserTurn(failure=None)],  # type: ignore[arg-type]
        OSError("no room"),
    ],
)
def test_a_class_that_raises_or_returns_no_user_turns_is_named(value: Any) -> None:
    with pytest.raises(BadInput, match=rf"rollout\.simulator.*{__name__}:Returns") as raised:
        turns_of(value, ASKED, SOLVED)
    assert raised.value.__cause__ is (value if isinstance(value, OSError) else None)


def test_a_server_that_is_gone_stays_what_it_is() -> None:
    with pytest.raises(EngineError):
        turns_of(EngineError("gone"), ASKED)


def test_an_empty_turn_is_a_failure_and_without_requests_a_class_is_not_called() -> None:
    assert turns_of([UserTurn(" ")], ASKED) == [UserTurn(" ", failure="user_empty")]
    assert turns_of(OSError("called")) == []


def test_a_user_model_of_another_template_is_refused(user_model: Any) -> None:
    opened = open_simulator(user_model("0" * 64), 1, "simulator")
    with pytest.raises(RecipeError, match="another chat template"), opened:
        pass


def test_the_example_of_the_recipes_complains_reveals_and_leaves(monkeypatch: Any) -> None:
    """Options of the recipe reach the class; equal requests get equal turns."""
    monkeypatch.chdir(ROOT)
    section = SimulatorSection(engine="recipes.simulated_user:Impatient", options={"patience": 1, "longest": 20})
    long = assistant("We multiply 3 times 4. " * 20)
    complained = replace(SOLVED, messages=(OPENING, long))
    left = replace(SOLVED, messages=(OPENING, long, user("Shorter."), long))
    with open_simulator(section, 0, "simulator") as simulator:
        turns = simulator.turns([ASKED, complained, left, SOLVED])
        again = simulator.turns([complained])
    assert turns[0] == UserTurn(ROW.fact.reveal)
    assert turns[1].text and not turns[1].ended and again == [turns[1]]
    assert turns[2:] == [UserTurn(ended=True)] * 2


# --- The check of every turn, whoever writes it.

TANK = (
    user("A tank holds 240 litres and loses 8 a minute. When is it half empty?"),
    assistant("120 / 8 = 15. So \\boxed{15}."),
)


@pytest.mark.parametrize(
    ("text", "unfit"),
    [
        *((text, "") for text in (
            "why 120?", "$120/8=15$, right?", "I got 30 = 240 / 8. Where did I go wrong?", "ok done, and for 10 a minute?",
            "To be sure: does it matter that the tank is round?", "Sorry, 9 a minute.", "Please stop at the first step.",
        )),
        *((text, "meta_planning") for text in (  # a scratchpad after the message
            "why 120?\n\n[The pupil is still unsure and should not give in yet.]", "why /8?\n\nScratchpad: ask for the unit next",
            "Where is the 8 from?\n<notes>beginner</notes>", "is it minutes?\n// stays in character",
        )),
        *((text, "meta_planning") for text in (  # a plan before it
            "I should act surprised by the 15. Really 15?", "Plan: doubt it once.\nReally 15?",
            "Okay, the assistant has solved it, so a question about the half. why half?",
        )),
        *((text, "as_assistant") for text in (  # the assistant's role
            "Certainly! Half of 240 is 120, and 120 / 8 = 15.", "You're welcome! Anything else I can do?", "so $\\boxed{15}$",
            "Good question! We need to halve it.", "a = 1\nb = 2\nc = 3\nd = 4",
        )),
        *((text, "end_mark") for text in (
            "Thanks. ###STOP###", "got it [CHAT_END]", "ok, bye\nTERMINATE", "thank you <<DONE>>", "fine **END OF CHAT**", "thanks </done>",
        )),
        *((text, "role_label") for text in ("User: why?", "why<|im_end|>")),
        ("", "empty"),
        ("\u4f60\u597d 5", "foreign"),
        (TANK[0]["content"], "repeats"),
        ("why half of it " * 9, "malformed"),
    ],
)  # fmt: skip
def test_a_turn_that_no_user_writes_is_refused_whoever_wrote_it(text: str, unfit: str) -> None:
    turn = CheckedSimulator(Returns([UserTurn(text)]), 1).turns([replace(ASKED, messages=TANK)])[0]
    assert turn == UserTurn(text, failure=f"user_{unfit}" * bool(unfit))


@pytest.mark.parametrize(("told", "failure"), [(0, "user_ended_early"), (1, "user_ended_early"), (2, "")])
def test_a_user_who_leaves_before_the_last_piece_has_failed(told: int, failure: str) -> None:
    pieces = replace(ROW, shards=("It has 3 bags.", "Each bag has 4."))
    messages = (*CHAT, *[message for text in pieces.shards[:told] for message in (user(text), assistant("Ok."))])
    leaves = CheckedSimulator(Returns([UserTurn(ended=True)]), 2)
    assert [turn.failure for turn in leaves.turns([UserRequest(pieces, messages, 0)])] == [failure]


def test_hardly_any_true_turn_of_the_written_conversations_is_refused() -> None:
    talks = [talk.messages for talk in written(Written(), seed=7)]
    turns = [(talk[:at], talk[at]["content"]) for talk in talks for at in range(2, len(talk), 2)]
    refused = [text for before, text in turns if unfit_user_turn(text, before)]
    assert len(turns) > 500 and len(refused) < 0.01 * len(turns), refused


# --- The section.


def test_a_script_stands_in_for_a_user_model_that_does_not_exist_yet(tmp_path: Path, capsys: Any) -> None:
    simulator = SimulatorSection(engine="adapter", model=str(tmp_path / "user"), fallback="scripted")
    dialogue = Dialogue(policy=RoleSection(server=SERVER), simulator=simulator)
    recipe = DataRecipe(source=Source(kind="math"), output=Output(path="d"), dialogue=dialogue)
    chosen = with_simulator(recipe).dialogue
    assert chosen is not None and chosen.simulator == SimulatorSection() and str(tmp_path) in capsys.readouterr().out
    (tmp_path / "user").mkdir()
    assert with_simulator(recipe) is recipe
