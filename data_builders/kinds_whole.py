"""The kinds whose first message holds the whole problem: complete, wrong_start, hint, guided."""

from __future__ import annotations

from data_builders.script import Script
from data_builders.slots import diagnose, quotable, shown, step_slots, way_of
from data_builders.starter_words import lower_first
from data_builders.tasks import Slip, Task

# Of the hints: the user comes to the next thing, tries something wrong, or does not get on.
_TRIES = {"right": 0.3, "wrong": 0.35, "stuck": 0.25, "give_up": 0.1}
_LOST = 0.4


def complete(script: Script) -> None:
    """Asked in full, answered at once and in full, without a closing question."""
    script.open(script.task.question)
    script.solve("solve")


def wrong_start(script: Script) -> None:
    """The user opens with a wrong result; the assistant says where it goes wrong, then solves."""
    task = script.task
    slip = script.rng.choice(task.slips)
    script.used |= {"own_wrong", "doubt"}
    way, wrong = way_of(task, slip, script.rng, script.casual), shown(task, slip.answer)
    script.open(task.question, "wrong_start", slip=wrong, way=way)
    diagnosis = diagnose(task, slip, script.rng, bool(way))
    script.turn("correct_start", slip=wrong, diagnosis=diagnosis, solution=script.rest(0))


def can_be_split(task: Task) -> bool:
    """Whether the solution has a first part that does not give the answer, and a rest."""
    return bool(task.start) or (not task.boxed_solution and len(task.steps) > 1)


def can_be_hinted(task: Task) -> bool:
    return (can_be_split(task) and "?" not in _start(task)) or bool(task.steps and task.steps[0].why)


def first_part(script: Script) -> None:
    """A first step, a check of understanding in this turn alone, the user's reaction, and the rest."""
    task = script.task
    first = task.steps[0]
    if task.template:
        script.turn("first_step", step=first.text, step_small=lower_first(first.text))
    else:
        script.turn("first_part", start=_start(task))
    if first.why and script.chance(_LOST):
        script.used |= {"why"}
        script.turn("lost", **step_slots(first))
        script.turn("explain_and_finish", **step_slots(first), rest=script.rest(1))
    elif first.op and not task.boxed_solution:
        script.turn("go_on", **step_slots(first))
        script.turn("finish", rest=script.rest(1), result=first.result)
    else:
        script.turn("go_on_text")
        script.turn("finish_text", rest=script.rest(1))


def guided(script: Script) -> None:
    """Step by step, because the user wishes so."""
    script.open(script.task.question, "ask_guided")
    first_part(script)


def hint(script: Script) -> None:
    """The user wants a hint only, tries, and is told whether that was right."""
    task = script.task
    script.open(task.question, "ask_hint")
    if task.steps[0].why:
        _hint_with_reason(script)
    else:
        _hint_from_text(script)


def _start(task: Task) -> str:
    return task.start.strip() or task.steps[0].text


def _hint_with_reason(script: Script) -> None:
    task, rng = script.task, script.rng
    first = task.steps[0]
    slots = step_slots(first)
    script.turn("hint", **slots)
    wrong = [slip for slip in task.slips if slip.at == 0 and slip.did]
    tries = rng.choices(list(_TRIES), list(_TRIES.values()))[0]
    if tries == "wrong" and wrong:
        did = rng.choice(wrong).did
        script.used |= {"own_wrong", "doubt"}
        script.turn("attempt", tried=did, tried_result=did.rpartition("= ")[2])
        script.turn("redirect", **slots, tried=did, rest=script.rest(1))
    elif tries in ("stuck", "give_up"):  # with so short a solution there is no second hint
        script.turn("give_up")
        script.solve("solve")
    else:
        script.turn("attempt", tried=first.equation, tried_result=first.result)
        script.turn("confirm", **slots, rest=script.rest(1))


def _hint_from_text(script: Script) -> None:
    task, rng = script.task, script.rng
    script.turn("hint_text", start=_start(task))
    reachable, slips = _reachable(task), _missed(task)
    tries = rng.choices(list(_TRIES), list(_TRIES.values()))[0]
    if tries == "wrong" and slips:
        slip = rng.choice(slips)
        script.used |= {"own_wrong", "doubt"}
        way = way_of(task, slip, rng, script.casual)
        script.turn("try_result", slip=shown(task, slip.answer), way=way)
        script.turn("redirect_text", diagnosis=diagnose(task, slip, rng, bool(way)), rest=script.rest(1))
    elif tries in ("right", "stuck") and reachable:
        formula = rng.choice(reachable)
        script.used.add("trace")
        if tries == "stuck":
            script.turn("stuck")
            script.turn("second_hint", formula=formula)
            found = script.chance(0.5)
            script.turn("try_formula" if found else "give_up", formula=formula)
            script.turn("finish_text" if found else "finish_shown", rest=script.rest(1))
        else:
            script.turn("try_formula", formula=formula)
            script.turn("confirm_formula", formula=formula, rest=script.rest(1))
    else:
        script.turn("give_up")
        script.turn("finish_shown", rest=script.rest(1))


def _reachable(task: Task) -> list[str]:
    """Formulas of the rest that a user might come to by themselves; none gives the answer away."""
    if not task.boxed_solution:
        return [step.equation for step in task.steps[1:-1] if step.op]
    return [
        piece.formula
        for piece in task.pieces
        if quotable(piece.formula) and piece.formula in task.rest and piece.formula not in task.start
        if piece.value != task.answer and task.answer not in piece.formula
    ][:2]


def _missed(task: Task) -> list[Slip]:
    """Numbers on the way at which a user may stop after the hint; those of the hint itself are no try."""
    if not task.boxed_solution:
        return [slip for slip in task.slips if slip.at > 0]
    return [slip for slip in task.slips if slip.quote and slip.quote not in task.start]
