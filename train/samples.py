"""Sample conversations of a run with the parts of their rewards: RUN_DIR/samples/step-N.parquet, and a table in wandb."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.files import write_atomic
from probe.tracking.wandb_runs import TRAIN_STEP, current_run
from train.played import Played
from train.reward_watch import withheld

if TYPE_CHECKING:
    from train.composed_reward import ComposedReward
    from train.rewards import Scored

FOLDER = "samples"


@dataclass(frozen=True)
class SampleRow:
    """One sample as it is stored.

    Attributes:
        place: the sample's number in its generation batch, over all processes.
        step: the optimizer step that it was generated for.
        conversations: each whole transcript as text; trained turns are marked.
        value: the reward; None where the sample was left out, for which `reasons` says why.
    """

    place: int
    step: int
    row: str
    kind: str
    withheld: bool
    conversations: tuple[str, ...]
    ended: tuple[str, ...]
    tokens: int
    truncated: bool
    value: float | None
    parts: dict[str, float | None] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    failures: tuple[str, ...] = ()


def sample_row(place: int, step: int, played: Played, scored: Scored) -> SampleRow:
    return SampleRow(
        place=place,
        step=step,
        row=played.row.id,
        kind=played.row.kind,
        withheld=bool(withheld(played.row)),
        conversations=tuple(transcript(talk, played.start) for talk in played.conversations),
        ended=played.ended,
        tokens=played.tokens,
        truncated=played.truncated,
        value=scored.value,
        parts=dict(scored.parts),
        reasons=dict(scored.reasons),
        failures=played.failures,
    )


def transcript(messages: Sequence[dict[str, str]], start: int) -> str:
    """A conversation as text; a line marks where the prompt ends."""
    turns = [f"{message['role']}: {message['content']}" for message in messages]
    return "\n\n".join([*turns[:start], "--- the policy goes on ---", *turns[start:]])


def columns(rows: Sequence[SampleRow], advantages: Sequence[float]) -> dict[str, list[Any]]:
    """{column: values} of a table; conversations of one sample stand below each other.

    Args:
        advantages: of the whole generation batch, by `place`; empty where they are not known.
    """
    table: dict[str, list[Any]] = {
        "step": [row.step for row in rows],
        "row": [row.row for row in rows],
        "kind": [row.kind for row in rows],
        "withheld": [row.withheld for row in rows],
        "conversation": ["\n\n=== played again ===\n\n".join(row.conversations) for row in rows],
        "ended": [", ".join(row.ended) for row in rows],
        "tokens": [row.tokens for row in rows],
        "truncated": [row.truncated for row in rows],
        "reward": [row.value for row in rows],
        "advantage": [advantages[row.place] if row.place < len(advantages) else None for row in rows],
    }
    for part in sorted({part for row in rows for part in row.parts}):
        table[f"part_{part}"] = [row.parts.get(part) for row in rows]
    reasons = [{**row.reasons, **({"simulator": ", ".join(row.failures)} if row.failures else {})} for row in rows]
    return table | {"reasons": ["; ".join(f"{part}: {why}" for part, why in sorted(one.items())) for one in reasons]}


def write_samples(path: Path, table: dict[str, list[Any]]) -> None:
    """As parquet, whole or not at all; a column keeps its type also where all its values are missing."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    kinds = {int: pa.int64(), bool: pa.bool_(), str: pa.string(), float: pa.float64()}
    fields = []
    for name, values in table.items():
        kind = float if name in ("reward", "advantage") or name.startswith("part_") else type(values[0])
        fields.append(pa.field(name, kinds[kind]))
    buffer = io.BytesIO()
    parquet.write_table(pa.table(table, schema=pa.schema(fields)), buffer)
    write_atomic(path, buffer.getvalue())


def keep_samples(trainer: Any, reward: ComposedReward) -> None:
    """Has `trainer` write the reward's samples whenever it logs, and show them in the tracked run."""
    from transformers import TrainerCallback

    class SampleTable(TrainerCallback):
        def __init__(self) -> None:
            self.told = 0

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not state.is_world_process_zero or not reward.samples or self.told == state.global_step:
                return
            self.told = state.global_step
            # trl keeps the advantages of the last generation batch for its own table of completions.
            table = columns(reward.samples, list(trainer._logs["advantages"]))
            write_samples(Path(args.output_dir) / FOLDER / f"step-{state.global_step}.parquet", table)
            _show(table, state.global_step)

    trainer.add_callback(SampleTable())


def _show(table: dict[str, list[Any]], step: int) -> None:
    run = current_run()
    if run is None or run.disabled:
        return
    import wandb

    shown = [[_cell(values[row]) for values in table.values()] for row in range(len(table["step"]))]
    try:
        run.log({"samples/conversations": wandb.Table(columns=list(table), data=shown), TRAIN_STEP: step})
    except Exception as error:  # noqa: BLE001 - whatever a tracker raises must not stop training
        print(f"warning: wandb did not take the sample conversations ({' '.join(str(error).split())})", flush=True)


def _cell(value: Any) -> Any:
    """A table column holds one type, so everything is text."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
