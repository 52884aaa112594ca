"""A folder's weights: which files, how many parameters, which model, all without loading them; and loading them, strictly.

Only safetensors is read: its header gives names, types and shapes, and unlike pickled .bin files it can run no
code. Weight names are never relied on; the same model may be saved as `model.*` or `model.language_model.*`.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nextturn.probe.errors import DataError, ModelError, one_line
from nextturn.probe.files import read_json, sha256_file

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
# Bits of an element by safetensors type name; sub-byte types are packed.
_BITS = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16}
_BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "I8": 8, "U8": 8, "BOOL": 8}
# Where a folder came from and which version wrote it, neither of which changes what the model answers.
_NOT_THE_MODEL = {"_name_or_path", "_model_name_or_path", "base_model_name_or_path", "transformers_version"}
_NOT_THE_MODEL |= {"peft_version", "revision", "inference_mode"}


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """Return the folder's config.json or adapter_config.json.

    Raises:
        ModelError: It is no JSON object, or names an attention implementation on the hub, whose code transformers would load.
    """
    try:
        config = read_json(folder / name)
    except DataError as error:
        raise ModelError(str(error)) from None
    if not isinstance(config, dict):
        raise ModelError(f"{folder / name}: a {type(config).__name__}, wanted a JSON object")
    for part in (config, *config.values()):
        for key, value in part.items() if isinstance(part, dict) else ():
            if "_implementation" in key and "/" in str(value):
                raise ModelError(
                    f"{folder / name}: {key} is {value!r}, code on the hub, which is not run; remove this key"
                )
    return config


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, every one checked to be whole.

    Raises:
        ModelError: there are none, a shard of the index is missing, or a file is cut short.
    """
    stem = "adapter_model" if (folder / ADAPTER_CONFIG).is_file() else "model"
    index = folder / f"{stem}.safetensors.index.json"
    if index.is_file():
        shards = read_config(folder, index.name).get("weight_map") or {}
        files = [folder / name for name in sorted(set(shards.values()))]
    else:
        files = [folder / f"{stem}.safetensors"]
    missing = [path.name for path in files if not path.is_file()]
    if not files or (missing and not index.is_file()):
        raise ModelError(f"{folder}: no weights in this folder, wanted {stem}.safetensors{_other_weights(folder)}")
    if missing:
        raise ModelError(f"{folder}: {len(missing)} of {len(files)} weight files are missing, first {missing[0]}")
    for path in files:
        read_header(path)
    return files


def _other_weights(folder: Path) -> str:
    other = sorted(path.name for pattern in ("*.bin", "*.pt", "*.gguf") for path in folder.glob(pattern))
    return f"; {other[0]} is not read, save it as safetensors first" if other else ""


def read_header(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Return tensor name to (dtype, shape) of a safetensors file, which is checked to be whole."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            tensors = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            return {name: (tensor.get_dtype(), tensor.get_shape()) for name, tensor in tensors.items()}
    except SafetensorError as error:
        size = path.stat().st_size
        raise ModelError(
            f"{path}: not a safetensors file, or cut short ({one_line(error)}; {size:,} bytes); copy or download it again"
        ) from None


def fingerprint_of(folders: list[Path]) -> str:
    """sha256 over the contents of the folders' weights and configs; the same wherever the folders lie."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in weight_files(folder):
            digest.update(f"{path.name} {sha256_seen(path)}\n".encode())
        config = read_config(folder, ADAPTER_CONFIG if (folder / ADAPTER_CONFIG).is_file() else CONFIG)
        kept = {key: value for key, value in config.items() if key not in _NOT_THE_MODEL}
        digest.update(json.dumps(kept, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def tokenizer_sha256(folder: Path) -> str:
    """sha256 over the folder's tokenizer and chat template files."""
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    return hashlib.sha256("".join(f"{path.name} {sha256_seen(path)}\n" for path in files).encode()).hexdigest()


sha256_of_seen: dict[tuple[str, int, int], str] = {}
"""{(path, size, time of change): sha256} of the files that were hashed. The processes of a launch take it over from the
main one, so that gigabytes of weights are read by one of them and not by all at once."""


def sha256_seen(path: Path) -> str:
    """sha256 of a file's contents, remembered while its path, size and time of change stay the same."""
    stat = path.stat()
    key = (str(path.resolve()), stat.st_size, stat.st_mtime_ns)
    if key not in sha256_of_seen:
        sha256_of_seen[key] = sha256_file(path)
    return sha256_of_seen[key]


def count_parameters(folder: Path) -> dict[str, Any]:
    """{"total", "by_dtype": {safetensors type: parameters}, "bytes"} from the headers; tied weights count once."""
    tied = (folder / CONFIG).is_file() and read_config(folder).get("tie_word_embeddings", False)
    by_dtype: dict[str, int] = {}
    size = 0
    for name, (dtype, shape) in _tensors(folder):
        # ZeRO-2 saves the tied output head a second time.
        if tied and name.endswith("lm_head.weight"):
            continue
        elements = math.prod(shape)
        by_dtype[dtype] = by_dtype.get(dtype, 0) + elements
        size += elements * _BITS.get(dtype, 8) // 8
    return {"total": sum(by_dtype.values()), "by_dtype": by_dtype, "bytes": size}


def _tensors(folder: Path) -> Iterator[tuple[str, tuple[str, list[int]]]]:
    for path in weight_files(folder):
        yield from read_header(path).items()


def refuse_quantised(folder: Path, name: str) -> None:
    """Raise ModelError for quantised weights (integers, or 8 bits and fewer), into which no adapter can be merged."""
    found = sorted(set(count_parameters(folder)["by_dtype"]) - {"F32", "BF16", "F16"})
    how = (read_config(folder).get("quantization_config") or {}).get("quant_method", "") if not found else found[0]
    if found or how:
        raise ModelError(f"{name}: quantised ({how}), wanted weights in bfloat16, float16 or float32")


def shape_of(folder: Path) -> dict[str, int | None]:
    """Layers and widths from config.json, of the text part where the model has several; None where not named."""
    config = read_config(folder)
    text = config.get("text_config") or config
    layers, hidden, heads = (text.get(key) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    kinds = text.get("layer_types") or ["full_attention"] * (layers or 0)
    return {
        "layers": layers,
        "full_attention_layers": sum(kind == "full_attention" for kind in kinds),
        "hidden": hidden,
        "intermediate": text.get("intermediate_size"),
        "vocab": text.get("vocab_size"),
        "heads": heads,
        "kv_heads": text.get("num_key_value_heads") or heads,
        "head_dim": text.get("head_dim") or (hidden // heads if hidden and heads else None),
    }


# Loading is strict: transformers fills missing weights with random numbers and peft leaves unmatched adapters at zero, both
# with no more than a warning; a probe of such a model would measure something that nobody trained.


WANTED_TRANSFORMERS = "transformers>=5.16.1,<6"
"""As in pyproject.toml: what this project was written for, Qwen3.5 included."""


def load_causal_lm(folder: Path, dtype: Any = "auto") -> Any:
    """A folder's causal language model, text class, on the CPU; safetensors only, no custom code.

    Raises:
        ModelError: transformers does not know its type, or weights are missing or have another shape.
    """
    from transformers import AutoModelForCausalLM

    with _explained(folder):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        raise ModelError(
            f"{folder}: {len(missing)} weights that its config.json asks for are missing, first {missing[0]}; "
            "is the checkpoint whole, and the config its own?"
        )
    return model


def merge_adapter(model: Any, adapter: Path, scale: float = 1.0) -> Any:
    """The model with a LoRA adapter, `scale` times as strong, folded into its weights; in its own class again.

    Raises:
        ModelError: the adapter was made for another model.
    """
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

    with _explained(adapter), warnings.catch_warnings():
        warnings.filterwarnings("error", message="(?s).*missing adapter keys")
        adapted = PeftModel.from_pretrained(model, adapter)
        for module in adapted.modules():
            if isinstance(module, LoraLayer):
                module.scale_layer(scale)
        return adapted.merge_and_unload()


# Adapters that are a sum base + alpha B A, and nothing else: what others start from or train beside it does not scale with alpha.
_PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal")
_BESIDE = ("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices", "alora_invocation_tokens")


def is_plain_lora(adapter: Path) -> bool:
    """Whether the adapter's alpha alone says how far it moves the base."""
    config = read_config(adapter, ADAPTER_CONFIG)
    plain = config.get("peft_type", "LORA") == "LORA" and config.get("bias", "none") == "none"
    return plain and config.get("init_lora_weights", True) in _PLAIN_STARTS and not any(map(config.get, _BESIDE))


def load_any_tokenizer(folder: Path) -> Any:
    """A folder's tokenizer as it was saved."""
    from transformers import AutoTokenizer

    with _explained(folder):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turns what the libraries raise for a folder that they cannot load into one line."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, UserWarning) as error:
        import transformers

        if kind := _unknown_type(folder):
            raise ModelError(
                f"{folder}: transformers {transformers.__version__} does not know its model type, {kind}; "
                f"pip install '{WANTED_TRANSFORMERS}'"
            ) from None
        raise ModelError(
            f"{folder}: transformers {transformers.__version__} cannot load it: {one_line(error)}"
        ) from error


def _unknown_type(folder: Path) -> str | None:
    """The folder's model type where this transformers has no class for it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = read_config(folder).get("model_type") if (folder / CONFIG).is_file() else None
    return str(kind) if kind and kind not in CONFIG_MAPPING else None
