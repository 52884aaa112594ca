"""Drawing user turns and labelling them: a known chance for each, blind, never lost, and as a page."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.errors import BadInput, DataError
from nextturn.probe.files import read_json, read_jsonl, sha256_text, write_json
from nextturn.probe.judges.labels import LABELS
from nextturn.probe.labels import label as command
from nextturn.probe.labels.label import Turn, draw, read_labels, row_of, shares, user_turns
from nextturn.probe.measure.results import load_runs
from support.page_runs import data_of, probe_run, three_runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A training run with three finished probes: 60 turns at T=0 and at 0.7 on maths, 30 on chat."""
    for run in three_runs(tmp_path).runs:
        results = read_json(run.folder / "results.json")
        results["model"]["weights_sha256"] = sha256_text(run.name)
        write_json(run.folder / "results.json", results)
    return tmp_path / "sft"


def turns_of(folder: Path) -> list[Turn]:
    return [turn for one in load_runs([folder]) for turn in user_turns(one)]


def label(folder: Path, *options: str | Path) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args([str(folder), *map(str, options)]))


def labelled(folder: Path, *labels: str) -> list[dict[str, Any]]:
    """The first turns of a draw of 20 a run with these labels, as `folder` then holds them."""
    rows = [{**row_of(one), "label": name} for one, name in zip(draw(turns_of(folder), 20, 0), labels, strict=False)]
    command.write(folder / "labels.jsonl", rows)
    return rows


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path)]


def test_every_turn_of_a_stratum_is_drawn_as_often_as_its_row_says(tmp_path: Path) -> None:
    [one] = load_runs([probe_run(tmp_path / "run", "run", None, 0.3)])
    turns = user_turns(one)
    times: Counter[Any] = Counter()
    chance = {}
    for seed in range(600):
        drawn = draw(turns, 40, seed)
        assert len(drawn) == 40
        times.update(each.turn.place for each in drawn)
        chance |= {each.turn.place: each.drawn / each.of for each in drawn}
    strata = Counter(turn.stratum for turn in turns)
    assert len(strata) == 8 and set(chance) == {turn.place for turn in turns}
    for turn in turns:
        p = chance[turn.place]
        assert abs(times[turn.place] / 600 - p) < 4 * (p * (1 - p) / 600) ** 0.5 + 0.005, turn.stratum


def test_a_draw_touches_every_stratum_first_and_a_larger_one_adds_to_it(folder: Path) -> None:
    turns = turns_of(folder)
    small, large = draw(turns, 30, 7), draw(turns, 90, 7)
    strata = {turn.stratum for turn in turns}
    assert {one.turn.place for one in small} < {one.turn.place for one in large}
    assert {one.turn.stratum for one in small[: len(strata)]} == strata, "so that reading may end early"
    assert Counter(one.turn.run for one in small) == {"base": 30, "step-20": 30, "step-40": 30}
    assert [one.turn for one in small] != [one.turn for one in draw(turns, 30, 8)]
    assert small == draw(list(reversed(turns)), 30, 7), "whatever the order of the rows"
    order = [one.turn.run for one in large]
    assert max(len(list(same)) for same in re.findall(r"((\w)\2*)", "".join(name[-1] for name in order))) < 90 / 3


def test_shares_are_even_over_sets_and_temperatures_and_follow_how_unsure_a_verdict_is() -> None:
    sizes = {("run", "maths", 0.0, True): 50, ("run", "maths", 0.0, False): 50}
    sizes |= {("run", "chat", 0.0, True): 1, ("run", "chat", 0.0, False): 399}
    given = shares(sizes, 60)
    assert list(given.values()) == [17, 12, 1, 30]
    assert list(shares(sizes, 4).values()) == [1, 1, 1, 1]
    assert sum(shares(sizes, 10_000).values()) == 500, "no more than there are"
    before = dict.fromkeys(sizes, 0)
    for n in range(4, 200):
        now = shares(sizes, n)
        assert all(now[key] >= before[key] for key in sizes)
        before = now


def test_turns_that_the_judge_left_unscored_are_drawn_too_and_their_row_says_so(tmp_path: Path) -> None:
    """Otherwise a corrected rate would be one of the turns that the judge chose to score."""
    [one] = load_runs([probe_run(tmp_path / "run", "run", None, 0.3)])
    drawn = draw(user_turns(one), 60, 0)
    unscored = [each for each in drawn if each.turn.label is None]
    assert {each.turn.stratum[1:] for each in unscored} == {("maths", 0.0, None), ("maths", 0.7, None)}
    assert all(row_of(each)["stratum"]["judged_genuine"] is None for each in unscored)
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(json.dumps({**row_of(each), "label": "malformed"}) + "\n" for each in unscored))
    assert [label.stratum.judged_genuine for label in read_labels(path)] == [None] * len(unscored)


def test_a_draw_is_spread_over_the_judges_labels(tmp_path: Path) -> None:
    [one] = load_runs([probe_run(tmp_path / "run", "run", None, 0.3, n=200)])
    others = [turn for turn in user_turns(one) if turn.stratum == ("run", "maths", 0.0, False)]
    found = Counter(each.turn.label for each in draw(user_turns(one), 100, 0) if each.turn in others)
    there = Counter(turn.label for turn in others)
    for name, count in there.items():
        assert abs(found[name] - count * found.total() / len(others)) <= 1.5, name


def test_the_page_holds_the_turns_and_what_it_saves_is_imported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labelled(folder, LABELS[0], LABELS[1])
    label(folder, "--n", "20")
    assert "60 user turns drawn from base, step-20, step-40, 58 without a label" in capsys.readouterr().out
    text = (folder / "label.html").read_text(encoding="utf-8")
    turns = data_of(text)["turns"]
    assert len(turns) == 58 and all(turn["label"] is None for turn in turns)
    assert [*turns[0]] == [
        "schema", "run", "model", "weights_sha256", "set", "item", "perturbation", "temperature", "sample", "turn_sha256",
        "label", "sure", "judge", "stratum", "p", "seed", "messages", "user_turn", "cut",
    ]  # fmt: skip
    assert "<script>window.owned" not in text and "http" not in re.sub(r"http-equiv", "", text)
    saved = tmp_path / "labels.jsonl"
    saved.write_text("".join(json.dumps({**turn, "label": "new_task", "sure": True}) + "\n" for turn in turns[:30]))
    for added in (30, 0):  # a second time adds nothing
        label(folder, "--import", saved)
        assert f"{added} labels added, 32 in all" in capsys.readouterr().out
    assert len(read_labels(folder / "labels.jsonl")) == 32
    saved.write_text(json.dumps({**turns[0], "label": "role_drift", "sure": True}) + "\n")
    with pytest.raises(
        BadInput, match=r"labels.jsonl: .* is role_drift there and new_task in .*; wanted one label a turn"
    ):
        label(folder, "--import", saved)
    labelled(folder, *[LABELS[3]] * 60)
    (folder / "label.html").unlink()
    label(folder, "--n", "20")
    assert "all are labelled" in capsys.readouterr().out and not (folder / "label.html").exists()
    label(folder, "--n", "25", "--page", tmp_path / "more.html")
    assert len(data_of((tmp_path / "more.html").read_text(encoding="utf-8"))["turns"]) == 15, "adds to the same draw"


def test_turns_that_were_judged_anew_are_read_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = folder / "probe" / "base"
    again = shutil.copytree(base, tmp_path / "again")
    label(base, again, "--out", tmp_path / "labels.jsonl", "--n", "20")
    assert "20 user turns drawn from base, 20 without a label" in capsys.readouterr().out.replace("sft/base", "base")


def test_what_cannot_be_labelled_is_told_in_one_line(folder: Path, tmp_path: Path) -> None:
    good = labelled(folder, LABELS[0], LABELS[1])
    out = folder / "labels.jsonl"
    bare = probe_run(tmp_path / "bare", "bare", None, 0.3)
    (bare / "samples.jsonl").unlink()
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text('{"id": "a"}\n{"half')

    def written(*rows: dict[str, Any]) -> list[str | Path]:
        path = tmp_path / sha256_text(json.dumps(rows)) / "given.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return [folder, "--import", path]

    other_text = {**good[0], "turn_sha256": "0" * 64}
    for options, said in (
        ([folder, "--n", "19"], "--n 19: wanted at least 20 a run"),
        ([folder, bare], "--out is missing: which file the labels of 2 folders go to"),
        ([bare], "bare/samples.jsonl: no such file, and without it nothing of bare can be read"),
        ([folder, "--out", foreign], "foreign.jsonl:1: no row of `nextturn probe label`: run: Field required"),
        (written(good[0], good[0]), "given.jsonl:2: a second label for .*, which line 1 has; wanted one label a turn"),
        (written(other_text), "given.jsonl: a label for .*, and another text stands there in the run that was given"),
        (written({**good[0], "item": "nowhere"}), "no user turn stands there"),
        (written({**good[0], "weights_sha256": "0"}), "whose model is none of the runs that were given"),
        (written({**good[0], "label": "good"}), "given.jsonl:1: .*label: 'good', wanted one of genuine_followup, user"),
        (written({**good[0], "schema": 2}), "given.jsonl:1: .*schema: Input should be 1"),
    ):
        with pytest.raises((BadInput, DataError), match=said) as error:
            label(*options)  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
    assert rows_of(out) == good and foreign.read_text().endswith("half"), "nothing was changed"
    many = probe_run(tmp_path / "many", "many", None, 0.3)
    with pytest.raises(BadInput, match=r"--n 20: many has (\d+) strata .* wanted at least --n \1"):
        draw([*turns_of(many), *(replaced(turn, place) for place in range(8) for turn in turns_of(many)[:40])], 20, 0)


def replaced(turn: Turn, place: int) -> Turn:
    return Turn(**{**vars(turn), "set": f"more {place}"})
