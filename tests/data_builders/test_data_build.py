"""The data folder: its contract, resume to the same bytes, the gate, and what bad input does."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextturn.data_builders.__main__ import main
from nextturn.data_builders.build import Build, build, finished
from nextturn.data_builders.recipe import DataRecipe, load_data_recipe
from nextturn.data_builders.rows import load_sft_rows
from nextturn.data_builders.starter import starter_problems
from nextturn.probe.errors import BadInput, DataError, RecipeError, SettingsChanged, run_command
from nextturn.probe.files import read_jsonl, write_jsonl
from nextturn.probe.terminal import visible
from support.commands import start

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
DEMO = ROOT / "tests" / "demo.yaml"
ALONE = ["--written", "null"]
# The demo holds its generated problems to small numbers, which a file cannot be.
ANY_SIZE = ["--source.levels", "null", "--source.largest", "null"]


def recipe(out: Path, *overrides: str) -> DataRecipe:
    small = ["--source.n", "40", "--output.shard_size", "15", "--eval.accuracy_n", "12"]
    return load_data_recipe(DEMO, [*small, *ALONE, "--output.path", str(out), *overrides])


def from_file(path: Path) -> list[str]:
    """The options with which the recipe takes all problems of a file."""
    return ["--source.kind", "jsonl", "--source.path", str(path), "--source.n", "null", *ANY_SIZE]


def rows(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "data"
    return build(recipe(out, "--replay.fraction", "0.2"), out)


def test_the_folder_holds_what_training_and_probe_expect(built: Path) -> None:
    assert [path.name for path in sorted((built / "sft").iterdir())] == [f"part-0000{i}.jsonl" for i in range(3)]
    assert [path.name for path in sorted((built / "rejected").iterdir())] == [f"part-0000{i}.jsonl" for i in range(3)]
    kept = list(load_sft_rows(built))
    assert {"id", "messages", "kind", "source", "answer"} <= set(kept[0])
    assert len({row["id"] for row in kept}) == len(kept)
    accuracy = rows(built / "eval/accuracy.jsonl")
    assert [set(row) for row in accuracy] == [{"id", "question", "answer", "solution"}] * 12
    questions = {row["messages"][0]["content"] for row in kept}
    assert not questions & {row["question"] for row in accuracy}


def test_the_manifest_adds_up_and_its_hashes_are_those_of_the_files(built: Path) -> None:
    manifest = json.loads((built / "manifest.json").read_text())
    assert manifest["schema"] == 1
    assert manifest["asked"] == manifest["kept"] + sum(manifest["rejected"].values())
    assert manifest["kept"] == len(list(load_sft_rows(built)))
    assert manifest["settings"] == json.loads((built / "settings.json").read_text())
    for name, described in manifest["files"].items():
        assert hashlib.sha256((built / name).read_bytes()).hexdigest() == described["sha256"]
        assert len(rows(built / name)) == described["rows"]
    assert set(manifest["files"]) == set(contents(built)) - {"manifest.json", "settings.json", "card.md"}


def test_replay_is_mixed_in_at_its_fraction(built: Path) -> None:
    kinds = Counter(row["kind"] for row in load_sft_rows(built))
    assert abs(kinds["replay"] / kinds.total() - 0.2) < 0.03
    replay = [row for row in load_sft_rows(built) if row["kind"] == "replay"]
    assert all(len(row["messages"]) == 2 for row in replay)


def test_same_seed_same_bytes_and_another_seed_another_text(built: Path, tmp_path: Path) -> None:
    again = build(recipe(tmp_path / "again", "--replay.fraction", "0.2"))
    assert contents(again) == contents(built)
    other = build(recipe(tmp_path / "other", "--replay.fraction", "0.2", "--seed", "8"))
    assert contents(other)["sft/part-00000.jsonl"] != contents(built)["sft/part-00000.jsonl"]


def test_a_killed_build_ends_with_the_same_bytes(tmp_path: Path) -> None:
    arguments = [
        str(DEMO),
        *ALONE,
        "--source.n",
        "150",
        "--output.shard_size",
        "10",
        "--quality.max_same_wording",
        "0.0001",
    ]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = start(["-m", "nextturn.data_builders", *arguments, "--out", str(killed)])
    while len(list(killed.glob("sft/part-*.jsonl"))) < 4:
        assert process.poll() is None, "the build ended before it could be killed"
        time.sleep(0.005)
    process.kill()
    assert not (killed / "manifest.json").exists()
    done = len(list(killed.glob("sft/part-*.jsonl")))
    first = {path.name: path.stat().st_mtime_ns for path in killed.glob("sft/part-*.jsonl")}
    with pytest.raises(DataError, match="not finished"):
        list(load_sft_rows(killed))
    for out in (killed, whole):
        start(["-m", "nextturn.data_builders", *arguments, "--out", str(out)]).finish()
    assert contents(killed) == contents(whole)
    assert done < len(list(killed.glob("sft/part-*.jsonl")))
    assert all((killed / "sft" / name).stat().st_mtime_ns == made for name, made in first.items())


def test_a_finished_build_says_so_and_changes_nothing(built: Path) -> None:
    arguments = [str(DEMO), *ALONE, "--source.n", "40", "--output.shard_size", "15", "--eval.accuracy_n", "12"]
    arguments += ["--replay.fraction", "0.2", "--out", str(built)]
    before = contents(built)
    said = start(["-m", "nextturn.data_builders", *arguments]).finish()
    assert said.count("\n") == 1 and "already built" in said
    assert contents(built) == before


def test_other_settings_are_refused_by_key(built: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsChanged, match=r"replay\.fraction.*seed"):
        build(recipe(built, "--seed", "3", "--replay.fraction", "0.1"), built)
    unfinished = tmp_path / "unfinished"
    shutil.copytree(built, unfinished)
    (unfinished / "manifest.json").unlink()
    with pytest.raises(SettingsChanged, match=r"conversations\.right_start"):
        changed = ("--conversations.right_start", "0.0", "--conversations.wrong_start", "0.2")
        build(recipe(unfinished, "--replay.fraction", "0.2", *changed), unfinished)


def test_training_takes_a_finished_build_from_another_path_and_no_other_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """README builds with --source.path and trains with a recipe that has none. The hub is out of reach here."""
    problems, out = tmp_path / "problems.jsonl", tmp_path / "d"
    write_jsonl(
        problems, [{"question": f"What is {i} + 1?", "answer": f"{i} + 1 = {i + 1}\n#### {i + 1}"} for i in range(9)]
    )
    made = ["--source.kind", "gsm8k", *ANY_SIZE, "--source.n", "9", "--eval.accuracy_n", "0", "--replay.fraction", "0"]
    build(recipe(out, *made, "--source.path", str(problems)))
    problems.unlink()
    assert build(recipe(out, *made)) == out
    assert f"source.path: {str(problems)!r} then, None now" in capsys.readouterr().out.replace("\n", " ")
    with pytest.raises(SettingsChanged, match=r"source\.n"):
        build(recipe(out, *made, "--source.n", "8"))
    with pytest.raises(SettingsChanged, match=r"source\.path"):  # the command is asked to build from there
        finished(out, recipe(out, *made))


def test_a_changed_source_file_counts_as_a_changed_setting(tmp_path: Path) -> None:
    source = tmp_path / "problems.jsonl"
    write_jsonl(
        source, [{"question": f"What is {i} + 1?", "answer": f"{i} + 1 = {i + 1}\n#### {i + 1}"} for i in range(9)]
    )
    arguments = ["--source.kind", "gsm8k", "--source.path", str(source), *ANY_SIZE, "--source.n", "9"]
    none = ["--eval.accuracy_n", "0"]
    out = build(recipe(tmp_path / "d", *arguments, *none))
    with source.open("a") as file:
        file.write('{"question": "What is 2?", "answer": "2"}\n')
    with pytest.raises(SettingsChanged, match="inputs"):
        build(recipe(out, *arguments, *none))


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(BadInput, match="no data build"):
        build(recipe(tmp_path))
    assert list(tmp_path.iterdir()) == [tmp_path / "thesis.tex"]


# --- the command


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "d"
    main([str(DEMO), "--out", str(out), "--dry-run"])
    shown = capsys.readouterr().out
    assert "problems in" in shown and "tokens" in shown and "assistant | " in shown
    assert not out.exists()


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert visible("a\x1b[31mb\u202ec\nd\u2028\ud83d") == "a\\u001b[31mb\\u202ec\nd\\u2028\\ud83d"


GOOD = '{"question": "What is 1 + 1?", "answer": "1 + 1 = 2\\n#### 2"}\n'


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "no such file"),
        (GOOD + '{"question": "broken', ":2: not JSON"),
        (GOOD + '{"question": "What?", "solution": "Nobody knows\\nat all."}\n', ":2: no answer"),
        (GOOD + "[1]\n", ":2: list"),
        ("", "no problem"),
    ],
)
def test_bad_problem_files_end_in_one_line(
    content: str | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "p.jsonl", tmp_path / "out"
    if content is not None:
        source.write_text(content)
    arguments = [
        str(DEMO),
        *ALONE,
        "--source.kind",
        "gsm8k",
        "--source.path",
        str(source),
        *ANY_SIZE,
        "--source.n",
        "null",
    ]
    arguments += ["--eval.accuracy_n", "0", "--out", str(out)]
    assert run_command(main, arguments) == 2
    errors = capsys.readouterr().err
    assert told in errors and errors.count("\n") == 1 and str(source) in errors
    assert not out.exists()


@pytest.mark.parametrize(
    "overrides",
    [
        ["--quality.decontaminate", "[nowhere.jsonl]"],
        ["--source.n", "0"],
        ["--source.n", "1000000000000"],
        ["--source.path", "x.jsonl"],
        ["--replay.fraction", "1.0"],
        ["--conversations.complete", "0.9"],
        ["--conversations.reactions", "1.5"],
        ["--output.shard_size", "0"],
        ["--quality.near_duplicates", "1.5"],
        ["--quality.max_same_wording", "0"],
        ["--source.kind", "jsonl", *ANY_SIZE],
    ],
)
def test_settings_that_cannot_be_used_write_nothing(overrides: list[str], tmp_path: Path) -> None:
    with pytest.raises((RecipeError, DataError)):
        build(recipe(tmp_path / "d", *overrides))
    assert not (tmp_path / "d").exists()


def test_a_small_file_is_taken_again_with_other_wording(tmp_path: Path) -> None:
    source = tmp_path / "p.jsonl"
    write_jsonl(
        source,
        [
            {"question": f"Ann has {i} red pens and 5 blue ones. How many?", "answer": f"{i}+5 = {i + 5}\n#### {i + 5}"}
            for i in range(6, 16)
        ],
    )
    arguments = [
        "--source.kind",
        "jsonl",
        "--source.path",
        str(source),
        *ANY_SIZE,
        "--source.n",
        "60",
        "--replay.fraction",
        "0",
    ]
    out = build(recipe(tmp_path / "d", *arguments, "--eval.accuracy_n", "0"))
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["asked"] >= 60
    assert len({row["id"] for row in load_sft_rows(out)}) == manifest["kept"] > 20


# --- real data, where it is present


def real(name: str) -> Path:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return path


def test_math_and_gsm8k_build_and_verify(tmp_path: Path) -> None:
    for kind in ("math", "gsm8k"):
        source, held_out = real(f"{kind}/train.jsonl"), real(f"{kind}/test.jsonl")
        arguments = ["--source.kind", kind, "--source.path", str(source), *ANY_SIZE, "--source.n", "150"]
        arguments += ["--quality.decontaminate", f"[{held_out}]", "--replay.source", kind, "--replay.path", str(source)]
        arguments += ["--eval.accuracy_n", "0"]
        out = build(recipe(tmp_path / kind, *arguments))
        manifest = json.loads((out / "manifest.json").read_text())
        # MATH's own train and test share about a tenth of their problems nearly word for word.
        contaminated = manifest["rejected"].pop(f"contaminated:{kind}/test.jsonl", 0)
        assert contaminated / manifest["asked"] < 0.2
        assert sum(manifest["rejected"].values()) / manifest["asked"] < 0.05, manifest["rejected"]
        assert all(row["source"] == kind for row in load_sft_rows(out))


def test_a_build_that_keeps_nothing_fails_and_says_why_each_time(tmp_path: Path) -> None:
    source = tmp_path / "problems.jsonl"
    question = "A shelf in the long hall holds 12 red books, 7 blue ones and 5 green ones; how many books is that?"
    write_jsonl(source, [{"question": question, "answer": "It holds 12 + 7 + 5 = 24 books.\n#### 24"}])
    asked = {
        "source": {"kind": "jsonl", "path": str(source)},
        "quality": {"decontaminate": [str(source)]},
        "output": {"path": str(tmp_path / "out")},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(asked))
    for _ in range(2):
        with pytest.raises(DataError, match=r"none of 1 conversations was kept, 1 contaminated:.*card\.md"):
            main([str(tmp_path / "recipe.yaml")])
    assert "contaminated" in (tmp_path / "out/card.md").read_text()


def test_kinds_that_the_problems_do_not_give_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text problem of which nothing can be left out by rule is answered at once, whatever the recipe asks for."""
    names = ("red", "blue", "green", "black", "white", "brown", "grey", "pink")
    source = [
        {"question": f"What comes out where the {one} number {n} meets {n + 2}?", "answer": f"{n} + {n + 2} = {2 * n + 2}\n#### {2 * n + 2}"}
        for one in names
        for n in range(3, 12)
    ]  # fmt: skip
    write_jsonl(tmp_path / "problems.jsonl", source)
    options = [
        "--source.kind",
        "jsonl",
        "--source.path",
        str(tmp_path / "problems.jsonl"),
        "--source.n",
        "72",
        *ANY_SIZE,
    ]
    capsys.readouterr()
    build(recipe(tmp_path / "out", *options, "--replay.fraction", "0", "--eval.accuracy_n", "0"))
    assert "note: " in (said := capsys.readouterr().out) and "underspecified 0.0% of " in said, said
    build(recipe(tmp_path / "again", "--source.n", "120"))
    assert "note: " not in capsys.readouterr().out


def test_levels_and_subjects_filter(tmp_path: Path) -> None:
    from nextturn.data_builders.problems import Problems, Source

    source = Source(kind="math", path=str(real("math/train.jsonl")), levels=[5], subjects=["algebra"])
    assert 0 < len(Problems(source, 0)) < 1000
    with pytest.raises(RecipeError, match="no problem"):
        Problems(Source(kind="math", path=source.path, subjects=["poetry"]), 0)


def test_starter_problems_keep_to_the_steps_and_numbers_wanted() -> None:
    for split in ("train", "test"):
        for task in starter_problems(300, 4, split, levels=(1, 2), largest=60):  # type: ignore[arg-type]
            assert len(task.steps) <= 2
            assert all(int(number) <= 60 for step in task.steps for number in re.findall(r"\d+", step.equation))
    with pytest.raises(RecipeError, match="no generated problem"):
        next(iter(starter_problems(1, 4, "train", levels=(7,))))


def test_held_out_problems_hold_as_many_of_each_story_and_running_out_of_one_is_told(tmp_path: Path) -> None:
    narrow = ["--source.levels", "[1]", "--source.largest", "50", "--eval.accuracy_n"]
    ready = Build(recipe(tmp_path, *narrow, "66"))
    held_out = ready.eval_rows["eval/accuracy.jsonl"]
    operations = Counter(re.findall(r"\d (\W) \d+ = ", "\n".join(row["solution"] for row in held_out)))
    assert operations == {"*": 18, "/": 24, "+": 12, "-": 12}
    with pytest.raises(RecipeError, match="eval.accuracy_n: given 200"):
        Build(recipe(tmp_path, *narrow, "200"))


def test_a_problem_without_a_worked_solution_teaches_no_bare_answer(tmp_path: Path) -> None:
    """Neither as a conversation by rules nor as replay."""
    write_jsonl(
        tmp_path / "problems.jsonl", [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(40)]
    )
    given = from_file(tmp_path / "problems.jsonl")
    own = ["--replay.source", "jsonl", "--replay.fraction", "0.3", "--eval.accuracy_n", "0"]
    manifest = json.loads((build(recipe(tmp_path / "out", *given, *own)) / "manifest.json").read_text())
    assert manifest["kept"] == 0 and set(manifest["rejected"]) == {"no_solution"}
    lost = rows(tmp_path / "out" / "rejected.jsonl")
    assert {row["kind"] for row in lost} == {"complete", "replay"}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            {"id": 1, "question": "What is 2 + 2?", "answer": "2 + 2 = 4\n#### 4"},
            "problems.jsonl:2: the id '1' stands twice",
        ),
        (
            {"question": "What is 2 + 2?", "answer": "4", "type": ["sums"]},
            r"problems.jsonl:2: the subject \(`type`\) is \['sums'\]",
        ),
    ],
)
def test_rows_that_would_be_taken_for_one_another_are_refused_first(
    row: dict[str, Any], told: str, tmp_path: Path
) -> None:
    write_jsonl(
        tmp_path / "problems.jsonl", [{"id": 1, "question": "What is 1 + 1?", "answer": "1 + 1 = 2\n#### 2"}, row]
    )
    source = ["--source.kind", "jsonl", "--source.path", str(tmp_path / "problems.jsonl"), *ANY_SIZE]
    with pytest.raises(DataError, match=told):
        Build(recipe(tmp_path / "out", *source))


def test_replay_is_as_hard_as_the_source_and_reserves_nothing_of_a_file_that_it_does_not_read(tmp_path: Path) -> None:
    narrow = recipe(tmp_path, "--source.levels", "[1]", "--source.largest", "50", "--replay.fraction", "0.3")
    replayed = list(Build(narrow).replay.questions().values())
    assert replayed and all(len(task.steps) == 1 for task in replayed)
    assert all(int(one) <= 50 for task in replayed for one in re.findall(r"\d+", task.question + task.answer))

    write_jsonl(
        tmp_path / "problems.jsonl",
        [{"question": f"What is {n} + 1?", "answer": f"{n} + 1\n#### {n + 1}"} for n in range(60)],
    )
    source = from_file(tmp_path / "problems.jsonl")
    own = [*source, "--eval.accuracy_n", "0", "--replay.fraction", "0.3", "--replay.source"]
    assert len(Build(recipe(tmp_path, *own, "starter")).problems) == 60
    assert len(Build(recipe(tmp_path, *own, "jsonl")).problems) < 60


def test_only_starter_problems_can_be_held_to_small_numbers(tmp_path: Path) -> None:
    source = tmp_path / "problems.jsonl"
    source.write_text('{"question": "What is 1 + 1?", "answer": "2"}\n')
    recipe = load_data_recipe(DEMO, [*ALONE, "--source.kind", "jsonl", "--source.path", str(source)])
    with pytest.raises(RecipeError, match="largest"):
        Build(recipe)
