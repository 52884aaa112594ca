"""A simulated user without a model: knows the problem, answers what was asked, reacts to answers, ends the chat.

What it does after an assistant turn is decided by rules that can be retraced by hand:
- a marked answer: it doubts every second one, right or wrong alike, drawn by row and turn, and ends after the next; where
  something is still withheld, or only a hint was wanted, it ends and says nothing, so that nobody is paid for a guess;
- a question: about what is withheld, or a general one for what is missing, and it tells (once); about what stands in
  the chat, and it quotes the place; about anything else, and it does not know;
- neither: it tells the assistant to go on, a few times.
It never says the answer, never says unasked what is withheld, and never says whether an answer is right.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from data_builders.acts import simulated_user_messages
from data_builders.text import states
from probe.conversations import Message
from probe.grading import lenient_answer, sentences, strict_answer
from probe.judges.text import content_stems, stem

if TYPE_CHECKING:  # rows bring numpy, which a recipe can be read without
    from data_builders.rows import RlRow

PATIENCE = 4  # messages in all that bring nothing new, before the user gives up
_BRINGS_NOTHING = ("quote", "told", "all_there", "unknown", "go_on", "yes")
_CASUAL = 0.4  # users who type without a capital and a full stop
_DOUBTS = 0.5  # of marked answers
_QUOTED_WORDS = 24
_LONGEST_SHORT = 40  # characters of what can be told in a word
_LONGEST_DOUBTED = 30  # characters of an answer that a doubt repeats


class ScriptedUser:
    """One user in one conversation. The same row, seed and replies always get the same messages.

    Args:
        row: its prompt is what was said before; what it withholds and how that is told stand in it too.
    """

    def __init__(self, row: RlRow, seed: int) -> None:
        self.row = row
        self.seed = seed
        self.revealed = False
        self._doubted = False
        self._idle = 0  # messages so far that brought nothing new
        self._casual = random.Random(f"scripted-user:{seed}").random() < _CASUAL

    @property
    def withheld(self) -> bool:
        """Whether something has still to be told."""
        return not self.revealed and bool(self._reveal())

    def reply(self, messages: Sequence[Message]) -> str | None:
        """The message after `messages`, which end with the assistant; None where the user ends the conversation."""
        act, slots = self._act(messages)
        self._idle += act in _BRINGS_NOTHING
        if not act or self._idle > PATIENCE:
            return None
        rng = random.Random(f"scripted-user:{self.seed}:{len(messages)}")
        text = rng.choice(simulated_user_messages()[act])
        if self._casual:  # no capital at the start, no full stop at the end; slots stay as they are
            text = text if text.startswith(("{", "I ", "I'")) else text[:1].lower() + text[1:]
            text = text if text.endswith("}.") else text.removesuffix(".")
        return text.format_map(slots)

    def _act(self, messages: Sequence[Message]) -> tuple[str, dict[str, str]]:
        """What the user does, by its name in `acts.yaml`, and what fills the slots; "" where it ends."""
        text = messages[-1]["content"]
        given = marked_answer(text)
        if given is not None:
            wants_hint = self.row.kind == "hint" and len(messages) == len(self.row.prompt) + 1
            if self.withheld or wants_hint or self._doubted or not self._doubts(len(messages)):
                return "", {}
            self._doubted = True
            # Nothing long, and nothing that a chat template could read as its own.
            repeated = len(given) <= _LONGEST_DOUBTED and not any(sign in given for sign in "<>|[]\n")
            return "doubt", {"given": given if repeated else "that"}
        readings = [read_question(one, self._question(messages)) for one in questions(text)]
        return self._answer(min(readings, key=lambda one: one.rank)) if readings else ("go_on", {})

    def _doubts(self, length: int) -> bool:
        """Whether an answer as message `length` is doubted: by row and turn, never by what it says."""
        return random.Random(f"doubt:{self.row.id}:{length}").random() < _DOUBTS

    def _answer(self, reading: Reading) -> tuple[str, dict[str, str]]:
        if reading.about in ("withheld", "anything"):
            if not self.withheld:
                return ("told" if self.revealed else "all_there"), {}
            # An amount or a formula can be told in a word, a sentence or a drawing cannot.
            short = self.row.short
            in_a_word = 0 < len(short) <= _LONGEST_SHORT and "\n" not in short and short[-1] not in ".?!"
            prefers = random.Random(f"scripted-user:{self.seed}:short").random() < 0.5
            return self._tell("tell_short" if prefers and in_a_word else "tell")
        if reading.about == "given":
            words = reading.place.split()
            cut = " ".join(words[:_QUOTED_WORDS]) + " ..."
            return "quote", {"quote": reading.place if len(words) <= _QUOTED_WORDS else cut}
        return ("yes" if reading.about == "following" else "unknown"), {}

    def _tell(self, act: str) -> tuple[str, dict[str, str]]:
        slots = {"short": self.row.short, "reveal": self._reveal()}
        self.revealed = True
        return act, slots

    def _reveal(self) -> str:
        """What the user tells when asked: the row's own sentence, or those of the problem that hold what is hidden."""
        if self.row.reveal:
            return self.row.reveal
        hidden = self.row.hidden
        return " ".join(one for one in sentences(self.row.problem) if any(states(one, value) for value in hidden))

    def _question(self, messages: Sequence[Message]) -> Question:
        """What a question of the assistant can be about."""
        row = self.row
        user_messages = tuple(one["content"] for one in messages if one["role"] == "user")
        names = tuple(text for text in (row.clause, row.thing) if text)
        return Question(names or ((self._reveal(),) if row.hidden else ()), user_messages, named=bool(names))


# --- What an assistant's question is about: what a user has withheld, what stands in the chat, or something else.
#
# By content words alone (`probe.judges.text`). A question is about what is withheld where it names at least half of it,
# or the same quantity, and no sentence of the chat that states a number explains the question as well: "How many bags
# are there?" is about the number of bags, and not about the marbles in each bag.

_LAST_SENTENCES = 4  # where a reply asks; a question before that is one that it has answered itself
_LONGEST_ANSWER = 200  # no reference is as long, and comparing could take for ever
_AT_LEAST = 0.5

# An answer that is stated without a mark.
_STATED_ANSWER = re.compile(r"\banswer\s*(?:is|:|=)[\s:*$\\(]{0,6}-?\d", re.IGNORECASE)
# A request without a question mark.
_REQUEST = re.compile(
    r"\b(?:please (?:tell|give|share|provide|say|send|specify|clarify|state|add)|(?:tell|give) me|let me know"
    r"|(?:i|we)(?:'d| would)? (?:still |also |first )?need (?:the|a|one|to know|more)|(?:is|are) (?:still )?missing"
    r"|you (?:did(?: not|n't)|have(?: not|n't)|never|forgot to) (?:say|said|tell|told|give|given|mention|state)\w*"
    r"|(?:is|are)(?: not|n't) (?:given|stated|specified|clear)"
    r"|can(?:not|'t| not) (?:be )?(?:solve|finish|answer|compute|calculate|determine|go on|continue)\w*)\b",
    re.IGNORECASE,
)
# A question for whatever is missing.
_GENERAL = re.compile(
    r"\b(?:what(?:'s| is| else is)? (?:still )?missing|(?:anything|something) (?:else|missing|is missing|you left)"
    r"|(?:more|missing|additional|further) (?:information|details?|context|data)|is (?:that|this) (?:all|everything)"
    r"|(?:full|whole|complete|entire|exact) (?:problem|question|text|statement|exercise|task)"
    r"|(?:did|have) you (?:leave|left|forget|forgot)|(?:number|value|detail|information|given|part|piece)s? (?:is|are) missing"
    r"|(?:another|one more) (?:number|value|detail|piece)|how does (?:it|the (?:text|problem|sentence)) (?:end|go on|continue)"
    r"|which (?:one|of (?:the|these|those|them|both)|value|number)\b.{0,40}\b(?:right|correct|holds?|counts?|true|valid|meant?|use))\b",
    re.IGNORECASE,
)
# Whether the user follows and wants to go on.
_FOLLOWING = re.compile(
    r"\b(?:sense|clear|follow|understand|with me|so far|got (?:it|that)|see (?:why|how|that)|looks? right|(?:shall|should) (?:i|we)"
    r"|(?:would|do) you (?:like|want)|want me to|ready|help|any questions|try|next)\b",
    re.IGNORECASE,
)
# It leans on the sentence before it.
_LEANING = re.compile(r"\b(?:it|that|this|those|them|these|there|here)\b", re.IGNORECASE)
# It tells a whole from a part.
_EACH = re.compile(r"\b(?:each|every|per|apiece)\b", re.IGNORECASE)
# The quantity asked for follows.
_HEAD = re.compile(
    r"\bhow (?:many|much)\b|\bhow (?=\w)|\b(?:number|amount) of\b|\bwhat(?:'s| is| are) the (?!number|amount)",
    re.IGNORECASE,
)
# A number; what it counts follows.
_COUNTED = re.compile(r"(?<![\w.,$])\d[\d,.]*(?= )")
# Between the parts of a sentence.
_PARTS = re.compile(r"(?:,|;|\band\b|\bbut\b)\s+")
# The word that names the quantity.
_QUANTITY_WORD = re.compile(r"\s*(?:(?:the|more|of|other|new|different)\s+)*([^\s?.,]+)", re.IGNORECASE)
# Dollars around mathematics, not before two prices.
_FORMULA = re.compile(r"(?<!\\)\$(?=[^$]*[=\\^{}+<>]|\d*[A-Za-z]\b|[A-Z]{2,3}\b)[^$]{1,80}(?<!\\)\$")
# Where something was left out of a text.
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
    """What a question can be about: what is withheld, and what the user has written.

    `named`: `withheld` names the thing itself, and is not the sentence that states it.
    """

    withheld: tuple[str, ...]
    user_messages: tuple[str, ...]
    named: bool = True


@dataclass(frozen=True)
class Reading:
    """What one question is about; `place` is the sentence of the chat that a question about a given is answered by."""

    about: Literal["withheld", "anything", "given", "following", "other"]
    place: str = ""

    @property
    def rank(self) -> int:
        """Of several questions the one of the lowest rank is answered."""
        return ("withheld", "anything", "given", "following", "other").index(self.about)


def marked_answer(text: str) -> str | None:
    r"""The answer of a reply as a person would take it: `\boxed{...}`, `#### ...` or "the answer is ..."; else None."""
    given = strict_answer(text)
    if given is None and _STATED_ANSWER.search(text) and not text.rstrip().endswith("?"):
        given = lenient_answer(text)
    return given[:_LONGEST_ANSWER] if given else None


def questions(text: str) -> list[str]:
    """The questions and requests of a reply, each with the sentence before it where it leans on that."""
    parts = sentences(_BLANK.sub("___", text))
    found = []
    for place in range(max(0, len(parts) - _LAST_SENTENCES), len(parts)):
        if parts[place].endswith("?") or _REQUEST.search(parts[place]):
            leans = place > 0 and _LEANING.search(parts[place]) and not _FOLLOWING.search(parts[place])
            found.append(f"{parts[place - 1]} {parts[place]}" if leans else parts[place])
    return found


def read_question(text: str, question: Question) -> Reading:
    """What a question is about, the most particular first."""
    asked = _quantity(text)
    stated = (_quantity(part, stated=True) for part in _stating(question.user_messages))
    given = max(stated, key=asked.shared, default=_NOTHING)
    if question.withheld and _BLANK.search(text):  # it points at the place where something was left out
        return Reading("withheld")
    for withheld in question.withheld:
        if _is_about(asked, _quantity(withheld), given, question.named):
            return Reading("withheld")
    if _GENERAL.search(text):
        return Reading("anything")
    if asked.shared(given) >= max(1, _AT_LEAST * len(asked.stems)):
        return Reading("given", given.text)
    return Reading("following" if _FOLLOWING.search(text) else "other")


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


def _stating(user_messages: tuple[str, ...]) -> Iterator[str]:
    """The parts of the user's messages that state a number or a formula."""
    for message in user_messages:
        for sentence in sentences(_BLANK.sub("___", message)):
            for part in [sentence] if _FORMULA.search(sentence) else _PARTS.split(sentence):
                has_value = "$" in part or any(one[0].isdigit() for one in content_stems(part))
                if has_value and not part.endswith("?") and not _BLANK.search(part):
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
        elif (named := _QUANTITY_WORD.match(text, found.end())) and (stems := content_stems(named.group(1))):
            yield _SAME.get(stems[0], stems[0])
