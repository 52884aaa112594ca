"""The way from problems to a comparison of SFT and GRPO, command by command as docs/gpu.md shows it.

Two processes train over gloo under the recipes' own DeepSpeed file (tests/support/as_on_gpus.py). Options replace sizes and
engines, a folder of the model's name replaces the model, and a loopback server replaces the policy.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from nextturn.probe.files import read_json
from support.commands import call
from support.dialogue_server import problems, speak
from support.grpo_parts import probe_section
from support.launches import AS_ON_GPUS, PATIENCE_S, ROOT, Launched, history
from support.loopback import Loopback
from support.tiny_models import build_tiny_multimodal

SIZES = {
    "user": {"max_steps": 1, "save_steps": 1, "logging_steps": 1, "use_cpu": True, "deepspeed": None},
    "sft": {"max_steps": 1, "save_steps": 1, "logging_steps": 1, "ddp_timeout": PATIENCE_S},
    "grpo": {
        "max_steps": 1, "save_steps": 1, "ddp_timeout": PATIENCE_S, "num_generations": 4,
        "per_device_train_batch_size": 2, "max_completion_length": 24, "use_vllm": False, "learning_rate": 1e-3,
    },
}  # fmt: skip
SECTIONS = {
    "user": {},
    "sft": {"data": {"rows_per_step": 4}},
    "grpo": {
        "data": {"held_out": 2},
        "rollout": {"samples_per_step": 8, "max_turn_tokens": 8, "samples": 1, "window": 1},
    },
}


def commands() -> list[list[str]]:
    """Return the commands of the section in docs/gpu.md."""
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8").split("\n## From MATH to a comparison")[1]
    block = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)[0]
    return [shlex.split(line, comments=True) for line in block.splitlines()]


def options(stage: str, folder: Path) -> list[str]:
    probe = {} if stage == "user" else {**probe_section(folder), "engine": "hf", "temperatures": [0.0]}
    sections = {"train": SIZES[stage], "probe": probe, "tracking": {"to": "none"}, **SECTIONS[stage]}
    given = [(f"--{name}.{key}", value) for name, values in sections.items() for key, value in values.items()]
    return [word for key, value in given for word in (key, json.dumps(value))]


def test_the_page_leads_to_a_comparison(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page leads from problems to a comparison of SFT and GRPO."""
    build_tiny_multimodal(tmp_path / "Qwen" / "Qwen3.5-2B")  # as the hub holds it
    (tmp_path / "recipes").mkdir()
    for path in (ROOT / "recipes").iterdir():
        (tmp_path / "recipes" / path.name).symlink_to(path)
    answers = problems(tmp_path / "gsm8k.jsonl", 24)
    rows = [json.loads(line) for line in (tmp_path / "gsm8k.jsonl").read_text().splitlines()]
    with (tmp_path / "problems.jsonl").open("w") as file:
        for row, answer in zip(rows, answers.values(), strict=True):
            solution = f"${row['answer'].splitlines()[0]}$, so the answer is $\\boxed{{{answer}}}$."
            problem = {"problem": row["question"], "level": "Level 1", "type": "Algebra", "solution": solution}
            file.write(json.dumps(problem) + "\n")
    monkeypatch.chdir(tmp_path)
    with Loopback({"/chat/completions": speak(answers)}) as server:
        # In a copy, since training reads the recipe of the data and not the options of its build.
        recipe = yaml.safe_load((ROOT / "recipes" / "math_collab.yaml").read_text())
        policy = {"engine": "openai", "server": {"urls": [server.url], "model": "Qwen/Qwen3.5-2B"}}
        recipe["source"]["n"] = len(rows)
        del recipe["written"], recipe["dialogue"]["simulator"]["vllm"]
        recipe["dialogue"]["simulator"]["runs_on"] = "hf"
        recipe["dialogue"]["policy"] = policy
        recipe["quality"] = {"decontaminate": [], "max_same_wording": 1.0}  # sets of the hub; the server has few words
        (tmp_path / "recipes" / "math_collab.yaml").unlink()
        (tmp_path / "recipes" / "math_collab.yaml").write_text(yaml.safe_dump(recipe))
        user_model, build, *rest = commands()
        call([*user_model[user_model.index("train/sft.py") :], *options("user", tmp_path)], tmp_path)
        call(build, tmp_path)
    assert read_json(tmp_path / "runs/math_collab/settings.json")["dialogue"]["simulator"]["engine"] == "adapter"
    done = []
    for words in rest:
        if words[:2] == ["nextturn", "probe"]:
            call(words, tmp_path)
            done.append(words[2])
            continue
        script = next(place for place, word in enumerate(words) if word.startswith("train/"))
        stage = Path(words[script]).stem
        given = [*words[script + 1 :], *options(stage, tmp_path)]
        if "--dry-run" in given:
            call([words[script], *given], tmp_path)
            continue
        as_on_gpus = [ROOT / "tests" / "support" / "as_on_gpus.py", stage, *given]
        said = Launched(as_on_gpus, Path(AS_ON_GPUS), tmp_path, cwd=tmp_path).finish()
        assert "ZeRO-2 on 2 processes" in said
        run = tmp_path / "runs" / f"qwen2b_{stage}"
        assert [row["step"] for row in history(run / "checkpoint-1")] == [1]
        done.append(stage)
    assert done == ["sft", "grpo", "compare"]
    assert read_json(tmp_path / "runs/qwen2b_grpo/recipe.json")["model"]["name"] == "runs/qwen2b_sft"
    compared = read_json(tmp_path / "runs/comparison/comparison.json")
    assert len(compared["runs"]) == 4, "base and last step of both"
