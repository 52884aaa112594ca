"""Rates corrected by labels: what is computed, that its intervals hold the truth, what is refused, and what compare shows."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nextturn.probe import stats
from nextturn.probe.errors import BadInput, IncomparableRuns
from nextturn.probe.files import read_json, read_jsonl, sha256_text, write_json
from nextturn.probe.judges.labels import GENUINE
from nextturn.probe.labels import agreement
from nextturn.probe.labels import correct as command
from nextturn.probe.labels.correct import asked, correct, with_labels
from nextturn.probe.labels.label import Turn, draw, row_of, user_turns
from nextturn.probe.measure.results import Metric, load_runs
from nextturn.probe.report.compare import compare
from nextturn.probe.report.comparison import Correction, as_json, compare_runs
from nextturn.probe.report.page import html, markdown
from nextturn.probe.report.plot import panels_of
from support import corrected_trials as simulated
from support.page_runs import data_of
from support.page_runs import three_runs as runs_with_text

# --- the estimate


def one_rate(judged: Sequence[int], read: Sequence[int], labelled: Sequence[int]) -> stats.Corrected:
    """A turn an item; those labelled with weights as for a stratum each of genuine and other."""
    verdicts, labels = np.array(judged, bool), np.array(labelled, bool)
    weights = np.zeros(len(judged))
    for verdict in (True, False):
        chosen = labels & (verdicts == verdict)
        weights[chosen] = (verdicts == verdict).sum() / max(chosen.sum(), 1)
    return stats.corrected(verdicts, np.array(read, float), weights, np.arange(len(judged)), len(judged))


def test_a_rate_worked_by_hand() -> None:
    # The judge calls 40 of 100 genuine. Of ten of these that are read 5 are, of ten others 1.
    judged = [1] * 40 + [0] * 60
    read = [1] * 5 + [0] * 35 + [1] + [0] * 59
    labelled = [1] * 10 + [0] * 30 + [1] * 10 + [0] * 50
    found = one_rate(judged, read, labelled)
    value, low, high = stats.corrected_bounds(found)
    assert value == pytest.approx(0.4 * 0.5 + 0.6 * 0.1)
    # Wilson's bounds with Student's quantile for 20 labels, 2.093: 0.5 [0.220, 0.780] and 0.1 [0.016, 0.437], put together
    # by their distances to the rates, beside 0.4 * 0.6 * 0.4^2 / 99 for which turns came to be judged so.
    spread = 2.093**2 * 0.4 * 0.6 * 0.4**2 / 99
    below = (0.4 * (0.5 - 0.2202)) ** 2 + (0.6 * (0.1 - 0.0163)) ** 2
    above = (0.4 * (0.7798 - 0.5)) ** 2 + (0.6 * (0.4242 - 0.1)) ** 2
    assert low == pytest.approx(0.26 - (below + spread) ** 0.5, abs=2e-3)
    assert high == pytest.approx(0.26 + (above + spread) ** 0.5, abs=2e-3)
    bias, least, most = stats.bias_bounds(found)
    assert bias == pytest.approx(0.4 - 0.26) and least < 0.14 < most


def test_labels_of_all_turns_give_the_readers_own_rate_whatever_the_judge_says() -> None:
    rng = np.random.default_rng(0)
    read = (rng.random(200) < 0.3).astype(int)
    for judged in (rng.random(200) < 0.5, read, 1 - read, np.zeros(200), np.ones(200)):
        value, low, high = stats.corrected_bounds(one_rate(list(judged), list(read), [1] * 200))
        assert value == pytest.approx(read.mean())
        assert high - low == pytest.approx(0.126, abs=0.02), "as wide as Wilson's for 200 readings"


# What ppi-python 0.2.3 (ppi_mean_pointestimate and ppi_mean_ci at 95%, which has no small-sample remedy, no clusters and
# brings numba, statsmodels and scikit-learn) gives for the turns of `large_sample`.
PPI = {"equal": (0.30732544, 0.27918550, 0.33546539), "stratified": (0.29238292, 0.25751917, 0.32724666)}


def large_sample() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Judged, read and weights of 20,000 turns; 800 labels as likely as each other, then 300 and 200 by verdict."""
    rng = np.random.default_rng(3)
    judged = rng.random(20_000) < 0.35
    read = np.where(judged, rng.random(20_000) < 0.6, rng.random(20_000) < 0.12).astype(float)
    equal, stratified = np.zeros(20_000), np.zeros(20_000)
    equal[rng.choice(20_000, 800, replace=False)] = 25
    for verdict, count in ((True, 300), (False, 200)):
        turns = np.flatnonzero(judged == verdict)
        stratified[rng.choice(turns, count, replace=False)] = len(turns) / count
    return {"equal": (judged, read, equal), "stratified": (judged, read, stratified)}


@pytest.mark.parametrize("name", list(PPI))
def test_many_labels_give_what_the_methods_own_package_gives(name: str) -> None:
    judged, read, weights = large_sample()[name]
    value, low, high = stats.corrected_bounds(stats.corrected(judged, read, weights, np.arange(20_000), 20_000))
    at, least, most = PPI[name]
    # The package tunes as if the labelled turns were not among the others; with few of them labelled that is little.
    assert value == pytest.approx(at, abs=1e-3)
    assert (low, high) == pytest.approx((least, most), abs=5e-3)


# --- the intervals hold the truth

RATES = (0.02, 0.1, 0.6)
KAPPAS = (0.3, 0.9)


def test_with_60_labels_a_run_corrected_intervals_hold_the_truth() -> None:
    """3,000 trials each: a standard error of 0.4 points. The three rates of a run have 20 labels each."""
    rng = np.random.default_rng(4)
    pooled, single = [], []
    for kappa in KAPPAS:
        for rate in RATES:
            for tilt in (0.7, 1.5) if kappa < 0.6 else (1.0,):
                made = simulated.trials(3000, [simulated.cell(rate, kappa, tilt)] * 3, rng)
                weights = simulated.draw(made, 60, rng)
                pooled.append(simulated.covered(stats.corrected_bounds(simulated.corrected(made, weights)), rate))
                single.append(simulated.covered(stats.corrected_bounds(simulated.corrected(made, weights, 0)), rate))
    assert min(pooled) >= 0.935 and min(single) >= 0.935, (pooled, single)
    assert np.mean(pooled) >= 0.95 and np.mean(single) >= 0.95


def test_corrected_differences_hold_the_truth_where_the_judges_own_are_turned_round() -> None:
    """A judge that sees less in the second run, which has more: at each temperature another kappa and tilt."""
    rng = np.random.default_rng(5)
    before = [simulated.cell(0.06, 0.1, 4.0), simulated.cell(0.2, 0.4, 1.5), simulated.cell(0.15, 0.5)]
    after = [simulated.cell(0.3, 0.3, 0.8), simulated.cell(0.5, 0.4, 0.7), simulated.cell(0.3, 0.5, 1.2)]
    shared = rng.normal(size=(1500, simulated.ITEMS))
    runs = [simulated.trials(1500, cells, rng, 0.4, shared) for cells in (before, after)]
    weights = [simulated.draw(made, 60, rng) for made in runs]
    for place, truth in ((None, 0.23), (0, 0.24), (1, 0.3), (2, 0.15)):
        parts = [simulated.corrected(made, weight, place) for made, weight in zip(runs, weights, strict=True)]
        assert simulated.covered(stats.corrected_difference(*parts), pytest.approx(truth).expected) >= 0.935
        true_bias = np.mean([one.judged - one.rate for one in (before if place is None else [before[place]])])
        assert simulated.covered(stats.bias_bounds(parts[0]), float(true_bias)) >= 0.935
    seen = runs[1].judged[:, :100].mean() - runs[0].judged[:, :100].mean()
    assert seen < 0.05, "the judge itself sees hardly any of the 24 points"


# --- the command


def genuine(turn: Turn) -> bool:
    """A reader who says something else than the judge now and then, and follows the item."""
    return (int(turn.turn_sha256[:2], 16) < 100) if turn.genuine else int(turn.turn_sha256[:2], 16) < 40


def label_row(one: Any, **changed: Any) -> dict[str, Any]:
    return {**row_of(one), "label": GENUINE if genuine(one.turn) else "new_task", **changed}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A training run of three probes whose user turns differ, so that a reader can be made up from their texts."""
    for run in runs_with_text(tmp_path).runs:
        results = read_json(run.folder / "results.json")
        results["model"]["weights_sha256"] = sha256_text(run.name)
        results["settings"]["temperatures"] = [0.0, 0.7]
        write_json(run.folder / "results.json", results)
    return tmp_path / "sft"


def turns_of(folder: Path) -> list[Turn]:
    return [turn for one in load_runs([folder]) for turn in user_turns(one)]


def labels_for(folder: Path, n: int = 60, path: Path | None = None, **changed: Any) -> Path:
    path = path or folder / "labels.jsonl"
    write_rows(path, [label_row(one, **changed) for one in draw(turns_of(folder), n, 0)])
    return path


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path)]


def corrected_of(folder: Path, *paths: Path) -> Correction:
    return correct(load_runs([folder]), list(paths) or [folder / "labels.jsonl"])


def test_every_judged_rate_and_difference_is_corrected_by_set_temperature_and_pooled(folder: Path) -> None:
    labels_for(folder)
    found = corrected_of(folder)
    places = [("maths", "T=0.0"), ("maths", "T=0.7"), ("chat", "T=0.0"), ("maths", None), ("chat", None),
              (None, "T=0.0"), (None, "T=0.7"), (None, None)]  # fmt: skip
    for name in ("base", "step-20", "step-40"):
        assert [(one.set, one.temperature) for one in found.rates if one.run == name] == places
        results = next(run for run in load_runs([folder]) if run.name == name).results
        judged = found.rate(name, "maths", "T=0.7")
        assert judged and judged.judged.value == pytest.approx(
            results.followup["maths"]["none"]["T=0.7"].rate, abs=1e-6
        )
    assert [(one.run, one.set, one.temperature) for one in found.differences] == [
        (name, *place) for name in ("step-20", "step-40") for place in places
    ]
    for one in found.rates:
        turns = [
            turn
            for turn in turns_of(folder)
            if (turn.run, one.set or turn.set, one.temperature or f"T={turn.temperature}")
            == (one.run, turn.set, f"T={turn.temperature}")
        ]
        truth = sum(map(genuine, turns)) / len(turns)
        assert one.corrected.n == len(turns) and one.corrected.ci95 and one.corrected.value is not None
        assert one.corrected.ci95[0] <= truth <= one.corrected.ci95[1], (one, truth)
        assert one.bias.value == pytest.approx((one.judged.value or 0) - one.corrected.value)
    base, last = (found.rate(name, None, None) for name in ("base", "step-40"))
    change = found.differences[-1].corrected
    assert base and last and change.value == pytest.approx((last.corrected.value or 0) - (base.corrected.value or 0))
    assert (
        sum(one.labels for one in found.rates if one.run == "base" and one.set and one.temperature),
        base.labels,
    ) == (60, 60)


def test_over_many_draws_the_corrected_rates_are_right_on_average(folder: Path) -> None:
    """From the draw through the file to the figure: on 100 draws of 40 labels of one run."""
    run = [one for one in load_runs([folder]) if one.name == "step-20"]
    turns = user_turns(run[0])
    truth = sum(map(genuine, turns)) / len(turns)
    scored = [turn for turn in turns if turn.genuine is not None]
    values, judged = [], sum(bool(turn.genuine) for turn in scored) / len(scored)
    path = folder / "drawn.jsonl"
    for seed in range(100):
        write_rows(path, [label_row(one) for one in draw(turns, 40, seed)])
        rate = correct(run, [path]).rate("step-20", None, None)
        assert rate and rate.corrected.value is not None
        values.append(rate.corrected.value)
    assert abs(np.mean(values) - truth) < 3 * np.std(values) / 10 < abs(judged - truth)


def left_unscored(folder: Path) -> tuple[Path, list[Turn]]:
    """The base's run with every other turn that a reader calls genuine left unscored by its judge; and its turns."""
    run = folder / "probe" / "base"
    before = {asked(turn): turn for turn in turns_of(folder) if turn.run == "base"}
    rows = rows_of(run / "samples.jsonl")
    for place, row in enumerate(rows):
        if row["kind"] == "followup" and row["perturbation"] == "none":
            turn = before[row["set"], row["item"], row["temperature"], row["sample"]]
            if genuine(turn) and place % 2:
                row.update(label=None, unscored="unsure")
    write_rows(run / "samples.jsonl", rows)
    return run, list(before.values())


def test_turns_that_the_judge_left_unscored_are_part_of_the_corrected_rate(folder: Path) -> None:
    """Of a judge that scores what is plain the judged rate says little, and the corrected one is of all turns."""
    run, turns = left_unscored(folder)
    truth = sum(map(genuine, turns)) / len(turns)
    readers = {asked(turn): GENUINE if genuine(turn) else "new_task" for turn in turns}
    drawn = draw(user_turns(load_runs([run])[0]), 100, 0)
    labels = [{**row_of(one), "label": readers[asked(one.turn)]} for one in drawn]
    found = correct(load_runs([run]), [write_rows(folder / "labels.jsonl", labels)])
    rate = found.rate("base", None, None)
    assert rate and rate.corrected.ci95 and rate.corrected.value is not None
    assert rate.corrected.n == len(turns) > rate.judged.n
    assert rate.corrected.value == pytest.approx(truth, abs=0.06)
    assert rate.corrected.ci95[0] <= truth <= rate.corrected.ci95[1]
    assert rate.bias.value == pytest.approx((rate.judged.value or 0) - rate.corrected.value)
    unscored = len(turns) - rate.judged.n
    assert f"{unscored} of {len(turns)} turns were left unscored" in command.correction_table(found)

    # Labels that were drawn before such turns were say nothing of them: any share of these may be genuine.
    old = [row for row in labels if row["stratum"]["judged_genuine"] is not None]
    rate = correct(load_runs([run]), [write_rows(folder / "labels.jsonl", old)]).rate("base", None, None)
    assert rate and rate.corrected.ci95 and rate.corrected.ci95[0] <= truth <= rate.corrected.ci95[1]
    assert rate.corrected.ci95[1] - rate.corrected.ci95[0] > unscored / len(turns)


def test_differences_are_pooled_over_the_same_turns_alone(folder: Path) -> None:
    """A run that was probed at T=0 alone differs from the others by its temperatures where all are taken together."""
    run = folder / "probe" / "step-20"
    rows = [row for row in rows_of(run / "samples.jsonl") if row["temperature"] == 0]
    write_rows(run / "samples.jsonl", rows)
    results = read_json(run / "results.json")
    results["settings"]["temperatures"] = [0.0]
    del results["followup"]["maths"]["none"]["T=0.7"]
    write_json(run / "results.json", results)
    labels_for(folder)
    found = corrected_of(folder)
    places = {
        name: [(one.set, one.temperature) for one in found.differences if one.run == name] for name in found.labels
    }
    assert places["step-20"] == [("maths", "T=0.0"), ("chat", "T=0.0")]
    assert (None, None) in places["step-40"] and ("maths", None) in places["step-40"]
    assert found.rate("step-20", None, None), "its own rate stands"


def test_runs_that_were_measured_differently_are_refused_as_compare_does(folder: Path) -> None:
    labels_for(folder)
    results = read_json(folder / "probe" / "step-20" / "results.json")
    results["settings"]["system_prompt"] = "Be brief."
    write_json(folder / "probe" / "step-20" / "results.json", results)
    with pytest.raises(IncomparableRuns, match=r"measured differently: system_prompt: .*or correct each by itself"):
        corrected_of(folder)


def test_labels_of_turns_that_two_runs_share_count_for_both(folder: Path, tmp_path: Path) -> None:
    """The same weights with another seed: greedy turns are the same, and a few of the others."""
    run = load_runs([folder / "probe" / "base"])[0]
    other = tmp_path / "other_seed"
    other.mkdir()
    rows = rows_of(run.folder / "samples.jsonl")
    for place, row in enumerate(rows):
        if row["kind"] == "followup" and row["temperature"] == 0.7 and place % 5:
            row["user_turn"] = f"Something else {place}?"
    write_rows(other / "samples.jsonl", rows)
    write_json(other / "results.json", read_json(run.folder / "results.json"))
    turns = [turn for one in load_runs([run.folder, other]) for turn in user_turns(one)]
    drawn = {one.turn.place: one for one in draw(turns, 60, 0)}
    found = correct(
        load_runs([run.folder, other]), [write_rows(tmp_path / "l.jsonl", list(map(label_row, drawn.values())))]
    )
    assert all(60 <= count < 90 for count in found.labels.values()) and sum(found.labels.values()) > len(drawn)


def test_labels_drawn_by_one_judge_correct_the_rates_of_another(folder: Path, tmp_path: Path) -> None:
    """Inverse chances of the draw undo what the first judge had to do with it."""
    labels_for(folder, 120)
    run = load_runs([folder])[0]
    other = tmp_path / "rejudged"
    rows = rows_of(run.folder / "samples.jsonl")
    for place, row in enumerate(rows):
        if row["label"] is not None:
            row["label"] = GENUINE if place % 3 else "new_task"
    other.mkdir()
    write_rows(other / "samples.jsonl", rows)
    results = read_json(run.folder / "results.json")
    results["settings"]["judge"] = "another/1"
    write_json(other / "results.json", results)
    again = correct(load_runs([other]), [folder / "labels.jsonl"]).rate("base", None, None)
    first = corrected_of(folder).rate("base", None, None)
    assert again and first and again.judged.value != first.judged.value
    assert again.corrected.value == pytest.approx(first.corrected.value, abs=0.08)
    rows = rows_of(folder / "labels.jsonl")
    base = next(place for place, row in enumerate(rows) if row["run"] == "base")
    rows[base]["stratum"]["of"] = 1
    with pytest.raises(BadInput, match=r"base: labels of .* drawn from \d+ and \d+ turns, wanted those of one draw"):
        correct(load_runs([other]), [write_rows(folder / "labels.jsonl", rows)])


def test_the_command_prints_and_writes_what_it_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels_for(folder, sure=False)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args([str(folder), "--out", str(folder / "out")]))
    printed = capsys.readouterr().out
    assert "corrected by 180 labels (base 60, step-20 60, step-40 60; 180 unsure)" in printed
    assert re.search(r"maths  T=0\.7 +step-40 +\d+ +\d+ +[\d.]+ \[.*\] +[\d.]+ \[.*\] +[+-][\d.]+ \[", printed)
    written = read_json(folder / "out" / "corrected.json")
    assert list(written) == ["schema", "files", "labels", "unsure", "rates", "differences"]
    assert list(written["rates"][0]) == ["run", "set", "temperature", "labels", "judged", "corrected", "bias"]
    assert list(written["rates"][0]["corrected"]) == ["value", "ci95", "n"]
    command.run(parser.parse_args([str(folder / "probe" / "step-20"), "--labels", str(folder / "labels.jsonl")]))
    assert "corrected by 60 labels (step-20 60" in capsys.readouterr().out, "labels of other models are left out"
    (folder / "labels.jsonl").unlink()
    with pytest.raises(BadInput, match="no labels.jsonl in .*sft, and --labels names no file"):
        command.run(parser.parse_args([str(folder)]))


def test_agreement_reads_labels_too_and_says_that_they_were_drawn_unevenly(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    agreement.add_arguments(parser)
    agreement.run(parser.parse_args([str(labels_for(folder)), "--by", "run,temperature"]))
    printed = capsys.readouterr().out
    assert ": 180 turns" in printed and "step-40  0.7" in printed
    assert "`probe correct` gives those of the runs" in printed.splitlines()[-1]


def test_labels_that_cannot_correct_a_rate_are_told_in_one_line(folder: Path) -> None:
    good = rows_of(labels_for(folder))
    of_base = [row for row in good if row["run"] == "base"]
    others = [row for row in good if row["run"] != "base"]

    def without(**where: Any) -> list[dict[str, Any]]:
        return [row for row in good if any({**row, **row["stratum"]}[name] != value for name, value in where.items())]

    cases = (
        ([*others, *of_base[:19]], "base: 19 labels, wanted at least 20; `nextturn probe label` goes on"),
        ([*good, good[0]], "labels.jsonl:181: a second label for"),
        ([{**good[0], "item": "item-999"}, *good], "and no user turn stands there in the run that was given"),
        ([{**good[0], "turn_sha256": "0"}, *good[1:]], "and another text stands there in the run that was given"),
        ([{**row, "weights_sha256": "0"} for row in of_base], "no label is for a user turn of base, step-20, step-40"),
        (
            without(run="base", set="chat"),
            r"base: none of its \d+ labels is for one of the \d+ turns of chat at T=0.0 that",
        ),
        (
            without(run="base", set="maths", temperature=0.7, judged_genuine=True),
            "at T=0.7 that the judge calls genuine;",
        ),
        (
            without(run="step-20", set="chat", judged_genuine=False),
            "turns of chat at T=0.0 that the judge calls not genuine",
        ),
        ([{**of_base[0], "judge": "rules/9"}, *of_base[1:]], "labels drawn by what rules/1 and rules/9 said"),
    )
    for rows, said in cases:
        write_rows(folder / "labels.jsonl", rows)
        with pytest.raises(BadInput, match=said) as error:
            corrected_of(folder)
        assert "\n" not in str(error.value)
    with pytest.raises(BadInput, match="which .*labels.jsonl labels too; wanted one label a turn"):
        write_rows(folder / "labels.jsonl", good)
        corrected_of(folder, folder / "labels.jsonl", write_rows(folder / "more.jsonl", good[:1]))


def test_a_run_without_labels_is_named_and_left_out(folder: Path) -> None:
    good = rows_of(labels_for(folder))
    write_rows(folder / "labels.jsonl", [row for row in good if row["run"] != "step-20"])
    found = corrected_of(folder)
    assert found.labels == {"base": 60, "step-20": 0, "step-40": 60}
    assert {one.run for one in found.rates} == {"base", "step-40"} and {one.run for one in found.differences} == {
        "step-40"
    }
    assert "without labels, and not corrected: step-20" in command.correction_table(found)


# --- in a comparison


def test_compare_shows_corrected_beside_judged_and_draws_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = compare([folder], folder / "before")
    labels_for(folder)
    comparison = compare([folder], folder / "after")
    assert comparison.correction and comparison.all_corrected
    one = comparison.correction.rate("step-40", "maths", "T=0.7")
    assert one
    old, new = (read_json(folder / name / "comparison.json") for name in ("before", "after"))
    assert (old.pop("as_judged"), new["as_judged"]) == (["step-20", "step-40"], [])
    assert old.pop("patterns") != new.pop("patterns"), "they are read from the corrected rates"
    assert {**old, "correction": new["correction"], "as_judged": []} == new, "nothing else changes"
    assert new["correction"]["labels"] == {"base": 60, "step-20": 60, "step-40": 60}
    page = (folder / "after" / "comparison.md").read_text()
    assert "## Follow-up corrected by labels" in page and "180 labels (base 60, step-20 60, step-40 60)" in page
    assert f"| {100 * (one.judged.value or 0):.1f} [" in page and f"| {100 * (one.corrected.value or 0):.1f} [" in page
    report = (folder / "after" / "report.html").read_text(encoding="utf-8")
    assert "Follow-up corrected by labels" in report and "180 labels (base 60" in report
    drawn = {panel.set: panel for panel in panels_of(comparison)}["maths"].points["T=0.7"]
    assert [point.y for point in drawn] == [
        found.corrected
        for name in comparison.names
        if (found := comparison.correction.rate(name, "maths", "T=0.7")) is not None
    ]
    assert [point.y for point in drawn] != [
        point.y for point in {panel.set: panel for panel in panels_of(before)}["maths"].points["T=0.7"]
    ]
    assert data_of(report)["runs"] == ["base", "step-20", "step-40"]


def test_without_labels_nothing_changes(folder: Path) -> None:
    comparison = compare_runs(load_runs([folder]))
    assert with_labels(comparison, [folder], None) == comparison, "an unknown judge, no labels"
    assert (as_json(comparison)["correction"], as_json(comparison)["warnings"]) == (None, [])
    assert as_json(comparison)["as_judged"] == ["step-20", "step-40"]
    assert "orrected by" not in markdown(comparison, has_plot=True) + html(comparison)


def test_where_some_runs_have_labels_drawings_stay_with_the_judge(folder: Path) -> None:
    good = rows_of(labels_for(folder))
    write_rows(folder / "labels.jsonl", [row for row in good if row["run"] != "step-20"])
    comparison = with_labels(compare_runs(load_runs([folder])), [folder], None)
    metric = Metric("followup", "maths", "rate", "T=0.7")
    assert comparison.correction and comparison.drawn("step-40", metric) == comparison.estimate("step-40", metric)
    assert "Not corrected, without labels: step-20" in markdown(comparison, has_plot=True)
    assert comparison.as_judged == ["step-20"]


def test_patterns_use_the_corrected_rate_of_a_run_with_labels(folder: Path) -> None:
    """A reader who finds no genuine turn in one run, of a judge who finds many."""
    rows = rows_of(labels_for(folder, label="new_task"))
    write_rows(folder / "labels.jsonl", [row for row in rows if row["run"] == "step-40"])
    before = compare_runs(load_runs([folder]))
    comparison = with_labels(before, [folder], None)
    assert comparison.correction
    for name, found in comparison.patterns.items():
        assert found[:2] == before.patterns[name][:2]
        one = comparison.correction.rate("step-40", name, "T=0.0")
        assert one and found[2].greedy == one.corrected
        assert found[2].greedy != before.patterns[name][2].greedy
    assert comparison.as_judged == ["step-20", "step-40"], "the baseline has no labels"


def test_a_reading_that_has_only_begun_is_a_warning_unless_it_was_given(folder: Path) -> None:
    good = rows_of(labels_for(folder))
    path = write_rows(folder / "labels.jsonl", good[:30])
    comparison = with_labels(compare_runs(load_runs([folder])), [folder], None)
    assert comparison.correction is None
    assert any("not corrected: base: 1" in line and "wanted at least 20" in line for line in comparison.warnings)
    with pytest.raises(BadInput, match="wanted at least 20"):
        with_labels(compare_runs(load_runs([folder])), [folder], path)
