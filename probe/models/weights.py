"""The weight files of a model folder: which they are, how many parameters they hold, their hash, and strict loading.

Only safetensors files are read. Their header gives names, types and shapes without loading the weights, and unlike pickled
.bin files they cannot run code. Code never depends on the names of weights, because the same model may be saved as `model.*`
or `model.language_model.*`.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import DataError, ModelError, one_line, require
from nextturn.probe.command.files import read_json, sha256_file

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""The types of weights that are not quantised: safetensors' name and torch's."""
# Keys that say where a folder came from and which version wrote it. They do not change what the model answers.
_NOT_THE_MODEL = {"_name_or_path", "_model_name_or_path", "base_model_name_or_path", "transformers_version"}
_NOT_THE_MODEL |= {"peft_version", "revision", "inference_mode"}


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """Return the folder's config.json or adapter_config.json.

    Raises:
        ModelError: It is not a JSON object, or it names an attention implementation on the hub, whose code transformers
            would load.
    """
    try:
        config = read_json(folder / name)
    except DataError as error:
        raise ModelError(str(error)) from None
    if not isinstance(config, dict):
        raise ModelError(f"{folder / name}: {type(config).__name__}, expected a JSON object")
    for section in (config, *config.values()):
        for key, value in section.items() if isinstance(section, dict) else ():
            if "_implementation" in key and "/" in str(value):
                raise ModelError(f"{folder / name}: {key} is {value!r}, code on the hub, which is not run; remove it")
    return config


def weight_files(folder: Path) -> list[Path]:
    """Return the folder's safetensors files after checking that every file is complete.

    Raises:
        ModelError: There are none, a shard of the index is missing, or a file is cut short.
    """
    stem = "adapter_model" if (folder / ADAPTER_CONFIG).is_file() else "model"
    index = folder / f"{stem}.safetensors.index.json"
    listed = (read_config(folder, index.name).get("weight_map") or {}) if index.is_file() else None
    names = {f"{stem}.safetensors"} if listed is None else set(listed.values())
    files = [folder / name for name in sorted(names)]
    missing = [path.name for path in files if not path.is_file()]
    if missing and listed is not None:
        raise ModelError(f"{folder}: {len(missing)} of {len(files)} weight files are missing, first {missing[0]}")
    if missing or not files:
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.gguf") for path in folder.glob(pattern))
        advice = f"; {pickled[0]} is not read, save it as safetensors first" if pickled else ""
        raise ModelError(f"{folder}: no weights in this folder, expected {stem}.safetensors{advice}")
    for path in files:
        read_header(path)
    return files


def read_header(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Return {tensor name: (dtype, shape)} of a safetensors file.

    Raises:
        ModelError: The file is damaged or cut short.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            tensors = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return {name: (tensor.get_dtype(), tensor.get_shape()) for name, tensor in tensors.items()}
    except SafetensorError as error:
        problem = f"not a safetensors file, or cut short ({one_line(error)}; {path.stat().st_size:,} bytes)"
        raise ModelError(f"{path}: {problem}; copy or download it again") from None


def fingerprint_of(folders: list[Path]) -> str:
    """Return the sha256 over the folders' weights and configurations. It does not depend on where the folders are."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in weight_files(folder):
            digest.update(f"{path.name} {sha256_seen(path)}\n".encode())
        config = read_config(folder, ADAPTER_CONFIG if (folder / ADAPTER_CONFIG).is_file() else CONFIG)
        kept = {key: value for key, value in config.items() if key not in _NOT_THE_MODEL}
        digest.update(json.dumps(kept, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def tokenizer_sha256(folder: Path) -> str:
    """Return the sha256 over the folder's tokenizer and chat template files."""
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    return hashlib.sha256("".join(f"{path.name} {sha256_seen(path)}\n" for path in files).encode()).hexdigest()


sha256_of_seen: dict[tuple[str, int, int], str] = {}
"""{(path, size, modification time): sha256} of the files that were hashed. The processes of a launch copy it from the main
process, so that one process reads gigabytes of weights and not all at once."""


def sha256_seen(path: Path) -> str:
    """Return the sha256 of a file. It is computed again only if path, size or modification time change."""
    stat = path.stat()
    key = (str(path.resolve()), stat.st_size, stat.st_mtime_ns)
    if key not in sha256_of_seen:
        sha256_of_seen[key] = sha256_file(path)
    return sha256_of_seen[key]


def count_parameters(folder: Path) -> Counter[str]:
    """Return the number of parameters by safetensors dtype, read from the headers. Tied weights count once."""
    tied = (folder / CONFIG).is_file() and read_config(folder).get("tie_word_embeddings", False)
    counts = Counter[str]()
    for path in weight_files(folder):
        for name, (dtype, shape) in read_header(path).items():
            if not (tied and name.endswith("lm_head.weight")):  # ZeRO-2 saves the tied output head a second time
                counts[dtype] += math.prod(shape)
    return counts


def changes_nothing(folder: Path, base: Path | None) -> bool:
    """Return True if all weights of a whole model equal those of `base`, or all B of a LoRA adapter are zero.

    Reading ends at the first tensor that differs.
    """
    import torch
    from safetensors import safe_open

    def tensor(path: Path, name: str) -> Any:
        with safe_open(path, framework="pt") as file:
            return file.get_tensor(name)

    own = {name: path for path in weight_files(folder) for name in read_header(path)}
    if (folder / ADAPTER_CONFIG).is_file():
        updates = [name for name in own if "lora_B" in name]
        return bool(updates) and not any(tensor(own[name], name).any() for name in updates)
    theirs = {name: path for path in weight_files(base) for name in read_header(path)} if base else {}
    pairs = ((tensor(own[name], name), tensor(theirs[name], name)) for name in own.keys() & theirs.keys())
    return bool(own.keys() & theirs.keys()) and all(torch.equal(mine, other.to(mine.dtype)) for mine, other in pairs)


def refuse_quantised(folder: Path, name: str) -> None:
    """Raise ModelError if the weights are quantised, because no adapter can be merged into them."""
    kinds = sorted(set(count_parameters(folder)) - set(DTYPES))
    method = kinds[0] if kinds else (read_config(folder).get("quantization_config") or {}).get("quant_method")
    if method:
        raise ModelError(f"{name}: quantised ({method}), expected weights in bfloat16, float16 or float32")


# --- Strict loading. transformers fills missing weights with random numbers, and peft leaves adapters without matching weights
# at zero. Both give no more than a warning, and a probe would measure a model that nobody trained.


def load_causal_lm(folder: Path, dtype: Any = "auto") -> Any:
    """Load a folder's causal language model (text class) on the CPU, without running custom code.

    Raises:
        ModelError: transformers does not know the model's type, or weights are missing or have another shape.
    """
    from transformers import AutoModelForCausalLM

    with _library_errors(folder), _kept_wide(stored_wider(folder)):
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    if missing := sorted(loading["missing_keys"]):
        problem = f"{len(missing)} weights that its config.json asks for are missing, first {missing[0]}"
        raise ModelError(f"{folder}: {problem}; is the checkpoint complete, and does the config belong to it?")
    return model


def stored_wider(folder: Path) -> tuple[str, ...]:
    """Return how the names of the weights end that a folder in half precision holds in float32, such as Qwen3.5's decay rates.

    Qwen3.5 has `A_log` and the gated norm in float32, and vLLM computes with them as they are. In bfloat16 the decay is off by
    up to half a percent.
    """
    tensors = {name: dtype for path in weight_files(folder) for name, (dtype, _) in read_header(path).items()}
    if not {"BF16", "F16"} & set(tensors.values()):
        return ()
    return tuple(sorted({".".join(name.split(".")[-3:]) for name, dtype in tensors.items() if dtype == "F32"}))


@contextmanager
def _kept_wide(names: tuple[str, ...]) -> Iterator[None]:
    """Have transformers load these weights in float32, unless a model's class has a list of its own."""
    from transformers import PreTrainedModel

    before = PreTrainedModel._keep_in_fp32_modules_strict
    PreTrainedModel._keep_in_fp32_modules_strict = list(names) or before
    try:
        yield
    finally:
        PreTrainedModel._keep_in_fp32_modules_strict = before


def end_turns(model: Any, ends: Iterable[int], folder: Path) -> None:
    """Add the tokens that end a turn to the model's generation config, by which `generate` and vLLM stop.

    Raises:
        ModelError: The generation config cannot be saved, so that a checkpoint could not be either.
    """
    config = model.generation_config
    known = config.eos_token_id
    known = [] if known is None else known if isinstance(known, list) else [known]
    if missing := sorted(set(ends).difference(known)):
        config.eos_token_id = [*known, *missing]
    try:
        config.validate(strict=True)
    except ValueError as error:
        problem = f"{folder / 'generation_config.json'}: no checkpoint can be saved with it ({one_line(error)})"
        raise ModelError(f"{problem}; set do_sample to true in it, or remove the keys that are named") from None


def merge_adapter(model: Any, adapter: Path, scale: float = 1.0) -> Any:
    """Return the model with a LoRA adapter, times `scale`, added to its weights. The model keeps its class.

    Raises:
        ModelError: The adapter was made for another model.
    """
    require("peft", "lora", f"{adapter}, a LoRA adapter")
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

    with _library_errors(adapter), warnings.catch_warnings():
        warnings.filterwarnings("error", message="(?s).*missing adapter keys")
        adapted = PeftModel.from_pretrained(model, adapter)
        for module in adapted.modules():
            if isinstance(module, LoraLayer):
                module.scale_layer(scale)
        return adapted.merge_and_unload()


def adapted_weight(layer: Any) -> tuple[str, Any]:
    """Return (name, weight) of what a LoRA layer adapts: "weight" of a module, or a parameter that belongs to no module of its own."""
    if hasattr(layer, "parameter_name"):  # PEFT's ParamWrapper: the weights of all experts of a layer
        return layer.parameter_name, layer.get_param()
    return "weight", layer.get_base_layer().weight


# Other initializations change the base as well, and these options train more than B A. Neither is scaled by alpha.
_PLAIN_INITIALIZATIONS = (True, False, None, "gaussian", "orthogonal")
_MORE_THAN_LORA = ("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices", "alora_invocation_tokens")


def is_plain_lora(adapter: Path) -> bool:
    """Return True if the adapted model is base + alpha / r * B A and nothing else, so that its update can be scaled."""
    config = read_config(adapter, ADAPTER_CONFIG)
    plain = config.get("peft_type", "LORA") == "LORA" and config.get("bias", "none") == "none"
    known = config.get("init_lora_weights", True) in _PLAIN_INITIALIZATIONS
    return plain and known and not any(map(config.get, _MORE_THAN_LORA))


def load_any_tokenizer(folder: Path) -> Any:
    """Load a folder's tokenizer as it was saved."""
    from transformers import AutoTokenizer

    with _library_errors(folder):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


@contextmanager
def _library_errors(folder: Path) -> Iterator[None]:
    """Turn the exceptions of transformers and peft for a folder that they cannot load into a ModelError of one line."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, UserWarning) as error:
        from transformers import __version__

        raise ModelError(f"{folder}: transformers {__version__} cannot load it: {one_line(error)}") from error
