"""`python -m probe compare`: several probe runs held against the first one, the baseline.

Writes comparison.json, comparison.md and tradeoff.png and prints the main table. Runs that were measured
differently are refused; with --force they are shown with what differs.

Every run answers the same items, so a difference to the baseline is paired by item. Each set is read as one
of the patterns of arXiv 2604.02315, from intervals rather than values, so that a small set says "unclear":

- present: greedy decoding gives genuine follow-ups (interval at or above LOW)
- latent:  greedy does not (interval below LOW), sampling at the highest temperature does
- absent:  neither does

A run whose clear sets do not all show one pattern is context-bound.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import BadInput, IncomparableRuns
from probe.files import write_atomic, write_json
from probe.results import Cell, Metric, Run, differences, load_runs, remarks, runs_of
from probe.stats import NOTHING, Estimate, PairedDifference, paired_difference
from probe.tables import terminal_table

LOW = 0.10
"""Follow-up rate that divides low from high. The paper calls 1-5% collapsed and 15-47% surfacing under sampling."""

CLEAR = ("present", "latent", "absent")

_NAMES = ("lenient", "strict", "ask_when_needed", "answer_when_complete")


@dataclass(frozen=True)
class Pattern:
    """What one set shows for one run; `sampled_at` is the highest temperature, such as "T=1.0"."""

    name: str
    greedy: Estimate
    sampled: Estimate
    sampled_at: str | None


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
    for name in ("comparison.md", "comparison.json", "tradeoff.png"):
        print(args.out / name)


def compare(dirs: Sequence[Path], out: Path, force: bool = False) -> Comparison:
    """Compares finished probe runs and writes comparison.md, tradeoff.png and, last, comparison.json to `out`.

    Raises:
        BadInput: a folder is missing, unfinished or of another schema, or `out` is a file.
        IncomparableRuns: the runs were measured differently and `force` is off.
    """
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
    write_json(out / "comparison.json", as_json(comparison))
    return comparison


def format_table(results: Sequence[dict[str, Any]]) -> str:
    """The main table of one or more contents of results.json, for the terminal."""
    return terminal_table(build(runs_of(results)))


def build(runs: Sequence[Run]) -> Comparison:
    """The comparison itself, of runs in order; writes nothing and refuses nothing."""
    per_run = [dict(_estimates(one)) for one in runs]
    metrics = sorted({metric for figures in per_run for metric in figures}, key=_order(runs))
    figures = {metric: tuple(one.get(metric, NOTHING) for one in per_run) for metric in metrics}
    follow_up = list(dict.fromkeys(metric.set for metric in metrics if metric.measure == "followup"))
    patterns = {name: tuple(_pattern(name, one) for one in per_run) for name in follow_up}
    return Comparison(
        runs=tuple(runs),
        figures=figures,
        paired={metric: tuple(_paired(metric, runs[0], one) for one in runs) for metric in metrics},
        patterns=patterns,
        overall=tuple(_overall([found[index].name for found in patterns.values()]) for index in range(len(runs))),
        differences=tuple(differences(runs)),
        remarks=tuple(remarks(runs)),
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """comparison.json, schema 1; rates in [0, 1], differences as run minus baseline."""
    names = comparison.names
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
        "followup": {one.name: one.results.model_dump(include={"followup"})["followup"] for one in comparison.runs},
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
        "against_baseline": {name: change.as_json() for name, change in changes if change is not None},
    }


def _estimates(one: Run) -> Iterator[tuple[Metric, Estimate]]:
    for name, accuracy in one.results.accuracy.items():
        yield Metric("accuracy", name, "lenient"), _estimate(accuracy.lenient, accuracy.n)
        yield Metric("accuracy", name, "strict"), _estimate(accuracy.strict, accuracy.n)
    for name, clarify in one.results.clarify.items():
        yield Metric("clarify", name, "ask_when_needed"), _estimate(clarify.ask_when_needed, clarify.n)
        yield Metric("clarify", name, "answer_when_complete"), _estimate(clarify.answer_when_complete, clarify.n)
    for name, perturbations in one.results.followup.items():
        for perturbation, temperatures in perturbations.items():
            for temperature, part in temperatures.items():
                metric = Metric("followup", name, temperature, perturbation)
                yield metric, _estimate(Cell(value=part.rate, ci95=part.ci95), part.n_judged)


def _estimate(cell: Cell, n: int) -> Estimate:
    return Estimate(cell.value, cell.ci95, n) if cell.value is not None else NOTHING


def _order(runs: Sequence[Run]) -> Any:
    """Measures, sets as the recipe names them, the plain run before perturbed ones, temperatures upwards."""
    sets = list(dict.fromkeys(name for one in runs for name in one.results.settings.sets))

    def key(metric: Metric) -> tuple[Any, ...]:
        rank = sets.index(metric.set) if metric.set in sets else len(sets)
        number = _NAMES.index(metric.name) if metric.name in _NAMES else temperature(metric.name)
        plain = metric.perturbation != "none"
        return metric.measure != "accuracy", metric.measure, rank, metric.set, plain, metric.perturbation, number

    return key


def temperature(name: str) -> float:
    """0.7 for "T=0.7"."""
    try:
        return float(name.removeprefix("T="))
    except ValueError:
        raise BadInput(f"{name!r}: no temperature, wanted a key such as T=0.7 under followup") from None


def _paired(metric: Metric, baseline: Run, one: Run) -> PairedDifference | None:
    if one is baseline or baseline.values is None or one.values is None:
        return None
    if metric not in baseline.values or metric not in one.values:
        return None
    return paired_difference(baseline.values[metric], one.values[metric])


def _pattern(name: str, figures: dict[Metric, Estimate]) -> Pattern:
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


def _level(estimate: Estimate) -> str:
    if estimate.ci95 is None:
        return "unknown"
    return "low" if estimate.ci95[1] < LOW else "high" if estimate.ci95[0] >= LOW else "unclear"


def _overall(patterns: Sequence[str]) -> str:
    clear = {name for name in patterns if name in CLEAR}
    return "context-bound" if len(clear) > 1 else next(iter(clear), "unclear")
