"""The data directory: its contract, the same bytes after a kill, and what wrong input does."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset

from nextturn.data_builders.__main__ import main
from nextturn.data_builders.build import Build, build, is_built
from nextturn.data_builders.numbers import states
from nextturn.data_builders.problems import Problems
from nextturn.data_builders.rows import load_rl_rows, load_sft_rows
from nextturn.data_builders.sections import DataRecipe, Source, load_data_recipe, shaping
from nextturn.data_builders.tasks import Mistake, Step, WhatIf
from nextturn.probe.command.errors import BadInput, DataError, RecipeError, SettingsChanged, run_command
from nextturn.probe.command.files import read_json, read_jsonl, write_json, write_jsonl
from nextturn.probe.command.terminal import visible
from nextturn.probe.questions.simulation import Fact
from nextturn.probe.text.grading import boxed
from support.commands import ROOT
from support.dialogue_server import contents
from support.problems import MIXED

SHARED = ROOT.parent / "shared" / "data"
DEMO = ROOT / "tests" / "demo.yaml"
SMALL = ["--written", "null", "--source.n", "40", "--output.shard_size", "15"]
MIX = ["--written", "{n: 20, kinds: [complete, twin]}", "--replay.fraction", "0.2"]


def recipe(out: Path, *overrides: str) -> DataRecipe:
    return load_data_recipe(DEMO, [*SMALL, "--output.path", str(out), *overrides])


def from_file(path: Path, *overrides: str, kind: str = "jsonl") -> list[str]:
    """Return the options for all problems of a file."""
    return ["--source.kind", kind, "--source.path", str(path), "--source.n", "null", *overrides]


def sums(path: Path, n: int) -> Path:
    """Write `n` problems with worked solutions."""
    rows = [{"question": f"What is {i} + 1?", "answer": f"{i} + 1 = {i + 1}\n#### {i + 1}"} for i in range(n)]
    write_jsonl(path, rows)
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "data"
    return build(recipe(out, *MIX), out)


def test_the_directory_holds_what_training_and_probe_expect(built: Path) -> None:
    parts = [*(f"part-0000{number}.jsonl" for number in range(3)), "part-written.jsonl"]
    assert all(sorted(path.name for path in (built / view).iterdir()) == parts for view in ("sft", "rejected", "rl"))
    kept = list(load_sft_rows(built))
    assert {"id", "messages", "kind", "source", "answer"} <= set(kept[0])
    assert len({row["id"] for row in kept}) == len(kept)
    sources = Counter(row["source"] for row in kept)
    assert sources["written"] == 20 and sources["starter"] > 30
    kinds = {"complete", "twin", "underspecified", "wrong_start", "right_start", "replay"}
    assert {row["kind"] for row in kept} == kinds
    replay = [row for row in kept if row["kind"] == "replay"]
    assert abs(len(replay) / len(kept) - 0.2) < 0.03 and all(len(row["messages"]) == 2 for row in replay)


def test_the_manifest_adds_up_and_has_the_hashes_of_the_files(built: Path) -> None:
    manifest = read_json(built / "manifest.json")
    assert manifest["schema"] == 1
    assert manifest["asked"] == manifest["kept"] + sum(manifest["rejected"].values())
    assert manifest["kept"] == len(list(load_sft_rows(built))) > 0.95 * manifest["asked"]
    assert manifest["settings"] == read_json(built / "settings.json")
    for name, described in manifest["files"].items():
        assert hashlib.sha256((built / name).read_bytes()).hexdigest() == described["sha256"]
        assert len(rows(built / name)) == described["rows"]
    assert set(manifest["files"]) == set(contents(built)) - {"manifest.json", "settings.json", "README.md"}


def test_every_kept_conversation_gives_prompts_up_to_its_first_answer(built: Path) -> None:
    rows = list(load_rl_rows(built))
    expected: dict[tuple[str, int], Sequence[Any]] = {}
    for row in load_sft_rows(built):
        for index in range(1, len(row["messages"]), 2):
            if row["kind"] != "replay":
                expected[row["id"], index // 2] = row["messages"][:index]
            if boxed(row["messages"][index]["content"]):
                break
    assert {(row.id.rpartition("-")[0], row.turn): list(row.prompt) for row in rows} == expected
    assert all(row.prompt[-1]["role"] == "user" and row.answer and row.solution for row in rows)
    withheld = [row for row in rows if row.hidden]
    assert withheld and all(row.fact.clause and row.fact.reveal and row.fact.short for row in withheld)
    for row in withheld:
        assert not any(states(message["content"], value) for message in row.prompt for value in row.hidden)
        assert all(states(row.fact.reveal, value) and states(row.problem, value) for value in row.hidden)


def test_datasets_loads_a_build_by_the_name_of_its_rows(built: Path, tmp_path: Path) -> None:
    """Generated and written conversations have different columns: `story`, `doubts`, `intent`."""
    from datasets import load_dataset

    splits = load_dataset(str(built), cache_dir=str(tmp_path))  # without a name: the conversations
    assert list(splits) == ["train"]
    loaded = splits["train"]
    rows = list(load_sft_rows(built))
    assert loaded["id"] == [row["id"] for row in rows]
    assert loaded["intent"] == [row.get("intent") for row in rows]
    assert load_dataset(str(built), "rl", cache_dir=str(tmp_path))["train"].num_rows


def test_the_seed_determines_every_byte(tmp_path: Path) -> None:
    small = ["--source.n", "15", "--seed"]
    made = [contents(build(recipe(tmp_path / str(number), *small, seed))) for number, seed in enumerate("787")]
    assert made[0] == made[2] and made[0]["sft/part-00000.jsonl"] != made[1]["sft/part-00000.jsonl"]


VARIED = ["--sharded", "1", "--sharded_replies", "varied", "--sharded_after", "0.5"]


@pytest.mark.parametrize("varied", [False, True])
def test_a_killed_build_ends_with_the_same_bytes(varied: bool, tmp_path: Path) -> None:
    """Rows of finished shards decide about later ones: each problem is in the file three times, or forms are used up."""
    problems, killed = sums(tmp_path / "problems.jsonl", 15), tmp_path / "killed"
    problems.write_text(problems.read_text() * 3)
    options = from_file(problems, "--replay.source", "jsonl", "--replay.fraction", "0.4", "--output.shard_size", "8")
    options = ["--source.n", "90", "--output.shard_size", "30", *VARIED] if varied else options
    whole = build(recipe(tmp_path / "whole", *options))
    assert varied or read_json(whole / "manifest.json")["rejected"]["duplicate"] > 0
    shutil.copytree(whole, killed)
    for name in ("manifest.json", "README.md", "sft/part-00001.jsonl", "sft/part-00002.jsonl"):
        (killed / name).unlink()
    with pytest.raises(DataError, match=str(killed)):
        list(load_sft_rows(killed))
    made = (killed / "sft/part-00000.jsonl").stat().st_mtime_ns
    assert contents(build(recipe(killed, *options))) == contents(whole)
    assert (killed / "sft/part-00000.jsonl").stat().st_mtime_ns == made, "finished shards are kept"


def test_a_finished_build_is_not_changed(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(built)
    main([str(DEMO), *SMALL, *MIX, "--out", str(built)])
    output = capsys.readouterr().out
    assert output.count("\n") == 1 and "already built" in output and contents(built) == before


def test_a_changed_folder_of_rows_is_another_source(tmp_path: Path) -> None:
    source, (first, *others) = tmp_path / "rows", rows(sums(tmp_path / "sums.jsonl", 3))
    Dataset.from_list([first, *others]).save_to_disk(str(source))
    settings = recipe(tmp_path / "out", *from_file(source, "--replay.fraction", "0"))
    build(settings)
    (source / "cache-0123.arrow").touch()  # by somebody's `map`
    assert is_built(tmp_path / "out", settings)
    Dataset.from_list(others).save_to_disk(str(source))
    with pytest.raises(SettingsChanged, match="inputs"):
        is_built(tmp_path / "out", settings)


def test_other_settings_are_refused_by_key(built: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsChanged, match=r"replay\.fraction.*seed"):
        build(recipe(built, "--seed", "3", "--replay.fraction", "0.1"), built)
    unfinished = tmp_path / "unfinished"
    shutil.copytree(built, unfinished)
    (unfinished / "manifest.json").unlink()
    changed = ("--conversations.right_start", "0.0", "--conversations.wrong_start", "0.2")
    with pytest.raises(SettingsChanged, match=r"conversations\.right_start"):
        build(recipe(unfinished, *MIX, *changed), unfinished)


def test_training_uses_a_finished_build_from_another_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training recipe does not repeat --source.path. The hub is out of reach here."""
    problems, out = sums(tmp_path / "problems.jsonl", 9), tmp_path / "d"
    options = ["--source.kind", "gsm8k", "--source.path", "null", "--source.n", "9", "--replay.fraction", "0"]
    build(recipe(out, *options, "--source.path", str(problems)))
    with problems.open("a") as file:
        file.write('{"question": "What is 2?", "answer": "2"}\n')
    with pytest.raises(SettingsChanged, match="inputs"):
        build(recipe(out, *options, "--source.path", str(problems)))
    problems.unlink()
    assert build(recipe(out, *options)) == out
    assert "source.path" in capsys.readouterr().out
    with pytest.raises(SettingsChanged, match=r"source\.n"):
        build(recipe(out, *options, "--source.n", "8"))
    with pytest.raises(SettingsChanged, match=r"source\.path"):  # `nextturn data` names the file itself
        is_built(out, recipe(out, *options))


def test_training_uses_finished_pairs_of_another_model(tmp_path: Path) -> None:
    """A recipe for DPO does not repeat --preferences.model.model."""
    ours, others = (
        recipe(tmp_path, "--preferences", f"{{tries: 8, model: {{engine: hf, model: {name}}}}}") for name in "ab"
    )
    write_json(tmp_path / "settings.json", {**shaping(others), "inputs": {}})
    write_json(tmp_path / "manifest.json", {})
    assert is_built(tmp_path, ours, elsewhere=True)
    with pytest.raises(SettingsChanged, match=r"preferences\.model\.model"):
        is_built(tmp_path, ours)


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(BadInput, match=str(tmp_path)):
        build(recipe(tmp_path))
    assert list(tmp_path.iterdir()) == [tmp_path / "thesis.tex"]


# --- The command.


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(DEMO), *SMALL, "--out", str(tmp_path / "d"), "--dry-run"])
    shown = capsys.readouterr().out
    assert "problems in" in shown and "tokens" in shown and "assistant | " in shown
    assert not (tmp_path / "d").exists()
    assert visible("a\x1b[31mb\u202ec\nd\u2028\ud83d") == "a\\u001b[31mb\\u202ec\nd\\u2028\\ud83d"


def test_a_wrong_problem_file_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"question": "What is 1 + 1?", "answer": "1 + 1 = 2\n#### 2"}
    write_jsonl(tmp_path / "p.jsonl", [good, {"question": "What is 2 + 2?", "answer": "4", "type": ["sums"]}])
    options = ["--written", "null", *from_file(tmp_path / "p.jsonl", kind="gsm8k")]
    assert run_command(main, [str(DEMO), *options, "--out", str(tmp_path / "d")]) == 2
    errors = capsys.readouterr().err
    assert "p.jsonl:2: the subject" in errors and errors.count("\n") == 1 and not (tmp_path / "d").exists()


POLICY = "{server: {urls: ['http://127.0.0.1:9/v1'], model: m}}"
DIALOGUE = ["--conversations", "{}", "--dialogue"]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["--quality.decontaminate", "[nowhere.jsonl]"], "quality.decontaminate"),
        (["--source.n", "0"], "source.n"),
        (["--source.n", "1000000000000"], "source.n"),
        (["--source.path", "x.jsonl"], "x.jsonl"),
        (["--source.kind", "starter"], "source.kind"),
        (["--source.path", "null"], "source.path"),
        (["--source.largest", "50"], "source.largest"),
        (["--source.kinds", "[complete]"], "source.kinds"),
        (["--source", "{kind: written, path: x.jsonl}"], "source.path"),
        (["--source", "{kind: written, kinds: [vague]}"], "kinds"),
        (["--source", "{kind: written}", "--written", "{n: 3}"], "source.kind"),
        (["--source", "{kind: written}", "--replay", "{fraction: 0.1}"], "replay.source"),
        (["--source", "{kind: written, n: 500}", "--replay.fraction", "0"], "written: 398"),
        (["--source", "{kind: written, subjects: [poetry]}", "--replay.fraction", "0"], "algebra, "),
        (["--written", "{n: 0}"], "given 0"),
        (["--replay.source", "starter"], "replay.source"),
        (["--replay.fraction", "1.0"], "replay.fraction"),
        (["--replay.answers", "modl"], "replay.answers"),
        (["--replay.answers", "model"], "replay.model"),
        (["--replay.model", "{engine: hf}"], "replay.model"),
        (["--conversations.complete", "0.9"], "conversations.complete"),
        (["--conversations", "{complete: 0.28, underspecified: 0.52, contrast_pairs: 1.0}"], "conversations.complete"),
        (["--conversations.reactions", "1.5"], "conversations.reactions"),
        (["--output.shard_size", "0"], "output.shard_size"),
        (["--quality.near_duplicates", "1"], "quality.near_duplicates"),
        (["--quality.max_same_wording", "0"], "quality.max_same_wording"),
        (["--eval.accuracy_n", "200"], "eval"),
        (["--dialogue", f"{{policy: {POLICY}}}"], "`dialogue`"),
        (["--dialogue", "{policy: {}}"], "dialogue.policy.server"),
        ([*DIALOGUE, "{policy: {engine: hf, model: nowhere/at-all}}"], "dialogue.policy"),
        ([*DIALOGUE, f"{{policy: {POLICY}, simulator: {{engine: script}}}}"], "simulator.engine"),
        ([*DIALOGUE, f"{{policy: {POLICY}, simulator: {{engine: 'm:C', model: m}}}}"], "simulator.engine"),
        ([*DIALOGUE, f"{{policy: {POLICY}, simulator: {{engine: adapter}}}}"], "simulator.model"),
        ([*DIALOGUE, f"{{policy: {POLICY}, simulator: {{engine: adapter, model: nowhere}}}}"], "simulator.model: nowhere"),
        ([*DIALOGUE, f"{{policy: {POLICY}, simulator: {{engine: adapter, model: m, runs_on: openai}}}}"], "simulator.model"),
        ([*DIALOGUE, f"{{policy: {POLICY}, simulator: {{engine: hf, model: m, fallback: scripted}}}}"], "simulator.fallback"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used_write_nothing(
    overrides: list[str], key: str, tmp_path: Path, own_cache: Path
) -> None:
    with pytest.raises(BadInput, match=re.escape(key)) as caught:
        build(recipe(tmp_path / "d", *overrides))
    assert not (tmp_path / "d").exists() and "\n" not in str(caught.value)


# --- Problems of a file.


def test_a_small_file_is_used_again_with_other_wordings(tmp_path: Path) -> None:
    problems = [
        {"question": f"Ann has {i} red pens and 5 blue ones. How many?", "answer": f"{i}+5 = {i + 5}\n#### {i + 5}"}
        for i in range(6, 16)
    ]
    write_jsonl(tmp_path / "p.jsonl", problems)
    options = from_file(tmp_path / "p.jsonl", "--source.n", "60", "--replay.fraction", "0")
    out = build(recipe(tmp_path / "d", *options))
    manifest = read_json(out / "manifest.json")
    assert manifest["asked"] >= 60 and len({row["id"] for row in load_sft_rows(out)}) == manifest["kept"] > 20


@pytest.mark.parametrize("kind", ["math", "gsm8k"])
def test_math_and_gsm8k_build_and_verify(kind: str, tmp_path: Path) -> None:
    """With one row in ten of the real files."""
    if not (SHARED / kind).is_dir():
        pytest.skip(f"{SHARED / kind} is not there")
    for split in ("train", "test"):
        lines = (SHARED / kind / f"{split}.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / f"{split}.jsonl").write_bytes(b"".join(lines[::10]))
    source, held_out = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    options = from_file(source, "--source.n", "100", "--quality.decontaminate", f"[{held_out}]", kind=kind)
    out = build(recipe(tmp_path / kind, *options, "--replay.source", kind))
    manifest = read_json(out / "manifest.json")
    # About a tenth of MATH's train problems occur nearly word for word in its test split.
    contaminated = manifest["rejected"].pop(f"contaminated:{tmp_path.name}/test.jsonl", 0)
    assert contaminated / manifest["asked"] < 0.2
    assert sum(manifest["rejected"].values()) / manifest["asked"] < 0.05, manifest["rejected"]
    assert set(manifest["rejected"]) <= {"duplicate", "near_duplicate", "same_wording"}, manifest["rejected"]
    assert all(row["source"] == kind for row in load_sft_rows(out))
    if kind == "math":
        assert 0 < len(Problems(Source(kind="math", path=str(source), levels=[5], subjects=["algebra"]), 0)) < 100
        with pytest.raises(RecipeError, match="source"):
            Problems(Source(kind="math", path=str(source), subjects=["poetry"]), 0)


def test_a_build_that_keeps_nothing_fails_and_shows_the_reason_each_time(tmp_path: Path) -> None:
    source = tmp_path / "problems.jsonl"
    question = "A shelf in the long hall holds 12 red books, 7 blue ones and 5 green ones; how many books is that?"
    write_jsonl(source, [{"question": question, "answer": "It holds 12 + 7 + 5 = 24 books.\n#### 24"}])
    sections = {"source": {"kind": "jsonl", "path": str(source)}, "quality": {"decontaminate": [str(source)]}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**sections, "output": {"path": str(tmp_path / "out")}}))
    for _ in range(2):
        with pytest.raises(DataError, match=r"1 contaminated:.*README\.md"):
            main([str(tmp_path / "recipe.yaml")])
    assert "contaminated" in (tmp_path / "out/README.md").read_text()


def test_a_problem_without_a_worked_solution_gives_neither_conversation_nor_replay(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "p.jsonl", [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(40)])
    options = from_file(tmp_path / "p.jsonl", "--replay.source", "jsonl", "--replay.fraction", "0.3")
    manifest = read_json(build(recipe(tmp_path / "out", *options)) / "manifest.json")
    assert manifest["kept"] == 0 and set(manifest["rejected"]) == {"no_solution"}
    assert {row["kind"] for row in rows(tmp_path / "out" / "rejected.jsonl")} == {"complete", "replay"}


def test_replay_shares_no_problem_with_a_source_of_the_same_file(tmp_path: Path) -> None:
    """It is of the same file where the recipe names no other."""
    options = from_file(sums(tmp_path / "problems.jsonl", 200), "--replay.fraction", "0.2", "--replay.source")
    other = Build(recipe(tmp_path, *options, "jsonl", "--replay.path", MIXED))
    assert len(other.problems) == 200 and {task.source for task in other.replay.questions().values()} == {"starter"}
    for source in ("jsonl", "null"):
        made = Build(recipe(tmp_path, *options, source))
        questions = {made.problems[index].question for index in range(len(made.problems))}
        replayed = {task.question for task in made.replay.questions().values()}
        assert len(questions) > 100 and len(replayed) > 20 and not questions & replayed


OWN = """
def rows():
    for n in range(3, 9):
        yield {"question": f"A cart holds {n} crates of 2 pens. How many pens are there?", "answer": f"{n} * 2 = {2 * n}\\n#### {2 * n}"}


def broken():
    yield {"question": {1}}
"""


def test_a_source_of_ones_own_is_built_and_a_wrong_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_problems.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("NEXTTURN_CACHE", str(tmp_path / "cache"))
    own = Build(recipe(tmp_path / "out", "--source", "{kind: 'own_problems:rows'}", "--replay", "{fraction: 0}"))
    assert {own.problems[n].source for n in range(len(own.problems))} == {"own_problems"} and len(own.problems) == 6
    assert own.run(tmp_path / "out")["kept"] > 0 and "own_problems.py" in own.settings["inputs"]
    for name in ("own_problems:none", "no_module:rows", "own_problems:OWN", "own_problems:broken"):
        with pytest.raises(RecipeError, match=name):
            Build(recipe(tmp_path / "out", "--source", f"{{kind: '{name}'}}"))


# --- Problems that bring their steps.

STEP = {"text": "They are 2 * 3 = 6.", "left": "2", "op": "*", "right": "3", "result": "6", "why": "each of 2 holds 3"}
GAP = {"question": "Each bag holds 3. How many?", "clause": "the bags", "ask": "How many bags?", "reveal": "There are 2 bags."}  # fmt: skip
WORKED = {
    "id": "a", "question": "There are 2 bags. Each bag holds 3. How many?", "answer": 6, "steps": [STEP], "source": "bags",
    "gaps": [{**GAP, "short": "2 bags", "value": "2"}], "mistakes": [{"at": 0, "did": "2 + 3 = 5", "answer": "5"}],
    "what_ifs": [{"condition": "there are 4 bags", "steps": [STEP], "answer": "12"}], "template": "bags",
}  # fmt: skip


def test_a_problem_brings_its_steps_and_facts(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "p.jsonl", [WORKED])
    task = Problems(Source(kind="jsonl", path=str(tmp_path / "p.jsonl")), 0)[0]
    assert (task.answer, task.source, task.template, task.whole_beside) == ("6", "bags", "bags", "")
    assert task.steps == (Step(**STEP),) and task.gaps == (Fact(**GAP, short="2 bags", value="2"),)
    assert task.mistakes == (Mistake(0, "2 + 3 = 5", "5"),)
    assert task.what_ifs == (WhatIf("there are 4 bags", (Step(**STEP),), "12"),)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("steps", [{**STEP, "left": 2}]),
        ("gaps", [GAP]),
        ("gaps", "2"),
        ("mistakes", [{"at": "first"}]),
        ("final", 6),
        ("mistakes", [{"at": 0, "did": "", "answer": "5"}]),
    ],
)
def test_a_part_of_another_form_is_refused(part: str, value: Any, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "p.jsonl", [WORKED, {**WORKED, "id": "b", part: value}])
    with pytest.raises(DataError, match=f"'b': {part}"):
        Problems(Source(kind="jsonl", path=str(tmp_path / "p.jsonl")), 0)
