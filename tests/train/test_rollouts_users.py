"""The simulated users of a rollout: a model behind a server or in this process, and what becomes of their failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nextturn.data_builders.rows import RlRow
from nextturn.data_builders.user import ScriptedUser
from nextturn.probe.settings import ServerSection
from nextturn.train.recipe import SimulatorSection
from nextturn.train.rollouts import ModelSimulator, ScriptedSimulator, UserTurn, open_simulator
from support.dialogue_server import role_of
from support.loopback import Answer, Faults, Loopback, Seen, chat_reply
from support.rollout_parts import ROWS, row

CHAT = [*ROWS["a"].prompt, {"role": "assistant", "content": "How many bags does Ann have?"}]


def served(url: str, **more: Any) -> ModelSimulator:
    server = ServerSection(urls=(url,), model="tiny", concurrency=8, attempts=2, timeout_s=20)
    return ModelSimulator(SimulatorSection(engine="openai", server=server, max_tokens=80, **more), seed=1)


def turns_of(answer: Any, *users: tuple[RlRow, int], **more: Any) -> tuple[list[UserTurn], list[dict[str, Any]]]:
    """The turns of some users (row, seed) one after another, whose server answers `answer(seen)`, and the requests."""
    with Loopback({"/chat/completions": answer}) as server:
        simulator = served(server.url, **more)
        turns = [simulator.reply([(simulator.user(*user), CHAT)])[0] for user in users or [(ROWS["a"], 5)]]
        simulator.close()
        return turns, [seen.body for seen in server.requests]


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


def test_a_user_knows_the_whole_problem_and_what_is_withheld_and_no_answer() -> None:
    (turn,), requests = turns_of(lambda seen: chat_reply("<message>3 of them</message>"))
    prompt = requests[0]["messages"][0]["content"]
    assert turn.text == "3 of them"
    assert ROWS["a"].problem in prompt and "how many bags Ann has (3)" in prompt
    assert ROWS["a"].answer == "12" and "12" not in prompt.replace(ROWS["a"].problem, "")


def test_unusable_messages_are_sampled_again_and_end_in_a_reason() -> None:
    replies = iter(["Assistant: sure, let me help.", "User: no", "<message>3 bags</message>"])
    users = [(ROWS["a"], 5), (ROWS["a"], 6)]
    (good, failed), requests = turns_of(lambda seen: chat_reply(next(replies, "User: no")), *users, tries=3)
    assert (good.text, good.failure) == ("3 bags", "")
    assert (failed.text, failed.ended, failed.failure) == ("", False, "simulator_role_label")
    seeds = [request["seed"] for request in requests]
    assert len(set(seeds)) == len(seeds)


def test_a_failing_server_is_a_failure_and_an_end_is_an_end() -> None:
    (turn,), _ = turns_of(lambda seen: Answer(500, {"error": "broken"}))
    assert not turn.ended and turn.failure.startswith("simulator_")
    (turn,), _ = turns_of(lambda seen: chat_reply("<end>"))
    assert turn.ended and not turn.failure


def test_a_withheld_sentence_may_be_revealed_word_for_word() -> None:
    goal = "Find the greatest whole number that is smaller than the sum of all of these numbers in the list."
    withheld = row(
        problem=f"There is a list. {goal}", hidden=(goal,), clause="what is to be found", reveal=goal, short=goal
    )
    (turn,), _ = turns_of(lambda seen: chat_reply(f"<message>{goal}</message>"), (withheld, 5))
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
