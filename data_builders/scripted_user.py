"""A simulated user without a model: knows the problem, answers what was asked, reacts to answers, ends the chat.

What it does after an assistant turn is decided by rules that can be retraced by hand:
- a marked answer: right, it ends; wrong, it doubts once and ends after the second; given while something is still
  withheld, it ends without telling, since a guess must not be paid with what asking would have brought;
- a question: about what is withheld, or a general one for what is missing, and it tells (once); about what stands in
  the chat, and it quotes the place; about anything else, and it does not know;
- neither: it tells the assistant to go on, a few times.
It never says the answer, and never says unasked what is withheld. A user of the kind "vague" holds the whole problem back
until asked for anything; one of the kind "unsolvable" has to look for what is missing, and finds it one turn later.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from data_builders.asked import Asked, Question, marked_answer, questions, read_question
from data_builders.derive.values import states
from data_builders.rl import RlRow
from probe.answers import same_answer, sentences
from probe.sets import Message

# Messages in all that bring nothing new, before the user gives up.
PATIENCE = 4
_QUOTED_WORDS = 24
_NAMED = 30
_SHORT = 40
_IDLE = ("quote", "told", "all_there", "unknown", "go_on", "yes", "wait", "look")

PHRASES: dict[str, tuple[str, ...]] = {
    "tell": (
        "{reveal}", "Oh right. {reveal}", "Sorry, I left that out. {reveal}", "My bad. {reveal}", "Ah yes. {reveal}",
        "You're right, that's not in there. {reveal}", "Oops, I forgot that part. {reveal}", "Oh, true. {reveal}",
        "Right, that's missing. {reveal}",
    ),
    "tell_short": (
        "{short}", "It's {short}.", "Oh, it's {short}.", "It says {short}.", "That's {short}.", "{short}, I left that out.",
        "Sorry, {short}.", "I forgot to write it: {short}.",
    ),
    "give": (
        "{reveal}", "Sure: {reveal}", "Here it is: {reveal}", "Ok, this is it: {reveal}", "This one: {reveal}",
        "It goes like this: {reveal}", "Sorry. {reveal}",
    ),
    "look": (
        "I don't know, it's not on my sheet.", "No idea. Let me look again.", "It doesn't say that anywhere.",
        "I can't find that. Hm.", "That isn't given as far as I can see.", "I looked and it's not there.",
    ),
    "found": (
        "Found it. {reveal}", "Ah, it was on the back. {reveal}", "Got it now. {reveal}", "I asked my teacher. {reveal}",
        "Ok, here it is after all. {reveal}", "There was a line I had missed. {reveal}",
    ),
    "quote": (
        "It's in there: \"{quote}\"", "I wrote that already: \"{quote}\"", "That's given. \"{quote}\"",
        "Look again, it says \"{quote}\"", "You have that: \"{quote}\"", "It says so right there: \"{quote}\"",
        "I think that's this part: \"{quote}\"",
    ),
    "told": (
        "I told you that already.", "I just said that.", "That's what I wrote a moment ago.", "You asked that before.",
        "Same as I said, nothing new.", "I answered that, look up.",
    ),
    "all_there": (
        "Nothing is missing, that's the whole problem.", "That's all there is.", "Everything is in my first message.",
        "It's all there, I didn't leave anything out.", "No, that is the complete text.", "I don't think anything is missing.",
        "That's everything it says.",
    ),
    "unknown": (
        "I don't know, just what it says.", "No idea. It doesn't say more.", "I only have what I wrote.",
        "It doesn't say anything about that.", "I can't tell you that.", "Not sure, the problem says nothing about it.",
        "I don't know.",
    ),
    "doubt": (
        "Are you sure it's {given}?", "{given}? Can you check that again?", "Hm, {given} doesn't look right to me.",
        "Is it really {given}?", "I don't think it's {given}. Can you go through it again?", "{given} seems off. Are you sure?",
        "Wait, {given}? How?",
    ),
    "wait": (
        "Can you help me with it?", "So will you help me?", "And my problem?", "Ok, but I still need help with it.",
        "Can we do my problem now?", "Fine. I'm still stuck with mine though.",
    ),
    "go_on": (
        "Ok, and then?", "Go on.", "And what comes next?", "Okay. How does it go on?", "Right, and now?",
        "I see. What's the next step?", "So what's the result?", "Ok. And the answer?",
    ),
    "yes": (
        "Yes, go on.", "Yes. And then?", "Yeah, what comes next?", "Clear so far. Go on.", "Ok yes, continue.",
        "Sure, show me the rest.", "Yes please.",
    ),
}  # fmt: skip


class ScriptedUser:
    """One user in one conversation. The same row, seed and replies always get the same messages.

    Args:
        row: its prompt is what was said before; what it withholds and how that is told stand in it too.
    """

    def __init__(self, row: RlRow, seed: int) -> None:
        self.row = row
        self.seed = seed
        self.told = False
        self._looking = False
        self._doubted = False
        self._holds_all = row.kind == "vague" and row.turn == 0
        self._has_it = not (row.kind == "unsolvable" and row.turn == 0)
        self._idle = 0
        self._casual = random.Random(f"scripted-user:{seed}").random() < 0.4

    def reply(self, messages: Sequence[Message]) -> str | None:
        """The message after `messages`, which end with the assistant; None where the user ends the conversation."""
        said, slots = self._act(messages)
        self._idle += said in _IDLE
        if not said or self._idle > PATIENCE:
            return None
        rng = random.Random(f"scripted-user:{self.seed}:{len(messages)}")
        return _typed(rng.choice(PHRASES[said]), self._casual).format_map(slots)

    def _act(self, messages: Sequence[Message]) -> tuple[str, dict[str, str]]:
        """What the user does, by the name of its phrases, and what fills their slots; "" where it ends."""
        text = messages[-1]["content"]
        given = marked_answer(text)
        if given is not None:
            if self.withheld or same_answer(given, self.row.answer) or self._doubted:
                return "", {}
            self._doubted = True
            return "doubt", {"given": given if _can_be_named(given) else "that"}
        if self.withheld and (self._looking or (self.row.kind == "unsolvable" and self._has_it)):
            return self._tell("found")
        asked = [read_question(one, self._question(messages)) for one in questions(text)]
        if self._holds_all and self.withheld:
            return self._tell("give") if asked else ("wait", {})
        return self._answer(min(asked, key=lambda one: one.rank)) if asked else ("go_on", {})

    @property
    def withheld(self) -> bool:
        """Whether something has still to be told."""
        return not self.told and bool(self._reveal())

    def _answer(self, asked: Asked) -> tuple[str, dict[str, str]]:
        if asked.about in ("withheld", "anything"):
            if not self.withheld:
                return ("told" if self.told else "all_there"), {}
            if not self._has_it:
                self._looking = True
                return "look", {}
            short = random.Random(f"scripted-user:{self.seed}:short").random() < 0.5 and _stands_alone(self.row.short)
            return self._tell("tell_short" if short else "tell")
        if asked.about == "given":
            return "quote", {"quote": _shortened(asked.place)}
        return ("yes" if asked.about == "following" else "unknown"), {}

    def _tell(self, act: str) -> tuple[str, dict[str, str]]:
        slots = {"short": self.row.short, "reveal": self._reveal()}
        self.told = True
        return act, slots

    def _reveal(self) -> str:
        """What the user tells when asked: the row's own sentence, or those of the problem that hold what is hidden."""
        if self._holds_all:
            return self.row.problem
        if self.row.reveal:
            return self.row.reveal
        hidden = self.row.hidden
        return " ".join(one for one in sentences(self.row.problem) if any(states(one, value) for value in hidden))

    def _question(self, messages: Sequence[Message]) -> Question:
        """What a question of the assistant can be about."""
        row = self.row
        said = [one["content"] for one in messages if one["role"] == "user"]
        about = tuple(text for text in (row.clause, row.thing) if text)
        return Question(about or ((self._reveal(),) if row.hidden else ()), tuple(said), named=bool(about))


def _stands_alone(short: str) -> bool:
    """Whether what is told can be told in a word: an amount or a formula, and not a sentence or a drawing."""
    return 0 < len(short) <= _SHORT and "\n" not in short and short[-1] not in ".?!"


def _can_be_named(given: str) -> bool:
    """A short answer that stands well in a sentence and holds nothing that a chat template could read as its own."""
    return len(given) <= _NAMED and not any(sign in given for sign in "<>|[]\n")


def _shortened(quote: str) -> str:
    words = quote.split()
    return quote if len(words) <= _QUOTED_WORDS else " ".join(words[:_QUOTED_WORDS]) + " ..."


def _typed(phrase: str, casual: bool) -> str:
    """As some people type: no capital at the start, no full stop at the end. Slots stay as they are."""
    if not casual:
        return phrase
    phrase = phrase if phrase.startswith(("{", "I ", "I'")) else phrase[:1].lower() + phrase[1:]
    return phrase if phrase.endswith("}.") else phrase.removesuffix(".")
