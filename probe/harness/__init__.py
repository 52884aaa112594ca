"""The probe inside the harnesses people use: inspect_ai and lm-evaluation-harness, a file each.

Both read the recipe of `nextturn probe run` and give what it gives: the same prompts, rendered by `probe.chat`, the same
limits and seeds, the same judge.
"""

from __future__ import annotations

from nextturn.probe.errors import BadInput
from nextturn.probe.measure.run import LoadedSet, load_sets
from nextturn.probe.settings import ProbeSection


def followup_set(probe: ProbeSection, name: str | None) -> LoadedSet:
    """The set whose user turns are to be judged: the one called `name`, or the only one of the recipe.

    Raises:
        BadInput: there is none of that name, or the recipe has several and none was named.
    """
    there = {loaded.name: loaded for loaded in load_sets(probe) if "followup" in loaded.measures}
    if name is None and len(there) == 1:
        return next(iter(there.values()))
    if name not in there:
        raise BadInput(
            f"set: given {name!r}, wanted one of those with follow-up: {', '.join(there) or 'none is there'}"
        )
    return there[name]
