"""The figures of a GRPO step, its sample conversations in RUN_DIR/samples/step-N.jsonl, and its line in the terminal."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from nextturn.data_builders.asked_for import asks_instead
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.data.messages import said_by
from nextturn.probe.report.tracking import slug
from nextturn.probe.text.grading import outcome
from nextturn.probe.text.words import sentences, word_list, words
from nextturn.train.rewards import PARTS, Sample, Scored

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
    failures = [f"simulator/failed/{_kind(reason)}" for sample in samples for reason in sample.failures]
    figures["simulator/failed"] = len(failures) / total
    reasons = [f"reward/none/{part}/{_kind(why)}" for reward in scored for part, why in reward.reasons.items()]
    return figures | {name: count / total for name, count in sorted(Counter(reasons + failures).items())}


def _kind(reason: str) -> str:
    """Return the kind of a reason without its details, such as "judge_refused", as a part of a name in the log."""
    return slug(reason.partition(":")[0])


def group_figures(scored: Sequence[Scored], num_generations: int) -> dict[str, float]:
    """Return `groups/flat`, the share of groups whose samples are equal in all parts but style, and `groups/lost`, the share of
    groups with fewer than two rewards.

    A lost group does not change the policy, and a flat one only its style: parts of style differ with every token, so
    rewards are never equal, and trl's `frac_reward_zero_std` stays 0.
    """
    style = {name for name, part in PARTS.items() if part.style}
    groups = [scored[start : start + num_generations] for start in range(0, len(scored), num_generations)]
    rewarded = [[reward.parts for reward in group if reward.value is not None] for group in groups]
    tasks = [[{part: parts[part] for part in parts if part not in style} for parts in group] for group in rewarded]
    lost = sum(len(parts) < 2 for parts in tasks)
    flat = sum(len(parts) >= 2 and all(other == parts[0] for other in parts) for parts in tasks)
    return {"groups/flat": flat / len(groups), "groups/lost": lost / len(groups)}


def watch_figures(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the figures that show whether a policy games its reward, as means over the samples to which they apply.

    A judge likes replies that end in a polite question, and asking about everything looks like interest; both cost accuracy
    later. So of the first trained reply: does it end in a question that fits any conversation, does it ask although nothing
    is withheld, does it ask if a fact is; and how long is it.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        values["tokens"].append(sample.tokens)
        values["simulated_tokens"].append(sum(sample.simulated_tokens))
        values["truncated"].append(sample.truncated)
        if not sample.conversations:  # its simulator failed
            continue
        conversation = sample.conversations[0]
        reply = conversation[sample.start]["content"]
        values["generic_ending"].append(ends_generic(reply))
        cut = sample.truncated and len(conversation) == sample.start + 1
        if sample.row.withholds:
            values["ask_when_needed"].append(outcome(reply, cut) == "asked")  # as the probe's clarify judges it
        elif not sample.row.shards:
            said = said_by(sample.row.prompt, "user")
            values["over_asking"].append(not cut and asks_instead(reply, said))  # as the reward does
    ended = Counter(end for sample in samples for end in sample.ended)
    return {
        **{f"watch/{name}": fmean(of_name) for name, of_name in values.items()},
        **{f"watch/ended/{end}": count / sum(ended.values()) for end, count in sorted(ended.items())},
    }


def ends_generic(reply: str) -> bool:
    """Return True if the last sentence is a question of common words only, such as "Does that make sense?"."""
    last = sentences(reply)[-1:]
    if not last or not last[0].rstrip("*_\"')]").endswith("?"):
        return False
    common = word_list("function") | word_list("filler") | word_list("offers")
    return all(word in common or word.split("'")[0] in common for word in words(last[0]))


# --- Sample conversations; trl's own (`log_completions`) are replies without their conversation.

KEPT = 8
"""Samples that are kept of a generation of all processes, spread over its groups."""


def write_samples(path: Path, samples: Sequence[Sample], scored: Sequence[Scored]) -> None:
    """Write a part of a generation's samples, with their conversations and the parts of their reward, as JSONL.

    A row's `start` is the place of the first trained message in its conversations.
    """
    every = max(1, len(samples) // KEPT)
    write_jsonl(path, [
        {
            "row": sample.row.id, "kind": sample.row.kind, "withheld": sample.row.withholds, "start": sample.start,
            "conversations": sample.conversations, "ended": sample.ended, "tokens": sample.tokens, "truncated": sample.truncated,
            "reward": reward.value, "parts": reward.parts, "reasons": reward.reasons, "failures": sample.failures,
        }
        for sample, reward in list(zip(samples, scored, strict=True))[::every]
    ])  # fmt: skip


# --- One line a step in the terminal; trl's fifty figures go to the tracker and to trainer_state.json.

# Name in the log, wording, whether a zero is shown.
_SHOWN = (
    ("reward/none", "{:.0%} of samples without a reward", False),
    ("groups/flat", "{:.0%} of groups with equal task rewards", False),
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
    rewarded = "samples of a step before"  # several steps may train on the samples of one generation
    if "reward" in logs:
        reward = logs["reward"]
        rewarded = "no sample has a reward" if reward is None else f"reward {reward:.3f} ({parts})"
    shown = [f"step {step}/{most}", rewarded]
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
