"""The dialogue acts and their phrasings: what is said, apart from the mathematics it is said about.

User turns are written the way people type: short, not always polite, at times without a capital or a full stop.
Assistant turns that answer never close with a question: a model that learns to close with "Does that help?" asks when
nothing is missing.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# --- What a dialogue act is, and how one of its wordings is drawn and typed.
#
# A phrasing is opener + core + closer. All pairs of an opener and a core that go together are equally likely, and so
# are the closers, so an act with dozens of combinations has no favourite. `plain` is the act without any phrasing of
# ours: the bare question, the bare solution.

Parts = tuple[str, ...]

# Slots that hold a number or a formula, which have no capital to lose after "Yes, ".
_CASELESS = re.compile(
    r"\{(?:answer|equation|expression|formula|known|left|new|number|other|piece|result|short|slip|tried|tried_result|wrong)\}"
)
_SLOT = re.compile(r"(\{\w+\})")
# The first letter of a sentence; "I" and "I'm" stay.
_CAPITAL = re.compile(r"(?:^|(?<=[.?!]\s)|(?<=\n))(?!I\b)[A-Z]")
_BARE = "bare"


@dataclass(frozen=True)
class Act:
    """The parts of an act. Openers end with a space or a line end, or are empty; after one that ends within a sentence
    ("Ok, ", "One thing: ") the core begins small. `plain` is said instead in a share `bare` of the uses."""

    speaker: Literal["user", "assistant"]
    openers: Parts
    cores: Parts
    closers: Parts = ("",)
    plain: str = ""
    bare: float = 0.0

    @functools.cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The openers and cores that go together: no sentence of the problem is torn into the middle of another."""
        return tuple(
            (i, j)
            for i, opener in enumerate(self.openers)
            for j, core in enumerate(self.cores)
            if not (_joins(opener) and core.startswith("{") and not _CASELESS.match(core))
        )

    @property
    def combinations(self) -> int:
        return len(self.pairs) * len(self.closers)


@dataclass(frozen=True)
class Said:
    """A phrased act: its text, and which parts it was made of ("ask_number:2.5.0", "solve:bare"); `wording` is empty
    for a text of the problem's own."""

    text: str
    wording: str
    parts: tuple[str, ...] = ()  # the wordings of phrases inside this one

    @property
    def wordings(self) -> tuple[str, ...]:
        return tuple(wording for wording in (self.wording, *self.parts) if wording)


Slots = Mapping[str, "str | Said"]


def phrase(name: str, act: Act, rng: random.Random, slots: Slots, casual: bool = False) -> Said:
    """The act in one of its wordings, `slots` filled in; `casual` types a user turn the way people type."""
    if act.bare and rng.random() < act.bare:
        template, wording = act.plain, _BARE
    else:
        opener, core = rng.choice(act.pairs)
        closer = rng.randrange(len(act.closers))
        template = act.openers[opener] + _cased(act.cores[core], act.openers[opener]) + act.closers[closer]
        wording = f"{opener}.{core}.{closer}"
    if casual and act.speaker == "user":
        template = _typed(template, rng)
    # Slots are filled once and last, so nothing of a problem's text is ever changed or read as a slot.
    texts = {slot: value.text if isinstance(value, Said) else value for slot, value in slots.items()}
    parts = tuple(
        inner
        for slot, value in slots.items()
        if isinstance(value, Said) and f"{{{slot}}}" in template
        for inner in value.wordings
    )
    return Said(template.format_map(texts).strip(), f"{name}:{wording}", parts)


def _joins(opener: str) -> bool:
    return bool(opener) and opener[-1] == " " and opener[-2] not in ".?!"


def _cased(core: str, opener: str) -> str:
    """The core's first letter as its opener wants it: small after a comma or colon, large after a full stop."""
    if _joins(opener):
        return core if re.match(r"I\b", core) else core[:1].lower() + core[1:]
    return core[:1].upper() + core[1:]


def _typed(template: str, rng: random.Random) -> str:
    """Typed in a hurry: no capital at the start of a sentence, no final full stop, and at times no apostrophes and a
    small "i". Only our own words: a slot is left as it is."""
    template = _CAPITAL.sub(lambda match: match[0].lower(), template).removesuffix(".")
    if rng.random() < 0.5:
        return template
    ours = [part if part.startswith("{") else _hurried(part) for part in _SLOT.split(template)]
    return "".join(ours)


def _hurried(text: str) -> str:
    text = re.sub(r"(?<=[a-z])'(?=(?:t|s|m|re|ve|d|ll)\b)|(?<=I)'(?=m\b|ve\b|d\b)", "", text)
    return re.sub(r"\bI(m|ve|d|ll)?\b", lambda match: "i" + (match[1] or ""), text)


# --- What the assistant asks, and what it says while something is missing. Only these turns end in a question.
#
# A question for what is withheld names it: {ask} is a whole question, {clause} follows "tell me", {thing} is a noun
# phrase. None of them states a value.

# The bare question is the best one. It is also what lets greedy decoding ask at all: many openings share what chance
# asking has, so each of them alone would lose against the first word of a solution.
_BARE_ASK = 0.4
_UNCLEAR: Parts = (
    "", "I can't finish this yet. ", "Before I start, one thing is unclear. ", "Almost everything is here. ",
    "I need one more detail. ", "One thing is missing. ", "I read it twice, and something is missing. ",
    "There is a gap in the text. ", "I'd like to solve this, but something is missing. ", "Quick question first. ",
)  # fmt: skip
_TELL: Parts = (
    "{ask}", "Could you tell me {clause}?", "Do you know {clause}?", "Can you tell me {clause}?",
    "Your text doesn't say {clause}. Do you have that?", "I still need to know {clause}. Can you look it up?",
    "Can you look up {clause}?", "Would you tell me {clause}?",
)  # fmt: skip
_CHECKS: Parts = (
    " Is that step clear?", " Do you see why?", " Does that make sense so far?", " Can you see what comes next?",
    " What would you do next?", " Can you follow that?", " Is that clear so far?", " Does that step look right to you?",
)  # fmt: skip
_BEGIN: Parts = ("", "Sure. ", "Okay. ", "Good. ", "Let's begin. ", "All right. ")

# fmt: off
ASSISTANT_ASKS: dict[str, Act] = {
    "ask_number": Act(
        "assistant", (*_UNCLEAR, "One number is missing. ", "The way is clear, but I lack a number. "),
        (*_TELL, "I don't have {thing}. What does the problem say?", "I can't find {thing}. Can you give it?",
         "The answer depends on {thing}. What is it?", "I need {thing} for that. Do you have it?",
         "Without {thing} I can't compute it. Can you add it?"),
        plain="{ask}", bare=_BARE_ASK,
    ),
    "ask_formula": Act(
        "assistant", (*_UNCLEAR, "A formula is missing. ", "I can't work with this yet. "),
        (*_TELL, "I don't have {thing}. Can you write it out?", "I can't find {thing}. How does it read?",
         "Everything depends on {thing}. What does it say?", "I need {thing} for that. Do you have it?",
         "Without {thing} I can't go on. Can you add it?"),
        plain="{ask}", bare=_BARE_ASK,
    ),
    "ask_goal": Act(
        "assistant",
        (*_UNCLEAR, "I see what is given, but not what is wanted. ", "The end of the problem seems to be cut off. "),
        (*_TELL, "I don't see {thing}. Can you add it?", "What is {thing}?",
         "The text stops before {thing}. How does it end?", "I can't find {thing}. Can you copy it here?",
         "Without {thing} I don't know where to go. Can you send it?"),
        plain="{ask}", bare=_BARE_ASK,
    ),
    "ask_figure": Act(
        "assistant", (*_UNCLEAR, "The text mentions {thing}, but it didn't come through. ", "Something didn't come through. "),
        (*_TELL[1:], "I don't have {thing}. Can you paste it?", "I would need {thing}. Can you describe it?",
         "The answer depends on {thing}. Can you send it?", "I can't see {thing}. What is in it?",
         "Without {thing} I can't go on. Can you add it?"),
        plain="{ask}", bare=_BARE_ASK,
    ),
    "ask_problem": Act(
        "assistant",
        ("", "Sure. ", "Of course. ", "Yes, happily. ", "Okay. ", "Let's look at it. ", "No problem. ",
         "We can sort that out. ", "I'm here. ", "Glad to help. ", "All right. ", "Don't worry. "),
        ("What does the problem say?", "Can you type out the whole problem?", "What is the exact wording?",
         "Could you send me the problem as it is written?", "Which problem is it?", "What are you given, and what is asked?",
         "Can you copy the problem here, with all its numbers?", "How does the problem read, word for word?",
         "Can you paste the full text?", "What exactly is the question?", "What does it say, from start to end?",
         "Can you send the wording?", "How is {the_topic} worded?",
         "Can you write {the_topic} down here?"),
    ),
    # The user did not see what is meant, or named something else.
    "which_place": Act(
        "assistant",
        ("", "Let me put it another way. ", "Sorry, I'll be clearer. ", "I mean one place in particular. ",
         "It's easy to overlook. ", "Let me say it again. ", "One thing isn't there. ", "Sorry if that was unclear. ",
         "You did give the rest. ", "Nearly everything is there. ", "I'll say it differently. ", "One spot is empty. ",
         "Let me be more exact. ", "I may have been too short. ", "It's only one thing. ", "No harm done. "),
        ("What I need is {thing}. {ask}", "I mean {thing}. {ask}", "It's about {thing}. What does it say there?",
         "Your text never says {clause}. Can you find that?", "I'm looking for {thing}. Can you find it?",
         "Nothing in the text tells me {clause}. Is a line missing?", "I can't tell {clause}. Does your book say it?",
         "It's only about {thing}. Do you have that?", "I was asking {clause}. Can you look again?",
         "Somewhere it should say {clause}. Can you see it?", "Everything but {thing} is there. Do you have it?",
         "Do you see anywhere {clause}?", "Your sheet should say {clause}. Does it?", "Can you check once more {clause}?", "I only lack {thing}. Can you add it?"),
    ),
    "not_that": Act(
        "assistant",
        ("", "No. ", "Not that one. ", "I have that. ", "That part is clear. ", "That one is there, yes. ", "Thanks, I saw that. ",
         "Something else. ", "That one I can read. ", "Not quite. ", "I mean something else. ", "Close, but no. ", "That's another one. ",
         "I did see that. ", "Almost. "),
        ("What I need is {thing}. {ask}", "I mean {thing}. {ask}", "{known} is in the text, {thing} is not. What is it?",
         "Besides {known} I need {thing}. Do you have it?", "The text says {known}, but not {clause}. Can you look that up?",
         "I know about {known}. What about {thing}?", "It's about {thing}, not {known}. Can you find it?",
         "I can use {known}. I still don't know {clause}. Can you add that?",
         "{known} is fine. It's {thing} that I don't have. Can you find it?",
         "With {known} alone I still can't tell {clause}. Is there more?",
         "{known} is one thing, {thing} another. Do you have that, too?", "Apart from {known}, I need to know {clause}. Can you look?",
         "Yes, {known} is given. Can you also tell me {clause}?"),
    ),
    # {about} is " for {thing}", or empty where the given has no name.
    "contradiction": Act(
        "assistant",
        ("", "Something doesn't fit. ", "Two places disagree. ", "I can't solve it like this. ", "The text contradicts itself. ",
         "Before I start, one thing. ", "Hold on. ", "Something is off in the text. ", "I stumbled over one thing. ",
         "The text doesn't agree with itself. ", "There may be a typo. ", "One thing confuses me. ", "I have to ask first. ",
         "Something is there twice. ", "Not so fast. ", "I read it twice. ", "There is a contradiction. ", "A small problem first. ",
         "One place is wrong. ", "I can't use both. "),
        ("I see {short} and also {other}{about}. Which one is right?",
         "It says {short} in one place and {other} in another. Which should I take{about}?",
         "Both {short} and {other} are given{about}. Which is it?",
         "There are two values{about}, {short} and {other}. Which one holds?",
         "First it says {short}, then {other}{about}. Which one counts?",
         "They can't both be right{about}: {short} and {other}. Can you check?",
         "Is it {short} or {other}? The text has both{about}. Can you check which is right?",
         "I find two values{about}: {short} and {other}. Which should I use?",
         "{short} and {other} are both there{about}. Which one is it?",
         "The text gives {short} and, further on, {other}{about}. Which one should I trust?",
         "I don't know which to use{about}, {short} or {other}. Can you look it up?",
         "We have {short} and {other}{about}, and only one can be true. Which one?"),
    ),
    # Nothing can be settled without it: no guess, no question.
    "cannot": Act(
        "assistant",
        ("", "Then I have to stop here. ", "I would only be guessing. ", "Then it stays open. ", "Then I can't give you an answer. ",
         "A guess would not help you. "),
        ("It can't be worked out without {thing}.", "The answer depends on {thing}, and the text doesn't give it.",
         "Everything else is there, but {thing} is not, and the answer depends on it.",
         "As long as {thing} is open, the answer is open too.", "The text leaves {thing} open, and the answer with it.",
         "Nothing else in the text tells us {thing}, and the answer depends on it."),
        ("", " If you find it, I can finish.", " Once you have it, the rest is quick.", " Send it once you have it.",
         " Maybe somebody in your class has it.", " It must be somewhere near the problem."),
    ),
    "cannot_goal": Act(
        "assistant",
        ("", "Then I have to stop here. ", "I would only be guessing. ", "Then I can't give you an answer. ", "A guess would not help you. "),
        ("Without the question there is nothing to solve.", "I have what is given, but not what is asked.",
         "As long as nobody says what is wanted, there is no answer.", "What is given leads to many things, and the text asks for none of them.",
         "There has to be a question first.", "I can't answer before I know what is asked."),
        ("", " If you find it, I can finish.", " Once you have it, we can go on.", " Send it once you have it.",
         " Maybe somebody in your class has it.", " It must be somewhere near the problem."),
    ),
    "cannot_text": Act(
        "assistant",
        ("", "Then I have to stop here. ", "I would only be guessing. ", "Then it stays open. ", "Then I can't give you an answer. ",
         "A guess would not help you. "),
        ("It can't be worked out without {thing}.", "The answer depends on {thing}, and it isn't here.",
         "Everything depends on {thing}, and I don't have it.", "As long as {thing} is missing, the answer is open.",
         "The problem needs {thing}, and nothing in the text replaces it.", "Without {thing} there is nothing to work with."),
        ("", " If you find it, I can finish.", " Once you have it, we can go on.", " Send it once you have it.",
         " Maybe somebody in your class has it.", " It must be somewhere near the problem."),
    ),
    # A first step and a check of understanding, in this turn only.
    "first_step": Act("assistant", _BEGIN, ("{step}", "First: {step_small}", "Step one: {step_small}"), _CHECKS),
    "first_part": Act(
        "assistant",
        (*_BEGIN, "One step at a time. "),
        ("It begins like this.\n{start}", "The first step:\n{start}", "{start}", "Here is the beginning.\n{start}",
         "We start here.\n{start}"),
        tuple(f"\n\n{check.strip()}" for check in _CHECKS),
    ),
}



# --- How the assistant answers a reaction, and how it names a slip. None of these turns closes with a question.

_BACK: Parts = ("", "It follows from the line before. ", "Let me put the two lines next to each other. ",
                "Here is that part again. ", "One line at a time. ", "Good question. ", "I'll go back one line. ",
                "Let's look at the line before it. ", "Sure. ", "That is a big step. ")  # fmt: skip
_REASON: Parts = ("", "Good question. ", "Look at it this way. ", "Here is the reason. ", "I can explain that. ",
                  "That part is easy to miss. ")  # fmt: skip
# Before a diagnosis; "{equation} is right" may follow.
_ON_TRACK: Parts = ("", "You were on the right track. ", "I see where it comes from. ", "You stopped too early. ",
                    "That number does come up. ", "Part of that is right. ", "You are not far off. ")  # fmt: skip

# fmt: off
ASSISTANT_REPLIES: dict[str, Act] = {
    "because": Act(
        "assistant", _REASON,
        ("We {action} because {why}.", "{Why}, so we {action}.", "It is because {why}. So we {verb}.",
         "{Why}. That is why we {action}.", "We have to {action}, since {why}.", "The reason is that {why}. So we {verb}."),
        ("", " That gives {result}.", " So {equation}.", " This makes {equation}."),
    ),
    "settle": Act(
        "assistant",
        ("", "No. ", "Not here. ", "I am sure about this one. ", "It would not fit. ", "I see the idea. "),
        ("{why_sentence} So we {verb}: {equation}.", "{why_sentence} That means {equation}.",
         "{why_sentence} {wrong} would answer another question.", "{wrong} doesn't fit, because {why}.",
         "{equation} is the right one, since {why}.", "We need {expression} and not {wrong}: {why}."),
        ("", " The answer stays {answer}.", " So {answer} is right.", " It remains {answer}."),
    ),
    "correct": Act(
        "assistant",
        ("", "Not quite. ", "That is a common slip. ", "Close, but no. ", "Almost. ", "I see what happened. "),
        ("{diagnosis}", "{slip} is not it. {diagnosis}", "It isn't {slip}. {diagnosis}"),
        ("", " So it is {answer}, not {slip}.", " That is why the answer is {answer}.", " The answer stays {answer}.",
         " {answer} is what was asked for.", " So {answer} is right.", " It remains {answer}."),
    ),
    # What went wrong, as a part of another turn. The user told how the result came about, or it is inferred.
    "diagnose_told": Act(
        "assistant",
        ("", "Look closely. ", "The operation is the problem. ", "The numbers are the right ones, the operation is not. ",
         "Read that part again. ", "One step went another way. ", "It is only one step. "),
        ("{did} goes wrong: {why}, so we need to {verb}.", "You {past} in step {n}, but {why}, so it is {equation}.",
         "In step {n} it has to be {expression} and not {wrong}, because {why}.",
         "{why_sentence} So {wrong} doesn't fit, {equation} does.", "Instead of {wrong} we need {expression}, since {why}.",
         "You {past}, but {why}. That calls for {equation}.", "{why_sentence} So it can't be {wrong}."),
        ("", " That is the only slip.", " Only that one step is off."),
    ),
    "diagnose_guess": Act(
        "assistant",
        ("", "I think I see it. ", "I tried to follow you. ", "I can only guess how you got there. ", "Let me guess. ",
         "I think it is one step. "),
        ("It looks like you took {did} in step {n}. But {why}, so it is {equation}.",
         "You get there with {did}, but {why}, so we need {equation}.",
         "It seems you {past}, {did}, in step {n}. But {why}: {equation}.",
         "If you take {did}, you end up there. But {why}, so {equation}.",
         "That is what {did} leads to. But {why}, so it has to be {equation}.",
         "With {did} you would get that. But {why}, which makes {equation}."),
        ("", " That is the only slip.", " Only that one step is off."),
    ),
    "diagnose_early": Act(
        "assistant",
        ("", "You were on the right track. ", "One step is missing. ", "You stopped too early. ", "The first part is right. ",
         "You are almost there. "),
        ("{slip} is only the result of one step: {equation}.", "{equation} is right, but it is not the end.",
         "That is a number on the way, {equation}.", "{equation} is one of the steps, not the last.",
         "With {equation} you are not done yet.", "{slip} is what {expression} gives, and the problem goes on."),
        (" After that comes {following}.", " Then comes {following}.", " What follows is {following}.", " There is more to do: {following}."),
    ),
    # A text's next step need not build on this one, so only what is sure is said.
    "diagnose_on_the_way": Act(
        "assistant", _ON_TRACK,
        ("{equation} is right, but it is only a number on the way.", "{slip} is what {expression} gives, and the problem does not end there.",
         "{equation} is one of the steps, not the last.", "{equation} is part of it, but something else is asked for.",
         "With {equation} you are not done yet.", "{equation} is correct. It just isn't what is asked for.",
         "{slip} comes from {equation}, which is a step in between."),
        ("", " Read the question once more.", " There is more to do."),
    ),
    "diagnose_formula": Act(
        "assistant", _ON_TRACK,
        ("{quote} is a line on the way, and the problem asks for something else.", "{quote} comes up in the solution, but it is not the end of it.",
         "{slip} comes from {quote}, which is a step in between.", "With {quote} you are not done yet.",
         "{quote} is only a part of it.", "{quote} is one of the lines, not the last.", "After {quote} there is more to do."),
        ("", " Read the question once more.", " That is not what is asked for."),
    ),
    "recompute": Act(
        "assistant",
        ("", "Then it changes. ", "Let's see. ", "The way stays the same. ", "Only the numbers change. ", "Good idea. "),
        ("{steps}", "In that case: {steps}", "With that: {steps}", "Now it goes like this: {steps}"),
        ("", " The new answer is {new}.", " So it would be {new} instead of {answer}.", " That makes {new} and not {answer}.",
         " So {answer} turns into {new}."),
    ),
    "checked": Act(
        "assistant",
        ("", "Yes. ", "Sure. ", "Let's check it backwards. ", "Let's undo the step. ", "We can test it. "),
        ("{check}, so {equation} is right.", "Going back, {check}. That is the number we started from.",
         "{equation}, because {check}.", "If {expression} is {result}, then {check_left} must be {left}, and it is.",
         "Undo it: {check}.", "From {result} back: {check}. It fits."),
        ("", " So {answer} stands.", " The answer {answer} is fine."),
    ),
    "traced": Act(
        "assistant", _BACK,
        ("{before} {line}", "First: {before} Then: {line}", "We had this: {before} From there: {line}", "{before}\n{line}",
         "Start here: {before} That leads to this: {line}", "The line before says: {before} So: {line}"),
        ("", " That is all there is to it.", " Put them next to each other on paper."),
    ),
    "traced_line": Act(
        "assistant",
        ("", "It is one line. ", "Let me show the whole line. ", "Good question. ", "Here is that part again. ", "Sure. "),
        ("{line}", "The line is this: {line}", "It stands here: {line}", "Read it once more: {line}", "In full: {line}"),
        ("", " Nothing else goes into it.", " Go through it slowly.", " Try it on paper."),
    ),
    "source": Act(
        "assistant",
        ("", "Good question. ", "Look at the text again. ", "From the problem itself. ", "It is in the text. ", "Read it once more. "),
        ('The problem says "{quote}" That is where {expression} comes from.', 'It says "{quote}" So we {action}.',
         'Because of this sentence: "{quote}" It gives {equation}.', 'There it says "{quote}" That makes {equation}.',
         'We {action} because the text says "{quote}"', 'The sentence is this: "{quote}" That is where we get {expression}.'),
        ("", " The rest builds on it.", " Nothing else is needed for that step.", " So it is {result}."),
    ),
    "used_at": Act(
        "assistant",
        ("", "Good question. ", "It is in there. ", "Look closely. ", "We did use it. ", "Sure. "),
        ("The {number} goes into step {n}: {equation}.", "It is in step {n}, where we {action}.", "Step {n} has it: {equation}.",
         "It stands in {equation}.", "We need it in step {n} to {action}.", "{expression} in step {n} is where the {number} goes in.",
         "Without the {number} there would be no {equation}."),
        ("", " Nothing else uses it.", " That is the only place."),
    ),
    "short": Act(
        "assistant",
        ("", "Sure. ", "Yes. ", "Okay. ", "In short: ", "Of course. ", "Here you go. ", "Two or three lines are enough. "),
        ("{lines}. That gives {answer}.", "{lines}. So {answer}.", "write down {lines}. The answer is {answer}.",
         "the main lines are {lines}. Answer: {answer}.", "{lines}, and that makes {answer}.",
         "these carry it: {lines}. It comes to {answer}.", "it boils down to {lines}. Result: {answer}."),
        ("", " Leave out the rest.", " The words around it are only for reading."),
    ),
    "yes": Act(
        "assistant",
        ("", "Yes. ", "Right. ", "Exactly. ", "Correct. ", "That's it. ", "Yes, that is all. "),
        ("{answer} is the answer.", "It is {answer}.", "{answer} is what was asked for.", "The result is {answer}.",
         "Write down {answer}.", "{answer} answers the question."),
        ("", " But write down the way, too.", " The steps above show why.", " You can rely on it."),
    ),
    "welcome": Act(
        "assistant",
        ("", "You're welcome. ", "Glad it helped. ", "Good. ", "Happy to help. ", "Great. ", "Anytime. ", "Glad to hear that. "),
        ("Good luck with the next one.", "Come back when another one is stuck.", "Try a similar one while it is fresh.",
         "Have a good day.", "The next one will go faster.", "The same way works for similar ones.",
         "Keep the steps, the next ones are often alike.", "See you.", "You did well.", "Write it down once more by yourself.",
         "It gets easier with every one.", "Take care.", "Enjoy the rest of your day."),
    ),
}



# --- The assistant solves: at once, after a reveal, in parts. None of these turns closes with a question.
#
# {solution} and {rest} are the problem's own worked solution, word for word, with the boxed answer.

_NOW: Parts = (
    "Now everything is there.", "With that it works.", "Now we can solve it.", "Then it goes like this.", "Here is the solution.",
    "That is all I needed.", "Now the way is clear.", "Let's work it out.", "So let's solve it.", "Here we go.",
    "Now it can be done.", "Then we can start.",
)  # fmt: skip
_REST: Parts = (
    "Now the rest.", "From there we go on.", "Here is the rest.", "Let's finish it.", "The rest goes like this.", "Then it goes on.",
    "This is how it ends.", "It goes on like this.", "Let's bring it to the end.", "Here is what follows.", "Then the next part.",
    "On we go.", "And on to the answer.",
)  # fmt: skip
_THEN_SOLUTION: Parts = ("\n{solution}", " Step by step:\n{solution}", " From the start:\n{solution}")
_THEN_REST: Parts = ("\n{rest}", " Step by step:\n{rest}", " Line by line:\n{rest}")
_AND_REST: Parts = (
    "\n{rest}", " Now the rest.\n{rest}", " Then it goes on.\n{rest}", " From there:\n{rest}", " Here is what follows.\n{rest}",
    " Let's finish it.\n{rest}",
)  # fmt: skip
_RIGHT: Parts = ("", "Right. ", "Exactly. ", "Okay. ", "Good. ", "Yes. ", "Great. ", "Well done. ")
_CLOSE: Parts = (
    "Not yet. ",
    "No. ",
    "Close. ",
    "Careful. ",
    "Look again. ",
    "Not quite. ",
    "Almost. ",
    "Good try, but no. ",
    "Hm, no. ",
)

# fmt: off
ASSISTANT_SOLVES: dict[str, Act] = {
    "solve": Act(
        "assistant",
        ("", "Sure. ", "Okay. ", "Yes. ", "All right. ", "Happy to. ", "Of course. ", "Good. "),
        ("Let's go step by step.", "Here is how it works.", "Here is the solution.", "Everything we need is there.", "Let's work it out.",
         "This is how I would do it.", "We take it in order.", "Here is one way to do it.", "We can solve this directly.",
         "Nothing is missing here.", "Here is the whole way.", "It goes like this.", "Let's see how this works."),
        ("\n{solution}", " From the start:\n{solution}"),
        plain="{solution}", bare=0.5,
    ),
    "solve_revealed": Act(
        "assistant", ("", "Thanks. ", "Good. ", "Okay. ", "Great. ", "Perfect. ", "Got it. ", "Thank you. ", "Ah, good. "),
        ("That was the missing piece.", *_NOW), _THEN_SOLUTION, plain="{solution}", bare=0.3,
    ),
    "solve_found": Act(
        "assistant",
        ("", "Good that you looked. ", "Great. ", "Good find. ", "Perfect. ", "That helps. ", "Excellent. ", "Thanks for looking. "),
        ("Now there is one answer.", "That was the missing piece.", *_NOW), _THEN_SOLUTION, plain="{solution}", bare=0.15,
    ),
    "solve_picked": Act(
        "assistant",
        ("", "Thanks. ", "Good. ", "Okay. ", "That settles it. ", "All right. ", "Thanks for checking. ", "Got it. ", "Great. "),
        ("Then {short} it is.", "We go on with {short}.", "So we leave out {other}.", "With {short} it works.", "I take {short} then.",
         "Now the text fits together.", "Then we can forget about {other}.", "So {other} was the wrong one.", "Then we can solve it.",
         "So we use {short}.", "We work with {short}, not {other}."),
        _THEN_SOLUTION, plain="{solution}", bare=0.15,
    ),
    "finish": Act(
        "assistant", _RIGHT, (*_REST, "From {result} we go on.", "With {result} we can go on.", "We go on with the {result}."),
        _THEN_REST, plain="{rest}", bare=0.1,
    ),
    "finish_text": Act("assistant", _RIGHT, _REST, _THEN_REST, plain="{rest}", bare=0.1),
    "finish_shown": Act(  # the user gave up
        "assistant",
        ("", "No problem. ", "That's fine. ", "Sure. ", "Okay. ", "You were on the way. ", "It's a hard one. ", "All right. "),
        _REST, _THEN_REST, plain="{rest}", bare=0.1,
    ),
    "explain_and_finish": Act(
        "assistant",
        ("", "Good that you ask. ", "Look at it this way. ", "Here is the reason. ", "Fair question. ", "Let me explain. "),
        ("{Why}. So we {verb}: {equation}.", "{Why}, so we {action}.", "It is because {why}. So we get {equation}.",
         "{Why}. That is where {equation} comes from.", "We {action}, since {why}.", "The reason is that {why}. So we {verb}."),
        _AND_REST,
    ),
    "correct_start": Act(
        "assistant",
        ("Not quite. ", "Almost. ", "{slip} is not right. ", "No, it is not {slip}. ", "Good try, but no. ", "I see the idea. ",
         "Not {slip}. ", "I get something else. ", "That is not it yet. ", "Close, but no. ", "It isn't {slip}. "),
        ("{diagnosis}\n{solution}", "{diagnosis} Here is the whole way.\n{solution}", "{diagnosis} From the start:\n{solution}",
         "{diagnosis} So it goes like this.\n{solution}", "{diagnosis} Let's redo it.\n{solution}",
         "{diagnosis} Compare it with yours.\n{solution}", "{diagnosis} In full:\n{solution}", "{diagnosis} Step by step:\n{solution}",
         "{diagnosis} Let's go through it.\n{solution}", "{diagnosis} This is how I would do it.\n{solution}"),
    ),
    # A hint and what comes of it.
    "hint": Act(
        "assistant",
        ("", "Sure. ", "Here is a hint. ", "Okay, only the start. ", "One hint. ", "Happy to. "),
        ("Look at this first: {why}. So {action}.", "{Why}. Use that and {action} first.",
         "Start here: {why}. That means you {verb}.", "Begin with {expression}, because {why}.",
         "{Why}, so your first step is to {verb}.", "Think of this: {why}. What follows is to {verb}."),
        ("", " Tell me what you get.", " Then go on with the result.", " The rest is yours."),
    ),
    "hint_text": Act(
        "assistant",
        ("", "Sure. ", "Happy to. ", "Okay, only the start. ", "One hint. ", "Good idea. "),
        ("Begin like this.\n{start}", "Here is the first step.\n{start}", "This is how it starts.\n{start}",
         "A first push:\n{start}", "Think of it this way.\n{start}", "{start}"),
        ("", "\n\nTell me what you get from there.", "\n\nThen go on yourself.", "\n\nThe rest is yours.", "\n\nNow it's your turn."),
    ),
    "second_hint": Act(
        "assistant",
        ("", "Okay, one more. ", "Sure. ", "A second hint. ", "You are close. ", "Take it slowly. "),
        ("Try to get to {formula}.", "The next thing to find is {formula}.", "You should arrive at {formula}.",
         "Aim for {formula}.", "From there you get to {formula}.", "The line to look for is {formula}.",
         "Check that you get {formula}.", "See if you can reach {formula}."),
        ("", " Take it from there.", " Write it down before you go on.", " Tell me how far you get.", " Use what we have so far.",
         " The rest is yours again."),
    ),
    "confirm": Act(
        "assistant", ("", "Yes. ", "Right. ", "Exactly. ", "That's it. ", "Correct. "),
        ("{equation} is the first step.", "{step}", "{result} is right.", "{equation} it is.", "{expression} gives {result}.",
         "The {result} is what we need."),
        _AND_REST,
    ),
    "confirm_formula": Act(
        "assistant", ("", "Yes. ", "Right. ", "Exactly. ", "That's it. ", "Correct. ", "Well done. "),
        ("{formula} is right.", "{formula} comes up on the way.", "You have {formula}, good.", "{formula} is one of the lines.",
         "That is the right track, {formula}.", "You found {formula}, and it is correct."),
        ("\n{rest}", " Here is the rest.\n{rest}", " In full:\n{rest}", " Line by line:\n{rest}", " This is how it goes.\n{rest}"),
    ),
    "redirect": Act(
        "assistant", _CLOSE,
        ("{why_sentence} So it is {equation}, not {tried}.", "{why_sentence} That calls for {expression}, which is {result}.",
         "{tried} doesn't fit: {why}. It is {equation}.", "{why_sentence} It should be {equation}.",
         "Instead of {tried} take {equation}: {why}.", "In this problem {why}, so {equation}."),
        _AND_REST,
    ),
    "redirect_text": Act(
        "assistant", _CLOSE, ("{diagnosis}",),
        ("\n{rest}", " It goes on.\n{rest}", " Here is the rest.\n{rest}", " From the hint on it goes like this.\n{rest}",
         " So:\n{rest}", " After the hint comes this.\n{rest}", " Let's finish it.\n{rest}", " In full:\n{rest}",
         " Look at what follows.\n{rest}", " Here is how it goes on.\n{rest}", " Step by step:\n{rest}", " Now from the hint to the answer.\n{rest}", " This is what is left.\n{rest}", " Compare:\n{rest}", " Line by line:\n{rest}"),
    ),
    # The sentence with the boxed answer, where the solution has none of its own; the problem's own one is `bare`.
    "final": Act(
        "assistant",
        ("", "So ", "In short, ", "That means ", "Therefore ", "Altogether, ", "Hence ", "And so "),
        ("the answer is {box}.", "we get {box}.", "it is {box}.", "the result is {box}.", "it comes to {box}.", "we arrive at {box}.",
         "what we wanted is {box}.", "the answer comes out as {box}.", "we have {box}.", "it works out to {box}.",
         "the final answer is {box}.", "the number asked for is {box}."),
    ),
}



# --- What users say while a problem is being worked on: they supply what was asked for, try, follow, or give up.

# Some are sorry, some are short with whoever asks.
_SORRY: Parts = ("", "Oh, ", "Sorry, ", "Oops, ", "Right, ", "Ah, ", "My bad. ", "Ugh, ", "I thought I wrote that. ",
                 "Let me look. ", "Come on, ", "Didn't I say? ", "Forgot that. ", "Hm, ")  # fmt: skip

_YES: Parts = ("", "Yes, ", "Ok, ", "Yeah, ", "I think so, ", "Mhm, ", "Yep, ", "Alright, ", "Sure, ", "Right, ")
_TRY: Parts = (
    "",
    "Ok, ",
    "So, ",
    "Let me try. ",
    "Hmm, ",
    "Got it, ",
    "Ah, ",
    "Like this? ",
    "I tried, ",
    "Well, ",
    "Alright, ",
    "Let's see, ",
    "Oh, ",
    "I think I have it. ",
)

# fmt: off
USER_ANSWERS: dict[str, Act] = {
    # What is withheld, by its kind: {reveal} is a sentence, {short} the bare thing.
    "reveal_number": Act(
        "user", _SORRY,
        ("{reveal}", "it's {short}.", "{short}.", "it says {short}.", "that one is {short}.", "{short}, I left that out.",
         "{short}, I skipped it.", "it should say {short}.", "I see it now, {short}.", "here it says {short}.",
         "{short}. Go on.", "it was {short}."),
        plain="{short}", bare=0.15,
    ),
    "reveal_formula": Act(
        "user", _SORRY,
        ("{reveal}", "it's {short}.", "{short}.", "it says {short}.", "I left it out: {short}.", "I skipped that line: {short}.",
         "the book has {short}.", "that was {short}.", "I see it now: {short}.", "here it says {short}.", "it was {short}."),
        plain="{short}", bare=0.15,
    ),
    "reveal_goal": Act(
        "user", _SORRY,
        ("{reveal}", "I cut off the end: {short}", "it ends with this: {short}", "the last line is missing: {short}",
         "here's the question: {short}", "the task is this: {short}", "it goes on: {short}", "the end of it: {short}",
         "there is one more line: {short}", "I need this: {short}", "what they want is this: {short}"),
        plain="{short}", bare=0.15,
    ),
    "reveal_figure": Act(
        "user", _SORRY,
        ("{reveal}", "here it is:\n\n{short}", "it didn't come through:\n\n{short}", "I forgot to paste it:\n\n{short}",
         "this is what it looks like:\n\n{short}", "that's it:\n\n{short}", "this goes with it:\n\n{short}",
         "it came with this:\n\n{short}", "the code of it:\n\n{short}"),
        ("", "\n\nCan you see it now?", "\n\nThat's all of it."),
        plain="{short}", bare=0.15,
    ),
    # The user does not see at first what is being asked for.
    "huh": Act(
        "user",
        ("", "Hm, ", "Wait, ", "Sorry, ", "Uh, ", "Huh? "),
        ("what do you mean?", "which one do you mean?", "I don't get what you're asking.", "isn't it in the text?",
         "I typed everything, no?", "what exactly is missing?", "it's all there, isn't it?", "where is that missing?",
         "you need what?", "didn't I write that?"),
        ("", " I copied it all.", " I'm confused.", " I don't see it."),
    ),
    "wrong_thing": Act(
        "user",
        ("", "Hm, ", "Wait, ", "Uh, ", "Ok, ", "Huh? "),
        ("you mean {known}?", "that's {known}, it's in there.", "I wrote {known}.", "isn't that {known}?",
         "it says {known} right there.", "is it {known}?", "{known}, no?", "you have it already: {known}.",
         "what about {known}?", "the text has {known}."),
        ("", " I did give that.", " Or something else?"),
    ),
    # It is not to be had, and then it is.
    "no_idea": Act(
        "user",
        ("", "Hm, ", "Sorry, ", "No, ", "Nope. ", "I looked again, "),
        ("that's all it says.", "it doesn't say.", "that isn't given anywhere.", "I don't have that.",
         "there's nothing about it on my sheet.", "the book doesn't tell me.", "no idea, that's the whole text.",
         "I can't find it.", "it's not in there."),
        ("", " Can't you just assume something?", " Can you solve it anyway?", " Just give me an answer.", " Does it matter?",
         " What now?", " Take whatever you like."),
    ),
    "found": Act(
        "user",
        ("", "Oh wait, ", "Ok, ", "Found it. ", "I asked my teacher. ", "There it is. ", "It was on the next page. ",
         "My friend has it. ", "Got it now. ", "You were right, ", "Hold on, ", "It was under the fold. "),
        ("{reveal}", "it's there: {short}", "it says this: {short}", "this was missing: {short}", "I overlooked it: {short}",
         "the sheet has it after all: {short}", "that was on the back: {short}", "here you go: {short}",
         "the missing bit: {short}", "I found this: {short}"),
        ("", "\n\nDoes that do it?", "\n\nNow?"),
    ),
    "pick": Act(
        "user",
        ("", "Oh, ", "Oops, ", "Good catch, ", "Sorry, ", "Hm, ", "Uh, ", "I checked, ", "Didn't see that, ", "Ah, "),
        ("it's {short}.", "{short}.", "take {short}.", "{short}, not {other}.", "{short} is right.", "go with {short}.",
         "{other} is a typo, it's {short}.", "the {other} is from another problem. {short}.", "{short} is what the book says.",
         "forget the {other}. {short}.",
         "the first one, {short}.", "I copied {other} by mistake. {short} it is."),
        ("", " Sorry about that.", " My mistake."),
    ),
    # A first step was given.
    "go_on": Act(
        "user",
        _YES,
        ("{result} makes sense. What comes after that?", "so {result}. And then?", "I see the {result}. What next?",
         "I got {result} there too. What's the rest?", "{expression} is clear. Show me the rest.",
         "now what do I do with the {result}?", "{equation}, got it. Next?", "I can follow {expression}. What now?",
         "{result} it is. How does it go on?",
         "{result}, ok. And now?", "I wrote down {equation}. What follows?"),
    ),
    "go_on_text": Act(
        "user",
        _YES,
        ("that part is clear. And then?", "I can follow that. What comes next?", "that makes sense so far. What's the rest?",
         "I get why it starts like that. How does it go on?", "I'd have begun the same way. What now?",
         "got it. Next?", "I see it. What do we do with that?", "so that's the start. Where does it lead?",
         "fine so far. Show me the rest.", "clear. Go on."),
        ("", " I'm writing it down.", " I'm still with you."),
    ),
    "lost": Act(
        "user",
        ("", "No, ", "Not really, ", "Hm, ", "Wait, ", "Sorry, "),
        ("why {expression}?", "why do you {verb} there?", "where does the {result} come from?", "how did you get {result}?",
         "I don't see why you {action}.", "what is {expression} for?", "I don't get the {result}."),
        ("", " Then go on please.", " And what comes after it?", " I'd like to get that before we go on."),
    ),
    # A hint was given.
    "attempt": Act(
        "user",
        _TRY,
        ("{tried}. Is that it?", "I get {tried_result}. Right?", "{tried}. And now?", "that's {tried_result}, what's next?",
         "then {tried}?", "{tried}, correct?", "I did {tried}. Ok?", "{tried_result}? And then?", "my result is {tried_result}.",
         "I come to {tried_result}. Good?", "{tried}, I think."),
        ("", " I'm not sure.", " I did it in my head."),
    ),
    "try_formula": Act(
        "user",
        _TRY,
        ("I get {formula}. Right?", "then {formula}?", "{formula}, correct?", "that gives me {formula}. And now?",
         "I have {formula} now. What's next?", "{formula}. Is that the way?", "it leads to {formula}, no?",
         "so far I have {formula}.", "I came to {formula}. Ok?", "{formula}, I think.",
         "does that make {formula}?"),
        ("", " I'm not sure.", " It took me a while."),
    ),
    "try_result": Act(
        "user", _TRY,
        ("is it {slip}? {way}", "then it's {slip}? {way}", "I get {slip}. {way}", "that makes {slip}. {way}",
         "so {slip}? {way}", "{slip}, done? {way}", "I'd say {slip}. {way}", "it comes out as {slip}. {way}",
         "my answer is {slip}. {way}", "{slip}. Is that it? {way}",
         "I come to {slip}. {way}", "I wrote {slip}. {way}", "could it be {slip}? {way}", "it should be {slip}. {way}"),
    ),
    "stuck": Act(
        "user",
        ("", "Hm, ", "Ok, but ", "Sorry, ", "Hmm. ", "No, ", "Argh, ", "Honestly, "),
        ("I still don't see it.", "I don't know what to do with that.", "I got that far, and now?", "what do I do after that?",
         "I need one more hint.", "that's not enough for me.", "I'm still stuck.", "and how does that help?",
         "I don't see where this is going.", "one more push?"),
        ("", " I've tried twice.", " I have the hint in front of me.", " My page is empty.", " I don't want the solution yet."),
    ),
    "give_up": Act(
        "user",
        ("", "Ok, ", "Nah, ", "Hm, ", "Alright, ", "Sorry, ", "Argh, ", "Honestly, "),
        ("just show me the rest.", "I give up, how does it end?", "I don't get it. Show me how it's done.",
         "I'd rather see the whole thing now.", "please finish it for me.", "no chance. What's the answer?",
         "my head hurts, just tell me.", "I can't do it. What comes next?", "tell me the rest.", "show me, I'm out of time."),
        ("", " I tried.", " It's too hard.", " I'd like to see the end."),
    ),
}



# --- How users open: with the problem and some words around it, or with hardly more than a feeling.
#
# `{question}` is the problem word for word, or with something withheld. The same words stand around a complete and an
# incomplete problem, so that they say nothing about which of the two it is.

# fmt: off
USER_OPENINGS: dict[str, Act] = {
    "open": Act(
        "user",
        ("", "Hi! ", "Hey, ", "Ok, ", "Hello. ", "So, ", "Homework again. ", "Quick one. "),
        ("can you solve this?\n\n{question}", "can you help me with this one?\n\n{question}", "what do you get here?\n\n{question}",
         "here's the problem:\n\n{question}", "this is the next one:\n\n{question}", "I need the answer to this.\n\n{question}",
         "how does this one work?\n\n{question}", "please solve:\n\n{question}", "I need help with this one:\n\n{question}",
         "could you do this one for me?\n\n{question}"),
        ("", "\n\nThanks!", "\n\nShow me how you get there.", "\n\nI have no idea how to do this.", "\n\nWith steps please.",
         "\n\nI got nowhere."),
        plain="{question}", bare=0.7,
    ),
    "vague": Act(
        "user",
        ("", "Hi, ", "Hey, ", "Help! ", "Hi there. ", "Ugh. ", "Ok so, "),
        ("I'm stuck on {a_topic}.", "there's {a_topic} I don't get.", "I have {a_topic} here and no idea how to begin.",
         "I've been staring at {a_topic} for half an hour.", "I keep getting nonsense on {a_topic}.",
         "we got {a_topic} for homework and it makes no sense to me.", "I need help with {a_topic}.",
         "I can't get anywhere with {a_topic}.", "it's about {a_topic}. I'm lost.", "I messed up {a_topic} on the last test."),
        ("", " Can you help?", " Got a minute?", " Can you help me with it?", " The test is tomorrow.", " Please help.",
         " Where do I even begin?"),
    ),
    "give": Act(
        "user",
        ("", "Ok. ", "Sure, ", "Yeah, ", "Thanks. ", "Right, "),
        ("here it is:\n\n{question}", "this one:\n\n{question}", "it says:\n\n{question}", "the sheet says:\n\n{question}",
         "from the book:\n\n{question}", "it goes like this:\n\n{question}", "I'll copy it:\n\n{question}",
         "so:\n\n{question}"),
        ("", "\n\nAny idea?", "\n\nI don't know where to begin.", "\n\nI hope I typed it right.", "\n\nHow does that work?"),
        plain="{question}", bare=0.4,
    ),
    "wrong_start": Act(
        "user",
        ("", "Can you check this?\n\n", "My homework:\n\n", "Is this right?\n\n", "I did this one:\n\n", "Please check:\n\n",
         "Check me on this.\n\n", "Hi, this is mine:\n\n", "I'm not sure about this one.\n\n"),
        ("{question}\n\nI got {slip}. {way}", "{question}\n\nMy answer is {slip}. {way}", "{question}\n\nIs it {slip}? {way}",
         "{question}\n\nI think it's {slip}. {way}", "{question}\n\nI tried it and have {slip}. {way}",
         "{question}\n\nI say {slip}. {way}", "{question}\n\nMy result is {slip}. {way}", "{question}\n\n{slip}, right? {way}",
         "{question}\n\nIt came out as {slip}. {way}", "{question}\n\nShould be {slip}, no? {way}",
         "{question}\n\nI wrote {slip}. {way}", "{question}\n\nI ended up with {slip}. {way}"),
    ),
    # How the wrong result came about, as a part of another turn.
    "way": Act(
        "user",
        ("", "Hm, ", "You see, ", "Well, "),
        ("I did {did}.", "Because {did}.", "My way: {did}.", "I just took {did}.", "I went with {did}.", "I wrote {did}.",
         "I used {did}.", "I calculated {did}.", "What I did: {did}.", "I had {did}."),
        ("", " Where's the mistake?", " What did I do wrong?", " Is that not allowed?", " I checked it twice.", " Looks fine to me."),
    ),
    "way_formula": Act(
        "user",
        ("", "Hm, ", "You see, ", "Well, "),
        ("I have {quote}.", "Because {quote}.", "I got to {quote}.", "I found {quote}.", "At the end I have {quote}.",
         "It comes from {quote}.", "I came to {quote}.", "My last line is {quote}.", "I ended with {quote}.",
         "On my paper it says {quote}."),
        ("", " That's it, no?", " What's wrong with that?", " Is that not the answer?", " I checked it twice.", " Looks fine to me."),
    ),
    "ask_hint": Act(
        "user",
        ("", "I need a hint for this one.\n\n", "I'm stuck here.\n\n", "Don't solve this for me!\n\n", "Ok, a hard one:\n\n",
         "I want to do this one myself.\n\n"),
        ("{question}\n\nJust a hint please.", "{question}\n\nGive me a hint, I'll do the rest.",
         "{question}\n\nhow do I start?", "{question}\n\nOnly a hint, ok?", "{question}\n\nWhat should I do first?",
         "{question}\n\nhint?", "{question}\n\nA small push would be enough.", "{question}\n\nHow would you begin?",
         "{question}\n\nWhich way should I go?", "{question}\n\nOne tip please."),
        ("", " No solution.", " Don't tell me the result.", " I want to solve it myself."),
    ),
    "ask_guided": Act(
        "user",
        ("", "Can we do this one together?\n\n", "Here's one I want to understand:\n\n", "Next one:\n\n",
         "Help me with this one:\n\n", "I want to learn how this works.\n\n"),
        ("{question}\n\nOne step at a time please.", "{question}\n\nWalk me through it slowly.",
         "{question}\n\nStart with the first step and wait for me.", "{question}\n\nGive me the first step, then stop.",
         "{question}\n\nGo step by step and let me follow.", "{question}\n\nNot all at once, step by step.",
         "{question}\n\nFirst the beginning only, then we go on.", "{question}\n\nLet's take it in small steps.",
         "{question}\n\nExplain it in parts and wait after the first.", "{question}\n\nBegin, and then let me catch up."),
        ("", " I get lost otherwise.", " I want to understand every part.", " I'm slow with these."),
    ),
    # One given, stated twice with two values; `{second}` is the statement with the other value.
    "two_values": Act(
        "user",
        ("", "Hi! ", "Hey, ", "Next one. ", "Ok, ", "Hello. "),
        ("can you solve this?\n\n{question}\n\n{second}", "what do you get here?\n\n{question}\n\n{second}",
         "this is the next one:\n\n{question}\n\n{second}", "could you do this one for me?\n\n{question}\n\n{second}", "I need help with this one:\n\n{question}\n\n{second}",
         "here's the problem:\n\n{question}\n\n{second}", "what's the answer here?\n\n{question}\n\n{second}",
         "how does this one work?\n\n{question}\n\n{second}", "please solve:\n\n{question}\n\n{second}"),
        ("", "\n\nThanks!", "\n\nWith steps please.", "\n\nHow do I do this?"),
        plain="{question}\n\n{second}", bare=0.3,
    ),
    # A part of the turn above: where the other value stands.
    "second": Act(
        "user",
        ("", "Oh, and ", "Also, ", "One more thing: ", "Ah, ", "By the way, ", "And ", "Hm, ", "P.S. ", "Ok, and ", "Don't know why, but ", "Not sure if it matters, but ", "Strange, ",
         "If it helps, ", "Oh, "),
        ("below that it says: {statement}", "in my notes it says: {statement}", "on the back it says: {statement}",
         "at the end there is this line: {statement}", "further down it says: {statement}", "my friend's sheet says: {statement}",
         "the caption says: {statement}", "somebody wrote next to it: {statement}", "a second line says: {statement}",
         "the other copy says: {statement}", "under the title it says: {statement}", "the last line is: {statement}"),
    ),
}



# --- What users say after an answer. Each cites a number, a formula or a step of it, apart from the short sign-offs.

_WAIT: Parts = ("", "Wait, ", "Hm, ", "Ok but ", "One thing: ", "Sorry, ", "Hang on, ", "Quick question: ", "Umm, ", "Hey, ",
                "Just so I get it: ")  # fmt: skip
_HMM: Parts = (
    "",
    "Hmm, ",
    "Wait, ",
    "Are you sure? ",
    "Hold on, ",
    "Sorry, ",
    "Weird, ",
    "Ok, but ",
    "Strange, ",
    "Uh, ",
)
_GOT_IT: Parts = (
    "",
    "Ok. ",
    "Got it. ",
    "Nice. ",
    "And ",
    "Hm, ",
    "Alright. ",
    "Interesting. ",
    "Makes sense. ",
    "Ok, one more: ",
)

# fmt: off
USER_REACTIONS: dict[str, Act] = {
    "why": Act(
        "user", _WAIT,
        ("why do you {action}?", "why {expression}?", "where does the {result} come from?", "how did you get {result}?",
         "why {verb} there?", "I don't get the {result}. Why {verb}?", "what is {expression} for?",
         "how do you know you have to {verb}?", "what does {expression} tell us?", "what made you {action}?"),
        ("", " I lost you there.", " I can't see it."),
    ),
    "doubt": Act(
        "user", _HMM,
        ("shouldn't it be {wrong}?", "isn't it {wrong} instead of {expression}?", "I would do {wrong}, not {expression}.",
         "why not {wrong}?", "I thought you have to {wrong_verb} there, so {wrong}.", "{result} looks off. Isn't it {wrong}?",
         "my first idea was {wrong}. Why is that wrong?", "what's wrong with {wrong}?", "I had {wrong} there.",
         "I'd have said {wrong}.", "can't you just take {wrong}?"),
    ),
    "own_wrong": Act(
        "user", _HMM,
        ("I got {slip} instead. {way}", "my answer was {slip}. {way}", "I have {slip} in my notebook. {way}",
         "why is it not {slip}? {way}", "my friend says it's {slip}. {way}", "{slip} is what I had. {way}",
         "I'd say {slip}. {way}", "I come to {slip}. {way}", "isn't it {slip}? {way}", "I keep getting {slip}. {way}",
         "my calculator says {slip}. {way}"),
    ),
    "what_if": Act(
        "user", _GOT_IT,
        ("what if {condition} instead?", "what would change if {condition}?", "what happens if {condition}?",
         "what's the answer if {condition} instead?", "suppose {condition}. What then?", "say {condition}. Does {answer} change?",
         "how would it go if {condition}?", "would it still be {answer} if {condition}?", "and if {condition}?",
         "let's say {condition}. How much is it then?", "does it stay {answer} if {condition}?"),
    ),
    "check": Act(
        "user", _WAIT,
        ("are you sure about {result}?", "can you check the {result}?", "how do we know {result} is right?",
         "is {equation} really right?", "can you prove that it's {result}?", "{result} seems strange. Can you check it?",
         "how can I check the {result} myself?", "is there a way to test {equation}?", "can you double-check {equation}?",
         "I don't trust the {result}. Is it right?"),
    ),
    "trace": Act(
        "user", _WAIT,
        ("how did you get {formula}?", "where does {formula} come from?", "I don't see {formula}. Can you show that part again?",
         "can you explain the part with {formula}?", "why is that {formula}?", "you lost me at {formula}.",
         "how do you come to {formula}?", "what's behind {formula}?", "I'd never have found {formula}. How do you see it?",
         "I don't follow {formula}.", "can we go back to {formula}?", "what gives {formula}?"),
    ),
    "where": Act(
        "user", _WAIT,
        ("where did you use the {number}?", "what happened to the {number}?", "which step has the {number} in it?",
         "where does the {number} go in?", "do we need the {number} at all?", "in which step is the {number}?",
         "I don't see where the {number} is used.", "what is the {number} good for?", "what about the {number}? Where is it?",
         "what did you do with the {number}?"),
    ),
    "shorter": Act(
        "user",
        ("", "Ok, ", "Hm, ", "Thanks. ", "Phew. ", "Good. ", "Alright, ", "Long one. ", "Got it. "),
        ("can you give me that shorter?", "what's the short version?", "just the main lines please.",
         "can I have only the calculation?", "what do I write down?", "what are the key lines?",
         "can you sum that up?", "how do I write that in two lines?", "which lines do I need for my notebook?",
         "I only need the bare calculation.", "can you boil that down?", "how would you put that on a card?"),
        ("", " I have to write it down.", " It's for my notes."),
    ),
    "restate": Act(
        "user",
        ("", "Ok, ", "Ah, ", "Wait, ", "I see, ", "Got it. ", "Alright, ", "Cool, ", "Oh, "),
        ("so it's {answer}, right?", "so {answer} is all I have to write down?", "that means {answer} at the end?",
         "and {answer} is the final answer?", "so I put {answer}?", "it really is {answer}?", "then {answer} it is?",
         "so I can hand in {answer}?", "{answer}, that's it?", "so the answer is just {answer}?", "{answer}, final?",
         "I write {answer} then?"),
        ("", " Just to be sure.", " I have to hand it in."),
    ),
    "thanks": Act(
        "user",
        ("", "Ok, ", "Ah, ", "Nice, ", "Oh, ", "Cool, "),
        ("thanks.", "got it.", "that makes sense now.", "thx, that helped.", "now I get it.", "that was easier than I thought.",
         "I'll try the next one alone.", "perfect.", "great, thank you.", "so that's how it works."),
        ("", " Bye!", " I'm done for today.", " On to the next one."),
    ),
}


ACTS: dict[str, Act] = {
    **USER_OPENINGS, **USER_ANSWERS, **USER_REACTIONS, **ASSISTANT_ASKS, **ASSISTANT_SOLVES, **ASSISTANT_REPLIES,
}  # fmt: skip


def say(act: str, rng: random.Random, slots: Slots, casual: bool = False) -> Said:
    """The act in one of its wordings, `slots` filled in. `casual` types a user turn the way people type."""
    return phrase(act, ACTS[act], rng, slots, casual)
