"""How many tokens a text has, about, without loading a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from probe.sets import Message

_PIECE = re.compile(r"[^\W\d_]+|\d|[^\w\s]")


def estimated_tokens(messages: Sequence[Message]) -> int:
    """Tokens of a conversation without loading a tokenizer: words, digits and signs, and 5 for a turn's header.

    Measured against SmolLM2's tokenizer: within 10% on starter, GSM8K and MATH conversations, without the
    system prompt of 20 tokens that its template adds.
    """
    return sum(round(1.1 * len(_PIECE.findall(message["content"]))) + 5 for message in messages)
