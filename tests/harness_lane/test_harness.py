"""lm-evaluation-harness as released gives what `nextturn probe run` gives: only `make test-harness` collects this folder.

SmolLM2's real weights, five questions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.__main__ import main
from nextturn.probe.errors import BadInput, DataError
from nextturn.probe.files import read_jsonl
from nextturn.probe.judges.labels import LABELS

ROOT = Path(__file__).resolve().parents[2]
TASKS = ROOT / "probe" / "harness"
RECIPE = """
probe:
  sets:
    sums: {path: QUESTIONS, measures: [accuracy, followup]}
    same: {path: QUESTIONS, measures: [followup]}
  temperatures: [0.0]
  max_answer_tokens: 32
  max_user_tokens: 24
  grounding: false
  dtype: float32
"""


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
def probed(recipe: Path, smollm2: Path) -> dict[str, dict[str, Any]]:
    """Return the user turns of `nextturn probe run` by item."""
    out = recipe.parent / "run"
    main(["run", str(smollm2), str(recipe), "--out", str(out)])
    rows = [row for _, row in read_jsonl(out / "samples.jsonl") if row["set"] == "sums" and row["kind"] == "followup"]
    return {row["item"]: row for row in rows}


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


def test_lm_eval_gives_the_same_greedy_turns_and_labels(
    recipe: Path, smollm2: Path, probed: dict[str, dict[str, Any]]
) -> None:
    out = recipe.parent / "lm_eval"
    about = {"recipe": str(recipe), "set": "sums"}
    with pytest.raises(BadInput, match="no `answers`"):
        lm_eval("nextturn_user_turns", smollm2, about, out)
    assert {"strict", "lenient"} <= set(lm_eval("nextturn_answers", smollm2, about, out)[0])
    rows = lm_eval("nextturn_user_turns", smollm2, {**about, "answers": str(out)}, out)
    assert {row["doc"]["id"] for row in rows} == set(probed) and len(rows) == 5
    for row in rows:
        expected = probed[row["doc"]["id"]]
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
