"""Files that survive a crash: whole files are written atomically, JSONL rows are appended and flushed.

A JSONL file to which rows are appended may end in an incomplete line after SIGKILL. `open_append` cuts that line off, so that
the row is made again. A broken line anywhere else is an error that names file and line.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import socket
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import IO, Any

from nextturn.probe.command.errors import BadInput, DataError, SettingsChanged


def cache_root() -> Path:
    """Return the folder of converted models and of rows from the hub: $NEXTTURN_CACHE, else ~/.cache/nextturn."""
    return Path(os.environ.get("NEXTTURN_CACHE") or "~/.cache/nextturn").expanduser().absolute()


@contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """Provide a temporary file that is synced and renamed to `path` at the end, or removed after an error.

    A reader sees the old file or the new file, never a part of one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # the error of a full disk names no file
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files that `atomic` left anywhere in a folder after a kill. No other process may write there."""
    for path in folder.rglob(".*"):
        if re.fullmatch(r"\..+\.(json|jsonl|md|html|png)\.[a-z0-9_]{8}", path.name) and path.is_file():
            path.unlink()


@contextmanager
def only_process(lock: Path, doing: str) -> Iterator[None]:
    """Hold an exclusive lock on the file `lock`, which the system releases when this process ends, however it ends.

    The lock belongs to this process alone: unlike `flock`, it is not inherited by forked workers that outlive a kill.

    Args:
        doing: What the process with the lock does, such as "watches runs/a".

    Raises:
        BadInput: Another process holds the lock.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+", encoding="utf-8") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise BadInput(f"{holder} {doing} already; wait for it or end it") from None
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):  # a file system without locks
                raise
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a whole file, atomically."""
    with atomic(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def json_line(row: Any) -> str:
    """Return a row as JSON on one line. Equal rows give equal bytes."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomic(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n")


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write rows as a whole JSONL file, atomically."""
    with atomic(path) as file:
        for row in rows:
            file.write(json_line(row).encode())


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises DataError if it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error})") from None


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, row) of a file, which may be compressed (.gz).

    Raises:
        DataError: There is no such file, or a line is not a JSON object (file:line).
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:  # its own text counts lines from this one on
            raise DataError(f"{path}:{number}: not JSON ({error.msg} at character {error.pos + 1})") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: {type(row).__name__}, expected a JSON object")
        yield number, row


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not a whole gzip file ({error})") from None


def open_append(path: Path) -> FileIO:
    """Open a JSONL file for appending, after cutting off a last line that a kill left incomplete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        with path.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
    return path.open("ab", buffering=0)


def append_rows(file: FileIO, rows: Iterable[Any]) -> None:
    """Append rows and hand them to the system, so that a kill of this process loses none of them."""
    left = "".join(json_line(row) for row in rows).encode()
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        error.filename = str(file.name)
        raise


def refuse_changes(
    folder: Path, event: str, before: dict[str, Any], now: dict[str, Any], free: tuple[str, ...] = ()
) -> None:
    """Refuse to continue in a folder that was begun with other settings.

    Args:
        event: What was done with the settings `before`, such as "built".
        free: Keys that may change, and sections, of which every key may.

    Raises:
        SettingsChanged: The message names every key that differs.
    """
    starts = tuple(f"{key}{end}" for key in free for end in ":.")
    changed = [line for line in differences(before, now) if not line.startswith(starts)]
    if changed:
        problem = f"{event} with other settings ({'; '.join(changed)})"
        raise SettingsChanged(f"{folder}: {problem}; use those settings or choose another folder")


def differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    """Yield "key: old then, new now" for every key in which two settings differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            yield from differences(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif before != now:
        yield f"{key}: {_in_words(before)} then, {_in_words(now)} now"


def _in_words(setting: Any) -> str:
    """Return a setting for a message: of a section only the names of its keys."""
    if isinstance(setting, dict):
        return f"given ({', '.join(setting)})" if setting else "given"
    if isinstance(setting, list):
        return ", ".join(map(_in_words, setting)) or "none"
    return "not given" if setting is None else json.dumps(setting, ensure_ascii=False)


def sha256_text(text: str) -> str:
    """Return the sha256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
