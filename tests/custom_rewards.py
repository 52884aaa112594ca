"""Functions that the reward tests name as custom parts; a worker imports this module, so it imports next to nothing."""

from __future__ import annotations

import os
import sys
from typing import Any


def first_reply(played: Any) -> str:
    return str(played.conversations[0][played.start]["content"])


def length(played: Any) -> float:
    return min(1.0, len(first_reply(played)) / 100)


def misbehaves(played: Any) -> float | None:
    """Does what the reply says."""
    said = first_reply(played)
    if said == "hang":
        while True:
            pass
    if said == "raise":
        raise KeyError("no such thing")
    if said == "die":
        os._exit(3)
    if said == "leave":
        sys.exit("enough")
    if said == "none":
        return None
    if said == "nan":
        return float("nan")
    if said == "text":
        return "0.5"  # type: ignore[return-value]
    return 0.5


def verdict(played: Any) -> float:
    """The number in the row's id; without one there is no verdict."""
    return float(played.row.id.partition(":")[2])


def is_light(played: Any) -> float:
    """1 where the worker holds none of what makes a training process heavy."""
    return float(not {"torch", "transformers", "trl"} & set(sys.modules))


def worker_pid(played: Any) -> float:
    return float(os.getpid())
