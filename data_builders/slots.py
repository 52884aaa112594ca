"""What fills the slots of a phrasing: a step, an answer, a wrong result with how it came about and what is wrong with it."""

from __future__ import annotations

import random
import re

from data_builders.acts import Said, say
from data_builders.tasks import PASTS, VERBS, Slip, Step, Task

# A formula that is longer is a page of its own; a user does not type it out.
_QUOTABLE = 90


def way_of(task: Task, slip: Slip, rng: random.Random, casual: bool) -> Said | str:
    """How a user says that a wrong result came about; at times not at all."""
    step = task.steps[slip.at]
    did = slip.did or (step.equation if step.op and not slip.quote else "")
    if rng.random() < 0.5 or not (did or slip.quote):
        return ""
    if did:
        return say("way", rng, {"did": did}, casual)
    return say("way_formula", rng, {"quote": slip.quote}, casual)


def diagnose(task: Task, slip: Slip, rng: random.Random, told: bool) -> Said:
    """Names the slip: which step went another way and why that does not fit, or that a step is missing.

    `told`: the user said how the result came about; else the assistant says that it infers it.
    """
    step = task.steps[slip.at]
    if slip.quote:
        return say("diagnose_formula", rng, {"quote": slip.quote, "slip": shown(task, slip.answer)})
    slots = {**step_slots(step), "slip": slip.answer, "n": str(slip.at + 1)}
    if slip.did:
        slots |= {"did": slip.did, "wrong": slip.did.partition(" =")[0], "past": PASTS[slip.did.split()[1]]}
        return say("diagnose_told" if told else "diagnose_guess", rng, slots)
    if step.why:
        return say("diagnose_early", rng, {**slots, "following": task.steps[slip.at + 1].equation})
    return say("diagnose_on_the_way", rng, slots)


def step_slots(step: Step) -> dict[str, str]:
    """Everything a phrasing may say about a step that has an equation."""
    check, why = step.check, step.why
    return {
        "step": step.text,
        "action": step.action,
        "verb": VERBS[step.op],
        "expression": step.expression,
        "equation": step.equation,
        "left": step.left,
        "result": step.result,
        "why": why,
        "Why": why[:1].upper() + why[1:],
        "why_sentence": f"{why[:1].upper()}{why[1:]}.",
        "check": check,
        "check_left": check.partition(" =")[0],
    }


def quotable(formula: str) -> bool:
    """Short enough, and on one line, to be typed by a user."""
    return len(formula) <= _QUOTABLE and "\n" not in formula


def shown(task: Task, value: str) -> str:
    """An answer as it stands in a sentence: as a formula where it is LaTeX and no plain number."""
    plain = not task.boxed_solution or re.fullmatch(r"-?\d[\d,.]*", value) or "$" in value
    return value if plain else f"${value}$"
