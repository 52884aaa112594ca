"""Reads what /chat/completions answers, for everyone who asks a chat model: judges, simulators, assistants."""

from __future__ import annotations

import re
from typing import Any

from probe.servers.replies import Reply

BAD_REPLY, EMPTY_REPLY = "bad_reply", "empty_reply"
# Not merely a limit that is too large for the model, which names the same parameters.
_UNSUPPORTED = re.compile(
    r"^(?=.*(?:max_tokens|temperature|top_p|penalty)).*(?:unsupported|not support)", re.IGNORECASE | re.DOTALL
)


def content(body: dict[str, Any]) -> str | None:
    """The text of the first choice, "" where a model only thought; None where there is no message."""
    try:
        text = body["choices"][0]["message"].get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    return text if isinstance(text, str) else "" if text is None else None


def cut_off(body: dict[str, Any]) -> bool:
    """Whether the reply reached its limit of tokens."""
    return bool(body["choices"][0].get("finish_reason") == "length")


def unusable(body: dict[str, Any]) -> str | None:
    """Why a reply with status 200 holds nothing to read; None also where asking again would end the same way."""
    text = content(body)
    if text is None:
        return BAD_REPLY
    return None if text.strip() or cut_off(body) else EMPTY_REPLY


def wants_other_names(reply: Reply) -> bool:
    """Whether a server refused the usual names: OpenAI's reasoning models count thinking and reply together, as
    `max_completion_tokens`, and take no temperature."""
    return reply.failure == "refused" and _UNSUPPORTED.search(reply.detail) is not None
