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
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from data_builders.rows import RlRow
from data_builders.text import states
from probe.conversations import Message
from probe.grading import lenient_answer, same_answer, sentences, strict_answer
from probe.judges.text import content_stems, stem

# --- What an assistant's question is about: what a user has withheld, what stands in the chat, or something else.
#
# By content words alone (`probe.judges.words`). A question is about what is withheld where it names at least half of it,
# or the same quantity, and no sentence of the chat that states a number explains the question as well: "How many bags
# are there?" is about the number of bags, and not about the marbles in each bag.

# Where a reply asks; a question before that is one that it has answered itself.
_LAST = 4
# Beyond this no reference is as long, and comparing could take for ever.
_LONGEST_ANSWER = 200
_AT_LEAST = 0.5

_STATED = re.compile(r"\banswer\s*(?:is|:|=)[\s:*$\\(]{0,6}-?\d", re.IGNORECASE)
_REQUEST = re.compile(
    r"\b(?:please (?:tell|give|share|provide|say|send|specify|clarify|state|add)|(?:tell|give) me|let me know"
    r"|(?:i|we)(?:'d| would)? (?:still |also |first )?need (?:the|a|one|to know|more)|(?:is|are) (?:still )?missing"
    r"|you (?:did(?: not|n't)|have(?: not|n't)|never|forgot to) (?:say|said|tell|told|give|given|mention|state)\w*"
    r"|(?:is|are)(?: not|n't) (?:given|stated|specified|clear)"
    r"|can(?:not|'t| not) (?:be )?(?:solve|finish|answer|compute|calculate|determine|go on|continue)\w*)\b",
    re.IGNORECASE,
)
_GENERAL = re.compile(
    r"\b(?:what(?:'s| is| else is)? (?:still )?missing|(?:anything|something) (?:else|missing|is missing|you left)"
    r"|(?:more|missing|additional|further) (?:information|details?|context|data)|is (?:that|this) (?:all|everything)"
    r"|(?:full|whole|complete|entire|exact) (?:problem|question|text|statement|exercise|task)"
    r"|(?:did|have) you (?:leave|left|forget|forgot)|(?:number|value|detail|information|given|part|piece)s? (?:is|are) missing"
    r"|(?:another|one more) (?:number|value|detail|piece)|how does (?:it|the (?:text|problem|sentence)) (?:end|go on|continue)"
    r"|which (?:one|of (?:the|these|those|them|both)|value|number)\b.{0,40}\b(?:right|correct|holds?|counts?|true|valid|meant?|use))\b",
    re.IGNORECASE,
)
_GOAL = re.compile(
    r"\b(?:what|which)\b[^?]{0,60}\b(?:find|found|question|asked|ask|want|wanted|looking for|know|compute|calculate"
    r"|determine|solve|goal|task|problem|help|work out|figure out)\b",
    re.IGNORECASE,
)
_IS_GOAL = re.compile(
    r"\b(?:question (?:itself|about)|the (?:question|problem|exercise|task)$|whole (?:question|problem)|to be found|you want to know"
    r"|wanted|is asked|find out about|what (?:is|'s) the (?:question|problem|task))\b",
    re.IGNORECASE,
)
_FOLLOWING = re.compile(
    r"\b(?:sense|clear|follow|understand|with me|so far|got (?:it|that)|see (?:why|how|that)|looks? right|(?:shall|should) (?:i|we)"
    r"|(?:would|do) you (?:like|want)|want me to|ready|help|any questions|try|next)\b",
    re.IGNORECASE,
)
_LEANING = re.compile(r"\b(?:it|that|this|those|them|these|there|here)\b", re.IGNORECASE)
_EACH = re.compile(r"\b(?:each|every|per|apiece)\b", re.IGNORECASE)
_HEAD = re.compile(
    r"\bhow (?:many|much)\b|\bhow (?=\w)|\b(?:number|amount) of\b|\bwhat(?:'s| is| are) the (?!number|amount)",
    re.IGNORECASE,
)
_COUNTED = re.compile(r"(?<![\w.,$])\d[\d,.]*(?= )")
_PARTS = re.compile(r"(?:,|;|\band\b|\bbut\b)\s+")
_ASKED_NAMED = re.compile(r"\s*(?:(?:the|more|of|other|new|different)\s+)*([^\s?.,]+)", re.IGNORECASE)
# Dollars around mathematics, not before two prices.
_FORMULA = re.compile(r"(?<!\\)\$(?=[^$]*[=\\^{}+<>]|\d*[A-Za-z]\b|[A-Z]{2,3}\b)[^$]{1,80}(?<!\\)\$")
_BLANK = re.compile(
    r"_{3,}|\[(?:\?|unreadable|formula(?: missing)?|image|cut off)\]|\((?:\?|formula didn't paste|can't read this part)\)"
)
# Words that point at a place instead of naming a quantity.
_POINTING = frozenset(map(stem, ("mean", "means", "meant", "belongs", "exactly", "there", "stand", "stands", "amount")))
_MUCH = "much"
_SAME = {
    stem(word): stem(as_word)
    for as_word, others in {
        "long": "length", "wide": "width breadth", "tall": "height high", "old": "age", "cost": "price",
        "weigh": "weight heavy", "big": "size large", "figure": "diagram drawing picture image graph sketch",
    }.items()
    for word in others.split()
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    """What a question can be about. `named`: `withheld` names the thing itself, not the sentence that states it."""

    withheld: tuple[str, ...]
    said: tuple[str, ...]
    named: bool = True


@dataclass(frozen=True)
class Asked:
    """What one question is about; `place` is the sentence of the chat that a question about a given is answered by."""

    about: Literal["withheld", "anything", "given", "following", "other"]
    place: str = ""

    @property
    def rank(self) -> int:
        return ("withheld", "anything", "given", "following", "other").index(self.about)


def marked_answer(text: str) -> str | None:
    r"""The answer of a reply as a person would take it: `\boxed{...}`, `#### ...` or "the answer is ..."; else None."""
    given = strict_answer(text)
    if given is None and _STATED.search(text) and not text.rstrip().endswith("?"):
        given = lenient_answer(text)
    return given[:_LONGEST_ANSWER] if given else None


def questions(text: str) -> list[str]:
    """The questions and requests of a reply, each with the sentence before it where it leans on that."""
    parts = sentences(_BLANK.sub("___", text))
    found = []
    for place in range(max(0, len(parts) - _LAST), len(parts)):
        if parts[place].endswith("?") or _REQUEST.search(parts[place]):
            leans = place > 0 and _LEANING.search(parts[place]) and not _FOLLOWING.search(parts[place])
            found.append(f"{parts[place - 1]} {parts[place]}" if leans else parts[place])
    return found


def read_question(text: str, question: Question) -> Asked:
    asked = _quantity(text)
    given = max((_quantity(part, stated=True) for part in _stated(question.said)), key=asked.shared, default=_NOTHING)
    if question.withheld and _BLANK.search(text):  # it points at the place where something was left out
        return Asked("withheld")
    for withheld in question.withheld:
        if question.named and _IS_GOAL.search(withheld):
            if _GOAL.search(text) or _IS_GOAL.search(text):
                return Asked("withheld")
        elif not _IS_GOAL.search(text) and _is_about(asked, _quantity(withheld), given, question.named):
            return Asked("withheld")
    if _GENERAL.search(text):
        return Asked("anything")
    if asked.shared(given) >= max(1, _AT_LEAST * len(asked.stems)):
        return Asked("given", given.text)
    return Asked("following" if _FOLLOWING.search(text) else "other")


@dataclass(frozen=True)
class _Quantity:
    """A question, clause or sentence: its content stems, and the quantities that it is after, or states."""

    text: str
    stems: frozenset[str]
    heads: frozenset[str]

    @property
    def formulas(self) -> frozenset[str]:
        return frozenset(one for one in self.stems if one.startswith("$"))

    def shared(self, other: _Quantity) -> int:
        """How much two have in common; the same quantity counts beside its word."""
        return len(self.stems & other.stems) + bool(self.heads & other.heads)


_NOTHING = _Quantity("", frozenset(), frozenset())


def _is_about(asked: _Quantity, withheld: _Quantity, given: _Quantity, named: bool) -> bool:
    shared = asked.stems & withheld.stems
    same = bool(asked.heads & withheld.heads)
    other = bool(asked.heads and withheld.heads) and not same
    # "How many bags" is not about "how many marbles are in each bag", where bags play another part.
    if not shared or (named and other and (_MUCH in asked.heads | withheld.heads or asked.heads & withheld.stems)):
        return False
    if asked.formulas and withheld.formulas and not asked.formulas & withheld.formulas:
        return False
    if named and shared == withheld.stems:
        return True
    rest = asked.stems - withheld.stems
    if rest and rest <= given.stems:  # what sets the question apart stands in the chat
        return False
    enough = len(shared) >= _AT_LEAST * len(withheld.stems if named else asked.stems)
    return (enough or (named and same)) and len(shared) + same > asked.shared(given)


def _stated(said: tuple[str, ...]) -> Iterator[str]:
    """The parts of the user's messages that state a number or a formula."""
    for message in said:
        for sentence in sentences(_BLANK.sub("___", message)):
            for part in [sentence] if _FORMULA.search(sentence) else _PARTS.split(sentence):
                states = "$" in part or any(one[0].isdigit() for one in content_stems(part))
                if states and not part.endswith("?") and not _BLANK.search(part):
                    yield part


def _quantity(text: str, stated: bool = False) -> _Quantity:
    """Words for one measure count as one; so does "each", since it tells a whole from a part."""
    stems = {_SAME.get(one, one) for one in content_stems(text)} - _POINTING | (
        {"each"} if _EACH.search(text) else set()
    )
    for formula in _FORMULA.findall(text):  # a variable may look like a small word
        stems |= {f"${''.join(side.split()).strip('.,;')}$" for side in formula.strip("$").split("=")}
    if stated:
        return _Quantity(text, frozenset(stems), frozenset(_after(text, _COUNTED)))
    return _Quantity(text, frozenset(stems), frozenset(_after(text, _HEAD)))


def _after(text: str, mark: re.Pattern[str]) -> Iterator[str]:
    """The quantities named after a mark: "marbl" after "how many", "wide" after "how"; "how much" names none itself."""
    for found in mark.finditer(text):
        if found.group().lower().startswith("how much"):
            yield _MUCH
        elif (named := _ASKED_NAMED.match(text, found.end())) and (stems := content_stems(named.group(1))):
            yield _SAME.get(stems[0], stems[0])


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
