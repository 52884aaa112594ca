"""Loads the model that is trained: the text-only folder, whole or with LoRA, as the launcher wants it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from probe.errors import ModelError
from probe.files import sha256_text
from probe.models import ModelFolder, fingerprint, resolve
from probe.models.conversions import made_once
from probe.models.loading import load_any_tokenizer, load_causal_lm, merge_adapter
from probe.models.weights import count_parameters, tokenizer_sha256
from probe.processes import say
from train.recipe import LoraSection, ModelSection


def policy_folder(section: ModelSection) -> ModelFolder:
    """The folder that training starts from, where everything else finds the same weights: KL reference, vLLM, probe.

    A LoRA checkpoint is merged into a folder of its own, once, unless its adapter is to be trained on.

    Raises:
        ModelError: nothing is there under this name, or no adapter where one is to be continued.
    """
    folder = resolve(section.name)
    if section.lora is not None and section.lora.adapter == "continue":
        if folder.base is None:
            raise ModelError(f"model.lora.adapter: continue, but {section.name} is no LoRA checkpoint")
        return folder
    return folder if folder.base is None else merged_folder(folder)


def merged_folder(folder: ModelFolder) -> ModelFolder:
    """A LoRA checkpoint as a whole model in the cache; it keeps the name that the user gave."""
    base = folder.base
    if base is None:
        raise ModelError(f"{folder.name}: no LoRA checkpoint, so there is nothing to merge")

    def make(made: Path) -> None:
        merge_adapter(load_causal_lm(base), folder.path).save_pretrained(made)
        load_any_tokenizer(folder.tokenizer_path).save_pretrained(made)

    source = sha256_text(fingerprint(folder) + tokenizer_sha256(folder.tokenizer_path))
    return ModelFolder(
        folder.name, made_once(f"merged-{source[:16]}", source, int(count_parameters(base)["bytes"]), make)
    )


def load_policy(folder: ModelFolder, section: ModelSection) -> Any:
    """The causal language model to train, in `section.dtype`, on no device yet.

    Args:
        folder: from `policy_folder`; a LoRA checkpoint gives a PeftModel whose adapter is trained on.
    """
    import torch
    from transformers import AutoModelForCausalLM

    whole = folder.base or folder.path
    model = AutoModelForCausalLM.from_pretrained(
        whole, dtype=getattr(torch, section.dtype), use_safetensors=True, trust_remote_code=False
    )
    # trl and PEFT look the base up by this name; it must be the text-only folder, not the multimodal original.
    model.config._name_or_path = str(whole)
    return (model if folder.base is None else _with_adapter(model, folder.path)).train()


def _with_adapter(model: Any, adapter: Path) -> Any:
    from peft import PeftModel
    from transformers.integrations import is_deepspeed_zero3_enabled

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="(?s).*missing adapter keys")
        try:
            # ZeRO-3 gathers small parameters in one buffer of one type, so that none may stay in float32.
            return PeftModel.from_pretrained(
                model, adapter, is_trainable=True, autocast_adapter_dtype=not is_deepspeed_zero3_enabled()
            )
        except (UserWarning, ValueError, RuntimeError) as error:
            raise ModelError(
                f"{adapter}: its adapter does not fit its base ({' '.join(str(error).split())})"
            ) from error


def new_adapter(section: ModelSection, model: Any) -> Any:
    """PEFT's config of the adapter that trl is to put on the model; None where it puts none."""
    if section.lora is None or section.lora.adapter == "continue":
        return None
    return lora_config(section.lora, model)


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
