"""Reads user turns that people have labelled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import DataError
from probe.files import read_jsonl
from probe.judges.labels import LABELS, Case


@dataclass(frozen=True)
class LabelledTurn:
    """A case, the label that people gave it, and which conversation it belongs to."""

    case: Case
    label: str
    conversation: str


def read_labelled(path: Path) -> list[LabelledTurn]:
    """Rows of {"messages", "user_turn", "label"} and optionally "cut"; others are ignored.

    A conversation is known by its first user message, so that several turns after one question stay together.

    Raises:
        DataError: file and line of what is missing or is no label.
    """
    rows = list(_labelled(path))
    if not rows:
        raise DataError(f"{path}: no labelled turns, wanted one JSON object a line")
    return rows


def _labelled(path: Path) -> Iterator[LabelledTurn]:
    for number, row in read_jsonl(path):
        where = f"{path}:{number}"
        messages, turn, label = row.get("messages"), row.get("user_turn"), row.get("label")
        if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
            raise DataError(f'{where}: "messages" wants a list of {{"role", "content"}}')
        if messages[-1]["role"] != "assistant":
            raise DataError(f'{where}: "messages" ends with {messages[-1]["role"]!r}, wanted the assistant')
        if not isinstance(turn, str):
            raise DataError(f'{where}: "user_turn" is {type(turn).__name__}, wanted text')
        if label not in LABELS:
            raise DataError(f"{where}: label {label!r}, wanted one of {', '.join(LABELS)}")
        spoken = tuple({"role": message["role"], "content": message["content"]} for message in messages)
        first = next((message["content"] for message in spoken if message["role"] == "user"), "")
        yield LabelledTurn(Case(spoken, turn, bool(row.get("cut", False))), label, " ".join(first.split()))


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)
