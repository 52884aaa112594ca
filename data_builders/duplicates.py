"""Find repeated rows and rows that contain questions of the probe.

Both compare runs of words as numbers. Near-duplicates are found by datasketch's MinHash and its LSH index.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextturn.data_builders.numbers import ASY
from nextturn.probe.command.errors import DataError
from nextturn.probe.command.files import read_jsonl

if TYPE_CHECKING:
    from datasketch import LeanMinHash

# --- Words and runs of words as numbers.
#
# A drawing ([asy] ... [/asy]) counts as one word: its code is most of a problem's text, and much the same in many problems.

Hashes = NDArray[np.uint64]

# Words, and every other character that is not white space: $x - 1$ is not $x + 1$.
_WORD = re.compile(r"\w+|[^\w\s]")
# Odd, so that a multiplication loses nothing; any such number works (this one is 2^64 over the golden ratio).
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(1)


def word_hashes(text: str) -> Hashes:
    """Return the words and marks of a text, ignoring case and white space: shape (words,). Odd numbers are words."""
    words = _WORD.findall(ASY.sub(" drawing ", text).lower())
    return np.fromiter(map(_word_hash, words), dtype=np.uint64, count=len(words))


def words_only(hashes: Hashes) -> Hashes:
    return hashes[(hashes & _ODD) == _ODD]


def runs(hashes: Hashes, length: int) -> Hashes:
    """Return a hash of each run of `length` words, in order: shape (max(0, words - length + 1),).

    The hash is a polynomial in the hashes of the words, modulo 2^64, and the same in every process.
    """
    count = max(0, len(hashes) - length + 1)
    result = np.zeros(count, dtype=np.uint64)
    for offset in range(length):
        result = result * _FACTOR + hashes[offset : offset + count]
    return result


@functools.lru_cache(maxsize=1 << 16)
def _word_hash(word: str) -> int:
    number = _hash64(word.encode(errors="replace"))
    return number | 1 if word[0].isalnum() or word[0] == "_" else number & ~1


def _hash64(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


# --- The rows kept so far: the same text, nearly the same text, or the same text except for numbers and names.

SHINGLE = 3
"""Words of a run. With longer runs, one changed number weighs more; 3 separated the same from the similar on MATH."""
# Bands of the index are chosen to miss little; false candidates are dismissed by comparing the whole signature.
_MISSING_WEIGHT = 0.9


def masked(text: str) -> str:
    """Return the wording of a text: "@" for each capitalized word, "#" for each number."""
    return re.sub(r"\b[A-Z]\w*", "@", re.sub(r"\d+", "#", " ".join(text.split())))


class Fingerprint(NamedTuple):
    """What is compared of a row: hashes of its text and its wording, its kind, and its signature."""

    text: int
    wording: int
    kind: str
    signature: LeanMinHash | None = None


class KeptRows:
    """The fingerprints of all rows kept so far.

    Args:
        threshold: Share of common word runs (Jaccard) from which two rows of one kind are near-duplicates; None turns the
            comparison off.
        permutations: Numbers in a signature. The standard error of an estimated share s is
            sqrt(s * (1 - s) / permutations), 0.03 at 0.9.
    """

    def __init__(self, threshold: float | None, permutations: int = 128) -> None:
        self._threshold = threshold
        self._texts: set[int] = set()
        self._wordings: Counter[int] = Counter()
        self._rows: list[Fingerprint] = []
        if threshold is not None:
            from datasketch import MinHash, MinHashLSH

            self._empty = MinHash(permutations, hashfunc=int)
            weights = (1 - _MISSING_WEIGHT, _MISSING_WEIGHT)
            self._index = MinHashLSH(threshold, permutations, weights, hashfunc=_hash64)  # of positions in `_rows`

    def fingerprint(self, texts: Sequence[str], words: Sequence[Hashes], kind: str) -> Fingerprint:
        """Return the fingerprint of a row.

        Args:
            texts: Its messages. The text is compared without white space, the wording without numbers and capitalized
                words.
            words: `word_hashes` of each message.
        """
        text = "\n".join("".join(message.split()) for message in texts).lower()
        both = _hash64(text.encode(errors="replace")), _hash64(masked(" ".join(texts)).encode(errors="replace"))
        if self._threshold is None:
            return Fingerprint(*both, kind)
        from datasketch import LeanMinHash

        hashes = np.concatenate(words)
        minhash = self._empty.copy()
        minhash.update_batch((runs(hashes, min(SHINGLE, len(hashes))) >> np.uint64(32)).tolist())
        return Fingerprint(*both, kind, LeanMinHash(minhash))

    def repeats(self, row: Fingerprint, most_alike: int) -> str | None:
        """Return the reason why a row adds nothing new, or None.

        Args:
            most_alike: Number of rows that may differ only in their numbers and names.
        """
        if row.text in self._texts:
            return "duplicate"
        if row.signature is not None and self._threshold is not None:
            candidates = (self._rows[position] for position in self._index.query(row.signature))
            alike = (other.signature for other in candidates if other.kind == row.kind)
            if any(row.signature.jaccard(signature) >= self._threshold for signature in alike):
                return "near_duplicate"
        return "same_wording" if self._wordings[row.wording] >= most_alike else None

    def add(self, row: Fingerprint) -> None:
        self._texts.add(row.text)
        self._wordings[row.wording] += 1
        if row.signature is not None:
            self._index.insert(len(self._rows), row.signature)
            self._rows.append(row)


# --- Questions of the probe, which are kept out of the training data.
#
# As in GPT-3's decontamination (arXiv 2005.14165, appendix C): runs of 13 words, without runs that occur in more than ten
# texts of the probe sets, which are phrases of the genre ("express your answer as a common fraction ..."). The problem of a
# conversation is compared, so that a contaminated problem is rejected in all kinds, and so is every turn, since assistant
# turns are learned. Only the questions of a set are compared, not its solutions, whose phrases are common ("multiply the
# numerator and the denominator by the conjugate of the denominator"). One question in eight of MATH has fewer than 13 words
# ("Evaluate $(1+2i)6-3i$."). It is compared as a whole, with the marks that change its meaning, with problems and first
# messages; turns may well be as short as that.

NGRAM = 13
PUNCTUATION = "$\\\"'`“”‘’.,:;?!¿¡()[]{}*#|—–…_"
"""Marks that change no question. Operators are not among them."""
COMMON = 10
_TEXT_FIELDS = (
    "question", "Question", "problem", "prompt", "complete", "underspecified", "turns", "messages", "conversations", "conversation",
    "history", "content", "value", "user", "bot",
)  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """A probe set that rows were compared with: its rows, and its runs of words and short questions that count."""

    name: str
    rows: int
    ngrams: int


class ProbeTexts:
    """The runs of words of some probe sets.

    Args:
        sets: The file of each set by its name in the recipe.

    Raises:
        DataError: There is no such file, a line is broken, or a row has no text to compare (file:line).
    """

    def __init__(self, sets: Mapping[str, Path]) -> None:
        self._names = ["/".join(Path(name).parts[-2:]) for name in sets]
        rows, grams, owners = [0] * len(sets), [np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.int64)]
        said = set[str]()
        for owner, path in enumerate(sets.values()):
            for number, row in read_jsonl(path):
                texts = _texts(row)
                if not texts:
                    expected = ", ".join(_TEXT_FIELDS)
                    raise DataError(f"{path}:{number}: nothing to decontaminate against, expected one of {expected}")
                rows[owner] += 1
                if (whole := "\n".join(texts)) in said:  # a question that many rows ask is no phrase of many questions
                    continue
                said.add(whole)
                row_grams = [np.unique(_compared(word_hashes(text))) for text in texts]
                grams += row_grams
                owners += [np.full(len(each), owner) for each in row_grams]
        # A run belongs to the first set that contains it: `first` points there, since the sets are in order.
        unique, first, counts = np.unique(np.concatenate(grams), return_index=True, return_counts=True)
        self._grams = unique[counts <= COMMON]
        self._owners = np.concatenate(owners)[first][counts <= COMMON]
        sizes = np.bincount(self._owners, minlength=len(sets)).tolist()
        self.checked = tuple(map(Checked, self._names, rows, sizes))

    def overlap(self, turns: Iterable[Hashes], questions: Iterable[Hashes]) -> str | None:
        """Return the first set that shares a run of words with these texts, or a short question with `questions`.

        Both arguments hold `word_hashes` texts.
        """
        if not len(self._grams):
            return None
        grams = np.concatenate([*(runs(words_only(turn), NGRAM) for turn in turns), *map(_compared, questions)])
        grams = np.sort(grams)  # sorted keys are found faster
        positions = np.minimum(np.searchsorted(self._grams, grams), len(self._grams) - 1)
        owners = self._owners[positions[self._grams[positions] == grams]]
        return self._names[owners.min()] if len(owners) else None


def _compared(text: Hashes) -> Hashes:
    """Return the runs of words of a text, or the whole text if it has fewer words."""
    words = words_only(text)
    if not 0 < len(words) < NGRAM:
        return runs(words, NGRAM)
    whole = text[~np.isin(text, word_hashes(" ".join(PUNCTUATION)))]
    return runs(whole, len(whole))


def _texts(row: Any) -> list[str]:
    """Return the texts of a row in order. Without recursion, since a row may be nested as deep as JSON can be read."""
    texts, left = [], [row]
    while left:
        value = left.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            left += [value[name] for name in reversed(_TEXT_FIELDS) if name in value]
        elif isinstance(value, list):
            left += reversed(value)
    return texts


# --- Questions of the probe in anybody's training data, in whatever dress: other case, quotes, math marks, an instruction.

# The commas of thousands, and the marks of quoted lines.
_UNMEANT = re.compile(r"(?<=\d)(?:\{,\}|,)(?=\d{3}(?!\d))|^\s*>+", re.MULTILINE)
_PLAIN = str.maketrans(PUNCTUATION + "−", " " * len(PUNCTUATION) + "-")
LEAST = 5
"""Words and operators of a question that counts wherever it stands. A shorter one counts only if it is all that was said."""


class KnownQuestions:
    """Finds questions in texts.

    Args:
        questions: The questions; a question is named by its place among them.
    """

    def __init__(self, questions: Sequence[str]) -> None:
        self._whole: dict[bytes, set[int]] = defaultdict(set)
        self._lengths: dict[int, set[int]] = defaultdict(set)  # by the hash of the first words
        for place, question in enumerate(questions):
            if len(hashes := meant(question)):
                self._whole[hashes.tobytes()].add(place)
                for start in runs(hashes, LEAST)[:1].tolist():
                    self._lengths[start].add(len(hashes))

    def within(self, hashes: Hashes) -> set[int]:
        """Return the questions that a text (`meant`) contains, or that are the text."""
        found = set(self._whole.get(hashes.tobytes(), ()))
        for at, start in enumerate(runs(hashes, LEAST).tolist()):
            for length in self._lengths.get(start, ()):
                found |= self._whole.get(hashes[at : at + length].tobytes(), set())
        return found


def meant(text: str) -> Hashes:
    """Return the words and operators of a text as numbers, shape (words,)."""
    return word_hashes(_UNMEANT.sub("", unicodedata.normalize("NFKC", text)).translate(_PLAIN))
