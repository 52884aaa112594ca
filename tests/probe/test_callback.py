"""The probe in other people's trainers: the example scripts, and a model in memory measured as a folder is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import BadInput
from nextturn.probe.command.files import read_json, write_jsonl
from nextturn.probe.results import load_runs
from support.commands import ROOT, start
from support.launches import Launched

SETS = {"maths": {"measures": ["accuracy", "followup", "sharded"]}}
ROWS = [{"question": "Ivo has 4 pens. He buys 3 more pens. How many has he?", "answer": "7"}]
KEYS: dict[str, Any] = {"temperatures": [0.0], "max_answer_tokens": 12, "max_user_tokens": 8}


def sets(folder: Path) -> dict[str, dict[str, Any]]:
    write_jsonl(folder / "maths.jsonl", ROWS)
    return {"maths": {**SETS["maths"], "path": str(folder / "maths.jsonl")}}


def measured_steps(trainer: str, model: Path, run: Path) -> None:
    """Run the example script of a trainer, and check what it measured."""
    script = ROOT / "recipes" / "trainers" / f"{trainer}.py"
    assert len(script.read_text().splitlines()) <= 40
    start([str(script), str(model), str(run)]).finish()
    results = [measured.results for measured in load_runs([run])]
    assert [each.model.step for each in results] == [0, 2, 4]
    assert len({each.model.weights_sha256 for each in results}) == 3, "each probe measured other weights"
    history = read_json(run / "checkpoint-4" / "trainer_state.json")["log_history"]
    assert {row["step"] for row in history if "probe/follow_up_rules_rough" in row} >= {0, 2}


@pytest.mark.parametrize("trainer", ["plain", "dpo", "grpo"])
def test_the_example_script_of_a_trainer_measures_base_and_saves(
    trainer: str, tiny_chatml: Path, tmp_path: Path
) -> None:
    measured_steps(trainer, tiny_chatml, tmp_path / "run")


def test_two_processes_train_into_the_folder_of_one_and_set_its_probes_aside(tiny_chatml: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    measured_steps("sft", tiny_chatml, run)
    script = (ROOT / "recipes" / "trainers" / "sft.py").read_text().replace("max_steps=4", "max_steps=2")
    (tmp_path / "sft.py").write_text(script.replace("bf16=False", "bf16=False, use_cpu=True, learning_rate=0.1"))
    said = Launched([tmp_path / "sft.py", tiny_chatml, run], None, tmp_path).finish()
    assert said.count("that probe is set aside as") == 1
    (aside,) = (run / "probe").glob("before-*")  # of step 2: the base is the same, and is not measured again
    old, new = (read_json(folder / "results.json")["model"] for folder in (aside, run / "probe" / "step-2"))
    assert old["step"] == new["step"] == 2 and old["weights_sha256"] != new["weights_sha256"]
    assert [measured.results.model.step for measured in load_runs([run])] == [0, 2, 4]


def test_a_model_in_memory_is_measured_as_its_folder_is(tiny_chatml: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from nextturn.probe import measure_model
    from nextturn.probe.__main__ import main

    model = AutoModelForCausalLM.from_pretrained(tiny_chatml).train()
    tokenizer = AutoTokenizer.from_pretrained(tiny_chatml)
    results = measure_model(model, tokenizer, sets(tmp_path), tmp_path / "memory", "tiny", **KEYS)
    assert model.training, "it is put back"
    recipe = tmp_path / "probe.yaml"
    recipe.write_text(
        f"probe:\n  sets:\n    maths: {{path: {tmp_path}/maths.jsonl, measures: [accuracy, followup, sharded]}}\n"
        "  temperatures: [0.0]\n  max_answer_tokens: 12\n  max_user_tokens: 8\n"
    )
    main(["run", str(tiny_chatml), str(recipe), "--out", str(tmp_path / "folder")])
    short = ["--probe.temperatures", "[0.0]", "--probe.max_answer_tokens", "12", "--probe.max_user_tokens", "8"]
    main(["run", str(tiny_chatml), "--set", str(tmp_path / "maths.jsonl"), "--out", str(tmp_path / "set"), *short])
    assert read_json(tmp_path / "set" / "results.json")["accuracy"] == results["accuracy"], "without a recipe"
    main(["run", str(tiny_chatml), "--out", str(tmp_path / "folder"), str(recipe)])  # an option before the recipe
    for wrong in ([], [str(recipe), "--set", "x.jsonl"]):
        with pytest.raises(BadInput, match="--set"):
            main(["run", str(tiny_chatml), *wrong, "--out", str(tmp_path / "wrong")])
    of_folder = read_json(tmp_path / "folder" / "results.json")
    measured = ("accuracy", "clarify", "followup", "sharded", "settings")
    assert {key: results[key] for key in measured} == {key: of_folder[key] for key in measured}
    assert measure_model(model, tokenizer, sets(tmp_path), **KEYS)["sharded"] == results["sharded"], "without a folder"


@pytest.mark.parametrize(
    ("keys", "said"),
    [({"temprature": 1}, "temprature"), ({"temperatures": "hot"}, "probe: temperatures"), ({"judge": "lm"}, "judge")],
)
def test_a_wrong_key_is_one_line(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    from nextturn.probe import ProbeCallback

    with pytest.raises(BadInput, match=said) as error:
        ProbeCallback(sets(tmp_path), **keys)
    assert "\n" not in str(error.value)
    with pytest.raises(BadInput, match="nowhere.jsonl"):
        ProbeCallback({"mine": str(tmp_path / "nowhere.jsonl")})


def test_the_package_is_imported_without_torch() -> None:
    code = "import sys, nextturn.probe; assert not {'torch', 'transformers'} & set(sys.modules), 'loaded'"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
