"""Turns a problem into a conversation without any model: the offline default.

Eight kinds. Answered at once: *complete*, where the question holds everything, and *wrong_start*, where the user opens
with a wrong result and the assistant names the slip. In parts, because the user wants it so: *hint* and *guided*.
Asked about first: *underspecified* (one needed thing is withheld), *vague* (the user opens with a topic and a
feeling), *conflict* (a given is stated twice with two values), *unsolvable* (the user does not have what is missing;
the assistant says what the answer depends on and does not guess; then it is found). Most go on after the answer with a
reaction that cites a number or a formula of it, and a reply.

A problem that is asked about in one conversation is often answered at once in another (a contrast pair), in the same
words, so that the only thing that tells the two apart is whether the given is there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from data_builders.kinds_missing import conflict, contradictable, underspecified, unsolvable, vague
from data_builders.kinds_whole import can_be_hinted, can_be_split, complete, guided, hint, wrong_start
from data_builders.script import Script
from data_builders.tasks import Gap, Task
from probe.errors import RecipeError
from probe.recipe import section
from probe.sets import Message

Kind = Literal["complete", "underspecified", "wrong_start", "hint", "vague", "conflict", "unsolvable", "guided"]

_WRITERS: dict[Kind, Callable[[Script], None]] = {
    "complete": complete,
    "underspecified": underspecified,
    "wrong_start": wrong_start,
    "hint": hint,
    "vague": vague,
    "conflict": conflict,
    "unsolvable": unsolvable,
    "guided": guided,
}


@section
class Conversations:
    """Shares of the kinds (they add up to 1), and how a conversation goes on. All are shares from 0 to 1."""

    complete: float = 0.5
    underspecified: float = 0.22
    wrong_start: float = 0.07
    hint: float = 0.05
    vague: float = 0.04
    conflict: float = 0.03
    unsolvable: float = 0.04
    guided: float = 0.05
    contrast_pairs: float = 0.7  # of the underspecified: the same problem also complete and answered at once
    reactions: float = 0.7  # go on after the answer
    second_reaction: float = 0.15  # of those: go on once more
    first_step: float = 0.25  # of the revealed that can be split: first step, check, then the rest
    misunderstood: float = 0.15  # of the questions for what is missing: the user does not see at first what is meant
    casual: float = 0.3  # conversations whose user types without capital, final dot and, at times, apostrophes

    def check(self) -> None:
        """Raises RecipeError where the shares cannot be met."""
        total = sum(self.shares.values())
        if abs(total - 1) > 1e-6:
            raise RecipeError(f"conversations: the {len(self.shares)} kinds add up to {total:g}, wanted 1")
        if not all(0 <= value <= 1 for value in vars(self).values() if isinstance(value, (int, float))):
            raise RecipeError("conversations: a share is outside 0 to 1")
        if self.complete < self.paired - 1e-9:
            raise RecipeError(
                f"conversations.complete: given {self.complete:g}, wanted at least contrast_pairs * underspecified "
                f"= {self.paired:g}, since every pair holds one complete conversation"
            )

    @property
    def shares(self) -> dict[Kind, float]:
        return {kind: getattr(self, kind) for kind in get_args(Kind)}

    @property
    def paired(self) -> float:
        """Share of all conversations that are the underspecified half of a pair."""
        return self.contrast_pairs * self.underspecified

    @property
    def per_problem(self) -> float:
        """Conversations that a problem gives on average: one, or two where it becomes a contrast pair. Fewer where
        some problems have nothing to withhold."""
        return 1 / (1 - self.paired)


@dataclass(frozen=True)
class Conversation:
    """A finished conversation. `hidden` may not stand in a turn before message `reveal_at`.

    Attributes:
        wordings: of each phrased turn and of the phrases inside it "act:opener.core.closer", or "act:bare" where it
            is nothing but the problem's own text.
        gap: what was withheld, or stated twice (then nothing is hidden).
    """

    id: str
    kind: str
    messages: tuple[Message, ...]
    source: str
    answer: str
    hidden: str = ""
    reveal_at: int = 0
    wordings: tuple[str, ...] = ()
    task: Task | None = None
    gap: Gap | None = None


def carries(task: Task) -> dict[Kind, bool]:
    """Which kinds a problem has the material for."""
    return {
        "complete": True,
        "underspecified": bool(task.gaps),
        "wrong_start": bool(task.slips),
        "hint": can_be_hinted(task),
        "vague": True,
        "conflict": bool(contradictable(task)),
        "unsolvable": bool(task.gaps),
        "guided": can_be_split(task),
    }


def plan(task: Task, seed: int, settings: Conversations) -> list[Kind]:
    """Which conversations a problem gives, so that the shares hold over all conversations.

    A pair adds a complete conversation beside the underspecified one, so fewer are drawn complete. Where a problem
    cannot carry a kind (nothing to withhold, no known slip, no first part), the share of that kind goes to the kinds
    it does carry, in proportion to their shares: a problem without gaps is complete more often, and also more often a
    hint, a wrong start or guided. So over problems of which some carry little, the rarer kinds stay under their shares.
    """
    rng = random.Random(f"plan:{seed}:{task.id}")
    carried = carries(task)
    weights = {kind: share for kind, share in settings.shares.items() if carried[kind]}
    if carried["underspecified"]:
        weights["complete"] -= settings.paired
    if not any(weight > 1e-9 for weight in weights.values()):  # it carries only what the recipe leaves out
        return ["complete"]
    kind = rng.choices(list(weights), [max(0.0, weight) for weight in weights.values()])[0]
    if kind == "underspecified" and rng.random() < settings.contrast_pairs:
        return ["complete", "underspecified"] if rng.random() < 0.5 else ["underspecified", "complete"]
    return [kind]


def converse(task: Task, kind: Kind, seed: int, settings: Conversations) -> Conversation:
    """One conversation of this kind, which the task must carry; the same arguments always give the same text."""
    frame = random.Random(f"frame:{seed}:{task.id}")
    rng = random.Random(f"converse:{seed}:{kind}:{task.id}")
    script = Script(task, settings, rng, frame, casual=frame.random() < settings.casual)
    _WRITERS[kind](script)
    script.go_on()
    return Conversation(
        id=f"{task.id}-{kind}",
        kind=kind,
        messages=tuple(script.messages),
        source=task.source,
        answer=task.answer,
        hidden=script.hidden,
        reveal_at=script.reveal_at,
        wordings=tuple(script.wordings),
        task=task,
        gap=script.gap,
    )
