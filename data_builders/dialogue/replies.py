"""Parse the replies of models in their roles, and check user turns, for builders and GRPO."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from nextturn.data_builders.dialogue.prompts import still_hidden
from nextturn.data_builders.sections import wordings
from nextturn.probe.data.messages import Message, after_thinking, said_by
from nextturn.probe.engines.ask import Reply
from nextturn.probe.judges.rules import Turn, settle
from nextturn.probe.judges.verdicts import Case
from nextturn.probe.text.words import ngrams, phrases, stems, words


@dataclass(frozen=True)
class Parsed:
    """A parsed reply.

    Attributes:
        unusable: Why the reply cannot be used: empty, cut, out of its role; "" if it can.
        ended: Whether the simulated user ends the conversation.
    """

    text: str
    unusable: str = ""
    ended: bool = False


EMPTY, CUT, ROLE_LABEL = "empty", "cut", "role_label"

_MESSAGE = re.compile(r"<message>(.*?)(?:</message>|$)", re.IGNORECASE | re.DOTALL)
_END = re.compile(r"<\s*/?\s*end\s*/?\s*>", re.IGNORECASE)
_LABEL = re.compile(
    r"^\W{0,4}(?:user|human|assistant|ai|system|student|tutor)\W{0,3}:"  # USER: or **Assistant**:
    r"|<\|[^|<>]{1,40}\|>|</?s>|<(?:start|end)_of_turn>|</?(?:user|assistant|chat|message|reply|problem|text|answer)>|\[/?INST\]",
    re.IGNORECASE | re.MULTILINE,
)
_OTHER_SCRIPT = re.compile(r"[\u0400-\u04ff\u0600-\u06ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")
# "###DONE###", "[END OF CHAT]", "<<STOP>>", and a line of its own after the message: "TERMINATE".
_END_WORDS = r"(?:END|DONE|STOP|TERMINATED?|FINISH(?:ED)?|EXIT|QUIT|COMPLETED?|EO[SCT])"
_END_MARK = re.compile(
    rf"(?:#+|\[+|<+\|?|\{{+|\*\*|={{2,}}|-{{3,}})\s*/?(?:\w+[ _-]){{0,2}}{_END_WORDS}(?:[ _-]\w+){{0,3}}\s*(?:[\]>|}}#*=-]|$)"
    rf"|\n\W*{_END_WORDS}(?:[ _-](?:OF|THE|CHAT|CONVERSATION|DIALOG(?:UE)?|SESSION))*\W*$|(?i:</?(?:end|done|stop)\s?/?>)"
)
_REPEATED_WORDS = 6
# A user who shows an attempt may write a line or two of it.
_SOLVING_AT_LEAST, _EQUATIONS_AT_LEAST = 3, 4
_COPIED_WORDS, _COPIED_SHARE, _COPIED_LEAST = 14, 0.6, 6


def read_reply(reply: Reply) -> tuple[str, str]:
    """Return (the text after any thinking, without white space around it; why it cannot be used, or "")."""
    text = after_thinking(reply.text)
    if text is None:
        return reply.text.strip(), CUT
    text = text.strip()
    return text, CUT if reply.cut else "" if text else EMPTY


def read_assistant(reply: Reply) -> Parsed:
    text, unusable = read_reply(reply)
    return Parsed(text, unusable or (ROLE_LABEL if _LABEL.search(text) else ""))


def tagged(reply: Reply, tag: str) -> Parsed:
    """Return the text of the last <tag>...</tag> of a reply."""
    whole, unusable = read_reply(reply)
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", whole, re.IGNORECASE | re.DOTALL)
    text = found[-1].strip() if found else ""
    return Parsed(text or whole, unusable or ("" if text else EMPTY))


def read_message(reply: Reply) -> Parsed:
    """Return a user's message, which may be the last <message> of the reply. `unfit_user_turn` checks it."""
    whole, unusable = read_reply(reply)
    found = _MESSAGE.findall(whole)
    return Parsed((found[-1] if found and not unusable else whole).strip(), unusable)


def read_user(reply: Reply, hidden: Sequence[str], question: str, messages: Sequence[Message]) -> Parsed:
    """Return the user's message after `messages`, or the end of the conversation.

    Args:
        hidden: Texts of the question that may not be revealed by copying it.
    """
    parsed = read_message(reply)
    if parsed.unusable != CUT and _END.search(reply.text):
        return Parsed("", ended=True)
    if not parsed.unusable and still_hidden(hidden, messages) and _copies(parsed.text, question):
        return Parsed(parsed.text, "copies_problem")
    return parsed


@cache
def _phrases(name: str) -> re.Pattern[str]:
    """Return a group of user_turns.yaml as a pattern."""
    lines = wordings("user_turns.yaml")[name].splitlines()
    return re.compile("|".join(lines), re.IGNORECASE | re.MULTILINE)


def unfit_user_turn(text: str, messages: Sequence[Message]) -> str:
    """Return why no user would write this text after `messages`, or "".

    Every turn of a simulated user passes this check, whatever writes it. The check also refuses a few turns of real users, such as one
    that boxes a result.
    """
    if not text.strip():
        return EMPTY
    if _LABEL.search(text):
        return ROLE_LABEL
    if _END_MARK.search(text):
        return "end_mark"
    before = "\n".join(message["content"] for message in messages)
    if _OTHER_SCRIPT.search(text) and not _OTHER_SCRIPT.search(before):
        return "foreign"
    label, rule = settle(Turn(Case(tuple(messages), text))) or (None, "")
    roles = {role.lower() for found in _phrases("roles").findall(text) for role in found}
    if label == "meta_planning" or _phrases("notes").search(text) or any(role not in before.lower() for role in roles):
        return "meta_planning"
    if _as_assistant(text):
        return "as_assistant"
    if label == "malformed" and rule != "mostly symbols":  # which may be a formula
        return "malformed"
    said = words(text)
    again = len(said) >= _REPEATED_WORDS and any(words(other) == said for other in said_by(messages, "user"))
    return "repeats" if again or label == "assistant_restatement" else ""


def _as_assistant(text: str) -> bool:
    """Return True if the text solves, explains or offers help as an assistant does."""
    equations = sum("=" in line for line in text.split("\n"))
    offers = len(phrases("assistant").findall(text)) + len(_phrases("checks").findall(text))
    points = len(phrases("solving").findall(text)) + offers
    if _phrases("answering").search(text) or (_phrases("opening").match(text) and points + equations > 0):
        return True
    return points >= _SOLVING_AT_LEAST or equations >= _EQUATIONS_AT_LEAST or offers >= 2


def _copies(text: str, question: str) -> bool:
    """Return True if the text copies a long run of the question's words."""
    asked, words = tuple(question.lower().split()), tuple(text.lower().split())
    length = min(_COPIED_WORDS, max(_COPIED_LEAST, round(_COPIED_SHARE * len(asked))))
    return not set(ngrams(asked, length)).isdisjoint(ngrams(words, length))


# Two assistant turns that share more of their four-word runs count as the same.
_REPEATS, _RUN = 0.6, 4


def same_words(text: str, other: str) -> bool:
    """Return True if two turns share most of their four-word runs."""
    runs, others = set(ngrams(stems(text), _RUN)), set(ngrams(stems(other), _RUN))
    return len(runs & others) > _REPEATS * len(runs) if runs else text == other
