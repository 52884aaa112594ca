"""The way from problems to a comparison of SFT and GRPO, command by command as docs/gpu.md shows it.

All commands run in this process; tests/train/test_train_distributed.py and test_grpo_distributed.py launch the recipes. Options
replace sizes and engines, a folder of the model's name replaces the model, and a loopback server replaces the policy.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from nextturn.probe.command.files import read_json
from support.commands import ROOT, call
from support.dialogue_server import problems, speak
from support.grpo_parts import probe_section
from support.launches import history
from support.loopback import Loopback
from support.tiny_models import build_tiny_multimodal

TRAIN = {"max_steps": 1, "save_steps": 1, "logging_steps": 1, "use_cpu": True, "bf16": False, "deepspeed": None}
SECTIONS: dict[str, dict[str, Any]] = {
    "user": {"train": TRAIN},
    "sft": {"train": TRAIN, "data": {"rows_per_step": 4}},
    "grpo": {
        "train": {
            **TRAIN, "num_generations": 4, "per_device_train_batch_size": 4, "max_completion_length": 24, "use_vllm": False, "generation_batch_size": None,
            "learning_rate": 1e-3,
        },
        "data": {"held_out": 2},
        "rollout": {"samples_per_step": 4, "max_turn_tokens": 8, "samples": 1, "window": 1},
    },
}  # fmt: skip


def commands() -> list[list[str]]:
    """Return the commands of the section in docs/gpu.md."""
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8").split("\n## From MATH to a comparison")[1]
    block = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)[0]
    return [shlex.split(line, comments=True) for line in block.splitlines()]


def options(stage: str, folder: Path) -> list[str]:
    probe = {} if stage == "user" else {**probe_section(folder), "engine": "hf", "temperatures": [0.0]}
    sections = {"model": {"dtype": "float32"}, "probe": probe, "tracking": {"to": "none"}, **SECTIONS[stage]}
    given = [(f"--{name}.{key}", value) for name, values in sections.items() for key, value in values.items()]
    return [word for key, value in given for word in (key, json.dumps(value))]


def test_the_page_leads_to_a_comparison(tmp_path: Path, own_cache: Path) -> None:
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
    with Loopback({"/chat/completions": speak(answers)}) as server:
        # In a copy, since training reads the recipe of the data and not the options of its build.
        recipe = yaml.safe_load((ROOT / "recipes" / "math_collab.yaml").read_text())
        recipe["source"]["n"] = len(rows)
        del recipe["written"], recipe["dialogue"]["simulator"]["vllm"]
        recipe["dialogue"]["simulator"]["runs_on"] = "hf"
        policy = {"engine": "openai", "server": {"urls": [server.url], "model": "Qwen/Qwen3.5-2B"}}
        recipe["dialogue"]["policy"] = policy
        recipe["quality"] = {"decontaminate": [], "max_same_wording": 1.0}  # sets of the hub; the server has few words
        (tmp_path / "recipes" / "math_collab.yaml").unlink()
        (tmp_path / "recipes" / "math_collab.yaml").write_text(yaml.safe_dump(recipe))
        for words in commands():
            if words[0] == "accelerate":
                script = next(place for place, word in enumerate(words) if word.startswith("train/"))
                stage = "user" if "user" in words[script + 1] else Path(words[script]).stem
                words = [*words[script:], *options(stage, tmp_path)]
            call(words, tmp_path)
    assert read_json(tmp_path / "runs/math_collab/settings.json")["dialogue"]["simulator"]["engine"] == "adapter"
    for stage in ("sft", "grpo"):
        assert [row["step"] for row in history(tmp_path / f"runs/qwen2b_{stage}/checkpoint-1")] == [1]
    assert read_json(tmp_path / "runs/qwen2b_grpo/recipe.json")["model"]["name"] == "runs/qwen2b_sft"
    compared = read_json(tmp_path / "runs/comparison/comparison.json")
    assert len(compared["runs"]) == 4, "base and last step of both"
