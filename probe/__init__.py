"""Measure what a chat model solves and whether it knows what a user says next.

`measure_model` and `ProbeCallback` bring the probe into any training script. They are imported when they are first used, so
that this package loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["ProbeCallback", "measure_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("nextturn.probe.callback"), name)
