"""Turns the name of a model into a local folder that training, vLLM and the probe can all load, and loads it.

A name is a local folder (a whole model, or a LoRA adapter on its base), a hub id, or `smollm2-135m`, the model that comes
as a package (probe/embedded.py). A multimodal Qwen3.5 is converted once to its text-only folder (probe/conversions.py).
Custom model code is never run, and weights are read from safetensors only.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextturn.probe.checkpoints import newest_complete, none_complete
from nextturn.probe.conversions import (
    cache_root,
    is_complete,
    is_multimodal,
    made_once,
    made_while_used,
    text_only_folder,
)
from nextturn.probe.embedded import EMBEDDED_NAME, embedded_folder
from nextturn.probe.errors import ModelError, TemplateError
from nextturn.probe.files import sha256_text
from nextturn.probe.hub import hub_folder
from nextturn.probe.terminal import say
from nextturn.probe.weights import (
    ADAPTER_CONFIG,
    CONFIG,
    count_parameters,
    fingerprint_of,
    load_any_tokenizer,
    load_causal_lm,
    merge_adapter,
    read_config,
    refuse_quantised,
    shape_of,
    tokenizer_sha256,
    weight_files,
)

DTYPES = ("auto", "float32", "bfloat16", "float16")
# Tokens that models keep for filling batches, tried in this order where a tokenizer names no pad token.
PAD_TOKENS = ("<|finetune_right_pad_id|>", "<|endoftext|>", "<pad>", "<|end_of_text|>", "<unk>")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class ModelFolder:
    """A model on this machine.

    Attributes:
        name: as the user gave it.
        path: folder with config.json, weights and tokenizer, or a LoRA adapter folder.
        base: the base model's folder where `path` is a LoRA adapter folder, else None.
    """

    name: str
    path: Path
    base: Path | None = None

    @property
    def tokenizer_path(self) -> Path:
        """The folder to load the tokenizer from: an adapter's own where it was saved with one, else its base's."""
        own = (self.path / "tokenizer_config.json").is_file() or (self.path / "tokenizer.json").is_file()
        return self.path if own or self.base is None else self.base


def resolve(name: str) -> ModelFolder:
    """Return the local folder of a model: a local folder first, then `smollm2-135m`, then a hub id. The folder of a
    training run stands for its newest complete checkpoint.

    Imports torch only where a model has to be converted first, which happens once.

    Raises:
        ModelError: nothing is there under this name, or what is there is no model; the message says what to do.
    """
    local = Path(name).expanduser()
    if local.is_dir():
        return _local(name, local)
    if name == EMBEDDED_NAME:
        return ModelFolder(name, embedded_folder())
    if local.exists():
        raise ModelError(f"{name}: a file, wanted a model folder with {CONFIG} or {ADAPTER_CONFIG}")
    if _HUB_ID.fullmatch(name):
        return _local(name, hub_folder(name))
    raise ModelError(f"{name}: no such model folder; wanted a folder, a hub id such as org/model, or {EMBEDDED_NAME}")


def _local(name: str, folder: Path) -> ModelFolder:
    folder = folder.absolute()
    if (folder / ADAPTER_CONFIG).is_file():
        weight_files(folder)
        return ModelFolder(name, folder, _base_of(name, folder))
    if not (folder / CONFIG).is_file():
        checkpoint, skipped = newest_complete(folder)
        if checkpoint is not None:
            return _local(name, checkpoint)
        wanted = f"wanted {CONFIG} or {ADAPTER_CONFIG} in it; {none_complete(skipped)}"
        raise ModelError(f"{name}: this folder holds no model, {wanted}")
    weight_files(folder)
    if is_multimodal(folder):
        return ModelFolder(name, text_only_folder(folder))
    return ModelFolder(name, folder)


def _base_of(name: str, adapter: Path) -> Path:
    base = read_config(adapter, ADAPTER_CONFIG).get("base_model_name_or_path")
    advice = f"set base_model_name_or_path in {adapter / ADAPTER_CONFIG} to the base model's folder"
    if not base:
        raise ModelError(f"{name}: a LoRA adapter that does not name its base; {advice}")
    # A path is taken from where the command runs, then from the adapter's own folder.
    folder = next((place for place in (Path(base).expanduser(), adapter / base) if place.is_dir()), None)
    if folder is not None and (folder / ADAPTER_CONFIG).is_file():
        raise ModelError(f"{name}: a LoRA adapter on another adapter, {base}, wanted one on a whole model; {advice}")
    try:
        return resolve(str(folder) if folder else base).path
    except ModelError as error:
        raise ModelError(f"{name}: a LoRA adapter without its base ({error}); {advice}") from None


def tokenizer_folder(name: str) -> ModelFolder:
    """A folder with at least the model's tokenizer, for a model whose weights a server holds.

    Raises:
        ModelError: nothing is there under this name.
    """
    local = Path(name).expanduser()
    if local.is_dir():
        return ModelFolder(name, local.absolute())
    if not local.exists() and name != EMBEDDED_NAME and _HUB_ID.fullmatch(name):
        return ModelFolder(name, hub_folder(name, weights=False))
    return resolve(name)


def load_tokenizer(folder: ModelFolder) -> Any:
    """The tokenizer with padding on the left, a pad token and a chat template.

    Generation continues at the right end of every row, hence left padding. Where the tokenizer names no pad
    token, one that its vocabulary holds for the purpose is taken (PAD_TOKENS), else the end token; none is
    added, so that the embedding keeps its size. Padding is always masked, so the choice changes no result.

    Raises:
        TemplateError: the tokenizer has no chat template, or several and none is called "default".
    """
    tokenizer = load_any_tokenizer(folder.tokenizer_path)
    tokenizer.padding_side = "left"
    if not tokenizer.chat_template:
        raise TemplateError(
            f"{folder.name}: its tokenizer has no chat template; wanted a chat model, or a chat_template.jinja in "
            f"{folder.tokenizer_path}"
        )
    if isinstance(tokenizer.chat_template, dict):  # Hermes and Command-R have another one for tools
        if "default" not in tokenizer.chat_template:
            names = ", ".join(sorted(tokenizer.chat_template))
            raise TemplateError(
                f'{folder.name}: none of its chat templates ({names}) is called "default"; wanted one that is, or a '
                f"chat_template.jinja in {folder.tokenizer_path}"
            )
        tokenizer.chat_template = tokenizer.get_chat_template()
    if tokenizer.pad_token is None:
        vocabulary = tokenizer.get_vocab()
        tokenizer.pad_token = next((token for token in PAD_TOKENS if token in vocabulary), tokenizer.eos_token)
    if tokenizer.pad_token is None:
        raise ModelError(f"{folder.name}: its tokenizer names neither a pad token nor an end token")
    return tokenizer


def load_model(folder: ModelFolder, dtype: str = "auto", device: str | None = None) -> Any:
    """The causal language model in evaluation mode, this process's own; a LoRA adapter is merged into its base.

    Args:
        folder: from `resolve`.
        dtype: "auto" keeps the type of the checkpoint.
        device: a torch device; None takes this process's GPU (LOCAL_RANK) where there is one, else the CPU.
    """
    import torch

    if dtype not in DTYPES:
        raise ModelError(f"{folder.name}: dtype {dtype!r}, wanted one of {', '.join(DTYPES)}")
    model = _load(folder, dtype if dtype == "auto" else getattr(torch, dtype))
    return model.to(device or own_device()).eval()


def _load(folder: ModelFolder, dtype: Any, scale: float = 1.0) -> Any:
    model = load_causal_lm(folder.base or folder.path, dtype)
    return model if folder.base is None else merge_adapter(model, folder.path, scale)


def emulates_bfloat16() -> bool:
    """Whether this CPU has no instructions for bfloat16: on one with AVX2 alone products took 8 times as long as in float32."""
    import torch

    # torch tells of x86 alone; others are taken at the recipe's word.
    return platform.machine() in ("x86_64", "AMD64") and not (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def note_emulation(folder: ModelFolder, dtype: str) -> None:
    """Says so where a model will run on this CPU in a type that it has no instructions for."""
    dtype = checkpoint_dtype(folder) if dtype == "auto" else dtype
    if dtype == "bfloat16" and emulates_bfloat16():
        say(
            f"note: {folder.name} runs in bfloat16, for which this CPU has no instructions; `dtype: float32` in the recipe's "
            "section of the model (--probe.dtype float32) is several times faster, with the same weights"
        )


def own_device() -> str:
    import torch

    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"


def merged_folder(folder: ModelFolder, dtype: str = "auto") -> ModelFolder:
    """Return a LoRA checkpoint as a whole model in the cache; any other folder as it is.

    Training starts from it. It is made on the first call and stays, because the adapters trained on it name it as their
    base. The key is what is merged and the type that it is merged in.

    Args:
        dtype: the type of the merged weights; "auto" is the checkpoint's own.
    """
    if folder.base is None:
        return folder
    source, needed, make = _merging(folder, dtype)
    return ModelFolder(folder.name, made_once(f"merged-{source[:16]}", source, needed, make))


@contextmanager
def served_folder(folder: ModelFolder, dtype: str = "auto") -> Iterator[ModelFolder]:
    """Give a LoRA checkpoint as a whole model while vLLM loads it; any other folder as it is.

    vLLM leaves out adapter weights that it cannot place, without an error, so it never gets the adapter itself. The merged
    folder is removed at the end, unless another process uses it or `merged_folder` made it.

    Args:
        dtype: as of `merged_folder`.
    """
    if folder.base is None:
        yield folder
        return
    source, needed, make = _merging(folder, dtype)
    if is_complete(cache_root() / f"merged-{source[:16]}", source):
        yield merged_folder(folder, dtype)
        return
    with made_while_used(f"served-{source[:16]}", source, needed, make) as made:
        yield ModelFolder(folder.name, made)


def _merging(folder: ModelFolder, dtype: str) -> tuple[str, int, Callable[[Path], None]]:
    """Return the sha256 of what is merged, the bytes that it needs, and what writes it into a folder."""
    dtype = checkpoint_dtype(folder) if dtype == "auto" else dtype
    source = sha256_text(f"{fingerprint(folder)} {tokenizer_sha256(folder.tokenizer_path)} {dtype}")
    return source, whole_bytes(folder, dtype), lambda made: write_whole(folder, made, dtype)


def write_whole(folder: ModelFolder, out: Path, dtype: str, scale: float = 1.0) -> None:
    """Write a model as a folder that transformers and vLLM load: weights, configurations, tokenizer and chat template.

    A LoRA adapter is merged into its base in float32, and the sums are rounded once.

    Args:
        dtype: of the written weights, such as "bfloat16".
        scale: factor of the adapter's update.

    Raises:
        ModelError: the weights are quantised.
    """
    import torch

    refuse_quantised(folder.base or folder.path, folder.name)
    model = _load(folder, torch.float32, scale).to(getattr(torch, dtype))
    model.save_pretrained(out)
    load_any_tokenizer(folder.tokenizer_path).save_pretrained(out)


def whole_bytes(folder: ModelFolder, dtype: str = "auto") -> int:
    """What `write_whole` needs of the disk for the weights."""
    dtype = checkpoint_dtype(folder) if dtype == "auto" else dtype
    return int(count_parameters(folder.base or folder.path)["total"] * (2 if dtype in ("bfloat16", "float16") else 4))


def checkpoint_dtype(folder: ModelFolder) -> str:
    """The type in which transformers would load the folder: its config's, else that of most of its weights."""
    whole = folder.base or folder.path
    config = read_config(whole)
    text = config.get("text_config") or {}
    for named in (config.get("dtype"), config.get("torch_dtype"), text.get("dtype"), text.get("torch_dtype")):
        if named in DTYPES[1:]:
            return str(named)
    by_dtype = count_parameters(whole)["by_dtype"]
    return {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}.get(max(by_dtype, key=by_dtype.__getitem__), "auto")


def fingerprint(folder: ModelFolder) -> str:
    """sha256 of what the model is: weights and configuration, its base's too; independent of where they lie."""
    return fingerprint_of([folder.path] if folder.base is None else [folder.base, folder.path])


def parameter_count(folder: ModelFolder) -> dict[str, Any]:
    """Sizes read from headers and configuration without loading the model, for estimates of memory.

    Returns:
        "total" parameters of the merged model, "by_dtype" {safetensors type: parameters}, "bytes" on disk,
        "adapter" parameters of a LoRA (0 without one), and the shape: "layers", "full_attention_layers",
        "hidden", "intermediate", "vocab", "heads", "kv_heads", "head_dim".
    """
    source = folder.base or folder.path
    return {
        **count_parameters(source),
        "adapter": 0 if folder.base is None else count_parameters(folder.path)["total"],
        **shape_of(source),
    }
