"""The table of figures behind every report: finished probe runs compared with the first one, the baseline.

`compare_runs` makes one `RunFigure` for each number of each run, with the paired differences that belong to it. The terminal
table, comparison.json, the pages (`nextturn.probe.report.page`) and the plot (`nextturn.probe.report.plot`) only select
from this table. All runs answer the same items, so a difference is paired by item.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from nextturn.probe.command.files import read_jsonl
from nextturn.probe.command.recipe import Mark, may_differ
from nextturn.probe.command.sections import ProbeSection
from nextturn.probe.command.terminal import aligned, printable
from nextturn.probe.judges.verdicts import GENUINE, ROUGH, followup_name, in_order
from nextturn.probe.kept import samples_file
from nextturn.probe.measures.base import Figure
from nextturn.probe.measures.followup import Followup
from nextturn.probe.measures.perturb import NONE
from nextturn.probe.results import FinishedRun, Metric, Results, Samples, run_names
from nextturn.probe.stats import (
    NOTHING,
    Z80,
    Z95,
    Estimate,
    PairedDifference,
    auc,
    best_by_chance,
    mean_ci,
    paired_difference,
)
from nextturn.probe.text.chat import UNKNOWN

# --- What a comparison consists of.


@dataclass(frozen=True)
class RunFigure:
    """A row of the table: one number of one run.

    Attributes:
        changes: Paired differences of this figure to "baseline" (the same figure of the first run), "plain" (the same
            run without the perturbation) and "actual" (the real user turns of the same transcripts), where both exist.
        declared: What its measure says of it.
        note: What it is the figure of, such as the commonest opening of user turns.
    """

    run: str
    metric: Metric
    estimate: Estimate
    changes: Mapping[str, PairedDifference]
    declared: Figure
    note: str = ""


@dataclass(frozen=True)
class Pattern:
    """What one set shows for one run; `sampled` is the follow-up rate at the highest temperature."""

    name: str
    greedy: Estimate
    sampled: Estimate


@dataclass(frozen=True)
class CorrectedDifference:
    """A run minus the baseline, as judged and as corrected by labels.

    `set` or `temperature` (such as "T=0.7") is None where all of them are taken together.
    """

    run: str
    set: str | None
    temperature: str | None
    judged: Estimate
    corrected: Estimate


@dataclass(frozen=True)
class CorrectedRate(CorrectedDifference):
    """A follow-up rate as judged and as corrected by so many labels.

    `bias` is judged minus corrected, `sure` the rate corrected by the labels alone of which the annotator was sure.
    """

    labels: int
    bias: Estimate
    sure: Estimate


@dataclass(frozen=True)
class Correction:
    """Follow-up rates of runs corrected by labels (`nextturn.probe.labels.correct`).

    `labels` and `unsure` count by run; a run without labels has 0 and no corrected rate. `made_by` names the definition and the
    annotator of the labels; with --force there may be several annotators. `left_out` names sets and temperatures of runs without a
    label, which are in no corrected rate.
    """

    files: tuple[str, ...]
    labels: dict[str, int]
    unsure: dict[str, int]
    rates: tuple[CorrectedRate, ...]
    differences: tuple[CorrectedDifference, ...]
    made_by: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def behind(self) -> str:
        """180 labels (base 60, step-20 60, step-39 60; 7 unsure; strict, ann (person))"""
        each = ", ".join(f"{printable(run)} {count}" for run, count in self.labels.items() if count)
        unsure = sum(self.unsure.values())
        made = f"{'SEVERAL ANNOTATORS: ' if len(self.made_by) > 1 else ''}{' and '.join(self.made_by)}"
        without = f"; without labels, in no rate: {printable(', '.join(self.left_out), 400)}" if self.left_out else ""
        return f"{sum(self.labels.values())} labels ({each}{f'; {unsure} unsure' if unsure else ''}; {made}){without}"

    def rate(self, run: str, name: str | None, decoding: str | None) -> CorrectedRate | None:
        wanted = (run, name, decoding)
        return next((rate for rate in self.rates if (rate.run, rate.set, rate.temperature) == wanted), None)

    def change(self, run: str, name: str | None, decoding: str | None) -> CorrectedDifference | None:
        wanted = (run, name, decoding)
        return next((each for each in self.differences if (each.run, each.set, each.temperature) == wanted), None)

    def columns(self, rate: CorrectedRate) -> dict[str, str]:
        """Return the figures of a rate in tables, by column."""
        figures = {"labels": str(rate.labels), "judged": percent(rate.judged), "corrected": percent(rate.corrected)}
        if any(self.unsure.values()):
            figures["sure only"] = percent(rate.sure)
        figures["judge's bias"] = points(rate.bias)
        if change := self.change(rate.run, rate.set, rate.temperature):
            figures |= {"change judged": points(change.judged), "change corrected": points(change.corrected)}
        return figures


MANY = 8
"""The most runs that detailed tables show one by one."""
ALIKE, OPEN_ALIKE = 0.04, 0.5
"""Chance that two random user turns are equal, and share of the commonest opening, from which on the rate has a note. One phrase
in a fifth of the turns makes 4% of pairs equal."""
LIKENESS = {"opening_share": "commonest opening", "equal": "two turns equal"}
"""The figures beside every follow-up rate: how alike the user turns are."""
TURNS = {figure.name: figure for figure in Followup.figures}
"""The figures that the follow-up measure declares."""
SHORT = {("accuracy", "lenient", ""): "accuracy", ("followup", "rate", "T=0.0"): "followup"}
"""Short names of the figures of a set that a gate names, by measure, figure and temperature."""
HEADS = LIKENESS | {figure.name: figure.title for figure in Followup.figures if figure.headline}
"""The figures of user turns in the main tables, with their titles; the rate is named after its judge."""


@dataclass(frozen=True)
class Comparison:
    """The figures of several runs, and the notes of a report about them.

    Attributes:
        runs: The runs in order; the first is the baseline.
        figures: All figures, sorted by metric and then by run.
        differences: Why the runs should not be compared, one line per reason.
        remarks: Other differences between the runs.
        correction: Rates corrected by labels, if there are labels.
        warnings: Why labels that exist were not used.
        labels: The label of each user turn that an annotator read, by run and hash of what was shown (`kept.turn_hash`).
    """

    runs: tuple[FinishedRun, ...]
    figures: tuple[RunFigure, ...]
    differences: tuple[str, ...]
    remarks: tuple[str, ...]
    correction: Correction | None = None
    warnings: tuple[str, ...] = ()
    labels: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(run.name for run in self.runs)

    @property
    def trainings(self) -> str:
        """How many trainings each run stands for, since no interval covers another training."""
        groups: dict[int, list[str]] = defaultdict(list)
        for run in self.runs:
            groups[len(run.parts)].append(printable(run.name))
        words = {1: "one training", 2: "two trainings (mean per item)"}
        named = {words.get(n, f"{n} trainings (mean per item)"): ", ".join(of_n) for n, of_n in groups.items()}
        return "; ".join(f"{names if len(named) > 1 else 'each run'}: {number}" for number, names in named.items())

    @cached_property
    def _estimates(self) -> dict[tuple[str, Metric], Estimate]:
        return {(figure.run, figure.metric): figure.estimate for figure in self.figures}

    def estimate(self, run: str, metric: Metric) -> Estimate:
        """Return a figure's estimate, or NOTHING if it was not measured."""
        return self._estimates.get((run, metric), NOTHING)

    def select(self, *measures: str, **wanted: str) -> list[RunFigure]:
        """Return the figures of some measures whose metric has these values, such as `set="chat"`. Figures of a part are left out."""
        of_measures = (each for each in self.figures if each.metric.measure in measures and not each.metric.part)
        items = wanted.items()
        return [figure for figure in of_measures if all(getattr(figure.metric, key) == value for key, value in items)]

    @cached_property
    def declared(self) -> dict[str, dict[str, Figure]]:
        """The figures that the measures of some run declare, in the order of tables."""
        return declared_by(self.runs)

    @cached_property
    def main(self) -> list[RunFigure]:
        """The figures of the main tables: the headlines of each measure, and follow-up rates with how alike the turns are."""
        turns = (figure for figure in self.select("followup") if figure.metric.name in HEADS)
        return [*(figure for figure in self.select(*self.declared) if figure.declared.headline), *turns]

    @cached_property
    def parts(self) -> list[RunFigure]:
        """The headline figures of each part of a set, such as "depth 2", at the lowest temperature."""
        lowest = {name: at[0] for name, at in self.decodings.items()}

        def is_shown(figure: RunFigure) -> bool:
            metric = figure.metric
            is_lowest = metric.perturbation == NONE and metric.temperature in ("", lowest.get(metric.set))
            is_head = metric.name == "rate" or (metric.measure in self.declared and figure.declared.headline)
            return bool(metric.part) and is_lowest and is_head

        return list(filter(is_shown, self.figures))

    @cached_property
    def decodings(self) -> dict[str, list[str]]:
        """The temperatures of each follow-up set in ascending order: {"chat": ["T=0.0", "T=0.7"]}."""
        metrics = dict.fromkeys(figure.metric for figure in self.select("followup", name="rate"))
        names = dict.fromkeys(metric.set for metric in metrics)
        return {name: [metric.temperature for metric in metrics if metric.set == name] for name in names}

    def sizes(self, metric: Metric) -> str:
        """Return the number of observations: 100, or 98–100 if it differs between runs."""
        sizes = sorted({figure.estimate.n for figure in self.figures if figure.metric == metric})
        return "–".join(map(str, dict.fromkeys((sizes[0], sizes[-1])))) if sizes else "0"

    @cached_property
    def followup(self) -> str:
        """The name of judged follow-up rates."""
        names = {followup_name(run.results.settings.others.get("judge")) for run in self.runs}
        return ROUGH if ROUGH in names else names.pop()

    def title(self, metric: Metric) -> str:
        """Return the name of a figure in the tables of its set."""
        if metric.part:
            real = "real users " if metric.measure == "actual" else ""
            return f"{real}{self.title(metric._replace(part=''))}, {printable(metric.part, 40)}"
        if metric.measure == "followup" and metric.name in HEADS:
            return f"{HEADS[metric.name] or self.followup} {metric.temperature}"

        declared = self.declared.get(metric.measure, {}).get(metric.name)
        title = (declared and declared.title) or metric.name
        return f"{metric.measure}: {metric.name}" if declared and title in self._shared else title

    def word(self, metric: Metric) -> str:
        """Return the name of a figure that a gate takes, with the measure if several figures have the name."""
        return f"{metric.measure}.{metric.name}" if metric.name in self._shared else metric.name

    @cached_property
    def _shared(self) -> set[str]:
        """The names and titles that several figures have: measures of somebody's own may name theirs alike."""
        figures = [figure for of_measure in self.declared.values() for figure in of_measure.values()]
        words = Counter(word for figure in figures for word in {figure.name, figure.title or figure.name})
        return {word for word, count in words.items() if count > 1}

    # Labels by people. Only if every run has all labels do drawings show corrected rates: a mixture would compare two annotators.

    @cached_property
    def all_corrected(self) -> bool:
        """Whether every run has labels of each set and temperature."""
        correction = self.correction
        return bool(correction and not correction.left_out and all(map(correction.labels.get, self.names)))

    def corrected(self, run: str, metric: Metric) -> Estimate:
        """Return a follow-up rate of a run, corrected if the run has labels."""
        rate = self.correction.rate(run, metric.set, metric.temperature) if self.correction else None
        return rate.corrected if rate else self.estimate(run, metric)

    def change(self, figure: RunFigure) -> Estimate:
        """Return the change of a figure against the baseline, of a follow-up rate by labels where both runs have labels."""
        found = self.change_by_labels(figure) if figure.metric.name == "rate" else None
        return found.corrected if found else figure.changes.get("baseline", NOTHING)

    def change_by_labels(self, figure: RunFigure) -> CorrectedDifference | None:
        """Return the change of the follow-up rate of a figure's user turns, if the run and the baseline have labels of them."""
        metric = figure.metric
        correction = self.correction if metric.measure == "followup" else None
        return correction.change(figure.run, metric.set, metric.temperature) if correction else None

    @cached_property
    def hollow(self) -> dict[tuple[str, str], list[RunFigure]]:
        """The hollow follow-up gains at T=0, by (run, set): the rate rises, and these figures fall that should not.

        Both by intervals that leave out 0. Measures declare which figures these are; one that was not measured says nothing.
        """
        found: dict[tuple[str, str], list[RunFigure]] = defaultdict(list)
        greedy = self.select("followup", "perturbed", temperature="T=0.0")
        ends = [(each, each.run, each.metric.set, self.change(each).ci95 or (0.0, 0.0)) for each in greedy]
        risen = {(run, name) for each, run, name, (low, _) in ends if short_name(each.metric) and low > 0}
        for each, run, name, (_, high) in ends:
            if each.declared.hollow == each.metric.perturbation and high < 0 and (run, name) in risen:
                found[run, name].append(each)
        return dict(found)

    @cached_property
    def best_by_chance(self) -> dict[str, float]:
        """How far the best of several runs lies above the baseline by chance if all are equal, such as {"accuracy of maths": 0.04}."""
        changes: dict[str, list[Estimate]] = defaultdict(list)
        for figure in self.figures if len(self.runs) > 2 else ():
            if (name := short_name(figure.metric)) and (change := self.change(figure)).ci95:
                changes[f"{name} of {figure.metric.set}"].append(change)
        return {name: best_by_chance(of_figure) for name, of_figure in changes.items()}

    @property
    def on_gains(self) -> Iterator[str]:
        """Lines on what a gain is worth: which are hollow, and what the best of several runs shows by chance."""
        for (run, name), fell in self.hollow.items():
            falls = (f"{each.metric.name} {points(self.change(each), each.declared.unit)}" for each in fell)
            yield f"hollow: the follow-up of {run} on {printable(name)} rises at T=0, and these fall: {', '.join(falls)}"
        if chance := ", ".join(f"{printable(name)} {100 * value:+.1f}" for name, value in self.best_by_chance.items()):
            yield f"the best of {len(self.runs) - 1} equal runs shows by chance alone, in points: {chance}"

    @cached_property
    def summary(self) -> list[str]:
        """Sentences: what is higher and lower than in the baseline, what cannot be told of the last run, and hollow gains."""
        clear, same, alone = (
            defaultdict[str, list[str]](list),
            defaultdict[tuple[str, int, str], list[tuple[str, float]]](list),
            [],
        )
        for each in self.main:
            change, unit, title = self.change(each), each.declared.unit, self.title(each.metric)
            if each.metric.name in ("strict", *LIKENESS):
                continue
            if change != each.changes.get("baseline", NOTHING):
                title = f"follow-up by labels {each.metric.temperature}"
            if change.ci95 is None:
                alone.append(f"{title} on {each.metric.set} {percent(each.estimate, unit=unit)}")
                continue
            low, high = change.ci95
            if low > 0 or high < 0:
                clear[each.run].append(f"{title} on {each.metric.set} {points(change, unit)}")
            elif each.run == self.names[-1]:
                missed = (high - low) / 2 * (1 + Z80 / Z95)
                same[each.metric.set or "", change.n, unit].append((title, missed))
        if len(self.runs) == 1:
            head = f"{self.names[0]}, rates in percent, with 95% intervals"
            return [printable(f"{head}: {', '.join(alone)}.", 500)] if alone else []
        found = [
            f"Compared with {self.names[0]}, {run} differs in: {', '.join(clear[run]) or 'no figure clearly'}."
            for run in self.names[1:]
        ]
        told = []
        for (name, n, scale), of_set in same.items():
            most = max(missed for _, missed in of_set)
            least = f"{100 * most:.0f} points" if scale == "percent" else f"{most:.2f}"
            told.append(
                f"{', '.join(title for title, _ in of_set)} on {name} (n = {n}: less than {least} is usually missed)"
            )
        unclear = [f"No difference of {self.names[-1]} can be told in: {'; '.join(told)}."] * bool(told)
        hollow = [f"H{line[1:]}." for line in self.on_gains if line.startswith("hollow")]
        return [printable(line, 1000) for line in (*found, *unclear, *hollow)]

    @cached_property
    def as_judged(self) -> list[str]:
        """The runs whose change in follow-up is the judge's, because not both runs have labels."""
        changed = {figure.run for figure in self.select("followup") if "baseline" in figure.changes}
        corrected = {change.run for change in self.correction.differences} if self.correction else set()
        return sorted(changed - corrected, key=self.names.index)

    @cached_property
    def patterns(self) -> dict[str, dict[str, Pattern]]:
        """The pattern of each follow-up set for each run, by labels where the run has them; NEEDS_LABELS where only labels can say."""

        def pattern(run: str, name: str) -> Pattern:
            decodings = self.decodings[name]
            found = pattern_of({at: self.corrected(run, Metric("followup", name, "rate", at)) for at in decodings})
            by_judge_alone = not self.is_labelled(run, name) and self.needs_labels(name)
            return replace(found, name=NEEDS_LABELS) if by_judge_alone and found.name != "not measured" else found

        return {name: {run: pattern(run, name) for run in self.names} for name in self.decodings}

    @cached_property
    def overall(self) -> dict[str, str]:
        """The pattern of each run over all clear sets: "context-bound" if they differ, "unclear" if there is none."""

        found = {run: {of_set[run].name for of_set in self.patterns.values()} for run in self.names}
        clear = {run: names & CLEAR or names & {NEEDS_LABELS} for run, names in found.items()}
        return {run: "context-bound" if len(names) > 1 else "".join(names) or "unclear" for run, names in clear.items()}

    def needs_labels(self, name: str) -> bool:
        """Return True if the judge alone says nothing reliable about a set."""
        return self.followup == ROUGH or name in self.unusable

    def is_labelled(self, run: str, name: str) -> bool:
        """Return True if the follow-up rates of a run on a set are corrected by labels at all temperatures."""
        correction, metric = self.correction, Metric("followup", name, "rate")
        measured = [at for at in self.decodings[name] if self.estimate(run, metric._replace(temperature=at)).n]
        return correction is not None and all(correction.rate(run, name, at) for at in measured)

    @cached_property
    def unusable(self) -> dict[str, str]:
        """The sets on which the judge does not rate real user turns above the baseline's at its lowest temperature, with both rates."""
        found = {}
        for name, decodings in self.decodings.items():
            real = self.estimate(self.names[0], Metric("actual", name, "rate"))
            model = self.estimate(self.names[0], Metric("followup", name, "rate", decodings[0]))
            if real.n and not _is_above(real, model):
                found[name] = f"real user turns {percent(real)}, the model's {percent(model)}"
        return found

    # Training runs.

    @cached_property
    def paths(self) -> list[list[int]]:
        """The runs by training run, as indices: checkpoints of one training in step order; other runs stand alone.

        The model that a training run started from (its step 0) is the first of its path. The baseline is in no path.
        """
        steps = [run.results.model.step for run in self.runs]
        paths: dict[tuple[Path, ...], list[int]] = defaultdict(list)
        for index, run in enumerate(self.runs[1:], start=1):
            paths[_training_of(run) if steps[index] else (run.folder,)].append(index)
        for index, run in enumerate(self.runs[1:], start=1):
            siblings = [path for (folder, *_), path in paths.items() if folder == run.folder.absolute().parent]
            if steps[index] == 0 and len(siblings) == 1:
                siblings[0] += paths.pop((run.folder,))
        return [sorted(path, key=lambda index: steps[index] or 0) for path in paths.values()]

    @cached_property
    def shown(self) -> list[str]:
        """The runs of detailed tables: all of up to MANY, else the baseline and the last run of each path."""
        ends = range(len(self.runs)) if len(self.runs) <= MANY else sorted({0, *(path[-1] for path in self.paths)})
        return [self.names[index] for index in ends]

    def judge_note(self) -> str:
        """Return one line on how far to trust the judge: its bias, unscored turns, changes without labels."""
        rough = self.followup == ROUGH and bool(self.select("followup"))
        notes = ["rules is rough, was fitted on loose labels, and shows no pattern without labels"] if rough else []
        notes += [f"unusable on {printable(name)}: {rates}" for name, rates in self.unusable.items()]
        unscored = []
        for run in self.runs:
            cells = [cell for kinds in run.results.followup.values() for at in kinds.values() for cell in at.values()]
            cells += run.results.actual.values()
            reasons = sum((Counter(cell.unscored) for cell in cells), Counter[str]())
            if reasons:
                why = ", ".join(f"{printable(reason)} {count}" for reason, count in sorted(reasons.items()))
                total = sum(cell.n_total for cell in cells)
                unscored.append(f"{run.name} {100 * reasons.total() / total:.1f}% of {total} ({why})")
        notes += [f"user turns without a label, in no rate: {', '.join(unscored)}"] if unscored else []
        alike = [
            f'{run.name} on {printable(name)} at {at} ({cell.equal or 0:.0%} of pairs are equal, {cell.opening_share or 0:.0%} begin "{printable(cell.opening, 80)}")'
            for run in self.runs
            for name, kinds in run.results.followup.items()
            for at, cell in kinds.get(NONE, {}).items()
            if (cell.equal or 0) >= ALIKE or (cell.opening_share or 0) >= OPEN_ALIKE
        ]
        if alike:
            why = "a turn that comes again may fit any answer, so read them before you trust the rate"
            notes.append(f"user turns are alike, and {why}: {', '.join(alike)}")
        changed = "all runs" if len(self.as_judged) == len(self.runs) - 1 else ", ".join(self.as_judged)
        if changed and self.as_judged:
            notes.append(f"no person has checked the changes of {changed} (nextturn probe label, then correct)")
        return "; ".join([*notes, *self.warnings])

    @property
    def graders(self) -> list[str]:
        """Say which sets' answers were graded otherwise than by this project's rules; strict and lenient are then the same."""
        sets = (each for run in self.runs for each in run.results.settings.sets.items())
        graders = dict.fromkeys((name, of.grader) for name, of in sets if of.grader)
        return [f"answers of {printable(name)} graded by {printable(grader)}" for name, grader in graders]


def without_step(name: str) -> str:
    """Return a name without the step at its end: "sft" for "sft/step-20", and "" for "checkpoint-20"."""
    return re.sub(r"[\W_]*(step|checkpoint)?[\W_]*\d+$", "", name)


def _training_of(run: FinishedRun) -> tuple[Path, ...]:
    """Return what is the same for all checkpoints of a training: the folder of their probes, their names, their own folder."""
    folder, model, name = run.folder.absolute(), run.results.model, without_step(run.folder.name)
    path = Path(model.path)
    own = path.parent.name if str(model.step) in path.name else path.name
    # Folders that are named after steps alone hold one training, which may have been moved between two probes.
    return folder.parent, Path(without_step(model.label)), Path(name, own if name else "")


def declared_by(runs: Sequence[FinishedRun]) -> dict[str, dict[str, Figure]]:
    """Return the figures that the measures of some run declare, in the order of tables."""
    declared = [of_measure for run in runs for of_measure in run.results.declared.items()]
    return {name: {figure.name: figure for figure in figures} for name, figures in declared}


def compare_runs(runs: Sequence[FinishedRun], accept: Sequence[str] = ()) -> Comparison:
    """Build the comparison of runs in order. Nothing is written and nothing is refused.

    Args:
        accept: Names of ACCEPTABLE: differences that are remarks and no reason to refuse.
    """
    estimates = {run.name: {**run.results.figures(), **_grounding(run.samples)} for run in runs}
    sets = list(dict.fromkeys(name for run in runs for name in run.results.settings.sets))
    declared = declared_by(runs)
    measures = [*declared, "outcome", "followup", "perturbed", "actual", "grounding"]

    def order(metric: Metric) -> tuple[Any, ...]:
        rank = sets.index(metric.set) if metric.set in sets else len(sets)
        return measures.index(metric.measure), rank, metric.perturbation, temperature(metric.temperature)

    metrics = sorted(dict.fromkeys(metric for of_run in estimates.values() for metric in of_run), key=order)

    def figure(run: FinishedRun, metric: Metric) -> RunFigure:
        changes, own = dict(_changes(runs[0], run, metric)), declared.get(metric.measure, {}).get(metric.name)
        of_metric = own or _UNDECLARED.get(metric.name, Figure(metric.name))
        return RunFigure(run.name, metric, estimates[run.name][metric], changes, of_metric, _opening(run, metric))

    figures = tuple(figure(run, metric) for metric in metrics for run in runs if metric in estimates[run.name])
    remarks = [line for may_differ, line in _differing(runs, accept) if may_differ]
    remarks += [f"{run.name}: there is no samples.jsonl, so no paired test" for run in runs if not run.samples]
    return Comparison(tuple(runs), figures, tuple(differences(runs, accept)), tuple(remarks))


_UNDECLARED = {name: Figure(name, shows="-") for name in ("role_consistency", "specificity", *LIKENESS)} | TURNS
"""Figures of user turns; those that no measure declares have no conversations that a filter of the page selects."""


def short_name(metric: Metric) -> str:
    """Return the short name of a figure that has one, else ""."""
    return SHORT.get((metric.measure, metric.name, metric.temperature), "")


def _opening(run: FinishedRun, metric: Metric) -> str:
    """Return the words that user turns begin with most often, beside their share."""
    if metric.name != "opening_share" or metric.part:
        return ""
    kinds = {"actual": run.results.actual}.get(metric.measure)
    cell = kinds[metric.set] if kinds else run.results.followup[metric.set][metric.perturbation][metric.temperature]
    return cell.opening


def temperature(name: str) -> float:
    """Return 0.7 for "T=0.7", and -1 for "" (no decoding)."""
    return float(name.removeprefix("T=") or -1)


def _changes(baseline: FinishedRun, run: FinishedRun, metric: Metric) -> Iterator[tuple[str, PairedDifference]]:
    """Yield the paired differences of a figure, with what it is compared with."""
    others = [("baseline", baseline, metric)] if run is not baseline else []
    if metric.measure == "followup":
        others.append(("actual", run, Metric("actual", metric.set, metric.name, part=metric.part)))
    if metric.measure == "perturbed":
        others.append(("plain", run, metric._replace(measure="followup", perturbation="none")))
    for against, other, of_other in others:
        if change := _difference(other.samples, of_other, run.samples, metric):
            yield against, change


@cache
def _difference(a: Samples | None, of_a: Metric, b: Samples | None, of_b: Metric) -> PairedDifference | None:
    """Return the metric of `b` minus the metric of `a`, or None if either has no values."""
    if a is None or b is None or of_a not in a.values or of_b not in b.values:
        return None
    in_a, in_b = a.values[of_a].keys(), b.values[of_b].keys()
    change = paired_difference(a.within(of_a, in_a & in_b), b.within(of_b, in_a & in_b))
    return replace(change, unmatched=len(in_a ^ in_b))


@cache
def _grounding(samples: Samples | None) -> dict[Metric, Estimate]:
    """Return by set the AUC of genuine turns against all others, and the mean grounding of each label."""
    found = {}
    for name, turns in samples.grounding.items() if samples else ():
        items, labels, values = (list(column) for column in zip(*turns, strict=True))
        found[Metric("grounding", name, "AUC")] = auc(values, [label == GENUINE for label in labels], items)
        for label in in_order(set(labels)):
            chosen = [place for place, given in enumerate(labels) if given == label]
            mean = mean_ci([values[place] for place in chosen], [items[place] for place in chosen])
            found[Metric("grounding", name, f"label:{label}")] = mean
    return {metric: estimate for metric, estimate in found.items() if estimate.value is not None}


# --- The pattern of a set, in the words of arXiv 2604.02315: latent, absent or present, and over several sets
# context-bound. It is read from intervals rather than values, so that a small set says "unclear":
#
# - present: greedy decoding gives genuine follow-ups (interval at or above LOW)
# - latent:  greedy decoding does not (interval below LOW), sampling at the highest temperature does
# - absent:  neither does

LOW = 0.10
"""Follow-up rate that divides low from high. The paper calls 1-5% collapsed and 15-47% surfacing under sampling."""

CLEAR = {"present", "latent", "absent"}
NEEDS_LABELS = "needs labels"


def pattern_of(rates: Mapping[str, Estimate]) -> Pattern:
    """Return the pattern of one set of one run, from its follow-up rates by temperature in ascending order."""
    greedy = rates.get("T=0.0", NOTHING)
    sampled = next((rates[at] for at in reversed(list(rates)) if temperature(at) > 0), NOTHING)
    levels = _level(greedy), _level(sampled)
    if levels[0] == "high":
        return Pattern("present", greedy, sampled)
    name = {("low", "high"): "latent", ("low", "low"): "absent"}.get(levels)
    return Pattern(name or ("unclear" if greedy.n or sampled.n else "not measured"), greedy, sampled)


def _is_above(higher: Estimate, lower: Estimate) -> bool:
    """Return True if a rate is above another one beyond chance (MOVER, as for independent samples)."""
    if higher.ci95 is None or lower.ci95 is None or higher.value is None or lower.value is None:
        return False
    return higher.value - lower.value > math.hypot(higher.value - higher.ci95[0], lower.ci95[1] - lower.value)


def _level(estimate: Estimate) -> str:
    if estimate.ci95 is None:
        return "unknown"
    return "low" if estimate.ci95[1] < LOW else "high" if estimate.ci95[0] >= LOW else "unclear"


# --- Were these runs measured alike? Every setting must agree unless its key has the mark, so a setting that nobody
# thought of makes runs incomparable and never silently comparable.

MAY_DIFFER = may_differ(ProbeSection, Mark.COMPARED)
OF_SET = " of set "
OF_MEASURES = dict.fromkeys(("grader", "words"), {"accuracy", "sharded", "doubted"})
OF_MEASURES |= {"shards": {"sharded"}, "instructions": {"instructions"}}
OF_MEASURES |= dict.fromkeys(("doubted", "pressures"), {"doubted"})
"""The settings of a set that only some measures have. A run without these measures is not compared in them."""
OF_CHOICE = tuple(f"{key}{OF_SET}" for key in ("doubted", "pressures", "by"))
"""The settings of a set that say which items and figures there are. They change no figure that two runs have."""


def measured(run: FinishedRun) -> dict[str, str]:
    """Return how a run was measured: its settings, chat template and sets."""
    found: dict[str, Any] = {**run.results.settings.others, "chat template": run.results.model.template_sha256}
    for name, info in run.results.settings.sets.items():
        found |= {f"set {name}": f"{info.n} items {info.sha256}", f"measures on set {name}": ", ".join(info.measures)}
        found |= {f"code of {measure} on set {name}": code for measure, code in info.own.items()}
        of_measures = {"grader": info.grader, **(info.model_extra or {})}
        found |= {f"{key}{OF_SET}{name}": value for key, value in of_measures.items()}
    for key, value in found.items():
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        found[key] = re.sub(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b", r"\1", text)
    return found


ACCEPTABLE = {"template": ("chat template", "stops")}
"""Differences that `--accept` names, with the settings that differ. Models of two families have two templates and other end tokens."""


def differences(runs: Sequence[FinishedRun], accept: Sequence[str] = ()) -> list[str]:
    """Return why these runs should not be compared, one line per reason; empty if they were measured alike."""
    return [line for may_differ, line in _differing(runs, accept) if not may_differ]


def _differing(runs: Sequence[FinishedRun], accept: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """Yield (may differ, "judge: rules-1 (base), llm-2 (sft, rl)") for each setting in which the runs differ."""
    runs = [part for run in runs for part in run.parts]
    settings = [measured(run) for run in runs]
    accepted = {key for name in accept for key in ACCEPTABLE[name]}
    _fill_stops(runs, settings)
    for key in dict.fromkeys(key for of_run in settings for key in of_run):
        groups: dict[str, list[str]] = defaultdict(list)
        for run, of_run in zip(runs, settings, strict=True):
            if _concerns(key, run):
                groups[of_run.get(key, "null")].append(run.name)
        if len(groups) > 1:
            listed = (f"{printable(value)} ({', '.join(names)})" for value, names in groups.items())
            # A server stops at these tokens, too, and perhaps at others. A run without a measure has none of its figures.
            unlike = key in MAY_DIFFER or key.startswith(("measures on set ", *OF_CHOICE))
            unlike |= key == "stops" and UNKNOWN in groups
            unlike |= key.startswith("code of ") and len(groups.keys() - {"null"}) == 1
            text = ", ".join(listed)
            if key == "chat template":  # whose hashes say nothing
                text = f"{', '.join(next(iter(groups.values())))} has another one than the rest"
            yield unlike or key in accepted, f"{printable(key)}{', accepted' if key in accepted else ''}: {text}"


def _concerns(key: str, run: FinishedRun) -> bool:
    """Return True unless a key is a setting of a set and the run measured nothing there that depends on the setting."""
    setting, _, name = key.partition(OF_SET)
    info = run.results.settings.sets.get(name)
    if not name or info is None:
        return not name  # the key "set NAME" says that a set is missing
    if not info.measures or (setting == "grader" and info.own):
        return True  # older runs do not list their measures, and a measure of somebody's own may grade
    return not OF_MEASURES.get(setting, set(info.measures)).isdisjoint(info.measures)


def _fill_stops(runs: Sequence[FinishedRun], settings: Sequence[dict[str, str]]) -> None:
    """Give runs without recorded stops the stops of the others, if these would not have changed a text."""
    known = next((of_run["stops"] for of_run in settings if of_run.get("stops", UNKNOWN) != UNKNOWN), None)
    for run, of_run in zip(runs, settings, strict=True):
        path = samples_file(run.folder)
        if known and "stops" not in of_run and path.is_file():
            text = json.dumps([row for _, row in read_jsonl(path)], ensure_ascii=False)
            of_run |= {"stops": known} if not any(token in text for token in json.loads(known)) else {}


# --- comparison.json


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return comparison.json, schema 2: the table of figures with one row per number and run.

    Rates lie in [0, 1]. A change is this figure minus what it is compared with, paired by item.
    """
    sets = {name: {run: shown.name for run, shown in runs.items()} for name, runs in comparison.patterns.items()}
    return {
        "schema": 2,
        "baseline": comparison.names[0],
        "runs": [{"name": run.name, "folder": str(run.folder), **asdict(run.results.model)} for run in comparison.runs],
        "trainings": {run.name: len(run.parts) for run in comparison.runs},
        "settings": comparison.runs[0].results.settings.model_dump(),
        **{key: list(getattr(comparison, key)) for key in ("differences", "remarks", "warnings", "unusable")},
        "figures": [_as_row(figure) for figure in comparison.figures],
        "hollow": [{"run": each.run, **each.metric._asdict()} for fell in comparison.hollow.values() for each in fell],
        "best_by_chance": comparison.best_by_chance,
        "patterns": {"low": LOW, "sets": sets, "overall": comparison.overall},
        "correction": plain(comparison.correction),
        "as_judged": comparison.as_judged,
    }


def _as_row(figure: RunFigure) -> dict[str, Any]:
    row = {"run": figure.run, **figure.metric._asdict(), **plain(figure.estimate), "changes": plain(figure.changes)}
    return {**row, **({"note": figure.note} if figure.note else {})}


def plain(value: Any) -> Any:
    """Return a value as comparison.json holds it: dataclasses field by field, estimates rounded and with their n."""
    if isinstance(value, PairedDifference):
        return {**value.as_json(), "gained_items": list(value.gained_items), "lost_items": list(value.lost_items)}
    if isinstance(value, Estimate):
        return {**value.as_json(), "n": value.n}
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    return {part.name: plain(getattr(value, part.name)) for part in fields(value)} if is_dataclass(value) else value


# --- The terminal


def percent(estimate: Estimate, sign: str = "", unit: str = "percent") -> str:
    """Return a rate as "57.0 [47.2, 66.3]", and a number as "12.40 [11.02, 13.70]"."""
    if estimate.value is None:
        return "-"
    scale, form = (100, f"{sign}.1f") if unit == "percent" else (1, f"{sign}.2f")
    bounds = ", ".join(f"{scale * bound:{form}}" for bound in estimate.ci95 or ())
    return f"{scale * estimate.value:{form}}{bounds and f' [{bounds}]'}"


def shown(figure: RunFigure) -> str:
    """Return a figure in its unit, with what it is the figure of: "57.0 [47.2, 66.3]" or '31.0 "how many"'."""
    text = percent(figure.estimate, unit=figure.declared.unit)
    return text + (f' "{printable(figure.note, 30)}"' if figure.note else "")


def points(estimate: Estimate, unit: str = "percent") -> str:
    """Return a difference as "+12.0 [+3.1, +20.5]"."""
    return percent(estimate, "+", unit)


def ending(name: str, most: int) -> str:
    """Return the last characters of a long name, which tell checkpoints apart."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


def format_table(results: Sequence[dict[str, Any]]) -> str:
    """Return the terminal table of one or more contents of results.json, without paired differences."""
    checked = [Results.model_validate(result) for result in results]
    folders = [Path(result.model.path) for result in checked]
    runs = zip(folders, run_names(folders, checked), checked, strict=True)
    return terminal_table(compare_runs([FinishedRun(*run, Samples({}, {})) for run in runs]))


def terminal_table(comparison: Comparison) -> str:
    """Return the main figures in percent with 95% intervals, a row per figure and a column per run, and notes below."""
    shown_figures = [*comparison.main, *comparison.parts]
    metrics = list(dict.fromkeys(figure.metric for figure in shown_figures))
    rows = [[printable(metric.set, 20), comparison.title(metric), comparison.sizes(metric)] for metric in metrics]
    tables = []
    for start in range(0, len(comparison.runs), 4):  # four runs fit the width
        names = comparison.names[start : start + 4]
        cells = {(figure.run, figure.metric): shown(figure) for figure in shown_figures}
        columns = [[cells.get((name, metric), "-") for name in names] for metric in metrics]
        head = ["set", "percent [95% interval]", "n", *(ending(name, 19) for name in names)]
        lines = aligned([head, *([*row, *cells] for row, cells in zip(rows, columns, strict=True))])
        tables.append("\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]]))
    fill = textwrap.TextWrapper(140, subsequent_indent="  ", break_on_hyphens=False).fill
    return "\n\n".join([*tables, "\n".join(map(fill, _notes(comparison)))])


def _notes(comparison: Comparison) -> Iterator[str]:
    for name, patterns in comparison.patterns.items():
        shown = {run: pattern.name for run, pattern in patterns.items() if pattern.name != NEEDS_LABELS}
        by_labels = {run: " (by labels)" * comparison.is_labelled(run, name) for run in shown}
        if listed := ", ".join(f"{run} {pattern}{by_labels[run]}" for run, pattern in shown.items()):
            yield f"pattern of {printable(name)}: {listed}"
    real = {figure.metric.set: figure.estimate for figure in reversed(comparison.select("actual", name="rate"))}
    yield from (f"real users on {printable(name)}: {percent(estimate)}" for name, estimate in real.items())
    cut = [figure for figure in comparison.select("outcome", name="truncated") if figure.estimate.value]
    shares = [f"{figure.run} {figure.estimate.value:.0%} of {figure.metric.set}" for figure in cut]
    if shares:
        yield f"answers that reached the token limit without a marked answer: {printable(', '.join(shares), 1000)}"
    yield from comparison.on_gains
    yield from comparison.graders
    if note := comparison.judge_note():
        yield f"judge: {note}"
    yield from (f"MEASURED DIFFERENTLY: {line}" for line in comparison.differences)
    yield from (f"note: {line}" for line in comparison.remarks)
