"""gpt-oss, whose assistant turn has channels: a probe with canned replies, a row of SFT, a step of GRPO."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.__main__ import main as probe
from nextturn.probe.command.errors import BadInput
from nextturn.probe.command.files import read_json, read_jsonl, write_jsonl
from nextturn.probe.models.folders import end_ids, load_chat, resolve
from nextturn.train.grpo import main as grpo
from nextturn.train.sft import main as sft
from support import grpo_parts, sft_parts
from support.conversations import messages, spans
from support.launches import history
from support.loopback import Loopback, Seen, completion_reply, models_reply
from support.tiny_models import build_tiny_gpt_oss

THINKS, ANSWERS = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
REPLIES = {"final": f"{THINKS}7{ANSWERS}8", "analysis": f"{THINKS}It is 8.", "ended": f"{THINKS}It is 8.<|end|>"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_gpt_oss(tmp_path_factory.mktemp("models") / "tiny-gpt-oss")


def test_the_final_channel_is_the_answer_and_analysis_is_none(model: Path, tmp_path: Path) -> None:
    chat = load_chat(resolve(str(model)))

    def completions(seen: Seen) -> Any:
        prompt, body = chat.tokenizer.decode(seen.body["prompt"]), seen.body
        answering = prompt.endswith("<|start|>assistant")
        stops = {chat.tokenizer.decode([token]) for token in body["stop_token_ids"]}
        assert ("<|end|>" in stops) != answering and "<|return|>" in stops
        reply = next(reply for name, reply in REPLIES.items() if f"{name}?" in prompt) if answering else "Why is it 8?"
        return completion_reply(reply, "stop", 4)

    write_jsonl(tmp_path / "own.jsonl", [{"id": name, "question": f"{name}?", "answer": "8"} for name in REPLIES])
    with Loopback({"/completions": completions, "/models": lambda seen: models_reply(str(model))}) as server:
        options = ["--probe.reasoning_effort", "low", "--probe.grounding", "false", "--probe.temperatures", "[0.0]"]
        options += ["--probe.sets.own.measures", "[accuracy, followup]"]
        probe(["run", server.url, "--set", str(tmp_path / "own.jsonl"), "--out", str(tmp_path / "out"), *options])
        with pytest.raises(
            BadInput, match="probe.server.extras"
        ):  # a server that shows no special tokens hides which part is the answer
            extras = ["--probe.engine", "openai", "--probe.server", f"{{urls: [{server.url}], extras: false}}"]
            probe(["run", str(model), "--set", str(tmp_path / "own.jsonl"), "--out", str(tmp_path / "no"), *extras])
    results = read_json(tmp_path / "out" / "results.json")
    assert (results["settings"]["stops"], results["settings"]["reasoning_effort"]) == ("unknown", "low")
    rows = [row for _, row in read_jsonl(tmp_path / "out" / "samples.jsonl")]
    graded = {row["item"]: (row["lenient"], row["outcome"]) for row in rows if row["kind"] == "accuracy"}
    assert graded == {"final": (True, "answered"), "analysis": (False, "no_answer"), "ended": (False, "no_answer")}
    turns = {
        row["item"]: (row["messages"][-1]["content"], row["unscored"]) for row in rows if row["kind"] == "followup"
    }
    assert turns["final"][0] == "8" and {turns[name][1] for name in ("analysis", "ended")} == {"no_answer"}


def test_a_row_of_sft_ends_as_generation_does(model: Path, tmp_path: Path) -> None:
    chat = load_chat(resolve(str(model)))
    talk = messages("3 + 4?", "<think>\n3 and 4\n</think>\n\nIt is 7.", "And 5?", "Then 8.")
    rows = chat.training_rows(talk)
    learned = [chat.tokenizer.decode(row.input_ids[start:end]) for row in rows for start, end in spans(row.loss_mask)]
    final = "<|channel|>final<|message|>"
    assert learned == [f"{THINKS}3 and 4{ANSWERS}It is 7.<|return|>", f"{final}Then 8.<|return|>"]
    assert [row.input_ids[: row.loss_mask.index(1)] for row in rows] == [
        list(chat.prompt_ids(talk[:end])) for end in (1, 3)
    ]
    assert f"{final}It is 7.<|end|>" in chat.tokenizer.decode(rows[1].input_ids), "the history shows no thoughts"
    data = {"path": str(sft_parts.write_data(tmp_path))}
    sft([str(sft_parts.write_recipe(tmp_path, model, data, {"max_steps": 1, "save_steps": 1}))])
    checkpoint, base = tmp_path / "run" / "checkpoint-1", resolve(str(model))
    assert all(math.isfinite(row["loss"]) for row in history(checkpoint))
    assert load_chat(resolve(str(checkpoint))).ends == load_chat(base).ends and end_ids(base)
    runs = [read_json(tmp_path / "run" / "probe" / name / "results.json") for name in ("base", "step-1")]
    assert runs[0]["settings"] == runs[1]["settings"] and "<|return|>" in runs[0]["settings"]["stops"]


@pytest.mark.parametrize("mode", ["reply", "conversation"])
def test_a_step_of_grpo(mode: str, model: Path, tmp_path: Path) -> None:
    train = {"max_steps": 1, "save_steps": 1, "max_completion_length": 48}
    recipe = grpo_parts.write_recipe(tmp_path, model, rollout={"mode": mode}, train=train, probe={"when": "never"})
    grpo([str(recipe)])
    (row,) = history(tmp_path / "run" / "checkpoint-1")
    assert math.isfinite(row["loss"]) and math.isfinite(row["reward"])
