"""The simulated users of a rollout: a model behind a server or in this process, and what becomes of their failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nextturn.data_builders.user import ScriptedUser
from nextturn.probe.settings import ServerSection
from nextturn.train.recipe import SimulatorSection
from nextturn.train.rollouts import ModelSimulator, ScriptedSimulator, open_simulator
from support.dialogue_server import role_of
from support.loopback import Answer, Faults, Loopback, Seen, chat_reply
from support.rollout_parts import ROWS, row

CHAT = [*ROWS["a"].prompt, {"role": "assistant", "content": "How many bags does Ann have?"}]


def served(url: str, **more: Any) -> ModelSimulator:
    server = ServerSection(urls=(url,), model="tiny", concurrency=8, attempts=2, timeout_s=20)
    return ModelSimulator(SimulatorSection(engine="openai", server=server, max_tokens=80, **more), seed=1)


def test_every_user_of_a_step_is_asked_at_once_and_answered_in_order() -> None:
    def said(seen: Seen) -> dict[str, Any] | Answer:
        assert role_of(seen.body) == "simulator"
        number = seen.body["messages"][0]["content"].split("reply number ")[1].split()[0]
        return chat_reply(f"<message>about {number}, why?</message>")

    with Loopback({"/chat/completions": said}, Faults(latency_s=0.2)) as server:
        simulator = served(server.url)
        for _ in range(2):  # a second step opens the way to the server again
            users = [simulator.user(ROWS["a"], seed) for seed in range(8)]
            asked = [[*CHAT[:1], {"role": "assistant", "content": f"reply number {n} ok"}] for n in range(8)]
            turns = simulator.reply(list(zip(users, asked, strict=True)))
            assert [turn.text for turn in turns] == [f"about {n}, why?" for n in range(8)]
        simulator.close()
        first = [seen.at for seen in server.requests[:8]]
        assert max(first) - min(first) < 0.2, "all were under way before the first came back"


def test_a_user_is_told_the_whole_problem_and_what_is_withheld() -> None:
    with Loopback({"/chat/completions": lambda seen: chat_reply("<message>3 of them</message>")}) as server:
        simulator = served(server.url)
        (turn,) = simulator.reply([(simulator.user(ROWS["a"], 5), CHAT)])
        simulator.close()
        prompt = server.requests[0].body["messages"][0]["content"]
    assert turn.text == "3 of them"
    assert ROWS["a"].problem in prompt and "how many bags Ann has (3)" in prompt
    assert ROWS["a"].answer == "12" and "12" not in prompt.replace(ROWS["a"].problem, ""), "a user has no key"


def test_slips_are_asked_for_again_and_end_in_a_reason() -> None:
    replies = iter(["Assistant: sure, let me help.", "User: no", "<message>3 bags</message>"])
    with Loopback({"/chat/completions": lambda seen: chat_reply(next(replies, "User: no"))}) as server:
        simulator = served(server.url, tries=3)
        (turn,) = simulator.reply([(simulator.user(ROWS["a"], 5), CHAT)])
        assert (turn.text, turn.failure) == ("3 bags", "")
        (turn,) = simulator.reply([(simulator.user(ROWS["a"], 6), CHAT)])
        assert (turn.text, turn.ended, turn.failure) == ("", False, "simulator_role_label")
        simulator.close()
        seeds = [seen.body["seed"] for seen in server.requests]
    assert len(set(seeds)) == len(seeds)


def test_a_server_that_fails_gives_a_failure_and_not_an_end() -> None:
    with Loopback({"/chat/completions": lambda seen: Answer(500, {"error": "broken"})}) as server:
        simulator = served(server.url)
        (turn,) = simulator.reply([(simulator.user(ROWS["a"], 5), CHAT)])
        simulator.close()
    assert not turn.ended and turn.failure.startswith("simulator_")


def test_a_user_may_end_the_chat() -> None:
    with Loopback({"/chat/completions": lambda seen: chat_reply("<end>")}) as server:
        simulator = served(server.url)
        (turn,) = simulator.reply([(simulator.user(ROWS["a"], 5), CHAT)])
        simulator.close()
    assert turn.ended and not turn.failure


def test_a_sentence_that_was_withheld_may_be_told_word_for_word() -> None:
    goal = "Find the greatest whole number that is smaller than the sum of all of these numbers in the list."
    told = row(
        problem=f"There is a list. {goal}", hidden=(goal,), clause="what is to be found", reveal=goal, short=goal
    )
    with Loopback({"/chat/completions": lambda seen: chat_reply(f"<message>{goal}</message>")}) as server:
        simulator = served(server.url)
        (turn,) = simulator.reply([(simulator.user(told, 5), CHAT)])
        simulator.close()
    assert turn.text == goal


def test_a_model_in_this_process_plays_the_user(tiny_chatml: Path) -> None:
    """Random weights say nothing usable: that is a failure with its reason, the same one each time."""
    section = SimulatorSection(engine="hf", model=str(tiny_chatml), max_tokens=8, tries=2, dtype="float32")
    simulator = open_simulator(section, 1)
    turns = simulator.reply([(simulator.user(ROWS["a"], seed), CHAT) for seed in range(3)])
    assert {turn.failure for turn in turns} == {"simulator_cut"}
    assert simulator.reply([]) == []
    simulator.close()


def test_a_row_without_a_persona_gets_one_by_its_seed() -> None:
    simulator = served("http://127.0.0.1:9/v1")
    user = simulator.user(ROWS["a"], 5)
    assert user == simulator.user(ROWS["a"], 5)
    assert (user.question, user.hidden, user.clause) == (ROWS["a"].problem, ("3",), "how many bags Ann has")
    assert len({simulator.user(ROWS["a"], seed).persona for seed in range(40)}) > 5
    own = simulator.user(row(persona="terse"), 5).persona
    assert own == "terse"
    simulator.close()


def test_the_scripted_user_answers_what_it_is_asked() -> None:
    simulator = open_simulator(SimulatorSection(), 1)
    assert isinstance(simulator, ScriptedSimulator)
    user = simulator.user(ROWS["a"], 4)
    assert isinstance(user, ScriptedUser)
    (turn,) = simulator.reply([(user, CHAT)])
    assert "3 bags" in turn.text
    done = [*CHAT, {"role": "user", "content": turn.text}, {"role": "assistant", "content": "So \\boxed{12}."}]
    (turn,) = simulator.reply([(user, done)])
    assert turn.ended
