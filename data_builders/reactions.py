"""What a user says after an answer, and the reply: grounded in a number or a line of that answer.

Each reaction returns the two turns, or nothing where the task does not carry it: a what-if needs numbers that
can be computed anew, a doubt needs a known wrong way, a check needs an equation that can be undone.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable

from data_builders.acts import Said, say
from data_builders.tasks import PASTS, VERBS, Slip, Step, Task

Exchange = list[Said]
_PIECE = re.compile(r"\$[^$\n]{3,40}=[^$\n]{1,30}\$")


def react(task: Task, rng: random.Random, casual: bool, used: set[str]) -> Exchange:
    """One reaction not in `used` and its reply, as two turns; empty where none is possible."""
    names = [name for name in _REACTIONS if name not in used]
    rng.shuffle(names)
    for name in names:
        exchange = _REACTIONS[name](task, rng, casual)
        if exchange:
            used.update(_ENDS.get(name, {name}))
            return exchange
    return []


def diagnose(task: Task, slip: Slip, rng: random.Random, told: bool) -> str:
    """Names the slip: which step went another way and why that does not fit, or that a step is missing.

    `told`: the user said how the result came about; else the assistant says that it infers it.
    """
    step = task.steps[slip.at]
    if slip.did:
        op = slip.did.split()[1]
        if not told:
            return rng.choice((
                f"It looks like you took {slip.did} in step {slip.at + 1}. But {step.why}, so it is {step.equation}.",
                f"You get there with {slip.did}, but {step.why}, so we need {step.equation}.",
                f"My guess is that you {PASTS[op]} in step {slip.at + 1}, {slip.did}. But {step.why}: {step.equation}.",
            ))  # fmt: skip
        forms = (
            f"{slip.did} goes wrong: {step.why}, so we need to {VERBS[step.op]}.",
            f"You {PASTS[op]} in step {slip.at + 1}, but {step.why}, so it is {step.equation}.",
            f"In step {slip.at + 1} it has to be {step.expression} and not {slip.did.partition(' =')[0]}, because {step.why}.",
        )
        return rng.choice(forms)
    if not step.why:
        # A text's next step need not build on this one, so only what is sure is said.
        return rng.choice((
            f"{step.equation} is right, but it is only a number on the way.",
            f"{slip.answer} is what {step.expression} gives, and the problem does not end there.",
            f"You stopped too early: {step.equation} is one of the steps, not the last.",
        ))  # fmt: skip
    following = task.steps[slip.at + 1]
    goes_on = f"After that comes {following.equation}."
    forms = (
        f"{slip.answer} is only the result of one step: {step.equation}. {goes_on}",
        f"You stopped too early: {step.equation} is not the end. {goes_on}",
        f"That is a number on the way, {step.equation}. {goes_on}",
    )
    return rng.choice(forms)


def step_slots(step: Step) -> dict[str, str]:
    """Everything a phrasing may say about a step that has an equation."""
    check = step.check
    return {
        "step": step.text,
        "action": step.action,
        "verb": VERBS[step.op],
        "expression": step.expression,
        "equation": step.equation,
        "left": step.left,
        "result": step.result,
        "why": step.why,
        "Why": step.why[:1].upper() + step.why[1:],
        "why_sentence": f"{step.why[:1].upper()}{step.why[1:]}.",
        "check": check,
        "check_left": check.partition(" =")[0],
    }


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
    verb = VERBS[wrong.split()[1]]
    slots |= {"wrong": wrong, "wrong_verb": verb, "answer": task.answer}
    return [say("doubt", rng, slots, casual), say("settle", rng, slots)]


def _own_wrong(task: Task, rng: random.Random, casual: bool) -> Exchange:
    if not task.slips:
        return []
    slip = rng.choice(task.slips)
    way = rng.choice((f"I did {slip.did}.", f"Because {slip.did}.", "")) if slip.did else ""
    slots = {"slip": slip.answer, "way": way, "answer": task.answer, "diagnosis": diagnose(task, slip, rng, bool(way))}
    return [say("own_wrong", rng, slots, casual), say("correct", rng, slots)]


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
        pattern = rf"(?<![\d.,]){re.escape(number)}(?![\d]|[.,]\d)"
        holding = [text for text in sentences if re.search(pattern, text)]
        if len(re.findall(pattern, task.question)) == 1 and not holding[0].endswith("?"):
            return holding
    return []


def _trace(task: Task, rng: random.Random, casual: bool) -> Exchange:
    """A formula of a text solution, answered with the line it stands in and the one before."""
    if not task.boxed_solution:
        return []  # in plain text a dollar sign is money, not a formula
    found = [
        (piece, before.text, line.text)
        for before, line in itertools.pairwise(task.steps)
        for piece in _PIECE.findall(line.text)[:1]
        if max(len(before.text), len(line.text)) < 300
    ]
    if not found:
        return []
    piece, before, line = rng.choice(found)
    slots = {"piece": re.sub(r"\\boxed\{([^{}]*)\}", r"\1", piece), "before": before, "line": line}
    return [say("trace", rng, slots, casual), say("traced", rng, slots)]


# What a reaction rules out after it: a what-if changes the numbers; a doubt and a wrong result say the same.
_ENDS: dict[str, set[str]] = {
    "what_if": {"why", "doubt", "own_wrong", "what_if", "check", "source", "trace"},
    "doubt": {"doubt", "own_wrong"},
    "own_wrong": {"doubt", "own_wrong"},
}

_REACTIONS: dict[str, Callable[[Task, random.Random, bool], Exchange]] = {
    "why": _why,
    "doubt": _doubt,
    "own_wrong": _own_wrong,
    "what_if": _what_if,
    "check": _check,
    "source": _source,
    "trace": _trace,
}
