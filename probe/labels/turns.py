"""The judged user turns of finished runs, and the labels that annotators gave them (labels.jsonl)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nextturn.probe.command.errors import BadInput, DataError
from nextturn.probe.command.files import read_jsonl
from nextturn.probe.command.terminal import visible
from nextturn.probe.judges.verdicts import GENUINE, LABELS
from nextturn.probe.kept import Texts, restored, samples_file, turn_hash
from nextturn.probe.measures.base import cluster_of
from nextturn.probe.measures.followup import NO_ANSWER
from nextturn.probe.measures.perturb import NONE
from nextturn.probe.results import FinishedRun

FEWEST = 20
"""Number of labels of a run below which no rate is corrected: its interval would say next to nothing."""

StratumKey = tuple[str, str, float, bool | None]
"""Run, set, temperature, and the judge's verdict: genuine, not genuine, or none."""


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
        cluster: The conversation that the item belongs to, or the item. Not written.
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
    cluster: str = Field(default="", exclude=True)

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


class Annotator(BaseModel):
    """Who labelled a turn. Rates by different annotators are not subtracted."""

    model_config = ConfigDict(frozen=True)

    name: str
    kind: Literal["person", "model"]

    def __str__(self) -> str:
        return visible(f"{self.name} ({self.kind})")


Definition = Literal["loose", "strict"]
"""What counts as a genuine follow-up. strict: what depends on the answer (`judges/llm.yaml`, version 3). loose: also a
question about the things of the problem."""


class DrawnTurn(JudgedTurn):
    """A drawn user turn: a row of labels.jsonl, format 1, that has no label yet; docs/judges.md describes the format.

    Attributes:
        definition: Rows of older versions name none and are loose.
        annotator: None: unknown.
        repeat: The turn was labelled before and is shown again. Such a label is never counted.
    """

    version: Literal[1] = Field(default=1, alias="schema")
    perturbation: Literal["none"] = "none"
    stratum: Stratum
    p: float
    seed: int
    label: str | None = None
    sure: bool = True
    definition: Definition = "loose"
    annotator: Annotator | None = None
    repeat: bool = False

    @property
    def made_by(self) -> str:
        """The definition and the annotator, such as "strict, ann (person)"."""
        return f"{self.definition}, {self.annotator or 'an unknown annotator'}"


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
    if turns := turns_to_correct(run):
        return turns
    missing = f"no such file; without it the user turns of {run.name} cannot be read"
    empty = "no judged user turn, so there is nothing to label or correct"
    raise BadInput(f"{samples_file(run.folder)}: {missing if run.samples is None else empty}")


def turns_to_correct(run: FinishedRun) -> list[JudgedTurn]:
    """Return the user turns of a run as `user_turns` does; [] if the run has no samples.jsonl or no judged turn."""
    if run.samples is None:
        return []
    judge = run.results.settings.others.get("judge")
    turns = []
    for place, row in run.rows():
        model = run.parts[place].results.model
        if row["kind"] != "followup" or row["perturbation"] != NONE or row["unscored"] == NO_ANSWER:
            continue
        messages = tuple({"role": message["role"], "content": message["content"]} for message in row["messages"])
        text = row["user_turn"] or ""
        facts = {
            "run": run.name, "model": model.path, "weights_sha256": model.weights_sha256,
            "set": str(row["set"]), "item": str(row["item"]), "cluster": cluster_of(row),
            "temperature": row["temperature"], "sample": row["sample"], "messages": messages, "user_turn": text,
            "turn_sha256": row.get("turn_sha256") or turn_hash(messages, text),
            "judge": judge if isinstance(judge, str) else json.dumps(judge),
            "judged": row["label"], "cut": bool(row["user_cut"]),
        }  # fmt: skip
        turns.append(JudgedTurn.model_validate(facts))
    return turns if any(turn.judged is not None for turn in turns) else []


Row = TypeVar("Row", bound=BaseModel)


def read_rows(path: Path, kind: type[Row], texts: Texts | None = None) -> Iterator[tuple[int, Row]]:
    """Yield (line number, row) of a JSONL file. Kept rows get their text from `texts`, or ids if it is None.

    Raises:
        DataError: There is no such file, a row is no `kind`, or its question is not in `texts`; with file and line.
    """
    for number, row in read_jsonl(path):
        try:
            yield number, kind.model_validate(restored(row, texts, f"{path}:{number}"))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            key, expected = ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")
            given = visible(f"{problem['input']!r:.60}")
            raise DataError(f"{path}:{number}: {key}: {expected}; given {given}") from None


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
            expected = "labels of the same probe run"
            raise BadInput(f"{path}: a label for {label}, where the given runs have {problem}; expected {expected}")
    return ours
