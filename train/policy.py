"""The model to train: its folder, its weights, and its LoRA adapter."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import ModelError
from nextturn.probe.command.terminal import say
from nextturn.probe.models.folders import ModelFolder, merged_folder, resolve
from nextturn.probe.models.weights import load_causal_lm
from nextturn.train.sections import LORA_TARGETS, ModelSection

ADAPTER = "default"
"""PEFT's name of the adapter that is trained. PEFT saves it in the checkpoint's own folder, any other in a subfolder."""


def policy_folder(section: ModelSection, place: str | None = None) -> ModelFolder:
    """Return the folder that training starts from, in which KL reference, vLLM and probe find the same weights.

    A LoRA checkpoint is merged into a folder of its own, once, unless its adapter is to be trained further.

    Args:
        place: The checkpoint, if `section.name` is a run directory.

    Raises:
        ModelError: There is no model under this name, or no adapter to continue.
    """
    folder = replace(resolve(place or section.name), name=section.name)
    if section.continues_adapter:
        if folder.base is None:
            raise ModelError(f"model.lora.adapter: continue, but {section.name} is no LoRA checkpoint")
        return folder
    return merged_folder(folder)


def zero_in_force(args: Any) -> int:
    """Return the ZeRO stage of this launch, 0 without DeepSpeed. `args` is trl's config."""
    return int(args.deepspeed_plugin.zero_stage) if args.deepspeed_plugin is not None else 0


def held_in(section: ModelSection, zero: int) -> str:
    """Return the dtype in which the weights are stored during training.

    This is `section.dtype`, or float32 if all weights are trained and nothing else keeps a float32 copy of them. A
    bfloat16 has 8 significant bits: adding less than 1/512 of a number does not change it, so at a learning rate of 1e-6
    AdamW's steps vanish in nearly all weights. ZeRO keeps a float32 copy at every stage (`single_partition_of_fp32_groups`
    of DeepSpeed's optimizers), and PEFT makes adapters float32. With float32 weights, autocast still computes in bfloat16
    if `train.bf16` is set.

    Args:
        zero: The ZeRO stage, 0 without DeepSpeed.
    """
    return section.dtype if section.lora is not None or zero else "float32"


def load_policy(folder: ModelFolder, section: ModelSection, dtype: str | None = None) -> Any:
    """Load the causal language model to train. It is on no device yet.

    Args:
        folder: From `policy_folder`. A LoRA checkpoint gives a PeftModel whose adapter is trained further.
        dtype: From `held_in`. Left out, `section.dtype`.

    Raises:
        ModelError: Weights are missing, or the adapter does not fit its base.
    """
    import torch
    from peft import PeftModel

    model = load_causal_lm(folder.whole, getattr(torch, dtype or section.dtype))
    # trl and PEFT find the base by this name. It must be the text-only folder, not the multimodal original.
    model.config.name_or_path = str(folder.whole)
    if folder.base is not None:
        with _adapter_errors(folder.path), warnings.catch_warnings():
            warnings.filterwarnings("error", message="(?s).*missing adapter keys")
            model = PeftModel.from_pretrained(
                model, folder.path, is_trainable=True, autocast_adapter_dtype=_adapter_in_float32()
            )
    return model.train()


def load_adapter(model: Any, checkpoint: Path) -> None:
    """Replace the adapter that is trained with a checkpoint's adapter.

    Call it after the trainer is made: trl's reference is the model as the trainer got it, and must be what the run began
    from.

    Raises:
        ModelError: The adapter does not fit the model.
    """
    with _adapter_errors(checkpoint):
        loaded = model.load_adapter(
            checkpoint, ADAPTER, is_trainable=True, autocast_adapter_dtype=_adapter_in_float32()
        )
        if loaded.missing_keys:
            raise ValueError(f"missing weights: {', '.join(loaded.missing_keys[:3])}")


@contextmanager
def _adapter_errors(adapter: Path) -> Iterator[None]:
    try:
        yield
    except (UserWarning, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{adapter}: its adapter does not fit its base ({reason})") from error


def _adapter_in_float32() -> bool:
    """Return False under ZeRO-3, which gathers small parameters in one buffer of one dtype."""
    from transformers.integrations import is_deepspeed_zero3_enabled

    return not is_deepspeed_zero3_enabled()


def new_adapter(section: ModelSection, model: Any) -> Any:
    """Return PEFT's config of a new adapter, with those target modules that the model has.

    Returns:
        A LoraConfig, or None if all weights are trained or the model has its adapter already.

    Raises:
        ModelError: The model has none of the target modules.
    """
    from peft import LoraConfig

    lora = section.lora
    if lora is None or section.continues_adapter:
        return None
    targets: Any = lora.target_modules
    if targets != "all-linear":  # which PEFT resolves itself
        modules = {name.rpartition(".")[2] for name, _ in model.named_modules()}
        targets = [name for name in lora.target_modules if name in modules]
        if not targets:
            raise ModelError(f"model.lora.target_modules: the model has none of {', '.join(lora.target_modules)}")
        missing = [name for name in lora.target_modules if name not in modules]
        if missing and lora.target_modules != LORA_TARGETS:  # the default names the modules of several architectures
            say(f"LoRA: this model has no {', '.join(missing)}")
    return LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets, task_type="CAUSAL_LM"
    )
