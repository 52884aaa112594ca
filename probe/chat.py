"""The one place that renders a conversation; data, training and probe all use it.

A chat template says how a conversation looks, but not where a *user* turn opens, which tokens end a turn, or
which tokens a model is to learn. All of that is read off the template itself, by rendering a conversation with
a marker as the user's text and cutting there, so that any template works (arXiv 2604.02315 appends a bare user
header; `add_generation_prompt` can only open an assistant turn).

Two prefixes open a user turn, and some templates make them differ (Qwen3.5 drops the think block from turns
that are history):
- history: what the model would see in a real second turn. The default.
- generation: what it saw while answering, followed by the end of its turn and the user header. A conversation that
  is trained as one sequence grows in this form (`continuation_ids`).

The same conversation is the same text on every day, although some templates write the date.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from nextturn.probe.conversations import THINKING_ENDS, THINKING_STARTS, Message, after_thinking, learned, plain, user
from nextturn.probe.errors import TemplateError, one_line
from nextturn.probe.files import sha256_text
from nextturn.probe.grading import boxed
from nextturn.probe.timelimit import ends_within

PrefixForm = Literal["history", "generation"]
LossOn = Literal["assistant", "talk", "all", "user"]

_MARK = "NEXTTURNMARK"
# What a template that writes the date (Llama 3.2) takes for today: what is trained, and what is measured of a base and of its
# checkpoints on other days, has to be one prompt. It is the date that Llama 3.1 and 3.2 write where they are told none.
_TODAY = datetime(2024, 7, 26)


@dataclass(frozen=True)
class TrainingRow:
    """Token ids of one training text, and a loss mask of the same length."""

    input_ids: list[int]
    loss_mask: list[int]


class Chat:
    """Renders conversations with a tokenizer's chat template.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        enable_thinking: handed to the template where set; None leaves the template's own default.

    Attributes:
        opens_thinking: True if a prompt ends inside a think block, which the model has to end before it answers.

    Raises:
        TemplateError: the template is missing, cannot render a plain two-turn conversation, or writes a token that ends a
            turn before the assistant's content.
    """

    def __init__(self, tokenizer: Any, enable_thinking: bool | None = None) -> None:
        if not tokenizer.chat_template:
            raise TemplateError("the tokenizer has no chat template; nextturn needs a chat model, not a base model")
        self.tokenizer = tokenizer
        self._options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        # A run that was begun when templates wrote another date is not gone on with.
        dated = f"{_TODAY:%Y-%m-%d}" if "strftime_now" in tokenizer.chat_template else ""
        self.template_sha256 = sha256_text(tokenizer.chat_template + dated)
        self._check_cost()
        between = self._between([{"role": "user", "content": "Hi."}])
        # Gemma adds white space as tokens that are not special: a line break ends no turn.
        added = tokenizer.added_tokens_decoder.items()
        self._special = set(tokenizer.all_special_ids) | {
            number for number, token in added if token.special or token.content.strip()
        }
        self.turn_end_ids, header_ids = self._split_turn_end(between)
        header = self.prompt_text([{"role": "user", "content": _MARK}]).rpartition(_MARK)[2]
        self.opens_thinking = after_thinking(header) is None
        opening = self._opening()
        shared = os.path.commonprefix([header, opening])  # an assistant's header, without what is written after it
        self.stop_ids = self._stop_ids([*header_ids, *self._ids(shared)])
        # A header of plain text, such as Mistral's first [/INST], stops nothing: what follows it is cut off.
        self._ends_user = "" if self._special & {*self._ids(shared)} else shared.strip()
        self._check_opening(opening[len(shared) :])

    def prompt_text(self, messages: Sequence[Message]) -> str:
        """Return the text that the model gets before an assistant turn at inference."""
        return self._render(messages, add_generation_prompt=True)

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._ids(self.prompt_text(messages))

    def continuation_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the ids between the last token of an assistant turn and the first token of the next one.

        `messages` end with that turn and the user's reply to it. The ids are the rest of the turn's end (its own token
        is the model's), the user's turn, and the header of the next assistant turn. Ids so far + these are the prompt
        of the next turn in the `generation` form: what the model has really seen, without a token rendered anew. On a
        prefix-preserving template that is `prompt_ids(messages)`; Qwen3.5 keeps the think block that `prompt_ids`
        drops from history.
        """
        if len(messages) < 2 or (messages[-2]["role"], messages[-1]["role"]) != ("assistant", "user"):
            raise TemplateError("a conversation can only be continued by a user message after an assistant message")
        mark = _unused(messages)
        text = self.prompt_text([*messages[:-2], {"role": "assistant", "content": mark}, messages[-1]])
        ids = self._ids(text[text.rindex(mark) + len(mark) :])
        return ids[len(self.turn_end_ids) :]

    def whole_reply(self, text: str) -> str:
        """Return a generated reply with the start of the think block that its prompt opened, for `after_thinking` to read."""
        return f"<think>\n{text}" if self.opens_thinking else text

    def user_turn(self, text: str) -> str:
        """Return a generated user turn without what follows the assistant's header, where that is no token to stop at."""
        return (text.partition(self._ends_user)[0] if self._ends_user else text).strip()

    def user_prefix_text(self, messages: Sequence[Message], form: PrefixForm = "history") -> str:
        """Return the text that opens a user turn after `messages`, which end with the assistant's answer.

        Thoughts before the answer are left out; in the form "generation" a think block that the prompt opens is closed empty.
        After a system message alone, both forms open the first user turn.
        """
        if not messages or messages[-1]["role"] not in ("assistant", "system"):
            raise TemplateError("a user turn can only be opened after an assistant message or a system message")
        if form == "generation" and messages[-1]["role"] == "assistant":
            answer = messages[-1]["content"]
            closed = "\n</think>\n\n" if self.opens_thinking and not THINKING_ENDS.search(answer) else ""
            return self.prompt_text(messages[:-1]) + closed + answer + self._between(messages[:-1])
        mark = _unused(messages)
        rendered = self._render([*messages, {"role": "user", "content": mark}])
        return rendered[: rendered.rindex(mark)]

    def user_prefix_ids(self, messages: Sequence[Message], form: PrefixForm = "history") -> tuple[int, ...]:
        return self._ids(self.user_prefix_text(messages, form))

    def training_rows(
        self, messages: Sequence[Message], loss_on: LossOn = "assistant", learned_from: bool = True
    ) -> list[TrainingRow]:
        """Return token ids and loss mask of every assistant turn. Loss is on its content and its end token only.

        A message with `loss: False` is context for the turns after it and has no loss itself.

        Each turn follows exactly the ids that inference would show. Where every prompt continues the row so
        far (a prefix-preserving template), the conversation is one row; where one does not, each assistant
        turn is a row of its own. `loss_on="talk"` takes the turns that box a result for context, where there are others:
        a model keeps its own way to solve and learns when to ask and how to react. `loss_on="all"` puts loss on every
        token of the last row, whatever the messages say, an ablation. `learned_from=False` is for rows that are only scored.

        `loss_on="user"` is for user models: loss on every user turn that follows a message, unless it has `loss: False`, and on
        an empty user turn after the last assistant turn, by which a user model ends the conversation.

        Raises:
            TemplateError: the template opens a think block before the answer, and a turn that is learned has none to end.
        """
        if loss_on == "user":
            return self._user_rows(messages)
        if messages[0].get("tools"):
            self._check_tools(messages)
        turns = [position for position, message in enumerate(messages) if message["role"] == "assistant"]
        wanted = {position for position in turns if learned(messages[position])}
        if loss_on == "talk":
            wanted = {position for position in wanted if boxed(messages[position]["content"]) is None} or wanted
        rows: list[TrainingRow] = []
        for position in turns:
            if learned_from and position in ({turns[-1]} if loss_on == "all" else wanted):
                self.check_thinking(messages[position]["content"])
            target = self._target_ids(messages[: position + 1])
            _append_turn(rows, list(self.prompt_ids(messages[:position])), target, position in wanted)
        if loss_on == "all":
            return [TrainingRow(row.input_ids, [1] * len(row.input_ids)) for row in rows[-1:]]
        return [row for row in rows if any(row.loss_mask)]

    def _user_rows(self, messages: Sequence[Message]) -> list[TrainingRow]:
        rows: list[TrainingRow] = []
        for position, message in enumerate([*messages, user("")]):
            if position and message["role"] == "user" and learned(message):
                target = [*self._ids(message["content"].strip()), *self.turn_end_ids]
                _append_turn(rows, list(self.user_prefix_ids(messages[:position])), target, True)
        return rows

    def _check_tools(self, messages: Sequence[Message]) -> None:
        without = {key: value for key, value in messages[0].items() if key != "tools"}
        if self._render(messages) == self._render([without, *messages[1:]]):
            raise TemplateError(
                "the chat template does not show the row's `tools`; use a model whose template has tools, such as Qwen3.5, or "
                "leave these rows out"
            )

    def check_thinking(self, content: str) -> None:
        """Raise TemplateError if an answer to train on would be inside a think block that it never ends."""
        if not self.opens_thinking or THINKING_ENDS.search(content):
            return
        switched = self._options.get("enable_thinking") is not False and not Chat(self.tokenizer, False).opens_thinking
        raise TemplateError(
            "the chat template opens a think block before every answer, and the answers to train on have no thinking: the model "
            "would learn never to end the block; "
            + (
                "set data.enable_thinking: false"
                if switched
                else "give the model's folder a chat_template.jinja that opens none"
            )
            + ", or train on answers that think and end it with </think>"
        )

    def _target_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of the last message, an assistant's, with its end of turn."""
        if messages[-1].get("tool_calls"):
            return self._call_ids(messages)
        # The template trims what it renders; what is learned must be what is rendered as history later. A think block that the
        # prompt has opened is not opened again.
        said = messages[-1]["content"].strip()
        if self.opens_thinking and (opened := THINKING_STARTS.match(said)):
            said = said[opened.end() :].lstrip("\n")
        return list(self._ids(said)) + list(self.turn_end_ids)

    def _call_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a turn that calls tools, as the template writes it after the prompt of that turn."""
        prompt, text = self.prompt_text(messages[:-1]), self._render(messages)
        names = [str(call.get("function", call).get("name")) for call in messages[-1]["tool_calls"]]
        written = text[len(prompt) :] if text.startswith(prompt) else ""
        ids = self._ids(written)
        end = next((place for place, token in enumerate(ids) if token == self.turn_end_ids[-1]), None)
        if end is None or not all(name in written for name in names):
            raise TemplateError(
                f"the chat template does not write a call of the tool {names[0]!r} after the prompt of its turn, so calls cannot be "
                "trained; use a model whose template has tools, such as Qwen3.5, or leave these rows out"
            )
        return list(ids[: end + 1])

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Return the ids of a turn's text alone."""
        return self._ids(text)

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        try:
            return self._apply(messages, add_generation_prompt)
        except Exception as error:  # jinja and the template itself raise what they like; all of it becomes one line
            raise TemplateError(f"the chat template cannot render this conversation: {one_line(error)}") from error

    def _apply(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        rendered: str = self.tokenizer.apply_chat_template(
            list(map(plain, messages)),
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            strftime_now=_TODAY.strftime,
            **({"tools": messages[0]["tools"]} if messages and messages[0].get("tools") else {}),
            **self._options,
        )
        return rendered

    def _check_cost(self) -> None:
        """Refuse a template that loops or doubles its text, before this process renders anything with it."""
        messages = [{"role": role, "content": "Hi."} for role in ("user", "assistant")] * 32
        # A template of some kilobytes renders 64 short messages in milliseconds.
        if not ends_within(2.0, 2**29, lambda: self._apply(messages, False)):
            raise TemplateError(
                "the chat template needs more than 2 seconds or 512 MiB for 64 short messages, so it loops or doubles its text; "
                "put another chat_template.jinja into the model's folder"
            )

    def _between(self, before: Sequence[Message]) -> str:
        """Return the text between an assistant's content and the user's content that follows it."""
        answer, question = _unused(before, "A"), _unused(before, "U")
        text = self._render([*before, {"role": "assistant", "content": answer}, {"role": "user", "content": question}])
        if text.count(answer) != 1 or text.count(question) != 1:
            raise TemplateError("the chat template does not show each message once, so no user turn can be opened")
        return text[text.index(answer) + len(answer) : text.index(question)]

    def _split_turn_end(self, between: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split the text between two turns into the end of the first and the header of the second."""
        ids = self._ids(between)
        for position, token in enumerate(ids):
            if token in self._special:
                return ids[: position + 1], ids[position + 1 :]
        raise TemplateError("the chat template ends an assistant turn with no special token, so nothing stops a turn")

    def _stop_ids(self, header_ids: Sequence[int]) -> tuple[int, ...]:
        """Return what ends a turn: its end token, the tokenizer's end of text, and any special token of a role's header.

        In templates such as GLM's and DeepSeek's nothing but the assistant's header ends a user turn.
        """
        headers = {
            token
            for token in set(header_ids) & self._special
            if not any(think.search(self.tokenizer.decode([token])) for think in (THINKING_STARTS, THINKING_ENDS))
        }
        stop = {self.turn_end_ids[-1], self.tokenizer.eos_token_id, *headers}
        return tuple(sorted(token for token in stop if token is not None))

    def _opening(self) -> str:
        """Return the text between a user's content and the content of the assistant that follows it."""
        question, answer = _MARK + "U", _MARK + "A"
        asked: list[Message] = [{"role": "user", "content": question}]
        told = self._render([*asked, {"role": "assistant", "content": answer}, {"role": "user", "content": "Hi."}])
        return told[told.index(question) + len(question) : told.index(answer)]

    def _check_opening(self, own: str) -> None:
        """Refuse a template whose assistant writes before its content (`own`) what would stop it, as in gpt-oss's
        `<|channel|>final<|message|>`: every answer would end there, without an error."""
        if stops := [token for token in self._ids(own) if token in self.stop_ids]:
            raise TemplateError(
                f"the chat template writes {own!r} before an assistant's content, and {self.tokenizer.decode(stops[:1])} ends "
                "a turn: an assistant turn of this template has several parts, and every answer would be cut in the first; "
                "use a model, or a chat_template.jinja in its folder, whose assistant turn is one text"
            )


def _append_turn(rows: list[TrainingRow], prompt: list[int], target: list[int], has_loss: bool) -> None:
    """Add a turn to the last row if its prompt continues that row, else as a row of its own."""
    row = TrainingRow(prompt + target, [0] * len(prompt) + [int(has_loss)] * len(target))
    if rows and prompt[: len(rows[-1].input_ids)] == rows[-1].input_ids:
        before = rows.pop()
        row.loss_mask[: len(before.loss_mask)] = before.loss_mask
    rows.append(row)


def _unused(messages: Sequence[Message], letter: str = "") -> str:
    """Return a marker that occurs in none of the messages. It has letters only, so that no template trims or escapes it."""
    mark = _MARK + letter
    while any(mark in message["content"] for message in messages):
        mark += "X"
    return mark
