"""The quality filter: it keeps a conversation out of the training data for one named reason.

Rejected rows are written next to the kept rows, so asked = kept + rejected always holds. The rules in their order:

    no_solution             the problem has an answer but no worked solution, so the rules would teach the bare answer
    roles, empty_turn       user and assistant do not alternate, or a message is empty
    leak, not_withheld      an assistant turn states the withheld fact before the user does, or the user states it at once
    over_asking             the problem is complete, and the first reply asks
    no_question             a fact is missing, and the first reply does not ask
    closes_asking           a turn with the answer ends with a question
    answer_missing          no boxed answer, or the problem has no reference answer
    answered_early          a boxed answer before the missing fact was revealed
    answer_wrong            a boxed answer differs from the reference
    contaminated:SET        a run of 13 words, or a whole question of fewer words, also occurs in a probe set
    duplicate               the same text was kept before
    near_duplicate          nearly the same text of the same kind was kept before
    same_wording            too many rows differ only in their numbers and names
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nextturn.data_builders.duplicates import KeptRows, ProbeTexts, word_hashes
from nextturn.data_builders.numbers import states
from nextturn.data_builders.sections import Quality
from nextturn.data_builders.tasks import Conversation
from nextturn.probe.command.errors import DataError, SetOutOfReach
from nextturn.probe.command.terminal import say
from nextturn.probe.data.messages import Message, learned
from nextturn.probe.questions.sets import HUB, PACKAGED, locate
from nextturn.probe.text.equality import same_answer
from nextturn.probe.text.grading import asks, boxed, closes_asking, lenient_answer
from nextturn.probe.text.words import ngrams

# --- Rules about one conversation alone: its form, whether it asks only when needed, and its answers.

ANSWERED_AT_ONCE = ("complete", "replay", "twin", "doubt", "slip")
"""Kinds that open with the whole problem and want nothing but its solution."""
ASKED_ABOUT = ("underspecified", "sharded")
"""Kinds whose first user message lacks a needed fact."""


def form_fault(conversation: Conversation) -> str | None:
    roles = [message["role"] for message in conversation.messages]
    if not roles or len(roles) % 2 or roles != ["user", "assistant"] * (len(roles) // 2):
        return "roles"
    if any(not message["content"].strip() for message in conversation.messages):
        return "empty_turn"
    return None


def asking_fault(conversation: Conversation) -> str | None:
    """Check that the first reply asks exactly when a fact is missing, and that no solution ends with a question."""
    replies = [message["content"] for message in conversation.messages[1::2]]
    if conversation.kind in ANSWERED_AT_ONCE and asks(replies[0]):
        return "over_asking"
    if conversation.kind in ASKED_ABOUT and not asks(replies[0]):
        return "no_question"
    if any(closes_asking(reply) and boxed(reply) for reply in replies):
        return "closes_asking"
    return None


def answer_fault(conversation: Conversation) -> str | None:
    """Check that the learned turns box the reference answer, and not before the missing fact was revealed.

    Later questions of a written conversation may have results of their own, so only its last turn with a box is compared.
    """
    boxes = [
        (position, inside)
        for position, message in enumerate(conversation.messages)
        if message["role"] == "assistant" and learned(message)
        for inside in all_boxed(message["content"])
    ]
    if conversation.kind == "chat":
        return "answer_wrong" if boxes else None
    if conversation.kind == "replay" and not boxes:  # the model was not told to box its answer
        stated = lenient_answer(conversation.messages[-1]["content"])
        return None if conversation.answer and same_answer(stated, conversation.answer) else "answer_missing"
    if not boxes or not conversation.answer:
        return "answer_missing"
    if boxes[0][0] < max(conversation.reveal_at, 2 if conversation.kind in ASKED_ABOUT else 0):
        return "answered_early"
    if conversation.source == "written":
        boxes = [next(box for box in boxes if box[0] == boxes[-1][0])]
    return None if all(same_answer(inside, conversation.answer) for _, inside in boxes) else "answer_wrong"


def all_boxed(text: str) -> Iterator[str]:
    """Yield the boxed answers of a text, the last one first."""
    while "box" in text and (box := boxed(text)):
        yield box[1]
        text = text[: box[0]]


# --- Whether a message states the withheld text before it is revealed.
#
# A number counts if it stands by itself. Any other text (a formula, a sentence, the code of a drawing) counts whatever its
# white space, and a part of a long text counts too: a run of its words that the user has not said.

RUN = 8
"""Words of a long text that count as a leak."""

_NUMBER = re.compile(r"-?\d[\d.,]*")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\!|,)+(?=\d{3}(?!\d))")
# Commands that LaTeX renders as white space, or not at all.
_INVISIBLE = re.compile(r"\\(?:left|right|big|Big|displaystyle|quad|qquad)(?![A-Za-z])|\\[,;:! ]|~")
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")
_DELIMITERS = re.compile(r"^(?:\$+|\\\(|\\\[)|(?:\$+|\\\)|\\\])$")


def leak_fault(conversation: Conversation) -> str | None:
    """Return "leak" if an assistant turn states the withheld text, "not_withheld" if a user turn does; else None."""
    user_texts, hidden = "", conversation.fact.value
    for message in conversation.messages[: conversation.reveal_at if hidden else 0]:
        text = message["content"]
        if message["role"] == "user":
            user_texts += f"\n{text}"
            if holds(text, hidden):
                return "not_withheld"
        elif holds(text, hidden) or states_part(text, hidden, user_texts):
            return "leak"
    return None


def holds(text: str, hidden: str) -> bool:
    """Return True if the text contains the whole of `hidden`, not as a part of a longer word or number."""
    if _NUMBER.fullmatch(hidden):
        return states(_THOUSANDS.sub("", text), _THOUSANDS.sub("", hidden))
    needle, haystack = "".join(_DELIMITERS.sub("", _normalized(hidden).strip()).split()), _normalized(text)
    if not needle or needle not in "".join(haystack.split()):
        return False
    # No letter or digit may continue it.
    before, after = (r"(?<![^\W_])" if needle[0].isalnum() else ""), (r"(?![^\W_])" if needle[-1].isalnum() else "")
    return re.search(before + r"\s*".join(map(re.escape, needle)) + after, haystack) is not None


def states_part(text: str, hidden: str, user_texts: str) -> bool:
    """Return True if the text contains a run of RUN words of `hidden` that `user_texts` does not contain."""
    return bool(_word_runs(text) & (_word_runs(hidden) - _word_runs(user_texts)))


def _normalized(text: str) -> str:
    return _FRACTION.sub(r"\\frac", _INVISIBLE.sub(" ", text)).lower()


def _word_runs(text: str) -> set[tuple[str, ...]]:
    return set(ngrams(tuple(re.findall(r"\w+", text.lower())), RUN))


# --- The filter.


def probe_files(names: Iterable[str]) -> dict[str, Path]:
    """Return the file of each probe set. A gated set of the hub without access is left out with a note.

    Args:
        names: Entries of `quality.decontaminate`: files or known sets.

    Raises:
        DataError: An entry is neither a file nor a known name.
        SetOutOfReach: A known set is neither in the cache nor available from the hub.
    """
    files: dict[str, Path] = {}
    for name in names:
        path = name if Path(name).is_file() else None
        if path is None and name not in (*HUB, *PACKAGED):
            known = ", ".join([*PACKAGED, *HUB])
            raise DataError(f"quality.decontaminate: {name}: no such file, and no known set ({known})")
        try:
            files[name] = locate(name, path)
        except SetOutOfReach as error:
            message = f"quality.decontaminate: {error}; list such a file in place of the name"
            if not HUB[name].gated:
                raise SetOutOfReach(message) from None
            say(f"note: the data is not checked against {name}; {message}")
    return files


class QualityFilter:
    """Checks conversations one by one. The same conversations in the same order always get the same reasons.

    Args:
        asked: Number of conversations to come, for the share with the same wording.

    Attributes:
        checked: The probe sets that conversations are compared with.

    Raises:
        BadInput: Settings or probe sets that cannot be used; nothing has been written then.
    """

    def __init__(self, quality: Quality, asked: int) -> None:
        self._probe = ProbeTexts(probe_files(quality.decontaminate))
        self.checked = self._probe.checked
        self._kept = KeptRows(quality.near_duplicates)
        self._most_alike = max(3, int(quality.max_same_wording * asked))

    def reason(self, conversation: Conversation) -> str | None:
        """Return why a conversation is rejected. None keeps it, and later ones are compared with it."""
        if (
            reason := form_fault(conversation)
            or leak_fault(conversation)
            or asking_fault(conversation)
            or answer_fault(conversation)
        ):
            return reason
        texts = [message["content"] for message in conversation.messages]
        words, task = [word_hashes(text) for text in texts], conversation.task
        asked = [conversation.whole, *([task.question, task.whole_beside, task.lacking_beside] if task else [])]
        questions = [word_hashes(text) for text in dict.fromkeys(asked) if text and self.checked]
        if name := self._probe.overlap(words[1:], [words[0], *questions]):
            return f"contaminated:{name}"
        row = self._kept.fingerprint(texts, words, conversation.kind)
        if reason := self._kept.repeats(row, self._most_alike):
            return reason
        self._kept.add(row)
        return None

    def remember(self, messages: Sequence[Message], kind: str) -> None:
        """Add a row that an earlier run of the same build kept."""
        texts = [message["content"] for message in messages]
        self._kept.add(self._kept.fingerprint(texts, [word_hashes(text) for text in texts], kind))
