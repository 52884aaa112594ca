"""`python -m probe compare`: several probe runs held against the first one, the baseline.

Writes comparison.md, tradeoff.png, report.html and comparison.json and prints the main table. Runs that were measured
differently are refused; with --force they are shown with what differs.

Every run answers the same items, so a difference to the baseline is paired by item. What a run says by itself
(`within`) and the pattern that each set shows (`patterns`) stand beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.comparison import (
    LOW,
    AgainstActual,
    Grounding,
    Metric,
    Pattern,
    Perturbed,
    Run,
    against_actual,
    differences,
    figures_of,
    grounding,
    load_runs,
    overall,
    pattern_of,
    perturbed,
    remarks,
    runs_of,
    temperature,
    terminal_table,
)
from probe.errors import BadInput, IncomparableRuns
from probe.files import write_atomic, write_json
from probe.stats import NOTHING, Estimate, PairedDifference, paired_difference

FILES = ("report.html", "comparison.md", "comparison.json", "tradeoff.png")

_NAMES = ("lenient", "strict", "ask_when_needed", "answer_when_complete")


@dataclass(frozen=True)
class Comparison:
    """Everything that the pages, the table and the plot show; tuples follow the order of `runs`.

    `figures` holds NOTHING where a run lacks a metric; `paired` holds None for the baseline and where either
    run lacks it. `differences` is empty unless the comparison was forced.
    """

    runs: tuple[Run, ...]
    figures: dict[Metric, tuple[Estimate, ...]]
    paired: dict[Metric, tuple[PairedDifference | None, ...]]
    patterns: dict[str, tuple[Pattern, ...]]
    overall: tuple[str, ...]
    perturbed: tuple[Perturbed, ...]
    grounding: tuple[Grounding, ...]
    against_actual: tuple[AgainstActual, ...]
    differences: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(run.name for run in self.runs)

    def sets(self, measure: str) -> list[str]:
        return list(dict.fromkeys(metric.set for metric in self.figures if metric.measure == measure))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="finished probe runs, the baseline first, or a training run",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the comparison is written")
    parser.add_argument("--force", action="store_true", help="compare runs that were measured differently")


def run(args: argparse.Namespace) -> None:
    comparison = compare(args.folders, args.out, args.force)
    print(terminal_table(comparison))
    for name in FILES:
        print(args.out / name)


def compare(dirs: Sequence[Path], out: Path, force: bool = False) -> Comparison:
    """Compares finished probe runs and writes FILES to `out`, comparison.json last.

    Raises:
        BadInput: a folder is missing, unfinished or of another schema, or `out` is a file.
        IncomparableRuns: the runs were measured differently and `force` is off.
    """
    from probe.page import html
    from probe.plot import draw_tradeoff
    from probe.report import markdown

    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {out}: a file, wanted a folder to write the comparison to")
    comparison = build(load_runs([Path(folder) for folder in dirs]))
    if comparison.differences and not force:
        raise IncomparableRuns(
            f"these runs were measured differently: {'; '.join(comparison.differences)}. "
            "Probe them with the same settings, or add --force to compare them all the same"
        )
    write_atomic(out / "comparison.md", markdown(comparison))
    draw_tradeoff(comparison, out / "tradeoff.png")
    write_atomic(out / "report.html", html(comparison))
    write_json(out / "comparison.json", as_json(comparison))
    return comparison


def format_table(results: Sequence[dict[str, Any]]) -> str:
    """The main table of one or more contents of results.json, for the terminal."""
    return terminal_table(build(runs_of(results)))


def build(runs: Sequence[Run]) -> Comparison:
    """The comparison itself, of runs in order; writes nothing and refuses nothing."""
    per_run = [dict(figures_of(one.results)) for one in runs]
    metrics = sorted({metric for figures in per_run for metric in figures}, key=_order(runs))
    figures = {metric: tuple(one.get(metric, NOTHING) for one in per_run) for metric in metrics}
    follow_up = list(dict.fromkeys(metric.set for metric in metrics if metric.measure == "followup"))
    patterns = {name: tuple(pattern_of(name, one) for one in per_run) for name in follow_up}
    return Comparison(
        runs=tuple(runs),
        figures=figures,
        paired={metric: tuple(_paired(metric, runs[0], one) for one in runs) for metric in metrics},
        patterns=patterns,
        overall=tuple(overall([found[index].name for found in patterns.values()]) for index in range(len(runs))),
        perturbed=tuple(found for one in runs for found in perturbed(one)),
        grounding=tuple(found for one in runs for found in grounding(one)),
        against_actual=tuple(found for one in runs for found in against_actual(one)),
        differences=tuple(differences(runs)),
        remarks=tuple(remarks(runs)),
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """comparison.json, schema 1; rates in [0, 1], differences as run minus baseline, perturbed minus plain, or
    generated minus actual."""
    names = comparison.names
    results = {one.name: one.results.model_dump(include={"followup", "actual"}) for one in comparison.runs}
    return {
        "schema": 1,
        "baseline": names[0],
        "runs": [
            {"name": one.name, "folder": str(one.folder), **one.results.model.model_dump()} for one in comparison.runs
        ],
        "settings": comparison.runs[0].results.settings.model_dump(),
        "differences": list(comparison.differences),
        "remarks": list(comparison.remarks),
        "metrics": [_metric_json(comparison, metric) for metric in comparison.figures],
        "outcomes": {
            one.name: {name: part.outcomes for name, part in one.results.accuracy.items()} for one in comparison.runs
        },
        "followup": {name: result["followup"] for name, result in results.items()},
        "actual": {name: result["actual"] for name, result in results.items()},
        "against_actual": [one.as_json() for one in comparison.against_actual],
        "perturbations": [one.as_json() for one in comparison.perturbed],
        "grounding": [one.as_json() for one in comparison.grounding],
        "patterns": {
            "low": LOW,
            "sets": {
                name: dict(zip(names, (pattern.name for pattern in found), strict=True))
                for name, found in comparison.patterns.items()
            },
            "overall": dict(zip(names, comparison.overall, strict=True)),
        },
    }


def _metric_json(comparison: Comparison, metric: Metric) -> dict[str, Any]:
    names = comparison.names
    estimates = zip(names, comparison.figures[metric], strict=True)
    changes = zip(names, comparison.paired[metric], strict=True)
    return {
        "measure": metric.measure,
        "set": metric.set,
        "name": metric.name,
        "perturbation": metric.perturbation if metric.measure == "followup" else None,
        "runs": {name: {**found.as_json(), "n": found.n} if found.n else None for name, found in estimates},
        "against_baseline": {
            name: {
                **change.as_json(),
                "gained_items": list(change.gained_items),
                "lost_items": list(change.lost_items),
            }
            for name, change in changes
            if change is not None
        },
    }


def _order(runs: Sequence[Run]) -> Callable[[Metric], tuple[Any, ...]]:
    """Measures, sets as the recipe names them, the plain run before perturbed ones, temperatures upwards."""
    sets = list(dict.fromkeys(name for one in runs for name in one.results.settings.sets))

    def key(metric: Metric) -> tuple[Any, ...]:
        rank = sets.index(metric.set) if metric.set in sets else len(sets)
        number = _NAMES.index(metric.name) if metric.name in _NAMES else temperature(metric.name)
        plain = metric.perturbation != "none"
        return metric.measure != "accuracy", metric.measure, rank, metric.set, plain, metric.perturbation, number

    return key


def _paired(metric: Metric, baseline: Run, one: Run) -> PairedDifference | None:
    if one is baseline or baseline.samples is None or one.samples is None:
        return None
    if metric not in baseline.samples.values or metric not in one.samples.values:
        return None
    return paired_difference(baseline.samples.values[metric], one.samples.values[metric])
