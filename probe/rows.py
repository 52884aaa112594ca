"""samples.jsonl: one row per answer and user turn; and results.json's figures, made from such rows alone.

Because the figures need nothing but the rows, a finished run can be judged anew without its model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from probe.chat import Message
from probe.measures import accuracy, clarify, followup
from probe.perturb import NONE

Row = dict[str, Any]


def make_row(kind: str, name: str, item: str, messages: Sequence[Message], **measured: Any) -> Row:
    """One line of samples.jsonl; every row has every field, null where the measure has nothing to say."""
    return {
        "kind": kind, "set": name, "item": item, "perturbation": NONE,
        "temperature": 0.0, "sample": 0, "messages": list(messages),
        "user_turn": None, "user_cut": None, "label": None, "unscored": None, "judge_raw": None, "specific": None,
        "grounding": None, "log_p": None, "changed": None,
        "reference": None, "extracted": None, "strict": None, "lenient": None,
        "outcome": None, "condition": None, "asked": None,
        **measured,
    }  # fmt: skip


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """{"accuracy", "clarify", "followup"} of results.json; with transcripts also "actual", their real user turns."""
    found: dict[str, Any] = {"accuracy": {}, "clarify": {}, "followup": {}}
    by_place: dict[tuple[str, str, str, float], list[Row]] = defaultdict(list)
    for row in rows:
        by_place[row["kind"], row["set"], row["perturbation"], row["temperature"]].append(row)
    for (kind, name, perturbation, temperature), of_place in by_place.items():
        if kind == "accuracy":
            found[kind][name] = accuracy.summarise(of_place)
        elif kind == "clarify":
            found[kind][name] = clarify.summarise(of_place)
        elif kind == "actual":
            found.setdefault(kind, {})[name] = followup.summarise(of_place)
        else:
            cells = found[kind].setdefault(name, {}).setdefault(perturbation, {})
            cells[f"T={temperature}"] = followup.summarise(of_place)
    return found
