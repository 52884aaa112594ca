"""The folder of a probe run, and verdicts that are kept on disk.

manifest.json is written first (model, settings, versions), samples.jsonl after the last answer, and results.json last. All
three are written atomically. What is made in between is appended as soon as it exists (`nextturn.probe.engines.stored`), so a
run that was killed is resumed by the same command.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import DataError, NextturnError
from nextturn.probe.command.files import read_json, refuse_changes, sha256_text, write_json, write_jsonl
from nextturn.probe.engines.stored import Cache, Row
from nextturn.probe.judges.verdicts import Case, Judge, Verdict
from nextturn.probe.models.folders import ModelInfo
from nextturn.probe.results import SCHEMA


class RunStore:
    """The folder of a probe run, opened for a model and settings.

    Raises:
        SettingsChanged: The folder was begun with another model or other settings. The message names the keys.
    """

    def __init__(self, folder: Path, model: ModelInfo, settings: dict[str, Any]) -> None:
        self.folder = folder
        self._manifest = folder / "manifest.json"
        self._head = {"schema": SCHEMA, "model": asdict(model), "settings": settings}
        if self._manifest.is_file():
            self._refuse_another("this probe was begun")
        else:
            versions = {name: importlib.metadata.version(name) for name in ("nextturn", "torch", "transformers")}
            write_json(self._manifest, {**self._head, "versions": versions})

    def _refuse_another(self, event: str) -> None:
        refuse_changes(self.folder, event, read_json(self._manifest), self._head, free=("versions", "model.parameters"))

    def _refuse_if_moved(self) -> None:
        """Raise NextturnError if the folder is no longer the one that was opened.

        Training that goes back to an earlier step moves the later probes away and may begin new ones in their place.
        Figures of the old weights must not be written there.
        """
        if not self._manifest.is_file():
            problem = f"its {self._manifest.name} is gone, so the folder was moved or deleted while this probe ran"
            raise NextturnError(f"{self.folder}: {problem}; start the probe again")
        self._refuse_another("meanwhile another probe was begun")

    def results(self) -> dict[str, Any] | None:
        """Return the contents of results.json, or None while the run is unfinished."""
        path = self.folder / "results.json"
        return read_json(path) if path.is_file() else None

    def write_samples(self, rows: Sequence[Row]) -> None:
        """Write all rows of samples.jsonl at once. They can be made again from what is stored."""
        self._refuse_if_moved()
        write_jsonl(self.folder / "samples.jsonl", rows)

    def finish(self, results: dict[str, Any]) -> dict[str, Any]:
        """Write results.json, which marks the run as finished, and return its contents."""
        self._refuse_if_moved()
        contents = {**self._head, **results}
        write_json(self.folder / "results.json", contents)
        return contents


class StoredJudge:
    """A judge whose verdicts are kept in a file, so that no call is made twice.

    A label is stored as soon as it exists. Unscored verdicts are stored after all cases were judged: a run that was killed,
    or that ended because its judge failed too often, asks for them again, and a run that ended well does not.

    Args:
        path: JSONL file of {"key", "label", "unscored", "raw"}, from any number of judges.
        check: See `nextturn.probe.engines.stored.Cache`.

    Raises:
        DataError: The file at `path` holds something else.

    Attributes:
        calls: Number of calls that the judge made.
    """

    def __init__(self, judge: Judge, path: Path, check: Callable[[], None] = lambda: None) -> None:
        self.name, self.version, self.calls = judge.name, judge.version, judge.calls
        self._judge = judge
        _refuse_other_files(path)
        self._cache = Cache(path, check)

    @property
    def hits(self) -> int:
        """Number of verdicts that were already stored."""
        return self._cache.hits

    def stream(self, cases: Sequence[Case], known: Sequence[Verdict] = ()) -> Iterator[tuple[int, Verdict]]:
        """Yield (index, verdict): stored ones first, in order, then new ones. Exceptions of the judge are not caught."""
        # ASCII, so that broken surrogates have a key, too.
        keys = [sha256_text(json.dumps({"judge": self.version, **asdict(case)}, sort_keys=True)) for case in cases]
        # A rerun asks mostly about what failed, so the judge measures its share of failures over the stored verdicts as well.
        stored = [_verdict_in(row) for key in dict.fromkeys(keys) if (row := self._cache.get(key)) is not None]

        def make(indices: list[int]) -> Iterator[tuple[int, Row]]:
            for position, verdict in self._judge.stream([cases[index] for index in indices], [*known, *stored]):
                self.calls = self._judge.calls
                yield position, asdict(verdict)

        for index, row in self._cache.fill(keys, make, keep_last=lambda row: row["label"] is None):
            yield index, _verdict_in(row)

    def close(self) -> None:
        """Close the file."""
        self._cache.close()


def _verdict_in(row: Row) -> Verdict:
    return Verdict(row["label"], row["unscored"], row["raw"])


def _refuse_other_files(path: Path) -> None:
    """Raise DataError if the file is not one of verdicts: opening it for appending would cut off an unfinished last line."""
    start = '{"key": "'
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            line = file.readline()
        if not line.startswith(start) and not start.startswith(line):
            raise DataError(f"{path}: its first line is no stored verdict, expected a new file or one of this command")
