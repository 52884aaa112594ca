"""The dialogue acts and their phrasings: what is said, apart from the mathematics it is said about.

A phrasing is opener + core + closer, drawn separately, so that an act has dozens of wordings and none of
them dominates. User turns are written the way people type: short, not always polite, at times without a
capital or a full stop. Assistant turns that answer never close with a question: a model that learns to close
with "Does that help?" asks when nothing is missing. Slots are filled by `scripted`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

Parts = tuple[str, ...]


@dataclass(frozen=True)
class Act:
    """Openers end with a space or are empty; one that ends with ", " makes the core begin small."""

    speaker: str
    openers: Parts
    cores: Parts
    closers: Parts = ("",)

    @property
    def combinations(self) -> int:
        return len(self.openers) * len(self.cores) * len(self.closers)


@dataclass(frozen=True)
class Said:
    """A phrased act: its text, and which parts it was made of ("ask:2.5.0")."""

    text: str
    wording: str


ACTS: dict[str, Act] = {
    # The assistant names the missing given. One or two sentences, a question mark, no number.
    "ask": Act(
        "assistant",
        ("", "", "", "One number is missing. ", "I can't finish this yet. ", "Before I start, one thing is unclear. ",
         "Almost everything is here. ", "I need one more detail. "),
        ("{ask}", "{ask}", "Could you tell me {clause}?", "Do you know {clause}?", "You didn't say {clause}. Can you add it?",
         "Please tell me {clause}. Do you have that?", "What is missing is {clause}. Can you give it?",
         "Can you say {clause}?"),
    ),
    "reveal": Act(
        "user",
        ("", "", "Oh, ", "Sorry, ", "Oops, ", "Right, ", "Ah, ", "My bad. "),
        ("{reveal}", "{reveal}", "it's {short}.", "{short}.", "it says {short}.", "I forgot that, it's {short}.",
         "that one is {short}.", "{short}, I left that out."),
    ),
    "solve": Act(
        "assistant",
        ("", "", "", "", "Let's go step by step.\n", "Sure.\n", "Here is how it works.\n", "Step by step:\n"),
        ("{steps}\n{final}",),
    ),
    "solve_revealed": Act(
        "assistant",
        ("", "", "Thanks.\n", "Good, now it works.\n", "With that number we can go on.\n", "Okay, that was the missing number.\n",
         "Great, now everything is there.\n", "Thanks, so {short} it is.\n"),
        ("{steps}\n{final}",),
    ),
    "first_step": Act(
        "assistant",
        ("", "Thanks. ", "Okay. ", "Good. ", "Let's begin. "),
        ("{step}", "First: {step_small}", "Step one: {step_small}"),
        (" Is that step clear?", " Do you see why?", " Does that make sense so far?", " Can you guess what comes next?",
         " What would you do with that number?"),
    ),
    "go_on": Act(
        "user",
        ("", "", "Yes, ", "Ok, ", "Yeah, ", "I think so, "),
        ("{result} makes sense. What comes after that?", "so {result}. And then?", "I see the {result}. What next?",
         "I got {result} there too. What's the rest?", "{expression} is clear. Show me the rest.",
         "now what do I do with the {result}?"),
    ),
    "finish": Act(
        "assistant",
        ("", "Right. ", "Exactly. ", "Now the rest. ", "From {result} we go on. ", "Okay, the rest. ", "Let's finish. ",
         "With {result} we can go on. ", "Good. "),
        ("{steps}\n{final}",),
    ),
    "why": Act(
        "user",
        ("", "", "Wait, ", "Hm, ", "Ok but ", "One thing: "),
        ("why do you {action}?", "why {expression}?", "where does the {result} come from?", "how did you get {result}?",
         "why {verb} there?", "I don't get the {result}. Why {verb}?", "what is {expression} for?"),
    ),
    "because": Act(
        "assistant",
        ("", "", "", "Good question. ", "Look at it this way. ", "It is like this. "),
        ("We {action} because {why}.", "{Why}, so we {action}.", "Because {why}. So we {verb}.",
         "{Why}. That is why we {action}.", "We have to {action}, since {why}."),
        ("", "", " That gives {result}.", " So {equation}."),
    ),
    "doubt": Act(
        "user",
        ("", "", "Hmm, ", "Wait, ", "Are you sure? ", "Hold on, "),
        ("shouldn't it be {wrong}?", "isn't it {wrong} instead of {expression}?", "I would do {wrong}, not {expression}.",
         "why not {wrong}?", "I thought you have to {wrong_verb} there, so {wrong}.",
         "{result} looks off. Isn't it {wrong}?"),
    ),
    "settle": Act(
        "assistant",
        ("", "No. ", "Not here. ", "I am sure about this one. ", "It would not fit. ", "I see the idea. "),
        ("{why_sentence} So we {verb}: {equation}.", "{why_sentence} That means {equation}.",
         "{why_sentence} {wrong} would answer another question."),
        ("", "", " The answer stays {answer}.", " So {answer} is right."),
    ),
    "own_wrong": Act(
        "user",
        ("", "", "Hmm, ", "Weird, ", "Wait, ", "Ok, but "),
        ("I got {slip} instead. {way}", "my answer was {slip}. {way}", "I have {slip} in my notebook. {way}",
         "why is it not {slip}? {way}", "my friend says it's {slip}. {way}", "{slip} is what I had. {way}",
         "not {answer}, I'd say {slip}. {way}"),
    ),
    "correct": Act(
        "assistant",
        ("", "", "I see what happened. ", "That is a common slip. ", "Close, but no. "),
        ("{diagnosis}",),
        ("", "", " So it is {answer}, not {slip}.", " That is why the answer is {answer}.", " The answer stays {answer}."),
    ),
    "what_if": Act(
        "user",
        ("", "", "Ok. ", "Got it. ", "Nice. ", "And "),
        ("what if {condition} instead?", "what would change if {condition}?", "what happens if {condition}?",
         "what's the answer if {condition} instead?", "suppose {condition}. What then?", "say {condition}. Does {answer} change?"),
    ),
    "recompute": Act(
        "assistant",
        ("", "", "Then it changes. ", "Let's see. ", "The way stays the same. ", "Only the numbers change. "),
        ("{steps}", "In that case: {steps}", "With that: {steps}"),
        ("", " The new answer is {new}.", " So it would be {new} instead of {answer}.", " That makes {new} and not {answer}.",
         " So {answer} turns into {new}."),
    ),
    "check": Act(
        "user",
        ("", "", "Hm, ", "Ok, ", "Wait, ", "Just to be safe: "),
        ("are you sure about {result}?", "can you check the {result}?", "how do we know {result} is right?",
         "is {equation} really right?", "can you prove that it's {result}?", "{result} seems strange. Can you check it?"),
    ),
    "checked": Act(
        "assistant",
        ("", "Yes. ", "Sure. ", "Let's check it backwards. ", "Let's undo the step. "),
        ("{check}, so {equation} is right.", "Going back, {check}. That is the number we started from.",
         "{equation}, because {check}.", "If {expression} is {result}, then {check_left} must be {left}, and it is."),
        ("", "", " So {answer} stands.", " The answer {answer} is fine."),
    ),
    "wrong_start": Act(
        "user",
        ("",),
        ("{question}\n\nI got {slip}. {way}", "{question}\n\nMy answer is {slip}. {way}", "{question}\n\nIs it {slip}? {way}",
         "{question} I think it's {slip}. {way}", "{question} I tried it and have {slip}. {way}",
         "Can you check this? {question} I say {slip}. {way}", "My homework: {question} My result is {slip}. {way}",
         "{question}\n\n{slip}, right? {way}"),
    ),
    "correct_start": Act(
        "assistant",
        ("Not quite. ", "Almost. ", "{slip} is not right. ", "No, it is not {slip}. ", "There is one slip. ", "Good try. ",
         "Not {slip}. ", "I get something else. ", "That is not it yet. ", "Let me check that. "),
        ("{diagnosis}\n{steps}\n{final}",),
    ),
    "ask_hint": Act(
        "user",
        ("",),
        ("{question}\n\nJust a hint please, not the answer.", "{question} Give me a hint, I want to solve it myself.",
         "{question}\n\nhow do I start? don't solve it", "{question} I'm stuck. Only a hint, ok?",
         "I need a hint for this one. {question}", "No solution please, only a hint: {question}",
         "{question} What should I do first? Don't tell me the result.", "{question}\n\nhint?"),
    ),
    "hint": Act(
        "assistant",
        ("", "Sure. ", "Here is a hint. ", "Okay, only the start. ", "One hint. "),
        ("Look at this first: {why}. So {action}.", "{Why}. Use that and {action} first.",
         "Start here: {why}. That means you {verb}.", "Begin with {expression}, because {why}.",
         "{Why}, so your first step is to {verb}."),
        ("", "", " Tell me what you get.", " Then go on with the result."),
    ),
    "attempt": Act(
        "user",
        ("", "", "Ok, ", "So ", "Let me try. ", "Hmm, "),
        ("{tried}. Is that it?", "I get {tried_result}. Right?", "{tried}. And now?", "that's {tried_result}, what's next?",
         "then {tried}?", "{tried}, correct?"),
    ),
    "confirm": Act(
        "assistant",
        ("", "Yes. ", "Right. ", "Exactly. ", "That's it. ", "Correct. "),
        ("{equation} is the first step.\n{rest}{final}", "{step}\n{rest}{final}", "{result} is right.\n{rest}{final}"),
    ),
    "redirect": Act(
        "assistant",
        ("Not yet. ", "No. ", "Close. ", "Careful. ", "Look again. "),
        ("{why_sentence} So it is {equation}, not {tried}.\n{rest}{final}",
         "{why_sentence} That calls for {expression}, which is {result}.\n{rest}{final}"),
    ),
    # For solutions that are only text: a step is traced to what stands before it, or to the question.
    "trace": Act(
        "user",
        ("", "", "Wait, ", "Hm, ", "Ok but ", "One thing: "),
        ("how did you get {piece}?", "where does {piece} come from?", "I don't see {piece}. Can you show that part again?",
         "can you explain the part with {piece}?", "why is that {piece}?", "you lost me at {piece}."),
    ),
    "traced": Act(
        "assistant",
        ("", "It follows from the line before. ", "Let me put the two lines next to each other. ", "Here is that part again. ",
         "One line at a time. "),
        ("{before} {line}", "First: {before} Then: {line}", "We had this: {before} From there: {line}"),
    ),
    "source": Act(
        "assistant",
        ("", "Good question. ", "Look at the text again. ", "From the problem itself. "),
        ('The problem says "{quote}" That is where {expression} comes from.', 'It says "{quote}" So we {action}.',
         'Because of this sentence: "{quote}" It gives {equation}.'),
    ),
}  # fmt: skip

FINALS = (
    "So the answer is {box}.", "The answer is {box}.", "Answer: {box}", "That makes {box}.", "So it is {box}.",
)  # fmt: skip


def say(act: str, rng: random.Random, slots: Mapping[str, str], casual: bool = False) -> Said:
    """The act in one of its wordings, `slots` filled in. `casual` types a user turn without capital and final dot."""
    table = ACTS[act]
    core = rng.randrange(len(table.cores))
    starts_with_slot = table.cores[core].startswith("{")
    fitting = [i for i, text in enumerate(table.openers) if not (starts_with_slot and _joins(text))]
    opener, closer = rng.choice(fitting), rng.randrange(len(table.closers))
    text = table.openers[opener] + _cased(table.cores[core], table.openers[opener]) + table.closers[closer]
    if casual and table.speaker == "user":
        text = text[:1].lower() + text[1:]
        text = text.removesuffix(".")
    return Said(text.format_map(slots).strip(), f"{act}:{opener}.{core}.{closer}")


def _joins(opener: str) -> bool:
    return bool(opener) and opener.rstrip()[-1] not in ".?!:"


def _cased(core: str, opener: str) -> str:
    """The core's first letter as its opener wants it: small after a comma, large after a full stop."""
    if _joins(opener) or opener.endswith(": "):
        return core if core.startswith(("I ", "I'", "{")) else core[:1].lower() + core[1:]
    return core[:1].upper() + core[1:]
