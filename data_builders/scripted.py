"""Turns a problem into a conversation without any model, from what holds without understanding the text.

Four kinds: *complete*, where the question holds everything and is answered at once; *underspecified*, where one needed
thing is left out and the assistant asks for it; *wrong_start* and *right_start*, where the user brings a result and the
assistant names the slip or confirms. Some go on with a reaction whose reply gives a reason.

Most problems that are asked about in one conversation are answered at once in another (a contrast pair), in the same
words. A result is brought along only for problems that know a wrong one, so that nothing but the result tells whether
it is right.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from nextturn.data_builders.recipe import Conversations, wordings
from nextturn.data_builders.recipe import ScriptedKind as Kind
from nextturn.data_builders.tasks import Conversation, Gap, Slip, Step, Task
from nextturn.probe.conversations import Message

_CASUAL = 0.3  # conversations whose user types without capital, final dot and, at times, apostrophes


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
    script = Script(task, random.Random(f"converse:{seed}:{kind}:{task.id}"), frame, frame.random() < _CASUAL)
    getattr(script, kind)()
    if script.rng.random() < settings.reactions:
        script.react()
    return Conversation(
        id=f"{task.id}-{kind}",
        kind=kind,
        messages=tuple(script.messages),
        source=task.source,
        answer=task.answer,
        hidden=script.gap.value if script.gap else "",
        reveal_at=2 if script.gap else 0,
        task=task,
        gap=script.gap,
        doubts=(False,) * ("doubt" in script.acts),
        reason="" if task.solution else "no_solution",
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
    acts: list[str] = field(default_factory=list)
    gap: Gap | None = None

    def turn(self, act: str, **slots: str) -> None:
        """The next turn: the act in one of its wordings."""
        answer = in_sentence(self.task, self.task.answer)
        text = say(act, self.frame if not self.messages else self.rng, {"answer": answer, **slots}, self.casual)
        self.acts.append(act)
        self.messages.append({"role": acts()[act].speaker, "content": text})

    def open(self, question: str, beside: str) -> None:
        """The problem alone, or with another one on the same sheet."""
        act = self.frame.choice(("sheet_first", "sheet_second")) if beside else "open"
        self.turn(act, question=question.strip(), beside=beside)

    def solution(self) -> str:
        """The worked solution with the boxed answer; a reference solution that has it word for word."""
        task = self.task
        if task.boxed_solution:
            return task.boxed_solution
        box = f"\\boxed{{{task.answer}}}"
        if task.template and self.rng.random() < _OWN_FINAL:
            final = task.final.format(box=box)
        else:
            final = say("final", self.rng, {"box": box})
        return f"{task.solution}\n{final}"

    def way(self, did: str) -> str:
        """How the user says that a result came about; at times not at all."""
        return say("way", self.rng, {"did": did}) if did and self.rng.random() < _SHOWS_WAY else ""

    def complete(self) -> None:
        self.open(self.task.question, self.task.lacking_beside)
        self.turn("solve", solution=self.solution())

    def underspecified(self) -> None:
        gap = self.gap = self.rng.choice(self.task.gaps)
        slots = {"ask": gap.ask, "clause": gap.clause, "reveal": gap.reveal, "short": gap.short}
        self.open(gap.question, self.task.whole_beside)
        self.turn("ask", **slots)
        self.turn("reveal", **slots)
        self.turn("solve_revealed", solution=self.solution(), **slots)

    def wrong_start(self) -> None:
        task, slip = self.task, self.rng.choice(self.task.slips)
        wrong = in_sentence(task, slip.answer)
        self.turn("start", question=task.question.strip(), result_of_user=wrong, way=self.way(_did(task, slip)))
        diagnosis = self.diagnosis(slip)
        self.turn("correct_start", result_of_user=wrong, diagnosis=diagnosis, solution=self.solution())

    def right_start(self) -> None:
        task = self.task
        right, last = in_sentence(task, task.answer), task.steps[-1]
        did = last.equation if last.op and not task.boxed_solution else ""
        self.turn("start", question=task.question.strip(), result_of_user=right, way=self.way(did))
        self.turn("confirm_start", result_of_user=right, solution=self.solution())

    def diagnosis(self, slip: Slip) -> str:
        """Names the slip: another operation, a wrong sum, a step that is missing, or a value on the way."""
        task, step = self.task, self.task.steps[slip.at]
        slots = {
            "result_of_user": in_sentence(task, slip.answer),
            "did": slip.did,
            "wrong": slip.did.partition(" =")[0],
        }
        if slip.quote:
            return say("diagnose_value", self.rng, {**slots, "value_of": slip.quote, "asked": f'"{task.asked}"'})
        if slip.did:
            act = "diagnose_sum" if slots["wrong"] == step.expression else "diagnose_operation"
            return say(act, self.rng, slots | _step_slots(step))
        following = task.steps[slip.at + 1].text
        return say("diagnose_early", self.rng, {**slots, **_step_slots(step), "following": following})

    # --- What a user says after an answer, and the reply, which gives a reason: why an operation fits, a step undone, another
    # number with everything computed again, or what is wrong with a result that the user names.

    def react(self) -> None:
        """One reaction and its reply; nothing where the problem has the material for none."""
        task, rng = self.task, self.rng
        slips = [] if self.acts[:1] == ["start"] else task.slips
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
            self.turn("what_if", condition=change.condition)
            self.turn("recompute", steps=told, new=change.answer)
        elif name == "doubt":
            slip = rng.choice(slips)
            wrong = in_sentence(task, slip.answer)
            self.turn("doubt", result_of_user=wrong, way=self.way(_did(task, slip)))
            self.turn("correct", result_of_user=wrong, diagnosis=self.diagnosis(slip))
        else:
            slots = _step_slots(rng.choice(found[name]))
            self.turn(name, **slots)
            self.turn({"why": "because", "check": "checked"}[name], **slots)


def _did(task: Task, slip: Slip) -> str:
    """What a user who made the slip has on paper; "" of a text solution, whose lines are not the user's."""
    step = task.steps[slip.at]
    return slip.did or (step.equation if step.op and not task.boxed_solution else "")


def _step_slots(step: Step) -> dict[str, str]:
    """Everything a phrasing may say about a step that has an equation."""
    named = {name: getattr(step, name) for name in ("expression", "equation", "left", "result", "why", "undone")}
    return {**named, "Why": step.why[:1].upper() + step.why[1:]}


def in_sentence(task: Task, value: str) -> str:
    """An answer as it stands in a sentence: as a formula where it is LaTeX and no plain number."""
    plain = not task.boxed_solution or re.fullmatch(r"-?\d[\d,.]*", value) or "$" in value
    return value if plain else f"${value}$"


# --- How a thing is said: drawn from `acts.yaml`, apart from the mathematics it is said about.

# Slots that hold a number or a formula, which have no capital to lose after "Yes, ".
_CASELESS = "answer|did|equation|expression|left|new|result|result_of_user|short|undone|value_of|wrong"
_TEXT_FIRST = re.compile(rf"\{{(?!(?:{_CASELESS})\}})")
_SLOT = re.compile(r"(\{\w+\})")
# The first letter of a sentence; "I" and "I'm" stay.
_CAPITAL = re.compile(r"(?:^|(?<=[.?!]\s)|(?<=\n))(?!I\b)[A-Z]")
# An opener after which the core goes on within the sentence: "Ok,", "One thing:".
_WITHIN = re.compile(r"[^.?!\n]\Z")


@dataclass(frozen=True)
class Act:
    """The parts of an act. A phrasing is opener + core + closer, or `plain` in a share `plain_share` of the uses."""

    speaker: str
    openers: list[str]
    cores: list[str]
    closers: list[str] = field(default_factory=lambda: [""])
    plain: str = ""
    plain_share: float = 0.0

    @functools.cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """The openers and cores that go together: no sentence of the problem is torn into the middle of another."""
        torn = [bool(_TEXT_FIRST.match(core)) for core in self.cores]
        return [
            (i, j)
            for i, opener in enumerate(self.openers)
            for j in range(len(self.cores))
            if not (torn[j] and _WITHIN.search(opener))
        ]

    def template(self, opener: int, core: int, closer: int) -> str:
        """These three parts as one text, the core's first letter small within a sentence and large after one."""
        before, text, after = self.openers[opener], self.cores[core], self.closers[closer]
        if not _WITHIN.search(before):
            text = text[:1].upper() + text[1:]
        elif not re.match(r"I\b", text):
            text = text[:1].lower() + text[1:]
        before += " " if before and not before.endswith("\n") else ""
        return before + text + (" " if after and not after.startswith("\n") else "") + after


@functools.cache
def acts() -> dict[str, Act]:
    """The acts of both speakers by name."""
    return {
        name: Act(speaker=speaker, **told)
        for speaker in ("user", "assistant")
        for name, told in wordings("acts.yaml")[speaker].items()
    }


def say(name: str, rng: random.Random, slots: Mapping[str, str], casual: bool = False) -> str:
    """The act in one of its wordings, `slots` filled in; `casual` types a user turn the way people type."""
    act = acts()[name]
    if act.plain_share and rng.random() < act.plain_share:
        template = act.plain
    else:
        opener, core = rng.choice(act.pairs)
        template = act.template(opener, core, rng.randrange(len(act.closers)))
    if casual and act.speaker == "user":
        template = _typed_in_a_hurry(template, rng)
    # Slots are filled once and last, so nothing of a problem's text is ever changed or read as a slot.
    if empty := "|".join(slot for slot, text in slots.items() if not text):  # it takes the space before it along
        template = re.sub(rf" \{{(?:{empty})\}}", "", template)
    return template.format_map(slots).strip()


def _typed_in_a_hurry(template: str, rng: random.Random) -> str:
    """No capital at the start of a sentence, no final full stop, and in half of the cases no apostrophes and a small
    "i". Only our own words: a slot is left as it is."""
    template = _CAPITAL.sub(lambda match: match[0].lower(), template).removesuffix(".")
    if rng.random() < 0.5:
        return template
    return "".join(part if part.startswith("{") else _hurried(part) for part in _SLOT.split(template))


def _hurried(text: str) -> str:
    text = re.sub(r"(?<=[a-z])'(?=(?:t|s|m|re|ve|d|ll)\b)|(?<=I)'(?=m\b|ve\b|d\b)", "", text)
    return re.sub(r"\bI(m|ve|d|ll)?\b", lambda match: "i" + (match[1] or ""), text)
