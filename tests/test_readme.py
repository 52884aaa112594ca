"""Every command that the README shows works: launches and builds through their dry run, the rest for real."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import Loopback, chat_reply, models_reply

from data_builders.recipe import load_data_recipe
from data_builders.run import build
from probe.checkpoints import mark_complete
from probe.files import write_json

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = [
    line.split("  #")[0].strip().removesuffix(" \\")
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip() and not line.startswith("#")
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, tiny_chatml: Path) -> Path:
    """A folder with what the README's commands name: the recipes, a finished run, a model, labels, problems."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("recipes", "train", "probe", "data_builders", "Makefile", "constraints.txt", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    problem = {"problem": "What is 2+3?", "level": "Level 4", "type": "Algebra", "solution": r"$2+3=5$ so \boxed{5}"}
    (folder / "problems.jsonl").write_text(json.dumps(problem) + "\n")
    (folder / "questions.jsonl").write_text('{"question": "Ann has 3 apples and eats 1. How many?", "answer": "2"}\n')
    (folder / "labels.jsonl").write_text(
        '{"id": "a", "messages": [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}], '
        '"user_turn": "What do you think?", "label": "generic_filler"}\n'
    )
    shutil.copytree(tiny_chatml, folder / "my_model")
    shutil.copytree(tiny_chatml, folder / "runs/demo/sft/checkpoint-28")
    mark_complete(folder / "runs/demo/sft/checkpoint-28", 28)
    data = load_data_recipe(
        ROOT / "recipes/demo_data.yaml", ["--source.n", "8", "--output.path", str(folder / "runs/demo/data")]
    )
    build(data, folder / "runs/demo/data")
    for label in ("base", "step-28"):
        out = f"runs/demo/sft/probe/{label}"
        command = f"run my_model recipes/probe.yaml --out {out} --label {label} --probe.sets {{}}"
        sets = "{q: {path: questions.jsonl}}"
        limits = ["--probe.max_answer_tokens", "8", "--probe.max_user_tokens", "6"]
        run([sys.executable, "-m", "probe", *shlex.split(command)[:-1], sets, *limits], folder)
    probe = {"sets": {"q": {"path": "questions.jsonl"}}, "max_answer_tokens": 8, "max_user_tokens": 6}
    write_json(folder / "runs/demo/sft/recipe.json", {"model": {"name": "my_model"}, "train": {}, "probe": probe})
    shutil.copytree(folder / "runs/demo/data/eval", folder / "runs/starter_collab/eval")
    for name in ("smollm2_sft", "smollm2_grpo"):
        shutil.copytree(folder / "runs/demo/sft", folder / "runs" / name)
    shutil.copytree(tiny_chatml, folder / "runs/smollm2_sft/checkpoint-162")  # where recipes/smollm2_grpo.yaml goes on
    return folder


@pytest.fixture(scope="module")
def server(workplace: Path) -> Iterator[str]:
    """Stands for every server that the README names: it lists one model and judges."""
    handlers = {
        "/models": lambda seen: models_reply("my_model"),
        "/chat/completions": lambda seen: chat_reply("VERDICT: new_task"),
    }
    with Loopback(handlers) as opened:
        yield opened.url


def run(command: list[str], cwd: Path) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    return done.stdout


def test_the_readme_shows_the_commands_of_every_stage() -> None:
    for start in ("make demo", "make test", "accelerate launch", "python -m data_builders", "python -m probe run"):
        assert any(command.startswith(start) for command in SHOWN), start


@pytest.mark.parametrize("shown", SHOWN)
def test_a_shown_command_works(shown: str, workplace: Path, server: str) -> None:
    words = shlex.split(re.sub(r"http://localhost:\d+/v1", server, shown))
    if words[0] == "make":
        run(["make", "--dry-run", *words[1:]], workplace)
    elif words[0] == "accelerate":
        script = next(place for place, word in enumerate(words) if word.startswith("train/"))
        for option, value in zip(words[2:script], words[3:script], strict=False):
            if option == "--config_file":
                assert (workplace / value).is_file(), value
        dry = [] if "--dry-run" in words else ["--dry-run"]
        run([sys.executable, *words[script:], *dry], workplace)
    elif words[:3] == ["python", "-m", "data_builders"]:
        run(
            [sys.executable, *words[1:], *([] if {"--preview", "--dry-run"} & set(words) else ["--dry-run"])], workplace
        )
    elif words[:4] == ["python", "-m", "probe", "run"]:
        run([sys.executable, *words[1:], *([] if "--dry-run" in words else ["--dry-run"])], workplace)
    elif words[:3] == ["python", "-m", "probe"]:
        run([sys.executable, *words[1:]], workplace)
    else:
        assert words[0] in ("git", "pip", "cd", "wandb"), f"no test knows how to check: {shown}"


def test_every_path_that_the_readme_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_every_shipped_recipe_is_named_in_the_readme() -> None:
    for recipe in (ROOT / "recipes").glob("*.yaml"):
        assert recipe.name in README, recipe.name
