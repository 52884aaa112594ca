"""`nextturn probe correct`: the follow-up rates of finished runs as a reader would have them, from labels of some turns.

The labels come from `nextturn probe label`. Each rate that a judge counted, by set and temperature and pooled, gets the
value and 95% interval of prediction-powered inference, whatever the judge gets wrong; so do the differences to the first
run. A rate is corrected by its own labels alone: where the judge errs differs too much between sets and temperatures (of
what rules/2 called genuine on GSM8K a reader did 6% at T=0 and 71% at T=0.7) for one to stand for another.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from nextturn.probe import stats
from nextturn.probe.errors import BadInput, IncomparableRuns
from nextturn.probe.files import write_json
from nextturn.probe.labels.label import FEWEST, Label, Turn, of_these, read_labels, told, user_turns
from nextturn.probe.measure.results import FinishedRun, load_runs
from nextturn.probe.report.comparison import (
    Comparison,
    CorrectedDifference,
    CorrectedRate,
    Correction,
    differences,
    percent,
    plain,
    points,
)
from nextturn.probe.stats import Estimate
from nextturn.probe.terminal import aligned, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="finished probe runs, or a training run")
    parser.add_argument(
        "--labels", type=Path, metavar="FILE", help="what `probe label` wrote (default: labels.jsonl in a DIR)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write corrected.json there")


def run(arguments: argparse.Namespace) -> None:
    runs = load_runs(arguments.folders)
    paths = [arguments.labels] if arguments.labels else label_files(arguments.folders, runs)
    if not paths:
        raise BadInput(f"no labels.jsonl in {' or '.join(map(str, arguments.folders))}, and --labels names no file")
    found = correct(runs, paths)
    print(correction_table(found))
    if arguments.out is not None:
        write_json(arguments.out / "corrected.json", {"schema": 1, **plain(found)})
        print(arguments.out / "corrected.json")


def label_files(folders: Sequence[Path], runs: Sequence[FinishedRun]) -> list[Path]:
    """The labels.jsonl in the folders that were given, in those of the runs, and in the training runs of these."""
    parents = [one.folder.absolute().parent for one in runs]
    training = [parent.parent for parent in parents if parent.name == "probe"]
    places = [*folders, *(one.folder for one in runs), *training]
    found = {(place / "labels.jsonl").resolve(): place / "labels.jsonl" for place in reversed(places)}
    return [path for path in reversed(found.values()) if path.is_file()]


# --- The correction


@dataclass(frozen=True)
class Labelled:
    """The user turns of runs by name, and the labels that some of them have; `weights` (`weights_of`) of runs with labels."""

    turns: dict[str, list[Turn]]
    labels: dict[Any, Label]
    weights: dict[str, dict[Any, float]]
    items: dict[tuple[str, str], int]

    def corrected(self, name: str, group: Group = (None, None)) -> stats.Corrected:
        import numpy as np

        turns = self.of(name, group)
        judged = np.array([turn.genuine is True for turn in turns])
        scored = np.array([turn.genuine is not None for turn in turns])
        labels = [self.labels.get(turn.place) for turn in turns]
        read = np.array([float(label is not None and label.genuine) for label in labels])
        weight = np.array([self.weights[name].get(turn.place, 0.0) for turn in turns])
        items = np.array([self.items[turn.set, turn.item] for turn in turns])
        return stats.corrected(judged, read, weight, items, len(self.items), scored=scored)

    def of(self, name: str, group: Group = (None, None)) -> list[Turn]:
        return [turn for turn in self.turns[name] if within(turn, group)]

    def change(self, before: str, after: str, group: Group = (None, None)) -> stats.PairedDifference:
        """As the judge has it."""
        return stats.paired_difference(values_by_item(self.of(before, group)), values_by_item(self.of(after, group)))

    def in_both(self, before: str, after: str, group: Group = (None, None)) -> int:
        """Items."""
        first, second = ({item_of(turn) for turn in self.of(name, group)} for name in (before, after))
        return len(first & second)

    def alike(self, names: Sequence[str], group: Group = (None, None)) -> bool:
        """Whether these runs have the same turns there. Pooled over temperatures of which one run lacks one, or has fewer
        samples, a rate would differ by that alone."""
        return len({frozenset(map(asked, self.of(name, group))) for name in names}) == 1


def labelled(runs: Sequence[FinishedRun], paths: Sequence[Path]) -> Labelled:
    """The user turns of runs with their labels in the given files; raises as `correct` does."""
    labels: dict[Any, Label] = {}
    turns = {one.name: user_turns(one) for one in runs}
    for path in paths:
        for label in of_these([turn for found in turns.values() for turn in found], read_labels(path), path):
            if label.place in labels:
                raise BadInput(
                    f"{path}: a label for {told(label)}, which {paths[0]} labels too; wanted one label a turn"
                )
            labels[label.place] = label
    if not labels:
        raise BadInput(f"{', '.join(map(str, paths))}: no label is for a user turn of {', '.join(turns)}")
    of_run = {name: [labels[turn.place] for turn in found if turn.place in labels] for name, found in turns.items()}
    weights = {name: weights_of(name, turns[name], found) for name, found in of_run.items() if found}
    items = dict.fromkeys((turn.set, turn.item) for found in turns.values() for turn in found)
    return Labelled(turns, labels, weights, {item: number for number, item in enumerate(items)})


def correct(runs: Sequence[FinishedRun], paths: Sequence[Path]) -> Correction:
    """Corrects the follow-up rates of every run that has labels in the given files.

    Raises:
        IncomparableRuns: the runs were measured differently, so that a difference between them says nothing.
        BadInput: no run has any; or one has fewer than FEWEST, or none in a set and temperature or a stratum; or a label
            is for a turn that its run does not have, or one of two for a turn.
        DataError: a row of a file is none that `probe label` writes.
    """
    if found := differences(runs):
        raise IncomparableRuns(
            f"these runs were measured differently: {'; '.join(found)}. Probe them with the same settings, or correct each "
            "by itself"
        )
    return correction_of(labelled(runs, paths), paths)


def correction_of(found: Labelled, paths: Sequence[Path]) -> Correction:
    """The corrected rates of all runs with labels, and their differences to the first run."""
    rates: list[CorrectedRate] = []
    changes: list[CorrectedDifference] = []
    first = next(iter(found.turns))
    baseline: dict[Group, stats.Corrected] = {}
    for name in found.weights:
        for group in groups_of(found.turns[name]):
            members, one = found.of(name, group), found.corrected(name, group)
            count = sum(turn.place in found.labels for turn in members)
            scored = [turn for turn in members if turn.genuine is not None]
            judged = stats.clustered_rate([bool(turn.genuine) for turn in scored], [item_of(turn) for turn in scored])
            value = estimate(stats.corrected_bounds(one), len(members))
            bias = estimate(stats.bias_bounds(one), len(scored)) if scored else stats.NOTHING
            rates.append(CorrectedRate(name, *group, count, judged, value, bias))
            if name == first:
                baseline[group] = one
            elif group in baseline and (None not in group or found.alike([first, name], group)):
                change = found.change(first, name, group)
                difference = estimate(
                    stats.corrected_difference(baseline[group], one), found.in_both(first, name, group)
                )
                judged = Estimate(change.value, change.ci95, change.n)
                changes.append(CorrectedDifference(name, *group, judged, difference))
    read = {
        name: [found.labels[turn.place] for turn in turns if turn.place in found.labels]
        for name, turns in found.turns.items()
    }
    counts = {name: len(labels) for name, labels in read.items()}
    unsure = {name: sum(not label.sure for label in labels) for name, labels in read.items()}
    return Correction(tuple(map(str, paths)), counts, unsure, tuple(rates), tuple(changes))


CorrectedRow = TypeVar("CorrectedRow", CorrectedRate, CorrectedDifference)

Group = tuple[str | None, str | None]
"""Set and temperature ("T=0.7") of the turns that one rate counts; None for all."""


def groups_of(turns: Sequence[Turn]) -> list[Group]:
    """Each set and temperature; then, where there are several, all temperatures of a set, all sets at one, and all."""
    cells = list(dict.fromkeys((turn.set, f"T={turn.temperature}") for turn in turns))
    sets, decodings = (list(dict.fromkeys(cell[place] for cell in cells)) for place in (0, 1))
    several_sets, several_decodings = len(sets) > 1, len(decodings) > 1
    groups: list[Group] = [*cells]
    groups += [(name, None) for name in sets] if several_sets and several_decodings else []
    groups += [(None, decoding) for decoding in decodings] if several_sets and several_decodings else []
    return [*groups, (None, None)] if len(cells) > 1 else groups


def within(turn: Turn, group: Group) -> bool:
    return group[0] in (None, turn.set) and group[1] in (None, f"T={turn.temperature}")


def weights_of(name: str, turns: Sequence[Turn], labels: Sequence[Label]) -> dict[Any, float]:
    """How many turns of its stratum each labelled one stands for, by `Label.place`.

    Every turn of a stratum was as likely to be drawn, and turns are read in an order that favours none, so those with a
    label are a random sample of it however far the reading got.
    """
    if len(labels) < FEWEST:
        raise BadInput(f"{name}: {len(labels)} labels, wanted at least {FEWEST}; `nextturn probe label` goes on")
    judges = sorted({label.judge for label in labels})
    if len(judges) > 1:
        raise BadInput(f"{name}: labels drawn by what {' and '.join(judges)} said, wanted those of one draw")
    # Under the judge that the draw knew, strata are those of the run; under another one they are told by the labels.
    same = judges[0] == turns[0].judge
    own = {turn.place: (turn.set, turn.temperature, turn.genuine) for turn in turns}
    sizes = dict(Counter(own.values()))
    stratum_of = {label.place: own[label.place] for label in labels}
    if not same:
        stratum_of = {label.place: (label.set, label.temperature, label.stratum.judged_genuine) for label in labels}
        sizes = {}
        for label in labels:
            key = stratum_of[label.place]
            if sizes.setdefault(key, label.stratum.of) != label.stratum.of:
                raise BadInput(
                    f"{name}: labels of {label.set} at T={label.temperature} drawn from {sizes[key]} and "
                    f"{label.stratum.of} turns, wanted those of one draw"
                )
    read = Counter(stratum_of.values())
    touched = {key if same else key[:2] for key in read}
    for key, size in Counter(own.values()).items():
        # Unscored turns without a label may be anything, which their part of the interval says.
        if key[2] is not None and (key if same else key[:2]) not in touched:
            kind = f" that the judge calls {'genuine' if key[2] else 'not genuine'}" if same else ""
            raise BadInput(
                f"{name}: none of its {len(labels)} labels is for one of the {size} turns of {key[0]} at T={key[1]}{kind}; "
                "`nextturn probe label` draws some of each"
            )
    return {place: sizes[key] / read[key] for place, key in stratum_of.items()}


def estimate(bounds: stats.Bounds, n: int) -> Estimate:
    value, low, high = map(float, bounds)
    return Estimate(value, (low, high), n)


def values_by_item(turns: Sequence[Turn]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for turn in turns:
        if turn.genuine is not None:
            found[item_of(turn)].append(float(turn.genuine))
    return found


def asked(turn: Turn) -> tuple[str, str, float, int]:
    """What a turn was made for, whatever was said."""
    return turn.set, turn.item, turn.temperature, turn.sample


def item_of(turn: Turn) -> str:
    """Items of two sets may have one name."""
    return f"{turn.set} {turn.item}"


def grouped(rows: Sequence[CorrectedRow]) -> list[CorrectedRow]:
    """Return the rows sorted so that the runs of one set and temperature follow each other."""
    order = list(dict.fromkeys((row.set, row.temperature) for row in rows))
    return sorted(rows, key=lambda row: order.index((row.set, row.temperature)))


def correction_table(correction: Correction) -> str:
    """Rates and differences for the terminal, judged beside corrected."""
    rates = [["set", "decoding", "run", "turns", "labels", "judged", "corrected", "judge's bias"]]
    for one in grouped(correction.rates):
        where = [printable(one.set or "all"), one.temperature or "all", printable(one.run)]
        figures = [percent(one.judged), percent(one.corrected), points(one.bias)]
        rates.append([*where, str(one.corrected.n), str(one.labels), *figures])
    changes = [["set", "decoding", "run", "minus the baseline: judged", "corrected"]]
    for change in grouped(correction.differences):
        where = [printable(change.set or "all"), change.temperature or "all", printable(change.run)]
        changes.append([*where, points(change.judged), points(change.corrected)])
    without = [name for name, count in correction.labels.items() if not count]
    notes = [f"follow-up corrected by {correction.behind}; percent, bias and differences in points [95% interval]"]
    notes += [f"without labels, and not corrected: {', '.join(map(printable, without))}"] if without else []
    cells = [one for one in correction.rates if one.set and one.temperature]
    turns, judged = sum(one.corrected.n for one in cells), sum(one.judged.n for one in cells)
    if judged < turns:
        notes.append(
            f"{turns - judged} of {turns} turns were left unscored: judged rates are without them, corrected ones with"
        )
    tables = [rates, changes] if len(changes) > 1 else [rates]
    shown = [aligned(table) for table in tables]
    return "\n\n".join(["\n".join(notes), *("\n".join([one[0], "-" * max(map(len, one)), *one[1:]]) for one in shown)])


# --- A comparison with its labels


def with_labels(comparison: Comparison, folders: Sequence[Path], path: Path | None) -> Comparison:
    """Return the comparison with what labels say of it.

    Args:
        path: the labels that were given. Where None, those in the folders are taken; then what makes them unusable, such
            as a reading that has only begun, becomes a warning.
    """
    paths = [path] if path else label_files(folders, comparison.runs)
    try:
        found = labelled(comparison.runs, paths) if paths else None
    except BadInput as error:
        if path:
            raise
        return replace(comparison, warnings=(f"not corrected: {error}",))
    return replace(comparison, correction=correction_of(found, paths)) if found else comparison
