"""`python -m probe frontier` from end to end, and what compare makes of a curve."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import start
from test_compare import probe_run
from test_scaling import moved

from probe.claims import Claims
from probe.compare import compare
from probe.comparison import compare_runs, load_runs
from probe.curves import change, curves_of, verdict
from probe.errors import run_command
from probe.files import read_json, read_jsonl, write_json, write_jsonl
from probe.judges.labels import GENUINE
from probe.label import draw, row_of, user_turns
from probe.models import fingerprint
from probe.plot import arrows, dotted, marker_name, panels_of
from probe.report import html, markdown
from probe.scaling import trained

SCALES = ("0.5", "1", "1.5")
NAMES = ["base", "step-7-scale-0.5", "step-7", "step-7-scale-1.5"]


@pytest.fixture
def run_dir(tmp_path: Path, tiny_chatml: Path) -> Path:
    """A finished training run whose recipe asks two questions and says two turns."""
    folder = moved(tiny_chatml, tmp_path / "run" / "checkpoint-7").parent
    asked = [{"id": str(n), "question": f"Ann has {n} apples and eats 1. How many?", "answer": str(n)} for n in (3, 4)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    probe = {"sets": {"apples": {"path": str(tmp_path / "asked.jsonl")}}, "temperatures": [0.0], "grounding": False}
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe["probe"] = {**probe, "max_answer_tokens": 4, "max_user_tokens": 3}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    return folder


def frontier(*words: object) -> int:
    from probe.__main__ import main

    return run_command(main, ["frontier", *map(str, words)])


def result(run_dir: Path, name: str) -> dict[str, Any]:
    return {**read_json(run_dir / "probe" / name / "results.json"), "timing": None}


def test_every_scale_is_measured_once_and_compared_with_the_base(
    run_dir: Path, tiny_chatml: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frontier(run_dir, "--scales", *SCALES, "--dry-run") == 0
    assert "step-7-scale-0.5: to measure" in capsys.readouterr().out
    assert not (run_dir / "probe").exists()
    assert frontier(run_dir, "--scales", *SCALES, "--device", "cpu") == 0
    printed = capsys.readouterr()
    assert "made in memory and take no disk" in printed.out
    compared = read_json(run_dir / "probe" / "frontier" / "comparison.json")
    assert [run["name"] for run in compared["runs"]] == NAMES
    [curve] = compared["curves"]
    assert [point["scale"] for point in curve["points"]] == [0.0, 0.5, 1.0, 1.5]
    assert curve["verdict"] in printed.out
    ends = trained(run_dir / "checkpoint-7")
    models = {name: result(run_dir, name)["model"] for name in NAMES}
    for name, scale in zip(NAMES, (0, 0.5, 1, 1.5), strict=True):
        assert models[name]["weights_sha256"] == fingerprint(ends.at(scale))
        assert models[name]["label"] == name and models[name]["step"] == (7 if scale else 0)
    both = {"base_sha256": models["base"]["weights_sha256"], "checkpoint_sha256": models["step-7"]["weights_sha256"]}
    assert models["step-7-scale-0.5"]["scaled"] == {"scale": 0.5, **both} and "scaled" not in models["step-7"]

    # Again, with one scale more: what is there stays, ends included, and all that were tried are compared.
    written = {name: (run_dir / "probe" / name / "results.json").stat().st_mtime_ns for name in NAMES}
    assert frontier(run_dir / "checkpoint-7", "--scales", "0.25", "0.5", "--device", "cpu") == 0
    assert written == {name: (run_dir / "probe" / name / "results.json").stat().st_mtime_ns for name in NAMES}
    compared = read_json(run_dir / "probe" / "frontier" / "comparison.json")
    assert [run["name"] for run in compared["runs"]] == ["base", "step-7-scale-0.25", *NAMES[1:]]
    # A comparison of the whole training run takes them in as well.
    assert len(compare([run_dir], run_dir / "all").curves[0]) == 5


def test_the_scales_wait_for_a_base_that_another_process_measures(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its KL to the base, which is held against the base's own answers."""
    monkeypatch.setattr("probe.frontier.POLL_S", 0.05)
    other = Claims(run_dir / "probe" / ".claims").take("base")
    assert other is not None
    mine = threading.Thread(target=frontier, args=(run_dir, "--scales", 0.5), daemon=True)
    with other:
        mine.start()
        mine.join(2.0)
        assert mine.is_alive() and not list((run_dir / "probe").glob("*/results.json"))
    mine.join(60)
    assert result(run_dir, "step-7-scale-0.5")["kl_to_base"]["value"] > 0


def test_the_ends_are_what_watch_and_run_measure(run_dir: Path, tiny_chatml: Path, tmp_path: Path) -> None:
    from probe.__main__ import main

    assert run_command(main, ["watch", str(run_dir), str(run_dir / "recipe.json"), "--once", "--device", "cpu"]) == 0
    before = {name: result(run_dir, name) for name in ("base", "step-7")}
    stamps = [(run_dir / "probe" / name / "results.json").stat().st_mtime_ns for name in before]
    assert frontier(run_dir, "--scales", 0.5, 1, "--device", "cpu") == 0
    assert [(run_dir / "probe" / name / "results.json").stat().st_mtime_ns for name in before] == stamps, "reused"
    assert frontier(run_dir, "--scales", 0.5, 1, "--device", "cpu", "--out", tmp_path / "own") == 0
    assert {name: result(tmp_path / "own", name) for name in before} == before, "and made anew they are the same"


def test_a_killed_frontier_goes_on_and_ends_with_the_same_results(run_dir: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    longer = ["--probe.max_user_tokens", "120", "--probe.batch_tokens", "1", "--device", "cpu"]
    assert frontier(run_dir, "--scales", 0.5, 1, *longer, "--out", whole) == 0
    killed = tmp_path / "killed"
    words = ["-m", "probe", "frontier", str(run_dir), "--scales", "0.5", "1", *longer, "--out", str(killed)]
    process = start(words, log=tmp_path / "killed.log")
    generations = killed / "probe" / "step-7-scale-0.5" / "generations.jsonl"
    deadline = time.monotonic() + 120
    while not (generations.is_file() and generations.read_text().count("\n") >= 2):
        assert time.monotonic() < deadline and process.poll() is None, (tmp_path / "killed.log").read_text()
        time.sleep(0.01)
    process.kill()
    process.wait(30)
    assert not (generations.parent / "results.json").exists(), "killed before it was done"
    made = generations.read_text().splitlines()
    assert frontier(*words[3:]) == 0
    assert generations.read_text().splitlines()[: len(made) - 1] == made[: len(made) - 1], "what was made is kept"
    for name in NAMES[:3]:
        assert result(killed, name) == result(whole, name)


def test_bad_input_is_one_line_and_starts_nothing(
    run_dir: Path, tmp_path: Path, tiny_chatml: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = moved(tiny_chatml, tmp_path / "other" / "checkpoint-1")
    shutil.copytree(run_dir, tmp_path / "unprobed")
    write_json(tmp_path / "unprobed" / "recipe.json", {**read_json(run_dir / "recipe.json"), "probe": None})
    (tmp_path / "bare.yaml").write_text(yaml.safe_dump({"probe": {"sets": {}}}))
    cases: list[tuple[list[object], str]] = [
        ([run_dir, "--scales", 0.5, 2.1], "scale 2.1: wanted"),
        ([run_dir, "--scales", 0.5, 0.5], "scale 0.5: given 2 times"),
        ([run_dir, "--base", other], "not the base of"),
        ([run_dir, "--checkpoint", 9], "not a complete checkpoint"),
        ([tmp_path / "nowhere"], "no complete checkpoint in it"),
        ([tmp_path / "unprobed"], "probe"),
        ([run_dir, "--recipe", tmp_path / "bare.yaml"], "no set named"),
        ([run_dir, "--recipe", tmp_path / "no.yaml"], "no such file"),
        ([run_dir, "--probe.engine", "openai"], "wanted hf or vllm"),
        ([run_dir, "--probe.sed", 1], "seed"),
    ]
    capsys.readouterr()  # what making the models said
    for words, message in cases:
        assert frontier(*words) == 2, words
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
    assert not (run_dir / "probe").exists()


def test_other_settings_want_another_folder(run_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert frontier(run_dir, "--scales", 1, "--device", "cpu") == 0
    capsys.readouterr()
    assert frontier(run_dir, "--scales", 0.5, "--probe.seed", 1) == 2
    assert "another folder: --out DIR" in (error := capsys.readouterr().err) and "seed: 0 then, 1 now" in error
    changed = read_json(run_dir / "probe" / "step-7" / "results.json")
    changed["model"]["weights_sha256"] = "0" * 64
    write_json(run_dir / "probe" / "step-7" / "results.json", changed)
    assert frontier(run_dir, "--scales", 1) == 2
    assert "measured other weights (000000000000)" in capsys.readouterr().err


# --- Curves of made-up runs, in which the answer is known.


def curve_of(probes: Path, values: dict[float, tuple[float, float]], n: int = 200) -> list[Path]:
    """A base, scaled models and their checkpoint: {scale: (accuracy, follow-up at every temperature)}."""
    folders = []
    for scale, (correct, genuine) in values.items():
        name = {0.0: "base", 1.0: "step-7"}.get(scale, f"step-7-scale-{scale:g}")
        folder = probe_run(probes / name, name, 7 if scale else 0, correct, None, {"maths": (genuine,) * 3}, n=n)
        results = read_json(folder / "results.json")
        results["model"]["weights_sha256"] = {0.0: "b" * 64, 1.0: "c" * 64}.get(scale, f"{scale:g}")
        if scale not in (0, 1):
            results["model"]["scaled"] = {"scale": scale, "base_sha256": "b" * 64, "checkpoint_sha256": "c" * 64}
        write_json(folder / "results.json", results)
        folders.append(folder)
    return folders


NAMES_OF_LINE = ["base", "step-7-scale-0.25", "step-7-scale-0.5", "step-7-scale-0.75", "step-7"]
LINE = {0.0: (0.6, 0.1), 0.25: (0.6, 0.2), 0.5: (0.58, 0.35), 0.75: (0.4, 0.5), 1.0: (0.3, 0.6)}


def test_the_scale_with_most_follow_up_at_no_significant_loss_is_named(tmp_path: Path) -> None:
    comparison = compare_runs(load_runs(curve_of(tmp_path / "run" / "probe", LINE)))
    [curve] = curves_of(comparison)
    assert [point.scale for point in curve.points] == [0, 0.25, 0.5, 0.75, 1]
    assert [point.loses for point in curve.points] == [False, False, False, True, True]
    assert curve.best is not None and comparison.scale(curve.best) == 0.5
    line = verdict(curve, comparison)
    assert "scale 0.5 has the most follow-up of 4 scales tried" in line and "less accurate: 0.75, 1" in line
    assert "n = 200" in line and "p = " in line and "\n" not in line
    # The interval of follow-up holds for all four: it is wider than the one of that pair alone.
    [pair] = curves_of(compare_runs(load_runs([tmp_path / "run/probe/base", tmp_path / "run/probe/step-7-scale-0.5"])))
    alone, among = (one.points[-1 if one is pair else 2].followup for one in (pair, curve))
    assert alone and among and alone.ci95 and among.ci95 and alone.value == among.value
    assert among.ci95[0] < alone.ci95[0] and among.ci95[1] > alone.ci95[1]
    assert curve.points[2].accuracy == pair.points[-1].accuracy, "and that of accuracy is not"


def test_only_what_the_base_and_every_scale_have_is_pooled(tmp_path: Path) -> None:
    """A scale that was probed without greedy decoding has more follow-up on average, and none of it is the scale's."""
    folders = curve_of(tmp_path / "run" / "probe", {0.0: (0.6, 0.3), 0.5: (0.6, 0.3)})
    for folder in folders:
        rows = [row for _, row in read_jsonl(folder / "samples.jsonl")]
        for row in rows:
            if row["kind"] == "followup" and row["temperature"] == 0:
                row["label"] = "new_task"
        alone = [row for row in rows if row["kind"] != "followup" or row["temperature"] > 0]
        write_jsonl(folder / "samples.jsonl", rows if folder.name == "base" else alone)
    [curve] = curves_of(compare_runs(load_runs(folders)))
    change = curve.points[-1].followup
    assert change and change.value == 0 and curve.best is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({0.0: (0.6, 0.3), 0.5: (0.2, 0.6), 1.0: (0.1, 0.7)}, "none has more follow-up than the base without"),
        ({0.0: (0.6, 0.5), 0.5: (0.6, 0.4), 1.0: (0.6, 0.3)}, "none has more follow-up than the base without"),
        ({0.0: (0.6, 0.3), 0.5: (0.6, 0.31)}, "so not significant"),
        ({0.5: (0.6, 0.32), 1.0: (0.6, 0.4)}, "no scale can be named"),
    ],
)
def test_no_scale_is_named_where_none_is_earned(
    values: dict[float, tuple[float, float]], said: str, tmp_path: Path
) -> None:
    comparison = compare_runs(load_runs(curve_of(tmp_path / "run" / "probe", values, n=30)))
    [curve] = curves_of(comparison)
    assert said in verdict(curve, comparison)
    assert (curve.best is None) == ("not significant" not in said)


def test_the_curve_is_drawn_through_its_scales_and_told_on_both_pages(tmp_path: Path) -> None:
    folders = curve_of(tmp_path / "run" / "probe", LINE)
    comparison = compare(folders, tmp_path / "out")
    [panel] = panels_of(comparison)
    points = next(iter(panel.points.values()))
    assert dotted(comparison, points) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert arrows(comparison, points) == [], "no arrow over the dotted line"
    assert [marker_name(comparison, run) for run in range(5)] == ["base", "0.25", "0.5", "0.75", "step-7"]
    for page in (markdown(comparison), html(comparison)):
        assert "most follow-up" in page and "loses accuracy" in page and "Bonferroni" in page
    assert read_json(tmp_path / "out" / "comparison.json")["curves"][0]["best"] == "step-7-scale-0.5"
    # A run without scales has nothing of it.
    plain = compare([folders[0], folders[-1]], tmp_path / "plain")
    assert not plain.curves and "curves" not in read_json(tmp_path / "plain" / "comparison.json")
    assert "scaled" not in json.dumps(read_json(tmp_path / "plain" / "comparison.json"))


def test_labels_name_the_scale_where_all_of_a_curve_have_them(tmp_path: Path) -> None:
    """A reader agrees with the judge but at scale 0.5, which the judge would name: nothing there is genuine."""
    folders = curve_of(tmp_path / "run" / "probe", LINE)
    drawn = draw([turn for run in load_runs(folders) for turn in user_turns(run)], 60, 0)
    agreed = {True: GENUINE, False: "new_task"}
    rows = [{**row_of(one), "label": agreed[one.turn.genuine and "0.5" not in one.turn.run]} for one in drawn]
    write_jsonl(tmp_path / "run" / "labels.jsonl", rows)
    comparison = compare(folders, tmp_path / "out")
    [curve] = curves_of(comparison)
    line = verdict(curve, comparison)
    assert line.startswith("step-7: scale 0.25 has the most follow-up") and "less accurate: 0.75, 1" in line
    assert line.endswith("; follow-up corrected by 300 labels") and curve.labels == 300
    quarter, half = curve.points[1:3]
    assert quarter.corrected and half.corrected and half.followup and change(quarter.corrected) in line
    assert (half.followup.value or 0) > 0.2 and (half.corrected.value or 0) < 0
    # It is the corrected difference of all turns, with an interval that holds for all four scales.
    assert comparison.correction
    alone = next(
        one.corrected
        for one in comparison.correction.differences
        if (one.run, one.temperature) == (NAMES_OF_LINE[1], None)
    )
    assert quarter.corrected.value == pytest.approx(alone.value) and quarter.corrected.ci95 and alone.ci95
    assert quarter.corrected.ci95[0] < alone.ci95[0] and quarter.corrected.ci95[1] > alone.ci95[1]
    for page in (markdown(comparison), html(comparison)):
        assert "corrected by 300 labels" in page
    told = read_json(tmp_path / "out" / "comparison.json")["curves"][0]
    assert told["best"] == NAMES_OF_LINE[1] and told["labels"] == 300 and told["points"][2]["corrected"]["value"] < 0
    # Without labels of one scale two readers would be compared: the judge names, and that is said.
    write_jsonl(tmp_path / "run" / "labels.jsonl", [row for row in rows if row["run"] != NAMES_OF_LINE[3]])
    comparison = compare(folders, tmp_path / "some")
    [curve] = curves_of(comparison)
    assert curve.best is not None and comparison.scale(curve.best) == 0.5 and not curve.labels
    assert verdict(curve, comparison).endswith("; follow-up as judged, without labels of step-7-scale-0.75")


def test_training_that_goes_back_sets_scaled_probes_aside(tmp_path: Path) -> None:
    from train.checkpoints import remove_incomplete

    for name in ("base", "step-7", "step-7-scale-0.5"):
        (tmp_path / "run" / "probe" / name).mkdir(parents=True)
    remove_incomplete(tmp_path / "run")
    left = sorted(path.name for path in (tmp_path / "run" / "probe").iterdir())
    assert left == ["base", "set-aside-step-7", "set-aside-step-7-scale-0.5"]
