"""Sample conversations of a run with the parts of their rewards: RUN_DIR/samples/step-N.parquet, and a table in wandb."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_builders.rows import RlRow
from probe.files import write_atomic
from probe.grading import outcome
from probe.judges.text import sentences, word_list, words
from probe.tracking import TRAIN_STEP, current_run
from train.rewards import OPEN_KINDS, Played, withholds

if TYPE_CHECKING:
    from train.scoring import ComposedReward, Scored


# --- What a policy does to earn its reward without earning it, watched next to the reward curve.
#
# A judge likes replies that end in a polite question, and asking about everything fakes interest; both cost accuracy
# later. So for the first trained reply of every sample: does it end in a question that fits any conversation, does it
# ask although nothing is withheld, does it ask where something is; and how long is it, against the first steps of the run.

FIRST_ROWS = 5
"""Logged rows that lengths are compared with."""


@dataclass(frozen=True)
class Seen:
    """One sample as the watch counts it.

    Attributes:
        withheld: whether something is still to be asked for; None where asking is neither right nor wrong (a hint).
        asks, generic: None where there is no reply to look at, since its simulator failed.
    """

    tokens: int
    truncated: bool
    withheld: bool | None
    asks: bool | None
    generic: bool | None
    ended: tuple[str, ...]
    simulated_tokens: int


def see(played: Played) -> Seen:
    """The first trained reply of a sample; whether it asks is judged as the probe's clarify does it."""
    reply = played.conversations[0][played.start]["content"] if played.conversations else None
    cut = played.truncated and bool(played.conversations) and len(played.conversations[0]) == played.start + 1
    return Seen(
        tokens=played.tokens,
        truncated=played.truncated,
        withheld=withheld(played.row),
        asks=None if reply is None else outcome(reply, cut) == "asked",
        generic=None if reply is None else ends_generic(reply),
        ended=played.ended,
        simulated_tokens=sum(played.simulated_tokens),
    )


def withheld(row: RlRow) -> bool | None:
    return True if withholds(row) else None if row.kind in OPEN_KINDS else False


def ends_generic(reply: str) -> bool:
    """Whether the last sentence is a question of worn words only, such as "Does that make sense?"."""
    last = sentences(reply)[-1:]
    if not last or not last[0].rstrip("*_\"')]").endswith("?"):
        return False
    worn = word_list("function") | word_list("filler") | word_list("offers")
    return all(word in worn or word.split("'")[0] in worn for word in words(last[0]))


def watch_figures(every: Sequence[Seen]) -> dict[str, float]:
    """Shares and lengths of one generation, each over the samples that it can be said of."""
    figures = {
        "watch/tokens": _mean([one.tokens for one in every]),
        "watch/simulated_tokens": _mean([one.simulated_tokens for one in every]),
        "watch/truncated": _mean([one.truncated for one in every]),
        "watch/generic_ending": _mean([one.generic for one in every if one.generic is not None]),
        "watch/over_asking": _mean([one.asks for one in every if one.asks is not None and one.withheld is False]),
        "watch/ask_when_needed": _mean([one.asks for one in every if one.asks is not None and one.withheld]),
    }
    ends = Counter(end for one in every for end in one.ended)
    figures |= {f"watch/ended/{end}": count / sum(ends.values()) for end, count in sorted(ends.items())}
    return {name: value for name, value in figures.items() if value is not None}


def length_drift(figures: Mapping[str, float], history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """{"watch/length_drift": trained tokens a sample now, over those of the first rows that the run logged}.

    The history is the trainer's, which a checkpoint brings back, so that a resumed run compares with the same rows.
    """
    first = [row["watch/tokens"] for row in history if row.get("watch/tokens") is not None][:FIRST_ROWS]
    if not first or not sum(first):
        return {}
    return {"watch/length_drift": figures["watch/tokens"] / (sum(first) / len(first))}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


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


# --- One readable line a step in the terminal; trl's fifty figures go to the tracker and to trainer_state.json.


def step_line(step: int, most: int, logs: Mapping[str, Any]) -> str:
    """Such as "step 3/30  reward 0.41 (accuracy 0.31, efficiency 0.52)  no variance in 25% of groups  124 tokens"."""
    parts = ", ".join(
        f"{name.removeprefix('reward/')} {value:.2f}"
        for name, value in sorted(logs.items())
        if name.startswith("reward/") and name.count("/") == 1 and name != "reward/none" and value is not None
    )
    reward = logs.get("reward")
    shown = [
        f"step {step}/{most}",
        f"reward {reward:.3f} ({parts})" if reward is not None else "no sample has a reward",
        _share(logs, "reward/none", "{} of samples without a reward"),
        _share(logs, "groups/flat", "no variance in {} of groups"),
        f"{logs['watch/tokens']:.0f} tokens" if logs.get("watch/tokens") is not None else "",
        _share(logs, "watch/truncated", "{} cut"),
        f"KL {logs['kl']:.2g}" if logs.get("kl") is not None else "",
        f"loss {logs['loss']:.4f}",
        f"{logs['step_time']:.1f} s" if logs.get("step_time") is not None else "",
    ]
    return "  ".join(part for part in shown if part)


def _share(logs: Mapping[str, Any], name: str, wording: str) -> str:
    value = logs.get(name)
    return wording.format(f"{value:.0%}") if value else ""


def print_step_lines(trainer: Any) -> None:
    """Has `trainer` print step lines, above its progress bar where it shows one, in place of everything it logs."""
    from transformers import PrinterCallback, ProgressCallback

    def text(state: Any, logs: Mapping[str, Any]) -> str:
        return step_line(state.global_step, state.max_steps, logs) if "loss" in logs else str(dict(logs))

    class ShortProgress(ProgressCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if state.is_world_process_zero and self.training_bar is not None and logs:
                self.training_bar.write(text(state, logs))

    class ShortPrinter(PrinterCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if state.is_local_process_zero and logs:
                print(text(state, logs), flush=True)

    for long, short in ((ProgressCallback, ShortProgress), (PrinterCallback, ShortPrinter)):
        if trainer.pop_callback(long) is not None:
            trainer.add_callback(short())
