"""Conversations and labelled next turns (`judged_turns.yaml`), and the rules judge's verdicts on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from nextturn.probe.judges import get_judge
from nextturn.probe.judges.verdicts import Case, Judge, Verdict

_WRITTEN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
CONVERSATIONS: dict[str, tuple[str, str]] = {name: tuple(pair) for name, pair in _WRITTEN["conversations"].items()}
TURNS: dict[str, list[tuple[str, str]]] = {
    label: [(name, turn) for name, turn in turns] for label, turns in _WRITTEN["turns"].items()
}
JUDGE = get_judge("rules")
ALL_TURNS = [(label, name, turn) for label, turns in TURNS.items() for name, turn in turns]


def case(name: str, turn: str) -> Case:
    question, answer = CONVERSATIONS[name]
    return Case(({"role": "user", "content": question}, {"role": "assistant", "content": answer}), turn)


def judge_all(judge: Judge, cases: Sequence[Case]) -> list[Verdict]:
    """Return one verdict per case, in the order of the cases."""
    verdicts = dict(judge.stream(cases))
    return [verdicts[index] for index in range(len(cases))]


def judge(name: str, turn: str) -> Verdict:
    return judge_all(JUDGE, [case(name, turn)])[0]


def labelled_rows() -> list[dict[str, Any]]:
    """All turns as rows of a file of labels."""
    return [
        {"messages": list(case(name, turn).messages), "user_turn": turn, "label": label}
        for label, name, turn in ALL_TURNS
    ]
