"""Memory per GPU, estimated by part before anything is loaded.

Weights, gradients and AdamW's states follow the mixed-precision bookkeeping of ZeRO (arXiv 1910.02054, section 3.1:
2 + 2 + 12 bytes a parameter, the last two shared among processes under ZeRO-2, all under ZeRO-3); activations follow
arXiv 2205.05198, equation 2 without its attention term, which fused attention does not store: 34 bytes per token, hidden
unit and layer, or 2 with gradient checkpointing plus one layer in full.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import DataError
from probe.models import resolve
from train.recipe import ModelSection

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
    """Parameters of the policy and of its trained part, and the shape that activations depend on.

    Attributes:
        cached: numbers that a token leaves in the cache while text is generated: keys and values of the layers with
            full attention.
    """

    parameters: int
    trained: int
    layers: int
    hidden: int
    vocabulary: int = 0
    cached: int = 0


def memory_parts(size: Size, dtype: str, given: dict[str, Any], stage: int, ranks: int) -> dict[str, float]:
    """Bytes per process by part, for `ranks` processes under ZeRO `stage` (0: none)."""
    width = _width(dtype)
    # DeepSpeed keeps a float32 master copy beside the two moments; plain AdamW keeps moments in the weights' type.
    states = size.trained * (12 if stage else 2 * width)
    tokens = given.get("per_device_train_batch_size", 8) * (given.get("max_length") or 1024)
    checkpointing = given.get("gradient_checkpointing", True)
    activations = tokens * size.hidden * (2 * size.layers + 34 if checkpointing else 34 * size.layers)
    return {
        "weights": size.parameters * width / (ranks if stage == 3 else 1),
        "gradients": size.trained * width / (ranks if stage >= 2 else 1),
        "optimizer": states / (ranks if stage else 1),
        "activations": activations,
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

    from train.policy import new_adapter

    if folder is None:
        shape = dict(KNOWN_SHAPES[section.name])
        config: Any = AutoConfig.for_model(shape.pop("model_type"), **shape)
    else:
        base = resolve(section.name).base
        config = AutoConfig.from_pretrained(base or folder, trust_remote_code=False)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        total = sum(parameter.numel() for parameter in model.parameters())
        trained = total
        if section.lora and section.lora.adapter == "continue" and folder is not None:
            from probe.models.weights import count_parameters

            trained = count_parameters(folder)["total"]
        elif (adapter := new_adapter(section, model)) is not None:
            from peft import get_peft_model

            trained = get_peft_model(model, adapter).get_nb_trainable_parameters()[0]
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cached = 2 * kinds.count("full_attention") * config.num_key_value_heads * head
    return Size(total, trained, config.num_hidden_layers, config.hidden_size, config.vocab_size, cached)


def _width(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else 4
