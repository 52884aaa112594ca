"""Completions and scores that are kept on disk, so that a run that was killed asks for nothing twice.

Rows are appended to generations.jsonl, scores.jsonl and, for judges, verdicts.jsonl and grades.jsonl, each under a key of
everything that determines it. batches.jsonl holds which requests were made together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from nextturn.probe.command.files import append_rows, json_line, open_append, read_jsonl, sha256_text
from nextturn.probe.engines.base import Completion, Engine, Request, ScoreRequest
from nextturn.probe.models.folders import ModelInfo

Row = dict[str, Any]


class Cache:
    """Rows in a JSONL file, each under a key of everything that determines it, appended as soon as they are made.

    Args:
        check: Called before a row is written; an exception that it raises ends the work. `probe watch` checks there
            whether training went back to an earlier step.

    Attributes:
        hits: Number of rows that were asked for and already stored.
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
        """Yield (index, row) for every key: stored rows first, then new ones. Equal keys are made once.

        Batches are planned over *all* keys, whether stored or not, and a batch with a missing row is made again as a
        whole. A run that was killed therefore ends with the same bytes as one that was not, also in bfloat16, where a
        completion can depend on the others in its batch. Requests that are alone in their batch depend on no other, so
        the missing ones among them are made together.

        Args:
            make: Yields (position in the given indices, row) in any order, as soon as a row is made.
            plan: Returns batches as lists of positions in the given indices. None puts each index into its own batch.
            keep_last: Selects rows that are stored only after everything has been made.
        """
        indices_of: dict[str, list[int]] = defaultdict(list)
        for index, key in enumerate(keys):
            indices_of[key].append(index)
        for key, indices in indices_of.items():
            if key in self._rows:
                self.hits += len(indices)
                yield from ((index, self._rows[key]) for index in indices)
        distinct = [indices[0] for indices in indices_of.values()]
        missing = {index for index in distinct if keys[index] not in self._rows}
        if not missing:  # no plan is needed, and no model has to be loaded
            return

        positions = plan(distinct) if plan else [[position] for position in range(len(distinct))]
        planned = [[distinct[position] for position in batch] for batch in positions]
        batches = [batch for batch in planned if len(batch) > 1 and missing.intersection(batch)]
        if alone := [batch[0] for batch in planned if len(batch) == 1 and batch[0] in missing]:
            batches.append(alone)
        postponed: dict[str, Row] = {}
        for batch in batches:
            for position, row in make(batch):
                key = keys[batch[position]]
                if key in self._rows:  # made again because another row of its batch was missing
                    continue
                if keep_last(row):
                    postponed[key] = row
                else:
                    self.keep({key: row})
                yield from ((index, row) for index in indices_of[key])
        self.keep(postponed)

    def get(self, key: str) -> Row | None:
        """Return the row stored under a key."""
        return self._rows.get(key)

    def keep(self, rows: dict[str, Row]) -> None:
        """Store rows by key."""
        self._check()
        self._rows.update(rows)
        append_rows(self._file, [{"key": key, **row} for key, row in rows.items()])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


# A score is a sum over one forward pass: this many are asked for together.
_SCORES_PER_BATCH = 256


class StoredEngine:
    """An engine whose completions and scores are kept in `folder`.

    The key holds weights, template, engine, prompt, sampling settings and seed, so that the completions of one checkpoint
    are never used for another. Batch sizes depend on free memory. The batches are stored so that a resumed run uses the
    same batches and gets the same floating-point results.

    Args:
        check: See `Cache`.
    """

    def __init__(
        self, engine: Engine, folder: Path, model: ModelInfo, check: Callable[[], None] = lambda: None
    ) -> None:
        self.engine = engine
        self._identity = f"{model.weights_sha256 or model.path} {model.template_sha256} {engine.name}"
        self._files = ExitStack()
        caches = [Cache(folder / f"{name}.jsonl", check) for name in ("generations", "batches", "scores")]
        self._completions, self._batches, self._scores = (self._files.enter_context(closing(each)) for each in caches)

    @property
    def hits(self) -> int:
        """Number of completions and scores that were already stored."""
        return self._completions.hits + self._scores.hits

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        """Yield (index, completion) for every request. Equal requests are made once."""

        def make(indices: list[int]) -> Iterator[tuple[int, Row]]:
            for position, made in self.engine.stream([requests[index] for index in indices]):
                yield position, {"text": made.text, "tokens": made.tokens, "finish": made.finish}

        def plan(indices: list[int]) -> list[list[int]]:
            together = sha256_text(" ".join(keys[index] for index in indices))
            if stored := self._batches.get(together):
                return list(stored["batches"])
            batches = self.engine.batches([requests[index] for index in indices])
            if any(len(batch) > 1 for batch in batches):
                self._batches.keep({together: {"batches": batches}})
            return batches

        # A greedy completion does not depend on the seed.
        keys = [self._key(vars(request) | ({} if request.temperature else {"seed": 0})) for request in requests]
        for index, row in self._completions.fill(keys, make, plan):
            yield index, Completion(row["text"], row["tokens"], row["finish"])

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """Yield (index, log p in nats) for every request. Equal requests are scored once."""

        def make(indices: list[int]) -> Iterator[tuple[int, Row]]:
            for position, log_p in self.engine.score([requests[index] for index in indices]):
                yield position, {"log_p": log_p}

        def plan(indices: list[int]) -> list[list[int]]:
            positions = list(range(len(indices)))
            return [positions[start : start + _SCORES_PER_BATCH] for start in positions[::_SCORES_PER_BATCH]]

        for index, row in self._scores.fill([self._key(vars(request)) for request in requests], make, plan):
            yield index, row["log_p"]

    def close(self) -> None:
        """Close the files. The engine stays open."""
        self._files.close()

    def _key(self, settings: Row) -> str:
        return sha256_text(self._identity + json_line(settings))
