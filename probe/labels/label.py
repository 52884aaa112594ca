"""`nextturn probe label`: draw user turns of finished runs at random, as a page on which a person labels them blind.

Each run gives the same number of turns. Within each set and temperature, turns that the judge calls genuine, other turns,
and unscored turns are drawn more evenly than they occur, so that the judge's rare errors are seen. The chance of each turn
is stored with its label, so `nextturn probe correct` can undo it. The page is one HTML file that works offline. It shows the
conversation and the turn, but not the run and not the judge's label. The page saves the labels as a file, which `--import`
adds to labels.jsonl; the next page holds the turns that still have no label. Turns of the same words are shown once. With
`--repeat` the page also shows turns that were labelled before, to measure how far a second reading agrees with the first.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from nextturn.probe.command.errors import BadInput
from nextturn.probe.command.files import sha256_text, write_atomic
from nextturn.probe.judges.verdicts import LABELS, prompt_parts
from nextturn.probe.kept import add_questions_argument
from nextturn.probe.labels.agreement import genuine_or_other, kappa_and_accuracy, shown
from nextturn.probe.labels.turns import (
    FEWEST,
    Annotator,
    DrawnTurn,
    JudgedTurn,
    Label,
    Stratum,
    StratumKey,
    labels_of_turns,
    read_labels,
    user_turns,
)
from nextturn.probe.plan import power_lines
from nextturn.probe.results import load_runs

SPREAD: dict[bool | None, float] = {True: 0.50, False: 0.36, None: 0.50}
"""Standard deviation of "an annotator calls the turn genuine" among turns that the judge calls genuine, or not. The share
of labels of a stratum is in proportion to it (Neyman 1934). Of 551 turns of small models on which rules/2 had not been
fitted, an annotator called 48% and 15% genuine. For unscored turns (None) nothing is known, so this is the largest value."""

REPEATED = 20
"""Number of turns that `--repeat` shows again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="finished probe runs, or a training run")
    add_questions_argument(parser)
    parser.add_argument("--n", type=int, default=60, help="user turns to draw from each run (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="seed; a larger --n adds to the same draw (default 0)")
    labels = "the labels (default: DIR/labels.jsonl of a single DIR); the page is label.html beside them"
    parser.add_argument("--out", type=Path, metavar="FILE", help=labels)
    saved = "add the labels that the page saved, and exit"
    parser.add_argument("--import", dest="saved", type=Path, metavar="FILE", help=saved)
    annotator = "who labels (default: who labelled the file so far, or $USER)"
    parser.add_argument("--annotator", metavar="NAME", help=annotator)
    parser.add_argument("--annotator-kind", choices=("person", "model"), default="person", help="default: person")
    again = f"show {REPEATED} turns of these labels once more, for the agreement of two readings; --import prints it"
    parser.add_argument("--repeat", type=Path, metavar="FILE", help=again)


def run(arguments: argparse.Namespace) -> None:
    if arguments.out is None and len(arguments.folders) > 1:
        raise BadInput(f"--out is missing: the file for the labels of {len(arguments.folders)} folders")
    out = arguments.out or arguments.folders[0] / "labels.jsonl"
    turns: list[JudgedTurn] = []
    for finished in load_runs(arguments.folders, arguments.questions):
        of_run = user_turns(finished)
        if not {turn.key for turn in of_run} <= {turn.key for turn in turns}:  # false for a run that was judged again
            turns += of_run
    labels = read_labels(out) if out.exists() else []
    labels_of_turns(turns, labels, out)
    name = arguments.annotator or os.environ.get("USER", "unnamed")
    continued = labels and not arguments.annotator
    annotator = labels[0].annotator if continued else Annotator(name=name, kind=arguments.annotator_kind)
    if arguments.saved is not None:
        saved = read_labels(arguments.saved)
        if arguments.annotator:  # it says who labelled, whoever the page was made for
            saved = [label.model_copy(update={"annotator": annotator}) for label in saved]
        new = new_labels(arguments.saved, [label for label in saved if not label.repeat], turns, labels, out)
        if again := [label for label in saved if label.repeat]:
            first = read_labels(arguments.repeat) if arguments.repeat else labels
            print(agreement_of_readings(first, again, arguments.repeat or out))
            repeated, keys = out.with_name(f"{out.stem}_repeated.jsonl"), {label.key for label in again}
            before = read_labels(repeated) if repeated.exists() else []
            write_labels(repeated, [*(label for label in before if label.key not in keys), *again])
        write_labels(out, [*labels, *new])
        print(f"{out}: {len(new)} labels added, {len(labels) + len(new)} in all")
        return
    drawn = {turn.key: turn for turn in draw(turns, arguments.n, arguments.seed)}
    labelled = {label.key for label in labels}
    left = [turn.model_copy(update={"annotator": annotator}) for key, turn in drawn.items() if key not in labelled]
    refuse_mixture([*labels, *left], out)
    given = {label.user_turn: {"label": label.label, "sure": label.sure} for label in labels}
    if copies := [turn.model_copy(update=given[turn.user_turn]) for turn in left if turn.user_turn in given]:
        write_labels(out, [*labels, *copies])
        print(f"{out}: {len(copies)} turns got the label of a turn of the same words")
        left = [turn for turn in left if turn.user_turn not in given]
    shown_once: dict[str, Sequence[DrawnTurn]] = {}
    for turn in left:
        shown_once[turn.user_turn] = [*shown_once.get(turn.user_turn, ()), turn]
    names = ", ".join(dict.fromkeys(turn.run for turn in turns))
    print(f"{len(drawn)} user turns drawn from {names}, {len(left)} without a label, {len(shown_once)} different ones")
    print(*power_lines((), arguments.n), sep="\n")
    groups = list(shown_once.values())
    if arguments.repeat:
        groups = with_repeats(groups, arguments.repeat, annotator, arguments.seed)
    if not groups:
        print(f"{out}: all are labelled; `nextturn probe correct` uses these labels")
        return
    path = out.with_name("label.html")
    write_atomic(path, page(groups))
    print(f"{path}: open this page in a browser, label the turns and save the file; --import FILE adds it to {out}")
    print(f"labels are {groups[0][0].made_by}; --annotator NAME changes that")


def refuse_mixture(labels: Sequence[DrawnTurn], out: Path) -> None:
    """Raise BadInput if the labels of one file are of several definitions or annotators."""
    if len(made := sorted({label.made_by for label in labels})) > 1:
        raise BadInput(f"{out}: would hold labels of several kinds ({'; '.join(made)}); name another file with --out")


def new_labels(
    saved: Path, read: Sequence[Label], turns: Sequence[JudgedTurn], labels: Sequence[Label], out: Path
) -> list[Label]:
    """Return the labels `read` from the page's file `saved` that are not among `labels`, the contents of `out`.

    Raises:
        BadInput: A label is for a turn of none of the runs, differs from the label that the turn already has, or is by
            another definition or annotator.
    """
    refuse_mixture([*labels, *read], out)
    before = {label.key: label.label for label in labels}
    known = {label.key for label in labels_of_turns(turns, read, saved)}
    for label in read:
        if label.key not in known:
            raise BadInput(f"{saved}: a label for {label}, whose model is in none of the given runs")
        if (first := before.get(label.key, label.label)) != label.label:
            raise BadInput(f"{saved}: {label} is {label.label} here and {first} in {out}; expected one label per turn")
    return [label for label in read if label.key not in before]


def with_repeats(
    groups: Sequence[Sequence[DrawnTurn]], path: Path, annotator: Annotator | None, seed: int
) -> list[Sequence[DrawnTurn]]:
    """Return the turns to show with REPEATED turns between them that have a label in `path`, drawn at random.

    Raises:
        BadInput: The labels in `path` are loose, so a strict reading cannot be compared with them.
    """
    labels = sorted(read_labels(path), key=lambda label: label.key)
    if any(label.definition == "loose" for label in labels):
        raise BadInput(f"--repeat {path}: loose labels, expected strict ones, which this page asks for")
    new = {turn.user_turn for group in groups for turn in group}
    different = list({label.user_turn: label for label in labels if label.user_turn not in new}.values())
    rng, mixed = random.Random(seed), list(groups)
    for label in rng.sample(different, min(REPEATED, len(different))):
        again = {"label": None, "sure": True, "annotator": annotator, "repeat": True}
        mixed.insert(rng.randrange(len(mixed) + 1), [DrawnTurn.model_validate({**dict(label), **again})])
    return mixed


def agreement_of_readings(first: Sequence[Label], again: Sequence[Label], path: Path) -> str:
    """Return in words how far second readings agree with the first ones.

    Raises:
        BadInput: `first`, the contents of `path`, lacks a turn that was read again.
    """
    labels = {label.key: label.label for label in first}
    if missing := [label for label in again if label.key not in labels]:
        raise BadInput(f"{path}: no first label for {missing[0]}; name the file of the first labels with --repeat FILE")
    pairs = [(labels[label.key], label.label, label.messages[0]["content"]) for label in again]
    readings = (kappa_and_accuracy(pairs), kappa_and_accuracy(genuine_or_other(pairs)))
    words = [f"equal {shown(of, 'accuracy')}%, kappa {shown(of, 'kappa')}" for of in readings]
    return f"{len(again)} turns were labelled twice; the second labels are in no rate. Agreement on the nine labels: {words[0]}; genuine or not: {words[1]}"


def write_labels(path: Path, labels: Sequence[DrawnTurn]) -> None:
    """Write all rows atomically, as ASCII, because text from models may hold halves of characters."""
    write_atomic(path, "".join(json.dumps(label.model_dump(by_alias=True)) + "\n" for label in labels))


# --- The draw


def draw(turns: Sequence[JudgedTurn], n: int, seed: int) -> list[DrawnTurn]:
    """Draw `n` turns of each run, or all that it has, and return them in the order in which they are shown.

    A stratum holds a run's turns of one set and temperature that the judge calls genuine, the others, or those that it
    left unscored. Within a stratum every turn is equally likely to be drawn. A draw of more turns contains a smaller draw
    with the same seed. One turn of each stratum is shown first. Later turns come from all strata alike, so that labelling
    may end anywhere after that.

    Raises:
        BadInput: `n` is too small to draw one turn from each stratum, or to correct a rate.
    """
    if n < FEWEST:
        raise BadInput(f"--n {n}: expected at least {FEWEST} per run, fewer labels cannot correct a rate")
    strata: dict[StratumKey, list[JudgedTurn]] = defaultdict(list)
    for turn in turns:
        strata[turn.stratum_key].append(turn)
    in_order: list[tuple[float, DrawnTurn]] = []
    for name in dict.fromkeys(turn.run for turn in turns):
        sizes = {key: len(members) for key, members in strata.items() if key[0] == name}
        if n < len(sizes):
            strata_of = f"{len(sizes)} strata (set, temperature, and judged genuine, not genuine or unscored)"
            raise BadInput(f"--n {n}: {name} has {strata_of}, expected at least --n {len(sizes)}")
        for key, count in shares(sizes, n).items():
            members = sorted(strata[key], key=lambda turn: turn.key)
            rng = random.Random(json.dumps([seed, members[0].key[0], *key[1:]]))
            rng.shuffle(members)
            stratum = Stratum(judged_genuine=key[3], drawn=count, of=len(members))
            for rank, turn in enumerate(members[:count]):
                position = (rank + rng.random()) / count if rank else rng.random() - 1
                p = round(count / len(members), 6)
                drawn = DrawnTurn(**dict(turn), stratum=stratum, p=p, seed=seed, definition="strict")
                in_order.append((position, drawn))
    return [turn for _, turn in sorted(in_order, key=lambda pair: pair[0])]


def shares(sizes: Mapping[StratumKey, int], n: int) -> dict[StratumKey, int]:
    """Return how many of `n` turns each stratum of a run gives.

    Each stratum gives at least one turn, and each set and temperature the same number. Within these, the number follows
    size and SPREAD (Neyman's rule). Turns are assigned one by one, so that a larger `n` never takes a turn away.
    """
    cells: dict[tuple[str, float], float] = defaultdict(float)
    for (_, name, temperature, genuine), size in sizes.items():
        cells[name, temperature] += size * SPREAD[genuine]
    wanted = {key: size * SPREAD[key[3]] / cells[key[1], key[2]] for key, size in sizes.items()}
    counts = dict.fromkeys(sizes, 1)
    for _ in range(min(n, sum(sizes.values())) - len(sizes)):
        # Sainte-Laguë's rule: counts follow `wanted`, and none shrinks as n grows.
        key = max((key for key in sizes if counts[key] < sizes[key]), key=lambda key: wanted[key] / (counts[key] + 0.5))
        counts[key] += 1
    return counts


# --- The page


def page(groups: Sequence[Sequence[DrawnTurn]]) -> str:
    """Return the page as one HTML file that works offline. It keeps the labels in the browser and saves labels.jsonl.

    Args:
        groups: Turns of the same words. The first of a group is shown, and its label is saved for all of them.
    """
    from nextturn.probe.report.page import packaged, rendered

    words = prompt_parts()  # the judge `llm` reads the same definition and examples
    keys = {str(number): label for number, label in enumerate(LABELS, start=1)}
    key_of = {label: key for key, label in keys.items()}
    style = packaged("report/report.css") + packaged("labels/label.css")
    script = packaged("report/page.js") + packaged("labels/label.js")
    shown_to = [(turn.turn_sha256, turn.made_by, turn.repeat) for group in groups for turn in group]
    store = sha256_text(json.dumps(shown_to))
    turns = [[turn.model_dump(by_alias=True) for turn in group] for group in groups]
    data = {"keys": keys, "turns": turns, "store": store}
    guide = {
        "meanings": [(key_of[label], label, meaning) for label, meaning in words["labels"].items()],
        "rules": words["rules"].strip().split("\n"),
        "examples": [{**each, "turns": [turn[:3] for turn in each["turns"]]} for each in words["examples"]],
    }
    return rendered("labels/label.html", style, script, data, keys=keys, **guide)
