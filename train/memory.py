"""Memory per process, estimated by part before anything is loaded.

Activations come from a step on tensors without storage (train/step_memory.py). The rest is bookkeeping: AdamW's two
moments are of the weights' type; under ZeRO a trained weight costs 2 + 2 + 16 bytes (DeepSpeed's own count, in
`estimate_zero2_model_states_mem_needs` and its ZeRO-3 twin: half-precision weights and gradients; float32 weights, two
moments and, at the optimizer's step, gradients), shared among processes from the right on: optimizer under ZeRO-1,
gradients under ZeRO-2, weights under ZeRO-3 (arXiv 1910.02054, section 3.1).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.errors import DataError
from probe.models import resolve
from train.recipe import ModelSection

if TYPE_CHECKING:
    from train.step_memory import StepMemory

GIB = 2**30

# Shapes of models that recipes name, for an estimate where the hub is out of reach. Text part only.
KNOWN_SHAPES: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.5-2B": {
        "model_type": "qwen3_5_text", "num_hidden_layers": 24, "hidden_size": 2048, "intermediate_size": 6144,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16, "tie_word_embeddings": True,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Parameters of the policy and of its trained part.

    Attributes:
        cached: numbers that a token leaves in the cache while text is generated: keys and values of the layers with
            full attention.
        make: builds the policy, adapter included; inside `torch.device("meta")` it takes no memory.
    """

    parameters: int
    trained: int
    vocabulary: int
    cached: int
    make: Callable[[], Any]


def memory_parts(size: Size, step: StepMemory, given: dict[str, Any], stage: int, ranks: int) -> dict[str, float]:
    """Bytes per process by part, for `ranks` processes under ZeRO `stage` (0: without DeepSpeed).

    The parts add up to the most that is needed at once. Without DeepSpeed and without accumulation, gradients come as
    activations go, so that `activations` is only what they take beyond the gradients.
    """
    accumulated = given.get("gradient_accumulation_steps", 1) > 1
    if stage:
        width = 2 if given.get("fp16") or given.get("bf16", True) else 4
        adapter = size.trained if step.frozen else 0
        return {
            "weights": (size.parameters + adapter) * width / (ranks if stage == 3 else 1),
            "gradients": size.trained * width / (ranks if stage >= 2 else 1),
            "optimizer": size.trained * 16 / ranks,
            "activations": step.activations,
        }
    return {
        "weights": step.frozen + step.trained,
        # DDP reduces gradients in buckets that hold them a second time.
        "gradients": step.trained * (2 if ranks > 1 else 1),
        "optimizer": 2 * step.trained,
        "activations": step.activations if accumulated else max(0, step.together - step.trained),
    }


def reference_bytes(size: Size, dtype: str, stage: int, ranks: int) -> float:
    """The frozen copy that a KL term needs where no adapter can be switched off."""
    return size.parameters * _width(dtype) / (ranks if stage == 3 else 1)


def generation_bytes(size: Size, dtype: str, tokens: int, rows: int) -> float:
    """What transformers needs to generate `rows` texts of `tokens` in all: the cache, and a step's probabilities,
    which are held as they come, in float32 and summed in float64."""
    return size.cached * tokens * _width(dtype) + rows * size.vocabulary * (_width(dtype) + 4 + 8)


def zero_stage(given: dict[str, Any]) -> int:
    """The stage in the recipe's DeepSpeed file, 0 without one. Raises DataError where it cannot be read."""
    config = given.get("deepspeed")
    if isinstance(config, str):
        try:
            config = json.loads(Path(config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"train.deepspeed: {config}: cannot be read ({error})") from None
    return int((config or {}).get("zero_optimization", {}).get("stage", 0))


def size_of(section: ModelSection, folder: Path | None) -> Size:
    """Counted on a model without storage, built from the configuration alone; the known shape where no folder is."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if folder is None:
        shape = dict(KNOWN_SHAPES[section.name])
        config: Any = AutoConfig.for_model(shape.pop("model_type"), **shape)
    else:
        base = resolve(section.name).base
        config = AutoConfig.from_pretrained(base or folder, trust_remote_code=False)

    adapters: list[Any] = []

    def make() -> Any:
        dtype = getattr(torch, section.dtype)
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
        if not adapters:  # once, since it says which targets the model lacks
            adapters.append(_adapter(section, folder, model))
        if adapters[0] is None:
            return model
        from peft import get_peft_model

        return get_peft_model(model, adapters[0])

    with torch.device("meta"):
        model = make()
    counts = {on: sum(p.numel() for p in model.parameters() if p.requires_grad is on) for on in (True, False)}
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cached = 2 * kinds.count("full_attention") * config.num_key_value_heads * head
    return Size(counts[False] or counts[True], counts[True], config.vocab_size, cached, make)


def _adapter(section: ModelSection, folder: Path | None, model: Any) -> Any:
    from train.policy import new_adapter

    if section.lora is not None and section.lora.adapter == "continue" and folder is not None:
        from peft import PeftConfig

        adapter = PeftConfig.from_pretrained(str(folder))
        adapter.inference_mode = False
        return adapter
    return new_adapter(section, model)


def _width(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else 4
