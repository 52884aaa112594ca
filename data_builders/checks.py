"""What a conversation is judged by alone: its form, whether it asks where it must and only there, and its answers."""

from __future__ import annotations

from collections.abc import Iterator

from data_builders.scripted import Conversation
from probe.answers import boxed, lenient_answer, same_answer, sentences

ANSWERED_AT_ONCE = ("complete", "replay", "stated")
"""Kinds that open with the whole problem and ask for nothing but its solution."""
ASKED_ABOUT = ("underspecified", "vague", "conflict", "unsolvable")
"""Kinds whose first message does not let anybody solve the problem."""
FREE = ("stated", "withheld")
"""Kinds in which a model speaks as the assistant: it may solve in parts, or close a solution with a question."""

# No closing question is further from the end.
_END = 600


def form(conversation: Conversation) -> str | None:
    roles = [message["role"] for message in conversation.messages]
    if not roles or len(roles) % 2 or roles != ["user", "assistant"] * (len(roles) // 2):
        return "roles"
    if any(not message["content"].strip() for message in conversation.messages):
        return "empty_turn"
    return None


def asking(conversation: Conversation) -> str | None:
    """A first reply that asks though all is there, or does not though something is missing; a solution that asks."""
    replies = [message["content"] for message in conversation.messages[1::2]]
    if conversation.kind in ANSWERED_AT_ONCE and asks_back(replies[0]):
        return "over_asking"
    if conversation.kind in ASKED_ABOUT and not closes_asking(replies[0]):
        return "no_question"
    if conversation.kind not in FREE and any(closes_asking(reply) and boxed(reply) for reply in replies):
        return "closes_asking"
    return None


def answer(conversation: Conversation) -> str | None:
    """Every boxed answer equals the reference, there is one, and none before what it takes was told."""
    early = 0 if conversation.kind in FREE else conversation.reveal_at
    if conversation.kind in ASKED_ABOUT:
        early = max(early, 2)
    found = [
        (place, inside)
        for place, message in enumerate(conversation.messages)
        if message["role"] == "assistant"
        for inside in all_boxed(message["content"])
    ]
    if conversation.kind == "replay" and not found:  # a model that was not told to box its answer
        stated = lenient_answer(conversation.messages[-1]["content"])
        return None if conversation.answer and same_answer(stated, conversation.answer) else "answer_missing"
    if not found or not conversation.answer:
        return "answer_missing"
    if found[0][0] < early:
        return "answered_early"
    return None if all(same_answer(inside, conversation.answer) for _, inside in found) else "answer_wrong"


def closes_asking(text: str) -> bool:
    """Whether a text closes with a question: its last sentence, or the one before a last one without a boxed answer."""
    if "?" not in text[-_END:]:
        return False
    last = sentences(text[-_END:])[-2:]
    return last[-1].endswith("?") or (len(last) == 2 and last[0].endswith("?") and not boxed(last[1]))


def asks_back(text: str) -> bool:
    """Whether a reply closes with a question and answers nothing."""
    return closes_asking(text) and boxed(text) is None


def all_boxed(text: str) -> Iterator[str]:
    """The boxed answers of a text, the last one first."""
    while "box" in text and (found := boxed(text)):
        yield found[1]
        text = text[: found[0]]
