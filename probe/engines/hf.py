"""Generation with transformers, in this process: on a loaded folder or on a live model during training.

Written as an own decode loop because `generate` offers neither a seed and a temperature per row nor a shared
prefill. Here requests with one prompt (a context at three temperatures, say) are prefilled once and share its
cache; prompts are sorted by length and batched by tokens; finished rows leave the batch. A sampled token is
the inverse of the cumulative distribution at a uniform number drawn from the request's own seed, so that the
batch a request falls into does not change what it draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from probe.engines.base import Completion, Request, ScoreRequest
from probe.errors import EngineError

if TYPE_CHECKING:
    import torch


# Rows leave the batch when this share of them is finished: copying the cache costs about one decode step.
_COMPACT_SHARE = 0.2


class HfEngine:
    """Completions from a transformers causal language model.

    Args:
        model: in eval mode; on any device; its class must take `past_key_values`.
        tokenizer: only its `decode` is used.
        batch_tokens: the most tokens (rows x (prompt + completion)) that one batch may hold.
    """

    name = "hf"

    def __init__(self, model: Any, tokenizer: Any, batch_tokens: int = 16384) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_tokens = batch_tokens

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Requests that share a batch: in bfloat16, a text can hang on which others were padded with it."""
        rooms = [request.max_tokens for request in requests]
        groups = _batches([request.prompt_ids for request in requests], rooms, self.batch_tokens)
        return [[index for indices in batch for index in indices] for batch in groups]

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        rooms = [request.max_tokens for request in requests]
        for batch in _batches([request.prompt_ids for request in requests], rooms, self.batch_tokens):
            yield from self._run(requests, batch)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """Prefills each prefix once, then reads all its targets' tokens in one pass."""
        rooms = [len(request.target_ids) for request in requests]
        for batch in _batches([request.prefix_ids for request in requests], rooms, self.batch_tokens):
            prefixes = [requests[indices[0]].prefix_ids for indices in batch]
            logits, cache, mask = self._prefill(prefixes)
            owners = [row for row, indices in enumerate(batch) for _ in indices]
            order = [index for indices in batch for index in indices]
            targets = [requests[index].target_ids for index in order]
            yield from zip(order, self._log_p(logits, cache, mask, owners, targets), strict=True)

    def _log_p(
        self, logits: torch.Tensor, cache: Any, mask: torch.Tensor, owners: list[int], targets: list[tuple[int, ...]]
    ) -> list[float]:
        """log p of each target after the prefix of its owner; logits [prefixes, vocabulary] as from `_prefill`."""
        import torch

        device = logits.device
        rows = torch.tensor(owners, device=device)
        if len(owners) != len(mask):
            cache.reorder_cache(rows)
        longest = max(len(target) for target in targets)
        ids = torch.zeros(len(targets), longest, dtype=torch.long, device=device)
        known = torch.zeros_like(ids)
        for row, target in enumerate(targets):
            ids[row, : len(target)] = torch.tensor(target, device=device)
            known[row, : len(target)] = 1
        whole = torch.cat([mask[rows], known], dim=1)
        positions = (whole.cumsum(dim=1) - 1).clamp(min=0)[:, -longest:]
        with torch.no_grad():
            output = self.model(
                input_ids=ids, attention_mask=whole, position_ids=positions, past_key_values=cache, use_cache=True
            )
        total = []
        for row, target in enumerate(targets):  # one row at a time: float32 over a large vocabulary is heavy
            before = torch.cat([logits[owners[row]][None], output.logits[row, : len(target) - 1]])
            log_p = before.float().log_softmax(dim=-1)
            total.append(log_p.gather(1, ids[row, : len(target), None]).double().sum().item())
        return total

    def _run(self, requests: Sequence[Request], batch: list[list[int]]) -> Iterator[tuple[int, Completion]]:
        """One batch: `batch` holds one list of request indices per distinct prompt."""
        import torch

        device = self.model.device
        prompts = [requests[indices[0]].prompt_ids for indices in batch]
        logits, cache, mask = self._prefill(prompts)
        rows = torch.tensor([row for row, indices in enumerate(batch) for _ in indices], device=device)
        if len(rows) > len(prompts):
            cache.reorder_cache(rows)
            logits, mask = logits[rows], mask[rows]
        active = [_Row(index, requests[index]) for indices in batch for index in indices]

        while True:
            tokens = _choose(logits, active)
            for row, token in zip(active, tokens.tolist(), strict=True):
                row.add(token)
            finished = [row for row in active if row.finish is not None and not row.reported]
            for row in finished:
                row.reported = True
                yield row.index, self._completion(row)
            kept = [position for position, row in enumerate(active) if row.finish is None]
            if not kept:
                return
            if len(active) - len(kept) >= _COMPACT_SHARE * len(active):
                keep = torch.tensor(kept, device=device)
                cache.reorder_cache(keep)
                tokens, mask, active = tokens[keep], mask[keep], [active[position] for position in kept]
            mask = torch.cat([mask, mask.new_ones(len(active), 1)], dim=1)
            with torch.no_grad():
                output = self.model(
                    input_ids=tokens[:, None],
                    attention_mask=mask,
                    position_ids=mask.sum(dim=1, keepdim=True) - 1,
                    past_key_values=cache,
                    use_cache=True,
                )
            logits, cache = output.logits[:, -1], output.past_key_values

    def _completion(self, row: _Row) -> Completion:
        ids = (*row.tokens, *row.stopped_by)
        return Completion(self.tokenizer.decode(row.tokens), len(row.tokens), row.finish or "stop", ids)

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, Any, torch.Tensor]:
        """Left-pads and runs the prompts; gives logits [prompts, vocabulary], the cache and the mask."""
        import torch

        device = self.model.device
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt, device=device)
            mask[row, longest - len(prompt) :] = 1
        with torch.no_grad():
            output = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
                use_cache=True,
                logits_to_keep=1,
            )
        return output.logits[:, -1], output.past_key_values, mask


class _Row:
    """One completion on its way."""

    def __init__(self, index: int, request: Request) -> None:
        import torch

        self.index = index
        self.temperature = request.temperature
        self.stop = frozenset(request.stop_ids)
        self.limit = request.max_tokens
        self.tokens: list[int] = []
        self.stopped_by: tuple[int, ...] = ()
        self.finish: Any = None
        self.reported = False
        # Drawn on the CPU in one go, so that a request gets the same numbers on every device.
        generator = torch.Generator().manual_seed(request.seed)
        self.uniform = torch.rand(request.max_tokens, generator=generator, dtype=torch.float64).tolist()

    def add(self, token: int) -> None:
        if self.finish is not None:
            return
        if token in self.stop:
            self.finish, self.stopped_by = "stop", (token,)
            return
        self.tokens.append(token)
        if len(self.tokens) >= self.limit:
            self.finish = "length"


def _choose(logits: torch.Tensor, rows: Sequence[_Row]) -> torch.Tensor:
    """The next token of every row: argmax at temperature 0, else the inverse of the cumulative distribution.

    Raises:
        EngineError: the logits are not numbers, as with damaged weights; argmax would make text of them all the same.
    """
    import torch

    tokens = logits.argmax(dim=-1)
    if logits.gather(1, tokens[:, None]).isnan().any():  # a NaN is the largest to argmax
        raise EngineError("the model's logits are not numbers: its weights are damaged, or its dtype overflows")
    sampled = [position for position, row in enumerate(rows) if row.temperature > 0 and row.finish is None]
    if sampled:
        index = torch.tensor(sampled, device=logits.device)
        chosen = [rows[position] for position in sampled]
        temperature = logits.new_tensor([[row.temperature] for row in chosen], dtype=torch.float32)
        cumulative = (logits[index].float() / temperature).softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
        uniform = cumulative.new_tensor([[row.uniform[len(row.tokens)]] for row in chosen])
        drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
        tokens[index] = drawn[:, 0].clamp(max=logits.shape[-1] - 1)
    return tokens


def _batches(prompts: Sequence[tuple[int, ...]], rooms: Sequence[int], batch_tokens: int) -> Iterator[list[list[int]]]:
    """Lists of indices by prompt, longest first, each batch within `batch_tokens` (or one prompt).

    `rooms` holds how many tokens each row needs behind its prompt.
    """
    shared: dict[tuple[int, ...], list[int]] = {}
    for index, prompt in enumerate(prompts):
        shared.setdefault(prompt, []).append(index)
    groups = sorted(shared.values(), key=lambda group: len(prompts[group[0]]), reverse=True)
    batch: list[list[int]] = []
    rows = width = 0
    for group in groups:
        needed = len(prompts[group[0]]) + max(rooms[index] for index in group)
        width = max(width, needed)
        if batch and (rows + len(group)) * width > batch_tokens:
            yield batch
            batch, rows, width = [], 0, needed
        batch.append(group)
        rows += len(group)
    if batch:
        yield batch


# --- The model in training, ready to generate.


@contextmanager
def live_model(trainer: Any, dtype: str = "auto") -> Iterator[Any]:
    """The model in training, whole and ready to generate on every rank; back to training afterwards."""
    import torch
    from trl.models.utils import unwrap_model_for_generation

    with unwrap_model_for_generation(
        trainer.model_wrapped,
        trainer.accelerator,
        gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
    ) as model:
        wanted = model.dtype if dtype == "auto" else getattr(torch, dtype)
        measured = model if model.dtype == wanted else _rounded(model, wanted)
        training = model.training
        measured.eval()
        try:
            yield measured
        finally:
            model.train(training)


def _rounded(model: Any, dtype: Any) -> Any:
    """A copy of the live weights in another type, for speed: float32 under autocast generates several times slower.

    Built anew rather than deep-copied, because accelerate and trl replace the live model's `forward` by wrappers that
    hold on to the live model: a deep copy would quietly run the original.
    """
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    with init_empty_weights(include_buffers=False):
        fresh = AutoModelForCausalLM.from_config(model.config, dtype=dtype, trust_remote_code=False)
    weights = {name: tensor.detach().to(dtype) for name, tensor in _whole_weights(model).items()}
    fresh.load_state_dict(weights, assign=True)
    fresh.tie_weights()
    return fresh


def _whole_weights(model: Any) -> dict[str, Any]:
    """The weights under the names of the model's own class, with a LoRA adapter added to those that it changes.

    Added here, since PEFT merges in place: to take the adapter out again would leave rounding errors in the live weights.
    """
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

    if not isinstance(model, PeftModel):
        return dict(model.state_dict())
    whole = model.get_base_model()
    weights = {
        name.replace(".base_layer.", "."): tensor for name, tensor in whole.state_dict().items() if ".lora_" not in name
    }
    adapted: dict[str, Any] = {name: layer for name, layer in whole.named_modules() if isinstance(layer, LoraLayer)}
    for name, layer in adapted.items():
        weight = layer.get_base_layer().weight
        weights[f"{name}.weight"] = weight + sum(layer.get_delta_weight(one) for one in layer.active_adapters)
    return weights
