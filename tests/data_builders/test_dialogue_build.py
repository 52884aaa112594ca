"""Building conversations with models behind servers or in this process: nothing is lost, and every run ends the same."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextturn.data_builders.__main__ import main
from nextturn.data_builders.build import build
from nextturn.data_builders.numbers import states
from nextturn.data_builders.rows import load_rl_rows, load_sft_rows
from nextturn.data_builders.sections import load_data_recipe
from nextturn.probe.command.errors import DataError, EngineError, RecipeError, SettingsChanged, run_command
from nextturn.probe.command.files import read_json, write_json
from nextturn.probe.engines import ask
from nextturn.probe.models.folders import load_tokenizer, resolve
from nextturn.probe.models.user_model import UserModelInfo, mark_user_model
from nextturn.probe.text.chat import Chat
from support.commands import start
from support.dialogue_server import MATRIX, contents, problems, recipe, role_of, rows_of, speak
from support.loopback import Answer, Faults, Loopback, Seen, chat_reply
from support.model_parts import lora_on

N = 12
NOWHERE = "http://127.0.0.1:9/v1"
Sound = tuple[Path, list[Seen]]


@pytest.fixture
def answers(tmp_path: Path) -> dict[str, str]:
    return problems(tmp_path / "problems.jsonl", N)


@pytest.fixture
def server(answers: dict[str, str]) -> Iterator[Loopback]:
    with Loopback({"/chat/completions": speak(answers)}) as opened:
        yield opened


def built(path: Path, out: Path, *overrides: str) -> Path:
    return build(load_data_recipe(path, overrides), out)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """A build from a server without faults, and all requests that it got."""
    folder = tmp_path_factory.mktemp("sound")
    with Loopback({"/chat/completions": speak(problems(folder / "problems.jsonl", N))}) as server:
        # One attempt waits its full time: what a busy machine gives up on would be asked, and counted here, twice.
        return built(recipe(folder, server.url, attempts=1), folder / "d"), list(server.requests)


def test_the_folder_holds_every_conversation_and_all_views(sound: Sound) -> None:
    out, requests = sound
    manifest, card = read_json(out / "manifest.json"), (out / "README.md").read_text()
    kept, rejected = rows_of(out, "sft"), rows_of(out, "rejected")
    made = [row for row in kept + rejected if "dialogue" in row]
    solved = [row for row in made if row["dialogue"]["measured"]["solved"][0]]
    assert manifest["conversations"] == len(made) == len({row["id"] for row in made}) and len(solved) == len(made)
    assert manifest["asked"] == manifest["kept"] + sum(manifest["rejected"].values()) == len(kept) + len(rejected)
    assert Counter(row["reason"] for row in rejected) == manifest["rejected"]
    events = [event for row in made for event in row["dialogue"]["events"].split()]
    assert Counter(events) == manifest["events"] and manifest["events"]["reveal.simulator"] > 0
    asked = Counter(f"{role_of(seen.body)}.calls" for seen in requests)
    assert asked["assistant.calls"] == manifest["calls"]["assistant.calls"]
    assert set(manifest["files"]) == set(contents(out)) - {"manifest.json", "settings.json", "README.md"}
    assert [row["id"] for row in kept] == [row["id"] for row in load_sft_rows(out)]
    assert "underspecified" in card
    # The server's replies are made to be kept, and its user often goes on.
    assert 2 * sum(len(row["messages"]) > 2 for row in kept if "dialogue" in row) > len(made) > N / 2
    assert {row["dialogue"]["ended"] for row in kept if "dialogue" in row} >= {"", "turn"}
    withheld = [row for row in kept if row["kind"] == "underspecified"]
    assert withheld and all(row["dialogue"]["measured"]["without"] == [0, 4] for row in withheld)
    prompts = list(load_rl_rows(out))
    assert any(row.hidden for row in prompts)
    for row in prompts:
        assert not any(states(message["content"], value) for message in row.prompt for value in row.hidden)
    assert all(MATRIX in row["messages"][-1]["content"] or row["doubts"] for row in kept if "dialogue" in row)

    with pytest.raises(SettingsChanged, match=r"dialogue\.tries"):
        built(out.parent / "recipe.yaml", out, "--dialogue.tries", "5")
    built(recipe(out.parent, NOWHERE), out)  # another server is no other setting, and a finished build asks nobody


def test_faults_and_the_order_of_replies_change_nothing(sound: Sound, answers: dict[str, str], tmp_path: Path) -> None:
    faults = Faults(
        rate_limited=0.04, server_error=0.04, disconnect=0.04, empty_text=0.04, invalid_json=0.04, retry_after="0.01",
        seed=2,
    )  # fmt: skip
    with Loopback({"/chat/completions": speak(answers)}, faults) as broken:
        assert contents(built(recipe(sound[0].parent, broken.url), tmp_path / "d")) == contents(sound[0])
        assert broken.faults_sent.total() > 0.1 * len(broken.requests)


def test_the_seed_changes_the_conversations(sound: Sound, server: Loopback, tmp_path: Path) -> None:
    changed = contents(built(recipe(tmp_path, server.url), tmp_path / "c", "--seed", "4", "--source.n", "4"))
    assert changed["sft/part-00000.jsonl"] != contents(sound[0])["sft/part-00000.jsonl"]


def test_unusable_replies_are_counted_and_shown_with_what_they_cost(answers: dict[str, str], tmp_path: Path) -> None:
    def partly(seen: Seen) -> dict[str, Any] | Answer:
        if any(f"Zoea{letter} " in json.dumps(seen.body) for letter in "abcd"):
            return Answer(400, {"error": {"message": "content filter"}})
        return speak(answers, slips=0.3)(seen)

    with Loopback({"/chat/completions": partly}) as server:
        out = built(recipe(tmp_path, server.url), tmp_path / "d", "--source.n", "8")
    manifest, rejected = read_json(out / "manifest.json"), rows_of(out, "rejected")
    assert manifest["rejected"]["assistant_refused"] >= 2
    assert manifest["asked"] == manifest["kept"] + sum(manifest["rejected"].values())
    assert all(isinstance(row["slips"], list) for row in rejected if "dialogue" in row)
    assert any(row["dialogue"]["slips"] for row in rows_of(out, "sft") if "dialogue" in row)


def test_a_policy_that_solves_nothing_stops_the_build_at_once(answers: dict[str, str], tmp_path: Path) -> None:
    with Loopback({"/chat/completions": lambda seen: chat_reply("I do not know.")}) as server:
        with pytest.raises(DataError, match="solved 0 of the first 4 .*unsolved.*dialogue.least_solved"):
            built(recipe(tmp_path, server.url), tmp_path / "d")
        assert len(server.requests) == 4 * 4 and not (tmp_path / "d" / "sft").exists()


def test_a_server_that_refuses_all_or_is_not_there_ends_the_build(answers: dict[str, str], tmp_path: Path) -> None:
    refused = Answer(404, {"error": {"message": "no such model"}})
    with Loopback({"/chat/completions": lambda seen: refused}) as server, pytest.raises(EngineError, match="no such"):
        built(recipe(tmp_path, server.url), tmp_path / "d", "--output.shard_size", "40", "--source.n", "40")
    with pytest.raises(EngineError, match="no server answers"):
        built(recipe(tmp_path, NOWHERE), tmp_path / "away")
    assert not (tmp_path / "d" / "manifest.json").exists()


def test_a_killed_build_ends_the_same_and_asks_nothing_twice(
    sound: Sound, answers: dict[str, str], tmp_path: Path
) -> None:
    out, wanted = tmp_path / "killed", Counter(json.dumps(seen.body) for seen in sound[1])
    with Loopback({"/chat/completions": speak(answers)}, Faults(latency_s=0.02)) as server:
        path = recipe(sound[0].parent, server.url, attempts=1)
        process = start(["-m", "nextturn.data_builders", str(path), "--out", str(out)])
        while len(server.requests) < 0.4 * wanted.total():
            assert process.poll() is None, process.output
            time.sleep(0.005)
        process.kill()
        assert not (out / "manifest.json").exists()
        built(path, out)
        asked = Counter(json.dumps(seen.body) for seen in server.requests)
    assert contents(out) == contents(sound[0])
    assert set(asked) == set(wanted)
    assert asked.total() - wanted.total() <= 8, "only what was under way at the kill is asked for again"


# --- The command.


def test_the_dry_run_sends_no_request(server: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(recipe(tmp_path, server.url)), "--out", str(tmp_path / "d"), "--dry-run"])
    assert "unknown until the models have answered" in capsys.readouterr().out
    assert not server.requests and not (tmp_path / "d").exists()


OWN = """
from nextturn.probe.questions.simulation import UserTurn

class Vague:
    def turns(self, requests):
        return [UserTurn(f"well, {request.row.fact.reveal.split()[0]}" if request.row.fact.reveal else "") for request in requests]
"""


def test_a_class_of_ones_own_is_checked_by_a_dry_run_and_its_file_is_an_input(
    server: Loopback, tmp_path: Path, own_cache: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file, out = tmp_path / "vague_user.py", tmp_path / "d"
    file.write_text(OWN)
    path = recipe(tmp_path, server.url, simulator={"engine": "vague_user:Vague"})
    for more in ([], ["--source", "{kind: math}"]):  # where there is no hub, too
        assert run_command(main, [str(path), "--dry-run", *more]) == 0
        assert run_command(main, [str(path), "--dialogue.simulator.engine", "vague_user:Vage", "--dry-run", *more]) == 2
        assert "dialogue.simulator.engine: vague_user:Vage" in capsys.readouterr().err
    assert not server.requests

    assert run_command(main, [str(path), "--out", str(out)]) == 0
    events, said = read_json(out / "manifest.json")["events"], capsys.readouterr().out
    rules = events["reveal.rules"]
    assert rules > 0 and "reveal.simulator" not in events and events["turn.user_empty"] > 0
    for text in (said, (out / "README.md").read_text()):
        assert f"{rules} of {rules}" in text and "user_empty" in text
    assert run_command(main, [str(path), "--out", str(out)]) == 0

    file.write_text(f"{OWN}\n# changed")
    with pytest.raises(SettingsChanged, match=r"inputs\.vague_user\.py"):
        main([str(path), "--out", str(out)])
    settings = read_json(out / "settings.json")
    del settings["inputs"][file.name]  # a build from before the hash
    write_json(out / "settings.json", settings)
    assert run_command(main, [str(path), "--out", str(out)]) == 0


# --- Models in this process.


def test_a_policy_and_its_user_in_this_process_end_the_same_after_a_stop(
    tiny_chatml: Path, answers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, where a text can depend on its batch. A tiny random model solves nothing, so its replies are put into the
    words of the server, by what it said."""
    user_model, say = lora_on(tiny_chatml, tmp_path / "user"), speak(answers)
    template = Chat(load_tokenizer(resolve(str(tiny_chatml)))).template_sha256
    mark_user_model(user_model, UserModelInfo("tiny", template, intents=True))
    local = {"dtype": "bfloat16", "batch_tokens": 800, "max_tokens": 8}
    path = recipe(
        tmp_path, "", policy={"engine": "hf", "model": str(tiny_chatml), **local},
        simulator={"engine": "adapter", "model": str(user_model), **local},
    )  # fmt: skip
    data = yaml.safe_load(path.read_text())
    data["source"]["n"], data["output"]["shard_size"] = 4, 2
    path.write_text(yaml.safe_dump(data))
    replies = ask.EngineModel.replies

    def as_the_server(model: ask.EngineModel, chats: Any, ends: Any = None) -> Iterator[tuple[int, ask.Reply]]:
        for index, reply in replies(model, chats, ends):
            messages, seed, _ = chats[index]
            text = say(Seen(0, 0.0, "POST", "", {}, {"messages": list(messages), "seed": seed, "said": reply.text}))
            yield index, ask.Reply(text["choices"][0]["message"]["content"], 9, 8)  # type: ignore[index]

    monkeypatch.setattr(ask.EngineModel, "replies", as_the_server)
    whole = contents(built(path, tmp_path / "whole"))
    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr("nextturn.data_builders.build.ConversationMaker.add_reactions", stop)
        built(path, tmp_path / "stopped")
    assert list((tmp_path / "stopped" / "calls").rglob("generations.jsonl"))
    assert contents(built(path, tmp_path / "stopped")) == whole
    manifest = json.loads(whole["manifest.json"])
    assert manifest["kept"] > 2 and manifest["calls"]["simulator.calls"] > 6
    (user_model / "user_model.json").unlink()
    with pytest.raises(RecipeError, match="holds no user model"):
        built(path, tmp_path / "none")


def stop(*arguments: object) -> None:
    raise InterruptedError
