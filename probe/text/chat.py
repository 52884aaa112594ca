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

An assistant turn of gpt-oss has parts: thoughts and answer are messages in channels. Its thoughts end with the token that
ends a user turn, so answers and user turns have different stop tokens.

The same conversation is the same text on every day, although some templates write the date.
"""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from nextturn.probe.command.errors import TemplateError, one_line
from nextturn.probe.command.files import sha256_text
from nextturn.probe.command.terminal import say_once
from nextturn.probe.command.timelimit import ends_within
from nextturn.probe.data import messages as of_rows
from nextturn.probe.data.messages import (
    THINKING_ENDS,
    THINKING_STARTS,
    THOUGHT_FIELDS,
    Message,
    after_thinking,
    learned,
)
from nextturn.probe.text.grading import boxed

Switches = Mapping[str, bool | str]
PrefixForm = Literal["history", "generation"]
LossOn = Literal["assistant", "talk", "all", "user"]

_MARK = "NEXTTURNMARK"
UNKNOWN = "unknown"
# Tokens that end a text in every vocabulary that has them, whatever its tokenizer calls its `eos_token`.
_END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<|im_end|>", "<eos>", "</s>", "<|return|>")
# Unicode keeps this character free. It separates the letters of a special token that a message spells.
_BREAK = "\ufdd0"
# Fixed date for templates that insert today's date (Llama 3.2). Training and all probes must use the same prompt, also on
# different days. Llama 3.1 and 3.2 use this date by default.
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
        switches: handed to the template, such as {"enable_thinking": False}.
        ends: the model's own ids that end a text (`models.end_ids`); None if they are unknown, as those of a server.

    Attributes:
        has_parts: True if an assistant's turn has several parts, thoughts and answer, as gpt-oss's.
        writes_thoughts: True if the template writes the thoughts of an answer, and the model opens their block.
        opens_thinking: True if a prompt ends inside a think block, which the model has to end before it answers.
        ends: the tokens that end a text, by the model and by its tokenizer, or UNKNOWN.
        stop_ids: what ends a user turn.
        answer_stop_ids: what ends an assistant's turn.
        answer_end_ids: those of them that the assistant ends its turn with; the others begin another turn.

    Raises:
        TemplateError: the template is missing, cannot render a plain two-turn conversation, or writes a token that ends a
            turn before the assistant's content.
    """

    def __init__(self, tokenizer: Any, switches: Switches | None = None, ends: Iterable[int] | None = None) -> None:
        if not tokenizer.chat_template:
            raise TemplateError("the tokenizer has no chat template; nextturn needs a chat model, not a base model")
        self.tokenizer = tokenizer
        self._options = dict(switches or {})
        # The fixed date is part of the hash, so that runs with another date are not resumed.
        dated = f"{_TODAY:%Y-%m-%d}" if "strftime_now" in tokenizer.chat_template else ""
        self.template_sha256 = sha256_text(tokenizer.chat_template + dated)
        self._has_system, self.has_parts = True, False
        self._check_cost()
        self._has_system = self._shows_system()
        self._say_idle_switches()
        # Gemma adds white space as tokens that are not special: a line break ends no turn.
        added = tokenizer.added_tokens_decoder.items()
        own = {number for number, token in added if token.special or token.content.strip()}
        self._special = set(tokenizer.all_special_ids) | own
        spelled = (token.content for _, token in added if token.special and len(token.content) > 1)
        names = [name for name in spelled if not THINKING_STARTS.match(name) and not THINKING_ENDS.match(name)]
        self._special_text = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")
        known = {number for number, token in added if token.content in (*_END_TOKENS, tokenizer.eos_token)}
        end_ids = known.union(ends or ())
        self._end_texts: list[str] = tokenizer.convert_ids_to_tokens(sorted(end_ids))
        self.ends = UNKNOWN if ends is None else self._end_texts
        between = self._between(_GREETING)
        self.turn_end_ids, header_ids = self._split_turn_end(between)
        self._stop: str = tokenizer.convert_ids_to_tokens(self.turn_end_ids[-1])
        self._begins_with_space = tokenizer.convert_ids_to_tokens(self.text_ids("a")[0])[0] != "a"
        self._turn_end = between[: between.index(self._stop) + len(self._stop)]
        header = self.prompt_text([{"role": "user", "content": _MARK}]).rpartition(_MARK)[2]
        self.opens_thinking = after_thinking(header) is None
        self._ended_thinking = bool(THINKING_ENDS.search(header))
        opening = self._opening()
        shared = os.path.commonprefix([header, opening])  # an assistant's header, without what is written after it
        # What the template writes between the generation prompt and an answer: white space, an empty think block, a channel.
        self._own = opening.removeprefix(header) if opening.startswith(header) else ""
        self._set_user_end(shared)
        self.stop_ids = self._stop_ids(end_ids, [*header_ids, *self.text_ids(shared)])
        self.has_parts = self._check_parts(opening[len(shared) :])
        self._thoughts = self._written_thoughts()
        self.writes_thoughts = bool(self._thoughts[1]) and not self.opens_thinking
        # gpt-oss ends the last turn with another token than those of the history.
        told = self._written([*_GREETING, {"role": "assistant", "content": _MARK}]) if self.has_parts else ""
        self.answer_end_ids = frozenset({(self.text_ids(told) or self.turn_end_ids)[-1], *end_ids})
        self.answer_stop_ids = tuple(sorted(self.answer_end_ids)) if self.has_parts else self.stop_ids

    def prompt_text(self, messages: Sequence[Message]) -> str:
        """Return the text that the model gets before an assistant turn at inference."""
        return self._render(messages, add_generation_prompt=True)

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self.text_ids(self.prompt_text(self.spelled(messages)))

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
        messages, mark = self.spelled(messages), _unused(messages)
        text = self.prompt_text([*messages[:-2], {"role": "assistant", "content": mark}, messages[-1]])
        ids = self.text_ids(text[text.rindex(mark) + len(mark) :])
        return ids[len(self.turn_end_ids) :]

    def whole_reply(self, text: str) -> str:
        """Return a generated reply with its thoughts marked as `after_thinking` reads them: with the start of a think block that
        its prompt opened, and with think blocks for marks that only this template has."""
        if self.opens_thinking:
            return f"<think>\n{text}"
        opens, closes = (mark.strip() for mark in self._thoughts)
        if self.has_parts:
            thoughts, answers, said = text.partition(self._own)
            said = (said if answers else text).partition(self.tokenizer.decode(self.turn_end_ids))[0]
            marks = (self.tokenizer.decode([token]) for token in {*self.text_ids(self._own)} & self._special)
            if not any(mark in thoughts for mark in marks):
                return said
            thoughts = thoughts.replace(opens, "").removesuffix(closes.removesuffix(self._own.strip()))
            return f"<think>\n{thoughts}" + (f"\n</think>\n\n{said}" if answers else "")
        if opens and closes and not THINKING_STARTS.search(opens):
            return text.replace(opens, "<think>").replace(closes, "</think>")
        return text

    def user_turn(self, text: str) -> str:
        """Return a generated user turn without what the template writes between a user's words and the token that ends them, and
        without what follows an end token where a server did not stop at it."""
        for mark in filter(None, [self._closes_user, *self._end_texts]):
            text = text.partition(mark)[0]
        return text.strip()

    def user_prefix_text(self, messages: Sequence[Message], form: PrefixForm = "history") -> str:
        """Return the text that opens a user turn after `messages`, which end with the assistant's answer.

        Thoughts before the answer are left out; in the form "generation" a think block that the prompt opens is closed empty.
        After a system message alone, both forms open the first user turn.
        """
        if not messages or messages[-1]["role"] not in ("assistant", "system"):
            raise TemplateError("a user turn can only be opened after an assistant message or a system message")
        if form == "generation" and messages[-1]["role"] == "assistant":
            answer, before = messages[-1]["content"], self._own
            if self.opens_thinking:
                before = "" if THINKING_ENDS.search(answer) else self._thoughts[1] or "\n</think>\n\n"
            return self.prompt_text(messages[:-1]) + before + answer + self._between(messages[:-1])
        mark = _unused(messages)
        rendered = self._render([*messages, {"role": "user", "content": mark}])
        return rendered[: rendered.rindex(mark)]

    def user_prefix_ids(self, messages: Sequence[Message], form: PrefixForm = "history") -> tuple[int, ...]:
        return self.text_ids(self.user_prefix_text(self.spelled(messages), form))

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
            TemplateError: the template opens a think block before the answer, and a turn that is learned has none to end; or it
                does not show a text of the conversation.
        """
        messages = self.spelled(messages)
        if loss_on == "user":
            return self._user_rows(messages)
        turns = [position for position, message in enumerate(messages) if message["role"] == "assistant"]
        wanted = {position for position in turns if learned(messages[position])}
        if loss_on == "talk":
            wanted = {position for position in wanted if boxed(messages[position]["content"]) is None} or wanted
        rows: list[TrainingRow] = []
        shown = prompt = ""
        for position in turns:
            thinks = messages[position].get("reasoning_content")
            if learned_from and not thinks and position in ({turns[-1]} if loss_on == "all" else wanted):
                self.check_thinking(messages[position]["content"])
            prompt, target = self.prompt_text(messages[:position]), self._target_text(messages[: position + 1])
            shown += prompt + target
            _append_turn(rows, *self._ids_after(prompt, target), position in wanted)
        self._check_shown(messages, shown, prompt)
        if loss_on == "all":
            return [TrainingRow(row.input_ids, [1] * len(row.input_ids)) for row in rows[-1:]]
        return [row for row in rows if any(row.loss_mask)]

    def _user_rows(self, messages: Sequence[Message]) -> list[TrainingRow]:
        rows: list[TrainingRow] = []
        shown = ""
        for position, message in enumerate([*messages, of_rows.user("")]):
            if position and message["role"] == "user":
                before, said = self.user_prefix_text(messages[:position]), message["content"].strip() + self._user_end
                shown += before + said
                prompt, target = self._ids_after(before, said)
                if learned(message):
                    _append_turn(rows, prompt, target, True)
        self._check_shown(messages, shown, before, with_thoughts=False)
        return rows

    def check_prompt(self, messages: Sequence[Message]) -> None:
        """Raise TemplateError if the template does not show a text, a call or a tool of a prompt. It may drop former thoughts."""
        prompt = self.prompt_text(messages)
        self._check_shown(messages, prompt, prompt, with_thoughts=False)

    def with_tools(self, messages: Sequence[Message]) -> list[Message]:
        """Return a conversation whose calls and results of tools are text if the template does not show them as such."""
        if not any(message["role"] == "tool" for message in messages):
            return list(messages)
        try:
            self.check_prompt(messages)
        except TemplateError as error:
            say_once(f"calls and results of tools are written as text of the assistant's turn: {error}")
            return of_rows.tools_as_text(messages)
        return list(messages)

    def _check_shown(self, messages: Sequence[Message], shown: str, prompt: str, with_thoughts: bool = True) -> None:
        """Raise TemplateError if `shown`, what the template wrote, lacks a text of the messages, or the last prompt their first."""
        if messages[0].get("tools"):
            without = [{key: value for key, value in messages[0].items() if key != "tools"}, *messages[1:]]
            if self._render(messages) == self._render(without):
                raise _not_shown("the row's `tools`", "")
        for number, message in enumerate(messages, start=1):
            for key, text in _texts_of(message, with_thoughts):
                if not _stands_in(text, prompt if message["role"] == "system" else shown):
                    raise _not_shown(f"`{key}` of message {number}", text.replace(_BREAK, ""))

    def check_thinking(self, content: str) -> None:
        """Raise TemplateError if an answer to train on would be inside a think block that it never ends."""
        if not self.opens_thinking or THINKING_ENDS.search(content):
            return
        prompts = {name: self._apply(_GREETING, True, {name: False}) for name in ("enable_thinking", "thinking")}
        switch = next((name for name, prompt in prompts.items() if after_thinking(prompt) is not None), None)
        way = f"set data.{switch}: false" if switch else "give the model's folder a chat_template.jinja that opens none"
        problem = "the chat template opens a think block before every answer, and the answers to train on never end it"
        raise TemplateError(f"{problem}; {way}, or train on answers that think and end it with </think>")

    def repeats_thinking(self, content: str) -> bool:
        """Return True if an answer has thoughts, and its prompt ends in an empty think block (thinking is off)."""
        opened = THINKING_STARTS.match(content.strip())
        return bool(opened and self._ended_thinking and THINKING_ENDS.split(content.strip()[opened.end() :])[0].strip())

    def no_place_for_thoughts(self) -> TemplateError:
        return TemplateError(
            "the chat template has no place for the thoughts of an answer after its prompt; set data.enable_thinking: true if it has "
            "this switch, or take the thoughts out of the rows (the key `reasoning_content`, or a think block in the text)"
        )

    def _target_text(self, messages: Sequence[Message]) -> str:
        """Return the text of the last message, an assistant's, with its end of turn."""
        message, (opens, closes) = messages[-1], self._thoughts
        thoughts, said = str(message.get("reasoning_content", "")).strip(), message["content"].strip()
        if thoughts and not closes:
            raise self.no_place_for_thoughts()
        if message.get("tool_calls"):
            return self._call_text(messages)
        if self.has_parts:
            return self._written(messages)
        # A think block that the prompt has opened is not opened again.
        if self.opens_thinking and (opened := THINKING_STARTS.match(said)):
            said = said[opened.end() :].lstrip("\n")
        # White space that the template writes between its prompt and an answer is part of what a model writes.
        own = self._own if not self._own.strip() else ""
        return f"{opens}{thoughts}{closes}{said}{self._turn_end}" if thoughts else f"{own}{said}{self._turn_end}"

    def _call_text(self, messages: Sequence[Message]) -> str:
        """Return a turn that calls tools, as the template writes it after the prompt of that turn."""
        names = [str(call.get("function", call).get("name")) for call in messages[-1]["tool_calls"]]
        written = self._written(messages)
        said, end, _ = written.partition(self._stop)
        if not (end or self.has_parts) or not all(name in written for name in names):
            problem = f"the chat template does not write a call of the tool {names[0]!r} after the prompt of its turn"
            raise TemplateError(
                f"{problem}; use a model whose template has tools, such as Qwen3.5, or leave these rows out"
            )
        return written if self.has_parts else said + end  # its thoughts end as its turns do

    def _ids_after(self, prompt: str, target: str) -> tuple[list[int], list[int]]:
        """Return the ids of a prompt and of the text after it, which are cut out of both together: SentencePiece begins a text of
        its own with a space."""
        before = self.text_ids(prompt)
        if not self._begins_with_space:
            return list(before), list(self.text_ids(target))
        whole = self.text_ids(prompt + target)
        if whole[: len(before)] != before:  # a token that spans both
            whole = (*before, *self.text_ids(self._stop + target)[1:])
        return list(before), list(whole[len(before) :])

    def _written(self, messages: Sequence[Message]) -> str:
        """Return what the template writes for the last message after the prompt of its turn; "" if it changes the prompt."""
        prompt, text = self.prompt_text(messages[:-1]), self._render(messages)
        return text[len(prompt) :] if text.startswith(prompt) else ""

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Return the ids of a turn's text alone. A special token that a message spells, see `spelled`, is plain text."""
        first, *others = text.split(_BREAK)
        ids = list(self.tokenizer(first, add_special_tokens=False)["input_ids"])
        for part in others:
            ids += self.tokenizer(self._stop + part, add_special_tokens=False)["input_ids"][1:]
        return tuple(ids)

    def spelled(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with a mark in each special token that their texts spell, such as "<|im_end|>", so that it ends
        no turn."""

        def broken(text: str) -> str:
            return self._special_text.sub(lambda found: f"{found[0][0]}{_BREAK}{found[0][1:]}", text)

        return [_with_texts(message, broken) for message in messages]

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        try:
            return self._apply(messages, add_generation_prompt)
        except Exception as error:  # jinja and the template itself raise what they like; all of it becomes one line
            raise TemplateError(f"the chat template cannot render this conversation: {one_line(error)}") from error

    def _apply(self, messages: Sequence[Message], opens_turn: bool, switches: Switches | None = None) -> str:
        options: dict[str, Any] = dict(self._options if switches is None else switches)
        if messages and messages[0].get("tools"):
            options["tools"] = messages[0]["tools"]
        return self._written_by_template(self._shown(messages), add_generation_prompt=opens_turn, **options)

    def _written_by_template(self, messages: Sequence[Message], **options: Any) -> str:
        apply: Callable[..., str] = self.tokenizer.apply_chat_template
        return apply(messages, tokenize=False, strftime_now=_TODAY.strftime, **options)

    def _shown(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages as the template takes them: a system message before the first user message where the template has
        no such role, and thoughts as a field where an assistant turn has parts."""
        shown = list(map(of_rows.plain, messages))
        if not self._has_system and len(shown) > 1 and (shown[0]["role"], shown[1]["role"]) == ("system", "user"):
            shown[:2] = [{**shown[1], "content": f"{shown[0]['content']}\n\n{shown[1]['content']}"}]

        def thinks(part: Message) -> bool:
            return bool(part.get("reasoning_content")) or (self.has_parts and part["role"] == "assistant")

        return [_with_thoughts(part) if thinks(part) else part for part in shown]

    def _shows_system(self) -> bool:
        """Return True if the template has a system role: Gemma 1 and 2 raise an error, others leave the message out."""
        try:
            return _MARK in self._apply([{"role": "system", "content": _MARK}, *_GREETING], False)
        except Exception:  # noqa: BLE001 - the template raises what it likes
            return False

    def _say_idle_switches(self) -> None:
        for name, value in self._options.items():
            others = {key: kept for key, kept in self._options.items() if key != name}
            if all(self._apply(_GREETING, end) == self._apply(_GREETING, end, others) for end in (True, False)):
                say_once(f"{name}: {value} changes nothing: the chat template writes the same prompt without it")

    def _check_cost(self) -> None:
        """Refuse a template that loops or doubles its text, before this process renders anything with it."""
        messages = [{"role": role, "content": "Hi."} for role in ("user", "assistant")] * 32
        # A template of some kilobytes renders 64 short messages in milliseconds.
        if not ends_within(2.0, 2**29, lambda: self._apply(messages, False)):
            problem = "the chat template needs more than 2 seconds or 512 MiB for 64 short messages, so it loops"
            raise TemplateError(f"{problem}; put another chat_template.jinja into the model's folder")

    def _between(self, before: Sequence[Message]) -> str:
        """Return the text between an assistant's content and the user's content that follows it."""
        answer, question = _unused(before, "A"), _unused(before, "U")
        text = self._render([*before, {"role": "assistant", "content": answer}, {"role": "user", "content": question}])
        if text.count(answer) != 1 or text.count(question) != 1:
            raise TemplateError("the chat template drops or repeats a message, so no user turn can be opened")
        return text[text.index(answer) + len(answer) : text.index(question)]

    def _split_turn_end(self, between: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split the text between two turns into the end of the first and the header of the second."""
        ids = self.text_ids(between)
        for position, token in enumerate(ids):
            if token in self._special:
                return ids[: position + 1], ids[position + 1 :]
        raise TemplateError("the chat template ends an assistant turn without a special token, so no turn ever stops")

    def _set_user_end(self, header: str) -> None:
        """Find what the template writes after a user's content, up to the first special token: the tokens that end a user turn,
        and the text before that token, such as GLM's "/nothink". A header of plain text, such as Mistral's first [/INST], has no
        special token, and stops nothing: what follows it is cut off."""
        ids = self.text_ids(header)
        end = next((place for place, token in enumerate(ids) if token in self._special), len(ids))
        self.user_end_ids = ids[: end + 1]
        stop: str = self.tokenizer.convert_ids_to_tokens(ids[end]) if end < len(ids) else ""
        self._user_end = header[: header.index(stop) + len(stop)] if stop else header
        self._closes_user = self.tokenizer.decode(ids[:end]).strip()

    def _stop_ids(self, end_ids: Iterable[int], header_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens that end a turn, the most certain first: its end, the ends of a text, and any special token of a role's header.

        In templates such as GLM's and DeepSeek's nothing but the assistant's header ends a user turn.
        """

        def thinks(token: int) -> bool:
            text = self.tokenizer.decode([token])
            return bool(THINKING_STARTS.search(text) or THINKING_ENDS.search(text))

        headers = {token for token in set(header_ids) & self._special if not thinks(token)}
        ends = [token for token in self.user_end_ids[-1:] if token in self._special]
        return tuple(dict.fromkeys([self.turn_end_ids[-1], *ends, *sorted(end_ids), *sorted(headers)]))

    def _opening(self) -> str:
        """Return the text between a user's content and the content of the assistant that follows it."""
        question, answer = _MARK + "U", _MARK + "A"
        asked: list[Message] = [{"role": "user", "content": question}]
        told = self._render([*asked, {"role": "assistant", "content": answer}, *_GREETING])
        return told[told.index(question) + len(question) : told.index(answer)]

    def _check_parts(self, own: str) -> bool:
        """Return True if an assistant turn has a stop token before its content (in `own`), as with gpt-oss: it has parts.

        Raises:
            TemplateError: The generation prompt opens another part than that of the content, so that no answer can be found.
        """
        stops = [token for token in self.text_ids(own) if token in self.stop_ids]
        if stops and not self._own:
            end = self.tokenizer.decode(stops[:1])
            problem = f"the chat template writes {own!r} with stop token {end} before an answer"
            raise TemplateError(
                f"{problem}; the model's folder needs a chat_template.jinja that opens the answer itself"
            )
        return bool(stops)

    def _written_thoughts(self) -> tuple[str, str]:
        """Return what the template writes before and after the thoughts of an answer; twice "" if it shows none."""
        thought, answer = _MARK + "T", _MARK + "A"
        prompt = self.prompt_text(_GREETING)
        message = {"role": "assistant", "content": answer, **dict.fromkeys(THOUGHT_FIELDS, thought)}
        try:
            text = self._written_by_template([*_GREETING, message], **self._options)
        except Exception:  # noqa: BLE001 - the template raises what it likes
            return "", ""
        before, shown, after = text.removeprefix(prompt).partition(thought)
        closes, answered, _ = after.partition(answer)
        return (before, closes) if text.startswith(prompt) and shown and answered else ("", "")


_GREETING: tuple[Message, ...] = ({"role": "user", "content": "Hi."},)


def _with_thoughts(message: Message) -> Message:
    """Return an assistant's message with its thoughts, also those of a think block, in the fields where templates look for them."""
    if thoughts := message.get("reasoning_content"):
        return {**message, **dict.fromkeys(THOUGHT_FIELDS, thoughts)}
    said = after_thinking(message["content"]) or ""
    thoughts = THINKING_STARTS.sub("", THINKING_ENDS.sub("", message["content"].removesuffix(said))).strip()
    return {**message, "content": said.strip(), **(dict.fromkeys(THOUGHT_FIELDS, thoughts) if thoughts else {})}


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with each text changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _with_texts(inner, change) for key, inner in value.items()}
    return [_with_texts(inner, change) for inner in value] if isinstance(value, list) else value


def _texts_of(message: Message, with_thoughts: bool) -> Iterator[tuple[str, str]]:
    """Yield (key, text) of what a template has to show of a message."""
    said = message["content"]
    if message["role"] == "assistant":
        said = after_thinking(said) or ""
        thoughts = THINKING_STARTS.split(THINKING_ENDS.split(message["content"].removesuffix(said))[0])[-1]
        if with_thoughts:
            yield from (("reasoning_content", str(message.get("reasoning_content", ""))), ("content", thoughts))
    yield "content", said
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        yield from (("tool_calls", text) for text in (function["name"], *_leaves(function.get("arguments"))))
    for tool in message.get("tools") or ():
        yield "tools", tool["function"]["name"]


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts of a call's arguments, and their names."""
    if isinstance(value, str):
        yield value
    for inner in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _leaves(inner)


def _stands_in(text: str, shown: str) -> bool:
    """Return True if a text is in what a template wrote, also as JSON or with other white space or case."""
    text = text.strip()
    as_json = json.dumps(text, ensure_ascii=False)[1:-1]
    if text in shown or as_json in shown:
        return True
    return any("".join(form.casefold().split()) in "".join(shown.casefold().split()) for form in (text, as_json))


def _not_shown(what: str, text: str) -> TemplateError:
    return TemplateError(
        f"the chat template does not show {what}{f' ({text.strip()!r:.60})' if text else ''}; use a model whose template does, such as "
        "Qwen3.5 for tools, or take this out of the row"
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
