"""All parts of a reward for the samples of one process, made side by side, and put together into one number each.

One number, since trl counts a part that is None as 0 as long as another is there, so that a right answer whose judge
timed out would be punished. A sample without a part that it needs has no reward at all, and its group's mean is taken
without it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from probe.errors import RecipeError, TrainingStopped
from probe.terminal import say
from probe.timelimit import Workers
from probe.tracking import slug
from train.recipe import RewardSection
from train.rewards import (
    Accuracy,
    InteractivityJudge,
    Part,
    Played,
    begin_custom,
    check_custom,
    efficiency,
    followup,
    form,
    interactivity,
    kind,
    prepare_worker,
)
from train.samples import SampleRow, Seen, length_drift, sample_row, see, watch_figures


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


# --- What happens where samples have no reward: a few are left out, many stop the run.

_SHOWN = 3
_WHAT_TO_DO = "Mend what is named, or leave the part out of reward.required; the same command then goes on from the last checkpoint"


def check_failures(samples: Sequence[tuple[float | None, Mapping[str, str]]], limit: float) -> str | None:
    """Why a step of these samples, (value, reasons) from all processes, has to stop the run; None where it has not.

    The same on every process that is given the same samples, so that all stop together.
    """
    lost = [reasons for value, reasons in samples if value is None]
    if len(lost) <= limit * len(samples):
        return None
    counts = Counter(f"{part} {reason}" for reasons in lost for part, reason in sorted(reasons.items()))
    named = "; ".join(f"{reason} ({count})" for reason, count in counts.most_common(_SHOWN))
    more = f"; and {len(counts) - _SHOWN} other reasons" if len(counts) > _SHOWN else ""
    return (
        f"{len(lost)} of {len(samples)} samples have no reward ({len(lost) / len(samples):.0%}, reward.max_failed allows "
        f"{limit:.0%}): {named}{more}. {_WHAT_TO_DO}"
    )


# --- The one reward function that trl is given: all parts in one number per sample, or none at all.
#
# trl sums several reward functions and counts a part that failed as 0, so that a correct answer whose judge timed out
# gets a lower advantage than its twins. Here a sample whose required part failed has no reward: trl then takes neither
# its own advantage nor its group's mean from it. What became of every part goes to the tracker beside the reward curve.

SAMPLES_KEPT = 8
FLAT, FLAT_FOR = 0.8, 10
"""Share of groups without variance, and generations in a row, from which on a line says so."""


class Scorer(Protocol):
    """What `train.rewards.Rewards` is to this module."""

    def score(self, played: Sequence[Played]) -> list[Scored]: ...


@dataclass(frozen=True)
class _Outcome:
    """What every process tells the others of one sample."""

    value: float | None
    parts: dict[str, float | None]
    reasons: dict[str, str]
    simulator: tuple[str, ...]
    seen: Seen


class ComposedReward:
    """Called by trl once per generation, on every process with its own samples.

    Args:
        rewards: scores this process's samples.
        num_generations: samples of one group; groups lie together, over all processes in their order.
        max_failed: share of samples without a reward above which every process stops.
        kept: sample conversations kept per generation, over all processes.
    """

    __name__ = "composed"  # trl's name for it in the log

    def __init__(self, rewards: Scorer, num_generations: int, max_failed: float, kept: int = SAMPLES_KEPT) -> None:
        self.rewards, self.num_generations, self.max_failed, self.kept = rewards, num_generations, max_failed, kept
        self.samples: list[SampleRow] = []
        """Of the last generation, from all processes."""
        self._flat = 0
        self._failed: set[str] = set()

    def __call__(
        self,
        played: Sequence[Played],
        trainer_state: Any,
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
        **_: Any,
    ) -> list[float | None]:
        """The reward of each sample, None where it has none.

        Raises:
            TrainingStopped: too many samples of this generation have none; on every process alike.
        """
        from accelerate.utils import gather_object

        scored = self.rewards.score(played)
        own = [_outcome(one, sample) for one, sample in zip(scored, played, strict=True)]
        every: list[_Outcome] = gather_object(own)
        step = trainer_state.global_step + 1
        self._stop_on_failures(every, step)
        figures = {**reward_figures(every), **group_figures(every, self.num_generations)}
        figures |= watch_figures([one.seen for one in every])
        figures |= length_drift(figures, trainer_state.log_history)
        for name, value in self._with_zeros(figures).items():  # the same on every process, as is their mean
            log_metric(name, value)
        self._warn_of_flat_groups(figures["groups/flat"], step)
        self.samples = gather_object(self._chosen(played, scored, step))
        log_extra("row", [sample.row.id for sample in played])
        for part in sorted({part for one in scored for part in one.parts}):
            log_extra(part, [one.parts.get(part) for one in scored])
        return [one.value for one in scored]

    def _stop_on_failures(self, every: Sequence[_Outcome], step: int) -> None:
        problem = check_failures([(one.value, one.reasons) for one in every], self.max_failed)
        if problem is not None:
            raise TrainingStopped(f"stopped before step {step}: {problem}")

    def _with_zeros(self, figures: dict[str, float]) -> dict[str, float]:
        """A failure that was seen once is 0 from then on: trl takes the mean of what is logged between two log lines."""
        self._failed |= {name for name in figures if name.startswith(("reward/none/", "simulator/failed/"))}
        return {**dict.fromkeys(sorted(self._failed), 0.0), **figures}

    def _warn_of_flat_groups(self, share: float, step: int) -> None:
        self._flat = self._flat + 1 if share >= FLAT else 0
        if self._flat == FLAT_FOR:
            say(
                f"warning: step {step}: for {FLAT_FOR} generations {FLAT:.0%} of the groups or more had no variance, so "
                "nothing is learned from them; usual causes: problems too hard or too easy, a reward with few values"
            )

    def _chosen(self, played: Sequence[Played], scored: Sequence[Scored], step: int) -> list[SampleRow]:
        """This process's share of the sample conversations, spread over its groups."""
        from accelerate import PartialState

        ranks, rank = PartialState().num_processes, PartialState().process_index
        count = min(len(played), -(-self.kept // ranks))
        places = sorted({place * len(played) // count for place in range(count)})
        return [sample_row(rank * len(played) + place, step, played[place], scored[place]) for place in places]


def _outcome(scored: Scored, played: Played) -> _Outcome:
    return _Outcome(scored.value, scored.parts, scored.reasons, played.failures, see(played))


def reward_figures(every: Sequence[_Outcome]) -> dict[str, float]:
    """Means of the parts where they have a value, and the shares without one, by part and by reason.

    `reward/PART`, `reward/none` (share of samples without a reward), `reward/none/PART` and
    `reward/none/PART/REASON`, `simulator/failed` (failed conversations a sample) and `simulator/failed/REASON`.
    """
    figures: dict[str, float] = {"reward/none": sum(one.value is None for one in every) / len(every)}
    for part in sorted({part for one in every for part in one.parts}):
        values = [value for one in every if (value := one.parts.get(part)) is not None]
        if values:
            figures[f"reward/{part}"] = sum(values) / len(values)
        if len(values) < len(every):
            figures[f"reward/none/{part}"] = 1 - len(values) / len(every)
    reasons = Counter((part, kind(reason)) for one in every for part, reason in one.reasons.items())
    for (part, reason), count in sorted(reasons.items()):
        figures[f"reward/none/{part}/{slug(reason)}"] = count / len(every)
    failures = Counter(kind(reason) for one in every for reason in one.simulator)
    figures["simulator/failed"] = sum(failures.values()) / len(every)
    for reason, count in sorted(failures.items()):
        figures[f"simulator/failed/{slug(reason)}"] = count / len(every)
    return figures


def group_figures(every: Sequence[_Outcome], num_generations: int) -> dict[str, float]:
    """`groups/flat`: share of groups whose rewards do not differ; `groups/lost`: with fewer than two rewards.

    Neither moves the policy. trl's `frac_reward_zero_std` does not count the lost ones.
    """
    groups = [every[start : start + num_generations] for start in range(0, len(every), num_generations)]
    values = [[one.value for one in group if one.value is not None] for group in groups]
    lost = sum(len(rewards) < 2 for rewards in values)
    flat = sum(len(rewards) >= 2 and max(rewards) - min(rewards) < 1e-8 for rewards in values)
    return {"groups/flat": flat / len(groups), "groups/lost": lost / len(groups)}
