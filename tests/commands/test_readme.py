"""Every command on the pages works, in the order of the page: launches and builds by their dry run, the rest for real."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import pytest

from nextturn.probe.command.files import write_json
from nextturn.probe.labels.label import draw, write_labels
from nextturn.probe.labels.turns import user_turns
from nextturn.probe.models.checkpoints import mark_complete
from nextturn.probe.models.folders import load_tokenizer, resolve
from nextturn.probe.models.user_model import UserModelInfo, mark_user_model
from nextturn.probe.results import load_runs
from nextturn.probe.text.chat import Chat
from support.commands import ROOT, call
from support.loopback import Loopback, chat_reply, models_reply

FOLDERS = ("data_builders", "train", "probe", "recipes")
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name / "README.md" for name in FOLDERS),
    ROOT / "recipes" / "results" / "RESULTS.md",
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
]
TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}
README = TEXT[PAGES[0]]


def blocks(text: str, language: str) -> list[str]:
    """Return the contents of a page's fenced code blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


# The test adds `--dry-run` itself where a command is not run for real.
SHOWN = list(
    dict.fromkeys(
        line.split("  #")[0].strip().replace(" --dry-run", "")
        for text in TEXT.values()
        for block in blocks(text, "bash")
        for line in block.replace("\\\n", " ").splitlines()
        if line.strip() and not line.startswith("#")
    )
)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, tiny_chatml: Path) -> Path:
    """Return a folder with what the commands name: recipes, finished runs, a model, conversations, labels, problems."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("recipes", "train", "probe", "data_builders", "Makefile", "constraints.txt", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    problem = {"level": "Level 2", "type": "Algebra"}
    sums = [{"problem": f"What is {n}+3?", "solution": rf"${n}+3={n + 3}$ so \boxed{{{n + 3}}}"} for n in range(2, 12)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(problem | row) + "\n" for row in sums))
    question = '{"question": "Ann has %d apples and eats 1. How many?", "answer": "2"}\n'
    (folder / "questions.jsonl").write_text("".join(question % apples for apples in range(2, 12)))
    (folder / "quiz.csv").write_text("Frage,Antwort\nWas ist 2 + 3?,5\n")
    (folder / "labels.jsonl").write_text(
        '{"id": "a", "messages": [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}], '
        '"user_turn": "What do you think?", "label": "generic_filler", "model": "m", "source": "s", "temperature": 0.7}\n'
    )
    shutil.copytree(tiny_chatml, folder / "my_model")
    shutil.copytree(tiny_chatml, folder / "runs/demo/sft/checkpoint-28")
    mark_complete(folder / "runs/demo/sft/checkpoint-28", 28)
    shutil.copytree(tiny_chatml, folder / "runs/verl/global_step_10/actor/huggingface")
    for recipe in ("demo_data", "smollm2_data"):
        call(["nextturn", "data", f"recipes/{recipe}.yaml", "--source.n", "8"], folder)
    shutil.copytree(tiny_chatml, folder / "runs/user_smol")
    template = Chat(load_tokenizer(resolve(str(tiny_chatml)))).template_sha256
    mark_user_model(folder / "runs/user_smol", UserModelInfo("smollm2-135m", template, intents=True))
    limits = ["--probe.sets", "{q: {path: questions.jsonl}}"]
    limits += ["--probe.max_answer_tokens", "8", "--probe.max_user_tokens", "6"]
    for label in ("base", "step-28"):
        command = f"nextturn probe run my_model recipes/probe.yaml --out runs/demo/sft/probe/{label} --label {label}"
        call([*command.split(), *limits], folder)
    for step, name in (("base", "base"), ("step-28", "sft")):
        words = [f"runs/demo/sft/probe/{step}", "--out", f"kept/{name}", "--questions", "questions.jsonl"]
        subprocess.run([sys.executable, "recipes/results/keep.py", *words], cwd=folder, check=True)
    turns = draw(user_turns(load_runs([folder / "runs/demo/sft/probe/base"])[0]), 20, 0)  # of the same model as step 28
    shutil.copytree(folder / "runs/demo/sft/probe", folder / "runs/results/probe")
    shutil.copytree(folder / "runs/demo/sft/probe/base", folder / "runs/probe/questions")
    for name in ("labels_of_page.jsonl", "runs/demo/sft/labels.jsonl", "runs/results/labels.jsonl"):
        write_labels(folder / name, [turn.model_copy(update={"label": "new_task"}) for turn in turns])
    probe = {"sets": {"q": {"path": "questions.jsonl"}}, "max_answer_tokens": 8, "max_user_tokens": 6}
    write_json(
        folder / "runs/demo/sft/recipe.json",
        {"model": {"name": "my_model", "dtype": "float32"}, "train": {}, "probe": probe},
    )
    for name in ("conversations.jsonl", "held_out.jsonl", "more.jsonl"):
        (folder / name).write_text(blocks(README, "json")[0] * 4)
    (folder / "my_measure.py").write_text(blocks(TEXT[ROOT / "docs" / "your-measure.md"], "python")[0])
    (folder / "mine.yaml").write_text(blocks(README, "yaml")[0].replace("smollm2-135m", "my_model"))
    (folder / "own.yaml").write_text(
        blocks(TEXT[ROOT / "docs" / "your-data.md"], "yaml")[0].replace("smollm2-135m", "my_model")
    )
    reward = TEXT[ROOT / "docs" / "your-reward.md"]
    (folder / "prompts.jsonl").write_text(blocks(reward, "json")[0] * 16)
    (folder / "product_reward.py").write_text(blocks(reward, "python")[0])
    (folder / "grpo.yaml").write_text(blocks(reward, "yaml")[0].replace("smollm2-135m", "my_model"))
    for name in ("smollm2/sft", "smollm2/grpo", "qwen2b_sft", "qwen2b_grpo", "trainers_sft"):
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
    for start in ("make demo", "make test", "accelerate launch", "nextturn data", "nextturn sft", "nextturn probe run"):
        assert any(command.startswith(start) for command in SHOWN), start


@pytest.mark.parametrize("shown", SHOWN)
def test_a_shown_command_works(shown: str, workplace: Path, server: str) -> None:
    shown = re.sub(r"http://localhost:\d+/v1", server, shown.removeprefix("CUDA_VISIBLE_DEVICES=7 "))
    words = shlex.split(shown.replace("~/Downloads/labels.jsonl", "labels_of_page.jsonl"))
    words = [name for word in words for name in (sorted(glob(word, root_dir=workplace)) or [word])]
    if words[0] == "make":
        subprocess.run(["make", "--dry-run", *words[1:]], cwd=workplace, capture_output=True, check=True)
    elif words[0] == "accelerate":
        script = next(index for index, word in enumerate(words) if word.startswith("train/"))
        launcher = dict(zip(words[2:script:2], words[3:script:2], strict=True))
        assert (workplace / launcher.get("--config_file", "recipes")).exists()
        assert (workplace / words[script + 1]).is_file()
        if words[script + 2 :]:  # tests/commands/test_recipes.py has the others
            call([*words[script:], "--dry-run"], workplace, WORLD_SIZE=launcher.get("--num_processes", "1"))
    elif words[0] == "bash" or (words[0] == "python" and words[1] != "-m"):
        assert (workplace / words[1]).is_file()  # tests/probe/test_callback.py runs the scripts
    elif words[1] == "data" and not words[3:]:
        assert (workplace / words[2]).is_file()  # tests/commands/test_recipes.py has these too
    elif (
        words[1] in ("data", "grpo", "users")
        or words[1:3] == ["probe", "run"]
        or "--base" in words
        or (words[1] == "sft" and words[3:])
    ):
        call([*words, "--dry-run"], workplace)
    elif words[:2] == ["nextturn", "sft"]:
        options = ["--train.use_cpu", "true", "--tracking.to", "none"]
        if "mine.yaml" in words:
            options += ["--probe.max_answer_tokens", "8", "--probe.max_user_tokens", "6"]
            options += ["--probe.sets.written_pairs.n", "2"]
        call([*words, *options], workplace)
    elif "--wandb" in words:
        call(words, workplace, WANDB_MODE="disabled")
    elif words[0] == "nextturn":
        options = {"doctor": ["--help"], "watch": [] if "--once" in words else ["--once"]}
        words = [
            word for word in words if word not in ("--probe.engine", "vllm")
        ]  # the finished probes are by another engine
        codes = (0, 3, 4) if {"--keep", "--gain"} & {*words} else (0,)  # tests/probe/test_gate.py has the code of each
        call([*words, *options.get(words[-1], options.get(words[2], []) if words[2:] else [])], workplace, codes)
    else:
        assert shown == "python -m venv .venv" or words[0] in (
            "pip",
            ".",
            "vf-eval",
            "vllm",
        ), (  # `make test-reach` runs vf-eval
            f"no test knows how to check: {shown}"
        )


def anchors(text: str) -> set[str]:
    """Return the names by which links reach the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_and_paths_on_pages_lead_somewhere() -> None:
    for page, text in TEXT.items():
        for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
            path = (page.parent / target).resolve() if target else page
            assert target.startswith("http") or path.exists(), f"{page}: {target}"
            assert not anchor or target.startswith("http") or anchor in anchors(TEXT[path]), f"{page}: #{anchor}"
        for path in re.findall(rf"`((?:{'|'.join(FOLDERS)}|docs|tests)/[\w/-]+\.\w+)`", text):
            assert (ROOT / path).exists() or page.name == "CHANGELOG.md", f"{page}: {path}"


def test_every_recipe_and_every_page_is_named_where_readers_look() -> None:
    recipes = TEXT[ROOT / "recipes" / "README.md"]
    assert all(path.name in recipes for path in (ROOT / "recipes").glob("*.yaml"))
    pages = TEXT[ROOT / "docs" / "pages.md"]
    assert "docs/pages.md" in README
    assert all(str(path.relative_to(ROOT)) in pages for path in (ROOT / "docs").glob("*.md") if path.name != "pages.md")


def test_readmes_are_short() -> None:
    assert README.count("\n") <= 110 and len(README.split()) <= 950
    assert len(TEXT[ROOT / "docs" / "results.md"].split()) <= 1600
    assert all(TEXT[ROOT / name / "README.md"].count("\n") <= 20 for name in FOLDERS)
