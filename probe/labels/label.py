"""`nextturn probe label`: draw user turns of finished runs at random, as a page on which a person labels them blind.

Each run gives the same number of turns. Within each set and temperature, turns that the judge calls genuine, other turns,
and unscored turns are drawn more evenly than they occur, so that the judge's rare errors are seen. The chance of each turn
is stored with its label, so `nextturn probe correct` can undo it. The page is one HTML file that works offline. It shows the
conversation and the turn, but not the run and not the judge's label. The page saves the labels as a file, which `--import`
adds to labels.jsonl; the next page holds the turns that still have no label.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nextturn.probe.errors import BadInput, DataError
from nextturn.probe.files import read_jsonl, sha256_text, write_atomic
from nextturn.probe.judges.labels import GENUINE, LABELS, prompt_parts
from nextturn.probe.measure.measures import NO_ANSWER
from nextturn.probe.measure.perturb import NONE
from nextturn.probe.measure.results import FinishedRun, load_runs
from nextturn.probe.terminal import visible

FEWEST = 20
"""Number of labels of a run below which no rate is corrected: its interval would say next to nothing."""

SPREAD: dict[bool | None, float] = {True: 0.50, False: 0.36, None: 0.50}
"""Standard deviation of "an annotator calls the turn genuine" among turns that the judge calls genuine, or not. The share
of labels of a stratum is in proportion to it (Neyman 1934). Of 551 turns of small models on which rules/2 had not been
fitted, an annotator called 48% and 15% genuine. For unscored turns (None) nothing is known, so this is the largest value."""

StratumKey = tuple[str, str, float, bool | None]
"""Run, set, temperature, and the judge's verdict: genuine, not genuine, or none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="finished probe runs, or a training run")
    parser.add_argument("--n", type=int, default=60, help="user turns to draw from each run (default 60)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the draw (default 0); a larger --n adds to the same draw"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the labels (default: DIR/labels.jsonl of a single DIR)"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="the page (default: label.html next to the labels)")
    parser.add_argument(
        "--import", dest="saved", type=Path, metavar="FILE", help="add the labels that the page saved, and exit"
    )


def run(arguments: argparse.Namespace) -> None:
    if arguments.out is None and len(arguments.folders) > 1:
        raise BadInput(f"--out is missing: the file for the labels of {len(arguments.folders)} folders")
    out = arguments.out or arguments.folders[0] / "labels.jsonl"
    turns: list[JudgedTurn] = []
    for finished in load_runs(arguments.folders):
        of_run = user_turns(finished)
        if not {turn.key for turn in of_run} <= {turn.key for turn in turns}:  # false for a run that was judged again
            turns += of_run
    labels = read_labels(out) if out.exists() else []
    labels_of_turns(turns, labels, out)
    if arguments.saved is not None:
        new = new_labels(arguments.saved, turns, labels, out)
        write_labels(out, [*labels, *new])
        print(f"{out}: {len(new)} labels added, {len(labels) + len(new)} in all")
        return
    drawn = {turn.key: turn for turn in draw(turns, arguments.n, arguments.seed)}
    labelled = {label.key for label in labels}
    left = [turn for key, turn in drawn.items() if key not in labelled]
    names = ", ".join(dict.fromkeys(turn.run for turn in turns))
    print(f"{len(drawn)} user turns drawn from {names}, {len(left)} without a label")
    if not left:
        print(f"{out}: all are labelled; `nextturn probe correct` uses these labels")
        return
    path = arguments.page or out.with_name("label.html")
    write_atomic(path, page(left))
    print(f"{path}: open this page in a browser, label the turns and save the file; --import FILE adds it to {out}")


# --- User turns and their labels

Key = tuple[str, str, str, float, int, str]
"""A user turn among those of all models: hash or path of the weights, set, item, temperature, sample, hash of the text."""


class JudgedTurn(BaseModel):
    """A user turn of a finished run, after an unperturbed answer.

    Attributes:
        run: The run's name among those that were loaded together.
        turn_sha256: Hash of everything that an annotator is shown.
        judge: Version of the judge whose verdict is `judged`.
        cut: Generation stopped at the token limit.
        judged: The judge's label; None where the turn is unscored. Not written, because labels are given blind.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True, allow_inf_nan=False)

    run: str
    model: str
    weights_sha256: str | None
    set: str
    item: str
    temperature: float
    sample: int
    turn_sha256: str
    judge: str
    messages: tuple[dict[str, str], ...]
    user_turn: str
    cut: bool
    judged: str | None = Field(default=None, exclude=True)

    def __str__(self) -> str:
        sample = f", sample {self.sample}" if self.sample else ""
        return visible(f"{self.run}, {self.set}/{self.item} at T={self.temperature}{sample}")

    @property
    def key(self) -> Key:
        model = self.weights_sha256 or self.model
        return model, self.set, self.item, self.temperature, self.sample, self.turn_sha256

    @property
    def judged_genuine(self) -> bool | None:
        """The judge's verdict; None where there is none."""
        return None if self.judged is None else self.judged == GENUINE

    @property
    def stratum_key(self) -> StratumKey:
        return self.run, self.set, self.temperature, self.judged_genuine


class Stratum(BaseModel):
    """The turns that a turn was drawn from: the judge's verdict on them, and how many of how many were drawn."""

    model_config = ConfigDict(frozen=True)

    judged_genuine: bool | None
    drawn: int
    of: int


class DrawnTurn(JudgedTurn):
    """A drawn user turn: a row of labels.jsonl, format 1, that has no label yet; docs/judges.md describes the format."""

    version: Literal[1] = Field(default=1, alias="schema")
    perturbation: Literal["none"] = "none"
    stratum: Stratum
    p: float
    seed: int
    label: str | None = None
    sure: bool = True


KnownLabel = Annotated[str, Field(pattern=f"^({'|'.join(LABELS)})$")]


class Label(DrawnTurn):
    """A row of labels.jsonl: a drawn user turn with its label."""

    label: KnownLabel

    @property
    def genuine(self) -> bool:
        return self.label == GENUINE


def user_turns(run: FinishedRun) -> list[JudgedTurn]:
    """Return the user turns of a run after unperturbed answers, including those that its judge left unscored.

    Without the unscored turns, a corrected rate would be the rate of the turns that the judge chose to score.

    Raises:
        BadInput: The run has no samples.jsonl, or no judged turn in it.
    """
    path = run.folder / "samples.jsonl"
    if not path.is_file():
        raise BadInput(f"{path}: no such file; without it the user turns of {run.name} cannot be read")
    model, judge = run.results.model, run.results.settings.others.get("judge")
    turns = []
    for _, row in read_jsonl(path):
        if row["kind"] != "followup" or row["perturbation"] != NONE or row["unscored"] == NO_ANSWER:
            continue
        messages = tuple({"role": message["role"], "content": message["content"]} for message in row["messages"])
        text = row["user_turn"] or ""
        turn = JudgedTurn(
            run=run.name,
            model=model.path,
            weights_sha256=model.weights_sha256,
            set=str(row["set"]),
            item=str(row["item"]),
            temperature=row["temperature"],
            sample=row["sample"],
            turn_sha256=sha256_text(json.dumps([messages, text])),  # ASCII, so that broken surrogates have a hash, too
            judge=judge if isinstance(judge, str) else json.dumps(judge),
            messages=messages,
            user_turn=text,
            cut=bool(row["user_cut"]),
            judged=row["label"],
        )
        turns.append(turn)
    if all(turn.judged is None for turn in turns):
        raise BadInput(f"{path}: no judged user turn, so there is nothing to label or correct")
    return turns


Row = TypeVar("Row", bound=BaseModel)


def read_rows(path: Path, kind: type[Row]) -> Iterator[tuple[int, Row]]:
    """Yield (line number, row) of a JSONL file.

    Raises:
        DataError: There is no such file, or a row is no `kind`; with file, line and key.
    """
    for number, row in read_jsonl(path):
        try:
            yield number, kind.model_validate(row)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            key = ".".join(map(str, problem["loc"]))
            given = visible(f"{problem['input']!r:.60}")
            raise DataError(
                f"{path}:{number}: {key}: {problem['msg'].removeprefix('Value error, ')}; given {given}"
            ) from None


def read_labels(path: Path) -> list[Label]:
    """Return the labels of a file that `nextturn probe label` or its page wrote.

    Raises:
        DataError: There is no such file, a row has another form, or a turn has two labels; with file and line.
    """
    lines: dict[Key, int] = {}
    labels = []
    for number, label in read_rows(path, Label):
        if label.key in lines:
            raise DataError(f"{path}:{number}: a second label for {label}; line {lines[label.key]} has the first")
        lines[label.key] = number
        labels.append(label)
    return labels


def labels_of_turns(turns: Sequence[JudgedTurn], labels: Sequence[Label], path: Path) -> list[Label]:
    """Return the labels of the models that these turns are from, without those of other models.

    Raises:
        BadInput: A label of one of these models is for none of these turns.
    """
    keys = {turn.key for turn in turns}
    models = {key[0] for key in keys}
    ours = [label for label in labels if label.key[0] in models]
    for label in ours:
        if label.key not in keys:
            problem = "another text" if label.key[:-1] in {key[:-1] for key in keys} else "no user turn"
            raise BadInput(
                f"{path}: a label for {label}, where the given runs have {problem}; expected labels of the same probe run"
            )
    return ours


def new_labels(saved: Path, turns: Sequence[JudgedTurn], labels: Sequence[Label], out: Path) -> list[Label]:
    """Return the labels in the page's file `saved` that are not among `labels`, the contents of `out`.

    Raises:
        BadInput: A label is for a turn of none of the runs, or differs from the label that the turn already has.
    """
    before = {label.key: label.label for label in labels}
    read = read_labels(saved)
    known = {label.key for label in labels_of_turns(turns, read, saved)}
    for label in read:
        if label.key not in known:
            raise BadInput(f"{saved}: a label for {label}, whose model is in none of the given runs")
        if (first := before.get(label.key, label.label)) != label.label:
            raise BadInput(f"{saved}: {label} is {label.label} here and {first} in {out}; expected one label per turn")
    return [label for label in read if label.key not in before]


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
    shown: list[tuple[float, DrawnTurn]] = []
    for name in dict.fromkeys(turn.run for turn in turns):
        sizes = {key: len(members) for key, members in strata.items() if key[0] == name}
        if n < len(sizes):
            raise BadInput(
                f"--n {n}: {name} has {len(sizes)} strata (set, temperature, and judged genuine, not genuine or unscored), "
                f"expected at least --n {len(sizes)}"
            )
        for key, count in shares(sizes, n).items():
            members = sorted(strata[key], key=lambda turn: turn.key)
            rng = random.Random(json.dumps([seed, members[0].key[0], *key[1:]]))
            rng.shuffle(members)
            stratum = Stratum(judged_genuine=key[3], drawn=count, of=len(members))
            for rank, turn in enumerate(members[:count]):
                position = (rank + rng.random()) / count if rank else rng.random() - 1
                p = round(count / len(members), 6)
                shown.append((position, DrawnTurn(**dict(turn), stratum=stratum, p=p, seed=seed)))
    return [turn for _, turn in sorted(shown, key=lambda pair: pair[0])]


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


def page(drawn: Sequence[DrawnTurn]) -> str:
    """Return the page as one HTML file that works offline. It keeps the labels in the browser and saves labels.jsonl."""
    from markupsafe import Markup

    from nextturn.probe.report.page import as_script, packaged, page_template, policy

    keys = {str(number): label for number, label in enumerate(LABELS, start=1)}
    key_of = {label: key for key, label in keys.items()}
    style = packaged("report/report.css") + packaged("labels/label.css")
    script = packaged("report/page.js") + packaged("labels/label.js")
    store = sha256_text(json.dumps([turn.turn_sha256 for turn in drawn]))
    data = {"keys": keys, "turns": [turn.model_dump(by_alias=True) for turn in drawn], "store": store}
    return page_template(packaged("labels/label.html")).render(
        policy=policy(style, script),
        meanings=[(key_of[label], label, meaning) for label, meaning in prompt_parts()["labels"].items()],
        keys=keys,
        style=Markup(style),
        script=Markup(script),
        data=Markup(as_script(data)),
    )
