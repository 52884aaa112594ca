"""Probe results as a tracker wants them: flat scalars, and rows for two tables. Pure; nothing is imported or written.

Names hold no dots, because wandb's pages lose the axis of a name with one: `T=0.7` is called `T=0_7`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

STEP = "probe/step"
SAMPLE_ROWS = 200
LABEL_COLUMNS = ("step", "set", "perturbation", "temperature", "label", "count")
SAMPLE_COLUMNS = (
    *("kind", "set", "item", "perturbation", "temperature", "sample", "messages", "user_turn", "label", "unscored"),
    *("extracted", "reference", "strict", "lenient", "outcome", "condition"),
)


def flatten(results: dict[str, Any]) -> dict[str, float]:
    """A results.json as flat scalars under `probe/`; a base model, which has no step, stands at 0.

    For example `probe/accuracy/gsm8k/strict` with `_lo` and `_hi`, `probe/followup/gsm8k/none/T=0_7/rate` with `lo`
    and `hi` beside it. Outcomes and `judged` are shares. A figure that was not measured (null) is left out.
    """
    values: dict[str, float] = {STEP: float(_step(results))}
    for name, entry in results.get("accuracy", {}).items():
        for measure in ("strict", "lenient"):
            _put(values, f"probe/accuracy/{name}/{measure}", entry.get(measure))
        for outcome, count in entry.get("outcomes", {}).items():
            _put(values, f"probe/accuracy/{name}/outcomes/{outcome}", _share(count, entry["n"]))
    for name, entry in results.get("clarify", {}).items():
        for measure in ("ask_when_needed", "answer_when_complete"):
            _put(values, f"probe/clarify/{name}/{measure}", entry.get(measure))
    for place, cell in _followup_cells(results):
        key = "probe/followup/" + "/".join(place)
        _put(values, f"{key}/rate", cell.get("rate"))
        for suffix, bound in zip(("lo", "hi"), cell.get("ci95") or (), strict=False):
            _put(values, f"{key}/{suffix}", bound)
        _put(values, f"{key}/judged", _share(cell.get("n_judged", 0), cell.get("n_total", 0)))
        for measure in ("role_consistency", "specificity", "grounding", "changed_text"):
            _put(values, f"{key}/{measure}", cell.get(measure))
    return values


def label_rows(results: dict[str, Any]) -> list[list[Any]]:
    """LABEL_COLUMNS for every label of every cell; unscored turns stand as `unscored: REASON`."""
    rows: list[list[Any]] = []
    for place, cell in _followup_cells(results):
        unscored = {f"unscored: {reason}": count for reason, count in cell.get("unscored", {}).items()}
        counts = {**cell.get("labels", {}), **unscored}
        rows += [[_step(results), *place, label, count] for label, count in counts.items()]
    return rows


def sample_rows(samples: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """SAMPLE_COLUMNS of at most SAMPLE_ROWS samples, evenly spread over all of them."""
    stride = max(1, math.ceil(len(samples) / SAMPLE_ROWS))
    return [[_cell(row.get(column)) for column in SAMPLE_COLUMNS] for row in samples[::stride]]


def _step(results: dict[str, Any]) -> int:
    return results.get("model", {}).get("step") or 0


def _followup_cells(results: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str], dict[str, Any]]]:
    """((set, perturbation, temperature), figures)"""
    for name, perturbations in results.get("followup", {}).items():
        for perturbation, temperatures in perturbations.items():
            for temperature, cell in temperatures.items():
                yield (name, perturbation, temperature), cell


def _share(count: int, total: int) -> float | None:
    return count / total if total else None


def _put(values: dict[str, float], key: str, value: Any) -> None:
    """Adds a number, or {"value", "ci95"} as `key`, `key_lo` and `key_hi`; nothing for null."""
    key = key.replace(".", "_")
    if isinstance(value, dict):
        _put(values, key, value.get("value"))
        for suffix, bound in zip(("_lo", "_hi"), value.get("ci95") or (), strict=False):
            _put(values, key + suffix, bound)
    elif value is not None:
        values[key] = float(value)


def _cell(value: Any) -> Any:
    """A table column holds one type, so everything is text; messages read as a transcript."""
    if isinstance(value, list):
        return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in value)
    return "" if value is None else str(value)
