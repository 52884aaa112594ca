"""Building data from two models behind servers, or in this process: nothing is lost, and every run ends the same."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextturn.data_builders.__main__ import main
from nextturn.data_builders.build import build
from nextturn.data_builders.dialogue import roles
from nextturn.data_builders.dialogue.replies import Reply
from nextturn.data_builders.dialogue.roles import EngineRole
from nextturn.data_builders.recipe import load_data_recipe
from nextturn.data_builders.rows import load_rl_rows, load_sft_rows
from nextturn.data_builders.text import states
from nextturn.probe.errors import EngineError, SettingsChanged, run_command
from nextturn.probe.files import read_json
from support.commands import start
from support.dialogue_server import MATRIX, contents, problems, recipe, role_of, rows_of, speak
from support.loopback import Answer, Faults, Loopback, Seen, chat_reply

ROOT = Path(__file__).resolve().parents[2]
N = 24


@pytest.fixture
def answers(tmp_path: Path) -> dict[str, str]:
    return problems(tmp_path / "problems.jsonl", N)


@pytest.fixture
def server(answers: dict[str, str]) -> Iterator[Loopback]:
    with Loopback({"/chat/completions": speak(answers)}) as opened:
        yield opened


def built(made: Path, out: Path, *overrides: str) -> Path:
    return build(load_data_recipe(made, overrides), out)


def test_the_folder_holds_every_conversation_and_all_views(server: Loopback, tmp_path: Path) -> None:
    from datasets import load_dataset

    # One attempt waits its full time: what a busy machine gives up on would be asked, and counted here, twice.
    out = built(recipe(tmp_path, server.url, attempts=1), tmp_path / "d")
    manifest = read_json(out / "manifest.json")
    kept, rejected = rows_of(out, "sft"), rows_of(out, "rejected")
    talks = [row for row in kept + rejected if row["kind"] != "replay"]
    assert N < manifest["conversations"] == len(talks) == len({row["id"] for row in talks})
    assert manifest["asked"] == manifest["kept"] + sum(manifest["rejected"].values()) == len(kept) + len(rejected)
    assert Counter(row["reason"] for row in rejected) == manifest["rejected"]
    assert "settings.json" in contents(out) and not (out / "calls").exists()
    asked = Counter(f"{role_of(seen.body)}.calls" for seen in server.requests)
    assert asked == {name: count for name, count in manifest["calls"].items() if name.endswith(".calls")}
    assert set(manifest["files"]) == set(contents(out)) - {"manifest.json", "settings.json", "card.md"}
    assert [row["id"] for row in kept] == [row["id"] for row in load_sft_rows(out)]

    told = [row["dialogue"] for row in kept if "dialogue" in row]
    assert len(told) > 0.6 * len(talks), "the server's replies are made to be kept"
    assert all(one["measured"]["solved"][0] == 1 and one["verdict"] >= 4 for one in told)
    withheld = [row for row in kept if row["kind"] == "underspecified"]
    assert withheld and all(row["dialogue"]["measured"]["without"] == [0, 4] for row in withheld)
    assert all(row["dialogue"]["withheld"] and row["dialogue"]["measured"]["with"][0] == 1 for row in withheld)
    prompts = rows_of(out, "rl")
    assert [row.id for row in load_rl_rows(out)] == [row["id"] for row in prompts]
    assert all(row["prompt"][-1]["role"] == "user" and row["answer"] and row["persona"] for row in prompts)
    for row in prompts:
        assert not any(states(one["content"], value) for one in row["prompt"] for value in row["hidden"])
    assert any(MATRIX in message["content"] for row in talks for message in row["messages"])
    assert all(MATRIX in text for text in re.findall(r"\\begin.*?end\{\w+\}", json.dumps(kept).replace("\\\\", "\\")))
    for view in ("sft", "rl"):
        files = {"data_files": str(out / view / "*.jsonl"), "cache_dir": str(tmp_path / "cache")}
        assert len(load_dataset("json", split="train", **files)) == len(rows_of(out, view)) > 0

    with pytest.raises(SettingsChanged, match=r"dialogue\.tries"):
        built(tmp_path / "recipe.yaml", out, "--dialogue.tries", "5")
    before = len(server.requests)
    built(recipe(tmp_path, "http://127.0.0.1:9/v1", at_once=2), out)
    assert len(server.requests) == before, "another server is no other setting, and a finished build asks nobody"


@pytest.mark.parametrize("slips", [0.0, 0.2])
def test_no_conversation_is_dropped_by_faults_of_the_server(
    answers: dict[str, str], tmp_path: Path, slips: float
) -> None:
    """A fifth of all replies are errors, lost, empty or broken; or a fifth are cut, empty or out of role."""
    share = 0.0 if slips else 0.04
    faults = Faults(
        rate_limited=share, server_error=share, disconnect=share, empty_text=share, invalid_json=share,
        retry_after="0.01", seed=2,
    )  # fmt: skip
    with Loopback({"/chat/completions": speak(answers, slips)}, faults) as server:
        made = recipe(tmp_path, server.url)
        out = built(made, tmp_path / "d")
        assert slips or server.faults_sent.total() > 0.1 * len(server.requests)
    manifest = read_json(out / "manifest.json")
    talks = [row for row in rows_of(out, "sft") + rows_of(out, "rejected") if row["kind"] != "replay"]
    assert len(talks) == manifest["conversations"] == len({row["id"] for row in talks})
    assert manifest["asked"] == manifest["kept"] + sum(manifest["rejected"].values())
    for row in rows_of(out, "rejected"):
        assert row["reason"] and (row["kind"] == "replay" or isinstance(row["slips"], list))
        named = row["reason"].endswith(("_refused", "_server_error", "_timeout", "_bad_reply"))
        assert not named or row["reason"] == "judge_refused", "what the server failed at was asked for again"
    for row in rows_of(out, "sft"):
        assert [one["role"] for one in row["messages"]] == ["user", "assistant"] * (len(row["messages"]) // 2)
        assert all(one["content"].strip() for one in row["messages"])
    if not slips:
        with Loopback({"/chat/completions": speak(answers)}) as sound:
            assert contents(out) == contents(built(recipe(tmp_path, sound.url), tmp_path / "sound"))


def test_models_that_make_nothing_usable_are_named_early(
    answers: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After twenty conversations, not after all of them: a policy of 0.5B gave none in two hours."""
    with Loopback({"/chat/completions": lambda seen: chat_reply("I do not know.")}) as server:
        built(recipe(tmp_path, server.url), tmp_path / "none")
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert re.search(r"warning: none of the first 2\d conversations .*2\d unsolved", said)
    with Loopback({"/chat/completions": speak(answers)}) as server:
        built(recipe(tmp_path, server.url), tmp_path / "some")
    assert "none can be used" not in capsys.readouterr().out


def test_a_role_that_never_answers_rejects_under_its_name(answers: dict[str, str], tmp_path: Path) -> None:
    """Simulators of half the problems are refused for good."""

    def partly(seen: Seen) -> dict[str, Any] | Answer:
        text = seen.body["messages"][0]["content"]
        if role_of(seen.body) == "simulator" and any(f"Zoea{letter} " in text for letter in "abcdefghijkl"):
            return Answer(400, {"error": {"message": "content filter"}})
        return speak(answers)(seen)

    with Loopback({"/chat/completions": partly}) as server:
        out = built(recipe(tmp_path, server.url), tmp_path / "d")
    manifest = read_json(out / "manifest.json")
    assert manifest["rejected"]["opening_refused"] >= 6
    assert manifest["asked"] == manifest["kept"] + sum(manifest["rejected"].values())


def test_a_server_that_refuses_everything_or_is_not_there_ends_the_build(
    answers: dict[str, str], tmp_path: Path
) -> None:
    def refuse(seen: Seen) -> Answer:
        return Answer(404, {"error": {"message": "no such model"}})

    with (
        Loopback({"/chat/completions": refuse}) as server,
        pytest.raises(EngineError, match="last 32 requests.*no such model.*is `model` what"),
    ):
        built(recipe(tmp_path, server.url), tmp_path / "d", "--source.n", "60")
    with pytest.raises(EngineError, match="no server answers"):
        built(recipe(tmp_path, "http://127.0.0.1:9/v1"), tmp_path / "away")
    assert not (tmp_path / "d" / "manifest.json").exists()


def test_same_seed_same_bytes_whatever_the_order_and_another_seed_another_text(
    server: Loopback, answers: dict[str, str], tmp_path: Path
) -> None:
    first = built(recipe(tmp_path, server.url), tmp_path / "a")
    with Loopback({"/chat/completions": speak(answers)}, Faults(disconnect=0.03, latency_s=0.003)) as other:
        made = recipe(tmp_path, other.url)
        assert contents(built(made, tmp_path / "b", "--dialogue.at_once", "3")) == contents(first)
        changed = built(made, tmp_path / "c", "--seed", "4")
    talks = {row["id"]: row["messages"] for row in rows_of(first, "sft") + rows_of(first, "rejected")}
    others = {row["id"]: row["messages"] for row in rows_of(changed, "sft") + rows_of(changed, "rejected")}
    both = [name for name in talks if len(talks[name]) > 1 and name in others and not name.endswith("replay")]
    assert both and sum(talks[name] == others[name] for name in both) < len(both) / 2


def begin(made: Path, out: Path) -> start:
    return start(["-m", "nextturn.data_builders", str(made), "--out", str(out)])


def test_a_killed_build_ends_with_the_same_bytes_and_requests_no_reply_twice(
    answers: dict[str, str], tmp_path: Path
) -> None:
    with Loopback({"/chat/completions": speak(answers)}, Faults(latency_s=0.02)) as server:
        made = recipe(tmp_path, server.url, attempts=1, at_once=6)  # as above
        begin(made, tmp_path / "whole").finish()
        wanted = Counter(json.dumps(seen.body) for seen in server.requests)
        server.requests.clear()
        for share in (0.2, 0.6):
            process = begin(made, tmp_path / "killed")
            before = len(server.requests)
            while len(server.requests) < before + share * wanted.total() / 2:
                assert process.poll() is None, process.output
                time.sleep(0.005)
            process.kill()
        assert not (tmp_path / "killed" / "manifest.json").exists()
        said = begin(made, tmp_path / "killed").finish()
        asked = Counter(json.dumps(seen.body) for seen in server.requests)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert set(asked) == set(wanted)
    assert asked.total() - wanted.total() <= 2 * 8, "only what was under way at a kill is asked for again"
    assert f"of {read_json(tmp_path / 'whole' / 'manifest.json')['asked']} conversations kept" in said


def test_roles_on_one_server_share_its_slots(answers: dict[str, str], tmp_path: Path) -> None:
    with Loopback({"/chat/completions": speak(answers)}, Faults(latency_s=0.03)) as server:
        # One attempt waits its full time: a request given up on a busy machine would still be under way at the server.
        built(recipe(tmp_path, server.url, attempts=1), tmp_path / "d")
        assert server.most_under_way == 8
        simulator = {"server": {"urls": [server.url], "model": "tiny", "concurrency": 4, "attempts": 1}}
        built(recipe(tmp_path, server.url, attempts=1, simulator=simulator), tmp_path / "two")
        assert server.most_under_way == 12


# --- the command


def test_the_dry_run_sends_no_request_and_reports_unknown_costs_as_unknown(
    server: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(recipe(tmp_path, server.url)), "--out", str(tmp_path / "d"), "--dry-run"])
    shown = capsys.readouterr().out
    assert not server.requests and not (tmp_path / "d").exists()
    assert "17 problems" in shown and "about 29 conversations" in shown  # the others are for replay
    assert "tokens, calls and cost: unknown" in shown and "that somebody types" in shown


@pytest.mark.parametrize(
    ("override", "named"),
    [
        (["--dialogue.trys", "2"], "dialogue.tries"),
        (["--dialogue.withheld", "1.5"], "dialogue.withheld"),
        (["--conversations.reactions", "0.1"], "`dialogue`"),
        (["--dialogue.policy.server.concurrency", "0"], "dialogue.policy.server.concurrency"),
    ],
)
def test_a_wrong_section_is_answered_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], override: list[str], named: str
) -> None:
    problems(tmp_path / "problems.jsonl", 2)
    assert run_command(main, [str(recipe(tmp_path, "http://127.0.0.1:9/v1")), *override]) == 2
    message = capsys.readouterr().err
    assert named in message and message.count("\n") == 1


def test_without_hub_or_model_one_line_names_what_is_needed_and_a_recipe_that_needs_nothing(
    own_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, out = str(ROOT / "recipes" / "math_collab.yaml"), str(tmp_path / "d")
    problems(tmp_path / "problems.jsonl", 2)
    here = ["--source.kind", "gsm8k", "--source.path", str(tmp_path / "problems.jsonl"), "--replay.fraction", "0"]
    here += ["--quality.decontaminate", "[]"]
    for given in ([], here):
        assert run_command(main, [made, "--out", out, *given]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and "dialogue.policy" in told and "recipes/written.yaml needs nothing" in told


# --- models in this process


@pytest.mark.parametrize("user_by", ["engine", "server"])
def test_models_in_this_process_end_with_the_same_bytes_after_a_stop(
    user_by: str, tiny_chatml: Path, answers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, where a text can hang on its batch. A tiny random model solves nothing, so its replies are put in the
    words of the server, by what it said; cuts are let pass."""
    local = {"engine": "hf", "model": str(tiny_chatml), "max_tokens": 8, "dtype": "bfloat16", "batch_tokens": 800}
    monkeypatch.setattr(roles.RoleModel, "ask", _as_the_server(speak(answers), roles.RoleModel.ask))

    class Stopped(Exception):
        pass

    with Loopback({"/chat/completions": speak(answers)}) as server:
        made = recipe(tmp_path, server.url, policy=local)
        data = yaml.safe_load(made.read_text())
        if user_by == "server":
            data["dialogue"]["simulator"] = {"server": {"urls": [server.url], "model": "tiny", "concurrency": 4}}
        data["output"]["shard_size"] = 3
        data["source"]["n"] = 6
        made.write_text(yaml.safe_dump(data))
        whole = contents(built(made, tmp_path / "whole"))
        make, left = EngineRole.make_replies, [5]

        def stopping(role: EngineRole) -> None:
            make(role)
            left[0] -= 1
            if not left[0]:
                raise Stopped

        with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
            patch.setattr(EngineRole, "make_replies", stopping)
            built(made, tmp_path / "stopped")
        assert list((tmp_path / "stopped" / "calls").rglob("generations.jsonl"))
        assert contents(built(made, tmp_path / "stopped")) == whole
    manifest = json.loads(whole["manifest.json"])
    assert manifest["kept"] > 3 and manifest["calls"]["assistant.calls"] > 20


def _as_the_server(say: Any, ask: Any) -> Any:
    """`RoleModel.ask`, with what a model in this process said taken as the seed of what the server says to the prompt."""

    async def asked(self: Any, messages: Any, read: Any, seed: Any, tries: int, **told: Any) -> Any:
        def read_as(reply: Reply) -> Any:
            body = {"messages": list(messages), "said": reply.text}
            text = say(Seen(0, 0.0, "POST", "/chat/completions", {}, body))["choices"][0]["message"]["content"]
            return read(replace(reply, text=text, cut=False))

        return await ask(self, messages, read_as if isinstance(self, EngineRole) else read, seed, tries, **told)

    return asked
