"""Loads the model that is trained: the text-only folder, whole or with LoRA, as the launcher wants it."""

from __future__ import annotations

from typing import Any

from probe.errors import ModelError
from probe.models import ModelFolder
from probe.processes import say
from train.recipe import LoraSection, ModelSection


def load_policy(folder: ModelFolder, section: ModelSection) -> Any:
    """The causal language model to train, in `section.dtype`, on no device yet. A LoRA checkpoint is merged."""
    import torch
    from transformers import AutoModelForCausalLM

    if folder.base is not None:
        from probe.models import load_model

        return load_model(folder, section.dtype, device="cpu").train()
    model = AutoModelForCausalLM.from_pretrained(
        folder.path, dtype=getattr(torch, section.dtype), use_safetensors=True, trust_remote_code=False
    )
    # trl and PEFT look the base up by this name; it must be the text-only folder, not the multimodal original.
    model.config._name_or_path = str(folder.path)
    return model.train()


def lora_config(section: LoraSection, model: Any) -> Any:
    """PEFT's config with the target modules that `model` has.

    Raises:
        ModelError: the model has none of them.
    """
    from peft import LoraConfig

    there = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    targets = [name for name in section.target_modules if name in there]
    if not targets:
        raise ModelError(f"model.lora.target_modules: the model has none of {', '.join(section.target_modules)}")
    left_out = [name for name in section.target_modules if name not in there]
    if left_out:
        say(f"LoRA: this model has no {', '.join(left_out)}")
    return LoraConfig(
        r=section.r,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
