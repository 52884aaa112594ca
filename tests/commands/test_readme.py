"""Every command that the READMEs show works: launches and builds through their dry run, the rest for real."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nextturn.probe.checkpoints import mark_complete
from nextturn.probe.files import write_json
from nextturn.probe.labels.label import draw, row_of, user_turns
from nextturn.probe.report.comparison import load_runs
from support.commands import call
from support.loopback import Loopback, chat_reply, models_reply

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *(ROOT / name / "README.md" for name in ("data_builders", "train", "probe"))]
TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}
SHOWN = list(
    dict.fromkeys(
        line.split("  #")[0].strip().removesuffix(" \\")
        for text in TEXT.values()
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
        if line.strip() and not line.startswith("#")
    )
)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, tiny_chatml: Path) -> Path:
    """A folder with what the commands name: the recipes, finished runs, a model, labels, problems."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("recipes", "train", "probe", "data_builders", "Makefile", "constraints.txt", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    problems = [
        {
            "problem": f"What is {n}+3?",
            "level": "Level 2",
            "type": "Algebra",
            "solution": rf"${n}+3={n + 3}$ so \boxed{{{n + 3}}}",
        }
        for n in range(2, 12)
    ]
    (folder / "problems.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    question = '{"question": "Ann has %d apples and eats 1. How many?", "answer": "2"}\n'
    (folder / "questions.jsonl").write_text("".join(question % apples for apples in range(2, 12)))
    (folder / "labels.jsonl").write_text(
        '{"id": "a", "messages": [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}], '
        '"user_turn": "What do you think?", "label": "generic_filler", "model": "m", "source": "s", "temperature": 0.7}\n'
    )
    shutil.copytree(tiny_chatml, folder / "my_model")
    shutil.copytree(tiny_chatml, folder / "runs/demo/sft/checkpoint-28")
    mark_complete(folder / "runs/demo/sft/checkpoint-28", 28)
    call(["-m", "nextturn.data_builders", "recipes/demo_data.yaml", "--source.n", "8"], folder)
    limits = ["--probe.sets", "{q: {path: questions.jsonl}}"]
    limits += ["--probe.max_answer_tokens", "8", "--probe.max_user_tokens", "6"]
    for label in ("base", "step-28"):
        command = f"-m nextturn.probe run my_model recipes/probe.yaml --out runs/demo/sft/probe/{label} --label {label}"
        call([*command.split(), *limits], folder)
    turns = draw(user_turns(load_runs([folder / "runs/demo/sft/probe/base"])[0]), 20, 0)  # of the same model as step 28
    for labels in (folder / "labels_of_page.jsonl", folder / "runs/demo/sft/labels.jsonl"):
        labels.write_text("".join(json.dumps({**row_of(turn), "label": "new_task"}) + "\n" for turn in turns))
    probe = {"sets": {"q": {"path": "questions.jsonl"}}, "max_answer_tokens": 8, "max_user_tokens": 6}
    write_json(folder / "runs/demo/sft/recipe.json", {"model": {"name": "my_model"}, "train": {}, "probe": probe})
    for name in ("demo/grpo", "qwen2b_sft", "qwen2b_grpo"):
        shutil.copytree(folder / "runs/demo/sft", folder / "runs" / name)
    return folder


@pytest.fixture(scope="module")
def server(workplace: Path) -> Iterator[str]:
    """Stands for every server that the pages name: it lists one model and judges."""
    handlers = {
        "/models": lambda seen: models_reply("my_model"),
        "/chat/completions": lambda seen: chat_reply("VERDICT: new_task"),
    }
    with Loopback(handlers) as opened:
        yield opened.url


def test_the_pages_show_the_commands_of_every_stage() -> None:
    for start in ("make demo", "make test", "accelerate launch", "nextturn data", "nextturn probe run"):
        assert any(command.startswith(start) for command in SHOWN), start


@pytest.mark.parametrize("shown", SHOWN)
def test_a_shown_command_works(shown: str, workplace: Path, server: str) -> None:
    words = shlex.split(re.sub(r"http://localhost:\d+/v1", server, shown))
    words = words[1:] if words[0].startswith("CUDA_VISIBLE_DEVICES=") else words
    dry = [] if "--dry-run" in words else ["--dry-run"]
    if words[0] == "make":
        done = subprocess.run(["make", "--dry-run", *words[1:]], cwd=workplace, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif words[0] == "accelerate":
        script = next(place for place, word in enumerate(words) if word.startswith("train/"))
        launcher = dict(zip(words[2:script:2], words[3:script:2], strict=True))
        if "--config_file" in launcher:
            assert (workplace / launcher["--config_file"]).is_file(), shown
        recipe = workplace / words[script + 1]
        assert recipe.is_file()
        if [
            word for word in words[script + 2 :] if word != "--dry-run"
        ]:  # tests/commands/test_recipes.py runs it as it is
            call([*words[script:], *dry], workplace, WORLD_SIZE=launcher.get("--num_processes", "1"))
    elif words[:2] == ["nextturn", "data"] or words[:3] == ["nextturn", "probe", "run"]:
        call([*words, *dry], workplace)
    elif words[:2] in (["nextturn", "probe"], ["nextturn", "export"]):
        once = ["--once"] if "watch" in words and "--once" not in words else []
        call(
            [str(workplace / "labels_of_page.jsonl") if word.startswith("~") else word for word in [*words, *once]],
            workplace,
        )
    elif shown == "python -m venv .venv" or words == ["nextturn", "doctor"]:
        call([*(words if words[0] == "nextturn" else words[1:]), "--help"], workplace)
    else:
        assert words[0] in ("git", "pip", "cd", "wandb", "."), f"no test knows how to check: {shown}"


def test_every_path_that_a_page_links_to_is_there() -> None:
    for page, text in TEXT.items():
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page}: {target}"


def test_every_shipped_recipe_is_named_in_the_readme() -> None:
    for recipe in (ROOT / "recipes").glob("*.yaml"):
        assert recipe.name in TEXT[PAGES[0]], recipe.name


def test_the_readme_stays_short_enough_to_be_read() -> None:
    assert TEXT[PAGES[0]].count("\n") < 250
