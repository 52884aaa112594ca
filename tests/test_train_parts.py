"""The parts of a training run: rows, trl's field names, the plan, the CPU trainer's loss, the rounded live model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probe.chat import Chat
from probe.errors import DataError, ModelError, RecipeError
from probe.models import load_tokenizer, resolve
from train.recipe import LoraSection, ModelSection, load_sft_recipe, trl_section
from train.rows import IGNORED, as_dataset, make_rows, read_conversations, show_loss

TALK = [
    {"role": "user", "content": "Ann has 3 apples and buys 4. How many?"},
    {"role": "assistant", "content": "3 + 4 = 7."},
    {"role": "user", "content": "Why add?"},
    {"role": "assistant", "content": "Because buying makes more."},
]


def write_rows(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_carry_loss_on_what_the_assistant_says(tiny_chatml: Path) -> None:
    tokenizer = load_tokenizer(resolve(str(tiny_chatml)))
    rows, counts = make_rows([TALK], Chat(tokenizer), "assistant", None)
    assert (counts.conversations, counts.rows, counts.too_long) == (1, 1, 0)
    shown = show_loss(rows[0], tokenizer)
    assert shown.count("⟦") == 2
    assert "⟦3 + 4 = 7.<|im_end|>⟧" in shown
    assert "⟦Because buying makes more.<|im_end|>⟧" in shown
    assert counts.loss_tokens == sum(label != IGNORED for label in rows[0]["labels"])


def test_a_row_over_the_limit_is_left_out_whole_and_counted(tiny_chatml: Path) -> None:
    chat = Chat(load_tokenizer(resolve(str(tiny_chatml))))
    short = [TALK[0], TALK[1]]
    limit = len(make_rows([short], chat, "assistant", None)[0][0]["input_ids"])
    rows, counts = make_rows([short, TALK], chat, "assistant", limit)
    assert (len(rows), counts.too_long, counts.conversations) == (1, 1, 2)
    assert counts.longest > limit
    with pytest.raises(DataError, match=r"no training row is left of 1 conversations: 1 are longer"):
        make_rows([TALK], chat, "assistant", limit)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": []}, "an empty conversation"),
        ({"messages": TALK[:1]}, "ends with the user"),
        ({"messages": [TALK[0], TALK[0]]}, "roles do not alternate"),
        ({"messages": [TALK[0], {"role": "assistant", "content": " "}]}, "is empty"),
        ({"text": "hello"}, "an empty conversation"),
    ],
)
def test_a_row_that_is_no_conversation_is_named_by_line(row: Any, said: str, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "talk.jsonl", {"messages": TALK}, row)
    with pytest.raises(DataError, match=said) as caught:
        list(read_conversations(path))
    assert str(caught.value).startswith(f"{path}:2: ")


def test_an_unfinished_builder_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sft").mkdir()
    write_rows(tmp_path / "sft" / "part-00000.jsonl", {"messages": TALK})
    with pytest.raises(DataError, match="no manifest.json"):
        list(read_conversations(tmp_path))


def test_trl_fields_are_those_of_the_installed_trl() -> None:
    import dataclasses

    from trl import SFTConfig

    ours = set(trl_section("sft_config", "SFTConfig").model_fields)
    assert ours == {field.name for field in dataclasses.fields(SFTConfig) if field.init}


MINIMAL = "model: {name: m}\ndata: {path: d.jsonl}\ntrain: {output_dir: runs/x%s}\n"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (", learing_rate: 1e-5", "train.learing_rate: unknown key; did you mean train.learning_rate?"),
        (", learning_rate: fast", "train.learning_rate: given 'fast' (str), wanted a number"),
        (", bf16: 1", "train.bf16: given 1 (int), wanted true or false"),
        (", assistant_only_loss: true", "not for a recipe (data.loss_on decides"),
        (", packing: true", "to keep documents apart"),
        (", trust_remote_code: true", "custom model code is never run"),
    ],
)
def test_a_wrong_train_section_is_one_line(more: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(MINIMAL % more)
    with pytest.raises(RecipeError) as caught:
        load_sft_recipe(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_data_wants_one_source(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(MINIMAL % "")
    load_sft_recipe(path)
    with pytest.raises(RecipeError, match="give either `path` or `recipe`"):
        load_sft_recipe(path, ["--data.recipe", "recipes/demo_data.yaml"])


def test_lora_on_a_model_with_none_of_the_targets_is_refused(tiny_chatml: Path) -> None:
    from train.setup import load_policy, lora_config

    model = load_policy(resolve(str(tiny_chatml)), ModelSection(name="m", dtype="float32"))
    assert "in_proj_qkv" not in lora_config(LoraSection(), model).target_modules
    with pytest.raises(ModelError, match="none of in_proj_qkv"):
        lora_config(LoraSection(target_modules=("in_proj_qkv",)), model)


def test_a_lock_that_a_killed_start_of_deepspeed_left_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from train.setup import helper_lock

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert helper_lock() is None
    lock = tmp_path / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir()
    lock.touch()
    assert f"{lock} is there" in (helper_lock() or "")


@pytest.fixture
def trainers(tiny_model: Path, tmp_path: Path) -> Any:
    """The same model and rows under the CPU trainer and under trl's own."""
    from trl import SFTConfig, SFTTrainer

    from train.setup import load_policy, trainer_class

    folder = resolve(str(tiny_model))
    tokenizer = load_tokenizer(folder)
    rows, _ = make_rows([TALK] * 4, Chat(tokenizer), "assistant", None)
    args = SFTConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False, max_steps=2,
        per_device_train_batch_size=3, gradient_accumulation_steps=2, dataset_kwargs={"skip_prepare_dataset": True},
        logging_steps=1, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    assert trainer_class(args) is not SFTTrainer
    return [
        kind(
            model=load_policy(folder, ModelSection(name="m", dtype="float32")),
            args=args,
            train_dataset=as_dataset(rows),
            processing_class=tokenizer,
        )
        for kind in (trainer_class(args), SFTTrainer)
    ]


def test_the_cpu_trainer_has_the_loss_and_gradients_of_trl(trainers: Any) -> None:
    for trainer in trainers:
        trainer.train()
    ours, theirs = ([row for row in trainer.state.log_history if "loss" in row] for trainer in trainers)
    assert len(ours) == 2
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


def test_the_rounded_live_model_is_a_copy_that_runs_its_own_weights(trainers: Any) -> None:
    import torch

    from probe.engines.hf import live_model

    trainer = trainers[0]
    trainer.train()
    ids = torch.tensor([[5, 6, 7, 8]])
    with live_model(trainer, "bfloat16") as model:
        assert model.dtype == torch.bfloat16
        assert not model.training
        before = model(input_ids=ids).logits.float()
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.zero_()
        assert torch.equal(model(input_ids=ids).logits.float(), before), "zeroing the live weights changes nothing"
        assert before.abs().sum() > 0
    with live_model(trainer, "auto") as model:
        assert model(input_ids=ids).logits.abs().sum() == 0, "without rounding it is the live model itself"
    assert trainer.model.training


def test_the_rounded_copy_of_a_lora_model_is_the_merged_model(tiny_model: Path) -> None:
    import torch
    from peft import get_peft_model

    from probe.engines.hf import _rounded
    from probe.weights import load_causal_lm
    from train.setup import lora_config

    live = get_peft_model(
        load_causal_lm(tiny_model), lora_config(LoraSection(r=4, alpha=8), load_causal_lm(tiny_model))
    )
    with torch.no_grad():
        for name, parameter in live.named_parameters():
            if "lora_B" in name:  # zero until the first step, and an adapter of zeros changes nothing
                parameter.normal_(std=0.1)
    before = {name: tensor.clone() for name, tensor in live.state_dict().items()}
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        copy = _rounded(live, torch.bfloat16).state_dict()
        exact = _rounded(live, torch.float32)(input_ids=ids).logits
        adapted = live(input_ids=ids).logits
        with live.disable_adapter():
            plain = live(input_ids=ids).logits
        assert all(torch.equal(tensor, before[name]) for name, tensor in live.state_dict().items())
        merged = live.merge_and_unload().state_dict()
    assert copy.keys() == merged.keys()
    for name, tensor in merged.items():
        assert torch.equal(copy[name], tensor.to(torch.bfloat16)), "what `probe run` measures of the saved checkpoint"
    torch.testing.assert_close(exact, adapted, atol=1e-4, rtol=1e-4)
    assert (adapted - plain).abs().max() > 0.01, "the adapter does something"
