"""What is trained is what a row means: columns, thoughts, tools, marks and special tokens are read, or the row is refused."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from nextturn.data_builders.rows import load_rl_rows
from nextturn.probe.command.errors import BadInput, DataError
from nextturn.probe.command.files import read_json, write_jsonl
from nextturn.probe.command.terminal import say_once
from nextturn.probe.data.messages import training_messages, unread_columns
from nextturn.probe.text.chat import Chat
from nextturn.train.encoding import (
    check_counts,
    check_too_long,
    load_pairs,
    make_pairs,
    make_rows,
    show_loss,
    user_view,
)
from nextturn.train.sections import DataSection, load_sft_recipe
from nextturn.train.sft import train
from support import grpo_parts, sft_parts
from support.tiny_models import shipped_template, shipped_tokenizer, tiny_tokenizer

ASKED, SAID = {"role": "user", "content": "Why is it wet?"}, {"role": "assistant", "content": "It rains."}
FORMER, AGAIN = {"role": "assistant", "content": "No idea."}, {"role": "user", "content": "Look again."}
LOOKED = {"function": {"name": "look", "arguments": {"town": "Bonn"}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [LOOKED]}
TURNS = [ASKED, CALLED, {"role": "tool", "content": "rain"}, SAID]
TOWN = {"type": "object", "properties": {"town": {"type": "string"}}}
LOOK = {"name": "look", "description": "Looks out.", "parameters": TOWN}
TOOL = {"type": "function", "function": LOOK}
THOUGHT = {**SAID, "reasoning": "Drops fall."}
HUMAN, GPT = {"from": "human", "value": "Why is it wet?"}, {"from": "gpt", "value": "It rains."}
TOLD, CALL = {"role": "tool", "content": "rain"}, "<tool_call>\n<function=look>\n</function>\n</tool_call><|im_end|>"


def call(arguments: Any) -> list[dict[str, Any]]:
    """Return a conversation with a tool call that has these arguments."""
    calls = [{"type": "function", "function": {"name": "look", "arguments": arguments}}]
    return [ASKED, {**CALLED, "tool_calls": calls}, TOLD, SAID]


def chat_of(family: str) -> Chat:
    if family == "metaspace":
        return Chat(metaspace())
    if family == "qwen3_5_think":
        tokenizer = tiny_tokenizer("qwen3_5_nothink")
        tokenizer.chat_template = shipped_template(family)
        return Chat(tokenizer)
    return Chat(tiny_tokenizer(family) if family in ("chatml", "qwen3_5_nothink") else shipped_tokenizer(family))


def metaspace() -> Any:
    """A tokenizer that begins each text with a space, as SentencePiece does, with a template of Mistral's form."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Replace("▁", " ")
    backend.train_from_iterator(
        ["Why is it wet? It rains. No idea. Look again. [INST] [/INST]"],
        trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>", "<s>", "</s>"]),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}{{ '[INST] ' + m.content + ' [/INST]' if m.role == 'user' else m.content + '</s>' }}"
        "{% endfor %}"
    )
    return tokenizer


def learned(row: dict[str, Any], family: str) -> tuple[list[str], str]:
    """Return the texts that carry loss in the rows of one row of data, and all text of the rows."""
    chat = chat_of(family)
    rows, counts = make_rows([training_messages(row, "row 1")], chat, "assistant", None)
    check_counts(counts, DataSection(path="data"), chat, None)
    shown = "".join(show_loss(made, chat.tokenizer) for made in rows)
    return re.findall("⟦(.*?)⟧", shown, re.DOTALL), re.sub("[⟦⟧]", "", shown)


@pytest.mark.parametrize(
    ("family", "row", "said", "contains"),
    [
        ("chatml", {"prompt": [ASKED, FORMER, AGAIN], "completion": [SAID]}, ["It rains.<|im_end|>"], "No idea."),
        ("chatml", {"prompt": [ASKED, {**FORMER, "weight": 1}, AGAIN], "completion": "It rains."}, ["It rains.<|im_end|>"], "No"),
        ("chatml", {"messages": [ASKED, {**FORMER, "training": False}, AGAIN, SAID]}, ["It rains.<|im_end|>"], "No idea."),
        ("qwen3_5_think", {"messages": [ASKED, THOUGHT]}, ["Drops fall.\n</think>\n\nIt rains.<|im_end|>"], "<think>\nDrops"),
        ("chatml", {"instruction": "Why?", "output": "Rain.", "context": "It is wet."}, ["Rain.<|im_end|>"], "Why?\n\nIt is wet."),
        ("chatml", {"question": "And now?", "answer": "Sun.", "history": [["Why?", "Rain."]]}, ["Rain.<|im_end|>", "Sun.<|im_end|>"], "And"),
        ("chatml", {"messages": [ASKED, SAID], "system_prompt": "Be kind."}, ["It rains.<|im_end|>"], "system\nBe kind."),
        ("chatml", {"messages": [ASKED, {**SAID, "content": "Say <|im_start|>."}]}, ["Say <|im_start|>.<|im_end|>"], "Say"),
        ("chatml", {"messages": None, "conversations": [HUMAN, {**GPT, "train": True}]}, ["It rains.<|im_end|>"], "Why"),
        ("qwen3_5_think", {"messages": [ASKED, {**SAID, "thinking": "It rains", "reasoning": None}]},
         ["It rains\n</think>\n\nIt rains.<|im_end|>"], "Why"),
        ("qwen3_5_nothink", {"messages": call(""), "tools": [TOOL]}, [CALL, "It rains.<|im_end|>"], "rain"),
        ("qwen3_5_nothink", {"messages": call(None), "tools": str([LOOK]).replace("'", '"')}, [CALL, "It rains.<|im_end|>"], "rain"),
        ("metaspace", {"messages": [ASKED, FORMER, AGAIN, SAID]}, ["No idea.</s>", "It rains.</s>"], "[/INST]"),
    ],
)  # fmt: skip
def test_a_row_is_trained_as_it_is_meant(family: str, row: dict[str, Any], said: list[str], contains: str) -> None:
    found, shown = learned(row, family)
    assert found == said and contains in shown


@pytest.mark.parametrize(
    "row",
    [
        {"messages": TURNS, "tools": [TOOL]},
        {"messages": TURNS, "tools": ['{"type": "function", "function": ' + str(LOOK).replace("'", '"') + "}"]},
        {"messages": TURNS, "functions": [LOOK]},
        {"messages": [ASKED, {**CALLED, "tool_calls": [{"name": "look", "arguments": '{"town": "Bonn"}'}]}, *TURNS[2:]], "tools": [TOOL]},
        {"messages": [{"role": "system", "content": "Be kind.", "tools": [TOOL]}, *TURNS]},
        {"messages": [ASKED, {**CALLED, "tool_calls": [{"function": {"name": "look", "arguments": {"town": "Bonn", "to": None}}}]}, *TURNS[2:]],
         "tools": [{**TOOL, "function": {**LOOK, "strict": None}}]},
    ],
)  # fmt: skip
def test_tools_are_shown_alike_in_each_form(row: dict[str, Any]) -> None:
    (call, answer), shown = learned(row, "qwen3_5_nothink")
    wanted, whole = learned({"messages": TURNS, "tools": [TOOL]}, "qwen3_5_nothink")
    assert [call, answer] == wanted and shown.partition("<tools>")[2].partition("</tools>")[0] in whole


NO_SYSTEM = (
    "{% if m.role != 'system' or messages|length < 4 %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
)


@pytest.mark.parametrize(
    ("family", "row"),
    [
        ("qwen3_5_nothink", {"messages": [ASKED, THOUGHT]}),
        ("chatml", {"messages": [ASKED, THOUGHT]}),
        ("qwen3_5_nothink", {"messages": [ASKED, {**SAID, "content": "<think>Drops.</think>It rains."}]}),
        ("llama3_1", {"messages": [ASKED, {**CALLED, "content": "I look."}, *TURNS[2:]], "tools": [TOOL]}),
        ("chatml", {"messages": [ASKED, SAID], "functions": [LOOK]}),
        ("chatml", {"messages": TURNS, "tools": "look"}),
        ("chatml", {"messages": [ASKED, {**SAID, "mask": True}]}),
        ("chatml", {"messages": [ASKED, SAID], "images": ["a.png"]}),
        ("chatml", {"prompt": "Why?", "completion": "Rain.", "label": False}),
        ("chatml", {"messages": [ASKED, SAID], "label": False}),
        ("chatml", {"conversations": [HUMAN, GPT], "kto_tag": False}),
        ("chatml", {"conversations": [HUMAN, {**GPT, "mask": True}]}),
        ("chatml", {"conversations": [{**HUMAN, "images": ["a.png"]}, GPT]}),
        ("chatml", {"prompt": {"messages": [ASKED, {**SAID, "loss_mask": 0.5}]}}),
        ("qwen3_5_nothink", {"messages": [ASKED, {**CALLED, "content": None, "mask": True}, TOLD, SAID], "tools": [TOOL]}),
        ("qwen3", {"messages": [ASKED, {**SAID, "reasoning": [{"text": "Drops fall."}]}]}),
        ("qwen3", {"messages": [ASKED, {**THOUGHT, "thinking": "Wind."}]}),
        ("qwen3", {"messages": call("{town: Bonn"), "tools": [TOOL]}),
        ("qwen3", {"messages": call([("town", "Bonn")]), "tools": [TOOL]}),
        ("chatml", {"messages": [ASKED, SAID], "system": ["Be kind."]}),
        ("chatml", {"messages": [ASKED, SAID], "system_prompt": {"role": "system", "content": "Be kind."}}),
        ("chatml", {"question": "Why?", "answer": "Rain.", "history": "Hi."}),
        ("chatml", {"messages": [{"role": "system", "content": "Be curt."}, ASKED, SAID], "system": "Be kind."}),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_as_it_is_meant_is_refused(family: str, row: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        learned(row, family)


def test_an_intent_that_the_template_drops_is_refused() -> None:
    tokenizer = tiny_tokenizer("chatml")
    header = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    tokenizer.chat_template = f"{{% for m in messages %}}{NO_SYSTEM}{{% endfor %}}{header}"
    row = {"messages": [ASKED, FORMER, AGAIN, SAID], "intent": "You want to know why."}
    with pytest.raises(BadInput):
        make_rows([user_view(row)], Chat(tokenizer), "user", None)


def test_pairs_and_prompts_show_their_tools_and_system_columns(tmp_path: Path) -> None:
    chat, columns = chat_of("qwen3_5_nothink"), {"system_prompt": "Be kind.", "tools": [TOOL]}
    pair = {"prompt": [ASKED], "chosen": [SAID], "rejected": [FORMER], **columns}
    write_jsonl(tmp_path / "pairs.jsonl", [pair])
    write_jsonl(tmp_path / "prompts.jsonl", [{"question": "Why?", **columns}])
    (made,), _ = make_pairs(load_pairs(tmp_path / "pairs.jsonl"), chat, None)
    (prompt,) = load_rl_rows(tmp_path / "prompts.jsonl")
    for shown in (chat.tokenizer.decode(made["prompt_ids"]), chat.prompt_text(prompt.prompt)):
        assert '"name": "look"' in shown and "Be kind." in shown
    with pytest.raises(BadInput):
        chat_of("chatml").check_prompt(prompt.prompt)
    for number, more in enumerate(({"chosen": [THOUGHT]}, {"context": "It is wet."}, {"history": [["Why?", "Rain."]]})):
        write_jsonl(tmp_path / f"{number}.jsonl", [{**pair, **more}])
        with pytest.raises(DataError):
            list(load_pairs(tmp_path / f"{number}.jsonl"))


def test_what_is_left_out_is_counted_and_stops_above_a_share(capsys: pytest.CaptureFixture[str]) -> None:
    section = DataSection(path="data")
    check_too_long("rows", 5, 5, "train.max_length 8", section)
    assert "5 of 10" in capsys.readouterr().out
    with pytest.raises(DataError, match="max_too_long"):
        check_too_long("rows", 6, 4, "train.max_length 8", section)
    check_too_long("rows", 6, 4, "train.max_length 8", DataSection(path="data", max_too_long=0.9))
    chat = chat_of("qwen3")
    _, counts = make_rows([[ASKED, {**SAID, "content": "Say <|im_start|>."}]], chat, "assistant", None)
    assert (counts.unthinking, counts.spelled) == (1, 1)
    limit = counts.longest
    rows, counts = make_rows([[ASKED, SAID], [ASKED, {**SAID, "content": "Rain. " * 99}]], chat, "assistant", limit)
    assert (len(rows), counts.too_long, counts.conversations) == (1, 1, 2) and counts.longest > limit
    with pytest.raises(DataError, match="train.max_length"):
        make_rows([[ASKED, SAID]], chat, "assistant", 2)


@pytest.mark.parametrize(
    ("row", "unread"),
    [
        ({"messages": [ASKED, SAID], "input": "x", "score": 3, "id": 1}, {"input", "score"}),
        ({"messages": [ASKED, SAID], "conversations": [HUMAN, GPT]}, {"conversations"}),
        ({"messages": [ASKED, SAID], "tools": ["look"]}, {"tools"}),
        ({"messages": TURNS, "tools": [TOOL], "functions": [LOOK]}, {"functions"}),
        ({"conversations": [HUMAN, {**GPT, "thought": "Drops."}]}, {"thought of messages"}),
        ({"prompt": [{**ASKED, "files": ["a.txt"]}], "completion": "It rains."}, {"files of messages"}),
        ({"messages": [ASKED, {**THOUGHT, "id": 3, "lang": None, "weight": 1}], "tools": [TOOL], "system": "Be kind."}, set()),
    ],
)  # fmt: skip
def test_what_is_not_read_is_named(row: dict[str, Any], unread: set[str]) -> None:
    assert unread_columns(row, {}) == unread


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"question": "How many?", "context": "Ann has 3."}, ["How many?\n\nAnn has 3."]),
        ({"prompt": "And now?", "history": [["Why?", "Rain."]], "input": ""}, ["Why?", "Rain.", "And now?"]),
        ({"messages": [ASKED], "context": "for the reward"}, ["Why is it wet?"]),
        ({"question": "What is this?", "image": "a.png"}, None),
        ({"prompt": [{**ASKED, "images": ["a.png"]}]}, None),
        ({"question": "Why?", "system": ["Be kind."]}, None),
    ],
)
def test_a_prompt_is_shown_with_the_columns_beside_it(
    row: dict[str, Any], prompt: list[str] | None, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "prompts.jsonl", [row])
    if prompt is None:
        with pytest.raises(DataError):
            list(load_rl_rows(tmp_path / "prompts.jsonl"))
    else:
        (read,) = load_rl_rows(tmp_path / "prompts.jsonl")
        assert [message["content"] for message in read.prompt] == prompt


@pytest.mark.parametrize(
    ("stage", "limit"), [("sft", "train.max_length"), ("dpo", "train.max_length"), ("grpo", "data.max_prompt_tokens")]
)
def test_a_command_says_what_is_too_long_and_refuses_too_much_of_it(
    stage: str, limit: str, tiny_chatml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(long: int, *options: str) -> str:
        def talk(n: int) -> list[dict[str, str]]:
            return [{**ASKED, "content": f"{n}. Why? " + "It is wet again. " * (40 if n < long else 0)}]

        rows = [
            {"messages": [*talk(n), SAID]} if stage == "sft" else
            {"prompt": talk(n), "chosen": [SAID], "rejected": [FORMER]} if stage == "dpo" else {"prompt": talk(n)}
            for n in range(8)
        ]  # fmt: skip
        write_jsonl(tmp_path / "rows.jsonl", rows)
        words = [str(path), f"--{limit}", "60", "--data.path", str(tmp_path / "rows.jsonl"), *options]
        say_once.cache_clear()
        import_module(f"nextturn.train.{stage}").main(words)
        return capsys.readouterr().out

    train = {"max_steps": 1, "save_steps": 1, "use_cpu": True}
    if stage == "grpo":
        reward = {"weights": dict.fromkeys(("accuracy", "asking", "interactivity", "efficiency"), 0.0)}
        path = grpo_parts.write_recipe(
            tmp_path, tiny_chatml, train=train, probe={"when": "never"}, rollout={"window": 0}, reward=reward
        )
    else:
        path = sft_parts.write_recipe(tmp_path, tiny_chatml, {"path": "rows"}, train, {"when": "never"})

    assert "3 of 8" in command(3, "--dry-run")
    with pytest.raises(DataError, match="max_too_long"):
        command(5)
    assert not (tmp_path / "run").exists()
    out = command(5, "--data.max_too_long", "0.7")
    (line,) = (line for line in out.splitlines() if "5 of 8" in line)
    assert out.index(line) < out.index("step") and "checkpoint-1" in out


def test_the_validation_loss_is_the_mean_over_tokens(tiny_chatml: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "talks.jsonl", [{"messages": [ASKED, SAID]}] * 2)
    others = [{"messages": [ASKED, {**SAID, "content": "Drops fall from clouds. " * times}]} for times in (1, 9, 1)]
    write_jsonl(tmp_path / "others.jsonl", others)
    losses = []
    for size in (1, 2, 3):
        data = {"path": str(tmp_path / "talks.jsonl"), "validation": str(tmp_path / "others.jsonl")}
        keys = {
            "max_steps": 1,
            "save_steps": 1,
            "per_device_eval_batch_size": size,
            "output_dir": str(tmp_path / f"{size}"),
        }
        train(load_sft_recipe(sft_parts.write_recipe(tmp_path, tiny_chatml, data, keys, {"when": "never"})))
        history = read_json(tmp_path / f"{size}" / "checkpoint-1" / "trainer_state.json")["log_history"]
        losses += [row["eval_loss"] for row in history if "eval_loss" in row]
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-5)
