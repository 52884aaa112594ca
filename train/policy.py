"""Loads the model that is trained: the text-only folder, whole or with LoRA, as the launcher wants it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from probe.errors import BadInput, ModelError
from probe.models import ModelFolder
from train.recipe import LoraSection, ModelSection, SftRecipe
from train.tracking import report_to


def processes() -> int:
    """How many training processes were launched."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launcher_deepspeed() -> bool:
    """Whether `accelerate launch --config_file` has set DeepSpeed up already."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def training_arguments(recipe: SftRecipe, config_class: type) -> Any:
    """trl's config from the recipe's `train:` section, fitted to this launch; says what it changed.

    It has to exist before the model is loaded: with ZeRO-3 it makes transformers load the weights in parts.
    """
    import torch

    given = recipe.train.model_dump(exclude_unset=True)  # type: ignore[attr-defined]
    on_gpu = torch.cuda.is_available() and not given.get("use_cpu")
    deepspeed = given.pop("deepspeed", None)
    if deepspeed is not None:
        refusal = _deepspeed_refusal(on_gpu)
        if refusal is None:
            given["deepspeed"] = _existing(deepspeed)
        else:
            _say(f"train.deepspeed {deepspeed}: {refusal}")
    if not on_gpu:
        given["use_cpu"] = True
    return config_class(**given, dataset_kwargs={"skip_prepare_dataset": True}, report_to=report_to(recipe.tracking))


def _deepspeed_refusal(on_gpu: bool) -> str | None:
    """Why the recipe's DeepSpeed file does not take effect in this launch, or None."""
    if launcher_deepspeed():
        return "not used, the accelerate config in force brings its own"
    if processes() == 1:
        return "not used, one process runs without DeepSpeed"
    if not on_gpu:
        return "not used, on CPUs ZeRO comes from `accelerate launch --config_file recipes/accelerate/cpu2_zero2.yaml`"
    return None


def _existing(path: Any) -> Any:
    if isinstance(path, str) and not Path(path).is_file():
        raise BadInput(f"train.deepspeed: {path}: no such file; it is looked up from where the command runs")
    return path


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
        _say(f"LoRA: this model has no {', '.join(left_out)}")
    return LoraConfig(
        r=section.r,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )


def _say(line: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(line)
