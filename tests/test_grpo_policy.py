"""Where training starts from: a whole model, a LoRA checkpoint merged once, or its own adapter trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.errors import ModelError
from probe.models import load_model, resolve
from tests.model_parts import logits, lora_on
from train.recipe import LoraSection, ModelSection
from train.setup import load_policy, new_adapter, policy_folder

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
