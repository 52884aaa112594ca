"""Parse the replies of models in their roles, and rate turns by rules, for builders and GRPO."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nextturn.data_builders.dialogue.prompts import still_hidden
from nextturn.probe.conversations import Message, after_thinking
from nextturn.probe.grading import lenient_answer, outcome, strict_answer
from nextturn.probe.judges.labels import Case
from nextturn.probe.judges.rules import Turn, settle
from nextturn.probe.text import content_stems, ngrams, phrases, stems, words


@dataclass(frozen=True)
class Reply:
    """A model's reply in `text`, or the reason in `failure` why there is none.

    Attributes:
        prompt_tokens: Tokens of the prompt, as counted where the model runs; 0 if a server does not tell.
        tokens: Tokens of the reply, likewise.
        cut: Whether the reply reached its token limit.
        failure: Empty, or a reason of `probe.client.ServerReply`: refused, server_error, timeout, bad_reply, ...
    """

    text: str
    prompt_tokens: int = 0
    tokens: int = 0
    cut: bool = False
    failure: str = ""
    detail: str = ""

    def counts(self, role: str) -> dict[str, int]:
        """Return {"ROLE.calls": 1, "ROLE.input", "ROLE.output"}: this reply and its tokens."""
        return {f"{role}.calls": 1, f"{role}.input": self.prompt_tokens, f"{role}.output": self.tokens}


@dataclass(frozen=True)
class Parsed:
    """A parsed reply.

    Attributes:
        unusable: Why the reply cannot be used: empty, cut, out of its role; "" if it can.
        ended: Whether the simulated user ends the conversation.
        verdict: A judge's verdict, from 1 to 5.
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
    r"\\boxed|\bas an ai\b|\byou(?:'re| are) (?:very |most )?welcome\b|\bi apologi[sz]e for (?:the|my|any)\b|\bso (?:that )?i can (?:help|assist)\b|\bhow (?:can|may) i (?:help|assist)|\bi hope (?:this|that|it) helps|\bfeel free to\b"
    r"|\blet me know if you\b|\b(?:happy|glad) to (?:help|assist|explain)|\blet'?s (?:solve|break (?:this|it) down)"
    r"|\bhere(?:'s| is) (?:the|a|your|how) (?:full |complete |step-by-step )?(?:solution|breakdown|explanation)",
    re.IGNORECASE,
)
_OTHER_SCRIPT = re.compile(r"[\u0400-\u04ff\u0600-\u06ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")
# "###DONE###", "[END OF CHAT]", "<<STOP>>", and a line of its own after the message: "TERMINATE".
_END_WORDS = r"(?:END|DONE|STOP|TERMINATED?|FINISH(?:ED)?|EXIT|QUIT|COMPLETED?|EO[SCT])"
_END_MARK = re.compile(
    rf"(?:#+|\[+|<+\|?|\{{+|\*\*|={{2,}}|-{{3,}})\s*/?(?:\w+[ _-]){{0,2}}{_END_WORDS}(?:[ _-]\w+){{0,3}}\s*(?:[\]>|}}#*=-]|$)"
    rf"|\n\W*{_END_WORDS}(?:[ _-](?:OF|THE|CHAT|CONVERSATION|DIALOG(?:UE)?|SESSION))*\W*$|(?i:</?(?:end|done|stop)\s?/?>)"
)
# What a model writes for itself before or after the message: a heading, a plan of what to do, the roles in the third person.
_NOTES = re.compile(
    r"^\W{0,4}(?:scratch ?pad|(?:my |internal |inner )?(?:thoughts?|thinking|reasoning|monologue|rationale|state)|explanation|goal"
    r"|(?:my )?(?:plan|strategy|persona)|(?:(?:my|the|next|final|user'?s?) )*(?:message|turn|utterance|reply|response))\W{0,3}:"
    r"|</?(?:scratch_?pad|think(?:ing)?|thoughts?|plan|reasoning|notes?|analysis)>"
    r"|\b(?:i|we) (?:should|need to|must|will|want to|am going to) (?:now |then |next |first )*(?:respond|reply|act|play|pretend|stay|react"
    r"|acknowledge|sound|express|show (?:\w+ )?(?:doubt|confusion|interest|understanding)|push back|probe"
    r"|(?:write|craft) (?:a|one|the) (?:\w+ ){0,3}(?:message|reply|turn) (?:that|which|as))\b"
    r"|\bi(?:'ll| will| should) [^.?!\n]{0,60}\bthen (?:ask|react|respond|reply)\b|\bstep \d: (?:react|ask|respond|thank)"
    r"|\bthis keeps the\b|\bthe next message\b|\bin character\b|\bthis (?:message|question|reply) (?:reacts?|keeps?|shows?|sounds?|stays?|asks?)\b",
    re.IGNORECASE | re.MULTILINE,
)
_ROLES = re.compile(
    r"\bthe (assistant|user|persona)\b|\b(?:as|what) an? (?:\w+ )?(student|pupil|user|learner|person|human|customer) (?:would|might)\b"
    r"|\b(?:confused|curious|real|typical|average) (student|pupil|user|learner|person|customer) (?:would|might|could)\b"
    r"|^\W*(?:[(\[*]|//).*\b(student|pupil|learner|person|character)\b",
    re.IGNORECASE | re.MULTILINE,
)
_OPENING = re.compile(
    r"\W{0,3}(?:certainly|of course|absolutely|(?:great|good|excellent) question|to (?:solve|find|answer|calculate|determine)\b"
    r"|i apologi[sz]e|no problem|sure[,!.]? (?:here|let|to|i|the))\b",
    re.IGNORECASE,
)
_CHECKS = re.compile(
    r"\bdoes (?:that|this|it) make sense|\bdo you (?:understand|see) (?:how|why|that|now)\b|\bwell done\b",
    re.IGNORECASE,
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


def unfit_user_turn(text: str, messages: Sequence[Message]) -> str:
    """Return why no user would write this text after `messages`, or "".

    Every turn of a simulated user passes this check, whatever writes it. Below 1% of true user turns are refused.
    """
    if not text.strip():
        return EMPTY
    if _LABEL.search(text):
        return ROLE_LABEL
    if _END_MARK.search(text):
        return "end_mark"
    if _OTHER_SCRIPT.search(text) and not any(_OTHER_SCRIPT.search(message["content"]) for message in messages):
        return "foreign"
    settled = settle(Turn(Case(tuple(messages), text)))
    if (settled and settled[0] == "meta_planning") or _speaks_of_roles(text, messages):
        return "meta_planning"
    if _solves(text):
        return "as_assistant"
    if settled and settled[0] == "malformed" and settled[1] != "mostly symbols":  # which may be a formula
        return "malformed"
    said = words(text)
    if len(said) >= _REPEATED_WORDS and any(words(other) == said for other in _by(messages, "user")):
        return "repeats"
    return "repeats" if settled and settled[0] == "assistant_restatement" else ""


def _speaks_of_roles(text: str, messages: Sequence[Message]) -> bool:
    """Return True if the text plans the user's message, or speaks of roles that the conversation does not speak of."""
    if _NOTES.search(text):
        return True
    said = " ".join(message["content"] for message in messages).lower()
    return any(role and role.lower() not in said for roles in _ROLES.findall(text) for role in roles)


def _solves(text: str) -> bool:
    """Return True if the text solves, explains or offers help as an assistant does."""
    equations = sum("=" in line for line in text.split("\n"))
    offers = len(phrases("assistant").findall(text)) + len(_CHECKS.findall(text))
    points = len(phrases("solving").findall(text)) + offers
    opened = _OPENING.match(text) is not None and points + equations > 0
    return bool(
        _ANSWERING.search(text)
        or opened
        or points >= _SOLVING_AT_LEAST
        or equations >= _EQUATIONS_AT_LEAST
        or offers >= 2
    )


def _copies(text: str, question: str) -> bool:
    """Return True if the text copies a long run of the question's words."""
    asked, words = tuple(question.lower().split()), tuple(text.lower().split())
    length = min(_COPIED_WORDS, max(_COPIED_LEAST, round(_COPIED_SHARE * len(asked))))
    return not set(ngrams(asked, length)).isdisjoint(ngrams(words, length))


_MARK = re.compile(r"""verdict[\s*_`"'~\\]{0,10}[:：]""", re.IGNORECASE)
_NUMBER = re.compile(r"[\W_]{0,20}([1-5])(?![\d]|[.,]\d)")


def read_judge(reply: Reply) -> Parsed:
    """Return the last verdict of a judge's reply; unusable if the reply was cut, or has no number from 1 to 5."""
    text, unusable = read_reply(reply)
    if unusable == CUT:  # a verdict in it is a draft
        return Parsed(text, CUT)
    marks = list(_MARK.finditer(text))
    found = _NUMBER.match(text, marks[-1].end()) if marks else None
    if found is not None:
        return Parsed(text, verdict=int(found.group(1)))
    return Parsed(text, "no_verdict")


def from_verdict(verdict: int) -> float:
    """Return a verdict from 1 to 5 as a share from 0 to 1."""
    return (verdict - 1) / 4


# --- Turns, rated by rules.

# No reference is nearly as long, and algebra on a much longer text could take for ever.
LONGEST_ANSWER = 200
# Two assistant turns that share more of their four-word runs count as the same.
_REPEATS, _RUN = 0.6, 4


def final_answer(messages: Sequence[Message], cut: bool = False) -> str | None:
    """Return the assistant's last marked answer, else the answer of its last reply.

    Args:
        cut: Whether the last reply reached its token limit.
    """
    replies = _by(messages, "assistant")
    answer = next((marked for text in reversed(replies) if (marked := strict_answer(text)) is not None), None)
    if answer is None and replies and outcome(replies[-1], truncated=cut) == "answered":
        answer = lenient_answer(replies[-1])
    return answer


def efficiency(tokens: int, efficient_tokens: int) -> float:
    """Return `e / (e + tokens)` for all of the assistant's tokens: 1 at 0 tokens, a half at `e`, strictly decreasing.

    CollabLLM (arXiv 2502.00640, section 4) subtracts min(5e-4 * tokens, 1), which is constant from 2,000 tokens on, while
    its MATH chats average 2,400 to 3,400 tokens, so it distinguishes few replies.
    """
    return efficient_tokens / (efficient_tokens + tokens)


def turn_marks(messages: Sequence[Message], place: int) -> tuple[bool, bool, bool]:
    """Rate the assistant's message at index `place`.

    Returns:
        Whether it uses a word or number of the message before it, asks at most one question, and repeats no earlier
        message of the assistant.
    """
    text, before = messages[place]["content"], _by(messages[:place], "assistant")
    asked = set(content_stems(messages[place - 1]["content"]))
    responds = not asked or bool(asked & set(content_stems(text)))
    return responds, text.count("?") <= 1, not any(same_words(text, other) for other in before)


def same_words(text: str, other: str) -> bool:
    """Return True if two turns share most of their four-word runs."""
    runs, others = set(ngrams(stems(text), _RUN)), set(ngrams(stems(other), _RUN))
    return len(runs & others) > _REPEATS * len(runs) if runs else text == other


def _by(messages: Sequence[Message], role: str) -> list[str]:
    return [message["content"] for message in messages if message["role"] == role]
