"""What is kept of a step: its figures for the tracker, sample conversations in RUN_DIR/samples/step-N.parquet and as a
table in wandb, and one readable line in the terminal."""

from __future__ import annotations

import io
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
    """Means of the parts where they have a value, and the shares without one, by part and by reason.

    `reward/PART`, `reward/none` (share of samples without a reward), `reward/none/PART` and
    `reward/none/PART/REASON`, `simulator/failed` (failed conversations a sample) and `simulator/failed/REASON`.
    """
    total = len(samples)
    figures: dict[str, float] = {"reward/none": sum(one.value is None for one in scored) / total}
    for part in sorted({part for one in scored for part in one.parts}):
        values = [value for one in scored if (value := one.parts.get(part)) is not None]
        if values:
            figures[f"reward/{part}"] = sum(values) / len(values)
        if len(values) < total:
            figures[f"reward/none/{part}"] = 1 - len(values) / total
    reasons = Counter((part, reason_kind(reason)) for one in scored for part, reason in one.reasons.items())
    for (part, reason), count in sorted(reasons.items()):
        figures[f"reward/none/{part}/{slug(reason)}"] = count / total
    failures = Counter(reason_kind(reason) for one in samples for reason in one.failures)
    figures["simulator/failed"] = sum(failures.values()) / total
    for reason, count in sorted(failures.items()):
        figures[f"simulator/failed/{slug(reason)}"] = count / total
    return figures


STYLE = ("interactivity", "efficiency", "format")
"""Parts of the reward that say how a reply is written, not what it achieves."""


def group_figures(scored: Sequence[Scored], num_generations: int) -> dict[str, float]:
    """Return `groups/flat`, the share of groups whose samples are alike in everything but style, and `groups/lost`, the share
    with fewer than two rewards.

    A lost group does not change the policy, and a flat one only its style: the parts STYLE differ with every token, so
    rewards are never equal, and trl's `frac_reward_zero_std` stays 0.
    """
    groups = [scored[start : start + num_generations] for start in range(0, len(scored), num_generations)]
    rewarded = [[one.parts for one in group if one.value is not None] for group in groups]
    lost = sum(len(found) < 2 for found in rewarded)
    tasks = [[{name: parts[name] for name in parts if name not in STYLE} for parts in found] for found in rewarded]
    flat = sum(len(found) >= 2 and all(one == found[0] for one in found) for found in tasks)
    return {"groups/flat": flat / len(groups), "groups/lost": lost / len(groups)}


def watch_figures(samples: Sequence[Sample]) -> dict[str, float]:
    """What a policy does to earn its reward without earning it, each over the samples that it can be said of.

    A judge likes replies that end in a polite question, and asking about everything fakes interest; both cost accuracy
    later. So of the first trained reply: does it end in a question that fits any conversation, does it ask although
    nothing is withheld, does it ask where something is; and how long is it.
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
        "tokens": [one.tokens for one in samples],
        "simulated_tokens": [sum(one.simulated_tokens) for one in samples],
        "truncated": [one.truncated for one in samples],
        "generic_ending": generic,
        "over_asking": over_asking,
        "ask_when_needed": ask_when_needed,
    }
    ended = Counter(end for one in samples for end in one.ended)
    return {
        **{f"watch/{name}": sum(values) / len(values) for name, values in of_each.items() if values},
        **{f"watch/ended/{end}": count / sum(ended.values()) for end, count in sorted(ended.items())},
    }


FIRST_ROWS = 5
"""Logged rows that lengths are compared with."""


def length_drift(samples: Sequence[Sample], history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """{"watch/length_drift": trained tokens a sample now, over those of the first rows that the run logged}.

    The history is the trainer's, which a checkpoint brings back, so that a resumed run compares with the same rows.
    """
    first = [row["watch/tokens"] for row in history if row.get("watch/tokens") is not None][:FIRST_ROWS]
    if not first or not sum(first):
        return {}
    return {"watch/length_drift": fmean(one.tokens for one in samples) / fmean(first)}


# --- Are prompts learnt by heart? Prompts that are not trained on tell.

FEWEST_GAPS, MEMORISING_P = 4, 0.002
"""Evaluations that are compared at least, and the p value below which a rising gap is reported. The gap is tested after every
evaluation, and neighbouring gaps share one, so that 0.05 would warn in a third of the runs without any cause."""


def memorising(history: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a warning if the trainer's log shows that prompts are learnt by heart, None otherwise.

    The gap is the reward of trained prompts minus that of held-out ones. It is taken between each two evaluations, as the
    mean of the steps minus the mean of both evaluations, so that curves which rise alike have a gap of 0. The warning is
    given if a line through all gaps rises. With equal curves and 5 to 25 evaluations it is given in 0 to 5% of the runs.

    Args:
        history: the trainer's log, rows with `reward` and rows with `eval_reward`.
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
    if line.slope <= 0 or line.pvalue >= MEMORISING_P:
        return None
    return (
        f"the reward of trained prompts rises faster than that of held-out prompts, by {line.slope:.3f} an evaluation "
        f"(p = {line.pvalue:.1g}): they are learnt by heart. More prompts, fewer passes or a lower learning rate help"
    )


def warn_of_memorising(trainer: Any) -> None:
    """Has `trainer` say so, once, after an evaluation whose rewards part from those of training."""
    from transformers import TrainerCallback

    class Warns(TrainerCallback):
        said = False

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            problem = None if self.said else memorising(state.log_history)
            if problem is not None and state.is_world_process_zero:
                self.said = True
                say(f"warning: step {state.global_step}: {problem}")

    trainer.add_callback(Warns())


def ends_generic(reply: str) -> bool:
    """Whether the last sentence is a question of worn words only, such as "Does that make sense?"."""
    last = sentences(reply)[-1:]
    if not last or not last[0].rstrip("*_\"')]").endswith("?"):
        return False
    worn = word_list("function") | word_list("filler") | word_list("offers")
    return all(word in worn or word.split("'")[0] in worn for word in words(last[0]))


# --- The table of sample conversations. trl's own (`log_completions`) has a reply's text and no conversation.

FOLDER = "samples"
KEPT = 8
"""Samples of a generation, over all processes, spread over its groups."""


def samples_table(
    samples: Sequence[Sample], scored: Sequence[Scored], advantages: Sequence[float], step: int
) -> dict[str, list[Any]]:
    """{column: values} of a table with a row for each sample that is kept of a generation.

    Args:
        advantages: one for each sample; empty where they are not known.
        step: the optimizer step that the samples were generated for.
    """
    count = min(len(samples), KEPT)
    rows = []
    for place in sorted({number * len(samples) // count for number in range(count)}):
        sample, reward = samples[place], scored[place]
        reasons = {**reward.reasons, **({"simulator": ", ".join(sample.failures)} if sample.failures else {})}
        conversations = [_transcript(conversation, sample.start) for conversation in sample.conversations]
        rows.append({
            "step": step,
            "row": sample.row.id,
            "kind": sample.row.kind,
            "withheld": sample.row.withholds,
            "conversation": "\n\n=== played again ===\n\n".join(conversations),
            "ended": ", ".join(sample.ended),
            "tokens": sample.tokens,
            "truncated": sample.truncated,
            "reward": reward.value,
            "advantage": advantages[place] if place < len(advantages) else None,
            **{f"part_{name}": value for name, value in sorted(reward.parts.items())},
            "reasons": "; ".join(f"{part}: {reason}" for part, reason in sorted(reasons.items())),
        })  # fmt: skip
    return {name: [row[name] for row in rows] for name in rows[0]}


def _transcript(conversation: Messages, start: int) -> str:
    """A conversation as text; a line marks where the prompt ends."""
    turns = [f"{message['role']}: {message['content']}" for message in conversation]
    return "\n\n".join([*turns[:start], "--- the policy goes on ---", *turns[start:]])


def write_samples(path: Path, table: dict[str, list[Any]]) -> None:
    """As parquet, whole or not at all; a column keeps its type also where all its values are missing."""
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

    # A column of a wandb table holds one type, so everything is text.
    cells = [
        ["" if one is None else f"{one:.4g}" if isinstance(one, float) else str(one) for one in row]
        for row in zip(*table.values(), strict=True)
    ]
    try:
        run.log({"samples/conversations": wandb.Table(columns=list(table), data=cells), TRAIN_STEP: step})
    except Exception as error:  # noqa: BLE001 - whatever a tracker raises must not stop training
        print(f"warning: wandb did not take the sample conversations ({' '.join(str(error).split())})", flush=True)


def keep_samples(trainer: Any, reward: Any) -> None:
    """Has `trainer`, of `train.overrides.RolloutTrainer`, write samples of the last generation that was trained on whenever it
    logs, and show them in wandb."""
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


# --- One readable line a step in the terminal; trl's fifty figures go to the tracker and to trainer_state.json.


def step_line(step: int, most: int, logs: Mapping[str, Any]) -> str:
    """Such as "step 3/30  reward 0.41 (accuracy 0.31, efficiency 0.52)  no variance in 25% of groups  124 tokens"."""
    parts = ", ".join(
        f"{name.removeprefix('reward/')} {value:.2f}"
        for name, value in sorted(logs.items())
        if name.startswith("reward/") and name.count("/") == 1 and name != "reward/none" and value is not None
    )

    def told(name: str, wording: str, zero: bool = True) -> str:
        value = logs.get(name)
        return "" if value is None or not (zero or value) else wording.format(value)

    shown = [
        f"step {step}/{most}",
        told("reward", f"reward {{:.3f}} ({parts})") or "no sample has a reward",
        told("reward/none", "{:.0%} of samples without a reward", zero=False),
        told("groups/flat", "equal accuracy and asking in {:.0%} of groups", zero=False),
        told("watch/tokens", "{:.0f} tokens"),
        told("watch/truncated", "{:.0%} cut", zero=False),
        told("kl", "KL {:.2g}"),
        f"loss {logs['loss']:.4f}",
        told("step_time", "{:.1f} s"),
    ]
    return "  ".join(part for part in shown if part)


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
