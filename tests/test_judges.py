"""The rules judge labels what it was never shown, says how sure it is, and its weights can be made anew."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from judged_turns import ALL_TURNS, CONVERSATIONS, JUDGE, TURNS, case, judge

from probe.errors import BadInput
from probe.judges import fitting, get_judge
from probe.judges.agreement import agreement, read_labelled
from probe.judges.labels import GENUINE, LABELS, ROLE_CONSISTENT, Case, judge_all, names_answer
from probe.judges.rules import (
    BIAS,
    CLEAR_MARGIN,
    DIRECTIONS,
    WEIGHTS,
    Reading,
    RulesJudge,
    best_label,
    repetition,
    signals,
)
from probe.judges.text import content_stems, sentences, stem, words

DEV_TURNS = Path(__file__).resolve().parents[2] / "shared" / "data" / "user_turns"


@pytest.mark.parametrize(("label", "name", "turn"), ALL_TURNS)
def test_labels_turns_it_was_not_made_from(label: str, name: str, turn: str) -> None:
    verdict = judge(name, turn)
    assert verdict.label == label, verdict.raw


def test_every_label_has_several_examples_in_different_conversations() -> None:
    assert set(TURNS) == set(LABELS)
    assert all(len(turns) >= 4 and len({name for name, _ in turns}) >= 3 for turns in TURNS.values())


@pytest.mark.parametrize(
    "turn", ["Wie lange dauert das denn noch?", "¿Por qué no se puede hacer con el horno?", "为什么要等六个小时?"]
)
def test_other_languages_are_unscored_not_failures(turn: str) -> None:
    verdict = judge("sourdough", turn)
    assert (verdict.label, verdict.unscored) == (None, "not_english")


@pytest.mark.parametrize(
    "turn", ["6-sided die?", "El Niño, you mean?", "is Jürgen Müller the same man", "résumé or CV?", "mañana, got it"]
)
def test_foreign_names_and_accents_do_not_make_a_turn_foreign(turn: str) -> None:
    assert judge("email", turn).label is not None


def test_restating_an_earlier_question_is_found_in_a_longer_chat() -> None:
    question, answer = CONVERSATIONS["sourdough"]
    messages = (
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "It doubles in five hours."},
        {"role": "assistant", "content": "Then ferment longer: wait until the dough has grown by half."},
    )
    assert judge_all(JUDGE, [Case(messages, question)])[0].label == "user_restatement"


def test_verdicts_do_not_depend_on_the_batch() -> None:
    cases = [case(name, turn) for _, name, turn in ALL_TURNS]
    assert judge_all(JUDGE, cases) == [judge_all(JUDGE, [each])[0] for each in cases]


def test_says_how_sure_it_is_and_gives_the_verdict_of_the_stream() -> None:
    rules = RulesJudge()
    for _, name, turn in ALL_TURNS:
        verdict, lead = rules.consider(case(name, turn))
        assert verdict == judge(name, turn) and lead >= 0
        assert (lead == math.inf) == verdict.raw.startswith("rule:")
    weighed = [lead for _, name, turn in ALL_TURNS if (lead := rules.consider(case(name, turn))[1]) < math.inf]
    assert min(weighed) < CLEAR_MARGIN < max(weighed)


def test_the_lead_is_over_the_other_side_of_genuine_or_not() -> None:
    assert best_label({GENUINE: 3.0, "new_task": 1.0, "role_drift": 0.5}) == (GENUINE, 2.0)
    assert best_label({GENUINE: 1.0, "new_task": 3.0, "role_drift": 2.5}) == ("new_task", 2.0)


@pytest.mark.parametrize(
    ("name", "turn"),
    [
        ("email", "Could you present that text in a more formal tone?"),
        ("sourdough", "Please condense those tips into a rhyme for my kitchen wall."),
        ("python", "Explain it with an analogy from cooking."),
    ],
)
def test_asking_for_the_answer_in_other_words_is_no_task_of_its_own(name: str, turn: str) -> None:
    assert judge(name, turn).label == GENUINE


@pytest.mark.parametrize("turn", ["What is the largest planet?", "Which colours does a rainbow have?"])
def test_a_question_about_nothing_that_was_said_is_a_new_task(turn: str) -> None:
    assert {judge(name, turn).label for name in ("email", "paint", "sourdough")} == {"new_task"}


def test_fitting_reports_and_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {name: DIRECTIONS[name] for name in ("leaning", "imperative", "filler")}
    monkeypatch.setattr(fitting, "DIRECTIONS", kept)
    for half in (0, 1):
        rows = [
            {"messages": case(name, turn).messages, "user_turn": turn, "label": label}
            for label, name, turn in ALL_TURNS
            if (name < "m") == bool(half)
        ]
        (tmp_path / f"{half}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fitting.main([str(tmp_path / "0.jsonl"), str(tmp_path / "1.jsonl"), "--leave-out", "--seeds", "1"])
    said = capsys.readouterr().out
    assert said.count("cross-validated kappa, genuine or not") == 2
    assert said.count("weights of the other files only") == 2
    assert all(f"  {name}: 0.jsonl " in said for name in kept)
    assert "WEIGHTS = {'leaning'" in said


def test_every_weight_has_its_signal_and_its_label() -> None:
    counted = signals(Reading.of(case("paint", "why 480?"), "why 480?", False))
    assert set(WEIGHTS) == set(counted) == set(DIRECTIONS)
    assert all(set(WEIGHTS[name]) == set(DIRECTIONS[name]) for name in WEIGHTS)
    assert {label for row in WEIGHTS.values() for label in row} == set(BIAS) <= set(LABELS)


def test_an_unknown_judge_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadInput, match="'gpt'.*rules"):
        get_judge("gpt")


@pytest.mark.parametrize(
    ("turn", "named"),
    [
        ("where does the 450 come from?", True),
        ("what if the refrigerant leaks", False),
        ("Which breaks are the thirty minutes?", True),
        ("How many panels has the fence?", False),
        ("thanks for the answer!", False),
    ],
)
def test_specificity_wants_something_that_only_the_answer_brought_up(turn: str, named: bool) -> None:
    assert names_answer(case("paint", turn)) is named


def test_role_consistent_labels_speak_from_the_users_side() -> None:
    assert GENUINE in ROLE_CONSISTENT
    assert ROLE_CONSISTENT.isdisjoint({"role_drift", "assistant_restatement", "malformed", "degenerate"})


def test_words_and_stems_bring_spellings_together() -> None:
    assert words("Janet’s 1,000.50 muffins—three!") == ["janet's", "1,000.50", "muffins", "three"]
    assert stem("1,000.50") == "1000.5" and stem("three") == stem("3.0") == "3"
    assert stem("baking") == stem("bakes") == stem("baked")
    assert content_stems("What is the answer to the second step?") == ("2", "step")
    assert sentences('He said "no." Then left.\n\nOk') == ['He said "no.', "Then left.", "Ok"]


def test_repetition_counts_sequences_seen_before() -> None:
    assert repetition(["a", "b", "c", "d", "e", "f", "g"]) == 0
    assert repetition(["a", "b", "c", "d"] * 10) > 0.8


@pytest.mark.parametrize("name", ["real_dev.jsonl", "constructed_dev.jsonl"])
def test_agrees_with_people_on_labelled_turns(name: str) -> None:
    """Not a test of generalising, since weights were made from these turns; it fails when a change breaks the judge."""
    if not (DEV_TURNS / name).is_file():
        pytest.skip(f"no labelled turns at {DEV_TURNS / name}")
    found = agreement(read_labelled(DEV_TURNS / name), JUDGE)
    assert found.binary.kappa.value is not None and found.binary.kappa.value >= 0.6
    assert sum(found.unscored.values()) <= 0.05 * found.n


def test_a_question_lifted_from_the_user_is_a_restatement_and_a_doubt_about_a_given_is_not_drift() -> None:
    question, answer = CONVERSATIONS["paint"]
    talk = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})

    def label(turn: str) -> str | None:
        return judge_all(RulesJudge(), [Case(talk, turn)])[0].label

    assert label("How many minutes does the whole job take?") == "user_restatement"
    assert label(answer) == "assistant_restatement"
    assert label("Are you sure about the break after panel 18? The job is over then.") == "genuine_followup"
    assert label("How many minutes would it take with breaks after every 9 panels?") == "genuine_followup"
