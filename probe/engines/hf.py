"""Generation with transformers, in this process: on a loaded folder or on a live model during training.

Written as an own decode loop because `generate` offers neither a seed and a temperature per row nor a shared
prefill. Here requests with one prompt (a context at three temperatures, say) are prefilled once and share its
cache; prompts are sorted by length and batched by what the memory holds; finished rows leave the batch. A sampled
token is the inverse of the cumulative distribution at a uniform number drawn from the request's own seed, so that
the batch a request falls into does not change what it draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from nextturn.probe.engines.base import Completion, Request, ScoreRequest
from nextturn.probe.errors import EngineError, one_line
from nextturn.probe.terminal import say

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

# Rows leave the batch when this share of them is finished: copying the cache costs about one decode step.
_COMPACT_SHARE = 0.2
# Logits that a score holds at once, in bytes. Held for all tokens of all targets, those of 100 user turns would take
# 5 GB over the 248,320 tokens of Qwen3.5, and their float32 copies as much again.
LOGITS_BYTES = 2**30


class HfEngine:
    """Completions from a transformers causal language model.

    Args:
        model: in eval mode; on any device; its class must take `past_key_values`. None where `load` gives it.
        tokenizer: only its `decode` is used.
        batch_tokens: the most tokens (rows x (prompt + completion)) that one batch may hold; None: as many as the free
            memory of the model's GPU holds, asked once, and 16,384 on a CPU.
        load: called with the first request: a run whose completions are all stored never loads the model.
    """

    name = "hf"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        batch_tokens: int | None = None,
        load: Callable[[], Any] | None = None,
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
        """What one batch may hold."""
        if self._room is None:
            self._room = self._measured_room() if self.batch_tokens is None else Room(self.batch_tokens)
        return self._room

    def _measured_room(self) -> Room:
        import torch

        if not torch.cuda.is_available() or self.model.device.type != "cuda":  # a CPU gains nothing from larger ones
            return Room(CPU_TOKENS)
        torch.cuda.empty_cache()  # what torch holds and nobody uses counts as free
        free, _ = torch.cuda.mem_get_info(self.model.device)
        return room_for(free, self.model.config.get_text_config(), self.model.dtype.itemsize)

    def close(self) -> None:
        """Lets go of the model; one that came from `load` is loaded again with the next request."""
        self._model = self._room = None

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Requests that share a batch: in bfloat16, a text can hang on which others were padded with it."""
        return [[index for group in batch for index in group] for batch in self._planned(requests)]

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        """Yields (index, completion); the longest prompts first, within a batch as rows finish.

        Raises:
            EngineError: the logits are not numbers, or the GPU's memory does not do for one prompt.
        """
        prompts, limits = [request.prompt_ids for request in requests], [request.max_tokens for request in requests]
        return self._by_batch(prompts, limits, lambda batch: self._decode(requests, batch))

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """Prefills each prefix once, then reads all its targets' tokens; raises what `stream` raises."""
        prefixes = [request.prefix_ids for request in requests]
        limits = [len(request.target_ids) for request in requests]
        return self._by_batch(prefixes, limits, lambda batch: iter(self._log_p(requests, batch)))

    def _by_batch(
        self,
        prompts: Sequence[tuple[int, ...]],
        limits: Sequence[int],
        make: Callable[[list[list[int]]], Iterator[tuple[int, T]]],
    ) -> Iterator[tuple[int, T]]:
        """What `make` yields for each batch; the batches get smaller where the GPU's memory holds less than was thought."""
        import torch

        left = dict.fromkeys(range(len(prompts)))
        while left:
            asked = list(left)
            for planned in _batches([prompts[index] for index in asked], [limits[index] for index in asked], self.room):
                batch = [[asked[place] for place in group] for group in planned]
                try:
                    for index, made in make(batch):
                        del left[index]
                        yield index, made
                except torch.OutOfMemoryError as error:
                    rows = sum(map(len, batch))
                    if len(batch) == 1:
                        raise EngineError(
                            f"the GPU's memory does not do for {rows} rows of one prompt ({one_line(error)}); leave more "
                            "free, or set probe.samples or the token limits lower"
                        ) from error
                else:
                    continue
                self._room = replace(self.room, most_rows=rows // 2)
                say(f"a batch of {rows} rows did not fit in the GPU's memory; goes on with {rows // 2} at most")
                torch.cuda.empty_cache()
                break

    def _log_p(self, requests: Sequence[ScoreRequest], batch: list[list[int]]) -> list[tuple[int, float]]:
        """(index, log p) of one batch, which holds one list of request indices per distinct prefix."""
        import torch

        logits, cache, mask = self._prefill([requests[group[0]].prefix_ids for group in batch])
        device = logits.device
        order = [index for group in batch for index in group]
        targets = [requests[index].target_ids for index in order]
        owners = [row for row, group in enumerate(batch) for _ in group]  # the prefix of each target
        rows = torch.tensor(owners, device=device)
        if len(order) > len(batch):
            cache.reorder_cache(rows)
        # Targets are padded on the right: what stands past their end is masked, and read by nobody.
        longest = max(len(target) for target in targets)
        ids = torch.zeros(len(targets), longest, dtype=torch.long, device=device)
        known = torch.zeros_like(ids)
        for row, target in enumerate(targets):
            ids[row, : len(target)] = torch.tensor(target, device=device)
            known[row, : len(target)] = 1
        whole = torch.cat([mask[rows], known], dim=1)
        positions = (whole.cumsum(dim=1) - 1).clamp(min=0)[:, -longest:]

        totals = torch.zeros(len(targets), dtype=torch.float64, device=device)

        def read(logits: torch.Tensor, row: int, start: int) -> None:
            """Adds what `logits` [tokens, V] say of the target's tokens from `start` on; float32 over a large vocabulary
            is heavy, so that this is done for one row at a time."""
            there = ids[row, start : len(targets[row])][: len(logits)]
            log_p = logits[: len(there)].float().log_softmax(dim=-1)
            totals[row] += log_p.gather(1, there[:, None]).double().sum()

        # The prefix's last logits tell of the first token, each token's own of the one after it. The model's whole forward
        # makes them, whatever its head does beside the projection, for a few tokens after the other: the cache goes on.
        for row, owner in enumerate(owners):
            read(logits[owner][None], row, 0)
        step = max(1, LOGITS_BYTES // (len(targets) * logits.shape[-1] * logits.element_size()))
        for start in range(0, longest - 1, step):
            end = min(start + step, longest - 1)
            with torch.no_grad():
                output = self.model(
                    input_ids=ids[:, start:end],
                    attention_mask=whole[:, : whole.shape[1] - longest + end],
                    position_ids=positions[:, start:end],
                    past_key_values=cache,
                    use_cache=True,
                )
            for row, target in enumerate(targets):
                if start + 1 < len(target):
                    read(output.logits[row], row, start + 1)
            cache = output.past_key_values
            del output  # its logits, before the next ones are made
        return list(zip(order, totals.tolist(), strict=True))

    def _planned(self, requests: Sequence[Request]) -> Iterator[list[list[int]]]:
        limits = [request.max_tokens for request in requests]
        return _batches([request.prompt_ids for request in requests], limits, self.room)

    def _decode(self, requests: Sequence[Request], batch: list[list[int]]) -> Iterator[tuple[int, Completion]]:
        """One batch: `batch` holds one list of request indices per distinct prompt."""
        import torch

        from nextturn.probe.engines.decoding import preallocate, shared_keys

        device = self.model.device
        logits, cache, mask = self._prefill([requests[group[0]].prompt_ids for group in batch])
        active = [_Row(index, requests[index]) for group in batch for index in group]
        if len(active) > len(batch):  # each prompt's cache is copied to all rows that begin with it
            rows = torch.tensor([row for row, group in enumerate(batch) for _ in group], device=device)
            cache.reorder_cache(rows)
            logits, mask = logits[rows], mask[rows]
        preallocate(cache, max(row.request.max_tokens for row in active))

        while True:
            tokens = _choose(logits, active)  # [rows]
            for row, token in zip(active, tokens.tolist(), strict=True):
                if finish := row.add(token):
                    ids = (*row.tokens, *row.stopped_by)
                    yield row.index, Completion(self.tokenizer.decode(row.tokens), len(row.tokens), finish, ids)
            going_on = [position for position, row in enumerate(active) if row.finish is None]
            if not going_on:
                return
            # A finished row decodes on unread until enough of them leave together.
            if len(active) - len(going_on) >= _COMPACT_SHARE * len(active):
                keep = torch.tensor(going_on, device=device)
                cache.reorder_cache(keep)
                tokens, mask, active = tokens[keep], mask[keep], [active[position] for position in going_on]
            mask = torch.cat([mask, mask.new_ones(len(active), 1)], dim=1)
            with torch.no_grad(), shared_keys():
                output = self.model(
                    input_ids=tokens[:, None],
                    attention_mask=mask,
                    position_ids=mask.sum(dim=1, keepdim=True) - 1,
                    past_key_values=cache,
                    use_cache=True,
                )
            logits, cache = output.logits[:, -1], output.past_key_values

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, Any, torch.Tensor]:
        """Left-pads and runs the prompts; gives the last logits [P, V], the cache and the mask [P, longest]."""
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
        self.request = request
        self.tokens: list[int] = []
        self.stopped_by: tuple[int, ...] = ()
        self.finish: Literal["stop", "length"] | None = None
        # Drawn on the CPU in one go, so that a request gets the same numbers on every device.
        generator = torch.Generator().manual_seed(request.seed)
        self.uniform = torch.rand(request.max_tokens, generator=generator, dtype=torch.float64).tolist()

    def add(self, token: int) -> Literal["stop", "length"] | None:
        """Takes the next token; says how the completion ends where it ends with this one."""
        if self.finish is not None:
            return None
        if token in self.request.stop_ids:
            self.finish, self.stopped_by = "stop", (token,)
            return self.finish
        self.tokens.append(token)
        if len(self.tokens) >= self.request.max_tokens:
            self.finish = "length"
        return self.finish


def _choose(logits: torch.Tensor, rows: Sequence[_Row]) -> torch.Tensor:
    """The next token of every row, [R] from logits [R, V]: argmax at temperature 0, else the inverse of the cumulative
    distribution.

    Raises:
        EngineError: the logits are not numbers, as with damaged weights; argmax would make text of them all the same.
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
        # Times the sum, which rounding keeps from being 1.
        drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
        tokens[index] = drawn[:, 0].clamp(max=logits.shape[-1] - 1)
    return tokens


# --- How many requests go together.

CPU_TOKENS = 16_384
# Of the free memory of a GPU: the rest is for what fragments, and for what a model does that is not counted below.
_SHARE_OF_FREE = 0.8
# From about so many rows on a step of a 2B model takes as long as its caches take to be read, and more rows save nothing.
MOST_ROWS = 512
# Of one choice, for each token of the vocabulary: logits twice, the distribution in float32, its sums in float64 twice.
CHOICE_BYTES = 24


@dataclass(frozen=True)
class Room:
    """What one batch may hold: `size` bytes at these prices, or, at the prices that are the default, `size` tokens.

    Attributes:
        row: for each row, however long.
        token: for each token of a row, prompt and completion.
        prompt_token: for each token of a prompt while it is prefilled, beside `token`.
        most_rows: never more than these, in however much memory.
    """

    size: float
    row: float = 0
    token: float = 1
    prompt_token: float = 0
    most_rows: int | None = None

    def holds(self, rows: int, width: int, prompts: int, longest: int) -> bool:
        """Whether `rows` rows of `width` tokens fit, which begin with `prompts` different prompts of up to `longest`."""
        if self.most_rows is not None and rows > self.most_rows:
            return False
        prefill = prompts * (self.row + longest * (self.token + self.prompt_token))
        return max(prefill if self.prompt_token else 0, rows * (self.row + width * self.token)) <= self.size


def room_for(free: float, config: Any, itemsize: int) -> Room:
    """What fits in `free` bytes of a GPU, for a model of this text config whose numbers take `itemsize` bytes.

    A token leaves keys and values in each layer with attention, and in one layer at a time they are there once more, where
    rows leave, and in the prefill once for each query head, which sdpa wants where rows are padded. A prompt token passes
    the layers with about 6 tensors of the hidden and 3 of the inner width at once (counted on
    Qwen3.5-2B).
    """
    costs = cache_bytes(config, itemsize)
    if costs is None:
        return Room(CPU_TOKENS)
    token, state = costs
    head = _head_dim(config)
    one_layer = 2 * itemsize * head * (config.num_key_value_heads + config.num_attention_heads)
    prompt_token = itemsize * (6 * config.hidden_size + 3 * config.intermediate_size)
    row = state + config.vocab_size * CHOICE_BYTES
    return Room(_SHARE_OF_FREE * free, row, token + one_layer, prompt_token, MOST_ROWS)


def cache_bytes(config: Any, itemsize: int) -> tuple[int, int] | None:
    """What generation keeps of a text, as (bytes a token, bytes a row): keys and values of layers with attention, and the
    convolution's and the recurrent state of layers with linear attention, which do not grow.

    None for kinds of layers that are not known here.
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
    """Lists of indices by prompt, longest first, each batch within `room` (or one prompt).

    `limits` holds how many tokens each row may need behind its prompt.
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
def live_model(trainer: Any, dtype: str = "auto") -> Iterator[Any]:
    """The model in training, whole and in eval mode on every rank; back to training afterwards.

    Enter and leave it on all ranks together: under ZeRO-3 the weights are gathered for as long as it is open.

    Args:
        dtype: "auto" gives the live weights themselves, another type a rounded copy.
    """
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
