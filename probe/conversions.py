"""Models that are converted once before they can be used: the embedded one, a multimodal checkpoint, a LoRA checkpoint.

A conversion takes seconds to minutes and several processes ask for it at the same moment (one per GPU), so the first
converts and the others wait. It is made under a lock in a folder beside, which is renamed when complete. A folder counts
as complete when the manifest written last names the wanted source and every file still has its size; anything else is
made again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from nextturn.probe.errors import DataError, ModelError
from nextturn.probe.files import read_json, sha256_text, write_json
from nextturn.probe.weights import (
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


@contextmanager
def made_while_used(name: str, source_sha256: str, needed_bytes: int, make: Callable[[Path], None]) -> Iterator[Path]:
    """Give the cache folder `name` as `made_once` does. The last process that leaves such a block removes the folder."""
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / f".{name}.used").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            yield made_once(name, source_sha256, needed_bytes, make)
        finally:
            with suppress(BlockingIOError):  # another process uses the folder, and will remove it
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(cache_root() / name, ignore_errors=True)
            fcntl.flock(file, fcntl.LOCK_UN)  # closing the file leaves the lock to workers that were forked meanwhile


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
    with new_folder(folder, needed_bytes, "set NEXTTURN_CACHE to a folder with room") as making:
        make(making)
        for path in making.iterdir():
            if path.is_file():  # a folder (additional_chat_templates) that cannot be entered cannot be read
                path.chmod(0o644)
        head = _manifest_head(source_sha256)
        write_json(making / MANIFEST, head | {"transformers": version("transformers"), "files": _sizes(making)})
        if folder.exists():
            shutil.rmtree(folder)


@contextmanager
def new_folder(folder: Path, needed_bytes: int, advice: str) -> Iterator[Path]:
    """Context manager: a temporary folder beside `folder`, which is renamed to it when the block ends without an error.

    Raises:
        ModelError: the disk has no room for `needed_bytes`; the message ends with `advice`.
    """
    prefix = f".{folder.name}.making-"
    for left_by_a_kill in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_by_a_kill)
    free = shutil.disk_usage(folder.parent).free
    if free < needed_bytes:
        raise ModelError(
            f"{folder}: the model needs {needed_bytes / 1e9:.1f} GB and the disk has {free / 1e9:.1f} GB free; {advice}"
        )
    making = Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix))
    try:
        making.chmod(0o755)
        yield making
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
