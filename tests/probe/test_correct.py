"""Rates corrected by labels: the estimate, coverage of its intervals, refused input, and what `compare` shows."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import support.corrected_trials as simulated
from nextturn.probe import stats
from nextturn.probe.__main__ import main
from nextturn.probe.command.errors import BadInput, IncomparableRuns
from nextturn.probe.command.files import read_json, read_jsonl, write_json
from nextturn.probe.compare import compare
from nextturn.probe.judges.verdicts import GENUINE
from nextturn.probe.labels import agreement
from nextturn.probe.labels import correct as command
from nextturn.probe.labels.correct import correct, with_labels
from nextturn.probe.labels.label import draw
from nextturn.probe.labels.turns import DrawnTurn, JudgedTurn, Label, user_turns
from nextturn.probe.report.comparison import (
    NEEDS_LABELS,
    CorrectedRate,
    Correction,
    as_json,
    compare_runs,
    terminal_table,
)
from nextturn.probe.report.page import Table, html, mark, markdown, sections
from nextturn.probe.report.plot import panels_of
from nextturn.probe.results import Metric, load_runs
from support.label_parts import three_models, turns_of, write_rows
from support.page_runs import data_of

# --- the estimate


def corrected_rate(judged: Sequence[int], read: Sequence[int], labelled: Sequence[int]) -> stats.Corrected:
    """Return the corrected rate of one turn per item, labelled with the weights of two strata: genuine and other."""
    verdicts, labels = np.array(judged, bool), np.array(labelled, bool)
    weights = np.zeros(len(judged))
    for verdict in (True, False):
        chosen = labels & (verdicts == verdict)
        weights[chosen] = (verdicts == verdict).sum() / max(chosen.sum(), 1)
    return stats.corrected(verdicts, np.array(read, float), weights, np.arange(len(judged)), len(judged))


def test_a_rate_worked_by_hand() -> None:
    # The judge calls 40 of 100 genuine. An annotator confirms 5 of ten of these, and finds 1 among ten others.
    judged = [1] * 40 + [0] * 60
    read = [1] * 5 + [0] * 35 + [1] + [0] * 59
    labelled = [1] * 10 + [0] * 30 + [1] * 10 + [0] * 50
    found = corrected_rate(judged, read, labelled)
    value, low, high = stats.corrected_bounds(found)
    assert value == pytest.approx(0.4 * 0.5 + 0.6 * 0.1)
    # Wilson's bounds with Student's quantile for 20 labels, 2.093: 0.5 [0.220, 0.780] and 0.1 [0.016, 0.437], combined by
    # their distances to the rates, plus 0.4 * 0.6 * 0.4^2 / 99 for which turns were judged genuine.
    spread = 2.093**2 * 0.4 * 0.6 * 0.4**2 / 99
    below = (0.4 * (0.5 - 0.2202)) ** 2 + (0.6 * (0.1 - 0.0163)) ** 2
    above = (0.4 * (0.7798 - 0.5)) ** 2 + (0.6 * (0.4242 - 0.1)) ** 2
    assert low == pytest.approx(0.26 - (below + spread) ** 0.5, abs=2e-3)
    assert high == pytest.approx(0.26 + (above + spread) ** 0.5, abs=2e-3)
    assert (found.by_item**2).sum() == pytest.approx(0.4 * 0.6 * 0.4**2 / 99)
    bias, least, most = stats.bias_bounds(found)
    assert bias == pytest.approx(0.4 - 0.26) and least < 0.14 < most
    # The same turns in two runs: which items were asked does not matter, which turns have labels does.
    change, least, most = stats.corrected_difference(found, found)
    assert change == 0 and most == -least == pytest.approx((found.below + found.above) ** 0.5)


def test_labels_of_all_turns_give_the_annotators_own_rate_whatever_the_judge_says() -> None:
    rng = np.random.default_rng(0)
    read = (rng.random(200) < 0.3).astype(int)
    for judged in (rng.random(200) < 0.5, read, 1 - read, np.zeros(200), np.ones(200)):
        value, low, high = stats.corrected_bounds(corrected_rate(list(judged), list(read), [1] * 200))
        assert value == pytest.approx(read.mean())
        assert high - low == pytest.approx(0.126, abs=0.02), "as wide as Wilson's for 200 readings"


def test_many_equally_likely_labels_agree_with_ppi_python() -> None:
    """ppi-python 0.2.3 (ppi_mean_pointestimate and ppi_mean_ci at 95%), which has no small-sample correction and no clusters."""
    rng = np.random.default_rng(3)
    judged, weights = rng.random(20_000) < 0.35, np.zeros(20_000)
    read = np.where(judged, rng.random(20_000) < 0.6, rng.random(20_000) < 0.12).astype(float)
    weights[rng.choice(20_000, 800, replace=False)] = 25
    value, low, high = stats.corrected_bounds(stats.corrected(judged, read, weights, np.arange(20_000), 20_000))
    # The package tunes as if the labelled turns were not among the others, which matters little with few labels.
    assert value == pytest.approx(0.30732544, abs=1e-3)
    assert (low, high) == pytest.approx((0.27918550, 0.33546539), abs=5e-3)


# --- coverage


def test_corrected_intervals_cover_the_true_rate_with_60_labels_per_run() -> None:
    """1,500 trials each: a standard error of 0.6 points. The three rates of a run have 20 labels each."""
    rng = np.random.default_rng(4)
    pooled, single = [], []
    for rate, kappa, tilt in ((0.02, 0.9, 1.0), (0.1, 0.3, 0.7), (0.1, 0.3, 1.5), (0.6, 0.3, 1.5)):
        made = simulated.trials(1500, [simulated.cell(rate, kappa, tilt)] * 3, rng)
        weights = simulated.draw(made, 60, rng)
        pooled.append(simulated.covered(stats.corrected_bounds(simulated.corrected(made, weights)), rate))
        single.append(simulated.covered(stats.corrected_bounds(simulated.corrected(made, weights, 0)), rate))
    assert min(pooled) >= 0.935 and min(single) >= 0.935, (pooled, single)
    assert np.mean(pooled) >= 0.95 and np.mean(single) >= 0.95


def test_corrected_differences_cover_the_truth_where_the_judge_reverses_it() -> None:
    """The judge finds fewer in the second run, which has more, with another kappa and tilt at each temperature."""
    rng = np.random.default_rng(5)
    before = [simulated.cell(0.06, 0.1, 4.0), simulated.cell(0.2, 0.4, 1.5), simulated.cell(0.15, 0.5)]
    after = [simulated.cell(0.3, 0.3, 0.8), simulated.cell(0.5, 0.4, 0.7), simulated.cell(0.3, 0.5, 1.2)]
    shared = rng.normal(size=(1500, simulated.ITEMS))
    runs = [simulated.trials(1500, cells, rng, 0.4, shared) for cells in (before, after)]
    weights = [simulated.draw(made, 60, rng) for made in runs]
    for cell, truth in ((None, 0.23), (0, 0.24), (1, 0.3), (2, 0.15)):
        parts = [simulated.corrected(made, weight, cell) for made, weight in zip(runs, weights, strict=True)]
        assert simulated.covered(stats.corrected_difference(*parts), pytest.approx(truth).expected) >= 0.935
        true_bias = np.mean([each.judged - each.rate for each in (before if cell is None else [before[cell]])])
        assert simulated.covered(stats.bias_bounds(parts[0]), float(true_bias)) >= 0.935
    seen = runs[1].judged[:, :100].mean() - runs[0].judged[:, :100].mean()
    assert seen < 0.05, "the judge itself sees hardly any of the 24 points"


# --- the command


def genuine(turn: JudgedTurn) -> bool:
    """Return the label of an annotator who now and then disagrees with the judge, by the hash of the turn."""
    return int(turn.turn_sha256[:2], 16) < (100 if turn.judged_genuine else 40)


def label_row(turn: DrawnTurn, **changed: Any) -> dict[str, Any]:
    return {**turn.model_dump(by_alias=True), "label": GENUINE if genuine(turn) else "new_task", **changed}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_models(tmp_path_factory.mktemp("made"))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A training run of three probes whose user turns differ, so that labels can be made up from their texts."""
    return shutil.copytree(made, tmp_path / "sft")


def change_results(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    results = read_json(run / "results.json")
    change(results)
    write_json(run / "results.json", results)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path)]


def write_labels(folder: Path, n: int = 60, **changed: Any) -> list[dict[str, Any]]:
    """Label `n` turns of each run and return the rows of labels.jsonl."""
    rows = [label_row(turn, **changed) for turn in draw(turns_of(folder), n, 0)]
    write_rows(folder / "labels.jsonl", rows)
    return rows


def corrected_of(folder: Path, *paths: Path) -> Correction:
    return correct(load_runs([folder]), list(paths) or [folder / "labels.jsonl"])


def rate_of(correction: Correction, run: str, name: str | None = None, decoding: str | None = None) -> CorrectedRate:
    rate = correction.rate(run, name, decoding)
    assert rate and rate.corrected.ci95 and rate.corrected.value is not None
    return rate


def test_every_judged_rate_and_difference_is_corrected_by_set_temperature_and_pooled(folder: Path) -> None:
    write_labels(folder)
    correction = corrected_of(folder)
    groups = [("maths", "T=0.0"), ("maths", "T=0.7"), ("chat", "T=0.0"), ("maths", None), ("chat", None),
              (None, "T=0.0"), (None, "T=0.7"), (None, None)]  # fmt: skip
    names = ("base", "step-20", "step-40")
    assert [(rate.run, rate.set, rate.temperature) for rate in correction.rates] == [
        (name, *group) for name in names for group in groups
    ]
    assert [(change.run, change.set, change.temperature) for change in correction.differences] == [
        (name, *group) for name in names[1:] for group in groups
    ]
    for run in load_runs([folder]):
        judged = rate_of(correction, run.name, "maths", "T=0.7").judged.value
        assert judged == pytest.approx(run.results.followup["maths"]["none"]["T=0.7"].rate, abs=1e-6)
    drawn_from = [(turn, turn.run, {None, turn.set}, {None, f"T={turn.temperature}"}) for turn in turns_of(folder)]
    for rate in correction.rates:
        turns = [
            turn
            for turn, run_name, sets, temperatures in drawn_from
            if rate.run == run_name and rate.set in sets and rate.temperature in temperatures
        ]
        low, high = rate.corrected.ci95 or (1, 0)
        assert rate.corrected.n == len(turns) and low <= sum(map(genuine, turns)) / len(turns) <= high
        assert rate.bias.value == pytest.approx((rate.judged.value or 0) - (rate.corrected.value or 0))
    base, last = (rate_of(correction, name).corrected.value for name in ("base", "step-40"))
    assert correction.differences[-1].corrected.value == pytest.approx((last or 0) - (base or 0))
    assert sum(rate.labels for rate in correction.rates if rate.run == "base" and rate.set and rate.temperature) == 60


def test_turns_that_the_judge_left_unscored_are_part_of_the_corrected_rate(folder: Path) -> None:
    """If a judge scores only the plain turns, the judged rate says little. The corrected rate is of all turns."""
    run = folder / "probe" / "base"
    before = {turn.key: genuine(turn) for turn in turns_of(run)}  # the hash of a turn does not depend on its verdict
    rows = [
        row for row in rows_of(run / "samples.jsonl") if row["kind"] == "followup" and row["perturbation"] == "none"
    ]
    for turn, row in zip(turns_of(run), rows, strict=True):
        if before[turn.key] and int(turn.turn_sha256[2], 16) % 2:
            row.update(label=None, unscored="unsure")
    write_rows(run / "samples.jsonl", rows)
    turns, truth = turns_of(run), sum(before.values()) / len(before)
    rows = [label_row(turn, label=GENUINE if before[turn.key] else "new_task") for turn in draw(turns, 100, 0)]
    correction = corrected_of(run, write_rows(folder / "labels.jsonl", rows))
    rate = rate_of(correction, "base")
    low, high = rate.corrected.ci95 or (1, 0)
    assert rate.corrected.n == len(turns) > rate.judged.n and low <= truth <= high
    assert rate.corrected.value == pytest.approx(truth, abs=0.06)
    unscored = len(turns) - rate.judged.n
    assert unscored > 0
    assert f"{unscored} of {len(turns)} turns are unscored" in command.correction_table(correction)
    # Older labels hold no unscored turns, of which then any share may be genuine.
    old = [row for row in rows if row["stratum"]["judged_genuine"] is not None]
    low, high = rate_of(corrected_of(run, write_rows(folder / "labels.jsonl", old)), "base").corrected.ci95 or (1, 0)
    assert low <= truth <= high and high - low > unscored / len(turns)


def test_a_verdict_without_labels_makes_the_interval_wide(folder: Path) -> None:
    """Nothing is known of the turns that the judge calls genuine, so they may all be, or none."""
    rows = [row for row in write_labels(folder, 120) if not row["stratum"]["judged_genuine"]]
    rate = rate_of(corrected_of(folder / "probe" / "step-40", write_rows(folder / "labels.jsonl", rows)), "step-40")
    low, high = rate.corrected.ci95 or (0, 0)
    assert high - low > 0.7 and (rate.judged.value or 0) > 0.7


def test_differences_are_pooled_over_the_same_turns_alone(folder: Path) -> None:
    """A run that was probed at T=0 alone differs from the others by its temperatures where all are pooled."""
    run = folder / "probe" / "step-20"
    rows = [row for row in rows_of(run / "samples.jsonl") if row["temperature"] == 0 and row["item"] != "item-0"]
    write_rows(run / "samples.jsonl", rows)
    change_results(run, lambda results: results["followup"]["maths"]["none"].pop("T=0.7"))
    for other in ("base", "step-20", "step-40"):
        change_results(folder / "probe" / other, lambda results: results["settings"].pop("temperatures"))
    write_labels(folder)
    correction = corrected_of(folder)
    groups: dict[str, list[Any]] = {"step-20": [], "step-40": []}
    for change in correction.differences:
        groups[change.run].append((change.set, change.temperature))
    assert groups["step-20"] == [("maths", "T=0.0"), ("chat", "T=0.0")]
    assert [change.corrected.n for change in correction.differences[:2]] == [59, 29], "items that both runs have"
    assert {(None, None), ("maths", None)} < set(groups["step-40"])
    assert rate_of(correction, "step-20"), "its own rate is kept"


@pytest.mark.parametrize("without", ["base", "step-40"])
def test_differences_are_pooled_over_the_sets_alone_that_both_runs_have_labels_on(folder: Path, without: str) -> None:
    """Both runs say the same, and nobody labelled one of them on chat."""
    shutil.copytree(folder / "probe" / "base", folder / "probe" / "step-40", dirs_exist_ok=True)
    change_results(folder / "probe" / "step-40", lambda results: results["model"].update(weights_sha256="c" * 64))
    runs = load_runs([folder / "probe" / name for name in ("base", "step-40")])
    turns = {name: user_turns(run) for name, run in zip(("base", "step-40"), runs, strict=True)}
    drawn = [(name, turn) for name, of_run in turns.items() for turn in draw(of_run, 150, 0)]
    rows = [label_row(turn) for name, turn in drawn if (name, turn.set) != (without, "chat")]
    labels = {label.key: label for label in map(Label.model_validate, rows)}
    changes = command.correction_of(turns, labels, []).differences
    assert [(change.set, change.temperature) for change in changes] == [("maths", "T=0.0"), ("maths", "T=0.7")]
    assert all(change.corrected.value == pytest.approx(0, abs=0.05) for change in changes)


def test_labels_of_turns_that_two_runs_share_count_for_both(folder: Path, tmp_path: Path) -> None:
    """With the same weights and another seed, greedy turns are the same, and some of the others."""
    base, other = folder / "probe" / "base", tmp_path / "other_seed"
    rows = rows_of(base / "samples.jsonl")
    for number, row in enumerate(rows):
        if row["kind"] == "followup" and row["temperature"] == 0.7 and number % 5:
            row["user_turn"] = f"Something else {number}?"
    write_rows(other / "samples.jsonl", rows)
    write_json(other / "results.json", read_json(base / "results.json"))
    drawn = {turn.key: label_row(turn) for turn in draw(turns_of(base, other), 60, 0)}
    path = write_rows(tmp_path / "labels.jsonl", list(drawn.values()))
    counts = correct(load_runs([base, other]), [path]).labels
    assert all(60 <= count < 90 for count in counts.values()) and sum(counts.values()) > len(drawn)


def test_labels_drawn_by_one_judge_correct_the_rates_of_another(folder: Path, tmp_path: Path) -> None:
    """Weighting by the inverse chance of the draw removes the first judge's influence."""
    write_labels(folder, 120)
    base, other = folder / "probe" / "base", tmp_path / "rejudged"
    rows = rows_of(base / "samples.jsonl")
    for number, row in enumerate(rows):
        if row["label"] is not None:
            row["label"] = GENUINE if number % 3 else "new_task"
    write_rows(other / "samples.jsonl", rows)
    write_json(other / "results.json", read_json(base / "results.json"))
    change_results(other, lambda results: results["settings"].update(judge="another/1"))
    again = rate_of(corrected_of(other, folder / "labels.jsonl"), "base")
    first = rate_of(corrected_of(base, folder / "labels.jsonl"), "base")
    assert again.judged.value != first.judged.value
    assert again.corrected.value == pytest.approx(first.corrected.value, abs=0.08)


def test_the_command_prints_and_writes_the_correction(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_labels(folder, sure=False)
    main(["correct", str(folder), "--out", str(folder / "out")])
    printed = capsys.readouterr().out
    assert "180 labels (base 60, step-20 60, step-40 60; 180 unsure; strict, an unknown annotator)" in printed
    intervals = r" +[\d.]+ \[.*\] +[\d.]+ \[.*\] +0\.0 \[.*\]" + 3 * r" +[+-][\d.]+ \[.*\]"
    assert re.search(rf"maths  T=0\.7 +step-40 +\d+ +\d+{intervals}", printed)
    written = read_json(folder / "out" / "corrected.json")
    assert written["schema"] == 1 and set(written) == {
        "schema",
        "files",
        "labels",
        "unsure",
        "rates",
        "differences",
        "made_by",
        "left_out",
    }
    assert set(written["rates"][0]) == {"run", "set", "temperature", "labels", "judged", "corrected", "bias", "sure"}
    assert set(written["rates"][0]["corrected"]) == {"value", "ci95", "n"}
    main(["correct", str(folder / "probe" / "step-20"), "--labels", str(folder / "labels.jsonl")])
    assert "60 labels (step-20 60" in capsys.readouterr().out, "labels of other models are left out"
    (folder / "labels.jsonl").unlink()
    with pytest.raises(BadInput, match="--labels"):
        main(["correct", str(folder)])


def test_a_text_that_comes_many_times_counts_once_in_the_interval(folder: Path) -> None:
    """Labels of one text are one reading, on whatever items the text stands."""
    run = folder / "probe" / "base"
    rows = rows_of(run / "samples.jsonl")
    widths = []
    for texts in (10_000, 4):
        for number, row in enumerate(row for row in rows if row["kind"] == "followup"):
            row["user_turn"] = f"Why is that {number % texts}?"
        write_rows(run / "samples.jsonl", rows)
        turns = draw(turns_of(run), 60, 0)
        words = sorted({turn.user_turn for turn in turns})
        labels = {text: (GENUINE, "new_task")[place % 4 == 0] for place, text in enumerate(words)}
        path = write_rows(folder / "labels.jsonl", [label_row(turn, label=labels[turn.user_turn]) for turn in turns])
        rate = rate_of(corrected_of(run, path), "base").corrected
        assert rate.ci95 and rate.value == pytest.approx(0.75, abs=0.1)
        widths.append(rate.ci95[1] - rate.ci95[0])
    assert widths[1] > 2 * widths[0]


def test_a_second_column_counts_the_labels_alone_of_which_the_annotator_was_sure(folder: Path) -> None:
    rows = write_labels(folder, 60)
    for row in rows:
        row["sure"] = row["label"] != GENUINE or row["run"] != "base"
    correction = corrected_of(folder, write_rows(folder / "labels.jsonl", rows))
    assert all(rate.sure == rate.corrected or rate.run == "base" for rate in correction.rates)
    of_base = rate_of(correction, "base")
    assert (of_base.sure.value or 0) < (of_base.corrected.value or 0) - 0.05


@pytest.mark.parametrize(
    ("changed", "refused", "forced"),
    [
        ({"definition": "loose"}, "loose and the strict", False),
        ({"annotator": {"name": "bo", "kind": "person"}}, "several annotators", True),
        ({"annotator": {"name": "bo", "kind": "model"}}, "several annotators", True),
    ],
)
def test_labels_of_unlike_kinds_are_not_subtracted(
    changed: dict[str, Any], refused: str, forced: bool, folder: Path
) -> None:
    """Three annotators found 8, 12 and 28% of the same turns genuine."""
    rows = [{**row, **(changed if row["run"] == "step-40" else {})} for row in write_labels(folder)]
    path, runs = write_rows(folder / "labels.jsonl", rows), load_runs([folder])
    with pytest.raises(IncomparableRuns, match=refused):
        correct(runs, [path])
    assert with_labels(compare_runs(runs), [folder], None).correction is None
    if not forced:
        with pytest.raises(IncomparableRuns, match=refused):
            correct(runs, [path], force=True)
    else:
        comparison = with_labels(compare_runs(runs), [folder], path, force=True)
        assert comparison.correction and len(comparison.correction.made_by) == 2
        assert "bo (" in markdown(comparison, has_plot=False) and "bo (" in html(comparison)
    of_one = corrected_of(folder / "probe" / "step-40", path)
    assert len(of_one.made_by) == 1 and of_one.rates


def test_agreement_reads_labels_too_and_says_that_they_were_drawn_unevenly(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_labels(folder)
    main(["agreement", str(folder / "labels.jsonl"), "--by", "run,temperature"])
    printed = capsys.readouterr().out
    assert ": 180 turns" in printed and "step-40  0.7" in printed and agreement.DRAWN in printed


def test_labels_that_cannot_correct_a_rate_are_refused(folder: Path) -> None:
    good = write_labels(folder)
    of_base = [row for row in good if row["run"] == "base"]
    others = [row for row in good if row["run"] != "base"]
    path = folder / "labels.jsonl"
    assert corrected_of(folder, write_rows(path, [*others, *of_base[:20]])).labels["base"] == 20, "20 labels are enough"
    without = corrected_of(folder, write_rows(path, [*others, *(row for row in of_base if row["set"] != "chat")]))
    assert {name.split(" at ")[0] for name in without.left_out} == {"base on chat"}
    assert {rate.set for rate in without.rates if rate.run == "base"} == {"maths", None}
    for rows, problem in (
        ([*others, *of_base[:19]], "base: 19 labels, expected at least 20"),
        ([*good, good[0]], "labels.jsonl:181: a second label"),
        ([{**good[0], "item": "item-999"}, *good], "no user turn"),
        ([{**good[0], "turn_sha256": "0"}, *good[1:]], "another text"),
        ([{**row, "weights_sha256": "0"} for row in of_base], "no label is for a user turn of base, step-20, step-40"),
        ([{**of_base[0], "judge": "rules/9"}, *of_base[1:]], "rules/1 and rules/9"),
    ):
        with pytest.raises(BadInput, match=problem):
            corrected_of(folder, write_rows(path, rows))
    with pytest.raises(BadInput, match=r"more.jsonl: a label .* which .*labels.jsonl labels too"):
        corrected_of(folder, write_rows(path, good), write_rows(folder / "more.jsonl", good[:1]))
    change_results(folder / "probe" / "step-20", lambda results: results["settings"].update(system_prompt="Be brief."))
    with pytest.raises(IncomparableRuns, match="system_prompt"):
        corrected_of(folder)


# --- in a comparison


def test_compare_shows_corrected_rates_next_to_the_judges_and_draws_them(folder: Path) -> None:
    before = compare_runs(load_runs([folder]))
    assert with_labels(before, [folder], None) == before, "without labels as judged"
    assert "orrected by" not in markdown(before, has_plot=True) + html(before)
    write_labels(folder)
    comparison = compare([folder], folder / "after")
    assert comparison.correction and comparison.all_corrected
    write_json(folder / "before.json", as_json(before))
    old, new = (read_json(folder / name) for name in ("before.json", "after/comparison.json"))
    assert (old.pop("as_judged"), new["as_judged"]) == (["step-20", "step-40"], [])
    assert old.pop("patterns") != new.pop("patterns"), "patterns use the corrected rates"
    assert old.pop("best_by_chance") != new.pop("best_by_chance"), "so does what the best of two shows by chance"
    assert (old["correction"], old["warnings"]) == (None, [])
    assert {**old, "correction": new["correction"], "as_judged": []} == new, "nothing else changes"
    assert new["correction"]["labels"] == {"base": 60, "step-20": 60, "step-40": 60}
    page = (folder / "after" / "comparison.md").read_text()
    rate = rate_of(comparison.correction, "step-40", "maths", "T=0.7")
    assert all(f"| {100 * (shown.value or 0):.1f} [" in page for shown in (rate.judged, rate.corrected))
    report = (folder / "after" / "report.html").read_text(encoding="utf-8")
    assert "180 labels (base 60" in report and "180 labels (base 60" in page
    assert data_of(report)["runs"] == ["base", "step-20", "step-40"]
    drawn, drawn_before = (
        [point.y for point in {panel.set: panel for panel in panels_of(each)}["maths"].points["T=0.7"]]
        for each in (comparison, before)
    )
    names = comparison.names
    assert drawn == [rate_of(comparison.correction, name, "maths", "T=0.7").corrected for name in names] != drawn_before


def test_patterns_are_corrected_for_runs_with_labels_and_drawings_only_if_all_runs_have_them(folder: Path) -> None:
    rows = [row for row in write_labels(folder, label="new_task") if row["run"] != "step-20"]
    write_rows(folder / "labels.jsonl", rows)
    before = compare_runs(load_runs([folder]))
    comparison = with_labels(before, [folder], None)
    metric = Metric("followup", "maths", "rate", "T=0.7")
    points = {panel.set: panel for panel in panels_of(comparison)}["maths"].points["T=0.7"]
    assert comparison.correction and points[2].y == comparison.estimate("step-40", metric)
    assert comparison.correction.labels == {"base": 60, "step-20": 0, "step-40": 60}
    assert {rate.run for rate in comparison.correction.rates} == {"base", "step-40"}
    assert "no labels: step-20" in command.correction_table(comparison.correction)
    printed = terminal_table(comparison)
    assert re.search(r"step-40 \w+ \(by labels\)", printed) and not re.search(r"pattern of .*step-20", printed)
    assert comparison.as_judged == ["step-20"] and "step-20" in markdown(comparison, has_plot=True)
    for name, patterns in comparison.patterns.items():
        assert patterns["step-20"] == before.patterns[name]["step-20"]
        assert patterns["step-40"].greedy == rate_of(comparison.correction, "step-40", name, "T=0.0").corrected
        assert patterns["step-40"].greedy != before.patterns[name]["step-40"].greedy


@pytest.mark.parametrize(
    "is_left_out", [lambda row: row["set"] == "chat", lambda row: row["set"] == "maths" and row["temperature"] > 0]
)
def test_a_set_without_all_labels_is_shown_as_judged(folder: Path, is_left_out: Callable[[Any], bool]) -> None:
    for run in ("base", "step-20", "step-40"):
        change_results(folder / "probe" / run, lambda results: results["settings"].update(judge="rules/3"))
    every = [row for row in write_labels(folder) if row["run"] != "step-20"]
    write_rows(folder / "labels.jsonl", [row for row in every if not is_left_out(row)])
    comparison = with_labels(compare_runs(load_runs([folder])), [folder], None)
    assert comparison.correction and comparison.correction.left_out and not comparison.all_corrected
    (left,) = {row["set"] for row in every if is_left_out(row)}
    needs = {(run, name) for name, of in comparison.patterns.items() for run, of_run in of.items()
             if of_run.name == NEEDS_LABELS}  # fmt: skip
    assert needs == {("base", left), ("step-40", left), ("step-20", "maths"), ("step-20", "chat")}
    assert {run for run in ("base", "step-40") if comparison.is_labelled(run, left)} == set()
    assert all(comparison.is_labelled(run, name) for name in {"maths", "chat"} - {left} for run in ("base", "step-40"))


def test_a_rate_that_labels_correct_has_its_arrow_at_the_corrected_change(folder: Path) -> None:
    """The annotator calls the turns of step-40 alone genuine."""
    labels = write_labels(folder)
    rows = [{**row, "label": GENUINE if row["run"] == "step-40" else "new_task"} for row in labels]
    write_rows(folder / "labels.jsonl", rows)
    before = compare_runs(load_runs([folder]))
    comparison = with_labels(before, [folder], None)
    judged, corrected = ([bool(mark(each, figure, 1.0)) for figure in each.main] for each in (before, comparison))
    turns = [figure.metric.measure == "followup" for figure in comparison.main]
    assert any(marked and of_turns for marked, of_turns in zip(judged, turns, strict=True))
    assert corrected == [marked and not of_turns for marked, of_turns in zip(judged, turns, strict=True)]
    [section] = [each for each in sections(comparison) if each.id == "correction"]
    table = section.blocks[0]
    assert isinstance(table, Table)
    risen = [row[0][0].text for row in table.rows if any(part.look == "up" for cell in row for part in cell)]
    assert set(risen) == {"step-40"}


@pytest.mark.parametrize("run", ["base", "step-20"])
@pytest.mark.parametrize("lacks", ["followup", "samples", "verdicts"])
def test_a_run_without_judged_user_turns_leaves_the_others_corrected(folder: Path, run: str, lacks: str) -> None:
    path = write_rows(folder / "labels.jsonl", [row for row in write_labels(folder) if row["run"] != run])
    probe = folder / "probe" / run
    rows = [row for row in rows_of(probe / "samples.jsonl") if row["kind"] != "followup" or lacks == "verdicts"]
    write_rows(probe / "samples.jsonl", [{**row, "label": None} if row["kind"] == "followup" else row for row in rows])
    change_results(probe, lambda results: results.update(followup={}))
    if lacks == "samples":
        (probe / "samples.jsonl").unlink()
    comparison = with_labels(compare_runs(load_runs([folder])), [folder], path)
    correction = comparison.correction
    assert correction and correction == corrected_of(folder) and correction.labels[run] == 0
    assert {rate.run for rate in correction.rates} == {"base", "step-20", "step-40"} - {run}
    assert {change.run for change in correction.differences} == (set() if run == "base" else {"step-40"})
    assert f"no labels: {run}" in command.correction_table(correction)
    assert "corrected" in markdown(comparison, has_plot=True) and terminal_table(comparison)


def test_too_few_labels_are_a_warning_unless_their_file_was_given(folder: Path) -> None:
    path = write_rows(folder / "labels.jsonl", write_labels(folder)[:30])
    comparison = with_labels(compare_runs(load_runs([folder])), [folder], None)
    assert comparison.correction is None
    assert any("not corrected: base: 1" in warning for warning in comparison.warnings)
    with pytest.raises(BadInput, match="expected at least 20"):
        with_labels(compare_runs(load_runs([folder])), [folder], path)
