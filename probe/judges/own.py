"""A judge of one's own: a class that a recipe names as MODULE:CLASS. `nextturn init` writes an example."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nextturn.probe.command.errors import BadInput
from nextturn.probe.command.own import Own
from nextturn.probe.judges.verdicts import LABELS, Case, Verdict

# Cases of one call; the verdicts of each call are stored before the next.
_AT_ONCE = 64


class OwnJudge:
    """Asks a class with `version` and `labels(cases)`, which returns one of LABELS, or None (unscored), for each case.

    Raises:
        BadInput: The class cannot be loaded, or lacks one of these.
    """

    calls = 0

    def __init__(self, name: str, where: str) -> None:
        self.name = name
        self._own = Own(name, where, "labels", {})
        version = getattr(self._own.made, "version", None)
        if not isinstance(version, str):
            expected = "a text; change it whenever labels could change"
            raise BadInput(f"{where}: {name} has the version {version!r}; expected {expected}")
        self.version = f"{name} {version}"

    def stream(self, cases: Sequence[Case], known: Sequence[Verdict] = ()) -> Iterator[tuple[int, Verdict]]:
        """Yield (index, verdict) in order.

        Raises:
            BadInput: The class fails, or returns something else than labels.
        """
        expected = f"labels, each None or one of {', '.join(LABELS)}"
        for start in range(0, len(cases), _AT_ONCE):
            asked = cases[start : start + _AT_ONCE]
            labels = self._own.call(asked, expected, lambda label: label is None or label in LABELS)
            yield from enumerate((Verdict(label, None if label else "no_label", "") for label in labels), start)
