"""Replies that are kept the moment they come, so that a build that was killed pays for none twice.

One file for each role, a line for each reply, under a key of all that shapes it. What failed is not kept: the build
that takes over asks again. Each ask has a seed of its own and is made once, so a stored reply is handed out once and
then forgotten, and a long build holds in memory only what an earlier one left.
"""

from __future__ import annotations

from pathlib import Path

from data_builders.dialogue.speaker import Ask, Said
from probe.files import append_rows, json_line, open_append, read_jsonl, sha256_text


class StoredReplies:
    """The replies of one model in one role; `identity` is that of the model."""

    def __init__(self, path: Path, identity: str) -> None:
        self.hits = 0
        self._identity = identity
        self._file = open_append(path)
        self._rows = {row["key"]: row["said"] for _, row in read_jsonl(path)}

    def take(self, ask: Ask) -> Said | None:
        said = self._rows.pop(self._key(ask), None) if self._rows else None
        if said is None:
            return None
        self.hits += 1
        return Said(**said)

    def keep(self, ask: Ask, said: Said) -> None:
        append_rows(self._file, [{"key": self._key(ask), "said": vars(said)}])

    def close(self) -> None:
        self._file.close()

    def _key(self, ask: Ask) -> str:
        return sha256_text(
            self._identity + json_line([ask.role, ask.messages, ask.seed, ask.temperature, ask.max_tokens])
        )
