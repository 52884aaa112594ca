"""Rules first, a language model for the rest: most of the agreement of the model alone at a part of its calls.

A turn that the rules find clear is settled there. What they are unsure about, or cannot read (another language than
English), goes to the model; where that fails the turn stays unscored, and the rules' guess is not put in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from probe.judges.labels import Case, Judge, Verdict
from probe.judges.rules import CLEAR_MARGIN, RulesJudge


class CascadeJudge:
    """`raw` begins with who decided: "rules: ..." or "llm: ...". `calls` counts the model's only.

    Args:
        unclear: judges what the rules leave open.
    """

    name = "cascade"

    def __init__(self, unclear: Judge) -> None:
        self._rules = RulesJudge()
        self._unclear = unclear
        self.version = f"cascade/1 ({self._rules.version} at {CLEAR_MARGIN:g}, {unclear.version})"
        self.calls = 0

    def stream(self, cases: Sequence[Case]) -> Iterator[tuple[int, Verdict]]:
        """(index, verdict): the clear ones in order, then the others as they come.

        Raises:
            JudgeError: from the model, whose share of failures is counted over the cases that it was asked about.
        """
        open_cases = []
        for index, case in enumerate(cases):
            verdict, margin = self._rules.consider(case)
            if verdict.label is None or margin < CLEAR_MARGIN:
                open_cases.append(index)
            else:
                yield index, _by(self._rules.name, verdict)
        for position, verdict in self._unclear.stream([cases[index] for index in open_cases]):
            self.calls = self._unclear.calls
            yield open_cases[position], _by(self._unclear.name, verdict)


def _by(name: str, verdict: Verdict) -> Verdict:
    return replace(verdict, raw=f"{name}: {verdict.raw}")
