"""What results.json holds, and the reading of it. Files of older runs of the same schema lack the newer keys."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from probe.errors import BadInput, DataError
from probe.files import read_json, read_jsonl
from probe.judges.labels import GENUINE, in_order
from probe.measures import clarify_figures
from probe.stats import NOTHING, Estimate, PairedDifference, auc, mean_ci, paired_difference

if TYPE_CHECKING:
    from probe.compare import Comparison


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


# --- What a comparison needs of samples.jsonl: values by metric and item, and the grounding of labelled user turns.

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
        for condition, cell in clarify_figures([row]).items():
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


# --- Finished probe runs as they are compared: found on disk, read, and each given a name of its own.


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
    results = [read_results(folder) for folder in folders]
    names = _names(folders, [result.model for result in results])
    paths = [folder / "samples.jsonl" for folder in folders]
    return tuple(
        Run(folder, name, result, read_samples(path) if path.exists() else None)
        for folder, name, result, path in zip(folders, names, results, paths, strict=True)
    )


def runs_of(results: Sequence[dict[str, Any]]) -> tuple[Run, ...]:
    """Runs from contents of results.json that are at hand; their rows stay out, so nothing is paired."""
    checked = [Results.model_validate(result) for result in results]
    folders = [Path(result.model.path) for result in checked]
    names = _names(folders, [result.model for result in checked])
    empty = Samples({}, {})
    return tuple(Run(folder, name, result, empty) for folder, name, result in zip(folders, names, checked, strict=True))


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
    names = plain
    for depth in range(1, 6):
        count = Counter(names)
        unclear = {index for index, name in enumerate(names) if count[name] > 1}
        mixed = {families[index] for index in unclear} - {""}
        unclear |= {index for index, family in enumerate(families) if family in mixed}
        # A training run keeps its probes in RUN/probe/step-N: that middle name says nothing.
        above = [tuple(part for part in folder.absolute().parts[1:] if part != "probe") for folder in folders]
        above = [parts[:-1] if parts and parts[-1] == name else parts for parts, name in zip(above, plain, strict=True)]
        names = [
            printable("/".join((*above[index][-depth:], plain[index]))) if index in unclear else name
            for index, name in enumerate(names)
        ]
    seen = Counter[str]()
    for index, name in enumerate(names):
        seen[name] += 1
        names[index] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names


# --- Were these runs measured alike? Only then may they be compared.
#
# Every setting must agree but those listed here; so a setting that nobody thought of makes runs incomparable,
# never silently comparable.

# Another engine gives the same kind of number; the others decide which numbers there are, not what each of them is.
MAY_DIFFER = ("engine", "temperatures", "samples", "perturbations", "grounding", "actual")

# What a run certainly did that was made before the setting existed.
BEFORE: dict[str, Any] = {"perturbations": [], "grounding": False}


def differences(runs: Sequence[Run]) -> list[str]:
    """Why these runs should not be compared, one line per reason; empty when they were measured alike."""
    told = [_told(runs, "chat template", [run.results.model.template_sha256 for run in runs])]
    keys = {key for run in runs for key in run.results.settings.others()}
    told += [_told(runs, key, _alike_values(runs, key)) for key in sorted(keys - set(MAY_DIFFER))]
    for name in _set_names(runs):
        infos = [run.results.settings.sets.get(name) for run in runs]
        told.append(_told(runs, f"set {name}", [info and f"{info.n} items {info.sha256}" for info in infos]))
    return [line for line in told if line]


def remarks(runs: Sequence[Run]) -> list[str]:
    """What differs and may, and what a reader should know about the folders."""
    told = [_told(runs, key, _alike_values(runs, key)) for key in MAY_DIFFER]
    for name in _set_names(runs):
        infos = [run.results.settings.sets.get(name) for run in runs]
        told.append(_told(runs, f"measures on set {name}", [info and ", ".join(info.measures) for info in infos]))
    for run in runs:
        if run.samples is None:
            told.append(f"{run.name}: no samples.jsonl beside its results.json, so no paired test")
    return [line for line in told if line]


def _alike_values(runs: Sequence[Run], key: str) -> list[Any]:
    return [run.results.settings.others().get(key, BEFORE.get(key)) for run in runs]


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


# --- What a set shows for a run, in the words of arXiv 2604.02315: latent, absent or present, and over sets, context-bound.
#
# Read from intervals rather than values, so that a small set says "unclear":
#
# - present: greedy decoding gives genuine follow-ups (interval at or above LOW)
# - latent:  greedy does not (interval below LOW), sampling at the highest temperature does
# - absent:  neither does
#
# A run whose clear sets do not all show one pattern is context-bound.

LOW = 0.10
"""Follow-up rate that divides low from high. The paper calls 1-5% collapsed and 15-47% surfacing under sampling."""

CLEAR = ("present", "latent", "absent")

MEANING = {
    "present": "Greedy decoding gives genuine follow-ups: the model says by itself what a person could say next.",
    "latent": "Greedy decoding hides what sampling brings out: the model can say what a person could say next, and "
    "as a rule does not.",
    "absent": "Neither greedy decoding nor sampling gives genuine follow-ups.",
    "context-bound": "The clear sets show different patterns: what the model can do depends on the kind of "
    "conversation.",
    "unclear": "An interval crosses the line between low and high, so more items are needed to tell.",
    "not measured": "Greedy decoding or sampling was not measured.",
}


@dataclass(frozen=True)
class Pattern:
    """What one set shows for one run; `sampled_at` is the highest temperature, such as "T=1.0"."""

    name: str
    greedy: Estimate
    sampled: Estimate
    sampled_at: str | None


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
        found = "unclear" if greedy.n and sampled.n else "not measured"
    return Pattern(found, greedy, sampled, sampled_at)


def overall(patterns: Sequence[str]) -> str:
    """The one pattern of all clear sets, "context-bound" where they differ, "unclear" where none is clear."""
    clear = {name for name in patterns if name in CLEAR}
    return "context-bound" if len(clear) > 1 else next(iter(clear), "unclear")


def _level(estimate: Estimate) -> str:
    if estimate.ci95 is None:
        return "unknown"
    return "low" if estimate.ci95[1] < LOW else "high" if estimate.ci95[0] >= LOW else "unclear"


# --- What one run says by itself, without a baseline: its perturbations, its grounding, and the real users' turns.
#
# - A perturbation is a positive control: the run with it, held against the run without, paired by item.
# - Grounding is worth what it tells apart: genuine turns from others (AUC), and its mean per label.
# - On transcripts the real users' turns, judged by the same judge, are the ceiling: generated turns minus real ones.


@dataclass(frozen=True)
class Perturbed:
    """One perturbation of one run; `difference` is perturbed minus plain, None where rows are missing.

    `changed_text` is the share of user turns whose text changed, without a value where it was not measured.
    """

    run: str
    set: str
    perturbation: str
    temperature: str
    changed_text: Estimate
    difference: PairedDifference | None

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "set": self.set,
            "perturbation": self.perturbation,
            "temperature": self.temperature,
            "changed_text": None if self.changed_text.value is None else self.changed_text.as_json(),
            "difference": self.difference and self.difference.as_json(),
        }


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

    def as_json(self) -> dict[str, Any]:
        labels = {label: _counted(found) for label, found in self.labels.items()}
        return {"run": self.run, "set": self.set, "auc": _counted(self.auc), "labels": labels}


@dataclass(frozen=True)
class AgainstActual:
    """Generated user turns minus the real ones of the same transcripts; `difference` is None without rows."""

    run: str
    set: str
    temperature: str
    difference: PairedDifference | None

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "set": self.set,
            "temperature": self.temperature,
            "difference": self.difference and self.difference.as_json(),
        }


def perturbed(run: Run) -> Iterator[Perturbed]:
    """Every set, perturbation and temperature that was measured with and without the perturbation."""
    for name, perturbations in run.results.followup.items():
        for perturbation, temperatures in perturbations.items():
            if perturbation == "none":
                continue
            for temperature, part in temperatures.items():
                plain = Metric("followup", name, temperature)
                difference = _difference(run, plain, Metric("followup", name, temperature, perturbation))
                yield Perturbed(run.name, name, perturbation, temperature, estimate_of(part.changed_text), difference)


def grounding(run: Run) -> Iterator[Grounding]:
    """Every set in which labelled user turns have a grounding."""
    for name, turns in (run.samples.grounded if run.samples else {}).items():
        given = {turn.label for turn in turns}
        labels = in_order(given)
        separation = auc(
            [turn.grounding for turn in turns],
            [turn.label == GENUINE for turn in turns],
            [turn.item for turn in turns],
        )
        yield Grounding(run.name, name, separation, {label: _mean(turns, label) for label in labels})


def against_actual(run: Run) -> Iterator[AgainstActual]:
    """Every temperature of the transcript sets, without perturbation."""
    for name in run.results.actual:
        for temperature in run.results.followup.get(name, {}).get("none", {}):
            difference = _difference(run, actual(name), Metric("followup", name, temperature))
            yield AgainstActual(run.name, name, temperature, difference)


def _difference(run: Run, before: Metric, after: Metric) -> PairedDifference | None:
    values = run.samples.values if run.samples else {}
    return paired_difference(values[before], values[after]) if before in values and after in values else None


def _mean(turns: Sequence[Grounded], label: str) -> Estimate:
    of_label = [turn for turn in turns if turn.label == label]
    return mean_ci([turn.grounding for turn in of_label], [turn.item for turn in of_label])


def _counted(estimate: Estimate) -> dict[str, Any]:
    return {**estimate.as_json(), "n": estimate.n}


# --- The main figures of a comparison in columns, and the table that is printed to the terminal.
#
# Sets share a block of columns as long as no measure stands in it twice, so that a small probe gives one table
# with everything in it, and a large one a table per set instead of one that nobody can read.

WIDTH = 140
COLUMNS = 6


def terminal_table(comparison: Comparison) -> str:
    """The main figures for the terminal: percent with 95% intervals, 140 columns wide, or as wide as six columns are.

    Below the tables: what pattern each set shows, what real users reach, how many user turns got no label, and what
    differs.
    """
    notes = ["percent [95% interval]"]
    for name, patterns in comparison.patterns.items():
        shown: dict[str, list[str]] = {}
        for run, pattern in zip(comparison.names, patterns, strict=True):
            shown.setdefault(pattern.name, []).append(run)
        told = "; ".join(f"{pattern} ({', '.join(runs)})" for pattern, runs in shown.items())
        notes.append(f"follow-up on {printable(name)}: {told}")
    real = {name: part for run in comparison.runs for name, part in run.results.actual.items()}
    notes += [f"real users on {printable(name)}: {percent(rate_of(part))}" for name, part in real.items()]
    notes += [f"unscored: {line}" for line in unscored(comparison)]
    notes += [f"MEASURED DIFFERENTLY: {line}" for line in comparison.differences]
    notes += [f"note: {line}" for line in comparison.remarks]
    wrapped = [textwrap.fill(note, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for note in notes]
    return "\n\n".join([*(_block(comparison, block) for block in blocks(comparison)), "\n".join(wrapped)])


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


def percent(estimate: Estimate) -> str:
    """57.0 [47.2, 66.3]"""
    if estimate.value is None:
        return "-"
    interval = "" if estimate.ci95 is None else " [{:.1f}, {:.1f}]".format(*(100 * bound for bound in estimate.ci95))
    return f"{100 * estimate.value:.1f}{interval}"


def title(metric: Metric) -> str:
    if metric.measure == "followup":
        return f"follow-up {metric.name}"
    return "accuracy" if metric.name == "lenient" else "accuracy (strict)" if metric.name == "strict" else metric.name


def followups(comparison: Comparison, metric: Metric) -> list[Followup | None]:
    return [
        one.results.followup.get(metric.set, {}).get(metric.perturbation, {}).get(metric.name)
        for one in comparison.runs
    ]


def unscored(comparison: Comparison) -> list[str]:
    """One line for each run in which some user turns got no label, over all its sets and temperatures."""
    lines = []
    for run in comparison.runs:
        parts = [
            part
            for perturbations in run.results.followup.values()
            for temperatures in perturbations.values()
            for part in temperatures.values()
        ]
        reasons = sum((Counter(part.unscored) for part in parts), Counter[str]())
        total = sum(part.n_total for part in parts)
        if reasons and total:
            why = ", ".join(f"{printable(reason)} {count}" for reason, count in sorted(reasons.items()))
            lines.append(f"{run.name} {100 * reasons.total() / total:.1f}% of {total} user turns ({why})")
    return lines


def _block(comparison: Comparison, block: Sequence[Metric]) -> str:
    """Three header lines (set and n, metric, rule), then one line per run."""
    cells = [[percent(estimate) for estimate in comparison.figures[metric]] for metric in block]
    widths = [max(map(len, [title(metric), *column])) for metric, column in zip(block, cells, strict=True)]
    names = [_shortened(name, max(12, WIDTH - sum(widths) - 2 * len(widths))) for name in comparison.names]
    first = max(map(len, names))
    sets = " " * first
    for _, group in groupby(range(len(block)), key=lambda index: (block[index].set, block[index].measure)):
        columns = list(group)
        sizes = list(dict.fromkeys(sizes_of(comparison, block[index]) for index in columns))
        span = sum(widths[index] for index in columns) + 2 * (len(columns) - 1)
        sets += "  " + _shortened(f"{printable(block[columns[0]].set)}, n = {', '.join(sizes)}", span).ljust(span)
    rows = [["", *map(title, block)], *([name, *row] for name, *row in zip(names, *cells, strict=True))]
    padded = [
        [row[0].ljust(first), *(cell.ljust(width) for cell, width in zip(row[1:], widths, strict=True))] for row in rows
    ]
    head, *lines = ["  ".join(row).rstrip() for row in padded]
    return "\n".join([sets.rstrip(), head, "-" * max(map(len, [head, *lines])), *lines])


def sizes_of(comparison: Comparison, metric: Metric) -> str:
    """100, or 98/100 where runs have different numbers of observations."""
    return "/".join(map(str, sorted({estimate.n for estimate in comparison.figures[metric] if estimate.n})))


def _shortened(text: str, room: int) -> str:
    """Cut in the middle: what tells names apart stands at their ends."""
    return text if len(text) <= room else f"{text[: (room - 1) // 2]}…{text[-(room // 2) :]}"
