"""Floating-point work of training, and what chips can do at most: the share of one in the other is the MFU."""

from __future__ import annotations

from typing import Any

TERA = 1e12

# Dense bf16 tensor-core peak in TFLOP/s by a part of torch's device name; the first that fits counts. From NVIDIA's data
# sheets: B200 and H200 (2024), H100 (2023: SXM, PCIe and NVL differ), A100 (2021), L40S, L4 (2023), A10 (2021), and the
# white papers of Ada (RTX 4090, 6000 Ada) and Ampere GA102 (RTX 3090), with float32 accumulation.
PEAKS: tuple[tuple[str, float], ...] = (
    ("B200", 2250.0),
    ("H200", 989.4),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.4),
    ("A100", 312.0),
    ("L40S", 362.0),
    ("L4", 121.0),
    ("A10", 125.0),
    ("RTX 6000 Ada", 364.2),
    ("RTX 4090", 165.2),
    ("RTX 3090", 71.0),
)


def peak_tflops(device_name: str) -> float | None:
    """None for a chip that is not in the table."""
    words = f"{device_name} "
    return next((peak for name, peak in PEAKS if f"{name} " in words.replace("-", " ")), None)


def training_flops(config: Any, parameters: int, length: int, lora: bool) -> float:
    """Model FLOPs per token of a forward and a backward pass, without what gradient checkpointing repeats.

    6 N a token (arXiv 2001.08361, section 2.1), 4 N where the weights are frozen and only pass gradients on; and for each
    layer with full attention 6 x length x width of its heads, causal, as in arXiv 2204.02311, appendix B. The recurrence
    of linear attention, a few per cent, is left out.
    """
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = 6 * kinds.count("full_attention") * length * config.num_attention_heads * head
    return (4 if lora else 6) * parameters + attention
