"""The parts of a training run: rows, what a launch refuses, the CPU trainer's loss, dtypes, the model card, what is begun anew."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from nextturn.probe.command.errors import BadInput, DataError, SettingsChanged
from nextturn.probe.command.files import read_json, write_json
from nextturn.probe.command.recipe import recipe_dict
from nextturn.probe.models.folders import load_tokenizer, resolve
from nextturn.probe.text.chat import Chat
from nextturn.train.encoding import as_dataset, make_rows, show_loss
from nextturn.train.policy import load_policy
from nextturn.train.sections import LoraSection, ModelSection, load_sft_recipe
from nextturn.train.setup import check_devices
from nextturn.train.sft import train as train_sft
from nextturn.train.training import Run
from support.commands import ROOT
from support.sft_parts import write_data, write_recipe

CONVERSATION = [
    {"role": "user", "content": "Ann has 3 apples and buys 4. How many?"},
    {"role": "assistant", "content": "3 + 4 = 7."},
    {"role": "user", "content": "Why add?"},
    {"role": "assistant", "content": "Because 3 + 4 ≈ 7."},  # "≈" is several tokens
]


def test_talk_learns_the_turns_around_a_solution_and_a_single_answer_whole(tiny_chatml: Path) -> None:
    tokenizer = load_tokenizer(resolve(str(tiny_chatml)))
    turns = ["How many?", "Which day?", "Friday.", r"It is \boxed{5}.", "Why?", "Since 2 + 3 = 5."]
    talk = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(turns)]
    slip = [*talk[:2], {"role": "user", "content": "Friday."}, {**talk[3], "loss": False}, *talk[4:]]
    rows, _ = make_rows([talk, slip, [talk[0], talk[3]]], Chat(tokenizer), "talk", None)
    around = ["Which day?<|im_end|>", "Since 2 + 3 = 5.<|im_end|>"]
    learned = [re.findall("⟦(.*?)⟧", show_loss(row, tokenizer)) for row in rows]
    assert learned == [around, around, [r"It is \boxed{5}.<|im_end|>"]]


def test_a_launch_on_too_few_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    for gpus in (4, 0):
        with pytest.raises(BadInput, match="8 processes"):
            check_devices({}, on_gpu=gpus > 0, for_cpus=False, gpus=gpus)
    check_devices({}, on_gpu=True, for_cpus=False, gpus=8)
    check_devices({}, on_gpu=False, for_cpus=True, gpus=0)


@pytest.mark.parametrize(
    ("lora", "source", "expected"),
    [
        (None, {"kind": "math"}, {"library_name": "transformers", "datasets": ["nlile/hendrycks-MATH-benchmark"]}),
        (LoraSection(), {"kind": "math", "path": "mine.jsonl"}, {"library_name": "peft", "datasets": None}),
    ],
)
def test_a_model_card_names_base_license_and_data_where_they_are_known(
    lora: LoraSection | None, source: dict[str, str], expected: dict[str, Any], tmp_path: Path
) -> None:
    """The second stage of a run that began from a model on the hub."""
    checkpoint = tmp_path / "first" / "checkpoint-2"
    checkpoint.mkdir(parents=True)
    (tmp_path / "first" / "README.md").write_text("---\nbase_model: org/base\nlicense: mit\ntags: [nextturn]\n---\n")
    (tmp_path / "settings.json").write_text(json.dumps({"source": source}))
    stand_in = SimpleNamespace(
        recipe=SimpleNamespace(model=ModelSection(name=str(checkpoint), lora=lora)), data=tmp_path
    )
    card = vars(Run._metadata(stand_in))  # type: ignore[arg-type]
    assert card.items() >= {"base_model": "org/base", "license": "mit", **expected}.items()
    (tmp_path / "first" / "README.md").write_text("---\n[\n---\n")
    assert Run._metadata(stand_in).base_model is None  # type: ignore[arg-type]
    stand_in.recipe.model = ModelSection(name="org/base")
    assert Run._metadata(stand_in).base_model == "org/base"  # type: ignore[arg-type]


def test_the_cpu_trainer_has_the_loss_and_gradients_of_trl(tiny_model: Path, tmp_path: Path) -> None:
    from trl import SFTConfig, SFTTrainer

    from nextturn.train.overrides import ConversationTrainer

    folder = resolve(str(tiny_model))
    tokenizer = load_tokenizer(folder)
    rows, _ = make_rows([CONVERSATION] * 4, Chat(tokenizer), "assistant", None)
    args = SFTConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False, max_steps=2,
        per_device_train_batch_size=3, gradient_accumulation_steps=2, dataset_kwargs={"skip_prepare_dataset": True},
        logging_steps=1, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    given = {"args": args, "train_dataset": as_dataset(rows), "processing_class": tokenizer}
    section = ModelSection(name="m", dtype="float32")
    trainers: list[Any] = [
        kind(model=load_policy(folder, section), **given) for kind in (ConversationTrainer, SFTTrainer)
    ]
    for trainer in trainers:
        trainer.train()
    ours, theirs = ([row for row in trainer.state.log_history if "loss" in row] for trainer in trainers)
    assert len(ours) == 2
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


@pytest.mark.parametrize("dtype", ["", "bf16: true, "], ids=["by default", "where the recipe says bf16"])
@pytest.mark.parametrize("emulated", [True, False])
def test_a_cpu_without_bfloat16_instructions_trains_and_is_probed_in_float32(
    emulated: bool, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Emulated, bfloat16 made the demo five times as long."""
    from trl import SFTConfig

    from nextturn.probe.command.sections import ProbeSection, SetSection
    from nextturn.probe.models import folders as models
    from nextturn.train import probing, setup

    monkeypatch.setattr(setup, "emulates_bfloat16", lambda: emulated)
    monkeypatch.setattr(models, "emulates_bfloat16", lambda: emulated)
    models.say_once.cache_clear()
    text = f"model: {{name: m}}\ndata: {{path: d}}\ntrain: {{output_dir: {tmp_path}, {dtype}use_cpu: true}}\n"
    (tmp_path / "recipe.yaml").write_text(f"{text}tracking: {{to: none}}\n")
    args = setup.training_arguments(load_sft_recipe(tmp_path / "recipe.yaml"), SFTConfig)
    added: list[Any] = []
    trainer = SimpleNamespace(args=args, is_deepspeed_enabled=False, add_callback=added.append)
    section = ProbeSection(sets={"gsm8k": SetSection()}, dtype="bfloat16")
    probing.probe_checkpoints(trainer, section, None, None, [], "float32")  # type: ignore[arg-type]
    assert args.bf16 is not emulated
    assert setup.dtype_here("bfloat16", args) == ("float32" if emulated else "bfloat16")
    assert (added[0].dtype, added[0].probe.dtype) == (("float32", "float32") if emulated else ("bfloat16", "bfloat16"))
    output = capsys.readouterr().out
    assert ("train.bf16" in output) is (emulated and "bf16" in dtype) and ("probe.dtype" in output) is emulated


def test_a_run_that_ended_before_its_first_checkpoint_begins_anew_with_other_settings(
    tiny_chatml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a checkpoint, or finished, other settings are refused: they would mix."""
    given = {"max_steps": 1, "deepspeed": str(ROOT / "recipes" / "deepspeed" / "zero2.json")}
    path = write_recipe(tmp_path, tiny_chatml, {"path": str(write_data(tmp_path))}, given, {"when": "never"})
    run = tmp_path / "run"
    run.mkdir()
    begun = recipe_dict(load_sft_recipe(path))
    write_json(run / "recipe.json", begun | {"train": begun["train"] | {"learning_rate": 5.0}})
    train_sft(load_sft_recipe(path))
    assert "one process runs without DeepSpeed" in capsys.readouterr().out
    assert read_json(run / "recipe.json")["train"]["learning_rate"] == 1e-3 and (run / "checkpoint-1").is_dir()
    train_sft(load_sft_recipe(path, ["--train.ddp_timeout", "7200", "--train.dataloader_num_workers", "1"]))
    assert "finished at step 1" in capsys.readouterr().out, "what is computed stays as it was"
    with pytest.raises(SettingsChanged, match="train.learning_rate"):
        train_sft(load_sft_recipe(path, ["--train.learning_rate", "0.5"]))


def test_sets_that_nobody_can_read_end_a_run_before_its_data_are_built(
    tiny_chatml: Path, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build may take hours. The hub is out of reach here."""
    monkeypatch.setattr("nextturn.train.encoding.data_path", Mock(side_effect=AssertionError("it is built")))
    probe = {"sets": {"gpqa_diamond": {}}, "when": "inline"}
    recipe = write_recipe(tmp_path, tiny_chatml, {"recipe": str(tmp_path / "data.yaml")}, probe=probe)
    with pytest.raises(DataError, match="none of the sets"):
        train_sft(load_sft_recipe(recipe))
