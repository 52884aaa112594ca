"""Turns conversations into training rows: token ids and labels, with loss exactly where the recipe wants it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data_builders.views import load_sft_rows, read_sft_rows
from probe.chat import Chat, Message, TrainingRow
from probe.errors import DataError

IGNORED = -100


@dataclass(frozen=True)
class RowCounts:
    """What became of the conversations: how many rows, tokens, loss-carrying tokens, and rows left out as too long."""

    conversations: int
    rows: int
    tokens: int
    loss_tokens: int
    longest: int
    too_long: int

    def told(self, loss_on: str) -> str:
        """For a model card."""
        return (
            f"on {self.conversations:,} conversations:\n{self.rows:,} rows, {self.tokens:,} tokens of which "
            f"{self.loss_tokens:,} carry loss ({loss_on} turns), {self.too_long} rows left out as too long."
        )


def data_path(path: str | None, recipe: str | None) -> Path:
    """Where the data lies; that of a data recipe is built first, or taken up where building stopped."""
    if path is not None:
        if not Path(path).exists():
            raise DataError(f"{path}: no such file or folder (data.path)")
        return Path(path)
    from data_builders.build import build
    from data_builders.recipe import load_data_recipe

    return build(load_data_recipe(Path(recipe or "")))


def read_conversations(path: Path) -> Iterator[tuple[Message, ...]]:
    """The conversations of a builder's folder (its sft/ shards) or of a JSONL file with `messages`.

    Raises:
        DataError: nothing there, a builder that did not finish, or a row that is no conversation (file:line).
    """
    rows = load_sft_rows(path) if path.is_dir() else read_sft_rows(path)
    return (tuple(row["messages"]) for row in rows)


def make_rows(
    conversations: Iterable[Sequence[Message]], chat: Chat, loss_on: Literal["assistant", "all"], max_length: int | None
) -> tuple[list[dict[str, list[int]]], RowCounts]:
    """Rows with `input_ids` and `labels`. A row over `max_length` tokens is left out whole and counted, since
    cutting it would take its last assistant turn away or leave it without an end.

    Raises:
        DataError: no row is left.
    """
    rows: list[dict[str, list[int]]] = []
    asked = longest = too_long = 0
    for messages in conversations:
        asked += 1
        for row in chat.training_rows(messages, loss_on):
            longest = max(longest, len(row.input_ids))
            if max_length is not None and len(row.input_ids) > max_length:
                too_long += 1
                continue
            rows.append({"input_ids": row.input_ids, "labels": _labels(row)})
    if not rows:
        raise DataError(
            f"no training row is left of {asked} conversations: {too_long} are longer than train.max_length "
            f"{max_length} (the longest has {longest} tokens)"
        )
    tokens = sum(len(row["input_ids"]) for row in rows)
    trained = sum(label != IGNORED for row in rows for label in row["labels"])
    return rows, RowCounts(asked, len(rows), tokens, trained, longest, too_long)


def as_dataset(rows: Sequence[dict[str, list[int]]], packed_to: int | None = None) -> Any:
    """The rows as trl's dataset, or put together to sequences of at most `packed_to` tokens, with their `seq_lengths`.

    trl packs only what it has prepared itself.
    """
    from datasets import Dataset

    dataset = Dataset.from_list(list(rows))
    if packed_to is None:
        return dataset
    from trl import pack_dataset

    return pack_dataset(dataset, packed_to, "bfd")


def show_loss(row: dict[str, list[int]], tokenizer: Any) -> str:
    """One row as text in which what carries loss stands between ⟦ and ⟧."""
    text, inside = "", False
    for token, label in zip(row["input_ids"], row["labels"], strict=True):
        if (label != IGNORED) != inside:
            text += "⟧" if inside else "⟦"
            inside = not inside
        text += tokenizer.decode([token])
    return text + ("⟧" if inside else "")


def _labels(row: TrainingRow) -> list[int]:
    return [token if kept else IGNORED for token, kept in zip(row.input_ids, row.loss_mask, strict=True)]
