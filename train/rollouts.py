"""Rollouts for trl's GRPOTrainer: samples of the policy in conversation with a simulated user.

trl 1.16 calls `rollout_func(prompts, trainer)` with prompts that are already repeated for each generation of a group. It
wants, for each, `prompt_ids` [P], `completion_ids` [C], `logprobs` [C] (of the engine that sampled; None for all where that
is the model in training) and, where not all of a completion is the policy's, `env_mask` [C]: 1 on what the policy sampled
and is trained on, 0 elsewhere. Other keys reach the reward function, one value for each sample: here `samples`.

Reads from the top: the function that trl is given with its two modes, who plays the user, how the policy is asked.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from nextturn.data_builders.dialogue.prompts import User, simulator_prompt
from nextturn.data_builders.dialogue.replies import read_user
from nextturn.data_builders.dialogue.roles import Roles
from nextturn.data_builders.recipe import PERSONAS
from nextturn.data_builders.rows import RlRow
from nextturn.data_builders.user import ScriptedUser
from nextturn.probe.chat import Chat
from nextturn.probe.conversations import Message
from nextturn.probe.engines.base import Completion, Request, collect, item_seed
from nextturn.probe.engines.hf import HfEngine, live_model
from nextturn.probe.errors import RecipeError
from nextturn.train.recipe import RolloutSection, SimulatorSection, check_sampling
from nextturn.train.rewards import Sample


def make_rollout(section: RolloutSection, chat: Chat, rows: Mapping[str, RlRow], seed: int) -> RolloutFunction:
    """The `rollout_func` for a trainer of `train.overrides.RolloutTrainer`.

    Args:
        rows: by id; the trainer's `row_ids` name them.

    Raises:
        BadInput: the settings cannot be used, or the simulator's model or server cannot.
    """
    return RolloutFunction(section, chat, rows, open_simulator(section.simulator, seed), seed)


@dataclass
class RolloutFunction:
    """Everything in a sample is drawn from the seed, the step and the sample's place in the step's batch over all
    processes, so that the same run makes the same samples, whatever else is made beside them."""

    section: RolloutSection
    chat: Chat
    rows: Mapping[str, RlRow]
    simulator: Simulator
    seed: int
    _round: tuple[str, int, int] = ("", -1, 0)
    _end_ids: frozenset[int] = frozenset()

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """One sample for each prompt; which row a prompt is, `trainer.row_ids` says.

        Raises:
            RecipeError: the trainer's sampling cannot be followed.
            EngineError: the model's logits are no numbers, or the simulator's server is gone.
        """
        if not self._end_ids:
            self._settle(trainer)

        # A seed for each sample. Two rollouts of one step differ, as trl makes them where a step has several batches.
        mode, step = "train" if trainer.model.training else "eval", trainer.state.global_step
        again = self._round[2] + 1 if self._round[:2] == (mode, step) else 0
        self._round = (mode, step, again)
        first = trainer.accelerator.process_index * len(prompts)
        prompt_ids = {name: self.chat.prompt_ids(self.rows[name].prompt) for name in set(trainer.row_ids)}
        rollouts = [
            Rollout(self.rows[name], item_seed(self.seed, mode, step, again, place, name), prompt_ids[name])
            for place, name in enumerate(trainer.row_ids, start=first)
        ]

        with open_policy(trainer, self.chat.tokenizer, self.section.batch_tokens) as policy:
            most = self.section.max_turn_tokens
            sampler = Sampler(policy, self.chat, trainer.args.temperature, most, self._end_ids)
            if self.section.mode == "reply":
                self._play_replies(rollouts, sampler)
            else:
                self._play_conversations(rollouts, sampler, trainer.args.max_completion_length)
        out = {
            "prompt_ids": [list(one.prompt_ids) for one in rollouts],
            "completion_ids": [one.completion_ids for one in rollouts],
            "logprobs": [one.log_probs for one in rollouts] if trainer.use_vllm else None,
            "samples": [one.sample for one in rollouts],
        }
        return out if self.section.mode == "reply" else {**out, "env_mask": [one.env_mask for one in rollouts]}

    def close(self) -> None:
        self.simulator.close()

    def _settle(self, trainer: Any) -> None:
        """What is known only with the trainer: whether its sampling can be followed, and what ends a turn."""
        check_sampling(self.section, vars(trainer.args))
        check_launch(self.section.simulator, trainer.accelerator)
        # trl takes a completion for cut where it does not end with one of these; a turn ends as the template says.
        turn_end = self.chat.turn_end_ids[-1]
        if turn_end not in trainer.eos_token_ids:
            trainer.eos_token_ids = [*trainer.eos_token_ids, turn_end]
        self._end_ids = frozenset(trainer.eos_token_ids)

    def _play_replies(self, rollouts: Sequence[Rollout], sampler: Sampler) -> None:
        """`reply` mode: one assistant turn is trained, and played on from to see what it leads to.

        The look-ahead is CollabLLM's multiturn-aware reward (arXiv 2502.00640, section 3): a reply is worth what the
        conversation becomes after it, with the policy of now as the assistant. All conversations take each step together,
        so the policy is asked 1 + `window` times.
        """
        # The policy's turn that is trained.
        replies = sampler.turns((one.prompt_ids, item_seed(one.seed, 0)) for one in rollouts)

        # Its look-aheads, each with a user and draws of its own; one where nothing is left to chance, as nobody goes on.
        look_aheads: list[list[Conversation]] = []
        for rollout, reply in zip(rollouts, replies, strict=True):
            rollout.add_turn(reply)
            whole = sampler.is_whole(reply)
            look_aheads.append([])
            for number in range(self.section.samples if self.section.window and whole else 1):
                seed = item_seed(rollout.seed, "look", number)
                user = self.simulator.user(rollout.row, item_seed(seed, "user"))
                look_aheads[-1].append(Conversation(user, list(rollout.row.prompt), seed))
                look_aheads[-1][-1].add_turn(reply, whole)

        # `window` exchanges of the user and the policy of now, which carry no loss.
        for exchange in range(1, self.section.window + 1):
            going_on = self._add_user_turns(one for own in look_aheads for one in own)
            turns = sampler.turns(
                (self.chat.prompt_ids(one.messages), item_seed(one.seed, exchange)) for one in going_on
            )
            for conversation, turn in zip(going_on, turns, strict=True):
                conversation.add_turn(turn, sampler.is_whole(turn))

        for rollout, reply, own in zip(rollouts, replies, look_aheads, strict=True):
            rollout.finish(own, truncated=not sampler.is_whole(reply))

    def _play_conversations(self, rollouts: Sequence[Rollout], sampler: Sampler, max_completion_length: int) -> None:
        """`conversation` mode: whole conversations are trained, each as one sequence, with loss on the policy's tokens.

        The sequence is what the policy has really seen. Each turn is generated from the ids so far and the ids that the
        template puts between two assistant turns (`Chat.continuation_ids`), so that no token is rendered again from text.
        On templates that change a turn once it is history (Qwen3.5 drops its think block) that is the `generation` prefix
        form, and differs from what inference shows in a later turn; `reply` mode has no such difference.

        A conversation ends with a turn of the policy: when the user ends it, when a turn is cut, after `max_turns`, or
        when another whole turn would not fit in `max_completion_length`, which bounds the trained whole with what stands
        between the turns. So no turn is ever cut by what was said before it.
        """
        both: list[tuple[Conversation, Rollout]] = []
        for rollout in rollouts:
            user = self.simulator.user(rollout.row, item_seed(rollout.seed, "user"))
            both.append((Conversation(user, list(rollout.row.prompt), rollout.seed), rollout))
        conversations = [conversation for conversation, _ in both]

        for number in range(self.section.max_turns):
            # From the second turn on the user speaks first, and the template's ids stand around what is said.
            if number:
                self._add_user_turns(conversations)
                for conversation, rollout in both:
                    if not conversation.is_open:
                        continue
                    between = self.chat.continuation_ids(conversation.messages)
                    # The model may have ended its turn with another token than the template does.
                    if rollout.completion_ids[-1] != self.chat.turn_end_ids[-1]:
                        between = (*self.chat.turn_end_ids, *between)
                    if len(rollout.completion_ids) + len(between) + sampler.max_tokens > max_completion_length:
                        conversation.messages.pop()  # what cannot be answered
                        conversation.ended = "limit"
                    else:
                        rollout.add_between(between)

            # The policy's turn, after exactly the ids that the loss will see before it.
            going_on = [(conversation, rollout) for conversation, rollout in both if conversation.is_open]
            turns = sampler.turns(
                ((*rollout.prompt_ids, *rollout.completion_ids), item_seed(rollout.seed, number))
                for _, rollout in going_on
            )
            for (conversation, rollout), turn in zip(going_on, turns, strict=True):
                rollout.add_turn(turn)
                conversation.add_turn(turn, sampler.is_whole(turn))

        for conversation, rollout in both:
            rollout.finish([conversation], truncated=conversation.ended == "truncated")

    def _add_user_turns(self, conversations: Iterable[Conversation]) -> list[Conversation]:
        """Adds the next user message to every open conversation, all asked at once; gives those that go on."""
        asked = [one for one in conversations if one.is_open]
        turns = self.simulator.reply([(one.user, one.messages) for one in asked])
        for conversation, turn in zip(asked, turns, strict=True):
            if turn.failure:
                conversation.failure = turn.failure
            elif turn.ended:
                conversation.ended = "user"
            else:
                conversation.messages.append({"role": "user", "content": turn.text})
        return [one for one in asked if one.is_open]


@dataclass
class Rollout:
    """What trl trains on of one sample: P prompt tokens, then C completion tokens; and the sample as rewards see it.

    Attributes:
        seed: all that the sample holds is drawn from it.
        prompt_ids: [P].
        completion_ids: [C].
        env_mask: [C], 1 on what the policy sampled, 0 on what the user and the template put between its turns.
        log_probs: [C], 0.0 where the mask is 0 (as trl fills them; masked before they count); empty where the engine
            gives none.
    """

    row: RlRow
    seed: int
    prompt_ids: tuple[int, ...]
    completion_ids: list[int] = field(default_factory=list)
    env_mask: list[int] = field(default_factory=list)
    log_probs: list[float | None] = field(default_factory=list)
    sample: Sample | None = None

    def add_turn(self, turn: Completion) -> None:
        """A turn of the policy, its end included."""
        self.completion_ids += turn.ids
        self.env_mask += [1] * len(turn.ids)
        self.log_probs += turn.log_probs

    def add_between(self, ids: Sequence[int]) -> None:
        """What stands between two turns of the policy."""
        self.completion_ids += ids
        self.env_mask += [0] * len(ids)
        self.log_probs += [0.0] * len(ids) if self.log_probs else []

    def finish(self, conversations: Sequence[Conversation], truncated: bool) -> None:
        """Makes the sample, once none of its conversations goes on."""
        good = [one for one in conversations if not one.failure]
        self.sample = Sample(
            row=self.row,
            conversations=tuple(tuple(one.messages) for one in good),
            start=len(self.row.prompt),
            tokens=sum(self.env_mask),
            simulated_tokens=tuple(one.tokens for one in good),
            truncated=truncated,
            ended=tuple(one.ended or "limit" for one in good),
            failures=tuple(one.failure for one in conversations if one.failure),
        )


@dataclass
class Conversation:
    """A conversation under way until `ended` ("user", "limit", "truncated") or `failure` says otherwise.

    Attributes:
        user: as the simulator made it.
        tokens: of the policy's turns so far, turn ends included.
    """

    user: Any
    messages: list[Message]
    seed: int
    tokens: int = 0
    ended: str = ""
    failure: str = ""

    @property
    def is_open(self) -> bool:
        return not self.ended and not self.failure

    def add_turn(self, turn: Completion, whole: bool) -> None:
        """A turn of the policy; one that is not whole ends the conversation."""
        self.messages.append({"role": "assistant", "content": turn.text.strip()})
        self.tokens += len(turn.ids)
        if not whole:
            self.ended = "truncated"


# --- Who plays the user: a script that knows the problem, or any engine of the data builders.
#
# A simulator that gives no usable message ends the conversation as failed, with the reason; never as one that the user
# ended, and never with an empty message. The user turns of a step are all asked at once.

_NUMBER = re.compile(r"\d[\d.,/]*")


@dataclass(frozen=True)
class UserTurn:
    """A user's message; or the user has ended the conversation; or `failure` says why there is none."""

    text: str = ""
    ended: bool = False
    failure: str = ""


class Simulator(Protocol):
    def user(self, row: RlRow, seed: int) -> Any:
        """The user of one conversation."""
        ...

    def reply(self, asked: Sequence[tuple[Any, Sequence[Message]]]) -> list[UserTurn]:
        """The next turn of every (user, messages so far, which end with the assistant), in order."""
        ...

    def close(self) -> None: ...


class ScriptedSimulator:
    """Offline: `data_builders.scripted_user`."""

    def user(self, row: RlRow, seed: int) -> ScriptedUser:
        return ScriptedUser(row, seed)

    def reply(self, asked: Sequence[tuple[ScriptedUser, Sequence[Message]]]) -> list[UserTurn]:
        texts = [user.reply(messages) for user, messages in asked]
        return [UserTurn(ended=True) if text is None else UserTurn(text) for text in texts]

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class ModelUser(User):
    """A row's user as the dialogue builder's prompts want it."""

    seed: int = 0


class ModelSimulator:
    """A language model as the user, with the prompts and the reading of the dialogue builder: it knows the problem, and
    not its answer."""

    def __init__(self, section: SimulatorSection, seed: int) -> None:
        self.section = section
        self._roles = Roles({"simulator": section}, seed, "rollout")

    def user(self, row: RlRow, seed: int) -> ModelUser:
        """Where nobody has played the row's user yet, a persona is drawn."""
        drawn = random.Random(f"rollout-persona:{seed}").choice(list(PERSONAS))
        persona = row.persona if row.persona in PERSONAS else drawn
        return ModelUser(row.problem, persona, hidden=row.hidden, clause=row.clause, seed=seed)

    def reply(self, asked: Sequence[tuple[ModelUser, Sequence[Message]]]) -> list[UserTurn]:
        """Raises EngineError where a server cannot be reached, or answers nothing but failures."""
        turns: list[UserTurn] = []
        if asked:
            jobs = (self._turn(user, tuple(messages)) for user, messages in asked)
            self._roles.run(jobs, at_once=len(asked), take=turns.append)
        return turns

    def close(self) -> None:
        self._roles.close()

    async def _turn(self, user: ModelUser, messages: tuple[Message, ...]) -> UserTurn:
        """One user turn; asked for again a few times where the reply cannot be used."""
        # A reply is read for numbers alone: a sentence that was withheld is told by copying it.
        read_as = replace(user, hidden=tuple(value for value in user.hidden if _NUMBER.fullmatch(value)))
        answer = await self._roles["simulator"].ask(
            simulator_prompt(user, messages),
            lambda reply: read_user(reply, read_as, messages),
            lambda attempt: item_seed(user.seed, len(messages), attempt),
            self.section.tries,
        )
        if answer.parsed is None:
            return UserTurn(failure=answer.missing)
        return UserTurn(answer.parsed.text, answer.parsed.ended)


def check_launch(simulator: SimulatorSection, accelerator: Any) -> None:
    """Raise RecipeError for a simulator in this process whose model the launch would take for a part of the training: ZeRO-3
    partitions every model that is loaded, and vLLM needs a process of its own."""
    plugin = accelerator.state.deepspeed_plugin
    zero3 = plugin is not None and plugin.zero_stage == 3
    if (simulator.engine == "hf" and zero3) or (simulator.engine == "vllm" and accelerator.num_processes > 1):
        why = "with ZeRO-3" if zero3 else "in a launch of several processes"
        raise RecipeError(
            f"rollout.simulator.engine: given {simulator.engine}, expected openai {why}: serve the model by itself, such as "
            f"with `vllm serve {simulator.model}`, and name it under rollout.simulator.server"
        )


def open_simulator(section: SimulatorSection, seed: int) -> Simulator:
    """Raises BadInput where a server's section or a model cannot be used. No request is sent, no weights are loaded."""
    return ScriptedSimulator() if section.engine == "scripted" else ModelSimulator(section, seed)


# --- The policy as it stands now, generating: transformers on the live weights, or trl's vLLM.
#
# With transformers the model is gathered and unwrapped once for a whole rollout; inside there are no collectives, so each
# process generates as often as it has something to generate. The forward pass is that of training: the same weights, the
# same autocast, dropout off. Without vLLM trl takes the policy that sampled for the policy that learns and corrects
# nothing, so a copy rounded for speed, as the probe makes one on CPUs, would be a bias here.
#
# vLLM was not run here, since its CPU build cannot take trl's weights; this is written to the letter of trl 1.16's
# `VLLMGeneration`. In a launch of several processes its calls hold collectives: in server mode a gather and a broadcast
# that slice by a number of prompts that must be the same everywhere, with tensor parallelism a gather, with sleep mode and
# ZeRO-3 the gathering of the weights. So there all processes pool their requests and take equal shares, as often as each
# other.

Policy = Callable[[Sequence[Request]], list[Completion]]
"""One completion for each request, in order, with `ids`, and with `log_probs` where the engine's sampling is not the
trainer's own. All processes call it equally often, with no request if need be."""


@dataclass(frozen=True)
class Sampler:
    """Samples turns of the policy. `end_ids` are the stop tokens that really end a turn."""

    policy: Policy
    chat: Chat
    temperature: float
    max_tokens: int
    end_ids: frozenset[int]

    def turns(self, prompts: Iterable[tuple[Sequence[int], int]]) -> list[Completion]:
        """One turn of at most `max_tokens` for each (prompt ids, seed), in order."""
        stop_ids = tuple(sorted({*self.chat.stop_ids, *self.end_ids}))
        return self.policy(
            [Request(tuple(ids), self.max_tokens, stop_ids, self.temperature, seed) for ids, seed in prompts]
        )

    def is_whole(self, turn: Completion) -> bool:
        """Whether a turn came to its end: not cut by its limit, and not run into the header of another turn."""
        return turn.finish == "stop" and turn.ids[-1] in self.end_ids


@contextmanager
def open_policy(trainer: Any, tokenizer: Any, batch_tokens: int) -> Iterator[Policy]:
    """The policy for one rollout. Enter and leave it on all processes together."""
    if trainer.use_vllm:  # trl has brought its weights up to date before it calls a rollout function
        yield VllmPolicy(trainer.vllm_generation, trainer.accelerator, tokenizer)
        return
    # One autocast around all steps: float32 weights are rounded once, and not again for every token.
    with live_model(trainer) as model, trainer.accelerator.autocast():
        # Equal prompts are prefilled once; every request draws from a seed of its own.
        engine = HfEngine(model, tokenizer, batch_tokens)
        yield lambda requests: collect(engine, requests)


@dataclass(frozen=True)
class VllmPolicy:
    """trl's `VLLMGeneration`. One call takes one token limit and one temperature, so all requests of a round have the
    same temperature, and what grew beyond its own limit is cut there; seeds are vLLM's own."""

    generation: Any
    accelerator: Any
    tokenizer: Any

    def __call__(self, requests: Sequence[Request]) -> list[Completion]:
        by_rank = self._gathered([list(requests)])
        everyone = [request for own in by_rank for request in own]
        if not everyone:  # on every process alike
            return []
        # Equal shares; the last ones are filled up with a request whose completion nobody takes.
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
            _, rows, log_probs, _ = generation.generate(
                prompts=[list(request.prompt_ids) for request in mine], images=None, num_generations=1
            )
        finally:
            vars(generation).update(before)
        made = []
        for request, row, probs in zip(mine, rows, log_probs, strict=True):
            ids = tuple(row[: request.max_tokens])
            stopped = ids[-1] in request.stop_ids
            tokens = ids[:-1] if stopped else ids
            # For each token its log p in a list, the sampled token's first; with trl's `logprobs=0` it is the only one.
            own = tuple(one[0] for one in probs[: request.max_tokens])
            text = self.tokenizer.decode(list(tokens))
            made.append(Completion(text, len(tokens), "stop" if stopped else "length", ids, own))
        return made

    def _gathered(self, own: list[Any]) -> list[Any]:
        if self.accelerator.num_processes == 1:
            return own
        from accelerate.utils import gather_object

        return gather_object(own)
