"""Rollouts for trl's GRPOTrainer: samples of the policy in conversation with a simulated user.

trl 1.16 calls `rollout_func(prompts, trainer)` with prompts that are repeated for each sample of a group. For each it expects
`prompt_ids` [P], `completion_ids` [C], `logprobs` [C] (of the engine that sampled; None if that is the model in training)
and, if not all of a completion is the policy's, `env_mask` [C]: 1 on tokens that the policy sampled and is trained on, 0
elsewhere. Other keys reach the reward function with one value for each sample: here `samples`.

Order: the function that trl calls with its two modes, then the policy's generation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from nextturn.data_builders.sections import SimulatorSection
from nextturn.probe.command.errors import RecipeError
from nextturn.probe.data.messages import Message, after_thinking
from nextturn.probe.engines.base import Completion, Request, collect, item_seed
from nextturn.probe.engines.hf import HfEngine, live_model
from nextturn.probe.questions.simulation import PromptRow, Simulator, UserRequest
from nextturn.probe.text.chat import Chat
from nextturn.train.rewards import Sample
from nextturn.train.sections import RolloutSection, check_sampling


@dataclass
class RolloutFunction:
    """Makes one sample for each prompt. All random choices of a sample depend only on the seed, the step and the sample's place
    in the step's batch over all processes, so that the same run makes the same samples.

    Attributes:
        rows: Rows by id; the trainer's `row_ids` name them.
    """

    section: RolloutSection
    chat: Chat
    rows: Mapping[str, PromptRow]
    simulator: Simulator
    seed: int
    _round: tuple[str, int, int] = ("", -1, 0)

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Return what trl expects, with one sample for each prompt; `trainer.row_ids` names the row of each.

        Raises:
            RecipeError: Rollouts cannot follow the trainer's sampling.
            EngineError: The model's logits are not finite, or the simulator's server is gone.
        """
        if self._round[1] < 0:
            self._settle(trainer)

        # Two rollouts of one step differ: trl makes several if a step has several batches.
        mode, step = "train" if trainer.model.training else "eval", trainer.state.global_step
        again = self._round[2] + 1 if self._round[:2] == (mode, step) else 0
        self._round = (mode, step, again)
        first = trainer.accelerator.process_index * len(prompts)
        prompt_ids = {name: self.chat.prompt_ids(self.rows[name].prompt) for name in set(trainer.row_ids)}
        rollouts = [
            Rollout(row, item_seed(self.seed, mode, step, again, place, row.id), prompt_ids[row.id], list(row.prompt))
            for place, row in enumerate((self.rows[name] for name in trainer.row_ids), start=first)
        ]

        with open_policy(trainer, self.chat.tokenizer, self.section.batch_tokens) as policy:
            limit, end_ids = self.section.max_turn_tokens, frozenset(trainer.eos_token_ids)
            sampler = Sampler(policy, self.chat, trainer.args.temperature, limit, end_ids)
            if self.section.mode == "reply":
                conversations = self._simulate_replies(rollouts, sampler)
            else:
                self._simulate_conversations(rollouts, sampler, trainer.args.max_completion_length)
                conversations = [[rollout] for rollout in rollouts]
        out = {
            "prompt_ids": [list(rollout.prompt_ids) for rollout in rollouts],
            "completion_ids": [rollout.completion_ids for rollout in rollouts],
            "logprobs": [rollout.log_probs for rollout in rollouts] if trainer.use_vllm else None,
            "samples": [sample_of(rollout, own) for rollout, own in zip(rollouts, conversations, strict=True)],
        }
        return out if self.section.mode == "reply" else {**out, "env_mask": [rollout.env_mask for rollout in rollouts]}

    def _settle(self, trainer: Any) -> None:
        """Check the trainer's sampling and launch, and tell trl which tokens end a turn."""
        check_sampling(self.section, vars(trainer.args))
        check_launch(self.section.simulator, trainer.accelerator)
        # trl counts a completion without one of these tokens at its end as truncated.
        missing = self.chat.answer_end_ids.difference(trainer.eos_token_ids)
        trainer.eos_token_ids = [*trainer.eos_token_ids, *sorted(missing)]

    def _simulate_replies(self, rollouts: Sequence[Rollout], sampler: Sampler) -> list[list[Rollout]]:
        """Add the trained turn of `reply` mode to each rollout, and return the conversations that were simulated from it to see what
        it leads to.

        The look-ahead is CollabLLM's multiturn-aware reward (arXiv 2502.00640, section 3): the value of a reply is that of
        the conversation after it, with the current policy as the assistant. All conversations take each step together, so
        the policy is called 1 + `window` times.
        """
        # The policy's turn that is trained.
        sampler.add_turns([(rollout, rollout.prompt_ids, item_seed(rollout.seed, 0)) for rollout in rollouts])

        # Its look-aheads, each with its own user and seed; a single one if nothing follows that could differ.
        look_aheads = []
        for rollout in rollouts:
            count = self.section.samples if self.section.window and rollout.is_open else 1
            look_aheads.append([rollout.branch(item_seed(rollout.seed, "look", number)) for number in range(count)])

        # `window` exchanges of the user and the current policy, which carry no loss.
        for exchange in range(1, self.section.window + 1):
            continued = self._add_user_turns(conversation for own in look_aheads for conversation in own)
            sampler.add_turns(
                [
                    (conversation, self.chat.prompt_ids(conversation.messages), item_seed(conversation.seed, exchange))
                    for conversation in continued
                ]
            )
        return look_aheads

    def _simulate_conversations(
        self, rollouts: Sequence[Rollout], sampler: Sampler, max_completion_length: int
    ) -> None:
        """Simulate the whole conversations of `conversation` mode, each trained as one sequence with loss on the policy's tokens.

        The sequence is what the policy has really seen. Each turn is generated from the ids so far and the ids that the
        template puts between two assistant turns (`Chat.continuation_ids`), so that no token is rendered again from text.
        On templates that change a turn in the history (Qwen3.5 drops its think block) that is the `generation` prefix form,
        which differs from what inference shows in a later turn; `reply` mode has no such difference.

        A conversation ends with a turn of the policy: when the user ends it, when a turn is truncated, after `max_turns`, or
        when another whole turn would not fit in `max_completion_length`, which limits the trained sequence with what stands
        between the turns. So no turn is ever truncated because of earlier turns.
        """
        for number in range(self.section.max_turns):
            # From the second turn on the user speaks first, between ids of the template.
            for rollout in self._add_user_turns(rollouts) if number else ():
                between = self.chat.continuation_ids(rollout.messages)
                # The model may have ended its turn with another token than the template does.
                if rollout.completion_ids[-1] != self.chat.turn_end_ids[-1]:
                    between = (*self.chat.turn_end_ids, *between)
                if len(rollout.completion_ids) + len(between) + sampler.max_tokens > max_completion_length:
                    rollout.messages.pop()  # there is no room for an answer
                    rollout.ended = "limit"
                else:
                    rollout.add_between(between)

            # The policy's turn, after exactly the ids that the loss will see before it.
            sampler.add_turns(
                [
                    (rollout, (*rollout.prompt_ids, *rollout.completion_ids), item_seed(rollout.seed, number))
                    for rollout in rollouts
                    if rollout.is_open
                ]
            )

    def _add_user_turns(self, conversations: Iterable[Rollout]) -> list[Rollout]:
        """Add the next user message to every open conversation, all requested at once; return those that are still open."""
        asked = [each for each in conversations if each.is_open]
        turns = self.simulator.turns(
            [
                UserRequest(each.row, tuple(each.messages), item_seed(each.seed, "user"), len(each.row.prompt))
                for each in asked
            ]
        )
        for conversation, turn in zip(asked, turns, strict=True):
            conversation.failure, conversation.ended = turn.failure, "user" if turn.ended else ""
            if conversation.is_open:
                conversation.messages.append({"role": "user", "content": turn.text})
        return [conversation for conversation in asked if conversation.is_open]


@dataclass
class Rollout:
    """A conversation in progress with its tokens, until `ended` ("user", "limit", "truncated") or `failure` is set.

    Attributes:
        seed: Seed of all its random choices.
        prompt_ids: [P].
        messages: The prompt and what was said after it.
        completion_ids: [C].
        env_mask: [C], 1 on tokens that the policy sampled, 0 on those of the user and the template.
        log_probs: [C], 0.0 where the mask is 0 (as trl fills them; masked before they count); empty if the engine has none.
    """

    row: PromptRow
    seed: int
    prompt_ids: tuple[int, ...]
    messages: list[Message]
    completion_ids: list[int] = field(default_factory=list)
    env_mask: list[int] = field(default_factory=list)
    log_probs: list[float | None] = field(default_factory=list)
    ended: str = ""
    failure: str = ""

    @property
    def is_open(self) -> bool:
        return not self.ended and not self.failure

    @property
    def tokens(self) -> int:
        """Tokens of the policy's turns so far, turn ends included."""
        return sum(self.env_mask)

    def branch(self, seed: int) -> Rollout:
        """Return a copy that continues by itself with another seed."""
        ids, mask, log_probs = list(self.completion_ids), list(self.env_mask), list(self.log_probs)
        return replace(
            self, seed=seed, messages=list(self.messages), completion_ids=ids, env_mask=mask, log_probs=log_probs
        )

    def add_turn(self, turn: Completion, complete: bool) -> None:
        """Add a turn of the policy, its end included. Users and rewards do not see its thoughts. An incomplete turn ends the
        conversation."""
        self.messages.append({"role": "assistant", "content": (after_thinking(turn.text) or "").strip()})
        self.completion_ids += turn.ids
        self.env_mask += [1] * len(turn.ids)
        self.log_probs += turn.log_probs
        if not complete:
            self.ended = "truncated"

    def add_between(self, ids: Sequence[int]) -> None:
        """Add the tokens between two turns of the policy."""
        self.completion_ids += ids
        self.env_mask += [0] * len(ids)
        self.log_probs += [0.0] * len(ids) if self.log_probs else []


def sample_of(rollout: Rollout, conversations: Sequence[Rollout]) -> Sample:
    """Return a trained rollout as rewards see it, with the finished conversations that it led to."""
    good = [conversation for conversation in conversations if not conversation.failure]
    return Sample(
        row=rollout.row,
        conversations=tuple(tuple(conversation.messages) for conversation in good),
        start=len(rollout.row.prompt),
        tokens=rollout.tokens,
        simulated_tokens=tuple(conversation.tokens for conversation in good),
        truncated=rollout.ended == "truncated",
        ended=tuple(conversation.ended or "limit" for conversation in good),
        failures=tuple(conversation.failure for conversation in conversations if conversation.failure),
    )


def check_launch(simulator: SimulatorSection, accelerator: Any) -> None:
    """Raise RecipeError if this launch cannot have the simulator's model in its processes: ZeRO-3 partitions every model that
    is loaded, and vLLM needs a process of its own."""
    plugin = accelerator.state.deepspeed_plugin
    zero3 = plugin is not None and plugin.zero_stage == 3
    engine = simulator.running.engine
    if (engine == "hf" and zero3) or (engine == "vllm" and accelerator.num_processes > 1):
        why = "with ZeRO-3" if zero3 else "in a launch of several processes"
        raise RecipeError(
            f"rollout.simulator.engine: given {simulator.engine}, expected openai {why}: serve the model by itself, such as "
            f"with `vllm serve {simulator.model}`, and name it under rollout.simulator.server"
        )


# --- The current policy, generating: transformers on the live weights, or trl's vLLM.
#
# With transformers the model is gathered and unwrapped once for a whole rollout; inside there are no collectives, so each
# process generates as often as it needs. The forward pass is that of training: the same weights, the same autocast, no
# dropout. Without vLLM trl assumes that the sampling policy is the one in training and corrects nothing, so a copy rounded
# for speed, as the probe makes on CPUs, would be a bias here.
#
# vLLM was not run here, since its CPU build cannot load trl's weights; this follows trl 1.16's `VLLMGeneration`. In a launch
# of several processes its calls hold collectives: in server mode a gather and a broadcast that slice by a number of prompts
# that must be equal everywhere, with tensor parallelism a gather, with sleep mode and ZeRO-3 the gathering of the weights.
# So all processes pool their requests and take equal shares, equally often.

Policy = Callable[[Sequence[Request]], list[Completion]]
"""Returns one completion for each request, in order, with `ids`, and with `log_probs` if the engine is not the model in
training. All processes call it equally often, some perhaps without a request."""


@dataclass(frozen=True)
class Sampler:
    """Samples turns of the policy; `end_ids` are the stop tokens that end a turn, in contrast to a header of the next one."""

    policy: Policy
    chat: Chat
    temperature: float
    max_tokens: int
    end_ids: frozenset[int]

    def add_turns(self, asked: Sequence[tuple[Rollout, Sequence[int], int]]) -> None:
        """Add a turn of at most `max_tokens` to each of (rollout, the ids before the turn, seed)."""
        stop_ids = tuple(sorted({*self.chat.answer_stop_ids, *self.end_ids}))
        limits = (self.max_tokens, stop_ids, self.temperature)
        made = self.policy([Request(tuple(ids), *limits, seed) for _, ids, seed in asked])
        for (rollout, _, _), turn in zip(asked, made, strict=True):
            rollout.add_turn(replace(turn, text=self.chat.whole_reply(turn.text)), self.is_complete(turn))

    def is_complete(self, turn: Completion) -> bool:
        """Return True if a turn ended by itself: not at its limit, and not with the header of another turn."""
        return turn.finish == "stop" and turn.ids[-1] in self.end_ids


@contextmanager
def open_policy(trainer: Any, tokenizer: Any, batch_tokens: int) -> Iterator[Policy]:
    """Context manager: the policy for one rollout. All processes enter and leave it together."""
    if trainer.use_vllm:  # trl has synchronized its weights before it calls a rollout function
        yield VllmPolicy(trainer.vllm_generation, trainer.accelerator, tokenizer)
        return
    # One autocast around all steps: float32 weights are rounded once, and not again for every token.
    with live_model(trainer) as model, trainer.accelerator.autocast():
        # Equal prompts are prefilled once; every request draws from a seed of its own.
        engine = HfEngine(model, tokenizer, batch_tokens)
        yield lambda requests: collect(engine, requests)


@dataclass(frozen=True)
class VllmPolicy:
    """trl's `VLLMGeneration`. All requests of a round have the same limit, temperature and stop tokens, as a call has; seeds are
    vLLM's own."""

    generation: Any
    accelerator: Any
    tokenizer: Any

    def __call__(self, requests: Sequence[Request]) -> list[Completion]:
        by_rank = self._gathered([list(requests)])
        everyone = [request for own in by_rank for request in own]
        if not everyone:  # on every process alike
            return []
        # Equal shares; the last ones are padded with a request whose completion is dropped.
        ranks, rank = self.accelerator.num_processes, self.accelerator.process_index
        share = math.ceil(len(everyone) / ranks)
        mine = everyone[rank * share : (rank + 1) * share]
        mine += [everyone[-1]] * (share - len(mine))
        made = self._gathered(self._generate(mine))
        first = sum(len(own) for own in by_rank[:rank])
        return made[first : first + len(requests)]

    def _generate(self, requests: Sequence[Request]) -> list[Completion]:
        generation, first = self.generation, requests[0]
        settings = {
            "max_completion_length": first.max_tokens,
            "temperature": first.temperature,
            "generation_kwargs": {**generation.generation_kwargs, "stop_token_ids": list(first.stop_ids)},
        }
        before = {name: getattr(generation, name) for name in settings}
        vars(generation).update(settings)
        try:
            prompts = [list(request.prompt_ids) for request in requests]
            _, rows, log_probs, _ = generation.generate(prompts=prompts, images=None, num_generations=1)
        finally:
            vars(generation).update(before)
        made = []
        for ids, probs in zip(map(tuple, rows), log_probs, strict=True):
            stopped = ids[-1] in first.stop_ids
            text = self.tokenizer.decode(list(ids[:-1] if stopped else ids))
            # A list for each token, with the sampled token's log p first; with trl's `logprobs=0` it is the only one.
            own = tuple(token[0] for token in probs)
            made.append(Completion(text, len(ids) - stopped, "stop" if stopped else "length", ids, own))
        return made

    def _gathered(self, own: list[Any]) -> list[Any]:
        from accelerate.utils import gather_object

        return gather_object(own)
