"""Runs that are kept without their questions, patterns that name more than runs, and two trainings in one row."""

from __future__ import annotations

import gzip
import json
import random
import runpy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.__main__ import main
from nextturn.probe.command.errors import BadInput, DataError, IncomparableRuns, run_command
from nextturn.probe.command.files import read_json, read_jsonl, sha256_text, write_json, write_jsonl
from nextturn.probe.compare import compare
from nextturn.probe.data.messages import Message, assistant, user
from nextturn.probe.engines.stored import Row
from nextturn.probe.judges.verdicts import GENUINE
from nextturn.probe.kept import texts_in
from nextturn.probe.labels.agreement import read_labelled
from nextturn.probe.labels.correct import correct, label_files
from nextturn.probe.labels.label import draw
from nextturn.probe.labels.turns import read_labels, user_turns
from nextturn.probe.measures.accuracy import Accuracy
from nextturn.probe.measures.base import make_row
from nextturn.probe.measures.doubted import Doubted
from nextturn.probe.measures.sharded import CutProblem, Sharded
from nextturn.probe.questions.pieces import split
from nextturn.probe.questions.sets import read_items
from nextturn.probe.report.comparison import as_json, compare_runs
from nextturn.probe.report.page import html
from nextturn.probe.results import Metric, load_runs
from nextturn.probe.stats import paired_difference
from support.commands import ROOT
from support.measured import Said, question_set, reply, rows_of
from support.page_runs import data_of, write_run

INSTRUCTION = "End with the number alone."
NAMES = ("Ada", "Bo", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ida", "Jon", "Kim", "Lou")
keep = runpy.run_path(str(ROOT / "recipes" / "results" / "keep.py"))["keep"]


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Problems without ids, that are cut into pieces; the last two are a conversation and a choice of options."""
    rows: list[Row] = [
        {"question": f"{name} buys {number + 3} red ropes. The shop gives {name} 4 more of them. How many ropes has {name}?",
         "answer": f"#### {number + 7}"}
        for number, name in enumerate(NAMES)
    ]  # fmt: skip
    asked = ["Is a whale called Moby a fish?", "Which of these two swims, then?"]
    talk = [user(asked[0]), assistant("No, Moby is a mammal."), user(asked[1])]
    rows.append({"messages": talk, "answer": "41"})
    rows.append({"question": "Which planet is the reddest of all?", "choices": ["Mars", "Venus"], "answer": "Mars"})
    path = tmp_path_factory.mktemp("set") / "ropes.jsonl"
    write_jsonl(path, rows)
    return path


def full_run(folder: Path, questions: Path, seed: int = 0, right: float = 0.5, **settings: Any) -> Path:
    """Write a run with all kinds of rows on these questions; its replies are right at this rate."""
    rng = random.Random(seed)
    items = read_items(questions, INSTRUCTION)

    given = {item.messages[-1]["content"]: item.answer for item in items}

    def replies(chat: Sequence[Message]) -> str:
        answer = given.get(chat[-1]["content"]) if len(chat) == len(items[0].messages) or len(chat) == 3 else None
        return f"Is it {rng.randrange(5)}?" if answer is None else f"So it is {answer if rng.random() < right else 99}."

    of_set = question_set("ropes", [], instruction=INSTRUCTION)
    cut = [
        CutProblem(item, pieces)
        for item in items
        if len(item.messages) == 1 and (pieces := split(of_set.question(item)))
    ]
    said = Said(by=replies)
    rows = rows_of(Accuracy, of_set, said, items)
    answered = [(item, reply(row["messages"][-1]["content"])) for item, row in zip(items, rows, strict=True)]
    rows += rows_of(Sharded, of_set, said, cut)
    rows += rows_of(Doubted, replace(of_set, items=tuple(items)), said)
    for item, given_reply in answered:
        for temperature, perturbation in ((0.0, "none"), (0.7, "none"), (0.0, "truncate(0.5)")):
            label = rng.choice((GENUINE, "new_task", None))
            turn: Row = {"label": label, "unscored": None if label else "no verdict", "user_cut": False}
            turn |= {"user_turn": rng.choice(("Why?", "And then?")), "specific": True, "grounding": rng.random()}
            turn |= {"temperature": temperature, "perturbation": perturbation}
            turn["changed"] = None if perturbation == "none" else rng.random() < 0.5
            rows.append(make_row("followup", "ropes", item.id, [*item.messages, assistant(given_reply.text)], **turn))
    for condition in ("complete", "underspecified"):
        messages = [user("A pair of our own, to be read by all."), assistant("How many?")]
        where = {"condition": condition, "asked": True, "outcome": "asked"}
        rows.append(make_row("clarify", "written_pairs", "p", messages, **where))
    sets = {"ropes": ("followup", len(items)), "written_pairs": ("clarify", 1)}
    write_run(folder, folder.name, None, rows, sets, temperatures=[0.0, 0.7], **settings)
    results = read_json(folder / "results.json")
    results["model"]["weights_sha256"] = sha256_text(folder.name)
    write_json(folder / "results.json", results)
    return folder


def label_turns(path: Path, *folders: Path, n: int = 24) -> Path:
    """Label some turns of each run, as an annotator who calls half of them genuine."""
    labels = []
    for run in load_runs(folders):
        for drawn in draw(user_turns(run), n, 0):
            label = GENUINE if int(drawn.turn_sha256[0], 16) % 2 else "new_task"
            labels.append({**drawn.model_dump(by_alias=True), "label": label})
    write_jsonl(path, labels)
    return path


@pytest.fixture(scope="module")
def full(questions: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("full")
    runs = [full_run(folder / name, questions, seed, 0.4 + seed / 5) for seed, name in enumerate(("base", "sft"))]
    label_turns(folder / "labels.jsonl", *runs)
    return runs


@pytest.fixture
def kept(full: list[Path], questions: Path, tmp_path: Path) -> list[Path]:
    folders = [tmp_path / "kept" / run.name for run in full]
    for run, folder in zip(full, folders, strict=True):
        keep(run, folder, [str(questions)], [run.parent / "labels.jsonl"])
    return folders


def figures_of(folders: Sequence[Path], files: Sequence[Path]) -> dict[str, Any]:
    """Return all figures, paired differences and corrected rates, without the places of files."""
    runs = load_runs(folders)
    table, correction = as_json(compare_runs(runs)), correct(runs, files)
    compared = {key: table[key] for key in ("figures", "patterns", "settings", "remarks")}
    return {**compared, "rates": correction.rates, "changes": correction.differences, "labels": correction.labels}


# --- Runs without their questions


def test_a_kept_run_has_the_same_figures_and_no_text_of_the_questions(
    full: list[Path], kept: list[Path], questions: Path
) -> None:
    files = [folder / "labels.jsonl.gz" for folder in kept]
    assert figures_of(kept, files) == figures_of(full, [full[0].parent / "labels.jsonl"])
    secret = [text for text in texts_in([str(questions)]).values() if len(text) > 4]
    assert len(secret) > 5 * len(NAMES)
    for folder in kept:
        for path in folder.iterdir():
            content = path.read_bytes()
            text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
            assert not [each for each in secret if each in text]
    rows = [row for _, row in read_jsonl(kept[0] / "samples.jsonl.gz")]
    assert not [row for row in rows if row["set"] == "ropes" and isinstance(row["reference"], str)]
    wrong = [row for row in rows if row["condition"] == "wrong"]
    assert wrong and all("question" in row["messages"][-2] for row in wrong), "the right answer that the user tells"
    page = html(compare_runs(load_runs(kept)))
    assert "A pair of our own" in page and not [each for each in secret if json.dumps(each)[1:-1] in page]


def test_with_the_questions_every_reader_gets_the_text_again(
    full: list[Path], kept: list[Path], questions: Path
) -> None:
    for before, after in zip(load_runs(full), load_runs(kept, [str(questions)]), strict=True):
        rows = [{key: value for key, value in row.items() if key != "turn_sha256"} for _, row in after.rows()]
        assert rows == [row for _, row in before.rows()]
        assert user_turns(after) == user_turns(before)
    pages = [data_of(html(compare_runs(load_runs(folders, [str(questions)])))) for folders in (full, kept)]
    assert pages[0] == pages[1]
    labels, texts = kept[1] / "labels.jsonl.gz", texts_in([str(questions)])
    read = {tuple(turn.case.messages[-2].values()) for turn in read_labelled(labels, texts)}
    assert {content for _, content in read} <= {
        item.messages[-1]["content"] for item in read_items(questions, INSTRUCTION)
    }
    with pytest.raises(DataError):  # a judge cannot read ids
        read_labelled(labels)
    assert read_labels(labels), "corrected rates need no text"


@pytest.mark.parametrize("change", ["one is missing", "one is another", "the set is another"])
def test_a_question_that_is_not_found_is_an_error_with_its_id(
    kept: list[Path], questions: Path, tmp_path: Path, change: str
) -> None:
    rows = [{"id": number, **row} for number, row in read_jsonl(questions)]
    changed = {"one is missing": rows[:4] + rows[5:], "the set is another": [{"id": 5, "prompt": "Hello"}]}
    rows[4] = {**rows[4], "question": rows[4]["question"].replace("red", "blue")}
    write_jsonl(tmp_path / "other.jsonl", changed.get(change, rows))
    missing = "ropes 1 " if change == "the set is another" else "ropes 5 "
    with pytest.raises(DataError, match=missing):
        compare(kept, tmp_path / "out", questions=[str(tmp_path / "other.jsonl")])


def test_a_run_with_questions_that_are_not_given_is_not_kept(full: list[Path], questions: Path, tmp_path: Path) -> None:
    rows = list(read_jsonl(questions))
    write_jsonl(tmp_path / "most.jsonl", (row for _, row in rows[:-1]))
    for given in ([], [str(tmp_path / "most.jsonl")]):
        with pytest.raises(BadInput, match="ropes/"):
            keep(full[0], tmp_path / "out", given)
    assert not (tmp_path / "out").exists()


def test_a_second_annotator_keeps_a_file_of_its_own(full: list[Path], questions: Path, tmp_path: Path) -> None:
    first = full[0].parent / "labels.jsonl"
    second = tmp_path / "second.jsonl"
    write_jsonl(second, [{**row, "label": "new_task"} for _, row in read_jsonl(first)][:10])
    with pytest.raises(BadInput, match="second.jsonl:1"):
        keep(full[0], tmp_path / "out", [str(questions)], [first, second])
    keep(full[0], tmp_path / "out", [str(questions)], [first], [second])
    labels = {name: read_labels(tmp_path / "out" / f"{name}.jsonl.gz") for name in ("labels", "second")}
    assert len(labels["labels"]) == 24 > len(labels["second"]) > 0
    assert {label.key for label in labels["second"]} < {label.key for label in labels["labels"]}
    runs = load_runs([tmp_path / "out"])
    assert label_files([tmp_path / "out"], runs) == [tmp_path / "out" / "labels.jsonl.gz"]


def test_a_broken_archive_is_an_error(kept: list[Path]) -> None:
    path = kept[0] / "samples.jsonl.gz"
    for content in (path.read_bytes()[:-9], b"no archive"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"samples\.jsonl\.gz"):
            load_runs(kept)


def test_a_pattern_may_name_more_than_runs(kept: list[Path], tmp_path: Path) -> None:
    (tmp_path / "kept" / "RESULTS.md").write_text("text")
    (tmp_path / "kept" / "scripts").mkdir()
    (tmp_path / "kept" / "scripts" / "run.sh").write_text("true")
    everything = sorted(map(str, (tmp_path / "kept").iterdir()))
    assert len(everything) == 4
    assert run_command(main, ["compare", *everything, "--out", str(tmp_path / "out")]) == 0
    assert [run["name"] for run in read_json(tmp_path / "out" / "comparison.json")["runs"]] == ["base", "sft"]
    scripts, parent = str(tmp_path / "kept" / "scripts"), str(tmp_path)
    write_json(tmp_path / "kept" / "begun" / "manifest.json", {})
    for wrong in ([everything[2], scripts], [*everything, "no-such"], [*everything, str(tmp_path / "kept" / "begun")],
                  [*everything, str(tmp_path / "kept")], [parent]):  # fmt: skip
        with pytest.raises(BadInput):
            load_runs([Path(name) for name in wrong])


# --- Two trainings in one row

VALUES = {"a": (1, 1, 0, 0), "c": (1, 0, 1, 0), "d": (1, 1, 1, 0)}


def known_run(folder: Path, **settings: Any) -> Path:
    """Write a run of VALUES, right or wrong by item."""
    rows = []
    for item, right in enumerate(VALUES[folder.name]):
        graded = {"lenient": bool(right), "strict": bool(right), "outcome": "answered"}
        rows.append(make_row("accuracy", "maths", str(item), [], **graded))
        turn = {"label": GENUINE if right else "new_task", "user_turn": "The same words."}
        rows.append(make_row("followup", "maths", str(item), [], **turn))
    return write_run(folder, folder.name, None, rows, {"maths": ("accuracy", 4)}, **settings)


def test_two_trainings_make_one_row_with_the_mean_of_each_item(tmp_path: Path) -> None:
    for name in VALUES:
        known_run(tmp_path / name)
    comparison = compare([tmp_path / "a", Path(f"{tmp_path / 'c'}+{tmp_path / 'd'}")], tmp_path / "out")
    assert comparison.names == ("a", "c+d") and [len(run.parts) for run in comparison.runs] == [1, 2]
    metric = Metric("accuracy", "maths", "lenient")
    pooled = next(figure for figure in comparison.figures if (figure.run, figure.metric) == ("c+d", metric))
    assert pooled.estimate.value == 5 / 8 and pooled.estimate.n == 8
    low, high = pooled.estimate.ci95 or (0, 0)
    assert high - low > 0.55, "at most as narrow as that of 8 items, and the trainings agree on most of 4"
    change = pooled.changes["baseline"]
    means = {"0": [1.0], "1": [0.5], "2": [1.0], "3": [0.0]}
    assert change == paired_difference({str(item): [value] for item, value in enumerate(VALUES["a"])}, means)
    assert change.value == pytest.approx((0 - 0.5 + 1 + 0) / 4) and change.p_value is None
    assert (change.gained_items, change.lost_items, change.n) == (("2",), ("1",), 4)
    turns = comparison.runs[1].results.followup["maths"]["none"]["T=0.0"]
    assert (turns.rate, turns.n_total, turns.equal) == (5 / 8, 8, 1.0)
    rows = data_of((tmp_path / "out" / "report.html").read_text())["rows"]
    assert len(rows) == 24 and read_json(tmp_path / "out" / "comparison.json")["trainings"] == {"a": 1, "c+d": 2}


def test_turns_are_compared_within_a_training(tmp_path: Path) -> None:
    """Each training has one pair of equal turns among six, and turns of two trainings make no pair."""
    for name, same in (("c", (0, 1)), ("d", (2, 3))):
        words = ["Why?" if item in same else f"{name} {item}" for item in range(4)]
        turns = [
            make_row("followup", "maths", str(item), [], label=GENUINE, user_turn=text)
            for item, text in enumerate(words)
        ]
        write_run(tmp_path / name, name, None, turns, {"maths": ("followup", 4)})
    (pooled,) = load_runs([Path(f"{tmp_path / 'c'}+{tmp_path / 'd'}")])
    assert pooled.results.followup["maths"]["none"]["T=0.0"].equal == pytest.approx(4 / 24, abs=1e-6)


@pytest.mark.parametrize("case", ["another judge", "another measure", "twice the same"])
def test_trainings_that_were_measured_differently_are_refused(tmp_path: Path, case: str) -> None:
    first, second, third = (known_run(tmp_path / name) for name in VALUES)
    if case == "another judge":
        known_run(third, judge="rules/9")
    if case == "another measure":
        rows = [row for _, row in read_jsonl(third / "samples.jsonl") if row["kind"] == "accuracy"]
        write_jsonl(third / "samples.jsonl", rows)
    third = second if case == "twice the same" else third
    error = IncomparableRuns if case == "another judge" else BadInput
    with pytest.raises(error):
        compare([first, Path(f"{second}+{third}")], tmp_path / "out")


@pytest.mark.parametrize("n", [28, 20])
def test_labels_of_both_trainings_correct_the_row(questions: Path, tmp_path: Path, n: int) -> None:
    """Each label stands for turns of its own training, so a training with fewer labels weighs as much as the other."""
    first, second = (full_run(tmp_path / name, questions, seed) for seed, name in enumerate(("one", "two")))
    both = Path(f"{first}+{second}")
    files = [label_turns(first / "labels.jsonl", first, n=28), label_turns(second / "labels.jsonl", second, n=n)]
    found = []
    for runs in (load_runs([folder]) for folder in (first, second, both)):
        correction = correct(runs, label_files([], runs))
        found.append(next(rate for rate in correction.rates if rate.temperature is None))
    one, two, pooled = found
    assert (one.labels, two.labels, pooled.labels) == (28, n, 28 + n) and pooled.corrected.n == 56
    assert pooled.corrected.value == pytest.approx(((one.corrected.value or 0) + (two.corrected.value or 0)) / 2)
    labelled = {label.key for path in files for label in read_labels(path)}
    assert labelled <= {turn.key for turn in user_turns(load_runs([both])[0])}
