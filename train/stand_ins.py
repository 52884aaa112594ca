"""Sizes of two GPU kernels for an estimate of memory: what they keep for the backward pass and what they make in it.

They compute nothing. Each follows the source that it names, as installed with the versions in constraints.txt.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# trl 1.16: TOKEN_CHUNK_SIZE of trl/kernels/chunked_logprob.py, _CHUNKED_LOGPROB_CHUNK_SIZE of trl/trainer/utils.py.
TILE_TOKENS, TILE_VOCABULARY = 4096, 32768
CHUNK = 64  # tokens that flash-linear-attention 0.6 takes together


class FusedHead(torch.autograd.Function):
    """trl's log probabilities without logits (ChunkedLogProbFunction): (hidden [N, H], weight [V, H]) to [N]."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        hidden.new_empty(min(len(hidden), TILE_TOKENS), min(len(weight), TILE_VOCABULARY))
        statistics = [hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(7)]
        ctx.save_for_backward(hidden, weight, statistics[0], statistics[1])
        return statistics[2]

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        hidden, weight, *_statistics = ctx.saved_tensors
        sums = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        weight_sums = None
        if ctx.needs_input_grad[1]:
            weight_sums = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        tile = hidden.new_empty(min(len(hidden), TILE_TOKENS), min(len(weight), TILE_VOCABULARY))
        del tile
        return sums.to(hidden.dtype), None if weight_sums is None else weight_sums.to(weight.dtype)


class DeltaRule(torch.autograd.Function):
    """The gated delta rule of fla/ops/gated_delta_rule/chunk.py: q, k, v [B, T, H, D] and gates [B, T, H] to [B, T, H, D].

    Kept: q and k normalized, v, the gates' running sums, and `A`, a row of 64 a token and head. Made on the way back: w, u,
    v_new and the gradients of v, q, k, w and k again, and the states of all chunks (D x D a head) twice.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        rows = q.new_empty(*q.shape[:3], CHUNK)
        ctx.save_for_backward(torch.empty_like(q), torch.empty_like(k), v, g.float().clone(), beta, rows)
        made = [torch.empty_like(v) for _ in range(3)]  # w, u, v_new
        states = _states(q, v)
        del made, states
        return torch.empty_like(v)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        q, k, v, g, beta, _rows = ctx.saved_tensors
        made = [torch.empty_like(v) for _ in range(6)]
        states = [_states(q, v) for _ in range(2)]
        del made, states
        return (
            torch.empty_like(q),
            torch.empty_like(k),
            torch.empty_like(v),
            torch.empty_like(g),
            torch.empty_like(beta),
        )


def _states(q: Tensor, v: Tensor) -> Tensor:
    rows, length, heads, width = q.shape
    return q.new_empty(rows, -(-length // CHUNK), heads, width, v.shape[-1])


@contextmanager
def kernels_installed(model: Any) -> Iterator[None]:
    """While it lasts, a model with linear attention runs as if flash-linear-attention were installed."""
    import sys

    module: Any = sys.modules[type(model).__module__]
    plain = getattr(module, "torch_chunk_gated_delta_rule", None)
    if plain is None:
        yield
        return

    def kernel(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **_: Any) -> tuple[Any, None]:
        return DeltaRule.apply(q, k, v, g, beta), None  # type: ignore[no-untyped-call]

    module.torch_chunk_gated_delta_rule = kernel
    try:
        yield
    finally:
        module.torch_chunk_gated_delta_rule = plain
