"""Tiny random models for tests: seconds instead of downloads, the real classes instead of fakes.

The model and tokenizer classes and the chat templates are the real ones; only sizes, weights and vocabulary are
small. Linear heads have 64 or 128 dimensions because vLLM's CPU kernels for gated DeltaNet accept nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.models.tiny_tokenizer import END_OF_TEXT, FAMILIES, IM_END, chat_template, tiny_tokenizer

__all__ = [
    "FAMILIES",
    "build_tiny_llama",
    "build_tiny_multimodal",
    "build_tiny_qwen35",
    "chat_template",
    "tiny_tokenizer",
]


def build_tiny_qwen35(
    folder: Path,
    seed: int = 0,
    template: str = "qwen3_5_nothink",
    layers: int = 4,
    hidden: int = 128,
    linear_head_dim: int = 64,
    dtype: str = "float32",
) -> Path:
    """Writes a random Qwen3_5ForCausalLM of about 1M parameters with its tokenizer; returns `folder`.

    Every fourth layer is full attention, the others gated DeltaNet, as in the released models.
    """
    from transformers import Qwen3_5ForCausalLM

    tokenizer = tiny_tokenizer(template)
    config = _qwen35_text_config(tokenizer, layers, hidden, linear_head_dim)
    return _save(folder, Qwen3_5ForCausalLM, config, tokenizer, seed, dtype)


def build_tiny_multimodal(folder: Path, seed: int = 0, dtype: str = "float32") -> Path:
    """Writes a random Qwen3_5ForConditionalGeneration (text and vision tower), the class that the hub holds."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    tokenizer = tiny_tokenizer("qwen3_5_nothink")
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 128}
    vision |= {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 1, "num_position_embeddings": 16}
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    names |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in names.items()}
    text = _qwen35_text_config(tokenizer, layers=4, hidden=128, linear_head_dim=64).to_dict()
    config = Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    return _save(folder, Qwen3_5ForConditionalGeneration, config, tokenizer, seed, dtype)


def build_tiny_llama(folder: Path, seed: int = 0, template: str = "chatml", dtype: str = "float32") -> Path:
    """Writes a random two-layer LlamaForCausalLM with the tokenizer of any template; faster than Qwen3.5 on a CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer(template)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return _save(folder, LlamaForCausalLM, config, tokenizer, seed, dtype)


def _qwen35_text_config(tokenizer: Any, layers: int, hidden: int, linear_head_dim: int) -> Any:
    from transformers import Qwen3_5TextConfig

    return Qwen3_5TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=linear_head_dim,
        linear_value_head_dim=linear_head_dim,
        max_position_embeddings=4096,
        # mrope_section sums to head_dim * partial_rotary_factor / 2.
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _save(folder: Path, model_class: Any, config: Any, tokenizer: Any, seed: int, dtype: str) -> Path:
    import torch

    # The generator of the caller's process is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config).to(getattr(torch, dtype))
    turn_ends = [IM_END, "<|eot_id|>", "<end_of_turn>", END_OF_TEXT, tokenizer.eos_token]
    present = tokenizer.get_vocab()
    model.generation_config.eos_token_id = list(
        dict.fromkeys(present[token] for token in turn_ends if token in present)
    )
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
