"""A probe's run folder: manifest.json first, samples.jsonl with the last answer, results.json last and atomically.

What is generated, scored and judged on the way is kept beside them as soon as it is handed over (by vLLM 1,024
completions at a time), in generations.jsonl, scores.jsonl and verdicts.jsonl, so that nothing is made twice; and in
batches.jsonl, what was made together.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nextturn.probe.engines.base import Completion, Engine, Request, ScoreRequest
from nextturn.probe.errors import DataError, NextturnError, SettingsChanged
from nextturn.probe.files import (
    append_rows,
    json_line,
    open_append,
    read_json,
    read_jsonl,
    sha256_text,
    write_json,
    write_jsonl,
)
from nextturn.probe.judges.labels import Case, Judge, Verdict

SCHEMA = 1

Row = dict[str, Any]


@dataclass(frozen=True)
class ModelInfo:
    """Which weights were measured: where they lie, how they are called in tables, and their hashes.

    The weights behind a server cannot be hashed; then `path` names the served model, which has to identify it.
    """

    path: str
    label: str
    step: int | None
    weights_sha256: str | None
    template_sha256: str


class RunStore:
    """One run folder, opened for a model and settings.

    Raises:
        SettingsChanged: the folder was begun with another model or other settings; the differing keys are named.
    """

    def __init__(self, folder: Path, model: ModelInfo, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.model = model
        self.settings = settings
        self._manifest = folder / "manifest.json"
        if self._manifest.is_file():
            self._refuse_another("this probe was begun")
        else:
            made_with = {name: importlib.metadata.version(name) for name in ("nextturn", "torch", "transformers")}
            write_json(self._manifest, {**self._as_begun, "versions": made_with})

    @property
    def _as_begun(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "model": asdict(self.model), "settings": self.settings}

    def _refuse_another(self, made: str) -> None:
        before = read_json(self._manifest)
        refuse_changes(self.folder, made, before, {**self._as_begun, "versions": before.get("versions")})

    def _refuse_if_moved(self) -> None:
        """Training that goes back to an earlier step moves the probes past it away, and may have them begun anew there:
        figures of the weights of before, written late, would stand for the new ones.

        Raises:
            NextturnError: the folder is no longer the one that was opened.
        """
        if not self._manifest.is_file():
            raise NextturnError(
                f"{self.folder}: its {self._manifest.name} is gone, so the folder was moved or deleted while this probe ran; "
                "nothing more is written there, start the probe again"
            )
        self._refuse_another("meanwhile another probe was begun")

    def results(self) -> dict[str, Any] | None:
        """The finished results, or None while the run is unfinished."""
        path = self.folder / "results.json"
        return read_json(path) if path.is_file() else None

    def write_samples(self, rows: Sequence[Row]) -> None:
        """All rows at once, atomically: each can be made again from what is stored."""
        self._refuse_if_moved()
        write_jsonl(self.folder / "samples.jsonl", rows)

    def finish(self, results: dict[str, Any]) -> dict[str, Any]:
        self._refuse_if_moved()
        whole = {**self._as_begun, **results}
        write_json(self.folder / "results.json", whole)
        return whole


def refuse_changes(
    folder: Path, made: str, before: dict[str, Any], now: dict[str, Any], free: tuple[str, ...] = ()
) -> None:
    """Raises SettingsChanged where `now` differs from `before` in a key that does not start with one of `free`."""
    changed = [line for line in differences(before, now) if not line.startswith(free)]
    if changed:
        raise SettingsChanged(
            f"{folder}: {made} with other settings ({'; '.join(changed)}); use those settings or choose another folder"
        )


def differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    """The keys in which two settings differ, each as "key: old then, new now"."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            yield from differences(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif before != now:
        yield f"{key}: {before!r} then, {now!r} now"


class Cache:
    """Rows in a JSONL file, each under a key of all that shapes it, appended the moment they are made.

    Args:
        check: called before a row is written; what it raises ends the work. `probe watch` asks there whether training
            went back to an earlier step.

    Attributes:
        hits: how many were asked for and there already.
    """

    def __init__(self, path: Path, check: Callable[[], None] = lambda: None) -> None:
        self.hits = 0
        self._check = check
        self._file = open_append(path)
        self._rows: dict[str, Row] = {row["key"]: row for _, row in read_jsonl(path)}

    def fill(
        self,
        keys: Sequence[str],
        make: Callable[[list[int]], Iterator[tuple[int, Row]]],
        plan: Callable[[list[int]], list[list[int]]] | None = None,
        keep_last: Callable[[Row], bool] = lambda row: False,
    ) -> Iterator[tuple[int, Row]]:
        """Yields (index, row) for every key: what is stored first, then what is made. Equal keys are made once.

        Batches are planned over *all* keys, whatever is stored already, and a batch with a gap is made again as a
        whole. So a run that was killed ends with the bytes of one that was not, also in bfloat16, where a text can
        hang on which others were padded with it. Those that are alone in their batch hang on no other, and what is
        missing of them is made together.

        Args:
            make: yields (place in the given indices, row) in any order, each as soon as it is there.
            plan: batches, as lists of places in the given indices; left out, all are alone in theirs.
            keep_last: rows that are kept only once everything has been made.
        """
        where: dict[str, list[int]] = defaultdict(list)
        for index, key in enumerate(keys):
            where[key].append(index)
        for key, indices in where.items():
            if key in self._rows:
                self.hits += len(indices)
                yield from ((index, self._rows[key]) for index in indices)
        distinct = [indices[0] for indices in where.values()]
        missing = {index for index in distinct if keys[index] not in self._rows}
        if not missing:  # nothing is planned, and no model need be loaded
            return

        places = plan(distinct) if plan else [[place] for place in range(len(distinct))]
        planned = [[distinct[place] for place in batch] for batch in places]
        batches = [batch for batch in planned if len(batch) > 1 and missing.intersection(batch)]
        alone = [batch[0] for batch in planned if len(batch) == 1 and batch[0] in missing]
        held: dict[str, Row] = {}
        for batch in [*batches, *([alone] if alone else [])]:
            for place, row in make(batch):
                key = keys[batch[place]]
                if key in self._rows:  # made again for the sake of its batch
                    continue
                if keep_last(row):
                    held[key] = row
                else:
                    self.keep({key: row})
                yield from ((index, row) for index in where[key])
        self.keep(held)

    def get(self, key: str) -> Row | None:
        """What is stored under a key."""
        return self._rows.get(key)

    def forget(self, unwanted: Callable[[Row], bool]) -> None:
        """These stored rows are made anew when they are asked for; of equal keys in the file the last counts."""
        self._rows = {key: row for key, row in self._rows.items() if not unwanted(row)}

    def close(self) -> None:
        self._file.close()

    def keep(self, rows: dict[str, Row]) -> None:
        """Stores rows by key, at once."""
        self._check()
        self._rows.update(rows)
        append_rows(self._file, [{"key": key, **row} for key, row in rows.items()])


# Scores are sums over one forward pass: this many are asked for together.
_SCORES_TOGETHER = 256


class StoredEngine:
    """What `engine` makes, kept in `folder`'s generations.jsonl and scores.jsonl.

    The key holds weights, template, engine, prompt, sampling and seed, so that another checkpoint's completions can
    never be taken for this one's. batches.jsonl keeps which requests went together: an engine may choose that by the
    memory that is free, which another start need not find, and a rerun is to round as the first run did. `check` as of
    `Cache`.
    """

    def __init__(
        self, engine: Engine, folder: Path, model: ModelInfo, check: Callable[[], None] = lambda: None
    ) -> None:
        self.engine = engine
        self._identity = f"{model.weights_sha256 or model.path} {model.template_sha256} {engine.name}"
        self._completions = Cache(folder / "generations.jsonl", check)
        self._batches = Cache(folder / "batches.jsonl", check)
        self._scores = Cache(folder / "scores.jsonl", check)

    @property
    def hits(self) -> int:
        """How many completions and scores were there already."""
        return self._completions.hits + self._scores.hits

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        """Yields (index, completion) for every request; equal requests are made once."""

        def make(indices: list[int]) -> Iterator[tuple[int, Row]]:
            for place, made in self.engine.stream([requests[index] for index in indices]):
                yield place, {"text": made.text, "tokens": made.tokens, "finish": made.finish}

        def plan(indices: list[int]) -> list[list[int]]:
            together = sha256_text(" ".join(keys[index] for index in indices))
            known = self._batches.get(together)
            if known is not None:
                batches: list[list[int]] = known["batches"]
                return batches
            batches = self.engine.batches([requests[index] for index in indices])
            if any(len(batch) > 1 for batch in batches):
                self._batches.keep({together: {"batches": batches}})
            return batches

        # A greedy completion does not depend on the seed.
        keys = [
            self._key({**vars(request), "seed": request.seed if request.temperature else 0}) for request in requests
        ]
        for index, row in self._completions.fill(keys, make, plan):
            yield index, Completion(row["text"], row["tokens"], row["finish"])

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """Yields (index, log p) for every request; equal requests are scored once."""

        def make(indices: list[int]) -> Iterator[tuple[int, Row]]:
            for place, log_p in self.engine.score([requests[index] for index in indices]):
                yield place, {"log_p": log_p}

        def plan(indices: list[int]) -> list[list[int]]:
            starts = range(0, len(indices), _SCORES_TOGETHER)
            return [list(range(start, min(start + _SCORES_TOGETHER, len(indices)))) for start in starts]

        keys = [self._key(vars(request)) for request in requests]
        for index, row in self._scores.fill(keys, make, plan):
            yield index, row["log_p"]

    def close(self) -> None:
        """Closes the files; the engine stays as it is."""
        self._completions.close()
        self._batches.close()
        self._scores.close()

    def _key(self, shape: Row) -> str:
        return sha256_text(self._identity + json_line(shape))


class StoredJudge:
    """A judge whose verdicts are kept in a file, so that no call is paid for twice.

    A label is kept the moment it comes. What stayed unscored is kept once all cases have been asked about: a run that
    was killed, or ended because its judge failed too often, asks for those again, and one that ended well does not.

    Args:
        path: JSONL of {"key", "label", "unscored", "raw", "p_genuine"}, of any number of judges.
        again: stored verdicts without a label are asked for anew, once.
        check: as of `Cache`.

    Raises:
        DataError: the file at `path` holds something else.

    Attributes:
        calls: the judge's own.
    """

    def __init__(self, judge: Judge, path: Path, again: bool = False, check: Callable[[], None] = lambda: None) -> None:
        self.name, self.version, self.calls = judge.name, judge.version, judge.calls
        self._judge = judge
        _refuse_other_files(path)
        self._cache = Cache(path, check)
        if again:
            self._cache.forget(lambda row: row["label"] is None)

    @property
    def hits(self) -> int:
        """How many verdicts were there already."""
        return self._cache.hits

    def stream(self, cases: Sequence[Case], known: Sequence[Verdict] = ()) -> Iterator[tuple[int, Verdict]]:
        """(index, verdict): stored ones first, in order, then new ones as they come; what the judge raises goes on."""
        # ASCII, so that broken surrogates have a key, too
        keys = [sha256_text(json.dumps({"judge": self.version, **asdict(case)}, sort_keys=True)) for case in cases]
        # A rerun asks about little but what failed, which is no share of the run.
        stored = [_verdict_in(row) for key in dict.fromkeys(keys) if (row := self._cache.get(key)) is not None]

        def make(indices: list[int]) -> Iterator[tuple[int, Row]]:
            for place, verdict in self._judge.stream([cases[index] for index in indices], [*known, *stored]):
                self.calls = self._judge.calls
                yield place, asdict(verdict)

        for index, row in self._cache.fill(keys, make, keep_last=lambda row: row["label"] is None):
            yield index, _verdict_in(row)

    def close(self) -> None:
        self._cache.close()


def _verdict_in(row: Row) -> Verdict:
    return Verdict(row["label"], row["unscored"], row["raw"], row.get("p_genuine"))


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
