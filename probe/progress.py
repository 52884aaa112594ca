"""Collecting a stream of results, under a progress bar with rate and time left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def collected(stream: Iterator[tuple[int, T]], total: int, what: str, **bar_options: Any) -> list[T]:
    """The results of (index, result) pairs in the order of their indices.

    The bar shows once it takes longer than a moment; `bar_options` are tqdm's own.
    """
    from tqdm import tqdm

    done: dict[int, T] = {}
    with tqdm(total=total, desc=what, **{"delay": 1, **bar_options}) as bar:
        for index, result in stream:
            done[index] = result
            bar.update()
    return [done[index] for index in range(total)]
