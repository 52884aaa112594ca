"""What a comparison needs of samples.jsonl: values by metric and item, and the grounding of labelled user turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from probe.comparing.results import Metric
from probe.errors import DataError
from probe.files import read_jsonl
from probe.judges.labels import GENUINE
from probe.measures import clarify

Values = dict[Metric, dict[str, list[float]]]


class Grounded(NamedTuple):
    """One unperturbed user turn that has a label and a grounding (nats per token)."""

    item: str
    label: str
    grounding: float


@dataclass(frozen=True)
class Samples:
    """`values` by metric and item, `grounded` by set, of all temperatures."""

    values: Values
    grounded: dict[str, list[Grounded]]


def actual(name: str) -> Metric:
    """The real user turns of a transcript set, where generated ones are Metric("followup", name, "T=0.0")."""
    return Metric("actual", name, "actual")


def read_samples(path: Path) -> Samples:
    """Raises DataError with file:line for a row that no probe run writes."""
    values: Values = defaultdict(lambda: defaultdict(list))
    grounded: dict[str, list[Grounded]] = defaultdict(list)
    for number, row in read_jsonl(path):
        try:
            for metric, value in _values(row):
                values[metric][str(row["item"])].append(float(value))
            if row["kind"] == "followup" and row["perturbation"] == "none":
                label, grounding = row["label"], row.get("grounding")  # older runs have no grounding
                if label is not None and grounding is not None:
                    grounded[row["set"]].append(Grounded(str(row["item"]), label, float(grounding)))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}:{number}: not a row of a probe run ({error!r})") from None
    return Samples({metric: dict(items) for metric, items in values.items()}, dict(grounded))


def _values(row: dict[str, Any]) -> Iterator[tuple[Metric, float]]:
    """What one row adds to which metric; nothing for a value that could not be scored."""
    kind, name = row["kind"], row["set"]
    if kind == "accuracy":
        for scoring in ("lenient", "strict"):
            if row[scoring] is not None:
                yield Metric(kind, name, scoring), row[scoring]
    elif kind == "clarify":
        for condition, cell in clarify.summarise([row]).items():
            if condition != "n" and cell["value"] is not None:
                yield Metric(kind, name, condition), cell["value"]
    elif kind == "followup":
        if row["label"] is not None:
            yield Metric(kind, name, f"T={float(row['temperature'])}", row["perturbation"]), row["label"] == GENUINE
    elif kind == "actual":
        if row["label"] is not None:
            yield actual(name), row["label"] == GENUINE
    else:
        raise ValueError(f"kind {kind}")
