"""Parse what a model replied in a role, and rate turns by rules: self-play, replay, preferences and GRPO use both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nextturn.data_builders.dialogue.prompts import User, still_hidden
from nextturn.probe.conversations import Message, after_thinking
from nextturn.probe.grading import lenient_answer, outcome, strict_answer
from nextturn.probe.text import content_stems, ngrams, phrases, stems


@dataclass(frozen=True)
class Reply:
    """What came back from a model. Either `failure` names why there is no reply, or `text` is one.

    Attributes:
        prompt_tokens, tokens: of the prompt and of the reply, as counted where the model runs.
        cut: the reply reached its limit of tokens.
        failure: empty, or the reason of probe.client.Reply: refused, server_error, timeout, bad_reply, ...
    """

    text: str
    prompt_tokens: int = 0
    tokens: int = 0
    cut: bool = False
    failure: str = ""
    detail: str = ""

    def counts(self, role: str) -> dict[str, int]:
        """{"ROLE.calls": 1, "ROLE.input", "ROLE.output"}: this reply and its tokens."""
        return {f"{role}.calls": 1, f"{role}.input": self.prompt_tokens, f"{role}.output": self.tokens}


@dataclass(frozen=True)
class Parsed:
    """A reply as it was understood. `unusable` names what is wrong with it: empty, cut off, out of its role.

    Attributes:
        ended: the simulated user ends the conversation.
        verdict: a judge's, from 1 to 5.
    """

    text: str
    unusable: str = ""
    ended: bool = False
    verdict: int | None = None


EMPTY, CUT, ROLE_LABEL = "empty", "cut", "role_label"

_MESSAGE = re.compile(r"<message>(.*?)(?:</message>|$)", re.IGNORECASE | re.DOTALL)
_END = re.compile(r"<\s*/?\s*end\s*/?\s*>", re.IGNORECASE)
_LABEL = re.compile(
    r"^\W{0,4}(?:user|human|assistant|ai|system|student|tutor)\W{0,3}:"  # USER: or **Assistant**:
    r"|<\|[^|<>]{1,40}\|>|</?s>|<(?:start|end)_of_turn>|</?(?:user|assistant|chat|message|reply|problem|text|answer)>|\[/?INST\]",
    re.IGNORECASE | re.MULTILINE,
)
_ANSWERING = re.compile(
    r"\\boxed|\bas an ai\b|\bhow (?:can|may) i (?:help|assist)|\bi hope (?:this|that|it) helps|\bfeel free to\b"
    r"|\blet me know if you\b|\b(?:happy|glad) to (?:help|assist|explain)|\blet'?s (?:solve|break (?:this|it) down)"
    r"|\bhere(?:'s| is) (?:the|a|your|how) (?:full |complete |step-by-step )?(?:solution|breakdown|explanation)",
    re.IGNORECASE,
)
_OTHER_SCRIPT = re.compile(r"[\u0400-\u04ff\u0600-\u06ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")
# A user who shows an attempt may write a line or two of it.
_SOLVING_AT_LEAST, _EQUATIONS_AT_LEAST = 3, 4
_COPIED_WORDS, _COPIED_SHARE, _COPIED_LEAST = 14, 0.6, 6


def read_reply(reply: Reply) -> tuple[str, str]:
    """(the text after any thinking, why it cannot be used or ""). It is as it came but for white space around it."""
    text = after_thinking(reply.text)
    if text is None:
        return reply.text.strip(), CUT
    text = text.strip()
    return text, CUT if reply.cut else "" if text else EMPTY


def read_assistant(reply: Reply) -> Parsed:
    text, unusable = read_reply(reply)
    return Parsed(text, unusable or (ROLE_LABEL if _LABEL.search(text) else ""))


def tagged(reply: Reply, tag: str) -> Parsed:
    """What stands between <tag> and </tag>, the last of them."""
    whole, unusable = read_reply(reply)
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", whole, re.IGNORECASE | re.DOTALL)
    text = found[-1].strip() if found else ""
    return Parsed(text or whole, unusable or ("" if text else EMPTY))


def read_message(reply: Reply) -> Parsed:
    """A user's message, whatever the chat is."""
    whole, unusable = read_reply(reply)
    if unusable:
        return Parsed(whole, unusable)
    found = _MESSAGE.findall(whole)
    text = (found[-1] if found else whole).strip()
    return Parsed(text, _out_of_role(text))


def read_user(reply: Reply, user: User, messages: Sequence[Message]) -> Parsed:
    """The user's message after `messages`, which may be the end of the conversation."""
    parsed = read_message(reply)
    if parsed.unusable != CUT and _END.search(reply.text):
        return Parsed("", ended=True)
    if not parsed.unusable and still_hidden(user.hidden, messages) and _copies(parsed.text, user.question):
        return Parsed(parsed.text, "copies_problem")
    return parsed


def _out_of_role(text: str) -> str:
    """Why no user can have written this; "" where one can."""
    if not text:
        return EMPTY
    if _LABEL.search(text):
        return ROLE_LABEL
    if _OTHER_SCRIPT.search(text):
        return "foreign"
    equations = sum("=" in line for line in text.split("\n"))
    solving = len(phrases("solving").findall(text))
    if _ANSWERING.search(text) or solving >= _SOLVING_AT_LEAST or equations >= _EQUATIONS_AT_LEAST:
        return "as_assistant"
    return ""


def _copies(text: str, question: str) -> bool:
    """Whether the text takes over a long run of the question's words."""
    asked, words = question.lower().split(), text.lower().split()
    length = min(_COPIED_WORDS, max(_COPIED_LEAST, round(_COPIED_SHARE * len(asked))))
    runs = {tuple(asked[start : start + length]) for start in range(len(asked) - length + 1)}
    return any(tuple(words[start : start + length]) in runs for start in range(len(words) - length + 1))


_MARK = re.compile(r"""verdict[\s*_`"'~\\]{0,10}[:：]""", re.IGNORECASE)
_NUMBER = re.compile(r"[\W_]{0,20}([1-5])(?![\d]|[.,]\d)")


def read_judge(reply: Reply) -> Parsed:
    """The last verdict of a judge's reply; unusable where it names no number from 1 to 5."""
    text, unusable = read_reply(reply)
    marks = list(_MARK.finditer(text))
    found = _NUMBER.match(text, marks[-1].end()) if marks else None
    if found is not None:
        return Parsed(text, verdict=int(found.group(1)))
    return Parsed(text, unusable if unusable and unusable != EMPTY else "no_verdict")


def from_verdict(verdict: int) -> float:
    """A verdict from 1 to 5 as a part from 0 to 1."""
    return (verdict - 1) / 4


# --- Turns, rated by rules.

# No reference is nearly as long; algebra on what a model wrote on and on could take for ever.
LONGEST_ANSWER = 200
# Two turns of the assistant that share more of their four-word runs say the same.
_REPEATS, _RUN = 0.6, 4


def final_answer(messages: Sequence[Message], cut: bool = False) -> str | None:
    """The assistant's last marked answer, else what its last reply answers; `cut`: that reply has no end."""
    replies = _by(messages, "assistant")
    given = next((found for text in reversed(replies) if (found := strict_answer(text)) is not None), None)
    if given is None and replies and outcome(replies[-1], truncated=cut) == "answered":
        given = lenient_answer(replies[-1])
    return given


def efficiency(tokens: int, efficient_tokens: int) -> float:
    """`e / (e + tokens)`, over all of the assistant's tokens: 1 for none, a half at `e`, strictly falling for ever.

    CollabLLM (arXiv 2502.00640, section 4) subtracts min(5e-4 * tokens, 1), which is flat from 2,000 tokens on, while its
    MATH chats average 2,400 to 3,400: most replies were told apart by nothing.
    """
    return efficient_tokens / (efficient_tokens + tokens)


def turn_marks(messages: Sequence[Message], place: int) -> tuple[bool, bool, bool]:
    """Whether the assistant's message at `place` takes up a word or number of the message before it, asks one question at
    the most, and does not say again what the assistant said before."""
    text, before = messages[place]["content"], _by(messages[:place], "assistant")
    asked = set(content_stems(messages[place - 1]["content"]))
    takes_up = not asked or bool(asked & set(content_stems(text)))
    return takes_up, text.count("?") <= 1, not any(same_words(text, other) for other in before)


def same_words(text: str, other: str) -> bool:
    """Whether two turns share most of their four-word runs."""
    runs, others = set(ngrams(stems(text), _RUN)), set(ngrams(stems(other), _RUN))
    return len(runs & others) > _REPEATS * len(runs) if runs else text == other


def _by(messages: Sequence[Message], role: str) -> list[str]:
    return [message["content"] for message in messages if message["role"] == role]
