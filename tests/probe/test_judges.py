"""The rules judge labels what it was never shown, says how sure it is, and its weights can be made anew."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from nextturn.probe.errors import BadInput
from nextturn.probe.judges import get_judge
from nextturn.probe.judges.labels import GENUINE, LABELS, Case, judge_all, names_answer
from nextturn.probe.judges.rules import RulesJudge, Turn, signals
from nextturn.probe.labels.agreement import agreement, read_labelled
from nextturn.probe.text import phrases, rule_data
from support import fit_rules
from support.judged_turns import ALL_TURNS, CONVERSATIONS, JUDGE, TURNS, case, judge, labelled_rows

ROOT = Path(__file__).resolve().parents[2]
DEV_TURNS = Path(__file__).resolve().parents[3] / "shared" / "data" / "user_turns"


@pytest.mark.parametrize(("label", "name", "turn"), ALL_TURNS)
def test_labels_turns_it_was_not_made_from(label: str, name: str, turn: str) -> None:
    verdict = judge(name, turn)
    assert verdict.label == label, verdict.raw


def test_every_label_has_several_examples_in_different_conversations() -> None:
    assert set(TURNS) == set(LABELS)
    assert all(len(turns) >= 4 and len({name for name, _ in turns}) >= 3 for turns in TURNS.values())


@pytest.mark.parametrize(
    ("name", "turn", "label"),
    [
        ("sourdough", "Wie lange dauert das denn noch?", None),
        ("sourdough", "¿Por qué no se puede hacer con el horno?", None),
        ("sourdough", "为什么要等六个小时?", None),
        ("paint", CONVERSATIONS["paint"][1], "assistant_restatement"),
        ("paint", "Are you sure about the break after panel 18? The job is over then.", GENUINE),
        ("paint", "How many minutes would it take with breaks after every 9 panels?", GENUINE),
        # The answer in other words is no task of its own.
        ("email", "Could you present that text in a more formal tone?", GENUINE),
        ("sourdough", "Please condense those tips into a rhyme for my kitchen wall.", GENUINE),
        ("python", "Explain it with an analogy from cooking.", GENUINE),
        # Nor is asking for the reason of a step, and how people do a thing is one.
        ("paint", "Can you explain why you multiplied by 25?", GENUINE),
        ("paint", "Please explain why you added 30 to 450.", GENUINE),
        ("paint", "Can you explain where the 30 comes from?", GENUINE),
        ("paint", "Explain how you bake a cake at home.", "new_task"),
        ("paint", "Explain where the name Vienna comes from.", "new_task"),
        # A question about nothing that was said is one.
        *((name, "What is the largest planet?", "new_task") for name in ("email", "paint", "sourdough")),
        *((name, "Which colours does a rainbow have?", "new_task") for name in ("email", "paint", "sourdough")),
    ],
)
def test_labels_single_cases(name: str, turn: str, label: str | None) -> None:
    """Other languages are unscored, which is no failure."""
    verdict = judge(name, turn)
    assert (verdict.label, verdict.unscored) == (label, None if label else "not_english"), verdict.raw


@pytest.mark.parametrize(
    "turn", ["6-sided die?", "El Niño, you mean?", "is Jürgen Müller the same man", "résumé or CV?", "mañana, got it"]
)
def test_foreign_names_and_accents_do_not_make_a_turn_foreign(turn: str) -> None:
    assert judge("email", turn).label is not None


def test_restating_an_earlier_question_is_found_in_a_longer_chat() -> None:
    first = case("sourdough", CONVERSATIONS["sourdough"][0])
    messages = (
        *first.messages,
        {"role": "user", "content": "It doubles in five hours."},
        {"role": "assistant", "content": "Then ferment longer: wait until the dough has grown by half."},
    )
    assert judge_all(JUDGE, [Case(messages, first.user_turn)])[0].label == "user_restatement"


def test_verdicts_do_not_depend_on_the_batch() -> None:
    cases = [case(name, turn) for _, name, turn in ALL_TURNS]
    assert judge_all(JUDGE, cases) == [judge_all(RulesJudge(), [each])[0] for each in cases]


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


@pytest.mark.parametrize("name", ["real_dev.jsonl", "constructed_dev.jsonl"])
def test_agrees_with_people_on_labelled_turns(name: str) -> None:
    """Not a test of generalising, since weights were made from these turns; it fails when a change breaks the judge."""
    if not (DEV_TURNS / name).is_file():
        pytest.skip(f"no labelled turns at {DEV_TURNS / name}")
    found = agreement(read_labelled(DEV_TURNS / name), JUDGE)
    assert found["binary"]["kappa"] >= 0.6
    assert sum(found["unscored"].values()) <= 0.05 * found["n"]


# ----- the data file


def test_every_weight_has_its_signal_and_its_label_and_every_phrase_compiles() -> None:
    data = rule_data()
    assert set(data.weights) == set(signals(Turn(case("paint", "why 480?"))))
    assert {label for row in data.weights.values() for label in row} == set(data.bias) <= set(LABELS)
    assert all(phrases(name).pattern for name in (*data.anywhere, *data.opening))


# ----- the weights made anew


def test_the_fitting_command_reports_leaves_out_and_prints_what_the_data_file_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {name: rule_data().weights[name] for name in ("leaning", "imperative", "filler")}
    monkeypatch.setattr(fit_rules, "rule_data", lambda: dataclasses.replace(rule_data(), weights=few))
    for half in (0, 1):
        rows = [row for row, (_, name, _) in zip(labelled_rows(), ALL_TURNS, strict=True) if (name < "m") == bool(half)]
        (tmp_path / f"{half}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fit_rules.main([str(tmp_path / "0.jsonl"), str(tmp_path / "1.jsonl"), "--seeds", "1"])
    said = capsys.readouterr().out
    assert said.count("cross-validated kappa, genuine or not") == 2
    printed = yaml.safe_load(said[said.index("\nbias:") :])
    assert set(printed["bias"]) == set(rule_data().bias) and set(printed["weights"]) == set(few)
