"""What the gate has kept, so that nothing is kept twice: exact, nearly the same, or the same but for its numbers.

Nearly the same is told by MinHash (Broder 1997) over runs of words, and looked up by bands of the signature (locality
sensitive hashing; Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, chapter 3). All that grows with the rows
lies in an SQLite file, about 1 kB a row, of which a fixed part is held in memory.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_builders.text import ASY
from probe.errors import DataError
from probe.files import read_jsonl

# --- Texts as words, each word and each run of words one number: what near-duplicates and decontamination compare.
#
# A drawing ([asy] ... [/asy]) counts as one word: its code is most of a problem's text and much the same in many.

Hashes = NDArray[np.uint64]

# Words, and every other character that is no white space: $x - 1$ is not $x + 1$.
_WORD = re.compile(r"\w+|[^\w\s]")
# Odd, so that multiplying loses nothing; any such number will do (here 2^64 over the golden ratio).
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(1)


def hashed(text: str) -> Hashes:
    """The words and marks of a text, without case and white space; odd numbers are words."""
    found = _WORD.findall(ASY.sub(" drawing ", text).lower())
    return np.fromiter(map(_word_hash, found), dtype=np.uint64, count=len(found))


def words_only(found: Hashes) -> Hashes:
    return found[(found & _ODD) == _ODD]


def runs(found: Hashes, length: int) -> Hashes:
    """The hashes of all runs of `length` words, in order: shape (words - length + 1,), or none for fewer words.

    A polynomial in the words' own hashes, modulo 2^64, the same in every process.
    """
    count = max(0, len(found) - length + 1)
    made = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        made = made * _FACTOR + found[place : place + count]
    return made


def text_hash(text: bytes) -> int:
    """64 bits, as a signed number, which is what SQLite holds."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), signed=True)


@functools.lru_cache(maxsize=1 << 16)
def _word_hash(word: str) -> int:
    number = int.from_bytes(hashlib.blake2b(word.encode(errors="replace"), digest_size=8).digest())
    return number | 1 if word[0].isalnum() or word[0] == "_" else number & ~1


SHINGLE = 3
"""Words of a run. Longer ones make one changed number weigh more; 3 told the same from the similar in MATH."""
_PAGES_KIB = 16_384
# Rows whose signature is looked at, those first that have most bands in common.
_LOOKED_AT = 32
# Bands are chosen to miss little; what they find too much is dismissed by the whole signature.
_MISSING_WEIGHS = 0.9

_TABLES = f"""
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -{_PAGES_KIB};
CREATE TABLE texts (hash INTEGER PRIMARY KEY);
CREATE TABLE wordings (hash INTEGER PRIMARY KEY, rows INTEGER);
CREATE TABLE signatures (row INTEGER PRIMARY KEY, signature BLOB);
CREATE TABLE bands (band INTEGER, row INTEGER, PRIMARY KEY (band, row)) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Print:
    """What of a conversation is compared: hashes of its text and of its wording, its signature and that one's bands."""

    text: int
    wording: int
    signature: NDArray[np.uint32] | None = None
    bands: tuple[int, ...] = ()


class Kept:
    """The prints of all rows kept so far, in a new file at `path`, which is made when the first one is looked up.

    Args:
        threshold: share of word runs that two rows of one kind have in common (Jaccard) at which they count as nearly
            the same; None leaves that out.
        permutations: numbers in a signature; the similarity is estimated to about sqrt(s * (1 - s) / permutations).
    """

    def __init__(self, path: Path, threshold: float | None, permutations: int) -> None:
        self._path = path
        self._threshold = threshold
        self._opened: sqlite3.Connection | None = None
        self._rows = 0
        if threshold is not None:
            from datasketch import MinHash, MinHashLSH

            self._empty = MinHash(permutations, hashfunc=int)
            bands = MinHashLSH(threshold, permutations, weights=(1 - _MISSING_WEIGHS, _MISSING_WEIGHS))
            self._bands, self._width = bands.b, bands.r
            self._lookup = (
                f"SELECT row FROM bands WHERE band IN ({', '.join('?' * self._bands)}) "
                f"GROUP BY row ORDER BY COUNT(*) DESC, row DESC LIMIT {_LOOKED_AT}"
            )

    def print_of(self, texts: Sequence[str], words: Sequence[Hashes], kind: str) -> Print:
        """Of a conversation's turns and their words."""
        # Without white space, turn by turn; and without numbers and capitalised words.
        text = "\n".join("".join(one.split()) for one in texts).lower()
        wording = re.sub(r"\b[A-Z]\w*", "@", re.sub(r"\d+", "#", " ".join(" ".join(texts).split())))
        both = text_hash(text.encode(errors="replace")), text_hash(wording.encode(errors="replace"))
        if self._threshold is None:
            return Print(*both)
        signature = self._signature(words)
        return Print(*both, signature, self.bands_of(signature, kind))

    def bands_of(self, signature: NDArray[np.uint32], kind: str) -> tuple[int, ...]:
        """Rows with a band in common are compared."""
        width = self._width
        starts = range(0, self._bands * width, width)
        parts = (f"{kind}/{start}/".encode() + signature[start : start + width].tobytes() for start in starts)
        return tuple(map(text_hash, parts))

    def _signature(self, words: Sequence[Hashes]) -> NDArray[np.uint32]:
        found = np.concatenate(words)
        made = self._empty.copy()
        made.update_batch((runs(found, min(SHINGLE, len(found))) >> np.uint64(32)).tolist())
        return np.asarray(made.hashvalues, dtype=np.uint32)

    def same_text(self, made: Print) -> bool:
        return self._one("SELECT 1 FROM texts WHERE hash = ?", made.text) is not None

    def same_wording(self, made: Print) -> int:
        """How many rows are alike but for their numbers and names."""
        return int(self._one("SELECT rows FROM wordings WHERE hash = ?", made.wording) or 0)

    def nearly_same(self, made: Print) -> bool:
        """Whether a row of the same kind is estimated to be as similar as the threshold."""
        if made.signature is None or self._threshold is None:
            return False
        rows = self._file.execute(self._lookup, made.bands).fetchall()
        return any(self._similarity(row, made.signature) >= self._threshold for (row,) in rows)

    def add(self, made: Print) -> None:
        file = self._file
        file.execute("INSERT OR IGNORE INTO texts VALUES (?)", (made.text,))
        counted = "INSERT INTO wordings VALUES (?, 1) ON CONFLICT (hash) DO UPDATE SET rows = rows + 1"
        file.execute(counted, (made.wording,))
        if made.signature is not None:
            file.execute("INSERT INTO signatures VALUES (?, ?)", (self._rows, made.signature.tobytes()))
            file.executemany("INSERT OR IGNORE INTO bands VALUES (?, ?)", [(band, self._rows) for band in made.bands])
        self._rows += 1

    def close(self) -> None:
        """Closes and deletes the file."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
            self._path.unlink(missing_ok=True)

    def _similarity(self, row: int, signature: NDArray[np.uint32]) -> float:
        stored = np.frombuffer(self._one("SELECT signature FROM signatures WHERE row = ?", row), dtype=np.uint32)
        return float(np.mean(stored == signature))

    def _one(self, query: str, value: int) -> Any:
        found = self._file.execute(query, (value,)).fetchone()
        return found[0] if found else None

    @property
    def _file(self) -> sqlite3.Connection:
        if self._opened is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)  # of a build that was killed
            self._opened = sqlite3.connect(self._path, isolation_level=None)
            self._opened.executescript(_TABLES)
            self._opened.execute("BEGIN")  # one transaction, never committed: nobody reads the file after this
        return self._opened


# --- Keeps what a probe asks out of the training data.
#
# As in GPT-3's decontamination (arXiv 2005.14165, appendix C): runs of 13 words, without those that stand in more than
# ten texts of the probe sets, which are phrases of the genre ("express your answer as a common fraction ..."). Held
# against the sets are the problem that a conversation is about, so that a contaminated one goes out in all its kinds, and
# every turn: the user's, and the assistant's, which are what is learned. What a set asks is compared, not its solutions,
# whose phrases ("multiply the numerator and the denominator by the conjugate of the denominator") are everybody's.

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
