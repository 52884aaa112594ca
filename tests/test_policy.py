"""The policy: a whole model, a LoRA checkpoint merged once or trained on, a new adapter, the copy that is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.errors import ModelError
from probe.models import load_model, resolve
from tests.model_parts import logits, lora_on
from train.recipe import LoraSection, ModelSection
from train.setup import load_policy, lora_config, new_adapter, policy_folder

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


def test_a_lora_checkpoint_can_be_trained_on(adapter: Path) -> None:
    import torch

    section = ModelSection(name=str(adapter), dtype="float32", lora=CONTINUE)
    model = load_policy(policy_folder(section), section)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained and all(".default." in name for name in trained)
    assert new_adapter(section, model) is None
    assert torch.allclose(logits(model.eval()), logits(load_model(resolve(str(adapter)), device="cpu")), atol=1e-5)


def test_there_must_be_an_adapter_to_train_on(tiny_model: Path) -> None:
    with pytest.raises(ModelError, match="continue, but .* is no LoRA checkpoint"):
        policy_folder(ModelSection(name=str(tiny_model), lora=CONTINUE))


def test_lora_on_a_model_with_none_of_the_targets_is_refused(tiny_chatml: Path) -> None:
    model = load_policy(resolve(str(tiny_chatml)), ModelSection(name="m", dtype="float32"))
    assert "in_proj_qkv" not in lora_config(LoraSection(), model).target_modules
    with pytest.raises(ModelError, match="none of in_proj_qkv"):
        lora_config(LoraSection(target_modules=("in_proj_qkv",)), model)


def test_the_rounded_copy_of_a_lora_model_is_the_merged_model(tiny_model: Path) -> None:
    import torch
    from peft import get_peft_model

    from probe.engines.hf import _rounded
    from probe.weights import load_causal_lm

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
