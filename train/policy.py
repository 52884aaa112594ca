"""The model to train: its folder, its weights, and its LoRA adapter."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import ModelError
from nextturn.probe.command.terminal import say_once
from nextturn.probe.models.folders import ModelFolder, merged_folder, resolve
from nextturn.probe.models.weights import adapted_weight, end_turns, load_causal_lm
from nextturn.train.sections import LORA_TARGETS, ModelSection

ADAPTER = "default"
"""PEFT's name of the adapter that is trained. PEFT saves it in the checkpoint's own folder, any other in a subfolder."""
LEAST_SHARE = 0.5
"""Share of the linear weights that the default targets have to reach."""


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


def load_policy(folder: ModelFolder, section: ModelSection, dtype: str | None = None, ends: Iterable[int] = ()) -> Any:
    """Load the causal language model to train. It is on no device yet.

    Args:
        folder: From `policy_folder`. A LoRA checkpoint gives a PeftModel whose adapter is trained further.
        dtype: From `held_in`. Left out, `section.dtype`.
        ends: Tokens that end an assistant's turn. The generation config of checkpoints has them.

    Raises:
        ModelError: Weights are missing, the adapter does not fit its base, or the generation config cannot be saved.
    """
    import torch
    from peft import PeftModel

    model = load_causal_lm(folder.whole, getattr(torch, dtype or section.dtype))
    end_turns(model, ends, folder.whole)
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
            say_once(f"LoRA: this model has no {', '.join(missing)}")
    return LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets, task_type="CAUSAL_LM",
        target_parameters=list(lora.target_parameters) or None,
    )  # fmt: skip


def adapted_share(section: ModelSection, model: Any) -> str:
    """Return the share of the linear weights of a PeftModel that has an adapter, and the names of the others, as text.

    Weights of experts, which are one tensor with three dimensions, are linear weights. Embeddings and the output head are not.

    Raises:
        ModelError: The default targets give less than half of them an adapter, or an embedding that is also the output head
            gets one: a merged model has one matrix, in which the two cannot differ.
    """
    from peft.tuners.lora import LoraLayer
    from torch import nn

    whole = model.get_base_model()
    ends = [whole.get_input_embeddings(), whole.get_output_embeddings()]
    if whole.config.tie_word_embeddings and any(isinstance(end, LoraLayer) for end in ends):
        raise ModelError(
            "model.lora.target_modules: names the embedding or the output head, which are one matrix in this model: a merged "
            "model would be another one; leave both out"
        )
    modules = dict(whole.named_modules())
    adapted = {id(adapted_weight(layer)[1]) for layer in modules.values() if isinstance(layer, LoraLayer)}
    sizes = {True: 0, False: 0}
    bare: dict[str, int] = {}
    for name, weight in whole.named_parameters():
        owner, _, own = name.replace(".base_layer", "").rpartition(".")
        no_linear = modules[owner] in ends or isinstance(modules[owner], nn.Embedding | nn.modules.conv._ConvNd)
        if weight.dim() < 2 or ".lora_" in name or own.endswith("bias") or no_linear:
            continue
        sizes[id(weight) in adapted] += weight.numel()
        if id(weight) not in adapted:
            bare[".".join(f"{owner}.{own}".removesuffix(".weight").split(".")[-1 - (own != "weight") :])] = weight.dim()
    share = sizes[True] / sum(sizes.values())
    said = f"on {share:.0%} of the linear weights" + (f", none on {', '.join(bare)}" if bare else "")
    lora = section.lora
    chosen = lora is None or section.continues_adapter or "target_modules" in lora.model_fields_set
    if share < LEAST_SHARE and not chosen:
        experts = [name for name, dimensions in bare.items() if dimensions == 3]
        way = f"target_parameters: [{', '.join(experts)}]" if experts else "target_modules: all-linear"
        raise ModelError(f"model.lora: the default targets put an adapter {said}; set model.lora.{way}")
    return said
