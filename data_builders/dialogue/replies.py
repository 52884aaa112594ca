"""Reads what a model said in a role: its text, whether it ends the conversation, and slips out of the role.

All by rule, so that a slip has a name that a person can check. A reply with a slip is asked for again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from data_builders.derive.values import states
from data_builders.dialogue.plan import Plan
from data_builders.dialogue.speaker import Said
from probe.judges.voices import SOLVING
from probe.sets import Message

EMPTY, CUT, ROLE_LABEL = "empty", "cut", "role_label"
AS_ASSISTANT, TELLS_ANSWER = "as_assistant", "tells_answer"
COPIES, REVEALS_EARLY, ENDS_EARLY = "copies_problem", "reveals_early", "ends_early"

_THINKING_ENDS = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_THINKING_STARTS = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
_MESSAGE = re.compile(r"<message>(.*?)(?:</message>|$)", re.IGNORECASE | re.DOTALL)
_END = re.compile(r"<\s*/?\s*end\s*/?\s*>", re.IGNORECASE)
_LABEL = re.compile(
    r"^\W{0,4}(?:user|human|assistant|ai|system|student|tutor)\W{0,3}:"  # USER: or **Assistant**:
    r"|<\|[^|<>]{1,40}\|>|</?s>|<(?:start|end)_of_turn>|</?(?:user|assistant|chat|message|problem|answer)>|\[/?INST\]",
    re.IGNORECASE | re.MULTILINE,
)
_ANSWERING = re.compile(
    r"\\boxed|\bas an ai\b|\bhow (?:can|may) i (?:help|assist)|\bi hope (?:this|that|it) helps|\bfeel free to\b"
    r"|\blet me know if you\b|\b(?:happy|glad) to (?:help|assist|explain)|\blet'?s (?:solve|break (?:this|it) down)"
    r"|\bhere(?:'s| is) (?:the|a|your|how) (?:full |complete |step-by-step )?(?:solution|breakdown|explanation)",
    re.IGNORECASE,
)
# A user who shows an attempt may write a line or two of it.
_SOLVING_AT_LEAST, _EQUATIONS_AT_LEAST = 3, 4
_COPIED_WORDS, _COPIED_SHARE, _COPIED_LEAST = 14, 0.6, 6


@dataclass(frozen=True)
class Heard:
    """A reply as it was understood; `slip` names why it cannot be used."""

    text: str
    slip: str = ""
    ended: bool = False
    score: int | None = None


def spoken(said: Said) -> tuple[str, str]:
    """(what was said after any thinking, EMPTY, CUT or ""). The text is as it came but for white space around it."""
    text = _THINKING_ENDS.split(said.text)[-1].strip()
    if said.cut or _THINKING_STARTS.search(text):
        return text, CUT
    return text, "" if text else EMPTY


def read_assistant(said: Said) -> Heard:
    text, slip = spoken(said)
    return Heard(text, slip or (ROLE_LABEL if _LABEL.search(text) else ""))


def read_user(said: Said, plan: Plan, messages: Sequence[Message]) -> Heard:
    """The user's message after `messages` (none: the opening)."""
    whole, slip = spoken(said)
    if slip:
        return Heard(whole, slip)
    if _END.search(whole):
        return Heard("", ended=True) if messages else Heard(whole, ENDS_EARLY)
    tagged = _MESSAGE.findall(whole)
    text = (tagged[-1] if tagged else whole).strip()
    return Heard(text, _slip(text, plan, messages))


def _slip(text: str, plan: Plan, messages: Sequence[Message]) -> str:
    if not text:
        return EMPTY
    if _LABEL.search(text):
        return ROLE_LABEL
    equations = sum(line.count("=") > 0 for line in text.split("\n"))
    if _ANSWERING.search(text) or len(SOLVING.findall(text)) >= _SOLVING_AT_LEAST or equations >= _EQUATIONS_AT_LEAST:
        return AS_ASSISTANT
    if _tells_answer(text, plan, messages):
        return TELLS_ANSWER
    hidden = plan.still_hidden(messages)
    if hidden and copied(text, plan.task.question):
        return COPIES
    if not messages and any(states(text, value) for value in hidden):
        return REVEALS_EARLY
    return ""


def _tells_answer(text: str, plan: Plan, messages: Sequence[Message]) -> bool:
    """Whether the user brings up the answer before anybody else; a single digit can stand for anything."""
    answer = plan.task.answer
    known = (plan.task.question, *(message["content"] for message in messages))
    return len(answer) > 1 and states(text, answer) and not any(states(before, answer) for before in known)


def copied(text: str, question: str) -> bool:
    """Whether the text takes over a long run of the question's words."""
    asked, words = question.lower().split(), text.lower().split()
    length = min(_COPIED_WORDS, max(_COPIED_LEAST, round(_COPIED_SHARE * len(asked))))
    runs = {tuple(asked[start : start + length]) for start in range(len(asked) - length + 1)}
    return any(tuple(words[start : start + length]) in runs for start in range(len(words) - length + 1))
