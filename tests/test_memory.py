"""The estimate of memory against the bytes that a real step of the real trainer allocates, ZeRO's bookkeeping, and the
largest tensor that a loss makes over a large vocabulary."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpo_parts import rl_row
from model_parts import LargestTensor

from probe.models import load_tokenizer, resolve
from train.plan import Size, memory_parts, size_of
from train.recipe import LoraSection, ModelSection
from train.setup import held_in, new_adapter
from train.step_memory import TILE_VOCABULARY, LiveBytes, Step, StepMemory, step_memory

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
    model = load_policy(resolve(str(folder)), section, held_in(section, zero=0))
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
    step = step_memory(partial(size.make, held_in(section, zero=0)), Step(ROWS, LENGTH, None, True, given))
    estimated = sum(memory_parts(size, step, given, stage=0, ranks=1).values())
    measured = trained_bytes(section, folder, tmp_path / "run", given)
    assert estimated == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(
    ("kind", "lora", "checkpointing"),
    [("llama", False, False), ("llama", True, False), ("llama", False, True), ("qwen3_5_text", True, True)],
)
def test_layers_that_are_not_run_are_counted_as_if_they_were(
    kind: str, lora: bool, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 16}
    depth = 7 if kind == "llama" else 12
    config = AutoConfig.for_model(kind, num_hidden_layers=depth, vocab_size=500, tie_word_embeddings=True, **sizes)

    def make() -> Any:
        model = AutoModelForCausalLM.from_config(config)
        section = ModelSection(name="any", lora=LoraSection(r=8))
        return get_peft_model(model, new_adapter(section, model)) if lora else model

    step = Step(4, 160, None, on_cpu=lora, train={"gradient_checkpointing": checkpointing})
    counted = step_memory(make, step)
    monkeypatch.setattr("train.step_memory._block", lambda layers, types: len(layers))
    assert counted == step_memory(make, step)


def test_on_gpus_no_logits_are_held() -> None:
    size = size_of(ModelSection(name="Qwen/Qwen3.5-2B", lora=LoraSection()), None)
    assert size.parameters == pytest.approx(1.88e9, rel=0.01)
    gpu = step_memory(partial(size.make, "bfloat16"), Step(1, 512, None, False, {}))
    logits = 512 * 248_320
    # 24 layers keep their input of 2,048 numbers in two bytes, and one tile of the head is there twice.
    assert 24 * 512 * 2048 * 2 < gpu.activations < logits * 4
    assert gpu.frozen == size.parameters * 2 and gpu.trained == size.trained * 4


def test_memory_is_shared_as_zero_shares_it() -> None:
    size = Size(parameters=1000, trained=1000, vocabulary=10, cached=0, tied=0, make=lambda dtype: None)
    step = StepMemory(frozen=0, trained=2000, activations=700, together=2400)
    alone, ddp = (memory_parts(size, step, {}, stage=0, ranks=ranks) for ranks in (1, 4))
    two, three = (memory_parts(size, step, {}, stage, ranks=4) for stage in (2, 3))
    # Gradients come while activations go: together they never take 2,000 + 700.
    assert alone == {"weights": 2000, "gradients": 2000, "optimizer": 4000, "activations": 400}
    assert memory_parts(size, step, {"gradient_accumulation_steps": 2}, 0, 1)["activations"] == 700
    assert ddp["gradients"] == 4000, "DDP's buckets"
    assert two == {"weights": 2000, "gradients": 500, "optimizer": 4000, "activations": 700}
    assert three == {"weights": 500, "gradients": 500, "optimizer": 4000, "activations": 700}


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
    from trl import SFTConfig

    from train.rows import as_dataset
    from train.setup import trainer_class

    rows = torch.randint(0, VOCABULARY, TOKENS, generator=torch.Generator().manual_seed(0)).tolist()
    args = SFTConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], max_steps=1, save_strategy="no",
        disable_tqdm=True, per_device_train_batch_size=TOKENS[0], dataset_kwargs={"skip_prepare_dataset": True},
    )  # fmt: skip
    trainer = trainer_class(SimpleNamespace(use_cpu=False))(
        model=wide_model(), args=args, train_dataset=as_dataset([{"input_ids": row, "labels": row} for row in rows]),
        processing_class=load_tokenizer(resolve(str(tiny_chatml))),
    )  # fmt: skip
    with LargestTensor(trainer.model.parameters()) as largest:
        trainer.train()
    assert VOCABULARY * 8 * 4 <= largest.bytes <= a_tile(), "the gradient of the head at least"


def test_the_log_probabilities_of_grpo_on_gpus_hold_no_logits(tiny_chatml: Path, tmp_path: Path) -> None:
    import torch
    from trl import GRPOConfig

    from train.rows import prompt_dataset
    from train.setup import grpo_trainer_class, quiet_trl

    quiet_trl()
    args = GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], max_completion_length=32,
        per_device_train_batch_size=TOKENS[0], num_generations=4,
    )  # fmt: skip
    trainer = grpo_trainer_class(SimpleNamespace(use_cpu=False))(
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


def test_the_plan_counts_what_the_probe_holds_where_that_is_more_than_a_step(tiny_chatml: Path) -> None:
    from probe.engines.hf import LOGITS_BYTES
    from train import plan
    from train.recipe import load_sft_recipe

    shipped = Path(__file__).resolve().parent.parent / "recipes" / "qwen2b_sft.yaml"
    section = ModelSection(name=str(tiny_chatml))
    large = replace(size_of(section, tiny_chatml), parameters=2 * 10**9)  # planned for GPUs, yet quickly counted
    for options, counted in ([], True), (["--probe.grounding", "false"], False), (["--probe.when", "watch"], False):
        recipe = load_sft_recipe(shipped, [*options, "--train.deepspeed", "null"])
        given = recipe.train.model_dump(exclude_unset=True)
        (line, *_) = plan._memory_lines(recipe, plan._Model(given, large, None, []), length=64)
        parts = dict(re.findall(r"(\w+) ([\d.]+)", line.partition("(")[2]))
        assert ("probe" in parts) == counted, line
        if counted:
            together = float(parts["activations"]) + float(parts["probe"])
            assert together == pytest.approx(LOGITS_BYTES / plan.GIB, abs=0.02)
