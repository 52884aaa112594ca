"""One conversation from its plan to its end: who is asked what, in which order, and what is made of the replies."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from data_builders.dialogue.prompts import Plan, assistant_prompt, judge_prompt, simulator_prompt
from data_builders.dialogue.roles import Ask, Flow, Said, together
from data_builders.dialogue.score import (
    Heard,
    Parts,
    accuracy,
    efficiency,
    from_verdict,
    interactivity_by_rule,
    mean_score,
    read_assistant,
    read_judge,
    read_user,
    score,
)
from data_builders.dialogue.settings import Dialogue, Role
from data_builders.text import estimated_tokens
from probe.conversations import Message
from probe.engines.base import item_seed

# --- The candidates of an assistant turn with what was simulated after them, and which of them goes on.


@dataclass(frozen=True)
class Sample:
    """One simulated continuation; `failure` says why a part, or all of it, is missing, `verdict` is the judge's reply."""

    messages: tuple[Message, ...]
    parts: Parts = Parts()
    score: float | None = None
    failure: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Candidate:
    """One reply that could be the assistant's turn; without samples where there was nothing to choose from."""

    text: str
    samples: tuple[Sample, ...] = ()
    failure: str = ""

    @property
    def score(self) -> float | None:
        return mean_score([sample.score for sample in self.samples])

    @property
    def parts(self) -> dict[str, float | None]:
        """The mean of each part over the samples that have it."""
        return {
            name: mean_score([getattr(sample.parts, name) for sample in self.samples])
            for name in ("accuracy", "interactivity", "efficiency")
        }


def best(candidates: Sequence[Candidate]) -> int | None:
    """The place of the candidate to go on with: the first of those with the highest score.

    Where no candidate was looked ahead the first usable one is taken; where all look-aheads failed there is none.
    """
    usable = [place for place, candidate in enumerate(candidates) if not candidate.failure]
    if not any(candidates[place].samples for place in usable):
        return usable[0] if usable else None
    scored = [(score, -place) for place in usable if (score := candidates[place].score) is not None]
    return -max(scored)[1] if scored else None


# A reply that slipped at temperature 0 would slip again.
_AGAIN_AT_LEAST = 0.5


@dataclass(frozen=True)
class Slip:
    """A reply that could not be used, and why."""

    role: str
    where: str
    reason: str
    text: str


@dataclass(frozen=True)
class Missed:
    """No usable reply after all tries; `reason` is what a rejected conversation is counted under."""

    reason: str


@dataclass(frozen=True)
class Turn:
    """The candidates of one assistant turn, made after `before` messages."""

    before: int
    candidates: tuple[Candidate, ...]
    chosen: int


@dataclass
class Finished:
    """A conversation at its end; `reason` says why it cannot be used, and `ended` who ended it ("user", "limit")."""

    plan: Plan
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    slips: list[Slip] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    """{"assistant.calls", "assistant.input", "assistant.output", ...}: replies and their tokens, by role."""
    ended: str = ""
    reason: str = ""


def converse(plan: Plan, settings: Dialogue, seed: int) -> Flow[Finished]:
    """The flow of one conversation; the same replies always make the same conversation."""
    return (yield from _Conversation(plan, settings, seed).play())


class _Conversation:
    def __init__(self, plan: Plan, settings: Dialogue, seed: int) -> None:
        self.plan = plan
        self.settings = settings
        self.seed = seed
        self.done = Finished(plan)

    def play(self) -> Flow[Finished]:
        done = self.done
        for turn in range(self.settings.max_turns):
            heard = yield from self._user_turn(done.messages, str(turn), turn)
            if isinstance(heard, Heard) and heard.ended:
                done.ended = "user"
                return done
            if isinstance(heard, Heard):
                done.messages.append({"role": "user", "content": heard.text})
                heard = yield from self._assistant_turn(str(turn), turn)
            if isinstance(heard, Missed):
                done.reason = heard.reason
                return done
            done.messages.append({"role": "assistant", "content": heard.text})
        done.ended = "limit"
        return done

    def _user_turn(self, messages: Sequence[Message], where: str, turn: int) -> Flow[Heard | Missed]:
        if not messages and self.plan.stated:
            return Heard(self.plan.task.question)
        prompt = simulator_prompt(self.plan, messages, last=turn == self.settings.max_turns - 1)
        read = functools.partial(read_user, plan=self.plan, messages=tuple(messages))
        return (yield from self._reply("simulator", prompt, f"{where}.user", read))

    def _assistant_turn(self, where: str, turn: int) -> Flow[Heard | Missed]:
        """The best of several candidates."""
        messages, wanted = self.done.messages, self.settings.candidates
        prompt = assistant_prompt(messages)
        heard = yield from together(
            [self._reply("assistant", prompt, f"{where}.{number}", read_assistant) for number in range(wanted)]
        )
        usable = {number: one.text for number, one in enumerate(heard) if isinstance(one, Heard)}
        # Equal texts have one future.
        first = {text: number for number, text in reversed(usable.items())}
        looks: dict[str, tuple[Sample, ...]] = {}
        if len(first) > 1:
            looks = yield from self._look_ahead(first, where, turn)
        candidates = tuple(
            Candidate(usable[number], looks.get(usable[number], ()))
            if number in usable
            else Candidate("", failure=one.reason if isinstance(one, Missed) else "")
            for number, one in enumerate(heard)
        )
        chosen = best(candidates)
        if chosen is None:
            return Missed(next((one.failure for one in candidates if one.failure and not usable), "unscored"))
        self.done.turns.append(Turn(len(messages), candidates, chosen))
        return Heard(candidates[chosen].text)

    def _look_ahead(self, first: dict[str, int], where: str, turn: int) -> Flow[dict[str, tuple[Sample, ...]]]:
        window = min(self.settings.window, self.settings.max_turns - turn - 1)
        times = self.settings.samples if window else 1  # nothing is left to chance where nobody speaks
        texts = sorted(first, key=lambda text: first[text])
        samples = yield from together(
            [
                self._sample(text, f"{where}.{first[text]}.{time}", turn, window)
                for text in texts
                for time in range(times)
            ]
        )
        return {text: tuple(samples[times * place : times * (place + 1)]) for place, text in enumerate(texts)}

    def _sample(self, text: str, where: str, turn: int, window: int) -> Flow[Sample]:
        """One simulated continuation after a candidate, and its parts."""
        before = [*self.done.messages, {"role": "assistant", "content": text}]
        messages = list(before)
        for step in range(1, window + 1):
            heard = yield from self._user_turn(messages, f"{where}.{step}", turn + step)
            if isinstance(heard, Heard) and heard.ended:
                break
            if isinstance(heard, Heard):
                messages.append({"role": "user", "content": heard.text})
                prompt = assistant_prompt(messages)
                heard = yield from self._reply("assistant", prompt, f"{where}.{step}", read_assistant)
            if isinstance(heard, Missed):
                return Sample(tuple(messages[len(before) :]), failure=heard.reason)
            messages.append({"role": "assistant", "content": heard.text})
        return (yield from self._scored(messages, len(before), where))

    def _scored(self, messages: list[Message], start: int, where: str) -> Flow[Sample]:
        weights, failure, verdict = self.settings.weights, "", ""
        interactivity: float | None = None
        if weights.interactivity and self.settings.judge is not None:
            heard = yield from self._reply("judge", judge_prompt(messages), f"{where}.judge", read_judge)
            if isinstance(heard, Heard) and heard.score is not None:
                interactivity, verdict = from_verdict(heard.score), heard.text
            elif isinstance(heard, Missed):
                failure = heard.reason
        elif weights.interactivity:
            interactivity = interactivity_by_rule(messages)
        tokens = estimated_tokens([one for one in messages if one["role"] == "assistant"])
        parts = Parts(
            accuracy=accuracy(messages, self.plan.task.answer),
            interactivity=interactivity,
            efficiency=efficiency(tokens, self.settings.efficient_tokens),
        )
        return Sample(tuple(messages[start:]), parts, score(parts, weights), failure, verdict)

    def _reply(
        self, role: Role, messages: tuple[Message, ...], where: str, read: Callable[[Said], Heard]
    ) -> Flow[Heard | Missed]:
        """A reply that can be used, asked for again a few times where one cannot."""
        given = self.settings.roles()[role]
        slip = ""
        for attempt in range(self.settings.tries):
            seed = item_seed(self.seed, self.plan.id, role, where, attempt)
            temperature = max(given.temperature, _AGAIN_AT_LEAST) if attempt else given.temperature
            (said,) = yield [Ask(role, messages, seed, temperature, given.max_tokens)]
            self.done.calls.update(
                {f"{role}.calls": 1, f"{role}.input": said.prompt_tokens, f"{role}.output": said.tokens}
            )
            if said.failure:  # its engine has tried already
                return Missed(f"{role}_{said.failure}")
            heard = read(said)
            if not heard.slip:
                return heard
            slip = heard.slip
            self.done.slips.append(Slip(role, where, slip, heard.text))
        return Missed(f"{role}_{slip}")
