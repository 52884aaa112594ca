"""The example of a simulated user of one's own does what its page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextturn.data_builders.recipe import SimulatorSection
from nextturn.data_builders.simulators import open_simulator
from nextturn.probe.conversations import Message, assistant, user
from nextturn.probe.simulation import Intent, UserRequest, UserTurn

ROOT = Path(__file__).resolve().parents[2]
LONG = " ".join(["We multiply 3 times 4."] * 20)
OPENING = user("How much are 3 pens?")


def request(*messages: Message, hidden: tuple[str, ...] = ()) -> UserRequest:
    intent = Intent("a", "3 pens at $4 each.", clause="the price", reveal="A pen is $4.", hidden=hidden)
    return UserRequest(intent, (OPENING, *messages), seed=1)


def test_the_example_complains_reveals_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of the recipe reach the class; equal requests get equal turns."""
    monkeypatch.chdir(ROOT)
    section = SimulatorSection(engine="recipes.simulated_user:Impatient", options={"patience": 1, "longest": 20})
    asked = request(assistant("What does a pen cost?"), hidden=("4",))
    complaint, left = request(assistant(LONG)), request(assistant(LONG), user("Shorter."), assistant(LONG))
    with open_simulator(section, 0, "simulator") as simulator:
        turns = simulator.turns([asked, complaint, left, request(assistant("12"))])
        again = simulator.turns([complaint])
    assert turns[0] == UserTurn("A pen is $4.")
    assert turns[1].text and not turns[1].ended and again == [turns[1]]
    assert turns[2:] == [UserTurn(ended=True)] * 2
