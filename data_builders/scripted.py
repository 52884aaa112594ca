"""Write a conversation about a problem without a model.

There are four kinds. *complete*: the problem has all facts and is answered at once. *underspecified*: one needed fact is
withheld, and the assistant asks for it. *wrong_start* and *right_start*: the user brings a result, and the assistant names
the mistake or confirms the result. Some conversations go on with a reaction of the user, whose reply gives a reason.

Most problems of underspecified conversations also open a complete one in the same words (a contrast pair). Users bring a
result only for problems with a known wrong result, so that nothing but the result shows whether it is right.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from nextturn.data_builders.sections import Conversations, ScriptedKind, wordings
from nextturn.data_builders.tasks import Conversation, Mistake, Step, Task
from nextturn.probe.data.messages import Message
from nextturn.probe.questions.simulation import Fact

_CASUAL = 0.3  # share of users who type without capitals, final full stop and, at times, apostrophes


def plan(task: Task, seed: int, settings: Conversations) -> list[ScriptedKind]:
    """Return the kinds of the conversations about a problem, drawn so that the shares hold over all conversations.

    A contrast pair adds a complete conversation, so fewer complete ones are drawn. If a problem lacks the material for a
    kind, the share of that kind goes to the other kinds in proportion.
    """
    rng = random.Random(f"plan:{seed}:{task.id}")
    possible = possible_kinds(task)
    weights = {kind: share for kind, share in settings.shares.items() if kind in possible}
    if "underspecified" in possible:
        weights["complete"] -= settings.paired
    if not any(weight > 1e-9 for weight in weights.values()):  # the recipe wants none of the possible kinds
        return ["complete"]
    kind = rng.choices(list(weights), [max(0.0, weight) for weight in weights.values()])[0]
    if kind == "underspecified" and rng.random() < settings.contrast_pairs:
        return ["complete", "underspecified"] if rng.random() < 0.5 else ["underspecified", "complete"]
    return [kind]


def possible_kinds(task: Task) -> list[ScriptedKind]:
    """Return the kinds that a problem has the material for."""
    material: dict[ScriptedKind, bool] = {"complete": True, "underspecified": bool(task.gaps)}
    return [kind for kind in get_args(ScriptedKind) if material.get(kind, bool(task.mistakes))]


def converse(task: Task, kind: ScriptedKind, seed: int, settings: Conversations) -> Conversation:
    """Return one conversation of a possible kind. The same arguments always give the same text."""
    frame = random.Random(f"frame:{seed}:{task.id}")
    script = Script(task, random.Random(f"converse:{seed}:{kind}:{task.id}"), frame, frame.random() < _CASUAL)
    getattr(script, kind)()
    if script.rng.random() < settings.reactions:
        script.react()
    return Conversation(
        f"{task.id}-{kind}", kind, tuple(script.messages), task.source, task.answer, reveal_at=2 if script.fact.short else 0, task=task,
        fact=script.fact, doubts=(False,) * ("doubt" in script.acts), reason="" if task.solution else "no_solution",
    )  # fmt: skip


_OWN_FINAL = 0.4  # share of the problems with a template that use their own sentence with the answer
_SHOWS_WAY = 0.5  # share of the users who say how they got their result


@dataclass
class Script:
    """A conversation in the making.

    Attributes:
        rng: Draws everything but the words around the problem.
        frame: Draws the words around the problem, the same ones for both conversations of a pair.
        casual: The user types carelessly.
        acts: The acts so far, by their names in `acts.yaml`.
    """

    task: Task
    rng: random.Random
    frame: random.Random
    casual: bool
    messages: list[Message] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)
    fact: Fact = Fact()

    def turn(self, act: str, **slots: str) -> None:
        """Add the next message: an act in one of its wordings."""
        answer = in_sentence(self.task, self.task.answer)
        text = worded(act, self.rng if self.messages else self.frame, {"answer": answer, **slots}, self.casual)
        self.acts.append(act)
        self.messages.append({"role": acts()[act].speaker, "content": text})

    def open(self, question: str, beside: str) -> None:
        """Add the first user message: the problem alone, or on a sheet with the other problem `beside`."""
        act = self.frame.choice(("sheet_first", "sheet_second")) if beside else "open"
        self.turn(act, question=question.strip(), beside=beside)

    def solution(self) -> str:
        """Return the worked solution with the boxed answer. A reference solution that boxes it is used word for word."""
        task = self.task
        if task.boxed_solution:
            return task.boxed_solution
        box = f"\\boxed{{{task.answer}}}"
        own = task.template and self.rng.random() < _OWN_FINAL
        return (
            f"{task.solution}\n{task.final.replace('{box}', box) if own else worded('final', self.rng, {'box': box})}"
        )

    def way(self, did: str) -> str:
        """Return how the user says that a result came about; at times nothing."""
        return worded("way", self.rng, {"did": did}) if did and self.rng.random() < _SHOWS_WAY else ""

    def complete(self) -> None:
        self.open(self.task.question, self.task.lacking_beside)
        self.turn("solve", solution=self.solution())

    def underspecified(self) -> None:
        fact = self.fact = self.rng.choice(self.task.gaps)
        slots = {name: getattr(fact, name) for name in ("ask", "clause", "reveal", "short")}
        self.open(fact.question, self.task.whole_beside)
        self.turn("ask", **slots)
        self.turn("reveal", **slots)
        self.turn("solve_revealed", solution=self.solution(), **slots)

    def wrong_start(self) -> None:
        mistake = self.rng.choice(self.task.mistakes)
        self.user_result("start", mistake, question=self.task.question.strip())
        slots = {"result_of_user": in_sentence(self.task, mistake.answer), "diagnosis": self.diagnosis(mistake)}
        self.turn("correct_start", **slots, solution=self.solution())

    def right_start(self) -> None:
        task = self.task
        right, last = in_sentence(task, task.answer), task.steps[-1]
        did = last.equation if last.op and not task.boxed_solution else ""
        self.turn("start", question=task.question.strip(), result_of_user=right, way=self.way(did))
        self.turn("confirm_start", result_of_user=right, solution=self.solution())

    def user_result(self, act: str, mistake: Mistake, **slots: str) -> None:
        """Add a user message that states a wrong result. The lines of a text solution are not the user's own."""
        step = self.task.steps[mistake.at]
        did = mistake.did or (step.equation if step.op and not self.task.boxed_solution else "")
        self.turn(act, result_of_user=in_sentence(self.task, mistake.answer), way=self.way(did), **slots)

    def diagnosis(self, mistake: Mistake) -> str:
        """Return what is wrong: the operation, the result of a step, a missing step, or an intermediate value."""
        task, step = self.task, self.task.steps[mistake.at]
        wrong = mistake.did.partition(" =")[0]
        slots = {"result_of_user": in_sentence(task, mistake.answer), "did": mistake.did, "wrong": wrong}
        if mistake.quote:
            return worded("diagnose_value", self.rng, {**slots, "value_of": mistake.quote, "asked": f'"{task.asked}"'})
        slots |= _step_slots(step)
        if mistake.did:
            return worded("diagnose_sum" if wrong == step.expression else "diagnose_operation", self.rng, slots)
        return worded("diagnose_early", self.rng, {**slots, "following": task.steps[mistake.at + 1].text})

    def react(self) -> None:
        """Add a reaction of the user to the answer and its reply, if the problem has the material for a reaction.

        The reply gives a reason: why an operation fits, a step undone, everything computed again with another number, or
        what is wrong with the user's result.
        """
        task, rng = self.task, self.rng
        mistakes = [] if self.acts[:1] == ["start"] else task.mistakes
        steps = {
            "why": [step for step in task.steps if step.op and step.why],
            "check": [step for step in task.steps if step.op and step.undone and not task.boxed_solution],
        }
        possible = [act for act, candidates in steps.items() if candidates]
        possible += ["what_if"] * bool(task.what_ifs) + ["doubt"] * bool(mistakes)
        if not possible:
            return
        act = rng.choice(possible)
        if act == "what_if":
            change = rng.choice(task.what_ifs)
            self.turn("what_if", condition=change.condition)
            self.turn("recompute", steps=" ".join(step.text for step in change.steps), new=change.answer)
        elif act == "doubt":
            mistake = rng.choice(mistakes)
            self.user_result("doubt", mistake)
            wrong = in_sentence(task, mistake.answer)
            self.turn("correct", result_of_user=wrong, diagnosis=self.diagnosis(mistake))
        else:
            slots = _step_slots(rng.choice(steps[act]))
            self.turn(act, **slots)
            self.turn({"why": "because", "check": "checked"}[act], **slots)


def _step_slots(step: Step) -> dict[str, str]:
    """Return everything that a wording can say about a step with an equation."""
    slots = {name: getattr(step, name) for name in ("expression", "equation", "left", "result", "why", "undone")}
    return {**slots, "Why": step.why[:1].upper() + step.why[1:]}


def in_sentence(task: Task, value: str) -> str:
    """Return an answer for use in a sentence: as a formula if it is LaTeX and no plain number."""
    plain = not task.boxed_solution or re.fullmatch(r"-?\d[\d,.]*", value) or "$" in value
    return value if plain else f"${value}$"


# --- Wordings, drawn from `acts.yaml`.

# Slots for numbers and formulas, which have no capital letter to lose after "Yes, ".
_CASELESS = "answer|did|equation|expression|left|new|result|result_of_user|short|undone|value_of|wrong"
_TEXT_FIRST = re.compile(rf"\{{(?!(?:{_CASELESS})\}})")
_SLOT = re.compile(r"(\{\w+\})")
_CAPITAL = re.compile(r"(?:^|(?<=[.?!]\s)|(?<=\n))(?!I\b)[A-Z]")  # the first letter of a sentence, except "I"
_WITHIN = re.compile(r"[^.?!\n]\Z")  # an opener after which the sentence goes on: "Ok,", "One thing:"


@dataclass(frozen=True)
class Act:
    """The wordings of an act: opener + core + closer, or `plain` in a share `plain_share` of its uses."""

    speaker: str
    openers: list[str]
    cores: list[str]
    closers: list[str] = field(default_factory=lambda: [""])
    plain: str = ""
    plain_share: float = 0.0

    @functools.cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """The (opener, core) pairs that fit: no sentence of the problem continues a sentence of the opener."""
        return [
            (opener, core)
            for opener in self.openers
            for core in self.cores
            if not (_TEXT_FIRST.match(core) and _WITHIN.search(opener))
        ]


def joined(opener: str, core: str, closer: str) -> str:
    """Return the parts as one text. The core starts in lower case within a sentence, and with a capital after one."""
    if not _WITHIN.search(opener):
        core = core[:1].upper() + core[1:]
    elif not re.match(r"I\b", core):
        core = core[:1].lower() + core[1:]
    opener += " " if opener and not opener.endswith("\n") else ""
    return opener + core + (" " if closer and not closer.startswith("\n") else "") + closer


@functools.cache
def acts() -> dict[str, Act]:
    """Return the acts of both speakers by name."""
    speakers = ("user", "assistant")
    return {name: Act(who, **parts) for who in speakers for name, parts in wordings("acts.yaml")[who].items()}


def worded(name: str, rng: random.Random, slots: Mapping[str, str], casual: bool = False) -> str:
    """Return an act in one of its wordings.

    Args:
        slots: The text for each slot of the wordings.
        casual: A user message is typed carelessly.
    """
    act = acts()[name]
    if act.plain_share and rng.random() < act.plain_share:
        template = act.plain
    else:
        template = joined(*rng.choice(act.pairs), rng.choice(act.closers))
    if casual and act.speaker == "user":
        template = _typed_carelessly(template, rng)
    # Slots are filled last and once, so a problem's text is never changed, and its braces are never read as slots.
    if empty := "|".join(slot for slot, text in slots.items() if not text):  # the space before an empty slot goes too
        template = re.sub(rf" \{{(?:{empty})\}}", "", template)
    return template.format_map(slots).strip()


def _typed_carelessly(template: str, rng: random.Random) -> str:
    """Return a wording without capitals at sentence starts and final full stop; half of the users drop apostrophes too."""
    template = _CAPITAL.sub(lambda match: match[0].lower(), template).removesuffix(".")
    if rng.random() < 0.5:
        return template
    return "".join(part if part.startswith("{") else _without_apostrophes(part) for part in _SLOT.split(template))


def _without_apostrophes(text: str) -> str:
    text = re.sub(r"(?<=[a-z])'(?=(?:t|s|m|re|ve|d|ll)\b)|(?<=I)'(?=m\b|ve\b|d\b)", "", text)
    return re.sub(r"\bI(m|ve|d|ll)?\b", lambda match: "i" + (match[1] or ""), text)
