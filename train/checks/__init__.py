"""What `python -m train.doctor` looks at: packages, GPUs, the machine. Each check gives findings and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        level: "problem" keeps something from working here; "note" is worth knowing; "ok" is fine.
        about: what was looked at, such as "torch".
        found: what is.
        do: what to do, a command where one does it; empty where nothing is to be done.
    """

    level: Literal["ok", "note", "problem"]
    about: str
    found: str
    do: str = ""
