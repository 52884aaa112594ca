"""Judges say what a user turn is: one of a closed set of labels, or unscored with a reason."""

from __future__ import annotations

from probe.errors import BadInput
from probe.judges.labels import Judge

KNOWN_JUDGES = ("rules",)


def get_judge(name: str) -> Judge:
    """The judge called `name`.

    Raises:
        BadInput: there is no judge of that name; lists those there are.
    """
    if name == "rules":
        from probe.judges.rules import RulesJudge

        return RulesJudge()
    raise BadInput(f"judge: given {name!r}, wanted one of {', '.join(KNOWN_JUDGES)}")
