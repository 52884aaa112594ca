"""Which process of a launch this is: read from the launcher's environment, so it holds before a process group stands."""

from __future__ import annotations

import os


def is_main_process() -> bool:
    """True on global rank 0."""
    return os.environ.get("RANK", "0") == "0"


def processes() -> int:
    """How many processes were launched together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def say(line: str) -> None:
    """Prints on the first process only."""
    if is_main_process():
        print(line, flush=True)
