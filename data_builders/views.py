"""The sft view, which training reads: one row for each conversation, replay among them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_builders.folder import shards
from data_builders.scripted import Conversation
from probe.errors import DataError
from probe.files import read_jsonl
from probe.sets import check_messages


def sft_row(conversation: Conversation) -> dict[str, Any]:
    """A row of OUT/sft. `acts` names the wordings its turns were made of, for the card."""
    return {
        "id": conversation.id,
        "messages": list(conversation.messages),
        "kind": conversation.kind,
        "source": conversation.source,
        "answer": conversation.answer,
        "acts": list(conversation.wordings),
    }


def load_sft_rows(out: Path) -> Iterator[dict[str, Any]]:
    """All kept rows of a finished build, in order.

    Raises:
        DataError: no build there, an unfinished one, or a row that is no conversation (file:line).
    """
    for path in shards(out, "sft"):
        yield from read_sft_rows(path)


def read_sft_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of one JSONL file, each with `messages` that end with the assistant; else DataError with file:line."""
    for number, row in read_jsonl(path):
        messages = check_messages(row.get("messages"), f"{path}:{number}")
        if messages[-1]["role"] != "assistant":
            raise DataError(f"{path}:{number}: the conversation ends with the user, wanted an assistant turn last")
        yield row
