"""The rules judge labels turns that it was never shown, and its weights can be fitted again."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextturn.probe.command.errors import BadInput
from nextturn.probe.command.recipe import section_from
from nextturn.probe.command.sections import ProbeSection
from nextturn.probe.judges import get_judge
from nextturn.probe.judges.rules import Turn, signals
from nextturn.probe.judges.verdicts import LABELS, Case, names_answer
from nextturn.probe.run import load_sets
from nextturn.probe.text.words import phrases, rule_data
from support.conversations import messages
from support.judged_turns import ALL_TURNS, CONVERSATIONS, JUDGE, case, judge, judge_all
from support.label_parts import write_rows


@pytest.mark.parametrize(("label", "name", "turn"), ALL_TURNS)
def test_labels_turns_it_was_not_fitted_on(label: str, name: str, turn: str) -> None:
    verdict = judge(name, turn)
    assert verdict.label == label, verdict.raw


@pytest.mark.parametrize(
    ("turn", "english"),
    [
        *(
            (turn, True)
            for turn in ("6-sided die?", "El Niño, you mean?", "is Jürgen Müller the same man", "résumé or CV?")
        ),
        *(
            (turn, False)
            for turn in ("Wie lange dauert das denn noch?", "¿Por qué no se puede?", "为什么要等六个小时?")
        ),
        # One foreign function word among six words is too much; among seven it is a quotation.
        ("und Bonn Mainz Trier Worms Speyer", False),
        ("und Bonn Mainz Trier Worms Speyer Aachen", True),
        # A long turn without function words is read only if the conversation holds its words.
        ("Bonn Mainz Trier Worms Speyer Aachen Kleve Moers", False),
        ("barking midnight indoors sleep neighbour dog quiet keep", True),
        ("Bonn Köln Trier Worms", False),
        ("Bonn Köln Trier", True),
    ],
)
def test_foreign_names_and_accents_do_not_make_a_turn_foreign(turn: str, english: bool) -> None:
    assert judge("email", turn).unscored == (None if english else "not_english")


def test_a_few_words_are_in_the_language_of_the_conversation() -> None:
    spanish = messages("¿Cómo se dice?", "Con el verbo.")
    verdicts = judge_all(JUDGE, [Case(tuple(spanish), "Bonn"), Case((), "Bonn")])
    assert [verdict.unscored for verdict in verdicts] == ["not_english", None]


@pytest.mark.parametrize(
    ("question", "turn", "planning"),
    [
        ("Why is it slow?", "Speed matters here. The user would ask. Fine.", True),
        ("Why does the user wait?", "Speed matters here. The user would ask. Fine.", False),
        ("Why does the user wait?", "Good. The user would probably check. The assistant answered.", True),
        ("Why does the user wait?", "The user would ask.", True),
    ],
)
def test_planning_needs_two_phrases_where_users_are_the_subject(question: str, turn: str, planning: bool) -> None:
    verdict = judge_all(JUDGE, [Case(tuple(messages(question, "Because of the disk.")), turn)])[0]
    assert (verdict.label == "meta_planning") == planning, verdict.raw


def test_restating_an_earlier_question_is_found_in_a_longer_chat() -> None:
    question, answer = CONVERSATIONS["sourdough"]
    wait = "Then ferment longer: wait until the dough has grown by half."
    talk = messages(question, answer, "It doubles in five hours.", wait)
    assert judge_all(JUDGE, [Case(tuple(talk), question)])[0].label == "user_restatement"


OWN = """
class Versionless:
    def labels(self, cases):
        return ["new_task" for case in cases]

class Silent:
    version = "1"
"""


@pytest.mark.parametrize(
    "name", ["gpt", "no_such:Judge", *(f"own_judges:{each}" for each in ("No", "Versionless", "Silent"))]
)
def test_a_judge_that_cannot_be_used_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_judges.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BadInput, match=name):
        get_judge(name)
    write_rows(tmp_path / "q.jsonl", [{"prompt": "How are you?"}])
    sets = {"q": {"path": str(tmp_path / "q.jsonl")}}
    with pytest.raises(BadInput, match=name):  # before a model is loaded
        load_sets(section_from(ProbeSection, {"sets": sets, "judge": name}, "probe"))


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
def test_specificity_needs_something_that_only_the_answer_introduced(turn: str, named: bool) -> None:
    assert names_answer(case("paint", turn)) is named


def test_every_weight_has_its_signal_and_its_label_and_every_phrase_compiles() -> None:
    data = rule_data()
    assert set(data.weights) == set(signals(Turn(case("paint", "why 480?"))))
    assert {label for row in data.weights.values() for label in row} == set(data.bias) <= set(LABELS)
    assert all(phrases(name).pattern for name in (*data.anywhere, *data.opening))
