"""Turns a problem into a conversation without any model: the offline default.

Four kinds. *complete*: the question holds everything and is answered at once, in full, without a closing
question. *underspecified*: one given is withheld, the assistant asks for exactly that, the user reveals it.
*wrong_start*: the user opens with a wrong result and the assistant names the slip. *hint*: the user wants only
a hint and then tries. Most go on after the answer with a reaction that cites a number of it, and a reply.

A problem that is asked about in one conversation is often answered at once in another (a contrast pair), so
that the only thing that tells the two apart is whether the given is there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from data_builders.acts import FINALS, say
from data_builders.reactions import diagnose, react, step_slots
from data_builders.starter_words import lower_first
from data_builders.tasks import Gap, Slip, Step, Task
from probe.errors import RecipeError
from probe.recipe import section
from probe.sets import Message

Kind = Literal["complete", "underspecified", "wrong_start", "hint"]


@section
class Conversations:
    """Shares of the kinds (they add up to 1), and how a conversation goes on. All are shares from 0 to 1."""

    complete: float = 0.5
    underspecified: float = 0.34
    wrong_start: float = 0.08
    hint: float = 0.08
    contrast_pairs: float = 0.7  # of the underspecified: the same problem also complete and answered at once
    reactions: float = 0.7  # go on after the answer
    second_reaction: float = 0.15  # of those: go on once more
    first_step: float = 0.25  # of the revealed with two steps or more: first step, check, then the rest
    casual: float = 0.3  # user turns typed without capital and final dot

    def check(self) -> None:
        """Raises RecipeError where the shares cannot be met."""
        total = self.complete + self.underspecified + self.wrong_start + self.hint
        if abs(total - 1) > 1e-6:
            raise RecipeError(f"conversations: the four kinds add up to {total:g}, wanted 1")
        if not all(0 <= value <= 1 for value in vars(self).values() if isinstance(value, (int, float))):
            raise RecipeError("conversations: a share is outside 0 to 1")
        if self.complete < self.contrast_pairs * self.underspecified - 1e-9:
            raise RecipeError(
                f"conversations.complete: given {self.complete:g}, wanted at least contrast_pairs * underspecified "
                f"= {self.contrast_pairs * self.underspecified:g}, since every pair holds one complete conversation"
            )

    @property
    def per_problem(self) -> float:
        """Conversations that a problem gives on average: one, or two where it becomes a contrast pair."""
        return 1 / (1 - self.contrast_pairs * self.underspecified)


@dataclass(frozen=True)
class Conversation:
    """A finished conversation. `hidden` may not stand in an assistant turn before message `reveal_at`."""

    id: str
    kind: str
    messages: tuple[Message, ...]
    source: str
    answer: str
    hidden: str = ""
    reveal_at: int = 0
    wordings: tuple[str, ...] = ()


def plan(task: Task, seed: int, settings: Conversations) -> list[Kind]:
    """Which conversations a problem gives, so that the shares hold over all conversations.

    A pair adds a complete conversation beside the underspecified one, so fewer are drawn complete. A kind
    that the task cannot carry (nothing to withhold, no known slip, no reason for a hint) becomes complete.
    """
    rng = random.Random(f"plan:{seed}:{task.id}")
    each = settings.per_problem
    paired = settings.contrast_pairs * settings.underspecified
    weights: dict[Kind, float] = {
        "complete": (settings.complete - paired) * each,
        "underspecified": settings.underspecified * each,
        "wrong_start": settings.wrong_start * each,
        "hint": settings.hint * each,
    }
    kind = rng.choices(list(weights), list(weights.values()))[0]
    carried = {
        "complete": True,
        "underspecified": bool(task.gaps),
        "wrong_start": bool(task.slips),
        "hint": bool(task.steps and task.steps[0].why),
    }
    if not carried[kind]:
        return ["complete"]
    if kind == "underspecified" and rng.random() < settings.contrast_pairs:
        return ["complete", "underspecified"] if rng.random() < 0.5 else ["underspecified", "complete"]
    return [kind]


def converse(task: Task, kind: Kind, seed: int, settings: Conversations) -> Conversation:
    """One conversation of this kind; the same arguments always give the same text."""
    rng = random.Random(f"converse:{seed}:{kind}:{task.id}")
    script = _Script(task, settings, rng, casual=rng.random() < settings.casual)
    {
        "complete": _complete,
        "underspecified": _underspecified,
        "wrong_start": _wrong_start,
        "hint": _hint,
    }[kind](script)
    _go_on(script)
    return Conversation(
        id=f"{task.id}-{kind}",
        kind=kind,
        messages=tuple(script.messages),
        source=task.source,
        answer=task.answer,
        hidden=script.hidden,
        reveal_at=script.reveal_at,
        wordings=tuple(script.wordings),
    )


@dataclass
class _Script:
    task: Task
    settings: Conversations
    rng: random.Random
    casual: bool
    messages: list[Message] = field(default_factory=list)
    wordings: list[str] = field(default_factory=list)
    hidden: str = ""
    reveal_at: int = 0
    # Reactions that would say again what the conversation already holds.
    used: set[str] = field(default_factory=set)

    def turn(self, act: str, **slots: str) -> None:
        said = say(act, self.rng, {"answer": self.task.answer, **slots}, self.casual)
        self.wordings.append(said.wording)
        self.add(said.text)

    def add(self, text: str) -> None:
        self.messages.append({"role": ("user", "assistant")[len(self.messages) % 2], "content": text})

    def final(self) -> str:
        """The sentence with the boxed answer; empty where the reference solution already boxes it."""
        box = f"\\boxed{{{self.task.answer}}}"
        if self.task.boxed_solution:
            return ""
        sentence = self.task.final if self.rng.random() < 0.4 else self.rng.choice(FINALS)
        return sentence.format(box=box)

    def steps(self, steps: Sequence[Step]) -> str:
        if steps == self.task.steps and self.task.boxed_solution:
            return self.task.boxed_solution
        # Lines of a text solution may lack their full stop, so only our own steps are set in one line.
        in_lines = self.rng.random() < 0.75 or not steps[0].why
        return ("\n" if in_lines else " ").join(step.text for step in steps)

    def rest(self, after: int) -> str:
        return "".join(step.text + "\n" for step in self.task.steps[after:])


def _complete(script: _Script) -> None:
    script.add(script.task.question)
    script.turn("solve", steps=script.steps(script.task.steps), final=script.final())


def _underspecified(script: _Script) -> None:
    task, rng = script.task, script.rng
    gap: Gap = rng.choice(task.gaps)
    script.hidden = gap.value
    script.add(gap.question)
    script.turn("ask", ask=gap.ask, clause=gap.clause)
    script.reveal_at = len(script.messages)
    script.turn("reveal", reveal=gap.reveal, short=gap.short)
    first = task.steps[0]
    if len(task.steps) > 1 and first.op and not task.boxed_solution and rng.random() < script.settings.first_step:
        script.turn("first_step", step=first.text, step_small=lower_first(first.text))
        script.turn("go_on", result=first.result, expression=first.expression)
        script.turn("finish", steps=script.steps(task.steps[1:]), final=script.final(), result=first.result)
    else:
        script.turn("solve_revealed", steps=script.steps(task.steps), final=script.final(), short=gap.short)


def _wrong_start(script: _Script) -> None:
    task = script.task
    slip = script.rng.choice(task.slips)
    script.used |= {"own_wrong", "doubt"}
    way = _way(script, slip)
    script.turn("wrong_start", question=task.question, slip=slip.answer, way=way)
    script.turn(
        "correct_start",
        slip=slip.answer,
        diagnosis=diagnose(task, slip, script.rng, bool(way)),
        steps=script.steps(task.steps),
        final=script.final(),
    )


def _hint(script: _Script) -> None:
    task, rng = script.task, script.rng
    first = task.steps[0]
    script.turn("ask_hint", question=task.question)
    script.turn("hint", **step_slots(first))
    wrong = [slip for slip in task.slips if slip.at == 0 and slip.did]
    if wrong and rng.random() < 0.3:
        did = rng.choice(wrong).did
        script.used |= {"own_wrong", "doubt"}
        script.turn("attempt", tried=did, tried_result=did.rpartition("= ")[2])
        script.turn("redirect", **step_slots(first), tried=did, rest=script.rest(1), final=script.final())
    else:
        script.turn("attempt", tried=first.equation, tried_result=first.result)
        script.turn("confirm", **step_slots(first), rest=script.rest(1), final=script.final())


def _go_on(script: _Script) -> None:
    if script.rng.random() >= script.settings.reactions:
        return
    for _ in range(2 if script.rng.random() < script.settings.second_reaction else 1):
        exchange = react(script.task, script.rng, script.casual, script.used)
        for said in exchange:
            script.wordings.append(said.wording)
            script.add(said.text)


def _way(script: _Script, slip: Slip) -> str:
    """How the user says the wrong result came about; at times not at all."""
    done = slip.did or (script.task.steps[slip.at].equation if script.task.steps[slip.at].op else "")
    return script.rng.choice((f"I did {done}.", f"Because {done}.", "", "")) if done else ""
