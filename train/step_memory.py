"""What one training step holds in memory, found by running it on tensors that have sizes but no storage.

No formula stands in for the model: its own code, PEFT's layers and autocast run in torch's FakeTensorMode, and every
storage is counted from its making to its end. Two kernels that only GPUs run have stand-ins of their size below.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class StepMemory:
    """Bytes of the weights, and of a forward and a backward pass on them.

    Attributes:
        frozen, trained: the weights; those of a new adapter are float32, as PEFT makes them.
        activations: the most that is alive at once beside weights and their gradients.
        together: the most of activations and gradients at once; gradients come while activations go.
    """

    frozen: int
    trained: int
    activations: int
    together: int


@dataclass(frozen=True)
class Step:
    """What a step runs on.

    Attributes:
        completion: tokens at the end of each sequence whose log probabilities GRPO wants; None for SFT's loss.
        on_cpu: CPUs hold all logits (see train/setup.py), GPUs have trl's fused head.
        train: of the recipe's section, gradient checkpointing, bf16 and fp16 count, with trl's defaults.
        fused: CPUs have trl's fused head, too.
    """

    rows: int
    length: int
    completion: int | None
    on_cpu: bool
    train: dict[str, Any]
    fused: bool = False


def step_memory(make: Callable[[], Any], step: Step) -> StepMemory:
    """Runs a step of the model that `make` gives, adapter included; it is called where tensors go to `meta`.

    A decoder repeats one block of layers (Qwen3.5: three with linear attention and one with full). Two blocks are run, and
    the others are counted as what the second keeps for its backward pass, until that has come down to the first, and as
    gradients from then on.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with ExitStack() as stack:
        stack.enter_context(_quiet())
        with torch.device("meta"):
            model = make().train()
        frozen, trained = (
            sum(_bytes(p) for p in model.parameters() if p.requires_grad is trained) for trained in (False, True)
        )
        whole = model.get_base_model() if hasattr(model, "get_base_model") else model
        layers = next(part for part in whole.modules() if isinstance(part, nn.ModuleList))
        block = _block(layers, getattr(whole.config, "layer_types", None))
        more = max(0, len(layers) // block - 2)
        if more:
            del layers[2 * block :]
        # From here on tensors have a shape, a type and a device, and no bytes; operators run on shapes alone.
        stack.enter_context(FakeTensorMode())
        _onto_cpu(model)
        if step.train.get("gradient_checkpointing", True):
            whole.gradient_checkpointing_enable(step.train.get("gradient_checkpointing_kwargs"))
            if whole is not model:
                whole.enable_input_require_grads()
        if not step.on_cpu:
            stack.enter_context(kernels_installed(whole))
        ids = torch.zeros(step.rows, step.length, dtype=torch.long)
        live = stack.enter_context(LiveBytes(model))
        stretches = _Stretches(live, layers[block:], more)
        # The tensors say that they are on a CPU, so that is where autocast has to be.
        half = bool(step.train.get("fp16") or step.train.get("bf16", True))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half), stretches.forward_pass(layers[0]):
            loss = _loss(model, whole, ids, step)
        stretches.end()  # autocast has let go of the weights that it held in another type
        loss.backward()
        stretches.end()
        return StepMemory(frozen, trained, stretches.most_beside_gradients, stretches.most)


def _block(layers: nn.ModuleList, types: list[str] | None) -> int:
    """The fewest layers whose repetition makes them all."""
    kinds = [
        (types and types[index], [(name, p.shape, p.dtype, p.requires_grad) for name, p in layer.named_parameters()])
        for index, layer in enumerate(layers)
    ]
    return next(n for n in range(1, len(kinds) + 1) if kinds[:n] * (len(kinds) // n) == kinds)


class _Stretches:
    """The most at once in a model of more blocks than are run: what each adds to the most of every stretch of the step.

    Args:
        second: the layers of the second block; none in a model of one.
        more: blocks that are not run; they lie between the two.

    Attributes:
        most, most_beside_gradients: as of `LiveBytes`, over all stretches that have ended.
    """

    def __init__(self, live: LiveBytes, second: nn.ModuleList, more: int) -> None:
        self.live, self.second, self.more = live, second, more
        self.most = self.most_beside_gradients = self._kept = self._gradients = 0

    def end(self) -> None:
        """Ends a stretch, in which all that the second block keeps was there at its end or at its start."""
        live, kept = self.live, self.more * max(self._kept, self.live.marked)
        self.most = max(self.most, live.most + kept + self.more * self._gradients)
        self.most_beside_gradients = max(self.most_beside_gradients, live.most_beside_gradients + kept)
        self._kept, live.most, live.most_beside_gradients = live.marked, live.now, live.now - live.gradients

    @contextmanager
    def forward_pass(self, first: nn.Module) -> Iterator[None]:
        """A stretch, in which what the second block makes is marked."""

        def block_begins(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            self.live.marking = True
            self.live.mark(given[0])
            if given[0].requires_grad:
                given[0].register_hook(self._first_block_left)

        def block_ends(_: nn.Module, given: Any, made: Any) -> None:
            self.live.marking = False
            self.live.mark(made[0] if isinstance(made, tuple) else made, False)  # the next block's, as its input

        hooks = [first.register_forward_pre_hook(lambda *_: self.end())]
        if self.more:
            hooks += [
                self.second[0].register_forward_pre_hook(block_begins),
                self.second[-1].register_forward_hook(block_ends),
            ]
        yield
        self.end()
        for hook in hooks:  # or checkpointing would call them again on the way back
            hook.remove()

    def _first_block_left(self, _: Tensor) -> None:
        """The backward pass has come to the output of the first block."""
        self.end()
        self._gradients = sum(_bytes(p) for p in self.second.parameters() if p.requires_grad)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that are made while it is on; the model's weights are not among them.

    Attributes:
        now, most: alive at this time, and the most so far.
        gradients: of the weights' gradients that are there by now.
        most_beside_gradients: the most of all but those.
        marked: alive at this time of what was made while `marking` was set.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.now = self.most = self.gradients = self.most_beside_gradients = 0
        self.marking, self.marked = False, 0
        self._sizes = {tensor.untyped_storage()._cdata: (0, 0) for tensor in (*model.parameters(), *model.buffers())}
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._has_gradient)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils._pytree import tree_leaves

        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._made(leaf.untyped_storage())
        self.most = max(self.most, self.now)
        self.most_beside_gradients = max(self.most_beside_gradients, self.now - self.gradients)
        return result

    def _made(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self._sizes:  # a view shares its storage and costs nothing
            size = storage.nbytes()
            self._sizes[key] = size, size * self.marking
            self.now += size
            self.marked += size * self.marking
            weakref.finalize(storage, self._freed, key)

    def mark(self, tensor: Tensor, marked: bool = True) -> None:
        key = tensor.untyped_storage()._cdata
        size, before = self._sizes[key]
        self._sizes[key] = size, size * marked
        self.marked += size * marked - before

    def _freed(self, key: int) -> None:
        size, marked = self._sizes.pop(key)
        self.now -= size
        self.marked -= marked

    def _has_gradient(self, parameter: Tensor) -> None:
        self.gradients += _bytes(parameter)


def _onto_cpu(model: nn.Module) -> None:
    """Replaces tensors on `meta` by those that pretend to be on the CPU, whose kernels differ; tied ones stay tied."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and id(tensor) not in made:
                    empty = torch.empty(tensor.shape, dtype=tensor.dtype)
                    is_weight = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_weight else empty
                if tensor is not None:
                    tensors[name] = made[id(tensor)]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _loss(model: Any, whole: Any, ids: Tensor, step: Step) -> Tensor:
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    if step.fused or not step.on_cpu:
        hidden = whole.base_model(**inputs).last_hidden_state
        kept = hidden if step.completion is None else hidden[:, -step.completion :]
        log_p: Tensor = FusedHead.apply(kept.flatten(0, 1), whole.get_output_embeddings().weight)  # type: ignore[no-untyped-call]
        return log_p.sum()
    if step.completion is None:
        return model(**inputs, labels=ids).loss
    # As the trainer for CPUs takes them, in train/setup.py.
    logits = model(**inputs, logits_to_keep=step.completion + 1).logits
    return (logits[:, :-1].float() / 0.9).log_softmax(dim=-1).gather(-1, ids[:, -step.completion :, None]).sum()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' warnings about kernels and caches: nothing is computed here."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


# --- Sizes of two GPU kernels for an estimate of memory: what they keep for the backward pass and what they make in it.
#
# They compute nothing. Each follows the source that it names, as installed with the versions in constraints.txt.

# trl 1.16: TOKEN_CHUNK_SIZE of trl/kernels/chunked_logprob.py, _CHUNKED_LOGPROB_CHUNK_SIZE of trl/trainer/utils.py.
TILE_TOKENS, TILE_VOCABULARY = 4096, 32768
CHUNK = 64  # tokens that flash-linear-attention 0.6 takes together


class FusedHead(torch.autograd.Function):
    """trl's log probabilities without logits (ChunkedLogProbFunction): (hidden [N, H], weight [V, H]) to [N]."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.computed = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden.dtype
        made = _tile(hidden, weight, ctx.computed)
        del made
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
        made = _tile(hidden, weight, ctx.computed)
        del made
        return sums.to(hidden.dtype), None if weight_sums is None else weight_sums.to(weight.dtype)


def _tile(hidden: Tensor, weight: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """A tile of logits, and the hidden states and weights of it where they are held in another type."""
    tokens, entries = min(len(hidden), TILE_TOKENS), min(len(weight), TILE_VOCABULARY)
    return [hidden.new_empty(tokens, entries, dtype=dtype), hidden[:tokens].to(dtype), weight[:entries].to(dtype)]


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
        return tuple(torch.empty_like(tensor) for tensor in (q, k, v, g, beta))


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
