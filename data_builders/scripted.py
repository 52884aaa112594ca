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
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from data_builders.acts import Said, say
from data_builders.starter import lower_first
from data_builders.tasks import PASTS, VERBS, Gap, Slip, Step, Task
from data_builders.text import by_itself
from probe.conversations import Message
from probe.errors import RecipeError
from probe.recipe import section

# --- What fills the slots of a phrasing: a step, an answer, a wrong result with how it came about and what is wrong with it.

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


# --- What a user says after an answer, and the reply: grounded in a number, a formula or a line of that answer.
#
# Each reaction returns the two turns, or nothing where the task does not carry it: a what-if needs numbers that can be
# computed anew, a doubt needs a known wrong way, a check needs an equation that can be undone.

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


# --- A conversation while it is being written: its turns so far, and what has been said about whom to whom.

_OWN_FINAL = 0.4


@dataclass
class Script:
    """Turns alternate from the user on. `frame` draws the words around the problem, alike for both of a pair."""

    task: Task
    settings: Conversations
    rng: random.Random
    frame: random.Random
    casual: bool
    messages: list[Message] = field(default_factory=list)
    wordings: list[str] = field(default_factory=list)
    gap: Gap | None = None
    hidden: str = ""
    reveal_at: int = 0
    # Reactions that would say again what the conversation already holds.
    used: set[str] = field(default_factory=set)

    def turn(self, act: str, **slots: str | Said) -> None:
        self.add(say(act, self.rng, {"answer": shown(self.task, self.task.answer), **slots}, self.casual))

    def add(self, said: Said) -> None:
        self.wordings += said.wordings
        self.messages.append({"role": ("user", "assistant")[len(self.messages) % 2], "content": said.text})

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def open(self, question: str, act: str = "open", **slots: str | Said) -> None:
        """The user's first turn, with the problem in it."""
        self.add(say(act, self.frame, {"question": question.strip(), **slots}, self.casual))

    def solve(self, act: str, **slots: str) -> None:
        """A turn with the whole solution."""
        self.turn(act, solution=self.rest(0), **slots)

    def rest(self, after: int) -> Said:
        """The solution after its first steps, with the boxed answer; of 0 the reference solution word for word."""
        task = self.task
        if task.boxed_solution:
            return Said(task.boxed_solution if not after else task.rest.strip(), "")
        final = self._final()
        return Said(f"{self._laid_out(task.steps[after:])}\n{final.text}".strip(), "", (final.wording,))

    def _laid_out(self, steps: Sequence[Step]) -> str:
        # Lines of a text solution may lack their full stop, so only our own steps are set in one line.
        in_lines = not self.task.template or self.rng.random() < 0.75
        return ("\n" if in_lines else " ").join(step.text for step in steps)

    def _final(self) -> Said:
        """The sentence with the boxed answer: the problem's own, or one of ours."""
        box = f"\\boxed{{{self.task.answer}}}"
        if self.task.template and self.rng.random() < _OWN_FINAL:
            return Said(self.task.final.format(box=box), "final:bare")
        return say("final", self.rng, {"box": box})

    def go_on(self) -> None:
        """Reactions after the answer, each with its reply."""
        if not self.chance(self.settings.reactions):
            return
        for _ in range(2 if self.chance(self.settings.second_reaction) else 1):
            for said in react(self.task, self.rng, self.casual, self.used):
                self.add(said)


# --- The kinds whose first message holds the whole problem: complete, wrong_start, hint, guided.

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


# --- The kinds whose first message does not let anybody solve the problem: the assistant's first reply asks.
#
# underspecified and unsolvable withhold a gap, vague withholds the whole problem, conflict states a given twice.

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
