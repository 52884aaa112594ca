"""A gate for problems that are told piece by piece: few pieces at first, and one more whenever the policy can solve what it has.

A policy that loses its way over several turns earns the same for nearly all samples of such a problem, so it learns nothing
from them. So a problem begins with one piece left to tell; what comes before it stands in the first message. Once problems
told this way are solved at a share of the rate of whole problems, one more piece is left. RLAAR (arXiv 2510.18731) took 0.8
for the share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from nextturn.data_builders.rows import RlRow
from nextturn.probe.conversations import user
from nextturn.probe.errors import RecipeError
from nextturn.probe.files import read_json, write_json
from nextturn.probe.shards import Shards
from nextturn.train.rewards import Sample, Scored

RECENT = 64
"""Samples of each kind over which accuracy is averaged."""
STATE = "gate.json"
"""File of a checkpoint."""
WHOLE = ("", "complete", "twin")
"""Kinds of prompts that tell a whole problem."""


@dataclass
class Progress:
    """What a resumed run goes on from.

    Attributes:
        left: Pieces that are left to tell after the first message, at most.
        in_pieces, whole: Accuracy of the latest samples of problems with that many pieces left, and of whole problems.
    """

    left: int = 1
    in_pieces: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


def is_whole(row: RlRow) -> bool:
    """Return True if the prompt is a whole problem and nothing else: no result of the user's, no reply yet."""
    return row.kind in WHOLE and not (row.shards or row.withholds or row.turn)


class ShardGate:
    """Chooses how much of a problem the first message tells. It is equal on all processes, since `add` gets the samples of all.

    Args:
        share: Of the accuracy on whole problems, what opens the gate, from 0 to 1.
        rows: All prompts that are trained on.

    Raises:
        RecipeError: The prompts have no problem in pieces, or no whole one to compare with.
    """

    def __init__(self, share: float, rows: Iterable[RlRow]) -> None:
        every = list(rows)
        kinds = {"in pieces (`shards`)": any(row.shards for row in every), "whole": any(map(is_whole, every))}
        for kind, is_there in kinds.items():
            if not is_there:
                raise RecipeError(
                    f"rollout.gate: none of the {len(every)} prompts tells a problem {kind}, expected both kinds"
                )
        self.share, self.most = share, max(len(row.shards) for row in every)
        self.progress = Progress()

    def open_row(self, row: RlRow) -> RlRow:
        """Return the row with all pieces but the last ones told in its last message, as a list, like the probe's *concat*."""
        told = row.shards[: -self.progress.left]
        if not told:
            return row
        message = Shards(row.prompt[-1]["content"], told).concat()
        return replace(row, prompt=(*row.prompt[:-1], user(message)), shards=row.shards[len(told) :])

    def add(self, samples: Sequence[Sample], scored: Sequence[Scored]) -> dict[str, float]:
        """Take the trained samples of a generation, open the gate for the next one if they suffice, and return figures for the log."""
        now = self.progress
        for sample, reward in zip(samples, scored, strict=True):
            if (value := reward.parts.get("accuracy")) is None:
                continue
            if len(sample.row.shards) == now.left:
                now.in_pieces.append(value)
            elif is_whole(sample.row):
                now.whole.append(value)
        now.in_pieces, now.whole = now.in_pieces[-RECENT:], now.whole[-RECENT:]
        enough = len(now.in_pieces) == len(now.whole) == RECENT and fmean(now.whole) > 0
        if enough and now.left < self.most and fmean(now.in_pieces) >= self.share * fmean(now.whole):
            self.progress = Progress(now.left + 1, whole=now.whole)
        return {"gate/left": float(now.left)}

    def callback(self) -> Any:
        """Return the trainer's callback that writes the progress into each checkpoint, before it is marked as complete, and reads it from the one
        that a run resumes from."""
        from transformers import TrainerCallback

        gate = self

        class KeepsProgress(TrainerCallback):
            def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                if (saved := _state_file(args, state)).is_file():
                    gate.progress = Progress(**read_json(saved))

            def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                if state.is_world_process_zero:
                    write_json(_state_file(args, state), asdict(gate.progress))

        return KeepsProgress()


def _state_file(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
