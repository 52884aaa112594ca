"""All parts of a reward for the samples of one process, made side by side, and put together into one number each.

One number, since trl counts a part that is None as 0 as long as another is there, so that a right answer whose judge
timed out would be punished. A sample without a part that it needs has no reward at all, and its group's mean is taken
without it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probe.errors import RecipeError
from probe.timelimit import Workers
from train.played import Played
from train.rewards.accuracy import Accuracy
from train.rewards.custom import begin_custom, check_custom, prepare_worker
from train.rewards.efficiency import efficiency
from train.rewards.followup import followup
from train.rewards.form import form
from train.rewards.interactivity import interactivity
from train.rewards.judge import InteractivityJudge
from train.rewards.part import Part
from train.rewards.settings import RewardSection


@dataclass(frozen=True)
class Scored:
    """The reward of one sample.

    Attributes:
        value: None: the sample is to be left out.
        parts: every part that was measured, also those without weight.
        reasons: why a part is None, KIND or "KIND: what was said".
    """

    value: float | None
    parts: dict[str, float | None]
    reasons: dict[str, str]


class Rewards:
    """Scores samples until it is closed.

    Raises:
        RecipeError: a custom function cannot be loaded.
        BadInput: the judge's server cannot be used.
    """

    def __init__(self, section: RewardSection, seed: int) -> None:
        self._section = section
        functions = [part.function for part in section.custom.values()]
        self._workers = Workers(section.workers, section.timeout_s, functools.partial(prepare_worker, functions))
        try:
            check_custom(section.custom, self._workers)
        except RecipeError:
            self._workers.close()
            raise
        wanted = section.judge is not None and section.weights.interactivity > 0
        self._judge = (
            InteractivityJudge(section.judge, seed, section.judge_timeout_s) if wanted and section.judge else None
        )

    def score(self, played: Sequence[Played]) -> list[Scored]:
        """One for each sample, in order. Waits for the slowest call, and for none longer than its limit."""
        section = self._section
        answers = Accuracy(self._workers, section.partial_credit)
        accuracies = [answers.begin(one) for one in played]
        customs = [
            {name: begin_custom(part, one, self._workers) for name, part in section.custom.items()} for one in played
        ]
        # The workers are busy while the judge's servers are.
        interactive = self._judge.score(played) if self._judge else [interactivity(one) for one in played]
        scored = []
        for one, accuracy, custom, interacting in zip(played, accuracies, customs, interactive, strict=True):
            parts = {
                "accuracy": accuracy(),
                "interactivity": interacting,
                "efficiency": efficiency(one, section.efficient_tokens),
                "format": form(one),
            }
            if section.wants_user_turns:
                parts["followup"] = followup(one)
            parts |= {name: finish() for name, finish in custom.items()}
            scored.append(compose(parts, section))
        return scored

    def close(self) -> None:
        """Ends the workers, and what is asked of the judge."""
        self._workers.close()
        if self._judge is not None:
            self._judge.close()


def compose(parts: Mapping[str, Part], section: RewardSection) -> Scored:
    """The weighted mean of the parts that have a weight and a value; no value where a required part has none."""
    values = {name: part.value for name, part in parts.items()}
    reasons = {name: part.reason for name, part in parts.items() if part.value is None}
    counted = {
        name: (weight, value)
        for name, weight in section.weight_of.items()
        if weight and (value := values.get(name)) is not None
    }
    if not counted or any(name not in counted for name in section.required_parts):
        return Scored(None, values, reasons)
    total = sum(weight for weight, _ in counted.values())
    return Scored(sum(weight * value for weight, value in counted.values()) / total, values, reasons)
