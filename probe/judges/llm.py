"""A language model as judge, behind any OpenAI-compatible server.

The user turn comes from the model that is measured, so nothing in it may act on the judge. The whole conversation stands
between tags as data (`llm.yaml` holds the words). Anything in it that looks like one of these tags, like a special token of
a chat template (servers read those inside message text as well), or like a verdict is shown in a form that is still
readable and no longer works.

A verdict is a reason and then the label, in plain text, because JSON would break LaTeX.

The share of failed verdicts is part of the result. A turn whose judge failed is unscored with the server's reason, and too
many failures end the run instead of shrinking the number of turns behind a rate.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

from nextturn.probe.command.errors import JudgeError
from nextturn.probe.command.sections import ServerSection
from nextturn.probe.data.messages import after_thinking, user
from nextturn.probe.engines.ask import Ask, ChatServer, Reply, answers
from nextturn.probe.judges.verdicts import GENUINE, LABELS, Case, Verdict, prompt_parts

PROMPT_VERSION: str = prompt_parts()["version"]
"""Changes with every word of the prompt and with every rule that reads the reply."""

# In characters, so that a prompt stays far below 32,000 tokens. A user turn has 96 tokens by default.
TURN_LIMIT = 8_000
MESSAGE_LIMIT = 6_000
CONVERSATION_LIMIT = 24_000

FAILED_AT_MOST = 0.2
"""The largest share of verdicts that may fail because of the server or its settings. With more, the failed verdicts could
reverse most findings, and the cause can be fixed."""
FEWEST_FOR_A_SHARE = 20
"""Below this number of verdicts a share says nothing, and no number of failures ends the run."""

NO_VERDICT = "no_verdict"
CUT_OFF = "cut_off"
"""The reply reached max_tokens, as replies of models that think at length do."""


class LlmJudge:
    """A judge that requests one verdict per case, at temperature 0. A server's replies can differ between machines.

    Raises:
        EngineError: On construction where the section names no model, if no server can be reached or it does not say which
            model it serves.
    """

    name = "llm"
    prompt_version = PROMPT_VERSION
    forgiven: tuple[str | None, ...] = (None, NO_VERDICT)
    """Reasons of unscored verdicts that are no failure of the server or its settings."""
    fewest = FEWEST_FOR_A_SHARE

    def __init__(self, server: ServerSection) -> None:
        thinking = server.enable_thinking
        how = {None: "", True: " thinking", False: " without thinking"}[thinking]
        template = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}
        self._model = ChatServer(self.name, server, 0, {"max_tokens": server.max_tokens, **template})
        self.version = f"{self.name}/{self.prompt_version}{how} {self._model.client.model}"
        self.calls = 0

    def __str__(self) -> str:
        return f"judge {self.version} at {', '.join(self._model.client.section.urls)}"

    def stream(self, cases: Sequence[Case], known: Sequence[Verdict] = ()) -> Iterator[tuple[int, Verdict]]:
        """Yield (index, verdict) as replies come. `raw` is the whole reply, or the server's message when it failed.

        Raises:
            JudgeError: After the last verdict, if more than FAILED_AT_MOST of these and the `known` verdicts failed.
        """
        asks = [Ask((user(self.prompt(case)),), self._verdict, lambda attempt: None) for case in cases]
        verdicts = []
        for index, answer in answers(self._model, asks, tries=1):
            self.calls = self._model.client.calls
            unusable = answer.unusable or [Verdict(None, answer.missing, answer.detail)]
            verdicts.append(answer.parsed or unusable[0])
            yield index, verdicts[-1]
        verdicts += known
        failed = [verdict for verdict in verdicts if verdict.unscored not in self.forgiven]
        if len(verdicts) < self.fewest or len(failed) <= FAILED_AT_MOST * len(verdicts):
            return
        reasons = Counter(verdict.unscored for verdict in failed).most_common()
        example = next(" ".join(verdict.raw.split())[:200] for verdict in failed if verdict.unscored == reasons[0][0])
        raise JudgeError(
            f"{self}: {len(failed)} of {len(verdicts)} verdicts failed, more than {FAILED_AT_MOST:.0%} "
            f"({', '.join(f'{reason} {count}' for reason, count in reasons)}; such as: {example or 'no text'}). Fix the server "
            f"({CUT_OFF}: raise max_tokens) and run this again"
        )

    def _verdict(self, reply: Reply) -> Verdict:
        # What a cut reply says of a verdict is a draft.
        return Verdict(None, CUT_OFF, reply.text) if reply.cut else self.read(reply.text)

    def prompt(self, case: Case) -> str:
        """Return the message that requests a verdict on `case`."""
        return prompt(case)

    def read(self, reply: str) -> Verdict:
        """Return the verdict of a reply."""
        return read_verdict(reply)


LETTERS = dict(zip("ABCDEFGHI", prompt_parts()["labels"], strict=True))
"""The labels by their letters in the prompt, the gravest first. Each letter is one token in every tokenizer."""


@cache
def _constant_part() -> str:
    """Return labels, rules and examples, which no case changes, so that a server with a prefix cache reads them once."""
    words = prompt_parts()
    labels = [f"{letter}. {label}: {words['labels'][label]}" for letter, label in LETTERS.items()]
    letter_of = {label: letter for letter, label in LETTERS.items()}
    examples = []
    for example in words["examples"]:
        turns = [f"  Message: {turn}\n  {letter_of[of]}, {of}: {why}" for of, turn, why, *_ in example["turns"]]
        examples.append("\n".join([f"User: {example['user']}", f"Assistant: {example['assistant']}", *turns]))
    parts = [words["task"], "\n".join(labels), words["rules"], "Examples:", *examples, words["data"]]
    return "\n\n".join(part.strip() for part in parts)


def prompt(case: Case) -> str:
    """Return the message that requests a verdict on `case`, a few thousand characters whatever the case holds."""
    words = prompt_parts()
    turn = shortened(harmless(case.user_turn), TURN_LIMIT)
    data = f"<conversation>\n{conversation(case.messages)}\n</conversation>\n\n<user_turn>\n{turn}\n</user_turn>\n"
    return "\n".join([_constant_part(), "", data, *([words["cut"]] if case.cut else []), words["ask"].strip()])


def conversation(messages: Sequence[dict[str, str]]) -> str:
    """Return all messages; of a very long conversation, those up to the first question and as many of the last as fit."""
    texts = [(harmless(each["role"]), shortened(harmless(each["content"]), MESSAGE_LIMIT)) for each in messages]
    blocks = [f'<message from="{role}">\n{text}\n</message>' for role, text in texts]
    head = next((index for index, message in enumerate(messages) if message["role"] == "user"), 0) + 1
    start, size = len(blocks) - 1, sum(map(len, blocks[:head])) + len(blocks[-1])
    while start > head and size + len(blocks[start - 1]) <= CONVERSATION_LIMIT:
        start -= 1
        size += len(blocks[start])
    if start > head:
        blocks[head:start] = [f"[... {start - head:,} messages left out here ...]"]
    return "\n".join(blocks)


_NOT_PLAIN = re.compile(r"[^\n\t -~]")
_OWN_TAG = re.compile(r"<(?=[\s/\\]{0,20}(?:conversation|message|user[\s_-]{0,3}turn)(?![A-Za-z]))", re.IGNORECASE)
# <|im_end|>, </s>, </think>, <start_of_turn>, <0x0A>, <｜User｜>: a special token holds no white space.
_TOKEN = re.compile(r"<([^\s<>‹›]{1,80})>")
_BRACKET_TOKEN = re.compile(r"\[(/?[A-Z][A-Z_]{2,30})\]")  # [INST], [/INST], [TOOL_CALLS]
_MARK = re.compile(r"""verdict[\s*_`"'~\\]{0,10}[:：]""", re.IGNORECASE)


def harmless(text: str) -> str:
    """Return `text` as data: readable, but without a working delimiter, special token, verdict or invisible character.

    Everything else, LaTeX included, stays as it is. Applying the function twice changes nothing more.
    """
    visible = _NOT_PLAIN.sub(_visible, text.replace("\r\n", "\n"))
    tagged = _OWN_TAG.sub("‹", _TOKEN.sub(r"‹\1›", visible))
    return _MARK.sub(lambda mark: f"{mark.group()[:-1]}({mark.group()[-1]})", _BRACKET_TOKEN.sub(r"⟦\1⟧", tagged))


def shortened(text: str, limit: int) -> str:
    """Return `text`, without its middle if it is longer than `limit` characters. A note says how much is missing."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out here ...]\n{text[-half:]}"


def _visible(match: re.Match[str]) -> str:
    """Return control, invisible and direction-changing characters as [U+001B], and others as they are."""
    character = match.group()
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return f"[U+{ord(character):04X}]" if hidden else character


# Models write genuine\_followup and "Genuine follow-up" as well.
_SPELLED = {label: r"[-_ \\]{1,2}".join(label.split("_")) for label in LABELS}
_SPELLED[GENUINE] = r"genuine[-_ \\]{1,2}follow[-_ \\]{0,2}up"
_ANY_LABEL = re.compile("|".join(f"(?P<{label}>{spelled})" for label, spelled in _SPELLED.items()), re.IGNORECASE)


def read_verdict(reply: str) -> Verdict:
    """Return the last verdict of a reply, unscored with "no_verdict" where it names no label or two.

    Text before `</think>` is not read, and neither is a reply that never ends its thinking.
    """
    label = _label_at(after_verdict(reply))
    return Verdict(label, None if label else NO_VERDICT, reply)


def after_verdict(reply: str) -> str:
    """Return what follows the last "VERDICT:" of a reply after its thinking; nothing if there is none."""
    text = after_thinking(reply) or ""
    marks = list(_MARK.finditer(text))
    return text[marks[-1].end() :] if marks else ""


def _label_at(text: str) -> str | None:
    """Return the label that `text` begins with, after markup and quotes; None if its line names another label, too."""
    start = re.match(r"[\W_]{0,40}", text)
    first = _ANY_LABEL.match(text, start.end() if start else 0)
    if first is None or text[first.end() : first.end() + 1].isalnum():
        return None
    others = _ANY_LABEL.finditer(text[first.end() :].split("\n", 1)[0])
    return first.lastgroup if all(other.lastgroup == first.lastgroup for other in others) else None
