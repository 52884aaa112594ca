"""The estimate of memory against the bytes that a real step of the real trainer allocates, and ZeRO's bookkeeping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probe.models import load_tokenizer, resolve
from train.plan import Size, memory_parts, size_of
from train.recipe import LoraSection, ModelSection
from train.step_memory import LiveBytes, Step, StepMemory, step_memory

ROWS, LENGTH = 4, 192


def trained_bytes(section: ModelSection, folder: Path, run: Path, given: dict[str, Any]) -> int:
    """The most bytes at once during two steps: weights, and every storage that torch made meanwhile."""
    import torch
    from trl import SFTConfig

    from train.rows import as_dataset
    from train.setup import load_policy, new_adapter, trainer_class

    ids = torch.randint(10, 900, (2 * ROWS, LENGTH), generator=torch.Generator().manual_seed(0)).tolist()
    args = SFTConfig(
        output_dir=str(run), use_cpu=True, report_to=[], max_steps=2, save_strategy="no", disable_tqdm=True,
        dataset_kwargs={"skip_prepare_dataset": True}, **given,
    )  # fmt: skip
    model = load_policy(resolve(str(folder)), section)
    trainer = trainer_class(args)(
        model=model, args=args, train_dataset=as_dataset([{"input_ids": row, "labels": row} for row in ids]),
        processing_class=load_tokenizer(resolve(str(folder))), peft_config=new_adapter(section, model),
    )  # fmt: skip
    weights = sum(p.numel() * p.element_size() for p in trainer.model.parameters())
    with LiveBytes(trainer.model) as live:
        trainer.train()
    return int(weights + live.most)


@pytest.mark.parametrize(
    ("kind", "dtype", "lora", "checkpointing", "half"),
    [
        ("tiny_chatml", "float32", False, False, False),
        ("tiny_chatml", "float32", True, False, True),
        ("tiny_model", "bfloat16", False, True, True),
    ],
)
def test_the_estimate_is_within_a_fifth_of_what_a_step_allocates(
    kind: str, dtype: Any, lora: bool, checkpointing: bool, half: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = request.getfixturevalue(kind)
    section = ModelSection(name=str(folder), dtype=dtype, lora=LoraSection(r=8) if lora else None)
    given = {"per_device_train_batch_size": ROWS, "bf16": half, "gradient_checkpointing": checkpointing}
    size = size_of(section, folder)
    step = step_memory(size.make, Step(ROWS, LENGTH, None, True, given))
    estimated = sum(memory_parts(size, step, given, stage=0, ranks=1).values())
    measured = trained_bytes(section, folder, tmp_path / "run", given)
    assert estimated == pytest.approx(measured, rel=0.2)


def test_on_gpus_no_logits_are_held() -> None:
    size = size_of(ModelSection(name="Qwen/Qwen3.5-2B", lora=LoraSection()), None)
    assert size.parameters == pytest.approx(1.88e9, rel=0.01)
    gpu = step_memory(size.make, Step(1, 512, None, False, {}))
    logits = 512 * 248_320
    # 24 layers keep their input of 2,048 numbers in two bytes, and one tile of the head is there twice.
    assert 24 * 512 * 2048 * 2 < gpu.activations < logits * 4
    assert gpu.frozen == size.parameters * 2 and gpu.trained == size.trained * 4


def test_memory_is_shared_as_zero_shares_it() -> None:
    size = Size(parameters=1000, trained=1000, vocabulary=10, cached=0, make=lambda: None)
    step = StepMemory(frozen=0, trained=2000, activations=700, together=2400)
    alone, ddp = (memory_parts(size, step, {}, stage=0, ranks=ranks) for ranks in (1, 4))
    two, three = (memory_parts(size, step, {}, stage, ranks=4) for stage in (2, 3))
    # Gradients come while activations go: together they never take 2,000 + 700.
    assert alone == {"weights": 2000, "gradients": 2000, "optimizer": 4000, "activations": 400}
    assert memory_parts(size, step, {"gradient_accumulation_steps": 2}, 0, 1)["activations"] == 700
    assert ddp["gradients"] == 4000, "DDP's buckets"
    assert two == {"weights": 2000, "gradients": 500, "optimizer": 4000, "activations": 700}
    assert three == {"weights": 500, "gradients": 500, "optimizer": 4000, "activations": 700}
