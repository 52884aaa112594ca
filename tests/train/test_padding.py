"""GRPO's forward passes with little padding: the loss of every step is that of trl's own trainer on the same generation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nextturn.probe.models.folders import load_model, load_tokenizer, resolve


class Skewed:
    """A rollout function whose samples are mostly short, with a few long ones; two of them make the same samples."""

    def __init__(self, vocabulary: int, masked: bool) -> None:
        self.random, self.vocabulary, self.masked = np.random.default_rng(7), vocabulary, masked

    def __call__(self, prompts: Any, trainer: Any) -> dict[str, Any]:
        draw = self.random
        starts = np.repeat(draw.integers(4, 40, len(prompts)), 8)[: len(prompts)]
        ends = np.minimum(140, np.exp(draw.normal(2.8, 0.9, len(prompts)))).astype(int) + 1
        prompt_ids, completion_ids = (
            [draw.integers(9, self.vocabulary, n).tolist() for n in each] for each in (starts, ends)
        )
        for ids in completion_ids[::2]:
            ids[-1] = trainer.eos_token_ids[0]  # the others were truncated
        out = {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}
        if trainer.use_vllm:
            out["logprobs"] = [draw.normal(-7.4, 0.4, n).tolist() for n in ends]
        if self.masked:
            out["env_mask"] = [[1, *draw.integers(0, 2, n - 1).tolist()] for n in ends]
        return out


def reward(completion_ids: Any, **columns: Any) -> list[float | None]:
    """Differs within groups; one sample in eight has none."""
    return [None if sum(ids) % 8 == 0 else float(sum(ids) % 5) for ids in completion_ids]


def losses(kind: Any, model: Path, out: Path, masked: bool, vllm: bool, **keys: Any) -> tuple[list[float], float]:
    """Return the loss and gradient norm of each step and the loss of an evaluation, and real tokens as a share of all."""
    from datasets import Dataset
    from trl import GRPOConfig

    given = {
        "num_generations": 8, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "per_device_eval_batch_size": 8,
        "max_completion_length": 160, "max_steps": 3, "learning_rate": 0.1, "optim": "sgd", "lr_scheduler_type": "constant",
        "logging_steps": 1, "bf16": False, "gradient_checkpointing": False, "use_cpu": True, "report_to": [], "disable_tqdm": True,
        "save_strategy": "no", "eval_strategy": "steps", "eval_steps": 3, **keys,
    }  # fmt: skip
    policy = load_model(resolve(str(model)), "float32", "cpu")
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": f"{n}?"}], "row": str(n)} for n in range(16)])
    trainer = kind(
        model=policy, reward_funcs=reward, args=GRPOConfig(output_dir=str(out), **given), train_dataset=rows,
        eval_dataset=rows.select(range(8)), processing_class=load_tokenizer(resolve(str(model))),
        rollout_func=Skewed(policy.config.vocab_size, masked),
    )  # fmt: skip
    if vllm:  # as it is after vLLM has started
        trainer.use_vllm, trainer._last_loaded_step = True, -1
        trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    seen: list[torch.Tensor] = []
    policy.model.register_forward_pre_hook(
        lambda module, args, inputs: seen.append(inputs["attention_mask"]), with_kwargs=True
    )
    trainer.train()
    logged = [row[key] for row in trainer.state.log_history for key in ("loss", "grad_norm", "eval_loss") if key in row]
    return logged, float(sum(mask.sum() for mask in seen) / sum(mask.numel() for mask in seen))


@pytest.mark.parametrize(
    ("share", "keys"),
    [
        (0.75, {"gradient_accumulation_steps": 16}),  # 64 samples a step
        (0.75, {"gradient_accumulation_steps": 8, "steps_per_generation": 16}),  # 32 samples a step, two steps
        (0.0, {"loss_type": "grpo", "beta": 0.1, "masked": True}),
        (0.0, {"loss_type": "dr_grpo", "num_iterations": 2, "scale_rewards": "batch"}),
        (0.0, {"loss_type": "sapo", "mask_truncated_completions": True}),
        (0.0, {"loss_type": "cispo", "steps_per_generation": 2, "epsilon_high": 5.0}),  # two generations a step
        (0.0, {"loss_type": "luspo", "importance_sampling_level": "sequence", "pad_to_multiple_of": 16}),
        (0.0, {"loss_type": "vespo", "vllm": True, "vllm_importance_sampling_mode": "token_truncate", "masked": True}),
        (0.0, {"vllm": True, "vllm_importance_sampling_mode": "sequence_mask", "off_policy_mask_threshold": 0.5}),
        (0.0, {"steps_per_generation": 6, "num_iterations": 2}),  # a generation ends inside a step
        # With these the loss depends on which samples share a micro-batch.
        (0.0, {"loss_type": "bnpo"}),
        (0.0, {"entropy_coef": 0.1}),
        (0.0, {"top_entropy_quantile": 0.3, "steps_per_generation": 6}),
    ],
)
def test_the_loss_is_trls_own_with_less_padding(
    share: float, keys: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    from trl import GRPOTrainer

    from nextturn.train.overrides import RolloutTrainer

    given = {"masked": False, "vllm": False, **keys}
    theirs, padded = losses(GRPOTrainer, tiny_model, tmp_path, **given)
    ours, dense = losses(RolloutTrainer, tiny_model, tmp_path, **given)
    assert len(ours) == 7 and ours[1::2] != [0.0] * 3
    # VESPO's weights are an exponential of a sum over the tokens: 2.4e-6 apart in float32, 8e-9 in float64.
    assert ours == pytest.approx(theirs, abs=1e-5 if keys.get("loss_type") == "vespo" else 1e-6)
    assert dense > max(share, padded)
