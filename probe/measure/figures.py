"""The figures of results.json, counted from the rows of samples.jsonl alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from nextturn.probe.engines.stored import Row
from nextturn.probe.measure.measures import accuracy_figures, clarify_figures, followup_figures
from nextturn.probe.measure.several_turns import doubted_figures, sharded_figures

_COUNT = {
    "accuracy": accuracy_figures,
    "clarify": clarify_figures,
    "actual": followup_figures,
    "sharded": sharded_figures,
    "doubted": doubted_figures,
}


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """Return "accuracy", "clarify" and "followup" of results.json, and "actual", "sharded" and "doubted" where measured.

    The schema is `nextturn.probe.measure.results.Results`.
    """
    counted: dict[str, Any] = {"accuracy": {}, "clarify": {}, "followup": {}}
    groups: dict[tuple[str, str, str, float], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["kind"], row["set"], row["perturbation"], row["temperature"]].append(row)
    for (kind, name, perturbation, temperature), group in groups.items():
        if kind == "followup":
            of_perturbation = counted[kind].setdefault(name, {}).setdefault(perturbation, {})
            of_perturbation[f"T={temperature}"] = followup_figures(group)
        else:
            counted.setdefault(kind, {})[name] = _COUNT[kind](group)
    return counted
