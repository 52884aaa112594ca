"""Replay rows that a model answers: the first right reply is kept, nothing is lost or paid for twice."""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextturn.data_builders import replay as replay_answers
from nextturn.data_builders.__main__ import main
from nextturn.data_builders.build import Build, build
from nextturn.data_builders.dialogue import roles
from nextturn.data_builders.dialogue.replies import Reply
from nextturn.data_builders.dialogue.roles import EngineRole
from nextturn.data_builders.recipe import load_data_recipe
from nextturn.probe.errors import SettingsChanged, run_command
from nextturn.probe.files import read_json, write_jsonl
from support.commands import start
from support.dialogue_server import contents, problems, rows_of, speak
from support.dialogue_server import recipe as dialogue_recipe
from support.loopback import Answer, Faults, Handler, Loopback, Seen, chat_reply

ROOT = Path(__file__).resolve().parents[2]
N, TRIES = 40, 3
FORMULA = r"First $\frac{1}{2} \times 4 \neq \begin{pmatrix} 1 \\ 0 \end{pmatrix}$."


@pytest.fixture
def answers(tmp_path: Path) -> dict[str, str]:
    return problems(tmp_path / "problems.jsonl", N)


def answerer(answers: dict[str, str]) -> Handler:
    """Right at times, and at times cut off, silent, out of role or wrong; the same request gets the same reply."""

    def said(seen: Seen) -> dict[str, Any] | Answer:
        text = seen.body["messages"][0]["content"]
        assert len(seen.body["messages"]) == 1 and "has" in text, "the bare question is asked"
        right = answers[text.split()[0]]
        rng = random.Random(json.dumps(seen.body, sort_keys=True))
        form = rng.choice(("boxed", "stated", "wrong", "wrong", "cut", "role"))
        return {
            "boxed": chat_reply(f"{FORMULA} So \\boxed{{{right}}}"),
            "stated": chat_reply(f"{FORMULA}\n\nThe answer is {right}."),
            "wrong": chat_reply(f"{FORMULA} So \\boxed{{{int(right) + 1}}}"),
            "cut": chat_reply(f"We want {right}, so", "length"),
            "role": chat_reply(f"User: is it \\boxed{{{right}}}?"),
        }[form]

    return said


def recipe(folder: Path, url: str, attempts: int = 40, **replay: Any) -> Path:
    """Scripted conversations, and replay rows from the model at `url`."""
    server = {"urls": [url], "model": "base", "concurrency": 4, "attempts": attempts, "timeout_s": 20}
    source = {"kind": "gsm8k", "path": str(folder / "problems.jsonl")}
    section = {"fraction": 0.4, "source": "gsm8k", "answers": "model", "tries": TRIES, **replay}
    section.setdefault("model", {"server": server, "max_tokens": 200})
    data = {
        "source": source, "replay": section, "output": {"path": str(folder / "d"), "shard_size": 8}, "seed": 5,
        "quality": {"max_same_wording": 1.0},
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def built(made: Path, out: Path, *overrides: str) -> Path:
    return build(load_data_recipe(made, overrides), out)


def replayed(folder: Path, view: str) -> list[dict[str, Any]]:
    return [row for row in rows_of(folder, view) if row["kind"] == "replay"]


def test_the_first_right_reply_is_kept_and_every_question_is_accounted_for(
    answers: dict[str, str], tmp_path: Path
) -> None:
    with Loopback({"/chat/completions": answerer(answers)}) as server:
        out = built(recipe(tmp_path, server.url), tmp_path / "d")
        # On a busy machine a request that runs into its time limit is sent again, with the same body.
        requests = {json.dumps(request.body): request.body["messages"][0]["content"] for request in server.requests}
        seen = list(requests.values())
    manifest, kept, rejected = read_json(out / "manifest.json"), replayed(out, "sft"), replayed(out, "rejected")
    assert manifest["asked"] == manifest["kept"] + sum(manifest["rejected"].values())
    assert manifest["calls"]["replay.calls"] == len(seen)
    assert {row["messages"][0]["content"] for row in kept + rejected} == set(seen) and len(kept) > len(rejected) > 0
    for row in kept:
        reply = row["messages"][1]["content"]
        assert reply in (f"{FORMULA} So \\boxed{{{row['answer']}}}", f"{FORMULA}\n\nThe answer is {row['answer']}.")
    assert any("boxed" not in row["messages"][1]["content"] for row in kept), "what a model does not mark may be right"
    for row in rejected:
        assert row["reason"] in ("replay_wrong", "replay_cut", "replay_role_label")
        assert len(row["slips"]) == TRIES
        assert (row["reason"] == "replay_wrong") == any(slip["reason"] == "wrong" for slip in row["slips"])
    assert not (out / ".work").exists() and not any(row["kind"] == "replay" for row in rows_of(out, "rl"))

    nowhere = recipe(tmp_path, "http://127.0.0.1:9/v1")
    assert built(nowhere, out) == out, "where a server lies may change"
    with pytest.raises(SettingsChanged, match=r"replay\.tries: 3 then, 4 now"):
        built(nowhere, out, "--replay.tries", "4")
    with pytest.raises(SettingsChanged, match=r"replay\.model"):
        built(nowhere, out, "--replay.answers", "reference")


def test_questions_that_a_server_refuses_are_rejected_under_its_reason(answers: dict[str, str], tmp_path: Path) -> None:
    def partly(seen: Seen) -> Any:
        if seen.body["messages"][0]["content"] < "Zoeam":
            return Answer(400, {"error": {"message": "content filter"}})
        return answerer(answers)(seen)

    with Loopback({"/chat/completions": partly}) as server:
        out = built(recipe(tmp_path, server.url), tmp_path / "d")
    manifest = read_json(out / "manifest.json")
    refused = [row for row in replayed(out, "rejected") if row["reason"] == "replay_refused"]
    assert len(refused) == manifest["rejected"]["replay_refused"] > 2
    assert all(len(row["messages"]) == 1 for row in refused)
    assert manifest["asked"] == manifest["kept"] + sum(manifest["rejected"].values())


def test_a_killed_build_asks_no_refused_question_again(
    answers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partly(seen: Seen) -> Any:
        if seen.body["messages"][0]["content"] < "Zoeam":
            return Answer(400, {"error": {"message": "content filter"}})
        return answerer(answers)(seen)

    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with Loopback({"/chat/completions": partly}) as server:
        whole = built(recipe(tmp_path, server.url), tmp_path / "whole")
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("nextturn.data_builders.build.Build.finish", killed)
            built(recipe(tmp_path, server.url), tmp_path / "d")
    nowhere = recipe(tmp_path, "http://127.0.0.1:9/v1")
    assert contents(built(nowhere, tmp_path / "d")) == contents(whole)


def test_faults_of_the_server_change_nothing(answers: dict[str, str], tmp_path: Path) -> None:
    faults = Faults(
        rate_limited=0.04, server_error=0.04, disconnect=0.04, empty_body=0.04, invalid_json=0.04, retry_after="0.01"
    )
    with Loopback({"/chat/completions": answerer(answers)}, faults) as server:
        out = built(recipe(tmp_path, server.url), tmp_path / "a")
        assert server.faults_sent.total() > 0.1 * len(server.requests)
    with Loopback({"/chat/completions": answerer(answers)}) as server:
        assert contents(built(recipe(tmp_path, server.url), tmp_path / "b")) == contents(out)
        other = built(recipe(tmp_path, server.url), tmp_path / "c", "--seed", "6")
    assert contents(other)["sft/part-00000.jsonl"] != contents(out)["sft/part-00000.jsonl"]


def test_a_killed_build_ends_with_the_same_bytes_and_asks_for_no_reply_twice(
    answers: dict[str, str], tmp_path: Path
) -> None:
    def begin(made: Path, out: Path) -> start:
        return start(["-m", "nextturn.data_builders", str(made), "--out", str(out)])

    with Loopback({"/chat/completions": answerer(answers)}, Faults(latency_s=0.05)) as server:
        # One attempt waits its full time: what a busy machine gives up on would be asked, and counted here, twice.
        made = recipe(tmp_path, server.url, attempts=1)
        said = begin(made, tmp_path / "whole").finish()
        wanted = Counter(json.dumps(seen.body) for seen in server.requests)
        server.requests.clear()
        process = begin(made, tmp_path / "killed")
        while len(server.requests) < wanted.total() / 2:
            assert process.poll() is None, process.output
            time.sleep(0.005)
        process.kill()
        assert not (tmp_path / "killed" / "manifest.json").exists()
        again = begin(made, tmp_path / "killed").finish()
        asked = Counter(json.dumps(seen.body) for seen in server.requests)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert {"manifest.json", "rl/part-00000.jsonl", "rejected.jsonl"} < set(contents(tmp_path / "whole"))
    assert set(asked) == set(wanted) and asked.total() - wanted.total() <= 4, "what was under way at the kill"
    assert "conversations kept" in said and "conversations kept" in again


def test_a_build_stopped_before_any_of_its_files_ends_with_the_same_bytes(
    answers: dict[str, str], tmp_path: Path
) -> None:
    with Loopback({"/chat/completions": answerer(answers)}) as server:
        made = recipe(tmp_path, server.url, attempts=1)
        whole = contents(built(made, tmp_path / "whole"))
        asked = len(server.requests)
        replace, stops = os.replace, 0
        while True:
            left = [4]

            def stopping(source: str, target: Path, left: list[int] = left) -> None:
                left[0] -= 1
                if not left[0]:
                    raise InterruptedError
                replace(source, target)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "replace", stopping)
                try:
                    built(made, tmp_path / "stopped")
                    break
                except InterruptedError:
                    stops += 1
        assert stops >= 4, "at every fourth file"
        assert len(server.requests) <= 2 * asked + stops * 4, "what was under way at each stop"
    assert contents(tmp_path / "stopped") == whole


def test_a_model_in_this_process_ends_with_the_same_bytes_after_a_stop(
    answers: dict[str, str], tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, where a text can hang on its batch. A tiny random model neither ends nor is right by itself."""
    section = {"engine": "hf", "model": str(tiny_chatml), "max_tokens": 6, "dtype": "bfloat16", "batch_tokens": 400}
    made = recipe(tmp_path, "", model=section, tries=4)
    monkeypatch.setattr(roles, "Reply", lambda text, given, tokens, cut: Reply(text, given, tokens))
    monkeypatch.setattr(replay_answers, "lenient_answer", lambda text: "right" if len(text) % 3 == 0 else "wrong")
    monkeypatch.setattr(replay_answers, "same_answer", lambda given, wanted: given == "right")
    monkeypatch.setattr(roles, "_TOGETHER", 10)  # three stretches, in which shards lie together
    whole = contents(built(made, tmp_path / "whole"))
    make, left = EngineRole.make_replies, [4]

    def stopping(role: EngineRole) -> None:
        make(role)
        left[0] -= 1
        if not left[0]:
            raise InterruptedError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(EngineRole, "make_replies", stopping)
        built(made, tmp_path / "stopped")
    assert list((tmp_path / "stopped" / ".work" / "replay").rglob("generations.jsonl"))
    assert contents(built(made, tmp_path / "stopped")) == whole
    manifest = json.loads(whole["manifest.json"])
    assert manifest["calls"]["replay.calls"] > N / 2
    assert manifest["asked"] == manifest["kept"] + sum(manifest["rejected"].values())


def test_conversations_between_models_take_replay_from_a_model_too(answers: dict[str, str], tmp_path: Path) -> None:
    def both(seen: Seen) -> Any:
        return (answerer if seen.body["model"] == "base" else speak)(answers)(seen)

    with Loopback({"/chat/completions": both}) as server:
        made, plain = dialogue_recipe(tmp_path, server.url), tmp_path / "dialogue.yaml"
        data = yaml.safe_load(made.read_text())
        data["replay"] = yaml.safe_load(recipe(tmp_path, server.url, attempts=1).read_text())["replay"]
        plain.write_text(yaml.safe_dump(data))
        out = built(plain, tmp_path / "d")
        requests = {json.dumps(request.body): request.body["model"] for request in server.requests}
        asked = Counter(requests.values())
    manifest = read_json(out / "manifest.json")
    assert manifest["calls"]["replay.calls"] == asked["base"] > 0 and manifest["calls"]["assistant.calls"] > 0
    assert manifest["asked"] == manifest["kept"] + sum(manifest["rejected"].values())
    assert replayed(out, "sft") and replayed(out, "rejected")
    assert not (out / ".work").exists() and not (out / "calls").exists()


def test_the_dry_run_shows_what_will_be_asked_and_asks_nobody(
    answers: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = recipe(tmp_path, "http://127.0.0.1:9/v1")
    main([str(made), "--dry-run"])
    told = re.search(r"replay: (\d+) questions, each asked at most 3 times", capsys.readouterr().out)
    replay = Build(load_data_recipe(made)).replay
    assert told and int(told[1]) == len(replay) == len(replay.questions()) > 0
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["--replay.model", "null"], "replay.model: missing"),
        (["--replay.tries", "0"], "replay.tries: given 0"),
        (["--replay.model.engine", "hf"], "replay.model.model: the engine hf needs `model`"),
        (["--replay.answers", "modl"], "replay.answers: given 'modl'"),
    ],
)
def test_a_wrong_section_answers_in_one_line(
    overrides: list[str], told: str, answers: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(main, [str(recipe(tmp_path, "http://127.0.0.1:9/v1")), *overrides]) == 2
    errors = capsys.readouterr().err
    assert told in errors and errors.count("\n") == 1


def test_replay_repeats_no_problem_of_a_conversation(tmp_path: Path) -> None:
    """Of one file a share is kept for it, told apart by text, so that no question stands in both."""
    source = tmp_path / "problems.jsonl"
    write_jsonl(source, [{"question": f"What is {i} + {i + 1}?", "answer": f"#### {2 * i + 1}"} for i in range(200)])
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"source: {{kind: jsonl, path: {source}}}\nreplay: {{fraction: 0.2, source: jsonl}}\noutput: {{path: {tmp_path}}}\n"
    )
    made = Build(load_data_recipe(recipe))
    talks = {made.problems[index].question for index in range(len(made.problems))}
    replayed = [task.question for index in range(len(made.problems)) for task in made.replay.tasks(index)]
    assert len(replayed) > 20 and not talks & set(replayed)
    assert len(talks) > 100
