"""How long training and its probes take on GPUs: counted from shapes, tokens and a few stated assumptions, before anything ran.

A forward pass takes what its arithmetic takes at a share of the chip's peak, or what launching its kernels takes, whichever is
longer; a step of generation what reading the weights and each text's cache takes, or again the launches. None of the
assumptions below was measured on a GPU here: recipes/gpu_check.sh measures speeds, and each probe's `timing` its own.
Expect a factor of two. The shares in the plan are of use because both sides rest on the same assumptions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from probe.engines.hf import MOST_ROWS
from probe.engines.vllm import RUNNING

# Dense bf16 tensor-core peak in TFLOP/s and memory bandwidth in TB/s by a part of torch's device name; the first that fits
# counts. From NVIDIA's data sheets: B200 and H200 (2024), H100 (2023: SXM, PCIe and NVL differ), A100 (2021: of 80 GB), L40S,
# L4 (2023), A10 (2021), and the white papers of Ada (RTX 4090, 6000 Ada) and Ampere GA102 (RTX 3090), with float32
# accumulation.
CHIPS = {
    "B200": (2250.0, 8.0), "H200": (989.4, 4.8), "H100 PCIe": (756.0, 2.0), "H100 NVL": (835.0, 3.9),
    "H100": (989.4, 3.35), "A100": (312.0, 2.039), "L40S": (362.0, 0.864), "L4": (121.0, 0.3), "A10": (125.0, 0.6),
    "RTX 6000 Ada": (364.2, 0.96), "RTX 4090": (165.2, 1.008), "RTX 3090": (71.0, 0.936),
}  # fmt: skip
# Where no GPU is at hand, or one that is not in the table.
ASSUMED_CHIP = "A100"
# Of the peak, for matrices of thousands of rows: what well-tuned training reaches (arXiv 2204.02311, table 3: 0.46).
EFFICIENCY = 0.4
# What one layer's kernels take to be launched one by one from Python, so the least that it takes however few its rows: 32
# layers of Llama-7B made 25.5 tokens a second that way on an A100 (pytorch.org/blog/accelerating-generative-ai-2).
LAYER_S = 1.2e-3
# What vLLM takes for a step beside reading memory, its kernels being launched as one graph: scheduling and sampling.
VLLM_STEP_S = 3e-3
# A text's mean length as a share of its limit; the longest of many reaches the limit.
MEAN = 0.5
PROMPT = 150  # tokens of a probe's question with its template
# What a probe takes beside the model: grading and judging by rules (1.3 ms a user turn on one CPU core), files and plots.
PROBE_S = 5.0
# Tokens of targets whose logits a score holds at once (probe/engines/hf.py), with Qwen3.5's vocabulary.
SCORED = 2048


@dataclass(frozen=True)
class Shape:
    """Of a model in 16 bits: layers, parameters, bytes that a text keeps in the cache by token and by row."""

    layers: int
    parameters: int
    token: float
    row: float


@dataclass(frozen=True)
class Chip:
    """Peak in FLOP/s and memory bandwidth in bytes/s."""

    name: str
    flops: float
    bandwidth: float


def chip(device_name: str | None) -> Chip:
    """By torch's device name; the assumed one for a name that is not in the table, or for none."""
    found = _known(device_name) or ASSUMED_CHIP
    return Chip(found, CHIPS[found][0] * 1e12, CHIPS[found][1] * 1e12)


def peak_tflops(device_name: str) -> float | None:
    """None for a chip that is not in the table."""
    known = _known(device_name)
    return CHIPS[known][0] if known else None


def _known(device_name: str | None) -> str | None:
    words = f"{device_name or ''} ".replace("-", " ")
    return next((name for name in CHIPS if f"{name} " in words), None)


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


def forward_s(shape: Shape, chip: Chip, tokens: float) -> float:
    """One forward pass over so many tokens."""
    return max(2 * shape.parameters * tokens / (EFFICIENCY * chip.flops), shape.layers * LAYER_S)


def training_s(shape: Shape, chip: Chip, tokens: float, lora: bool, checkpointing: bool) -> float:
    """A forward and a backward pass: frozen weights pass gradients on but have none; checkpointing runs forward again."""
    passes = (2 if lora else 3) + checkpointing
    launches = shape.layers * LAYER_S * (3 + checkpointing)
    return max(passes * 2 * shape.parameters * tokens / (EFFICIENCY * chip.flops), launches)


def generation_s(
    shape: Shape, chip: Chip, rows: float, prompt: float, limit: int, vllm: bool, at_once: int | None = None
) -> float:
    """`rows` texts of at most `limit` tokens after prompts of `prompt`, on one process.

    transformers makes a batch after the other, each as long as its longest text; vLLM lets the next text in where one ends.

    Args:
        at_once: rows of a batch, or that run together.
    """
    if not rows:
        return 0.0
    at_once = at_once or (RUNNING if vllm else MOST_ROWS)
    running = min(rows, at_once)
    # A text's states are read and written in each step, its keys and values read, and by transformers copied as well.
    width = prompt + MEAN * limit
    read = 2 * shape.parameters + running * (2 * shape.row + (1 if vllm else 3) * width * shape.token)
    if vllm:
        steps = max(limit, math.ceil(rows / running * MEAN * limit))
        step = VLLM_STEP_S + read / chip.bandwidth
    else:
        steps = math.ceil(rows / running) * limit
        step = max(shape.layers * LAYER_S, read / chip.bandwidth)
    return steps * step + forward_s(shape, chip, rows * prompt)


def probe_s(
    shape: Shape,
    chip: Chip,
    answers: int,
    followed: int,
    user_turns: int,
    max_answer: int,
    max_user: int,
    grounding: bool,
    vllm: bool,
    ranks: int,
) -> float:
    """One probe over `ranks` processes that share its texts: answers, user turns after `followed` of them, grounding."""
    context = PROMPT + MEAN * max_answer
    turn = MEAN * max_user
    seconds = generation_s(shape, chip, answers / ranks, PROMPT, max_answer, vllm)
    # Turns that share a context share its prefill.
    shared = followed / max(1, user_turns) * context
    seconds += generation_s(shape, chip, user_turns / ranks, shared, max_user, vllm)
    if grounding and user_turns:
        prefixes = followed / ranks * (context + PROMPT)  # with the answer, and with the neutral one
        targets = 2 * user_turns / ranks * turn
        seconds += forward_s(shape, chip, prefixes) + math.ceil(targets / SCORED) * forward_s(shape, chip, SCORED)
    return seconds + PROBE_S
