"""Replay rows from a model: the first right reply is kept, every question is accounted for, and no reply is paid twice."""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextturn.data_builders import replay as replay_module
from nextturn.data_builders.__main__ import main
from nextturn.data_builders.build import Build, build
from nextturn.data_builders.dialogue import roles
from nextturn.data_builders.dialogue.replies import Reply
from nextturn.data_builders.recipe import load_data_recipe
from nextturn.probe.errors import SettingsChanged, run_command
from nextturn.probe.files import read_json
from support.dialogue_server import contents, problems, rows_of, speak
from support.dialogue_server import recipe as dialogue_recipe
from support.loopback import Answer, Faults, Handler, Loopback, Seen, chat_reply

N, TRIES = 40, 3
FORMULA = r"First $\frac{1}{2} \times 4 \neq \begin{pmatrix} 1 \\ 0 \end{pmatrix}$."
NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture
def answers(tmp_path: Path) -> dict[str, str]:
    return problems(tmp_path / "problems.jsonl", N)


def answerer(answers: dict[str, str], refused_before: str = "") -> Handler:
    """Return a handler whose replies are right, wrong, cut off or out of role; the same request gets the same reply."""

    def reply(seen: Seen) -> dict[str, Any] | Answer:
        (message,) = seen.body["messages"]
        text = message["content"]
        assert "has" in text, "the bare question is asked"
        if text < refused_before:
            return Answer(400, {"error": {"message": "content filter"}})
        right = answers[text.split()[0]]
        form = random.Random(json.dumps(seen.body, sort_keys=True)).choice(range(6))
        return (
            chat_reply(f"{FORMULA} So \\boxed{{{right}}}"),
            chat_reply(f"{FORMULA}\n\nThe answer is {right}."),
            chat_reply(f"{FORMULA} So \\boxed{{{int(right) + 1}}}"),
            chat_reply(f"{FORMULA} So \\boxed{{{int(right) + 1}}}"),
            chat_reply(f"We want {right}, so", "length"),
            chat_reply(f"User: is it \\boxed{{{right}}}?"),
        )[form]

    return reply


def serve(handler: Handler, faults: Faults | None = None) -> Loopback:
    return Loopback({"/chat/completions": handler}, faults)


def distinct(server: Loopback) -> dict[str, Any]:
    """Return the bodies of all requests, each once: a busy machine sends a request again when its time limit runs out."""
    return {json.dumps(request.body): request.body for request in server.requests}


def recipe(folder: Path, url: str, attempts: int = 40, **replay: Any) -> Path:
    """Write a recipe with scripted conversations and replay rows from the model at `url`."""
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


def built(path: Path, out: Path, *overrides: str) -> Path:
    return build(load_data_recipe(path, overrides), out)


def replayed(folder: Path, view: str) -> list[dict[str, Any]]:
    return [row for row in rows_of(folder, view) if row["kind"] == "replay"]


def accounted(out: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = read_json(out / "manifest.json")
    assert manifest["asked"] == manifest["kept"] + sum(manifest["rejected"].values())
    return manifest


def test_the_first_right_reply_is_kept_and_every_question_is_accounted_for(
    answers: dict[str, str], tmp_path: Path
) -> None:
    with serve(answerer(answers)) as server:
        out = built(recipe(tmp_path, server.url), tmp_path / "d")
        questions = [body["messages"][0]["content"] for body in distinct(server).values()]
    manifest, kept, rejected = (accounted(out), replayed(out, "sft"), replayed(out, "rejected"))
    assert manifest["calls"]["replay.calls"] == len(questions)
    assert {row["messages"][0]["content"] for row in kept + rejected} == set(questions)
    assert len(kept) > len(rejected) > 0
    for row in kept:
        reply = row["messages"][1]["content"]
        assert reply in (f"{FORMULA} So \\boxed{{{row['answer']}}}", f"{FORMULA}\n\nThe answer is {row['answer']}.")
    assert any("boxed" not in row["messages"][1]["content"] for row in kept), "an answer without a mark may be right"
    for row in rejected:
        assert row["reason"] in ("replay_wrong", "replay_cut", "replay_role_label") and len(row["slips"]) == TRIES
        assert (row["reason"] == "replay_wrong") == any(slip["reason"] == "wrong" for slip in row["slips"])
    assert not (out / ".work").exists() and not replayed(out, "rl")

    nowhere = recipe(tmp_path, NOWHERE)
    assert built(nowhere, out) == out, "another address is no other setting"
    with pytest.raises(SettingsChanged, match=r"replay\.tries"):
        built(nowhere, out, "--replay.tries", "4")
    with pytest.raises(SettingsChanged, match=r"replay\.model"):
        built(nowhere, out, "--replay.answers", "reference")


def test_refused_questions_are_rejected_and_not_asked_again_after_a_kill(
    answers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with serve(answerer(answers, refused_before="Zoeam")) as server:
        whole = built(recipe(tmp_path, server.url), tmp_path / "whole")
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("nextturn.data_builders.build.Build.finish", killed)
            built(recipe(tmp_path, server.url), tmp_path / "d")
    refused = [row for row in replayed(whole, "rejected") if row["reason"] == "replay_refused"]
    assert len(refused) == accounted(whole)["rejected"]["replay_refused"] > 2
    assert all(len(row["messages"]) == 1 for row in refused)
    assert contents(built(recipe(tmp_path, NOWHERE), tmp_path / "d")) == contents(whole)


def test_faults_of_the_server_change_nothing(answers: dict[str, str], tmp_path: Path) -> None:
    """A request that is sent again counts once in the manifest."""
    faults = Faults(
        rate_limited=0.04, server_error=0.04, disconnect=0.04, empty_body=0.04, invalid_json=0.04, retry_after="0.01"
    )
    with serve(answerer(answers), faults) as server:
        out = built(recipe(tmp_path, server.url), tmp_path / "a")
        assert server.faults_sent.total() > 0.1 * len(distinct(server))
    with serve(answerer(answers)) as server:
        assert contents(built(recipe(tmp_path, server.url), tmp_path / "b")) == contents(out)
        other = built(recipe(tmp_path, server.url), tmp_path / "c", "--seed", "6")
    assert contents(other)["sft/part-00000.jsonl"] != contents(out)["sft/part-00000.jsonl"]


def test_a_build_stopped_before_any_of_its_files_ends_with_the_same_bytes(
    answers: dict[str, str], tmp_path: Path
) -> None:
    with serve(answerer(answers)) as server:
        path = recipe(tmp_path, server.url, attempts=1)
        whole = contents(built(path, tmp_path / "whole"))
        asked, replace, stops = len(server.requests), os.replace, 0
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
                    built(path, tmp_path / "stopped")
                    break
                except InterruptedError:
                    stops += 1
        assert stops >= 4, "before every fourth file"
        assert len(server.requests) <= 2 * asked + stops * 4, "requests in flight at each stop"
    assert contents(tmp_path / "stopped") == whole


def test_a_model_in_this_process_ends_with_the_same_bytes_after_a_stop(
    answers: dict[str, str], tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, where a text can depend on its batch. The replies of a random model are declared whole and right."""
    section = {"engine": "hf", "model": str(tiny_chatml), "max_tokens": 6, "dtype": "bfloat16", "batch_tokens": 400}
    path = recipe(tmp_path, "", model=section, tries=4)
    monkeypatch.setattr(roles, "Reply", lambda text, given=0, tokens=0, cut=False: Reply(text, given, tokens))
    monkeypatch.setattr(replay_module, "lenient_answer", lambda text: "right" if len(text) % 3 == 0 else "wrong")
    monkeypatch.setattr(replay_module, "same_answer", lambda given, wanted: given == "right")
    whole = contents(built(path, tmp_path / "whole"))

    @contextmanager
    def stopping(total: int, what: str) -> Iterator[Callable[[], object]]:
        left = iter(range(total // 2))
        yield lambda: next(left)  # StopIteration after half of the replies

    with monkeypatch.context() as patch, pytest.raises((StopIteration, RuntimeError)):
        patch.setattr(roles, "progress", stopping)
        built(path, tmp_path / "stopped")
    assert list((tmp_path / "stopped" / ".work" / "replay").rglob("generations.jsonl"))
    assert contents(built(path, tmp_path / "stopped")) == whole
    assert accounted(tmp_path / "stopped")["calls"]["replay.calls"] > N / 2


def test_conversations_take_replay_from_a_model_too(answers: dict[str, str], tmp_path: Path) -> None:
    def both(seen: Seen) -> Any:
        return (answerer if seen.body["model"] == "base" else speak)(answers)(seen)

    with serve(both) as server:
        path = dialogue_recipe(tmp_path, server.url)
        data = yaml.safe_load(path.read_text())
        data["replay"] = yaml.safe_load(recipe(tmp_path, server.url).read_text())["replay"]
        path.write_text(yaml.safe_dump(data))
        out = built(path, tmp_path / "d")
        asked = Counter(body["model"] for body in distinct(server).values())
    calls = accounted(out)["calls"]
    assert calls["replay.calls"] == asked["base"] > 0 and calls["assistant.calls"] > 0
    assert replayed(out, "sft") and replayed(out, "rejected")
    assert not (out / ".work").exists() and not (out / "calls").exists()


def test_the_dry_run_counts_the_questions_and_asks_nobody(
    answers: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe(tmp_path, NOWHERE)
    main([str(path), "--dry-run"])
    shown = re.search(r"replay: (\d+) questions, each asked at most 3 times", capsys.readouterr().out)
    replay = Build(load_data_recipe(path)).replay
    assert shown and int(shown[1]) == len(replay) == len(replay.questions()) > 0
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["--replay.model", "null"], "replay.model"),
        (["--replay.tries", "0"], "replay.tries"),
        (["--replay.model.engine", "hf"], "replay.model"),
        (["--replay.answers", "modl"], "replay.answers"),
    ],
)
def test_a_wrong_section_is_reported_in_one_line(
    overrides: list[str], key: str, answers: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(main, [str(recipe(tmp_path, NOWHERE)), *overrides]) == 2
    errors = capsys.readouterr().err
    assert key in errors and errors.count("\n") == 1
