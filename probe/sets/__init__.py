"""The question sets: a JSONL file first, the hub second. Used by the probe and by the data builders.

A row may be GSM8K-like (`question`, `answer` with `####`), MATH-like (`problem`, `solution` with `\\boxed`), a
question with lettered options (GPQA's columns, or `choices`), a prompt (`prompt`), a conversation (`messages` and
other forms, ending with the user), MT-Bench-like (`turns`), or a pair for clarify (`complete`, `underspecified`).
The set's name does not decide how a row is read; its fields do. A finished conversation is read as a transcript
where the recipe says so.

The named sets are in `hub_sets`, forms of conversations in `conversations`, options in `choices`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probe.answers import reference_answer
from probe.errors import DataError
from probe.files import read_jsonl, sha256_text
from probe.sets.choices import lettered, shown_in
from probe.sets.conversations import Message, check_messages, check_text, conversation_in, row_id, user
from probe.sets.hub_sets import HUB, HubSet, locate
from probe.sets.transcripts import read_transcripts

__all__ = [  # with what the other rooms look for here
    "HUB", "HubSet", "Item", "Message", "Pair", "Problem", "check_messages", "choose", "locate", "read_items",
    "read_pairs", "read_problems", "sets_hash",
]  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """One problem with a known final answer and a worked solution."""

    id: str
    question: str
    answer: str
    solution: str
    source: str
    level: int | None = None
    subject: str | None = None


@dataclass(frozen=True)
class Item:
    """One probe item: a context that ends with a user message, and its final answer where there is one."""

    id: str
    messages: tuple[Message, ...]
    answer: str | None = None
    reply: str | None = None
    """Transcripts only: the assistant's message that followed in the file, probed in place of the model's own."""
    actual: str | None = None
    """Transcripts only: what the user really said next."""
    options: tuple[str, ...] = ()
    """The texts of (A), (B), ... as asked; `answer` is then a letter, and is graded as one."""


@dataclass(frozen=True)
class Pair:
    """One problem twice: complete, and with one needed given withheld."""

    id: str
    complete: str
    underspecified: str
    missing: str


def read_problems(path: Path, source: str | None = None) -> Iterator[Problem]:
    """Problems of a GSM8K-format, MATH-format or {question, answer[, solution]} file, in file order.

    An empty `\\boxed{}` gives an empty answer.

    Raises:
        DataError: with file:line, for a broken line, a row without a question, or one without an answer.
    """
    for number, row in read_jsonl(path):
        where = f"{path}:{number}"
        question = _text(row, ("question", "problem", "prompt"), where)
        solution = _given(row, "solution") or _given(row, "answer")
        answer = _final_answer(row)
        if answer is None and "\\boxed{}" in solution:
            answer = ""  # two rows of MATH's own training file; the data builders reject them with a reason
        if answer is None:
            raise DataError(f"{where}: no answer, wanted `answer` (alone or after ####) or `solution` with \\boxed{{}}")
        level = re.search(r"\d", str(row.get("level", "")))
        yield Problem(
            id=str(row.get("id", row.get("unique_id", f"{source or path.stem}-{number}"))),
            question=question,
            answer=answer,
            solution=re.sub(r"\n?####.*", "", re.sub(r"<<.*?>>", "", solution)).strip(),
            source=source or path.stem,
            level=int(level.group()) if level else None,
            subject=row.get("type") or row.get("subject"),
        )


def read_items(path: Path, instruction: str = "", transcript: bool = False) -> list[Item]:
    """All items of a file; `instruction` is added to the last user message after an empty line.

    With `transcript` the rows are finished conversations, taken apart as `probe.sets.transcripts` says.

    Raises:
        DataError: with file:line, for a row that cannot be read; for an id that stands twice; for an empty file.
    """
    if transcript:
        if instruction:
            raise DataError(f"{path}: an instruction cannot be added to a transcript, its question is answered already")
        read = read_transcripts(path)
        items = [Item(identity, one.context, reply=one.reply, actual=one.actual) for identity, one in read]
    else:
        items = [_item(row, f"{path}:{number}", number) for number, row in read_jsonl(path)]
    _check_ids(path, [item.id for item in items])
    return [_instructed(item, instruction) for item in items] if instruction else items


def read_pairs(path: Path) -> list[Pair]:
    pairs = []
    for number, row in read_jsonl(path):
        where = f"{path}:{number}"
        complete, less = _text(row, ("complete",), where), _text(row, ("underspecified",), where)
        pairs.append(Pair(str(row.get("id", number)), complete, less, str(row.get("missing", ""))))
    _check_ids(path, [pair.id for pair in pairs])
    return pairs


def choose(items: Sequence[Any], n: int | None, seed: int) -> list[Any]:
    """`n` items picked by `seed`, in file order; all of them where `n` is None or not smaller."""
    if n is None or n >= len(items):
        return list(items)
    return [items[index] for index in sorted(random.Random(seed).sample(range(len(items)), n))]


def sets_hash(items: Sequence[Item | Pair]) -> str:
    """sha256 over what is asked and how it is graded, so that two runs can show that they asked the same."""
    return sha256_text(json.dumps([vars(item) for item in items], sort_keys=True, default=list))


def _item(row: dict[str, Any], where: str, number: int) -> Item:
    identity = row_id(row, number)
    conversation = conversation_in(row)
    if conversation is not None:
        messages = check_messages(conversation, where)
        if messages[-1]["role"] != "user":
            raise DataError(
                f"{where}: the conversation ends with the assistant, wanted a user message last "
                "(`transcript: true` reads finished conversations)"
            )
        return Item(identity, messages, reference_answer(_given(row, "answer")))
    question = _text(row, ("question", "problem", "prompt", "Question"), where)
    asked = lettered(row, question, identity, where)
    if asked is None:
        answer = _final_answer(row)
        given = _given(row, "answer") or _given(row, "solution")
        if answer is None and (given or "question" in row or "problem" in row):
            raise DataError(
                f"{where}: no final answer in it, wanted `answer` (alone or after ####) or a \\boxed{{}} solution"
            )
        asked = shown_in(question, answer) if answer is not None else None
        if asked is None:
            return Item(identity, (user(question),), answer)
    check_text(asked.text, where)
    return Item(identity, (user(asked.text),), asked.letter, options=asked.options)


def _instructed(item: Item, instruction: str) -> Item:
    last = item.messages[-1]["content"]
    return replace(item, messages=(*item.messages[:-1], user(f"{last}\n\n{instruction}")))


def _given(row: dict[str, Any], key: str) -> str:
    """A field as text; a number too, 0 among them. pandas writes NaN for what is missing."""
    value = row.get(key)
    return "" if value is None or value != value else str(value)


def _final_answer(row: dict[str, Any]) -> str | None:
    return reference_answer(_given(row, "answer")) or reference_answer(_given(row, "solution"))


def _text(row: dict[str, Any], keys: Sequence[str], where: str) -> str:
    for key in keys:
        if isinstance(row.get(key), str) and row[key].strip():
            check_text(row[key], f"{where}: `{key}`")
            return row[key]
    raise DataError(
        f"{where}: no {' or '.join(f'`{key}`' for key in keys)} with text in it (has {', '.join(row) or 'nothing'})"
    )


def _check_ids(path: Path, ids: list[str]) -> None:
    if not ids:
        raise DataError(f"{path}: no rows in it")
    seen: set[str] = set()
    for identity in ids:
        if identity in seen:
            raise DataError(f"{path}: the id {identity!r} stands twice")
        seen.add(identity)
