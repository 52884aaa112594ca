"""The surface: what gives away an opening that lacks something."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import nextturn.data_builders.card
from nextturn.data_builders.build import build
from nextturn.data_builders.recipe import load_data_recipe
from nextturn.data_builders.rows import sft_row
from nextturn.data_builders.surface import Opening, Openings, Sample, giveaway
from nextturn.data_builders.written import Written, written
from nextturn.probe.errors import DataError
from nextturn.probe.files import write_jsonl
from nextturn.probe.sets import PACKAGED, read_pairs

NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hope", "Ida", "Jon")


def openings(n: int, cue: str = "", seed: int = 0) -> list[Opening]:
    """Both forms of `n` problems that differ by chance alone, and by `cue` in those that lack something."""
    rng = random.Random(seed)

    def text() -> str:
        return f"{rng.choice(NAMES)} buys {rng.randrange(2, 90)} {rng.choice(('pens', 'cups', 'bags'))} for {rng.randrange(9)} each. How much is it?"

    return [
        one for n in range(n) for one in (Opening(text(), False, f"p{n}"), Opening(f"{text()}{cue}", True, f"p{n}"))
    ]


def test_a_cue_is_found_and_chance_is_none() -> None:
    for seed in range(3):
        none = giveaway(openings(80, seed=seed))
        assert none.ci95 is not None and none.value is not None
        assert 0.35 < none.value < 0.65 and none.ci95[0] < 0.55
        assert (giveaway(openings(80, " ___", seed)).value or 0) > 0.99
    half = [
        *openings(60, " some", 1),
        *[Opening(one.text, one.lacks, f"q{one.problem}") for one in openings(60, "", 2)],
    ]
    assert 0.65 < (giveaway(half).value or 0) < 0.85, "a cue in half of them"


def test_a_problem_that_is_known_by_heart_gives_nothing_away() -> None:
    """Rare words of a problem tell which one it is, so its forms may not be learned from each other."""
    rng = random.Random(3)
    made = [Opening(f"xq{n}z {n}", lacks, str(n)) for n in range(60) for lacks in (True, False) for _ in range(2)]
    rng.shuffle(made)
    found = giveaway(made)
    assert found.value is not None and abs(found.value - 0.5) < 0.1
    kinds = [rng.random() < 0.5 for _ in range(60)]
    by_kind = [Opening(f"xq{n}z", kinds[n], str(n)) for n in range(60) for _ in range(3)]
    assert (giveaway(by_kind).value or 0) < 0.75
    apart = [Opening(one.text, one.lacks, str(place)) for place, one in enumerate(by_kind)]
    assert (giveaway(apart).value or 0) > 0.95, "without the groups it would be learned by heart"


def test_a_rarer_class_does_not_turn_the_signal_round() -> None:
    rare = [one for one in openings(150, seed=5) if not one.lacks or int(one.problem[1:]) % 3 == 0]
    found = giveaway(rare)
    assert found.value is not None and 0.38 < found.value < 0.62


def test_few_openings_are_not_measured() -> None:
    counted = Openings(0)
    for n in range(49):
        for kind in ("complete", "underspecified", "replay", "hint"):
            counted.add({"kind": kind, "problem": str(n), "messages": [{"content": f"Question {n}"}]})
    assert counted.giveaway().value is None
    for kind in ("twin", "underspecified"):
        counted.add({"kind": kind, "problem": "x", "messages": [{"content": "Question"}]})
    assert counted.giveaway().n == 100, "neither replay nor a hint"
    wishes = {"kind": "hint", "dialogue": {}, "problem": "y", "messages": [{"content": "A hint, please"}]}
    counted.add(wishes)  # of self-play, where openings that lack something have such wishes, too
    assert counted.giveaway().n == 101


def test_what_is_written_gives_little_away() -> None:
    pairs = read_pairs(PACKAGED["written_pairs"])
    forms = [(one.complete, one.underspecified) for one in pairs]
    found = giveaway([Opening(text, bool(n), str(forms.index(pair))) for pair in forms for n, text in enumerate(pair)])
    assert found.n == 108 and found.value is not None and found.value < 0.65
    counted = Openings(7)
    for one in written(Written(), 7):
        counted.add(sft_row(one))
    found = counted.giveaway()
    assert found.n == 331 and found.value is not None and found.value < 0.7


# --- in a build


def cued(folder: Path, limit: float) -> Path:
    """A recipe whose underspecified openings all hold the same words."""
    rng = random.Random(0)
    rows = [
        {"question": f"{rng.choice(NAMES)} has {a} red pens, {b} blue ones and {c} green ones. How many pens is that?",
         "answer": f"{a} + {b} = {a + b}\n{a + b} + {c} = {a + b + c}\n#### {a + b + c}"}
        for a, b, c in (rng.sample(range(11, 99), 3) for _ in range(160))
    ]  # fmt: skip
    write_jsonl(folder / "problems.jsonl", rows)
    path = folder / "recipe.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "source": {"kind": "jsonl", "path": str(folder / "problems.jsonl")},
                "output": {"path": str(folder / "out")},
                "quality": {"max_giveaway": limit, "max_same_wording": 1.0, "near_duplicates": None},
            }
        )
    )
    return path


def test_a_build_that_gives_it_away_fails_until_it_is_let_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nextturn.probe.stats import Estimate

    monkeypatch.setattr(nextturn.data_builders.card.Openings, "giveaway", lambda _: Estimate(0.9, (0.86, 0.94), 300))
    with pytest.raises(DataError, match=r"AUC 0\.90 of 300 openings.*more than quality\.max_giveaway 0\.8"):
        build(load_data_recipe(cued(tmp_path, 0.8)))
    out = tmp_path / "out"
    assert "AUC 0.90 [0.86, 0.94]" in (out / "card.md").read_text() and not (out / "manifest.json").exists()
    written = {path: path.stat().st_mtime_ns for path in out.glob("sft/*.jsonl")}
    build(load_data_recipe(cued(tmp_path, 1.0)))
    assert written == {path: path.stat().st_mtime_ns for path in out.glob("sft/*.jsonl")}, "nothing is made again"
    assert capsys.readouterr().out.count("warning: ") == 1
    assert json.loads((out / "manifest.json").read_text())["giveaway"] == {"value": 0.9, "ci95": [0.86, 0.94], "n": 300}


# --- samples


@given(st.integers(0, 60), st.integers(1, 20), st.integers(0, 9))
def test_a_sample_holds_rows_of_the_stream_once_each(rows: int, most: int, seed: int) -> None:
    sample = Sample(most, seed)
    for row in range(rows):
        sample.add(row)
    assert len(sample.rows) == min(rows, most) == len(set(sample.rows)) and set(sample.rows) <= set(range(rows))


def test_every_row_is_as_likely() -> None:
    drawn, first = [0] * 12, [0] * 12
    for seed in range(1000):
        sample = Sample(4, seed)
        for row in range(12):
            sample.add(row)
        for row in sample.rows:
            drawn[row] += 1
        first[sample.rows[0]] += 1
    assert all(abs(one / 1000 - 1 / 3) < 0.06 for one in drawn) and all(
        abs(one / 1000 - 1 / 12) < 0.035 for one in first
    )
