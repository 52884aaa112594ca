"""The giveaway: what shows that a first message lacks a fact, and what a build does about it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import yaml

import nextturn.data_builders.card
from nextturn.data_builders.build import build
from nextturn.data_builders.rows import sft_row
from nextturn.data_builders.sections import Written, load_data_recipe
from nextturn.data_builders.surface import Opening, Openings, Reservoir, giveaway
from nextturn.data_builders.written import written
from nextturn.probe.command.errors import DataError
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.questions.sets import PACKAGED, read_pairs
from nextturn.probe.stats import Estimate

NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hope", "Ida", "Jon")


def openings(n: int, cue: str = "", seed: int = 0) -> list[Opening]:
    """Return both forms of `n` problems, which differ by chance and by a `cue` in those that lack a fact."""
    rng = random.Random(seed)

    def text() -> str:
        things = rng.choice(NAMES), rng.randrange(2, 90), rng.choice(("pens", "cups", "bags")), rng.randrange(9)
        return "{} buys {} {} for {} each. How much is it?".format(*things)

    return [Opening(text() + cue * lacks, lacks, f"p{n}") for n in range(n) for lacks in (False, True)]


def auc(made: list[Opening]) -> float:
    value = giveaway(made).value
    assert value is not None
    return value


def test_a_cue_is_found_and_chance_is_not() -> None:
    for seed in range(3):
        estimate = giveaway(openings(80, seed=seed))
        assert estimate.ci95 is not None and estimate.value is not None
        assert 0.35 < estimate.value < 0.65 and estimate.ci95[0] < 0.55
        assert auc(openings(80, " ___", seed)) > 0.99
    others = [Opening(each.text, each.lacks, f"q{each.problem}") for each in openings(60, "", 2)]
    assert 0.65 < auc([*openings(60, " some", 1), *others]) < 0.85, "a cue in half of them"


def test_rare_words_and_rare_classes_give_nothing_away() -> None:
    """Rare words identify a problem, so all its forms are in one fold."""
    rng = random.Random(3)
    made = [Opening(f"xq{n}z {n}", lacks, str(n)) for n in range(60) for lacks in (True, False) for _ in range(2)]
    rng.shuffle(made)
    assert abs(auc(made) - 0.5) < 0.1
    kinds = [rng.random() < 0.5 for _ in range(60)]
    by_kind = [Opening(f"xq{n}z", kinds[n], str(n)) for n in range(60) for _ in range(3)]
    assert auc(by_kind) < 0.75
    assert auc([Opening(each.text, each.lacks, str(number)) for number, each in enumerate(by_kind)]) > 0.95
    rare = [each for each in openings(150, seed=5) if not each.lacks or int(each.problem[1:]) % 3 == 0]
    assert 0.38 < auc(rare) < 0.62


def test_few_openings_are_not_measured() -> None:
    sample = Openings(0)
    for n in range(49):
        for kind in ("complete", "underspecified", "replay", "hint"):
            sample.add({"kind": kind, "source": "math", "problem": str(n), "messages": [{"content": f"Question {n}"}]})
    assert sample.giveaway().value is None
    for kind in ("twin", "underspecified"):
        sample.add({"kind": kind, "source": "math", "problem": "x", "messages": [{"content": "Question"}]})
    assert sample.giveaway().n == 100, "without replay and hints"


def test_the_style_of_a_source_is_no_giveaway() -> None:
    """MATH by a small policy and the written conversations failed as a build: nearly all that lacks a fact is written."""
    sample = Openings(0)
    for n in range(60):
        opening = {"problem": f"m{n}", "messages": [{"content": f"Compute $x^{n}$."}]}
        sample.add({"kind": "complete", "source": "math", **opening})
        for kind in ("complete", "underspecified"):
            opening = {"problem": f"w{n}", "messages": [{"content": f"My sister bought {n} apples."}]}
            sample.add({"kind": kind, "source": "written", **opening})
    estimate = sample.giveaway()
    assert estimate.n == 120 and estimate.value is not None and estimate.value < 0.6


def test_the_written_data_give_little_away() -> None:
    pairs = read_pairs(PACKAGED["written_pairs"])
    forms = [(pair.complete, pair.underspecified) for pair in pairs]
    made = [Opening(text, bool(n), str(index)) for index, form in enumerate(forms) for n, text in enumerate(form)]
    assert len(made) == 108 and auc(made) < 0.65
    sample = Openings(7)
    for conversation in written(Written(), 7):
        sample.add(sft_row(conversation))
    estimate = sample.giveaway()
    assert estimate.n == 331 and estimate.value is not None and estimate.value < 0.7


def test_a_build_with_a_giveaway_fails_until_the_limit_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(160)]
    write_jsonl(tmp_path / "problems.jsonl", problems)
    out, path = tmp_path / "out", tmp_path / "recipe.yaml"
    source = {"kind": "jsonl", "path": str(tmp_path / "problems.jsonl")}
    path.write_text(yaml.safe_dump({"source": source, "output": {"path": str(out)}}))
    monkeypatch.setattr(nextturn.data_builders.card.Openings, "giveaway", lambda _: Estimate(0.9, (0.86, 0.94), 300))
    with pytest.raises(DataError, match=r"AUC 0\.90 of 300.*quality\.max_giveaway 0\.8"):
        build(load_data_recipe(path))
    assert "0.90 [0.86, 0.94]" in (out / "README.md").read_text() and not (out / "manifest.json").exists()
    times = {path: path.stat().st_mtime_ns for path in out.glob("sft/*.jsonl")}
    build(load_data_recipe(path, ["--quality.max_giveaway", "1"]))
    assert times == {path: path.stat().st_mtime_ns for path in out.glob("sft/*.jsonl")}, "no row is made again"
    assert capsys.readouterr().out.count("warning: ") == 1
    assert json.loads((out / "manifest.json").read_text())["giveaway"] == {"value": 0.9, "ci95": [0.86, 0.94], "n": 300}


def test_every_row_is_equally_likely() -> None:
    drawn, first = [0] * 12, [0] * 12
    for seed in range(1000):
        sample = Reservoir(4, seed)
        for row in range(12):
            sample.add(row)
        for row in sample.rows:
            drawn[row] += 1
        first[sample.rows[0]] += 1
    assert all(abs(count / 1000 - 1 / 3) < 0.06 for count in drawn)
    assert all(abs(count / 1000 - 1 / 12) < 0.035 for count in first)
