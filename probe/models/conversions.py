"""Models that are converted once before they are used: the embedded model, a multimodal checkpoint, a LoRA checkpoint.

A conversion takes seconds to minutes, and several processes (one per GPU) ask for it at the same moment. The first process
converts under a lock and the others wait. The files are written to a temporary folder, which is renamed when complete. A
folder is complete if its manifest, which is written last, names the expected source and every file still has its size. Any
other folder is made again.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

from nextturn.probe.command.errors import DataError, ModelError, one_line
from nextturn.probe.command.files import cache_root, read_json, sha256_text, write_json
from nextturn.probe.models import weights

MANIFEST = "nextturn_source.json"
# Increased if a conversion changes what it writes, so that older folders are made again.
FORMAT = 2
_ADVICE = "set NEXTTURN_CACHE to a folder with free space that can be written and locked"


def made_once(name: str, source_sha256: str, size: int, write: Callable[[Path], None]) -> Path:
    """Return the cache folder `name`, which `write(empty folder)` fills unless it is complete and made from this source.

    Args:
        source_sha256: Identifies what is converted.
        size: Bytes that the folder needs on disk.

    Raises:
        ModelError: The cache cannot be written, or the disk has no room.
    """
    folder = cache_root() / name
    if is_complete(folder, source_sha256):
        return folder
    from safetensors import SafetensorError  # safetensors reports a full disk with this error

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # The system releases the lock when this process ends, however it ends.
        with FileLock(folder.parent / f".{name}.lock"):
            if not is_complete(folder, source_sha256):
                _make(folder, source_sha256, size, write)
    except (OSError, SafetensorError) as error:
        problem = f"the converted model of {size / 1e9:.1f} GB cannot be written ({one_line(error)})"
        raise ModelError(f"{folder}: {problem}; {_ADVICE}") from error
    return folder


@contextmanager
def made_while_used(name: str, source_sha256: str, size: int, write: Callable[[Path], None]) -> Iterator[Path]:
    """Provide the cache folder `name` as `made_once` does. The last process that leaves such a block removes the folder.

    Raises:
        ModelError: As `made_once`, or the file system has no locks.
    """
    cache_root().mkdir(parents=True, exist_ok=True)
    # NFS wants a file open for reading if the lock is shared, and open for writing if it is exclusive.
    with (cache_root() / f".{name}.used").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
        except OSError as error:
            raise ModelError(f"{file.name}: cannot be locked ({one_line(error)}); {_ADVICE}") from error
        try:
            yield made_once(name, source_sha256, size, write)
        finally:
            with suppress(BlockingIOError):  # another process uses the folder and will remove it
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(cache_root() / name, ignore_errors=True)
            fcntl.flock(file, fcntl.LOCK_UN)  # closing the file would leave the lock to workers forked meanwhile


def is_complete(folder: Path, source_sha256: str) -> bool:
    """Return True if this version of the conversion made `folder` from this source and every file is complete."""
    try:
        manifest = read_json(folder / MANIFEST)
    except (DataError, NotADirectoryError):
        return False
    head = _manifest_head(source_sha256)
    return isinstance(manifest, dict) and head.items() <= manifest.items() and manifest.get("files") == _sizes(folder)


def _manifest_head(source_sha256: str) -> dict[str, str | int]:
    # Only the major version: every transformers 5.x reads the folders that another one wrote.
    return {"source_sha256": source_sha256, "format": FORMAT, "transformers_major": version("transformers")[:1]}


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    return {path.name: path.stat().st_size for path in sorted(files)}


def _make(folder: Path, source_sha256: str, size: int, write: Callable[[Path], None]) -> None:
    with new_folder(folder, size, _ADVICE) as temporary:
        write(temporary)
        for path in temporary.iterdir():
            if path.is_file():  # a folder, such as additional_chat_templates, has to stay executable
                path.chmod(0o644)
        versions = {"transformers": version("transformers"), "files": _sizes(temporary)}
        write_json(temporary / MANIFEST, _manifest_head(source_sha256) | versions)
        if folder.exists():
            shutil.rmtree(folder)


@contextmanager
def new_folder(folder: Path, size: int, advice: str) -> Iterator[Path]:
    """Provide a temporary folder next to `folder`, which is renamed to it if the block ends without an error.

    Raises:
        ModelError: The disk has no room for `size` bytes. The message ends with `advice`.
    """
    prefix = f".{folder.name}.making-"
    for left_by_a_kill in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_by_a_kill)
    free = shutil.disk_usage(folder.parent).free
    if free < size:
        raise ModelError(f"{folder}: needs {size / 1e9:.1f} GB and the disk has {free / 1e9:.1f} GB free; {advice}")
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix))
    try:
        temporary.chmod(0o755)
        yield temporary
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


# --- A multimodal Qwen3.5 checkpoint becomes its text-only folder once.
#
# The hub holds Qwen3.5 as a vision-language class. Training, the KL reference, vLLM and the probe need the text class. Mixing
# the two classes breaks weight syncing and puts adapters on the vision tower. transformers can load the text class from such a
# checkpoint, so it does the extraction, and no weight name is written here.

MULTIMODAL_TYPE = "qwen3_5"
TEXT_CLASS = "Qwen3_5ForCausalLM"
TURN_END, TEXT_END = "<|im_end|>", "<|endoftext|>"


def is_multimodal(folder: Path) -> bool:
    """Return True if the folder holds a Qwen3.5 with its vision tower."""
    config = weights.read_config(folder)
    classes = config.get("architectures") or []
    return config.get("model_type") == MULTIMODAL_TYPE or "Qwen3_5ForConditionalGeneration" in classes


def text_only_folder(folder: Path) -> Path:
    """Return the cached text-only folder of a multimodal checkpoint, which the first call makes.

    The cache key is the weights, tokenizer and template of the source.
    """
    source = sha256_text(weights.fingerprint_of([folder]) + weights.tokenizer_sha256(folder))
    size = sum(path.stat().st_size for path in weights.weight_files(folder))
    return made_once(f"text-only-{source[:16]}", source, size, lambda out: _extract(folder, out))


def _extract(folder: Path, out: Path) -> None:
    model, tokenizer = weights.load_causal_lm(folder), weights.load_any_tokenizer(folder)
    vocabulary = tokenizer.get_vocab()
    if type(model).__name__ != TEXT_CLASS or TURN_END not in vocabulary:
        expected = f"{TEXT_CLASS} and a tokenizer with {TURN_END}"
        raise ModelError(f"{folder}: loads as {type(model).__name__}, expected {expected}")
    tokenizer.eos_token = TURN_END
    model.config.architectures = [TEXT_CLASS]
    ends = [vocabulary[token] for token in (TURN_END, TEXT_END) if token in vocabulary]
    model.generation_config.eos_token_id = ends
    model.generation_config.pad_token_id = ends[-1]
    weights.end_turns(model, ends, folder)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
