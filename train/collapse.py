"""Warn when a GRPO policy collapses, and end the run if the recipe says so.

A policy that has found a hack ends in saying the same to everything. Two signs are watched over at least LEAST samples of all
processes: the share of distinct replies, and the accuracy on held-out prompts. A run is compared with its own start. The length
of replies is only shown, since shorter replies may be better ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from nextturn.probe.command.errors import TrainingStopped
from nextturn.probe.command.terminal import say
from nextturn.probe.stats import clustered_rate
from nextturn.train.scoring import Rewards

LEAST = 64
"""Samples that are compared at least."""


class WatchesCollapse(TrainerCallback):  # type: ignore[misc]
    """Warns of a collapse, and with `stops` ends the run after a checkpoint. Add it after the callbacks that mark and measure
    checkpoints.

    Every process sees the same samples, so all of them stop together. What was seen is part of the trainer's state, which
    checkpoints have, so that a resumed run is compared with the start of the run.
    """

    def __init__(self, rewards: Rewards, stops: bool) -> None:
        self.rewards, self.stops = rewards, stops

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._look("replies", state, replies_fault)
        control.should_save = control.should_save or (self.stops and bool(_faults(state)))

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._look("held_out", state, accuracy_fault)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raise TrainingStopped if the policy has collapsed and the recipe ends the run then, except after the last step."""
        step, faults = state.global_step, _faults(state)
        if self.stops and faults and step < state.max_steps:
            raise TrainingStopped(
                f"stopped after step {step}, saved as checkpoint-{step}: {'; '.join(faults)}. Begin another run with another reward "
                "or a lower train.learning_rate, or go on with --rollout.stop_on_collapse false"
            )

    on_train_begin = on_save  # of a run that was stopped

    def _look(self, kind: str, state: Any, fault: Callable[[list[Any], list[Any]], str]) -> None:
        """Take the samples since the last look, and compare the newest ones with as many of the start."""
        new, self.rewards.seen[kind] = self.rewards.seen[kind], []
        seen = _seen(state).setdefault(kind, {"start": [], "newest": [], "fault": ""})
        if len(seen["start"]) < LEAST:
            seen["start"] += new
        seen["newest"] = [*seen["newest"], *new][-len(seen["start"]) :]
        if new and len(seen["start"]) >= LEAST:
            before, seen["fault"] = seen["fault"], fault(seen["start"], seen["newest"])
            if seen["fault"] and not before:
                say(f"warning: step {state.global_step}: {seen['fault']}. The policy may have collapsed, see samples/")


def _seen(state: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = state.stateful_callbacks.setdefault(WatchesCollapse.__name__, {})
    return found


def _faults(state: Any) -> list[str]:
    return [seen["fault"] for seen in _seen(state).values() if seen["fault"]]


def replies_fault(start: list[str], newest: list[str]) -> str:
    """Return what is wrong if the share of distinct replies is below half of the start's; else ""."""
    before, now = (len(set(replies)) / len(replies) for replies in (start, newest))
    return f"{now:.0%} of {len(newest)} replies are distinct, {before:.0%} at the start" if now < before / 2 else ""


def accuracy_fault(start: list[tuple[str, float]], newest: list[tuple[str, float]]) -> str:
    """Return what is wrong if the accuracy is below half of the start's, which its interval excludes; else "".

    Args:
        start, newest: Samples as (problem, accuracy).
    """
    before, now = (clustered_rate([right for _, right in rows], [name for name, _ in rows]) for rows in (start, newest))
    assert before.value is not None and now.value is not None and now.ci95 is not None  # neither is empty
    if now.value >= before.value / 2 or now.ci95[1] >= before.value:
        return ""
    return f"held-out accuracy is {now.value:.0%} over {now.n} samples, {before.value:.0%} at the start"
