"""Replay rows from a model: the first right reply is kept, every question is accounted for, and no reply is paid twice."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextturn.data_builders.__main__ import main
from nextturn.data_builders.build import Build, build
from nextturn.data_builders.sections import load_data_recipe
from nextturn.probe.command.errors import SettingsChanged
from nextturn.probe.command.files import read_json
from support.dialogue_server import contents, problems, rows_of
from support.loopback import Answer, Handler, Loopback, Seen, chat_reply

N, TRIES = 40, 3
FORMULA = r"First $\frac{1}{2} \times 4 \neq \begin{pmatrix} 1 \\ 0 \end{pmatrix}$."
NOWHERE = "http://127.0.0.1:9/v1"
Sound = tuple[Path, Loopback]


def answerer(answers: dict[str, str], refused_before: str = "Zoeam") -> Handler:
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


def serve(handler: Handler) -> Loopback:
    return Loopback({"/chat/completions": handler})


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
        "written": {"n": 5}, "quality": {"max_same_wording": 1.0},
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


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return problems(tmp_path_factory.mktemp("answers") / "problems.jsonl", N)


@pytest.fixture(scope="module")
def sound(answers: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """A build from a server without faults, and that server, which is closed."""
    folder = tmp_path_factory.mktemp("sound")
    problems(folder / "problems.jsonl", N)
    with serve(answerer(answers)) as server:
        return built(recipe(folder, server.url, attempts=1), folder / "d"), server


def test_the_first_right_reply_is_kept_and_every_question_is_accounted_for(sound: Sound) -> None:
    out, server = sound
    questions = [body["messages"][0]["content"] for body in distinct(server).values()]
    manifest, kept, rejected = (accounted(out), replayed(out, "sft"), replayed(out, "rejected"))
    refused = [row for row in rejected if row["reason"] == "replay_refused"]
    assert len(refused) == manifest["rejected"]["replay_refused"] > 2
    assert all(len(row["messages"]) == 1 for row in refused)
    assert manifest["calls"]["replay.calls"] == len(questions)
    assert {row["messages"][0]["content"] for row in kept + rejected} == set(questions)
    answered = [row for row in rejected if row not in refused]
    assert len(kept) > len(answered) > 0
    for row in kept:
        reply = row["messages"][1]["content"]
        assert reply in (f"{FORMULA} So \\boxed{{{row['answer']}}}", f"{FORMULA}\n\nThe answer is {row['answer']}.")
    assert any("boxed" not in row["messages"][1]["content"] for row in kept), "an answer without a mark may be right"
    for row in answered:
        assert row["reason"] in ("replay_wrong", "replay_cut", "replay_role_label") and len(row["slips"]) == TRIES
        assert (row["reason"] == "replay_wrong") == any(slip["reason"] == "wrong" for slip in row["slips"])
    assert not (out / ".work").exists() and not replayed(out, "rl")

    nowhere = recipe(out.parent, NOWHERE)
    assert built(nowhere, out) == out, "another address is no other setting"
    with pytest.raises(SettingsChanged, match=r"replay\.tries"):
        built(nowhere, out, "--replay.tries", "4")
    with pytest.raises(SettingsChanged, match=r"replay\.model"):
        built(nowhere, out, "--replay.answers", "reference")


def test_a_build_stopped_before_any_file_ends_the_same(sound: Sound, answers: dict[str, str], tmp_path: Path) -> None:
    with serve(answerer(answers)) as server:
        path = recipe(sound[0].parent, server.url, attempts=1)
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
                    built(path, tmp_path / "stopped")
                    break
                except InterruptedError:
                    stops += 1
        assert stops >= 4, "before every fourth file"
        assert len(server.requests) == len(sound[1].requests), "no question is asked again"
    assert contents(tmp_path / "stopped") == contents(sound[0])


def test_the_dry_run_counts_the_questions_and_asks_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems(tmp_path / "problems.jsonl", N)
    path = recipe(tmp_path, NOWHERE)
    main([str(path), "--dry-run"])
    shown = re.search(r"replay: (\d+) questions, each asked at most 3 times", capsys.readouterr().out)
    replay = Build(load_data_recipe(path)).replay
    assert shown and int(shown[1]) == len(replay) == len(replay.questions()) > 0
    assert not (tmp_path / "d").exists()
