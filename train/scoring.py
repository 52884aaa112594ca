"""The reward function that trl calls: the composed reward of each sample, or None.

trl sums several reward functions and counts a part that failed as 0, so that a correct answer whose judge timed out gets a
lower advantage than its group. Here a sample whose required part failed has no reward: it gets no advantage and does not
change its group's mean. A few such samples are left out, many stop the run. Every part is logged next to the reward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import TrainingStopped
from nextturn.probe.command.terminal import is_main_process, say
from nextturn.train.rewards import Rewards, Sample, Scored
from nextturn.train.samples import group_figures, reward_figures, watch_figures, write_samples

_REASONS_SHOWN = 3


@dataclass(eq=False)
class ComposedReward:
    """Called by trl once per generation, on every process with its own samples.

    Args:
        rewards: Scores this process's samples.
        num_generations: Samples of a group; groups are contiguous over all processes in their order.
        max_failed: Share of samples without a reward above which every process stops; for held-out rows it warns.
        held_out: Ids of rows that are not trained on. A generation has such rows only or none: trl evaluates separately.
        folder: Directory for samples of every trained generation; None writes none.
    """

    rewards: Rewards
    num_generations: int
    max_failed: float
    held_out: Container[str] = ()
    folder: Path | None = None

    __name__ = "composed"  # trl's name for it in the log

    def __post_init__(self) -> None:
        self._failures_seen: set[str] = set()

    def __call__(
        self,
        samples: Sequence[Sample],
        trainer_state: Any,
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
        **_: Any,
    ) -> list[float | None]:
        """Return the reward of each sample, None if it has none.

        Raises:
            TrainingStopped: Too many samples of a trained generation have no reward; on every process alike.
        """
        from accelerate.utils import gather_object

        scored = self.rewards.score(samples)
        # Every process sees the samples of all, so that all stop together and log the same figures.
        every, every_scored = gather_object(list(samples)), gather_object(scored)
        trained = samples[0].row.id not in self.held_out
        problem = check_failures(every_scored, self.max_failed)
        if problem is not None and trained:
            raise TrainingStopped(
                f"stopped before step {trainer_state.global_step + 1}: {problem}. Fix the cause, or leave the part out of "
                "reward.required; the same command then goes on from the last checkpoint, if there is one"
            )
        if problem is not None:  # a batch may be a single sample, and no step depends on it
            say(f"warning: step {trainer_state.global_step}: of a batch of held-out prompts {problem}")

        figures = {**reward_figures(every, every_scored), **watch_figures(every)}
        if trained:
            figures |= group_figures(every_scored, self.num_generations)
            if self.folder is not None and is_main_process():
                write_samples(self.folder / f"step-{trainer_state.global_step + 1}.jsonl", every, every_scored)
        # A failure that occurred once is logged as 0 later: trl averages the values between two log lines.
        self._failures_seen |= {name for name in figures if name.startswith(("reward/none/", "simulator/failed/"))}
        for name, value in {**dict.fromkeys(sorted(self._failures_seen), 0.0), **figures}.items():
            log_metric(name, value)

        # trl's own table of completions: this process's samples.
        log_extra("row", [sample.row.id for sample in samples])
        for part in sorted({part for reward in scored for part in reward.parts}):
            log_extra(part, [reward.parts.get(part) for reward in scored])
        return [reward.value for reward in scored]


def check_failures(scored: Sequence[Scored], limit: float) -> str | None:
    """Return what is wrong if too many samples of all processes have no reward; None otherwise."""
    lost = [reward.reasons for reward in scored if reward.value is None]
    if len(lost) <= limit * len(scored):
        return None
    counts = Counter(f"{part} {reason}" for reasons in lost for part, reason in sorted(reasons.items()))
    named = "; ".join(f"{reason} ({count})" for reason, count in counts.most_common(_REASONS_SHOWN))
    more = f"; and {len(counts) - _REASONS_SHOWN} other reasons" if len(counts) > _REASONS_SHOWN else ""
    return (
        f"{len(lost)} of {len(scored)} samples have no reward ({len(lost) / len(scored):.0%}, reward.max_failed allows "
        f"{limit:.0%}): {named}{more}"
    )
