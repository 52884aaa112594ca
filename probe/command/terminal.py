"""Output of commands: text without control characters, printed by one process, and progress bars."""

from __future__ import annotations

import functools
import os
import sys
import time
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

# Control and format characters (colours, bidirectional overrides), halves of characters, odd line ends.
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def visible(text: str) -> str:
    """Return the text with control characters (other than line ends) as escapes, so that none reaches the terminal."""
    return "".join(
        char if char == "\n" or unicodedata.category(char) not in _HIDDEN else f"\\u{ord(char):04x}" for char in text
    )


def printable(text: str, most: int = 80) -> str:
    """Return one line of at most `most` characters, with `?` for control, bidirectional and other invisible ones."""
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= most else text[: most - 1] + "…"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


# --- Which process of a launch this is: read from the launcher's environment, so it holds before a process group stands.


def is_main_process() -> bool:
    """Return True on global rank 0."""
    return os.environ.get("RANK", "0") == "0"


def processes() -> int:
    """Return the number of processes that were launched together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def say(line: str) -> None:
    """Print on the first process only."""
    if is_main_process():
        print(visible(line), flush=True)


say_once = functools.cache(say)
"""`say`, once per line."""


# --- Progress: bars on a terminal, lines in a log.

LOG_EVERY_S = 30.0
"""Seconds between the lines of one progress bar in a log."""
_LOG_LINE = "{percentage:.0f}%, {n_fmt} of {total_fmt} after {elapsed}, {remaining} left, {rate_fmt}"
_EARLY = "{n_fmt} of {total_fmt} after {elapsed}"
_WITHOUT_TOTAL = "{n_fmt} after {elapsed}, {rate_fmt}"


def log_progress_as_lines() -> None:
    """Make every tqdm bar of this process print lines if standard error is no terminal: at most one every LOG_EVERY_S, and one at
    the end of a bar that had printed or lasted that long. A bar redraws its line with carriage returns, which fill a log."""
    from tqdm.std import tqdm

    if sys.stderr.isatty() or hasattr(tqdm, "close_silently"):
        return
    bar_class: Any = tqdm  # transformers', datasets' and trl's bars are of this class or below it
    bar_class.close_silently = tqdm.close

    def show(bar: Any) -> None:
        early = bar.total and bar.n < bar.total / 10  # the start of a model would make minutes look like hours
        form = _EARLY if early else _LOG_LINE if bar.total else _WITHOUT_TOTAL
        line = bar.format_meter(**{**bar.format_dict, "prefix": "", "bar_format": form, "ncols": None})
        print(visible(": ".join(filter(None, [bar.desc.rstrip(": "), line]))), file=sys.stderr, flush=True)

    def display(bar: Any, msg: str | None = None, pos: int | None = None) -> None:
        now = time.time()  # as tqdm counts
        first_of_many = bar.n == 1 < (bar.total or 0)  # vLLM returns chunks: the first text tells no rate
        if now - getattr(bar, "last_line_t", getattr(bar, "start_t", now)) >= LOG_EVERY_S and not first_of_many:
            bar.last_line_t = now
            show(bar)

    def close(bar: Any) -> None:
        runs, bar.sp = not getattr(bar, "disable", True), None  # tqdm leaves bars without `sp` to other displays
        bar.close_silently()
        if runs and bar.n and (hasattr(bar, "last_line_t") or time.time() - bar.start_t >= LOG_EVERY_S):
            show(bar)

    bar_class.display, bar_class.close, bar_class.clear = display, close, lambda bar, nolock=False: None


# Collecting a stream of results, under a progress bar with rate and time left.

T = TypeVar("T")


def collected(stream: Iterator[tuple[int, T]], total: int, what: str, **bar_options: Any) -> list[T]:
    """Return the results of (index, result) pairs in the order of their indices, under a progress bar.

    Args:
        bar_options: Options of tqdm. The bar is shown after one second.
    """
    from tqdm import tqdm

    done: dict[int, T] = {}
    with tqdm(total=total, desc=what, **{"delay": 1, **bar_options}) as bar:
        for index, result in stream:
            done[index] = result
            bar.update()
    return [done[index] for index in range(total)]
