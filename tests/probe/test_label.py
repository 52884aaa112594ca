"""User turns are drawn with a known chance, labelled blind on a page, and no label is lost."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.__main__ import main
from nextturn.probe.command.errors import BadInput, DataError
from nextturn.probe.command.files import read_jsonl
from nextturn.probe.judges.verdicts import LABELS
from nextturn.probe.labels.label import draw, page, shares, write_labels
from nextturn.probe.labels.turns import Annotator, read_labels
from support.label_parts import three_models, turns_of, write_rows
from support.page_runs import data_of, probe_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = three_models(tmp_path_factory.mktemp("made"))
    change_turns(folder, lambda place, row: f"{row['user_turn']} {place}")
    return folder


def change_turns(folder: Path, text_of: Callable[[str, dict[str, Any]], str]) -> None:
    """Write other texts in place of the user turns of a training run, by their place in it."""
    for path in sorted(folder.glob("probe/*/samples.jsonl")):
        rows = [row for _, row in read_jsonl(path)]
        for number, row in enumerate(rows):
            if row["kind"] == "followup":
                row["user_turn"] = text_of(f"{path.parent.name} {number}", row)
        write_rows(path, rows)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "sft")


def label(folder: Path, *options: str | Path) -> None:
    main(["label", str(folder), *map(str, options), "--annotator", "ann"])


def on_page(path: Path) -> list[list[dict[str, Any]]]:
    """Return the groups of turns that a page shows once each."""
    return data_of(path.read_text(encoding="utf-8"))["turns"]


def write_labels_of(folder: Path, *labels: str, **changed: Any) -> list[dict[str, object]]:
    """Label the first turns of a draw of 20 per run and return their rows."""
    drawn = draw(turns_of(folder), 20, 0)
    changed = {"annotator": Annotator(name="ann", kind="person"), **changed}
    rows = [turn.model_copy(update={"label": name, **changed}) for turn, name in zip(drawn, labels, strict=False)]
    write_labels(folder / "labels.jsonl", rows)
    return [row.model_dump(by_alias=True) for row in rows]


def test_every_turn_of_a_stratum_is_drawn_as_often_as_its_row_says(tmp_path: Path) -> None:
    turns = turns_of(probe_run(tmp_path / "run", "run", None, 0.3))
    times: Counter[object] = Counter()
    chance = {}
    for seed in range(150):
        drawn = draw(turns, 40, seed)
        assert len(drawn) == 40
        times.update(turn.key for turn in drawn)
        chance |= {turn.key: turn.p for turn in drawn}
        assert all(turn.p == pytest.approx(turn.stratum.drawn / turn.stratum.of, abs=1e-6) for turn in drawn)
    assert len({turn.stratum_key for turn in turns}) == 8 and set(chance) == {turn.key for turn in turns}
    for turn in turns:
        p = chance[turn.key]
        assert abs(times[turn.key] / 150 - p) < 4 * (p * (1 - p) / 150) ** 0.5 + 0.005, turn.stratum_key


def test_a_draw_shows_every_stratum_first_and_a_larger_draw_adds_to_it(folder: Path) -> None:
    turns = turns_of(folder)
    small, large = draw(turns, 30, 7), draw(turns, 90, 7)
    strata = {turn.stratum_key for turn in turns}
    assert {turn.key for turn in small} < {turn.key for turn in large}
    assert {turn.stratum_key for turn in small[: len(strata)]} == strata, "labelling may end early"
    assert Counter(turn.run for turn in small) == {"base": 30, "step-20": 30, "step-40": 30}
    assert [turn.key for turn in small] != [turn.key for turn in draw(turns, 30, 8)]
    assert small == draw(turns[::-1], 30, 7), "the order of the rows does not matter"
    runs = "".join(turn.run[-2] for turn in large)
    assert max(len(same) for same, _ in re.findall(r"((.)\2*)", runs)) < 30, "runs are mixed"


def test_shares_are_equal_for_sets_and_temperatures_and_follow_the_spread_of_a_verdict() -> None:
    sizes = {("run", "maths", 0.0, True): 50, ("run", "maths", 0.0, False): 50}
    sizes |= {("run", "chat", 0.0, True): 1, ("run", "chat", 0.0, False): 399}
    assert list(shares(sizes, 60).values()) == [17, 12, 1, 30]
    assert list(shares(sizes, 4).values()) == [1, 1, 1, 1]
    assert sum(shares(sizes, 10_000).values()) == 500, "no more than there are"
    before = dict.fromkeys(sizes, 0)
    for n in range(4, 200):
        now = shares(sizes, n)
        assert all(now[key] >= before[key] for key in sizes)
        before = now


def test_unscored_turns_are_drawn_too_and_their_rows_say_so(tmp_path: Path) -> None:
    """Without them a corrected rate would be the rate of the turns that the judge chose to score."""
    drawn = draw(turns_of(probe_run(tmp_path / "run", "run", None, 0.3)), 60, 0)
    unscored = [turn.model_copy(update={"label": "malformed"}) for turn in drawn if turn.judged is None]
    assert {turn.stratum_key[1:] for turn in unscored} == {("maths", 0.0, None), ("maths", 0.7, None)}
    write_labels(tmp_path / "labels.jsonl", unscored)
    labels = read_labels(tmp_path / "labels.jsonl")
    assert [label.stratum.judged_genuine for label in labels] == [None] * len(unscored)
    assert [label.key for label in labels] == [turn.key for turn in unscored]


def test_the_page_holds_the_turns_without_verdicts_and_its_file_is_imported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_labels_of(folder, LABELS[0], LABELS[1])
    label(folder, "--n", "20")
    assert "60 user turns drawn from base, step-20, step-40, 58 without a label" in capsys.readouterr().out
    text = (folder / "label.html").read_text(encoding="utf-8")
    turns = [turn for group in on_page(folder / "label.html") for turn in group]
    assert len(turns) == 58 and all(turn["label"] is None for turn in turns)
    assert set(turns[0]) == {
        "schema", "run", "model", "weights_sha256", "set", "item", "perturbation", "temperature", "sample", "turn_sha256",
        "label", "sure", "judge", "stratum", "p", "seed", "messages", "user_turn", "cut", "definition", "annotator", "repeat",
    }  # fmt: skip
    assert "<script>window.owned" not in text and "http" not in re.sub(r"http-equiv", "", text)
    saved = tmp_path / "labels.jsonl"
    write_rows(saved, [{**turn, "label": "new_task"} for turn in turns[:30]])
    for added in (30, 0):  # a second time adds nothing
        label(folder, "--import", saved)
        assert f"{added} labels added, 32 in all" in capsys.readouterr().out
    assert len(read_labels(folder / "labels.jsonl")) == 32
    write_rows(saved, [{**turns[0], "label": "role_drift"}])
    with pytest.raises(BadInput, match="role_drift.*new_task"):
        label(folder, "--import", saved)


def test_a_finished_draw_writes_no_page_and_a_larger_one_adds_to_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_labels_of(folder, *[LABELS[3]] * 60)
    label(folder, "--n", "20")
    assert "all are labelled" in capsys.readouterr().out and not (folder / "label.html").exists()
    label(folder, "--n", "25")
    assert len(on_page(folder / "label.html")) == 15


def test_turns_of_the_same_words_are_shown_once_and_share_a_label(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model may write one sentence after every answer."""
    change_turns(folder, lambda place, row: row["user_turn"] if int(place[-1]) % 2 else "Why is that so?")
    label(folder, "--n", "20")
    groups = on_page(folder / "label.html")
    same = [turn for group in groups if group[0]["user_turn"] == "Why is that so?" for turn in group]
    assert len(groups) == len({group[0]["user_turn"] for group in groups}) and len(same) > 10
    write_rows(folder / "saved.jsonl", [{**turn, "label": LABELS[0], "sure": False} for turn in same])
    label(folder, "--import", folder / "saved.jsonl")
    label(folder, "--n", "60")
    assert all(turn["user_turn"] != "Why is that so?" for group in on_page(folder / "label.html") for turn in group)
    known = read_labels(folder / "labels.jsonl")
    assert len(known) > len(same) and {(row.user_turn, row.label, row.sure) for row in known} == {
        ("Why is that so?", LABELS[0], False)
    }


def test_repeated_turns_are_mixed_in_stored_apart_and_compared_with_the_first_labels(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_labels_of(folder, *[LABELS[index % 2] for index in range(30)])
    path = folder / "labels.jsonl"
    label(folder, "--n", "20", "--repeat", path)
    turns = [turn for group in on_page(folder / "label.html") for turn in group]
    again = [turn for turn in turns if turn["repeat"]]
    assert (len(turns), len(again)) == (30 + 20, 20) and all(turn["label"] is None for turn in turns)
    assert [turn["repeat"] for turn in turns] not in ([False] * 30 + [True] * 20, [True] * 20 + [False] * 30), "mixed"
    before = {row["turn_sha256"]: row["label"] for row in first}
    rows = [{**turn, "label": before.get(turn["turn_sha256"], LABELS[3])} for turn in turns]
    changed = next(row for row in rows if row["repeat"])
    changed["label"] = LABELS[4]
    write_rows(folder / "saved.jsonl", rows)
    label(folder, "--import", folder / "saved.jsonl")
    printed = capsys.readouterr().out
    assert "20 turns" in printed and "equal 95.0 [" in printed and "kappa 0.9" in printed
    assert len(read_labels(path)) == 60 and not any(row.repeat for row in read_labels(path))
    repeated, stored = folder / "labels_repeated.jsonl", [row for row in rows if row["repeat"]]
    assert {row.turn_sha256 for row in read_labels(repeated)} == {row["turn_sha256"] for row in stored}
    repeated.unlink()
    for part in (
        stored[:12],
        [{**row, "label": LABELS[4]} for row in stored[9:]],
    ):  # a second page adds to the first one
        write_rows(folder / "saved.jsonl", part)
        label(folder, "--import", folder / "saved.jsonl")
    expected = {row["turn_sha256"]: row["label"] if place < 9 else LABELS[4] for place, row in enumerate(stored)}
    assert {row.turn_sha256: row.label for row in read_labels(repeated)} == expected and len(stored) == 20
    with pytest.raises(BadInput, match="no label is for a user turn"):
        main(["correct", str(folder), "--labels", str(folder / "labels_repeated.jsonl")])


@pytest.mark.parametrize(
    "changed", [{"annotator": Annotator(name="bob", kind="person")}, {"definition": "loose"}, {"repeat": True}]
)
def test_a_page_fills_in_no_answers_to_another_page(changed: dict[str, Any], folder: Path) -> None:
    turns = [
        turn.model_copy(update={"annotator": Annotator(name="ann", kind="person")})
        for turn in draw(turns_of(folder), 20, 0)
    ]
    first, same, other = (
        re.findall(r'"store":"(\w+)"', page([[turn] for turn in of]))
        for of in (turns, turns, [turn.model_copy(update=changed) for turn in turns])
    )
    assert len(first) == 1 and first == same != other


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({"definition": "loose"}, ()),
        ({"annotator": None}, ()),
        ({"annotator": Annotator(name="ann", kind="model")}, ()),
        ({"definition": "loose"}, ("--repeat", "labels.jsonl", "--out", "other.jsonl")),
    ],
)
def test_a_file_holds_labels_of_one_definition_and_one_annotator(
    changed: dict[str, Any], options: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    write_labels_of(folder, LABELS[0], LABELS[1], **changed)
    with pytest.raises(BadInput, match="loose|ann"):
        label(folder, *options)
    if not options:
        label(folder, "--out", folder / "other.jsonl")
        rows = [{**turn, "label": LABELS[3]} for group in on_page(folder / "label.html") for turn in group]
        write_rows(folder / "saved.jsonl", rows)
        with pytest.raises(BadInput, match="--out"):
            label(folder, "--import", folder / "saved.jsonl")
        label(folder, "--out", folder / "other.jsonl", "--import", folder / "saved.jsonl")
        assert {row.made_by for row in read_labels(folder / "other.jsonl")} == {"strict, ann (person)"}


def test_turns_that_were_judged_again_are_drawn_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = shutil.copytree(folder / "probe" / "base", tmp_path / "again")
    label(folder / "probe" / "base", again, "--out", tmp_path / "labels.jsonl", "--n", "20")
    assert capsys.readouterr().out.startswith("20 user turns drawn")


def test_input_that_cannot_be_labelled_is_refused(folder: Path, tmp_path: Path) -> None:
    first, *_ = write_labels_of(folder, LABELS[0], LABELS[1])
    before = (folder / "labels.jsonl").read_bytes()
    bare = probe_run(tmp_path / "bare", "bare", None, 0.3)
    (bare / "samples.jsonl").unlink()
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text('{"id": "a"}\n{"half')
    for options, problem in (
        ([folder, "--n", "19"], "--n 19"),
        ([folder, bare], "--out is missing"),
        ([bare], "bare/samples.jsonl"),
        ([folder, "--out", foreign], r"foreign.jsonl:1: run:"),
    ):
        with pytest.raises((BadInput, DataError), match=problem):
            label(*options)  # type: ignore[arg-type]
    saved = tmp_path / "saved.jsonl"
    for rows, problem in (
        ([first, first], "saved.jsonl:2: a second label for .* line 1"),
        ([{**first, "turn_sha256": "0" * 64}], "another text"),
        ([{**first, "item": "nowhere"}], "no user turn"),
        ([{**first, "weights_sha256": "0"}], "in none of the given runs"),
        ([{**first, "label": "good"}], "saved.jsonl:1: label: .*'good'"),
        ([{**first, "label": None}], "saved.jsonl:1: label: "),
        ([{**first, "schema": 2}], "saved.jsonl:1: schema: "),
    ):
        write_rows(saved, rows)  # type: ignore[arg-type]
        with pytest.raises((BadInput, DataError), match=problem):
            label(folder, "--import", saved)
    assert (folder / "labels.jsonl").read_bytes() == before and foreign.read_text().endswith("half"), "nothing changed"
    base, *_ = turns_of(folder)
    strata = [base.model_copy(update={"set": f"set {number}"}) for number in range(21)]
    with pytest.raises(BadInput, match="21 strata"):
        draw(strata, 20, 0)
