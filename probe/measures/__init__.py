"""What is asked of a model, and how its replies become figures: a file for each measure."""

from __future__ import annotations

from nextturn.probe.command.errors import DataError
from nextturn.probe.command.own import load_own
from nextturn.probe.measures.accuracy import Accuracy
from nextturn.probe.measures.base import Measure
from nextturn.probe.measures.clarify import Clarify
from nextturn.probe.measures.doubted import Doubted
from nextturn.probe.measures.followup import Followup
from nextturn.probe.measures.instructions import Instructions
from nextturn.probe.measures.sharded import Sharded

_ORDER = (Sharded, Doubted, Accuracy, Clarify, Instructions, Followup)
MEASURES: dict[str, type[Measure]] = {each.name: each for each in _ORDER}
"""The measures of this package, in the order of their rows in samples.jsonl."""


def measure_named(name: str) -> type[Measure]:
    """Return a measure of this package, or one of your own by MODULE:CLASS.

    Raises:
        DataError: There is no such class, or it is no measure.
    """
    if name in MEASURES:
        return MEASURES[name]
    found = load_own(name, "measures", f"{', '.join(MEASURES)}, or MODULE:CLASS")
    if not (isinstance(found, type) and issubclass(found, Measure) and found.figures) or found.name in MEASURES:
        expected = "a subclass of nextturn.probe.measures.base.Measure with `figures` and a name of its own"
        raise DataError(f"measures: {name} is {found!r:.80}, expected {expected}")
    return found
