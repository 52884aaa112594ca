"""How far a judge agrees with human labels: accuracy and Cohen's kappa, genuine or not and over all labels.

Turns that the judge leaves unscored are counted by reason and left out of the rest. Intervals resample whole
conversations, because turns of one conversation are judged alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probe import stats
from probe.judges.labelled import LabelledTurn
from probe.judges.labels import GENUINE, LABELS, Judge, Verdict
from probe.progress import collected


@dataclass(frozen=True)
class Measure:
    """Cohen's kappa and accuracy over the scored turns; both None when no turn was scored."""

    kappa: stats.Estimate
    accuracy: stats.Estimate

    def as_json(self) -> dict[str, Any]:
        return {**_figure("kappa", self.kappa, "ci95"), **_figure("accuracy", self.accuracy)}


@dataclass(frozen=True)
class LabelFigures:
    """One label: of the turns that the judge gave it, how many people did, too (precision), and the reverse (recall).

    `n` of each counts those turns; a value is None where there are none.
    """

    precision: stats.Estimate
    recall: stats.Estimate
    judged_as: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        return {
            "human": self.recall.n,
            "judge": self.precision.n,
            **_figure("precision", self.precision),
            **_figure("recall", self.recall),
            "judged_as": self.judged_as,
        }


@dataclass(frozen=True)
class Agreement:
    """What `agreement` found. `labels` holds those that people or the judge used, unscored turns left out."""

    judge: str
    calls: int
    n: int
    unscored: dict[str, int]
    binary: Measure
    full: Measure
    labels: dict[str, LabelFigures]

    @property
    def n_scored(self) -> int:
        return self.n - sum(self.unscored.values())

    @property
    def confusion(self) -> dict[str, dict[str, int]]:
        """Human label -> judge's label -> turns."""
        return {label: figures.judged_as for label, figures in self.labels.items() if figures.judged_as}

    def as_json(self) -> dict[str, Any]:
        return {
            "judge": self.judge,
            "judge_calls": self.calls,
            "n": self.n,
            "n_scored": self.n_scored,
            "unscored": self.unscored,
            "binary": self.binary.as_json(),
            "full": self.full.as_json(),
            "labels": {label: figures.as_json() for label, figures in self.labels.items()},
        }


def agreement(rows: Sequence[LabelledTurn], judge: Judge, progress: bool = False) -> Agreement:
    """Judges every row and compares with its label; `progress` shows a bar on stderr."""
    verdicts = _judged(rows, judge, progress)
    scored = [(row, verdict.label) for row, verdict in zip(rows, verdicts, strict=True) if verdict.label is not None]
    human, machine = [row.label for row, _ in scored], [label for _, label in scored]
    conversations = [row.conversation for row, _ in scored]
    return Agreement(
        judge=judge.version,
        calls=judge.calls,
        n=len(rows),
        unscored=dict(Counter(verdict.unscored or "no reason given" for verdict in verdicts if verdict.label is None)),
        binary=_measure([_genuine(label) for label in human], [_genuine(label) for label in machine], conversations),
        full=_measure(human, machine, conversations),
        labels={label: _of_label(label, scored) for label in LABELS if label in human or label in machine},
    )


def _judged(rows: Sequence[LabelledTurn], judge: Judge, progress: bool) -> list[Verdict]:
    stream = judge.stream([row.case for row in rows])
    return collected(stream, len(rows), f"judge {judge.name}", delay=0, unit="turn", disable=not progress)


def _genuine(label: str) -> str:
    return GENUINE if label == GENUINE else "other"


def _measure(human: Sequence[str], machine: Sequence[str], conversations: Sequence[str]) -> Measure:
    right = [a == b for a, b in zip(human, machine, strict=True)]
    return Measure(stats.kappa_ci(human, machine, conversations), stats.clustered_rate(right, conversations))


def _of_label(label: str, scored: Sequence[tuple[LabelledTurn, str]]) -> LabelFigures:
    given = [(row.label == label, row.conversation) for row, judged in scored if judged == label]
    meant = [(judged == label, row.conversation) for row, judged in scored if row.label == label]
    return LabelFigures(
        precision=stats.clustered_rate([right for right, _ in given], [conversation for _, conversation in given]),
        recall=stats.clustered_rate([right for right, _ in meant], [conversation for _, conversation in meant]),
        judged_as=dict(Counter(judged for row, judged in scored if row.label == label)),
    )


def _figure(name: str, estimate: stats.Estimate, interval: str | None = None) -> dict[str, Any]:
    plain = estimate.as_json()
    return {name: plain["value"], interval or f"{name}_ci95": plain["ci95"]}
