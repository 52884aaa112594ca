"""Golden tests: training rows, a GRPO step, rule verdicts and a probe run must give the frozen tokens and figures.

Inputs and frozen outputs are in tests/golden. `NEXTTURN_FREEZE=1 pytest tests/commands/test_golden.py` writes the outputs again;
read the diff before you commit it. Models are tiny, in float32 and on one thread. Texts, tokens and labels are compared
exactly. Floats are rounded to 4 places, and a difference of 1 in the last place passes, because machines round differently.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.__main__ import main as probe
from nextturn.probe.command.files import sha256_text
from nextturn.probe.judges import get_judge
from nextturn.probe.labels.agreement import read_labelled
from nextturn.probe.text.chat import Chat
from support.judged_turns import judge_all

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
OUR_FIGURES = ("reward", "groups/", "simulator/", "watch/")  # the other figures are trl's
TURN_END = 2.5


def check(name: str, found: Any) -> None:
    """Compare `found` with the frozen value, or freeze it."""
    path = GOLDEN / "frozen" / f"{name}.json"
    found = rounded(json.loads(json.dumps(found)))
    if os.environ.get("NEXTTURN_FREEZE") == "1":
        path.write_text(json.dumps(found, indent=1) + "\n")
    frozen = json.loads(path.read_text())
    assert settled(frozen, found) == frozen


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4) + 0.0
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def settled(old: Any, new: Any) -> Any:
    """Return `new`, with floats that are within 1.5e-4 of the float in the same place of `old` replaced by it."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {name: settled(old.get(name), inner) for name, inner in new.items()}
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [settled(before, now) for before, now in zip(old, new, strict=True)]
    near = isinstance(old, float) and isinstance(new, float) and abs(old - new) <= 1.5e-4
    return old if near else new


@pytest.fixture(scope="module")
def lively(tiny_chatml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with larger weights: greedy replies depend on the prompt, and some turns end."""
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(tiny_chatml, tmp_path_factory.mktemp("models") / "lively"))
    turn_end = json.loads((folder / "config.json").read_text())["eos_token_id"]
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if "embed" in name:
            weight[turn_end] = TURN_END * weight[500]  # it was 0, as the padding is
            weight *= 4
        elif weight.dim() == 2:
            weight *= 12
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in the repository's folder on one thread: the split of sums among threads changes their last bits."""
    import torch

    monkeypatch.chdir(GOLDEN.parents[1])
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_probe_of_a_tiny_model(lively: Path, one_thread: None, tmp_path: Path) -> None:
    """The model's texts are noise; what is asked, graded, counted and scored is not."""
    probe(["run", str(lively), str(GOLDEN / "probe.yaml"), "--out", str(tmp_path), "--device", "cpu"])
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    cells = {
        f"{name}, {changed}, {temperature}": {
            **{figure: cell[figure] for figure in ("n_total", "n_judged", "rate", "ci95", "unscored")},
            "labels": {label: count for label, count in cell["labels"].items() if count},
            "grounding": cell["grounding"]["value"],
        }
        for name, perturbations in results["followup"].items()
        for changed, temperatures in perturbations.items()
        for temperature, cell in temperatures.items()
    }
    samples = [row for row in rows(tmp_path / "samples.jsonl") if row["temperature"] == 0.0]
    said = [row["user_turn"] or row["messages"][-1]["content"] for row in samples]
    check(
        "tiny_probe", {"accuracy": results["accuracy"], "clarify": results["clarify"], "followup": cells, "said": said}
    )


def test_the_rules_judge() -> None:
    turns = read_labelled(GOLDEN / "user_turns.jsonl")
    verdicts = judge_all(get_judge("rules"), [row.case for row in turns])
    check("rules_verdicts", [
        {"turn": row.case.user_turn, "label": verdict.label, "unscored": verdict.unscored, "raw": verdict.raw}
        for row, verdict in zip(turns, verdicts, strict=True)
    ])  # fmt: skip


@pytest.mark.parametrize("family", ["chatml", "qwen3_5_nothink"])
def test_training_rows(family: str) -> None:
    """Token ids and labels of five conversations, for both choices of `loss_on`."""
    from nextturn.train.encoding import make_rows
    from support.tiny_models import tiny_tokenizer

    chat, found = Chat(tiny_tokenizer(family)), {}
    talks = [row["messages"] for row in rows(GOLDEN / "conversations.jsonl")]
    for loss_on in ("assistant", "all"):
        made = make_rows(talks, chat, loss_on, None)[0]
        trained = [[label for label in row["labels"] if label != -100] for row in made]
        found[loss_on] = {
            "first_row": chat.tokenizer.decode(made[0]["input_ids"]),
            "first_trained": chat.tokenizer.decode(trained[0]),
            "tokens_and_trained": [[len(row["input_ids"]), len(ids)] for row, ids in zip(made, trained, strict=True)],
            "sha256": [sha256_text(json.dumps([row["input_ids"], row["labels"]])) for row in made],
        }
    check(f"training_rows_{family}", found)


def test_a_step_of_grpo(lively: Path, one_thread: None, tmp_path: Path) -> None:
    """What is sampled, what a scripted user replies, how it is scored and what is logged."""
    from nextturn.train.grpo import main

    main([str(GOLDEN / "grpo.yaml"), "--model.name", str(lively), "--train.output_dir", str(tmp_path)])
    samples = rows(tmp_path / "samples" / "step-1.jsonl")
    for row in samples:
        (turns,) = row["conversations"]
        row["conversations"] = "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)
    state = json.loads((tmp_path / "checkpoint-1" / "trainer_state.json").read_text())
    ours = {name: value for name, value in state["log_history"][0].items() if name.startswith(OUR_FIGURES)}
    files = sorted(path.name for path in tmp_path.iterdir())
    check("grpo_step", {"samples": samples, "logged": ours, "files": files})
