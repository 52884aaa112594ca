"""`nextturn probe label`: user turns of finished runs, drawn at random, as a page on which a person labels them blind.

From every run so many turns are drawn, within each set and temperature more evenly of those that the judge calls genuine,
of the others, and of those that it left unscored than they come, so that its rare errors are seen. How likely each turn
was to be drawn is known and stands beside its label, so `nextturn probe correct` can undo it. The page is one HTML file
that works offline. It shows the conversation and the turn, but not the run and not the judge's label. It saves the labels
as a file, which `--import` adds to labels.jsonl; the next page holds the turns that still have no label.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from nextturn.probe.errors import BadInput, DataError
from nextturn.probe.files import read_jsonl, sha256_text, write_atomic
from nextturn.probe.judges.labels import GENUINE, LABELS, prompt_parts
from nextturn.probe.measure.measures import NO_ANSWER
from nextturn.probe.measure.perturb import NONE
from nextturn.probe.measure.results import FinishedRun, load_runs
from nextturn.probe.terminal import visible

FEWEST = 20
"""Labels of a run below which no rate is corrected: its interval would say next to nothing."""

SPREAD: dict[bool | None, float] = {True: 0.50, False: 0.36, None: 0.50}
"""Standard deviation of "a reader calls it genuine" among turns that the judge calls genuine, or not: what a stratum's
share of the labels is in proportion to (Neyman 1934). Of 551 turns of small models that rules/2 had not been fitted on, a
reader called 48% and 15% genuine. Of turns that a judge left unscored (None) nothing is known, so it is the most there is."""

StratumKey = tuple[str, str, float, bool | None]
"""Run, set, temperature, and what the judge said: genuine, not genuine, or nothing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="finished probe runs, or a training run")
    parser.add_argument("--n", type=int, default=60, help="user turns to draw from each run (default 60)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the draw (default 0); a larger --n adds to the same draw"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the labels (default: DIR/labels.jsonl of a single DIR)"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="the page (default: label.html beside the labels)")
    parser.add_argument(
        "--import", dest="given", type=Path, metavar="FILE", help="add the labels that such a page gave, and end"
    )


def run(arguments: argparse.Namespace) -> None:
    if arguments.out is None and len(arguments.folders) > 1:
        raise BadInput(f"--out is missing: which file the labels of {len(arguments.folders)} folders go to")
    out = arguments.out or arguments.folders[0] / "labels.jsonl"
    runs = load_runs(arguments.folders)
    turns: list[Turn] = []
    for one in runs:  # a run that was judged anew has the turns of the first, which are read once
        if not {turn.place for turn in user_turns(one)} <= {turn.place for turn in turns}:
            turns += user_turns(one)
    done = read_labels(out) if out.exists() else []
    of_these(turns, done, out)
    if arguments.given is not None:
        added = add(arguments.given, turns, done, out)
        print(f"{out}: {added} labels added, {len(done) + added} in all")
        return
    drawn = list({one.turn.place: one for one in draw(turns, arguments.n, arguments.seed)}.values())
    labelled = {label.place for label in done}
    left = [one for one in drawn if one.turn.place not in labelled]
    names = ", ".join(dict.fromkeys(turn.run for turn in turns))
    print(f"{len(drawn)} user turns drawn from {names}, {len(left)} without a label")
    if not left:
        print(f"{out}: all are labelled; `nextturn probe correct` uses these labels")
        return
    path = arguments.page or out.with_name("label.html")
    write_atomic(path, page(left))
    print(
        f"{path}: open this page in a browser, label the turns and save the file; --import FILE then adds it to {out}"
    )


# --- The user turns of a run, and the draw.

Place = tuple[str, str, str, float, int, str]
"""A user turn among those of all models: weights' hash or path, set, item, temperature, sample, hash of the text."""


@dataclass(frozen=True)
class Turn:
    """A user turn of an unperturbed answer, as samples.jsonl has it; `run` is the name of its run, and `label` None where
    the judge left it unscored."""

    run: str
    model: str
    weights_sha256: str | None
    judge: str
    set: str
    item: str
    temperature: float
    sample: int
    messages: tuple[dict[str, str], ...]
    user_turn: str
    cut: bool
    label: str | None

    @property
    def place(self) -> Place:
        where = self.weights_sha256 or self.model, self.set, self.item, self.temperature, self.sample
        return *where, self.turn_sha256

    @cached_property
    def turn_sha256(self) -> str:
        """Of all that a reader is shown. ASCII, so that broken surrogates have a hash, too."""
        return sha256_text(json.dumps([self.messages, self.user_turn]))

    @property
    def genuine(self) -> bool | None:
        """As the judge has it; None where it does not say."""
        return None if self.label is None else self.label == GENUINE

    @property
    def stratum(self) -> StratumKey:
        return self.run, self.set, self.temperature, self.genuine


def user_turns(one: FinishedRun) -> list[Turn]:
    """The user turns of a run after answers as the model gave them: those that its follow-up rates count, and those that its
    judge left unscored. Left out of a reading, these would leave a rate of the turns that the judge chose to score.

    Raises:
        BadInput: the run has no samples.jsonl, or no judged turn in it.
    """
    path = one.folder / "samples.jsonl"
    if not path.is_file():
        raise BadInput(f"{path}: no such file, and without it nothing of {one.name} can be read")
    judge = one.results.settings.others.get("judge")
    found = [
        Turn(
            run=one.name,
            model=one.results.model.path,
            weights_sha256=one.results.model.weights_sha256,
            judge=judge if isinstance(judge, str) else json.dumps(judge),
            set=str(row["set"]),
            item=str(row["item"]),
            temperature=float(row["temperature"]),
            sample=int(row["sample"]),
            messages=tuple({"role": part["role"], "content": part["content"]} for part in row["messages"]),
            user_turn=row["user_turn"] or "",
            cut=bool(row["user_cut"]),
            label=row["label"],
        )
        for _, row in read_jsonl(path)
        if row["kind"] == "followup" and row["perturbation"] == NONE and row["unscored"] != NO_ANSWER
    ]
    if all(turn.label is None for turn in found):
        raise BadInput(
            f"{one.folder}: no judged user turn in its samples.jsonl, so there is nothing to label or correct"
        )
    return found


@dataclass(frozen=True)
class Drawn:
    """A turn to read: `drawn` of the `of` turns of its stratum were drawn."""

    turn: Turn
    drawn: int
    of: int
    seed: int


def draw(turns: Sequence[Turn], n: int, seed: int) -> list[Drawn]:
    """`n` turns of each run, or all that it has, in the order in which they are shown.

    A stratum is a run's turns of one set and temperature that the judge calls genuine, or the others, or those that it left
    unscored. Within a stratum every turn is equally likely to be drawn, and the draw is spread over the judge's labels. A draw of more turns holds
    those of a smaller one with the same seed. The first turns shown are one of each stratum; later ones come from all
    strata alike, so that reading may end anywhere after that.

    Raises:
        BadInput: n is too small to draw one turn from each stratum, or to correct a rate.
    """
    if n < FEWEST:
        raise BadInput(f"--n {n}: wanted at least {FEWEST} a run, fewer labels correct no rate")
    strata: dict[StratumKey, list[Turn]] = defaultdict(list)
    for turn in turns:
        strata[turn.stratum].append(turn)
    shown: list[tuple[float, Drawn]] = []
    for name in dict.fromkeys(turn.run for turn in turns):
        of_run = {key: members for key, members in strata.items() if key[0] == name}
        if n < len(of_run):
            raise BadInput(
                f"--n {n}: {name} has {len(of_run)} strata (a set and temperature, judged genuine or not, or "
                f"unscored), wanted at least --n {len(of_run)}"
            )
        for key, count in shares({key: len(members) for key, members in of_run.items()}, n).items():
            members = of_run[key]
            rng = random.Random(json.dumps([seed, members[0].place[0], *key[1:]]))
            for place, turn in enumerate(spread_order(members, rng)[:count]):
                # The first of every stratum before all others.
                when = rng.random() - 1 if place == 0 else (place + rng.random()) / count
                shown.append((when, Drawn(turn, count, len(members), seed)))
    return [one for _, one in sorted(shown, key=lambda pair: pair[0])]


def shares(sizes: Mapping[StratumKey, int], n: int) -> dict[StratumKey, int]:
    """How many of `n` turns each stratum of a run gives: at least one, equally many for each set and temperature, and
    within these by size and SPREAD (Neyman's rule); given out one by one, so that a larger n takes nothing away."""
    cells: dict[tuple[str, float], float] = defaultdict(float)
    for (_, name, temperature, genuine), size in sizes.items():
        cells[name, temperature] += size * SPREAD[genuine]
    wanted = {key: size * SPREAD[key[3]] / cells[key[1], key[2]] for key, size in sizes.items()}
    given = dict.fromkeys(sizes, 1)
    for _ in range(min(n, sum(sizes.values())) - len(sizes)):
        # Sainte-Laguë's rule: shares follow what is wanted, and none shrinks as n grows.
        key = max((key for key in sizes if given[key] < sizes[key]), key=lambda key: wanted[key] / (given[key] + 0.5))
        given[key] += 1
    return given


def spread_order(members: Sequence[Turn], rng: random.Random) -> list[Turn]:
    """All turns of a stratum in an order of which each beginning is spread over the judge's labels.

    Sorted by label they stand in a circle, which is entered at a random place and gone round in steps that halve. As each
    place is as likely, every turn is equally likely to be among the first k.
    """
    circle = sorted(members, key=lambda turn: turn.place)
    rng.shuffle(circle)
    circle.sort(key=lambda turn: LABELS.index(turn.label) if turn.label in LABELS else len(LABELS))
    start, bits = rng.randrange(len(circle)), max(1, math.ceil(math.log2(len(circle))))
    halving = sorted(range(len(circle)), key=lambda place: int(f"{place:0{bits}b}"[::-1], 2))
    return [circle[(start + place) % len(circle)] for place in halving]


# --- labels.jsonl


class Stratum(BaseModel):
    """Where a turn was drawn from: what the judge had said there (None: unscored), and how many turns of how many were
    drawn."""

    model_config = ConfigDict(frozen=True)

    judged_genuine: bool | None
    drawn: int
    of: int


class Label(BaseModel):
    """A row of labels.jsonl, format 1; probe/README.md describes it. `messages`, `user_turn` and `cut` are a copy."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, allow_inf_nan=False)

    version: Literal[1] = Field(default=1, alias="schema")
    run: str
    model: str
    weights_sha256: str | None
    set: str
    item: str
    perturbation: Literal["none"] = "none"
    temperature: float
    sample: int
    turn_sha256: str
    label: str
    sure: bool
    judge: str
    stratum: Stratum
    p: float
    seed: int
    messages: tuple[dict[str, str], ...]
    user_turn: str
    cut: bool

    @field_validator("label")
    @classmethod
    def _known(cls, label: str) -> str:
        if label not in LABELS:
            raise ValueError(f"{label!r}, wanted one of {', '.join(LABELS)}")
        return label

    @property
    def place(self) -> Place:
        where = self.weights_sha256 or self.model, self.set, self.item, self.temperature, self.sample
        return *where, self.turn_sha256

    @property
    def genuine(self) -> bool:
        return self.label == GENUINE


def row_of(one: Drawn) -> dict[str, Any]:
    """A row of labels.jsonl that waits for its label."""
    turn = one.turn
    return {
        "schema": 1, "run": turn.run, "model": turn.model, "weights_sha256": turn.weights_sha256,
        "set": turn.set, "item": turn.item, "perturbation": NONE, "temperature": turn.temperature, "sample": turn.sample,
        "turn_sha256": turn.turn_sha256, "label": None, "sure": True, "judge": turn.judge,
        "stratum": {"judged_genuine": turn.genuine, "drawn": one.drawn, "of": one.of},
        "p": round(one.drawn / one.of, 6), "seed": one.seed,
        "messages": list(turn.messages), "user_turn": turn.user_turn, "cut": turn.cut,
    }  # fmt: skip


def read_labels(path: Path) -> list[Label]:
    """The labels of a file that `probe label` or its page wrote.

    Raises:
        DataError: no such file, a row of another form, or two labels for one turn; with file and line.
    """
    found: dict[Place, tuple[int, Label]] = {}
    for number, row in read_jsonl(path):
        try:
            label = Label.model_validate(row)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in problem["loc"])
            raise DataError(
                f"{path}:{number}: no row of `nextturn probe label`: {where}: {problem['msg'].removeprefix('Value error, ')}"
            ) from None
        first = found.setdefault(label.place, (number, label))[0]
        if first != number:
            raise DataError(
                f"{path}:{number}: a second label for {told(label)}, which line {first} has; wanted one label a turn"
            )
    return [label for _, label in found.values()]


def told(one: Label | Turn) -> str:
    """Names a turn in a message."""
    sample = f", sample {one.sample}" if one.sample else ""
    return visible(f"{one.run}, {one.set}/{one.item} at T={one.temperature}{sample}")


def of_these(turns: Sequence[Turn], labels: Sequence[Label], path: Path) -> list[Label]:
    """The labels of the models that these turns are from; those of other models are left out.

    Raises:
        BadInput: a label of one of these models is of none of these turns, or of another text in its place.
    """
    places = {turn.place for turn in turns}
    models = {place[0] for place in places}
    ours = [label for label in labels if label.place[0] in models]
    for label in ours:
        if label.place not in places:
            other = label.place[:-1] in {place[:-1] for place in places}
            there = "another text stands there" if other else "no user turn stands there"
            raise BadInput(
                f"{path}: a label for {told(label)}, and {there} in the run that was given; wanted labels of this very "
                "probe of the model"
            )
    return ours


def add(given: Path, turns: Sequence[Turn], done: Sequence[Label], out: Path) -> int:
    """Adds the labels of a page's file to those in `out`, which are `done`; gives how many were new.

    Raises:
        BadInput: one is for a turn of none of the runs, or differs from the label that its turn has.
    """
    before = {label.place: label for label in done}
    labels = read_labels(given)
    known = {label.place for label in of_these(turns, labels, given)}
    for label in labels:
        if label.place not in known:
            raise BadInput(f"{given}: a label for {told(label)}, whose model is none of the runs that were given")
        if label.place in before and before[label.place].label != label.label:
            raise BadInput(
                f"{given}: {told(label)} is {label.label} there and {before[label.place].label} in {out}; wanted one "
                "label a turn"
            )
    new = [label.model_dump(by_alias=True, mode="json") for label in labels if label.place not in before]
    write(out, [*(label.model_dump(by_alias=True, mode="json") for label in done), *new])
    return len(new)


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """All rows at once. Text from models may hold halves of characters, which only ASCII can hold."""
    write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))


# --- The page

KEYS = {str(number): label for number, label in enumerate(LABELS, start=1)}
ASKED = (
    "A model answered a question and then went on writing in the user's place. Say what it wrote there. Read all of it; "
    "what stands in it is data, also where it gives orders."
)
WINS = "The label that covers most of the text wins; where several fit equally well, the one that stands first here."


def page(drawn: Sequence[Drawn]) -> str:
    """Return the page as one HTML file that works offline. It keeps the labels in the browser and saves labels.jsonl."""
    from markupsafe import Markup

    from nextturn.probe.report.page import as_script, packaged, page_template, policy

    key_of = {label: key for key, label in KEYS.items()}
    rows = [row_of(one) for one in drawn]
    style = packaged("report/report.css") + packaged("labels/label.css")
    script = packaged("report/page.js") + packaged("labels/label.js")
    data = {"keys": KEYS, "turns": rows, "store": sha256_text(json.dumps([row["turn_sha256"] for row in rows]))}
    return page_template(packaged("labels/label.html")).render(
        policy=policy(style, script),
        asked=ASKED,
        wins=WINS,
        meanings=[(key_of[label], label, meaning) for label, meaning in prompt_parts()["labels"].items()],
        keys=KEYS,
        style=Markup(style),
        script=Markup(script),
        data=Markup(as_script(data)),
    )
