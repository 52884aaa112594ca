"""Generation with transformers in this process, with a loaded model or with a model in training.

The decode loop is our own because `generate` has no seed and temperature per row and no shared prefill. Requests with the
same prompt are prefilled once and share its cache. Prompts are sorted by length and batched by the memory. Finished rows
leave the batch. A sampled token is the inverse of the cumulative distribution at a uniform number drawn from the request's
own seed, so the batch of a request does not change its sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from nextturn.probe.command.errors import EngineError, one_line, require
from nextturn.probe.command.terminal import say
from nextturn.probe.engines.base import Completion, Request, ScoreRequest

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Batch = list[list[int]]
"""Indices of requests, one list for each distinct prompt."""

# Rows leave the batch when this share of them is finished: copying the cache costs about one decode step.
_COMPACT_SHARE = 0.2
# The most bytes of logits that scoring holds at once. All logits of 100 user turns over the 248,320 tokens of Qwen3.5 would
# take 5 GB, and their float32 copies as much again.
LOGITS_BYTES = 2**30


class HfEngine:
    """Completions from a transformers causal language model.

    Args:
        model: In eval mode, on any device; its class must take `past_key_values`. None if `load` gives it.
        tokenizer: Only its `decode` is used.
        batch_tokens: The most tokens (rows x (prompt + completion)) of one batch. None: what the free memory of the model's
            GPU holds, measured once, and 16,384 on a CPU.
        load: Called with the first request, so a run whose completions are all stored never loads the model.
    """

    name = "hf"

    def __init__(
        self, model: Any, tokenizer: Any, batch_tokens: int | None = None, load: Callable[[], Any] | None = None
    ) -> None:
        self._model = model
        self._load = load
        self.tokenizer = tokenizer
        self.batch_tokens = batch_tokens
        self._room: Room | None = None

    @property
    def model(self) -> Any:
        if self._model is None and self._load is not None:
            self._model = self._load()
        return self._model

    @property
    def room(self) -> Room:
        """The room of one batch."""
        import torch

        if self._room is None:
            self._room = Room(self.batch_tokens or CPU_TOKENS)
            # A CPU gains nothing from larger batches.
            if self.batch_tokens is None and torch.cuda.is_available() and self.model.device.type == "cuda":
                torch.cuda.empty_cache()  # memory that torch holds and nobody uses counts as free
                free, _ = torch.cuda.mem_get_info(self.model.device)
                self._room = room_for(free, self.model.config.get_text_config(), self.model.dtype.itemsize)
        return self._room

    def close(self) -> None:
        """Release the model; a model of `load` is loaded again with the next request."""
        self._model = self._room = None

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Return the requests that share a batch: in bfloat16, a text can depend on its padding."""
        prompts, limits = [request.prompt_ids for request in requests], [request.max_tokens for request in requests]
        return [[index for group in batch for index in group] for batch in _batches(prompts, limits, self.room)]

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        """Yield (index, completion), the longest prompts first, within a batch as rows finish.

        Raises:
            EngineError: The logits are not numbers, or the GPU's memory does not hold a single prompt.
        """
        prompts, limits = [request.prompt_ids for request in requests], [request.max_tokens for request in requests]
        return self._by_batch(prompts, limits, lambda batch: self._decode(requests, batch))

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """Yield (index, log p). Each distinct prefix is computed once. Raises as `stream`."""
        prefixes = [request.prefix_ids for request in requests]
        limits = [len(request.target_ids) for request in requests]
        return self._by_batch(prefixes, limits, lambda batch: iter(self._log_p(requests, batch)))

    def _by_batch(
        self,
        prompts: Sequence[tuple[int, ...]],
        limits: Sequence[int],
        make: Callable[[Batch], Iterator[tuple[int, T]]],
    ) -> Iterator[tuple[int, T]]:
        """Yield from `make` for each batch. Batches become smaller if the GPU's memory does not hold one."""
        import torch

        missing = dict.fromkeys(range(len(prompts)))
        while missing:
            indices = list(missing)
            for places in _batches([prompts[i] for i in indices], [limits[i] for i in indices], self.room):
                batch = [[indices[place] for place in group] for group in places]
                try:
                    for index, result in make(batch):
                        del missing[index]
                        yield index, result
                except torch.OutOfMemoryError as error:
                    rows = sum(map(len, batch))
                    if len(batch) == 1:
                        problem = f"the GPU's memory does not hold {rows} rows of one prompt ({one_line(error)})"
                        raise EngineError(f"{problem}; lower probe.samples or the token limits") from error
                else:
                    continue
                self._room = replace(self.room, most_rows=rows // 2)
                say(f"a batch of {rows} rows did not fit in the GPU's memory; continuing with at most {rows // 2}")
                torch.cuda.empty_cache()
                break

    def _log_p(self, requests: Sequence[ScoreRequest], batch: list[list[int]]) -> list[tuple[int, float]]:
        """Return (index, log p) for a batch, which holds one list of request indices per distinct prefix."""
        import torch

        logits, cache, mask = self._prefill([requests[group[0]].prefix_ids for group in batch])
        order = [index for group in batch for index in group]
        prefix_of = [row for row, group in enumerate(batch) for _ in group]
        rows = torch.tensor(prefix_of, device=logits.device)
        if len(order) > len(batch):
            cache.reorder_cache(rows)
        # Targets are padded on the right, where nothing reads the padding.
        ids, known = _padded([requests[index].target_ids for index in order], "right", logits.device)
        lengths, longest = known.sum(dim=1).tolist(), ids.shape[1]
        whole = torch.cat([mask[rows], known], dim=1)
        positions = (whole.cumsum(dim=1) - 1).clamp(min=0)[:, -longest:]
        totals = torch.zeros(len(order), dtype=torch.float64, device=logits.device)

        def add(row: int, start: int, logits: torch.Tensor) -> None:
            """Add log p of a target's tokens from `start` on, given `logits` [tokens, V]. One row at a time, since float32
            logits over a large vocabulary take much memory."""
            tokens = ids[row, start : lengths[row]][: len(logits)]
            log_p = logits[: len(tokens)].float().log_softmax(dim=-1)
            totals[row] += log_p.gather(1, tokens[:, None]).double().sum()

        # The prefix's last logits predict the first token, each token's logits the next one. The whole forward pass makes
        # them, a few tokens at a time on a growing cache, because a model's head may do more than a projection.
        for row, prefix in enumerate(prefix_of):
            add(row, 0, logits[prefix][None])
        step = max(1, LOGITS_BYTES // (len(order) * logits.shape[-1] * logits.element_size()))
        for start in range(0, longest - 1, step):
            end = min(start + step, longest - 1)
            seen = whole[:, : whole.shape[1] - longest + end]
            logits, cache = self._forward(ids[:, start:end], seen, positions[:, start:end], cache)
            for row in range(len(order)):
                if start + 1 < lengths[row]:
                    add(row, start + 1, logits[row])
            del logits  # before the next ones are made
        return list(zip(order, totals.tolist(), strict=True))

    def _decode(self, requests: Sequence[Request], batch: list[list[int]]) -> Iterator[tuple[int, Completion]]:
        """Yield the completions of a batch, which holds one list of request indices per distinct prompt."""
        import torch

        from nextturn.probe.engines.decoding import preallocate, shared_keys

        logits, cache, mask = self._prefill([requests[group[0]].prompt_ids for group in batch])
        device = logits.device
        active = [_Row(index, requests[index]) for group in batch for index in group]
        if len(active) > len(batch):  # each prompt's cache is copied to all rows that begin with it
            rows = torch.tensor([row for row, group in enumerate(batch) for _ in group], device=device)
            cache.reorder_cache(rows)
            logits, mask = logits[rows], mask[rows]
        preallocate(cache, max(row.request.max_tokens for row in active))

        while True:
            tokens = _choose(logits, active)  # [rows]
            for row, token in zip(active, tokens.tolist(), strict=True):
                if row.add(token) and row.finish:
                    text = self.tokenizer.decode(row.tokens)
                    yield row.index, Completion(text, len(row.tokens), row.finish, (*row.tokens, *row.stopped_by))
            unfinished = [position for position, row in enumerate(active) if row.finish is None]
            if not unfinished:
                return
            # Finished rows are decoded on, unread, until enough of them leave together.
            if len(active) - len(unfinished) >= _COMPACT_SHARE * len(active):
                keep = torch.tensor(unfinished, device=device)
                cache.reorder_cache(keep)
                tokens, mask, active = tokens[keep], mask[keep], [active[position] for position in unfinished]
            mask = torch.cat([mask, mask.new_ones(len(active), 1)], dim=1)
            with shared_keys():
                logits, cache = self._forward(tokens[:, None], mask, mask.sum(dim=1, keepdim=True) - 1, cache)
            logits = logits[:, -1]

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, Any, torch.Tensor]:
        """Return the last logits [P, V] of the left-padded prompts, the cache, and the mask [P, longest]."""
        ids, mask = _padded(prompts, "left", self.model.device)
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        logits, cache = self._forward(ids, mask, positions, None, logits_to_keep=1)
        return logits[:, -1], cache, mask

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any, **options: Any
    ) -> tuple[torch.Tensor, Any]:
        """Return logits [rows, tokens, V] and the cache after `ids` [rows, tokens]."""
        import torch

        shared = {"attention_mask": mask, "position_ids": positions, "past_key_values": cache, "use_cache": True}
        if hasattr(self.model.config.get_text_config(), "output_router_logits"):
            # trl trains mixtures of experts with an auxiliary loss, which transformers cannot compute for one token.
            shared["output_router_logits"] = False
        with torch.no_grad():
            output = self.model(input_ids=ids, **shared, **options)
        return output.logits, output.past_key_values


def _padded(sequences: Sequence[tuple[int, ...]], side: str, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask [sequences, longest], both 0 where padded."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids = [torch.tensor(sequence, dtype=torch.long) for sequence in sequences]
    masks = [torch.ones_like(row) for row in ids]
    padded = (pad_sequence(rows, batch_first=True, padding_side=side).to(device) for rows in (ids, masks))
    return next(padded), next(padded)


class _Row:
    """One completion under way."""

    def __init__(self, index: int, request: Request) -> None:
        import torch

        self.index = index
        self.request = request
        self.tokens: list[int] = []
        self.stopped_by: tuple[int, ...] = ()
        self.finish: Literal["stop", "length"] | None = None
        # Drawn on the CPU in one go, so that a request gets the same numbers on every device.
        generator = torch.Generator().manual_seed(request.seed)
        self.uniform = torch.rand(request.max_tokens, generator=generator, dtype=torch.float64).tolist()

    def add(self, token: int) -> bool:
        """Add the next token and return True if the completion ends with it. A finished row ignores tokens."""
        if self.finish is not None:
            return False
        if token in self.request.stop_ids:
            self.finish, self.stopped_by = "stop", (token,)
        else:
            self.tokens.append(token)
            self.finish = "length" if len(self.tokens) >= self.request.max_tokens else None
        return self.finish is not None


def _choose(logits: torch.Tensor, rows: Sequence[_Row]) -> torch.Tensor:
    """Return the next token of every row, [R] from logits [R, V]: argmax at temperature 0, else a sample.

    Raises:
        EngineError: The logits are not numbers, as with damaged weights. Argmax would turn them into text.
    """
    import torch

    tokens = logits.argmax(dim=-1)
    if logits.gather(1, tokens[:, None]).isnan().any():  # a NaN is the largest to argmax
        raise EngineError("the model's logits are not numbers: its weights are damaged, or its dtype overflows")
    sampled = [position for position, row in enumerate(rows) if row.request.temperature > 0 and row.finish is None]
    if sampled:
        index = torch.tensor(sampled, device=logits.device)
        chosen = [rows[position] for position in sampled]
        temperature = logits.new_tensor([[row.request.temperature] for row in chosen], dtype=torch.float32)
        cumulative = (logits[index].float() / temperature).softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
        uniform = cumulative.new_tensor([[row.uniform[len(row.tokens)]] for row in chosen])
        # The sum is not exactly 1 because of rounding.
        drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
        tokens[index] = drawn[:, 0].clamp(max=logits.shape[-1] - 1)
    return tokens


# --- How many requests go together.

CPU_TOKENS = 16_384
# Of a GPU's free memory; the rest is for fragmentation and for memory that is not counted below.
_SHARE_OF_FREE = 0.8
# With about so many rows, a step of a 2B model takes as long as reading its caches, and more rows save nothing.
MOST_ROWS = 512
# Bytes for each token of the vocabulary when a token is chosen: logits twice, the distribution in float32, and its sums
# in float64 twice.
CHOICE_BYTES = 24


@dataclass(frozen=True)
class Room:
    """What one batch may hold: `size` bytes at these costs, or `size` tokens at the default costs.

    Attributes:
        row: Cost of each row, whatever its length.
        token: Cost of each token of a row, prompt and completion.
        prompt_token: Additional cost of each token of a prompt while it is prefilled.
        most_rows: The most rows, whatever the memory.
    """

    size: float
    row: float = 0
    token: float = 1
    prompt_token: float = 0
    most_rows: int | None = None

    def holds(self, rows: int, width: int, prompts: int, longest: int) -> bool:
        """Return True if `rows` rows of `width` tokens fit that begin with `prompts` prompts of up to `longest` tokens."""
        if self.most_rows is not None and rows > self.most_rows:
            return False
        prefill = prompts * (self.row + longest * (self.token + self.prompt_token))
        return max(prefill if self.prompt_token else 0, rows * (self.row + width * self.token)) <= self.size


def room_for(free: float, config: Any, itemsize: int) -> Room:
    """Return what fits in a GPU's memory.

    A token stores keys and values in each attention layer. In one layer at a time they exist once more when rows leave, and
    once for each query head during the prefill, if rows are padded. A prompt token passes the layers with about 6 tensors
    of the hidden width and 3 of the intermediate width (counted on Qwen3.5-2B).

    Args:
        free: Free bytes.
        config: The model's text config.
        itemsize: Bytes of a weight.
    """
    costs = cache_bytes(config, itemsize)
    if costs is None:
        return Room(CPU_TOKENS)
    token, state = costs
    one_layer = 2 * itemsize * _head_dim(config) * (config.num_key_value_heads + config.num_attention_heads)
    prompt_token = itemsize * (6 * config.hidden_size + 3 * config.intermediate_size)
    row = state + config.vocab_size * CHOICE_BYTES
    return Room(_SHARE_OF_FREE * free, row, token + one_layer, prompt_token, MOST_ROWS)


def cache_bytes(config: Any, itemsize: int) -> tuple[int, int] | None:
    """Return the bytes that generation stores, as (per token, per row), or None for unknown kinds of layers.

    Attention layers store keys and values; linear attention stores a convolution and a recurrent state of fixed size.

    Args: See `room_for`.
    """
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    linear = kinds.count("linear_attention")
    if set(kinds) - {"full_attention", "sliding_attention", "linear_attention"}:
        return None
    row = 0
    if linear:
        if not hasattr(config, "linear_conv_kernel_dim"):
            return None
        keys = config.linear_num_key_heads * config.linear_key_head_dim
        values = config.linear_num_value_heads * config.linear_value_head_dim
        convolution = (2 * keys + values) * config.linear_conv_kernel_dim * itemsize
        row = linear * (convolution + values * config.linear_key_head_dim * 4)  # the recurrent state is float32
    return 2 * (len(kinds) - linear) * config.num_key_value_heads * _head_dim(config) * itemsize, row


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _batches(prompts: Sequence[tuple[int, ...]], limits: Sequence[int], room: Room) -> Iterator[list[list[int]]]:
    """Yield batches within `room`, longest prompts first: one list of indices per distinct prompt.

    Args:
        limits: The most tokens that follow each prompt.
    """
    shared: dict[tuple[int, ...], list[int]] = {}
    for index, prompt in enumerate(prompts):
        shared.setdefault(prompt, []).append(index)
    groups = sorted(shared.values(), key=lambda group: len(prompts[group[0]]), reverse=True)
    batch: list[list[int]] = []
    rows = width = longest = 0
    for group in groups:
        needed = len(prompts[group[0]]) + max(limits[index] for index in group)
        width, longest = max(width, needed), longest or len(prompts[group[0]])
        if batch and not room.holds(rows + len(group), width, len(batch) + 1, longest):
            yield batch
            batch, rows, width, longest = [], 0, needed, len(prompts[group[0]])
        batch.append(group)
        rows += len(group)
    if batch:
        yield batch


# --- The model in training, ready to generate.


@contextmanager
def live_model(trainer: Any, dtype: str = "auto", merged: bool = False) -> Iterator[Any]:
    """Provide the model in training, gathered and in eval mode, on every rank; it returns to training mode afterwards.

    Enter and leave on all ranks together: under ZeRO-3 the weights are gathered for as long as the block runs.

    Args:
        dtype: "auto" gives the live weights themselves, another type a rounded copy.
        merged: Give a copy in which a LoRA adapter is part of the weights, which generates faster. All other weights are the live
            ones, and no live weight changes. Quantized weights, and those under DeepSpeed, stay as they are.
    """
    import torch

    with _unwrapped(trainer) as model:
        target = model.dtype if dtype == "auto" else getattr(torch, dtype)
        # DeepSpeed would partition the weights of the copy, too.
        stays = trainer.is_deepspeed_enabled or getattr(model.config, "quantization_config", None) is not None
        in_place = model.dtype == target and not (merged and not stays and hasattr(model, "peft_config"))
        measured = model if in_place else _rounded(model, target)
        training = model.training
        measured.eval()
        try:
            yield measured
        finally:
            model.train(training)


@contextmanager
def _unwrapped(trainer: Any) -> Iterator[Any]:
    """Provide the model without what a launch wraps it in; only ZeRO-3 needs trl, whose function gathers the weights."""
    if not trainer.is_deepspeed_enabled:
        yield trainer.accelerator.unwrap_model(trainer.model_wrapped)
        return
    require("trl", "train", "the probe of a trainer under DeepSpeed")
    from trl.models.utils import unwrap_model_for_generation

    options = {"gradient_checkpointing_kwargs": trainer.args.gradient_checkpointing_kwargs}
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator, **options) as model:
        yield model


@contextmanager
def plain_forward(model: Any) -> Iterator[str]:
    """Let a model in training compute in the dtype of its weights, and provide the name of that dtype.

    With `bf16: true` accelerate has `forward` of float32 weights compute in bfloat16. A checkpoint of these weights, measured
    later, would then get other figures.
    """
    wrapped = vars(model).get("forward")
    if wrapped is not None and "_original_forward" in vars(model):
        model.forward = model._original_forward
    try:
        yield str(model.dtype).removeprefix("torch.")
    finally:
        if wrapped is not None:
            model.forward = wrapped


def _rounded(model: Any, dtype: Any) -> Any:
    """Return the live weights in another type or with the adapter added, for speed: float32 under autocast generates several times
    slower, and every adapter takes two more products.

    The copy is built anew, because accelerate and trl replace the live model's `forward` by wrappers that refer to the live
    model: a deep copy would run the original.
    """
    import torch
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    with init_empty_weights(include_buffers=False):
        fresh = AutoModelForCausalLM.from_config(model.config, dtype=dtype, trust_remote_code=False)
    own = (model.get_base_model() if hasattr(model, "get_base_model") else model).state_dict()
    # A model in half precision has its own reasons for weights in float32.
    wide = {name.replace(".base_layer", "") for name in own if own[name].dtype == torch.float32 != model.dtype}
    whole = _whole_weights(model).items()
    weights = {name: each.detach().to(torch.float32 if name in wide else dtype) for name, each in whole}
    fresh.load_state_dict(weights, assign=True)
    fresh.tie_weights()
    return fresh.to(model.device)  # the weights are there already, buffers such as the rotary frequencies are not


def _whole_weights(model: Any) -> dict[str, Any]:
    """Return the weights under the names of the model's own class, with a LoRA adapter added.

    PEFT merges in place, and removing the adapter again would leave rounding errors in the live weights.
    """
    if not hasattr(model, "peft_config"):
        return dict(model.state_dict())
    from peft.tuners.lora import LoraLayer

    from nextturn.probe.models.weights import adapted_weight

    whole = model.get_base_model()
    held = whole.state_dict().items()
    weights = {name.replace(".base_layer", ""): tensor for name, tensor in held if ".lora_" not in name}
    adapted: dict[str, Any] = {name: layer for name, layer in whole.named_modules() if isinstance(layer, LoraLayer)}
    for name, layer in adapted.items():
        own, weight = adapted_weight(layer)
        update = sum(map(layer.get_delta_weight, layer.active_adapters))
        weights[f"{name.replace('.base_layer', '')}.{own}"] = weight + update
    return weights
