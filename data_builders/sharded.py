"""Problems that the user tells piece by piece, answered after the last piece (arXiv 2505.06120).

The last reply is the solution of the conversation that has the whole problem, so with a policy's own right solutions the policy
learns to answer a told problem as it answers a whole one (self-distillation; arXiv 2605.24432 and 2605.27186 found that it
brings most of the lost accuracy back). The replies before it ask for the rest and answer nothing; they carry loss too.
"""

from __future__ import annotations

import random

from nextturn.data_builders.scripted import say
from nextturn.data_builders.tasks import Conversation
from nextturn.probe.conversations import Message, assistant, user
from nextturn.probe.shards import split

KINDS = ("complete", "replay")
"""Kinds whose first exchange is a whole problem and its solution."""


def sharded(conversation: Conversation, share: float, seed: int) -> Conversation | None:
    """Return the same problem told piece by piece.

    Args:
        share: Share of the conversations that give one, where the problem can be cut.

    Returns:
        None for another kind, without a solution, if the problem cannot be cut, and for the rest of the share.
    """
    rng = random.Random(f"sharded:{seed}:{conversation.id}")
    if conversation.kind not in KINDS or conversation.reason or rng.random() >= share:
        return None
    pieces = split(conversation.task.question if conversation.task else conversation.messages[0]["content"])
    if pieces is None:
        return None
    messages: list[Message] = [user(pieces.wish)]
    for number, fact in enumerate(pieces.facts):
        told = pieces.facts[number - 1] if number else ""
        messages += [assistant(say("ask_rest" if number else "ask_facts", rng, {"told": told})), user(fact)]
    return Conversation(
        f"{conversation.id}-sharded", "sharded", (*messages, conversation.messages[1]), conversation.source,
        conversation.answer, reveal_at=len(messages) - 1, task=conversation.task, shards=pieces.facts,
    )  # fmt: skip
