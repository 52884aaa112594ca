"""The gate: what keeps a conversation out of the training data, each with one named reason.

Rejected rows are written beside the kept ones, so asked = kept + rejected always holds. The rules, in their order:

    no_solution             the problem has an answer and no worked solution, and the rules would teach the bare answer
    roles, empty_turn       user and assistant do not take turns, or one says nothing
    leak, not_withheld      what is withheld stands in an assistant's turn before it is told, or in the user's own
    over_asking             the whole problem is there, and the first reply asks
    no_question             something is missing, and the first reply does not ask
    closes_asking           a turn that answers closes with a question
    answer_missing          no boxed answer, or the problem has no reference to hold it against
    answered_early          a boxed answer before what it takes was told
    answer_wrong            a boxed answer that is not the reference
    contaminated:SET        a run of 13 words that a probe set has, too, or a whole question of fewer
    duplicate               the same text was kept before
    near_duplicate          nearly the same text of the same kind was kept before
    same_wording            too many are alike but for their numbers and names
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from nextturn.data_builders.duplicates import Kept, ProbeTexts, hashed
from nextturn.data_builders.recipe import Quality
from nextturn.data_builders.tasks import Conversation
from nextturn.data_builders.text import states
from nextturn.probe.conversations import Message, learned
from nextturn.probe.errors import DataError, SetOutOfReach
from nextturn.probe.grading import asks, boxed, closes_asking, lenient_answer, same_answer
from nextturn.probe.sets import HUB, PACKAGED, locate
from nextturn.probe.terminal import say

# --- What a conversation is judged by alone: its form, whether it asks where it must and only there, and its answers.

ANSWERED_AT_ONCE = ("complete", "replay", "twin", "doubt", "slip")
"""Kinds that open with the whole problem and ask for nothing but its solution."""
ASKED_ABOUT = ("underspecified",)
"""Kinds whose first message does not let anybody solve the problem."""


def form(conversation: Conversation) -> str | None:
    roles = [message["role"] for message in conversation.messages]
    if not roles or len(roles) % 2 or roles != ["user", "assistant"] * (len(roles) // 2):
        return "roles"
    if any(not message["content"].strip() for message in conversation.messages):
        return "empty_turn"
    return None


def asking(conversation: Conversation) -> str | None:
    """A first reply that asks though all is there, or does not though something is missing, by the probe's own rule; a
    solution that closes with a question."""
    replies = [message["content"] for message in conversation.messages[1::2]]
    if conversation.kind in ANSWERED_AT_ONCE and asks(replies[0]):
        return "over_asking"
    if conversation.kind in ASKED_ABOUT and not asks(replies[0]):
        return "no_question"
    if any(closes_asking(reply) and boxed(reply) for reply in replies):
        return "closes_asking"
    return None


def answer(conversation: Conversation) -> str | None:
    """Every boxed answer that is learned equals the reference, there is one, and none before what it takes was told.

    In a written conversation a later question may have a result of its own: there the last one is compared.
    """
    early = conversation.reveal_at
    if conversation.kind in ASKED_ABOUT:
        early = max(early, 2)
    found = [
        (place, inside)
        for place, message in enumerate(conversation.messages)
        if message["role"] == "assistant" and learned(message)
        for inside in all_boxed(message["content"])
    ]
    if conversation.kind == "chat":
        return "answer_wrong" if found else None
    if conversation.kind == "replay" and not found:  # a model that was not told to box its answer
        stated = lenient_answer(conversation.messages[-1]["content"])
        return None if conversation.answer and same_answer(stated, conversation.answer) else "answer_missing"
    if not found or not conversation.answer:
        return "answer_missing"
    if found[0][0] < early:
        return "answered_early"
    if conversation.source == "written":
        found = [next(one for one in found if one[0] == found[-1][0])]
    return None if all(same_answer(inside, conversation.answer) for _, inside in found) else "answer_wrong"


def all_boxed(text: str) -> Iterator[str]:
    """The boxed answers of a text, the last one first."""
    while "box" in text and (found := boxed(text)):
        yield found[1]
        text = text[: found[0]]


# --- Whether a text that is withheld at first stands in a turn before it is revealed.
#
# A number counts where it stands by itself. Any other text (a formula, a sentence, the code of a drawing) counts whatever
# its white space, and a long one also in part: a run of its words that the user has not said.

RUN = 8
"""Words of a long text that give it away."""

_NUMBER = re.compile(r"-?\d[\d.,]*")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\!|,)+(?=\d{3}(?!\d))")
# What LaTeX shows as white space, or not at all.
_UNSEEN = re.compile(r"\\(?:left|right|big|Big|displaystyle|quad|qquad)(?![A-Za-z])|\\[,;:! ]|~")
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")
_DELIMITERS = re.compile(r"^(?:\$+|\\\(|\\\[)|(?:\$+|\\\)|\\\])$")


def leak(conversation: Conversation) -> str | None:
    """Says "leak" of an assistant turn that holds what is withheld, "not_withheld" of a user turn; None of neither."""
    said, hidden = "", conversation.hidden
    for message in conversation.messages[: conversation.reveal_at if hidden else 0]:
        text = message["content"]
        if message["role"] == "user":
            said += f"\n{text}"
            if holds(text, hidden):
                return "not_withheld"
        elif holds(text, hidden) or tells_part(text, hidden, said):
            return "leak"
    return None


def holds(text: str, hidden: str) -> bool:
    """Whether the whole of `hidden` stands in the text, not as a part of a longer word or number."""
    if _NUMBER.fullmatch(hidden):
        return states(_THOUSANDS.sub("", text), _THOUSANDS.sub("", hidden))
    wanted, seen = "".join(_DELIMITERS.sub("", _seen(hidden).strip()).split()), _seen(text)
    if not wanted or wanted not in "".join(seen.split()):
        return False
    # No letter or digit goes on from its ends.
    before, after = (r"(?<![^\W_])" if wanted[0].isalnum() else ""), (r"(?![^\W_])" if wanted[-1].isalnum() else "")
    return re.search(before + r"\s*".join(map(re.escape, wanted)) + after, seen) is not None


def tells_part(text: str, hidden: str, said: str) -> bool:
    """Whether the text holds a run of RUN words of `hidden` that does not stand in `said`."""
    return bool(_word_runs(text) & (_word_runs(hidden) - _word_runs(said)))


def _seen(text: str) -> str:
    return _FRACTION.sub(r"\\frac", _UNSEEN.sub(" ", text)).lower()


def _word_runs(text: str) -> set[tuple[str, ...]]:
    found = re.findall(r"\w+", text.lower())
    return {tuple(found[start : start + RUN]) for start in range(len(found) - RUN + 1)}


def probe_files(quality: Quality) -> dict[str, Path]:
    """Return the file of each set in `decontaminate`. A gated set of the hub that cannot be had is left out by name.

    Raises:
        DataError: An entry is neither a file nor a known name.
        SetOutOfReach: A known set is neither in the cache nor to be had from the hub.
    """
    found: dict[str, Path] = {}
    for given in quality.decontaminate:
        if not Path(given).is_file() and given not in (*HUB, *PACKAGED):
            known = ", ".join([*PACKAGED, *HUB])
            raise DataError(f"quality.decontaminate: {given}: no such file, and no known set ({known})")
        try:  # of a file that is no JSONL it says so
            found[given] = locate(given, given if Path(given).is_file() else None)
        except SetOutOfReach as error:
            told = f"quality.decontaminate: {error}; list such a file in place of the name"
            if not HUB[given].gated:
                raise SetOutOfReach(told) from None
            say(f"note: the data is not checked against {given}; {told}")
    return found


class Gate:
    """Judges conversations one by one; the same ones in the same order always get the same reasons.

    Args:
        asked: how many conversations there will be, for the share of those alike.
        index: a file for what grows with the rows, made anew at the first row and deleted by `close`.

    Attributes:
        checked: the probe sets that conversations are held against.

    Raises:
        BadInput: settings or probe sets that cannot be used; nothing has been written then.
    """

    def __init__(self, quality: Quality, asked: int, index: Path) -> None:
        self._probe = ProbeTexts(probe_files(quality))
        self.checked = self._probe.checked
        self._kept = Kept(index, quality.near_duplicates)
        self._most_alike = max(3, int(quality.max_same_wording * asked))

    def reason(self, conversation: Conversation) -> str | None:
        """Why the conversation is rejected; None keeps it and remembers it."""
        found = form(conversation) or leak(conversation) or asking(conversation) or answer(conversation)
        if found:
            return found
        texts = [message["content"] for message in conversation.messages]
        words, task = [hashed(text) for text in texts], conversation.task
        asked = [task.question, task.whole_beside, task.lacking_beside] if task and self.checked else []
        if held := self._probe.holding(words[1:], [words[0], *(hashed(text) for text in asked if text)]):
            return f"contaminated:{held}"
        made = self._kept.print_of(texts, words, conversation.kind)
        if found := self._kept.again(made, self._most_alike):
            return found
        self._kept.add(made)
        return None

    def remember(self, messages: Sequence[Message], kind: str) -> None:
        """Takes a row as kept, one of an earlier run of the same build."""
        texts = [message["content"] for message in messages]
        self._kept.add(self._kept.print_of(texts, [hashed(text) for text in texts], kind))

    def close(self) -> None:
        self._kept.close()
