"""The figures of a GRPO step, its sample conversations, and its line in the terminal.

Sample conversations are written to RUN_DIR/samples/step-N.parquet and shown as a table in wandb.
"""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from nextturn.probe.files import write_atomic
from nextturn.probe.grading import outcome
from nextturn.probe.report.tracking import TRAIN_STEP, current_run, slug
from nextturn.probe.terminal import say
from nextturn.probe.text import sentences, word_list, words
from nextturn.train.rewards import OPEN_KINDS, Messages, Sample, Scored, asks_instead, reason_kind

# --- The figures of a step, over the samples of all processes.


def reward_figures(samples: Sequence[Sample], scored: Sequence[Scored]) -> dict[str, float]:
    """Return means of the parts, and shares of samples without a value by part and by reason.

    `reward/PART`, `reward/none` (share of samples without a reward), `reward/none/PART` and `reward/none/PART/REASON`,
    `simulator/failed` (failed conversations a sample) and `simulator/failed/REASON`.
    """
    total = len(samples)
    figures: dict[str, float] = {"reward/none": sum(reward.value is None for reward in scored) / total}
    for part in sorted({part for reward in scored for part in reward.parts}):
        values = [value for reward in scored if (value := reward.parts.get(part)) is not None]
        if values:
            figures[f"reward/{part}"] = fmean(values)
        if len(values) < total:
            figures[f"reward/none/{part}"] = 1 - len(values) / total
    reasons = Counter(f"{part}/{slug(reason_kind(why))}" for reward in scored for part, why in reward.reasons.items())
    failures = Counter(slug(reason_kind(reason)) for sample in samples for reason in sample.failures)
    figures["simulator/failed"] = failures.total() / total
    for prefix, counts in {"reward/none": reasons, "simulator/failed": failures}.items():
        figures |= {f"{prefix}/{name}": count / total for name, count in sorted(counts.items())}
    return figures


STYLE = ("interactivity", "efficiency", "format")
"""Parts of the reward that say how a reply is written, not what it achieves."""


def group_figures(scored: Sequence[Scored], num_generations: int) -> dict[str, float]:
    """Return `groups/flat`, the share of groups whose samples are equal in all parts but style, and `groups/lost`, the share of
    groups with fewer than two rewards.

    A lost group does not change the policy, and a flat one only its style: the parts STYLE differ with every token, so
    rewards are never equal, and trl's `frac_reward_zero_std` stays 0.
    """
    groups = [scored[start : start + num_generations] for start in range(0, len(scored), num_generations)]
    rewarded = [[reward.parts for reward in group if reward.value is not None] for group in groups]
    tasks = [[{part: parts[part] for part in parts if part not in STYLE} for parts in group] for group in rewarded]
    lost = sum(len(parts) < 2 for parts in tasks)
    flat = sum(len(parts) >= 2 and all(other == parts[0] for other in parts) for parts in tasks)
    return {"groups/flat": flat / len(groups), "groups/lost": lost / len(groups)}


def watch_figures(samples: Sequence[Sample]) -> dict[str, float]:
    """Return what shows that a policy games its reward, each as a mean over the samples to which it applies.

    A judge likes replies that end in a polite question, and asking about everything looks like interest; both cost accuracy
    later. So of the first trained reply: does it end in a question that fits any conversation, does it ask although nothing
    is withheld, does it ask if a fact is; and how long is it.
    """
    generic, over_asking, ask_when_needed = [], [], []
    for sample in samples:
        if not sample.conversations:  # its simulator failed
            continue
        conversation = sample.conversations[0]
        reply = conversation[sample.start]["content"]
        generic.append(ends_generic(reply))
        cut = sample.truncated and len(conversation) == sample.start + 1
        if sample.row.withholds:
            ask_when_needed.append(outcome(reply, cut) == "asked")  # as the probe's clarify judges it
        elif sample.row.kind not in OPEN_KINDS:
            over_asking.append(not cut and asks_instead(sample.row, reply))  # as the reward does
    of_each: dict[str, list[Any]] = {
        "tokens": [sample.tokens for sample in samples],
        "simulated_tokens": [sum(sample.simulated_tokens) for sample in samples],
        "truncated": [sample.truncated for sample in samples],
        "generic_ending": generic,
        "over_asking": over_asking,
        "ask_when_needed": ask_when_needed,
    }
    ended = Counter(end for sample in samples for end in sample.ended)
    return {
        **{f"watch/{name}": fmean(values) for name, values in of_each.items() if values},
        **{f"watch/ended/{end}": count / sum(ended.values()) for end, count in sorted(ended.items())},
    }


FIRST_ROWS = 5
"""Number of logged rows with which lengths are compared."""


def length_drift(samples: Sequence[Sample], history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return `watch/length_drift`: the trained tokens of a sample now, divided by those of the first rows that the run logged.

    The history is the trainer's, which a checkpoint restores, so that a resumed run compares with the same rows.
    """
    first = [row["watch/tokens"] for row in history if row.get("watch/tokens") is not None][:FIRST_ROWS]
    if not first or not sum(first):
        return {}
    return {"watch/length_drift": fmean(sample.tokens for sample in samples) / fmean(first)}


# --- Are prompts memorized? Held-out prompts show it.

FEWEST_GAPS, MEMORIZING_P = 4, 0.002
"""Evaluations that are needed, and the p value below which a rising gap is reported. The gap is tested after every evaluation,
and neighbouring gaps share one, so that 0.05 would warn in a third of the runs without any cause."""


def memorizing(history: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a warning if the trainer's log shows that prompts are memorized, None otherwise.

    The gap is the reward of trained prompts minus that of held-out ones. It is taken between each two evaluations, as the
    mean of the steps minus the mean of both evaluations, so that curves which rise alike have a gap of 0. The warning is
    given if a line through all gaps rises. With equal curves and 5 to 25 evaluations it is given in 0 to 5% of the runs.

    Args:
        history: The trainer's log, rows with `reward` and rows with `eval_reward`.
    """
    gaps: list[float] = []
    trained: list[float] = []
    before: float | None = None
    for row in history:
        if row.get("reward") is not None:
            trained.append(row["reward"])
        if (held_out := row.get("eval_reward")) is not None:
            if trained and before is not None:
                gaps.append(fmean(trained) - (before + held_out) / 2)
            trained, before = [], held_out
    if len(gaps) < FEWEST_GAPS or history[-1].get("eval_reward") is None:
        return None
    from scipy.stats import linregress

    line = linregress(range(len(gaps)), gaps)
    if line.slope <= 0 or line.pvalue >= MEMORIZING_P:
        return None
    return (
        f"the reward of trained prompts rises faster than that of held-out prompts, by {line.slope:.3f} an evaluation "
        f"(p = {line.pvalue:.1g}): they are memorized. More prompts, fewer epochs or a lower learning rate help"
    )


def warn_of_memorizing(trainer: Any) -> None:
    """Make `trainer` warn, once, after an evaluation that shows memorized prompts."""
    from transformers import TrainerCallback

    class MemorizingWarning(TrainerCallback):
        warned = False

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            problem = None if self.warned else memorizing(state.log_history)
            if problem is not None and state.is_world_process_zero:
                self.warned = True
                say(f"warning: step {state.global_step}: {problem}")

    trainer.add_callback(MemorizingWarning())


def ends_generic(reply: str) -> bool:
    """Return True if the last sentence is a question of common words only, such as "Does that make sense?"."""
    last = sentences(reply)[-1:]
    if not last or not last[0].rstrip("*_\"')]").endswith("?"):
        return False
    common = word_list("function") | word_list("filler") | word_list("offers")
    return all(word in common or word.split("'")[0] in common for word in words(last[0]))


# --- The table of sample conversations; trl's own (`log_completions`) has replies without their conversation.

FOLDER = "samples"
KEPT = 8
"""Samples that are kept of a generation of all processes, spread over its groups."""


def samples_table(
    samples: Sequence[Sample], scored: Sequence[Scored], advantages: Sequence[float], step: int
) -> dict[str, list[Any]]:
    """Return a table {column: values} with a row for each sample that is kept of a generation.

    Args:
        advantages: One for each sample; empty if they are not known.
        step: The optimizer step for which the samples were generated.
    """
    count = min(len(samples), KEPT)
    rows = []
    for index in sorted({number * len(samples) // count for number in range(count)}):
        sample, reward = samples[index], scored[index]
        reasons = {**reward.reasons, **({"simulator": ", ".join(sample.failures)} if sample.failures else {})}
        conversations = [_transcript(conversation, sample.start) for conversation in sample.conversations]
        rows.append({
            "step": step,
            "row": sample.row.id,
            "kind": sample.row.kind,
            "withheld": sample.row.withholds,
            "conversation": "\n\n=== another look-ahead ===\n\n".join(conversations),
            "ended": ", ".join(sample.ended),
            "tokens": sample.tokens,
            "truncated": sample.truncated,
            "reward": reward.value,
            "advantage": advantages[index] if index < len(advantages) else None,
            **{f"part_{name}": value for name, value in sorted(reward.parts.items())},
            "reasons": "; ".join(f"{part}: {reason}" for part, reason in sorted(reasons.items())),
        })  # fmt: skip
    return {name: [row[name] for row in rows] for name in rows[0]}


def _transcript(conversation: Messages, start: int) -> str:
    """Return a conversation as text, with a line where the prompt ends."""
    turns = [f"{message['role']}: {message['content']}" for message in conversation]
    return "\n\n".join([*turns[:start], "--- end of the prompt ---", *turns[start:]])


def write_samples(path: Path, table: dict[str, list[Any]]) -> None:
    """Write the table as Parquet, atomically; a column keeps its type even if all its values are missing."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    numbers = [name for name in table if name in ("reward", "advantage") or name.startswith("part_")]
    columns = {name: pa.array(values, pa.float64() if name in numbers else None) for name, values in table.items()}
    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns), buffer)
    write_atomic(path, buffer.getvalue())


def _show_in_wandb(table: dict[str, list[Any]], step: int) -> None:
    run = current_run()
    if run is None or run.disabled:
        return
    import wandb

    # A column of a wandb table has one type, so everything is text.
    cells = [
        ["" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value) for value in row]
        for row in zip(*table.values(), strict=True)
    ]
    try:
        run.log({"samples/conversations": wandb.Table(columns=list(table), data=cells), TRAIN_STEP: step})
    except Exception as error:  # noqa: BLE001 - whatever a tracker raises must not stop training
        print(f"warning: wandb did not take the sample conversations ({' '.join(str(error).split())})", flush=True)


def keep_samples(trainer: Any, reward: Any) -> None:
    """Make `trainer`, of `train.overrides.RolloutTrainer`, write samples of the last trained generation whenever it logs, and
    show them in wandb."""
    from transformers import TrainerCallback

    class SampleTable(TrainerCallback):
        def __init__(self) -> None:
            self.written = 0

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not state.is_world_process_zero or not reward.samples or self.written == state.global_step:
                return
            self.written = state.global_step
            table = samples_table(reward.samples, reward.scored, trainer.trained_advantages, reward.step)
            write_samples(Path(args.output_dir) / FOLDER / f"step-{state.global_step}.parquet", table)
            _show_in_wandb(table, state.global_step)

    trainer.add_callback(SampleTable())


# --- One line a step in the terminal; trl's fifty figures go to the tracker and to trainer_state.json.

# Name in the log, wording, whether a zero is shown.
_SHOWN = (
    ("reward/none", "{:.0%} of samples without a reward", False),
    ("groups/flat", "equal accuracy and asking in {:.0%} of groups", False),
    ("watch/tokens", "{:.0f} tokens", True),
    ("watch/truncated", "{:.0%} truncated", False),
    ("kl", "KL {:.2g}", True),
    ("loss", "loss {:.4f}", True),
    ("step_time", "{:.1f} s", True),
)


def step_line(step: int, most: int, logs: Mapping[str, Any]) -> str:
    """Return such as "step 3/30  reward 0.41 (accuracy 0.31, efficiency 0.52)  124 tokens  loss 0.0123"."""
    parts = ", ".join(
        f"{name.removeprefix('reward/')} {value:.2f}"
        for name, value in sorted(logs.items())
        if name.startswith("reward/") and name.count("/") == 1 and name != "reward/none" and value is not None
    )
    reward = logs.get("reward")
    shown = [f"step {step}/{most}", "no sample has a reward" if reward is None else f"reward {reward:.3f} ({parts})"]
    for name, wording, zero in _SHOWN:
        if (value := logs.get(name)) is not None and (zero or value):
            shown.append(wording.format(value))
    return "  ".join(shown)


def print_step_lines(trainer: Any) -> None:
    """Make `trainer` print step lines, above its progress bar if it has one, instead of everything that it logs."""
    from tqdm import tqdm
    from transformers import PrinterCallback, ProgressCallback

    def print_line(args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            line = step_line(state.global_step, state.max_steps, logs) if "loss" in logs else str(dict(logs))
            tqdm.write(line)
            sys.stdout.flush()

    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, (ProgressCallback, PrinterCallback)):
            callback.on_log = print_line
