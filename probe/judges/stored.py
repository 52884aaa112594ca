"""A judge whose verdicts are kept in a file, so that no call is paid for twice and a kill loses none.

A label is kept the moment it comes. What stayed unscored is kept once all cases have been asked about: a run that was
killed, or ended because its judge failed too often, asks for those again, and one that ended well does not.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from probe.errors import DataError
from probe.files import append_rows, open_append, read_jsonl, sha256_text
from probe.judges.labels import Case, Judge, Verdict


class StoredJudge:
    """Wraps `judge`; equal cases are asked about once, and those in the file not at all.

    Args:
        path: JSONL of {"key", "label", "unscored", "raw"}, of any number of judges; of equal keys the last counts.
        again: stored verdicts without a label are asked for anew, once.

    Raises:
        DataError: the file at `path` holds something else.

    Attributes:
        hits: verdicts that were there already.
        calls: the judge's own.
    """

    def __init__(self, judge: Judge, path: Path, again: bool = False) -> None:
        self.name, self.version, self.calls = judge.name, judge.version, judge.calls
        self.hits = 0
        self._judge = judge
        _refuse_other_files(path)
        self._file = open_append(path)
        stored = {row["key"]: Verdict(row["label"], row["unscored"], row["raw"]) for _, row in read_jsonl(path)}
        self._verdicts = {key: verdict for key, verdict in stored.items() if verdict.label is not None or not again}

    def stream(self, cases: Sequence[Case]) -> Iterator[tuple[int, Verdict]]:
        """(index, verdict): stored ones first, in order, then new ones as they come; what the judge raises goes on."""
        places: dict[str, list[int]] = defaultdict(list)
        for index, case in enumerate(cases):
            key = self._key(case)
            if key in self._verdicts:
                self.hits += 1
                yield index, self._verdicts[key]
            else:
                places[key].append(index)
        keys = list(places)
        unscored: dict[str, Verdict] = {}
        for position, verdict in self._judge.stream([cases[places[key][0]] for key in keys]):
            self.calls = self._judge.calls
            key = keys[position]
            if verdict.label is None:
                unscored[key] = verdict
            else:
                self._keep({key: verdict})
            yield from ((index, verdict) for index in places[key])
        self._keep(unscored)

    def close(self) -> None:
        self._file.close()

    def _keep(self, verdicts: dict[str, Verdict]) -> None:
        self._verdicts.update(verdicts)
        append_rows(self._file, [{"key": key, **asdict(verdict)} for key, verdict in verdicts.items()])

    def _key(self, case: Case) -> str:
        judged: dict[str, Any] = {"judge": self.version, **asdict(case)}
        return sha256_text(json.dumps(judged, sort_keys=True))  # ASCII, so that broken surrogates have a key, too


def _refuse_other_files(path: Path) -> None:
    """Opening for appending cuts off a line without an end, which must not happen to somebody's labels."""
    start = '{"key": "'
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            line = file.readline()
        if not line.startswith(start) and not start.startswith(line):
            raise DataError(
                f"{path}: its first line is no stored verdict, wanted a new file or one made by this command"
            )
