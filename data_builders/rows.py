"""The rows that training reads: `sft` with one row per conversation, replay included, and `rl` with one row per prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from nextturn.data_builders.numbers import states
from nextturn.data_builders.quality import holds
from nextturn.data_builders.tasks import Conversation
from nextturn.probe.command.errors import DataError
from nextturn.probe.data.messages import (
    Message,
    check_messages,
    check_text,
    conversation_in,
    plain,
    row_id,
    training_messages,
    user,
)
from nextturn.probe.data.tables import place, read_rows
from nextturn.probe.questions.simulation import Intent
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
        "problem": task.id.partition("~")[0] if task else conversation.id,
    }
    if task and task.template:
        row["story"] = task.template
    if conversation.doubts:
        row["doubts"] = list(conversation.doubts)
    return {**row, **conversation.row}


def shards(out: Path, view: str) -> list[Path]:
    """Return the files of one view ("sft", "rl", ...) of a finished build, in order.

    Raises:
        DataError: The directory is no finished build, or has no rows of this view.
    """
    if not (out / "manifest.json").is_file():
        state = "is not finished" if (out / "settings.json").is_file() else "is no data build"
        raise DataError(f"{out}: {state} (no manifest.json); build it with: nextturn data RECIPE --out {out}")
    files = sorted((out / view).glob("part-*.jsonl"))
    if not files:
        raise DataError(f"{out}: has no {view} rows; its recipe makes none, or its conversations gave none")
    return files


def load_sft_rows(out: Path) -> Iterator[dict[str, Any]]:
    """Yield all kept rows of a finished build, in order.

    Raises:
        DataError: The directory is no finished build, or a row is no conversation (file:line).
    """
    for path in shards(out, "sft"):
        yield from read_sft_rows(path)


_SHOWN = 5
"""Faults of a file that a message shows."""


def read_sft_rows(
    path: Path, columns: Mapping[str, str] | None = None, skipped: list[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file in any form of `probe.tables`, each with `messages` that end with the assistant.

    Args:
        columns: The row's own names of columns, see `training_messages`.
        skipped: Gets the fault of each row that is no conversation; None makes faults an error.

    Raises:
        DataError: Rows are no conversations, or have no assistant turn to learn. All are counted, and the first ones shown.
    """
    faults, good = [] if skipped is None else skipped, 0
    for number, row in read_rows(path):
        try:
            messages = training_messages(row, place(path, number), columns)
        except DataError as error:
            faults.append(str(error))
            continue
        good += 1
        yield {**row, "messages": list(messages)}
    if not faults or (skipped is not None and good):
        return
    if len(faults) == 1:
        raise DataError(faults[0])
    raise DataError(f"{path}: {len(faults)} of {len(faults) + good} rows cannot be used: {first_faults(faults, path)}")


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
# full answer is discussion of it, whose result is known. The policy sees nothing but `prompt`.

_Text = Annotated[str, StringConstraints(pattern=r"\S")]


@dataclass(frozen=True)
class RlRow:
    """A prompt for reinforcement learning.

    Attributes:
        kind: The conversation's kind, such as "underspecified"; "" if the file does not say it.
        turn: Number of assistant turns in the prompt.
        prompt: Messages; the last one is the user's.
        problem: The whole problem, which a simulated user knows.
        hidden: Texts of the problem that nobody has said yet.
        clause, thing, reveal, short: The withheld fact, as in `data_builders.tasks.Gap`; "" if nothing is withheld.
        ask: The reply of the data that asks for the fact.
        shards: Pieces of the problem that the user tells one by one, one in each turn.
        columns: The other columns of the file, for rewards.
    """

    id: _Text
    kind: str
    turn: Annotated[int, Field(ge=0, strict=True)]
    prompt: tuple[Message, ...]
    answer: str
    problem: _Text
    solution: str = ""
    hidden: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    clause: str = ""
    thing: str = ""
    reveal: str = ""
    short: str = ""
    ask: str = ""
    shards: tuple[_Text, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def withholds(self) -> bool:
        """Whether a needed fact is still missing at this point of the conversation."""
        return bool(self.hidden or self.clause or self.thing)

    @property
    def hidden_sentences(self) -> tuple[str, ...]:
        """The sentences of the problem that state a hidden text."""
        parts = rough_sentences(self.problem)
        return tuple(part for part in parts if any(states(part, value) for value in self.hidden))

    @property
    def intent(self) -> Intent:
        """What a simulated user of this row knows and wants. A withheld fact is revealed by the row's own sentence, or by
        those of the problem."""
        copied = ("id", "problem", "answer", "clause", "thing", "short", "ask", "hidden", "shards", "columns")
        return Intent(
            **{name: getattr(self, name) for name in copied},
            wish="hint" if self.kind == "hint" else "result",
            reveal=self.reveal or " ".join(self.hidden_sentences),
        )


def rl_rows(conversation: Conversation) -> Iterator[RlRow]:
    """Yield the prompts of a conversation; none for replay rows and for conversations that give no prompts."""
    task, gap = conversation.task, conversation.gap
    if task is None:
        return
    for position in range(1, len(conversation.messages), 2):
        turn, before = position // 2, conversation.messages[:position]
        reply = conversation.messages[position]["content"]
        withheld: dict[str, Any] = {}
        if gap is not None and position <= conversation.reveal_at:
            stated = not gap.value or any(holds(message["content"], gap.value) for message in before)
            withheld = {name: getattr(gap, name) for name in ("clause", "thing", "reveal", "short")}
            withheld |= {"hidden": () if stated else (gap.value,), "ask": reply}
        yield RlRow(
            f"{conversation.id}-{turn}", conversation.kind, turn, tuple(map(plain, before)), task.answer, task.question,
            task.boxed_solution or task.solution, shards=conversation.shards[turn:], **withheld,
        )  # fmt: skip
        if boxed(reply):
            return


def load_rl_rows(path: Path) -> Iterator[RlRow]:
    """Yield the RL rows of a finished build, or of a JSONL file.

    Raises:
        DataError: There are no rows, the build is not finished, or a row is not valid (file:line).
    """
    ids: set[str] = set()
    for part in shards(path, "rl") if path.is_dir() else [path]:
        for number, fields in read_rows(part):
            row = _rl_row(fields, place(part, number), number)
            if row.id in ids:
                raise DataError(f"{place(part, number)}: the id {row.id!r} is used twice")
            ids.add(row.id)
            yield row


_VALIDATOR = TypeAdapter(RlRow)


def _rl_row(fields: dict[str, Any], where: str, number: int) -> RlRow:
    """Return a prompt: `prompt` or `messages` that end with the user, or a `question` as text; all other columns may be missing."""
    of_prompt = ("prompt", "messages", "question")
    given = next((fields[key] for key in of_prompt if fields.get(key) is not None), None)
    prompt = check_messages([user(given)] if isinstance(given, str) else conversation_in({"prompt": given}), where)
    if prompt[-1]["role"] != "user":
        raise DataError(f"{where}: the prompt ends with the assistant, expected a user message last")
    said = "\n\n".join(message["content"] for message in prompt if message["role"] == "user")
    answer = "" if fields.get("answer") is None else str(fields["answer"])
    known = {
        "turn": sum(message["role"] == "assistant" for message in prompt), "kind": "", "problem": said, **fields, "id": row_id(fields, number), "prompt": list(map(plain, prompt)),
        "answer": (reference_answer(answer) or answer) if "####" in answer else answer,
        "columns": {key: value for key, value in fields.items() if key not in (*of_prompt, *RlRow.__dataclass_fields__)},
    }  # fmt: skip
    for name, value in known.items():
        if isinstance(value, str):
            check_text(value, f"{where}: `{name}`")
    try:
        row = _VALIDATOR.validate_python(known)
    except ValidationError as error:
        problem = error.errors()[0]
        name, given = ".".join(map(str, problem["loc"])), repr(problem["input"])[:60]
        raise DataError(f"{where}: `{name}`: {problem['msg']}; given {given}") from None
    if row.withholds and not row.intent.reveal:
        raise DataError(
            f"{where}: a fact is withheld (`hidden`, `clause` or `thing`), but nothing states it; expected `reveal`, a "
            "sentence of the user, or in `hidden` a text of `problem`"
        )
    return row
