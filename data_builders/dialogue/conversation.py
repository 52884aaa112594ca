"""One conversation from its plan to its end: who is asked what, in which order, and what is made of the replies."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from data_builders.dialogue.prompts import Plan, assistant_prompt, judge_prompt, simulator_prompt
from data_builders.dialogue.roles import Answer, RoleModel
from data_builders.dialogue.score import (
    Parsed,
    Parts,
    Reply,
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


@dataclass(frozen=True)
class Turn:
    """The candidates of one assistant turn, made after `before` messages."""

    before: int
    candidates: tuple[Candidate, ...]
    chosen: int


@dataclass(frozen=True)
class Unusable:
    """A reply that could not be used, and why. `where` counts turn, candidate, sample and step of the look-ahead."""

    role: str
    where: str
    reason: str
    text: str


@dataclass
class Finished:
    """A conversation at its end; `reason` says why it cannot be used, and `ended` who ended it ("user", "limit").

    Attributes:
        calls: {"assistant.calls", "assistant.input", "assistant.output", ...}: replies and their tokens, by role.
    """

    plan: Plan
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    unusable: list[Unusable] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    ended: str = ""
    reason: str = ""


async def converse(plan: Plan, settings: Dialogue, roles: Mapping[Role, RoleModel], seed: int) -> Finished:
    """Plays the conversation of `plan`; the same replies always make the same conversation.

    Raises:
        EngineError: a model cannot be asked at all. What fails once is a `reason`, or costs only its candidate.
    """
    done = Finished(plan)

    async def ask(role: Role, prompt: tuple[Message, ...], where: str, read: Callable[[Reply], Parsed]) -> Answer:
        """A usable reply or none; every seed follows from the place in the conversation."""
        answer = await roles[role].ask(
            prompt, read, lambda attempt: item_seed(seed, plan.id, role, where, attempt), settings.tries
        )
        done.calls.update(answer.calls)
        done.unusable += [Unusable(role, where, one.unusable, one.text) for one in answer.unusable]
        return answer

    async def user_speaks(messages: Sequence[Message], where: str, turn: int) -> Answer:
        if not messages and plan.stated:
            return Answer(Parsed(plan.task.question))
        prompt = simulator_prompt(plan, messages, last=turn == settings.max_turns - 1)
        read = functools.partial(read_user, user=plan, messages=tuple(messages))
        return await ask("simulator", prompt, f"{where}.user", read)

    async def look_ahead(text: str, where: str, turn: int, window: int) -> Sample:
        """One simulated continuation after a candidate, and what it is worth."""
        messages: list[Message] = [*done.messages, {"role": "assistant", "content": text}]
        start = len(messages)
        for step in range(1, window + 1):
            answer = await user_speaks(messages, f"{where}.{step}", turn + step)
            if answer.parsed is not None and answer.parsed.ended:
                break
            if answer.parsed is not None:
                messages.append({"role": "user", "content": answer.parsed.text})
                answer = await ask("assistant", assistant_prompt(messages), f"{where}.{step}", read_assistant)
            if answer.parsed is None:
                return Sample(tuple(messages[start:]), failure=answer.missing)
            messages.append({"role": "assistant", "content": answer.parsed.text})

        interactivity, failure, verdict = None, "", ""
        if settings.weights.interactivity and settings.judge is not None:
            answer = await ask("judge", judge_prompt(messages), f"{where}.judge", read_judge)
            if answer.parsed is not None and answer.parsed.verdict is not None:
                interactivity, verdict = from_verdict(answer.parsed.verdict), answer.parsed.text
            failure = answer.missing if answer.parsed is None else ""
        elif settings.weights.interactivity:
            interactivity = interactivity_by_rule(messages)
        tokens = estimated_tokens([one for one in messages if one["role"] == "assistant"])
        parts = Parts(
            accuracy(messages, plan.task.answer), interactivity, efficiency(tokens, settings.efficient_tokens)
        )
        return Sample(tuple(messages[start:]), parts, score(parts, settings.weights), failure, verdict)

    for turn in range(settings.max_turns):
        # The user opens, or answers what was said last, or ends the conversation.
        answer = await user_speaks(done.messages, str(turn), turn)
        if answer.parsed is None:
            done.reason = answer.missing
            break
        if answer.parsed.ended:
            done.ended = "user"
            break
        done.messages.append({"role": "user", "content": answer.parsed.text})

        # Several replies of the assistant to choose from.
        prompt = assistant_prompt(done.messages)
        answers = await asyncio.gather(
            *(ask("assistant", prompt, f"{turn}.{number}", read_assistant) for number in range(settings.candidates))
        )
        texts = [answer.parsed.text if answer.parsed is not None else None for answer in answers]

        # Where they differ, each is played on from, `samples` times. Equal texts have one future.
        first = {text: texts.index(text) for text in texts if text is not None}
        samples: dict[str, tuple[Sample, ...]] = {}
        if len(first) > 1:
            window = min(settings.window, settings.max_turns - turn - 1)
            times = settings.samples if window else 1  # nothing is left to chance where nobody speaks
            made = await asyncio.gather(
                *(
                    look_ahead(text, f"{turn}.{number}.{time}", turn, window)
                    for text, number in first.items()
                    for time in range(times)
                )
            )
            samples = {text: tuple(made[times * place : times * (place + 1)]) for place, text in enumerate(first)}

        # The best one goes on.
        candidates = tuple(
            Candidate("", failure=answer.missing) if text is None else Candidate(text, samples.get(text, ()))
            for text, answer in zip(texts, answers, strict=True)
        )
        chosen = best(candidates)
        if chosen is None:
            done.reason = "unscored" if first else answers[0].missing
            break
        done.turns.append(Turn(len(done.messages), candidates, chosen))
        done.messages.append({"role": "assistant", "content": candidates[chosen].text})
    else:
        done.ended = "limit"
    # In the order of their places, whichever came first.
    done.unusable.sort(key=lambda one: [int(part) if part.isdecimal() else -1 for part in one.where.split(".")])
    return done
