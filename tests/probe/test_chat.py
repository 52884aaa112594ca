"""Rendering: what carries loss, after which context, and how a user turn opens, on four families of templates."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime
from functools import cache
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextturn.probe.command.errors import TemplateError
from nextturn.probe.command.files import sha256_text
from nextturn.probe.command.timelimit import ends_within
from nextturn.probe.text.chat import Chat, LossOn
from support.conversations import messages, spans
from support.tiny_models import shipped_template, shipped_tokenizer, thinking_tokenizer, tiny_tokenizer

MARKS = {
    "chatml": ("<|im_end|>", "\n<|im_start|>user\n"),
    "qwen3_5_nothink": ("<|im_end|>", "\n<|im_start|>user\n"),
    "llama3": ("<|eot_id|>", "<|start_header_id|>user<|end_header_id|>\n\n"),
    "gemma3": ("<end_of_turn>", "\n<start_of_turn>user\n"),
}
TEMPLATES = list(MARKS)
TURN_END = {name: end for name, (end, _) in MARKS.items()}
TALK = messages(
    "Ann has 3 apples and buys 4. How many now?", "3 + 4 = 7.\nThe answer is \\boxed{7}.", "Why did you add?",
    "Because buying makes more.", "And if she buys 5?", "Then it is 8.",
)  # fmt: skip


@cache
def chat_with(template: str) -> Chat:
    return Chat(tiny_tokenizer(template))


THINK = ("<think>", "</think>")


def with_tokens(special: tuple[str, ...] = (), markup: tuple[str, ...] = (), template: str = "chatml") -> Any:
    """Return a tokenizer with added tokens, special ones and others."""
    from tokenizers import AddedToken

    tokenizer = tiny_tokenizer(template)
    for texts, is_special in ((special, True), (markup, False)):
        tokenizer.add_tokens([AddedToken(text, special=is_special, normalized=False) for text in texts])
    return tokenizer


@pytest.fixture(params=TEMPLATES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_loss_is_on_assistant_content_and_turn_end_alone_after_the_prompt_of_inference(family: str) -> None:
    chat = chat_with(family)
    rows = chat.training_rows(TALK)
    assert len(rows) == (3 if family == "qwen3_5_nothink" else 1), "one row where the template keeps its prefixes"
    learned = [(row.input_ids[:start], row.input_ids[start:end]) for row in rows for start, end in spans(row.loss_mask)]
    replies = [message["content"] for message in TALK if message["role"] == "assistant"]
    assert [chat.tokenizer.decode(ids) for _, ids in learned] == [text + TURN_END[family] for text in replies]
    assert [context for context, _ in learned] == [list(chat.prompt_ids(TALK[:position])) for position in (1, 3, 5)]
    (row,) = chat.training_rows(TALK, loss_on="all")
    assert set(row.loss_mask) == {1}, "the last context whole"
    assert row.input_ids[: len(chat.prompt_ids(TALK[:5]))] == list(chat.prompt_ids(TALK[:5]))


MISTRAL = (
    "{% for m in messages %}{{ '[INST] ' + m['content'] + ' [/INST]' if m['role'] == 'user' else ' ' + m['content'] + '</s>' }}"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    ("special", "header"),
    [
        (("[INST]", "[/INST]", "</s>"), "[/INST]"),
        (("</s>",), None),  # the header is plain text
    ],
)
def test_a_user_turn_ends_at_the_next_header(special: tuple[str, ...], header: str | None) -> None:
    """A user turn ends where the assistant's header begins."""
    tokenizer = with_tokens(special, THINK)
    tokenizer.chat_template = MISTRAL
    chat = Chat(tokenizer)
    assert (header in tokenizer.convert_ids_to_tokens(chat.stop_ids)) == (header is not None)
    if header is None:
        assert chat.user_turn("And for 5? [/INST] Then it is 8.") == "And for 5?"


@given(
    st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"))), min_size=4, max_size=4)
)
def test_any_text_keeps_learned_tokens_after_inference_prompts(texts: list[str]) -> None:
    for template in ("chatml", "qwen3_5_nothink"):
        chat = chat_with(template)
        talk = messages(*("x" + text.replace("<|", "") for text in texts))
        rows = chat.training_rows(talk)
        contexts = [row.input_ids[:start] for row in rows for start, _ in spans(row.loss_mask)]
        assert contexts == [list(chat.prompt_ids(talk[:position])) for position in (1, 3)]


def test_a_marker_in_the_conversation_is_not_cut_at() -> None:
    chat = chat_with("chatml")
    talk = messages("What is NEXTTURNMARK?", "NEXTTURNMARKA")
    assert chat.user_prefix_text(talk).endswith("NEXTTURNMARKA" + "".join(MARKS["chatml"]))


def test_templates_that_cannot_open_a_user_turn_are_refused() -> None:
    tokenizer = tiny_tokenizer("chatml")
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}{% endfor %}"
    with pytest.raises(TemplateError, match="no user turn can be opened"):
        Chat(tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    with pytest.raises(TemplateError, match="special token"):
        Chat(tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(TemplateError, match="no chat template"):
        Chat(tokenizer)


def test_white_space_that_a_tokenizer_lists_as_added_tokens_stops_no_turn() -> None:
    """As Gemma's line breaks are: an answer would end with its first line."""
    plain, tokenizer = chat_with("gemma3"), with_tokens(markup=("\n", "\n\n"), template="gemma3")
    chat = Chat(tokenizer)
    assert tokenizer.convert_tokens_to_ids("\n") in chat.user_prefix_ids(TALK[:2])
    assert (chat.stop_ids, chat.turn_end_ids) == (plain.stop_ids, plain.turn_end_ids)


def test_tokens_of_markup_end_turns_though_their_tokenizer_calls_none_special() -> None:
    tokenizer = with_tokens(markup=("<user>", "</turn>"))
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<user>' if m['role'] == 'user' else '' }}{{ m['content'] }}</turn>{% endfor %}"
    )
    assert set(tokenizer.convert_tokens_to_ids(["<user>", "</turn>"])) <= set(Chat(tokenizer).stop_ids)


def test_a_prompt_that_opens_another_part_of_the_turn_than_the_answer_is_refused() -> None:
    """gpt-oss with its analysis opened: nothing would say where it ends."""
    tokenizer = shipped_tokenizer("gptoss")
    own = tokenizer.chat_template.rpartition("<|start|>assistant")
    for channel, refused in (("analysis", True), ("final", False)):
        tokenizer.chat_template = f"{own[0]}<|start|>assistant<|channel|>{channel}<|message|>{own[2]}"
        with pytest.raises(TemplateError) if refused else nullcontext():
            assert not Chat(tokenizer).has_parts


def test_a_template_that_writes_the_date_renders_the_same_on_every_day() -> None:
    """Llama 3.2 does: a checkpoint that is measured the day after its base has to be shown the same prompts."""
    tokenizer = tiny_tokenizer("llama3")
    tokenizer.chat_template = shipped_template("llama3_2")
    assert f"Today Date: {datetime.now():%d %b %Y}" in tokenizer.apply_chat_template(TALK[:1], tokenize=False)
    chat = Chat(tokenizer)
    texts = [chat.prompt_text(TALK[:1]), tokenizer.decode(chat.training_rows(TALK)[0].input_ids)]
    texts += [chat.user_prefix_text(TALK[:2], form) for form in ("history", "generation")]  # type: ignore[arg-type]
    assert all("Today Date: 26 Jul 2024\n" in text for text in texts)
    plain = chat_with("llama3")
    assert plain.template_sha256 == sha256_text(plain.tokenizer.chat_template)
    assert chat.template_sha256 != sha256_text(tokenizer.chat_template), "a probe begun under another date differs"


@pytest.mark.parametrize("template", ["deepseekv3", "glm4moe", "nemotron_3_nano", "phi3", "qwen3", "qwen3_5_think"])
def test_a_think_block_before_the_content_is_no_part_that_stops(template: str) -> None:
    tokenizer = with_tokens(("<｜end▁of▁sentence｜>", "<|end|>", "<|user|>", "<|assistant|>"), THINK)
    tokenizer.chat_template = shipped_template(template)
    for switches in ({}, {"enable_thinking": False}):
        stops = tokenizer.convert_ids_to_tokens(Chat(tokenizer, switches).stop_ids)
        assert not set(THINK) & set(stops)


THINKING = ["qwen3_5_think", "deepseek_r1_distill"]
THOUGHT = {"role": "assistant", "content": "So.\n</think>\n\nIt is 7."}


@pytest.mark.parametrize(
    ("template", "way_out"),
    [(THINKING[0], "data.enable_thinking: false"), (THINKING[1], "chat_template.jinja that opens none")],
)
def test_answers_without_thinking_are_not_learned_within_a_think_block(template: str, way_out: str) -> None:
    """A model that learns to answer there has no end of the block, and thinks no more."""
    chat = Chat(thinking_tokenizer(template))
    assert chat.opens_thinking
    for loss_on in sorted(set(get_args(LossOn)) - {"user"}):
        with pytest.raises(TemplateError, match=f"opens a think block .* {way_out}, or train on answers that think"):
            chat.training_rows(TALK, loss_on)
    assert chat.training_rows(TALK, learned_from=False), "what is only scored"
    if template == "qwen3_5_think":
        assert Chat(chat.tokenizer, {"enable_thinking": False}).training_rows(TALK)


@pytest.mark.parametrize("template", THINKING)
def test_answers_that_think_are_learned_from_within_the_block(template: str) -> None:
    chat = Chat(thinking_tokenizer(template))
    for content in (THOUGHT["content"], "<think>\n" + THOUGHT["content"]):  # the prompt has opened it already
        talk = [TALK[0], {**TALK[1], "loss": False}, TALK[2], {**THOUGHT, "content": content}]
        (row,) = chat.training_rows(talk)
        start = row.loss_mask.index(1)
        assert chat.tokenizer.decode(row.input_ids[:start]).endswith("<think>\n")
        assert chat.tokenizer.decode(row.input_ids[start:]).startswith(THOUGHT["content"])
        assert len(chat.training_rows(talk, "all")) == 1
    with pytest.raises(TemplateError, match="opens a think block"):
        chat.training_rows([*TALK[:1], {**TALK[1], "loss": False}], "all")


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for m in messages %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
        "{{ 'a' * 10 ** 10 }}",
    ],
)
def test_a_template_that_loops_or_doubles_is_refused(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that loops or doubles its text is refused before it is rendered in this process."""
    monkeypatch.setattr("nextturn.probe.text.chat.ends_within", lambda seconds, *more: ends_within(0.2, *more))
    tokenizer = tiny_tokenizer("chatml")
    tokenizer.chat_template = template
    with pytest.raises(TemplateError, match="so it loops"):
        Chat(tokenizer)
