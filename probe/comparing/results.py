"""What results.json holds, and the reading of it. Files of older runs of the same schema lack the newer keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from probe.errors import BadInput
from probe.files import read_json
from probe.stats import NOTHING, Estimate

if TYPE_CHECKING:
    from probe.comparing.samples import Samples

SCHEMA = 1


@dataclass(frozen=True)
class Metric:
    """One number of a run: measure "accuracy", "clarify" or "followup"; name such as "lenient" or "T=0.0".

    Measure "actual", name "actual", is the rate of the real user turns of a transcript set.
    """

    measure: str
    set: str
    name: str
    perturbation: str = "none"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Cell(_Part):
    value: float | None
    ci95: tuple[float, float] | None


class Accuracy(_Part):
    n: int
    strict: Cell
    lenient: Cell
    outcomes: dict[str, int]


class Clarify(_Part):
    n: int
    ask_when_needed: Cell
    answer_when_complete: Cell


class Followup(_Part):
    """User turns of one set, perturbation and temperature, or the real ones of a transcript set.

    `grounding` is in nats per token; `changed_text` is the share of turns whose text the perturbation changed. Both
    are None where they were not measured.
    """

    n_total: int
    n_judged: int
    rate: float | None
    ci95: tuple[float, float] | None
    labels: dict[str, int]
    unscored: dict[str, int]
    role_consistency: Cell | float | None = None
    specificity: Cell | float | None = None
    grounding: Cell | float | None = None
    changed_text: Cell | float | None = None


class Model(_Part):
    path: str
    label: str
    step: int | None = None
    weights_sha256: str | None = None
    template_sha256: str | None = None


class SetInfo(_Part):
    sha256: str
    n: int
    measures: tuple[str, ...] = ()


class Settings(BaseModel):
    """How a run was measured. Only the sets have a fixed shape; every other key is compared as it stands."""

    model_config = ConfigDict(frozen=True, extra="allow")

    sets: dict[str, SetInfo] = Field(default_factory=dict)

    def others(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Results(_Part):
    """What results.json holds, schema 1; rates in [0, 1]. `actual` has the real user turns of transcript sets."""

    model: Model
    settings: Settings
    accuracy: dict[str, Accuracy] = Field(default_factory=dict)
    clarify: dict[str, Clarify] = Field(default_factory=dict)
    followup: dict[str, dict[str, dict[str, Followup]]] = Field(default_factory=dict)
    actual: dict[str, Followup] = Field(default_factory=dict)
    timing: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A finished run, under the name that a comparison gives it; `samples` is None where samples.jsonl is missing."""

    folder: Path
    name: str
    results: Results
    samples: Samples | None


def read_results(folder: Path) -> Results:
    """The results of a finished run.

    Raises:
        BadInput: there is no such folder, the run is unfinished, or its file is of another schema or shape.
        DataError: its file is no JSON.
    """
    if not folder.is_dir():
        what = "a file" if folder.exists() else "no such folder"
        raise BadInput(f"{folder}: {what}, wanted a folder that `python -m probe run` made")
    path = folder / "results.json"
    if not path.exists():
        raise BadInput(_why_no_results(folder))
    content = read_json(path)
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise BadInput(f"{path}: schema {schema!r}, this version reads {SCHEMA}; probe the model again")
    try:
        return Results.model_validate(content)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(printable(str(part)) for part in problem["loc"])
        raise BadInput(f"{path}: {where}: {problem['msg']}; probe the model again") from None


def figures_of(results: Results) -> Iterator[tuple[Metric, Estimate]]:
    """Every rate of accuracy, clarify and follow-up. `n` counts what was graded or judged."""
    for name, accuracy in results.accuracy.items():
        yield Metric("accuracy", name, "lenient"), _estimate(accuracy.lenient, accuracy.n)
        yield Metric("accuracy", name, "strict"), _estimate(accuracy.strict, accuracy.n)
    for name, clarify in results.clarify.items():
        yield Metric("clarify", name, "ask_when_needed"), _estimate(clarify.ask_when_needed, clarify.n)
        yield Metric("clarify", name, "answer_when_complete"), _estimate(clarify.answer_when_complete, clarify.n)
    for name, perturbations in results.followup.items():
        for perturbation, temperatures in perturbations.items():
            for decoding, part in temperatures.items():
                yield Metric("followup", name, decoding, perturbation), rate_of(part)


def rate_of(part: Followup) -> Estimate:
    """The genuine-follow-up rate of one cell."""
    return _estimate(Cell(value=part.rate, ci95=part.ci95), part.n_judged)


def estimate_of(value: Cell | float | None) -> Estimate:
    """A figure that older runs store without an interval, or not at all."""
    if isinstance(value, Cell):
        return Estimate(value.value, value.ci95, 0)
    return Estimate(value, None, 0)


def temperature(name: str) -> float:
    """0.7 for "T=0.7"."""
    try:
        return float(name.removeprefix("T="))
    except ValueError:
        raise BadInput(f"{name!r}: no temperature, wanted a key such as T=0.7 under followup") from None


def printable(text: str, most: int = 80) -> str:
    """One line without control, bidirectional or other invisible characters, of at most `most` characters."""
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= most else text[: most - 1] + "…"


def _estimate(cell: Cell, n: int) -> Estimate:
    return Estimate(cell.value, cell.ci95, n) if cell.value is not None else NOTHING


def _why_no_results(folder: Path) -> str:
    if (folder / "manifest.json").exists() or (folder / "samples.jsonl").exists():
        return (
            f"{folder}: the run is unfinished; `python -m probe run` with --out {folder} takes it up where it stopped"
        )
    inside = sorted(path.parent for path in folder.glob("*/results.json"))
    hint = f"; did you mean {' '.join(str(path) for path in inside)}?" if inside else ""
    return f"{folder}: no results.json, wanted a folder that `python -m probe run` made{hint}"
