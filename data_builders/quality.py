"""The gate: what keeps a conversation out of the training data, each with one named reason.

Rejected rows are written beside the kept ones, so asked = kept + rejected always holds. The gate remembers
hashes of what it kept (8 bytes a row); everything else about a row is judged by the row alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from data_builders.scripted import Conversation
from probe.answers import boxed, same_answer, sentences
from probe.errors import DataError
from probe.files import read_jsonl
from probe.recipe import section
from probe.sets import Message

# As in GPT-3's decontamination (arXiv 2005.14165, appendix C): runs of 13 words, without those that stand in
# more than ten texts, which are phrases of the genre ("express your answer as a common fraction ...").
NGRAM = 13
COMMON = 10
_TEXT_FIELDS = (
    "question", "Question", "problem", "prompt", "complete", "turns", "messages", "conversations", "conversation",
    "history", "content", "value", "user", "bot",
)  # fmt: skip


@section
class Quality:
    """`decontaminate`: JSONL files of probe sets. `max_same_wording`: share of all rows that may be alike but
    for their numbers and names."""

    decontaminate: list[str] = dataclasses.field(default_factory=list)
    max_same_wording: float = 0.02


class Gate:
    """Judges conversations one by one; `asked` is how many there will be, for the share of alike ones."""

    def __init__(self, quality: Quality, asked: int) -> None:
        counts = Counter(gram for path in quality.decontaminate for gram in file_ngrams(Path(path)))
        self._ngrams = {gram for gram, count in counts.items() if count <= COMMON}
        self._most_alike = max(3, int(quality.max_same_wording * asked))
        self._seen: set[int] = set()
        self._alike: Counter[int] = Counter()

    def reason(self, conversation: Conversation) -> str | None:
        """Why the conversation is rejected; None keeps it and remembers it."""
        found = _form(conversation) or _leak(conversation) or _over_asking(conversation) or _answer(conversation)
        if found:
            return found
        if self._ngrams and any(
            gram in self._ngrams for message in _by(conversation.messages, "user") for gram in ngrams(message)
        ):
            return "contaminated"
        whole, alike = _hashes(conversation.messages)
        if whole in self._seen:
            return "duplicate"
        if self._alike[alike] >= self._most_alike:
            return "near_duplicate"
        self.remember(conversation.messages)
        return None

    def remember(self, messages: Sequence[Message]) -> None:
        """Takes a row as kept, also one kept by an earlier run of the same build."""
        whole, alike = _hashes(messages)
        self._seen.add(whole)
        self._alike[alike] += 1


def _form(conversation: Conversation) -> str | None:
    roles = [message["role"] for message in conversation.messages]
    if not roles or len(roles) % 2 or roles != ["user", "assistant"] * (len(roles) // 2):
        return "roles"
    if any(not message["content"].strip() for message in conversation.messages):
        return "empty_turn"
    return None


def _leak(conversation: Conversation) -> str | None:
    """An assistant turn that states the withheld number before the user did."""
    if not conversation.hidden:
        return None
    early = conversation.messages[: conversation.reveal_at]
    pattern = re.compile(rf"(?<![\d.,]){re.escape(conversation.hidden)}(?!\d|[.,]\d)")
    if any(pattern.search(text) for text in _by(early, "user")):
        return "not_withheld"
    return "leak" if any(pattern.search(text) for text in _by(early, "assistant")) else None


def _over_asking(conversation: Conversation) -> str | None:
    """A complete problem whose first reply ends in a question; an incomplete one whose first reply does not."""
    ends_asking = any(part.endswith("?") for part in sentences(conversation.messages[1]["content"])[-2:])
    if conversation.kind in ("complete", "replay") and ends_asking:
        return "over_asking"
    return "no_question" if conversation.kind == "underspecified" and not ends_asking else None


def _answer(conversation: Conversation) -> str | None:
    """Every boxed answer equals the reference, and there is one. Text first, math-verify where that differs."""
    found = [inside[1] for text in _by(conversation.messages, "assistant") if (inside := boxed(text))]
    if not found or not conversation.answer:
        return "answer_missing"
    if all(same_answer(inside, conversation.answer) for inside in found):
        return None
    return "answer_wrong"


def ngrams(text: str) -> Iterator[int]:
    """Hashes of all runs of NGRAM words, without case and punctuation; none for a shorter text."""
    words = re.findall(r"\w+", text.lower())
    for start in range(len(words) - NGRAM + 1):
        yield _hash(" ".join(words[start : start + NGRAM]))


def file_ngrams(path: Path) -> Iterator[int]:
    """The n-grams of every question, prompt or conversation in a JSONL file.

    Raises:
        DataError: no such file, a broken line, or a row without any text to compare.
    """
    for number, row in read_jsonl(path):
        texts = list(_texts(row))
        if not texts:
            raise DataError(
                f"{path}:{number}: nothing to decontaminate against, wanted one of {', '.join(_TEXT_FIELDS)}"
            )
        for text in texts:
            yield from set(ngrams(text))


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for name in _TEXT_FIELDS if name in value for text in _texts(value[name])]
    return [text for part in value for text in _texts(part)] if isinstance(value, list) else []


def _by(messages: Sequence[Message], role: str) -> list[str]:
    return [message["content"] for message in messages if message["role"] == role]


def _hashes(messages: Sequence[Message]) -> tuple[int, int]:
    """Two hashes of a conversation: of its text, and of its text without numbers and capitalised words."""
    text = " ".join(" ".join(message["content"].split()) for message in messages)
    return _hash(text.lower()), _hash(re.sub(r"\b[A-Z]\w*", "@", re.sub(r"\d+", "#", text)))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
