"""Finished conversations as probe items: what is removed, what is repaired, and what is left out and counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import DataError
from nextturn.probe.data.messages import EMPTY, NO_REACTION, NO_TEXT, TOOLS
from nextturn.probe.questions.sets import Item, read_items
from support.commands import ROOT


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


system, user, assistant = (partial(turn, role) for role in ("system", "user", "assistant"))


@pytest.fixture
def items(tmp_path: Path) -> Callable[..., list[Item]]:
    def read(*rows: Any) -> list[Item]:
        (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_items(tmp_path / "t.jsonl", transcript=True)

    return read


LONG = [system("Be kind."), user("a"), assistant("b"), user("c"), assistant("d"), user("e")]


@pytest.mark.parametrize(
    ("row", "context", "reply", "actual"),
    [
        ({"messages": LONG}, LONG[:4], "d", "e"),
        ({"messages": [*LONG, assistant("bye"), system("closed")]}, LONG[:4], "d", "e"),
        ({"messages": [user("a"), assistant(" b\n"), user("\nc ")]}, [user("a")], "b", "c"),
        # Untidy exports: messages without text, system messages on the way.
        ({"messages": [user("a"), {"role": "assistant", "content": None}, assistant("b"), user("c")]},
         [user("a")], "b", "c"),
        ({"messages": [system("s"), system("s2"), user("a"), assistant("b"), system("t"), user("c"), assistant("d"), user("e")]},
         [system("s\n\ns2\n\nt"), user("a"), assistant("b"), user("c")], "d", "e"),
        ({"messages": [user("a"), assistant("b"), system("rated 1 of 5"), user("c"), system("closed")]}, [user("a")], "b", "c"),
        # A refusal, and parts of a message, in OpenAI's two forms.
        ({"messages": [user("a"), {"role": "assistant", "content": None, "refusal": "no"}, user("c")]}, [user("a")], "no", "c"),
        ({"messages": [turn("user", [{"type": "input_text", "text": "a"}]), turn("assistant", [
            {"type": "output_text", "text": "b"}, {"type": "refusal", "refusal": "no more"}]), user("c")]},
         [user("a")], "b\n\nno more", "c"),
        # An answer in two parts: its author had not seen what came between them.
        ({"messages": [user("a"), assistant("b"), system("rated 1 of 5"), assistant("d"), user("c")]}, [user("a")], "b\n\nd", "c"),
    ],
)  # fmt: skip
def test_a_conversation_is_split_at_its_last_user_message(
    items: Any, row: dict[str, Any], context: list[Any], reply: str, actual: str
) -> None:
    assert items(row) == [Item("1", tuple(context), reply=reply, actual=actual)]


def test_conversations_without_anything_to_probe_are_left_out_and_counted(items: Any, capsys: Any) -> None:
    tool = {"role": "tool", "content": "42"}
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}
    rows = [
        {"id": "good", "messages": LONG},
        {"messages": [user("a"), assistant("b")]},
        {"messages": [user("a")]},
        {"messages": [user("a"), {"role": "assistant", "content": None, "tool_calls": [{}]}, tool, assistant("b"), user("c")]},
        {"messages": [user("a"), assistant("b"), picture]},
        {"messages": [assistant("Hi!"), user("a"), assistant("b"), user("c")]},
        {"messages": [user("a"), {"role": "assistant", "content": None, "function_call": {"name": "f"}}, user("b"), *LONG]},
        {"messages": [user("a"), {"role": "assistant", "content": "", "audio": {"transcript": "b"}}, user("c"), assistant("d"), user("e")]},
    ]  # fmt: skip
    assert [item.id for item in items(*rows)] == ["good", "6"]
    said = capsys.readouterr().out
    assert "6 of 8 conversations left out: " in said
    counted = {NO_REACTION: (2, 2), TOOLS: (2, 4), NO_TEXT: (1, 5), EMPTY: (1, 8)}
    for reason, first in ((f"{count} with {why}", first) for why, (count, first) in counted.items()):
        assert f"{reason} (first: line {first})" in said
    assert "1 conversations open with the assistant" in said
    items(rows[0])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Q?", "answer": "5"},
        {"messages": "User: hi"},
        {"messages": [user("a"), {"role": "agent", "content": "b"}]},
        {"messages": [user("a"), {"role": "assistant", "text": "b"}]},
        {"messages": [user("a"), {"content": "b"}]},
        {"messages": ["a", "b"]},
    ],
)
def test_a_row_without_a_conversation_is_named_by_file_and_line(items: Any, row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"t\.jsonl:2: "):
        items({"messages": LONG}, row)


def test_the_shipped_set_is_read_as_transcripts(items: Any, tmp_path: Path) -> None:
    read = read_items(ROOT / "recipes" / "transcripts.jsonl", transcript=True)
    assert [item.id for item in read] == [f"{kind}-{n}" for kind in ("support", "sales", "tutor") for n in range(1, 7)]
    assert all(item.reply and item.actual and item.answer is None for item in read)
    assert len({item.actual for item in read}) == 18
    items({"messages": LONG})
    with pytest.raises(DataError, match="instruction"):
        read_items(tmp_path / "t.jsonl", "Be brief.", transcript=True)
