"""Finished probe runs as typed objects: results.json (schema 1) and the values of samples.jsonl.

`nextturn.probe.measures` counts the figures that results.json holds and `nextturn.probe.store` writes the
file. This module is its only schema for readers. Fields that it does not name are ignored, so files of older versions are
still read.

Every number of a run has a `Metric` as its key. `Results.figures` lists the numbers of results.json, and `Samples.values`
holds the values behind the rates item by item, which paired differences need.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from nextturn.probe.command.errors import BadInput, DataError
from nextturn.probe.command.files import read_json, read_jsonl
from nextturn.probe.command.terminal import printable, say
from nextturn.probe.engines.stored import Row
from nextturn.probe.kept import Texts, restored, samples_file, texts_in
from nextturn.probe.measures import MEASURES
from nextturn.probe.measures.base import (
    ByItem,
    Figure,
    Values,
    by_cluster,
    checked,
    cluster_of,
    count,
    read,
    subtracted,
)
from nextturn.probe.measures.followup import Followup
from nextturn.probe.models.checkpoints import newest_complete, numbered
from nextturn.probe.models.folders import ModelInfo
from nextturn.probe.stats import Estimate

SCHEMA = 1

Counted = Annotated[dict[str, Any], AfterValidator(checked)]
"""What a measure counted of one set: "n" and {"value", "ci95"} of each figure (`measures.base.count`)."""


class Metric(NamedTuple):
    """The key of a number of a run.

    Attributes:
        measure: "accuracy"; "outcome" (how the answers of accuracy ended); "clarify"; "sharded"; "doubted"; "instructions"; user turns as "followup",
            "perturbed" (follow-up after a perturbed answer) or "actual" (the real turns of a transcript set); "grounding".
        set: Name of the question set.
        name: Of a figure that the measure declares; an outcome; "rate", "unscored", "label:new_task" and so on of user turns; "AUC" or
            "label:new_task" of grounding.
        temperature: Decoding of the user turns, such as "T=0.7"; "" for every other measure.
        perturbation: What was done to the answer before the user turn, or "none".
        part: The rows that count, such as "depth 2" or "segment pro"; "": all of the set.
    """

    measure: str
    set: str
    name: str
    temperature: str = ""
    perturbation: str = "none"
    part: str = ""


# --- The schema of results.json. Its rates are {"value", "ci95"}; the number of observations stands once for several of them.


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class FollowupResults(_Frozen):
    """User turns of one set, perturbation and temperature, or the real ones of a transcript set.

    `rate` is the share of genuine follow-ups among the judged turns, `grounding` is in nats per token, and
    `changed_text` is the share of turns whose text the perturbation changed. `equal`, `opening` and `opening_share` say how alike the
    turns are (`measures.followup.likeness`).
    """

    n_total: int
    n_judged: int
    rate: float | None
    ci95: tuple[float, float] | None
    labels: dict[str, int]
    unscored: dict[str, int]
    role_consistency: float | None = None
    specificity: float | None = None
    equal: float | None = None
    opening: str = ""
    opening_share: float | None = None
    reachable: Estimate | None = None
    n_items: int = 0
    grounding: Estimate | None = None
    changed_text: Estimate | None = None

    def figures(self) -> dict[str, Estimate]:
        """Return the follow-up rate, the share of each label among judged turns, and what else was measured."""
        n = self.n_judged
        return {
            "rate": Estimate(self.rate, self.ci95, n),
            **({"reachable": replace(self.reachable, n=self.n_items)} if self.reachable else {}),
            **{f"label:{label}": share(count, n) for label, count in self.labels.items()},
            "unscored": share(sum(self.unscored.values()), self.n_total),
            "role_consistency": Estimate(self.role_consistency, None, n),
            "specificity": Estimate(self.specificity, None, n),
            "equal": Estimate(self.equal, None, self.n_total),
            "opening_share": Estimate(self.opening_share, None, self.n_total),
            # Their n stands beside them only where it is not n_judged (`measures.base.count`).
            **{name: replace(of, n=of.n or n) for name in ("grounding", "changed_text") if (of := getattr(self, name))},
        }


class ProbedSet(_Frozen, extra="allow"):
    """How a set was measured. Keys without a field here, such as `shards`, are settings of single measures."""

    sha256: str
    n: int
    measures: tuple[str, ...] = ()
    grader: str | None = None
    own: dict[str, str] = Field(default_factory=dict)


class ProbeSettings(BaseModel):
    """How a run was measured. Only the sets have a fixed shape; every other key is compared as a whole."""

    model_config = ConfigDict(frozen=True, extra="allow")

    sets: dict[str, ProbedSet] = Field(default_factory=dict)

    @property
    def others(self) -> dict[str, Any]:
        return self.model_extra or {}


class OwnMeasure(_Frozen):
    """A measure of somebody's own as results.json declares it, so that a run can be read without the measure's code.

    Attributes:
        title: What the page calls its conversations.
        sets: Its figures by set.
    """

    title: str
    figures: tuple[Figure, ...]
    sets: dict[str, Counted] = Field(default_factory=dict)


class Measured(_Frozen):
    """What was measured, of all rows or of a part; rates lie in [0, 1]. `followup` is by set, perturbation and temperature."""

    accuracy: dict[str, Counted] = Field(default_factory=dict)
    clarify: dict[str, Counted] = Field(default_factory=dict)
    sharded: dict[str, Counted] = Field(default_factory=dict)
    doubted: dict[str, Counted] = Field(default_factory=dict)
    instructions: dict[str, Counted] = Field(default_factory=dict)
    followup: dict[str, dict[str, dict[str, FollowupResults]]] = Field(default_factory=dict)
    actual: dict[str, FollowupResults] = Field(default_factory=dict)
    own: dict[str, OwnMeasure] = Field(default_factory=dict)

    @field_validator("accuracy")
    @classmethod
    def _has_figures(cls, by_set: dict[str, Counted]) -> dict[str, Counted]:
        for name, counted in by_set.items():
            if missing := {"n", "lenient", "strict", "outcomes"} - counted.keys():
                raise ValueError(f"set {name}: {min(missing)} is missing")
        return by_set

    @property
    def own_figures(self) -> Declared:
        """The figures of measures that are not of this package."""
        return tuple((name, measure.figures) for name, measure in self.own.items())

    @property
    def declared(self) -> dict[str, Sequence[Figure]]:
        """The figures of each measure that has one block of figures for a set, in the order of tables."""
        ours = {name: MEASURES[name].figures for name in ("accuracy", "clarify", "sharded", "doubted", "instructions")}
        return {**ours, **dict(self.own_figures)}

    def counted(self, measure: str) -> dict[str, Counted]:
        """Return what was counted of a measure, by set."""
        return self.own[measure].sets if measure in self.own else getattr(self, measure)

    def figures(self) -> dict[Metric, Estimate]:
        """Return every number that was measured."""
        found: dict[Metric, Estimate] = {}

        def add(measure: str, name: str, figures: dict[str, Estimate], *where: str) -> None:
            known = ((key, estimate) for key, estimate in figures.items() if estimate.value is not None)
            found.update((Metric(measure, name, key, *where), estimate) for key, estimate in known)

        for measure, figures in self.declared.items():
            for name, counted in self.counted(measure).items():
                add(measure, name, read(figures, counted))
        for name, counted in self.accuracy.items():
            add("outcome", name, {outcome: share(n, counted["n"]) for outcome, n in counted["outcomes"].items()})
        for name, perturbations in self.followup.items():
            for perturbation, temperatures in perturbations.items():
                for at, turns in temperatures.items():
                    add(_followup(perturbation), name, turns.figures(), at, perturbation)
        for name, turns in self.actual.items():
            add("actual", name, turns.figures())
        return found


class Results(Measured):
    """The content of results.json. `by` holds the figures by column and value, such as `by["depth"]["2"]`."""

    model: ModelInfo
    settings: ProbeSettings
    by: dict[str, dict[str, Measured]] = Field(default_factory=dict)

    def figures(self) -> dict[Metric, Estimate]:
        """Return every number that was measured, those of all rows first."""
        found = super().figures()
        for column, values in self.by.items():
            for value, measured in values.items():
                of_part = measured.figures().items()
                found.update((metric._replace(part=f"{column} {value}"), estimate) for metric, estimate in of_part)
        return found


def parts_of(row: Row) -> list[str]:
    """Return the parts that a row counts in, such as ["depth 2", "segment pro"]."""
    return [f"{column} {value}" for column, value in row.get("by", {}).items()]


def _followup(perturbation: str) -> str:
    return "followup" if perturbation == "none" else "perturbed"


def share(count: int, n: int) -> Estimate:
    """Return `count / n` without an interval, and no value if `n` is 0."""
    return Estimate(count / n if n else None, None, n)


def count_figures(rows: Sequence[Row], own: Mapping[str, OwnMeasure] | None = None) -> dict[str, Any]:
    """Return the measures of results.json, counted from the rows of samples.jsonl alone.

    Args:
        own: The measures that are not of this package, by name.
    """
    by = count_by(rows, lambda of_part: _count(of_part, own))
    return {**_count(rows, own), **({"by": by} if by else {})}


def count_by(rows: Sequence[Row], count: Callable[[list[Row]], Any]) -> dict[str, dict[str, Any]]:
    """Return what is counted of the rows of each value of each column, {"depth": {"2": ...}}, in natural order."""
    parts: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for column, value in row.get("by", {}).items():
            parts[column][value].append(row)

    def naturally(of: tuple[str, list[Row]]) -> str:
        return of[0].zfill(9) if of[0].isdecimal() else of[0]

    ordered = {column: sorted(values.items(), key=naturally) for column, values in parts.items()}
    return {column: {value: count(of_part) for value, of_part in values} for column, values in ordered.items()}


def _count(rows: Sequence[Row], own: Mapping[str, OwnMeasure] | None) -> dict[str, Any]:
    counted: dict[str, Any] = {"accuracy": {}, "clarify": {}, "followup": {}}
    groups: dict[tuple[str, str, str, float], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["kind"], row["set"], row["perturbation"], row["temperature"]].append(row)
    for (kind, name, perturbation, temperature), group in groups.items():
        if kind == "followup":
            of_perturbation = counted[kind].setdefault(name, {}).setdefault(perturbation, {})
            of_perturbation[f"T={temperature}"] = Followup.count(group)
        elif own and kind in own:
            figures = own[kind].figures
            declared = {"title": own[kind].title, "figures": [each.declared() for each in figures], "sets": {}}
            counted.setdefault("own", {}).setdefault(kind, declared)["sets"][name] = count(figures, group)
        else:
            measure = Followup if kind == "actual" else MEASURES[kind]
            counted.setdefault(kind, {})[name] = measure.count(group)
    return counted


# --- Reading finished runs.


@dataclass(frozen=True, eq=False)  # compared by identity, so that results computed from it can be cached
class Samples:
    """The values of samples.jsonl that a comparison needs.

    Attributes:
        values: The values behind each rate, by item.
        grounding: (item, label, nats per token) of every labelled, unperturbed user turn, by set.
        sides: Of each difference of two means (`Figure.less`): the figure, and the values on both sides.
    """

    values: dict[Metric, Values]
    grounding: dict[str, list[tuple[str, str, float]]]
    sides: dict[Metric, tuple[Figure, ByItem, ByItem]] = field(default_factory=dict)

    def within(self, metric: Metric, clusters: Set[str]) -> Values:
        """Return the values of a figure. Those of a difference of two means are what they are if only some clusters count."""
        if metric not in self.sides:
            return self.values[metric]
        figure, *sides = self.sides[metric]
        return by_cluster(figure, *({key: of for key, of in side.items() if key[1] in clusters} for side in sides))


@dataclass(frozen=True)
class FinishedRun:
    """A finished run under the name that a comparison gives it.

    Attributes:
        samples: None where samples.jsonl is missing.
        start: The name of the run that measured what this training run started from, if it is another run's checkpoint.
        texts: The questions of kept runs; None shows their ids.
        trainings: The runs of "A+B", which are taken together as one; () for a run of its own.
    """

    folder: Path
    name: str
    results: Results
    samples: Samples | None
    start: str = ""
    texts: Texts | None = None
    trainings: tuple[FinishedRun, ...] = ()

    @property
    def parts(self) -> tuple[FinishedRun, ...]:
        """The runs that this run consists of: the trainings, or the run itself."""
        return self.trainings or (self,)

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Yield (index in `parts`, row) of samples.jsonl, with the text of questions or their ids."""
        for place, part in enumerate(self.parts):
            path = samples_file(part.folder)
            yield from ((place, restored(row, self.texts, f"{path}:{line}")) for line, row in read_jsonl(path))


def load_runs(folders: Sequence[Path], questions: Sequence[str] = ()) -> tuple[FinishedRun, ...]:
    """Load finished runs in the order given and give each a name that no other has.

    The base of a training run is left out if it is an earlier run's checkpoint, measured in the same way: RL begins where SFT
    ended.

    Args:
        folders: Probe runs; training runs, which stand for all of their finished probes; or "A+B", the probe runs of several
            trainings of one recipe, which are taken together. Among several runs, what is no run is left out with a message.
        questions: Question sets whose text is shown in place of the ids in kept runs.

    Raises:
        BadInput: No folder is given, one is given twice, one holds no finished run of schema 1, or runs that are taken
            together were measured on different things.
        DataError: A file is broken or samples.jsonl holds a row that no probe run writes.
    """
    if not folders:
        raise BadInput("no run folder is given; expected one or more that `nextturn probe run` made")
    texts = texts_in(questions) if questions else None
    asked = {Path(folder) for folder in folders}
    folders = [probe for folder in _runs_among([Path(folder) for folder in folders]) for probe in expand(folder)]
    all_parts = (part.resolve() for folder in folders for part in _trainings(folder))
    twice = [folder for folder, count in Counter(all_parts).items() if count > 1]
    if twice:
        raise BadInput(f"{twice[0]}: this folder is given more than once; give each run once")
    kept: dict[Path, Results] = {}
    starts: dict[Path, Path] = {}  # of a training run's probes: the checkpoint that it started from
    for folder in folders:
        found = read_results(folder)
        twin = next((other for other, known in kept.items() if _is_start(found, known)), None)
        if twin is None or folder in asked:
            kept[folder] = found
        else:
            starts[folder.resolve().parent] = twin
    names = dict(zip(kept, run_names(list(kept), list(kept.values())), strict=True))

    def run(folder: Path, found: Results) -> FinishedRun:
        start = names[starts[folder.resolve().parent]] if found.model.step and folder.resolve().parent in starts else ""
        parts = _trainings(folder)
        each = [FinishedRun(part, str(part), read_results(part), None) for part in parts] if len(parts) > 1 else ()
        samples = read_samples(*map(samples_file, parts), own=found.own_figures)
        return FinishedRun(folder, names[folder], found, samples, start, texts, tuple(each))

    return tuple(run(folder, found) for folder, found in kept.items())


def _runs_among(folders: list[Path]) -> list[Path]:
    """Return the folders that hold runs. A pattern such as recipes/results/* also names other things.

    A name of nothing stays and is an error later. With fewer than two runs everything stays, because a name may be wrong.
    """
    marks = ("results.json", "manifest.json", "samples.jsonl", "*/results.json", "probe", "checkpoint-*")
    runs = [folder for folder in folders if not folder.exists() or any(any(folder.glob(mark)) for mark in marks)]
    others = [str(folder) for folder in folders if folder not in runs]
    if len(runs) < 2 or not others:
        return folders
    say(f"left out, because no probe run is in it: {', '.join(others)}")
    return runs


def _trainings(folder: Path) -> list[Path]:
    """Return the folders of "A+B", trainings of one recipe that are taken together as one run, else the folder itself."""
    return [folder] if folder.exists() else [Path(part) for part in str(folder).split("+")]


def _results_of_all(folders: Sequence[Path]) -> Results:
    """Count the rows of several trainings as one run, whose intervals take all observations of an item as one cluster."""
    each = [read_results(folder) for folder in folders]
    rows = [[row for _, row in read_jsonl(samples_file(folder))] for folder in folders]
    keys = ("kind", "set", "perturbation", "temperature")
    if len({frozenset(tuple(row[key] for key in keys) for row in of_one) for of_one in rows}) > 1:
        raise BadInput(f"{'+'.join(map(str, folders))}: these runs hold different measures, so they have no mean")
    models = [found.model for found in each]
    path, label = ("+".join(dict.fromkeys(getattr(model, key) for model in models)) for key in ("path", "label"))
    step = models[0].step if len({model.step for model in models}) == 1 else None
    together = [{**row, "training": place} for place, of_one in enumerate(rows) for row in of_one]
    counted = count_figures(together, each[0].own)
    model = asdict(ModelInfo(path, label, step, None, models[0].template_sha256))
    return Results.model_validate({"model": model, "settings": each[0].settings.model_dump(), **counted})


def _is_start(found: Results, known: Results) -> bool:
    """Return True if `found` is a training run's base and `known` a checkpoint with the same weights, measured alike."""
    weights = found.model.weights_sha256
    same = weights is not None and weights == known.model.weights_sha256 and found.settings == known.settings
    return same and found.model.step == 0 and bool(known.model.step)


def expand(folder: Path) -> list[Path]:
    """Return the finished probes of a training run (base first, then by step), or the folder itself."""
    probes = [folder / "probe" / "base", *(probe for _, probe in reversed(numbered(folder / "probe", "step")))]
    finished = [probe for probe in probes if (probe / "results.json").is_file()]
    return finished if finished and not (folder / "results.json").is_file() else [folder]


def read_results(folder: Path) -> Results:
    """Read the results.json of a finished run, or count those of "A+B".

    Raises:
        BadInput: There is no such folder, the run is unfinished, or the file has another schema or shape.
        DataError: The file is not JSON.
    """
    if len(parts := _trainings(folder)) > 1:
        return _results_of_all(parts)
    path = folder / "results.json"
    if not path.is_file():
        if (folder / "manifest.json").exists() or (folder / "samples.jsonl").exists():
            raise BadInput(f"{folder}: the run is unfinished; `nextturn probe run` with --out {folder} resumes it")
        inside = " ".join(sorted(str(path.parent) for path in folder.glob("*/results.json")))
        hint = f"; did you mean {inside}?" if inside else ""
        newest, _ = newest_complete(folder)
        if newest and not (folder / "probe").is_dir():
            hint = f"; this run was trained without a probe: `nextturn probe run {newest} ... --out DIR` measures it"
        here = "no results.json here" if folder.is_dir() else "no such folder"
        raise BadInput(f"{folder}: {here}; expected a folder that `nextturn probe run` made{hint}")
    content = read_json(path)
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise BadInput(f"{path}: schema {schema!r}, but this version reads schema {SCHEMA}; probe the model again")
    try:
        return Results.model_validate(content)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(printable(str(part)) for part in problem["loc"])
        raise BadInput(f"{path}: {where}: {problem['msg']}; probe the model again") from None


Declared = tuple[tuple[str, tuple[Figure, ...]], ...]
"""The figures of measures that are not of this package, by name."""


def read_samples(*paths: Path, own: Declared = ()) -> Samples | None:
    """Read the samples.jsonl of one or more trainings, or return None if one is missing. Unchanged files are read once.

    Raises:
        DataError: With file and line, for a row that no probe run writes.
    """
    if not all(path.exists() for path in paths):
        return None
    return _read_samples(own, *((path.absolute(), path.stat().st_mtime_ns, path.stat().st_size) for path in paths))


@cache  # training compares its runs again after every checkpoint
def _read_samples(own: Declared, *versions: tuple[Path, int, int]) -> Samples:
    declared = {**{name: measure.figures for name, measure in MEASURES.items()}, **dict(own)}
    declared["actual"] = Followup.figures
    values, subtrahends = (defaultdict[Metric, ByItem](lambda: defaultdict(list)) for _ in range(2))
    figures: dict[Metric, Figure] = {}
    grounding: dict[str, list[tuple[str, str, float]]] = defaultdict(list)
    for file, number, row in ((path, number, row) for path, *_ in versions for number, row in read_jsonl(path)):
        try:
            for figure in declared[row["kind"]]:
                value, minus = figure.of(row), figure.less(row) if figure.less else None
                for part in ("", *parts_of(row)) if value is not None or minus is not None else ():
                    metric = _metric(row, figure)._replace(part=part)
                    key = str(file), cluster_of(row), str(row["item"])
                    figures[metric] = figure
                    if value is not None:
                        values[metric][key].append(value)
                    if minus is not None:
                        subtrahends[metric][key].append(float(minus))
            plain_turn = row["kind"] == "followup" and row["perturbation"] == "none"
            if plain_turn and row["label"] is not None and row["grounding"] is not None:
                grounding[row["set"]].append((cluster_of(row), row["label"], float(row["grounding"])))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{file}:{number}: not a row of a probe run ({error!r})") from None
    every = {metric: by_cluster(figure, values[metric], subtrahends[metric]) for metric, figure in figures.items()}
    of_figures = {
        metric: subtracted(found, every.get(metric._replace(name=other), {}))
        if (other := figures[metric].minus)
        else found
        for metric, found in every.items()
    }
    sides = {metric: (figure, values[metric], subtrahends[metric]) for metric, figure in figures.items() if figure.less}
    return Samples({metric: found for metric, found in of_figures.items() if found}, dict(grounding), sides)


def _metric(row: Row, figure: Figure) -> Metric:
    """Return the number that a row counts in."""
    if row["kind"] != "followup":
        return Metric(row["kind"], row["set"], figure.name)
    temperature, perturbation = f"T={float(row['temperature'])}", row["perturbation"]
    return Metric(_followup(perturbation), row["set"], figure.name, temperature, perturbation)


def run_names(folders: Sequence[Path], results: Sequence[Results]) -> list[str]:
    """Return a name for each run: its label and step, after its folder where that alone is not unique.

    The checkpoints of one training run are named alike: all of them with their folder, or none.
    """
    plain, families = [], []
    for folder, model in zip(folders, (result.model for result in results), strict=True):
        names_step = not model.step or re.search(rf"(?<!\d){model.step}(?!\d)", model.label)
        plain.append(printable(model.label if names_step else f"{model.label} step-{model.step}") or "unnamed")
        families.append(folder.absolute().parent if model.step else folder.absolute())
    counts = Counter(plain)
    unclear = {family for family, name in zip(families, plain, strict=True) if counts[name] > 1}
    trained = {family for family, name in zip(families, plain, strict=True) if re.fullmatch(r"step-\d+", name)}
    unclear |= trained if len(trained) > 1 else set()  # step-39 and step-40 of two stages look like one run
    root = os.path.commonpath([folder.absolute().parent for folder in folders])
    names: list[str] = []
    for folder, family, name in zip(folders, families, plain, strict=True):
        # RUN/probe/step-N says no more than RUN/step-N.
        above = [part for part in folder.absolute().relative_to(root).parts if part != "probe"]
        above = above[:-1] if above[-1:] == [name] else above
        whole = printable("/".join((*above, name))) if family in unclear else name
        names.append(whole if whole not in names else f"{whole} ({len(names) + 1})")
    return names
