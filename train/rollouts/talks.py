"""Conversations under way, and the two halves of an exchange: every user speaks, then every assistant does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from data_builders.rl import RlRow
from probe.chat import Chat
from probe.engines.base import Completion, Request
from probe.sets import Message
from train.played import Played
from train.rollouts.policy import Policy
from train.rollouts.simulators import Simulator

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
