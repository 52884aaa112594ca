"""Turn the name of a model into a local folder that training, vLLM and the probe can load, and load it.

A name is a local folder (a whole model, or a LoRA adapter on its base), a hub id, or `smollm2-135m`, which is installed as a
package (probe/models/embedded.py). A multimodal Qwen3.5 is converted once to its text-only folder (probe/models/conversions.py). Custom
model code is never run, and weights are read from safetensors files only.
"""

from __future__ import annotations

import difflib
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import ModelError, TemplateError
from nextturn.probe.command.files import cache_root, sha256_text
from nextturn.probe.command.terminal import say_once
from nextturn.probe.data.hub import hub_folder
from nextturn.probe.models import conversions, weights
from nextturn.probe.models.checkpoints import newest_complete, none_complete
from nextturn.probe.models.embedded import EMBEDDED_NAME, embedded_folder
from nextturn.probe.models.weights import ADAPTER_CONFIG, CONFIG, DTYPES, read_config, weight_files
from nextturn.probe.text.chat import Chat, Switches

GENERATION_CONFIG = "generation_config.json"
# Tokens that models reserve for padding, tried in this order if a tokenizer names no pad token.
PAD_TOKENS = ("<|finetune_right_pad_id|>", "<|endoftext|>", "<pad>", "<|end_of_text|>", "<unk>")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class ModelFolder:
    """A model on this machine.

    Attributes:
        name: The name that the user gave.
        path: Folder with config.json, weights and tokenizer, or a LoRA adapter folder.
        base: The base model's folder if `path` is a LoRA adapter folder, else None.
    """

    name: str
    path: Path
    base: Path | None = None

    @property
    def whole(self) -> Path:
        """The folder of the whole model: that of the base if this is an adapter."""
        return self.base or self.path

    @property
    def tokenizer_path(self) -> Path:
        """The folder of the tokenizer: the adapter's own if it was saved with one, else its base's."""
        own = (self.path / "tokenizer_config.json").is_file() or (self.path / "tokenizer.json").is_file()
        return self.path if own else self.whole


@dataclass(frozen=True)
class ModelInfo:
    """The model of a probe run as results.json names it: its path, its name in tables, and its hashes.

    The weights behind a server cannot be hashed or counted. `path` is then the server's name for the model. `parameters` is None
    for quantised weights, too, and in runs of earlier versions.
    """

    path: str
    label: str
    step: int | None = None
    weights_sha256: str | None = None
    template_sha256: str | None = None
    parameters: int | None = None


def resolve(name: str) -> ModelFolder:
    """Return the local folder of a model: a local folder first, then `smollm2-135m`, then a hub id.

    The folder of a training run stands for its newest complete checkpoint. torch is imported only if a model has to be
    converted, which happens once.

    Raises:
        ModelError: There is nothing under this name, or it is not a model. The message says what to do.
    """
    local = Path(name).expanduser()
    if local.is_dir():
        return _local(name, local)
    if name == EMBEDDED_NAME:
        return ModelFolder(name, embedded_folder())
    if local.exists():
        raise ModelError(f"{name}: a file, expected a model folder with {CONFIG} or {ADAPTER_CONFIG}")
    if _HUB_ID.fullmatch(name):
        return _local(name, hub_folder(name))
    meant = f"; did you mean {EMBEDDED_NAME}?" if difflib.get_close_matches(name.lower(), [EMBEDDED_NAME]) else ""
    raise ModelError(
        f"{name}: no such model folder; expected a folder, a hub id such as org/model, or {EMBEDDED_NAME}{meant}"
    )


def _local(name: str, folder: Path) -> ModelFolder:
    folder = folder.absolute()
    if (folder / ADAPTER_CONFIG).is_file():
        weight_files(folder)
        return ModelFolder(name, folder, _base_of(name, folder))
    if not (folder / CONFIG).is_file():
        checkpoint, skipped = newest_complete(folder)
        if checkpoint is not None:
            return _local(name, checkpoint)
        expected = f"expected {CONFIG} or {ADAPTER_CONFIG} in it; {none_complete(skipped)}"
        raise ModelError(f"{name}: this folder holds no model, {expected}")
    weight_files(folder)
    return ModelFolder(name, conversions.text_only_folder(folder) if conversions.is_multimodal(folder) else folder)


def _base_of(name: str, adapter: Path) -> Path:
    base = read_config(adapter, ADAPTER_CONFIG).get("base_model_name_or_path")
    advice = f"set base_model_name_or_path in {adapter / ADAPTER_CONFIG} to the base model's folder (or `probe watch --base MODEL`)"
    if not base:
        raise ModelError(f"{name}: a LoRA adapter that does not name its base; {advice}")
    # A relative path is looked up in the working directory, then in the adapter's folder.
    folder = next((path for path in (Path(base).expanduser(), adapter / base) if path.is_dir()), None)
    if folder is not None and (folder / ADAPTER_CONFIG).is_file():
        raise ModelError(f"{name}: a LoRA adapter on another adapter, {base}, expected one on a whole model; {advice}")
    try:
        return resolve(str(folder or base)).path
    except ModelError as error:
        raise ModelError(f"{name}: a LoRA adapter without its base ({error}); {advice}") from None


def tokenizer_folder(name: str) -> ModelFolder:
    """Return a folder with at least the model's tokenizer, for a model whose weights are on a server.

    Raises:
        ModelError: There is nothing under this name.
    """
    local = Path(name).expanduser()
    if local.is_dir():
        return ModelFolder(name, local.absolute())
    if not local.exists() and name != EMBEDDED_NAME and _HUB_ID.fullmatch(name):
        return ModelFolder(name, hub_folder(name, weights=False))
    return resolve(name)


def load_tokenizer(folder: ModelFolder) -> Any:
    """Load the tokenizer with padding on the left, a pad token and one chat template.

    Padding is on the left because generation continues at the right end of every row. If the tokenizer names no pad token,
    a token of its vocabulary is used (PAD_TOKENS, else the end token), so that the embedding keeps its size. Padding is
    always masked, so the choice changes no result.

    Raises:
        TemplateError: There is no chat template, or there are several and none is called "default".
    """
    tokenizer = weights.load_any_tokenizer(folder.tokenizer_path)
    tokenizer.padding_side = "left"
    if isinstance(tokenizer.chat_template, dict):  # Hermes and Command-R have further templates for tools
        tokenizer.more_templates = dict(tokenizer.chat_template)  # kept by checkpoints
        tokenizer.chat_template = tokenizer.more_templates.pop("default", None)
    if not tokenizer.chat_template:
        expected = f"a chat model, or a chat_template.jinja in {folder.tokenizer_path}"
        raise TemplateError(f"{folder.name}: no chat template, or several without a default one; expected {expected}")
    if tokenizer.pad_token is None:
        vocabulary = tokenizer.get_vocab()
        tokenizer.pad_token = next((token for token in PAD_TOKENS if token in vocabulary), tokenizer.eos_token)
    if tokenizer.pad_token is None:
        raise ModelError(f"{folder.name}: its tokenizer has neither a pad token nor an end token")
    return tokenizer


def end_ids(folder: ModelFolder) -> tuple[int, ...]:
    """Return the ids that end a text by the model's generation_config.json, else by its config.json; an adapter has its base's.

    A checkpoint has those of the model that its training began with: saving copies them.
    """
    for name in (GENERATION_CONFIG, CONFIG):
        config = read_config(folder.whole, name) if (folder.whole / name).is_file() else {}
        ends = config.get("eos_token_id", (config.get("text_config") or {}).get("eos_token_id"))
        if ends is not None:
            return tuple(ends) if isinstance(ends, list) else (int(ends),)
    return ()


def load_chat(folder: ModelFolder, switches: Switches | None = None) -> Chat:
    """Return the chat of a folder, with its tokenizer, the given switches of its template, and its own end tokens."""
    return Chat(load_tokenizer(folder), switches, end_ids(folder))


def load_model(folder: ModelFolder, dtype: str = "auto", device: str | None = None) -> Any:
    """Load the causal language model in evaluation mode. A LoRA adapter is merged into its base.

    Args:
        folder: From `resolve`.
        dtype: "auto" keeps the dtype of the checkpoint.
        device: A torch device. None selects this process's GPU (LOCAL_RANK) if there is one, else the CPU.
    """
    import torch

    model = _load(folder, dtype if dtype == "auto" else getattr(torch, dtype))
    return model.to(device or own_device()).eval()


def _load(folder: ModelFolder, dtype: Any, scale: float = 1.0) -> Any:
    model = weights.load_causal_lm(folder.whole, dtype)
    return model if folder.base is None else weights.merge_adapter(model, folder.path, scale)


def emulates_bfloat16() -> bool:
    """Return True if this CPU has no bfloat16 instructions: products then take up to 8 times as long as in float32."""
    import torch

    # torch knows x86 only. On other machines the recipe decides.
    return platform.machine() in ("x86_64", "AMD64") and not (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def usable_dtype(dtype: str, device: str | None = None, key: str = "probe.dtype") -> str:
    """Return `dtype`, or float32 instead of bfloat16 on a CPU without bfloat16 instructions. Training and probe use this rule.

    Args:
        device: See `load_model`.
        key: The recipe key that says `dtype`, for the message.
    """
    if dtype == "bfloat16" and (device or own_device()) == "cpu" and emulates_bfloat16():
        say_once(f"{key}: float32 instead of bfloat16, for which this CPU has no instructions")
        return "float32"
    return dtype


def used_dtype(folder: ModelFolder, dtype: str, device: str | None = None, key: str = "probe.dtype") -> str:
    """Return the dtype in which the engines load a model: `usable_dtype` of `dtype`, where "auto" is the checkpoint's own."""
    return usable_dtype(checkpoint_dtype(folder) if dtype == "auto" else dtype, device, key)


def own_device() -> str:
    """Return this process's GPU (LOCAL_RANK), or "cpu"."""
    import torch

    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"


# --- A LoRA checkpoint as a whole model.


def merged_folder(folder: ModelFolder, dtype: str = "auto") -> ModelFolder:
    """Return a LoRA checkpoint as a whole model in the cache, and any other folder as it is.

    Training starts from the merged model. It is made on the first call and kept, because the adapters trained on it name it
    as their base. The cache key is what is merged and the dtype of the merge.

    Args:
        dtype: Dtype of the merged weights; "auto" is the checkpoint's own.
    """
    if folder.base is None:
        return folder
    source, size, write = _merge(folder, dtype)
    return ModelFolder(folder.name, conversions.made_once(f"merged-{source[:16]}", source, size, write))


@contextmanager
def served_folder(folder: ModelFolder, dtype: str = "auto") -> Iterator[ModelFolder]:
    """Provide a LoRA checkpoint as a whole model while vLLM loads it, and any other folder as it is.

    vLLM skips adapter weights that it cannot place, without an error, so it never gets the adapter itself. The merged
    folder is removed at the end, unless another process uses it or `merged_folder` made it.

    Args:
        dtype: See `merged_folder`.
    """
    if folder.base is None:
        yield folder
        return
    source, size, write = _merge(folder, dtype)
    if conversions.is_complete(cache_root() / f"merged-{source[:16]}", source):
        yield merged_folder(folder, dtype)
        return
    with conversions.made_while_used(f"served-{source[:16]}", source, size, write) as merged:
        yield ModelFolder(folder.name, merged)


def _merge(folder: ModelFolder, dtype: str) -> tuple[str, int, Callable[[Path], None]]:
    """Return the sha256 of what is merged, the bytes needed on disk, and a function that writes the merged model."""
    dtype = checkpoint_dtype(folder) if dtype == "auto" else dtype
    source = sha256_text(f"{fingerprint(folder)} {weights.tokenizer_sha256(folder.tokenizer_path)} {dtype}")
    return source, whole_bytes(folder, dtype), lambda out: write_whole(folder, out, dtype)


def write_whole(folder: ModelFolder, out: Path, dtype: str, scale: float = 1.0) -> None:
    """Write a model as a folder that transformers and vLLM load: weights, configurations, tokenizer and chat template.

    A LoRA adapter is merged into its base in float32, and the sums are rounded once.

    Args:
        dtype: Dtype of the written weights, such as "bfloat16".
        scale: Factor of the adapter's update.

    Raises:
        ModelError: The weights are quantised.
    """
    import torch

    weights.refuse_quantised(folder.whole, folder.name)
    model, tokenizer = _load(folder, torch.float32, scale), weights.load_any_tokenizer(folder.tokenizer_path)
    wider = weights.stored_wider(folder.whole)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and not (wider and name.endswith(wider)):
            tensor.data = tensor.data.to(getattr(torch, dtype))
    weights.end_turns(model, load_chat(folder).answer_end_ids if tokenizer.chat_template else (), folder.whole)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def whole_bytes(folder: ModelFolder, dtype: str) -> int:
    """Return the bytes on disk that the weights need when `write_whole` writes them in `dtype`."""
    return parameter_count(folder) * (2 if dtype in ("bfloat16", "float16") else 4)


def checkpoint_dtype(folder: ModelFolder) -> str:
    """Return the dtype in which transformers loads the folder: its config's, else that of most of its weights."""
    config = read_config(folder.whole)
    for section in (config, config.get("text_config") or {}):
        for key in ("dtype", "torch_dtype"):
            if section.get(key) in DTYPES.values():
                return str(section[key])
    ((most, _),) = weights.count_parameters(folder.whole).most_common(1)
    return DTYPES.get(most, "auto")


def fingerprint(folder: ModelFolder) -> str:
    """Return the sha256 of weights and configuration, the base's included. It does not depend on where the folders are."""
    return weights.fingerprint_of([folder.path] if folder.base is None else [folder.base, folder.path])


def model_info(folder: ModelFolder, chat: Chat, label: str | None = None, step: int | None = None) -> ModelInfo:
    """Return what results.json says of a model.

    Args:
        step: None reads the step from the name of a `checkpoint-N` folder.
    """
    if step is None and (match := re.fullmatch(r"checkpoint-(\d+)", folder.path.name)):
        step = int(match.group(1))
    name = label or (f"step-{step}" if step is not None else Path(folder.name).name)
    counts = weights.count_parameters(folder.whole)
    parameters = counts.total() if set(counts) <= set(DTYPES) else None  # several quantised weights share an entry
    return ModelInfo(folder.name, name, step, fingerprint(folder), chat.template_sha256, parameters)


def parameter_count(folder: ModelFolder) -> int:
    """Return the number of parameters of the (merged) model, read from file headers."""
    return weights.count_parameters(folder.whole).total()
