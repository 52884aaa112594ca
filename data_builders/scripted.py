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
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from data_builders.acts import Phrase, acts, say
from data_builders.starter import lower_first
from data_builders.tasks import PASTS, VERBS, Gap, Slip, Step, Task
from data_builders.text import by_itself
from probe.conversations import Message
from probe.errors import RecipeError
from probe.recipe import section

Kind = Literal["complete", "underspecified", "wrong_start", "hint", "vague", "conflict", "unsolvable", "guided"]


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
        doubts: of each doubt of the user about an answer, in their order, whether it was right.
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
    doubts: tuple[bool, ...] = ()


def plan(task: Task, seed: int, settings: Conversations) -> list[Kind]:
    """Which conversations a problem gives, so that the shares hold over all conversations.

    A pair adds a complete conversation beside the underspecified one, so fewer are drawn complete. Where a problem
    has no material for a kind (nothing to withhold, no known slip, no first part), the share of that kind goes to the
    kinds that are possible, in proportion to their shares: a problem without gaps is complete more often, and also
    more often a hint, a wrong start or guided. So over problems of which some have little, the rarer kinds stay under
    their shares.
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
    material = {
        "underspecified": bool(task.gaps),
        "wrong_start": bool(task.slips),
        "hint": (_can_be_split(task) and "?" not in _start(task)) or bool(task.steps and task.steps[0].why),
        "conflict": any(_stated_again(task, gap) for gap in task.gaps),
        "unsolvable": bool(task.gaps),
        "guided": _can_be_split(task),
    }
    return [kind for kind in get_args(Kind) if material.get(kind, True)]


def converse(task: Task, kind: Kind, seed: int, settings: Conversations) -> Conversation:
    """One conversation of this kind, which must be possible; the same arguments always give the same text."""
    frame = random.Random(f"frame:{seed}:{task.id}")
    rng = random.Random(f"converse:{seed}:{kind}:{task.id}")
    script = Script(task, settings, rng, frame, casual=frame.random() < settings.casual)
    _WRITERS[kind](script)
    if script.chance(settings.reactions):
        for _ in range(2 if script.chance(settings.second_reaction) else 1):
            react(script)
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


_OWN_FINAL = 0.4  # of generated problems: their own sentence around the answer
_IN_LINES = 0.75  # of generated problems: one step a line


@dataclass
class Script:
    """A conversation while it is being written. `frame` draws the words around the problem, alike for both of a pair."""

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
    ruled_out: set[str] = field(default_factory=set)  # reactions that would say again what stands there already

    def open(self, act: str, question: str, **slots: str | Phrase) -> None:
        """The user's first turn, with the problem in it."""
        self._add(act, say(act, self.frame, {"question": question.strip(), **slots}, self.casual))

    def turn(self, act: str, **slots: str | Phrase) -> None:
        """The next turn: the act in one of its wordings."""
        slots = {"answer": in_sentence(self.task, self.task.answer), **slots}
        self._add(act, say(act, self.rng, slots, self.casual))

    def solve(self, act: str, **slots: str) -> None:
        """A turn with the whole solution."""
        self.turn(act, solution=self.rest(0), **slots)

    def _add(self, act: str, phrase: Phrase) -> None:
        self.wordings += phrase.wordings
        self.messages.append({"role": acts()[act].speaker, "content": phrase.text})

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def withhold(self) -> Gap:
        """Draws what is withheld."""
        gaps = self.task.gaps
        self.gap = gap = self.rng.choices(gaps)[0]
        self.hidden = gap.value
        return gap

    def reveal(self, act: str, gap: Gap) -> None:
        """The turn before which nobody states what is withheld."""
        self.reveal_at = len(self.messages)
        self.turn(act, **_gap_slots(gap))

    def rest(self, after: int) -> Phrase:
        """The solution after its first steps, with the boxed answer; of 0 the reference solution word for word."""
        task = self.task
        if task.boxed_solution:
            return Phrase(task.rest.strip() if after else task.boxed_solution)
        box = f"\\boxed{{{task.answer}}}"
        if task.template and self.chance(_OWN_FINAL):
            final = Phrase(task.final.format(box=box), ("final:bare",))
        else:
            final = say("final", self.rng, {"box": box})
        # Lines of a text solution may lack their full stop, so only our own steps are set in one line.
        in_lines = not task.template or self.chance(_IN_LINES)
        steps = ("\n" if in_lines else " ").join(step.text for step in task.steps[after:])
        return Phrase(f"{steps}\n{final.text}".strip(), final.wordings)

    def way(self, slip: Slip) -> Phrase | str:
        """How the user says that a wrong result came about; at times not at all."""
        step = self.task.steps[slip.at]
        did = slip.did or (step.equation if step.op and not slip.quote else "")
        if self.chance(0.5) or not (did or slip.quote):
            return ""
        if did:
            return say("way", self.rng, {"did": did}, self.casual)
        return say("way_formula", self.rng, {"quote": slip.quote}, self.casual)

    def diagnosis(self, slip: Slip, explained: bool) -> Phrase:
        """Names the slip: which step went another way and why that does not fit, or that a step is missing.

        `explained`: the user said how the result came about; else the assistant says that it infers it.
        """
        task, step = self.task, self.task.steps[slip.at]
        slots = {"slip": slip.answer, "n": str(slip.at + 1)}
        if slip.quote:
            slots = {"quote": slip.quote, "slip": in_sentence(task, slip.answer)}
            act = "diagnose_formula"
        elif slip.did:
            slots |= _step_slots(step)
            slots |= {"did": slip.did, "wrong": slip.did.partition(" =")[0], "past": PASTS[slip.did.split()[1]]}
            act = "diagnose_told" if explained else "diagnose_guess"
        elif step.why:
            slots |= {**_step_slots(step), "following": task.steps[slip.at + 1].equation}
            act = "diagnose_early"
        else:
            slots |= _step_slots(step)
            act = "diagnose_on_the_way"
        return say(act, self.rng, slots)


# --- The kinds whose first message holds the whole problem.

# After a hint: the user comes to the next thing, tries something wrong, or does not get on.
_TRIES = {"right": 0.3, "wrong": 0.35, "stuck": 0.25, "give_up": 0.1}
_LOST = 0.4  # of first steps with a reason: the user asks for it


def _complete(script: Script) -> None:
    """Asked in full, answered at once and in full, without a closing question."""
    script.open("open", script.task.question)
    script.solve("solve")


def _wrong_start(script: Script) -> None:
    """The user opens with a wrong result; the assistant says where it goes wrong, then solves."""
    task = script.task
    slip = script.rng.choice(task.slips)
    script.ruled_out |= {"own_wrong", "doubt"}
    way, wrong = script.way(slip), in_sentence(task, slip.answer)
    script.open("wrong_start", task.question, slip=wrong, way=way)
    script.turn("correct_start", slip=wrong, diagnosis=script.diagnosis(slip, bool(way)), solution=script.rest(0))


def _guided(script: Script) -> None:
    """Step by step, because the user wishes so."""
    script.open("ask_guided", script.task.question)
    _first_part(script)


def _first_part(script: Script) -> None:
    """A first step, a check of understanding in this turn alone, the user's reaction, and the rest."""
    task, first = script.task, script.task.steps[0]
    if task.template:
        script.turn("first_step", step=first.text, step_small=lower_first(first.text))
    else:
        script.turn("first_part", start=_start(task))
    if first.why and script.chance(_LOST):
        script.ruled_out.add("why")
        script.turn("lost", **_step_slots(first))
        script.turn("explain_and_finish", **_step_slots(first), rest=script.rest(1))
    elif first.op and not task.boxed_solution:
        script.turn("go_on", **_step_slots(first))
        script.turn("finish", rest=script.rest(1), result=first.result)
    else:
        script.turn("go_on_text")
        script.turn("finish_text", rest=script.rest(1))


def _hint(script: Script) -> None:
    """The user wants a hint only, tries, and is told whether that was right."""
    script.open("ask_hint", script.task.question)
    if script.task.steps[0].why:
        _hint_with_reason(script)
    else:
        _hint_from_text(script)


def _hint_with_reason(script: Script) -> None:
    first = script.task.steps[0]
    slots = _step_slots(first)
    script.turn("hint", **slots)
    wrong = [slip.did for slip in script.task.slips if slip.at == 0 and slip.did]
    tries = script.rng.choices(list(_TRIES), list(_TRIES.values()))[0]
    if tries == "wrong" and wrong:
        did = script.rng.choice(wrong)
        script.ruled_out |= {"own_wrong", "doubt"}
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
    reachable, slips = _reachable(task), _slips_after_hint(task)
    tries = rng.choices(list(_TRIES), list(_TRIES.values()))[0]
    if tries == "wrong" and slips:
        slip = rng.choice(slips)
        script.ruled_out |= {"own_wrong", "doubt"}
        way = script.way(slip)
        script.turn("try_result", slip=in_sentence(task, slip.answer), way=way)
        script.turn("redirect_text", diagnosis=script.diagnosis(slip, bool(way)), rest=script.rest(1))
    elif tries == "right" and reachable:
        formula = rng.choice(reachable)
        script.ruled_out.add("trace")
        script.turn("try_formula", formula=formula)
        script.turn("confirm_formula", formula=formula, rest=script.rest(1))
    elif tries == "stuck" and reachable:
        formula = rng.choice(reachable)
        script.ruled_out.add("trace")
        script.turn("stuck")
        script.turn("second_hint", formula=formula)
        found = script.chance(0.5)
        script.turn("try_formula" if found else "give_up", formula=formula)
        script.turn("finish_text" if found else "finish_shown", rest=script.rest(1))
    else:
        script.turn("give_up")
        script.turn("finish_shown", rest=script.rest(1))


def _can_be_split(task: Task) -> bool:
    """Whether the solution has a first part that does not give the answer, and a rest."""
    return bool(task.start) or (not task.boxed_solution and len(task.steps) > 1)


def _start(task: Task) -> str:
    return task.start.strip() or task.steps[0].text


def _reachable(task: Task) -> list[str]:
    """Formulas of the rest that a user might come to by themselves; none gives the answer away."""
    if not task.boxed_solution:
        return [step.equation for step in task.steps[1:-1] if step.op]
    return [
        piece.formula
        for piece in task.pieces
        if _quotable(piece.formula) and piece.formula in task.rest and piece.formula not in task.start
        if piece.value != task.answer and task.answer not in piece.formula
    ][:2]


def _slips_after_hint(task: Task) -> list[Slip]:
    """Numbers on the way at which a user may stop after the hint; those of the hint itself are no try."""
    if not task.boxed_solution:
        return [slip for slip in task.slips if slip.at > 0]
    return [slip for slip in task.slips if slip.quote and slip.quote not in task.start]


# --- The kinds whose first message does not let anybody solve the problem: the assistant's first reply asks.

# A user who is asked points at something else rather than just not seeing it, where there is something to point at.
_POINTS_ELSEWHERE = 0.5
_VAGUE_WITH_GAP = 0.3  # of the vague: the problem, when it comes, lacks something
_BARE_STATEMENT = 0.5  # of the other values: a bare sentence, without words about where it stands
_LONGEST_STATEMENT = 200
_CANNOT = {"number": "cannot", "formula": "cannot_text"}


def _underspecified(script: Script) -> None:
    """One needed thing withheld; the assistant asks for exactly that, the user gives it."""
    gap = script.withhold()
    script.open("open", gap.question)
    _ask(script, gap)
    script.reveal(f"reveal_{gap.kind}", gap)
    if _can_be_split(script.task) and script.chance(script.settings.first_step):
        _first_part(script)
    else:
        script.solve("solve_revealed")


def _unsolvable(script: Script) -> None:
    """The user does not have what is missing; the assistant does not guess. Then it is found."""
    gap = script.withhold()
    script.open("open", gap.question)
    _ask(script, gap)
    script.turn("no_idea")
    script.turn(_CANNOT[gap.kind], **_gap_slots(gap))
    script.reveal("found", gap)
    script.solve("solve_found")


def _vague(script: Script) -> None:
    """The user opens with a topic and a feeling; the problem comes when asked for, at times not all of it."""
    task = script.task
    topic = task.topic or ("a word problem" if task.template else "math")
    a_topic = topic if topic.startswith("a ") else f"{'an' if topic[0] in 'aeiou' else 'a'} {topic} problem"
    script.turn("vague", a_topic=a_topic)
    script.turn("ask_problem", the_topic=f"the {a_topic.partition(' ')[2]}")
    if task.gaps and script.chance(_VAGUE_WITH_GAP):
        gap = script.withhold()
        script.turn("give", question=gap.question.strip())
        _ask(script, gap)
        script.reveal(f"reveal_{gap.kind}", gap)
        script.solve("solve_revealed")
    else:
        script.turn("give", question=task.question.strip())
        script.solve("solve")


def _conflict(script: Script) -> None:
    """A given is stated twice with two values; the assistant names both and asks which holds."""
    task = script.task
    gap = script.gap = script.rng.choice([gap for gap in task.gaps if _stated_again(task, gap)])
    slots, statement = _gap_slots(gap), _stated_again(task, gap)
    bare = not statement.startswith("$") and script.chance(_BARE_STATEMENT)
    second = statement if bare else say("second", script.frame, {"statement": statement}, script.casual)
    script.open("two_values", task.question, second=second)
    # A given that is named by its empty place in the text has no name where nothing is empty.
    script.turn("contradiction", about="" if '"' in gap.thing else f" for {gap.thing}", **slots)
    script.reveal("pick", gap)  # nothing is hidden; from here on it is settled which value holds
    script.solve("solve_picked", **slots)


def _ask(script: Script, gap: Gap) -> None:
    """The assistant asks; some users do not see at once what for, and then it says which place it means."""
    slots = _gap_slots(gap)
    script.turn(f"ask_{gap.kind}", **slots)
    if not script.chance(script.settings.misunderstood):
        return
    known = _other_givens(script.task, gap)
    if known and script.chance(_POINTS_ELSEWHERE):
        slots["known"] = script.rng.choice(known)
        script.turn("wrong_thing", **slots)
        script.turn("not_that", **slots)
    else:
        script.turn("huh")
        script.turn("which_place", **slots)


def _other_givens(task: Task, gap: Gap) -> list[str]:
    """Other givens that stand in the question as asked, in the words of the user; a bare number says too little."""
    return [
        other.short
        for other in task.gaps
        if other.kind in ("number", "formula") and other.value != gap.value and other.value in gap.question
        if gap.value not in other.short and not re.fullmatch(r"[$\d.,%\\]+", other.short)
    ]


def _stated_again(task: Task, gap: Gap) -> str:
    """A sentence that states the given with the other value; "" where none can stand alone."""
    if not gap.other:
        return ""
    if gap.reveal.count(gap.short) == 1 and not gap.reveal.startswith("It's") and len(gap.reveal) < _LONGEST_STATEMENT:
        return gap.reveal.replace(gap.short, gap.other)
    stating = [text for text in re.split(r"(?<=[.?!])\s+", task.question) if gap.short in text]
    if len(stating) != 1 or len(stating[0]) >= _LONGEST_STATEMENT:
        return ""
    whole = stating[0].endswith(".") and stating[0].count("$") % 2 == 0
    return stating[0].replace(gap.short, gap.other) if whole and stating[0].count(gap.short) == 1 else ""


_WRITERS: dict[Kind, Callable[[Script], None]] = {
    "complete": _complete,
    "underspecified": _underspecified,
    "wrong_start": _wrong_start,
    "hint": _hint,
    "vague": _vague,
    "conflict": _conflict,
    "unsolvable": _unsolvable,
    "guided": _guided,
}

# --- What a user says after an answer, and the reply: grounded in a number, a formula or a line of that answer.
#
# A reaction is a list of what it could be about, as the slots of its two turns; empty where the task has nothing for it: a
# what-if needs numbers that can be computed anew, a doubt a known wrong way, a check an equation that can be undone.

Slots = dict[str, str]

_LONGEST_LINE = 400
_LONGEST_QUOTE = 90  # a longer formula is a page of its own; a user does not type it out


def react(script: Script) -> None:
    """One reaction that is not ruled out yet, and its reply; nothing where none is possible."""
    task, rng = script.task, script.rng
    names = [name for name in _REACTIONS if name not in script.ruled_out]
    # A weighted order without putting back (Efraimidis and Spirakis 2006): likely reactions come first.
    names.sort(key=lambda name: rng.random() ** (1 / _WEIGHTS.get(name, 1.0)), reverse=True)
    for name in names:
        find, user_act, reply_act = _REACTIONS[name]
        found = find(task)
        if not found:
            continue
        at = 0 if name in _WITHOUT_CHOICE else rng.randrange(len(found))
        slots: dict[str, str | Phrase] = {**found[at]}
        if name == "own_wrong":
            slots["way"] = way = script.way(task.slips[at])
            slots["diagnosis"] = script.diagnosis(task.slips[at], bool(way))
        script.turn(user_act, **slots)
        script.turn(reply_act if slots.get("before", True) else "traced_line", **slots)
        script.ruled_out |= _RULES_OUT.get(name, {name})
        return


def _why(task: Task) -> list[Slots]:
    return [_step_slots(step) for step in task.steps if step.why]


def _doubt(task: Task) -> list[Slots]:
    found = []
    for slip in task.slips:
        if slip.did:
            wrong = slip.did.partition(" =")[0]
            slots = {"wrong": wrong, "wrong_verb": VERBS[wrong.split()[1]], "answer": task.answer}
            found.append(_step_slots(task.steps[slip.at]) | slots)
    return found


def _own_wrong(task: Task) -> list[Slots]:
    return [{"slip": in_sentence(task, slip.answer)} for slip in task.slips]


def _what_if(task: Task) -> list[Slots]:
    return [
        {
            "condition": change.condition,
            "steps": " ".join(step.text for step in change.steps),
            "new": change.answer,
            "answer": task.answer,
        }
        for change in task.what_ifs
    ]


def _check(task: Task) -> list[Slots]:
    return [{**_step_slots(step), "answer": task.answer} for step in task.steps if step.check]


def _source(task: Task) -> list[Slots]:
    """Why an operation, answered with the sentence of the problem that states its number."""
    found = []
    sentences = re.split(r"(?<=[.!?])\s+", task.question)
    for step in task.steps:
        if not step.op or step.why:
            continue
        # Of the step's numbers the first that stands in one place only, and not in what is asked.
        for number in (step.left, step.right):
            stating = [text for text in sentences if _count(number, text)]
            if _count(number, task.question) == 1 and not stating[0].endswith("?"):
                found += [{**_step_slots(step), "quote": quote} for quote in stating]
                break
    return found


def _where(task: Task) -> list[Slots]:
    """Where a given went: a number that the problem states once, and one step computes with."""
    if task.boxed_solution or not all(step.op for step in task.steps):
        return []
    return [
        {**_step_slots(step), "number": number, "n": str(at + 1)}
        for at, step in enumerate(task.steps)
        for number in sorted({step.left, step.right})
        if _count(number, task.question) == 1
        and sum(number in (other.left, other.right, other.result) for other in task.steps) == 1
    ]


def _trace(task: Task) -> list[Slots]:
    """A formula of a text solution, answered with the line it stands in and the one before."""
    return [
        {"formula": piece.formula, "before": piece.before, "line": piece.line}
        for piece in task.pieces
        if _quotable(piece.formula) and max(len(piece.before), len(piece.line)) < _LONGEST_LINE
        if "\\boxed" not in piece.before + piece.line  # the answer is boxed once, where it is found
    ]


def _shorter(task: Task) -> list[Slots]:
    """The bare calculation: the equations of the steps, or the formulas of a text solution in their order."""
    lines = [step.equation for step in task.steps if step.op]
    if task.boxed_solution:
        lines = [piece.formula for piece in task.pieces if _quotable(piece.formula)]
    elif len(lines) < len(task.steps):
        return []
    return [{"lines": ", then ".join(lines)}] if 2 <= len(lines) <= 5 else []


def _always(_: Task) -> list[Slots]:
    return [{}]


# What it could be about, and the acts of the user's turn and of the reply.
_REACTIONS: dict[str, tuple[Callable[[Task], list[Slots]], str, str]] = {
    "why": (_why, "why", "because"),
    "doubt": (_doubt, "doubt", "settle"),
    "own_wrong": (_own_wrong, "own_wrong", "correct"),
    "what_if": (_what_if, "what_if", "recompute"),
    "check": (_check, "check", "checked"),
    "source": (_source, "why", "source"),
    "where": (_where, "where", "used_at"),
    "trace": (_trace, "trace", "traced"),
    "shorter": (_shorter, "shorter", "short"),
    "restate": (_always, "restate", "yes"),
    "thanks": (_always, "thanks", "welcome"),
}
_WITHOUT_CHOICE = ("shorter", "restate", "thanks")  # they are about the answer as a whole
# What a reaction rules out after it: a what-if changes the numbers; a doubt and a wrong result say the same; nobody
# goes on after a goodbye. All others rule out themselves.
_RULES_OUT: dict[str, set[str]] = {
    "what_if": set(_REACTIONS) - {"thanks"},
    "doubt": {"doubt", "own_wrong"},
    "own_wrong": {"doubt", "own_wrong"},
    "why": {"why", "source"},
    "source": {"why", "source"},
    "thanks": set(_REACTIONS),
}
# A sign-off is always possible, the rest are not; without weights the sign-offs would crowd out what cites.
_WEIGHTS = {"source": 6.0, "check": 1.5, "trace": 2.0, "shorter": 0.7, "restate": 0.4, "thanks": 0.4}

# --- What fills the slots of a phrasing (`slots` in acts.yaml says what each holds).


def _step_slots(step: Step) -> Slots:
    """Everything a phrasing may say about a step that has an equation."""
    capital = step.why[:1].upper() + step.why[1:]
    return {
        "step": step.text,
        "action": step.action,
        "verb": VERBS[step.op],
        "expression": step.expression,
        "equation": step.equation,
        "left": step.left,
        "result": step.result,
        "why": step.why,
        "Why": capital,
        "why_sentence": f"{capital}.",
        "check": step.check,
        "check_left": step.check.partition(" =")[0],
    }


def _gap_slots(gap: Gap) -> Slots:
    return {name: getattr(gap, name) for name in ("ask", "clause", "thing", "reveal", "short", "other")}


def in_sentence(task: Task, value: str) -> str:
    """An answer as it stands in a sentence: as a formula where it is LaTeX and no plain number."""
    plain = not task.boxed_solution or re.fullmatch(r"-?\d[\d,.]*", value) or "$" in value
    return value if plain else f"${value}$"


def _quotable(formula: str) -> bool:
    """Short enough, and on one line, to be typed by a user."""
    return len(formula) <= _LONGEST_QUOTE and "\n" not in formula


def _count(number: str, text: str) -> int:
    """How often a number stands in a text by itself."""
    return len(re.findall(by_itself(number), text))
