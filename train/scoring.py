"""Score the samples of a step: custom functions in workers, a judge's servers, and the reward function that trl calls.

trl sums several reward functions and counts a part that failed as 0, so that a correct answer whose judge timed out gets a
lower advantage than its group. Here a sample whose required part failed has no reward: it gets no advantage and does not
change its group's mean. A few such samples are left out, many stop the run. Every part is logged next to the reward.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import RecipeError, TrainingStopped
from nextturn.probe.command.files import sha256_text
from nextturn.probe.command.recipe import load_named
from nextturn.probe.command.terminal import is_main_process, say
from nextturn.probe.command.timelimit import Done, Workers
from nextturn.probe.engines.ask import Ask, ChatModel, ask, open_model
from nextturn.probe.engines.base import item_seed
from nextturn.probe.questions.simulation import PromptRow
from nextturn.train import rewards
from nextturn.train.rewards import PARTS, Messages, Sample, Score, Scored
from nextturn.train.samples import group_figures, reward_figures, watch_figures, write_samples
from nextturn.train.sections import RewardSection

_REASONS_SHOWN = 3


class Rewards:
    """The reward function that trl calls once per generation, on every process with its own samples. It works until it is closed.

    Args:
        columns: What every prompt has, for custom functions in trl's form; None if that is not known yet.
        num_generations: Samples of a group; groups are contiguous over all processes in their order.
        held_out: Ids of rows that are not trained on. A generation has such rows only or none: trl evaluates separately.
        folder: Directory for samples of every trained generation; None writes none.

    Attributes:
        seen: What train/collapse.py watches and takes: the trained replies (hashes), and of held-out samples the problem with
            the accuracy.

    Raises:
        RecipeError: A custom function cannot be loaded.
        BadInput: The judge's server cannot be used.
    """

    __name__ = "composed"  # trl's name for it in the log

    def __init__(
        self, section: RewardSection, seed: int, columns: Collection[str] | None = None, num_generations: int = 1,
        held_out: Container[str] = (), folder: Path | None = None,
    ) -> None:  # fmt: skip
        self.section, self.num_generations, self.held_out, self.folder = section, num_generations, held_out, folder
        self.seen: dict[str, list[Any]] = {"replies": [], "held_out": []}
        self._seed, self._failures_seen, opened = seed, set[str](), ExitStack()
        self._workers = opened.enter_context(closing(open_workers(section, columns)))
        self._custom_alone = bool(section.custom) and not any(section.weight_of[name] for name in PARTS)
        self._judge = None
        if section.judge is not None and section.weight_of["interactivity"]:
            self._judge = opened.enter_context(open_model("judge", section.judge, seed, "reward.judge"))
        self.close = opened.close

    def score(self, samples: Sequence[Sample]) -> list[Scored]:
        """Return one reward for each sample, in order. No call is waited for longer than its time limit."""
        section = self.section
        calls = [  # begun first: the workers run while the judge's servers do
            {name: self._workers.start(call_custom, part.function, sample) for name, part in section.custom.items()}
            for sample in samples
        ]
        measures: dict[str, Callable[[Sample], Score]] = {}
        if not self._custom_alone:
            measures = {name: part.score for name, part in PARTS.items()}
            measures["efficiency"] = partial(rewards.efficiency, efficient_tokens=section.efficient_tokens)
        if self._judge is not None:
            limit_s = section.judge_timeout_s
            measures["interactivity"] = judged_interactivity(self._judge, samples, self._seed, limit_s)
        scored = []
        for sample, own in zip(samples, calls, strict=True):
            parts = {name: measure(sample) for name, measure in measures.items()}
            parts |= {name: _finished(call) for name, call in own.items()}
            # Custom parts alone decide for themselves what a truncated sample is worth, since their task may have no answer.
            kept = parts if self._custom_alone else rewards.capped(sample, parts)
            scored.append(rewards.compose(kept, section.weight_of, section.required_parts))
        return scored

    def __call__(
        self,
        samples: Sequence[Sample],
        trainer_state: Any,
        log_metric: Callable[[str, float], None],
        **_: Any,
    ) -> list[float | None]:
        """Return the reward of each sample, None if it has none.

        Raises:
            TrainingStopped: Too many samples of a trained generation have no reward; on every process alike.
        """
        from accelerate.utils import gather_object

        scored = self.score(samples)
        # Every process sees the samples of all, so that all stop together and log the same figures.
        every, every_scored = gather_object(list(samples)), gather_object(scored)
        trained = samples[0].row.id not in self.held_out
        problem = check_failures(every_scored, self.section.max_failed)
        if problem is not None and trained:
            raise TrainingStopped(
                f"stopped before step {trainer_state.global_step + 1}: {problem}. Fix the cause: the same command then "
                "goes on from the last checkpoint, if there is one. A new run may leave the part out, or have a larger reward.max_failed"
            )
        if problem is not None:  # a batch may be a single sample, and no step depends on it
            say(f"warning: step {trainer_state.global_step}: in a batch of held-out prompts {problem}")

        figures = {**reward_figures(every, every_scored), **watch_figures(every)}
        rows = list(zip(every, every_scored, strict=True))
        if not trained:
            right = [(sample.row.problem, reward.parts.get("accuracy")) for sample, reward in rows]
            self.seen["held_out"] += [row for row in right if row[1] is not None]
        else:
            said = [sample.conversations[0][sample.start]["content"] for sample in every if sample.conversations]
            self.seen["replies"] += [sha256_text(reply)[:12] for reply in said]
            figures |= group_figures(every_scored, self.num_generations)
            if self.folder is not None and is_main_process():
                write_samples(self.folder / f"step-{trainer_state.global_step + 1}.jsonl", every, every_scored)
        # A failure that occurred once is logged as 0 later: trl averages the values between two log lines.
        self._failures_seen |= {name for name in figures if name.startswith(("reward/none/", "simulator/failed/"))}
        for name, value in {**dict.fromkeys(sorted(self._failures_seen), 0.0), **figures}.items():
            log_metric(name, value)
        return [reward.value for reward in scored]


# --- The judge: all verdicts of a step are requested at once, with the retries of probe.client.

TRIES = 3
"""Attempts for a verdict that cannot be read, each with another seed."""


def judged_interactivity(
    model: ChatModel, samples: Sequence[Sample], seed: int, limit_s: float
) -> Callable[[Sample], Score]:
    """Ask a judge for its verdicts on all conversations of these samples, and return the part that reads the verdicts.

    Args:
        limit_s: Seconds for all verdicts together. If asking breaks off, the verdicts so far are kept.
    """
    asked = {_texts(messages): messages for sample in samples for messages in sample.conversations}
    wanted = [
        Ask(rewards.judge_prompt(messages), rewards.read_judge, partial(_attempt_seed, seed, texts))
        for texts, messages in asked.items()
    ]
    verdicts = dict(zip(asked, map(rewards.judge_score, ask(model, wanted, TRIES, limit_s)), strict=True))
    return lambda sample: rewards.mean_score(sample, [verdicts[_texts(messages)] for messages in sample.conversations])


def _attempt_seed(seed: int, texts: tuple[str, ...], attempt: int) -> int:
    return item_seed(seed, "judge", attempt, *texts)


def _texts(conversation: Messages) -> tuple[str, ...]:
    return tuple(text for message in conversation for text in (message["role"], message["content"]))


# --- Custom: functions of the user's, called in workers, so that a slow or broken function delays nothing else.

NOT_APPLICABLE = "not_applicable"
"""The function returned None."""


def open_workers(section: RewardSection, columns: Collection[str] | None = None) -> Workers:
    """Start the workers that call custom functions, and check that every function can be loaded there.

    Args:
        columns: What every prompt has, for functions in trl's form; None if that is not known yet.

    Raises:
        RecipeError: A function cannot be loaded, or wants a column that prompts lack.
    """
    functions = [part.function for part in section.custom.values()]
    workers = Workers(section.workers, section.timeout_s, partial(_load_functions, functions))
    for name, part in section.custom.items():
        loaded = workers.start(_columns_of, part.function).result()
        problem = f"cannot be loaded ({loaded.failure})" if loaded.failure else ""
        if columns is not None and (missing := [column for column in loaded.value or () if column not in columns]):
            problem = (
                f"wants {', '.join(missing)}, and not every prompt has it; columns of all prompts: {', '.join(columns)}"
            )
        if problem:
            workers.close()
            raise RecipeError(f"reward.custom.{name}.function: {part.function} {problem}")
    return workers


def _finished(call: Future[Done]) -> Score:
    """Wait for a call in a worker."""
    done = call.result()
    if done.failure:
        return Score(None, done.failure)
    return Score(None, NOT_APPLICABLE) if done.value is None else Score(float(done.value))


# The following functions run in the workers.


def call_custom(name: str, sample: Sample) -> float | None:
    """Call a function with the sample, or in trl's way with `prompts`, `completions` and every column, each a list of one. The
    completion is what was said from the first trained turn on, as messages."""
    function, row = load_named(name), sample.row
    if "completions" in inspect.signature(function).parameters:
        said = list(sample.conversations[0][sample.start :]) if sample.conversations else []
        given = {"prompts": list(row.prompt), "completions": said, **{key: getattr(row, key) for key in OF_ROW}}
        values = function(**{key: [each] for key, each in {**given, **row.columns}.items()})
        if isinstance(values, (str, int, float)) or values is None or len(values) != 1:
            raise ValueError(f"gave {values!r:.80}, expected a list with one number or None, for one completion")
        (value,) = values
    else:
        value = function(sample)
    if value is None:
        return None
    if hasattr(value, "item"):  # a number of numpy or torch
        value = value.item()
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"gave {value!r}, expected a finite number or None")
    return float(value)


def _load_functions(names: Sequence[str]) -> None:
    """Load functions in a new worker, so that no call's time is spent on imports; errors are those of a later call."""
    for name in names:
        with contextlib.suppress(Exception):
            load_named(name)


def _columns_of(name: str) -> list[str]:
    """Load a function, which itself need not survive the way between processes, and return the columns that a function of trl's
    form cannot do without."""
    parameters = inspect.signature(load_named(name)).parameters
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wanted = [key for key, each in parameters.items() if each.kind in named and each.default is inspect.Parameter.empty]
    if "completions" not in parameters:
        if len(wanted) > 1:
            raise TypeError(
                f"it takes {', '.join(wanted)}, expected one argument (a sample), or `completions` and columns"
            )
        return []
    return [key for key in wanted if key not in ("prompts", "completions")]


OF_ROW = ("id", "kind", "answer", "problem", "solution")
"""Columns that every prompt has, empty where its file has none."""


def shared_columns(rows: Iterable[PromptRow]) -> list[str]:
    """Return the names of the columns that all prompts have for a reward function."""
    every = list(rows)
    own = [name for name in every[0].columns if all(name in row.columns for row in every)]
    return [*own, *(name for name in OF_ROW if all(getattr(row, name) for row in every))]


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
