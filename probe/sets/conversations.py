"""The forms in which a row holds a conversation, and what makes one sound.

A row may hold `messages` (or `conversation`, `conversations`, `turns`) with {role, content} or, in the ShareGPT form,
{from, value}; `prompt` with a list of messages (HealthBench) or with {messages} (CoVal); or `history` with
{user, bot} pairs (MT-Bench-101). Other names for the roles are read: human, gpt, model, developer and the like.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probe.errors import DataError

Message = dict[str, str]

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model"), "assistant"),
}
_KEYS = ("messages", "conversation", "conversations", "turns")
_IDS = ("id", "question_id", "prompt_id", "key", "conversation_id", "Record ID")


def row_id(row: dict[str, Any], number: int) -> str:
    """The row's own id, else the number of its line."""
    return str(next((row[key] for key in _IDS if row.get(key) is not None), number))


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def conversation_in(row: dict[str, Any]) -> Any | None:
    """The conversation of a row with its roles in our names, not checked yet; None where the row holds none.

    A list of plain strings is what MT-Bench asks one after the other: only the first needs no answer before it.
    """
    for key in _KEYS:
        if (key == "messages" and key in row) or (isinstance(row.get(key), list) and row[key]):
            return _first_or_all(row[key], strings=key != "messages")
    prompt = row.get("prompt")
    if isinstance(prompt, dict) and "messages" in prompt:
        return together(renamed(prompt["messages"]))
    if isinstance(prompt, list):
        return together(_first_or_all(prompt, strings=True))
    history = row.get("history")
    if isinstance(history, list) and history and all(isinstance(pair, dict) and "user" in pair for pair in history):
        sides = [(role, pair.get(side)) for pair in history for role, side in (("user", "user"), ("assistant", "bot"))]
        return [{"role": role, "content": content} for role, content in sides]
    return None


def _first_or_all(found: Any, strings: bool) -> Any:
    if strings and found and all(isinstance(turn, str) for turn in found):
        return [user(found[0])]
    return renamed(found)


def renamed(messages: Any) -> Any:
    """Messages as {role, content} in our names; what is no message stays as it is, for the check to name."""
    if not isinstance(messages, list):
        return messages
    return [_renamed(message) if isinstance(message, dict) else message for message in messages]


def _renamed(message: dict[str, Any]) -> dict[str, Any]:
    if not message.keys() & {"content", "value", "tool_calls", "function_call"}:
        return message
    role = message.get("role", message.get("from"))
    content = message.get("content", message.get("value"))
    if isinstance(content, list) and content and all(_is_text(part) for part in content):
        content = "\n\n".join(part["text"] for part in content)
    return {"role": ROLES.get(role, role) if isinstance(role, str) else role, "content": content}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def together(messages: Any) -> Any:
    """All system messages joined into one at the start, and neighbours of one role into one, by a blank line.

    For the hub's prompts: CoVal's may hold several developer messages, HealthBench's roles are not known to alternate
    everywhere, and most templates take one system message, at the start.
    """
    if not isinstance(messages, list) or not all(is_message(message) for message in messages):
        return messages
    system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    turns = joined([message for message in messages if message["role"] != "system"])
    return [{"role": "system", "content": system}, *turns] if system else turns


def joined(messages: Sequence[Message]) -> list[Message]:
    """Neighbours of one role as one message, their texts set apart by a blank line."""
    found: list[Message] = []
    for message in messages:
        if found and found[-1]["role"] == message["role"]:
            found[-1] = {**message, "content": f"{found[-1]['content']}\n\n{message['content']}"}
        else:
            found.append(message)
    return found


def is_message(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("content"), str)


def check_messages(messages: Any, where: str) -> tuple[Message, ...]:
    """A conversation checked: an optional system message, then user and assistant in turn, none empty."""
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: an empty conversation, wanted a list of messages")
    turns = messages[1:] if isinstance(messages[0], dict) and messages[0].get("role") == "system" else messages
    if not turns:
        raise DataError(f"{where}: a conversation with a system message alone")
    for number, message in enumerate(messages, start=1):
        if not is_message(message):
            raise DataError(f"{where}: message {number} is no {{role, content}} with text")
        check_text(message["content"], f"{where}: message {number}")
    for position, message in enumerate(turns):
        number, wanted = position + 1 + len(messages) - len(turns), ("user", "assistant")[position % 2]
        if message.get("role") != wanted:
            raise DataError(
                f"{where}: roles do not alternate, message {number} is {message.get('role')!r}, wanted {wanted!r}"
            )
        if not message["content"].strip():
            raise DataError(f"{where}: message {number} ({wanted}) is empty")
    return tuple({"role": message["role"], "content": message["content"]} for message in messages)


def check_text(text: str, where: str) -> None:
    """Refuses half an emoji, which an export that cuts texts at a length leaves behind: no file can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise DataError(f"{where} holds half a character ({half}); was the text cut inside an emoji?") from None
