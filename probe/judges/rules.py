"""The offline judge: clear cases by rule, all others by a score over named signals. No model, no network.

A turn goes through four steps: what is no speech is taken off (`cleaning`), turn and context are cut into words and
sentences (`reading`), rules settle what is clear (`clear`), and the rest is weighed (`signals`, `scores`). All of it
reads English only; other languages are left unscored. Text aimed at the judge is never taken for a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probe.judges.cleaning import clean
from probe.judges.clear import settle
from probe.judges.labels import Case, Verdict
from probe.judges.reading import Reading
from probe.judges.scores import best_label, leading_signals
from probe.judges.signals import signals


class RulesJudge:
    """Deterministic: the same case gets the same verdict, on any machine and in any batch."""

    name = "rules"
    version = "rules/1"

    calls = 0

    def stream(self, cases: Sequence[Case]) -> Iterator[tuple[int, Verdict]]:
        """(index, verdict) in order; `raw` names the rule or the signals that decided."""
        for index, case in enumerate(cases):
            yield index, _judge(case)


def _judge(case: Case) -> Verdict:
    cleaned = clean(case.user_turn)
    reading = Reading.of(case, cleaned.text, cleaned.leads_on)
    note = "; text aimed at the judge left out" if cleaned.aimed else ""
    settled = settle(reading, cleaned)
    if settled is not None:
        return Verdict(settled.label, settled.rule if settled.label is None else None, f"rule: {settled.rule}{note}")
    counted = signals(reading)
    label = best_label(counted)
    because = ", ".join(f"{name} {points:+.1f}" for name, points in leading_signals(counted, label))
    return Verdict(label, None, f"score: {because}{note}")
