"""Fits GRPO to its launch: which trainer, which generation engine, and what of trl's talk is worth a line."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from probe.errors import BadInput


def quiet_trl() -> None:
    """Keeps two of trl's warnings out of the log: rollout_func is known to be experimental, and a sample without a
    reward, whose whole transcript trl would print, is counted by reason."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    logger = logging.getLogger("trl.trainer.grpo_trainer")
    if _scored not in logger.filters:
        logger.addFilter(_scored)


def _scored(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("All reward functions returned None")


def check_engine(args: Any) -> None:
    """Raises BadInput where `train.use_vllm` asks for what this machine has not got, before a model is loaded."""
    if not args.use_vllm:
        return
    if importlib.util.find_spec("vllm") is None:
        raise BadInput("train.use_vllm: vllm is not installed; pip install 'nextturn[gpu]', or give false")
    if args.use_cpu:
        raise BadInput("train.use_vllm: given true, wanted false without a GPU: trl's weight transfer needs one")


def trainer_class(args: Any) -> type:
    """trl's GRPOTrainer; on CPUs with the model's own head in place of trl's fused one.

    The fused head never holds all logits, which a GPU needs, but computes them twice and accumulates in float32: on
    one core SmolLM2 took 1.4 times as long with it (10.8 against 7.6 s for 2 samples of 260 tokens). Nor does it compute
    the columns that are padding in all rows of a batch: trl pads all samples of a step to the longest one. The log
    probabilities of the samples' own tokens are the same.
    """
    from trl import GRPOTrainer

    if not args.use_cpu:
        return GRPOTrainer

    class CpuGRPOTrainer(GRPOTrainer):
        def _get_per_token_logps_and_entropies(
            self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, batch_size: int | None = None,
            compute_entropy: bool = False, **_: Any,
        ) -> tuple[Any, Any, None]:  # fmt: skip
            import torch

            log_probs, entropies = [], []
            for rows in torch.arange(len(input_ids)).split(batch_size or len(input_ids)):
                used = attention_mask[rows].any(dim=0).nonzero()[:, 0]
                first, end = int(used[0]), max(int(used[-1]), input_ids.shape[1] - logits_to_keep) + 1
                ids = input_ids[rows, first:end]
                after = input_ids.shape[1] - end  # columns of padding only, for these rows
                kept = logits_to_keep - after
                with self.accelerator.autocast():
                    # One more than is kept: a token's probability stands at the position before it.
                    output = model(
                        input_ids=ids, attention_mask=attention_mask[rows, first:end], logits_to_keep=kept + 1,
                        use_cache=False,
                    )  # fmt: skip
                log_p = (output.logits[:, :-1].float() / self.temperature).log_softmax(dim=-1)
                picked = log_p.gather(-1, ids[:, -kept:, None])[..., 0]
                log_probs.append(torch.nn.functional.pad(picked, (0, after)))
                if compute_entropy:
                    with torch.set_grad_enabled(torch.is_grad_enabled() and self._entropy_bonus_enabled):
                        spread = -(log_p.exp() * log_p).sum(dim=-1)
                    entropies.append(torch.nn.functional.pad(spread, (0, after)))
            return torch.cat(log_probs), torch.cat(entropies) if compute_entropy else None, None

    return CpuGRPOTrainer


def reward_line(history: Sequence[Mapping[str, Any]]) -> str:
    """For the model card: the mean reward at the beginning and at the end of the run, from the trainer's log.

    The interval is Welch's for the means of two samples, each step's mean counting once.
    """
    rewards = [row["reward"] for row in history if row.get("reward") is not None]
    if not rewards:
        return "No reward was logged."
    fifth = max(1, len(rewards) // 5)
    first, last = rewards[:fifth], rewards[-fifth:]
    said = f"Mean reward: {fmean(first):.3f} in the first fifth of the logged steps, {fmean(last):.3f} in the last"
    if len(set(first)) < 2 and len(set(last)) < 2:  # nothing to take an interval from
        return f"{said}."
    from scipy.stats import ttest_ind

    low, high = ttest_ind(last, first, equal_var=False).confidence_interval(0.95)
    return f"{said}: {fmean(last) - fmean(first):+.3f} [{low:+.3f}, {high:+.3f}]."
