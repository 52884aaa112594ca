"""Rollouts for trl's GRPOTrainer: `rollout_func(prompts, trainer)` with a simulated user in the loop.

trl 1.16 hands over prompts that are already repeated for each generation of a group, and wants prompt ids, completion
ids and log-probabilities back; further keys reach the reward functions, one value for each sample. Here that is
`played`, what was said and what came after.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from data_builders.dialogue.prompts import Plan, simulator_prompt
from data_builders.dialogue.roles import open_roles
from data_builders.dialogue.score import read_user
from data_builders.dialogue.settings import EFFORTS, KNOWLEDGES, PERSONAS, Persona, draw_persona
from data_builders.rows import RlRow
from data_builders.tasks import Gap, Task
from data_builders.user import ScriptedUser
from probe.chat import Chat
from probe.conversations import Message
from probe.engines.base import Completion, Request, collect, item_seed
from probe.engines.hf import HfEngine, live_model
from probe.errors import DataError
from train.recipe import RolloutSection, SimulatorSection, check_launch, check_rollout
from train.rewards import Played

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
class _ModelUser:
    plan: Plan
    seed: int

    @property
    def read_as(self) -> Plan:
        """What is withheld as far as its telling can be seen in any wording: a sentence is told by copying it."""
        return replace(self.plan, hidden=tuple(value for value in self.plan.hidden if _NUMBER.fullmatch(value)))


class ModelSimulator:
    """A language model as the user, with the prompts and the reading of the dialogue builder.

    It is never told that a message is its last: told so, it would tell all that is missing without being asked.
    """

    def __init__(self, section: SimulatorSection, seed: int) -> None:
        self.section = section
        self._roles = open_roles({"simulator": section}, seed)

    def user(self, row: RlRow, seed: int) -> _ModelUser:
        return _ModelUser(plan_of_row(row, seed), seed)

    def reply(self, asked: Sequence[tuple[_ModelUser, Sequence[Message]]]) -> list[UserTurn]:
        """Raises EngineError where a server cannot be reached, or answers nothing but failures."""
        turns: list[UserTurn] = []
        if asked:
            jobs = (self._turn(user, tuple(messages)) for user, messages in asked)
            self._roles.run(jobs, at_once=len(asked), take=turns.append)
        return turns

    def close(self) -> None:
        self._roles.close()

    async def _turn(self, user: _ModelUser, messages: tuple[Message, ...]) -> UserTurn:
        """One user turn; asked for again a few times where the reply cannot be used."""
        answer = await self._roles["simulator"].ask(
            simulator_prompt(user.plan, messages, last=False),
            lambda reply: read_user(reply, user.read_as, messages),
            lambda attempt: item_seed(user.seed, len(messages), attempt),
            self.section.tries,
        )
        if answer.parsed is None:
            return UserTurn(failure=answer.missing)
        return UserTurn(answer.parsed.text, answer.parsed.ended)


def plan_of_row(row: RlRow, seed: int) -> Plan:
    """A row in the words of the dialogue builder; where nobody has played its user yet, a persona is drawn."""
    rng = random.Random(f"rollout-persona:{seed}")
    drawn = draw_persona(rng, tuple(PERSONAS), tuple(KNOWLEDGES), tuple(EFFORTS))
    persona = Persona(row.persona or drawn.name, row.knowledge or drawn.knowledge, row.effort or drawn.effort)
    task = Task(row.id, row.problem, row.answer, source="rl", steps=())
    gap = None
    if row.clause:
        gap = Gap(row.prompt[0]["content"], row.clause, "", row.reveal, row.short, "".join(row.hidden[:1]))
    return Plan(row.id, task, persona, stated=not row.hidden, hidden=row.hidden, gap=gap)


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
    # One autocast around all steps: float32 weights are rounded once, and not again for every token.
    with live_model(trainer) as model, trainer.accelerator.autocast():
        yield HfPolicy(HfEngine(model, tokenizer, batch_tokens))


class HfPolicy:
    """Equal prompts are prefilled once; every request draws from a seed of its own."""

    def __init__(self, engine: HfEngine) -> None:
        self.engine = engine

    def complete(self, requests: Sequence[Request]) -> list[Completion]:
        return collect(self.engine, requests)


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


# --- Conversations under way, and the two halves of an exchange: every user speaks, then every assistant does.

# A user turn that the policy writes itself is as long as the probe lets it be (`probe.max_user_tokens`).
_USER_TOKENS = 96


@dataclass(frozen=True)
class Start:
    """One sample to make: where it begins, and the seed that everything in it is drawn from."""

    row: RlRow
    messages: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Sample:
    """One sample for trl, and as the rewards see it. `env_mask` and `log_probs` have a value for each completion id."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    env_mask: tuple[int, ...]
    log_probs: tuple[float | None, ...]
    played: Played


@dataclass
class Talk:
    """A conversation under way until `ended` ("user", "limit", "truncated") or `failure` says otherwise."""

    user: Any
    messages: list[Message]
    seed: int
    tokens: int = 0
    ended: str = ""
    failure: str = ""

    @property
    def open(self) -> bool:
        return not self.ended and not self.failure

    def assistant(self, made: Completion, whole: bool) -> None:
        self.messages.append({"role": "assistant", "content": made.text.strip()})
        self.tokens += len(made.ids)
        if not whole:
            self.ended = "truncated"


@dataclass(frozen=True)
class Speaking:
    """How the policy's turns are made: `end_ids` are the stop tokens that really end a turn."""

    policy: Policy
    chat: Chat
    temperature: float
    stop_ids: tuple[int, ...]
    end_ids: frozenset[int] = field(default_factory=frozenset)

    def request(self, prompt_ids: Sequence[int], max_tokens: int, seed: int) -> Request:
        return Request(tuple(prompt_ids), max_tokens, self.stop_ids, self.temperature, seed)

    def complete(self, requests: Sequence[Request]) -> list[Completion]:
        return self.policy.complete(requests)

    def whole(self, made: Completion) -> bool:
        """Whether a turn came to its end: not cut by its limit, and not run into the header of another turn."""
        return made.finish == "stop" and made.ids[-1] in self.end_ids


def users_speak(talks: Iterable[Talk], simulator: Simulator) -> list[Talk]:
    """Adds the next user message to every open conversation, all asked at once; gives those that go on."""
    asked = [talk for talk in talks if talk.open]
    for talk, turn in zip(asked, simulator.reply([(talk.user, talk.messages) for talk in asked]), strict=True):
        if turn.failure:
            talk.failure = turn.failure
        elif turn.ended:
            talk.ended = "user"
        else:
            talk.messages.append({"role": "user", "content": turn.text})
    return [talk for talk in asked if talk.open]


def own_user_turns(talks: Sequence[Talk], speaking: Speaking) -> list[tuple[str, ...]]:
    """The policy's own user turn after each conversation, greedy, as the probe's first figure has it; () after a turn
    that was cut, and where the simulator failed."""
    whole = [place for place, talk in enumerate(talks) if talk.ended != "truncated" and not talk.failure]
    prompts = [speaking.chat.user_prefix_ids(talks[place].messages) for place in whole]
    made = speaking.complete([Request(prompt, _USER_TOKENS, speaking.stop_ids) for prompt in prompts])
    turns: list[tuple[str, ...]] = [()] * len(talks)
    for place, completion in zip(whole, made, strict=True):
        turns[place] = (completion.text,)
    return turns


def played(start: Start, talks: Sequence[Talk], tokens: int, truncated: bool, user_turns: Sequence[str] = ()) -> Played:
    """A sample's conversations once none of them goes on."""
    good = [talk for talk in talks if not talk.failure]
    return Played(
        row=start.row,
        conversations=tuple(tuple(talk.messages) for talk in good),
        start=len(start.messages),
        tokens=tokens,
        simulated_tokens=tuple(talk.tokens for talk in good),
        truncated=truncated,
        ended=tuple(talk.ended or "limit" for talk in good),
        failures=tuple(talk.failure for talk in talks if talk.failure),
        user_turns=tuple(user_turns),
    )


# --- `reply` mode: one assistant turn is trained, and played on from to see what it leads to.
#
# The look-ahead is CollabLLM's multiturn-aware reward (arXiv 2502.00640, section 3): a reply is worth what the
# conversation becomes after it, with the policy of now as the assistant.


def play_replies(
    starts: Sequence[Start],
    speaking: Speaking,
    simulator: Simulator,
    rollout: RolloutSection,
    limit: int,
    wants_user_turns: bool,
) -> list[Sample]:
    """One sample for each start. All conversations take each step together: the policy is asked 1 + `window` times.

    Args:
        limit: tokens of the trained reply at most.
    """
    limit = min(limit, rollout.max_turn_tokens)
    replies = speaking.complete([speaking.request(one.prompt_ids, limit, item_seed(one.seed, 0)) for one in starts])
    talks = [_talks(start, made, speaking, simulator, rollout) for start, made in zip(starts, replies, strict=True)]
    user_turns = own_user_turns([own[0] for own in talks], speaking) if wants_user_turns else [()] * len(talks)
    for step in range(1, rollout.window + 1):
        going_on = users_speak((talk for own in talks for talk in own), simulator)
        asked = [
            speaking.request(
                speaking.chat.prompt_ids(talk.messages), rollout.max_turn_tokens, item_seed(talk.seed, step)
            )
            for talk in going_on
        ]
        for talk, made in zip(going_on, speaking.complete(asked), strict=True):
            talk.assistant(made, speaking.whole(made))
    return [
        Sample(
            start.prompt_ids,
            made.ids,
            (1,) * len(made.ids),
            made.log_probs,
            played(start, own, len(made.ids), not speaking.whole(made), turns),
        )
        for start, made, own, turns in zip(starts, replies, talks, user_turns, strict=True)
    ]


def _talks(
    start: Start, made: Completion, speaking: Speaking, simulator: Simulator, rollout: RolloutSection
) -> list[Talk]:
    """The look-aheads of a reply; one where nothing is left to chance, since nobody goes on."""
    whole = speaking.whole(made)
    talks = []
    for number in range(rollout.samples if rollout.window and whole else 1):
        seed = item_seed(start.seed, "look", number)
        talk = Talk(simulator.user(start.row, item_seed(seed, "user")), list(start.messages), seed)
        talk.assistant(made, whole)
        talks.append(talk)
    return talks


# --- `conversation` mode: whole conversations are trained, each as one sequence, with loss on the policy's tokens alone.
#
# The sequence is what the policy has really seen. Each turn is generated from the ids so far and the ids that the
# template puts between two assistant turns (`Chat.continuation_ids`), so that no token is rendered again from text. On
# templates that change a turn once it is history (Qwen3.5 drops its think block) that is the `generation` prefix form,
# and differs from what inference shows in a later turn; `reply` mode has no such difference.


@dataclass
class _Grown(Talk):
    """A conversation with its sequence after the prompt. `mask` is 1 on what the policy has sampled, 0 elsewhere."""

    prompt_ids: tuple[int, ...] = ()
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    log_probs: list[float | None] = field(default_factory=list)

    def own(self, made: Completion) -> None:
        self.ids += made.ids
        self.mask += [1] * len(made.ids)
        self.log_probs += made.log_probs

    def outside(self, ids: Sequence[int], scored: bool) -> None:
        self.ids += ids
        self.mask += [0] * len(ids)
        self.log_probs += [0.0] * len(ids) if scored else []  # as trl fills them; masked before they count


def play_conversations(
    starts: Sequence[Start],
    speaking: Speaking,
    simulator: Simulator,
    rollout: RolloutSection,
    limit: int,
    wants_user_turns: bool,
) -> list[Sample]:
    """One sample for each start. All conversations take each turn together: the policy is asked `max_turns` times.

    A conversation ends with a turn of the policy: when the user ends it, when a turn is cut, after `max_turns`, or
    when another whole turn would not fit. So no turn is ever cut by what was said before it.

    Args:
        limit: tokens of the trained whole at most, what stands between the turns included.
    """
    talks = [_begun(start, simulator) for start in starts]
    for turn in range(rollout.max_turns):
        if turn:
            users_speak(talks, simulator)
            _continue(talks, speaking, room=limit - rollout.max_turn_tokens)
        going_on = [talk for talk in talks if talk.open]
        asked = [
            speaking.request(
                (*talk.prompt_ids, *talk.ids), min(limit, rollout.max_turn_tokens), item_seed(talk.seed, turn)
            )
            for talk in going_on
        ]
        for talk, made in zip(going_on, speaking.complete(asked), strict=True):
            talk.own(made)
            talk.assistant(made, speaking.whole(made))
    turns = own_user_turns(talks, speaking) if wants_user_turns else [()] * len(talks)
    return [
        Sample(
            start.prompt_ids,
            tuple(talk.ids),
            tuple(talk.mask),
            tuple(talk.log_probs),
            played(start, [talk], talk.tokens, talk.ended == "truncated", own),
        )
        for start, talk, own in zip(starts, talks, turns, strict=True)
    ]


def _begun(start: Start, simulator: Simulator) -> _Grown:
    user = simulator.user(start.row, item_seed(start.seed, "user"))
    return _Grown(user, list(start.messages), start.seed, prompt_ids=start.prompt_ids)


def _continue(talks: Sequence[_Grown], speaking: Speaking, room: int) -> None:
    """Adds what stands before the next turn to each open conversation where that leaves room for the turn; ends the
    others without the message that cannot be answered."""
    chat = speaking.chat
    for talk in talks:
        if not talk.open:
            continue
        between = chat.continuation_ids(talk.messages)
        if talk.ids[-1] != chat.turn_end_ids[-1]:  # the model ended its turn with another token than the template does
            between = (*chat.turn_end_ids, *between)
        if len(talk.ids) + len(between) > room:
            talk.messages.pop()
            talk.ended = "limit"
        else:
            talk.outside(between, scored=bool(talk.log_probs))


def make_rollout(
    section: RolloutSection, chat: Chat, rows: Mapping[str, RlRow], wants_user_turns: bool, seed: int
) -> Rollout:
    """The `rollout_func` for a trainer.

    Args:
        rows: by id; the last message of each prompt carries its row's id under "row".
        wants_user_turns: also let the policy write the user turn after what was trained, for a reward on it.

    Raises:
        BadInput: the settings cannot be used, or the simulator's model or server cannot.
    """
    check_rollout(section, {})
    return Rollout(section, chat, rows, open_simulator(section.simulator, seed), wants_user_turns, seed)


class Rollout:
    """Everything in a sample is drawn from the seed, the step and the sample's place in the step's batch over all
    processes, so that the same run makes the same samples, whatever else is made beside them."""

    def __init__(
        self,
        section: RolloutSection,
        chat: Chat,
        rows: Mapping[str, RlRow],
        simulator: Simulator,
        wants_user_turns: bool,
        seed: int,
    ) -> None:
        self.section, self.chat, self.rows, self.simulator = section, chat, rows, simulator
        self.wants_user_turns, self.seed = wants_user_turns, seed
        self._round: tuple[str, int, int] = ("", -1, 0)
        self._end_ids: frozenset[int] = frozenset()

    def __call__(self, prompts: Sequence[Sequence[Mapping[str, Any]]], trainer: Any) -> dict[str, Any]:
        """Samples for these prompts, one each.

        Raises:
            RecipeError: the trainer's sampling cannot be followed.
            DataError: a prompt names no row.
            EngineError: the model's logits are no numbers, or the simulator's server is gone.
        """
        if not self._end_ids:
            self._settle(trainer)
        starts = self._starts(prompts, trainer)
        play = play_replies if self.section.mode == "reply" else play_conversations
        limit = trainer.args.max_completion_length
        with open_policy(trainer, self.chat.tokenizer, self.section.batch_tokens) as policy:
            stop_ids = tuple(sorted({*self.chat.stop_ids, *self._end_ids}))
            speaking = Speaking(policy, self.chat, trainer.args.temperature, stop_ids, self._end_ids)
            samples = play(starts, speaking, self.simulator, self.section, limit, self.wants_user_turns)
        return self._for_trl(samples, scored=trainer.use_vllm)

    def close(self) -> None:
        self.simulator.close()

    def _settle(self, trainer: Any) -> None:
        """What is known only with the trainer: whether its sampling can be followed, and what ends a turn."""
        check_rollout(self.section, vars(trainer.args))
        check_launch(self.section.simulator, trainer.accelerator)
        # trl takes a completion for cut where it does not end with one of these; a turn ends as the template says.
        turn_end = self.chat.turn_end_ids[-1]
        if turn_end not in trainer.eos_token_ids:
            trainer.eos_token_ids = [*trainer.eos_token_ids, turn_end]
        self._end_ids = frozenset(trainer.eos_token_ids)

    def _starts(self, prompts: Sequence[Sequence[Mapping[str, Any]]], trainer: Any) -> list[Start]:
        mode, step = "train" if trainer.model.training else "eval", trainer.state.global_step
        again = self._round[2] + 1 if self._round[:2] == (mode, step) else 0
        self._round = (mode, step, again)
        first = trainer.accelerator.process_index * len(prompts)
        rendered: dict[str, tuple[tuple[Message, ...], tuple[int, ...]]] = {}
        starts = []
        for place, prompt in enumerate(prompts, start=first):
            name = str(prompt[-1].get("row"))
            if name not in self.rows:
                raise DataError(f"a prompt's last message names the row {name!r}, which is not there")
            if name not in rendered:
                messages = tuple({"role": one["role"], "content": one["content"]} for one in prompt)
                rendered[name] = messages, self.chat.prompt_ids(messages)
            seed = item_seed(self.seed, mode, step, again, place, name)
            starts.append(Start(self.rows[name], *rendered[name], seed))
        return starts

    def _for_trl(self, samples: Sequence[Sample], scored: bool) -> dict[str, Any]:
        out: dict[str, Any] = {
            "prompt_ids": [list(sample.prompt_ids) for sample in samples],
            "completion_ids": [list(sample.completion_ids) for sample in samples],
            "logprobs": [list(sample.log_probs) for sample in samples] if scored else None,
            "played": [sample.played for sample in samples],
        }
        if self.section.mode == "conversation":
            out["env_mask"] = [list(sample.env_mask) for sample in samples]
        return out
