"""What the gate has kept, so that nothing is kept twice: exact, nearly the same, or the same but for its numbers.

Nearly the same is told by MinHash (Broder 1997) over runs of words, and looked up by bands of the signature (locality
sensitive hashing; Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, chapter 3). All that grows with the rows
lies in an SQLite file, about 1 kB a row, of which a fixed part is held in memory.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_builders.words import Hashes, runs, text_hash

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
