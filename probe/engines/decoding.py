"""Attention and a cache that decode without copying all keys and values at each step.

transformers copies every key and value twice a step: `DynamicLayer` to append one token, and its sdpa attention to repeat
them for all query heads of a group, if rows are padded. On a CPU that takes longer than the matrix products; `make bench`
times it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class PreallocatedLayer(DynamicLayer):
    """Keys and values [B, H, T, D] as views of buffers that have room for more tokens.

    Args:
        filled: The layer after the prompt.
        room: The most tokens to add.
    """

    def __init__(self, filled: DynamicLayer, room: int) -> None:
        super().__init__()
        self.lazy_initialization(filled.keys, filled.values)
        self._allocate(filled.keys, filled.values, filled.keys.shape[-2] + room)

    def _allocate(self, keys: torch.Tensor, values: torch.Tensor, tokens: int) -> None:
        self._buffers = [tensor.new_empty(*tensor.shape[:2], tokens, tensor.shape[-1]) for tensor in (keys, values)]
        self._write(0, keys, values)

    def _write(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        end = start + keys.shape[-2]
        for buffer, new in zip(self._buffers, (keys, values), strict=True):
            buffer[:, :, start:end] = new
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start, room = self.keys.shape[-2], self._buffers[0].shape[-2]
        if start + key_states.shape[-2] > room:
            raise ValueError(f"a cache with room for {room} tokens was given {start + key_states.shape[-2]}")
        self._write(start, key_states, value_states)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._allocate(self.keys[beam_idx], self.values[beam_idx], self._buffers[0].shape[-2])


def preallocate(cache: Any, room: int) -> None:
    """Make room for `room` tokens in the layers of a filled cache that would otherwise be copied at each step.

    Layers of linear attention, of a sliding window, and layers without tokens stay as they are.
    """
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.get_seq_length():
            cache.layers[index] = PreallocatedLayer(layer, room)


@contextmanager
def shared_keys() -> Iterator[None]:
    """Let sdpa attention of a single token read each key once for all query heads that share it."""
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if not isinstance(plain, partial):  # else an engine in another thread shares keys already
        ALL_ATTENTION_FUNCTIONS["sdpa"] = partial(_single_token_attention, plain)
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = plain.args[0] if isinstance(plain, partial) else plain


def _single_token_attention(
    plain: Callable[..., tuple[torch.Tensor, None]],
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one query token per row, without repeated keys.

    The query heads [B, H, 1, D] that share keys [B, H / G, T, D] are treated as G query tokens of one head. Other shapes,
    such as a mask for each head, go to `plain`.
    """
    rows, heads, tokens, width = query.shape
    groups = key.shape[1]
    mask_per_head = attention_mask is not None and (attention_mask.dim() != 4 or attention_mask.shape[1] != 1)
    if tokens != 1 or heads == groups or mask_per_head or options.get("position_bias") is not None:
        return plain(module, query, key, value, attention_mask, **options)
    shared = query.reshape(rows, groups, heads // groups, width)
    dropout, scale = options.get("dropout", 0.0), options.get("scaling")
    attend = torch.nn.functional.scaled_dot_product_attention
    attended = attend(shared, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scale)
    return attended.reshape(rows, 1, heads, value.shape[-1]), None
