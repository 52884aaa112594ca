"""Finished conversations as probe items: the last user message is taken away, the answer before it stays as it is.

A support ticket, a sales call or a tutoring session ends with what a person really said. That message becomes the
item's `actual`, the assistant message before it its `reply`, and what stands before both the context; whatever comes
after the removed message goes with it.

Real exports are untidy, so three things are mended: neighbours of one role are joined by a blank line, messages
without text go, and system messages inside the conversation join the one at its start (those after the answer go).
A conversation that holds nothing to probe is left out, and *counted*: how many, why, and the first line of each kind
are said, and a file without one usable conversation is an error. What is no conversation at all is an error with
file and line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import DataError
from probe.files import read_jsonl
from probe.processes import say
from probe.sets.conversations import ROLES, Message, check_messages, conversation_in, joined, row_id

NO_REACTION = "no user message after an answer"
TOOLS = "a message of a tool"
NO_TEXT = "a message that is more than text"
_TOOL_ROLES = ("tool", "function", "function_call", "function_response", "observation")


@dataclass(frozen=True)
class Transcript:
    """One conversation taken apart: context (ends with the user), the answer to it, what the user then said."""

    context: tuple[Message, ...]
    reply: str
    actual: str
    opened: bool = False
    """The assistant spoke first; templates want a user message first, so these opening words are not in `context`."""


def take_apart(conversation: Any, where: str) -> Transcript | str:
    """A conversation as a transcript, or the reason why there is nothing in it to probe.

    Raises:
        DataError: it is no list of messages, or a role has a name that is not known.
    """
    if not isinstance(conversation, list) or not conversation:
        raise DataError(f"{where}: an empty conversation, wanted a list of messages")
    messages: list[Message] = []
    for number, message in enumerate(conversation, start=1):
        role, content = _checked(message, f"{where}: message {number}")
        if role in _TOOL_ROLES:
            return TOOLS
        if not isinstance(content, str | None):
            return NO_TEXT
        if content and content.strip():
            messages.append({"role": role, "content": content})
    turns = joined([message for message in messages if message["role"] != "system"])
    opened = bool(turns) and turns[0]["role"] == "assistant"
    turns = turns[opened:]
    last = max((place for place, turn in enumerate(turns) if turn["role"] == "user"), default=0)
    if last == 0:
        return NO_REACTION
    system = _system_before(messages, answer=last - 1 + opened)
    *context, reply, actual = check_messages([*system, *turns[: last + 1]], where)
    return Transcript(tuple(context), reply["content"].strip(), actual["content"].strip(), opened)


def _checked(message: Any, where: str) -> tuple[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
        raise DataError(f"{where} is no {{role, content}} and no {{from, value}}")
    if message["role"] not in (*ROLES, *_TOOL_ROLES):
        raise DataError(
            f"{where} has the role {message['role']!r}, wanted user or assistant (also read: {', '.join(ROLES)}); "
            "rename the roles in the file"
        )
    return message["role"], message["content"]


def _system_before(messages: Sequence[Message], answer: int) -> list[Message]:
    """The system messages before turn number `answer`, as one: what came later, its author had not seen."""
    texts, turn, speaker = [], -1, ""
    for message in messages:
        if message["role"] == "system":
            texts.append(message["content"])
        elif message["role"] != speaker:
            turn, speaker = turn + 1, message["role"]
        if turn == answer:
            break
    return [{"role": "system", "content": "\n\n".join(texts)}] if texts else []


def read_transcripts(path: Path) -> list[tuple[str, Transcript]]:
    """(id, transcript) of every usable conversation of a JSONL file; says what was left out.

    Raises:
        DataError: a row without a conversation (file:line), or a file in which none can be used.
    """
    found: list[tuple[str, Transcript]] = []
    left_out: dict[str, list[int]] = {}
    for number, row in read_jsonl(path):
        conversation = conversation_in(row)
        if conversation is None:
            raise DataError(
                f"{path}:{number}: no conversation in it, wanted `messages` with {{role, content}} or `conversations` "
                f"with {{from, value}} (has {', '.join(row) or 'nothing'})"
            )
        transcript = take_apart(conversation, f"{path}:{number}")
        if isinstance(transcript, str):
            left_out.setdefault(transcript, []).append(number)
        else:
            found.append((row_id(row, number), transcript))
    reasons = ", ".join(f"{len(lines)} with {why} (first: line {lines[0]})" for why, lines in left_out.items())
    if left_out and not found:
        raise DataError(f"{path}: no conversation that can be probed: {reasons}")
    if left_out:
        count = sum(map(len, left_out.values()))
        say(f"{path}: {count} of {count + len(found)} conversations left out: {reasons}")
    if opened := sum(transcript.opened for _, transcript in found):
        say(f"{path}: {opened} conversations open with the assistant; these opening words are not shown to the model")
    return found
