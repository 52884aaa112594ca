"""What keeps a decode step as cheap as its matrix products: attention and cache without copies of all that was said.

As transformers does it, each step copies every key and value twice: to append one token (`DynamicLayer`), and to repeat them
for all query heads of a group, which its sdpa attention does wherever rows are padded. On a CPU that took as long as the
matrix products and more, most of it for fresh memory. `make bench` times it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class PreallocatedLayer(DynamicLayer):
    """Keys and values [B, H, T, D] as views of buffers that have room for `room` tokens more."""

    def __init__(self, filled: DynamicLayer, room: int) -> None:
        super().__init__()
        self.lazy_initialization(filled.keys, filled.values)
        self._allocate(filled.keys, filled.values, filled.keys.shape[-2] + room)

    def _allocate(self, keys: torch.Tensor, values: torch.Tensor, tokens: int) -> None:
        self._buffers = [held.new_empty(*held.shape[:2], tokens, held.shape[-1]) for held in (keys, values)]
        for buffer, held in zip(self._buffers, (keys, values), strict=True):
            buffer[:, :, : held.shape[-2]] = held
        self._show(keys.shape[-2])

    def _show(self, tokens: int) -> None:
        self.keys, self.values = (buffer[:, :, :tokens] for buffer in self._buffers)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start = self.keys.shape[-2]
        end = start + key_states.shape[-2]
        if end > self._buffers[0].shape[-2]:
            raise ValueError(f"a cache with room for {self._buffers[0].shape[-2]} tokens was given {end}")
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = new
        self._show(end)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._allocate(self.keys[beam_idx], self.values[beam_idx], self._buffers[0].shape[-2])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reorder_cache(torch.arange(len(self.keys), device=self.keys.device).repeat_interleave(repeats))


def preallocate(cache: Any, room: int) -> None:
    """Makes room for `room` tokens in those of a filled cache's layers that would grow by a copy at each step.

    Layers of other kinds, as those of linear attention and of a sliding window, stay as they are.
    """
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.get_seq_length():  # one that nothing filled holds nothing to copy
            cache.layers[place] = PreallocatedLayer(layer, room)


_lock = threading.Lock()
_open = 0
_found: Any = None


@contextmanager
def shared_keys() -> Iterator[None]:
    """While it is open, sdpa attention of a single token reads each key once for all query heads that share it.

    It holds for the process, and for as long as one of several threads has it open: the sums are the same.
    """
    global _open, _found
    with _lock:
        if _open == 0:
            _found = ALL_ATTENTION_FUNCTIONS["sdpa"]
            ALL_ATTENTION_FUNCTIONS["sdpa"] = partial(_single_token_attention, _found)
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if _open == 0:
                ALL_ATTENTION_FUNCTIONS["sdpa"] = _found


def _single_token_attention(
    plain: Callable[..., tuple[torch.Tensor, None]],
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one query token per row: the heads [B, H, 1, D] that share keys [B, H / G, T, D] stand as G query tokens
    of one head, so that nothing is repeated. What that does not fit, as a mask for each head, goes to `plain`."""
    rows, heads, tokens, width = query.shape
    groups = key.shape[1]
    each_head = attention_mask is not None and (attention_mask.dim() != 4 or attention_mask.shape[1] != 1)
    if tokens != 1 or heads == groups or each_head or options.get("position_bias") is not None:
        return plain(module, query, key, value, attention_mask, **options)
    shared = query.reshape(rows, groups, heads // groups, width)
    attended = torch.nn.functional.scaled_dot_product_attention(
        shared,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=options.get("dropout", 0.0),
        scale=options.get("scaling"),
    )
    return attended.reshape(rows, 1, heads, value.shape[-1]), None
