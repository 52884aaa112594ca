"""Measure whether the wording of a first user message shows that a fact is missing.

If it does, a model learns the wording instead of when to ask. A ridge classifier on character n-grams predicts from the
first message alone whether a fact is missing. It is cross-validated so that all versions of a problem are in the same fold.
Its AUC (the giveaway) is 0.5 if nothing shows. Two classifiers are tried, with single characters and with n-grams of up to
three; the better one counts.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextturn.data_builders.quality import ANSWERED_AT_ONCE, ASKED_ABOUT
from nextturn.probe.stats import NOTHING, Estimate, auc

Row = dict[str, Any]
MOST = 500  # first messages of each class that are compared
LEAST = 50  # with fewer an AUC is noise: with 30 per class, chance alone gives 0.65 one time in forty
_FOLDS, _RIDGE = 5, 0.1


@dataclass(frozen=True)
class Opening:
    """A first user message.

    Attributes:
        lacks: Whether a needed fact is missing.
        problem: The same for all versions of one problem.
    """

    text: str
    lacks: bool
    problem: str


@dataclass
class Reservoir:
    """A uniform sample of at most `most` rows of a stream (reservoir sampling), in random order."""

    most: int
    seed: int
    rows: list[Any] = field(default_factory=list)
    seen: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(f"sample:{self.seed}")

    def add(self, row: Any) -> None:
        self.seen += 1
        position = self._rng.randrange(self.seen)
        if len(self.rows) < self.most:
            self.rows.append(row)
            self.rows[position], self.rows[-1] = self.rows[-1], self.rows[position]
        elif position < self.most:
            self.rows[position] = row


class Openings:
    """Samples of the first user messages of both classes, by source. Replay, and kinds in which the user shows work, are left out.

    Only messages of one source are compared: the written conversations hold nearly all incomplete messages of a build from
    MATH or GSM8K by a small policy, and there the style of a source would separate the classes (AUC 0.82 with MATH).
    """

    def __init__(self, seed: int) -> None:
        self._classes: dict[str, dict[bool, Reservoir]] = defaultdict(
            lambda: {True: Reservoir(MOST, seed), False: Reservoir(MOST, seed)}
        )

    def add(self, row: Row) -> None:
        lacks = row["kind"] in ASKED_ABOUT and row["kind"] != "sharded"
        whole = row["kind"] in ANSWERED_AT_ONCE and row["kind"] != "replay"
        if lacks or whole:
            opening = Opening(row["messages"][0]["content"], lacks, row["problem"])
            self._classes[row["source"]][lacks].add(opening)

    def giveaway(self) -> Estimate:
        """Return the highest AUC of a source with its interval, or no value if none has LEAST messages of each class."""
        measured = [
            giveaway([opening for sample in classes.values() for opening in sample.rows])
            for classes in self._classes.values()
            if all(len(sample.rows) >= LEAST for sample in classes.values())
        ]
        return max(measured, key=lambda estimate: estimate.value or 0.0, default=NOTHING)


def giveaway(openings: Sequence[Opening]) -> Estimate:
    """Return the AUC with which characters alone separate the classes; its interval resamples problems."""
    problems = [opening.problem for opening in openings]
    lacks = [opening.lacks for opening in openings]
    scores = [held_out_scores(similarity(openings, longest), lacks, problems) for longest in (1, 3)]
    return max((auc(each, lacks, problems) for each in scores), key=lambda estimate: estimate.value or 0.0)


def similarity(openings: Sequence[Opening], longest: int) -> NDArray[np.float64]:
    """Return the cosine similarity of texts as bags of character n-grams with log counts: shape (openings, openings).

    Args:
        longest: Most characters of an n-gram.
    """
    from scipy.sparse import csr_matrix

    names: dict[str, int] = {}
    values, columns, starts = [], [], [0]
    for opening in openings:
        text = " ".join(opening.text.split())
        counts = Counter(text[at : at + n] for n in range(1, longest + 1) for at in range(len(text) - n + 1))
        columns += [names.setdefault(ngram, len(names)) for ngram in counts]
        row = 1 + np.log(list(counts.values()))
        values.append(row / np.linalg.norm(row))
        starts.append(len(columns))
    bags = csr_matrix((np.concatenate(values), columns, starts), shape=(len(openings), len(names)))
    return (bags @ bags.T).toarray()


def held_out_scores(kernel: NDArray[np.float64], lacks: Sequence[bool], problems: Sequence[str]) -> list[float]:
    """Return the score of each opening by a kernel ridge classifier that was fitted without its problem.

    Args:
        kernel: Similarities, shape (openings, openings).
    """
    names = sorted(set(problems))
    random.Random("folds").shuffle(names)
    folds = {name: number % _FOLDS for number, name in enumerate(names)}
    fold = np.array([folds[problem] for problem in problems])
    targets, scores = np.where(lacks, 1.0, -1.0), np.zeros(len(problems))
    for number in range(_FOLDS):
        seen, new = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        inner, across = kernel[np.ix_(seen, seen)], kernel[np.ix_(new, seen)]
        # Centered on the fitted openings. An intercept would work against the class that is rarer among them.
        mean = inner.mean(axis=0)
        across = across - across.mean(axis=1, keepdims=True) - mean + mean.mean()
        inner = inner - mean - mean[:, None] + mean.mean()
        ridge = _RIDGE * np.trace(inner) / len(seen)
        weights = np.linalg.solve(inner + ridge * np.eye(len(seen)), targets[seen] - targets[seen].mean())
        scores[new] = across @ weights
    return scores.round(9).tolist()  # equal texts tie
