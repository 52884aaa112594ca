"""Parts of one's own: functions of the user's, called in the workers, so that a slow or broken one holds up nobody."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
from collections.abc import Callable, Sequence

from probe.answers import load_algebra
from probe.errors import RecipeError
from probe.timelimit import Workers
from train.played import Played
from train.rewards.part import Part
from train.rewards.settings import CustomPart

NOT_APPLICABLE = "not_applicable"
"""The function itself said None."""


def begin_custom(part: CustomPart, played: Played, workers: Workers) -> Callable[[], Part]:
    """Hands the call in; what is returned waits for it."""
    pending = workers.start(_call, part.function, played)

    def finish() -> Part:
        done = pending.wait()
        if done.failure:
            return Part(None, done.failure)
        return Part(None, NOT_APPLICABLE) if done.value is None else Part(done.value)

    return finish


def check_custom(parts: dict[str, CustomPart], workers: Workers) -> None:
    """Raises RecipeError where a function cannot be loaded in a worker."""
    for name, part in parts.items():
        done = workers.start(_loads, part.function).wait()
        if done.failure:
            raise RecipeError(f"reward.custom.{name}.function: {part.function} cannot be loaded ({done.failure})")


def prepare_worker(functions: Sequence[str]) -> None:
    """Loads what calls will need, so that no call's time goes into it."""
    load_algebra()
    for function in functions:
        with contextlib.suppress(Exception):  # a call, and before any the check, says what is wrong with it
            _resolve(function)


def _resolve(name: str) -> Callable[[Played], float | None]:
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    found = getattr(importlib.import_module(module), function)
    if not callable(found):
        raise TypeError(f"{name} is no function")
    return found


def _loads(name: str) -> None:
    _resolve(name)


def _call(name: str, played: Played) -> float | None:
    given = _resolve(name)(played)
    if given is None:
        return None
    if not isinstance(given, (int, float)) or not math.isfinite(given):
        raise ValueError(f"gave {given!r}, wanted a finite number or None")
    return float(given)
