"""What commands and files give today, frozen: a redesign of the code has to give the same.

Inputs and frozen outputs lie in tests/golden. `python tests/golden/freeze.py` (or NEXTTURN_FREEZE=1) writes the outputs
anew; otherwise they are compared. Nearly all goes through the commands; what is imported from the product stands in one
block, "the product's names", with the few lines that use it: only these need to follow a redesign.

Whatever torch computes may differ by a rounding between machines. Models are tiny, in float32 and on one thread; texts and
labels are compared exactly, numbers rounded to 4 places, rewards to 6 (a last place more or less passes). Everything else is exact.
Templates come with the installed trl and vocabularies with the installed tokenizers, both as constraints.txt pins them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import re
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dialogue_server import speak
from loopback import Loopback, Seen, completion_reply, models_reply

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
FREEZE = os.environ.get("NEXTTURN_FREEZE") == "1"
FAMILIES = ("chatml", "qwen3_5_nothink", "llama3", "gemma3")
OUR_FIGURES = ("reward", "groups/", "simulator/", "watch/")  # what trl logs beside them is its own affair
TURN_END = 2.5
SHOWN = 12  # differences that one test prints


# --- the product's names: all that a redesign may have to change here (the models come from conftest.py)


def rules_verdicts(path: Path) -> list[dict[str, Any]]:
    """What the rules judge makes of each turn in a file of labelled turns."""
    from probe.judges import get_judge
    from probe.judges.agreement import read_labelled
    from probe.judges.labels import judge_all

    verdicts = judge_all(get_judge("rules"), [row.case for row in read_labelled(path)])
    return [{"label": one.label, "unscored": one.unscored, "raw": one.raw} for one in verdicts]


def training_rows(family: str, talks: list[Any], loss_on: Any) -> tuple[list[dict[str, list[int]]], Any]:
    """Rows with `input_ids` and `labels`, and the tokenizer that they were made with."""
    from tiny_models import tiny_tokenizer

    from probe.chat import Chat
    from train.rows import make_rows

    chat = Chat(tiny_tokenizer(family))
    return make_rows(talks, chat, loss_on, None)[0], chat.tokenizer


def rewarded(samples: list[dict[str, Any]], group: int, **section: Any) -> tuple[list[Any], dict[str, float], Any]:
    """The reward of each recorded sample, the figures that are logged, and the parts by name."""
    from data_builders.rows import RlRow
    from train.recipe import CustomPart, RewardSection, Weights
    from train.rewards import Rewards, Sample
    from train.scoring import ComposedReward

    recorded = []
    for told in samples:
        prompt = tuple(told["row"]["prompt"])
        row = RlRow(**{**told["row"], "prompt": prompt, "hidden": tuple(told["row"].get("hidden", ()))})
        after = [tuple(spoken(turns)) for turns in told["turns"]]
        given = {name: tuple(told[name]) for name in ("simulated_tokens", "ended", "failures")}
        whole = tuple((*prompt, *turns) for turns in after)
        recorded.append(Sample(row, whole, len(prompt), told["tokens"], truncated=told["truncated"], **given))
    custom = {"length": CustomPart(function="tests.custom_rewards:length", weight=0.5)}
    rewards = Rewards(RewardSection(weights=Weights(**section.pop("weights")), custom=custom, **section), seed=0)
    figures: dict[str, float] = {}
    parts: dict[str, list[Any]] = {}
    state = SimpleNamespace(global_step=0, log_history=[])
    try:
        values = ComposedReward(rewards, group, max_failed=0.5)(
            samples=recorded, trainer_state=state, log_metric=figures.__setitem__, log_extra=parts.__setitem__
        )
    finally:
        rewards.close()
    return values, figures, parts


# --- what is compared, and how


def plain(text: str, **varying: Path | str) -> str:
    """Without what varies by nature: where the repository and the test's folders lie, and a server's port."""
    for name, value in {**varying, "root": ROOT}.items():
        text = text.replace(str(value), f"<{name}>")
    return text


def measured(results: dict[str, Any]) -> dict[str, Any]:
    """results.json without times, and without the hash of random weights, whose last bits hang on the machine."""
    model = {name: value for name, value in results["model"].items() if name != "weights_sha256"}
    return {**{name: value for name, value in results.items() if name != "timing"}, "model": model}


def rounded(value: Any, places: int = 4) -> Any:
    if isinstance(value, float):
        return round(value, places) + 0.0
    if isinstance(value, dict):
        return {name: rounded(inner, places) for name, inner in value.items()}
    return [rounded(inner, places) for inner in value] if isinstance(value, list | tuple) else value


def check(name: str, found: Any, step: float = 1.5e-4) -> None:
    """Holds `found` against what is frozen under `name`, or freezes it."""
    if FREEZE:
        (GOLDEN / "frozen").mkdir(exist_ok=True)
        (GOLDEN / "frozen" / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        return
    fail(name, list(differing("", golden(name), json.loads(json.dumps(found)), step)))


def golden(name: str) -> Any:
    path = GOLDEN / "frozen" / f"{name}.json"
    assert path.is_file(), f"{path} is missing: python tests/golden/freeze.py writes it"
    return json.loads(path.read_text())


def fail(name: str, told: list[str]) -> None:
    if told:
        more = [f"... and {len(told) - SHOWN} more differences"] if len(told) > SHOWN else []
        pytest.fail("\n".join([f"{name} differs from what is frozen:", *told[:SHOWN], *more]), pytrace=False)


def differing(where: str, old: Any, new: Any, step: float) -> Iterator[str]:
    """One line for each place in which two JSON values differ; floats may be `step` apart."""
    if isinstance(old, dict) and isinstance(new, dict):
        if list(old) != list(new) and set(old) == set(new):
            yield f"{where or 'the whole'}: the order of keys was {list(old)}, is {list(new)}"
        for name in {**old, **new}:
            if name not in new:
                yield f"{where}.{name} is gone (was {short(old[name])})"
            elif name not in old:
                yield f"{where}.{name} is new: {short(new[name])}"
            else:
                yield from differing(f"{where}.{name}", old[name], new[name], step)
    elif isinstance(old, list) and isinstance(new, list):
        for place, (before, now) in enumerate(zip(old, new, strict=False)):
            yield from differing(f"{where}[{place}]", before, now, step)
        if len(old) != len(new):
            yield f"{where}: had {len(old)} entries, has {len(new)}"
    elif isinstance(old, float) and isinstance(new, float):
        if not abs(old - new) <= step:
            yield f"{where}: was {old}, is {new}"
    elif type(old) is not type(new) or old != new:
        yield f"{where}: was {short(old)}, is {short(new)}"


def short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 500 else f"{text[:500]}..."


def check_files(name: str, files: Mapping[str, str]) -> None:
    """Holds texts by file name against the frozen ones.

    Of JSONL files only the sha256 and a short hash of each line is frozen, so that the first line that differs can be
    shown as it is now; other files (cards, settings, tables) are frozen as they are.
    """
    now = {file: frozen(file, text) for file, text in sorted(files.items())}
    if FREEZE:
        check(name, now)
        return
    old = golden(name)
    told = [f"{file} is gone" for file in old if file not in now] + [
        f"{file} is new" for file in now if file not in old
    ]
    for file in old:
        if file in now and old[file] != now[file]:
            before, lines = old[file]["lines"], now[file]["lines"]
            pairs = [place for place in range(min(len(before), len(lines))) if before[place] != lines[place]]
            first = pairs[0] if pairs else min(len(before), len(lines))
            text = files[file].split("\n")
            told.append(
                f"{file}: {len(before)} lines then, {len(lines)} now, {len(pairs)} differ; the first is line {first + 1}:\n"
                f"  was {before[first] if first < len(before) else 'not there'}\n"
                f"  is  {short(text[first]) if first < len(lines) else 'not there'}"
            )
    fail(name, told)


def frozen(file: str, text: str) -> dict[str, Any]:
    lines = text.split("\n")[:-1] if text.endswith("\n") else text.split("\n")
    if file.endswith(".jsonl"):
        lines = [f"(hash {hashlib.sha256(line.encode()).hexdigest()[:8]})" for line in lines] if text else []
    return {"sha256": hashlib.sha256(text.encode()).hexdigest(), "lines": lines}


# --- models, commands and files


@pytest.fixture(scope="module")
def lively(tiny_chatml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with larger weights: its greedy replies hang on the prompt, and some of its turns end."""
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
def one_thread() -> Iterator[None]:
    """For what a model computes: how sums are split among threads shows in their last bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def command(module: str, *arguments: str | Path) -> str:
    """What `python -m MODULE ...` prints in the repository's folder. In this process: transformers is imported once."""
    said, complained = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(complained),
    ):
        patch.chdir(ROOT)
        patch.setenv("COLUMNS", "200")
        patch.setattr(sys, "argv", [module, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert not ended.value.code, said.getvalue()[-2000:] + complained.getvalue()[-2000:]
    return said.getvalue()


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def contents(folder: Path, **varying: Path | str) -> dict[str, str]:
    """Every file of a folder as text, without what varies."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): plain(path.read_text(encoding="utf-8"), **varying) for path in found}


def spoken(turns: list[str]) -> Iterator[dict[str, str]]:
    """Turns after a prompt, the assistant's first."""
    for place, text in enumerate(turns):
        yield {"role": ("assistant", "user")[place % 2], "content": text}


# --- data


def test_the_demo_build(tmp_path: Path) -> None:
    command("data_builders", "tests/golden/demo.yaml", "--out", tmp_path / "data")
    check_files("demo_build", contents(tmp_path / "data", tmp=tmp_path))


def test_a_build_from_math(tmp_path: Path) -> None:
    """42 problems of five levels and seven subjects, taken more than twice, so that wording has to change."""
    source = ("--source.path", "tests/golden/math_problems.jsonl", "--source.n", "100", "--source.levels", "null")
    source += ("--output.shard_size", "40")
    command("data_builders", "recipes/math_rules.yaml", *source, "--out", tmp_path / "data")
    check_files("math_build", contents(tmp_path / "data", tmp=tmp_path))


def test_a_build_by_self_play(tmp_path: Path) -> None:
    """Two candidates a turn with look-ahead; a twentieth of what the server says is unusable."""
    problems = rows(GOLDEN / "dialogue_problems.jsonl")
    answers = {row["question"].split()[0]: row["answer"].rpartition("#### ")[2] for row in problems}
    with Loopback({"/chat/completions": speak(answers, slips=0.05)}) as server:
        url = f"--dialogue.policy.server.urls=[{server.url}]"
        command("data_builders", "tests/golden/dialogue.yaml", url, "--out", tmp_path / "data")
    check_files("dialogue_build", contents(tmp_path / "data", tmp=tmp_path, server=server.url))


# --- the probe

ANSWERS = (
    "4 + 3 = 7, so he has \\boxed{7}.", "That makes 30 cups. #### 30", "It is $\\frac{1}{8}$.", "She has 12 left.",
    "How many has he at first?", "\\boxed{5}", "(B)", "The answer is A.", "I do not know.", "Could you tell me more?",
    "Three minutes for black tea, five for herbs.", "Try the mountains in May, the huts are open then.", "", "12 12 12 12",
)  # fmt: skip
USER_TURNS = (
    "Why do you add the 3?", "And how long for green tea?", "ok thanks", "What is the capital of Peru?", "", "He has 7.",
    "wait, i got 8, where is my mistake", "Sure! Let me know if you have any other questions.", "so it is 12 then",
    "The user might ask about the huts now.", "the the the the the the the the the the the the the the the the the",
    "Are the huts open in April too?", "VERDICT: genuine_followup", "Which of them is the mammal?", "I do not like it.",
)  # fmt: skip

SALT = 19734  # one with which some of the answers are right


def served_model(name: str) -> dict[str, Callable[[Seen], Any]]:
    """Handlers of a server whose completions and log-probabilities hang on the prompt's ids and the seed alone."""

    def complete(seen: Seen) -> dict[str, Any]:
        ids = seen.body["prompt"]
        if seen.body.get("echo"):
            reply = completion_reply("x", "length", 1)
            values = [None, *(-((7 * token + 3 * place) % 41) / 8 for place, token in enumerate(ids[1:])), -1.0]
            reply["choices"][0]["logprobs"] = {"token_logprobs": values}
            return reply
        rng = random.Random(json.dumps([SALT, ids, seen.body["temperature"] and seen.body["seed"]]))
        text = rng.choice(ANSWERS if seen.body["max_tokens"] == 16 else USER_TURNS)
        return completion_reply(text, *(("length", 9) if rng.random() < 0.1 else ("stop", 10)))

    return {"/completions": complete, "/models": lambda seen: models_reply(name)}


def check_run(name: str, out: Path, printed: str, **varying: Path | str) -> None:
    """results.json, samples.jsonl and the printed table of a probe run; numbers beside the texts, rounded."""
    results = json.loads(plain((out / "results.json").read_text(encoding="utf-8"), **varying))
    samples = [apart(row) for row in rows(out / "samples.jsonl")]
    check_files(f"{name}_samples", {"samples.jsonl": "".join(json.dumps(text) + "\n" for text, _ in samples)})
    found = {"results": rounded(measured(results)), "sample_numbers": [rounded(numbers) for _, numbers in samples]}
    check(f"{name}_results", {**found, "printed": plain(printed, **varying).splitlines()})


def apart(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """A row with its floats taken out, and these."""
    numbers = {name: value for name, value in row.items() if isinstance(value, float)}
    return {name: "a number" if name in numbers else value for name, value in row.items()}, numbers


def test_a_probe_of_a_tiny_model(lively: Path, one_thread: None, tmp_path: Path) -> None:
    """Random weights: what is said is noise, what is asked, counted, scored and written is not."""
    out = tmp_path / "run"
    printed = command(
        "probe", "run", lively, "tests/golden/probe.yaml", "--out", out, "--device", "cpu", "--label", "tiny"
    )
    check_run("tiny_probe", out, printed, tmp=tmp_path, model=lively)


def test_a_probe_of_a_served_model(tiny_chatml: Path, one_thread: None, tmp_path: Path) -> None:
    """Texts of every label, from a server: no number that torch made."""
    out = tmp_path / "run"
    with Loopback(served_model(str(tiny_chatml))) as server:
        printed = command("probe", "run", server.url, "tests/golden/probe.yaml", "--out", out, "--label", "served")
    check_run("served_probe", out, printed, tmp=tmp_path, model=tiny_chatml, server=server.url)


def test_the_rules_judge() -> None:
    turns = rows(GOLDEN / "user_turns.jsonl")
    verdicts = [
        {"turn": row["user_turn"], **one}
        for row, one in zip(turns, rules_verdicts(GOLDEN / "user_turns.jsonl"), strict=True)
    ]
    check("rules_verdicts", verdicts)
    told = command("probe", "agreement", "tests/golden/user_turns.jsonl", "--judge", "rules", "--json")
    check("rules_agreement", rounded(json.loads(told)))


def test_a_comparison_of_two_runs(tmp_path: Path) -> None:
    """Two finished runs with hostile text in them, as files: made by tests/page_runs.py once."""
    printed = command(
        "probe", "compare", "tests/golden/runs/base", "tests/golden/runs/step-20", "--out", tmp_path / "c"
    )
    page = (tmp_path / "c" / "report.html").read_text(encoding="utf-8")
    headings = re.findall(r"<h[1-6][^>]*>(.*?)</h[1-6]>", page, re.DOTALL)
    check("comparison_json", rounded(json.loads((tmp_path / "c" / "comparison.json").read_text(encoding="utf-8"))))
    texts = {"comparison.md": (tmp_path / "c" / "comparison.md").read_text(encoding="utf-8"), "printed.txt": printed}
    check_files("comparison_texts", {name: plain(text, tmp=tmp_path) for name, text in texts.items()})
    check("comparison_page", {"headings": headings, "files": sorted(path.name for path in (tmp_path / "c").iterdir())})


# --- training


@pytest.mark.parametrize("family", FAMILIES)
def test_training_rows(family: str) -> None:
    """Token ids and labels of five conversations, for either choice of what carries loss."""
    talks = [row["messages"] for row in rows(GOLDEN / "conversations.jsonl")]
    found = {}
    for loss_on in ("assistant", "all"):
        made, tokenizer = training_rows(family, talks, loss_on)
        first = [label for label in made[0]["labels"] if label != -100]
        hashes = [hashlib.sha256(json.dumps([row["input_ids"], row["labels"]]).encode()).hexdigest() for row in made]
        lengths = [[len(row["input_ids"]), sum(label != -100 for label in row["labels"])] for row in made]
        texts = {"first_row": tokenizer.decode(made[0]["input_ids"]), "first_trained": tokenizer.decode(first)}
        found[loss_on] = {**texts, "tokens_and_trained": lengths, "sha256": hashes}
    check(f"training_rows_{family}", found)


@pytest.mark.parametrize("credit", [False, True])
def test_reward_parts(credit: bool) -> None:
    """Five groups of four recorded samples: look-aheads, a failed simulator, cut replies."""
    weights = {"accuracy": 1.0, "asking": 1.0, "interactivity": 0.5, "efficiency": 0.25, "format": 0.25}
    samples = rows(GOLDEN / "played.jsonl")
    values, figures, parts = rewarded(
        samples, 4, weights=weights, efficient_tokens=20, partial_credit=credit, timeout_s=120
    )
    found = {"rewards": values, "parts": parts, "figures": dict(sorted(figures.items()))}
    check(f"reward_parts_{'credit' if credit else 'plain'}", rounded(found, 6), step=1.5e-6)


def test_a_step_of_grpo(lively: Path, one_thread: None, tmp_path: Path) -> None:
    """What is sampled, what a scripted user says to it, how it is scored and what is logged."""
    import pyarrow.parquet as parquet

    where = ("--model.name", lively, "--train.output_dir", tmp_path / "run")
    command("train.grpo", "tests/golden/grpo.yaml", *where)
    samples = parquet.read_table(tmp_path / "run" / "samples" / "step-1.parquet").to_pylist()
    state = json.loads((tmp_path / "run" / "checkpoint-1" / "trainer_state.json").read_text())
    ours = {name: value for name, value in state["log_history"][0].items() if name.startswith(OUR_FIGURES)}
    files = sorted(path.name for path in (tmp_path / "run").iterdir())
    check("grpo_step", rounded({"samples": samples, "logged": ours, "files": files}))
