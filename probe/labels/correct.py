"""`nextturn probe correct`: the follow-up rates of finished runs, corrected by labels of some of their user turns.

The labels come from `nextturn probe label`. Each rate that a judge counted, by set and temperature and pooled, gets the value
and 95% interval of prediction-powered inference, which hold whatever the judge gets wrong. So do the differences from the
first run. A rate is corrected by its own labels alone, because the judge's errors differ too much between sets and
temperatures: an annotator confirmed 6% of the turns that rules/2 called genuine on GSM8K at T=0, and 71% at T=0.7.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nextturn.probe import stats
from nextturn.probe.command.errors import BadInput, IncomparableRuns
from nextturn.probe.command.files import write_json
from nextturn.probe.command.terminal import aligned, printable
from nextturn.probe.kept import add_questions_argument
from nextturn.probe.labels.turns import FEWEST, JudgedTurn, Key, Label, labels_of_turns, read_labels, turns_to_correct
from nextturn.probe.report.comparison import (
    Comparison,
    CorrectedDifference,
    CorrectedRate,
    Correction,
    differences,
    plain,
)
from nextturn.probe.results import FinishedRun, load_runs
from nextturn.probe.stats import Estimate

Group = tuple[str | None, str | None]
"""Set and temperature ("T=0.7") of the turns that one rate counts; None for all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="finished probe runs, or a training run")
    add_questions_argument(parser)
    labels = "output of `probe label` (default: labels.jsonl in a DIR)"
    parser.add_argument("--labels", type=Path, metavar="FILE", help=labels)
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write corrected.json there")
    parser.add_argument("--force", action="store_true", help="use labels of several annotators together")


def run(arguments: argparse.Namespace) -> None:
    runs = load_runs(arguments.folders, arguments.questions)
    paths = [arguments.labels] if arguments.labels else label_files(arguments.folders, runs)
    if not paths:
        raise BadInput(f"no labels.jsonl in {' or '.join(map(str, arguments.folders))}, and --labels names no file")
    correction = correct(runs, paths, arguments.force)
    print(correction_table(correction))
    if arguments.out is not None:
        write_json(arguments.out / "corrected.json", {"schema": 1, **plain(correction)})
        print(arguments.out / "corrected.json")


def label_files(folders: Sequence[Path], runs: Sequence[FinishedRun]) -> list[Path]:
    """Return each labels.jsonl in the given folders, in the folders of the runs, and in the training runs of these.

    A kept run has labels.jsonl.gz.
    """
    own = [part.folder for run in runs for part in run.parts]
    parents = [folder.absolute().parent for folder in own]
    training = [parent.parent for parent in parents if parent.name == "probe"]
    names = ("labels.jsonl", "labels.jsonl.gz")
    paths = [folder / name for folder in (*folders, *own, *training) for name in names]
    distinct = {path.resolve(): path for path in reversed(paths)}
    return [path for path in reversed(distinct.values()) if path.is_file()]


# --- The correction


def correct(runs: Sequence[FinishedRun], paths: Sequence[Path], force: bool = False) -> Correction:
    """Return the corrected follow-up rates of every run that has labels in the given files.

    Raises:
        IncomparableRuns: The runs were measured differently, so that a difference between them says nothing; or the labels are
            of two definitions, or of several annotators and `force` is False.
        BadInput: No run has labels; a run has fewer than FEWEST; a label is for a turn that its run does not have; or a turn
            has two labels.
        DataError: A row of a file is not in the format of `probe label`.
    """
    if problems := differences(runs):
        ways = "Probe them with the same settings, or correct each by itself"
        raise IncomparableRuns(f"these runs were measured differently: {'; '.join(problems)}. {ways}")
    turns = {run.name: turns_to_correct(run) for run in runs}
    return correction_of(turns, _labels_of(turns, paths), paths, force)


def correction_of(
    turns: Mapping[str, Sequence[JudgedTurn]], labels: Mapping[Key, Label], paths: Sequence[Path], force: bool = False
) -> Correction:
    """Return the corrected rates of all runs with labels, and their differences from the first run.

    Args:
        turns: The user turns of each run, by its name.
        labels: The labels of these turns.
        paths: The files that the labels are from.
        force: Use labels of several annotators together.
    """
    import numpy as np

    made_by = _refuse_mixture(labels.values(), force)
    read = {name: [labels[turn.key] for turn in of_run if turn.key in labels] for name, of_run in turns.items()}
    items = dict.fromkeys(_item(turn) for of_run in turns.values() for turn in of_run)
    numbers = {item: number for number, item in enumerate(items)}
    texts: dict[str, int] = {}
    rates: list[CorrectedRate] = []
    changes: list[CorrectedDifference] = []
    first, *_ = turns
    baseline: dict[Group, stats.Corrected] = {}

    def is_genuine(turn: JudgedTurn, sure_only: bool) -> bool:
        label = labels.get(turn.key)
        return label is not None and label.genuine and (label.sure or not sure_only)

    def corrected(
        members: Sequence[JudgedTurn], weights: Mapping[Key, float], sure_only: bool = False
    ) -> stats.Corrected:
        return stats.corrected(
            judged=np.array([turn.judged_genuine is True for turn in members]),
            read=np.array([float(is_genuine(turn, sure_only)) for turn in members]),
            weights=np.array([weights.get(turn.key, 0.0) for turn in members]),
            items=np.array([numbers[_item(turn)] for turn in members]),
            n_items=len(numbers),
            scored=np.array([turn.judged_genuine is not None for turn in members]),
            texts=np.array([texts.setdefault(turn.user_turn, len(texts)) for turn in members]),
        )

    left_out, labelled = [], dict[str, list[JudgedTurn]]()
    for name, of_run in turns.items():
        if not read[name]:
            continue
        unread = unlabelled(of_run, read[name])
        left_out += [f"{name} on {set_name} at T={temperature}" for set_name, temperature, _ in sorted(unread)]
        of_run = [turn for turn in of_run if _cell(turn) not in unread]
        weights = weights_of(name, of_run, read[name])
        labelled[name] = of_run
        for group in _groups(of_run):
            members = _within(of_run, group)
            rate, by_sure = corrected(members, weights), corrected(members, weights, sure_only=True)
            scored = [turn for turn in members if turn.judged_genuine is not None]
            judged = stats.clustered_rate([turn.judged_genuine is True for turn in scored], list(map(_item, scored)))
            value = _estimate(stats.corrected_bounds(rate), len(members))
            bias = _estimate(stats.bias_bounds(rate), len(scored)) if scored else stats.NOTHING
            count = sum(turn.key in labels for turn in members)
            sure = _estimate(stats.corrected_bounds(by_sure), len(members))
            rates.append(CorrectedRate(name, *group, judged, value, count, bias, sure))
            before = _within(labelled.get(first, ()), group)
            if name == first:
                baseline[group] = rate
            elif group in baseline and (None not in group or _same_turns(before, members)):
                change = stats.paired_difference(_values_by_item(before), _values_by_item(members))
                n = len({*map(_item, before)} & {*map(_item, members)})
                difference = _estimate(stats.corrected_difference(baseline[group], rate), n)
                judged = Estimate(change.value, change.ci95, change.n)
                changes.append(CorrectedDifference(name, *group, judged, difference))
    counts = {name: len(of_run) for name, of_run in read.items()}
    unsure = {name: sum(not label.sure for label in of_run) for name, of_run in read.items()}
    return Correction(tuple(map(str, paths)), counts, unsure, tuple(rates), tuple(changes), made_by, tuple(left_out))


def _refuse_mixture(labels: Iterable[Label], force: bool) -> tuple[str, ...]:
    """Return the definition and the annotator of the labels, several of them only with `force` and of one definition."""
    made = dict(sorted((label.made_by, label.definition) for label in labels))
    definitions = len(set(made.values()))
    if definitions > 1 or (len(made) > 1 and not force):
        unlike = "by the loose and the strict definition" if definitions > 1 else "of several annotators"
        ways = "name one file with --labels, or correct each run by itself" + ", or add --force" * (definitions == 1)
        raise IncomparableRuns(f"labels {unlike} are not compared ({'; '.join(made)}); {ways}")
    return tuple(made)


def _labels_of(turns: Mapping[str, Sequence[JudgedTurn]], paths: Sequence[Path]) -> dict[Key, Label]:
    """Return the labels of the runs' turns by key, from all files."""
    labels: dict[Key, Label] = {}
    for path in paths:
        counted = [label for label in read_labels(path) if not label.repeat]
        for label in labels_of_turns([turn for of_run in turns.values() for turn in of_run], counted, path):
            if label.key in labels:
                raise BadInput(f"{path}: a label for {label}, which {paths[0]} labels too; expected one label per turn")
            labels[label.key] = label
    if not labels:
        raise BadInput(f"{', '.join(map(str, paths))}: no label is for a user turn of {', '.join(turns)}")
    return labels


def _cell(turn: JudgedTurn | Label) -> tuple[str, float, str]:
    """Return set, temperature and model of a turn. Turns of several trainings in one run were drawn apart."""
    return turn.set, turn.temperature, turn.key[0]


def unlabelled(turns: Sequence[JudgedTurn], labels: Sequence[Label]) -> set[tuple[str, float, str]]:
    """Return the sets and temperatures with judged turns of which none has a label: no rate of them can be corrected."""
    judged = {_cell(turn) for turn in turns if turn.judged_genuine is not None}
    return judged - {_cell(label) for label in labels}


def weights_of(name: str, turns: Sequence[JudgedTurn], labels: Sequence[Label]) -> dict[Key, float]:
    """Return how many turns of its stratum each labelled turn stands for, by `Label.key`.

    Every turn of a stratum was equally likely to be drawn, and the order on the page favours none, so the labelled turns of
    a stratum are a random sample of it however many were labelled.

    Raises:
        BadInput: There are fewer than FEWEST labels, or they were drawn by the verdicts of two judges.
    """
    if len(labels) < FEWEST:
        raise BadInput(f"{name}: {len(labels)} labels, expected at least {FEWEST}; `nextturn probe label` continues")
    judges = sorted({label.judge for label in labels})
    if len(judges) > 1:
        raise BadInput(f"{name}: labels drawn by the verdicts of {' and '.join(judges)}, expected those of one draw")
    # A run that was judged again by another judge has other strata than those that its labels were drawn from.
    same = judges[0] == turns[0].judge
    own = {turn.key: (*_cell(turn), turn.judged_genuine) for turn in turns}
    drawn = {label.key: (*_cell(label), label.stratum.judged_genuine) for label in labels}
    strata = {label.key: (own if same else drawn)[label.key] for label in labels}
    sizes = Counter(own.values()) if same else {drawn[label.key]: label.stratum.of for label in labels}
    counts = Counter(strata.values())
    return {key: sizes[stratum] / counts[stratum] for key, stratum in strata.items()}


def _groups(turns: Sequence[JudgedTurn]) -> list[Group]:
    """Return each set and temperature; then, where there are several, each set, each temperature, and all together."""
    cells = list(dict.fromkeys((turn.set, f"T={turn.temperature}") for turn in turns))
    sets, temperatures = (list(dict.fromkeys(column)) for column in zip(*cells, strict=True))
    groups: list[Group] = [*cells]
    if len(sets) > 1 and len(temperatures) > 1:
        groups += [*((name, None) for name in sets), *((None, temperature) for temperature in temperatures)]
    return [*groups, (None, None)] if len(cells) > 1 else groups


def _within(turns: Sequence[JudgedTurn], group: Group) -> list[JudgedTurn]:
    name, temperature = group
    return [turn for turn in turns if name in (None, turn.set) and temperature in (None, f"T={turn.temperature}")]


def _same_turns(before: Sequence[JudgedTurn], after: Sequence[JudgedTurn]) -> bool:
    """Return True if two runs have the same turns. Otherwise their pooled rates differ by the mix of turns alone."""
    own = [{(turn.set, turn.item, turn.temperature, turn.sample) for turn in turns} for turns in (before, after)]
    return own[0] == own[1]


def _values_by_item(turns: Sequence[JudgedTurn]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = defaultdict(list)
    for turn in turns:
        if turn.judged_genuine is not None:
            values[_item(turn)].append(float(turn.judged_genuine))
    return values


def _item(turn: JudgedTurn) -> str:
    """Return a name of the item, or of its conversation, that is unique among all sets."""
    return f"{turn.set} {turn.cluster}"


def _estimate(bounds: stats.Bounds, n: int) -> Estimate:
    value, low, high = map(float, bounds)
    return Estimate(value, (low, high), n)


def correction_table(correction: Correction) -> str:
    """Return rates and differences for the terminal, as judged and corrected."""
    figures = {rate: correction.columns(rate) for rate in correction.rates}
    columns = list(dict.fromkeys(column for of_rate in figures.values() for column in of_rate))
    rows = [["set", "decoding", "run", "turns", *columns]]
    order = list(dict.fromkeys((rate.set, rate.temperature) for rate in correction.rates))
    for rate in sorted(correction.rates, key=lambda rate: order.index((rate.set, rate.temperature))):
        names = [printable(rate.set or "all"), rate.temperature or "all", printable(rate.run), str(rate.corrected.n)]
        rows.append([*names, *(figures[rate].get(column, "-") for column in columns)])
    notes = [f"follow-up corrected by {correction.behind}; percent, bias and changes in points [95% interval]"]
    if without := [printable(name) for name, count in correction.labels.items() if not count]:
        notes.append(f"not corrected, because they have no labels: {', '.join(without)}")
    cells = [rate for rate in correction.rates if rate.set and rate.temperature]
    turns, judged = sum(rate.corrected.n for rate in cells), sum(rate.judged.n for rate in cells)
    if judged < turns:
        notes.append(f"{turns - judged} of {turns} turns are unscored: in corrected rates, in no judged rate")
    first, *lines = aligned(rows)
    return "\n".join([*notes, "", first, "-" * max(map(len, [first, *lines])), *lines])


# --- A comparison with its labels


def with_labels(comparison: Comparison, folders: Sequence[Path], path: Path | None, force: bool = False) -> Comparison:
    """Return the comparison with the correction by labels.

    Args:
        comparison: The comparison of finished runs.
        folders: The folders that were compared.
        path: The file of labels. None takes the labels in the folders; labels that cannot be used, such as too few, then
            become a warning.
        force: Use labels of several annotators together.
    """
    paths = [path] if path else label_files(folders, comparison.runs)
    if not paths:
        return comparison
    try:
        turns = {run.name: turns_to_correct(run) for run in comparison.runs}
        labels = _labels_of(turns, paths)
        correction = correction_of(turns, labels, paths, force)
        shown = {
            (name, turn.turn_sha256): labels[turn.key].label
            for name, of_run in turns.items()
            for turn in of_run
            if turn.key in labels
        }
        return replace(comparison, correction=correction, labels=shown)
    except BadInput as error:
        if path:
            raise
        return replace(comparison, warnings=(f"not corrected: {error}",))
