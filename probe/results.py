"""Finished probe runs as they stand on disk: read, checked, named, and held against each other.

Runs may be compared only when they were measured alike. Every setting must agree but those listed in
MAY_DIFFER; so a setting that nobody thought of here makes runs incomparable, never silently comparable.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from probe.errors import BadInput, DataError
from probe.files import read_json, read_jsonl
from probe.judges.labels import GENUINE
from probe.measures import clarify

SCHEMA = 1

# Another engine gives the same kind of number, and another temperature or number of samples other columns.
MAY_DIFFER = ("engine", "temperatures", "samples")

Values = dict["Metric", dict[str, list[float]]]


@dataclass(frozen=True)
class Metric:
    """One number of a run: measure "accuracy", "clarify" or "followup"; name such as "lenient" or "T=0.0"."""

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
    """What results.json holds, schema 1; rates in [0, 1]."""

    model: Model
    settings: Settings
    accuracy: dict[str, Accuracy] = Field(default_factory=dict)
    clarify: dict[str, Clarify] = Field(default_factory=dict)
    followup: dict[str, dict[str, dict[str, Followup]]] = Field(default_factory=dict)
    timing: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A finished run; `values` are those of samples.jsonl by metric and item, None where that file is missing."""

    folder: Path
    name: str
    results: Results
    values: Values | None


def expand(folders: Sequence[Path]) -> list[Path]:
    """The folders with a training run's folder replaced by its finished probes: base first, then by step."""
    found: list[Path] = []
    for folder in folders:
        if (folder / "results.json").is_file() or not (folder / "probe").is_dir():
            found.append(folder)
            continue
        steps = [step for step in (folder / "probe").glob("step-*") if step.name.removeprefix("step-").isdigit()]
        probes = [folder / "probe" / "base", *sorted(steps, key=lambda step: int(step.name.removeprefix("step-")))]
        finished = [probe for probe in probes if (probe / "results.json").is_file()]
        if not finished:
            raise BadInput(f"{folder}: a training run without a finished probe; wanted one in {folder / 'probe'}")
        found += finished
    return found


def load_runs(folders: Sequence[Path]) -> tuple[Run, ...]:
    """The runs in the order given, each with a name of its own.

    Raises:
        BadInput: no folder, one given twice, or one that holds no finished run of schema 1.
    """
    if not folders:
        raise BadInput("no run folder given, wanted one or more that `python -m probe run` made")
    folders = expand(folders)
    for folder, count in Counter(Path(folder).resolve() for folder in folders).items():
        if count > 1:
            raise BadInput(f"{folder}: given {count} times, wanted each run once")
    results = [_read_results(folder) for folder in folders]
    names = _names(folders, [result.model for result in results])
    return tuple(
        Run(folder, name, result, _read_values(folder / "samples.jsonl"))
        for folder, name, result in zip(folders, names, results, strict=True)
    )


def runs_of(results: Sequence[dict[str, Any]]) -> tuple[Run, ...]:
    """Runs from contents of results.json that are at hand; their rows stay out, so nothing is paired."""
    checked = [Results.model_validate(result) for result in results]
    folders = [Path(result.model.path) for result in checked]
    names = _names(folders, [result.model for result in checked])
    return tuple(Run(folder, name, result, {}) for folder, name, result in zip(folders, names, checked, strict=True))


def differences(runs: Sequence[Run]) -> list[str]:
    """Why these runs should not be compared, one line per reason; empty when they were measured alike."""
    others = [run.results.settings.others() for run in runs]
    keys = sorted({key for settings in others for key in settings} - set(MAY_DIFFER))
    told = [_told(runs, "chat template", [run.results.model.template_sha256 for run in runs])]
    told += [_told(runs, key, [settings.get(key) for settings in others]) for key in keys]
    for name in _set_names(runs):
        infos = [run.results.settings.sets.get(name) for run in runs]
        told.append(_told(runs, f"set {name}", [info and f"{info.n} items {info.sha256}" for info in infos]))
    return [line for line in told if line]


def remarks(runs: Sequence[Run]) -> list[str]:
    """What differs and may, and what a reader should know about the folders."""
    told = [_told(runs, key, [run.results.settings.others().get(key) for run in runs]) for key in MAY_DIFFER]
    for name in _set_names(runs):
        infos = [run.results.settings.sets.get(name) for run in runs]
        told.append(_told(runs, f"measures on set {name}", [info and ", ".join(info.measures) for info in infos]))
    for run in runs:
        if run.values is None:
            told.append(f"{run.name}: no samples.jsonl beside its results.json, so no paired test")
    return [line for line in told if line]


def printable(text: str) -> str:
    """One line without control, bidirectional or other invisible characters, of at most 80 characters."""
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= 80 else text[:79] + "…"


def _read_results(folder: Path) -> Results:
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


def _why_no_results(folder: Path) -> str:
    if (folder / "manifest.json").exists() or (folder / "samples.jsonl").exists():
        return (
            f"{folder}: the run is unfinished; `python -m probe run` with --out {folder} takes it up where it stopped"
        )
    inside = sorted(path.parent for path in folder.glob("*/results.json"))
    hint = f"; did you mean {' '.join(str(path) for path in inside)}?" if inside else ""
    return f"{folder}: no results.json, wanted a folder that `python -m probe run` made{hint}"


def _read_values(path: Path) -> Values | None:
    if not path.exists():
        return None
    values: Values = defaultdict(lambda: defaultdict(list))
    for number, row in read_jsonl(path):
        try:
            for metric, value in _row_values(row):
                values[metric][str(row["item"])].append(float(value))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}:{number}: not a row of a probe run ({error!r})") from None
    return {metric: dict(items) for metric, items in values.items()}


def _row_values(row: dict[str, Any]) -> Iterator[tuple[Metric, float]]:
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
    else:
        raise ValueError(f"kind {kind}")


def _names(folders: Sequence[Path], models: Sequence[Model]) -> list[str]:
    """Label and step; with the names of the folders above where that is not enough to tell runs apart."""
    plain = []
    for model in models:
        stepped = model.step and not re.search(rf"(?<!\d){model.step}(?!\d)", model.label)
        plain.append(printable(f"{model.label} step-{model.step}" if stepped else model.label) or "unnamed")
    names = plain
    for depth in range(1, 6):
        count = Counter(names)
        # A training run keeps its probes in RUN/probe/step-N: that middle name says nothing.
        above = [tuple(part for part in folder.absolute().parts[1:] if part != "probe") for folder in folders]
        above = [parts[:-1] if parts and parts[-1] == name else parts for parts, name in zip(above, plain, strict=True)]
        names = [
            printable("/".join((*parts[-depth:], short))) if count[name] > 1 else name
            for parts, short, name in zip(above, plain, names, strict=True)
        ]
    seen = Counter[str]()
    for index, name in enumerate(names):
        seen[name] += 1
        names[index] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names


def _told(runs: Sequence[Run], key: str, values: Sequence[Any]) -> str | None:
    """'judge: rules-1 (base), llm-2 (sft, rl)' when the runs do not all have one value."""
    groups: dict[str, list[str]] = defaultdict(list)
    for run, value in zip(runs, values, strict=True):
        shown = "nothing" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        groups[shown].append(run.name)
    if len(groups) == 1:
        return None
    return f"{printable(key)}: " + ", ".join(f"{_short(value)} ({', '.join(who)})" for value, who in groups.items())


def _short(text: str) -> str:
    return printable(re.sub(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b", r"\1", text))


def _set_names(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.results.settings.sets))
