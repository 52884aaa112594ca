"""A language model as judge, behind any OpenAI-compatible server, and the cascade: rules first, the model for the rest.

The user turn comes from the model that is measured, so nothing in it may act on the judge. All of the conversation
stands between tags as data (`llm_prompt.txt`); whatever in it looks like one of our tags, like a token that a chat
template gives a meaning to (servers read those inside message text as well), or like a verdict is shown in a form that
is still readable and no longer works. The reply is plain text, never JSON, which would break LaTeX: a reason, then a
verdict.

The share of verdicts that could not be had is part of the result: a turn whose judge failed is unscored with the
server's reason, and too many of them end the run instead of shrinking what the rate stands on.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from probe.client import BAD_REPLY, Client, Reply, content, cut_off, unusable, wants_other_names
from probe.errors import JudgeError
from probe.judges.labels import GENUINE, LABELS, Case, Judge, Verdict
from probe.judges.rules import CLEAR_MARGIN, RulesJudge
from probe.settings import ServerSection

PROMPT_VERSION = "1"
"""Changes with every word of the prompt and with every rule that reads the reply."""

# In characters, so that a prompt stays far below 32,000 tokens. A user turn has 96 tokens by default.
TURN_LIMIT = 8_000
MESSAGE_LIMIT = 6_000
CONVERSATION_LIMIT = 24_000

FAILED_AT_MOST = 0.2
"""The largest share of verdicts that may fail for reasons of the server or its settings: with more, those that failed
could turn most findings around, and the cause is one to mend."""
FEWEST_FOR_A_SHARE = 20
"""Below this many verdicts a share says nothing, and all are kept as they are."""

NO_VERDICT = "no_verdict"
CUT_OFF = "cut_off"
"""The reply reached max_tokens before its verdict, as those of models that think at length do."""


class LlmJudge:
    """Asks for one verdict per case, at temperature 0. What a server returns is not the same on every machine.

    Raises:
        EngineError: no server can be reached, or it does not say which model it serves (on construction where the
            section names no model).
    """

    name = "llm"

    def __init__(self, server: ServerSection) -> None:
        self._client = Client(server)
        self._urls = ", ".join(server.urls)
        self._limits: dict[str, Any] = {"temperature": 0, "max_tokens": server.max_tokens}
        self._limits_of_reasoners: dict[str, Any] = {"max_completion_tokens": server.max_tokens}
        self.version = f"llm/{PROMPT_VERSION} {self._client.model}"
        self.calls = 0

    def stream(self, cases: Sequence[Case]) -> Iterator[tuple[int, Verdict]]:
        """(index, verdict) as replies come; `raw` is the whole reply, or what the server said when it failed.

        Raises:
            JudgeError: after the last verdict, when more than FAILED_AT_MOST of them failed.
        """
        failures: Counter[str] = Counter()
        said: dict[str, str] = {}
        for index, reply in self._replies(cases):
            verdict = self._verdict(reply)
            if verdict.unscored not in (None, NO_VERDICT):
                failures[str(verdict.unscored)] += 1
                said.setdefault(str(verdict.unscored), verdict.raw)
            yield index, verdict
        if len(cases) >= FEWEST_FOR_A_SHARE and failures.total() > FAILED_AT_MOST * len(cases):
            reasons = ", ".join(f"{reason} {count}" for reason, count in failures.most_common())
            example = " ".join(said[failures.most_common(1)[0][0]].split())[:200] or "no text"
            raise JudgeError(
                f"judge {self.version} at {self._urls}: {failures.total()} of {len(cases)} verdicts failed, more than "
                f"{FAILED_AT_MOST:.0%} ({reasons}; such as: {example}); mend the server or its settings ({CUT_OFF} wants "
                "a larger max_tokens), then run this again"
            )

    def _verdict(self, reply: Reply) -> Verdict:
        if reply.failure is not None or reply.body is None:
            return Verdict(None, reply.failure or BAD_REPLY, storable(reply.detail))
        verdict = read_verdict(content(reply.body) or "")
        return replace(verdict, unscored=CUT_OFF) if verdict.label is None and cut_off(reply.body) else verdict

    def _replies(self, cases: Sequence[Case]) -> Iterator[tuple[int, Reply]]:
        """Every case's reply once; starts over with what is missing if the server wants other names for its limits."""
        missing = set(range(len(cases)))
        while missing:
            asked = sorted(missing)
            bodies = [self._body(cases[index]) for index in asked]
            with closing(self._client.stream("/chat/completions", bodies, usable=unusable)) as replies:
                for position, reply in replies:
                    self.calls = self._client.calls
                    if self._limits is not self._limits_of_reasoners and wants_other_names(reply):
                        self._limits = self._limits_of_reasoners
                        break
                    missing.remove(asked[position])
                    yield asked[position], reply

    def _body(self, case: Case) -> dict[str, Any]:
        message = {"role": "user", "content": prompt(case)}
        return {"model": self._client.model, "messages": [message], **self._limits}


class CascadeJudge:
    """Rules first, a language model for the rest: most of the agreement of the model alone at a part of its calls.

    A turn that the rules find clear is settled there. What they are unsure about, or cannot read (another language than
    English), goes to the model; where that fails the turn stays unscored, and the rules' guess is not put in its place.
    `raw` begins with who decided: "rules: ..." or "llm: ...". `calls` counts the model's only.

    Args:
        unclear: judges what the rules leave open.
    """

    name = "cascade"

    def __init__(self, unclear: Judge) -> None:
        self._rules = RulesJudge()
        self._unclear = unclear
        self.version = f"cascade/1 ({self._rules.version} at {CLEAR_MARGIN:g}, {unclear.version})"
        self.calls = 0

    def stream(self, cases: Sequence[Case]) -> Iterator[tuple[int, Verdict]]:
        """(index, verdict): the clear ones in order, then the others as they come.

        Raises:
            JudgeError: from the model, whose share of failures is counted over the cases that it was asked about.
        """
        open_cases = []
        for index, case in enumerate(cases):
            verdict, margin = self._rules.consider(case)
            if verdict.label is None or margin < CLEAR_MARGIN:
                open_cases.append(index)
            else:
                yield index, _by(self._rules.name, verdict)
        for position, verdict in self._unclear.stream([cases[index] for index in open_cases]):
            self.calls = self._unclear.calls
            yield open_cases[position], _by(self._unclear.name, verdict)


def _by(name: str, verdict: Verdict) -> Verdict:
    return replace(verdict, raw=f"{name}: {verdict.raw}")


@cache
def _prompt_text() -> str:
    return Path(__file__).with_name("llm_prompt.txt").read_text(encoding="utf-8").rstrip()


def prompt(case: Case) -> str:
    """The message that asks for a verdict on `case`; a few thousand characters, whatever the case holds."""
    cut = "The message was cut off at a length limit, so a missing end says nothing about it.\n" if case.cut else ""
    turn = shortened(harmless(case.user_turn), TURN_LIMIT)
    return _prompt_text().format(conversation=_conversation(case.messages), turn=turn, cut=cut)


def _conversation(messages: Sequence[dict[str, str]]) -> str:
    """All messages; of a very long conversation, all up to the first question and as many of the last as fit."""
    blocks = [
        f'<message from="{harmless(message["role"])}">\n{shortened(harmless(message["content"]), MESSAGE_LIMIT)}\n'
        "</message>"
        for message in messages
    ]
    asked = next((index for index, message in enumerate(messages) if message["role"] == "user"), 0) + 1
    start, size = len(blocks) - 1, sum(map(len, blocks[:asked])) + len(blocks[-1])
    while start > asked and size + len(blocks[start - 1]) <= CONVERSATION_LIMIT:
        start -= 1
        size += len(blocks[start])
    if start > asked:
        blocks[asked:start] = [f"[... {start - asked:,} messages left out here ...]"]
    return "\n".join(blocks)


_NOT_PLAIN = re.compile(r"[^\n\t -~]")
_OWN_TAG = re.compile(r"<(?=[\s/\\]{0,20}(?:conversation|message|user[\s_-]{0,3}turn)(?![A-Za-z]))", re.IGNORECASE)
# <|im_end|>, </s>, </think>, <start_of_turn>, <0x0A>, <｜User｜>: a special token holds no white space.
_TOKEN = re.compile(r"<([^\s<>‹›]{1,80})>")
_BRACKET_TOKEN = re.compile(r"\[(/?[A-Z][A-Z_]{2,30})\]")  # [INST], [/INST], [TOOL_CALLS]
_MARK = re.compile(r"""verdict[\s*_`"'~\\]{0,10}[:：]""", re.IGNORECASE)


def harmless(text: str) -> str:
    """`text` as data: readable, but without a delimiter, special token, verdict or invisible character that works.

    Doing it twice changes nothing more, and everything else, LaTeX among it, is left as it is.
    """
    visible = _NOT_PLAIN.sub(_visible, text.replace("\r\n", "\n"))
    tagged = _OWN_TAG.sub("‹", _TOKEN.sub(r"‹\1›", visible))
    return _MARK.sub(lambda mark: f"{mark.group()[:-1]}({mark.group()[-1]})", _BRACKET_TOKEN.sub(r"⟦\1⟧", tagged))


def shortened(text: str, limit: int) -> str:
    """`text` with its middle left out where it is longer than `limit` characters; says how much is gone."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out here ...]\n{text[-half:]}"


def _visible(found: re.Match[str]) -> str:
    """Control, invisible and direction-changing characters as [U+001B]; all others as they are."""
    character = found.group()
    shown = unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return character if shown else f"[U+{ord(character):04X}]"


_THINKING_ENDS = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_THINKING_STARTS = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
# Models write genuine\_followup and "Genuine follow-up" as well.
_SPELLED = {label: r"[-_ \\]{1,2}".join(label.split("_")) for label in LABELS}
_SPELLED[GENUINE] = r"genuine[-_ \\]{1,2}follow[-_ \\]{0,2}up"
_ANY_LABEL = re.compile("|".join(f"(?P<{label}>{spelled})" for label, spelled in _SPELLED.items()), re.IGNORECASE)


def read_verdict(reply: str) -> Verdict:
    """The verdict that a reply ends in; unscored with "no_verdict" where the last one names no offered label.

    What stands before `</think>` is no verdict, and neither is a reply that never ends its thinking. A verdict line
    that names two labels is none.
    """
    said = _THINKING_ENDS.split(reply)[-1]
    marks = [] if _THINKING_STARTS.search(said) else list(_MARK.finditer(said))
    label = _label_at(said[marks[-1].end() :]) if marks else None
    return Verdict(label, None if label else NO_VERDICT, storable(reply))


def _label_at(text: str) -> str | None:
    """The label that `text` begins with, after markup and quotes; None where its line names another one, too."""
    start = re.match(r"[\W_]{0,40}", text)
    found = _ANY_LABEL.match(text, start.end() if start else 0)
    if found is None or text[found.end() : found.end() + 1].isalnum():
        return None
    others = _ANY_LABEL.finditer(text[found.end() :].split("\n", 1)[0])
    label = found.lastgroup
    return label if all(other.lastgroup == label for other in others) else None


def storable(text: str) -> str:
    """`text` with "?" for the halves of surrogate pairs that servers send at times; no file can hold those."""
    return text.encode(errors="replace").decode()
