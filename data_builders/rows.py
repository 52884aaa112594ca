"""The rows that training reads: `sft` with one row per conversation, replay included, and `rl` with one row per prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nextturn.data_builders.numbers import states
from nextturn.data_builders.quality import holds
from nextturn.data_builders.tasks import Conversation
from nextturn.probe.command.errors import DataError
from nextturn.probe.data.messages import (
    asked_in,
    check_text,
    check_with_columns,
    conversation_in,
    plain,
    refuse_marks,
    row_id,
    training_messages,
    unread_columns,
)
from nextturn.probe.data.tables import is_saved, place, read_rows
from nextturn.probe.questions.simulation import Fact, PromptRow
from nextturn.probe.text.grading import boxed, reference_answer
from nextturn.probe.text.words import rough_sentences


def sft_row(conversation: Conversation) -> dict[str, Any]:
    """Return a row of OUT/sft. All rows about one problem have the same `problem`."""
    task = conversation.task
    row: dict[str, Any] = {
        "id": conversation.id,
        "messages": list(conversation.messages),
        "kind": conversation.kind,
        "source": conversation.source,
        "answer": conversation.answer,
        "problem": task.id.partition("~")[0] if task else conversation.id.removesuffix("-sharded"),
    }
    if task and task.template:
        row["story"] = task.template
    if conversation.doubts:
        row["doubts"] = list(conversation.doubts)
    return {**row, **conversation.row}


def view_rows(path: Path, view: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield (file:line, number, row) for each row of one view ("sft", "rl" or "preference") of a finished build, or of a file in any
    form of `probe.data.tables`.

    Raises:
        DataError: There is no such file, the directory is no finished build, or it has no rows of this view.
    """
    files = [path]
    if path.is_dir() and not is_saved(path):
        if not (path / "manifest.json").is_file():
            state = "is not finished" if (path / "settings.json").is_file() else "is no data build"
            raise DataError(f"{path}: {state} (no manifest.json); build it with: nextturn data RECIPE --out {path}")
        files = sorted((path / view).glob("part-*.jsonl"))
        if not files:
            raise DataError(f"{path}: has no {view} rows; its recipe makes none, or its conversations gave none")
    for file in files:
        for number, row in read_rows(file):
            yield place(file, number), number, row


_SHOWN = 5
"""Faults of a file that a message shows."""


def load_sft_rows(
    path: Path,
    columns: Mapping[str, str] | None = None,
    skipped: list[str] | None = None,
    unread: set[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the kept rows of a finished build or a file, each with `messages` that end with the assistant.

    Args:
        columns: The row's own names of columns, see `training_messages`.
        skipped: Gets the fault of each row that is no conversation; None makes faults an error.
        unread: Gets the names of columns that are not read.

    Raises:
        DataError: The build is not finished, or rows are no conversations, or have no assistant turn to learn. All are counted,
            and the first ones shown.
    """
    faults, good = [] if skipped is None else skipped, 0
    for where, _, row in view_rows(path, "sft"):
        try:
            messages = training_messages(row, where, columns)
        except DataError as error:
            faults.append(str(error))
            continue
        good += 1
        if unread is not None:
            unread |= unread_columns(row, columns or {})
        yield {**row, "messages": list(messages)}
    if not faults or (skipped is not None and good):
        return
    skip = "; in training `data.on_bad_row: skip` leaves such rows out" if skipped is None and good else ""
    if len(faults) == 1:
        raise DataError(f"{faults[0]}{skip}")
    raise DataError(
        f"{path}: {len(faults)} of {len(faults) + good} rows cannot be used: {first_faults(faults, path)}{skip}"
    )


def first_faults(faults: Sequence[str], path: Path) -> str:
    """Return the first faults of a file's rows on one line. A fault that many rows have is written once."""
    rows: dict[str, list[str]] = {}
    for fault in faults:
        row, _, what = fault.removeprefix(str(path)).lstrip(": ").partition(": ")
        rows.setdefault(what, []).append(row.removeprefix("row "))
    shown = [
        f"row {', '.join(found[:_SHOWN])}{f' and {len(found) - _SHOWN} more' if len(found) > _SHOWN else ''}: {what}"
        for what, found in list(rows.items())[:_SHOWN]
    ]
    rest = len(faults) - sum(map(len, list(rows.values())[:_SHOWN]))
    return "; ".join(shown) + (f"; and {rest} more" if rest else "")


# --- The rl view: a conversation so far, and everything that a reward or a simulated user needs to continue it.
#
# A conversation gives one row per assistant turn, up to and including the first turn that boxes an answer. What follows a
# full answer is discussion of it, whose result is known.

_OF_FACT = ("clause", "thing", "reveal", "short", "ask")
_COLUMNS = ("id", "kind", "turn", "prompt", "answer", "problem", "solution", "hidden", *_OF_FACT, "shards")


def rl_rows(conversation: Conversation) -> Iterator[PromptRow]:
    """Yield the prompts of a conversation; none for replay rows and for conversations that give no prompts."""
    task, fact = conversation.task, conversation.fact
    if task is None:
        return
    for position in range(1, len(conversation.messages), 2):
        turn, before = position // 2, conversation.messages[:position]
        reply = conversation.messages[position]["content"]
        missing = replace(fact, ask=reply) if fact.short and position <= conversation.reveal_at else Fact()
        stated = not missing.value or any(holds(message["content"], missing.value) for message in before)
        yield PromptRow(
            f"{conversation.id}-{turn}", task.question, task.answer, tuple(map(plain, before)), conversation.kind, turn,
            task.boxed_solution or task.solution, () if stated else (missing.value,), missing, conversation.shards[turn:],
        )  # fmt: skip
        if boxed(reply):
            return


def rl_columns(row: PromptRow) -> dict[str, Any]:
    """Return a row of OUT/rl, which `load_rl_rows` reads."""
    return {name: getattr(row.fact if name in _OF_FACT else row, name) for name in _COLUMNS}


def load_rl_rows(path: Path) -> Iterator[PromptRow]:
    """Yield the RL rows of a finished build, or of a JSONL file.

    Raises:
        DataError: There are no rows, the build is not finished, or a row is not valid (file:line).
    """
    ids: set[str] = set()
    for where, number, fields in view_rows(path, "rl"):
        row = _rl_row(fields, where, number)
        if row.id in ids:
            raise DataError(f"{where}: the id {row.id!r} is used twice")
        ids.add(row.id)
        yield row


_VALIDATOR = TypeAdapter(PromptRow)


def _rl_row(fields: dict[str, Any], where: str, number: int) -> PromptRow:
    """Return a prompt: `prompt` or `messages` that end with the user, or a `question` as text; all other columns may be missing."""
    of_prompt = ("prompt", "messages", "question")
    name = next((key for key in of_prompt if fields.get(key) is not None), "prompt")
    given = fields.get(name)
    refuse_marks(fields, where)
    messages = (
        asked_in(fields, name, where) if isinstance(given, str) else conversation_in({"prompt": given}, marks=True)
    )
    prompt = check_with_columns(messages, fields, where)
    if prompt[-1]["role"] != "user":
        raise DataError(f"{where}: the prompt ends with the assistant, expected a user message last")
    said = "\n\n".join(message["content"] for message in prompt if message["role"] == "user")
    answer = "" if fields.get("answer") is None else str(fields["answer"])
    known = {
        "turn": sum(message["role"] == "assistant" for message in prompt), "kind": "", "problem": said, **fields, "id": row_id(fields, number),
        "answer": (reference_answer(answer) or answer) if "####" in answer else answer,
    }  # fmt: skip
    for name, value in known.items():
        if isinstance(value, str):
            check_text(value, f"{where}: `{name}`")
    try:
        of_row = {name: known[name] for name in _COLUMNS if name in known and name not in _OF_FACT}
        fact = {name: known[name] for name in _OF_FACT if name in known}
        columns = {name: value for name, value in fields.items() if name not in (*of_prompt, *_COLUMNS)}
        row = _VALIDATOR.validate_python({**of_row, "prompt": prompt, "fact": fact, "columns": columns})
    except ValidationError as error:
        problem = error.errors()[0]
        name, given = ".".join(map(str, problem["loc"])).removeprefix("fact."), repr(problem["input"])[:60]
        raise DataError(f"{where}: `{name}`: {problem['msg']}; given {given}") from None
    if not row.withholds or row.fact.reveal:
        return row
    # The sentences of the problem reveal what it hides.
    parts = rough_sentences(row.problem)
    reveal = " ".join(part for part in parts if any(states(part, value) for value in row.hidden))
    if not reveal:
        raise DataError(
            f"{where}: a fact is withheld (`hidden`, `clause` or `thing`), but nothing states it; expected `reveal`, a "
            "sentence of the user, or in `hidden` a text of `problem`"
        )
    return replace(row, fact=replace(row.fact, reveal=reveal))
