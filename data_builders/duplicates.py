"""What conversations are held against: the probe's questions, and the rows kept before.

Both compare runs of words as numbers. Nearly the same is told by MinHash (Broder 1997), and looked up by bands of the
signature (locality sensitive hashing; Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, chapter 3).
"""

from __future__ import annotations

import functools
import hashlib
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextturn.data_builders.text import ASY
from nextturn.probe.errors import DataError
from nextturn.probe.files import read_jsonl

# --- Texts as words, each word and each run of words one number.
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


@functools.lru_cache(maxsize=1 << 16)
def _word_hash(word: str) -> int:
    number = _hash64(word.encode(errors="replace"), signed=False)
    return number | 1 if word[0].isalnum() or word[0] == "_" else number & ~1


def _hash64(text: bytes, signed: bool = True) -> int:  # signed is what SQLite holds
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), signed=signed)


# --- The rows kept before: the same text, nearly the same, or the same but for its numbers and names.

SHINGLE = 3
"""Words of a run. Longer ones make one changed number weigh more; 3 told the same from the similar in MATH."""
# Rows whose signature is looked at, those first that have most bands in common.
_LOOKED_AT = 32
# Bands are chosen to miss little; what they find too much is dismissed by the whole signature.
_MISSING_WEIGHS = 0.9
# Signatures and bands are about 1 kB a row, so they lie in a file, of which 16 MiB are held in memory.
_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -16384;
CREATE TABLE signatures (row INTEGER PRIMARY KEY, signature BLOB);
CREATE TABLE bands (band INTEGER, row INTEGER, PRIMARY KEY (band, row)) WITHOUT ROWID;
BEGIN;
"""  # one transaction, never committed: nobody reads the file after this


class Print(NamedTuple):
    """What of a conversation is compared: hashes of its text and of its wording, its signature and that one's bands."""

    text: int
    wording: int
    signature: NDArray[np.uint32] | None = None  # [permutations]
    bands: tuple[int, ...] = ()


class Kept:
    """The prints of all rows kept so far; what is large lies in a new file at `path`, made at the first lookup.

    Args:
        threshold: share of word runs that two rows of one kind have in common (Jaccard) at which they count as nearly
            the same; None leaves that out.
        permutations: numbers in a signature; the similarity is estimated to about sqrt(s * (1 - s) / permutations),
            0.03 at 0.9.
    """

    def __init__(self, path: Path, threshold: float | None, permutations: int = 128) -> None:
        self._path = path
        self._threshold = threshold
        self._texts: set[int] = set()
        self._wordings: Counter[int] = Counter()
        self._rows = 0
        if threshold is not None:
            from datasketch import MinHash, MinHashLSH

            self._empty = MinHash(permutations, hashfunc=int)
            # Its own index would hold every row in memory; taken from it is how best to cut a signature into bands.
            bands = MinHashLSH(threshold, permutations, weights=(1 - _MISSING_WEIGHS, _MISSING_WEIGHS))
            self._bands, self._width = bands.b, bands.r

    def print_of(self, texts: Sequence[str], words: Sequence[Hashes], kind: str) -> Print:
        """Of a conversation's turns and their words: without white space, and without numbers and capitalised words."""
        text = "\n".join("".join(one.split()) for one in texts).lower()
        wording = re.sub(r"\b[A-Z]\w*", "@", re.sub(r"\d+", "#", " ".join(" ".join(texts).split())))
        both = _hash64(text.encode(errors="replace")), _hash64(wording.encode(errors="replace"))
        if self._threshold is None:
            return Print(*both)
        found = np.concatenate(words)
        minhash = self._empty.copy()
        minhash.update_batch((runs(found, min(SHINGLE, len(found))) >> np.uint64(32)).tolist())
        signature = np.asarray(minhash.hashvalues, dtype=np.uint32)
        return Print(*both, signature, self.bands_of(signature, kind))

    def bands_of(self, signature: NDArray[np.uint32], kind: str) -> tuple[int, ...]:
        """Rows with a band in common are compared."""
        width = self._width
        starts = range(0, self._bands * width, width)
        return tuple(_hash64(f"{kind}/{at}/".encode() + signature[at : at + width].tobytes()) for at in starts)

    def again(self, made: Print, most_alike: int) -> str | None:
        """Why a row says nothing new; `most_alike` rows may be alike but for their numbers and names."""
        if made.text in self._texts:
            return "duplicate"
        if made.signature is not None and self._threshold is not None:  # rows of its kind with a band in common
            found = self._file.execute(
                f"SELECT signature FROM signatures JOIN (SELECT row, COUNT(*) AS common FROM bands "
                f"WHERE band IN ({', '.join('?' * len(made.bands))}) GROUP BY row ORDER BY common DESC, row DESC "
                f"LIMIT {_LOOKED_AT}) USING (row)",
                made.bands,
            ).fetchall()
            alike = (np.mean(np.frombuffer(one, dtype=np.uint32) == made.signature) for (one,) in found)
            if any(float(share) >= self._threshold for share in alike):
                return "near_duplicate"
        return "same_wording" if self._wordings[made.wording] >= most_alike else None

    def add(self, made: Print) -> None:
        self._texts.add(made.text)
        self._wordings[made.wording] += 1
        if made.signature is not None:
            self._file.execute("INSERT INTO signatures VALUES (?, ?)", (self._rows, made.signature.tobytes()))
            bands = [(band, self._rows) for band in made.bands]
            self._file.executemany("INSERT OR IGNORE INTO bands VALUES (?, ?)", bands)
        self._rows += 1

    def close(self) -> None:
        if (opened := vars(self).pop("_file", None)) is not None:
            opened.close()
            self._path.unlink(missing_ok=True)

    @functools.cached_property
    def _file(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)  # of a build that was killed
        opened = sqlite3.connect(self._path, isolation_level=None)
        opened.executescript(_TABLES)
        return opened


# --- What a probe asks, which is kept out of the training data.
#
# As in GPT-3's decontamination (arXiv 2005.14165, appendix C): runs of 13 words, without those that stand in more than
# ten texts of the probe sets, which are phrases of the genre ("express your answer as a common fraction ..."). Held
# against the sets are the problem that a conversation is about, so that a contaminated one goes out in all its kinds, and
# every turn: the user's, and the assistant's, which are what is learned. What a set asks is compared, not its solutions,
# whose phrases ("multiply the numerator and the denominator by the conjugate of the denominator") are everybody's.
# A question of fewer words (one in eight of MATH's: "Evaluate $(1+2i)6-3i$.") has no such run. It counts as a whole, marks
# included, where it is what a conversation asks; a turn may well be as short as that and say what everybody says.

NGRAM = 13
COMMON = 10
_TEXT_FIELDS = (
    "question", "Question", "problem", "prompt", "complete", "underspecified", "turns", "messages", "conversations", "conversation",
    "history", "content", "value", "user", "bot",
)  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """A probe set that rows were held against: its rows, and how many of its runs of words and short texts count."""

    name: str
    rows: int
    ngrams: int


class ProbeTexts:
    """The runs of words of some probe sets, given as {what the recipe calls it: its file}.

    Raises:
        DataError: no such file, a broken line, or a row without any text to compare (file:line).
    """

    def __init__(self, sets: Mapping[str, Path]) -> None:
        self._names = ["/".join(Path(one).parts[-2:]) for one in sets]
        rows, texts, owners = [0] * len(sets), [np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.int64)]
        for owner, path in enumerate(sets.values()):
            for number, row in read_jsonl(path):
                found = [np.unique(_compared(hashed(text))) for text in _texts(row)]
                if not found:
                    wanted = ", ".join(_TEXT_FIELDS)
                    raise DataError(f"{path}:{number}: nothing to decontaminate against, wanted one of {wanted}")
                rows[owner] += 1
                texts += found
                owners += [np.full(len(one), owner) for one in found]
        # A run belongs to the first set that holds it; `first` points there, since the sets stand in order.
        unique, first, counts = np.unique(np.concatenate(texts), return_index=True, return_counts=True)
        self._found = unique[counts <= COMMON]
        self._owners = np.concatenate(owners)[first][counts <= COMMON]
        sizes = np.bincount(self._owners, minlength=len(sets)).tolist()
        self.checked = tuple(map(Checked, self._names, rows, sizes))

    def holding(self, turns: Iterable[Hashes], asked: Iterable[Hashes]) -> str | None:
        """The first set that has a run of words in common with one of these texts (`hashed`), or a short text with what is
        `asked`."""
        if not len(self._found):
            return None
        hit = len(self._names)
        for grams in (*(runs(words_only(one), NGRAM) for one in turns), *map(_compared, asked)):
            grams = np.sort(grams)  # in order they are found faster
            places = np.searchsorted(self._found, grams)
            places[places == len(self._found)] = 0
            hits = self._owners[places[self._found[places] == grams]]
            hit = min(hit, int(hits.min()) if len(hits) else hit)
        return self._names[hit] if hit < len(self._names) else None


def _compared(text: Hashes) -> Hashes:
    """The runs of words of a text, or where it has fewer words the whole of it."""
    words = words_only(text)
    return runs(text, len(text)) if 0 < len(words) < NGRAM else runs(words, NGRAM)


def _texts(row: Any) -> list[str]:
    """Return the texts of a row in its order. Without recursion, since a row may be nested as deep as JSON is read."""
    found, left = [], [row]
    while left:
        value = left.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict):
            left += [value[name] for name in reversed(_TEXT_FIELDS) if name in value]
        elif isinstance(value, list):
            left += reversed(value)
    return found
