"""How far a model has moved from the one that it was trained from, on that one's own answers.

    KL(base || model) = sum over the vocabulary of p_base * (log p_base - log p_model)       in nats, at each token

It is measured at every checkpoint, because on what the base itself says it tells how much was forgotten (arXiv 2509.04259),
and train/kl.py holds it down in training (arXiv 2605.26097). Both take whole distributions, a few tokens at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.chat import Chat
from probe.engines.base import ScoreRequest
from probe.files import read_jsonl
from probe.perturb import NONE
from probe.stats import mean_ci

if TYPE_CHECKING:
    from torch import Tensor

# Of one model's distributions at once, in float32; about eight of that size are alive on the way.
CHUNK_BYTES = 2**25
# Answers of the base that a checkpoint is held against: they are read twice, by both models.
ANSWERS = 40

# Settings of heads that do more than a projection; a head with one of them set is not imitated here.
_SCALES = ("logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling", "final_logit_softcapping")

Base = Callable[[], AbstractContextManager[Any]]


def hidden_states(model: Any, ids: Tensor, mask: Tensor, places: Tensor) -> Tensor:
    """[N, H]: the last hidden states of a model at N places.

    Args:
        ids, mask: [B, T]; the mask is the attention's.
        places: [N], into the B x T tokens: those *before* the ones whose distributions are wanted.
    """
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = whole.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    states: Tensor = hidden.flatten(0, 1).index_select(0, places)
    return states


def kl_per_token(model: Any, hidden: Tensor, base: Any, base_hidden: Tensor) -> Tensor:
    """[N]: KL(base || model) at each place, in nats, from both models' hidden states there [N, H].

    The distributions are made for a few places at a time, also on the way back, where they are made again: a vocabulary of
    248,320 tokens takes a megabyte a place.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    head, base_head = _head(model), _head(base)

    def at(states: Tensor, base_states: Tensor) -> Tensor:
        log_q = head(states).float().log_softmax(dim=-1)
        with torch.no_grad():
            log_p = base_head(base_states).float().log_softmax(dim=-1)
        return torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(dim=-1)

    size = max(1, CHUNK_BYTES // (4 * head.weight.shape[0]))
    pieces = zip(hidden.split(size), base_hidden.split(size), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([at(*piece) for piece in pieces])
    return torch.cat([checkpoint(at, *piece, use_reentrant=False) for piece in pieces])


def _head(model: Any) -> Any:
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    return whole.get_output_embeddings()


def why_not(config: Any) -> str | None:
    """Why the distributions of such a model cannot be had here; None where they can."""
    config = config.get_text_config()
    extra = next((name for name in _SCALES if getattr(config, name, None) not in (None, 1)), None)
    return extra and f"{config.model_type} has {extra}, wanted a model whose logits are a projection alone"


def answers_of(base_run: Path, chat: Chat) -> list[ScoreRequest]:
    """Up to ANSWERS of the base's own greedy answers, as its finished probe in `base_run` has them, always the same ones.

    [] where there is none: that probe is not finished yet, or it asked about transcripts alone.
    """
    if not (base_run / "results.json").is_file():
        return []
    rows = [row for _, row in read_jsonl(base_run / "samples.jsonl")]
    transcripts = {row["set"] for row in rows if row["kind"] == "actual"}  # their replies are somebody else's
    own = dict.fromkeys(  # an empty answer too: at once to end it is a choice like another
        ScoreRequest(chat.prompt_ids(row["messages"][:-1]), chat.text_ids(row["messages"][-1]["content"]))
        for row in rows
        if row["set"] not in transcripts and row["perturbation"] == NONE
    )
    return random.Random("kl").sample(list(own), min(ANSWERS, len(own)))


def divergences(model: Any, base: Base, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
    """(index, KL summed over the answer's tokens and its end); one text at a time, so that none hangs on a neighbour."""
    import torch

    for index, request in enumerate(requests):
        ids = torch.tensor([[*request.prefix_ids, *request.target_ids]], device=model.device)
        mask = torch.ones_like(ids)
        places = torch.arange(len(request.prefix_ids) - 1, ids.shape[1], device=model.device)
        with torch.no_grad():
            hidden = hidden_states(model, ids, mask, places)
            with base() as other:
                kl = kl_per_token(model, hidden, other, hidden_states(other, ids, mask, places))
        yield index, float(kl.double().sum())


def kl_figures(requests: Sequence[ScoreRequest], sums: Sequence[float]) -> dict[str, Any]:
    """{"value", "ci95", "answers", "tokens"}: nats a token, its interval over answers."""
    tokens = [len(request.target_ids) + 1 for request in requests]
    means = [total / count for total, count in zip(sums, tokens, strict=True) for _ in range(count)]
    answers = [str(index) for index, count in enumerate(tokens) for _ in range(count)]
    return {**mean_ci(means, answers).as_json(), "answers": len(requests), "tokens": sum(tokens)}


def loaded_base(load: Callable[[], Any]) -> Base:
    """A base model of its own, loaded when it is first asked for."""
    made: list[Any] = []

    @contextmanager
    def base() -> Iterator[Any]:
        if not made:
            made.append(load())
        yield made[0]

    return base


def adapter_off(model: Any) -> Base:
    """The model under a LoRA adapter: the adapter switched off for as long as it is asked."""

    @contextmanager
    def base() -> Iterator[Any]:
        training = model.training
        with model.disable_adapter():
            model.eval()
            try:
                yield model
            finally:
                model.train(training)

    return base
