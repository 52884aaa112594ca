"""Every chat template that trl ships: prompt, prefixes, stops, what is learned, and thoughts."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import TemplateError
from nextturn.probe.command.files import write_json
from nextturn.probe.data.messages import after_thinking, assistant
from nextturn.probe.engines.stored import Row
from nextturn.probe.measures.followup import Followup, case_of
from nextturn.probe.models.folders import ModelFolder, end_ids
from nextturn.probe.questions.sets import Item
from nextturn.probe.text.chat import UNKNOWN, Chat
from support.conversations import messages, spans
from support.measured import Said, question_set, rows_of
from support.tiny_models import CHATML, shipped_tokenizer, tiny_tokenizer

TALK = messages("Question one?", "Answer one.", "Question two?", "Answer two.")
THOUGHT = "Let me add."
SYSTEM = {"role": "system", "content": "Be brief."}


def shipped() -> list[str]:
    trl = importlib.util.find_spec("trl")
    assert trl is not None and trl.origin is not None
    names = sorted(path.stem for path in (Path(trl.origin).parent / "chat_templates").glob("*.jinja"))
    return [name for name in names if not name.endswith("_training")]


IMAGES_ONLY = {"idefics3", "llava_next", "smolvlm"}
"""Templates that show no plain text: their messages are lists of parts."""
TEMPLATES = [name for name in shipped() if name not in IMAGES_ONLY]
USER_ENDS = {
    "cohere2": "<|END_OF_TURN_TOKEN|>", "deepseekv3": "<｜Assistant｜>", "deepseek_r1_distill": "<｜Assistant｜>",
    "glm4moe": "<|assistant|>", "gptoss": "<|end|>", "llama3": "<|eot_id|>", "muse_glimmer": "<|eot|>",
}  # fmt: skip
"""What ends a user turn where that is special."""


@cache
def chat_with(template: str) -> Chat:
    return Chat(shipped_tokenizer(template), ends=())


def written(chat: Chat, talk: list[Any], prompt: bool = False, **switches: Any) -> str:
    """Return what transformers makes of a conversation, with the date that `Chat` takes."""
    from datetime import datetime

    text: str = chat.tokenizer.apply_chat_template(
        talk, tokenize=False, add_generation_prompt=prompt, strftime_now=datetime(2024, 7, 26).strftime, **switches
    )
    return text


@pytest.mark.parametrize("template", TEMPLATES)
def test_prompts_and_prefixes_are_what_the_template_writes(template: str) -> None:
    chat = chat_with(template)
    prompt = chat.prompt_text(TALK[:1])
    assert prompt == written(chat, TALK[:1], True)
    history, generation = (chat.user_prefix_text(TALK[:2], form) for form in ("history", "generation"))  # type: ignore[arg-type]
    assert written(chat, TALK[:3], True).startswith(history + "Question two?")
    assert generation.startswith(prompt) and generation.endswith(history.rpartition("Answer one.")[2])
    before = generation.removeprefix(prompt).partition("Answer one.")[0]
    if (
        written(chat, TALK).startswith(prompt) and not chat.opens_thinking
    ):  # then the history shows the answer as it was made
        assert generation == history
    assert chat.prompt_text([SYSTEM, TALK[0]]).count("Be brief.") == 1
    assert after_thinking(prompt + before) is not None, "an answer comes after the thoughts"


@pytest.mark.parametrize("template", TEMPLATES)
def test_turns_stop_where_the_template_ends_them_and_not_before(template: str) -> None:
    chat = chat_with(template)
    text = written(chat, TALK, True)
    after_user = text.partition("Question two?")[2].partition("Answer two.")[0]
    assert chat.text_ids(after_user)[0] in chat.stop_ids or after_user[0].isspace()
    assert set(chat.text_ids(after_user)) & set(chat.stop_ids)
    assert set(chat.text_ids(written(chat, TALK).rpartition("Answer two.")[2])) & set(chat.answer_stop_ids) or (
        template == "glm4moe"  # writes nothing after the last answer
    )
    reply = {**TALK[1], "reasoning_content": THOUGHT, "thinking": THOUGHT}
    prompt, whole = chat.prompt_text(TALK[:1]), written(chat, [TALK[0], reply])
    if whole.startswith(prompt):
        own = whole.removeprefix(prompt).partition("Answer one.")[0]
        assert not set(chat.text_ids(own)) & set(chat.answer_stop_ids), "thoughts and channels stop no answer"
    ends = {chat.tokenizer.convert_tokens_to_ids(token) for token in ("<|endoftext|>", "<|im_end|>")}
    assert ends <= set(chat.stop_ids) & set(chat.answer_stop_ids), "what ends a text ends every turn"


@pytest.mark.parametrize("template", TEMPLATES)
def test_loss_is_on_a_turn_and_on_what_ends_it(template: str) -> None:
    chat = chat_with(template)
    talk = [
        {**turn, "content": f"{THOUGHT}\n</think>\n\n{turn['content']}"}
        if chat.opens_thinking and turn["role"] == "assistant"
        else turn
        for turn in TALK
    ]
    for turn, (ids, start, end) in zip(talk[1::2], learned(chat, talk, "assistant"), strict=True):
        text = chat.tokenizer.decode(ids[start:end])
        said = text.partition(turn["content"])
        assert said[1] and ids[end - 1] in chat.answer_end_ids and len(chat.text_ids(said[2])) == 1
        assert ids[:start] == list(chat.prompt_ids(talk[: talk.index(turn)]))
    first, last = learned(chat, TALK, "user")
    end = USER_ENDS.get(template)
    for text, (ids, start, stop) in (("Question two?", first), ("", last)):
        target = chat.tokenizer.decode(ids[start:stop])
        assert target == text + (end or chat.tokenizer.decode(chat.turn_end_ids)) and ids[stop - 1] in chat.stop_ids
    (ids, start, _) = first
    assert ids[:start] == list(chat.user_prefix_ids(TALK[:2]))


def learned(chat: Chat, talk: list[Any], loss_on: Any) -> list[tuple[list[int], int, int]]:
    rows = chat.training_rows(talk, loss_on)
    return [(row.input_ids, *span) for row in rows for span in spans(row.loss_mask)]


@pytest.mark.parametrize("template", TEMPLATES)
def test_thoughts_that_a_template_writes_are_no_answer(template: str) -> None:
    """As it writes them for itself, or in a think block where it writes none."""
    chat, marked = chat_with(template), {**TALK[1], **dict.fromkeys(("reasoning_content", "thinking"), THOUGHT)}
    prompt, text = chat.prompt_text(TALK[:1]), written(chat, [TALK[0], marked])
    reply = f"<think>\n{THOUGHT}\n</think>\n\nAnswer one."
    if text.startswith(prompt) and THOUGHT in text:
        reply = text.removeprefix(prompt).partition("Answer one.")[0] + "Answer one."
    for cut in (reply.index(THOUGHT) + 3, reply.index(THOUGHT) + len(THOUGHT)):
        assert after_thinking(chat.whole_reply(reply[:cut])) is None
    whole = chat.whole_reply(reply)
    said = after_thinking(whole)
    assert said is not None and said.strip() == "Answer one." and THOUGHT in whole
    assert (after_thinking(chat.whole_reply("Answer one.")) is None) == chat.opens_thinking


@pytest.mark.parametrize("template", sorted(IMAGES_ONLY))
def test_templates_without_plain_text_are_refused(template: str) -> None:
    with pytest.raises(TemplateError):
        Chat(shipped_tokenizer(template))


MARKS = [
    ("<think>", "</think>"), ("<Thinking>", "</thinking>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"), ("<|channel>thought\n", "<channel|>"), ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|START_THINKING|>", "<|END_THINKING|><|START_RESPONSE|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
]  # fmt: skip


@pytest.mark.parametrize(("opens", "closes"), MARKS)
def test_thoughts_reach_no_user_turn_and_no_judge_and_are_not_truncated(opens: str, closes: str) -> None:
    chat = Chat(tiny_tokenizer("chatml"))

    def turns(reply: str) -> tuple[list[Row], Said]:
        said = Said(by=lambda messages: reply if len(messages) == 1 else "Why?")
        keys = {"perturbations": ("truncate(0.5)",)}
        return rows_of(Followup, question_set("s", [Item("a", (TALK[0],))]), said, chat=chat, **keys), said

    (plain, half), said = turns(f"{opens}Add 4 to 3, which is 7.{closes}So there are 8 apples in it.")
    assert plain["messages"][-1] == assistant("So there are 8 apples in it.") == said.shown[1][-1]
    assert case_of(plain).messages[-1]["content"] == "So there are 8 apples in it."
    kept = half["messages"][-1]["content"]
    assert 0 < len(kept) < len("So there are 8 apples in it.") and "So there are 8 apples in it.".startswith(kept)
    (row, _), said = turns(f"{opens}Add 4 to 3, whi")
    assert len(said.shown) == 1 and row["unscored"] == "no_answer"
    assert after_thinking("It is [7, 8] and 3 < 4.") == "It is [7, 8] and 3 < 4."


def test_marks_that_only_a_template_knows_are_read_from_it() -> None:
    tokenizer = tiny_tokenizer("chatml")
    tokenizer.chat_template = CHATML.replace(
        "turn.content", "('<musing>' + turn.thinking + '</musing>' if turn.thinking else '') + turn.content"
    )
    chat = Chat(tokenizer)
    assert after_thinking(chat.whole_reply("<musing>3 + 4</musing>It is 7.")) == "It is 7."
    assert after_thinking(chat.whole_reply("<musing>3 + 4")) is None


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        ({"eos_token_id": [1, 2]}, {"eos_token_id": 3}, (1, 2)),
        ({"eos_token_id": 2}, {}, (2,)),
        ({"top_p": 1.0}, {"eos_token_id": 3}, (3,)),
        (None, {"text_config": {"eos_token_id": [3, 1]}}, (3, 1)),
        (None, {}, ()),
    ],
)
def test_a_model_s_end_tokens_are_those_of_its_files(generation: Any, config: Any, ends: Any, tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    write_json(base / "config.json", config)
    if generation is not None:
        write_json(base / "generation_config.json", generation)
    assert end_ids(ModelFolder("base", base)) == end_ids(ModelFolder("lora", adapter, base)) == ends


def test_end_tokens_stop_turns_and_are_named() -> None:
    tokenizer = tiny_tokenizer("qwen3_5_nothink")
    vision = tokenizer.convert_tokens_to_ids("<|vision_end|>")
    chat = Chat(tokenizer, ends=[vision])
    assert vision in chat.stop_ids and vision in chat.answer_stop_ids and vision in chat.answer_end_ids
    assert set(chat.ends) == {"<|vision_end|>", "<|im_end|>", "<|endoftext|>"}
    assert Chat(tokenizer).ends == UNKNOWN
    assert chat.user_turn("Why 7?<|endoftext|>Human: Write a poem.") == "Why 7?", (
        "from a server that did not stop there"
    )


@pytest.mark.parametrize(
    ("template", "switches", "changes"),
    [
        ("glm4moe", {"enable_thinking": False}, True),
        ("gptoss", {"reasoning_effort": "low"}, True),
        ("gptoss", {"enable_thinking": False}, False),
        ("gemma3", {"thinking": True}, False),
    ],
)
def test_a_switch_that_changes_no_byte_is_named(template: str, switches: Any, changes: bool, monkeypatch: Any) -> None:
    said: list[str] = []
    monkeypatch.setattr("nextturn.probe.text.chat.say_once", said.append)
    chat = Chat(shipped_tokenizer(template), switches)
    assert chat.prompt_text(TALK[:1]) == written(chat, TALK[:1], True, **switches)
    assert len(said) == (not changes) and all(next(iter(switches)) in line for line in said)


def test_what_glm_writes_after_a_user_s_words_is_no_part_of_them() -> None:
    chat = Chat(shipped_tokenizer("glm4moe"), {"enable_thinking": False})
    assert chat.user_turn("Why not 8?/nothink") == "Why not 8?"
    ids, start, end = learned(chat, TALK, "user")[0]
    assert chat.tokenizer.decode(ids[start:end]) == "Question two?/nothink<|assistant|>"
    assert chat.user_prefix_text(TALK[:2], "generation") == chat.user_prefix_text(TALK[:2]), (
        "with the line break before the answer"
    )


def test_a_system_message_goes_before_the_first_user_message_where_there_is_no_such_role() -> None:
    gemma, gemma3 = chat_with("gemma"), chat_with("gemma3")
    talk = [SYSTEM, *TALK]
    assert gemma.prompt_text(talk[:2]) == gemma3.prompt_text(talk[:2])
    assert [row.input_ids for row in gemma.training_rows(talk)]
    assert gemma.user_prefix_text([SYSTEM]).endswith("user\nBe brief.\n\n")
