"""The policy as it stands now, generating: transformers on the live weights, or trl's vLLM.

With transformers the model is gathered and unwrapped once for a whole rollout; inside there are no collectives, so each
process generates as often as it has something to generate. The forward pass is that of training: the same weights, the
same autocast, dropout off. Without vLLM trl takes the policy that sampled for the policy that learns and corrects
nothing, so a copy rounded for speed, as the probe makes one on CPUs, would be a bias here.

vLLM was not run here, since its CPU build cannot take trl's weights; this is written to the letter of trl 1.16's
`VLLMGeneration`. In a launch of several processes its calls hold collectives: in server mode a gather and a broadcast
that slice by a number of prompts that must be the same everywhere, with tensor parallelism a gather, with sleep mode and
ZeRO-3 the gathering of the weights. So there all processes pool their requests and take equal shares, as often as each
other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from probe.engines.base import Completion, Request, collect
from probe.engines.hf import HfEngine


class Policy(Protocol):
    """Makes completions with `ids`; with `log_probs` where the engine's sampling is not the trainer's own."""

    def complete(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion for each request, in order. All processes call it equally often, with no request if need be."""
        ...


@contextmanager
def open_policy(trainer: Any, tokenizer: Any, batch_tokens: int) -> Iterator[Policy]:
    """The policy for one rollout. Enter and leave it on all processes together."""
    if trainer.use_vllm:  # trl has brought its weights up to date before it calls a rollout function
        yield VllmPolicy(trainer.vllm_generation, trainer.accelerator, tokenizer)
        return
    with _live_model(trainer) as model:
        yield HfPolicy(HfEngine(model, tokenizer, batch_tokens))


class HfPolicy:
    """Equal prompts are prefilled once; every request draws from a seed of its own."""

    def __init__(self, engine: HfEngine) -> None:
        self.engine = engine

    def complete(self, requests: Sequence[Request]) -> list[Completion]:
        return collect(self.engine, requests)


@contextmanager
def _live_model(trainer: Any) -> Iterator[Any]:
    """The model in training, whole and ready to generate on every process; back to training afterwards."""
    from trl.models.utils import unwrap_model_for_generation

    with unwrap_model_for_generation(
        trainer.model_wrapped,
        trainer.accelerator,
        gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
    ) as model:
        training = model.training
        model.eval()
        try:
            # One autocast around all steps: float32 weights are rounded once, and not again for every token.
            with trainer.accelerator.autocast():
                yield model
        finally:
            model.train(training)


class VllmPolicy:
    """trl's `VLLMGeneration`. One call takes one token limit and one temperature, so all requests of a round have the
    same temperature, and what grew beyond its own limit is cut there; seeds are vLLM's own."""

    def __init__(self, generation: Any, accelerator: Any, tokenizer: Any) -> None:
        self.generation = generation
        self.accelerator = accelerator
        self.tokenizer = tokenizer

    def complete(self, requests: Sequence[Request]) -> list[Completion]:
        by_rank = self._gathered([list(requests)])
        everyone = [request for own in by_rank for request in own]
        if not everyone:  # on every process alike
            return []
        ranks, rank = self.accelerator.num_processes, self.accelerator.process_index
        share = math.ceil(len(everyone) / ranks)
        mine = everyone[rank * share : (rank + 1) * share]
        mine += [everyone[-1]] * (share - len(mine))
        made = self._gathered(self._generate(mine, everyone))
        first = sum(len(own) for own in by_rank[:rank])
        return made[first : first + len(requests)]

    def _generate(self, mine: Sequence[Request], everyone: Sequence[Request]) -> list[Completion]:
        """Completes `mine`, with the limit, temperature and stop tokens that hold for everyone's."""
        generation, first = self.generation, everyone[0]
        settings = {
            "max_completion_length": max(request.max_tokens for request in everyone),
            "temperature": first.temperature,
            "generation_kwargs": {**generation.generation_kwargs, "stop_token_ids": list(first.stop_ids)},
        }
        before = {name: getattr(generation, name) for name in settings}
        vars(generation).update(settings)
        try:
            _, ids, log_probs, _ = generation.generate(
                prompts=[list(request.prompt_ids) for request in mine], images=None, num_generations=1
            )
        finally:
            vars(generation).update(before)
        # A row of each token's log p, the sampled token's first; with trl's `logprobs=0` it is the only one.
        return [
            self._completion(request, tuple(row), tuple(one[0] for one in probs))
            for request, row, probs in zip(mine, ids, log_probs, strict=True)
        ]

    def _completion(self, request: Request, ids: tuple[int, ...], log_probs: tuple[float | None, ...]) -> Completion:
        ids, log_probs = ids[: request.max_tokens], log_probs[: request.max_tokens]
        stopped = ids[-1] in request.stop_ids
        tokens = ids[:-1] if stopped else ids
        text = self.tokenizer.decode(list(tokens))
        return Completion(text, len(tokens), "stop" if stopped else "length", ids, log_probs)

    def _gathered(self, own: list[Any]) -> list[Any]:
        if self.accelerator.num_processes == 1:
            return own
        from accelerate.utils import gather_object

        return gather_object(own)
