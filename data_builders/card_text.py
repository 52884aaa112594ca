"""Text that others wrote, on a Markdown page: it is seen as it is, and nothing in it is taken for the page's own."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from probe.judges.prompt import shortened
from probe.sets import Message
from probe.terminal import visible

_WIDTH = 100
_LABEL = 9  # "assistant"
# An underline inside a word emphasises nothing.
_MARKUP = re.compile(r"[\\`*{}\[\]()#+!|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_BACKTICKS = re.compile(r"`+")


def inline(text: str, limit: int = 80) -> str:
    """The text on one line of a paragraph, a heading or a table, its markup and HTML shown rather than followed."""
    line = " ".join(visible(text).split())
    line = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return _MARKUP.sub(r"\\\g<0>", line.translate(_ENTITIES))


def excerpt(text: str, limit: int) -> str:
    """The text on one line, of a longer one its beginning and its end; as it is otherwise, for a `block`."""
    line = " ".join(visible(text).split())
    if len(line) <= limit:
        return line
    return f"{line[: limit * 2 // 3].rstrip()} … {line[-limit // 3 :].lstrip()}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are safe already (`inline`); numbers stand on the right."""
    body = list(rows)
    right = [all(re.match(r"[\d.,–-]", line[place]) for line in body) for place in range(len(head))]
    lines = [head, ["---:" if one else "---" for one in right], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def block(lines: Sequence[str]) -> str:
    """Lines as they are, between fences that no line can close."""
    longest = max((len(found) for line in lines for found in _BACKTICKS.findall(line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *lines, fence])


def chat(messages: Iterable[Message], limit: int) -> list[str]:
    """Messages with who speaks before each. Every line has its edge, so that no message can feign another one.

    Args:
        limit: characters of a message; of a longer one the middle is left out.
    """
    lines = []
    for message in messages:
        label = message["role"]
        for paragraph in shortened(visible(message["content"]), limit).split("\n"):
            for line in textwrap.wrap(paragraph, _WIDTH, break_on_hyphens=False) or [""]:
                lines.append(f"{label:{_LABEL}} | {line}".rstrip())
                label = ""
    return lines
