"""The policy: a whole model, a LoRA checkpoint merged once or trained on, a new adapter, the copy that is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from nextturn.probe.command.errors import ModelError
from nextturn.probe.engines.hf import _rounded
from nextturn.probe.models.folders import load_model, load_tokenizer, resolve
from nextturn.probe.models.weights import load_causal_lm
from nextturn.train.encoding import as_dataset
from nextturn.train.policy import held_in, load_adapter, load_policy, new_adapter, policy_folder, zero_in_force
from nextturn.train.sections import LoraSection, ModelSection
from support.model_parts import logits, lora_on

CONTINUE = LoraSection(adapter="continue")


@pytest.fixture
def adapter(tiny_model: Path, tmp_path: Path, own_cache: Path) -> Path:
    return lora_on(tiny_model, tmp_path / "lora")


def test_a_lora_checkpoint_is_merged_once_and_found_there_by_everything(adapter: Path, own_cache: Path) -> None:
    import torch

    section = ModelSection(name=str(adapter), dtype="float32", lora=LoraSection(r=2))
    folder = policy_folder(section)
    assert folder.base is None and folder.name == str(adapter)
    assert folder == policy_folder(section)
    assert len(list(own_cache.glob("merged-*"))) == 1
    model = load_policy(folder, section)
    assert torch.allclose(logits(model.eval()), logits(load_model(resolve(str(adapter)), device="cpu")), atol=1e-5)
    assert model.config._name_or_path == str(folder.path), "where trl loads the KL reference and vLLM its weights"

    from peft import get_peft_model

    fresh = get_peft_model(model, new_adapter(section, model))
    assert fresh.peft_config["default"].base_model_name_or_path == str(folder.path), "its checkpoints find their base"


@pytest.mark.parametrize("lora", [False, True])
def test_small_steps_move_each_weight_as_far_as_adam_goes(lora: bool, tiny_chatml: Path, tmp_path: Path) -> None:
    """A gradient that stays the same moves a weight by the rate at every step (Adam's mean over its root mean square is 1),
    so by 5 x 1e-6. In bfloat16 weights of a usual size stay where they are. trl's own trainer, as on a GPU."""
    from trl import SFTConfig, SFTTrainer

    rate, steps = 1e-6, 5
    section = ModelSection(name=str(tiny_chatml), dtype="bfloat16", lora=LoraSection(r=2) if lora else None)
    args = SFTConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=True, report_to=[], gradient_checkpointing=False, max_steps=steps,
        per_device_train_batch_size=1, learning_rate=rate, lr_scheduler_type="constant", save_strategy="no",
        disable_tqdm=True, logging_strategy="no", dataset_kwargs={"skip_prepare_dataset": True},
    )  # fmt: skip
    folder, ids = resolve(str(tiny_chatml)), list(range(40, 52))
    model = load_policy(folder, section, held_in(section, zero_in_force(args)))
    trainer = SFTTrainer(
        model=model, args=args, train_dataset=as_dataset([{"input_ids": ids, "labels": ids}]),
        processing_class=load_tokenizer(folder), peft_config=new_adapter(section, model),
    )  # fmt: skip
    trained = {name: weight for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    before = {name: weight.detach().clone() for name, weight in trained.items()}
    trainer.train()
    for name, weight in trained.items():
        if "lora_A" not in name:  # its gradient grows with B, which begins at zero
            moved = (weight.detach() - before[name]).abs().median() / (steps * rate)
            assert float(moved) == pytest.approx(1, abs=0.1), name


def test_zero_and_adapters_need_no_float32_weights() -> None:
    whole, adapter = ModelSection(name="m"), ModelSection(name="m", lora=LoraSection())
    assert [held_in(whole, zero) for zero in (0, 1, 2, 3)] == ["float32", "bfloat16", "bfloat16", "bfloat16"]
    assert held_in(adapter, 0) == "bfloat16"


def test_an_adapter_that_does_not_fit_the_model_is_not_taken(adapter: Path, tiny_model: Path, tmp_path: Path) -> None:
    section = ModelSection(name=str(adapter), dtype="float32", lora=CONTINUE)
    model = load_policy(policy_folder(section), section, "float32")
    weights = load_file(adapter / "adapter_model.safetensors")
    for wrong in ({name: tensor[:1] for name, tensor in weights.items()}, dict(list(weights.items())[1:])):
        checkpoint = lora_on(tiny_model, tmp_path / "checkpoint-2")
        save_file(wrong, checkpoint / "adapter_model.safetensors")
        with pytest.raises(ModelError, match="checkpoint-2:"):
            load_adapter(model, checkpoint)


def test_there_must_be_an_adapter_to_train_on(tiny_model: Path) -> None:
    with pytest.raises(ModelError, match="continue"):
        policy_folder(ModelSection(name=str(tiny_model), lora=CONTINUE))


def test_lora_adapts_what_the_model_has_of_its_targets(tiny_chatml: Path, tiny_model: Path) -> None:
    section = ModelSection(name="m", dtype="float32", lora=LoraSection())
    model, linear = (load_policy(resolve(str(folder)), section) for folder in (tiny_chatml, tiny_model))
    of_linear_attention = {"in_proj_qkv", "in_proj_z", "out_proj"}
    assert of_linear_attention <= set(new_adapter(section, linear).target_modules)
    assert not of_linear_attention & set(new_adapter(section, model).target_modules)
    with pytest.raises(ModelError, match="in_proj_qkv"):
        new_adapter(ModelSection(name="m", lora=LoraSection(target_modules=("in_proj_qkv",))), model)


def test_the_rounded_copy_of_a_lora_model_is_the_merged_model(tiny_model: Path) -> None:
    import torch
    from peft import get_peft_model

    base = load_causal_lm(tiny_model)
    live = get_peft_model(base, new_adapter(ModelSection(name="m", lora=LoraSection(r=4, alpha=8)), base))
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


def test_the_rounded_copy_lies_whole_on_the_device_of_the_live_model(tiny_model: Path) -> None:
    """On a GPU, buffers that stayed on the CPU ended the first probe of a run that trains all weights in float32. The device
    here is "meta", which every machine has."""
    import torch

    copy = _rounded(load_causal_lm(tiny_model).to("meta"), torch.bfloat16)
    devices = {str(tensor.device) for tensor in (*copy.parameters(), *copy.buffers())}
    assert devices == {"meta"}
    assert list(copy.buffers()), "rotary frequencies are buffers"
