"""Probe results as a tracker wants them: flat scalars, points of the trade-off, and rows for two tables.

Pure; nothing is imported or written. Names hold neither dots, because wandb's pages lose the axis of a name with one,
nor spaces, nor slashes but those between their parts: `T=0.7` is called `T=0_7`, and a perturbation by a question keeps
its words and gets a short hash, so that two questions never share a name.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

STEP = "probe/step"
SAMPLE_ROWS = 200
LABEL_COLUMNS = ("step", "set", "perturbation", "temperature", "label", "count")
SAMPLE_COLUMNS = (
    *("kind", "set", "item", "perturbation", "temperature", "sample", "messages", "user_turn", "label", "unscored"),
    *("grounding", "changed", "extracted", "reference", "strict", "lenient", "outcome", "condition"),
)
ACTUAL = "actual"
_SLUG_LENGTH = 40


def flatten(results: dict[str, Any]) -> dict[str, float]:
    """A results.json as flat scalars under `probe/`; a base model, which has no step, stands at 0.

    For example `probe/accuracy/gsm8k/strict` with `_lo` and `_hi`, `probe/followup/gsm8k/none/T=0_7/rate` with `lo`
    and `hi` beside it, `probe/actual/talks/rate` for the real user turns of transcripts. Outcomes and `judged` are
    shares. A figure that was not measured (null) is left out.
    """
    values: dict[str, float] = {STEP: float(_step(results))}
    for name, entry in results.get("accuracy", {}).items():
        for measure in ("strict", "lenient"):
            _put(values, f"probe/accuracy/{slug(name)}/{measure}", entry.get(measure))
        for outcome, count in entry.get("outcomes", {}).items():
            _put(values, f"probe/accuracy/{slug(name)}/outcomes/{outcome}", _share(count, entry["n"]))
    for name, entry in results.get("clarify", {}).items():
        for measure in ("ask_when_needed", "answer_when_complete"):
            _put(values, f"probe/clarify/{slug(name)}/{measure}", entry.get(measure))
    for place, cell in _followup_cells(results):
        _put_cell(values, "probe/followup/" + "/".join(map(slug, place)), cell)
    for name, cell in results.get(ACTUAL, {}).items():
        _put_cell(values, f"probe/actual/{slug(name)}", cell)
    return values


def tradeoff(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """{axis: {figure: value}}: what each set's follow-up rates are drawn against, and the rates of the plain run.

    The axis `tradeoff/SET/accuracy` is the lenient accuracy of the set itself, else of the first set that has one; it
    stands among its own figures. A set without rates, or a run without accuracy, is left out.
    """
    accuracies = {
        name: entry["lenient"]["value"]
        for name, entry in results.get("accuracy", {}).items()
        if (entry.get("lenient") or {}).get("value") is not None
    }
    found: dict[str, dict[str, float]] = {}
    for (name, perturbation, temperature), cell in _followup_cells(results):
        if perturbation != "none" or cell.get("rate") is None or not accuracies:
            continue
        accuracy = accuracies.get(name, next(iter(accuracies.values())))
        axis = f"tradeoff/{slug(name)}/accuracy"
        figures = found.setdefault(axis, {axis: float(accuracy)})
        figures[f"tradeoff/{slug(name)}/{slug(temperature)}"] = float(cell["rate"])
    return found


def slug(text: str) -> str:
    """A part of a name: the text's letters, digits, `=` and `-`, whatever else as `_`; always the same for one text.

    What would lose more than dots and brackets, or is long, is told apart by four digits of the text's sha256.
    """
    short = re.sub(r"[^A-Za-z0-9=-]+", "_", text).strip("_")
    if re.fullmatch(r"[A-Za-z0-9_.()=-]+", text) and len(short) <= _SLUG_LENGTH:
        return short
    digest = hashlib.sha256(text.encode()).hexdigest()[:4]
    return f"{short[:_SLUG_LENGTH].strip('_')}_{digest}".lstrip("_")


def label_rows(results: dict[str, Any]) -> list[list[Any]]:
    """LABEL_COLUMNS for every label of every cell; unscored turns stand as `unscored: REASON`."""
    actual = (((name, ACTUAL, ""), cell) for name, cell in results.get(ACTUAL, {}).items())
    rows: list[list[Any]] = []
    for place, cell in (*_followup_cells(results), *actual):
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


def _put_cell(values: dict[str, float], key: str, cell: dict[str, Any]) -> None:
    _put(values, f"{key}/rate", cell.get("rate"))
    for suffix, bound in zip(("lo", "hi"), cell.get("ci95") or (), strict=False):
        _put(values, f"{key}/{suffix}", bound)
    _put(values, f"{key}/judged", _share(cell.get("n_judged", 0), cell.get("n_total", 0)))
    for measure in ("role_consistency", "specificity", "grounding", "changed_text"):
        _put(values, f"{key}/{measure}", cell.get(measure))


def _share(count: int, total: int) -> float | None:
    return count / total if total else None


def _put(values: dict[str, float], key: str, value: Any) -> None:
    """Adds a number, or {"value", "ci95"} as `key`, `key_lo` and `key_hi`; nothing for null."""
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
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)
