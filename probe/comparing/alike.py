"""Were these runs measured alike? Only then may they be compared.

Every setting must agree but those listed here; so a setting that nobody thought of makes runs incomparable,
never silently comparable.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from probe.comparing.results import Run, printable

# Another engine gives the same kind of number; the others decide which numbers there are, not what each of them is.
MAY_DIFFER = ("engine", "temperatures", "samples", "perturbations", "grounding", "actual")

# What a run certainly did that was made before the setting existed.
BEFORE: dict[str, Any] = {"perturbations": [], "grounding": False}


def differences(runs: Sequence[Run]) -> list[str]:
    """Why these runs should not be compared, one line per reason; empty when they were measured alike."""
    told = [_told(runs, "chat template", [run.results.model.template_sha256 for run in runs])]
    keys = {key for run in runs for key in run.results.settings.others()}
    told += [_told(runs, key, _values(runs, key)) for key in sorted(keys - set(MAY_DIFFER))]
    for name in _set_names(runs):
        infos = [run.results.settings.sets.get(name) for run in runs]
        told.append(_told(runs, f"set {name}", [info and f"{info.n} items {info.sha256}" for info in infos]))
    return [line for line in told if line]


def remarks(runs: Sequence[Run]) -> list[str]:
    """What differs and may, and what a reader should know about the folders."""
    told = [_told(runs, key, _values(runs, key)) for key in MAY_DIFFER]
    for name in _set_names(runs):
        infos = [run.results.settings.sets.get(name) for run in runs]
        told.append(_told(runs, f"measures on set {name}", [info and ", ".join(info.measures) for info in infos]))
    for run in runs:
        if run.samples is None:
            told.append(f"{run.name}: no samples.jsonl beside its results.json, so no paired test")
    return [line for line in told if line]


def _values(runs: Sequence[Run], key: str) -> list[Any]:
    return [run.results.settings.others().get(key, BEFORE.get(key)) for run in runs]


def _told(runs: Sequence[Run], key: str, values: Sequence[Any]) -> str | None:
    """'judge: rules-1 (base), llm-2 (sft, rl)' when the runs do not all have one value."""
    groups: dict[str, list[str]] = defaultdict(list)
    for run, value in zip(runs, values, strict=True):
        shown = "nothing" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        groups[shown].append(run.name)
    if len(groups) == 1:
        return None
    return f"{printable(key)}: " + ", ".join(f"{_short(value)} ({', '.join(who)})" for value, who in groups.items())


def _short(text: str) -> str:
    return printable(re.sub(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b", r"\1", text))


def _set_names(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.results.settings.sets))
