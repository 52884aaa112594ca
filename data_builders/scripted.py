"""Turns a problem into a conversation without any model, from what holds without understanding the text.

Four kinds: *complete*, where the question holds everything and is answered at once; *underspecified*, where one needed
thing is left out and the assistant asks for it; *wrong_start* and *right_start*, where the user brings a result and the
assistant names the slip or confirms. Some go on with a reaction whose reply gives a reason.

Most problems that are asked about in one conversation are answered at once in another (a contrast pair), in the same
words. A result is brought along only for problems that know a wrong one, so that nothing but the result tells whether
it is right.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

from data_builders.acts import Phrase, acts, say
from data_builders.recipe import Conversations
from data_builders.recipe import ScriptedKind as Kind
from data_builders.tasks import Conversation, Gap, Slip, Step, Task
from probe.conversations import Message


def plan(task: Task, seed: int, settings: Conversations) -> list[Kind]:
    """Which conversations a problem gives, so that the shares hold over all conversations.

    A pair adds a complete conversation beside the underspecified one, so fewer are drawn complete. Where a problem
    has no material for a kind (nothing to withhold, no known slip), the share of that kind goes to the others in
    proportion, so over problems of which some have little, the rarer kinds stay under their shares.
    """
    rng = random.Random(f"plan:{seed}:{task.id}")
    possible = possible_kinds(task)
    weights = {kind: share for kind, share in settings.shares.items() if kind in possible}
    if "underspecified" in possible:
        weights["complete"] -= settings.paired
    if not any(weight > 1e-9 for weight in weights.values()):  # possible is only what the recipe leaves out
        return ["complete"]
    kind = rng.choices(list(weights), [max(0.0, weight) for weight in weights.values()])[0]
    if kind == "underspecified" and rng.random() < settings.contrast_pairs:
        return ["complete", "underspecified"] if rng.random() < 0.5 else ["underspecified", "complete"]
    return [kind]


def possible_kinds(task: Task) -> list[Kind]:
    """The kinds that a problem has the material for."""
    material: dict[Kind, bool] = {"complete": True, "underspecified": bool(task.gaps)}
    return [kind for kind in get_args(Kind) if material.get(kind, bool(task.slips))]


def converse(task: Task, kind: Kind, seed: int, settings: Conversations) -> Conversation:
    """One conversation of this kind, which must be possible; the same arguments always give the same text."""
    frame = random.Random(f"frame:{seed}:{task.id}")
    script = Script(task, random.Random(f"converse:{seed}:{kind}:{task.id}"), frame, frame.random() < settings.casual)
    _WRITERS[kind](script)
    if script.rng.random() < settings.reactions:
        react(script)
    return Conversation(
        id=f"{task.id}-{kind}",
        kind=kind,
        messages=tuple(script.messages),
        source=task.source,
        answer=task.answer,
        hidden=script.gap.value if script.gap else "",
        reveal_at=2 if script.gap else 0,
        wordings=tuple(script.wordings),
        task=task,
        gap=script.gap,
        doubts=(False,) * any(wording.startswith("doubt:") for wording in script.wordings),
    )


_OWN_FINAL = 0.4  # of generated problems: their own sentence around the answer
_SHOWS_WAY = 0.5  # of the results that a user brings along


@dataclass
class Script:
    """A conversation while it is being written. `frame` draws the words around the problem, alike for both of a pair."""

    task: Task
    rng: random.Random
    frame: random.Random
    casual: bool
    messages: list[Message] = field(default_factory=list)
    wordings: list[str] = field(default_factory=list)
    gap: Gap | None = None

    def turn(self, act: str, **slots: str | Phrase) -> None:
        """The next turn: the act in one of its wordings."""
        answer = in_sentence(self.task, self.task.answer)
        phrase = say(act, self.frame if not self.messages else self.rng, {"answer": answer, **slots}, self.casual)
        self.wordings += phrase.wordings
        self.messages.append({"role": acts()[act].speaker, "content": phrase.text})

    def open(self, question: str, beside: str) -> None:
        """The problem alone, or with another one on the same sheet."""
        texts = {"question": question.strip(), "beside": beside}
        act = self.frame.choice(("sheet_first", "sheet_second")) if beside else "open"
        self.turn(act, **texts)

    def solution(self) -> Phrase:
        """The worked solution with the boxed answer; a reference solution that has it word for word."""
        task = self.task
        if task.boxed_solution:
            return Phrase(task.boxed_solution)
        box = f"\\boxed{{{task.answer}}}"
        if task.template and self.rng.random() < _OWN_FINAL:
            final = Phrase(task.final.format(box=box), ("final:bare",))
        else:
            final = say("final", self.rng, {"box": box})
        return Phrase(f"{task.solution}\n{final.text}", final.wordings)

    def way(self, did: str) -> Phrase | str:
        """How the user says that a result came about; at times not at all."""
        return say("way", self.rng, {"did": did}) if did and self.rng.random() < _SHOWS_WAY else ""


def _complete(script: Script) -> None:
    script.open(script.task.question, script.task.lacking_beside)
    script.turn("solve", solution=script.solution())


def _underspecified(script: Script) -> None:
    gap = script.gap = script.rng.choice(script.task.gaps)
    slots = {"ask": gap.ask, "clause": gap.clause, "reveal": gap.reveal, "short": gap.short}
    script.open(gap.question, script.task.whole_beside)
    script.turn("ask", **slots)
    script.turn("reveal", **slots)
    script.turn("solve_revealed", solution=script.solution(), **slots)


def _wrong_start(script: Script) -> None:
    task, slip = script.task, script.rng.choice(script.task.slips)
    wrong = in_sentence(task, slip.answer)
    script.turn("start", question=task.question.strip(), result_of_user=wrong, way=script.way(_did(task, slip)))
    diagnosis = _diagnosis(script, slip)
    script.turn("correct_start", result_of_user=wrong, diagnosis=diagnosis, solution=script.solution())


def _right_start(script: Script) -> None:
    task = script.task
    right, last = in_sentence(task, task.answer), task.steps[-1]
    did = last.equation if last.op and not task.boxed_solution else ""
    script.turn("start", question=task.question.strip(), result_of_user=right, way=script.way(did))
    script.turn("confirm_start", result_of_user=right, solution=script.solution())


_WRITERS: dict[Kind, Callable[[Script], None]] = {
    "complete": _complete,
    "underspecified": _underspecified,
    "wrong_start": _wrong_start,
    "right_start": _right_start,
}


def _did(task: Task, slip: Slip) -> str:
    """What a user who made the slip has on paper; "" of a text solution, whose lines are not the user's."""
    step = task.steps[slip.at]
    return slip.did or (step.equation if step.op and not task.boxed_solution else "")


def _diagnosis(script: Script, slip: Slip) -> Phrase:
    """Names the slip: another operation, a wrong sum, a step that is missing, or a value on the way."""
    task, step = script.task, script.task.steps[slip.at]
    slots = {"result_of_user": in_sentence(task, slip.answer), "did": slip.did, "wrong": slip.did.partition(" =")[0]}
    if slip.quote:
        return say("diagnose_value", script.rng, {**slots, "value_of": slip.quote, "asked": f'"{task.asked}"'})
    if slip.did:
        act = "diagnose_sum" if slots["wrong"] == step.expression else "diagnose_operation"
        return say(act, script.rng, slots | _step_slots(step))
    following = task.steps[slip.at + 1].text
    return say("diagnose_early", script.rng, {**slots, **_step_slots(step), "following": following})


# --- What a user says after an answer, and the reply, which gives a reason: why an operation fits, a step undone, another
# number with everything computed again, or what is wrong with a result that the user names.


def react(script: Script) -> None:
    """One reaction and its reply; nothing where the problem has the material for none."""
    task, rng = script.task, script.rng
    slips = [] if any("start" in wording for wording in script.wordings[:1]) else task.slips
    steps = [step for step in task.steps if step.op]
    found: dict[str, list[Step]] = {
        "why": [step for step in steps if step.why],
        "check": [step for step in steps if step.undone and not task.boxed_solution],
    }
    possible = [name for name, about in found.items() if about]
    possible += ["what_if"] * bool(task.what_ifs) + ["doubt"] * bool(slips)
    if not possible:
        return
    name = rng.choice(possible)
    if name == "what_if":
        change = rng.choice(task.what_ifs)
        told = " ".join(step.text for step in change.steps)
        script.turn("what_if", condition=change.condition)
        script.turn("recompute", steps=told, new=change.answer)
    elif name == "doubt":
        slip = rng.choice(slips)
        wrong = in_sentence(task, slip.answer)
        script.turn("doubt", result_of_user=wrong, way=script.way(_did(task, slip)))
        script.turn("correct", result_of_user=wrong, diagnosis=_diagnosis(script, slip))
    else:
        slots = _step_slots(rng.choice(found[name]))
        script.turn(name, **slots)
        script.turn({"why": "because", "check": "checked"}[name], **slots)


def _step_slots(step: Step) -> dict[str, str]:
    """Everything a phrasing may say about a step that has an equation."""
    named = {name: getattr(step, name) for name in ("expression", "equation", "left", "result", "why", "undone")}
    return {**named, "Why": step.why[:1].upper() + step.why[1:]}


def in_sentence(task: Task, value: str) -> str:
    """An answer as it stands in a sentence: as a formula where it is LaTeX and no plain number."""
    plain = not task.boxed_solution or re.fullmatch(r"-?\d[\d,.]*", value) or "$" in value
    return value if plain else f"${value}$"
