"""A language model as judge, behind any OpenAI-compatible server.

The user turn comes from the model that is measured, so nothing in it may act on the judge. All of the conversation
stands between tags as data (`llm.yaml` holds the words); whatever in it looks like one of our tags, like a token that a chat
template gives a meaning to (servers read those inside message text as well), or like a verdict is shown in a form that
is still readable and no longer works.

A verdict comes as text, a reason and then the label (plain text, never JSON, which would break LaTeX), or as a
probability: one token, where the server's log-probabilities of nine letters say how likely each label is.

The share of verdicts that could not be had is part of the result: a turn whose judge failed is unscored with the
server's reason, and too many of them end the run instead of shrinking what the rate stands on.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

from nextturn.probe.client import BAD_REPLY, Client, Reply, content, cut_off, unusable, wants_other_names
from nextturn.probe.conversations import after_thinking
from nextturn.probe.errors import BadInput, JudgeError
from nextturn.probe.judges.labels import GENUINE, LABELS, Case, Verdict, asked
from nextturn.probe.settings import ServerSection

PROMPT_VERSION: str = asked()["version"]
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
OFF_LABEL = "off_label"
"""Most of the probability lies on other tokens than the nine letters, as with models that think before they answer."""
UNSURE = "unsure"
"""Genuine or not is less certain than the section's `confidence`."""

LABELS_HOLD_AT_LEAST = 0.5
"""The share of the next token's probability that the nine letters must hold together."""
TOP_TOKENS = 20
"""How many tokens' log-probabilities are asked for: the most that OpenAI's protocol knows, and vLLM by default."""


class LlmJudge:
    """Asks for one verdict per case, at temperature 0. What a server returns is not the same on every machine.

    Raises:
        BadInput: the section's confidence is no probability from 0.5 to 1.
        EngineError: no server can be reached, or it does not say which model it serves (on construction where the
            section names no model).
    """

    name = "llm"

    def __init__(self, server: ServerSection) -> None:
        if not 0.5 <= server.confidence <= 1:
            raise BadInput(f"judge_server: `confidence` is {server.confidence:g}, wanted 0.5 (all turns) to 1")
        self._client = Client(server)
        self._urls = ", ".join(server.urls)
        self._by_probability = server.verdict == "probability"
        self._confidence = server.confidence
        thinking = server.enable_thinking
        if thinking is None and self._by_probability and server.extras:
            thinking = False  # a thinking model's first token is no letter
        template = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}
        self._limits: dict[str, Any] = {"temperature": 0, "max_tokens": server.max_tokens, **template}
        self._limits_of_reasoners: dict[str, Any] = {"max_completion_tokens": server.max_tokens, **template}
        if self._by_probability:
            self._limits |= {"max_tokens": 1, "logprobs": True, "top_logprobs": TOP_TOKENS}
        how = f" probability at {server.confidence:g}" if self._by_probability else ""
        if server.enable_thinking is not None:
            how += " thinking" if server.enable_thinking else " without thinking"
        self.version = f"llm/{PROMPT_VERSION}{how} {self._client.model}"
        self.calls = 0

    def stream(self, cases: Sequence[Case], known: Sequence[Verdict] = ()) -> Iterator[tuple[int, Verdict]]:
        """(index, verdict) as replies come; `raw` is the whole reply, or what the server said when it failed.

        Raises:
            JudgeError: after the last verdict, when more than FAILED_AT_MOST of them and of the `known` ones failed; at
                once from a server that gives no log-probabilities where these are the verdict.
        """
        failures: Counter[str] = Counter()
        said: dict[str, str] = {}

        def count(verdict: Verdict) -> None:
            if verdict.unscored not in (None, NO_VERDICT, UNSURE):
                failures[str(verdict.unscored)] += 1
                said.setdefault(str(verdict.unscored), verdict.raw)

        for index, reply in self._replies(cases):
            verdict = self._verdict(reply)
            count(verdict)
            yield index, verdict
        for verdict in known:
            count(verdict)
        total = len(cases) + len(known)
        if total >= FEWEST_FOR_A_SHARE and failures.total() > FAILED_AT_MOST * total:
            reasons = ", ".join(f"{reason} {count}" for reason, count in failures.most_common())
            example = " ".join(said[failures.most_common(1)[0][0]].split())[:200] or "no text"
            raise JudgeError(
                f"judge {self.version} at {self._urls}: {failures.total()} of {total} verdicts failed, more than "
                f"{FAILED_AT_MOST:.0%} ({reasons}; such as: {example}); mend the server or its settings ({CUT_OFF} wants "
                f"a larger max_tokens, {OFF_LABEL} `verdict: text`), then run this again"
            )

    def _verdict(self, reply: Reply) -> Verdict:
        if self._by_probability and refuses_log_probabilities(reply):
            raise JudgeError(
                f"judge {self.version} at {self._urls}: the server gives no log-probabilities ({reply.detail or 'none'} "
                f"in the reply), wanted those of {TOP_TOKENS} tokens; ask one that does (vLLM, SGLang, llama.cpp), or set "
                "`verdict: text`"
            )
        if reply.failure is not None or reply.body is None:
            return Verdict(None, reply.failure or BAD_REPLY, reply.detail)
        if self._by_probability:
            return weigh(first_token(reply.body) or [], self._confidence)
        verdict = read_verdict(content(reply.body) or "")
        return replace(verdict, unscored=CUT_OFF) if verdict.label is None and cut_off(reply.body) else verdict

    def _replies(self, cases: Sequence[Case]) -> Iterator[tuple[int, Reply]]:
        """Every case's reply once; starts over with what is missing if the server wants other names for its limits."""
        missing = set(range(len(cases)))
        usable = _without_message if self._by_probability else unusable
        while missing:
            asked = sorted(missing)
            bodies = [self._body(cases[index]) for index in asked]
            with closing(self._client.stream("/chat/completions", bodies, usable=usable)) as replies:
                for position, reply in replies:
                    self.calls = self._client.calls
                    renames = not self._by_probability and self._limits is not self._limits_of_reasoners
                    if renames and wants_other_names(reply):
                        self._limits = self._limits_of_reasoners
                        break
                    missing.remove(asked[position])
                    yield asked[position], reply

    def _body(self, case: Case) -> dict[str, Any]:
        message = {"role": "user", "content": prompt(case, "probability" if self._by_probability else "text")}
        return {"model": self._client.model, "messages": [message], **self._limits}


LETTERS = dict(zip("ABCDEFGHI", asked()["labels"], strict=True))
"""The labels as the prompt letters them, the gravest first; each letter is one token everywhere."""


@cache
def _constant_part() -> str:
    """What no case changes, so that a server with a prefix cache reads it once: the labels, the rules, the examples."""
    words = asked()
    labels = [f"{letter}. {label}: {words['labels'][label]}" for letter, label in LETTERS.items()]
    letter_of = {label: letter for letter, label in LETTERS.items()}
    examples = []
    for example in words["examples"]:
        turns = [f"  Message: {turn}\n  {letter_of[label]}, {label}: {why}" for label, turn, why in example["turns"]]
        examples.append("\n".join([f"User: {example['user']}", f"Assistant: {example['assistant']}", *turns]))
    parts = [words["task"], "\n".join(labels), words["rules"], "Examples:", *examples, words["data"]]
    return "\n\n".join(part.strip() for part in parts)


def prompt(case: Case, verdict: str = "text") -> str:
    """The message that asks for a verdict on `case`; a few thousand characters, whatever the case holds.

    Args:
        verdict: "text" or "probability", as in the recipe.
    """
    words = asked()
    turn = shortened(harmless(case.user_turn), TURN_LIMIT)
    data = f"<conversation>\n{_conversation(case.messages)}\n</conversation>\n\n<user_turn>\n{turn}\n</user_turn>\n"
    ask = words["ask"][verdict].strip()
    return "\n".join([_constant_part(), "", data, *([words["cut"]] if case.cut else []), ask])


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


# Models write genuine\_followup and "Genuine follow-up" as well.
_SPELLED = {label: r"[-_ \\]{1,2}".join(label.split("_")) for label in LABELS}
_SPELLED[GENUINE] = r"genuine[-_ \\]{1,2}follow[-_ \\]{0,2}up"
_ANY_LABEL = re.compile("|".join(f"(?P<{label}>{spelled})" for label, spelled in _SPELLED.items()), re.IGNORECASE)


def read_verdict(reply: str) -> Verdict:
    """The verdict that a reply ends in; unscored with "no_verdict" where the last one names no offered label.

    What stands before `</think>` is no verdict, and neither is a reply that never ends its thinking. A verdict line
    that names two labels is none.
    """
    said = after_thinking(reply) or ""
    marks = list(_MARK.finditer(said))
    label = _label_at(said[marks[-1].end() :]) if marks else None
    return Verdict(label, None if label else NO_VERDICT, reply)


def _label_at(text: str) -> str | None:
    """The label that `text` begins with, after markup and quotes; None where its line names another one, too."""
    start = re.match(r"[\W_]{0,40}", text)
    found = _ANY_LABEL.match(text, start.end() if start else 0)
    if found is None or text[found.end() : found.end() + 1].isalnum():
        return None
    others = _ANY_LABEL.finditer(text[found.end() :].split("\n", 1)[0])
    label = found.lastgroup
    return label if all(other.lastgroup == label for other in others) else None


def first_token(body: dict[str, Any]) -> list[tuple[str, float]] | None:
    """(token, log-probability) of the likeliest first tokens of a reply; None where the server gives none."""
    try:
        given = body["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        return [(str(one["token"]), float(one["logprob"])) for one in given] or None
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def refuses_log_probabilities(reply: Reply) -> bool:
    """Whether a server left them out of a good reply, or refused the wish for them."""
    if reply.failure is None and reply.body is not None:
        return first_token(reply.body) is None
    return reply.failure == "refused" and "logprob" in reply.detail.lower()


def weigh(tokens: Sequence[tuple[str, float]], confidence: float) -> Verdict:
    """The verdict that (token, log-probability) pairs amount to; `raw` lists what each label has.

    The letters' probabilities are made to sum to 1. Genuine from one half on, else the likeliest other label: what a
    rate counts is genuine or not. Unscored where the letters hold too little, or where that is less sure than
    `confidence`.
    """
    held = dict.fromkeys(LETTERS.values(), 0.0)
    for token, log_p in tokens:
        if token.strip() in LETTERS and not math.isnan(log_p):
            held[LETTERS[token.strip()]] += math.exp(min(log_p, 0.0))
    total = sum(held.values())
    if total < LABELS_HOLD_AT_LEAST:
        likeliest = tokens[0][0] if tokens else ""
        return Verdict(None, OFF_LABEL, f"the labels hold {total:.3f}; the likeliest token is {likeliest!r}")
    p = {label: held[label] / total for label in sorted(held, key=lambda label: -held[label])}
    raw = ", ".join(f"{label} {share:.3f}" for label, share in p.items() if share >= 0.0005)
    genuine = p.pop(GENUINE)
    if max(genuine, 1 - genuine) < confidence:
        return Verdict(None, UNSURE, raw, genuine)
    return Verdict(GENUINE if genuine >= 0.5 else next(iter(p)), None, raw, genuine)


def _without_message(body: dict[str, Any]) -> str | None:
    return BAD_REPLY if content(body) is None else None
