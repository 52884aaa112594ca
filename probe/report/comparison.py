"""Finished probe runs, read and held against the first one, the baseline: every number that a report shows.

`load_runs` reads what `nextturn probe run` left, `compare_runs` makes the `Comparison` of it: figures, paired
differences, patterns, and what each run says by itself. `as_json` and `terminal_table` write it; `probe.report` makes
the pages and `probe.plot` the drawing. Every run answers the same items, so a difference is paired by item.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nextturn.probe.checkpoints import numbered
from nextturn.probe.errors import BadInput, DataError
from nextturn.probe.files import read_json, read_jsonl
from nextturn.probe.grading import CLARIFY, clarify_right
from nextturn.probe.judges.labels import GENUINE, ROUGH, followup_name, in_order
from nextturn.probe.stats import NOTHING, Estimate, PairedDifference, auc, mean_ci, paired_difference
from nextturn.probe.terminal import aligned

# --- What results.json holds.

SCHEMA = 1


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
    role_consistency: float | None = None
    specificity: float | None = None
    grounding: Cell | None = None
    changed_text: Cell | None = None

    @property
    def genuine(self) -> Estimate:
        """The follow-up rate: genuine ones among the judged."""
        return Estimate(self.rate, self.ci95, self.n_judged) if self.rate is not None else NOTHING


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

    @property
    def others(self) -> dict[str, Any]:
        return self.model_extra or {}


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
class Metric:
    """One number of a run: measure "accuracy", "clarify" or "followup"; name such as "lenient" or "T=0.0".

    Measure "actual", name "actual", is the rate of the real user turns of a transcript set.
    """

    measure: str
    set: str
    name: str
    perturbation: str = "none"


def figures_of(results: Results) -> Iterator[tuple[Metric, Estimate]]:
    """Every rate of accuracy, clarify and follow-up. `n` counts what was graded or judged."""
    for name, accuracy in results.accuracy.items():
        for scoring in ("lenient", "strict"):
            yield Metric("accuracy", name, scoring), estimate_of(getattr(accuracy, scoring), accuracy.n)
    for name, clarify in results.clarify.items():
        for condition in ("ask_when_needed", "answer_when_complete"):
            yield Metric("clarify", name, condition), estimate_of(getattr(clarify, condition), clarify.n)
    for name, perturbations in results.followup.items():
        for perturbation, temperatures in perturbations.items():
            for decoding, part in temperatures.items():
                yield Metric("followup", name, decoding, perturbation), part.genuine


def estimate_of(value: Cell | float | None, n: int = 0) -> Estimate:
    """A figure of results.json, with or without an interval."""
    if isinstance(value, Cell):
        return Estimate(value.value, value.ci95, n) if value.value is not None else NOTHING
    return Estimate(value, None, n)


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


# --- Reading runs: found on disk, checked, and each given a name of its own.


class Grounded(NamedTuple):
    """One unperturbed user turn that has a label and a grounding (nats per token)."""

    item: str
    label: str
    grounding: float


@dataclass(frozen=True, eq=False)  # compared by identity, so that what is computed of it can be cached
class Samples:
    """What a comparison needs of samples.jsonl.

    `values` has the values of each metric by item, `grounded` the turns by set, of all temperatures.
    """

    values: dict[Metric, dict[str, list[float]]]
    grounded: dict[str, list[Grounded]]


@dataclass(frozen=True)
class Run:
    """A finished run, under the name that a comparison gives it; `samples` is None where samples.jsonl is missing."""

    folder: Path
    name: str
    results: Results
    samples: Samples | None


def load_runs(folders: Sequence[Path]) -> tuple[Run, ...]:
    """The runs in the order given, each with a name of its own.

    Raises:
        BadInput: no folder, one given twice, or one that holds no finished run of schema 1.
        DataError: a samples.jsonl holds a row that no probe run writes.
    """
    if not folders:
        raise BadInput("no run folder given, wanted one or more that `nextturn probe run` made")
    folders = expand(folders)
    for folder, count in Counter(Path(folder).resolve() for folder in folders).items():
        if count > 1:
            raise BadInput(f"{folder}: given {count} times, wanted each run once")
    results = [read_results(folder) for folder in folders]
    names = _names(folders, [result.model for result in results])
    return tuple(
        Run(folder, name, result, read_samples(folder / "samples.jsonl"))
        for folder, name, result in zip(folders, names, results, strict=True)
    )


def expand(folders: Sequence[Path]) -> list[Path]:
    """The folders with a training run's folder replaced by its finished probes: base first, then by step."""
    found: list[Path] = []
    for folder in folders:
        if (folder / "results.json").is_file() or not (folder / "probe").is_dir():
            found.append(folder)
            continue
        probes = [folder / "probe" / "base", *(probe for _, probe in reversed(numbered(folder / "probe", "step")))]
        finished = [probe for probe in probes if (probe / "results.json").is_file()]
        if not finished:
            raise BadInput(f"{folder}: a training run without a finished probe; wanted one in {folder / 'probe'}")
        found += finished
    return found


def read_results(folder: Path) -> Results:
    """The results of a finished run.

    Raises:
        BadInput: there is no such folder, the run is unfinished, or its file is of another schema or shape.
        DataError: its file is no JSON.
    """
    if not folder.is_dir():
        what = "a file" if folder.exists() else "no such folder"
        raise BadInput(f"{folder}: {what}, wanted a folder that `nextturn probe run` made")
    path = folder / "results.json"
    if not path.exists():
        if (folder / "manifest.json").exists() or (folder / "samples.jsonl").exists():
            again = f"`nextturn probe run` with --out {folder} takes it up where it stopped"
            raise BadInput(f"{folder}: the run is unfinished; {again}")
        inside = sorted(path.parent for path in folder.glob("*/results.json"))
        hint = f"; did you mean {' '.join(str(path) for path in inside)}?" if inside else ""
        raise BadInput(f"{folder}: no results.json, wanted a folder that `nextturn probe run` made{hint}")
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


def read_samples(path: Path) -> Samples | None:
    """None where there is no such file. Raises DataError with file:line for a row that no probe run writes.

    What was read once is kept while the file stays as it is: training compares again after every checkpoint.
    """
    if not path.exists():
        return None
    stamp = path.stat()
    return _read_samples(path.absolute(), stamp.st_mtime_ns, stamp.st_size)


@cache
def _read_samples(path: Path, modified: int, size: int) -> Samples:
    values: dict[Metric, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    grounded: dict[str, list[Grounded]] = defaultdict(list)
    for number, row in read_jsonl(path):
        try:
            item, name = str(row["item"]), str(row["set"])
            for metric, value in _values(row):
                values[metric][item].append(float(value))
            if row["kind"] == "followup" and row["perturbation"] == "none":
                label, grounding = row["label"], row["grounding"]
                if label is not None and grounding is not None:
                    grounded[name].append(Grounded(item, label, float(grounding)))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}:{number}: not a row of a probe run ({error!r})") from None
    return Samples({metric: dict(by_item) for metric, by_item in values.items()}, dict(grounded))


def _values(row: dict[str, Any]) -> Iterator[tuple[Metric, float]]:
    """What one row adds to which metric; nothing for a value that could not be scored."""
    kind, name = row["kind"], row["set"]
    if kind == "accuracy":
        for scoring in ("lenient", "strict"):
            if row[scoring] is not None:
                yield Metric(kind, name, scoring), row[scoring]
    elif kind == "clarify":
        yield Metric(kind, name, CLARIFY[row["condition"]]), clarify_right(row)
    elif kind == "followup":
        if row["label"] is not None:
            yield Metric(kind, name, f"T={float(row['temperature'])}", row["perturbation"]), row["label"] == GENUINE
    elif kind == "actual":
        if row["label"] is not None:
            yield Metric(kind, name, "actual"), row["label"] == GENUINE
    else:
        raise ValueError(f"kind {kind}")


def _names(folders: Sequence[Path], models: Sequence[Model]) -> list[str]:
    """Label and step; with the names of the folders above where that is not enough to tell runs apart.

    The checkpoints of one training run are named alike: all of them with its folder, or none.
    """
    plain = []
    for model in models:
        stepped = model.step and not re.search(rf"(?<!\d){model.step}(?!\d)", model.label)
        plain.append(printable(f"{model.label} step-{model.step}" if stepped else model.label) or "unnamed")
    families = [
        str(folder.absolute().parent) if model.step else "" for folder, model in zip(folders, models, strict=True)
    ]
    # A training run keeps its probes in RUN/probe/step-N: that middle name says nothing, nor does the run's own again.
    above = [tuple(part for part in folder.absolute().parts[1:] if part != "probe") for folder in folders]
    above = [parts[:-1] if parts and parts[-1] == name else parts for parts, name in zip(above, plain, strict=True)]
    names = plain
    for depth in range(1, 6):
        count = Counter(names)
        unclear = {index for index, name in enumerate(names) if count[name] > 1}
        mixed = {families[index] for index in unclear} - {""}
        unclear |= {index for index, family in enumerate(families) if family in mixed}
        names = [
            printable("/".join((*above[index][-depth:], plain[index]))) if index in unclear else name
            for index, name in enumerate(names)
        ]
    seen = Counter[str]()
    for index, name in enumerate(names):
        seen[name] += 1
        names[index] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names


# --- The comparison itself.


@dataclass(frozen=True)
class Pattern:
    """What one set shows for one run; `sampled_at` is the highest temperature, such as "T=1.0"."""

    name: str
    greedy: Estimate
    sampled: Estimate
    sampled_at: str | None


@dataclass(frozen=True)
class Perturbed:
    """A positive control: one perturbation of one run, held against the run without it.

    `difference` is perturbed minus plain, `changed_text` the share of user turns whose text changed. Each is None where
    it was not measured.
    """

    run: str
    set: str
    perturbation: str
    temperature: str
    changed_text: Cell | None
    difference: PairedDifference | None


@dataclass(frozen=True)
class Grounding:
    """What grounding is worth in one run and set: unperturbed user turns, all temperatures together.

    `auc` is the chance that a genuine turn is grounded better than another one; `labels` has the mean in nats per
    token for each label that was given.
    """

    run: str
    set: str
    auc: Estimate
    labels: dict[str, Estimate]


@dataclass(frozen=True)
class AgainstActual:
    """Generated user turns minus the real ones of the same transcripts; `difference` is None without rows."""

    run: str
    set: str
    temperature: str
    difference: PairedDifference | None


@dataclass(frozen=True)
class CorrectedRate:
    """A follow-up rate of one run beside what `labels` make of it; `bias` is judged minus corrected.

    `set` or `temperature` (such as "T=0.7") is None where all of them are taken together.
    """

    run: str
    set: str | None
    temperature: str | None
    labels: int
    judged: Estimate
    corrected: Estimate
    bias: Estimate


@dataclass(frozen=True)
class CorrectedDifference:
    """A run minus the baseline, as the judge has it and corrected; else as `CorrectedRate`."""

    run: str
    set: str | None
    temperature: str | None
    judged: Estimate
    corrected: Estimate


@dataclass(frozen=True)
class Correction:
    """What labels make of the follow-up rates of runs (`probe.correct`).

    `labels` and `unsure` count by run; a run without labels has 0 and is in none of the rates.
    """

    files: tuple[str, ...]
    labels: dict[str, int]
    unsure: dict[str, int]
    rates: tuple[CorrectedRate, ...]
    differences: tuple[CorrectedDifference, ...]

    @property
    def behind(self) -> str:
        """180 labels (base 60, step-20 60, step-39 60; 7 unsure)"""
        each = ", ".join(f"{printable(run)} {count}" for run, count in self.labels.items() if count)
        unsure = sum(self.unsure.values())
        return f"{sum(self.labels.values())} labels ({each}{f'; {unsure} unsure' if unsure else ''})"

    def rate(self, run: str, name: str | None, decoding: str | None) -> CorrectedRate | None:
        wanted = (run, name, decoding)
        return next((one for one in self.rates if (one.run, one.set, one.temperature) == wanted), None)


OneOf = TypeVar("OneOf", CorrectedRate, CorrectedDifference)


def grouped(rows: Sequence[OneOf]) -> list[OneOf]:
    """The runs of each rate beside each other."""
    order = list(dict.fromkeys((row.set, row.temperature) for row in rows))
    return sorted(rows, key=lambda row: order.index((row.set, row.temperature)))


MANY = 8
"""Up to so many runs are named and shown one by one; beyond, where paths end."""


@dataclass(frozen=True)
class Comparison:
    """Everything that the pages, the table and the plot show; tuples follow the order of `runs`.

    `figures` holds NOTHING where a run lacks a metric; `paired` holds None for the baseline and where either
    run lacks it. `differences` says what was measured differently, `remarks` what may differ and does. `correction` holds
    what labels say, where there are any, and `warnings` why labels that are there cannot be used.
    """

    runs: tuple[Run, ...]
    figures: dict[Metric, tuple[Estimate, ...]]
    paired: dict[Metric, tuple[PairedDifference | None, ...]]
    perturbed: tuple[Perturbed, ...]
    grounding: tuple[Grounding, ...]
    against_actual: tuple[AgainstActual, ...]
    differences: tuple[str, ...]
    remarks: tuple[str, ...]
    correction: Correction | None = None
    warnings: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(run.name for run in self.runs)

    def sets(self, measure: str) -> list[str]:
        return list(dict.fromkeys(metric.set for metric in self.figures if metric.measure == measure))

    def temperatures(self, name: str) -> list[str]:
        """The decodings of one follow-up set without perturbation, upwards: "T=0.0", "T=0.7"."""
        return [metric.name for metric in self.figures if metric == Metric("followup", name, metric.name)]

    def sizes(self, metric: Metric) -> str:
        """100, or 98/100 where runs have different numbers of observations."""
        return "/".join(map(str, sorted({estimate.n for estimate in self.figures[metric] if estimate.n})))

    @cached_property
    def followup(self) -> str:
        """What judged follow-up rates are called."""
        names = {followup_name(run.results.settings.others.get("judge")) for run in self.runs}
        return ROUGH if ROUGH in names else names.pop()

    def title(self, metric: Metric) -> str:
        """What a metric is called beside the name of its set."""
        if metric.measure == "followup":
            return f"{self.followup} {metric.name}"
        return "accuracy" if metric.name == "lenient" else metric.name

    @cached_property
    def all_corrected(self) -> bool:
        """Whether every run has labels. Only then do drawings show corrected rates: a mixture would compare two readers."""
        return self.correction is not None and all(self.correction.labels.get(name) for name in self.names)

    def drawn(self, metric: Metric) -> tuple[Estimate, ...]:
        """What drawings show of a metric, in the order of the runs."""
        if not self.all_corrected:
            return self.figures[metric]
        return tuple(self.corrected(metric, index) for index in range(len(self.runs)))

    def corrected(self, metric: Metric, index: int) -> Estimate:
        """Return a run's figure, by its labels if it is a follow-up rate and the run has any."""
        plain = self.correction and metric == Metric("followup", metric.set, metric.name)
        found = self.correction.rate(self.names[index], metric.set, metric.name) if self.correction and plain else None
        return found.corrected if found else self.figures[metric][index]

    @cached_property
    def as_judged(self) -> list[str]:
        """The runs whose follow-up differs from the baseline's as the judge has it: not both of the two have labels."""
        compared = [found for metric, found in self.paired.items() if metric.measure == "followup"]
        corrected = {change.run for change in self.correction.differences} if self.correction else set()
        differ = [name for index, name in enumerate(self.names) if any(changes[index] for changes in compared)]
        return [name for name in differ if name not in corrected]

    @cached_property
    def patterns(self) -> dict[str, tuple[Pattern, ...]]:
        """What each follow-up set shows for each run, by labels where the run has any."""
        every = range(len(self.runs))
        figures = [{metric: self.corrected(metric, index) for metric in self.figures} for index in every]
        return {name: tuple(pattern_of(name, of_run) for of_run in figures) for name in self.sets("followup")}

    @cached_property
    def overall(self) -> tuple[str, ...]:
        """The pattern of each run over all sets."""
        return tuple(
            overall([found[index].name for found in self.patterns.values()]) for index in range(len(self.runs))
        )

    @cached_property
    def paths(self) -> list[list[int]]:
        """Runs by training run: checkpoints of one folder in step order; a run without a step is a path of its own.

        What a training run started from (its step 0) is the first of its path. The baseline is in none of them.
        """
        grouped: dict[tuple[str, ...], list[int]] = {}
        for index, one in enumerate(self.runs[1:], start=1):
            model = one.results.model
            stem = re.sub(r"[\W_]*(step|checkpoint)?[\W_]*\d+$", "", model.label)
            key: tuple[str, ...] = (str(one.folder.absolute().parent), stem) if model.step else (one.name,)
            grouped.setdefault(key, []).append(index)
        for one in self.runs[1:]:
            stepped = [key for key in grouped if len(key) == 2 and key[0] == str(one.folder.absolute().parent)]
            if one.results.model.step == 0 and len(stepped) == 1:
                grouped[stepped[0]] += grouped.pop((one.name,))
        steps = [one.results.model.step or 0 for one in self.runs]
        return [sorted(group, key=lambda index: steps[index]) for group in grouped.values()]

    @property
    def ends(self) -> list[int]:
        """The runs that detailed tables show: all of up to MANY, else the baseline and the last of each path."""
        if len(self.runs) <= MANY:
            return list(range(len(self.runs)))
        return sorted({0, *(path[-1] for path in self.paths)})

    @cached_property
    def unscored(self) -> list[str]:
        """One line for each run in which some user turns got no label, over all its sets and temperatures."""
        lines = []
        for run in self.runs:
            cells = [cell for name in run.results.followup.values() for cell in name.values()]
            parts = [part for cell in cells for part in cell.values()]
            reasons = sum((Counter(part.unscored) for part in parts), Counter[str]())
            total = sum(part.n_total for part in parts)
            if reasons and total:
                why = ", ".join(f"{printable(reason)} {count}" for reason, count in sorted(reasons.items()))
                lines.append(f"{run.name} {100 * reasons.total() / total:.1f}% of {total} user turns ({why})")
        return lines


def compare_runs(runs: Sequence[Run]) -> Comparison:
    """The comparison of runs in order; writes nothing and refuses nothing."""
    per_run = [dict(figures_of(run.results)) for run in runs]
    metrics = sorted({metric for figures in per_run for metric in figures}, key=_order(runs))
    baseline = runs[0]
    return Comparison(
        runs=tuple(runs),
        figures={metric: tuple(figures.get(metric, NOTHING) for figures in per_run) for metric in metrics},
        paired={
            metric: tuple(
                None if run is baseline else _difference(baseline.samples, metric, run.samples, metric) for run in runs
            )
            for metric in metrics
        },
        perturbed=tuple(found for run in runs for found in _perturbed(run)),
        grounding=tuple(
            Grounding(run.name, name, *_grounding(run.samples, name))
            for run in runs
            for name in (run.samples.grounded if run.samples else ())
        ),
        against_actual=tuple(found for run in runs for found in _against_actual(run)),
        differences=tuple(differences(runs)),
        remarks=tuple(remarks(runs)),
    )


_NAMES = ("lenient", "strict", "ask_when_needed", "answer_when_complete")


def _order(runs: Sequence[Run]) -> Callable[[Metric], tuple[Any, ...]]:
    """Measures, sets as the recipe names them, the plain run before perturbed ones, temperatures upwards."""
    sets = list(dict.fromkeys(name for run in runs for name in run.results.settings.sets))

    def key(metric: Metric) -> tuple[Any, ...]:
        rank = sets.index(metric.set) if metric.set in sets else len(sets)
        number = _NAMES.index(metric.name) if metric.name in _NAMES else temperature(metric.name)
        plain = metric.perturbation != "none"
        return metric.measure != "accuracy", metric.measure, rank, metric.set, plain, metric.perturbation, number

    return key


@cache
def _difference(
    before: Samples | None, metric: Metric, after: Samples | None, other: Metric
) -> PairedDifference | None:
    """`other` in the rows after minus `metric` in those before, by item; None where either has none."""
    if before is None or after is None or metric not in before.values or other not in after.values:
        return None
    return paired_difference(before.values[metric], after.values[other])


def _perturbed(run: Run) -> Iterator[Perturbed]:
    """Every set, perturbation and temperature that was measured with and without the perturbation."""
    for metric, _ in figures_of(run.results):
        if metric.measure == "followup" and metric.perturbation != "none":
            plain = Metric("followup", metric.set, metric.name)
            changed = run.results.followup[metric.set][metric.perturbation][metric.name].changed_text
            difference = _difference(run.samples, plain, run.samples, metric)
            yield Perturbed(run.name, metric.set, metric.perturbation, metric.name, changed, difference)


@cache
def _grounding(samples: Samples, name: str) -> tuple[Estimate, dict[str, Estimate]]:
    """The AUC of genuine turns against others, and the mean of each label, of one set's labelled user turns."""
    turns = samples.grounded[name]
    by_label = {label: [turn for turn in turns if turn.label == label] for label in in_order({t.label for t in turns})}
    separation = auc(
        [turn.grounding for turn in turns], [turn.label == GENUINE for turn in turns], [turn.item for turn in turns]
    )
    means = {
        label: mean_ci([turn.grounding for turn in found], [turn.item for turn in found])
        for label, found in by_label.items()
    }
    return separation, means


def _against_actual(run: Run) -> Iterator[AgainstActual]:
    """Every temperature of the transcript sets, without perturbation."""
    for name in run.results.actual:
        for decoding in run.results.followup.get(name, {}).get("none", {}):
            real, generated = Metric("actual", name, "actual"), Metric("followup", name, decoding)
            yield AgainstActual(run.name, name, decoding, _difference(run.samples, real, run.samples, generated))


# --- What a set shows for a run, in the words of arXiv 2604.02315: latent, absent or present, and over sets,
# context-bound. Read from intervals rather than values, so that a small set says "unclear":
#
# - present: greedy decoding gives genuine follow-ups (interval at or above LOW)
# - latent:  greedy does not (interval below LOW), sampling at the highest temperature does
# - absent:  neither does
#
# A run whose clear sets do not all show one pattern is context-bound.

LOW = 0.10
"""Follow-up rate that divides low from high. The paper calls 1-5% collapsed and 15-47% surfacing under sampling."""

CLEAR = ("present", "latent", "absent")


def pattern_of(name: str, figures: Mapping[Metric, Estimate]) -> Pattern:
    """The pattern of set `name` in one run's figures."""
    of_set = {
        metric.name: estimate for metric, estimate in figures.items() if metric == Metric("followup", name, metric.name)
    }
    greedy = of_set.get("T=0.0", NOTHING)
    sampled_at = max((one for one in of_set if temperature(one) > 0), key=temperature, default=None)
    sampled = of_set[sampled_at] if sampled_at else NOTHING
    if _level(greedy) == "high":
        found = "present"
    elif _level(greedy) == "low" and _level(sampled) == "high":
        found = "latent"
    elif _level(greedy) == _level(sampled) == "low":
        found = "absent"
    else:
        found = "unclear" if greedy.n or sampled.n else "not measured"
    return Pattern(found, greedy, sampled, sampled_at)


def overall(patterns: Sequence[str]) -> str:
    """The one pattern of all clear sets, "context-bound" where they differ, "unclear" where none is clear."""
    clear = {name for name in patterns if name in CLEAR}
    return "context-bound" if len(clear) > 1 else next(iter(clear), "unclear")


def _level(estimate: Estimate) -> str:
    if estimate.ci95 is None:
        return "unknown"
    return "low" if estimate.ci95[1] < LOW else "high" if estimate.ci95[0] >= LOW else "unclear"


# --- Were these runs measured alike? Only then may they be compared.
#
# Every setting must agree but those listed here; so a setting that nobody thought of makes runs incomparable,
# never silently comparable.

# Another engine gives the same kind of number; the others decide which numbers there are, not what each of them is.
MAY_DIFFER = ("engine", "temperatures", "samples", "perturbations", "grounding", "actual")


def differences(runs: Sequence[Run]) -> list[str]:
    """Why these runs should not be compared, one line per reason; empty when they were measured alike."""
    lines = [_differing(runs, "chat template", [run.results.model.template_sha256 for run in runs])]
    keys = {key for run in runs for key in run.results.settings.others}
    lines += [_differing(runs, key, _values_of(runs, key)) for key in sorted(keys - set(MAY_DIFFER))]
    for name, infos in _set_infos(runs).items():
        lines.append(_differing(runs, f"set {name}", [info and f"{info.n} items {info.sha256}" for info in infos]))
    return [line for line in lines if line]


def remarks(runs: Sequence[Run]) -> list[str]:
    """What differs and may, and what a reader should know about the folders."""
    lines = [_differing(runs, key, _values_of(runs, key)) for key in MAY_DIFFER]
    for name, infos in _set_infos(runs).items():
        measures = [info and ", ".join(info.measures) for info in infos]
        lines.append(_differing(runs, f"measures on set {name}", measures))
    lines += [
        f"{run.name}: no samples.jsonl beside its results.json, so no paired test" for run in runs if not run.samples
    ]
    return [line for line in lines if line]


def _values_of(runs: Sequence[Run], key: str) -> list[Any]:
    return [run.results.settings.others.get(key) for run in runs]


def _set_infos(runs: Sequence[Run]) -> dict[str, list[SetInfo | None]]:
    names = dict.fromkeys(name for run in runs for name in run.results.settings.sets)
    return {name: [run.results.settings.sets.get(name) for run in runs] for name in names}


def _differing(runs: Sequence[Run], key: str, values: Sequence[Any]) -> str | None:
    """'judge: rules-1 (base), llm-2 (sft, rl)' when the runs do not all have one value."""
    groups: dict[str, list[str]] = defaultdict(list)
    for run, value in zip(runs, values, strict=True):
        shown = "nothing" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        groups[shown].append(run.name)
    if len(groups) == 1:
        return None
    shortened = {value: printable(re.sub(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b", r"\1", value)) for value in groups}
    return f"{printable(key)}: " + ", ".join(f"{shortened[value]} ({', '.join(who)})" for value, who in groups.items())


# --- comparison.json


def as_json(comparison: Comparison) -> dict[str, Any]:
    """comparison.json, schema 1; rates in [0, 1], differences as run minus baseline, perturbed minus plain, or
    generated minus actual."""
    names, runs = comparison.names, comparison.runs
    results = {run.name: run.results.model_dump(include={"followup", "actual"}) for run in runs}
    return {
        "schema": 1,
        "baseline": names[0],
        "runs": [{"name": run.name, "folder": str(run.folder), **run.results.model.model_dump()} for run in runs],
        "settings": runs[0].results.settings.model_dump(),
        "differences": list(comparison.differences),
        "remarks": list(comparison.remarks),
        "metrics": [_metric_json(comparison, metric) for metric in comparison.figures],
        "outcomes": {run.name: {name: part.outcomes for name, part in run.results.accuracy.items()} for run in runs},
        "followup": {name: result["followup"] for name, result in results.items()},
        "actual": {name: result["actual"] for name, result in results.items()},
        "against_actual": [plain(one) for one in comparison.against_actual],
        "perturbations": [plain(one) for one in comparison.perturbed],
        "grounding": [plain(one) for one in comparison.grounding],
        "patterns": {
            "low": LOW,
            "sets": {
                name: dict(zip(names, (pattern.name for pattern in found), strict=True))
                for name, found in comparison.patterns.items()
            },
            "overall": dict(zip(names, comparison.overall, strict=True)),
        },
        **({"correction": plain(comparison.correction)} if comparison.correction else {}),
        **({"as_judged": comparison.as_judged} if comparison.as_judged else {}),
        **({"warnings": list(comparison.warnings)} if comparison.warnings else {}),
    }


def _metric_json(comparison: Comparison, metric: Metric) -> dict[str, Any]:
    return {
        "measure": metric.measure,
        "set": metric.set,
        "name": metric.name,
        "perturbation": metric.perturbation if metric.measure == "followup" else None,
        "runs": _by_run(comparison.names, comparison.figures[metric]),
        "against_baseline": {
            name: {**change.as_json(), "gained_items": list(change.gained_items), "lost_items": list(change.lost_items)}
            for name, change in zip(comparison.names, comparison.paired[metric], strict=True)
            if change is not None
        },
    }


def _by_run(names: Sequence[str], found: Sequence[Estimate]) -> dict[str, Any]:
    return {name: plain(one) if one.n else None for name, one in zip(names, found, strict=True)}


def plain(value: Any) -> Any:
    """A finding as it stands in comparison.json: field by field, figures with their n."""
    if isinstance(value, Estimate):
        return {**value.as_json(), "n": value.n}
    if isinstance(value, PairedDifference):
        return value.as_json()
    if isinstance(value, Cell):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    return {one.name: plain(getattr(value, one.name)) for one in fields(value)} if is_dataclass(value) else value


# --- The main figures, in blocks of columns, for the terminal and for the pages.
#
# A measure stands in a block with the sets of other measures unless a set of the same measure is in it already: a small
# probe gives one table with everything in it, and a large one a table per set instead of one that nobody can read.

WIDTH = 140
COLUMNS = 6


def blocks(comparison: Comparison) -> list[list[Metric]]:
    """Columns of the main tables: every metric but strict accuracy and perturbed follow-ups, in blocks."""
    columns = [one for one in comparison.figures if one.name != "strict" and one.perturbation == "none"]
    packed: list[list[Metric]] = []
    for name in dict.fromkeys(one.set for one in columns):
        of_set = [one for one in columns if one.set == name]
        measures = {one.measure for one in of_set}
        room = (block for block in packed if measures.isdisjoint(one.measure for one in block))
        block = next(room, None)
        if block is None:
            packed.append(block := [])
        block += of_set
    chosen = [[one for one in columns if one in block] for block in packed]
    return [block[start : start + COLUMNS] for block in chosen for start in range(0, len(block), COLUMNS)]


def percent(estimate: Estimate, sign: str = "") -> str:
    """57.0 [47.2, 66.3]"""
    return _figure(estimate, 100, f"{sign}.1f")


def _figure(estimate: Estimate, scale: int, form: str) -> str:
    if estimate.value is None:
        return "-"
    bounds = ", ".join(format(scale * bound, form) for bound in estimate.ci95 or ())
    return f"{format(scale * estimate.value, form)}{bounds and f' [{bounds}]'}"


def points(estimate: Estimate) -> str:
    """+12.0 [+3.1, +20.5]: a difference"""
    return percent(estimate, "+")


def format_table(results: Sequence[dict[str, Any]]) -> str:
    """The main table of one or more contents of results.json, for the terminal; their rows stay out, so nothing is paired."""
    checked = [Results.model_validate(result) for result in results]
    folders = [Path(result.model.path) for result in checked]
    names = _names(folders, [result.model for result in checked])
    runs = [Run(*one, Samples({}, {})) for one in zip(folders, names, checked, strict=True)]
    return terminal_table(compare_runs(runs))


def terminal_table(comparison: Comparison) -> str:
    """The main figures for the terminal: percent with 95% intervals, 140 columns wide, or as wide as six columns are.

    Below the tables: what pattern each set shows, what real users reach, how many user turns got no label, and what
    differs.
    """
    notes = ["percent [95% interval]"]
    corrected = ", corrected where a run has labels," if comparison.correction else ""
    for name, patterns in comparison.patterns.items():
        runs_by_pattern: dict[str, list[str]] = {}
        for run, pattern in zip(comparison.names, patterns, strict=True):
            runs_by_pattern.setdefault(pattern.name, []).append(run)
        listed = "; ".join(f"{pattern} ({', '.join(runs)})" for pattern, runs in runs_by_pattern.items())
        notes.append(f"{comparison.followup}{corrected} on {printable(name)}: {listed}")
    real = {name: turns for run in comparison.runs for name, turns in run.results.actual.items()}
    notes += [f"real users on {printable(name)}: {percent(turns.genuine)}" for name, turns in real.items()]
    accuracies = [(one.name, name, part) for one in comparison.runs for name, part in one.results.accuracy.items()]
    for of_run, name, part in accuracies:
        if cut := part.outcomes.get("truncated"):
            share = f"{cut} of {part.n} answers ({cut / part.n:.0%})"
            notes.append(
                f"truncated: {share} to {printable(name)} ({of_run}) hit the token limit without a marked answer"
            )
    notes += [f"unscored: {line}" for line in comparison.unscored]
    notes += [f"MEASURED DIFFERENTLY: {line}" for line in comparison.differences]
    notes += [f"note: {line}" for line in comparison.remarks]
    notes += [f"labels: {line}" for line in comparison.warnings]
    wrapped = [textwrap.fill(note, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for note in notes]
    tables = [_terminal_block(comparison, block) for block in blocks(comparison)]
    return "\n\n".join([*tables, "\n".join(wrapped)])


def _terminal_block(comparison: Comparison, block: Sequence[Metric]) -> str:
    """Three header lines (set, n and measure; metric; rule), then one line per run."""
    columns = [
        (
            metric.name if metric.measure == "followup" else comparison.title(metric),
            [*map(percent, comparison.figures[metric])],
        )
        for metric in block
    ]
    widths = [max(map(len, [head, *cells])) for head, cells in columns]
    over = ""
    for (name, measure), group in groupby(
        range(len(block)), key=lambda index: (block[index].set, block[index].measure)
    ):
        of_set = list(group)
        sizes = dict.fromkeys(comparison.sizes(block[index]) for index in of_set)
        told = f", n = {', '.join(sizes)}{f': {comparison.followup}' if measure == 'followup' else ''}"
        span = sum(widths[index] for index in of_set) + 2 * (len(of_set) - 1)
        wider = max(0, min(len(printable(name)), 20) + len(told) - span)
        widths[of_set[-1]] += wider
        over += f"  {_shortened(printable(name), span + wider - len(told))}{told}".ljust(span + wider + 2)
    names = [_shortened(name, max(12, WIDTH - sum(widths) - 2 * len(widths))) for name in comparison.names]
    sets = " " * max(map(len, names)) + over
    filled = [[head.ljust(width), *cells] for (head, cells), width in zip(columns, widths, strict=True)]
    rows = zip(["", *names], *filled, strict=True)
    head, *lines = aligned(list(rows))
    return "\n".join([sets.rstrip(), head, "-" * max(map(len, [head, *lines])), *lines])


def _shortened(text: str, room: int) -> str:
    """Cut in the middle: what tells names apart stands at their ends."""
    return text if len(text) <= room else f"{text[: (room - 1) // 2]}…{text[-(room // 2) :]}"
