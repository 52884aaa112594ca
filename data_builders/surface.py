"""Measure whether the wording of a first message tells that it lacks something.

**Giveaway.** Where wording alone tells a problem that lacks something from a complete one, a model learns that wording in
place of the judgement. A ridge classifier on runs of characters tries to tell them apart from the first message alone,
cross-validated so that all forms of one problem are on the same side; its AUC is 0.5 where nothing gives them away. Of
two, single characters and runs of up to three, the better one counts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextturn.data_builders.quality import ANSWERED_AT_ONCE, ASKED_ABOUT
from nextturn.probe.stats import NOTHING, Estimate, auc

Row = dict[str, Any]
MOST = 500  # openings of each kind that are compared
LEAST = 50  # with fewer of either kind an AUC is noise: from 30 of each, chance alone gives 0.65 one time in forty
_FOLDS, _RIDGE = 5, 0.1


@dataclass(frozen=True)
class Opening:
    """A first message; `problem` is alike for all forms of one problem."""

    text: str
    lacks: bool
    problem: str


@dataclass
class Sample:
    """`most` rows of a stream, each row as likely as any other (reservoir sampling); `rows` in random order."""

    most: int
    seed: int
    rows: list[Any] = field(default_factory=list)
    seen: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(f"sample:{self.seed}")

    def add(self, row: Any) -> None:
        self.seen += 1
        place = self._rng.randrange(self.seen)
        if len(self.rows) < self.most:
            self.rows.append(row)
            self.rows[place], self.rows[-1] = self.rows[-1], self.rows[place]
        elif place < self.most:
            self.rows[place] = row


class Openings:
    """First messages of rows: those that lack something, and those that lack nothing and show no work (replay left out)."""

    def __init__(self, seed: int) -> None:
        self._kinds = {True: Sample(MOST, seed), False: Sample(MOST, seed)}

    def add(self, row: Row) -> None:
        lacks, whole = row["kind"] in ASKED_ABOUT, row["kind"] in ANSWERED_AT_ONCE and row["kind"] != "replay"
        # In self-play wishes are as common in both: one class without those for a hint would be told by its wishes.
        if lacks or whole or ("dialogue" in row and row["kind"] in ("hint", "guided")):
            self._kinds[lacks].add(Opening(row["messages"][0]["content"], lacks, row["problem"]))

    def giveaway(self) -> Estimate:
        """The AUC with its interval; no value where one kind has fewer than LEAST."""
        if any(len(one.rows) < LEAST for one in self._kinds.values()):
            return NOTHING
        return giveaway([opening for one in self._kinds.values() for opening in one.rows])


def giveaway(openings: Sequence[Opening]) -> Estimate:
    """How well characters alone tell openings that lack something from complete ones: an AUC, problems resampled."""
    problems = [one.problem for one in openings]
    lacks = [one.lacks for one in openings]
    found = [auc(held_out_scores(alike(openings, longest), lacks, problems), lacks, problems) for longest in (1, 3)]
    return max(found, key=lambda one: one.value or 0.0)


def alike(openings: Sequence[Opening], longest: int) -> NDArray[np.float64]:
    """The cosine of each two texts as bags of character runs, counts by their logarithm: [openings, openings]."""
    from scipy.sparse import csr_matrix

    names: dict[str, int] = {}
    values, columns, starts = [], [], [0]
    for one in openings:
        text = " ".join(one.text.split())
        counts = Counter(text[at : at + n] for n in range(1, longest + 1) for at in range(len(text) - n + 1))
        columns += [names.setdefault(run, len(names)) for run in counts]
        row = 1 + np.log(list(counts.values()))
        values.append(row / np.linalg.norm(row))
        starts.append(len(columns))
    bags = csr_matrix((np.concatenate(values), columns, starts), shape=(len(openings), len(names)))
    return (bags @ bags.T).toarray()


def held_out_scores(likeness: NDArray[np.float64], lacks: Sequence[bool], problems: Sequence[str]) -> list[float]:
    """Of each opening, by a ridge classifier that has seen no opening of its problem."""
    names = sorted(set(problems))
    random.Random("folds").shuffle(names)
    places = {name: place for place, name in enumerate(names)}
    fold = np.array([places[one] % _FOLDS for one in problems])
    wanted, scores = np.where(lacks, 1.0, -1.0), np.zeros(len(problems))
    for number in range(_FOLDS):
        seen, new = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        inner, across = likeness[np.ix_(seen, seen)], likeness[np.ix_(new, seen)]
        # Centred on what was seen, and without an intercept, which would point against the class that is rarer there.
        mean = inner.mean(axis=0)
        across = across - across.mean(axis=1, keepdims=True) - mean + mean.mean()
        inner = inner - mean - mean[:, None] + mean.mean()
        ridge = _RIDGE * np.trace(inner) / len(seen)
        weights = np.linalg.solve(inner + ridge * np.eye(len(seen)), wanted[seen] - wanted[seen].mean())
        scores[new] = across @ weights
    return scores.round(9).tolist()  # equal texts tie
