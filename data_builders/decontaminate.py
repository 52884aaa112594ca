"""Keeps what a probe asks out of the training data.

As in GPT-3's decontamination (arXiv 2005.14165, appendix C): runs of 13 words, without those that stand in more than
ten texts of the probe sets, which are phrases of the genre ("express your answer as a common fraction ..."). Held
against the sets are the problem that a conversation is about, so that a contaminated one goes out in all its kinds, and
every turn: the user's, and the assistant's, which are what is learned. What a set asks is compared, not its solutions,
whose phrases ("multiply the numerator and the denominator by the conjugate of the denominator") are everybody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_builders.words import Hashes, hashed, runs, words_only
from probe.errors import DataError
from probe.files import read_jsonl

NGRAM = 13
COMMON = 10
_TEXT_FIELDS = (
    "question", "Question", "problem", "prompt", "complete", "turns", "messages", "conversations", "conversation",
    "history", "content", "value", "user", "bot",
)  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """A probe set that rows were held against: its rows, and how many of its runs of words count."""

    name: str
    rows: int
    ngrams: int


class ProbeTexts:
    """The runs of words of some probe sets, given as {what the recipe calls it: its file}.

    Raises:
        DataError: no such file, a broken line, or a row without any text to compare (file:line).
    """

    def __init__(self, sets: Mapping[str, Path]) -> None:
        names = _short_names(list(sets))
        read = [_ngrams_by_text(path) for path in sets.values()]
        texts = [text for of_set in read for text in of_set.texts]
        owners = np.repeat(
            np.repeat(np.arange(len(sets)), [len(of_set.texts) for of_set in read]), [len(text) for text in texts]
        )
        joined = np.concatenate([np.zeros(0, dtype=np.uint64), *texts])
        # A run belongs to the first set that holds it; `first` points there, since the sets stand in order.
        found, first, counts = np.unique(joined, return_index=True, return_counts=True)
        self._found = found[counts <= COMMON]
        self._owners = owners[first][counts <= COMMON]
        self._names = names
        sizes = np.bincount(self._owners, minlength=len(sets))
        self.checked = tuple(
            Checked(name, of_set.rows, int(size)) for name, of_set, size in zip(names, read, sizes, strict=True)
        )

    def holding(self, texts: Iterable[Hashes]) -> str | None:
        """The first set that has a run of words in common with one of these texts (`words.hashed`)."""
        if not len(self._found):
            return None
        hit = len(self._names)
        for text in texts:
            grams = np.sort(runs(words_only(text), NGRAM))  # in order they are found faster
            places = np.searchsorted(self._found, grams)
            places[places == len(self._found)] = 0
            hits = self._owners[places[self._found[places] == grams]]
            hit = min(hit, int(hits.min()) if len(hits) else hit)
        return self._names[hit] if hit < len(self._names) else None


@dataclass(frozen=True)
class _Read:
    rows: int
    texts: list[Hashes]


def _ngrams_by_text(path: Path) -> _Read:
    rows, found = 0, []
    for number, row in read_jsonl(path):
        texts = list(_texts(row))
        if not texts:
            raise DataError(
                f"{path}:{number}: nothing to decontaminate against, wanted one of {', '.join(_TEXT_FIELDS)}"
            )
        rows += 1
        found += [np.unique(runs(words_only(hashed(text)), NGRAM)) for text in texts]
    return _Read(rows, found)


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for name in _TEXT_FIELDS if name in value for text in _texts(value[name])]
    return [text for part in value for text in _texts(part)] if isinstance(value, list) else []


def _short_names(sets: Sequence[str]) -> list[str]:
    """The name of a set, or as much of the end of its path as tells it from the others."""
    parts = [Path(one).parts for one in sets]
    length = 2
    while length < max(map(len, parts), default=0) and len({one[-length:] for one in parts}) < len({*parts}):
        length += 1
    return ["/".join(one[-length:]) for one in parts]
