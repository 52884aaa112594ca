"""Estimate the memory of one training process before anything is loaded.

AdamW's two moments have the weights' type. Under ZeRO a trained weight takes 2 + 4 + 16 bytes: its half-precision value, a
float32 sum of gradients as in the shipped configs, and for the optimizer (DeepSpeed's own count, in
`estimate_zero2_model_states_mem_needs`) a float32 copy, two moments and, at its step, gradients. These are partitioned among
processes: the optimizer under ZeRO-1, gradients under ZeRO-2, weights under ZeRO-3 (arXiv 1910.02054, section 3.1).
Activations are a fit (`activation_bytes`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import DataError
from nextturn.probe.engines.hf import CHOICE_BYTES, cache_bytes
from nextturn.probe.models.weights import read_config
from nextturn.train.policy import adapted_share, new_adapter
from nextturn.train.sections import GrpoRecipe, ModelSection, TrainRecipe, batch_of

GIB = 2**30
# Shapes of models that recipes name, for machines that cannot reach the hub. Text part only.
KNOWN_SHAPES: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.5-2B": {
        "model_type": "qwen3_5_text", "num_hidden_layers": 24, "hidden_size": 2048, "intermediate_size": 6144,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16, "tie_word_embeddings": True,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Sizes of the policy.

    Attributes:
        trained: Trained parameters; those of an adapter are not among `parameters`.
        hidden, intermediate: Widths of the residual stream and of the MLP.
        cached: Numbers in the cache for each token of a generated text.
        state: Bytes in the cache for each text of any length: the states of layers with linear attention.
        adapted: From `adapted_share`; empty if all weights are trained.
        base: The line of a plan that names the folder and its hash; empty if its weights are not here.
    """

    parameters: int
    trained: int
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    cached: int = 0
    state: int = 0
    adapted: str = ""
    base: str = ""


def size_of(section: ModelSection, folder: Path | None, base: Path | None = None) -> Size:
    """Count the parameters of a model, see `unloaded_policy`."""
    model, parameters, adapted = unloaded_policy(section, folder, base)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    config = model.config
    hidden, (token, state) = config.hidden_size, cache_bytes(config, 2) or (0, 0)
    return Size(
        parameters, trained, config.num_hidden_layers, hidden, getattr(config, "intermediate_size", 4 * hidden),
        config.vocab_size, token // 2, state, adapted,
    )  # fmt: skip


def unloaded_policy(section: ModelSection, folder: Path | None, base: Path | None = None) -> tuple[Any, int, str]:
    """Make the policy from its configuration, on the meta device.

    Args:
        folder: The model's folder; None takes the known shape of `section.name`.
        base: The base model's folder, if `folder` holds a LoRA adapter.

    Returns:
        The policy, its parameters without an adapter, and what its adapter adapts (`adapted_share`); "" without an adapter.

    Raises:
        ModelError: The adapter of `section` cannot be made on this model.
    """
    import torch
    from peft import PeftConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    if folder is None:
        shape = dict(KNOWN_SHAPES[section.name])
        config: Any = AutoConfig.for_model(shape.pop("model_type"), **shape)
    else:
        read_config(base or folder)  # refuses code on the hub, which making the model would load
        config = AutoConfig.from_pretrained(base or folder, trust_remote_code=False).get_text_config()
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        parameters = sum(p.numel() for p in model.parameters())
        if section.lora is None:
            return model, parameters, ""
        if section.continues_adapter and folder is not None:
            adapter = PeftConfig.from_pretrained(str(folder))
            adapter.inference_mode = False
        else:
            adapter = new_adapter(section, model)
        model = get_peft_model(model, adapter)
    return model, parameters, adapted_share(section, model)


# Numbers that a layer keeps for the backward pass of a token, in multiples of `hidden` and `intermediate`, at 2 bytes if
# weights are bfloat16 and 2.5 on average if they are float32; a layer that is recomputed for its backward pass takes 1.5 times
# that at its peak. Bytes of each logit if all are held: in their type, in float32, and their gradient. Fitted to the bytes
# that steps of Llama, Qwen2 and Qwen3.5 allocate; tests/train/test_memory.py tests ERROR.
OF_HIDDEN, OF_INTERMEDIATE, AGAIN, LOGIT_BYTES = 24, 2.5, 1.5, 13
# trl 1.16 computes log probabilities by tiles of so many tokens and entries of the vocabulary: TOKEN_CHUNK_SIZE of
# trl/kernels/chunked_logprob.py, _CHUNKED_LOGPROB_CHUNK_SIZE of trl/trainer/utils.py.
TILE_TOKENS, TILE_VOCABULARY = 4096, 32768
ERROR = 0.25  # of the whole memory


def activation_bytes(
    size: Size, dtype: str, rows: int, length: int, completion: int | None, checkpointing: bool, fused: bool
) -> float:
    """Return the bytes that a step holds at its peak in addition to weights, gradients and optimizer.

    Args:
        dtype: of the weights.
        rows, length: the shape of the batch, in tokens.
        completion: tokens at the end of each row whose log probabilities are needed; None for all.
        fused: trl's head is used, which never holds all logits (GPUs, and DPO everywhere).
    """
    width, tokens = width_of(dtype), rows * length
    layer = tokens * (OF_HIDDEN * size.hidden + OF_INTERMEDIATE * size.intermediate) * (1.5 + width / 4)
    scored = rows * (completion or length)
    if fused:
        head = 2.0 * min(scored, TILE_TOKENS) * min(size.vocabulary, TILE_VOCABULARY)
        if size.trained >= size.parameters:  # the gradient of the head, summed in float32
            head += size.vocabulary * size.hidden * (4 + width)
    else:
        head = float(LOGIT_BYTES * scored * size.vocabulary)
    if not checkpointing:
        return size.layers * layer + head
    return size.layers * tokens * size.hidden * width + max(AGAIN * layer, head)


def memory_parts(
    size: Size, dtype: str, activations: float, given: Mapping[str, Any], stage: int, ranks: int
) -> dict[str, float]:
    """Return bytes per process by part, for `ranks` processes under ZeRO `stage` (0: without DeepSpeed).

    Args:
        dtype: in which the weights are held; adapters are float32, as PEFT makes them.
        given: the recipe's `train:` section.
    """
    adapter = size.trained < size.parameters
    if stage:
        width = 2 if given.get("fp16") or given.get("bf16", True) else 4
        return {
            "weights": (size.parameters + adapter * size.trained) * width / (ranks if stage == 3 else 1),
            "gradients": size.trained * 4 / (ranks if stage >= 2 else 1),
            "optimizer": size.trained * 16 / ranks,
            "activations": activations,
        }
    trained = size.trained * (4 if adapter else width_of(dtype))
    return {
        "weights": trained + adapter * size.parameters * width_of(dtype),
        # DDP reduces gradients in buckets that hold them a second time.
        "gradients": trained * (2 if ranks > 1 else 1),
        "optimizer": 2 * trained,
        "activations": activations,
    }


def generation_bytes(size: Size, dtype: str, tokens: int, rows: int) -> float:
    """Return what transformers needs to generate `rows` texts of `tokens` in all: the cache and one choice of tokens."""
    return size.cached * tokens * width_of(dtype) + rows * (size.state + size.vocabulary * CHOICE_BYTES)


def advice(recipe: TrainRecipe) -> str:
    """Return what lowers the memory of training, with the values of now, as the end of a message."""
    given = recipe.arguments
    values = {"train.per_device_train_batch_size": batch_of(recipe).per_device}
    if isinstance(recipe, GrpoRecipe):
        values |= {
            "rollout.batch_tokens": recipe.rollout.batch_tokens,
            "data.max_prompt_tokens": recipe.data.max_prompt_tokens,
        }
    else:
        values |= {"train.max_length": given.get("max_length", 1024)}
    lower = ", ".join(f"{key} (now {value})" for key, value in values.items())
    checkpointing = "" if given.get("gradient_checkpointing", True) else ", set train.gradient_checkpointing to true"
    return f"lower {lower}{checkpointing}{'' if recipe.model.lora else ', or train an adapter (model.lora)'}"


def memory_here(on_gpu: bool) -> float:
    """Return the bytes of memory of the first GPU, or of this machine."""
    import psutil
    import torch

    return float(torch.cuda.mem_get_info(0)[1] if on_gpu else psutil.virtual_memory().total)


def width_of(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else 4


def zero_stage(given: Mapping[str, Any]) -> int:
    """Return the stage in the recipe's DeepSpeed file, 0 without one. Raises DataError where it cannot be read."""
    config = given.get("deepspeed")
    if isinstance(config, str):
        try:
            config = json.loads(Path(config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"train.deepspeed: {config}: cannot be read ({error})") from None
    return int((config or {}).get("zero_optimization", {}).get("stage", 0))
