"""The estimate of memory against the bytes that a real step of the real trainer allocates, and ZeRO's bookkeeping."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.models.folders import load_tokenizer, resolve
from nextturn.train.memory import ERROR, Size, activation_bytes, memory_parts, size_of
from nextturn.train.policy import held_in, new_adapter
from nextturn.train.sections import LoraSection, ModelSection
from support.model_parts import LiveBytes

ROWS, LENGTH = 4, 192
SHAPE = {
    "num_hidden_layers": 6, "hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 2048, "tie_word_embeddings": True,
}  # fmt: skip
LINEAR = {f"linear_{name}_head_dim": 64 for name in ("key", "value")}
LINEAR |= {f"linear_num_{name}_heads": 2 for name in ("key", "value")}


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

    from nextturn.train.encoding import as_dataset
    from nextturn.train.overrides import ConversationTrainer

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
