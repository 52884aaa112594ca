"""`probe run` on a server, and `probe judge` on a finished run: the commands with the options that a user types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextturn.probe.__main__ import main
from nextturn.probe.command.files import read_json, read_jsonl, write_jsonl
from nextturn.probe.models.folders import load_model, load_tokenizer, resolve
from support.conversations import messages
from support.loopback import Answer, Loopback, Seen, chat_reply
from support.model_server import model_server

TALKS: dict[str, list[dict[str, str]]] = {
    "tea": messages("How long does tea brew?", "Three minutes for black tea.", "And how long for green tea?"),
    "trip": messages("Where should I go?", "Try the coast, it is quiet in May.", "Is it warm enough to swim by then?"),
}


@pytest.fixture(scope="module")
def server(tiny_chatml: Path) -> Iterator[Loopback]:
    folder = resolve(str(tiny_chatml))
    model, tokenizer = load_model(folder, "float32", "cpu"), load_tokenizer(folder)
    with Loopback({**model_server(model, tokenizer, str(tiny_chatml)), "/chat/completions": judge}) as opened:
        yield opened


def judge(seen: Seen) -> Any:
    """Labels by the length of what it reads, and has nothing to say of every fourth prompt."""
    size = len(seen.body["messages"][-1]["content"])
    return chat_reply("Hm." if size % 4 == 0 else f"VERDICT: {('genuine_followup', 'new_task')[size % 2]}")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    write_jsonl(folder / "talks.jsonl", [{"id": name, "messages": talk} for name, talk in TALKS.items()])
    questions = ("How many legs has a cat?", "2 + 2?")
    write_jsonl(folder / "own.jsonl", [{"question": question, "answer": "4"} for question in questions])
    sets = {name: {"path": str(folder / f"{name}.jsonl"), "transcript": name == "talks"} for name in ("own", "talks")}
    probe = {
        "sets": sets, "temperatures": [0.0, 1.0], "perturbations": ["question(Ok?)"], "dtype": "float32",
        "max_answer_tokens": 10, "max_user_tokens": 8,
    }  # fmt: skip
    (folder / "probe.yaml").write_text(yaml.safe_dump({"probe": probe}))
    return folder / "probe.yaml"


def probe(*arguments: str | Path) -> None:
    main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def here(tiny_chatml: Path, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("here") / "run"
    probe("run", tiny_chatml, recipe, "--out", out, "--device", "cpu")
    return out


def test_a_served_model_equals_one_in_process(
    server: Loopback, here: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "served"
    probe("run", server.url, recipe, "--dry-run")
    assert "served by" in capsys.readouterr().out and not out.exists()
    probe("run", server.url, recipe, "--out", out)
    served, local = read_json(out / "results.json"), read_json(here / "results.json")
    assert served["model"]["weights_sha256"] is None, "what a server holds cannot be hashed"
    assert served["model"]["path"].startswith("served:")
    assert served["settings"] == {**local["settings"], "engine": "openai", "stops": "unknown"}
    assert served["accuracy"] == local["accuracy"]
    ours, theirs = ([row for _, row in read_jsonl(folder / "samples.jsonl")] for folder in (out, here))
    for one, other in zip(ours, theirs, strict=True):
        if one["temperature"] == 0:
            assert {**one, "grounding": None, "log_p": None} == {**other, "grounding": None, "log_p": None}
            assert one["grounding"] == pytest.approx(other["grounding"], abs=1e-3)
    asked = len(server.requests)
    probe("run", server.url, recipe, "--out", out)
    assert "POST" not in {seen.method for seen in server.requests[asked:]}, "a finished run asks for nothing"


def test_a_transcript_keeps_its_answer_and_its_real_turn_is_judged_too(here: Path) -> None:
    assert read_json(here / "results.json")["actual"]["talks"]["n_total"] == 2
    rows = [row for _, row in read_jsonl(here / "samples.jsonl") if row["set"] == "talks"]
    real = {row["item"]: row for row in rows if row["kind"] == "actual"}
    for name, talk in TALKS.items():
        assert [*real[name]["messages"], {"role": "user", "content": real[name]["user_turn"]}] == talk
        assert real[name]["label"] and real[name]["grounding"] is not None
    plain = [row for row in rows if row["kind"] == "followup" and row["perturbation"] == "none"]
    assert [row["messages"] for row in plain] == [talk[:2] for talk in TALKS.values() for _ in range(2)]


def test_a_finished_run_is_judged_again(server: Loopback, here: Path, recipe: Path, tmp_path: Path) -> None:
    """A finished run is judged again without a model."""
    asked, out = len(server.requests), tmp_path / "judged"
    options = ["--probe.judge", "llm", "--probe.judge_server.urls", f"[{server.url}]"]
    probe("judge", here, recipe, "--out", out, *options)
    assert {seen.path for seen in server.requests[asked:]} == {"/models", "/chat/completions"}, "nothing is generated"
    before, after = read_json(here / "results.json"), read_json(out / "results.json")
    assert after["settings"] == {**before["settings"], "judge": after["settings"]["judge"]}
    assert after["settings"]["judge"].startswith("llm/")
    assert (after["model"], after["accuracy"]) == (before["model"], before["accuracy"])
    for _, row in read_jsonl(out / "samples.jsonl"):
        if row["kind"] in ("followup", "actual"):
            assert (row["label"] is None) == (row["unscored"] == "no_verdict")
            assert row["judge_raw"].startswith(("Hm.", "VERDICT"))


def test_the_key_is_in_no_file_and_grounding_is_left_out_where_a_server_has_none(
    server: Loopback, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A server that repeats the key and has no log-probabilities: the run goes without grounding and says so."""
    key, own = "sk-loud-0123456789", dict(server.handlers)
    monkeypatch.setenv("OPENAI_API_KEY", key)

    def completions(seen: Seen) -> Any:
        if seen.body.get("echo"):
            return Answer(400, {"error": {"message": f"echo is not supported with {key}"}})
        reply = own["/completions"](seen)
        reply["choices"][0]["text"] += seen.headers["authorization"]
        return reply

    def verdicts(seen: Seen) -> Any:
        if seen.number % 3 == 0:
            return Answer(400, {"error": {"message": f"no such key: {key}"}})
        return chat_reply(f"{seen.headers['authorization']} VERDICT: new_task")

    monkeypatch.setattr(server, "handlers", {**own, "/completions": completions, "/chat/completions": verdicts})
    options = ["--probe.judge", "llm", "--probe.judge_server.urls", f"[{server.url}]"]
    probe("run", server.url, recipe, "--out", tmp_path / "out", *options)
    output = "".join(capfd.readouterr())
    files = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert [name for name, text in {**files, "output": output}.items() if key in text] == []
    assert all("Bearer [key]" in files[name] for name in ("generations.jsonl", "verdicts.jsonl", "samples.jsonl"))
    assert "grounding is not measured" in output and "echo is not supported" in output
    cell = read_json(tmp_path / "out" / "results.json")["followup"]["own"]["none"]["T=0.0"]
    assert cell["grounding"] is None and cell["n_total"] == 2
