"""The estimate of memory against the bytes that a real step of the real trainer allocates, ZeRO's bookkeeping, and the
largest tensor that a loss makes over a large vocabulary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.models import load_tokenizer, resolve
from nextturn.train.memory import ERROR, TILE_VOCABULARY, Size, activation_bytes, memory_parts, size_of
from nextturn.train.policy import held_in, new_adapter
from nextturn.train.recipe import LoraSection, ModelSection
from support.grpo_parts import rl_row
from support.model_parts import LargestTensor, LiveBytes

ROWS, LENGTH = 4, 192
SHAPE = {
    "num_hidden_layers": 6, "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "tie_word_embeddings": True,
}  # fmt: skip
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}


@pytest.mark.parametrize(
    ("kind", "dtype", "lora", "checkpointing", "half"),
    [
        ("llama", "float32", False, False, False),
        ("llama", "bfloat16", False, True, True),
        ("llama", "bfloat16", True, False, True),
        ("qwen3_5_text", "bfloat16", True, True, True),
    ],
)
def test_the_estimate_is_within_its_stated_error_of_what_a_step_allocates(
    kind: str, dtype: Any, lora: bool, checkpointing: bool, half: bool, tiny_chatml: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from trl import SFTConfig

    from nextturn.train.overrides import ConversationTrainer
    from nextturn.train.rows import as_dataset

    config = AutoConfig.for_model(kind, **SHAPE, **(LINEAR if kind != "llama" else {}))
    config.save_pretrained(tmp_path)
    section = ModelSection(name=kind, dtype=dtype, lora=LoraSection(r=8) if lora else None)
    given = {"per_device_train_batch_size": ROWS, "bf16": half, "gradient_checkpointing": checkpointing}
    size, held = size_of(section, tmp_path), held_in(section, zero=0)
    activations = activation_bytes(size, held, ROWS, LENGTH, None, checkpointing, fused=False)
    estimated = sum(memory_parts(size, held, activations, given, stage=0, ranks=1).values())

    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, held))
    ids = torch.randint(10, 900, (2 * ROWS, LENGTH), generator=torch.Generator().manual_seed(0)).tolist()
    args = SFTConfig(
        output_dir=str(tmp_path / "run"), use_cpu=True, report_to=[], max_steps=2, save_strategy="no",
        disable_tqdm=True, dataset_kwargs={"skip_prepare_dataset": True}, **given,
    )  # fmt: skip
    trainer = ConversationTrainer(
        model=model, args=args, train_dataset=as_dataset([{"input_ids": row, "labels": row} for row in ids]),
        processing_class=load_tokenizer(resolve(str(tiny_chatml))), peft_config=new_adapter(section, model),
    )  # fmt: skip
    weights = sum(p.numel() * p.element_size() for p in trainer.model.parameters())
    with LiveBytes([*trainer.model.parameters(), *trainer.model.buffers()]) as live:
        trainer.train()
    assert estimated == pytest.approx(weights + live.most, rel=ERROR)


def test_on_gpus_no_logits_are_held() -> None:
    size = size_of(ModelSection(name="Qwen/Qwen3.5-2B", lora=LoraSection()), None)
    assert size.parameters == pytest.approx(1.88e9, rel=0.01) and size.trained < 0.03 * size.parameters
    on_gpu, on_cpu = (activation_bytes(size, "bfloat16", 1, 512, None, True, fused) for fused in (True, False))
    # 24 layers keep their input of 2,048 numbers in two bytes.
    assert 24 * 512 * 2048 * 2 < on_gpu < 512 * size.vocabulary * 4 < on_cpu


def test_memory_is_shared_as_zero_shares_it() -> None:
    size = Size(parameters=500, trained=500, layers=1, hidden=1, intermediate=1, vocabulary=10)
    alone, ddp = (memory_parts(size, "float32", 700, {}, stage=0, ranks=ranks) for ranks in (1, 4))
    two, three = (memory_parts(size, "bfloat16", 700, {}, stage, ranks=4) for stage in (2, 3))
    assert alone == {"weights": 2000, "gradients": 2000, "optimizer": 4000, "activations": 700}
    assert ddp == alone | {"gradients": 4000}, "DDP's buckets"
    assert two == {"weights": 1000, "gradients": 500, "optimizer": 2000, "activations": 700}
    assert three == two | {"weights": 250}
    adapter = memory_parts(replace(size, trained=100), "bfloat16", 700, {}, stage=0, ranks=1)
    assert adapter == {"weights": 1400, "gradients": 400, "optimizer": 800, "activations": 700}


# --- Qwen3.5's vocabulary, which decides what the losses take: 4 x 64 tokens have 254 MB of logits in float32.

VOCABULARY, TOKENS = 248_320, (4, 64)


def wide_model() -> Any:
    """A model of hardly more than embeddings for that vocabulary."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, tie_word_embeddings=True, **sizes))


def a_tile() -> int:
    """What trl's head holds of the logits at once, in bytes: rows of one part of the vocabulary, in float32."""
    return TOKENS[0] * TOKENS[1] * TILE_VOCABULARY * 4


def test_the_loss_of_sft_on_gpus_holds_no_logits(tiny_chatml: Path, tmp_path: Path) -> None:
    """trl's own trainer and head, whose tiles torch folds where Triton has no GPU."""
    import torch
    from trl import SFTConfig, SFTTrainer

    from nextturn.train.rows import as_dataset

    rows = torch.randint(0, VOCABULARY, TOKENS, generator=torch.Generator().manual_seed(0)).tolist()
    args = SFTConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], max_steps=1, save_strategy="no",
        disable_tqdm=True, per_device_train_batch_size=TOKENS[0], dataset_kwargs={"skip_prepare_dataset": True},
    )  # fmt: skip
    trainer = SFTTrainer(
        model=wide_model(), args=args, train_dataset=as_dataset([{"input_ids": row, "labels": row} for row in rows]),
        processing_class=load_tokenizer(resolve(str(tiny_chatml))),
    )  # fmt: skip
    with LargestTensor(trainer.model.parameters()) as largest:
        trainer.train()
    assert VOCABULARY * 8 * 4 <= largest.bytes <= a_tile(), "the gradient of the head at least"


def test_the_log_probabilities_of_grpo_on_gpus_hold_no_logits(tiny_chatml: Path, tmp_path: Path) -> None:
    import torch
    from trl import GRPOConfig, GRPOTrainer

    from nextturn.train.rows import prompt_dataset

    args = GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], max_completion_length=32,
        per_device_train_batch_size=TOKENS[0], num_generations=4,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=wide_model(), args=args, train_dataset=prompt_dataset([rl_row(3)]), reward_funcs=lambda **_: [],
        processing_class=load_tokenizer(resolve(str(tiny_chatml))),
    )  # fmt: skip
    ids = torch.randint(0, VOCABULARY, TOKENS, generator=torch.Generator().manual_seed(0))
    with LargestTensor(trainer.model.parameters()) as largest:
        log_p, entropies, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, torch.ones_like(ids), 32, compute_entropy=True
        )
        log_p.sum().backward()
    assert log_p.shape == entropies.shape == (TOKENS[0], 32)
    assert VOCABULARY * 8 * 4 <= largest.bytes <= a_tile()
