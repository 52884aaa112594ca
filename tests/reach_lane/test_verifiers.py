"""The environments in verifiers' own evaluation command: only `make test-reach` collects this folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from nextturn.probe.engines.hf import HfEngine
from nextturn.probe.models.folders import load_model, load_tokenizer, resolve
from nextturn.train.environments.tasks import prompts
from support.verifiers_parts import Message, assert_talked, evaluate, said, spoken_by


@pytest.mark.parametrize("kind", ["pieces", "ask", "doubt"])
def test_a_right_model_gets_more_than_a_wrong_one(kind: str, tmp_path: Path) -> None:
    rows = {row.prompt[0]["content"]: row for row in prompts(kind)}  # type: ignore[arg-type]

    def model(messages: Sequence[Message], tokens: int) -> tuple[str, str]:
        row = rows[next(message["content"] for message in messages if message["role"] == "user")]
        asks = row.withholds and len(messages) == 2
        asks |= len(messages) < 2 * len(row.shards) + 2
        return (row.fact.ask or "What else do you know?") if asks else f"It is \\boxed{{{row.answer}}}.", "stop"

    traces = evaluate(kind, model, tmp_path / "right", 6, 64)
    wrong = evaluate(kind, lambda messages, tokens: ("It is \\boxed{-77}.", "stop"), tmp_path / "wrong", 6, 64)
    assert len(traces) == len(wrong) == 6
    for right, other in zip(
        *(sorted(each, key=lambda trace: trace["task"]["data"]["idx"]) for each in (traces, wrong)), strict=True
    ):
        assert right["rewards"]["reward"]["score"] > other["rewards"]["reward"]["score"] + 0.4
        row = right["task"]["data"]["row"]
        assert [message["content"] for message in said(right)[2::2]][: len(row["shards"])] == row["shards"]
        assert right["metrics"]["first_right" if kind == "doubt" else "accuracy"] == 1
    assert any(len(said(trace)) > 2 for trace in traces)


def test_smollm2_talks_with_the_scripted_user(smollm2: Path, tmp_path: Path) -> None:
    folder = resolve(str(smollm2))
    tokenizer = load_tokenizer(folder)
    model = spoken_by(HfEngine(load_model(folder, "float32", "cpu"), tokenizer), tokenizer)
    (trace,) = evaluate("doubt", model, tmp_path, 1, 160)
    assert_talked(trace)
