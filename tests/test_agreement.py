"""Agreement between a judge and human labels: figures, unscored turns, bad files, and the way weights are made."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from judged_turns import CONVERSATIONS, TURNS

from probe.errors import BadInput, DataError
from probe.judges import agreement as module
from probe.judges.agreement import LabelledTurn, agreement, format_agreement, read_labelled
from probe.judges.fitting import cross_validated, fit, read_examples
from probe.judges.labels import LABELS, Case, Verdict
from probe.judges.scores import WEIGHTS


class Fixed:
    """Gives the verdicts it was told; stands for any judge, right, wrong or silent."""

    name, version = "fixed", "fixed/1"

    def __init__(self, *labels: str | None) -> None:
        self.labels = labels

    def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        return [Verdict(label, None if label else "timeout", "") for label in self.labels]


def row(label: str, conversation: str = "a", turn: str = "why?") -> LabelledTurn:
    messages = ({"role": "user", "content": conversation}, {"role": "assistant", "content": "Because."})
    return LabelledTurn(Case(messages, turn), label, conversation)


def write_turns(path: Path, rows: Sequence[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def own_turns() -> list[dict[str, object]]:
    return [
        {
            "messages": [
                {"role": "user", "content": CONVERSATIONS[name][0]},
                {"role": "assistant", "content": CONVERSATIONS[name][1]},
            ],
            "user_turn": turn,
            "label": label,
        }
        for label, turns in TURNS.items()
        for name, turn in turns
    ]


def test_kappa_and_accuracy_of_a_table_worked_by_hand() -> None:
    # 20 both yes, 5 human only, 10 judge only, 15 neither: observed .70, by chance .50, kappa .40.
    human = ["genuine_followup"] * 25 + ["new_task"] * 25
    judged = ["genuine_followup"] * 20 + ["new_task"] * 5 + ["genuine_followup"] * 10 + ["new_task"] * 15
    found = agreement([row(label, str(index)) for index, label in enumerate(human)], Fixed(*judged))
    assert found.binary.kappa.value == pytest.approx(0.4)
    assert found.binary.accuracy.value == pytest.approx(0.7)
    low, high = found.binary.kappa.ci95 or (0, 0)
    assert low < 0.4 < high
    assert found.confusion == {
        "genuine_followup": {"genuine_followup": 20, "new_task": 5},
        "new_task": {"genuine_followup": 10, "new_task": 15},
    }


def test_a_wrong_kind_of_failure_counts_against_the_full_figure_only() -> None:
    rows = [row("genuine_followup", "a"), row("new_task", "b"), row("role_drift", "c")]
    found = agreement(rows, Fixed("genuine_followup", "role_drift", "new_task"))
    assert found.binary.accuracy.value == 1
    assert found.full.accuracy.value == pytest.approx(1 / 3)


def test_unscored_turns_are_left_out_and_counted_by_reason() -> None:
    rows = [row("genuine_followup", "a"), row("genuine_followup", "b"), row("new_task", "c")]
    found = agreement(rows, Fixed("genuine_followup", None, "new_task"))
    assert (found.n, found.unscored) == (3, {"timeout": 1})
    assert found.binary.accuracy.value == 1
    assert found.as_json()["n_scored"] == 2


def test_nothing_scored_gives_no_figure_instead_of_a_zero() -> None:
    found = agreement([row("new_task")], Fixed(None))
    assert found.binary.kappa.value is None and found.binary.accuracy.value is None
    assert "not defined" in format_agreement(found)


def test_turns_of_one_conversation_widen_the_interval() -> None:
    human = ["genuine_followup", "new_task"] * 20
    judged = ["genuine_followup", "new_task"] * 10 + ["new_task", "genuine_followup"] * 10
    apart = agreement([row(label, str(i)) for i, label in enumerate(human)], Fixed(*judged))
    together = agreement([row(label, str(i // 10)) for i, label in enumerate(human)], Fixed(*judged))
    (low, high), (wide_low, wide_high) = apart.binary.kappa.ci95 or (0, 0), together.binary.kappa.ci95 or (0, 0)
    assert wide_high - wide_low > high - low


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"user_turn": "x", "label": "new_task"}, "messages"),
        ({"messages": [{"role": "user", "content": "q"}], "user_turn": "x", "label": "new_task"}, "assistant"),
        ({"messages": [{"role": "assistant", "content": "a"}], "user_turn": 3, "label": "new_task"}, "user_turn"),
        ({"messages": [{"role": "assistant", "content": "a"}], "user_turn": "x", "label": "good"}, "'good'"),
        ({"messages": [{"role": "assistant", "content": "a"}], "user_turn": "x", "label": ["new_task"]}, "label"),
        ({"messages": ["a"], "user_turn": "x", "label": "new_task"}, "messages"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, broken: dict[str, object], said: str) -> None:
    path = write_turns(tmp_path / "labels.jsonl", [own_turns()[0], broken])
    with pytest.raises(DataError, match=f"labels.jsonl:2: .*{said}"):
        read_labelled(path)


def test_an_empty_or_missing_file_is_bad_input(tmp_path: Path) -> None:
    for path in (write_turns(tmp_path / "empty.jsonl", []), tmp_path / "missing.jsonl"):
        with pytest.raises(DataError, match=path.name):
            read_labelled(path)


def test_the_command_prints_tables_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_turns(tmp_path / "labels.jsonl", own_turns())
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    module.run(parser.parse_args([str(path)]))
    assert "genuine or not" in capsys.readouterr().out
    module.run(parser.parse_args([str(path), "--judge", "rules", "--json"]))
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"judge", "n", "n_scored", "unscored", "binary", "full", "labels"}
    assert set(printed["binary"]) == {"kappa", "ci95", "accuracy", "accuracy_ci95"}
    assert set(printed["labels"]) == set(LABELS)
    assert printed["labels"]["new_task"]["human"] == len(TURNS["new_task"])
    with pytest.raises(BadInput, match="rules"):
        module.run(parser.parse_args([str(path), "--judge", "nobody"]))


def test_weights_come_out_the_same_and_stay_within_what_is_allowed(tmp_path: Path) -> None:
    examples = read_examples([write_turns(tmp_path / "labels.jsonl", own_turns())])
    first, second = fit(examples, WEIGHTS), fit(examples, WEIGHTS)
    assert first == second
    assert {name: set(row) for name, row in first.weights.items()} == {n: set(r) for n, r in WEIGHTS.items()}
    # Kept weights that separate: refused a signal, the fit must do without it.
    assert "leaning" not in fit(examples, {n: r for n, r in WEIGHTS.items() if n != "leaning"}).weights


def test_cross_validation_never_judges_a_conversation_it_learned_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = read_examples([write_turns(tmp_path / "labels.jsonl", own_turns())])
    learned: list[set[str]] = []

    def recording_fit(used: Sequence[object], allowed: object) -> object:
        learned.append({example.turn.conversation for example in used})  # type: ignore[attr-defined]
        return fit(used, allowed)  # type: ignore[arg-type]

    monkeypatch.setattr("probe.judges.fitting.fit", recording_fit)
    found = cross_validated(examples, WEIGHTS)
    assert len(found) == len(examples) and len(learned) == 10
    conversations = {example.turn.conversation for example in examples}
    assert set().union(*(conversations - each for each in learned)) == conversations


def test_fitting_on_nothing_says_so() -> None:
    with pytest.raises(DataError, match="labelled"):
        fit([], WEIGHTS)
