"""The kinds whose first message does not let anybody solve the problem: the assistant's first reply asks.

underspecified and unsolvable withhold a gap, vague withholds the whole problem, conflict states a given twice.
"""

from __future__ import annotations

import re

from data_builders.acts import say
from data_builders.kinds_whole import can_be_split, first_part
from data_builders.script import Script
from data_builders.tasks import Gap, Task

# A user who is asked points at something else rather than just not seeing it, where there is something to point at.
_POINTS = 0.5
_VAGUE_GAP = 0.3
# The other value comes as a bare sentence, without words about where it stands.
_BARE_STATEMENT = 0.5
_STATEMENT = 200
_CANNOT = {"number": "cannot", "formula": "cannot_text", "figure": "cannot_text", "goal": "cannot_goal"}
# How likely a gap of a kind is to be the one withheld: most texts have one goal and a few numbers.
_LIKELY = {"number": 1.0, "formula": 1.0, "goal": 0.5, "figure": 1.5}


def underspecified(script: Script) -> None:
    """One needed thing withheld; the assistant asks for exactly that, the user gives it."""
    gap = _withhold(script)
    script.open(gap.question)
    _ask(script, gap)
    _reveal(script, gap, f"reveal_{gap.kind}")
    if can_be_split(script.task) and script.chance(script.settings.first_step):
        first_part(script)
    else:
        script.solve("solve_revealed")


def unsolvable(script: Script) -> None:
    """The user does not have what is missing; the assistant does not guess. Then it is found."""
    gap = _withhold(script)
    script.open(gap.question)
    _ask(script, gap)
    script.turn("no_idea")
    script.turn(_CANNOT[gap.kind], **gap_slots(gap))
    _reveal(script, gap, "found")
    script.solve("solve_found")


def vague(script: Script) -> None:
    """The user opens with a topic and a feeling; the problem comes when asked for, at times not all of it."""
    task = script.task
    topic = task.topic or ("a word problem" if task.template else "math")
    a_topic = topic if topic.startswith("a ") else f"{'an' if topic[0] in 'aeiou' else 'a'} {topic} problem"
    script.turn("vague", a_topic=a_topic)
    script.turn("ask_problem", the_topic=f"the {a_topic.partition(' ')[2]}")
    if task.gaps and script.chance(_VAGUE_GAP):
        gap = _withhold(script)
        script.turn("give", question=gap.question.strip())
        _ask(script, gap)
        _reveal(script, gap, f"reveal_{gap.kind}")
        script.solve("solve_revealed")
    else:
        script.turn("give", question=task.question.strip())
        script.solve("solve")


def conflict(script: Script) -> None:
    """A given is stated twice with two values; the assistant names both and asks which holds."""
    task = script.task
    gap = script.gap = script.rng.choice(contradictable(task))
    slots, statement = gap_slots(gap), _stated_again(task, gap)
    bare = not statement.startswith("$") and script.chance(_BARE_STATEMENT)
    second = statement if bare else say("second", script.frame, {"statement": statement}, script.casual)
    script.open(task.question, "two_values", second=second)
    # A given that is named by its empty place in the text has no name where nothing is empty.
    script.turn("contradiction", about="" if '"' in gap.thing else f" for {gap.thing}", **slots)
    script.reveal_at = len(script.messages)  # nothing is hidden; from here on it is settled which value holds
    script.turn("pick", **slots)
    script.solve("solve_picked", **slots)


def contradictable(task: Task) -> list[Gap]:
    """The givens that can be stated a second time with another value."""
    return [gap for gap in task.gaps if _stated_again(task, gap)]


def _stated_again(task: Task, gap: Gap) -> str:
    """A sentence that states the given with the other value; "" where none can stand alone."""
    if not gap.other:
        return ""
    if gap.reveal.count(gap.short) == 1 and not gap.reveal.startswith("It's") and len(gap.reveal) < _STATEMENT:
        return gap.reveal.replace(gap.short, gap.other)
    stating = [text for text in re.split(r"(?<=[.?!])\s+", task.question) if gap.short in text]
    alone = (
        len(stating) == 1
        and stating[0].count(gap.short) == 1
        and stating[0].endswith(".")
        and len(stating[0]) < _STATEMENT
    )
    return stating[0].replace(gap.short, gap.other) if alone and stating[0].count("$") % 2 == 0 else ""


def gap_slots(gap: Gap) -> dict[str, str]:
    return {
        "ask": gap.ask, "clause": gap.clause, "thing": gap.thing, "reveal": gap.reveal, "short": gap.short, "other": gap.other,
    }  # fmt: skip


def _withhold(script: Script) -> Gap:
    gaps = script.task.gaps
    gap = script.gap = script.rng.choices(gaps, [_LIKELY[gap.kind] for gap in gaps])[0]
    script.hidden = gap.value
    return gap


def _ask(script: Script, gap: Gap) -> None:
    """The assistant asks; some users do not see at once what for, and then it says which place it means."""
    slots = gap_slots(gap)
    script.turn(f"ask_{gap.kind}", **slots)
    if not script.chance(script.settings.misunderstood):
        return
    known = _known(script.task, gap)
    if known and script.chance(_POINTS):
        slots["known"] = script.rng.choice(known)
        script.turn("wrong_thing", **slots)
        script.turn("not_that", **slots)
    else:
        script.turn("huh")
        script.turn("which_place", **slots)


def _known(task: Task, gap: Gap) -> list[str]:
    """Other givens that stand in the question as asked, in the words of the user; a bare number says too little."""
    return [
        other.short
        for other in task.gaps
        if other.kind in ("number", "formula") and other.value != gap.value and other.value in gap.question
        if gap.value not in other.short and not re.fullmatch(r"[$\d.,%\\]+", other.short)
    ]


def _reveal(script: Script, gap: Gap, act: str) -> None:
    script.reveal_at = len(script.messages)
    script.turn(act, **gap_slots(gap))
