"""What a build will take, found by rehearsal: conversations are played with canned replies of a usual length.

The flow is the real one, so calls and prompts are counted, not guessed; only how long replies are is assumed. In the
rehearsal nobody ends a conversation and every candidate differs, so the figures are an upper bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_builders.dialogue.conversation import Finished, converse
from data_builders.dialogue.plan import Plan
from data_builders.dialogue.pool import Pool
from data_builders.dialogue.settings import Dialogue, Price, Role, place_of
from data_builders.dialogue.speaker import Ask, Results, Said, Ticket
from data_builders.tasks import Task
from data_builders.tokens import estimated_tokens

# A chat reply explains more than a terse reference solution does.
_LONGER, _LEAST_WORDS = 1.3, 60
_USER = "hm ok, i do not see how you get from the second line to the next one. can you show me that part?"
_VERDICT = "The assistant takes up what the user says and asks for what it needs.\nVERDICT: 4"


@dataclass(frozen=True)
class Load:
    """What one role takes: replies, and tokens in and out."""

    calls: int
    input: int
    output: int


@dataclass(frozen=True)
class Estimate:
    """At most: replies and tokens by role, money, and seconds that the busiest server needs for its replies alone."""

    conversations: int
    loads: dict[Role, Load]
    cost: float
    seconds: float


def estimate(plans: Sequence[Plan], conversations: int, settings: Dialogue, seed: int) -> Estimate:
    """Of `conversations` conversations that are like `plans`, a sample of them."""
    counts: Counter[str] = Counter()
    for done in rehearse(plans, settings, seed):
        counts.update(done.calls)
    many = conversations / len(plans)
    loads = {
        role: Load(*(round(many * counts[f"{role}.{kind}"]) for kind in ("calls", "input", "output")))
        for role in settings.roles()
    }
    cost = sum(cost_of(given.price, loads[role].input, loads[role].output) for role, given in settings.roles().items())
    return Estimate(conversations, loads, cost, _seconds(loads, conversations, settings))


def rehearse(plans: Sequence[Plan], settings: Dialogue, seed: int) -> list[Finished]:
    """The conversations of `plans` with canned replies, in order."""
    speakers = {role: _Canned(plan_lengths(plans)) for role in settings.roles()}
    flows = ((number, converse(plan, settings, seed)) for number, plan in enumerate(plans))
    return [done for _, done in sorted(Pool[Finished](speakers, len(plans)).run(flows), key=lambda one: one[0])]


def plan_lengths(plans: Sequence[Plan]) -> dict[int, int]:
    """Words of a usual reply in each conversation."""
    return {number: words_of_reply(plan.task) for number, plan in enumerate(plans)}


def words_of_reply(task: Task) -> int:
    """Of a usual reply about this problem."""
    return max(_LEAST_WORDS, round(_LONGER * len((task.boxed_solution or task.solution).split())))


def cost_of(price: Price, given: float, made: float) -> float:
    """Money for so many tokens in and out."""
    return (given * price.input + made * price.output) / 1e6


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes"


def _seconds(loads: dict[Role, Load], conversations: int, settings: Dialogue) -> float:
    """Servers work at the same time, so the busiest one counts; but in each conversation its roles wait for another."""
    work: Counter[tuple[str, ...]] = Counter()
    slots: Counter[tuple[str, ...]] = Counter()
    chain = 0.0
    exchanges = settings.max_turns * (1 + min(settings.window, settings.max_turns - 1) * (settings.candidates > 1))
    for role, section in settings.roles().items():
        where = place_of(section.server) if section.server is not None else (section.model or "",)
        work[where] += math.ceil(loads[role].calls * section.latency_s)
        slots[where] += section.server.concurrency if section.server is not None else settings.together
        chain += section.latency_s * (settings.max_turns if role == "judge" else exchanges)
    busiest = max(work[where] / slots[where] for where in work)
    return max(busiest, chain * -(-conversations // settings.together))


class _Canned:
    """Speaks at once, with replies of the wanted length that are all different."""

    batched = False

    def __init__(self, words: dict[int, int]) -> None:
        self._words = words
        self._said = 0

    def begin(self, folder: Path | None, results: Results) -> None:
        self._results = results

    def submit(self, ticket: Ticket, ask: Ask) -> None:
        text = {"simulator": f"<message>{_USER}</message>", "judge": _VERDICT}.get(ask.role)
        if text is None:
            self._said += 1
            text = f"(a reply of usual length, number {self._said}) " + "word " * self._words[ticket[0]]
        tokens = min(estimated_tokens([{"content": text}]), ask.max_tokens)
        self._results.put((ticket, Said(text, estimated_tokens(ask.messages), tokens)))

    def work(self) -> None:
        raise NotImplementedError("replies come by themselves")

    def end(self) -> None:
        pass
