"""The offline judge: clear cases by rule, all others by a score over named signals. No model, no network.

A turn goes through four steps: what is no speech is taken off (`cleaning`), turn and context are cut into words and
sentences (`reading`), rules settle what is clear (`clear`), and the rest is weighed (`signals`, `scores`). All of it
reads English only; other languages are left unscored. Text aimed at the judge is never taken for a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from probe.judges.cleaning import clean
from probe.judges.clear import settle
from probe.judges.labels import Case, Verdict
from probe.judges.reading import Reading
from probe.judges.scores import best_label, label_scores, leading_signals
from probe.judges.signals import signals

# From this lead on the score's verdict counts as clear. Chosen on the turns that the weights were made from, but
# cross-validated by conversation: the least half point where at least 95% agree with people on each file.
CLEAR_MARGIN = 2.0


class RulesJudge:
    """Deterministic: the same case gets the same verdict, on any machine and in any batch."""

    name = "rules"
    version = "rules/2"

    calls = 0

    def stream(self, cases: Sequence[Case]) -> Iterator[tuple[int, Verdict]]:
        """(index, verdict) in order; `raw` names the rule or the signals that decided."""
        for index, case in enumerate(cases):
            yield index, self.consider(case)[0]

    def consider(self, case: Case) -> tuple[Verdict, float]:
        """The verdict, and how sure genuine or not is: infinite where a rule settled it, else the lead in points.

        The lead is the distance between the score of a genuine follow-up and the best score of any other label.
        Cross-validated on the turns that `scores` names, a lead of CLEAR_MARGIN or a rule settles 60% of the turns
        of SmolLM2 and 67% of those written by hand, and 96% of these verdicts on each agree with people on genuine
        or not. A turn that cannot be scored is settled too: its label is None.
        """
        cleaned = clean(case.user_turn)
        reading = Reading.of(case, cleaned.text, cleaned.leads_on)
        note = "; text aimed at the judge left out" if cleaned.aimed else ""
        settled = settle(reading, cleaned)
        if settled is not None:
            unscored = settled.rule if settled.label is None else None
            return Verdict(settled.label, unscored, f"rule: {settled.rule}{note}"), math.inf
        counted = signals(reading)
        label, lead = best_label(label_scores(counted))
        because = ", ".join(f"{name} {points:+.1f}" for name, points in leading_signals(counted, label))
        return Verdict(label, None, f"score: {because}{note}"), lead
