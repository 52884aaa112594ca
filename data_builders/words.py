"""Texts as words, each word and each run of words one number: what near-duplicates and decontamination compare.

A drawing ([asy] ... [/asy]) counts as one word: its code is most of a problem's text and much the same in many.
"""

from __future__ import annotations

import functools
import hashlib
import re

import numpy as np
from numpy.typing import NDArray

from data_builders.derive.latex import ASY

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
