"""A simulated user without a model: it knows the problem, answers questions, reacts to answers, and ends the conversation.

What it does after an assistant turn follows from rules:

- A marked answer: it doubts every second answer, right or wrong, drawn by row and turn, and ends after the next one. If a
  fact is still withheld, it ends at once, so that no guess is rewarded.
- A question: if the question is about the withheld fact, or asks what is missing, the user reveals the fact (once). If it is
  about a given fact, the user quotes it. If it is about anything else, the user does not know.
- Neither: it tells the assistant to go on, a few times.

It never states the answer, never reveals the withheld fact unasked, and never says whether an answer is right.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from nextturn.data_builders.sections import wordings
from nextturn.probe.data.messages import Message
from nextturn.probe.questions.simulation import PromptRow
from nextturn.probe.text.grading import lenient_answer, says, strict_answer
from nextturn.probe.text.words import content_stems, rough_sentences, stem

PATIENCE = 4  # messages that bring nothing new, before the user gives up
_BRINGS_NOTHING = ("quote", "told", "all_there", "unknown", "go_on", "yes")
_CASUAL = 0.4  # share of users who type without capitals and full stops
_DOUBTS = 0.5  # share of marked answers that are doubted
_QUOTED_WORDS = 24
_LONGEST_SHORT = 40  # characters of a fact that is revealed in a word
_LONGEST_DOUBTED = 30  # characters of an answer that a doubt repeats


class ScriptedUser:
    """A user in one conversation. The same row, seed and replies always get the same messages.

    Attributes:
        revealed: Whether the withheld fact has been revealed.
    """

    def __init__(self, row: PromptRow, seed: int) -> None:
        self.row = row
        self.seed = seed
        self.revealed = False
        self._doubted = False
        self._idle = 0  # messages so far that brought nothing new
        self._casual = random.Random(f"scripted-user:{seed}").random() < _CASUAL

    @property
    def withheld(self) -> bool:
        """Whether a fact is still to be revealed."""
        return not self.revealed and bool(self.row.fact.reveal)

    def reply(self, messages: Sequence[Message], attempt: int = 0) -> str | None:
        """Return the user's next message, or None to end the conversation. `messages` end with the assistant.

        Args:
            attempt: Another one draws another wording.
        """
        act, slots = self._act(messages)
        self._idle += act in _BRINGS_NOTHING
        if not act or self._idle > PATIENCE:
            return None
        rng = random.Random(f"scripted-user:{self.seed}:{len(messages)}{f':{attempt}' * bool(attempt)}")
        text = rng.choice(wordings("acts.yaml")["simulated_user"][act])
        if self._casual:  # slots are left as they are
            text = text if text.startswith(("{", "I ", "I'")) else text[:1].lower() + text[1:]
            text = text if text.endswith("}.") else text.removesuffix(".")
        return text.format_map(slots)

    def _act(self, messages: Sequence[Message]) -> tuple[str, dict[str, str]]:
        """Return an act by its name in `acts.yaml` and what fills its slots; "" ends the conversation."""
        row, text = self.row, messages[-1]["content"]
        answer = marked_answer(text)
        if answer is not None:
            # Drawn by row and turn, whatever the answer.
            doubts = random.Random(f"doubt:{row.id}:{len(messages)}").random() < _DOUBTS
            if self.withheld or self._doubted or not doubts:
                return "", {}
            self._doubted = True
            # A long answer, or one that a chat template could read as markup, is not repeated.
            repeated = len(answer) <= _LONGEST_DOUBTED and not any(sign in answer for sign in "<>|[]\n")
            return "doubt", {"given": answer if repeated else "that"}
        user_texts = tuple(message["content"] for message in messages if message["role"] == "user")
        names = row.fact.names
        withheld = names or ((row.fact.reveal,) if row.hidden else ())
        known_question = "" if self.revealed else row.fact.ask
        readings = [read_question(each, withheld, user_texts, bool(names), known_question) for each in questions(text)]
        return self._answer(*min(readings, key=lambda reading: ABOUT.index(reading[0]))) if readings else ("go_on", {})

    def _answer(self, about: str, sentence: str) -> tuple[str, dict[str, str]]:
        if about in ("withheld", "anything"):
            if not self.withheld:
                return ("told" if self.revealed else "all_there"), {}
            # An amount or a formula can be revealed in a word; a sentence or a drawing cannot.
            short = self.row.fact.short
            in_a_word = 0 < len(short) <= _LONGEST_SHORT and "\n" not in short and short[-1] not in ".?!"
            prefers = random.Random(f"scripted-user:{self.seed}:short").random() < 0.5
            self.revealed = True
            return "tell_short" if prefers and in_a_word else "tell", {"short": short, "reveal": self.row.fact.reveal}
        if about == "given":
            words = sentence.split()
            cut = " ".join(words[:_QUOTED_WORDS]) + " ..."
            return "quote", {"quote": sentence if len(words) <= _QUOTED_WORDS else cut}
        return ("yes" if about == "following" else "unknown"), {}


# --- What an assistant's question is about: the withheld fact, a given fact, or something else.
#
# By content words alone (`probe.text`). A question is about the withheld fact if it names at least half of its words, or the
# same quantity, and no sentence of the conversation that states a number matches the question as well: "How many bags are
# there?" is about the number of bags, and not about the marbles in each bag.

ABOUT = ("withheld", "anything", "given", "following", "other")
"""What a question can be about. Of several questions, the first in this order is answered."""
_LAST_SENTENCES = 4  # sentences of a reply that are read; earlier questions are ones that it has answered itself
LONGEST_ANSWER = 200  # no reference answer is as long, and a comparison could take forever
_AT_LEAST = 0.5

_STATED_ANSWER = re.compile(r"\banswer\s*(?:is|:|=)[\s:*$\\(]{0,6}-?\d", re.IGNORECASE)  # without a mark
# The sentence needs the one before it.
_REFERS_BACK = re.compile(r"\b(?:it|that|this|those|them|these|there|here)\b", re.IGNORECASE)
# Distinguishes a part from the whole.
_EACH = re.compile(r"\b(?:each|every|per|apiece)\b", re.IGNORECASE)
# The quantity that is asked for follows.
_HEAD = re.compile(
    r"\bhow (?:many|much)\b|\bhow (?=\w)|\b(?:number|amount) of\b|\bwhat(?:'s| is| are) the (?!number|amount)",
    re.IGNORECASE,
)
# A number; the noun that it counts follows.
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
    """Return the pattern of `request`, `general` or `following` in acts.yaml."""
    lines = wordings("acts.yaml")["questions"][name].splitlines()
    return re.compile(rf"\b(?:{'|'.join(lines)})\b", re.IGNORECASE)


def marked_answer(text: str) -> str | None:
    r"""Return the answer of a reply as a person would read it: `\boxed{...}`, `#### ...` or "the answer is ..."; else None."""
    answer = strict_answer(text)
    if answer is None and _STATED_ANSWER.search(text) and not text.rstrip().endswith("?"):
        answer = lenient_answer(text)
    return answer[:LONGEST_ANSWER] if answer else None


def states_result(answer: str, prompt: Sequence[Message], reply: str) -> bool:
    """Return True if a reply to a prompt marks an answer, or states the right one although the prompt does not."""
    if marked_answer(reply) is not None:
        return True
    return says(reply, answer) and not any(says(message["content"], answer) for message in prompt)


def questions(text: str) -> list[str]:
    """Return the questions and requests of a reply, each with the sentence before it if it refers back."""
    parts, asked = ["", *rough_sentences(text)], []
    for before, part in list(itertools.pairwise(parts))[-_LAST_SENTENCES:]:
        if part.endswith("?") or _phrases("request").search(part):
            refers_back = before and _REFERS_BACK.search(part) and not _phrases("following").search(part)
            asked.append(f"{before} {part}" if refers_back else part)
    return asked


def read_question(
    text: str, withheld: Sequence[str], user_texts: Sequence[str], named: bool = True, ask: str = ""
) -> tuple[str, str]:
    """Return what a question is about (see ABOUT), and for a given fact the sentence that states it.

    Args:
        withheld: Texts that name the withheld fact, or, unless `named`, the sentences that state it.
        user_texts: The user's messages.
        ask: The reply of the data that asks for the fact. People use other words in questions than in lists ("how far is
            it?" for "the distance"): by the names alone, 43 of 110 written replies were not recognized.
    """
    asked = _quantity(text)
    stated = (_quantity(part, stated=True) for part in _stating(user_texts))
    given = max(stated, key=asked.shared, default=_NOTHING)
    if any(_is_about(asked, _quantity(name), given, named) for name in withheld):
        return "withheld", ""
    if any(_asks_alike(asked, _quantity(known), given) for known in questions(ask) if known.endswith("?")):
        return "withheld", ""
    if _phrases("general").search(text):
        return "anything", ""
    if asked.shared(given) >= max(1, _AT_LEAST * len(asked.stems)):
        return "given", given.text
    return ("following" if _phrases("following").search(text) else "other"), ""


@dataclass(frozen=True)
class _Quantity:
    """A question, clause or sentence: its content stems, and the quantities that it asks for or states."""

    text: str
    stems: frozenset[str]
    heads: frozenset[str]

    @property
    def formulas(self) -> frozenset[str]:
        return frozenset(stem for stem in self.stems if stem.startswith("$"))

    def shared(self, other: _Quantity) -> int:
        """Return the number of common stems, plus one for a common quantity."""
        return len(self.stems & other.stems) + bool(self.heads & other.heads)


_NOTHING = _Quantity("", frozenset(), frozenset())


def _is_about(asked: _Quantity, withheld: _Quantity, given: _Quantity, named: bool) -> bool:
    """Return True if a question is about the withheld fact rather than about the given fact `given`."""
    shared = asked.stems & withheld.stems
    same = bool(asked.heads & withheld.heads)
    other = bool(asked.heads and withheld.heads) and not same
    # "How many bags" is not about "how many marbles are in each bag", where bags are not counted.
    if not shared or (named and other and (_MUCH in asked.heads | withheld.heads or asked.heads & withheld.stems)):
        return False
    if asked.formulas and withheld.formulas and not asked.formulas & withheld.formulas:
        return False
    if named and shared == withheld.stems:
        return True
    rest = asked.stems - withheld.stems
    if rest and rest <= given.stems:  # the words that set the question apart are those of the given fact
        return False
    enough = len(shared) >= _AT_LEAST * len(withheld.stems if named else asked.stems)
    return (enough or (named and same)) and len(shared) + same > asked.shared(given)


def _asks_alike(asked: _Quantity, known: _Quantity, given: _Quantity) -> bool:
    """Return True if two questions ask for the same: the same quantity and another common word, or mostly common words."""
    if asked.stems == known.stems and asked.heads == known.heads:
        return True
    shared, same = asked.stems & known.stems, bool(asked.heads & known.heads - {_MUCH})
    if bool(asked.heads and known.heads) and not same:
        return False
    alike = len(shared) >= 2 and (same or 2 * len(shared) > len(asked.stems | known.stems))
    return alike and len(shared) + same > asked.shared(given)


def _stating(user_texts: Sequence[str]) -> Iterator[str]:
    """Yield the parts of the user's messages that state a number or a formula."""
    for sentence in itertools.chain.from_iterable(map(rough_sentences, user_texts)):
        for part in [sentence] if _FORMULA.search(sentence) else _PARTS.split(sentence):
            has_value = "$" in part or any(stem[0].isdigit() for stem in content_stems(part))
            if has_value and not part.endswith("?"):
                yield part


def _quantity(text: str, stated: bool = False) -> _Quantity:
    """Return the quantity of a text. Words for one measure count as one word, and so do the words for "each"."""
    stems = {_SAME.get(stem, stem) for stem in content_stems(text)} - _POINTING
    if _EACH.search(text):
        stems.add("each")
    for formula in _FORMULA.findall(text):  # a variable may look like a small word
        stems |= {f"${''.join(side.split()).strip('.,;')}$" for side in formula.strip("$").split("=")}
    return _Quantity(text, frozenset(stems), frozenset(_after(text, _COUNTED if stated else _HEAD)))


def _after(text: str, mark: re.Pattern[str]) -> Iterator[str]:
    """Yield the quantities after a mark: "marbl" after "how many", "wide" after "how", and "much" for "how much"."""
    for match in mark.finditer(text):
        if match.group().lower().startswith("how much"):
            yield _MUCH
        elif (word := _QUANTITY_WORD.match(text, match.end())) and (stems := content_stems(word.group(1))):
            yield _SAME.get(stems[0], stems[0])
