"""A simulated user without a model: knows the problem, answers what was asked, reacts to answers, ends the chat.

What it does after an assistant turn is decided by rules that can be retraced by hand:
- a marked answer: it doubts every second one, right or wrong alike, drawn by row and turn, and ends after the next; where
  something is still withheld, or only a hint was wanted, it ends and says nothing, so that nobody is paid for a guess; where
  a hint was wanted, the result without a mark is as much;
- a question: about what is withheld, or a general one for what is missing, and it tells (once); about what stands in
  the chat, and it quotes the place; about anything else, and it does not know;
- neither: it tells the assistant to go on, a few times.
It never says the answer, never says unasked what is withheld, and never says whether an answer is right.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from nextturn.data_builders.recipe import wordings
from nextturn.data_builders.rows import RlRow
from nextturn.probe.conversations import Message
from nextturn.probe.grading import lenient_answer, says, sentences, strict_answer
from nextturn.probe.text import content_stems, stem

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
        return not self.revealed and bool(self.row.told)

    def reply(self, messages: Sequence[Message]) -> str | None:
        """The message after `messages`, which end with the assistant; None where the user ends the conversation."""
        act, slots = self._act(messages)
        self._idle += act in _BRINGS_NOTHING
        if not act or self._idle > PATIENCE:
            return None
        rng = random.Random(f"scripted-user:{self.seed}:{len(messages)}")
        text = rng.choice(wordings("acts.yaml")["simulated_user"][act])
        if self._casual:  # no capital at the start, no full stop at the end; slots stay as they are
            text = text if text.startswith(("{", "I ", "I'")) else text[:1].lower() + text[1:]
            text = text if text.endswith("}.") else text.removesuffix(".")
        return text.format_map(slots)

    def _act(self, messages: Sequence[Message]) -> tuple[str, dict[str, str]]:
        """What the user does, by its name in `acts.yaml`, and what fills the slots; "" where it ends."""
        text = messages[-1]["content"]
        if self.row.kind == "hint" and len(messages) == len(self.row.prompt) + 1 and tells_result(self.row, text):
            return "", {}
        given = marked_answer(text)
        if given is not None:
            # By row and turn, never by what the answer says.
            doubts = random.Random(f"doubt:{self.row.id}:{len(messages)}").random() < _DOUBTS
            if self.withheld or self._doubted or not doubts:
                return "", {}
            self._doubted = True
            # Nothing long, and nothing that a chat template could read as its own.
            repeated = len(given) <= _LONGEST_DOUBTED and not any(sign in given for sign in "<>|[]\n")
            return "doubt", {"given": given if repeated else "that"}
        row, said = self.row, tuple(one["content"] for one in messages if one["role"] == "user")
        names = names_of_withheld(row)
        withheld = names or ((self.row.told,) if row.hidden else ())
        ask = "" if self.revealed else row.ask
        readings = [read_question(one, withheld, said, named=bool(names), ask=ask) for one in questions(text)]
        return self._answer(*min(readings, key=lambda one: ABOUT.index(one[0]))) if readings else ("go_on", {})

    def _answer(self, about: str, place: str) -> tuple[str, dict[str, str]]:
        if about in ("withheld", "anything"):
            if not self.withheld:
                return ("told" if self.revealed else "all_there"), {}
            # An amount or a formula can be told in a word, a sentence or a drawing cannot.
            short = self.row.short
            in_a_word = 0 < len(short) <= _LONGEST_SHORT and "\n" not in short and short[-1] not in ".?!"
            prefers = random.Random(f"scripted-user:{self.seed}:short").random() < 0.5
            self.revealed = True
            return "tell_short" if prefers and in_a_word else "tell", {"short": short, "reveal": self.row.told}
        if about == "given":
            words = place.split()
            cut = " ".join(words[:_QUOTED_WORDS]) + " ..."
            return "quote", {"quote": place if len(words) <= _QUOTED_WORDS else cut}
        return ("yes" if about == "following" else "unknown"), {}


# --- What an assistant's question is about: what a user has withheld, what stands in the chat, or something else.
#
# By content words alone (`probe.judges.text`). A question is about what is withheld where it names at least half of it,
# or the same quantity, and no sentence of the chat that states a number explains the question as well: "How many bags
# are there?" is about the number of bags, and not about the marbles in each bag.

ABOUT = ("withheld", "anything", "given", "following", "other")
"""What a question can be about; of several questions the one that comes first here is answered."""
_LAST_SENTENCES = 4  # where a reply asks; a question before that is one that it has answered itself
_LONGEST_ANSWER = 200  # no reference is as long, and comparing could take for ever
_AT_LEAST = 0.5

# An answer that is stated without a mark.
_STATED_ANSWER = re.compile(r"\banswer\s*(?:is|:|=)[\s:*$\\(]{0,6}-?\d", re.IGNORECASE)
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
_POINTING = frozenset(map(stem, wordings("words.yaml")["pointing"]))
_SAME = {stem(word): stem(as_word) for word, as_word in wordings("words.yaml")["same_quantity"].items()}
_MUCH = "much"


@cache
def _phrases(name: str) -> re.Pattern[str]:
    """`request`, `general` or `following` of acts.yaml."""
    lines = wordings("acts.yaml")["questions"][name].splitlines()
    return re.compile(rf"\b(?:{'|'.join(lines)})\b", re.IGNORECASE)


def marked_answer(text: str) -> str | None:
    r"""The answer of a reply as a person would take it: `\boxed{...}`, `#### ...` or "the answer is ..."; else None."""
    given = strict_answer(text)
    if given is None and _STATED_ANSWER.search(text) and not text.rstrip().endswith("?"):
        given = lenient_answer(text)
    return given[:_LONGEST_ANSWER] if given else None


def tells_result(row: RlRow, reply: str) -> bool:
    """Whether a reply to a row's prompt marks an answer, or says the right one, which the prompt does not."""
    if marked_answer(reply) is not None:
        return True
    return says(reply, row.answer) and not any(says(message["content"], row.answer) for message in row.prompt)


def questions(text: str) -> list[str]:
    """The questions and requests of a reply, each with the sentence before it where it leans on that."""
    parts, found = ["", *sentences(text)], []
    for before, part in list(itertools.pairwise(parts))[-_LAST_SENTENCES:]:
        if part.endswith("?") or _phrases("request").search(part):
            leans = before and _LEANING.search(part) and not _phrases("following").search(part)
            found.append(f"{before} {part}" if leans else part)
    return found


def names_of_withheld(row: RlRow) -> tuple[str, ...]:
    return tuple(text for text in (row.clause, row.thing) if text)


def read_question(
    text: str, withheld: Sequence[str], said: Sequence[str], named: bool = True, ask: str = ""
) -> tuple[str, str]:
    """(what of ABOUT a question is about, the sentence of the chat that answers one about a given).

    Args:
        withheld: texts that name what is withheld, or where not `named` the sentences that state it.
        said: what the user has written.
        ask: the reply of the data that asks for it. People ask in other words than they list things ("the distance", "how far
            is it?"): by the names alone 43 of 110 written replies were not known to ask for what is missing.
    """
    asked = _quantity(text)
    stated = (_quantity(part, stated=True) for part in _stating(said))
    given = max(stated, key=asked.shared, default=_NOTHING)
    if any(_is_about(asked, _quantity(one), given, named) for one in withheld):
        return "withheld", ""
    if any(_asks_alike(asked, _quantity(one), given) for one in questions(ask) if one.endswith("?")):
        return "withheld", ""
    if _phrases("general").search(text):
        return "anything", ""
    if asked.shared(given) >= max(1, _AT_LEAST * len(asked.stems)):
        return "given", given.text
    return ("following" if _phrases("following").search(text) else "other"), ""


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


def _asks_alike(asked: _Quantity, known: _Quantity, given: _Quantity) -> bool:
    """Whether two questions are for the same: the same quantity with another word in common, or most of their words."""
    if asked.stems == known.stems and asked.heads == known.heads:
        return True
    shared, same = asked.stems & known.stems, bool(asked.heads & known.heads - {_MUCH})
    if bool(asked.heads and known.heads) and not same:
        return False
    alike = len(shared) >= 2 and (same or 2 * len(shared) > len(asked.stems | known.stems))
    return alike and len(shared) + same > asked.shared(given)


def _stating(user_messages: Sequence[str]) -> Iterator[str]:
    """The parts of the user's messages that state a number or a formula."""
    for message in user_messages:
        for sentence in sentences(message):
            for part in [sentence] if _FORMULA.search(sentence) else _PARTS.split(sentence):
                has_value = "$" in part or any(one[0].isdigit() for one in content_stems(part))
                if has_value and not part.endswith("?"):
                    yield part


def _quantity(text: str, stated: bool = False) -> _Quantity:
    """Words for one measure count as one; so does "each", since it tells a whole from a part."""
    stems = {_SAME.get(one, one) for one in content_stems(text)} - _POINTING
    if _EACH.search(text):
        stems.add("each")
    for formula in _FORMULA.findall(text):  # a variable may look like a small word
        stems |= {f"${''.join(side.split()).strip('.,;')}$" for side in formula.strip("$").split("=")}
    return _Quantity(text, frozenset(stems), frozenset(_after(text, _COUNTED if stated else _HEAD)))


def _after(text: str, mark: re.Pattern[str]) -> Iterator[str]:
    """The quantities named after a mark: "marbl" after "how many", "wide" after "how"; "how much" names none itself."""
    for found in mark.finditer(text):
        if found.group().lower().startswith("how much"):
            yield _MUCH
        elif (named := _QUANTITY_WORD.match(text, found.end())) and (stems := content_stems(named.group(1))):
            yield _SAME.get(stems[0], stems[0])
