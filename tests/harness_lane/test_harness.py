"""inspect_ai and lm-evaluation-harness, as released, give what `nextturn probe run` gives: only `make test-harness`
collects this folder. SmolLM2's real weights, five questions."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.__main__ import main
from nextturn.probe.errors import BadInput, DataError, EngineError
from nextturn.probe.files import read_jsonl
from nextturn.probe.judges.labels import LABELS

ROOT = Path(__file__).resolve().parents[2]
TASKS = ROOT / "probe" / "harness"
RECIPE = """
probe:
  sets:
    sums: {path: QUESTIONS, measures: [accuracy, followup]}
    same: {path: QUESTIONS, measures: [followup]}
  temperatures: [0.0, 0.7]
  max_answer_tokens: 32
  max_user_tokens: 24
  grounding: false
  dtype: float32
"""
Rows = dict[tuple[str, float], dict[str, Any]]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harness")
    questions = [
        {
            "id": f"q{n}",
            "question": f"Ann has {n} apples and buys {n + 2} more. How many has she?",
            "answer": str(2 * n + 2),
        }
        for n in range(3, 8)
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    (folder / "probe.yaml").write_text(RECIPE.replace("QUESTIONS", str(folder / "questions.jsonl")))
    return folder / "probe.yaml"


@pytest.fixture(scope="module")
def probed(recipe: Path, smollm2: Path) -> Rows:
    """What `nextturn probe run` says: the rows of the set, user turns by item and temperature."""
    out = recipe.parent / "run"
    main(["run", str(smollm2), str(recipe), "--out", str(out)])
    rows = [row for _, row in read_jsonl(out / "samples.jsonl") if row["set"] == "sums" and row["kind"] == "followup"]
    return {(row["item"], row["temperature"]): row for row in rows}


@pytest.mark.parametrize("breaks", [False, True])
def test_a_sample_that_is_cancelled_while_the_engine_works_holds_up_no_other(breaks: bool) -> None:
    """inspect_ai cancels a sample at its time limit; those in its batch and those after it waited for ever."""
    from nextturn.probe.engines.base import Completion, Request
    from nextturn.probe.harness.inspect_task import NextTurn

    class SlowEngine:
        def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
            time.sleep(0.3)
            if breaks:
                raise EngineError("broke")
            yield from ((index, Completion(f"{request.seed}", 1, "stop")) for index, request in enumerate(requests))

    async def three() -> list[Any]:
        model = NextTurn("any")
        model._opened = (None, None, SlowEngine())  # type: ignore[assignment]
        first, second = (asyncio.create_task(model._complete(Request((1,), 1, (2,), 0.0, seed))) for seed in (1, 2))
        await asyncio.sleep(0.2)
        first.cancel()
        third = asyncio.create_task(model._complete(Request((1,), 1, (2,), 0.0, 3)))
        return await asyncio.wait_for(asyncio.gather(second, third, return_exceptions=True), 10)

    made = asyncio.run(three())
    assert [str(one) if breaks else one.text for one in made] == (["broke", "broke"] if breaks else ["2", "3"])


def test_inspect_ai_gives_the_same_turns_and_labels(
    recipe: Path, smollm2: Path, probed: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inspect_ai import eval as inspect_eval

    monkeypatch.chdir(ROOT)
    (log,) = inspect_eval(
        "probe/harness/inspect_task.py",
        model=f"nextturn/{smollm2}",
        task_args={"recipe": os.path.relpath(recipe), "set": "sums"},  # from where the command is given
        log_dir=str(recipe.parent / "logs"),
        display="none",
    )
    assert log.status == "success" and log.samples and log.results
    turns = {(sample.id, turn["temperature"]): turn for sample in log.samples for turn in sample.scores["genuine"].metadata["turns"]}  # type: ignore[index,union-attr] # fmt: skip
    assert set(turns) == set(probed) and len(turns) == 10
    for place, turn in turns.items():
        for name in ("user_turn", "user_cut", "label", "unscored"):
            assert turn[name] == probed[place][name], place
    rates = {score.name: score.metrics["mean_of_judged"].value for score in log.results.scores}
    greedy = [row["label"] == "genuine_followup" for (_, t), row in probed.items() if t == 0 and row["label"]]
    assert rates["T=0.0"] == pytest.approx(sum(greedy) / len(greedy)) and {"strict", "lenient", "T=0.7"} <= set(rates)


def test_an_api_for_chats_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from inspect_ai import eval as inspect_eval

    monkeypatch.chdir(ROOT)
    with pytest.raises(BadInput, match="mockllm/model.*wanted nextturn/MODEL"):
        inspect_eval("probe/harness/inspect_task.py", model="mockllm/model", log_dir=str(tmp_path), display="none")


def lm_eval(task: str, smollm2: Path, metadata: dict[str, str], out: Path, *options: str) -> list[dict[str, Any]]:
    """The command as a user gives it, in this process; the samples that it logged."""
    from lm_eval.__main__ import cli_evaluate

    arguments = [
        "lm_eval", "--model", "hf", "--model_args", f"pretrained={smollm2},dtype=float32", "--device", "cpu",
        "--batch_size", "5", "--include_path", str(TASKS), "--metadata", json.dumps(metadata), "--tasks", task,
        "--log_samples", "--output_path", str(out), *options,
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        cli_evaluate()
    (written,) = out.rglob(f"samples_{task}_*.jsonl")
    return [row for _, row in read_jsonl(written)]


def test_lm_eval_gives_the_same_greedy_turns_and_labels(recipe: Path, smollm2: Path, probed: Rows) -> None:
    out = recipe.parent / "lm_eval"
    about = {"recipe": str(recipe), "set": "sums"}
    with pytest.raises(BadInput, match="no `answers`"):
        lm_eval("nextturn_user_turns", smollm2, about, out)
    assert {"strict", "lenient"} <= set(lm_eval("nextturn_answers", smollm2, about, out)[0])
    rows = lm_eval("nextturn_user_turns", smollm2, {**about, "answers": str(out)}, out)
    greedy = {item: row for (item, temperature), row in probed.items() if temperature == 0}
    assert {row["doc"]["id"] for row in rows} == set(greedy) and len(rows) == 5
    for row in rows:
        expected = greedy[row["doc"]["id"]]
        assert json.loads(row["doc"]["messages"]) == expected["messages"], "the same answer before it"
        assert row["resps"][0][0].strip() == expected["user_turn"]
        given = [name for name in LABELS if row.get(name) == 1] or (["genuine_followup"] if row.get("followup") else [])
        assert given == ([expected["label"]] if expected["label"] else []) and (row["unscored"] == 1) == (not given)


def test_what_does_not_fit_is_told(recipe: Path, smollm2: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="None.*sums, same"):
        lm_eval("nextturn_answers", smollm2, {"recipe": str(recipe)}, tmp_path)
    with pytest.raises(DataError, match="no samples_nextturn_answers"):
        lm_eval(
            "nextturn_user_turns", smollm2, {"recipe": str(recipe), "set": "sums", "answers": str(tmp_path)}, tmp_path
        )
    with pytest.raises(BadInput, match="rendered already"):
        lm_eval("nextturn_answers", smollm2, {"recipe": str(recipe), "set": "sums"}, tmp_path, "--apply_chat_template")
