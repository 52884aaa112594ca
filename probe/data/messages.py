"""The forms in which a row holds a conversation, the checks of a conversation, and finished conversations as transcripts.

A row may hold `messages` (or `conversation`, `conversations`, `turns`) with {role, content} or, in the ShareGPT form,
{from, value}; or `prompt` with a list of messages (HealthBench) or with {messages} (CoVal). Other names for the roles are read:
human, gpt, model, developer and the like.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import DataError
from nextturn.probe.command.terminal import say
from nextturn.probe.data.tables import each_row, parsed, renamed_columns

Message = dict[str, Any]
"""{role, content}, both text. An assistant's message may have `loss: False`: it is shown and not trained on. In training a message
may also call tools (`tool_calls`) or hold what a tool returned (role "tool"), and the first one may have the row's `tools`."""
_LOSS_MARKS = ("loss", "train", "training", "trainable", "weight")
"""Keys that say whether a message is trained on: ours, axolotl's and others' (true or false), and OpenAI's (1 or 0)."""
_OF_TOOLS = ("tool_calls", "tool_call_id", "name")
"""Keys of a message that calls a tool (OpenAI's and transformers' form), or that holds what a tool returned."""
THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Keys of the thoughts of an assistant's message, in rows and in templates. A checked message has the first."""
_SYSTEM_COLUMNS = ("system", "system_prompt")
_TOOL_COLUMNS = ("tools", "functions")
_MARKS = "write `loss: false` into the messages that carry no loss, and take this key out"
_ONLY_TEXT = "only text is trained: leave such rows out, or the column"
_OF_MARKS = ("mask", "masked", "is_masked", "loss_mask", "loss_weight", "loss_scale", "train_detail")
_REFUSED = dict.fromkeys(_OF_MARKS, _MARKS)
_REFUSED |= dict.fromkeys(("image", "images", "videos", "audios"), _ONLY_TEXT)
"""Keys of messages and columns of rows that change what other trainers learn from a row, and that are not read: what to do."""
ROLES = {"system": "system", "developer": "system", "user": "user", "human": "user"}
ROLES |= dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model"), "assistant")
KEYS = ("messages", "conversation", "conversations", "turns")
_NOTHING: tuple[Any, ...] = (None, "", [], {})
IDS = ("id", "question_id", "prompt_id", "key", "conversation_id", "task_id", "Record ID")
_OF_MESSAGES = (
    *("role", "from", "content", "value", "refusal", "function_call"),
    *(*_OF_TOOLS, *_LOSS_MARKS, *_TOOL_COLUMNS, *THOUGHT_FIELDS, *IDS),
)
"""Keys of messages that are read, and ids."""


# How models mark their thoughts: what opens them, what ends them. gpt-oss writes its answer into another channel instead.
_THOUGHTS = (
    (r"(?i:<think(?:ing)?>)", r"(?i:</think(?:ing)?>)"),  # Qwen, DeepSeek, GLM, Nemotron and others
    (r"\[THINK\]", r"\[/THINK\]"),  # Magistral
    (r"<seed:think>", r"</seed:think>"),  # Seed-OSS
    (r"◁think▷", r"◁/think▷"),  # Kimi-VL
    (r"<\|channel>thought", r"<channel\|>"),  # Gemma 4
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),  # Apertus
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>(?:\s*<\|START_RESPONSE\|>)?"),  # Command A Reasoning
    (r"<\|channel\|>(?:analysis|commentary)", r"<\|channel\|>final<\|message\|>"),  # gpt-oss
)
THINKING_STARTS, THINKING_ENDS = (re.compile("|".join(marks)) for marks in zip(*_THOUGHTS, strict=True))
_MAY_THINK = re.compile(r"[<\[◁]")


def after_thinking(text: str) -> str | None:
    """Return what a reply says after its last thought, or None if its thinking never ends."""
    if not _MAY_THINK.search(text):  # most texts; builders ask this about millions
        return text
    said = THINKING_ENDS.split(text)[-1]
    return None if THINKING_STARTS.search(said) else said


def has_thoughts(message: Message) -> bool:
    """Return True if an assistant's message has thoughts, in a field or in its text."""
    return bool(message.get(THOUGHT_FIELDS[0])) or bool(THINKING_ENDS.search(message["content"]))


def row_id(row: dict[str, Any], default: int | str, keys: Sequence[str] = IDS) -> str:
    """Return the row's own id, else `default`, such as its line number. An empty cell or pandas' NaN is no id."""
    given = (row.get(key) for key in keys)
    return str(next((each for each in given if each not in (None, "") and each == each), default))


def user(content: str) -> Message:
    """Return a message of the user."""
    return {"role": "user", "content": content}


def with_system(messages: tuple[Message, ...], system_prompt: str | None) -> tuple[Message, ...]:
    """Return the messages with `system_prompt` in place of their own system message, if there is one."""
    if system_prompt is None:
        return messages
    own = messages[1:] if messages[0]["role"] == "system" else messages
    tools = {"tools": messages[0]["tools"]} if messages[0].get("tools") else {}
    return ({"role": "system", "content": system_prompt, **tools}, *own)


def assistant(content: str) -> Message:
    """Return a message of the assistant."""
    return {"role": "assistant", "content": content}


def said_by(messages: Iterable[Message], role: str) -> list[str]:
    """Return the texts of the messages of a role."""
    return [message["content"] for message in messages if message["role"] == role]


def conversation_in(row: dict[str, Any], marks: bool = False) -> Any | None:
    """Return the conversation of a row with roles renamed to ours, not checked yet, or None if the row holds none.

    A list of strings holds the questions that MT-Bench asks one after the other. Only the first needs no answer before it.

    Args:
        marks: See `renamed`.
    """
    for key in KEYS:
        if (key == "messages" and key in row) or (isinstance(row.get(key), list) and row[key]):
            return _first_or_all(row[key], key != "messages", marks)
    prompt = row.get("prompt")
    if isinstance(prompt, dict) and "messages" in prompt:
        return together(renamed(prompt["messages"], marks))
    if isinstance(prompt, list):
        return together(_first_or_all(prompt, True, marks))
    return None


_EXCHANGES = (("prompt", "completion"), ("question", "answer"), ("instruction", "output"))
"""Columns of a user's message and its answer."""


_OF_EXCHANGES = ("input", "context", "history")
"""Columns beside the two of an exchange: text after the question, and (in Alpaca's form) earlier exchanges as pairs."""


def _forms(row: dict[str, Any], columns: Mapping[str, str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the columns with a whole conversation, and the pairs of columns with an exchange; the first one is read."""
    whole = [key for key in KEYS if key in columns or isinstance(row.get(key), list)]
    if columns.keys() & {"prompt", "completion"}:  # the file's own conversation is not the one that is meant
        whole = []
    return whole, [pair for pair in _EXCHANGES if all(row.get(name) is not None for name in pair)]


def unread_columns(row: dict[str, Any], columns: Mapping[str, str]) -> set[str]:
    """Return the columns with a value that `training_messages` does not read, apart from ids."""
    named = renamed_columns(row, columns, "row")
    whole, sides = _forms(named, columns)
    form = whole[:1] or [*sides[0], *_OF_EXCHANGES] if whole or sides else ["prompt", "history"]
    tools = [name for name in _TOOL_COLUMNS if named.get(name)][:1]
    read = {*form, *columns, *columns.values(), *_SYSTEM_COLUMNS, *IDS, "intent", "intent_first"}
    read |= {name for name in tools if _tools_in(named[name])}
    unread = {name for name, value in row.items() if name not in read and value not in _NOTHING}
    return unread | {
        f"{key} of messages"
        for message in _messages_in({name: named.get(name) for name in form})
        for key, value in message.items()
        if key not in _OF_MESSAGES and value not in _NOTHING
    }


def training_messages(row: dict[str, Any], where: str, columns: Mapping[str, str] | None = None) -> tuple[Message, ...]:
    """Return the checked conversation of a row to train on, in any form that `conversation_in` reads, or as two columns:
    prompt and completion, question and answer, instruction (with input) and output; a column `system` comes first.

    Args:
        columns: Names of the row's own columns, such as {"messages": "chat"} or {"prompt": "ask", "completion": "say"}.

    Raises:
        DataError: There is no conversation in the row, or it has a fault.
    """
    columns = columns or {}
    row = renamed_columns(row, columns, where)
    refuse_marks(row, where)
    if unwanted := [key for key in ("label", "kto_tag") if row.get(key) is False]:  # marks of KTO
        raise DataError(
            f"{where}: `{unwanted[0]}: false` marks a reply that is not wanted; leave these rows out, train on pairs (DPO), or take the "
            "column out if it means something else"
        )
    whole, sides = _forms(row, columns)
    given = row[whole[0]] if whole else _exchange(row, sides[0], where) if sides else None
    messages = renamed(given, marks=True) if whole or sides else conversation_in(row, marks=True)
    if messages is None:
        raise _no_conversation(row, where, "or `prompt` and `completion`; `data.columns` names other columns")
    found = check_with_columns(messages, row, where)
    if found[-1]["role"] != "assistant":
        raise DataError(f"{where}: the conversation ends with the {found[-1]['role']}, expected an assistant turn last")
    if not any(message["role"] == "assistant" and learned(message) for message in found):
        raise DataError(f"{where}: every assistant turn has `loss: false`, so there is nothing to learn")
    return found


def _no_conversation(row: dict[str, Any], where: str, advice: str) -> DataError:
    has = f"no conversation in it (has {', '.join(row) or 'nothing'})"
    forms = "`messages` with {role, content} or `conversations` with {from, value}"
    return DataError(f"{where}: {has}, expected {forms}; {advice}")


def _exchange(row: dict[str, Any], names: tuple[str, str], where: str) -> list[Any]:
    """Return a user's side and its answer, each a text or messages, as messages."""
    asked, answered = asked_in(row, names[0], where), row[names[1]]
    answered = assistant(answered) if isinstance(answered, str) else answered
    return [*asked, *(answered if isinstance(answered, list) else [answered])]


def asked_in(row: dict[str, Any], name: str, where: str) -> list[Any]:
    """Return the prompt in a column, a text or messages, as messages, with the columns `input`, `context` and `history` beside it.
    A prompt's own answers carry no loss.

    Raises:
        DataError: `history` holds no pairs, or there are such columns beside messages.
    """
    asked = row[name]
    before, more = [], [row[name] for name in ("input", "context") if row.get(name)]
    for pair in row.get("history") or ():
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise DataError(f"{where}: `history` holds {pair!r:.60}, expected pairs of a question and its answer")
        before += [user(pair[0]), assistant(pair[1])]
    if (before or more) and not (isinstance(asked, str) and all(isinstance(text, str) for text in more)):
        names_given = ", ".join(given for given in _OF_EXCHANGES if row.get(given))
        raise DataError(
            f"{where}: {names_given} beside `{name}`, expected texts (history: pairs of texts); leave such columns out, or put "
            "all into `messages`"
        )
    if isinstance(asked, str):
        return [*before, user("\n\n".join([asked, *(text for text in more if text.strip())]))]
    return [_without_loss(message) for message in (asked if isinstance(asked, list) else [asked])]


def _without_loss(message: Any) -> Any:
    """Return a message of a prompt; an assistant's is not trained on, as in trl."""
    if not isinstance(message, dict) or ROLES.get(str(message.get("role", message.get("from")))) != "assistant":
        return message
    return {**{key: value for key, value in message.items() if key not in _LOSS_MARKS}, "loss": False}


def refuse_marks(row: dict[str, Any], where: str) -> None:
    """Raise DataError if a row or a message of it has a key that changes what other trainers learn from it."""
    for part in (row, *_messages_in(row)):
        for key in _REFUSED.keys() & part.keys():
            if part[key] not in _NOTHING:
                raise DataError(f"{where}: `{key}: {part[key]!r:.40}` is not read; {_REFUSED[key]}")


def _messages_in(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages in the columns of a row, in any form and not checked."""
    lists = [value.get("messages") if isinstance(value, dict) else value for value in row.values()]
    found = [message for each in lists if isinstance(each, list) for message in each]
    return [message for message in found if isinstance(message, dict) and message.keys() & {"role", "from"}]


def check_with_columns(messages: Any, row: dict[str, Any], where: str) -> tuple[Message, ...]:
    """Return the checked conversation of a row with the text of its column `system` or `system_prompt` as the system message, and
    with the tools of its column `tools` or `functions`, or of its system message.

    Raises:
        DataError: See `check_messages`; or there are two different system messages, or tools that cannot be read.
    """
    first = messages[0] if isinstance(messages, list) and messages and isinstance(messages[0], dict) else {}
    given = {name: row[name] for name in _SYSTEM_COLUMNS if row.get(name) not in _NOTHING}
    if unread := [name for name in given if not isinstance(given[name], str)]:
        raise DataError(f"{where}: `{unread[0]}` is {given[unread[0]]!r:.60}, expected a text")
    texts = {name: text.strip() for name, text in given.items() if text.strip()}
    if texts and first.get("role") == "system":
        texts["messages"] = str(first.get("content")).strip()
    if len({*texts.values()}) > 1:
        raise DataError(f"{where}: different system messages in {', '.join(texts)}, expected one; leave out the others")
    if texts and first and "messages" not in texts:
        messages = [{"role": "system", "content": next(iter(texts.values()))}, *messages]
    found = check_messages(messages, where, with_tools=True)
    held = (of.get(name) for of in (row, first) for name in _TOOL_COLUMNS)
    described = next((tools for tools in held if tools not in _NOTHING), None)
    if tools := _tools_in(described):
        return ({**found[0], "tools": tools}, *found[1:])
    if described is not None and any(message.get("tool_calls") for message in found):
        raise DataError(
            f"{where}: `tools` is {described!r:.60}, expected a list of {{type, function: {{name, parameters}}}} or its JSON text"
        )
    return found


def _tools_in(given: Any) -> list[Any]:
    """Return the descriptions of tools in a column, a list or JSON text; [] if it holds something else."""
    tools = [_as_tool(parsed(tool)) for tool in listed] if isinstance(listed := parsed(given), list) else []
    return tools if all(map(_is_call, tools)) else []


def _as_tool(tool: Any) -> Any:
    """Return the description of a tool in OpenAI's form, without nulls, of which Arrow puts one where another row has a value."""
    tool = _without_nulls(tool)
    is_bare = isinstance(tool, dict) and "name" in tool and "function" not in tool
    return {"type": "function", "function": tool} if is_bare else tool


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _first_or_all(found: Any, strings: bool, marks: bool) -> Any:
    if strings and found and all(isinstance(turn, str) for turn in found):
        return [user(found[0])]
    return renamed(found, marks)


def renamed(messages: Any, marks: bool = False) -> Any:
    """Return messages as {role, content} with our names of roles. Anything else stays as it is, for the check to report.

    Args:
        marks: Keep what only training reads: whether a message is trained on, its thoughts, and a system message's tools.
    """
    return [_renamed(message, marks) for message in messages] if isinstance(messages, list) else messages


_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def _renamed(message: Any, marks: bool) -> Any:
    if not isinstance(message, dict) or not message.keys() & {"content", "value", "tool_calls", "function_call"}:
        return message
    role = "function_call" if message.get("function_call") else message.get("role", message.get("from"))
    content = message.get("content", message.get("value"))
    if isinstance(content, list) and content and all(map(_text_of, content)):
        content = "\n\n".join(map(_text_of, content))
    if not content and isinstance(message.get("refusal"), str):
        content = message["refusal"]
    calls = {key: message[key] for key in _OF_TOOLS if message.get(key)}  # null where `datasets` wrote the file
    if "tool_calls" in calls:
        listed = parsed(calls["tool_calls"])  # a table holds them as JSON text
        calls["tool_calls"] = [_with_arguments(call) for call in listed] if isinstance(listed, list) else listed
    if content is None and calls:
        content = ""
    role = ROLES.get(role, role) if isinstance(role, str) else role
    kept = {key: message[key] for key in (*_LOSS_MARKS, *_TOOL_COLUMNS) if key in message} if marks else {}
    given = [message[key] for key in THOUGHT_FIELDS if message.get(key)] if marks else []
    thoughts = [text.strip() if isinstance(text, str) else text for text in given]
    thought = thoughts[0] if thoughts and all(each == thoughts[0] for each in thoughts) else thoughts
    # The thoughts in a field may stand in the text, too.
    if thought and not (isinstance(thought, str) and THINKING_ENDS.search(str(content)) and thought in str(content)):
        kept["reasoning_content"] = thought
    return {"role": role, "content": content, **calls, **kept}


def _with_arguments(call: Any) -> Any:
    """Return a tool call with its arguments as a mapping, as templates want them; OpenAI writes them as JSON text, or "" for none."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    read = {**function, "arguments": parsed(function.get("arguments") or "{}")}
    return _without_nulls({**call, "function": read} if "function" in call else read)


def _text_of(part: Any) -> str:
    """Return the text of a part of a message, "" if it is no text. A refusal is the reply."""
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("refusal" if kind == "refusal" else "text") if kind in _TEXT_PARTS else None
    return text if isinstance(text, str) else ""


def together(messages: Any) -> Any:
    """Join all system messages into one at the start, and neighbours of one role into one, separated by a blank line.

    For the hub's prompts: CoVal's may hold several developer messages, HealthBench's roles are not known to alternate
    everywhere, and most templates take one system message, at the start.
    """
    if not isinstance(messages, list) or not all(is_message(message) for message in messages):
        return messages
    system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    found: list[Message] = [{"role": "system", "content": system}] if system else []
    for message in messages:
        if found and found[-1]["role"] == message["role"] != "system":
            found[-1] = {**message, "content": f"{found[-1]['content']}\n\n{message['content']}"}
        elif message["role"] != "system":
            found.append(message)
    return found


def tools_as_text(messages: Iterable[Message]) -> list[Message]:
    """Return a conversation with the calls and results of tools as text of the assistant's turn, for templates without tools."""
    found = []
    for message in messages:
        calls = [json.dumps(call.get("function", call), ensure_ascii=False) for call in message.get("tool_calls") or ()]
        role = "assistant" if message["role"] == "tool" else message["role"]
        found.append({"role": role, "content": "\n".join(filter(None, [message["content"], *calls]))})
    return together(found)


def is_message(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("content"), str)


def check_messages(messages: Any, where: str, with_tools: bool = False) -> tuple[Message, ...]:
    """Return a checked conversation: an optional system message, then user and assistant in turn, none empty.

    `role` and `content` of the messages are kept, and `loss: False` of an assistant's message that is not trained on.

    Args:
        with_tools: An assistant's message may have `tool_calls` instead of text. One or more messages of the role tool follow it,
            and then the assistant again.
    """
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: an empty conversation, expected a list of messages")
    turns = messages[1:] if isinstance(messages[0], dict) and messages[0].get("role") == "system" else messages
    if not turns:
        raise DataError(f"{where}: a conversation with a system message alone")
    for number, message in enumerate(messages, start=1):
        if not is_message(message):
            no_text = isinstance(message, dict) and "content" in message
            fault = "has no text: its content is no string" if no_text else "is no {role, content} and no {from, value}"
            raise DataError(f"{where}: message {number} {fault}")
        check_text(message["content"], f"{where}: message {number}")
        if not isinstance(thoughts := message.get(THOUGHT_FIELDS[0]) or "", str):
            raise DataError(f"{where}: message {number} has the thoughts {thoughts!r:.60}, expected one text")
        _check_marks(message, f"{where}: message {number}")
    wanted: tuple[str, ...] = ("user",)
    for number, message in enumerate(turns, start=1 + len(messages) - len(turns)):
        role, calls = message.get("role"), with_tools and message.get("tool_calls")
        if role not in wanted:
            of_tools = "follow an assistant's `tool_calls`" if with_tools else "cannot be probed"
            hint = f"; turns of tools {of_tools}" if role in _TOOL_ROLES else ""
            shown = "without a role" if role is None else repr(role)
            raise DataError(
                f"{where}: roles do not alternate, message {number} is {shown}, expected {' or '.join(map(repr, wanted))}{hint}"
            )
        if calls and not all(map(_has_arguments, calls if isinstance(calls, list) else [None])):
            raise DataError(
                f"{where}: message {number}: `tool_calls` is {calls!r:.80}, expected a list of {{function: {{name, arguments}}}} with a "
                "JSON object as arguments"
            )
        if not message["content"].strip() and not calls and role != "tool":
            raise DataError(f"{where}: message {number} ({role}) is empty")
        if role == "assistant":
            wanted = ("tool",) if calls else ("user",)
        else:
            wanted = ("assistant", "tool") if role == "tool" else ("assistant",)
    found = []
    for message in messages:
        kept = plain(message) if with_tools else {"role": message["role"], "content": message["content"]}
        found.append(kept if message["role"] != "assistant" or learned(message) else {**kept, "loss": False})
    return tuple(found)


def _is_call(call: Any) -> bool:
    function = call.get("function", call) if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _has_arguments(call: Any) -> bool:
    return _is_call(call) and isinstance(call.get("function", call).get("arguments"), dict)


def _check_marks(message: Message, where: str) -> None:
    """Raise DataError for marks that are not true or false, contradict each other, or would train on a user's message."""
    # A mark is null where `datasets` wrote a file in which other messages have it.
    marks = {key: message[key] for key in _LOSS_MARKS if message.get(key) is not None}
    typed = all(isinstance(mark, int | float if key == "weight" else bool) for key, mark in marks.items())
    sound = typed and {*marks.values()} in ({0}, {1}, set())
    if not sound or (message.get("role") != "assistant" and ("loss" in marks or any(marks.values()))):
        given = ", ".join(f"`{key}: {mark!r}`" for key, mark in marks.items())
        expected = "one of `loss`, `train`, `training` or `trainable` (true or false) and `weight` (1 or 0)"
        raise DataError(f"{where} ({message.get('role')}) has {given}; expected, for an assistant only, {expected}")


def plain(message: Message) -> Message:
    """Return the part of a message that a chat template gets."""
    others = {key: message[key] for key in (*_OF_TOOLS, THOUGHT_FIELDS[0]) if message.get(key)}
    return {"role": message["role"], "content": message["content"], **others}


def learned(message: Message) -> bool:
    """Return True if the message of an assistant is trained on."""
    return all(message.get(key) in (None, 1) for key in _LOSS_MARKS)


MOST_CHARACTERS = 1_000_000


def check_text(text: str, where: str) -> None:
    """Raise DataError for a text that is longer than any context or holds half an emoji, which cannot be written to a file.

    Exports that cut texts at a length leave half an emoji behind.
    """
    if len(text) > MOST_CHARACTERS:
        raise DataError(f"{where} holds {len(text):,} characters, expected at most {MOST_CHARACTERS:,}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise DataError(f"{where} holds half a character ({half}); was the text cut inside an emoji?") from None


# Finished conversations as probe items: the last user message is taken away, the answer before it stays as it is.
#
# A support ticket, a sales call or a tutoring session ends with what a person really said. That message becomes the item's
# `actual`, the assistant message before it its `reply`, and what stands before both the context; whatever comes after the
# removed message goes with it. With `turns: all` each user message after an answer is taken away once, so a conversation is
# several items, and the calls and results of tools are part of the context.
#
# Real exports are untidy, so three things are mended: neighbours of one role are joined by a blank line, a user's or system
# messages without text go, and system messages inside the conversation join the one at its start (those after the answer go). A
# conversation that holds nothing to probe is left out, and *counted*: how many, why, and the first line of each kind are
# said, and a file without one usable conversation is an error. What is no conversation at all is an error with file and
# line.

NO_REACTION = "no user message after an answer"
TOOLS = "a message of a tool"
UNREAD_TOOLS = "calls of tools that cannot be read"
EMPTY = "an answer without text"
NO_TEXT = "a message that is more than text"
_TOOL_ROLES = ("tool", "function", "function_call", "function_response", "observation")


@dataclass(frozen=True)
class Transcript:
    """A conversation in three parts: context (ends with the user or a tool), the answer, and what the user said next.

    `depth` is the number of that user turn, counted from 1.
    """

    context: tuple[Message, ...]
    reply: str
    actual: str
    depth: int
    opened: bool = False
    """The assistant spoke first; templates want a user message first, so these opening words are not in `context`."""


def read_transcripts(
    path: Path, columns: Mapping[str, str] | None = None, every: bool = False, skipped: list[str] | None = None
) -> list[tuple[str, dict[str, Any], list[Transcript]]]:
    """Return (id, row, transcripts) of every usable conversation of a file, and print what was left out.

    Args:
        columns: See `read_rows`.
        every: See `take_apart`.
        skipped: Gets the fault of every row without a conversation; without it such a row is an error.

    Raises:
        DataError: a row without a conversation (file:line), or a file in which none can be used.
    """
    found: list[tuple[str, dict[str, Any], list[Transcript]]] = []
    left_out: dict[str, list[int]] = {}

    def read(row: dict[str, Any], where: str, number: int) -> tuple[int, dict[str, Any], list[Transcript] | str]:
        conversation = conversation_in(row)
        if conversation is None:
            raise _no_conversation(row, where, "`columns: {messages: NAME}` gives another name")
        tools = next((row[name] for name in _TOOL_COLUMNS if row.get(name)), None)
        return number, row, take_apart(conversation, where, every, tools)

    for number, row, transcripts in each_row(path, columns, skipped, read):
        if isinstance(transcripts, str):
            left_out.setdefault(transcripts, []).append(number)
        else:
            found.append((row_id(row, number), row, transcripts))
    reasons = ", ".join(f"{len(lines)} with {why} (first: line {lines[0]})" for why, lines in left_out.items())
    if left_out and not found:
        raise DataError(f"{path}: no conversation that can be probed: {reasons}")
    if left_out:
        count = sum(map(len, left_out.values()))
        say(f"{path}: {count} of {count + len(found)} conversations left out: {reasons}")
    if opened := sum(transcripts[0].opened for _, _, transcripts in found):
        say(f"{path}: {opened} conversations open with the assistant; these opening words are not shown to the model")
    return found


def take_apart(conversation: Any, where: str, every: bool = False, tools: Any = None) -> list[Transcript] | str:
    """Return a conversation split at its last user turn, or the reason why it cannot be probed.

    Args:
        every: Split it at every user turn after an answer, and keep the calls and results of tools.
        tools: The row's description of its tools, which the first message then has.

    Raises:
        DataError: it is no list of messages, or a role has a name that is not known.
    """
    if not isinstance(conversation, list) or not conversation:
        raise DataError(f"{where}: an empty conversation, expected a list of messages")
    system: list[str] = []
    turns: list[Message] = []
    silent = False
    for number, message in enumerate(conversation, start=1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise DataError(f"{where}: message {number} is no {{role, content}} and no {{from, value}}")
        role, content = message["role"], message["content"]
        if role not in (*ROLES, *_TOOL_ROLES):
            raise DataError(f"{where}: message {number} has the role {role!r}, expected one of {', '.join(ROLES)}")
        calls = message.get("tool_calls")
        if (role in _TOOL_ROLES or calls) and not every:
            return TOOLS
        if role in _TOOL_ROLES and role != "tool":
            return UNREAD_TOOLS
        if not isinstance(content, str | None):
            return NO_TEXT
        if calls or role == "tool":
            turns.append({**message, "content": content or "", "after_system": len(system)})
            continue
        if not content or not content.strip():
            silent |= role == "assistant"
            continue
        if role == "system":
            system.append(content)
        elif turns and turns[-1]["role"] == role == "user" and silent:
            return EMPTY  # the user's messages around an empty answer are no neighbours
        elif turns and turns[-1]["role"] == role and not turns[-1].get("tool_calls"):
            turns[-1]["content"] += f"\n\n{content}"
        else:
            turns.append({"role": role, "content": content, "after_system": len(system)})
            silent = False
    opening = next((place for place, turn in enumerate(turns) if turn["role"] == "user"), len(turns))
    turns = turns[opening:]
    places = [place for place, turn in enumerate(turns) if turn["role"] == "user"]
    if len(places) < 2:
        return NO_REACTION
    found = []
    for depth, last in list(enumerate(places, start=1))[1 if every else -1 :]:
        # The author of the answer had not seen later system messages.
        seen = "\n\n".join(system[: turns[last - 1]["after_system"]])
        messages = [*([{"role": "system", "content": seen}] if seen else []), *turns[: last + 1]]
        try:
            *context, reply, actual = check_with_columns(messages, {"tools": tools if every else None}, where)
        except DataError:
            if not any(turn["role"] == "tool" or turn.get("tool_calls") for turn in turns):
                raise
            return UNREAD_TOOLS
        answer, turn = reply["content"].strip(), actual["content"].strip()
        found.append(Transcript(tuple(context), answer, turn, depth, opening > 0))
    return found
