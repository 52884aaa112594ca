"""What a user says after an answer, and the reply: grounded in a number, a formula or a line of that answer.

Each reaction returns the two turns, or nothing where the task does not carry it: a what-if needs numbers that can be
computed anew, a doubt needs a known wrong way, a check needs an equation that can be undone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from data_builders.acts import Said, say
from data_builders.derive.values import by_itself
from data_builders.slots import diagnose, quotable, shown, step_slots, way_of
from data_builders.tasks import VERBS, Step, Task

Exchange = list[Said]
_LINE = 400


def react(task: Task, rng: random.Random, casual: bool, used: set[str]) -> Exchange:
    """One reaction not in `used` and its reply, as two turns; empty where none is possible."""
    names = [name for name in _REACTIONS if name not in used]
    # A weighted order without putting back (Efraimidis and Spirakis 2006): likely reactions come first.
    names.sort(key=lambda name: rng.random() ** (1 / _WEIGHTS.get(name, 1.0)), reverse=True)
    for name in names:
        exchange = _REACTIONS[name](task, rng, casual)
        if exchange:
            used.update(_ENDS.get(name, {name}))
            return exchange
    return []


def _why(task: Task, rng: random.Random, casual: bool) -> Exchange:
    steps = [step for step in task.steps if step.why]
    if not steps:
        return []
    slots = step_slots(rng.choice(steps))
    return [say("why", rng, slots, casual), say("because", rng, slots)]


def _doubt(task: Task, rng: random.Random, casual: bool) -> Exchange:
    slips = [slip for slip in task.slips if slip.did]
    if not slips:
        return []
    slip = rng.choice(slips)
    slots = step_slots(task.steps[slip.at])
    wrong = slip.did.partition(" =")[0]
    slots |= {"wrong": wrong, "wrong_verb": VERBS[wrong.split()[1]], "answer": task.answer}
    return [say("doubt", rng, slots, casual), say("settle", rng, slots)]


def _own_wrong(task: Task, rng: random.Random, casual: bool) -> Exchange:
    if not task.slips:
        return []
    slip = rng.choice(task.slips)
    way = way_of(task, slip, rng, casual)
    slots = {"slip": shown(task, slip.answer), "answer": shown(task, task.answer)}
    diagnosis = diagnose(task, slip, rng, bool(way))
    return [
        say("own_wrong", rng, {**slots, "way": way}, casual),
        say("correct", rng, {**slots, "diagnosis": diagnosis}),
    ]


def _what_if(task: Task, rng: random.Random, casual: bool) -> Exchange:
    if not task.what_ifs:
        return []
    change = rng.choice(task.what_ifs)
    steps = " ".join(step.text for step in change.steps)
    slots = {"condition": change.condition, "steps": steps, "new": change.answer, "answer": task.answer}
    return [say("what_if", rng, slots, casual), say("recompute", rng, slots)]


def _check(task: Task, rng: random.Random, casual: bool) -> Exchange:
    steps = [step for step in task.steps if step.check]
    if not steps:
        return []
    slots = {**step_slots(rng.choice(steps)), "answer": task.answer}
    return [say("check", rng, slots, casual), say("checked", rng, slots)]


def _source(task: Task, rng: random.Random, casual: bool) -> Exchange:
    """Why an operation, answered with the sentence of the problem that states its number."""
    found = [(step, quote) for step in task.steps if step.op and not step.why for quote in _stated(task, step)]
    if not found:
        return []
    step, quote = rng.choice(found)
    slots = {**step_slots(step), "quote": quote}
    return [say("why", rng, slots, casual), say("source", rng, slots)]


def _stated(task: Task, step: Step) -> list[str]:
    """The sentence of the problem with one of the step's numbers, if that number stands in one place only."""
    sentences = re.split(r"(?<=[.!?])\s+", task.question)
    for number in (step.left, step.right):
        holding = [text for text in sentences if _times(number, text)]
        if _times(number, task.question) == 1 and not holding[0].endswith("?"):
            return holding
    return []


def _where(task: Task, rng: random.Random, casual: bool) -> Exchange:
    """Where a given went: a number that the problem states once, and one step computes with."""
    found = [
        (at, step, number)
        for at, step in enumerate(task.steps)
        for number in {step.left, step.right}
        if step.op
        and _times(number, task.question) == 1
        and sum(number in (other.left, other.right, other.result) for other in task.steps) == 1
    ]
    if not found or not all(step.op for step in task.steps) or task.boxed_solution:
        return []
    at, step, number = rng.choice(sorted(found, key=lambda one: (one[0], one[2])))
    slots = {**step_slots(step), "number": number, "n": str(at + 1)}
    return [say("where", rng, slots, casual), say("used_at", rng, slots)]


def _times(number: str, text: str) -> int:
    """How often a number stands in a text by itself."""
    return len(re.findall(by_itself(number), text))


def _trace(task: Task, rng: random.Random, casual: bool) -> Exchange:
    """A formula of a text solution, answered with the line it stands in and the one before."""
    pieces = [
        piece
        for piece in task.pieces
        if quotable(piece.formula) and max(len(piece.before), len(piece.line)) < _LINE
        if "\\boxed" not in piece.before + piece.line  # the answer is boxed once, where it is found
    ]
    if not pieces:
        return []
    piece = rng.choice(pieces)
    slots = {"formula": piece.formula, "before": piece.before, "line": piece.line}
    return [say("trace", rng, slots, casual), say("traced" if piece.before else "traced_line", rng, slots)]


def _shorter(task: Task, rng: random.Random, casual: bool) -> Exchange:
    """The bare calculation: the equations of the steps, or the formulas of a text solution in their order."""
    lines = [step.equation for step in task.steps if step.op]
    if task.boxed_solution:
        lines = [piece.formula for piece in task.pieces if quotable(piece.formula)]
    elif len(lines) < len(task.steps):
        return []
    if not 2 <= len(lines) <= 5:
        return []
    slots = {"lines": ", then ".join(lines), "answer": shown(task, task.answer)}
    return [say("shorter", rng, slots, casual), say("short", rng, slots)]


def _restate(task: Task, rng: random.Random, casual: bool) -> Exchange:
    slots = {"answer": shown(task, task.answer)}
    return [say("restate", rng, slots, casual), say("yes", rng, slots)]


def _thanks(task: Task, rng: random.Random, casual: bool) -> Exchange:
    return [say("thanks", rng, {}, casual), say("welcome", rng, {})]


# What a reaction rules out after it: a what-if changes the numbers; a doubt and a wrong result say the same; nobody
# goes on after a goodbye.
_ENDS: dict[str, set[str]] = {
    "what_if": {"why", "doubt", "own_wrong", "what_if", "check", "source", "trace", "where", "shorter", "restate"},
    "doubt": {"doubt", "own_wrong"},
    "own_wrong": {"doubt", "own_wrong"},
    "why": {"why", "source"},
    "source": {"why", "source"},
}

_REACTIONS: dict[str, Callable[[Task, random.Random, bool], Exchange]] = {
    "why": _why,
    "doubt": _doubt,
    "own_wrong": _own_wrong,
    "what_if": _what_if,
    "check": _check,
    "source": _source,
    "where": _where,
    "trace": _trace,
    "shorter": _shorter,
    "restate": _restate,
    "thanks": _thanks,
}
_ENDS["thanks"] = set(_REACTIONS)
# Every task carries a sign-off, few carry the rest; without weights the sign-offs would crowd out what cites.
_WEIGHTS = {"source": 6.0, "check": 1.5, "trace": 2.0, "shorter": 0.7, "restate": 0.4, "thanks": 0.4}
