"""Rows in the forms in which people keep them: JSONL, a JSON array, Parquet, CSV, a folder of `Dataset.save_to_disk`, or a data
set of the hub. The first bytes of a file decide how it is read, not its name; a table of text has no such bytes, so CSV is
recognized by its suffix, and so is compressed JSONL (.jsonl.gz).
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from nextturn.probe.command.errors import DataError, one_line
from nextturn.probe.command.files import cache_root, read_jsonl, sha256_file, sha256_text, write_jsonl

# ORG/NAME, then @CONFIGURATION and :SPLIT where they are needed.
_ON_HUB = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w.-]+))?(?::([\w.\[\]%-]+))?")


def located(name: str, key: str) -> Path:
    """Return the file or folder of a name; a data set of the hub is fetched once, into the cache.

    Args:
        name: A path, or ORG/NAME, ORG/NAME:SPLIT or ORG/NAME@CONFIGURATION:SPLIT of the hub; the split is train by default.
        key: The recipe's key, for messages.

    Raises:
        DataError: The file is empty, or there is no such file or folder, and the hub has no such data set or cannot be reached.
    """
    path, on_hub = Path(name), as_hub_set(name, key)
    if on_hub is None:
        return path
    from nextturn.probe.data.hub import hub_rows

    hub_id, config, split = on_hub.groups()
    stored = cache_root() / "rows" / f"{sha256_text(name)[:16]}.jsonl"
    if not stored.is_file():
        try:
            write_jsonl(stored, hub_rows(hub_id, config, split or "train"))
        except DataError as error:
            raise DataError(f"{name}: no such file or folder ({key}), and no data set of the hub: {error}") from None
    return stored


def as_hub_set(name: str, key: str) -> re.Match[str] | None:
    """Return the parts of the name of a data set of the hub, or None for a file or folder that is here. See `located`."""
    path, on_hub = Path(name), _ON_HUB.fullmatch(name)
    if path.is_file() and not path.stat().st_size:
        raise DataError(f"{name}: the file is empty ({key})")
    if path.exists():
        return None
    if on_hub is None or name.endswith((".jsonl", ".json", ".parquet", ".csv")):
        raise DataError(f"{name}: no such file or folder ({key})")
    return on_hub


def read_rows(path: Path, columns: Mapping[str, str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line or row number from 1, row) of a file, or of a folder of `Dataset.save_to_disk`.

    Args:
        columns: Other names of columns, such as {"question": "Frage"}; a row then has both.

    Raises:
        DataError: There is no such file, it has another form, or a row is no JSON object (file:line) or lacks a column.
    """
    for number, row in _rows_in(path):
        yield number, renamed_columns(row, columns, place(path, number)) if columns else row


T = TypeVar("T")


def each_row(
    path: Path,
    columns: Mapping[str, str] | None,
    left_out: list[str] | None,
    read: Callable[[dict[str, Any], str, int], T],
) -> Iterator[T]:
    """Yield what `read` makes of (row, its place, its number) for each row of a file.

    Args:
        columns: See `read_rows`.
        left_out: Gets the fault of every row that cannot be read; without it such a row is an error.

    Raises:
        DataError: A row cannot be read, or none can.
    """
    read_one = False
    for number, row in read_rows(path):
        where = place(path, number)
        try:
            made = read(renamed_columns(row, columns, where) if columns else row, where, number)
        except DataError as error:
            if left_out is None:
                raise DataError(f"{error} (in a probe's set `on_bad_row: skip` leaves such rows out)") from None
            left_out.append(str(error))
            continue
        read_one = True
        yield made
    if left_out and not read_one:
        raise DataError(f"{path}: none of {len(left_out)} rows can be used: {left_out[0]}")


def renamed_columns(row: dict[str, Any], columns: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return the row with its own columns also under our names; DataError if it lacks one."""
    for ours, theirs in columns.items():
        if theirs not in row:
            raise DataError(f"{where}: no column {theirs!r} (columns.{ours}), there are {', '.join(row) or 'none'}")
    return {**row, **{ours: row[theirs] for ours, theirs in columns.items()}}


def _rows_in(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if path.is_dir():
        yield from enumerate(_saved(path), start=1)
        return
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    with path.open("rb") as file:
        start = file.read(4096)
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        return
    if path.name.endswith(".jsonl.gz"):
        yield from read_jsonl(path)
        return
    if start.startswith((b"\x1f\x8b", b"PK\x03\x04", b"(\xb5/\xfd", b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}: compressed or in UTF-16, expected UTF-8, or JSONL with the name .jsonl.gz")
    if start.startswith(b"PAR1"):
        yield from enumerate(_parquet(path), start=1)
    elif text.startswith(b"["):
        yield from _array(path)
    elif path.suffix.lower() in (".csv", ".tsv") and not text.startswith(b"{"):
        yield from enumerate(_table(path), start=1)
    elif text.splitlines()[0].strip() == b"{" and len(text.splitlines()) > 1:
        raise DataError(f"{path}: one JSON object over several lines, expected one a line or a JSON array of objects")
    else:
        yield from read_jsonl(path)


def place(source: Path, number: int) -> str:
    """Return where a row is, for messages: FILE:LINE, or the number of the row where a row is no line."""
    lines = source.is_file() and source.suffix.lower() not in (".csv", ".tsv", ".json", ".parquet")
    return f"{source}:{number}" if lines else f"{source}: row {number}"


def sha256_of(source: Path) -> str:
    """Return the sha256 of a file, or of the files of a folder, but for those in which `datasets` keeps what others computed."""
    if source.is_file():
        return sha256_file(source)
    paths = (path for path in sorted(source.rglob("*")) if path.is_file() and not path.name.startswith("cache-"))
    return sha256_text("".join(map(sha256_file, paths)))


def is_saved(folder: Path) -> bool:
    """Return True if a folder was written by `save_to_disk` of `datasets`."""
    return (folder / "dataset_info.json").is_file() or (folder / "dataset_dict.json").is_file()


def _saved(folder: Path) -> Iterator[dict[str, Any]]:
    if not is_saved(folder):
        raise DataError(f"{folder}: a folder without rows, expected a file or a folder of `Dataset.save_to_disk`")
    from datasets import DatasetDict, load_from_disk

    try:
        rows = load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder}: cannot be read as a folder of `save_to_disk` ({one_line(error)})") from None
    if isinstance(rows, DatasetDict):
        splits = ", ".join(str(folder / name) for name in rows)
        raise DataError(f"{folder}: several splits, expected the folder of one of them: {splits}")
    return (dict(row) for row in rows)


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=1000):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: cannot be read as Parquet ({one_line(error)})") from None


def _array(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: begins as a JSON array and is none ({error})") from None
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise DataError(f"{place(path, number)}: {type(row).__name__}, expected a JSON object")
        yield number, row


def _table(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table with a head; a cell that holds a JSON object, or a list of more than numbers, is read as one."""
    csv.field_size_limit(2**27)
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file, dialect="excel-tab" if path.suffix.lower() == ".tsv" else "excel"):
            if None in row or None in row.values():
                head = ", ".join(row.keys() - {None})
                raise DataError(f"{path}: a row has another number of cells than the head ({head})")
            yield {name: parsed(text) if _is_json(text) else text for name, text in row.items()}


def _is_json(cell: str) -> bool:
    """Return True if a cell may hold JSON. A list of nothing but numbers is an interval, a vector or a matrix: an answer."""
    return cell[:1] in ("[", "{") and ('"' in cell or "{" in cell or not re.search(r"\d", cell))


def parsed(value: Any) -> Any:
    """Return what a JSON text holds; anything else stays as it is."""
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value
