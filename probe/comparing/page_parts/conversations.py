"""The conversations that the page holds: rows of samples.jsonl, each message stored once.

The runs of a comparison share their questions, and a run's temperatures and samples share their contexts, so
messages and contexts are kept in lists that rows point into. A large comparison would make a page that no
browser opens: then whole items are chosen, evenly over each set and the same ones in every run, so that what
was gained or lost between two runs stays right for the items that are shown.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probe.comparing.results import Run
from probe.files import read_jsonl
from probe.judges.labels import GENUINE, LABELS

if TYPE_CHECKING:
    from probe.compare import Comparison

ROWS = 20_000
CHARACTERS = 24_000_000

# What a row says, in this order, after where it belongs: [cell, item, sample, context, ...].
FIELDS = (
    "user_turn", "user_cut", "label", "unscored", "judge_raw", "specific", "grounding", "log_p", "changed",
    "reference", "extracted", "strict", "lenient", "outcome", "asked",
)  # fmt: skip

# "<" could end the script element that holds the data; the two separators end a line in older JavaScript.
_ESCAPES = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"})
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Conversations:
    """`data` is what the page's script reads; `rows` of `rows_found` rows are in it."""

    data: dict[str, Any]
    rows: int
    rows_found: int
    items: int
    items_found: int

    def as_script(self) -> str:
        """JSON that is safe inside a script element."""
        text = json.dumps(self.data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)
        return _SURROGATES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def conversations(comparison: Comparison, rows: int = ROWS, characters: int = CHARACTERS) -> Conversations:
    """The rows of all runs, at most about `rows` of them with `characters` of text.

    Raises:
        DataError: a samples.jsonl holds a line that is no JSON object.
    """
    items, rows_found, length = _weigh(comparison)
    share = min(1.0, rows / max(rows_found, 1), characters / max(length, 1))
    chosen = {name: _evenly(list(found), share) for name, found in items.items()}
    tables = _Tables()
    kept = []
    for number, run in enumerate(comparison.runs):
        for row in _rows_of(run):
            if str(row["item"]) in chosen[str(row["set"])]:
                kept.append(tables.encode(number, row))
    data = {
        "runs": list(comparison.names),
        "labels": list(LABELS),
        "genuine": GENUINE,
        "fields": list(FIELDS),
        "cells": list(tables.cells),
        "items": list(tables.items),
        "messages": list(tables.messages),
        "contexts": list(tables.contexts),
        "rows": kept,
    }
    found = sum(map(len, items.values()))
    return Conversations(data, len(kept), rows_found, sum(map(len, chosen.values())), found)


class _Tables:
    """What rows share, each kept once under its number."""

    def __init__(self) -> None:
        self.cells: dict[tuple[Any, ...], int] = {}
        self.items: dict[str, int] = {}
        self.messages: dict[tuple[str, str], int] = {}
        self.contexts: dict[tuple[int, ...], int] = {}

    def encode(self, run: int, row: dict[str, Any]) -> list[Any]:
        kind = f"{row['kind']} {row['condition']}" if row.get("condition") else row["kind"]
        temperature = f"T={float(row.get('temperature') or 0)}"
        cell = (run, kind, row["set"], row.get("perturbation") or "none", temperature)
        context = tuple(
            _number_of(self.messages, (str(message["role"]), str(message["content"])))
            for message in row.get("messages") or ()
        )
        numbers = [_number_of(self.cells, cell), _number_of(self.items, str(row["item"]))]
        return [
            *numbers, row.get("sample") or 0, _number_of(self.contexts, context), *(row.get(name) for name in FIELDS),
        ]  # fmt: skip


def _number_of(table: dict[Any, int], value: Any) -> int:
    return table.setdefault(value, len(table))


def _rows_of(run: Run) -> Iterator[dict[str, Any]]:
    path = run.folder / "samples.jsonl"
    if path.is_file():
        for _, row in read_jsonl(path):
            yield row


def _weigh(comparison: Comparison) -> tuple[dict[str, dict[str, None]], int, int]:
    """Items by set in the order in which they come up, the number of rows, and how long their texts are."""
    items: dict[str, dict[str, None]] = defaultdict(dict)
    seen: set[int] = set()
    rows = length = 0
    for run in comparison.runs:
        for row in _rows_of(run):
            rows += 1
            items[str(row["set"])][str(row["item"])] = None
            length += len(row.get("user_turn") or "") + len(row.get("judge_raw") or "")
            for message in row.get("messages") or ():
                text = str(message["content"])
                if hash(text) not in seen:
                    seen.add(hash(text))
                    length += len(text)
    return items, rows, length


def _evenly(items: list[str], share: float) -> set[str]:
    """That share of the items, at least one, at equal distances."""
    count = max(1, int(len(items) * share))
    return {items[index * len(items) // count] for index in range(count)}
