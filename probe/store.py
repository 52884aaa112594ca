"""A probe's run folder: manifest.json first, samples.jsonl as they come, results.json last and atomically.

What is generated and scored on the way is kept beside them (`probe.stored`), verdicts of a judge that costs calls too.
"""

from __future__ import annotations

import importlib.metadata
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from probe.engines.base import Completion, Engine, Request, ScoreRequest
from probe.errors import SettingsChanged
from probe.files import append_rows, json_line, open_append, read_json, read_jsonl, sha256_text, write_json, write_jsonl

SCHEMA = 1


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
        manifest = {"schema": SCHEMA, "model": asdict(model), "settings": settings}
        if (folder / "manifest.json").is_file():
            before = read_json(folder / "manifest.json")
            refuse_changes(folder, "this probe was begun", before, {**manifest, "versions": before.get("versions")})
        else:
            write_json(folder / "manifest.json", {**manifest, "versions": _versions()})

    def results(self) -> dict[str, Any] | None:
        """The finished results, or None while the run is unfinished."""
        path = self.folder / "results.json"
        return read_json(path) if path.is_file() else None

    def write_samples(self, rows: Sequence[dict[str, Any]]) -> None:
        """All rows at once, atomically: each can be made again from what is stored."""
        write_jsonl(self.folder / "samples.jsonl", rows)

    def finish(self, results: dict[str, Any]) -> dict[str, Any]:
        whole = {"schema": SCHEMA, "model": asdict(self.model), "settings": self.settings, **results}
        write_json(self.folder / "results.json", whole)
        return whole


def refuse_changes(
    folder: Path, made: str, before: dict[str, Any], now: dict[str, Any], free: tuple[str, ...] = ()
) -> None:
    """Raises SettingsChanged where `now` differs from `before` in a key that does not start with one of `free`."""
    changed = [line for line in differences(before, now) if not line.startswith(free)]
    if changed:
        raise SettingsChanged(
            f"{folder}: {made} with other settings ({'; '.join(changed)}); "
            "go on with those, choose another folder, or delete this one"
        )


def differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    """The keys in which two settings differ, each as "key: old then, new now"."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            yield from differences(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif before != now:
        yield f"{key}: {before!r} then, {now!r} now"


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("nextturn", "torch", "transformers")}


# --- An engine whose completions and scores are kept in files, so that nothing is made twice and a kill loses nothing.
#
# Everything is kept the moment it is made, under a key of all that shapes it (weights, template, engine, prompt,
# sampling, seed), so that another checkpoint's completions can never be taken for this one's.
#
# Batches are planned over the *whole* list of requests, whatever is stored already, and a batch with a gap is made again
# as a whole. So a run that was killed ends with the bytes of one that was not, also in bfloat16, where a text can hang on
# which others were padded with it.

# Scores are sums over one forward pass: this many are asked for together.
_SCORES_TOGETHER = 256

R = TypeVar("R", Request, ScoreRequest)
Row = dict[str, Any]


class StoredEngine:
    """Wraps `engine`; `folder` gets generations.jsonl and scores.jsonl. `hits` counts what was there already."""

    def __init__(self, engine: Engine, folder: Path, model: ModelInfo) -> None:
        self.engine = engine
        self.name = engine.name
        identity = f"{model.weights_sha256 or model.path} {model.template_sha256} {engine.name}"
        self._completions = _Stored(folder / "generations.jsonl", identity)
        self._scores = _Stored(folder / "scores.jsonl", identity)

    @property
    def hits(self) -> int:
        return self._completions.hits + self._scores.hits

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        return self.engine.batches(requests)

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        """Yields (index, completion) for every request; equal requests are made once."""

        def make(missing: Sequence[Request]) -> Iterator[tuple[int, Row]]:
            return (
                (position, {"text": made.text, "tokens": made.tokens, "finish": made.finish})
                for position, made in self.engine.stream(missing)
            )

        # A greedy completion does not depend on the seed.
        shaped = [{**asdict(request), "seed": request.seed if request.temperature else 0} for request in requests]
        for index, row in self._completions.fill(requests, shaped, self.engine.batches, make):
            yield index, Completion(row["text"], row["tokens"], row["finish"])

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """Yields (index, log p) for every request; equal requests are scored once."""

        def make(missing: Sequence[ScoreRequest]) -> Iterator[tuple[int, Row]]:
            return ((position, {"log_p": log_p}) for position, log_p in self.engine.score(missing))

        def batches(distinct: Sequence[ScoreRequest]) -> list[list[int]]:
            indices = list(range(len(distinct)))
            return [indices[start : start + _SCORES_TOGETHER] for start in range(0, len(indices), _SCORES_TOGETHER)]

        for index, row in self._scores.fill(requests, [asdict(request) for request in requests], batches, make):
            yield index, row["log_p"]

    def close(self) -> None:
        self._completions.close()
        self._scores.close()


class _Stored:
    """One file of rows, each under a key; appended as they come."""

    def __init__(self, path: Path, identity: str) -> None:
        self.hits = 0
        self._identity = identity
        self._file = open_append(path)
        self._rows = {row["key"]: row for _, row in read_jsonl(path)}

    def fill(
        self,
        requests: Sequence[R],
        shaped: Sequence[dict[str, Any]],
        batches: Callable[[Sequence[R]], list[list[int]]],
        make: Callable[[Sequence[R]], Iterator[tuple[int, Row]]],
    ) -> Iterator[tuple[int, Row]]:
        """Yields (index, row) for every request, making those that are not stored.

        `shaped` holds what shapes each request's result. Requests that are alone in their batch hang on no other, so
        those that are missing are made together.
        """
        where: dict[str, list[int]] = defaultdict(list)
        for index, shape in enumerate(shaped):
            where[sha256_text(self._identity + json_line(shape))].append(index)
        keys = list(where)
        distinct = [requests[where[key][0]] for key in keys]
        alone: list[int] = []
        together: list[list[int]] = []
        whole = all(key in self._rows for key in keys)  # then nothing is planned, and no model need be loaded
        for batch in [list(range(len(keys)))] if whole else batches(distinct):
            missing = [position for position in batch if keys[position] not in self._rows]
            for position in batch:
                if keys[position] in self._rows:
                    self.hits += len(where[keys[position]])
                    yield from ((index, self._rows[keys[position]]) for index in where[keys[position]])
            if missing and len(batch) > 1:
                together.append(batch)
            else:
                alone += missing
        for batch in [*together, *([alone] if alone else [])]:
            for place, row in make([distinct[position] for position in batch]):
                key = keys[batch[place]]
                if key not in self._rows:
                    self._rows[key] = row
                    append_rows(self._file, [{"key": key, **row}])
                    yield from ((index, row) for index in where[key])

    def close(self) -> None:
        self._file.close()
